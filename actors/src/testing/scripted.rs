//! A transport that does as it is told, and records what it was told.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;

use crate::model::{
    Capabilities, DeliveryCounting, Disposition, Generation, Outgoing, PartitionId, QueueName,
};
use crate::ports::{
    Arrival, BoxFuture, FeedCursor, LeaseGone, PublishError, PublishReply, Publisher, SettleReply,
    Settler, Source, SourceError, SourceSpec, Transport, TransportError,
};

use super::broker::{Broker, HandOut, Place, PublishScript, SettleScript, Settlement};

/// A transport in memory whose broker is scripted by the test. Clones share one broker. Messages
/// carry the broker's number as their sequence.
#[derive(Clone)]
pub struct ScriptedTransport {
    shared: Arc<Shared>,
}

struct Shared {
    broker: Mutex<Broker>,
    changed: Notify,
    capabilities: Mutex<Capabilities>,
}

impl Shared {
    fn broker(&self) -> MutexGuard<'_, Broker> {
        self.broker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ScriptedTransport {
    /// Makes one that confirms everything and redelivers nothing.
    pub fn new() -> Self {
        let capabilities = Capabilities {
            confirms_settlement: true,
            delayed_requeue: true,
            extend: true,
            dead_list: true,
            late_ack: false,
            counting: DeliveryCounting::FailuresApart,
            durable: false,
        };
        Self {
            shared: Arc::new(Shared {
                broker: Mutex::default(),
                changed: Notify::new(),
                capabilities: Mutex::new(capabilities),
            }),
        }
    }

    /// Gives it as the port.
    pub fn shared(&self) -> Arc<dyn Transport> {
        Arc::new(self.clone())
    }

    /// Lets the broker hand out again what was requeued or released.
    #[must_use]
    pub fn with_redelivery(self) -> Self {
        self.shared.broker().redelivers = true;
        self
    }

    /// Answers no settlement and counts every return, as RabbitMQ does: a redelivery is told by its
    /// generation.
    #[must_use]
    pub fn without_answers(self) -> Self {
        {
            let mut capabilities = self
                .shared
                .capabilities
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            capabilities.confirms_settlement = false;
            capabilities.counting = DeliveryCounting::EveryReturn;
        }
        self.answer_settlements(SettleScript::Sent);
        self
    }

    /// Gives deliveries a lease.
    #[must_use]
    pub fn with_lease(self, lease: Duration) -> Self {
        self.shared.broker().lease = Some(lease);
        self
    }

    /// Scripts the answers to settlements from now on.
    pub fn answer_settlements(&self, script: SettleScript) {
        self.shared.broker().settle = script;
    }

    /// Scripts the answers to publishes from now on.
    pub fn answer_publishes(&self, script: PublishScript) {
        self.shared.broker().publish = script;
    }

    /// Lets the next so many openings fail.
    pub fn refuse_opens(&self, opens: u32) {
        self.shared.broker().refuse_opens = opens;
    }

    /// Keeps openings unanswered from now on, as a broker does that cannot be reached.
    pub fn keep_opens(&self, keep: bool) {
        self.shared.broker().kept_opens = keep;
        self.shared.changed.notify_waiters();
    }

    /// Ends the lease of a message that is handed out: it is ready again, and its holder hears of
    /// it when it extends. Tells whether it was handed out.
    pub fn expire_lease(&self, message: u64) -> bool {
        let expired = self.shared.broker().expire_lease(message);
        self.shared.changed.notify_waiters();
        expired
    }

    /// Puts a message into partition 0 of a queue; gives its number.
    pub fn push(&self, queue: impl Into<QueueName>, body: impl Into<Bytes>) -> u64 {
        let queue = queue.into();
        self.push_message(PartitionId(0), Outgoing::new(queue, body))
    }

    /// Puts a message into a partition; gives its number.
    pub fn push_message(&self, partition: PartitionId, message: Outgoing) -> u64 {
        let place = (message.queue.clone(), partition);
        let number = self.shared.broker().push(place, message);
        self.shared.changed.notify_waiters();
        number
    }

    /// Cuts the channel of a partition: its source fails, what it held is ready again.
    pub fn lose_channel(&self, queue: impl Into<QueueName>, partition: PartitionId) {
        let place = (queue.into(), partition);
        {
            let mut broker = self.shared.broker();
            let queue = broker.queues.entry(place.clone()).or_default();
            queue.lost = Some("cut by the test".to_owned());
            let generation = queue.generation;
            broker.end_generation(&place, generation);
        }
        self.shared.changed.notify_waiters();
    }

    /// Lets the source of a partition panic at its next read.
    pub fn panic_source(&self, queue: impl Into<QueueName>, partition: PartitionId) {
        let place = (queue.into(), partition);
        self.shared.broker().queues.entry(place).or_default().panics = true;
        self.shared.changed.notify_waiters();
    }

    /// Takes the publishes that were left without an answer, and confirms them.
    pub fn confirm_kept_publishes(&self) {
        let kept = {
            let mut broker = self.shared.broker();
            let unanswered = std::mem::take(&mut broker.unanswered);
            broker.published.extend(unanswered.into_iter().last());
            std::mem::take(&mut broker.kept_publishes)
        };
        kept.into_iter().for_each(PublishReply::confirmed);
        self.shared.changed.notify_waiters();
    }

    /// Hands a settled message out once more, as a broker does that never heard the settlement.
    pub fn hand_out_again(
        &self,
        queue: impl Into<QueueName>,
        partition: PartitionId,
        number: u64,
        body: impl Into<Bytes>,
    ) {
        let queue = queue.into();
        let outgoing = Outgoing::new(queue.clone(), body);
        self.shared
            .broker()
            .push_again((queue, partition), number, outgoing);
        self.shared.changed.notify_waiters();
    }

    /// Gives all settlements so far.
    pub fn settlements(&self) -> Vec<Settlement> {
        self.shared.broker().settlements.clone()
    }

    /// Waits until there are so many settlements; gives all.
    ///
    /// # Cancel safety
    /// Safe to drop.
    pub async fn settled(&self, count: usize) -> Vec<Settlement> {
        self.until(|broker| broker.settlements.len() >= count).await;
        self.settlements()
    }

    /// Gives all confirmed publishes so far.
    pub fn published(&self) -> Vec<Outgoing> {
        self.shared.broker().published.clone()
    }

    /// Gives all publishes so far, confirmed or not, in the order they came.
    pub fn publish_tries(&self) -> Vec<Outgoing> {
        self.shared.broker().publish_tries.clone()
    }

    /// Counts the deliveries handed out so far.
    pub fn hand_outs(&self) -> u64 {
        self.shared.broker().hand_outs
    }

    /// Counts how often the lease of a message was extended.
    pub fn extensions(&self, message: u64) -> u32 {
        let broker = self.shared.broker();
        broker.extensions.get(&message).copied().unwrap_or(0)
    }

    /// Counts the openings so far.
    pub fn opens(&self) -> u64 {
        self.shared.broker().opens
    }

    /// Counts settlements of what was settled on the same generation before: always 0.
    pub fn double_settlements(&self) -> u64 {
        self.shared.broker().double_settlements
    }

    /// Gives the numbers of rejected messages.
    pub fn dead(&self) -> Vec<u64> {
        self.shared.broker().dead.clone()
    }

    /// Tells whether all that was ever pushed is acked or rejected: nothing is ready, handed out,
    /// or due later.
    pub fn is_idle(&self) -> bool {
        self.left() == (0, 0) && self.shared.broker().due_later == 0
    }

    /// Counts what is ready and what is handed out, over all queues.
    pub fn left(&self) -> (usize, usize) {
        let broker = self.shared.broker();
        let ready = broker.queues.values().map(|queue| queue.ready.len()).sum();
        (
            ready,
            broker.queues.values().map(|queue| queue.leased.len()).sum(),
        )
    }

    /// Waits until the broker is as asked.
    async fn until(&self, is: impl Fn(&Broker) -> bool) {
        loop {
            let changed = self.shared.changed.notified();
            if is(&self.shared.broker()) {
                return;
            }
            changed.await;
        }
    }
}

impl Default for ScriptedTransport {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for ScriptedTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let broker = self.shared.broker();
        let mut text = f.debug_struct("ScriptedTransport");
        for (place, queue) in &broker.queues {
            text.field(&format!("{} {}", place.0, place.1), queue);
        }
        text.finish_non_exhaustive()
    }
}

