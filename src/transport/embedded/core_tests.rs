//! Tests of the core: scenes, and random operations against a simple model.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const LEASE: Duration = Duration::from_secs(30);
const SOURCE: u64 = 1;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn bounded(count: usize) -> Window {
    Window {
        count,
        bytes: 1 << 20,
        keep_payloads: false,
    }
}

fn partition_with(window: Window, messages: u64) -> Partition<u64> {
    let mut partition = Partition::new(window, LEASE, 1);
    partition.open_source(SOURCE);
    for _ in 0..messages {
        let seq = partition.reserve();
        partition.push(seq, seq, 10);
    }
    partition
}

fn hand_out(partition: &mut Partition<u64>, now: Duration, max: usize) -> Vec<HandedOut<u64>> {
    let mut handed = Vec::new();
    partition.hand_out(now, SOURCE, max, |one| handed.push(one));
    handed
}

fn seqs(handed: &[HandedOut<u64>]) -> Vec<u64> {
    handed.iter().map(|one| one.seq).collect()
}

#[test]
fn what_does_not_fit_the_window_is_asked_for_and_comes_in_order() {
    let mut partition = partition_with(bounded(4), 10);
    assert_eq!(partition.counts().ready, 10);
    assert_eq!(
        seqs(&hand_out(&mut partition, seconds(0), 100)),
        [1, 2, 3, 4]
    );
    let want = Want::Refill {
        from: 5,
        announced: 11,
    };
    assert_eq!(partition.want(), Some(want));
    partition.refill((5..9).map(|seq| (seq, seq, 10)), 0, 9);
    assert_eq!(
        seqs(&hand_out(&mut partition, seconds(0), 100)),
        [5, 6, 7, 8]
    );
    partition.refill((9..11).map(|seq| (seq, seq, 10)), 0, 11);
    assert_eq!(seqs(&hand_out(&mut partition, seconds(0), 100)), [9, 10]);
    assert_eq!(partition.want(), None);
}

#[test]
fn what_is_published_while_a_refill_reads_is_neither_lost_nor_doubled() {
    let mut partition = partition_with(bounded(2), 4);
    hand_out(&mut partition, seconds(0), 2);
    let Some(Want::Refill { announced, .. }) = partition.want() else {
        panic!("a refill is wanted");
    };
    // 5 is announced meanwhile and not seen by the read; 6 is seen and not announced yet.
    let seq = partition.reserve();
    partition.push(seq, seq, 10);
    partition.refill([(3, 3, 10), (4, 4, 10), (6, 6, 10)], 0, announced);
    let seq = partition.reserve();
    partition.push(seq, seq, 10);
    assert_eq!(seqs(&hand_out(&mut partition, seconds(0), 9)), [3, 4]);
    let want = Want::Refill {
        from: 5,
        announced: 7,
    };
    assert_eq!(partition.want(), Some(want));
    partition.refill([(5, 5, 10), (6, 6, 10)], 0, 7);
    assert_eq!(seqs(&hand_out(&mut partition, seconds(0), 9)), [5, 6]);
}

#[test]
fn a_returned_message_without_its_payload_holds_what_is_behind_it() {
    let mut partition = partition_with(bounded(100), 3);
    let first = hand_out(&mut partition, seconds(0), 1).remove(0);
    partition
        .begin_settle(first.seq, first.token)
        .expect("held");
    partition.requeue(first.seq, seconds(0), seconds(5));
    assert_eq!(seqs(&hand_out(&mut partition, seconds(5), 0)), [0_u64; 0]);
    assert_eq!(partition.want(), Some(Want::Payload { seq: 1 }));
    assert_eq!(hand_out(&mut partition, seconds(5), 9), []);
    partition.fill(1, 1);
    assert_eq!(seqs(&hand_out(&mut partition, seconds(5), 9)), [1, 2, 3]);
}

#[test]
fn a_settlement_under_way_outlives_its_lease_and_its_source() {
    let mut partition = partition_with(bounded(100), 2);
    let handed = hand_out(&mut partition, seconds(0), 2);
    partition
        .begin_settle(handed[0].seq, handed[0].token)
        .expect("held");
    assert!(partition.advance(LEASE));
    assert_eq!(partition.counts().leased, 1);
    partition.close_source(SOURCE);
    assert_eq!(partition.counts().leased, 1);
    // It could not be stored: its source is gone, so it goes back.
    partition.abort_settle(handed[0].seq, LEASE);
    assert_eq!(partition.counts().ready, 2);
}

