//! Compares the candidates for the embedded store on this machine, by one workload: publishers
//! that each wait for their fsync (group commit), the same for settling, and the time to open.
//!
//! ```text
//! cargo run --release --example store_compare -- [messages] [publishers] [backlog] [folder]
//! ```
//!
//! Candidates: `raw` (append to one preallocated file and fdatasync: the machine's ceiling),
//! `redb` (one durable transaction a batch), `log+redb` (append to a log, fdatasync, apply to
//! redb without fsync, durable checkpoint now and then). fjall was measured by the same program
//! before it was left out; its numbers stand in ARCHITECTURE.md.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a measuring program"
)]

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use redb::{Durability, ReadableDatabase, ReadableTable, ReadableTableMetadata};

const BODY: usize = 256;
const TABLE: redb::TableDefinition<'_, &[u8], &[u8]> = redb::TableDefinition::new("messages");

/// One change of a batch: put a value, or remove the key.
type Change = (u64, Option<Vec<u8>>);

trait Candidate: Send {
    fn commit(&mut self, batch: &[Change]);
    fn scan(&mut self) -> usize;
}

struct Raw(File);

impl Raw {
    fn open(dir: &Path) -> Self {
        let mut file = File::create(dir.join("raw")).unwrap();
        let zeros = vec![0_u8; 1 << 20];
        for _ in 0..64 {
            file.write_all(&zeros).unwrap();
        }
        file.sync_all().unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        Self(file)
    }
}

impl Candidate for Raw {
    fn commit(&mut self, batch: &[Change]) {
        let mut bytes = Vec::new();
        for (key, value) in batch {
            bytes.extend_from_slice(&key.to_be_bytes());
            bytes.extend_from_slice(value.as_deref().unwrap_or_default());
        }
        if self.0.stream_position().unwrap() > 60 << 20 {
            self.0.seek(SeekFrom::Start(0)).unwrap();
        }
        self.0.write_all(&bytes).unwrap();
        self.0.sync_data().unwrap();
    }
    fn scan(&mut self) -> usize {
        0
    }
}

struct Redb(redb::Database);

impl Redb {
    fn open(dir: &Path) -> Self {
        let db = redb::Builder::new()
            .set_cache_size(64 << 20)
            .create(dir.join("db"))
            .unwrap();
        Self(db)
    }
    fn apply(&self, batch: &[Change], durability: Durability) {
        let mut tx = self.0.begin_write().unwrap();
        tx.set_durability(durability).unwrap();
        {
            let mut table = tx.open_table(TABLE).unwrap();
            for (key, value) in batch {
                match value {
                    Some(value) => drop(
                        table
                            .insert(key.to_be_bytes().as_slice(), value.as_slice())
                            .unwrap(),
                    ),
                    None => drop(table.remove(key.to_be_bytes().as_slice()).unwrap()),
                }
            }
        }
        tx.commit().unwrap();
    }
}

impl Candidate for Redb {
    fn commit(&mut self, batch: &[Change]) {
        self.apply(batch, Durability::Immediate);
    }
    fn scan(&mut self) -> usize {
        let tx = self.0.begin_read().unwrap();
        let table = tx.open_table(TABLE).unwrap();
        let seen = table.iter().unwrap().count();
        assert_eq!(seen as u64, table.len().unwrap());
        seen
    }
}

struct Logged {
    log: Raw,
    store: Redb,
    since: Instant,
}

impl Candidate for Logged {
    fn commit(&mut self, batch: &[Change]) {
        self.log.commit(batch);
        let checkpoint = self.since.elapsed() > Duration::from_millis(200);
        let durability = if checkpoint {
            self.since = Instant::now();
            Durability::Immediate
        } else {
            Durability::None
        };
        self.store.apply(batch, durability);
    }
    fn scan(&mut self) -> usize {
        self.store.scan()
    }
}

