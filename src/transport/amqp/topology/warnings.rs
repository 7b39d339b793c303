//! What the broker's facts mean for a configuration, each in one line. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use acquit_actors::model::{ConsumerName, PartitionId, QueueName};
use humantime::format_duration;

use super::super::error::clean;
use super::super::facts::{BrokerFacts, BrokerVersion, Known, QueueFacts};
use super::super::options::{AmqpConsumer, AmqpOptions};
use super::plan::partition_queue;

/// What a broker does where nobody set a consumer timeout.
const CONSUMER_TIMEOUT_USUAL: Duration = Duration::from_secs(30 * 60);

/// The limits of ours that the broker's are held against; not known to the transport otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerLimits {
    /// Whose.
    pub consumer: ConsumerName,
    /// How many attempts a message gets.
    pub max_attempts: u32,
    /// Past this delivery count a message is concluded without running.
    pub crash_loop_limit: u32,
    /// How long a handler may run; `None`: for ever.
    pub handler_timeout: Option<Duration>,
}

/// Gives a line for each thing that will surprise somebody, in the order of the consumers.
pub fn warnings(
    options: &AmqpOptions,
    limits: &[ConsumerLimits],
    facts: &BrokerFacts,
) -> Vec<String> {
    let mut lines = Vec::new();
    for consumer in &options.consumers {
        let ours = limits
            .iter()
            .find(|limits| limits.consumer == consumer.name);
        let Some(ours) = ours else { continue };
        // The partitions of a queue mostly agree: what holds for several is said of the first.
        let mut said = BTreeMap::new();
        for partition in (0..consumer.partitions.max(1)).map(PartitionId) {
            let queue = partition_queue(&consumer.queue, consumer.partitions, partition);
            let unknown = QueueFacts::default();
            let known = facts.queues.get(&queue).unwrap_or(&unknown);
            let subject = Subject {
                consumer,
                queue: &queue,
                ours,
                facts: known,
                version: facts.version,
            };
            for (about, line) in subject.lines() {
                said.entry(about).or_insert(line);
            }
        }
        lines.extend(said.into_values());
    }
    lines
}

struct Subject<'a> {
    consumer: &'a AmqpConsumer,
    queue: &'a QueueName,
    ours: &'a ConsumerLimits,
    facts: &'a QueueFacts,
    version: Known<BrokerVersion>,
}

/// What a line is about; their order is that of the lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum About {
    Stream,
    DeliveryLimit,
    Drains,
    ConsumerTimeout,
    SingleActive,
}

