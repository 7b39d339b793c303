//! The thread that owns the durable store: it commits what came in meanwhile as one batch, then
//! tells the partitions and answers all who waited.

use std::sync::Arc;

use acquit_actors::model::{Outgoing, QueueName, RejectReason};
use acquit_actors::ports::{FeedCursor, PublishReply};
use tokio::sync::oneshot;

use super::batch::{Batch, Table};
use super::clock::Clock;
use super::codec::{DeadRow, StateRow, encode_dead, encode_message, encode_numbers, encode_state};
use super::core::Tally;
use super::error::EmbeddedError;
use super::job::{DeadChange, Intake, Job, Settle, Settlement};
use super::message::Message;
use super::names;
use super::queue::{Kind, PartitionShared, Queue, Queues, wake};
use super::store::Store;
use super::timer::Timer;

/// How many jobs a batch holds at most.
const BATCH_JOBS: usize = 2048;
/// Past this many bytes a batch is committed before it grows further.
const BATCH_BYTES: usize = 4 << 20;
/// How many sequences are promised ahead, so that the promise costs little.
const SEQUENCES_AHEAD: u64 = 4096;

/// The committer; see the module's docs.
pub(crate) struct Committer {
    pub(crate) store: Store,
    pub(crate) intake: Arc<Intake>,
    pub(crate) queues: Arc<Queues>,
    pub(crate) timer: Arc<Timer>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) kind: Kind,
    pub(crate) default_partitions: u32,
    pub(crate) next_queue: u32,
}

/// What is done when the batch is committed, or not.
enum Work {
    Published {
        pushes: Vec<Push>,
        reply: PublishReply,
        bytes: usize,
    },
    Settled(Settle),
    SetAside(Arc<PartitionShared>),
    Dead {
        removed: Vec<Arc<PartitionShared>>,
        pushes: Vec<Push>,
        reply: oneshot::Sender<Result<(), EmbeddedError>>,
    },
    Barrier(oneshot::Sender<()>),
}

struct Push {
    partition: Arc<PartitionShared>,
    seq: u64,
    message: Arc<Message>,
}

impl Committer {
    /// Runs until it is closed.
    pub(crate) fn run(mut self) {
        let mut jobs = Vec::new();
        loop {
            let timeout = self.store.next_maintenance();
            let open = self.intake.take(timeout, BATCH_JOBS, &mut jobs);
            if let Some(closed) = self.commit_jobs(&mut jobs) {
                let _ = closed.send(self.end());
                return;
            }
            self.store.maintain();
            if !open {
                if let Err(error) = self.end() {
                    tracing::warn!(%error, "the store was not closed cleanly; the log is replayed at the next start");
                }
                return;
            }
        }
    }

    /// Commits all jobs; a Close ends the walk and is given back.
    fn commit_jobs(
        &mut self,
        jobs: &mut Vec<Job>,
    ) -> Option<oneshot::Sender<Result<(), EmbeddedError>>> {
        let (mut batch, mut works) = (Batch::default(), Vec::new());
        for job in jobs.drain(..) {
            match job {
                Job::Close(reply) => {
                    self.intake.close();
                    self.commit(&mut batch, &mut works);
                    return Some(reply);
                }
                Job::Ensure {
                    queue,
                    partitions,
                    reply,
                } => drop(reply.send(self.ensure(&queue, partitions))),
                // What grows the store is not mixed with what does not once storage is full.
                job if self.store.is_full() => {
                    self.commit(&mut batch, &mut works);
                    self.prepare(job, &mut batch, &mut works);
                    self.commit(&mut batch, &mut works);
                }
                job => self.prepare(job, &mut batch, &mut works),
            }
            if batch.bytes() >= BATCH_BYTES {
                self.commit(&mut batch, &mut works);
            }
        }
        self.commit(&mut batch, &mut works);
        None
    }

    fn prepare(&mut self, job: Job, batch: &mut Batch, works: &mut Vec<Work>) {
        match job {
            Job::Publish {
                messages,
                cursor,
                reply,
                bytes,
            } => match self.put_messages(messages, batch) {
                Ok(pushes) => {
                    if let Some(cursor) = cursor {
                        put_cursor(&cursor, batch);
                    }
                    batch.grows = true;
                    works.push(Work::Published {
                        pushes,
                        reply,
                        bytes,
                    });
                }
                Err(error) => {
                    self.intake.done(bytes);
                    reply.failed(error.into());
                }
            },
            Job::Settle(settle) => {
                self.put_settlement(&settle, batch);
                works.push(Work::Settled(settle));
            }
            Job::HandedOut { partition, handed } => {
                for (seq, tally) in handed {
                    let state = StateRow {
                        tally,
                        ..StateRow::default()
                    };
                    batch.hand_out(partition.row_key(seq), state);
                }
            }
            Job::SetAside {
                partition,
                seq,
                row,
            } => {
                put_aside(&partition, seq, row, self.clock.wall_millis(), batch);
                works.push(Work::SetAside(partition));
            }
            Job::Dead(change) => self.put_dead_change(change, batch, works),
            Job::Barrier(reply) => works.push(Work::Barrier(reply)),
            Job::Ensure { .. } | Job::Close(_) => {}
        }
    }

