//! The adapters for brokers: each implements the transport ports and keeps its client or store to
//! itself.

pub mod amqp;
pub mod embedded;
mod letters;

pub use letters::{Letter, LetterFilter};
