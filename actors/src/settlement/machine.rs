//! The table: one `match (state, event)` with every arm written out.
//!
//! *enact(d)* goes to Publishing where `d` publishes, to Holding where it waits here, else to
//! Settling. *enact(Lose{first})* remembers `first` if it is an Ack or a Reject, then goes to Lost.
//! `refuse` leaves everything as it was; `stay` and `absorb` take the event and change no state.
//!
//! | event ↓ / state → | Received | Running | Orphaned | Aborting{then} | Publishing{what, then, losing} | Holding | Settling{d} | Settled, Lost |
//! |---|---|---|---|---|---|---|---|---|
//! | Judged(o) | enact(decide(o)) | refuse | refuse | refuse | refuse | refuse | refuse | refuse |
//! | Admitted | → Running; StartHandler, Arm(deadline) | refuse | refuse | refuse | refuse | refuse | stay | absorb |
//! | HandlerReturned(o) | refuse | enact(decide(o)) | enact(Lose{decide(o)}) | Completed: enact(decide), or enact(Lose{decide}) if losing; else enact(then) | stay | Completed: enact(decide(o)); else stay | stay | absorb; Remember if Completed |
//! | HandlerGone | refuse | enact(decide(Gone)) | enact(Lose{none}) | enact(then) | stay | stay | stay | absorb |
//! | HandlerOverdue | refuse | → Aborting{decide(TimedOut)}; AbortHandler, Arm(grace) | → Aborting{Lose{decide(TimedOut)}}; likewise | stay | stay | stay | stay | absorb |
//! | GiveBack | → Settling{Release} | refuse | refuse | refuse | refuse | refuse | stay | absorb |
//! | CancelAsked | enact(as asked) | → Aborting{as asked}; AbortHandler, Arm(grace) | → Aborting{Lose{none}}; likewise | stay | stay | enact(as asked) | stay | absorb |
//! | AbortOverdue | refuse | refuse | refuse | enact(then), *overrun* | stay | stay | stay | absorb |
//! | PublishConfirmed | refuse | refuse | refuse | refuse | → Settling{then}; losing: Remember, → Lost | refuse | stay | absorb |
//! | PublishFailed(Outage) | refuse | refuse | refuse | refuse | stay; PauseIntake, Arm(republish); losing: Remember, → Lost | refuse | stay | absorb |
//! | PublishFailed(Refused) | refuse | refuse | refuse | refuse | → Publishing{dead letter, trimmed}, or → Settling{Reject}, or Park; losing: Remember, → Lost | refuse | stay | absorb |
//! | PublishGivenUp | refuse | refuse | refuse | refuse | Remember, → Settling{Release}; losing: Remember, → Lost | refuse | stay | absorb |
//! | DrainBegan | → Settling{Release} | stay | stay | stay | stay | → Settling{Release} | stay | absorb |
//! | DrainForced | → Settling{Release} | → Aborting{Release}; AbortHandler, Arm(grace) | → Aborting{Lose{none}}; likewise | stay | Arm(give-up, forced) | → Settling{Release} | stay | absorb |
//! | HoldDue | refuse | refuse | refuse | refuse | refuse | → Settling{Requeue} | stay | absorb |
//! | LeaseDue | ExtendLease | ExtendLease | stay | ExtendLease unless losing | ExtendLease unless losing | ExtendLease | stay | absorb |
//! | LeaseLost, ChannelLost | → Lost | finish: → Orphaned; abort: → Aborting{Lose{none}}; AbortHandler, Arm(grace) | stay | `then` := Lose{then} | losing := true | → Lost | Remember; → Lost | absorb |
//! | Adopted | refuse | refuse | → Running; TakeSettler | refuse | losing := false; TakeSettler; else refuse | refuse | refuse | refuse |
//! | SettleDone(receipt) | refuse | refuse | refuse | refuse | refuse | refuse | → Settled; Remember what was only Sent | absorb |
//! | SettleFailed(NotSent) | refuse | refuse | refuse | refuse | refuse | refuse | Settle again; the last time Remember, ReopenSource, → Lost | absorb |
//! | SettleFailed(Gone, Unknown) | refuse | refuse | refuse | refuse | refuse | refuse | Remember, ReopenSource, → Lost | absorb |
//!
//! Where the table leaves a choice, the invariants make it:
//!
//! - **A late Completed** (after an overrun) that comes while Publishing or Settling is kept, and
//!   remembered on entering the terminal state unless the work was concluded otherwise; one that
//!   comes after the end is remembered on the same condition. Concluded otherwise means: acked or
//!   rejected, or something else is remembered that may have been published or settled (S9, S11,
//!   S13). A second word of the same handler is never one.
//! - **A late PublishConfirmed** of a publish that was given up is remembered as published (S13).
//! - **A dead letter refused whole** goes out trimmed, once; only a trimmed one falls to
//!   `on-refused`.
//! - **A reply or copy replaced by a dead letter** is rejected afterwards, no longer acked or
//!   requeued (S3); the reason of an earlier Reject is kept.
//! - **A retry that would start to wait here while draining** goes back at once, as one that waits
//!   when the drain begins.
//! - **Holding** settles a Requeue without a delay: the delay was waited for here.

