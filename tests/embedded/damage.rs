//! Damaged files: what is bad is set aside or refused by name, and never delivered as good.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use acquit::transport::embedded::{EmbeddedError, EmbeddedTransport};
use acquit_actors::model::{Disposition, Outgoing, RejectReason};
use acquit_actors::ports::Transport;

use super::kit::*;

/// A store with some messages, closed in order.
fn closed_store(count: usize) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let transport = open_dir(dir.path()).unwrap();
    for n in 0..count {
        publish(&transport, Outgoing::new("q".into(), body(n))).unwrap();
    }
    block(transport.close()).unwrap();
    dir
}

/// A copy of a folder as a kill would leave it: the log holds what the tables do not.
fn killed_store(count: usize) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let transport = open_dir(dir.path()).unwrap();
    for n in 0..count {
        publish(&transport, Outgoing::new("q".into(), body(n))).unwrap();
    }
    let copy = copy_of(dir.path());
    block(transport.close()).unwrap();
    copy
}

fn copy_of(dir: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    copy
}

fn body(n: usize) -> String {
    format!("message number {n:05} {}", "x".repeat(40))
}

fn flip(file: &Path, at: usize) {
    let mut bytes = fs::read(file).unwrap();
    bytes[at] ^= 0x10;
    fs::write(file, bytes).unwrap();
}

fn find(file: &Path, text: &str) -> Vec<usize> {
    let bytes = fs::read(file).unwrap();
    let windows = bytes.windows(text.len()).enumerate();
    windows
        .filter(|(_, window)| *window == text.as_bytes())
        .map(|(at, _)| at)
        .collect()
}

fn live_bodies(transport: &EmbeddedTransport) -> Vec<String> {
    let peeked = block(transport.peek(&"q".into(), usize::MAX)).unwrap();
    let text = |body: &[u8]| String::from_utf8_lossy(body).into_owned();
    peeked.iter().map(|p| text(&p.delivery.body)).collect()
}

fn tables(dir: &Path) -> PathBuf {
    dir.join("messages.redb")
}

fn refused(dir: &Path) -> EmbeddedError {
    open_dir(dir).expect_err("refused")
}

#[test]
fn a_flipped_bit_in_a_message_sets_that_message_aside() {
    let dir = closed_store(20);
    for at in find(&tables(dir.path()), &body(7)) {
        flip(&tables(dir.path()), at + 3);
    }
    let transport = open_dir(dir.path()).unwrap();
    let expected: Vec<_> = (0..20).filter(|n| *n != 7).map(body).collect();
    assert_eq!(live_bodies(&transport), expected);
    let taken = block(transport.take(&"q".into(), 100)).unwrap();
    assert_eq!(taken.len(), 19);
    let dead = block(transport.dead_list(&"q".into(), 10)).unwrap();
    assert_eq!(dead.len(), 1);
    assert_eq!(dead[0].reason, RejectReason::Corrupt.as_str());
    let total = block(transport.stats(&"q".into())).unwrap().total();
    assert_eq!(total.dead, 1);
    // It stays there.
    block(transport.close()).unwrap();
    drop(transport);
    let transport = open_dir(dir.path()).unwrap();
    let dead = block(transport.dead_list(&"q".into(), 10)).unwrap();
    assert_eq!(dead.len(), 1);
}

#[test]
fn a_kill_right_after_a_message_was_set_aside_costs_no_other() {
    for n in [0, 7, 29] {
        let dir = closed_store(30);
        for at in find(&tables(dir.path()), &body(n)) {
            flip(&tables(dir.path()), at + 3);
        }
        let transport = open_dir(dir.path()).unwrap();
        let killed = copy_of(dir.path());
        drop(transport);
        let transport = open_dir(killed.path()).unwrap();
        assert_eq!(live_bodies(&transport).len(), 29, "message {n}");
        let dead = block(transport.dead_list(&"q".into(), 10)).unwrap();
        assert_eq!(dead.len(), 1);
    }
}

#[test]
fn no_flipped_bit_anywhere_delivers_what_was_not_published() {
    let count = 30;
    let dir = closed_store(count);
    let good = fs::read(tables(dir.path())).unwrap();
    let log = fs::read(dir.path().join("tail.log")).unwrap();
    let all: BTreeSet<String> = (0..count).map(body).collect();
    // Every place that holds something, thinned out.
    let places = (0..good.len()).filter(|at| good[*at] != 0).step_by(97);
    for at in places {
        fs::write(tables(dir.path()), &good).unwrap();
        fs::write(dir.path().join("tail.log"), &log).unwrap();
        flip(&tables(dir.path()), at);
        let transport = match open_dir(dir.path()) {
            Ok(transport) => transport,
            Err(error) => {
                assert!(
                    error.to_string().contains("messages.redb"),
                    "byte {at}: {error}"
                );
                continue;
            }
        };
        if transport.queues().is_empty() {
            panic!("byte {at}: the queue is gone without a word");
        }
        let live = match block(transport.peek(&"q".into(), usize::MAX)) {
            Ok(live) => live,
            Err(error) => {
                assert!(
                    error.to_string().contains("messages.redb"),
                    "byte {at}: {error}"
                );
                continue;
            }
        };
        let dead = block(transport.dead_list(&"q".into(), 100)).unwrap();
        for peeked in &live {
            let text = String::from_utf8_lossy(&peeked.delivery.body).into_owned();
            assert!(all.contains(&text), "byte {at}: delivered {text:?}");
        }
        assert!(
            live.len() + dead.len() >= count,
            "byte {at}: {} and {dead:?} of {count}",
            live.len()
        );
    }
}

