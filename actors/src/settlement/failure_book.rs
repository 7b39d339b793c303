//! The failure book: failed attempts and own returns, where neither a header nor the broker counts
//! them (`hold` before RabbitMQ 4.3, JetStream).
//!
//! A pure core, as the ledger. Its key has no attempt, since the attempt is what it tells. What it
//! has forgotten (evicted, or the process restarted without a journal) reads as unknown, and the
//! work starts again at attempt 1: too many attempts, never too few.
//!
//! **The crash-loop limit** compares the deliveries that nobody explains, delivery count − failures
//! − own returns, this delivery among them:
//!
//! | what the broker's count counts | unexplained ≤ limit | unexplained > limit |
//! |---|---|---|
//! | failures apart from returns | Run | Conclude: dead-letter it without running |
//! | every return | Run | Pause: others' returns cannot be told apart, so pause the partition and say so |
//! | nothing, or unknown | Run | Run |
//!
//! It is asked after the outcome ledger: known work is answered, however often it came.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use crate::model::{Attempt, BodyDigest, DeliveryCounting, MessageId, QueueName, ReplayNumber};

/// Which work, whatever the attempt.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BookKey {
    /// The queue, without a partition's suffix.
    pub queue: QueueName,
    /// The message's id.
    pub id: MessageId,
    /// How often it was replayed from a dead-letter queue.
    pub replay: ReplayNumber,
    /// The digest of the body.
    pub digest: BodyDigest,
}

/// What is counted of one work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Its failed attempts.
    pub failures: u32,
    /// How often we gave it back without one.
    pub returns: u32,
}

/// What the crash-loop limit looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CrashLoop {
    /// How often the broker handed it out, this time included; `None` where it does not count.
    pub delivery_count: Option<u32>,
    /// What the delivery count counts.
    pub counting: DeliveryCounting,
    /// The failures and returns that explain deliveries.
    pub known: Counts,
    /// `crash-loop-limit`.
    pub limit: u32,
}

/// What the crash-loop limit says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a crash loop must be stopped"]
pub enum CrashVerdict {
    /// Run it.
    Run,
    /// Judge it `Rejected(CrashLoop)` without running it.
    Conclude,
    /// Pause its partition and say so; give it back.
    Pause,
}

impl CrashLoop {
    /// Gives the deliveries that nobody explains.
    pub fn unexplained(&self) -> u32 {
        let known = self.known.failures.saturating_add(self.known.returns);
        self.delivery_count.unwrap_or(0).saturating_sub(known)
    }

    /// Compares with the limit; the table is in the module's documentation.
    pub fn verdict(&self) -> CrashVerdict {
        match (self.counting, self.unexplained() > self.limit) {
            (DeliveryCounting::FailuresApart, true) => CrashVerdict::Conclude,
            (DeliveryCounting::EveryReturn, true) => CrashVerdict::Pause,
            (DeliveryCounting::None, true)
            | (
                DeliveryCounting::FailuresApart
                | DeliveryCounting::EveryReturn
                | DeliveryCounting::None,
                false,
            ) => CrashVerdict::Run,
        }
    }
}

/// How much the book keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BookBounds {
    /// How many works.
    pub entries: usize,
    /// How long after its last change.
    pub age: Duration,
}

impl Default for BookBounds {
    /// 100,000 works, a day.
    fn default() -> Self {
        Self {
            entries: 100_000,
            age: Duration::from_secs(24 * 3600),
        }
    }
}

/// What the book holds and did, as a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BookStats {
    /// Works in the book.
    pub entries: usize,
    /// How many were evicted because there were too many.
    pub evicted_by_entries: u64,
    /// How many were evicted because they were too old.
    pub evicted_by_age: u64,
}

/// Failures and own returns by work.
#[derive(Debug, Default)]
pub struct FailureBook {
    bounds: BookBounds,
    pages: HashMap<BookKey, Page>,
    /// Least recently changed first.
    order: BTreeSet<(Duration, u64)>,
    keys: HashMap<u64, BookKey>,
    stats: BookStats,
    next: u64,
}

