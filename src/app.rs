//! The composition root: makes broker, handlers and engine of a plan. The one place that knows
//! every layer.

mod amqp;
mod told;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use acquit_actors::limiter::{LimiterLimits, Rate};
use acquit_actors::model::{QueueName, RetryWay};
use acquit_actors::ports::{
    BoxFuture, Observer, PublishReply, Publisher, Transport, TransportError,
};
use acquit_actors::supervision::Intensity;
use acquit_actors::{
    ConsumerSpec, Engine, Handle, LedgerLimits, Prefetch, RetryPolicy, StartError,
};
use base64::Engine as _;
use serde_json::{Value, json};

use crate::config::{
    self, BrokerUrl, ConsumerPlan, ExitMeaning, HandlerPlan, Order, Plan, Problem, Severity,
};
use crate::control::{Desk, DeskError, QueueDepth};
use crate::feed::{FileFeedSettings, file_feed, parse_line};
use crate::handlers::{self, CommandSpec, ExitTable, ExitVerdict, HandlerError, HandlerSpec};
use crate::transport::amqp::topology::{Prepared, TopologyError, prepare};
use crate::transport::amqp::{AmqpOptions, AmqpTransport, AmqpUri};
use crate::transport::embedded::{
    EmbeddedError, EmbeddedOptions, EmbeddedTransport, Location, Sync,
};

pub use amqp::amqp_options;
pub use told::{broker_told, consumer_limits};
use told::{gives_up_nothing, hold_limit};

