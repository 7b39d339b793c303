//! Whole files against whole error texts, and the shipped file against the defaults.

use std::time::Duration;

use acquit_actors::model::{Capabilities, DeliveryCounting, OnLeaseLost, RetryWay};
use toml::de::DeTable;

use super::raw::{Raw, RawCommand, RawHandler};
use super::reader::{Environment, Read};
use super::*;

fn read_raw(text: &str, environment: &Environment) -> (Raw, Read) {
    let tree = DeTable::parse(text).expect("TOML");
    Raw::read(text, tree.get_ref(), environment)
}

/// Takes a text's errors and warnings, as lines.
fn lines(text: &str) -> String {
    match Plan::from_str(text, "config.toml") {
        Ok(plan) => {
            let lines = plan.warnings().map(|p| p.line(&plan.file));
            lines.collect::<Vec<_>>().join("\n")
        }
        Err(error) => error.to_string(),
    }
}

fn check(text: &str, expected: &str) {
    assert_eq!(lines(text), expected, "for:\n{text}");
}

/// A consumer with what must be there, and more keys.
fn with(keys: &str) -> String {
    format!("[[consumer]]\nname = \"c\"\nqueue = \"q\"\nhandler = \"echo\"\n{keys}")
}

/// What is chosen for the job of the shipped file; everything else in it is a default.
const JOB: &str = r#"
worker.name = "word-count"
[[feed]]
queue = "words"
file = "examples/tasks.jsonl"
[[consumer]]
name = "words"
queue = "words"
partitions = 4
reply-queue = "words.results"
dead-letter-queue = "words.dead"
handler = { command = ["wc", "-w"] }
"#;

#[test]
fn the_shipped_file_is_the_defaults() {
    let none = Environment::new();
    let (shipped, read) = read_raw(Plan::default_config(), &none);
    assert_eq!(read.problems, []);
    let (job, read) = read_raw(JOB, &none);
    assert_eq!(read.problems, []);
    assert_eq!(shipped, job);
}

#[test]
fn the_shipped_file_has_every_key() {
    let shipped = Plan::default_config();
    let known = read_raw(JOB, &Environment::new()).1.origins.known;
    assert!(known.len() > 50, "{known:?}");
    let mut section = String::new();
    let mut seen = std::collections::BTreeSet::new();
    for line in shipped.lines() {
        if let Some(header) = line.strip_prefix('[') {
            section = header.trim_matches(['[', ']']).to_owned();
            seen.insert(section.clone());
        } else if let Some((key, value)) = line.trim_start_matches("# ").split_once(" = ") {
            seen.insert(format!("{section}.{key}"));
            if let Some((inner, _)) = value.trim_start_matches("{ ").split_once(" = ") {
                seen.insert(format!("{section}.{key}.{inner}"));
            }
        }
    }
    let missing: Vec<_> = known.iter().filter(|key| !seen.contains(*key)).collect();
    assert_eq!(missing, Vec::<&String>::new(), "not in config.toml");
}

#[test]
fn the_shipped_plan_is_what_the_pages_say() {
    let plan = Plan::from_str(Plan::default_config(), "/etc/acquit/config.toml").expect("valid");
    assert_eq!(plan.warnings().count(), 0);
    assert_eq!(plan.worker.state_dir.to_str(), Some("/etc/acquit/data"));
    assert_eq!(
        plan.broker.url,
        BrokerUrl::Embedded("/etc/acquit/data".into())
    );
    assert_eq!(
        plan.control.socket.to_str(),
        Some("/etc/acquit/data/acquit.sock")
    );
    assert_eq!(plan.shutdown.drain_timeout, Duration::from_secs(22));
    assert_eq!(plan.limiter.in_flight_bytes, 256 * 1024 * 1024);
    assert_eq!(plan.feeds[0].name, "examples/tasks.jsonl -> words");
    let consumer = &plan.consumers[0];
    assert_eq!((consumer.partitions, consumer.permits), (4, 16));
    assert_eq!(consumer.prefetch, Prefetch::Auto);
    assert_eq!(consumer.on_channel_lost, OnLeaseLost::Finish);
    assert_eq!(consumer.on_lease_lost, OnLeaseLost::Abort);
    assert_eq!(consumer.retry.way, RetryWay::Broker);
    let queues: Vec<_> = plan
        .queues()
        .into_iter()
        .map(|(q, n)| format!("{q} {n}"))
        .collect();
    assert_eq!(queues, ["words 4", "words.dead 1", "words.results 1"]);
}

