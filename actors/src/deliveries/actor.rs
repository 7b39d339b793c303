//! The deliveries actor: hears when a delivery's actor dies with its delivery unfinished, and looks
//! after what no delivery can look after itself.
//!
//! - **Parent**: the engine's supervisor; permanent. It is the parent of all delivery actors
//!   (simple one_for_one, temporary): none is ever restarted, but no delivery is lost with one.
//! - **Owns**: nothing; the registry is shared state.
//! - **In**: [`DeliveryDied`] from the links of delivery actors; its own tick.
//! - **Out**: a new actor for the delivery that lost its own; lease and settlement timeouts.
//! - **Ends** with the engine.
//!
//! What happens to the delivery of an actor that died (`settlement`): was its settler used, nothing
//! more is sent and its outcome is remembered; finished work is remembered and released; anything
//! else is released after a backoff; the second time it is rejected as `internal`.

use std::rc::Rc;
use std::time::Duration;

use actix::{Actor, ActorContext, AsyncContext, Context, Handler, Message};

use crate::consumer::ConsumerMessage;
use crate::delivery::{
    Completion, DeliveryMessage, DeliveryRecord, TimerKind, remember, start_delivery,
};
use crate::model::{Backoff, DeliveryId, Disposition, Outcome, Phase, RejectReason};
use crate::publisher::Published;
use crate::settlement::{CancelKind, Effect, Event, Machine, State};
use crate::supervision::StopActor;
use crate::world::World;

/// How often leases and settlements under way are looked at.
const TICK: Duration = Duration::from_millis(500);

/// How long the delivery of a dead actor waits before it is released.
const DEATH_BACKOFF: Backoff = Backoff {
    base: Duration::from_millis(200),
    max: Duration::from_secs(30),
};

/// A delivery actor died with its delivery unfinished.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct DeliveryDied {
    pub(crate) delivery: DeliveryId,
    pub(crate) panicked: bool,
}

/// The delivery of a dead actor has waited long enough.
#[derive(Debug, Message)]
#[rtype(result = "()")]
struct ReleaseDue {
    delivery: DeliveryId,
}

/// The parent of all delivery actors.
pub(crate) struct DeliveriesActor {
    world: Rc<World>,
}

impl DeliveriesActor {
    pub(crate) fn new(world: Rc<World>) -> Self {
        Self { world }
    }

    fn died(&self, died: &DeliveryDied, ctx: &mut Context<Self>) {
        let Some(record) = self.world.registry.get(died.delivery) else {
            return;
        };
        let reason = if died.panicked { "panicked" } else { "stopped" };
        self.world
            .observe(|observer| observer.actor_exited("delivery", reason, false));
        crate::consumer::bump(&record.partition.counters.actor_deaths);
        self.silence(&record);
        let deaths = {
            let mut state = record.state.borrow_mut();
            state.deaths = state.deaths.saturating_add(1);
            state.deaths
        };
        let taken = record.state.borrow().settler_taken;
        if deaths >= 2 && !taken {
            self.revive(&record, {
                let error = "our own actor died over it twice".to_owned();
                let outcome = Outcome::Rejected(RejectReason::Internal);
                DeliveryMessage::Judged {
                    outcome,
                    error: Some(error),
                }
            });
            return;
        }
        if taken || is_finished(&record) {
            self.remember_finished(&record);
        }
        if taken {
            self.revive(&record, DeliveryMessage::Happened(Event::ChannelLost));
            let generation = record.state.borrow().generation;
            record
                .partition
                .slot
                .do_send(ConsumerMessage::Reopen { generation });
            return;
        }
        let delay = DEATH_BACKOFF.delay(record.partition.deaths_in_a_row(), rand::random());
        ctx.notify_later(
            ReleaseDue {
                delivery: record.id,
            },
            delay,
        );
    }

    /// Stops the handler and the timers of a dead actor's delivery and gives its permit back.
    fn silence(&self, record: &DeliveryRecord) {
        let mut state = record.state.borrow_mut();
        state.addr = None;
        state.permit = None;
        if let Some(control) = state.control.take() {
            control.abort();
        }
        for key in state.timers.take_all() {
            self.world.timers.disarm(key);
        }
    }

    fn remember_finished(&self, record: &Rc<DeliveryRecord>) {
        let (outcome, rules) = {
            let state = record.state.borrow();
            (state.outcome, *state.machine.rules())
        };
        let Some(outcome) = outcome else { return };
        let decision = crate::settlement::decide(outcome, &rules);
        let concluded = matches!(
            decision.disposition,
            Disposition::Ack | Disposition::Reject { .. }
        );
        if concluded {
            let sent = record.state.borrow().settler_taken;
            remember(&self.world, record, decision, sent);
        }
    }

    /// Gives the delivery a new machine and a new actor, with what happens to it first.
    fn revive(&self, record: &Rc<DeliveryRecord>, first: DeliveryMessage) {
        {
            let mut state = record.state.borrow_mut();
            let rules = *state.machine.rules();
            state.machine = Machine::new(rules);
            state.publishing = None;
            state.publish_token = 0;
        }
        let addr = start_delivery(&self.world, record);
        addr.do_send(first);
    }

    fn tick(&self) {
        for record in self.world.registry.all() {
            let Ok(state) = record.state.try_borrow() else {
                continue;
            };
            let overdue = state.settling_since.is_some_and(|since| {
                since.elapsed() >= record.partition.consumer.spec.settle_timeout
            });
            let extend = state
                .lease
                .is_some_and(|lease| state.lease_from.elapsed() >= lease / 3);
            drop(state);
            if overdue {
                let message = DeliveryMessage::TimerFired(TimerKind::SettleTimeout);
                let _ = self.world.registry.tell(record.id, message);
            }
            if extend {
                let message = DeliveryMessage::Happened(Event::LeaseDue);
                let _ = self.world.registry.tell(record.id, message);
            }
        }
    }
}

