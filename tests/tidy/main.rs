//! The house rules that no compiler checks, as tests over the source tree read as text.
//!
//! Each module holds one kind of rule and says in its failures which file and line break which rule and what to do
//! instead. A line that has to break a rule of `calls` says so where it stands, with the reason:
//! `// tidy-allow: <rule>: <reason>`, at its end or on the line above.

mod calls;
mod imports;
mod project;
mod rust_source;
mod tree;

use std::fmt;

/// One broken rule, and where.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Violation {
    path: String,
    line: usize,
    rule: String,
}

impl Violation {
    fn new(path: &str, line: usize, rule: impl Into<String>) -> Self {
        Self {
            path: path.to_owned(),
            line,
            rule: rule.into(),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.rule)
    }
}

/// Fails with every violation in a stable order.
#[track_caller]
fn expect_none(mut violations: Vec<Violation>) {
    violations.sort();
    let lines: Vec<String> = violations.iter().map(ToString::to_string).collect();
    assert!(
        lines.is_empty(),
        "{} house rule(s) broken:\n{}",
        lines.len(),
        lines.join("\n")
    );
}