impl Subject<'_> {
    fn lines(&self) -> Vec<(About, String)> {
        let lines = [
            (About::Stream, self.stream()),
            (About::DeliveryLimit, self.delivery_limit()),
            (About::Drains, self.drains()),
            (About::ConsumerTimeout, self.consumer_timeout()),
            (About::SingleActive, self.single_active()),
        ];
        let said = lines.into_iter();
        said.filter_map(|(about, line)| Some((about, line?)))
            .collect()
    }

    fn head(&self) -> String {
        format!(
            "consumer {}: queue \"{}\"",
            self.consumer.name,
            clean(self.queue.as_str())
        )
    }

    fn limit(&self) -> Option<u32> {
        match self.facts.delivery_limit(self.version) {
            Known::Is(limit) => limit,
            Known::Unknown => None,
        }
    }

    fn stream(&self) -> Option<String> {
        let is_stream = self.facts.kind.as_deref() == Some("stream");
        is_stream.then(|| format!("{} is a stream: streams are not consumed", self.head()))
    }

    /// The broker gives up before we do: what it drops then has no record of ours.
    fn delivery_limit(&self) -> Option<String> {
        let limit = self.limit()?;
        let (key, ours) = [
            // With a ladder each attempt is a new message, whose count starts again.
            (
                "retry.max-attempts",
                self.consumer
                    .ladder
                    .is_empty()
                    .then_some(self.ours.max_attempts),
            ),
            ("crash-loop-limit", Some(self.ours.crash_loop_limit)),
        ]
        .into_iter()
        .filter_map(|(key, ours)| Some((key, ours?)))
        .max_by_key(|(_, ours)| *ours)?;
        (limit <= ours).then(|| {
            format!(
                "{} has a delivery limit of {limit}, and ours is {ours} ({key}): the broker gives a message up before we do; raise its limit or lower ours",
                self.head()
            )
        })
    }

    /// Before 4.3 a quorum queue counts what we give back unstarted, too.
    fn drains(&self) -> Option<String> {
        let limit = self.limit()?;
        let until = match self.version {
            Known::Is(version) if !version.counts_every_return() => return None,
            Known::Is(version) => format!("RabbitMQ {version} counts every return"),
            Known::Unknown => "before RabbitMQ 4.3 every return counts".to_owned(),
        };
        let drains = limit.saturating_add(1);
        let times = if drains == 1 {
            "drain gives"
        } else {
            "drains give"
        };
        Some(format!(
            "{} has a delivery limit of {limit}, and {until}: {drains} {times} up a message that never ran; raise the limit, or keep the prefetch low",
            self.head()
        ))
    }

    fn consumer_timeout(&self) -> Option<String> {
        let timeout = self.ours.handler_timeout;
        match (self.facts.consumer_timeout(), timeout) {
            (Known::Is(limit), None) => Some(format!(
                "{} has a consumer timeout of {}, and handlers may run for ever; set `handler-timeout` below it",
                self.head(),
                format_duration(limit)
            )),
            (Known::Is(limit), Some(timeout)) => is_near(timeout, limit).then(|| {
                format!(
                    "{} has a consumer timeout of {}, and `handler-timeout` is {}, more than 80 % of it: the broker may close the channel under a running handler",
                    self.head(),
                    format_duration(limit),
                    format_duration(timeout)
                )
            }),
            (Known::Unknown, timeout) => {
                let is_long = timeout.is_none_or(|t| is_near(t, CONSUMER_TIMEOUT_USUAL));
                is_long.then(|| {
                    let ours = timeout.map_or_else(
                        || "handlers may run for ever".to_owned(),
                        |timeout| format!("`handler-timeout` is {}", format_duration(timeout)),
                    );
                    format!(
                        "{}: its consumer timeout is unknown, a broker's own is 30m where nobody changed it, and {ours}: beyond it the broker closes the channel",
                        self.head()
                    )
                })
            }
        }
    }

    fn single_active(&self) -> Option<String> {
        let is_known = self.facts.kind.is_some();
        (self.consumer.single_active && is_known && !self.facts.single_active()).then(|| {
            format!(
                "{} has no single active consumer: the order of a partition holds within one process only",
                self.head()
            )
        })
    }
}

/// Whether `ours` is more than 80 % of `limit`.
fn is_near(ours: Duration, limit: Duration) -> bool {
    ours.saturating_mul(5) > limit.saturating_mul(4)
}

#[cfg(test)]
mod tests {
    use super::super::super::uri::AmqpUri;
    use super::super::plan::Argument;
    use super::*;

    struct Case {
        options: AmqpOptions,
        limits: ConsumerLimits,
        facts: BrokerFacts,
    }

    impl Case {
        fn new(version: &str, kind: &str) -> Self {
            let mut options = AmqpOptions::new(AmqpUri::local(1));
            options.consumers.push(AmqpConsumer::new("c", "q"));
            options.consumers[0].ladder = vec![Duration::from_secs(2)];
            let facts = QueueFacts {
                kind: Some(kind.to_owned()),
                policy: Some(BTreeMap::new()),
                ..QueueFacts::default()
            };
            let version = version.parse().map_or(Known::Unknown, Known::Is);
            let queues = [("q".into(), facts)].into();
            Self {
                options,
                limits: ConsumerLimits {
                    consumer: "c".into(),
                    max_attempts: 5,
                    crash_loop_limit: 20,
                    handler_timeout: Some(Duration::from_secs(30)),
                },
                facts: BrokerFacts { version, queues },
            }
        }

