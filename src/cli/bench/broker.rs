//! `acquit bench broker`: the engine beside bare client loops on one RabbitMQ, by turns.

use std::io::{self, Write};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use acquit_actors::ports::NoObserver;
use acquit_actors::{ConsumerSpec, Engine, Prefetch};

use super::super::{BenchArgs, Exit};
use super::{PERMITS, Row, cpu_time, noop, rss_bytes, start, until};
use crate::transport::amqp::{
    AmqpOptions, AmqpTransport, AmqpUri, BareAck, BareClient, BareError, QueueType,
};

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
    };
    let mut rows = Vec::new();
    for round in 1..=args.rounds {
        for (name, ack) in [
            ("bare loop, each ack awaited", BareAck::Each),
            ("bare loop, a task for each ack", BareAck::Unawaited),
            ("bare loop, one ack for 100", BareAck::Multiple(100)),
        ] {
            match bench.bare(name, ack, round).await {
                Ok(row) => rows.push(row),
                Err(error) => return failed(&error),
            }
        }
        match bench.engine(round).await {
            Ok(row) => rows.push(row),
            Err(error) => return failed(&error),
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

struct Bench {
    uri: AmqpUri,
    count: u64,
    bytes: usize,
    prefetch: u16,
    kind: QueueType,
}

impl Bench {
    fn client(&self) -> BareClient {
        let queue = format!("acquit.bench.{:08x}", rand::random::<u32>());
        BareClient::new(self.uri.clone(), &queue)
    }

    async fn bare(&self, name: &str, ack: BareAck, _round: u32) -> Result<Row, String> {
        let client = self.client();
        let (count, prefetch) = (self.count, self.prefetch);
        // lapin ties a connection to the runtime it is made on; this one is dropped at the end.
        let (kind, bytes) = (self.kind, self.bytes);
        let taken = tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .enable_all()
                .build()
                .map_err(|error| error.to_string())?;
            runtime.block_on(async {
                let text = |error: BareError| error.to_string();
                client.fill(kind, count, bytes).await.map_err(text)?;
                let (began, cpu) = (Instant::now(), cpu_time());
                client.consume(prefetch, count, ack).await.map_err(text)?;
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

    async fn engine(&self, _round: u32) -> Result<Row, String> {
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
        let spec = ConsumerSpec::new("bench", queue.as_str(), noop())
            .with_permits(PERMITS)
            .with(|spec| spec.prefetch = Prefetch::Count(prefetch));
        let engine = Engine::new(Arc::new(transport)).with_observer(Arc::new(NoObserver));
        let (began, cpu) = (Instant::now(), cpu_time());
        let handle = start(engine.with_consumer(spec));
        until(&handle, |counts| counts.acked >= self.count).await;
        let (took, cpu) = (began.elapsed(), cpu_time() - cpu);
        let _ = handle.drain_and_wait("bench").await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        client.delete().await.map_err(text)?;
        Ok(Row {
            name: "acquit, 64 permits".to_owned(),
            count: self.count,
            took,
            cpu,
        })
    }
}
