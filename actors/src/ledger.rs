//! The outcome ledger and the failure book as the actors use them.

use std::time::Duration;

use crate::model::{Capabilities, Delivery, Disposition, Generation, Outgoing, Publication};
use crate::settlement::Decision;

/// Bounds of the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerLimits {
    /// How many entries of ended channels are kept.
    pub entries: usize,
    /// How many bytes they may owe.
    pub bytes: u64,
    /// How long one is kept.
    pub age: Duration,
}

impl Default for LedgerLimits {
    fn default() -> Self {
        Self {
            entries: 10_000,
            bytes: 16 << 20,
            age: Duration::from_secs(3600),
        }
    }
}

/// What is remembered about one delivery.
pub(crate) struct Remembered<'a> {
    pub(crate) delivery: &'a Delivery,
    pub(crate) generation: Generation,
    pub(crate) decision: Decision,
    pub(crate) sent: bool,
    pub(crate) owed: Option<Outgoing>,
    pub(crate) now: Duration,
}

/// What the ledger answers.
pub(crate) struct Answer {
    pub(crate) disposition: Disposition,
    pub(crate) publication: Option<Publication>,
    pub(crate) owed: Option<Outgoing>,
}

#[derive(Debug)]
pub(crate) struct Ledger {}

impl Ledger {
    pub(crate) fn new(_limits: LedgerLimits, _capabilities: Capabilities) -> Self {
        Self {}
    }
    pub(crate) fn remember(&mut self, _r: Remembered<'_>) {}
    pub(crate) fn answer(&mut self, _d: &Delivery, _now: Duration) -> Option<Answer> {
        None
    }
    pub(crate) fn crash_loops(&self, _d: &Delivery) -> u32 {
        0
    }
    pub(crate) fn len(&self) -> usize {
        0
    }
}

/// Tells whether two deliveries have one ledger key.
pub(crate) fn same_key(one: &Delivery, other: &Delivery) -> bool {
    one.is_same_work(other)
        && one.attempt == other.attempt
        && one.replay == other.replay
        && one.body == other.body
}
