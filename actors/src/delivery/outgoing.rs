//! What a delivery publishes before it is settled, as pure functions of what is known about it.

use std::time::SystemTime;

use bytes::Bytes;

use crate::consumer::ConsumerSpec;
use crate::model::{
    Delivery, HeaderValue, MessageId, Outgoing, Publication, QueueName, RejectReason, names,
};

/// The longest error text that goes into a header; a header past a frame's size closes a RabbitMQ
/// connection.
const ERROR_BYTES_MAX: usize = 4096;

/// The most headers that a trimmed dead letter keeps of the original.
const TRIMMED_HEADERS_MAX: usize = 16;

/// The longest header value that a trimmed dead letter keeps.
const TRIMMED_VALUE_MAX: usize = 256;

/// What is known when something is published.
pub(crate) struct Known<'a> {
    pub(crate) delivery: &'a Delivery,
    pub(crate) spec: &'a ConsumerSpec,
    pub(crate) result: Option<&'a Bytes>,
    pub(crate) error: Option<&'a str>,
    pub(crate) first_error: Option<&'a str>,
    pub(crate) reason: Option<RejectReason>,
    pub(crate) backoff: std::time::Duration,
    pub(crate) now: SystemTime,
}

/// Builds what goes out. `None` where there is nowhere to send it: the machine's rules and the
/// consumer's spec disagree, which the caller treats as refused.
pub(crate) fn build(what: Publication, known: &Known<'_>) -> Option<Outgoing> {
    match what {
        Publication::Reply => reply(known),
        Publication::RetryCopy => Some(retry_copy(known)),
        Publication::DeadLetter { trimmed } => dead_letter(known, trimmed),
        // A raw consumer answers nothing but results; a profile that does builds its own bytes.
        Publication::FailureReply => None,
        Publication::Quarantine => dead_letter(known, false),
    }
}

fn reply(known: &Known<'_>) -> Option<Outgoing> {
    let queue = known.spec.reply_queue.clone()?;
    let mut out = Outgoing::new(queue, known.result.cloned().unwrap_or_default());
    let id = known.delivery.id.as_ref();
    out.correlation_id = id.map(|id| id.as_str().to_owned());
    out.id = Some(derived_id(id, "reply"));
    out.key = known.delivery.key.clone();
    out.headers
        .set(names::ORIGIN_QUEUE, known.delivery.queue.as_str());
    Some(out)
}

fn retry_copy(known: &Known<'_>) -> Outgoing {
    let mut out = copy_of(known, known.delivery.queue.clone());
    out.partition = Some(known.delivery.partition);
    out.delay = Some(known.backoff);
    let next = i64::from(known.delivery.attempt.next().get());
    out.headers.set(names::ATTEMPT, next);
    set_errors(&mut out, known);
    out
}

fn dead_letter(known: &Known<'_>, trimmed: bool) -> Option<Outgoing> {
    let queue = known.spec.dead_letter_queue.clone()?;
    let mut out = copy_of(known, queue);
    if trimmed {
        trim(&mut out);
    }
    let reason = known.reason.unwrap_or(RejectReason::Exhausted);
    out.headers.set(names::REASON, reason.as_str());
    out.headers
        .set(names::ATTEMPT, i64::from(known.delivery.attempt.get()));
    out.headers
        .set(names::ORIGIN_QUEUE, known.delivery.queue.as_str());
    if let Some(at) = known.delivery.published_at {
        out.headers.set(names::ORIGIN_TIME, rfc3339(at));
    }
    out.headers.set(names::DIED_AT, rfc3339(known.now));
    set_errors(&mut out, known);
    Some(out)
}

fn copy_of(known: &Known<'_>, queue: QueueName) -> Outgoing {
    let delivery = known.delivery;
    let mut out = Outgoing::new(queue, delivery.body.clone());
    out.id = Some(
        delivery
            .id
            .clone()
            .unwrap_or_else(|| derived_id(None, "copy")),
    );
    out.key = delivery.key.clone();
    out.headers = delivery.headers.clone();
    out.content_type = delivery.content_type.clone();
    out.correlation_id = delivery.correlation_id.clone();
    out.published_at = delivery.published_at;
    out.properties = delivery.properties.clone();
    out
}

fn set_errors(out: &mut Outgoing, known: &Known<'_>) {
    let Some(error) = known.error else { return };
    let error = cut(error, ERROR_BYTES_MAX);
    if out.headers.get(names::FIRST_ERROR).is_none() {
        out.headers
            .set(names::FIRST_ERROR, known.first_error.unwrap_or(error));
    }
    out.headers.set(names::LAST_ERROR, error);
}

/// Cuts a copy down to what every broker takes: the body goes, long and many headers go.
fn trim(out: &mut Outgoing) {
    out.headers
        .set("x-acquit-body-bytes", out.body.len() as i64);
    out.body = Bytes::new();
    out.headers = out
        .headers
        .iter()
        .filter(|(name, value)| {
            name.len() <= TRIMMED_VALUE_MAX
                && match value {
                    HeaderValue::Text(text) => text.len() <= TRIMMED_VALUE_MAX,
                    HeaderValue::Bytes(bytes) => bytes.len() <= TRIMMED_VALUE_MAX,
                    _ => true,
                }
        })
        .take(TRIMMED_HEADERS_MAX)
        .map(|(name, value)| (name.to_owned(), value.clone()))
        .collect();
}

/// Cuts text at a character boundary.
pub(crate) fn cut(text: &str, bytes_max: usize) -> &str {
    if text.len() <= bytes_max {
        return text;
    }
    let end = (0..=bytes_max)
        .rev()
        .find(|&at| text.is_char_boundary(at))
        .unwrap_or(0);
    &text[..end]
}

/// AMQP takes 255 bytes of an id. What is longer ends in the hash of the whole, so that it still is
/// the same at every try and another for every message.
fn derived_id(id: Option<&MessageId>, kind: &str) -> MessageId {
    const ID_BYTES_MAX: usize = 255;
    match id {
        Some(id) if id.as_str().len() + 1 + kind.len() > ID_BYTES_MAX => {
            let hash = xxhash_rust::xxh3::xxh3_128(id.as_str().as_bytes());
            let head = cut(id.as_str(), 200);
            MessageId::from(format!("{head}~{hash:032x}:{kind}"))
        }
        Some(id) => MessageId::from(format!("{id}:{kind}")),
        None => MessageId::from(format!("{:032x}:{kind}", rand::random::<u128>())),
    }
}

/// Writes a moment as RFC 3339 in UTC, to the second; what lies before 1970 reads as 1970.
fn rfc3339(at: SystemTime) -> String {
    humantime::format_rfc3339_seconds(at.max(SystemTime::UNIX_EPOCH)).to_string()
}
