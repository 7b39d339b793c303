//! Whether a transport may start: what it needs is there, or is declared, and the user may use it.

use std::collections::BTreeMap;

use acquit_actors::model::ConsumerName;

use super::super::error::{AmqpError, Object, ObjectKind, clean};
use super::apply::{Topology, TopologyError};
use super::diff::{Existing, QueueState};
use super::plan::{Desired, Role};

/// What a start found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Ready {
    /// Consumers whose retry ladder is not there, and why: they hold their retries.
    pub without_ladder: BTreeMap<ConsumerName, AmqpError>,
}

impl Topology<'_> {
    /// Makes ready for consuming: with `declare` what is missing is declared, without it nothing
    /// is, and a read-only user will do.
    ///
    /// # Errors
    /// [`AmqpError::Mismatch`] where something exists otherwise than it would be declared,
    /// [`AmqpError::Missing`] where a work, reply or dead-letter queue is not there,
    /// [`AmqpError::NoPermission`] where one may not be read, or where replies, dead letters or
    /// retry copies may not be published. A missing ladder is no error.
    ///
    /// # Cancel safety
    /// What was declared before it was dropped stays declared.
    pub async fn ready(&self, declare: bool) -> Result<Ready, TopologyError> {
        let without_ladder = if declare {
            let applied = self.apply().await?;
            if let Some(mismatch) = applied.refused.into_iter().next() {
                return Err(AmqpError::Mismatch { mismatch }.into());
            }
            applied.without_ladder
        } else {
            found(self.wanted(), &self.look().await?)?
        };
        if let Some(missing) = self.missing_rights().await?.into_iter().next() {
            return Err(missing.into());
        }
        Ok(Ready { without_ladder })
    }
}

/// Which ladders are not whole; an error where something else is missing.
fn found(
    wanted: &Desired,
    existing: &Existing,
) -> Result<BTreeMap<ConsumerName, AmqpError>, AmqpError> {
    let mut without_ladder = BTreeMap::new();
    for queue in &wanted.queues {
        if existing.queues.get(&queue.name) != Some(&QueueState::Missing) {
            continue;
        }
        let object = Object {
            kind: ObjectKind::Queue,
            name: clean(queue.name.as_str()),
        };
        let error = AmqpError::Missing { object };
        if queue.role != Role::Rung {
            return Err(error);
        }
        let consumer = queue.consumer.clone();
        without_ladder.entry(consumer).or_insert(error);
    }
    Ok(without_ladder)
}

#[cfg(test)]
mod tests {
    use super::super::super::options::{AmqpConsumer, AmqpOptions};
    use super::super::super::uri::AmqpUri;
    use super::super::plan::desired;
    use super::*;
    use std::time::Duration;

    #[test]
    fn only_a_rung_may_be_missing() {
        let mut options = AmqpOptions::new(AmqpUri::local(1));
        let mut consumer = AmqpConsumer::new("c", "q");
        consumer.ladder = vec![Duration::from_secs(1)];
        consumer.dead_letter_queue = Some("dead".into());
        options.consumers.push(consumer);
        let wanted = desired(&options).expect("valid");
        let without = |missing: &str| {
            let queues = wanted.queues.iter().map(|queue| {
                let is_missing = queue.name.as_str() == missing;
                let state =
                    [QueueState::Present, QueueState::Missing][usize::from(is_missing)].clone();
                (queue.name.clone(), state)
            });
            let existing = Existing {
                queues: queues.collect(),
                ..Existing::default()
            };
            found(&wanted, &existing)
        };
        assert_eq!(without("").map(|ladders| ladders.len()), Ok(0));
        let ladders = without("q.retry.750").expect("only a rung");
        assert!(ladders.contains_key(&"c".into()), "{ladders:?}");
        for name in ["q", "dead"] {
            let error = without(name).expect_err("needed");
            assert_eq!(error.exit_code(), 11, "{error}");
        }
    }
}
