//! The broker's version, from the first frame that it sends to anybody who connects.
//!
//! The client library reads that frame too, and throws away what it says of the broker. So this is
//! a connection of its own, which ends after the greeting and logs nobody in; the broker's log notes
//! one client that "unexpectedly closed TCP connection". It is for a start or a check, not for each
//! reconnect. Whatever goes wrong leaves the version unknown: it is never a reason to fail.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use lapin::protocol::{AMQPClass, connection::AMQPMethod, parse_class};
use lapin::types::AMQPValue;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};

use super::facts::{BrokerVersion, Known};
use super::options::{AmqpOptions, TlsOptions};
use super::tls::client_config;
use super::uri::AmqpUri;

/// What a client says first.
const HEADER: [u8; 8] = *b"AMQP\0\0\x09\x01";

/// No greeting is longer, in bytes; RabbitMQ's has about 500.
const GREETING_MAX: usize = 64 * 1024;

/// Asks a broker for its version, within `connect_timeout`.
///
/// # Cancel safety
/// Safe: a thread of the blocking pool may wait for the rest of the timeout.
pub async fn broker_version(uri: &AmqpUri, options: &AmqpOptions) -> Known<BrokerVersion> {
    let timeout = options.connect_timeout;
    let ask = Ask {
        host: uri.host.clone(),
        port: uri.port,
        tls: uri.tls.then(|| options.tls.clone()),
        timeout,
    };
    let asked = tokio::task::spawn_blocking(move || ask.blocking());
    match tokio::time::timeout(timeout, asked).await {
        Ok(Ok(Some(version))) => Known::Is(version),
        _ => Known::Unknown,
    }
}

struct Ask {
    host: String,
    port: u16,
    tls: Option<TlsOptions>,
    timeout: Duration,
}

impl Ask {
    fn blocking(&self) -> Option<BrokerVersion> {
        let until = Instant::now() + self.timeout;
        let mut addresses = (&*self.host, self.port).to_socket_addrs().ok()?;
        let socket = addresses.find_map(|address| {
            let left = until.checked_duration_since(Instant::now())?;
            TcpStream::connect_timeout(&address, left.max(Duration::from_millis(1))).ok()
        })?;
        socket.set_read_timeout(Some(self.timeout)).ok()?;
        socket.set_write_timeout(Some(self.timeout)).ok()?;
        match &self.tls {
            None => greet(socket, until),
            Some(options) => {
                let name = ServerName::try_from(self.host.clone()).ok()?;
                let session = ClientConnection::new(client_config(options).ok()?, name).ok()?;
                let mut stream = StreamOwned::new(session, socket);
                let version = greet(&mut stream, until);
                stream.conn.send_close_notify();
                // Whatever comes of it: the socket closes next.
                let _ = stream.flush();
                version
            }
        }
    }
}

fn greet(mut stream: impl Read + Write, until: Instant) -> Option<BrokerVersion> {
    stream.write_all(&HEADER).ok()?;
    stream.flush().ok()?;
    let mut head = [0; 7];
    stream.read_exact(&mut head).ok()?;
    let length = frame_length(head)?;
    let mut payload = Vec::with_capacity(length);
    let mut part = [0; 4096];
    while payload.len() < length {
        // A peer that sends a byte now and then does not hold us past the deadline.
        if Instant::now() >= until {
            return None;
        }
        let room = part.len().min(length - payload.len());
        match stream.read(&mut part[..room]) {
            Ok(0) | Err(_) => return None,
            Ok(read) => payload.extend_from_slice(&part[..read]),
        }
    }
    version_of(&payload)
}

/// The length of a method frame on channel 0, from its first seven bytes.
fn frame_length(head: [u8; 7]) -> Option<usize> {
    let [1, 0, 0, length @ ..] = head else {
        return None;
    };
    let length = usize::try_from(u32::from_be_bytes(length)).ok()?;
    (length <= GREETING_MAX).then_some(length)
}

/// Reads the version from the payload of `connection.start`. Another product's version says nothing
/// about how a RabbitMQ behaves.
fn version_of(payload: &[u8]) -> Option<BrokerVersion> {
    let (_, class) = parse_class(payload).ok()?;
    let AMQPClass::Connection(AMQPMethod::Start(start)) = class else {
        return None;
    };
    let property = |name: &str| match start.server_properties.inner().get(name) {
        Some(AMQPValue::LongString(text)) => Some(text.to_string()),
        _ => None,
    };
    if property("product")? != "RabbitMQ" {
        return None;
    }
    property("version")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    /// `connection.start` with these server properties.
    fn start(properties: &[(&str, &str)]) -> Vec<u8> {
        let mut table = Vec::new();
        for (name, value) in properties {
            table.push(u8::try_from(name.len()).expect("short"));
            table.extend(name.as_bytes());
            table.push(b'S');
            table.extend(u32::try_from(value.len()).expect("short").to_be_bytes());
            table.extend(value.as_bytes());
        }
        let mut payload = vec![0, 10, 0, 10, 0, 9];
        payload.extend(u32::try_from(table.len()).expect("short").to_be_bytes());
        payload.extend(table);
        for text in ["PLAIN AMQPLAIN", "en_US"] {
            payload.extend(u32::try_from(text.len()).expect("short").to_be_bytes());
            payload.extend(text.as_bytes());
        }
        payload
    }

    /// A peer that says this, whatever it hears.
    struct Peer<'a>(&'a [u8]);

    impl Read for Peer<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            // In small pieces, as a network may.
            let most = into.len().min(5);
            self.0.read(&mut into[..most])
        }
    }

    impl Write for Peer<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn heard(bytes: &[u8]) -> Option<String> {
        let until = Instant::now() + Duration::from_secs(60);
        greet(Peer(bytes), until).map(|version| version.to_string())
    }

    fn frame(payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![1, 0, 0];
        frame.extend(u32::try_from(payload.len()).expect("short").to_be_bytes());
        frame.extend(payload);
        frame.push(0xce);
        frame
    }

    #[test]
    fn the_greeting_tells_the_version_of_a_rabbitmq_only() {
        let rabbit = start(&[("product", "RabbitMQ"), ("version", "3.10.8")]);
        assert_eq!(heard(&frame(&rabbit)).as_deref(), Some("3.10.8"));
        let other = start(&[("product", "LavinMQ"), ("version", "2.0.0")]);
        assert_eq!(heard(&frame(&other)), None);
        assert_eq!(heard(&frame(&start(&[("product", "RabbitMQ")]))), None);
    }

    #[test]
    fn what_is_no_greeting_leaves_it_unknown() {
        let rabbit = frame(&start(&[("product", "RabbitMQ"), ("version", "3.10.8")]));
        for end in 0..rabbit.len() - 1 {
            assert_eq!(heard(&rabbit[..end]), None, "{end}");
        }
        assert_eq!(heard(b"HTTP/1.1 400 Bad Request\r\n\r\n"), None);
        assert_eq!(heard(b"AMQP\0\0\x09\x01"), None);
        assert_eq!(heard(b"\x01\0\0\xff\xff\xff\xff"), None);
        let late = Instant::now();
        assert_eq!(greet(Peer(&rabbit), late), None);
    }
}
