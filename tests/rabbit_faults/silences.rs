//! A peer that answers late, never, or nonsense: a scripted one, for no broker does it on demand.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use acquit::transport::amqp::topology::{Argument, Task, perform};
use acquit::transport::amqp::{AmqpConsumer, AmqpOptions, AmqpTransport};
use acquit_actors::{ConsumerSpec, Engine, Handle};
use amq_protocol::frame::AMQPFrame;
use amq_protocol::protocol::basic::AMQPProperties;
use amq_protocol::protocol::{AMQPClass, basic, channel, connection};
use amq_protocol::types::AMQPValue;

use crate::broker_kit::{FakeServer, Handshake, Peer, delivery, eventually};
use crate::place::{Runs, connected, counts, drained};
use crate::site::options;

/// How long an answer is waited for in these tests.
const ANSWER: Duration = Duration::from_millis(500);

fn engine(server: &FakeServer, runs: &Runs) -> Handle {
    engine_with(server, runs, |options| {
        options.answer_timeout = ANSWER;
        options.connect_timeout = ANSWER;
    })
}

fn engine_with(server: &FakeServer, runs: &Runs, change: impl FnOnce(&mut AmqpOptions)) -> Handle {
    let consumer = AmqpConsumer::new("words", "words");
    let mut options = options(server.address().port(), "/", consumer);
    change(&mut options);
    let transport = AmqpTransport::open(options).expect("a thread");
    Engine::new(Arc::new(transport))
        .with_consumer(ConsumerSpec::new("words", "words", runs.handler()))
        .with_drain_timeout(Duration::from_secs(1))
        .start()
        .expect("an engine")
}

/// Answers what `is_silent` does not hold of; each silence counts, and is broken after `late`, if that is given.
async fn serve(
    mut peer: Peer,
    is_silent: fn(&AMQPClass) -> bool,
    silences: Arc<AtomicU64>,
    late: Option<Duration>,
) {
    while let Some(frame) = peer.next_frame().await {
        let AMQPFrame::Method(channel, method) = frame else {
            continue;
        };
        if is_silent(&method) && (late.is_none() || silences.load(Ordering::SeqCst) == 0) {
            silences.fetch_add(1, Ordering::SeqCst);
            let Some(late) = late else { continue };
            // tidy-allow: sleep: the peer takes its time
            tokio::time::sleep(late).await;
        }
        peer.answer(channel, &method).await;
    }
}

/// Accepts for ever.
fn serve_all(
    server: Arc<FakeServer>,
    is_silent: fn(&AMQPClass) -> bool,
    late: Option<Duration>,
) -> Arc<AtomicU64> {
    let silences = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&silences);
    tokio::spawn(async move {
        loop {
            let peer = server.accept().await;
            tokio::spawn(serve(peer, is_silent, Arc::clone(&counted), late));
        }
    });
    silences
}

async fn subscription(handle: &Handle) -> (String, Option<String>) {
    let snapshot = handle.snapshot().await.expect("a snapshot");
    let partition = &snapshot.consumers[0].partitions[0];
    (partition.subscription.clone(), partition.trouble.clone())
}

async fn subscribed(handle: &Handle) {
    eventually("it is subscribed", async || {
        (subscription(handle).await.0 == "subscribed").then_some(())
    })
    .await;
}

/// Nothing hangs on an answer that never comes: it is said, tried again, and a drain ends.
async fn opening(is_silent: fn(&AMQPClass) -> bool) {
    let server = Arc::new(FakeServer::start().await);
    let silences = serve_all(server.clone(), is_silent, None);
    let handle = engine(&server, &Runs::default());
    eventually("it is said", async || {
        let (_, trouble) = subscription(&handle).await;
        trouble?.contains("500ms").then_some(())
    })
    .await;
    eventually("it tries again", async || {
        (silences.load(Ordering::SeqCst) >= 2).then_some(())
    })
    .await;
    ends_in_time(handle).await;
}

async fn ends_in_time(handle: Handle) {
    let start = Instant::now();
    let report = drained(handle).await;
    assert!(start.elapsed() < Duration::from_secs(5), "{report}");
}

fn is_channel_open(method: &AMQPClass) -> bool {
    matches!(method, AMQPClass::Channel(channel::AMQPMethod::Open(_)))
}

fn is_qos(method: &AMQPClass) -> bool {
    matches!(method, AMQPClass::Basic(basic::AMQPMethod::Qos(_)))
}

