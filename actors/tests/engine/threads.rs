//! With real threads: handlers that nothing can stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use acquit_actors::limiter::LimiterLimits;
use acquit_actors::ports::{BlockingHandler, DeliveryContext, Handler, HandlerOutcome, handler_fn};
use acquit_actors::testing::ScriptedTransport;
use acquit_actors::{ConsumerSpec, Engine, Handle, Prefetch};

use crate::support::{Runs, nothing_left, obedient, quiet_panics, report_of, told, until, words};

/// Blocks its thread until the test lets it go: for ever, as the engine sees it.
#[derive(Clone, Default)]
struct Block(Arc<AtomicBool>);

impl Block {
    fn wait(&self) {
        while !self.0.load(Ordering::Acquire) {
            std::thread::park_timeout(Duration::from_millis(10));
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if Arc::strong_count(&self.0) <= 2 {
            self.0.store(true, Ordering::Release);
        }
    }
}

impl BlockingHandler for Block {
    fn handle(&self, _: &DeliveryContext) -> HandlerOutcome {
        self.wait();
        HandlerOutcome::completed()
    }
}

fn on_threads<T>(test: impl Future<Output = T>) -> T {
    quiet_panics();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(test)
}

fn start(broker: &ScriptedTransport, spec: ConsumerSpec) -> Handle {
    let engine = Engine::new(broker.shared()).with_consumer(spec);
    engine.with_handler_threads(2).start().unwrap()
}

async fn states_are(handle: &Handle, state: &str, count: usize) {
    until(state, async || {
        let all = handle.in_flight(usize::MAX).await.unwrap();
        all.iter().filter(|one| one.state == state).count() == count
    })
    .await;
}

/// A handler that blocks for ever holds up neither settlement nor drain, and the report says so.
fn check_blocked(handler: Handler) {
    on_threads(async {
        let broker = ScriptedTransport::new();
        let handle = start(&broker, words(handler));
        for n in 0..4 {
            let message = acquit_actors::model::Outgoing::new("words".into(), "x");
            broker.push_message(crate::support::P0, message.with_id(format!("m{n}")));
        }
        states_are(&handle, "running", 4).await;
        handle.drain("test").await.unwrap();
        handle.force().await.unwrap();
        let began = Instant::now();
        let report = report_of(handle.wait().await);
        assert!(began.elapsed() < Duration::from_secs(5));
        assert_eq!(told(&broker), ["release"; 4]);
        assert!(report.handlers_alive > 0, "{report}");
        assert_eq!((report.exit_code(), report.abandoned), (1, 0));
        assert_eq!(report.stragglers.len(), 4);
        assert_eq!(broker.double_settlements(), 0);
    });
}

#[test]
fn a_blocking_handler_that_blocks_for_ever_is_named_and_its_delivery_given_back() {
    let block = Block::default();
    check_blocked(Handler::blocking(block.clone()));
    block.0.store(true, Ordering::Release);
}

#[test]
fn an_async_handler_that_blocks_its_thread_is_named_and_its_delivery_given_back() {
    let block = Block::default();
    let inner = block.clone();
    check_blocked(handler_fn(move |_| {
        let block = inner.clone();
        async move {
            block.wait();
            HandlerOutcome::completed()
        }
    }));
    block.0.store(true, Ordering::Release);
}

#[test]
fn a_blocking_handler_that_outlives_its_deadline_keeps_its_permit_until_its_thread_returns() {
    on_threads(async {
        let broker = ScriptedTransport::new();
        let block = Block::default();
        let spec = words(Handler::blocking(block.clone())).with_permits(1);
        let spec = spec.with(|spec| spec.handler_timeout = Duration::from_millis(50));
        let handle = start(&broker, spec);
        broker.push("words", "x");
        broker.settled(1).await;
        assert_eq!(told(&broker), ["requeue"]);
        let snapshot = handle.snapshot().await.unwrap();
        assert_eq!((snapshot.limiter.taken, snapshot.handlers_alive), (1, 1));
        assert_eq!(snapshot.kept.lingering, 1);
        assert_eq!(snapshot.consumers[0].counts.overruns, 1);
        block.0.store(true, Ordering::Release);
        nothing_left(&handle).await;
        let report = report_of(handle.drain_and_wait("test").await);
        assert_eq!(report.exit_code(), 0);
    });
}

#[test]
fn a_redelivery_waits_for_the_thread_of_an_overrun() {
    on_threads(async {
        let broker = ScriptedTransport::new().with_redelivery();
        let runs = Runs::default();
        let (inner, block) = (runs.clone(), Block::default());
        let blocked = block.clone();
        struct Once<F>(F);
        impl<F: Fn(&DeliveryContext) + Send + Sync + 'static> BlockingHandler for Once<F> {
            fn handle(&self, context: &DeliveryContext) -> HandlerOutcome {
                (self.0)(context);
                HandlerOutcome::failed("scripted")
            }
        }
        let handler = Handler::blocking(Once(move |context: &DeliveryContext| {
            let _run = inner.enter(context.delivery().sequence.unwrap());
            blocked.wait();
        }));
        let spec = words(handler).with(|spec| {
            spec.handler_timeout = Duration::from_millis(300);
            spec.retry.backoff.base = Duration::from_millis(10);
        });
        let handle = start(&broker, spec);
        broker.push("words", "x");
        until("the redelivery is here and waits", async || {
            let counts = handle.snapshot().await.unwrap().consumers[0].counts;
            counts.overruns == 1 && counts.in_hand == 1
        })
        .await;
        assert_eq!((runs.total(), runs.at_work()), (1, 1));
        block.0.store(true, Ordering::Release);
        until("it is tried to its end", async || {
            told(&broker).last() == Some(&"reject")
        })
        .await;
        nothing_left(&handle).await;
        assert_eq!((runs.total(), runs.lock().twice_at_once), (3, 0));
        report_of(handle.drain_and_wait("test").await);
    });
}

