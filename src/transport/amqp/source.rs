//! The source: one channel, one subscription, one generation.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use acquit_actors::ports::{Arrival, BoxFuture, SOURCE_CLOSE, Source, SourceError};
use futures_util::{FutureExt, StreamExt};
use lapin::options::{BasicCancelOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::{FieldTable, ShortString};
use lapin::{Acker, Channel, Connection, Consumer};
use tokio::sync::{mpsc, oneshot};

use super::channel::{NewArrival, Shared};
use super::classify::classify;
use super::convert::{Place, delivery};
use super::error::AmqpError;

/// How many deliveries are read at once.
const BATCH_MAX: usize = 256;

/// How often a channel that consumes nothing is looked at: no stream tells of its end.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The most that AMQP can be asked to push ahead.
const PREFETCH_MAX: u32 = u16::MAX as u32;

/// The parts of a close, each with its own bound: asking for no more, where nobody did before;
/// writing what is decided; the linger; the channel.
const CANCEL_MAX: Duration = Duration::from_millis(250);
const FLUSH_MAX: Duration = Duration::from_millis(250);
const LINGER_MAX: Duration = Duration::from_secs(1);
const LEAVE_MAX: Duration = Duration::from_millis(150);

/// A source that has not been cancelled has just been opened: it has acked nothing.
const _: () = {
    let close = FLUSH_MAX.as_millis() + LINGER_MAX.as_millis() + LEAVE_MAX.as_millis();
    assert!(close < SOURCE_CLOSE.as_millis());
};

/// How long leaving a channel may take that is of no more use.
const ABANDON_MAX: Duration = Duration::from_secs(2);

/// A stream of RabbitMQ tells the offset of each message.
const STREAM_OFFSET: &str = "x-stream-offset";

/// What a subscription is asked for with.
#[derive(Debug, Clone)]
pub(super) struct Subscription {
    /// The queue's own name, with the partition's suffix.
    pub(super) queue: ShortString,
    /// Unique on the connection; a number is added for each subscription.
    pub(super) tag: String,
    pub(super) place: Place,
    pub(super) credit: u32,
    /// How many of its deliveries can be at work at once.
    pub(super) at_work: u32,
    pub(super) arguments: FieldTable,
    pub(super) answer_timeout: Duration,
    pub(super) linger: Duration,
    /// A reject drops the message: it is acked, so that no dead-letter exchange gets it.
    pub(super) drop_dead: bool,
}

/// What the source asks of its reader.
enum Order {
    Credit(u32),
    Cancel(oneshot::Sender<Result<(), SourceError>>),
    Resume(oneshot::Sender<Result<(), SourceError>>),
    Close(oneshot::Sender<()>),
}

/// One partition's deliveries for one generation.
#[derive(Debug)]
pub(super) struct AmqpSource {
    shared: Arc<Shared>,
    orders: mpsc::UnboundedSender<Order>,
}

/// Opens a channel and subscribes. Runs on the client's runtime.
pub(super) async fn open(
    connection: &Connection,
    subscription: Subscription,
) -> Result<AmqpSource, AmqpError> {
    let limit = subscription.answer_timeout;
    let channel = within(limit, "opening a channel", connection.create_channel()).await?;
    let mut reader = Reader {
        shared: Arc::new(Shared::new(limit, subscription.drop_dead)),
        channel,
        subscription,
        subscriptions: 0,
        consumer: None,
    };
    if let Err(trouble) = reader.subscribe().await {
        // An answer that comes late would leave a subscription that nobody reads.
        reader.leave().await;
        return Err(trouble);
    }
    let shared = Arc::clone(&reader.shared);
    tokio::spawn(Arc::clone(&shared).run_flusher());
    let (orders, receiver) = mpsc::unbounded_channel();
    tokio::spawn(reader.run(receiver));
    Ok(AmqpSource { shared, orders })
}

async fn within<T>(
    limit: Duration,
    what: &'static str,
    answer: impl Future<Output = lapin::Result<T>>,
) -> Result<T, AmqpError> {
    match tokio::time::timeout(limit, answer).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(classify(&error)),
        Err(_) => Err(AmqpError::Timeout { what, after: limit }),
    }
}

/// Owns the channel.
struct Reader {
    shared: Arc<Shared>,
    channel: Channel,
    subscription: Subscription,
    /// How many subscriptions the channel has had.
    subscriptions: u32,
    consumer: Option<Consumer>,
}

/// A reader that ends in any way ends its channel for all who wait for it.
impl Drop for Reader {
    fn drop(&mut self) {
        let lost = SourceError::ChannelLost("its reader ended".to_owned());
        self.shared.end(lost);
    }
}

