//! What a client and a broker said to each other, read off the wire.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use amq_protocol::frame::AMQPFrame;
use amq_protocol::protocol::{AMQPClass, basic, channel, confirm, connection};

use super::codec::{Frames, Piece};
use super::proxy::{Tap, Way};

/// One method, or the end of a connection.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Event {
    /// Counts the connections of the proxy, from 1.
    pub(crate) connection: u64,
    pub(crate) channel: u16,
    /// Who said it: a client's words go to the server.
    pub(crate) way: Way,
    pub(crate) at: Instant,
    pub(crate) what: What,
}

/// What was said. Bodies are not kept, and of the properties only the message id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    ChannelOpen,
    ChannelOpenOk,
    ChannelClose {
        code: u16,
        text: String,
    },
    ChannelCloseOk,
    Prefetch {
        count: u16,
    },
    Consume {
        queue: String,
        consumer_tag: String,
    },
    ConsumeOk {
        consumer_tag: String,
    },
    /// From a consumer, or the answer to a get (with an empty consumer tag).
    Deliver {
        consumer_tag: String,
        tag: u64,
        redelivered: bool,
        message_id: Option<String>,
    },
    Ack {
        tag: u64,
        multiple: bool,
    },
    Nack {
        tag: u64,
        multiple: bool,
        requeue: bool,
    },
    Reject {
        tag: u64,
        requeue: bool,
    },
    Cancel {
        consumer_tag: String,
    },
    CancelOk {
        consumer_tag: String,
    },
    Publish {
        exchange: String,
        routing_key: String,
        message_id: Option<String>,
    },
    Return {
        code: u16,
    },
    ConfirmSelect,
    /// The server's answer to a publish.
    Confirm {
        tag: u64,
        multiple: bool,
        ack: bool,
    },
    ConnectionOpen {
        vhost: String,
    },
    ConnectionOpenOk,
    ConnectionClose {
        code: u16,
        text: String,
    },
    ConnectionCloseOk,
    Blocked,
    Unblocked,
    Heartbeat,
    /// Another method, by its class and method ids.
    Other {
        class: u16,
        method: u16,
    },
    /// A frame that does not follow the grammar.
    Malformed,
    /// The proxy let both sides go.
    Ended,
}

/// Listens to all connections of a [`Proxy`](super::Proxy).
#[derive(Clone, Debug, Default)]
pub(crate) struct WireTap {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    events: Vec<Event>,
    frames: BTreeMap<(u64, Way), Frames>,
    /// The last method with content of each channel and way: its header follows.
    awaiting_header: BTreeMap<(u64, Way, u16), usize>,
}

impl WireTap {
    /// What to give to a proxy.
    pub(crate) fn tap(&self) -> Tap {
        let tap = self.clone();
        Arc::new(move |connection, way, bytes| match bytes {
            Some(bytes) => tap.hear(connection, way, bytes),
            None => tap.lock().push(connection, 0, way, What::Ended),
        })
    }

    /// Takes the next bytes of one way of a connection.
    pub(crate) fn hear(&self, connection: u64, way: Way, bytes: &[u8]) {
        let mut state = self.lock();
        let pieces = state
            .frames
            .entry((connection, way))
            .or_default()
            .take(bytes);
        for piece in pieces {
            state.note(connection, way, piece);
        }
    }

    /// All that was said so far, in the order in which the proxy saw it.
    pub(crate) fn events(&self) -> Vec<Event> {
        self.lock().events.clone()
    }

