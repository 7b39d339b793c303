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
    Completion, DeliveryMessage, DeliveryRecord, HandlerPart, TimerKind, readmit, remember,
    start_delivery,
};
use crate::model::{Backoff, DeliveryId, Disposition, Outcome, Phase, Receipt, RejectReason};
use crate::ports::{HandlerOutcome, SettleResult};
use crate::publisher::Published;
use crate::settlement::{CancelKind, Effect, Event, Machine, SettleFailure, State};
use crate::supervision::StopActor;
use crate::world::World;

/// How often leases and settlements under way are looked at.
const TICK: Duration = Duration::from_millis(500);

/// How long the delivery of a dead actor waits before it is released.
const DEATH_BACKOFF: Backoff = Backoff {
    base: Duration::from_millis(200),
    max: Duration::from_secs(30),
};

/// The parts of the hold limit at which a delivery is named; at the last one it may be given back.
const HOLD_MARKS: [f64; 3] = [0.5, 0.8, 0.95];

/// A delivery actor died with its delivery unfinished.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct DeliveryDied {
    pub(crate) delivery: DeliveryId,
    /// Which actor of it.
    pub(crate) incarnation: u32,
    pub(crate) panicked: bool,
}

/// The delivery of a dead actor has waited long enough.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct ReleaseDue {
    pub(crate) delivery: DeliveryId,
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
        if record.state.borrow().incarnation != died.incarnation {
            return; // heard already
        }
        let reason = if died.panicked { "panicked" } else { "stopped" };
        self.world
            .observe(|observer| observer.actor_exited("delivery", reason, false));
        crate::consumer::bump(&record.partition.counters.actor_deaths);
        self.silence(&record);
        let adoption = record.state.borrow_mut().adoption.take();
        if let Some(adoption) = adoption {
            record.take_over(adoption);
        }
        let deaths = self.world.registry.count_death(&record);
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
        self.remember_finished(&record);
        if taken {
            self.revive(&record, DeliveryMessage::Happened(Event::ChannelLost));
            let generation = record.state.borrow().generation;
            record
                .partition
                .slot
                .do_send(ConsumerMessage::Reopen { generation });
            return;
        }
        self.release_later(&record, ctx);
    }

    fn release_later(&self, record: &DeliveryRecord, ctx: &mut Context<Self>) {
        if self.world.phase.get() >= Phase::Draining {
            ctx.notify(ReleaseDue {
                delivery: record.id,
            });
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

    /// Stops the handler and the timers of a dead actor's delivery and gives its permit back. Its
    /// incarnation goes up, so that its death is heard once.
    fn silence(&self, record: &DeliveryRecord) {
        let mut state = record.state.borrow_mut();
        state.addr = None;
        state.incarnation += 1;
        state.permit = None;
        if let Some(control) = state.control.take() {
            control.abort();
        }
        for key in state.timers.take_all() {
            self.world.timers.disarm(key);
        }
    }

    /// Remembers what the dead actor would have: the decision that stood, by the ledger's rule.
    fn remember_finished(&self, record: &Rc<DeliveryRecord>) {
        let (bequest, unheard) = {
            let state = record.state.borrow();
            let unheard = matches!(state.machine.state(), State::Running | State::Orphaned);
            (state.machine.bequest(), unheard)
        };
        match bequest {
            Some(Effect::Remember { decision, sent }) => {
                remember(&self.world, record, decision, sent);
            }
            // Its handler's word may have died with it in the mailbox.
            _ if unheard => remember_completed(&self.world, record),
            _ => {}
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
            state.deferred = None;
        }
        let addr = start_delivery(&self.world, record);
        addr.do_send(first);
    }

    /// Names a delivery that is held for half of what the broker allows, and again later; then gives
    /// it back, where that is wanted. A settler that is taken has been told.
    fn watch_hold(&self, record: &DeliveryRecord) {
        let consumer = &record.partition.consumer.spec;
        let Some(limit) = consumer.hold_limit else {
            return;
        };
        let Ok(mut state) = record.state.try_borrow_mut() else {
            return;
        };
        let held = state.lease_from.elapsed();
        let passed = HOLD_MARKS
            .iter()
            .filter(|mark| held >= limit.mul_f64(**mark));
        let passed = u8::try_from(passed.count()).unwrap_or(u8::MAX);
        let is_ours =
            state.settler.is_some() && state.generation == record.partition.generation.get();
        if passed <= state.hold_marks || !is_ours {
            return;
        }
        state.hold_marks = passed;
        let last = usize::from(passed) == HOLD_MARKS.len();
        if last && consumer.give_back_at_limit {
            let text = "held for almost as long as the broker allows, and given back";
            state.error = Some(text.into());
            drop(state);
            let event = Event::CancelAsked(CancelKind::Release);
            let message = DeliveryMessage::Happened(event);
            let _ = self.world.registry.tell(record.id, message);
            return;
        }
        drop(state);
        let left = limit.saturating_sub(held);
        let id = record.delivery.id.as_ref().map_or("none", |id| id.as_str());
        let text = format!(
            "consumer {} partition {}: delivery {} (message id {:?}, {}) has been held for {} s; in {} s the broker closes its channel",
            consumer.name,
            record.partition.id,
            record.id,
            crate::delivery::cut(id, 100),
            record.settlement().as_str(),
            held.as_secs(),
            left.as_secs()
        );
        self.world.observe(|observer| observer.notice(&text));
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
            self.watch_hold(&record);
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

impl Actor for DeliveriesActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        ctx.run_interval(TICK, |this, _| this.tick());
        // Deaths that nobody heard while this actor was being restarted, and those it had heard:
        // their releases were due in its own timers.
        for record in self.world.registry.all() {
            let state = record.state.borrow();
            match &state.addr {
                Some(addr) if addr.connected() => {}
                Some(_) => ctx.notify(DeliveryDied {
                    delivery: record.id,
                    incarnation: state.incarnation,
                    panicked: true,
                }),
                None => {
                    drop(state);
                    self.release_later(&record, ctx);
                }
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
            self.revive(&record, DeliveryMessage::Happened(Event::GiveBack));
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
    let record = world.registry.get(delivery);
    if let Some(record) = &record {
        // Written down before it is said: the actor may be dying, and its mailbox with it.
        note_word(record, &message);
        note_sent(world, record, &message);
        let state = record.state.borrow();
        if let Some(addr) = &state.addr {
            addr.do_send(message);
            return;
        }
    }
    late_word(world, delivery, record, &message);
}

/// Numbers a settlement that may have been sent: here they come in the order sent.
fn note_sent(world: &World, record: &DeliveryRecord, message: &DeliveryMessage) {
    let DeliveryMessage::Settled { result, .. } = message else {
        return;
    };
    match result {
        SettleResult::Done(Receipt::Sent) | SettleResult::Failed(SettleFailure::Unknown) => {
            let generation = record.state.borrow().generation;
            let number = record.partition.count_sent(world, generation);
            record.state.borrow_mut().number = number;
        }
        SettleResult::Done(Receipt::Confirmed)
        | SettleResult::NotSent(_)
        | SettleResult::Failed(_) => {}
    }
}

/// Writes a handler's word down.
fn note_word(record: &DeliveryRecord, message: &DeliveryMessage) {
    let mut state = record.state.borrow_mut();
    match message {
        DeliveryMessage::Returned(HandlerOutcome::Completed { result }) => {
            state.handler = HandlerPart::Completed;
            if state.result.is_none() {
                state.result.clone_from(result);
            }
        }
        DeliveryMessage::Returned(_) | DeliveryMessage::Panicked(_) | DeliveryMessage::Gone => {
            state.handler = HandlerPart::Ended;
        }
        _ => {}
    }
}

/// A word came that no actor hears: the delivery's died, or the delivery has ended and its handler
/// is an overrun. Finished work is remembered, and deliveries of the same id that waited for the
/// thread's end may go on.
fn late_word(
    world: &World,
    delivery: DeliveryId,
    unheard: Option<Rc<DeliveryRecord>>,
    message: &DeliveryMessage,
) {
    let event = match message {
        DeliveryMessage::Returned(HandlerOutcome::Completed { .. }) => {
            Event::HandlerReturned(Outcome::Completed)
        }
        DeliveryMessage::Returned(_) => Event::HandlerReturned(Outcome::Failed),
        DeliveryMessage::Panicked(_) | DeliveryMessage::Gone => Event::HandlerGone,
        _ => return,
    };
    if let Some(record) = unheard {
        remember_completed(world, &record);
        return;
    }
    let Some(record) = world.registry.stop_lingering(delivery) else {
        return;
    };
    note_word(&record, message);
    apply_late(world, &record, event);
    let state = record.settlement();
    // The machine that started this handler died with its actor; the one here knows of no handler.
    let outlived_its_actor = record.state.borrow().incarnation > 1;
    let given_back = matches!(
        state,
        State::Settled {
            disposition: Disposition::Release
        } | State::Lost { .. }
    );
    if outlived_its_actor && given_back {
        remember_completed(world, &record);
    }
    let followers = std::mem::take(&mut record.state.borrow_mut().followers);
    for delivery in followers {
        readmit(world, delivery, None);
    }
}

/// Applies what is heard of a delivery after its end: all it can still do is remember (S7).
fn apply_late(world: &World, record: &DeliveryRecord, event: Event) {
    let mut effects = Vec::new();
    let applied = record.state.borrow_mut().machine.apply(event, &mut effects);
    for effect in effects {
        if let (Ok(()), Effect::Remember { decision, sent }) = (&applied, effect) {
            remember(world, record, decision, sent);
        }
    }
}

/// A publish was confirmed after its delivery had ended: it is not forgotten (S13).
pub(crate) fn late_publish(world: &World, record: &DeliveryRecord) {
    apply_late(world, record, Event::PublishConfirmed);
}

/// Remembers work that was completed and that no machine has heard of.
fn remember_completed(world: &World, record: &DeliveryRecord) {
    let decision = {
        let state = record.state.borrow();
        if state.handler != HandlerPart::Completed {
            return;
        }
        crate::settlement::decide(Outcome::Completed, state.machine.rules())
    };
    remember(world, record, decision, false);
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
        let message = DeliveryMessage::Happened(event);
        if world.registry.tell(record.id, message).is_some() {
            // Its actor died, and it waits to be released: now.
            let delivery = record.id;
            world.deliveries.do_send(ReleaseDue { delivery });
        }
    }
}

/// Tells whether a delivery still has work to do that a drain waits for.
pub(crate) fn is_straggler(record: &DeliveryRecord) -> bool {
    !matches!(
        record.settlement(),
        State::Received | State::Settling { .. }
    )
}
