//! What a transport can do, so that what it cannot is said at load and not found at night.

use serde::{Deserialize, Serialize};

/// What the broker's delivery count counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeliveryCounting {
    /// Failures are counted apart from returns.
    FailuresApart,
    /// Every return counts.
    EveryReturn,
    /// It does not count, or it is unknown.
    None,
}

/// What a transport can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Capabilities {
    /// A settlement is answered (`Confirmed`), not only sent.
    pub confirms_settlement: bool,
    /// A return can carry a delay that the broker holds.
    pub delayed_requeue: bool,
    /// A lease can be extended.
    pub extend: bool,
    /// The broker keeps its own dead list for a Reject.
    pub dead_list: bool,
    /// An Ack of an ended generation still counts.
    pub late_ack: bool,
    /// What its delivery count counts.
    pub counting: DeliveryCounting,
    /// It survives the end of this process.
    pub durable: bool,
}
