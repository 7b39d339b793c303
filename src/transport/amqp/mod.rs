//! RabbitMQ (`amqp://`, `amqps://`), through lapin.

mod options;
mod uri;

pub use options::{AmqpConsumer, AmqpOptions, ManagementOptions, QueueType, TlsOptions};
pub use uri::{AmqpUri, Secret};
