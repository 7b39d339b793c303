use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::model::{Publication, RejectReason};

const NOW: Duration = Duration::from_secs(10);
const ACK: Decision = Decision::plain(Disposition::Ack);

fn key(id: &str) -> LedgerKey {
    LedgerKey {
        queue: "q".into(),
        id: id.into(),
        replay: ReplayNumber::default(),
        attempt: Attempt::FIRST,
        digest: BodyDigest::of(id.as_bytes()),
    }
}

fn amqp(generation: u64) -> Handover {
    Handover {
        partition: PartitionId(0),
        generation: Generation(generation),
        delivery_count: None,
        telling: Telling::ByGeneration,
    }
}

fn counted(delivery_count: u32) -> Handover {
    Handover {
        delivery_count: Some(delivery_count),
        telling: Telling::ByDeliveryCount,
        ..amqp(1)
    }
}

fn entry(id: &str, delivery: u64, sent: bool) -> LedgerEntry {
    LedgerEntry {
        key: key(id),
        delivery: DeliveryId(delivery),
        handover: amqp(1),
        decision: ACK,
        owed: None,
        sent,
        number: None,
    }
}

fn ledger(entries: usize, bytes: usize, seconds: u64) -> OutcomeLedger {
    let age = Duration::from_secs(seconds);
    OutcomeLedger::new(LedgerBounds {
        entries,
        bytes,
        age,
    })
}

#[test]
fn a_redelivery_is_told_as_the_table_says() {
    let check = |from: Handover, to: Handover, sent, expected| {
        assert_eq!(
            from.is_redelivered_as(&to, sent),
            expected,
            "{from:?} {to:?} {sent}"
        );
    };
    check(amqp(1), amqp(1), true, false);
    check(amqp(1), amqp(2), true, true);
    check(amqp(1), amqp(1), false, true);
    check(amqp(1), amqp(2), false, true);
    check(amqp(2), amqp(1), false, false);
    for sent in [false, true] {
        check(counted(1), counted(2), sent, true);
        check(counted(2), counted(2), sent, false);
        check(counted(2), counted(1), sent, false);
        let elsewhere = Handover {
            partition: PartitionId(1),
            ..counted(2)
        };
        check(counted(1), elsewhere, sent, false);
    }
    let uncounted = Handover {
        delivery_count: None,
        ..counted(1)
    };
    check(uncounted, uncounted, true, false);
    check(uncounted, counted(2), false, true);
}

#[test]
fn an_entry_answers_one_arrival() {
    let mut ledger = OutcomeLedger::default();
    ledger.remember(entry("a", 1, true), NOW);
    assert!(ledger.answer(&key("a"), &amqp(1), NOW).is_none());
    assert!(ledger.answer(&key("b"), &amqp(2), NOW).is_none());
    assert!(ledger.answer(&key("a"), &amqp(2), NOW).is_some());
    assert!(ledger.answer(&key("a"), &amqp(2), NOW).is_none());
    assert_eq!(ledger.stats().ended, 0);
}

#[test]
fn two_deliveries_of_one_key_are_answered_twice_and_one_delivery_once() {
    let mut ledger = OutcomeLedger::default();
    for delivery in [1, 2, 2] {
        ledger.remember(entry("a", delivery, true), NOW);
    }
    assert_eq!(ledger.stats().ended, 2);
    assert!(ledger.answer(&key("a"), &amqp(2), NOW).is_some());
    assert!(ledger.answer(&key("a"), &amqp(2), NOW).is_some());
    assert!(ledger.answer(&key("a"), &amqp(2), NOW).is_none());
}

#[test]
fn an_attempt_or_a_replay_or_a_body_of_its_own_is_other_work() {
    let mut ledger = OutcomeLedger::default();
    ledger.remember(entry("a", 1, false), NOW);
    let others = [
        LedgerKey {
            attempt: Attempt::new(2),
            ..key("a")
        },
        LedgerKey {
            replay: ReplayNumber(1),
            ..key("a")
        },
        LedgerKey {
            digest: BodyDigest::of(b"b"),
            ..key("a")
        },
        LedgerKey {
            queue: "p".into(),
            ..key("a")
        },
    ];
    for other in others {
        assert!(ledger.answer(&other, &amqp(2), NOW).is_none(), "{other:?}");
    }
}

