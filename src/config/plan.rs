//! The plan: the configuration resolved, in plain types, valid by construction.

mod amqp;
mod source;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use acquit_actors::model::{
    Backoff, Capabilities, ConsumerName, OnLeaseLost, OnRefused, QueueName, RetryWay,
};
use toml::de::DeTable;

use super::check::{self, Checked, Look, Secrets};
use super::error::{ConfigError, Problem, Severity};
use super::raw::{
    ExitMeaning, LeaseLostWord, ListenWord, OnConsumerTimeout, OnExhausted, Order, Partitioning,
    Prefetch, Profile, Raw, RawCommand, RawConsumer, RawHandler, RetryVia,
};
use super::raw_broker::{BrokerUrl, RawBroker, SyncWord};
use super::reader::{Environment, Origins};
use super::value::{Rate, Scalar};
use crate::telemetry::LogSettings;
use source::{environment, read, syntax_problems};

pub use amqp::{AmqpPlan, ManagementPlan};

/// What this process does. All paths are absolute.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Plan {
    /// The file it came from, as the user gave it.
    pub file: PathBuf,
    /// Who we are.
    pub worker: WorkerPlan,
    /// Where messages come from.
    pub broker: BrokerPlan,
    /// How much is in flight at once.
    pub limiter: LimiterPlan,
    /// How we stop.
    pub shutdown: ShutdownPlan,
    /// How actors are restarted.
    pub supervision: SupervisionPlan,
    /// The outcome ledger's bounds.
    pub ledger: LedgerPlan,
    /// Where commands reach us.
    pub control: ControlPlan,
    /// What is logged and how.
    pub log: LogSettings,
    /// What is fed into queues.
    pub feeds: Vec<FeedPlan>,
    /// Who consumes what. Names are unique.
    pub consumers: Vec<ConsumerPlan>,
    /// Warnings and notes about it: it runs, but perhaps not as meant.
    pub remarks: Vec<Problem>,
    origins: Origins,
}

/// Who we are.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerPlan {
    /// The name of this process.
    pub name: String,
    /// The folder of what survives a restart. Made on first use.
    pub state_dir: PathBuf,
}

/// Where messages come from.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BrokerPlan {
    /// Which broker. The addresses of a RabbitMQ hold who we are there, from wherever it was given.
    pub url: BrokerUrl,
    /// When a write counts as written.
    pub sync: Sync,
    /// How long a delivery is held without a word.
    pub lease: Duration,
    /// How a RabbitMQ is used; there exactly when `url` is one.
    pub amqp: Option<AmqpPlan>,
}

/// When a write of the embedded broker counts as written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sync {
    /// After fsync.
    Always,
    /// At once; an fsync follows within 50 ms.
    Interval,
}

/// How much is in flight at once.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct LimiterPlan {
    /// Deliveries of the whole process; at least 1.
    pub permits: u32,
    /// Bytes of bodies.
    pub in_flight_bytes: u64,
    /// How many may start per unit of time; `None`: as many as can.
    pub rate: Option<Rate>,
    /// How many may start at once after a quiet time; at least 1, and without meaning where there
    /// is no rate.
    pub burst: u32,
}

/// How we stop.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShutdownPlan {
    /// How long running handlers may go on.
    pub drain_timeout: Duration,
}

/// How actors are restarted.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SupervisionPlan {
    /// At most this many restarts under one supervisor …
    pub intensity: u32,
    /// … in this time; one more and the supervisor gives up.
    pub period: Duration,
    /// The pauses before restarts.
    pub backoff: Backoff,
}

/// The outcome ledger's bounds.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LedgerPlan {
    /// How many entries.
    pub entries: usize,
    /// How many bytes they may owe.
    pub bytes: u64,
    /// How long an entry is kept.
    pub age: Duration,
}

/// Where commands reach us.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ControlPlan {
    /// The Unix socket.
    pub socket: PathBuf,
}