/// Why an application could not be made of a plan.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AppError {
    /// The broker could not be opened, or refuses a queue.
    #[error(transparent)]
    Broker(#[from] EmbeddedError),
    /// A RabbitMQ could not be reached, or refuses what the plan needs.
    #[error("the broker {address}")]
    Amqp {
        /// Its addresses.
        address: String,
        /// Why.
        source: Box<TopologyError>,
    },
    /// The transport could not be made.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// A handler can never run.
    #[error("consumer {consumer:?}: {source}")]
    Handler {
        /// Whose.
        consumer: String,
        /// Why.
        source: HandlerError,
    },
    /// The broker cannot do what the plan asks for.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Plan(Vec<String>),
    /// The engine did not start.
    #[error(transparent)]
    Start(#[from] StartError),
}

impl AppError {
    /// Tells whether the configuration, or what it names, must be changed.
    pub fn is_configuration(&self) -> bool {
        match self {
            Self::Handler { .. } | Self::Plan(_) => true,
            Self::Broker(error) => !error.is_transient(),
            Self::Transport(TransportError::Configuration(_)) => true,
            Self::Start(_) | Self::Amqp { .. } | Self::Transport(_) => false,
        }
    }
}

/// The broker of a plan, opened.
#[derive(Debug, Clone)]
pub enum Broker {
    /// In this process.
    Embedded(EmbeddedTransport),
    /// A RabbitMQ.
    Amqp {
        /// The transport.
        transport: AmqpTransport,
        /// How it is used.
        options: Arc<AmqpOptions>,
    },
}

impl Broker {
    /// Gives the transport.
    pub fn transport(&self) -> Arc<dyn Transport> {
        match self {
            Self::Embedded(embedded) => Arc::new(embedded.clone()),
            Self::Amqp { transport, .. } => Arc::new(transport.clone()),
        }
    }

    /// Gives the desk of a plan on it.
    pub fn desk(&self, plan: &Plan) -> Arc<dyn Desk> {
        match self {
            Self::Embedded(embedded) => Arc::new(EmbeddedDesk::new(plan, embedded)),
            Self::Amqp { transport, .. } => Arc::new(AmqpDesk::new(plan, transport)),
        }
    }
}

/// What was found out about a broker before anything runs on it.
#[derive(Debug, Clone, Default)]
pub struct Readiness {
    /// What a RabbitMQ said; `None` for the embedded broker.
    pub prepared: Option<Prepared>,
}

/// Opens the broker of a plan. A RabbitMQ is not asked yet: see [`make_ready`].
///
/// # Errors
/// [`AppError::Broker`], [`AppError::Transport`].
pub fn open_broker(plan: &Plan) -> Result<Broker, AppError> {
    if let Some(options) = amqp_options(plan) {
        let transport = AmqpTransport::open(options.clone())?;
        let options = Arc::new(options);
        return Ok(Broker::Amqp { transport, options });
    }
    let location = match &plan.broker.url {
        BrokerUrl::Embedded(dir) => Location::Dir(dir.clone()),
        _ => Location::Memory,
    };
    let sync = match plan.broker.sync {
        config::Sync::Always => Sync::Always,
        config::Sync::Interval => Sync::Interval,
    };
    let options = EmbeddedOptions::new(location)
        .with_sync(sync)
        .with_lease(plan.broker.lease);
    Ok(Broker::Embedded(EmbeddedTransport::open(options)?))
}

/// Makes the queues of a plan, or asks a RabbitMQ whether it is there, takes us, and has what the
/// plan needs. A RabbitMQ that cannot be reached is tried as often as `first-connect-tries` says;
/// one that refuses us is not asked again.
///
/// # Errors
/// [`AppError::Broker`] when a queue is there with another number of partitions,
/// [`AppError::Amqp`].
pub async fn make_ready(plan: &Plan, broker: &Broker) -> Result<Readiness, AppError> {
    match broker {
        Broker::Embedded(embedded) => {
            for (queue, partitions) in plan.queues() {
                let partitions = NonZeroU32::new(partitions).unwrap_or(NonZeroU32::MIN);
                embedded.ensure_queue(&queue, partitions).await?;
            }
            Ok(Readiness::default())
        }
        Broker::Amqp { options, .. } => {
            let prepared = first_connection(options).await?;
            Ok(Readiness {
                prepared: Some(prepared),
            })
        }
    }
}

async fn first_connection(options: &AmqpOptions) -> Result<Prepared, AppError> {
    let mut tries = 0_u32;
    loop {
        tries = tries.saturating_add(1);
        let source = match prepare(options).await {
            Ok(prepared) => return Ok(prepared),
            Err(source) => source,
        };
        let passes = match &source {
            TopologyError::Amqp(error) => !error.is_permanent(),
            TopologyError::Management(_) => true,
            _ => false,
        };
        let last = options.first_connect_tries;
        if !passes || (last > 0 && tries >= last) {
            let addresses: Vec<String> = options.uris.iter().map(AmqpUri::address).collect();
            let address = addresses.join(", ");
            let source = Box::new(source);
            return Err(AppError::Amqp { address, source });
        }
        let wait = options.backoff.delay(tries, rand::random());
        tracing::warn!("the broker is not ready, next try in {wait:?}: {source}");
        tokio::time::sleep(wait).await;
    }
}

/// Starts the engine of a plan.
///
/// # Errors
/// See [`AppError`].
pub fn start(
    plan: &Plan,
    broker: &Broker,
    readiness: &Readiness,
    observer: Arc<dyn Observer>,
    max_deliveries: Option<u64>,
) -> Result<Handle, AppError> {
    let transport = broker.transport();
    let refused: Vec<String> = plan
        .check_capabilities(&transport.capabilities())
        .iter()
        .filter(|problem| problem.severity == Severity::Error)
        .map(|problem: &Problem| problem.line(&plan.file))
        .collect();
    if !refused.is_empty() {
        return Err(AppError::Plan(refused));
    }
    let mut engine = Engine::new(transport)
        .with_observer(observer)
        .with_limits(LimiterLimits {
            permits: plan.limiter.permits,
            in_flight_bytes: plan.limiter.in_flight_bytes,
            rate: plan
                .limiter
                .rate
                .and_then(|rate| rate_of(rate, plan.limiter.burst)),
        })
        .with_drain_timeout(plan.shutdown.drain_timeout)
        .with_intensity(Intensity {
            restarts: plan.supervision.intensity,
            period: plan.supervision.period,
        })
        .with_restart_backoff(plan.supervision.backoff)
        .with_ledger_limits(LedgerLimits {
            entries: plan.ledger.entries,
            bytes: plan.ledger.bytes,
            age: plan.ledger.age,
        })
        .with_max_deliveries(max_deliveries);
    for consumer in &plan.consumers {
        let mut spec = consumer_spec(consumer, max_deliveries)?;
        if let Some(prepared) = &readiness.prepared
            && spec.retry.way == RetryWay::Ladder
            && let Some(why) = prepared.without_ladder.get(&consumer.name)
        {
            tracing::warn!(
                "consumer {}: its retries are held here: {why}",
                consumer.name
            );
            spec.retry.way = RetryWay::Hold;
        }
        let prepared = readiness.prepared.as_ref();
        spec.hold_limit = hold_limit(plan, consumer, prepared.map(|prepared| &prepared.facts));
        if spec.prefetch == Prefetch::Auto
            && prepared.is_some_and(|prepared| gives_up_nothing(consumer, &prepared.facts))
        {
            spec.prefetch = Prefetch::Ahead;
        }
        engine = engine.with_consumer(spec);
    }
    for feed in &plan.feeds {
        engine = engine.with_feed(file_feed(FileFeedSettings {
            name: feed.name.clone(),
            queue: feed.queue.clone(),
            path: feed.file.clone(),
            set_aside_dir: plan.worker.state_dir.clone(),
        }));
    }
    Ok(engine.start()?)
}

fn rate_of(rate: config::Rate, burst: u32) -> Option<Rate> {
    let count = NonZeroU32::new(rate.count)?;
    Some(Rate::new(count, rate.period).with_burst(NonZeroU32::new(burst)?))
}

fn consumer_spec(
    plan: &ConsumerPlan,
    max_deliveries: Option<u64>,
) -> Result<ConsumerSpec, AppError> {
    let handler = handlers::build(&handler_spec(plan)).map_err(|source| AppError::Handler {
        consumer: plan.name.to_string(),
        source,
    })?;
    let prefetch = match plan.prefetch {
        // A job takes no more than it may settle.
        _ if max_deliveries.is_some() => Prefetch::Count(NonZeroU32::MIN),
        config::Prefetch::Auto => Prefetch::Auto,
        config::Prefetch::Fixed(count) => {
            Prefetch::Count(NonZeroU32::new(count).unwrap_or(NonZeroU32::MIN))
        }
    };
    Ok(
        ConsumerSpec::new(plan.name.clone(), plan.queue.clone(), handler)
            .with_permits(plan.permits)
            .with_partitions(plan.partitions)
            .with(|spec| {
                spec.prefetch = prefetch;
                spec.ordered = plan.order == Order::Partition;
                spec.handler_timeout = plan.handler_timeout;
                spec.reply_queue = plan.reply_queue.clone();
                spec.dead_letter_queue = plan.dead_letter_queue.clone();
                spec.retry = RetryPolicy {
                    max_attempts: NonZeroU32::new(plan.retry.max_attempts)
                        .unwrap_or(NonZeroU32::MIN),
                    backoff: plan.retry.backoff,
                    way: plan.retry.way,
                };
                spec.max_message_bytes = plan.max_message_bytes;
                spec.max_headers = plan.max_headers as usize;
                spec.crash_loop_limit = plan.crash_loop_limit;
                spec.settle_timeout = plan.settle_timeout;
                spec.publish_timeout = plan.publish_timeout;
                spec.publish_give_up = plan.publish_give_up;
                spec.on_channel_lost = plan.on_channel_lost;
                spec.on_lease_lost = plan.on_lease_lost;
                spec.on_refused = plan.on_refused;
                spec.give_back_at_limit =
                    plan.on_consumer_timeout == config::OnConsumerTimeout::GiveBack;
            }),
    )
}

fn handler_spec(plan: &ConsumerPlan) -> HandlerSpec {
    match &plan.handler {
        HandlerPlan::Echo => HandlerSpec::Echo,
        HandlerPlan::Discard => HandlerSpec::Discard,
        HandlerPlan::Log => HandlerSpec::Log,
        HandlerPlan::Command(command) => {
            let mut spec = CommandSpec::new(command.argv.clone())
                .with_env(command.env.clone())
                .with_headers(command.headers.clone())
                .with_abort_grace(plan.abort_grace);
            spec.cwd = command.cwd.clone();
            spec.stdout_limit = usize::try_from(command.stdout_limit).unwrap_or(usize::MAX);
            spec.stderr_tail = usize::try_from(command.stderr_tail).unwrap_or(usize::MAX);
            spec.exit_table = ExitTable {
                other: match command.other_exit {
                    ExitMeaning::Failed => ExitVerdict::Retry,
                    ExitMeaning::Rejected => ExitVerdict::Reject,
                },
                ..ExitTable::default()
            };
            HandlerSpec::Command(spec)
        }
    }
}

/// What commands may do with the queues of the embedded broker.
#[derive(Debug, Clone)]
pub struct EmbeddedDesk {
    broker: EmbeddedTransport,
    queues: Vec<QueueName>,
}

impl EmbeddedDesk {
    /// Makes the desk of a plan.
    pub fn new(plan: &Plan, broker: &EmbeddedTransport) -> Self {
        let queues = plan.queues().into_keys().collect();
        Self {
            broker: broker.clone(),
            queues,
        }
    }
}

impl Desk for EmbeddedDesk {
    fn publish(&self, queue: String, lines: Vec<String>) -> BoxFuture<'_, Result<u64, DeskError>> {
        Box::pin(publish_lines(self.broker.publisher(), queue, lines))
    }

    fn get(
        &self,
        queue: String,
        take: bool,
        dead: bool,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Value>, DeskError>> {
        Box::pin(async move {
            let name = QueueName::from(queue);
            let failed = |error: EmbeddedError| match error {
                EmbeddedError::NoSuchQueue { .. } => DeskError(format!(
                    "there is no queue {name:?}; there are: {}",
                    list(&self.broker.queues())
                )),
                other => DeskError(other.to_string()),
            };
            if dead {
                let messages = self.broker.dead_list(&name, limit).await.map_err(failed)?;
                return Ok(messages
                    .iter()
                    .map(|dead| {
                        let mut value = message_json(&dead.delivery, dead.seq);
                        value["reason"] = json!(dead.reason);
                        value["died-millis"] = json!(dead.died_millis);
                        value
                    })
                    .collect());
            }
            let deliveries = if take {
                self.broker.take(&name, limit).await.map_err(failed)?
            } else {
                let peeked = self.broker.peek(&name, limit).await.map_err(failed)?;
                peeked.into_iter().map(|peeked| peeked.delivery).collect()
            };
            Ok(deliveries
                .iter()
                .map(|delivery| message_json(delivery, delivery.sequence.unwrap_or(0)))
                .collect())
        })
    }

    fn depths(&self) -> BoxFuture<'_, BTreeMap<QueueName, QueueDepth>> {
        Box::pin(async move {
            let mut depths = BTreeMap::new();
            for queue in &self.queues {
                // A queue that cannot be counted now is left out rather than told as empty.
                if let Ok(stats) = self.broker.stats(queue).await {
                    let total = stats.total();
                    let depth = QueueDepth {
                        ready: total.ready,
                        delayed: total.delayed,
                        leased: total.leased,
                        dead: total.dead,
                        oldest_ms: total
                            .oldest_age
                            .map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX)),
                    };
                    depths.insert(queue.clone(), depth);
                }
            }
            depths
        })
    }
}

