//! The transport port over the embedded broker, and what it can do beyond the port.

use std::num::NonZeroU32;
use std::sync::Arc;

use acquit_actors::model::{Capabilities, DeliveryCounting, QueueName};
use acquit_actors::ports::{
    BoxFuture, Publisher, Source, SourceError, SourceSpec, Transport, TransportError,
};

use super::broker::Broker;
use super::error::EmbeddedError;
use super::options::EmbeddedOptions;
use super::publisher::EmbeddedPublisher;
use super::source::EmbeddedSource;

/// The embedded broker: queues in this process (`memory:`) or in a folder (`embedded:<dir>`).
///
/// Cloning gives another handle to the same broker. When the last handle, publisher and source is
/// dropped, what waits is committed and the folder is free for another process.
///
/// # Examples
///
/// ```
/// use acquit::transport::embedded::{EmbeddedOptions, EmbeddedTransport};
/// use acquit_actors::ports::Transport;
///
/// let transport = EmbeddedTransport::open(EmbeddedOptions::memory())?;
/// assert!(!transport.capabilities().durable);
/// # Ok::<(), acquit::transport::embedded::EmbeddedError>(())
/// ```
#[derive(Debug, Clone)]
pub struct EmbeddedTransport(pub(crate) Arc<Broker>);

impl EmbeddedTransport {
    /// Opens the broker. For a folder this takes the folder's lock, replays what a killed process
    /// left in the log, and reads every message once (about half a second per million).
    ///
    /// # Errors
    ///
    /// [`EmbeddedError::InUse`] when another process has the folder; `NewerFormat`, `ReadOnly`,
    /// `Corrupt` and `StorageFull` as their names say.
    pub fn open(options: EmbeddedOptions) -> Result<Self, EmbeddedError> {
        Ok(Self(Arc::new(Broker::open(options)?)))
    }

    /// Makes sure that a queue is there with so many partitions.
    ///
    /// # Errors
    ///
    /// [`EmbeddedError::PartitionsChanged`] when it has another number of partitions.
    pub async fn ensure_queue(
        &self,
        name: &QueueName,
        partitions: NonZeroU32,
    ) -> Result<(), EmbeddedError> {
        self.0.ensure_queue(name, partitions).await
    }
}

impl Transport for EmbeddedTransport {
    fn name(&self) -> &'static str {
        if self.0.kind.durable {
            "embedded"
        } else {
            "memory"
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            confirms_settlement: true,
            delayed_requeue: true,
            extend: true,
            dead_list: true,
            late_ack: false,
            counting: DeliveryCounting::FailuresApart,
            durable: self.0.kind.durable,
        }
    }

    fn open_source(
        &self,
        spec: SourceSpec,
    ) -> BoxFuture<'static, Result<Box<dyn Source>, SourceError>> {
        let broker = Arc::clone(&self.0);
        Box::pin(async move {
            let partitions = NonZeroU32::new(spec.partitions).unwrap_or(NonZeroU32::MIN);
            broker.ensure_queue(&spec.queue, partitions).await?;
            let partition = broker.queues.partition(&spec.queue, spec.partition)?;
            let source = EmbeddedSource::open(broker, partition, spec.generation, spec.credit);
            Ok(Box::new(source) as Box<dyn Source>)
        })
    }

    fn publisher(&self) -> Arc<dyn Publisher> {
        Arc::new(EmbeddedPublisher(Arc::clone(&self.0)))
    }

    fn close(&self) -> BoxFuture<'static, Result<(), TransportError>> {
        let broker = Arc::clone(&self.0);
        Box::pin(async move { Ok(broker.close().await?) })
    }
}
