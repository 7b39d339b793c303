//! A scripted AMQP peer, for what no real broker does on demand.

use std::net::{Ipv4Addr, SocketAddr};

use amq_protocol::frame::{AMQPContentHeader, AMQPFrame, ProtocolVersion};
use amq_protocol::protocol::basic::AMQPProperties;
use amq_protocol::protocol::{AMQPClass, basic, channel, confirm, connection, exchange, queue};
use amq_protocol::types::FieldTable;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::codec::{Frames, Piece, encode};

/// Listens on loopback; the test accepts each connection and plays the broker.
#[derive(Debug)]
pub(crate) struct FakeServer {
    listener: TcpListener,
}

/// What the server says while a connection opens.
#[derive(Clone, Debug)]
pub(crate) struct Handshake {
    /// Such as the product and its version.
    pub(crate) server_properties: FieldTable,
    pub(crate) mechanisms: String,
    pub(crate) channel_max: u16,
    pub(crate) frame_max: u32,
    /// In seconds; 0 is none.
    pub(crate) heartbeat: u16,
    /// Answers the credentials with this close (403) instead of the tuning.
    pub(crate) refuse_credentials: Option<(u16, String)>,
    /// Answers the choice of the virtual host with this close (530) instead of an ok.
    pub(crate) refuse_open: Option<(u16, String)>,
}

impl Default for Handshake {
    fn default() -> Self {
        Self {
            server_properties: FieldTable::default(),
            mechanisms: "PLAIN".to_owned(),
            channel_max: 2047,
            frame_max: 131_072,
            heartbeat: 0,
            refuse_credentials: None,
            refuse_open: None,
        }
    }
}

impl FakeServer {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        Self {
            listener: listener.expect("a free port"),
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.listener.local_addr().expect("a bound socket")
    }

    pub(crate) fn uri(&self) -> String {
        format!("amqp://guest:guest@{}/%2f", self.address())
    }

    /// The next connection, before a word was said.
    pub(crate) async fn accept_raw(&self) -> Peer {
        let accepted = bounded("a connection", self.listener.accept()).await;
        let (stream, _) = accepted.expect("a connection");
        stream.set_nodelay(true).expect("a socket");
        Peer {
            stream,
            frames: Frames::default(),
            pieces: Vec::new(),
        }
    }

    /// The next connection, open.
    pub(crate) async fn accept(&self) -> Peer {
        self.accept_with(Handshake::default()).await
    }

    /// The next connection, after this handshake.
    pub(crate) async fn accept_with(&self, handshake: Handshake) -> Peer {
        let mut peer = self.accept_raw().await;
        peer.shake_hands(handshake).await;
        peer
    }
}

/// The server's end of one connection.
#[derive(Debug)]
pub(crate) struct Peer {
    stream: TcpStream,
    frames: Frames,
    pieces: Vec<Piece>,
}

impl Peer {
    /// What the client says next; `None` when it has ended the connection.
    ///
    /// # Cancel safety
    ///
    /// Safe: a frame is either returned or still there.
    pub(crate) async fn next_frame(&mut self) -> Option<AMQPFrame> {
        let mut buffer = vec![0; 16 * 1024];
        while self.pieces.is_empty() {
            let read = bounded("a frame of the client", self.stream.read(&mut buffer)).await;
            match read {
                Ok(0) | Err(_) => return None,
                Ok(count) => self.pieces = self.frames.take(&buffer[..count]),
            }
        }
        match self.pieces.remove(0) {
            Piece::Frame(frame) => Some(frame),
            Piece::Malformed(bytes) => panic!("the client sent {bytes:?}"),
        }
    }

    /// Answers as a broker does until the client says something that `is_meant`, which is returned unanswered.
    ///
    /// # Panics
    ///
    /// When the client leaves without saying it.
    pub(crate) async fn serve_until(
        &mut self,
        is_meant: impl Fn(&AMQPClass) -> bool,
    ) -> (u16, AMQPClass) {
        loop {
            let frame = self.next_frame().await.expect("the client has left");
            if let AMQPFrame::Method(channel, method) = frame {
                if is_meant(&method) {
                    return (channel, method);
                }
                self.answer(channel, &method).await;
            }
        }
    }

    /// Answers as a broker does until the client leaves.
    pub(crate) async fn serve(&mut self) {
        while let Some(frame) = self.next_frame().await {
            if let AMQPFrame::Method(channel, method) = frame {
                self.answer(channel, &method).await;
            }
        }
    }

    /// Serves until a consumer is there; its channel and tag.
    pub(crate) async fn serve_until_consumer(&mut self) -> (u16, String) {
        let is_consume =
            |method: &AMQPClass| matches!(method, AMQPClass::Basic(basic::AMQPMethod::Consume(_)));
        let (channel, method) = self.serve_until(is_consume).await;
        self.answer(channel, &method).await;
        match method {
            AMQPClass::Basic(basic::AMQPMethod::Consume(consume)) => (channel, tag_of(&consume)),
            _ => unreachable!("asked for it above"),
        }
    }

