//! Messages between RabbitMQ's form and ours: pure.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use acquit_actors::model::{
    Attempt, Delivery, Generation, HeaderValue, Headers, MessageId, Outgoing, PartitionId,
    Properties, QueueName, ReplayNumber, names,
};
use bytes::Bytes;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, ByteArray, FieldArray, FieldTable, LongString, ShortString};

/// Tables and lists nested deeper than this are cut off: what reads them is not asked to recurse
/// without an end.
const DEPTH_MAX: usize = 16;

/// The most room that the headers of a publish may take. A content header has to fit one frame,
/// 128 KiB; one that does not closes the connection.
const HEADER_BYTES_MAX: usize = 96 << 10;

/// A frame with a content header and no text: its envelope (8 bytes), class, weight, size and flags
/// (14), delivery mode, priority and timestamp (10).
const HEADER_FRAME_MIN: usize = 32;

/// How often a broker has handed a message out before this time.
const DELIVERY_COUNT: &str = "x-delivery-count";

/// Headers that the broker writes, or obeys, and that a copy must not repeat: a copied `CC` routes
/// again, a copied `x-death` makes the broker believe in a loop.
const NOT_COPIED: &[&str] = &[
    "x-death",
    "x-first-death-exchange",
    "x-first-death-queue",
    "x-first-death-reason",
    "x-last-death-exchange",
    "x-last-death-queue",
    "x-last-death-reason",
    DELIVERY_COUNT,
    "x-acquired-count",
    "x-acquit-publish",
    "CC",
    "BCC",
];

/// Where a delivery came from.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) queue: QueueName,
    pub(super) partition: PartitionId,
    pub(super) generation: Generation,
}

/// Reads what the broker handed out.
pub(super) fn delivery(
    place: &Place,
    properties: &BasicProperties,
    body: Vec<u8>,
    redelivered: bool,
) -> Delivery {
    let mut delivery = Delivery::new(
        place.queue.clone(),
        place.partition,
        place.generation,
        Bytes::from(body),
    );
    delivery.redelivered = redelivered;
    delivery.id = properties
        .message_id()
        .as_ref()
        .filter(|id| !id.as_str().is_empty())
        .map(|id| MessageId::new(id.as_str()));
    delivery.content_type = text(properties.content_type());
    delivery.correlation_id = text(properties.correlation_id());
    delivery.published_at = properties
        .timestamp()
        .and_then(|seconds| UNIX_EPOCH.checked_add(Duration::from_secs(seconds)));
    delivery.properties = rest(properties);
    if let Some(table) = properties.headers() {
        delivery.headers = headers(table, 0);
        let read = |name: &str| delivery.headers.get(name).and_then(HeaderValue::as_int);
        let small = |number: i64| u32::try_from(number).ok();
        delivery.attempt = read(names::ATTEMPT)
            .and_then(small)
            .map_or(Attempt::FIRST, Attempt::new);
        delivery.replay = ReplayNumber(read(names::REPLAYED).and_then(small).unwrap_or(0));
        delivery.key = delivery
            .headers
            .get(names::KEY)
            .and_then(HeaderValue::as_str)
            .map(str::to_owned);
        // It counts the times before this one. A broker that counts any says "redelivered" too:
        // without that the number is somebody else's, carried over with a message that was moved,
        // or forged.
        delivery.delivery_count = read(DELIVERY_COUNT)
            .filter(|_| redelivered)
            .and_then(small)
            .map(|before| before.saturating_add(1));
    }
    delivery
}

fn text(value: &Option<ShortString>) -> Option<String> {
    value.as_ref().map(|text| text.as_str().to_owned())
}

fn rest(properties: &BasicProperties) -> Option<Box<Properties>> {
    let rest = Properties {
        content_encoding: text(properties.content_encoding()),
        reply_to: text(properties.reply_to()),
        kind: text(properties.kind()),
        app_id: text(properties.app_id()),
        user_id: text(properties.user_id()),
        priority: *properties.priority(),
    };
    (rest != Properties::default()).then(|| Box::new(rest))
}

fn headers(table: &FieldTable, depth: usize) -> Headers {
    let pairs = table.inner().iter();
    pairs
        .map(|(name, value)| (name.as_str().to_owned(), header(value, depth)))
        .collect()
}