fn is_consume(method: &AMQPClass) -> bool {
    matches!(method, AMQPClass::Basic(basic::AMQPMethod::Consume(_)))
}

fn is_ack(method: &AMQPClass) -> bool {
    matches!(method, AMQPClass::Basic(basic::AMQPMethod::Ack(_)))
}

fn is_cancel(method: &AMQPClass) -> bool {
    matches!(method, AMQPClass::Basic(basic::AMQPMethod::Cancel(_)))
}

fn is_close(method: &AMQPClass) -> bool {
    matches!(
        method,
        AMQPClass::Channel(channel::AMQPMethod::Close(_))
            | AMQPClass::Connection(connection::AMQPMethod::Close(_))
    )
}

fn is_close_ok(method: &AMQPClass) -> bool {
    matches!(method, AMQPClass::Channel(channel::AMQPMethod::CloseOk(_)))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_channel_that_never_opens_is_said_and_tried_again() {
    opening(is_channel_open).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefetch_that_is_never_answered_is_said_and_tried_again() {
    opening(is_qos).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_that_is_never_answered_is_said_and_tried_again() {
    opening(is_consume).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_channel_whose_subscription_was_given_up_is_closed() {
    let server = Arc::new(FakeServer::start().await);
    let closed = Arc::new(AtomicU64::new(0));
    let (accepting, counting) = (Arc::clone(&server), Arc::clone(&closed));
    tokio::spawn(async move {
        loop {
            let mut peer = accepting.accept().await;
            let counting = Arc::clone(&counting);
            tokio::spawn(async move {
                while let Some(frame) = peer.next_frame().await {
                    let AMQPFrame::Method(channel, method) = frame else {
                        continue;
                    };
                    if matches!(method, AMQPClass::Channel(channel::AMQPMethod::Close(_))) {
                        counting.fetch_add(1, Ordering::SeqCst);
                    }
                    if !is_consume(&method) {
                        peer.answer(channel, &method).await;
                    }
                }
            });
        }
    });
    let handle = engine(&server, &Runs::default());
    eventually("each one that was given up is closed", async || {
        (closed.load(Ordering::SeqCst) >= 2).then_some(())
    })
    .await;
    ends_in_time(handle).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn late_answers_to_what_was_given_up_harm_nothing() {
    for is_late in [is_channel_open, is_qos, is_consume] {
        let server = Arc::new(FakeServer::start().await);
        serve_all(server.clone(), is_late, Some(ANSWER * 3));
        let handle = engine(&server, &Runs::default());
        subscribed(&handle).await;
        ends_in_time(handle).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_whose_cancel_or_close_is_never_answered_ends_in_time() {
    for is_silent in [is_cancel, is_close] {
        let server = Arc::new(FakeServer::start().await);
        let silences = serve_all(server.clone(), is_silent, None);
        let handle = engine(&server, &Runs::default());
        subscribed(&handle).await;
        ends_in_time(handle).await;
        assert!(silences.load(Ordering::SeqCst) > 0);
    }
}

fn is_channel_close(method: &AMQPClass) -> bool {
    matches!(method, AMQPClass::Channel(channel::AMQPMethod::Close(_)))
}

/// An orderly end, and not what is said when a connection is dropped.
fn is_done(method: &AMQPClass) -> bool {
    match method {
        AMQPClass::Connection(connection::AMQPMethod::Close(close)) => {
            close.reply_text.as_str() == "done"
        }
        _ => false,
    }
}

fn is_farewell(method: &AMQPClass) -> bool {
    is_cancel(method) || is_close(method)
}

/// Broker that is silent about some things, and counts the orderly ends it hears.
fn serve_to_the_end(server: Arc<FakeServer>, is_silent: fn(&AMQPClass) -> bool) -> Arc<AtomicU64> {
    let ends = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&ends);
    tokio::spawn(async move {
        loop {
            let (mut peer, ends) = (server.accept().await, Arc::clone(&counted));
            tokio::spawn(async move {
                while let Some(frame) = peer.next_frame().await {
                    let AMQPFrame::Method(channel, method) = frame else {
                        continue;
                    };
                    ends.fetch_add(is_done(&method).into(), Ordering::SeqCst);
                    if !is_silent(&method) {
                        peer.answer(channel, &method).await;
                    }
                }
            });
        }
    });
    ends
}

/// Each part of the end has its own bound, however long other answers may take.
#[tokio::test(flavor = "multi_thread")]
async fn a_drain_closes_its_connections_orderly_whatever_is_not_answered_before() {
    for is_silent in [is_cancel, is_channel_close, is_farewell] {
        let server = Arc::new(FakeServer::start().await);
        let ends = serve_to_the_end(server.clone(), is_silent);
        let handle = engine_with(&server, &Runs::default(), |_| {});
        subscribed(&handle).await;
        connected(&handle).await;
        let start = Instant::now();
        let report = drained(handle).await;
        let took = start.elapsed();
        assert_eq!(ends.load(Ordering::SeqCst), 2, "{took:?} {report}");
        assert!(took < Duration::from_millis(2500), "{took:?} {report}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_linger_that_is_set_too_long_is_cut_and_the_channel_closed_orderly() {
    let server = Arc::new(FakeServer::start().await);
    let runs = Runs::default();
    let handle = engine_with(&server, &runs, |options| {
        options.linger = Duration::from_secs(60);
    });
    let (one, two) = (server.accept().await, server.accept().await);
    let publishing = tokio::spawn(async move {
        let mut peers = [one, two];
        let [one, two] = &mut peers;
        tokio::select! {
            found = one.serve_until_consumer() => (found, 0, peers),
            found = two.serve_until_consumer() => (found, 1, peers),
        }
    });
    let ((channel, tag), which, peers) = publishing.await.expect("a consumer");
    let [one, two] = peers;
    let (mut peer, mut other) = if which == 0 { (one, two) } else { (two, one) };
    tokio::spawn(async move { other.serve().await });
    let properties = AMQPProperties::default();
    peer.deliver(channel, delivery(&tag, 1), properties, b"ok")
        .await;
    peer.serve_until(is_ack).await;
    let start = Instant::now();
    let draining = tokio::spawn(drained(handle));
    let (channel, close) = peer.serve_until(is_channel_close).await;
    let lingered = start.elapsed();
    assert!(
        (Duration::from_millis(900)..Duration::from_millis(1400)).contains(&lingered),
        "{lingered:?}"
    );
    peer.answer(channel, &close).await;
    peer.serve().await;
    let report = draining.await.expect("no panic");
    assert!(report.clean, "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handshake_that_stops_halfway_is_given_up_and_tried_again() {
    let server = FakeServer::start().await;
    let handle = engine(&server, &Runs::default());
    // Two connections, three tries each; nobody says a word to them.
    let mut mute = Vec::new();
    for _ in 0..6 {
        mute.push(server.accept_raw().await);
    }
    // What was given up is closed, not left to itself.
    for mut peer in mute.drain(..4) {
        while peer.next_frame().await.is_some() {}
    }
    ends_in_time(handle).await;
}

/// The client's own work on a connection, a thread each, would wait for ever for a peer that says nothing.
#[tokio::test(flavor = "multi_thread")]
async fn handshakes_that_were_given_up_leave_neither_a_socket_nor_a_thread() {
    const TRIES: usize = 20;
    let server = FakeServer::start().await;
    let mut options = options(
        server.address().port(),
        "/",
        AmqpConsumer::new("words", "words"),
    );
    options.connect_timeout = Duration::from_millis(100);
    options.uris = vec![options.uris[0].clone(); TRIES];
    let before = client_threads();
    let transport = AmqpTransport::open(options).expect("a thread");
    let handle = Engine::new(Arc::new(transport)).start().expect("an engine");
    // Two connections try at the same time.
    let mut mute = Vec::new();
    while mute.len() < 2 * TRIES {
        mute.push(server.accept_raw().await);
    }
    for mut peer in mute {
        // The client's first words, and its end.
        while peer.next_frame().await.is_some() {}
    }
    ends_in_time(handle).await;
    // Other tests may have connections of their own.
    eventually("the threads end", async || {
        (client_threads() < before + TRIES).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_at_a_broker_that_is_mute_is_given_up_and_leaves_nothing() {
    let server = FakeServer::start().await;
    let consumer = AmqpConsumer::new("words", "words");
    let mut options = options(server.address().port(), "/", consumer);
    options.connect_timeout = ANSWER;
    let looking = tokio::spawn(async move { perform(&options, Task::Check).await });
    let mut peer = server.accept_raw().await;
    while peer.next_frame().await.is_some() {}
    let error = looking.await.expect("no panic").expect_err("a mute broker");
    assert!(error.to_string().contains("500ms"), "{error}");
}

/// A broker closes the connection after it has refused a login; one that does not keeps nothing of ours.
#[tokio::test(flavor = "multi_thread")]
async fn a_handshake_that_is_refused_is_ended_by_the_client_too() {
    let refusal = |code, text: &str| Some((code, text.to_owned()));
    let (login, vhost) = (
        refusal(403, "ACCESS_REFUSED - Login was refused"),
        refusal(530, "NOT_ALLOWED - vhost nowhere not found"),
    );
    for (refuse_credentials, refuse_open) in [(login, None), (None, vhost)] {
        let server = FakeServer::start().await;
        let handle = engine(&server, &Runs::default());
        let handshake = Handshake {
            refuse_credentials,
            refuse_open,
            ..Handshake::default()
        };
        let mut peer = server.accept_with(handshake).await;
        while peer.next_frame().await.is_some() {}
        ends_in_time(handle).await;
    }
}

/// Counts the threads of the client library in this process.
fn client_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("the threads of this process");
    tasks
        .flatten()
        .filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok())
        .filter(|name| name.starts_with("lapin-io-loop"))
        .count()
}

/// Plays a broker whose every subscription is spoilt by `spoil`; counts the subscriptions.
fn spoil_all<F>(server: Arc<FakeServer>, spoil: fn(Peer, u16, String) -> F) -> Arc<AtomicU64>
where
    F: Future<Output = ()> + Send + 'static,
{
    let subscriptions = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&subscriptions);
    tokio::spawn(async move {
        loop {
            let mut peer = server.accept().await;
            let counted = Arc::clone(&counted);
            tokio::spawn(async move {
                let (channel, tag) = peer.serve_until_consumer().await;
                counted.fetch_add(1, Ordering::SeqCst);
                spoil(peer, channel, tag).await;
            });
        }
    });
    subscriptions
}

#[tokio::test(flavor = "multi_thread")]
async fn a_header_of_an_unknown_type_ends_in_bounded_tries() {
    let server = Arc::new(FakeServer::start().await);
    let subscriptions = spoil_all(
        server.clone(),
        |mut peer: Peer, channel: u16, tag: String| async move {
            peer.deliver_unknown_field(channel, delivery(&tag, 1)).await;
            peer.serve().await;
        },
    );
    let start = Instant::now();
    let runs = Runs::default();
    let handle = engine(&server, &runs);
    eventually("four tries", async || {
        (subscriptions.load(Ordering::SeqCst) >= 4).then_some(())
    })
    .await;
    assert!(
        start.elapsed() > Duration::from_secs(1),
        "{:?}",
        start.elapsed()
    );
    assert!(runs.all().is_empty());
    ends_in_time(handle).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tags_that_do_not_follow_each_other_end_their_channel_unsettled() {
    static SETTLED_PAST_THE_HOLE: AtomicU64 = AtomicU64::new(0);
    let server = Arc::new(FakeServer::start().await);
    let subscriptions = spoil_all(
        server.clone(),
        |mut peer: Peer, channel: u16, tag: String| async move {
            for number in [1, 2, 5] {
                let properties = AMQPProperties::default();
                peer.deliver(channel, delivery(&tag, number), properties, b"ok")
                    .await;
            }
            while let Some(frame) = peer.next_frame().await {
                let AMQPFrame::Method(channel, method) = frame else {
                    continue;
                };
                if let AMQPClass::Basic(basic::AMQPMethod::Ack(ack)) = &method
                    && ack.delivery_tag > 2
                {
                    SETTLED_PAST_THE_HOLE.fetch_add(1, Ordering::SeqCst);
                }
                peer.answer(channel, &method).await;
            }
        },
    );
    let handle = engine(&server, &Runs::default());
    eventually("it is said", async || {
        let (_, trouble) = subscription(&handle).await;
        trouble?.contains("do not follow").then_some(())
    })
    .await;
    assert!(subscriptions.load(Ordering::SeqCst) >= 1);
    assert!(counts(&handle).await.is_balanced());
    ends_in_time(handle).await;
    assert_eq!(SETTLED_PAST_THE_HOLE.load(Ordering::SeqCst), 0);
}

/// What RabbitMQ has done by mistake: 406 for tags that were settled rightly.
#[tokio::test(flavor = "multi_thread")]
async fn channels_closed_over_nothing_are_rebuilt_and_nothing_is_lost() {
    let server = Arc::new(FakeServer::start().await);
    let runs = Runs::default();
    let handle = engine(&server, &runs);
    let (mut one, mut two) = (server.accept().await, server.accept().await);
    // Which of the two consumes is not known.
    let peer = tokio::select! {
        _ = async { let found = one.serve_until(is_qos).await; one.answer(found.0, &found.1).await } => one,
        _ = async { let found = two.serve_until(is_qos).await; two.answer(found.0, &found.1).await } => two,
    };
    let mut peer = peer;
    for round in 1..=6_u64 {
        let (channel, tag) = peer.serve_until_consumer().await;
        for number in 1..=round {
            let properties =
                AMQPProperties::default().with_message_id(format!("{round}-{number}").into());
            peer.deliver(channel, delivery(&tag, number), properties, b"ok")
                .await;
        }
        // All are acked before the close: this broker hands nothing out a second time.
        let mut unsettled: BTreeSet<u64> = (1..=round).collect();
        while !unsettled.is_empty() {
            let (_, method) = peer.serve_until(is_ack).await;
            if let AMQPClass::Basic(basic::AMQPMethod::Ack(ack)) = method {
                let covers =
                    |tag: &u64| *tag == ack.delivery_tag || ack.multiple && *tag < ack.delivery_tag;
                unsettled.retain(|tag| !covers(tag));
            }
        }
        peer.close_channel(channel, 406, "PRECONDITION_FAILED - unknown delivery tag 1")
            .await;
    }
    let _serving = tokio::spawn(async move { peer.serve().await });
    subscribed(&handle).await;
    eventually("all are settled", async || {
        let counts = counts(&handle).await;
        (counts.received == 21 && counts.in_hand == 0).then_some(())
    })
    .await;
    let snapshot = handle.snapshot().await.expect("a snapshot");
    assert!(snapshot.connections.iter().all(|one| one.opened <= 1));
    ends_in_time(handle).await;
    assert_eq!(runs.all().len(), 21);
}

/// The client takes frames behind a channel's close for a mistake of the whole connection (RabbitMQ sends such frames
/// under load). That costs the connection, and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_behind_the_close_of_its_channel_is_survived() {
    let server = Arc::new(FakeServer::start().await);
    let subscriptions = spoil_all(
        server.clone(),
        |mut peer: Peer, channel: u16, tag: String| async move {
            for number in [1, 2] {
                let properties = AMQPProperties::default();
                let frame = delivery(&tag, number);
                peer.deliver(channel, frame, properties, b"ok").await;
            }
            peer.close_channel(channel, 406, "PRECONDITION_FAILED - the test")
                .await;
            // Sent before the answer to the close was read, as far as the client can tell.
            peer.serve_until(is_close_ok).await;
            let properties = AMQPProperties::default();
            let frame = delivery(&tag, 3);
            peer.deliver(channel, frame, properties, b"ok").await;
            peer.serve().await;
        },
    );
    let handle = engine(&server, &Runs::default());
    eventually("it comes back again and again", async || {
        (subscriptions.load(Ordering::SeqCst) >= 3).then_some(())
    })
    .await;
    assert!(counts(&handle).await.is_balanced());
    ends_in_time(handle).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_carries_its_priority_and_arguments() {
    let server = FakeServer::start().await;
    let mut consumer = AmqpConsumer::new("words", "words");
    consumer.priority = Some(-7);
    let argument = ("x-own".to_owned(), Argument::Number(5));
    consumer.arguments.extend([argument]);
    let options = options(server.address().port(), "/", consumer);
    let transport = AmqpTransport::open(options).expect("a thread");
    let handle = Engine::new(Arc::new(transport))
        .with_consumer(ConsumerSpec::new(
            "words",
            "words",
            Runs::default().handler(),
        ))
        .start()
        .expect("an engine");
    let (mut one, mut two) = (server.accept().await, server.accept().await);
    let (_, method) = tokio::select! {
        found = one.serve_until(is_consume) => found,
        found = two.serve_until(is_consume) => found,
    };
    let AMQPClass::Basic(basic::AMQPMethod::Consume(consume)) = method else {
        unreachable!("asked for it above");
    };
    let table = consume.arguments.inner();
    assert_eq!(table.get("x-priority"), Some(&AMQPValue::LongInt(-7)));
    assert_eq!(table.get("x-own"), Some(&AMQPValue::LongLongInt(5)));
    ends_in_time(handle).await;
}
