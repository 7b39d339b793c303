//! What a transport wants kept alive: its connections, hosted by the engine's actors.

use serde::{Deserialize, Serialize};

use super::BoxFuture;

/// A part of a transport that runs for as long as the engine does. An actor hosts it: when it ends
/// or panics, it is run again with backoff, within the intensity of the tree.
pub trait Managed: Send + Sync {
    /// Gives its name in the tree.
    fn name(&self) -> &'static str;

    /// Does its work until the transport is closed. May be called again after it ended or was
    /// dropped; never twice at once.
    ///
    /// # Cancel safety
    /// Dropping the future ends the work.
    fn run(&self) -> BoxFuture<'static, ()>;

    /// Says where it stands.
    fn state(&self) -> ManagedState;
}

/// Where a managed part stands, for status.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ManagedState {
    /// Its name.
    pub name: String,
    /// Its state, in a word.
    pub state: String,
    /// Where it is connected to, or tries to.
    pub address: String,
    /// How often it has been opened.
    pub opened: u64,
    /// Why it is not in its best state.
    pub trouble: Option<String>,
}
