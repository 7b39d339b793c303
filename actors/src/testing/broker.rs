//! The broker behind [`ScriptedTransport`](super::ScriptedTransport): queues in memory, and a
//! record of everything it was told.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::model::{
    Attempt, Delivery, Disposition, Generation, MessageId, Outgoing, PartitionId, QueueName,
};

/// How the scripted broker answers settlements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SettleScript {
    /// Confirmed, at once.
    #[default]
    Confirm,
    /// Sent, without an answer of the broker.
    Sent,
    /// Handed back unsent, so many times; then confirmed.
    NotSent(u32),
    /// Applied, but nobody knows.
    Unknown,
    /// Never answered: the reply is kept.
    Silent,
}

/// How the scripted broker answers publishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PublishScript {
    /// Confirmed, at once.
    #[default]
    Confirm,
    /// Not taken now.
    Outage,
    /// Refused for good.
    Refuse,
    /// Never answered, and not taken.
    Silent,
}

/// A settlement that the broker was told.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settlement {
    /// The broker's number of the message.
    pub message: u64,
    /// Its id, if it has one.
    pub id: Option<MessageId>,
    /// The attempt that was settled.
    pub attempt: u32,
    /// The generation it was settled on.
    pub generation: Generation,
    /// What the broker was told.
    pub disposition: Disposition,
}

#[derive(Debug, Clone)]
pub(super) struct Message {
    pub(super) number: u64,
    pub(super) outgoing: Outgoing,
    pub(super) failures: u32,
    pub(super) handed_out: u32,
}

/// One hand-out of one message: what a settler stands for.
#[derive(Debug, Clone, Copy)]
pub(super) struct HandOut {
    pub(super) number: u64,
    pub(super) generation: Generation,
    pub(super) count: u32,
}

impl HandOut {
    pub(super) fn is_of(&self, message: &Message, generation: Generation) -> bool {
        self.generation == generation && self.count == message.handed_out
    }
}

pub(super) type Place = (QueueName, PartitionId);

#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) ready: VecDeque<Message>,
    /// What is handed out and not settled, by message number, with its generation.
    pub(super) leased: BTreeMap<u64, (Message, Generation)>,
    pub(super) generation: Generation,
    pub(super) credit: usize,
    pub(super) cancelled: bool,
    pub(super) lost: Option<String>,
    pub(super) panics: bool,
    /// The last generation that has ended: a word for it is stale, not a second one.
    pub(super) ended: Option<Generation>,
}

#[derive(Default)]
pub(super) struct Broker {
    pub(super) queues: BTreeMap<Place, Queue>,
    pub(super) numbers: u64,
    pub(super) settle: SettleScript,
    pub(super) publish: PublishScript,
    pub(super) redelivers: bool,
    pub(super) lease: Option<Duration>,
    pub(super) settlements: Vec<Settlement>,
    pub(super) published: Vec<Outgoing>,
    pub(super) kept: Vec<crate::ports::SettleReply>,
    pub(super) kept_publishes: Vec<crate::ports::PublishReply>,
    pub(super) unanswered: Vec<Outgoing>,
    pub(super) expired: BTreeSet<u64>,
    pub(super) kept_opens: bool,
    pub(super) publish_tries: Vec<Outgoing>,
    pub(super) hand_outs: u64,
    /// Requeued, and ready again when their delay is over.
    pub(super) due_later: u64,
    pub(super) extensions: BTreeMap<u64, u32>,
    pub(super) opens: u64,
    pub(super) refuse_opens: u32,
    pub(super) double_settlements: u64,
    pub(super) dead: Vec<u64>,
}

impl Broker {
    pub(super) fn push(&mut self, place: Place, outgoing: Outgoing) -> u64 {
        self.numbers += 1;
        let number = self.numbers;
        let message = Message {
            number,
            outgoing,
            failures: 0,
            handed_out: 0,
        };
        self.queues
            .entry(place)
            .or_default()
            .ready
            .push_back(message);
        number
    }

