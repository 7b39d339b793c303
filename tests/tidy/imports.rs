//! The import table of ARCHITECTURE.md: which layer may know which modules and which crates.
//!
//! Test code is exempt. A file's own top-level module is always open to it.

use super::rust_source::{code_only, paths_below, test_lines};
use super::tree::{self, TextFile};
use super::{Violation, expect_none};

/// A choice of names.
enum Names {
    Only(&'static [&'static str]),
    AllBut(&'static [&'static str]),
}

impl Names {
    /// Whether `path`, such as `model::Phase`, starts with a name that is allowed.
    fn allow(&self, path: &str) -> bool {
        let starts = |name: &&str| {
            path == *name
                || path
                    .strip_prefix(*name)
                    .is_some_and(|rest| rest.starts_with("::"))
        };
        match self {
            Self::Only(names) => names.iter().any(starts),
            Self::AllBut(names) => !names.iter().any(starts),
        }
    }
}

/// Files of one layer and what they may know.
struct Area {
    layer: &'static str,
    /// `*` stands for anything.
    files: &'static [&'static str],
    /// Top-level modules of the file's own crate.
    modules: Names,
    /// Top-level modules of the actors crate, for files of the root crate.
    actors: Names,
    /// Crates among our dependencies, with `_`; std is open to all.
    crates: Names,
}

const NOTHING: Names = Names::Only(&[]);
const EVERYTHING: Names = Names::AllBut(&[]);
const NO_ACTIX: Names = Names::AllBut(&["actix", "actix_rt"]);

/// What only a transport may use: broker clients and stores.
const CLIENTS_AND_ACTIX: &[&str] = &["actix", "actix_rt", "lapin", "async_nats", "fjall", "redb"];

/// Layer 3: nobody above the actors crate's own layer 4 reaches into it.
const INSIDES: &[&str] = &[
    "consumer",
    "delivery",
    "feed",
    "ledger",
    "limiter",
    "publisher",
    "registry",
    "shutdown",
    "supervision",
    "timer",
];

/// The first area that matches a file is its own.
const TABLE: &[Area] = &[
    Area {
        layer: "L0 plain data",
        files: &["actors/src/model/*"],
        modules: NOTHING,
        actors: NOTHING,
        crates: Names::Only(&["bytes", "serde", "xxhash_rust"]),
    },
    Area {
        layer: "L1 pure core",
        files: PURE,
        modules: Names::Only(&["model"]),
        actors: NOTHING,
        crates: Names::Only(&["bytes", "serde", "slab", "thiserror", "xxhash_rust"]),
    },
    Area {
        layer: "L2 ports",
        files: &["actors/src/ports/*"],
        modules: Names::Only(&["model", "settlement"]),
        actors: NOTHING,
        crates: NO_ACTIX,
    },
    Area {
        layer: "L4 assembly",
        files: &[
            "actors/src/lib.rs",
            "actors/src/handle*",
            "actors/src/status*",
        ],
        modules: EVERYTHING,
        actors: NOTHING,
        crates: NO_ACTIX,
    },
    Area {
        // It starts the arbiters, or finds the actix System of the program it runs in; so does
        // virtual time for tests.
        layer: "L4 runtime",
        files: &["actors/src/runtime*", "actors/src/testing*"],
        modules: EVERYTHING,
        actors: NOTHING,
        crates: EVERYTHING,
    },
    Area {
        layer: "L3 actor",
        files: &[
            "actors/src/*/actor.rs",
            "actors/src/timer.rs",
            "actors/src/supervision/handle.rs",
            "actors/src/supervision/link.rs",
            "actors/src/supervision/slot.rs",
            "actors/src/registry*",
            // A record keeps the address of its delivery's actor.
            "actors/src/delivery/record.rs",
        ],
        modules: Names::AllBut(&["handle", "runtime", "status", "testing"]),
        actors: NOTHING,
        crates: EVERYTHING,
    },
    Area {
        layer: "L3 beside the actors",
        files: &["actors/src/*"],
        modules: Names::AllBut(&["handle", "runtime", "status", "testing"]),
        actors: NOTHING,
        crates: NO_ACTIX,
    },
    Area {
        layer: "L5 transport",
        files: &["src/transport/*"],
        modules: NOTHING,
        // A transport says why a settlement failed, and that is a word of the machine.
        actors: Names::Only(&["model", "ports", "settlement::SettleFailure"]),
        crates: NO_ACTIX,
    },
    Area {
        layer: "L5 handlers and profiles",
        files: &["src/handlers/*", "src/profile/*"],
        modules: NOTHING,
        actors: Names::Only(&["model", "ports"]),
        crates: Names::AllBut(CLIENTS_AND_ACTIX),
    },
    Area {
        layer: "L5 feeds",
        files: &["src/feed/*"],
        modules: NOTHING,
        // What a feeder is started from is assembled by the actors crate.
        actors: Names::Only(&["model", "ports", "FeedSpec"]),
        crates: Names::AllBut(CLIENTS_AND_ACTIX),
    },
    Area {
        layer: "L6 around the engine",
        files: &[
            "src/config/*",
            "src/control/*",
            "src/control.rs",
            "src/telemetry/*",
            "src/signal*",
        ],
        // The addresses of a plan are read where they are used: pure, and without the client.
        modules: Names::Only(&[
            "config",
            "control",
            "telemetry",
            "signal",
            "transport::amqp::AmqpUri",
            "transport::amqp::Secret",
        ]),
        actors: Names::AllBut(INSIDES),
        crates: Names::AllBut(CLIENTS_AND_ACTIX),
    },
    Area {
        layer: "L7 composition",
        files: &["src/main.rs", "src/lib.rs", "src/app*", "src/cli/*"],
        modules: EVERYTHING,
        actors: EVERYTHING,
        crates: Names::AllBut(CLIENTS_AND_ACTIX),
    },
];

