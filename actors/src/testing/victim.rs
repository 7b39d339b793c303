//! Which actor is made to panic, for tests of what happens then.

use std::rc::Rc;

use crate::consumer::ConsumerMessage;
use crate::delivery::DeliveryMessage;
use crate::handle::CommandError;
use crate::model::{ConsumerName, DeliveryId, PartitionId};
use crate::world::World;

/// Which actor is made to panic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Victim {
    /// The limiter.
    Limiter,
    /// The publisher.
    Publisher,
    /// The shutdown coordinator.
    Coordinator,
    /// The parent of the delivery actors.
    Deliveries,
    /// The consumer actor of a partition.
    Consumer(ConsumerName, PartitionId),
    /// The actor of one delivery.
    Delivery(DeliveryId),
}

pub(crate) fn inject(world: &Rc<World>, victim: Victim) -> Result<(), CommandError> {
    match victim {
        Victim::Limiter => drop(world.limiter.do_send(InjectPanic)),
        Victim::Publisher => drop(world.publisher.do_send(InjectPanic)),
        Victim::Coordinator => drop(world.coordinator.do_send(InjectPanic)),
        Victim::Deliveries => drop(world.deliveries.do_send(InjectPanic)),
        Victim::Consumer(name, id) => {
            let partitions = world.partitions();
            let found = partitions
                .iter()
                .find(|p| p.consumer.spec.name == name && p.id == id)
                .ok_or_else(|| CommandError::Refused(format!("no consumer {name}.{id}")))?;
            found.slot.do_send(ConsumerMessage::Panic);
        }
        Victim::Delivery(id) => {
            if world.registry.tell(id, DeliveryMessage::Panic).is_some() {
                return Err(CommandError::NoSuchDelivery(id));
            }
        }
    }
    Ok(())
}

/// Makes an actor panic.
#[derive(Debug, Clone, Copy, actix::Message)]
#[rtype(result = "()")]
pub(crate) struct InjectPanic;

macro_rules! panics_on_demand {
    ($($actor:ty),*) => {$(
        impl actix::Handler<InjectPanic> for $actor {
            type Result = ();

            fn handle(&mut self, _: InjectPanic, _: &mut actix::Context<Self>) {
                panic!("injected into {}", stringify!($actor));
            }
        }
    )*};
}

panics_on_demand!(
    crate::limiter::LimiterActor,
    crate::publisher::PublisherActor,
    crate::shutdown::CoordinatorActor,
    crate::deliveries::DeliveriesActor
);
