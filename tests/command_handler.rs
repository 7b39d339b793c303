//! Commands as handlers, with real processes.

use std::collections::BTreeMap;
use std::fs;
use std::future::Future;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use acquit::handlers::{CommandHandler, CommandSpec, ExitTable, ExitVerdict, HandlerError};
use acquit_actors::model::{Attempt, Delivery, Generation, HeaderValue, Headers, PartitionId};
use acquit_actors::ports::{DeliveryContext, DeliveryHandler, HandlerOutcome, RunControl};
use bytes::Bytes;

/// No wait in these tests is longer; a healthy one takes milliseconds.
const BOUND: Duration = Duration::from_secs(30);

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime
        .block_on(async { tokio::time::timeout(BOUND, future).await })
        .expect("ends within the bound")
}

async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < BOUND, "never: {what}");
        // tidy-allow: sleep: this is the bounded wait, and it looks at real processes
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn delivery(body: impl Into<Bytes>) -> Delivery {
    Delivery::new("words".into(), PartitionId(2), Generation(0), body.into())
}

fn handler(spec: CommandSpec) -> CommandHandler {
    CommandHandler::new(spec).expect("the command can run")
}

fn run(spec: CommandSpec, delivery: Delivery) -> HandlerOutcome {
    block_on(handler(spec).handle(DeliveryContext::detached(delivery)))
}

fn sh(code: &str) -> CommandSpec {
    CommandSpec::new(["/bin/sh", "-c", code])
}

fn result(outcome: HandlerOutcome) -> Bytes {
    match outcome {
        HandlerOutcome::Completed { result: Some(body) } => body,
        other => panic!("no result: {other:?}"),
    }
}

fn text(outcome: HandlerOutcome) -> String {
    String::from_utf8(result(outcome).to_vec()).expect("text")
}

/// Waits for a process id that a script writes to a file.
async fn pid_in(file: &Path) -> u32 {
    let mut pid = None;
    eventually("the script wrote its process id", || {
        let text = fs::read_to_string(file).unwrap_or_default();
        pid = text.strip_suffix('\n').and_then(|text| text.parse().ok());
        pid.is_some()
    })
    .await;
    pid.expect("just seen")
}

/// Tells whether a process runs no more; an orphan may stay a zombie of whoever adopted it.
fn is_gone(pid: u32) -> bool {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Err(_) => true,
        Ok(stat) => stat
            .rsplit(')')
            .next()
            .is_some_and(|rest| rest.starts_with(" Z")),
    }
}

fn is_reaped(pid: u32) -> bool {
    !Path::new(&format!("/proc/{pid}")).exists()
}

fn script(directory: &Path, name: &str, content: &str, mode: u32) -> PathBuf {
    let path = directory.join(name);
    fs::File::create(&path)
        .and_then(|mut file| file.write_all(content.as_bytes()))
        .expect("a script");
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("its mode");
    path
}

fn path_text(path: &Path) -> String {
    path.to_str().expect("a plain path").to_owned()
}

// --- body and result ---------------------------------------------------------------------------

#[test]
fn the_body_is_standard_input_and_standard_output_the_result() {
    let body = "one two\nthree\n";
    assert_eq!(text(run(CommandSpec::new(["cat"]), delivery(body))), body);
    assert_eq!(
        text(run(CommandSpec::new(["wc", "-w"]), delivery(body))),
        "3\n"
    );
}

#[test]
fn an_empty_body_is_an_end_at_once_and_an_empty_result_a_result() {
    assert_eq!(result(run(CommandSpec::new(["cat"]), delivery(""))), "");
}

#[test]
fn bodies_that_are_no_text_pass_unchanged() {
    let mut body = vec![0x80, 0x91, 0xFF, 0x1f, 0x8b, 0, 0, b'\r', b'\n'];
    body.extend((0..=u8::MAX).cycle().take(5_000_000));
    let spec = CommandSpec::new(["cat"]).with_stdout_limit(8_000_000);
    assert!(result(run(spec, delivery(body.clone()))) == body);
}

