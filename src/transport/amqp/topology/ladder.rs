//! The retry ladder: queues in which a copy waits until its time to live is over, and from which
//! the broker moves it back to where it came from. Pure.
//!
//! Each partition has rungs of its own, `<queue>.<partition>.retry.<ms>`: what a rung gives back
//! goes by one fixed routing key, and it must be the partition's, or a retry would break the order
//! of another. A queue without partitions has `<queue>.retry.<ms>`.
//!
//! Other steps make other rungs. Rungs of former steps stay, and give back what is in them.
//!
//! A time to live per queue, not per message: in one queue, messages with different times wait for
//! the one before them.

use std::time::Duration;

use acquit_actors::model::{PartitionId, QueueName};

use super::super::options::AmqpConsumer;
use super::plan::partition_queue;

/// Where the rungs of a step stand, as parts of the step: what a jitter of a half to the whole of
/// it comes down to with three queues.
pub const JITTER_FACTORS: [f64; 3] = [0.6, 0.75, 0.9];

/// The rungs of one consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ladder {
    queue: QueueName,
    partitions: u32,
    /// In milliseconds, ascending, no two the same.
    delays: Vec<u64>,
}

impl Ladder {
    /// The ladder of a consumer; `None` where it has no steps.
    pub fn of(consumer: &AmqpConsumer) -> Option<Self> {
        let mut delays: Vec<u64> = consumer
            .ladder
            .iter()
            .filter(|step| !step.is_zero())
            .flat_map(|step| JITTER_FACTORS.map(|factor| milliseconds(step.mul_f64(factor))))
            .collect();
        delays.sort_unstable();
        delays.dedup();
        (!delays.is_empty()).then(|| Self {
            queue: consumer.queue.clone(),
            partitions: consumer.partitions,
            delays,
        })
    }

    /// Gives the rungs' delays, ascending.
    pub fn delays(&self) -> impl Iterator<Item = Duration> + '_ {
        self.delays.iter().copied().map(Duration::from_millis)
    }

    /// Gives the queue of the rung whose delay is nearest to `delay`; of two, the shorter one.
    ///
    /// The jitter is in the delay: a backoff draws it between a half and the whole of a step, and
    /// about a third of what it draws is nearest to each rung of that step.
    pub fn rung(&self, partition: PartitionId, delay: Duration) -> QueueName {
        let asked = milliseconds(delay);
        let nearest = self.delays.iter().min_by_key(|rung| rung.abs_diff(asked));
        self.name(partition, nearest.copied().unwrap_or(asked))
    }

    /// Gives every rung of a partition with its delay.
    pub fn rungs(&self, partition: PartitionId) -> impl Iterator<Item = (u64, QueueName)> + '_ {
        let name = move |delay: &u64| (*delay, self.name(partition, *delay));
        self.delays.iter().map(name)
    }

    fn name(&self, partition: PartitionId, delay: u64) -> QueueName {
        let home = partition_queue(&self.queue, self.partitions, partition);
        QueueName::from(format!("{home}.retry.{delay}"))
    }
}

/// Whole milliseconds, at least one: a time to live of 0 would return a message at once.
fn milliseconds(delay: Duration) -> u64 {
    let rounded = delay.as_secs_f64() * 1000.0;
    (rounded.round() as u64).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use acquit_actors::model::Backoff;

    fn ladder(partitions: u32, steps: &[u64]) -> Ladder {
        let mut consumer = AmqpConsumer::new("c", "words");
        consumer.partitions = partitions;
        consumer.ladder = steps.iter().copied().map(Duration::from_millis).collect();
        Ladder::of(&consumer).expect("it has steps")
    }

    #[test]
    fn each_step_has_three_rungs_and_none_comes_twice() {
        let delays = |steps: &[u64]| ladder(1, steps).delays;
        assert_eq!(delays(&[2000]), [1200, 1500, 1800]);
        assert_eq!(
            delays(&[4000, 2000, 2000]),
            [1200, 1500, 1800, 2400, 3000, 3600]
        );
        assert_eq!(delays(&[1]), [1]);
        assert_eq!(Ladder::of(&AmqpConsumer::new("c", "q")), None);
    }

    #[test]
    fn rungs_belong_to_their_partition() {
        let one = ladder(1, &[2000]);
        let rung = |ladder: &Ladder, partition, delay| {
            let delay = Duration::from_millis(delay);
            ladder.rung(PartitionId(partition), delay).to_string()
        };
        assert_eq!(rung(&one, 0, 1500), "words.retry.1500");
        let four = ladder(4, &[2000, 4000]);
        assert_eq!(rung(&four, 3, 1500), "words.3.retry.1500");
        for (delay, expected) in [
            (0, 1200),
            (1350, 1200),
            (1351, 1500),
            (1900, 1800),
            (2100, 1800),
            (2101, 2400),
            (99_999, 3600),
        ] {
            assert_eq!(rung(&four, 0, delay), format!("words.0.retry.{expected}"));
        }
    }

    #[test]
    fn a_jittered_backoff_uses_each_rung_of_its_step() {
        let backoff = Backoff {
            base: Duration::from_secs(2),
            max: Duration::from_secs(8),
        };
        let ladder = ladder(1, &[2000, 4000, 8000]);
        for failures in 1..=3 {
            let step = backoff.delay(failures, 1.0).as_millis() as u64;
            let mut counts = [0_usize; 3];
            for draw in 0..1000 {
                let delay = backoff.delay(failures, f64::from(draw) / 1000.0);
                let name = ladder.rung(PartitionId(0), delay).to_string();
                let rung = JITTER_FACTORS.iter().position(|factor| {
                    let delay = milliseconds(Duration::from_millis(step).mul_f64(*factor));
                    name == format!("words.retry.{delay}")
                });
                // The lowest draws may be nearer to the top rung of the step below.
                counts[rung.unwrap_or(0)] += 1;
            }
            assert!(counts.iter().all(|count| *count > 250), "{counts:?}");
        }
    }
}
