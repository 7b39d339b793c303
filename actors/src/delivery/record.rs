//! The record of one delivery: it outlives the actor that works on it, so that a delivery whose
//! actor died still has its state, its decision and its settler.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use bytes::Bytes;
use tokio::time::Instant;

use crate::consumer::PartitionShared;
use crate::limiter::Permit;
use crate::model::{
    Delivery, DeliveryId, Disposition, Generation, Outcome, Outgoing, Publication, Receipt,
};
use crate::ports::{Arrival, RunControl, Settler};
use crate::settlement::{Machine, Rules, SettlementNumber, State};
use crate::timer::TimerKey;

use super::DeliveryActor;
use super::messages::TimerKind;

/// One delivery, as the registry holds it.
pub(crate) struct DeliveryRecord {
    pub(crate) id: DeliveryId,
    pub(crate) partition: Rc<PartitionShared>,
    pub(crate) delivery: Arc<Delivery>,
    pub(crate) arrived: Instant,
    pub(crate) state: RefCell<DeliveryState>,
}

/// What changes in a delivery's life.
pub(crate) struct DeliveryState {
    pub(crate) machine: Machine,
    /// The generation of the settler held: the delivery's own until it is adopted.
    pub(crate) generation: Generation,
    pub(crate) settler: Option<Box<dyn Settler>>,
    /// The settler was used: nothing more may be sent for this generation.
    pub(crate) settler_taken: bool,
    pub(crate) permit: Option<Permit>,
    pub(crate) control: Option<Arc<RunControl>>,
    pub(crate) started: Option<Instant>,
    pub(crate) ran: Option<Duration>,
    pub(crate) outcome: Option<Outcome>,
    pub(crate) error: Option<Box<str>>,
    pub(crate) result: Option<Bytes>,
    pub(crate) publishing: Option<Publication>,
    /// What the ledger's entry still owes: published as it was stored.
    pub(crate) owed: Option<Box<Outgoing>>,
    /// What is being published: the same bytes and id at every try.
    pub(crate) outgoing: Option<Box<Outgoing>>,
    pub(crate) publish_tries: u32,
    pub(crate) publish_token: u64,
    pub(crate) frame: u32,
    pub(crate) receipt: Option<Receipt>,
    /// It waits at the limiter.
    pub(crate) asked: bool,
    /// A settlement that waits until the broker hands out nothing more.
    pub(crate) deferred: Option<Disposition>,
    pub(crate) settling_since: Option<Instant>,
    /// The place of its settlement in the order sent on its channel.
    pub(crate) number: Option<SettlementNumber>,
    pub(crate) lease: Option<Duration>,
    pub(crate) lease_from: Instant,
    /// How many marks of the hold limit it has passed.
    pub(crate) hold_marks: u8,
    /// Deliveries of the same id that wait for this one's end.
    pub(crate) followers: Vec<DeliveryId>,
    pub(crate) timers: Timers,
    /// What is known of its handler, whether or not the delivery's actor lives to hear it.
    pub(crate) handler: HandlerPart,
    /// A settler that a redelivery brought, until the actor takes it: it must not die in a mailbox.
    pub(crate) adoption: Option<Adoption>,
    /// Deaths of its actors, where its work has no name; see the registry.
    pub(crate) deaths: u8,
    /// Which actor works on it, counted.
    pub(crate) incarnation: u32,
    pub(crate) addr: Option<Addr<DeliveryActor>>,
}

/// What is known of a delivery's handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HandlerPart {
    /// None was started.
    None,
    /// Its last word has not come.
    AtWork,
    /// It has ended without completing the work.
    Ended,
    /// It has completed the work.
    Completed,
}

/// What a redelivery hands over to the attempt of the same work that still runs.
pub(crate) struct Adoption {
    pub(crate) settler: Box<dyn Settler>,
    pub(crate) generation: Generation,
    pub(crate) lease: Option<Duration>,
}

/// The armed timers of one delivery. Those that exclude each other by state share a place.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Timers {
    main: Option<(TimerKind, TimerKey)>,
    publish: Option<(TimerKind, TimerKey)>,
    give_up: Option<(TimerKind, TimerKey)>,
}

impl Timers {
    /// Gives the place of a kind of timer.
    pub(crate) fn place(&mut self, kind: TimerKind) -> &mut Option<(TimerKind, TimerKey)> {
        match kind {
            TimerKind::Deadline
            | TimerKind::AbortGrace
            | TimerKind::Hold
            | TimerKind::SettleTimeout
            | TimerKind::Wait => &mut self.main,
            TimerKind::PublishTimeout | TimerKind::Republish => &mut self.publish,
            TimerKind::PublishGiveUp => &mut self.give_up,
        }
    }

    /// Takes all keys out, to disarm them.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = TimerKey> + use<> {
        let taken = std::mem::take(self);
        [taken.main, taken.publish, taken.give_up]
            .into_iter()
            .flatten()
            .map(|(_, key)| key)
    }
}

impl DeliveryRecord {
    /// Makes the record of an arrival.
    pub(crate) fn new(
        id: DeliveryId,
        partition: Rc<PartitionShared>,
        arrival: Arrival,
        rules: Rules,
        now: Instant,
    ) -> Rc<Self> {
        let generation = arrival.delivery.generation;
        Rc::new(Self {
            id,
            partition,
            delivery: Arc::new(arrival.delivery),
            arrived: now,
            state: RefCell::new(DeliveryState {
                machine: Machine::new(rules),
                generation,
                settler: Some(arrival.settler),
                settler_taken: false,
                permit: None,
                control: None,
                started: None,
                ran: None,
                outcome: None,
                error: None,
                result: None,
                publishing: None,
                owed: None,
                outgoing: None,
                publish_tries: 0,
                publish_token: 0,
                frame: 0,
                receipt: None,
                asked: false,
                deferred: None,
                settling_since: None,
                number: None,
                lease: arrival.lease,
                lease_from: now,
                hold_marks: 0,
                followers: Vec::new(),
                timers: Timers::default(),
                handler: HandlerPart::None,
                adoption: None,
                deaths: 0,
                incarnation: 0,
                addr: None,
            }),
        })
    }

    /// Gives the address of its actor, if it has one.
    pub(crate) fn addr(&self) -> Option<Addr<DeliveryActor>> {
        self.state.try_borrow().ok()?.addr.clone()
    }

    /// Makes the settler of a redelivery its own.
    pub(crate) fn take_over(&self, adoption: Adoption) {
        let mut state = self.state.borrow_mut();
        state.settler = Some(adoption.settler);
        state.settler_taken = false;
        state.number = None;
        state.generation = adoption.generation;
        state.lease = adoption.lease;
        state.lease_from = Instant::now();
        state.hold_marks = 0;
    }

    /// Gives the settlement's state.
    pub(crate) fn settlement(&self) -> State {
        self.state.borrow().machine.state()
    }
}

impl fmt::Debug for DeliveryRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeliveryRecord")
            .field("id", &self.id)
            .field("delivery", &self.delivery)
            .finish_non_exhaustive()
    }
}
