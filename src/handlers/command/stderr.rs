//! A command's standard error: its end is the error's text, its lines go to our log, both harmless
//! and bounded.

use std::sync::Arc;

use acquit_actors::model::Delivery;
use tracing::Level;

use crate::handlers::escape::{escape_line, escape_tail};

/// The tracing target of the lines.
const TARGET: &str = "acquit::command::stderr";
/// At most this many lines of one delivery are logged; the rest is counted.
const LINES_MAX: u32 = 64;
/// A logged line is cut to this many bytes.
const LINE_MAX: usize = 1024;
/// An id beside it is cut to this many.
const ID_MAX: usize = 128;

/// What a command has written to standard error.
#[derive(Debug)]
pub(super) struct Stderr {
    tail: Vec<u8>,
    tail_max: usize,
    bytes: u64,
    lines: Option<Lines>,
}

impl Stderr {
    pub(super) fn new(delivery: &Arc<Delivery>, tail_max: usize) -> Self {
        let is_logged = tracing::enabled!(target: TARGET, Level::INFO);
        Self {
            tail: Vec::new(),
            tail_max,
            bytes: 0,
            lines: is_logged.then(|| Lines::new(delivery.clone())),
        }
    }

    /// Takes what was read.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.tail
            .extend_from_slice(&bytes[bytes.len().saturating_sub(self.tail_max)..]);
        // Moved only once it is twice as long, so that many short reads stay cheap.
        if self.tail.len() > self.tail_max.saturating_mul(2) {
            self.tail.drain(..self.tail.len() - self.tail_max);
        }
        if let Some(lines) = &mut self.lines {
            lines.push(bytes);
        }
    }

    /// Ends it: logs the last line and gives the tail as harmless text, empty for none.
    pub(super) fn finish(mut self) -> String {
        if let Some(lines) = &mut self.lines {
            lines.finish();
        }
        let tail = &self.tail[self.tail.len().saturating_sub(self.tail_max)..];
        let is_cut = self.bytes > tail.len() as u64;
        escape_tail(tail.trim_ascii_end(), is_cut, self.tail_max)
    }
}

#[derive(Debug)]
struct Lines {
    delivery: Arc<Delivery>,
    /// The line so far, no longer than is logged, and how long it really is.
    line: Vec<u8>,
    line_bytes: usize,
    logged: u32,
    not_logged: u64,
}

impl Lines {
    fn new(delivery: Arc<Delivery>) -> Self {
        Self {
            delivery,
            line: Vec::new(),
            line_bytes: 0,
            logged: 0,
            not_logged: 0,
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|b| *b == b'\n') {
            let (text, ends) = match piece.strip_suffix(b"\n") {
                Some(text) => (text, true),
                None => (piece, false),
            };
            self.line_bytes += text.len();
            // One byte more than is shown, so that the cut is seen by whoever escapes it.
            let room = (LINE_MAX + 1).saturating_sub(self.line.len());
            self.line.extend_from_slice(&text[..text.len().min(room)]);
            if ends {
                self.log();
            }
        }
    }

    fn log(&mut self) {
        if self.logged == LINES_MAX {
            self.not_logged += 1;
        } else {
            self.logged += 1;
            let id = self.id();
            tracing::info!(
                target: TARGET,
                queue = %escape_line(self.delivery.queue.as_str().as_bytes(), ID_MAX),
                partition = %self.delivery.partition,
                id = id.as_deref(),
                attempt = %self.delivery.attempt,
                line_bytes = self.line_bytes,
                line = %escape_line(self.line.trim_ascii_end(), LINE_MAX),
            );
        }
        self.line.clear();
        self.line_bytes = 0;
    }

    fn finish(&mut self) {
        if self.line_bytes > 0 {
            self.log();
        }
        if self.not_logged > 0 {
            let id = self.id();
            tracing::info!(
                target: TARGET,
                queue = %escape_line(self.delivery.queue.as_str().as_bytes(), ID_MAX),
                id = id.as_deref(),
                lines = self.not_logged,
                "more lines, not logged",
            );
        }
    }

    fn id(&self) -> Option<String> {
        let id = self.delivery.id.as_ref()?;
        Some(escape_line(id.as_str().as_bytes(), ID_MAX))
    }
}

#[cfg(test)]
mod tests {
    use acquit_actors::model::{Generation, PartitionId};
    use bytes::Bytes;

    use super::*;

    #[test]
    fn the_tail_is_the_end_however_it_was_read() {
        let delivery = Arc::new(Delivery::new(
            "q".into(),
            PartitionId(0),
            Generation(0),
            Bytes::new(),
        ));
        let text: Vec<u8> = (0..5000_u32).map(|n| b'a' + (n % 26) as u8).collect();
        for step in [1, 7, 100, 5000] {
            let mut stderr = Stderr::new(&delivery, 10);
            text.chunks(step).for_each(|chunk| stderr.push(chunk));
            let expected = format!("…{}", String::from_utf8_lossy(&text[4990..]));
            let tail = stderr.finish();
            assert!(
                tail.ends_with(&expected[3..]) && tail.len() <= 13,
                "{step}: {tail}"
            );
        }
    }
}
