//! The types of single values: how they are written, and what is said when they are not.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use acquit_actors::model::{ConsumerName, QueueName};
use bytesize::ByteSize;
use toml::de::DeValue;

use super::error::nearest;
use crate::telemetry::escape_cut;

/// A value of one key.
pub(super) trait Leaf: Sized {
    /// Says what is expected, with an example.
    fn expected() -> String;
    /// Reads it.
    fn read(value: &DeValue<'_>) -> Result<Self, Wrong>;
}

/// Why a value is not read.
pub(super) enum Wrong {
    /// It is of another type, unit or range.
    Value {
        found: String,
        nearest: Option<String>,
    },
    /// It is known and not built yet.
    NotBuilt(String),
    /// It is wrong in a way of its own, said in full and without a secret.
    Unfit(String),
}

impl Wrong {
    /// What was found by its shape alone.
    pub(super) fn shape(value: &DeValue<'_>) -> Self {
        Self::Value {
            found: shape(value),
            nearest: None,
        }
    }

    /// What was found, with a short text as it stands: only for types that hold no secrets.
    fn shown(value: &DeValue<'_>) -> Self {
        const TEXT_MAX: usize = 40;
        let found = match value {
            DeValue::String(text) if text.len() <= TEXT_MAX => {
                format!("\"{}\"", escape_cut(text, TEXT_MAX * 10))
            }
            other => shape(other),
        };
        Self::Value {
            found,
            nearest: None,
        }
    }
}

/// Describes a value without its text.
pub(super) fn shape(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) if text.is_empty() => "an empty text".to_owned(),
        DeValue::String(_) => "a text".to_owned(),
        DeValue::Integer(number) => format!("the number {}", escape_cut(number.as_str(), 24)),
        DeValue::Float(number) => format!("the number {}", escape_cut(number.as_str(), 24)),
        DeValue::Boolean(truth) => format!("{truth}"),
        DeValue::Datetime(_) => "a date".to_owned(),
        DeValue::Array(items) if items.is_empty() => "an empty list".to_owned(),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

fn text<'a>(value: &'a DeValue<'_>) -> Result<&'a str, Wrong> {
    value.as_str().ok_or_else(|| Wrong::shape(value))
}

fn whole(value: &DeValue<'_>) -> Option<u64> {
    let number = value.as_integer()?;
    u64::from_str_radix(&number.as_str().replace('_', ""), number.radix()).ok()
}

impl Leaf for bool {
    fn expected() -> String {
        "true or false".to_owned()
    }

    fn read(value: &DeValue<'_>) -> Result<Self, Wrong> {
        value.as_bool().ok_or_else(|| Wrong::shown(value))
    }
}

/// A whole number between two others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Count<const MIN: u32, const MAX: u32>(u32);

impl<const MIN: u32, const MAX: u32> Count<MIN, MAX> {
    /// Makes a count; a number out of range is moved to the nearer end.
    pub(super) const fn new(number: u32) -> Self {
        if number < MIN {
            Self(MIN)
        } else if number > MAX {
            Self(MAX)
        } else {
            Self(number)
        }
    }

    /// Gives the number.
    pub(super) const fn get(self) -> u32 {
        self.0
    }
}

impl<const MIN: u32, const MAX: u32> Leaf for Count<MIN, MAX> {
    fn expected() -> String {
        format!("a whole number from {MIN} to {MAX}")
    }

    fn read(value: &DeValue<'_>) -> Result<Self, Wrong> {
        whole(value)
            .and_then(|number| u32::try_from(number).ok())
            .filter(|number| (MIN..=MAX).contains(number))
            .map(Self)
            .ok_or_else(|| Wrong::shown(value))
    }
}

/// No duration of a configuration is longer: timers must be able to hold it.
const DURATION_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

impl Leaf for Duration {
    fn expected() -> String {
        "a duration with its unit such as \"250ms\", \"30s\" or \"2h\", at most 1 year".to_owned()
    }

    fn read(value: &DeValue<'_>) -> Result<Self, Wrong> {
        let wrong = || Wrong::shown(value);
        let duration = humantime::parse_duration(text(value)?).map_err(|_| wrong())?;
        (duration <= DURATION_MAX)
            .then_some(duration)
            .ok_or_else(wrong)
    }
}

/// A duration that is not zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Positive(Duration);

impl Positive {
    /// Wraps a duration that is not zero; zero becomes a millisecond.
    pub(super) const fn new(duration: Duration) -> Self {
        if duration.is_zero() {
            Self(Duration::from_millis(1))
        } else {
            Self(duration)
        }
    }

