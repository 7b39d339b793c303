//! Publishes that wait for their confirm: pure.
//!
//! The broker confirms an unroutable message like any other, and returns it before that. The client
//! library does not say which confirm a return belongs to: it hands the oldest return that waits to
//! whichever confirm it resolves next, and of a confirm for several messages it resolves one after
//! another in no order. So a return is matched by message id and queue, and a confirm is believed
//! when two things hold:
//!
//! - all confirms that were resolved before it have been seen too, with the returns they took along;
//! - each return that has been seen belongs to a confirm that has been seen.
//!
//! For a message's return is there before its confirm is resolved, and each confirm that is resolved
//! while returns wait takes one. So, since returns last began to wait, as many returns were taken
//! as confirms were resolved; if the former all belong to the latter, none of these confirms' own
//! returns can still wait. Until then the verdicts are held.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lapin::types::ShortString;
use tokio::time::Instant;

/// What came of a publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The broker has it.
    Confirmed,
    /// No queue took it.
    Returned,
    /// A queue did not take it.
    Nacked,
}

#[derive(Debug)]
struct Entry<R> {
    /// Who asked; `None` once it was told that nobody knows.
    reply: Option<R>,
    id: ShortString,
    queue: ShortString,
    due: Instant,
}

/// What is under way on one channel, in the order of sending.
#[derive(Debug)]
pub(super) struct UnderWay<R> {
    entries: BTreeMap<u64, Entry<R>>,
    next: u64,
    /// Whose confirm was seen; `true`: an ack.
    held: BTreeMap<u64, bool>,
    /// Who was returned, or may have been: the same id can be under way to the same queue twice.
    returned: BTreeSet<u64>,
    /// How many have been told that nobody knows, and were not heard of since.
    late: usize,
    /// The newest publish that is certain to have been sent before the last confirm came.
    heard_after: Option<u64>,
}

impl<R> UnderWay<R> {
    pub(super) fn new() -> Self {
        Self {
            entries: BTreeMap::new(),
            next: 0,
            held: BTreeMap::new(),
            returned: BTreeSet::new(),
            late: 0,
            heard_after: None,
        }
    }

    /// Counts all whose confirm has not come or is not believed yet.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Counts those who still wait for an answer.
    pub(super) fn waiting(&self) -> usize {
        self.entries.len() - self.late
    }

    /// Counts those who were answered before their confirm came.
    pub(super) fn late(&self) -> usize {
        self.late
    }

    /// A publish is sent; gives its number.
    pub(super) fn sent(
        &mut self,
        id: ShortString,
        queue: ShortString,
        due: Instant,
        reply: R,
    ) -> u64 {
        let number = self.next;
        self.next += 1;
        let entry = Entry {
            reply: Some(reply),
            id,
            queue,
            due,
        };
        self.entries.insert(number, entry);
        number
    }

    /// A confirm took a return along.
    pub(super) fn returned(&mut self, id: &ShortString, queue: &ShortString) {
        // Returns are rare, and what is under way is bounded by the window.
        let alike = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.id == *id && entry.queue == *queue)
            .map(|(number, _)| *number);
        self.returned.extend(alike);
    }

    /// A confirm was seen; `acked` is false for a nack.
    pub(super) fn resolved(&mut self, number: u64, acked: bool) {
        if self.entries.contains_key(&number) {
            self.held.insert(number, acked);
        }
        self.heard_after = self.next.checked_sub(1);
    }

    /// Gives the verdicts that can be believed, each with its queue, oldest first. To be asked only
    /// when all confirms that are resolved have been seen.
    pub(super) fn take_verdicts(&mut self) -> Vec<(Option<R>, ShortString, Verdict)> {
        if !self
            .returned
            .iter()
            .all(|number| self.held.contains_key(number))
        {
            return Vec::new();
        }
        let held = std::mem::take(&mut self.held);
        let returned = std::mem::take(&mut self.returned);
        let mut verdicts = Vec::with_capacity(held.len());
        for (number, acked) in held {
            let Some(entry) = self.entries.remove(&number) else {
                continue;
            };
            if entry.reply.is_none() {
                self.late -= 1;
            }
            let verdict = match (returned.contains(&number), acked) {
                (true, _) => Verdict::Returned,
                (false, true) => Verdict::Confirmed,
                (false, false) => Verdict::Nacked,
            };
            verdicts.push((entry.reply, entry.queue, verdict));
        }
        verdicts
    }

    /// Gives when the next one that waits is overdue.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let mut waiting = self.entries.values().filter(|entry| entry.reply.is_some());
        waiting.next().map(|entry| entry.due)
    }

    /// Gives all who are overdue, and whether the channel has not been heard of since the first of
    /// them was sent.
    pub(super) fn take_overdue(&mut self, now: Instant) -> (Vec<R>, bool) {
        let mut silent = false;
        let mut overdue = Vec::new();
        for (number, entry) in &mut self.entries {
            if entry.due > now {
                break;
            }
            if let Some(reply) = entry.reply.take() {
                silent |= self.heard_after.is_none_or(|heard| heard < *number);
                overdue.push(reply);
            }
        }
        self.late += overdue.len();
        (overdue, silent)
    }

    /// The channel is gone: gives all who still wait.
    pub(super) fn take_all(&mut self) -> Vec<R> {
        let entries = std::mem::take(&mut self.entries);
        (self.late, self.heard_after) = (0, None);
        self.held.clear();
        self.returned.clear();
        let replies = entries.into_values().filter_map(|entry| entry.reply);
        replies.collect()
    }
}

