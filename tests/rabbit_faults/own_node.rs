//! One node for the tests that kill, block or slow it, one test at a time.

use tokio::sync::{Mutex, MutexGuard};

use crate::broker_kit::Node;

static NODE: Mutex<Option<Node>> = Mutex::const_new(None);

/// The node of this process, for one test at a time.
pub(crate) struct OwnNode(MutexGuard<'static, Option<Node>>);

impl OwnNode {
    /// Waits for its turn. The node runs, whatever the test before has done to it.
    pub(crate) async fn take() -> Self {
        let mut place = NODE.lock().await;
        match &*place {
            Some(node) if node.pid().is_some() => {}
            Some(node) => node.start_again().await,
            None => *place = Some(Node::start().await),
        }
        Self(place)
    }
}

impl std::ops::Deref for OwnNode {
    type Target = Node;

    fn deref(&self) -> &Node {
        self.0.as_ref().expect("started when it was taken")
    }
}
