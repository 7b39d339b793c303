//! What is wanted against what is there. Pure. It knows no change that removes or alters anything.

use std::collections::BTreeMap;
use std::fmt;

use acquit_actors::model::QueueName;

use super::super::error::{Mismatch, Object, ObjectKind, clean};
use super::super::facts::QueueFacts;
use super::plan::{Argument, BindingSpec, Desired, ExchangeSpec, QueueSpec};

/// What is known of one queue at the broker.
#[derive(Debug, Clone, PartialEq)]
pub enum QueueState {
    /// It is not there.
    Missing,
    /// It is there; AMQP tells no more.
    Present,
    /// It is there, and this is what the management API says of it.
    Known(QueueFacts),
}

/// What is known of the broker. What is in none of the maps is unknown, and nothing is concluded
/// from it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Existing {
    /// The queues.
    pub queues: BTreeMap<QueueName, QueueState>,
    /// Whether an exchange is there.
    pub exchanges: BTreeMap<String, bool>,
    /// Whether a binding is there; only the management API tells.
    pub bindings: BTreeMap<BindingSpec, bool>,
}

/// One difference.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// A queue is missing.
    DeclareQueue(QueueSpec),
    /// An exchange is missing.
    DeclareExchange(ExchangeSpec),
    /// A binding is missing.
    Bind(BindingSpec),
    /// Something exists otherwise. It is left as it is: no change is made for it.
    Differs(Mismatch),
}

impl Change {
    /// Whether it is none that can be made.
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Differs(_))
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DeclareQueue(queue) => {
                let name = clean(queue.name.as_str());
                let (kind, role) = (queue.queue_type.as_str(), queue.role.as_str());
                write!(f, "declare {kind} queue \"{name}\" ({role})")?;
                for (argument, value) in &queue.arguments {
                    write!(f, " {argument}={}", shown(&value.to_string()))?;
                }
                Ok(())
            }
            Self::DeclareExchange(exchange) => {
                let name = clean(&exchange.name);
                write!(f, "declare {} exchange \"{name}\"", exchange.kind)
            }
            Self::Bind(binding) => write!(
                f,
                "bind exchange \"{}\" to queue \"{}\" by key \"{}\"",
                clean(&binding.exchange),
                clean(binding.queue.as_str()),
                clean(&binding.key)
            ),
            Self::Differs(mismatch) => write!(
                f,
                "leave {} alone: its {} differs, wanted {}, existing {}",
                mismatch
                    .object
                    .as_ref()
                    .map_or_else(|| "it".to_owned(), ToString::to_string),
                mismatch.argument,
                mismatch.wanted.as_deref().unwrap_or("none"),
                mismatch.existing.as_deref().unwrap_or("none")
            ),
        }
    }
}

fn shown(value: &str) -> String {
    if value.is_empty() {
        "\"\"".to_owned()
    } else {
        clean(value)
    }
}

/// Gives the differences, in the order in which they are made.
pub fn diff(wanted: &Desired, existing: &Existing) -> Vec<Change> {
    let mut changes = Vec::new();
    for queue in &wanted.queues {
        match existing.queues.get(&queue.name) {
            Some(QueueState::Missing) => changes.push(Change::DeclareQueue(queue.clone())),
            Some(QueueState::Known(facts)) => {
                changes.extend(differences(queue, facts).map(Change::Differs));
            }
            Some(QueueState::Present) | None => {}
        }
    }
    for exchange in &wanted.exchanges {
        if existing.exchanges.get(&exchange.name) == Some(&false) {
            changes.push(Change::DeclareExchange(exchange.clone()));
        }
    }
    for binding in &wanted.bindings {
        if is_unbound(binding, existing) {
            changes.push(Change::Bind(binding.clone()));
        }
    }
    changes
}

