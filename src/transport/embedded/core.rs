//! One partition's queue logic, pure: which message is next, who holds it, until when.
//!
//! It has no clock, no lock, no store and no log. Time is a parameter: the `Duration` since some
//! start, never going backwards. Bodies are an opaque payload `T` that may be absent: then the
//! shell is told what to fetch ([`Partition::want`]).
//!
//! Where a message can be:
//!
//! | place | what it means | leaves to |
//! |---|---|---|
//! | beyond | never handed out, known to the store only | fresh, by `refill` |
//! | fresh | never handed out, in the window | leased |
//! | leased | handed out, unsettled | gone (ack, dead), delayed (requeue), returned (release, lease over, source closed) |
//! | delayed | waiting for its due time | returned |
//! | returned | handed out before, ready again, at its place by sequence | leased |
//!
//! The next message is the one with the lowest sequence of fresh and returned.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::time::Duration;

/// What is counted of one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Tally {
    /// Failed attempts.
    pub(crate) failures: u32,
    /// Hand-outs.
    pub(crate) deliveries: u32,
    /// Hand-outs that we gave back without a failure: a Release, or a source that was closed.
    pub(crate) returns: u32,
}

/// One message as it is handed out.
#[derive(Debug, PartialEq)]
pub(crate) struct HandedOut<T> {
    pub(crate) seq: u64,
    /// Names this hand-out; a later one of the same message has another.
    pub(crate) token: u64,
    pub(crate) tally: Tally,
    pub(crate) payload: T,
}

/// How many messages stand where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Counts {
    pub(crate) ready: u64,
    pub(crate) delayed: u64,
    pub(crate) leased: u64,
}

/// What the shell has to read before more can be handed out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// Fresh messages from this sequence on.
    Refill {
        /// The first sequence not in the window.
        from: u64,
        /// All below were announced when this was asked: a read that begins after it sees them.
        announced: u64,
    },
    /// The payload of a returned message.
    Payload {
        /// Which.
        seq: u64,
    },
}

/// The bounds of the window of fresh messages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    /// How many messages at most.
    pub(crate) count: usize,
    /// How many bytes of payload at most (one message may exceed it).
    pub(crate) bytes: usize,
    /// Whether payloads of returned and delayed messages are kept (there is nowhere to read them from).
    pub(crate) keep_payloads: bool,
}

impl Window {
    /// Everything stays here: the store is this core.
    pub(crate) const UNBOUNDED: Self = Self {
        count: usize::MAX,
        bytes: usize::MAX,
        keep_payloads: true,
    };
}

#[derive(Debug)]
struct Entry<T> {
    tally: Tally,
    payload: Option<T>,
}

#[derive(Debug)]
struct Lease<T> {
    token: u64,
    source: u64,
    expires: Duration,
    settling: bool,
    entry: Entry<T>,
}

type BySeq<V> = HashMap<u64, V, BuildHasherDefault<SeqHasher>>;

/// One partition; see the module's docs.
#[derive(Debug)]
pub(crate) struct Partition<T> {
    window: Window,
    lease: Duration,
    /// The next sequence to give out.
    next_seq: u64,
    /// All below were announced by `push` or `restore`.
    announced: u64,
    fresh: VecDeque<(u64, T, usize)>,
    fresh_bytes: usize,
    /// Fresh messages from here on are in the store only; `beyond` counts them.
    frontier: u64,
    beyond: u64,
    /// Touched messages at or past the frontier, to be passed over by a refill.
    skip: BTreeSet<u64>,
    returned: BTreeMap<u64, Entry<T>>,
    delayed: BTreeMap<(Duration, u64), Entry<T>>,
    leased: BySeq<Lease<T>>,
    /// Lease ends in order (every lease is equally long); settled and extended ones are passed over.
    expiries: VecDeque<(Duration, u64, u64)>,
    /// Open sources and how much each holds.
    sources: BySeq<u32>,
    last_token: u64,
}

impl<T: Clone> Partition<T> {
    /// Makes an empty partition whose next message gets `next_seq`.
    pub(crate) fn new(window: Window, lease: Duration, next_seq: u64) -> Self {
        Self {
            window,
            lease,
            next_seq,
            announced: next_seq,
            fresh: VecDeque::new(),
            fresh_bytes: 0,
            frontier: next_seq,
            beyond: 0,
            skip: BTreeSet::new(),
            returned: BTreeMap::new(),
            delayed: BTreeMap::new(),
            leased: BySeq::default(),
            expiries: VecDeque::new(),
            sources: BySeq::default(),
            last_token: 0,
        }
    }

