//! What is remembered of deliveries that have ended, as the actors use it: the outcome ledger, the
//! failure book, and the first error of each work that failed. Shared state on the actors' thread;
//! it survives every actor, and nothing of it survives the process.
//!
//! The rules are the pure cores' ([`settlement`](crate::settlement)); here they are fed with
//! deliveries. As long as nothing is remembered, nothing is computed: the path of a delivery that
//! goes well does not pay for this.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::model::{
    Attempt, Capabilities, Delivery, DeliveryCounting, DeliveryId, Disposition, Generation,
    Outgoing, Publication,
};
use crate::settlement::{
    BookBounds, ChannelId, Counts, CrashLoop, CrashVerdict, Decision, FailureBook, Handover,
    LedgerBounds, LedgerEntry, LedgerKey, OutcomeLedger, SettlementNumber, Telling,
};

/// How many first errors are kept.
const FIRST_ERRORS_MAX: usize = 10_000;

/// The longest first error that is kept.
const FIRST_ERROR_BYTES_MAX: usize = 1024;

/// The bounds of the outcome ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerLimits {
    /// How many entries are kept.
    pub entries: usize,
    /// How many bytes they may weigh, owed bodies included.
    pub bytes: u64,
    /// How long one is kept.
    pub age: Duration,
}

impl Default for LedgerLimits {
    /// 10,000 entries, 32 MiB, an hour.
    fn default() -> Self {
        Self {
            entries: 10_000,
            bytes: 32 << 20,
            age: Duration::from_secs(3600),
        }
    }
}

/// What is remembered about one delivery.
pub(crate) struct Remembered<'a> {
    pub(crate) number: DeliveryId,
    pub(crate) delivery: &'a Delivery,
    pub(crate) generation: Generation,
    pub(crate) decision: Decision,
    pub(crate) sent: bool,
    pub(crate) settlement: Option<SettlementNumber>,
    pub(crate) owed: Option<Outgoing>,
    pub(crate) now: Duration,
}

/// What the ledger answers.
pub(crate) struct Answer {
    pub(crate) disposition: Disposition,
    pub(crate) publication: Option<Publication>,
    pub(crate) owed: Option<Outgoing>,
}

/// What is remembered.
#[derive(Debug)]
pub(crate) struct Ledger {
    outcomes: OutcomeLedger,
    book: FailureBook,
    telling: Telling,
    counting: DeliveryCounting,
    first_errors: FirstErrors,
}

impl Ledger {
    pub(crate) fn new(limits: LedgerLimits, capabilities: Capabilities) -> Self {
        let bounds = LedgerBounds {
            entries: limits.entries,
            bytes: usize::try_from(limits.bytes).unwrap_or(usize::MAX),
            age: limits.age,
        };
        Self {
            outcomes: OutcomeLedger::new(bounds),
            book: FailureBook::new(BookBounds::default()),
            telling: Telling::of(&capabilities),
            counting: capabilities.counting,
            first_errors: FirstErrors::default(),
        }
    }

    /// Remembers a decision whose settlement or publish is not proven.
    pub(crate) fn remember(&mut self, remembered: Remembered<'_>) {
        let Some(key) = LedgerKey::of(remembered.delivery) else {
            return;
        };
        let mut handover = Handover::of(remembered.delivery, self.telling);
        handover.generation = remembered.generation;
        let entry = LedgerEntry {
            key,
            delivery: remembered.number,
            handover,
            decision: remembered.decision,
            owed: remembered.owed,
            sent: remembered.sent,
            number: remembered.settlement,
        };
        self.outcomes.remember(entry, remembered.now);
    }

    /// A channel was opened that may push so many ahead. `None` where the broker answers
    /// settlements: nothing has to be proven there.
    pub(crate) fn channel_opened(&mut self, credit: u32) -> Option<ChannelId> {
        if self.telling == Telling::ByDeliveryCount {
            return None;
        }
        let channel = self.outcomes.opened();
        self.subscribed(channel, credit);
        Some(channel)
    }

    /// A channel subscribes anew. Counted twice over: the frames of one flush may leave in another
    /// order than they are counted in, and a flush is never larger than the credit.
    pub(crate) fn subscribed(&mut self, channel: ChannelId, credit: u32) {
        self.outcomes.subscribed(channel, credit.saturating_mul(2));
    }

    /// A channel handed one more out.
    pub(crate) fn delivered(&mut self, channel: ChannelId) {
        self.outcomes.delivered(channel);
    }

