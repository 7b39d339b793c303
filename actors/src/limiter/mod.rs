//! The limiter: who may have a delivery in flight, and when.
//!
//! A permit is taken before a handler starts and comes back when the delivery and its handler have
//! both let go. [`core`](LimiterCore) decides (pure), [`PermitBook`] is the shared state that
//! outlives the actor, [`LimiterActor`] hands out what the core grants. Nothing here knows
//! deliveries, handlers or brokers: a waiter is a [`DeliveryId`](crate::model::DeliveryId) and a
//! number of bytes.

mod actor;
mod core;
mod limits;
mod line;
mod permit;
mod rate;
mod share;
mod snapshot;

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod properties;

pub use self::actor::{
    AskMany, CancelAsk, GrantedCallback, LimiterActor, LimiterSnapshotRequest, RefusedCallback,
};
pub use self::core::{Ask, AskRefused, Asked, Granted, LimiterCore, Resize, ResizeRefused, Step};
pub use self::limits::{ConsumerIndex, ConsumerLimits, ConsumerShape, LimiterLimits, PermitKey};
pub use self::line::WAITING_MAX;
pub use self::permit::{NextPermit, Permit, PermitBook};
pub use self::rate::{Rate, RateError, RateFault};
pub use self::snapshot::{ConsumerSnapshot, LimiterSnapshot, PartitionSnapshot, WaitingSnapshot};
