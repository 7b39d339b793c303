//! What others have reported of their clients and no other test here shows.

use std::collections::BTreeMap;
use std::time::Duration;

use acquit_actors::Prefetch;

use crate::broker_kit::eventually;
use crate::place::{Runs, counts, drained, until};
use crate::site::{Site, shared};

/// Deliveries that were pushed and had not begun when the channel was lost begin with their redelivery only.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_pushed_and_had_not_begun_is_not_run_for_a_lost_channel() {
    let vhost = shared().await;
    let site = Site::on(&vhost).await;
    site.publish("m", 50, "work 20").await;
    let runs = Runs::default();
    let spec = site.spec(runs.handler()).with_permits(1);
    let handle = site.start(spec.with(|spec| {
        spec.prefetch = Prefetch::Count(50.try_into().expect("not 0"));
    }));
    until(&handle, "all are pushed", |c| c.received == 50).await;
    runs.at_least(2).await;
    vhost.close_connections(vhost.name(), "the test").await;
    let counts = site.all_done(handle, &runs, &[("m", 50)]).await;
    assert_eq!(runs.all().len(), 50, "each ran once: {counts:?}");
}

/// Hard timeouts must not eat the permits: after two dozen of them there are still four.
#[tokio::test(flavor = "multi_thread")]
async fn handlers_that_overrun_give_their_permits_back() {
    let vhost = shared().await;
    let site = Site::on(&vhost).await;
    site.publish("slow", 24, "work 60000").await;
    let runs = Runs::default();
    let spec = site.spec(runs.handler()).with_permits(4);
    let handle = site.start(spec.with(|spec| {
        spec.handler_timeout = Duration::from_millis(500);
        spec.retry.max_attempts = 1.try_into().expect("not 0");
    }));
    until(&handle, "all have timed out", |c| c.rejected == 24).await;
    site.publish("good", 40, "ok").await;
    until(&handle, "the good are done", |c| c.completed == 40).await;
    site.holds("words.dead", 24).await;
    site.holds("words.results", 40).await;
    let snapshot = handle.snapshot().await.expect("a snapshot");
    let limiter = &snapshot.limiter.consumers[0];
    assert_eq!((limiter.taken, limiter.permits), (0, 4));
    assert!(drained(handle).await.clean);
    site.counts("words", [0, 0, 0]).await;
}

/// Attempts are counted in the message, so no number of poison messages makes the count begin anew.
async fn poison(messages: usize) {
    let vhost = shared().await;
    let site = Site::on(&vhost).await;
    site.publish("bad", messages, "fail").await;
    let runs = Runs::default();
    let handle = site.start(site.spec(runs.handler()).with_permits(32));
    let all = messages as u64;
    until(&handle, "all are dead", |c| c.rejected == all).await;
    until(&handle, "all are settled", |c| c.in_hand == 0).await;
    let mut attempts: BTreeMap<String, u32> = BTreeMap::new();
    for run in runs.all() {
        *attempts.entry(run.id).or_default() += 1;
    }
    assert_eq!(attempts.len(), messages);
    let wrong: Vec<_> = attempts.iter().filter(|(_, count)| **count != 3).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    site.holds("words.dead", all).await;
    // One channel consumes and one publishes, however many copies there are.
    let channels = counts(&handle).await;
    assert_eq!((channels.lost, channels.redelivered), (0, 0));
    assert!(drained(handle).await.clean);
    site.counts("words", [0, 0, 0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_of_many_poison_messages_has_its_attempts_and_one_dead_letter() {
    poison(300).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow lane"]
async fn slow_five_thousand_poison_messages_have_fifteen_thousand_attempts() {
    poison(5000).await;
}

/// Channels that are opened and closed with messages pushed to them leave nothing behind.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow lane"]
async fn slow_two_thousand_reopened_channels_leave_no_memory_behind() {
    let vhost = shared().await;
    let site = Site::on(&vhost).await;
    let body = "hold ".to_owned() + &"x".repeat(1000);
    site.publish("m", 50, &body).await;
    let runs = Runs::default();
    let handle = site.start(site.spec(runs.handler()).with_permits(50));
    let mut warm = 0;
    for round in 0..2_000 {
        let before = counts(&handle).await.redelivered;
        eventually("a channel is closed", async || {
            (vhost.close_channels(vhost.name()).await > 0).then_some(())
        })
        .await;
        until(&handle, "all are back", |c| c.redelivered >= before + 50).await;
        if round == 200 {
            warm = resident();
        }
    }
    let grown = resident().saturating_sub(warm);
    assert!(grown < 10 << 20, "{grown} bytes more");
    runs.open_gate();
    site.all_done(handle, &runs, &[("m", 50)]).await;
}

/// How much memory this process holds, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.expect("a number").parse::<u64>().expect("a number") << 10
}
