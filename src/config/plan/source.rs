//! Where a configuration comes from: the text of a file, and the environment.

use std::path::Path;

use super::Plan;
use crate::config::error::{Position, Problem, Severity, Trouble};
use crate::config::reader::{Environment, VARIABLE_PREFIX, position};
use crate::telemetry::escape_cut;

/// Reads a file of bounded length.
pub(super) fn read(path: &Path) -> Result<String, Box<Problem>> {
    use std::io::Read;
    let problem = |position, trouble| {
        Box::new(Problem {
            severity: Severity::Error,
            key: String::new(),
            position,
            variable: None,
            trouble,
        })
    };
    let unreadable = |reason: String| problem(None, Trouble::Unreadable { reason });
    let file = std::fs::File::open(path).map_err(|error| unreadable(reason(&error)))?;
    let mut bytes = Vec::new();
    let mut limited = file.take(Plan::TEXT_MAX + 1);
    limited
        .read_to_end(&mut bytes)
        .map_err(|error| unreadable(reason(&error)))?;
    if bytes.len() as u64 > Plan::TEXT_MAX {
        return Err(unreadable("it is longer than 1 MiB".to_owned()));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let bytes = error.as_bytes();
        let before = String::from_utf8_lossy(&bytes[..valid]);
        let reason = format!(
            "found the byte 0x{:02x}, which is not UTF-8; expected a TOML file in UTF-8",
            bytes[valid]
        );
        let position = position(&before, before.len());
        problem(Some(position), Trouble::Syntax { reason })
    })
}

fn reason(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "there is no such file".to_owned(),
        std::io::ErrorKind::IsADirectory => "it is a folder".to_owned(),
        std::io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => error.to_string(),
    }
}

pub(super) fn syntax_problems(text: &str, errors: &[toml::de::Error]) -> Vec<Problem> {
    let problem = |error: &toml::de::Error| {
        let span = error.span();
        let at: Option<Position> = span.as_ref().map(|span| position(text, span.start));
        // Only of a duplicate key is the text shown: it is the key.
        let is_key = error.message() == "duplicate key";
        let key = span.filter(|_| is_key).and_then(|span| text.get(span));
        Problem {
            severity: Severity::Error,
            key: key.map(|key| escape_cut(key, 100)).unwrap_or_default(),
            position: at,
            variable: None,
            trouble: Trouble::Syntax {
                reason: error.message().to_owned(),
            },
        }
    };
    errors.iter().map(problem).collect()
}

/// The environment's variables that may be meant for us and are UTF-8.
pub(super) fn environment() -> Environment {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| name.starts_with(VARIABLE_PREFIX))
        .collect()
}
