//! The publisher: one channel with confirms on a connection of its own.
//!
//! Every publish is mandatory: what no queue takes comes back. Which publishes a confirm and a
//! return speak of is worked out by [`UnderWay`]; each publish has a deadline of its own.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use acquit_actors::model::{Outgoing, QueueName};
use acquit_actors::ports::{BoxFuture, FeedCursor, PublishError, PublishReply, Publisher};
use futures_util::stream::{FuturesUnordered, StreamExt};
use futures_util::{FutureExt, future};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::ShortString;
use lapin::{Channel, Confirmation, Connection};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::classify::classify;
use super::connection::{Keeper, State};
use super::convert::{properties, short};
use super::error::AmqpError;
use super::partitions::Partitions;
use super::under_way::{UnderWay, Verdict, due};

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
        // Without a connection nothing can have been published: say so at once. The very first one
        // is waited for, one answer's time.
        let seen = self.keeper.seen();
        let is_first = seen.opened == 0 && seen.trouble.is_none() && seen.state != State::Closed;
        if seen.state != State::Open && !is_first {
            let state = seen.state.as_str();
            let why = seen.trouble.unwrap_or_else(|| "not connected".to_owned());
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
    /// The largest frame that both sides take, in bytes.
    frame_max: usize,
    under_way: UnderWay<PublishReply>,
    confirms: FuturesUnordered<Confirm>,
}

impl Open {
    /// Answers all who wait, and leaves the channel to end by itself.
    fn give_up(mut self, error: impl Fn() -> PublishError, answer_timeout: Duration) {
        for reply in self.under_way.take_all() {
            reply.failed(error());
        }
        if self.channel.status().connected() {
            let channel = self.channel.clone();
            let close = async move { channel.close(200, "renewed".into()).await };
            tokio::spawn(tokio::time::timeout(answer_timeout, close));
        }
    }
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

/// A publish's number, and what came of it.
type Confirmed = (u64, lapin::Result<Confirmation>);

/// What the task does next.
#[expect(clippy::large_enum_variant, reason = "made and taken apart at once")]
enum Next {
    Confirm(Option<Confirmed>),
    Job(Option<Job>),
    Overdue,
}

impl Task {
    async fn run(mut self, mut jobs: mpsc::UnboundedReceiver<Job>) {
        let mut open: Option<Open> = None;
        let mut closed = false;
        loop {
            if self.renew && open.as_ref().is_none_or(|open| open.under_way.len() == 0) {
                self.renew = false;
                if let Some(open) = open.take() {
                    open.give_up(|| PublishError::Unknown, self.answer_timeout);
                }
            }
            match self.next(open.as_mut(), &mut jobs, closed).await {
                Next::Confirm(None) => return,
                Next::Confirm(Some(confirm)) => {
                    if let Some(mut ours) = open.take()
                        && !self.confirmed(&mut ours, confirm).await
                    {
                        open = Some(ours);
                    }
                }
                Next::Overdue => {
                    if let Some(ours) = open.take() {
                        open = self.overdue(ours);
                    }
                }
                // Nobody publishes any more: what is under way is answered first.
                Next::Job(None) => closed = true,
                Next::Job(Some(job)) => open = self.take(open, job, &mut jobs).await,
            }
        }
    }

    /// Waits for what comes next; `Confirm(None)`: nothing will.
    async fn next(
        &self,
        open: Option<&mut Open>,
        jobs: &mut mpsc::UnboundedReceiver<Job>,
        closed: bool,
    ) -> Next {
        let window = if self.careful > 0 { 1 } else { self.window };
        let Some(open) = open else {
            return match closed {
                true => Next::Confirm(None),
                false => Next::Job(jobs.recv().await),
            };
        };
        let has_room = !self.renew && open.under_way.waiting() < window;
        let next_due = open.under_way.next_due();
        tokio::select! {
            biased;
            Some(confirm) = open.confirms.next() => Next::Confirm(Some(confirm)),
            job = jobs.recv(), if has_room && !closed => Next::Job(job),
            () = at(next_due), if next_due.is_some() => Next::Overdue,
            else => Next::Confirm(None),
        }
    }

