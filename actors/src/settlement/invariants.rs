//! S1–S13: the sentences that code, tests and documentation share.
//!
//! [`Machine::apply`](super::Machine::apply) asserts them on every edge, in production too: they
//! are a few comparisons of small numbers. S6 is about sequences, so the walk in the tests proves
//! it; on one edge it means that a life that ends says so, once. S8 is asserted where an event is
//! refused.

use std::fmt;

use crate::model::{Disposition, Publication, RetryWay};

use super::history::{Fact, History};
use super::{Effect, Final, Rules, State};

/// An invariant by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Invariant {
    /// All Settle effects of one delivery carry the same disposition, one per generation.
    S1,
    /// No Settle on entering or after a terminal state.
    S2,
    /// Never acked before what an ack needs is done and confirmed.
    S3,
    /// A permit that was taken is returned exactly once.
    S4,
    /// No handler is alive at the end unless the final says so.
    S5,
    /// Every life can end.
    S6,
    /// A terminal state never changes.
    S7,
    /// A refused pair changes nothing.
    S8,
    /// Never two different concluding replies.
    S9,
    /// A Release raises no attempt and leads to no dead letter.
    S10,
    /// Finished work is never forgotten.
    S11,
    /// Only conclusions are remembered.
    S12,
    /// A confirmed copy is never forgotten.
    S13,
}

impl Invariant {
    /// All of them, in order.
    pub const ALL: [Self; 13] = [
        Self::S1,
        Self::S2,
        Self::S3,
        Self::S4,
        Self::S5,
        Self::S6,
        Self::S7,
        Self::S8,
        Self::S9,
        Self::S10,
        Self::S11,
        Self::S12,
        Self::S13,
    ];

    /// Gives the name, `S1` to `S13`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::S1 => "S1",
            Self::S2 => "S2",
            Self::S3 => "S3",
            Self::S4 => "S4",
            Self::S5 => "S5",
            Self::S6 => "S6",
            Self::S7 => "S7",
            Self::S8 => "S8",
            Self::S9 => "S9",
            Self::S10 => "S10",
            Self::S11 => "S11",
            Self::S12 => "S12",
            Self::S13 => "S13",
        }
    }

    /// Gives the sentence.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::S1 => {
                "all Settle effects of one delivery carry the same disposition, one per generation"
            }
            Self::S2 => "no Settle on entering or after a terminal state",
            Self::S3 => {
                "never acked unless completed, discarded, known with everything its entry owes \
                 confirmed, or a copy or dead letter was confirmed first; with a reply queue never \
                 before the reply was confirmed"
            }
            Self::S4 => {
                "a permit that was taken is returned exactly once, when delivery and handler have \
                 both let go"
            }
            Self::S5 => {
                "no handler is alive in settled or lost unless the final is marked overrun or \
                 straggler"
            }
            Self::S6 => "from every state some finite sequence of events ends the life",
            Self::S7 => "a terminal state never changes and emits nothing but a late Remember",
            Self::S8 => "a refused pair leaves state and history untouched",
            Self::S9 => {
                "one process never publishes two different concluding replies for one delivery's \
                 work"
            }
            Self::S10 => {
                "a Release never raises the attempt number and never, on our side, leads to a dead \
                 letter"
            }
            Self::S11 => {
                "finished work is never forgotten: it ends acked, dead-lettered, rejected by a \
                 policy the user chose, or remembered"
            }
            Self::S12 => "only Ack, Reject and a Requeue whose copy was confirmed are remembered",
            Self::S13 => "a confirmed copy is never forgotten",
        }
    }

    fn holds(self, edge: &Edge<'_>) -> bool {
        match self {
            Self::S1 => one_disposition_one_frame(edge),
            Self::S2 => no_settle_at_the_end(edge),
            Self::S3 => no_ack_too_early(edge),
            Self::S4 => permit_returned_once(edge),
            Self::S5 => no_hidden_handler(edge),
            Self::S6 => the_end_is_said_once(edge),
            Self::S7 => the_end_is_final(edge),
            Self::S8 => true,
            Self::S9 => one_concluding_reply(edge),
            Self::S10 => release_is_innocent(edge),
            Self::S11 => finished_work_is_kept(edge),
            Self::S12 => only_conclusions_are_remembered(edge),
            Self::S13 => confirmed_copies_are_kept(edge),
        }
    }
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invariant {}: {}", self.as_str(), self.sentence())
    }
}

