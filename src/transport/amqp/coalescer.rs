//! Which settlement frames a channel sends, and when: pure. One coalescer owns all tags of its
//! channel, so no frame ever covers a tag that is not decided, and none is settled twice.
//!
//! | slot | what it means |
//! |---|---|
//! | Open | handed out, its owner has not decided |
//! | Acked | its owner decided Ack; no frame has left |
//! | Returned | its owner decided a return (nack or reject); no frame has left |
//! | Done | a frame that settles it has left |
//!
//! A flush has two steps, and the second is asked for only when the frames of the first have been
//! written: returns first, one frame each, then acks. The client library may write two frames in
//! another order than they were asked for; a multiple ack that overtook a return would take the
//! returned message with it.
//!
//! The acks of a flush: the decided prefix goes out as one multiple ack named on its highest tag
//! that is not sent. What is decided beyond a hole goes out one by one, so that one slow delivery
//! never holds its neighbours' credit.

use std::collections::VecDeque;

/// The fewest decided acks that are flushed without waiting for more.
const FLUSH_AT_MIN: usize = 16;

/// So many decided acks are flushed without waiting for more: an eighth of what the broker may push
/// ahead, so that it never runs dry over acks that wait.
pub(super) fn flush_at(credit: u32) -> usize {
    usize::try_from(credit / 8)
        .unwrap_or(usize::MAX)
        .max(FLUSH_AT_MIN)
}

/// What a broker is told about one delivery, besides an ack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Return {
    /// `basic.nack`, requeue: not the message's fault.
    Nack,
    /// `basic.reject`, requeue: a failed attempt.
    Requeue,
    /// `basic.reject` without requeue: the queue's own dead-letter exchange has it, or nobody.
    Reject,
}

/// One settlement frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct AckFrame<T> {
    /// The tag that it names.
    pub(super) tag: u64,
    /// Whether it covers all before it too.
    pub(super) multiple: bool,
    /// Whose decisions it carries, in the order of their tags; never empty, the last one's is `tag`.
    pub(super) owners: Vec<T>,
}

#[derive(Debug)]
enum Slot<T> {
    Open,
    Acked(T),
    Returned(T, Return),
    Done,
}

/// Why a tag is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BadTag {
    /// The broker skipped or repeated a tag.
    OutOfOrder,
    /// It was decided before, or never handed out.
    NotOpen,
}

/// The tags of one channel.
#[derive(Debug)]
pub(super) struct Coalescer<T> {
    /// The tag of the first slot.
    base: u64,
    slots: VecDeque<Slot<T>>,
    open: usize,
    acked: usize,
    returned: usize,
    flush_at: usize,
}

impl<T> Coalescer<T> {
    /// A fresh channel: its first tag is 1.
    pub(super) fn new() -> Self {
        Self {
            base: 1,
            slots: VecDeque::new(),
            open: 0,
            acked: 0,
            returned: 0,
            flush_at: FLUSH_AT_MIN,
        }
    }

    /// Sets how many decided acks are flushed without waiting for more.
    pub(super) fn set_flush_at(&mut self, count: usize) {
        self.flush_at = count.max(1);
    }

    /// Counts what is handed out and not decided.
    #[cfg(test)]
    pub(super) fn open(&self) -> usize {
        self.open
    }

    /// Counts what is decided and not sent.
    pub(super) fn waiting(&self) -> usize {
        self.acked + self.returned
    }

    /// Tells whether a flush should not wait for more: enough is decided, nothing more can be, or
    /// something goes back to the broker.
    pub(super) fn is_due(&self) -> bool {
        self.acked >= self.flush_at || self.returned > 0 || (self.open == 0 && self.acked > 0)
    }

    /// A delivery arrived.
    pub(super) fn delivered(&mut self, tag: u64) -> Result<(), BadTag> {
        if tag != self.base + self.slots.len() as u64 {
            return Err(BadTag::OutOfOrder);
        }
        self.slots.push_back(Slot::Open);
        self.open += 1;
        Ok(())
    }

    /// Its owner decided: an ack, or a return.
    pub(super) fn decide(
        &mut self,
        tag: u64,
        owner: T,
        back: Option<Return>,
    ) -> Result<(), (BadTag, T)> {
        let slot = tag
            .checked_sub(self.base)
            .and_then(|at| self.slots.get_mut(usize::try_from(at).ok()?));
        let Some(slot @ Slot::Open) = slot else {
            return Err((BadTag::NotOpen, owner));
        };
        self.open -= 1;
        *slot = match back {
            None => {
                self.acked += 1;
                Slot::Acked(owner)
            }
            Some(back) => {
                self.returned += 1;
                Slot::Returned(owner, back)
            }
        };
        Ok(())
    }