/// Publishes lines in the feed's format.
async fn publish_lines(
    publisher: Arc<dyn Publisher>,
    queue: String,
    lines: Vec<String>,
) -> Result<u64, DeskError> {
    let queue = QueueName::from(queue);
    let mut messages = Vec::with_capacity(lines.len());
    for (number, line) in (1..).zip(&lines) {
        let message = parse_line(line.as_bytes(), &queue)
            .map_err(|error| DeskError(format!("line {number}: {error}")))?;
        messages.push(message);
    }
    let answers: Vec<_> = messages
        .into_iter()
        .map(|message| {
            let (reply, answer) = PublishReply::channel();
            publisher.publish(message, reply);
            answer
        })
        .collect();
    let (mut confirmed, mut refused) = (0, Vec::new());
    for (number, answer) in (1..).zip(answers) {
        match answer.await {
            Ok(Ok(())) => confirmed += 1,
            Ok(Err(error)) => refused.push((number, error.to_string())),
            Err(_) => refused.push((number, "no answer".to_owned())),
        }
    }
    if let Some((_, error)) = refused.first() {
        let numbers: Vec<u64> = refused.iter().map(|(number, _)| *number).collect();
        return Err(DeskError(format!(
            "{confirmed} published; not published: line {}: {error}",
            ranges(&numbers)
        )));
    }
    Ok(confirmed)
}

