//! The consumer actor: one partition's subscription, and the gate that its arrivals pass.
//!
//! - **Parent**: the consumers' supervisor; permanent. A restart opens a new generation, and the
//!   deliveries of the old one are told that their channel is lost.
//! - **Owns**: the pump with the source, the gate. Counters, desired state and generation stand in
//!   [`PartitionShared`] and survive it.
//! - **In**: [`ConsumerMessage`] from the pump, its deliveries, the coordinator and the handle.
//! - **Out**: a delivery actor for each arrival, asks to the limiter.
//! - **Ends** when the coordinator closes it, or fails when the broker refuses the subscription.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, ActorContext, AsyncContext, Context, Handler, Message};

use tokio::time::Instant;

use crate::delivery::{Adoption, DeliveryMessage, DeliveryRecord, TimerKind, start_delivery};
use crate::limiter::{Ask, AskMany, CancelAsk, PermitKey};
use crate::model::{
    Backoff, Delivery, DeliveryId, Disposition, Generation, Outcome, Phase, RejectReason, RetryWay,
};
use crate::ports::{Arrival, SourceSpec};
use crate::settlement::{CrashVerdict, Event, Final, Rules, State};
use crate::shutdown::QuotaReached;
use crate::supervision::{ExitReason, Link, StopActor};
use crate::world::World;

use super::core::{Subscription, SubscriptionAction, SubscriptionEvent, SubscriptionState};
use super::pump::{Pump, PumpOrder, PumpReport};
use super::shared::{PartitionShared, bump};

/// The delays of intake after trouble that is not the messages' fault, and between openings.
const INTAKE_BACKOFF: Backoff = Backoff {
    base: Duration::from_secs(1),
    max: Duration::from_secs(30),
};

/// What a consumer actor is told.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) enum ConsumerMessage {
    /// The pump of a generation reports.
    Pumped {
        generation: Generation,
        report: PumpReport,
    },
    /// A delivery met trouble that is not its fault: intake pauses and backs off.
    IntakeTrouble { reason: String },
    /// The backoff of intake is over.
    IntakeDue,
    /// The backoff of opening is over.
    ReopenDue,
    /// A delivery's settlement cannot be told any more: rebuild the source, if this generation lives.
    Reopen { generation: Generation },
    /// A delivery that waited for another one of its id may be looked at again.
    Readmit {
        delivery: DeliveryId,
        predecessor: Option<(Arc<Delivery>, Final)>,
    },
    /// Stop handing out: the desired state stands in the shared part.
    Paused,
    /// Hand out again, likewise.
    Resumed,
    /// The pause is too long for what waits unstarted.
    PauseOverlong,
    /// The consumer's permits changed.
    Scaled { permits: u32 },
    /// The process drains.
    BeginDrain,
    /// All deliveries ended: close the source.
    Close,
    /// Die, for tests of what happens then.
    #[cfg(any(test, feature = "fail-points"))]
    Panic,
}

/// The actor of one partition.
pub(crate) struct ConsumerActor {
    world: Rc<World>,
    partition: Rc<PartitionShared>,
    link: Link,
    subscription: Subscription,
    pump: Option<Pump>,
    /// Arrivals that wait unstarted because the gate is closed.
    held: Vec<DeliveryId>,
    in_trouble: bool,
    /// The credit that the source was told last.
    credit: u32,
    /// The credits that it was told before its channel was open, added up.
    uncounted: u32,
}

impl ConsumerActor {
    pub(crate) fn new(world: Rc<World>, partition: Rc<PartitionShared>, link: Link) -> Self {
        let paused = partition.paused.borrow().is_some();
        let draining = world.phase.get() >= Phase::Draining || world.quota.get() == Some(0);
        // Its first actions are performed in `started`.
        let (subscription, _) = Subscription::start(true, draining);
        let mut this = Self {
            world,
            partition,
            link,
            subscription,
            pump: None,
            held: Vec::new(),
            in_trouble: false,
            credit: 0,
            uncounted: 0,
        };
        if paused {
            this.subscription.apply(SubscriptionEvent::PauseAsked);
        }
        this
    }

