//! What the broker answers, channels that go, redeliveries that are adopted, leases.

use std::time::Duration;

use acquit_actors::Handle;
use acquit_actors::model::{Disposition, OnLeaseLost};
use acquit_actors::testing::{PublishScript, ScriptedTransport, SettleScript, run_virtual};

use crate::support::{
    P0, Runs, aborting, counts, drain_clean, nothing_left, obedient, start, told, until, words,
};

async fn runs_are(runs: &Runs, total: u32) {
    until("handlers run", async || runs.total() == total).await;
}

async fn state_is(handle: &Handle, state: &str) {
    until(state, async || {
        let all = handle.in_flight(10).await.unwrap();
        all.iter().any(|one| one.state == state)
    })
    .await;
}

#[test]
fn a_settlement_that_was_not_sent_is_sent_again_once_and_counts_once() {
    run_virtual(async {
        let broker = ScriptedTransport::new();
        broker.answer_settlements(SettleScript::NotSent(1));
        let runs = Runs::default();
        let handle = start(&broker, words(obedient(&runs)));
        broker.push("words", "ok");
        broker.settled(1).await;
        nothing_left(&handle).await;
        let counts = counts(&handle).await;
        assert_eq!((counts.acked, counts.lost, runs.total()), (1, 0, 1));
        drain_clean(&handle, &broker).await;
    });
}

#[test]
fn a_settlement_that_is_never_sent_is_lost_and_its_source_opened_anew() {
    run_virtual(async {
        let broker = ScriptedTransport::new().with_redelivery();
        broker.answer_settlements(SettleScript::NotSent(3));
        let runs = Runs::default();
        let handle = start(&broker, words(obedient(&runs)));
        broker.push("words", "ok");
        broker.settled(1).await;
        nothing_left(&handle).await;
        let counts = counts(&handle).await;
        assert_eq!((counts.acked, counts.lost), (1, 1));
        assert_eq!(broker.opens(), 2);
        assert_eq!(broker.left(), (0, 0));
        drain_clean(&handle, &broker).await;
    });
}

#[test]
fn a_settlement_that_is_unknown_or_unanswered_is_never_sent_twice() {
    for script in [SettleScript::Unknown, SettleScript::Silent] {
        run_virtual(async {
            let broker = ScriptedTransport::new().with_redelivery();
            broker.answer_settlements(script);
            let runs = Runs::default();
            let handle = start(&broker, words(obedient(&runs)));
            broker.push("words", "ok");
            nothing_left_after(&handle, 1).await;
            let counts = counts(&handle).await;
            assert_eq!((counts.lost, counts.acked), (1, 0), "{script:?}");
            until("it is opened anew", async || broker.opens() == 2).await;
            assert_eq!(told(&broker), ["ack"]);
            broker.answer_settlements(SettleScript::Confirm);
            broker.push("words", "ok");
            broker.settled(2).await;
            nothing_left(&handle).await;
            assert_eq!(runs.total(), 2);
            drain_clean(&handle, &broker).await;
        });
    }
}

async fn nothing_left_after(handle: &Handle, received: u64) {
    until("it was received", async || {
        counts(handle).await.received == received
    })
    .await;
    nothing_left(handle).await;
}

#[test]
fn what_arrives_behind_the_end_of_its_source_does_not_run() {
    run_virtual(async {
        let broker = ScriptedTransport::new().with_redelivery();
        broker.answer_settlements(SettleScript::Unknown);
        let runs = Runs::default();
        let handle = start(&broker, words(obedient(&runs)).with_permits(1));
        broker.push("words", "ok 100");
        broker.push("words", "ok");
        let late = broker.push("words", "ok");
        // Its settlement has the source dropped, and makes room for the third in the same moment.
        broker.settled(1).await;
        broker.answer_settlements(SettleScript::Confirm);
        broker.settled(3).await;
        nothing_left(&handle).await;
        assert_eq!(broker.hand_outs(), 5, "the second and the third twice");
        let counts = counts(&handle).await;
        let seen = (counts.received, counts.acked, counts.lost, counts.stale);
        assert_eq!(seen, (4, 2, 2, 0), "the third was taken once");
        assert_eq!((runs.total(), runs.of(late)), (3, 1));
        assert!(
            broker.settlements()[1..]
                .iter()
                .all(|s| s.generation.0 == 2)
        );
        drain_clean(&handle, &broker).await;
    });
}

