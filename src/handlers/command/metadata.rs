//! What a command is told about its delivery: `DELIVERY_*` variables and the JSON on descriptor 3.
//!
//! Variables are for scripts; they hold nothing that could change how a program runs: every name
//! has our prefix and is made of `A-Z`, `0-9` and `_`, and header values need an allow-list. The
//! JSON is for programs; it has all headers.
//!
//! | variable | set | value |
//! |---|---|---|
//! | `DELIVERY_ID` | with an id | the message's id |
//! | `DELIVERY_QUEUE`, `DELIVERY_PARTITION` | always | where it came from |
//! | `DELIVERY_KEY`, `DELIVERY_CONTENT_TYPE` | when it has them | as the producer set them |
//! | `DELIVERY_ATTEMPT` | always | 1 for the first |
//! | `DELIVERY_REDELIVERED` | always | `true` or `false` |
//! | `DELIVERY_DEADLINE`, `DELIVERY_REMAINING_SECONDS` | with a deadline | RFC 3339; seconds, such as `29.998` |
//! | `DELIVERY_HEADER_<NAME>` | by allow-list | the value as text |
//! | `DELIVERY_SKIPPED` | when not 0 | how many values could not be passed: with a NUL or a line end, not UTF-8, over 32 KiB |

use std::ffi::CString;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use acquit_actors::model::{Delivery, HeaderValue, Headers};
use acquit_actors::ports::DeliveryContext;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use tokio::time::Instant;

use crate::handlers::HandlerError;

/// A variable's value is at most this long: the kernel refuses to start a program with a variable
/// over 128 KiB, and with all of them over a limit that may be as low.
const VALUE_MAX: usize = 32 * 1024;
/// All values of one delivery are together at most this long.
const VALUES_MAX: usize = 64 * 1024;

/// An allowed header and its variable, ready made.
#[derive(Debug)]
pub(super) struct HeaderVariable {
    header: String,
    variable: String,
}

impl HeaderVariable {
    /// Makes the variables of an allow-list.
    pub(super) fn all(headers: &[String]) -> Result<Vec<Self>, HandlerError> {
        let mut all: Vec<Self> = Vec::with_capacity(headers.len());
        for header in headers {
            let variable = variable_of(header);
            match all.iter().find(|other| other.variable == variable) {
                Some(other) if other.header == *header => {}
                Some(other) => {
                    return Err(HandlerError::HeadersCollide {
                        first: other.header.clone(),
                        second: header.clone(),
                        variable,
                    });
                }
                None => all.push(Self {
                    header: header.clone(),
                    variable,
                }),
            }
        }
        Ok(all)
    }
}

fn variable_of(header: &str) -> String {
    let name = header.chars().map(|c| match c {
        c if c.is_ascii_alphanumeric() => c.to_ascii_uppercase(),
        _ => '_',
    });
    "DELIVERY_HEADER_".chars().chain(name).collect()
}

/// When an attempt ends, as a date and as a time from now.
#[derive(Debug, Clone, Copy)]
pub(super) struct DeadlineAt {
    at: SystemTime,
    remaining: Duration,
}

impl DeadlineAt {
    pub(super) fn of(context: &DeliveryContext) -> Option<Self> {
        let remaining = context
            .deadline()?
            .saturating_duration_since(Instant::now());
        let at = SystemTime::now().checked_add(remaining)?;
        Some(Self { at, remaining })
    }
}

/// Makes the `DELIVERY_*` variables, as `NAME=value`.
pub(super) fn variables(
    delivery: &Delivery,
    deadline: Option<DeadlineAt>,
    headers: &[HeaderVariable],
) -> Vec<CString> {
    let mut set = Variables::default();
    if let Some(id) = &delivery.id {
        set.put("DELIVERY_ID", id.as_str());
    }
    set.put("DELIVERY_QUEUE", delivery.queue.as_str());
    set.put("DELIVERY_PARTITION", &delivery.partition.to_string());
    if let Some(key) = &delivery.key {
        set.put("DELIVERY_KEY", key);
    }
    if let Some(content_type) = &delivery.content_type {
        set.put("DELIVERY_CONTENT_TYPE", content_type);
    }
    set.put("DELIVERY_ATTEMPT", &delivery.attempt.to_string());
    set.put(
        "DELIVERY_REDELIVERED",
        if delivery.redelivered {
            "true"
        } else {
            "false"
        },
    );
    if let Some(deadline) = deadline {
        if let Some(at) = rfc3339(deadline.at) {
            set.put("DELIVERY_DEADLINE", &at);
        }
        let remaining = format!("{:.3}", deadline.remaining.as_secs_f64());
        set.put("DELIVERY_REMAINING_SECONDS", &remaining);
    }
    for HeaderVariable { header, variable } in headers {
        if let Some(value) = delivery.headers.get(header) {
            set.put_header(variable, value);
        }
    }
    set.finish()
}

#[derive(Default)]
struct Variables {
    list: Vec<CString>,
    bytes: usize,
    skipped: u32,
}

