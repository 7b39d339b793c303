//! The thread that ends leases and delays when nobody asks: it wakes the sources that wait.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::clock::Clock;
use super::queue::{Queues, wake};

/// The timer's handle; the thread ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Timer(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// The planned wake-up in nanoseconds, for a check without the lock.
    planned: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    moved: bool,
    ended: bool,
}

impl Timer {
    /// Starts the thread.
    pub(crate) fn start(queues: Arc<Queues>, clock: Arc<dyn Clock>) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            planned: AtomicU64::new(u64::MAX),
            state: Mutex::new(State::default()),
            changed: Condvar::new(),
        });
        let moved = Arc::downgrade(&shared);
        clock.on_move(Arc::new(move || {
            if let Some(shared) = moved.upgrade() {
                shared.disturb();
            }
        }));
        let own = Arc::clone(&shared);
        thread::Builder::new()
            .name("acquit-timer".to_owned())
            .spawn(move || own.run(&queues, &*clock))?;
        Ok(Self(shared))
    }

    /// Makes sure that the thread wakes by a deadline. One atomic read where it does already.
    pub(crate) fn arm(&self, deadline: Duration) {
        if nanos(deadline) < self.0.planned.load(Ordering::Acquire) {
            self.0.planned.fetch_min(nanos(deadline), Ordering::AcqRel);
            self.0.disturb();
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.ended = true;
        self.0.changed.notify_all();
    }
}

impl Shared {
    fn disturb(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.moved = true;
        self.changed.notify_all();
    }

    fn run(&self, queues: &Queues, clock: &dyn Clock) {
        loop {
            // Whoever arms while the partitions are walked lowers this again and is not missed.
            self.planned.store(u64::MAX, Ordering::Release);
            let next = advance_all(queues, clock.now());
            let next = next.map_or(u64::MAX, nanos);
            let next = next.min(self.planned.fetch_min(next, Ordering::AcqRel));
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if !state.moved && !state.ended {
                // At least a millisecond, so that a deadline just missed costs no spinning.
                let left = Duration::from_nanos(next).saturating_sub(clock.now());
                let left = left.clamp(Duration::from_millis(1), Duration::from_secs(3600));
                state = self
                    .changed
                    .wait_timeout(state, left)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0;
            }
            if state.ended {
                return;
            }
            state.moved = false;
        }
    }
}

/// Ends what is over in every partition; gives the next deadline.
fn advance_all(queues: &Queues, now: Duration) -> Option<Duration> {
    let mut next: Option<Duration> = None;
    for queue in queues.all() {
        for partition in &queue.partitions {
            let mut state = partition.lock();
            let woke = state.core.advance(now);
            let deadline = state.core.next_deadline();
            let waiting = if woke {
                state.take_waiting()
            } else {
                Vec::new()
            };
            drop(state);
            wake(waiting);
            next = [next, deadline].into_iter().flatten().min();
        }
    }
    next
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
