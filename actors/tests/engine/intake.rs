//! The consumer: opening, pausing, scaling, rates, fairness.

use std::time::Duration;

use acquit_actors::limiter::{LimiterLimits, Rate};
use acquit_actors::model::{OnLeaseLost, Outgoing, PartitionId};
use acquit_actors::testing::{ScriptedTransport, Victim, run_virtual};
use acquit_actors::{CommandError, Engine, Handle, Target};

use crate::support::{
    P0, Runs, check_balanced, counts, drain_clean, nothing_left, obedient, start, told, until,
    words,
};

async fn subscription_is(handle: &Handle, word: &str) {
    until(word, async || {
        handle.snapshot().await.unwrap().consumers[0].partitions[0].subscription == word
    })
    .await;
}

#[test]
fn an_open_that_is_refused_for_a_while_is_tried_until_it_succeeds() {
    run_virtual(async {
        let broker = ScriptedTransport::new();
        broker.refuse_opens(6);
        let handle = start(&broker, words(obedient(&Runs::default())));
        broker.push("words", "ok");
        broker.settled(1).await;
        assert_eq!(broker.opens(), 7);
        subscription_is(&handle, "subscribed").await;
        let snapshot = handle.snapshot().await.unwrap();
        assert_eq!(snapshot.consumers[0].partitions[0].trouble, None);
        drain_clean(&handle, &broker).await;
    });
}

#[test]
fn a_source_that_panics_is_opened_anew_and_its_deliveries_are_adopted() {
    run_virtual(async {
        let broker = ScriptedTransport::new().with_redelivery();
        let runs = Runs::default();
        let handle = start(&broker, words(obedient(&runs)));
        for _ in 0..5 {
            broker.push("words", "ok 10000");
        }
        until("all run", async || runs.total() == 5).await;
        broker.panic_source("words", P0);
        broker.settled(5).await;
        nothing_left(&handle).await;
        assert_eq!((runs.total(), broker.opens()), (5, 2));
        assert_eq!(counts(&handle).await.adopted, 5);
        drain_clean(&handle, &broker).await;
    });
}

#[test]
fn a_pause_cancels_the_subscription_and_gives_back_what_waits_after_a_minute() {
    run_virtual(async {
        let broker = ScriptedTransport::new().with_redelivery();
        let runs = Runs::default();
        let handle = start(&broker, words(obedient(&runs)).with_permits(1));
        broker.push("words", "ok 5000");
        broker.push("words", "ok");
        broker.push("words", "ok");
        until("one runs", async || runs.total() == 1).await;
        let words = Target::consumer("words");
        handle.pause(words.clone(), "lunch").await.unwrap();
        handle.pause(words.clone(), "dinner").await.unwrap();
        let paused = tokio::time::Instant::now();
        subscription_is(&handle, "quiet").await;
        let snapshot = handle.snapshot().await.unwrap();
        let reason = snapshot.consumers[0].partitions[0].paused.clone();
        assert_eq!(reason.as_deref(), Some("lunch"), "the first pause stands");
        broker.push("words", "ok");
        broker.settled(1).await;
        assert_eq!(told(&broker), ["ack"], "what runs goes on");
        broker.settled(2).await;
        let waited = paused.elapsed().as_secs();
        assert!((59..=61).contains(&waited), "{waited} s");
        nothing_left(&handle).await;
        assert_eq!(told(&broker), ["ack", "release"]);
        assert_eq!(runs.total(), 1);
        handle.resume(words.clone()).await.unwrap();
        handle.resume(words).await.unwrap();
        broker.settled(5).await;
        assert_eq!(runs.total(), 4);
        nothing_left(&handle).await;
        drain_clean(&handle, &broker).await;
    });
}

