//! What a RabbitMQ told about itself: in the words of `status` and `check`, and what a consumer makes
//! of it. Pure.

use std::time::Duration;

use acquit_actors::model::PartitionId;
use humantime::format_duration;

use crate::config::{ConsumerPlan, Plan};
use crate::control::{BrokerTold, QueueTold};
use crate::transport::amqp::topology::{ConsumerLimits, partition_queue};
use crate::transport::amqp::{BrokerFacts, Known};

/// Writes down what is known of a broker; what nobody told is "unknown".
pub fn broker_told(facts: &BrokerFacts) -> BrokerTold {
    let queues = facts.queues.iter().map(|(name, queue)| QueueTold {
        name: name.clone(),
        kind: queue.kind.clone().unwrap_or_else(|| "unknown".to_owned()),
        delivery_limit: match queue.delivery_limit(facts.version) {
            Known::Unknown => "unknown".to_owned(),
            Known::Is(None) => "none".to_owned(),
            Known::Is(Some(limit)) => limit.to_string(),
        },
        consumer_timeout: match queue.consumer_timeout() {
            Known::Unknown => "unknown".to_owned(),
            Known::Is(timeout) => format_duration(timeout).to_string(),
        },
        single_active: match (queue.single_active(), &queue.kind) {
            (true, _) => "yes".to_owned(),
            (false, Some(_)) => "no".to_owned(),
            (false, None) => "unknown".to_owned(),
        },
    });
    BrokerTold {
        version: facts.version.to_string(),
        queues: queues.collect(),
    }
}

/// Gives the limits of a plan that a broker's are held against.
pub fn consumer_limits(plan: &Plan) -> Vec<ConsumerLimits> {
    let limits = plan.consumers.iter().map(|consumer| ConsumerLimits {
        consumer: consumer.name.clone(),
        max_attempts: consumer.retry.max_attempts,
        crash_loop_limit: consumer.crash_loop_limit,
        handler_timeout: Some(consumer.handler_timeout),
    });
    limits.collect()
}

/// Tells whether a RabbitMQ has said of all of a consumer's queues that they have no delivery limit.
/// On those that have one, what is held ready and never runs pays for each drain with a count.
pub(super) fn gives_up_nothing(consumer: &ConsumerPlan, facts: &BrokerFacts) -> bool {
    (0..consumer.partitions).all(|partition| {
        let id = PartitionId(partition);
        let name = partition_queue(&consumer.queue, consumer.partitions, id);
        let queue = facts.queues.get(&name);
        queue.is_some_and(|queue| queue.delivery_limit(facts.version) == Known::Is(None))
    })
}

/// How long a RabbitMQ lets a delivery of a consumer be held: as it says itself, else as the plan
/// says.
pub(super) fn hold_limit(
    plan: &Plan,
    consumer: &ConsumerPlan,
    facts: Option<&BrokerFacts>,
) -> Option<Duration> {
    let told = facts.and_then(|facts| {
        let queues = &facts.queues;
        let mine = (0..consumer.partitions).filter_map(|partition| {
            let id = PartitionId(partition);
            let name = partition_queue(&consumer.queue, consumer.partitions, id);
            match queues.get(&name)?.consumer_timeout() {
                Known::Is(limit) => Some(limit),
                Known::Unknown => None,
            }
        });
        mine.min()
    });
    told.or_else(|| plan.broker.amqp.as_ref()?.consumer_timeout)
}

#[cfg(test)]
mod tests {
    use acquit_actors::Prefetch;
    use acquit_actors::model::{Capabilities, DeliveryCounting};

    use super::*;
    use crate::transport::amqp::QueueFacts;

    #[test]
    fn deliveries_are_held_ready_only_where_no_partition_gives_a_message_up() {
        let text = "[broker]\nurl = \"amqp://h\"\n[[consumer]]\nname = \"c\"\nqueue = \"q\"\n\
                    partitions = 2\ndead-letter-queue = \"d\"\nhandler = \"discard\"\n";
        let plan = Plan::from_str(text, "c.toml").unwrap();
        let consumer = &plan.consumers[0];
        let mut facts = BrokerFacts::default();
        assert!(!gives_up_nothing(consumer, &facts));
        let kind = |kind: &str| QueueFacts {
            kind: Some(kind.to_owned()),
            ..QueueFacts::default()
        };
        facts.queues.insert("q.0".into(), kind("classic"));
        assert!(
            !gives_up_nothing(consumer, &facts),
            "the other is not known"
        );
        facts.queues.insert("q.1".into(), kind("classic"));
        assert!(gives_up_nothing(consumer, &facts));
        facts.queues.insert("q.1".into(), kind("quorum"));
        assert!(
            !gives_up_nothing(consumer, &facts),
            "its policy is not known"
        );
        let permits = |prefetch| {
            let capabilities = Capabilities {
                confirms_settlement: false,
                delayed_requeue: false,
                extend: false,
                dead_list: false,
                late_ack: false,
                counting: DeliveryCounting::EveryReturn,
                durable: true,
            };
            let mut spec = super::super::consumer_spec(consumer, None).unwrap();
            spec.prefetch = prefetch;
            spec.credit(20, &capabilities)
        };
        assert_eq!(
            (permits(Prefetch::Auto), permits(Prefetch::Ahead)),
            (20, 36)
        );
    }
}
