//! What stands at the broker, and what should: planned purely, applied by a thin shell.
//!
//! Nothing that exists is ever changed or deleted. What is missing is declared where the
//! configuration allows it; what differs is told with argument, wanted and existing value.

mod apply;
mod diff;
mod ladder;
mod plan;
mod ready;
mod rights;
mod session;
mod warnings;

pub use apply::{Applied, Topology, TopologyError};
pub use diff::{Change, Existing, QueueState, diff};
pub use ladder::{JITTER_FACTORS, Ladder};
pub use plan::{
    Argument, BindingSpec, Desired, ExchangeSpec, PlanError, QueueSpec, Role, desired,
    partition_queue,
};
pub use ready::Ready;
pub use rights::{Needs, needs};
pub use session::{Report, Task, perform};
pub use warnings::{ConsumerLimits, warnings};
