//! How the embedded broker is opened.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::clock::{Clock, SystemClock};

/// Where the messages live.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// In this process, gone with it (`memory:`).
    Memory,
    /// In a folder (`embedded:<dir>`); made if it does not exist.
    Dir(PathBuf),
}

/// When a publish or a settlement is confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Sync {
    /// After an fsync that it shares with all that came at the same time. Nothing confirmed is
    /// ever lost.
    #[default]
    Always,
    /// As soon as the operating system has it; an fsync follows within 50 ms. A killed process
    /// loses nothing; a power cut or a crashed kernel loses what was confirmed in its last 50 ms.
    Interval,
}

/// The options of an embedded broker; [`EmbeddedOptions::new`] has the defaults.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct EmbeddedOptions {
    /// Where the messages live.
    pub location: Location,
    /// When a publish or a settlement is confirmed (a folder only; memory answers at once).
    pub sync: Sync,
    /// How long a delivery may be held without a word; 30 s.
    pub lease: Duration,
    /// How many partitions a queue gets that a publish creates (reply and dead-letter queues); 1.
    pub default_partitions: NonZeroU32,
    /// How many bytes of publishes may wait for their commit; past it a publish answers
    /// *outage*. 64 MiB.
    pub waiting_bytes: usize,
    /// The largest body and headers a publish may carry; 64 MiB.
    pub max_message_bytes: usize,
    /// What time it is.
    pub clock: Arc<dyn Clock>,
}

impl EmbeddedOptions {
    /// The defaults for a location.
    pub fn new(location: Location) -> Self {
        Self {
            location,
            sync: Sync::Always,
            lease: Duration::from_secs(30),
            default_partitions: NonZeroU32::MIN,
            waiting_bytes: 64 << 20,
            max_message_bytes: 64 << 20,
            clock: Arc::new(SystemClock::default()),
        }
    }

    /// The defaults in memory.
    pub fn memory() -> Self {
        Self::new(Location::Memory)
    }

    /// The defaults in a folder.
    pub fn dir(dir: impl Into<PathBuf>) -> Self {
        Self::new(Location::Dir(dir.into()))
    }

    /// Sets when a publish or a settlement is confirmed.
    #[must_use]
    pub fn with_sync(mut self, sync: Sync) -> Self {
        self.sync = sync;
        self
    }

    /// Sets how long a delivery may be held without a word.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Sets how many partitions a queue gets that a publish creates.
    #[must_use]
    pub fn with_default_partitions(mut self, partitions: NonZeroU32) -> Self {
        self.default_partitions = partitions;
        self
    }

    /// Sets how many bytes of publishes may wait for their commit.
    #[must_use]
    pub fn with_waiting_bytes(mut self, bytes: usize) -> Self {
        self.waiting_bytes = bytes;
        self
    }

    /// Sets the largest body and headers a publish may carry.
    #[must_use]
    pub fn with_max_message_bytes(mut self, bytes: usize) -> Self {
        self.max_message_bytes = bytes;
        self
    }

    /// Sets the clock: for tests.
    #[must_use]
    pub fn with_clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }
}
