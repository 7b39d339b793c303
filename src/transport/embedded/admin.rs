//! Looking at the queues and putting hands on them: statistics, peek, take, dead lists.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use acquit_actors::model::{
    Attempt, Delivery, Disposition, Generation, HeaderValue, Outgoing, PartitionId, QueueName,
    ReplayNumber, names as header_names,
};
use acquit_actors::ports::{Arrival, SettleReply, SettleResult};
use tokio::sync::oneshot;

use super::batch::{Batch, Table};
use super::codec::{decode_dead, decode_message, split_key};
use super::core::Tally;
use super::error::EmbeddedError;
use super::job::{DeadChange, Job};
use super::message::{Message, Place, own_id};
use super::queue::{PartitionShared, Queue};
use super::source::EmbeddedSource;
use super::transport::EmbeddedTransport;

/// The numbers of one queue.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueStats {
    /// The queue.
    pub queue: QueueName,
    /// Its partitions, from 0.
    pub partitions: Vec<PartitionStats>,
}

impl QueueStats {
    /// Adds the partitions up; the oldest age is the highest one.
    pub fn total(&self) -> PartitionStats {
        let mut total = PartitionStats::default();
        for partition in &self.partitions {
            total.ready += partition.ready;
            total.delayed += partition.delayed;
            total.leased += partition.leased;
            total.dead += partition.dead;
            total.oldest_age = total.oldest_age.max(partition.oldest_age);
        }
        total
    }
}

/// The numbers of one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct PartitionStats {
    /// Messages that can be handed out now.
    pub ready: u64,
    /// Messages that wait for their due time.
    pub delayed: u64,
    /// Messages that are handed out and not settled.
    pub leased: u64,
    /// Messages on the dead list.
    pub dead: u64,
    /// How long ago the next message to be handed out was published; `None`: nothing is ready.
    pub oldest_age: Option<Duration>,
}

/// A ready message, looked at without taking it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PeekedMessage {
    /// Its sequence in its partition.
    pub seq: u64,
    /// What a handler would see.
    pub delivery: Delivery,
}

/// A message on a dead list.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DeadMessage {
    /// The partition it was in.
    pub partition: PartitionId,
    /// Its sequence there.
    pub seq: u64,
    /// Why it died, in the words of the reject reasons.
    pub reason: String,
    /// When it died, in milliseconds since 1970.
    pub died_millis: u64,
    /// The message as a handler would see it; a corrupt one has only its body, the raw row.
    pub delivery: Delivery,
}

impl EmbeddedTransport {
    /// Lists the queues by name.
    pub fn queues(&self) -> Vec<QueueName> {
        let all = self.0.queues.all();
        all.iter().map(|queue| queue.name.clone()).collect()
    }

    /// Counts what stands where in a queue.
    ///
    /// # Errors
    ///
    /// [`EmbeddedError::NoSuchQueue`]; errors of the store while it looks for the oldest message.
    pub async fn stats(&self, queue: &QueueName) -> Result<QueueStats, EmbeddedError> {
        let queue = self.find(queue)?;
        let mut partitions = Vec::new();
        for partition in &queue.partitions {
            partitions.push(self.partition_stats(partition).await?);
        }
        Ok(QueueStats {
            queue: queue.name.clone(),
            partitions,
        })
    }

    /// Shows at most `max` ready messages of a queue, partition by partition, without taking them.
    ///
    /// # Errors
    ///
    /// [`EmbeddedError::NoSuchQueue`]; errors of the store.
    pub async fn peek(
        &self,
        queue: &QueueName,
        max: usize,
    ) -> Result<Vec<PeekedMessage>, EmbeddedError> {
        let queue = self.find(queue)?;
        let mut seen = Vec::new();
        for partition in &queue.partitions {
            let left = max - seen.len();
            for (seq, tally, message) in self.peek_partition(partition, left).await? {
                let tally = Tally {
                    deliveries: tally.deliveries.saturating_add(1),
                    ..tally
                };
                let delivery = message.delivery(&place(partition), seq, tally);
                seen.push(PeekedMessage { seq, delivery });
            }
        }
        Ok(seen)
    }

    /// Takes at most `max` ready messages out of a queue for good, partition by partition.
    ///
    /// # Errors
    ///
    /// [`EmbeddedError::NoSuchQueue`]; errors of the store. What was taken before an error is
    /// gone from the queue only if it was settled; what was not goes back.
    pub async fn take(
        &self,
        queue: &QueueName,
        max: usize,
    ) -> Result<Vec<Delivery>, EmbeddedError> {
        let queue = self.find(queue)?;
        let mut taken = Vec::new();
        for partition in &queue.partitions {
            while taken.len() < max {
                let left = u32::try_from(max - taken.len()).unwrap_or(u32::MAX);
                let arrivals = self.take_some(partition, left).await?;
                if arrivals.is_empty() {
                    break;
                }
                taken.extend(arrivals);
            }
        }
        Ok(taken)
    }

