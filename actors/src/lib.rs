//! The actor system of acquit: settlement, supervision, limiter, drain, and the ports they need.

pub mod limiter;
pub mod model;
pub mod ports;
pub mod settlement;
pub mod supervision;