    /// Gives the next sequence, once.
    pub(crate) fn reserve(&mut self) -> u64 {
        let seq = self.next_seq;
        self.next_seq += 1;
        seq
    }

    /// Takes in a published message. Sequences come in the order of [`reserve`](Self::reserve).
    pub(crate) fn push(&mut self, seq: u64, payload: T, bytes: usize) {
        debug_assert!(seq >= self.announced, "sequences are pushed in order");
        self.announced = seq + 1;
        if self.beyond == 0 && self.has_room(bytes) {
            self.fresh.push_back((seq, payload, bytes));
            self.fresh_bytes += bytes;
            self.frontier = seq + 1;
        } else {
            self.beyond += 1;
        }
    }

    /// Puts back what a store held at start: `count` untouched messages from `first` on.
    pub(crate) fn restore_fresh(&mut self, first: u64, count: u64) {
        self.frontier = first;
        self.beyond = count;
    }

    /// Puts back one message that was handed out before; `wait` is what is left of its delay.
    pub(crate) fn restore_touched(
        &mut self,
        seq: u64,
        tally: Tally,
        now: Duration,
        wait: Option<Duration>,
    ) {
        self.skip.insert(seq);
        let entry = Entry {
            tally,
            payload: None,
        };
        self.place(seq, entry, now, wait.map(|wait| now.saturating_add(wait)));
    }

    /// Opens a source; what it holds goes back when it is closed.
    pub(crate) fn open_source(&mut self, source: u64) {
        self.sources.insert(source, 0);
    }

    /// Closes a source and gives its unsettled deliveries back. Settlements under way go on.
    /// Gives their new counts.
    pub(crate) fn close_source(&mut self, source: u64) -> Vec<(u64, Tally)> {
        self.sources.remove(&source);
        let held: Vec<u64> = self
            .leased
            .iter()
            .filter(|(_, lease)| lease.source == source && !lease.settling)
            .map(|(&seq, _)| seq)
            .collect();
        held.into_iter()
            .filter_map(|seq| Some((seq, self.give_back(seq)?)))
            .collect()
    }

    /// How many unsettled deliveries a source holds.
    pub(crate) fn held_by(&self, source: u64) -> u32 {
        self.sources.get(&source).copied().unwrap_or(0)
    }

    /// Hands out at most `max` ready messages to an open source, in order.
    pub(crate) fn hand_out(
        &mut self,
        now: Duration,
        source: u64,
        max: usize,
        mut each: impl FnMut(HandedOut<T>),
    ) -> usize {
        self.advance(now);
        let mut handed = 0;
        while handed < max {
            let Some((seq, mut tally, payload)) = self.pop() else {
                break;
            };
            tally.deliveries = tally.deliveries.saturating_add(1);
            self.last_token += 1;
            let (token, expires) = (self.last_token, now.saturating_add(self.lease));
            let lease = Lease {
                token,
                source,
                expires,
                settling: false,
                entry: Entry {
                    tally,
                    payload: Some(payload.clone()),
                },
            };
            self.leased.insert(seq, lease);
            self.expiries.push_back((expires, seq, token));
            each(HandedOut {
                seq,
                token,
                tally,
                payload,
            });
            handed += 1;
        }
        if let Some(held) = self.sources.get_mut(&source) {
            *held += u32::try_from(handed).unwrap_or(u32::MAX);
        }
        handed
    }

    /// Tells what has to be read before the next message can be handed out, if anything has.
    pub(crate) fn want(&self) -> Option<Want> {
        let returned = self.returned.iter().next();
        if let Some((&seq, entry)) = returned
            && entry.payload.is_none()
            && self.is_next(seq)
        {
            return Some(Want::Payload { seq });
        }
        let low =
            self.fresh.len() <= self.window.count / 4 && self.fresh_bytes <= self.window.bytes / 4;
        (self.beyond > 0 && low).then_some(Want::Refill {
            from: self.frontier,
            announced: self.announced,
        })
    }

