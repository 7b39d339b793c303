//! What the actors of a consumer share, on the actors' thread; it survives their restarts.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;

use crate::limiter::ConsumerIndex;
use crate::model::{Counts, Disposition, Generation, Outcome, PartitionId};
use crate::settlement::{ChannelId, Final, SettlementNumber};
use crate::supervision::Slot;
use crate::world::World;

use super::{ConsumerActor, ConsumerSpec, SubscriptionState};

/// A consumer's shared part.
pub(crate) struct ConsumerShared {
    pub(crate) spec: ConsumerSpec,
    pub(crate) index: ConsumerIndex,
    /// The permits as they are now; `spec.permits` are those of the start.
    pub(crate) permits: Cell<u32>,
    pub(crate) partitions: RefCell<Vec<Rc<PartitionShared>>>,
}

/// A partition's shared part.
pub(crate) struct PartitionShared {
    pub(crate) id: PartitionId,
    pub(crate) consumer: Rc<ConsumerShared>,
    pub(crate) slot: Slot<ConsumerActor>,
    pub(crate) generation: Cell<Generation>,
    /// The channel of the present generation, as the ledger counts it.
    pub(crate) channel: Cell<Option<ChannelId>>,
    pub(crate) counters: Counters,
    /// Desired state: who paused it, why and since when.
    pub(crate) paused: RefCell<Option<PauseNote>>,
    pub(crate) state: Cell<SubscriptionState>,
    /// The broker confirmed that it hands out nothing more.
    pub(crate) quiet: Cell<bool>,
    /// The source was closed orderly.
    pub(crate) closed: Cell<bool>,
    pub(crate) closing: tokio::sync::Notify,
    /// The last trouble of intake, for status; cleared by the next good word.
    pub(crate) trouble: RefCell<Option<String>>,
    /// How many troubles followed each other without a good word between.
    pub(crate) troubles: Cell<u32>,
    /// How many of its delivery actors died without a good word between.
    pub(crate) deaths: Cell<u32>,
}

impl PartitionShared {
    /// Makes the shared part of a partition that was never opened.
    pub(crate) fn new(id: PartitionId, consumer: Rc<ConsumerShared>) -> Self {
        Self {
            id,
            consumer,
            slot: Slot::new(),
            generation: Cell::default(),
            channel: Cell::default(),
            counters: Counters::default(),
            paused: RefCell::default(),
            state: Cell::new(SubscriptionState::Waiting),
            quiet: Cell::default(),
            closed: Cell::default(),
            closing: tokio::sync::Notify::new(),
            trouble: RefCell::default(),
            troubles: Cell::default(),
            deaths: Cell::default(),
        }
    }

    /// Counts a settlement that may have been sent on a generation, in the order sent.
    pub(crate) fn count_sent(
        &self,
        world: &World,
        generation: Generation,
    ) -> Option<SettlementNumber> {
        let channel = self.channel.get()?;
        if generation != self.generation.get() {
            return None;
        }
        world.ledger.borrow_mut().sent(channel)
    }

    /// Writes down that it is paused; a pause that stands keeps its reason and its beginning.
    pub(crate) fn note_pause(&self, reason: &str) {
        self.paused.borrow_mut().get_or_insert_with(|| PauseNote {
            reason: reason.to_owned(),
            since: Instant::now(),
        });
    }

    /// Tells how long it has been paused, if it is.
    pub(crate) fn paused_for(&self) -> Option<Duration> {
        let paused = self.paused.borrow();
        paused.as_ref().map(|note| note.since.elapsed())
    }

    /// Counts a death of one of its delivery actors; gives how many followed each other.
    pub(crate) fn deaths_in_a_row(&self) -> u32 {
        let deaths = self.deaths.get().saturating_add(1);
        self.deaths.set(deaths);
        deaths
    }

    /// A handler completed or a publish was confirmed: intake has no trouble any more.
    pub(crate) fn good_word(&self) {
        self.deaths.set(0);
        if self.troubles.get() > 0 {
            self.troubles.set(0);
            *self.trouble.borrow_mut() = None;
        }
    }
}

/// Why and since when a partition is paused.
#[derive(Debug, Clone)]
pub(crate) struct PauseNote {
    pub(crate) reason: String,
    pub(crate) since: Instant,
}

/// A partition's counters since the start. At every moment: received = settled by disposition +
/// lost + in hand.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) received: Cell<u64>,
    pub(crate) redelivered: Cell<u64>,
    pub(crate) acked: Cell<u64>,
    pub(crate) requeued: Cell<u64>,
    pub(crate) released: Cell<u64>,
    pub(crate) rejected: Cell<u64>,
    pub(crate) lost: Cell<u64>,
    pub(crate) stale: Cell<u64>,
    pub(crate) overruns: Cell<u64>,
    pub(crate) completed: Cell<u64>,
    pub(crate) unavailable: Cell<u64>,
    pub(crate) failed: Cell<u64>,
    pub(crate) known: Cell<u64>,
    pub(crate) adopted: Cell<u64>,
    pub(crate) in_hand: Cell<u64>,
    pub(crate) actor_deaths: Cell<u64>,
}

/// Adds one to a counter.
pub(crate) fn bump(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

impl Counters {
    /// Counts an arrival.
    pub(crate) fn arrived(&self, redelivered: bool) {
        bump(&self.received);
        bump(&self.in_hand);
        if redelivered {
            bump(&self.redelivered);
        }
    }

    /// Copies the counters.
    pub(crate) fn counts(&self) -> Counts {
        Counts {
            received: self.received.get(),
            redelivered: self.redelivered.get(),
            in_hand: self.in_hand.get(),
            acked: self.acked.get(),
            requeued: self.requeued.get(),
            released: self.released.get(),
            rejected: self.rejected.get(),
            lost: self.lost.get(),
            stale: self.stale.get(),
            completed: self.completed.get(),
            failed: self.failed.get(),
            unavailable: self.unavailable.get(),
            known: self.known.get(),
            adopted: self.adopted.get(),
            overruns: self.overruns.get(),
            actor_deaths: self.actor_deaths.get(),
        }
    }

    /// Counts an outcome.
    pub(crate) fn outcome(&self, outcome: Option<Outcome>) {
        match outcome {
            None => {}
            Some(Outcome::Completed | Outcome::Discarded) => bump(&self.completed),
            Some(Outcome::Known { .. }) => bump(&self.known),
            Some(Outcome::Unavailable) => bump(&self.unavailable),
            Some(
                Outcome::Failed
                | Outcome::Rejected(_)
                | Outcome::Panicked
                | Outcome::TimedOut
                | Outcome::Gone,
            ) => bump(&self.failed),
        }
    }

    /// Counts an end.
    pub(crate) fn ended(&self, end: &Final) {
        self.in_hand.set(self.in_hand.get().saturating_sub(1));
        let overrun = match end {
            Final::Settled {
                disposition,
                overrun,
            } => {
                bump(match disposition {
                    Disposition::Ack => &self.acked,
                    Disposition::Requeue { .. } => &self.requeued,
                    Disposition::Release => &self.released,
                    Disposition::Reject { .. } => &self.rejected,
                });
                *overrun
            }
            Final::Lost { cause, overrun } => {
                bump(&self.lost);
                if *cause == crate::settlement::LostCause::Stale {
                    bump(&self.stale);
                }
                *overrun
            }
        };
        if overrun {
            bump(&self.overruns);
        }
    }
}

impl std::fmt::Debug for PartitionShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PartitionShared")
            .field("consumer", &self.consumer.spec.name)
            .field("id", &self.id)
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}
