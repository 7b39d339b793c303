//! What a publisher believes, of a scripted broker that returns, confirms and is silent as no real one does on demand.

use std::sync::Arc;
use std::time::{Duration, Instant};

use acquit::transport::amqp::{AmqpConsumer, AmqpTransport};
use acquit_actors::model::Outgoing;
use acquit_actors::ports::{PublishError, PublishReply, Transport as _};
use acquit_actors::{Engine, Handle};
use amq_protocol::frame::{AMQPContentHeader, AMQPFrame};
use amq_protocol::protocol::basic::AMQPProperties;
use amq_protocol::protocol::{AMQPClass, basic};
use tokio::sync::oneshot;

use crate::broker_kit::{FakeServer, Handshake, Peer};
use crate::place::connected;
use crate::site::options;

type Answer = Result<(), PublishError>;

/// A transport whose connections an engine without consumers keeps.
struct Bench {
    server: Arc<FakeServer>,
    transport: AmqpTransport,
    handle: Handle,
}

impl Bench {
    async fn new(answer: Duration) -> Self {
        let server = Arc::new(FakeServer::start().await);
        let consumer = AmqpConsumer::new("words", "words");
        let mut options = options(server.address().port(), "/", consumer);
        options.answer_timeout = answer;
        let transport = AmqpTransport::open(options).expect("a thread");
        let handle = Engine::new(Arc::new(transport.clone()))
            .start()
            .expect("an engine");
        Self {
            server,
            transport,
            handle,
        }
    }

    /// The two connections; which of them publishes is told by what is said on it.
    async fn peers(&self, handshake: &Handshake) -> [Peer; 2] {
        let one = self.server.accept_with(handshake.clone()).await;
        let two = self.server.accept_with(handshake.clone()).await;
        [one, two]
    }

    fn publish(&self, id: &str, queue: &str) -> oneshot::Receiver<Answer> {
        self.publish_this(Outgoing::new(queue.into(), "body").with_id(id.to_owned()))
    }

    fn publish_this(&self, message: Outgoing) -> oneshot::Receiver<Answer> {
        let (reply, answer) = PublishReply::channel();
        self.transport.publisher().publish(message, reply);
        answer
    }
}

async fn answered(answer: oneshot::Receiver<Answer>) -> Answer {
    let answer = tokio::time::timeout(Duration::from_secs(20), answer).await;
    answer.expect("an answer in time").expect("an answer")
}

/// One publish as it came.
struct Got {
    channel: u16,
    id: String,
    properties: AMQPProperties,
    queue: String,
}

/// Answers until a whole publish is there.
async fn next_publish(peer: &mut Peer) -> Option<Got> {
    let mut queue = None;
    while let Some(frame) = peer.next_frame().await {
        match frame {
            AMQPFrame::Method(_, AMQPClass::Basic(basic::AMQPMethod::Publish(publish))) => {
                queue = Some(publish.routing_key.to_string());
            }
            AMQPFrame::Method(channel, method) => peer.answer(channel, &method).await,
            AMQPFrame::Header(channel, header) => {
                let id = header.properties.message_id().clone().expect("an id");
                // Every body here is one frame.
                if header.body_size > 0 {
                    peer.next_frame().await;
                }
                return Some(Got {
                    channel,
                    id: id.to_string(),
                    properties: header.properties,
                    queue: queue.take().expect("a publish goes before its header"),
                });
            }
            _ => {}
        }
    }
    None
}

async fn give_back(peer: &mut Peer, got: &Got) {
    let method = basic::AMQPMethod::Return(basic::Return {
        reply_code: 312,
        reply_text: "NO_ROUTE".into(),
        exchange: "".into(),
        routing_key: got.queue.as_str().into(),
    });
    peer.send(got.channel, AMQPClass::Basic(method)).await;
    let header = AMQPContentHeader {
        class_id: 60,
        body_size: 4,
        properties: got.properties.clone(),
    };
    peer.send_frame(&AMQPFrame::Header(got.channel, header))
        .await;
    peer.send_frame(&AMQPFrame::Body(got.channel, b"body".to_vec()))
        .await;
}

