//! What a configuration wants to find at the broker. Pure.
//!
//! Only what cannot be a policy is an argument: the queue's type, single active consumer, and what
//! makes a rung a rung. Length limits, delivery limits and dead-letter exchanges of work queues are
//! left to policies, which an operator can change without deleting a queue.
//!
//! Partitions are queues, `<queue>.0` and on. Our own publisher writes to them through the default
//! exchange, by the hash of the key. Other producers publish to an exchange named as the queue:
//!
//! - `direct`: the routing key is the partition's number; the producer chooses. This is the same
//!   place as ours only if it hashes as we do (xxh3-64 of the key, modulo the number).
//! - `consistent-hash`: the broker hashes the routing key. It needs the plugin
//!   `rabbitmq_consistent_hash_exchange`, and its hash is not ours: let one kind of producer only
//!   write to such a queue, or one key has two partitions.

use std::collections::BTreeMap;
use std::fmt;

use acquit_actors::model::{ConsumerName, PartitionId, QueueName};
use lapin::types::{AMQPValue, FieldTable};

use super::super::options::{AmqpConsumer, AmqpOptions, Partitioning, QueueType};
use super::ladder::Ladder;

/// No name at the broker is longer, in bytes.
const NAME_MAX: usize = 255;

/// The longest time to live that the broker takes, in milliseconds.
const TTL_MAX: u64 = u32::MAX as u64;

/// The value of an argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Argument {
    /// A text.
    Text(String),
    /// A number.
    Number(i64),
    /// Yes or no.
    Flag(bool),
}

impl Argument {
    /// Gives the number, if it is one.
    pub fn as_number(&self) -> Option<i64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Text(_) | Self::Flag(_) => None,
        }
    }
}

impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Number(number) => number.fmt(f),
            Self::Flag(flag) => flag.fmt(f),
        }
    }
}

impl From<&Argument> for AMQPValue {
    fn from(argument: &Argument) -> Self {
        match argument {
            Argument::Text(text) => Self::LongString(text.as_str().into()),
            Argument::Number(number) => Self::LongLongInt(*number),
            Argument::Flag(flag) => Self::Boolean(*flag),
        }
    }
}

/// What a queue is for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Replies are published to it.
    Reply,
    /// Dead letters are published to it.
    DeadLetter,
    /// Retry copies wait in it.
    Rung,
    /// It is consumed.
    Work,
}

impl Role {
    /// Says it in words.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Work => "work",
            Self::Rung => "retry rung",
            Self::DeadLetter => "dead letters",
            Self::Reply => "replies",
        }
    }
}

/// A queue that should be there. It is durable, and neither exclusive nor deleted by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueSpec {
    /// Its name.
    pub name: QueueName,
    /// What it is for; of several, what consumes it.
    pub role: Role,
    /// Who needs it first.
    pub consumer: ConsumerName,
    /// Its type.
    pub queue_type: QueueType,
    /// Its other arguments.
    pub arguments: BTreeMap<&'static str, Argument>,
}

impl QueueSpec {
    /// Gives all arguments as the broker takes them.
    pub(super) fn table(&self) -> FieldTable {
        let mut table = FieldTable::default();
        let kind = Argument::Text(self.queue_type.as_str().to_owned());
        table.insert("x-queue-type".into(), (&kind).into());
        for (name, value) in &self.arguments {
            table.insert((*name).into(), value.into());
        }
        table
    }
}

/// An exchange that should be there, durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExchangeSpec {
    /// Its name.
    pub name: String,
    /// Its type: `direct` or `x-consistent-hash`.
    pub kind: &'static str,
}

/// A binding that should be there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct BindingSpec {
    /// From this exchange.
    pub exchange: String,
    /// To this queue.
    pub queue: QueueName,
    /// By this routing key.
    pub key: String,
}

/// All that a configuration wants, in the order of declaring: what something else points at comes
/// first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Desired {
    /// The queues.
    pub queues: Vec<QueueSpec>,
    /// The exchanges.
    pub exchanges: Vec<ExchangeSpec>,
    /// The bindings.
    pub bindings: Vec<BindingSpec>,
    /// Whether something is published: replies, dead letters, retry copies.
    pub publishes: bool,
}

/// A configuration that no broker can hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// Two consumers want one queue in two ways.
    #[error(
        "consumers {first} and {second} want queue \"{queue}\" with different {what}; give one of them another queue"
    )]
    Conflict {
        /// The queue.
        queue: QueueName,
        /// Who wants it first.
        first: ConsumerName,
        /// Who wants it otherwise.
        second: ConsumerName,
        /// What differs.
        what: &'static str,
    },
    /// A name is longer than the broker takes.
    #[error(
        "consumer {consumer}: the name of queue \"{queue}\" is longer than 255 bytes; shorten `queue`"
    )]
    NameTooLong {
        /// Whose.
        consumer: ConsumerName,
        /// The name.
        queue: QueueName,
    },
    /// A name is the broker's own.
    #[error(
        "consumer {consumer}: names that start with \"amq.\" are the broker's own: \"{queue}\"; choose another `queue`"
    )]
    NameReserved {
        /// Whose.
        consumer: ConsumerName,
        /// The name.
        queue: QueueName,
    },
    /// A retry delay is longer than the broker can hold.
    #[error(
        "consumer {consumer}: a retry delay of {milliseconds} ms is longer than a queue of the broker can hold (49 days); lower `retry.backoff-max`"
    )]
    DelayTooLong {
        /// Whose.
        consumer: ConsumerName,
        /// How long.
        milliseconds: u64,
    },
}

/// Gives the queue of a partition: the queue itself where it has one partition only.
pub fn partition_queue(queue: &QueueName, partitions: u32, partition: PartitionId) -> QueueName {
    if partitions > 1 {
        QueueName::from(format!("{queue}.{partition}"))
    } else {
        queue.clone()
    }
}