    /// The first step of a flush: the returns, oldest first. Their slots are done.
    pub(super) fn take_returns(&mut self) -> Vec<(u64, T, Return)> {
        let mut frames = Vec::with_capacity(self.returned);
        if self.returned == 0 {
            return frames;
        }
        for (tag, slot) in (self.base..).zip(&mut self.slots) {
            if let Slot::Returned(..) = slot
                && let Slot::Returned(owner, back) = std::mem::replace(slot, Slot::Done)
            {
                frames.push((tag, owner, back));
            }
        }
        self.returned = 0;
        frames
    }

    /// The second step, once the returns have been written: the acks. A return that was decided
    /// since the first step is a hole here, like anything that has not been sent.
    pub(super) fn take_acks(&mut self) -> Vec<AckFrame<T>> {
        let mut frames = Vec::new();
        if self.acked == 0 {
            self.forget_done();
            return frames;
        }
        let (mut owners, mut tag) = (Vec::new(), 0);
        while let Some(slot @ (Slot::Acked(_) | Slot::Done)) = self.slots.front_mut() {
            if let Slot::Acked(owner) = std::mem::replace(slot, Slot::Done) {
                owners.push(owner);
                tag = self.base;
            }
            self.slots.pop_front();
            self.base += 1;
        }
        if !owners.is_empty() {
            self.acked -= owners.len();
            let multiple = owners.len() > 1;
            frames.push(AckFrame {
                tag,
                multiple,
                owners,
            });
        }
        for (tag, slot) in (self.base..).zip(&mut self.slots) {
            if self.acked == 0 {
                break;
            }
            if let Slot::Acked(_) = slot
                && let Slot::Acked(owner) = std::mem::replace(slot, Slot::Done)
            {
                self.acked -= 1;
                frames.push(AckFrame {
                    tag,
                    multiple: false,
                    owners: vec![owner],
                });
            }
        }
        frames
    }

    /// The channel is gone: gives all who have decided and were not sent.
    pub(super) fn take_unsent(&mut self) -> Vec<T> {
        let mut owners = Vec::with_capacity(self.waiting());
        for slot in self.slots.drain(..) {
            self.base += 1;
            match slot {
                Slot::Acked(owner) | Slot::Returned(owner, _) => owners.push(owner),
                Slot::Open | Slot::Done => {}
            }
        }
        (self.open, self.acked, self.returned) = (0, 0, 0);
        owners
    }