/// Writes ascending numbers down, those that follow each other as a range: `1-3, 7`.
fn ranges(numbers: &[u64]) -> String {
    let follows = |before: &u64, after: &u64| before + 1 == *after;
    let range = |run: &[u64]| match run {
        [first, .., last] => format!("{first}-{last}"),
        one => one.first().map_or_else(String::new, u64::to_string),
    };
    let ranges: Vec<String> = numbers.chunk_by(follows).map(range).collect();
    ranges.join(", ")
}

/// What commands may do with the queues of a RabbitMQ.
#[derive(Debug, Clone)]
pub struct AmqpDesk {
    broker: AmqpTransport,
    queues: Vec<QueueName>,
}

impl AmqpDesk {
    /// Makes the desk of a plan.
    pub fn new(plan: &Plan, broker: &AmqpTransport) -> Self {
        Self {
            broker: broker.clone(),
            queues: plan.queues().into_keys().collect(),
        }
    }
}

impl Desk for AmqpDesk {
    fn publish(&self, queue: String, lines: Vec<String>) -> BoxFuture<'_, Result<u64, DeskError>> {
        Box::pin(publish_lines(self.broker.publisher(), queue, lines))
    }

    fn get(
        &self,
        _queue: String,
        _take: bool,
        _dead: bool,
        _limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Value>, DeskError>> {
        // To look at a message RabbitMQ has to hand it out, which counts against its limit.
        let text =
            "get reads the embedded broker only; dead letters of a RabbitMQ are looked at with dlq";
        Box::pin(std::future::ready(Err(DeskError(text.to_owned()))))
    }

    fn depths(&self) -> BoxFuture<'_, BTreeMap<QueueName, QueueDepth>> {
        Box::pin(async move {
            let mut depths = BTreeMap::new();
            for queue in &self.queues {
                if let Some((ready, delayed)) = self.broker.depth(queue).await {
                    let depth = QueueDepth {
                        ready,
                        delayed,
                        ..QueueDepth::default()
                    };
                    depths.insert(queue.clone(), depth);
                }
            }
            depths
        })
    }
}

