//! SIGKILL at every state of a settlement: nothing is lost, and at most what was in flight is
//! repeated.

use std::collections::BTreeMap;

use crate::kit::{Home, eventually};

/// How many messages a round has.
const MESSAGES: usize = 60;

/// How many may be in flight, and so be repeated by one kill.
const PERMITS: usize = 4;

/// A consumer that answers most messages, rejects some, and fails some once.
const CONSUMER: &str = r#"permits = 4
partitions = 2
reply-queue = "answers"
dead-letter-queue = "dead"
retry = { max-attempts = 3, backoff-base = "20ms", backoff-max = "40ms" }
handler = { command = ["/bin/sh", "-c", "body=$(cat); case $body in reject*) exit 65;; once*) [ $DELIVERY_ATTEMPT -gt 1 ] || exit 75;; esac; echo $body"] }"#;

fn body(n: usize) -> String {
    match n % 6 {
        0 => format!("reject {n}"),
        1 => format!("once {n}"),
        _ => format!("plain {n}"),
    }
}

/// Kills a run at the n-th passing of a point, lets another one finish, and accounts for all.
fn check(point: &str, passing: usize) {
    check_with(CONSUMER, point, passing);
}

fn check_with(consumer: &str, point: &str, passing: usize) {
    let home = Home::with_consumer(consumer, "");
    let lines: String = (0..MESSAGES)
        .map(|n| format!("{{\"id\":\"m{n}\",\"body\":{:?}}}\n", body(n)))
        .collect();
    home.publish_lines("work", &lines);

    let home = home.variable("ACQUIT_FAIL_POINT", &format!("{point}:{passing}"));
    let killed = home.acquit(&["run", "--until-idle"]);
    assert_eq!(
        killed.code, None,
        "{point}:{passing} was not passed:\n{}",
        killed.err
    );
    let home = home.variable("ACQUIT_FAIL_POINT", "nowhere:1");
    let done = home.acquit(&["run", "--until-idle"]);
    assert_eq!(done.code, Some(0), "{}", done.err);

    let mut ends: BTreeMap<String, usize> = BTreeMap::new();
    for answer in home.get("answers") {
        let id = answer["correlation-id"].as_str().expect("it answers one");
        *ends.entry(id.to_owned()).or_default() += 1;
    }
    for dead in home.get("dead") {
        let id = dead["id"].as_str().expect("an id");
        assert!(dead["body"].as_str().expect("text").starts_with("reject"));
        *ends.entry(id.to_owned()).or_default() += 1;
    }
    let lost: Vec<usize> = (0..MESSAGES)
        .filter(|n| !ends.contains_key(&format!("m{n}")))
        .collect();
    assert!(lost.is_empty(), "{point}:{passing} lost {lost:?}");
    let repeated = ends.values().sum::<usize>() - MESSAGES;
    assert!(
        repeated <= PERMITS,
        "{point}:{passing} repeated {repeated}: {ends:?}"
    );
    assert!(home.get("work").is_empty(), "nothing is left");
}

#[test]
fn killed_before_a_handler_returns_nothing_is_lost() {
    for point in ["received", "running", "settling"] {
        for passing in [1, 7, 23] {
            check(point, passing);
        }
    }
}

#[test]
fn killed_around_a_publish_nothing_is_lost() {
    for point in ["publishing", "publish-sent"] {
        for passing in [1, 7, 23] {
            check(point, passing);
        }
    }
}

#[test]
fn killed_around_a_settlement_nothing_is_lost() {
    for point in ["settle-sent", "settled"] {
        for passing in [1, 7, 23] {
            check(point, passing);
        }
    }
}

#[test]
fn killed_while_a_handler_is_aborted_or_a_retry_is_held_nothing_is_lost() {
    let consumer = CONSUMER
        .replace("max-attempts = 3", "via = \"hold\", max-attempts = 3")
        .replace(
            "permits = 4",
            "permits = 4\nhandler-timeout = \"300ms\"\nabort-grace = \"50ms\"",
        )
        .replace("|| exit 75", "|| sleep 30");
    for (point, passing) in [
        ("aborting", 1),
        ("aborting", 5),
        ("holding", 1),
        ("holding", 5),
    ] {
        check_with(&consumer, point, passing);
    }
}

/// Handed out so often without a word from us, it is taken for what kills us.
#[test]
fn a_message_that_kills_the_process_too_often_is_rejected_without_running() {
    let consumer = "dead-letter-queue = \"dead\"\n\
        handler = { command = [\"/bin/sh\", \"-c\", \"echo >> runs\"] }";
    let home = Home::with_consumer(consumer, "");
    home.publish("work", &["deadly"]);
    let home = home.variable("ACQUIT_FAIL_POINT", "running:1");
    let mut kills = 0;
    // A hand-out is counted without waiting for it: on a busy machine a kill can be faster.
    let done = loop {
        let run = home.acquit(&["run", "--until-idle"]);
        if run.code.is_some() {
            break run;
        }
        kills += 1;
        assert!(kills < 200, "it is never taken for a crash loop");
    };
    assert_eq!(done.code, Some(0), "{}", done.err);
    assert!(kills >= 20, "rejected after {kills} kills");
    assert!(done.err.contains("reason=crash-loop"), "{}", done.err);
    assert_eq!(crate::kit::bodies(&home.get("dead")), ["deadly"]);
    assert!(!home.exists("runs"), "it never ran");
    assert!(home.get("work").is_empty(), "nothing is left");
}

/// A drain that is killed while it gives back what it holds loses nothing.
#[test]
fn killed_while_a_drain_gives_back_nothing_is_lost() {
    let consumer = "permits = 4\nabort-grace = \"50ms\"\n\
        handler = { command = [\"/bin/sh\", \"-c\", \"echo >> runs; exec sleep 30\"] }";
    for (point, passing) in [("settling", 1), ("settle-sent", 2), ("settled", 3)] {
        let home = Home::with_consumer(consumer, "[shutdown]\ndrain-timeout = \"10ms\"");
        let bodies: Vec<String> = (0..8).map(|n| format!("m{n}")).collect();
        let bodies: Vec<&str> = bodies.iter().map(String::as_str).collect();
        home.publish("work", &bodies);
        let home = home.variable("ACQUIT_FAIL_POINT", &format!("{point}:{passing}"));
        let running = home.run(&[]);
        eventually("all permits are at work", || {
            home.lines("runs").len() == PERMITS
        });
        running.signal(rustix::process::Signal::TERM);
        let killed = running.end();
        assert_eq!(killed.code, None, "{point}:{passing}:\n{}", killed.err);
        let left = home.get("work");
        let mut left = crate::kit::bodies(&left);
        left.sort_unstable();
        assert_eq!(left, bodies, "{point}:{passing}");
    }
}
