//! Signals: the first drains, the second gives back at once, the third ends.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::kit::{Finished, Home, bodies, eventually, is_alive};

/// A handler that says that it started and waits for the file `go`.
const PATIENT: &str = r#"
cd "$HOME_DIR"
echo "$$ $DELIVERY_ID $DELIVERY_ATTEMPT" >> started
while [ -e config.toml ] && ! [ -e go ]; do sleep 0.02; done
cat
"#;

/// The same, and deaf to TERM; what it starts is deaf too.
const DEAF: &str = r#"
trap '' TERM
cd "$HOME_DIR"
echo "$$ $DELIVERY_ID $DELIVERY_ATTEMPT" >> started
while [ -e config.toml ] && ! [ -e go ]; do sleep 0.02; done
cat
"#;

fn home(handler: &str, drain_timeout: &str) -> Home {
    let home = Home::with_consumer(
        "permits = 4\nabort-grace = \"500ms\"\nreply-queue = \"results\"\n\
         handler = { command = [\"/bin/sh\", \"handler.sh\"], env = [\"HOME_DIR\"], cwd = \".\" }",
        &format!("[shutdown]\ndrain-timeout = \"{drain_timeout}\""),
    );
    home.write("handler.sh", handler);
    let folder = home.path("").to_str().expect("UTF-8").to_owned();
    home.variable("HOME_DIR", &folder)
}

/// The processes of the handlers that were started, and for what.
fn started(home: &Home) -> Vec<(String, String)> {
    let lines = home.lines("started");
    lines
        .iter()
        .filter_map(|line| line.split_once(' '))
        .map(|(pid, what)| (pid.to_owned(), what.to_owned()))
        .collect()
}

#[track_caller]
fn expect_stragglers(home: &Home, done: &Finished, ids: &[&str]) {
    assert_eq!((done.code, done.signal), (Some(20), None), "{done:?}");
    assert!(done.err.contains("): not clean, in "), "{}", done.err);
    for id in ids {
        let line = format!(" consumer work partition 0 id {id} ");
        assert!(done.err.contains(&line), "{id}: {}", done.err);
    }
    for (pid, what) in started(home) {
        eventually(&format!("no process is left of {what}"), || !is_alive(&pid));
    }
}

#[test]
fn idle_it_ends_cleanly_on_term_and_on_int() {
    for (signal, name) in [(Signal::TERM, "TERM"), (Signal::INT, "INT")] {
        let home = home(PATIENT, "5s");
        let running = home.run(&[]);
        assert!(home.exists("data/acquit.sock"));
        running.signal(signal);
        let done = running.end_within(Duration::from_secs(3));
        assert_eq!((done.code, done.signal), (Some(0), None));
        let drained = format!("drained (signal {name}): clean, in ");
        assert!(done.err.contains(&drained), "{}", done.err);
        let nothing = "  in hand 0: acked 0, requeued 0, released 0, rejected 0, lost 0\n";
        assert!(done.err.contains(nothing), "{}", done.err);
        assert_eq!(done.out, "");
        assert!(!home.exists("data/acquit.sock"), "the socket is left");
    }
}

#[test]
fn term_lets_running_commands_end_and_starts_no_other() {
    let home = home(PATIENT, "20s");
    home.publish("work", &["a", "b", "c", "d", "e", "f"]);
    let running = home.run(&["--json"]);
    eventually("four run", || started(&home).len() == 4);
    running.signal(Signal::TERM);
    running.line("phase changed phase=draining");
    home.write("go", "");
    let done = running.end();
    assert_eq!(done.code, Some(0), "{done:?}");
    let report: Value = serde_json::from_str(&done.out).expect("the report alone, as JSON");
    assert_eq!(report["clean"], true);
    assert_eq!(report["reason"], "signal TERM");
    assert_eq!(report["acked"], 4);
    assert_eq!(report["stragglers"], serde_json::json!([]));
    assert_eq!(started(&home).len(), 4);
    assert_eq!(home.get("results").len(), 4);
    assert_eq!(home.get("work").len(), 2);
}

