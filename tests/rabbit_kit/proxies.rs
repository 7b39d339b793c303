//! The proxy, between sockets of the test itself and between a client and the shared node.

use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, QueueDeclareOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Connection, ConnectionProperties};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::broker_kit::{
    BOUND, Cut, Flow, Proxy, SharedBroker, Tap, Way, What, WireTap, check_settlements, eventually,
};

/// How long nothing has to arrive to count as held.
const SILENCE: Duration = Duration::from_millis(150);

struct Pair {
    proxy: Proxy,
    listener: TcpListener,
    client: TcpStream,
    server: TcpStream,
}

impl Pair {
    async fn connect(tap: Option<Tap>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .expect("a port");
        let target = listener.local_addr().expect("an address");
        let proxy = Proxy::start_with(target, 1, tap);
        let client = TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port()))
            .await
            .expect("the proxy");
        let (server, _) = listener.accept().await.expect("the proxy's connection");
        Self {
            proxy,
            listener,
            client,
            server,
        }
    }
}

async fn read(stream: &mut TcpStream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    let done = tokio::time::timeout(BOUND, stream.read_exact(&mut bytes)).await;
    done.expect("in time").expect("the bytes");
    bytes
}

async fn end_of(stream: &mut TcpStream) -> Result<usize, ErrorKind> {
    let done = tokio::time::timeout(BOUND, stream.read(&mut [0; 64])).await;
    done.expect("in time").map_err(|error| error.kind())
}

async fn is_silent(stream: &mut TcpStream) -> bool {
    tokio::time::timeout(SILENCE, stream.read(&mut [0; 64]))
        .await
        .is_err()
}

#[tokio::test]
async fn bytes_pass_both_ways_and_the_tap_hears_them() {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let log = heard.clone();
    let tap: Tap = Arc::new(move |connection, way, bytes: Option<&[u8]>| {
        log.lock()
            .expect("no panic")
            .push((connection, way, bytes.map(<[u8]>::to_vec)));
    });
    let mut pair = Pair::connect(Some(tap)).await;
    pair.client.write_all(b"ping").await.expect("a write");
    assert_eq!(read(&mut pair.server, 4).await, b"ping");
    pair.server.write_all(b"pong").await.expect("a write");
    assert_eq!(read(&mut pair.client, 4).await, b"pong");
    drop(pair.client);
    assert_eq!(end_of(&mut pair.server).await, Ok(0));
    drop(pair.server);
    eventually("the end", async || {
        pair.proxy.connections().is_empty().then_some(())
    })
    .await;
    eventually("three taps", async || {
        (heard.lock().expect("no panic").len() == 3).then_some(())
    })
    .await;
    let expected = [
        (1, Way::ToServer, Some(b"ping".to_vec())),
        (1, Way::ToClient, Some(b"pong".to_vec())),
        (1, Way::ToServer, None),
    ];
    assert_eq!(*heard.lock().expect("no panic"), expected);
}

#[tokio::test]
async fn a_black_hole_swallows_one_way_until_it_closes() {
    let mut pair = Pair::connect(None).await;
    pair.proxy.set(Way::ToServer, Flow::Hold);
    pair.client.write_all(b"held").await.expect("a write");
    pair.server.write_all(b"through").await.expect("a write");
    assert_eq!(read(&mut pair.client, 7).await, b"through");
    assert!(is_silent(&mut pair.server).await);
    pair.proxy.set(Way::ToServer, Flow::Pass);
    assert_eq!(read(&mut pair.server, 4).await, b"held");
    // An end does not come through either.
    pair.proxy.set_both(Flow::Hold);
    drop(pair.client);
    assert!(is_silent(&mut pair.server).await);
    assert_eq!(pair.proxy.cut(Cut::Fin), 1);
    assert_eq!(end_of(&mut pair.server).await, Ok(0));
}

#[tokio::test]
async fn connections_are_cut_with_a_reset_or_an_end() {
    let mut pair = Pair::connect(None).await;
    pair.proxy.cut(Cut::Reset);
    assert_eq!(
        end_of(&mut pair.client).await,
        Err(ErrorKind::ConnectionReset)
    );
    assert_eq!(
        end_of(&mut pair.server).await,
        Err(ErrorKind::ConnectionReset)
    );

    let mut pair = Pair::connect(None).await;
    pair.proxy.cut_one(1, Cut::Fin);
    assert_eq!(end_of(&mut pair.client).await, Ok(0));
    assert_eq!(end_of(&mut pair.server).await, Ok(0));

    let mut pair = Pair::connect(None).await;
    let flow = Flow::CutAfter {
        bytes: 3,
        cut: Cut::Reset,
    };
    pair.proxy.set_one(1, Way::ToServer, flow);
    pair.client.write_all(b"four").await.expect("a write");
    assert_eq!(read(&mut pair.server, 3).await, b"fou");
    assert_eq!(
        end_of(&mut pair.server).await,
        Err(ErrorKind::ConnectionReset)
    );
}

