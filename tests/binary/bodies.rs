//! Odd messages: too large, too many headers, empty, no text.

use std::io::Write;

use serde_json::{Value, json};

use crate::kit::{Home, json_lines};

fn home(more: &str, tables: &str) -> Home {
    Home::with_consumer(
        &format!(
            "reply-queue = \"results\"\ndead-letter-queue = \"dead\"\nhandler = \"echo\"\n{more}"
        ),
        tables,
    )
}

#[track_caller]
fn run(home: &Home) -> String {
    let done = home.acquit(&["run", "--until-idle", "--log-format", "json"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    done.err
}

#[test]
fn empty_bodies_and_bodies_that_are_no_text_are_handled_unchanged() {
    let home = home("", "");
    home.publish_lines(
        "work",
        "{\"body\":\"\",\"id\":\"empty\"}\n{\"body-base64\":\"AP+A\",\"id\":\"raw\"}\n",
    );
    run(&home);
    let results = home.get("results");
    let of = |id: &str| {
        let is = |result: &&Value| result["correlation-id"] == id;
        results.iter().find(is).cloned().expect("a result")
    };
    assert_eq!(of("empty")["body"], "");
    assert_eq!(of("raw")["body-base64"], "AP+A");
}

#[test]
fn too_many_headers_are_rejected_by_name_and_harm_nobody() {
    let home = home("", "");
    let headers: serde_json::Map<String, Value> =
        (0..10_000).map(|n| (format!("h{n}"), json!("v"))).collect();
    let lines = [
        json!({"id": "many", "body": "x", "headers": headers}),
        json!({"id": "good", "body": "y"}),
    ];
    home.publish_lines("work", &lines.map(|line| format!("{line}\n")).concat());
    let log = run(&home);
    assert_eq!(home.get("results").len(), 1);
    let dead = home.get("dead");
    assert_eq!((dead.len(), &dead[0]["id"]), (1, &json!("many")));
    assert_eq!(dead[0]["headers"]["x-acquit-reason"], "too-many-headers");
    assert_eq!(
        log.matches("too-many-headers").count(),
        1,
        "one line: {log}"
    );
}

#[test]
fn a_body_over_the_limit_is_rejected_by_name_and_kept_whole() {
    let home = home("max-message-bytes = \"1 KiB\"", "");
    let (fits, over) = ("a".repeat(1024), "b".repeat(1025));
    home.publish("work", &[&fits, &over]);
    run(&home);
    assert_eq!(home.get("results").len(), 1);
    let dead = home.get("dead");
    assert_eq!(dead.len(), 1);
    let headers = &dead[0]["headers"];
    assert_eq!(headers["x-acquit-reason"], "too-large");
    assert_eq!(headers["x-acquit-origin-queue"], "work");
    assert_eq!(headers["x-acquit-attempt"], 1);
    // Our own store takes it: nothing is trimmed.
    assert_eq!(dead[0]["body"], over);
}

#[test]
fn a_body_over_the_whole_byte_budget_is_rejected_by_name() {
    let home = home("", "[limiter]\nin-flight-bytes = \"2 KiB\"");
    let (fits, over) = ("a".repeat(2048), "b".repeat(2049));
    let bodies = [&fits, &over, &fits].map(|body| format!("{}\n", json!({ "body": body })));
    home.publish_lines("work", &bodies.concat());
    let log = run(&home);
    assert_eq!(home.get("results").len(), 2);
    let dead = home.get("dead");
    assert_eq!(dead.len(), 1);
    assert_eq!(dead[0]["headers"]["x-acquit-reason"], "too-large");
    assert!(!log.contains("bbbb"), "a payload is in the log");
}

#[test]
fn without_a_dead_letter_queue_they_stand_on_the_dead_list_of_their_queue() {
    let home = Home::with_consumer("max-message-bytes = \"4 B\"\nhandler = \"echo\"", "");
    home.publish("work", &["fits", "too long"]);
    run(&home);
    let dead = home.dead("work");
    assert_eq!(dead.len(), 1);
    assert_eq!(
        (&dead[0]["body"], &dead[0]["reason"]),
        (&json!("too long"), &json!("too-large"))
    );
    let done = home.acquit(&["get", "work"]);
    assert_eq!(json_lines(&done.out), [] as [Value; 0]);
}

#[test]
fn a_line_longer_than_any_line_may_be_is_set_aside_and_refused_by_publish() {
    let home = home("", "[[feed]]\nqueue = \"work\"\nfile = \"feed.jsonl\"");
    let mut feed = Vec::new();
    feed.extend_from_slice(b"{\"body\":\"one\"}\nnonsense\n{\"body\":\"");
    feed.resize(feed.len() + (17 << 20), b'x');
    feed.write_all(b"\"}\n{\"body\":\"two\"}\n")
        .expect("memory");
    home.write("feed.jsonl", &feed);
    let log = run(&home);
    assert_eq!(home.get("results").len(), 2);
    for line in ["line 2", "line 3"] {
        assert!(log.contains(line), "{line}: {log}");
    }
    let done = home.acquit_with(&["publish", "work"], &feed[24..]);
    let text =
        "acquit: line 1: longer than 16 MiB; 0 before it are published, and nothing from it on\n";
    assert_eq!((done.code, done.err.as_str()), (Some(1), text));
}