#[test]
fn the_answer_carries_what_is_owed_and_a_confirmed_copy_is_acked() {
    let reply = Outgoing::new("replies".into(), "done");
    let owing = LedgerEntry {
        decision: Decision::after(Publication::Reply, Disposition::Ack),
        owed: Some(reply.clone()),
        ..entry("a", 1, false)
    };
    let mut ledger = OutcomeLedger::default();
    ledger.remember(owing, NOW);
    let answer = ledger.answer(&key("a"), &amqp(1), NOW).expect("it answers");
    let (disposition, owes) = (Disposition::Ack, Some(Publication::Reply));
    assert_eq!(answer.outcome(), Outcome::Known { disposition, owes });
    assert_eq!(answer.owed, Some(reply));

    let after = Duration::from_secs(2);
    let copied = LedgerEntry {
        decision: Decision::plain(Disposition::Requeue { after }),
        ..entry("a", 1, true)
    };
    let owes = None;
    assert_eq!(copied.outcome(), Outcome::Known { disposition, owes });
    let reason = RejectReason::Handler;
    let disposition = Disposition::Reject { reason };
    let rejected = LedgerEntry {
        decision: Decision::plain(disposition),
        ..entry("a", 1, true)
    };
    assert_eq!(rejected.outcome(), Outcome::Known { disposition, owes });
}

#[test]
fn the_nth_delivery_proves_all_but_as_many_as_the_prefetches() {
    let mut ledger = OutcomeLedger::default();
    let channel = ledger.opened();
    ledger.subscribed(channel, 1);
    ledger.subscribed(channel, 1);
    for id in ["a", "b", "c"] {
        ledger.delivered(channel);
        let number = ledger.sent(channel);
        let sent = LedgerEntry {
            number,
            ..entry(id, 1, true)
        };
        ledger.remember(sent, NOW);
    }
    assert_eq!((ledger.stats().live, ledger.stats().proven), (2, 1));
    assert!(ledger.answer(&key("a"), &amqp(2), NOW).is_none());
    ledger.ended(channel, NOW);
    assert!(ledger.answer(&key("b"), &amqp(2), NOW).is_some());
    assert!(ledger.answer(&key("c"), &amqp(2), NOW).is_some());
}

#[test]
fn a_receipt_that_comes_after_the_proof_keeps_nothing() {
    let mut ledger = OutcomeLedger::default();
    let channel = ledger.opened();
    ledger.subscribed(channel, 1);
    ledger.delivered(channel);
    let number = ledger.sent(channel);
    ledger.delivered(channel);
    let late = LedgerEntry {
        number,
        ..entry("a", 1, true)
    };
    ledger.remember(late, NOW);
    assert_eq!((ledger.stats().live, ledger.stats().ended), (0, 0));
}

#[test]
fn an_unlimited_prefetch_proves_nothing_and_is_bounded_all_the_same() {
    let mut ledger = ledger(2, 1 << 20, 60);
    let channel = ledger.opened();
    ledger.subscribed(channel, 0);
    for delivery in 0..5 {
        ledger.delivered(channel);
        let number = ledger.sent(channel);
        let sent = LedgerEntry {
            number,
            ..entry("a", delivery, true)
        };
        ledger.remember(sent, NOW);
    }
    let stats = ledger.stats();
    assert_eq!(
        (stats.live, stats.proven, stats.evicted_by_entries),
        (2, 0, 3)
    );
}