    /// The answer of a broker that agrees; nothing for what wants none.
    pub(crate) async fn answer(&mut self, channel: u16, method: &AMQPClass) {
        if let Some(answer) = agreeing(method) {
            self.send(channel, answer).await;
        }
    }

    /// Says something.
    pub(crate) async fn send(&mut self, channel: u16, method: AMQPClass) {
        self.send_frame(&AMQPFrame::Method(channel, method)).await;
    }

    pub(crate) async fn send_frame(&mut self, frame: &AMQPFrame) {
        self.send_raw(&encode(frame)).await;
    }

    /// Sends bytes as they are. A client that has gone does not mind.
    pub(crate) async fn send_raw(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.ok();
    }

    /// Delivers a message, to a consumer that exists or not.
    pub(crate) async fn deliver(
        &mut self,
        channel: u16,
        deliver: basic::Deliver,
        properties: AMQPProperties,
        body: &[u8],
    ) {
        let method = AMQPClass::Basic(basic::AMQPMethod::Deliver(deliver));
        let mut bytes = encode(&AMQPFrame::Method(channel, method));
        let header = AMQPContentHeader {
            class_id: 60,
            body_size: body.len() as u64,
            properties,
        };
        bytes.extend(encode(&AMQPFrame::Header(channel, header)));
        if !body.is_empty() {
            bytes.extend(encode(&AMQPFrame::Body(channel, body.to_vec())));
        }
        self.send_raw(&bytes).await;
    }

