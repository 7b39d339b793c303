//! Configuration: from `config.toml` to a plan that is valid by construction.
//!
//! ```text
//! text ─► reader ─► raw ─► check ─► plan
//!         (every    (mirrors (do values  (resolved: what the rest of the program sees)
//!          problem)  the file) fit?)
//! ```
//!
//! All problems of a file are told at once. Nothing downstream validates again; nothing here opens
//! a broker, a store or a socket.

mod check;
mod error;
mod lookup;
mod plan;
mod raw;
mod raw_broker;
mod reader;
mod value;

#[cfg(test)]
mod broker_tests;
#[cfg(test)]
mod tests;

pub use error::{ConfigError, Position, Problem, Severity, Trouble};
pub use plan::{
    AmqpPlan, BrokerPlan, CommandPlan, ConsumerPlan, ControlPlan, FeedPlan, HandlerPlan,
    LedgerPlan, LimiterPlan, ManagementPlan, Plan, RetryPlan, ShutdownPlan, SupervisionPlan, Sync,
    WorkerPlan,
};
pub use raw::{
    ExitMeaning, OnConsumerTimeout, OnExhausted, Order, Partitioning, Prefetch, Profile, RetryVia,
};
pub use raw_broker::{BrokerUrl, QueueKind};
pub use value::{Rate, Scalar};
