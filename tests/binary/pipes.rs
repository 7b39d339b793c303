//! Whoever reads our output, or does not, never holds the work up.

use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::kit::{Home, Running, eventually};

const MESSAGES: usize = 2000;

/// A home whose messages' decision lines are far more than a pipe holds.
fn busy() -> Home {
    let home = Home::with_consumer(
        "reply-queue = \"results\"\nhandler = \"echo\"",
        "[[feed]]\nqueue = \"work\"\nfile = \"feed\"",
    );
    let lines: String = (0..MESSAGES)
        .map(|n| format!("{{\"body\":\"{n}\",\"id\":\"{n:0100}\"}}\n"))
        .collect();
    home.write("feed", lines);
    home
}

#[test]
fn a_pipe_of_stderr_that_nobody_reads_stalls_nothing() {
    let home = busy();
    let mut command = home.command(&["run", "--until-idle"]);
    let (reader, writer) = std::io::pipe().expect("a pipe");
    command.stderr(writer);
    let running = Running::spawn(&home, command);
    let done = running.end();
    assert_eq!((done.code, done.signal), (Some(0), None));
    drop(reader);
    assert_eq!(home.get("results").len(), MESSAGES);
}

#[test]
fn a_blocked_stderr_does_not_delay_a_second_signal() {
    let home = Home::with_consumer(
        "handler = { command = [\"/bin/sh\", \"handler.sh\"], cwd = \".\" }",
        "",
    );
    home.write(
        "handler.sh",
        "echo $$ >> started; head -c 300000 /dev/zero | tr '\\0' '\\n' >&2; \
         while [ -e config.toml ]; do sleep 0.02; done",
    );
    home.publish("work", &["a", "b"]);
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let mut command = home.command(&["run"]);
    command.stderr(writer);
    let running = Running::spawn(&home, command);
    eventually("both run", || home.lines("started").len() == 2);
    running.signal(Signal::TERM);
    eventually("it drains", || {
        home.status()["snapshot"]["phase"] == "draining"
    });
    running.signal(Signal::TERM);
    let done = running.end_within(Duration::from_secs(4));
    assert_eq!((done.code, done.signal), (Some(20), None));
    drop(reader);
}

#[test]
fn a_stderr_that_was_closed_changes_nothing() {
    let home = busy();
    let mut command = home.command(&["run", "--until-idle"]);
    let (reader, writer) = std::io::pipe().expect("a pipe");
    command.stderr(writer);
    drop(reader);
    let done = Running::spawn(&home, command).end();
    assert_eq!((done.code, done.signal), (Some(0), None));
    assert_eq!(home.get("results").len(), MESSAGES);
}

#[test]
fn a_stdout_that_was_closed_does_not_change_how_a_run_ends() {
    let home = Home::with_consumer(
        "permits = 2\nabort-grace = \"100ms\"\n\
         handler = { command = [\"/bin/sh\", \"handler.sh\"], cwd = \".\" }",
        "[shutdown]\ndrain-timeout = \"500ms\"",
    );
    home.write(
        "handler.sh",
        "echo $$ >> started; while [ -e config.toml ]; do sleep 0.02; done",
    );
    home.publish("work", &["a"]);
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let mut command = home.command(&["run", "--json"]);
    command.stdout(writer);
    drop(reader);
    let running = Running::spawn(&home, command);
    eventually("it runs", || home.lines("started").len() == 1);
    running.signal(Signal::TERM);
    let done = running.end();
    assert_eq!((done.code, done.signal), (Some(20), None), "{}", done.err);
}

#[test]
fn with_the_log_in_json_standard_error_holds_nothing_else() {
    let home = Home::with_consumer(
        "permits = 2\nabort-grace = \"100ms\"\n\
         handler = { command = [\"/bin/sh\", \"handler.sh\"], cwd = \".\" }",
        "[shutdown]\ndrain-timeout = \"500ms\"",
    );
    home.write(
        "handler.sh",
        "echo $$ >> started; while [ -e config.toml ]; do sleep 0.02; done",
    );
    home.publish("work", &["a"]);
    let mut command = home.command(&["run", "--log-format", "json"]);
    command.stdin(Stdio::null());
    let running = Running::spawn(&home, command);
    eventually("it runs", || home.lines("started").len() == 1);
    running.signal(Signal::TERM);
    let done = running.end();
    assert_eq!((done.code, done.out.as_str()), (Some(20), ""));
    let lines = crate::kit::json_lines(&done.err);
    let is = |line: &&Value, message: &str| line["message"] == message;
    let drained = lines
        .iter()
        .find(|line| is(line, "drained"))
        .expect("a report");
    assert_eq!(
        (&drained["clean"], &drained["stragglers"]),
        (&false.into(), &1.into())
    );
    let straggler = lines
        .iter()
        .find(|line| is(line, "straggler"))
        .expect("its name");
    assert_eq!(
        (&straggler["id"], &straggler["consumer"]),
        (&"a".into(), &"work".into())
    );
}
