//! Random schedules: outcomes, channel losses, settlement answers, panics, scale, pause. The seed
//! of a schedule that fails is printed; `ACQUIT_SEED` runs that one alone, a few times, since the
//! engine's own jitter is not seeded.

use std::collections::BTreeMap;
use std::time::Duration;

use acquit_actors::model::{OnLeaseLost, RetryWay};
use acquit_actors::supervision::Intensity;
use acquit_actors::testing::{PublishScript, ScriptedTransport, SettleScript, Victim, run_virtual};
use acquit_actors::{Engine, Handle, Target};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use crate::support::{
    P0, Runs, catch, check_balanced, drain_clean, nothing_left, obedient, quiet_panics, until,
    with_dead_letters, words,
};

const MESSAGES: usize = 120;
const STEPS: usize = 150;

/// What a message's handler says in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Says {
    Done,
    Never,
}

fn body(rng: &mut SmallRng) -> (String, Says) {
    match rng.random_range(0..12) {
        0 => ("reject".to_owned(), Says::Never),
        1 => ("fail".to_owned(), Says::Never),
        2 => ("panic".to_owned(), Says::Never),
        3 => ("panic-in-drop".to_owned(), Says::Never),
        4 => ("fail-until 2".to_owned(), Says::Done),
        5 => ("discard".to_owned(), Says::Done),
        6 => ("ok".to_owned(), Says::Done),
        _ => (format!("ok {}", rng.random_range(1..400)), Says::Done),
    }
}

#[test]
fn whatever_happens_every_message_is_concluded_as_its_handler_says() {
    quiet_panics();
    let seeds: Vec<u64> = match std::env::var("ACQUIT_SEED") {
        Ok(seed) => vec![seed.parse().unwrap(); 20],
        Err(_) if cfg!(debug_assertions) => (1..=25).collect(),
        Err(_) => (1..=200).collect(),
    };
    for seed in seeds {
        let failed = catch(|| run_virtual(schedule(seed)));
        assert!(failed.is_ok(), "run it again with ACQUIT_SEED={seed}");
    }
}

async fn schedule(seed: u64) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let lease = Duration::from_secs(3);
    let broker = ScriptedTransport::new().with_redelivery().with_lease(lease);
    let runs = Runs::default();
    let spec = with_dead_letters(words(obedient(&runs)).with_permits(8)).with(|spec| {
        spec.reply_queue = rng.random_bool(0.5).then(|| "words.results".into());
        spec.publish_timeout = Duration::from_secs(1);
        spec.settle_timeout = Duration::from_secs(2);
        spec.retry.backoff.base = Duration::from_millis(200);
        spec.retry.way = *[RetryWay::Broker, RetryWay::Hold].choose(&mut rng).unwrap();
        let policies = [OnLeaseLost::Finish, OnLeaseLost::Abort];
        // A message may come back twenty times here without any fault of its own; more often than
        // this it goes round without a pause.
        spec.crash_loop_limit = 200;
        spec.on_channel_lost = *policies.choose(&mut rng).unwrap();
        spec.on_lease_lost = *policies.choose(&mut rng).unwrap();
    });
    let intensity = Intensity {
        restarts: 100_000,
        period: Duration::from_secs(1),
    };
    let handle = Engine::new(broker.shared())
        .with_consumer(spec)
        .with_intensity(intensity)
        .start_local()
        .unwrap();
    let mut said = BTreeMap::new();
    for step in 0..STEPS {
        if step < MESSAGES {
            let (body, says) = body(&mut rng);
            said.insert(broker.push("words", body), says);
        }
        disturb(&mut rng, &broker, &handle).await;
        check_balanced(&handle.snapshot().await.unwrap());
        let pause = rng.random_range(0..60);
        let _ = tokio::time::timeout(Duration::from_millis(pause), handle.wait()).await;
    }
    calm(&broker, &handle).await;
    until("all are concluded", async || broker.is_idle()).await;
    nothing_left(&handle).await;
    conclude(&broker, &runs, &said);
    drain_clean(&handle, &broker).await;
}

async fn disturb(rng: &mut SmallRng, broker: &ScriptedTransport, handle: &Handle) {
    let words = || Target::consumer("words");
    match rng.random_range(0..26) {
        0 => broker.lose_channel("words", P0),
        1 => broker.answer_settlements(SettleScript::NotSent(rng.random_range(1..5))),
        2 => broker.answer_settlements(SettleScript::Sent),
        3..=5 => broker.answer_settlements(SettleScript::Confirm),
        6 => broker.answer_publishes(PublishScript::Outage),
        7 => broker.answer_publishes(PublishScript::Silent),
        8 | 9 => broker.answer_publishes(PublishScript::Confirm),
        10 => broker.refuse_opens(rng.random_range(1..3)),
        11 => broker.panic_source("words", P0),
        12 => handle.pause(words(), "random").await.unwrap(),
        13 | 14 => handle.resume(words()).await.unwrap(),
        15 => {
            let permits = rng.random_range(1..20_u32);
            // The limiter may be away; then the scale stays.
            let _ = handle.scale("words", permits.try_into().unwrap()).await;
        }
        16 => handle.inject_panic(Victim::Limiter).await.unwrap(),
        17 => handle.inject_panic(Victim::Publisher).await.unwrap(),
        18 => handle.inject_panic(Victim::Deliveries).await.unwrap(),
        19 => handle.inject_panic(Victim::Coordinator).await.unwrap(),
        20 => {
            let victim = Victim::Consumer("words".into(), P0);
            handle.inject_panic(victim).await.unwrap();
        }
        21 => broker.answer_settlements(SettleScript::Unknown),
        22 => broker.answer_settlements(SettleScript::Silent),
        23 => drop(broker.expire_lease(rng.random_range(1..=MESSAGES as u64))),
        _ => {
            let all = handle.in_flight(100).await.unwrap();
            if !all.is_empty() {
                let one = &all[rng.random_range(0..all.len())];
                let _ = handle.inject_panic(Victim::Delivery(one.delivery)).await;
            }
        }
    }
}

async fn calm(broker: &ScriptedTransport, handle: &Handle) {
    broker.answer_settlements(SettleScript::Confirm);
    broker.answer_publishes(PublishScript::Confirm);
    broker.refuse_opens(0);
    handle.resume(Target::consumer("words")).await.unwrap();
}

/// Every message was concluded once, as its handler says; one whose actor died twice may be dead.
fn conclude(broker: &ScriptedTransport, runs: &Runs, said: &BTreeMap<u64, Says>) {
    let mut concluded: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for settlement in broker.settlements() {
        let word = settlement.disposition.as_str();
        if !matches!(word, "requeue" | "release") {
            let text = format!("{:?}", settlement.disposition);
            concluded.entry(settlement.message).or_default().push(text);
        }
    }
    for (message, says) in said {
        let ends = concluded.get(message).cloned().unwrap_or_default();
        assert_eq!(ends.len(), 1, "message {message}: {ends:?}");
        let internal = ends[0].contains("Internal");
        match says {
            Says::Done => assert!(ends[0] == "Ack" || internal, "{message}: {ends:?}"),
            Says::Never => assert!(ends[0].contains("Reject"), "{message}: {ends:?}"),
        }
    }
    assert_eq!(runs.lock().twice_at_once, 0);
    assert_eq!(broker.double_settlements(), 0);
}