#[test]
fn a_command_need_not_read_its_body() {
    let body = vec![b'x'; 5_000_000];
    assert_eq!(
        result(run(CommandSpec::new(["true"]), delivery(body.clone()))),
        ""
    );
    let outcome = run(sh("exec <&-; echo ok"), delivery(body.clone()));
    assert_eq!(text(outcome), "ok\n");
    let outcome = run(CommandSpec::new(["head", "-c", "3"]), delivery(body));
    assert_eq!(text(outcome), "xxx");
}

#[test]
fn nothing_of_a_body_is_ever_code() {
    let directory = tempfile::tempdir().expect("a directory");
    let witness = directory.path().join("witness");
    let hostile = format!("$(touch {0}); `touch {0}`; \n touch {0}", witness.display());
    let mut hostile_delivery = delivery(hostile.clone());
    hostile_delivery.id = Some(hostile.as_str().into());
    hostile_delivery.headers.set("x", hostile.as_str());
    let spec =
        sh("cat >/dev/null; echo $DELIVERY_HEADER_X; echo \"$DELIVERY_ID\"").with_headers(["x"]);
    result(run(spec, hostile_delivery));
    assert!(!witness.exists());
}

// --- metadata ----------------------------------------------------------------------------------

fn rich_delivery() -> Delivery {
    let mut rich = delivery("body");
    rich.id = Some("m-1".into());
    rich.key = Some("k".to_owned());
    rich.attempt = Attempt::new(3);
    rich.redelivered = true;
    rich.delivery_count = Some(4);
    rich.content_type = Some("text/plain".to_owned());
    rich.correlation_id = Some("c-1".to_owned());
    rich.published_at = Some(std::time::UNIX_EPOCH + Duration::from_millis(1_700_000_000_123));
    rich.headers = [
        ("x-tenant".to_owned(), HeaderValue::from("a\"b")),
        ("x-n".to_owned(), HeaderValue::Int(7)),
        (
            "x-raw".to_owned(),
            HeaderValue::Bytes(Bytes::from_static(&[0xff, 0])),
        ),
        ("x-none".to_owned(), HeaderValue::Null),
    ]
    .into_iter()
    .collect();
    rich
}

fn with_deadline(delivery: Delivery) -> DeliveryContext {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    DeliveryContext::new(
        Arc::new(delivery),
        Arc::new(RunControl::default()),
        Some(deadline),
    )
}

#[test]
fn descriptor_3_has_the_documented_json() {
    for spec in [sh("cat <&3"), sh("cat <&3").with_cwd("/")] {
        let line = text(block_on(async {
            handler(spec).handle(with_deadline(rich_delivery())).await
        }));
        assert!(line.ends_with("}\n") && line.lines().count() == 1);
        let mut json: serde_json::Value = serde_json::from_str(&line).expect("json");
        let object = json.as_object_mut().expect("an object");
        let deadline = object.remove("deadline").expect("a deadline");
        let deadline = humantime::parse_rfc3339(deadline.as_str().expect("text")).expect("a date");
        let ahead = deadline
            .duration_since(std::time::SystemTime::now())
            .expect("ahead");
        assert!(ahead > Duration::from_secs(10) && ahead <= Duration::from_secs(30));
        let remaining = object.remove("remaining_seconds").expect("seconds");
        assert!((29.0..=30.0).contains(&remaining.as_f64().expect("a number")));
        assert_eq!(
            json,
            serde_json::json!({
                "id": "m-1", "queue": "words", "partition": 2, "key": "k", "attempt": 3,
                "redelivered": true, "delivery_count": 4, "replay": 0,
                "content_type": "text/plain", "correlation_id": "c-1",
                "published_at": "2023-11-14T22:13:20.123Z", "body_bytes": 4,
                "headers": {
                    "x-tenant": "a\"b", "x-n": 7, "x-raw": {"base64": "/wA="}, "x-none": null
                },
            })
        );
    }
}

