//! `acquit bench broker`: the engine beside bare client loops on one RabbitMQ, by turns.

use std::io::{self, Write};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use acquit_actors::ports::{Handler, HandlerOutcome, NoObserver, handler_fn};
use acquit_actors::{ConsumerSpec, Engine, Prefetch};

use super::super::{BenchArgs, Exit};
use super::{PERMITS, Row, cpu_time, rss_bytes, start, until};
use crate::transport::amqp::{
    AmqpOptions, AmqpTransport, AmqpUri, BareAck, BareClient, BareError, QueueType,
};

/// The loops, and how each bare one settles.
const LOOPS: &[(&str, Option<BareAck>)] = &[
    ("bare loop, each ack awaited", Some(BareAck::Each)),
    ("bare loop, a task for each ack", Some(BareAck::Unawaited)),
    ("bare loop, one ack for 100", Some(BareAck::Multiple(100))),
    ("acquit, 64 permits", None),
];

/// Fills a queue and drains it, once for every loop in every round.
///
/// # Errors
/// When its table cannot be written.
pub(super) async fn broker(args: &BenchArgs) -> io::Result<Exit> {
    let Some(url) = &args.url else {
        writeln!(
            io::stderr().lock(),
            "acquit: bench broker needs --url amqp://…"
        )?;
        return Ok(Exit::Usage);
    };
    let uri = match AmqpUri::parse(url) {
        Ok(uri) => uri,
        Err(error) => {
            writeln!(io::stderr().lock(), "acquit: --url: {error}")?;
            return Ok(Exit::Usage);
        }
    };
    let bench = Bench {
        uri,
        count: args.count.unwrap_or(100_000),
        bytes: args.body_bytes,
        prefetch: args.prefetch,
        kind: match args.queue_type.as_str() {
            "classic" => QueueType::Classic,
            _ => QueueType::Quorum,
        },
        held_head: args.held_head,
    };
    let mut rows = Vec::new();
    for _ in 0..args.rounds {
        for (name, ack) in LOOPS {
            // One ack for many would settle the held one.
            let covers_the_head = args.held_head && matches!(ack, Some(BareAck::Multiple(_)));
            let is_meant = match (args.only.as_str(), ack) {
                ("acquit", None) | ("bare", Some(_)) => true,
                ("acquit" | "bare", _) => false,
                _ => true,
            };
            if covers_the_head || !is_meant {
                continue;
            }
            let row = match ack {
                Some(ack) => bench.bare(name, *ack).await,
                None => bench.engine(name).await,
            };
            match row {
                Ok(row) => rows.push(row),
                Err(error) => return failed(&error),
            }
        }
    }
    print(&rows)?;
    Ok(Exit::Clean)
}

fn failed(error: &dyn std::fmt::Display) -> io::Result<Exit> {
    writeln!(io::stderr().lock(), "acquit: the broker: {error}")?;
    Ok(Exit::Failure)
}

/// Medians of the rounds, in the order of the first, with the ratios to it.
fn print(rows: &[Row]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "| what | count | per second (median) | lowest | highest | CPU s per 100,000 | ratio | RSS MiB |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|---|---|")?;
    let mut names: Vec<&str> = Vec::new();
    for row in rows {
        if !names.contains(&row.name.as_str()) {
            names.push(&row.name);
        }
    }
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let mut first = None;
    for name in names {
        let mine: Vec<&Row> = rows.iter().filter(|row| row.name == name).collect();
        let rates: Vec<f64> = mine.iter().map(|row| row.rate()).collect();
        let cpu = mine
            .iter()
            .map(|row| row.cpu.as_secs_f64() * 1e5 / row.count as f64);
        let (rate, cpu) = (median(rates.clone()), median(cpu.collect()));
        let first = *first.get_or_insert(rate);
        let (low, high) = rates
            .iter()
            .fold((f64::MAX, 0.0_f64), |(low, high), &rate| {
                (low.min(rate), high.max(rate))
            });
        writeln!(
            out,
            "| {name} | {} | {rate:.0} | {low:.0} | {high:.0} | {cpu:.2} | {:.2} | {:.1} |",
            mine[0].count,
            rate / first,
            rss_bytes() as f64 / f64::from(1 << 20)
        )?;
    }
    Ok(())
}