    /// Takes in fresh messages read from the store, in order, from the frontier on. `to` is the
    /// first sequence that was not read (where the read came to the end: `announced` of the
    /// [`Want`], since what was announced meanwhile may not have been seen); `dropped` counts the
    /// ones found unreadable.
    pub(crate) fn refill(
        &mut self,
        items: impl IntoIterator<Item = (u64, T, usize)>,
        dropped: u64,
        to: u64,
    ) {
        for (seq, payload, bytes) in items {
            // A row that is committed but not announced yet comes by `push`.
            if seq < self.frontier || seq >= self.announced || self.skip.contains(&seq) {
                continue;
            }
            self.fresh.push_back((seq, payload, bytes));
            self.fresh_bytes += bytes;
            self.beyond = self.beyond.saturating_sub(1);
            self.frontier = seq + 1;
        }
        self.beyond = self.beyond.saturating_sub(dropped);
        self.frontier = self.frontier.max(to.min(self.announced));
        if self.frontier == self.announced {
            self.beyond = 0;
        }
        self.skip = self.skip.split_off(&self.frontier);
    }

    /// Takes in the payload of a returned message.
    pub(crate) fn fill(&mut self, seq: u64, payload: T) {
        if let Some(entry) = self.returned.get_mut(&seq) {
            entry.payload = Some(payload);
        }
    }

    /// Forgets a returned message whose record is unreadable.
    pub(crate) fn forget(&mut self, seq: u64) {
        self.returned.remove(&seq);
    }

    /// Gives the payload of a leased message.
    pub(crate) fn leased_payload(&self, seq: u64) -> Option<&T> {
        self.leased.get(&seq)?.entry.payload.as_ref()
    }

    /// Gives the sequences that are not ready: leased and delayed ones.
    pub(crate) fn not_ready(&self) -> std::collections::HashSet<u64> {
        let delayed = self.delayed.keys().map(|(_, seq)| *seq);
        self.leased.keys().copied().chain(delayed).collect()
    }

    /// Starts a settlement: from here on the lease neither ends nor is given back. Gives the
    /// message's counts; `None`: this hand-out is over.
    pub(crate) fn begin_settle(&mut self, seq: u64, token: u64) -> Option<Tally> {
        let lease = self.lease_mut(seq, token)?;
        lease.settling = true;
        Some(lease.entry.tally)
    }

    /// The settlement could not be stored: the delivery is held as before, or given back if its
    /// source was closed meanwhile.
    pub(crate) fn abort_settle(&mut self, seq: u64, now: Duration) {
        let Some(lease) = self.leased.get_mut(&seq) else {
            return;
        };
        lease.settling = false;
        lease.expires = now.saturating_add(self.lease);
        let (expires, token, source) = (lease.expires, lease.token, lease.source);
        if self.sources.contains_key(&source) {
            self.expiries.push_back((expires, seq, token));
        } else {
            self.give_back(seq);
        }
    }

    /// The message is acknowledged or on the dead list: it is gone from here.
    pub(crate) fn remove(&mut self, seq: u64) -> Option<T> {
        self.end_lease(seq)?.payload
    }

    /// The attempt failed: the message waits for `due`.
    pub(crate) fn requeue(&mut self, seq: u64, now: Duration, due: Duration) {
        if let Some(mut entry) = self.end_lease(seq) {
            entry.tally.failures = entry.tally.failures.saturating_add(1);
            self.place(seq, entry, now, Some(due));
        }
    }

    /// The message goes back to its place, its failures unchanged, its return counted. Gives its
    /// new counts.
    pub(crate) fn give_back(&mut self, seq: u64) -> Option<Tally> {
        let mut entry = self.end_lease(seq)?;
        entry.tally.returns = entry.tally.returns.saturating_add(1);
        let tally = entry.tally;
        self.returned.insert(seq, entry);
        Some(tally)
    }

    /// Starts a lease anew; `false`: it is over.
    pub(crate) fn extend(&mut self, seq: u64, token: u64, now: Duration) -> bool {
        let expires = now.saturating_add(self.lease);
        let Some(lease) = self.lease_mut(seq, token) else {
            return false;
        };
        // The entry in `expiries` finds the new end when its own time comes, and moves on.
        lease.expires = expires;
        true
    }

    /// Tells whether a hand-out still holds its message.
    #[cfg(test)]
    pub(crate) fn holds(&self, seq: u64, token: u64) -> bool {
        self.leased.get(&seq).is_some_and(|l| l.token == token)
    }