impl Variables {
    /// Sets a variable, or counts it: a value with a line end could forge other variables in the
    /// eyes of whoever reads `env`.
    fn put(&mut self, name: &str, value: &str) {
        let fits = value.len() <= VALUE_MAX && self.bytes + value.len() <= VALUES_MAX;
        if !fits || value.contains(['\n', '\r']) {
            self.skipped += 1;
            return;
        }
        match CString::new(format!("{name}={value}")) {
            Ok(variable) => {
                self.bytes += value.len();
                self.list.push(variable);
            }
            Err(_nul) => self.skipped += 1,
        }
    }

    fn put_header(&mut self, variable: &str, value: &HeaderValue) {
        match value {
            HeaderValue::Null => {}
            HeaderValue::Bool(value) => self.put(variable, &value.to_string()),
            HeaderValue::Int(value) => self.put(variable, &value.to_string()),
            HeaderValue::Float(value) => self.put(variable, &value.to_string()),
            HeaderValue::Text(value) => self.put(variable, value),
            HeaderValue::Bytes(value) => match std::str::from_utf8(value) {
                Ok(value) => self.put(variable, value),
                Err(_) => self.skipped += 1,
            },
            _ => self.skipped += 1,
        }
    }

    fn finish(mut self) -> Vec<CString> {
        if self.skipped > 0 {
            let skipped = CString::new(format!("DELIVERY_SKIPPED={}", self.skipped));
            self.list.extend(skipped);
        }
        self.list
    }
}

/// Makes the JSON on descriptor 3: one object on one line. A field without a value is null, and
/// every field is always there.
pub(super) fn json(delivery: &Delivery, deadline: Option<DeadlineAt>) -> Vec<u8> {
    let record = Record {
        id: delivery.id.as_ref().map(|id| id.as_str()),
        queue: delivery.queue.as_str(),
        partition: delivery.partition.0,
        key: delivery.key.as_deref(),
        attempt: delivery.attempt.get(),
        redelivered: delivery.redelivered,
        delivery_count: delivery.delivery_count,
        replay: delivery.replay.0,
        content_type: delivery.content_type.as_deref(),
        correlation_id: delivery.correlation_id.as_deref(),
        published_at: delivery.published_at.and_then(rfc3339),
        deadline: deadline.and_then(|deadline| rfc3339(deadline.at)),
        remaining_seconds: deadline.map(|deadline| deadline.remaining.as_secs_f64()),
        body_bytes: delivery.body.len(),
        headers: AllHeaders(&delivery.headers),
    };
    let mut line = Vec::with_capacity(512);
    serde_json::to_writer(&mut line, &record)
        .expect("writing plain data with text keys to memory cannot fail");
    line.push(b'\n');
    line
}

#[derive(Serialize)]
struct Record<'a> {
    id: Option<&'a str>,
    queue: &'a str,
    partition: u32,
    key: Option<&'a str>,
    attempt: u32,
    redelivered: bool,
    delivery_count: Option<u32>,
    replay: u32,
    content_type: Option<&'a str>,
    correlation_id: Option<&'a str>,
    published_at: Option<String>,
    deadline: Option<String>,
    remaining_seconds: Option<f64>,
    body_bytes: usize,
    headers: AllHeaders<'a>,
}

/// Headers as an object; bytes are `{"base64": "…"}`, since JSON has none.
struct AllHeaders<'a>(&'a Headers);

impl Serialize for AllHeaders<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in self.0.iter() {
            match value {
                HeaderValue::Bytes(bytes) => map.serialize_entry(
                    name,
                    &Base64 {
                        base64: BASE64_STANDARD.encode(bytes),
                    },
                )?,
                value => map.serialize_entry(name, value)?,
            }
        }
        map.end()
    }
}

#[derive(Serialize)]
struct Base64 {
    base64: String,
}

/// Writes a date; `None` for one that RFC 3339 has no way to write.
fn rfc3339(at: SystemTime) -> Option<String> {
    const YEAR_10000: u64 = 253_402_300_800;
    let since_epoch = at.duration_since(UNIX_EPOCH).ok()?;
    (since_epoch.as_secs() < YEAR_10000).then(|| humantime::format_rfc3339_millis(at).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_names_become_harmless_variables() {
        let check = |header, expected| assert_eq!(variable_of(header), expected);
        check("PATH", "DELIVERY_HEADER_PATH");
        check("LD_PRELOAD", "DELIVERY_HEADER_LD_PRELOAD");
        check("IFS", "DELIVERY_HEADER_IFS");
        check("a=b", "DELIVERY_HEADER_A_B");
        check("ünï", "DELIVERY_HEADER__N_");
        check("x-trace\nid", "DELIVERY_HEADER_X_TRACE_ID");
    }

    #[test]
    fn two_headers_of_one_variable_are_refused() {
        let two = ["x-a".to_owned(), "x_a".to_owned()];
        assert!(matches!(
            HeaderVariable::all(&two),
            Err(HandlerError::HeadersCollide { .. })
        ));
        let same = ["x-a".to_owned(), "x-a".to_owned()];
        assert_eq!(HeaderVariable::all(&same).expect("one header").len(), 1);
    }

    #[test]
    fn dates_that_cannot_be_written_are_left_out() {
        assert_eq!(
            rfc3339(UNIX_EPOCH).as_deref(),
            Some("1970-01-01T00:00:00.000Z")
        );
        assert_eq!(rfc3339(UNIX_EPOCH - Duration::from_secs(1)), None);
        assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_secs(1 << 38)), None);
    }
}
