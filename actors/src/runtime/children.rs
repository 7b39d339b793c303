//! The engine's children: how each is started, and started again.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::consumer::{ConsumerActor, PartitionShared};
use crate::deliveries::DeliveriesActor;
use crate::delivery::DeliveryMessage;
use crate::limiter::{Ask, AskMany, AskRefused, LimiterActor, PermitKey};
use crate::model::{DeliveryId, Outcome, Phase, RejectReason};
use crate::ports::Managed;
use crate::publisher::PublisherActor;
use crate::settlement::State;
use crate::shutdown::CoordinatorActor;
use crate::supervision::{Child, ChildSpec, ExitReason, Link, RestartPolicy};
use crate::world::World;

pub(super) fn future_child<F>(
    world: &Rc<World>,
    name: &'static str,
    make: fn(Rc<World>) -> F,
) -> ChildSpec
where
    F: Future<Output = ()> + 'static,
{
    let world = Rc::clone(world);
    let start = move |link: crate::supervision::Link| {
        let (stop, work) = (link.stop_token(), make(Rc::clone(&world)));
        Child::future(link, async move {
            tokio::select! {
                () = work => {}
                () = stop.cancelled() => {}
            }
        })
    };
    ChildSpec::new(name, RestartPolicy::Permanent, Box::new(start))
}

/// Hosts a part of the transport. Once the process drains, its end is no failure.
pub(super) fn managed_child(world: &Rc<World>, part: &Arc<dyn Managed>) -> ChildSpec {
    let name = part.name().to_owned();
    let (world, part) = (Rc::clone(world), Arc::clone(part));
    let start = move |link: Link| {
        let (stop, work) = (link.stop_token(), part.run());
        let (linked, world) = (link.clone(), Rc::clone(&world));
        Child::future(link, async move {
            tokio::select! {
                () = work => {
                    if world.phase.get() < Phase::Draining {
                        linked.exit_with(ExitReason::Failed("it ended".to_owned()));
                    }
                }
                () = stop.cancelled() => {}
            }
        })
    };
    ChildSpec::new(name, RestartPolicy::Transient, Box::new(start))
}

pub(super) fn limiter_child(world: &Rc<World>) -> ChildSpec {
    let world = Rc::clone(world);
    let start = move |link| {
        let (granted, refused) = (Rc::clone(&world), Rc::clone(&world));
        let on_granted = Rc::new(move |delivery, permit| {
            // A permit for a delivery that has ended drops, and is back.
            let _ = granted
                .registry
                .tell(delivery, DeliveryMessage::Granted(permit));
        });
        let on_refused = Rc::new(move |delivery, refusal| refuse_ask(&refused, delivery, &refusal));
        let (child, addr) = Child::start(link, |_| {
            LimiterActor::new(world.book.clone(), on_granted, on_refused)
        });
        world.limiter.set(addr);
        ask_again(&world);
        child
    };
    ChildSpec::new("limiter", RestartPolicy::Permanent, Box::new(start))
}

/// Concludes a delivery whose ask can never be granted.
pub(super) fn refuse_ask(world: &World, delivery: DeliveryId, refusal: &AskRefused) {
    let outcome = Outcome::Rejected(RejectReason::TooLarge);
    let error = Some(refusal.to_string());
    let judged = DeliveryMessage::Judged { outcome, error };
    let _ = world.registry.tell(delivery, judged);
}

/// Asks once more for what waits: an ask may have died in the mailbox of the limiter before.
pub(super) fn ask_again(world: &World) {
    let waiting = world
        .registry
        .all()
        .into_iter()
        .filter(|record| record.settlement() == State::Received && record.state.borrow().asked);
    let asks: Vec<Ask> = waiting
        .map(|record| Ask {
            key: PermitKey::new(record.partition.consumer.index, record.partition.id),
            ticket: record.id,
            bytes: record.delivery.body.len() as u64,
        })
        .collect();
    if !asks.is_empty() {
        world.limiter.do_send(AskMany(asks));
    }
}

pub(super) fn publisher_child(world: &Rc<World>) -> ChildSpec {
    let world = Rc::clone(world);
    let start = move |link| {
        let (child, addr) = Child::start(link, |_| PublisherActor::new(Rc::clone(&world)));
        world.publisher.set(addr);
        child
    };
    ChildSpec::new("publisher", RestartPolicy::Permanent, Box::new(start))
}

pub(super) fn deliveries_child(world: &Rc<World>) -> ChildSpec {
    let world = Rc::clone(world);
    let start = move |link| {
        let (child, addr) = Child::start(link, |_| DeliveriesActor::new(Rc::clone(&world)));
        world.deliveries.set(addr);
        child
    };
    ChildSpec::new("deliveries", RestartPolicy::Permanent, Box::new(start))
}

pub(super) fn consumer_child(world: &Rc<World>, partition: &Rc<PartitionShared>) -> ChildSpec {
    let name = format!("{}.{}", partition.consumer.spec.name, partition.id);
    let (world, partition) = (Rc::clone(world), Rc::clone(partition));
    let start = move |link: crate::supervision::Link| {
        let (world, shared) = (Rc::clone(&world), Rc::clone(&partition));
        let (child, addr) = Child::start(link.clone(), |_| ConsumerActor::new(world, shared, link));
        partition.slot.set(addr);
        child
    };
    ChildSpec::new(name, RestartPolicy::Permanent, Box::new(start))
}

pub(super) fn coordinator_child(world: &Rc<World>, drain_timeout: Duration) -> ChildSpec {
    let world = Rc::clone(world);
    let start = move |link| {
        let (child, addr) = Child::start(link, |_| {
            CoordinatorActor::new(Rc::clone(&world), drain_timeout)
        });
        world.coordinator.set(addr);
        child
    };
    ChildSpec::new("coordinator", RestartPolicy::Permanent, Box::new(start))
}
