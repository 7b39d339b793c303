//! The embedded broker: `memory:` and `embedded:<dir>` behind one transport.
//!
//! Queues of partitions with leases, delays, failure counts apart from hand-outs, and dead lists.
//! It needs no set-up, and in a folder it loses nothing that was confirmed when it is killed.
//! It serves one process; it does not replicate and knows no priorities.
//!
//! ```text
//! publisher ─┐                        ┌─ partition (core: pure, behind one lock) ─► source ─► settler
//!            ├─► job queue ─► committer ─► store: tail log (fsync) ─► tables (checkpoints)       │
//! settler ───┘   (durable only)                                    ▲ reader (windows, lists)     │
//!       ▲────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! In memory the same core is called directly and answers at once.

mod admin;
mod batch;
mod broker;
mod clock;
mod codec;
mod committer;
mod core;
mod error;
mod job;
mod message;
mod names;
mod options;
mod publisher;
mod queue;
mod reader;
mod restore;
mod source;
mod store;
mod tables;
mod tail_log;
mod timer;
mod transport;

pub use admin::{DeadMessage, PartitionStats, PeekedMessage, QueueStats};
pub use clock::{Clock, ManualClock, Moved, SystemClock};
pub use error::EmbeddedError;
pub use options::{EmbeddedOptions, Location, Sync};
pub use transport::EmbeddedTransport;
