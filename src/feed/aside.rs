//! Where bad lines go: a file of JSON lines beside the data, that only its owner can read.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD;

/// How much of a line that is too long is kept here; the rest of it is still in the fed file.
pub(super) const TOO_LONG_KEPT: usize = 64 * 1024;

/// The open file of set-aside lines.
#[derive(Debug)]
pub(super) struct Aside {
    file: File,
    /// The length up to which it holds whole entries that are on the disk.
    whole: u64,
}

impl Aside {
    /// Opens the file for more entries; makes it, and its folder, if they are not there.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        make_folder_of(path)?;
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)?;
        // A process that was killed may have left half an entry: it stays a line of its own.
        let end = file.seek(SeekFrom::End(0))?;
        if end > 0 {
            let mut last = [0];
            file.seek(SeekFrom::Start(end - 1))?;
            file.read_exact(&mut last)?;
            if last != *b"\n" {
                file.write_all(b"\n")?;
            }
        }
        let whole = file.seek(SeekFrom::End(0))?;
        Ok(Self { file, whole })
    }

    /// Adds a line. Of one that is too long, `content` is the beginning and `bytes` the length.
    pub(super) fn add(
        &mut self,
        line: u64,
        error: &str,
        content: &[u8],
        bytes: Option<u64>,
    ) -> io::Result<()> {
        let error = serde_json::Value::from(error);
        let mut entry = Vec::new();
        write!(entry, "{{\"line\":{line},\"error\":{error},")?;
        if let Some(bytes) = bytes {
            write!(entry, "\"bytes\":{bytes},")?;
        }
        let content = Base64Display::new(content, &STANDARD);
        writeln!(entry, "\"base64\":\"{content}\"}}")?;
        self.file.write_all(&entry)
    }

    /// Brings all entries onto the disk; or, where that fails, none of them.
    pub(super) fn commit(mut self) -> io::Result<()> {
        self.file.sync_data()?;
        self.whole = self.file.metadata()?.len();
        Ok(())
    }
}

impl Drop for Aside {
    /// Takes half a batch back, as far as that can be done: it comes again with the next try.
    fn drop(&mut self) {
        let length = self.file.metadata().map(|data| data.len());
        if length.is_ok_and(|length| length > self.whole) {
            let _ = self.file.set_len(self.whole);
        }
    }
}

/// Makes the folder that a file stands in.
pub(super) fn make_folder_of(file: &Path) -> io::Result<()> {
    match file.parent() {
        Some(folder) => DirBuilder::new().recursive(true).mode(0o700).create(folder),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn entries_are_json_lines_that_only_the_owner_can_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("made/on/use/feed.bad.jsonl");
        let mut aside = Aside::open(&path).unwrap();
        aside.add(7, "why \"so\"", b"\xff{", None).unwrap();
        aside.commit().unwrap();
        let mut aside = Aside::open(&path).unwrap();
        aside.add(9, "long", b"ab", Some(70_000)).unwrap();
        aside.commit().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let expected = "{\"line\":7,\"error\":\"why \\\"so\\\"\",\"base64\":\"/3s=\"}\n\
                        {\"line\":9,\"error\":\"long\",\"bytes\":70000,\"base64\":\"YWI=\"}\n";
        assert_eq!(text, expected);
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn half_an_entry_of_a_killed_process_spoils_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bad.jsonl");
        std::fs::write(&path, "{\"line\":1,\"er").unwrap();
        let mut aside = Aside::open(&path).unwrap();
        aside.add(1, "e", b"", None).unwrap();
        aside.commit().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let second = "{\"line\":1,\"error\":\"e\",\"base64\":\"\"}";
        assert_eq!(
            text.lines().collect::<Vec<_>>(),
            ["{\"line\":1,\"er", second]
        );
    }

    #[test]
    fn a_batch_that_is_not_committed_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bad.jsonl");
        let mut aside = Aside::open(&path).unwrap();
        aside.add(1, "e", &[0; 100_000], None).unwrap();
        drop(aside);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
    }
}