#[test]
fn an_unknown_key_is_named_with_the_nearest_one_or_its_own_place() {
    check(
        "[limiter]\npermit = 3\n[limits]\nx = 1\n[health]\n",
        "config.toml:2:1: error: limiter.permit: unknown key; did you mean `permits`?\n\
         config.toml:3:2: error: limits: unknown key; did you mean `limiter`?\n\
         config.toml:5:2: error: health: unknown key; known here: worker, broker, limiter, \
         shutdown, supervision, ledger, control, log, feed, consumer\n\
         config.toml: warning: consumer: there is no [[consumer]]: nothing is consumed",
    );
    check(
        &with("retry = { max-atempts = 3 }\ndrain-timeout = \"3s\"\nzzz = 1\n"),
        "config.toml:5:11: error: consumer[0].retry.max-atempts: unknown key; did you mean \
         `max-attempts`?\n\
         config.toml:6:1: error: consumer[0].drain-timeout: unknown key; did you mean \
         `shutdown.drain-timeout`?\n\
         config.toml:7:1: error: consumer[0].zzz: unknown key; known here: name, queue, \
         partitions, profile, order, permits, prefetch, handler-timeout, abort-grace, \
         settle-timeout, publish-timeout, publish-give-up, reply-queue, dead-letter-queue, \
         on-exhausted, priority, consume-arguments, partitioning, single-active-consumer, on-consumer-timeout, max-message-bytes, \
         max-headers, crash-loop-limit, on-lease-lost, retry, handler",
    );
}

#[test]
fn a_wrong_type_is_told_by_its_shape() {
    check(
        "[limiter]\npermits = \"64\"\nin-flight-bytes = 1\n[shutdown]\ndrain-timeout = 22\n\
         [log]\ndecisions = \"yes\"\n[worker]\nstate-dir = [\"hunter2\"]\n[broker]\nurl = \"amqp:x\"\n",
        "config.toml:2:1: error: limiter.permits: found \"64\", expected a whole number from 1 to \
         1000000\n\
         config.toml:3:1: error: limiter.in-flight-bytes: found the number 1, expected a size \
         above zero with its unit such as \"64 KiB\" or \"256 MiB\", at most 1 PiB\n\
         config.toml:5:1: error: shutdown.drain-timeout: found the number 22, expected a duration \
         with its unit such as \"250ms\", \"30s\" or \"2h\", at most 1 year\n\
         config.toml:7:1: error: log.decisions: found \"yes\", expected true or false\n\
         config.toml:9:1: error: worker.state-dir: found a list, expected a path such as \
         \"./data\"\n\
         config.toml:11:1: error: broker.url: does not start with amqp:// or amqps://\n\
         config.toml: warning: consumer: there is no [[consumer]]: nothing is consumed",
    );
    check(
        "worker = 3\nconsumer = \"x\"\nfeed = [1]\n",
        "config.toml:1:1: error: worker: found the number 3, expected a table\n\
         config.toml:2:1: error: consumer: found a text, expected an array of tables, written \
         [[consumer]]\n\
         config.toml:3:9: error: feed[0]: found the number 1, expected a table",
    );
}