/// What is fed into a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FeedPlan {
    /// Names its cursor: the file as configured, and the queue. Unique.
    pub name: String,
    /// The queue.
    pub queue: QueueName,
    /// The file.
    pub file: PathBuf,
}

/// Who consumes what, and how.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ConsumerPlan {
    /// Its name.
    pub name: ConsumerName,
    /// Its queue.
    pub queue: QueueName,
    /// How many partitions its queue has; at least 1.
    pub partitions: u32,
    /// What the bodies are.
    pub profile: Profile,
    /// What order it keeps.
    pub order: Order,
    /// How many are in flight at once, over all its partitions; at least 1.
    pub permits: u32,
    /// How many deliveries each partition holds ready.
    pub prefetch: Prefetch,
    /// How long an attempt may take.
    pub handler_timeout: Duration,
    /// What a stopped command has between TERM and KILL.
    pub abort_grace: Duration,
    /// How long the broker may take to answer a settlement.
    pub settle_timeout: Duration,
    /// How long the broker may take to confirm one try of a publish.
    pub publish_timeout: Duration,
    /// When publishing is given up; at least `publish_timeout`.
    pub publish_give_up: Duration,
    /// Where results go.
    pub reply_queue: Option<QueueName>,
    /// Where dead letters go.
    pub dead_letter_queue: Option<QueueName>,
    /// Larger bodies are rejected.
    pub max_message_bytes: u64,
    /// Messages with more headers are rejected.
    pub max_headers: u32,
    /// A message handed out this often without a word from us is rejected.
    pub crash_loop_limit: u32,
    /// What happens to a running handler when the channel is lost.
    pub on_channel_lost: OnLeaseLost,
    /// What happens to a running handler when the lease ran out.
    pub on_lease_lost: OnLeaseLost,
    /// What happens when a publish is refused for good, and so is the dead letter of it:
    /// [`OnRefused::Reject`] where a dead list or `on_exhausted` says what becomes of the message.
    pub on_refused: OnRefused,
    /// What becomes of dead messages; chosen where a RabbitMQ is used without a dead-letter queue.
    pub on_exhausted: Option<OnExhausted>,
    /// The priority among the consumers of a queue at a RabbitMQ; higher ones are served first.
    pub priority: Option<i32>,
    /// More arguments of the consumer at a RabbitMQ.
    pub consume_arguments: BTreeMap<String, Scalar>,
    /// How other producers reach the partitions of a queue at a RabbitMQ.
    pub partitioning: Partitioning,
    /// Whether a RabbitMQ hands each partition out to one consumer at a time.
    pub single_active: bool,
    /// What becomes of a delivery that is held almost as long as a RabbitMQ allows.
    pub on_consumer_timeout: OnConsumerTimeout,
    /// How a failed attempt is tried again.
    pub retry: RetryPlan,
    /// Its handler.
    pub handler: HandlerPlan,
}

/// How a failed attempt is tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetryPlan {
    /// How many attempts there are in all; at least 1.
    pub max_attempts: u32,
    /// The delays between them.
    pub backoff: Backoff,
    /// Who keeps the message meanwhile.
    pub via: RetryVia,
    /// The same, for the settlement machine.
    pub way: RetryWay,
}

/// A consumer's handler.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum HandlerPlan {
    /// The body is the result.
    Echo,
    /// Done, without a look.
    Discard,
    /// Logs that it came.
    Log,
    /// Runs a program.
    Command(CommandPlan),
}

/// A program and the terms it runs on.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CommandPlan {
    /// The program and its arguments. A program with a slash in it is an absolute path; a bare
    /// name is looked for in `PATH`.
    pub argv: Vec<String>,
    /// The names of our own environment variables that it sees.
    pub env: Vec<String>,
    /// The names of the headers that it sees.
    pub headers: Vec<String>,
    /// Its working directory; `None`: ours.
    pub cwd: Option<PathBuf>,
    /// The longest result.
    pub stdout_limit: u64,
    /// How much of the end of stderr is kept.
    pub stderr_tail: u64,
    /// What an exit code means that has no meaning of its own.
    pub other_exit: ExitMeaning,
}

