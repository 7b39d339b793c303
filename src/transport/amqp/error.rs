//! What can go wrong with a RabbitMQ, told apart; what to do about it; and the code to exit with.
//!
//! A text of the broker is escaped and cut before it is kept, and nothing here ever holds a secret.

use std::time::Duration;

use acquit_actors::model::QueueName;

pub use super::reply_text::ObjectKind;

/// How much of a foreign text is kept.
const TEXT_MAX: usize = 300;

/// An object of the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// What it is.
    pub kind: ObjectKind,
    /// Its name, escaped and cut.
    pub name: String,
}

impl std::fmt::Display for Object {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} \"{}\"", self.kind.as_str(), self.name)
    }
}

/// A permission of RabbitMQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Right {
    /// Consume, get, purge.
    Read,
    /// Publish.
    Write,
    /// Declare, delete.
    Configure,
}

impl Right {
    /// Gives the broker's word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Configure => "configure",
        }
    }

    pub(super) fn parse(word: &str) -> Option<Self> {
        [Self::Read, Self::Write, Self::Configure]
            .into_iter()
            .find(|right| right.as_str() == word)
    }
}

/// An argument that the broker has with another value. `None` stands for "not set" in `wanted` and
/// `existing`, unless the text was cut: then it is `Some("unknown")`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// The argument, such as `x-queue-type` or `durable`.
    pub argument: String,
    /// Whose.
    pub object: Option<Object>,
    /// What was asked for.
    pub wanted: Option<String>,
    /// What the broker has.
    pub existing: Option<String>,
}

/// What is wrong with TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TlsTrouble {
    /// No certificate that we trust has signed the broker's.
    UnknownIssuer,
    /// The broker's certificate is for other names.
    HostMismatch(String),
    /// The broker's certificate is over, or not yet valid.
    Expired,
    /// Another fault of the broker's certificate.
    BadCertificate(String),
    /// What answers does not speak TLS.
    PeerIsNotTls,
    /// The broker wants a certificate of ours, or refuses the one it got.
    ClientCertificate(String),
    /// Something else.
    Other(String),
}

impl std::fmt::Display for TlsTrouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::UnknownIssuer => f.write_str(
                "unknown issuer: nobody we trust has signed the broker's certificate; set `broker.ca-file` to the certificate of who did",
            ),
            Self::HostMismatch(text) => write!(
                f,
                "host mismatch: the broker's certificate is not for the host of `broker.url` ({text}); use a name that it is for"
            ),
            Self::Expired => f.write_str(
                "expired: the broker's certificate is not valid at this time; renew it, or set this machine's clock",
            ),
            Self::BadCertificate(text) => {
                write!(f, "the broker's certificate cannot be accepted: {text}")
            }
            Self::PeerIsNotTls => f.write_str(
                "peer is not TLS: what listens at that port answers in plain; use `amqp://` in `broker.url`, or the broker's TLS port (5671)",
            ),
            Self::ClientCertificate(text) => write!(
                f,
                "the broker does not accept our certificate, or wants one ({text}); set `broker.cert-file` and `broker.key-file`"
            ),
            Self::Other(text) => write!(f, "{text}; see `broker.ca-file`"),
        }
    }
}

