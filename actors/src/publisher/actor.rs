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

use crate::delivery::DeliveryMessage;
use crate::model::{DeliveryId, Outgoing};
use crate::ports::{PublishError, PublishReply, PublishSink};
use crate::supervision::StopActor;
use crate::world::World;

/// How many publishes may be under way at once.
const WINDOW: usize = 1024;

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
    under_way: HashMap<u64, DeliveryId>,
    waiting: VecDeque<PublishRequest>,
}

impl PublisherActor {
    pub(crate) fn new(world: Rc<World>) -> Self {
        Self {
            world,
            under_way: HashMap::new(),
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

    fn sweep(&mut self) {
        let world = &self.world;
        self.under_way
            .retain(|token, delivery| is_wanted(world, *delivery, *token));
        self.waiting
            .retain(|request| is_wanted(world, request.delivery, request.token));
        self.fill();
    }

    fn send(&mut self, request: PublishRequest) {
        self.under_way.insert(request.token, request.delivery);
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
        if let Some(delivery) = self.under_way.remove(&token) {
            let message = DeliveryMessage::Published { token, result };
            let _ = self.world.registry.tell(delivery, message);
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
