//! One running command: its end, its signals, and what happens when nobody waits for it any more.

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process_group, waitid,
};
use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{SignalKind, signal};

use super::reaper;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// It exited.
    Code(u8),
    /// A signal killed it.
    Signal(i32),
    /// Somebody else in this process took its exit status, or SIGCHLD is ignored.
    Unknown,
}

/// A running command. Until it is reaped its process id is ours, so that a signal to its group
/// reaches this command and no stranger. Dropped before that, it kills the group and leaves the
/// rest to the reaper; this is safe anywhere and waits for nothing.
#[derive(Debug)]
pub(super) struct Child {
    pid: Pid,
    watch: Option<Watch>,
    is_reaped: bool,
}

#[derive(Debug)]
enum Watch {
    /// A descriptor that is readable once the process has ended.
    Process(AsyncFd<OwnedFd>),
    /// Where there are no such descriptors (an old kernel, none left): at each SIGCHLD we look.
    Signal(tokio::signal::unix::Signal),
}

impl Child {
    /// Takes over a process that was just started.
    pub(super) fn new(pid: Pid) -> Self {
        let mut live = live();
        live.pids.insert(pid);
        if live.is_over {
            let _ = kill_process_group(pid, Signal::KILL);
        }
        drop(live);
        Self {
            pid,
            watch: None,
            is_reaped: false,
        }
    }

    /// Begins to watch for its end.
    pub(super) fn watch(&mut self) -> io::Result<()> {
        self.watch = Some(match process_descriptor(self.pid) {
            Ok(descriptor) => Watch::Process(descriptor),
            Err(_) => Watch::Signal(signal(SignalKind::child())?),
        });
        Ok(())
    }

    /// Waits for its end; it is not reaped by this.
    pub(super) fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.watch {
            Some(Watch::Process(descriptor)) => descriptor.poll_read_ready(cx).map(drop),
            Some(Watch::Signal(signal)) => loop {
                if has_ended(self.pid) {
                    return Poll::Ready(());
                }
                if ready!(signal.poll_recv(cx)).is_none() {
                    return Poll::Ready(());
                }
            },
            None => Poll::Ready(()),
        }
    }

    /// Sends a signal to everything in its group. That all have ended already is no error.
    pub(super) fn signal_group(&self, signal: Signal) {
        debug_assert!(!self.is_reaped, "a reaped id may be a stranger's");
        let _ = kill_process_group(self.pid, signal);
    }

    /// Takes its exit status, once it has ended.
    pub(super) fn reap(&mut self) -> Option<Ended> {
        // Under the lock: what stands in the list is not reaped.
        let mut live = live();
        let ended = try_reap(self.pid);
        self.is_reaped = ended.is_some();
        if self.is_reaped {
            live.pids.remove(&self.pid);
        }
        ended
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.is_reaped {
            return;
        }
        self.signal_group(Signal::KILL);
        if self.reap().is_none() {
            live().pids.remove(&self.pid);
            reaper::hand_over(self.pid);
        }
    }
}

/// The commands that run, of all handlers.
static LIVE: LazyLock<Mutex<Live>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Live {
    pids: HashSet<Pid>,
    is_over: bool,
}

fn live() -> MutexGuard<'static, Live> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Kills the groups of all commands that run, and of any that is started later: for a process that
/// ends without dropping what it has.
pub fn end_all() {
    let mut live = live();
    live.is_over = true;
    for pid in &live.pids {
        let _ = kill_process_group(*pid, Signal::KILL);
    }
}

/// Takes the exit status of a child of ours, without waiting: `None` while it runs.
pub(super) fn try_reap(pid: Pid) -> Option<Ended> {
    match wait_now(pid, WaitIdOptions::EXITED) {
        Ok(None) => None,
        Ok(Some(status)) => Some(ended(&status)),
        Err(_) => Some(Ended::Unknown),
    }
}

fn has_ended(pid: Pid) -> bool {
    !matches!(
        wait_now(pid, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT),
        Ok(None)
    )
}

fn wait_now(pid: Pid, options: WaitIdOptions) -> rustix::io::Result<Option<WaitIdStatus>> {
    loop {
        match waitid(WaitId::Pid(pid), options | WaitIdOptions::NOHANG) {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}

fn ended(status: &WaitIdStatus) -> Ended {
    if let Some(signal) = status.terminating_signal() {
        return Ended::Signal(signal);
    }
    match status.exit_status().map(u8::try_from) {
        Some(Ok(code)) => Ended::Code(code),
        _ => Ended::Unknown,
    }
}

#[cfg(target_os = "linux")]
fn process_descriptor(pid: Pid) -> io::Result<AsyncFd<OwnedFd>> {
    use rustix::process::{PidfdFlags, pidfd_open};
    use tokio::io::Interest;

    use super::pipes::registered;

    registered(pidfd_open(pid, PidfdFlags::empty())?, Interest::READABLE)
}

#[cfg(not(target_os = "linux"))]
fn process_descriptor(_pid: Pid) -> io::Result<AsyncFd<OwnedFd>> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn without_process_descriptors_the_end_is_seen_all_the_same() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(ends_are_seen());
    }

    #[expect(
        clippy::zombie_processes,
        reason = "the test is that ours waits for it"
    )]
    async fn ends_are_seen() {
        for (program, expected) in [("true", 0), ("false", 1)] {
            let started = Command::new(program).spawn().expect("it starts");
            let pid = Pid::from_child(&started);
            let mut child = Child::new(pid);
            child.watch = Some(Watch::Signal(
                signal(SignalKind::child()).expect("signals work"),
            ));
            std::future::poll_fn(|cx| child.poll_ended(cx)).await;
            assert_eq!(child.reap(), Some(Ended::Code(expected)));
        }
    }
}
