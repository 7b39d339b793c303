//! The delivery actor: owns the settlement of one delivery.
//!
//! - **Parent**: [`DeliveriesActor`](crate::deliveries::DeliveriesActor), which never restarts it.
//! - **Owns**: nothing that would be lost with it. State, decision and settler stand in the
//!   record; the record stands in the registry, which also keeps the actor's address alive.
//! - **In**: [`DeliveryMessage`] from limiter, handlers, settler, publisher, timers, coordinator.
//! - **Out**: a handler to start, a settlement, a publish, a word to its consumer.
//! - **Ends** when its settlement is terminal; if it ends otherwise its link says so.
//!
//! A message becomes a core event, the machine answers with effects, the effects are performed
//! here. Nothing is decided here.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use actix::{Actor, ActorContext, Addr, Context, Handler, Message};
use tokio::time::Instant;

use crate::consumer::ConsumerMessage;
use crate::deliveries::DeliveryDied;
use crate::ledger::Remembered;
use crate::limiter::CancelAsk;
use crate::model::{
    Delivery, DeliveryId, Disposition, Outcome, Outgoing, Publication, RejectReason,
};
use crate::ports::{
    DeliveryContext, DeliveryEnded, HandlerOutcome, PublishError, RunControl, SettleReply,
    SettleResult,
};
use crate::publisher::PublishRequest;
use crate::settlement::{
    Decision, Effect, Event, Final, PublishFailure, SETTLE_TRIES_MAX, SettleFailure, State, Timer,
};
use crate::world::World;

use super::completions::{answered_at_once, as_settle_sink};
use super::executor::Start;
use super::messages::{DeliveryMessage, TimerKind};
use super::outgoing::{self, Known, cut};
use super::record::{Adoption, DeliveryRecord, DeliveryState, HandlerPart};

/// How long an aborted async handler may take until its future is known to be dropped. It takes
/// microseconds unless the handler blocks its thread; past this it counts as an overrun.
const ASYNC_ABORT_CONFIRM: Duration = Duration::from_millis(250);

/// What a graceful handler gets on top of its own grace, to end what it killed.
const GRACE_MARGIN: Duration = Duration::from_millis(500);

/// How long publishing may go on once the drain is forced.
const PUBLISH_GIVE_UP_FORCED: Duration = Duration::from_secs(1);

/// The longest error text that is kept.
const ERROR_BYTES_MAX: usize = 8 * 1024;

impl Message for DeliveryMessage {
    type Result = ();
}

/// The actor of one delivery.
pub(crate) struct DeliveryActor {
    world: Rc<World>,
    record: Rc<DeliveryRecord>,
    link: DeathLink,
    /// The answer of a settler that answered at once, until the effects are performed.
    answered: Option<(u32, SettleResult)>,
}

/// Passes a fail point, in tests that kill the process there.
#[inline]
fn pass(place: &str) {
    #[cfg(any(test, feature = "fail-points"))]
    crate::testing::fail_point::pass(place);
    #[cfg(not(any(test, feature = "fail-points")))]
    let _ = place;
}

/// Starts the actor for a record and keeps its address in the record.
pub(crate) fn start_delivery(
    world: &Rc<World>,
    record: &Rc<DeliveryRecord>,
) -> Addr<DeliveryActor> {
    let incarnation = {
        let mut state = record.state.borrow_mut();
        state.incarnation += 1;
        state.incarnation
    };
    let link = DeathLink {
        world: Rc::clone(world),
        record: Rc::clone(record),
        incarnation,
        ended: false,
    };
    let actor = DeliveryActor {
        world: Rc::clone(world),
        record: Rc::clone(record),
        link,
        answered: None,
    };
    let context = Context::<DeliveryActor>::new();
    let addr = context.run(actor);
    record.state.borrow_mut().addr = Some(addr.clone());
    pass("received");
    addr
}

impl Actor for DeliveryActor {
    type Context = Context<Self>;
}

