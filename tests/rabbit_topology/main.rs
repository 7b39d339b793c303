//! Topology on a real RabbitMQ: what is declared, what is refused, and what a user may do.

#[path = "../broker_kit/mod.rs"]
mod broker_kit;
mod place;

use std::time::{Duration, Instant};

use acquit::cli::{Exit, TopologyAction, show_topology};
use acquit::model::QueueName;
use acquit::transport::amqp::error::{ObjectKind, Right};
use acquit::transport::amqp::topology::{
    Change, Ladder, Report, Task, Topology, TopologyError, perform,
};
use acquit::transport::amqp::{
    AmqpConsumer, AmqpError, AmqpOptions, Known, Partitioning, QueueType,
};
use broker_kit::PolicyTarget;
use futures_util::StreamExt;
use lapin::options::{
    BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
    QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Connection};
use place::{Place, log_in};

const BOUND: Duration = Duration::from_secs(20);

/// A consumer with everything: partitions, a ladder, replies and dead letters.
fn whole() -> AmqpConsumer {
    let mut consumer = AmqpConsumer::new("words", "words");
    consumer.partitions = 2;
    consumer.single_active = true;
    consumer.ladder = vec![Duration::from_millis(400)];
    consumer.reply_queue = Some("words.results".into());
    consumer.dead_letter_queue = Some("words.dead".into());
    consumer
}

async fn done(options: &AmqpOptions, task: Task) -> Report {
    perform(options, task).await.expect("the broker answers")
}

async fn refusal(options: &AmqpOptions, task: Task) -> AmqpError {
    match perform(options, task).await {
        Err(TopologyError::Amqp(error)) => error,
        other => panic!("not refused by the broker: {other:?}"),
    }
}

fn lines(report: &Report) -> Vec<String> {
    report.changes.iter().map(ToString::to_string).collect()
}

