//! Starts the RabbitMQ node that tests share: on loopback, on free ports, in a temporary folder.
//!
//! ```text
//! cargo run --all-features --example private_rabbit -- [FILE]
//! ```
//!
//! Says which value of `ACQUIT_TEST_RABBIT` leads tests to it, in the file or on the standard output. It ends, and
//! its node with it, when its input ends or at SIGTERM, SIGINT or SIGHUP.
#![allow(
    clippy::print_stdout,
    reason = "a tool for the tests, which lead their lives outside of the product"
)]

#[path = "../tests/broker_kit/mod.rs"]
mod broker_kit;

use std::io::Read;
use std::path::Path;
use std::{fs, io, thread};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use broker_kit::{Node, SharedBroker, VARIABLE};

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let mut ends = Ends::listen()?;
    let node = tokio::select! {
        node = Node::start_with(SharedBroker::options()) => node,
        () = ends.next() => return Ok(()),
    };
    let value = SharedBroker::describe(&node);
    match std::env::args_os().nth(1) {
        Some(path) => announce(Path::new(&path), &value)?,
        None => println!("{VARIABLE}='{value}'\n{}", node.uri()),
    }
    ends.next().await;
    Ok(())
}

/// Whoever waits for the file sees it complete.
fn announce(path: &Path, value: &str) -> io::Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, value)?;
    fs::rename(new, path)
}

/// All that ends this program.
struct Ends {
    input: oneshot::Receiver<()>,
    signals: [Signal; 3],
}

impl Ends {
    fn listen() -> io::Result<Self> {
        let (sender, input) = oneshot::channel();
        thread::spawn(move || {
            let mut sink = Vec::new();
            io::stdin().read_to_end(&mut sink).ok();
            drop(sender);
        });
        let kinds = [
            SignalKind::terminate(),
            SignalKind::interrupt(),
            SignalKind::hangup(),
        ];
        let [term, int, hup] = kinds.map(signal);
        Ok(Self {
            input,
            signals: [term?, int?, hup?],
        })
    }

    async fn next(&mut self) {
        let [term, int, hup] = &mut self.signals;
        tokio::select! {
            _ = &mut self.input => {}
            _ = term.recv() => {}
            _ = int.recv() => {}
            _ = hup.recv() => {}
        }
    }
}
