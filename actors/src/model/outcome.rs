//! What happened to an attempt.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Disposition;

/// What happened to one attempt. What the broker is told follows from it by
/// [`decide`](crate::settlement::decide).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The work is done.
    Completed,
    /// It failed and may work later.
    Failed,
    /// It will never work.
    Rejected(RejectReason),
    /// The handler panicked.
    Panicked,
    /// The handler outlived its deadline.
    TimedOut,
    /// The handler ended without a word (a command killed by a signal, a task that vanished).
    Gone,
    /// Not the message's fault: our own publish failed, or the handler cannot be started.
    Unavailable,
    /// A contract says: acknowledge and drop.
    Discarded,
    /// The outcome ledger answers: the work was concluded before.
    Known {
        /// What was decided then; Ack for a copy that was confirmed.
        disposition: Disposition,
        /// Whether a publish of then is not confirmed yet (its stored bytes go out first).
        owes: Option<Publication>,
    },
}

impl Outcome {
    /// Gives the outcome's word, as logs, metrics and reports use it.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Rejected(_) => "rejected",
            Self::Panicked => "panicked",
            Self::TimedOut => "timed-out",
            Self::Gone => "gone",
            Self::Unavailable => "unavailable",
            Self::Discarded => "discarded",
            Self::Known { .. } => "known",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a message is rejected for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum RejectReason {
    /// The handler said so.
    Handler,
    /// Its attempts are used up.
    Exhausted,
    /// Its body is over `max-message-bytes` or over the whole byte budget.
    TooLarge,
    /// It has more headers than `max-headers`.
    TooManyHeaders,
    /// The broker handed it out more often than `crash-loop-limit` without a word from us.
    CrashLoop,
    /// An operator cancelled it.
    Cancelled,
    /// The broker refuses its reply or copy for good.
    PublishRefused,
    /// Our own delivery actor died over it twice.
    Internal,
    /// What the store holds of it does not match its checksum.
    Corrupt,
}

impl RejectReason {
    /// Gives the reason's word, as the dead letter's header carries it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Handler => "rejected",
            Self::Exhausted => "exhausted",
            Self::TooLarge => "too-large",
            Self::TooManyHeaders => "too-many-headers",
            Self::CrashLoop => "crash-loop",
            Self::Cancelled => "cancelled",
            Self::PublishRefused => "publish-refused",
            Self::Internal => "internal",
            Self::Corrupt => "corrupt",
        }
    }
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What may be published before a delivery is settled. The machine owns every publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Publication {
    /// The result, to the reply queue.
    Reply,
    /// The failure, to the reply queue, where the profile's contract wants every task answered.
    FailureReply,
    /// A copy with the next attempt number, to the retry ladder.
    RetryCopy,
    /// The message with its reason, to the dead-letter queue.
    DeadLetter {
        /// Cut down to what every broker takes, because a whole one was refused for good.
        trimmed: bool,
    },
    /// A copy of what is acknowledged and dropped.
    Quarantine,
}

impl Publication {
    /// Gives the publication's word, as logs and metrics use it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Reply => "reply",
            Self::FailureReply => "failure-reply",
            Self::RetryCopy => "retry-copy",
            Self::DeadLetter { .. } => "dead-letter",
            Self::Quarantine => "quarantine",
        }
    }
}
