//! `[broker]` as it stands in the file. Part of [`raw`](super::raw).

use std::path::PathBuf;
use std::time::Duration;

use super::reader::Section;
use super::value::{Choice, Count, HttpUrl, Leaf, Lease, Name, Positive, Seconds, Wrong};
use crate::transport::amqp::AmqpUri;

/// `[broker]`
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RawBroker {
    /// `url`
    pub url: BrokerUrl,
    /// `sync`
    pub sync: SyncWord,
    /// `lease`
    pub lease: Lease,
    /// `user`
    pub user: Option<Name>,
    /// `password-file`
    pub password_file: Option<PathBuf>,
    /// `connection-name`
    pub connection_name: Option<Name>,
    /// `heartbeat`
    pub heartbeat: Seconds,
    /// `connect-timeout`
    pub connect_timeout: Positive,
    /// `first-connect-tries`
    pub first_connect_tries: Count<0, 1_000_000>,
    /// `declare`
    pub declare: bool,
    /// `queue-type`
    pub queue_type: QueueKind,
    /// `ca-file`
    pub ca_file: Option<PathBuf>,
    /// `cert-file`
    pub cert_file: Option<PathBuf>,
    /// `key-file`
    pub key_file: Option<PathBuf>,
    /// `external`
    pub external: bool,
    /// `management`
    pub management: Option<HttpUrl>,
    /// `management-user`
    pub management_user: Option<Name>,
    /// `management-password-file`
    pub management_password_file: Option<PathBuf>,
    /// `publish-window`
    pub publish_window: Count<1, 65_535>,
    /// `linger`
    pub linger: Duration,
    /// `consumer-timeout`
    pub consumer_timeout: Option<Positive>,
}

impl Default for RawBroker {
    fn default() -> Self {
        Self {
            url: BrokerUrl::Embedded("./data".into()),
            sync: SyncWord::Always,
            lease: Lease(Duration::from_secs(60)),
            user: None,
            password_file: None,
            connection_name: None,
            heartbeat: Seconds::new(10),
            connect_timeout: Positive::new(Duration::from_secs(10)),
            first_connect_tries: Count::new(1),
            declare: false,
            queue_type: QueueKind::Quorum,
            ca_file: None,
            cert_file: None,
            key_file: None,
            external: false,
            management: None,
            management_user: None,
            management_password_file: None,
            publish_window: Count::new(1024),
            linger: Duration::from_secs(1),
            consumer_timeout: None,
        }
    }
}

impl RawBroker {
    pub(super) fn read(&mut self, mut section: Section<'_, '_>) {
        section.read("url", &mut self.url);
        section.read("sync", &mut self.sync);
        section.read("lease", &mut self.lease);
        self.user = section.read_opt("user");
        self.password_file = section.read_opt("password-file");
        self.connection_name = section.read_opt("connection-name");
        section.read("heartbeat", &mut self.heartbeat);
        section.read("connect-timeout", &mut self.connect_timeout);
        section.read("first-connect-tries", &mut self.first_connect_tries);
        section.read("declare", &mut self.declare);
        section.read("queue-type", &mut self.queue_type);
        self.ca_file = section.read_opt("ca-file");
        self.cert_file = section.read_opt("cert-file");
        self.key_file = section.read_opt("key-file");
        section.read("external", &mut self.external);
        self.management = section.read_opt("management");
        self.management_user = section.read_opt("management-user");
        self.management_password_file = section.read_opt("management-password-file");
        section.read("publish-window", &mut self.publish_window);
        section.read("linger", &mut self.linger);
        self.consumer_timeout = section.read_opt("consumer-timeout");
        section.finish();
    }
}

/// Where messages come from.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum BrokerUrl {
    /// `memory:`
    Memory,
    /// `embedded:<dir>`
    Embedded(PathBuf),
    /// `amqp://…`, `amqps://…`: a RabbitMQ by at least one address, tried in order.
    Amqp(Vec<AmqpUri>),
}

impl Leaf for BrokerUrl {
    fn expected() -> String {
        "a broker such as \"embedded:./data\", \"memory:\" or \"amqp://host:5672/vhost\"".to_owned()
    }

    fn read(value: &toml::de::DeValue<'_>) -> Result<Self, Wrong> {
        let url = value.as_str().ok_or_else(|| Wrong::shape(value))?;
        match url.split_once(':') {
            Some(("memory", "")) => Ok(Self::Memory),
            Some(("embedded", dir)) if !dir.is_empty() && !dir.contains('\0') => {
                Ok(Self::Embedded(dir.into()))
            }
            Some(("amqp" | "amqps", _)) => match AmqpUri::parse_list(url) {
                Ok(uris) => Ok(Self::Amqp(uris)),
                Err(error) => Err(Wrong::Unfit(error.to_string())),
            },
            Some(("nats" | "tls", _)) => Err(Wrong::NotBuilt(
                "NATS JetStream (nats:) is not built yet; use \"embedded:<dir>\", \"memory:\" or \
                 \"amqp://host:5672/vhost\""
                    .to_owned(),
            )),
            // A URL may hold a password: never shown.
            _ => Err(Wrong::shape(value)),
        }
    }
}

/// `broker.sync`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SyncWord {
    /// `always`
    Always,
    /// `interval`
    Interval,
}

impl Choice for SyncWord {
    const WORDS: &'static [(&'static str, Self)] =
        &[("always", Self::Always), ("interval", Self::Interval)];
}

/// The type of a queue that we declare at a RabbitMQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueKind {
    /// Replicated, and safe.
    Quorum,
    /// Classic.
    Classic,
}

impl Choice for QueueKind {
    const WORDS: &'static [(&'static str, Self)] =
        &[("quorum", Self::Quorum), ("classic", Self::Classic)];
}
