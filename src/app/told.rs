//! What a RabbitMQ told about itself, in the words of `status` and `check`: pure.

use humantime::format_duration;

use crate::config::Plan;
use crate::control::{BrokerTold, QueueTold};
use crate::transport::amqp::topology::ConsumerLimits;
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
