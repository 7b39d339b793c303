//! The rules that every settlement on the wire keeps.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::proxy::Way;
use super::wire_tap::{Event, What};

/// One delivery, as the wire names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Delivered {
    pub(crate) connection: u64,
    pub(crate) channel: u16,
    /// Counts the lives of a channel number on its connection, from 1.
    pub(crate) life: u32,
    pub(crate) tag: u64,
    pub(crate) message_id: Option<String>,
}

/// A broken rule. `index` is the place of the settlement among the events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Violation {
    /// Tag 0 stands for everything outstanding.
    TagZero {
        index: usize,
    },
    SettledTwice {
        index: usize,
        delivery: Delivered,
    },
    /// No delivery of this channel had the tag, or it belongs to an earlier life of the channel.
    NeverDelivered {
        index: usize,
        tag: u64,
    },
    /// The client had already closed the channel, or answered its closing.
    ChannelClosed {
        index: usize,
        tag: u64,
    },
    /// The test says that nothing was decided about this delivery by then.
    Undecided {
        index: usize,
        delivery: Delivered,
    },
}

#[derive(Debug, Default)]
struct Channel {
    life: u32,
    is_closed: bool,
    outstanding: BTreeMap<u64, Delivered>,
    settled: BTreeMap<u64, Delivered>,
}

/// All broken rules among some events.
///
/// `is_decided` is asked for each delivery that a settlement covers, with the time at which the proxy saw the frame;
/// only the test knows what was decided by then. Pass `|_, _| true` where that is not the question.
pub(crate) fn check_settlements(
    events: &[Event],
    is_decided: impl Fn(&Delivered, Instant) -> bool,
) -> Vec<Violation> {
    let mut checker = Checker {
        is_decided,
        channels: BTreeMap::new(),
        closed: BTreeSet::new(),
        violations: Vec::new(),
    };
    for (index, event) in events.iter().enumerate() {
        checker.see(index, event);
    }
    checker.violations
}

struct Checker<F> {
    is_decided: F,
    channels: BTreeMap<(u64, u16), Channel>,
    /// Connections on which the client has said its last word.
    closed: BTreeSet<u64>,
    violations: Vec<Violation>,
}

impl<F: Fn(&Delivered, Instant) -> bool> Checker<F> {
    fn see(&mut self, index: usize, event: &Event) {
        let is_client = event.way == Way::ToServer;
        let channel = self
            .channels
            .entry((event.connection, event.channel))
            .or_default();
        match &event.what {
            What::ChannelOpen => {
                *channel = Channel {
                    life: channel.life + 1,
                    ..Channel::default()
                };
            }
            // A server's close does not count: an acknowledgement can be under way when it arrives.
            What::ChannelClose { .. } | What::ChannelCloseOk if is_client => {
                channel.is_closed = true
            }
            What::ConnectionClose { .. } | What::ConnectionCloseOk if is_client => {
                self.closed.insert(event.connection);
            }
            What::Ended => {
                self.closed.insert(event.connection);
            }
            What::Deliver {
                tag, message_id, ..
            } => {
                let delivery = Delivered {
                    connection: event.connection,
                    channel: event.channel,
                    life: channel.life,
                    tag: *tag,
                    message_id: message_id.clone(),
                };
                channel.outstanding.insert(*tag, delivery);
            }
            What::Ack { tag, multiple } | What::Nack { tag, multiple, .. } => {
                self.settle(index, event, *tag, *multiple);
            }
            What::Reject { tag, .. } => self.settle(index, event, *tag, false),
            _ => {}
        }
    }

    fn settle(&mut self, index: usize, event: &Event, tag: u64, multiple: bool) {
        let key = (event.connection, event.channel);
        let channel = self.channels.entry(key).or_default();
        let violation = if tag == 0 {
            Some(Violation::TagZero { index })
        } else if channel.is_closed || self.closed.contains(&event.connection) {
            Some(Violation::ChannelClosed { index, tag })
        } else if let Some(delivery) = channel.settled.get(&tag) {
            let delivery = delivery.clone();
            Some(Violation::SettledTwice { index, delivery })
        } else if !channel.outstanding.contains_key(&tag) {
            Some(Violation::NeverDelivered { index, tag })
        } else {
            None
        };
        if let Some(violation) = violation {
            self.violations.push(violation);
            return;
        }
        let first = if multiple { 0 } else { tag };
        let covered: Vec<u64> = channel
            .outstanding
            .range(first..=tag)
            .map(|(tag, _)| *tag)
            .collect();
        for tag in covered {
            let Some(delivery) = channel.outstanding.remove(&tag) else {
                continue;
            };
            if !(self.is_decided)(&delivery, event.at) {
                let delivery = delivery.clone();
                self.violations
                    .push(Violation::Undecided { index, delivery });
            }
            channel.settled.insert(tag, delivery);
        }
    }
}