#[test]
fn a_channel_lost_before_the_start_costs_no_run() {
    run_virtual(async {
        let broker = ScriptedTransport::new().with_redelivery();
        let runs = Runs::default();
        let handle = start(&broker, words(obedient(&runs)).with_permits(1));
        broker.push("words", "ok 100");
        let waiting = broker.push("words", "ok");
        until("one runs, one waits", async || {
            runs.total() == 1 && counts(&handle).await.in_hand == 2
        })
        .await;
        broker.lose_channel("words", P0);
        broker.settled(2).await;
        nothing_left(&handle).await;
        assert_eq!(runs.of(waiting), 1);
        drain_clean(&handle, &broker).await;
    });
}

#[test]
fn a_redelivery_of_running_work_is_adopted_and_settled_on_the_new_channel() {
    run_virtual(async {
        let broker = ScriptedTransport::new().with_redelivery();
        let runs = Runs::default();
        let handle = start(&broker, words(obedient(&runs)));
        broker.push("words", "ok 5000");
        runs_are(&runs, 1).await;
        broker.lose_channel("words", P0);
        let settled = broker.settled(1).await;
        assert_eq!(settled[0].disposition, Disposition::Ack);
        assert_eq!(settled[0].generation.0, 2);
        nothing_left(&handle).await;
        let counts = counts(&handle).await;
        assert_eq!((counts.adopted, counts.acked, counts.lost), (1, 1, 1));
        assert_eq!(runs.total(), 1);
        drain_clean(&handle, &broker).await;
    });
}

#[test]
fn a_running_attempt_is_adopted_as_often_as_its_channel_goes() {
    run_virtual(async {
        let broker = ScriptedTransport::new().with_redelivery();
        let runs = Runs::default();
        let handle = start(&broker, words(obedient(&runs)));
        for _ in 0..10 {
            broker.push("words", "ok 25000");
        }
        runs_are(&runs, 10).await;
        for round in 1..=5 {
            broker.lose_channel("words", P0);
            until("all are adopted", async || {
                counts(&handle).await.adopted == round * 10
            })
            .await;
        }
        broker.settled(10).await;
        nothing_left(&handle).await;
        assert_eq!((runs.total(), told(&broker)), (10, vec!["ack"; 10]));
        drain_clean(&handle, &broker).await;
    });
}

#[test]
fn with_the_policy_abort_a_lost_channel_ends_the_run_and_the_redelivery_runs_anew() {
    run_virtual(async {
        let broker = ScriptedTransport::new().with_redelivery();
        let runs = Runs::default();
        let handle = start(&broker, aborting(words(obedient(&runs))));
        broker.push("words", "ok 5000");
        runs_are(&runs, 1).await;
        broker.lose_channel("words", P0);
        until("the first run is aborted", async || runs.at_work() == 0).await;
        broker.settled(1).await;
        assert_eq!((runs.total(), runs.lock().twice_at_once), (2, 0));
        nothing_left(&handle).await;
        drain_clean(&handle, &broker).await;
    });
}

#[test]
fn a_channel_lost_while_publishing_is_adopted_too() {
    run_virtual(async {
        let broker = ScriptedTransport::new().with_redelivery();
        let runs = Runs::default();
        broker.answer_publishes(PublishScript::Silent);
        let spec = words(obedient(&runs)).with(|spec| spec.reply_queue = Some("r".into()));
        let handle = start(&broker, spec);
        broker.push("words", "ok");
        state_is(&handle, "publishing").await;
        broker.lose_channel("words", P0);
        until("it is adopted", async || counts(&handle).await.adopted == 1).await;
        broker.answer_publishes(PublishScript::Confirm);
        let settled = broker.settled(1).await;
        assert_eq!(settled[0].generation.0, 2);
        nothing_left(&handle).await;
        assert_eq!((runs.total(), told(&broker)), (1, vec!["ack"]));
        drain_clean(&handle, &broker).await;
    });
}

#[test]
fn a_channel_lost_while_settling_is_told_as_lost_and_settled_at_most_once_a_generation() {
    run_virtual(async {
        let broker = ScriptedTransport::new().with_redelivery();
        broker.answer_settlements(SettleScript::Silent);
        let handle = start(&broker, words(obedient(&Runs::default())));
        broker.push("words", "ok");
        state_is(&handle, "settling").await;
        broker.lose_channel("words", P0);
        nothing_left(&handle).await;
        assert_eq!(counts(&handle).await.lost, 1);
        assert_eq!(told(&broker), ["ack"]);
        drain_clean(&handle, &broker).await;
    });
}

