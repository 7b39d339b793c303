//! What the limiter shows: plain copies of a moment.

use std::time::Duration;

use crate::model::PartitionId;

use super::{ConsumerIndex, Rate};

/// Who waits at one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct WaitingSnapshot {
    /// How many asks wait.
    pub count: usize,
    /// How many bytes they ask for.
    pub bytes: u64,
    /// How long the oldest has waited; `None` if none waits.
    pub oldest: Option<Duration>,
}

impl WaitingSnapshot {
    pub(super) fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.oldest = self.oldest.max(other.oldest);
    }
}

/// The limiter at one moment.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub struct LimiterSnapshot {
    /// The limit of permits.
    pub permits: u32,
    /// The permits in flight.
    pub taken: u32,
    /// The byte budget.
    pub in_flight_bytes_max: u64,
    /// The bytes in flight.
    pub in_flight_bytes: u64,
    /// The rate, if there is one.
    pub rate: Option<Rate>,
    /// Who waits, in all.
    pub waiting: WaitingSnapshot,
    /// Each consumer, by its index.
    pub consumers: Vec<ConsumerSnapshot>,
}

/// One consumer at one moment.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub struct ConsumerSnapshot {
    /// Which.
    pub consumer: ConsumerIndex,
    /// Its limit of permits.
    pub permits: u32,
    /// Its permits in flight.
    pub taken: u32,
    /// Its bytes in flight.
    pub in_flight_bytes: u64,
    /// Its rate, if it has one.
    pub rate: Option<Rate>,
    /// Who waits in it.
    pub waiting: WaitingSnapshot,
    /// Each partition, by its number.
    pub partitions: Vec<PartitionSnapshot>,
}

/// One partition at one moment.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub struct PartitionSnapshot {
    /// Which.
    pub partition: PartitionId,
    /// Its permits in flight.
    pub taken: u32,
    /// Who waits in it.
    pub waiting: WaitingSnapshot,
}
