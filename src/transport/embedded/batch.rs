//! One batch of row changes: what a commit stores all of or nothing of.

use super::codec::{RowKey, StateRow, encode_state};

/// The store's tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Table {
    /// Messages, by row key.
    Messages = 0,
    /// Counts and due times of messages that were handed out before, by row key.
    States = 1,
    /// Dead lists, by row key.
    Dead = 2,
    /// Queues, cursors, and the store's own numbers, by name.
    Names = 3,
}

impl Table {
    fn of(number: u8) -> Option<Self> {
        [Self::Messages, Self::States, Self::Dead, Self::Names]
            .into_iter()
            .find(|table| *table as u8 == number)
    }
}

/// One row set or removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) table: Table,
    pub(crate) key: Vec<u8>,
    pub(crate) value: Option<Vec<u8>>,
}

/// Changes that are committed together.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) changes: Vec<Change>,
    /// Hand-outs: counted in the log at once, in the tables only if the message outlives the next
    /// checkpoint.
    pub(crate) handed_out: Vec<(RowKey, StateRow)>,
    /// Whether the store grows by it: such a batch is refused when storage is full.
    pub(crate) grows: bool,
    bytes: usize,
}

/// Bytes a change takes in the log beside its key and value.
const CHANGE_HEAD: usize = 1 + 4 + 4;

/// The bytes of a state row: three counts, two times, its checksum.
const STATE_ROW: usize = 3 * 4 + 2 * 8 + 8;
const NONE: u32 = u32::MAX;

impl Batch {
    /// Sets a row.
    pub(crate) fn put(&mut self, table: Table, key: &[u8], value: Vec<u8>) {
        self.push(table, key, Some(value));
    }

    /// Removes a row.
    pub(crate) fn remove(&mut self, table: Table, key: &[u8]) {
        self.push(table, key, None);
    }

    /// Removes a message with its state.
    pub(crate) fn remove_message(&mut self, key: &RowKey) {
        self.remove(Table::Messages, key);
        self.remove(Table::States, key);
    }

    /// Counts a hand-out.
    pub(crate) fn hand_out(&mut self, key: RowKey, state: StateRow) {
        self.bytes += CHANGE_HEAD + key.len() + STATE_ROW;
        self.handed_out.push((key, state));
    }

    /// Tells whether there is nothing to commit.
    pub(crate) fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.handed_out.is_empty()
    }

    /// Tells whether anybody waits for it to be safe.
    pub(crate) fn must_be_safe(&self) -> bool {
        !self.changes.is_empty()
    }

    /// How many bytes it takes in the log, at most.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Empties it for the next use.
    pub(crate) fn clear(&mut self) {
        self.changes.clear();
        self.handed_out.clear();
        self.grows = false;
        self.bytes = 0;
    }

    /// Appends all changes as the log keeps them. Hand-outs come first: a message that was handed
    /// out and settled in one batch leaves no state behind.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        for (key, state) in &self.handed_out {
            encode_change(out, Table::States, key, Some(&encode_state(key, state)));
        }
        for change in &self.changes {
            encode_change(out, change.table, &change.key, change.value.as_deref());
        }
    }

    /// Reads changes back; `None`: it is no batch.
    pub(crate) fn decode(mut input: &[u8]) -> Option<Vec<Change>> {
        let mut changes = Vec::new();
        while let Some((&table, rest)) = input.split_first() {
            let (key, rest) = decode_bytes(rest)?;
            let (value, rest) = decode_bytes(rest)?;
            changes.push(Change {
                table: Table::of(table)?,
                key: key?.to_vec(),
                value: value.map(<[u8]>::to_vec),
            });
            input = rest;
        }
        Some(changes)
    }

    fn push(&mut self, table: Table, key: &[u8], value: Option<Vec<u8>>) {
        self.bytes += CHANGE_HEAD + key.len() + value.as_ref().map_or(0, Vec::len);
        self.changes.push(Change {
            table,
            key: key.to_vec(),
            value,
        });
    }
}

fn encode_change(out: &mut Vec<u8>, table: Table, key: &[u8], value: Option<&[u8]>) {
    out.push(table as u8);
    encode_bytes(out, Some(key));
    encode_bytes(out, value);
}

fn encode_bytes(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
    let length = bytes.map_or(NONE, |b| u32::try_from(b.len()).unwrap_or(NONE));
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(bytes.unwrap_or_default());
}

/// Reads bytes or their absence; the outer `None`: cut off.
fn decode_bytes(input: &[u8]) -> Option<(Option<&[u8]>, &[u8])> {
    let (length, rest) = input.split_first_chunk::<4>()?;
    let length = u32::from_le_bytes(*length);
    if length == NONE {
        return Some((None, rest));
    }
    let (bytes, rest) = rest.split_at_checked(length as usize)?;
    Some((Some(bytes), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_comes_back_as_it_was_with_hand_outs_first() {
        let mut batch = Batch::default();
        batch.put(Table::Names, b"name", b"value".to_vec());
        batch.remove(Table::Dead, b"key");
        batch.put(Table::Messages, b"", Vec::new());
        batch.hand_out([7; 16], StateRow::default());
        let mut bytes = Vec::new();
        batch.encode(&mut bytes);
        assert_eq!(bytes.len(), batch.bytes());
        let changes = Batch::decode(&bytes).expect("good");
        assert_eq!(changes[0].table, Table::States);
        assert_eq!(changes[1..], batch.changes);
        assert_eq!(Batch::decode(&bytes[..bytes.len() - 1]), None);
    }
}
