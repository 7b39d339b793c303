//! Opens one connection to one address, with a deadline for each step.

use std::sync::Arc;
use std::time::Duration;

use async_rs::traits::Reactor;
use async_rs::{Runtime, TokioRuntime};
use lapin::tcp::RustlsConnector;
use lapin::uri::{
    AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo, SASLMechanism,
};
use lapin::{AsyncTcpStream, Connection, ConnectionProperties};

use super::super::classify::classify;
use super::super::error::AmqpError;
use super::super::options::{AmqpOptions, TlsOptions};
use super::super::tls::client_config;
use super::super::uri::AmqpUri;
use super::grip::{Grip, Holder};

/// What is needed to open connections.
#[derive(Debug, Clone)]
pub(crate) struct Opener {
    pub(crate) options: Arc<AmqpOptions>,
    /// Which of our connections: part of its name at the broker.
    pub(crate) role: &'static str,
    pub(crate) runtime: TokioRuntime,
}

impl Opener {
    pub(crate) fn new(
        options: Arc<AmqpOptions>,
        role: &'static str,
        runtime: &tokio::runtime::Handle,
    ) -> Self {
        let runtime = Runtime::tokio_with_handle(runtime.clone());
        Self {
            options,
            role,
            runtime,
        }
    }
}

/// A step that begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Connecting,
    Handshake,
}

/// Connects to one address. Says when a step has been passed; each has `connect-timeout`.
///
/// # Cancel safety
/// Safe: nothing is left of a connection that did not open.
pub(crate) async fn connect(
    opener: &Opener,
    uri: &AmqpUri,
    begins: impl Fn(Step) + Clone + Send + Sync + 'static,
) -> Result<Connection, AmqpError> {
    let limit = opener.options.connect_timeout;
    let lookup = tokio::net::lookup_host((uri.host.clone(), uri.port));
    let found = tokio::time::timeout(limit, lookup).await;
    match found {
        Err(_) => return Err(timeout("looking up its name", limit)),
        Ok(Err(error)) => return Err(unreachable(format!("its name is not known: {error}"))),
        Ok(Ok(mut found)) => {
            if found.next().is_none() {
                return Err(unreachable("its name has no address".to_owned()));
            }
        }
    }
    begins(Step::Connecting);
    let tls = match uri.tls {
        true => Some(tls(&opener.options.tls, limit).await?),
        false => None,
    };
    let handshake = begins.clone();
    let grip = Grip::default();
    let holder = grip.holder();
    let connecting = Connection::connector(
        lapin_uri(uri, &opener.options),
        opener.runtime.clone(),
        async move |uri, runtime| {
            let stream = tcp(&uri, tls.as_ref(), &runtime, limit, &holder).await?;
            handshake(Step::Handshake);
            Ok(stream)
        },
        properties(opener),
    );
    // The steps before the handshake have a deadline of their own inside.
    let Ok(connected) = tokio::time::timeout(limit * 2, connecting).await else {
        return Err(timeout("the handshake", limit));
    };
    grip.let_go();
    connected.map_err(|error| classify(&error))
}

fn timeout(what: &'static str, after: Duration) -> AmqpError {
    AmqpError::Timeout { what, after }
}

fn unreachable(text: String) -> AmqpError {
    AmqpError::Unreachable { text }
}

/// The system's certificates are hundreds of files: this runtime's one thread does not read them,
/// for heartbeats and settlements go on meanwhile.
async fn tls(options: &TlsOptions, limit: Duration) -> Result<RustlsConnector, AmqpError> {
    let options = options.clone();
    let reading = tokio::task::spawn_blocking(move || client_config(&options));
    match tokio::time::timeout(limit, reading).await {
        Ok(Ok(config)) => Ok(config?.into()),
        Ok(Err(ended)) => Err(unreachable(format!(
            "its certificates were not read: {ended}"
        ))),
        Err(_) => Err(timeout("reading the certificates", limit)),
    }
}

type Stream = <async_rs::Tokio as Reactor>::TcpStream;

async fn tcp(
    uri: &AMQPUri,
    tls: Option<&RustlsConnector>,
    runtime: &TokioRuntime,
    limit: Duration,
    holder: &Holder,
) -> lapin::Result<AsyncTcpStream<Stream>> {
    let host = &uri.authority.host;
    let connect = async {
        let addresses = runtime.to_socket_addrs((host.clone(), uri.authority.port));
        let stream = runtime.tcp_connect(addresses).await?;
        holder.hold(stream.get_ref())?;
        let stream = AsyncTcpStream::Plain(stream);
        match tls {
            None => Ok(stream),
            Some(tls) => stream.into_rustls(tls, host).await,
        }
    };
    match tokio::time::timeout(limit, connect).await {
        Ok(stream) => stream.map_err(lapin::Error::from),
        Err(_) => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
    }
}

fn lapin_uri(uri: &AmqpUri, options: &AmqpOptions) -> AMQPUri {
    let heartbeat = uri.heartbeat.unwrap_or_else(|| {
        let seconds = options.heartbeat.as_secs();
        u16::try_from(seconds).unwrap_or(u16::MAX)
    });
    let plain = plain_uri(uri);
    AMQPUri {
        query: AMQPQueryString {
            heartbeat: Some(heartbeat),
            auth_mechanism: options.tls.external.then_some(SASLMechanism::External),
            ..plain.query
        },
        ..plain
    }
}

/// The client's form of an address, without any option.
pub(crate) fn plain_uri(uri: &AmqpUri) -> AMQPUri {
    AMQPUri {
        scheme: if uri.tls {
            AMQPScheme::AMQPS
        } else {
            AMQPScheme::AMQP
        },
        authority: AMQPAuthority {
            userinfo: AMQPUserInfo {
                username: uri.user.clone(),
                password: uri.password.reveal().to_owned(),
            },
            host: uri.host.clone(),
            port: uri.port,
        },
        vhost: uri.vhost.clone(),
        query: AMQPQueryString::default(),
    }
}

fn properties(opener: &Opener) -> ConnectionProperties {
    let name = format!(
        "{} ({}, pid {})",
        opener.options.connection_name,
        opener.role,
        std::process::id()
    );
    ConnectionProperties::default()
        .with_connection_name(name.into())
        .with_client_property("product".into(), "acquit".into())
        .with_client_property("version".into(), env!("CARGO_PKG_VERSION").into())
}
