//! What a consumer is, resolved: what the configuration or an embedding program asks for.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::limiter::Rate;
use crate::model::{
    Backoff, Capabilities, ConsumerName, OnLeaseLost, OnRefused, QueueName, RetryWay,
};
use crate::ports::Handler;

/// How failed attempts are tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// No attempt has a higher number.
    pub max_attempts: NonZeroU32,
    /// The delays between attempts.
    pub backoff: Backoff,
    /// Who holds the delay.
    pub way: RetryWay,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_attempts: NonZeroU32::MIN.saturating_add(4),
            backoff: Backoff::default(),
            way: RetryWay::Broker,
        }
    }
}

/// How many unsettled deliveries the broker may hand out ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Prefetch {
    /// Permits + min(permits, 16); permits alone where order is kept or returns are counted.
    #[default]
    Auto,
    /// Permits + min(permits, 16), whatever the broker counts: for a queue that is known to give no
    /// message up. Permits alone where order is kept.
    Ahead,
    /// So many.
    Count(NonZeroU32),
}

/// A consumer: which queue, which handler, which policies.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ConsumerSpec {
    /// Its name, unique in the process.
    pub name: ConsumerName,
    /// The queue it consumes.
    pub queue: QueueName,
    /// The user's code.
    pub handler: Handler,
    /// How many partitions the queue has; a consumer actor for each.
    pub partitions: NonZeroU32,
    /// How many of its deliveries may be in flight at once, over all partitions.
    pub permits: NonZeroU32,
    /// How many handlers may start in a time.
    pub rate: Option<Rate>,
    /// How many unsettled deliveries the broker may hand out ahead, per partition.
    pub prefetch: Prefetch,
    /// One delivery of a partition in flight at a time, in order.
    pub ordered: bool,
    /// How long an attempt may run.
    pub handler_timeout: Duration,
    /// Where results go.
    pub reply_queue: Option<QueueName>,
    /// Where dead letters go; without one, Reject is the transport's own dead list.
    pub dead_letter_queue: Option<QueueName>,
    /// How failed attempts are tried again.
    pub retry: RetryPolicy,
    /// A larger body is rejected as too large.
    pub max_message_bytes: u64,
    /// More headers are rejected.
    pub max_headers: usize,
    /// Past so many hand-outs without a word a message is rejected without running.
    pub crash_loop_limit: u32,
    /// How long a settlement may stay unanswered.
    pub settle_timeout: Duration,
    /// How long one publish may stay unanswered.
    pub publish_timeout: Duration,
    /// When trying to publish is given up and the delivery released.
    pub publish_give_up: Duration,
    /// What happens to a running handler when its channel is lost.
    pub on_channel_lost: OnLeaseLost,
    /// What happens to a running handler when its lease ran out.
    pub on_lease_lost: OnLeaseLost,
    /// What happens when a publish is refused for good and there is no dead-letter queue.
    pub on_refused: OnRefused,
    /// How long the broker lets a delivery be held before it takes the channel away; `None`: without
    /// a limit, or unknown. At 50 % and 80 % of it the delivery is named.
    pub hold_limit: Option<Duration>,
    /// Whether a delivery is stopped and given back at 95 % of that.
    pub give_back_at_limit: bool,
    /// How long a delivery may wait unstarted while its consumer is paused.
    pub give_back_after: Duration,
}

impl ConsumerSpec {
    /// Makes a consumer with the defaults of the configuration file.
    pub fn new(
        name: impl Into<ConsumerName>,
        queue: impl Into<QueueName>,
        handler: Handler,
    ) -> Self {
        Self {
            name: name.into(),
            queue: queue.into(),
            handler,
            partitions: NonZeroU32::MIN,
            permits: NonZeroU32::MIN.saturating_add(15),
            rate: None,
            prefetch: Prefetch::Auto,
            ordered: false,
            handler_timeout: Duration::from_secs(30),
            reply_queue: None,
            dead_letter_queue: None,
            retry: RetryPolicy::default(),
            max_message_bytes: 16 << 20,
            max_headers: 256,
            crash_loop_limit: 20,
            settle_timeout: Duration::from_secs(5),
            publish_timeout: Duration::from_secs(5),
            publish_give_up: Duration::from_secs(60),
            on_channel_lost: OnLeaseLost::Finish,
            on_lease_lost: OnLeaseLost::Abort,
            on_refused: OnRefused::Reject,
            hold_limit: None,
            give_back_at_limit: false,
            give_back_after: Duration::from_secs(60),
        }
    }

    /// Changes it in place, for what has no method of its own.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Sets how many of its deliveries may be in flight at once; 0 reads as 1.
    #[must_use]
    pub fn with_permits(mut self, permits: u32) -> Self {
        self.permits = NonZeroU32::new(permits).unwrap_or(NonZeroU32::MIN);
        self
    }

    /// Sets how many partitions its queue has; 0 reads as 1.
    #[must_use]
    pub fn with_partitions(mut self, partitions: u32) -> Self {
        self.partitions = NonZeroU32::new(partitions).unwrap_or(NonZeroU32::MIN);
        self
    }

    /// Computes the credit of one partition for so many permits of the consumer.
    pub fn credit(&self, permits: u32, capabilities: &Capabilities) -> u32 {
        let permits = permits.max(1);
        match self.prefetch {
            // One at a time is what keeps the order, whatever the prefetch says.
            _ if self.ordered => 1,
            Prefetch::Count(count) => count.get(),
            Prefetch::Auto
                if capabilities.counting == crate::model::DeliveryCounting::EveryReturn =>
            {
                permits
            }
            Prefetch::Auto | Prefetch::Ahead => permits.saturating_add(permits.min(16)),
        }
    }
}
