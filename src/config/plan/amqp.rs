//! How a RabbitMQ is used: the part of the plan that other brokers do not have.

use std::path::PathBuf;
use std::time::Duration;

use acquit_actors::model::ConsumerName;

use super::Base;
use crate::config::raw_broker::{QueueKind, RawBroker};
use crate::transport::amqp::{AmqpUri, Secret};

/// How a RabbitMQ is used. What can stand in the URL too has the value that holds.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AmqpPlan {
    /// What the broker shows as our name.
    pub connection_name: String,
    /// The heartbeat that is asked for, in whole seconds; zero turns it off.
    pub heartbeat: Duration,
    /// How long one try of a connection may take, each address.
    pub connect_timeout: Duration,
    /// How often a first connection is tried; 0: for ever.
    pub first_connect_tries: u32,
    /// Whether what is missing is declared.
    pub declare: bool,
    /// The type of declared queues.
    pub queue_type: QueueKind,
    /// The certificates to trust, PEM; `None`: those of the system.
    pub ca_file: Option<PathBuf>,
    /// Our own certificate, PEM; there exactly when `key_file` is.
    pub cert_file: Option<PathBuf>,
    /// Its key, PEM.
    pub key_file: Option<PathBuf>,
    /// Whether our certificate logs in, without a password.
    pub external: bool,
    /// The management API.
    pub management: Option<ManagementPlan>,
    /// How many publishes may wait for their confirm at once.
    pub publish_window: u32,
    /// How long a source waits after its last ack before it closes.
    pub linger: Duration,
    /// How long the broker lets a delivery be held, where the management API does not tell.
    pub consumer_timeout: Option<Duration>,
}

/// A RabbitMQ's management API.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ManagementPlan {
    /// `http://host:port` or `https://host:port`, without a slash at its end.
    pub url: String,
    /// Who we are there; without a user of its own, who we are at the broker.
    pub user: String,
    /// The password.
    pub password: Secret,
}

/// Puts who we are into the addresses, where it has keys of its own.
pub(super) fn logged_in(
    uris: &[AmqpUri],
    raw: &RawBroker,
    password: Option<Secret>,
) -> Vec<AmqpUri> {
    let mut uris = uris.to_vec();
    if let Some(user) = &raw.user {
        let password = password.unwrap_or_else(|| Secret::new(""));
        for uri in &mut uris {
            uri.user.clone_from(&user.0);
            uri.password = password.clone();
            uri.has_user = true;
        }
    }
    uris
}

/// Resolves the keys; `uri` is one of the addresses, with who we are in it.
pub(super) fn resolve(
    raw: &RawBroker,
    uri: &AmqpUri,
    worker: &ConsumerName,
    base: &Base,
    password: Option<Secret>,
) -> AmqpPlan {
    let join = |path: &Option<PathBuf>| path.as_ref().map(|path| base.join(path));
    let name = raw.connection_name.as_ref().map(|name| name.0.clone());
    AmqpPlan {
        connection_name: name.unwrap_or_else(|| worker.to_string()),
        heartbeat: match uri.heartbeat {
            Some(seconds) => Duration::from_secs(seconds.into()),
            None => raw.heartbeat.get(),
        },
        connect_timeout: uri
            .connection_timeout
            .unwrap_or_else(|| raw.connect_timeout.get()),
        first_connect_tries: raw.first_connect_tries.get(),
        declare: raw.declare,
        queue_type: raw.queue_type,
        ca_file: join(&raw.ca_file),
        cert_file: join(&raw.cert_file),
        key_file: join(&raw.key_file),
        external: uri.external.unwrap_or(raw.external),
        management: raw.management.as_ref().map(|url| {
            let (user, password) = match &raw.management_user {
                Some(user) => (user.0.clone(), password.unwrap_or_else(|| Secret::new(""))),
                None => (uri.user.clone(), uri.password.clone()),
            };
            ManagementPlan {
                url: url.0.clone(),
                user,
                password,
            }
        }),
        publish_window: raw.publish_window.get(),
        linger: raw.linger,
        consumer_timeout: raw.consumer_timeout.map(|limit| limit.get()),
    }
}
