//! The transport port over RabbitMQ.

use std::fmt;
use std::sync::Arc;

use acquit_actors::model::{Capabilities, DeliveryCounting, PartitionId, QueueName};
use acquit_actors::ports::{
    BoxFuture, Managed, ManagedState, Publisher, Source, SourceError, SourceSpec, Transport,
    TransportError,
};

use lapin::options::QueueDeclareOptions;
use lapin::types::{AMQPValue, FieldTable, ShortString};

use super::connection::{Keeper, Opener};
use super::convert::{Place, short};
use super::options::{AmqpConsumer, AmqpOptions};
use super::partitions::Partitions;
use super::publisher::AmqpPublisher;
use super::source::{Subscription, open};
use super::topology::{Ladder, partition_queue};

/// RabbitMQ, through lapin on a runtime of its own: whatever blocks a thread of ours, heartbeats
/// and settlements go on.
///
/// Opening it connects nothing: its connections are kept by the engine's actors, which try for
/// ever. Who wants to know at once whether the broker is there and takes us asks
/// [`prepare`](super::topology::prepare) first.
///
/// Cloning gives another handle.
#[derive(Clone)]
pub struct AmqpTransport(Arc<Inner>);

struct Inner {
    options: Arc<AmqpOptions>,
    runtime: Option<tokio::runtime::Runtime>,
    consuming: Arc<Keeper>,
    publishing: Arc<Keeper>,
    publisher: Arc<AmqpPublisher>,
}

/// Shutting a runtime down waits for its threads, which may not be done inside another runtime.
impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl AmqpTransport {
    /// Makes the transport.
    ///
    /// # Errors
    /// [`TransportError::Unavailable`] when its thread cannot be started,
    /// [`TransportError::Configuration`] without an address.
    pub fn open(options: AmqpOptions) -> Result<Self, TransportError> {
        if options.uris.is_empty() {
            let text = "broker.url names no address".to_owned();
            return Err(TransportError::Configuration(text));
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("acquit-amqp")
            .enable_all()
            .build()
            .map_err(|error| {
                TransportError::Unavailable(format!("its thread cannot be started: {error}"))
            })?;
        let options = Arc::new(options);
        let handle = runtime.handle();
        let keeper = |role| {
            let opener = Opener::new(Arc::clone(&options), role, handle);
            Arc::new(Keeper::new(opener))
        };
        let (consuming, publishing) = (keeper("consume"), keeper("publish"));
        let partitions = Arc::new(Partitions::of(&options));
        let publisher = AmqpPublisher::start(
            Arc::clone(&publishing),
            partitions,
            options.publish_window,
            options.answer_timeout,
            handle,
        );
        Ok(Self(Arc::new(Inner {
            consuming,
            publishing,
            publisher: Arc::new(publisher),
            options: Arc::clone(&options),
            runtime: Some(runtime),
        })))
    }

    fn handle(&self) -> Option<tokio::runtime::Handle> {
        self.0
            .runtime
            .as_ref()
            .map(|runtime| runtime.handle().clone())
    }

    /// Counts what is ready in a queue, over all its partitions, and what waits in its ladder;
    /// `None` when it cannot be asked now. A quorum queue's count can be some tens behind.
    pub async fn depth(&self, queue: &QueueName) -> Option<(u64, u64)> {
        let connection = self.0.consuming.seen().connection?;
        let limit = self.0.options.answer_timeout;
        let mine = self.0.options.consumers.iter();
        let mine = mine.clone().find(|consumer| consumer.queue == *queue);
        let partitions = mine.map_or(1, |consumer| consumer.partitions.max(1));
        let ids = (0..partitions).map(PartitionId);
        let ready: Vec<QueueName> = ids
            .clone()
            .map(|id| partition_queue(queue, partitions, id))
            .collect();
        let ladder = mine.and_then(Ladder::of);
        let rungs: Vec<QueueName> = ladder
            .iter()
            .flat_map(|ladder| ids.clone().flat_map(|id| ladder.rungs(id)))
            .map(|(_, name)| name)
            .collect();
        // A queue that is missing costs the channel it was asked on, and nothing else.
        let asking = self.handle()?.spawn(async move {
            let ready = count(&connection, ready).await?;
            let waits = count(&connection, rungs).await.unwrap_or(0);
            Some((ready, waits))
        });
        tokio::time::timeout(limit, asking).await.ok()?.ok()?
    }

    fn subscription(&self, spec: SourceSpec) -> Result<Subscription, SourceError> {
        let options = &self.0.options;
        let mine = options
            .consumers
            .iter()
            .find(|consumer| consumer.name == spec.consumer);
        let name = partition_queue(&spec.queue, spec.partitions, spec.partition);
        let queue = short("queue's name", name.as_str())
            .map_err(|refused| SourceError::Refused(refused.0))?;
        Ok(Subscription {
            queue,
            tag: format!(
                "acquit.{}.{}.{}.{}",
                cut(spec.consumer.as_str(), 100),
                spec.partition,
                std::process::id(),
                spec.generation.0
            ),
            place: Place {
                queue: spec.queue,
                partition: spec.partition,
                generation: spec.generation,
            },
            credit: spec.credit,
            at_work: spec.permits / spec.partitions.max(1),
            arguments: mine.map(arguments).unwrap_or_default(),
            answer_timeout: options.answer_timeout,
            linger: options.linger,
            drop_dead: mine.is_some_and(|consumer| consumer.drop_dead),
        })
    }
}

/// What a subscription says besides its queue.
fn arguments(consumer: &AmqpConsumer) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in &consumer.arguments {
        if let Ok(name) = ShortString::try_new(name) {
            table.insert(name, value.into());
        }
    }
    if let Some(priority) = consumer.priority {
        table.insert("x-priority".into(), AMQPValue::LongInt(priority));
    }
    table
}

