//! The view.

use std::collections::BTreeMap;
use std::io;

use acquit_actors::Snapshot;

use crate::control::QueueDepth;

/// The live view.
#[derive(Debug, Default)]
pub struct View;

impl View {
    /// Makes it.
    pub fn new() -> Self {
        Self
    }
    /// Where log lines go.
    pub fn writer(&self) -> impl io::Write + Send + 'static {
        io::stderr()
    }
    /// Whether colours are wanted.
    pub fn is_colourful(&self) -> bool {
        false
    }
    /// Draws.
    pub fn update(&self, _: &Snapshot, _: &BTreeMap<String, QueueDepth>) {}
    /// Ends.
    pub fn finish(&self) {}
}

/// The summary.
pub fn summary(snapshot: &Snapshot, depths: &BTreeMap<String, QueueDepth>) -> String {
    let mut text = String::new();
    for c in &snapshot.consumers {
        text += &format!(
            "  {} received {} acked {} failed {} in hand {}\n",
            c.name, c.counts.received, c.counts.acked, c.counts.failed, c.counts.in_hand
        );
    }
    for (queue, depth) in depths {
        text += &format!(
            "  queue {queue}: ready {} delayed {} dead {}\n",
            depth.ready, depth.delayed, depth.dead
        );
    }
    text
}