impl Plan {
    /// The longest configuration that is read.
    pub const TEXT_MAX: u64 = 1 << 20;

    /// Gives the shipped configuration, which is complete and commented.
    pub fn default_config() -> &'static str {
        include_str!("../../config.toml")
    }

    /// Reads a file, lets the environment's `ACQUIT_*` variables win, and checks it: against
    /// itself and against this machine (files, folders, programs).
    ///
    /// # Errors
    /// [`ConfigError`] with every problem, when one of them is an error.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        Self::of_file(path.as_ref(), |base| Look::Everywhere(base))
    }

    /// Reads a file as [`Plan::from_file`] does, but does not check this machine: for who asks a
    /// running process, which has to answer also when a program or a file has gone meanwhile. A
    /// file with a password is read if it can be; else the password is empty.
    ///
    /// # Errors
    /// [`ConfigError`] with every problem, when one of them is an error.
    pub fn from_file_alone(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        Self::of_file(path.as_ref(), |base| Look::Secrets(base))
    }

    fn of_file(path: &Path, look: fn(&Base) -> Look<'_>) -> Result<Self, ConfigError> {
        let text = read(path).map_err(|problem| ConfigError {
            file: path.to_owned(),
            problems: vec![*problem],
        })?;
        load(&text, path, &environment(), look)
    }

    /// Reads a text as if it stood in the file `path`. Looks at nothing but the text: neither at
    /// the environment nor at this machine, so what a file with a password holds is empty.
    ///
    /// # Errors
    /// [`ConfigError`] with every problem, when one of them is an error.
    pub fn from_str(text: &str, path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        load(text, path.as_ref(), &Environment::new(), |_| Look::Nowhere)
    }

    /// Checks it against what the transport can do, once that is known. An error means: do not run.
    pub fn check_capabilities(&self, capabilities: &Capabilities) -> Vec<Problem> {
        check::capabilities(self, &self.origins, capabilities)
    }

    /// Names every queue it uses, with the number of its partitions.
    pub fn queues(&self) -> BTreeMap<QueueName, u32> {
        let mut queues = BTreeMap::new();
        for feed in &self.feeds {
            queues.entry(feed.queue.clone()).or_insert(1);
        }
        for consumer in &self.consumers {
            let published = [&consumer.reply_queue, &consumer.dead_letter_queue];
            for queue in published.into_iter().flatten() {
                queues.entry(queue.clone()).or_insert(1);
            }
        }
        for consumer in &self.consumers {
            queues.insert(consumer.queue.clone(), consumer.partitions);
        }
        queues
    }

    /// Gives the warnings among the remarks.
    pub fn warnings(&self) -> impl Iterator<Item = &Problem> {
        self.remarks
            .iter()
            .filter(|problem| problem.severity == Severity::Warning)
    }
}

/// From text to plan: the whole story.
fn load(
    text: &str,
    path: &Path,
    environment: &Environment,
    look: fn(&Base) -> Look<'_>,
) -> Result<Plan, ConfigError> {
    let refuse = |problems| ConfigError {
        file: path.to_owned(),
        problems,
    };
    let (tree, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        return Err(refuse(syntax_problems(text, &errors)));
    }
    let (raw, read) = Raw::read(text, tree.get_ref(), environment);
    let base = Base::of(path);
    let Checked {
        problems,
        origins,
        secrets,
    } = check::raw(&raw, read, &look(&base));
    if problems.iter().any(|p| p.severity == Severity::Error) {
        return Err(refuse(problems));
    }
    let mut plan = resolve(raw, path, &base, secrets);
    plan.remarks = problems;
    plan.origins = origins;
    Ok(plan)
}

