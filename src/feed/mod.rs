//! Feeds: where messages come from before they are in a queue. Today that is a file of JSON lines.
//!
//! They implement [`Feed`](acquit_actors::ports::Feed) and know the ports and the model, nothing
//! else: no broker, no configuration file, no actor. A feed stores no position of its own: the
//! cursor goes out with each batch and is kept by whoever publishes it.

mod aside;
mod error;
mod file;
mod head;
mod line;
mod reader;
mod slug;

pub use file::{FileFeedSettings, file_feed};
pub use line::LINE_MAX;
