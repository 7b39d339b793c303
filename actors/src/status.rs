//! Snapshots: plain copies of status at a moment, for the control plane.

use serde::{Deserialize, Serialize};

use crate::consumer::{PartitionShared, SubscriptionState};
use crate::feed::FeedStatus;
use crate::limiter::LimiterSnapshot;
use crate::model::{ConsumerName, Counts, DeliveryId, MessageId, PartitionId, Phase, QueueName};
use crate::ports::ManagedState;
use crate::world::{World, millis};

/// The engine at a moment.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub struct Snapshot {
    /// The phase.
    pub phase: Phase,
    /// Milliseconds since the start.
    pub uptime_ms: u64,
    /// The transport's name.
    pub transport: String,
    /// The transport's connections; empty where it has none.
    #[serde(default)]
    pub connections: Vec<ManagedState>,
    /// The limiter.
    pub limiter: LimiterSnapshot,
    /// The consumers, as configured.
    pub consumers: Vec<ConsumerStatus>,
    /// The feeds, as configured.
    pub feeds: Vec<FeedStatus>,
    /// Handlers at work, those of concluded deliveries included.
    pub handlers_alive: u64,
    /// Entries in the outcome ledger.
    pub ledger_entries: u64,
    /// Events that the settlement table refused.
    pub refused_events: u64,
    /// Observations lost to a panicking observer.
    pub observer_panics: u64,
    /// What the engine keeps for its deliveries.
    pub kept: Kept,
}

/// What the engine keeps for its deliveries; all of it is 0 when none is in hand and no handler is
/// at work, whatever happened before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub struct Kept {
    /// Deliveries that are not ended.
    pub deliveries: u64,
    /// Names of works, by which a redelivery finds them.
    pub works: u64,
    /// Ended deliveries whose handler is still at work.
    pub lingering: u64,
    /// Armed timers.
    pub timers: u64,
}

/// A consumer at a moment.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub struct ConsumerStatus {
    /// Its name.
    pub name: ConsumerName,
    /// Its queue.
    pub queue: QueueName,
    /// Its permits now.
    pub permits: u32,
    /// The sums of its partitions.
    pub counts: Counts,
    /// Its partitions.
    pub partitions: Vec<PartitionStatus>,
}

/// A partition at a moment.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub struct PartitionStatus {
    /// Its number.
    pub partition: PartitionId,
    /// Where its subscription stands: opening, waiting, subscribed, quiet, closed.
    pub subscription: String,
    /// Why it is paused, if it is.
    pub paused: Option<String>,
    /// What keeps its intake from going on.
    pub trouble: Option<String>,
    /// The present opening of its source.
    pub generation: u64,
    /// Its counters.
    pub counts: Counts,
    /// The age of its oldest delivery in hand, in milliseconds.
    pub oldest_ms: Option<u64>,
}

/// A delivery in hand.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub struct InFlight {
    /// Its number in this process; what `cancel` takes.
    pub delivery: DeliveryId,
    /// Whose it is.
    pub consumer: ConsumerName,
    /// Its partition.
    pub partition: PartitionId,
    /// Its message's id.
    pub id: Option<MessageId>,
    /// Its attempt.
    pub attempt: u32,
    /// The state of its settlement.
    pub state: String,
    /// Its age since arrival, in milliseconds.
    pub age_ms: u64,
    /// How long its handler has been at work, in milliseconds.
    pub ran_ms: Option<u64>,
    /// The size of its body in bytes.
    pub body_bytes: u64,
}

/// Takes a snapshot.
pub(crate) fn snapshot(world: &World) -> Snapshot {
    let all = world.registry.all();
    let consumers = world.consumers.borrow();
    let consumers = consumers.iter().map(|consumer| {
        let partitions: Vec<PartitionStatus> = consumer
            .partitions
            .borrow()
            .iter()
            .map(|partition| {
                let oldest = all
                    .iter()
                    .find(|r| std::ptr::eq(&*r.partition, &**partition));
                partition_status(partition, oldest.map(|r| millis(r.arrived.elapsed())))
            })
            .collect();
        let mut counts = Counts::default();
        partitions
            .iter()
            .for_each(|partition| counts.add(&partition.counts));
        ConsumerStatus {
            name: consumer.spec.name.clone(),
            queue: consumer.spec.queue.clone(),
            permits: consumer.permits.get(),
            counts,
            partitions,
        }
    });
    Snapshot {
        phase: world.phase.get(),
        uptime_ms: millis(world.now()),
        transport: world.transport.name().to_owned(),
        connections: connections(world),
        limiter: world.book.snapshot(),
        consumers: consumers.collect(),
        feeds: world
            .feeds
            .borrow()
            .iter()
            .map(|feed| feed.status())
            .collect(),
        handlers_alive: world.executor.alive() as u64,
        ledger_entries: world.ledger.borrow().len() as u64,
        refused_events: world.refused.get(),
        observer_panics: world.observer_panics.get(),
        kept: kept(world),
    }
}

fn kept(world: &World) -> Kept {
    let (works, lingering) = world.registry.kept();
    Kept {
        deliveries: world.registry.len() as u64,
        works: works as u64,
        lingering: lingering as u64,
        timers: world.timers.len() as u64,
    }
}

fn partition_status(partition: &PartitionShared, oldest_ms: Option<u64>) -> PartitionStatus {
    PartitionStatus {
        partition: partition.id,
        subscription: subscription_word(partition.state.get()).to_owned(),
        paused: partition
            .paused
            .borrow()
            .as_ref()
            .map(|note| note.reason.clone()),
        trouble: partition.trouble.borrow().clone(),
        generation: partition.generation.get().0,
        counts: partition.counters.counts(),
        oldest_ms,
    }
}

fn subscription_word(state: SubscriptionState) -> &'static str {
    match state {
        SubscriptionState::Opening => "opening",
        SubscriptionState::Waiting => "waiting",
        SubscriptionState::Subscribed => "subscribed",
        SubscriptionState::Quiet => "quiet",
        SubscriptionState::Closed => "closed",
    }
}

/// Lists what is in hand, oldest first; at most `max`.
pub(crate) fn in_flight(world: &World, max: usize) -> Vec<InFlight> {
    let all = world.registry.all();
    all.iter()
        .take(max)
        .map(|record| {
            let state = record.state.borrow();
            InFlight {
                delivery: record.id,
                consumer: record.partition.consumer.spec.name.clone(),
                partition: record.partition.id,
                id: record.delivery.id.clone(),
                attempt: record.delivery.attempt.get(),
                state: state.machine.state().as_str().to_owned(),
                age_ms: millis(record.arrived.elapsed()),
                ran_ms: state.started.map(|started| millis(started.elapsed())),
                body_bytes: record.delivery.body.len() as u64,
            }
        })
        .collect()
}

fn connections(world: &World) -> Vec<ManagedState> {
    let parts = world.transport.managed();
    parts.iter().map(|part| part.state()).collect()
}
