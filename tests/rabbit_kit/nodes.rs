//! Private nodes: started, asked, stopped, killed, frozen, joined.

use std::time::Duration;

use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, Consumer};

use futures_util::StreamExt;

use super::broker_kit::{
    BOUND, Cluster, EvalError, Node, NodeOptions, PolicyTarget, SharedBroker, eventually,
};

async fn connect(uri: &str) -> Connection {
    let properties = ConnectionProperties::default().with_connection_name("the kit".into());
    Connection::connect(uri, properties)
        .await
        .expect("a connection")
}

async fn declare(channel: &Channel, queue: &str, queue_type: &str) {
    let options = QueueDeclareOptions {
        durable: true,
        ..QueueDeclareOptions::default()
    };
    let mut arguments = FieldTable::default();
    let value = AMQPValue::LongString(queue_type.into());
    arguments.insert("x-queue-type".into(), value);
    channel
        .queue_declare(queue.into(), options, arguments)
        .await
        .expect("a queue");
}

async fn publish(channel: &Channel, queue: &str, body: &[u8]) {
    let options = BasicPublishOptions::default();
    let properties = BasicProperties::default().with_delivery_mode(2);
    channel
        .basic_publish("".into(), queue.into(), options, body, properties)
        .await
        .expect("a publish")
        .await
        .expect("a confirm");
}

async fn consume(channel: &Channel, queue: &str) -> Consumer {
    channel
        .basic_qos(10, BasicQosOptions::default())
        .await
        .expect("a prefetch");
    let options = BasicConsumeOptions::default();
    channel
        .basic_consume(queue.into(), "c".into(), options, FieldTable::default())
        .await
        .expect("a consumer")
}

#[tokio::test]
async fn a_virtual_host_of_the_shared_node_counts_what_clients_do() {
    let vhost = SharedBroker::vhost().await;
    let connection = connect(&vhost.uri()).await;
    let channel = connection.create_channel().await.expect("a channel");
    for queue_type in ["classic", "quorum"] {
        let queue = format!("a {queue_type} one");
        declare(&channel, &queue, queue_type).await;
        for body in [b"one", b"two"] {
            publish(&channel, &queue, body).await;
        }
        vhost.await_counts(vhost.name(), &queue, [2, 0, 0]).await;
        let other = connection.create_channel().await.expect("a channel");
        let mut consumer = consume(&other, &queue).await;
        let delivery = consumer.next().await.expect("one").expect("a delivery");
        vhost.await_counts(vhost.name(), &queue, [0, 2, 1]).await;
        delivery
            .ack(BasicAckOptions::default())
            .await
            .expect("an ack");
        vhost.await_counts(vhost.name(), &queue, [0, 1, 1]).await;
        let info = vhost.queue(vhost.name(), &queue).await.expect("the queue");
        assert_eq!(info.queue_type, queue_type);
        assert_eq!(info.messages, Some(1));
    }
    let mine = vhost.list_connections().await;
    let mine = mine
        .iter()
        .find(|one| one.vhost == vhost.name())
        .expect("our connection");
    assert_eq!(
        (mine.client_name.as_str(), mine.user.as_str()),
        ("the kit", "guest")
    );
    assert!(mine.channels >= 1);

    assert_eq!(
        vhost
            .close_connections(vhost.name(), "the operator says so")
            .await,
        1
    );
    eventually("the connection is closed", async || {
        (!connection.status().connected()).then_some(())
    })
    .await;
    let failed = vhost.try_eval("error(no)").await;
    assert!(matches!(failed, Err(EvalError::Failed(reason)) if reason == "{error,no}"));
}

#[tokio::test]
async fn policies_and_deleted_queues_reach_the_client() {
    let vhost = SharedBroker::vhost().await;
    let connection = connect(&vhost.uri()).await;
    let channel = connection.create_channel().await.expect("a channel");
    declare(&channel, "short", "classic").await;
    let full = r#"{"max-length": 1, "overflow": "reject-publish"}"#;
    vhost
        .set_policy(vhost.name(), "p", "^short$", full, PolicyTarget::Queues)
        .await;
    channel
        .confirm_select(Default::default())
        .await
        .expect("confirms");
    eventually("a publish that is refused", async || {
        let options = BasicPublishOptions::default();
        let confirm = channel
            .basic_publish(
                "".into(),
                "short".into(),
                options,
                b"x",
                BasicProperties::default(),
            )
            .await
            .expect("a publish")
            .await
            .expect("an answer");
        confirm.is_nack().then_some(())
    })
    .await;
    vhost.clear_policy(vhost.name(), "p").await;
    let mut consumer = consume(&channel, "short").await;
    vhost.delete_queue(vhost.name(), "short").await;
    while let Some(delivery) = consumer.next().await {
        delivery.expect("what was sent before the cancel");
    }
    assert_eq!(vhost.queue(vhost.name(), "short").await, None);

    assert_eq!(vhost.close_channels(vhost.name()).await, 1);
    eventually("the channel is closed", async || {
        (!channel.status().connected()).then_some(())
    })
    .await;
    assert!(connection.status().connected());
}

