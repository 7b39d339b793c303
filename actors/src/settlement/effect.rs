//! What the shell does for the machine: orders as imperatives.

use crate::model::{Disposition, Publication};

use super::{Decision, LostCause};

/// What the shell does after a transition, in the order given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Start the handler.
    StartHandler,
    /// Tell the handler to stop: async ones are dropped, commands get TERM, blocking ones a flag.
    AbortHandler,
    /// Arm a timer; it comes back as its event. Arming again replaces; a terminal state disarms all.
    Arm(Timer),
    /// Publish this; the answer comes back as an event. The same bytes and id at every try.
    Publish(Publication),
    /// Intake of this partition pauses and backs off.
    PauseIntake,
    /// The publish is refused for good and nothing else may take the work: it waits here until an
    /// operator acts. Said loudly; emitted once in a life.
    Park,
    /// Tell the broker; consumes the settler.
    Settle(Disposition),
    /// Write to the outcome ledger.
    Remember {
        /// What is remembered: the decision, with what it still owes, or with nothing owed where
        /// its publish was confirmed.
        decision: Decision,
        /// Whether the settlement may have been sent on the delivery's own generation: then the
        /// entry answers only on a later one.
        sent: bool,
    },
    /// Extend the lease.
    ExtendLease,
    /// Rebuild the source, if its generation still lives: an unsettled tag would hold credit for ever.
    ReopenSource,
    /// Take the settler that came with the adoption.
    TakeSettler,
    /// The delivery lets go of its share of the permit.
    ReturnPermit,
    /// The life is over.
    Finish(Final),
}

/// The timers that the machine asks for; the shell knows their lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Timer {
    /// The handler's deadline → `HandlerOverdue`.
    Deadline,
    /// The grace of an abort, by the handler's kind → `AbortOverdue`.
    AbortGrace,
    /// The next try of a publish → the shell publishes the same bytes again.
    Republish,
    /// The next try of a parked publish, at the longest backoff → the shell publishes the same
    /// bytes again.
    RepublishParked,
    /// The end of trying to publish → `PublishGivenUp`.
    PublishGiveUp,
    /// The end of trying to publish, cut to 1 s because the drain is forced → `PublishGivenUp`.
    PublishGiveUpForced,
    /// The due time of a held retry → `HoldDue`.
    Hold,
}

/// How a life ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Final {
    /// The broker was told.
    Settled {
        /// What.
        disposition: Disposition,
        /// Whether the handler outlived its grace and may still run.
        overrun: bool,
    },
    /// The broker will hand it out again.
    Lost {
        /// Why.
        cause: LostCause,
        /// Whether the handler outlived its grace and may still run.
        overrun: bool,
    },
}