    /// Gives the duration.
    pub(super) const fn get(self) -> Duration {
        self.0
    }
}

impl Leaf for Positive {
    fn expected() -> String {
        "a duration above zero, with its unit, such as \"250ms\", \"30s\" or \"2h\", at most 1 year"
            .to_owned()
    }

    fn read(value: &DeValue<'_>) -> Result<Self, Wrong> {
        let duration = Duration::read(value)?;
        (!duration.is_zero())
            .then_some(Self(duration))
            .ok_or_else(|| Wrong::shown(value))
    }
}

/// A lease: long enough to be extended in time, several times over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lease(pub(super) Duration);

impl Lease {
    /// Leases are looked at twice a second and extended at a third of their time.
    const MIN: Duration = Duration::from_secs(3);

    /// Gives the duration.
    pub(super) const fn get(self) -> Duration {
        self.0
    }
}

impl Leaf for Lease {
    fn expected() -> String {
        "a duration of at least 3 seconds, such as \"60s\", at most 1 year".to_owned()
    }

    fn read(value: &DeValue<'_>) -> Result<Self, Wrong> {
        let duration = Duration::read(value)?;
        (duration >= Self::MIN)
            .then_some(Self(duration))
            .ok_or_else(|| Wrong::shown(value))
    }
}

/// A number of bytes, at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Size(u64);

impl Size {
    /// Makes a size; zero becomes one byte.
    pub(super) const fn new(bytes: u64) -> Self {
        if bytes == 0 { Self(1) } else { Self(bytes) }
    }

    /// Gives the number of bytes.
    pub(super) const fn bytes(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ByteSize(self.0).display().iec().fmt(f)
    }
}

/// No size of a configuration is larger.
const SIZE_MAX: u64 = 1 << 50;

impl Leaf for Size {
    fn expected() -> String {
        "a size above zero with its unit such as \"64 KiB\" or \"256 MiB\", at most 1 PiB"
            .to_owned()
    }

    fn read(value: &DeValue<'_>) -> Result<Self, Wrong> {
        let wrong = || Wrong::shown(value);
        let size = text(value)?;
        // The library reads a bare number as bytes; here a unit is asked for, as with durations.
        if !size.ends_with(|c: char| c.is_ascii_alphabetic()) {
            return Err(wrong());
        }
        let bytes = size.parse::<ByteSize>().map_err(|_| wrong())?.as_u64();
        (1..=SIZE_MAX)
            .contains(&bytes)
            .then_some(Self(bytes))
            .ok_or_else(wrong)
    }
}

/// A duration of whole seconds, up to the largest that a heartbeat can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seconds(u16);

impl Seconds {
    /// Wraps seconds.
    pub(super) const fn new(seconds: u16) -> Self {
        Self(seconds)
    }

    /// Gives the duration.
    pub(super) const fn get(self) -> Duration {
        Duration::from_secs(self.0 as u64)
    }
}

impl Leaf for Seconds {
    fn expected() -> String {
        "whole seconds such as \"10s\" or \"2m\", at most 65535".to_owned()
    }

    fn read(value: &DeValue<'_>) -> Result<Self, Wrong> {
        let duration = Duration::read(value)?;
        u16::try_from(duration.as_secs())
            .ok()
            .filter(|_| duration.subsec_nanos() == 0)
            .map(Self)
            .ok_or_else(|| Wrong::shown(value))
    }
}

/// A whole number that may be negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Whole(pub(super) i32);

impl Leaf for Whole {
    fn expected() -> String {
        format!("a whole number from {} to {}", i32::MIN, i32::MAX)
    }

    fn read(value: &DeValue<'_>) -> Result<Self, Wrong> {
        let number = value.as_integer().and_then(|number| {
            i32::from_str_radix(&number.as_str().replace('_', ""), number.radix()).ok()
        });
        number.map(Self).ok_or_else(|| Wrong::shown(value))
    }
}

/// A name that goes over the wire as it is, such as a user's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Name(pub(super) String);

impl Leaf for Name {
    fn expected() -> String {
        "a name of 1 to 200 bytes without control characters".to_owned()
    }