fn environment(outcome: HandlerOutcome) -> BTreeMap<String, String> {
    text(outcome)
        .lines()
        .map(|line| line.split_once('=').expect("NAME=value"))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

const SAFE_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

#[test]
fn the_environment_is_exactly_the_documented_one() {
    let spec = CommandSpec::new(["/usr/bin/env"]);
    let check = |spec: CommandSpec, context, expected: &[(&str, &str)]| {
        let mut seen = environment(block_on(async { handler(spec).handle(context).await }));
        let remaining = seen.remove("DELIVERY_REMAINING_SECONDS");
        assert_eq!(
            remaining.is_some(),
            seen.remove("DELIVERY_DEADLINE").is_some()
        );
        let expected = expected
            .iter()
            .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()));
        assert_eq!(seen, expected.collect());
        remaining
    };
    let bare = [
        ("PATH", SAFE_PATH),
        ("DELIVERY_QUEUE", "words"),
        ("DELIVERY_PARTITION", "2"),
        ("DELIVERY_ATTEMPT", "1"),
        ("DELIVERY_REDELIVERED", "false"),
    ];
    assert_eq!(
        check(spec.clone(), DeliveryContext::detached(delivery("")), &bare),
        None
    );

    let own_path = std::env::var("PATH").expect("we have one");
    let manifest = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let rich = [
        ("PATH", own_path.as_str()),
        ("CARGO_MANIFEST_DIR", &manifest),
        ("DELIVERY_ID", "m-1"),
        ("DELIVERY_QUEUE", "words"),
        ("DELIVERY_PARTITION", "2"),
        ("DELIVERY_KEY", "k"),
        ("DELIVERY_CONTENT_TYPE", "text/plain"),
        ("DELIVERY_ATTEMPT", "3"),
        ("DELIVERY_REDELIVERED", "true"),
        ("DELIVERY_HEADER_X_TENANT", "a\"b"),
        ("DELIVERY_HEADER_X_N", "7"),
        ("DELIVERY_SKIPPED", "1"),
    ];
    let spec = spec
        .with_env(["PATH", "CARGO_MANIFEST_DIR", "NO_SUCH_VARIABLE"])
        .with_headers(["x-tenant", "x-n", "x-raw", "x-none", "x-absent"]);
    for spec in [spec.clone(), spec.with_cwd("/")] {
        let remaining = check(spec, with_deadline(rich_delivery()), &rich).expect("a deadline");
        assert!((29.0..=30.0).contains(&remaining.parse::<f64>().expect("seconds")));
    }
}

#[test]
fn hostile_headers_change_no_variable_but_their_own() {
    let hostile = [
        "PATH",
        "LD_PRELOAD",
        "IFS",
        "a=b",
        "ünï",
        "x-nul",
        "x-line",
        "x-long",
    ];
    let mut message = delivery("");
    for name in hostile {
        message.headers.set(name, format!("value of {name}"));
    }
    message.headers.set("x-nul", "a\0b");
    message.headers.set("x-line", "a\nLD_PRELOAD=/evil.so");
    message.headers.set("x-long", "x".repeat(200_000));
    let spec = CommandSpec::new(["/usr/bin/env"]);

    let seen = environment(run(spec.clone(), message.clone()));
    assert!(
        seen.keys()
            .all(|name| name == "PATH" || !name.contains("HEADER"))
    );

    let seen = environment(run(spec.with_headers(hostile), message));
    let check =
        |name: &str, value: &str| assert_eq!(seen.get(name).map(String::as_str), Some(value));
    check("PATH", SAFE_PATH);
    check("DELIVERY_HEADER_PATH", "value of PATH");
    check("DELIVERY_HEADER_LD_PRELOAD", "value of LD_PRELOAD");
    check("DELIVERY_HEADER_IFS", "value of IFS");
    check("DELIVERY_HEADER_A_B", "value of a=b");
    check("DELIVERY_HEADER__N_", "value of ünï");
    check("DELIVERY_SKIPPED", "3");
    assert_eq!(seen.len(), 5 + 5 + 1, "{seen:?}");
}

#[test]
fn ten_thousand_headers_stop_nothing() {
    let mut message = delivery("body");
    message.headers = (0..10_000)
        .map(|n| (format!("x-{n}"), HeaderValue::from("0123456789")))
        .collect::<Headers>();
    let read = sh("cat <&3").with_headers(["x-9999"]);
    let json: serde_json::Value =
        serde_json::from_slice(&result(run(read, message.clone()))).expect("json");
    assert_eq!(
        json["headers"].as_object().map(serde_json::Map::len),
        Some(10_000)
    );
    let not_read = sh("cat; echo $DELIVERY_HEADER_X_9999").with_headers(["x-9999"]);
    assert_eq!(text(run(not_read, message)), "body0123456789\n");
}

