//! `acquit bench`: measures the engine on this machine. Every figure in the documentation comes
//! from here or from an example; read ratios, not absolutes.

mod broker;

use std::future::pending;
use std::io::{self, Write};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use acquit_actors::limiter::LimiterLimits;
use acquit_actors::model::{Outgoing, QueueName};
use acquit_actors::ports::{
    Handler, HandlerOutcome, NoObserver, Observer, PublishReply, Transport, handler_fn,
};
use acquit_actors::{ConsumerSpec, Engine, EngineEnd, Handle, Prefetch};

use super::{BenchArgs, Exit};
use crate::telemetry::{LogFormat, LogLevel, LogObserver, LogSettings, Logging};
use crate::transport::embedded::{EmbeddedOptions, EmbeddedTransport};

const QUEUE: &str = "bench";
const PERMITS: u32 = 64;

/// Runs a benchmark by name.
///
/// # Errors
/// When its table cannot be written.
pub(super) async fn bench(args: &BenchArgs) -> io::Result<Exit> {
    match args.name.as_str() {
        "engine" => engine(args.count.unwrap_or(1_000_000)).await,
        "memory" => memory(args.count.unwrap_or(100_000)).await,
        "drain" => drain(args.count.unwrap_or(10_000)).await,
        "idle" => idle().await,
        "broker" => broker::broker(args).await,
        other => {
            let text = format!(
                "acquit: no benchmark is called {other:?}; there are: engine, memory, drain, idle, broker"
            );
            writeln!(io::stderr().lock(), "{text}")?;
            Ok(Exit::Usage)
        }
    }
}

/// One row of a table: how many in how long, on how much processor.
struct Row {
    name: String,
    count: u64,
    took: Duration,
    cpu: Duration,
}

impl Row {
    fn rate(&self) -> f64 {
        self.count as f64 / self.took.as_secs_f64()
    }
}

fn table(rows: &[Row]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "| what | count | per second | µs of CPU each | ratio to the first |"
    )?;
    writeln!(out, "|---|---|---|---|---|")?;
    for row in rows {
        writeln!(
            out,
            "| {} | {} | {:.0} | {:.2} | {:.2} |",
            row.name,
            row.count,
            row.rate(),
            row.cpu.as_secs_f64() * 1e6 / row.count as f64,
            row.rate() / rows[0].rate()
        )?;
    }
    Ok(())
}

/// The whole path of a delivery, beside a bare tokio task under a semaphore in the same run.
async fn engine(count: u64) -> io::Result<Exit> {
    let mut rows = Vec::new();
    for round in 1..=3 {
        rows.push(bare_tasks(count, round));
        rows.push(deliveries(count, round, Arc::new(NoObserver), "delivery").await);
    }
    rows.sort_by(|one, other| one.name.cmp(&other.name));
    let settings = LogSettings {
        format: LogFormat::Text,
        level: LogLevel::Info,
        decisions: true,
    };
    let sink = Logging::start_to(io::sink(), false, settings);
    let lines = Arc::new(LogObserver);
    rows.push(deliveries(count, 1, lines, "delivery with its decision line").await);
    drop(sink);
    table(&rows)?;
    Ok(Exit::Clean)
}

fn bare_tasks(count: u64, round: u32) -> Row {
    let (began, cpu) = (Instant::now(), cpu_time());
    // A thread of its own: a runtime cannot be made and dropped within another one.
    std::thread::scope(|scope| {
        scope.spawn(|| spawn_bare_tasks(count));
    });
    let (took, cpu) = (began.elapsed(), cpu_time() - cpu);
    Row {
        name: format!("bare tokio task under a semaphore, run {round}"),
        count,
        took,
        cpu,
    }
}

fn spawn_bare_tasks(count: u64) {
    let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .build();
    let runtime = runtime.expect("the machine has threads to give");
    runtime.block_on(async {
        let permits = Arc::new(tokio::sync::Semaphore::new(PERMITS as usize));
        let spawner = tokio::spawn(async move {
            for _ in 0..count {
                if let Ok(permit) = Arc::clone(&permits).acquire_owned().await {
                    tokio::spawn(async move { drop(permit) });
                }
            }
            let _ = permits.acquire_many(PERMITS).await;
        });
        let _ = spawner.await;
    });
}

async fn deliveries(count: u64, round: u32, observer: Arc<dyn Observer>, name: &str) -> Row {
    let broker = filled(count).await;
    let spec = ConsumerSpec::new(QUEUE, QUEUE, noop()).with_permits(PERMITS);
    let engine = Engine::new(Arc::new(broker.clone())).with_observer(observer);
    let (began, cpu) = (Instant::now(), cpu_time());
    let handle = start(engine.with_consumer(spec));
    until(&handle, |counts| counts.acked >= count).await;
    let (took, cpu) = (began.elapsed(), cpu_time() - cpu);
    let _ = handle.drain_and_wait("bench").await;
    Row {
        name: format!("{name}, run {round}"),
        count,
        took,
        cpu,
    }
}

