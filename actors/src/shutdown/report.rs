//! The drain report: what became of everything that was in hand when the drain began.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::{ConsumerName, DeliveryId, MessageId, PartitionId};

/// What became of everything that was in hand when the drain began.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub struct DrainReport {
    /// Whether everything finished by itself: no straggler, no handler left at work, nothing
    /// abandoned.
    pub clean: bool,
    /// Why the process drained.
    pub reason: String,
    /// How many deliveries were in hand when the drain began.
    pub in_hand: u64,
    /// How many of them were settled as Ack.
    pub acked: u64,
    /// How many were settled as Requeue.
    pub requeued: u64,
    /// How many were settled as Release: given back unstarted or as stragglers.
    pub released: u64,
    /// How many were settled as Reject.
    pub rejected: u64,
    /// How many were lost: their channel or lease went, the broker has them again.
    pub lost: u64,
    /// How many had not ended when the forced phase was over.
    pub abandoned: u64,
    /// How many handlers were still at work at the end: threads that nothing can stop.
    pub handlers_alive: u64,
    /// Whether the drain was forced, by its timeout or a second signal.
    pub forced: bool,
    /// How long it took, in milliseconds.
    pub took_ms: u64,
    /// What was still in flight when the drain was forced, oldest first; at most 100 by name.
    pub stragglers: Vec<Straggler>,
    /// How many stragglers there were in all.
    pub stragglers_total: u64,
}

/// A delivery still in flight when the drain turned to force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub struct Straggler {
    /// Its number in this process.
    pub delivery: DeliveryId,
    /// Whose it was.
    pub consumer: ConsumerName,
    /// Its partition.
    pub partition: PartitionId,
    /// Its message's id, if it has one.
    pub id: Option<MessageId>,
    /// The state it was in.
    pub state: String,
    /// Its age since arrival, in milliseconds.
    pub age_ms: u64,
}

/// How many stragglers a report names.
pub(crate) const STRAGGLERS_NAMED_MAX: usize = 100;

impl DrainReport {
    /// Gives the process's exit code by this report: 0 clean, 1 if a handler's thread outlived its
    /// grace, 20 if stragglers were given back.
    pub fn exit_code(&self) -> u8 {
        if self.handlers_alive > 0 {
            1
        } else if self.clean {
            0
        } else {
            20
        }
    }
}

impl fmt::Display for DrainReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.clean { "clean" } else { "not clean" };
        let took = self.took_ms;
        writeln!(f, "drained ({}): {how}, in {took} ms", self.reason)?;
        write!(
            f,
            "  in hand {}: acked {}, requeued {}, released {}, rejected {}, lost {}",
            self.in_hand, self.acked, self.requeued, self.released, self.rejected, self.lost
        )?;
        if self.abandoned > 0 {
            write!(f, ", abandoned {}", self.abandoned)?;
        }
        if self.handlers_alive > 0 {
            write!(f, "\n  {} handlers are still at work", self.handlers_alive)?;
        }
        if self.stragglers_total > 0 {
            write!(f, "\n  stragglers {}:", self.stragglers_total)?;
        }
        for straggler in &self.stragglers {
            let id = straggler.id.as_ref().map_or("-", |id| id.as_str());
            write!(
                f,
                "\n    {} consumer {} partition {} id {} {} for {:?}",
                straggler.delivery,
                straggler.consumer,
                straggler.partition,
                id.escape_default(),
                straggler.state,
                Duration::from_millis(straggler.age_ms)
            )?;
        }
        let unnamed = self.stragglers_total - self.stragglers.len() as u64;
        if unnamed > 0 {
            write!(f, "\n    and {unnamed} more")?;
        }
        Ok(())
    }
}