#[derive(Debug, Clone, Copy)]
struct Page {
    counts: Counts,
    changed: Duration,
    number: u64,
}

impl FailureBook {
    /// Makes an empty book.
    pub fn new(bounds: BookBounds) -> Self {
        Self {
            bounds,
            ..Self::default()
        }
    }

    /// Counts a failed attempt, and gives the attempt that follows.
    pub fn failed(&mut self, key: &BookKey, now: Duration) -> Attempt {
        let counts = self.change(key, now, |counts| {
            counts.failures = counts.failures.saturating_add(1);
        });
        attempt_after(counts)
    }

    /// Counts an own return that is not a failure: a release, a channel we closed.
    pub fn returned(&mut self, key: &BookKey, now: Duration) {
        self.change(key, now, |counts| {
            counts.returns = counts.returns.saturating_add(1);
        });
    }

    /// Takes over what a journal remembers, where that is more.
    pub fn restore(&mut self, key: &BookKey, restored: Counts, now: Duration) {
        self.change(key, now, |counts| {
            counts.failures = counts.failures.max(restored.failures);
            counts.returns = counts.returns.max(restored.returns);
        });
    }

    /// Strikes a work that is acked or rejected.
    pub fn concluded(&mut self, key: &BookKey) {
        if let Some(page) = self.pages.remove(key) {
            self.order.remove(&(page.changed, page.number));
            self.keys.remove(&page.number);
            self.stats.entries = self.pages.len();
        }
    }

    /// Gives what is known of a work; `None` is unknown, not zero.
    pub fn counts(&self, key: &BookKey) -> Option<Counts> {
        self.pages.get(key).map(|page| page.counts)
    }

    /// Gives the attempt that an arrival of this work is; the first if it is unknown.
    pub fn attempt(&self, key: &BookKey) -> Attempt {
        attempt_after(self.counts(key).unwrap_or_default())
    }

    /// Evicts what is too old. Counting does it too.
    pub fn expire(&mut self, now: Duration) {
        while let Some((changed, _)) = self.order.first().copied() {
            if now.saturating_sub(changed) < self.bounds.age {
                break;
            }
            self.evict_first();
            self.stats.evicted_by_age += 1;
        }
    }

    /// Gives what it holds and did.
    pub fn stats(&self) -> BookStats {
        self.stats
    }

    fn change(&mut self, key: &BookKey, now: Duration, change: impl FnOnce(&mut Counts)) -> Counts {
        self.expire(now);
        let mut counts = self.counts(key).unwrap_or_default();
        change(&mut counts);
        self.concluded(key);
        self.write(key, counts, now);
        while self.pages.len() > self.bounds.entries {
            self.evict_first();
            self.stats.evicted_by_entries += 1;
        }
        counts
    }

    fn write(&mut self, key: &BookKey, counts: Counts, changed: Duration) {
        self.next += 1;
        let number = self.next;
        let page = Page {
            counts,
            changed,
            number,
        };
        self.pages.insert(key.clone(), page);
        self.keys.insert(number, key.clone());
        self.order.insert((changed, number));
        self.stats.entries = self.pages.len();
    }

    fn evict_first(&mut self) {
        let first = self.order.first().map(|(_, number)| *number);
        if let Some(key) = first.and_then(|number| self.keys.get(&number).cloned()) {
            self.concluded(&key);
        }
    }
}

