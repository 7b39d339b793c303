//! Cross-checks: values that are right by themselves and do not fit together, or do not fit this
//! machine or this broker. A check is skipped where a value it needs is itself wrong.

mod amqp;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use acquit_actors::model::{Capabilities, QueueName, RetryWay};

use super::error::{Problem, Severity, Trouble};
use super::lookup;
use super::plan::{Base, Plan, feed_name};
use super::raw::{Order, Prefetch, Raw, RawConsumer, RawHandler};
use super::raw_broker::BrokerUrl;
use super::reader::{Origins, Read};
use crate::transport::amqp::Secret;

/// All problems, in the order of the file, and where the keys stand.
pub(super) struct Checked {
    pub(super) problems: Vec<Problem>,
    pub(super) origins: Origins,
    pub(super) secrets: Secrets,
}

/// What the files with secrets hold; nothing where they were not read.
#[derive(Debug, Default)]
pub(super) struct Secrets {
    pub(super) broker: Option<Secret>,
    pub(super) management: Option<Secret>,
}

/// How much of this machine is looked at.
pub(super) enum Look<'b> {
    /// Nothing: the text alone.
    Nowhere,
    /// Files with secrets are read, if they can be; nothing is a problem.
    Secrets(&'b Base),
    /// All that is named must be there.
    Everywhere(&'b Base),
}

/// Checks the raw configuration against itself and this machine.
pub(super) fn raw(raw: &Raw, read: Read, look: &Look<'_>) -> Checked {
    let mut check = Check {
        raw,
        wrong: read.problems.iter().map(|p| p.key.clone()).collect(),
        problems: read.problems,
        origins: read.origins,
        secrets: Secrets::default(),
    };
    check.broker();
    check.limits();
    check.consumers();
    check.queues();
    check.cycles();
    check.feeds();
    match look {
        Look::Nowhere => {}
        Look::Secrets(base) => check.secrets(base, false),
        Look::Everywhere(base) => {
            check.machine(base);
            check.secrets(base, true);
        }
    }
    check.problems.sort_by_key(Problem::order);
    Checked {
        problems: check.problems,
        origins: check.origins,
        secrets: check.secrets,
    }
}

/// Checks the plan against what the transport can do.
pub(super) fn capabilities(
    plan: &Plan,
    origins: &Origins,
    capabilities: &Capabilities,
) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (number, consumer) in plan.consumers.iter().enumerate() {
        let key = |key: &str| format!("consumer[{number}].{key}");
        let mut add = |severity, key: String, reason: String| {
            problems.push(origins.problem(severity, &key, Trouble::Unfit { reason }));
        };
        if consumer.retry.way == RetryWay::Broker && !capabilities.delayed_requeue {
            let reason = "this broker cannot hold a message for a retry; use via = \"hold\"";
            add(Severity::Error, key("retry.via"), reason.to_owned());
        }
        let is_chosen = consumer.dead_letter_queue.is_some() || consumer.on_exhausted.is_some();
        if !is_chosen && !capabilities.dead_list {
            let reason = "this broker keeps no list of dead messages: what is rejected is gone; \
                          set a dead-letter queue to keep it";
            add(
                Severity::Warning,
                key("dead-letter-queue"),
                reason.to_owned(),
            );
        }
    }
    problems
}

struct Check<'a> {
    raw: &'a Raw,
    /// Keys that are wrong already: checks that need them are skipped.
    wrong: BTreeSet<String>,
    problems: Vec<Problem>,
    origins: Origins,
    secrets: Secrets,
}

