//! A declared queue on any node, an engine that works on it, and the questions at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use acquit::transport::amqp::topology::{Task, perform};
use acquit::transport::amqp::{AmqpConsumer, AmqpOptions, AmqpTransport, AmqpUri};
use acquit_actors::model::{Outgoing, RetryWay};
use acquit_actors::ports::{Handler, Transport as _};
use acquit_actors::{ConsumerSpec, Counts, Engine, Handle};

use crate::broker_kit::{Admin, Node, SharedBroker, Vhost, eventually};
use crate::place::{Runs, connected, counts, drained, publish_on, words};

/// Where the queues are, and how they are reached.
pub(crate) struct Site<'a> {
    pub(crate) admin: &'a Admin,
    pub(crate) vhost: String,
    /// How the engine goes in.
    pub(crate) options: AmqpOptions,
    /// How the test goes in, past what it spoils.
    direct: AmqpOptions,
}

/// A virtual host of the shared node.
pub(crate) async fn shared() -> Vhost {
    SharedBroker::vhost().await
}

/// The consumer of these tests: replies and dead letters, retries after 400 ms.
pub(crate) fn options(port: u16, vhost: &str, consumer: AmqpConsumer) -> AmqpOptions {
    let mut uri = AmqpUri::local(port);
    vhost.clone_into(&mut uri.vhost);
    let mut options = AmqpOptions::new(uri);
    options.linger = Duration::from_millis(100);
    options.consumers = vec![consumer];
    options
}

impl<'a> Site<'a> {
    /// On the shared node.
    pub(crate) async fn on(vhost: &'a Vhost) -> Self {
        Self::with(vhost, vhost.port(), vhost.name(), words()).await
    }

    /// On a node of one's own, in a new virtual host.
    pub(crate) async fn at(node: &'a Node, vhost: &str) -> Self {
        node.add_vhost(vhost).await;
        Self::with(node, node.port(), vhost, words()).await
    }

    pub(crate) async fn with(
        admin: &'a Admin,
        port: u16,
        vhost: &str,
        consumer: AmqpConsumer,
    ) -> Self {
        Self::of(admin, vhost, options(port, vhost, consumer)).await
    }

    pub(crate) async fn of(admin: &'a Admin, vhost: &str, options: AmqpOptions) -> Self {
        let site = Self {
            admin,
            vhost: vhost.to_owned(),
            direct: options.clone(),
            options,
        };
        site.declare().await;
        site
    }

    /// Sends the engine over another port, with this heartbeat.
    pub(crate) fn through(mut self, port: u16, heartbeat: Duration) -> Self {
        self.options.uris[0].port = port;
        self.options.heartbeat = heartbeat;
        self
    }

    /// Declares what is missing.
    pub(crate) async fn declare(&self) {
        let declared = perform(&self.direct, Task::Apply).await;
        declared.expect("a topology");
    }

    /// The consumer as the engine knows it: three attempts.
    pub(crate) fn spec(&self, handler: Handler) -> ConsumerSpec {
        let mine = &self.options.consumers[0];
        let (reply, dead) = (mine.reply_queue.clone(), mine.dead_letter_queue.clone());
        ConsumerSpec::new("words", "words", handler).with(|spec| {
            spec.handler_timeout = Duration::from_secs(600);
            spec.reply_queue = reply;
            spec.dead_letter_queue = dead;
            spec.retry.max_attempts = 3.try_into().expect("not 0");
            spec.retry.backoff.base = Duration::from_millis(400);
            spec.retry.backoff.max = Duration::from_millis(400);
            spec.retry.way = RetryWay::Ladder;
        })
    }

    pub(crate) fn start(&self, spec: ConsumerSpec) -> Handle {
        self.start_with(spec, Duration::from_secs(5))
    }

    pub(crate) fn start_with(&self, spec: ConsumerSpec, drain_timeout: Duration) -> Handle {
        // Shown by the runner where a test fails.
        let log = tracing_subscriber::fmt()
            .with_test_writer()
            .with_ansi(false);
        let filter = tracing_subscriber::EnvFilter::new("acquit=warn");
        let _ = log.with_env_filter(filter).try_init();
        let transport = AmqpTransport::open(self.options.clone()).expect("a thread");
        Engine::new(Arc::new(transport))
            .with_consumer(spec)
            .with_drain_timeout(drain_timeout)
            .start()
            .expect("an engine")
    }

    /// Publishes one body under ids `<prefix>0` … and returns when the broker has confirmed all.
    pub(crate) async fn publish(&self, prefix: &str, count: usize, body: &str) {
        self.to("words", prefix, count, body).await;
    }

    /// The same, to any queue.
    pub(crate) async fn to(&self, queue: &str, prefix: &str, count: usize, body: &str) {
        let message = |number| {
            Outgoing::new(queue.into(), body.to_owned()).with_id(format!("{prefix}{number}"))
        };
        self.publish_all((0..count).map(message).collect()).await;
    }

    pub(crate) async fn publish_all(&self, messages: Vec<Outgoing>) {
        let transport = AmqpTransport::open(self.direct.clone()).expect("a thread");
        let handle = Engine::new(Arc::new(transport.clone()))
            .start()
            .expect("an engine");
        connected(&handle).await;
        publish_on(&*transport.publisher(), messages).await;
        handle.drain_and_wait("published").await;
    }

