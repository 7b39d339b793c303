//! A virtual host with a topology, and an engine on it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use acquit::transport::amqp::topology::{Task, perform};
use acquit::transport::amqp::{AmqpConsumer, AmqpOptions, AmqpTransport, AmqpUri};
use acquit_actors::model::{Delivery, HeaderValue, Outgoing, RetryWay};
use acquit_actors::ports::{
    Handler, HandlerOutcome, PublishReply, Publisher, Transport, handler_fn,
};
use acquit_actors::{ConsumerSpec, Counts, DrainReport, Engine, EngineEnd, Handle};
use tokio::sync::Notify;

use crate::broker_kit::{SharedBroker, Vhost, eventually};

/// A virtual host of the shared broker with a declared queue `words`.
pub(crate) struct Place {
    pub(crate) vhost: Vhost,
    pub(crate) options: AmqpOptions,
}

/// A consumer of `words` whose retries take 400 ms, with replies and dead letters.
pub(crate) fn words() -> AmqpConsumer {
    let mut consumer = AmqpConsumer::new("words", "words");
    consumer.ladder = vec![Duration::from_millis(400)];
    consumer.reply_queue = Some("words.results".into());
    consumer.dead_letter_queue = Some("words.dead".into());
    consumer
}

impl Place {
    pub(crate) async fn with(consumer: AmqpConsumer) -> Self {
        Self::made(consumer, |_| {}).await
    }

    pub(crate) async fn made(
        consumer: AmqpConsumer,
        change: impl FnOnce(&mut AmqpOptions),
    ) -> Self {
        let vhost = SharedBroker::vhost().await;
        let mut uri = AmqpUri::local(vhost.port());
        vhost.name().clone_into(&mut uri.vhost);
        let mut options = AmqpOptions::new(uri);
        options.linger = Duration::from_millis(100);
        options.consumers = vec![consumer];
        change(&mut options);
        perform(&options, Task::Apply).await.expect("a topology");
        Self { vhost, options }
    }

    pub(crate) async fn new() -> Self {
        Self::with(words()).await
    }

    pub(crate) fn transport(&self) -> AmqpTransport {
        AmqpTransport::open(self.options.clone()).expect("a thread")
    }

    /// The consumer as the engine knows it.
    pub(crate) fn spec(&self, handler: Handler) -> ConsumerSpec {
        let mine = &self.options.consumers[0];
        let reply = mine.reply_queue.clone();
        let dead = mine.dead_letter_queue.clone();
        let partitions = mine.partitions;
        let ladder = !mine.ladder.is_empty();
        ConsumerSpec::new("words", "words", handler)
            .with_partitions(partitions)
            .with(|spec| {
                spec.reply_queue = reply;
                spec.dead_letter_queue = dead;
                spec.retry.max_attempts = 3.try_into().expect("not 0");
                spec.retry.backoff.base = Duration::from_millis(400);
                spec.retry.backoff.max = Duration::from_millis(400);
                spec.retry.way = if ladder {
                    RetryWay::Ladder
                } else {
                    RetryWay::Hold
                };
            })
    }

    /// Starts an engine on a transport of its own.
    pub(crate) fn start(&self, spec: ConsumerSpec) -> Handle {
        let transport: Arc<dyn Transport> = Arc::new(self.transport());
        Engine::new(transport)
            .with_consumer(spec)
            .with_drain_timeout(Duration::from_secs(5))
            .start()
            .expect("an engine")
    }

    /// Publishes bodies with ids `m0` … through a running engine's kind of transport.
    pub(crate) async fn publish(&self, bodies: &[&str]) {
        let messages = bodies.iter().enumerate().map(|(number, body)| {
            Outgoing::new("words".into(), (*body).to_owned()).with_id(format!("m{number}"))
        });
        self.publish_all(messages.collect()).await;
    }

    pub(crate) async fn publish_all(&self, messages: Vec<Outgoing>) {
        // A transport without an engine has nobody who keeps its connections: an engine without
        // consumers does.
        let transport = self.transport();
        let handle = Engine::new(Arc::new(transport.clone()))
            .start()
            .expect("an engine");
        connected(&handle).await;
        publish_on(&*transport.publisher(), messages).await;
        handle.drain_and_wait("published").await;
    }