impl Transport for ScriptedTransport {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn capabilities(&self) -> Capabilities {
        *self
            .shared
            .capabilities
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn open_source(
        &self,
        spec: SourceSpec,
    ) -> BoxFuture<'static, Result<Box<dyn Source>, SourceError>> {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let place = (spec.queue.clone(), spec.partition);
            loop {
                let changed = shared.changed.notified();
                if !shared.broker().kept_opens {
                    break;
                }
                changed.await;
            }
            let mut broker = shared.broker();
            broker.opens += 1;
            if broker.refuse_opens > 0 {
                broker.refuse_opens -= 1;
                return Err(SourceError::Unavailable("refused by the test".to_owned()));
            }
            let queue = broker.queues.entry(place.clone()).or_default();
            queue.generation = spec.generation;
            queue.credit = spec.credit as usize;
            queue.cancelled = false;
            queue.lost = None;
            drop(broker);
            let source = ScriptedSource {
                shared,
                place,
                generation: spec.generation,
            };
            Ok(Box::new(source) as Box<dyn Source>)
        })
    }

    fn publisher(&self) -> Arc<dyn Publisher> {
        Arc::new(self.clone())
    }

    fn close(&self) -> BoxFuture<'static, Result<(), TransportError>> {
        Box::pin(async { Ok(()) })
    }
}

