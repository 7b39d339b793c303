//! The raw configuration: mirrors `config.toml` one to one, defaults included. Single values are
//! read and in range; whether they fit together is for [`check`](super::check) to say, and what
//! they mean for [`plan`](super::plan).

use std::path::PathBuf;
use std::time::Duration;

use acquit_actors::model::{ConsumerName, QueueName};
use toml::de::DeTable;

use super::raw_broker::RawBroker;
use super::reader::{Environment, Read, Reader, Section};
use super::value::{Arguments, Argv, Choice, Count, Leaf, Positive, Rate, Size, Whole, Wrong};
use crate::telemetry::{LogFormat, LogLevel};

/// A number of permits.
pub(super) type Permits = Count<1, 1_000_000>;

/// The whole file.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Raw {
    /// `[worker]`
    pub worker: RawWorker,
    /// `[broker]`
    pub broker: RawBroker,
    /// `[limiter]`
    pub limiter: RawLimiter,
    /// `[shutdown]`
    pub shutdown: RawShutdown,
    /// `[supervision]`
    pub supervision: RawSupervision,
    /// `[ledger]`
    pub ledger: RawLedger,
    /// `[control]`
    pub control: RawControl,
    /// `[log]`
    pub log: RawLog,
    /// `[[feed]]`
    pub feed: Vec<RawFeed>,
    /// `[[consumer]]`
    pub consumer: Vec<RawConsumer>,
}

/// `[worker]`
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RawWorker {
    /// `name`
    pub name: ConsumerName,
    /// `state-dir`
    pub state_dir: PathBuf,
}

impl Default for RawWorker {
    fn default() -> Self {
        Self {
            name: "acquit".into(),
            state_dir: "./data".into(),
        }
    }
}

/// `[limiter]`
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RawLimiter {
    /// `permits`
    pub permits: Permits,
    /// `in-flight-bytes`
    pub in_flight_bytes: Size,
    /// `rate`
    pub rate: Option<Rate>,
    /// `burst`
    pub burst: Option<Permits>,
}

impl Default for RawLimiter {
    fn default() -> Self {
        Self {
            permits: Permits::new(64),
            in_flight_bytes: Size::new(256 << 20),
            rate: None,
            burst: None,
        }
    }
}

/// `[shutdown]`
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RawShutdown {
    /// `drain-timeout`
    pub drain_timeout: Duration,
}

impl Default for RawShutdown {
    fn default() -> Self {
        Self {
            drain_timeout: Duration::from_secs(22),
        }
    }
}

/// `[supervision]`
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RawSupervision {
    /// `intensity`
    pub intensity: Count<0, 1000>,
    /// `period`
    pub period: Positive,
    /// `backoff-base`
    pub backoff_base: Positive,
    /// `backoff-max`
    pub backoff_max: Positive,
}

impl Default for RawSupervision {
    fn default() -> Self {
        Self {
            intensity: Count::new(1),
            period: Positive::new(Duration::from_secs(5)),
            backoff_base: Positive::new(Duration::from_millis(100)),
            backoff_max: Positive::new(Duration::from_secs(10)),
        }
    }
}

/// `[ledger]`
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RawLedger {
    /// `entries`
    pub entries: Count<0, 10_000_000>,
    /// `bytes`
    pub bytes: Size,
    /// `age`
    pub age: Positive,
}

impl Default for RawLedger {
    fn default() -> Self {
        Self {
            entries: Count::new(10_000),
            bytes: Size::new(32 << 20),
            age: Positive::new(Duration::from_secs(3600)),
        }
    }
}

/// `[control]`
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RawControl {
    /// `listen`
    pub listen: ListenWord,
}

impl Default for RawControl {
    fn default() -> Self {
        Self {
            listen: ListenWord::Socket,
        }
    }
}

/// `control.listen`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ListenWord {
    /// `socket`
    Socket,
}

impl Choice for ListenWord {
    const WORDS: &'static [(&'static str, Self)] = &[("socket", Self::Socket)];
}

/// `[log]`
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RawLog {
    /// `format`
    pub format: LogFormat,
    /// `level`
    pub level: LogLevel,
    /// `decisions`
    pub decisions: bool,
}

