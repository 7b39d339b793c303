//! One node for all tests, and a virtual host for each.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::sync::OnceCell;

use super::admin::Admin;
use super::control::{Control, binary};
use super::node::{Node, NodeOptions};

/// Names the shared node: `<AMQP port> <control port> <control token>`.
pub(crate) const VARIABLE: &str = "ACQUIT_TEST_RABBIT";

/// The node that tests share which do not stop or freeze it.
///
/// It is the one that [`VARIABLE`] names; without it, this process starts one of its own at the first use, which ends
/// with the process.
#[derive(Debug)]
pub(crate) struct SharedBroker {
    port: u16,
    control: Control,
}

static BROKER: OnceCell<(SharedBroker, Option<Node>)> = OnceCell::const_new();

impl SharedBroker {
    /// The plugins that the shared node has.
    pub(crate) fn options() -> NodeOptions {
        NodeOptions {
            plugins: vec!["rabbitmq_consistent_hash_exchange".to_owned()],
            ..NodeOptions::default()
        }
    }

    async fn get() -> &'static Self {
        let (broker, _) = BROKER
            .get_or_init(async || match std::env::var(VARIABLE) {
                Ok(text) => (Self::parse(&text), None),
                Err(_) => {
                    let node = Node::start_with(Self::options()).await;
                    (Self::of(&node), Some(node))
                }
            })
            .await;
        broker
    }

    fn of(node: &Node) -> Self {
        Self {
            port: node.port(),
            control: node.control(),
        }
    }

    fn parse(text: &str) -> Self {
        let words: Vec<&str> = text.split_whitespace().collect();
        let [port, control, token] = words[..] else {
            panic!("{VARIABLE} has not three words");
        };
        Self {
            port: port.parse().expect("a port"),
            control: Control {
                port: control.parse().expect("a port"),
                token: token.to_owned(),
            },
        }
    }

    /// What [`VARIABLE`] says about a node.
    pub(crate) fn describe(node: &Node) -> String {
        let Self { port, control } = Self::of(node);
        format!("{port} {} {}", control.port, control.token)
    }

    /// A new virtual host of the shared node, in which guest may do everything.
    pub(crate) async fn vhost() -> Vhost {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let broker = Self::get().await;
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        // What an aborted test has left keeps its name.
        let name = format!("test-{count}-{}", super::ground::secret());
        let admin = Admin::at(broker.control.clone());
        admin.add_vhost(&name).await;
        Vhost {
            port: broker.port,
            name,
            admin: Arc::new(admin),
        }
    }
}

/// A virtual host of one test. Dropping it deletes it, and closes its connections.
///
/// Orders to the whole broker reach every test: users, alarms and the consumer timeout are for a [`Node`].
#[derive(Debug)]
pub(crate) struct Vhost {
    port: u16,
    name: String,
    admin: Arc<Admin>,
}

impl Vhost {
    /// Its name in the broker.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The port of the broker's AMQP listener.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Its address, as the user guest.
    pub(crate) fn uri(&self) -> String {
        self.uri_through(self.port)
    }

    /// Its address over another port, such as a proxy's.
    pub(crate) fn uri_through(&self, port: u16) -> String {
        format!("amqp://guest:guest@127.0.0.1:{port}/{}", self.name)
    }
}

impl Deref for Vhost {
    type Target = Admin;

    fn deref(&self) -> &Admin {
        &self.admin
    }
}

impl Drop for Vhost {
    fn drop(&mut self) {
        let name = binary(&self.name);
        // Deleting takes a while: the broker goes on alone.
        let order = format!("spawn(fun() -> rabbit_vhost:delete({name}, <<\"test\">>) end), ok");
        self.admin.control().eval_blocking(&order).ok();
    }
}
