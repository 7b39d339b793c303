//! One look at a broker, from connecting to closing: what `acquit topology` does. A running
//! transport uses [`Topology`] on a connection of its own instead.

use std::collections::BTreeMap;
use std::sync::Arc;

use acquit_actors::model::ConsumerName;
use lapin::Connection;

use super::super::connection::{self, Opener};
use super::super::error::AmqpError;
use super::super::facts::{BrokerFacts, Known};
use super::super::greeting::broker_version;
use super::super::options::AmqpOptions;
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

/// What a process knows about its broker before it consumes.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Prepared {
    /// Consumers whose ladder is not there and cannot be made, and why: their retries are held.
    pub without_ladder: BTreeMap<ConsumerName, AmqpError>,
    /// What is known of the broker.
    pub facts: BrokerFacts,
    /// The address that answered.
    pub address: String,
}

/// Connects once and makes ready for consuming, as [`Topology::ready`] does; then asks for what is
/// to be known about the broker.
///
/// # Errors
/// See [`perform`] and [`Topology::ready`].
///
/// # Cancel safety
/// What was declared before it was dropped stays declared.
pub async fn prepare(options: &AmqpOptions) -> Result<Prepared, TopologyError> {
    desired(options)?;
    let (connection, uri) = connect(options).await?;
    let ready = async {
        let topology = Topology::new(&connection, options)?;
        let ready = topology.ready(options.declare).await?;
        Ok::<_, TopologyError>((ready, topology.facts().await?))
    };
    let ready = ready.await;
    let closed = connection.close(200, "done".into());
    let _ = bounded("connection.close", options.answer_timeout, closed).await;
    let (ready, mut facts) = ready?;
    if facts.version == Known::Unknown {
        facts.version = broker_version(uri, options).await;
    }
    Ok(Prepared {
        without_ladder: ready.without_ladder,
        facts,
        address: uri.address(),
    })
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
    let runtime = tokio::runtime::Handle::current();
    let opener = Opener::new(Arc::new(options.clone()), "topology", &runtime);
    for uri in &options.uris {
        match connection::connect(&opener, uri, |_| {}).await {
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
