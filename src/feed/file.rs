//! A file of JSON lines as a feed.
//!
//! Each line is an object with `body` (a string, or any other JSON value, which is passed on as it
//! is written but for the white space) or `body-base64`, and optional `key`, `id` and `headers`
//! (plain values). Lines that hold nothing are skipped, and a line may be as long as [`LINE_MAX`].
//! What is not a message is set aside, by its number, in a file beside the data, before the cursor
//! that steps over it goes out: after a crash it may stand there twice, never not at all.
//!
//! The file is read once, to its end as it is then; what is appended later is read at the next
//! start. Reading blocks, so it happens on tokio's blocking pool.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use acquit_actors::FeedSpec;
use acquit_actors::model::{Outgoing, QueueName};
use acquit_actors::ports::{BadLine, BoxFuture, Feed, FeedBatch, FeedCursor, FeedError};

#[cfg(doc)]
use super::LINE_MAX;
use super::aside::{Aside, TOO_LONG_KEPT};
use super::error::FileFeedError;
use super::head::Head;
use super::line::{self, FedLine, LineError};
use super::reader::{Continuation, Line, LineReader};
use super::slug::slug;

/// A batch is not made larger once its lines have this many bytes: with the line that goes past it,
/// this bounds what a batch holds.
const BATCH_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// A file that is fed into a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileFeedSettings {
    /// The feed's name: names its cursor, its files and the ids it makes. Keep it.
    pub name: String,
    /// The queue that the messages go to.
    pub queue: QueueName,
    /// The file.
    pub path: PathBuf,
    /// The folder of the file of bad lines and of what is remembered of the fed file. Made on use.
    pub set_aside_dir: PathBuf,
}

impl FileFeedSettings {
    /// Gives the file that bad lines are set aside in.
    pub fn set_aside_file(&self) -> PathBuf {
        let name = format!("feed-{}.bad.jsonl", slug(&self.name));
        self.set_aside_dir.join(name)
    }

    fn head_file(&self) -> PathBuf {
        let name = format!("feed-{}.head.json", slug(&self.name));
        self.set_aside_dir.join(name)
    }
}

/// Makes the feed of a file. Nothing is opened before the feeder starts.
pub fn file_feed(settings: FileFeedSettings) -> FeedSpec {
    let settings = Arc::new(settings);
    FeedSpec {
        name: settings.name.clone(),
        queue: settings.queue.clone(),
        make: Arc::new(move || {
            Box::new(FileFeed {
                settings: Arc::clone(&settings),
                reading: None,
            })
        }),
    }
}

/// The feed of a file.
#[derive(Debug)]
struct FileFeed {
    settings: Arc<FileFeedSettings>,
    /// What is open; away while it is read, and gone after an error.
    reading: Option<Reading>,
}

impl Feed for FileFeed {
    fn open(&mut self, cursor: Option<FeedCursor>) -> BoxFuture<'_, Result<(), FeedError>> {
        let settings = Arc::clone(&self.settings);
        Box::pin(async move {
            self.reading = None;
            let open = move || Reading::open(settings, cursor.as_ref());
            self.reading = Some(off_thread(open).await?);
            Ok(())
        })
    }

    fn next(&mut self, max: usize) -> BoxFuture<'_, Result<FeedBatch, FeedError>> {
        Box::pin(async move {
            let mut reading = self.reading.take().ok_or(FileFeedError::NotOpen)?;
            let next = move || reading.next(max).map(|batch| (batch, reading));
            let (batch, reading) = off_thread(next).await?;
            self.reading = Some(reading);
            Ok(batch)
        })
    }
}

async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, FileFeedError> + Send + 'static,
) -> Result<T, FileFeedError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or(Err(FileFeedError::Panicked))
}

/// The open file.
#[derive(Debug)]
struct Reading {
    settings: Arc<FileFeedSettings>,
    slug: String,
    lines: LineReader,
    bad: u64,
}

