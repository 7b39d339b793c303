//! The drain: clean, overdue, forced, and in every kind of trouble.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use acquit_actors::model::{OnLeaseLost, Phase};
use acquit_actors::ports::{DeliveryContext, HandlerOutcome, handler_fn};
use acquit_actors::testing::{ScriptedTransport, SettleScript, Victim, run_virtual};
use acquit_actors::{Engine, Handle, Target};

use crate::support::{
    P0, Runs, drain_clean, obedient, quiet_panics, report_of, start, told, until, words,
};

async fn runs_are(runs: &Runs, total: u32) {
    until("handlers run", async || runs.total() == total).await;
}

#[test]
fn a_drain_lets_what_runs_finish_and_gives_the_rest_back_unrun() {
    run_virtual(async {
        let broker = ScriptedTransport::new().with_redelivery();
        let runs = Runs::default();
        let handle = start(&broker, words(obedient(&runs)).with_permits(5));
        for _ in 0..100 {
            broker.push("words", "ok 10000");
        }
        runs_are(&runs, 5).await;
        let report = drain_clean(&handle, &broker).await;
        assert_eq!((report.acked, report.released), (5, 5));
        assert_eq!(report.in_hand, 10, "credit: permits and as many ahead");
        assert_eq!(runs.total(), 5);
        assert_eq!(broker.left(), (95, 0));
        assert!(!report.forced && report.took_ms >= 9_000);
    });
}

#[test]
fn a_drain_that_takes_too_long_names_its_stragglers_and_gives_them_back() {
    run_virtual(async {
        let broker = ScriptedTransport::new();
        let runs = Runs::default();
        let handle = start(&broker, words(obedient(&runs)));
        let message = acquit_actors::model::Outgoing::new("words".into(), "never").with_id("m1");
        broker.push_message(P0, message);
        broker.push("words", "ok 5000");
        runs_are(&runs, 2).await;
        let report = report_of(handle.drain_and_wait("stop").await);
        assert_eq!(report.exit_code(), 20);
        assert!(report.forced && !report.clean);
        let (took, acked) = (report.took_ms, report.acked);
        assert!((22_000..22_500).contains(&took), "{took}");
        assert_eq!((acked, report.released, report.abandoned), (1, 1, 0));
        assert_eq!(report.stragglers.len(), 1);
        let straggler = &report.stragglers[0];
        assert_eq!(straggler.id.as_ref().unwrap().as_str(), "m1");
        assert_eq!(straggler.state, "running");
        assert!(straggler.age_ms >= 22_000);
        assert!(report.to_string().contains("id m1 running"), "{report}");
        assert_eq!(runs.at_work(), 0);
    });
}

#[test]
fn a_second_signal_gives_the_stragglers_back_at_once() {
    for drain_first in [true, false] {
        run_virtual(async {
            let broker = ScriptedTransport::new();
            let runs = Runs::default();
            let handle = start(&broker, words(obedient(&runs)));
            broker.push("words", "never");
            runs_are(&runs, 1).await;
            if drain_first {
                handle.drain("first").await.unwrap();
            }
            handle.force().await.unwrap();
            let began = tokio::time::Instant::now();
            let report = report_of(handle.wait().await);
            assert!(began.elapsed() < Duration::from_millis(500));
            assert_eq!((report.exit_code(), told(&broker)), (20, vec!["release"]));
        });
    }
}