/// One transition as the invariants see it.
#[derive(Debug)]
pub(super) struct Edge<'a> {
    pub(super) rules: &'a Rules,
    pub(super) before: (&'a State, &'a History),
    pub(super) after: (&'a State, &'a History),
    pub(super) effects: &'a [Effect],
}

impl Edge<'_> {
    fn settles(&self) -> impl Iterator<Item = Disposition> {
        self.effects.iter().filter_map(|effect| match effect {
            Effect::Settle(disposition) => Some(*disposition),
            _ => None,
        })
    }
}

/// Names the first invariant that the edge breaks.
pub(super) fn check(edge: &Edge<'_>) -> Result<(), Invariant> {
    match Invariant::ALL
        .into_iter()
        .find(|invariant| !invariant.holds(edge))
    {
        Some(broken) => Err(broken),
        None => Ok(()),
    }
}

fn one_disposition_one_frame(edge: &Edge<'_>) -> bool {
    let history = edge.after.1;
    let mut told = edge.settles();
    history.frames() <= 1 && told.all(|disposition| history.settle() == Some(disposition))
}

fn no_settle_at_the_end(edge: &Edge<'_>) -> bool {
    let at_the_end = edge.before.0.is_terminal() || edge.after.0.is_terminal();
    !at_the_end || edge.settles().next().is_none()
}

fn no_ack_too_early(edge: &Edge<'_>) -> bool {
    let history = edge.after.1;
    let confirmed = history.confirmed();
    let copied = confirmed.has(Publication::RetryCopy);
    let covered = copied || confirmed.has_dead_letter();
    let replied = !edge.rules.reply || confirmed.has(Publication::Reply);
    let kept = !edge.rules.quarantine || confirmed.has(Publication::Quarantine);
    let paid = history
        .known_owes()
        .is_none_or(|what| confirmed.has(what) || covered);
    edge.settles().all(|disposition| match disposition {
        Disposition::Ack => {
            (history.has(Fact::Completed) && replied)
                || (history.has(Fact::Discarded) && kept)
                || (history.has(Fact::Known) && paid)
                || confirmed.has(Publication::FailureReply)
                || covered
        }
        // By ladder, a Requeue's verb is an ack.
        Disposition::Requeue { .. } => copied || edge.rules.retry_way != RetryWay::Ladder,
        Disposition::Reject { .. } | Disposition::Release => true,
    })
}

fn permit_returned_once(edge: &Edge<'_>) -> bool {
    let (state, history) = edge.after;
    let taken = u8::from(history.has(Fact::PermitTaken));
    let let_go = state.is_terminal() || matches!(state, State::Holding { .. });
    history.returns() <= taken && (!let_go || history.returns() == taken)
}

fn no_hidden_handler(edge: &Edge<'_>) -> bool {
    let (state, history) = edge.after;
    let alive = history.has(Fact::HandlerAlive);
    let marked = edge.effects.iter().all(|effect| match effect {
        Effect::Finish(Final::Settled { overrun, .. } | Final::Lost { overrun, .. }) => {
            *overrun == alive
        }
        _ => true,
    });
    marked && (!state.is_terminal() || !alive || history.has(Fact::Overrun))
}

fn the_end_is_said_once(edge: &Edge<'_>) -> bool {
    let said = edge
        .effects
        .iter()
        .filter(|effect| matches!(effect, Effect::Finish(_)));
    let ends = edge.after.0.is_terminal() && !edge.before.0.is_terminal();
    said.count() == usize::from(ends)
}

fn the_end_is_final(edge: &Edge<'_>) -> bool {
    let late = |effect: &Effect| matches!(effect, Effect::Remember { .. });
    !edge.before.0.is_terminal() || (edge.after.0 == edge.before.0 && edge.effects.iter().all(late))
}

fn one_concluding_reply(edge: &Edge<'_>) -> bool {
    let out = edge.after.1.out();
    let (reply, failure) = (Publication::Reply, Publication::FailureReply);
    let owed = edge.effects.iter().all(|effect| match effect {
        Effect::Remember { decision, .. } => match decision.publish {
            Some(Publication::Reply) => !out.has(failure),
            Some(Publication::FailureReply) => !out.has(reply),
            Some(
                Publication::RetryCopy | Publication::DeadLetter { .. } | Publication::Quarantine,
            )
            | None => true,
        },
        _ => true,
    });
    owed && !(out.has(reply) && out.has(failure))
}

