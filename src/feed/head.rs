//! How a file is known again: by a digest of how it began when it was first read.
//!
//! The cursor says how far a feed was read, not of which file. So that another file in its place
//! is not read from the middle, the digest is kept in the folder of what survives a restart. It is
//! a safeguard: where it is gone, only the line before the cursor is looked at.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::aside::make_folder_of;

/// How much of a file's beginning is looked at.
const HEAD_MAX: u64 = 4096;

/// How a file began.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Head {
    /// How much of it was looked at.
    bytes: u64,
    /// The digest of that.
    xxh3: u64,
}

impl Head {
    /// Looks at the beginning of a file.
    pub(super) fn of(file: &mut File) -> io::Result<Self> {
        Self::of_first(file, HEAD_MAX)
    }

    fn of_first(file: &mut File, max: u64) -> io::Result<Self> {
        let mut head = Vec::new();
        file.seek(SeekFrom::Start(0))?;
        file.take(max).read_to_end(&mut head)?;
        Ok(Self {
            bytes: head.len() as u64,
            xxh3: xxh3_64(&head),
        })
    }

    /// Tells whether a file begins as this one did.
    pub(super) fn is_of(&self, file: &mut File) -> io::Result<bool> {
        Ok(*self == Self::of_first(file, self.bytes.min(HEAD_MAX))?)
    }

    /// Reads one that was kept; `None` if none was, or if it cannot be made out.
    pub(super) fn kept(path: &Path) -> Option<Self> {
        let mut text = Vec::new();
        let file = File::open(path).ok()?;
        file.take(HEAD_MAX).read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Keeps it.
    pub(super) fn keep(&self, path: &Path) -> io::Result<()> {
        make_folder_of(path)?;
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(path)?;
        file.write_all(&serde_json::to_vec(self)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_grew_is_the_same_and_one_that_begins_otherwise_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let (path, kept) = (folder.path().join("f"), folder.path().join("made/head"));
        let is_same = |text: &str| {
            std::fs::write(&path, text).unwrap();
            let mut file = File::open(&path).unwrap();
            Head::kept(&kept).unwrap().is_of(&mut file).unwrap()
        };
        std::fs::write(&path, "abc\n").unwrap();
        let head = Head::of(&mut File::open(&path).unwrap()).unwrap();
        assert_eq!(Head::kept(&kept), None);
        head.keep(&kept).unwrap();
        assert!(is_same("abc\n"));
        assert!(is_same("abc\nmore\n"));
        assert!(!is_same("abd\n"));
        assert!(!is_same("abc"));
        std::fs::write(&kept, "{\"bytes\":4,").unwrap();
        assert_eq!(Head::kept(&kept), None);
    }
}
