//! A stored message: what a producer published, and how it becomes a delivery.

use std::time::{Duration, UNIX_EPOCH};

use acquit_actors::model::{
    Attempt, Delivery, Generation, Headers, MessageId, Outgoing, PartitionId, QueueName,
    ReplayNumber, names,
};
use bytes::Bytes;

use super::core::Tally;

/// What is stored of one published message.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Message {
    /// The producer's id; without one the store's own stands for it.
    pub(crate) id: Option<MessageId>,
    pub(crate) key: Option<String>,
    pub(crate) content_type: Option<String>,
    pub(crate) correlation_id: Option<String>,
    pub(crate) headers: Headers,
    pub(crate) published_millis: u64,
    pub(crate) body: Bytes,
}

impl Message {
    /// Takes what is stored out of what is published.
    pub(crate) fn of(outgoing: Outgoing, published_millis: u64) -> Self {
        Self {
            id: outgoing.id,
            key: outgoing.key,
            content_type: outgoing.content_type,
            correlation_id: outgoing.correlation_id,
            headers: outgoing.headers,
            published_millis,
            body: outgoing.body,
        }
    }

    /// About how much memory it takes: body, names and values.
    pub(crate) fn weight(&self) -> usize {
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let headers: usize = self
            .headers
            .iter()
            .map(|(name, value)| {
                use acquit_actors::model::HeaderValue::{Bytes, Text};
                let value = match value {
                    Text(text) => text.len(),
                    Bytes(bytes) => bytes.len(),
                    _ => 8,
                };
                name.len() + value + 16
            })
            .sum();
        let id = self.id.as_ref().map_or(0, |id| id.as_str().len());
        128 + id
            + text(&self.key)
            + text(&self.content_type)
            + text(&self.correlation_id)
            + headers
            + self.body.len()
    }

    /// Makes the delivery a handler sees.
    pub(crate) fn delivery(&self, at: &Place<'_>, seq: u64, tally: Tally) -> Delivery {
        let mut delivery = Delivery::new(
            at.queue.clone(),
            at.partition,
            at.generation,
            self.body.clone(),
        );
        delivery.id = Some(match &self.id {
            Some(id) => id.clone(),
            None => own_id(at.id_prefix, seq),
        });
        delivery.sequence = Some(seq);
        delivery.key.clone_from(&self.key);
        delivery.content_type.clone_from(&self.content_type);
        delivery.correlation_id.clone_from(&self.correlation_id);
        delivery.published_at =
            UNIX_EPOCH.checked_add(Duration::from_millis(self.published_millis));
        // The store's count alone: a header that a producer set, or that stands on a dead letter
        // which is consumed again, raises nothing.
        delivery.attempt = Attempt::new(tally.failures.saturating_add(1));
        delivery.replay = ReplayNumber(self.count_of(names::REPLAYED).unwrap_or(0));
        delivery.delivery_count = Some(tally.deliveries);
        delivery.returns = tally.returns;
        delivery.redelivered = tally.deliveries > 1;
        if !self.headers.is_empty() {
            delivery.headers = self.headers.clone();
        }
        delivery
    }

    /// Reads a header of ours that counts; what is no number counts as absent.
    fn count_of(&self, name: &str) -> Option<u32> {
        u32::try_from(self.headers.get(name)?.as_int()?).ok()
    }
}

/// Where and to whom a message is handed out.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    pub(crate) queue: &'a QueueName,
    pub(crate) partition: PartitionId,
    pub(crate) generation: Generation,
    /// The store's own ids up to the sequence.
    pub(crate) id_prefix: &'a str,
}

/// The store's own id of a message, `queue/partition/sequence`; never given twice. `prefix` is
/// all before the sequence. One allocation: it is made for every hand-out.
pub(crate) fn own_id(prefix: &str, seq: u64) -> MessageId {
    const DIGITS: usize = 20;
    let mut buffer = [0_u8; 128];
    let (mut at, mut left) = (buffer.len(), seq);
    loop {
        at -= 1;
        buffer[at] = b'0' + u8::try_from(left % 10).unwrap_or(0);
        left /= 10;
        if left == 0 {
            break;
        }
    }
    let start = at.checked_sub(prefix.len());
    match start.filter(|_| prefix.len() <= buffer.len() - DIGITS) {
        Some(start) => {
            buffer[start..at].copy_from_slice(prefix.as_bytes());
            std::str::from_utf8(&buffer[start..])
                .map_or_else(|_| format!("{prefix}{seq}").into(), MessageId::new)
        }
        None => format!("{prefix}{seq}").into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivery_of(headers: Headers, failures: u32) -> Delivery {
        let outgoing = Outgoing::new("q".into(), "body").with_headers(headers);
        let place = Place {
            queue: &"q".into(),
            partition: PartitionId(3),
            generation: Generation(1),
            id_prefix: "q/3/",
        };
        let tally = Tally {
            failures,
            deliveries: failures + 1,
            returns: 4,
        };
        Message::of(outgoing, 5).delivery(&place, 7, tally)
    }

    #[test]
    fn the_attempt_is_the_store_s_count_whatever_a_header_says() {
        let check = |header: Option<&str>, failures, expected| {
            let mut headers = Headers::new();
            if let Some(header) = header {
                headers.set(names::ATTEMPT, header);
            }
            assert_eq!(delivery_of(headers, failures).attempt.get(), expected);
        };
        check(None, 0, 1);
        check(None, 2, 3);
        check(Some("3"), 0, 1);
        check(Some("3"), 2, 3);
        check(Some("forged"), 0, 1);
        check(Some("-4"), 1, 2);
        check(Some("99999999999999999999"), 0, 1);
    }

    #[test]
    fn an_own_id_is_prefix_and_number_however_long() {
        let check = |prefix: &str, seq| {
            assert_eq!(own_id(prefix, seq).as_str(), format!("{prefix}{seq}"));
        };
        check("q/0/", 0);
        check("q/0/", u64::MAX);
        for length in 100..140 {
            check(&"ü".repeat(length / 2), u64::MAX);
            check(&"q".repeat(length), 7);
        }
    }

    #[test]
    fn a_message_without_an_id_gets_the_store_s_own() {
        let delivery = delivery_of(Headers::new(), 1);
        assert_eq!(delivery.id, Some("q/3/7".into()));
        assert!(delivery.redelivered);
        assert_eq!(delivery.delivery_count, Some(2));
    }
}
