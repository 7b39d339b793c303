//! Private brokers for tests, and what stands between them and a client.
//!
//! A test binary includes this folder with `#[path = "../broker_kit/mod.rs"] mod broker_kit;`. It gives:
//!
//! - [`SharedBroker`]: one RabbitMQ node for all tests, with a virtual host for each test (milliseconds);
//! - [`Node`] and [`Cluster`]: nodes that a test may kill (seconds to start);
//! - [`Proxy`]: what a network does to connections, and a [`WireTap`] that reads what was said, for
//!   [`check_settlements`];
//! - [`FakeServer`]: a scripted peer for what no broker does on demand;
//! - [`PublisherLedger`], [`HandlerLedger`] and [`check`]: whether anything was lost, doubled or made up.
//!
//! Everything listens on loopback, lives in a temporary folder, and ends with the test process, however that ends.
//! What goes wrong inside the kit is a panic that says so: a test has nothing better to do with it.

#![allow(
    dead_code,
    unused_imports,
    reason = "each test binary uses its own part of the kit"
)]

mod admin;
mod cluster;
mod codec;
mod control;
mod fake_server;
mod ground;
mod ledger;
mod node;
mod proxy;
mod settlements;
mod shared;
mod wire_tap;

use std::time::{Duration, Instant};

pub(crate) use admin::{Admin, ConnectionInfo, PolicyTarget, QueueInfo};
pub(crate) use cluster::Cluster;
pub(crate) use codec::{Frames, Piece, encode};
pub(crate) use control::{Control, EvalError};
pub(crate) use fake_server::{FakeServer, Handshake, Peer, delivery, raw_frame};
pub(crate) use ledger::{Differences, HandlerLedger, Published, PublisherLedger, Runs, check};
pub(crate) use node::{Node, NodeOptions, TlsFiles};
pub(crate) use proxy::{Cut, Flow, Proxy, Tap, Way};
pub(crate) use settlements::{Delivered, Violation, check_settlements};
pub(crate) use shared::{SharedBroker, VARIABLE, Vhost};
pub(crate) use wire_tap::{Event, What, WireTap};

/// No wait in the kit is longer than this, but for the start of a node.
pub(crate) const BOUND: Duration = Duration::from_secs(30);

/// Waits until `look` finds something, within [`BOUND`].
pub(crate) async fn eventually<T, F>(what: &str, mut look: F) -> T
where
    F: AsyncFnMut() -> Option<T>,
{
    let start = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(start.elapsed() < BOUND, "not within {BOUND:?}: {what}");
        pause(Duration::from_millis(20)).await;
    }
}

/// Other processes have no way to wake us.
async fn pause(time: Duration) {
    // tidy-allow: sleep: the pause between two looks of a bounded wait
    tokio::time::sleep(time).await;
}