#[tokio::test]
async fn a_node_keeps_its_messages_over_a_stop_and_over_a_kill() {
    let node = Node::start().await;
    let connection = connect(&node.uri()).await;
    let channel = connection.create_channel().await.expect("a channel");
    channel
        .confirm_select(Default::default())
        .await
        .expect("confirms");
    declare(&channel, "kept", "classic").await;
    publish(&channel, "kept", b"one").await;
    node.restart().await;
    node.await_counts("/", "kept", [1, 0, 0]).await;

    let connection = connect(&node.uri()).await;
    let channel = connection.create_channel().await.expect("a channel");
    channel
        .confirm_select(Default::default())
        .await
        .expect("confirms");
    publish(&channel, "kept", b"two").await;
    node.kill();
    assert!(node.pid().is_none());
    node.start_again().await;
    node.await_counts("/", "kept", [2, 0, 0]).await;
    assert!(node.log_text().contains("Server startup complete"));
}

#[tokio::test]
async fn an_operator_can_do_everything_to_a_private_node() {
    let node = Node::start_with(NodeOptions {
        management: true,
        consumer_timeout: Some(Duration::from_secs(1)),
        ..NodeOptions::default()
    })
    .await;
    let management = node.management_uri().expect("the management plugin");
    assert!(management.starts_with("http://guest:guest@127.0.0.1:"));

    node.add_vhost("v").await;
    node.add_user("reader", "one").await;
    node.set_permissions("reader", "v", ["^$", "^$", ".*"])
        .await;
    let uri = |password: &str| format!("amqp://reader:{password}@127.0.0.1:{}/v", node.port());
    let connection = connect(&uri("one")).await;
    node.change_password("reader", "two").await;
    let refused = Connection::connect(&uri("one"), ConnectionProperties::default()).await;
    assert!(refused.is_err());
    connect(&uri("two")).await;
    node.clear_permissions("reader", "v").await;
    let refused = Connection::connect(&uri("two"), ConnectionProperties::default()).await;
    assert!(refused.is_err());
    node.delete_user("reader").await;
    node.delete_vhost("v").await;
    eventually("the connection is closed", async || {
        (!connection.status().connected()).then_some(())
    })
    .await;

    // The consumer timeout takes a channel, and leaves the connection.
    let connection = connect(&node.uri()).await;
    let channel = connection.create_channel().await.expect("a channel");
    declare(&channel, "slow", "quorum").await;
    publish(&channel, "slow", b"one").await;
    let mut consumer = consume(&channel, "slow").await;
    consumer.next().await.expect("one").expect("a delivery");
    let closed = tokio::time::timeout(BOUND, consumer.next())
        .await
        .expect("in time");
    assert!(closed.expect("an error").is_err());
    assert!(connection.status().connected());

    node.memory_alarm(true).await;
    let channel = connection.create_channel().await.expect("a channel");
    let options = BasicPublishOptions::default();
    channel
        .basic_publish(
            "".into(),
            "slow".into(),
            options,
            b"x",
            BasicProperties::default(),
        )
        .await
        .expect("a publish");
    eventually("a blocked connection", async || {
        connection.status().blocked().then_some(())
    })
    .await;
    node.memory_alarm(false).await;
    eventually("an unblocked connection", async || {
        (!connection.status().blocked()).then_some(())
    })
    .await;

    node.sigstop();
    let frozen = tokio::time::timeout(Duration::from_millis(300), node.is_running()).await;
    assert!(frozen.is_err(), "a frozen node answers nothing");
    node.sigcont();
    eventually("a thawed node", async || {
        node.is_running().await.then_some(())
    })
    .await;
    node.close_all_connections("enough").await;
    let status = node.ctl(&["list_vhosts", "--silent"]).await;
    assert_eq!(String::from_utf8_lossy(&status.stdout).trim(), "/");
}

#[tokio::test]
async fn a_cluster_of_three_elects_another_leader() {
    let cluster = Cluster::start().await;
    let connection = connect(&cluster.uris()[2]).await;
    let channel = connection.create_channel().await.expect("a channel");
    channel
        .confirm_select(Default::default())
        .await
        .expect("confirms");
    declare(&channel, "led", "quorum").await;
    publish(&channel, "led", b"one").await;
    assert_eq!(cluster.leader_of("/", "led").await, Some(2));
    cluster.kill(2);
    eventually("another leader", async || {
        let leader = cluster.leader_of("/", "led").await?;
        (leader != 2).then_some(())
    })
    .await;
    cluster.node(0).await_counts("/", "led", [1, 0, 0]).await;
    cluster.node(2).start_again().await;
}
