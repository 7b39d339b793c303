//! Who waits: one line a partition, first come first served, with removal from the middle.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::time::Duration;

use slab::Slab;

use crate::model::DeliveryId;

use super::PermitKey;

/// How many asks may wait in one book. Credit keeps the number far lower; this is the last bound.
pub const WAITING_MAX: usize = 1 << 20;

/// Where a waiter is kept.
pub(super) type Place = usize;

/// One ask that waits.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) ticket: DeliveryId,
    pub(super) key: PermitKey,
    pub(super) bytes: u64,
    pub(super) asked_at: Duration,
    before: Option<Place>,
    behind: Option<Place>,
}

/// One partition's line: the ends of a list that runs through [`Waiters`].
#[derive(Debug, Default)]
pub(super) struct Line {
    first: Option<Place>,
    last: Option<Place>,
    pub(super) count: usize,
    /// Wider than a body's size, so that a sum cannot run over.
    pub(super) bytes: u128,
}

impl Line {
    pub(super) fn first(&self) -> Option<Place> {
        self.first
    }
}

/// All waiters of a book, found by place or by ticket.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    places: Slab<Waiter>,
    by_ticket: HashMap<DeliveryId, Place, BuildHasherDefault<IdHasher>>,
}

impl Waiters {
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    pub(super) fn find(&self, ticket: DeliveryId) -> Option<Place> {
        self.by_ticket.get(&ticket).copied()
    }

    pub(super) fn get(&self, place: Place) -> &Waiter {
        &self.places[place]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Waiter> {
        self.places.iter().map(|(_, waiter)| waiter)
    }

    /// Appends a waiter to a line. Its ticket must not wait yet.
    pub(super) fn append(
        &mut self,
        line: &mut Line,
        ticket: DeliveryId,
        key: PermitKey,
        bytes: u64,
        asked_at: Duration,
    ) {
        let place = self.places.insert(Waiter {
            ticket,
            key,
            bytes,
            asked_at,
            before: line.last,
            behind: None,
        });
        match line.last {
            Some(last) => self.places[last].behind = Some(place),
            None => line.first = Some(place),
        }
        line.last = Some(place);
        line.count += 1;
        line.bytes += u128::from(bytes);
        let earlier = self.by_ticket.insert(ticket, place);
        debug_assert!(earlier.is_none(), "a ticket waits once");
    }

    /// Takes a waiter out of its line, from wherever it stands.
    pub(super) fn remove(&mut self, line: &mut Line, place: Place) -> Waiter {
        let waiter = self.places.remove(place);
        match waiter.before {
            Some(before) => self.places[before].behind = waiter.behind,
            None => line.first = waiter.behind,
        }
        match waiter.behind {
            Some(behind) => self.places[behind].before = waiter.before,
            None => line.last = waiter.before,
        }
        line.count -= 1;
        line.bytes -= u128::from(waiter.bytes);
        self.by_ticket.remove(&waiter.ticket);
        waiter
    }
}

/// Spreads our own running numbers; nobody outside chooses them, so no keyed hash is needed.
#[derive(Debug, Default)]
pub(super) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        let spread = (self.0 ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = spread ^ (spread >> 32);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use crate::limiter::ConsumerIndex;
    use crate::model::PartitionId;

    fn tickets(waiters: &Waiters, line: &Line) -> Vec<u64> {
        let mut found = Vec::new();
        let mut at = line.first();
        while let Some(place) = at {
            found.push(waiters.get(place).ticket.0);
            at = waiters.get(place).behind;
        }
        found
    }

    #[test]
    fn a_line_keeps_its_order_when_some_leave_it() {
        let key = PermitKey::new(ConsumerIndex(0), PartitionId(0));
        let (mut waiters, mut line) = (Waiters::default(), Line::default());
        for ticket in 1..=5 {
            waiters.append(&mut line, DeliveryId(ticket), key, ticket, Duration::ZERO);
        }
        for (ticket, left) in [(3, vec![1, 2, 4, 5]), (1, vec![2, 4, 5]), (5, vec![2, 4])] {
            let place = waiters.find(DeliveryId(ticket)).unwrap();
            assert_eq!(waiters.remove(&mut line, place).ticket.0, ticket);
            assert_eq!(tickets(&waiters, &line), left);
        }
        waiters.append(&mut line, DeliveryId(6), key, 6, Duration::ZERO);
        assert_eq!(tickets(&waiters, &line), [2, 4, 6]);
        assert_eq!((line.count, line.bytes, waiters.len()), (3, 12, 3));
        assert_eq!(waiters.find(DeliveryId(3)), None);
    }
}