    /// Delivers a message whose headers hold a value of the type `q`, which no grammar knows.
    pub(crate) async fn deliver_unknown_field(&mut self, channel: u16, deliver: basic::Deliver) {
        let method = AMQPClass::Basic(basic::AMQPMethod::Deliver(deliver));
        let mut bytes = encode(&AMQPFrame::Method(channel, method));
        let table = [0, 0, 0, 4, 1, b'k', b'q', 1];
        let mut header = vec![0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        header.extend([0x20, 0]); // only the headers are there
        header.extend(table);
        bytes.extend(raw_frame(2, channel, &header));
        self.send_raw(&bytes).await;
    }

    /// Closes a channel, as with 406 for a tag that is not known.
    pub(crate) async fn close_channel(&mut self, channel: u16, code: u16, text: &str) {
        let close = channel::Close {
            reply_code: code,
            reply_text: text.into(),
            class_id: 0,
            method_id: 0,
        };
        self.send(
            channel,
            AMQPClass::Channel(channel::AMQPMethod::Close(close)),
        )
        .await;
    }

    /// Closes the connection, as with 320 for an operator or 530 for a rule.
    pub(crate) async fn close_connection(&mut self, code: u16, text: &str) {
        let close = connection_close(code, text);
        self.send(0, close).await;
    }

    /// Cancels a consumer, as when its queue is deleted.
    pub(crate) async fn cancel(&mut self, channel: u16, consumer_tag: &str) {
        let cancel = basic::Cancel {
            consumer_tag: consumer_tag.into(),
            nowait: true,
        };
        self.send(channel, AMQPClass::Basic(basic::AMQPMethod::Cancel(cancel)))
            .await;
    }

    /// Says that publishes are not read for now.
    pub(crate) async fn block(&mut self, reason: &str) {
        let blocked = connection::Blocked {
            reason: reason.into(),
        };
        self.send(
            0,
            AMQPClass::Connection(connection::AMQPMethod::Blocked(blocked)),
        )
        .await;
    }

    pub(crate) async fn unblock(&mut self) {
        let unblocked = connection::AMQPMethod::Unblocked(connection::Unblocked {});
        self.send(0, AMQPClass::Connection(unblocked)).await;
    }

    /// Ends the connection with a RST.
    pub(crate) fn reset(self) {
        self.stream.set_zero_linger().expect("a socket");
    }

    async fn shake_hands(&mut self, handshake: Handshake) {
        let header = self.next_frame().await;
        let version = ProtocolVersion::amqp_0_9_1();
        assert_eq!(header, Some(AMQPFrame::ProtocolHeader(version)));
        let start = connection::Start {
            version_major: 0,
            version_minor: 9,
            server_properties: handshake.server_properties,
            mechanisms: handshake.mechanisms.as_str().into(),
            locales: "en_US".into(),
        };
        self.send(
            0,
            AMQPClass::Connection(connection::AMQPMethod::Start(start)),
        )
        .await;
        self.expect_connection("start-ok", |method| {
            matches!(method, connection::AMQPMethod::StartOk(_))
        })
        .await;
        if let Some((code, text)) = handshake.refuse_credentials {
            return self.close_connection(code, &text).await;
        }
        let tune = connection::Tune {
            channel_max: handshake.channel_max,
            frame_max: handshake.frame_max,
            heartbeat: handshake.heartbeat,
        };
        self.send(0, AMQPClass::Connection(connection::AMQPMethod::Tune(tune)))
            .await;
        self.expect_connection("open", |method| {
            matches!(method, connection::AMQPMethod::Open(_))
        })
        .await;
        if let Some((code, text)) = handshake.refuse_open {
            return self.close_connection(code, &text).await;
        }
        let ok = connection::AMQPMethod::OpenOk(connection::OpenOk {});
        self.send(0, AMQPClass::Connection(ok)).await;
    }

    async fn expect_connection(
        &mut self,
        what: &str,
        is_meant: impl Fn(&connection::AMQPMethod) -> bool,
    ) {
        loop {
            match self.next_frame().await {
                Some(AMQPFrame::Method(0, AMQPClass::Connection(method))) if is_meant(&method) => {
                    return;
                }
                Some(_) => {}
                None => panic!("the client left before its {what}"),
            }
        }
    }
}

/// A delivery's first frame.
pub(crate) fn delivery(consumer_tag: &str, tag: u64) -> basic::Deliver {
    basic::Deliver {
        consumer_tag: consumer_tag.into(),
        delivery_tag: tag,
        redelivered: false,
        exchange: "".into(),
        routing_key: "q".into(),
    }
}

fn agreeing(method: &AMQPClass) -> Option<AMQPClass> {
    let answer = match method {
        AMQPClass::Channel(channel::AMQPMethod::Open(_)) => {
            AMQPClass::Channel(channel::AMQPMethod::OpenOk(channel::OpenOk {}))
        }
        AMQPClass::Channel(channel::AMQPMethod::Close(_)) => {
            AMQPClass::Channel(channel::AMQPMethod::CloseOk(channel::CloseOk {}))
        }
        AMQPClass::Connection(connection::AMQPMethod::Close(_)) => {
            AMQPClass::Connection(connection::AMQPMethod::CloseOk(connection::CloseOk {}))
        }
        AMQPClass::Confirm(confirm::AMQPMethod::Select(_)) => {
            AMQPClass::Confirm(confirm::AMQPMethod::SelectOk(confirm::SelectOk {}))
        }
        AMQPClass::Exchange(exchange::AMQPMethod::Declare(_)) => {
            AMQPClass::Exchange(exchange::AMQPMethod::DeclareOk(exchange::DeclareOk {}))
        }
        AMQPClass::Queue(queue::AMQPMethod::Declare(declare)) => {
            let ok = queue::DeclareOk {
                queue: declare.queue.clone(),
                message_count: 0,
                consumer_count: 0,
            };
            AMQPClass::Queue(queue::AMQPMethod::DeclareOk(ok))
        }
        AMQPClass::Queue(queue::AMQPMethod::Bind(_)) => {
            AMQPClass::Queue(queue::AMQPMethod::BindOk(queue::BindOk {}))
        }
        AMQPClass::Basic(method) => AMQPClass::Basic(agreeing_basic(method)?),
        _ => return None,
    };
    Some(answer)
}

fn agreeing_basic(method: &basic::AMQPMethod) -> Option<basic::AMQPMethod> {
    match method {
        basic::AMQPMethod::Qos(_) => Some(basic::AMQPMethod::QosOk(basic::QosOk {})),
        basic::AMQPMethod::Consume(consume) => {
            let consumer_tag = tag_of(consume).as_str().into();
            Some(basic::AMQPMethod::ConsumeOk(basic::ConsumeOk {
                consumer_tag,
            }))
        }
        basic::AMQPMethod::Cancel(cancel) if !cancel.nowait => {
            let consumer_tag = cancel.consumer_tag.clone();
            Some(basic::AMQPMethod::CancelOk(basic::CancelOk {
                consumer_tag,
            }))
        }
        _ => None,
    }
}

/// A client that gives no tag gets one.
fn tag_of(consume: &basic::Consume) -> String {
    match consume.consumer_tag.as_str() {
        "" => "ctag".to_owned(),
        tag => tag.to_owned(),
    }
}

fn connection_close(code: u16, text: &str) -> AMQPClass {
    AMQPClass::Connection(connection::AMQPMethod::Close(connection::Close {
        reply_code: code,
        reply_text: text.into(),
        class_id: 0,
        method_id: 0,
    }))
}

/// A frame around a payload that need not make sense.
pub(crate) fn raw_frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend(channel.to_be_bytes());
    bytes.extend(
        u32::try_from(payload.len())
            .expect("a short payload")
            .to_be_bytes(),
    );
    bytes.extend(payload);
    bytes.push(0xCE);
    bytes
}

async fn bounded<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(super::BOUND, future).await {
        Ok(value) => value,
        Err(_) => panic!("not within {:?}: {what}", super::BOUND),
    }
}