fn header(value: &AMQPValue, depth: usize) -> HeaderValue {
    match value {
        AMQPValue::Boolean(truth) => HeaderValue::Bool(*truth),
        AMQPValue::ShortShortInt(number) => HeaderValue::Int(i64::from(*number)),
        AMQPValue::ShortShortUInt(number) => HeaderValue::Int(i64::from(*number)),
        AMQPValue::ShortInt(number) => HeaderValue::Int(i64::from(*number)),
        AMQPValue::ShortUInt(number) => HeaderValue::Int(i64::from(*number)),
        AMQPValue::LongInt(number) => HeaderValue::Int(i64::from(*number)),
        AMQPValue::LongUInt(number) => HeaderValue::Int(i64::from(*number)),
        AMQPValue::LongLongInt(number) => HeaderValue::Int(*number),
        AMQPValue::Float(number) => HeaderValue::Float(f64::from(*number)),
        AMQPValue::Double(number) => HeaderValue::Float(*number),
        AMQPValue::DecimalValue(decimal) => {
            HeaderValue::Float(f64::from(decimal.value) / 10_f64.powi(i32::from(decimal.scale)))
        }
        AMQPValue::ShortString(text) => HeaderValue::Text(text.as_str().to_owned()),
        AMQPValue::LongString(text) => match std::str::from_utf8(text.as_bytes()) {
            Ok(text) => HeaderValue::Text(text.to_owned()),
            Err(_) => HeaderValue::Bytes(Bytes::copy_from_slice(text.as_bytes())),
        },
        AMQPValue::ByteArray(bytes) => HeaderValue::Bytes(Bytes::copy_from_slice(bytes.as_slice())),
        AMQPValue::Timestamp(seconds) => HeaderValue::Time(*seconds),
        AMQPValue::FieldArray(_) | AMQPValue::FieldTable(_) if depth >= DEPTH_MAX => {
            HeaderValue::Null
        }
        AMQPValue::FieldArray(list) => {
            let values = list.as_slice().iter();
            HeaderValue::List(values.map(|value| header(value, depth + 1)).collect())
        }
        AMQPValue::FieldTable(table) => HeaderValue::Table(headers(table, depth + 1)),
        AMQPValue::Void => HeaderValue::Null,
    }
}

/// Why a message cannot be published whatever the broker says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unpublishable(pub(super) String);

/// Writes the properties of what we publish, which have to fit one frame of `frame_max` bytes. Every message is persistent and has an id. The
/// publisher's own user, expiration and what only the broker may write are never copied: each of
/// them makes a broker refuse the copy or route it twice.
pub(super) fn properties(
    message: &Outgoing,
    id: &ShortString,
    frame_max: usize,
) -> Result<BasicProperties, Unpublishable> {
    let mut properties = BasicProperties::default()
        .with_delivery_mode(2)
        .with_message_id(id.clone());
    if let Some(text) = &message.content_type {
        properties = properties.with_content_type(short("content type", text)?);
    }
    if let Some(text) = &message.correlation_id {
        properties = properties.with_correlation_id(short("correlation id", text)?);
    }
    let at = message.published_at.unwrap_or_else(SystemTime::now);
    if let Ok(since) = at.duration_since(UNIX_EPOCH) {
        properties = properties.with_timestamp(since.as_secs());
    }
    let mut table = BTreeMap::new();
    // A retry or a replay goes to the partition that the key chose.
    if let Some(key) = &message.key {
        let text = LongString::from(key.as_str());
        table.insert(
            short("header name", names::KEY)?,
            AMQPValue::LongString(text),
        );
    }
    if let Some(rest) = &message.properties {
        if let Some(text) = &rest.content_encoding {
            properties = properties.with_content_encoding(short("content encoding", text)?);
        }
        if let Some(text) = &rest.reply_to {
            properties = properties.with_reply_to(short("reply-to", text)?);
        }
        if let Some(text) = &rest.kind {
            properties = properties.with_type(short("type", text)?);
        }
        if let Some(text) = &rest.app_id {
            properties = properties.with_app_id(short("app id", text)?);
        }
        if let Some(priority) = rest.priority {
            properties = properties.with_priority(priority);
        }
        // The broker takes it from its owner only; who published the original stays readable.
        if let Some(user) = &rest.user_id {
            let text = LongString::from(user.as_str());
            table.insert(
                short("header name", "x-acquit-origin-user")?,
                AMQPValue::LongString(text),
            );
        }
    }
    for (name, header) in message.headers.iter() {
        if !NOT_COPIED.contains(&name) {
            table.insert(short("header name", name)?, value(header, 0)?);
        }
    }
    let bytes: usize = table
        .iter()
        .map(|(name, value)| name.as_str().len() + 1 + size(value))
        .sum();
    if bytes > HEADER_BYTES_MAX {
        return Err(Unpublishable(format!(
            "its headers take {bytes} bytes; {HEADER_BYTES_MAX} fit into a frame"
        )));
    }
    if !table.is_empty() {
        properties = properties.with_headers(FieldTable::from(table));
    }
    let bytes = HEADER_FRAME_MIN + texts(&properties) + 4 + bytes;
    if bytes > frame_max {
        return Err(Unpublishable(format!(
            "its properties and headers take {bytes} bytes; the broker's frames take {frame_max}"
        )));
    }
    Ok(properties)
}

