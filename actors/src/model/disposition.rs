//! What the broker is told, and what we know afterwards.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::RejectReason;

/// What the broker is told about a delivery. Each transport has one pure table from here to its verbs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Disposition {
    /// Done: forget it.
    Ack,
    /// This attempt failed: again after a delay.
    Requeue {
        /// How long the broker waits before it hands it out again.
        after: Duration,
    },
    /// Not the message's fault: back to its place, its attempts unchanged.
    Release,
    /// Never again: dead-letter it.
    Reject {
        /// Why.
        reason: RejectReason,
    },
}

impl Disposition {
    /// Gives the disposition's word, as logs, metrics and reports use it.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Ack => "ack",
            Self::Requeue { .. } => "requeue",
            Self::Release => "release",
            Self::Reject { .. } => "reject",
        }
    }
}

impl fmt::Display for Disposition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What we know after the broker was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Receipt {
    /// The broker answered.
    Confirmed,
    /// The frame left; the protocol has no answer.
    Sent,
}