/// Gives when a publish that is sent now is overdue.
pub(super) fn due(now: Instant, limit: Duration) -> Instant {
    now.checked_add(limit).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    fn text(text: &str) -> ShortString {
        ShortString::from(text)
    }

    fn later(seconds: u64) -> Instant {
        static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        *START.get_or_init(Instant::now) + Duration::from_secs(seconds)
    }

    fn verdicts(under_way: &mut UnderWay<u64>) -> Vec<(u64, Verdict)> {
        let verdicts = under_way.take_verdicts().into_iter();
        verdicts
            .filter_map(|(reply, _, verdict)| Some((reply?, verdict)))
            .collect()
    }

    #[test]
    fn a_confirm_that_took_another_s_return_along_is_held_until_that_one_s_confirm() {
        let mut under_way = UnderWay::new();
        let one = under_way.sent(text("a"), text("gone"), later(1), 1);
        let two = under_way.sent(text("b"), text("gone"), later(1), 2);
        under_way.resolved(two, true);
        under_way.returned(&text("a"), &text("gone"));
        assert_eq!(verdicts(&mut under_way), []);
        under_way.resolved(one, true);
        under_way.returned(&text("b"), &text("gone"));
        let seen = verdicts(&mut under_way);
        assert_eq!(seen, [(1, Verdict::Returned), (2, Verdict::Returned)]);
        assert_eq!(under_way.len(), 0);
    }

    #[test]
    fn one_id_to_two_queues_is_two_publishes() {
        let mut under_way = UnderWay::new();
        let one = under_way.sent(text("a"), text("there"), later(1), 1);
        let two = under_way.sent(text("a"), text("gone"), later(1), 2);
        under_way.resolved(one, true);
        under_way.returned(&text("a"), &text("gone"));
        under_way.resolved(two, true);
        let seen = verdicts(&mut under_way);
        assert_eq!(seen, [(1, Verdict::Confirmed), (2, Verdict::Returned)]);
    }

    #[test]
    fn one_id_twice_to_one_queue_is_never_believed_when_one_was_returned() {
        let mut under_way = UnderWay::new();
        let one = under_way.sent(text("a"), text("gone"), later(1), 1);
        let two = under_way.sent(text("a"), text("gone"), later(1), 2);
        under_way.resolved(one, true);
        under_way.returned(&text("a"), &text("gone"));
        assert_eq!(verdicts(&mut under_way), []);
        under_way.resolved(two, true);
        let seen = verdicts(&mut under_way);
        assert_eq!(seen, [(1, Verdict::Returned), (2, Verdict::Returned)]);
    }

    #[test]
    fn what_is_overdue_is_answered_once_and_its_late_confirm_is_nobody_s() {
        let mut under_way = UnderWay::new();
        let slow = under_way.sent(text("a"), text("slow"), later(1), 1);
        let quick = under_way.sent(text("b"), text("quick"), later(2), 2);
        assert_eq!(under_way.next_due(), Some(later(1)));
        under_way.resolved(quick, true);
        assert_eq!(verdicts(&mut under_way), [(2, Verdict::Confirmed)]);
        assert_eq!(under_way.take_overdue(later(1)), (vec![1], false));
        assert_eq!((under_way.waiting(), under_way.late()), (0, 1));
        assert_eq!(under_way.next_due(), None);
        under_way.resolved(slow, true);
        assert_eq!(verdicts(&mut under_way), []);
        assert_eq!((under_way.len(), under_way.late()), (0, 0));
    }

    #[test]
    fn a_channel_that_says_nothing_after_a_publish_is_silent() {
        let mut under_way = UnderWay::new();
        let one = under_way.sent(text("a"), text("q"), later(1), 1);
        under_way.resolved(one, true);
        verdicts(&mut under_way);
        under_way.sent(text("b"), text("q"), later(2), 2);
        under_way.sent(text("c"), text("q"), later(3), 3);
        assert_eq!(under_way.take_overdue(later(2)), (vec![2], true));
        assert_eq!(under_way.take_all(), [3]);
        assert_eq!((under_way.len(), under_way.waiting()), (0, 0));
    }

    /// What a broker and the client library do, as their sources tell: the broker returns before it
    /// confirms; the client gives the oldest return to whichever confirm it resolves next; we see
    /// some confirms at a time, in any order among themselves.
    #[derive(Debug, Clone)]
    struct Play {
        returned: Vec<bool>,
        /// How many messages each confirm frame covers.
        frames: Vec<usize>,
        /// Random order of all there is to order.
        order: Vec<u16>,
    }

    fn plays() -> impl Strategy<Value = Play> {
        (1..40_usize).prop_flat_map(|count| {
            let returned = prop::collection::vec(any::<bool>(), count);
            let frames = prop::collection::vec(1..8_usize, count);
            let order = prop::collection::vec(any::<u16>(), 3 * count);
            (returned, frames, order).prop_map(|(returned, frames, order)| Play {
                returned,
                frames,
                order,
            })
        })
    }

    proptest! {
        #[test]
        fn no_order_of_confirms_makes_a_returned_message_a_published_one(play in plays()) {
            let count = play.returned.len();
            let mut under_way = UnderWay::new();
            for at in 0..count {
                under_way.sent(text(&at.to_string()), text("q"), later(1), at as u64);
            }
            // Frames, each with the confirms that the client resolves for it and the returns they took.
            let mut waiting = VecDeque::new();
            let (mut seen, mut answers) = (Vec::new(), BTreeMap::new());
            let mut sequence: Vec<usize> = (0..count).collect();
            sequence.sort_by_key(|at| play.order[count + at]);
            let mut frames = Vec::new();
            for frame in play.frames {
                let rest = sequence.split_off(frame.min(sequence.len()));
                frames.push(std::mem::replace(&mut sequence, rest));
            }
            for (at, frame) in frames.iter().enumerate() {
                // Returns may be there long before their confirm.
                let ahead = frames.get(at + 1).into_iter().flatten();
                let there = frame.iter().filter(|_| at == 0).chain(ahead);
                waiting.extend(there.copied().filter(|at| play.returned[*at]));
                let mut covered = frame.clone();
                covered.sort_by_key(|at| play.order[*at]);
                seen.extend(covered.into_iter().map(|at| (at, waiting.pop_front())));
            }
            let mut sizes = play.order.iter().map(|size| usize::from(size % 5) + 1).cycle();
            while !seen.is_empty() {
                let size = sizes.next().unwrap_or(1).min(seen.len());
                let mut batch: Vec<_> = seen.drain(..size).collect();
                batch.sort_by_key(|(at, _)| play.order[2 * count + at]);
                for (at, carried) in batch {
                    if let Some(carried) = carried {
                        under_way.returned(&text(&carried.to_string()), &text("q"));
                    }
                    under_way.resolved(at as u64, true);
                }
                answers.extend(verdicts(&mut under_way));
            }
            for (at, returned) in play.returned.iter().enumerate() {
                let verdict = if *returned { Verdict::Returned } else { Verdict::Confirmed };
                prop_assert_eq!(answers.get(&(at as u64)), Some(&verdict), "{}", at);
            }
            prop_assert_eq!(under_way.len(), 0);
        }
    }
}