fn is_finished(record: &DeliveryRecord) -> bool {
    matches!(
        record.state.borrow().outcome,
        Some(Outcome::Completed | Outcome::Rejected(_) | Outcome::Discarded)
    )
}

impl Actor for DeliveriesActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        ctx.run_interval(TICK, |this, _| this.tick());
        // Deaths that nobody heard while this actor was being restarted.
        for record in self.world.registry.all() {
            if record
                .state
                .borrow()
                .addr
                .as_ref()
                .is_none_or(|addr| !addr.connected())
            {
                ctx.notify(DeliveryDied {
                    delivery: record.id,
                    panicked: false,
                });
            }
        }
    }
}

impl Handler<DeliveryDied> for DeliveriesActor {
    type Result = ();

    fn handle(&mut self, died: DeliveryDied, ctx: &mut Context<Self>) {
        self.died(&died, ctx);
    }
}

impl Handler<ReleaseDue> for DeliveriesActor {
    type Result = ();

    fn handle(&mut self, due: ReleaseDue, _: &mut Context<Self>) {
        let Some(record) = self.world.registry.get(due.delivery) else {
            return;
        };
        if record.state.borrow().addr.is_none() {
            let release = Event::CancelAsked(CancelKind::Release);
            self.revive(&record, DeliveryMessage::Happened(release));
        }
    }
}

impl Handler<StopActor> for DeliveriesActor {
    type Result = ();

    fn handle(&mut self, _: StopActor, ctx: &mut Context<Self>) {
        ctx.stop();
    }
}

/// Carries answers from other threads to the deliveries, for ever.
pub(crate) async fn deliver_completions(world: Rc<World>) {
    let mut batch = Vec::new();
    loop {
        world.completions.take(&mut batch).await;
        for completion in batch.drain(..) {
            deliver(&world, completion);
        }
        // Let the actors work off what was just handed to them before more is.
        tokio::task::yield_now().await;
    }
}

fn deliver(world: &Rc<World>, completion: Completion) {
    let (delivery, message) = match completion {
        Completion::Published { token, result } => {
            world.publisher.do_send(Published { token, result });
            return;
        }
        Completion::Settled {
            delivery,
            frame,
            result,
        } => (delivery, DeliveryMessage::Settled { frame, result }),
        Completion::Returned { delivery, outcome } => {
            (delivery, DeliveryMessage::Returned(outcome))
        }
        Completion::Panicked { delivery, text } => (delivery, DeliveryMessage::Panicked(text)),
        Completion::Gone { delivery } => (delivery, DeliveryMessage::Gone),
    };
    if let Some(message) = world.registry.tell(delivery, message) {
        late_word(world, delivery, &message);
    }
}

/// A handler's word came after its delivery had ended: an overrun's. Finished work is remembered,
/// and deliveries of the same id that waited for the thread's end may go on.
fn late_word(world: &Rc<World>, delivery: DeliveryId, message: &DeliveryMessage) {
    let event = match message {
        DeliveryMessage::Returned(crate::ports::HandlerOutcome::Completed { result }) => {
            if let Some(record) = world.registry.lingering(delivery) {
                let mut state = record.state.borrow_mut();
                if state.result.is_none() {
                    state.result.clone_from(result);
                }
            }
            Event::HandlerReturned(Outcome::Completed)
        }
        DeliveryMessage::Returned(_) => Event::HandlerReturned(Outcome::Failed),
        DeliveryMessage::Panicked(_) | DeliveryMessage::Gone => Event::HandlerGone,
        _ => return,
    };
    let Some(record) = world.registry.stop_lingering(delivery) else {
        return;
    };
    let mut effects = Vec::new();
    if record
        .state
        .borrow_mut()
        .machine
        .apply(event, &mut effects)
        .is_ok()
    {
        for effect in effects {
            if let Effect::Remember { decision, sent } = effect {
                remember(world, &record, decision, sent);
            }
        }
    }
    let followers = std::mem::take(&mut record.state.borrow_mut().followers);
    for delivery in followers {
        let readmit = ConsumerMessage::Readmit {
            delivery,
            predecessor: None,
        };
        record.partition.slot.do_send(readmit);
    }
}

/// Carries timers that are due to their deliveries, for ever.
pub(crate) async fn deliver_timers(world: Rc<World>) {
    let mut due = Vec::new();
    loop {
        world.timers.next(&mut due).await;
        for (delivery, kind) in due.drain(..) {
            if let Some(record) = world.registry.get(delivery) {
                // The key is spent: the wheel may give it to another timer.
                let mut state = record.state.borrow_mut();
                let place = state.timers.place(kind);
                if place.as_ref().is_some_and(|(armed, _)| *armed == kind) {
                    *place = None;
                }
            }
            let _ = world
                .registry
                .tell(delivery, DeliveryMessage::TimerFired(kind));
        }
        tokio::task::yield_now().await;
    }
}

/// Tells every delivery that the process drains, or that the drain is forced.
pub(crate) fn tell_all(world: &World, phase: Phase) {
    let event = match phase {
        Phase::Running | Phase::Stopped => return,
        Phase::Draining => Event::DrainBegan,
        Phase::Forcing => Event::DrainForced,
    };
    for record in world.registry.all() {
        let _ = world
            .registry
            .tell(record.id, DeliveryMessage::Happened(event));
    }
}

/// Tells whether a delivery still has work to do that a drain waits for.
pub(crate) fn is_straggler(record: &DeliveryRecord) -> bool {
    !matches!(
        record.settlement(),
        State::Received | State::Settling { .. }
    )
}
