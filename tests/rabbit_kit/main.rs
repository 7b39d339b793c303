//! The kit of private brokers, tried on itself.

#[path = "../broker_kit/mod.rs"]
mod broker_kit;

mod fakes;
mod ledgers;
mod nodes;
mod proxies;
mod wire;
