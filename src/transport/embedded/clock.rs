//! What time it is: two clocks, one for waiting and one for writing down.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What is called when a clock was moved by hand.
pub type Moved = Arc<dyn Fn() + Send + std::marker::Sync>;

/// A source of time.
pub trait Clock: Send + std::marker::Sync + fmt::Debug + 'static {
    /// The time since some start; never goes backwards. Leases and delays run by it.
    fn now(&self) -> Duration;

    /// Milliseconds since 1970 by the wall; may jump. It is only written down, so that a delay
    /// outlives a restart.
    fn wall_millis(&self) -> u64;

    /// Registers who wants to know when the clock is moved by hand; a real clock never is.
    fn on_move(&self, _moved: Moved) {}
}

/// The machine's clocks.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self {
            start: Instant::now(),
        }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn wall_millis(&self) -> u64 {
        // Before 1970 reads as 1970: a delay is bounded by what was asked for anyway.
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        since.map_or(0, |since| {
            u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
        })
    }
}

/// A clock that stands still until a test moves it.
#[derive(Clone, Default)]
pub struct ManualClock(Arc<Mutex<Manual>>);

#[derive(Default)]
struct Manual {
    now: Duration,
    wall: u64,
    moved: Vec<Moved>,
}

impl ManualClock {
    /// Makes a clock at a wall time.
    pub fn at_wall_millis(wall: u64) -> Self {
        let clock = Self::default();
        clock.set_wall_millis(wall);
        clock
    }

    /// Moves both clocks forward.
    pub fn advance(&self, by: Duration) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.now += by;
        let millis = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
        inner.wall = inner.wall.saturating_add(millis);
        // Called without the lock: who is told reads the clock.
        let moved = inner.moved.clone();
        drop(inner);
        moved.iter().for_each(|moved| moved());
    }

    /// Makes the wall clock jump, as an operator or NTP does.
    pub fn set_wall_millis(&self, wall: u64) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.wall = wall;
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ManualClock").field(&self.now()).finish()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).now
    }

    fn wall_millis(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).wall
    }

    fn on_move(&self, moved: Moved) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.moved.push(moved);
    }
}