impl Default for RawLog {
    fn default() -> Self {
        Self {
            format: LogFormat::Text,
            level: LogLevel::Info,
            decisions: true,
        }
    }
}

impl Choice for LogFormat {
    const WORDS: &'static [(&'static str, Self)] = &[("text", Self::Text), ("json", Self::Json)];
}

impl Choice for LogLevel {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("off", Self::Off),
        ("error", Self::Error),
        ("warn", Self::Warn),
        ("info", Self::Info),
        ("debug", Self::Debug),
        ("trace", Self::Trace),
    ];
}

/// `[[feed]]`
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RawFeed {
    /// `queue`
    pub queue: QueueName,
    /// `file`
    pub file: PathBuf,
}

/// `[[consumer]]`
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RawConsumer {
    /// `name`
    pub name: ConsumerName,
    /// `queue`
    pub queue: QueueName,
    /// `partitions`
    pub partitions: Count<1, 1024>,
    /// `profile`
    pub profile: Profile,
    /// `order`
    pub order: Order,
    /// `permits`
    pub permits: Permits,
    /// `prefetch`
    pub prefetch: Prefetch,
    /// `handler-timeout`
    pub handler_timeout: Positive,
    /// `abort-grace`
    pub abort_grace: Duration,
    /// `settle-timeout`
    pub settle_timeout: Positive,
    /// `publish-timeout`
    pub publish_timeout: Positive,
    /// `publish-give-up`
    pub publish_give_up: Positive,
    /// `reply-queue`
    pub reply_queue: Option<QueueName>,
    /// `dead-letter-queue`
    pub dead_letter_queue: Option<QueueName>,
    /// `on-exhausted`
    pub on_exhausted: Option<OnExhausted>,
    /// `priority`
    pub priority: Option<Whole>,
    /// `consume-arguments`
    pub consume_arguments: Arguments,
    /// `partitioning`
    pub partitioning: Partitioning,
    /// `single-active-consumer`
    pub single_active_consumer: Option<bool>,
    /// `on-consumer-timeout`
    pub on_consumer_timeout: OnConsumerTimeout,
    /// `max-message-bytes`
    pub max_message_bytes: Size,
    /// `max-headers`
    pub max_headers: Count<0, 100_000>,
    /// `crash-loop-limit`
    pub crash_loop_limit: Count<1, 1_000_000>,
    /// `on-lease-lost`
    pub on_lease_lost: LeaseLostWord,
    /// `[consumer.retry]`
    pub retry: RawRetry,
    /// `handler`, or `[consumer.handler]`
    pub handler: RawHandler,
}

impl RawConsumer {
    fn new(name: ConsumerName, queue: QueueName) -> Self {
        Self {
            name,
            queue,
            partitions: Count::new(1),
            profile: Profile::Raw,
            order: Order::None,
            permits: Permits::new(16),
            prefetch: Prefetch::Auto,
            handler_timeout: Positive::new(Duration::from_secs(30)),
            abort_grace: Duration::from_secs(2),
            settle_timeout: Positive::new(Duration::from_secs(5)),
            publish_timeout: Positive::new(Duration::from_secs(5)),
            publish_give_up: Positive::new(Duration::from_secs(60)),
            reply_queue: None,
            dead_letter_queue: None,
            on_exhausted: None,
            priority: None,
            consume_arguments: Arguments::default(),
            partitioning: Partitioning::Direct,
            single_active_consumer: None,
            on_consumer_timeout: OnConsumerTimeout::Keep,
            max_message_bytes: Size::new(16 << 20),
            max_headers: Count::new(256),
            crash_loop_limit: Count::new(20),
            on_lease_lost: LeaseLostWord::Auto,
            retry: RawRetry::default(),
            handler: RawHandler::Discard,
        }
    }
}

/// What becomes of a message that is rejected or used up its attempts, where there is no
/// dead-letter queue and the broker keeps no dead list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnExhausted {
    /// It is rejected: the queue's own dead-letter exchange gets it, if it has one.
    Broker,
    /// It is acknowledged, and gone.
    Drop,
}

