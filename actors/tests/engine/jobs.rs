//! Job mode: so many deliveries, and no more.

use acquit_actors::testing::{ScriptedTransport, Victim, run_virtual};
use acquit_actors::{Engine, Handle};

use crate::support::{P0, Runs, obedient, quiet_panics, report_of, told, until, words};

fn job(broker: &ScriptedTransport, runs: &Runs, deliveries: u64, partitions: u32) -> Handle {
    quiet_panics();
    let spec = words(obedient(runs)).with_partitions(partitions);
    Engine::new(broker.shared())
        .with_consumer(spec.with_permits(4))
        .with_max_deliveries(Some(deliveries))
        .start_local()
        .unwrap()
}

#[test]
fn exactly_so_many_deliveries_run_and_the_rest_stays() {
    for (deliveries, partitions) in [(1, 1), (7, 1), (100, 1), (30, 3)] {
        run_virtual(async {
            let broker = ScriptedTransport::new().with_redelivery();
            let runs = Runs::default();
            for n in 0..200 {
                let partition = acquit_actors::model::PartitionId(n % partitions);
                let message = acquit_actors::model::Outgoing::new("words".into(), "ok 10");
                broker.push_message(partition, message);
            }
            let handle = job(&broker, &runs, deliveries, partitions);
            let report = report_of(handle.wait().await);
            assert!(report.clean, "{report}");
            assert_eq!(report.exit_code(), 0);
            assert_eq!(u64::from(runs.total()), deliveries);
            let acks = told(&broker).iter().filter(|w| **w == "ack").count();
            assert_eq!(acks as u64, deliveries);
            assert_eq!(broker.left(), (200 - acks, 0));
            assert_eq!(broker.double_settlements(), 0);
        });
    }
}

#[test]
fn a_job_ends_though_its_coordinator_dies() {
    run_virtual(async {
        let broker = ScriptedTransport::new().with_redelivery();
        let runs = Runs::default();
        let handle = job(&broker, &runs, 1, 1);
        handle.inject_panic(Victim::Coordinator).await.unwrap();
        broker.push("words", "ok 5000");
        until("it runs", async || runs.total() == 1).await;
        handle.inject_panic(Victim::Coordinator).await.unwrap();
        let report = report_of(handle.wait().await);
        assert!(report.clean, "{report}");
        assert_eq!(told(&broker), ["ack"]);
    });
}

#[test]
fn a_job_ends_though_its_consumer_dies_after_the_last_hand_out() {
    run_virtual(async {
        let broker = ScriptedTransport::new().with_redelivery();
        let runs = Runs::default();
        let handle = job(&broker, &runs, 2, 1);
        for _ in 0..10 {
            broker.push("words", "ok 5000");
        }
        until("both run", async || runs.total() == 2).await;
        let victim = Victim::Consumer("words".into(), P0);
        handle.inject_panic(victim).await.unwrap();
        let report = report_of(handle.wait().await);
        assert_eq!(runs.total(), 2);
        assert_eq!(report.abandoned, 0);
        assert_eq!(broker.left(), (10, 0), "both are the broker's again");
    });
}