#[test]
fn a_deaf_command_past_the_drain_timeout_is_a_straggler_and_comes_again_with_its_attempt() {
    let home = home(DEAF, "1s");
    home.publish("work", &["a", "b"]);
    let running = home.run(&[]);
    eventually("both run", || started(&home).len() == 2);
    running.signal(Signal::TERM);
    let done = running.end_within(Duration::from_secs(8));
    expect_stragglers(&home, &done, &["a", "b"]);
    assert!(done.err.contains("  stragglers 2:\n"), "{}", done.err);

    home.write("go", "");
    let done = home.acquit(&["run", "--until-idle"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    let mut runs: Vec<String> = started(&home).into_iter().map(|(_, what)| what).collect();
    runs.sort();
    assert_eq!(runs, ["a 1", "a 1", "b 1", "b 1"]);
    assert_eq!(bodies(&home.get("results")), ["a", "b"]);
}

#[test]
fn a_second_signal_gives_back_at_once() {
    for (first, second) in [(Signal::TERM, Signal::TERM), (Signal::INT, Signal::TERM)] {
        let home = home(DEAF, "20s");
        home.publish("work", &["a"]);
        let running = home.run(&["--json"]);
        eventually("it runs", || started(&home).len() == 1);
        running.signal(first);
        running.line("phase changed phase=draining");
        running.signal(second);
        let done = running.end_within(Duration::from_secs(2));
        assert_eq!((done.code, done.signal), (Some(20), None), "{done:?}");
        let report: Value = serde_json::from_str(&done.out).expect("the report alone, as JSON");
        assert_eq!(report["forced"], true);
        assert_eq!(report["clean"], false);
        assert_eq!(report["stragglers-total"], 1);
        assert_eq!(report["stragglers"][0]["id"], "a");
        let (pid, _) = started(&home).remove(0);
        eventually("no process is left", || !is_alive(&pid));
        assert_eq!(bodies(&home.get("work")), ["a"]);
    }
}

#[test]
fn a_third_signal_ends_at_once() {
    let home = home(DEAF, "20s");
    home.publish("work", &["a"]);
    let running = home.run(&[]);
    eventually("it runs", || started(&home).len() == 1);
    running.signal(Signal::TERM);
    running.line("phase changed phase=draining");
    running.signal(Signal::INT);
    running.line("giving stragglers back; again to end at once");
    running.signal(Signal::TERM);
    let done = running.end_within(Duration::from_secs(2));
    assert_eq!((done.code, done.signal), (Some(20), None), "{done:?}");
    let (pid, _) = started(&home).remove(0);
    eventually("no process is left", || !is_alive(&pid));
    assert_eq!(bodies(&home.get("work")), ["a"]);
}

#[test]
fn signals_at_any_moment_of_the_start_end_it_in_order() {
    let home = home(PATIENT, "5s");
    home.publish("work", &["a"]);
    home.write("go", "");
    for moment in (0..600).step_by(120) {
        let running = home.start(&["run"]);
        crate::kit::pass(Duration::from_millis(moment));
        running.signal(Signal::TERM);
        let done = running.end_within(Duration::from_secs(5));
        // Before it listens the signal ends it, as it ends every process.
        let ended = (done.code, done.signal);
        let allowed = [(Some(0), None), (None, Some(Signal::TERM.as_raw()))];
        assert!(allowed.contains(&ended), "after {moment} ms: {done:?}");
    }
    let done = home.acquit(&["run", "--until-idle"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(bodies(&home.get("results")), ["a"]);
}

#[test]
fn other_signals_change_nothing() {
    let home = home(PATIENT, "5s");
    home.publish("work", &["a"]);
    let running = home.run(&[]);
    eventually("it runs", || started(&home).len() == 1);
    for signal in [Signal::WINCH, Signal::PIPE, Signal::CHILD] {
        for _ in 0..100 {
            running.signal(signal);
        }
    }
    home.write("go", "");
    eventually("it is done", || home.counts()["acked"] == 1);
    running.signal(Signal::TERM);
    assert_eq!(running.end().code, Some(0));
}
