//! The main job, as it is shipped.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;

use crate::kit::{Home, bodies, eventually, json_lines};

/// The word count of each line of the shipped feed, by id.
fn expected(home: &Home) -> BTreeMap<String, usize> {
    let text = fs::read_to_string(home.path("examples/tasks.jsonl")).expect("shipped");
    let of = |line: Value| {
        let body = line["body"].as_str().expect("text");
        let id = line["id"].as_str().expect("an id").to_owned();
        (id, body.split_ascii_whitespace().count())
    };
    let counts: BTreeMap<_, _> = json_lines(&text).into_iter().map(of).collect();
    assert!(counts.len() >= 1000, "{} tasks", counts.len());
    assert_eq!(counts.len(), text.lines().count(), "ids are unique");
    counts
}

/// The results, by the id of the message they answer.
fn results(home: &Home) -> BTreeMap<String, Vec<usize>> {
    let mut results: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for result in home.get("words.results") {
        let id = result["correlation-id"].as_str().expect("it answers one");
        let count = result["body"].as_str().expect("text").trim();
        let count = count.parse().expect("a number");
        results.entry(id.to_owned()).or_default().push(count);
    }
    results
}

#[test]
fn the_shipped_job_counts_every_word_once_and_a_second_start_repeats_nothing() {
    let home = Home::shipped();
    let done = home.acquit(&["run", "--until-idle"]);
    assert_eq!((done.code, done.out.as_str()), (Some(0), ""));
    assert!(
        done.err.contains("drained (idle): clean, in "),
        "{}",
        done.err
    );

    let expected = expected(&home);
    let once: BTreeMap<_, _> = expected
        .iter()
        .map(|(id, n)| (id.clone(), vec![*n]))
        .collect();
    assert_eq!(results(&home), once);
    let decisions = done.err.matches("acquit::decision").count();
    assert_eq!(decisions, expected.len());

    let again = home.acquit(&["run", "--until-idle"]);
    assert_eq!(again.code, Some(0));
    assert!(
        again.err.contains("1429 lines were read before"),
        "it does not say that the feed was read already:\n{}",
        again.err
    );
    assert!(!again.err.contains("acquit::decision"), "{}", again.err);
    assert_eq!(results(&home), once);
    assert_eq!(home.get("words"), [] as [Value; 0]);
    assert_eq!(home.get("words.dead"), [] as [Value; 0]);
}

#[test]
fn killed_at_any_moment_the_job_loses_no_line_and_repeats_only_what_was_in_flight() {
    let home = Home::shipped();
    let decisions = [0, 1, 40, 300, 500];
    for kill_after in decisions {
        let running = home.start(&["run", "--until-idle"]);
        if kill_after > 0 {
            eventually("it is at work", || {
                running.count("acquit::decision") >= kill_after
            });
        }
        running.kill();
    }
    let done = home.acquit(&["run", "--until-idle"]);
    assert_eq!(done.code, Some(0), "{}", done.err);
    assert!(
        done.err.contains("acquit::decision"),
        "nothing was left to do"
    );

    let expected = expected(&home);
    let results = results(&home);
    let lost: Vec<_> = expected
        .keys()
        .filter(|id| !results.contains_key(*id))
        .collect();
    assert_eq!(lost, [] as [&String; 0]);
    for (id, counts) in &results {
        assert!(counts.iter().all(|n| Some(n) == expected.get(id)), "{id}");
    }
    let repeated: usize = results.values().map(|counts| counts.len() - 1).sum();
    let in_flight = 16 * decisions.len();
    assert!(
        repeated <= in_flight,
        "{repeated} repeated, {in_flight} were in flight"
    );
}

#[test]
fn killed_at_any_moment_the_feed_publishes_each_line_once() {
    const LINES: usize = 20_000;
    let home = Home::new(
        "[worker]\nstate-dir = \"data\"\n[broker]\nurl = \"embedded:data\"\n\
         [[feed]]\nqueue = \"work\"\nfile = \"lines.jsonl\"\n",
    );
    let lines: String = (0..LINES)
        .map(|n| format!("{{\"body\":\"{n}\"}}\n"))
        .collect();
    home.write("lines.jsonl", lines);
    let mut kills = 0;
    for published in [1, 3_000, 9_000] {
        let running = home.run(&["--until-idle"]);
        eventually("it feeds", || {
            let feed = &home.status()["snapshot"]["feeds"][0];
            let count = |key: &str| feed[key].as_u64().expect("a count");
            count("published") + count("skipped") >= published
        });
        kills += usize::from(home.status()["snapshot"]["feeds"][0]["ended"] == false);
        running.kill();
    }
    assert!(kills > 0, "no kill hit it at work");
    let done = home.acquit(&["run", "--until-idle"]);
    assert_eq!(done.code, Some(0), "{}", done.err);
    let mut fed: Vec<usize> = bodies(&home.get("work"))
        .iter()
        .map(|body| body.parse().expect("a number"))
        .collect();
    fed.sort_unstable();
    assert_eq!(fed, (0..LINES).collect::<Vec<_>>());
}

/// Each start hands the message out, each forced drain gives it back: that is no crash loop.
#[test]
fn drains_never_dead_letter_a_message_that_never_failed() {
    let home = Home::with_consumer(
        "dead-letter-queue = \"dead\"\ncrash-loop-limit = 2\nabort-grace = \"50ms\"\n\
         handler = { command = [\"/bin/sh\", \"-c\", \"echo >> runs; exec sleep 30\"] }",
        "[shutdown]\ndrain-timeout = \"10ms\"",
    );
    home.publish("work", &["kept"]);
    for round in 1..=5 {
        let running = home.run(&[]);
        eventually("it runs", || home.lines("runs").len() == round);
        running.signal(rustix::process::Signal::TERM);
        assert_eq!(running.end().code, Some(20), "round {round}");
    }
    assert_eq!(home.get("dead"), [] as [Value; 0]);
    assert_eq!(home.get("work").len(), 1);
}

#[test]
fn an_ordered_partition_waits_for_its_retry() {
    let script =
        "b=$(cat); echo $b >> order; [ $b = one ] && [ $DELIVERY_ATTEMPT = 1 ] && exit 75; exit 0";
    let home = Home::with_consumer(
        &format!(
            "order = \"partition\"\nretry = {{ backoff-base = \"50ms\" }}\n\
             handler = {{ command = [\"/bin/sh\", \"-c\", \"{script}\"] }}"
        ),
        "",
    );
    home.publish("work", &["one", "two", "three"]);
    assert_eq!(home.acquit(&["run", "--until-idle"]).code, Some(0));
    assert_eq!(home.lines("order"), ["one", "one", "two", "three"]);
}

#[test]
fn what_get_prints_can_be_published_again() {
    let home = Home::with_consumer("handler = \"discard\"", "");
    home.publish_lines(
        "other",
        "{\"id\":\"a\",\"key\":\"k\",\"body\":\"text\",\"headers\":{\"h\":1}}\n",
    );
    let printed = home.acquit(&["get", "other", "--take"]).out;
    assert_eq!(home.get("other"), [] as [Value; 0]);
    home.publish_lines("other", &printed);
    let again = home.get("other");
    assert_eq!(
        (&again[0]["id"], &again[0]["body"]),
        (&"a".into(), &"text".into())
    );
    assert_eq!(again[0]["headers"]["h"], 1);
}