    fn read(value: &DeValue<'_>) -> Result<Self, Wrong> {
        let name = text(value)?;
        (!name.is_empty() && name.len() <= NAME_MAX && !name.contains(char::is_control))
            .then(|| Self(name.to_owned()))
            .ok_or_else(|| Wrong::shape(value))
    }
}

/// The address of an HTTP server, without a user in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HttpUrl(pub(super) String);

impl Leaf for HttpUrl {
    fn expected() -> String {
        "an address such as \"http://127.0.0.1:15672\"".to_owned()
    }

    /// It may hold a password by mistake, so it is never shown.
    fn read(value: &DeValue<'_>) -> Result<Self, Wrong> {
        let url = text(value)?;
        let rest = url
            .strip_prefix("http://")
            .or_else(|| url.strip_prefix("https://"))
            .ok_or_else(|| Wrong::shape(value))?;
        if rest.contains('@') {
            return Err(Wrong::Unfit(
                "has a user in it; use management-user and management-password-file".to_owned(),
            ));
        }
        let is_odd = |c: char| c.is_control() || c.is_whitespace() || "?#".contains(c);
        if rest.is_empty() || rest.starts_with(['/', ':']) || rest.contains(is_odd) {
            return Err(Wrong::shape(value));
        }
        Ok(Self(url.trim_end_matches('/').to_owned()))
    }
}

/// How many per unit of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// How many.
    pub count: u32,
    /// Per how much time.
    pub period: Duration,
}

impl Rate {
    /// Gives the rate per second.
    pub fn per_second(&self) -> f64 {
        f64::from(self.count) / self.period.as_secs_f64()
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = match self.period.as_secs() {
            1 => "s",
            60 => "m",
            _ => "h",
        };
        write!(f, "{}/{unit}", self.count)
    }
}

impl Leaf for Rate {
    fn expected() -> String {
        "a rate above zero such as \"100/s\", \"600/m\" or \"50/h\"".to_owned()
    }

    fn read(value: &DeValue<'_>) -> Result<Self, Wrong> {
        let rate = text(value)?;
        parse_rate(rate).ok_or_else(|| Wrong::shown(value))
    }
}

fn parse_rate(rate: &str) -> Option<Rate> {
    let (count, unit) = rate.split_once('/')?;
    let count: u32 = count.trim().parse().ok().filter(|count| *count > 0)?;
    let seconds = match unit.trim() {
        "s" | "sec" | "second" => 1,
        "m" | "min" | "minute" => 60,
        "h" | "hour" => 3600,
        _ => return None,
    };
    Some(Rate {
        count,
        period: Duration::from_secs(seconds),
    })
}

/// No name is longer; RabbitMQ takes 255 bytes, and we append to it.
const NAME_MAX: usize = 200;

impl Leaf for ConsumerName {
    fn expected() -> String {
        format!(
            "a name of letters, digits, \"-\", \"_\" and \".\", at most {NAME_MAX} long, such as \
             \"words\""
        )
    }

    fn read(value: &DeValue<'_>) -> Result<Self, Wrong> {
        let name = text(value)?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        (!name.is_empty() && name.len() <= NAME_MAX && name.chars().all(is_plain))
            .then(|| Self::new(name))
            .ok_or_else(|| Wrong::shown(value))
    }
}

impl Leaf for QueueName {
    fn expected() -> String {
        format!("the name of a queue, 1 to {NAME_MAX} bytes without control characters")
    }

    fn read(value: &DeValue<'_>) -> Result<Self, Wrong> {
        let name = text(value)?;
        (!name.is_empty() && name.len() <= NAME_MAX && !name.contains(char::is_control))
            .then(|| Self::new(name))
            .ok_or_else(|| Wrong::shown(value))
    }
}

impl Leaf for PathBuf {
    fn expected() -> String {
        "a path such as \"./data\"".to_owned()
    }

    fn read(value: &DeValue<'_>) -> Result<Self, Wrong> {
        let path = text(value)?;
        (!path.is_empty() && !path.contains('\0'))
            .then(|| Self::from(path))
            .ok_or_else(|| Wrong::shape(value))
    }
}

/// A list of texts; each is short enough for a command line and holds no zero byte.
impl Leaf for Vec<String> {
    fn expected() -> String {
        "a list of texts such as [\"wc\", \"-w\"]".to_owned()
    }

