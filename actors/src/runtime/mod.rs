//! The engine: assembles the actors of one process and runs them on a thread of their own.

mod children;
mod commands;

use children::{
    consumer_child, coordinator_child, deliveries_child, future_child, limiter_child,
    managed_child, publisher_child,
};
use commands::perform;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;

use crate::consumer::{ConsumerShared, ConsumerSpec, PartitionShared};
use crate::deliveries::{deliver_completions, deliver_timers};
use crate::delivery::{Completions, Executor, ExecutorKind};
use crate::feed::{FeedShared, FeedSpec, feed};
use crate::handle::{COMMANDS_MAX, Command, EngineEnd, Handle};
use crate::ledger::{Ledger, LedgerLimits};
use crate::limiter::{ConsumerIndex, ConsumerLimits, ConsumerShape, LimiterLimits, PermitBook};
use crate::model::{Backoff, PartitionId, Phase};
use crate::ports::{NoObserver, Observer, Transport};
use crate::registry::Registry;
use crate::status::{Snapshot, snapshot};
use crate::supervision::{
    Child, ChildSpec, ExitReason, Intensity, PanicAbort, RESTART_BACKOFF, RestartPolicy, Slot,
    Strategy, SupervisorActor, SupervisorSpec, refuse_panic_abort,
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
            intensity: Intensity::default(),
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
            let end = system.block_on(self.run(ExecutorPlace::Threads, ends.commands, &ends.last));
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
            let end = self
                .run(ExecutorPlace::Local, ends.commands, &ends.last)
                .await;
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

    async fn run(
        self,
        place: ExecutorPlace,
        mut commands: mpsc::Receiver<Command>,
        last: &OnceLock<Snapshot>,
    ) -> EngineEnd {
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
        let _ = last.set(snapshot(&world));
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
            .with_child(self.connections_child(world))
            .with_child(limiter_child(world).with_backoff(self.restart_backoff))
            .with_child(publisher_child(world).with_backoff(self.restart_backoff))
            .with_child(deliveries_child(world).with_backoff(self.restart_backoff))
            .with_child(self.consumers_child(world))
            .with_child(self.feeders_child(world))
            .with_child(
                coordinator_child(world, self.drain_timeout).with_backoff(self.restart_backoff),
            )
    }

    /// The transport's connections. What goes wrong with a broker is a state of theirs, and spends
    /// nothing of the intensity: only an end that nobody asked for does.
    fn connections_child(&self, world: &Rc<World>) -> ChildSpec {
        let (world, intensity) = (Rc::clone(world), self.intensity);
        let backoff = self.restart_backoff;
        SupervisorActor::child_spec("connections", RestartPolicy::Permanent, move || {
            let mut spec =
                SupervisorSpec::new("connections", Strategy::OneForOne).with_intensity(intensity);
            for part in world.transport.managed() {
                spec = spec.with_child(managed_child(&world, &part).with_backoff(backoff));
            }
            spec
        })
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
    last: Arc<OnceLock<Snapshot>>,
}

fn channels() -> (Handle, EngineSide) {
    let (commands, receiver) = mpsc::channel(COMMANDS_MAX);
    let (sender, ended) = watch::channel(None);
    let last = Arc::<OnceLock<Snapshot>>::default();
    (
        Handle {
            commands,
            ended,
            last: Arc::clone(&last),
        },
        EngineSide {
            commands: receiver,
            ended: sender,
            last,
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

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("transport", &self.transport.name())
            .field("consumers", &self.consumers)
            .finish_non_exhaustive()
    }
}