#[test]
fn a_channel_lost_while_paused_is_told_at_once_and_a_resume_opens_anew() {
    for policy in [OnLeaseLost::Finish, OnLeaseLost::Abort] {
        run_virtual(async move {
            let broker = ScriptedTransport::new().with_redelivery();
            let runs = Runs::default();
            let spec = words(obedient(&runs)).with(|spec| spec.on_channel_lost = policy);
            let handle = start(&broker, spec);
            broker.push("words", "ok 5000");
            until("one runs", async || runs.total() == 1).await;
            let words = Target::consumer("words");
            handle.pause(words.clone(), "test").await.unwrap();
            subscription_is(&handle, "quiet").await;
            broker.lose_channel("words", P0);
            subscription_is(&handle, "waiting").await;
            let finishes = policy == OnLeaseLost::Finish;
            if !finishes {
                until("it is aborted", async || runs.at_work() == 0).await;
            }
            assert_eq!(broker.opens(), 1, "it is paused still");
            handle.resume(words).await.unwrap();
            let settled = broker.settled(1).await;
            assert_eq!(settled[0].generation.0, 2);
            nothing_left(&handle).await;
            let seen = counts(&handle).await;
            let expected = if finishes { (1, 1) } else { (0, 2) };
            assert_eq!((seen.adopted, runs.total()), expected);
            assert_eq!(seen.stale, 0);
            drain_clean(&handle, &broker).await;
        });
    }
}

#[test]
fn a_credit_that_changes_while_its_source_opens_counts_besides_the_one_it_opens_with() {
    run_virtual(async {
        let broker = ScriptedTransport::new().without_answers();
        broker.keep_opens(true);
        let handle = start(&broker, words(obedient(&Runs::default())).with_permits(16));
        subscription_is(&handle, "opening").await;
        handle.scale("words", 1.try_into().unwrap()).await.unwrap();
        broker.keep_opens(false);
        subscription_is(&handle, "subscribed").await;
        for number in 0..40 {
            let message = Outgoing::new("words".into(), "ok").with_id(format!("m{number}"));
            broker.push_message(P0, message);
        }
        broker.settled(40).await;
        nothing_left(&handle).await;
        // Twice 16 and twice 1: so many of the last settlements may not have been applied yet.
        let entries = handle.snapshot().await.unwrap().ledger_entries;
        assert_eq!(entries, 34);
        drain_clean(&handle, &broker).await;
    });
}

#[test]
fn a_short_pause_gives_nothing_back() {
    run_virtual(async {
        let broker = ScriptedTransport::new().with_redelivery();
        let runs = Runs::default();
        let handle = start(&broker, words(obedient(&runs)).with_permits(1));
        for _ in 0..20 {
            broker.push("words", "ok 100");
        }
        for _ in 0..10 {
            let words = Target::consumer("words");
            handle.pause(words.clone(), "test").await.unwrap();
            handle.resume(words).await.unwrap();
        }
        broker.settled(20).await;
        assert_eq!(told(&broker), ["ack"; 20]);
        nothing_left(&handle).await;
        drain_clean(&handle, &broker).await;
    });
}

#[test]
fn a_pause_survives_the_consumers_restart() {
    run_virtual(async {
        let broker = ScriptedTransport::new().with_redelivery();
        let runs = Runs::default();
        let handle = start(&broker, words(obedient(&runs)));
        subscription_is(&handle, "subscribed").await;
        let words = Target::consumer("words");
        handle
            .inject_panic(Victim::Consumer("words".into(), P0))
            .await
            .unwrap();
        // Said while no actor is there to hear it.
        handle.pause(words.clone(), "test").await.unwrap();
        broker.push("words", "ok");
        for _ in 0..2 {
            until("the consumer is back", async || {
                is_up(&handle, "words.0").await
            })
            .await;
            subscription_is(&handle, "waiting").await;
            handle
                .inject_panic(Victim::Consumer("words".into(), P0))
                .await
                .unwrap();
        }
        until("the consumer is back", async || {
            is_up(&handle, "words.0").await
        })
        .await;
        assert_eq!(runs.total(), 0);
        handle.resume(words).await.unwrap();
        broker.settled(1).await;
        drain_clean(&handle, &broker).await;
    });
}

async fn is_up(handle: &Handle, name: &str) -> bool {
    use acquit_actors::supervision::NodeState;
    let tree = handle.tree().await.unwrap().unwrap();
    let consumers = tree.children.iter().find(|c| c.name == "consumers");
    let child = consumers.and_then(|c| c.children.iter().find(|c| c.name == name));
    child.is_some_and(|child| child.state == NodeState::Running)
}