impl Reader {
    /// Quality of service first: without it a subscription pushes without a bound.
    async fn subscribe(&mut self) -> Result<(), AmqpError> {
        let limit = self.subscription.answer_timeout;
        let prefetch = self.subscription.credit.clamp(1, PREFETCH_MAX);
        let prefetch = u16::try_from(prefetch).unwrap_or(u16::MAX);
        let qos = self
            .channel
            .basic_qos(prefetch, BasicQosOptions { global: false });
        within(limit, "setting the prefetch", qos).await?;
        self.subscriptions += 1;
        let tag = format!("{}.{}", self.subscription.tag, self.subscriptions);
        let consume = self.channel.basic_consume(
            self.subscription.queue.clone(),
            tag.into(),
            BasicConsumeOptions::default(),
            self.subscription.arguments.clone(),
        );
        self.consumer = Some(within(limit, "subscribing", consume).await?);
        let Subscription {
            credit, at_work, ..
        } = self.subscription;
        self.shared.subscribed(credit, at_work);
        Ok(())
    }

    async fn run(mut self, mut orders: mpsc::UnboundedReceiver<Order>) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        loop {
            let next = async {
                match &mut self.consumer {
                    Some(consumer) => Some(consumer.next().await),
                    None => {
                        tokio::time::sleep(LOOK_EVERY).await;
                        None
                    }
                }
            };
            let order = tokio::select! {
                biased;
                order = orders.recv() => order,
                next = next => {
                    let goes_on = match next {
                        Some(item) => self.take(item, &mut batch),
                        None => self.is_there(),
                    };
                    if !goes_on {
                        return self.leave().await;
                    }
                    continue;
                }
            };
            match order {
                // Dropped: what is unsettled is the broker's again.
                None => {
                    self.shared
                        .end(SourceError::ChannelLost("dropped".to_owned()));
                    return self.leave().await;
                }
                Some(Order::Credit(credit)) => {
                    self.subscription.credit = credit;
                    if self.consumer.is_some() && !self.resubscribe(&mut batch).await {
                        return self.leave().await;
                    }
                }
                Some(Order::Cancel(reply)) => {
                    let cancelled = self.cancel(&mut batch).await;
                    let lost = cancelled.is_err();
                    let _ = reply.send(cancelled.map_err(channel_lost));
                    if lost {
                        return self.leave().await;
                    }
                }
                Some(Order::Resume(reply)) => {
                    let resumed = match self.consumer {
                        Some(_) => Ok(()),
                        None => self.subscribe().await,
                    };
                    let lost = resumed.is_err();
                    let _ = reply.send(resumed.map_err(channel_lost));
                    if lost {
                        return self.leave().await;
                    }
                }
                Some(Order::Close(reply)) => {
                    if self.consumer.is_some() {
                        let cancel = self.cancel(&mut batch);
                        let _ = tokio::time::timeout(CANCEL_MAX, cancel).await;
                    }
                    self.shared.flushed(FLUSH_MAX).await;
                    self.linger().await;
                    self.shared.end(SourceError::Ended);
                    self.leave_within(LEAVE_MAX).await;
                    let _ = reply.send(());
                    return;
                }
            }
        }
    }

    /// Takes what the stream gave and what is ready behind it; `false`: the channel is over.
    fn take(
        &mut self,
        first: Option<lapin::Result<lapin::message::Delivery>>,
        batch: &mut Vec<(u64, Acker, NewArrival)>,
    ) -> bool {
        let mut next = Some(first);
        while let Some(item) = next {
            match item {
                Some(Ok(delivery)) => {
                    if is_from_a_stream(&delivery) {
                        let text = format!(
                            "{} is a RabbitMQ stream, which takes no settlement of one message; consume from a quorum queue",
                            self.subscription.queue
                        );
                        self.shared.end(SourceError::Refused(text));
                        return false;
                    }
                    batch.push(self.read(delivery));
                }
                Some(Err(error)) => {
                    let text = classify(&error).to_string();
                    self.shared.end(SourceError::ChannelLost(text));
                    return false;
                }
                None => {
                    let text = "the broker cancelled the subscription: the queue was deleted, or its leader is gone".to_owned();
                    self.shared.end(SourceError::ChannelLost(text));
                    return false;
                }
            }
            if batch.len() >= BATCH_MAX {
                break;
            }
            next = match &mut self.consumer {
                Some(consumer) => consumer.next().now_or_never(),
                None => None,
            };
        }
        self.hand_over(batch)
    }

    /// Tells whether the channel is open still; `false`: it is over.
    fn is_there(&self) -> bool {
        let connected = self.channel.status().connected();
        if !connected {
            let text = "the channel ended while nothing was handed out".to_owned();
            self.shared.end(SourceError::ChannelLost(text));
        }
        connected
    }

    fn hand_over(&mut self, batch: &mut Vec<(u64, Acker, NewArrival)>) -> bool {
        let followed = self.shared.arrived(batch);
        if !followed {
            let text = "the broker's delivery tags do not follow each other".to_owned();
            self.shared.end(SourceError::ChannelLost(text));
        }
        followed
    }

    fn read(&self, message: lapin::message::Delivery) -> (u64, Acker, NewArrival) {
        let place = &self.subscription.place;
        let read = delivery(
            place,
            &message.properties,
            message.data,
            message.redelivered,
        );
        (message.delivery_tag, message.acker, NewArrival(read))
    }

    /// Cancels the subscription and reads its stream to the end: what the broker had pushed by
    /// then is ours to settle.
    async fn cancel(&mut self, batch: &mut Vec<(u64, Acker, NewArrival)>) -> Result<(), AmqpError> {
        let Some(mut consumer) = self.consumer.take() else {
            return Ok(());
        };
        let limit = self.subscription.answer_timeout;
        let cancel = self
            .channel
            .basic_cancel(consumer.tag(), BasicCancelOptions::default());
        within(limit, "cancelling", cancel).await?;
        let rest = async {
            while let Some(item) = consumer.next().await {
                let item = item.map_err(|error| classify(&error))?;
                batch.push(self.read(item));
            }
            Ok(())
        };
        match tokio::time::timeout(limit, rest).await {
            Ok(read) => read?,
            Err(_) => {
                return Err(AmqpError::Timeout {
                    what: "cancelling",
                    after: limit,
                });
            }
        }
        if self.hand_over(batch) {
            Ok(())
        } else {
            Err(AmqpError::Client {
                text: "tags out of order".to_owned(),
            })
        }
    }

    async fn resubscribe(&mut self, batch: &mut Vec<(u64, Acker, NewArrival)>) -> bool {
        let done = match self.cancel(batch).await {
            Ok(()) => self.subscribe().await,
            Err(trouble) => Err(trouble),
        };
        if let Err(trouble) = &done {
            self.shared.end(channel_lost(trouble.clone()));
        }
        done.is_ok()
    }

    /// A quorum queue can ignore acks that race the channel's close, and AMQP does not tell when
    /// they are applied: after an ack there is a pause.
    async fn linger(&self) {
        let linger = self.subscription.linger.min(LINGER_MAX);
        if let Some(since) = self.shared.since_last_ack()
            && let Some(rest) = linger.checked_sub(since)
        {
            tokio::time::sleep(rest).await;
        }
    }

    async fn leave(&mut self) {
        let limit = self.subscription.answer_timeout.min(ABANDON_MAX);
        self.leave_within(limit).await;
    }

    async fn leave_within(&mut self, limit: Duration) {
        self.consumer = None;
        if self.channel.status().connected() {
            let close = self.channel.close(200, "done".into());
            let _ = tokio::time::timeout(limit, close).await;
        }
    }
}

