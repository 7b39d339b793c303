//! The plain path: in, settled once, replies out, drained.

use std::sync::Arc;
use std::time::Duration;

use acquit_actors::Engine;
use acquit_actors::limiter::LimiterLimits;

use crate::place::{Place, Runs, Seen, counts, drained, until, words};

#[tokio::test(flavor = "multi_thread")]
async fn every_message_is_settled_once_and_answered() {
    let place = Place::new().await;
    let bodies: Vec<String> = (0..500).map(|n| format!("ok {n}")).collect();
    let bodies: Vec<&str> = bodies.iter().map(String::as_str).collect();
    place.publish(&bodies).await;
    let runs = Runs::default();
    let handle = place.start(place.spec(runs.handler()).with_permits(16));
    until(&handle, "all are acked", |counts| counts.acked == 500).await;
    place.holds("words", 0).await;
    place.holds("words.results", 500).await;
    let report = drained(handle).await;
    assert!(report.clean, "{report}");
    assert_eq!(runs.all().len(), 500);
    place.counts("words", [0, 0, 0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn partitions_are_consumed_each_on_its_own_channel() {
    let mut consumer = words();
    consumer.partitions = 4;
    let place = Place::with(consumer).await;
    place.publish(&["ok"; 40]).await;
    let runs = Runs::default();
    let handle = place.start(place.spec(runs.handler()));
    until(&handle, "all are acked", |counts| counts.acked == 40).await;
    for partition in 0..4 {
        let seen = runs.all();
        let mine = seen.iter().filter(|seen| seen.partition == partition);
        assert_eq!(mine.count(), 10, "they take turns without a key");
        place.holds(&format!("words.{partition}"), 0).await;
    }
    assert!(drained(handle).await.clean);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_gives_back_what_did_not_start() {
    let place = Place::new().await;
    place.publish(&["hold", "hold", "ok", "ok", "ok"]).await;
    let runs = Runs::default();
    let spec = place.spec(runs.handler()).with_permits(2);
    let handle = place.start(spec.with(|spec| {
        spec.prefetch = acquit_actors::Prefetch::Count(5.try_into().expect("not 0"));
    }));
    runs.at_least(2).await;
    until(&handle, "more is pushed ahead", |c| c.received == 5).await;
    handle.drain("deploy").await.expect("an engine");
    until(&handle, "the others are back", |c| c.in_hand == 2).await;
    runs.open_gate();
    let report = drained(handle).await;
    assert!(report.clean, "{report}");
    place.counts("words", [3, 0, 0]).await;
    assert_eq!(runs.all().len(), 2, "nothing started after the drain began");
}

/// Half of what is in flight finishes while the drain waits for it; the other half is given back.
#[tokio::test(flavor = "multi_thread")]
async fn a_drain_of_a_thousand_in_flight_gives_back_nothing_that_finished() {
    let place = Place::new().await;
    let bodies: Vec<&str> = [["hold", "work 60000"]; 500].concat();
    place.publish(&bodies).await;
    let wide = |runs: &Runs| {
        Engine::new(Arc::new(place.transport()))
            .with_limits(LimiterLimits {
                permits: 1000,
                in_flight_bytes: 1 << 20,
                rate: None,
            })
            .with_consumer(place.spec(runs.handler()).with_permits(1000))
            .with_drain_timeout(Duration::from_secs(3))
            .start()
            .expect("an engine")
    };
    let runs = Runs::default();
    let handle = wide(&runs);
    runs.at_least(1000).await;
    handle.drain("deploy").await.expect("an engine");
    runs.open_gate();
    let report = drained(handle).await;
    assert!(!report.clean, "{report}");
    // What was given back is all of the other half: not one of those that finished.
    place.counts("words", [500, 0, 0]).await;
    place.holds("words.results", 500).await;
    let again = Runs::default();
    let reader = wide(&again);
    again.at_least(500).await;
    let is_finished = |seen: &Seen| seen.id[1..].parse::<usize>().expect("m and a number") % 2 == 0;
    assert!(!again.all().iter().any(is_finished));
    reader.force().await.expect("an engine");
    drained(reader).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_hands_out_nothing_and_a_resume_goes_on() {
    let place = Place::new().await;
    let runs = Runs::default();
    let handle = place.start(place.spec(runs.handler()));
    place.counts("words", [0, 0, 1]).await;
    let target = || acquit_actors::Target::consumer("words");
    handle.pause(target(), "test").await.expect("an engine");
    place.counts("words", [0, 0, 0]).await;
    place.publish(&["ok", "ok"]).await;
    place.counts("words", [2, 0, 0]).await;
    assert_eq!(counts(&handle).await.received, 0);
    handle.resume(target()).await.expect("an engine");
    until(&handle, "both are acked", |c| c.acked == 2).await;
    assert!(drained(handle).await.clean);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scale_subscribes_anew_on_the_same_channel() {
    let place = Place::new().await;
    let runs = Runs::default();
    let handle = place.start(place.spec(runs.handler()).with_permits(2));
    place.publish(&["hold"; 12]).await;
    // Where the broker counts every return, no more is pushed ahead than can run.
    place.counts("words", [10, 2, 1]).await;
    handle
        .scale("words", 6.try_into().expect("not 0"))
        .await
        .expect("an engine");
    runs.at_least(6).await;
    // What the subscription before had pushed does not count for the new one; a quorum queue knows
    // a cancelled consumer until that is settled.
    place.counts("words", [4, 8, 2]).await;
    runs.open_gate();
    until(&handle, "all are acked", |c| c.acked == 12).await;
    assert_eq!(counts(&handle).await.lost, 0);
    assert!(drained(handle).await.clean);
}
