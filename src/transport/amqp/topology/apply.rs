//! The shell: asks the broker what is there, and declares what is missing. Every answer has a
//! deadline, and nothing is ever deleted or changed.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use acquit_actors::model::ConsumerName;
use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ExchangeKind};

use super::super::classify::classify;
use super::super::error::{AmqpError, Mismatch, Right};
use super::super::facts::BrokerFacts;
use super::super::management::{Management, ManagementError};
use super::super::options::AmqpOptions;
use super::diff::{Change, Existing, QueueState, diff, is_extra};
use super::plan::{BindingSpec, Desired, ExchangeSpec, PlanError, QueueSpec, Role, desired};
use super::rights::{may_read, may_write, needs};

/// More arguments than this that a queue has besides ours are not looked behind.
const EXTRAS_MAX: usize = 8;

/// Why the topology could not be looked at or applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// The configuration is one that no broker can hold.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The broker refused, or did not answer.
    #[error(transparent)]
    Amqp(#[from] AmqpError),
    /// The management API refused, or did not answer.
    #[error(transparent)]
    Management(#[from] ManagementError),
}

impl TopologyError {
    /// Gives the code to exit with.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Plan(_) => 2,
            Self::Amqp(error) => error.exit_code(),
            Self::Management(error) => error.exit_code(),
        }
    }
}

/// What was applied.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct Applied {
    /// What was made, in order.
    pub made: Vec<Change>,
    /// What exists otherwise; where there is any, nothing was made.
    pub refused: Vec<Mismatch>,
    /// Consumers whose retry ladder cannot be had, and why: they must hold their retries.
    pub without_ladder: BTreeMap<ConsumerName, AmqpError>,
}

/// The topology of one configuration at one broker.
#[derive(Debug)]
pub struct Topology<'a> {
    connection: &'a Connection,
    deadline: Duration,
    vhost: String,
    management: Option<Management>,
    wanted: Desired,
}

impl<'a> Topology<'a> {
    /// Plans; nothing is sent.
    ///
    /// # Errors
    /// When no broker can hold the configuration, or the management API's address is not one.
    pub fn new(connection: &'a Connection, options: &AmqpOptions) -> Result<Self, TopologyError> {
        let deadline = options.answer_timeout;
        let management = options.management.as_ref();
        let management = management
            .map(|management| Management::new(management, &options.tls, deadline))
            .transpose()?;
        Ok(Self {
            connection,
            deadline,
            vhost: connection.status().vhost().to_string(),
            management,
            wanted: desired(options)?,
        })
    }

    /// Gives what is wanted.
    pub fn wanted(&self) -> &Desired {
        &self.wanted
    }