impl Choice for OnExhausted {
    const WORDS: &'static [(&'static str, Self)] =
        &[("broker", Self::Broker), ("drop", Self::Drop)];
}

/// How other producers reach the partitions of a queue at a RabbitMQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Partitioning {
    /// They publish to the partitions' queues by name.
    None,
    /// An exchange named as the queue: the routing key is the partition's number.
    Direct,
    /// An exchange named as the queue: the broker hashes the routing key.
    ConsistentHash,
}

impl Choice for Partitioning {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("none", Self::None),
        ("direct", Self::Direct),
        ("consistent-hash", Self::ConsistentHash),
    ];
}

/// What becomes of a delivery that is held almost as long as a RabbitMQ allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnConsumerTimeout {
    /// It goes on. The broker then closes its channel; the redelivery is adopted by the work that
    /// still runs.
    Keep,
    /// It is stopped and given back before, so that its neighbours keep their channel.
    GiveBack,
}

impl Choice for OnConsumerTimeout {
    const WORDS: &'static [(&'static str, Self)] =
        &[("keep", Self::Keep), ("give-back", Self::GiveBack)];
}

/// The wire contract a consumer speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Profile {
    /// Bytes as they come.
    Raw,
}

impl Choice for Profile {
    const WORDS: &'static [(&'static str, Self)] = &[("raw", Self::Raw)];
    const NOT_BUILT: &'static [&'static str] = &["task", "topic"];
}

/// What order a consumer keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Order {
    /// None: as many at once as there are permits.
    None,
    /// One at a time in each partition, in the order of the queue.
    Partition,
}

impl Order {
    /// Gives the word of the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Partition => "partition",
        }
    }
}

impl Choice for Order {
    const WORDS: &'static [(&'static str, Self)] =
        &[("none", Self::None), ("partition", Self::Partition)];
    const NOT_BUILT: &'static [&'static str] = &["key"];
}

/// How many deliveries each partition holds ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prefetch {
    /// By the permits.
    Auto,
    /// This many.
    Fixed(u32),
}

impl Leaf for Prefetch {
    fn expected() -> String {
        format!("\"auto\" or {}", Count::<1, 65_535>::expected())
    }

    fn read(value: &toml::de::DeValue<'_>) -> Result<Self, Wrong> {
        match value.as_str() {
            Some("auto") => Ok(Self::Auto),
            _ if Count::<0, 0>::read(value).is_ok() => Err(Wrong::Value {
                found: "0, which a broker would take as unlimited".to_owned(),
                nearest: None,
            }),
            _ => Count::<1, 65_535>::read(value).map(|count| Self::Fixed(count.get())),
        }
    }
}

/// `consumer.on-lease-lost`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeaseLostWord {
    /// `auto`
    Auto,
    /// `finish`
    Finish,
    /// `abort`
    Abort,
}

impl Choice for LeaseLostWord {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("auto", Self::Auto),
        ("finish", Self::Finish),
        ("abort", Self::Abort),
    ];
}

/// `[consumer.retry]`
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RawRetry {
    /// `max-attempts`
    pub max_attempts: Count<1, 1_000_000>,
    /// `backoff-base`
    pub backoff_base: Duration,
    /// `backoff-max`
    pub backoff_max: Duration,
    /// `via`
    pub via: RetryVia,
}

impl Default for RawRetry {
    fn default() -> Self {
        Self {
            max_attempts: Count::new(5),
            backoff_base: Duration::from_secs(2),
            backoff_max: Duration::from_secs(30),
            via: RetryVia::Broker,
        }
    }
}

/// Who keeps a message until its next attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryVia {
    /// The broker, in the way its transport has.
    Broker,
    /// We, without a permit.
    Hold,
}

impl Choice for RetryVia {
    const WORDS: &'static [(&'static str, Self)] =
        &[("broker", Self::Broker), ("hold", Self::Hold)];
}

/// `handler`
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub(super) enum RawHandler {
    /// `echo`
    Echo,
    /// `discard`
    Discard,
    /// `log`
    Log,
    /// A table with `command`
    Command(RawCommand),
}

/// A handler's word.
#[derive(Clone, Copy)]
enum HandlerWord {
    Echo,
    Discard,
    Log,
}

