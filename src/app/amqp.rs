//! From a plan to the options of the RabbitMQ transport.

use std::time::Duration;

use crate::config::{
    self, BrokerUrl, ConsumerPlan, OnExhausted, Order, Plan, QueueKind, RetryPlan,
};
use crate::transport::amqp::topology::Argument;
use crate::transport::amqp::{
    AmqpConsumer, AmqpOptions, ManagementOptions, Partitioning, QueueType, TlsOptions,
};
use acquit_actors::model::RetryWay;

/// Gives the options of a plan's RabbitMQ; `None` where its broker is another.
pub fn amqp_options(plan: &Plan) -> Option<AmqpOptions> {
    let (BrokerUrl::Amqp(uris), Some(amqp)) = (&plan.broker.url, &plan.broker.amqp) else {
        return None;
    };
    let mut options = AmqpOptions::new(uris.first()?.clone());
    options.uris.clone_from(uris);
    options.connection_name.clone_from(&amqp.connection_name);
    options.connect_timeout = amqp.connect_timeout;
    options.heartbeat = amqp.heartbeat;
    options.first_connect_tries = amqp.first_connect_tries;
    options.publish_window = amqp.publish_window as usize;
    options.linger = amqp.linger;
    options.tls = TlsOptions {
        ca_file: amqp.ca_file.clone(),
        cert_file: amqp.cert_file.clone(),
        key_file: amqp.key_file.clone(),
        external: amqp.external,
    };
    options.declare = amqp.declare;
    options.queue_type = match amqp.queue_type {
        QueueKind::Quorum => QueueType::Quorum,
        QueueKind::Classic => QueueType::Classic,
    };
    options.management = amqp
        .management
        .as_ref()
        .map(|api| ManagementOptions::new(&api.url, &api.user, api.password.clone()));
    options.consumers = plan.consumers.iter().map(consumer).collect();
    Some(options)
}

fn consumer(plan: &ConsumerPlan) -> AmqpConsumer {
    let mut consumer = AmqpConsumer::new(plan.name.clone(), plan.queue.clone());
    consumer.partitions = plan.partitions;
    consumer.priority = plan.priority;
    let arguments = plan.consume_arguments.iter();
    consumer.arguments = arguments
        .map(|(name, value)| (name.clone(), argument(value)))
        .collect();
    consumer.partitioning = match plan.partitioning {
        config::Partitioning::None => Partitioning::None,
        config::Partitioning::Direct => Partitioning::Direct,
        config::Partitioning::ConsistentHash => Partitioning::ConsistentHash,
    };
    consumer.single_active = plan.single_active;
    consumer.ladder = match plan.order {
        Order::None => ladder(&plan.retry),
        // What waits holds its partition, so it waits here.
        Order::Partition => Vec::new(),
    };
    consumer
        .dead_letter_queue
        .clone_from(&plan.dead_letter_queue);
    consumer.reply_queue.clone_from(&plan.reply_queue);
    consumer.drop_dead =
        plan.dead_letter_queue.is_none() && plan.on_exhausted == Some(OnExhausted::Drop);
    consumer
}

fn argument(value: &config::Scalar) -> Argument {
    match value {
        config::Scalar::Text(text) => Argument::Text(text.clone()),
        config::Scalar::Number(number) => Argument::Number(*number),
        config::Scalar::Flag(flag) => Argument::Flag(*flag),
    }
}

