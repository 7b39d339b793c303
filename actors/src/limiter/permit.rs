//! The permit book: the limiter's state, shared by all who hold permits, and the permit itself.
//!
//! The book outlives the [`LimiterActor`](super::LimiterActor): a permit returns to it by being
//! dropped, on whatever thread, and its waiters are still there for the next actor. A change that
//! may allow a grant wakes the actor at most once until the actor has looked.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use tokio::time::Instant;

use crate::model::DeliveryId;

use super::{
    Ask, AskRefused, Asked, ConsumerShape, Granted, LimiterCore, LimiterLimits, LimiterSnapshot,
    PermitKey, Resize, ResizeRefused, Step,
};

/// The right to have one delivery in flight. Shared by the delivery and its running handler: it
/// returns to the book when the last clone is dropped, from any thread, also while a panic unwinds.
#[derive(Clone)]
pub struct Permit(Arc<Taken>);

impl Permit {
    /// Whose it is.
    pub fn ticket(&self) -> DeliveryId {
        self.0.granted.ticket
    }

    /// Where it counts.
    pub fn key(&self) -> PermitKey {
        self.0.granted.key
    }

    /// How many bytes of the budget it holds.
    pub fn bytes(&self) -> u64 {
        self.0.granted.bytes
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Permit").field(&self.0.granted).finish()
    }
}

/// What all clones of a permit share. Dropping it gives the permit back.
struct Taken {
    granted: Granted,
    book: PermitBook,
}

impl Drop for Taken {
    fn drop(&mut self) {
        let somebody_waits = self.book.lock().give_back(&self.granted);
        if somebody_waits {
            self.book.wake();
        }
    }
}

/// What asking the book for the next permit came to.
#[derive(Debug)]
pub enum NextPermit {
    /// A permit, and whose it is.
    Granted(DeliveryId, Permit),
    /// None now. With a time (since the book was made): a rate holds somebody back until then.
    Blocked(Option<Duration>),
}

/// The permits of a process: a cheap handle to shared state.
#[derive(Clone)]
pub struct PermitBook {
    shared: Arc<Shared>,
}

struct Shared {
    core: Mutex<LimiterCore>,
    started: Instant,
    /// Something changed that the actor has not looked at.
    is_changed: AtomicBool,
    looker: AtomicWaker,
}

impl PermitBook {
    /// Makes a book with all permits free. A consumer's index is its place in `consumers`.
    pub fn new(limits: LimiterLimits, consumers: &[ConsumerShape]) -> Self {
        Self {
            shared: Arc::new(Shared {
                core: Mutex::new(LimiterCore::new(limits, consumers)),
                started: Instant::now(),
                is_changed: AtomicBool::new(false),
                looker: AtomicWaker::new(),
            }),
        }
    }

    /// The time since the book was made, as the core counts it.
    pub fn now(&self) -> Duration {
        self.shared.started.elapsed()
    }

    /// Puts an ask into its line; the actor grants it when it is its turn. Asking again for a
    /// ticket that waits changes nothing.
    ///
    /// # Errors
    /// [`AskRefused`] if it could never be granted.
    pub fn ask(&self, ask: Ask) -> Result<Asked, AskRefused> {
        let now = self.now();
        let asked = self.lock().ask(now, ask)?;
        if asked == Asked::Waits {
            self.wake();
        }
        Ok(asked)
    }

    /// Asks for many at once; gives those that were refused.
    pub fn ask_many(&self, asks: impl IntoIterator<Item = Ask>) -> Vec<(DeliveryId, AskRefused)> {
        let now = self.now();
        let mut refused = Vec::new();
        let mut core = self.lock();
        for ask in asks {
            if let Err(error) = core.ask(now, ask) {
                refused.push((ask.ticket, error));
            }
        }
        drop(core);
        self.wake();
        refused
    }

    /// Takes an ask back. False if the ticket does not wait: then a permit may be on its way, and
    /// dropping that permit returns it.
    pub fn cancel(&self, ticket: DeliveryId) -> bool {
        let was_waiting = self.lock().cancel(ticket);
        if was_waiting {
            self.wake();
        }
        was_waiting
    }

    /// Changes one limit. Gives the asks that became impossible by it; they wait no longer.
    ///
    /// # Errors
    /// [`ResizeRefused`] if there is no such consumer.
    pub fn resize(&self, resize: Resize) -> Result<Vec<(DeliveryId, AskRefused)>, ResizeRefused> {
        let now = self.now();
        let impossible = self.lock().resize(now, resize)?;
        self.wake();
        Ok(impossible)
    }

    /// Grants one permit to whoever is next at `now` (see [`now`](Self::now)). One at a time, so
    /// that nobody else's grant is lost with a caller that panics.
    pub fn grant_next(&self, now: Duration) -> NextPermit {
        let step = self.lock().grant_one(now);
        match step {
            Step::Granted(granted) => {
                let ticket = granted.ticket;
                let book = self.clone();
                NextPermit::Granted(ticket, Permit(Arc::new(Taken { granted, book })))
            }
            Step::Blocked(look_again) => NextPermit::Blocked(look_again),
        }
    }

