//! Commands: a program is run for each delivery.
//!
//! The body is on its standard input, metadata as JSON on descriptor 3 and in `DELIVERY_*`
//! variables; its standard output is the result, its exit code the word. Nothing of a message is
//! ever part of a command line, and there is no shell. `command/handler.rs` tells the story; the
//! other files are its parts:
//!
//! ```text
//! spec ─► handler ─► metadata ─► spawn ─► child ─► pipes ─► exit_table ─► outcome
//!         (resolve: found at start)      (reaper: for what is dropped)
//! ```
//!
//! What it does not do: resource limits, other users, no-new-privileges and parent-death signals.
//! They need code between fork and exec; write a wrapper that has them as the command, such as
//! `["prlimit", "--as=1000000000", "--", "my-handler"]` or `["setpriv", "--pdeathsig", "KILL", …]`.
//! A process that leaves the command's process group (`setsid`) is out of reach of its signals.

mod child;
mod exit_table;
mod handler;
mod metadata;
mod pipes;
mod reaper;
mod resolve;
mod spawn;
mod spec;
mod stderr;

pub use child::end_all;
pub use exit_table::{ExitTable, ExitVerdict};
pub use handler::CommandHandler;
pub use spec::CommandSpec;