#[test]
fn a_command_has_descriptors_0_to_3_and_no_other() {
    let directory = tempfile::tempdir().expect("a directory");
    let left_open = fs::File::create(directory.path().join("left-open")).expect("a file");
    rustix::io::fcntl_setfd(&left_open, rustix::io::FdFlags::empty()).expect("left open for exec");
    // 4 is what ls itself opens to list them.
    let listed = text(run(CommandSpec::new(["ls", "/proc/self/fd"]), delivery("")));
    assert_eq!(
        listed.split_whitespace().collect::<Vec<_>>(),
        ["0", "1", "2", "3", "4"]
    );
}

#[test]
fn a_command_runs_in_its_directory_and_its_own_process_group() {
    let directory = tempfile::tempdir().expect("a directory");
    let real = directory.path().canonicalize().expect("it exists");
    script(&real, "here.sh", "#!/bin/sh\npwd\n", 0o755);
    let spec = CommandSpec::new(["/bin/pwd"]).with_cwd(&real);
    assert_eq!(
        text(run(spec, delivery(""))),
        format!("{}\n", real.display())
    );
    for spec in [
        sh("cat /proc/self/stat"),
        sh("cat /proc/self/stat").with_cwd("/"),
    ] {
        let stat = text(run(spec, delivery("")));
        let group: u32 = stat
            .split(' ')
            .nth(4)
            .expect("a group")
            .parse()
            .expect("a number");
        let ours = rustix::process::getpgrp()
            .as_raw_nonzero()
            .get()
            .unsigned_abs();
        assert_ne!(group, ours);
    }
    let gone = directory.path().join("gone");
    let refused = CommandHandler::new(CommandSpec::new(["true"]).with_cwd(gone));
    assert!(matches!(refused, Err(HandlerError::BadDirectory { .. })));
}

// --- the word ----------------------------------------------------------------------------------

#[test]
fn each_exit_code_says_what_the_table_says() {
    let table = ExitTable::default()
        .with(42, ExitVerdict::Discard)
        .with(69, ExitVerdict::Unavailable);
    let check = |code: u8, expected: fn(String) -> HandlerOutcome| {
        let spec =
            sh(&format!("echo out; echo why >&2; exit {code}")).with_exit_table(table.clone());
        let error = format!("exit code {code}: why");
        assert_eq!(run(spec, delivery("")), expected(error), "code {code}");
    };
    check(0, |_| HandlerOutcome::completed_with("out\n"));
    check(65, |error| HandlerOutcome::Rejected { error });
    check(3, |error| HandlerOutcome::Rejected { error });
    for code in [75, 4, 5, 6, 1, 2, 126, 127, 143, 255] {
        check(code, |error| HandlerOutcome::Failed { error });
    }
    check(42, |_| HandlerOutcome::Discarded);
    check(69, |error| HandlerOutcome::Unavailable { error });
    let strict = sh("exit 9").with_exit_table(ExitTable {
        other: ExitVerdict::Reject,
        ..table
    });
    assert_eq!(
        run(strict, delivery("")),
        HandlerOutcome::rejected("exit code 9")
    );
}

#[test]
fn a_command_killed_by_a_signal_is_gone() {
    for (name, signal) in [
        ("KILL", "SIGKILL"),
        ("TERM", "SIGTERM"),
        ("SEGV", "SIGSEGV"),
        ("PIPE", "SIGPIPE"),
    ] {
        let outcome = run(
            sh(&format!("ulimit -c 0; echo last >&2; kill -{name} $$")),
            delivery(""),
        );
        let error = format!("killed by {signal}: last");
        assert_eq!(outcome, HandlerOutcome::Gone { error });
    }
}

