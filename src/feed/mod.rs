//! Feeds: where messages come from before they are in a queue. Today that is a file of JSON lines.
//!
//! They implement [`Feed`](acquit_actors::ports::Feed) and know the ports and the model, nothing
//! else: no broker, no configuration file, no actor. A feed stores no position of its own: the
//! cursor goes out with each batch and is kept by whoever publishes it.

use acquit_actors::model::{MessageId, Outgoing, QueueName};

mod aside;
mod error;
mod file;
mod head;
mod line;
mod reader;
mod slug;

pub use file::{FileFeedSettings, file_feed};
pub use line::LINE_MAX;

/// Reads one line in the feed's format as a message for a queue: for `publish`, which has no
/// position to make an id of.
///
/// # Errors
/// What is wrong with the line, without its content.
pub fn parse_line(line: &[u8], queue: &QueueName) -> Result<Outgoing, String> {
    let fed = line::parse(line).map_err(|error| error.to_string())?;
    let mut message = Outgoing::new(queue.clone(), fed.body);
    message.key = fed.key;
    message.id = fed.id.map(MessageId::from);
    message.headers = fed.headers;
    Ok(message)
}
