//! The kit of private brokers, tried on itself.

#[path = "../broker_kit/mod.rs"]
mod broker_kit;

mod nodes;