/// The folder that paths of a file are relative to.
pub(super) struct Base(PathBuf);

impl Base {
    fn of(file: &Path) -> Self {
        let absolute = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
        Self(absolute.parent().map(Path::to_owned).unwrap_or_default())
    }

    /// Makes a path absolute and drops its `.` parts.
    pub(super) fn join(&self, path: &Path) -> PathBuf {
        self.0.join(path).components().collect()
    }

    /// Makes the program absolute if it is a path.
    pub(super) fn program(&self, program: &str) -> String {
        if !program.contains('/') {
            return program.to_owned();
        }
        let path = self.join(Path::new(program));
        path.into_os_string()
            .into_string()
            .unwrap_or_else(|_| program.to_owned())
    }

    /// The control socket.
    pub(super) fn socket(&self, state_dir: &Path) -> PathBuf {
        self.join(state_dir).join("acquit.sock")
    }
}

/// Resolves all but the remarks and origins.
fn resolve(raw: Raw, path: &Path, base: &Base, secrets: Secrets) -> Plan {
    let ListenWord::Socket = raw.control.listen;
    let broker = broker(raw.broker, &raw.worker.name, base, secrets);
    let is_amqp = broker.amqp.is_some();
    Plan {
        file: path.to_owned(),
        control: ControlPlan {
            socket: base.socket(&raw.worker.state_dir),
        },
        worker: WorkerPlan {
            name: raw.worker.name.to_string(),
            state_dir: base.join(&raw.worker.state_dir),
        },
        broker,
        limiter: LimiterPlan {
            permits: raw.limiter.permits.get(),
            in_flight_bytes: raw.limiter.in_flight_bytes.bytes(),
            rate: raw.limiter.rate,
            burst: burst(raw.limiter.rate, raw.limiter.burst.map(|burst| burst.get())),
        },
        shutdown: ShutdownPlan {
            drain_timeout: raw.shutdown.drain_timeout,
        },
        supervision: SupervisionPlan {
            intensity: raw.supervision.intensity.get(),
            period: raw.supervision.period.get(),
            backoff: Backoff {
                base: raw.supervision.backoff_base.get(),
                max: raw.supervision.backoff_max.get(),
            },
        },
        ledger: LedgerPlan {
            entries: raw.ledger.entries.get() as usize,
            bytes: raw.ledger.bytes.bytes(),
            age: raw.ledger.age.get(),
        },
        log: LogSettings {
            format: raw.log.format,
            level: raw.log.level,
            decisions: raw.log.decisions,
        },
        feeds: raw
            .feed
            .into_iter()
            .map(|f| FeedPlan {
                name: feed_name(&f.file, &f.queue),
                queue: f.queue,
                file: base.join(&f.file),
            })
            .collect(),
        consumers: raw
            .consumer
            .into_iter()
            .map(|c| consumer(c, base, is_amqp))
            .collect(),
        remarks: Vec::new(),
        origins: Origins::default(),
    }
}

fn broker(raw: RawBroker, worker: &ConsumerName, base: &Base, secrets: Secrets) -> BrokerPlan {
    let (sync, lease) = (raw.sync, raw.lease.get());
    let (url, amqp) = match &raw.url {
        BrokerUrl::Memory => (BrokerUrl::Memory, None),
        BrokerUrl::Embedded(dir) => (BrokerUrl::Embedded(base.join(dir)), None),
        BrokerUrl::Amqp(uris) => {
            let uris = amqp::logged_in(uris, &raw, secrets.broker);
            let amqp = uris
                .first()
                .map(|uri| amqp::resolve(&raw, uri, worker, base, secrets.management));
            (BrokerUrl::Amqp(uris), amqp)
        }
    };
    BrokerPlan {
        url,
        sync: match sync {
            SyncWord::Always => Sync::Always,
            SyncWord::Interval => Sync::Interval,
        },
        lease,
        amqp,
    }
}

