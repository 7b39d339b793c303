//! One line of a feed: JSON to message. Pure; reads no file and keeps no position.
//!
//! Values are taken as they are written: a body that is not a string keeps the order of its keys
//! and every digit of its numbers, and nesting is walked over without recursion.

use std::fmt;

use acquit_actors::model::{HeaderValue, Headers};
use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use thiserror::Error;

/// The longest line, without its end, in bytes: one line is held in memory. A longer one is bad.
pub const LINE_MAX: usize = 16 * 1024 * 1024;

/// The fields that a line may have.
const FIELDS: [&str; 5] = ["body", "body-base64", "key", "id", "headers"];

/// With or without padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// What a line says.
#[derive(Debug, PartialEq)]
pub(super) struct FedLine {
    pub(super) body: Bytes,
    pub(super) key: Option<String>,
    pub(super) id: Option<String>,
    pub(super) headers: Headers,
}

/// Why a line is not a message. The texts never hold what the line says, with one exception: the
/// name of a field that is nearly one of ours.
#[derive(Debug, PartialEq, Eq, Error)]
pub(super) enum LineError {
    #[error("longer than {} MiB", LINE_MAX / (1024 * 1024))]
    TooLong,
    #[error("byte {0} is not UTF-8")]
    NotUtf8(usize),
    #[error("not JSON: {reason} at byte {byte}")]
    NotJson { reason: String, byte: usize },
    #[error(
        "expected an object such as {{\"body\": \"text\"}}, found {0}; to feed it as it is, put it \
         into `body`"
    )]
    NotAnObject(&'static str),
    #[error("unknown field `{found}`; did you mean `{nearest}`?")]
    MisspeltField {
        found: String,
        nearest: &'static str,
    },
    #[error("unknown field, number {0} of the object; known are {known}", known = FIELDS.join(", "))]
    UnknownField(usize),
    #[error("`{0}` is there twice")]
    Twice(&'static str),
    #[error("has neither `body` nor `body-base64`")]
    NoBody,
    #[error("has both `body` and `body-base64`")]
    TwoBodies,
    #[error("`{field}` is {found}, expected {expected}")]
    WrongType {
        field: &'static str,
        found: &'static str,
        expected: &'static str,
    },
    #[error("`{0}` is empty; leave it out to have one made")]
    Empty(&'static str),
    #[error("`{0}` holds an escape that is no character")]
    NotText(&'static str),
    #[error("`body-base64` is not base64: {0}")]
    NotBase64(Base64Fault),
    #[error("header number {number} is {found}, expected a string, a number, true, false or null")]
    NestedHeader { number: usize, found: &'static str },
    #[error("header number {0} is a number that does not fit into 64 bits; write it as a string")]
    HeaderNumber(usize),
}

/// Where base64 ends to be base64.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Base64Fault {
    Character(usize),
    Length,
    Padding,
}

impl fmt::Display for Base64Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Character(at) => write!(f, "its byte {at} does not belong there"),
            Self::Length => f.write_str("its length is wrong, as if its end were missing"),
            Self::Padding => f.write_str("its padding is wrong"),
        }
    }
}

/// Reads a line that is not empty.
pub(super) fn parse(line: &[u8]) -> Result<FedLine, LineError> {
    let text =
        std::str::from_utf8(line).map_err(|error| LineError::NotUtf8(error.valid_up_to() + 1))?;
    // First of all: is it JSON? What follows needs to look at the outer two levels only.
    let whole: &RawValue = serde_json::from_str(text).map_err(|error| not_json(&error))?;
    match kind(whole) {
        "an object" => fields(whole)?.message(),
        other => Err(LineError::NotAnObject(other)),
    }
}

/// The fields as they are written.
#[derive(Default)]
struct Fields<'a>([Option<&'a RawValue>; FIELDS.len()]);

impl Fields<'_> {
    fn message(self) -> Result<FedLine, LineError> {
        let [body, base64, key, id, headers] = self.0;
        // To leave out an optional field and to set it to null is the same.
        let optional = |field: Option<&'_ RawValue>| field.is_some_and(|raw| raw.get() != "null");
        let body = match (body, base64) {
            (Some(_), Some(_)) => return Err(LineError::TwoBodies),
            (None, None) => return Err(LineError::NoBody),
            (Some(raw), None) if kind(raw) == "a string" => text("body", raw)?.into(),
            (Some(raw), None) => compact(raw.get()),
            (None, Some(raw)) => decode(&text("body-base64", raw)?)?,
        };
        let key = key.filter(|raw| optional(Some(raw)));
        let id = id.filter(|raw| optional(Some(raw)));
        let headers = headers.filter(|raw| optional(Some(raw)));
        let id = id.map(|raw| text("id", raw)).transpose()?;
        if id.as_deref() == Some("") {
            return Err(LineError::Empty("id"));
        }
        Ok(FedLine {
            body,
            key: key.map(|raw| text("key", raw)).transpose()?,
            id,
            headers: headers.map(read_headers).transpose()?.unwrap_or_default(),
        })
    }
}

