//! The connections: one for consuming, one for publishing. A memory alarm at the broker blocks
//! every connection that has published, and then it reads no acks there either.

mod core;
mod grip;
mod keeper;
mod open;

pub(super) use core::State;
pub(super) use keeper::Keeper;
pub(super) use open::{Opener, connect, plain_uri};
