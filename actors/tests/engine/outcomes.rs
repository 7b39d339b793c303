//! From each outcome to what the broker is told.

use std::time::Duration;

use acquit_actors::model::{Disposition, RejectReason, names};
use acquit_actors::testing::{PublishScript, ScriptedTransport, run_virtual};

use crate::support::{
    Runs, counts, drain_clean, nothing_left, obedient, reject, start, told, until,
    with_dead_letters, words,
};

/// One message with this body, one run or more; what the broker is told in all.
fn check(body: &'static str, told_in_all: &[&str], reason: Option<&str>) {
    run_virtual(async {
        let broker = ScriptedTransport::new().with_redelivery();
        let runs = Runs::default();
        let spec = with_dead_letters(words(obedient(&runs)));
        let handle = start(&broker, spec);
        broker.push("words", body);
        broker.settled(told_in_all.len()).await;
        nothing_left(&handle).await;
        assert_eq!(told(&broker), told_in_all, "{body}");
        let letters = broker.published();
        let reasons: Vec<_> = letters
            .iter()
            .map(|letter| letter.headers.get(names::REASON).unwrap().as_str())
            .collect();
        let expected: Vec<Option<&str>> = reason.iter().map(|reason| Some(*reason)).collect();
        assert_eq!(reasons, expected, "{body}");
        drain_clean(&handle, &broker).await;
    });
}

#[test]
fn each_outcome_has_its_disposition() {
    let exhausted = ["requeue", "requeue", "reject"];
    check("ok", &["ack"], None);
    check("discard", &["ack"], None);
    check("reject", &["reject"], Some("rejected"));
    check("fail", &exhausted, Some("exhausted"));
    check("gone", &exhausted, Some("exhausted"));
    check("panic", &exhausted, Some("exhausted"));
    check("panic-in-drop", &exhausted, Some("exhausted"));
    check("panic-in-call", &exhausted, Some("exhausted"));
    check("never", &exhausted, Some("exhausted"));
    check("fail-until 3", &["requeue", "requeue", "ack"], None);
}

#[test]
fn without_a_dead_letter_queue_a_rejection_is_the_brokers_to_keep() {
    run_virtual(async {
        let broker = ScriptedTransport::new().with_redelivery();
        let handle = start(&broker, words(obedient(&Runs::default())));
        let rejected = broker.push("words", "reject");
        let failed = broker.push("words", "fail");
        broker.settled(4).await;
        let all = broker.settlements();
        assert_eq!(all[0].disposition, reject(RejectReason::Handler));
        assert_eq!(all[3].disposition, reject(RejectReason::Exhausted));
        assert_eq!(broker.dead(), [rejected, failed]);
        assert!(broker.publish_tries().is_empty());
        drain_clean(&handle, &broker).await;
    });
}

#[test]
fn a_reply_is_confirmed_before_its_delivery_is_acked() {
    run_virtual(async {
        let broker = ScriptedTransport::new();
        let runs = Runs::default();
        let spec = words(obedient(&runs)).with(|spec| {
            spec.reply_queue = Some("words.results".into());
        });
        broker.answer_publishes(PublishScript::Silent);
        let handle = start(&broker, spec);
        broker.push("words", "ok");
        until("the reply is on its way", async || {
            broker.publish_tries().len() == 1
        })
        .await;
        assert_eq!(told(&broker).len(), 0);
        assert_eq!(counts(&handle).await.in_hand, 1);
        broker.answer_publishes(PublishScript::Confirm);
        broker.settled(1).await;
        assert_eq!(broker.settlements()[0].disposition, Disposition::Ack);
        let replies = broker.published();
        assert_eq!(replies.len(), 1);
        assert_eq!(replies[0].queue.as_str(), "words.results");
        assert_eq!(replies[0].body, "done");
        assert_eq!(runs.total(), 1);
        drain_clean(&handle, &broker).await;
    });
}

#[test]
fn a_handler_that_cannot_be_started_costs_no_attempt_and_no_storm() {
    for messages in [1_u32, 50] {
        run_virtual(async {
            let broker = ScriptedTransport::new().with_redelivery();
            let runs = Runs::default();
            let handle = start(&broker, words(obedient(&runs)).with_permits(1));
            for _ in 0..messages {
                broker.push("words", "unavailable");
            }
            tokio::time::timeout(Duration::from_secs(60), std::future::pending::<()>())
                .await
                .unwrap_err();
            let most = runs.lock().by_message.values().copied().max().unwrap();
            assert!((2..=20).contains(&most), "{most} runs of one message");
            assert!(
                broker.hand_outs() <= u64::from(messages) + 20,
                "{}",
                broker.hand_outs()
            );
            assert!(told(&broker).iter().all(|word| *word == "release"));
            let status = handle.snapshot().await.unwrap();
            let trouble = status.consumers[0].partitions[0].trouble.clone();
            assert_eq!(trouble.as_deref(), Some("no such program"));
            let report = drain_clean(&handle, &broker).await;
            assert_eq!(report.requeued + report.rejected, 0);
            assert_eq!(broker.left(), (messages as usize, 0));
        });
    }
}

#[test]
fn a_timed_out_handler_is_gone_before_its_delivery_is_settled() {
    run_virtual(async {
        let broker = ScriptedTransport::new();
        let runs = Runs::default();
        let handle = start(&broker, words(obedient(&runs)));
        broker.push("words", "never");
        let began = tokio::time::Instant::now();
        broker.settled(1).await;
        assert_eq!(began.elapsed().as_secs(), 30);
        assert_eq!(runs.at_work(), 0);
        let counts = counts(&handle).await;
        assert_eq!((counts.requeued, counts.overruns), (1, 0));
        drain_clean(&handle, &broker).await;
    });
}

#[test]
fn what_is_too_large_or_has_too_many_headers_is_rejected_by_name_without_a_run() {
    run_virtual(async {
        let broker = ScriptedTransport::new();
        let runs = Runs::default();
        let spec = with_dead_letters(words(obedient(&runs))).with(|spec| {
            spec.max_message_bytes = 8;
            spec.max_headers = 2;
        });
        let handle = start(&broker, spec);
        broker.push("words", "123456789");
        let mut message = acquit_actors::model::Outgoing::new("words".into(), "ok");
        for n in 0..10_000 {
            message.headers.set(&format!("h{n}"), "x");
        }
        broker.push_message(crate::support::P0, message);
        broker.push("words", "");
        let settled = broker.settled(3).await;
        let words: Vec<_> = settled.iter().map(|s| s.disposition).collect();
        assert!(words.contains(&reject(RejectReason::TooLarge)));
        assert!(words.contains(&reject(RejectReason::TooManyHeaders)));
        assert_eq!(runs.total(), 1, "only the empty one runs");
        drain_clean(&handle, &broker).await;
    });
}