fn fields(object: &RawValue) -> Result<Fields<'_>, LineError> {
    let mut fields = Fields::default();
    let mut number = 0;
    each_entry(object, "a field's name", |name, value| {
        number += 1;
        let at = FIELDS.iter().position(|field| *field == name);
        let at = at.ok_or_else(|| unknown_field(name, number))?;
        match fields.0[at].replace(value) {
            None => Ok(()),
            Some(_) => Err(LineError::Twice(FIELDS[at])),
        }
    })?;
    Ok(fields)
}

fn read_headers(raw: &RawValue) -> Result<Headers, LineError> {
    if kind(raw) != "an object" {
        return Err(LineError::WrongType {
            field: "headers",
            found: kind(raw),
            expected: "an object of plain values",
        });
    }
    let mut pairs = Vec::new();
    each_entry(raw, "headers", |name, value| {
        let value = header(value, pairs.len() + 1)?;
        pairs.push((name.to_owned(), value));
        Ok(())
    })?;
    Ok(pairs.into_iter().collect())
}

fn header(raw: &RawValue, number: usize) -> Result<HeaderValue, LineError> {
    let written = raw.get();
    match kind(raw) {
        "null" => Ok(HeaderValue::Null),
        "true" => Ok(HeaderValue::Bool(true)),
        "false" => Ok(HeaderValue::Bool(false)),
        "a string" => text("headers", raw).map(HeaderValue::Text),
        "a number" if written.contains(['.', 'e', 'E']) => match written.parse::<f64>() {
            Ok(float) if float.is_finite() => Ok(HeaderValue::Float(float)),
            _ => Err(LineError::HeaderNumber(number)),
        },
        "a number" => match written.parse() {
            Ok(int) => Ok(HeaderValue::Int(int)),
            Err(_) => Err(LineError::HeaderNumber(number)),
        },
        found => Err(LineError::NestedHeader { number, found }),
    }
}

/// Gives each entry of an object that is known to be valid JSON to `take`, until it refuses one.
/// `what` is what the names are, should one not be text.
fn each_entry<'a>(
    object: &'a RawValue,
    what: &'static str,
    take: impl FnMut(&str, &'a RawValue) -> Result<(), LineError>,
) -> Result<(), LineError> {
    struct Entries<F>(F);
    impl<'de, F> Visitor<'de> for Entries<F>
    where
        F: FnMut(&str, &'de RawValue) -> Result<(), LineError>,
    {
        type Value = Result<(), LineError>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self::Value, A::Error> {
            while let Some((name, value)) = map.next_entry::<String, &RawValue>()? {
                if let Err(refused) = (self.0)(&name, value) {
                    while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                    return Ok(Err(refused));
                }
            }
            Ok(Ok(()))
        }
    }
    let mut json = serde_json::Deserializer::from_str(object.get());
    match json.deserialize_map(Entries(take)) {
        Ok(taken) => taken,
        // The object was parsed before. What is left to fail is a name with an escape such as
        // \ud800, which only counts once it is made text.
        Err(_) => Err(LineError::NotText(what)),
    }
}

fn unknown_field(name: &str, number: usize) -> LineError {
    let word = name.to_lowercase().replace('_', "-");
    let near = FIELDS
        .iter()
        .map(|field| (strsim::damerau_levenshtein(&word, field), *field))
        .filter(|(distance, field)| *distance <= (field.len() / 3).max(1))
        .min_by_key(|(distance, _)| *distance);
    match near {
        Some((_, nearest)) => LineError::MisspeltField {
            found: name.to_owned(),
            nearest,
        },
        None => LineError::UnknownField(number),
    }
}

/// Takes the reason and the place out of an error about syntax; it holds nothing of the line.
fn not_json(error: &serde_json::Error) -> LineError {
    let text = error.to_string();
    let reason = text.split(" at line ").next().unwrap_or_default();
    LineError::NotJson {
        reason: reason.to_owned(),
        byte: error.column(),
    }
}

/// Names the kind of a value that is valid JSON.
fn kind(raw: &RawValue) -> &'static str {
    match raw.get().as_bytes().first() {
        Some(b'{') => "an object",
        Some(b'[') => "an array",
        Some(b'"') => "a string",
        Some(b't') => "true",
        Some(b'f') => "false",
        Some(b'n') => "null",
        _ => "a number",
    }
}

