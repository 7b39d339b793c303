//! The commands: to a running process over its socket, and to the store where none runs.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::kit::{Home, bodies, eventually, holds_for, json_lines};

/// A consumer whose command waits for a file of its message's id.
fn gated() -> Home {
    let home = Home::with_consumer(
        "permits = 2\nreply-queue = \"results\"\ndead-letter-queue = \"dead\"\nabort-grace = \"100ms\"\n\
         handler = { command = [\"/bin/sh\", \"handler.sh\"], cwd = \".\" }",
        "",
    );
    home.write(
        "handler.sh",
        "echo $DELIVERY_ID >> started; while [ -e config.toml ] && ! [ -e go ]; do sleep 0.02; done; cat",
    );
    home
}

#[track_caller]
fn expect(home: &Home, args: &[&str], code: i32, out: &str, err: &str) {
    let done = home.acquit(args);
    let said = (done.code, done.out.as_str(), done.err.as_str());
    assert_eq!(said, (Some(code), out, err), "{args:?}");
}

#[test]
fn publish_get_and_take_work_on_the_store_and_through_the_process() {
    let home = Home::with_consumer(
        "handler = \"echo\"",
        "[[feed]]\nqueue = \"side\"\nfile = \"feed\"",
    );
    home.write("feed", "");
    let see = |home: &Home| {
        expect(
            home,
            &[
                "publish", "side", "--body", "one", "--id", "1", "--key", "k", "-H", "a=b",
            ],
            0,
            "published 1 to side\n",
            "",
        );
        let lines = b"{\"body\":\"two\"}\n\n{\"body-base64\":\"/wA=\"}\n";
        let done = home.acquit_with(&["publish", "side", "--json"], lines);
        assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
        assert_eq!(
            json_lines(&done.out),
            [json!({"queue": "side", "published": 2})]
        );
        let all = home.get("side");
        assert_eq!(all.len(), 3);
        let one = json!({
            "queue": "side", "partition": 0, "seq": all[0]["seq"], "id": "1", "key": "k",
            "headers": {"a": "b"}, "body": "one",
        });
        assert_eq!(all[0], one);
        assert_eq!(all[1]["body"], "two");
        assert_eq!(
            (&all[2]["body-base64"], &all[2]["body"]),
            (&json!("/wA="), &Value::Null)
        );
        assert_eq!(home.get("side"), all, "a look takes nothing");
        let taken = home.acquit(&["get", "side", "--take", "-n", "2"]);
        assert_eq!(json_lines(&taken.out), all[..2]);
        assert_eq!(home.get("side"), all[2..]);
        home.acquit(&["get", "side", "--take"]);
        assert_eq!(home.get("side"), [] as [Value; 0]);
        let unknown = "acquit: there is no queue \"nope\"; there are: side, work\n";
        expect(home, &["get", "nope"], 1, "", unknown);
    };
    see(&home);
    let running = home.run(&[]);
    see(&home);
    drop(running);
}

#[test]
fn a_bad_line_is_told_by_its_number_and_what_stands_before_it_is_published() {
    let home = Home::with_consumer("handler = \"echo\"", "");
    let see = |home: &Home, count: usize| {
        let good: String = (1..=300)
            .map(|n| format!("{{\"body\":\"{n}\"}}\n\n"))
            .collect();
        let input = format!("{good}{{\"bdy\":\"x\"}}\n{{\"body\":\"after\"}}\n");
        let done = home.acquit_with(&["publish", "side"], input.as_bytes());
        let text = "acquit: line 601: unknown field `bdy`; did you mean `body`?; 300 before it are \
                    published, and nothing from it on\n";
        assert_eq!(
            (done.code, done.out.as_str(), done.err.as_str()),
            (Some(1), "", text)
        );
        assert_eq!(home.get("side").len(), count);
        let done = home.acquit_with(&["publish", "side"], b"\n\xff\n");
        let text = "acquit: line 2: byte 1 is not UTF-8; 0 before it are published, and nothing from \
                    it on\n";
        assert_eq!((done.code, done.err.as_str()), (Some(1), text));
        assert_eq!(home.get("side").len(), count);
    };
    let config = fs::read_to_string(home.path("config.toml")).expect("written");
    home.write("feed", "");
    home.write(
        "config.toml",
        format!("{config}\n[[feed]]\nqueue = \"side\"\nfile = \"feed\"\n"),
    );
    see(&home, 300);
    let running = home.run(&[]);
    see(&home, 600);
    drop(running);
}