/// Reports the actor's end when it is dropped with its delivery unfinished: also on panic, and
/// also while the panic unwinds.
struct DeathLink {
    world: Rc<World>,
    record: Rc<DeliveryRecord>,
    incarnation: u32,
    ended: bool,
}

impl Drop for DeathLink {
    fn drop(&mut self) {
        if !self.ended {
            let panicked = std::thread::panicking();
            let died = DeliveryDied {
                delivery: self.record.id,
                incarnation: self.incarnation,
                panicked,
            };
            self.world.deliveries.do_send(died);
        }
    }
}

impl Handler<DeliveryMessage> for DeliveryActor {
    type Result = ();

    fn handle(&mut self, message: DeliveryMessage, ctx: &mut Context<Self>) {
        match message {
            DeliveryMessage::Happened(event) => self.happened(event, ctx),
            DeliveryMessage::Judged { outcome, error } => {
                self.note_outcome(outcome, error);
                self.step(Event::Judged(outcome), ctx);
            }
            DeliveryMessage::Granted(permit) => {
                {
                    let mut state = self.record.state.borrow_mut();
                    if state.machine.state() != State::Received {
                        return; // a late permit drops
                    }
                    state.permit = Some(permit);
                }
                self.step(Event::Admitted, ctx);
            }
            DeliveryMessage::Returned(outcome) => self.returned(outcome, ctx),
            DeliveryMessage::Panicked(text) => {
                let error = format!("the handler panicked: {text}");
                self.word(Outcome::Panicked, Some(error), None, ctx);
            }
            DeliveryMessage::Gone => {
                let state = self.record.settlement();
                if matches!(state, State::Running | State::Orphaned) {
                    let error = "the handler ended without a word".to_owned();
                    self.note_outcome(Outcome::Gone, Some(error));
                }
                self.step(Event::HandlerGone, ctx);
            }
            DeliveryMessage::Settled { frame, result } => self.settled(frame, result, ctx),
            DeliveryMessage::Published { token, result } => self.published(token, result, ctx),
            DeliveryMessage::TimerFired(kind) => self.timer_fired(kind, ctx),
            DeliveryMessage::Adopt => self.adopt(ctx),
            DeliveryMessage::SettleDeferred => {
                let deferred = self.record.state.borrow_mut().deferred.take();
                if let Some(disposition) = deferred {
                    self.settle(disposition);
                    self.take_answer(ctx);
                }
            }
            #[cfg(any(test, feature = "fail-points"))]
            DeliveryMessage::Panic => panic!("injected into a delivery actor"),
        }
    }
}

impl DeliveryActor {
    /// Feeds the machine and performs what it asks for.
    fn step(&mut self, event: Event, ctx: &mut Context<Self>) {
        let mut effects = self.world.effects.take();
        let applied = self
            .record
            .state
            .borrow_mut()
            .machine
            .apply(event, &mut effects);
        match applied {
            Ok(()) => {
                pass(self.record.settlement().as_str());
                for effect in effects.drain(..) {
                    self.perform(effect, ctx);
                }
            }
            Err(refused) => {
                self.world.refused.set(self.world.refused.get() + 1);
                tracing::debug!(delivery = %self.record.id, %refused, "an event was refused");
            }
        }
        effects.clear();
        self.world.effects.replace(effects);
        self.take_answer(ctx);
    }

    /// Takes the answer of a settler that answered at once.
    fn take_answer(&mut self, ctx: &mut Context<Self>) {
        if let Some((frame, result)) = self.answered.take() {
            self.settled(frame, result, ctx);
        }
    }

    fn happened(&mut self, event: Event, ctx: &mut Context<Self>) {
        if let Event::CancelAsked(_) = event {
            let mut state = self.record.state.borrow_mut();
            if state.error.is_none() {
                state.error = Some("cancelled by an operator".into());
            }
        }
        self.step(event, ctx);
    }

