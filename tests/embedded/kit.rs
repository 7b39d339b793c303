//! What the tests share: a broker on a clock that stands still, and short words for long calls.

use std::future::Future;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use acquit::transport::embedded::{EmbeddedError, EmbeddedOptions, EmbeddedTransport, ManualClock};
use acquit_actors::model::{Disposition, Generation, Outgoing, PartitionId, Receipt};
use acquit_actors::ports::{
    Arrival, PublishError, PublishReply, SettleReply, SettleResult, Settler, Source, SourceError,
    SourceSpec, Transport,
};

/// No wait in a test is longer than this.
pub(crate) const BOUND: Duration = Duration::from_secs(30);
pub(crate) const LEASE: Duration = Duration::from_secs(30);
pub(crate) const WALL: u64 = 1_700_000_000_000;

/// Runs a future with a bound.
pub(crate) fn block<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let bounded = async { tokio::time::timeout(BOUND, future).await };
    runtime.block_on(bounded).expect("ends within its bound")
}

/// A broker under test.
pub(crate) struct Kit {
    pub(crate) transport: EmbeddedTransport,
    pub(crate) clock: ManualClock,
    pub(crate) dir: Option<tempfile::TempDir>,
}

impl Kit {
    pub(crate) fn memory() -> Self {
        Self::open(EmbeddedOptions::memory(), None)
    }

    pub(crate) fn durable() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self::open(EmbeddedOptions::dir(dir.path()), Some(dir))
    }

    fn open(options: EmbeddedOptions, dir: Option<tempfile::TempDir>) -> Self {
        let clock = ManualClock::at_wall_millis(WALL);
        let options = options
            .with_clock(Arc::new(clock.clone()))
            .with_lease(LEASE);
        let transport = EmbeddedTransport::open(options).unwrap();
        Self {
            transport,
            clock,
            dir,
        }
    }

    /// Closes it and opens it again; a memory one comes back empty.
    pub(crate) fn reopened(self) -> Self {
        block(self.transport.close()).unwrap();
        let Self { transport, dir, .. } = self;
        drop(transport);
        match dir {
            None => Self::memory(),
            Some(dir) => Self::open(EmbeddedOptions::dir(dir.path()), Some(dir)),
        }
    }

    pub(crate) fn queue(&self, name: &str, partitions: u32) {
        let partitions = NonZeroU32::new(partitions).unwrap();
        block(self.transport.ensure_queue(&name.into(), partitions)).unwrap();
    }

    pub(crate) fn publish(&self, queue: &str, body: &str) {
        publish(
            &self.transport,
            Outgoing::new(queue.into(), body.to_owned()),
        )
        .unwrap();
    }

    pub(crate) fn source(&self, queue: &str) -> Box<dyn Source> {
        block(self.transport.open_source(spec(queue, 0, 1))).unwrap()
    }

    pub(crate) fn stats(&self, queue: &str) -> (u64, u64, u64, u64) {
        let stats = block(self.transport.stats(&queue.into())).unwrap().total();
        (stats.ready, stats.delayed, stats.leased, stats.dead)
    }
}

pub(crate) fn open_dir(dir: &Path) -> Result<EmbeddedTransport, EmbeddedError> {
    EmbeddedTransport::open(EmbeddedOptions::dir(dir))
}

pub(crate) fn spec(queue: &str, partition: u32, partitions: u32) -> SourceSpec {
    SourceSpec {
        consumer: "test".into(),
        queue: queue.into(),
        partition: PartitionId(partition),
        partitions,
        generation: Generation(1),
        credit: 1000,
        permits: 1,
    }
}

pub(crate) fn publish(
    transport: &EmbeddedTransport,
    message: Outgoing,
) -> Result<(), PublishError> {
    let (reply, answer) = PublishReply::channel();
    transport.publisher().publish(message, reply);
    block(answer).unwrap()
}

pub(crate) fn recv(source: &mut Box<dyn Source>, max: usize) -> Vec<Arrival> {
    try_recv(source, max).unwrap()
}

pub(crate) fn try_recv(
    source: &mut Box<dyn Source>,
    max: usize,
) -> Result<Vec<Arrival>, SourceError> {
    let mut into = Vec::new();
    block(source.recv(max, &mut into))?;
    Ok(into)
}

/// Receives exactly `count`, however many calls it takes.
pub(crate) fn recv_all(source: &mut Box<dyn Source>, count: usize) -> Vec<Arrival> {
    let mut all = Vec::new();
    while all.len() < count {
        all.extend(recv(source, count - all.len()));
    }
    all
}

/// Tells whether nothing is ready now.
pub(crate) fn is_idle(source: &mut Box<dyn Source>) -> bool {
    let mut into = Vec::new();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_millis(20), source.recv(1, &mut into))
            .await
            .is_err()
    })
}

pub(crate) fn settle(settler: Box<dyn Settler>, disposition: Disposition) -> SettleResult {
    let (reply, answer) = SettleReply::channel();
    settler.settle(disposition, reply);
    block(answer).unwrap()
}

pub(crate) fn ack(arrival: Arrival) {
    let result = settle(arrival.settler, Disposition::Ack);
    assert!(
        matches!(result, SettleResult::Done(Receipt::Confirmed)),
        "{result:?}"
    );
}

pub(crate) fn bodies(arrivals: &[Arrival]) -> Vec<String> {
    let text = |a: &Arrival| String::from_utf8_lossy(&a.delivery.body).into_owned();
    arrivals.iter().map(text).collect()
}
