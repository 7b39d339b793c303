//! A folder with a configuration for a virtual host of the shared broker.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use futures_util::StreamExt;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Connection, ConnectionProperties};

use crate::broker_kit::{Proxy, SharedBroker, Vhost, eventually};
use crate::kit::Home;

/// A home on a virtual host of its own.
pub(crate) struct Place {
    pub(crate) home: Home,
    pub(crate) vhost: Vhost,
}

impl Place {
    /// One consumer `work`; `more` stands in its table, `tables` after it.
    pub(crate) async fn new(more: &str, tables: &str) -> Self {
        let vhost = SharedBroker::vhost().await;
        let uri = vhost.uri();
        Self::of(vhost, &uri, more, tables)
    }

    /// The same, with a proxy between the process and the broker.
    pub(crate) async fn proxied(more: &str, tables: &str) -> (Self, Proxy) {
        let vhost = SharedBroker::vhost().await;
        let proxy = Proxy::start((Ipv4Addr::LOCALHOST, vhost.port()).into());
        let uri = vhost.uri_through(proxy.port());
        (Self::of(vhost, &uri, more, tables), proxy)
    }

    fn of(vhost: Vhost, uri: &str, more: &str, tables: &str) -> Self {
        let home = Home::new(&format!(
            "[worker]\nstate-dir = \"data\"\n[broker]\nurl = \"{uri}\"\ndeclare = true\n\
             linger = \"100ms\"\n[[consumer]]\nname = \"work\"\nqueue = \"work\"\n{more}\n{tables}\n",
        ));
        Self { home, vhost }
    }

    /// Waits until a queue holds so many messages, ready or not.
    pub(crate) async fn holds(&self, queue: &str, messages: u64) {
        let vhost = self.vhost.name();
        eventually(&format!("{queue} holds {messages}"), async || {
            let info = self.vhost.queue(vhost, queue).await?;
            (info.ready? + info.unacked? == messages).then_some(())
        })
        .await;
    }

    /// Takes all messages of a queue: what `of` reads from each, with how often it came.
    pub(crate) async fn take(
        &self,
        queue: &str,
        of: impl Fn(&lapin::message::Delivery) -> Option<String>,
    ) -> BTreeMap<String, usize> {
        let vhost = self.vhost.name();
        let info = self.vhost.queue(vhost, queue).await.expect("the queue");
        let count = info.ready.unwrap_or(0) + info.unacked.unwrap_or(0);
        let properties = ConnectionProperties::default();
        let connection = Connection::connect(&self.vhost.uri(), properties)
            .await
            .expect("a connection");
        let channel = connection.create_channel().await.expect("a channel");
        let options = BasicQosOptions { global: false };
        channel.basic_qos(100, options).await.expect("a prefetch");
        let mut consumer = channel
            .basic_consume(
                queue.into(),
                "reader".into(),
                BasicConsumeOptions::default(),
                FieldTable::default(),
            )
            .await
            .expect("a consumer");
        let mut seen = BTreeMap::new();
        for _ in 0..count {
            let delivery = consumer
                .next()
                .await
                .expect("a delivery")
                .expect("a delivery");
            if let Some(name) = of(&delivery) {
                *seen.entry(name).or_default() += 1;
            }
            let acked = delivery.ack(BasicAckOptions::default()).await;
            acked.expect("an ack");
        }
        seen
    }
}
