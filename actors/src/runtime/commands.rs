//! What the handle orders, carried out on the actors' thread.

use std::num::NonZeroU32;
use std::rc::Rc;

use super::children::refuse_ask;
use crate::consumer::{ConsumerMessage, ConsumerShared, PartitionShared};
use crate::delivery::DeliveryMessage;
use crate::handle::{Command, CommandError, Target};
use crate::limiter::Resize;
use crate::settlement::Event;
use crate::shutdown::{request_drain, request_force};
use crate::status::{in_flight, snapshot};
use crate::supervision::Root;
use crate::world::World;

pub(super) async fn perform(world: &Rc<World>, root: &Root, command: Command) {
    match command {
        Command::Drain { reason } => {
            request_drain(world, reason);
        }
        Command::Force => request_force(world),
        Command::Pause {
            target,
            reason,
            reply,
        } => {
            let done = each(world, &target, |partition| {
                partition.note_pause(&reason);
                partition.slot.do_send(ConsumerMessage::Paused);
            });
            let _ = reply.send(done);
        }
        Command::Resume { target, reply } => {
            let done = each(world, &target, |partition| {
                *partition.paused.borrow_mut() = None;
                partition.slot.do_send(ConsumerMessage::Resumed);
            });
            let _ = reply.send(done);
        }
        Command::Scale {
            consumer,
            permits,
            reply,
        } => {
            let _ = reply.send(scale(world, &consumer, permits).await);
        }
        Command::Rate {
            consumer,
            rate,
            reply,
        } => {
            let _ = reply.send(set_rate(world, consumer, rate).await);
        }
        Command::Limits { limits, reply } => {
            let permits = resize(world, Resize::ProcessPermits(limits.permits)).await;
            let bytes = resize(world, Resize::InFlightBytes(limits.in_flight_bytes)).await;
            let rate = resize(world, Resize::ProcessRate(limits.rate)).await;
            let _ = reply.send(permits.and(bytes).and(rate));
        }
        Command::Cancel {
            delivery,
            kind,
            reply,
        } => {
            let event = DeliveryMessage::Happened(Event::CancelAsked(kind));
            let told = world.registry.tell(delivery, event);
            let _ = reply.send(match told {
                None => Ok(()),
                Some(_) => Err(CommandError::NoSuchDelivery(delivery)),
            });
        }
        Command::Snapshot { reply } => {
            let _ = reply.send(snapshot(world));
        }
        Command::InFlight { max, reply } => {
            let _ = reply.send(in_flight(world, max));
        }
        Command::Tree { reply } => {
            // Asked beside the loop: a slow answer must not hold up the next command.
            let tree = root.handle().clone();
            tokio::task::spawn_local(async move {
                let _ = reply.send(tree.tree().await);
            });
        }
        #[cfg(any(test, feature = "fail-points"))]
        Command::Panic { actor, reply } => {
            let _ = reply.send(crate::testing::inject(world, actor));
        }
    }
}

pub(super) fn find(
    world: &World,
    name: &crate::model::ConsumerName,
) -> Result<Rc<ConsumerShared>, CommandError> {
    let consumers = world.consumers.borrow();
    let found = consumers
        .iter()
        .find(|consumer| consumer.spec.name == *name);
    found.cloned().ok_or_else(|| CommandError::NoSuchConsumer {
        asked: name.clone(),
        known: consumers
            .iter()
            .map(|consumer| consumer.spec.name.to_string())
            .collect::<Vec<_>>()
            .join(", "),
    })
}

pub(super) fn each(
    world: &World,
    target: &Target,
    mut tell: impl FnMut(&PartitionShared),
) -> Result<(), CommandError> {
    let consumer = find(world, &target.consumer)?;
    let partitions = consumer.partitions.borrow();
    match target.partition {
        None => partitions.iter().for_each(|partition| tell(partition)),
        Some(id) => match partitions.iter().find(|partition| partition.id == id) {
            Some(partition) => tell(partition),
            None => {
                return Err(CommandError::NoSuchPartition {
                    consumer: target.consumer.clone(),
                    asked: id,
                    partitions: partitions.len(),
                });
            }
        },
    }
    Ok(())
}

pub(super) async fn resize(world: &World, resize: Resize) -> Result<(), CommandError> {
    let resized = match world.limiter.send(resize).await {
        Ok(resized) => resized,
        // It starts, or starts again. The book outlives it; resizing twice is resizing once.
        Err(_) => world.book.resize(resize).map(|impossible| {
            for (delivery, refusal) in impossible {
                refuse_ask(world, delivery, &refusal);
            }
        }),
    };
    resized.map_err(|refused| CommandError::Refused(refused.to_string()))
}

pub(super) async fn scale(
    world: &World,
    name: &crate::model::ConsumerName,
    permits: NonZeroU32,
) -> Result<(), CommandError> {
    let consumer = find(world, name)?;
    resize(
        world,
        Resize::ConsumerPermits {
            consumer: consumer.index,
            permits: permits.get(),
        },
    )
    .await?;
    consumer.permits.set(permits.get());
    for partition in consumer.partitions.borrow().iter() {
        partition.slot.do_send(ConsumerMessage::Scaled {
            permits: permits.get(),
        });
    }
    Ok(())
}

pub(super) async fn set_rate(
    world: &World,
    consumer: Option<crate::model::ConsumerName>,
    rate: Option<crate::limiter::Rate>,
) -> Result<(), CommandError> {
    match consumer {
        None => resize(world, Resize::ProcessRate(rate)).await,
        Some(name) => {
            let consumer = find(world, &name)?;
            resize(
                world,
                Resize::ConsumerRate {
                    consumer: consumer.index,
                    rate,
                },
            )
            .await
        }
    }
}
