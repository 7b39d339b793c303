//! Feeders: messages on their way from a file, or elsewhere, into a queue.

mod actor;

pub(crate) use actor::{FeedShared, feed};
pub use actor::{FeedSpec, FeedStatus};