/// Files that decide and do nothing else.
const PURE: &[&str] = &[
    "actors/src/settlement/*",
    "actors/src/*/core.rs",
    "actors/src/*/core/*",
];

#[test]
fn every_file_imports_only_what_its_layer_may_know() {
    let dependencies = dependencies();
    expect_none(
        product_files()
            .iter()
            .flat_map(|file| forbidden_imports(file, &dependencies))
            .collect(),
    );
}

#[test]
fn pure_cores_read_no_clock_await_nothing_and_log_nothing() {
    let impure = [
        "Instant::now",
        "SystemTime::now",
        ".await",
        "async fn",
        "async move",
        "thread::",
        "Mutex",
    ];
    let mut violations = Vec::new();
    for file in product_files()
        .iter()
        .filter(|file| PURE.iter().any(|pattern| matches(pattern, &file.path)))
    {
        let code = code_only(&file.text);
        let in_test = test_lines(&code);
        for (index, line) in code
            .lines()
            .enumerate()
            .filter(|(index, _)| !in_test[*index])
        {
            for word in impure.iter().filter(|word| line.contains(**word)) {
                let rule = format!(
                    "{word} in a pure core: take it as an event or a parameter, leave the doing to the shell"
                );
                violations.push(Violation::new(&file.path, index + 1, rule));
            }
        }
    }
    expect_none(violations);
}

fn product_files() -> Vec<TextFile> {
    let mut files = tree::rust_files();
    files.retain(|file| file.path.starts_with("src/") || file.path.starts_with("actors/src/"));
    files.retain(|file| !file.is_test);
    files
}

fn forbidden_imports(file: &TextFile, dependencies: &[String]) -> Vec<Violation> {
    let Some(area) = TABLE.iter().find(|area| {
        area.files
            .iter()
            .any(|pattern| matches(pattern, &file.path))
    }) else {
        return vec![Violation::new(
            &file.path,
            1,
            "belongs to no layer: give it one in tests/tidy/imports.rs and ARCHITECTURE.md",
        )];
    };
    let code = code_only(&file.text);
    let in_test = test_lines(&code);
    let module = module_of(&file.path);
    let mut violations = Vec::new();
    let mut refuse = |line: usize, name: String| {
        if !in_test[line - 1] {
            violations.push(Violation::new(
                &file.path,
                line,
                format!("{} must not use {name}", area.layer),
            ));
        }
    };
    for (line, path) in paths_below(&code, "crate")
        .into_iter()
        .chain(paths_above(&code, &module))
    {
        let is_own = module
            .first()
            .is_some_and(|own| path.split("::").next() == Some(own));
        let is_core_of_actor =
            PURE.iter().any(|pattern| matches(pattern, &file.path)) && path.contains("::actor");
        if is_core_of_actor || !(is_own || area.modules.allow(&path)) {
            refuse(line, format!("crate::{path}"));
        }
    }
    for (line, path) in paths_below(&code, "acquit_actors") {
        if !area.actors.allow(&path) {
            refuse(line, format!("acquit_actors::{path}"));
        }
    }
    for name in dependencies.iter().filter(|name| !area.crates.allow(name)) {
        for (line, _) in paths_below(&code, name) {
            refuse(line, format!("the crate {name}"));
        }
    }
    violations
}

