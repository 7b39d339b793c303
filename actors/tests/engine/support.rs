//! What the engine's tests share: a handler that does what the message's body says, and waits that
//! are for a condition and bounded.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use acquit_actors::model::{Backoff, Disposition, OnLeaseLost, PartitionId, RejectReason};
use acquit_actors::ports::{DeliveryContext, Handler, HandlerOutcome, handler_fn};
use acquit_actors::testing::ScriptedTransport;
use acquit_actors::{ConsumerSpec, Counts, DrainReport, Engine, EngineEnd, Handle, Snapshot};

pub(crate) const P0: PartitionId = PartitionId(0);

/// Panics are many here and all wanted: those of handlers and injected ones are not printed.
pub(crate) fn quiet_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let text = info.payload_as_str().unwrap_or_default();
            let wanted = ["scripted", "injected", "the source was told"];
            if !wanted.iter().any(|start| text.starts_with(start)) {
                before(info);
            }
        }));
    });
}

/// What handlers did.
#[derive(Clone, Default)]
pub(crate) struct Runs(Arc<Mutex<RunsInner>>);

#[derive(Default)]
pub(crate) struct RunsInner {
    pub(crate) by_message: BTreeMap<u64, u32>,
    pub(crate) started_at: BTreeMap<u64, Vec<tokio::time::Instant>>,
    at_work: BTreeMap<u64, u32>,
    at_work_all: u32,
    pub(crate) at_work_max: u32,
    pub(crate) twice_at_once: u32,
}

impl Runs {
    pub(crate) fn lock(&self) -> MutexGuard<'_, RunsInner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn total(&self) -> u32 {
        self.lock().by_message.values().sum()
    }

    pub(crate) fn of(&self, message: u64) -> u32 {
        self.lock().by_message.get(&message).copied().unwrap_or(0)
    }

    pub(crate) fn at_work(&self) -> u32 {
        self.lock().at_work_all
    }

    /// Notes a run; dropping what it gives notes its end.
    pub(crate) fn enter(&self, message: u64) -> Run {
        let mut inner = self.lock();
        *inner.by_message.entry(message).or_default() += 1;
        let now = tokio::time::Instant::now();
        inner.started_at.entry(message).or_default().push(now);
        let here = inner.at_work.entry(message).or_default();
        *here += 1;
        let twice = *here > 1;
        inner.twice_at_once += u32::from(twice);
        inner.at_work_all += 1;
        inner.at_work_max = inner.at_work_max.max(inner.at_work_all);
        Run {
            runs: self.clone(),
            message,
        }
    }
}

pub(crate) struct Run {
    runs: Runs,
    message: u64,
}

impl Drop for Run {
    fn drop(&mut self) {
        let mut inner = self.runs.lock();
        inner.at_work_all -= 1;
        if let Some(here) = inner.at_work.get_mut(&self.message) {
            *here -= 1;
        }
    }
}

struct PanicsInDrop;

impl Drop for PanicsInDrop {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("scripted: in drop");
        }
    }
}

/// A handler that does what the body says: `ok`, `ok <ms>` (after so long), `fail`, `reject`,
/// `panic`, `panic-in-drop`, `panic-in-call`, `never`, `gone`, `unavailable`, `discard`,
/// `fail-until <attempt>`.
pub(crate) fn obedient(runs: &Runs) -> Handler {
    let runs = runs.clone();
    handler_fn(move |context: DeliveryContext| {
        let body = String::from_utf8_lossy(&context.delivery().body).into_owned();
        let run = runs.enter(context.delivery().sequence.unwrap_or(0));
        assert!(body != "panic-in-call", "scripted: in the call");
        async move {
            let _run = run;
            obey(&body, context.delivery().attempt.get()).await
        }
    })
}

async fn obey(body: &str, attempt: u32) -> HandlerOutcome {
    let (word, number) = body.split_once(' ').unwrap_or((body, "0"));
    let number: u64 = number.parse().unwrap_or(0);
    match word {
        "ok" => {
            if number > 0 {
                // tidy-allow: sleep: the clock of these tests is virtual, or this is the pause of a bounded wait
                tokio::time::sleep(Duration::from_millis(number)).await;
            }
            HandlerOutcome::completed_with("done")
        }
        "fail" => HandlerOutcome::failed("scripted failure"),
        "fail-until" if u64::from(attempt) < number => HandlerOutcome::failed("not yet"),
        "fail-until" => HandlerOutcome::completed(),
        "reject" => HandlerOutcome::rejected("scripted rejection"),
        "panic" => panic!("scripted: in poll"),
        "panic-in-drop" => {
            let _bomb = PanicsInDrop;
            HandlerOutcome::completed()
        }
        "never" => std::future::pending().await,
        "gone" => HandlerOutcome::Gone {
            error: "killed".to_owned(),
        },
        "unavailable" => HandlerOutcome::Unavailable {
            error: "no such program".to_owned(),
        },
        "discard" => HandlerOutcome::Discarded,
        other => HandlerOutcome::rejected(format!("what is {other}?")),
    }
}

