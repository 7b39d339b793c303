//! The publisher: gets messages into queues, confirmed.

use serde::{Deserialize, Serialize};

use crate::model::Outgoing;

use super::{BoxFuture, PublishReply};

/// Publishes messages. Shared by all who publish.
pub trait Publisher: Send + Sync + 'static {
    /// Starts a publish and returns at once; the answer goes through `reply`, from any thread:
    /// confirmed means as safe as the transport makes it (embedded: fsynced, as configured).
    fn publish(&self, message: Outgoing, reply: PublishReply);

    /// Publishes fed lines together with how far the feed was read. Where the store can, both
    /// happen in one transaction, all or nothing; `reply` answers for the whole.
    fn publish_feed(&self, messages: Vec<Outgoing>, cursor: FeedCursor, reply: PublishReply);

    /// Reads how far a feed was read; `None` if it never was.
    fn feed_cursor<'a>(
        &'a self,
        feed: &'a str,
    ) -> BoxFuture<'a, Result<Option<FeedCursor>, PublishError>>;
}

/// How far a feed was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct FeedCursor {
    /// The feed's name: its file's path as configured, and its queue.
    pub feed: String,
    /// The first byte not read yet.
    pub offset: u64,
    /// The lines read so far.
    pub line: u64,
    /// How many of them were set aside as bad.
    pub bad: u64,
}

/// Why a publish failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The broker, the queue or the room for it is away; certainly not published.
    #[error("the broker cannot take it now: {0}")]
    Outage(String),
    /// Nobody knows whether it was published; the same id goes out again.
    #[error("whether it was published is unknown")]
    Unknown,
    /// Refused for good: size, property, forbidden. Trying again will not help.
    #[error("the broker refuses it: {0}")]
    Refused(String),
}

impl PublishError {
    /// Tells whether trying again may help.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Outage(_) | Self::Unknown => true,
            Self::Refused(_) => false,
        }
    }
}
