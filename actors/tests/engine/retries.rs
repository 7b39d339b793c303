//! Attempts: how many, how far apart, and what they hold up.

use std::time::Duration;

use acquit_actors::model::RetryWay;
use acquit_actors::testing::{ScriptedTransport, run_virtual};

use crate::support::{
    Runs, drain_clean, nothing_left, obedient, start, told, until, with_dead_letters, words,
};

#[test]
fn the_time_between_attempts_is_at_least_the_backoff() {
    for way in [RetryWay::Broker, RetryWay::Hold] {
        run_virtual(async {
            let broker = ScriptedTransport::new().with_redelivery();
            let runs = Runs::default();
            let spec = words(obedient(&runs)).with(|spec| {
                spec.retry.way = way;
                spec.retry.max_attempts = 4.try_into().unwrap();
            });
            let handle = start(&broker, spec);
            let message = broker.push("words", "fail");
            broker.settled(4).await;
            let starts = runs.lock().started_at[&message].clone();
            let gaps: Vec<Duration> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
            // Half of each step at least, by the jitter: 2, 4, 8 s.
            for (gap, floor) in gaps.iter().zip([1, 2, 4]) {
                let (floor, ceiling) = (floor * 1000, floor * 2000 + 100);
                let gap = gap.as_millis();
                assert!((floor..=ceiling).contains(&gap), "{way:?} {gap} ms");
            }
            assert_eq!(gaps.len(), 3);
            assert_eq!(told(&broker), ["requeue", "requeue", "requeue", "reject"]);
            nothing_left(&handle).await;
            drain_clean(&handle, &broker).await;
        });
    }
}

#[test]
fn five_thousand_poison_messages_run_three_times_each_and_no_more() {
    run_virtual(async {
        let broker = ScriptedTransport::new().with_redelivery();
        let runs = Runs::default();
        let spec = with_dead_letters(words(obedient(&runs)).with_permits(32));
        let handle = start(&broker, spec);
        for _ in 0..5_000 {
            broker.push("words", "fail");
        }
        broker.settled(15_000).await;
        nothing_left(&handle).await;
        assert_eq!(runs.total(), 15_000);
        assert!(runs.lock().by_message.values().all(|runs| *runs == 3));
        assert_eq!(broker.published().len(), 5_000);
        assert_eq!(broker.left(), (0, 0));
        assert!(runs.lock().at_work_max <= 32);
        drain_clean(&handle, &broker).await;
    });
}

#[test]
fn good_messages_are_acked_while_the_poison_before_them_waits() {
    for way in [RetryWay::Broker, RetryWay::Hold] {
        run_virtual(async {
            let broker = ScriptedTransport::new().with_redelivery();
            let runs = Runs::default();
            let spec = with_dead_letters(words(obedient(&runs)).with_permits(10))
                .with(|spec| spec.retry.way = way);
            let handle = start(&broker, spec);
            for _ in 0..10 {
                broker.push("words", "fail");
            }
            for _ in 0..100 {
                broker.push("words", "ok 20");
            }
            let began = tokio::time::Instant::now();
            until("the good are acked", async || {
                told(&broker).iter().filter(|word| **word == "ack").count() == 100
            })
            .await;
            // Plain: 100 of 20 ms, 10 at a time.
            assert!(began.elapsed() < Duration::from_millis(400), "{way:?}");
            until("the poison is dead", async || broker.dead().len() == 10).await;
            assert_eq!(broker.published().len(), 10);
            nothing_left(&handle).await;
            drain_clean(&handle, &broker).await;
        });
    }
}