/// Names a feed by its file as configured and its queue.
pub(super) fn feed_name(file: &Path, queue: &QueueName) -> String {
    format!("{} -> {queue}", file.display())
}

/// Without a burst of its own, a rate may start at once what it allows in a second.
fn burst(rate: Option<Rate>, burst: Option<u32>) -> u32 {
    let per_second = rate.map_or(1.0, |rate| rate.per_second());
    // Saturates: the rate's count is a u32, so its rate per second fits.
    burst.unwrap_or((per_second.ceil() as u32).max(1))
}

fn consumer(raw: RawConsumer, base: &Base, is_amqp: bool) -> ConsumerPlan {
    let (on_channel_lost, on_lease_lost) = match raw.on_lease_lost {
        LeaseLostWord::Auto => (OnLeaseLost::Finish, OnLeaseLost::Abort),
        LeaseLostWord::Finish => (OnLeaseLost::Finish, OnLeaseLost::Finish),
        LeaseLostWord::Abort => (OnLeaseLost::Abort, OnLeaseLost::Abort),
    };
    let is_chosen = raw.on_exhausted.is_some();
    ConsumerPlan {
        name: raw.name,
        queue: raw.queue,
        partitions: raw.partitions.get(),
        profile: raw.profile,
        order: raw.order,
        permits: raw.permits.get(),
        prefetch: raw.prefetch,
        handler_timeout: raw.handler_timeout.get(),
        abort_grace: raw.abort_grace,
        settle_timeout: raw.settle_timeout.get(),
        publish_timeout: raw.publish_timeout.get(),
        publish_give_up: raw.publish_give_up.get().max(raw.publish_timeout.get()),
        reply_queue: raw.reply_queue,
        dead_letter_queue: raw.dead_letter_queue,
        max_message_bytes: raw.max_message_bytes.bytes(),
        max_headers: raw.max_headers.get(),
        crash_loop_limit: raw.crash_loop_limit.get(),
        on_channel_lost,
        on_lease_lost,
        // The other brokers have a dead list.
        on_refused: if is_chosen || !is_amqp {
            OnRefused::Reject
        } else {
            OnRefused::Park
        },
        on_exhausted: raw.on_exhausted,
        on_consumer_timeout: raw.on_consumer_timeout,
        priority: raw.priority.map(|priority| priority.0),
        consume_arguments: raw.consume_arguments.0.clone(),
        partitioning: raw.partitioning,
        single_active: raw
            .single_active_consumer
            .unwrap_or(raw.order == Order::Partition),
        retry: RetryPlan {
            max_attempts: raw.retry.max_attempts.get(),
            backoff: Backoff {
                base: raw.retry.backoff_base,
                max: raw.retry.backoff_max,
            },
            via: raw.retry.via,
            way: match raw.retry.via {
                RetryVia::Broker if is_amqp => RetryWay::Ladder,
                RetryVia::Broker => RetryWay::Broker,
                RetryVia::Hold => RetryWay::Hold,
            },
        },
        handler: match raw.handler {
            RawHandler::Echo => HandlerPlan::Echo,
            RawHandler::Discard => HandlerPlan::Discard,
            RawHandler::Log => HandlerPlan::Log,
            RawHandler::Command(raw) => HandlerPlan::Command(command(raw, base)),
        },
    }
}

fn command(raw: RawCommand, base: &Base) -> CommandPlan {
    let mut argv = raw.command.0;
    if let Some(program) = argv.first_mut() {
        *program = base.program(program);
    }
    CommandPlan {
        argv,
        env: raw.env,
        headers: raw.headers,
        cwd: raw.cwd.map(|cwd| base.join(&cwd)),
        stdout_limit: raw.stdout_limit.bytes(),
        stderr_tail: raw.stderr_tail.bytes(),
        other_exit: raw.exit_codes.other,
    }
}
