//! RabbitMQ (`amqp://`, `amqps://`), through lapin.

mod classify;
pub mod error;
mod facts;
mod greeting;
pub mod management;
mod options;
mod reply_text;
pub mod topology;
mod uri;

pub use classify::{classify, reply};
pub use error::AmqpError;
pub use facts::{BrokerFacts, BrokerVersion, Known, QueueFacts};
pub use greeting::broker_version;
pub use options::{
    AmqpConsumer, AmqpOptions, ManagementOptions, Partitioning, QueueType, TlsOptions,
};
pub use uri::{AmqpUri, Secret};