    pub(crate) async fn counts(&self, queue: &str, counts: [u64; 3]) {
        let vhost = self.vhost.name();
        self.vhost.await_counts(vhost, queue, counts).await;
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
}

pub(crate) async fn connected(handle: &Handle) {
    eventually("both connections are open", async || {
        let snapshot = handle.snapshot().await.ok()?;
        let open = snapshot.connections.iter().all(|one| one.state == "open");
        open.then_some(())
    })
    .await;
}

pub(crate) async fn publish_on(publisher: &dyn Publisher, messages: Vec<Outgoing>) {
    let answers: Vec<_> = messages
        .into_iter()
        .map(|message| {
            let (reply, answer) = PublishReply::channel();
            publisher.publish(message, reply);
            answer
        })
        .collect();
    for answer in answers {
        answer.await.expect("an answer").expect("confirmed");
    }
}

pub(crate) async fn counts(handle: &Handle) -> Counts {
    let snapshot = handle.snapshot().await.expect("a snapshot");
    let counts = snapshot.consumers[0].counts;
    assert!(counts.is_balanced(), "{counts:?}");
    counts
}

pub(crate) async fn until(handle: &Handle, what: &str, is: impl Fn(&Counts) -> bool) {
    eventually(what, async || is(&counts(handle).await).then_some(())).await;
}

pub(crate) async fn drained(handle: Handle) -> DrainReport {
    match handle.drain_and_wait("the test is over").await {
        EngineEnd::Drained(report) => report,
        other => panic!("it did not drain: {other:?}"),
    }
}

/// What the handlers saw, in their order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Runs {
    seen: Arc<Mutex<Vec<Seen>>>,
    /// Held handlers wait for it.
    gate: Arc<Notify>,
}

#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) id: String,
    pub(crate) attempt: u32,
    pub(crate) partition: u32,
    pub(crate) headers: BTreeMap<String, HeaderValue>,
}

impl Runs {
    pub(crate) fn all(&self) -> Vec<Seen> {
        self.seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn of(&self, id: &str) -> usize {
        self.all().iter().filter(|seen| seen.id == id).count()
    }

    pub(crate) async fn at_least(&self, count: usize) {
        eventually(&format!("{count} runs"), async || {
            (self.all().len() >= count).then_some(())
        })
        .await;
    }

    /// Lets all held handlers go on, now and later.
    pub(crate) fn open_gate(&self) {
        self.gate.notify_waiters();
        self.gate.notify_one();
    }

    fn note(&self, delivery: &Delivery) {
        let seen = Seen {
            id: delivery
                .id
                .as_ref()
                .map_or_else(String::new, |id| id.as_str().to_owned()),
            attempt: delivery.attempt.get(),
            partition: delivery.partition.0,
            headers: delivery
                .headers
                .iter()
                .map(|(name, value)| (name.to_owned(), value.clone()))
                .collect(),
        };
        self.seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(seen);
    }

    /// A handler that does what the body says: `ok`, `fail`, `fail-until N`, `reject`, `hold`,
    /// `work MILLISECONDS`.
    pub(crate) fn handler(&self) -> Handler {
        let runs = self.clone();
        handler_fn(move |context| {
            let runs = runs.clone();
            async move {
                let delivery = context.delivery();
                runs.note(delivery);
                let body = String::from_utf8_lossy(&delivery.body).into_owned();
                let mut words = body.split_whitespace();
                match words.next().unwrap_or_default() {
                    "fail" => HandlerOutcome::failed("it fails"),
                    "fail-until" => {
                        let until: u32 = words.next().and_then(|n| n.parse().ok()).unwrap_or(1);
                        if delivery.attempt.get() < until {
                            HandlerOutcome::failed("not yet")
                        } else {
                            HandlerOutcome::completed_with("at last")
                        }
                    }
                    "reject" => HandlerOutcome::rejected("never"),
                    "work" => {
                        let ms: u64 = words.next().and_then(|n| n.parse().ok()).unwrap_or(1);
                        // tidy-allow: sleep: the work itself
                        tokio::time::sleep(Duration::from_millis(ms)).await;
                        HandlerOutcome::completed_with("worked")
                    }
                    "hold" => {
                        runs.gate.notified().await;
                        runs.gate.notify_one();
                        HandlerOutcome::completed_with("held")
                    }
                    _ => HandlerOutcome::completed_with("done"),
                }
            }
        })
    }
}