async fn ack(peer: &mut Peer, channel: u16, delivery_tag: u64, multiple: bool) {
    let ack = basic::Ack {
        delivery_tag,
        multiple,
    };
    peer.send(channel, AMQPClass::Basic(basic::AMQPMethod::Ack(ack)))
        .await;
}

/// Runs `play` on whichever connection publishes; the other is answered.
async fn playing<F, P>(peers: [Peer; 2], play: P) -> tokio::task::JoinHandle<()>
where
    P: Fn(Peer) -> F + Send + Copy + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let [one, two] = peers;
    tokio::spawn(async move {
        tokio::join!(play(one), play(two));
    })
}

/// The client library gives a return to whichever confirm it resolves next, in no order.
#[tokio::test(flavor = "multi_thread")]
async fn of_many_confirmed_at_once_none_that_was_returned_is_taken_for_published() {
    const AT_ONCE: u64 = 40;
    let bench = Bench::new(Duration::from_secs(10)).await;
    let peers = bench.peers(&Handshake::default()).await;
    let _playing = playing(peers, |mut peer: Peer| async move {
        let mut tag = 0;
        while let Some(got) = next_publish(&mut peer).await {
            tag += 1;
            if got.queue == "gone" {
                give_back(&mut peer, &got).await;
            }
            if tag % AT_ONCE == 0 {
                ack(&mut peer, got.channel, tag, true).await;
            }
        }
    })
    .await;
    for round in 0..50 {
        let answers: Vec<_> = (0..AT_ONCE)
            .map(|number| {
                let queue = if number % 3 == 0 { "there" } else { "gone" };
                (queue, bench.publish(&format!("{round}-{number}"), queue))
            })
            .collect();
        for (queue, answer) in answers {
            match (queue, answered(answer).await) {
                ("there", Ok(())) => {}
                ("gone", Err(PublishError::Outage(text))) if text.contains("returned") => {}
                wrong => panic!("{wrong:?}"),
            }
        }
    }
    bench.handle.drain_and_wait("done").await;
}

/// The two go to different queues under one id, as a reply and a dead letter may.
#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_is_under_way_twice_gets_each_queue_s_own_answer() {
    let bench = Bench::new(Duration::from_secs(10)).await;
    let peers = bench.peers(&Handshake::default()).await;
    let _playing = playing(peers, |mut peer: Peer| async move {
        let one = next_publish(&mut peer).await;
        let two = next_publish(&mut peer).await;
        let (Some(one), Some(two)) = (one, two) else {
            return;
        };
        let gone = if one.queue == "gone" { &one } else { &two };
        give_back(&mut peer, gone).await;
        ack(&mut peer, one.channel, 2, true).await;
        peer.serve().await;
    })
    .await;
    let there = bench.publish("same", "there");
    let gone = bench.publish("same", "gone");
    assert_eq!(answered(there).await, Ok(()));
    assert!(matches!(answered(gone).await, Err(PublishError::Outage(_))));
    bench.handle.drain_and_wait("done").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_confirm_that_never_comes_is_unknown_in_time_and_a_new_channel_goes_on() {
    let bench = Bench::new(Duration::from_millis(500)).await;
    let peers = bench.peers(&Handshake::default()).await;
    let _playing = playing(peers, |mut peer: Peer| async move {
        let mut first = None;
        while let Some(got) = next_publish(&mut peer).await {
            // The first channel's publishes are heard and never answered.
            if *first.get_or_insert(got.channel) != got.channel {
                ack(&mut peer, got.channel, 1, false).await;
            }
        }
    })
    .await;
    let start = Instant::now();
    assert_eq!(
        answered(bench.publish("m", "q")).await,
        Err(PublishError::Unknown)
    );
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );
    assert_eq!(answered(bench.publish("m", "q")).await, Ok(()));
    bench.handle.drain_and_wait("done").await;
}