/// Gives the delays between the attempts, without jitter and each once: base, 2 * base … capped.
fn ladder(retry: &RetryPlan) -> Vec<Duration> {
    let mut steps: Vec<Duration> = Vec::new();
    if retry.way != RetryWay::Ladder {
        return steps;
    }
    for failures in 1..retry.max_attempts {
        // A queue's time to live is whole milliseconds, and zero is none.
        let step = retry.backoff.delay(failures, 1.0);
        let step = step.max(Duration::from_millis(1));
        // Delays only grow, up to the cap.
        if steps.last() == Some(&step) {
            break;
        }
        steps.push(step);
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(broker: &str, consumer: &str) -> Option<AmqpOptions> {
        let text = format!(
            "[worker]\nname = \"w\"\n[broker]\n{broker}\n[[consumer]]\nname = \"c\"\nqueue = \"q\"\n\
             handler = \"echo\"\n{consumer}\n"
        );
        let plan = Plan::from_str(&text, "/etc/acquit/c.toml").expect("valid");
        amqp_options(&plan)
    }

    #[track_caller]
    fn ladder_of(retry: &str, seconds: &[u64]) {
        let keys = format!("dead-letter-queue = \"d\"\n{retry}");
        let options = options("url = \"amqp://h\"", &keys).expect("a RabbitMQ");
        let expected: Vec<_> = seconds.iter().copied().map(Duration::from_secs).collect();
        assert_eq!(options.consumers[0].ladder, expected, "{retry}");
    }

    #[test]
    fn the_ladder_has_each_delay_once() {
        ladder_of("", &[2, 4, 8, 16]);
        ladder_of("retry = { max-attempts = 2 }", &[2]);
        ladder_of("retry = { max-attempts = 1 }", &[]);
        ladder_of("retry = { max-attempts = 1000000 }", &[2, 4, 8, 16, 30]);
        ladder_of("retry = { backoff-base = \"30s\" }", &[30]);
        ladder_of("retry = { via = \"hold\" }", &[]);
        ladder_of("order = \"partition\"", &[]);
    }

    #[test]
    fn another_broker_has_no_such_options() {
        assert_eq!(options("url = \"memory:\"", ""), None);
    }

    #[test]
    fn what_is_left_out_has_the_transports_own_default() {
        let options = options("url = \"amqp://h1,h2\"", "on-exhausted = \"broker\"");
        let options = options.expect("a RabbitMQ");
        let mut expected = AmqpOptions::new(options.uris[0].clone());
        expected.uris.push(options.uris[1].clone());
        expected.connection_name = "w".to_owned();
        let mut consumer = AmqpConsumer::new("c", "q");
        consumer.ladder = [2, 4, 8, 16].map(Duration::from_secs).to_vec();
        expected.consumers.push(consumer);
        assert_eq!(options, expected);
    }

    #[test]
    fn every_key_arrives() {
        let options = options(
            "url = \"amqps://h?heartbeat=7\"\nconnection-name = \"n\"\nconnect-timeout = \"3s\"\n\
             first-connect-tries = 0\ndeclare = true\nqueue-type = \"classic\"\nca-file = \"ca.pem\"\n\
             cert-file = \"cert.pem\"\nkey-file = \"/key.pem\"\nexternal = true\nlinger = \"2s\"\npublish-window = 7\n\
             management = \"http://h:15672/\"\nmanagement-user = \"m\"\n\
             management-password-file = \"p\"",
            "partitions = 3\npartitioning = \"consistent-hash\"\npriority = -5\nconsume-arguments = { a = 1, b = true, c = \"x\" }\norder = \"partition\"\non-exhausted = \"drop\"\n\
             reply-queue = \"r\"",
        )
        .expect("a RabbitMQ");
        assert_eq!(options.connection_name, "n");
        assert_eq!(options.heartbeat, Duration::from_secs(7));
        assert_eq!(options.connect_timeout, Duration::from_secs(3));
        assert_eq!(options.first_connect_tries, 0);
        assert_eq!(options.linger, Duration::from_secs(2));
        assert_eq!(options.publish_window, 7);
        assert!(options.declare && options.tls.external);
        assert_eq!(options.queue_type, QueueType::Classic);
        let file = |file: &Option<std::path::PathBuf>| file.clone().expect("given");
        assert_eq!(
            file(&options.tls.ca_file).to_str(),
            Some("/etc/acquit/ca.pem")
        );
        assert_eq!(
            file(&options.tls.cert_file).to_str(),
            Some("/etc/acquit/cert.pem")
        );
        assert_eq!(file(&options.tls.key_file).to_str(), Some("/key.pem"));
        let api = options.management.expect("given");
        assert_eq!(
            (api.url.as_str(), api.user.as_str()),
            ("http://h:15672", "m")
        );
        let consumer = &options.consumers[0];
        assert_eq!((consumer.partitions, consumer.priority), (3, Some(-5)));
        assert_eq!(consumer.partitioning, Partitioning::ConsistentHash);
        let named: Vec<_> = consumer.arguments.iter().collect();
        assert_eq!(
            named,
            [
                (&"a".to_owned(), &Argument::Number(1)),
                (&"b".to_owned(), &Argument::Flag(true)),
                (&"c".to_owned(), &Argument::Text("x".to_owned())),
            ]
        );
        assert!(consumer.single_active && consumer.drop_dead);
        assert_eq!(consumer.reply_queue, Some("r".into()));
    }
}
