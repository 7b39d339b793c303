//! The broker or an operator ends connections, channels and queues.

use std::time::Duration;

use acquit::transport::amqp::topology::{Task, perform};
use acquit::transport::amqp::{AmqpConsumer, QueueType};

use crate::broker_kit::eventually;
use crate::own_node::OwnNode;
use crate::place::{Runs, counts, until};
use crate::site::{Site, shared};

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_an_operator_closes_under_load_lose_nothing() {
    let vhost = shared().await;
    let site = Site::on(&vhost).await;
    site.publish("held", 4, "hold").await;
    site.publish("m", 600, "work 10").await;
    let runs = Runs::default();
    let handle = site.start(site.spec(runs.handler()));
    for round in 1..=3 {
        runs.at_least(round * 100).await;
        vhost.close_connections(vhost.name(), "the test").await;
        until(&handle, "they are adopted", |c| {
            c.adopted >= 4 * round as u64
        })
        .await;
    }
    runs.open_gate();
    site.all_done(handle, &runs, &[("held", 4), ("m", 600)])
        .await;
    for n in 0..4 {
        assert_eq!(runs.of(&format!("held{n}")), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn channels_that_the_broker_closes_under_load_lose_nothing() {
    let vhost = shared().await;
    let site = Site::on(&vhost).await;
    site.publish("held", 4, "hold").await;
    site.publish("m", 600, "work 10").await;
    let runs = Runs::default();
    let handle = site.start(site.spec(runs.handler()));
    for round in 1..=3 {
        runs.at_least(round * 100).await;
        assert!(vhost.close_channels(vhost.name()).await > 0);
        until(&handle, "they are adopted", |c| {
            c.adopted >= 4 * round as u64
        })
        .await;
    }
    // The client takes a delivery behind the broker's close of a channel for a mistake of the whole connection: under
    // load that one is sometimes lost too.
    let snapshot = handle.snapshot().await.expect("a snapshot");
    assert!(snapshot.connections.iter().all(|one| one.opened <= 4));
    runs.open_gate();
    site.all_done(handle, &runs, &[("held", 4), ("m", 600)])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_timeout_closes_a_channel_and_its_work_is_adopted() {
    let node = OwnNode::take().await;
    node.set_consumer_timeout(Duration::from_secs(3)).await;
    let site = Site::at(&node, "timeout").await;
    site.publish("m", 3, "hold").await;
    let runs = Runs::default();
    let handle = site.start(site.spec(runs.handler()));
    runs.at_least(3).await;
    node.set_consumer_timeout(Duration::from_secs(1800)).await;
    until(&handle, "it is adopted", |c| c.adopted == 3).await;
    let snapshot = handle.snapshot().await.expect("a snapshot");
    assert!(
        snapshot.connections.iter().all(|one| one.opened == 1),
        "{:?}",
        snapshot.connections
    );
    runs.open_gate();
    site.all_done(handle, &runs, &[("m", 3)]).await;
    assert_eq!(runs.all().len(), 3, "each ran once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_deleted_under_running_work_and_made_anew_as_classic_is_consumed() {
    let vhost = shared().await;
    let site = Site::on(&vhost).await;
    site.publish("gone", 4, "hold").await;
    let runs = Runs::default();
    let handle = site.start(site.spec(runs.handler()));
    runs.at_least(4).await;
    vhost.delete_queue(vhost.name(), "words").await;
    site.trouble(&handle, "words").await;
    // Their messages went with the queue: their ends are told to nobody.
    runs.open_gate();
    until(&handle, "what ran is lost", |c| {
        c.in_hand == 0 && c.lost == 4
    })
    .await;
    let mut classic = site.options.clone();
    classic.queue_type = QueueType::Classic;
    classic.consumers = vec![AmqpConsumer::new("words", "words")];
    perform(&classic, Task::Apply).await.expect("a topology");
    let info = vhost.queue(vhost.name(), "words").await.expect("a queue");
    assert_eq!(info.queue_type, "classic");
    site.publish("new", 50, "ok").await;
    until(&handle, "it is consumed", |c| c.acked == 50).await;
    let counts = counts(&handle).await;
    assert_eq!((counts.lost, counts.redelivered), (4, 0));
    site.holds("words.results", 50).await;
    assert!(crate::place::drained(handle).await.clean);
    site.counts("words", [0, 0, 0]).await;
    site.broker_is_content().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_consumers_on_one_connection_come_back_as_eight() {
    let vhost = shared().await;
    let mut consumer = crate::place::words();
    consumer.partitions = 8;
    let site = Site::with(&vhost, vhost.port(), vhost.name(), consumer).await;
    let runs = Runs::default();
    let handle = site.start(site.spec(runs.handler()).with_partitions(8));
    let eight = async || {
        for partition in 0..8 {
            site.counts(&format!("words.{partition}"), [0, 0, 1]).await;
        }
    };
    eight().await;
    for _ in 0..3 {
        vhost.close_connections(vhost.name(), "the test").await;
        eight().await;
    }
    eventually("two connections, eight channels", async || {
        let all = vhost.list_connections().await;
        let mine: Vec<u64> = all
            .iter()
            .filter(|one| one.vhost == vhost.name())
            .map(|one| one.channels)
            .collect();
        (mine.len() == 2 && mine.iter().max() == Some(&8)).then_some(())
    })
    .await;
    site.publish("m", 80, "ok").await;
    until(&handle, "all are acked", |c| c.acked == 80).await;
    assert!(crate::place::drained(handle).await.clean);
}