    /// A settlement may have been sent; told in the order sent.
    pub(crate) fn sent(&mut self, channel: ChannelId) -> Option<SettlementNumber> {
        self.outcomes.sent(channel)
    }

    /// A channel is gone.
    pub(crate) fn channel_ended(&mut self, channel: ChannelId, now: Duration) {
        self.outcomes.ended(channel, now);
    }

    /// Answers an arrival that is the redelivery of concluded work.
    pub(crate) fn answer(&mut self, delivery: &Delivery, now: Duration) -> Option<Answer> {
        if self.len() == 0 {
            return None;
        }
        let key = LedgerKey::of(delivery)?;
        let handover = Handover::of(delivery, self.telling);
        let entry = self.outcomes.answer(&key, &handover, now)?;
        let crate::model::Outcome::Known { disposition, owes } = entry.outcome() else {
            return None;
        };
        Some(Answer {
            disposition,
            publication: owes,
            owed: entry.owed,
        })
    }

    /// Gives an arrival's attempt: the delivery's own, or the book's where the broker does not
    /// count failures apart.
    pub(crate) fn attempt(&self, delivery: &Delivery) -> Attempt {
        if self.counting == DeliveryCounting::FailuresApart || self.book.stats().entries == 0 {
            return delivery.attempt;
        }
        LedgerKey::of(delivery).map_or(delivery.attempt, |key| {
            delivery
                .attempt
                .max(self.book.attempt(&key.without_attempt()))
        })
    }

    /// Says how often a message was handed out without a word from us, and what follows.
    pub(crate) fn crash_loop(&self, delivery: &Delivery, limit: u32) -> (u32, CrashVerdict) {
        // Nothing to explain: the common case computes no key.
        if delivery.delivery_count.unwrap_or(0) <= limit {
            return (0, CrashVerdict::Run);
        }
        let book = LedgerKey::of(delivery)
            .and_then(|key| self.book.counts(&key.without_attempt()))
            .unwrap_or_default();
        let known = Counts {
            failures: book.failures.max(delivery.attempt.get() - 1),
            returns: book.returns.max(delivery.returns),
        };
        let crash_loop = CrashLoop {
            delivery_count: delivery.delivery_count,
            counting: self.counting,
            known,
            limit,
        };
        (crash_loop.unexplained(), crash_loop.verdict())
    }

    /// Counts how a delivery ended.
    pub(crate) fn ended(
        &mut self,
        delivery: &Delivery,
        disposition: Disposition,
        error: Option<&str>,
        now: Duration,
    ) {
        match disposition {
            Disposition::Ack | Disposition::Reject { .. } => {
                if self.book.stats().entries == 0 && self.first_errors.is_empty() {
                    return;
                }
                self.first_errors.remove(delivery);
                if let Some(key) = LedgerKey::of(delivery) {
                    self.book.concluded(&key.without_attempt());
                }
            }
            Disposition::Requeue { .. } => {
                if let Some(error) = error {
                    self.first_errors.note(delivery, error);
                }
                if self.counting != DeliveryCounting::FailuresApart
                    && let Some(key) = LedgerKey::of(delivery)
                {
                    self.book.failed(&key.without_attempt(), now);
                }
            }
            Disposition::Release => {
                if let Some(key) = LedgerKey::of(delivery) {
                    self.book.returned(&key.without_attempt(), now);
                }
            }
        }
    }

    /// Gives the error of a work's first failed attempt, if this process saw it.
    pub(crate) fn first_error(&self, delivery: &Delivery) -> Option<&str> {
        self.first_errors.get(delivery)
    }

    /// Counts the entries of the outcome ledger.
    pub(crate) fn len(&self) -> usize {
        let stats = self.outcomes.stats();
        stats.live + stats.ended
    }
}

/// The error of the first failed attempt of works that are not concluded, oldest forgotten first.
/// A broker that keeps a message in place keeps no error with it.
#[derive(Debug, Default)]
struct FirstErrors {
    errors: HashMap<(String, String), Box<str>>,
    order: VecDeque<(String, String)>,
}

impl FirstErrors {
    fn is_empty(&self) -> bool {
        self.errors.is_empty()
    }

    fn key(delivery: &Delivery) -> Option<(String, String)> {
        let id = delivery.identity()?;
        Some((delivery.queue.as_str().to_owned(), id.as_str().to_owned()))
    }