    pub(crate) async fn holds(&self, queue: &str, messages: u64) {
        eventually(&format!("{queue} holds {messages}"), async || {
            (self.messages(queue).await? == messages).then_some(())
        })
        .await;
    }

    /// What a queue holds, ready or not.
    pub(crate) async fn messages(&self, queue: &str) -> Option<u64> {
        let info = self.admin.queue(&self.vhost, queue).await?;
        Some(info.ready? + info.unacked?)
    }

    pub(crate) async fn counts(&self, queue: &str, counts: [u64; 3]) {
        self.admin.await_counts(&self.vhost, queue, counts).await;
    }

    /// The questions at the end, for `count` messages of each of some prefixes that all complete.
    ///
    /// Every message has run; the runs past the first are redeliveries that were neither adopted nor known; each
    /// message has a reply, and another one of the same id only where a channel was lost; the counts are the broker's.
    /// Returns the final counts.
    pub(crate) async fn all_done(
        &self,
        handle: Handle,
        runs: &Runs,
        published: &[(&str, usize)],
    ) -> Counts {
        self.all_done_but(handle, runs, published, 0).await
    }

    /// The same, where so many publishes may have been repeated because their confirmation came too late.
    pub(crate) async fn all_done_but(
        &self,
        handle: Handle,
        runs: &Runs,
        published: &[(&str, usize)],
        late: u64,
    ) -> Counts {
        eventually("all is settled", async || {
            let counts = counts(&handle).await;
            (counts.in_hand == 0 && self.messages("words").await? == 0).then_some(())
        })
        .await;
        let counts = counts(&handle).await;
        let ids: Vec<String> = published
            .iter()
            .flat_map(|(prefix, count)| (0..*count).map(move |n| format!("{prefix}{n}")))
            .collect();
        let mut seen: BTreeMap<String, u64> = BTreeMap::new();
        for run in runs.all() {
            *seen.entry(run.id).or_default() += 1;
        }
        let lost: Vec<_> = ids.iter().filter(|id| !seen.contains_key(*id)).collect();
        assert!(lost.is_empty(), "never run: {lost:?}\n{counts:?}");
        let made_up: Vec<_> = seen.keys().filter(|id| !ids.contains(id)).collect();
        assert!(made_up.is_empty(), "never published: {made_up:?}");
        let again = seen.values().sum::<u64>() - ids.len() as u64;
        let explained = counts
            .redelivered
            .saturating_sub(counts.adopted + counts.known);
        assert!(again <= explained, "{again} runs too many\n{counts:?}");
        self.replies_are_one_each(&ids, again + counts.known + counts.adopted + late)
            .await;
        let report = drained(handle).await;
        assert!(report.clean, "{report}");
        self.counts("words", [0, 0, 0]).await;
        self.broker_is_content().await;
        counts
    }

    /// A reply whose confirmation was lost is published again under its id: who reads them can tell.
    async fn replies_are_one_each(&self, ids: &[String], explained: u64) {
        // They are read and not counted: a quorum queue's count lags behind its confirms.
        let readers = Runs::default();
        let transport = AmqpTransport::open(self.direct.clone()).expect("a thread");
        let spec = ConsumerSpec::new("words", "words.results", readers.handler());
        let handle = Engine::new(Arc::new(transport))
            .with_consumer(spec)
            .start()
            .expect("an engine");
        let of_ids = || -> BTreeSet<String> {
            let runs = readers.all().into_iter();
            runs.map(|run| run.id).collect()
        };
        eventually("a reply for each message", async || {
            (of_ids().len() >= ids.len()).then_some(())
        })
        .await;
        self.holds("words.results", 0).await;
        drained(handle).await;
        assert_eq!(of_ids().len(), ids.len(), "one id for each message's reply");
        let again = readers.all().len().saturating_sub(ids.len()) as u64;
        assert!(
            again <= explained,
            "{again} replies more, {explained} explained"
        );
    }

    /// No connection of this virtual host has named a tag that the broker does not know.
    pub(crate) async fn broker_is_content(&self) {
        let log = self
            .admin
            .eval("{ok, Log} = file:read_file(hd(rabbit:log_locations())), Log")
            .await;
        let lines: Vec<&str> = log.lines().collect();
        for pair in lines.windows(2) {
            let ours = pair[0].contains(&format!("vhost: '{}'", self.vhost));
            let bad = pair[1].contains("unknown delivery tag")
                && !pair[1].contains("unknown delivery tag 999999999999");
            assert!(!(ours && bad), "{}\n{}", pair[0], pair[1]);
        }
    }

    /// Waits until the consumer says what keeps it from going on.
    pub(crate) async fn trouble(&self, handle: &Handle, part: &str) {
        let mut seen = Vec::new();
        let looking = eventually("the trouble", async || {
            let snapshot = handle.snapshot().await.ok()?;
            let partition = snapshot.consumers[0].partitions[0].trouble.clone();
            let connections = snapshot.connections.iter();
            seen = connections
                .filter_map(|one| one.trouble.clone())
                .chain(partition)
                .collect();
            let is_it = |text: &String| text.contains(part);
            seen.iter().any(is_it).then_some(())
        });
        let found = tokio::time::timeout(Duration::from_secs(20), looking).await;
        assert!(found.is_ok(), "no trouble with {part}, but {seen:?}");
    }
}