/// A binding is certainly not there where one of its ends is not.
fn is_unbound(binding: &BindingSpec, existing: &Existing) -> bool {
    existing.bindings.get(binding) == Some(&false)
        || existing.exchanges.get(&binding.exchange) == Some(&false)
        || existing.queues.get(&binding.queue) == Some(&QueueState::Missing)
}

/// What we ask for and the queue does not have. Arguments that it has besides are its owner's
/// matter.
fn differences(wanted: &QueueSpec, facts: &QueueFacts) -> impl Iterator<Item = Mismatch> {
    let mut found = Vec::new();
    let mut differs = |argument: &str, wanted_value: &str, existing: Option<String>| {
        found.push(Mismatch {
            argument: argument.to_owned(),
            object: Some(Object {
                kind: ObjectKind::Queue,
                name: clean(wanted.name.as_str()),
            }),
            wanted: Some(clean(wanted_value)),
            existing: existing.as_deref().map(clean),
        });
    };
    if let Some(kind) = &facts.kind
        && kind != wanted.queue_type.as_str()
    {
        differs(
            "x-queue-type",
            wanted.queue_type.as_str(),
            Some(kind.clone()),
        );
    }
    if facts.durable == Some(false) {
        differs("durable", "true", Some("false".to_owned()));
    }
    for (argument, value) in &wanted.arguments {
        let existing: Option<&Argument> = facts.arguments.get(*argument);
        if existing != Some(value) {
            let existing = existing.map(ToString::to_string);
            differs(argument, &value.to_string(), existing);
        }
    }
    found.into_iter()
}

/// Whether a mismatch that the broker told is only an argument that the queue has besides ours, set
/// by whoever declared it: it is theirs to choose.
pub(super) fn is_extra(mismatch: &Mismatch, wanted: &QueueSpec) -> bool {
    mismatch.wanted.is_none()
        && mismatch.argument.starts_with("x-")
        && mismatch.argument != "x-queue-type"
        && !wanted.arguments.contains_key(mismatch.argument.as_str())
}

#[cfg(test)]
mod tests {
    use super::super::super::options::{AmqpConsumer, AmqpOptions, QueueType};
    use super::super::super::uri::AmqpUri;
    use super::super::plan::desired;
    use super::*;
    use std::time::Duration;

    fn wanted() -> Desired {
        let mut options = AmqpOptions::new(AmqpUri::local(1));
        let mut consumer = AmqpConsumer::new("c", "words");
        consumer.partitions = 2;
        consumer.single_active = true;
        options.consumers.push(consumer);
        let mut other = AmqpConsumer::new("d", "one");
        other.ladder = vec![Duration::from_millis(400)];
        options.consumers.push(other);
        desired(&options).expect("valid")
    }

    fn facts(kind: &str, arguments: &[(&str, Argument)]) -> QueueFacts {
        QueueFacts {
            kind: Some(kind.to_owned()),
            durable: Some(true),
            arguments: arguments
                .iter()
                .map(|(name, value)| ((*name).to_owned(), value.clone()))
                .collect(),
            ..QueueFacts::default()
        }
    }