    fn perform(&mut self, effect: Effect, ctx: &mut Context<Self>) {
        match effect {
            Effect::StartHandler => self.start_handler(),
            Effect::AbortHandler => self.abort_handler(),
            Effect::Arm(timer) => self.arm_for(timer),
            Effect::Publish(what) => self.publish(what, ctx),
            Effect::PauseIntake => self.tell_consumer(ConsumerMessage::IntakeTrouble {
                reason: self.trouble_text(),
            }),
            Effect::Settle(disposition) => self.settle(disposition),
            Effect::Remember { decision, sent } => {
                remember(&self.world, &self.record, decision, sent);
            }
            Effect::ExtendLease => self.extend_lease(ctx),
            Effect::ReopenSource => {
                let generation = self.record.state.borrow().generation;
                self.tell_consumer(ConsumerMessage::Reopen { generation });
            }
            Effect::TakeSettler => {} // taken before the event was fed, see `adopt`
            Effect::Park => self.park(),
            Effect::ReturnPermit => {
                self.record.state.borrow_mut().permit = None;
            }
            Effect::Finish(end) => self.finish(end, ctx),
        }
    }

    fn start_handler(&mut self) {
        let spec = &self.record.partition.consumer.spec;
        let control = Arc::new(RunControl::default());
        let started = Instant::now();
        let deadline = started + spec.handler_timeout;
        let delivery = Arc::clone(&self.record.delivery);
        let context = DeliveryContext::new(delivery, Arc::clone(&control), Some(deadline));
        let permit = {
            let mut state = self.record.state.borrow_mut();
            state.started = Some(started);
            state.control = Some(Arc::clone(&control));
            state.handler = HandlerPart::AtWork;
            state.permit.clone()
        };
        let handler = spec.handler.clone();
        self.world.executor.start(Start {
            delivery: self.record.id,
            handler,
            context,
            control,
            permit,
        });
    }

    fn abort_handler(&mut self) {
        let state = self.record.state.borrow();
        let Some(control) = &state.control else {
            return;
        };
        if self
            .record
            .partition
            .consumer
            .spec
            .handler
            .abort_grace()
            .is_zero()
        {
            control.abort();
        } else {
            control.cancel();
        }
    }

    fn arm_for(&mut self, timer: Timer) {
        let spec = &self.record.partition.consumer.spec;
        let (kind, after) = match timer {
            Timer::Deadline => (TimerKind::Deadline, spec.handler_timeout),
            Timer::AbortGrace => (TimerKind::AbortGrace, abort_grace(&spec.handler)),
            Timer::Republish => {
                let tries = self.record.state.borrow().publish_tries;
                let jitter = rand::random();
                (
                    TimerKind::Republish,
                    spec.retry.backoff.delay(tries.max(1), jitter),
                )
            }
            Timer::RepublishParked => (TimerKind::Republish, spec.retry.backoff.max),
            Timer::PublishGiveUp => (TimerKind::PublishGiveUp, self.publish_give_up()),
            Timer::PublishGiveUpForced => (TimerKind::PublishGiveUp, PUBLISH_GIVE_UP_FORCED),
            Timer::Hold => {
                let backoff = self.record.state.borrow().machine.rules().backoff;
                (TimerKind::Hold, backoff)
            }
        };
        self.arm(kind, after);
    }

    /// The shorter of the configured time and 80 % of the lease, but at least one publish timeout.
    fn publish_give_up(&self) -> Duration {
        let spec = &self.record.partition.consumer.spec;
        let state = self.record.state.borrow();
        let by_lease = state.lease.map(|lease| {
            lease
                .saturating_sub(state.lease_from.elapsed())
                .mul_f64(0.8)
        });
        by_lease
            .map_or(spec.publish_give_up, |lease| {
                lease.min(spec.publish_give_up)
            })
            .max(spec.publish_timeout)
    }

    fn arm(&self, kind: TimerKind, after: Duration) {
        let mut state = self.record.state.borrow_mut();
        let place = state.timers.place(kind);
        if let Some((_, key)) = place.take() {
            self.world.timers.disarm(key);
        }
        *place = Some((kind, self.world.timers.arm(after, (self.record.id, kind))));
    }

    fn disarm(&self, kind: TimerKind) {
        let mut state = self.record.state.borrow_mut();
        if let Some((_, key)) = state.timers.place(kind).take() {
            self.world.timers.disarm(key);
        }
    }

