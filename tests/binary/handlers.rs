//! What becomes of messages by what their commands do.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::kit::{Home, bodies, eventually, holds_for, json_lines};

const RETRY: &str = "retry = { max-attempts = 3, backoff-base = \"200ms\", backoff-max = \"400ms\" }\n\
                     reply-queue = \"results\"\ndead-letter-queue = \"dead\"\npermits = 4\n";

fn home(more: &str, script: &str) -> Home {
    let handler = "handler = { command = [\"/bin/sh\", \"handler.sh\"], cwd = \".\" }";
    let home = Home::with_consumer(&format!("{RETRY}{more}\n{handler}"), "");
    home.write("handler.sh", script);
    home
}

/// Runs until idle and gives the decision lines.
#[track_caller]
fn decisions(home: &Home) -> Vec<Value> {
    let done = home.acquit(&["run", "--until-idle", "--log-format", "json"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    let is_decision = |line: &Value| line["target"] == "acquit::decision";
    json_lines(&done.err)
        .into_iter()
        .filter(is_decision)
        .collect()
}

#[test]
fn the_exit_code_decides_and_each_delivery_has_one_line() {
    let home = home(
        "",
        "read body; echo \"$(date +%s%N)\" >> runs-$DELIVERY_ID; echo \"no: \x1b[31m$DELIVERY_ATTEMPT\" >&2; \
         case $DELIVERY_ID in gone) kill -9 $$;; *) printf '%s' \"$body\"; exit $DELIVERY_ID;; esac",
    );
    let codes = ["0", "65", "75", "3", "42", "gone"];
    let lines: String = codes
        .iter()
        .map(|code| {
            format!(
                "{}\n",
                json!({"id": code, "body": "the-canary\n", "headers": {"x-mine": code}})
            )
        })
        .collect();
    home.publish_lines("work", &lines);
    let decisions = decisions(&home);

    let mut by_id: BTreeMap<&str, Vec<(&Value, &Value, &Value)>> = BTreeMap::new();
    for line in &decisions {
        let id = line["message_id"].as_str().expect("an id");
        let word = (&line["attempt"], &line["outcome"], &line["disposition"]);
        by_id.entry(id).or_default().push(word);
        assert!(
            !line.to_string().contains("canary"),
            "a payload in the log: {line}"
        );
        assert!(
            !line.to_string().contains("\\u001b"),
            "a raw escape in the log: {line}"
        );
    }
    let word = |attempt: u32, outcome: &str, disposition: &str| {
        (json!(attempt), json!(outcome), json!(disposition))
    };
    let expect = |id: &str, expected: &[(Value, Value, Value)]| {
        let found: Vec<_> = by_id[id]
            .iter()
            .map(|(a, o, d)| ((*a).clone(), (*o).clone(), (*d).clone()))
            .collect();
        assert_eq!(found, expected, "{id}");
    };
    expect("0", &[word(1, "completed", "ack")]);
    expect("65", &[word(1, "rejected", "reject")]);
    expect("3", &[word(1, "rejected", "reject")]);
    for id in ["75", "42"] {
        let exhausted = &by_id[id];
        assert_eq!(exhausted.len(), 3, "{id}: {exhausted:?}");
        assert_eq!(exhausted[0].2, "requeue", "{id}");
        assert_eq!(exhausted[2].2, "reject", "{id}");
        let attempts: Vec<_> = exhausted
            .iter()
            .map(|(attempt, ..)| attempt.as_u64())
            .collect();
        assert_eq!(attempts, [Some(1), Some(2), Some(3)], "{id}");
        let runs: Vec<u64> = home
            .lines(&format!("runs-{id}"))
            .iter()
            .map(|t| t.parse().expect("ns"))
            .collect();
        for pair in runs.windows(2) {
            // Jitter takes at most half of a step.
            let pause = Duration::from_nanos(pair[1] - pair[0]);
            assert!(pause >= Duration::from_millis(100), "{id}: {pause:?}");
        }
    }

    let results = home.get("results");
    assert_eq!(results.len(), 1);
    assert_eq!(
        (&results[0]["correlation-id"], &results[0]["body"]),
        (&json!("0"), &json!("the-canary"))
    );
    let dead: BTreeMap<String, Value> = home
        .get("dead")
        .into_iter()
        .map(|m| (m["id"].as_str().expect("an id").to_owned(), m))
        .collect();
    let ids: Vec<&str> = dead.keys().map(String::as_str).collect();
    assert_eq!(ids, ["3", "42", "65", "75", "gone"]);
    let header = |id: &str, name: &str| dead[id]["headers"][name].clone();
    for id in ids {
        assert_eq!(dead[id]["body"], "the-canary\n");
        assert_eq!(header(id, "x-mine"), id);
        assert_eq!(header(id, "x-acquit-origin-queue"), "work");
        assert!(
            header(id, "x-acquit-origin-time").is_string()
                || header(id, "x-acquit-origin-time").is_number(),
            "{id}"
        );
        let attempts = if ["65", "3"].contains(&id) { 1 } else { 3 };
        assert_eq!(header(id, "x-acquit-attempt"), attempts, "{id}");
        let last = header(id, "x-acquit-last-error")
            .as_str()
            .expect("text")
            .to_owned();
        let first = header(id, "x-acquit-first-error")
            .as_str()
            .expect("text")
            .to_owned();
        assert!(
            !last.contains('\x1b') && !first.contains('\x1b'),
            "{first} {last}"
        );
        if id != "gone" {
            assert!(
                first.contains("31m1") && last.contains(&format!("31m{attempts}")),
                "{id}: {first} / {last}"
            );
        }
    }
    assert_eq!(
        (
            header("65", "x-acquit-reason"),
            header("75", "x-acquit-reason")
        ),
        (json!("rejected"), json!("exhausted"))
    );
    assert_eq!(home.get("work"), [] as [Value; 0]);
}

#[test]
fn poison_messages_do_not_stop_their_neighbours() {
    let home = home(
        "",
        "read body; case $body in poison*) exit 1;; esac; printf '%s' \"$body\"",
    );
    let poison: Vec<String> = (0..10).map(|n| format!("poison-{n}")).collect();
    let good: Vec<String> = (0..60).map(|n| format!("good-{n:02}")).collect();
    let all: Vec<&str> = poison.iter().chain(&good).map(String::as_str).collect();
    home.publish("work", &all);
    let decisions = decisions(&home);
    assert_eq!(decisions.len(), 10 * 3 + 60);
    assert_eq!(bodies(&home.get("results")), good);
    assert_eq!(bodies(&home.get("dead")), poison);
    let last_good = decisions
        .iter()
        .rposition(|line| line["disposition"] == "ack")
        .expect("good");
    let exhausted = decisions
        .iter()
        .filter(|line| line["disposition"] == "reject")
        .count();
    assert_eq!(exhausted, 10);
    let first_exhausted = decisions
        .iter()
        .position(|line| line["disposition"] == "reject")
        .expect("poison");
    assert!(
        first_exhausted > 10 && last_good > 10,
        "{first_exhausted} {last_good}"
    );
}

#[test]
fn a_command_that_vanishes_is_waited_for_and_its_message_kept() {
    let home = Home::new("");
    let program = home.path("program");
    symlink("/bin/cat", &program).expect("linked");
    home.write(
        "config.toml",
        format!(
            "[worker]\nstate-dir = \"data\"\n[broker]\nurl = \"embedded:data\"\n[[consumer]]\n\
             name = \"work\"\nqueue = \"work\"\n{RETRY}handler = {{ command = [\"./program\"] }}\n"
        ),
    );
    let running = home.run(&["--log-format", "json"]);
    home.publish("work", &["before"]);
    eventually("it runs", || home.get("results").len() == 1);
    fs::remove_file(&program).expect("ours");
    home.publish("work", &["a", "b", "c"]);
    eventually("it is unavailable", || {
        home.counts()["unavailable"].as_u64() > Some(0)
    });
    holds_for(Duration::from_secs(4), "bounded tries", || {
        running.count("\"outcome\":\"unavailable\"") <= 20
    });
    assert_eq!(
        home.get("dead"),
        [] as [Value; 0],
        "a message paid for a missing command"
    );
    symlink("/bin/cat", &program).expect("linked");
    eventually("it goes on", || home.get("results").len() == 4);
    assert_eq!(bodies(&home.get("results")), ["a", "b", "before", "c"]);
    running.signal(Signal::TERM);
    let done = running.end();
    assert_eq!(done.code, Some(0), "{}", done.err);
}

#[test]
fn what_commands_say_on_stderr_is_escaped_in_the_log() {
    let home = home(
        "",
        "printf 'a\\033]0;title\\007\\nforged line level=ERROR\\n' >&2; cat",
    );
    home.publish("work", &["a"]);
    let done = home.acquit(&["run", "--until-idle", "--log-level", "trace"]);
    assert_eq!(done.code, Some(0));
    assert!(!done.err.contains(['\x1b', '\x07']), "{}", done.err);
    assert!(!done.err.contains("\nforged"), "{}", done.err);
}

#[test]
fn commands_that_write_too_much_or_read_nothing_or_leave_children_are_ended() {
    let home = home(
        "handler-timeout = \"1s\"\nabort-grace = \"100ms\"\n",
        "case $DELIVERY_ID in\n\
         much) head -c 1073741824 /dev/zero;;\n\
         deaf) exec 0<&-; printf ok;;\n\
         child) sleep 600 & echo $! > child; printf ok;;\n\
         slow) trap '' TERM; sleep 600 & echo $! > slow; wait; while [ -e config.toml ]; do sleep 1; done;;\n\
         esac",
    );
    let body = "x".repeat(1 << 20);
    let lines: String = ["much", "deaf", "child", "slow"]
        .iter()
        .map(|id| format!("{}\n", json!({"id": id, "body": body})))
        .collect();
    home.publish_lines("work", &lines);
    decisions(&home);
    let results = home.get("results");
    let mut done: Vec<&str> = results
        .iter()
        .filter_map(|m| m["correlation-id"].as_str())
        .collect();
    done.sort_unstable();
    assert_eq!(done, ["child", "deaf"]);
    let dead = home.get("dead");
    let mut ids: Vec<&str> = dead.iter().filter_map(|m| m["id"].as_str()).collect();
    ids.sort_unstable();
    assert_eq!(ids, ["much", "slow"]);
    for file in ["child", "slow"] {
        for pid in home.lines(file) {
            eventually("no child is left", || !crate::kit::is_alive(&pid));
        }
    }
}
