//! Where a delivery stands.

use crate::model::{Disposition, Publication};

use super::Decision;

/// Where a delivery stands. `Settled` and `Lost` are terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// Owned, without a permit.
    Received,
    /// Its handler is at work.
    Running,
    /// Its handler is at work, but its channel or lease is gone.
    Orphaned,
    /// Its handler was told to stop.
    Aborting {
        /// What was decided for when it has stopped.
        then: Then,
    },
    /// Something goes out before the settlement.
    Publishing {
        /// What goes out.
        what: Publication,
        /// What was decided for afterwards.
        then: Disposition,
        /// Whether channel or lease went meanwhile: then the end is Lost, not Settling.
        losing: bool,
    },
    /// A retry waits here for its time, without a permit.
    Holding {
        /// What is settled when it is due.
        then: Disposition,
    },
    /// The broker is being told.
    Settling {
        /// What it is told.
        disposition: Disposition,
        /// How often the settler was handed back unsent.
        tries: u8,
    },
    /// The broker has been told.
    Settled {
        /// What it was told.
        disposition: Disposition,
    },
    /// We no longer hold it; the broker hands it out again; we stay silent.
    Lost {
        /// Why.
        cause: LostCause,
    },
}

impl State {
    /// Tells whether the life is over.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::Settled { .. } | Self::Lost { .. })
    }

    /// Gives the state's word, as logs and snapshots use it.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Received => "received",
            Self::Running => "running",
            Self::Orphaned => "orphaned",
            Self::Aborting { .. } => "aborting",
            Self::Publishing { .. } => "publishing",
            Self::Holding { .. } => "holding",
            Self::Settling { .. } => "settling",
            Self::Settled { .. } => "settled",
            Self::Lost { .. } => "lost",
        }
    }
}

/// What follows when an aborted handler has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Then {
    /// Carry the decision out.
    Enact(Decision),
    /// Stay silent; `first` is what would have been done had the lease lived.
    Lose {
        /// Remembered if it was Ack or Reject of finished work.
        first: Option<Decision>,
    },
}

/// Why a delivery was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LostCause {
    /// Its channel was closed, or its source was rebuilt.
    Channel,
    /// Its lease ran out.
    Lease,
    /// The settlement was not sent, and trying again was given up.
    NotSent,
    /// Whether the settlement arrived is unknown.
    Unknown,
    /// The settler belongs to an ended generation: never sent, shown as stale.
    Stale,
}

impl LostCause {
    /// Gives the cause's word, as logs and metrics use it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Channel => "channel",
            Self::Lease => "lease",
            Self::NotSent => "not-sent",
            Self::Unknown => "unknown",
            Self::Stale => "stale",
        }
    }
}