#[test]
fn a_wrong_unit_or_word_is_shown_with_what_would_be_right() {
    check(
        &with(
            "handler-timeout = \"30 parsecs\"\nabort-grace = \"2\"\nmax-message-bytes = \"1 elephant\"\n\
             order = \"partitions\"\npublish-timeout = \"0s\"\nprefetch = 0\n",
        ),
        "config.toml:5:1: error: consumer[0].handler-timeout: found \"30 parsecs\", expected a \
         duration above zero, with its unit, such as \"250ms\", \"30s\" or \"2h\", at most 1 year\n\
         config.toml:6:1: error: consumer[0].abort-grace: found \"2\", expected a duration with \
         its unit such as \"250ms\", \"30s\" or \"2h\", at most 1 year\n\
         config.toml:7:1: error: consumer[0].max-message-bytes: found \"1 elephant\", expected a \
         size above zero with its unit such as \"64 KiB\" or \"256 MiB\", at most 1 PiB\n\
         config.toml:8:1: error: consumer[0].order: found \"partitions\", expected \"none\" or \
         \"partition\"; did you mean \"partition\"?\n\
         config.toml:9:1: error: consumer[0].publish-timeout: found \"0s\", expected a duration \
         above zero, with its unit, such as \"250ms\", \"30s\" or \"2h\", at most 1 year\n\
         config.toml:10:1: error: consumer[0].prefetch: found 0, which a broker would take as \
         unlimited, expected \"auto\" or a whole number from 1 to 65535",
    );
    check(
        "[limiter]\nrate = \"100 per second\"\nburst = 0\n",
        "config.toml:2:1: error: limiter.rate: found \"100 per second\", expected a rate above \
         zero such as \"100/s\", \"600/m\" or \"50/h\"\n\
         config.toml:3:1: error: limiter.burst: found the number 0, expected a whole number from \
         1 to 1000000\n\
         config.toml: warning: consumer: there is no [[consumer]]: nothing is consumed",
    );
}

#[test]
fn what_is_not_built_is_refused_by_its_name() {
    check(
        &with("profile = \"task\"\norder = \"key\"\n"),
        "config.toml:5:1: error: consumer[0].profile: \"task\" is not built yet; use \"raw\"\n\
         config.toml:6:1: error: consumer[0].order: \"key\" is not built yet; use \"none\" or \
         \"partition\"",
    );
}

#[test]
fn missing_keys_are_all_told() {
    check(
        "[[consumer]]\nname = \"c\"\n[[feed]]\n",
        "config.toml:1:1: error: consumer[0].queue: missing; expected the name of a queue, 1 to \
         200 bytes without control characters\n\
         config.toml:1:1: error: consumer[0].handler: missing; expected \"echo\", \"discard\", \
         \"log\" or a table such as { command = [\"wc\", \"-w\"] }\n\
         config.toml:3:1: error: feed[0].queue: missing; expected the name of a queue, 1 to 200 \
         bytes without control characters\n\
         config.toml:3:1: error: feed[0].file: missing; expected a path such as \"./data\"",
    );
}

#[test]
fn a_duplicate_key_and_broken_syntax_are_told_with_their_place() {
    check(
        "[limiter]\npermits = 3\npermits = 4\n",
        "config.toml:3:1: error: permits: duplicate key",
    );
    let text = lines("[limiter\npermits = 3\n[log]\nlevel = info\n");
    let places: Vec<_> = text.lines().map(|line| &line[..23]).collect();
    assert_eq!(
        places,
        ["config.toml:1:9: error:", "config.toml:4:9: error:"],
        "{text}"
    );
    assert!(!text.contains("hunter2"));
}

#[test]
fn a_secret_in_the_wrong_place_is_never_shown() {
    let url = "amqp+x://user:hunter2@host";
    let text = format!(
        "[broker]\nurl = \"{url}\"\n[worker]\nstate-dir = [\"{url}\"]\n{}",
        with(&format!("reply-queue = [\"{url}\"]\n")).replace("\"echo\"", &format!("\"{url}\""))
    );
    let shown = lines(&text);
    assert_eq!(shown.lines().count(), 4, "{shown}");
    assert!(!shown.contains("hunter2"), "{shown}");
    let shown = lines(&format!("[broker]\nurl = {url}\n"));
    assert!(!shown.contains("hunter2"), "{shown}");
}

