//! The broker goes and comes back.

use std::time::{Duration, Instant};

use acquit_actors::Counts;

use crate::broker_kit::eventually;
use crate::own_node::OwnNode;
use crate::place::{Runs, connected, counts, until};
use crate::site::Site;

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_killed_and_started_gets_all_its_work_done() {
    let node = OwnNode::take().await;
    let site = Site::at(&node, "killed").await;
    site.publish("held", 8, "hold").await;
    site.publish("m", 400, "work 5").await;
    let runs = Runs::default();
    let handle = site.start(site.spec(runs.handler()));
    runs.at_least(8 + 40).await;
    node.kill();
    eventually("the loss is noticed", async || {
        let snapshot = handle.snapshot().await.ok()?;
        let open = snapshot.connections.iter().any(|one| one.state == "open");
        (!open).then_some(())
    })
    .await;
    node.start_again().await;
    let back = Instant::now();
    connected(&handle).await;
    let redelivered = |counts: &Counts| counts.redelivered > 0;
    until(&handle, "it is consumed again", redelivered).await;
    assert!(
        back.elapsed() < Duration::from_secs(8),
        "{:?}",
        back.elapsed()
    );
    until(&handle, "what ran is adopted", |counts| counts.adopted >= 8).await;
    runs.open_gate();
    let counts = site
        .all_done(handle, &runs, &[("held", 8), ("m", 400)])
        .await;
    assert_eq!(counts.failed, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clean_restart_of_the_broker_runs_nothing_twice() {
    let node = OwnNode::take().await;
    let site = Site::at(&node, "restarted").await;
    site.publish("held", 8, "hold").await;
    site.publish("m", 200, "ok").await;
    let runs = Runs::default();
    let handle = site.start(site.spec(runs.handler()));
    until(&handle, "the others are done", |c| c.acked == 200).await;
    node.restart().await;
    until(&handle, "what ran is adopted", |c| c.adopted >= 8).await;
    assert_eq!(counts(&handle).await.known, 0);
    runs.open_gate();
    site.publish("after", 5, "ok").await;
    site.all_done(handle, &runs, &[("held", 8), ("m", 200), ("after", 5)])
        .await;
    assert_eq!(runs.all().len(), 213);
}