    fn forget_done(&mut self) {
        while let Some(Slot::Done) = self.slots.front() {
            self.slots.pop_front();
            self.base += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    fn frames(coalescer: &mut Coalescer<u64>) -> Vec<(u64, bool, Vec<u64>)> {
        let acks = coalescer.take_acks().into_iter();
        acks.map(|f| (f.tag, f.multiple, f.owners)).collect()
    }

    fn with(tags: u64, acked: &[u64]) -> Coalescer<u64> {
        let mut coalescer = Coalescer::new();
        for tag in 1..=tags {
            coalescer.delivered(tag).unwrap();
        }
        for &tag in acked {
            coalescer.decide(tag, tag, None).unwrap();
        }
        coalescer
    }

    #[test]
    fn a_prefix_is_one_frame_and_what_is_beyond_a_hole_goes_alone() {
        let mut coalescer = with(8, &[1, 2, 3, 5, 7]);
        let seen = frames(&mut coalescer);
        assert_eq!(
            seen,
            [
                (3, true, vec![1, 2, 3]),
                (5, false, vec![5]),
                (7, false, vec![7])
            ]
        );
        coalescer.decide(4, 4, None).unwrap();
        // 5 has been acked alone: the frame names 4, and covers nothing else that is unsent.
        assert_eq!(frames(&mut coalescer), [(4, false, vec![4])]);
        coalescer.decide(6, 6, None).unwrap();
        coalescer.decide(8, 8, None).unwrap();
        assert_eq!(frames(&mut coalescer), [(8, true, vec![6, 8])]);
        assert_eq!(frames(&mut coalescer), []);
        assert_eq!((coalescer.open(), coalescer.waiting()), (0, 0));
    }

    #[test]
    fn a_return_is_sent_before_any_ack_that_would_cover_it() {
        let mut coalescer = with(4, &[1, 3]);
        coalescer.decide(2, 2, Some(Return::Nack)).unwrap();
        assert!(coalescer.is_due());
        // Acks asked for first see the return as a hole.
        assert_eq!(
            frames(&mut coalescer),
            [(1, false, vec![1]), (3, false, vec![3])]
        );
        assert_eq!(coalescer.take_returns(), [(2, 2, Return::Nack)]);
        coalescer.decide(4, 4, None).unwrap();
        assert_eq!(frames(&mut coalescer), [(4, false, vec![4])]);
    }

    #[test]
    fn nothing_is_decided_twice_or_before_it_came() {
        let mut coalescer = with(2, &[1]);
        for tag in [0, 1, 3, u64::MAX] {
            let refused = coalescer.decide(tag, 9, None);
            assert_eq!(refused, Err((BadTag::NotOpen, 9)), "{tag}");
        }
        assert_eq!(coalescer.delivered(2), Err(BadTag::OutOfOrder));
        assert_eq!(coalescer.delivered(4), Err(BadTag::OutOfOrder));
        frames(&mut coalescer);
        assert_eq!(coalescer.decide(1, 1, None), Err((BadTag::NotOpen, 1)));
    }

    #[test]
    fn it_is_due_when_enough_is_decided_or_nothing_more_can_be() {
        let mut coalescer = with(40, &[]);
        for tag in 1..FLUSH_AT_MIN as u64 {
            coalescer.decide(tag, tag, None).unwrap();
            assert!(!coalescer.is_due());
        }
        coalescer.decide(30, 30, None).unwrap();
        assert!(coalescer.is_due());
        let mut last = with(1, &[1]);
        assert!(last.is_due());
        frames(&mut last);
        assert!(!last.is_due());
    }

    #[test]
    fn it_waits_for_more_the_more_the_broker_may_push_ahead() {
        let seen: Vec<_> = [1, 128, 200, 1000].map(flush_at).to_vec();
        assert_eq!(seen, [16, 16, 25, 125]);
        let mut coalescer = with(10, &[1, 2]);
        coalescer.set_flush_at(3);
        assert!(!coalescer.is_due());
        coalescer.decide(3, 3, None).unwrap();
        assert!(coalescer.is_due());
    }

    #[derive(Debug, Clone)]
    enum Step {
        Deliver(usize),
        Ack(usize),
        Back(usize),
        Flush,
        AcksOnly,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            2 => (1..20_usize).prop_map(Step::Deliver),
            6 => (0..64_usize).prop_map(Step::Ack),
            2 => (0..64_usize).prop_map(Step::Back),
            2 => Just(Step::Flush),
            1 => Just(Step::AcksOnly),
        ];
        prop::collection::vec(step, 1..300)
    }

    /// A broker that knows nothing but the frames.
    #[derive(Default)]
    struct Broker {
        unsettled: BTreeSet<u64>,
        told: BTreeMap<u64, bool>,
    }

    impl Broker {
        fn settle(&mut self, tag: u64, multiple: bool, acked: bool, owners: &[u64]) {
            assert!(tag > 0, "tag 0 means everything");
            let covered: Vec<u64> = match multiple {
                true => self.unsettled.range(..=tag).copied().collect(),
                false => self.unsettled.get(&tag).copied().into_iter().collect(),
            };
            assert_eq!(
                covered, owners,
                "a frame settles its owners and nobody else"
            );
            for tag in covered {
                self.unsettled.remove(&tag);
                assert!(self.told.insert(tag, acked).is_none(), "settled twice");
            }
        }
    }

    proptest! {
        #[test]
        fn a_broker_hears_each_decision_once_and_no_other(steps in steps()) {
            let mut coalescer = Coalescer::new();
            let (mut broker, mut next) = (Broker::default(), 1);
            let (mut open, mut decided) = (Vec::new(), BTreeMap::new());
            let acks = |coalescer: &mut Coalescer<u64>, broker: &mut Broker| {
                for frame in coalescer.take_acks() {
                    broker.settle(frame.tag, frame.multiple, true, &frame.owners);
                }
            };
            let flush = |coalescer: &mut Coalescer<u64>, broker: &mut Broker| {
                for (tag, owner, _) in coalescer.take_returns() {
                    broker.settle(tag, false, false, &[owner]);
                }
                acks(coalescer, broker);
            };
            for step in steps {
                match step {
                    Step::Deliver(count) => for _ in 0..count {
                        coalescer.delivered(next).unwrap();
                        broker.unsettled.insert(next);
                        open.push(next);
                        next += 1;
                    },
                    Step::Ack(at) | Step::Back(at) if !open.is_empty() => {
                        let tag = open.remove(at % open.len());
                        let back = matches!(step, Step::Back(_)).then_some(Return::Requeue);
                        coalescer.decide(tag, tag, back).unwrap();
                        decided.insert(tag, back.is_none());
                    }
                    Step::Ack(_) | Step::Back(_) => {}
                    Step::Flush => flush(&mut coalescer, &mut broker),
                    Step::AcksOnly => acks(&mut coalescer, &mut broker),
                }
                prop_assert_eq!(coalescer.open(), open.len());
                prop_assert_eq!(coalescer.waiting(), decided.len() - broker.told.len());
            }
            flush(&mut coalescer, &mut broker);
            prop_assert_eq!(&broker.told, &decided);
            prop_assert_eq!(broker.unsettled.into_iter().collect::<Vec<_>>(), open);
        }
    }
}
