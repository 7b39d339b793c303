//! The `acquit` binary from outside: real processes, each with a folder and a configuration of its
//! own.

mod kit;

mod bodies;
mod commands;
mod disk;
mod handlers;
mod job;
#[cfg(feature = "fail-points")]
mod kills;
mod limits;
mod pipes;
mod refusals;
mod signals;
