//! What the committer's thread is asked to do, and the queue of it.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use acquit_actors::model::{Outgoing, QueueName};
use acquit_actors::ports::{FeedCursor, PublishReply, SettleReply, Settler};
use tokio::sync::oneshot;

use super::batch::Batch;
use super::core::Tally;
use super::error::EmbeddedError;
use super::queue::PartitionShared;

/// One thing to commit.
pub(crate) enum Job {
    /// Store messages, and how far a feed was read.
    Publish {
        messages: Vec<Outgoing>,
        cursor: Option<FeedCursor>,
        reply: PublishReply,
        bytes: usize,
    },
    /// Store a settlement that has begun.
    Settle(Settle),
    /// Count hand-outs.
    HandedOut {
        partition: Arc<PartitionShared>,
        handed: Vec<(u64, Tally)>,
    },
    /// Move an unreadable row to the dead list.
    SetAside {
        partition: Arc<PartitionShared>,
        seq: u64,
        row: Vec<u8>,
    },
    /// Make sure that a queue is there.
    Ensure {
        queue: QueueName,
        partitions: u32,
        reply: oneshot::Sender<Result<(), EmbeddedError>>,
    },
    /// Remove rows from a dead list, and publish their messages again if asked.
    Dead(DeadChange),
    /// Answer when all before is committed.
    Barrier(oneshot::Sender<()>),
    /// Commit all before and close the store.
    Close(oneshot::Sender<Result<(), EmbeddedError>>),
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Publish { .. } => "Publish",
            Self::Settle(_) => "Settle",
            Self::HandedOut { .. } => "HandedOut",
            Self::SetAside { .. } => "SetAside",
            Self::Ensure { .. } => "Ensure",
            Self::Dead(_) => "Dead",
            Self::Barrier(_) => "Barrier",
            Self::Close(_) => "Close",
        })
    }
}

/// A settlement on its way.
pub(crate) struct Settle {
    pub(crate) partition: Arc<PartitionShared>,
    pub(crate) seq: u64,
    pub(crate) what: Settlement,
    pub(crate) reply: SettleReply,
    /// Handed back if it cannot be stored.
    pub(crate) settler: Box<dyn Settler>,
}

/// What a settlement stores.
#[derive(Debug, Clone)]
pub(crate) enum Settlement {
    Ack,
    Requeue { tally: Tally, after: Duration },
    Dead { tally: Tally, reason: String },
}

/// A change of a dead list.
#[derive(Debug)]
pub(crate) struct DeadChange {
    /// Its rows, as the batch that changes them.
    pub(crate) batch: Batch,
    pub(crate) removed: Vec<Arc<PartitionShared>>,
    pub(crate) replayed: Vec<Outgoing>,
    pub(crate) reply: oneshot::Sender<Result<(), EmbeddedError>>,
}

/// The jobs that wait. Publishes are bounded by bytes ([`admit`](Self::admit)); settlements by
/// the credit of the sources they come from.
#[derive(Debug)]
pub(crate) struct Intake {
    state: Mutex<Waiting>,
    arrived: Condvar,
    bytes: AtomicUsize,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    closed: bool,
}

impl Intake {
    /// Makes an empty queue with a bound for waiting publishes.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            state: Mutex::new(Waiting::default()),
            arrived: Condvar::new(),
            bytes: AtomicUsize::new(0),
            bytes_max,
        }
    }

    /// Takes room for a publish; given back by [`done`](Self::done). One that is larger than the
    /// whole bound is let in alone.
    pub(crate) fn admit(&self, bytes: usize) -> Result<(), EmbeddedError> {
        let before = self.bytes.fetch_add(bytes, Ordering::AcqRel);
        if before > 0 && before.saturating_add(bytes) > self.bytes_max {
            self.done(bytes);
            return Err(EmbeddedError::TooManyWaiting { waiting: before });
        }
        Ok(())
    }

    /// Gives a publish's room back.
    pub(crate) fn done(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// Adds a job; gives it back when the store is closed.
    pub(crate) fn push(&self, job: Job) -> Result<(), Job> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.closed {
            return Err(job);
        }
        state.jobs.push_back(job);
        let first = state.jobs.len() == 1;
        drop(state);
        if first {
            self.arrived.notify_one();
        }
        Ok(())
    }

    /// Takes nothing more in. What waits is still done.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.closed = true;
        self.arrived.notify_one();
    }

    /// Waits for jobs, at most `timeout`, and moves at most `max` of them to `into`. `false`:
    /// closed and empty.
    pub(crate) fn take(&self, timeout: Option<Duration>, max: usize, into: &mut Vec<Job>) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.jobs.is_empty() && !state.closed {
            state = match timeout {
                Some(timeout) => {
                    let waited = self.arrived.wait_timeout(state, timeout);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => {
                    let waited = self.arrived.wait(state);
                    waited.unwrap_or_else(PoisonError::into_inner)
                }
            };
        }
        let count = state.jobs.len().min(max);
        into.extend(state.jobs.drain(..count));
        !(state.closed && state.jobs.is_empty() && count == 0)
    }
}