    fn read(value: &DeValue<'_>) -> Result<Self, Wrong> {
        let items = value.as_array().ok_or_else(|| Wrong::shape(value))?;
        let item = |item: &toml::Spanned<DeValue<'_>>| {
            let text = item.get_ref().as_str().filter(|text| !text.contains('\0'));
            text.map(str::to_owned).ok_or_else(|| Wrong::Value {
                found: format!("a list with {} in it", shape(item.get_ref())),
                nearest: None,
            })
        };
        items.iter().map(item).collect()
    }
}

/// One value of a table of names and values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scalar {
    /// A text.
    Text(String),
    /// A whole number.
    Number(i64),
    /// Yes or no.
    Flag(bool),
}

/// Arguments of a consumer at a RabbitMQ, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Arguments(pub BTreeMap<String, Scalar>);

impl Leaf for Arguments {
    fn expected() -> String {
        "a table of names and texts, whole numbers, true or false, such as { x-cancel-on-ha-failover \
         = true }; a priority has a key of its own, and streams are not consumed"
            .to_owned()
    }

    fn read(value: &DeValue<'_>) -> Result<Self, Wrong> {
        let table = value.as_table().ok_or_else(|| Wrong::shape(value))?;
        let mut arguments = BTreeMap::new();
        for (name, value) in table {
            let name = name.get_ref().to_string();
            let wrong = |found: String| Wrong::Value {
                found,
                nearest: None,
            };
            let is_ours = ["x-priority", "x-stream-offset"].contains(&name.as_str());
            if is_ours || name.is_empty() || name.len() > 255 {
                return Err(wrong(format!("\"{}\" in it", escape_cut(&name, 80))));
            }
            let scalar = match value.get_ref() {
                DeValue::String(text) => Scalar::Text(text.to_string()),
                DeValue::Boolean(truth) => Scalar::Flag(*truth),
                DeValue::Integer(number) => {
                    let digits = number.as_str().replace('_', "");
                    let number = i64::from_str_radix(&digits, number.radix());
                    Scalar::Number(number.map_err(|_| wrong("a number beyond 64 bits".to_owned()))?)
                }
                other => return Err(wrong(format!("a table with {} in it", shape(other)))),
            };
            arguments.insert(name, scalar);
        }
        Ok(Self(arguments))
    }
}

/// The program and its arguments.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Argv(pub Vec<String>);

impl Leaf for Argv {
    fn expected() -> String {
        "a program and its arguments such as [\"wc\", \"-w\"]; it is never given to a shell"
            .to_owned()
    }

    fn read(value: &DeValue<'_>) -> Result<Self, Wrong> {
        let argv = Vec::<String>::read(value)?;
        let has_program = argv.first().is_some_and(|program| !program.is_empty());
        has_program
            .then_some(Self(argv))
            .ok_or_else(|| Wrong::shape(value))
    }
}

/// One of a few words.
pub(super) trait Choice: Copy + Sized + 'static {
    /// The words and what they mean.
    const WORDS: &'static [(&'static str, Self)];
    /// Words that are known and not built yet.
    const NOT_BUILT: &'static [&'static str] = &[];
}

impl<C: Choice> Leaf for C {
    fn expected() -> String {
        let mut words = C::WORDS.iter().map(|(word, _)| format!("\"{word}\""));
        let last = words.next_back().unwrap_or_default();
        let rest = words.collect::<Vec<_>>().join(", ");
        if rest.is_empty() {
            last
        } else {
            format!("{rest} or {last}")
        }
    }

    fn read(value: &DeValue<'_>) -> Result<Self, Wrong> {
        let text = text(value)?;
        if let Some((_, choice)) = C::WORDS.iter().find(|(word, _)| *word == text) {
            return Ok(*choice);
        }
        if C::NOT_BUILT.contains(&text) {
            return Err(Wrong::NotBuilt(format!(
                "\"{text}\" is not built yet; use {}",
                C::expected()
            )));
        }
        let near = nearest(text, C::WORDS.iter().map(|(word, _)| *word)).map(str::to_owned);
        match Wrong::shown(value) {
            Wrong::Value { found, .. } => Err(Wrong::Value {
                found,
                nearest: near,
            }),
            other => Err(other),
        }
    }
}