impl Reading {
    fn open(
        settings: Arc<FileFeedSettings>,
        cursor: Option<&FeedCursor>,
    ) -> Result<Self, FileFeedError> {
        let path = settings.path.clone();
        let failed = |source| FileFeedError::Read {
            path: path.clone(),
            source,
        };
        // Looked at before it is opened: opening a pipe would wait for its other end.
        let data = fs::metadata(&path).map_err(failed)?;
        if !data.is_file() {
            return Err(FileFeedError::NotAFile(path));
        }
        let mut file = File::open(&path).map_err(failed)?;
        match cursor {
            Some(cursor) => recognise(&settings, &mut file, data.len(), cursor)?,
            None => remember(&settings, &mut file)?,
        }
        let (offset, line, bad) = cursor.map_or((0, 0, 0), |c| (c.offset, c.line, c.bad));
        let mut lines = LineReader::new(file);
        if lines.go_to(offset, line).map_err(failed)? == Continuation::Broken {
            return Err(FileFeedError::Broken { path, line });
        }
        Ok(Self {
            slug: slug(&settings.name),
            settings,
            lines,
            bad,
        })
    }

    /// Reads some lines: at most `max` that hold something, and not much more than
    /// [`BATCH_BYTES_MAX`].
    fn next(&mut self, max: usize) -> Result<FeedBatch, FileFeedError> {
        let Self {
            settings,
            slug,
            lines,
            bad: bad_before,
        } = self;
        let start = lines.offset();
        let (mut messages, mut bad) = (Vec::new(), Vec::new());
        let mut aside = AsideOnUse::new(settings.set_aside_file());
        let mut ended = false;
        while messages.len() + bad.len() < max.max(1) && lines.offset() - start < BATCH_BYTES_MAX {
            let number = lines.line() + 1;
            let line = lines.next().map_err(|source| FileFeedError::Read {
                path: settings.path.clone(),
                source,
            })?;
            let Some(line) = line else {
                ended = true;
                break;
            };
            match read(&line) {
                Ok(None) => {}
                Ok(Some(fed)) => messages.push(message(fed, &settings.queue, slug, number)),
                Err(error) => {
                    let error = error.to_string();
                    aside.add(number, &error, &line)?;
                    bad.push(BadLine {
                        line: number,
                        error,
                    });
                }
            }
        }
        aside.commit()?;
        *bad_before += bad.len() as u64;
        Ok(FeedBatch {
            messages,
            cursor: FeedCursor {
                feed: settings.name.clone(),
                offset: lines.offset(),
                line: lines.line(),
                bad: *bad_before,
            },
            bad,
            ended,
        })
    }
}

/// Refuses a file that is not the one the cursor stands in.
fn recognise(
    settings: &FileFeedSettings,
    file: &mut File,
    length: u64,
    cursor: &FeedCursor,
) -> Result<(), FileFeedError> {
    let path = settings.path.clone();
    let (offset, line) = (cursor.offset, cursor.line);
    if length < offset {
        return Err(FileFeedError::Truncated {
            path,
            length,
            offset,
            line,
        });
    }
    match Head::kept(&settings.head_file()).map(|head| head.is_of(file)) {
        Some(Err(source)) => Err(FileFeedError::Read { path, source }),
        Some(Ok(false)) => Err(FileFeedError::Replaced { path, line }),
        Some(Ok(true)) | None => Ok(()),
    }
}

/// Keeps how the file begins, to know it again.
fn remember(settings: &FileFeedSettings, file: &mut File) -> Result<(), FileFeedError> {
    let head = Head::of(file).map_err(|source| FileFeedError::Read {
        path: settings.path.clone(),
        source,
    })?;
    let path = settings.head_file();
    head.keep(&path)
        .map_err(|source| FileFeedError::Write { path, source })
}

/// Reads a line; `None` if it holds nothing.
fn read(line: &Line<'_>) -> Result<Option<FedLine>, LineError> {
    match line.too_long {
        Some(_) => Err(LineError::TooLong),
        None if line.content.trim_ascii().is_empty() => Ok(None),
        None => line::parse(line.content).map(Some),
    }
}

/// Makes the message of a line. An id of ours is the same at every reading.
fn message(fed: FedLine, queue: &QueueName, slug: &str, number: u64) -> Outgoing {
    let id = fed.id.unwrap_or_else(|| format!("{slug}:{number}"));
    let message = Outgoing::new(queue.clone(), fed.body)
        .with_id(id)
        .with_headers(fed.headers);
    match fed.key {
        Some(key) => message.with_key(key),
        None => message,
    }
}

