use std::time::Duration;

use super::super::super::uri::AmqpUri;
use super::*;

fn options(consumers: Vec<AmqpConsumer>) -> AmqpOptions {
    let mut options = AmqpOptions::new(AmqpUri::local(5672));
    options.consumers = consumers;
    options
}

fn words(partitions: u32) -> AmqpConsumer {
    let mut consumer = AmqpConsumer::new("words", "words");
    consumer.partitions = partitions;
    consumer
}

fn names(desired: &Desired) -> Vec<&str> {
    desired.queues.iter().map(|q| q.name.as_str()).collect()
}

#[test]
fn one_partition_is_the_queue_itself_and_needs_no_exchange() {
    let wanted = desired(&options(vec![words(1)])).expect("valid");
    assert_eq!(names(&wanted), ["words"]);
    assert_eq!(wanted.queues[0].queue_type, QueueType::Quorum);
    assert!(wanted.queues[0].arguments.is_empty());
    assert!(wanted.exchanges.is_empty() && wanted.bindings.is_empty());
}

#[test]
fn partitions_are_queues_behind_an_exchange() {
    let mut consumer = words(3);
    consumer.single_active = true;
    let wanted = desired(&options(vec![consumer.clone()])).expect("valid");
    assert_eq!(names(&wanted), ["words.0", "words.1", "words.2"]);
    let single = wanted.queues[1].arguments.get("x-single-active-consumer");
    assert_eq!(single, Some(&Argument::Flag(true)));
    let keys = |wanted: &Desired| -> Vec<String> {
        let bindings = wanted.bindings.iter();
        let shown = bindings.map(|b| format!("{} -{}-> {}", b.exchange, b.key, b.queue));
        shown.collect()
    };
    assert_eq!(
        keys(&wanted),
        [
            "words -0-> words.0",
            "words -1-> words.1",
            "words -2-> words.2"
        ]
    );
    assert_eq!(wanted.exchanges[0].kind, "direct");

    consumer.partitioning = Partitioning::ConsistentHash;
    let wanted = desired(&options(vec![consumer.clone()])).expect("valid");
    assert_eq!(wanted.exchanges[0].kind, "x-consistent-hash");
    assert_eq!(keys(&wanted)[2], "words -1-> words.2");

    consumer.partitioning = Partitioning::None;
    let wanted = desired(&options(vec![consumer])).expect("valid");
    assert!(wanted.exchanges.is_empty() && wanted.bindings.is_empty());
}

#[test]
fn rungs_are_quorum_queues_that_lose_nothing_and_lead_back_home() {
    let mut consumer = words(2);
    consumer.ladder = vec![Duration::from_secs(2)];
    let mut options = options(vec![consumer]);
    options.queue_type = QueueType::Classic;
    let wanted = desired(&options).expect("valid");
    assert_eq!(
        names(&wanted),
        [
            "words.0",
            "words.1",
            "words.0.retry.1200",
            "words.0.retry.1500",
            "words.0.retry.1800",
            "words.1.retry.1200",
            "words.1.retry.1500",
            "words.1.retry.1800",
        ]
    );
    assert_eq!(wanted.queues[0].queue_type, QueueType::Classic);
    let rung = &wanted.queues[5];
    assert_eq!(
        (rung.queue_type, &rung.role),
        (QueueType::Quorum, &Role::Rung)
    );
    let shown: Vec<_> = rung
        .arguments
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    assert_eq!(
        shown,
        [
            "x-dead-letter-exchange=",
            "x-dead-letter-routing-key=words.1",
            "x-dead-letter-strategy=at-least-once",
            "x-message-ttl=1200",
            "x-overflow=reject-publish",
        ]
    );
    let table = rung.table();
    assert_eq!(table.inner().len(), 6);
}

#[test]
fn queues_that_several_need_are_wanted_once() {
    let mut first = AmqpConsumer::new("first", "a");
    first.reply_queue = Some("b".into());
    first.dead_letter_queue = Some("dead".into());
    let mut second = AmqpConsumer::new("second", "b");
    second.dead_letter_queue = Some("dead".into());
    second.single_active = true;
    let wanted = desired(&options(vec![first, second])).expect("valid");
    assert_eq!(names(&wanted), ["a", "dead", "b"]);
    let shared = &wanted.queues[2];
    assert_eq!(shared.role, Role::Work);
    assert!(shared.arguments.contains_key("x-single-active-consumer"));
}

#[test]
fn what_no_broker_can_hold_is_refused() {
    let mut other = AmqpConsumer::new("other", "words");
    other.single_active = true;
    let error = desired(&options(vec![words(1), other])).expect_err("a conflict");
    assert!(matches!(error, PlanError::Conflict { .. }), "{error}");

    let mut side = words(1);
    side.ladder = vec![Duration::from_secs(2)];
    side.dead_letter_queue = Some("words.retry.1500".into());
    let error = desired(&options(vec![side])).expect_err("a conflict");
    assert!(matches!(error, PlanError::Conflict { .. }), "{error}");

    let mut long = words(1);
    long.queue = "q".repeat(256).into();
    let error = desired(&options(vec![long])).expect_err("too long");
    assert!(matches!(error, PlanError::NameTooLong { .. }), "{error}");

    let mut reserved = words(1);
    reserved.reply_queue = Some("amq.x".into());
    let error = desired(&options(vec![reserved])).expect_err("reserved");
    assert!(matches!(error, PlanError::NameReserved { .. }), "{error}");

    let mut slow = words(1);
    slow.ladder = vec![Duration::from_secs(90 * 24 * 3600)];
    let error = desired(&options(vec![slow])).expect_err("too long");
    assert!(matches!(error, PlanError::DelayTooLong { .. }), "{error}");
}
