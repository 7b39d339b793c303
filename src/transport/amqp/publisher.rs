//! The publisher: one channel with confirms on a connection of its own.
//!
//! Every publish is mandatory. The broker confirms an unroutable message too, and returns it before:
//! the client hands a returned message to whichever confirm it resolves next, so returns are matched
//! by message id, and nothing is answered before all confirms that are there have been looked at. A
//! returned message is with a confirm that was resolved no later than its own.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use acquit_actors::model::{Outgoing, QueueName};
use acquit_actors::ports::{BoxFuture, FeedCursor, PublishError, PublishReply, Publisher};
use futures_util::stream::{FuturesUnordered, StreamExt};
use futures_util::{FutureExt, future};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::ShortString;
use lapin::{Channel, Confirmation, Connection};
use tokio::sync::mpsc;

use super::classify::classify;
use super::connection::{Keeper, State};
use super::convert::{properties, short};
use super::error::AmqpError;
use super::partitions::Partitions;

/// The largest body that RabbitMQ takes unless it is told otherwise.
const BODY_MAX: usize = 128 << 20;

/// A publish under way.
struct Job {
    message: Outgoing,
    reply: PublishReply,
}

/// RabbitMQ's publisher.
#[derive(Debug)]
pub(super) struct AmqpPublisher {
    jobs: mpsc::UnboundedSender<Job>,
    keeper: Arc<Keeper>,
}

impl AmqpPublisher {
    /// Starts the publisher's task on the client's runtime.
    pub(super) fn start(
        keeper: Arc<Keeper>,
        partitions: Arc<Partitions>,
        window: usize,
        answer_timeout: Duration,
        runtime: &tokio::runtime::Handle,
    ) -> Self {
        let (jobs, receiver) = mpsc::unbounded_channel();
        let task = Task {
            keeper: Arc::clone(&keeper),
            partitions,
            window: window.max(1),
            answer_timeout,
            careful: 0,
            full: HashMap::new(),
            renew: false,
        };
        runtime.spawn(task.run(receiver));
        Self { jobs, keeper }
    }
}

impl Publisher for AmqpPublisher {
    fn publish(&self, message: Outgoing, reply: PublishReply) {
        if message.body.len() > BODY_MAX {
            let bytes = message.body.len();
            let text = format!("its body has {bytes} bytes; RabbitMQ takes {BODY_MAX}");
            return reply.failed(PublishError::Refused(text));
        }
        // Without a connection nothing can have been published: say so at once.
        let seen = self.keeper.seen();
        if seen.state != State::Open {
            let state = seen.state.as_str();
            let why = seen
                .trouble
                .unwrap_or_else(|| "not connected yet".to_owned());
            let text = format!("the publishing connection is {state}: {why}");
            return reply.failed(PublishError::Outage(text));
        }
        if let Err(mpsc::error::SendError(job)) = self.jobs.send(Job { message, reply }) {
            let text = "the transport is closed".to_owned();
            job.reply.failed(PublishError::Outage(text));
        }
    }

    fn publish_feed(&self, messages: Vec<Outgoing>, cursor: FeedCursor, reply: PublishReply) {
        let _ = (messages, cursor);
        let text = "RabbitMQ keeps no feed cursors".to_owned();
        reply.failed(PublishError::Refused(text));
    }

    fn feed_cursor<'a>(
        &'a self,
        _feed: &'a str,
    ) -> BoxFuture<'a, Result<Option<FeedCursor>, PublishError>> {
        Box::pin(future::ready(Ok(None)))
    }
}

/// After so many refusals of a full queue another channel asks.
const FULL_MAX: u32 = 20;

/// A channel, and what is under way on it.
struct Open {
    channel: Channel,
    opened: u64,
    /// Under way, by message id. The same id may be under way twice: both share a return.
    waiting: HashMap<ShortString, Vec<PublishReply>>,
    returned: HashSet<ShortString>,
}

struct Task {
    keeper: Arc<Keeper>,
    partitions: Arc<Partitions>,
    window: usize,
    answer_timeout: Duration,
    /// So many publishes go out one at a time: one of the last ones broke the channel, and nobody
    /// knows which.
    careful: usize,
    /// How often each queue was full without a confirm in between.
    full: HashMap<ShortString, u32>,
    /// The channel is to be replaced once nothing is under way on it.
    renew: bool,
}