    /// Looks at the broker with passive declares, which need no right, and by the management API
    /// where there is one.
    ///
    /// # Errors
    /// When the broker refuses or does not answer; what is missing is no error.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn look(&self) -> Result<Existing, TopologyError> {
        let mut asker = Asker::new(self.connection, self.deadline);
        let mut existing = Existing::default();
        for queue in &self.wanted.queues {
            let state = if !asker.has_queue(queue).await? {
                QueueState::Missing
            } else if let Some(management) = &self.management {
                // A queue that came just now may not be there yet.
                let facts = management.queue(&self.vhost, &queue.name).await?;
                facts.map_or(QueueState::Present, QueueState::Known)
            } else {
                QueueState::Present
            };
            existing.queues.insert(queue.name.clone(), state);
        }
        for exchange in &self.wanted.exchanges {
            let is_there = asker.has_exchange(exchange).await?;
            existing.exchanges.insert(exchange.name.clone(), is_there);
            if let (true, Some(management)) = (is_there, &self.management) {
                let found = management.bindings(&self.vhost, &exchange.name).await?;
                let ours = self.wanted.bindings.iter();
                for binding in ours.filter(|binding| binding.exchange == exchange.name) {
                    let is_bound = found
                        .iter()
                        .any(|(queue, key)| *queue == binding.queue && *key == binding.key);
                    existing.bindings.insert(binding.clone(), is_bound);
                }
            }
        }
        asker.end().await;
        Ok(existing)
    }

    /// Gives what differs at the broker.
    ///
    /// # Errors
    /// As [`look`](Self::look).
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn plan(&self) -> Result<Vec<Change>, TopologyError> {
        Ok(diff(&self.wanted, &self.look().await?))
    }

    /// Finds out whether the user has every right that consuming needs: to read each queue that is
    /// there, and to publish where replies, dead letters or retry copies are. No message is touched.
    ///
    /// # Errors
    /// When the broker does not answer. A right that is missing is in the list.
    ///
    /// # Cancel safety
    /// Safe: it changes nothing.
    pub async fn missing_rights(&self) -> Result<Vec<AmqpError>, AmqpError> {
        let needs = needs(&self.wanted);
        let mut missing = Vec::new();
        for queue in &needs.read {
            keep_permission(
                may_read(self.connection, queue, self.deadline).await,
                &mut missing,
            )?;
        }
        if needs.write {
            keep_permission(
                may_write(self.connection, self.deadline).await,
                &mut missing,
            )?;
        }
        Ok(missing)
    }

    /// Declares what is missing. What is there is first compared, and where anything of it differs
    /// nothing is made at all. Doing it twice changes nothing the second time.
    ///
    /// A rung of the retry ladder that the user may not declare, or that the broker does not know,
    /// fails only its consumer's ladder.
    ///
    /// # Errors
    /// When the broker refuses something else, or does not answer. What was made before stays.
    ///
    /// # Cancel safety
    /// What was declared before it was dropped stays declared.
    pub async fn apply(&self) -> Result<Applied, TopologyError> {
        let existing = self.look().await?;
        let mut applied = Applied::default();
        let mut asker = Asker::new(self.connection, self.deadline);
        let changes = diff(&self.wanted, &existing);
        for change in &changes {
            if let Change::Differs(mismatch) = change {
                applied.refused.push(mismatch.clone());
            }
        }
        for queue in &self.wanted.queues {
            if existing.queues.get(&queue.name) == Some(&QueueState::Present) {
                self.keep(asker.compare(queue).await, queue, &mut applied)?;
            }
        }
        if applied.refused.is_empty() {
            self.make(&changes, &mut asker, &mut applied).await?;
        }
        asker.end().await;
        Ok(applied)
    }

    async fn make(
        &self,
        changes: &[Change],
        asker: &mut Asker<'_>,
        applied: &mut Applied,
    ) -> Result<(), TopologyError> {
        for change in changes {
            match change {
                Change::DeclareQueue(queue) => {
                    let done = asker.declare_queue(queue).await;
                    if self.keep(done, queue, applied)? {
                        applied.made.push(change.clone());
                    }
                }
                Change::DeclareExchange(exchange) => {
                    asker.declare_exchange(exchange).await?;
                    applied.made.push(change.clone());
                }
                Change::Bind(binding) => {
                    asker.bind(binding).await?;
                    applied.made.push(change.clone());
                }
                Change::Differs(_) => {}
            }
        }
        // AMQP cannot tell whether a binding is there; to bind again changes nothing.
        if self.management.is_none() {
            for binding in &self.wanted.bindings {
                asker.bind(binding).await?;
            }
        }
        Ok(())
    }

    /// Sorts out how a declaration went; true where it is done.
    fn keep(
        &self,
        done: Result<(), AmqpError>,
        queue: &QueueSpec,
        applied: &mut Applied,
    ) -> Result<bool, AmqpError> {
        match done {
            Ok(()) => Ok(true),
            Err(AmqpError::Mismatch { mismatch }) => {
                applied.refused.push(mismatch);
                Ok(false)
            }
            Err(
                error @ (AmqpError::NoPermission { .. }
                | AmqpError::Invalid { .. }
                | AmqpError::NotImplemented { .. }
                | AmqpError::LimitReached { .. }),
            ) if queue.role == Role::Rung => {
                let consumer = queue.consumer.clone();
                applied.without_ladder.entry(consumer).or_insert(error);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Asks for what only the management API tells; without one all of it is unknown.
    ///
    /// # Errors
    /// When the API refuses or does not answer.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn facts(&self) -> Result<BrokerFacts, ManagementError> {
        let mut facts = BrokerFacts::default();
        let Some(management) = &self.management else {
            return Ok(facts);
        };
        facts.version = management.version().await?;
        let work = self.wanted.queues.iter();
        for queue in work.filter(|queue| queue.role == Role::Work) {
            if let Some(known) = management.queue(&self.vhost, &queue.name).await? {
                facts.queues.insert(queue.name.clone(), known);
            }
        }
        Ok(facts)
    }
}

fn keep_permission(
    found: Result<(), AmqpError>,
    missing: &mut Vec<AmqpError>,
) -> Result<(), AmqpError> {
    match found {
        // What is not there is told by the plan.
        Ok(()) | Err(AmqpError::Missing { .. }) => Ok(()),
        Err(error @ AmqpError::NoPermission { .. }) => {
            missing.push(error);
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Opens a channel within the deadline.
pub(super) async fn channel(
    connection: &Connection,
    deadline: Duration,
) -> Result<Channel, AmqpError> {
    bounded("channel.open", deadline, connection.create_channel()).await
}

/// Waits for an answer of the broker, at most until the deadline.
pub(super) async fn bounded<T>(
    what: &'static str,
    after: Duration,
    answer: impl Future<Output = lapin::Result<T>>,
) -> Result<T, AmqpError> {
    match tokio::time::timeout(after, answer).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(classify(&error)),
        Err(_) => Err(AmqpError::Timeout { what, after }),
    }
}

/// Asks on one channel, and on a new one after each refusal: a refusal ends a channel.
struct Asker<'a> {
    connection: &'a Connection,
    deadline: Duration,
    channel: Option<Channel>,
}

impl<'a> Asker<'a> {
    fn new(connection: &'a Connection, deadline: Duration) -> Self {
        Self {
            connection,
            deadline,
            channel: None,
        }
    }

    async fn ask<T, F>(
        &mut self,
        what: &'static str,
        call: impl FnOnce(Channel) -> F,
    ) -> Result<T, AmqpError>
    where
        F: Future<Output = lapin::Result<T>>,
    {
        let open = match self.channel.take() {
            Some(open) => open,
            None => channel(self.connection, self.deadline).await?,
        };
        let answer = bounded(what, self.deadline, call(open.clone())).await;
        if answer.is_ok() {
            self.channel = Some(open);
        }
        answer.map_err(|error| error.needing(Right::Configure))
    }

    async fn has_queue(&mut self, queue: &QueueSpec) -> Result<bool, AmqpError> {
        let found = self.queue(queue, true, FieldTable::default()).await;
        is_there(found)
    }

    async fn has_exchange(&mut self, exchange: &ExchangeSpec) -> Result<bool, AmqpError> {
        is_there(self.exchange(exchange, true).await)
    }

    /// Declares a queue that is there with what we want of it, which changes nothing and is refused
    /// where something differs. An argument that it has besides ours is taken over and looked behind.
    async fn compare(&mut self, queue: &QueueSpec) -> Result<(), AmqpError> {
        let mut table = queue.table();
        for _ in 0..EXTRAS_MAX {
            match self.queue(queue, false, table.clone()).await {
                Err(AmqpError::Mismatch { mismatch }) if is_extra(&mismatch, queue) => {
                    let Some(value) = mismatch.existing else {
                        return Ok(());
                    };
                    table.insert(mismatch.argument.as_str().into(), guess(&value));
                }
                // We took the value over in another form than the broker has it.
                Err(AmqpError::Mismatch { mismatch })
                    if !is_ours(&mismatch, queue) && mismatch.wanted.is_some() =>
                {
                    return Ok(());
                }
                other => return other,
            }
        }
        Ok(())
    }

    async fn declare_queue(&mut self, queue: &QueueSpec) -> Result<(), AmqpError> {
        self.queue(queue, false, queue.table()).await
    }

    async fn declare_exchange(&mut self, exchange: &ExchangeSpec) -> Result<(), AmqpError> {
        self.exchange(exchange, false).await
    }

    async fn queue(
        &mut self,
        queue: &QueueSpec,
        passive: bool,
        arguments: FieldTable,
    ) -> Result<(), AmqpError> {
        let name = queue.name.as_str().into();
        let options = QueueDeclareOptions {
            passive,
            durable: true,
            ..QueueDeclareOptions::default()
        };
        let declare = move |channel: Channel| async move {
            channel.queue_declare(name, options, arguments).await
        };
        self.ask("queue.declare", declare).await.map(drop)
    }

    async fn exchange(&mut self, exchange: &ExchangeSpec, passive: bool) -> Result<(), AmqpError> {
        let name = exchange.name.as_str().into();
        let kind = ExchangeKind::Custom(exchange.kind.into());
        let options = ExchangeDeclareOptions {
            passive,
            durable: true,
            ..ExchangeDeclareOptions::default()
        };
        let declare = move |channel: Channel| async move {
            let arguments = FieldTable::default();
            channel
                .exchange_declare(name, kind, options, arguments)
                .await
        };
        self.ask("exchange.declare", declare).await
    }

    async fn bind(&mut self, binding: &BindingSpec) -> Result<(), AmqpError> {
        let queue = binding.queue.as_str().into();
        let exchange = binding.exchange.as_str().into();
        let key = binding.key.as_str().into();
        let bind = move |channel: Channel| async move {
            let options = QueueBindOptions::default();
            channel
                .queue_bind(queue, exchange, key, options, FieldTable::default())
                .await
        };
        self.ask("queue.bind", bind).await
    }

    /// Closes the channel; a broker that does not answer is not waited for longer than the deadline.
    async fn end(self) {
        if let Some(channel) = self.channel {
            let closed = channel.close(200, "done".into());
            // It ends with the connection at the latest.
            let _ = bounded("channel.close", self.deadline, closed).await;
        }
    }
}

fn is_there(found: Result<(), AmqpError>) -> Result<bool, AmqpError> {
    match found {
        // Somebody else's exclusive queue is there, whoever it belongs to.
        Ok(()) | Err(AmqpError::Locked { .. }) => Ok(true),
        Err(AmqpError::Missing { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether a mismatch is about something that we ask for.
fn is_ours(mismatch: &Mismatch, queue: &QueueSpec) -> bool {
    let argument = mismatch.argument.as_str();
    !argument.starts_with("x-")
        || argument == "x-queue-type"
        || queue.arguments.contains_key(argument)
}

/// The value of an argument from the broker's text, which does not always tell its type.
fn guess(text: &str) -> lapin::types::AMQPValue {
    use lapin::types::AMQPValue;
    match (text.parse::<i64>(), text.parse::<bool>()) {
        (Ok(number), _) => AMQPValue::LongLongInt(number),
        (_, Ok(flag)) => AMQPValue::Boolean(flag),
        _ => AMQPValue::LongString(text.into()),
    }
}
