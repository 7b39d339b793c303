//! What a network does between the engine and the broker.

use std::time::{Duration, Instant};

use crate::broker_kit::{Cut, Flow, Proxy, Way, eventually};
use crate::place::{Runs, connected, drained, until};
use crate::site::{Site, shared};

const HEARTBEAT: Duration = Duration::from_secs(2);

/// A dead peer is noticed within two heartbeats, and two seconds for slow machines.
const NOTICED: Duration = Duration::from_secs(6);

/// Held work and more behind it, then `spoil`; the loss is noticed, and after `repair` all is done.
async fn check(spoil: impl Fn(&Proxy), repair: impl Fn(&Proxy)) {
    let vhost = shared().await;
    let proxy = Proxy::start(([127, 0, 0, 1], vhost.port()).into());
    let site = Site::on(&vhost).await.through(proxy.port(), HEARTBEAT);
    site.publish("held", 4, "hold").await;
    site.publish("m", 300, "work 5").await;
    let runs = Runs::default();
    let handle = site.start(site.spec(runs.handler()));
    runs.at_least(100).await;
    let spoiled = Instant::now();
    spoil(&proxy);
    eventually("both losses are noticed", async || {
        let snapshot = handle.snapshot().await.ok()?;
        let lost = snapshot
            .connections
            .iter()
            .all(|one| one.opened > 1 || one.state != "open");
        lost.then_some(())
    })
    .await;
    assert!(spoiled.elapsed() < NOTICED, "{:?}", spoiled.elapsed());
    repair(&proxy);
    connected(&handle).await;
    until(&handle, "what ran is adopted", |c| c.adopted >= 4).await;
    runs.open_gate();
    site.all_done(handle, &runs, &[("held", 4), ("m", 300)])
        .await;
    for n in 0..4 {
        assert_eq!(runs.of(&format!("held{n}")), 1);
    }
}

fn nothing(_: &Proxy) {}

fn cut(cut: Cut) -> impl Fn(&Proxy) {
    move |proxy| {
        proxy.cut(cut);
    }
}

fn pass(proxy: &Proxy) {
    // What hung in the hole belongs to connections that nobody wants any more.
    proxy.cut(Cut::Reset);
    proxy.set_both(Flow::Pass);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_is_noticed_and_work_adopted() {
    check(cut(Cut::Reset), nothing).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_without_a_word_is_noticed_and_work_adopted() {
    check(cut(Cut::Fin), nothing).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_half_closed_connection_is_noticed_and_work_adopted() {
    check(
        |proxy| proxy.set(Way::ToClient, Flow::HalfClose),
        |proxy| proxy.set(Way::ToClient, Flow::Pass),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_black_hole_both_ways_is_noticed_within_two_heartbeats() {
    check(|proxy| proxy.set_both(Flow::Hold), pass).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_black_hole_towards_us_is_noticed_within_two_heartbeats() {
    check(|proxy| proxy.set(Way::ToClient, Flow::Hold), pass).await;
}

/// The broker's own heartbeats go on: it is the broker that notices, and its end of the connection tells us.
#[tokio::test(flavor = "multi_thread")]
async fn a_black_hole_towards_the_broker_ends_with_its_own_timeout() {
    let vhost = shared().await;
    let proxy = Proxy::start(([127, 0, 0, 1], vhost.port()).into());
    let site = Site::on(&vhost).await.through(proxy.port(), HEARTBEAT);
    site.publish("held", 4, "hold").await;
    site.publish("m", 300, "work 5").await;
    let runs = Runs::default();
    let handle = site.start(site.spec(runs.handler()));
    runs.at_least(100).await;
    proxy.set(Way::ToServer, Flow::Hold);
    eventually("the broker ends them", async || {
        let all = vhost.list_connections().await;
        (!all.iter().any(|one| one.vhost == vhost.name())).then_some(())
    })
    .await;
    pass(&proxy);
    connected(&handle).await;
    until(&handle, "what ran is adopted", |c| c.adopted >= 4).await;
    runs.open_gate();
    site.all_done(handle, &runs, &[("held", 4), ("m", 300)])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_trickles_is_slow_and_loses_nothing() {
    let vhost = shared().await;
    let proxy = Proxy::start(([127, 0, 0, 1], vhost.port()).into());
    let site = Site::on(&vhost).await.through(proxy.port(), HEARTBEAT);
    proxy.set_both(Flow::Trickle {
        bytes: 300,
        pause: Duration::from_millis(3),
    });
    site.publish("m", 60, "ok").await;
    let runs = Runs::default();
    let handle = site.start(site.spec(runs.handler()));
    let counts = site.all_done(handle, &runs, &[("m", 60)]).await;
    assert_eq!((counts.redelivered, counts.lost), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_over_a_dead_connection_ends_within_its_bounds() {
    let vhost = shared().await;
    let proxy = Proxy::start(([127, 0, 0, 1], vhost.port()).into());
    let site = Site::on(&vhost).await.through(proxy.port(), HEARTBEAT);
    site.publish("m", 4, "hold").await;
    let runs = Runs::default();
    let handle = site.start_with(site.spec(runs.handler()), Duration::from_secs(3));
    runs.at_least(4).await;
    proxy.set_both(Flow::Hold);
    let start = Instant::now();
    runs.open_gate();
    let report = drained(handle).await;
    let took = start.elapsed();
    assert!(took < Duration::from_secs(3 + 5), "{took:?} {report}");
    // The broker has them again, and another process runs them: what was not told was not done.
    pass(&proxy);
    vhost.close_connections(vhost.name(), "the test").await;
    site.counts("words", [4, 0, 0]).await;
    site.holds("words.results", 0).await;
    let second = Runs::default();
    let handle = site.start(site.spec(second.handler()));
    second.at_least(4).await;
    second.open_gate();
    site.all_done(handle, &second, &[("m", 4)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_while_nothing_answers_at_all_ends_within_its_bounds() {
    let vhost = shared().await;
    let proxy = Proxy::start(([127, 0, 0, 1], vhost.port()).into());
    let site = Site::on(&vhost).await.through(proxy.port(), HEARTBEAT);
    proxy.set_both(Flow::Hold);
    let runs = Runs::default();
    let handle = site.start_with(site.spec(runs.handler()), Duration::from_secs(3));
    eventually("it tries", async || (proxy.accepted() > 0).then_some(())).await;
    let start = Instant::now();
    let report = drained(handle).await;
    assert!(start.elapsed() < Duration::from_secs(1), "{report}");
}
