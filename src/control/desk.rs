//! The desk: what a command may do with queues, whichever broker holds them.

use std::collections::BTreeMap;

use acquit_actors::model::QueueName;
use acquit_actors::ports::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What stands in a queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct QueueDepth {
    /// Can be handed out now.
    pub ready: u64,
    /// Waits for its due time.
    pub delayed: u64,
    /// Is handed out and not settled.
    pub leased: u64,
    /// Stands on the dead list.
    pub dead: u64,
    /// The age of the oldest that is ready, in milliseconds.
    pub oldest_ms: Option<u64>,
}

/// Why the desk did not do it; says what to do instead where it knows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DeskError(pub String);

/// What a command may do with queues.
pub trait Desk: Send + Sync {
    /// Publishes lines in the feed's format; all are confirmed when it returns.
    fn publish(&self, queue: String, lines: Vec<String>) -> BoxFuture<'_, Result<u64, DeskError>>;

    /// Gives messages of a queue as JSON, first to come first.
    fn get(
        &self,
        queue: String,
        take: bool,
        dead: bool,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Value>, DeskError>>;

    /// Counts what stands in the queues that the configuration names.
    fn depths(&self) -> BoxFuture<'_, BTreeMap<QueueName, QueueDepth>>;
}