#[test]
fn a_cut_off_tables_file_is_refused_by_name() {
    let dir = closed_store(200);
    let length = fs::metadata(tables(dir.path())).unwrap().len();
    for part in [0.9, 0.5, 0.1] {
        let file = fs::OpenOptions::new().write(true).open(tables(dir.path()));
        file.unwrap()
            .set_len((length as f64 * part) as u64)
            .unwrap();
        let error = refused(dir.path()).to_string();
        assert!(error.contains("messages.redb"), "{error}");
    }
}

#[test]
fn a_flipped_bit_in_the_log_is_refused_by_name_if_more_follows() {
    let dir = killed_store(10);
    let log = dir.path().join("tail.log");
    let at = find(&log, &body(4));
    assert_eq!(at.len(), 1);
    flip(&log, at[0]);
    let error = refused(dir.path());
    assert!(matches!(error, EmbeddedError::Corrupt { .. }));
    assert!(error.to_string().contains("tail.log"), "{error}");
    flip(&log, at[0]);
    let transport = open_dir(dir.path()).unwrap();
    assert_eq!(live_bodies(&transport).len(), 10);
}

#[test]
fn a_cut_off_end_of_the_log_costs_only_what_was_never_confirmed() {
    let dir = killed_store(10);
    let log = dir.path().join("tail.log");
    let last = find(&log, &body(9))[0];
    let mut bytes = fs::read(&log).unwrap();
    bytes[last + 10..].fill(0);
    fs::write(&log, bytes).unwrap();
    let transport = open_dir(dir.path()).unwrap();
    let expected: Vec<_> = (0..9).map(body).collect();
    assert_eq!(live_bodies(&transport), expected);
    publish(&transport, Outgoing::new("q".into(), "more")).unwrap();
}

#[test]
fn a_newer_format_is_refused_by_name() {
    let dir = closed_store(1);
    fs::write(dir.path().join("FORMAT"), "acquit embedded store 2\n").unwrap();
    let error = refused(dir.path());
    assert!(matches!(
        error,
        EmbeddedError::NewerFormat {
            found: 2,
            known: 1,
            ..
        }
    ));
    let text = error.to_string();
    let folder = dir.path().display().to_string();
    assert!(
        text.contains(&folder) && text.contains("broker.url"),
        "{text}"
    );
    fs::write(dir.path().join("FORMAT"), "something else").unwrap();
    assert!(refused(dir.path()).to_string().contains("FORMAT"));
}

#[test]
fn a_message_larger_than_the_log_is_as_safe_as_any() {
    let dir = tempfile::tempdir().unwrap();
    let transport = open_dir(dir.path()).unwrap();
    publish(&transport, Outgoing::new("q".into(), "small")).unwrap();
    let large = vec![7; 20 << 20];
    publish(&transport, Outgoing::new("q".into(), large.clone())).unwrap();
    publish(&transport, Outgoing::new("q".into(), "after")).unwrap();
    let killed = copy_of(dir.path());
    let transport = open_dir(killed.path()).unwrap();
    let taken = block(transport.take(&"q".into(), 10)).unwrap();
    assert_eq!(taken.len(), 3);
    assert!(taken[1].body == large);
    let too_large = Outgoing::new("q".into(), vec![7; 65 << 20]);
    let error = publish(&transport, too_large).unwrap_err();
    assert!(!error.is_transient(), "{error}");
}

#[test]
fn counts_delays_and_sequences_outlive_a_restart() {
    let kit = Kit::durable();
    for body in ["fails", "waits", "held", "gone"] {
        kit.publish("q", body);
    }
    let mut source = kit.source("q");
    let mut held = recv_all(&mut source, 4);
    let last = held.pop().unwrap();
    let own = last.delivery.id.clone();
    ack(last);
    let requeue = |seconds| Disposition::Requeue {
        after: std::time::Duration::from_secs(seconds),
    };
    settle(held.remove(0).settler, requeue(0));
    settle(held.remove(0).settler, requeue(60));
    drop(source);
    let kit = kit.reopened();
    assert_eq!(kit.stats("q"), (2, 1, 0, 0));
    let mut source = kit.source("q");
    let again = recv_all(&mut source, 2);
    assert_eq!(bodies(&again), ["fails", "held"]);
    assert_eq!(again[0].delivery.attempt.get(), 2);
    assert_eq!(again[0].delivery.delivery_count, Some(2));
    assert_eq!(again[1].delivery.attempt.get(), 1);
    assert_eq!(again[1].delivery.delivery_count, Some(2));
    again.into_iter().for_each(ack);
    kit.clock.advance(std::time::Duration::from_secs(60));
    let waited = recv(&mut source, 1).remove(0);
    assert_eq!(&waited.delivery.body[..], b"waits");
    ack(waited);
    // A sequence is never used again, also not that of the last message of an empty queue.
    drop(source);
    let kit = kit.reopened();
    kit.publish("q", "new");
    let mut source = kit.source("q");
    let new = recv(&mut source, 1).remove(0);
    assert_ne!(new.delivery.id, own);
    assert_eq!(new.delivery.delivery_count, Some(1));
    let queues = kit.transport.queues();
    assert_eq!(queues, ["q".into()]);
    assert_eq!(kit.transport.name(), "embedded");
}
