//! One hand-over of a message by the broker to us.

use std::time::SystemTime;

use bytes::Bytes;

use super::{Attempt, Generation, Headers, MessageId, PartitionId, QueueName, ReplayNumber};

/// Properties of a message that mean nothing to us, and that a copy of it has to keep.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Properties {
    /// How the body is encoded (`gzip`).
    pub content_encoding: Option<String>,
    /// Where its producer wants answers.
    pub reply_to: Option<String>,
    /// The message's type, as its producer names it.
    pub kind: Option<String>,
    /// The producing application.
    pub app_id: Option<String>,
    /// The user who published it, as the broker has verified it.
    pub user_id: Option<String>,
    /// The priority.
    pub priority: Option<u8>,
}

/// One hand-over of a message: what the handler sees. How the broker is told stands apart, in
/// the settler, so that a delivery can be read and kept without being able to settle.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Delivery {
    /// The queue it came from, without the partition's suffix.
    pub queue: QueueName,
    /// The partition it came from.
    pub partition: PartitionId,
    /// The opening of the source that brought it.
    pub generation: Generation,
    /// The message's id, if it has one. Without one there is no ledger and no adoption.
    pub id: Option<MessageId>,
    /// The store's own number of the message within its partition, where the broker gives one. It
    /// then stands for the message's identity; a producer's id may be used twice.
    pub sequence: Option<u64>,
    /// The key that chose its partition, if it has one.
    pub key: Option<String>,
    /// The body, unchanged.
    pub body: Bytes,
    /// The headers, ours among them.
    pub headers: Headers,
    /// The media type its producer named.
    pub content_type: Option<String>,
    /// What its producer asked replies to carry.
    pub correlation_id: Option<String>,
    /// What else its producer set, for copies of it.
    pub properties: Option<Box<Properties>>,
    /// When it was published, where the broker or its producer says so.
    pub published_at: Option<SystemTime>,
    /// 1 + its failed attempts so far.
    pub attempt: Attempt,
    /// How often it was replayed from a dead-letter queue.
    pub replay: ReplayNumber,
    /// How often the broker handed it out, this time included; `None` where the broker does not count.
    pub delivery_count: Option<u32>,
    /// How many of those hand-outs were given back by us without a failure, where the broker tells
    /// them apart; 0 elsewhere.
    pub returns: u32,
    /// Whether the broker says that it handed it out before.
    pub redelivered: bool,
}

impl Delivery {
    /// Makes a first delivery with a body and nothing else; a transport fills in what it knows.
    pub fn new(
        queue: QueueName,
        partition: PartitionId,
        generation: Generation,
        body: Bytes,
    ) -> Self {
        Self {
            queue,
            partition,
            generation,
            id: None,
            sequence: None,
            key: None,
            body,
            headers: Headers::new(),
            content_type: None,
            correlation_id: None,
            properties: None,
            published_at: None,
            attempt: Attempt::FIRST,
            replay: ReplayNumber::default(),
            delivery_count: None,
            returns: 0,
            redelivered: false,
        }
    }

    /// Tells whether two deliveries carry the same message, by what identifies it: queue and the
    /// store's number, or else the id. Without either no two are the same.
    pub fn is_same_work(&self, other: &Self) -> bool {
        if self.queue != other.queue {
            return false;
        }
        match (self.sequence, other.sequence) {
            (Some(one), Some(two)) => one == two && self.partition == other.partition,
            (None, None) => self.id.is_some() && self.id == other.id,
            (Some(_), None) | (None, Some(_)) => false,
        }
    }

    /// Gives what names the message in the outcome ledger; `None` where nothing does.
    pub fn identity(&self) -> Option<MessageId> {
        match self.sequence {
            Some(sequence) => Some(MessageId::from(format!("{}/{sequence}", self.partition))),
            None => self.id.clone(),
        }
    }
}