/// Why something did not work with a RabbitMQ.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AmqpError {
    /// There is no such virtual host.
    #[error(
        "there is no vhost \"{vhost}\" at the broker; correct the path of `broker.url`, or create it"
    )]
    NoSuchVhost {
        /// Its name.
        vhost: String,
    },
    /// User or password is wrong, or the user may not log in from here.
    #[error(
        "the broker refused the credentials{}; check user and password (`broker.url`, `broker.user`, `broker.password-file`); the user guest may log in only from the broker's own machine",
        mechanism.as_ref().map(|m| format!(" ({m})")).unwrap_or_default()
    )]
    CredentialsRefused {
        /// The mechanism that was tried.
        mechanism: Option<String>,
    },
    /// The user lacks a right.
    #[error(
        "no permission: user {} may not {} {object}; give the right with `rabbitmqctl set_permissions`",
        user.as_ref().map_or_else(|| "of this connection".to_owned(), |u| format!("\"{u}\"")),
        right.map_or("use", Right::as_str)
    )]
    NoPermission {
        /// Which, where it is known.
        right: Option<Right>,
        /// To what.
        object: Object,
        /// Whose.
        user: Option<String>,
    },
    /// A queue or an exchange is not there.
    #[error("there is no {object}; create it, or let it be declared with `broker.declare = true`")]
    Missing {
        /// What.
        object: Object,
    },
    /// It exists with another argument. It was left as it is.
    #[error(
        "{} exists with another {}: wanted {}, existing {}; it is left untouched: change the configuration, or remove it yourself",
        mismatch.object.as_ref().map_or_else(|| "it".to_owned(), ToString::to_string),
        mismatch.argument,
        mismatch.wanted.as_deref().unwrap_or("none"),
        mismatch.existing.as_deref().unwrap_or("none")
    )]
    Mismatch {
        /// What differs.
        mismatch: Mismatch,
    },
    /// The broker takes no such declaration or subscription.
    #[error("the broker refuses the declaration: {text}")]
    Invalid {
        /// Its words.
        text: String,
    },
    /// Another consumer has the queue for itself.
    #[error("another consumer has {queue_text} for itself; it is tried again until that one is gone", queue_text = queue_text(queue))]
    InExclusiveUse {
        /// The queue.
        queue: Option<String>,
    },
    /// Another connection has declared the queue for itself; after a reconnect perhaps our own old
    /// one.
    #[error("another connection owns {queue_text}; it is tried again until that one is gone", queue_text = queue_text(queue))]
    Locked {
        /// The queue.
        queue: Option<String>,
    },
    /// Nobody answers there, or the name is not known.
    #[error("cannot reach the broker: {text}")]
    Unreachable {
        /// Why.
        text: String,
    },
    /// The connection broke, or the peer closed it without a word.
    #[error(
        "the connection broke: {text}; if it happens at every connect, `broker.url` names a TLS port without `amqps://`, a port of something else, or a way of logging in that the broker does not have"
    )]
    Broken {
        /// How.
        text: String,
    },
    /// TLS failed.
    #[error("TLS: {0}")]
    Tls(TlsTrouble),
    /// What answers does not speak AMQP 0-9-1.
    #[error("what answers does not speak AMQP 0-9-1 ({text}); check the port of `broker.url`")]
    NotAmqp {
        /// What came.
        text: String,
    },
    /// A delivery was held longer than the broker allows: it closed the channel and took back
    /// everything on it.
    #[error(
        "a delivery was held longer than the broker's consumer timeout{}, and the broker closed the channel; set `handler-timeout` below it, or raise `consumer_timeout` at the broker",
        timeout.map(|t| format!(" ({})", humantime::format_duration(t))).unwrap_or_default()
    )]
    ConsumerTimeout {
        /// The broker's limit.
        timeout: Option<Duration>,
    },
    /// The broker cancelled a subscription: its queue is gone.
    #[error(
        "the broker cancelled the subscription to queue \"{queue}\": it was deleted, or its node is gone"
    )]
    CancelledByBroker {
        /// The queue.
        queue: String,
    },
    /// An operator, or a broker that stops, closed the connection.
    #[error("the broker closed the connection: {text}")]
    Forced {
        /// Its words.
        text: String,
    },
    /// A limit of the broker is reached: connections, channels or queues.
    #[error("a limit of the broker is reached: {text}")]
    LimitReached {
        /// Its words.
        text: String,
    },
    /// The broker cannot do it now: a virtual host that is down, an internal error.
    #[error("the broker cannot do it now: {text}")]
    BrokerTrouble {
        /// Its words.
        text: String,
    },
    /// The broker cannot do what was asked at all.
    #[error("the broker does not support it: {text}")]
    NotImplemented {
        /// Its words.
        text: String,
    },
    /// The channel has ended before; why was told to whoever used it then.
    #[error("the channel is closed ({text})")]
    ChannelClosed {
        /// Its state.
        text: String,
    },
    /// The connection has ended before.
    #[error("the connection is closed ({text})")]
    ConnectionClosed {
        /// Its state.
        text: String,
    },
    /// Nothing came from the broker for two heartbeats.
    #[error("the broker was silent for two heartbeats; the connection is given up")]
    Silent,
    /// No answer within the deadline.
    #[error("no answer within {}: {what}", humantime::format_duration(*after))]
    Timeout {
        /// What was waited for.
        what: &'static str,
        /// How long.
        after: Duration,
    },
    /// Another error that the broker told.
    #[error("the broker reports {code}: {text}")]
    Protocol {
        /// Its code.
        code: u16,
        /// Its words.
        text: String,
    },
    /// Something in the client library.
    #[error("the AMQP client failed: {text}")]
    Client {
        /// Its words.
        text: String,
    },
}

fn queue_text(queue: &Option<String>) -> String {
    match queue {
        Some(queue) => format!("queue \"{queue}\""),
        None => "the queue".to_owned(),
    }
}

/// Where in its life a process meets an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// It has never consumed from this broker.
    FirstStart,
    /// It has: what is refused now worked before, so somebody may be repairing the broker.
    Running,
}