#[test]
fn the_oldest_goes_first_and_is_counted() {
    let mut by_entries = ledger(2, 1 << 20, 60);
    for (delivery, id) in (0..).zip(["a", "b", "c"]) {
        by_entries.remember(entry(id, delivery, true), NOW);
    }
    assert!(by_entries.answer(&key("a"), &amqp(2), NOW).is_none());
    assert!(by_entries.answer(&key("b"), &amqp(2), NOW).is_some());
    assert_eq!(by_entries.stats().evicted_by_entries, 1);

    let heavy = |id, delivery, weight: usize| LedgerEntry {
        decision: Decision::after(Publication::Reply, Disposition::Ack),
        owed: Some(Outgoing::new("r".into(), vec![0; weight])),
        ..entry(id, delivery, true)
    };
    let mut by_bytes = ledger(9, 2000, 60);
    by_bytes.remember(heavy("a", 1, 600), NOW);
    by_bytes.remember(heavy("b", 2, 3000), NOW);
    assert_eq!(
        by_bytes.stats().ended,
        1,
        "a giant does not push others out"
    );
    by_bytes.remember(heavy("c", 3, 1000), NOW);
    assert!(by_bytes.answer(&key("a"), &amqp(2), NOW).is_none());
    assert!(by_bytes.answer(&key("c"), &amqp(2), NOW).is_some());
    assert_eq!(by_bytes.stats().evicted_by_bytes, 2);
}

#[test]
fn age_counts_from_the_end_of_the_channel() {
    let mut ledger = ledger(9, 1 << 20, 60);
    let channel = ledger.opened();
    ledger.subscribed(channel, 5);
    ledger.delivered(channel);
    let number = ledger.sent(channel);
    let sent = LedgerEntry {
        number,
        ..entry("a", 1, true)
    };
    ledger.remember(sent, NOW);
    let hours_later = NOW + Duration::from_secs(9000);
    ledger.ended(channel, hours_later);
    let soon = hours_later + Duration::from_secs(59);
    ledger.expire(soon);
    assert_eq!(ledger.stats().ended, 1);
    ledger.expire(soon + Duration::from_secs(1));
    assert_eq!(
        (ledger.stats().ended, ledger.stats().evicted_by_age),
        (0, 1)
    );
}

/// What may happen to a channel of a broker.
#[derive(Debug, Clone, Copy)]
enum Step {
    Deliver,
    Settle(usize),
    Release(usize),
    Apply,
    Cut,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => Just(Step::Deliver),
        4 => any::<usize>().prop_map(Step::Settle),
        1 => any::<usize>().prop_map(Step::Release),
        4 => Just(Step::Apply),
        1 => Just(Step::Cut),
    ];
    proptest::collection::vec(step, 1..200)
}

/// A broker that applies settlements in the order sent, some time later.
struct Broker {
    ledger: OutcomeLedger,
    channel: ChannelId,
    prefetch: usize,
    generation: u64,
    fresh: u64,
    waiting: VecDeque<u64>,
    in_hand: Vec<u64>,
    /// Settlements on their way, and whether each is an ack.
    wire: VecDeque<(u64, bool)>,
    acked: Vec<u64>,
}

impl Broker {
    fn new(prefetch: usize) -> Self {
        let mut ledger = OutcomeLedger::default();
        let channel = ledger.opened();
        ledger.subscribed(channel, prefetch as u32);
        Self {
            ledger,
            channel,
            prefetch,
            generation: 1,
            fresh: 0,
            waiting: VecDeque::new(),
            in_hand: Vec::new(),
            wire: VecDeque::new(),
            acked: Vec::new(),
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Deliver if self.in_hand.len() + self.wire.len() < self.prefetch => {
                self.deliver();
            }
            Step::Settle(at) if !self.in_hand.is_empty() => self.settle(at, true),
            Step::Release(at) if !self.in_hand.is_empty() => self.settle(at, false),
            Step::Apply => self.apply(),
            Step::Cut => self.cut(),
            Step::Deliver | Step::Settle(_) | Step::Release(_) => {}
        }
        let live = self.ledger.stats().live;
        assert!(live <= self.prefetch, "{live} live entries");
    }

