//! Lines to a thread of their own: whoever logs never waits for whoever reads.
//!
//! `tracing-appender` has this too; it was not taken because it says on standard output, where our
//! results go, that it could not end in time, and because nobody hears of the lines it dropped.

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use tracing_subscriber::fmt::MakeWriter;

/// Takes lines and never blocks: when its buffer is full a line is dropped and counted. Each write
/// is one line.
#[derive(Clone)]
pub struct LineWriter {
    sender: SyncSender<Message>,
    dropped: Arc<AtomicU64>,
}

enum Message {
    Line(Vec<u8>),
    Flush(SyncSender<()>),
}

/// Starts the thread that writes to `out`, with room for `lines` lines. What `dropped_line` makes
/// of a number of dropped lines is written in their place.
///
/// # Errors
/// When the thread cannot be started.
pub fn line_writer(
    out: impl Write + Send + 'static,
    lines: usize,
    dropped_line: fn(u64) -> String,
) -> io::Result<(LineWriter, WriterGuard)> {
    let (sender, receiver) = sync_channel(lines);
    let dropped = Arc::new(AtomicU64::new(0));
    let writer = LineWriter {
        sender,
        dropped: Arc::clone(&dropped),
    };
    std::thread::Builder::new()
        .name("acquit-log".to_owned())
        .spawn(move || write_lines(&receiver, out, &dropped, dropped_line))?;
    let guard = WriterGuard {
        writer: writer.clone(),
    };
    Ok((writer, guard))
}

impl LineWriter {
    /// Counts the lines that were dropped.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Waits until what was logged so far is written, at most `limit`. Tells whether it is.
    pub fn flush_within(&self, limit: Duration) -> bool {
        const PAUSE: Duration = Duration::from_millis(5);
        let end = Instant::now() + limit;
        let (done, is_done) = sync_channel(1);
        let mut message = Message::Flush(done);
        loop {
            message = match self.sender.try_send(message) {
                Ok(()) => break,
                Err(TrySendError::Disconnected(_)) => return false,
                Err(TrySendError::Full(message)) => message,
            };
            if Instant::now() >= end {
                return false;
            }
            std::thread::park_timeout(PAUSE);
        }
        let left = end.saturating_duration_since(Instant::now());
        is_done.recv_timeout(left).is_ok()
    }
}

impl fmt::Debug for LineWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LineWriter")
            .field("dropped", &self.dropped())
            .finish_non_exhaustive()
    }
}

impl Write for &LineWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.sender.try_send(Message::Line(line.to_vec())).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LineWriter {
    type Writer = &'a LineWriter;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

/// Writes what is left when it is dropped, for at most a second.
#[derive(Debug)]
#[must_use = "dropped at once, it waits for nothing that is logged later"]
pub struct WriterGuard {
    writer: LineWriter,
}

impl WriterGuard {
    const LIMIT: Duration = Duration::from_secs(1);
}

impl Drop for WriterGuard {
    fn drop(&mut self) {
        self.writer.flush_within(Self::LIMIT);
    }
}

/// The thread: takes what is there, writes it together, and says what was dropped meanwhile.
fn write_lines(
    receiver: &Receiver<Message>,
    mut out: impl Write,
    dropped: &AtomicU64,
    dropped_line: fn(u64) -> String,
) {
    const BATCH_BYTES: usize = 64 * 1024;
    let mut told = 0;
    let mut batch = Vec::new();
    while let Ok(first) = receiver.recv() {
        let mut next = Some(first);
        let mut flushed = Vec::new();
        while let Some(message) = next {
            match message {
                Message::Line(line) => batch.extend_from_slice(&line),
                Message::Flush(done) => flushed.push(done),
            }
            next = (batch.len() < BATCH_BYTES)
                .then(|| receiver.try_recv().ok())
                .flatten();
        }
        let now = dropped.load(Ordering::Relaxed);
        if now > told {
            batch.extend_from_slice(dropped_line(now - told).as_bytes());
            told = now;
        }
        // There is nobody to tell that the log cannot be written: the lines are gone.
        let _ = out.write_all(&batch).and_then(|()| out.flush());
        batch.clear();
        for done in flushed {
            let _ = done.try_send(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Condvar, Mutex, PoisonError};

    /// An output that blocks while its gate is shut, as a full pipe does.
    #[derive(Clone, Default)]
    struct Pipe(Arc<(Mutex<State>, Condvar)>);

    /// Whether the gate is open, and what went through.
    type State = (bool, Vec<u8>);

    impl Pipe {
        fn set_open(&self, open: bool) {
            let mut state = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
            state.0 = open;
            self.0.1.notify_all();
        }

        fn text(&self) -> String {
            let state = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
            String::from_utf8_lossy(&state.1).into_owned()
        }
    }

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let state = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
            let mut state = self
                .0
                .1
                .wait_while(state, |state| !state.0)
                .unwrap_or_else(PoisonError::into_inner);
            state.1.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn dropped_line(lines: u64) -> String {
        format!("dropped {lines}\n")
    }

    #[test]
    fn lines_arrive_whole_and_in_order() {
        let pipe = Pipe::default();
        pipe.set_open(true);
        let (writer, guard) = line_writer(pipe.clone(), 16, dropped_line).expect("started");
        for number in 0..10 {
            (&writer)
                .write_all(format!("{number}\n").as_bytes())
                .expect("never fails");
        }
        drop(guard);
        assert_eq!(pipe.text(), "0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n");
        assert_eq!(writer.dropped(), 0);
    }

    #[test]
    fn a_full_pipe_stalls_nobody_and_what_is_dropped_is_counted_and_told() {
        let pipe = Pipe::default();
        let (writer, guard) = line_writer(pipe.clone(), 8, dropped_line).expect("started");
        let start = Instant::now();
        for _ in 0..100_000 {
            (&writer).write_all(b"line\n").expect("never fails");
        }
        assert!(start.elapsed() < Duration::from_secs(5));
        assert!(!writer.flush_within(Duration::from_millis(20)));
        let dropped = writer.dropped();
        assert!(dropped >= 100_000 - 8 - 64 * 1024 / 5 - 1, "{dropped}");
        pipe.set_open(true);
        assert!(writer.flush_within(Duration::from_secs(5)));
        let text = pipe.text();
        let told = text
            .lines()
            .filter_map(|line| line.strip_prefix("dropped "));
        let told: u64 = told.filter_map(|lines| lines.parse::<u64>().ok()).sum();
        assert_eq!(told, dropped);
        let written = text.lines().filter(|line| *line == "line").count() as u64;
        assert_eq!(written + dropped, 100_000);
        drop(guard);
    }
}
