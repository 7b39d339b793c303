//! What is limited, and by how much: plain data.

use std::fmt;
use std::num::NonZeroU32;

use crate::model::PartitionId;

use super::Rate;

/// Which consumer, by its place in the list that the book was made with, counted from 0.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct ConsumerIndex(pub u32);

impl fmt::Display for ConsumerIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Where a permit counts: its consumer and its partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PermitKey {
    /// Whose delivery it is.
    pub consumer: ConsumerIndex,
    /// The partition it came from.
    pub partition: PartitionId,
}

impl PermitKey {
    /// Makes a key.
    pub fn new(consumer: ConsumerIndex, partition: PartitionId) -> Self {
        Self {
            consumer,
            partition,
        }
    }
}

/// The limits of the whole process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimiterLimits {
    /// How many deliveries may be in flight; 0 grants nothing.
    pub permits: u32,
    /// How many bytes of bodies may be in flight.
    pub in_flight_bytes: u64,
    /// How often a permit may be granted; `None`: as often as there is one.
    pub rate: Option<Rate>,
}

/// The limits of one consumer, shared by its partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConsumerLimits {
    /// How many of its deliveries may be in flight; 0 grants nothing.
    pub permits: u32,
    /// How often it may be granted a permit; `None`: as often as there is one.
    pub rate: Option<Rate>,
}

/// One consumer as the limiter sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConsumerShape {
    /// How many partitions share its permits; fixed for the life of the book.
    pub partitions: NonZeroU32,
    /// Its limits at the start.
    pub limits: ConsumerLimits,
}