async fn declare(place: &Place, queue: &str, arguments: &[(&str, AMQPValue)]) -> Connection {
    let connection = place.connect().await;
    let channel = connection.create_channel().await.expect("a channel");
    let mut table = FieldTable::default();
    for (name, value) in arguments {
        table.insert((*name).into(), value.clone());
    }
    let options = QueueDeclareOptions {
        durable: true,
        ..QueueDeclareOptions::default()
    };
    channel
        .queue_declare(queue.into(), options, table)
        .await
        .expect("declared");
    connection
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_vhost_gets_everything_once() {
    let place = Place::new().await;
    for queue_type in [QueueType::Quorum, QueueType::Classic] {
        let mut options = place.options(vec![whole()]);
        options.queue_type = queue_type;
        if queue_type == QueueType::Classic {
            options.consumers[0].queue = "others".into();
            options.consumers[0].dead_letter_queue = None;
            options.consumers[0].reply_queue = None;
        }
        let planned = done(&options, Task::Plan).await;
        assert!(planned.changes.len() >= 11, "{:?}", lines(&planned));
        let made = done(&options, Task::Apply).await;
        assert_eq!(lines(&made), lines(&planned));
        assert!(made.without_ladder.is_empty(), "{:?}", made.without_ladder);

        let again = done(&options, Task::Apply).await;
        assert_eq!(lines(&again), [""; 0], "{queue_type:?}");
        let checked = done(&options, Task::Check).await;
        assert_eq!(lines(&checked), [""; 0]);
        assert_eq!(checked.missing_rights, []);
        // The greeting tells the version where there is no management API, and nothing else.
        assert!(matches!(checked.facts.version, Known::Is(version) if version.major >= 3));
        assert!(checked.facts.queues.is_empty() && !checked.is_compared);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_management_api_tells_what_amqp_does_not() {
    let place = Place::managed().await;
    let mut options = place.options(vec![whole()]);
    options.management = Some(place.management("guest"));
    done(&options, Task::Apply).await;
    let checked = done(&options, Task::Check).await;
    assert_eq!(lines(&checked), [""; 0]);
    assert!(checked.is_compared);
    assert!(
        matches!(checked.facts.version, Known::Is(version) if version.major >= 3),
        "{:?}",
        checked.facts.version
    );
    let facts = &checked.facts.queues[&QueueName::from("words.1")];
    assert_eq!(facts.kind.as_deref(), Some("quorum"));
    assert!(facts.single_active());

    // A policy's delivery limit becomes visible when the broker has applied it.
    let admin = place.admin();
    admin
        .set_policy(
            place.vhost(),
            "limit",
            "^words",
            r#"{"delivery-limit":7}"#,
            PolicyTarget::Queues,
        )
        .await;
    broker_kit::eventually("the policy's limit", async || {
        let facts = done(&options, Task::Check).await.facts;
        let queue = &facts.queues[&QueueName::from("words.0")];
        (queue.delivery_limit(facts.version) == Known::Is(Some(7))).then_some(())
    })
    .await;

    // A binding that somebody took away is missing.
    let connection = place.connect().await;
    let channel = connection.create_channel().await.expect("a channel");
    let unbound = channel.queue_unbind(
        "words.1".into(),
        "words".into(),
        "1".into(),
        FieldTable::default(),
    );
    unbound.await.expect("unbound");
    let planned = done(&options, Task::Plan).await;
    assert_eq!(
        lines(&planned),
        ["bind exchange \"words\" to queue \"words.1\" by key \"1\""]
    );
    done(&options, Task::Apply).await;
    assert_eq!(lines(&done(&options, Task::Plan).await), [""; 0]);

    let mut wrong = options.clone();
    wrong.management = Some(place.management("wrong"));
    let error = perform(&wrong, Task::Plan).await.expect_err("refused");
    assert_eq!(error.exit_code(), 14, "{error}");
}

/// Field report B20.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_of_another_type_is_told_and_left_untouched() {
    let place = Place::managed().await;
    let _owner = declare(&place, "tasks", &[("x-queue-type", text("quorum"))]).await;
    let mut consumer = AmqpConsumer::new("c", "tasks");
    consumer.reply_queue = Some("tasks.results".into());
    let mut options = place.options(vec![consumer]);

    // Only named: whatever it is, it works.
    assert_eq!(done(&options, Task::Apply).await.changes.len(), 1);

    options.queue_type = QueueType::Classic;
    options.consumers[0].reply_queue = Some("tasks.other".into());
    let refused = done(&options, Task::Apply).await;
    let [Change::Differs(mismatch)] = &refused.changes[..] else {
        panic!("{:?}", lines(&refused));
    };
    assert_eq!(mismatch.argument, "x-queue-type");
    assert_eq!(mismatch.wanted.as_deref(), Some("classic"));
    assert_eq!(mismatch.existing.as_deref(), Some("quorum"));
    let queues = place.admin().list_queues(place.vhost()).await;
    let queues: Vec<_> = queues.iter().map(|q| (&*q.name, &*q.queue_type)).collect();
    assert!(queues.contains(&("tasks", "quorum")), "{queues:?}");
    assert_eq!(queues.len(), 2, "something was made: {queues:?}");

    // The same for people, with the documented code; the management API tells it before.
    options.management = Some(place.management("guest"));
    for (action, code) in [
        (TopologyAction::Plan, Exit::DeclarationRefused),
        (TopologyAction::Apply, Exit::DeclarationRefused),
        (TopologyAction::Check, Exit::Failure),
    ] {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let exit = show_topology(&options, action, false, &mut out, &mut err).await;
        let out = String::from_utf8(out).expect("UTF-8");
        assert_eq!(exit.expect("written"), code, "{out}");
        let line = "refused: leave queue \"tasks\" alone: its x-queue-type differs, wanted classic, existing quorum\n";
        assert!(out.starts_with(line), "{out}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_that_a_queue_has_besides_ours_are_its_owners_matter() {
    let place = Place::new().await;
    let extras = [
        ("x-queue-type", text("quorum")),
        ("x-max-length", AMQPValue::LongInt(1000)),
        ("x-dead-letter-exchange", text("somewhere")),
    ];
    let _owner = declare(&place, "tasks", &extras).await;
    let mut options = place.options(vec![AmqpConsumer::new("c", "tasks")]);
    assert_eq!(lines(&done(&options, Task::Apply).await), [""; 0]);

    // What differs behind them is still found.
    options.consumers[0].single_active = true;
    let refused = done(&options, Task::Apply).await;
    assert_eq!(
        lines(&refused),
        [
            "leave queue \"tasks\" alone: its x-single-active-consumer differs, wanted true, existing none"
        ]
    );
}

/// Field reports B22 and B23.
#[tokio::test(flavor = "multi_thread")]
async fn rights_are_told_without_touching_a_message() {
    let place = Place::new().await;
    let owner = declare(&place, "tasks", &[("x-queue-type", text("quorum"))]).await;
    let channel = owner.create_channel().await.expect("a channel");
    publish(&channel, "tasks", b"one").await;

    let reader = place.user(["", "", "^tasks$"]).await;
    let mut options = place.options(vec![AmqpConsumer::new("c", "tasks")]);
    log_in(&mut options, &reader);
    let checked = done(&options, Task::Check).await;
    assert_eq!((lines(&checked).len(), checked.missing_rights), (0, vec![]));

    // With dead letters the right to write is missed at once, not at the first failure.
    options.consumers[0].dead_letter_queue = Some("tasks".into());
    let checked = done(&options, Task::Check).await;
    let [
        AmqpError::NoPermission {
            right,
            object,
            user,
        },
    ] = &checked.missing_rights[..]
    else {
        panic!("{checked:?}");
    };
    assert_eq!(
        (*right, object.kind),
        (Some(Right::Write), ObjectKind::Exchange)
    );
    assert_eq!(user.as_deref(), Some(&*reader));
    options.consumers[0].dead_letter_queue = None;

    let nobody = place.user(["", "", ""]).await;
    log_in(&mut options, &nobody);
    let checked = done(&options, Task::Check).await;
    let [error @ AmqpError::NoPermission { right, object, .. }] = &checked.missing_rights[..]
    else {
        panic!("{checked:?}");
    };
    assert_eq!((*right, &*object.name), (Some(Right::Read), "tasks"));
    assert_eq!(error.exit_code(), 15);
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let exit = show_topology(&options, TopologyAction::Check, false, &mut out, &mut err).await;
    assert_eq!(exit.expect("written"), Exit::NoPermission);

    // To declare is refused as a permission too.
    options.consumers[0].queue = "new".into();
    let error = refusal(&options, Task::Apply).await;
    assert!(
        matches!(&error, AmqpError::NoPermission { right: Some(Right::Configure), object, .. } if object.name == "new"),
        "{error}"
    );

    // The message is where it was, and no return of it was counted.
    let got = channel
        .basic_get("tasks".into(), Default::default())
        .await
        .expect("answered");
    let got = got.expect("the message is there");
    assert!(!got.redelivered);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_user_is_ready_without_declaring_and_without_a_ladder() {
    let place = Place::new().await;
    let owner = declare(&place, "tasks", &[("x-queue-type", text("quorum"))]).await;
    let mut options = place.options(vec![AmqpConsumer::new("c", "tasks")]);
    let reader = place.user(["", "", "^tasks$"]).await;
    let reading = place.connect_as(&reader).await;
    let ready = async |connection: &Connection, options: &AmqpOptions, declare| {
        let topology = Topology::new(connection, options).expect("valid");
        topology.ready(declare).await
    };
    let found = ready(&reading, &options, false).await.expect("ready");
    assert!(found.without_ladder.is_empty());
    let error = ready(&reading, &options, true)
        .await
        .expect_err("it may not declare");
    assert_eq!(error.exit_code(), 15, "{error}");

    // Retry copies are published: that right is missed at the start.
    options.consumers[0].ladder = vec![Duration::from_secs(1)];
    let error = ready(&reading, &options, false)
        .await
        .expect_err("it may not write");
    assert!(
        error
            .to_string()
            .contains("may not write exchange \"amq.default\""),
        "{error}"
    );

    let found = ready(&owner, &options, false).await.expect("ready");
    assert_eq!(found.without_ladder.len(), 1);
    let found = ready(&owner, &options, true).await.expect("ready");
    assert!(found.without_ladder.is_empty());
    options.consumers[0].queue = "missing".into();
    let error = ready(&owner, &options, false)
        .await
        .expect_err("it is missing");
    assert_eq!(error.exit_code(), 11, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_declare_rungs_goes_without_a_ladder() {
    let place = Place::new().await;
    let _owner = declare(&place, "tasks", &[("x-queue-type", text("quorum"))]).await;
    let user = place.user(["^tasks$", ".*", ".*"]).await;
    let mut options = place.options(vec![whole()]);
    options.consumers[0] = AmqpConsumer::new("c", "tasks");
    options.consumers[0].ladder = vec![Duration::from_secs(2)];
    log_in(&mut options, &user);
    let applied = done(&options, Task::Apply).await;
    assert_eq!(lines(&applied), [""; 0]);
    let [(consumer, AmqpError::NoPermission { .. })] =
        &applied.without_ladder.into_iter().collect::<Vec<_>>()[..]
    else {
        panic!("a ladder");
    };
    assert_eq!(consumer.as_str(), "c");
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_connections_are_told_apart() {
    let place = Place::new().await;
    let options = place.options(vec![AmqpConsumer::new("c", "tasks")]);

    let mut vhost = options.clone();
    vhost.uris[0].vhost = "does-not-exist".to_owned();
    let error = refusal(&vhost, Task::Plan).await;
    assert!(
        matches!(&error, AmqpError::NoSuchVhost { vhost } if vhost == "does-not-exist"),
        "{error}"
    );

    let mut password = options.clone();
    password.uris[0].password = acquit::transport::amqp::Secret::new("hunter2");
    let error = refusal(&password, Task::Plan).await;
    assert!(
        matches!(error, AmqpError::CredentialsRefused { .. }),
        "{error}"
    );
    assert!(!error.to_string().contains("hunter2"));

    let mut tls = options.clone();
    tls.uris[0].tls = true;
    let error = refusal(&tls, Task::Plan).await;
    assert!(error.to_string().contains("peer is not TLS"), "{error}");

    let mut nobody = options.clone();
    nobody.uris[0].port = 1;
    let error = refusal(&nobody, Task::Plan).await;
    assert!(matches!(error, AmqpError::Unreachable { .. }), "{error}");
    // The second address answers.
    nobody.uris.push(options.uris[0].clone());
    assert_eq!(done(&nobody, Task::Plan).await.changes.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_waits_in_its_rung_and_comes_back_to_its_partition() {
    let place = Place::new().await;
    let consumer = whole();
    let options = place.options(vec![consumer.clone()]);
    done(&options, Task::Apply).await;
    let ladder = Ladder::of(&consumer).expect("it has steps");
    let delay = Duration::from_millis(300);
    let rung = ladder.rung(acquit::model::PartitionId(1), delay);
    assert_eq!(rung.as_str(), "words.1.retry.300");

    let connection = place.connect().await;
    let channel = connection.create_channel().await.expect("a channel");
    channel
        .basic_qos(10, BasicQosOptions::default())
        .await
        .expect("qos");
    let mut arrivals = channel
        .basic_consume(
            "words.1".into(),
            "".into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        )
        .await
        .expect("subscribed");
    let began = Instant::now();
    publish(&channel, rung.as_str(), b"again").await;
    let arrival = tokio::time::timeout(BOUND, arrivals.next())
        .await
        .expect("in time");
    let arrival = arrival.expect("a stream").expect("a delivery");
    assert_eq!(arrival.data, b"again");
    assert!(began.elapsed() >= delay, "{:?}", began.elapsed());
    assert!(began.elapsed() < delay * 20, "{:?}", began.elapsed());

    // Somebody else's publish reaches a partition by its number.
    let number = channel.basic_publish(
        "words".into(),
        "1".into(),
        BasicPublishOptions::default(),
        b"direct",
        BasicProperties::default(),
    );
    number.await.expect("sent");
    let arrival = tokio::time::timeout(BOUND, arrivals.next())
        .await
        .expect("in time");
    assert_eq!(
        arrival.expect("a stream").expect("a delivery").data,
        b"direct"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exchange_type_that_the_broker_lacks_is_a_refused_declaration() {
    let place = Place::new().await;
    let mut consumer = AmqpConsumer::new("c", "tasks");
    consumer.partitions = 2;
    consumer.partitioning = Partitioning::ConsistentHash;
    let options = place.options(vec![consumer]);
    let report = done(&options, Task::Apply).await;
    assert_eq!(report.changes.len(), 5, "{:?}", lines(&report));
    // The node with the management API is without the plugin.
    let place = Place::managed().await;
    let options = place.options(options.consumers);
    let error = refusal(&options, Task::Apply).await;
    assert_eq!(error.exit_code(), 10, "{error}");
}

async fn publish(channel: &lapin::Channel, queue: &str, body: &[u8]) {
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await
        .expect("confirms");
    let options = BasicPublishOptions {
        mandatory: true,
        ..BasicPublishOptions::default()
    };
    let properties = BasicProperties::default().with_delivery_mode(2);
    let sent = channel.basic_publish("".into(), queue.into(), options, body, properties);
    let confirmation = sent.await.expect("sent").await.expect("confirmed");
    assert!(confirmation.is_ack() && confirmation.take_message().is_none());
}
