//! The tree as plain data, for status views.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::core::ChildState;
use super::rules::ExitReason;

/// How long a supervisor waits for each supervisor below it when it describes the tree; one that
/// does not answer in time is shown without children.
pub const TREE_TIMEOUT: Duration = Duration::from_secs(1);

/// One supervised thing, and what is below it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct TreeNode {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: NodeKind,
    /// Where it stands.
    pub state: NodeState,
    /// How often it was started again.
    pub restarts: u64,
    /// How its last incarnation ended, if one did.
    pub last_exit: Option<ExitReason>,
    /// How many exits of former incarnations it ignored, if it is a supervisor.
    pub late_exits: u64,
    /// What it supervises, in order of start.
    pub children: Vec<TreeNode>,
}

/// What a supervised thing is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeKind {
    /// A supervisor.
    Supervisor,
    /// Another actor.
    Actor,
    /// A plain future.
    Future,
    /// It was never started, so it is not known yet.
    Unknown,
}

/// Where a supervised thing stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeState {
    /// It starts with its group.
    Queued,
    /// It runs.
    Running,
    /// It was asked to stop.
    Stopping,
    /// It ended; its restart is due later.
    Waiting,
    /// It ended for good.
    Ended,
}

impl From<ChildState> for NodeState {
    fn from(state: ChildState) -> Self {
        match state {
            ChildState::Queued => Self::Queued,
            ChildState::Running { .. } => Self::Running,
            ChildState::Stopping { .. } => Self::Stopping,
            ChildState::Waiting => Self::Waiting,
            ChildState::Ended => Self::Ended,
        }
    }
}
