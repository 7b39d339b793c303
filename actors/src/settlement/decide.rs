//! From outcome to decision: at most one publish and one disposition.

use std::time::Duration;

use crate::model::{Attempt, Disposition, OnLeaseLost, OnRefused, Outcome, Publication, RetryWay};

/// What holds for one delivery: its consumer's policy and its transport's ways, resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rules {
    /// This attempt's number.
    pub attempt: Attempt,
    /// No attempt has a higher number.
    pub max_attempts: u32,
    /// The delay before the next attempt, jitter included.
    pub backoff: Duration,
    /// Whether a completed delivery owes a reply.
    pub reply: bool,
    /// Whether there is a dead-letter queue.
    pub dead_letter: bool,
    /// Whether a discarded delivery owes a quarantine copy.
    pub quarantine: bool,
    /// Who holds the delay of a retry.
    pub retry_way: RetryWay,
    /// What happens to the running handler when the channel is lost.
    pub on_channel_lost: OnLeaseLost,
    /// What happens to the running handler when the lease ran out.
    pub on_lease_lost: OnLeaseLost,
    /// What happens when a publish is refused for good and there is no dead-letter queue.
    pub on_refused: OnRefused,
}

/// What was decided about a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Decision {
    /// What goes out first.
    pub publish: Option<Publication>,
    /// What the broker is told then.
    pub disposition: Disposition,
    /// Whether the delay is waited for here, in Holding.
    pub hold: bool,
}

/// Decides. (Being written: see the table in the settlement contract.)
pub fn decide(outcome: Outcome, rules: &Rules) -> Decision {
    let _ = (outcome, rules);
    Decision {
        publish: None,
        disposition: Disposition::Ack,
        hold: false,
    }
}
