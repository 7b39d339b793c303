//! How a failed attempt is tried again.

use std::time::Duration;

/// The delays between attempts: base, doubled at each failure, capped, jittered downwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// The delay after the first failure, before jitter.
    pub base: Duration,
    /// No delay is longer.
    pub max: Duration,
}

impl Backoff {
    /// Gives the delay after `failures` failed attempts (1 for the first); `jitter` in 0..=1
    /// chooses a place between half of the step and the whole of it.
    ///
    /// ```
    /// use acquit_actors::model::Backoff;
    /// use std::time::Duration;
    ///
    /// let backoff = Backoff { base: Duration::from_secs(2), max: Duration::from_secs(30) };
    /// assert_eq!(backoff.delay(1, 1.0), Duration::from_secs(2));
    /// assert_eq!(backoff.delay(3, 0.0), Duration::from_secs(4));
    /// assert_eq!(backoff.delay(99, 1.0), Duration::from_secs(30));
    /// ```
    pub fn delay(&self, failures: u32, jitter: f64) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        let step = self.base.saturating_mul(1_u32 << doublings).min(self.max);
        let jitter = if jitter.is_finite() {
            jitter.clamp(0.0, 1.0)
        } else {
            1.0
        };
        step.mul_f64(0.5 + jitter / 2.0).min(self.max)
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            base: Duration::from_secs(2),
            max: Duration::from_secs(30),
        }
    }
}

/// Who holds the delay of a retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RetryWay {
    /// A confirmed copy in a ladder of queues with a time to live (RabbitMQ).
    Ladder,
    /// The broker's own delayed return (JetStream, embedded).
    Broker,
    /// We wait in Holding, without a permit, and return it when it is due.
    Hold,
}

/// What happens to a running handler whose channel or lease is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OnLeaseLost {
    /// It may finish as an orphan; what it did is remembered.
    Finish,
    /// It is aborted.
    Abort,
}

/// What happens when the broker refuses a publish for good and there is no dead-letter queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OnRefused {
    /// Settle as Reject.
    Reject,
    /// Keep it without a permit and try again until an operator acts.
    Park,
}