#[test]
fn a_file_that_cannot_be_read_is_told_so() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let told = |name: &str| {
        let path = folder.path().join(name);
        let error = Plan::from_file(&path).expect_err("not valid").to_string();
        error.replace(folder.path().to_str().expect("UTF-8"), "DIR")
    };
    assert_eq!(
        told("none.toml"),
        "DIR/none.toml: error: cannot be read: there is no such file; name another file with \
         --config"
    );
    assert_eq!(
        told("."),
        "DIR/.: error: cannot be read: it is a folder; name another file with --config"
    );
    let bytes = b"[worker]\nname = \"w\xC3\xBC\xFF\"\n";
    std::fs::write(folder.path().join("latin.toml"), bytes).expect("written");
    assert_eq!(
        told("latin.toml"),
        "DIR/latin.toml:2:11: error: found the byte 0xff, which is not UTF-8; expected a TOML \
         file in UTF-8"
    );
    let long = vec![b'#'; Plan::TEXT_MAX as usize + 1];
    std::fs::write(folder.path().join("long.toml"), long).expect("written");
    assert_eq!(
        told("long.toml"),
        "DIR/long.toml: error: cannot be read: it is longer than 1 MiB; name another file with \
         --config"
    );
}

#[test]
fn names_and_queues_that_clash_are_told() {
    let two = format!("{}{}", with("partitions = 2\n"), with("partitions = 3\n"));
    check(
        &two,
        "config.toml:7:1: error: consumer[1].name: \"c\" is the name of consumer[0] too; names \
         must be unique\n\
         config.toml:8:1: error: consumer[1].queue: \"q\" has 3 partitions here and 2 for \
         consumer \"c\"; a queue has one number of them",
    );
    check(
        &format!("{}{}", with(""), with("").replace("\"c\"", "\"d\"")),
        "config.toml:7:1: warning: consumer[1].queue: \"q\" is read by consumer \"c\" too: each \
         message goes to one of them",
    );
}

#[test]
fn messages_that_would_go_round_are_told() {
    check(
        &with("reply-queue = \"q\"\ndead-letter-queue = \"q\"\n"),
        "config.toml:5:1: error: consumer[0].reply-queue: is the queue that consumer \"c\" reads: \
         its messages would go round for ever; name another queue\n\
         config.toml:6:1: error: consumer[0].dead-letter-queue: is the queue that consumer \"c\" \
         reads: its messages would go round for ever; name another queue",
    );
    let second = with("dead-letter-queue = \"q\"\n")
        .replace("\"c\"", "\"d\"")
        .replace("queue = \"q\"\nhandler", "queue = \"r\"\nhandler");
    check(
        &format!("{}{second}", with("reply-queue = \"r\"\n")),
        "config.toml:3:1: warning: consumer[0].queue: replies or dead letters can go round for \
         ever: q -> r -> q",
    );
}