#[test]
fn a_settlement_for_a_lost_channel_is_stale_and_says_so() {
    run_virtual(async {
        let broker = ScriptedTransport::new();
        let runs = Runs::default();
        let handle = start(&broker, words(obedient(&runs)));
        let message = broker.push("words", "ok 1000");
        runs_are(&runs, 1).await;
        // Paused, so that it is not handed out again: only the settlement finds out.
        handle
            .pause(acquit_actors::Target::consumer("words"), "test")
            .await
            .unwrap();
        until("the subscription is quiet", async || {
            handle.snapshot().await.unwrap().consumers[0].partitions[0].subscription == "quiet"
        })
        .await;
        assert!(broker.expire_lease(message));
        nothing_left(&handle).await;
        let counts = counts(&handle).await;
        assert_eq!((counts.lost, counts.stale), (1, 1));
        assert!(told(&broker).is_empty());
        drain_clean(&handle, &broker).await;
    });
}

#[test]
fn a_lease_is_extended_about_each_third_of_it_while_its_delivery_is_held() {
    run_virtual(async {
        let broker = ScriptedTransport::new().with_lease(Duration::from_secs(6));
        let runs = Runs::default();
        let handle = start(&broker, words(obedient(&runs)).with_permits(1));
        let running = broker.push("words", "ok 24000");
        let waiting = broker.push("words", "ok");
        broker.settled(2).await;
        for message in [running, waiting] {
            let extensions = broker.extensions(message);
            assert!((8..=12).contains(&extensions), "{extensions} in 24 s");
        }
        nothing_left(&handle).await;
        drain_clean(&handle, &broker).await;
    });
}

#[test]
fn a_lost_lease_aborts_or_finishes_the_run_as_chosen() {
    for (policy, runs_wanted) in [(OnLeaseLost::Abort, 2), (OnLeaseLost::Finish, 1)] {
        run_virtual(async {
            let broker = ScriptedTransport::new().with_lease(Duration::from_secs(6));
            let runs = Runs::default();
            let spec = words(obedient(&runs)).with(|spec| spec.on_lease_lost = policy);
            let handle = start(&broker, spec.with_permits(2));
            let message = broker.push("words", "ok 8000");
            runs_are(&runs, 1).await;
            assert!(broker.expire_lease(message));
            match policy {
                OnLeaseLost::Abort => {
                    until("the run is aborted", async || runs.at_work() == 0).await;
                }
                OnLeaseLost::Finish => state_is(&handle, "orphaned").await,
            }
            // Without the ledger's answer the redelivery of what finished runs after it.
            broker.settled(1).await;
            assert!(runs.total() >= runs_wanted);
            assert_eq!(runs.lock().twice_at_once, 0);
            assert_eq!(told(&broker), ["ack"]);
            nothing_left(&handle).await;
            drain_clean(&handle, &broker).await;
        });
    }
}

#[test]
fn two_hand_outs_of_one_message_never_run_at_once() {
    run_virtual(async {
        let broker = ScriptedTransport::new().with_redelivery();
        let runs = Runs::default();
        let handle = start(&broker, words(obedient(&runs)).with_permits(4));
        let message = broker.push("words", "ok 8000");
        runs_are(&runs, 1).await;
        // No lease to extend: only the broker knows, and hands it out again.
        assert!(broker.expire_lease(message));
        until("the second is here", async || {
            counts(&handle).await.received == 2
        })
        .await;
        assert_eq!(runs.total(), 1);
        until("all are concluded", async || broker.is_idle()).await;
        nothing_left(&handle).await;
        assert_eq!(runs.lock().twice_at_once, 0);
        assert_eq!(broker.left(), (0, 0));
        drain_clean(&handle, &broker).await;
    });
}

#[test]
fn a_delivery_held_almost_as_long_as_the_broker_allows_is_given_back_where_that_is_wanted() {
    for gives_back in [true, false] {
        run_virtual(async {
            let broker = ScriptedTransport::new();
            let runs = Runs::default();
            let spec = words(obedient(&runs)).with(|spec| {
                spec.hold_limit = Some(Duration::from_secs(10));
                spec.give_back_at_limit = gives_back;
            });
            let handle = start(&broker, spec);
            broker.push("words", "ok 12000");
            let began = tokio::time::Instant::now();
            broker.settled(1).await;
            let held = began.elapsed().as_secs();
            let (word, seconds) = if gives_back {
                ("release", 9)
            } else {
                ("ack", 12)
            };
            assert_eq!((told(&broker), held), (vec![word], seconds));
            if gives_back {
                until("it is stopped", async || runs.at_work() == 0).await;
            }
            drop(handle.drain_and_wait("done").await);
        });
    }
}