/// Does nothing, but for the first delivery: that one waits until it is released.
fn holding(released: tokio::sync::watch::Receiver<bool>) -> Handler {
    let is_first = AtomicBool::new(!*released.borrow());
    handler_fn(move |_| {
        let is_first = is_first.load(Ordering::Relaxed) && is_first.swap(false, Ordering::Relaxed);
        let held = is_first.then(|| released.clone());
        async move {
            if let Some(mut released) = held {
                let _ = released.wait_for(|released| *released).await;
            }
            HandlerOutcome::completed()
        }
    })
}

struct Bench {
    uri: AmqpUri,
    count: u64,
    bytes: usize,
    prefetch: u16,
    kind: QueueType,
    /// The first delivery is held until the others are done.
    held_head: bool,
}

impl Bench {
    fn client(&self) -> BareClient {
        let queue = format!("acquit.bench.{:08x}", rand::random::<u32>());
        BareClient::new(self.uri.clone(), &queue)
    }

    async fn bare(&self, name: &str, ack: BareAck) -> Result<Row, String> {
        let client = self.client();
        let (count, prefetch) = (self.count, self.prefetch);
        // lapin ties a connection to the runtime it is made on; this one is dropped at the end.
        let (kind, bytes, held_head) = (self.kind, self.bytes, self.held_head);
        let taken = tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .enable_all()
                .build()
                .map_err(|error| error.to_string())?;
            runtime.block_on(async {
                let text = |error: BareError| error.to_string();
                client.fill(kind, count, bytes).await.map_err(text)?;
                let (began, cpu) = (Instant::now(), cpu_time());
                client
                    .consume(prefetch, count, ack, held_head)
                    .await
                    .map_err(text)?;
                let taken = (began.elapsed(), cpu_time() - cpu);
                client.delete().await.map_err(text)?;
                Ok::<_, String>(taken)
            })
        });
        let (took, cpu) = taken.await.map_err(|error| error.to_string())??;
        Ok(Row {
            name: name.to_owned(),
            count,
            took,
            cpu,
        })
    }

    async fn engine(&self, name: &str) -> Result<Row, String> {
        let queue = format!("acquit.bench.{:08x}", rand::random::<u32>());
        let client = BareClient::new(self.uri.clone(), &queue);
        let text = |error: BareError| error.to_string();
        client
            .fill(self.kind, self.count, self.bytes)
            .await
            .map_err(text)?;
        let transport = AmqpTransport::open(AmqpOptions::new(self.uri.clone()))
            .map_err(|error| error.to_string())?;
        let prefetch = NonZeroU32::new(u32::from(self.prefetch)).unwrap_or(NonZeroU32::MIN);
        let (release, held) = tokio::sync::watch::channel(!self.held_head);
        let spec = ConsumerSpec::new("bench", queue.as_str(), holding(held))
            .with_permits(PERMITS)
            .with(|spec| spec.prefetch = Prefetch::Count(prefetch))
            .with(|spec| spec.handler_timeout = Duration::from_secs(3600));
        let engine = Engine::new(Arc::new(transport)).with_observer(Arc::new(NoObserver));
        let (began, cpu) = (Instant::now(), cpu_time());
        let handle = start(engine.with_consumer(spec));
        let others = self.count - u64::from(self.held_head);
        until(&handle, |counts| counts.acked >= others).await;
        let (took, cpu) = (began.elapsed(), cpu_time() - cpu);
        release.send_replace(true);
        let _ = handle.drain_and_wait("bench").await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        client.delete().await.map_err(text)?;
        Ok(Row {
            name: name.to_owned(),
            count: self.count,
            took,
            cpu,
        })
    }
}