fn attempt_after(counts: Counts) -> Attempt {
    Attempt::new(counts.failures.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: Duration = Duration::from_secs(5);

    fn key(id: &str) -> BookKey {
        BookKey {
            queue: "q".into(),
            id: id.into(),
            replay: ReplayNumber::default(),
            digest: BodyDigest::of(b""),
        }
    }

    #[test]
    fn failures_raise_the_attempt_and_returns_do_not() {
        let mut book = FailureBook::default();
        assert_eq!(book.attempt(&key("a")), Attempt::FIRST);
        assert_eq!(book.failed(&key("a"), NOW), Attempt::new(2));
        book.returned(&key("a"), NOW);
        assert_eq!(book.attempt(&key("a")), Attempt::new(2));
        assert_eq!(book.failed(&key("a"), NOW), Attempt::new(3));
        assert_eq!(book.attempt(&key("b")), Attempt::FIRST);
    }

    #[test]
    fn a_concluded_work_starts_anew_and_a_replay_is_other_work() {
        let mut book = FailureBook::default();
        book.failed(&key("a"), NOW);
        let replay = BookKey {
            replay: ReplayNumber(1),
            ..key("a")
        };
        assert_eq!(book.counts(&replay), None);
        book.concluded(&key("a"));
        assert_eq!(book.counts(&key("a")), None);
        assert_eq!(book.stats().entries, 0);
    }

    #[test]
    fn a_journal_only_adds() {
        let mut book = FailureBook::default();
        book.failed(&key("a"), NOW);
        let restored = Counts {
            failures: 3,
            returns: 2,
        };
        book.restore(&key("a"), restored, NOW);
        assert_eq!(book.counts(&key("a")), Some(restored));
        book.restore(&key("a"), Counts::default(), NOW);
        assert_eq!(book.counts(&key("a")), Some(restored));
    }

    #[test]
    fn the_least_recently_changed_is_evicted_and_counted() {
        let mut book = FailureBook::new(BookBounds {
            entries: 2,
            age: Duration::from_secs(60),
        });
        for id in ["a", "b", "a", "c"] {
            book.failed(&key(id), NOW);
        }
        assert_eq!(book.counts(&key("b")), None);
        assert_eq!(book.attempt(&key("a")), Attempt::new(3));
        assert_eq!(book.stats().evicted_by_entries, 1);
        book.expire(NOW + Duration::from_secs(60));
        assert_eq!((book.stats().entries, book.stats().evicted_by_age), (0, 2));
    }

    #[test]
    fn the_crash_loop_limit_says_what_the_table_says() {
        use DeliveryCounting::{EveryReturn, FailuresApart, None as Uncounted};
        let check = |counting, delivery_count, expected| {
            let known = Counts {
                failures: 2,
                returns: 3,
            };
            let question = CrashLoop {
                delivery_count,
                counting,
                known,
                limit: 20,
            };
            assert_eq!(question.verdict(), expected, "{question:?}");
        };
        for counting in [FailuresApart, EveryReturn, Uncounted] {
            for few in [None, Some(0), Some(1), Some(25)] {
                check(counting, few, CrashVerdict::Run);
            }
        }
        check(FailuresApart, Some(26), CrashVerdict::Conclude);
        check(EveryReturn, Some(26), CrashVerdict::Pause);
        check(Uncounted, Some(26), CrashVerdict::Run);
        check(EveryReturn, Some(u32::MAX), CrashVerdict::Pause);
    }

    proptest! {
        /// Within its bounds the book counts as a plain map does; past them it forgets whole works.
        #[test]
        fn the_book_counts_or_forgets_and_keeps_its_bounds(
            steps in proptest::collection::vec((0..8_u8, 0..3_u8), 1..200)
        ) {
            let bounds = BookBounds { entries: 5, age: Duration::from_secs(50) };
            let mut book = FailureBook::new(bounds);
            let mut truth: HashMap<u8, Counts> = HashMap::new();
            for (at, (id, what)) in (0..).zip(steps) {
                let now = Duration::from_secs(at);
                let key = key(&id.to_string());
                book.expire(now);
                if book.counts(&key).is_none() {
                    truth.remove(&id);
                }
                let counts = truth.entry(id).or_default();
                match what {
                    0 => { counts.failures += 1; book.failed(&key, now); }
                    1 => { counts.returns += 1; book.returned(&key, now); }
                    _ => { truth.remove(&id); book.concluded(&key); }
                }
                prop_assert_eq!(book.counts(&key), truth.get(&id).copied());
                prop_assert!(book.stats().entries <= 5);
                let sizes = (book.pages.len(), book.keys.len(), book.order.len());
                let entries = book.stats().entries;
                prop_assert_eq!(sizes, (entries, entries, entries));
            }
        }
    }
}
