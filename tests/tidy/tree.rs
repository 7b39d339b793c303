//! The files of the project, read once.

use std::fs;
use std::path::{Path, PathBuf};

use super::rust_source::test_modules;

/// A text file of the project; `path` is relative to its root, with `/`.
#[derive(Debug)]
pub(crate) struct TextFile {
    pub(crate) path: String,
    pub(crate) text: String,
    /// Whether all of it is test code: an integration test, or a module declared under
    /// `#[cfg(test)]`.
    pub(crate) is_test: bool,
}

impl TextFile {
    pub(crate) fn new(path: impl Into<String>, text: impl Into<String>) -> Self {
        let path = path.into();
        let is_test = path.starts_with("tests/") || path.contains("/tests/");
        Self {
            path,
            text: text.into(),
            is_test,
        }
    }

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
    let mut files = files();
    files.retain(TextFile::is_rust);
    let modules: Vec<String> = files
        .iter()
        .flat_map(|file| test_modules(&file.path, &file.text))
        .collect();
    for file in &mut files {
        let stem = file.path.trim_end_matches(".rs");
        let is_below = |module: &String| {
            stem.strip_prefix(module.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        file.is_test |= modules.iter().any(is_below);
    }
    files
}

/// One file that has to exist.
pub(crate) fn read(path: &str) -> TextFile {
    let text = fs::read_to_string(root().join(path))
        .unwrap_or_else(|error| panic!("{path} has to exist: {error}"));
    TextFile::new(path, text)
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
            found.push(TextFile::new(
                relative.to_string_lossy().replace('\\', "/"),
                text,
            ));
        }
    }
}
