//! Message headers: an ordered list of names with typed values.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// The header names that are ours.
pub mod names {
    /// The attempt number on retry copies.
    pub const ATTEMPT: &str = "x-acquit-attempt";
    /// Why a dead letter died.
    pub const REASON: &str = "x-acquit-reason";
    /// The error of the first failed attempt.
    pub const FIRST_ERROR: &str = "x-acquit-first-error";
    /// The error of the last failed attempt.
    pub const LAST_ERROR: &str = "x-acquit-last-error";
    /// The queue a copy or dead letter came from.
    pub const ORIGIN_QUEUE: &str = "x-acquit-origin-queue";
    /// When the original was published, RFC 3339.
    pub const ORIGIN_TIME: &str = "x-acquit-origin-time";
    /// When a dead letter died, RFC 3339.
    pub const DIED_AT: &str = "x-acquit-died-at";
    /// The key that chose its partition, where the broker has no place for one.
    pub const KEY: &str = "x-acquit-key";
    /// How often this message was replayed from a dead-letter queue.
    pub const REPLAYED: &str = "x-acquit-replayed";
}

/// One header value, in the types that the brokers know.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum HeaderValue {
    /// Nothing.
    Null,
    /// A truth value.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A floating-point number.
    Float(f64),
    /// Text.
    Text(String),
    /// Raw bytes.
    Bytes(Bytes),
    /// A moment, in whole seconds since 1970.
    #[serde(skip_deserializing)]
    Time(u64),
    /// A list of values.
    #[serde(skip_deserializing)]
    List(Vec<HeaderValue>),
    /// A table of names and values.
    #[serde(skip_deserializing)]
    Table(Headers),
}

impl HeaderValue {
    /// Gives the value as text where it is text.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Gives the value as a whole number, also where it is written as text.
    pub fn as_int(&self) -> Option<i64> {
        match self {
            Self::Int(number) => Some(*number),
            Self::Text(text) => text.trim().parse().ok(),
            _ => None,
        }
    }
}

impl From<&str> for HeaderValue {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for HeaderValue {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<i64> for HeaderValue {
    fn from(number: i64) -> Self {
        Self::Int(number)
    }
}

/// Headers in the order the producer gave them; a name set twice keeps its last value.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Headers(Vec<(String, HeaderValue)>);

impl Headers {
    /// Makes an empty list; allocates nothing.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Gives the value of a header; names are compared byte by byte.
    pub fn get(&self, name: &str) -> Option<&HeaderValue> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, v)| v)
    }

    /// Sets a header; an earlier value of the same name is replaced in its place.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<HeaderValue>) {
        let (name, value) = (name.into(), value.into());
        match self.0.iter_mut().find(|(n, _)| *n == name) {
            Some(slot) => slot.1 = value,
            None => self.0.push((name, value)),
        }
    }

    /// Removes a header and gives its value.
    pub fn remove(&mut self, name: &str) -> Option<HeaderValue> {
        let at = self.0.iter().position(|(n, _)| n == name)?;
        Some(self.0.remove(at).1)
    }

    /// Walks the headers in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &HeaderValue)> {
        self.0.iter().map(|(n, v)| (n.as_str(), v))
    }

    /// Counts the headers.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Tells whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<(String, HeaderValue)> for Headers {
    /// Collects headers as they come: distinct names cost one push each (10,000 headers stay
    /// linear); of a name given twice the last value wins.
    fn from_iter<I: IntoIterator<Item = (String, HeaderValue)>>(iter: I) -> Self {
        let mut list: Vec<(String, HeaderValue)> = Vec::new();
        let mut index = std::collections::HashMap::new();
        for (name, value) in iter {
            match index.get(&name) {
                Some(&at) => {
                    let slot: &mut (String, HeaderValue) = &mut list[at];
                    slot.1 = value;
                }
                None => {
                    index.insert(name.clone(), list.len());
                    list.push((name, value));
                }
            }
        }
        Self(list)
    }
}

impl Serialize for Headers {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for Headers {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Headers;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object of header names with plain values")
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                mut map: A,
            ) -> Result<Headers, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(pairs.into_iter().collect())
            }
        }
        deserializer.deserialize_map(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_value_of_a_name_wins_and_keeps_its_place() {
        let headers: Headers = [
            ("a".to_owned(), HeaderValue::Int(1)),
            ("b".to_owned(), HeaderValue::Int(2)),
            ("a".to_owned(), HeaderValue::Int(3)),
        ]
        .into_iter()
        .collect();
        let seen: Vec<_> = headers.iter().map(|(n, v)| (n, v.as_int())).collect();
        assert_eq!(seen, [("a", Some(3)), ("b", Some(2))]);
    }
}
