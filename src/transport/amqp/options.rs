//! How a RabbitMQ is used.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use acquit_actors::model::{Backoff, ConsumerName, QueueName};

use super::topology::Argument;
use super::uri::{AmqpUri, Secret};

/// The type of a queue that we declare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum QueueType {
    /// Replicated, and safe: the default.
    #[default]
    Quorum,
    /// Classic.
    Classic,
}

impl QueueType {
    /// Gives the broker's word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Quorum => "quorum",
            Self::Classic => "classic",
        }
    }
}

/// The exchange, named as the queue, through which other producers reach its partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Partitioning {
    /// There is none.
    None,
    /// The routing key is the partition's number.
    #[default]
    Direct,
    /// The broker hashes the routing key, by a plugin of its own.
    ConsistentHash,
}

/// How TLS is set up. Read again at every connect, so that renewed files count.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TlsOptions {
    /// The certificates to trust, PEM; `None`: those of the system.
    pub ca_file: Option<PathBuf>,
    /// Our own certificate, PEM.
    pub cert_file: Option<PathBuf>,
    /// Its key, PEM.
    pub key_file: Option<PathBuf>,
    /// Log in by the certificate (EXTERNAL), without a password.
    pub external: bool,
}

/// The broker's management API, for what AMQP cannot tell.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ManagementOptions {
    /// `http://host:port`.
    pub url: String,
    /// Who we are there.
    pub user: String,
    /// The password.
    pub password: Secret,
}

impl ManagementOptions {
    /// All that is needed.
    pub fn new(url: impl Into<String>, user: impl Into<String>, password: Secret) -> Self {
        Self {
            url: url.into(),
            user: user.into(),
            password,
        }
    }
}

/// How one consumer uses its queue; what is not here stands in the engine's own settings.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct AmqpConsumer {
    /// Whose.
    pub name: ConsumerName,
    /// Its queue.
    pub queue: QueueName,
    /// How many partitions the queue has: `<queue>.0` … for more than one.
    pub partitions: u32,
    /// How other producers reach them.
    pub partitioning: Partitioning,
    /// The consumer's priority (`x-priority`).
    pub priority: Option<i32>,
    /// More arguments of the consumer, as its broker knows them.
    pub arguments: BTreeMap<String, Argument>,
    /// Ordered partitions of a fleet: the broker hands each out to one consumer only.
    pub single_active: bool,
    /// The retry ladder: its steps' delays, without jitter; empty: none.
    pub ladder: Vec<Duration>,
    /// Where dead letters go.
    pub dead_letter_queue: Option<QueueName>,
    /// A message that is rejected without a dead-letter queue is acknowledged, so that not even the
    /// queue's own dead-letter exchange gets it.
    pub drop_dead: bool,
    /// Where replies go.
    pub reply_queue: Option<QueueName>,
}

/// The options of a RabbitMQ transport; [`AmqpOptions::new`] has the defaults.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct AmqpOptions {
    /// The addresses, tried in order; at least one.
    pub uris: Vec<AmqpUri>,
    /// What the broker shows as our name; the process's own is added.
    pub connection_name: String,
    /// How long name, connect, handshake and opening may take, each address; 10 s.
    pub connect_timeout: Duration,
    /// How long any other answer of the broker may take; 10 s.
    pub answer_timeout: Duration,
    /// The heartbeat that is asked for, where the URI asks for none; 10 s.
    pub heartbeat: Duration,
    /// How often a first connection is tried, all addresses each time; 0: for ever. 1.
    pub first_connect_tries: u32,
    /// The delays between tries: 0.5 s doubled to 30 s, and at most 1 s in the first two minutes.
    pub backoff: Backoff,
    /// How many publishes may be unconfirmed at once; 1024.
    pub publish_window: usize,
    /// How long a source waits after its last ack before it closes, at most 1 s; 1 s.
    pub linger: Duration,
    /// TLS, for `amqps`.
    pub tls: TlsOptions,
    /// Declare what is missing. Otherwise nothing is declared.
    pub declare: bool,
    /// The type of declared queues.
    pub queue_type: QueueType,
    /// The management API.
    pub management: Option<ManagementOptions>,
    /// The consumers.
    pub consumers: Vec<AmqpConsumer>,
}

impl AmqpOptions {
    /// The defaults for a broker.
    pub fn new(uri: AmqpUri) -> Self {
        Self {
            uris: vec![uri],
            connection_name: "acquit".to_owned(),
            connect_timeout: Duration::from_secs(10),
            answer_timeout: Duration::from_secs(10),
            heartbeat: Duration::from_secs(10),
            first_connect_tries: 1,
            backoff: Backoff {
                base: Duration::from_millis(500),
                max: Duration::from_secs(30),
            },
            publish_window: 1024,
            linger: Duration::from_secs(1),
            tls: TlsOptions::default(),
            declare: false,
            queue_type: QueueType::Quorum,
            management: None,
            consumers: Vec::new(),
        }
    }
}

impl AmqpConsumer {
    /// A consumer of one queue with one partition and nothing else.
    pub fn new(name: impl Into<ConsumerName>, queue: impl Into<QueueName>) -> Self {
        Self {
            name: name.into(),
            queue: queue.into(),
            partitions: 1,
            partitioning: Partitioning::default(),
            priority: None,
            arguments: BTreeMap::new(),
            single_active: false,
            ladder: Vec::new(),
            dead_letter_queue: None,
            drop_dead: false,
            reply_queue: None,
        }
    }
}