#[test]
fn the_errors_text_is_harmless_and_short() {
    let outcome = run(
        sh("head -c 200000 /dev/zero | tr '\\0' x >&2; \
            printf '\\r\\n2026 ERROR forged\\033[31m\\342\\200\\256' >&2; exit 1"),
        delivery(""),
    );
    let HandlerOutcome::Failed { error } = outcome else {
        panic!("{outcome:?}")
    };
    assert!(error.starts_with("exit code 1: …xxx"), "{}", &error[..40]);
    assert!(error.ends_with("xxx\\r\\n2026 ERROR forged\\u{1b}[31m\\u{202e}"));
    assert!(error.len() < CommandSpec::STDERR_TAIL + 64);
    let tiny = sh("echo 0123456789 >&2; exit 1").with_stderr_tail(4);
    assert_eq!(
        run(tiny, delivery("")),
        HandlerOutcome::failed("exit code 1: …789")
    );
}

#[test]
fn lines_of_standard_error_are_logged_escaped_and_capped() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .json()
        .with_writer(move || writer.clone())
        .finish();
    let mut message = delivery("secret body");
    message.id = Some("id\r\nforged".into());
    let _guard = tracing::subscriber::set_default(subscriber);
    let _ = run(
        sh(
            "printf 'a\\033[2J\\r\\nb\\n' >&2; head -c 5000 /dev/zero | tr '\\0' y >&2; echo >&2; \
            i=0; while [ $i -lt 1000 ]; do echo $i; i=$((i+1)); done >&2; printf last >&2",
        ),
        message,
    );
    let lines = log.lines();
    assert!(
        lines
            .iter()
            .all(|line| line["target"] == "acquit::command::stderr")
    );
    assert_eq!(lines.len(), 64 + 1, "the cap, and how many more");
    assert_eq!(lines[0]["fields"]["line"], "a\\u{1b}[2J");
    assert_eq!(lines[0]["fields"]["id"], "id\\r\\nforged");
    assert_eq!(lines[1]["fields"]["line"], "b");
    assert_eq!(lines[2]["fields"]["line_bytes"], 5000);
    assert!(lines[2]["fields"]["line"].as_str().expect("text").len() < 1100);
    assert_eq!(lines[64]["fields"]["lines"], 1000 + 4 - 64);
    assert!(!log.text().contains("secret"));
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().expect("a lock").clone()).expect("text")
    }
    fn lines(&self) -> Vec<serde_json::Value> {
        self.text()
            .lines()
            .map(|line| serde_json::from_str(line).expect("every line is JSON"))
            .collect()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("a lock").extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_result_over_the_limit_is_a_failure() {
    let spec = |count: &str| {
        CommandSpec::new(["head", "-c", count, "/dev/zero"]).with_stdout_limit(100_000)
    };
    assert_eq!(result(run(spec("100000"), delivery(""))).len(), 100_000);
    let outcome = run(spec("100001"), delivery(""));
    assert_eq!(
        outcome,
        HandlerOutcome::failed("result larger than 100000 bytes")
    );
    let outcome = run(CommandSpec::new(["cat", "/dev/zero"]), delivery(""));
    assert_eq!(
        outcome,
        HandlerOutcome::failed("result larger than 1048576 bytes")
    );
}

// --- commands that cannot run ------------------------------------------------------------------

#[test]
fn what_could_never_run_is_refused_with_what_to_write() {
    let directory = tempfile::tempdir().expect("a directory");
    let check = |argv: &[&str], parts: &[&str]| {
        let error = CommandHandler::new(CommandSpec::new(argv.iter().copied()))
            .expect_err("refused")
            .to_string();
        for part in parts {
            assert!(error.contains(part), "{part:?} is not in: {error}");
        }
    };
    let not_executable = script(directory.path(), "plain", "#!/bin/sh\n", 0o644);
    let bad = script(
        directory.path(),
        "bad",
        "#!/no/such/interpreter -x\n",
        0o755,
    );
    let bad_env = script(
        directory.path(),
        "bad-env",
        "#!/usr/bin/env no-such-language\n",
        0o755,
    );
    check(&[], &["empty", "[\"wc\", \"-w\"]"]);
    check(&[""], &["empty"]);
    check(
        &["no-such-command"],
        &["\"no-such-command\"", SAFE_PATH, "full path"],
    );
    check(
        &["/nope/x"],
        &["looked in /nope/x", "[\"/usr/local/bin/x\"]"],
    );
    check(
        &[&path_text(&not_executable)],
        &["not an executable file", "chmod +x"],
    );
    check(
        &[&path_text(&bad)],
        &["\"/no/such/interpreter\"", "[\"/bin/sh\", "],
    );
    check(&[&path_text(&bad_env)], &["\"no-such-language\""]);
    check(
        &["sh", "-c", "echo '{body}'"],
        &["{body}", "standard input", "descriptor 3"],
    );
    check(&["echo", "a\0b"], &["argument 1", "NUL"]);
    let refused = |spec: CommandSpec| CommandHandler::new(spec).expect_err("refused");
    for name in ["", "A=B", "DELIVERY_ID"] {
        let error = refused(CommandSpec::new(["true"]).with_env([name]));
        assert!(matches!(error, HandlerError::BadVariable { .. }));
    }
}

#[test]
fn what_cannot_start_any_more_is_unavailable_and_comes_back() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("command");
    let check = |handler: &CommandHandler, reason: &str| {
        let outcome = block_on(handler.handle(DeliveryContext::detached(delivery("body"))));
        let HandlerOutcome::Unavailable { error } = outcome else {
            panic!("{outcome:?}")
        };
        assert!(
            error.contains(&path_text(&file)) && error.contains(reason),
            "{error}"
        );
    };
    symlink("/bin/cat", &file).expect("a link");
    let removed = handler(CommandSpec::new([path_text(&file)]));
    let in_directory = handler(CommandSpec::new([path_text(&file)]).with_cwd("/"));
    let context = || DeliveryContext::detached(delivery("body"));
    assert_eq!(result(block_on(removed.handle(context()))), "body");
    fs::remove_file(&file).expect("removed");
    check(&removed, "No such file");
    check(&in_directory, "No such file");
    symlink("/bin/cat", &file).expect("a link");
    assert_eq!(result(block_on(removed.handle(context()))), "body");
    assert_eq!(result(block_on(in_directory.handle(context()))), "body");

    fs::remove_file(&file).expect("removed");
    script(directory.path(), "command", "not a program\n", 0o755);
    check(&removed, "Exec format error");
    script(directory.path(), "command", "#!/bin/sh\n", 0o644);
    check(&removed, "Permission denied");
    fs::remove_file(&file).expect("removed");
    script(
        directory.path(),
        "command",
        "#!/no/such/interpreter\n",
        0o755,
    );
    check(&removed, "No such file");
}

