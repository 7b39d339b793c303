//! The publisher: messages into queues, confirmed when they are as safe as configured.

use std::sync::{Arc, PoisonError};

use acquit_actors::model::Outgoing;
use acquit_actors::ports::{BoxFuture, FeedCursor, PublishError, PublishReply, Publisher};

use tokio::sync::oneshot;

use super::batch::Table;
use super::broker::{Broker, keep_cursor};
use super::codec::decode_numbers;
use super::error::EmbeddedError;
use super::job::Job;
use super::message::Message;
use super::names;
use super::queue::wake;

/// The embedded broker's publisher.
#[derive(Debug)]
pub(crate) struct EmbeddedPublisher(pub(crate) Arc<Broker>);

impl EmbeddedPublisher {
    fn start(&self, messages: Vec<Outgoing>, cursor: Option<FeedCursor>, reply: PublishReply) {
        let broker = &*self.0;
        let max = broker.options.max_message_bytes;
        let sizes = messages.iter().map(size_of);
        if let Some(size) = sizes.clone().find(|size| *size > max) {
            return reply.failed(EmbeddedError::TooLarge { size, max }.into());
        }
        if broker.is_closed() {
            return reply.failed(EmbeddedError::Closed.into());
        }
        let Some(durable) = &broker.durable else {
            for message in messages {
                publish_in_memory(broker, message);
            }
            if let Some(cursor) = cursor {
                keep_cursor(broker, cursor);
            }
            return reply.confirmed();
        };
        let bytes = sizes.sum();
        if let Err(error) = durable.intake.admit(bytes) {
            return reply.failed(error.into());
        }
        let job = Job::Publish {
            messages,
            cursor,
            reply,
            bytes,
        };
        if let Err(Job::Publish { reply, bytes, .. }) = durable.intake.push(job) {
            durable.intake.done(bytes);
            reply.failed(EmbeddedError::Closed.into());
        }
    }
}

impl Publisher for EmbeddedPublisher {
    fn publish(&self, message: Outgoing, reply: PublishReply) {
        // In memory one message goes without the list that a batch needs.
        let broker = &*self.0;
        if broker.durable.is_none()
            && !broker.is_closed()
            && size_of(&message) <= broker.options.max_message_bytes
        {
            publish_in_memory(broker, message);
            return reply.confirmed();
        }
        self.start(vec![message], None, reply);
    }

    fn publish_feed(&self, messages: Vec<Outgoing>, cursor: FeedCursor, reply: PublishReply) {
        self.start(messages, Some(cursor), reply);
    }

    fn feed_cursor<'a>(
        &'a self,
        feed: &'a str,
    ) -> BoxFuture<'a, Result<Option<FeedCursor>, PublishError>> {
        Box::pin(async move {
            let Some(durable) = &self.0.durable else {
                let cursors = self.0.cursors.lock();
                let cursors = cursors.unwrap_or_else(PoisonError::into_inner);
                return Ok(cursors.get(feed).cloned());
            };
            // Behind what is still on its way to the store: a batch may be there unanswered.
            let (reply, committed) = oneshot::channel();
            if durable.intake.push(Job::Barrier(reply)).is_err() || committed.await.is_err() {
                return Err(PublishError::Unknown);
            }
            let key = names::cursor(feed);
            let feed = feed.to_owned();
            let read = durable.call(move |reader| {
                let Some(row) = reader.with(|tables| tables.get(Table::Names, &key))? else {
                    return Ok(None);
                };
                let [offset, line, bad] =
                    decode_numbers(&key, &row).map_err(|bad| EmbeddedError::Corrupt {
                        file: reader.dir.join("messages.redb"),
                        detail: format!("the cursor of the feed {feed:?}: {bad}"),
                    })?;
                Ok(Some(FeedCursor {
                    feed,
                    offset,
                    line,
                    bad,
                }))
            });
            read.await.map_err(PublishError::from)
        })
    }
}

pub(crate) fn publish_in_memory(broker: &Broker, outgoing: Outgoing) {
    let queue = match broker.queues.get(&outgoing.queue) {
        Some(queue) => queue,
        None => broker.make_queue(&outgoing.queue, broker.options.default_partitions.get()),
    };
    let partition = queue.choose(outgoing.key.as_deref());
    let message = Arc::new(Message::of(outgoing, broker.clock.wall_millis()));
    let weight = message.weight();
    let mut state = partition.lock();
    let seq = state.core.reserve();
    state.core.push(seq, message, weight);
    let waiting = state.take_waiting();
    drop(state);
    wake(waiting);
}

fn size_of(message: &Outgoing) -> usize {
    let headers: usize = message
        .headers
        .iter()
        .map(|(name, _)| name.len() + 16)
        .sum();
    message.body.len() + headers + 128
}
