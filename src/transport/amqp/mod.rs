//! RabbitMQ (`amqp://`, `amqps://`), through lapin with its own recovery off.
//!
//! ```text
//! connection "consume" ─► channel of a partition's generation ─► source ─► settlers
//!      (kept by an actor)      ▲ coalescer: which frames leave (pure)         │
//!                              └──────────────────────────────────────────────┘
//! connection "publish" ─► channel with confirms ─► publisher: replies, retry copies, dead letters
//! ```
//!
//! A settler belongs to the channel that brought its delivery. When that channel ends, all its
//! settlers answer *gone*: no word for an old generation ever reaches the wire.

mod bare;
mod channel;
mod classify;
mod coalescer;
mod connection;
mod convert;
mod dead_letters;
pub mod error;
mod facts;
mod greeting;
pub mod management;
mod options;
mod partitions;
mod publisher;
mod reply_text;
mod source;
mod tls;
pub mod topology;
mod transport;
mod under_way;
mod uri;

pub use bare::{BareAck, BareClient, BareError};
pub use classify::{classify, reply};
pub use dead_letters::{DeadLetters, Fate, Found, LOOK_MAX, Replay, Replayed};
pub use error::{AmqpError, TlsTrouble};
pub use facts::{BrokerFacts, BrokerVersion, Known, QueueFacts};
pub use greeting::broker_version;
pub use options::{
    AmqpConsumer, AmqpOptions, ManagementOptions, Partitioning, QueueType, TlsOptions,
};
pub use transport::AmqpTransport;
pub use uri::{AmqpUri, Part, Secret, UriError};
