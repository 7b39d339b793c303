//! The engine on a real RabbitMQ.

#[path = "../broker_kit/mod.rs"]
mod broker_kit;
mod delivering;
mod losing;
mod place;
mod retrying;
mod wire;
