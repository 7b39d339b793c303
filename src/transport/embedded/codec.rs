//! The bytes of the store's rows. Every row ends in the xxh3-64 of its key and all before it, so
//! that a flipped bit, a row under a wrong key and a cut-off row are told from a good one.

use acquit_actors::model::{HeaderValue, Headers, MessageId};
use bytes::Bytes;
use xxhash_rust::xxh3::Xxh3;

use super::core::Tally;
use super::message::Message;

/// Why a row cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the row does not match its checksum")]
pub(crate) struct BadRow;

/// The key of a message's rows: queue number, partition, sequence, each big-endian, so that rows
/// sort in queue order.
pub(crate) type RowKey = [u8; 16];

/// Makes a row key.
pub(crate) fn row_key(queue: u32, partition: u32, seq: u64) -> RowKey {
    let mut key = [0; 16];
    key[..4].copy_from_slice(&queue.to_be_bytes());
    key[4..8].copy_from_slice(&partition.to_be_bytes());
    key[8..].copy_from_slice(&seq.to_be_bytes());
    key
}

/// Takes a row key apart: queue number, partition, sequence.
pub(crate) fn split_key(key: &[u8]) -> Option<(u32, u32, u64)> {
    let key = RowKey::try_from(key).ok()?;
    Some((
        u32::from_be_bytes(key[..4].try_into().ok()?),
        u32::from_be_bytes(key[4..8].try_into().ok()?),
        u64::from_be_bytes(key[8..].try_into().ok()?),
    ))
}

/// What is stored of a message that was handed out before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct StateRow {
    pub(crate) tally: Tally,
    /// When it is due, by the wall clock; 0: at once.
    pub(crate) due_millis: u64,
    /// How long it was to wait: a wall clock that jumped never makes it wait longer.
    pub(crate) delay_millis: u64,
}

impl StateRow {
    /// What is left of the delay at a wall time.
    pub(crate) fn left_millis(&self, wall_millis: u64) -> u64 {
        self.due_millis
            .saturating_sub(wall_millis)
            .min(self.delay_millis)
    }
}

/// One message on a dead list, as it is stored.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DeadRow {
    pub(crate) reason: String,
    pub(crate) died_millis: u64,
    pub(crate) tally: Tally,
    /// The message's row as it was, also where it cannot be read.
    pub(crate) message: Bytes,
}

/// Encodes a message's row.
pub(crate) fn encode_message(key: &[u8], message: &Message) -> Vec<u8> {
    let mut out = Writer::with_capacity(message.weight());
    out.u64(message.published_millis);
    out.optional(message.id.as_ref().map(|id| id.as_str()));
    out.optional(message.key.as_deref());
    out.optional(message.content_type.as_deref());
    out.optional(message.correlation_id.as_deref());
    out.u32(u32::try_from(message.headers.len()).unwrap_or(u32::MAX));
    for (name, value) in message.headers.iter() {
        out.bytes(name.as_bytes());
        out.header(value);
    }
    out.bytes(&message.body);
    out.sealed(key)
}

/// Tells whether a row matches its checksum.
pub(crate) fn is_good_row(key: &[u8], row: &[u8]) -> bool {
    Reader::open(key, row).is_ok()
}

/// Decodes a message's row.
pub(crate) fn decode_message(key: &[u8], row: &[u8]) -> Result<Message, BadRow> {
    let mut input = Reader::open(key, row)?;
    let message = read_message(&mut input).ok_or(BadRow)?;
    input.end()?;
    Ok(message)
}

fn read_message(input: &mut Reader<'_>) -> Option<Message> {
    let published_millis = input.u64()?;
    let id = input.optional()?.map(MessageId::from);
    let key = input.optional()?;
    let content_type = input.optional()?;
    let correlation_id = input.optional()?;
    let count = input.u32()?;
    let mut headers = Vec::new();
    for _ in 0..count {
        headers.push((input.text()?, input.header()?));
    }
    Some(Message {
        id,
        key,
        content_type,
        correlation_id,
        headers: headers.into_iter().collect::<Headers>(),
        published_millis,
        body: Bytes::copy_from_slice(input.bytes()?),
    })
}