struct ScriptedSource {
    shared: Arc<Shared>,
    place: Place,
    generation: Generation,
}

impl ScriptedSource {
    fn set_cancelled(&self, cancelled: bool) {
        let mut broker = self.shared.broker();
        broker
            .queues
            .entry(self.place.clone())
            .or_default()
            .cancelled = cancelled;
        drop(broker);
        self.shared.changed.notify_waiters();
    }
}

impl Source for ScriptedSource {
    fn recv<'a>(
        &'a mut self,
        max: usize,
        into: &'a mut Vec<Arrival>,
    ) -> BoxFuture<'a, Result<(), SourceError>> {
        Box::pin(async move {
            loop {
                let changed = self.shared.changed.notified();
                {
                    let mut broker = self.shared.broker();
                    let lease = broker.lease;
                    let queue = broker.queues.entry(self.place.clone()).or_default();
                    if std::mem::take(&mut queue.panics) {
                        drop(broker);
                        panic!("the source was told to panic");
                    }
                    if let Some(why) = queue.lost.take() {
                        return Err(SourceError::ChannelLost(why));
                    }
                    let handed = match queue.cancelled {
                        true => Vec::new(),
                        false => broker.hand_out(&self.place, max),
                    };
                    if !handed.is_empty() {
                        into.extend(handed.into_iter().map(|(delivery, held)| Arrival {
                            delivery,
                            settler: Box::new(ScriptedSettler {
                                shared: Arc::clone(&self.shared),
                                place: self.place.clone(),
                                held,
                            }),
                            lease,
                        }));
                        return Ok(());
                    }
                }
                changed.await;
            }
        })
    }

    fn set_credit(&mut self, credit: u32) {
        let mut broker = self.shared.broker();
        broker.queues.entry(self.place.clone()).or_default().credit = credit as usize;
        drop(broker);
        self.shared.changed.notify_waiters();
    }

    fn cancel(&mut self) -> BoxFuture<'_, Result<(), SourceError>> {
        self.set_cancelled(true);
        Box::pin(async { Ok(()) })
    }

    fn resume(&mut self) -> BoxFuture<'_, Result<(), SourceError>> {
        self.set_cancelled(false);
        Box::pin(async { Ok(()) })
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move { drop(self) })
    }
}

