//! Odd messages, and messages of other clients.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use acquit_actors::model::HeaderValue;
use acquit_actors::ports::{Handler, HandlerOutcome, handler_fn};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable, LongString};
use lapin::{BasicProperties, Connection, ConnectionProperties};

use crate::broker_kit::{Vhost, eventually};
use crate::place::{Runs, counts, drained, until};
use crate::site::{Site, shared};

/// Publishes to `words` as any client does, confirmed.
async fn publish(uri: &str, messages: Vec<(BasicProperties, Vec<u8>)>) {
    let connection = Connection::connect(uri, ConnectionProperties::default());
    let connection = connection.await.expect("a connection");
    let channel = connection.create_channel().await.expect("a channel");
    let select = channel.confirm_select(ConfirmSelectOptions::default());
    select.await.expect("confirms");
    for (properties, body) in messages {
        let options = BasicPublishOptions::default();
        let sent = channel.basic_publish("".into(), "words".into(), options, &body, properties);
        let confirm = sent.await.expect("sent").await.expect("an answer");
        assert!(confirm.is_ack());
    }
    connection.close(200, "done".into()).await.ok();
}

fn plain() -> BasicProperties {
    BasicProperties::default()
}

fn table(entries: Vec<(&str, AMQPValue)>) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in entries {
        table.insert(name.into(), value);
    }
    table
}

fn text(text: impl Into<Vec<u8>>) -> AMQPValue {
    AMQPValue::LongString(LongString::from(text.into()))
}

/// Bodies as they arrived.
#[derive(Clone, Default)]
struct Bodies(Arc<Mutex<Vec<Vec<u8>>>>);

