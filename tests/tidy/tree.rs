//! The files of the project, read once.

use std::fs;
use std::path::{Path, PathBuf};

/// A text file of the project; `path` is relative to its root, with `/`.
#[derive(Debug)]
pub(crate) struct TextFile {
    pub(crate) path: String,
    pub(crate) text: String,
}

impl TextFile {
    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Lines with their numbers, from 1.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text
            .lines()
            .enumerate()
            .map(|(index, line)| (index + 1, line))
    }
}

/// What holds nothing of ours: build results, version control, the default state folder.
const SKIPPED: [&str; 3] = ["target", ".git", "data"];

/// Every text file of the project; files that are not UTF-8 are left out.
pub(crate) fn files() -> Vec<TextFile> {
    let mut found = Vec::new();
    collect(&root(), &mut found);
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(
        found.iter().any(|file| file.path == "Cargo.toml"),
        "the project's root was not found"
    );
    found
}

pub(crate) fn rust_files() -> Vec<TextFile> {
    files().into_iter().filter(TextFile::is_rust).collect()
}

/// One file that has to exist.
pub(crate) fn read(path: &str) -> TextFile {
    let text = fs::read_to_string(root().join(path))
        .unwrap_or_else(|error| panic!("{path} has to exist: {error}"));
    TextFile {
        path: path.to_owned(),
        text,
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn collect(folder: &Path, found: &mut Vec<TextFile>) {
    let entries = fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("{} cannot be listed: {error}", folder.display()));
    for entry in entries.map(|entry| entry.expect("an entry of a listed folder can be read")) {
        let path = entry.path();
        let kind = entry
            .file_type()
            .expect("an entry of a listed folder has a type");
        if SKIPPED.contains(&entry.file_name().to_string_lossy().as_ref()) {
            continue;
        }
        if kind.is_dir() {
            collect(&path, found);
        } else if kind.is_file()
            && let Ok(text) = fs::read_to_string(&path)
        {
            let relative = path.strip_prefix(root()).expect("found below the root");
            found.push(TextFile {
                path: relative.to_string_lossy().replace('\\', "/"),
                text,
            });
        }
    }
}
