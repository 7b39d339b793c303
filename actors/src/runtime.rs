//! The engine: assembles the actors of one process and runs them on a thread of their own.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::num::NonZeroU32;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;

use crate::consumer::{
    ConsumerActor, ConsumerMessage, ConsumerShared, ConsumerSpec, PartitionShared,
};
use crate::deliveries::{DeliveriesActor, deliver_completions, deliver_timers};
use crate::delivery::{Completions, DeliveryMessage, Executor, ExecutorKind};
use crate::feed::{FeedShared, FeedSpec, feed};
use crate::handle::{COMMANDS_MAX, Command, CommandError, EngineEnd, Handle, Target};
use crate::ledger::{Ledger, LedgerLimits};
use crate::limiter::{
    Ask, AskMany, AskRefused, ConsumerIndex, ConsumerLimits, ConsumerShape, LimiterActor,
    LimiterLimits, PermitBook, PermitKey, Resize,
};
use crate::model::{Backoff, DeliveryId, Outcome, PartitionId, Phase, RejectReason};
use crate::ports::{NoObserver, Observer, Transport};
use crate::publisher::PublisherActor;
use crate::registry::Registry;
use crate::settlement::{Event, State};
use crate::shutdown::{CoordinatorActor, request_drain, request_force};
use crate::status::{in_flight, snapshot};
use crate::supervision::{
    Child, ChildSpec, ExitReason, Intensity, PanicAbort, RESTART_BACKOFF, RestartPolicy, Root,
    Slot, Strategy, SupervisorActor, SupervisorSpec, refuse_panic_abort,
};
use crate::timer::Timers;
use crate::world::World;