    // The handler's word.

    fn returned(&mut self, outcome: HandlerOutcome, ctx: &mut Context<Self>) {
        match outcome {
            HandlerOutcome::Completed { result } => {
                self.word(Outcome::Completed, None, result, ctx);
            }
            HandlerOutcome::Failed { error } => self.word(Outcome::Failed, Some(error), None, ctx),
            HandlerOutcome::Rejected { error } => {
                let outcome = Outcome::Rejected(RejectReason::Handler);
                self.word(outcome, Some(error), None, ctx);
            }
            HandlerOutcome::Gone { error } => self.word(Outcome::Gone, Some(error), None, ctx),
            HandlerOutcome::Unavailable { error } => {
                self.word(Outcome::Unavailable, Some(error), None, ctx);
            }
            HandlerOutcome::Discarded => self.word(Outcome::Discarded, None, None, ctx),
        }
    }

    fn word(
        &mut self,
        outcome: Outcome,
        error: Option<String>,
        result: Option<bytes::Bytes>,
        ctx: &mut Context<Self>,
    ) {
        let counts = match self.record.settlement() {
            State::Running | State::Orphaned => true,
            // A late word: only finished work still matters.
            State::Aborting { .. } | State::Holding { .. } => outcome == Outcome::Completed,
            _ => false,
        };
        if counts {
            self.note_outcome(outcome, error);
            self.disarm(TimerKind::Deadline);
            let mut state = self.record.state.borrow_mut();
            state.ran = state.started.map(|started| started.elapsed());
        }
        if result.is_some() {
            let mut state = self.record.state.borrow_mut();
            if state.result.is_none() {
                state.result = result;
            }
        }
        if outcome == Outcome::Completed && counts {
            self.record.partition.good_word();
        }
        self.step(Event::HandlerReturned(outcome), ctx);
    }

    fn note_outcome(&self, outcome: Outcome, error: Option<String>) {
        let mut state = self.record.state.borrow_mut();
        state.outcome = Some(outcome);
        state.error = error.map(|text| cut(&text, ERROR_BYTES_MAX).into());
    }

    // Publishing.

    fn publish(&mut self, what: Publication, ctx: &mut Context<Self>) {
        let message = {
            let mut state = self.record.state.borrow_mut();
            let state = &mut *state;
            let fresh = state.publishing != Some(what);
            if fresh {
                state.publishing = Some(what);
                state.publish_tries = 0;
                let reason = match state.machine.state() {
                    State::Publishing {
                        then: Disposition::Reject { reason },
                        ..
                    } => Some(reason),
                    _ => None,
                };
                let owed = state.owed.take();
                state.outgoing = owed.or_else(|| {
                    build_outgoing(&self.world, &self.record, what, reason, state).map(Box::new)
                });
            }
            state.publish_tries += 1;
            state.publish_token = self.world.next_token();
            state
                .outgoing
                .as_deref()
                .cloned()
                .map(|message| (state.publish_token, message))
        };
        let Some((token, message)) = message else {
            self.step(Event::PublishFailed(PublishFailure::Refused), ctx);
            return;
        };
        self.arm(
            TimerKind::PublishTimeout,
            self.record.partition.consumer.spec.publish_timeout,
        );
        self.world.publisher.do_send(PublishRequest {
            delivery: self.record.id,
            token,
            message,
        });
        pass("publish-sent");
    }

    fn published(&mut self, token: u64, result: Result<(), PublishError>, ctx: &mut Context<Self>) {
        if self.record.state.borrow().publish_token != token {
            return; // an answer to an earlier try
        }
        self.disarm(TimerKind::PublishTimeout);
        match result {
            Ok(()) => {
                self.record.partition.good_word();
                self.disarm(TimerKind::PublishGiveUp);
                self.step(Event::PublishConfirmed, ctx);
            }
            Err(error) => {
                let failure = if error.is_transient() {
                    PublishFailure::Outage
                } else {
                    PublishFailure::Refused
                };
                self.note_trouble(&error.to_string());
                self.step(Event::PublishFailed(failure), ctx);
            }
        }
    }