    /// Ends what is over by `now`: leases and delays. Tells whether anything became ready.
    pub(crate) fn advance(&mut self, now: Duration) -> bool {
        let mut woke = false;
        while let Some(&(expires, seq, token)) = self.expiries.front() {
            match self.leased.get(&seq).filter(|lease| lease.token == token) {
                Some(_) if expires > now => break,
                Some(lease) if lease.settling => {}
                Some(lease) if lease.expires > now => {
                    let entry = (lease.expires, seq, token);
                    let at = self.expiries.partition_point(|(at, ..)| *at <= entry.0);
                    self.expiries.insert(at, entry);
                }
                // Nobody said a word: that is no return of ours.
                Some(_) => {
                    if let Some(entry) = self.end_lease(seq) {
                        self.returned.insert(seq, entry);
                    }
                    woke = true;
                }
                None => {}
            }
            self.expiries.pop_front();
        }
        if self.expiries.len() > 2 * self.leased.len() + 64 {
            let leased = &self.leased;
            self.expiries
                .retain(|(_, seq, token)| leased.get(seq).is_some_and(|l| l.token == *token));
        }
        while let Some(first) = self.delayed.first_entry() {
            if first.key().0 > now {
                break;
            }
            let ((_, seq), entry) = first.remove_entry();
            self.returned.insert(seq, entry);
            woke = true;
        }
        woke
    }

    /// When [`advance`](Self::advance) has something to do, at the earliest.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        let lease = self.expiries.front().map(|(at, ..)| *at);
        let delay = self.delayed.keys().next().map(|(at, _)| *at);
        [lease, delay].into_iter().flatten().min()
    }

    /// Counts what stands where.
    pub(crate) fn counts(&self) -> Counts {
        Counts {
            ready: (self.fresh.len() + self.returned.len()) as u64 + self.beyond,
            delayed: self.delayed.len() as u64,
            leased: self.leased.len() as u64,
        }
    }

    /// Walks the payloads of ready messages that are at hand, in order.
    pub(crate) fn ready_at_hand(&self) -> impl Iterator<Item = (u64, Tally, Option<&T>)> {
        let mut fresh = self.fresh.iter().peekable();
        let mut returned = self.returned.iter().peekable();
        std::iter::from_fn(move || {
            let f = fresh.peek().map(|(seq, ..)| *seq);
            let r = returned.peek().map(|(seq, _)| **seq);
            if f.is_some_and(|f| r.is_none_or(|r| f < r)) {
                let (seq, payload, _) = fresh.next()?;
                return Some((*seq, Tally::default(), Some(payload)));
            }
            let (seq, entry) = returned.next()?;
            Some((*seq, entry.tally, entry.payload.as_ref()))
        })
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.fresh.is_empty()
            || (self.fresh.len() < self.window.count
                && self.fresh_bytes.saturating_add(bytes) <= self.window.bytes)
    }

    /// Whether a returned message comes before all that is fresh.
    fn is_next(&self, returned: u64) -> bool {
        match self.fresh.front() {
            Some((fresh, ..)) => returned < *fresh,
            None => self.beyond == 0 || returned < self.frontier,
        }
    }

    fn pop(&mut self) -> Option<(u64, Tally, T)> {
        let first = self.returned.first_entry();
        if let Some(first) = first {
            let seq = *first.key();
            let before_fresh = match self.fresh.front() {
                Some((fresh, ..)) => seq < *fresh,
                None => self.beyond == 0 || seq < self.frontier,
            };
            if before_fresh {
                // Without its payload it waits for `fill`, and so does what stands behind it.
                first.get().payload.as_ref()?;
                let entry = first.remove();
                return entry.payload.map(|payload| (seq, entry.tally, payload));
            }
        }
        let (seq, payload, bytes) = self.fresh.pop_front()?;
        self.fresh_bytes -= bytes;
        Some((seq, Tally::default(), payload))
    }

    fn place(&mut self, seq: u64, mut entry: Entry<T>, now: Duration, due: Option<Duration>) {
        match due.filter(|due| *due > now) {
            Some(due) => {
                if !self.window.keep_payloads {
                    entry.payload = None;
                }
                self.delayed.insert((due, seq), entry);
            }
            None => {
                self.returned.insert(seq, entry);
            }
        }
    }

    fn lease_mut(&mut self, seq: u64, token: u64) -> Option<&mut Lease<T>> {
        self.leased
            .get_mut(&seq)
            .filter(|lease| lease.token == token && !lease.settling)
    }

    fn end_lease(&mut self, seq: u64) -> Option<Entry<T>> {
        let lease = self.leased.remove(&seq)?;
        if let Some(held) = self.sources.get_mut(&lease.source) {
            *held = held.saturating_sub(1);
        }
        Some(lease.entry)
    }
}

/// Sequences are dense and ours: one multiplication spreads them well enough.
#[derive(Debug, Default)]
pub(crate) struct SeqHasher(u64);

impl Hasher for SeqHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }
    fn write_u64(&mut self, number: u64) {
        let mixed = (self.0 ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

#[cfg(test)]
#[path = "core_tests.rs"]
mod tests;
