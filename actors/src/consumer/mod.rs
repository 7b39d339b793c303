//! A consumer: a named group of partitions with one handler; an actor for each partition.

mod actor;
mod core;
mod pump;
mod shared;
mod spec;

pub(crate) use actor::{ConsumerActor, ConsumerMessage};
pub(crate) use shared::{ConsumerShared, PartitionShared, PauseNote, bump};
pub use core::{Subscription, SubscriptionState};
pub use spec::{ConsumerSpec, Prefetch, RetryPolicy};
