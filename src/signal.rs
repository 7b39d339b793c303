//! Signals: the first TERM or INT drains, the second gives stragglers back now, the third ends the
//! process at once.

use std::io;

use acquit_actors::Handle;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listens for the signals that end the process.
#[derive(Debug)]
pub struct Signals {
    term: Signal,
    int: Signal,
}

/// What a signal asks for, by how many came before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// The first: drain.
    Drain,
    /// The second: give stragglers back now.
    Force,
    /// The third: end at once.
    Exit,
}

impl Asked {
    /// Says what the n-th signal asks for, counted from 1.
    pub fn by(count: u32) -> Self {
        match count {
            0 | 1 => Self::Drain,
            2 => Self::Force,
            _ => Self::Exit,
        }
    }
}

impl Signals {
    /// Takes the signals over: from here on they do not end the process by themselves.
    ///
    /// # Errors
    /// When the system refuses the handlers.
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next one and gives its name.
    ///
    /// # Cancel safety
    /// Safe to drop: no signal is lost.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.term.recv() => "TERM",
            _ = self.int.recv() => "INT",
        }
    }

    /// Passes signals on to the engine until the third one came.
    pub async fn govern(&mut self, handle: &Handle) {
        for count in 1.. {
            let name = self.next().await;
            match Asked::by(count) {
                Asked::Drain => {
                    tracing::info!(signal = name, "draining; again to give stragglers back now");
                    let _ = handle.drain(format!("signal {name}")).await;
                }
                Asked::Force => {
                    tracing::warn!(
                        signal = name,
                        "giving stragglers back; again to end at once"
                    );
                    let _ = handle.force().await;
                }
                Asked::Exit => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_drains_the_second_forces_and_further_ones_end() {
        let asked: Vec<Asked> = (1..=4).map(Asked::by).collect();
        assert_eq!(
            asked,
            [Asked::Drain, Asked::Force, Asked::Exit, Asked::Exit]
        );
    }
}
