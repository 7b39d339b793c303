//! The shutdown coordinator actor.
//!
//! - **Parent**: the engine's supervisor; permanent. The phase is shared state, so a restart goes
//!   on where it was and never un-drains.
//! - **Owns**: the drain's progress: counters at its start, stragglers, timers.
//! - **In**: [`BeginDrain`], [`Force`], [`QuotaReached`], its own timers.
//! - **Out**: orders to consumers and deliveries; the [`DrainReport`], once.
//! - **Ends** with the engine, which stops when the report is there.

use std::rc::Rc;
use std::time::Duration;

use actix::{Actor, ActorContext, AsyncContext, Context, Handler, Message, WrapFuture};
use tokio::time::Instant;

use crate::consumer::{ConsumerMessage, PartitionShared};
use crate::deliveries::{is_straggler, tell_all};
use crate::model::Phase;
use crate::ports::{SOURCE_CLOSE, TRANSPORT_CLOSE};
use crate::supervision::StopActor;
use crate::world::{World, millis};

use super::core::{Drain, DrainAction, DrainEvent};
use super::report::{DrainReport, STRAGGLERS_NAMED_MAX, Straggler};

/// The forced phase before closing takes at most so long: 5 s with it. It is longer than a last
/// publish after the usual grace of an abort.
const FORCE_TIMEOUT: Duration = Duration::from_millis(3200);

/// Closing takes at most so long: the sources, then the transport, which has its own part of it
/// also where a source hangs.
const CLOSE_TIMEOUT: Duration = SOURCE_CLOSE.saturating_add(TRANSPORT_CLOSE);

/// A drain was asked for.
#[derive(Debug, Message)]
#[rtype(result = "()")]
struct BeginDrain;

/// The end of the grace was asked for.
#[derive(Debug, Message)]
#[rtype(result = "()")]
struct Force;

/// The job's last delivery was admitted.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct QuotaReached;

#[derive(Debug, Message)]
#[rtype(result = "()")]
struct Happened(DrainEvent);

/// What of the drain survives the coordinator.
#[derive(Debug, Default)]
pub(crate) struct DrainNotes {
    /// What was asked for, so that it is not lost with the coordinator it was said to.
    asked: bool,
    force_asked: bool,
    began: Option<(Instant, Totals)>,
    reason: String,
    forced: bool,
    stragglers: Vec<Straggler>,
    stragglers_total: u64,
}

/// Asks for a drain; the first reason stands.
pub(crate) fn request_drain(world: &World, reason: String) {
    note_asked(world, reason);
    world.coordinator.do_send(BeginDrain);
}

/// Asks for the end of the grace, and for a drain if none is under way.
pub(crate) fn request_force(world: &World) {
    note_asked(world, "forced".to_owned());
    world.drain.borrow_mut().force_asked = true;
    world.coordinator.do_send(Force);
}

fn note_asked(world: &World, reason: String) {
    let mut notes = world.drain.borrow_mut();
    if !notes.asked {
        (notes.asked, notes.reason) = (true, reason);
    }
}

/// The sums of all counters at one moment.
#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    in_hand: u64,
    acked: u64,
    requeued: u64,
    released: u64,
    rejected: u64,
    lost: u64,
}

/// The coordinator.
pub(crate) struct CoordinatorActor {
    world: Rc<World>,
    drain_timeout: Duration,
    drain: Drain,
}

impl CoordinatorActor {
    pub(crate) fn new(world: Rc<World>, drain_timeout: Duration) -> Self {
        let drain = Drain::at(world.phase.get());
        Self {
            world,
            drain_timeout,
            drain,
        }
    }

    fn apply(&mut self, event: DrainEvent, ctx: &mut Context<Self>) {
        let before = self.drain.phase();
        let actions = self.drain.apply(event);
        let phase = self.drain.phase();
        if phase > before && phase < Phase::Stopped {
            self.world
                .phase
                .set(self.world.phase.get().raised_to(phase));
            self.world.observe(|observer| observer.phase_changed(phase));
        }
        for action in actions {
            self.perform(*action, ctx);
        }
    }