    fn deliver(&mut self) {
        self.ledger.delivered(self.channel);
        let message = self.waiting.pop_front().unwrap_or_else(|| {
            self.fresh += 1;
            self.fresh
        });
        let key = key(&message.to_string());
        let arrival = amqp(self.generation);
        let known = self.ledger.answer(&key, &arrival, NOW).is_some();
        let acked = self.acked.contains(&message);
        assert_eq!(
            known, acked,
            "message {message} is known if and only if it was acked"
        );
        self.in_hand.push(message);
    }

    fn settle(&mut self, at: usize, ack: bool) {
        let message = self.in_hand.swap_remove(at % self.in_hand.len());
        let number = self.ledger.sent(self.channel);
        // An answered arrival is acked again, never given back: the shell judges it at once.
        let ack = ack || self.acked.contains(&message);
        self.wire.push_back((message, ack));
        if ack {
            self.acked.push(message);
            let handover = amqp(self.generation);
            let sent = LedgerEntry {
                number,
                handover,
                ..entry(&message.to_string(), message, true)
            };
            self.ledger.remember(sent, NOW);
        }
    }

    fn apply(&mut self) {
        if let Some((message, ack)) = self.wire.pop_front()
            && !ack
        {
            self.waiting.push_back(message);
        }
    }

    fn cut(&mut self) {
        // An answered arrival still in hand: the machine remembers it again when it is lost.
        for message in self.in_hand.clone() {
            if self.acked.contains(&message) {
                let again = LedgerEntry {
                    handover: amqp(self.generation),
                    ..entry(&message.to_string(), message, false)
                };
                self.ledger.remember(again, NOW);
            }
        }
        self.ledger.ended(self.channel, NOW);
        let unapplied = self.wire.drain(..).map(|(message, _)| message);
        self.waiting.extend(unapplied);
        self.waiting
            .append(&mut std::mem::take(&mut self.in_hand).into());
        self.generation += 1;
        self.channel = self.ledger.opened();
        self.ledger.subscribed(self.channel, self.prefetch as u32);
    }
}

proptest! {
    /// Nothing is dropped as proven that was not applied, and every redelivery of acked work
    /// is answered.
    #[test]
    fn every_redelivery_of_acked_work_is_known(prefetch in 1..6_usize, steps in steps()) {
        let mut broker = Broker::new(prefetch);
        for step in steps {
            broker.take(step);
        }
    }

    /// Whatever is remembered, the bounds hold and the counts add up.
    #[test]
    fn the_bounds_hold_and_nothing_leaks(
        steps in proptest::collection::vec((0..6_u64, 0..3_u64, 0..900_usize, any::<bool>()), 1..80)
    ) {
        let mut ledger = ledger(5, 3000, 30);
        let channel = ledger.opened();
        ledger.subscribed(channel, 3);
        for (at, (id, generation, weight, live)) in (0..).zip(steps) {
            let now = Duration::from_secs(at);
            let key = key(&id.to_string());
            if generation == 2 {
                let answer = ledger.answer(&key, &amqp(generation), now);
                prop_assert!(answer.is_none_or(|answer| answer.key == key));
            }
            let number = match live {
                true => ledger.sent(channel),
                false => None,
            };
            ledger.remember(
                LedgerEntry {
                    key,
                    handover: amqp(generation),
                    decision: Decision::after(Publication::Reply, Disposition::Ack),
                    owed: Some(Outgoing::new("r".into(), vec![0; weight])),
                    number,
                    ..entry("", at, live)
                },
                now,
            );
            let stats = ledger.stats();
            prop_assert!(stats.ended <= 5 && stats.bytes <= 3000 && stats.live <= 3);
            prop_assert_eq!(ledger.slots.len(), stats.ended + stats.live);
            prop_assert_eq!(ledger.by_key.values().map(Vec::len).sum::<usize>(), ledger.slots.len());
        }
        ledger.ended(channel, Duration::from_secs(100));
        ledger.expire(Duration::from_secs(1000));
        prop_assert_eq!(ledger.stats().bytes, 0);
        prop_assert!(ledger.slots.is_empty() && ledger.by_key.is_empty());
    }
}