#[test]
fn commands_that_need_a_process_say_that_none_runs_also_over_a_stale_socket() {
    let home = gated();
    let text =
        "acquit: no process of this configuration runs (nobody answers on DIR/data/acquit.sock)\n";
    let see = |home: &Home| {
        for args in [
            &["status"][..],
            &["drain"],
            &["pause", "work"],
            &["resume", "work"],
            &["scale", "work", "3"],
            &["inflight"],
            &["cancel", "1"],
        ] {
            expect(home, args, 1, "", text);
        }
    };
    see(&home);
    fs::create_dir_all(home.path("data")).expect("made");
    drop(UnixListener::bind(home.path("data/acquit.sock")).expect("bound"));
    see(&home);
    home.publish("work", &["a"]);
    let running = home.run(&[]);
    let mode = fs::metadata(home.path("data/acquit.sock"))
        .expect("there")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(home.status()["snapshot"]["phase"], "running");
    running.kill();
    assert!(
        home.exists("data/acquit.sock"),
        "a killed process cannot clean up"
    );
    see(&home);
    home.write("go", "");
    assert_eq!(home.acquit(&["run", "--until-idle"]).code, Some(0));
    assert_eq!(bodies(&home.get("results")), ["a"]);
}

#[test]
fn pause_resume_scale_inflight_and_cancel_reach_the_process() {
    let home = gated();
    home.publish("work", &["a", "b", "c", "d"]);
    let running = home.run(&[]);
    eventually("two run", || home.lines("started").len() == 2);
    let done = home.acquit(&["inflight", "--json"]);
    let running_now: Vec<Value> = json_lines(&done.out)
        .into_iter()
        .filter(|item| item["state"] == "running")
        .collect();
    assert_eq!(running_now.len(), 2, "{}", done.out);
    let first = &running_now[0];
    assert_eq!(
        (&first["consumer"], &first["id"], &first["attempt"]),
        (&json!("work"), &json!("a"), &json!(1))
    );

    expect(&home, &["scale", "work", "3"], 0, "scaled\n", "");
    eventually("three run", || home.lines("started").len() == 3);
    assert_eq!(home.status()["snapshot"]["consumers"][0]["permits"], 3);
    expect(
        &home,
        &["scale", "nope", "3"],
        1,
        "",
        "acquit: there is no consumer \"nope\"; there are: work\n",
    );
    let done = home.acquit(&["scale", "work", "0"]);
    assert_eq!(done.code, Some(2));

    expect(
        &home,
        &["cancel", &first["delivery"].to_string()],
        0,
        "cancelled\n",
        "",
    );
    eventually("it is rejected", || home.get("dead").len() == 1);
    let dead = home.get("dead");
    assert_eq!(dead[0]["headers"]["x-acquit-reason"], "cancelled");
    assert_eq!(dead[0]["id"], "a");
    eventually("its permit serves the next", || {
        home.lines("started").len() == 4
    });
    expect(
        &home,
        &["cancel", "999999"],
        1,
        "",
        "acquit: no delivery 999999 is in hand\n",
    );

    expect(&home, &["pause", "work"], 0, "paused\n", "");
    home.write("go", "");
    eventually("what ran is done", || home.get("results").len() == 3);
    home.publish("work", &["e"]);
    holds_for(Duration::from_millis(500), "paused", || {
        home.lines("started").len() == 4
    });
    let partition = home.status()["snapshot"]["consumers"][0]["partitions"][0].clone();
    assert_eq!(partition["paused"], "acquit pause");
    let shown = home.acquit(&["status"]);
    assert!(shown.out.contains("acquit pause"), "{}", shown.out);
    expect(&home, &["resume", "work"], 0, "resumed\n", "");
    eventually("it goes on", || {
        bodies(&home.get("results")) == ["b", "c", "d", "e"]
    });

    let counts = home.counts();
    let sum: u64 = [
        "in-hand", "acked", "requeued", "released", "rejected", "lost",
    ]
    .iter()
    .map(|key| counts[key].as_u64().expect("a count"))
    .sum();
    assert_eq!(counts["received"], sum, "{counts}");
    assert_eq!(counts["rejected"], 1, "{counts}");

    let done = home.acquit(&["drain", "--wait", "--json"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    let report: Value = serde_json::from_str(&done.out).expect("JSON");
    assert_eq!(
        (&report["clean"], &report["reason"]),
        (&json!(true), &json!("acquit drain"))
    );
    let ended = running.end();
    assert_eq!(ended.code, Some(0));
    assert!(
        ended.err.contains("drained (acquit drain): clean"),
        "{}",
        ended.err
    );
}

#[test]
fn drain_says_draining_and_status_answers_until_the_end() {
    let home = gated();
    home.publish("work", &["a", "b"]);
    let running = home.run(&[]);
    eventually("two run", || home.lines("started").len() == 2);
    expect(&home, &["drain"], 0, "draining\n", "");
    eventually("it drains", || {
        home.status()["snapshot"]["phase"] == "draining"
    });
    let waiting: Vec<_> = (0..5).map(|_| home.start(&["drain", "--wait"])).collect();
    eventually("all are waited for", || {
        running.count("an order over the socket") == 6
    });
    home.write("go", "");
    for waits in waiting {
        let done = waits.end();
        assert_eq!(done.code, Some(0), "{done:?}");
        assert!(
            done.out.starts_with("drained (acquit drain): clean, in "),
            "{done:?}"
        );
    }
    assert_eq!(running.end().code, Some(0));
}

#[test]
fn who_reads_only_the_first_lines_of_get_is_no_error() {
    let home = Home::with_consumer(
        "handler = \"echo\"",
        "[[feed]]\nqueue = \"side\"\nfile = \"feed\"",
    );
    let lines: String = (0..5000)
        .map(|n| format!("{{\"body\":\"{n:0100}\"}}\n"))
        .collect();
    home.write("feed", lines);
    assert_eq!(home.acquit(&["run", "--until-idle"]).code, Some(0));
    let mut command = home.command(&["get", "side"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("starts");
    let mut line = String::new();
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    out.read_line(&mut line).expect("read");
    drop(out);
    let mut err = String::new();
    child
        .stderr
        .take()
        .expect("piped")
        .read_to_string(&mut err)
        .expect("read");
    let status = child.wait().expect("ours");
    assert_eq!((status.code(), err.as_str()), (Some(0), ""));
    assert!(line.contains("\"body\":\"000"));
}

#[test]
fn nonsense_on_the_socket_harms_nobody() {
    let home = gated();
    let running = home.run(&[]);
    let say = |text: &[u8]| {
        let mut stream = UnixStream::connect(home.path("data/acquit.sock")).expect("served");
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .expect("set");
        stream.write_all(text).expect("written");
        stream.shutdown(std::net::Shutdown::Write).expect("shut");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("answered");
        answer
    };
    assert_eq!(
        say(b"{\"command\":\"secret\n"),
        "{\"error\":\"not a request of this version, column 18\"}\n"
    );
    assert_eq!(say(b"\xff\xfe\n").matches("error").count(), 1);
    assert_eq!(say(b""), "");
    // More connections than are served at once, all silent.
    let idle: Vec<_> = (0..40)
        .map(|_| UnixStream::connect(home.path("data/acquit.sock")).expect("accepted"))
        .collect();
    drop(idle);
    assert_eq!(home.status()["snapshot"]["phase"], "running");
    running.signal(Signal::TERM);
    assert_eq!(running.end().code, Some(0));
}