    /// Copies everything there is to see.
    pub fn snapshot(&self) -> LimiterSnapshot {
        let now = self.now();
        self.lock().snapshot(now)
    }

    /// Ready once after any number of changes; then it is the caller's turn to look. One looker at
    /// a time: a new one replaces the old.
    pub(super) fn poll_changed(&self, cx: &mut Context<'_>) -> Poll<()> {
        // Register first: a change between the two lines must not be missed.
        self.shared.looker.register(cx.waker());
        if self.shared.is_changed.swap(false, Ordering::AcqRel) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    /// Has the actor look, unless it was told already.
    pub(super) fn wake(&self) {
        if !self.shared.is_changed.swap(true, Ordering::AcqRel) {
            self.shared.looker.wake();
        }
    }

    /// A panic while the lock was held would be a bug of ours in plain counting; refusing every
    /// later return for it would only turn it into a standstill.
    fn lock(&self) -> MutexGuard<'_, LimiterCore> {
        self.shared
            .core
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for PermitBook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PermitBook").finish_non_exhaustive()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use crate::limiter::{ConsumerIndex, ConsumerLimits};
    use crate::model::PartitionId;
    use std::num::NonZeroU32;
    use std::sync::atomic::AtomicUsize;
    use std::task::{Wake, Waker};

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn book(permits: u32) -> PermitBook {
        let limits = ConsumerLimits {
            permits,
            rate: None,
        };
        let shape = ConsumerShape {
            partitions: NonZeroU32::MIN,
            limits,
        };
        let limits = LimiterLimits {
            permits,
            in_flight_bytes: 1_000,
            rate: None,
        };
        PermitBook::new(limits, &[shape])
    }

    fn ask(ticket: u64) -> Ask {
        Ask {
            key: PermitKey::new(ConsumerIndex(0), PartitionId(0)),
            ticket: DeliveryId(ticket),
            bytes: 1,
        }
    }

    fn next(book: &PermitBook) -> Option<Permit> {
        match book.grant_next(Duration::ZERO) {
            NextPermit::Granted(_, permit) => Some(permit),
            NextPermit::Blocked(_) => None,
        }
    }

    #[test]
    fn any_number_of_returns_wakes_the_looker_once_until_it_has_looked() {
        let book = book(100);
        book.ask_many((0..101).map(ask));
        let held: Vec<_> = std::iter::from_fn(|| next(&book)).collect();
        assert_eq!(held.len(), 100);
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let mut cx = Context::from_waker(&waker);
        assert!(book.poll_changed(&mut cx).is_ready(), "the asks");
        assert!(book.poll_changed(&mut cx).is_pending());
        let clone = held[0].clone();
        drop(held);
        assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
        assert!(book.poll_changed(&mut cx).is_ready());
        drop(clone);
        assert_eq!(wakes.0.load(Ordering::SeqCst), 2);
        assert_eq!(book.snapshot().taken, 0);
    }

    #[test]
    fn a_return_wakes_nobody_while_nobody_waits() {
        let book = book(1);
        book.ask(ask(1)).unwrap();
        let permit = next(&book);
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let mut cx = Context::from_waker(&waker);
        assert!(book.poll_changed(&mut cx).is_ready());
        assert!(book.poll_changed(&mut cx).is_pending());
        drop(permit);
        assert_eq!(wakes.0.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn the_last_clone_returns_the_permit() {
        let book = book(1);
        book.ask(ask(7)).unwrap();
        let permit = next(&book).unwrap();
        assert_eq!((permit.ticket(), permit.bytes()), (DeliveryId(7), 1));
        let handlers = permit.clone();
        drop(permit);
        assert_eq!(book.snapshot().taken, 1);
        drop(handlers);
        assert_eq!(book.snapshot().taken, 0);
    }

    #[test]
    fn a_poisoned_lock_does_not_stop_returns() {
        let book = book(1);
        book.ask(ask(1)).unwrap();
        let permit = next(&book).unwrap();
        let poisoner = book.clone();
        let poisoned = std::thread::spawn(move || {
            let _locked = poisoner.lock();
            std::panic::resume_unwind(Box::new("while it holds the lock"));
        });
        assert!(poisoned.join().is_err());
        drop(permit);
        book.ask(ask(2)).unwrap();
        assert!(next(&book).is_some());
    }

    #[test]
    fn permits_that_return_from_many_threads_are_all_counted() {
        let book = book(8);
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let book = book.clone();
                std::thread::spawn(move || {
                    for number in 0..2_000 {
                        book.ask(ask(thread * 2_000 + number)).unwrap();
                        drop((next(&book), next(&book)));
                    }
                })
            })
            .collect();
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        while book.snapshot().waiting.count > 0 {
            drop(next(&book).unwrap());
        }
        let end = book.snapshot();
        assert_eq!((end.taken, end.in_flight_bytes), (0, 0));
    }
}
