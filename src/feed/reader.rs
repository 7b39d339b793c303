//! Reads a file line by line from a position, with one line in memory at most. Blocking.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};

use super::line::LINE_MAX;

/// The mark that some editors put at the beginning of UTF-8.
const BOM: &[u8] = b"\xef\xbb\xbf";

/// The room that is kept for the next line; a longer line's room is given back.
const BUFFER_KEPT: usize = 1024 * 1024;

/// A file's lines and where in it we are.
#[derive(Debug)]
pub(super) struct LineReader {
    file: BufReader<File>,
    offset: u64,
    line: u64,
    buffer: Vec<u8>,
    line_max: usize,
}

/// One line, without its end.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line<'a> {
    /// Its content; of a line that is too long its beginning.
    pub(super) content: &'a [u8],
    /// The length of a line that is too long.
    pub(super) too_long: Option<u64>,
}

/// Whether a file can be read on from where it was left.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Continuation {
    /// It can.
    Yes,
    /// The line that was read last went on, or another one stands there.
    Broken,
}

impl LineReader {
    /// Reads a file from its start.
    pub(super) fn new(file: File) -> Self {
        Self {
            file: BufReader::with_capacity(64 * 1024, file),
            offset: 0,
            line: 0,
            buffer: Vec::new(),
            line_max: LINE_MAX,
        }
    }

    #[cfg(test)]
    fn with_line_max(mut self, line_max: usize) -> Self {
        self.line_max = line_max;
        self
    }

    /// Goes to the byte `offset`, where `line` lines were read.
    pub(super) fn go_to(&mut self, offset: u64, line: u64) -> io::Result<Continuation> {
        (self.offset, self.line) = (offset, line);
        let Some(before) = offset.checked_sub(1) else {
            self.file.seek(SeekFrom::Start(0))?;
            return Ok(Continuation::Yes);
        };
        self.file.seek(SeekFrom::Start(before))?;
        let mut around = Vec::new();
        self.file.by_ref().take(3).read_to_end(&mut around)?;
        // The last line may have had no end when it was read, and have one now.
        let skipped = match &around[..] {
            [b'\n', ..] | [_] => Some(0),
            [_, b'\n', ..] => Some(1),
            [_, b'\r', b'\n'] => Some(2),
            _ => None,
        };
        self.offset += skipped.unwrap_or_default();
        self.file.seek(SeekFrom::Start(self.offset))?;
        Ok(match skipped {
            Some(_) => Continuation::Yes,
            None => Continuation::Broken,
        })
    }

    /// Gives the first byte that was not read.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Gives how many lines were read.
    pub(super) fn line(&self) -> u64 {
        self.line
    }

    /// Reads the next line; `None` at the end. The last line may have no end.
    pub(super) fn next(&mut self) -> io::Result<Option<Line<'_>>> {
        self.buffer.clear();
        self.buffer.shrink_to(BUFFER_KEPT);
        // With room for an end of two bytes.
        let limit = self.line_max as u64 + 2;
        let mut limited = self.file.by_ref().take(limit);
        let read = limited.read_until(b'\n', &mut self.buffer)? as u64;
        if read == 0 {
            return Ok(None);
        }
        let is_cut = read == limit && !self.buffer.ends_with(b"\n");
        let rest = match is_cut {
            true => self.file.skip_until(b'\n')? as u64,
            false => 0,
        };
        let is_first = self.offset == 0;
        self.offset += read + rest;
        self.line += 1;
        let mut content = &self.buffer[..];
        if is_first {
            content = content.strip_prefix(BOM).unwrap_or(content);
        }
        if !is_cut {
            content = content.strip_suffix(b"\n").unwrap_or(content);
            content = content.strip_suffix(b"\r").unwrap_or(content);
        }
        let is_too_long = is_cut || content.len() > self.line_max;
        Ok(Some(Line {
            content,
            too_long: is_too_long.then_some(read + rest),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(content: &[u8]) -> LineReader {
        let mut file = tempfile::tempfile().unwrap();
        io::Write::write_all(&mut file, content).unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        LineReader::new(file)
    }

    fn lines(reader: &mut LineReader) -> Vec<String> {
        let mut lines = Vec::new();
        while let Some(line) = reader.next().unwrap() {
            assert_eq!(line.too_long, None);
            lines.push(String::from_utf8(line.content.to_vec()).unwrap());
        }
        lines
    }

    fn check(content: &str, expected: &[&str]) {
        let mut reader = reader(content.as_bytes());
        assert_eq!(lines(&mut reader), expected, "{content:?}");
        assert_eq!(reader.offset(), content.len() as u64);
        assert_eq!(reader.line(), expected.len() as u64);
    }

    #[test]
    fn lines_end_as_they_like() {
        check("", &[]);
        check("\n", &[""]);
        check("a\nb", &["a", "b"]);
        check("a\r\n\r\nb\r\n", &["a", "", "b"]);
        check("a\rb\r", &["a\rb"]);
        check("\u{feff}a\n\u{feff}b\n", &["a", "\u{feff}b"]);
        check("\u{feff}", &[""]);
    }

    #[test]
    fn a_file_is_read_on_from_where_it_was_left() {
        let check = |content: &str, offset, expected: Option<&[&str]>| {
            let mut reader = reader(content.as_bytes());
            let continuation = reader.go_to(offset, 7).unwrap();
            let lines = (continuation == Continuation::Yes).then(|| lines(&mut reader));
            assert_eq!(
                lines
                    .as_deref()
                    .map(|lines| lines.iter().map(|l| &**l).collect()),
                expected.map(<[_]>::to_vec)
            );
            if let Some(lines) = expected {
                assert_eq!(reader.line(), 7 + lines.len() as u64);
            }
        };
        check("a\nb\n", 0, Some(&["a", "b"]));
        check("a\nb\n", 2, Some(&["b"]));
        check("a\nb\n", 4, Some(&[]));
        // It ended without an end when it was read.
        check("a", 1, Some(&[]));
        check("a\nb", 1, Some(&["b"]));
        check("a\r\nb", 1, Some(&["b"]));
        check("a\r\n\nb", 1, Some(&["", "b"]));
        // The line before the cursor is not a whole one.
        check("ab\n", 1, None);
        check("a\rb\n", 1, None);
    }

    #[test]
    fn a_line_that_is_too_long_is_skipped_with_its_length() {
        for (long, end) in [
            (9, "\n"),
            (9, "\r\n"),
            (10, "\n"),
            (10, "\r\n"),
            (11, ""),
            (99_999, "\n"),
        ] {
            let content = format!("12345678\n{}{end}next\r\n", "x".repeat(long));
            let mut reader = reader(content.as_bytes()).with_line_max(8);
            assert_eq!(reader.next().unwrap().unwrap().too_long, None);
            let line = reader.next().unwrap().unwrap();
            assert!(line.content.starts_with(b"xxxxxxxx") && line.content.len() <= 10);
            if !end.is_empty() {
                assert_eq!(line.too_long, Some((long + end.len()) as u64));
                let next = reader.next().unwrap().unwrap();
                assert_eq!((next.content, next.too_long), (&b"next"[..], None));
            }
            assert_eq!(reader.next().unwrap(), None);
            assert_eq!(reader.offset(), content.len() as u64);
        }
    }
}
