//! Retries by the ladder and by holding, dead letters.

use std::time::Duration;

use acquit_actors::model::HeaderValue;

use crate::place::{Place, Runs, drained, until, words};

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_attempt_comes_back_by_the_ladder_with_its_number() {
    let place = Place::new().await;
    place.publish(&["fail-until 3"]).await;
    let runs = Runs::default();
    let handle = place.start(place.spec(runs.handler()));
    until(&handle, "the third is done", |counts| counts.completed == 1).await;
    let attempts: Vec<u32> = runs.all().iter().map(|seen| seen.attempt).collect();
    assert_eq!(attempts, [1, 2, 3]);
    assert!(runs.all().iter().all(|seen| seen.id == "m0"));
    place.holds("words", 0).await;
    place.holds("words.results", 1).await;
    let report = drained(handle).await;
    assert!(report.clean, "{report}");
    let queues = place.vhost.list_queues(place.vhost.name()).await;
    let left: u64 = queues
        .iter()
        .filter(|queue| queue.name.contains(".retry."))
        .filter_map(|queue| queue.ready)
        .sum();
    assert_eq!(left, 0, "no copy is left in the ladder");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_exhausted_or_rejected_becomes_a_dead_letter_that_says_why() {
    let place = Place::new().await;
    place.publish(&["fail", "reject", "ok"]).await;
    let runs = Runs::default();
    let handle = place.start(place.spec(runs.handler()));
    place.holds("words.dead", 2).await;
    until(&handle, "all is settled", |counts| counts.in_hand == 0).await;
    assert_eq!((runs.of("m0"), runs.of("m1"), runs.of("m2")), (3, 1, 1));
    place.holds("words", 0).await;
    assert!(drained(handle).await.clean);
    // Read by an engine of its own, as an operator would.
    let letters = Runs::default();
    let spec = acquit_actors::ConsumerSpec::new("dead", "words.dead", letters.handler());
    let reader = place.start(spec);
    letters.at_least(2).await;
    for (id, reason, attempt, error) in [
        ("m0", "exhausted", 3, "it fails"),
        ("m1", "rejected", 1, "never"),
    ] {
        let all = letters.all();
        let letter = all.iter().find(|seen| seen.id == id).expect(id);
        let text = |name: &str| letter.headers.get(name).and_then(HeaderValue::as_str);
        assert_eq!(text("x-acquit-reason"), Some(reason));
        assert_eq!(text("x-acquit-origin-queue"), Some("words"));
        assert_eq!(text("x-acquit-last-error"), Some(error));
        assert_eq!(text("x-acquit-first-error"), Some(error));
        assert!(text("x-acquit-origin-time").is_some(), "{letter:?}");
        let died = text("x-acquit-died-at").map(humantime::parse_rfc3339);
        let since = died.expect("a time").expect("RFC 3339").elapsed();
        assert!(since.expect("in the past") < Duration::from_secs(60));
        assert_eq!(letter.attempt, attempt);
        assert!(!letter.headers.contains_key("x-death"), "{letter:?}");
    }
    drained(reader).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_ladder_a_retry_is_held_and_permits_stay_free() {
    let mut consumer = words();
    consumer.ladder.clear();
    let place = Place::with(consumer).await;
    place.publish(&["fail-until 2", "ok", "ok"]).await;
    let runs = Runs::default();
    let handle = place.start(place.spec(runs.handler()).with_permits(1));
    until(&handle, "all are done", |counts| counts.completed == 3).await;
    let last = runs.all().pop().expect("a run");
    assert_eq!((last.id.as_str(), last.attempt), ("m0", 2));
    assert!(drained(handle).await.clean);
    place.counts("words", [0, 0, 0]).await;
}