/// Adds up what is ready in some queues.
async fn count(connection: &lapin::Connection, queues: Vec<QueueName>) -> Option<u64> {
    if queues.is_empty() {
        return Some(0);
    }
    let channel = connection.create_channel().await.ok()?;
    let mut ready = 0;
    for queue in queues {
        let options = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        let name = short("queue's name", queue.as_str()).ok()?;
        let found = channel.queue_declare(name, options, FieldTable::default());
        ready += u64::from(found.await.ok()?.message_count());
    }
    channel.close(200, "done".into()).await.ok()?;
    Some(ready)
}

fn cut(text: &str, chars: usize) -> String {
    text.chars().take(chars).collect()
}

impl Transport for AmqpTransport {
    fn name(&self) -> &'static str {
        "amqp"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            confirms_settlement: false,
            delayed_requeue: false,
            extend: false,
            dead_list: false,
            late_ack: false,
            // Before RabbitMQ 4.3; a classic queue counts nothing, which then reads as unknown.
            counting: DeliveryCounting::EveryReturn,
            durable: true,
        }
    }

    fn open_source(
        &self,
        spec: SourceSpec,
    ) -> BoxFuture<'static, Result<Box<dyn Source>, SourceError>> {
        let (keeper, runtime) = (Arc::clone(&self.0.consuming), self.handle());
        let subscription = self.subscription(spec);
        Box::pin(async move {
            let subscription = subscription?;
            let closed = || SourceError::Unavailable("the transport is closed".to_owned());
            let Some((connection, _)) = keeper.connection().await else {
                return Err(closed());
            };
            let opening = runtime
                .ok_or_else(closed)?
                .spawn(async move { open(&connection, subscription).await });
            match opening.await {
                Ok(Ok(source)) => Ok(Box::new(source) as Box<dyn Source>),
                // A queue that is missing, or a permission that is, may come back: the consumer
                // tries again with backoff and shows why. What is wrong from the start is found by
                // `prepare`, before anything runs.
                Ok(Err(trouble)) => Err(SourceError::Unavailable(trouble.to_string())),
                Err(_) => Err(closed()),
            }
        })
    }

    fn publisher(&self) -> Arc<dyn Publisher> {
        Arc::clone(&self.0.publisher) as Arc<dyn Publisher>
    }

    fn managed(&self) -> Vec<Arc<dyn Managed>> {
        let part = |keeper: &Arc<Keeper>| {
            Arc::new(Kept {
                keeper: Arc::clone(keeper),
                runtime: self.handle(),
            }) as Arc<dyn Managed>
        };
        vec![part(&self.0.consuming), part(&self.0.publishing)]
    }

    fn close(&self) -> BoxFuture<'static, Result<(), TransportError>> {
        let (consuming, publishing) = (
            Arc::clone(&self.0.consuming),
            Arc::clone(&self.0.publishing),
        );
        Box::pin(async move {
            tokio::join!(consuming.close(), publishing.close());
            Ok(())
        })
    }
}

impl fmt::Debug for AmqpTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AmqpTransport").finish_non_exhaustive()
    }
}

/// One connection, as the engine's actors host it. Its work is done on the client's runtime.
struct Kept {
    keeper: Arc<Keeper>,
    runtime: Option<tokio::runtime::Handle>,
}

impl Managed for Kept {
    fn name(&self) -> &'static str {
        self.keeper.role()
    }

    fn run(&self) -> BoxFuture<'static, ()> {
        let (keeper, runtime) = (Arc::clone(&self.keeper), self.runtime.clone());
        Box::pin(async move {
            let Some(runtime) = runtime else { return };
            let mut task = AbortOnDrop(runtime.spawn(async move { keeper.run().await }));
            if let Err(error) = (&mut task.0).await
                && error.is_panic()
            {
                std::panic::resume_unwind(error.into_panic());
            }
        })
    }

    fn state(&self) -> ManagedState {
        let seen = self.keeper.seen();
        ManagedState {
            name: self.keeper.role().to_owned(),
            state: seen.state.as_str().to_owned(),
            address: seen.address,
            opened: seen.opened,
            trouble: seen.trouble,
        }
    }
}

struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
