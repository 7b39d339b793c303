//! Measures the embedded broker itself on this machine and prints a table.
//!
//! ```text
//! cargo run --release --example store_bench -- [--messages N] [--publishers N] [--backlog N]
//!     [--memory N] [--interval] [--dir FOLDER]
//! ```
//!
//! Publishers wait for each confirmation, so that what is measured is group commit. A short run:
//! `--messages 6400 --backlog 10000 --memory 100000`.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a measuring program"
)]

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::{Duration, Instant};

use acquit::transport::embedded::{EmbeddedOptions, EmbeddedTransport, Sync};
use acquit_actors::model::{DeliveryId, Disposition, Generation, Outgoing, PartitionId};
use acquit_actors::ports::{
    Arrival, PublishError, PublishReply, PublishSink, SettleReply, SettleResult, SettleSink,
    Source, SourceSpec, Transport,
};
use bytes::Bytes;

const BODY: usize = 256;

struct Args {
    messages: usize,
    publishers: usize,
    backlog: usize,
    memory: usize,
    sync: Sync,
    dir: PathBuf,
}

fn main() {
    let mut args = read_args();
    args.messages = args.messages / args.publishers * args.publishers;
    println!("| measure | value |");
    println!("|---|---|");
    memory(args.memory);
    let _ = std::fs::remove_dir_all(&args.dir);
    let open = || EmbeddedTransport::open(EmbeddedOptions::dir(&args.dir).with_sync(args.sync));
    let transport = open().unwrap();
    let mut latencies = Vec::new();
    let rate = publish(&transport, &args, &mut latencies);
    row("published/s, empty store", rate);
    percentiles("publish latency, empty store", &mut latencies);
    let rate = settle(&transport, &args, args.messages);
    row("settled/s, empty store", rate);
    fill(&transport, args.backlog);
    let backlog = args.backlog;
    latencies.clear();
    let rate = publish(&transport, &args, &mut latencies);
    row(&format!("published/s, backlog {backlog}"), rate);
    percentiles(
        &format!("publish latency, backlog {backlog}"),
        &mut latencies,
    );
    let rate = settle(&transport, &args, args.messages);
    row(&format!("settled/s, backlog {backlog}"), rate);
    println!("| resident, backlog {backlog} | {} MiB |", resident());
    block(transport.close()).unwrap();
    drop(transport);
    let begun = Instant::now();
    let transport = open().unwrap();
    println!(
        "| open, {backlog} messages, clean | {:.2} s |",
        begun.elapsed().as_secs_f64()
    );
    copy(&args.dir, &args.dir.with_extension("killed"));
    drop(transport);
    let begun = Instant::now();
    let killed = EmbeddedOptions::dir(args.dir.with_extension("killed"));
    let transport = EmbeddedTransport::open(killed).unwrap();
    println!(
        "| open, {backlog} messages, after a kill | {:.2} s |",
        begun.elapsed().as_secs_f64()
    );
    println!("| resident after opening | {} MiB |", resident());
    drop(transport);
    let _ = std::fs::remove_dir_all(&args.dir);
    let _ = std::fs::remove_dir_all(args.dir.with_extension("killed"));
}

fn row(name: &str, rate: f64) {
    println!("| {name} | {rate:.0} |");
}

fn percentiles(name: &str, latencies: &mut [Duration]) {
    latencies.sort();
    let at = |part: f64| latencies[((latencies.len() - 1) as f64 * part) as usize];
    println!(
        "| {name}, p50 / p99 / max | {:?} / {:?} / {:?} |",
        at(0.5),
        at(0.99),
        at(1.0)
    );
}

/// One thread publishes, receives in batches and settles, without a store.
fn memory(count: usize) {
    struct Nothing;
    impl SettleSink for Nothing {
        fn settled(&self, _: DeliveryId, _: u32, _: SettleResult) {}
    }
    impl PublishSink for Nothing {
        fn published(&self, _: u64, _: Result<(), PublishError>) {}
    }
    let transport = EmbeddedTransport::open(EmbeddedOptions::memory()).unwrap();
    let mut source = open_source(&transport, 1024);
    let publisher = transport.publisher();
    let (settled, published) = (Arc::new(Nothing), Arc::new(Nothing));
    let body = Bytes::from(vec![7; BODY]);
    let mut arrivals = Vec::new();
    let begun = Instant::now();
    for _ in 0..count / 256 {
        for _ in 0..256 {
            let message = Outgoing::new("bench".into(), body.clone());
            publisher.publish(message, PublishReply::new(published.clone(), 0));
        }
        let runtime = RUNTIME.with(Clone::clone);
        runtime.block_on(source.recv(256, &mut arrivals)).unwrap();
        for arrival in arrivals.drain(..) {
            let reply = SettleReply::new(settled.clone(), DeliveryId(0), 0);
            arrival.settler.settle(Disposition::Ack, reply);
        }
    }
    let rate = (count / 256 * 256) as f64 / begun.elapsed().as_secs_f64();
    row("memory: publish + receive + settle /s, one thread", rate);
}