impl Leaf for HandlerWord {
    fn expected() -> String {
        "\"echo\", \"discard\", \"log\" or a table such as { command = [\"wc\", \"-w\"] }"
            .to_owned()
    }

    fn read(value: &toml::de::DeValue<'_>) -> Result<Self, Wrong> {
        match value.as_str() {
            Some("echo") => Ok(Self::Echo),
            Some("discard") => Ok(Self::Discard),
            Some("log") => Ok(Self::Log),
            _ => Err(Wrong::shape(value)),
        }
    }
}

/// `[consumer.handler]` with a command
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RawCommand {
    /// `command`
    pub command: Argv,
    /// `env`
    pub env: Vec<String>,
    /// `headers`
    pub headers: Vec<String>,
    /// `cwd`
    pub cwd: Option<PathBuf>,
    /// `stdout-limit`
    pub stdout_limit: Size,
    /// `stderr-tail`
    pub stderr_tail: Size,
    /// `exit-codes`
    pub exit_codes: RawExitCodes,
}

impl Default for RawCommand {
    fn default() -> Self {
        Self {
            command: Argv::default(),
            env: Vec::new(),
            headers: Vec::new(),
            cwd: None,
            stdout_limit: Size::new(1 << 20),
            stderr_tail: Size::new(8 << 10),
            exit_codes: RawExitCodes::default(),
        }
    }
}

/// `exit-codes`
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RawExitCodes {
    /// `other`
    pub other: ExitMeaning,
}

impl Default for RawExitCodes {
    fn default() -> Self {
        Self {
            other: ExitMeaning::Failed,
        }
    }
}

/// What an exit code means that has no meaning of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitMeaning {
    /// The attempt failed and may work later.
    Failed,
    /// It will never work.
    Rejected,
}

impl Choice for ExitMeaning {
    const WORDS: &'static [(&'static str, Self)] =
        &[("failed", Self::Failed), ("rejected", Self::Rejected)];
}

impl Raw {
    /// Reads the tree. What is wrong keeps its default, so that the rest can still be checked.
    pub(super) fn read<'t>(
        text: &'t str,
        table: &'t DeTable<'t>,
        environment: &'t Environment,
    ) -> (Self, Read) {
        let mut reader = Reader::new(text, environment);
        let mut raw = Self::default();
        let mut root = reader.root(table);
        raw.worker.read(root.section("worker"));
        raw.broker.read(root.section("broker"));
        raw.limiter.read(root.section("limiter"));
        raw.shutdown.read(root.section("shutdown"));
        raw.supervision.read(root.section("supervision"));
        raw.ledger.read(root.section("ledger"));
        raw.control.read(root.section("control"));
        raw.log.read(root.section("log"));
        root.sections("feed", |section| raw.feed.push(RawFeed::read(section)));
        root.sections("consumer", |section| {
            raw.consumer.push(RawConsumer::read(section));
        });
        root.finish();
        (raw, reader.finish())
    }
}

impl RawWorker {
    fn read(&mut self, mut section: Section<'_, '_>) {
        section.read("name", &mut self.name);
        section.read("state-dir", &mut self.state_dir);
        section.finish();
    }
}

impl RawLimiter {
    fn read(&mut self, mut section: Section<'_, '_>) {
        section.read("permits", &mut self.permits);
        section.read("in-flight-bytes", &mut self.in_flight_bytes);
        self.rate = section.read_opt("rate");
        self.burst = section.read_opt("burst");
        section.finish();
    }
}

impl RawShutdown {
    fn read(&mut self, mut section: Section<'_, '_>) {
        section.read("drain-timeout", &mut self.drain_timeout);
        section.finish();
    }
}

impl RawSupervision {
    fn read(&mut self, mut section: Section<'_, '_>) {
        section.read("intensity", &mut self.intensity);
        section.read("period", &mut self.period);
        section.read("backoff-base", &mut self.backoff_base);
        section.read("backoff-max", &mut self.backoff_max);
        section.finish();
    }
}