    /// How many events answer to a question.
    pub(crate) fn count(&self, is_meant: impl Fn(&Event) -> bool) -> usize {
        self.lock()
            .events
            .iter()
            .filter(|event| is_meant(event))
            .count()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn note(&mut self, connection: u64, way: Way, piece: Piece) {
        match piece {
            Piece::Frame(AMQPFrame::Method(channel, class)) => {
                let what = translate(class, way);
                if matches!(what, What::Deliver { .. } | What::Publish { .. }) {
                    let index = self.events.len();
                    self.awaiting_header
                        .insert((connection, way, channel), index);
                }
                self.push(connection, channel, way, what);
            }
            Piece::Frame(AMQPFrame::Header(channel, header)) => {
                let Some(index) = self.awaiting_header.remove(&(connection, way, channel)) else {
                    return;
                };
                if let What::Deliver { message_id, .. } | What::Publish { message_id, .. } =
                    &mut self.events[index].what
                {
                    *message_id = header
                        .properties
                        .message_id()
                        .as_ref()
                        .map(ToString::to_string);
                }
            }
            Piece::Frame(AMQPFrame::Heartbeat) => self.push(connection, 0, way, What::Heartbeat),
            Piece::Frame(_) => {}
            Piece::Malformed(_) => self.push(connection, 0, way, What::Malformed),
        }
    }

    fn push(&mut self, connection: u64, channel: u16, way: Way, what: What) {
        self.events.push(Event {
            connection,
            channel,
            way,
            at: Instant::now(),
            what,
        });
    }
}

fn translate(class: AMQPClass, way: Way) -> What {
    let other = What::Other {
        class: class.get_amqp_class_id(),
        method: class.get_amqp_method_id(),
    };
    match class {
        AMQPClass::Basic(method) => basic_method(method, way, other),
        AMQPClass::Channel(channel::AMQPMethod::Open(_)) => What::ChannelOpen,
        AMQPClass::Channel(channel::AMQPMethod::OpenOk(_)) => What::ChannelOpenOk,
        AMQPClass::Channel(channel::AMQPMethod::Close(close)) => What::ChannelClose {
            code: close.reply_code,
            text: close.reply_text.to_string(),
        },
        AMQPClass::Channel(channel::AMQPMethod::CloseOk(_)) => What::ChannelCloseOk,
        AMQPClass::Connection(method) => connection_method(method, other),
        AMQPClass::Confirm(confirm::AMQPMethod::Select(_)) => What::ConfirmSelect,
        _ => other,
    }
}

fn basic_method(method: basic::AMQPMethod, way: Way, other: What) -> What {
    match method {
        basic::AMQPMethod::Qos(qos) => What::Prefetch {
            count: qos.prefetch_count,
        },
        basic::AMQPMethod::Consume(consume) => What::Consume {
            queue: consume.queue.to_string(),
            consumer_tag: consume.consumer_tag.to_string(),
        },
        basic::AMQPMethod::ConsumeOk(ok) => What::ConsumeOk {
            consumer_tag: ok.consumer_tag.to_string(),
        },
        basic::AMQPMethod::Deliver(deliver) => What::Deliver {
            consumer_tag: deliver.consumer_tag.to_string(),
            tag: deliver.delivery_tag,
            redelivered: deliver.redelivered,
            message_id: None,
        },
        basic::AMQPMethod::GetOk(ok) => What::Deliver {
            consumer_tag: String::new(),
            tag: ok.delivery_tag,
            redelivered: ok.redelivered,
            message_id: None,
        },
        basic::AMQPMethod::Ack(ack) => {
            settlement_or_confirm(way, ack.delivery_tag, ack.multiple, None)
        }
        basic::AMQPMethod::Nack(nack) => {
            settlement_or_confirm(way, nack.delivery_tag, nack.multiple, Some(nack.requeue))
        }
        basic::AMQPMethod::Reject(reject) => What::Reject {
            tag: reject.delivery_tag,
            requeue: reject.requeue,
        },
        basic::AMQPMethod::Cancel(cancel) => What::Cancel {
            consumer_tag: cancel.consumer_tag.to_string(),
        },
        basic::AMQPMethod::CancelOk(ok) => What::CancelOk {
            consumer_tag: ok.consumer_tag.to_string(),
        },
        basic::AMQPMethod::Publish(publish) => What::Publish {
            exchange: publish.exchange.to_string(),
            routing_key: publish.routing_key.to_string(),
            message_id: None,
        },
        basic::AMQPMethod::Return(returned) => What::Return {
            code: returned.reply_code,
        },
        _ => other,
    }
}

/// The same two methods settle a delivery in one direction and confirm a publish in the other.
fn settlement_or_confirm(way: Way, tag: u64, multiple: bool, requeue: Option<bool>) -> What {
    match (way, requeue) {
        (Way::ToClient, requeue) => What::Confirm {
            tag,
            multiple,
            ack: requeue.is_none(),
        },
        (Way::ToServer, None) => What::Ack { tag, multiple },
        (Way::ToServer, Some(requeue)) => What::Nack {
            tag,
            multiple,
            requeue,
        },
    }
}

fn connection_method(method: connection::AMQPMethod, other: What) -> What {
    match method {
        connection::AMQPMethod::Open(open) => What::ConnectionOpen {
            vhost: open.virtual_host.to_string(),
        },
        connection::AMQPMethod::OpenOk(_) => What::ConnectionOpenOk,
        connection::AMQPMethod::Close(close) => What::ConnectionClose {
            code: close.reply_code,
            text: close.reply_text.to_string(),
        },
        connection::AMQPMethod::CloseOk(_) => What::ConnectionCloseOk,
        connection::AMQPMethod::Blocked(_) => What::Blocked,
        connection::AMQPMethod::Unblocked(_) => What::Unblocked,
        _ => other,
    }
}