    /// Lists at most `max` messages of a queue's dead list, the earliest first.
    ///
    /// # Errors
    ///
    /// [`EmbeddedError::NoSuchQueue`]; errors of the store.
    pub async fn dead_list(
        &self,
        queue: &QueueName,
        max: usize,
    ) -> Result<Vec<DeadMessage>, EmbeddedError> {
        let queue = self.find(queue)?;
        let Some(durable) = &self.0.durable else {
            return Ok(dead_in_memory(&queue, max));
        };
        durable
            .call(move |reader| {
                let mut dead = Vec::new();
                for partition in &queue.partitions {
                    let (from, to) = (partition.row_key(0), partition.row_key(u64::MAX));
                    reader.with(|tables| {
                        tables.walk(Table::Dead, &from, Some(&to), |key, row| {
                            if dead.len() < max {
                                dead.push(read_dead(partition, key, row));
                            }
                            dead.len() < max
                        })
                    })?;
                }
                Ok(dead)
            })
            .await
    }

    /// Removes one message from a dead list for good; does nothing if it is not there.
    ///
    /// # Errors
    ///
    /// [`EmbeddedError::NoSuchQueue`]; errors of the store.
    pub async fn purge_dead(
        &self,
        queue: &QueueName,
        partition: PartitionId,
        seq: u64,
    ) -> Result<(), EmbeddedError> {
        let partition = self.0.queues.partition(queue, partition)?;
        self.change_dead(partition, seq, Vec::new()).await
    }

    /// Publishes a dead message into its queue again, as its first attempt and one replay later,
    /// and takes it off the dead list, both or neither.
    ///
    /// # Errors
    ///
    /// [`EmbeddedError::NoSuchQueue`]; errors of the store.
    pub async fn replay_dead(
        &self,
        queue: &QueueName,
        dead: &DeadMessage,
    ) -> Result<(), EmbeddedError> {
        let partition = self.0.queues.partition(queue, dead.partition)?;
        let replay = replayed(queue, &dead.delivery);
        self.change_dead(partition, dead.seq, vec![replay]).await
    }

    fn find(&self, queue: &QueueName) -> Result<Arc<Queue>, EmbeddedError> {
        let found = self.0.queues.get(queue);
        found.ok_or_else(|| EmbeddedError::NoSuchQueue {
            queue: queue.to_string(),
            partition: 0,
        })
    }

    async fn partition_stats(
        &self,
        partition: &Arc<PartitionShared>,
    ) -> Result<PartitionStats, EmbeddedError> {
        let (counts, dead) = {
            let mut state = partition.lock();
            state.core.advance(self.0.clock.now());
            (state.core.counts(), state.dead_count)
        };
        let oldest = self.peek_partition(partition, 1).await?;
        let wall = self.0.clock.wall_millis();
        let age = |(_, _, message): &(u64, Tally, Arc<Message>)| {
            Duration::from_millis(wall.saturating_sub(message.published_millis))
        };
        Ok(PartitionStats {
            ready: counts.ready,
            delayed: counts.delayed,
            leased: counts.leased,
            dead,
            oldest_age: oldest.first().map(age),
        })
    }

    async fn peek_partition(
        &self,
        partition: &Arc<PartitionShared>,
        max: usize,
    ) -> Result<Vec<(u64, Tally, Arc<Message>)>, EmbeddedError> {
        let (known, skip, ready) = {
            let mut state = partition.lock();
            state.core.advance(self.0.clock.now());
            let ready = state.core.counts().ready;
            let at_hand = state.core.ready_at_hand().take(max);
            let known: Vec<_> = at_hand
                .map(|(seq, tally, message)| (seq, tally, message.map(Arc::clone)))
                .collect();
            (known, state.core.not_ready(), ready)
        };
        let enough = known.len() as u64 >= ready.min(max as u64);
        let Some(durable) = &self.0.durable else {
            return Ok(present(known));
        };
        if enough && known.iter().all(|(_, _, message)| message.is_some()) {
            return Ok(present(known));
        }
        let partition = Arc::clone(partition);
        durable
            .call(move |reader| {
                let tallies: std::collections::HashMap<u64, Tally> =
                    known.iter().map(|(seq, tally, _)| (*seq, *tally)).collect();
                let mut seen = Vec::new();
                let (from, to) = (partition.row_key(0), partition.row_key(u64::MAX));
                reader.with(|tables| {
                    tables.walk(Table::Messages, &from, Some(&to), |key, row| {
                        let seq = split_key(key).map_or(0, |(_, _, seq)| seq);
                        if !skip.contains(&seq)
                            && let Ok(message) = decode_message(key, row)
                        {
                            let tally = tallies.get(&seq).copied().unwrap_or_default();
                            seen.push((seq, tally, Arc::new(message)));
                        }
                        seen.len() < max
                    })
                })?;
                Ok(seen)
            })
            .await
    }

