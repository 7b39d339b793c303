//! The actor system of acquit: settlement, supervision, limiter, drain, and the ports they need.

mod consumer;
mod deliveries;
mod delivery;
mod feed;
mod handle;
mod ledger;
pub mod limiter;
pub mod model;
pub mod ports;
mod publisher;
mod registry;
mod runtime;
pub mod settlement;
mod shutdown;
mod status;
pub mod supervision;
pub mod testing;
mod timer;
mod world;

pub use consumer::{ConsumerSpec, Prefetch, RetryPolicy};
pub use feed::{FeedSpec, FeedStatus};
pub use handle::{CommandError, EngineEnd, Handle, Target};
pub use ledger::LedgerLimits;
pub use model::Counts;
pub use runtime::{Engine, StartError};
pub use shutdown::{DrainReport, Straggler};
pub use status::{ConsumerStatus, InFlight, Kept, PartitionStatus, Snapshot};