#[test]
fn limits_that_do_not_fit_are_told() {
    check(
        &format!(
            "[limiter]\npermits = 4\nin-flight-bytes = \"1 MiB\"\nburst = 3\n[shutdown]\n\
             drain-timeout = \"5s\"\n{}",
            with("prefetch = 3\npublish-give-up = \"1s\"\nretry = { backoff-base = \"1m\" }\n")
        ),
        "config.toml:4:1: warning: limiter.burst: has no effect without limiter.rate\n\
         config.toml:7:1: warning: consumer[0].permits: 16 are more than limiter.permits (4) of \
         the whole process: never more than 4 are in flight\n\
         config.toml:7:1: warning: consumer[0].max-message-bytes: 16.0 MiB are over \
         limiter.in-flight-bytes (1.0 MiB): a body over 1.0 MiB is rejected as too large all the \
         same\n\
         config.toml:11:1: warning: consumer[0].prefetch: 3 in each of 1 partitions are fewer \
         than the 16 permits: some are never used; raise it, or use \"auto\"\n\
         config.toml:12:1: warning: consumer[0].publish-give-up: 1s is shorter than \
         publish-timeout (5s) of one try, which holds instead\n\
         config.toml:13:11: error: consumer[0].retry.backoff-base: 1m is longer than \
         consumer[0].retry.backoff-max (30s); the first delay cannot be over the longest",
    );
    let plan = Plan::from_str(&with("order = \"partition\"\n"), "config.toml").expect("valid");
    let notes: Vec<_> = plan.remarks.iter().map(|p| p.line(&plan.file)).collect();
    assert_eq!(
        notes,
        [
            "config.toml:1:1: note: consumer[0].handler-timeout: 30s is longer than \
             shutdown.drain-timeout (22s): on a drain, a handler that needs longer than that is \
             stopped, and its message runs again",
            "config.toml:5:1: note: consumer[0].order: \"partition\" has one in flight in each of \
             the 1 partitions: of the 16 permits no more than that are used",
        ]
    );
}

#[test]
fn a_check_is_skipped_where_its_value_is_wrong_itself() {
    check(
        &with("handler-timeout = \"9h\"\npermits = 99\n[limiter]\npermits = \"x\"\n"),
        "config.toml:8:1: error: limiter.permits: found \"x\", expected a whole number from 1 to \
         1000000",
    );
}

#[test]
fn feeds_that_feed_nobody_are_told() {
    let feed = "[[feed]]\nqueue = \"x\"\nfile = \"a\"\n";
    check(
        &format!("{feed}{feed}{}", with("handler-timeout = \"1s\"\n")),
        "config.toml:2:1: warning: feed[0].queue: nobody consumes the queue \"x\"\n\
         config.toml:5:1: warning: feed[1].queue: nobody consumes the queue \"x\"\n\
         config.toml:6:1: error: feed[1].file: this file is fed into this queue already; remove \
         one",
    );
}

#[test]
fn this_machine_is_checked_when_a_file_is_read() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("config.toml");
    std::fs::write(folder.path().join("taken"), "").expect("written");
    let text = "[worker]\nstate-dir = \"taken/state\"\n[broker]\nurl = \"memory:\"\n\
                [[feed]]\nqueue = \"q\"\nfile = \"none.jsonl\"\n\
                [[consumer]]\nname = \"a\"\nqueue = \"q\"\nhandler.command = [\"no-such-tool\"]\n\
                [[consumer]]\nname = \"b\"\nqueue = \"r\"\nhandler = { command = [\"./taken\"], cwd = \"none\" }\n";
    std::fs::write(&path, text).expect("written");
    let error = Plan::from_file(&path).expect_err("not valid").to_string();
    assert_eq!(
        error.replace(folder.path().to_str().expect("UTF-8"), "DIR"),
        "DIR/config.toml:2:1: error: worker.state-dir: DIR/taken is not a folder\n\
         DIR/config.toml:7:1: error: feed[0].file: DIR/none.jsonl does not exist\n\
         DIR/config.toml:11:9: error: consumer[0].handler.command: \"no-such-tool\" cannot be \
         run: there is no such program in \
         /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n\
         DIR/config.toml:15:13: error: consumer[1].handler.command: \"./taken\" cannot be run: \
         DIR/taken is not executable\n\
         DIR/config.toml:15:36: error: consumer[1].handler.cwd: DIR/none is no folder"
    );
    let valid = "broker.url = \"memory:\"\n".to_owned() + &with("handler-timeout = \"1s\"\n");
    std::fs::write(&path, valid).expect("written");
    let plan = Plan::from_file(&path).expect("valid");
    assert_eq!(plan.remarks, []);
}

