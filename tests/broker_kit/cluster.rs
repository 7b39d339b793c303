//! Three private nodes that share their queues.

use std::sync::Arc;

use super::ground::Ground;
use super::node::{Node, NodeOptions};

/// A cluster of three nodes on one ground.
#[derive(Debug)]
pub(crate) struct Cluster {
    nodes: Vec<Node>,
}

impl Cluster {
    /// Starts three nodes and joins them (20 to 40 seconds).
    pub(crate) async fn start() -> Self {
        Self::start_with(NodeOptions::default()).await
    }

    /// The same, each node with these options.
    pub(crate) async fn start_with(options: NodeOptions) -> Self {
        let ground = Arc::new(Ground::prepare().await);
        let launch = |name| Node::start_on(ground.clone(), name, options.clone());
        let (n1, n2, n3) = tokio::join!(launch("n1"), launch("n2"), launch("n3"));
        // One after the other: two that join at once can fail.
        for node in [&n2, &n3] {
            let join = format!(
                "rabbit:stop(), ok = rabbit_mnesia:reset(), \
                 ok = rabbit_mnesia:join_cluster('{}', disc), ok = rabbit:start(), ok",
                n1.name()
            );
            node.eval(&join).await;
        }
        let cluster = Self {
            nodes: vec![n1, n2, n3],
        };
        super::eventually("three running nodes", async || {
            let count = cluster.nodes[0]
                .eval("length(rabbit_nodes:all_running())")
                .await;
            (count == "3").then_some(())
        })
        .await;
        cluster
    }

    /// One of the nodes, 0 to 2.
    pub(crate) fn node(&self, index: usize) -> &Node {
        &self.nodes[index]
    }

    /// The addresses of all nodes, as the user guest.
    pub(crate) fn uris(&self) -> Vec<String> {
        self.nodes.iter().map(Node::uri).collect()
    }

    /// Kills one node.
    pub(crate) fn kill(&self, index: usize) {
        self.nodes[index].kill();
    }

    /// The node that leads a queue, as a living one sees it.
    pub(crate) async fn leader_of(&self, vhost: &str, queue: &str) -> Option<usize> {
        let alive = self.nodes.iter().find(|node| node.pid().is_some())?;
        let leader = alive.queue(vhost, queue).await?.leader?;
        self.nodes.iter().position(|node| node.name() == leader)
    }
}
