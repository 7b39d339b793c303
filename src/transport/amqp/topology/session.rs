//! One look at a broker, from connecting to closing: what `acquit topology` does. A running
//! transport uses [`Topology`] on a connection of its own instead.

use std::collections::BTreeMap;
use std::time::Duration;

use acquit_actors::model::ConsumerName;
use lapin::tcp::{OwnedIdentity, OwnedTLSConfig};
use lapin::uri::{
    AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo, SASLMechanism,
};
use lapin::{Connection, ConnectionProperties};

use super::super::classify::classify;
use super::super::error::{AmqpError, TlsTrouble, clean};
use super::super::facts::{BrokerFacts, Known};
use super::super::greeting::broker_version;
use super::super::options::{AmqpOptions, TlsOptions};
use super::super::uri::AmqpUri;
use super::apply::{Topology, TopologyError, bounded};
use super::diff::Change;
use super::plan::desired;

/// What is done at the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Task {
    /// Say what differs.
    Plan,
    /// Declare what is missing.
    Apply,
    /// Say what differs, and which rights are missing.
    Check,
}

/// What was found, and done.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct Report {
    /// What differs; with [`Task::Apply`] what was made, or, where something exists otherwise,
    /// only that.
    pub changes: Vec<Change>,
    /// How many queues are wanted.
    pub queues: usize,
    /// Rights that consuming needs and the user does not have; asked for by [`Task::Check`] only.
    pub missing_rights: Vec<AmqpError>,
    /// Consumers whose retry ladder could not be made, and why.
    pub without_ladder: BTreeMap<ConsumerName, AmqpError>,
    /// What the management API tells; without one, the broker's version from its greeting.
    pub facts: BrokerFacts,
    /// Whether the arguments of what exists were compared: by the management API, or by applying.
    pub is_compared: bool,
}

/// Connects to the first address that answers, performs a task and disconnects.
///
/// # Errors
/// When no address can be connected to (the last one's error, or that of one that answered and
/// refused), when the broker refuses something, or does not answer within the deadlines.
///
/// # Cancel safety
/// What was declared before it was dropped stays declared.
pub async fn perform(options: &AmqpOptions, task: Task) -> Result<Report, TopologyError> {
    // What no broker can hold is said before one is asked.
    let queues = desired(options)?.queues.len();
    let (connection, uri) = connect(options).await?;
    let mut done = on(&connection, options, task).await;
    if let Ok(report) = &mut done
        && report.facts.version == Known::Unknown
    {
        report.facts.version = broker_version(uri, options).await;
    }
    let closed = connection.close(200, "done".into());
    // The socket closes with the connection at the latest.
    let _ = bounded("connection.close", options.answer_timeout, closed).await;
    done.map(|report| Report { queues, ..report })
}

async fn on(
    connection: &Connection,
    options: &AmqpOptions,
    task: Task,
) -> Result<Report, TopologyError> {
    let topology = Topology::new(connection, options)?;
    let mut report = Report {
        is_compared: options.management.is_some() || task == Task::Apply,
        ..Report::default()
    };
    match task {
        Task::Plan => report.changes = topology.plan().await?,
        Task::Check => {
            report.changes = topology.plan().await?;
            report.missing_rights = topology.missing_rights().await?;
        }
        Task::Apply => {
            let applied = topology.apply().await?;
            let refused = applied.refused.into_iter().map(Change::Differs);
            report.changes = applied.made.into_iter().chain(refused).collect();
            report.without_ladder = applied.without_ladder;
        }
    }
    report.facts = topology.facts().await?;
    Ok(report)
}

async fn connect(options: &AmqpOptions) -> Result<(Connection, &AmqpUri), AmqpError> {
    let mut failure = None;
    for uri in &options.uris {
        match connect_to(uri, options).await {
            Ok(connection) => return Ok((connection, uri)),
            Err(error) => {
                let unreachable = matches!(
                    error,
                    AmqpError::Unreachable { .. } | AmqpError::Timeout { .. }
                );
                // A broker that answers and refuses tells more than one that is not there.
                if failure.is_none() || !unreachable {
                    failure = Some(error);
                }
            }
        }
    }
    Err(failure.unwrap_or(AmqpError::Unreachable {
        text: "`broker.url` names no address".to_owned(),
    }))
}

async fn connect_to(uri: &AmqpUri, options: &AmqpOptions) -> Result<Connection, AmqpError> {
    let tls = tls(&options.tls)?;
    let name = format!("{}: topology", options.connection_name);
    let properties = ConnectionProperties::default().with_connection_name(name.into());
    let runtime = async_rs::Runtime::tokio_current();
    let connect =
        Connection::connect_uri_with_config(address(uri, options), properties, tls, runtime);
    match tokio::time::timeout(options.connect_timeout, connect).await {
        Ok(connected) => connected.map_err(|error| classify(&error)),
        Err(_) => Err(AmqpError::Timeout {
            what: "connecting to the broker",
            after: options.connect_timeout,
        }),
    }
}

fn address(uri: &AmqpUri, options: &AmqpOptions) -> AMQPUri {
    let heartbeat = u16::try_from(options.heartbeat.as_secs()).unwrap_or(u16::MAX);
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
        query: AMQPQueryString {
            heartbeat: Some(uri.heartbeat.unwrap_or(heartbeat)),
            connection_timeout: Some(milliseconds(options.connect_timeout)),
            auth_mechanism: options.tls.external.then_some(SASLMechanism::External),
            ..AMQPQueryString::default()
        },
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn tls(options: &TlsOptions) -> Result<OwnedTLSConfig, AmqpError> {
    let read = |file: &std::path::Path| {
        std::fs::read(file).map_err(|error| {
            let text = format!("cannot read {}: {error}", file.display());
            AmqpError::Tls(TlsTrouble::Other(clean(&text)))
        })
    };
    let cert_chain = options.ca_file.as_deref().map(read).transpose()?;
    let identity = match (&options.cert_file, &options.key_file) {
        (Some(cert), Some(key)) => Some(OwnedIdentity::PKCS8 {
            pem: read(cert)?,
            key: read(key)?,
        }),
        _ => None,
    };
    Ok(OwnedTLSConfig {
        identity,
        cert_chain: cert_chain.map(|pem| String::from_utf8_lossy(&pem).into_owned()),
    })
}