#[test]
fn ten_thousand_async_stragglers_are_settled_within_a_second_of_the_force() {
    on_threads(async {
        let broker = ScriptedTransport::new();
        let runs = Runs::default();
        let count = 10_000_u32;
        let spec = words(obedient(&runs)).with_permits(count);
        let spec = spec.with(|s| s.prefetch = Prefetch::Count(count.try_into().unwrap()));
        let limits = LimiterLimits {
            permits: count,
            in_flight_bytes: 1 << 30,
            rate: None,
        };
        let engine = Engine::new(broker.shared()).with_consumer(spec);
        let handle = engine.with_limits(limits).start().unwrap();
        for _ in 0..count {
            broker.push("words", "never");
        }
        until("all run", async || runs.lock().by_message.len() == 10_000).await;
        handle.drain("test").await.unwrap();
        until("it drains", async || {
            handle.snapshot().await.unwrap().phase == acquit_actors::model::Phase::Draining
        })
        .await;
        let began = Instant::now();
        handle.force().await.unwrap();
        broker.settled(10_000).await;
        let took = began.elapsed();
        let report = report_of(handle.wait().await);
        assert_eq!((report.released, report.stragglers_total), (10_000, 10_000));
        assert_eq!((report.exit_code(), report.stragglers.len()), (20, 100));
        // With debug assertions the timer wheel walks a whole slot at each disarming. The release
        // build is held to the second; the measurement is `acquit bench drain`.
        let most = if cfg!(debug_assertions) { 10 } else { 1 };
        assert!(took < Duration::from_secs(most), "{took:?}");
    });
}

#[test]
fn load_on_real_threads_leaves_nothing_behind() {
    on_threads(async {
        let broker = ScriptedTransport::new().with_redelivery();
        let runs = Runs::default();
        let spec = words(obedient(&runs)).with_permits(32);
        let spec = spec.with(|spec| spec.retry.backoff.base = Duration::from_millis(1));
        let handle = start(&broker, spec);
        let bodies = [
            "ok",
            "fail-until 2",
            "panic-in-drop",
            "reject",
            "discard",
            "ok 1",
        ];
        for n in 0..6_000 {
            broker.push("words", bodies[n % bodies.len()]);
        }
        until("all are concluded", async || broker.left() == (0, 0)).await;
        nothing_left(&handle).await;
        until("retries came back", async || {
            let acks = told(&broker).iter().filter(|word| **word == "ack").count();
            acks == 4_000 && broker.dead().len() == 2_000
        })
        .await;
        nothing_left(&handle).await;
        let report = report_of(handle.drain_and_wait("test").await);
        assert_eq!((report.exit_code(), broker.double_settlements()), (0, 0));
    });
}