type Confirm = future::BoxFuture<'static, Confirmed>;

/// A publish's id and its queue, and what came of it.
type Confirmed = (ShortString, ShortString, lapin::Result<Confirmation>);

impl Task {
    async fn run(mut self, mut jobs: mpsc::UnboundedReceiver<Job>) {
        let mut open: Option<Open> = None;
        let mut confirms: FuturesUnordered<Confirm> = FuturesUnordered::new();
        let mut closed = false;
        loop {
            if self.renew && confirms.is_empty() {
                self.renew = false;
                if let Some(Open { channel, .. }) = open.take() {
                    let close = async move { channel.close(200, "renewed".into()).await };
                    tokio::spawn(tokio::time::timeout(self.answer_timeout, close));
                }
            }
            let window = if self.careful > 0 { 1 } else { self.window };
            let has_room = !self.renew && confirms.len() < window;
            let job = tokio::select! {
                biased;
                Some(confirm) = confirms.next() => {
                    if let Some(channel) = &mut open {
                        let broken = self.confirmed(channel, confirm, &mut confirms);
                        if broken {
                            confirms.clear();
                            open = None;
                        }
                    }
                    continue;
                }
                job = jobs.recv(), if has_room && !closed => job,
                else => return,
            };
            let Some(job) = job else {
                // Nobody publishes any more: what is under way is answered first.
                closed = true;
                continue;
            };
            let fresh = open.as_ref().is_some_and(|open| {
                open.channel.status().connected() && open.opened == self.keeper.seen().opened
            });
            if !fresh {
                if let Some(old) = open.take() {
                    // Its confirms will not come; whether they were applied nobody knows.
                    fail_all(old, || PublishError::Unknown);
                    confirms.clear();
                }
                match self.open().await {
                    Ok(channel) => open = Some(channel),
                    Err(trouble) => {
                        let text = trouble.to_string();
                        job.reply.failed(PublishError::Outage(text));
                        continue;
                    }
                }
            }
            if let Some(open) = &mut open {
                self.send(open, job, &confirms);
            }
        }
    }

    async fn open(&self) -> Result<Open, AmqpError> {
        let limit = self.answer_timeout;
        let opening = async {
            let Some((connection, opened)) = self.keeper.connection().await else {
                return Err(AmqpError::Client {
                    text: "the transport is closed".to_owned(),
                });
            };
            let channel = confirming(&connection).await;
            let channel = channel.map_err(|error| classify(&error))?;
            Ok(Open {
                channel,
                opened,
                waiting: HashMap::new(),
                returned: HashSet::new(),
            })
        };
        match tokio::time::timeout(limit, opening).await {
            Ok(opened) => opened,
            Err(_) => Err(AmqpError::Timeout {
                what: "opening a channel",
                after: limit,
            }),
        }
    }

    /// Sends one publish and notes that its confirm is awaited.
    fn send(&mut self, open: &mut Open, job: Job, confirms: &FuturesUnordered<Confirm>) {
        let Job { message, reply } = job;
        let written = self.route(&message).and_then(|routing_key| {
            let id = match &message.id {
                Some(id) => short("message id", id.as_str())?,
                None => ShortString::from(format!("{:032x}", rand::random::<u128>())),
            };
            let properties = properties(&message, &id)?;
            Ok((routing_key, id, properties))
        });
        let (routing_key, id, properties) = match written {
            Ok(written) => written,
            Err(refused) => return reply.failed(PublishError::Refused(refused.0)),
        };
        open.waiting.entry(id.clone()).or_default().push(reply);
        let channel = open.channel.clone();
        let queue = routing_key.clone();
        let publish = async move {
            let options = BasicPublishOptions {
                mandatory: true,
                immediate: false,
            };
            let exchange = ShortString::default();
            let sent = channel
                .basic_publish(exchange, routing_key, options, &message.body, properties)
                .await;
            let confirmed = match sent {
                Ok(confirm) => confirm.await,
                Err(error) => Err(error),
            };
            (id, queue, confirmed)
        };
        confirms.push(publish.boxed());
    }

