//! Our ends of a command's pipes: written and read without ever waiting for the command.

use std::io;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A fresh pipe takes at least this much at once, on every system and at every limit.
const TAKEN_AT_ONCE: usize = 4096;

/// How much is read by one call.
const READ_AT_ONCE: usize = 16 * 1024;

/// Opens a pipe that no other program we start can inherit: its read end and its write end.
pub(super) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(pipe_with(PipeFlags::CLOEXEC)?)
}

fn without_waiting(end: OwnedFd) -> io::Result<OwnedFd> {
    fcntl_setfl(&end, OFlags::NONBLOCK)?;
    Ok(end)
}

/// Tells the runtime of a descriptor.
#[expect(
    deprecated,
    reason = "deprecated for types that can change or close their descriptor under the runtime; \
              an OwnedFd cannot, and the replacement is unsafe"
)]
pub(super) fn registered(descriptor: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(descriptor, interest)
}

/// Writes bytes into a command that may never read them.
#[derive(Debug)]
pub(super) struct Writer {
    rest: Bytes,
    end: Option<AsyncFd<OwnedFd>>,
}

impl Writer {
    /// Puts as much as fits into a fresh pipe, before the command is started: for most bodies that
    /// is all, and the end is closed.
    pub(super) fn fill(end: OwnedFd, mut bytes: Bytes) -> io::Result<Self> {
        let mut open = None;
        if bytes.len() <= TAKEN_AT_ONCE {
            if !bytes.is_empty() {
                rustix::io::write(&end, &bytes)?;
            }
        } else {
            let end = without_waiting(end)?;
            bytes.advance(rustix::io::write(&end, &bytes)?);
            if !bytes.is_empty() {
                open = Some(registered(end, Interest::WRITABLE)?);
            }
        }
        Ok(Self {
            rest: bytes,
            end: open,
        })
    }

    /// Goes on writing. A command that does not want the rest (it has closed its end, or ended) is
    /// no failure: its exit code is its word.
    pub(super) fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while let Some(end) = &self.end {
            let mut ready = match ready!(end.poll_write_ready(cx)) {
                Ok(ready) => ready,
                Err(_) => break,
            };
            match ready.try_io(|end| Ok(rustix::io::write(end, &self.rest)?)) {
                Ok(Ok(written)) => self.rest.advance(written),
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(_closed)) => break,
                Err(_would_wait) => continue,
            }
            if self.rest.is_empty() {
                break;
            }
        }
        self.close();
        Poll::Ready(())
    }

    /// Closes our end: nothing more is written.
    pub(super) fn close(&mut self) {
        self.end = None;
        self.rest = Bytes::new();
    }
}

/// Reads what a command writes, for as long as anyone holds the other end.
#[derive(Debug)]
pub(super) struct Reader(Option<AsyncFd<OwnedFd>>);

impl Reader {
    pub(super) fn new(end: OwnedFd) -> io::Result<Self> {
        let end = registered(without_waiting(end)?, Interest::READABLE)?;
        Ok(Self(Some(end)))
    }

    /// Tells whether the end was reached.
    pub(super) fn is_closed(&self) -> bool {
        self.0.is_none()
    }

    /// Reads all that is there and hands it on until the sink breaks; ready at the end. The
    /// runtime's budget keeps a command that never stops writing from holding the thread.
    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        mut sink: impl FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Poll<()> {
        let mut buffer = [0; READ_AT_ONCE];
        while let Some(end) = &self.0 {
            let mut ready = match ready!(end.poll_read_ready(cx)) {
                Ok(ready) => ready,
                Err(_) => break,
            };
            match ready.try_io(|end| Ok(rustix::io::read(end, &mut buffer)?)) {
                Ok(Ok(0)) => break,
                Ok(Ok(read)) => {
                    if sink(&buffer[..read]).is_break() {
                        break;
                    }
                }
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(_)) => break,
                Err(_would_wait) => {}
            }
        }
        self.0 = None;
        Poll::Ready(())
    }

    /// Reads what is there at this moment, at most `max` bytes, and closes our end.
    pub(super) fn read_rest(
        &mut self,
        mut max: usize,
        mut sink: impl FnMut(&[u8]) -> ControlFlow<()>,
    ) {
        let Some(end) = self.0.take() else { return };
        let mut buffer = [0; READ_AT_ONCE];
        while let Ok(read @ 1..) = rustix::io::read(end.get_ref(), &mut buffer) {
            max = max.saturating_sub(read);
            if sink(&buffer[..read]).is_break() || max == 0 {
                return;
            }
        }
    }

    /// Closes our end: a command that goes on writing gets SIGPIPE.
    pub(super) fn close(&mut self) {
        self.0 = None;
    }
}