    /// Puts messages into the batch under new sequences; a queue nobody made is made.
    fn put_messages(
        &mut self,
        messages: Vec<Outgoing>,
        batch: &mut Batch,
    ) -> Result<Vec<Push>, EmbeddedError> {
        let now = self.clock.wall_millis();
        let mut pushes = Vec::with_capacity(messages.len());
        for outgoing in messages {
            let queue = match self.queues.get(&outgoing.queue) {
                Some(queue) => queue,
                None => self.make_queue(&outgoing.queue, self.default_partitions)?,
            };
            let partition = Arc::clone(queue.choose(outgoing.key.as_deref()));
            let seq = reserve(&partition, batch);
            let message = Message::of(outgoing, now);
            let key = partition.row_key(seq);
            batch.put(Table::Messages, &key, encode_message(&key, &message));
            pushes.push(Push {
                partition,
                seq,
                message: Arc::new(message),
            });
        }
        Ok(pushes)
    }

    fn put_settlement(&self, settle: &Settle, batch: &mut Batch) {
        let key = settle.partition.row_key(settle.seq);
        match &settle.what {
            Settlement::Ack => batch.remove_message(&key),
            Settlement::Requeue { tally, after } => {
                let delay_millis = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
                let state = StateRow {
                    tally: Tally {
                        failures: tally.failures.saturating_add(1),
                        ..*tally
                    },
                    due_millis: self.clock.wall_millis().saturating_add(delay_millis),
                    delay_millis,
                };
                batch.put(Table::States, &key, encode_state(&key, &state));
            }
            Settlement::Dead { tally, reason } => {
                let state = settle.partition.lock();
                let message = state.core.leased_payload(settle.seq).map(Arc::clone);
                drop(state);
                let row = message.map(|message| encode_message(&key, &message));
                let dead = DeadRow {
                    reason: reason.clone(),
                    died_millis: self.clock.wall_millis(),
                    tally: *tally,
                    message: row.unwrap_or_default().into(),
                };
                batch.put(Table::Dead, &key, encode_dead(&key, &dead));
                batch.remove_message(&key);
            }
        }
    }

    fn put_dead_change(&mut self, change: DeadChange, batch: &mut Batch, works: &mut Vec<Work>) {
        match self.put_messages(change.replayed, batch) {
            Ok(pushes) => {
                batch.grows |= !pushes.is_empty();
                for row in change.batch.changes {
                    batch.remove(row.table, &row.key);
                }
                works.push(Work::Dead {
                    removed: change.removed,
                    pushes,
                    reply: change.reply,
                });
            }
            Err(error) => drop(change.reply.send(Err(error))),
        }
    }

    /// Commits the batch and does what waited for it.
    fn commit(&mut self, batch: &mut Batch, works: &mut Vec<Work>) {
        let result = if batch.is_empty() {
            Ok(())
        } else {
            self.store.commit(batch)
        };
        let mixed = batch.grows && works.iter().any(|work| matches!(work, Work::Settled(_)));
        batch.clear();
        match result {
            Err(error @ EmbeddedError::StorageFull { .. }) if mixed => {
                // Settlements need not fail with the publishes they were committed with.
                let (settled, other): (Vec<_>, Vec<_>) = works
                    .drain(..)
                    .partition(|work| matches!(work, Work::Settled(_)));
                self.finish(other, &Err(error));
                for work in &settled {
                    if let Work::Settled(settle) = work {
                        self.put_settlement(settle, batch);
                    }
                }
                let result = self.store.commit(batch);
                batch.clear();
                self.finish(settled, &result);
            }
            result => {
                let works = std::mem::take(works);
                self.finish(works, &result);
            }
        }
    }

