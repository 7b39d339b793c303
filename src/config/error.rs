//! What can be wrong with a configuration, told so that it can be put right.
//!
//! A problem names file, line, column and key, what was found and what is expected. It shows a
//! value only where the key's type leaves no room for a secret (durations, sizes, choices,
//! numbers), and never a line of the file.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::telemetry::Escaped;

/// How bad a problem is. Ordered: an error is the greatest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Worth knowing; shown by `check` only.
    Note,
    /// It runs, but hardly as meant.
    Warning,
    /// It cannot run.
    Error,
}

impl Severity {
    /// Gives the severity's word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// A place in the file, both counted from 1; the column counts characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Position {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trouble {
    /// The file cannot be read.
    Unreadable {
        /// Why.
        reason: String,
    },
    /// The file is not TOML.
    Syntax {
        /// Why.
        reason: String,
    },
    /// There is no such key.
    UnknownKey {
        /// The known key that is nearest, or that section's key of this name.
        nearest: Option<String>,
        /// The section's keys.
        known: Vec<String>,
    },
    /// A key is missing.
    Missing {
        /// What is expected.
        expected: String,
    },
    /// The value is of the wrong type, unit or range.
    WrongValue {
        /// What was found: the shape of the value, not its content where that may be a secret.
        found: String,
        /// What is expected.
        expected: String,
        /// The choice that is nearest.
        nearest: Option<String>,
    },
    /// The value is known but not built yet.
    NotBuilt {
        /// What is not built, and what to use.
        what: String,
    },
    /// Values that are right by themselves do not fit together, or do not fit this machine.
    Unfit {
        /// What does not fit, and what to change.
        reason: String,
    },
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { reason } => {
                write!(
                    f,
                    "cannot be read: {reason}; name another file with --config"
                )
            }
            Self::Syntax { reason } => f.write_str(reason),
            Self::UnknownKey { nearest, known } => match nearest {
                Some(nearest) => write!(f, "unknown key; did you mean `{nearest}`?"),
                None => write!(f, "unknown key; known here: {}", known.join(", ")),
            },
            Self::Missing { expected } => write!(f, "missing; expected {expected}"),
            Self::WrongValue {
                found,
                expected,
                nearest,
            } => {
                write!(f, "found {found}, expected {expected}")?;
                match nearest {
                    Some(nearest) => write!(f, "; did you mean \"{nearest}\"?"),
                    None => Ok(()),
                }
            }
            Self::NotBuilt { what } => f.write_str(what),
            Self::Unfit { reason } => f.write_str(reason),
        }
    }
}

/// One problem of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// How bad it is.
    pub severity: Severity,
    /// The key's path, such as `consumer[0].retry.backoff-base`; empty for the whole file.
    pub key: String,
    /// Where the key stands; `None` where it stands nowhere (missing file, environment).
    pub position: Option<Position>,
    /// The environment variable that gave the value, if one did.
    pub variable: Option<String>,
    /// What is wrong.
    pub trouble: Trouble,
}

impl Problem {
    /// Gives the problem as one line, with the file's name as the user gave it.
    pub fn line(&self, file: &Path) -> String {
        use fmt::Write;
        let mut line = String::new();
        // Writing to a string cannot fail.
        let _ = match (&self.variable, self.position) {
            (Some(variable), _) => write!(line, "environment variable {}", Escaped(variable)),
            (None, Some(at)) => write!(line, "{}:{}:{}", show(file), at.line, at.column),
            (None, None) => write!(line, "{}", show(file)),
        };
        let _ = write!(line, ": {}: ", self.severity.as_str());
        if !self.key.is_empty() {
            let _ = write!(line, "{}: ", Escaped(&self.key));
        }
        let _ = write!(line, "{}", Escaped(&self.trouble.to_string()));
        line
    }

    /// Orders problems by the file; what stands nowhere in it comes last.
    pub(super) fn order(&self) -> (bool, Option<Position>) {
        (self.position.is_none(), self.position)
    }

    /// Gives the problem for machines.
    pub fn to_json(&self, file: &Path) -> serde_json::Value {
        let (found, expected, nearest) = match &self.trouble {
            Trouble::WrongValue {
                found,
                expected,
                nearest,
            } => (Some(found), Some(expected), nearest.as_ref()),
            Trouble::Missing { expected } => (None, Some(expected), None),
            Trouble::UnknownKey { nearest, .. } => (None, None, nearest.as_ref()),
            Trouble::Unreadable { .. }
            | Trouble::Syntax { .. }
            | Trouble::NotBuilt { .. }
            | Trouble::Unfit { .. } => (None, None, None),
        };
        serde_json::json!({
            "severity": self.severity,
            "file": file.to_string_lossy(),
            "line": self.position.map(|at| at.line),
            "column": self.position.map(|at| at.column),
            "variable": self.variable,
            "key": self.key,
            "message": self.trouble.to_string(),
            "found": found,
            "expected": expected,
            "nearest": nearest,
        })
    }
}

fn show(file: &Path) -> String {
    Escaped(&file.to_string_lossy()).to_string()
}

/// A configuration that cannot run: all its problems, in the order of the file, warnings and
/// notes included. Shown, it is one line for each error and warning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The file, as the user gave it.
    pub file: PathBuf,
    /// What is wrong with it; at least one error.
    pub problems: Vec<Problem>,
}

impl ConfigError {
    /// Counts the errors among the problems.
    pub fn errors(&self) -> usize {
        let is_error = |problem: &&Problem| problem.severity == Severity::Error;
        self.problems.iter().filter(is_error).count()
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for problem in &self.problems {
            if problem.severity > Severity::Note {
                write!(f, "{separator}{}", problem.line(&self.file))?;
                separator = "\n";
            }
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

/// Gives the candidate nearest to `word`, if one is near enough to be meant.
pub(super) fn nearest<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let word = word.to_lowercase().replace('_', "-");
    candidates
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(&word, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= (candidate.len() / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_found_and_a_far_one_is_not() {
        let known = ["permits", "prefetch", "partitions", "max-attempts"];
        assert_eq!(nearest("permit", known), Some("permits"));
        assert_eq!(nearest("max_attempts", known), Some("max-attempts"));
        assert_eq!(nearest("prefecth", known), Some("prefetch"));
        assert_eq!(nearest("concurrency", known), None);
    }
}
