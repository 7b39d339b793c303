//! Which queue of the broker a message goes to: pure.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use acquit_actors::model::{Outgoing, PartitionId, QueueName};
use xxhash_rust::xxh3::xxh3_64;

use super::options::AmqpOptions;

/// The places of a step's rungs within it. A retry's jitter is the choice among them.
pub(super) const RUNGS: [f64; 3] = [0.6, 0.75, 0.9];

/// The partitions and ladders of the configured queues.
#[derive(Debug, Default)]
pub(super) struct Partitions {
    queues: HashMap<QueueName, Queue>,
}

#[derive(Debug)]
struct Queue {
    partitions: u32,
    /// The rungs' delays, ascending.
    rungs: Vec<Duration>,
    turn: AtomicU32,
}

/// Gives the name of a partition's queue: the queue's own where there is one partition.
pub(super) fn partition_queue(queue: &QueueName, partition: PartitionId, of: u32) -> QueueName {
    if of <= 1 {
        queue.clone()
    } else {
        QueueName::from(format!("{queue}.{partition}"))
    }
}

/// Gives the name of a rung.
pub(super) fn rung_queue(queue: &QueueName, delay: Duration) -> QueueName {
    QueueName::from(format!("{queue}.retry.{}", delay.as_millis()))
}

/// Gives the rungs of a ladder's steps, ascending, each once.
pub(super) fn rungs(steps: &[Duration]) -> Vec<Duration> {
    let all = steps.iter().flat_map(|step| {
        RUNGS.map(|place| {
            let millis = (step.as_secs_f64() * 1000.0 * place).round().max(1.0);
            Duration::from_millis(millis as u64)
        })
    });
    let mut all: Vec<Duration> = all.collect();
    all.sort_unstable();
    all.dedup();
    all
}

impl Partitions {
    pub(super) fn of(options: &AmqpOptions) -> Self {
        let queues = options.consumers.iter().map(|consumer| {
            let queue = Queue {
                partitions: consumer.partitions.max(1),
                rungs: rungs(&consumer.ladder),
                turn: AtomicU32::new(0),
            };
            (consumer.queue.clone(), queue)
        });
        Self {
            queues: queues.collect(),
        }
    }

    /// Chooses the queue of the broker: by the message's partition, its key, or in turn; and for a
    /// delay the rung of the ladder that is nearest to it.
    pub(super) fn route(&self, message: &Outgoing) -> QueueName {
        let Some(queue) = self.queues.get(&message.queue) else {
            return message.queue.clone();
        };
        let count = queue.partitions;
        let partition = match (message.partition, &message.key) {
            (Some(partition), _) => partition,
            (None, Some(key)) => {
                let place = xxh3_64(key.as_bytes()) % u64::from(count);
                PartitionId(u32::try_from(place).unwrap_or(0))
            }
            (None, None) => PartitionId(queue.turn.fetch_add(1, Ordering::Relaxed) % count),
        };
        let name = partition_queue(&message.queue, partition, count);
        match message.delay.and_then(|delay| queue.nearest(delay)) {
            Some(rung) => rung_queue(&name, rung),
            None => name,
        }
    }
}

impl Queue {
    fn nearest(&self, delay: Duration) -> Option<Duration> {
        let rungs = self.rungs.iter().copied();
        rungs.min_by_key(|rung| rung.abs_diff(delay))
    }
}

#[cfg(test)]
mod tests {
    use super::super::options::AmqpConsumer;
    use super::super::uri::AmqpUri;
    use super::*;

    fn partitions() -> Partitions {
        let mut options = AmqpOptions::new(AmqpUri::local(5672));
        let mut words = AmqpConsumer::new("words", "words");
        words.partitions = 4;
        words.ladder = vec![Duration::from_secs(2), Duration::from_secs(4)];
        options.consumers = vec![words, AmqpConsumer::new("plain", "plain")];
        Partitions::of(&options)
    }

    #[test]
    fn a_key_chooses_always_the_same_partition_and_without_one_they_take_turns() {
        let partitions = partitions();
        let keyed = Outgoing::new("words".into(), "").with_key("a");
        let first = partitions.route(&keyed);
        assert!(first.as_str().starts_with("words."));
        assert_eq!(partitions.route(&keyed), first);
        let turns: Vec<_> = (0..5)
            .map(|_| partitions.route(&Outgoing::new("words".into(), "")))
            .collect();
        let turns: Vec<&str> = turns.iter().map(QueueName::as_str).collect();
        assert_eq!(
            turns,
            ["words.0", "words.1", "words.2", "words.3", "words.0"]
        );
    }

    #[test]
    fn a_queue_with_one_partition_or_unknown_keeps_its_name() {
        let partitions = partitions();
        for name in ["plain", "elsewhere"] {
            let mut message = Outgoing::new(name.into(), "").with_key("k");
            message.delay = Some(Duration::from_secs(1));
            assert_eq!(partitions.route(&message).as_str(), name);
        }
    }

    #[test]
    fn a_delay_takes_the_nearest_rung_of_its_own_partition() {
        let partitions = partitions();
        let rung = |millis| {
            let mut copy = Outgoing::new("words".into(), "").with_key("k");
            copy.partition = Some(PartitionId(2));
            copy.delay = Some(Duration::from_millis(millis));
            partitions.route(&copy).as_str().to_owned()
        };
        assert_eq!(rung(1000), "words.2.retry.1200");
        assert_eq!(rung(1550), "words.2.retry.1500");
        assert_eq!(rung(2000), "words.2.retry.1800");
        assert_eq!(rung(3900), "words.2.retry.3600");
        assert_eq!(rung(60_000), "words.2.retry.3600");
    }
}
