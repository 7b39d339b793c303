//! What many commands cost: no zombies, flat descriptors, bounded memory. These tests look at the
//! whole process, so they stand apart and run one after another.

use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use acquit::handlers::{CommandHandler, CommandSpec};
use acquit_actors::model::{Delivery, Generation, PartitionId};
use acquit_actors::ports::{DeliveryContext, DeliveryHandler, HandlerOutcome};
use bytes::Bytes;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::Runtime;

const BOUND: Duration = Duration::from_secs(60);

static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
}

fn context(body: &'static [u8]) -> DeliveryContext {
    DeliveryContext::detached(Delivery::new(
        "q".into(),
        PartitionId(0),
        Generation(0),
        Bytes::from_static(body),
    ))
}

fn handler(argv: &[&str]) -> CommandHandler {
    CommandHandler::new(CommandSpec::new(argv.iter().copied())).expect("the command can run")
}

fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < BOUND, "never: {what}");
        std::thread::park_timeout(Duration::from_millis(2));
    }
}

/// Counts our children, running or defunct.
fn children() -> usize {
    let us = std::process::id();
    let parents = fs::read_dir("/proc").expect("/proc").filter_map(|entry| {
        let stat = fs::read_to_string(entry.ok()?.path().join("stat")).ok()?;
        stat.rsplit(')')
            .next()?
            .split_whitespace()
            .nth(1)?
            .parse::<u32>()
            .ok()
    });
    parents.filter(|parent| *parent == us).count()
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").expect("/proc").count()
}

/// The most memory this process has ever held, in bytes.
fn memory_peak() -> usize {
    let status = fs::read_to_string("/proc/self/status").expect("/proc");
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .expect("a peak");
    let kib: usize = line
        .split_whitespace()
        .nth(1)
        .expect("a number")
        .parse()
        .expect("a number");
    kib * 1024
}

#[test]
fn five_hundred_commands_leave_nothing() {
    let _alone = alone();
    let runtime = runtime();
    let short = handler(&["wc", "-w"]);
    let round = |count: usize| {
        runtime.block_on(async {
            for _ in 0..count / 10 {
                let tasks: Vec<_> = (0..10)
                    .map(|_| tokio::spawn(short.handle(context(b"one two three"))))
                    .collect();
                for task in tasks {
                    let outcome = task.await.expect("no panic");
                    assert_eq!(outcome, HandlerOutcome::completed_with("3\n"));
                }
            }
        });
    };
    round(20);
    let before = descriptors();
    round(500);
    assert_eq!(
        children(),
        0,
        "an answer comes after the command was reaped"
    );
    assert_eq!(descriptors(), before);
}

#[test]
fn dropped_and_aborted_commands_leave_nothing() {
    let _alone = alone();
    let runtime = runtime();
    let stubborn = handler(&[
        "/bin/sh",
        "-c",
        "trap '' TERM; while :; do sleep 1000; done",
    ]);
    let before = runtime.block_on(async { descriptors() });
    for _ in 0..20 {
        let tasks: Vec<_> = (0..10)
            .map(|_| runtime.spawn(stubborn.handle(context(b""))))
            .collect();
        eventually("they run", || children() >= 10);
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
        eventually("all are reaped", || children() == 0);
    }
    eventually("descriptors are flat", || descriptors() <= before);
}

#[test]
fn output_without_measure_does_not_grow_our_memory() {
    let _alone = alone();
    let runtime = runtime();
    let run = |argv: &[&str]| runtime.block_on(handler(argv).handle(context(b"")));
    let _ = run(&["true"]);
    let before = memory_peak();
    let outcome = run(&["head", "-c", "1G", "/dev/zero"]);
    assert_eq!(
        outcome,
        HandlerOutcome::failed("result larger than 1048576 bytes")
    );
    let outcome = run(&["/bin/sh", "-c", "head -c 1G /dev/zero >&2; exit 7"]);
    assert!(matches!(outcome, HandlerOutcome::Failed { .. }));
    let grown = memory_peak() - before;
    assert!(grown < 16 * 1024 * 1024, "{grown} bytes more");
    assert_eq!(children(), 0);
}

#[test]
fn without_descriptors_a_command_is_unavailable_until_there_are_some() {
    let _alone = alone();
    let runtime = runtime();
    let short = handler(&["cat"]);
    let limit = getrlimit(Resource::Nofile);
    let before = descriptors() as u64;
    for room in 0..10 {
        let tight = Rlimit {
            current: Some(before + room),
            maximum: limit.maximum,
        };
        setrlimit(Resource::Nofile, tight).expect("a lower limit");
        let outcome = runtime.block_on(short.handle(context(b"x")));
        setrlimit(Resource::Nofile, limit).expect("the old limit");
        match outcome {
            HandlerOutcome::Unavailable { .. } => {}
            outcome => assert_eq!(outcome, HandlerOutcome::completed_with("x"), "room {room}"),
        }
        assert_eq!(children(), 0);
    }
    let outcome = runtime.block_on(short.handle(context(b"x")));
    assert_eq!(outcome, HandlerOutcome::completed_with("x"));
    assert_eq!(descriptors() as u64, before);
}