use crate::model::{
    Disposition, OnLeaseLost, OnRefused, Outcome, Publication, Receipt, RejectReason,
};

use super::history::{Fact, History};
use super::invariants::{self, Edge, Invariant};
use super::{
    CancelKind, Decision, Effect, Event, Final, LostCause, PublishFailure, Rules, SettleFailure,
    State, Then, Timer, decide,
};

/// How often a settlement is tried that certainly was not sent.
pub const SETTLE_TRIES_MAX: u8 = 3;

/// A delivery's settlement: its state, and what must be known to keep the invariants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Machine {
    pub(super) rules: Rules,
    pub(super) state: State,
    pub(super) history: History,
}

/// An event that cannot happen in this state; state and history are untouched (S8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{event:?} is refused in state {}", state.as_str())]
pub struct Refused {
    /// The state that refused.
    pub state: State,
    /// What was refused.
    pub event: Event,
}

impl Machine {
    /// Starts a life in `Received`.
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            state: State::Received,
            history: History::default(),
        }
    }

    /// Gives the state.
    pub fn state(&self) -> State {
        self.state
    }

    /// Gives the rules.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Tells whether a retry copy or a dead letter is confirmed. A transport whose verb for
    /// Requeue or Reject is an ack may only use that verb if it is (S3).
    pub fn is_covered(&self) -> bool {
        let confirmed = self.history.confirmed();
        confirmed.has(Publication::RetryCopy) || confirmed.has_dead_letter()
    }

    /// Tells whether a publish was refused for good and waits here for an operator.
    pub fn is_parked(&self) -> bool {
        self.history.has(Fact::Parked) && matches!(self.state, State::Publishing { .. })
    }

    /// Tells whether the handler outlived its grace.
    pub fn is_overrun(&self) -> bool {
        self.history.has(Fact::Overrun)
    }

    /// Tells whether the delivery still holds its share of a permit.
    pub fn holds_permit(&self) -> bool {
        self.history.holds_share()
    }

    /// Gives what must be remembered if the delivery's actor dies now: the decision that stands,
    /// by the ledger's rule. `None` for unfinished work, and after the end.
    pub fn bequest(&self) -> Option<Effect> {
        let standing = match self.state {
            State::Publishing { what, then, .. } => Some(Decision::after(what, then)),
            State::Settling { disposition, .. } => Some(Decision::plain(disposition)),
            State::Aborting {
                then: Then::Enact(decision),
            } => Some(decision),
            State::Aborting {
                then: Then::Lose { first },
            } => first,
            State::Received
            | State::Running
            | State::Orphaned
            | State::Holding { .. }
            | State::Settled { .. }
            | State::Lost { .. } => None,
        };
        match self.state.is_terminal() {
            true => None,
            false => last_will(&self.rules, &self.history, standing),
        }
    }

    /// Applies an event; the effects are appended to `effects` in the order to perform them.
    ///
    /// # Errors
    /// [`Refused`] where the table says refuse: nothing changed and nothing was appended.
    ///
    /// # Panics
    /// With the invariant's name, if the table itself breaks one: a bug here. Nothing changed and
    /// nothing was appended then either.
    pub fn apply(&mut self, event: Event, effects: &mut Vec<Effect>) -> Result<(), Refused> {
        let start = effects.len();
        let mut turn = Turn {
            rules: &self.rules,
            history: self.history.after_event(&self.state, event),
            spoke: self.history.has(Fact::HandlerAlive),
            effects,
        };
        let Some(state) = turn.step(self.state, event) else {
            assert!(effects.len() == start, "{}", Invariant::S8);
            return Err(Refused {
                state: self.state,
                event,
            });
        };
        let history = turn
            .history
            .after_effects(&effects[start..])
            .forgotten_in(&state);
        let edge = Edge {
            rules: &self.rules,
            before: (&self.state, &self.history),
            after: (&state, &history),
            effects: &effects[start..],
        };
        if let Err(broken) = invariants::check(&edge) {
            effects.truncate(start);
            panic!("{broken} (in {:?} on {event:?})", self.state);
        }
        self.state = state;
        self.history = history;
        Ok(())
    }
}