#[test]
fn a_drain_ends_while_paused_and_while_the_broker_is_away() {
    run_virtual(async {
        let broker = ScriptedTransport::new().with_redelivery();
        let runs = Runs::default();
        let handle = start(&broker, words(obedient(&runs)).with_permits(1));
        broker.push("words", "ok 3000");
        broker.push("words", "ok");
        runs_are(&runs, 1).await;
        let target = Target::consumer("words");
        handle.pause(target.clone(), "test").await.unwrap();
        let report = drain_clean(&handle, &broker).await;
        assert_eq!((report.acked, report.released), (1, 1));
        assert!(handle.resume(target).await.is_err(), "it has ended");
    });
    for keep in [true, false] {
        run_virtual(async {
            let broker = ScriptedTransport::new();
            match keep {
                true => broker.keep_opens(true),
                false => broker.refuse_opens(1_000),
            }
            let handle = start(&broker, words(obedient(&Runs::default())));
            tokio::task::yield_now().await;
            let began = tokio::time::Instant::now();
            drain_clean(&handle, &broker).await;
            assert!(began.elapsed() < Duration::from_millis(100));
        });
    }
}

#[test]
fn a_drain_opens_nothing_and_ends_though_its_channel_dies() {
    for policy in [OnLeaseLost::Finish, OnLeaseLost::Abort] {
        run_virtual(async {
            let broker = ScriptedTransport::new().with_redelivery();
            let runs = Runs::default();
            let spec = words(obedient(&runs)).with(|spec| spec.on_channel_lost = policy);
            let handle = start(&broker, spec);
            broker.push("words", "ok 5000");
            runs_are(&runs, 1).await;
            handle.drain("test").await.unwrap();
            until("it drains", async || {
                handle.snapshot().await.unwrap().phase == Phase::Draining
            })
            .await;
            broker.lose_channel("words", P0);
            let report = report_of(handle.wait().await);
            assert!(report.took_ms < 6_000);
            assert_eq!((report.lost, report.abandoned), (1, 0));
            assert_eq!((broker.opens(), broker.left()), (1, (1, 0)));
            assert_eq!(report.exit_code(), 0);
        });
    }
}