    fn perform(&mut self, actions: Vec<SubscriptionAction>, ctx: &mut Context<Self>) {
        for action in actions {
            match action {
                SubscriptionAction::Open => self.open(ctx),
                SubscriptionAction::ArmReopen { failures } => {
                    let delay = INTAKE_BACKOFF.delay(failures, rand::random());
                    ctx.notify_later(ConsumerMessage::ReopenDue, delay);
                }
                SubscriptionAction::Cancel => self.order(PumpOrder::Cancel),
                SubscriptionAction::Resume => {
                    self.count_subscription();
                    self.order(PumpOrder::Resume);
                }
                SubscriptionAction::CloseSource => self.order(PumpOrder::Close),
                SubscriptionAction::DropSource => self.pump = None,
                SubscriptionAction::LoseDeliveries => self.lose_deliveries(),
            }
        }
        self.partition.state.set(self.subscription.state());
    }

    fn apply(&mut self, event: SubscriptionEvent, ctx: &mut Context<Self>) {
        let actions = self.subscription.apply(event);
        self.perform(actions, ctx);
    }

    fn order(&self, order: PumpOrder) {
        if let Some(pump) = &self.pump {
            // A pump that is gone has reported why.
            let _ = pump.orders.send(order);
        }
    }

    fn credit_for(&self, permits: u32) -> u32 {
        let spec = &self.partition.consumer.spec;
        spec.credit(permits, &self.world.capabilities)
    }

    /// The channel subscribes once more with the credit of now, before anything of it arrives.
    fn count_subscription(&mut self) {
        match self.partition.channel.get() {
            Some(channel) => {
                let mut ledger = self.world.ledger.borrow_mut();
                ledger.subscribed(channel, self.credit);
            }
            None => self.uncounted = self.uncounted.saturating_add(self.credit),
        }
    }

    /// A source is told a new credit, also one that is being opened: it was asked for with the old
    /// one and subscribes with both. Without one, the next is asked for with what is right then.
    fn scaled(&mut self, permits: u32) {
        if self.pump.is_some() {
            self.credit = self.credit_for(permits);
            self.count_subscription();
            self.order(PumpOrder::SetCredit(self.credit));
        }
    }

    fn open(&mut self, ctx: &mut Context<Self>) {
        self.partition.quiet.set(false);
        let generation = self.partition.generation.get().next();
        self.partition.generation.set(generation);
        let permits = self.partition.consumer.permits.get();
        let credit = self.credit_for(permits);
        (self.credit, self.uncounted) = (credit, credit);
        let consumer = &self.partition.consumer;
        let spec = SourceSpec {
            consumer: consumer.spec.name.clone(),
            queue: consumer.spec.queue.clone(),
            partition: self.partition.id,
            partitions: consumer.spec.partitions.get(),
            generation,
            credit,
            permits,
        };
        let addr = ctx.address();
        let report = Rc::new(move |report: PumpReport| {
            addr.do_send(ConsumerMessage::Pumped { generation, report });
        });
        self.pump = Some(Pump::start(&self.world.transport, spec, report));
    }

    fn pumped(&mut self, report: PumpReport, ctx: &mut Context<Self>) {
        match report {
            PumpReport::Arrived(batch) => self.arrived(batch),
            PumpReport::Opened => {
                let credit = std::mem::take(&mut self.uncounted);
                let channel = self.world.ledger.borrow_mut().channel_opened(credit);
                self.partition.channel.set(channel);
                if !self.in_trouble {
                    *self.partition.trouble.borrow_mut() = None;
                }
                self.apply(SubscriptionEvent::Opened, ctx);
            }
            PumpReport::OpenFailed(error) => {
                self.pump = None;
                self.note_lost("failed to open", &error.to_string());
                if error.is_transient() {
                    self.apply(SubscriptionEvent::OpenFailed, ctx);
                } else {
                    self.fail(format!("subscription refused: {error}"), ctx);
                }
            }
            // Resumed meanwhile, it hands out again.
            PumpReport::Cancelled if self.subscription.state() == SubscriptionState::Subscribed => {
            }
            PumpReport::Cancelled => self.release_deferred(),
            // It was to be closed and is gone before it heard of it.
            PumpReport::Lost(_) if self.subscription.state() == SubscriptionState::Closed => {
                self.closed();
            }
            PumpReport::Lost(error) => {
                self.note_lost("lost", &error.to_string());
                if error.is_transient() {
                    self.apply(SubscriptionEvent::SourceLost, ctx);
                } else {
                    self.fail(format!("subscription ended: {error}"), ctx);
                }
            }
            PumpReport::Closed => self.closed(),
            PumpReport::Panicked => self.fail("the source panicked".to_owned(), ctx),
        }
    }