    /// Puts a message that was handed out once before at the end of its queue.
    pub(super) fn push_again(&mut self, place: Place, number: u64, outgoing: Outgoing) {
        let message = Message {
            number,
            outgoing,
            failures: 0,
            handed_out: 1,
        };
        self.queues
            .entry(place)
            .or_default()
            .ready
            .push_back(message);
    }

    /// Hands out what credit allows.
    pub(super) fn hand_out(&mut self, place: &Place, max: usize) -> Vec<(Delivery, HandOut)> {
        let queue = self.queues.entry(place.clone()).or_default();
        let mut handed = Vec::new();
        while handed.len() < max && queue.leased.len() < queue.credit && !queue.cancelled {
            let Some(mut message) = queue.ready.pop_front() else {
                break;
            };
            message.handed_out += 1;
            self.hand_outs += 1;
            let delivery = delivery_of(place, queue.generation, &message);
            let hand_out = HandOut {
                number: message.number,
                generation: queue.generation,
                count: message.handed_out,
            };
            handed.push((delivery, hand_out));
            queue
                .leased
                .insert(message.number, (message, queue.generation));
        }
        handed
    }

    /// Applies a settlement; `None` if its generation has ended. Gives a message that is due again
    /// after a delay.
    pub(super) fn settle(
        &mut self,
        place: &Place,
        held: HandOut,
        disposition: Disposition,
    ) -> Option<Option<(Message, Duration)>> {
        let HandOut {
            number, generation, ..
        } = held;
        let queue = self.queues.get_mut(place)?;
        match queue.leased.get(&number) {
            Some((message, of)) if held.is_of(message, *of) => {}
            Some(_) => return None,
            None => {
                let expired = self.expired.contains(&number);
                if !expired && queue.ended.is_none_or(|ended| ended < generation) {
                    self.double_settlements += 1;
                }
                return None;
            }
        }
        let (mut message, _) = queue.leased.remove(&number)?;
        self.settlements.push(Settlement {
            message: number,
            id: message.outgoing.id.clone(),
            attempt: message.failures + 1,
            generation,
            disposition,
        });
        if matches!(disposition, Disposition::Reject { .. }) {
            self.dead.push(number);
        }
        if !self.redelivers {
            return Some(None);
        }
        match disposition {
            Disposition::Ack | Disposition::Reject { .. } => Some(None),
            Disposition::Release => {
                queue.ready.push_front(message);
                Some(None)
            }
            Disposition::Requeue { after } => {
                message.failures += 1;
                Some(Some((message, after)))
            }
        }
    }

    /// Ends a generation: what it holds is ready again.
    pub(super) fn end_generation(&mut self, place: &Place, generation: Generation) {
        let Some(queue) = self.queues.get_mut(place) else {
            return;
        };
        queue.ended = queue.ended.max(Some(generation));
        let mine: Vec<u64> = queue
            .leased
            .iter()
            .filter(|(_, (_, of))| *of == generation)
            .map(|(number, _)| *number)
            .collect();
        for number in mine.into_iter().rev() {
            if let Some((message, _)) = queue.leased.remove(&number) {
                queue.ready.push_front(message);
            }
        }
    }

    /// Ends the lease of one message: it is ready again. What its former holder says is stale, not
    /// a second settlement.
    pub(super) fn expire_lease(&mut self, number: u64) -> bool {
        for queue in self.queues.values_mut() {
            if let Some((message, _)) = queue.leased.remove(&number) {
                queue.ready.push_front(message);
                self.expired.insert(number);
                return true;
            }
        }
        false
    }
}

fn delivery_of(place: &Place, generation: Generation, message: &Message) -> Delivery {
    let (queue, partition) = place.clone();
    let body = message.outgoing.body.clone();
    let mut delivery = Delivery::new(queue, partition, generation, body);
    delivery.id.clone_from(&message.outgoing.id);
    delivery.sequence = Some(message.number);
    delivery.key.clone_from(&message.outgoing.key);
    delivery.headers = message.outgoing.headers.clone();
    delivery.attempt = Attempt::new(message.failures + 1);
    delivery.delivery_count = Some(message.handed_out);
    delivery.redelivered = message.handed_out > 1;
    delivery
}