// --- being stopped -----------------------------------------------------------------------------

/// A command that is told to stop once it has written its process id to `$1`.
async fn stopped(code: &str, grace: Duration) -> (HandlerOutcome, u32, Duration) {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("pid");
    let spec = CommandSpec::new(["/bin/sh", "-c", code, "x", &path_text(&file)]);
    let handler = handler(spec.with_abort_grace(grace));
    assert_eq!(handler.abort_grace(), grace);
    let control = Arc::new(RunControl::default());
    let context = DeliveryContext::new(Arc::new(delivery("")), control.clone(), None);
    let task = tokio::spawn(handler.handle(context));
    let pid = pid_in(&file).await;
    let start = Instant::now();
    control.cancel();
    let outcome = task.await.expect("no panic");
    (outcome, pid, start.elapsed())
}

#[test]
fn a_command_told_to_stop_gets_term_and_may_still_finish() {
    block_on(async {
        let (outcome, pid, _) = stopped("echo $$ >$1; while :; do :; done", BOUND).await;
        let error = "killed by SIGTERM, told to stop".to_owned();
        assert_eq!(outcome, HandlerOutcome::Gone { error });
        assert!(is_reaped(pid));

        let tidy = "trap 'echo tidy; exit 0' TERM; echo $$ >$1; while :; do :; done";
        let (outcome, pid, _) = stopped(tidy, BOUND).await;
        assert_eq!(text(outcome), "tidy\n");
        assert!(is_reaped(pid));
    });
}

