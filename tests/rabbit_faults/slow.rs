//! What takes minutes: a frozen broker, many restarts, a flapping network, a cluster.

use std::time::{Duration, Instant};

use acquit::transport::amqp::AmqpUri;
use acquit_actors::Handle;

use crate::broker_kit::{Cluster, Cut, Node, NodeOptions, Proxy, eventually};
use crate::own_node::OwnNode;
use crate::place::{Runs, connected, counts, until, words};
use crate::site::{Site, options, shared};

/// A minute passes, or less.
async fn passes(time: Duration) {
    // tidy-allow: sleep: how long the fault lasts is the point of these tests
    tokio::time::sleep(time).await;
}

async fn frozen(seconds: u64) {
    let node = OwnNode::take().await;
    let site = Site::at(&node, &format!("frozen-{seconds}")).await;
    site.publish("held", 8, "hold").await;
    site.publish("m", 400, "work 5").await;
    let runs = Runs::default();
    let handle = site.start(site.spec(runs.handler()));
    runs.at_least(100).await;
    node.sigstop();
    passes(Duration::from_secs(seconds)).await;
    node.sigcont();
    let thawed = Instant::now();
    // One that is gone answers at once what it missed; then all is as after any loss.
    until(&handle, "the rest is done", |c| c.acked == 400).await;
    eprintln!(
        "frozen {seconds} s: all the rest is done {:?} after",
        thawed.elapsed()
    );
    connected(&handle).await;
    runs.open_gate();
    let published = [("held", 8), ("m", 400)];
    // What was published before is published again under its id where no confirmation came in time.
    let counts = site.all_done_but(handle, &runs, &published, 16).await;
    for n in 0..8 {
        assert_eq!(runs.of(&format!("held{n}")), 1, "{counts:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes half a minute"]
async fn slow_a_broker_frozen_for_5_seconds_is_waited_for() {
    frozen(5).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes most of a minute"]
async fn slow_a_broker_frozen_for_20_seconds_loses_nothing() {
    frozen(20).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes two minutes"]
async fn slow_a_broker_frozen_for_90_seconds_loses_nothing() {
    frozen(90).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes ten minutes"]
async fn slow_after_fifty_restarts_consuming_begins_within_seconds_of_the_open_port() {
    let rounds = std::env::var("ACQUIT_TEST_RESTARTS").ok();
    let rounds: usize = rounds.and_then(|text| text.parse().ok()).unwrap_or(50);
    let node = OwnNode::take().await;
    let site = Site::at(&node, "restarts").await;
    site.publish("held", 4, "hold").await;
    let runs = Runs::default();
    // Longer than all of the restarts.
    let spec = site
        .spec(runs.handler())
        .with(|spec| spec.handler_timeout = Duration::from_secs(3600));
    let handle = site.start(spec);
    runs.at_least(4).await;
    let mut took = Vec::new();
    for round in 0..rounds {
        let before = counts(&handle).await.redelivered;
        if round % 2 == 0 {
            node.kill();
        } else {
            node.stop().await;
        }
        let opened = port_opens(&node);
        let (opened, ()) = tokio::join!(opened, node.start_again());
        consumed_again(&handle, before, round).await;
        took.push(opened.elapsed());
    }
    took.sort_unstable();
    let at = |percent: usize| took[(took.len() * percent).div_ceil(100).max(1) - 1];
    eprintln!(
        "consuming again after the port opens, {rounds} restarts: p50 {:?}, p95 {:?}, p100 {:?}",
        at(50),
        at(95),
        at(100)
    );
    runs.open_gate();
    site.all_done(handle, &runs, &[("held", 4)]).await;
    assert_eq!(runs.all().len(), 4, "each ran once");
    assert!(at(50) <= Duration::from_secs(1), "{:?}", at(50));
    assert!(at(95) <= Duration::from_secs(3), "{:?}", at(95));
    assert!(at(100) <= Duration::from_secs(8), "{:?}", at(100));
}

/// Says what is seen of the engine when nothing comes.
async fn consumed_again(handle: &Handle, before: u64, round: usize) {
    let mut look = tokio::time::interval(Duration::from_millis(10));
    for _ in 0..3000 {
        look.tick().await;
        if counts(handle).await.redelivered > before {
            return;
        }
    }
    let snapshot = handle.snapshot().await.expect("a snapshot");
    panic!("not consumed again in round {round}: {snapshot:#?}");
}

async fn port_opens(node: &Node) -> Instant {
    let address = node.address();
    let connect = async || tokio::net::TcpStream::connect(address).await.ok();
    eventually("the port is open", connect).await;
    Instant::now()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes more than a minute"]
async fn slow_a_network_that_flaps_each_second_for_a_minute_loses_nothing() {
    let vhost = shared().await;
    let proxy = Proxy::start(([127, 0, 0, 1], vhost.port()).into());
    let heartbeat = Duration::from_secs(2);
    let site = Site::on(&vhost).await.through(proxy.port(), heartbeat);
    site.publish("held", 4, "hold").await;
    site.publish("m", 1500, "work 100").await;
    let runs = Runs::default();
    let handle = site.start(site.spec(runs.handler()));
    runs.at_least(20).await;
    for round in 0..60 {
        let cut = if round % 2 == 0 { Cut::Reset } else { Cut::Fin };
        proxy.cut(cut);
        passes(Duration::from_secs(1)).await;
    }
    connected(&handle).await;
    let counts = counts(&handle).await;
    eprintln!("after a minute of flapping: {counts:?}");
    assert!(counts.acked > 200, "work gets done meanwhile: {counts:?}");
    runs.open_gate();
    // A cut of the publishing connection alone repeats publishes that no other counter tells of.
    let published = [("held", 4), ("m", 1500)];
    site.all_done_but(handle, &runs, &published, 60 * 16).await;
    for n in 0..4 {
        assert_eq!(runs.of(&format!("held{n}")), 1);
    }
}

/// Three nodes, the engine connected to the first; the node `lose` picks of (first, leader) is killed.
async fn cluster(lose: fn(usize) -> usize) {
    let cluster = Cluster::start_with(NodeOptions::default()).await;
    let vhost = "cluster";
    cluster.node(0).add_vhost(vhost).await;
    let mut all = options(cluster.node(0).port(), vhost, words());
    for index in 1..3 {
        let mut uri = AmqpUri::local(cluster.node(index).port());
        vhost.clone_into(&mut uri.vhost);
        all.uris.push(uri);
    }
    let maker = Site::of(cluster.node(0), vhost, all.clone()).await;
    maker.publish("held", 4, "hold").await;
    maker.publish("m", 400, "work 10").await;
    let runs = Runs::default();
    let handle = maker.start(maker.spec(runs.handler()));
    runs.at_least(100).await;
    let leader = cluster.leader_of(vhost, "words").await.expect("a leader");
    let lost = lose(leader);
    eprintln!("the leader is node {leader}; node {lost} is lost");
    cluster.kill(lost);
    let lives = (lost + 1) % 3;
    all.uris.rotate_left(lives);
    let site = Site::of(cluster.node(lives), vhost, all).await;
    until(&handle, "the rest is done", |c| c.acked >= 400).await;
    runs.open_gate();
    let counts = site
        .all_done(handle, &runs, &[("held", 4), ("m", 400)])
        .await;
    eprintln!("{counts:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a cluster takes a minute"]
async fn slow_a_cluster_that_loses_the_leader_of_the_queue_loses_no_work() {
    cluster(|leader| leader).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a cluster takes a minute"]
async fn slow_a_cluster_that_loses_another_node_than_the_leader_loses_no_work() {
    cluster(|leader| (leader + 1) % 3).await;
}
