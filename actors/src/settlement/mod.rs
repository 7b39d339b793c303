//! One delivery's life as a pure machine: state + event → state + effects.
//!
//! It has no clock, no async, no log, no broker. The delivery actor feeds it and performs its
//! effects. Beside it stand the two memories that its effects and events speak of, as pure cores:
//! the outcome ledger and the failure book. It knows only [`model`](crate::model).

mod decide;
mod effect;
mod event;
mod failure_book;
mod history;
mod invariants;
mod ledger;
mod machine;
mod state;

#[cfg(test)]
mod tests;

pub use decide::{Decision, Rules, decide};
pub use effect::{Effect, Final, Timer};
pub use event::{CancelKind, Event, PublishFailure, SettleFailure};
pub use failure_book::{
    BookBounds, BookKey, BookStats, Counts, CrashLoop, CrashVerdict, FailureBook,
};
pub use invariants::Invariant;
pub use ledger::{
    ChannelId, Handover, LedgerBounds, LedgerEntry, LedgerKey, LedgerStats, OutcomeLedger,
    SettlementNumber, Telling,
};
pub use machine::{Machine, Refused, SETTLE_TRIES_MAX};
pub use state::{LostCause, State, Then};