    /// Hears what a source said that has been dropped since: its arrivals are the broker's again
    /// and must not run, but why it was lost is worth knowing.
    fn pumped_late(&self, report: &PumpReport) {
        if let PumpReport::Lost(error) = report {
            self.note_lost("lost", &error.to_string());
        }
    }

    fn closed(&mut self) {
        self.pump = None;
        self.partition.closed.set(true);
        self.partition.closing.notify_waiters();
    }

    fn fail(&mut self, why: String, ctx: &mut Context<Self>) {
        self.link.exit_with(ExitReason::Failed(why));
        ctx.stop();
    }

    fn note_lost(&self, what: &str, error: &str) {
        *self.partition.trouble.borrow_mut() = Some(format!("{what}: {error}"));
        let name = &self.partition.consumer.spec.name;
        let partition = self.partition.id;
        self.world.observe(|observer| {
            observer.notice(&format!(
                "consumer {name} partition {partition}: source {what}: {error}"
            ));
        });
    }

    /// Tells all deliveries of earlier generations that their channel is gone.
    fn lose_deliveries(&mut self) {
        if let Some(channel) = self.partition.channel.take() {
            let now = self.world.now();
            self.world.ledger.borrow_mut().channel_ended(channel, now);
        }
        self.held.clear();
        for record in self.own_deliveries() {
            self.tell(&record, DeliveryMessage::Happened(Event::ChannelLost));
        }
    }

    fn own_deliveries(&self) -> Vec<Rc<DeliveryRecord>> {
        let mut all = self.world.registry.all();
        all.retain(|record| Rc::ptr_eq(&record.partition, &self.partition));
        all
    }

    // Arrivals.

    fn arrived(&mut self, batch: Vec<Arrival>) {
        let mut asks = Vec::with_capacity(batch.len());
        let now = Instant::now();
        for arrival in batch {
            self.take(arrival, now, &mut asks);
        }
        self.ask(asks);
    }

    fn take(&mut self, mut arrival: Arrival, now: Instant, asks: &mut Vec<Ask>) {
        arrival.delivery.attempt = self.world.ledger.borrow().attempt(&arrival.delivery);
        self.partition
            .counters
            .arrived(arrival.delivery.redelivered);
        if let Some(channel) = self.partition.channel.get() {
            self.world.ledger.borrow_mut().delivered(channel);
        }
        let holders = self.world.registry.same_work(&arrival.delivery);
        let Some(arrival) = self.offer_for_adoption(arrival, &holders) else {
            return;
        };
        let rules = self.rules_for(&arrival);
        let id = self.world.registry.next_id();
        let record = DeliveryRecord::new(id, Rc::clone(&self.partition), arrival, rules, now);
        self.world.registry.insert(Rc::clone(&record));
        let _ = start_delivery(&self.world, &record);
        if self.world.phase.get() >= Phase::Draining {
            self.tell(&record, DeliveryMessage::Happened(Event::DrainBegan));
        } else if !self.within_quota() {
            self.tell(&record, DeliveryMessage::Happened(Event::GiveBack));
        } else {
            self.admit(&record, &holders, asks);
        }
    }

    /// Hands the settler to the attempt of the same work that still runs here without one.
    fn offer_for_adoption(
        &self,
        arrival: Arrival,
        holders: &[Rc<DeliveryRecord>],
    ) -> Option<Arrival> {
        let adopter = holders.iter().find(|holder| {
            let waits = matches!(
                holder.settlement(),
                State::Orphaned | State::Publishing { losing: true, .. }
            );
            waits
                && crate::ledger::same_key(&holder.delivery, &arrival.delivery)
                && holder.state.borrow().generation < arrival.delivery.generation
                && holder.state.borrow().adoption.is_none()
                && holder.addr().is_some_and(|addr| addr.connected())
        });
        let Some(adopter) = adopter else {
            return Some(arrival);
        };
        // The earlier hand-over is lost, this one takes its place: the sum stays balanced.
        let counters = &self.partition.counters;
        bump(&counters.lost);
        counters
            .in_hand
            .set(counters.in_hand.get().saturating_sub(1));
        adopter.state.borrow_mut().adoption = Some(Adoption {
            settler: arrival.settler,
            generation: arrival.delivery.generation,
            lease: arrival.lease,
        });
        self.tell(adopter, DeliveryMessage::Adopt);
        None
    }