    /// Says once, loudly, that a publish is refused for good and nothing else may take the work.
    /// It is not given up: it waits for an operator, or for the end of a drain.
    fn park(&self) {
        self.disarm(TimerKind::PublishGiveUp);
        let text = format!(
            "consumer {} delivery {}: its publish is refused for good and there is no dead-letter-queue; it is kept and tried again until somebody acts: {}",
            self.record.partition.consumer.spec.name,
            self.record.id,
            self.trouble_text()
        );
        self.world.observe(|observer| observer.notice(&text));
    }

    fn note_trouble(&self, text: &str) {
        let mut trouble = self.record.partition.trouble.borrow_mut();
        *trouble = Some(cut(text, 512).to_owned());
    }

    fn trouble_text(&self) -> String {
        if let Some(trouble) = self.record.partition.trouble.borrow().clone() {
            return trouble;
        }
        let state = self.record.state.borrow();
        state
            .error
            .as_deref()
            .map_or_else(|| "unavailable".to_owned(), |e| cut(e, 512).to_owned())
    }

    // Settling.

    fn settle(&mut self, disposition: Disposition) {
        // In job mode the broker must not answer the last settlement with one more delivery.
        if self.world.quota.get() == Some(0) && !self.record.partition.quiet.get() {
            let mut state = self.record.state.borrow_mut();
            state.deferred = Some(disposition);
            state.settling_since = Some(Instant::now());
            return;
        }
        let covered = self.record.state.borrow().machine.is_covered();
        let (settler, frame) = {
            let mut state = self.record.state.borrow_mut();
            state.frame += 1;
            state.settler_taken = true;
            if let Some((_, key)) = state.timers.place(TimerKind::Deadline).take() {
                self.world.timers.disarm(key);
            }
            (state.settler.take(), state.frame)
        };
        let id = self.record.id;
        let reply = SettleReply::new(as_settle_sink(&self.world.completions), id, frame);
        let answer = answered_at_once(id, frame, || match settler {
            Some(settler) if covered => settler.settle_covered(disposition, reply),
            Some(settler) => settler.settle(disposition, reply),
            None => reply.unknown(),
        });
        pass("settle-sent");
        match answer {
            Some(result) => self.answered = Some((frame, result)),
            None => self.record.state.borrow_mut().settling_since = Some(Instant::now()),
        }
    }

    fn settled(&mut self, frame: u32, result: SettleResult, ctx: &mut Context<Self>) {
        if self.record.state.borrow().frame != frame {
            return; // an answer to an earlier frame
        }
        self.record.state.borrow_mut().settling_since = None;
        match result {
            SettleResult::Done(receipt) => {
                self.record.state.borrow_mut().receipt = Some(receipt);
                self.step(Event::SettleDone(receipt), ctx);
            }
            SettleResult::NotSent(settler) => {
                {
                    let mut state = self.record.state.borrow_mut();
                    state.settler = Some(settler);
                    state.settler_taken = false;
                }
                self.step(Event::SettleFailed(SettleFailure::NotSent), ctx);
            }
            SettleResult::Failed(failure) => self.step(Event::SettleFailed(failure), ctx),
        }
    }

    fn extend_lease(&mut self, ctx: &mut Context<Self>) {
        let answer = {
            let mut state = self.record.state.borrow_mut();
            let answer = match &mut state.settler {
                Some(settler) => settler.extend(),
                None => Ok(()),
            };
            if answer.is_ok() {
                state.lease_from = Instant::now();
            }
            answer
        };
        if answer.is_err() {
            self.step(Event::LeaseLost, ctx);
        }
    }

    fn adopt(&mut self, ctx: &mut Context<Self>) {
        let Some(adoption) = self.record.state.borrow_mut().adoption.take() else {
            return;
        };
        let can = matches!(
            self.record.settlement(),
            State::Orphaned | State::Publishing { losing: true, .. }
        );
        if !can {
            hand_back(&self.world, &self.record, adoption);
            return;
        }
        self.record.take_over(adoption);
        crate::consumer::bump(&self.record.partition.counters.adopted);
        self.step(Event::Adopted, ctx);
    }

