//! Names and numbers as types, so that two of them cannot be swapped.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Wraps a name; the text is taken as it is.
            pub fn new(name: impl AsRef<str>) -> Self {
                Self(Arc::from(name.as_ref()))
            }

            /// Gives the name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }

        impl From<&str> for $name {
            fn from(name: &str) -> Self {
                Self::new(name)
            }
        }

        impl From<String> for $name {
            fn from(name: String) -> Self {
                Self(Arc::from(name))
            }
        }
    };
}

name_type!(
    /// The name of a consumer, as the configuration gives it.
    ConsumerName
);
name_type!(
    /// The name of a queue at the broker.
    QueueName
);
name_type!(
    /// The id a message carries: the store's own, or what its producer set.
    MessageId
);

/// Which partition of a consumer, counted from 0.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct PartitionId(pub u32);

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The number of a delivery, unique within one process; what `inflight` shows and `cancel` takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DeliveryId(pub u64);

impl fmt::Display for DeliveryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Counts the openings of one source; a word for an old generation is never sent.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Generation(pub u64);

impl Generation {
    /// Gives the generation that follows.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// 1 + the failed attempts of this message so far. A Release does not raise it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Attempt(NonZeroU32);

impl Attempt {
    /// The first attempt.
    pub const FIRST: Self = Self(NonZeroU32::MIN);

    /// Makes an attempt number; 0 reads as the first.
    pub fn new(number: u32) -> Self {
        Self(NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN))
    }

    /// Gives the number, at least 1.
    pub fn get(self) -> u32 {
        self.0.get()
    }

    /// Gives the attempt that follows a failed one; stays at the largest number.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl Default for Attempt {
    fn default() -> Self {
        Self::FIRST
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How often a dead letter was replayed into its queue; 0 for what never was.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct ReplayNumber(pub u32);

/// The xxh3-64 of a body: part of the ledger key, so that one id on two bodies is two works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BodyDigest(pub u64);

impl BodyDigest {
    /// Computes the digest of a body.
    pub fn of(body: &[u8]) -> Self {
        Self(xxhash_rust::xxh3::xxh3_64(body))
    }
}
