//! Fail points: the process ends by SIGKILL when a delivery passes a named place for the n-th time.
//!
//! `ACQUIT_FAIL_POINT=settling:3` kills at the third entry into Settling. Names are the states of
//! the settlement, and `publish-sent` and `settle-sent` for the moments after the publisher or the
//! settler was called.

use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The environment variable.
const VARIABLE: &str = "ACQUIT_FAIL_POINT";

static POINT: OnceLock<Option<(String, u64)>> = OnceLock::new();
static PASSED: AtomicU64 = AtomicU64::new(0);

/// Passes a place.
pub(crate) fn pass(place: &str) {
    let point = POINT.get_or_init(|| {
        let text = std::env::var(VARIABLE).ok()?;
        let (name, count) = text.split_once(':')?;
        Some((name.to_owned(), count.parse().ok()?))
    });
    let Some((name, count)) = point else { return };
    if name == place && PASSED.fetch_add(1, Ordering::Relaxed) + 1 == *count {
        let own = std::process::id().to_string();
        // Not by this process's own call: that would need code that is not safe.
        let _ = Command::new("kill").args(["-KILL", &own]).status();
        // The signal is on its way; nothing may happen before it.
        loop {
            std::thread::park();
        }
    }
}
