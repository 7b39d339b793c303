//! Channels and connections that are lost with work in flight.

use acquit_actors::{Handle, Target};

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
async fn a_channel_lost_while_paused_is_seen_and_its_work_is_adopted_after_a_resume() {
    for whole_connection in [false, true] {
        let place = Place::new().await;
        place.publish(&["hold"]).await;
        let runs = Runs::default();
        let handle = place.start(place.spec(runs.handler()));
        runs.at_least(1).await;
        let words = Target::consumer("words");
        handle.pause(words.clone(), "test").await.expect("paused");
        subscription_is(&handle, "quiet").await;
        let vhost = place.vhost.name();
        match whole_connection {
            false => place.vhost.close_channels(vhost).await,
            true => place.vhost.close_connections(vhost, "the test").await,
        };
        subscription_is(&handle, "waiting").await;
        handle.resume(words).await.expect("resumed");
        until(&handle, "the redelivery is adopted", |c| c.adopted == 1).await;
        runs.open_gate();
        until(&handle, "it is acked", |c| c.acked == 1).await;
        assert_eq!(runs.all().len(), 1);
        place.holds("words", 0).await;
        connected(&handle).await;
        assert!(drained(handle).await.clean);
    }
}

async fn subscription_is(handle: &Handle, word: &str) {
    eventually(&format!("the subscription is {word}"), async || {
        let snapshot = handle.snapshot().await.ok()?;
        (snapshot.consumers[0].partitions[0].subscription == word).then_some(())
    })
    .await;
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
