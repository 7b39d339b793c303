//! Finding the program once, at the start, so that a command that could never run is a
//! configuration error and not a loop of failed deliveries.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use crate::handlers::HandlerError;

/// Finds the program: the whole path, checked to be executable and, for a script, to have its
/// interpreter. Relative entries of `path` are skipped: what runs must not depend on where we are.
pub(super) fn resolve(program: &str, base: &Path, path: &str) -> Result<PathBuf, HandlerError> {
    let found = find(program, base, path)?;
    check_interpreter(program, &found, path)?;
    Ok(found)
}

/// Refuses a shell with something that looks like a placeholder for message content in its code.
pub(super) fn refuse_placeholders(argv: &[String]) -> Result<(), HandlerError> {
    const SHELLS: [&str; 8] = ["sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "fish"];
    let is_shell = |item: &String| SHELLS.contains(&item.rsplit('/').next().unwrap_or(item));
    let Some(shell_at) = argv.iter().position(is_shell) else {
        return Ok(());
    };
    let takes_code = |item: &String| {
        item.len() > 1 && item.starts_with('-') && !item.starts_with("--") && item.contains('c')
    };
    let options = &argv[shell_at + 1..];
    let Some(code_at) = options.iter().position(takes_code) else {
        return Ok(());
    };
    match options[code_at + 1..]
        .iter()
        .find_map(|item| placeholder(item))
    {
        None => Ok(()),
        Some(placeholder) => Err(HandlerError::PlaceholderInShell {
            program: argv[0].clone(),
            placeholder: placeholder.to_owned(),
        }),
    }
}

/// Finds `{word}`: not the shell's own `${word}`, `{a,b}` or `{ list; }`.
fn placeholder(item: &str) -> Option<&str> {
    let mut from = 0;
    while let Some(open) = item[from..].find('{').map(|at| from + at) {
        let close = item[open..].find('}').map(|at| open + at)?;
        let word = &item[open + 1..close];
        let is_word = word.starts_with(|c: char| c.is_ascii_alphabetic())
            && word
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "_-.:".contains(c));
        if is_word && !item[..open].ends_with('$') {
            return Some(&item[open..=close]);
        }
        from = open + 1;
    }
    None
}

fn find(program: &str, base: &Path, path: &str) -> Result<PathBuf, HandlerError> {
    let candidates: Vec<PathBuf> = if program.contains('/') {
        vec![base.join(program)]
    } else {
        std::env::split_paths(path)
            .filter(|directory| directory.is_absolute())
            .map(|directory| directory.join(program))
            .collect()
    };
    if let Some(found) = candidates.iter().find(|path| is_executable(path)) {
        return Ok(found.clone());
    }
    match candidates.iter().find(|path| path.exists()) {
        Some(found) => Err(HandlerError::NotExecutable {
            program: program.to_owned(),
            path: found.clone(),
        }),
        None => Err(HandlerError::NotFound {
            program: program.to_owned(),
            looked_in: looked_in(program, &candidates, path),
        }),
    }
}

fn looked_in(program: &str, candidates: &[PathBuf], path: &str) -> String {
    if program.contains('/') {
        candidates[0].display().to_string()
    } else {
        format!("PATH={path}")
    }
}

fn is_executable(path: &Path) -> bool {
    path.is_file() && access(path, Access::EXEC_OK).is_ok()
}

fn check_interpreter(program: &str, script: &Path, path: &str) -> Result<(), HandlerError> {
    let Some((interpreter, argument)) = first_line(script) else {
        return Ok(());
    };
    let missing = if !is_executable(Path::new(&interpreter)) {
        Some(interpreter)
    } else if interpreter.ends_with("/env") && is_plain_name(&argument) {
        find(&argument, Path::new("/"), path)
            .err()
            .map(|_| argument)
    } else {
        None
    };
    match missing {
        None => Ok(()),
        Some(interpreter) => Err(HandlerError::BadInterpreter {
            program: program.to_owned(),
            path: script.to_owned(),
            interpreter,
        }),
    }
}

fn is_plain_name(word: &str) -> bool {
    !word.is_empty() && !word.starts_with('-') && !word.contains(['=', '/'])
}

/// Reads the interpreter and its argument of a script; `None` for what is not a script or cannot
/// be read (a program may be executable and not readable).
fn first_line(script: &Path) -> Option<(String, String)> {
    let mut start = Vec::new();
    // The kernel reads no more of the line than this.
    File::open(script)
        .ok()?
        .take(256)
        .read_to_end(&mut start)
        .ok()?;
    let line = start.strip_prefix(b"#!")?.split(|b| *b == b'\n').next()?;
    let line = String::from_utf8_lossy(line);
    let mut words = line.trim().splitn(2, [' ', '\t']);
    let interpreter = words.next().unwrap_or_default().to_owned();
    Some((
        interpreter,
        words.next().unwrap_or_default().trim().to_owned(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argv(items: &[&str]) -> Vec<String> {
        items.iter().map(|item| (*item).to_owned()).collect()
    }

    #[test]
    fn placeholders_in_a_shells_code_are_refused() {
        for refused in [
            &["sh", "-c", "echo {body}"][..],
            &["/bin/bash", "-ec", "x={header.name}"],
            &["/usr/bin/env", "sh", "-c", "echo '{id}'"],
            &["sh", "-c", "echo \"$1\"", "x", "{body}"],
        ] {
            assert!(refuse_placeholders(&argv(refused)).is_err(), "{refused:?}");
        }
    }

    #[test]
    fn what_is_the_shells_own_or_no_shell_is_allowed() {
        for allowed in [
            &["sh", "-c", "echo ${HOME} {a,b} {}; { wc; }"][..],
            &["jq", "{id}"],
            &["sh", "script", "{body}"],
            &["grep", "-c", "{body}"],
        ] {
            assert!(refuse_placeholders(&argv(allowed)).is_ok(), "{allowed:?}");
        }
    }

    #[test]
    fn a_missing_program_says_where_it_was_looked_for() {
        let error = resolve("nope", Path::new("/"), "/usr/bin:relative:/bin").expect_err("refused");
        let text = error.to_string();
        assert!(
            text.contains("\"nope\"") && text.contains("/usr/bin:"),
            "{text}"
        );
        let text = resolve("./nope", Path::new("/srv"), "")
            .expect_err("refused")
            .to_string();
        assert!(text.contains("/srv/./nope"), "{text}");
    }

    #[test]
    fn a_directory_is_not_a_program() {
        let error = resolve("/tmp", Path::new("/"), "").expect_err("refused");
        assert!(
            matches!(error, HandlerError::NotExecutable { .. }),
            "{error}"
        );
    }
}
