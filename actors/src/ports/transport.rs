//! The transport: our adapter for one kind of broker.

use std::sync::Arc;
use std::time::Duration;

use crate::model::{Capabilities, ConsumerName, Generation, PartitionId, QueueName};

use super::{BoxFuture, Managed, Publisher, Source, SourceError};

/// How long [`Transport::close`] has at the end of a drain at the least: what takes longer is cut off.
/// It has more where the sources close faster than they must.
pub const TRANSPORT_CLOSE: Duration = Duration::from_millis(300);

/// An adapter for one kind of broker.
pub trait Transport: Send + Sync + 'static {
    /// Gives its name, as in the URL's scheme.
    fn name(&self) -> &'static str;

    /// Says what it can do.
    fn capabilities(&self) -> Capabilities;

    /// Opens one partition's source for one generation.
    fn open_source(
        &self,
        spec: SourceSpec,
    ) -> BoxFuture<'static, Result<Box<dyn Source>, SourceError>>;

    /// Gives the publisher.
    fn publisher(&self) -> Arc<dyn Publisher>;

    /// Gives what the engine has to keep alive for it: its connections. None by default.
    fn managed(&self) -> Vec<Arc<dyn Managed>> {
        Vec::new()
    }

    /// Closes it: what is under way is flushed, bounded by the transport's own deadline; see
    /// [`TRANSPORT_CLOSE`].
    fn close(&self) -> BoxFuture<'static, Result<(), TransportError>>;
}

/// Which source to open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceSpec {
    /// Who asks.
    pub consumer: ConsumerName,
    /// The queue.
    pub queue: QueueName,
    /// The partition.
    pub partition: PartitionId,
    /// How many partitions the queue has.
    pub partitions: u32,
    /// The number of this opening.
    pub generation: Generation,
    /// How many unsettled deliveries may be handed out ahead; at least 1.
    pub credit: u32,
    /// How many of the consumer's deliveries may be at work at once, over all partitions, as it is
    /// now. A delivery is at work until its settlement is answered: who collects settlements must
    /// not wait for more of them than this lets come.
    pub permits: u32,
}

/// Why a transport could not be opened or closed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// The configuration is wrong for this broker or store; says what to change.
    #[error("{0}")]
    Configuration(String),
    /// The broker or store is in use, away or broken; says which and what to do.
    #[error("{0}")]
    Unavailable(String),
}
