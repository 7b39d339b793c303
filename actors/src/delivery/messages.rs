//! What a delivery actor is told.

use crate::limiter::Permit;
use crate::model::Outcome;
use crate::ports::{HandlerOutcome, PublishError, SettleResult};
use crate::settlement::Event;

/// What a delivery actor is told.
pub(crate) enum DeliveryMessage {
    /// Something that carries nothing with it happened.
    Happened(Event),
    /// The limiter granted its permit.
    Granted(Permit),
    /// It is concluded without running.
    Judged {
        outcome: Outcome,
        error: Option<String>,
    },
    /// The handler returned a word.
    Returned(HandlerOutcome),
    /// The handler panicked.
    Panicked(String),
    /// The handler ended without a word.
    Gone,
    /// The settler answered to this frame.
    Settled { frame: u32, result: SettleResult },
    /// The publisher answered.
    Published {
        token: u64,
        result: Result<(), PublishError>,
    },
    /// A timer fired.
    TimerFired(TimerKind),
    /// A redelivery of the same work hands over its settler: it stands in the record.
    Adopt,
    /// The broker hands out nothing more: what was held back for that goes out.
    SettleDeferred,
    /// Die, for tests of what happens then.
    #[cfg(any(test, feature = "fail-points"))]
    Panic,
}

/// The timers of a delivery, as the shell tells them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimerKind {
    /// The handler's deadline.
    Deadline,
    /// The grace of an abort.
    AbortGrace,
    /// A publish was not answered in time.
    PublishTimeout,
    /// The next try of a publish is due.
    Republish,
    /// Publishing is given up.
    PublishGiveUp,
    /// A held retry is due.
    Hold,
    /// A settlement was not answered in time.
    SettleTimeout,
    /// It waited too long for a pause's end or another delivery's.
    Wait,
}