/// Encodes a state row.
pub(crate) fn encode_state(key: &[u8], state: &StateRow) -> Vec<u8> {
    let mut out = Writer::with_capacity(32);
    out.u32(state.tally.failures);
    out.u32(state.tally.deliveries);
    out.u32(state.tally.returns);
    out.u64(state.due_millis);
    out.u64(state.delay_millis);
    out.sealed(key)
}

/// Decodes a state row.
pub(crate) fn decode_state(key: &[u8], row: &[u8]) -> Result<StateRow, BadRow> {
    let mut input = Reader::open(key, row)?;
    let state = (|| {
        Some(StateRow {
            tally: Tally {
                failures: input.u32()?,
                deliveries: input.u32()?,
                returns: input.u32()?,
            },
            due_millis: input.u64()?,
            delay_millis: input.u64()?,
        })
    })();
    state.ok_or(BadRow)
}

/// Encodes a row of a dead list.
pub(crate) fn encode_dead(key: &[u8], dead: &DeadRow) -> Vec<u8> {
    let mut out = Writer::with_capacity(dead.message.len() + dead.reason.len() + 40);
    out.bytes(dead.reason.as_bytes());
    out.u64(dead.died_millis);
    out.u32(dead.tally.failures);
    out.u32(dead.tally.deliveries);
    out.u32(dead.tally.returns);
    out.bytes(&dead.message);
    out.sealed(key)
}

/// Decodes a row of a dead list.
pub(crate) fn decode_dead(key: &[u8], row: &[u8]) -> Result<DeadRow, BadRow> {
    let mut input = Reader::open(key, row)?;
    let dead = (|| {
        Some(DeadRow {
            reason: input.text()?,
            died_millis: input.u64()?,
            tally: Tally {
                failures: input.u32()?,
                deliveries: input.u32()?,
                returns: input.u32()?,
            },
            message: Bytes::copy_from_slice(input.bytes()?),
        })
    })();
    dead.ok_or(BadRow)
}

/// Encodes plain numbers: a queue's number and partitions, a cursor, a sequence.
pub(crate) fn encode_numbers(key: &[u8], numbers: &[u64]) -> Vec<u8> {
    let mut out = Writer::with_capacity(numbers.len() * 8 + 8);
    numbers.iter().for_each(|&number| out.u64(number));
    out.sealed(key)
}

/// Decodes as many plain numbers as are asked for.
pub(crate) fn decode_numbers<const N: usize>(key: &[u8], row: &[u8]) -> Result<[u64; N], BadRow> {
    let mut input = Reader::open(key, row)?;
    let mut numbers = [0; N];
    for number in &mut numbers {
        *number = input.u64().ok_or(BadRow)?;
    }
    Ok(numbers)
}

struct Writer(Vec<u8>);

impl Writer {
    fn with_capacity(bytes: usize) -> Self {
        Self(Vec::with_capacity(bytes))
    }
    fn u32(&mut self, number: u32) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }
    fn u64(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }
    fn bytes(&mut self, bytes: &[u8]) {
        // Publishes are bounded far below 4 GiB before they come here.
        self.u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        self.0.extend_from_slice(bytes);
    }
    fn optional(&mut self, text: Option<&str>) {
        self.0.push(u8::from(text.is_some()));
        if let Some(text) = text {
            self.bytes(text.as_bytes());
        }
    }
    fn header(&mut self, value: &HeaderValue) {
        match value {
            HeaderValue::Bool(truth) => self.0.extend_from_slice(&[1, u8::from(*truth)]),
            HeaderValue::Int(number) => {
                self.0.push(2);
                self.0.extend_from_slice(&number.to_le_bytes());
            }
            HeaderValue::Float(number) => {
                self.0.push(3);
                self.0.extend_from_slice(&number.to_le_bytes());
            }
            HeaderValue::Text(text) => {
                self.0.push(4);
                self.bytes(text.as_bytes());
            }
            HeaderValue::Bytes(bytes) => {
                self.0.push(5);
                self.bytes(bytes);
            }
            // Null, and what a later version of the model may add.
            _ => self.0.push(0),
        }
    }
    fn sealed(mut self, key: &[u8]) -> Vec<u8> {
        let sum = checksum(key, &self.0);
        self.u64(sum);
        self.0
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn open(key: &[u8], row: &'a [u8]) -> Result<Self, BadRow> {
        let (payload, sum) = row.split_last_chunk::<8>().ok_or(BadRow)?;
        if checksum(key, payload) == u64::from_le_bytes(*sum) {
            Ok(Self(payload))
        } else {
            Err(BadRow)
        }
    }
    fn end(&self) -> Result<(), BadRow> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(BadRow)
        }
    }
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk::<N>()?;
        self.0 = tail;
        Some(*head)
    }
    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }
    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()? as usize;
        let (head, tail) = self.0.split_at_checked(length)?;
        self.0 = tail;
        Some(head)
    }
    fn text(&mut self) -> Option<String> {
        Some(std::str::from_utf8(self.bytes()?).ok()?.to_owned())
    }
    fn optional(&mut self) -> Option<Option<String>> {
        match self.array::<1>()? {
            [0] => Some(None),
            [1] => self.text().map(Some),
            _ => None,
        }
    }
    fn header(&mut self) -> Option<HeaderValue> {
        Some(match self.array::<1>()? {
            [0] => HeaderValue::Null,
            [1] => HeaderValue::Bool(self.array::<1>()? != [0]),
            [2] => HeaderValue::Int(i64::from_le_bytes(self.array()?)),
            [3] => HeaderValue::Float(f64::from_le_bytes(self.array()?)),
            [4] => HeaderValue::Text(self.text()?),
            [5] => HeaderValue::Bytes(Bytes::copy_from_slice(self.bytes()?)),
            _ => return None,
        })
    }
}

