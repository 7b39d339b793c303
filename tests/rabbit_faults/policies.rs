//! Policies of the broker against the work: full queues, times to live, delivery limits.

use std::time::Duration;

use acquit::transport::amqp::QueueType;

use crate::broker_kit::PolicyTarget;
use crate::place::{Runs, counts, drained, until, words};
use crate::site::{Site, options, shared};

/// Replies that a full queue refuses are kept until there is room, and their work is run once.
async fn full_reply_queue(queue_type: QueueType) {
    let vhost = shared().await;
    let mut options = options(vhost.port(), vhost.name(), words());
    options.queue_type = queue_type;
    let site = Site::of(&vhost, vhost.name(), options).await;
    let full = r#"{"max-length": 1, "overflow": "reject-publish"}"#;
    let (name, target) = (vhost.name(), PolicyTarget::Queues);
    vhost
        .set_policy(name, "full", "^words.results$", full, target)
        .await;
    site.publish("m", 30, "ok").await;
    let runs = Runs::default();
    let handle = site.start(site.spec(runs.handler()));
    site.trouble(&handle, "words.results").await;
    let before = counts(&handle).await;
    assert!(before.acked < 30 && before.requeued == 0, "{before:?}");
    vhost.clear_policy(name, "full").await;
    site.all_done(handle, &runs, &[("m", 30)]).await;
    assert_eq!(runs.all().len(), 30, "each ran once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_reply_queue_keeps_the_work_until_there_is_room() {
    full_reply_queue(QueueType::Quorum).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_classic_reply_queue_keeps_the_work_until_there_is_room() {
    full_reply_queue(QueueType::Classic).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_dead_letter_queue_loses_no_letter() {
    let vhost = shared().await;
    let site = Site::on(&vhost).await;
    let full = r#"{"max-length": 1, "overflow": "reject-publish"}"#;
    let (name, target) = (vhost.name(), PolicyTarget::Queues);
    vhost
        .set_policy(name, "full", "^words.dead$", full, target)
        .await;
    // The limit is a soft one: what is under way when it is reached is still taken.
    site.publish("m", 100, "reject").await;
    let runs = Runs::default();
    let handle = site.start(site.spec(runs.handler()));
    site.trouble(&handle, "words.dead").await;
    vhost.clear_policy(name, "full").await;
    until(&handle, "all are settled", |c| {
        c.in_hand == 0 && c.rejected == 100
    })
    .await;
    assert_eq!(runs.all().len(), 100, "each ran once");
    site.holds("words.dead", 100).await;
    assert!(drained(handle).await.clean);
    site.counts("words", [0, 0, 0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_expire_in_the_queue_disturb_nothing() {
    let vhost = shared().await;
    let site = Site::on(&vhost).await;
    let (name, target) = (vhost.name(), PolicyTarget::Queues);
    let ttl = r#"{"message-ttl": 400}"#;
    vhost.set_policy(name, "ttl", "^words$", ttl, target).await;
    let runs = Runs::default();
    let handle = site.start(site.spec(runs.handler()).with_permits(1));
    site.publish("m", 20, "hold").await;
    runs.at_least(1).await;
    // All but what was pushed are gone by themselves.
    let pushed = counts(&handle).await.received;
    site.counts("words", [0, pushed, 1]).await;
    runs.open_gate();
    until(&handle, "what was pushed is done", |c| c.acked == pushed).await;
    assert!(drained(handle).await.clean);
    site.counts("words", [0, 0, 0]).await;
    site.broker_is_content().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn work_whose_message_expires_when_its_channel_dies_ends_without_a_word() {
    let vhost = shared().await;
    let site = Site::on(&vhost).await;
    let (name, target) = (vhost.name(), PolicyTarget::Queues);
    let ttl = r#"{"message-ttl": 1500}"#;
    let both = "^words(.results)?$";
    vhost.set_policy(name, "ttl", both, ttl, target).await;
    let runs = Runs::default();
    let handle = site.start(site.spec(runs.handler()));
    site.counts("words", [0, 0, 1]).await;
    site.publish("m", 3, "hold").await;
    runs.at_least(3).await;
    // What was published later and waits is gone: so is what is running, should it come back.
    site.to("words.results", "probe", 1, "ok").await;
    site.counts("words.results", [0, 0, 0]).await;
    vhost.close_connections(name, "the test").await;
    site.counts("words", [0, 0, 1]).await;
    vhost.clear_policy(name, "ttl").await;
    runs.open_gate();
    until(&handle, "nothing is left", |c| c.in_hand == 0).await;
    let seen = counts(&handle).await;
    assert_eq!((seen.lost, seen.adopted, seen.acked), (3, 0, 0), "{seen:?}");
    site.publish("after", 5, "ok").await;
    until(&handle, "it goes on", |c| c.acked == 5).await;
    assert!(drained(handle).await.clean);
    site.counts("words", [0, 0, 0]).await;
    site.broker_is_content().await;
}

/// Starts an engine, waits for the long task, and drains it away, so many times.
async fn rolled(site: &Site<'_>, times: usize, permits: u32) -> Runs {
    let runs = Runs::default();
    for round in 1..=times {
        let spec = site.spec(runs.handler()).with_permits(permits);
        let handle = site.start_with(spec, Duration::from_millis(200));
        runs.at_least(round).await;
        let report = drained(handle).await;
        assert_eq!((report.acked, report.rejected), (0, 0), "{report}");
    }
    runs
}

#[tokio::test(flavor = "multi_thread")]
async fn five_rolling_restarts_of_a_long_task_do_not_abandon_it() {
    let vhost = shared().await;
    let site = Site::on(&vhost).await;
    site.publish("long", 1, "hold").await;
    let runs = rolled(&site, 5, 1).await;
    assert_eq!(runs.of("long0"), 5);
    assert!(runs.all().iter().all(|run| run.attempt == 1), "no failure");
    let last = Runs::default();
    let handle = site.start(site.spec(last.handler()));
    last.at_least(1).await;
    last.open_gate();
    site.all_done(handle, &last, &[("long", 1)]).await;
    site.holds("words.dead", 0).await;
}

/// With a limit of the broker's own, each restart costs what runs one count, and what waits behind it none.
#[tokio::test(flavor = "multi_thread")]
async fn restarts_do_not_use_up_the_deliveries_of_what_waits_behind_a_long_task() {
    let vhost = shared().await;
    let site = Site::on(&vhost).await;
    let (name, target) = (vhost.name(), PolicyTarget::Queues);
    let limit = r#"{"delivery-limit": 3}"#;
    vhost
        .set_policy(name, "limit", "^words$", limit, target)
        .await;
    site.publish("long", 1, "hold").await;
    site.publish("m", 20, "ok").await;
    rolled(&site, 3, 1).await;
    site.counts("words", [21, 0, 0]).await;
    let last = Runs::default();
    let handle = site.start(site.spec(last.handler()));
    last.at_least(21).await;
    last.open_gate();
    site.all_done(handle, &last, &[("long", 1), ("m", 20)])
        .await;
    site.holds("words.dead", 0).await;
}
