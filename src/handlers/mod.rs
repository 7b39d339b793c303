//! Handlers that need no Rust from the user: commands and built-ins.
//!
//! They implement [`DeliveryHandler`](acquit_actors::ports::DeliveryHandler) and know the ports
//! and the model, nothing else: no broker, no configuration file, no actor. A [`HandlerSpec`] says
//! which handler a consumer has; [`build`] makes it, and refuses here, before a socket is opened,
//! what could never run.

mod builtin;
pub mod command;
mod error;
mod escape;
mod spec;

pub use builtin::{Discard, Echo, Log};
pub use command::{CommandHandler, CommandSpec, ExitTable, ExitVerdict};
pub use error::HandlerError;
pub use escape::escape_line;
pub use spec::{HandlerSpec, build};