    fn rules_for(&self, arrival: &Arrival) -> Rules {
        let spec = &self.partition.consumer.spec;
        let attempt = arrival.delivery.attempt;
        Rules {
            attempt,
            max_attempts: spec.retry.max_attempts.get(),
            backoff: spec.retry.backoff.delay(attempt.get(), rand::random()),
            reply: spec.reply_queue.is_some(),
            failure_reply: false,
            dead_letter: spec.dead_letter_queue.is_some(),
            quarantine: false,
            // A retry that the broker holds lets the next one pass: order waits here for it.
            retry_way: if spec.ordered {
                RetryWay::Hold
            } else {
                spec.retry.way
            },
            on_channel_lost: spec.on_channel_lost,
            on_lease_lost: spec.on_lease_lost,
            on_refused: spec.on_refused,
        }
    }

    /// Takes one from the quota of the job, if there is one; the last one begins the drain.
    fn within_quota(&self) -> bool {
        match self.world.quota.get() {
            None => true,
            Some(0) => false,
            Some(left) => {
                self.world.quota.set(Some(left - 1));
                if left == 1 {
                    self.world.coordinator.do_send(QuotaReached);
                }
                true
            }
        }
    }

    /// Judges a delivery, lets it wait, or asks for its permit.
    fn admit(
        &mut self,
        record: &Rc<DeliveryRecord>,
        holders: &[Rc<DeliveryRecord>],
        asks: &mut Vec<Ask>,
    ) {
        // First of all: what is still at work on this message here has a word to say about it.
        let alive = holders.iter().find(|holder| holder.id != record.id);
        if let Some(holder) = alive {
            holder.state.borrow_mut().followers.push(record.id);
            self.arm_wait(record, self.partition.consumer.spec.handler_timeout);
            return;
        }
        if let Some((outcome, error)) = self.judge(record) {
            self.tell(record, DeliveryMessage::Judged { outcome, error });
            return;
        }
        if self.is_gate_open() {
            asks.push(self.ask_for(record));
        } else if self.is_pause_overlong() {
            self.tell(record, DeliveryMessage::Happened(Event::GiveBack));
        } else {
            self.held.push(record.id);
        }
    }

    /// Says whether a delivery is concluded without running.
    fn judge(&self, record: &DeliveryRecord) -> Option<(Outcome, Option<String>)> {
        let spec = &self.partition.consumer.spec;
        let delivery = &record.delivery;
        let bytes = delivery.body.len() as u64;
        if bytes > spec.max_message_bytes {
            let limit = spec.max_message_bytes;
            let text = format!("the body has {bytes} bytes; max-message-bytes is {limit}");
            return Some((Outcome::Rejected(RejectReason::TooLarge), Some(text)));
        }
        let headers = delivery.headers.len();
        if headers > spec.max_headers {
            let limit = spec.max_headers;
            let text = format!("it has {headers} headers; max-headers is {limit}");
            return Some((Outcome::Rejected(RejectReason::TooManyHeaders), Some(text)));
        }
        let answer = self
            .world
            .ledger
            .borrow_mut()
            .answer(delivery, self.world.now());
        if let Some(answer) = answer {
            record.state.borrow_mut().owed = answer.owed.map(Box::new);
            let outcome = Outcome::Known {
                disposition: answer.disposition,
                owes: answer.publication,
            };
            return Some((outcome, None));
        }
        let limit = spec.crash_loop_limit;
        let (loops, verdict) = self.world.ledger.borrow().crash_loop(delivery, limit);
        match verdict {
            CrashVerdict::Run => {}
            CrashVerdict::Conclude => {
                let text = format!(
                    "it was handed out {loops} times without an end; crash-loop-limit is {limit}"
                );
                return Some((Outcome::Rejected(RejectReason::CrashLoop), Some(text)));
            }
            // Returns cannot be told apart from crashes here: an operator must look.
            CrashVerdict::Pause => {
                let reason = format!(
                    "a message was handed out {loops} times without an end that we know of; crash-loop-limit is {limit}"
                );
                self.partition.note_pause(&reason);
                self.partition.slot.do_send(ConsumerMessage::Paused);
                return Some((Outcome::Unavailable, None));
            }
        }
        None
    }