#[test]
fn no_settlement_begins_twice() {
    let mut partition = partition_with(bounded(100), 1);
    let one = hand_out(&mut partition, seconds(0), 1).remove(0);
    assert!(partition.begin_settle(one.seq, one.token).is_some());
    assert!(partition.begin_settle(one.seq, one.token).is_none());
    assert!(!partition.extend(one.seq, one.token, seconds(1)));
}

#[test]
fn restored_messages_keep_their_order_counts_and_delays() {
    let mut partition = Partition::new(bounded(100), LEASE, 10);
    partition.open_source(SOURCE);
    partition.restore_fresh(2, 2);
    let tally = Tally {
        failures: 1,
        deliveries: 2,
        returns: 0,
    };
    partition.restore_touched(3, tally, seconds(0), None);
    partition.restore_touched(1, tally, seconds(0), Some(seconds(9)));
    let want = Want::Refill {
        from: 2,
        announced: 10,
    };
    assert_eq!(hand_out(&mut partition, seconds(0), 9), []);
    assert_eq!(partition.want(), Some(want));
    partition.refill([2, 3, 4].map(|seq| (seq, seq, 10)), 0, 10);
    partition.fill(3, 3);
    let handed = hand_out(&mut partition, seconds(0), 9);
    assert_eq!(seqs(&handed), [2, 3, 4]);
    assert_eq!(handed[1].tally.deliveries, 3);
    assert_eq!(partition.counts().delayed, 1);
    assert_eq!(partition.next_deadline(), Some(seconds(9)));
}

/// Where the model says a message is.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Place {
    Ready,
    Held {
        token: u64,
        expires: Duration,
        settling: bool,
    },
    Delayed {
        due: Duration,
    },
}

#[derive(Debug, Clone, Copy)]
enum Op {
    Publish,
    Receive(usize),
    Ack(usize),
    Requeue(usize, u64),
    Release(usize),
    Extend(usize),
    Begin(usize),
    Abort(usize),
    Wait(u64),
    Reopen,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => Just(Op::Publish),
        4 => (1..6_usize).prop_map(Op::Receive),
        3 => (0..8_usize).prop_map(Op::Ack),
        2 => (0..8_usize, 0..40_u64).prop_map(|(n, s)| Op::Requeue(n, s)),
        2 => (0..8_usize).prop_map(Op::Release),
        1 => (0..8_usize).prop_map(Op::Extend),
        1 => (0..8_usize).prop_map(Op::Begin),
        1 => (0..8_usize).prop_map(Op::Abort),
        2 => (0..40_u64).prop_map(Op::Wait),
        1 => Just(Op::Reopen),
    ]
}

/// The model: every message in one map, everything found by walking it.
#[derive(Debug, Default)]
struct Model {
    messages: BTreeMap<u64, (Place, Tally)>,
    now: Duration,
    source: u64,
}

impl Model {
    fn advance(&mut self) {
        for (place, _) in self.messages.values_mut() {
            match *place {
                Place::Held {
                    expires,
                    settling: false,
                    ..
                } if expires <= self.now => *place = Place::Ready,
                Place::Delayed { due } if due <= self.now => *place = Place::Ready,
                _ => {}
            }
        }
    }

    fn held(&self, at: usize, settling: bool) -> Option<(u64, u64)> {
        let held = self
            .messages
            .iter()
            .filter_map(|(seq, (place, _))| match *place {
                Place::Held {
                    token, settling: s, ..
                } if s == settling => Some((*seq, token)),
                _ => None,
            });
        held.clone().nth(at).or_else(|| held.clone().next())
    }
}

