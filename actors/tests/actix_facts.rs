//! What actix does today when an actor panics or loses its addresses. Supervision is built on
//! these facts: if one of these tests fails after an upgrade, `supervision/` must be read again.

#![expect(clippy::unwrap_used, reason = "a test says what it expects")]

use std::cell::RefCell;
use std::future::{Future, pending, poll_fn};
use std::rc::Rc;
use std::task::Poll;

use actix::prelude::*;
use actix_rt::System;

/// What happened, in order. Rows are `<who>: <what>`.
#[derive(Clone, Default)]
struct Log(Rc<RefCell<Vec<String>>>);

impl Log {
    fn add(&self, what: impl Into<String>) {
        self.0.borrow_mut().push(what.into());
    }

    fn rows(&self) -> Vec<String> {
        self.0.borrow().clone()
    }

    fn has(&self, what: &str) -> bool {
        self.0.borrow().iter().any(|row| row == what)
    }
}

/// A field whose drop says whether the thread was unwinding.
struct Guard(Log);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0
            .add(format!("dropped panicking={}", std::thread::panicking()));
    }
}

#[derive(Clone, Copy, PartialEq)]
enum PanicAt {
    Never,
    Started,
}

struct Probe {
    at: PanicAt,
    log: Log,
    _guard: Guard,
}

impl Probe {
    fn new(at: PanicAt, log: &Log) -> Self {
        Self {
            at,
            log: log.clone(),
            _guard: Guard(log.clone()),
        }
    }
}

impl Actor for Probe {
    type Context = Context<Self>;

    fn started(&mut self, _: &mut Self::Context) {
        self.log.add("started");
        assert!(self.at != PanicAt::Started, "in started");
    }

    fn stopping(&mut self, _: &mut Self::Context) -> Running {
        self.log.add("stopping");
        Running::Stop
    }

    fn stopped(&mut self, _: &mut Self::Context) {
        self.log.add("stopped");
    }
}

impl Supervised for Probe {
    fn restarting(&mut self, _: &mut Self::Context) {
        self.log.add("restarting");
    }
}

#[derive(Message)]
#[rtype(result = "u32")]
struct Ping;

impl Handler<Ping> for Probe {
    type Result = u32;

    fn handle(&mut self, _: Ping, _: &mut Self::Context) -> u32 {
        7
    }
}

#[derive(Message)]
#[rtype(result = "()")]
struct PanicInHandle;

impl Handler<PanicInHandle> for Probe {
    type Result = ();

    fn handle(&mut self, _: PanicInHandle, _: &mut Self::Context) {
        panic!("in handle");
    }
}

#[derive(Message)]
#[rtype(result = "()")]
struct PanicInSpawned;

impl Handler<PanicInSpawned> for Probe {
    type Result = ();

    fn handle(&mut self, _: PanicInSpawned, ctx: &mut Self::Context) {
        ctx.spawn(async { panic!("in a spawned future") }.into_actor(self));
    }
}

#[derive(Message)]
#[rtype(result = "()")]
struct PanicInResponse;

impl Handler<PanicInResponse> for Probe {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: PanicInResponse, _: &mut Self::Context) -> Self::Result {
        Box::pin(async { panic!("in a response future") })
    }
}

#[derive(Message)]
#[rtype(result = "()")]
struct Stop;

impl Handler<Stop> for Probe {
    type Result = ();

    fn handle(&mut self, _: Stop, ctx: &mut Self::Context) {
        ctx.stop();
    }
}

fn on_paused_time<T>(test: impl Future<Output = T>) -> T {
    System::with_tokio_rt(|| {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap()
    })
    .block_on(test)
}

/// Waits, bounded, until the condition holds.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..1_000 {
        if holds() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("never: {what}");
}

fn is_closed<T>(answer: Result<T, MailboxError>) -> bool {
    matches!(answer, Err(MailboxError::Closed))
}

const DIED: [&str; 3] = ["stopping", "stopped", "dropped panicking=true"];

#[test]
fn a_panic_in_handle_kills_the_actor_and_the_hooks_run_while_unwinding() {
    on_paused_time(async {
        let log = Log::default();
        let addr = Probe::new(PanicAt::Never, &log).start();
        let sibling = Probe::new(PanicAt::Never, &Log::default()).start();

        assert!(is_closed(addr.send(PanicInHandle).await));
        assert!(!addr.connected());
        assert!(is_closed(addr.send(Ping).await));
        assert_eq!(log.rows()[1..], DIED);
        assert_eq!(sibling.send(Ping).await.unwrap(), 7, "siblings live on");
    });
}

#[test]
fn messages_queued_behind_a_panic_are_dropped_and_their_askers_see_closed() {
    on_paused_time(async {
        let addr = Probe::new(PanicAt::Never, &Log::default()).start();
        addr.do_send(PanicInHandle);
        assert!(is_closed(addr.send(Ping).await));
    });
}

#[test]
fn a_panic_in_a_spawned_future_kills_the_actor_after_the_reply() {
    on_paused_time(async {
        let log = Log::default();
        let addr = Probe::new(PanicAt::Never, &log).start();
        assert!(addr.send(PanicInSpawned).await.is_ok());
        until("the actor is gone", || !addr.connected()).await;
        assert!(is_closed(addr.send(Ping).await));
        assert_eq!(log.rows()[1..], DIED);
    });
}

#[test]
fn a_panic_in_started_kills_the_actor_and_the_hooks_run() {
    on_paused_time(async {
        let log = Log::default();
        let addr = Probe::new(PanicAt::Started, &log).start();
        assert!(is_closed(addr.send(Ping).await));
        assert_eq!(log.rows()[1..], DIED);
    });
}

