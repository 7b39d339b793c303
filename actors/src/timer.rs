//! One timer wheel for all deliveries, on the actors' thread.
//!
//! A delivery arms and disarms a timer or two in its life, so both must cost next to nothing, and
//! a disarmed timer must leave no trace: at 150,000 deliveries a second with a deadline of 30 s a
//! lazily cleaned heap would hold millions of dead entries. The wheel itself is shared state that
//! outlives the task that drives it.

use std::cell::RefCell;
use std::fmt;
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use tokio_util::time::{DelayQueue, delay_queue};

/// The wheel: `T` comes back when its time is up.
pub(crate) struct Timers<T> {
    wheel: RefCell<DelayQueue<T>>,
}

/// An armed timer; give it back to [`Timers::disarm`] to stop it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TimerKey(delay_queue::Key);

impl<T> Timers<T> {
    /// Makes an empty wheel.
    pub(crate) fn new() -> Self {
        Self {
            wheel: RefCell::new(DelayQueue::new()),
        }
    }

    /// Arms a timer.
    pub(crate) fn arm(&self, after: Duration, what: T) -> TimerKey {
        /// The wheel's reach is about two years; nothing of ours waits longer.
        const REACH: Duration = Duration::from_secs(366 * 24 * 3600);
        TimerKey(self.wheel.borrow_mut().insert(what, after.min(REACH)))
    }

    /// Stops a timer that has not fired; one that has is no longer known.
    pub(crate) fn disarm(&self, key: TimerKey) {
        self.wheel.borrow_mut().try_remove(&key.0);
    }

    /// Counts the armed timers.
    pub(crate) fn len(&self) -> usize {
        self.wheel.borrow().len()
    }

    /// Waits for the next timers that are due and moves them into `due`.
    ///
    /// # Cancel safety
    /// Dropping the future loses no timer. One waiter at a time.
    pub(crate) async fn next(&self, due: &mut Vec<T>) {
        poll_fn(|cx| {
            let mut wheel = self.wheel.borrow_mut();
            while let Poll::Ready(Some(expired)) = wheel.poll_expired(cx) {
                due.push(expired.into_inner());
            }
            if !due.is_empty() {
                return Poll::Ready(());
            }
            // An empty wheel answers Ready(None) without keeping the waker: it is kept by the
            // insert that follows only if the queue saw it, which poll_expired did above.
            Poll::Pending
        })
        .await;
    }
}

impl<T> fmt::Debug for Timers<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timers")
            .field("armed", &self.len())
            .finish()
    }
}