fn release_is_innocent(edge: &Edge<'_>) -> bool {
    let history = edge.after.1;
    let confirmed = history.confirmed();
    let covered = confirmed.has(Publication::RetryCopy) || confirmed.has_dead_letter();
    let releases = edge
        .settles()
        .any(|disposition| disposition == Disposition::Release);
    let publishes = edge
        .effects
        .iter()
        .any(|effect| matches!(effect, Effect::Publish(_)));
    let released_before = edge.before.1.settle() == Some(Disposition::Release);
    // A copy whose confirm came after it was given up is remembered, so its original is not run.
    let raises = releases && covered && !history.has(Fact::Remembered);
    let leads_on = released_before && publishes;
    !(raises || leads_on)
}

fn finished_work_is_kept(edge: &Edge<'_>) -> bool {
    let (state, history) = edge.after;
    let told = matches!(
        state,
        State::Settled {
            disposition: Disposition::Ack | Disposition::Reject { .. }
        }
    );
    !state.is_terminal() || !history.is_finished() || told || history.has(Fact::Remembered)
}

fn only_conclusions_are_remembered(edge: &Edge<'_>) -> bool {
    let copied = edge.after.1.confirmed().has(Publication::RetryCopy);
    edge.effects.iter().all(|effect| match effect {
        Effect::Remember { decision, .. } => match decision.disposition {
            Disposition::Ack | Disposition::Reject { .. } => true,
            Disposition::Requeue { .. } => copied && decision.publish.is_none(),
            Disposition::Release => false,
        },
        _ => true,
    })
}