/// Lets those have their turn who were woken before now, and nobody else.
async fn one_turn() {
    let mut waited = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut waited, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[test]
fn a_drain_ends_in_whatever_moment_its_channel_dies() {
    for moment in 0..60 {
        run_virtual(async move {
            let broker = ScriptedTransport::new();
            let runs = Runs::default();
            let handle = start(&broker, words(obedient(&runs)));
            broker.push("words", "ok 100");
            runs_are(&runs, 1).await;
            handle.drain("test").await.unwrap();
            // As a task among the actors: the test itself has a turn after many of theirs.
            let dies = tokio::task::spawn_local(async move {
                broker.settled(1).await;
                for _ in 0..moment {
                    one_turn().await;
                }
                broker.lose_channel("words", P0);
            });
            dies.await.unwrap();
            let lost = tokio::time::Instant::now();
            let report = report_of(handle.wait().await);
            let took = lost.elapsed();
            assert!(took < Duration::from_secs(1), "moment {moment}: {took:?}");
            assert_eq!(report.exit_code(), 0, "moment {moment}");
        });
    }
}

#[test]
fn a_drain_ends_though_the_broker_answers_no_settlement() {
    run_virtual(async {
        let broker = ScriptedTransport::new();
        broker.answer_settlements(SettleScript::Silent);
        let handle = start(&broker, words(obedient(&Runs::default())));
        broker.push("words", "ok");
        broker.settled(1).await;
        let began = tokio::time::Instant::now();
        let report = report_of(handle.drain_and_wait("test").await);
        assert!(began.elapsed() < Duration::from_secs(12));
        assert_eq!(report.lost, 1);
        assert_eq!(told(&broker), ["ack"]);
    });
}

#[test]
fn a_drain_survives_the_death_of_its_coordinator_in_each_phase() {
    run_virtual(async {
        let broker = ScriptedTransport::new();
        let runs = Runs::default();
        let handle = start(&broker, words(obedient(&runs)));
        broker.push("words", "never");
        runs_are(&runs, 1).await;
        // The order is said to a coordinator that is about to die.
        handle.inject_panic(Victim::Coordinator).await.unwrap();
        handle.drain("test").await.unwrap();
        let began = tokio::time::Instant::now();
        until("it drains", async || {
            phase(&handle).await == Phase::Draining
        })
        .await;
        tokio::time::timeout(Duration::from_secs(15), handle.wait())
            .await
            .unwrap_err();
        handle.inject_panic(Victim::Coordinator).await.unwrap();
        let report = report_of(handle.wait().await);
        let took = began.elapsed().as_secs();
        assert!(
            (21..=24).contains(&took),
            "the timeout is not begun anew: {took} s"
        );
        assert_eq!((report.exit_code(), report.reason.as_str()), (20, "test"));
        assert_eq!(told(&broker), ["release"]);
    });
    run_virtual(async {
        let broker = ScriptedTransport::new();
        let runs = Runs::default();
        let handle = start(&broker, words(obedient(&runs)));
        broker.push("words", "never");
        runs_are(&runs, 1).await;
        handle.inject_panic(Victim::Coordinator).await.unwrap();
        handle.force().await.unwrap();
        handle.inject_panic(Victim::Coordinator).await.unwrap();
        let report = report_of(handle.wait().await);
        assert_eq!(report.exit_code(), 20);
        assert!(report.took_ms < 5_000);
    });
}

async fn phase(handle: &Handle) -> Phase {
    handle
        .snapshot()
        .await
        .map_or(Phase::Stopped, |snapshot| snapshot.phase)
}

#[test]
fn a_delivery_whose_actor_died_does_not_hold_a_drain_up() {
    run_virtual(async {
        let broker = ScriptedTransport::new();
        let runs = Runs::default();
        let handle = start(&broker, words(obedient(&runs)));
        broker.push("words", "never");
        runs_are(&runs, 1).await;
        let one = &handle.in_flight(1).await.unwrap()[0];
        let victim = Victim::Delivery(one.delivery);
        handle.inject_panic(victim).await.unwrap();
        let report = report_of(handle.drain_and_wait("test").await);
        assert!(report.took_ms < 100, "{report}");
        assert_eq!(told(&broker), ["release"]);
    });
}

#[test]
fn a_graceful_handler_may_finish_within_its_grace() {
    struct Graceful(u64);
    impl acquit_actors::ports::DeliveryHandler for Graceful {
        fn handle(
            &self,
            context: DeliveryContext,
        ) -> impl Future<Output = HandlerOutcome> + Send + 'static {
            let takes = Duration::from_millis(self.0);
            async move {
                context.cancelled().await;
                tokio::time::sleep(takes).await;
                HandlerOutcome::completed()
            }
        }
        fn abort_grace(&self) -> Duration {
            Duration::from_secs(2)
        }
    }
    for (takes, word) in [(1_500, "ack"), (10_000, "release")] {
        run_virtual(async {
            let broker = ScriptedTransport::new();
            let handler = acquit_actors::ports::Handler::new(Graceful(takes));
            let handle = start(&broker, words(handler));
            broker.push("words", "x");
            until("it runs", async || {
                let all = handle.in_flight(1).await.unwrap();
                all.iter().any(|one| one.state == "running")
            })
            .await;
            handle.force().await.unwrap();
            let report = report_of(handle.wait().await);
            assert_eq!(told(&broker), [word]);
            assert!(report.took_ms <= 2_700, "{report}");
        });
    }
}

#[test]
fn a_drain_of_an_idle_engine_is_immediate_and_asking_again_changes_nothing() {
    run_virtual(async {
        quiet_panics();
        let broker = ScriptedTransport::new();
        let handler = handler_fn(|_| async { HandlerOutcome::completed() });
        let engine = Engine::new(broker.shared()).with_consumer(words(handler));
        let handle = engine.start_local().unwrap();
        handle.drain("first").await.unwrap();
        let _ = handle.drain("second").await;
        let report = report_of(handle.wait().await);
        assert_eq!((report.reason.as_str(), report.exit_code()), ("first", 0));
        assert!(handle.snapshot().await.is_err());
        assert_eq!(report_of(handle.wait().await), report);
    });
}