fn is_from_a_stream(message: &lapin::message::Delivery) -> bool {
    let headers = message.properties.headers().as_ref();
    headers.is_some_and(|table| table.contains_key(STREAM_OFFSET))
}

fn channel_lost(trouble: AmqpError) -> SourceError {
    SourceError::ChannelLost(trouble.to_string())
}

/// From here on nothing is sent for this generation, also while its channel is still being closed.
impl Drop for AmqpSource {
    fn drop(&mut self) {
        let dropped = SourceError::ChannelLost("the source was dropped".to_owned());
        self.shared.end(dropped);
    }
}

impl AmqpSource {
    async fn ask(
        &self,
        order: impl FnOnce(oneshot::Sender<Result<(), SourceError>>) -> Order,
    ) -> Result<(), SourceError> {
        let (reply, answer) = oneshot::channel();
        let lost = || SourceError::ChannelLost("its reader ended".to_owned());
        self.orders.send(order(reply)).map_err(|_| lost())?;
        // The reader answers within its own deadlines, or drops the reply with itself.
        answer.await.unwrap_or_else(|_| Err(lost()))
    }
}

impl Source for AmqpSource {
    fn recv<'a>(
        &'a mut self,
        max: usize,
        into: &'a mut Vec<Arrival>,
    ) -> BoxFuture<'a, Result<(), SourceError>> {
        Box::pin(poll_fn(move |cx| self.shared.poll_recv(cx, max, into)))
    }

    fn set_credit(&mut self, credit: u32) {
        // A reader that is gone has said why.
        let _ = self.orders.send(Order::Credit(credit));
    }

    fn cancel(&mut self) -> BoxFuture<'_, Result<(), SourceError>> {
        Box::pin(self.ask(Order::Cancel))
    }

    fn resume(&mut self) -> BoxFuture<'_, Result<(), SourceError>> {
        Box::pin(self.ask(Order::Resume))
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let (reply, closed) = oneshot::channel();
            if self.orders.send(Order::Close(reply)).is_ok() {
                let _ = closed.await;
            }
        })
    }
}