/// One application of an event: collects effects, gives the next state.
struct Turn<'a> {
    rules: &'a Rules,
    /// With the event noted, and no effect.
    pub(super) history: History,
    /// Whether the handler was alive when the event came, so that a word of it is its first.
    spoke: bool,
    effects: &'a mut Vec<Effect>,
}

impl Turn<'_> {
    /// The table. `None` refuses.
    fn step(&mut self, state: State, event: Event) -> Option<State> {
        use State::{
            Aborting, Holding, Lost, Orphaned, Publishing, Received, Running, Settled, Settling,
        };
        let next = match (state, event) {
            (Received, Event::Judged(outcome)) => self.conclude(outcome),
            (
                Running
                | Orphaned
                | Aborting { .. }
                | Publishing { .. }
                | Holding { .. }
                | Settling { .. }
                | Settled { .. }
                | Lost { .. },
                Event::Judged(_),
            ) => return None,

            (Received, Event::Admitted) => self.start(),
            (
                Running | Orphaned | Aborting { .. } | Publishing { .. } | Holding { .. },
                Event::Admitted,
            ) => return None,
            (Settling { .. } | Settled { .. } | Lost { .. }, Event::Admitted) => state,

            (Received, Event::HandlerReturned(_)) => return None,
            (Running, Event::HandlerReturned(outcome)) => self.conclude(outcome),
            (Orphaned, Event::HandlerReturned(outcome)) => {
                self.lose(Some(decide(outcome, self.rules)))
            }
            (Aborting { then }, Event::HandlerReturned(outcome)) => self.stopped(then, outcome),
            (Publishing { .. } | Settling { .. }, Event::HandlerReturned(_)) => state,
            (Holding { .. }, Event::HandlerReturned(outcome)) => self.held_word(state, outcome),
            (Settled { .. } | Lost { .. }, Event::HandlerReturned(outcome)) => {
                self.last_word(state, outcome)
            }

            (Received, Event::HandlerGone) => return None,
            (Running, Event::HandlerGone) => self.conclude(Outcome::Gone),
            (Orphaned, Event::HandlerGone) => self.lose(None),
            (Aborting { then }, Event::HandlerGone) => self.enact(then),
            (
                Publishing { .. } | Holding { .. } | Settling { .. } | Settled { .. } | Lost { .. },
                Event::HandlerGone,
            ) => state,

            (Received, Event::HandlerOverdue) => return None,
            (Running, Event::HandlerOverdue) => {
                self.abort(Then::Enact(decide(Outcome::TimedOut, self.rules)))
            }
            (Orphaned, Event::HandlerOverdue) => {
                let first = Some(decide(Outcome::TimedOut, self.rules));
                self.abort(Then::Lose { first })
            }
            (
                Aborting { .. }
                | Publishing { .. }
                | Holding { .. }
                | Settling { .. }
                | Settled { .. }
                | Lost { .. },
                Event::HandlerOverdue,
            ) => state,

            (Received, Event::GiveBack) => self.settle(Disposition::Release),
            (
                Running | Orphaned | Aborting { .. } | Publishing { .. } | Holding { .. },
                Event::GiveBack,
            ) => return None,
            (Settling { .. } | Settled { .. } | Lost { .. }, Event::GiveBack) => state,

            (Received | Holding { .. }, Event::CancelAsked(kind)) => {
                self.carry_out(as_asked(kind, self.rules))
            }
            (Running, Event::CancelAsked(kind)) => {
                self.abort(Then::Enact(as_asked(kind, self.rules)))
            }
            (Orphaned, Event::CancelAsked(_)) => self.abort(Then::Lose { first: None }),
            (
                Aborting { .. }
                | Publishing { .. }
                | Settling { .. }
                | Settled { .. }
                | Lost { .. },
                Event::CancelAsked(_),
            ) => state,

            (Received | Running | Orphaned, Event::AbortOverdue) => return None,
            (Aborting { then }, Event::AbortOverdue) => self.enact(then),
            (
                Publishing { .. } | Holding { .. } | Settling { .. } | Settled { .. } | Lost { .. },
                Event::AbortOverdue,
            ) => state,

            (
                Received | Running | Orphaned | Aborting { .. } | Holding { .. },
                Event::PublishConfirmed | Event::PublishFailed(_) | Event::PublishGivenUp,
            ) => return None,
            (Publishing { then, losing, .. }, Event::PublishConfirmed) => {
                self.published(then, losing)
            }
            (Settling { .. } | Settled { .. } | Lost { .. }, Event::PublishConfirmed) => {
                self.published_late();
                state
            }
            (
                Publishing {
                    what, then, losing, ..
                },
                Event::PublishFailed(_) | Event::PublishGivenUp,
            ) if losing => self.lose_with(Decision::after(what, then)),
            (Publishing { .. }, Event::PublishFailed(PublishFailure::Outage)) => {
                self.effects.push(Effect::PauseIntake);
                self.effects.push(Effect::Arm(Timer::Republish));
                state
            }
            (Publishing { what, then, .. }, Event::PublishFailed(PublishFailure::Refused)) => {
                self.refused_for_good(what, then)
            }
            (Publishing { what, then, .. }, Event::PublishGivenUp) => {
                self.remember(Decision::after(what, then), false);
                self.settle(Disposition::Release)
            }
            (
                Settling { .. } | Settled { .. } | Lost { .. },
                Event::PublishFailed(_) | Event::PublishGivenUp,
            ) => state,

            (Received | Holding { .. }, Event::DrainBegan | Event::DrainForced) => {
                self.settle(Disposition::Release)
            }
            (
                Running
                | Orphaned
                | Aborting { .. }
                | Publishing { .. }
                | Settling { .. }
                | Settled { .. }
                | Lost { .. },
                Event::DrainBegan,
            ) => state,
            (Running, Event::DrainForced) => self.abort(Then::Enact(Decision::RELEASE)),
            (Orphaned, Event::DrainForced) => self.abort(Then::Lose { first: None }),
            (Publishing { .. }, Event::DrainForced) => {
                self.effects.push(Effect::Arm(Timer::PublishGiveUpForced));
                state
            }
            (
                Aborting { .. } | Settling { .. } | Settled { .. } | Lost { .. },
                Event::DrainForced,
            ) => state,

            (
                Received | Running | Orphaned | Aborting { .. } | Publishing { .. },
                Event::HoldDue,
            ) => return None,
            (Holding { then }, Event::HoldDue) => self.settle(then),
            (Settling { .. } | Settled { .. } | Lost { .. }, Event::HoldDue) => state,

            (Received | Running | Holding { .. }, Event::LeaseDue)
            | (
                Aborting {
                    then: Then::Enact(_),
                }
                | Publishing { losing: false, .. },
                Event::LeaseDue,
            ) => {
                self.effects.push(Effect::ExtendLease);
                state
            }
            (
                Orphaned
                | Aborting {
                    then: Then::Lose { .. },
                }
                | Publishing { losing: true, .. }
                | Settling { .. }
                | Settled { .. }
                | Lost { .. },
                Event::LeaseDue,
            ) => state,

            (Received | Holding { .. }, Event::LeaseLost | Event::ChannelLost) => self.lose(None),
            (Running, Event::LeaseLost) => self.orphan(self.rules.on_lease_lost),
            (Running, Event::ChannelLost) => self.orphan(self.rules.on_channel_lost),
            (Aborting { then }, Event::LeaseLost | Event::ChannelLost) => Aborting {
                then: match then {
                    Then::Enact(decision) => Then::Lose {
                        first: Some(decision),
                    },
                    Then::Lose { first } => Then::Lose { first },
                },
            },
            (Publishing { what, then, .. }, Event::LeaseLost | Event::ChannelLost) => Publishing {
                what,
                then,
                losing: true,
            },
            (Settling { disposition, .. }, Event::LeaseLost | Event::ChannelLost) => {
                self.unsettled(disposition, self.history.cause())
            }
            (Orphaned | Settled { .. } | Lost { .. }, Event::LeaseLost | Event::ChannelLost) => {
                state
            }

            (Orphaned, Event::Adopted) => {
                self.effects.push(Effect::TakeSettler);
                Running
            }
            (
                Publishing {
                    what,
                    then,
                    losing: true,
                },
                Event::Adopted,
            ) => {
                self.effects.push(Effect::TakeSettler);
                Publishing {
                    what,
                    then,
                    losing: false,
                }
            }
            (
                Received
                | Running
                | Aborting { .. }
                | Publishing { losing: false, .. }
                | Holding { .. }
                | Settling { .. }
                | Settled { .. }
                | Lost { .. },
                Event::Adopted,
            ) => return None,

            (
                Received
                | Running
                | Orphaned
                | Aborting { .. }
                | Publishing { .. }
                | Holding { .. },
                Event::SettleDone(_) | Event::SettleFailed(_),
            ) => return None,
            (Settling { disposition, .. }, Event::SettleDone(receipt)) => {
                self.settled(disposition, receipt)
            }
            (Settling { disposition, tries }, Event::SettleFailed(SettleFailure::NotSent)) => {
                self.not_sent(disposition, tries)
            }
            (Settling { disposition, .. }, Event::SettleFailed(SettleFailure::Gone)) => {
                self.effects_of_failed_settle(disposition, LostCause::Stale)
            }
            (Settling { disposition, .. }, Event::SettleFailed(SettleFailure::Unknown)) => {
                self.effects_of_failed_settle(disposition, LostCause::Unknown)
            }
            (Settled { .. } | Lost { .. }, Event::SettleDone(_) | Event::SettleFailed(_)) => state,
        };
        Some(next)
    }

    fn start(&mut self) -> State {
        self.effects.push(Effect::StartHandler);
        self.effects.push(Effect::Arm(Timer::Deadline));
        State::Running
    }

    /// Decides from an outcome and carries it out.
    fn conclude(&mut self, outcome: Outcome) -> State {
        if outcome == Outcome::Unavailable {
            self.effects.push(Effect::PauseIntake);
        }
        self.carry_out(decide(outcome, self.rules))
    }

    fn enact(&mut self, then: Then) -> State {
        match then {
            Then::Enact(decision) => self.carry_out(decision),
            Then::Lose { first } => self.lose(first),
        }
    }

    fn carry_out(&mut self, decision: Decision) -> State {
        if let Some(what) = decision.publish {
            self.publish(what, decision.disposition)
        } else if decision.hold && self.history.has(Fact::Draining) {
            self.settle(Disposition::Release)
        } else if decision.hold {
            self.hold(decision.disposition)
        } else {
            self.settle(decision.disposition)
        }
    }

    fn publish(&mut self, what: Publication, then: Disposition) -> State {
        let forced = self.history.has(Fact::Forced);
        self.effects.push(Effect::Arm(match forced {
            true => Timer::PublishGiveUpForced,
            false => Timer::PublishGiveUp,
        }));
        self.effects.push(Effect::Publish(what));
        State::Publishing {
            what,
            then,
            losing: false,
        }
    }

    fn hold(&mut self, disposition: Disposition) -> State {
        self.return_permit();
        self.effects.push(Effect::Arm(Timer::Hold));
        let then = match disposition {
            Disposition::Requeue { .. } => Disposition::Requeue {
                after: std::time::Duration::ZERO,
            },
            Disposition::Ack | Disposition::Release | Disposition::Reject { .. } => disposition,
        };
        State::Holding { then }
    }

    fn settle(&mut self, disposition: Disposition) -> State {
        self.effects.push(Effect::Settle(disposition));
        State::Settling {
            disposition,
            tries: 0,
        }
    }

    fn abort(&mut self, then: Then) -> State {
        self.effects.push(Effect::AbortHandler);
        self.effects.push(Effect::Arm(Timer::AbortGrace));
        State::Aborting { then }
    }

    fn orphan(&mut self, policy: OnLeaseLost) -> State {
        match policy {
            OnLeaseLost::Finish => State::Orphaned,
            OnLeaseLost::Abort => self.abort(Then::Lose { first: None }),
        }
    }

    /// An aborted handler returned a word: Completed stands, all else yields to what was decided.
    fn stopped(&mut self, then: Then, outcome: Outcome) -> State {
        match (outcome, then) {
            (Outcome::Completed, Then::Enact(_)) => self.conclude(outcome),
            (Outcome::Completed, Then::Lose { .. }) => self.lose(Some(decide(outcome, self.rules))),
            (
                Outcome::Failed
                | Outcome::Rejected(_)
                | Outcome::Panicked
                | Outcome::TimedOut
                | Outcome::Gone
                | Outcome::Unavailable
                | Outcome::Discarded
                | Outcome::Known { .. },
                then,
            ) => self.enact(then),
        }
    }

    fn held_word(&mut self, state: State, outcome: Outcome) -> State {
        if self.spoke && outcome == Outcome::Completed {
            self.conclude(outcome)
        } else {
            state
        }
    }

    /// A word after the end: remembered if nothing else concluded the work.
    fn last_word(&mut self, state: State, outcome: Outcome) -> State {
        let concluded = matches!(
            state,
            State::Settled {
                disposition: Disposition::Ack | Disposition::Reject { .. }
            }
        );
        let replaceable = !self.history.has(Fact::Remembered) || is_untold(&self.history);
        if self.spoke && outcome == Outcome::Completed && !concluded && replaceable {
            let sent = self.history.has(Fact::ConclusionSent);
            self.remember(decide(outcome, self.rules), sent);
        }
        state
    }

    fn published(&mut self, then: Disposition, losing: bool) -> State {
        if losing {
            self.lose_with(Decision::plain(then))
        } else {
            self.settle(then)
        }
    }

    /// The answer to a publish that was given up: what is confirmed must not be forgotten.
    fn published_late(&mut self) {
        let Some((what, then)) = self.history.given_up() else {
            return;
        };
        self.history.answered();
        let completed_since = what == Publication::RetryCopy && self.history.has(Fact::Remembered);
        if !completed_since {
            self.remember(Decision::plain(then), false);
        }
    }

    fn refused_for_good(&mut self, what: Publication, then: Disposition) -> State {
        let rejected = match then {
            Disposition::Reject { .. } => then,
            Disposition::Ack | Disposition::Requeue { .. } | Disposition::Release => {
                Disposition::Reject {
                    reason: RejectReason::PublishRefused,
                }
            }
        };
        let letter = match what {
            Publication::DeadLetter { trimmed } => !trimmed,
            Publication::Reply
            | Publication::FailureReply
            | Publication::RetryCopy
            | Publication::Quarantine => self.rules.dead_letter,
        };
        match (letter, self.rules.on_refused) {
            (true, OnRefused::Reject | OnRefused::Park) => {
                self.publish(Publication::DeadLetter { trimmed: true }, rejected)
            }
            (false, OnRefused::Reject) => self.settle(rejected),
            (false, OnRefused::Park) => self.park(what, then),
        }
    }

    fn park(&mut self, what: Publication, then: Disposition) -> State {
        if !self.history.has(Fact::Parked) {
            self.effects.push(Effect::Park);
            self.return_permit();
        }
        self.effects.push(Effect::Arm(Timer::RepublishParked));
        State::Publishing {
            what,
            then,
            losing: false,
        }
    }

    fn settled(&mut self, disposition: Disposition, receipt: Receipt) -> State {
        let proven = match receipt {
            Receipt::Confirmed => None,
            Receipt::Sent => Some(Decision::plain(disposition)),
        };
        let concluded = match disposition {
            Disposition::Ack | Disposition::Reject { .. } => true,
            Disposition::Requeue { .. } | Disposition::Release => false,
        };
        if proven.is_some() || !concluded {
            self.leave(proven);
        }
        self.return_permit();
        self.effects.push(Effect::Finish(Final::Settled {
            disposition,
            overrun: self.history.has(Fact::HandlerAlive),
        }));
        State::Settled { disposition }
    }

    fn not_sent(&mut self, disposition: Disposition, tries: u8) -> State {
        let tries = tries + 1;
        if tries >= SETTLE_TRIES_MAX {
            return self.effects_of_failed_settle(disposition, LostCause::NotSent);
        }
        self.effects.push(Effect::Settle(disposition));
        State::Settling { disposition, tries }
    }

    fn effects_of_failed_settle(&mut self, disposition: Disposition, cause: LostCause) -> State {
        self.leave(Some(Decision::plain(disposition)));
        self.effects.push(Effect::ReopenSource);
        self.end_lost(cause)
    }

    fn unsettled(&mut self, disposition: Disposition, cause: LostCause) -> State {
        self.leave(Some(Decision::plain(disposition)));
        self.end_lost(cause)
    }

    fn lose(&mut self, first: Option<Decision>) -> State {
        self.leave(first);
        self.end_lost(self.history.cause())
    }

    fn lose_with(&mut self, decision: Decision) -> State {
        self.lose(Some(decision))
    }

    fn end_lost(&mut self, cause: LostCause) -> State {
        self.return_permit();
        self.effects.push(Effect::Finish(Final::Lost {
            cause,
            overrun: self.history.has(Fact::HandlerAlive),
        }));
        State::Lost { cause }
    }

    /// Remembers what must be on entering a terminal state.
    fn leave(&mut self, standing: Option<Decision>) {
        if let Some(effect) = last_will(self.rules, &self.history, standing) {
            self.effects.push(effect);
        }
    }

    fn remember(&mut self, decision: Decision, sent: bool) {
        if is_remembered(&self.history, &decision) {
            self.effects.push(Effect::Remember { decision, sent });
        }
    }

    fn return_permit(&mut self) {
        if self.history.holds_share() {
            self.effects.push(Effect::ReturnPermit);
        }
    }
}

