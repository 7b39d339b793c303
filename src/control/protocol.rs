//! What is said over the socket.

use std::collections::BTreeMap;

use acquit_actors::Snapshot;
use acquit_actors::model::QueueName;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::QueueDepth;

/// The longest request line in bytes; a longer one ends the connection with an error.
pub const REQUEST_BYTES_MAX: usize = 64 << 20;

/// A request: one JSON line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Request {
    /// The status; answered by one [`StatusReport`].
    Status,
    /// The supervision tree.
    Tree,
    /// Begin a drain; with `wait`, answered by the drain report when it is there.
    Drain {
        /// Who asks, for the report.
        reason: String,
        /// Whether to wait for the report.
        wait: bool,
    },
    /// Give stragglers back now.
    Force,
    /// Pause a consumer.
    Pause {
        /// Its name.
        consumer: String,
        /// One of its partitions; none: all.
        partition: Option<u32>,
        /// Why, for status.
        reason: String,
    },
    /// End a pause.
    Resume {
        /// The consumer's name.
        consumer: String,
        /// One of its partitions; none: all.
        partition: Option<u32>,
    },
    /// Set a consumer's permits.
    Scale {
        /// The consumer's name.
        consumer: String,
        /// The new number, at least 1.
        permits: u32,
    },
    /// What is in hand, oldest first: an item each.
    Inflight {
        /// At most so many.
        max: usize,
    },
    /// End one delivery.
    Cancel {
        /// Its number.
        delivery: u64,
        /// Release it instead of rejecting it.
        release: bool,
    },
    /// Publish lines in the feed's format.
    Publish {
        /// The queue.
        queue: String,
        /// The lines.
        lines: Vec<String>,
    },
    /// Messages of a queue: an item each.
    Get {
        /// The queue.
        queue: String,
        /// Whether they are taken out for good.
        take: bool,
        /// Whether the dead list is meant.
        dead: bool,
        /// At most so many.
        limit: usize,
    },
}

/// A line of an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Answer {
    /// One of several.
    Item(Value),
    /// The end: it was done.
    Done(Value),
    /// The end: it was not done, and why.
    Error(String),
}

/// What `status` tells.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct StatusReport {
    /// The process.
    pub pid: u32,
    /// The product's version.
    pub version: String,
    /// The worker's name.
    pub worker: String,
    /// The engine.
    pub snapshot: Snapshot,
    /// What stands in the queues that the configuration names.
    pub depths: BTreeMap<QueueName, QueueDepth>,
    /// What the broker told at the start; `None` where it is in the process.
    #[serde(default)]
    pub broker: Option<BrokerTold>,
}

/// What a broker told about itself; "unknown" where nobody told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct BrokerTold {
    /// Its version.
    pub version: String,
    /// The queues of the configuration, as far as it tells about queues at all.
    pub queues: Vec<QueueTold>,
}

/// What a broker told about a queue; "unknown" where nobody told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct QueueTold {
    /// Its name.
    pub name: QueueName,
    /// Its type, in the broker's word.
    #[serde(rename = "type")]
    pub kind: String,
    /// The delivery limit in force, or "none".
    pub delivery_limit: String,
    /// Its own consumer timeout.
    pub consumer_timeout: String,
    /// Whether it hands its messages to one consumer at a time: "yes" or "no".
    pub single_active: String,
}
