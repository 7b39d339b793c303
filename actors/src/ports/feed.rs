//! The feed: where messages come from before they are in a queue.

use crate::model::Outgoing;

use super::{BoxFuture, FeedCursor};

/// Reads messages from somewhere, in order, with a position that can be gone back to.
pub trait Feed: Send {
    /// Goes to where the cursor stands; to the start without one.
    ///
    /// # Errors
    /// See [`FeedError`].
    fn open(&mut self, cursor: Option<FeedCursor>) -> BoxFuture<'_, Result<(), FeedError>>;

    /// Reads at most `max` messages. What cannot be read as a message is set aside by the feed and
    /// told in the batch.
    ///
    /// # Errors
    /// See [`FeedError`].
    ///
    /// # Cancel safety
    /// Not cancel safe: after a dropped call open it anew.
    fn next(&mut self, max: usize) -> BoxFuture<'_, Result<FeedBatch, FeedError>>;
}

/// Some messages, and where the feed stands after them.
#[derive(Debug)]
pub struct FeedBatch {
    /// The messages.
    pub messages: Vec<Outgoing>,
    /// Where the feed stands after them.
    pub cursor: FeedCursor,
    /// What could not be read: its line and why, without its content.
    pub bad: Vec<BadLine>,
    /// Whether there is nothing more.
    pub ended: bool,
}

/// A line that is not a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadLine {
    /// Its number, from 1.
    pub line: u64,
    /// Why, without its content.
    pub error: String,
}

/// Why a feed cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FeedError(pub String);
