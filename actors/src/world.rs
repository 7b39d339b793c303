//! What the actors of one engine share, on their thread. It survives every actor: phase, permit
//! book, outcome ledger and the registry of deliveries are not any actor's own.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::consumer::{ConsumerShared, PartitionShared};
use crate::delivery::{Completions, Executor};
use crate::ledger::Ledger;
use crate::limiter::{LimiterActor, PermitBook};
use crate::model::{Capabilities, DeliveryId, Phase};
use crate::ports::{Observer, Publisher, Transport};
use crate::publisher::PublisherActor;
use crate::registry::Registry;
use crate::settlement::Effect;
use crate::shutdown::{CoordinatorActor, DrainNotes, DrainReport};
use crate::supervision::Slot;
use crate::timer::Timers;

/// The timers' cargo: whose timer it is and which.
pub(crate) type DeliveryTimer = (DeliveryId, crate::delivery::TimerKind);

/// What the actors of one engine share.
pub(crate) struct World {
    pub(crate) started: Instant,
    pub(crate) registry: Registry,
    pub(crate) timers: Timers<DeliveryTimer>,
    pub(crate) completions: Arc<Completions>,
    pub(crate) executor: Executor,
    pub(crate) book: PermitBook,
    pub(crate) phase: Cell<Phase>,
    pub(crate) ledger: RefCell<Ledger>,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) capabilities: Capabilities,
    pub(crate) publisher_port: Arc<dyn Publisher>,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) limiter: Slot<LimiterActor>,
    pub(crate) publisher: Slot<PublisherActor>,
    pub(crate) coordinator: Slot<CoordinatorActor>,
    pub(crate) deliveries: Slot<crate::deliveries::DeliveriesActor>,
    pub(crate) consumers: RefCell<Vec<Rc<ConsumerShared>>>,
    /// How many deliveries may still be admitted, in job mode.
    pub(crate) quota: Cell<Option<u64>>,
    pub(crate) tokens: Cell<u64>,
    pub(crate) drain: RefCell<DrainNotes>,
    /// The drain report, when all is done.
    pub(crate) finished: RefCell<Option<DrainReport>>,
    pub(crate) finished_note: Notify,
    pub(crate) feeds: RefCell<Vec<Rc<crate::feed::FeedShared>>>,
    /// Effects of one transition, reused.
    pub(crate) effects: RefCell<Vec<Effect>>,
    /// Events that the settlement table refused: late words of the world, or a bug.
    pub(crate) refused: Cell<u64>,
    /// Observations lost to a panicking observer.
    pub(crate) observer_panics: Cell<u64>,
}

impl World {
    /// Gives the time since the engine started.
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Gives a new token for one publish.
    pub(crate) fn next_token(&self) -> u64 {
        self.tokens.set(self.tokens.get() + 1);
        self.tokens.get()
    }

    /// Lets the observer hear something; its panic is contained.
    pub(crate) fn observe(&self, tell: impl FnOnce(&dyn Observer)) {
        if catch_unwind(AssertUnwindSafe(|| tell(&*self.observer))).is_err() {
            self.observer_panics.set(self.observer_panics.get() + 1);
        }
    }

    /// Walks over all partitions of all consumers.
    pub(crate) fn partitions(&self) -> Vec<Rc<PartitionShared>> {
        let consumers = self.consumers.borrow();
        consumers
            .iter()
            .flat_map(|c| c.partitions.borrow().clone())
            .collect()
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World")
            .field("phase", &self.phase.get())
            .field("deliveries", &self.registry.len())
            .finish_non_exhaustive()
    }
}

/// Gives a time in whole milliseconds.
pub(crate) fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