    /// Sends a publish, on a channel that is known to be there.
    async fn take(
        &mut self,
        mut open: Option<Open>,
        job: Job,
        jobs: &mut mpsc::UnboundedReceiver<Job>,
    ) -> Option<Open> {
        let fresh = open.as_ref().is_some_and(|open| {
            open.channel.status().connected() && open.opened == self.keeper.seen().opened
        });
        if !fresh {
            if let Some(old) = open.take() {
                // Its confirms will not come; whether they were applied nobody knows.
                old.give_up(|| PublishError::Unknown, self.answer_timeout);
            }
            match self.open().await {
                Ok(channel) => open = Some(channel),
                Err(trouble) => {
                    let outage = || PublishError::Outage(trouble.to_string());
                    job.reply.failed(outage());
                    // Who queued behind it waited as long as it did.
                    while let Ok(job) = jobs.try_recv() {
                        job.reply.failed(outage());
                    }
                    return None;
                }
            }
        }
        if let Some(open) = &mut open {
            self.send(open, job);
        }
        open
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
            let frame_max = connection.configuration().frame_max();
            Ok(Open {
                channel,
                opened,
                frame_max: usize::try_from(frame_max).unwrap_or(usize::MAX),
                under_way: UnderWay::new(),
                confirms: FuturesUnordered::new(),
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
    fn send(&mut self, open: &mut Open, job: Job) {
        let Job { message, reply } = job;
        let written = self.route(&message).and_then(|queue| {
            let id = match &message.id {
                Some(id) => short("message id", id.as_str())?,
                None => ShortString::from(format!("{:032x}", rand::random::<u128>())),
            };
            let properties = properties(&message, &id, open.frame_max)?;
            Ok((queue, id, properties))
        });
        let (queue, id, properties) = match written {
            Ok(written) => written,
            Err(refused) => return reply.failed(PublishError::Refused(refused.0)),
        };
        let due = due(Instant::now(), self.answer_timeout);
        let number = open.under_way.sent(id, queue.clone(), due, reply);
        let channel = open.channel.clone();
        let publish = async move {
            let options = BasicPublishOptions {
                mandatory: true,
                immediate: false,
            };
            let exchange = ShortString::default();
            let sent = channel
                .basic_publish(exchange, queue, options, &message.body, properties)
                .await;
            let confirmed = match sent {
                Ok(confirm) => confirm.await,
                Err(error) => Err(error),
            };
            (number, confirmed)
        };
        open.confirms.push(publish.boxed());
    }

    fn route(&self, message: &Outgoing) -> Result<ShortString, super::convert::Unpublishable> {
        let name: QueueName = self.partitions.route(message);
        short("queue's name", name.as_str())
    }

    /// Looks at a confirm and at all others that are there, then answers. `true`: the channel broke.
    async fn confirmed(&mut self, open: &mut Open, first: Confirmed) -> bool {
        let mut there = vec![first];
        all_ready(&mut open.confirms, &mut there).await;
        let mut broken = None;
        for (number, confirmed) in there {
            match confirmed {
                Ok(confirmation) => {
                    let acked = confirmation.is_ack();
                    if let Some(returned) = confirmation.take_message()
                        && let Some(id) = returned.delivery.properties.message_id()
                    {
                        let queue = &returned.delivery.routing_key;
                        open.under_way.returned(id, queue);
                    }
                    open.under_way.resolved(number, acked);
                }
                Err(error) => broken = Some(error),
            }
        }
        for (reply, queue, verdict) in open.under_way.take_verdicts() {
            self.careful = self.careful.saturating_sub(1);
            match verdict {
                Verdict::Confirmed => {
                    self.full.remove(&queue);
                    reply.into_iter().for_each(PublishReply::confirmed);
                }
                Verdict::Returned => outage(
                    reply,
                    format!("there is no such queue: the broker returned what was for {queue}"),
                ),
                Verdict::Nacked => {
                    self.is_full(&queue);
                    outage(
                        reply,
                        format!("{queue} does not take it now: it is full, or down"),
                    );
                }
            }
        }
        let Some(error) = broken else { return false };
        self.broke(open, &error);
        true
    }

    /// Says of what is overdue that nobody knows. A channel that says nothing at all, or owes too
    /// many confirms, is given up; one whose other queues answer is kept, and so is one that the
    /// broker blocks: it owes them still.
    fn overdue(&self, mut open: Open) -> Option<Open> {
        let (overdue, silent) = open.under_way.take_overdue(Instant::now());
        for reply in overdue {
            reply.failed(PublishError::Unknown);
        }
        let blocked = self.keeper.seen().state == State::Blocked;
        if (silent && !blocked) || open.under_way.late() >= self.window {
            tracing::warn!(
                after = ?self.answer_timeout,
                "publishes were not confirmed in time: the channel is opened anew"
            );
            open.give_up(|| PublishError::Unknown, self.answer_timeout);
            return None;
        }
        Some(open)
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
        let under_way = open.under_way.len();
        let text = classify(error).to_string();
        let over_one = error.is_amqp_soft_error() || is_malformed(error);
        if over_one && under_way > 1 {
            self.careful = under_way;
        }
        for reply in open.under_way.take_all() {
            reply.failed(match (over_one && under_way == 1, is_refusal(error)) {
                (true, true) => PublishError::Refused(text.clone()),
                (true, false) => PublishError::Outage(text.clone()),
                (false, _) => PublishError::Unknown,
            });
        }
    }
}

/// Takes all confirms that have been resolved by now. The set stops early now and then, and wakes
/// its task to be asked again: only when it does not, nothing that is ready is left.
async fn all_ready(confirms: &mut FuturesUnordered<Confirm>, into: &mut Vec<Confirmed>) {
    let asked_again = Arc::new(AskedAgain(AtomicBool::new(false)));
    let waker = Waker::from(Arc::clone(&asked_again));
    loop {
        asked_again.0.store(false, Ordering::SeqCst);
        let polled = confirms.poll_next_unpin(&mut Context::from_waker(&waker));
        match polled {
            Poll::Ready(Some(confirm)) => into.push(confirm),
            Poll::Ready(None) => return,
            Poll::Pending if asked_again.0.load(Ordering::SeqCst) => {
                tokio::task::yield_now().await;
            }
            // The next poll looks at what has become ready since, whomever that has woken.
            Poll::Pending => return,
        }
    }
}

struct AskedAgain(AtomicBool);

impl Wake for AskedAgain {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn outage(reply: Option<PublishReply>, text: String) {
    if let Some(reply) = reply {
        reply.failed(PublishError::Outage(text));
    }
}

async fn at(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => future::pending().await,
    }
}

/// Tells whether the broker closed the channel over what was published, and not over where to: no
/// permission or a missing exchange may change, and the work is kept meanwhile.
fn is_refusal(error: &lapin::Error) -> bool {
    use lapin::protocol::{AMQPErrorKind, AMQPSoftError};
    is_malformed(error)
        || match error.kind() {
            lapin::ErrorKind::ProtocolError(error) => matches!(
                error.kind(),
                AMQPErrorKind::Soft(
                    AMQPSoftError::PRECONDITIONFAILED | AMQPSoftError::CONTENTTOOLARGE
                )
            ),
            _ => false,
        }
}

/// Tells whether the broker ended the whole connection because it cannot read what was sent.
fn is_malformed(error: &lapin::Error) -> bool {
    use lapin::protocol::{AMQPErrorKind, AMQPHardError};
    match error.kind() {
        lapin::ErrorKind::ProtocolError(error) => matches!(
            error.kind(),
            AMQPErrorKind::Hard(
                AMQPHardError::FRAMEERROR
                    | AMQPHardError::SYNTAXERROR
                    | AMQPHardError::UNEXPECTEDFRAME
            )
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
