//! What the project's other files promise: manifests, the shipped configuration, README's tables and lists.

use super::tree::{self, TextFile};
use super::{Violation, expect_none};

/// Files that are longer than [`LINES_MAX`] for a reason.
const LONG_FILES: &[(&str, &str)] = &[
    (
        "actors/src/consumer/actor.rs",
        "one actor; its core, pump and shared part stand apart",
    ),
    (
        "actors/src/delivery/actor.rs",
        "one actor: each effect of the machine, performed",
    ),
    (
        "actors/src/limiter/core.rs",
        "one decision, and its property tests",
    ),
    (
        "actors/src/settlement/machine.rs",
        "the table: every state and every event in one match",
    ),
    ("actors/src/supervision/core.rs", "one state machine"),
    (
        "actors/tests/supervision.rs",
        "one theme: trees of real actors",
    ),
    (
        "actors/tests/supervisor_core.rs",
        "one theme: the core against its model",
    ),
    ("src/config/raw.rs", "mirrors config.toml one to one"),
    (
        "tests/command_handler.rs",
        "one theme: a command and its every way to end",
    ),
];

/// Past this a file probably holds a second noun.
const LINES_MAX: usize = 600;

#[test]
fn the_binary_carries_the_shipped_config_toml() {
    let config = tree::read("config.toml");
    assert!(!config.text.trim().is_empty(), "config.toml is empty");
    let embeds = |file: &TextFile| {
        let lines = file
            .lines()
            .filter(|(_, line)| line.contains("include_str!"));
        file.path.starts_with("src/")
            && lines
                .into_iter()
                .any(|(_, line)| line.contains("/config.toml\""))
    };
    let found = tree::rust_files().iter().any(embeds);
    assert!(
        found,
        "no file below src/ embeds config.toml with include_str!: it is the template of the binary"
    );
}

#[test]
fn readme_and_the_binary_agree_on_exit_codes() {
    let readme = exit_codes_of_readme(&tree::read("README.md").text);
    let binary = exit_codes_of_binary(&tree::read("src/cli/exit.rs").text);
    assert!(
        !readme.is_empty(),
        "README.md has no table headed | code | meaning |"
    );
    assert!(
        !binary.is_empty(),
        "src/cli/exit.rs has no codes of the form `Self::Name => 0,`"
    );
    assert_eq!(
        readme, binary,
        "the exit codes of README.md (left) and of src/cli/exit.rs (right)"
    );
}

#[test]
fn readme_names_every_example() {
    let readme = tree::read("README.md");
    let is_named = |path: &str| readme.text.contains(&format!("| `{path}` |"));
    let folders = ["examples/", "actors/examples/"];
    let mut violations = Vec::new();
    for file in tree::rust_files() {
        let name = folders
            .iter()
            .find_map(|folder| file.path.strip_prefix(folder));
        let is_example = name.is_some_and(|name| !name.contains('/'));
        if is_example && !is_named(&file.path) {
            let rule = format!("README.md lacks a row | `{}` | … |", file.path);
            violations.push(Violation::new(&file.path, 1, rule));
        }
    }
    expect_none(violations);
}

#[test]
fn manifests_keep_panics_catchable_and_unsafe_code_out() {
    let root = manifest("Cargo.toml");
    let unsafe_code = root["workspace"]["lints"]["rust"]
        .get("unsafe_code")
        .and_then(toml::Value::as_str);
    assert_eq!(
        unsafe_code,
        Some("forbid"),
        "Cargo.toml: [workspace.lints.rust] unsafe_code"
    );
    for path in ["Cargo.toml", "actors/Cargo.toml"] {
        let inherits = manifest(path)
            .get("lints")
            .and_then(|lints| lints.get("workspace"))
            .and_then(toml::Value::as_bool);
        assert_eq!(
            inherits,
            Some(true),
            "{path}: [lints] workspace = true is missing"
        );
    }
    let profiles = root
        .get("profile")
        .and_then(toml::Value::as_table)
        .into_iter()
        .flatten();
    for (name, profile) in profiles {
        let panic = profile
            .get("panic")
            .and_then(toml::Value::as_str)
            .unwrap_or("unwind");
        assert_eq!(
            panic, "unwind",
            "Cargo.toml: profile {name}: supervision needs panics that unwind"
        );
    }
}

/// Older versions do not poison the ackers of a channel that has ended: a late ack could hit another message.
#[test]
fn lapin_is_not_older_than_the_release_that_fences_ackers() {
    let lock: toml::Table = tree::read("Cargo.lock")
        .text
        .parse()
        .expect("Cargo.lock is TOML");
    let packages = lock["package"]
        .as_array()
        .expect("Cargo.lock lists packages");
    for package in packages
        .iter()
        .filter(|package| package["name"].as_str() == Some("lapin"))
    {
        let version = package["version"]
            .as_str()
            .expect("a package has a version");
        assert!(
            release(version) >= [4, 12, 3],
            "Cargo.lock: lapin {version} is older than 4.12.3"
        );
    }
}

#[test]
fn files_stay_short_enough_to_read() {
    let mut violations = Vec::new();
    for file in tree::rust_files() {
        let count = file.text.lines().count();
        let reason = LONG_FILES.iter().find(|(path, _)| *path == file.path);
        if count > LINES_MAX && reason.is_none() {
            let rule = format!(
                "{count} lines: split it by responsibility (at most {LINES_MAX}), or give the reason in LONG_FILES"
            );
            violations.push(Violation::new(&file.path, LINES_MAX + 1, rule));
        } else if count <= LINES_MAX && reason.is_some() {
            violations.push(Violation::new(
                &file.path,
                1,
                "is short again: take it off LONG_FILES in tests/tidy/project.rs",
            ));
        }
    }
    expect_none(violations);
}

