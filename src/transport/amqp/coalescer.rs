//! Which settlement frames a channel sends, and when: pure. One coalescer owns all tags of its
//! channel, so no frame ever covers a tag that is not decided, and none is settled twice.
//!
//! | a tag is | what it means |
//! |---|---|
//! | open | handed out, its owner has not decided |
//! | acked | its owner decided Ack; no frame has left |
//! | returned | its owner decided a return (nack or reject); no frame has left |
//! | none of these | a frame that settles it has left: nothing is kept of it |
//!
//! So what is kept is bounded by what is open and what waits for a flush, however long the oldest
//! open tag stays and however many pass it; and a flush looks at nothing but what it sends.
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
/// ahead, so that it never runs dry over acks that wait, and a quarter of what can be at work at
/// once: each of them holds its permit until its ack is written.
pub(super) fn flush_at(credit: u32, at_work: u32) -> usize {
    let of_credit = usize::try_from(credit / 8).unwrap_or(usize::MAX);
    let of_work = usize::try_from(at_work / 4).unwrap_or(usize::MAX);
    of_credit.max(FLUSH_AT_MIN).min(of_work.max(1))
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
    /// The tag that the broker gives next.
    next: u64,
    open: OpenTags,
    /// In the order they were decided.
    acked: Vec<(u64, T)>,
    /// Likewise.
    returned: Vec<(u64, T, Return)>,
    flush_at: usize,
}

impl<T> Coalescer<T> {
    /// A fresh channel: its first tag is 1.
    pub(super) fn new() -> Self {
        Self {
            next: 1,
            open: OpenTags::default(),
            acked: Vec::new(),
            returned: Vec::new(),
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
        self.open.len()
    }

    /// Counts what is decided and not sent.
    pub(super) fn waiting(&self) -> usize {
        self.acked.len() + self.returned.len()
    }

    /// Tells whether a flush should not wait for more: enough is decided, nothing more can be, or
    /// something goes back to the broker.
    pub(super) fn is_due(&self) -> bool {
        let acked = self.acked.len();
        acked >= self.flush_at || !self.returned.is_empty() || (self.open.len() == 0 && acked > 0)
    }

    /// A delivery arrived.
    pub(super) fn delivered(&mut self, tag: u64) -> Result<(), BadTag> {
        if tag != self.next {
            return Err(BadTag::OutOfOrder);
        }
        self.next += 1;
        self.open.push(tag);
        Ok(())
    }

    /// Its owner decided: an ack, or a return.
    pub(super) fn decide(
        &mut self,
        tag: u64,
        owner: T,
        back: Option<Return>,
    ) -> Result<(), (BadTag, T)> {
        if !self.open.remove(tag) {
            return Err((BadTag::NotOpen, owner));
        }
        match back {
            None => self.acked.push((tag, owner)),
            Some(back) => self.returned.push((tag, owner, back)),
        }
        Ok(())
    }

    /// The first step of a flush: the returns, oldest first.
    pub(super) fn take_returns(&mut self) -> Vec<(u64, T, Return)> {
        let mut frames = std::mem::take(&mut self.returned);
        frames.sort_unstable_by_key(|(tag, ..)| *tag);
        frames
    }

    /// The second step, once the returns have been written: the acks. A return that was decided
    /// since the first step is a hole here, like anything that has not been sent.
    pub(super) fn take_acks(&mut self) -> Vec<AckFrame<T>> {
        let mut frames = Vec::new();
        // As much room as a flush needs, so that the lock is not held while it grows.
        let room = Vec::with_capacity(self.acked.len());
        let mut acked = std::mem::replace(&mut self.acked, room);
        acked.sort_unstable_by_key(|(tag, _)| *tag);
        let hole = self.hole();
        let beyond = acked.partition_point(|(tag, _)| *tag < hole);
        let alone = acked.split_off(beyond);
        if let Some(&(tag, _)) = acked.last() {
            frames.push(AckFrame {
                tag,
                multiple: acked.len() > 1,
                owners: acked.into_iter().map(|(_, owner)| owner).collect(),
            });
        }
        frames.extend(alone.into_iter().map(|(tag, owner)| AckFrame {
            tag,
            multiple: false,
            owners: vec![owner],
        }));
        frames
    }

    /// The channel is gone: gives all who have decided and were not sent.
    pub(super) fn take_unsent(&mut self) -> Vec<T> {
        self.open = OpenTags::default();
        let acked = std::mem::take(&mut self.acked).into_iter();
        let returned = std::mem::take(&mut self.returned).into_iter();
        let returned = returned.map(|(tag, owner, _)| (tag, owner));
        let mut owners: Vec<_> = acked.chain(returned).collect();
        owners.sort_unstable_by_key(|(tag, _)| *tag);
        owners.into_iter().map(|(_, owner)| owner).collect()
    }

    /// The lowest tag that no ack may cover.
    fn hole(&self) -> u64 {
        let returned = self.returned.iter().map(|(tag, ..)| *tag).min();
        let open = self.open.first().unwrap_or(self.next);
        returned.map_or(open, |returned| returned.min(open))
    }
}

/// So many tags are kept that are not open any more, besides one for each that is.
const CLOSED_MAX: usize = 64;

/// The open tags, in order. What is closed at the front goes at once; what is closed behind an
/// open one goes when it is more than the open ones, so that each costs the same on average.
///
/// A tree would say the same in fewer lines, at twice the price for each delivery.
#[derive(Debug, Default)]
struct OpenTags {
    /// Each with whether it is open. The first is.
    tags: VecDeque<(u64, bool)>,
    closed: usize,
}

impl OpenTags {
    fn len(&self) -> usize {
        self.tags.len() - self.closed
    }

