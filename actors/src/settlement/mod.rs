//! One delivery's life as a pure machine: state + event → state + effects.
//!
//! It has no clock, no async, no log, no broker. The delivery actor feeds it and performs its
//! effects. It knows only [`model`](crate::model).

mod decide;
mod effect;
mod event;
mod machine;
mod state;

pub use decide::{Decision, Rules, decide};
pub use effect::{Effect, Final, Timer};
pub use event::{CancelKind, Event, PublishFailure, SettleFailure};
pub use machine::{Machine, Refused};
pub use state::{LostCause, State, Then};