/// One queue has lost its majority; the others on the same channel go on.
#[tokio::test(flavor = "multi_thread")]
async fn one_queue_that_owes_its_confirms_does_not_spoil_the_others() {
    let bench = Bench::new(Duration::from_secs(2)).await;
    let peers = bench.peers(&Handshake::default()).await;
    let _playing = playing(peers, |mut peer: Peer| async move {
        let (mut tag, mut channels) = (0, Vec::new());
        while let Some(got) = next_publish(&mut peer).await {
            tag += 1;
            channels.push(got.channel);
            assert_eq!(channels[0], got.channel, "the channel is kept");
            if got.queue != "stuck" {
                ack(&mut peer, got.channel, tag, false).await;
            }
        }
    })
    .await;
    let mut stuck = bench.publish("stuck", "stuck");
    let mut others = 0;
    let answer = loop {
        tokio::select! {
            biased;
            answer = &mut stuck => break answer,
            other = answered(bench.publish(&format!("m{others}"), "q")) => {
                assert_eq!(other, Ok(()));
                others += 1;
            }
        }
    };
    assert_eq!(answer, Ok(Err(PublishError::Unknown)));
    assert!(others > 0);
    assert_eq!(answered(bench.publish("last", "q")).await, Ok(()));
    bench.handle.drain_and_wait("done").await;
}

/// A broker that cannot read a frame ends the whole connection. Who it was is found out, and is refused: it must not end
/// one connection after the other for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_publish_that_costs_the_connection_is_found_and_refused() {
    let bench = Bench::new(Duration::from_secs(10)).await;
    let server = Arc::clone(&bench.server);
    let _playing = tokio::spawn(async move {
        loop {
            let mut peer = server.accept().await;
            tokio::spawn(async move {
                let mut tag = 0;
                while let Some(got) = next_publish(&mut peer).await {
                    tag += 1;
                    if got.id == "poison" {
                        peer.close_connection(501, "FRAME_ERROR - the test").await;
                        // As a broker does: it waits for the answer.
                        return peer.serve().await;
                    }
                    ack(&mut peer, got.channel, tag, false).await;
                }
            });
        }
    });
    let mut refused = 0;
    let mut left: Vec<String> = (0..5).map(|number| format!("m{number}")).collect();
    left.insert(2, "poison".to_owned());
    let deadline = Instant::now() + Duration::from_secs(20);
    while !left.is_empty() && Instant::now() < deadline {
        connected(&bench.handle).await;
        let answers: Vec<_> = left
            .iter()
            .map(|id| (id.clone(), bench.publish(id, "q")))
            .collect();
        left.clear();
        for (id, answer) in answers {
            match answered(answer).await {
                Ok(()) => assert_ne!(id, "poison"),
                Err(PublishError::Refused(text)) => {
                    assert!(id == "poison" && text.contains("501"), "{id}: {text}");
                    refused += 1;
                }
                Err(_) => left.push(id),
            }
        }
    }
    assert_eq!((left.len(), refused), (0, 1), "{left:?}");
    bench.handle.drain_and_wait("done").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_over_a_small_frame_are_refused_before_they_are_sent() {
    let bench = Bench::new(Duration::from_secs(10)).await;
    let small = Handshake {
        frame_max: 8192,
        ..Handshake::default()
    };
    let peers = bench.peers(&small).await;
    let _playing = playing(peers, |mut peer: Peer| async move {
        let mut tag = 0;
        while let Some(got) = next_publish(&mut peer).await {
            tag += 1;
            ack(&mut peer, got.channel, tag, false).await;
        }
    })
    .await;
    let mut long = Outgoing::new("q".into(), "body").with_id("long");
    long.headers.set("long", "x".repeat(9000));
    match answered(bench.publish_this(long)).await {
        Err(PublishError::Refused(text)) => assert!(text.contains("take 8192"), "{text}"),
        wrong => panic!("{wrong:?}"),
    }
    assert_eq!(answered(bench.publish("short", "q")).await, Ok(()));
    bench.handle.drain_and_wait("done").await;
}

/// A process that has just started takes a publish before its first connection is open.
#[tokio::test(flavor = "multi_thread")]
async fn a_publish_before_the_first_connection_waits_for_it() {
    let bench = Bench::new(Duration::from_secs(10)).await;
    let early = bench.publish("early", "q");
    let peers = bench.peers(&Handshake::default()).await;
    let _playing = playing(peers, |mut peer: Peer| async move {
        while let Some(got) = next_publish(&mut peer).await {
            ack(&mut peer, got.channel, 1, false).await;
        }
    })
    .await;
    assert_eq!(answered(early).await, Ok(()));
    bench.handle.drain_and_wait("done").await;
}
