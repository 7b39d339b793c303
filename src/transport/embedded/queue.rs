//! Queues and their partitions, as all threads share them.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::task::Waker;
use std::time::Duration;

use acquit_actors::model::{PartitionId, QueueName};
use xxhash_rust::xxh3::xxh3_64;

use super::codec::{RowKey, row_key};
use super::core::{Partition, Tally, Window};
use super::error::EmbeddedError;
use super::message::Message;

/// The window of messages that a partition keeps in memory above a durable store.
const DURABLE_WINDOW: Window = Window {
    count: 1024,
    bytes: 1 << 20,
    keep_payloads: false,
};

/// All queues by name.
#[derive(Debug, Default)]
pub(crate) struct Queues(RwLock<HashMap<QueueName, Arc<Queue>>>);

impl Queues {
    /// Gives a queue.
    pub(crate) fn get(&self, name: &QueueName) -> Option<Arc<Queue>> {
        let queues = self.0.read().unwrap_or_else(PoisonError::into_inner);
        queues.get(name).cloned()
    }

    /// Gives a partition of a queue.
    pub(crate) fn partition(
        &self,
        name: &QueueName,
        partition: PartitionId,
    ) -> Result<Arc<PartitionShared>, EmbeddedError> {
        let queue = self.get(name);
        let found = queue.and_then(|q| q.partitions.get(partition.0 as usize).cloned());
        found.ok_or_else(|| EmbeddedError::NoSuchQueue {
            queue: name.to_string(),
            partition: partition.0,
        })
    }

    /// Adds a queue, unless it is there; gives the one that is there then.
    pub(crate) fn add(&self, queue: Queue) -> Arc<Queue> {
        let mut queues = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let entry = queues.entry(queue.name.clone());
        Arc::clone(entry.or_insert_with(|| Arc::new(queue)))
    }

    /// Gives all queues, by name.
    pub(crate) fn all(&self) -> Vec<Arc<Queue>> {
        let queues = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = queues.values().cloned().collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }
}

/// One queue.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) name: QueueName,
    pub(crate) number: u32,
    pub(crate) partitions: Vec<Arc<PartitionShared>>,
    turn: AtomicU32,
}

impl Queue {
    /// Makes a queue of empty partitions.
    pub(crate) fn new(name: QueueName, number: u32, partitions: u32, kind: &Kind) -> Self {
        let partitions = (0..partitions)
            .map(|id| Arc::new(PartitionShared::new(&name, number, id, kind)))
            .collect();
        Self {
            name,
            number,
            partitions,
            turn: AtomicU32::new(0),
        }
    }

    /// Chooses the partition of a message: xxh3-64 of its key modulo n, or the next in turn.
    pub(crate) fn choose(&self, key: Option<&str>) -> &Arc<PartitionShared> {
        let count = self.partitions.len();
        let at = match key {
            _ if count == 1 => 0,
            Some(key) => usize::try_from(xxh3_64(key.as_bytes()) % count as u64).unwrap_or(0),
            None => self.turn.fetch_add(1, Ordering::Relaxed) as usize % count,
        };
        &self.partitions[at]
    }

    /// Refuses another number of partitions.
    pub(crate) fn check_partitions(&self, asked: u32) -> Result<(), EmbeddedError> {
        let stored = u32::try_from(self.partitions.len()).unwrap_or(u32::MAX);
        if stored == asked {
            return Ok(());
        }
        Err(EmbeddedError::PartitionsChanged {
            queue: self.name.to_string(),
            stored,
            asked,
        })
    }
}

/// What partitions of a transport have in common.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) durable: bool,
    pub(crate) lease: Duration,
}

/// Gives the window of a kind of partition.
pub(crate) fn window(kind: &Kind) -> Window {
    if kind.durable {
        DURABLE_WINDOW
    } else {
        Window::UNBOUNDED
    }
}

/// One partition behind its lock.
#[derive(Debug)]
pub(crate) struct PartitionShared {
    pub(crate) queue: QueueName,
    pub(crate) queue_number: u32,
    pub(crate) id: PartitionId,
    /// The store's own ids up to the sequence: `queue/partition/`.
    pub(crate) id_prefix: String,
    state: Mutex<PartitionState>,
}

impl PartitionShared {
    fn new(queue: &QueueName, queue_number: u32, id: u32, kind: &Kind) -> Self {
        Self {
            queue: queue.clone(),
            queue_number,
            id: PartitionId(id),
            id_prefix: format!("{queue}/{id}/"),
            state: Mutex::new(PartitionState {
                core: Partition::new(window(kind), kind.lease, 1),
                waiting: Vec::new(),
                reading: false,
                failed: None,
                ceiling: 0,
                dead: BTreeMap::new(),
                dead_count: 0,
            }),
        }
    }

    /// Takes the lock. A panic elsewhere left whole states behind, as every step here is one.
    pub(crate) fn lock(&self) -> MutexGuard<'_, PartitionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the key of a message's rows.
    pub(crate) fn row_key(&self, seq: u64) -> RowKey {
        row_key(self.queue_number, self.id.0, seq)
    }
}

/// What the lock guards.
#[derive(Debug)]
pub(crate) struct PartitionState {
    pub(crate) core: Partition<Arc<Message>>,
    /// Sources that wait for something to be ready.
    waiting: Vec<(u64, Waker)>,
    /// Whether a read for this partition is under way.
    pub(crate) reading: bool,
    /// Why the last read failed; told to the next who asks.
    pub(crate) failed: Option<EmbeddedError>,
    /// The store promises that no sequence from here on was ever used.
    pub(crate) ceiling: u64,
    /// The dead list, where there is no store to keep it.
    pub(crate) dead: BTreeMap<u64, (DeadNote, Arc<Message>)>,
    pub(crate) dead_count: u64,
}

/// What a dead list says of a message.
#[derive(Debug, Clone)]
pub(crate) struct DeadNote {
    pub(crate) reason: String,
    pub(crate) died_millis: u64,
    pub(crate) tally: Tally,
}

impl PartitionState {
    /// Registers a source to be woken by the next change.
    pub(crate) fn wait(&mut self, source: u64, waker: &Waker) {
        match self.waiting.iter_mut().find(|(id, _)| *id == source) {
            Some((_, known)) => known.clone_from(waker),
            None => self.waiting.push((source, waker.clone())),
        }
    }

    /// Takes who waits; they are woken when the lock is free again.
    pub(crate) fn take_waiting(&mut self) -> Vec<(u64, Waker)> {
        std::mem::take(&mut self.waiting)
    }

    /// Forgets a source that was closed.
    pub(crate) fn stop_waiting(&mut self, source: u64) {
        self.waiting.retain(|(id, _)| *id != source);
    }
}

/// Wakes sources; call it without the partition's lock.
pub(crate) fn wake(waiting: Vec<(u64, Waker)>) {
    for (_, waker) in waiting {
        waker.wake();
    }
}
