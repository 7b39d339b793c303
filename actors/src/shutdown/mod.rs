//! The shutdown coordinator: stop admitting, finish what is in flight, then give the stragglers
//! back; each step bounded.

mod actor;
mod core;
mod report;

pub(crate) use actor::{CoordinatorActor, DrainNotes, QuotaReached, request_drain, request_force};
pub use report::{DrainReport, Straggler};