    fn perform(&mut self, action: DrainAction, ctx: &mut Context<Self>) {
        match action {
            DrainAction::StopAdmitting => self.stop_admitting(ctx),
            DrainAction::ArmDrainTimeout => {
                ctx.notify_later(Happened(DrainEvent::DrainOverdue), self.drain_timeout);
            }
            DrainAction::NameStragglers => self.name_stragglers(),
            DrainAction::Force => tell_all(&self.world, Phase::Forcing),
            DrainAction::ArmForceTimeout => {
                ctx.notify_later(Happened(DrainEvent::ForceOverdue), FORCE_TIMEOUT);
            }
            DrainAction::CloseSources => {}
            DrainAction::Report => self.close_and_report(ctx),
        }
    }

    fn stop_admitting(&mut self, ctx: &mut Context<Self>) {
        let totals = self.totals();
        self.world.drain.borrow_mut().began = Some((Instant::now(), totals));
        for partition in self.world.partitions() {
            partition.slot.do_send(ConsumerMessage::BeginDrain);
        }
        tell_all(&self.world, Phase::Draining);
        self.watch_for_empty(ctx);
    }

    /// Only the subscriptions end here: what the quota admitted is not started yet, and a drain
    /// would give it back. The drain follows when nothing is left.
    fn end_job(&self, ctx: &mut Context<Self>) {
        for partition in self.world.partitions() {
            partition.slot.do_send(ConsumerMessage::BeginDrain);
        }
        let world = Rc::clone(&self.world);
        let watch = async move {
            world.registry.emptied().await;
            request_drain(&world, "the job's deliveries are done".to_owned());
        };
        ctx.spawn(watch.into_actor(self));
    }

    fn watch_for_empty(&self, ctx: &mut Context<Self>) {
        let (world, addr) = (Rc::clone(&self.world), ctx.address());
        let watch = async move {
            world.registry.emptied().await;
            addr.do_send(Happened(DrainEvent::Emptied));
        };
        ctx.spawn(watch.into_actor(self));
    }

    fn name_stragglers(&mut self) {
        let mut notes = self.world.drain.borrow_mut();
        notes.forced = true;
        let all = self.world.registry.all();
        let stragglers: Vec<_> = all.iter().filter(|record| is_straggler(record)).collect();
        notes.stragglers_total = stragglers.len() as u64;
        notes.stragglers = stragglers
            .into_iter()
            .take(STRAGGLERS_NAMED_MAX)
            .map(|record| Straggler {
                delivery: record.id,
                consumer: record.partition.consumer.spec.name.clone(),
                partition: record.partition.id,
                id: record.delivery.id.clone(),
                state: record.settlement().as_str().to_owned(),
                age_ms: millis(record.arrived.elapsed()),
            })
            .collect();
    }

    fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for partition in self.world.partitions() {
            let counters = &partition.counters;
            totals.in_hand += counters.in_hand.get();
            totals.acked += counters.acked.get();
            totals.requeued += counters.requeued.get();
            totals.released += counters.released.get();
            totals.rejected += counters.rejected.get();
            totals.lost += counters.lost.get();
        }
        totals
    }

    fn close_and_report(&mut self, ctx: &mut Context<Self>) {
        let report = self.report();
        let world = Rc::clone(&self.world);
        let close = async move {
            let partitions = world.partitions();
            for partition in &partitions {
                partition.slot.do_send(ConsumerMessage::Close);
            }
            let deadline = Instant::now() + CLOSE_TIMEOUT;
            let sources = async {
                for partition in &partitions {
                    wait_closed(partition).await;
                }
            };
            let _ = tokio::time::timeout(SOURCE_CLOSE, sources).await;
            let _ = tokio::time::timeout_at(deadline, world.transport.close()).await;
            world.phase.set(Phase::Stopped);
            world.observe(|observer| observer.phase_changed(Phase::Stopped));
            world.finished.borrow_mut().get_or_insert(report);
            world.finished_note.notify_waiters();
        };
        ctx.spawn(close.into_actor(self));
    }

    fn report(&self) -> DrainReport {
        let notes = self.world.drain.borrow();
        let now = self.totals();
        let (since, began) = notes.began.unwrap_or((Instant::now(), Totals::default()));
        let handlers_alive = self.world.executor.alive() as u64;
        let abandoned = self.world.registry.len() as u64;
        DrainReport {
            clean: notes.stragglers_total == 0 && handlers_alive == 0 && abandoned == 0,
            reason: notes.reason.clone(),
            in_hand: began.in_hand,
            acked: now.acked - began.acked,
            requeued: now.requeued - began.requeued,
            released: now.released - began.released,
            rejected: now.rejected - began.rejected,
            lost: now.lost - began.lost,
            abandoned,
            handlers_alive,
            forced: notes.forced,
            took_ms: millis(since.elapsed()),
            stragglers: notes.stragglers.clone(),
            stragglers_total: notes.stragglers_total,
        }
    }
}

async fn wait_closed(partition: &PartitionShared) {
    loop {
        let closing = partition.closing.notified();
        if partition.closed.get() {
            return;
        }
        closing.await;
    }
}

impl Actor for CoordinatorActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        // After a restart in the middle of a drain: the orders are given again, they are
        // idempotent, and the timers are armed anew.
        let (asked, force_asked, began) = {
            let notes = self.world.drain.borrow();
            (notes.asked, notes.force_asked, notes.began)
        };
        match self.drain.phase() {
            Phase::Running if self.world.quota.get() == Some(0) => self.end_job(ctx),
            Phase::Running => {}
            Phase::Draining => {
                for partition in self.world.partitions() {
                    partition.slot.do_send(ConsumerMessage::BeginDrain);
                }
                tell_all(&self.world, Phase::Draining);
                self.watch_for_empty(ctx);
                let spent = began.map_or(Duration::ZERO, |(since, _)| since.elapsed());
                let left = self.drain_timeout.saturating_sub(spent);
                ctx.notify_later(Happened(DrainEvent::DrainOverdue), left);
            }
            Phase::Forcing => {
                tell_all(&self.world, Phase::Forcing);
                self.watch_for_empty(ctx);
                self.perform(DrainAction::ArmForceTimeout, ctx);
            }
            Phase::Stopped => self.close_and_report(ctx),
        }
        // What was said to the one before, and died with it.
        if asked {
            ctx.notify(BeginDrain);
        }
        if force_asked {
            ctx.notify(Force);
        }
    }
}

impl Handler<BeginDrain> for CoordinatorActor {
    type Result = ();

    fn handle(&mut self, _: BeginDrain, ctx: &mut Context<Self>) {
        self.apply(DrainEvent::DrainAsked, ctx);
    }
}

impl Handler<Force> for CoordinatorActor {
    type Result = ();

    fn handle(&mut self, _: Force, ctx: &mut Context<Self>) {
        self.apply(DrainEvent::ForceAsked, ctx);
    }
}

impl Handler<QuotaReached> for CoordinatorActor {
    type Result = ();

    fn handle(&mut self, _: QuotaReached, ctx: &mut Context<Self>) {
        self.end_job(ctx);
    }
}

impl Handler<Happened> for CoordinatorActor {
    type Result = ();

    fn handle(&mut self, happened: Happened, ctx: &mut Context<Self>) {
        self.apply(happened.0, ctx);
    }
}

impl Handler<StopActor> for CoordinatorActor {
    type Result = ();

    fn handle(&mut self, _: StopActor, ctx: &mut Context<Self>) {
        ctx.stop();
    }
}
