//! One consumer's share of the limiter: its counts, its partitions, and whose turn it is.
//!
//! Partitions that wait stand in one of two rings, by whether they have a permit in flight. What
//! is kept back for others only ever holds the second kind back, so the next partition is found
//! without looking at the rest.

use std::collections::VecDeque;

use super::line::Line;
use super::rate::Bucket;
use super::{ConsumerLimits, ConsumerShape};

/// Whether a partition has a permit in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// It has none: the next one is guaranteed to it.
    Idle,
    /// It has one or more.
    Busy,
}

/// One partition's counts and line.
#[derive(Debug, Default)]
pub(super) struct Partition {
    pub(super) line: Line,
    pub(super) taken: u32,
    /// Its turn while it stands in a ring, else 0. Entries of another turn are stale.
    turn: u64,
}

impl Partition {
    fn standing(&self) -> Standing {
        match self.taken {
            0 => Standing::Idle,
            _ => Standing::Busy,
        }
    }
}

/// A place in a ring. It is not removed when its partition leaves; it goes stale.
#[derive(Debug, Clone, Copy)]
struct Entry {
    turn: u64,
    partition: u32,
}

/// One consumer's share.
#[derive(Debug)]
pub(super) struct Share {
    pub(super) limits: ConsumerLimits,
    pub(super) bucket: Option<Bucket>,
    pub(super) taken: u32,
    pub(super) in_flight_bytes: u64,
    /// How many partitions have no permit in flight.
    pub(super) idle: u32,
    /// How many of the process's permits are kept back for it.
    pub(super) kept_back: u32,
    /// Whether it stands in the ring of consumers.
    pub(super) listed: bool,
    pub(super) partitions: Vec<Partition>,
    idle_ring: VecDeque<Entry>,
    busy_ring: VecDeque<Entry>,
    turns: u64,
}

impl Share {
    pub(super) fn new(shape: ConsumerShape) -> Self {
        let count = shape.partitions.get();
        Self {
            limits: shape.limits,
            bucket: shape
                .limits
                .rate
                .map(|rate| Bucket::new(rate, std::time::Duration::ZERO)),
            taken: 0,
            in_flight_bytes: 0,
            idle: count,
            kept_back: 0,
            listed: false,
            partitions: (0..count).map(|_| Partition::default()).collect(),
            idle_ring: VecDeque::new(),
            busy_ring: VecDeque::new(),
            turns: 0,
        }
    }

    /// Counts a permit out.
    pub(super) fn take(&mut self, partition: u32) {
        self.taken += 1;
        let partition = &mut self.partitions[partition as usize];
        if partition.taken == 0 {
            self.idle -= 1;
        }
        partition.taken += 1;
    }

    /// Counts a permit in.
    pub(super) fn put(&mut self, partition: u32) {
        debug_assert!(self.partitions[partition as usize].taken > 0, "put twice");
        self.taken -= 1;
        let at = &mut self.partitions[partition as usize];
        at.taken -= 1;
        if at.taken == 0 {
            let turn = at.turn;
            self.idle += 1;
            if turn != 0 {
                self.push(Entry { turn, partition });
            }
        }
    }

    /// Puts a partition at the end of its ring.
    pub(super) fn enqueue(&mut self, partition: u32) {
        self.turns += 1;
        let turn = self.turns;
        self.partitions[partition as usize].turn = turn;
        self.push(Entry { turn, partition });
    }

    /// Takes a partition out of its ring.
    pub(super) fn dequeue(&mut self, partition: u32) {
        self.partitions[partition as usize].turn = 0;
    }

    /// The waiting partition of this standing whose turn is first: its turn and number.
    pub(super) fn head(&mut self, standing: Standing) -> Option<(u64, u32)> {
        let ring = match standing {
            Standing::Idle => &mut self.idle_ring,
            Standing::Busy => &mut self.busy_ring,
        };
        while let Some(entry) = ring.front() {
            if is_live(&self.partitions, *entry, standing) {
                return Some((entry.turn, entry.partition));
            }
            ring.pop_front();
        }
        None
    }

    /// All waiting partitions of this standing in the order of their turns.
    pub(super) fn waiting(&self, standing: Standing) -> impl Iterator<Item = (u64, u32)> {
        let ring = match standing {
            Standing::Idle => &self.idle_ring,
            Standing::Busy => &self.busy_ring,
        };
        ring.iter()
            .filter(move |entry| is_live(&self.partitions, **entry, standing))
            .map(|entry| (entry.turn, entry.partition))
    }

    /// Puts an entry at its turn (nearly always at an end), and sweeps stale ones when they are the
    /// most.
    fn push(&mut self, entry: Entry) {
        let standing = self.partitions[entry.partition as usize].standing();
        let ring = match standing {
            Standing::Idle => &mut self.idle_ring,
            Standing::Busy => &mut self.busy_ring,
        };
        if ring.len() > 2 * self.partitions.len() + 8 {
            let partitions = &self.partitions;
            ring.retain(|entry| is_live(partitions, *entry, standing));
        }
        if ring.back().is_none_or(|last| last.turn < entry.turn) {
            ring.push_back(entry);
        } else {
            let at = ring.partition_point(|other| other.turn < entry.turn);
            ring.insert(at, entry);
        }
    }
}

fn is_live(partitions: &[Partition], entry: Entry, standing: Standing) -> bool {
    let partition = &partitions[entry.partition as usize];
    partition.turn == entry.turn && partition.standing() == standing
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use std::num::NonZeroU32;

    fn share(partitions: u32) -> Share {
        Share::new(ConsumerShape {
            partitions: NonZeroU32::new(partitions).unwrap(),
            limits: ConsumerLimits {
                permits: 8,
                rate: None,
            },
        })
    }

    #[test]
    fn a_partition_stands_in_the_ring_of_its_standing() {
        let mut share = share(3);
        share.take(1);
        (0..3).for_each(|partition| share.enqueue(partition));
        assert_eq!(share.head(Standing::Busy), Some((2, 1)));
        assert_eq!(share.head(Standing::Idle), Some((1, 0)));
        share.put(1);
        assert_eq!(share.head(Standing::Busy), None);
        share.dequeue(0);
        share.dequeue(2);
        assert_eq!(share.head(Standing::Idle), Some((2, 1)), "its turn is kept");
        share.enqueue(2);
        share.take(1);
        share.put(1);
        assert_eq!(
            share.head(Standing::Idle),
            Some((2, 1)),
            "before later turns"
        );
        assert_eq!((share.idle, share.taken), (3, 0));
    }

    #[test]
    fn stale_entries_do_not_pile_up() {
        let mut share = share(2);
        share.enqueue(1);
        for _ in 0..10_000 {
            share.enqueue(0);
            share.dequeue(0);
        }
        assert!(
            share.idle_ring.len() <= 2 * 2 + 9,
            "{}",
            share.idle_ring.len()
        );
        assert_eq!(share.head(Standing::Idle), Some((1, 1)));
    }
}