    // Timers.

    fn timer_fired(&mut self, kind: TimerKind, ctx: &mut Context<Self>) {
        match kind {
            TimerKind::Deadline => {
                if matches!(self.record.settlement(), State::Running | State::Orphaned) {
                    let timeout = self.record.partition.consumer.spec.handler_timeout;
                    let text = format!("the handler was still at work after {timeout:?}");
                    self.note_outcome(Outcome::TimedOut, Some(text));
                    let mut state = self.record.state.borrow_mut();
                    state.ran = state.started.map(|started| started.elapsed());
                }
                self.step(Event::HandlerOverdue, ctx);
            }
            TimerKind::AbortGrace => {
                if let Some(control) = &self.record.state.borrow().control {
                    control.abort();
                }
                self.step(Event::AbortOverdue, ctx);
            }
            TimerKind::PublishTimeout => {
                let token = self.record.state.borrow().publish_token;
                self.published(token, Err(PublishError::Unknown), ctx);
            }
            TimerKind::Republish => {
                if let State::Publishing { what, .. } = self.record.settlement() {
                    self.publish(what, ctx);
                }
            }
            TimerKind::PublishGiveUp => {
                self.disarm(TimerKind::PublishTimeout);
                self.step(Event::PublishGivenUp, ctx);
            }
            TimerKind::Hold => self.step(Event::HoldDue, ctx),
            TimerKind::Wait => self.step(Event::GiveBack, ctx),
            TimerKind::SettleTimeout => {
                let frame = self.record.state.borrow().frame;
                self.settled(frame, SettleResult::Failed(SettleFailure::Unknown), ctx);
            }
        }
    }

    // The end.

    fn finish(&mut self, end: Final, ctx: &mut Context<Self>) {
        self.link.ended = true;
        let now = Instant::now();
        let adoption;
        let (ended, waits_for_permit, lingers) = {
            let mut state = self.record.state.borrow_mut();
            for key in state.timers.take_all() {
                self.world.timers.disarm(key);
            }
            state.permit = None;
            state.settler = None;
            state.addr = None;
            adoption = state.adoption.take();
            (
                self.ended(&state, end, now),
                state.asked && state.started.is_none(),
                state.handler == HandlerPart::AtWork,
            )
        };
        // It came too late: nobody will read what stands behind this end in the mailbox.
        if let Some(adoption) = adoption {
            hand_back(&self.world, &self.record, adoption);
        }
        if waits_for_permit {
            self.world.limiter.do_send(CancelAsk {
                ticket: self.record.id,
            });
        }
        // An overrun, or the handler of an actor that died: either way its word is still to come.
        if lingers {
            self.world.registry.linger(Rc::clone(&self.record));
        }
        self.record.partition.counters.ended(&end);
        if let Final::Settled { disposition, .. } = end {
            let (delivery, now) = (&self.record.delivery, now - self.world.started);
            let error = ended.error.as_deref();
            self.world
                .ledger
                .borrow_mut()
                .ended(delivery, disposition, error, now);
        }
        self.record.partition.counters.outcome(ended.outcome);
        self.world.registry.remove(&self.record);
        if self.link.incarnation == 1 || is_concluded(&end) {
            self.world.registry.forget_deaths(&self.record);
        }
        self.world
            .observe(|observer| observer.delivery_ended(&ended));
        if !lingers {
            self.readmit_followers(end);
        }
        ctx.stop();
    }

    /// Deliveries of the same id that waited for this one's end may be looked at again.
    fn readmit_followers(&self, end: Final) {
        let followers = std::mem::take(&mut self.record.state.borrow_mut().followers);
        for delivery in followers {
            let predecessor = Some((Arc::clone(&self.record.delivery), end));
            readmit(&self.world, delivery, predecessor);
        }
    }