    fn route(&self, message: &Outgoing) -> Result<ShortString, super::convert::Unpublishable> {
        let name: QueueName = self.partitions.route(message);
        short("queue's name", name.as_str())
    }

    /// Looks at a confirm and at all others that are there, then answers. `true`: the channel broke.
    fn confirmed(
        &mut self,
        open: &mut Open,
        first: Confirmed,
        confirms: &mut FuturesUnordered<Confirm>,
    ) -> bool {
        let mut batch = vec![first];
        while let Some(Some(next)) = confirms.next().now_or_never() {
            batch.push(next);
        }
        let mut broken = None;
        let mut verdicts = Vec::with_capacity(batch.len());
        for (id, queue, confirmed) in batch {
            match confirmed {
                Ok(confirmation) => {
                    let ack = confirmation.is_ack();
                    if let Some(returned) = confirmation.take_message()
                        && let Some(id) = returned.delivery.properties.message_id()
                    {
                        open.returned.insert(id.clone());
                    }
                    verdicts.push((id, queue, ack));
                }
                Err(error) => broken = Some(error),
            }
        }
        for (id, queue, ack) in verdicts {
            self.careful = self.careful.saturating_sub(1);
            let returned = open.returned.contains(&id);
            let Some(reply) = open.take(&id) else {
                continue;
            };
            if returned {
                let text =
                    format!("there is no such queue: the broker returned what was for {queue}");
                reply.failed(PublishError::Outage(text));
            } else if ack {
                self.full.remove(&queue);
                reply.confirmed();
            } else {
                self.is_full(&queue);
                let text = format!("{queue} does not take it now: it is full, or down");
                reply.failed(PublishError::Outage(text));
            }
        }
        let Some(error) = broken else { return false };
        self.broke(open, &error);
        true
    }

    /// RabbitMQ (3.10) tells a channel that a quorum queue is full, and tells it otherwise only when
    /// somebody takes a message out: a limit that was raised is learnt by a new channel only.
    fn is_full(&mut self, queue: &ShortString) {
        let times = self.full.entry(queue.clone()).or_default();
        *times += 1;
        if *times >= FULL_MAX {
            self.full.remove(queue);
            self.renew = true;
        }
    }

    /// The channel is gone. If the broker closed it over a publish and only one was under way, it
    /// is that one; otherwise each of them goes out alone the next time, so that its reason is known.
    fn broke(&mut self, open: &mut Open, error: &lapin::Error) {
        let under_way: usize = open.waiting.values().map(Vec::len).sum();
        let text = classify(error).to_string();
        let over_one = error.is_amqp_soft_error();
        if over_one && under_way > 1 {
            self.careful = under_way;
        }
        for (_, replies) in open.waiting.drain() {
            for reply in replies {
                reply.failed(match (over_one && under_way == 1, is_refusal(error)) {
                    (true, true) => PublishError::Refused(text.clone()),
                    (true, false) => PublishError::Outage(text.clone()),
                    (false, _) => PublishError::Unknown,
                });
            }
        }
    }
}

impl Open {
    fn take(&mut self, id: &ShortString) -> Option<PublishReply> {
        let replies = self.waiting.get_mut(id)?;
        let reply = replies.pop();
        if replies.is_empty() {
            self.waiting.remove(id);
            self.returned.remove(id);
        }
        reply
    }
}

fn fail_all(mut open: Open, error: impl Fn() -> PublishError) {
    for (_, replies) in open.waiting.drain() {
        for reply in replies {
            reply.failed(error());
        }
    }
}

/// Tells whether the broker closed the channel over what was published, and not over where to: no
/// permission or a missing exchange may change, and the work is kept meanwhile.
fn is_refusal(error: &lapin::Error) -> bool {
    use lapin::protocol::{AMQPErrorKind, AMQPSoftError};
    match error.kind() {
        lapin::ErrorKind::ProtocolError(error) => matches!(
            error.kind(),
            AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED | AMQPSoftError::CONTENTTOOLARGE)
        ),
        _ => false,
    }
}

async fn confirming(connection: &Connection) -> lapin::Result<Channel> {
    let channel = connection.create_channel().await?;
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await?;
    Ok(channel)
}
