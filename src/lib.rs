//! acquit: a supervised runtime for people who consume messages. Every delivery is settled once,
//! and the truth is told.

pub mod cli;
pub mod config;
pub mod telemetry;
