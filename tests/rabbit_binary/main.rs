//! The `acquit` binary on a real RabbitMQ.

#[path = "../broker_kit/mod.rs"]
mod broker_kit;
mod home;
#[cfg(feature = "fail-points")]
mod kills;
mod refusing;
mod signals;

#[path = "../binary/kit.rs"]
#[allow(dead_code, reason = "each test binary uses its own part of the kit")]
mod kit;
