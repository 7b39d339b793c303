//! SIGKILL at every state of a settlement: nothing is lost, and at most what was in flight is
//! repeated.

use std::collections::BTreeMap;

use crate::kit::Home;

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
