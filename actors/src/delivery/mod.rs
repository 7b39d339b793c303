//! One delivery: its record in the registry, the actor that owns its settlement, and the place
//! where its handler runs.

mod actor;
mod completions;
mod executor;
mod messages;
mod outgoing;
mod record;

pub(crate) use actor::{DeliveryActor, readmit, remember, start_delivery};
pub(crate) use completions::{Completion, Completions};
pub(crate) use executor::{Executor, ExecutorKind};
pub(crate) use messages::{DeliveryMessage, TimerKind};
pub(crate) use outgoing::cut;
pub(crate) use record::{Adoption, DeliveryRecord, HandlerPart};