    fn ask_for(&self, record: &DeliveryRecord) -> Ask {
        record.state.borrow_mut().asked = true;
        Ask {
            key: PermitKey::new(self.partition.consumer.index, self.partition.id),
            ticket: record.id,
            bytes: record.delivery.body.len() as u64,
        }
    }

    fn ask(&self, asks: Vec<Ask>) {
        if !asks.is_empty() {
            self.world.limiter.do_send(AskMany(asks));
        }
    }

    fn tell(&self, record: &DeliveryRecord, message: DeliveryMessage) {
        let _ = self.world.registry.tell(record.id, message);
    }

    fn arm_wait(&self, record: &DeliveryRecord, after: Duration) {
        let key = self.world.timers.arm(after, (record.id, TimerKind::Wait));
        *record.state.borrow_mut().timers.place(TimerKind::Wait) = Some((TimerKind::Wait, key));
    }

    fn readmit(&mut self, delivery: DeliveryId, predecessor: Option<(Arc<Delivery>, Final)>) {
        let Some(record) = self.world.registry.get(delivery) else {
            return;
        };
        if record.settlement() != State::Received {
            return;
        }
        if let Some((_, key)) = record
            .state
            .borrow_mut()
            .timers
            .place(TimerKind::Wait)
            .take()
        {
            self.world.timers.disarm(key);
        }
        if let Some((other, Final::Settled { disposition, .. })) = &predecessor {
            let finished = matches!(disposition, Disposition::Ack | Disposition::Reject { .. });
            if finished && crate::ledger::same_key(other, &record.delivery) {
                let outcome = Outcome::Known {
                    disposition: *disposition,
                    owes: None,
                };
                self.tell(
                    &record,
                    DeliveryMessage::Judged {
                        outcome,
                        error: None,
                    },
                );
                return;
            }
        }
        let holders: Vec<_> = self
            .world
            .registry
            .same_work(&record.delivery)
            .into_iter()
            .filter(|holder| holder.id < record.id)
            .collect();
        let mut asks = Vec::new();
        self.admit(&record, &holders, &mut asks);
        self.ask(asks);
    }

    // The gate.

    fn is_gate_open(&self) -> bool {
        !self.in_trouble && self.partition.paused.borrow().is_none()
    }

    /// Takes back what was asked for and not granted; it waits here until the gate opens.
    fn close_gate(&mut self) {
        for record in self.own_deliveries() {
            let asked = record.state.borrow().asked;
            if asked && record.settlement() == State::Received {
                record.state.borrow_mut().asked = false;
                self.world.limiter.do_send(CancelAsk { ticket: record.id });
                self.held.push(record.id);
            }
        }
    }

    fn open_gate(&mut self) {
        if !self.is_gate_open() {
            return;
        }
        let held = std::mem::take(&mut self.held);
        let records = held
            .into_iter()
            .filter_map(|id| self.world.registry.get(id));
        let waiting = records.filter(|record| record.settlement() == State::Received);
        let asks: Vec<Ask> = waiting.map(|record| self.ask_for(&record)).collect();
        self.ask(asks);
    }

    fn trouble(&mut self, reason: String, ctx: &mut Context<Self>) {
        if self.in_trouble {
            return;
        }
        let troubles = self.partition.troubles.get() + 1;
        self.partition.troubles.set(troubles);
        self.in_trouble = true;
        self.close_gate();
        let delay = INTAKE_BACKOFF.delay(troubles, rand::random());
        ctx.notify_later(ConsumerMessage::IntakeDue, delay);
        let name = &self.partition.consumer.spec.name;
        let partition = self.partition.id;
        let text = format!(
            "consumer {name} partition {partition}: intake pauses for {} ms: {reason}",
            delay.as_millis()
        );
        *self.partition.trouble.borrow_mut() = Some(reason);
        self.world.observe(|observer| observer.notice(&text));
    }