/// Gives what a configuration wants to find.
///
/// # Errors
/// [`PlanError`] where no broker can hold it.
pub fn desired(options: &AmqpOptions) -> Result<Desired, PlanError> {
    let mut queues = Queues::default();
    let mut desired = Desired::default();
    for consumer in &options.consumers {
        for partition in (0..consumer.partitions.max(1)).map(PartitionId) {
            let name = partition_queue(&consumer.queue, consumer.partitions, partition);
            queues.want(work(consumer, name, options.queue_type))?;
        }
        let sides = [
            (&consumer.dead_letter_queue, Role::DeadLetter),
            (&consumer.reply_queue, Role::Reply),
        ];
        for (name, role) in sides {
            if let Some(name) = name {
                desired.publishes = true;
                let spec = plain(consumer, name.clone(), role, options.queue_type);
                queues.want(spec)?;
            }
        }
        if let Some(ladder) = Ladder::of(consumer) {
            desired.publishes = true;
            for rung in rungs(consumer, &ladder)? {
                queues.want(rung)?;
            }
        }
        bind_partitions(consumer, &mut desired);
    }
    desired.queues = queues.specs;
    Ok(desired)
}

fn work(consumer: &AmqpConsumer, name: QueueName, queue_type: QueueType) -> QueueSpec {
    let mut spec = plain(consumer, name, Role::Work, queue_type);
    if consumer.single_active {
        let single = ("x-single-active-consumer", Argument::Flag(true));
        spec.arguments.extend([single]);
    }
    spec
}

fn plain(consumer: &AmqpConsumer, name: QueueName, role: Role, queue_type: QueueType) -> QueueSpec {
    QueueSpec {
        name,
        role,
        consumer: consumer.name.clone(),
        queue_type,
        arguments: BTreeMap::new(),
    }
}

/// Always quorum queues: only they dead-letter at least once. The default strategy moves a message
/// without waiting for its new queue, and loses it where that one cannot take it.
fn rungs(consumer: &AmqpConsumer, ladder: &Ladder) -> Result<Vec<QueueSpec>, PlanError> {
    let mut specs = Vec::new();
    for partition in (0..consumer.partitions.max(1)).map(PartitionId) {
        let home = partition_queue(&consumer.queue, consumer.partitions, partition);
        for (milliseconds, name) in ladder.rungs(partition) {
            if milliseconds > TTL_MAX {
                return Err(PlanError::DelayTooLong {
                    consumer: consumer.name.clone(),
                    milliseconds,
                });
            }
            let mut spec = plain(consumer, name, Role::Rung, QueueType::Quorum);
            let text = |text: &str| Argument::Text(text.to_owned());
            spec.arguments.extend([
                (
                    "x-message-ttl",
                    Argument::Number(milliseconds.cast_signed()),
                ),
                ("x-dead-letter-exchange", text("")),
                ("x-dead-letter-routing-key", text(home.as_str())),
                ("x-dead-letter-strategy", text("at-least-once")),
                ("x-overflow", text("reject-publish")),
            ]);
            specs.push(spec);
        }
    }
    Ok(specs)
}

fn bind_partitions(consumer: &AmqpConsumer, desired: &mut Desired) {
    let kind = match consumer.partitioning {
        Partitioning::None => return,
        Partitioning::Direct => "direct",
        Partitioning::ConsistentHash => "x-consistent-hash",
    };
    let exchange = consumer.queue.to_string();
    if consumer.partitions <= 1 || desired.exchanges.iter().any(|e| e.name == exchange) {
        return;
    }
    for partition in (0..consumer.partitions).map(PartitionId) {
        desired.bindings.push(BindingSpec {
            exchange: exchange.clone(),
            queue: partition_queue(&consumer.queue, consumer.partitions, partition),
            key: match consumer.partitioning {
                // A weight: every partition gets the same share.
                Partitioning::ConsistentHash => "1".to_owned(),
                Partitioning::None | Partitioning::Direct => partition.to_string(),
            },
        });
    }
    desired.exchanges.push(ExchangeSpec {
        name: exchange,
        kind,
    });
}

/// The queues so far, each once.
#[derive(Default)]
struct Queues {
    specs: Vec<QueueSpec>,
    places: BTreeMap<QueueName, usize>,
}

impl Queues {
    /// Adds a queue. A reply or dead-letter queue may be another consumer's work queue: it is then
    /// declared as that one wants it.
    fn want(&mut self, spec: QueueSpec) -> Result<(), PlanError> {
        let consumer = || spec.consumer.clone();
        let queue = || spec.name.clone();
        if spec.name.as_str().len() > NAME_MAX {
            let (consumer, queue) = (consumer(), queue());
            return Err(PlanError::NameTooLong { consumer, queue });
        }
        if spec.name.as_str().starts_with("amq.") {
            let (consumer, queue) = (consumer(), queue());
            return Err(PlanError::NameReserved { consumer, queue });
        }
        let Some(place) = self.places.get(&spec.name) else {
            self.places.insert(spec.name.clone(), self.specs.len());
            self.specs.push(spec);
            return Ok(());
        };
        let known = &mut self.specs[*place];
        let is_same = known.arguments == spec.arguments && known.queue_type == spec.queue_type;
        let mut yields = [known.role.clone(), spec.role.clone()];
        yields.sort();
        let is_side = matches!(yields[0], Role::Reply | Role::DeadLetter);
        if !is_same && (!is_side || yields[1] == Role::Rung) {
            return Err(PlanError::Conflict {
                queue: queue(),
                first: known.consumer.clone(),
                second: consumer(),
                what: "arguments",
            });
        }
        if spec.role > known.role {
            *known = spec;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