/// What a delivery in flight costs beyond its body and headers.
async fn memory(count: u64) -> io::Result<Exit> {
    let broker = filled(count).await;
    let before = rss_bytes();
    let handle = all_at_work(&broker, count).await;
    let each = rss_bytes().saturating_sub(before) / count.max(1);
    let _ = handle.drain_and_wait("bench").await;
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "| in flight | bytes each beyond the message in the store |"
    )?;
    writeln!(out, "|---|---|")?;
    writeln!(out, "| {count} | {each} |")?;
    Ok(Exit::Clean)
}

/// How long stragglers take to be settled once the drain is forced.
async fn drain(count: u64) -> io::Result<Exit> {
    let broker = filled(count).await;
    let handle = all_at_work(&broker, count).await;
    let began = Instant::now();
    let end = handle.drain_and_wait("bench").await;
    let took = began.elapsed();
    let EngineEnd::Drained(report) = end else {
        return Ok(Exit::Failure);
    };
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "| stragglers | released | lost or abandoned | from the drain to the report, ms |"
    )?;
    writeln!(out, "|---|---|---|---|")?;
    writeln!(
        out,
        "| {} | {} | {} | {} |",
        report.stragglers_total,
        report.released,
        report.lost + report.abandoned,
        took.as_millis()
    )?;
    Ok(Exit::Clean)
}

/// Starts an engine whose handlers never end, and waits until so many are at work.
async fn all_at_work(broker: &EmbeddedTransport, count: u64) -> Handle {
    let permits = u32::try_from(count).unwrap_or(u32::MAX);
    let credit = NonZeroU32::new(permits).unwrap_or(NonZeroU32::MIN);
    let spec = ConsumerSpec::new(QUEUE, QUEUE, never())
        .with_permits(permits)
        .with(|spec| spec.prefetch = Prefetch::Count(credit));
    let limits = LimiterLimits {
        permits,
        in_flight_bytes: 1 << 40,
        rate: None,
    };
    let engine = Engine::new(Arc::new(broker.clone()))
        .with_limits(limits)
        .with_drain_timeout(Duration::ZERO)
        .with_consumer(spec);
    let handle = start(engine);
    until_alive(&handle, count).await;
    handle
}

/// What an engine with nothing to do costs.
async fn idle() -> io::Result<Exit> {
    const WATCHED: Duration = Duration::from_secs(10);
    let broker = filled(0).await;
    let spec = ConsumerSpec::new(QUEUE, QUEUE, noop()).with_partitions(1);
    let handle = start(Engine::new(Arc::new(broker.clone())).with_consumer(spec));
    until(&handle, |_| true).await;
    let (began, cpu) = (Instant::now(), cpu_time());
    tokio::time::sleep(WATCHED).await;
    let share = (cpu_time() - cpu).as_secs_f64() / began.elapsed().as_secs_f64();
    let rss = rss_bytes() as f64 / f64::from(1 << 20);
    let _ = handle.drain_and_wait("bench").await;
    let mut out = io::stdout().lock();
    writeln!(out, "| idle for | CPU, % of a core | RSS, MiB |")?;
    writeln!(out, "|---|---|---|")?;
    writeln!(out, "| {WATCHED:?} | {:.2} | {rss:.1} |", share * 100.0)?;
    Ok(Exit::Clean)
}

fn noop() -> Handler {
    handler_fn(|_| async { HandlerOutcome::completed() })
}

fn never() -> Handler {
    handler_fn(|_| pending())
}

fn start(engine: Engine) -> Handle {
    engine
        .start()
        .expect("a release build unwinds, and the machine has a thread to give")
}

/// A memory broker with so many messages of 64 bytes in one partition.
async fn filled(count: u64) -> EmbeddedTransport {
    let broker = EmbeddedTransport::open(EmbeddedOptions::memory())
        .expect("a broker in memory needs nothing that could be missing");
    let _ = broker
        .ensure_queue(&QueueName::from(QUEUE), NonZeroU32::MIN)
        .await;
    let publisher = broker.publisher();
    let body = bytes::Bytes::from_static(&[b'x'; 64]);
    for _ in 0..count {
        let (reply, answer) = PublishReply::channel();
        publisher.publish(Outgoing::new(QueueName::from(QUEUE), body.clone()), reply);
        let _ = answer.await;
    }
    broker
}

async fn until(handle: &Handle, is: impl Fn(&acquit_actors::Counts) -> bool) {
    while let Ok(snapshot) = handle.snapshot().await {
        if is(&snapshot.consumers[0].counts) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn until_alive(handle: &Handle, count: u64) {
    while let Ok(snapshot) = handle.snapshot().await {
        if snapshot.handlers_alive >= count {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The processor time of this process so far, user and system.
fn cpu_time() -> Duration {
    let times = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(
        u64::try_from(times.tv_sec).unwrap_or(0),
        u32::try_from(times.tv_nsec).unwrap_or(0),
    )
}

/// The resident memory of this process in bytes; 0 where the system does not tell.
fn rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| {
        line.trim()
            .trim_end_matches(" kB")
            .trim()
            .parse::<u64>()
            .ok()
    });
    kib.unwrap_or(0) * 1024
}
