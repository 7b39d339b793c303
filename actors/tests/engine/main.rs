//! The engine over a scripted broker: on virtual time, and with real threads where threads matter.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod cancel;
mod drain;
mod embed;
mod intake;
mod jobs;
mod leaks;
mod outcomes;
mod panics;
mod publishing;
mod random;
mod retries;
mod settling;
mod support;
mod threads;
