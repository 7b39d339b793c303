//! The publisher actor: hands what deliveries publish to the port, a bounded number at a time.
//!
//! - **Parent**: the engine's supervisor; permanent.
//! - **Owns**: the window of publishes under way, and those that wait for a place in it.
//! - **In**: [`PublishRequest`] from deliveries, [`Published`] from the port's answers.
//! - **Out**: the answer, to the delivery. It retries nothing and drops nothing: a delivery whose
//!   answer does not come asks again, with the same bytes and id.
//! - **Ends** with the engine. If it dies, deliveries hear nothing and ask again in time.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, ActorContext, AsyncContext, Context, Handler, Message};

use tokio::time::Instant;

use crate::deliveries::late_publish;
use crate::delivery::{DeliveryMessage, DeliveryRecord};
use crate::model::{DeliveryId, Outgoing};
use crate::ports::{PublishError, PublishReply, PublishSink};
use crate::supervision::StopActor;
use crate::world::World;

/// How many publishes may be under way at once.
const WINDOW: usize = 1024;

/// How many answers are waited for after their deliveries' ends, and how long.
const LATE_MAX: usize = 4096;
const LATE_KEPT: Duration = Duration::from_secs(60);

/// How often places in the window are taken back from publishes that nobody waits for any more: a
/// silent broker would keep them for ever.
const SWEEP: Duration = Duration::from_secs(1);

/// A delivery publishes.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct PublishRequest {
    pub(crate) delivery: DeliveryId,
    pub(crate) token: u64,
    pub(crate) message: Outgoing,
}

/// The port answered.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Published {
    pub(crate) token: u64,
    pub(crate) result: Result<(), PublishError>,
}

/// The publisher actor.
pub(crate) struct PublisherActor {
    world: Rc<World>,
    under_way: HashMap<u64, Rc<DeliveryRecord>>,
    /// Tries whose delivery has ended without their answer, and since when that is known.
    late: HashMap<u64, (Rc<DeliveryRecord>, Instant)>,
    waiting: VecDeque<PublishRequest>,
}

impl PublisherActor {
    pub(crate) fn new(world: Rc<World>) -> Self {
        Self {
            world,
            under_way: HashMap::new(),
            late: HashMap::new(),
            waiting: VecDeque::new(),
        }
    }

    fn fill(&mut self) {
        while self.under_way.len() < WINDOW {
            let Some(request) = self.waiting.pop_front() else {
                break;
            };
            if is_wanted(&self.world, request.delivery, request.token) {
                self.send(request);
            }
        }
    }

    /// Gives back the places of tries that nobody waits for any more. One whose delivery has ended
    /// may still be confirmed, which must not be forgotten: it is kept for a while, without a place.
    fn sweep(&mut self) {
        let (world, now) = (&self.world, Instant::now());
        let late = self
            .under_way
            .extract_if(|token, record| !is_wanted(world, record.id, *token));
        for (token, record) in late {
            let last_try = record.state.borrow().publish_token == token;
            if last_try && self.late.len() < LATE_MAX {
                self.late.insert(token, (record, now));
            }
        }
        self.late.retain(|_, (_, since)| now - *since < LATE_KEPT);
        self.waiting
            .retain(|request| is_wanted(world, request.delivery, request.token));
        self.fill();
    }

    fn send(&mut self, request: PublishRequest) {
        let Some(record) = self.world.registry.get(request.delivery) else {
            return;
        };
        self.under_way.insert(request.token, record);
        let sink = Arc::clone(&self.world.completions) as Arc<dyn PublishSink>;
        let reply = PublishReply::new(sink, request.token);
        self.world.publisher_port.publish(request.message, reply);
    }
}

impl Actor for PublisherActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        ctx.run_interval(SWEEP, |this, _| this.sweep());
    }
}

impl Handler<PublishRequest> for PublisherActor {
    type Result = ();

    fn handle(&mut self, request: PublishRequest, _: &mut Context<Self>) {
        if self.under_way.len() < WINDOW {
            self.send(request);
        } else {
            // Bounded by the deliveries in flight: each waits for one answer at a time.
            self.waiting.push_back(request);
        }
    }
}

impl Handler<Published> for PublisherActor {
    type Result = ();

    fn handle(&mut self, published: Published, _: &mut Context<Self>) {
        let Published { token, result } = published;
        let late = self.late.remove(&token).map(|(record, _)| record);
        if let Some(record) = self.under_way.remove(&token).or(late) {
            let confirmed = result.is_ok();
            let message = DeliveryMessage::Published { token, result };
            let unheard = self.world.registry.tell(record.id, message).is_some();
            let ended = unheard && record.settlement().is_terminal();
            if confirmed && ended && record.state.borrow().publish_token == token {
                late_publish(&self.world, &record);
            }
        }
        self.fill();
    }
}

/// Tells whether the delivery still waits for this try: it may have given up or asked again.
fn is_wanted(world: &World, delivery: DeliveryId, token: u64) -> bool {
    let record = world.registry.get(delivery);
    record.is_some_and(|record| record.state.borrow().publish_token == token)
}

impl Handler<StopActor> for PublisherActor {
    type Result = ();

    fn handle(&mut self, _: StopActor, ctx: &mut Context<Self>) {
        ctx.stop();
    }
}
