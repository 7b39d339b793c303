//! Signals to a process whose broker is there, and to one whose broker is not.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::home::Place;
use crate::kit::Home;

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