    async fn take_some(
        &self,
        partition: &Arc<PartitionShared>,
        max: u32,
    ) -> Result<Vec<Delivery>, EmbeddedError> {
        let broker = Arc::clone(&self.0);
        let mut source =
            EmbeddedSource::open(broker, Arc::clone(partition), Generation::default(), max);
        let mut arrivals: Vec<Arrival> = Vec::new();
        poll_fn(|cx| source.poll_ready(cx, max as usize, &mut arrivals)).await?;
        let mut settled = Vec::new();
        for arrival in arrivals {
            let (reply, answer) = SettleReply::channel();
            arrival.settler.settle(Disposition::Ack, reply);
            settled.push((arrival.delivery, answer));
        }
        let mut taken = Vec::new();
        for (delivery, answer) in settled {
            match answer.await {
                Ok(SettleResult::Done(_)) => taken.push(delivery),
                _ => return Err(EmbeddedError::Closed),
            }
        }
        Ok(taken)
    }

    async fn change_dead(
        &self,
        partition: Arc<PartitionShared>,
        seq: u64,
        replayed: Vec<Outgoing>,
    ) -> Result<(), EmbeddedError> {
        let Some(durable) = &self.0.durable else {
            let mut state = partition.lock();
            if state.dead.remove(&seq).is_some() {
                state.dead_count -= 1;
                drop(state);
                for message in replayed {
                    super::publisher::publish_in_memory(&self.0, message);
                }
            }
            return Ok(());
        };
        let key = partition.row_key(seq);
        let there = durable
            .call(move |reader| reader.with(|tables| tables.get(Table::Dead, &key)))
            .await?;
        if there.is_none() {
            return Ok(());
        }
        let mut batch = Batch::default();
        batch.remove(Table::Dead, &key);
        let (reply, answer) = oneshot::channel();
        let change = DeadChange {
            batch,
            removed: vec![partition],
            replayed,
            reply,
        };
        let pushed = durable.intake.push(Job::Dead(change));
        pushed.map_err(|_| EmbeddedError::Closed)?;
        answer.await.unwrap_or(Err(EmbeddedError::Closed))
    }
}

fn present(known: Vec<(u64, Tally, Option<Arc<Message>>)>) -> Vec<(u64, Tally, Arc<Message>)> {
    let known = known.into_iter();
    known
        .filter_map(|(seq, tally, m)| Some((seq, tally, m?)))
        .collect()
}

fn place(partition: &PartitionShared) -> Place<'_> {
    Place {
        queue: &partition.queue,
        partition: partition.id,
        generation: Generation::default(),
        id_prefix: &partition.id_prefix,
    }
}

fn dead_in_memory(queue: &Queue, max: usize) -> Vec<DeadMessage> {
    let mut dead = Vec::new();
    for partition in &queue.partitions {
        let state = partition.lock();
        for (&seq, (note, message)) in state.dead.iter().take(max - dead.len()) {
            dead.push(DeadMessage {
                partition: partition.id,
                seq,
                reason: note.reason.clone(),
                died_millis: note.died_millis,
                delivery: message.delivery(&place(partition), seq, note.tally),
            });
        }
    }
    dead
}

fn read_dead(partition: &PartitionShared, key: &[u8], row: &[u8]) -> DeadMessage {
    let seq = split_key(key).map_or(0, |(_, _, seq)| seq);
    let at = place(partition);
    let raw = |bytes: bytes::Bytes| {
        let mut delivery = Delivery::new(at.queue.clone(), at.partition, at.generation, bytes);
        delivery.id = Some(own_id(at.id_prefix, seq));
        delivery
    };
    let Ok(dead) = decode_dead(key, row) else {
        return DeadMessage {
            partition: partition.id,
            seq,
            reason: "corrupt".to_owned(),
            died_millis: 0,
            delivery: raw(bytes::Bytes::copy_from_slice(row)),
        };
    };
    let delivery = match decode_message(key, &dead.message) {
        Ok(message) => message.delivery(&at, seq, dead.tally),
        Err(_) => raw(dead.message),
    };
    DeadMessage {
        partition: partition.id,
        seq,
        reason: dead.reason,
        died_millis: dead.died_millis,
        delivery,
    }
}

fn replayed(queue: &QueueName, dead: &Delivery) -> Outgoing {
    let mut outgoing = Outgoing::new(queue.clone(), dead.body.clone());
    outgoing.id.clone_from(&dead.id);
    outgoing.key.clone_from(&dead.key);
    outgoing.content_type.clone_from(&dead.content_type);
    outgoing.correlation_id.clone_from(&dead.correlation_id);
    outgoing.headers = dead.headers.clone();
    let ReplayNumber(replay) = dead.replay;
    let replay = i64::from(replay.saturating_add(1));
    outgoing.headers.set(header_names::REPLAYED, replay);
    let first = i64::from(Attempt::FIRST.get());
    outgoing
        .headers
        .set(header_names::ATTEMPT, HeaderValue::Int(first));
    outgoing
}
