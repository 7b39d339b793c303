//! What an operator does with a real RabbitMQ: dead letters, a check, and a look at a process.

#[path = "../broker_kit/mod.rs"]
mod broker_kit;
mod checking;
mod letters;
#[path = "../rabbit/place.rs"]
#[allow(dead_code, reason = "the engine's own tests use the rest of the place")]
mod place;