/// A consumer of `words` with short backoffs and three attempts.
pub(crate) fn words(handler: Handler) -> ConsumerSpec {
    ConsumerSpec::new("words", "words", handler).with(|spec| {
        spec.retry.max_attempts = 3.try_into().unwrap();
        spec.retry.backoff = Backoff {
            base: Duration::from_secs(2),
            max: Duration::from_secs(30),
        };
    })
}

pub(crate) fn with_dead_letters(spec: ConsumerSpec) -> ConsumerSpec {
    spec.with(|spec| spec.dead_letter_queue = Some("words.dead".into()))
}

pub(crate) fn aborting(spec: ConsumerSpec) -> ConsumerSpec {
    spec.with(|spec| spec.on_channel_lost = OnLeaseLost::Abort)
}

pub(crate) fn start(broker: &ScriptedTransport, spec: ConsumerSpec) -> Handle {
    quiet_panics();
    Engine::new(broker.shared())
        .with_consumer(spec)
        .start_local()
        .unwrap()
}

/// Waits for a condition, for at most ten minutes of virtual time or one of real time.
pub(crate) async fn until(what: &str, is: impl AsyncFn() -> bool) {
    let real = std::time::Instant::now();
    let virtual_start = tokio::time::Instant::now();
    while !is().await {
        let step = virtual_start.elapsed() / 50;
        let step = step.clamp(Duration::from_millis(1), Duration::from_millis(500));
        // tidy-allow: sleep: the clock of these tests is virtual, or this is the pause of a bounded wait
        tokio::time::sleep(step).await;
        let too_long = virtual_start.elapsed() > Duration::from_secs(600)
            || real.elapsed() > Duration::from_secs(60);
        assert!(!too_long, "waited in vain until {what}");
    }
}

pub(crate) async fn counts(handle: &Handle) -> Counts {
    let snapshot = handle.snapshot().await.unwrap();
    check_balanced(&snapshot);
    snapshot.consumers[0].counts
}

/// Every snapshot is balanced, and what is in hand is what is kept.
pub(crate) fn check_balanced(snapshot: &Snapshot) {
    let mut in_hand = 0;
    for consumer in &snapshot.consumers {
        assert!(consumer.counts.is_balanced(), "{:?}", consumer.counts);
        in_hand += consumer.counts.in_hand;
    }
    assert_eq!(in_hand, snapshot.kept.deliveries);
}

/// Waits until nothing is in hand, then checks that nothing is left anywhere.
pub(crate) async fn nothing_left(handle: &Handle) {
    until("nothing is in hand and nothing is kept", async || {
        let snapshot = handle.snapshot().await.unwrap();
        check_balanced(&snapshot);
        snapshot.kept == acquit_actors::Kept::default()
            && snapshot.limiter.taken == 0
            && snapshot.limiter.in_flight_bytes == 0
            && snapshot.limiter.waiting.count == 0
            && snapshot.handlers_alive == 0
    })
    .await;
}

/// Drains, and checks that it was clean.
pub(crate) async fn drain_clean(handle: &Handle, broker: &ScriptedTransport) -> DrainReport {
    let report = report_of(handle.drain_and_wait("done").await);
    assert!(report.clean, "{report}");
    assert_eq!(report.exit_code(), 0);
    assert_eq!(broker.double_settlements(), 0);
    report
}

pub(crate) fn report_of(end: EngineEnd) -> DrainReport {
    match end {
        EngineEnd::Drained(report) => report,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn reject(reason: RejectReason) -> Disposition {
    Disposition::Reject { reason }
}

/// Gives the words of all settlements, in order.
pub(crate) fn told(broker: &ScriptedTransport) -> Vec<&'static str> {
    let settlements = broker.settlements();
    settlements.iter().map(|s| s.disposition.as_str()).collect()
}

pub(crate) fn catch<T>(f: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|_| "panicked".to_owned())
}
