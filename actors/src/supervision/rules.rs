//! The rules of supervision as plain values, in OTP's words and with its defaults.
//!
//! # Which exits are followed by a restart
//!
//! | exit reason | permanent | transient | temporary |
//! |---|---|---|---|
//! | `Normal`, `Shutdown` | restart | end | end |
//! | `Failed`, `Panicked`, `Killed`, `GaveUp` | restart | restart | end |

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::Backoff;

/// How an actor ended, as a value.
///
/// What a link reports when several things are true of one end: a panic counts before a kill, a
/// kill before what the actor said itself ([`Link::exit_with`](super::Link::exit_with)), and that
/// before the plain end, which is `Shutdown` if the actor was asked to stop and `Normal` if not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "reason", content = "text")]
pub enum ExitReason {
    /// It had done what it was for.
    Normal,
    /// It was asked to stop and did.
    Shutdown,
    /// It could not go on, and says why.
    Failed(String),
    /// It panicked; the payload's text.
    Panicked(String),
    /// It was aborted: it did not stop in time, or its runtime went away.
    Killed,
    /// A supervisor that restarted its children too often.
    GaveUp(String),
}

impl ExitReason {
    /// Says whether this end is a failure, so that a transient child is started again.
    pub fn is_failure(&self) -> bool {
        match self {
            Self::Normal | Self::Shutdown => false,
            Self::Failed(_) | Self::Panicked(_) | Self::Killed | Self::GaveUp(_) => true,
        }
    }
}

impl fmt::Display for ExitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Normal => f.write_str("normal"),
            Self::Shutdown => f.write_str("shutdown"),
            Self::Failed(why) => write!(f, "failed: {why}"),
            Self::Panicked(text) => write!(f, "panicked: {text}"),
            Self::Killed => f.write_str("killed"),
            Self::GaveUp(why) => write!(f, "gave up: {why}"),
        }
    }
}

/// Who is restarted when one child has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// That child only.
    #[default]
    OneForOne,
    /// Every child: all are stopped in reverse order, then started in order.
    OneForAll,
    /// That child and those that were started after it.
    RestForOne,
}

/// Which exits of a child are followed by a restart; the module's table has each case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RestartPolicy {
    /// All.
    #[default]
    Permanent,
    /// Failures.
    Transient,
    /// None; once ended it is forgotten.
    Temporary,
}

impl RestartPolicy {
    /// Says whether an exit is followed by a restart.
    pub fn restarts(self, reason: &ExitReason) -> bool {
        match self {
            Self::Permanent => true,
            Self::Transient => reason.is_failure(),
            Self::Temporary => false,
        }
    }
}

/// How many restarts are borne in a period; one more and the supervisor gives up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Intensity {
    /// So many restarts are borne.
    pub restarts: u32,
    /// In so much time.
    pub period: Duration,
}

impl Default for Intensity {
    /// OTP's: 1 in 5 s.
    fn default() -> Self {
        Self {
            restarts: 1,
            period: Duration::from_secs(5),
        }
    }
}

/// In which order children are stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum StopOrder {
    /// In reverse order of start, one after the other.
    #[default]
    OneByOne,
    /// All are asked at once, last started first: for many short-lived children of one kind, whose
    /// stop timeouts would else add up (OTP's `simple_one_for_one`).
    AllAtOnce,
}

/// How long a child that was asked to stop may take before it is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StopTimeout {
    /// So long.
    After(Duration),
    /// For ever. Only for a supervisor, which ends by itself because each of its children is
    /// bounded.
    Unbounded,
}

impl Default for StopTimeout {
    /// OTP's for a worker: 5 s.
    fn default() -> Self {
        Self::After(Duration::from_secs(5))
    }
}

/// The backoff between restarts where a child spec names no other.
pub const RESTART_BACKOFF: Backoff = Backoff {
    base: Duration::from_millis(100),
    max: Duration::from_secs(10),
};

/// How long a killed child may take to be gone before its supervisor stops waiting for it. A kill
/// takes effect when the child next yields; one that blocks its thread never does.
pub const KILL_TIMEOUT: Duration = Duration::from_secs(1);

/// The number of a child within its supervisor; a higher number was started later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChildId(pub u64);

/// The number of a child's start, 1 for the first; fences what an ended incarnation still says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Incarnation(pub u64);

impl Incarnation {
    /// Gives the incarnation that follows.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// The restarts of the last period. Holds at most `restarts + 1` instants.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Window(VecDeque<Duration>);

impl Window {
    /// Counts a restart and gives how many the period now holds, this one included.
    pub(super) fn count(&mut self, at: Duration, intensity: Intensity) -> u32 {
        while let Some(&first) = self.0.front()
            && first.saturating_add(intensity.period) < at
        {
            self.0.pop_front();
        }
        self.0.push_back(at);
        let held = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        if held > intensity.restarts.saturating_add(1) {
            self.0.pop_front();
        }
        held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn a_policy_restarts_as_its_table_says() {
        use ExitReason::*;
        use RestartPolicy::*;
        let text = || "why".to_owned();
        #[rustfmt::skip]
        let rows = [
            (Normal,           [true, false, false]),
            (Shutdown,         [true, false, false]),
            (Failed(text()),   [true, true, false]),
            (Panicked(text()), [true, true, false]),
            (Killed,           [true, true, false]),
            (GaveUp(text()),   [true, true, false]),
        ];
        for (reason, expected) in rows {
            for (policy, expected) in [Permanent, Transient, Temporary].into_iter().zip(expected) {
                assert_eq!(policy.restarts(&reason), expected, "{policy:?} {reason}");
            }
        }
    }

    #[test]
    fn an_exit_reason_reads_as_text_and_as_json() {
        assert_eq!(
            ExitReason::Panicked("boom".into()).to_string(),
            "panicked: boom"
        );
        assert_eq!(
            serde_json::to_string(&ExitReason::GaveUp("x".into())).ok(),
            Some(r#"{"reason":"gave-up","text":"x"}"#.to_owned())
        );
        assert_eq!(
            serde_json::to_string(&ExitReason::Normal).ok(),
            Some(r#"{"reason":"normal"}"#.to_owned())
        );
    }

    #[test]
    fn a_window_forgets_what_is_older_than_the_period() {
        let intensity = Intensity {
            restarts: 2,
            period: seconds(5),
        };
        let mut window = Window::default();
        assert_eq!(window.count(seconds(0), intensity), 1);
        assert_eq!(window.count(seconds(1), intensity), 2);
        assert_eq!(
            window.count(seconds(5), intensity),
            3,
            "the period's end is in"
        );
        assert_eq!(
            window.count(seconds(7), intensity),
            2,
            "0 and 1 are out of it"
        );
        for _ in 0..100 {
            window.count(seconds(7), intensity);
        }
        assert!(window.0.len() <= 3, "and it never grows past its bound");
    }
}