impl Drop for ScriptedSource {
    fn drop(&mut self) {
        self.shared
            .broker()
            .end_generation(&self.place, self.generation);
        self.shared.changed.notify_waiters();
    }
}

struct ScriptedSettler {
    shared: Arc<Shared>,
    place: Place,
    held: HandOut,
}

impl Settler for ScriptedSettler {
    fn settle_covered(self: Box<Self>, disposition: Disposition, reply: SettleReply) {
        // The record keeps the disposition; a message that was requeued so goes on as its copy.
        self.settle(disposition, reply);
    }

    fn settle(self: Box<Self>, disposition: Disposition, reply: SettleReply) {
        let mut broker = self.shared.broker();
        if let SettleScript::NotSent(times) = broker.settle {
            broker.settle = match times {
                0 | 1 => SettleScript::Confirm,
                more => SettleScript::NotSent(more - 1),
            };
            drop(broker);
            reply.not_sent(self);
            return;
        }
        let script = broker.settle;
        let Some(due) = broker.settle(&self.place, self.held, disposition) else {
            drop(broker);
            reply.gone();
            return;
        };
        if script == SettleScript::Silent {
            broker.kept.push(reply);
            drop(broker);
        } else {
            drop(broker);
            match script {
                // As where the frame is written by another thread.
                SettleScript::Sent => drop(tokio::spawn(async move { reply.sent() })),
                SettleScript::Unknown => reply.unknown(),
                _ => reply.confirmed(),
            }
        }
        if let Some((message, after)) = due {
            self.shared.broker().due_later += 1;
            let (shared, place) = (Arc::clone(&self.shared), self.place.clone());
            tokio::spawn(async move {
                tokio::time::sleep(after).await;
                {
                    let mut broker = shared.broker();
                    broker.due_later -= 1;
                    broker
                        .queues
                        .entry(place)
                        .or_default()
                        .ready
                        .push_back(message);
                }
                shared.changed.notify_waiters();
            });
        }
        self.shared.changed.notify_waiters();
    }

    fn extend(&mut self) -> Result<(), LeaseGone> {
        let mut broker = self.shared.broker();
        let held = broker
            .queues
            .get(&self.place)
            .and_then(|q| q.leased.get(&self.held.number));
        match held {
            Some((message, generation)) if self.held.is_of(message, *generation) => {
                *broker.extensions.entry(self.held.number).or_default() += 1;
                Ok(())
            }
            _ => Err(LeaseGone),
        }
    }
}

impl Publisher for ScriptedTransport {
    fn publish(&self, message: Outgoing, reply: PublishReply) {
        let mut broker = self.shared.broker();
        broker.publish_tries.push(message.clone());
        match broker.publish {
            PublishScript::Confirm => {
                broker.published.push(message);
                drop(broker);
                reply.confirmed();
            }
            PublishScript::Outage => {
                drop(broker);
                reply.failed(PublishError::Outage("scripted".to_owned()));
            }
            PublishScript::Refuse => {
                drop(broker);
                reply.failed(PublishError::Refused("scripted".to_owned()));
            }
            PublishScript::Silent => {
                broker.unanswered.push(message);
                broker.kept_publishes.push(reply);
            }
        }
        self.shared.changed.notify_waiters();
    }

    fn publish_feed(&self, messages: Vec<Outgoing>, _: FeedCursor, reply: PublishReply) {
        for message in messages {
            self.push_message(PartitionId(0), message);
        }
        reply.confirmed();
    }

    fn feed_cursor<'a>(
        &'a self,
        _: &'a str,
    ) -> BoxFuture<'a, Result<Option<FeedCursor>, PublishError>> {
        Box::pin(async { Ok(None) })
    }
}
