//! Bad input: each is refused before anything starts, with a text that says what to do, and with
//! the code that says whose turn it is.

use std::fs;
use std::path::Path;

use crate::kit::Home;

#[track_caller]
fn expect(home: &Home, args: &[&str], code: i32, err: &str) {
    let done = home.acquit(args);
    let said = (done.code, done.out.as_str(), done.err.as_str());
    assert_eq!(said, (Some(code), "", err), "{args:?}");
}

/// What is wrong with a configuration is said by `run` and by `check`, with the same words.
#[track_caller]
fn expect_refused(more: &str, tables: &str, problems: &[&str]) {
    let home = Home::with_consumer(more, tables);
    let said: String = problems
        .iter()
        .map(|line| format!("config.toml:{line}\n"))
        .collect();
    expect(&home, &["run"], 2, &said);
    let done = home.acquit(&["check"]);
    let without_notes = done.err.lines().filter(|line| !line.contains(": note: "));
    let checked: String = without_notes.map(|line| format!("{line}\n")).collect();
    let errors = problems
        .iter()
        .filter(|line| line.contains(": error: "))
        .count();
    let plural = if errors == 1 { "" } else { "s" };
    assert_eq!(checked, format!("{said}{errors} error{plural}\n"));
    assert_eq!((done.code, done.out.as_str()), (Some(2), ""));
    assert!(
        !home.exists("data"),
        "a refused configuration made a folder"
    );
}

#[test]
fn an_unknown_key_is_named_with_the_nearest_known_one() {
    expect_refused(
        "permit = 4\nhandler = \"echo\"",
        "[brokr]",
        &[
            "8:1: error: consumer[0].permit: unknown key; did you mean `permits`?",
            "10:2: error: brokr: unknown key; did you mean `broker`?",
        ],
    );
    let home = Home::with_consumer("permit = 4\nhandler = \"echo\"", "");
    let text = "config.toml:8:1: error: consumer[0].permit: unknown key; did you mean `permits`?\n";
    expect(&home, &["publish", "work", "--body", "x"], 2, text);
    expect(&home, &["status"], 2, text);
}

#[test]
fn wrong_types_units_and_choices_are_told_with_what_is_expected() {
    expect_refused(
        "handler = \"ecko\"\npermits = \"four\"\nhandler-timeout = \"30 bananas\"\nabort-grace = 2\n\
         max-message-bytes = \"16 MB!\"\norder = \"key\"",
        "",
        &[
            "8:1: error: consumer[0].handler: found a text, expected \"echo\", \"discard\", \"log\" \
             or a table such as { command = [\"wc\", \"-w\"] }",
            "9:1: error: consumer[0].permits: found \"four\", expected a whole number from 1 to 1000000",
            "10:1: error: consumer[0].handler-timeout: found \"30 bananas\", expected a duration above \
             zero, with its unit, such as \"250ms\", \"30s\" or \"2h\", at most 1 year",
            "11:1: error: consumer[0].abort-grace: found the number 2, expected a duration with its \
             unit such as \"250ms\", \"30s\" or \"2h\", at most 1 year",
            "12:1: error: consumer[0].max-message-bytes: found \"16 MB!\", expected a size above zero \
             with its unit such as \"64 KiB\" or \"256 MiB\", at most 1 PiB",
            "13:1: error: consumer[0].order: \"key\" is not built yet; use \"none\" or \"partition\"",
        ],
    );
}

#[test]
fn values_that_do_not_fit_together_are_told() {
    expect_refused(
        "handler = \"echo\"\nreply-queue = \"work\"",
        "[[consumer]]\nname = \"work\"\nqueue = \"other\"\nhandler = \"echo\"",
        &[
            "9:1: error: consumer[0].reply-queue: is the queue that consumer \"work\" reads: its \
             messages would go round for ever; name another queue",
            "11:1: error: consumer[1].name: \"work\" is the name of consumer[0] too; names must be \
             unique",
        ],
    );
}