fn publish(transport: &EmbeddedTransport, args: &Args, latencies: &mut Vec<Duration>) -> f64 {
    struct Wake(mpsc::SyncSender<Result<(), PublishError>>);
    impl PublishSink for Wake {
        fn published(&self, _: u64, result: Result<(), PublishError>) {
            let _ = self.0.send(result);
        }
    }
    let each = args.messages / args.publishers;
    let begun = Instant::now();
    let threads: Vec<_> = (0..args.publishers)
        .map(|_| {
            let publisher = transport.publisher();
            std::thread::spawn(move || {
                let (sender, answer) = mpsc::sync_channel(1);
                let sink = Arc::new(Wake(sender));
                let body = Bytes::from(vec![7; BODY]);
                let mut latencies = Vec::with_capacity(each);
                for _ in 0..each {
                    let begun = Instant::now();
                    let message = Outgoing::new("bench".into(), body.clone());
                    publisher.publish(message, PublishReply::new(sink.clone(), 0));
                    answer.recv().unwrap().unwrap();
                    latencies.push(begun.elapsed());
                }
                latencies
            })
        })
        .collect();
    for thread in threads {
        latencies.extend(thread.join().unwrap());
    }
    (each * args.publishers) as f64 / begun.elapsed().as_secs_f64()
}

/// Settles with as many settlements under way as there are publishers.
fn settle(transport: &EmbeddedTransport, args: &Args, count: usize) -> f64 {
    struct Gate(Mutex<(usize, usize)>, Condvar);
    impl SettleSink for Gate {
        fn settled(&self, _: DeliveryId, _: u32, result: SettleResult) {
            assert!(matches!(result, SettleResult::Done(_)), "{result:?}");
            let mut state = self.0.lock().unwrap();
            state.0 -= 1;
            state.1 += 1;
            self.1.notify_one();
        }
    }
    let mut source = open_source(transport, u32::try_from(args.publishers).unwrap() + 16);
    let gate = Arc::new(Gate(Mutex::new((0, 0)), Condvar::new()));
    let mut arrivals: Vec<Arrival> = Vec::new();
    let mut sent = 0;
    let begun = Instant::now();
    while sent < count {
        block(source.recv(args.publishers, &mut arrivals)).unwrap();
        for arrival in arrivals.drain(..) {
            let mut state = gate.0.lock().unwrap();
            while state.0 >= args.publishers {
                state = gate.1.wait(state).unwrap();
            }
            state.0 += 1;
            drop(state);
            let reply = SettleReply::new(gate.clone(), DeliveryId(0), 0);
            arrival.settler.settle(Disposition::Ack, reply);
            sent += 1;
        }
    }
    let mut state = gate.0.lock().unwrap();
    while state.1 < sent {
        state = gate.1.wait(state).unwrap();
    }
    sent as f64 / begun.elapsed().as_secs_f64()
}

fn fill(transport: &EmbeddedTransport, count: usize) {
    let publisher = transport.publisher();
    let body = Bytes::from(vec![7; BODY]);
    let mut left = count;
    while left > 0 {
        let part = left.min(10_000);
        let messages = (0..part).map(|_| Outgoing::new("bench".into(), body.clone()));
        let cursor = acquit_actors::ports::FeedCursor {
            feed: "bench".to_owned(),
            offset: 0,
            line: 0,
            bad: 0,
        };
        let (reply, answer) = PublishReply::channel();
        publisher.publish_feed(messages.collect(), cursor, reply);
        block(answer).unwrap().unwrap();
        left -= part;
    }
}

fn open_source(transport: &EmbeddedTransport, credit: u32) -> Box<dyn Source> {
    let spec = SourceSpec {
        consumer: "bench".into(),
        queue: "bench".into(),
        partition: PartitionId(0),
        partitions: 1,
        generation: Generation(1),
        credit,
        permits: 1,
    };
    block(transport.open_source(spec)).unwrap()
}

thread_local! {
    static RUNTIME: std::rc::Rc<tokio::runtime::Runtime> = std::rc::Rc::new(
        tokio::runtime::Builder::new_current_thread().build().unwrap(),
    );
}

fn block<T>(future: impl Future<Output = T>) -> T {
    RUNTIME.with(|runtime| runtime.block_on(future))
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.unwrap_or(0) / 1024
}

fn read_args() -> Args {
    let mut args = Args {
        messages: 100_000,
        publishers: 64,
        backlog: 1_000_000,
        memory: 3_000_000,
        sync: Sync::Always,
        dir: std::env::temp_dir().join("acquit-store-bench"),
    };
    let mut given = std::env::args().skip(1);
    while let Some(flag) = given.next() {
        let mut value = || given.next().expect("a value follows the flag");
        let number = |text: String| text.replace('_', "").parse().expect("a number");
        match flag.as_str() {
            "--messages" => args.messages = number(value()),
            "--publishers" => args.publishers = number(value()),
            "--backlog" => args.backlog = number(value()),
            "--memory" => args.memory = number(value()),
            "--dir" => args.dir = PathBuf::from(value()),
            "--interval" => args.sync = Sync::Interval,
            other => panic!("unknown flag {other}"),
        }
    }
    args
}
