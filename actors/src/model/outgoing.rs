//! What we publish: replies, retry copies, dead letters, fed lines.

use std::time::{Duration, SystemTime};

use bytes::Bytes;

use super::{Headers, MessageId, PartitionId, Properties, QueueName};

/// One message on its way to a queue. Cloning is cheap for the body.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Outgoing {
    /// The queue it goes to, without a partition's suffix.
    pub queue: QueueName,
    /// Its id; the same for every try of one publish, so that a repeat can be told.
    pub id: Option<MessageId>,
    /// The key that chooses its partition; none: round robin.
    pub key: Option<String>,
    /// The body.
    pub body: Bytes,
    /// The headers.
    pub headers: Headers,
    /// The media type.
    pub content_type: Option<String>,
    /// The id of the message this one answers.
    pub correlation_id: Option<String>,
    /// The partition it has to go to; none: its key chooses.
    pub partition: Option<PartitionId>,
    /// How long it is to stay out of the queue: a retry copy's delay, held by the broker.
    pub delay: Option<Duration>,
    /// When the original was published, on copies.
    pub published_at: Option<SystemTime>,
    /// What else the original's producer set, on copies.
    pub properties: Option<Box<Properties>>,
}

impl Outgoing {
    /// Makes a message with a body and nothing else.
    pub fn new(queue: QueueName, body: impl Into<Bytes>) -> Self {
        Self {
            queue,
            id: None,
            key: None,
            body: body.into(),
            headers: Headers::new(),
            content_type: None,
            correlation_id: None,
            partition: None,
            delay: None,
            published_at: None,
            properties: None,
        }
    }

    /// Sets the id.
    #[must_use]
    pub fn with_id(mut self, id: impl Into<MessageId>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Sets the key that chooses the partition.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Replaces the headers.
    #[must_use]
    pub fn with_headers(mut self, headers: Headers) -> Self {
        self.headers = headers;
        self
    }
}