        fn with(mut self, argument: &str, value: i64) -> Self {
            let facts = self.facts.queues.values_mut().next().expect("one");
            facts
                .arguments
                .insert(argument.to_owned(), Argument::Number(value));
            self
        }

        #[track_caller]
        fn check(&self, expected: &[&str]) {
            let limits = std::slice::from_ref(&self.limits);
            let lines = warnings(&self.options, limits, &self.facts);
            assert_eq!(lines, expected);
            assert!(lines.iter().all(|line| !line.contains('\n')));
        }
    }

    #[test]
    fn nothing_is_said_where_nothing_is_wrong_or_known() {
        Case::new("3.10.8", "quorum").check(&[]);
        Case::new("3.10.8", "classic").check(&[]);
        let mut case = Case::new("", "quorum");
        case.check(&[]);
        case.facts = BrokerFacts::default();
        case.check(&[]);
    }

    #[test]
    fn a_delivery_limit_below_ours_and_what_drains_cost() {
        Case::new("3.10.8", "quorum").with("x-delivery-limit", 20).check(&[
            "consumer c: queue \"q\" has a delivery limit of 20, and ours is 20 (crash-loop-limit): the broker gives a message up before we do; raise its limit or lower ours",
            "consumer c: queue \"q\" has a delivery limit of 20, and RabbitMQ 3.10.8 counts every return: 21 drains give up a message that never ran; raise the limit, or keep the prefetch low",
        ]);
        Case::new("4.3.0", "quorum")
            .with("x-delivery-limit", 21)
            .check(&[]);
        // Its default, against ours.
        Case::new("4.3.0", "quorum").check(&[
            "consumer c: queue \"q\" has a delivery limit of 20, and ours is 20 (crash-loop-limit): the broker gives a message up before we do; raise its limit or lower ours",
        ]);
        Case::new("", "quorum").with("x-delivery-limit", 99).check(&[
            "consumer c: queue \"q\" has a delivery limit of 99, and before RabbitMQ 4.3 every return counts: 100 drains give up a message that never ran; raise the limit, or keep the prefetch low",
        ]);
        let mut hold = Case::new("4.3.0", "quorum").with("x-delivery-limit", 30);
        hold.options.consumers[0].ladder.clear();
        hold.limits.max_attempts = 30;
        hold.check(&[
            "consumer c: queue \"q\" has a delivery limit of 30, and ours is 30 (retry.max-attempts): the broker gives a message up before we do; raise its limit or lower ours",
        ]);
    }

    #[test]
    fn a_handler_timeout_near_the_consumer_timeout() {
        let case = |timeout: i64| Case::new("3.12.0", "quorum").with("x-consumer-timeout", timeout);
        case(37_500).check(&[]);
        case(37_499).check(&[
            "consumer c: queue \"q\" has a consumer timeout of 37s 499ms, and `handler-timeout` is 30s, more than 80 % of it: the broker may close the channel under a running handler",
        ]);
        let mut unknown = Case::new("3.10.8", "classic");
        unknown.limits.handler_timeout = Some(Duration::from_secs(24 * 60));
        unknown.check(&[]);
        unknown.limits.handler_timeout = Some(Duration::from_secs(24 * 60 + 1));
        unknown.check(&[
            "consumer c: queue \"q\": its consumer timeout is unknown, a broker's own is 30m where nobody changed it, and `handler-timeout` is 24m 1s: beyond it the broker closes the channel",
        ]);
    }

    #[test]
    fn what_partitions_share_is_said_once() {
        let mut case = Case::new("3.10.8", "quorum");
        let facts = case.facts.queues.remove(&"q".into()).expect("there");
        case.options.consumers[0].partitions = 2;
        case.options.consumers[0].single_active = true;
        case.facts.queues = [("q.0".into(), facts.clone()), ("q.1".into(), facts)].into();
        case.check(&[
            "consumer c: queue \"q.0\" has no single active consumer: the order of a partition holds within one process only",
        ]);
    }
}