impl Bodies {
    fn handler(&self) -> Handler {
        let bodies = self.clone();
        handler_fn(move |context| {
            let bodies = bodies.clone();
            async move {
                let body = context.delivery().body.to_vec();
                bodies.lock().push(body);
                HandlerOutcome::completed()
            }
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_arrive_unchanged_empty_ones_and_ones_without_any_property_too() {
    let vhost = shared().await;
    let site = Site::on(&vhost).await;
    let empty_table = plain().with_headers(FieldTable::default());
    let json = plain().with_content_type("application/json".into());
    let messages = vec![
        (plain(), Vec::new()),
        (empty_table, Vec::new()),
        (
            plain().with_headers(table(vec![("a", text("b"))])),
            Vec::new(),
        ),
        (plain(), b"normal".to_vec()),
        (json.clone(), vec![0x80, 0x91, 0xFF]),
        (json, b"{not json".to_vec()),
        (
            plain().with_content_encoding("gzip".into()),
            vec![0x1f, 0x8b, 0, 0, 0],
        ),
        (plain(), (0..=255).collect()),
        (plain(), vec![7; 300_000]),
    ];
    let sent: Vec<Vec<u8>> = messages.iter().map(|(_, body)| body.clone()).collect();
    publish(&vhost.uri(), messages).await;
    let bodies = Bodies::default();
    let handle = site.start(site.spec(bodies.handler()).with_permits(1));
    until(&handle, "all are acked", |c| c.acked == 9).await;
    assert!(*bodies.lock() == sent, "bodies changed");
    assert!(drained(handle).await.clean);
    site.counts("words", [0, 0, 0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_property_values_pass_or_are_left_out_and_harm_nobody() {
    let vhost = shared().await;
    let site = Site::on(&vhost).await;
    let long = "x".repeat(255);
    let mut nested = AMQPValue::LongInt(1);
    for _ in 0..60 {
        nested = AMQPValue::FieldTable(table(vec![("t", nested)]));
    }
    let many = (0..5000).map(|n| (format!("h{n}"), AMQPValue::Boolean(true)));
    let mut thousands = FieldTable::default();
    for (name, value) in many {
        thousands.insert(name.into(), value);
    }
    let odd = vec![
        plain().with_priority(255),
        plain().with_timestamp(u64::MAX),
        plain()
            .with_type(long.as_str().into())
            .with_app_id(long.as_str().into()),
        plain().with_message_id(long.as_str().into()),
        plain()
            .with_reply_to("words".into())
            .with_correlation_id("ünï\n\0".into()),
        plain().with_expiration("4294967295".into()),
        plain().with_headers(table(vec![("deep", nested)])),
        plain().with_headers(table(vec![
            ("PATH", text("/x")),
            ("a=b", text([0xff, 0, 10])),
        ])),
        plain().with_headers(table(vec![("x-acquit-attempt", AMQPValue::LongInt(-5))])),
        plain().with_headers(table(vec![(
            "x-acquit-attempt",
            AMQPValue::LongLongInt(i64::MIN),
        )])),
        plain().with_headers(table(vec![("x-acquit-attempt", text("abc"))])),
        plain().with_headers(table(vec![
            ("x-death", text("abc")),
            ("x-delivery-count", text("9")),
        ])),
        plain().with_headers(thousands),
    ];
    let count = odd.len() as u64;
    let messages = odd.into_iter().map(|one| (one, b"ok".to_vec())).collect();
    publish(&vhost.uri(), messages).await;
    let runs = Runs::default();
    let handle = site.start(site.spec(runs.handler()));
    // 5,000 headers are more than a consumer takes.
    until(&handle, "all are settled", |c| {
        c.acked + c.rejected == count
    })
    .await;
    assert_eq!(counts(&handle).await.rejected, 1);
    site.holds("words.dead", 1).await;
    let forged = runs.all();
    assert!(forged.iter().all(|run| run.attempt == 1), "{forged:?}");
    let snapshot = handle.snapshot().await.expect("a snapshot");
    assert!(snapshot.connections.iter().all(|one| one.opened == 1));
    assert!(drained(handle).await.clean);
    site.counts("words", [0, 0, 0]).await;
}

/// Fails at great length.
fn long_winded() -> Handler {
    handler_fn(|_| async { HandlerOutcome::failed("e".repeat(200_000)) })
}

#[tokio::test(flavor = "multi_thread")]
async fn huge_headers_and_errors_are_cut_to_fit_and_reach_the_dead_letter_queue() {
    let vhost = shared().await;
    let site = Site::on(&vhost).await;
    let messages = [0, 1_000, 100_000, 130_000].map(|size| {
        let headers = table(vec![
            ("big", text(vec![b'h'; size])),
            ("small", text("kept")),
        ]);
        let id = format!("m{size}");
        (
            plain().with_message_id(id.into()).with_headers(headers),
            b"x".to_vec(),
        )
    });
    publish(&vhost.uri(), messages.to_vec()).await;
    let handle = site.start(site.spec(long_winded()));
    site.holds("words.dead", 4).await;
    until(&handle, "all are settled", |c| c.in_hand == 0).await;
    let snapshot = handle.snapshot().await.expect("a snapshot");
    assert!(
        snapshot.connections.iter().all(|one| one.opened == 1),
        "no frame too large"
    );
    assert!(drained(handle).await.clean);
    site.counts("words", [0, 0, 0]).await;
    let letters = read(&site, "words.dead", 4).await;
    let mut attempts = Vec::new();
    for (attempt, headers) in letters {
        let small = headers.get("small").and_then(HeaderValue::as_str);
        assert_eq!(small, Some("kept"));
        assert!(headers.contains_key("x-acquit-reason"), "{headers:?}");
        attempts.push(attempt);
    }
    // What does not fit a copy is a dead letter at once, trimmed.
    attempts.sort_unstable();
    assert_eq!(attempts, [1, 1, 3, 3]);
}

/// A letter's attempt and headers.
type Letter = (u32, BTreeMap<String, HeaderValue>);

/// Reads a queue empty, whatever the bodies say.
async fn read(site: &Site<'_>, queue: &str, count: u64) -> Vec<Letter> {
    let letters: Arc<Mutex<Vec<Letter>>> = Arc::default();
    let writer = Arc::clone(&letters);
    let handler = handler_fn(move |context| {
        let delivery = context.delivery();
        let headers = delivery.headers.iter();
        let headers = headers.map(|(name, value)| (name.to_owned(), value.clone()));
        let letter = (delivery.attempt.get(), headers.collect());
        let mut letters = writer.lock().unwrap_or_else(PoisonError::into_inner);
        letters.push(letter);
        async { HandlerOutcome::completed() }
    });
    let mut spec = site.spec(handler);
    spec.queue = queue.into();
    spec.reply_queue = None;
    let handle = site.start(spec);
    until(&handle, "all are read", |c| c.acked == count).await;
    drained(handle).await;
    letters
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_another_users_message_is_published_as_ours() {
    let vhost = shared().await;
    let site = Site::on(&vhost).await;
    let alice = format!("alice-{}", vhost.name());
    vhost.add_user(&alice, "a").await;
    vhost.set_permissions(&alice, vhost.name(), [".*"; 3]).await;
    let uri = vhost.uri().replace("guest:guest", &format!("{alice}:a"));
    let signed = plain().with_user_id(alice.as_str().into());
    publish(
        &uri,
        vec![
            (
                signed.clone().with_message_id("m0".into()),
                b"fail".to_vec(),
            ),
            (
                signed.with_message_id("m1".into()),
                b"fail-until 2".to_vec(),
            ),
        ],
    )
    .await;
    let runs = Runs::default();
    let handle = site.start(site.spec(runs.handler()));
    site.holds("words.dead", 1).await;
    until(&handle, "all are settled", |c| {
        c.in_hand == 0 && c.completed == 1
    })
    .await;
    assert_eq!((runs.of("m0"), runs.of("m1")), (3, 2));
    assert!(drained(handle).await.clean);
    let letters = read(&site, "words.dead", 1).await;
    let origin = letters.into_iter().next().expect("a letter").1;
    let user = origin
        .get("x-acquit-origin-user")
        .and_then(HeaderValue::as_str);
    assert_eq!(user, Some(alice.as_str()));
    vhost.delete_user(&alice).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_does_not_inherit_a_time_to_live_that_would_end_it() {
    let vhost = shared().await;
    let site = Site::on(&vhost).await;
    let runs = Runs::default();
    let handle = site.start(site.spec(runs.handler()));
    site.counts("words", [0, 0, 1]).await;
    let short = plain()
        .with_expiration("150".into())
        .with_message_id("m0".into());
    publish(&vhost.uri(), vec![(short, b"fail".to_vec())]).await;
    site.holds("words.dead", 1).await;
    assert_eq!(runs.of("m0"), 3);
    until(&handle, "it is settled", |c| c.in_hand == 0).await;
    assert!(drained(handle).await.clean);
    site.counts("words", [0, 0, 0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn poison_at_the_head_does_not_hold_up_what_is_good() {
    let vhost = shared().await;
    let site = Site::on(&vhost).await;
    site.publish("bad", 10, "fail").await;
    site.publish("good", 100, "work 10").await;
    let runs = Runs::default();
    let start = Instant::now();
    let handle = site.start(site.spec(runs.handler()).with_permits(10));
    until(&handle, "the good are done", |c| c.completed == 100).await;
    assert!(
        start.elapsed() < Duration::from_secs(3),
        "{:?}",
        start.elapsed()
    );
    site.holds("words.dead", 10).await;
    until(&handle, "all are settled", |c| c.in_hand == 0).await;
    let mut attempts: BTreeMap<String, u32> = BTreeMap::new();
    for run in runs
        .all()
        .into_iter()
        .filter(|run| run.id.starts_with("bad"))
    {
        *attempts.entry(run.id).or_default() += 1;
    }
    assert!(attempts.len() == 10 && attempts.values().all(|count| *count == 3));
    assert!(drained(handle).await.clean);
    site.counts("words", [0, 0, 0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_queue_that_is_away_costs_no_letter() {
    let vhost = shared().await;
    let site = Site::on(&vhost).await;
    vhost.delete_queue(vhost.name(), "words.dead").await;
    site.publish("m", 5, "reject").await;
    let runs = Runs::default();
    let handle = site.start(site.spec(runs.handler()));
    site.trouble(&handle, "words.dead").await;
    assert_eq!(counts(&handle).await.rejected, 0);
    site.declare().await;
    site.holds("words.dead", 5).await;
    until(&handle, "all are settled", |c| c.in_hand == 0).await;
    assert_eq!(runs.all().len(), 5, "each ran once");
    assert!(drained(handle).await.clean);
    site.counts("words", [0, 0, 0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_refused_in_words_and_nothing_is_settled_on_it() {
    let vhost = shared().await;
    let site = Site::on(&vhost).await;
    vhost.delete_queue(vhost.name(), "words").await;
    stream(&vhost).await;
    let runs = Runs::default();
    let handle = site.start(site.spec(runs.handler()));
    eventually("it is subscribed", async || {
        let snapshot = handle.snapshot().await.ok()?;
        let state = &snapshot.consumers[0].partitions[0].subscription;
        (state == "subscribed").then_some(())
    })
    .await;
    // Its first message tells what it is; AMQP has no other way to ask.
    publish(&vhost.uri(), vec![(plain(), b"ok".to_vec())]).await;
    site.trouble(&handle, "is a RabbitMQ stream").await;
    let snapshot = handle.snapshot().await.expect("a snapshot");
    assert!(
        snapshot.connections.iter().all(|one| one.opened == 1),
        "no 540"
    );
    drained(handle).await;
    assert!(runs.all().is_empty());
}

async fn stream(vhost: &Vhost) {
    let uri = vhost.uri();
    let connection = Connection::connect(&uri, ConnectionProperties::default());
    let connection = connection.await.expect("a connection");
    let channel = connection.create_channel().await.expect("a channel");
    let options = lapin::options::QueueDeclareOptions {
        durable: true,
        ..Default::default()
    };
    let declare = channel.queue_declare(
        "words".into(),
        options,
        table(vec![("x-queue-type", text("stream"))]),
    );
    declare.await.expect("a stream");
    connection.close(200, "done".into()).await.ok();
}