fn text(field: &'static str, raw: &RawValue) -> Result<String, LineError> {
    match kind(raw) {
        "a string" => serde_json::from_str(raw.get()).map_err(|_| LineError::NotText(field)),
        found => Err(LineError::WrongType {
            field,
            found,
            expected: "a string",
        }),
    }
}

fn decode(text: &str) -> Result<Bytes, LineError> {
    use base64::DecodeError;
    let fault = |error| match error {
        DecodeError::InvalidByte(at, _) | DecodeError::InvalidLastSymbol(at, _) => {
            Base64Fault::Character(at + 1)
        }
        DecodeError::InvalidLength(_) => Base64Fault::Length,
        DecodeError::InvalidPadding => Base64Fault::Padding,
    };
    let decoded = BASE64.decode(text);
    decoded
        .map(Bytes::from)
        .map_err(|error| LineError::NotBase64(fault(error)))
}

/// Drops the white space between the tokens of valid JSON.
fn compact(json: &str) -> Bytes {
    let mut out = Vec::with_capacity(json.len());
    let (mut is_string, mut is_escaped) = (false, false);
    for byte in json.bytes() {
        if is_string {
            is_string = is_escaped || byte != b'"';
            is_escaped = byte == b'\\' && !is_escaped;
        } else if matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
            continue;
        } else {
            is_string = byte == b'"';
        }
        out.push(byte);
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(line: &str) -> String {
        let parsed = parse(line.as_bytes()).unwrap();
        String::from_utf8(parsed.body.to_vec()).unwrap()
    }

    fn refused(line: impl AsRef<[u8]>, expected: &str) {
        let error = parse(line.as_ref()).expect_err(expected).to_string();
        assert_eq!(error, expected);
    }

    #[test]
    fn a_body_of_each_type_is_taken_as_it_is_written() {
        assert_eq!(body(r#"{"body":"text"}"#), "text");
        assert_eq!(body(r#"{"body":""}"#), "");
        assert_eq!(body(r#" { "body" : "a\n\u00fc \"q\"" } "#), "a\nü \"q\"");
        assert_eq!(body(r#"{"b\u006fdy":"x"}"#), "x");
        assert_eq!(body(r#"{"body":null}"#), "null");
        assert_eq!(body(r#"{"body":true}"#), "true");
        assert_eq!(body(r#"{"body": -0.50e+3 }"#), "-0.50e+3");
        let digits = "123456789012345678901234567890.10";
        assert_eq!(body(&format!(r#"{{"body":{digits}}}"#)), digits);
        assert_eq!(
            body(r#"{"body": { "z": [1, 2.0, {}], "a": "x  y\" \\", "a": null }}"#),
            r#"{"z":[1,2.0,{}],"a":"x  y\" \\","a":null}"#
        );
        assert_eq!(body("{\"body\":[\t1 ,\r 2]}"), "[1,2]");
    }

    #[test]
    fn base64_is_taken_with_and_without_padding() {
        assert_eq!(body(r#"{"body-base64":"aGk="}"#), "hi");
        assert_eq!(body(r#"{"body-base64":"aGk"}"#), "hi");
        assert_eq!(body(r#"{"body-base64":""}"#), "");
        let bytes = parse(br#"{"body-base64":"/wA="}"#).unwrap().body;
        assert_eq!(&bytes[..], [0xff, 0]);
    }

    #[test]
    fn base64_that_is_none_is_told_without_its_text() {
        let refused = |text: &str, fault: &str| {
            refused(
                format!(r#"{{"body-base64":"{text}"}}"#),
                &format!("`body-base64` is not base64: {fault}"),
            );
        };
        refused("aG!k", "its byte 3 does not belong there");
        refused("a-_k", "its byte 2 does not belong there");
        refused("aGkxy", "its length is wrong, as if its end were missing");
        refused("aGl=", "its byte 3 does not belong there");
    }

    #[test]
    fn key_id_and_headers_are_optional() {
        let line = r#"{"id":"7","key":"k","body":"b","headers":{"t":"x","i":-9223372036854775808,"f":1.5,"y":true,"z":null,"t":"last"}}"#;
        let parsed = parse(line.as_bytes()).unwrap();
        assert_eq!(parsed.id.as_deref(), Some("7"));
        assert_eq!(parsed.key.as_deref(), Some("k"));
        let headers: Vec<_> = parsed.headers.iter().collect();
        assert_eq!(
            headers,
            [
                ("t", &HeaderValue::Text("last".to_owned())),
                ("i", &HeaderValue::Int(i64::MIN)),
                ("f", &HeaderValue::Float(1.5)),
                ("y", &HeaderValue::Bool(true)),
                ("z", &HeaderValue::Null),
            ]
        );
        let parsed = parse(br#"{"body":"","id":null,"key":null,"headers":null}"#).unwrap();
        assert_eq!(
            (parsed.id, parsed.key, parsed.headers.len()),
            (None, None, 0)
        );
    }

    #[test]
    fn ten_thousand_headers_are_read() {
        let headers: Vec<String> = (0..10_000).map(|n| format!(r#""h{n}":{n}"#)).collect();
        let line = format!(r#"{{"body":"","headers":{{{}}}}}"#, headers.join(","));
        let parsed = parse(line.as_bytes()).unwrap();
        assert_eq!(parsed.headers.len(), 10_000);
        assert_eq!(parsed.headers.get("h9999"), Some(&HeaderValue::Int(9999)));
    }

    #[test]
    fn what_is_no_message_is_refused_by_name_and_without_content() {
        refused(b"{\"body\":\"\xff\"}", "byte 10 is not UTF-8");
        refused("secret", "not JSON: expected value at byte 1");
        refused(
            r#"{"body":"x""#,
            "not JSON: EOF while parsing an object at byte 11",
        );
        refused(
            r#"{"body":"x"}{}"#,
            "not JSON: trailing characters at byte 13",
        );
        refused(
            r#""secret""#,
            "expected an object such as {\"body\": \"text\"}, found a string; to feed it as it is, put it into `body`",
        );
        refused("{}", "has neither `body` nor `body-base64`");
        refused(
            r#"{"body":"","body-base64":""}"#,
            "has both `body` and `body-base64`",
        );
        refused(r#"{"body":1,"body":2}"#, "`body` is there twice");
        refused(
            r#"{"body":1,"id":7}"#,
            "`id` is a number, expected a string",
        );
        refused(
            r#"{"body":1,"key":["k"]}"#,
            "`key` is an array, expected a string",
        );
        refused(
            r#"{"body-base64":null}"#,
            "`body-base64` is null, expected a string",
        );
        refused(
            r#"{"body":1,"id":""}"#,
            "`id` is empty; leave it out to have one made",
        );
        refused(
            r#"{"body":"\ud800"}"#,
            "`body` holds an escape that is no character",
        );
    }

    #[test]
    fn an_unknown_field_is_shown_where_it_is_nearly_a_known_one_only() {
        refused(
            r#"{"bdoy":"x"}"#,
            "unknown field `bdoy`; did you mean `body`?",
        );
        refused(
            r#"{"body_base64":"x"}"#,
            "unknown field `body_base64`; did you mean `body-base64`?",
        );
        refused(
            r#"{"body":"x","secret-name":{"a":[1]},"y":2}"#,
            "unknown field, number 2 of the object; known are body, body-base64, key, id, headers",
        );
        refused(
            r#"{"secret":1} x"#,
            "not JSON: trailing characters at byte 14",
        );
    }

    #[test]
    fn headers_are_plain_values_that_keep_their_value() {
        refused(
            r#"{"body":1,"headers":["a"]}"#,
            "`headers` is an array, expected an object of plain values",
        );
        refused(
            r#"{"body":1,"headers":{"a":1,"b":{"c":2}}}"#,
            "header number 2 is an object, expected a string, a number, true, false or null",
        );
        let fits =
            "header number 1 is a number that does not fit into 64 bits; write it as a string";
        refused(r#"{"body":1,"headers":{"a":9223372036854775808}}"#, fits);
        refused(r#"{"body":1,"headers":{"a":1e999}}"#, fits);
    }

    #[test]
    fn deep_nesting_is_walked_over() {
        let depth = 1_000_000;
        let deep = "[".repeat(depth) + &"]".repeat(depth);
        assert_eq!(body(&format!(r#"{{"body": {deep} }}"#)), deep);
        refused(
            "[".repeat(depth),
            "not JSON: EOF while parsing a list at byte 1000000",
        );
        let objects = r#"{"a":"#.repeat(depth) + "1" + &"}".repeat(depth);
        refused(
            format!(r#"{{"body":1,"headers":{{"a":{objects}}}}}"#),
            "header number 1 is an object, expected a string, a number, true, false or null",
        );
    }
}
