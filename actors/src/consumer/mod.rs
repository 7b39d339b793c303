//! A consumer: a named group of partitions with one handler; an actor for each partition.

mod actor;
mod core;
mod pump;
mod shared;
mod spec;

pub(crate) use actor::{ConsumerActor, ConsumerMessage};
pub(crate) use core::SubscriptionState;
pub(crate) use shared::{ConsumerShared, PartitionShared, bump};
pub use spec::{ConsumerSpec, Prefetch, RetryPolicy};
