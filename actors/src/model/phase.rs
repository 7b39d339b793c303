//! The phase of the whole process.

use serde::{Deserialize, Serialize};

/// Where the process stands between start and end; it only ever moves up.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Admitting work.
    #[default]
    Running,
    /// Nothing new starts; what runs may finish.
    Draining,
    /// The drain timeout passed or was skipped: stragglers are given back.
    Forcing,
    /// Nothing is left.
    Stopped,
}

impl Phase {
    /// Gives the higher of two phases.
    #[must_use]
    pub fn raised_to(self, other: Self) -> Self {
        self.max(other)
    }

    /// Gives the phase's word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Draining => "draining",
            Self::Forcing => "forcing",
            Self::Stopped => "stopped",
        }
    }
}