/// Runs `publishers` threads that each send one change and wait for its commit.
fn run(
    mut store: Box<dyn Candidate>,
    from: u64,
    count: u64,
    publishers: u64,
    put: bool,
) -> (Box<dyn Candidate>, f64) {
    let (sender, receiver) = mpsc::channel::<(Change, mpsc::SyncSender<()>)>();
    let committer = std::thread::spawn(move || {
        let mut batch = Vec::new();
        let mut replies = Vec::new();
        while let Ok((change, reply)) = receiver.recv() {
            batch.push(change);
            replies.push(reply);
            while let Ok((change, reply)) = receiver.try_recv() {
                batch.push(change);
                replies.push(reply);
            }
            store.commit(&batch);
            batch.clear();
            for reply in replies.drain(..) {
                let _ = reply.send(());
            }
        }
        store
    });
    let begun = Instant::now();
    let each = count / publishers;
    let threads: Vec<_> = (0..publishers)
        .map(|p| {
            let sender = sender.clone();
            std::thread::spawn(move || {
                let (reply, answer) = mpsc::sync_channel(1);
                for i in 0..each {
                    let key = from + i * publishers + p;
                    let value = put.then(|| vec![key as u8; BODY]);
                    sender.send(((key, value), reply.clone())).unwrap();
                    answer.recv().unwrap();
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let rate = (each * publishers) as f64 / begun.elapsed().as_secs_f64();
    drop(sender);
    (committer.join().unwrap(), rate)
}

fn fill(store: &mut dyn Candidate, from: u64, count: u64) {
    let keys: Vec<u64> = (from..from + count).collect();
    for chunk in keys.chunks(20_000) {
        let batch: Vec<Change> = chunk
            .iter()
            .map(|&key| (key, Some(vec![key as u8; BODY])))
            .collect();
        store.commit(&batch);
    }
}

fn size(path: &Path) -> u64 {
    let meta = std::fs::metadata(path).unwrap();
    if meta.is_file() {
        return meta.len();
    }
    std::fs::read_dir(path)
        .unwrap()
        .map(|e| size(&e.unwrap().path()))
        .sum()
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with("VmRSS:"));
    line.and_then(|l| l.split_whitespace().nth(1)?.parse::<u64>().ok())
        .unwrap_or(0)
        / 1024
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: u64| -> u64 {
        args.get(at)
            .map_or(default, |a| a.replace('_', "").parse().unwrap())
    };
    let (messages, publishers, backlog) = (number(0, 40_000), number(1, 64), number(2, 1_000_000));
    let base = args
        .get(3)
        .map_or_else(|| std::env::temp_dir().join("store-compare"), PathBuf::from);
    type Open = fn(&Path) -> Box<dyn Candidate>;
    let candidates: [(&str, Open); 3] = [
        ("raw", |dir| Box::new(Raw::open(dir))),
        ("redb", |dir| Box::new(Redb::open(dir))),
        ("log+redb", |dir| {
            Box::new(Logged {
                log: Raw::open(dir),
                store: Redb::open(dir),
                since: Instant::now(),
            })
        }),
    ];
    println!(
        "| store | published/s | settled/s | published/s, backlog | settled/s, backlog | open clean s | open after a kill s | MiB on disk | MiB resident |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for (name, open) in candidates {
        let dir = base.join(name);
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        let (store, published) = run(open(&dir), 0, messages, publishers, true);
        let (mut store, settled) = run(store, 0, messages, publishers, false);
        let start = 1 << 32;
        fill(store.as_mut(), start, backlog);
        let (store, published_full) = run(store, start + backlog, messages, publishers, true);
        let (store, settled_full) = run(store, start, messages, publishers, false);
        let rss = resident();
        let killed = base.join(format!("{name}-killed"));
        let _ = std::fs::remove_dir_all(&killed);
        copy(&dir, &killed);
        drop(store);
        let time = |dir: &Path| {
            let begun = Instant::now();
            let mut store = open(dir);
            let seen = store.scan();
            assert!(
                name == "raw"
                    || name == "log+redb"
                    || seen as u64 == backlog / publishers * publishers
            );
            begun.elapsed().as_secs_f64()
        };
        let (clean, unclean) = (time(&dir), time(&killed));
        println!(
            "| {name} | {published:.0} | {settled:.0} | {published_full:.0} | {settled_full:.0} | {clean:.2} | {unclean:.2} | {} | {rss} |",
            size(&dir) >> 20
        );
        std::fs::remove_dir_all(&dir).unwrap();
        std::fs::remove_dir_all(&killed).unwrap();
    }
}
