//! The scripted server against lapin.

use amq_protocol::protocol::basic::AMQPProperties;
use amq_protocol::protocol::{AMQPClass, basic};
use futures_util::StreamExt;
use lapin::options::{BasicAckOptions, BasicConsumeOptions};
use lapin::types::FieldTable;
use lapin::{Connection, ConnectionProperties, Consumer};

use super::broker_kit::{FakeServer, Handshake, Peer, delivery, eventually, raw_frame};

async fn connect(uri: &str) -> lapin::Result<Connection> {
    Connection::connect(uri, ConnectionProperties::default()).await
}

async fn consume(uri: &str) -> (Connection, lapin::Channel, Consumer) {
    let connection = connect(uri).await.expect("a connection");
    let channel = connection.create_channel().await.expect("a channel");
    let options = BasicConsumeOptions::default();
    let consumer = channel.basic_consume("q".into(), "c".into(), options, FieldTable::default());
    let consumer = consumer.await.expect("a consumer");
    (connection, channel, consumer)
}

/// A client that consumes, and the server's end, whose task answers nothing any more.
async fn consuming(server: &FakeServer) -> (Connection, lapin::Channel, Consumer, Peer, u16) {
    let uri = server.uri();
    let ((connection, channel, consumer), (peer, number)) = tokio::join!(consume(&uri), async {
        let mut peer = server.accept().await;
        let (number, tag) = peer.serve_until_consumer().await;
        assert_eq!(tag, "c");
        (peer, number)
    });
    (connection, channel, consumer, peer, number)
}

#[tokio::test]
async fn a_scripted_delivery_is_settled() {
    let server = FakeServer::start().await;
    let (connection, _channel, mut consumer, mut peer, number) = consuming(&server).await;
    peer.deliver(number, delivery("c", 1), AMQPProperties::default(), b"body")
        .await;
    let received = consumer.next().await.expect("one").expect("a delivery");
    assert_eq!(received.data, b"body");
    received
        .ack(BasicAckOptions::default())
        .await
        .expect("an ack");
    let is_ack = |method: &AMQPClass| matches!(method, AMQPClass::Basic(basic::AMQPMethod::Ack(_)));
    let (channel, method) = peer.serve_until(is_ack).await;
    assert_eq!(channel, number);
    let expected = basic::Ack {
        delivery_tag: 1,
        multiple: false,
    };
    assert_eq!(method, AMQPClass::Basic(basic::AMQPMethod::Ack(expected)));

    peer.block("memory").await;
    eventually("blocked", async || {
        connection.status().blocked().then_some(())
    })
    .await;
    peer.unblock().await;
    eventually("unblocked", async || {
        (!connection.status().blocked()).then_some(())
    })
    .await;

    peer.cancel(number, "c").await;
    assert!(consumer.next().await.is_none());
    let serve = tokio::spawn(async move { peer.serve().await });
    connection.close(200, "bye".into()).await.expect("a close");
    serve.await.expect("the server sees the end");
}

#[tokio::test]
async fn a_scripted_refusal_reaches_the_client_as_such() {
    let refused = |code, text: &str| Some((code, text.to_owned()));
    let handshakes = [
        (
            403,
            Handshake {
                refuse_credentials: refused(403, "ACCESS_REFUSED"),
                ..Handshake::default()
            },
        ),
        (
            530,
            Handshake {
                refuse_open: refused(530, "NOT_ALLOWED - vhost x not found"),
                ..Handshake::default()
            },
        ),
    ];
    for (code, handshake) in handshakes {
        let server = FakeServer::start().await;
        let uri = server.uri();
        let (result, _) = tokio::join!(connect(&uri), async {
            let mut peer = server.accept_with(handshake).await;
            peer.serve().await;
        });
        let error = result.expect_err("a refusal");
        let lapin::ErrorKind::ProtocolError(error) = error.kind() else {
            panic!("{error:?}");
        };
        assert_eq!(error.get_id(), code);
    }
}

#[tokio::test]
async fn a_scripted_end_of_a_channel_or_connection_ends_the_stream() {
    let server = FakeServer::start().await;
    let (connection, _channel, mut consumer, mut peer, number) = consuming(&server).await;
    peer.close_channel(number, 406, "PRECONDITION_FAILED - unknown delivery tag 9")
        .await;
    assert!(consumer.next().await.expect("an error").is_err());
    assert!(connection.status().connected());
    peer.close_connection(320, "CONNECTION_FORCED - bye").await;
    eventually("the connection is closed", async || {
        (!connection.status().connected()).then_some(())
    })
    .await;

    let server = FakeServer::start().await;
    let (connection, _channel, mut consumer, peer, _) = consuming(&server).await;
    peer.reset();
    assert!(consumer.next().await.expect("an error").is_err());
    eventually("the connection is lost", async || {
        (!connection.status().connected()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn what_no_broker_sends_can_be_sent() {
    let server = FakeServer::start().await;
    let (connection, _channel, _consumer, mut peer, number) = consuming(&server).await;
    peer.deliver_unknown_field(number, delivery("c", 1)).await;
    eventually("the client gives up", async || {
        (!connection.status().connected()).then_some(())
    })
    .await;

    let server = FakeServer::start().await;
    let (connection, _channel, _consumer, mut peer, number) = consuming(&server).await;
    peer.send_raw(&raw_frame(1, number, b"nonsense")).await;
    eventually("the client gives up", async || {
        (!connection.status().connected()).then_some(())
    })
    .await;

    // Nobody waits for it: the client stays, and takes what comes after.
    let server = FakeServer::start().await;
    let (_connection, _channel, mut consumer, mut peer, number) = consuming(&server).await;
    peer.deliver(
        number,
        delivery("somebody else", 1),
        AMQPProperties::default(),
        b"x",
    )
    .await;
    peer.deliver(number, delivery("c", 2), AMQPProperties::default(), b"y")
        .await;
    let received = consumer.next().await.expect("one").expect("a delivery");
    assert_eq!(received.delivery_tag, 2);
}
