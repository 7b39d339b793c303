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
mod coalescer;
mod connection;
mod convert;
mod options;
mod partitions;
mod publisher;
mod source;
mod transport;
mod trouble;
mod uri;

pub use bare::{BareAck, BareClient, BareError};
pub use options::{AmqpConsumer, AmqpOptions, ManagementOptions, QueueType, TlsOptions};
pub use transport::AmqpTransport;
pub use uri::{AmqpUri, Part, Secret, UriError};