#[test]
fn a_socket_path_that_is_too_long_is_told() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("config.toml");
    let long = "d".repeat(120);
    let text = format!("worker.state-dir = \"{long}\"\n{}", with(""));
    std::fs::write(&path, text).expect("written");
    let error = Plan::from_file(&path).expect_err("not valid").to_string();
    assert!(
        error.contains("worker.state-dir: the path of the control socket"),
        "{error}"
    );
}

#[test]
fn variables_win_over_keys_and_unknown_ones_are_told() {
    let environment: Environment = [
        ("ACQUIT_LIMITER__PERMITS", "8"),
        ("ACQUIT_BROKER__URL", "memory:"),
        ("ACQUIT_CONSUMER__WORDS__HANDLER_TIMEOUT", "5s"),
        ("ACQUIT_CONSUMER__WORDS__RETRY__MAX_ATTEMPTS", "many"),
        ("ACQUIT_CONSUMER__WORDS__HANDLER__COMMAND", "[\"cat\"]"),
        ("ACQUIT_CONFIG", "ignored.toml"),
        ("ACQUIT_LIMITER__PERMIT", "8"),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .collect();
    let (raw, read) = read_raw(JOB, &environment);
    assert_eq!(raw.limiter.permits.get(), 8);
    assert_eq!(raw.broker.url, BrokerUrl::Memory);
    let consumer = &raw.consumer[0];
    assert_eq!(consumer.handler_timeout.get(), Duration::from_secs(5));
    let RawHandler::Command(RawCommand { command, .. }) = &consumer.handler else {
        panic!("no command");
    };
    assert_eq!(command.0, ["cat"]);
    let told: Vec<_> = read.problems.iter().map(|p| p.line("f".as_ref())).collect();
    assert_eq!(
        told,
        [
            "environment variable ACQUIT_CONSUMER__WORDS__RETRY__MAX_ATTEMPTS: error: \
             consumer[0].retry.max-attempts: found \"many\", expected a whole number from 1 to \
             1000000",
            "environment variable ACQUIT_LIMITER__PERMIT: error: names no key of this \
             configuration; a key is named by its section and itself, such as \
             ACQUIT_LIMITER__PERMITS",
        ]
    );
}

#[test]
fn what_the_broker_cannot_do_is_told() {
    let plan = Plan::from_str(&with("handler-timeout = \"1s\"\n"), "f.toml").expect("valid");
    let able = Capabilities {
        confirms_settlement: true,
        delayed_requeue: true,
        extend: true,
        dead_list: true,
        late_ack: true,
        counting: DeliveryCounting::FailuresApart,
        durable: true,
    };
    assert_eq!(plan.check_capabilities(&able), []);
    let unable = Capabilities {
        delayed_requeue: false,
        dead_list: false,
        ..able
    };
    let problems = plan.check_capabilities(&unable);
    let told: Vec<_> = problems.iter().map(|p| p.line(&plan.file)).collect();
    assert_eq!(
        told,
        [
            "f.toml:1:1: error: consumer[0].retry.via: this broker cannot hold a message for a \
             retry; use via = \"hold\"",
            "f.toml:1:1: warning: consumer[0].dead-letter-queue: this broker keeps no list of \
             dead messages: what is rejected is gone; set a dead-letter queue to keep it",
        ]
    );
}

mod properties {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "(\\PC|\\n|[\\[\\]=\"{}.,]){0,200}") {
            let _ = lines(&text);
        }

        #[test]
        fn no_changed_shipped_file_makes_it_panic(at in 0_usize..4000, cut in 0_usize..40, new in "\\PC{0,3}") {
            let shipped = Plan::default_config();
            let at = shipped.floor_char_boundary(at);
            let end = shipped.floor_char_boundary(at + cut);
            let text = format!("{}{new}{}", &shipped[..at], &shipped[end..]);
            let _ = lines(&text);
        }
    }
}