fn confirmed_copies_are_kept(edge: &Edge<'_>) -> bool {
    let (state, history) = edge.after;
    let told = match state {
        State::Settled { disposition } => *disposition != Disposition::Release,
        _ => false,
    };
    !state.is_terminal() || history.confirmed().is_empty() || told || history.has(Fact::Remembered)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Outcome, Receipt};
    use crate::settlement::{Decision, Event, LostCause, Machine};

    const DONE: Event = Event::HandlerReturned(Outcome::Completed);
    const LETTER: Publication = Publication::DeadLetter { trimmed: false };
    const ACKED: State = State::Settled {
        disposition: Disposition::Ack,
    };
    const LOST: State = State::Lost {
        cause: LostCause::Channel,
    };
    const TOLD: Effect = Effect::Settle(Disposition::Ack);

    fn settling(disposition: Disposition) -> State {
        State::Settling {
            disposition,
            tries: 0,
        }
    }

    fn remember(decision: Decision) -> Effect {
        Effect::Remember {
            decision,
            sent: false,
        }
    }

    /// A table that answers the last of these events like this breaks the invariant.
    fn check(broken: Invariant, events: &[Event], answer: State, effects: &[Effect]) {
        let rules = Rules {
            reply: true,
            retry_way: RetryWay::Ladder,
            ..Rules::default()
        };
        let (last, before) = events.split_last().expect("an event");
        let mut machine = Machine::new(rules);
        for event in before {
            let taken = machine.apply(*event, &mut Vec::new());
            taken.expect("these events are taken");
        }
        let history = (machine.history.after_event(&machine.state, *last)).after_effects(effects);
        let edge = Edge {
            rules: &rules,
            before: (&machine.state, &machine.history),
            after: (&answer, &history),
            effects,
        };
        assert!(!broken.holds(&edge), "{broken} sees nothing");
        assert!(super::check(&edge).is_err());
    }

    #[test]
    fn s1_sees_two_frames_and_two_dispositions() {
        let given_back = [Event::GiveBack, Event::LeaseDue];
        let release = settling(Disposition::Release);
        let again = Effect::Settle(Disposition::Release);
        check(Invariant::S1, &given_back, release, &[again]);
        check(Invariant::S1, &given_back, release, &[TOLD]);
    }

    #[test]
    fn s2_sees_a_settle_at_the_end() {
        check(Invariant::S2, &[Event::ChannelLost], LOST, &[TOLD]);
    }

    #[test]
    fn s3_sees_an_ack_before_its_reply_and_a_requeue_before_its_copy() {
        let ack = settling(Disposition::Ack);
        check(Invariant::S3, &[Event::Admitted, DONE], ack, &[TOLD]);
        check(Invariant::S3, &[Event::GiveBack], ack, &[TOLD]);
        let owed = Outcome::Known {
            disposition: Disposition::Ack,
            owes: Some(LETTER),
        };
        check(Invariant::S3, &[Event::Judged(owed)], ack, &[TOLD]);
        let failed = [Event::Admitted, Event::HandlerReturned(Outcome::Failed)];
        let requeue = Disposition::Requeue {
            after: std::time::Duration::ZERO,
        };
        let told = [Effect::Settle(requeue)];
        check(Invariant::S3, &failed, settling(requeue), &told);
    }

    #[test]
    fn s4_sees_a_permit_kept_and_a_permit_returned_twice() {
        let lost = [Event::Admitted, Event::ChannelLost];
        check(Invariant::S4, &lost, LOST, &[]);
        let twice = [Effect::ReturnPermit, Effect::ReturnPermit];
        check(Invariant::S4, &lost, LOST, &twice);
        let never_taken = [Effect::ReturnPermit];
        check(Invariant::S4, &[Event::ChannelLost], LOST, &never_taken);
    }

    #[test]
    fn s5_sees_a_handler_left_alive_and_unnamed() {
        let end = |overrun| {
            let cause = LostCause::Channel;
            [Effect::Finish(Final::Lost { cause, overrun })]
        };
        let lost = [Event::Admitted, Event::ChannelLost];
        check(Invariant::S5, &lost, LOST, &end(false));
        check(Invariant::S5, &lost, LOST, &end(true));
    }

    #[test]
    fn s6_sees_an_end_that_is_not_said() {
        check(Invariant::S6, &[Event::ChannelLost], LOST, &[]);
    }

    #[test]
    fn s7_sees_an_end_that_changes_and_an_end_that_orders() {
        let over = [Event::ChannelLost, Event::LeaseDue];
        check(Invariant::S7, &over, ACKED, &[]);
        check(Invariant::S7, &over, LOST, &[Effect::ExtendLease]);
    }

    #[test]
    fn s9_sees_a_second_concluding_reply() {
        let replied = [Event::Admitted, DONE, Event::LeaseDue];
        let second = Publication::FailureReply;
        let publishing = State::Publishing {
            what: second,
            then: Disposition::Ack,
            losing: false,
        };
        check(
            Invariant::S9,
            &replied,
            publishing,
            &[Effect::Publish(second)],
        );
        let owed = remember(Decision::after(second, Disposition::Ack));
        check(Invariant::S9, &replied, publishing, &[owed]);
    }

    #[test]
    fn s10_sees_a_release_that_dead_letters() {
        let given_back = [Event::GiveBack, Event::LeaseDue];
        let release = settling(Disposition::Release);
        check(
            Invariant::S10,
            &given_back,
            release,
            &[Effect::Publish(LETTER)],
        );
    }

    #[test]
    fn s11_sees_finished_work_forgotten() {
        let done = [Event::Admitted, Event::ChannelLost, DONE];
        check(Invariant::S11, &done, LOST, &[]);
    }

    #[test]
    fn s12_sees_a_release_and_an_unconfirmed_requeue_remembered() {
        let requeue = Disposition::Requeue {
            after: std::time::Duration::ZERO,
        };
        for disposition in [Disposition::Release, requeue] {
            let entry = remember(Decision::plain(disposition));
            check(Invariant::S12, &[Event::ChannelLost], LOST, &[entry]);
        }
    }

    #[test]
    fn s13_sees_a_confirmed_copy_forgotten() {
        let failed = Event::HandlerReturned(Outcome::Failed);
        let copied = [
            Event::Admitted,
            failed,
            Event::PublishConfirmed,
            Event::SettleDone(Receipt::Sent),
        ];
        let released = State::Settled {
            disposition: Disposition::Release,
        };
        check(Invariant::S13, &copied, released, &[]);
        check(Invariant::S13, &copied, LOST, &[]);
    }

    #[test]
    fn a_broken_invariant_names_itself() {
        for (number, invariant) in (1..).zip(Invariant::ALL) {
            assert!(
                invariant
                    .to_string()
                    .starts_with(&format!("invariant S{number}: "))
            );
        }
    }
}