/// What to do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Try again, with a backoff, for ever: it passes without anybody's doing.
    Wait,
    /// Try again, not ready, for a bounded time, then exit: somebody must repair it.
    WaitForAWhile,
    /// Exit: trying again changes nothing.
    Exit,
}

impl AmqpError {
    /// Says what to do.
    ///
    /// | error | first start | running |
    /// |---|---|---|
    /// | unreachable, broken, silent, timeout, forced, locked, in exclusive use, limits, trouble, consumer timeout | wait | wait |
    /// | vhost, credentials, permission, missing, TLS, not AMQP, cancelled | exit | wait for a while |
    /// | mismatch, invalid, not implemented | exit | exit |
    ///
    /// At a first start `first-connect-tries` bounds the waiting for a connection on top of this.
    pub fn policy(&self, stage: Stage) -> Policy {
        match self {
            Self::InExclusiveUse { .. }
            | Self::Locked { .. }
            | Self::Unreachable { .. }
            | Self::Broken { .. }
            | Self::ConsumerTimeout { .. }
            | Self::Forced { .. }
            | Self::LimitReached { .. }
            | Self::BrokerTrouble { .. }
            | Self::ChannelClosed { .. }
            | Self::ConnectionClosed { .. }
            | Self::Silent
            | Self::Timeout { .. }
            | Self::Protocol { .. } => Policy::Wait,
            Self::NoSuchVhost { .. }
            | Self::CredentialsRefused { .. }
            | Self::NoPermission { .. }
            | Self::Missing { .. }
            | Self::Tls(_)
            | Self::NotAmqp { .. }
            | Self::Client { .. }
            | Self::CancelledByBroker { .. } => match stage {
                Stage::FirstStart => Policy::Exit,
                Stage::Running => Policy::WaitForAWhile,
            },
            Self::Mismatch { .. } | Self::Invalid { .. } | Self::NotImplemented { .. } => {
                Policy::Exit
            }
        }
    }

    /// Tells whether trying again at a first start changes nothing.
    pub fn is_permanent(&self) -> bool {
        self.policy(Stage::FirstStart) == Policy::Exit
    }

    /// Gives the code to exit with when it is given up: 10 declaration refused, 11 subscription
    /// failed, 12 cancelled by the broker for good, 14 connection, handshake or credentials, 15 no
    /// permission.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Mismatch { .. } | Self::Invalid { .. } => 10,
            Self::Missing { .. }
            | Self::InExclusiveUse { .. }
            | Self::Locked { .. }
            | Self::ConsumerTimeout { .. }
            | Self::NotImplemented { .. }
            | Self::ChannelClosed { .. } => 11,
            Self::CancelledByBroker { .. } => 12,
            Self::NoSuchVhost { .. }
            | Self::CredentialsRefused { .. }
            | Self::Unreachable { .. }
            | Self::Broken { .. }
            | Self::Tls(_)
            | Self::NotAmqp { .. }
            | Self::Forced { .. }
            | Self::LimitReached { .. }
            | Self::BrokerTrouble { .. }
            | Self::ConnectionClosed { .. }
            | Self::Silent
            | Self::Timeout { .. }
            | Self::Protocol { .. }
            | Self::Client { .. } => 14,
            Self::NoPermission { .. } => 15,
        }
    }

    /// Names the right that was needed, where the broker did not (before RabbitMQ 3.12).
    #[must_use = "the error is given back"]
    pub fn needing(self, needed: Right) -> Self {
        match self {
            Self::NoPermission {
                right: None,
                object,
                user,
            } => Self::NoPermission {
                right: Some(needed),
                object,
                user,
            },
            other => other,
        }
    }

    /// A subscription that the broker ended.
    pub fn cancelled(queue: &QueueName) -> Self {
        let queue = clean(queue.as_str());
        Self::CancelledByBroker { queue }
    }
}

/// Makes a foreign text safe to show on one line, and short.
pub(super) fn clean(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars() {
        let hides = matches!(character,
            '\u{061C}' | '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}'
            | '\u{2060}'..='\u{2069}' | '\u{FEFF}' | '\u{FFF9}'..='\u{FFFB}'
            | '\u{E0000}'..='\u{E007F}');
        if character.is_control() || hides {
            out.extend(character.escape_unicode());
        } else {
            out.push(character);
        }
        if out.len() > TEXT_MAX {
            let cut = (0..=TEXT_MAX - '…'.len_utf8()).rev();
            let cut = cut.into_iter().find(|at| out.is_char_boundary(*at));
            out.truncate(cut.unwrap_or(0));
            out.push('…');
            return out;
        }
    }
    out
}
