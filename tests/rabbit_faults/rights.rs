//! Users, permissions and virtual hosts change while an engine runs.

use acquit::transport::amqp::Secret;
use acquit_actors::Handle;

use crate::broker_kit::{Vhost, eventually};
use crate::place::{Runs, connected, counts, until};
use crate::site::{Site, shared};

const ALL: [&str; 3] = [".*", ".*", ".*"];

/// A site that the engine enters as a user of its own, with work done and work held.
async fn begun<'a>(vhost: &'a Vhost, runs: &Runs) -> (Site<'a>, String, Handle) {
    let user = format!("user-{}", vhost.name());
    vhost.add_user(&user, "first").await;
    vhost.set_permissions(&user, vhost.name(), ALL).await;
    let mut site = Site::on(vhost).await;
    site.options.uris[0].user.clone_from(&user);
    site.options.uris[0].password = Secret::new("first");
    site.publish("m", 10, "ok").await;
    site.publish("held", 2, "hold").await;
    let handle = site.start(site.spec(runs.handler()));
    until(&handle, "the first are done", |c| c.acked == 10).await;
    runs.at_least(12).await;
    (site, user, handle)
}

/// The rest once all is repaired: new work, and the held ones run once.
async fn recovers(site: &Site<'_>, handle: Handle, runs: &Runs) {
    connected(&handle).await;
    site.publish("after", 10, "ok").await;
    until(&handle, "it goes on", |c| c.acked == 20).await;
    runs.open_gate();
    let published = [("m", 10), ("held", 2), ("after", 10)];
    site.all_done(handle, runs, &published).await;
    assert_eq!(runs.all().len(), 22, "each ran once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_password_is_shown_and_consuming_goes_on_when_it_is_right_again() {
    let (vhost, runs) = (shared().await, Runs::default());
    let (site, user, handle) = begun(&vhost, &runs).await;
    vhost.change_password(&user, "second").await;
    assert_eq!(counts(&handle).await.lost, 0, "open connections stay");
    vhost.close_connections(vhost.name(), "the test").await;
    site.trouble(&handle, "refused").await;
    vhost.change_password(&user, "first").await;
    recovers(&site, handle, &runs).await;
    vhost.delete_user(&user).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_who_is_away_for_a_while_is_waited_for() {
    let (vhost, runs) = (shared().await, Runs::default());
    let (site, user, handle) = begun(&vhost, &runs).await;
    vhost.delete_user(&user).await;
    vhost.close_connections(vhost.name(), "the test").await;
    site.trouble(&handle, "refused").await;
    vhost.add_user(&user, "first").await;
    vhost.set_permissions(&user, vhost.name(), ALL).await;
    recovers(&site, handle, &runs).await;
    vhost.delete_user(&user).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_read_permission_is_shown_with_its_queue() {
    let (vhost, runs) = (shared().await, Runs::default());
    let (site, user, handle) = begun(&vhost, &runs).await;
    let name = vhost.name();
    vhost.set_permissions(&user, name, ["", ".*", ""]).await;
    vhost.close_connections(name, "the test").await;
    site.trouble(&handle, "no permission").await;
    vhost.set_permissions(&user, name, ALL).await;
    recovers(&site, handle, &runs).await;
    vhost.delete_user(&user).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_write_permission_keeps_the_work_until_it_is_back() {
    let (vhost, runs) = (shared().await, Runs::default());
    let (site, user, handle) = begun(&vhost, &runs).await;
    let name = vhost.name();
    vhost.set_permissions(&user, name, [".*", "", ".*"]).await;
    vhost.close_connections(name, "the test").await;
    connected(&handle).await;
    until(&handle, "the held ones are adopted", |c| c.adopted == 2).await;
    runs.open_gate();
    site.trouble(&handle, "no permission").await;
    assert_eq!(counts(&handle).await.acked, 10);
    vhost.set_permissions(&user, name, ALL).await;
    // A channel remembers what it was allowed for a while.
    vhost.close_connections(name, "the test").await;
    site.all_done(handle, &runs, &[("m", 10), ("held", 2)])
        .await;
    assert_eq!(runs.all().len(), 12, "each ran once");
    vhost.delete_user(&user).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_virtual_host_is_waited_for_and_consumed_when_it_is_back() {
    let (vhost, runs) = (shared().await, Runs::default());
    let site = Site::on(&vhost).await;
    site.publish("gone", 2, "hold").await;
    let handle = site.start(site.spec(runs.handler()));
    runs.at_least(2).await;
    vhost.delete_vhost(vhost.name()).await;
    site.trouble(&handle, "there is no vhost").await;
    runs.open_gate();
    until(&handle, "what ran is lost", |c| {
        c.lost == 2 && c.in_hand == 0
    })
    .await;
    vhost.add_vhost(vhost.name()).await;
    site.declare().await;
    site.publish("new", 20, "ok").await;
    until(&handle, "it goes on", |c| c.acked == 20).await;
    eventually("the replies are there", async || {
        (site.messages("words.results").await? == 20).then_some(())
    })
    .await;
    assert!(crate::place::drained(handle).await.clean);
    site.counts("words", [0, 0, 0]).await;
}
