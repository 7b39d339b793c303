//! Channels and connections that are lost with work in flight.

use crate::broker_kit::eventually;
use crate::place::{Place, Runs, connected, counts, drained, until};

#[tokio::test(flavor = "multi_thread")]
async fn work_that_runs_when_its_connection_dies_is_adopted_and_runs_once() {
    let place = Place::new().await;
    place.publish(&["hold"]).await;
    let runs = Runs::default();
    let handle = place.start(place.spec(runs.handler()));
    runs.at_least(1).await;
    let vhost = place.vhost.name();
    place.vhost.close_connections(vhost, "the test").await;
    until(&handle, "the redelivery is adopted", |c| c.adopted == 1).await;
    runs.open_gate();
    until(&handle, "it is acked", |c| c.acked == 1).await;
    assert_eq!(runs.all().len(), 1);
    place.holds("words", 0).await;
    place.holds("words.results", 1).await;
    assert!(drained(handle).await.clean);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_queue_is_waited_for_and_consumed_when_it_is_back() {
    let place = Place::new().await;
    let runs = Runs::default();
    let handle = place.start(place.spec(runs.handler()));
    place.counts("words", [0, 0, 1]).await;
    let vhost = place.vhost.name();
    place.vhost.delete_queue(vhost, "words").await;
    eventually("the trouble is shown", async || {
        let snapshot = handle.snapshot().await.ok()?;
        let trouble = snapshot.consumers[0].partitions[0].trouble.clone()?;
        trouble.contains("words").then_some(())
    })
    .await;
    acquit::transport::amqp::topology::perform(
        &place.options,
        acquit::transport::amqp::topology::Task::Apply,
    )
    .await
    .expect("a topology");
    place.publish(&["ok"]).await;
    until(&handle, "it is consumed again", |c| c.acked == 1).await;
    assert!(drained(handle).await.clean);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_whose_queue_is_away_keeps_the_work_and_is_published_once() {
    let place = Place::new().await;
    let vhost = place.vhost.name();
    place.vhost.delete_queue(vhost, "words.results").await;
    place.publish(&["ok"]).await;
    let runs = Runs::default();
    let handle = place.start(place.spec(runs.handler()));
    runs.at_least(1).await;
    eventually("intake pauses", async || {
        let snapshot = handle.snapshot().await.ok()?;
        let trouble = snapshot.consumers[0].partitions[0].trouble.clone()?;
        trouble.contains("no such queue").then_some(())
    })
    .await;
    assert_eq!(counts(&handle).await.acked, 0);
    acquit::transport::amqp::topology::perform(
        &place.options,
        acquit::transport::amqp::topology::Task::Apply,
    )
    .await
    .expect("a topology");
    until(&handle, "it is acked", |c| c.acked == 1).await;
    place.holds("words.results", 1).await;
    assert_eq!(runs.all().len(), 1);
    connected(&handle).await;
    assert!(drained(handle).await.clean);
}