    fn ended(&self, state: &DeliveryState, end: Final, now: Instant) -> DeliveryEnded {
        DeliveryEnded {
            number: self.record.id,
            consumer: self.record.partition.consumer.spec.name.clone(),
            delivery: Arc::clone(&self.record.delivery),
            outcome: state.outcome,
            error: state.error.as_deref().map(str::to_owned),
            end,
            receipt: state.receipt,
            waited: state.started.map(|started| started - self.record.arrived),
            ran: state.ran,
            lived: now - self.record.arrived,
        }
    }

    fn tell_consumer(&self, message: ConsumerMessage) {
        self.record.partition.slot.do_send(message);
    }
}

/// Tells whether the broker will not hand this work out again as it was.
fn is_concluded(end: &Final) -> bool {
    match end {
        Final::Settled { disposition, .. } => !matches!(disposition, Disposition::Release),
        Final::Lost { .. } => false,
    }
}

/// Lets a delivery that waited for another one be looked at again, by its own consumer.
pub(crate) fn readmit(
    world: &World,
    delivery: DeliveryId,
    predecessor: Option<(Arc<Delivery>, Final)>,
) {
    if let Some(record) = world.registry.get(delivery) {
        record.partition.slot.do_send(ConsumerMessage::Readmit {
            delivery,
            predecessor,
        });
    }
}

/// Gives a redelivery back that cannot be adopted any more: dropped unsettled it stays leased for
/// as long as its channel lives. What cannot be given back costs the channel.
fn hand_back(world: &Rc<World>, record: &Rc<DeliveryRecord>, adoption: Adoption) {
    let (world, partition) = (Rc::clone(world), Rc::clone(&record.partition));
    let deadline = partition.consumer.spec.settle_timeout;
    actix::spawn(async move {
        let generation = adoption.generation;
        let mut settler = adoption.settler;
        for _ in 0..SETTLE_TRIES_MAX {
            let (reply, answer) = SettleReply::channel();
            settler.settle(Disposition::Release, reply);
            match tokio::time::timeout(deadline, answer).await {
                Ok(Ok(SettleResult::NotSent(back))) => settler = back,
                Ok(Ok(SettleResult::Done(_))) => {
                    let _ = partition.count_sent(&world, generation);
                    return;
                }
                _ => break,
            }
        }
        let slot = &partition.slot;
        slot.do_send(ConsumerMessage::Reopen { generation });
    });
}

fn abort_grace(handler: &crate::ports::Handler) -> Duration {
    match handler {
        crate::ports::Handler::Blocking(_) => Duration::ZERO,
        crate::ports::Handler::Async(_) => match handler.abort_grace() {
            Duration::ZERO => ASYNC_ABORT_CONFIRM,
            grace => grace + GRACE_MARGIN,
        },
    }
}

fn build_outgoing(
    world: &World,
    record: &DeliveryRecord,
    what: Publication,
    reason: Option<RejectReason>,
    state: &DeliveryState,
) -> Option<Outgoing> {
    let ledger = world.ledger.borrow();
    let known = Known {
        first_error: ledger.first_error(&record.delivery),
        delivery: &record.delivery,
        spec: &record.partition.consumer.spec,
        result: state.result.as_ref(),
        error: state.error.as_deref(),
        reason,
        backoff: state.machine.rules().backoff,
        now: SystemTime::now(),
    };
    outgoing::build(what, &known)
}

/// Writes a decision to the outcome ledger, with the bytes it still owes.
pub(crate) fn remember(world: &World, record: &DeliveryRecord, decision: Decision, sent: bool) {
    let state = record.state.borrow();
    let owed = decision.publish.and_then(|what| {
        if state.publishing == Some(what) && state.outgoing.is_some() {
            return state.outgoing.as_deref().cloned();
        }
        let reason = match decision.disposition {
            Disposition::Reject { reason } => Some(reason),
            _ => None,
        };
        build_outgoing(world, record, what, reason, &state)
    });
    world.ledger.borrow_mut().remember(Remembered {
        number: record.id,
        delivery: &record.delivery,
        generation: state.generation,
        decision,
        sent,
        settlement: state.number,
        owed,
        now: world.now(),
    });
}
