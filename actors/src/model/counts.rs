//! The counters of a partition or a consumer, as a plain copy.

use serde::{Deserialize, Serialize};

/// Counters since the start. At every moment: received = acked + requeued + released + rejected +
/// lost + in hand.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub struct Counts {
    /// Arrivals.
    pub received: u64,
    /// Arrivals that the broker handed out before.
    pub redelivered: u64,
    /// Deliveries that are not ended.
    pub in_hand: u64,
    /// Settled as Ack.
    pub acked: u64,
    /// Settled as Requeue.
    pub requeued: u64,
    /// Settled as Release.
    pub released: u64,
    /// Settled as Reject.
    pub rejected: u64,
    /// Lost: the broker hands them out again.
    pub lost: u64,
    /// Of those lost: settlements for an ended generation, never sent.
    pub stale: u64,
    /// Outcomes Completed and Discarded.
    pub completed: u64,
    /// Outcomes Failed, Rejected, Panicked, TimedOut and Gone.
    pub failed: u64,
    /// Outcomes Unavailable.
    pub unavailable: u64,
    /// Outcomes answered by the ledger.
    pub known: u64,
    /// Redeliveries adopted by the attempt that still ran.
    pub adopted: u64,
    /// Handlers that outlived their deadline and grace.
    pub overruns: u64,
    /// Delivery actors that died.
    pub actor_deaths: u64,
}

impl Counts {
    /// Tells whether every arrival is accounted for.
    pub fn is_balanced(&self) -> bool {
        self.received
            == self.acked + self.requeued + self.released + self.rejected + self.lost + self.in_hand
    }

    /// Adds another partition's.
    pub fn add(&mut self, other: &Self) {
        self.received += other.received;
        self.redelivered += other.redelivered;
        self.in_hand += other.in_hand;
        self.acked += other.acked;
        self.requeued += other.requeued;
        self.released += other.released;
        self.rejected += other.rejected;
        self.lost += other.lost;
        self.stale += other.stale;
        self.completed += other.completed;
        self.failed += other.failed;
        self.unavailable += other.unavailable;
        self.known += other.known;
        self.adopted += other.adopted;
        self.overruns += other.overruns;
        self.actor_deaths += other.actor_deaths;
    }
}
