//! The broker runs out of memory: what publishes is blocked.

use std::sync::Arc;
use std::time::{Duration, Instant};

use acquit::transport::amqp::AmqpTransport;
use acquit_actors::{ConsumerSpec, Engine};

use crate::broker_kit::eventually;
use crate::own_node::OwnNode;
use crate::place::{Runs, counts, drained, until};
use crate::site::Site;

#[tokio::test(flavor = "multi_thread")]
async fn acks_go_on_under_a_memory_alarm_while_publishes_are_kept() {
    let node = OwnNode::take().await;
    let site = Site::at(&node, "alarm").await;
    site.publish("m", 20, "ok").await;
    site.publish("held", 4, "hold").await;
    let runs = Runs::default();
    let transport = AmqpTransport::open(site.options.clone()).expect("a thread");
    // The second has nothing to publish.
    let plain = Runs::default();
    let handle = Engine::new(Arc::new(transport))
        .with_consumer(site.spec(runs.handler()))
        .with_consumer(ConsumerSpec::new("plain", "words.dead", plain.handler()))
        .with_drain_timeout(Duration::from_secs(5))
        .start()
        .expect("an engine");
    until(&handle, "the first are done", |c| c.acked == 20).await;
    site.to("words.dead", "plain", 50, "hold").await;
    plain.at_least(16).await;
    node.memory_alarm(true).await;
    runs.open_gate();
    plain.open_gate();
    site.counts("words.dead", [0, 0, 1]).await;
    assert_eq!(plain.all().len(), 50, "all while the alarm is on");
    site.trouble(&handle, "blocked").await;
    assert_eq!(counts(&handle).await.acked, 20, "no reply, no ack");
    node.memory_alarm(false).await;
    let counts = site
        .all_done(handle, &runs, &[("m", 20), ("held", 4)])
        .await;
    assert_eq!((counts.lost, counts.redelivered), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_under_a_memory_alarm_ends_in_time_and_acks_nothing_unanswered() {
    let node = OwnNode::take().await;
    let site = Site::at(&node, "drained-alarm").await;
    site.publish("m", 6, "hold").await;
    let runs = Runs::default();
    let handle = site.start_with(site.spec(runs.handler()), Duration::from_secs(2));
    runs.at_least(6).await;
    node.memory_alarm(true).await;
    runs.open_gate();
    site.trouble(&handle, "blocked").await;
    let start = Instant::now();
    let report = drained(handle).await;
    let took = start.elapsed();
    node.memory_alarm(false).await;
    assert!(took < Duration::from_secs(2 + 4), "{took:?} {report}");
    assert_eq!(report.acked, 0, "{report}");
    // What was published into the blocked connection may or may not have arrived; the work is all there.
    eventually("all are ready", async || {
        let info = node.queue(&site.vhost, "words").await?;
        (info.ready? == 6 && info.unacked? == 0).then_some(())
    })
    .await;
    let second = Runs::default();
    let handle = site.start(site.spec(second.handler()));
    second.at_least(6).await;
    second.open_gate();
    until(&handle, "all are acked", |c| c.acked == 6).await;
    assert!(drained(handle).await.clean);
    site.counts("words", [0, 0, 0]).await;
    site.broker_is_content().await;
}