    fn paused(&mut self, ctx: &mut Context<Self>) {
        self.close_gate();
        self.apply(SubscriptionEvent::PauseAsked, ctx);
        let after = self.partition.consumer.spec.give_back_after;
        ctx.notify_later(ConsumerMessage::PauseOverlong, after);
    }

    fn resumed(&mut self, ctx: &mut Context<Self>) {
        self.apply(SubscriptionEvent::ResumeAsked, ctx);
        if self.subscription.is_wanted() {
            self.partition.quiet.set(false);
        }
        self.open_gate();
    }

    fn is_pause_overlong(&self) -> bool {
        let after = self.partition.consumer.spec.give_back_after;
        self.partition
            .paused_for()
            .is_some_and(|paused| paused >= after)
    }

    fn pause_overlong(&mut self) {
        if !self.is_pause_overlong() {
            return;
        }
        for id in std::mem::take(&mut self.held) {
            let _ = self
                .world
                .registry
                .tell(id, DeliveryMessage::Happened(Event::GiveBack));
        }
    }

    /// The broker hands out nothing more: what waited for that may be settled.
    fn release_deferred(&self) {
        self.partition.quiet.set(true);
        if self.world.quota.get() == Some(0) {
            for record in self.own_deliveries() {
                self.tell(&record, DeliveryMessage::SettleDeferred);
            }
        }
    }
}

impl Actor for ConsumerActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        // After a restart: the old source is gone, its deliveries with it.
        self.lose_deliveries();
        // Without a source nothing is handed out.
        self.partition.quiet.set(true);
        self.partition.state.set(self.subscription.state());
        if self.partition.paused.borrow().is_none() {
            self.apply(SubscriptionEvent::ResumeAsked, ctx);
        }
    }
}

impl Handler<ConsumerMessage> for ConsumerActor {
    type Result = ();

    fn handle(&mut self, message: ConsumerMessage, ctx: &mut Context<Self>) {
        match message {
            ConsumerMessage::Pumped { generation, report } => {
                if generation == self.partition.generation.get() {
                    match self.pump {
                        Some(_) => self.pumped(report, ctx),
                        None => self.pumped_late(&report),
                    }
                }
            }
            ConsumerMessage::IntakeTrouble { reason } => self.trouble(reason, ctx),
            ConsumerMessage::IntakeDue => {
                self.in_trouble = false;
                self.open_gate();
            }
            ConsumerMessage::ReopenDue => self.apply(SubscriptionEvent::ReopenDue, ctx),
            ConsumerMessage::Reopen { generation } => {
                if generation == self.partition.generation.get() {
                    self.apply(SubscriptionEvent::ReopenAsked, ctx);
                }
            }
            ConsumerMessage::Readmit {
                delivery,
                predecessor,
            } => {
                self.readmit(delivery, predecessor);
            }
            // What was ordered since may have been taken back: the shared part has the last word.
            ConsumerMessage::Paused if self.partition.paused.borrow().is_some() => self.paused(ctx),
            ConsumerMessage::Resumed if self.partition.paused.borrow().is_none() => {
                self.resumed(ctx);
            }
            ConsumerMessage::Paused | ConsumerMessage::Resumed => {}
            ConsumerMessage::PauseOverlong => self.pause_overlong(),
            ConsumerMessage::Scaled { permits } => self.scaled(permits),
            ConsumerMessage::BeginDrain => {
                self.apply(SubscriptionEvent::DrainBegan, ctx);
                if self.pump.is_none() {
                    self.release_deferred();
                }
            }
            ConsumerMessage::Close => {
                let opening = self.subscription.state() == SubscriptionState::Opening;
                self.apply(SubscriptionEvent::CloseAsked, ctx);
                if opening {
                    // Nothing was handed out yet, and an opening may take for ever.
                    self.pump = None;
                }
                if self.pump.is_none() {
                    self.closed();
                }
            }
            #[cfg(any(test, feature = "fail-points"))]
            ConsumerMessage::Panic => panic!("injected into a consumer actor"),
        }
    }
}

impl Handler<StopActor> for ConsumerActor {
    type Result = ();

    fn handle(&mut self, _: StopActor, ctx: &mut Context<Self>) {
        self.link.exit_with(ExitReason::Shutdown);
        ctx.stop();
    }
}
