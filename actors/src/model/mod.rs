//! Plain data that every layer shares: names, numbers, deliveries, outcomes, dispositions.
//!
//! Nothing here reads a clock, takes a lock, logs or awaits. Everything else in this crate may
//! use this module; it uses nothing of this crate.

mod capabilities;
mod counts;
mod delivery;
mod disposition;
mod headers;
mod ids;
mod outcome;
mod outgoing;
mod phase;
mod retry;

pub use capabilities::{Capabilities, DeliveryCounting};
pub use counts::Counts;
pub use delivery::{Delivery, Properties};
pub use disposition::{Disposition, Receipt};
pub use headers::{HeaderValue, Headers, names};
pub use ids::{
    Attempt, BodyDigest, ConsumerName, DeliveryId, Generation, MessageId, PartitionId, QueueName,
    ReplayNumber,
};
pub use outcome::{Outcome, Publication, RejectReason};
pub use outgoing::Outgoing;
pub use phase::Phase;
pub use retry::{Backoff, OnLeaseLost, OnRefused, RetryWay};