fn checksum(key: &[u8], payload: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(key);
    hash.update(payload);
    hash.digest()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header_value() -> impl Strategy<Value = HeaderValue> {
        prop_oneof![
            Just(HeaderValue::Null),
            any::<bool>().prop_map(HeaderValue::Bool),
            any::<i64>().prop_map(HeaderValue::Int),
            (-1e9..1e9_f64).prop_map(HeaderValue::Float),
            ".*".prop_map(HeaderValue::Text),
            proptest::collection::vec(any::<u8>(), 0..20)
                .prop_map(|b| HeaderValue::Bytes(b.into())),
        ]
    }

    fn message() -> impl Strategy<Value = Message> {
        (
            any::<u64>(),
            proptest::option::of(".*"),
            proptest::option::of(".*"),
            proptest::collection::vec((".*", header_value()), 0..5),
            proptest::collection::vec(any::<u8>(), 0..300),
        )
            .prop_map(|(published_millis, id, text, headers, body)| Message {
                id: id.map(MessageId::from),
                key: text.clone(),
                content_type: text.clone(),
                correlation_id: text,
                headers: headers.into_iter().collect(),
                published_millis,
                body: body.into(),
            })
    }

    proptest! {
        #[test]
        fn a_message_comes_back_as_it_was(message in message()) {
            let key = row_key(1, 2, 3);
            let row = encode_message(&key, &message);
            prop_assert_eq!(decode_message(&key, &row), Ok(message));
        }

        #[test]
        fn no_changed_bit_passes(message in message(), at in any::<prop::sample::Index>(), bit in 0..8_u32) {
            let key = row_key(1, 2, 3);
            let mut row = encode_message(&key, &message);
            let at = at.index(row.len());
            row[at] ^= 1_u8 << bit;
            prop_assert_eq!(decode_message(&key, &row), Err(BadRow));
        }

        #[test]
        fn no_cut_row_passes(message in message(), at in any::<prop::sample::Index>()) {
            let key = row_key(1, 2, 3);
            let row = encode_message(&key, &message);
            prop_assert_eq!(decode_message(&key, &row[..at.index(row.len())]), Err(BadRow));
        }
    }

    #[test]
    fn a_row_under_another_key_does_not_pass() {
        let row = encode_numbers(b"a", &[1, 2]);
        assert_eq!(decode_numbers::<2>(b"a", &row), Ok([1, 2]));
        assert_eq!(decode_numbers::<2>(b"b", &row), Err(BadRow));
    }

    #[test]
    fn a_jumping_wall_clock_never_lengthens_a_delay() {
        let row = StateRow {
            due_millis: 10_000,
            delay_millis: 5_000,
            ..StateRow::default()
        };
        let check = |wall, left| assert_eq!(row.left_millis(wall), left);
        check(5_000, 5_000);
        check(9_000, 1_000);
        check(10_000, 0);
        check(u64::MAX, 0);
        check(0, 5_000);
    }
}
