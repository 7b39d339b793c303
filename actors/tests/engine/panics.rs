//! Panics in every kind of actor, under load.

use std::time::Duration;

use acquit_actors::model::{DeliveryId, RejectReason};
use acquit_actors::supervision::{Intensity, NodeState, TreeNode};
use acquit_actors::testing::{ScriptedTransport, Victim, run_virtual};
use acquit_actors::{ConsumerSpec, Engine, EngineEnd, Handle};

use crate::support::{
    P0, Runs, check_balanced, drain_clean, nothing_left, obedient, quiet_panics, reject, start,
    told, until, with_dead_letters, words,
};

/// One that is not given up on, however often it panics.
fn patient(broker: &ScriptedTransport, spec: ConsumerSpec) -> Handle {
    quiet_panics();
    let intensity = Intensity {
        restarts: 100_000,
        period: Duration::from_secs(1),
    };
    Engine::new(broker.shared())
        .with_consumer(spec)
        .with_intensity(intensity)
        .start_local()
        .unwrap()
}

/// The tree without what changes: names, kinds and who runs.
fn shape(node: &TreeNode) -> Vec<String> {
    let mut shape = vec![format!("{} {:?} {:?}", node.name, node.kind, node.state)];
    for child in &node.children {
        shape.extend(self::shape(child));
    }
    shape
}

async fn tree(handle: &Handle) -> Vec<String> {
    shape(&handle.tree().await.unwrap().unwrap())
}

/// Kills one kind of actor again and again under load; every message ends acked.
fn check(victim: Victim, reply: bool) {
    run_virtual(async {
        let broker = ScriptedTransport::new().with_redelivery();
        let runs = Runs::default();
        let spec = words(obedient(&runs)).with_permits(8).with(|spec| {
            spec.reply_queue = reply.then(|| "words.results".into());
            spec.publish_timeout = Duration::from_secs(1);
        });
        let handle = patient(&broker, spec);
        until("all run", async || {
            let tree = tree(&handle).await;
            tree.iter().all(|line| line.ends_with("Running"))
        })
        .await;
        let before = tree(&handle).await;
        let rounds = 30;
        for _ in 0..rounds {
            for n in 0..20 {
                broker.push("words", format!("ok {}", n * 7));
            }
            handle.inject_panic(victim.clone()).await.unwrap();
            check_balanced(&handle.snapshot().await.unwrap());
            until("the tree is as before", async || {
                check_balanced(&handle.snapshot().await.unwrap());
                tree(&handle).await == before
            })
            .await;
        }
        until("all are acked", async || {
            told(&broker).iter().filter(|w| **w == "ack").count() == 20 * rounds
        })
        .await;
        nothing_left(&handle).await;
        assert_eq!(broker.left(), (0, 0), "{victim:?}");
        assert_eq!(runs.lock().twice_at_once, 0, "{victim:?}");
        drain_clean(&handle, &broker).await;
    });
}

#[test]
fn the_limiter_may_die_at_any_time() {
    check(Victim::Limiter, false);
}

#[test]
fn the_publisher_may_die_at_any_time() {
    check(Victim::Publisher, true);
}

#[test]
fn the_coordinator_may_die_at_any_time() {
    check(Victim::Coordinator, false);
}

#[test]
fn the_parent_of_the_deliveries_may_die_at_any_time() {
    check(Victim::Deliveries, true);
}

#[test]
fn a_consumer_may_die_at_any_time() {
    check(Victim::Consumer("words".into(), P0), true);
}

async fn all_in_flight(handle: &Handle) -> Vec<DeliveryId> {
    let all = handle.in_flight(1_000).await.unwrap();
    all.iter().map(|one| one.delivery).collect()
}

#[test]
fn delivery_actors_may_die_in_any_state_and_no_delivery_is_lost() {
    run_virtual(async {
        let broker = ScriptedTransport::new().with_redelivery();
        let runs = Runs::default();
        let spec = words(obedient(&runs)).with_permits(8);
        let handle = patient(&broker, spec.with(|s| s.reply_queue = Some("r".into())));
        for n in 0..300 {
            broker.push("words", format!("ok {}", n % 50));
        }
        let mut killed = std::collections::BTreeSet::new();
        for _ in 0..60 {
            let in_flight = handle.in_flight(1_000).await.unwrap();
            // Each message at most once: the second time it is rejected, see below.
            let fresh = in_flight.iter().find(|one| {
                one.attempt == 1 && killed.len() < 200 && !killed.contains(&one.delivery)
            });
            if let Some(one) = fresh {
                killed.insert(one.delivery);
                let _ = handle.inject_panic(Victim::Delivery(one.delivery)).await;
            }
            check_balanced(&handle.snapshot().await.unwrap());
            tokio::task::yield_now().await;
        }
        until("all are concluded", async || {
            let words = told(&broker);
            words.iter().filter(|w| **w == "ack").count() + broker.dead().len() == 300
        })
        .await;
        nothing_left(&handle).await;
        let deaths = handle.snapshot().await.unwrap().consumers[0]
            .counts
            .actor_deaths;
        assert!(deaths > 10, "{deaths}");
        assert_eq!(broker.left(), (0, 0));
        assert_eq!(runs.lock().twice_at_once, 0);
        drain_clean(&handle, &broker).await;
    });
}

