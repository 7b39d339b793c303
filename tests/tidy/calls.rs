//! Calls that are banned, and where.

use super::rust_source::{code_only, paths_below, test_lines};
use super::tree::{self, TextFile};
use super::{Violation, expect_none};

/// A call, where it is banned, and what to do instead.
struct Ban {
    name: &'static str,
    calls: &'static [&'static str],
    applies: fn(&Place<'_>) -> bool,
    instead: &'static str,
}

/// Where a line stands.
struct Place<'a> {
    path: &'a str,
    is_test: bool,
    /// The file pauses tokio's clock, so its `sleep` takes no time.
    is_clock_paused: bool,
}

impl Place<'_> {
    fn is_product(&self) -> bool {
        !self.is_test && (self.path.starts_with("src/") || self.path.starts_with("actors/src/"))
    }

    fn is_below(&self, folder: &str) -> bool {
        self.path
            .strip_prefix(folder)
            .is_some_and(|rest| rest.starts_with(['/', '.']))
    }
}

const BANS: &[Ban] = &[
    Ban {
        name: "unfinished",
        calls: &["todo!", "unimplemented!", "dbg!"],
        applies: |_| true,
        instead: "finish it, or refuse with an error that says what is not there",
    },
    Ban {
        name: "print",
        calls: &["println!", "print!"],
        applies: |place| place.is_product() && !place.is_below("src/cli"),
        instead: "only src/cli writes to the user; everything else logs with tracing",
    },
    Ban {
        name: "exit",
        calls: &["process::exit"],
        applies: |place| {
            place.is_product() && place.path != "src/main.rs" && !place.is_below("src/signal")
        },
        instead: "return the exit code; only main.rs and signal.rs end the process",
    },
    Ban {
        name: "sleep",
        calls: &["thread::sleep"],
        applies: |place| place.is_test,
        instead: "wait for the condition with a bound, or park what must block for ever",
    },
    Ban {
        name: "sleep",
        calls: &["time::sleep"],
        applies: |place| place.is_test && !place.is_clock_paused,
        instead: "wait for the condition with a bound, or pause the clock",
    },
    Ban {
        name: "unwrap",
        calls: &[".unwrap()"],
        // An example that measures may end at the first thing that goes wrong.
        applies: |place| place.is_product(),
        instead: "return the error, or expect(\"why this cannot fail\")",
    },
];

#[test]
fn banned_calls_stay_out() {
    let violations = tree::rust_files().iter().flat_map(banned_calls).collect();
    expect_none(violations);
}

/// The clock of tests can be paused for tokio's `Instant` only.
#[test]
fn the_actors_read_the_clock_that_tests_can_pause() {
    let mut violations = Vec::new();
    let files = tree::rust_files();
    let product = files
        .iter()
        .filter(|file| file.path.starts_with("actors/src/") && !file.is_test);
    for file in product {
        let code = code_only(&file.text);
        let in_test = test_lines(&code);
        for (line, path) in paths_below(&code, "std") {
            if path.starts_with("time::Instant") && !in_test[line - 1] {
                let rule = "std::time::Instant: use tokio::time::Instant here";
                violations.push(Violation::new(&file.path, line, rule));
            }
        }
    }
    expect_none(violations);
}

/// A script ends what it started, by its id; a name can hit somebody else's process.
#[test]
fn scripts_end_processes_by_id() {
    let by_name = [concat!("pk", "ill"), concat!("kill", "all")];
    let mut violations = Vec::new();
    for file in tree::files()
        .iter()
        .filter(|file| is_script(file) || file.is_rust())
    {
        for (line, text) in file.lines() {
            if by_name.iter().any(|name| text.contains(name)) {
                violations.push(Violation::new(
                    &file.path,
                    line,
                    "end processes by their id, never by a name",
                ));
            }
        }
    }
    expect_none(violations);
}

fn is_script(file: &TextFile) -> bool {
    file.path.ends_with(".sh") || file.path.starts_with(".ci/") || file.text.starts_with("#!")
}

fn banned_calls(file: &TextFile) -> Vec<Violation> {
    let code = code_only(&file.text);
    let in_test = test_lines(&code);
    let is_clock_paused = ["start_paused", "time::pause()", "run_virtual"]
        .iter()
        .any(|sign| code.contains(sign));
    let lines: Vec<&str> = file.text.lines().collect();
    let mut violations = Vec::new();
    for (index, code_line) in code.lines().enumerate() {
        let place = Place {
            path: &file.path,
            is_test: in_test[index] || file.is_test,
            is_clock_paused,
        };
        for ban in BANS.iter().filter(|ban| (ban.applies)(&place)) {
            for call in ban
                .calls
                .iter()
                .filter(|call| contains_call(code_line, call))
            {
                if !is_allowed(&lines, index, ban.name) {
                    let rule = format!("{call} ({}): {}", ban.name, ban.instead);
                    violations.push(Violation::new(&file.path, index + 1, rule));
                }
            }
        }
    }
    violations
}

fn contains_call(line: &str, call: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(call).any(|(at, _)| {
        let starts = call.starts_with('.') || !line[..at].ends_with(is_word);
        starts && !line[at + call.len()..].starts_with(is_word)
    })
}

/// `// tidy-allow: <rule>: <reason>` on the line or the one above.
fn is_allowed(lines: &[&str], index: usize, rule: &str) -> bool {
    let names_rule = |line: &str| {
        line.split_once(&format!("// tidy-allow: {rule}: "))
            .is_some_and(|(_, reason)| !reason.trim().is_empty())
    };
    names_rule(lines[index]) || (index > 0 && names_rule(lines[index - 1]))
}

#[test]
fn a_ban_knows_product_code_from_tests_and_needs_a_reason_to_look_away() {
    let check = |path: &str, text: &str, expected: &[usize]| {
        let file = TextFile::new(path, text);
        let lines: Vec<usize> = banned_calls(&file)
            .iter()
            .map(|violation| violation.line)
            .collect();
        assert_eq!(lines, expected, "{path}: {text}");
    };
    check("src/app.rs", "fn f() {\n    x.unwrap();\n}\n", &[2]);
    check(
        "src/app.rs",
        "#[cfg(test)]\nmod tests {\n    fn f() { x.unwrap() }\n}\n",
        &[],
    );
    check(
        "src/app.rs",
        "// x.unwrap()\nlet y = \"dbg!\"; eprintln!();\n",
        &[],
    );
    check(
        "src/app.rs",
        "println!(); // tidy-allow: print: the pipe is the user's\n",
        &[],
    );
    check("src/app.rs", "// tidy-allow: print:\nprintln!();\n", &[2]);
    check("src/cli/get.rs", "println!();\n", &[]);
    check("src/main.rs", "std::process::exit(1);\n", &[]);
    check("src/cli/run.rs", "std::process::exit(1);\n", &[1]);
    check(
        "tests/run.rs",
        "tokio::time::sleep(d).await;\nx.unwrap();\n",
        &[1],
    );
}