/// How many bytes the properties that are short strings take.
fn texts(properties: &BasicProperties) -> usize {
    let texts = [
        properties.content_type(),
        properties.content_encoding(),
        properties.correlation_id(),
        properties.reply_to(),
        properties.message_id(),
        properties.kind(),
        properties.app_id(),
    ];
    let texts = texts.into_iter().flatten();
    texts.map(|text| 1 + text.as_str().len()).sum()
}

/// Makes a short string, of at most 255 bytes.
pub(super) fn short(what: &str, text: &str) -> Result<ShortString, Unpublishable> {
    ShortString::try_new(text).map_err(|_| {
        let bytes = text.len();
        Unpublishable(format!("its {what} has {bytes} bytes; AMQP takes 255"))
    })
}

fn value(header: &HeaderValue, depth: usize) -> Result<AMQPValue, Unpublishable> {
    if depth > DEPTH_MAX {
        return Ok(AMQPValue::Void);
    }
    Ok(match header {
        HeaderValue::Bool(truth) => AMQPValue::Boolean(*truth),
        HeaderValue::Int(number) => AMQPValue::LongLongInt(*number),
        HeaderValue::Float(number) => AMQPValue::Double(*number),
        HeaderValue::Text(text) => AMQPValue::LongString(LongString::from(text.as_str())),
        HeaderValue::Bytes(bytes) => AMQPValue::ByteArray(ByteArray::from(&bytes[..])),
        HeaderValue::Time(seconds) => AMQPValue::Timestamp(*seconds),
        HeaderValue::List(list) => {
            let values: Result<Vec<_>, _> = list.iter().map(|one| value(one, depth + 1)).collect();
            AMQPValue::FieldArray(FieldArray::from(values?))
        }
        HeaderValue::Table(headers) => {
            let mut table = BTreeMap::new();
            for (name, header) in headers.iter() {
                table.insert(short("header name", name)?, value(header, depth + 1)?);
            }
            AMQPValue::FieldTable(FieldTable::from(table))
        }
        _ => AMQPValue::Void,
    })
}

