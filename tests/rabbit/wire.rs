//! What is on the wire, read by a proxy between us and a real broker: over random schedules with
//! holes, retries, drains and cuts no frame settles a delivery twice, none is for a dead channel,
//! and none covers what nobody had decided.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use acquit_actors::model::Outgoing;
use acquit_actors::ports::{Handler, HandlerOutcome, handler_fn};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::broker_kit::{
    Cut, Delivered, Event, Proxy, Violation, What, WireTap, check_settlements, eventually,
};
use crate::place::{Place, counts, drained, words};

/// When a handler's last word about a message was said.
#[derive(Debug, Clone, Default)]
struct Words(Arc<Mutex<HashMap<String, Vec<Instant>>>>);

impl Words {
    fn say(&self, id: &str) {
        let mut words = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        words.entry(id.to_owned()).or_default().push(Instant::now());
    }

    /// Whether a word had been said by then.
    fn said(&self, id: &str, by: Instant) -> bool {
        let words = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        words
            .get(id)
            .is_some_and(|said| said.iter().any(|at| *at <= by))
    }

    fn handler(&self) -> Handler {
        let words = self.clone();
        handler_fn(move |context| {
            let words = words.clone();
            async move {
                let delivery = context.delivery();
                let body = String::from_utf8_lossy(&delivery.body).into_owned();
                let id = delivery.id.as_ref().map_or("", |id| id.as_str()).to_owned();
                let mut parts = body.split_whitespace();
                let millis = parts.nth(1).and_then(|ms| ms.parse().ok()).unwrap_or(0);
                // tidy-allow: sleep: the handler's work
                tokio::time::sleep(Duration::from_millis(millis)).await;
                words.say(&id);
                match body.split_whitespace().next() {
                    Some("fail") => HandlerOutcome::failed("it fails"),
                    Some("reject") => HandlerOutcome::rejected("never"),
                    _ => HandlerOutcome::completed(),
                }
            }
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_happens_no_frame_settles_what_it_must_not() {
    for seed in [1, 2] {
        schedule(seed, 400, 12).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow lane"]
async fn slow_whatever_happens_no_frame_settles_what_it_must_not() {
    let seeds: Vec<u64> = match std::env::var("ACQUIT_SEED") {
        Ok(seed) => vec![seed.parse().expect("a number")],
        Err(_) => (100..125).collect(),
    };
    for seed in seeds {
        eprintln!("seed {seed}");
        schedule(seed, 1500, 60).await;
    }
}

async fn schedule(seed: u64, messages: usize, steps: usize) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let tap = Arc::new(WireTap::default());
    let mut place = Place::with(words()).await;
    let target = ([127, 0, 0, 1], place.vhost.port()).into();
    let proxy = Proxy::start_with(target, seed, Some(tap.tap()));
    place.options.uris[0].port = proxy.port();
    let bodies = (0..messages).map(|number| {
        let body = match rng.random_range(0..20) {
            0 => "fail 1".to_owned(),
            1 => "reject 1".to_owned(),
            // A hole at the head of the rest.
            2 => format!("ok {}", rng.random_range(100..800)),
            _ => format!("ok {}", rng.random_range(0..5)),
        };
        Outgoing::new("words".into(), body).with_id(format!("m{number}"))
    });
    let bodies = bodies.collect();
    place.publish_all(bodies).await;
    let said = Words::default();
    let start = |place: &Place| {
        let spec = place.spec(said.handler()).with_permits(16);
        place.start(spec.with(|spec| {
            spec.prefetch = acquit_actors::Prefetch::Count(40.try_into().expect("not 0"));
            spec.reply_queue = None;
            spec.crash_loop_limit = 10_000;
        }))
    };
    let mut handle = start(&place);
    for _ in 0..steps {
        // tidy-allow: sleep: the schedule's own pace, not a wait for anything
        tokio::time::sleep(Duration::from_millis(rng.random_range(10..80))).await;
        match rng.random_range(0..8) {
            0 => {
                proxy.cut(Cut::Reset);
            }
            1 => {
                proxy.cut(Cut::Fin);
            }
            2 => {
                let report = drained(handle).await;
                assert_eq!(report.abandoned, 0, "seed {seed}: {report}");
                handle = start(&place);
            }
            3 => {
                let target = acquit_actors::Target::consumer("words");
                handle
                    .pause(target.clone(), "random")
                    .await
                    .expect("an engine");
                handle.resume(target).await.expect("an engine");
            }
            _ => {}
        }
        counts(&handle).await;
    }
    eventually(&format!("seed {seed}: all is settled"), async || {
        let vhost = place.vhost.name();
        let queues = place.vhost.list_queues(vhost).await;
        let left: u64 = queues
            .iter()
            .filter(|queue| queue.name != "words.dead")
            .map(|queue| queue.ready.unwrap_or(1) + queue.unacked.unwrap_or(1))
            .sum();
        (left == 0).then_some(())
    })
    .await;
    assert!(drained(handle).await.clean, "seed {seed}");
    let events = tap.events();
    let settled = events
        .iter()
        .filter(|event| matches!(event.what, What::Ack { .. }))
        .count();
    assert!(settled > 0, "seed {seed}: the tap saw nothing");
    // An ack needs a handler's word, a multiple ack one for each that it covers.
    let decided = |delivery: &Delivered, by: Instant| {
        said.said(delivery.message_id.as_deref().unwrap_or(""), by)
    };
    let violations = check_settlements(&events, decided);
    let violations: Vec<_> = violations
        .into_iter()
        .filter(|violation| !is_return(violation, &events))
        .collect();
    assert!(violations.is_empty(), "seed {seed}: {violations:#?}");
}

/// What is given back unstarted has no word of a handler.
fn is_return(violation: &Violation, events: &[Event]) -> bool {
    match violation {
        Violation::Undecided { index, .. } => !matches!(events[*index].what, What::Ack { .. }),
        _ => false,
    }
}