#[test]
fn scaling_is_live_and_never_exceeded() {
    run_virtual(async {
        let broker = ScriptedTransport::new();
        let runs = Runs::default();
        let handle = start(&broker, words(obedient(&runs)).with_permits(4));
        for _ in 0..2_000 {
            broker.push("words", "ok 10");
        }
        let mut settled = 0;
        for permits in [4_u32, 16, 2, 40, 1, 8] {
            handle
                .scale("words", permits.try_into().unwrap())
                .await
                .unwrap();
            until("no more than so many run", async || {
                runs.at_work() <= permits
            })
            .await;
            runs.lock().at_work_max = 0;
            settled += 100;
            broker.settled(settled).await;
            let most = runs.lock().at_work_max;
            assert!(most <= permits, "{most} of {permits}");
            assert_eq!(most, permits, "all permits are used");
        }
        broker.settled(2_000).await;
        nothing_left(&handle).await;
        let unknown = handle.scale("wrds", 1.try_into().unwrap()).await;
        assert!(matches!(unknown, Err(CommandError::NoSuchConsumer { .. })));
        drain_clean(&handle, &broker).await;
    });
}

#[test]
fn a_rate_is_kept_and_can_be_lifted() {
    run_virtual(async {
        let broker = ScriptedTransport::new();
        let runs = Runs::default();
        let rate: Rate = "10/s burst 1".parse().unwrap();
        let handle = start(
            &broker,
            words(obedient(&runs)).with(|s| s.rate = Some(rate)),
        );
        for _ in 0..1_000 {
            broker.push("words", "ok");
        }
        let began = tokio::time::Instant::now();
        broker.settled(51).await;
        let took = began.elapsed().as_secs_f64();
        assert!((4.9..5.3).contains(&took), "{took}");
        handle.set_rate(Some("words".into()), None).await.unwrap();
        broker.settled(1_000).await;
        assert!(began.elapsed() < Duration::from_secs(6));
        drain_clean(&handle, &broker).await;
    });
}

#[test]
fn a_busy_partition_does_not_starve_another() {
    run_virtual(async {
        let broker = ScriptedTransport::new();
        let runs = Runs::default();
        let spec = words(obedient(&runs)).with_partitions(2).with_permits(4);
        let handle = start(&broker, spec);
        let message = || Outgoing::new("words".into(), "ok 100");
        for _ in 0..400 {
            broker.push_message(P0, message());
        }
        until("the first is busy", async || runs.total() > 8).await;
        let few: Vec<u64> = (0..20)
            .map(|_| broker.push_message(PartitionId(1), message()))
            .collect();
        let began = tokio::time::Instant::now();
        until("the few are done", async || {
            let settled = broker.settlements();
            few.iter().all(|n| settled.iter().any(|s| s.message == *n))
        })
        .await;
        // Half of the permits at least: 20 of 100 ms, 2 at a time.
        assert!(began.elapsed() < Duration::from_millis(1_500));
        broker.settled(420).await;
        drain_clean(&handle, &broker).await;
    });
}

#[test]
fn the_limits_of_the_process_hold_over_all_consumers() {
    run_virtual(async {
        let broker = ScriptedTransport::new();
        let runs = Runs::default();
        let limits = LimiterLimits {
            permits: 3,
            in_flight_bytes: 1 << 20,
            rate: None,
        };
        let mut engine = Engine::new(broker.shared()).with_limits(limits);
        for name in ["a", "b", "c"] {
            let spec = acquit_actors::ConsumerSpec::new(name, name, obedient(&runs));
            engine = engine.with_consumer(spec.with_permits(10));
            for _ in 0..50 {
                broker.push(name, "ok 10");
            }
        }
        let handle = engine.start_local().unwrap();
        broker.settled(150).await;
        assert_eq!(runs.lock().at_work_max, 3);
        check_balanced(&handle.snapshot().await.unwrap());
        drain_clean(&handle, &broker).await;
    });
}

#[test]
fn a_body_over_the_whole_byte_budget_is_rejected_by_name() {
    run_virtual(async {
        let broker = ScriptedTransport::new();
        let runs = Runs::default();
        let limits = LimiterLimits {
            permits: 3,
            in_flight_bytes: 10,
            rate: None,
        };
        let handle = Engine::new(broker.shared())
            .with_limits(limits)
            .with_consumer(words(obedient(&runs)))
            .start_local()
            .unwrap();
        broker.push("words", "12345678901");
        broker.push("words", "ok");
        broker.settled(2).await;
        let mut words = told(&broker);
        words.sort_unstable();
        assert_eq!((words, runs.total()), (vec!["ack", "reject"], 1));
        nothing_left(&handle).await;
        drain_clean(&handle, &broker).await;
    });
}
