//! What is left after much work: nothing.

use acquit_actors::model::Outgoing;
use acquit_actors::testing::{ScriptedTransport, run_virtual};

use crate::support::{P0, Runs, drain_clean, nothing_left, obedient, start, until, words};

#[test]
fn twenty_thousand_deliveries_leave_nothing_in_registry_timers_and_limiter() {
    run_virtual(async {
        let broker = ScriptedTransport::new().with_redelivery();
        let runs = Runs::default();
        let handle = start(&broker, words(obedient(&runs)).with_permits(64));
        let bodies = [
            "ok",
            "fail",
            "ok 1",
            "panic",
            "discard",
            "reject",
            "fail-until 2",
        ];
        for n in 0..20_000 {
            let message = Outgoing::new("words".into(), bodies[n % bodies.len()]);
            broker.push_message(P0, message.with_id(format!("m{n}")));
        }
        for _ in 0..20 {
            tokio::time::timeout(
                std::time::Duration::from_millis(100),
                std::future::pending::<()>(),
            )
            .await
            .unwrap_err();
            broker.lose_channel("words", P0);
        }
        until("all are concluded", async || {
            nothing_left(&handle).await;
            let settled = broker.settlements();
            let concluded = settled
                .iter()
                .filter(|s| !matches!(s.disposition.as_str(), "requeue" | "release"));
            concluded.count() == 20_000
        })
        .await;
        nothing_left(&handle).await;
        assert_eq!(broker.left(), (0, 0));
        drain_clean(&handle, &broker).await;
    });
}