/// The module path of a file: `actors/src/limiter/core.rs` is `limiter`, `core`.
fn module_of(path: &str) -> Vec<&str> {
    let below = path
        .strip_prefix("actors/")
        .unwrap_or(path)
        .trim_start_matches("src/")
        .trim_end_matches(".rs");
    below
        .split('/')
        .filter(|part| !matches!(*part, "mod" | "lib" | "main"))
        .collect()
}

/// `super::` paths as seen from the crate's root.
fn paths_above(code: &str, module: &[&str]) -> Vec<(usize, String)> {
    let resolve = |path: &str| {
        let mut above = module.split_last()?.1;
        let mut rest = path;
        while let Some(higher) = rest.strip_prefix("super::") {
            above = above.split_last()?.1;
            rest = higher;
        }
        Some(
            above
                .iter()
                .copied()
                .chain([rest])
                .collect::<Vec<_>>()
                .join("::"),
        )
    };
    let found = paths_below(code, "super");
    found
        .into_iter()
        .filter_map(|(line, path)| Some((line, resolve(&path)?)))
        .collect()
}

/// The names of all crates that a manifest of ours depends on, as code spells them; our own is not among them.
fn dependencies() -> Vec<String> {
    let mut names = Vec::new();
    for manifest in ["Cargo.toml", "actors/Cargo.toml"] {
        let manifest: toml::Table = tree::read(manifest)
            .text
            .parse()
            .expect("a manifest is TOML");
        let table = manifest
            .get("dependencies")
            .and_then(toml::Value::as_table)
            .expect("a manifest has dependencies");
        names.extend(table.keys().map(|name| name.replace('-', "_")));
    }
    names.retain(|name| name != "acquit_actors");
    names.sort();
    names.dedup();
    names
}

/// Whether the path matches a pattern in which `*` stands for anything.
fn matches(pattern: &str, path: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == path,
        Some((start, "")) => path.starts_with(start),
        Some((start, rest)) => path.strip_prefix(start).is_some_and(|tail| {
            (0..=tail.len()).any(|at| tail.is_char_boundary(at) && matches(rest, &tail[at..]))
        }),
    }
}

#[test]
fn the_table_refuses_what_looks_upward_or_sideways() {
    let dependencies = ["actix", "bytes", "lapin", "redb", "tokio"].map(str::to_owned);
    let check = |path: &str, text: &str, expected: &[&str]| {
        let file = TextFile::new(path, text);
        let found = forbidden_imports(&file, &dependencies);
        let rules: Vec<&str> = found
            .iter()
            .map(|violation| violation.rule.rsplit(' ').next().unwrap())
            .collect();
        assert_eq!(rules, expected, "{path}: {text}");
    };
    check(
        "actors/src/model/ids.rs",
        "use super::Phase;\nuse bytes::Bytes;",
        &[],
    );
    check(
        "actors/src/model/ids.rs",
        "use crate::ports::Settler;\nuse tokio::sync;",
        &["crate::ports::Settler", "tokio"],
    );
    check(
        "actors/src/settlement/machine.rs",
        "use crate::{model::Phase, ports};",
        &["crate::ports"],
    );
    check(
        "actors/src/limiter/core.rs",
        "use super::limits::Limits; use super::super::model::Phase;",
        &[],
    );
    check(
        "actors/src/limiter/core.rs",
        "use super::actor::Grant;\nuse super::super::timer;",
        &["crate::limiter::actor::Grant", "crate::timer"],
    );
    check(
        "actors/src/limiter/core.rs",
        "#[cfg(test)]\nmod tests {\n    use tokio::time;\n}",
        &[],
    );
    check(
        "actors/src/consumer/actor.rs",
        "use actix::Actor; use crate::delivery::Start;",
        &[],
    );
    check(
        "actors/src/consumer/credit.rs",
        "use actix::Actor; use crate::runtime::Plan;",
        &["crate::runtime::Plan", "actix"],
    );
    check(
        "src/transport/embedded/store.rs",
        "use redb::Database; use acquit_actors::ports::Source;",
        &[],
    );
    check(
        "src/transport/memory.rs",
        "use crate::config::Plan;",
        &["crate::config::Plan"],
    );
    check(
        "src/handlers/command.rs",
        "use acquit_actors::delivery::Start;",
        &["acquit_actors::delivery::Start"],
    );
    check(
        "src/control/socket.rs",
        "use acquit_actors::{EngineHandle, limiter::Book};",
        &["acquit_actors::limiter::Book"],
    );
    check(
        "src/cli/get.rs",
        "use redb::Database; use crate::transport::Embedded;",
        &["redb"],
    );
    check("src/elsewhere.rs", "", &["ARCHITECTURE.md"]);
}