fn list(queues: &[QueueName]) -> String {
    let names: Vec<&str> = queues.iter().map(QueueName::as_str).collect();
    names.join(", ")
}

/// Writes a message as the JSON that `get` prints: one that `publish` can read again.
fn message_json(delivery: &acquit_actors::model::Delivery, seq: u64) -> Value {
    let mut value = json!({
        "queue": delivery.queue,
        "partition": delivery.partition,
        "seq": seq,
        "id": delivery.id,
    });
    if let Some(key) = &delivery.key {
        value["key"] = json!(key);
    }
    if let Some(correlation) = &delivery.correlation_id {
        value["correlation-id"] = json!(correlation);
    }
    if delivery.attempt.get() > 1 {
        value["attempt"] = json!(delivery.attempt);
    }
    if !delivery.headers.is_empty() {
        value["headers"] = json!(delivery.headers);
    }
    match std::str::from_utf8(&delivery.body) {
        Ok(text) => value["body"] = json!(text),
        Err(_) => {
            let engine = base64::engine::general_purpose::STANDARD;
            value["body-base64"] = json!(engine.encode(&delivery.body));
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_told_as_ranges() {
        let check = |numbers: &[u64], text: &str| assert_eq!(ranges(numbers), text);
        check(&[], "");
        check(&[4], "4");
        check(&[1, 2, 3, 7, 9, 10], "1-3, 7, 9-10");
    }

    /// A program that leaves a setting alone gets what a configuration that leaves it out gets.
    #[test]
    fn a_consumer_has_one_set_of_defaults() {
        let text = "[[consumer]]\nname = \"c\"\nqueue = \"q\"\nhandler = \"discard\"\n";
        let plan = Plan::from_str(text, "c.toml").unwrap();
        let configured = consumer_spec(&plan.consumers[0], None).unwrap();
        let embedded = ConsumerSpec::new("c", "q", configured.handler.clone());
        assert_eq!(format!("{configured:?}"), format!("{embedded:?}"));
    }
}