/// What an operator's word decides.
fn as_asked(kind: CancelKind, rules: &Rules) -> Decision {
    match kind {
        CancelKind::Reject(reason) => decide(Outcome::Rejected(reason), rules),
        CancelKind::Release => Decision::RELEASE,
    }
}

/// The ledger's rule: Ack and Reject, and a Requeue whose copy was confirmed.
fn is_remembered(history: &History, decision: &Decision) -> bool {
    match decision.disposition {
        Disposition::Ack | Disposition::Reject { .. } => true,
        Disposition::Requeue { .. } => {
            decision.publish.is_none() && history.confirmed().has(Publication::RetryCopy)
        }
        Disposition::Release => false,
    }
}

/// Nobody outside has heard of a conclusion: nothing was published, no conclusion was sent.
fn is_untold(history: &History) -> bool {
    history.out().is_empty() && !history.has(Fact::ConclusionSent)
}

/// What a life leaves to the ledger when it ends with this decision standing: a late Completed if
/// nobody heard of anything else, else the decision by the ledger's rule, else a late Completed.
fn last_will(rules: &Rules, history: &History, standing: Option<Decision>) -> Option<Effect> {
    let sent = history.has(Fact::ConclusionSent);
    let late = history.has(Fact::CompletedLate);
    let completed = Effect::Remember {
        decision: decide(Outcome::Completed, rules),
        sent,
    };
    let standing = standing
        .filter(|decision| is_remembered(history, decision))
        .map(|decision| Effect::Remember { decision, sent });
    match (late, standing) {
        (true, _) if is_untold(history) => Some(completed),
        (_, Some(standing)) => Some(standing),
        (true, None) if !history.has(Fact::Remembered) => Some(completed),
        (true, None) | (false, None) => None,
    }
}
