//! The engine over a scripted broker, on virtual time.

use std::time::Duration;

use acquit_actors::model::{Backoff, Disposition, Outgoing};
use acquit_actors::ports::{HandlerOutcome, handler_fn};
use acquit_actors::testing::{ScriptedTransport, run_virtual};
use acquit_actors::{ConsumerSpec, Engine, EngineEnd};

#[test]
fn a_completed_delivery_is_acked_and_the_drain_is_clean() {
    run_virtual(async {
        let broker = ScriptedTransport::new();
        let handler = handler_fn(|_| async { HandlerOutcome::completed() });
        let engine = Engine::new(broker.shared())
            .with_consumer(ConsumerSpec::new("words", "words", handler));
        let handle = engine.start_local().unwrap();
        for n in 0..1000 {
            broker.push("words", format!("{n}"));
        }
        let settled = broker.settled(1000).await;
        assert!(settled.iter().all(|s| s.disposition == Disposition::Ack));
        let snapshot = handle.snapshot().await.unwrap();
        assert!(snapshot.consumers[0].counts.is_balanced());
        let end = handle.drain_and_wait("done").await;
        let EngineEnd::Drained(report) = &end else {
            panic!("{end:?}")
        };
        assert!(report.clean, "{report}");
        assert_eq!(broker.left(), (0, 0));
        assert_eq!(broker.double_settlements(), 0);
    });
}

#[test]
fn a_failing_delivery_is_tried_again_and_then_dead_lettered() {
    run_virtual(async {
        let broker = ScriptedTransport::new().with_redelivery();
        let handler = handler_fn(|_| async { HandlerOutcome::failed("no") });
        let spec = ConsumerSpec::new("words", "words", handler).with(|spec| {
            spec.dead_letter_queue = Some("words.dead".into());
            spec.retry.backoff = Backoff {
                base: Duration::from_secs(2),
                max: Duration::from_secs(30),
            };
        });
        let engine = Engine::new(broker.shared()).with_consumer(spec);
        let handle = engine.start_local().unwrap();
        broker.push_message(
            acquit_actors::model::PartitionId(0),
            Outgoing::new("words".into(), "x").with_id("m1"),
        );
        let settled = broker.settled(5).await;
        let words: Vec<_> = settled.iter().map(|s| s.disposition.as_str()).collect();
        assert_eq!(
            words,
            ["requeue", "requeue", "requeue", "requeue", "reject"]
        );
        let dead = broker.published();
        assert_eq!(dead.len(), 1);
        assert_eq!(
            dead[0].headers.get("x-acquit-reason").unwrap().as_str(),
            Some("exhausted")
        );
        assert_eq!(handle.drain_and_wait("done").await.exit_code(), 0);
    });
}