#[test]
fn missing_files_and_commands_that_cannot_run_are_told() {
    expect_refused(
        "handler = { command = [\"./nope\"] }",
        "[[feed]]\nqueue = \"work\"\nfile = \"none.jsonl\"\n\
         [[consumer]]\nname = \"b\"\nqueue = \"b\"\nhandler = { command = [\"./config.toml\"] }\n\
         [[consumer]]\nname = \"c\"\nqueue = \"c\"\nhandler = { command = [\"acquit-nope\", \"x\"] }",
        &[
            "8:13: error: consumer[0].handler.command: \"./nope\" cannot be run: DIR/nope does not \
             exist",
            "11:1: error: feed[0].file: DIR/none.jsonl does not exist",
            "15:13: error: consumer[1].handler.command: \"./config.toml\" cannot be run: \
             DIR/config.toml is not executable",
            "19:13: error: consumer[2].handler.command: \"acquit-nope\" cannot be run: there is no \
             such program in /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        ],
    );
    let home = Home::with_consumer("handler = \"echo\"", "");
    let text = "none.toml: error: cannot be read: there is no such file; name another file with \
                --config\n";
    expect(&home, &["run", "-c", "none.toml"], 2, text);
}

#[test]
fn what_the_command_line_has_wrong_is_usage() {
    let home = Home::with_consumer("handler = \"echo\"", "");
    for (args, text) in [
        (
            &["nonsense"][..],
            "error: unrecognized subcommand 'nonsense'",
        ),
        (
            &["run", "--max-deliveries", "0"],
            "error: invalid value '0' for '--max-deliveries <N>'",
        ),
        (&["bench", "nonsense"], "nonsense"),
        (
            &["get"],
            "error: the following required arguments were not provided",
        ),
        (
            &["get", "work", "--take", "--dead"],
            "acquit: --take and --dead do not go together: dead letters are only looked at\n",
        ),
    ] {
        let done = home.acquit(args);
        assert_eq!(
            (done.code, done.out.as_str()),
            (Some(2), ""),
            "{args:?}: {}",
            done.err
        );
        assert!(done.err.contains(text), "{args:?}: {}", done.err);
    }
}

/// A home with a store in which one message stands.
fn stored() -> Home {
    let home = Home::with_consumer("handler = \"echo\"", "");
    home.publish("work", &["a"]);
    home
}

#[test]
fn a_store_of_a_newer_version_is_refused_and_left_alone() {
    let home = stored();
    let format = fs::read_to_string(home.path("data/FORMAT")).expect("a store");
    home.write("data/FORMAT", format.replace('1', "99"));
    let text = "acquit: the folder DIR/data holds a store of format 99, and this version knows \
                formats up to 1; use the newer version, or another folder with `broker.url`\n";
    expect(&home, &["run"], 2, text);
    expect(&home, &["get", "work"], 2, text);
    home.write("data/FORMAT", format);
    assert_eq!(home.get("work").len(), 1);
}

#[test]
fn a_damaged_store_is_named_and_refused() {
    let home = stored();
    let path = home.path("data/messages.redb");
    let mut bytes = fs::read(&path).expect("a store");
    for byte in &mut bytes[..512] {
        *byte = !*byte;
    }
    fs::write(&path, bytes).expect("written");
    for args in [&["run"][..], &["get", "work"]] {
        let done = home.acquit(args);
        assert_eq!(
            (done.code, done.out.as_str()),
            (Some(2), ""),
            "{}",
            done.err
        );
        let told = done
            .err
            .starts_with("acquit: the file DIR/data/messages.redb is damaged (")
            && done.err.ends_with(
                "); restore the folder from a backup, or name another with `broker.url`\n",
            );
        assert!(told, "{}", done.err);
    }
}

#[test]
fn a_second_process_on_the_same_folder_is_refused() {
    let home = stored();
    let running = home.run(&[]);
    let text = "acquit: another process already serves DIR/data/acquit.sock; stop it, or give this \
                one its own worker.state-dir\n";
    expect(&home, &["run"], 2, text);
    // Another state folder, the same store.
    let config = fs::read_to_string(home.path("config.toml")).expect("written");
    home.write(
        "other.toml",
        config.replace("state-dir = \"data\"", "state-dir = \"other\""),
    );
    let text = "acquit: the folder DIR/data is in use by another process; stop that one, or give \
                this one a folder of its own with `broker.url`\n";
    expect(&home, &["run", "-c", "other.toml"], 2, text);
    expect(&home, &["get", "work", "-c", "other.toml"], 2, text);
    assert!(home.exists("data/acquit.sock"));
    assert!(!home.exists("other/acquit.sock"));
    drop(running);
}

#[test]
fn a_changed_number_of_partitions_is_refused() {
    let home = stored();
    let config = fs::read_to_string(home.path("config.toml")).expect("written");
    home.write("config.toml", format!("{config}\npartitions = 4\n"));
    let text = "acquit: the queue \"work\" has 1 partitions and 4 were asked for; a key would move \
                to another partition, so empty the queue and remove it, set `partitions = 1`, or \
                use a new queue name\n";
    expect(&home, &["run"], 2, text);
    expect(&home, &["get", "work"], 2, text);
}

#[test]
fn a_folder_that_cannot_be_made_is_told_by_check() {
    let home = Home::with_consumer("handler = \"echo\"", "");
    home.write("data", "a file in its place");
    let done = home.acquit(&["check"]);
    assert_eq!(done.code, Some(2));
    assert!(
        done.err.contains("error: worker.state-dir: "),
        "{}",
        done.err
    );
    assert!(done.err.contains("error: broker.url: "), "{}", done.err);
}

#[test]
fn a_rabbitmq_that_is_not_configured_right_is_told_without_its_password() {
    let home = Home::new(
        "[worker]\nstate-dir = \"data\"\n[broker]\nurl = \"amqp://guest:p@hunter2@127.0.0.1:5672/%2F\"\n",
    );
    let text = "config.toml:4:1: error: broker.url: more than one @: in a user, password or virtual \
                host write it %40, or use the keys user and password-file\n\
                config.toml: warning: consumer: there is no [[consumer]]: nothing is consumed\n";
    expect(&home, &["run"], 2, text);
    expect(&home, &["status"], 2, text);

    let home = Home::new(
        "[worker]\nstate-dir = \"data\"\n[broker]\nurl = \"amqp://127.0.0.1\"\nuser = \"u\"\n\
         password-file = \"pass\"\n[[consumer]]\nname = \"c\"\nqueue = \"q\"\nhandler = \"echo\"\n\
         dead-letter-queue = \"dead\"",
    );
    let at = "config.toml:6:1: error: broker.password-file: DIR/pass";
    expect(&home, &["run"], 2, &format!("{at} does not exist\n"));
    home.write("pass", "hunter2\nhunter2\n");
    let text =
        "has more than one line, or a control character; expected a password on its one line";
    expect(&home, &["run"], 2, &format!("{at} {text}\n"));
    assert!(
        !home.exists("data"),
        "a refused configuration made a folder"
    );
}

#[test]
fn no_secret_is_ever_said() {
    const CANARY: &str = "hunter2-canary";
    let command = format!("handler = {{ command = [\"sh\", \"-c\", \"exit 3\", \"{CANARY}\"] }}");
    let good = Home::with_consumer(&command, "").variable("API_TOKEN", CANARY);
    good.publish("work", &["a"]);
    let url = format!("[broker]\nurl = \"amqp://user:{CANARY}@host\"\n");
    let bad = Home::new(&format!("{url}[[consumer]]\nname = \"{CANARY}\nqueue = 3"))
        .variable("ACQUIT_LIMITER__PERMITS", CANARY);
    let worse = Home::new(&url).variable("ACQUIT_BROKER__URL", &format!("nats://x:{CANARY}@host"));
    let unknown = Home::new(&format!("{url}password = \"{CANARY}\""));
    let raw = Home::new(&format!(
        "[broker]\nurl = \"amqp://u:a/{CANARY}@host?{CANARY}=1\"\n"
    ));
    for home in [&good, &bad, &worse, &unknown, &raw] {
        for args in [
            &["check"][..],
            &["check", "--json"],
            &["run", "--until-idle", "--log-level", "trace"],
            &["status"],
            &["--help"],
        ] {
            let done = home.acquit(args);
            let said = done.out + &done.err;
            assert!(!said.contains("hunter2"), "{args:?}: {said}");
            assert!(!said.is_empty(), "{args:?}");
        }
    }
    // What it leaves on the disk is the messages' business.
    let mut left = vec![good.path("data")];
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(
                fs::read_dir(&path)
                    .expect("ours")
                    .map(|entry| entry.expect("ours").path()),
            );
        } else {
            expect_without(&path, CANARY);
        }
    }
}

#[track_caller]
fn expect_without(path: &Path, word: &str) {
    let bytes = fs::read(path).expect("ours");
    let found = bytes
        .windows(word.len())
        .any(|window| window == word.as_bytes());
    assert!(!found, "{} holds it", path.display());
}