/// The project works wherever it is cloned, and names no tool that a reader does not have.
#[test]
fn no_file_names_a_path_of_one_machine() {
    let foreign = [
        concat!("/wo", "rk/"),
        concat!("/tmp", "/wt"),
        concat!("/ro", "ot/"),
        concat!("../sha", "red"),
        concat!(".lib", "rary"),
        concat!("farm", "-"),
    ];
    let mut violations = Vec::new();
    for file in tree::files()
        .iter()
        .filter(|file| file.path != "Cargo.lock")
    {
        for (line, text) in file.lines() {
            for name in foreign.iter().filter(|name| text.contains(**name)) {
                violations.push(Violation::new(
                    &file.path,
                    line,
                    format!("names {name}, which only one machine has"),
                ));
            }
        }
    }
    expect_none(violations);
}

/// What a new user is told to run first: each line of the shipped input is a message, and no id comes twice.
#[test]
fn the_shipped_input_is_a_thousand_messages_with_unique_ids() {
    let input = tree::read("examples/tasks.jsonl");
    let mut ids = std::collections::HashSet::new();
    for (line, text) in input.lines() {
        let message: serde_json::Value =
            serde_json::from_str(text).unwrap_or_else(|error| panic!("line {line}: {error}"));
        let field = |name: &str| {
            message[name]
                .as_str()
                .unwrap_or_else(|| panic!("line {line}: no text in {name}"))
                .to_owned()
        };
        assert!(
            ids.insert(field("id")),
            "line {line}: its id was there before"
        );
        assert!(!field("key").is_empty(), "line {line}: an empty key");
        assert!(
            (50..=2000).contains(&field("body").len()),
            "line {line}: a body of {} bytes",
            field("body").len()
        );
    }
    assert!(ids.len() >= 1000, "only {} messages", ids.len());
}

/// README says how many words there are; a reader compares the consumer's results with it.
#[test]
fn readme_states_the_word_count_of_the_shipped_input() {
    let input = tree::read("examples/tasks.jsonl");
    let words: usize = input
        .lines()
        .map(|(_, text)| serde_json::from_str::<serde_json::Value>(text).expect("checked above"))
        .map(|message| {
            message["body"]
                .as_str()
                .expect("checked above")
                .split_whitespace()
                .count()
        })
        .sum();
    let readme = tree::read("README.md").text;
    assert!(
        readme.contains(&words.to_string()),
        "README.md does not name the {words} words of examples/tasks.jsonl"
    );
}

fn manifest(path: &str) -> toml::Table {
    tree::read(path)
        .text
        .parse()
        .unwrap_or_else(|error| panic!("{path} is no TOML: {error}"))
}

/// The three numbers of a version.
fn release(version: &str) -> [u64; 3] {
    let mut numbers = version
        .split(['.', '-', '+'])
        .map(|part| part.parse().expect("a version starts with three numbers"));
    std::array::from_fn(|_| numbers.next().expect("a version starts with three numbers"))
}

/// The rows of the table headed `| code | meaning |` whose code is a number.
fn exit_codes_of_readme(text: &str) -> Vec<(u8, String)> {
    let mut codes = Vec::new();
    let table = text
        .lines()
        .skip_while(|line| cells(line) != ["code", "meaning"])
        .skip(2);
    for row in table.map(cells).take_while(|row| row.len() == 2) {
        if let Ok(code) = row[0].parse() {
            codes.push((code, row[1].clone()));
        }
    }
    codes
}

fn cells(line: &str) -> Vec<String> {
    let inner = line.trim().trim_start_matches('|').trim_end_matches('|');
    inner
        .split('|')
        .map(|cell| cell.trim().to_owned())
        .collect()
}

/// The codes and meanings of `Exit`, read from the source as text: its functions `code` and
/// `meaning` match on `Self::Name` and give a number and a text.
fn exit_codes_of_binary(text: &str) -> Vec<(u8, String)> {
    let arms: Vec<(&str, &str)> = text
        .split("Self::")
        .filter_map(|arm| arm.split_once("=>"))
        .map(|(name, value)| (name.trim(), value.trim_start_matches([' ', '\n', '{'])))
        .collect();
    let meaning = |name: &str| {
        let mut texts = arms.iter().filter(|(other, _)| *other == name);
        texts.find_map(|(_, value)| Some(value.strip_prefix('"')?.split_once('"')?.0.to_owned()))
    };
    let code = |value: &str| value.split_once(',')?.0.parse().ok();
    arms.iter()
        .filter_map(|(name, value)| Some((code(value)?, meaning(name).unwrap_or_default())))
        .collect()
}

#[test]
fn exit_codes_are_read_from_the_table_and_from_the_source() {
    let readme = "| code | meaning |\n|---|---|\n| 0 | fine |\n| other | its own |\n\n| 3 | no |\n";
    assert_eq!(exit_codes_of_readme(readme), [(0, "fine".to_owned())]);
    let source = "
        match self { Self::Fine => 0, Self::Bad => 13, Self::Halted(code) => code, }
        match self {
            Self::Fine => \"fine\",
            Self::Bad => {
                \"bad (very), see there\"
            }
            Self::Halted(_) => \"its own\",
        }";
    let expected = [(0, "fine"), (13, "bad (very), see there")];
    assert_eq!(
        exit_codes_of_binary(source),
        expected.map(|(code, text)| (code, text.to_owned()))
    );
}
