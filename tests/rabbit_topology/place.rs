//! A virtual host of its own for each test.

use std::sync::atomic::{AtomicU32, Ordering};

use acquit::transport::amqp::{AmqpConsumer, AmqpOptions, AmqpUri, ManagementOptions, Secret};
use lapin::{Connection, ConnectionProperties};
use tokio::sync::OnceCell;

use super::broker_kit::{Admin, Node, NodeOptions, SharedBroker, Vhost};

/// The node with the management API, for the tests that ask it.
static MANAGED: OnceCell<Node> = OnceCell::const_new();

/// Makes names unique in this process.
static COUNT: AtomicU32 = AtomicU32::new(0);

pub(crate) struct Place {
    port: u16,
    vhost: String,
    admin: Where,
}

enum Where {
    Shared(Vhost),
    Managed(&'static Node),
}

impl Place {
    /// A virtual host of the shared node.
    pub(crate) async fn new() -> Self {
        let vhost = SharedBroker::vhost().await;
        Self {
            port: vhost.port(),
            vhost: vhost.name().to_owned(),
            admin: Where::Shared(vhost),
        }
    }

    /// A virtual host of a node that has the management API.
    pub(crate) async fn managed() -> Self {
        let start = || {
            Node::start_with(NodeOptions {
                management: true,
                ..NodeOptions::default()
            })
        };
        let node = MANAGED.get_or_init(start).await;
        let vhost = format!("managed-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        node.add_vhost(&vhost).await;
        Self {
            port: node.port(),
            vhost,
            admin: Where::Managed(node),
        }
    }

    pub(crate) fn vhost(&self) -> &str {
        &self.vhost
    }

    pub(crate) fn admin(&self) -> &Admin {
        match &self.admin {
            Where::Shared(vhost) => vhost,
            Where::Managed(node) => node,
        }
    }

    pub(crate) fn options(&self, consumers: Vec<AmqpConsumer>) -> AmqpOptions {
        let mut uri = AmqpUri::local(self.port);
        uri.vhost.clone_from(&self.vhost);
        let mut options = AmqpOptions::new(uri);
        options.consumers = consumers;
        options
    }

    /// The management API, as guest with this password.
    pub(crate) fn management(&self, password: &str) -> ManagementOptions {
        let Where::Managed(node) = &self.admin else {
            panic!("the shared node has no management API");
        };
        let uri = node.management_uri().expect("it has the plugin");
        let (_, address) = uri.rsplit_once('@').expect("with user and password");
        ManagementOptions::new(format!("http://{address}"), "guest", Secret::new(password))
    }

    pub(crate) async fn connect(&self) -> Connection {
        self.connect_as("guest").await
    }

    /// A connection of a user whose password is the name.
    pub(crate) async fn connect_as(&self, user: &str) -> Connection {
        let (port, vhost) = (self.port, &self.vhost);
        let uri = format!("amqp://{user}:{user}@127.0.0.1:{port}/{vhost}");
        let connecting = Connection::connect(&uri, ConnectionProperties::default());
        connecting.await.expect("connected")
    }

    /// Makes a user with these patterns for configure, write and read; gives the name, which is
    /// also the password.
    pub(crate) async fn user(&self, patterns: [&str; 3]) -> String {
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let user = format!("user-{count}-{}", self.vhost);
        self.admin().add_user(&user, &user).await;
        let granted = self.admin().set_permissions(&user, &self.vhost, patterns);
        granted.await;
        user
    }
}

pub(crate) fn log_in(options: &mut AmqpOptions, user: &str) {
    options.uris[0].user = user.to_owned();
    options.uris[0].password = Secret::new(user);
}
