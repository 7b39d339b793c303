//! Bare client loops, to measure ourselves against: nothing but lapin, a queue and an ack.

use futures_util::StreamExt;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Connection, ConnectionProperties};

use super::options::QueueType;
use super::uri::AmqpUri;

/// What lapin says when a bare loop fails.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BareError(#[from] lapin::Error);

type Done = Result<(), BareError>;

/// How a bare loop settles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BareAck {
    /// Each ack is awaited before the next delivery is taken.
    Each,
    /// Each ack is a task of its own and is not awaited.
    Unawaited,
    /// One multiple ack for so many deliveries.
    Multiple(u64),
}

/// A bare client of one queue. Every call makes a connection of its own, on the runtime that it is
/// called from.
#[derive(Debug, Clone)]
pub struct BareClient {
    uri: AmqpUri,
    queue: ShortString,
}

impl BareClient {
    /// A client of a queue; its name has at most 255 bytes.
    pub fn new(uri: AmqpUri, queue: &str) -> Self {
        Self {
            uri,
            queue: ShortString::from(queue),
        }
    }

    async fn connect(&self) -> lapin::Result<Connection> {
        let uri = super::connection::plain_uri(&self.uri);
        Connection::connect_uri(uri, ConnectionProperties::default()).await
    }

    /// Declares the queue and publishes so many messages of so many bytes, confirmed.
    ///
    /// # Errors
    /// [`BareError`].
    pub async fn fill(&self, kind: QueueType, count: u64, bytes: usize) -> Done {
        let connection = self.connect().await?;
        let channel = connection.create_channel().await?;
        channel
            .confirm_select(ConfirmSelectOptions::default())
            .await?;
        let mut arguments = FieldTable::default();
        let kind = match kind {
            QueueType::Quorum => "quorum",
            QueueType::Classic => "classic",
        };
        arguments.insert("x-queue-type".into(), AMQPValue::LongString(kind.into()));
        let options = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        channel
            .queue_declare(self.queue.clone(), options, arguments)
            .await?;
        let body = vec![b'x'; bytes];
        let mut confirms = Vec::with_capacity(1000);
        for number in 0..count {
            let id = ShortString::from(format!("{number}"));
            let properties = BasicProperties::default()
                .with_delivery_mode(2)
                .with_message_id(id);
            let confirm = channel
                .basic_publish(
                    ShortString::default(),
                    self.queue.clone(),
                    BasicPublishOptions::default(),
                    &body,
                    properties,
                )
                .await?;
            confirms.push(confirm);
            if confirms.len() == 1000 {
                for confirm in confirms.drain(..) {
                    confirm.await?;
                }
            }
        }
        for confirm in confirms {
            confirm.await?;
        }
        Ok(connection.close(200, "done".into()).await?)
    }

    /// Takes and settles so many messages. With `held_head` the first one is not settled: the
    /// channel's end gives it back.
    ///
    /// # Errors
    /// [`BareError`].
    pub async fn consume(&self, prefetch: u16, count: u64, ack: BareAck, held_head: bool) -> Done {
        let connection = self.connect().await?;
        let channel = connection.create_channel().await?;
        channel
            .basic_qos(prefetch, BasicQosOptions { global: false })
            .await?;
        let mut consumer = channel
            .basic_consume(
                self.queue.clone(),
                "bare".into(),
                BasicConsumeOptions::default(),
                FieldTable::default(),
            )
            .await?;
        let mut tasks = tokio::task::JoinSet::new();
        let mut held = None;
        for number in 1..=count {
            let Some(delivery) = consumer.next().await else {
                break;
            };
            let delivery = delivery?;
            if held_head && number == 1 {
                held = Some(delivery);
                continue;
            }
            match ack {
                BareAck::Each => {
                    delivery.ack(BasicAckOptions::default()).await?;
                }
                BareAck::Unawaited => {
                    while tasks.try_join_next().is_some() {}
                    tasks.spawn(async move { delivery.ack(BasicAckOptions::default()).await });
                }
                BareAck::Multiple(every) => {
                    if number % every == 0 || number == count {
                        delivery.ack(BasicAckOptions { multiple: true }).await?;
                    }
                }
            }
        }
        while tasks.join_next().await.is_some() {}
        drop((consumer, held));
        // Acks that race a close can be ignored by a quorum queue; the queue goes away anyway.
        Ok(connection.close(200, "done".into()).await?)
    }

    /// Deletes the queue.
    ///
    /// # Errors
    /// [`BareError`].
    pub async fn delete(&self) -> Done {
        let connection = self.connect().await?;
        let channel = connection.create_channel().await?;
        channel
            .queue_delete(self.queue.clone(), QueueDeleteOptions::default())
            .await?;
        Ok(connection.close(200, "done".into()).await?)
    }
}