    fn note(&mut self, delivery: &Delivery, error: &str) {
        let Some(key) = Self::key(delivery) else {
            return;
        };
        if self.errors.contains_key(&key) {
            return;
        }
        while self.order.len() >= FIRST_ERRORS_MAX {
            if let Some(oldest) = self.order.pop_front() {
                self.errors.remove(&oldest);
            }
        }
        let error = crate::delivery::cut(error, FIRST_ERROR_BYTES_MAX);
        self.order.push_back(key.clone());
        self.errors.insert(key, error.into());
    }

    fn remove(&mut self, delivery: &Delivery) {
        let Some(key) = Self::key(delivery) else {
            return;
        };
        if self.errors.remove(&key).is_some()
            && let Some(at) = self.order.iter().position(|other| *other == key)
        {
            self.order.remove(at);
        }
    }

    fn get(&self, delivery: &Delivery) -> Option<&str> {
        self.errors.get(&Self::key(delivery)?).map(|error| &**error)
    }
}

/// Tells whether two deliveries have one ledger key.
pub(crate) fn same_key(one: &Delivery, other: &Delivery) -> bool {
    one.is_same_work(other)
        && one.attempt == other.attempt
        && one.replay == other.replay
        && one.body == other.body
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::PartitionId;
    use bytes::Bytes;

    fn delivery(sequence: u64, count: u32) -> Delivery {
        let body = Bytes::from_static(b"body");
        let mut delivery = Delivery::new("q".into(), PartitionId(0), Generation(1), body);
        delivery.sequence = Some(sequence);
        delivery.delivery_count = Some(count);
        delivery
    }

    fn ledger() -> Ledger {
        let capabilities = Capabilities {
            confirms_settlement: true,
            delayed_requeue: true,
            extend: true,
            dead_list: true,
            late_ack: false,
            counting: DeliveryCounting::FailuresApart,
            durable: true,
        };
        Ledger::new(LedgerLimits::default(), capabilities)
    }

    #[test]
    fn finished_work_answers_its_redelivery_once() {
        let mut ledger = ledger();
        let decision = Decision {
            publish: None,
            disposition: Disposition::Ack,
            hold: false,
        };
        ledger.remember(Remembered {
            number: DeliveryId(1),
            delivery: &delivery(7, 1),
            generation: Generation(1),
            decision,
            sent: true,
            settlement: None,
            owed: None,
            now: Duration::ZERO,
        });
        let answer = |ledger: &mut Ledger, sequence, count| {
            let answer = ledger.answer(&delivery(sequence, count), Duration::ZERO);
            answer.map(|answer| answer.disposition)
        };
        assert_eq!(answer(&mut ledger, 8, 2), None, "another message");
        assert_eq!(
            answer(&mut ledger, 7, 1),
            None,
            "the same hand-out is no redelivery"
        );
        assert_eq!(answer(&mut ledger, 7, 2), Some(Disposition::Ack));
        assert_eq!(answer(&mut ledger, 7, 3), None);
    }

    #[test]
    fn the_first_error_is_kept_until_the_work_is_concluded() {
        let mut ledger = ledger();
        let requeue = Disposition::Requeue {
            after: Duration::ZERO,
        };
        ledger.ended(&delivery(7, 1), requeue, Some("first"), Duration::ZERO);
        ledger.ended(&delivery(7, 2), requeue, Some("second"), Duration::ZERO);
        assert_eq!(ledger.first_error(&delivery(7, 3)), Some("first"));
        ledger.ended(&delivery(7, 3), Disposition::Ack, None, Duration::ZERO);
        assert_eq!(ledger.first_error(&delivery(7, 4)), None);
    }

    #[test]
    fn our_own_returns_are_no_crash_loop() {
        let mut ledger = ledger();
        for count in 1..=30 {
            ledger.ended(
                &delivery(7, count),
                Disposition::Release,
                None,
                Duration::ZERO,
            );
        }
        assert_eq!(ledger.crash_loop(&delivery(7, 31), 20).1, CrashVerdict::Run);
        assert_eq!(
            ledger.crash_loop(&delivery(7, 60), 20),
            (30, CrashVerdict::Conclude)
        );
        let mut told_by_the_broker = delivery(8, 60);
        told_by_the_broker.returns = 59;
        assert_eq!(
            ledger.crash_loop(&told_by_the_broker, 20).1,
            CrashVerdict::Run
        );
    }
}
