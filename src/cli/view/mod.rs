//! What a person sees of a process: the live view of `run` on a terminal, and the summary that
//! `status` gives and that stands at the end of a run.
//!
//! Everything is made from a snapshot and the depths of the queues; nothing here asks the engine.
//! What is shown is decided by pure functions ([`rows`], [`render`], [`summary`]); only [`View`]
//! knows the terminal.

mod live;
mod rows;
mod summary;
pub(super) mod words;

use std::collections::BTreeMap;

use crate::model::QueueName;

pub use live::{View, ViewWriter};
pub use rows::{ConsumerRow, FeedRow, FooterRow, Row, render, rows};
pub use summary::{broker_lines, summary};

pub use crate::control::QueueDepth;

/// The depths of the queues, as far as they are known.
pub type QueueDepths = BTreeMap<QueueName, QueueDepth>;

/// A consumer in every state worth showing, for the tests of this module.
#[cfg(test)]
fn example() -> (crate::Snapshot, QueueDepths) {
    let counts = |received: u64| {
        serde_json::json!({
            "received": received, "redelivered": 3, "in-hand": 40, "acked": received - 58,
            "requeued": 9, "released": 4, "rejected": 2, "lost": 3, "stale": 1,
            "completed": received - 60, "failed": 11, "unavailable": 1, "known": 0, "adopted": 0,
            "overruns": 0, "actor-deaths": 0,
        })
    };
    let waiting = |count: u64| serde_json::json!({"count": count, "bytes": 0, "oldest": null});
    let partition = |number: u32, paused: Option<&str>, trouble: Option<&str>, oldest: u64| {
        serde_json::json!({
            "partition": number, "subscription": "subscribed", "paused": paused,
            "trouble": trouble, "generation": 1, "counts": counts(1000), "oldest-ms": oldest,
        })
    };
    let consumer = |number: u32, taken: u32, wait: u64| {
        serde_json::json!({
            "consumer": number, "permits": 16, "taken": taken, "in-flight-bytes": 0, "rate": null,
            "waiting": waiting(wait), "partitions": [],
        })
    };
    let snapshot = serde_json::json!({
        "phase": "running", "uptime-ms": 72_000, "transport": "embedded",
        "limiter": {
            "permits": 64, "taken": 21, "in-flight-bytes-max": 268_435_456, "in-flight-bytes": 1_258_291,
            "rate": null, "waiting": waiting(24), "consumers": [consumer(0, 16, 24), consumer(1, 5, 0)],
        },
        "consumers": [
            {
                "name": "words", "queue": "words", "permits": 16, "counts": counts(1_234_567),
                "partitions": [
                    partition(0, None, None, 1200),
                    partition(1, Some("by acquit pause\u{1b}[2J"), Some("the broker is away"), 65_000),
                ],
            },
            {
                "name": "mail", "queue": "mail.out", "permits": 8, "counts": counts(100),
                "partitions": [],
            },
        ],
        "feeds": [
            {"name": "examples/tasks.jsonl -> words", "queue": "words", "published": 1429,
             "bad": 2, "skipped": 0, "ended": true, "failed": false, "trouble": null},
            {"name": "more.jsonl -> words", "queue": "words", "published": 0,
             "bad": 0, "skipped": 7, "ended": false, "failed": false, "trouble": "the disk is full"},
        ],
        "handlers-alive": 21, "ledger-entries": 0, "refused-events": 0, "observer-panics": 0,
        "kept": {"deliveries": 21, "works": 21, "lingering": 0, "timers": 21},
    });
    let depth = |ready, delayed, dead| QueueDepth {
        leased: 0,
        oldest_ms: None,
        ready,
        delayed,
        dead,
    };
    let depths = [
        ("words".into(), depth(12_345, 6, 2)),
        ("words.results".into(), depth(1389, 0, 0)),
    ];
    let snapshot = serde_json::from_value(snapshot).expect("the example is a snapshot");
    (snapshot, depths.into_iter().collect())
}