/// The file of bad lines, opened once there is one.
struct AsideOnUse {
    path: PathBuf,
    open: Option<Aside>,
}

impl AsideOnUse {
    fn new(path: PathBuf) -> Self {
        Self { path, open: None }
    }

    fn add(&mut self, number: u64, error: &str, line: &Line<'_>) -> Result<(), FileFeedError> {
        let kept = match line.too_long {
            Some(_) => &line.content[..line.content.len().min(TOO_LONG_KEPT)],
            None => line.content,
        };
        let added = match &mut self.open {
            Some(aside) => aside.add(number, error, kept, line.too_long),
            closed => Aside::open(&self.path)
                .and_then(|aside| closed.insert(aside).add(number, error, kept, line.too_long)),
        };
        added.map_err(|source| self.failed(source))
    }

    fn commit(mut self) -> Result<(), FileFeedError> {
        let committed = self.open.take().map_or(Ok(()), Aside::commit);
        committed.map_err(|source| self.failed(source))
    }

    fn failed(&self, source: io::Error) -> FileFeedError {
        FileFeedError::Write {
            path: self.path.clone(),
            source,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use acquit_actors::model::HeaderValue;
    use std::io::Write;

    /// A feed in a folder of its own.
    struct Bench {
        folder: tempfile::TempDir,
        settings: Arc<FileFeedSettings>,
    }

    impl Bench {
        fn new(content: impl AsRef<[u8]>) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("in.jsonl");
            fs::write(&path, content).unwrap();
            let settings = FileFeedSettings {
                name: "in.jsonl -> q".to_owned(),
                queue: "q".into(),
                path,
                set_aside_dir: folder.path().join("state"),
            };
            Self {
                folder,
                settings: Arc::new(settings),
            }
        }

        fn write(&self, content: &str) {
            fs::write(&self.settings.path, content).unwrap();
        }

        fn append(&self, content: &str) {
            let mut file = fs::OpenOptions::new();
            let mut file = file.append(true).open(&self.settings.path).unwrap();
            file.write_all(content.as_bytes()).unwrap();
        }

        fn open(&self, cursor: Option<&FeedCursor>) -> Reading {
            Reading::open(Arc::clone(&self.settings), cursor).unwrap()
        }

        fn refusal(&self, cursor: Option<&FeedCursor>) -> String {
            let opened = Reading::open(Arc::clone(&self.settings), cursor);
            opened.expect_err("it opened").to_string()
        }

        /// Reads what is behind the cursor, and gives where it ends.
        fn rest(&self, cursor: Option<&FeedCursor>) -> (Vec<String>, FeedCursor) {
            let mut reading = self.open(cursor);
            let batch = reading.next(1000).unwrap();
            assert!(batch.ended);
            (bodies(&batch), batch.cursor)
        }

        fn aside(&self) -> Vec<serde_json::Value> {
            let text = fs::read_to_string(self.settings.set_aside_file()).unwrap_or_default();
            let parse = |line| serde_json::from_str(line).unwrap();
            text.lines().map(parse).collect()
        }
    }

    fn bodies(batch: &FeedBatch) -> Vec<String> {
        let text = |message: &Outgoing| String::from_utf8(message.body.to_vec()).unwrap();
        batch.messages.iter().map(text).collect()
    }

    #[test]
    fn lines_become_messages_with_the_cursor_behind_them() {
        let bench = Bench::new(
            "\u{feff}{\"body\":\"one\",\"id\":\"i\",\"key\":\"k\",\"headers\":{\"h\":1}}\r\n\n  \n{\"body\":[ 2 ]}",
        );
        let mut reading = bench.open(None);
        let batch = reading.next(10).unwrap();
        assert_eq!(bodies(&batch), ["one", "[2]"]);
        assert!(batch.ended && batch.bad.is_empty());
        let length = fs::metadata(&bench.settings.path).unwrap().len();
        let expected = FeedCursor {
            feed: "in.jsonl -> q".to_owned(),
            offset: length,
            line: 4,
            bad: 0,
        };
        assert_eq!(batch.cursor, expected);
        let first = &batch.messages[0];
        assert_eq!(first.id.as_ref().unwrap().as_str(), "i");
        assert_eq!(first.key.as_deref(), Some("k"));
        assert_eq!(first.queue.as_str(), "q");
        assert_eq!(first.headers.get("h"), Some(&HeaderValue::Int(1)));
        assert!(!bench.settings.set_aside_file().exists());
    }

    #[test]
    fn a_line_without_an_id_has_the_same_one_at_every_reading() {
        let bench = Bench::new("\n{\"body\":1}\n{\"body\":1}\n");
        let ids = |bench: &Bench| -> Vec<String> {
            let batch = bench.open(None).next(10).unwrap();
            let id = |m: &Outgoing| m.id.as_ref().unwrap().to_string();
            batch.messages.iter().map(id).collect()
        };
        let first = ids(&bench);
        assert_eq!(first, ids(&bench));
        assert!(first[0].starts_with("in.jsonl-q-") && first[0].ends_with(":2"));
        assert_ne!(first[0], first[1]);
        let mut other = Bench::new("\n{\"body\":1}\n");
        Arc::get_mut(&mut other.settings).unwrap().name = "in.jsonl -> r".to_owned();
        assert_ne!(ids(&other)[0], first[0]);
    }

    #[test]
    fn batches_are_bounded_and_meet_without_a_gap() {
        let lines: String = (0..10)
            .map(|n| format!("{{\"body\":{n}}}\nbad\n"))
            .collect();
        let bench = Bench::new(&lines);
        let (mut seen, mut bad, mut cursor) = (Vec::new(), Vec::new(), None);
        loop {
            // Opened anew for each batch, as after a crash.
            let batch = bench.open(cursor.as_ref()).next(3).unwrap();
            assert!(batch.messages.len() + batch.bad.len() <= 3);
            seen.extend(bodies(&batch));
            bad.extend(batch.bad.iter().map(|bad| bad.line));
            cursor = Some(batch.cursor);
            if batch.ended {
                break;
            }
        }
        let expected: Vec<String> = (0..10).map(|n| n.to_string()).collect();
        assert_eq!(seen, expected);
        assert_eq!(bad, (1..=10).map(|n| n * 2).collect::<Vec<_>>());
        assert_eq!(cursor.unwrap().bad, 10);
    }

    #[test]
    fn a_batch_of_large_lines_is_small() {
        let line = format!("{{\"body\":\"{}\"}}\n", "x".repeat(3 << 20));
        let bench = Bench::new(line.repeat(5));
        let mut reading = bench.open(None);
        let mut sizes = Vec::new();
        loop {
            let batch = reading.next(1000).unwrap();
            sizes.push(batch.messages.len());
            if batch.ended {
                break;
            }
        }
        assert_eq!(sizes, [2, 2, 1]);
    }

    #[test]
    fn bad_lines_are_told_without_content_and_set_aside_with_it() {
        let bench = Bench::new(b"secret\r\n{\"body\":1}\n{\"body\":\"\xff\"}\n");
        let batch = bench.open(None).next(10).unwrap();
        assert_eq!(bodies(&batch), ["1"]);
        let told: Vec<_> = batch.bad.iter().map(|b| (b.line, &*b.error)).collect();
        let first = "not JSON: expected value at byte 1";
        assert_eq!(told, [(1, first), (3, "byte 10 is not UTF-8")]);
        let aside = bench.aside();
        assert_eq!(aside[0]["line"], 1);
        assert_eq!(aside[0]["error"], first);
        assert_eq!(aside[0]["base64"], "c2VjcmV0");
        assert_eq!(aside[1]["base64"], "eyJib2R5Ijoi/yJ9");
        // A crash before the cursor was stored: told and set aside again, never lost.
        bench.open(None).next(10).unwrap();
        assert_eq!(bench.aside().len(), 4);
        assert_eq!(bench.aside()[2], aside[0]);
    }

    #[test]
    fn a_line_that_is_too_long_is_bad_and_the_next_one_is_read() {
        let mut content = vec![b'x'; line::LINE_MAX + 1];
        content.extend_from_slice(b"\n{\"body\":\"next\"}\n");
        let bench = Bench::new(content);
        let mut reading = bench.open(None);
        let batch = reading.next(10).unwrap();
        assert_eq!(batch.bad[0].error, "longer than 16 MiB");
        assert_eq!(bench.aside()[0]["bytes"], line::LINE_MAX as u64 + 2);
        let kept = bench.aside()[0]["base64"].as_str().unwrap().len();
        assert_eq!(kept, TOO_LONG_KEPT.div_ceil(3) * 4);
        assert_eq!(bodies(&reading.next(10).unwrap()), ["next"]);
    }

    #[test]
    fn nothing_goes_on_where_a_bad_line_cannot_be_set_aside() {
        let bench = Bench::new("bad\n");
        let mut reading = bench.open(None);
        fs::create_dir(bench.settings.set_aside_file()).unwrap();
        let error = reading.next(10).unwrap_err().to_string();
        assert!(error.starts_with("cannot write \"/"), "{error}");
        assert!(error.contains("in worker.state-dir"), "{error}");
    }

    #[test]
    fn a_file_that_grew_is_read_on() {
        let bench = Bench::new("{\"body\":1}\n{\"body\":2}");
        let (seen, cursor) = bench.rest(None);
        assert_eq!(seen, ["1", "2"]);
        assert_eq!(bench.rest(Some(&cursor)), (vec![], cursor.clone()));
        bench.append("\n{\"body\":3}\n");
        let (seen, cursor) = bench.rest(Some(&cursor));
        assert_eq!((seen, cursor.line), (vec!["3".to_owned()], 3));
        assert_eq!(bench.rest(Some(&cursor)).0, [] as [&str; 0]);
    }

    #[test]
    fn a_file_that_is_another_one_is_refused_with_a_way_out() {
        let bench = Bench::new("{\"body\":1}\n{\"body\":2}\n");
        let cursor = bench.rest(None).1;
        let check = |content: &str, expected: &str| {
            bench.write(content);
            let error = bench.refusal(Some(&cursor));
            assert!(error.contains(expected), "{error}");
            assert!(error.contains("give `file` of this [[feed]] another name"));
        };
        check("{\"body\":1}\n", "was cut or replaced");
        check("{\"body\":1}\n{\"body\":3}\n", "does not begin as it did");
        fs::remove_file(bench.settings.head_file()).unwrap();
        check("{\"body\":1}\n{\"body\":222}\n", "line 2 of ");
        // From its start it is read whatever it is, and is known from then on.
        assert_eq!(bench.rest(None).0, ["1", "222"]);
    }

    #[test]
    fn what_is_no_file_is_refused_at_once() {
        let bench = Bench::new("");
        fs::remove_file(&bench.settings.path).unwrap();
        assert!(bench.refusal(None).ends_with("there is no such file"));
        fs::create_dir(&bench.settings.path).unwrap();
        assert!(bench.refusal(None).contains("is not a file"));
    }

    #[test]
    fn the_shipped_example_has_no_bad_line() {
        let mut bench = Bench::new("");
        let example = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/tasks.jsonl");
        Arc::get_mut(&mut bench.settings).unwrap().path = example;
        let batch = bench.open(None).next(10_000).unwrap();
        assert!(batch.ended && batch.bad.is_empty());
        assert_eq!(batch.messages.len(), 1429);
    }

    #[tokio::test]
    async fn through_the_port_it_is_read_off_the_thread_and_opened_anew_after_a_failure() {
        let bench = Bench::new("{\"body\":1}\nbad\n{\"body\":2}\n");
        let spec = file_feed((*bench.settings).clone());
        assert_eq!((&*spec.name, spec.queue.as_str()), ("in.jsonl -> q", "q"));
        let mut feed = (spec.make)();
        assert!(feed.next(1).await.is_err());
        feed.open(None).await.unwrap();
        let first = feed.next(1).await.unwrap();
        assert_eq!(bodies(&first), ["1"]);
        // The folder of bad lines goes away: the batch fails, and nothing is open any more.
        fs::create_dir(bench.settings.set_aside_file()).unwrap();
        assert!(feed.next(9).await.unwrap_err().0.contains("cannot write"));
        assert_eq!(feed.next(9).await.unwrap_err().0, "the feed is not open");
        fs::remove_dir(bench.settings.set_aside_file()).unwrap();
        feed.open(Some(first.cursor)).await.unwrap();
        let last = feed.next(9).await.unwrap();
        assert_eq!((bodies(&last), last.bad.len()), (vec!["2".to_owned()], 1));
        assert!(last.ended);
        drop(bench.folder);
    }
}