#[tokio::test]
async fn half_of_a_connection_can_be_closed() {
    let mut pair = Pair::connect(None).await;
    pair.proxy.set(Way::ToClient, Flow::HalfClose);
    assert_eq!(end_of(&mut pair.client).await, Ok(0));
    pair.client.write_all(b"still").await.expect("a write");
    assert_eq!(read(&mut pair.server, 5).await, b"still");
    pair.server.write_all(b"lost").await.expect("a write");
}

#[tokio::test]
async fn bytes_can_be_late_or_few_at_a_time() {
    let mut pair = Pair::connect(None).await;
    let least = Duration::from_millis(60);
    pair.proxy.set_both(Flow::Delay {
        least,
        most: least * 2,
    });
    let start = Instant::now();
    pair.client.write_all(b"late").await.expect("a write");
    assert_eq!(read(&mut pair.server, 4).await, b"late");
    assert!(start.elapsed() >= least);
    let pause = Duration::from_millis(20);
    pair.proxy.set_both(Flow::Trickle { bytes: 2, pause });
    let start = Instant::now();
    pair.client.write_all(b"trickle").await.expect("a write");
    assert_eq!(read(&mut pair.server, 7).await, b"trickle");
    assert!(start.elapsed() >= pause * 3);
}

#[tokio::test]
async fn new_connections_are_refused_and_taken_again() {
    let mut pair = Pair::connect(None).await;
    let address = (Ipv4Addr::LOCALHOST, pair.proxy.port());
    pair.proxy.refuse(true).await;
    let refused = TcpStream::connect(address)
        .await
        .map_err(|error| error.kind());
    assert_eq!(refused.err(), Some(ErrorKind::ConnectionRefused));
    pair.client.write_all(b"open").await.expect("a write");
    assert_eq!(read(&mut pair.server, 4).await, b"open");
    pair.proxy.refuse(false).await;
    let mut second = TcpStream::connect(address)
        .await
        .expect("the proxy listens again");
    pair.listener.accept().await.expect("the second");
    assert_eq!(pair.proxy.accepted(), 2);
    // A server that is away looks like a reset after the accept.
    drop(pair.listener);
    let mut third = TcpStream::connect(address).await.expect("the proxy");
    assert_eq!(end_of(&mut third).await, Err(ErrorKind::ConnectionReset));
    second.shutdown().await.expect("a shutdown");
}

#[tokio::test]
async fn a_client_of_the_shared_node_is_read_and_cut() {
    let vhost = SharedBroker::vhost().await;
    let tap = WireTap::default();
    let target = (Ipv4Addr::LOCALHOST, vhost.port()).into();
    let proxy = Proxy::start_with(target, 7, Some(tap.tap()));
    let uri = vhost.uri_through(proxy.port());
    let connection = Connection::connect(&uri, ConnectionProperties::default())
        .await
        .expect("a connection");
    let channel = connection.create_channel().await.expect("a channel");
    let declare = QueueDeclareOptions::default();
    channel
        .queue_declare("q".into(), declare, FieldTable::default())
        .await
        .expect("a queue");
    for id in ["a", "b", "c"] {
        let properties = BasicProperties::default().with_message_id(id.into());
        let options = BasicPublishOptions::default();
        channel
            .basic_publish("".into(), "q".into(), options, b"body", properties)
            .await
            .expect("a publish");
    }
    let options = BasicConsumeOptions::default();
    let mut consumer = channel
        .basic_consume("q".into(), "c".into(), options, FieldTable::default())
        .await
        .expect("a consumer");
    for _ in 0..2 {
        let delivery = consumer.next().await.expect("one").expect("a delivery");
        delivery
            .ack(BasicAckOptions::default())
            .await
            .expect("an ack");
    }
    vhost.await_counts(vhost.name(), "q", [0, 1, 1]).await;
    // Past the client's own fences.
    channel
        .basic_ack(2, BasicAckOptions { multiple: true })
        .await
        .expect("a frame");
    eventually("the broker closes the channel", async || {
        let closes = tap.count(|event| matches!(event.what, What::ChannelClose { code: 406, .. }));
        (closes == 1).then_some(())
    })
    .await;
    let violations = check_settlements(&tap.events(), |_, _| true);
    assert!(
        matches!(
            &violations[..],
            [super::broker_kit::Violation::SettledTwice { delivery, .. }]
                if delivery.tag == 2 && delivery.message_id.as_deref() == Some("b")
        ),
        "{violations:?}"
    );
    proxy.cut(Cut::Reset);
    eventually("the client notices", async || {
        (!connection.status().connected()).then_some(())
    })
    .await;
    eventually("the end of the tap", async || {
        (tap.count(|event| event.what == What::Ended) == 1).then_some(())
    })
    .await;
}
