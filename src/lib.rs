//! `acquit`: a supervised runtime for people who consume messages. Every delivery a broker hands
//! over becomes an actor that owns its settlement: whatever happens to the work, the broker is told
//! exactly once, and the truth.
//!
//! The engine itself is the crate [`acquit_actors`], re-exported here; this crate adds transports,
//! handlers, configuration and the binary.

pub mod app;
pub mod cli;
pub mod config;
pub mod control;
pub mod feed;
pub mod handlers;
pub mod signal;
pub mod telemetry;
pub mod transport;

#[doc(inline)]
pub use acquit_actors::*;

/// The README's example is compiled with the documentation.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
