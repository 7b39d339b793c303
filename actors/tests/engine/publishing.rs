//! Publish before settle: outages, refusals, silence.

use std::time::Duration;

use acquit_actors::ConsumerSpec;
use acquit_actors::model::{Disposition, OnRefused, Outgoing, RejectReason, names};
use acquit_actors::testing::{PublishScript, ScriptedTransport, run_virtual};

use crate::support::{
    P0, Runs, counts, drain_clean, nothing_left, obedient, reject, report_of, start, told, until,
    with_dead_letters, words,
};

fn replying(runs: &Runs) -> ConsumerSpec {
    words(obedient(runs)).with(|spec| spec.reply_queue = Some("words.results".into()))
}

#[test]
fn in_an_outage_the_same_bytes_and_id_go_out_again_and_nothing_runs_twice() {
    run_virtual(async {
        let broker = ScriptedTransport::new().with_redelivery();
        let runs = Runs::default();
        broker.answer_publishes(PublishScript::Outage);
        let handle = start(&broker, replying(&runs));
        for n in 0..3 {
            let message = Outgoing::new("words".into(), "ok").with_id(format!("m{n}"));
            broker.push_message(P0, message);
        }
        until("each was tried three times", async || {
            broker.publish_tries().len() >= 9
        })
        .await;
        assert!(told(&broker).is_empty());
        broker.push("words", "ok");
        assert_eq!(runs.total(), 3, "intake pauses");
        broker.answer_publishes(PublishScript::Confirm);
        broker.settled(4).await;
        assert_eq!(told(&broker), ["ack"; 4]);
        let mut tries = broker.publish_tries();
        tries.retain(|out| out.correlation_id.is_some());
        for n in 0..3 {
            let id = format!("m{n}:reply");
            let mine: Vec<_> = tries
                .iter()
                .filter(|out| out.id.as_ref().unwrap().as_str() == id)
                .collect();
            assert!(mine.len() >= 2, "{id}");
            assert!(mine.windows(2).all(|pair| pair[0] == pair[1]));
        }
        assert_eq!(runs.total(), 4);
        nothing_left(&handle).await;
        drain_clean(&handle, &broker).await;
    });
}

#[test]
fn a_silent_publisher_is_timed_out_and_asked_again_however_many_wait() {
    run_virtual(async {
        let broker = ScriptedTransport::new().with_redelivery();
        let runs = Runs::default();
        broker.answer_publishes(PublishScript::Silent);
        let handle = start(
            &broker,
            replying(&runs).with_permits(50).with(|spec| {
                spec.publish_give_up = Duration::from_secs(600);
                spec.retry.backoff.max = Duration::from_secs(2);
            }),
        );
        // More silent tries than the publisher's window has places.
        for _ in 0..50 {
            broker.push("words", "ok");
        }
        until("many tries went out", async || {
            broker.publish_tries().len() > 1_500
        })
        .await;
        broker.answer_publishes(PublishScript::Confirm);
        broker.settled(50).await;
        assert_eq!(told(&broker), ["ack"; 50]);
        assert_eq!(runs.total(), 50);
        nothing_left(&handle).await;
        drain_clean(&handle, &broker).await;
    });
}

#[test]
fn a_reply_refused_for_good_becomes_one_trimmed_dead_letter() {
    run_virtual(async {
        let broker = ScriptedTransport::new();
        broker.answer_publishes(PublishScript::Refuse);
        let handle = start(&broker, with_dead_letters(replying(&Runs::default())));
        broker.push("words", "ok");
        broker.settled(1).await;
        let disposition = broker.settlements()[0].disposition;
        assert_eq!(disposition, reject(RejectReason::PublishRefused));
        let tries = broker.publish_tries();
        let queues: Vec<_> = tries.iter().map(|out| out.queue.as_str()).collect();
        assert_eq!(queues, ["words.results", "words.dead"]);
        assert!(tries[1].body.is_empty());
        let reason = tries[1].headers.get(names::REASON).unwrap().as_str();
        assert_eq!(reason, Some("publish-refused"));
        nothing_left(&handle).await;
        drain_clean(&handle, &broker).await;
    });
}

#[test]
fn a_refused_publish_without_a_dead_letter_queue_is_rejected_or_parked_as_chosen() {
    run_virtual(async {
        let broker = ScriptedTransport::new();
        broker.answer_publishes(PublishScript::Refuse);
        let handle = start(&broker, replying(&Runs::default()));
        broker.push("words", "ok");
        broker.settled(1).await;
        assert_eq!(told(&broker), ["reject"]);
        drain_clean(&handle, &broker).await;
    });
    run_virtual(async {
        let broker = ScriptedTransport::new();
        broker.answer_publishes(PublishScript::Refuse);
        let runs = Runs::default();
        let spec = replying(&runs).with_permits(1);
        let handle = start(&broker, spec.with(|s| s.on_refused = OnRefused::Park));
        broker.push("words", "ok");
        until("it is tried again and again", async || {
            broker.publish_tries().len() >= 2
        })
        .await;
        let snapshot = handle.snapshot().await.unwrap();
        assert_eq!(snapshot.limiter.taken, 0, "a parked one holds no permit");
        assert!(told(&broker).is_empty());
        broker.answer_publishes(PublishScript::Confirm);
        broker.settled(1).await;
        assert_eq!(broker.settlements()[0].disposition, Disposition::Ack);
        assert_eq!(runs.total(), 1);
        nothing_left(&handle).await;
        drain_clean(&handle, &broker).await;
    });
}

#[test]
fn a_publish_that_takes_too_long_is_given_up_and_its_delivery_released() {
    run_virtual(async {
        let broker = ScriptedTransport::new();
        broker.answer_publishes(PublishScript::Outage);
        let handle = start(&broker, replying(&Runs::default()));
        broker.push("words", "ok");
        let began = tokio::time::Instant::now();
        broker.settled(1).await;
        assert_eq!(told(&broker), ["release"]);
        assert_eq!(began.elapsed().as_secs(), 60);
        nothing_left(&handle).await;
        drain_clean(&handle, &broker).await;
    });
}

#[test]
fn a_drain_cuts_a_last_publish_to_a_second_once_it_is_forced() {
    run_virtual(async {
        let broker = ScriptedTransport::new();
        broker.answer_publishes(PublishScript::Silent);
        let handle = start(&broker, replying(&Runs::default()));
        broker.push("words", "ok");
        until("it publishes", async || !broker.publish_tries().is_empty()).await;
        handle.drain("test").await.unwrap();
        handle.force().await.unwrap();
        let began = tokio::time::Instant::now();
        let report = report_of(handle.wait().await);
        assert!(began.elapsed() < Duration::from_millis(1_100));
        assert_eq!(told(&broker), ["release"]);
        assert_eq!((report.exit_code(), report.stragglers.len()), (20, 1));
        assert_eq!(report.stragglers[0].state, "publishing");
        assert_eq!(report.abandoned, 0);
    });
    // Unforced, an outage that ends lets the drain end clean.
    run_virtual(async {
        let broker = ScriptedTransport::new();
        broker.answer_publishes(PublishScript::Outage);
        let handle = start(&broker, replying(&Runs::default()));
        broker.push("words", "ok");
        until("it publishes", async || !broker.publish_tries().is_empty()).await;
        handle.drain("test").await.unwrap();
        assert_eq!(counts(&handle).await.in_hand, 1);
        broker.answer_publishes(PublishScript::Confirm);
        let report = report_of(handle.wait().await);
        assert!(report.clean, "{report}");
        assert_eq!((report.acked, told(&broker)), (1, vec!["ack"]));
    });
}