/// About how many bytes a value takes on the wire.
fn size(value: &AMQPValue) -> usize {
    match value {
        AMQPValue::ShortString(text) => 2 + text.as_str().len(),
        AMQPValue::LongString(text) => 5 + text.len(),
        AMQPValue::ByteArray(bytes) => 5 + bytes.len(),
        AMQPValue::FieldArray(list) => 5 + list.as_slice().iter().map(size).sum::<usize>(),
        AMQPValue::FieldTable(table) => {
            let pairs = table.inner().iter();
            5 + pairs
                .map(|(name, value)| 1 + name.as_str().len() + size(value))
                .sum::<usize>()
        }
        _ => 9,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> Place {
        Place {
            queue: "q".into(),
            partition: PartitionId(0),
            generation: Generation(3),
        }
    }

    fn read(table: &[(&str, AMQPValue)]) -> Delivery {
        read_as(table, false)
    }

    fn read_as(table: &[(&str, AMQPValue)], redelivered: bool) -> Delivery {
        let table: BTreeMap<ShortString, AMQPValue> = table
            .iter()
            .map(|(name, value)| (ShortString::from(*name), value.clone()))
            .collect();
        let properties = BasicProperties::default().with_headers(FieldTable::from(table));
        delivery(&place(), &properties, Vec::new(), redelivered)
    }

    #[test]
    fn a_message_without_any_property_is_bytes_and_a_first_attempt() {
        let body = vec![0x80, 0x91, 0xFF];
        let read = delivery(&place(), &BasicProperties::default(), body.clone(), true);
        assert_eq!(&read.body[..], body);
        assert_eq!((read.id, read.attempt), (None, Attempt::FIRST));
        assert_eq!((read.delivery_count, read.redelivered), (None, true));
        assert!(read.headers.is_empty());
    }

    #[test]
    fn forged_or_unreadable_counters_read_as_the_first_attempt() {
        let text = |text: &str| AMQPValue::LongString(LongString::from(text));
        let cases = [
            (AMQPValue::LongInt(-5), 1),
            (AMQPValue::LongLongInt(i64::MAX), 1),
            (text("abc"), 1),
            (text(" 3 "), 3),
            (AMQPValue::ShortShortInt(4), 4),
            (AMQPValue::Void, 1),
            (AMQPValue::LongInt(0), 1),
        ];
        for (value, attempt) in cases {
            let read = read(&[(names::ATTEMPT, value.clone())]);
            assert_eq!(read.attempt.get(), attempt, "{value:?}");
        }
    }

    #[test]
    fn a_count_of_hand_outs_is_believed_of_a_redelivery_alone() {
        let header = |count| [(DELIVERY_COUNT, AMQPValue::LongLongInt(count))];
        let counted = read_as(&header(2), true);
        assert_eq!(counted.delivery_count, Some(3), "this time included");
        for forged in [0, 2, 1_000_000] {
            let read = read(&header(forged));
            assert_eq!(read.delivery_count, None, "{forged}");
        }
    }

    #[test]
    fn a_copy_keeps_what_means_something_and_drops_what_a_broker_obeys() {
        let death = AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::LongInt(1)]));
        let nested = AMQPValue::FieldTable(FieldTable::from(BTreeMap::from([(
            ShortString::from("deep"),
            AMQPValue::Timestamp(7),
        )])));
        let table = BTreeMap::from([
            (ShortString::from("x-death"), death.clone()),
            (ShortString::from("CC"), death),
            (ShortString::from("nested"), nested.clone()),
        ]);
        let original = BasicProperties::default()
            .with_headers(FieldTable::from(table))
            .with_user_id("alice".into())
            .with_expiration("abc".into())
            .with_type("t".into())
            .with_priority(255)
            .with_content_encoding("gzip".into());
        let read = delivery(&place(), &original, Vec::new(), false);
        let mut copy = Outgoing::new("r".into(), read.body.clone());
        copy.headers = read.headers.clone();
        copy.properties = read.properties.clone();
        let written = properties(&copy, &ShortString::from("id"), 131_072).unwrap();
        assert_eq!((written.user_id(), written.expiration()), (&None, &None));
        assert_eq!(written.kind(), &Some(ShortString::from("t")));
        assert_eq!(written.priority(), &Some(255));
        assert_eq!(written.delivery_mode(), &Some(2));
        let table = written.headers().as_ref().unwrap().inner();
        let names: Vec<&str> = table.keys().map(ShortString::as_str).collect();
        assert_eq!(names, ["nested", "x-acquit-origin-user"]);
        assert_eq!(table.get("nested"), Some(&nested));
    }

    #[test]
    fn a_key_travels_with_its_message() {
        let message = Outgoing::new("q".into(), "").with_key("k");
        let written = properties(&message, &ShortString::from("id"), 131_072).unwrap();
        let read = delivery(&place(), &written, Vec::new(), false);
        assert_eq!(read.key.as_deref(), Some("k"));
    }

    #[test]
    fn what_does_not_fit_a_frame_or_a_short_string_is_refused_before_it_is_sent() {
        let mut message = Outgoing::new("q".into(), "");
        message.headers.set("long", "x".repeat(HEADER_BYTES_MAX));
        let id = ShortString::from("id");
        let refused = properties(&message, &id, 131_072).unwrap_err();
        assert!(refused.0.contains("98304 fit into a frame"), "{refused:?}");
        let mut message = Outgoing::new("q".into(), "");
        message.correlation_id = Some("c".repeat(256));
        let refused = properties(&message, &id, 131_072).unwrap_err();
        assert_eq!(
            refused.0,
            "its correlation id has 256 bytes; AMQP takes 255"
        );
        let mut message = Outgoing::new("q".into(), "");
        message.headers.set("long", "x".repeat(4090));
        assert!(properties(&message, &id, 131_072).is_ok());
        let refused = properties(&message, &id, 4096).unwrap_err();
        assert!(
            refused.0.ends_with("the broker's frames take 4096"),
            "{refused:?}"
        );
    }

    #[test]
    fn tables_without_an_end_are_cut() {
        let mut value = AMQPValue::Boolean(true);
        for _ in 0..1000 {
            value = AMQPValue::FieldArray(FieldArray::from(vec![value]));
        }
        let read = read(&[("deep", value)]);
        let (mut depth, mut at) = (0, read.headers.get("deep"));
        while let Some(HeaderValue::List(list)) = at {
            depth += 1;
            at = list.first();
        }
        assert_eq!(depth, DEPTH_MAX);
        assert_eq!(at, Some(&HeaderValue::Null));
    }
}
