//! The control plane: commands to a running process over a Unix socket in its state folder.
//!
//! One connection carries requests as JSON lines; each is answered by any number of items and one
//! end. The socket is the only way in: mode 0600, so only the process's own user may connect.

mod client;
mod desk;
mod protocol;
mod server;

pub use client::{Client, ClientError};
pub use desk::{Desk, DeskError, QueueDepth};
pub use protocol::{Answer, BrokerTold, QueueTold, REQUEST_BYTES_MAX, Request, StatusReport};
pub use server::{ControlError, Server};
