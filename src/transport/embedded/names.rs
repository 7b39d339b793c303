//! The keys of the names table.

use acquit_actors::model::QueueName;

/// The prefix of queues.
pub(crate) const QUEUE: &[u8] = b"q:";
/// The prefix of promised sequences.
pub(crate) const CEILING: &[u8] = b"s:";

/// A queue's row: its number and how many partitions it has.
pub(crate) fn queue(name: &QueueName) -> Vec<u8> {
    [QUEUE, name.as_str().as_bytes()].concat()
}

/// A feed's cursor.
pub(crate) fn cursor(feed: &str) -> Vec<u8> {
    [b"c:", feed.as_bytes()].concat()
}

/// A partition's promise: no sequence from there on was ever used.
pub(crate) fn ceiling(queue: u32, partition: u32) -> Vec<u8> {
    [CEILING, &queue.to_be_bytes(), &partition.to_be_bytes()].concat()
}