#[test]
fn the_parent_and_its_deliveries_may_die_together() {
    run_virtual(async {
        let broker = ScriptedTransport::new().with_redelivery();
        let runs = Runs::default();
        let handle = patient(&broker, words(obedient(&runs)).with_permits(8));
        for _ in 0..8 {
            broker.push("words", "ok 3000");
        }
        until("all run", async || runs.total() == 8).await;
        for delivery in all_in_flight(&handle).await {
            let victim = Victim::Delivery(delivery);
            handle.inject_panic(victim).await.unwrap();
        }
        // Before, while and after it hears of the deaths.
        for _ in 0..3 {
            handle.inject_panic(Victim::Deliveries).await.unwrap();
            tokio::task::yield_now().await;
        }
        until("all are acked", async || {
            told(&broker).iter().filter(|w| **w == "ack").count() == 8
        })
        .await;
        assert!(broker.dead().is_empty(), "one death each is heard once");
        nothing_left(&handle).await;
        assert_eq!(runs.total(), 16);
        assert_eq!(runs.lock().twice_at_once, 0);
        drain_clean(&handle, &broker).await;
    });
}

#[test]
fn a_delivery_whose_actor_dies_twice_is_rejected_as_internal() {
    run_virtual(async {
        let broker = ScriptedTransport::new().with_redelivery();
        let runs = Runs::default();
        let handle = patient(&broker, with_dead_letters(words(obedient(&runs))));
        broker.push("words", "never");
        for round in 1..=2 {
            until("it runs", async || runs.total() == round).await;
            let delivery = all_in_flight(&handle).await[0];
            let victim = Victim::Delivery(delivery);
            handle.inject_panic(victim).await.unwrap();
        }
        broker.settled(2).await;
        let settlements = broker.settlements();
        assert_eq!(told(&broker), ["release", "reject"]);
        assert_eq!(
            settlements[1].disposition,
            reject(RejectReason::Internal),
            "counted over the redelivery"
        );
        assert_eq!(broker.published().len(), 1);
        nothing_left(&handle).await;
        assert_eq!(runs.at_work(), 0);
        drain_clean(&handle, &broker).await;
    });
}

#[test]
fn too_many_panics_end_the_engine_with_its_own_code() {
    for victim in [
        Victim::Limiter,
        Victim::Publisher,
        Victim::Consumer("words".into(), P0),
    ] {
        run_virtual(async {
            let broker = ScriptedTransport::new().with_redelivery();
            let handle = start(&broker, words(obedient(&Runs::default())));
            broker.push("words", "never");
            let end = tokio::time::timeout(Duration::from_secs(600), async {
                loop {
                    let _ = handle.inject_panic(victim.clone()).await;
                    if let Some(end) = handle.ended() {
                        break end;
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            });
            let end = end.await.unwrap();
            assert!(matches!(end, EngineEnd::GaveUp(_)), "{end:?}");
            assert_eq!(end.exit_code(), 21);
        });
    }
}

#[test]
fn a_state_is_never_shown_that_is_not_running_or_waiting() {
    run_virtual(async {
        let broker = ScriptedTransport::new();
        let handle = start(&broker, words(obedient(&Runs::default())));
        broker.push("words", "ok");
        broker.settled(1).await;
        handle.inject_panic(Victim::Publisher).await.unwrap();
        let mut seen_restart = false;
        for _ in 0..100 {
            let root = handle.tree().await.unwrap().unwrap();
            assert_eq!(root.state, NodeState::Running);
            let publisher = root.children.iter().find(|c| c.name == "publisher");
            seen_restart |= publisher.unwrap().restarts == 1;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(seen_restart);
        drain_clean(&handle, &broker).await;
    });
}