/// How long the actors may take to stop after the drain's report.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// Why an engine did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The program is built with `panic = "abort"`.
    #[error(transparent)]
    PanicAbort(#[from] PanicAbort),
    /// Two consumers have one name.
    #[error("two consumers are named {0:?}; give each its own name")]
    DuplicateConsumer(String),
    /// The operating system gives no thread.
    #[error("failed to start a thread")]
    Thread(#[from] std::io::Error),
}

/// What an engine is made of.
///
/// ```no_run
/// # async fn example(transport: std::sync::Arc<dyn acquit_actors::ports::Transport>) {
/// use acquit_actors::{ConsumerSpec, Engine, ports::{HandlerOutcome, handler_fn}};
///
/// let handler = handler_fn(|_context| async { HandlerOutcome::completed() });
/// let engine = Engine::new(transport)
///     .with_consumer(ConsumerSpec::new("words", "words", handler).with_permits(16));
/// let handle = engine.start().expect("panics unwind and there is a thread");
/// let end = handle.drain_and_wait("done").await;
/// assert_eq!(end.exit_code(), 0);
/// # }
/// ```
pub struct Engine {
    transport: Arc<dyn Transport>,
    observer: Arc<dyn Observer>,
    consumers: Vec<ConsumerSpec>,
    feeds: Vec<FeedSpec>,
    limits: LimiterLimits,
    drain_timeout: Duration,
    handler_threads: usize,
    quota: Option<u64>,
    intensity: Intensity,
    restart_backoff: Backoff,
    ledger: LedgerLimits,
}

impl Engine {
    /// Makes an engine on a transport, with the defaults of the configuration file.
    pub fn new(transport: Arc<dyn Transport>) -> Self {
        let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        Self {
            transport,
            observer: Arc::new(NoObserver),
            consumers: Vec::new(),
            feeds: Vec::new(),
            limits: LimiterLimits {
                permits: 64,
                in_flight_bytes: 256 << 20,
                rate: None,
            },
            drain_timeout: Duration::from_secs(22),
            handler_threads: cores,
            quota: None,
            intensity: Intensity {
                restarts: 5,
                period: Duration::from_secs(30),
            },
            restart_backoff: RESTART_BACKOFF,
            ledger: LedgerLimits::default(),
        }
    }

    /// Adds a consumer.
    #[must_use]
    pub fn with_consumer(mut self, consumer: ConsumerSpec) -> Self {
        self.consumers.push(consumer);
        self
    }

    /// Adds a feed.
    #[must_use]
    pub fn with_feed(mut self, feed: FeedSpec) -> Self {
        self.feeds.push(feed);
        self
    }

    /// Sets who hears what happens.
    #[must_use]
    pub fn with_observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = observer;
        self
    }

    /// Sets the limits of the whole process.
    #[must_use]
    pub fn with_limits(mut self, limits: LimiterLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets how long a drain waits before it forces.
    #[must_use]
    pub fn with_drain_timeout(mut self, timeout: Duration) -> Self {
        self.drain_timeout = timeout;
        self
    }

    /// Sets how many threads async handlers run on.
    #[must_use]
    pub fn with_handler_threads(mut self, threads: usize) -> Self {
        self.handler_threads = threads.max(1);
        self
    }

    /// Sets how many deliveries are admitted before the engine drains: job mode.
    #[must_use]
    pub fn with_max_deliveries(mut self, deliveries: Option<u64>) -> Self {
        self.quota = deliveries;
        self
    }

    /// Sets how many restarts in a period make a supervisor give up. The consumers' supervisor
    /// multiplies them by its partitions.
    #[must_use]
    pub fn with_intensity(mut self, intensity: Intensity) -> Self {
        self.intensity = intensity;
        self
    }

    /// Sets the pauses before restarts.
    #[must_use]
    pub fn with_restart_backoff(mut self, backoff: Backoff) -> Self {
        self.restart_backoff = backoff;
        self
    }

    /// Sets the bounds of the outcome ledger.
    #[must_use]
    pub fn with_ledger_limits(mut self, limits: LedgerLimits) -> Self {
        self.ledger = limits;
        self
    }

    /// Starts the engine on a thread of its own: from any program, whatever runtime it has or has
    /// not.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(self) -> Result<Handle, StartError> {
        self.check()?;
        let (handle, ends) = channels();
        let thread = std::thread::Builder::new().name("acquit-actors".to_owned());
        thread.spawn(move || {
            let system = actix_rt::System::new();
            let end = system.block_on(self.run(ExecutorPlace::Threads, ends.commands));
            ends.ended.send_replace(Some(end));
        })?;
        Ok(handle)
    }

    /// Starts the engine on the present thread, handlers included, so that all share one clock:
    /// for tests on virtual time. Must be called inside a `LocalSet`.
    ///
    /// # Errors
    /// See [`StartError`].
    ///
    /// # Panics
    /// Outside a `LocalSet`.
    pub fn start_local(self) -> Result<Handle, StartError> {
        self.check()?;
        let (handle, ends) = channels();
        tokio::task::spawn_local(async move {
            let end = self.run(ExecutorPlace::Local, ends.commands).await;
            ends.ended.send_replace(Some(end));
        });
        Ok(handle)
    }

    fn check(&self) -> Result<(), StartError> {
        refuse_panic_abort()?;
        let mut names = std::collections::HashSet::new();
        for consumer in &self.consumers {
            if !names.insert(consumer.name.clone()) {
                return Err(StartError::DuplicateConsumer(consumer.name.to_string()));
            }
        }
        Ok(())
    }

    async fn run(self, place: ExecutorPlace, mut commands: mpsc::Receiver<Command>) -> EngineEnd {
        let world = match self.world(place) {
            Ok(world) => world,
            Err(error) => return EngineEnd::GaveUp(format!("failed to start: {error}")),
        };
        let (end_sender, mut end_receiver) = watch::channel(None);
        let on_end = Box::new(move |reason: ExitReason| {
            end_sender.send_replace(Some(reason));
        });
        let root = SupervisorActor::start_root(self.tree(&world), on_end);
        loop {
            let finished = world.finished_note.notified();
            if world.phase.get() == Phase::Stopped {
                break;
            }
            tokio::select! {
                () = finished => {}
                Ok(ended) = end_receiver.wait_for(Option::is_some) => {
                    let reason = ended.clone();
                    drop(ended);
                    let text = reason.map_or_else(String::new, |reason| reason.to_string());
                    return EngineEnd::GaveUp(text);
                }
                Some(command) = commands.recv() => perform(&world, &root, command).await,
            }
        }
        root.ask_stop();
        let stopped = end_receiver.wait_for(Option::is_some);
        let _ = tokio::time::timeout(STOP_TIMEOUT, stopped).await;
        match world.finished.borrow_mut().take() {
            Some(report) => EngineEnd::Drained(report),
            None => EngineEnd::GaveUp("the coordinator made no report".to_owned()),
        }
    }

    fn world(&self, place: ExecutorPlace) -> std::io::Result<Rc<World>> {
        let completions = Arc::new(Completions::default());
        let kind = match place {
            ExecutorPlace::Threads => ExecutorKind::Threads(self.handler_threads),
            ExecutorPlace::Local => ExecutorKind::Local,
        };
        let shapes: Vec<ConsumerShape> = self
            .consumers
            .iter()
            .map(|spec| ConsumerShape {
                partitions: spec.partitions,
                limits: ConsumerLimits {
                    permits: spec.permits.get(),
                    rate: spec.rate,
                },
            })
            .collect();
        let world = Rc::new(World {
            started: Instant::now(),
            registry: Registry::default(),
            timers: Timers::new(),
            executor: Executor::new(kind, Arc::clone(&completions))?,
            completions,
            book: PermitBook::new(self.limits, &shapes),
            phase: Cell::new(Phase::Running),
            ledger: RefCell::new(Ledger::new(self.ledger, self.transport.capabilities())),
            capabilities: self.transport.capabilities(),
            publisher_port: self.transport.publisher(),
            transport: Arc::clone(&self.transport),
            observer: Arc::clone(&self.observer),
            limiter: Slot::new(),
            publisher: Slot::new(),
            coordinator: Slot::new(),
            deliveries: Slot::new(),
            consumers: RefCell::default(),
            quota: Cell::new(self.quota),
            tokens: Cell::default(),
            drain: RefCell::default(),
            finished: RefCell::default(),
            finished_note: Notify::new(),
            feeds: RefCell::default(),
            effects: RefCell::default(),
            refused: Cell::default(),
            observer_panics: Cell::default(),
        });
        for (index, spec) in self.consumers.iter().enumerate() {
            let index = ConsumerIndex(u32::try_from(index).unwrap_or(u32::MAX));
            let consumer = ConsumerShared::new(spec.clone(), index);
            world.consumers.borrow_mut().push(consumer);
        }
        let feeds = self.feeds.iter().cloned().map(FeedShared::new);
        world.feeds.borrow_mut().extend(feeds);
        Ok(world)
    }

    /// The supervision tree, in order of start.
    fn tree(&self, world: &Rc<World>) -> SupervisorSpec {
        let observed = Rc::clone(world);
        let observer = move |path: &str, reason: &ExitReason, restarted: bool| {
            let reason = reason.to_string();
            observed.observe(|observer| observer.actor_exited(path, &reason, restarted));
        };
        SupervisorSpec::new("engine", Strategy::OneForOne)
            .with_intensity(self.intensity)
            .with_observer(Rc::new(observer))
            .with_child(
                future_child(world, "timers", deliver_timers).with_backoff(self.restart_backoff),
            )
            .with_child(
                future_child(world, "completions", deliver_completions)
                    .with_backoff(self.restart_backoff),
            )
            .with_child(limiter_child(world).with_backoff(self.restart_backoff))
            .with_child(publisher_child(world).with_backoff(self.restart_backoff))
            .with_child(deliveries_child(world).with_backoff(self.restart_backoff))
            .with_child(self.consumers_child(world))
            .with_child(self.feeders_child(world))
            .with_child(
                coordinator_child(world, self.drain_timeout).with_backoff(self.restart_backoff),
            )
    }

    fn consumers_child(&self, world: &Rc<World>) -> ChildSpec {
        let (world, intensity) = (Rc::clone(world), self.intensity);
        let backoff = self.restart_backoff;
        SupervisorActor::child_spec("consumers", RestartPolicy::Permanent, move || {
            let partitions = world.partitions();
            let restarts = intensity
                .restarts
                .saturating_mul(partitions.len().max(1) as u32);
            let mut spec =
                SupervisorSpec::new("consumers", Strategy::OneForOne).with_intensity(Intensity {
                    restarts,
                    period: intensity.period,
                });
            for partition in partitions {
                spec = spec.with_child(consumer_child(&world, &partition).with_backoff(backoff));
            }
            spec
        })
    }

    fn feeders_child(&self, world: &Rc<World>) -> ChildSpec {
        let (world, intensity) = (Rc::clone(world), self.intensity);
        SupervisorActor::child_spec("feeders", RestartPolicy::Permanent, move || {
            let mut spec =
                SupervisorSpec::new("feeders", Strategy::OneForOne).with_intensity(intensity);
            for shared in world.feeds.borrow().iter() {
                let (world, shared) = (Rc::clone(&world), Rc::clone(shared));
                let name = shared.spec.name.clone();
                let start = move |link: crate::supervision::Link| {
                    let future = feed(Rc::clone(&world), Rc::clone(&shared), link.clone());
                    Child::future(link, future)
                };
                spec = spec.with_child(ChildSpec::new(
                    name,
                    RestartPolicy::Transient,
                    Box::new(start),
                ));
            }
            spec
        })
    }
}