#[test]
fn a_command_that_ignores_term_is_killed_within_the_grace() {
    block_on(async {
        let grace = Duration::from_millis(500);
        let stubborn = "trap '' TERM; echo $$ >$1; while :; do :; done";
        let (outcome, pid, took) = stopped(stubborn, grace).await;
        let error = "killed by SIGKILL, told to stop".to_owned();
        assert_eq!(outcome, HandlerOutcome::Gone { error });
        assert!(is_reaped(pid));
        assert!(took > grace / 2, "it had its grace: {took:?}");

        let (outcome, pid, took) = stopped(stubborn, Duration::ZERO).await;
        assert!(matches!(outcome, HandlerOutcome::Gone { .. }));
        assert!(is_reaped(pid) && took < BOUND / 2);
    });
}

#[test]
fn a_command_that_writes_without_end_can_still_be_stopped() {
    block_on(async {
        let flood = "echo $$ >$1; exec cat /dev/zero >&2";
        let (outcome, pid, _) = stopped(flood, BOUND).await;
        assert!(
            matches!(outcome, HandlerOutcome::Gone { .. }),
            "{outcome:?}"
        );
        assert!(is_reaped(pid));
    });
}

#[test]
fn what_is_stopped_before_it_starts_does_not_start() {
    let control = Arc::new(RunControl::default());
    control.cancel();
    let context = DeliveryContext::new(Arc::new(delivery("")), control, None);
    let outcome = block_on(handler(CommandSpec::new(["true"])).handle(context));
    assert!(matches!(outcome, HandlerOutcome::Unavailable { .. }));
}

#[test]
fn a_dropped_attempt_kills_the_whole_group() {
    block_on(async {
        let directory = tempfile::tempdir().expect("a directory");
        let (leader, child) = (
            directory.path().join("leader"),
            directory.path().join("child"),
        );
        let code =
            "trap '' TERM; (trap '' TERM; while :; do :; done) & echo $! >$2; echo $$ >$1; wait";
        let spec = CommandSpec::new([
            "/bin/sh",
            "-c",
            code,
            "x",
            &path_text(&leader),
            &path_text(&child),
        ]);
        let context = DeliveryContext::detached(delivery(""));
        let task = tokio::spawn(handler(spec).handle(context));
        let (leader, child) = (pid_in(&leader).await, pid_in(&child).await);
        task.abort();
        eventually("the leader is reaped", || is_reaped(leader)).await;
        eventually("its child is gone", || is_gone(child)).await;
    });
}

#[test]
fn a_runtime_that_ends_kills_its_commands() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("pid");
    let spec = CommandSpec::new([
        "/bin/sh",
        "-c",
        "echo $$ >$1; while :; do :; done",
        "x",
        &path_text(&file),
    ]);
    let pid = block_on(async {
        tokio::spawn(handler(spec).handle(DeliveryContext::detached(delivery(""))));
        pid_in(&file).await
    });
    block_on(eventually("it is reaped", || is_reaped(pid)));
}

#[test]
fn what_a_command_leaves_behind_is_not_waited_for_and_is_killed() {
    block_on(async {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("pid");
        let code = "sleep 1000 & echo $! >$1; echo done";
        let spec = CommandSpec::new(["/bin/sh", "-c", code, "x", &path_text(&file)]);
        let context = DeliveryContext::detached(delivery(vec![b'x'; 1_000_000]));
        let outcome = handler(spec).handle(context).await;
        assert_eq!(text(outcome), "done\n");
        let left = pid_in(&file).await;
        eventually("what it left behind is gone", || is_gone(left)).await;
    });
}

#[test]
fn what_has_left_the_group_is_not_waited_for() {
    block_on(async {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("pid");
        let code = "setsid sh -c 'echo $$ >$0; exec sleep 1000' $1 & \
                    while [ ! -s $1 ]; do :; done; echo done";
        let spec = CommandSpec::new(["/bin/sh", "-c", code, "x", &path_text(&file)]);
        let outcome = handler(spec)
            .handle(DeliveryContext::detached(delivery("")))
            .await;
        assert_eq!(text(outcome), "done\n");
        let left = pid_in(&file).await;
        let left = rustix::process::Pid::from_raw(left.cast_signed()).expect("a process");
        rustix::process::kill_process(left, rustix::process::Signal::KILL).expect("it still runs");
    });
}