    fn finish(&mut self, works: Vec<Work>, result: &Result<(), EmbeddedError>) {
        for work in works {
            match work {
                Work::Published {
                    pushes,
                    reply,
                    bytes,
                } => {
                    self.push_all(pushes, result.is_ok());
                    self.intake.done(bytes);
                    match result {
                        Ok(()) => reply.confirmed(),
                        Err(error) => reply.failed(error.clone().into()),
                    }
                }
                Work::Settled(settle) => self.finish_settlement(settle, result.is_ok()),
                Work::SetAside(partition) => {
                    if result.is_ok() {
                        partition.lock().dead_count += 1;
                    }
                }
                Work::Dead {
                    removed,
                    pushes,
                    reply,
                } => {
                    self.push_all(pushes, result.is_ok());
                    if result.is_ok() {
                        for partition in removed {
                            let mut state = partition.lock();
                            state.dead_count = state.dead_count.saturating_sub(1);
                        }
                    }
                    let _ = reply.send(result.clone());
                }
                Work::Barrier(reply) => drop(reply.send(())),
            }
        }
    }

    fn push_all(&self, pushes: Vec<Push>, committed: bool) {
        for push in pushes {
            let mut state = push.partition.lock();
            if committed {
                let weight = push.message.weight();
                state.core.push(push.seq, push.message, weight);
                let waiting = state.take_waiting();
                drop(state);
                wake(waiting);
            } else {
                // The promise may not have been stored either: it is made anew.
                state.ceiling = 0;
            }
        }
    }

    fn finish_settlement(&self, settle: Settle, committed: bool) {
        let now = self.clock.now();
        let mut state = settle.partition.lock();
        if !committed {
            state.core.abort_settle(settle.seq, now);
            let waiting = state.take_waiting();
            drop(state);
            wake(waiting);
            settle.reply.not_sent(settle.settler);
            return;
        }
        let mut due = None;
        match settle.what {
            Settlement::Ack => drop(state.core.remove(settle.seq)),
            Settlement::Requeue { after, .. } => {
                let at = now.saturating_add(after);
                state.core.requeue(settle.seq, now, at);
                due = Some(at);
            }
            Settlement::Dead { .. } => {
                state.core.remove(settle.seq);
                state.dead_count += 1;
            }
        }
        let waiting = state.take_waiting();
        drop(state);
        if let Some(due) = due {
            self.timer.arm(due);
        }
        wake(waiting);
        settle.reply.confirmed();
    }

    fn ensure(&mut self, name: &QueueName, partitions: u32) -> Result<(), EmbeddedError> {
        match self.queues.get(name) {
            Some(queue) => queue.check_partitions(partitions),
            None => self.make_queue(name, partitions).map(drop),
        }
    }

    /// Stores a new queue by a commit of its own, then shows it to all.
    fn make_queue(
        &mut self,
        name: &QueueName,
        partitions: u32,
    ) -> Result<Arc<Queue>, EmbeddedError> {
        let number = self.next_queue;
        let key = names::queue(name);
        let mut batch = Batch::default();
        batch.grows = true;
        let row = encode_numbers(&key, &[u64::from(number), u64::from(partitions)]);
        batch.put(Table::Names, &key, row);
        self.store.commit(&batch)?;
        self.next_queue += 1;
        let queue = Queue::new(name.clone(), number, partitions, &self.kind);
        Ok(self.queues.add(queue))
    }

    fn end(self) -> Result<(), EmbeddedError> {
        self.intake.close();
        self.store.close()
    }
}

/// Gives the next sequence, and promises more of them when the promise is used up.
fn reserve(partition: &PartitionShared, batch: &mut Batch) -> u64 {
    let mut state = partition.lock();
    let seq = state.core.reserve();
    if seq >= state.ceiling {
        state.ceiling = seq + SEQUENCES_AHEAD;
        let key = names::ceiling(partition.queue_number, partition.id.0);
        batch.put(Table::Names, &key, encode_numbers(&key, &[state.ceiling]));
    }
    seq
}

/// Moves a row that does not match its checksum to the dead list.
pub(crate) fn put_aside(
    partition: &PartitionShared,
    seq: u64,
    row: Vec<u8>,
    wall_millis: u64,
    batch: &mut Batch,
) {
    tracing::error!(queue = %partition.queue, partition = %partition.id, seq,
        "a stored message does not match its checksum; it goes to the dead list as corrupt");
    let key = partition.row_key(seq);
    let dead = DeadRow {
        reason: RejectReason::Corrupt.as_str().to_owned(),
        died_millis: wall_millis,
        tally: Tally::default(),
        message: row.into(),
    };
    batch.put(Table::Dead, &key, encode_dead(&key, &dead));
    batch.remove_message(&key);
}

fn put_cursor(cursor: &FeedCursor, batch: &mut Batch) {
    let key = names::cursor(&cursor.feed);
    let row = encode_numbers(&key, &[cursor.offset, cursor.line, cursor.bad]);
    batch.put(Table::Names, &key, row);
}

impl std::fmt::Debug for Committer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Committer").finish_non_exhaustive()
    }
}