    fn shown(changes: &[Change]) -> Vec<String> {
        changes.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_empty_broker_needs_everything_in_order() {
        let wanted = wanted();
        let existing = Existing {
            queues: wanted
                .queues
                .iter()
                .map(|queue| (queue.name.clone(), QueueState::Missing))
                .collect(),
            exchanges: [("words".to_owned(), false)].into(),
            bindings: BTreeMap::new(),
        };
        let changes = diff(&wanted, &existing);
        assert_eq!(
            shown(&changes),
            [
                "declare quorum queue \"words.0\" (work) x-single-active-consumer=true",
                "declare quorum queue \"words.1\" (work) x-single-active-consumer=true",
                "declare quorum queue \"one\" (work)",
                "declare quorum queue \"one.retry.240\" (retry rung) x-dead-letter-exchange=\"\" x-dead-letter-routing-key=one x-dead-letter-strategy=at-least-once x-message-ttl=240 x-overflow=reject-publish",
                "declare quorum queue \"one.retry.300\" (retry rung) x-dead-letter-exchange=\"\" x-dead-letter-routing-key=one x-dead-letter-strategy=at-least-once x-message-ttl=300 x-overflow=reject-publish",
                "declare quorum queue \"one.retry.360\" (retry rung) x-dead-letter-exchange=\"\" x-dead-letter-routing-key=one x-dead-letter-strategy=at-least-once x-message-ttl=360 x-overflow=reject-publish",
                "declare direct exchange \"words\"",
                "bind exchange \"words\" to queue \"words.0\" by key \"0\"",
                "bind exchange \"words\" to queue \"words.1\" by key \"1\"",
            ]
        );
    }

    #[test]
    fn nothing_is_concluded_from_what_is_unknown() {
        assert!(diff(&wanted(), &Existing::default()).is_empty());
        let present = Existing {
            queues: wanted()
                .queues
                .iter()
                .map(|queue| (queue.name.clone(), QueueState::Present))
                .collect(),
            ..Existing::default()
        };
        assert!(diff(&wanted(), &present).is_empty());
    }

    #[test]
    fn what_exists_otherwise_is_told_and_left_alone() {
        let mut existing = Existing::default();
        let known = |facts| QueueState::Known(facts);
        let single = ("x-single-active-consumer", Argument::Flag(true));
        let extra = ("x-max-length", Argument::Number(5));
        existing.queues = [
            ("words.0".into(), known(facts("quorum", &[single, extra]))),
            ("words.1".into(), known(facts("classic", &[]))),
            (
                "one.retry.240".into(),
                known(facts("quorum", &[("x-message-ttl", Argument::Number(100))])),
            ),
        ]
        .into();
        let changes = diff(&wanted(), &existing);
        let shown = shown(&changes);
        assert_eq!(
            &shown[..3],
            [
                "leave queue \"words.1\" alone: its x-queue-type differs, wanted quorum, existing classic",
                "leave queue \"words.1\" alone: its x-single-active-consumer differs, wanted true, existing none",
                "leave queue \"one.retry.240\" alone: its x-dead-letter-exchange differs, wanted , existing none",
            ]
        );
        assert!(changes.iter().all(Change::is_refused));
        assert_eq!(changes.len(), 7);
    }

    #[test]
    fn a_binding_is_missing_with_either_of_its_ends() {
        let mut existing = Existing {
            queues: [("words.1".into(), QueueState::Missing)].into(),
            ..Existing::default()
        };
        let binds = |existing: &Existing| {
            let changes = diff(&wanted(), existing);
            let binds = changes.iter().filter(|c| matches!(c, Change::Bind(_)));
            binds.count()
        };
        assert_eq!(binds(&existing), 1);
        existing.exchanges = [("words".to_owned(), false)].into();
        assert_eq!(binds(&existing), 2);
        existing = Existing::default();
        existing.bindings = wanted().bindings.into_iter().map(|b| (b, true)).collect();
        assert_eq!(binds(&existing), 0);
    }

    #[test]
    fn an_argument_besides_ours_is_no_mismatch() {
        let queue = &wanted().queues[0];
        let mismatch = |argument: &str, wanted: Option<&str>| Mismatch {
            argument: argument.to_owned(),
            object: None,
            wanted: wanted.map(str::to_owned),
            existing: Some("5".to_owned()),
        };
        assert!(is_extra(&mismatch("x-max-length", None), queue));
        assert!(!is_extra(&mismatch("x-max-length", Some("4")), queue));
        assert!(!is_extra(
            &mismatch("x-single-active-consumer", None),
            queue
        ));
        assert!(!is_extra(&mismatch("x-queue-type", None), queue));
        assert!(!is_extra(&mismatch("durable", None), queue));
        assert_eq!(queue.queue_type, QueueType::Quorum);
    }
}