/// Runs operations on the core, with a store beside it that answers every want.
fn check(ops: &[Op], window: Window) -> Result<(), TestCaseError> {
    let mut model = Model::default();
    let mut core: Partition<u64> = Partition::new(window, LEASE, 1);
    core.open_source(model.source);
    for op in ops {
        model.advance();
        core.advance(model.now);
        match *op {
            Op::Publish => {
                let seq = core.reserve();
                core.push(seq, seq, 10);
                let place = (Place::Ready, Tally::default());
                prop_assert!(model.messages.insert(seq, place).is_none());
            }
            Op::Receive(max) => receive(&mut core, &mut model, max)?,
            Op::Ack(at) => {
                if let Some((seq, token)) = model.held(at, false) {
                    prop_assert!(core.begin_settle(seq, token).is_some());
                    core.remove(seq);
                    model.messages.remove(&seq);
                    prop_assert!(core.begin_settle(seq, token).is_none());
                }
            }
            Op::Requeue(at, wait) => {
                if let Some((seq, token)) = model.held(at, false) {
                    let due = model.now + seconds(wait);
                    prop_assert!(core.begin_settle(seq, token).is_some());
                    core.requeue(seq, model.now, due);
                    let (place, tally) = model.messages.get_mut(&seq).expect("held");
                    *place = Place::Delayed { due };
                    tally.failures += 1;
                }
            }
            Op::Release(at) => {
                if let Some((seq, token)) = model.held(at, false) {
                    prop_assert!(core.begin_settle(seq, token).is_some());
                    core.give_back(seq);
                    model.give_back(seq);
                }
            }
            Op::Extend(at) => {
                if let Some((seq, token)) = model.held(at, false) {
                    prop_assert!(core.extend(seq, token, model.now));
                    hold(&mut model, seq, token, false);
                }
            }
            Op::Begin(at) => {
                if let Some((seq, token)) = model.held(at, false) {
                    prop_assert!(core.begin_settle(seq, token).is_some());
                    hold(&mut model, seq, token, true);
                }
            }
            Op::Abort(at) => {
                if let Some((seq, token)) = model.held(at, true) {
                    core.abort_settle(seq, model.now);
                    hold(&mut model, seq, token, false);
                }
            }
            Op::Wait(wait) => model.now += seconds(wait),
            Op::Reopen => {
                core.close_source(model.source);
                model.source += 1;
                core.open_source(model.source);
                while let Some((seq, _)) = model.held(0, false) {
                    model.give_back(seq);
                }
                // What is settling belongs to no open source: it goes back when it is aborted.
                while let Some((seq, _)) = model.held(0, true) {
                    core.abort_settle(seq, model.now);
                    model.give_back(seq);
                }
            }
        }
        same(&mut core, &mut model)?;
    }
    Ok(())
}

impl Model {
    /// Back to its place, its return counted.
    fn give_back(&mut self, seq: u64) {
        let (place, tally) = self.messages.get_mut(&seq).expect("held");
        *place = Place::Ready;
        tally.returns += 1;
    }
}

fn hold(model: &mut Model, seq: u64, token: u64, settling: bool) {
    let expires = model.now + LEASE;
    if let Some((place, _)) = model.messages.get_mut(&seq) {
        *place = Place::Held {
            token,
            expires,
            settling,
        };
    }
}

fn receive(core: &mut Partition<u64>, model: &mut Model, max: usize) -> Result<(), TestCaseError> {
    let mut handed = Vec::new();
    loop {
        let left = max - handed.len();
        core.hand_out(model.now, model.source, left, |one| handed.push(one));
        match core.want() {
            Some(Want::Payload { seq }) if handed.len() < max => core.fill(seq, seq),
            Some(Want::Refill { from, announced }) if handed.len() < max => {
                let rows = model.messages.range(from..).take(3);
                let rows: Vec<_> = rows.map(|(&seq, _)| (seq, seq, 10)).collect();
                let to = match rows.last() {
                    Some((last, ..)) if rows.len() == 3 => last + 1,
                    _ => announced,
                };
                core.refill(rows, 0, to);
            }
            _ => break,
        }
    }
    let ready = model
        .messages
        .iter()
        .filter(|(_, (p, _))| *p == Place::Ready);
    let expected: Vec<u64> = ready.map(|(seq, _)| *seq).take(max).collect();
    prop_assert_eq!(seqs(&handed), expected);
    for one in handed {
        let (_, tally) = model.messages.get_mut(&one.seq).expect("known");
        tally.deliveries += 1;
        prop_assert_eq!(one.tally, *tally);
        prop_assert_eq!(one.payload, one.seq);
        prop_assert!(core.holds(one.seq, one.token));
        hold(model, one.seq, one.token, false);
    }
    Ok(())
}

fn same(core: &mut Partition<u64>, model: &mut Model) -> Result<(), TestCaseError> {
    model.advance();
    core.advance(model.now);
    let count = |wanted: fn(&Place) -> bool| {
        model.messages.values().filter(|(p, _)| wanted(p)).count() as u64
    };
    let expected = Counts {
        ready: count(|p| matches!(p, Place::Ready)),
        delayed: count(|p| matches!(p, Place::Delayed { .. })),
        leased: count(|p| matches!(p, Place::Held { .. })),
    };
    prop_assert_eq!(core.counts(), expected);
    prop_assert_eq!(u64::from(core.held_by(model.source)), expected.leased);
    let deadline = core.next_deadline();
    prop_assert!(deadline.is_none_or(|deadline| deadline > model.now));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn any_operations_agree_with_the_model(ops in proptest::collection::vec(op(), 1..120)) {
        check(&ops, bounded(8))?;
        check(&ops, bounded(usize::MAX))?;
        check(&ops, Window::UNBOUNDED)?;
    }
}