impl RawLedger {
    fn read(&mut self, mut section: Section<'_, '_>) {
        section.read("entries", &mut self.entries);
        section.read("bytes", &mut self.bytes);
        section.read("age", &mut self.age);
        section.finish();
    }
}

impl RawControl {
    fn read(&mut self, mut section: Section<'_, '_>) {
        section.read("listen", &mut self.listen);
        section.finish();
    }
}

impl RawLog {
    fn read(&mut self, mut section: Section<'_, '_>) {
        section.read("format", &mut self.format);
        section.read("level", &mut self.level);
        section.read("decisions", &mut self.decisions);
        section.finish();
    }
}

impl RawFeed {
    /// A feed without its required keys is read too, as a consumer is.
    fn read(section: &mut Section<'_, '_>) -> Self {
        Self {
            queue: section.require("queue").unwrap_or_else(|| "".into()),
            file: section.require("file").unwrap_or_default(),
        }
    }
}

impl RawConsumer {
    /// A consumer without its required keys is read too: its problems are noted, and the numbers
    /// of the others stay what they are in the file.
    fn read(section: &mut Section<'_, '_>) -> Self {
        if let Some(name) = section.peek_text("name") {
            section.address(name);
        }
        let name = section.require("name").unwrap_or_else(|| "".into());
        let queue = section.require("queue").unwrap_or_else(|| "".into());
        let mut raw = Self::new(name, queue);
        section.read("partitions", &mut raw.partitions);
        section.read("profile", &mut raw.profile);
        section.read("order", &mut raw.order);
        section.read("permits", &mut raw.permits);
        section.read("prefetch", &mut raw.prefetch);
        section.read("handler-timeout", &mut raw.handler_timeout);
        section.read("abort-grace", &mut raw.abort_grace);
        section.read("settle-timeout", &mut raw.settle_timeout);
        section.read("publish-timeout", &mut raw.publish_timeout);
        section.read("publish-give-up", &mut raw.publish_give_up);
        raw.reply_queue = section.read_opt("reply-queue");
        raw.dead_letter_queue = section.read_opt("dead-letter-queue");
        raw.on_exhausted = section.read_opt("on-exhausted");
        raw.priority = section.read_opt("priority");
        section.read("consume-arguments", &mut raw.consume_arguments);
        section.read("partitioning", &mut raw.partitioning);
        raw.single_active_consumer = section.read_opt("single-active-consumer");
        section.read("on-consumer-timeout", &mut raw.on_consumer_timeout);
        section.read("max-message-bytes", &mut raw.max_message_bytes);
        section.read("max-headers", &mut raw.max_headers);
        section.read("crash-loop-limit", &mut raw.crash_loop_limit);
        section.read("on-lease-lost", &mut raw.on_lease_lost);
        raw.retry.read(section.section("retry"));
        raw.handler = RawHandler::read(section);
        raw
    }
}

impl RawRetry {
    fn read(&mut self, mut section: Section<'_, '_>) {
        section.read("max-attempts", &mut self.max_attempts);
        section.read("backoff-base", &mut self.backoff_base);
        section.read("backoff-max", &mut self.backoff_max);
        section.read("via", &mut self.via);
        section.finish();
    }
}

impl RawHandler {
    fn read(section: &mut Section<'_, '_>) -> Self {
        if section.is_table("handler") {
            return Self::Command(RawCommand::read(section.section("handler")));
        }
        match section.require("handler") {
            Some(HandlerWord::Echo) => Self::Echo,
            Some(HandlerWord::Log) => Self::Log,
            Some(HandlerWord::Discard) | None => Self::Discard,
        }
    }
}

impl RawCommand {
    fn read(mut section: Section<'_, '_>) -> Self {
        let mut raw = Self {
            command: section.require("command").unwrap_or_default(),
            ..Self::default()
        };
        section.read("env", &mut raw.env);
        section.read("headers", &mut raw.headers);
        raw.cwd = section.read_opt("cwd");
        section.read("stdout-limit", &mut raw.stdout_limit);
        section.read("stderr-tail", &mut raw.stderr_tail);
        let mut codes = section.section("exit-codes");
        codes.read("other", &mut raw.exit_codes.other);
        codes.finish();
        section.finish();
        raw
    }
}