#[test]
fn a_panic_in_a_response_future_leaves_the_actor_alive() {
    on_paused_time(async {
        let log = Log::default();
        let addr = Probe::new(PanicAt::Never, &log).start();
        assert!(
            is_closed(addr.send(PanicInResponse).await),
            "the asker sees the same word as for a dead actor"
        );
        assert_eq!(addr.send(Ping).await.unwrap(), 7);
        assert_eq!(log.rows(), ["started"]);
    });
}

#[test]
fn after_the_last_address_is_dropped_a_panic_runs_neither_hook_but_fields_still_drop() {
    on_paused_time(async {
        let log = Log::default();
        let addr = Probe::new(PanicAt::Never, &log).start();
        addr.do_send(PanicInHandle);
        drop(addr);
        until("the field is dropped", || log.has("dropped panicking=true")).await;
        assert_eq!(log.rows(), ["started", "dropped panicking=true"]);
    });
}

#[test]
fn an_actor_whose_last_address_is_dropped_ends() {
    on_paused_time(async {
        let log = Log::default();
        drop(Probe::new(PanicAt::Never, &log).start());
        until("the field is dropped", || {
            log.has("dropped panicking=false")
        })
        .await;
        assert_eq!(
            log.rows(),
            ["started", "stopping", "stopped", "dropped panicking=false"]
        );
    });
}

#[test]
fn a_pending_future_of_its_own_keeps_an_actor_without_addresses_alive() {
    on_paused_time(async {
        struct Holder(#[expect(dead_code, reason = "dropped with the actor")] Guard);
        impl Actor for Holder {
            type Context = Context<Self>;
            fn started(&mut self, ctx: &mut Self::Context) {
                ctx.spawn(pending::<()>().into_actor(self));
            }
        }
        let log = Log::default();
        drop(Holder(Guard(log.clone())).start());
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(log.rows().is_empty());
    });
}

#[test]
fn the_supervisor_of_actix_restarts_after_stop_but_not_after_a_panic() {
    on_paused_time(async {
        let log = Log::default();
        let value = Probe::new(PanicAt::Never, &log);
        let addr = actix::Supervisor::start(move |_| value);

        addr.send(Stop).await.unwrap();
        assert_eq!(addr.send(Ping).await.unwrap(), 7);
        assert!(log.has("restarting"));
        assert!(
            !log.has("dropped panicking=false"),
            "it keeps the same value, half mutated or not"
        );

        assert!(is_closed(addr.send(PanicInHandle).await));
        until("the value is dropped", || log.has("dropped panicking=true")).await;
        assert!(!addr.connected());
        assert!(is_closed(addr.send(Ping).await));
    });
}

#[test]
fn a_context_spawned_by_hand_tells_its_join_handle_of_panic_stop_and_abort() {
    on_paused_time(async {
        let start = |log: &Log| {
            let ctx = Context::<Probe>::new();
            let addr = ctx.address();
            let task = actix::spawn(ctx.into_future(Probe::new(PanicAt::Never, log)));
            (addr, task)
        };

        let (addr, task) = start(&Log::default());
        addr.do_send(PanicInHandle);
        let payload = task.await.unwrap_err().into_panic();
        assert_eq!(payload.downcast_ref::<&str>(), Some(&"in handle"));

        let (addr, task) = start(&Log::default());
        addr.do_send(Stop);
        assert!(task.await.is_ok());

        let log = Log::default();
        let (addr, task) = start(&log);
        addr.send(Ping).await.unwrap();
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        assert_eq!(
            log.rows()[1..],
            ["stopping", "stopped", "dropped panicking=false"]
        );
    });
}

#[test]
fn an_actor_aborted_before_its_first_poll_is_still_started_and_stopped() {
    on_paused_time(async {
        let log = Log::default();
        let ctx = Context::<Probe>::new();
        let _addr = ctx.address();
        let task = actix::spawn(ctx.into_future(Probe::new(PanicAt::Never, &log)));
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        assert_eq!(
            log.rows(),
            ["started", "stopping", "stopped", "dropped panicking=false"]
        );
    });
}

#[test]
fn a_panic_caught_around_the_poll_runs_the_hooks_outside_the_unwinding() {
    on_paused_time(async {
        let log = Log::default();
        let ctx = Context::<Probe>::new();
        let addr = ctx.address();
        let mut actor = Box::pin(ctx.into_future(Probe::new(PanicAt::Never, &log)));
        addr.do_send(PanicInHandle);
        let caught = poll_fn(|cx| {
            let polled =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| actor.as_mut().poll(cx)));
            Poll::Ready(polled.is_err())
        })
        .await;
        assert!(caught);
        assert_eq!(log.rows(), ["started"]);
        drop(actor);
        assert_eq!(
            log.rows()[1..],
            ["stopping", "stopped", "dropped panicking=false"],
            "a hook or a drop that panics here is an ordinary panic, not an abort of the process"
        );
    });
}

#[test]
fn a_mailbox_gives_no_backpressure_to_do_send() {
    on_paused_time(async {
        let addr = Probe::new(PanicAt::Never, &Log::default()).start();
        for _ in 0..10_000 {
            addr.do_send(Ping);
        }
        assert_eq!(addr.send(Ping).await.unwrap(), 7);
    });
}

#[test]
fn run_later_follows_paused_time() {
    on_paused_time(async {
        struct Timed(Log);
        impl Actor for Timed {
            type Context = Context<Self>;
            fn started(&mut self, ctx: &mut Self::Context) {
                ctx.run_later(std::time::Duration::from_secs(600), |timed, _| {
                    timed.0.add("due");
                });
            }
        }
        let log = Log::default();
        let _addr = Timed(log.clone()).start();
        tokio::time::sleep(std::time::Duration::from_secs(599)).await;
        assert!(!log.has("due"));
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        assert!(log.has("due"));
    });
}