    fn first(&self) -> Option<u64> {
        self.tags.front().map(|(tag, _)| *tag)
    }

    /// Takes a tag above all that came before.
    fn push(&mut self, tag: u64) {
        self.tags.push_back((tag, true));
    }

    /// Closes a tag; `false`: it was not open.
    fn remove(&mut self, tag: u64) -> bool {
        let Some(at) = self.find(tag) else {
            return false;
        };
        let Some((_, open @ true)) = self.tags.get_mut(at) else {
            return false;
        };
        *open = false;
        self.closed += 1;
        while let Some((_, false)) = self.tags.front() {
            self.tags.pop_front();
            self.closed -= 1;
        }
        if self.closed > CLOSED_MAX.max(self.len()) {
            self.tags.retain(|(_, open)| *open);
            self.closed = 0;
        }
        true
    }

    fn find(&self, tag: u64) -> Option<usize> {
        // Where it stands if nothing before it was left out, as is usual.
        let guess = tag.checked_sub(self.first()?)?;
        let guess = usize::try_from(guess).ok()?;
        match self.tags.get(guess) {
            Some((there, _)) if *there == tag => Some(guess),
            _ => self.tags.binary_search_by_key(&tag, |(tag, _)| *tag).ok(),
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

    /// Counts all that is kept, of whatever kind.
    fn kept(coalescer: &Coalescer<u64>) -> usize {
        coalescer.open.tags.len() + coalescer.waiting()
    }

    fn kept_max(coalescer: &Coalescer<u64>) -> usize {
        2 * coalescer.open() + CLOSED_MAX + coalescer.waiting()
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
        let wide = |credit| flush_at(credit, 1000);
        let seen: Vec<_> = [1, 128, 200, 1000].map(wide).to_vec();
        assert_eq!(seen, [16, 16, 25, 125]);
        // Who has 64 permits never has 125 to flush, and who has one waits for each.
        let seen: Vec<_> = [64, 8, 4, 1, 0].map(|work| flush_at(1000, work)).to_vec();
        assert_eq!(seen, [16, 2, 1, 1, 1]);
        let mut coalescer = with(10, &[1, 2]);
        coalescer.set_flush_at(3);
        assert!(!coalescer.is_due());
        coalescer.decide(3, 3, None).unwrap();
        assert!(coalescer.is_due());
    }

    #[test]
    fn nothing_is_kept_of_those_that_pass_one_that_stays() {
        let mut coalescer = with(1, &[]);
        for round in 0..1_000_u64 {
            let first = 2 + round * 20;
            for tag in first..first + 20 {
                coalescer.delivered(tag).unwrap();
            }
            for tag in (first..first + 20).rev() {
                coalescer.decide(tag, tag, None).unwrap();
            }
            let sent = frames(&mut coalescer);
            let tags: Vec<u64> = sent.iter().map(|(tag, ..)| *tag).collect();
            assert_eq!(tags, (first..first + 20).collect::<Vec<_>>());
            assert!(kept(&coalescer) <= 1 + CLOSED_MAX + 1, "round {round}");
        }
        // It covers thousands that were sent long ago, and none of them is named again.
        coalescer.delivered(20_002).unwrap();
        coalescer.decide(20_002, 20_002, None).unwrap();
        coalescer.decide(1, 1, None).unwrap();
        assert_eq!(frames(&mut coalescer), [(20_002, true, vec![1, 20_002])]);
        assert_eq!(kept(&coalescer), 0);
    }

    #[test]
    fn all_who_were_not_sent_are_given_back_in_order() {
        let mut coalescer = with(6, &[5, 2]);
        coalescer.decide(4, 4, Some(Return::Nack)).unwrap();
        assert_eq!(coalescer.take_unsent(), [2, 4, 5]);
        assert_eq!((kept(&coalescer), coalescer.is_due()), (0, false));
        let refused = coalescer.decide(1, 1, None);
        assert_eq!(refused, Err((BadTag::NotOpen, 1)));
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
                prop_assert!(kept(&coalescer) <= kept_max(&coalescer));
            }
            flush(&mut coalescer, &mut broker);
            prop_assert_eq!(&broker.told, &decided);
            prop_assert_eq!(broker.unsettled.into_iter().collect::<Vec<_>>(), open);
        }
    }
}
