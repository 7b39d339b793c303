//! Looks at this machine for what a configuration names: programs, folders, files.

use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use crate::transport::amqp::Secret;

/// Where commands are looked for unless they are given our own `PATH`.
pub(super) const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Finds a program: a path as it is, a bare name in the absolute directories of `path`.
///
/// # Errors
/// Why it cannot be run, to be read after the program's name.
pub(super) fn program(program: &Path, path: &str) -> Result<PathBuf, String> {
    let is_bare = program.components().count() == 1 && !program.is_absolute();
    let candidates: Vec<PathBuf> = if is_bare {
        std::env::split_paths(path)
            .filter(|folder| folder.is_absolute())
            .map(|folder| folder.join(program))
            .collect()
    } else {
        vec![program.to_owned()]
    };
    if let Some(found) = candidates.iter().find(|path| is_executable(path)) {
        return Ok(found.clone());
    }
    match candidates.iter().find(|path| path.exists()) {
        Some(found) if found.is_dir() => Err(format!("{} is a folder", found.display())),
        Some(found) => Err(format!("{} is not executable", found.display())),
        None if is_bare => Err(format!("there is no such program in {path}")),
        None => Err(format!("{} does not exist", program.display())),
    }
}

fn is_executable(path: &Path) -> bool {
    path.is_file() && access(path, Access::EXEC_OK).is_ok()
}

/// Tells whether a folder can be written to, or made.
///
/// # Errors
/// Why not, as a sentence.
pub(super) fn writable_folder(folder: &Path) -> Result<(), String> {
    for ancestor in folder.ancestors() {
        let ancestor = if ancestor.as_os_str().is_empty() {
            Path::new(".")
        } else {
            ancestor
        };
        match ancestor.metadata() {
            Ok(metadata) if !metadata.is_dir() => {
                return Err(format!("{} is not a folder", ancestor.display()));
            }
            Ok(_) => {
                return access(ancestor, Access::WRITE_OK | Access::EXEC_OK)
                    .map_err(|_| format!("{} cannot be written to", ancestor.display()));
            }
            Err(error) if is_missing(&error) => {}
            Err(error) => return Err(format!("{}: {error}", ancestor.display())),
        }
    }
    Ok(())
}

fn is_missing(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory)
}

/// Tells whether a file is there and can be read.
///
/// # Errors
/// Why not, as a sentence.
pub(super) fn readable_file(file: &Path) -> Result<(), String> {
    match file.metadata() {
        Err(error) if is_missing(&error) => Err(format!("{} does not exist", file.display())),
        Err(error) => Err(format!("{}: {error}", file.display())),
        Ok(metadata) if metadata.is_dir() => Err(format!("{} is a folder", file.display())),
        Ok(_) => {
            access(file, Access::READ_OK).map_err(|_| format!("{} cannot be read", file.display()))
        }
    }
}

/// No file with a secret is longer, in bytes.
const SECRET_MAX: u64 = 4096;

/// Reads a file that holds a secret on its one line.
///
/// # Errors
/// Why not, as a sentence that names the file and shows nothing of what is in it.
pub(super) fn secret(file: &Path) -> Result<Secret, String> {
    use std::io::Read;
    let wrong = |what: &str| format!("{} {what}", file.display());
    let mut text = String::new();
    readable_file(file)?;
    // A pipe would be waited for.
    if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return Err(wrong("is not a plain file"));
    }
    std::fs::File::open(file)
        .and_then(|opened| opened.take(SECRET_MAX + 1).read_to_string(&mut text))
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::InvalidData => wrong("is not UTF-8"),
            _ => wrong("cannot be read"),
        })?;
    if text.len() as u64 > SECRET_MAX {
        return Err(wrong("is longer than 4 KiB"));
    }
    let line = text.strip_suffix('\n').unwrap_or(&text);
    let line = line.strip_suffix('\r').unwrap_or(line);
    if line.is_empty() {
        return Err(wrong("is empty; expected a password on its one line"));
    }
    if line.contains(char::is_control) {
        return Err(wrong(
            "has more than one line, or a control character; expected a password on its one line",
        ));
    }
    Ok(Secret::new(line))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_bare_name_is_found_on_the_path_and_a_path_is_taken_as_it_is() {
        let found = program(Path::new("sh"), SYSTEM_PATH).expect("a shell is everywhere");
        assert!(found.is_absolute() && found.ends_with("sh"));
        assert_eq!(program(&found, ""), Ok(found.clone()));
        let missing = program(Path::new("no-such-program"), "/bin:relative");
        assert_eq!(
            missing,
            Err("there is no such program in /bin:relative".to_owned())
        );
    }

    #[test]
    fn what_is_not_executable_is_said_to_be_so() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("tool");
        std::fs::write(&file, "#!/bin/sh\n").expect("written");
        let path = folder.path().to_str().expect("UTF-8");
        let shown = file.display();
        assert_eq!(
            program(Path::new("tool"), path),
            Err(format!("{shown} is not executable"))
        );
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).expect("set");
        assert_eq!(program(Path::new("tool"), path), Ok(file.clone()));
        assert!(writable_folder(&folder.path().join("a/b")).is_ok());
        assert_eq!(
            writable_folder(&file.join("b")),
            Err(format!("{shown} is not a folder"))
        );
        assert_eq!(readable_file(&file), Ok(()));
        assert!(readable_file(folder.path()).is_err());
    }
}