impl Check<'_> {
    fn limits(&mut self) {
        let raw = self.raw;
        if raw.limiter.burst.is_some() && raw.limiter.rate.is_none() {
            self.warn(
                "limiter.burst",
                &["limiter.rate"],
                "has no effect without limiter.rate",
            );
        }
        let supervision = &raw.supervision;
        let (base, max) = (
            supervision.backoff_base.get(),
            supervision.backoff_max.get(),
        );
        self.backoff("supervision", base, max);
        if raw.consumer.is_empty() && !self.wrong.contains("consumer") {
            self.warn(
                "consumer",
                &[],
                "there is no [[consumer]]: nothing is consumed",
            );
        }
    }

    fn consumers(&mut self) {
        let raw = self.raw;
        for (number, consumer) in raw.consumer.iter().enumerate() {
            self.consumer(&format!("consumer[{number}]"), consumer);
        }
    }

    fn consumer(&mut self, path: &str, consumer: &RawConsumer) {
        let raw = self.raw;
        let key = |key: &str| format!("{path}.{key}");

        let (timeout, drain) = (consumer.handler_timeout.get(), raw.shutdown.drain_timeout);
        if timeout > drain {
            let reason = format!(
                "{} is longer than shutdown.drain-timeout ({}): on a drain, a handler that needs \
                 longer than that is stopped, and its message runs again",
                show(timeout),
                show(drain)
            );
            let keys = [key("handler-timeout"), "shutdown.drain-timeout".to_owned()];
            self.add(Severity::Note, &keys, reason);
        }

        let (permits, process) = (consumer.permits.get(), raw.limiter.permits.get());
        if permits > process {
            let reason = format!(
                "{permits} are more than limiter.permits ({process}) of the whole process: never \
                 more than {process} are in flight"
            );
            let keys = [key("permits"), "limiter.permits".to_owned()];
            self.add(Severity::Warning, &keys, reason);
        }

        let partitions = consumer.partitions.get();
        if let Prefetch::Fixed(prefetch) = consumer.prefetch {
            let ready = u64::from(prefetch) * u64::from(partitions);
            if ready < u64::from(permits) {
                let reason = format!(
                    "{} in each of {partitions} partitions are fewer than the {permits} permits: \
                     some are never used; raise it, or use \"auto\"",
                    prefetch
                );
                let keys = [key("prefetch"), key("permits"), key("partitions")];
                self.add(Severity::Warning, &keys, reason);
            }
        }
        if consumer.order == Order::Partition && permits > partitions {
            let reason = format!(
                "\"partition\" has one in flight in each of the {partitions} partitions: of the \
                 {permits} permits no more than that are used"
            );
            let keys = [key("order"), key("permits"), key("partitions")];
            self.add(Severity::Note, &keys, reason);
        }

        let (largest, budget) = (consumer.max_message_bytes, raw.limiter.in_flight_bytes);
        if largest > budget {
            let reason = format!(
                "{largest} are over limiter.in-flight-bytes ({budget}): a body over {budget} is \
                 rejected as too large all the same"
            );
            let keys = [
                key("max-message-bytes"),
                "limiter.in-flight-bytes".to_owned(),
            ];
            self.add(Severity::Warning, &keys, reason);
        }

        let (once, all) = (
            consumer.publish_timeout.get(),
            consumer.publish_give_up.get(),
        );
        if once > all {
            let reason = format!(
                "{} is shorter than publish-timeout ({}) of one try, which holds instead",
                show(all),
                show(once)
            );
            let keys = [key("publish-give-up"), key("publish-timeout")];
            self.add(Severity::Warning, &keys, reason);
        }

        let retry = &consumer.retry;
        self.backoff(&key("retry"), retry.backoff_base, retry.backoff_max);

        for (other, name) in [
            (&consumer.reply_queue, "reply-queue"),
            (&consumer.dead_letter_queue, "dead-letter-queue"),
        ] {
            if other.as_ref() == Some(&consumer.queue) {
                let reason = format!(
                    "is the queue that consumer \"{}\" reads: its messages would go round for \
                     ever; name another queue",
                    consumer.name
                );
                self.add(Severity::Error, &[key(name), key("queue")], reason);
            }
        }
    }

    fn backoff(&mut self, path: &str, base: Duration, max: Duration) {
        if base > max {
            let reason = format!(
                "{} is longer than {path}.backoff-max ({}); the first delay cannot be over the \
                 longest",
                show(base),
                show(max)
            );
            let keys = [
                format!("{path}.backoff-base"),
                format!("{path}.backoff-max"),
            ];
            self.add(Severity::Error, &keys, reason);
        }
    }

    /// Two consumers of one name or one queue.
    fn queues(&mut self) {
        let raw = self.raw;
        for (number, consumer) in raw.consumer.iter().enumerate() {
            let earlier = || raw.consumer[..number].iter().enumerate();
            let key = |key: &str| format!("consumer[{number}].{key}");
            if let Some((other, _)) = earlier().find(|(_, c)| c.name == consumer.name) {
                let reason = format!(
                    "\"{}\" is the name of consumer[{other}] too; names must be unique",
                    consumer.name
                );
                let keys = [key("name"), format!("consumer[{other}].name")];
                self.add(Severity::Error, &keys, reason);
            }
            if let Some((other, first)) = earlier().find(|(_, c)| c.queue == consumer.queue) {
                let keys = [key("queue"), format!("consumer[{other}].queue")];
                let (mine, theirs) = (consumer.partitions.get(), first.partitions.get());
                if mine == theirs {
                    let reason = format!(
                        "\"{}\" is read by consumer \"{}\" too: each message goes to one of them",
                        consumer.queue, first.name
                    );
                    self.add(Severity::Warning, &keys, reason);
                } else {
                    let reason = format!(
                        "\"{}\" has {mine} partitions here and {theirs} for consumer \"{}\"; a \
                         queue has one number of them",
                        consumer.queue, first.name
                    );
                    self.add(Severity::Error, &keys, reason);
                }
            }
        }
    }

    /// Replies and dead letters that come back to where they started, through other consumers.
    fn cycles(&mut self) {
        let raw = self.raw;
        let mut targets: BTreeMap<&QueueName, BTreeSet<&QueueName>> = BTreeMap::new();
        for consumer in &raw.consumer {
            let published = [&consumer.reply_queue, &consumer.dead_letter_queue];
            let others = published
                .into_iter()
                .flatten()
                .filter(|queue| **queue != consumer.queue);
            targets.entry(&consumer.queue).or_default().extend(others);
        }
        let mut told: BTreeSet<&QueueName> = BTreeSet::new();
        for (number, consumer) in raw.consumer.iter().enumerate() {
            if told.contains(&consumer.queue) {
                continue;
            }
            if let Some(round) = round_trip(&consumer.queue, &targets) {
                told.extend(round.iter().copied());
                let names: Vec<&str> = round.iter().map(|queue| queue.as_str()).collect();
                let reason = format!(
                    "replies or dead letters can go round for ever: {}",
                    names.join(" -> ")
                );
                let keys = [format!("consumer[{number}].queue")];
                self.add(Severity::Warning, &keys, reason);
            }
        }
    }

    fn feeds(&mut self) {
        let raw = self.raw;
        for (number, feed) in raw.feed.iter().enumerate() {
            let key = format!("feed[{number}].queue");
            if !raw.consumer.iter().any(|c| c.queue == feed.queue) {
                let reason = format!("nobody consumes the queue \"{}\"", feed.queue);
                self.add(Severity::Warning, std::slice::from_ref(&key), reason);
            }
            let is_same = |other: &super::raw::RawFeed| {
                feed_name(&other.file, &other.queue) == feed_name(&feed.file, &feed.queue)
            };
            if raw.feed[..number].iter().any(is_same) {
                let reason = "this file is fed into this queue already; remove one".to_owned();
                let keys = [format!("feed[{number}].file"), key];
                self.add(Severity::Error, &keys, reason);
            }
        }
    }

    fn machine(&mut self, base: &Base) {
        let raw = self.raw;
        let state_dir = base.join(&raw.worker.state_dir);
        self.found("worker.state-dir", lookup::writable_folder(&state_dir));
        let socket = base.socket(&raw.worker.state_dir);
        if socket.as_os_str().len() > SOCKET_PATH_MAX {
            let reason = format!(
                "the path of the control socket in it is {} bytes long, at most \
                 {SOCKET_PATH_MAX} are possible; name a shorter one",
                socket.as_os_str().len()
            );
            self.add(Severity::Error, &["worker.state-dir".to_owned()], reason);
        }
        if let BrokerUrl::Embedded(dir) = &raw.broker.url {
            self.found("broker.url", lookup::writable_folder(&base.join(dir)));
        }
        self.tls_files(base);
        for (number, feed) in raw.feed.iter().enumerate() {
            let file = base.join(&feed.file);
            self.found(
                &format!("feed[{number}].file"),
                lookup::readable_file(&file),
            );
        }
        for (number, consumer) in raw.consumer.iter().enumerate() {
            let RawHandler::Command(command) = &consumer.handler else {
                continue;
            };
            let key = |key: &str| format!("consumer[{number}].handler.{key}");
            if let Some(cwd) = command.cwd.as_ref().map(|cwd| base.join(cwd))
                && !cwd.is_dir()
            {
                self.found(&key("cwd"), Err(format!("{} is no folder", cwd.display())));
            }
            let Some(name) = command.command.0.first() else {
                continue;
            };
            let path = if command.env.iter().any(|name| name == "PATH") {
                std::env::var("PATH").unwrap_or_default()
            } else {
                lookup::SYSTEM_PATH.to_owned()
            };
            let program = base.program(name);
            let found = lookup::program(program.as_ref(), &path)
                .map(|_| ())
                .map_err(|reason| format!("\"{name}\" cannot be run: {reason}"));
            self.found(&key("command"), found);
        }
    }

    fn found(&mut self, key: &str, found: Result<(), String>) {
        if let Err(reason) = found {
            self.add(Severity::Error, &[key.to_owned()], reason);
        }
    }

    fn warn(&mut self, key: &str, needs: &[&str], reason: &str) {
        let mut keys = vec![key.to_owned()];
        keys.extend(needs.iter().map(|&key| key.to_owned()));
        self.add(Severity::Warning, &keys, reason.to_owned());
    }

    /// Adds a problem of the first key, unless one of the keys it depends on is wrong itself.
    fn add(&mut self, severity: Severity, keys: &[String], reason: String) {
        if keys.iter().any(|key| self.wrong.contains(key)) {
            return;
        }
        let problem = self
            .origins
            .problem(severity, &keys[0], Trouble::Unfit { reason });
        self.problems.push(problem);
    }
}

/// The longest path of a Unix socket.
const SOCKET_PATH_MAX: usize = 107;

/// Finds a shortest way from a queue through others back to itself.
fn round_trip<'a>(
    start: &'a QueueName,
    targets: &BTreeMap<&'a QueueName, BTreeSet<&'a QueueName>>,
) -> Option<Vec<&'a QueueName>> {
    let mut ways = std::collections::VecDeque::from([vec![start]]);
    let mut seen = BTreeSet::new();
    while let Some(way) = ways.pop_front() {
        for next in way
            .last()
            .and_then(|last| targets.get(last))
            .into_iter()
            .flatten()
        {
            let mut longer = way.clone();
            longer.push(next);
            if *next == start {
                return Some(longer);
            }
            if seen.insert(*next) {
                ways.push_back(longer);
            }
        }
    }
    None
}

fn show(duration: Duration) -> impl std::fmt::Display {
    humantime::format_duration(duration)
}
