//! Waits for killed commands whose attempt was dropped, so that none stays a zombie.
//!
//! A thread and not a task: an attempt is also dropped when its runtime ends. It lives only while
//! it has something to wait for.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::process::Pid;

use super::child::try_reap;

static WAITING: Mutex<Waiting> = Mutex::new(Waiting {
    pids: Vec::new(),
    has_thread: false,
});

struct Waiting {
    pids: Vec<Pid>,
    has_thread: bool,
}

/// A killed process ends within a millisecond or so; one that does not (it hangs in the kernel) is
/// looked at less and less often.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// Takes over a child that was sent SIGKILL and has not ended yet.
pub(super) fn hand_over(pid: Pid) {
    let mut waiting = lock();
    waiting.pids.push(pid);
    if waiting.has_thread {
        return;
    }
    match thread::Builder::new()
        .name("acquit-reaper".to_owned())
        .spawn(run)
    {
        Ok(_detached) => waiting.has_thread = true,
        // The next one that is handed over starts it.
        Err(error) => tracing::warn!(%error, "cannot start the reaper of killed commands"),
    }
}

fn run() {
    let mut pause = PAUSE_MIN;
    loop {
        {
            let mut waiting = lock();
            let before = waiting.pids.len();
            waiting.pids.retain(|pid| try_reap(*pid).is_none());
            if waiting.pids.is_empty() {
                waiting.has_thread = false;
                return;
            }
            if waiting.pids.len() < before {
                pause = PAUSE_MIN;
            }
        }
        thread::park_timeout(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

fn lock() -> MutexGuard<'static, Waiting> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}
