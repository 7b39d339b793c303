//! Which queue of the broker a message goes to: pure.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};

use acquit_actors::model::{Outgoing, PartitionId, QueueName};
use xxhash_rust::xxh3::xxh3_64;

use super::options::AmqpOptions;
use super::topology::{Ladder, partition_queue};

/// The partitions and ladders of the configured queues.
#[derive(Debug, Default)]
pub(super) struct Partitions {
    queues: HashMap<QueueName, Queue>,
}

#[derive(Debug)]
struct Queue {
    partitions: u32,
    ladder: Option<Ladder>,
    turn: AtomicU32,
}

impl Partitions {
    pub(super) fn of(options: &AmqpOptions) -> Self {
        let queues = options.consumers.iter().map(|consumer| {
            let queue = Queue {
                partitions: consumer.partitions.max(1),
                ladder: Ladder::of(consumer),
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
        match (message.delay, &queue.ladder) {
            (Some(delay), Some(ladder)) => ladder.rung(partition, delay),
            _ => partition_queue(&message.queue, count, partition),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