#[derive(Debug, Clone, Copy)]
enum ExecutorPlace {
    Threads,
    Local,
}

struct EngineSide {
    commands: mpsc::Receiver<Command>,
    ended: watch::Sender<Option<EngineEnd>>,
}

fn channels() -> (Handle, EngineSide) {
    let (commands, receiver) = mpsc::channel(COMMANDS_MAX);
    let (sender, ended) = watch::channel(None);
    (
        Handle { commands, ended },
        EngineSide {
            commands: receiver,
            ended: sender,
        },
    )
}

impl ConsumerShared {
    fn new(spec: ConsumerSpec, index: ConsumerIndex) -> Rc<Self> {
        let consumer = Rc::new(Self {
            permits: Cell::new(spec.permits.get()),
            index,
            partitions: RefCell::default(),
            spec,
        });
        let partitions = (0..consumer.spec.partitions.get())
            .map(|id| Rc::new(PartitionShared::new(PartitionId(id), Rc::clone(&consumer))));
        let partitions = partitions.collect();
        *consumer.partitions.borrow_mut() = partitions;
        consumer
    }
}

// The children.

fn future_child<F>(world: &Rc<World>, name: &'static str, make: fn(Rc<World>) -> F) -> ChildSpec
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

fn limiter_child(world: &Rc<World>) -> ChildSpec {
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
fn refuse_ask(world: &World, delivery: DeliveryId, refusal: &AskRefused) {
    let outcome = Outcome::Rejected(RejectReason::TooLarge);
    let error = Some(refusal.to_string());
    let judged = DeliveryMessage::Judged { outcome, error };
    let _ = world.registry.tell(delivery, judged);
}

/// Asks once more for what waits: an ask may have died in the mailbox of the limiter before.
fn ask_again(world: &World) {
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

fn publisher_child(world: &Rc<World>) -> ChildSpec {
    let world = Rc::clone(world);
    let start = move |link| {
        let (child, addr) = Child::start(link, |_| PublisherActor::new(Rc::clone(&world)));
        world.publisher.set(addr);
        child
    };
    ChildSpec::new("publisher", RestartPolicy::Permanent, Box::new(start))
}

fn deliveries_child(world: &Rc<World>) -> ChildSpec {
    let world = Rc::clone(world);
    let start = move |link| {
        let (child, addr) = Child::start(link, |_| DeliveriesActor::new(Rc::clone(&world)));
        world.deliveries.set(addr);
        child
    };
    ChildSpec::new("deliveries", RestartPolicy::Permanent, Box::new(start))
}

fn consumer_child(world: &Rc<World>, partition: &Rc<PartitionShared>) -> ChildSpec {
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

fn coordinator_child(world: &Rc<World>, drain_timeout: Duration) -> ChildSpec {
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

// Commands.

async fn perform(world: &Rc<World>, root: &Root, command: Command) {
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

fn find(
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

fn each(
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

async fn resize(world: &World, resize: Resize) -> Result<(), CommandError> {
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

async fn scale(
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

async fn set_rate(
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

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("transport", &self.transport.name())
            .field("consumers", &self.consumers)
            .finish_non_exhaustive()
    }
}
