//! Signals to a process whose broker is there, and to one whose broker is not.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::broker_kit::{Cut, PolicyTarget};
use crate::home::Place;
use crate::kit::{Home, Running};

const SLOW: &str = "dead-letter-queue = \"dead\"\nabort-grace = \"50ms\"\n\
    handler = { command = [\"/bin/sh\", \"-c\", \"echo >> runs; exec sleep 30\"] }";

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_gives_stragglers_back_within_two_seconds() {
    let place = Place::new(SLOW, "").await;
    let running = place.home.run(&[]);
    place.home.publish("work", &["m0", "m1"]);
    crate::kit::eventually("both run", || place.home.lines("runs").len() == 2);
    running.signal(Signal::TERM);
    running.line("draining");
    let began = Instant::now();
    running.signal(Signal::TERM);
    let ended = running.end();
    assert_eq!(ended.code, Some(20), "{}", ended.err);
    assert!(
        began.elapsed() < Duration::from_secs(3),
        "{:?}",
        began.elapsed()
    );
    place
        .vhost
        .await_counts(place.vhost.name(), "work", [2, 0, 0])
        .await;
}

#[test]
fn a_signal_ends_the_wait_for_a_broker_that_is_not_there() {
    let config = "[worker]\nstate-dir = \"data\"\n[broker]\nurl = \"amqp://127.0.0.1:1\"\n\
        first-connect-tries = 0\n[[consumer]]\nname = \"work\"\nqueue = \"work\"\n\
        dead-letter-queue = \"dead\"\nhandler = \"discard\"\n";
    let home = Home::new(config);
    let running = home.start(&["run"]);
    running.line("the broker is not ready");
    let began = Instant::now();
    running.signal(Signal::TERM);
    let ended = running.end();
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(
        began.elapsed() < Duration::from_secs(1),
        "{:?}",
        began.elapsed()
    );
}

/// A drain of one second, then everything is given back.
const SHORT: &str = "[shutdown]\ndrain-timeout = \"1s\"";

/// Ends a process by TERM: its exit code, within the drain timeout and what giving back may take.
fn terminated(running: Running) -> Option<i32> {
    let began = Instant::now();
    running.signal(Signal::TERM);
    let ended = running.end();
    let took = began.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}: {}", ended.err);
    ended.code
}

/// At Publishing: the reply queue is full, so nothing is answered, and nothing is acknowledged.
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_while_replies_are_refused_gives_their_work_back() {
    let replies = "reply-queue = \"answers\"\ndead-letter-queue = \"dead\"\nhandler = \"echo\"";
    let place = Place::new(replies, SHORT).await;
    let made = place.home.acquit(&["topology", "apply"]);
    assert_eq!(made.code, Some(0), "{}", made.err);
    let full = r#"{"max-length": 1, "overflow": "reject-publish"}"#;
    let (name, target) = (place.vhost.name(), PolicyTarget::Queues);
    let vhost = &place.vhost;
    vhost
        .set_policy(name, "full", "^answers$", full, target)
        .await;
    let bodies: Vec<String> = (0..40).map(|number| format!("m{number}")).collect();
    let bodies: Vec<&str> = bodies.iter().map(String::as_str).collect();
    place.home.publish("work", &bodies);
    let running = place.home.run(&[]);
    running.line("answers");
    assert_eq!(terminated(running), Some(20));
    // What was answered was acknowledged, and the rest is back.
    let vhost = place.vhost.name();
    let holds = async |queue| {
        let info = place.vhost.queue(vhost, queue).await?;
        Some(info.ready? + info.unacked?)
    };
    crate::broker_kit::eventually("each is answered or back", async || {
        let (answers, back) = (holds("answers").await?, holds("work").await?);
        (answers + back == 40 && back > 0).then_some(())
    })
    .await;
}

/// At Holding: what waits for its next attempt goes back at once, and no attempt is burnt.
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_while_retries_are_held_gives_them_back_at_once() {
    let failing = "dead-letter-queue = \"dead\"\n\
        retry = { max-attempts = 3, via = \"hold\", backoff-base = \"60s\", backoff-max = \"60s\" }\n\
        handler = { command = [\"/bin/sh\", \"-c\", \"echo >> runs; exit 75\"] }";
    let place = Place::new(failing, SHORT).await;
    let running = place.home.run(&[]);
    place.home.publish("work", &["m0", "m1", "m2"]);
    crate::kit::eventually("all are held", || {
        let snapshot = place.home.status()["snapshot"].clone();
        let in_hand = &snapshot["consumers"][0]["counts"]["in-hand"];
        place.home.lines("runs").len() == 3 && *in_hand == 3 && snapshot["handlers-alive"] == 0
    });
    assert_eq!(terminated(running), Some(0));
    place.holds("work", 3).await;
    place.holds("dead", 0).await;
}

/// At Orphaned, and during a reconnect: the broker has what it handed out, and nobody says a word about it.
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_during_a_reconnect_ends_in_time_and_loses_nothing() {
    let (place, proxy) = Place::proxied(SLOW, SHORT).await;
    let running = place.home.run(&[]);
    place.home.publish("work", &["m0", "m1"]);
    crate::kit::eventually("both run", || place.home.lines("runs").len() == 2);
    proxy.refuse(true).await;
    proxy.cut(Cut::Reset);
    running.line("not connected");
    assert_eq!(terminated(running), Some(20));
    place
        .vhost
        .await_counts(place.vhost.name(), "work", [2, 0, 0])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_during_a_reconnect_with_nothing_in_hand_is_clean() {
    let (place, proxy) = Place::proxied(SLOW, SHORT).await;
    let running = place.home.run(&[]);
    crate::kit::eventually("it consumes", || {
        let status = place.home.status();
        status["snapshot"]["consumers"][0]["partitions"][0]["subscription"] == "subscribed"
    });
    proxy.refuse(true).await;
    proxy.cut(Cut::Reset);
    running.line("not connected");
    assert_eq!(terminated(running), Some(0));
}

/// Field report C44: a process that is stopped longer than its peer waits comes back to a connection that is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_was_frozen_comes_back_within_seconds() {
    let place = Place::new(
        "permits = 2\ndead-letter-queue = \"dead\"\nhandler = { command = [\"/bin/sh\", \"-c\", \"echo >> runs\"] }",
        "",
    )
    .await;
    let home = place.home.variable("ACQUIT_BROKER__HEARTBEAT", "1s");
    let place = Place { home, ..place };
    let running = place.home.run(&[]);
    place.home.publish("work", &["m0"]);
    crate::kit::eventually("it is done", || place.home.lines("runs").len() == 1);
    running.signal(Signal::STOP);
    // The broker gives it up by itself.
    let vhost = place.vhost.name();
    crate::broker_kit::eventually("nobody consumes", async || {
        let queue = place.vhost.queue(vhost, "work").await?;
        (queue.consumers == Some(0)).then_some(())
    })
    .await;
    let began = Instant::now();
    running.signal(Signal::CONT);
    place.vhost.await_counts(vhost, "work", [0, 0, 1]).await;
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "{:?}",
        began.elapsed()
    );
    place.home.publish("work", &["m1"]);
    crate::kit::eventually("it goes on", || place.home.lines("runs").len() == 2);
    assert_eq!(terminated(running), Some(0));
}
