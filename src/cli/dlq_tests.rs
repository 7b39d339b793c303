use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;

use super::*;
use crate::model::{Delivery, Generation, PartitionId, names};

fn letter(body: &[u8]) -> Letter {
    let body = Bytes::copy_from_slice(body);
    let mut delivery = Delivery::new("dead".into(), PartitionId(0), Generation(0), body);
    delivery.id = Some("m\u{1b}1".into());
    delivery.delivery_count = Some(3);
    delivery.published_at = Some(UNIX_EPOCH + Duration::from_secs(1));
    for (name, text) in [
        (names::REASON, "exhausted"),
        (names::ORIGIN_QUEUE, "words"),
        (names::LAST_ERROR, "no\nway"),
    ] {
        delivery.headers.set(name, text);
    }
    Letter::new(1, delivery)
}

fn shown(json: bool, show: impl FnOnce(&mut Show<'_>) -> io::Result<Exit>) -> (String, Exit) {
    let mut out = Vec::new();
    let exit = show(&mut Show {
        json,
        out: &mut out,
    });
    let text = String::from_utf8(out).expect("UTF-8");
    (text, exit.expect("written"))
}

fn asked() -> LetterArgs {
    LetterArgs {
        queue: "dead".to_owned(),
        id: "m".to_owned(),
    }
}

#[test]
fn a_letter_is_shown_so_that_no_terminal_is_fooled() {
    let (text, exit) = shown(false, |show| {
        show.letter(Some(&letter(b"one\n\x1b[2Jtwo")), &asked())
    });
    let expected = "\
id: m\\u{1b}1
reason: exhausted
origin: words
attempt: 1
replayed: 0
returns: 2
published: 1970-01-01T00:00:01Z
bytes: 11
header x-acquit-reason: exhausted
header x-acquit-origin-queue: words
header x-acquit-last-error: no\\nway

one
\\u{1b}[2Jtwo
";
    assert_eq!((text.as_str(), exit), (expected, Exit::Clean));
}

#[test]
fn a_body_that_is_no_text_is_base64() {
    let letter = letter(&[0xFF, 0x00]);
    let (text, _) = shown(false, |show| show.letter(Some(&letter), &asked()));
    assert!(text.ends_with("\n\n(not text; base64)\n/wA=\n"), "{text}");
    let (text, _) = shown(true, |show| show.letter(Some(&letter), &asked()));
    let value: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(value["body-base64"], "/wA=");
    assert_eq!(
        (&value["returns"], &value["reason"]),
        (&json!(2), &json!("exhausted"))
    );
}

#[test]
fn one_that_is_not_there_is_a_failure() {
    let (text, exit) = shown(false, |show| show.letter(None, &asked()));
    let expected = "there is no letter m in dead\n";
    assert_eq!((text.as_str(), exit), (expected, Exit::Failure));
}

#[test]
fn a_list_has_a_line_for_each_and_no_body() {
    let found = Found {
        letters: vec![letter(b"secret").without_body()],
        seen: 4,
        left: 2,
    };
    let (text, _) = shown(false, |show| show.list(&found));
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(lines[1].starts_with("m\\u{1b}1 "), "{text}");
    assert!(
        lines[1].ends_with("words                no\\nway"),
        "{text}"
    );
    assert_eq!(lines[2], "1 shown, 4 looked at, 2 not looked at");
    assert!(!text.contains("secret"));
    let (text, _) = shown(true, |show| show.list(&found));
    let value: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(value["bytes"], 6);
    assert!(value.get("body").is_none());
}

#[test]
fn what_stayed_is_told_and_is_a_failure() {
    let letter = letter(b"");
    let mut tally = Tally::default();
    let (text, exit) = shown(false, |show| {
        for fate in [
            Fate::Replayed,
            Fate::WithoutOrigin,
            Fate::NotTaken("full".to_owned()),
        ] {
            tally.note(show.fate(&letter, &fate), &fate);
        }
        let ended = Replayed { seen: 5, left: 0 };
        show.tally(&tally, ended, true)?;
        tally.exit()
    });
    let expected = "\
replayed m\\u{1b}1 to words
skipped m\\u{1b}1 to words: no x-acquit-origin-queue says where it came from
not replayed m\\u{1b}1 to words: full
1 replayed, 1 skipped, 1 not replayed; 5 looked at
";
    assert_eq!((text.as_str(), exit), (expected, Exit::Failure));
}

#[tokio::test]
async fn an_embedded_dead_list_is_read_and_memory_has_none() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("config.toml");
    let action = DlqAction::List(ListArgs {
        queue: "q".to_owned(),
        filter: FilterArgs::default(),
        limit: 10,
    });
    for (url, exit, told) in [
        ("memory:", Exit::Usage, "acquit get QUEUE --dead"),
        (
            "embedded:data",
            Exit::Clean,
            "0 shown, 0 looked at, 0 not looked at",
        ),
    ] {
        let text = format!(
            "[broker]\nurl = \"{url}\"\n[[consumer]]\nname = \"c\"\nqueue = \"q\"\nhandler = \"discard\"\n"
        );
        std::fs::write(&path, text).expect("written");
        let plan = Plan::from_file_alone(&path).expect("valid");
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let done = dlq(&plan, &action, false, &mut out, &mut err).await;
        assert_eq!(done.expect("written"), exit, "{url}");
        out.extend(err);
        let text = String::from_utf8(out).expect("UTF-8");
        assert!(text.contains(told), "{text}");
    }
}
