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

use std::time::Duration;

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
            ) if losing => self.lose(Some(Decision::after(what, then))),
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
                self.give_up_settling(disposition, LostCause::Stale)
            }
            (Settling { disposition, .. }, Event::SettleFailed(SettleFailure::Unknown)) => {
                self.give_up_settling(disposition, LostCause::Unknown)
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
                after: Duration::ZERO,
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
            self.lose(Some(Decision::plain(then)))
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
            return self.give_up_settling(disposition, LostCause::NotSent);
        }
        self.effects.push(Effect::Settle(disposition));
        State::Settling { disposition, tries }
    }

    fn give_up_settling(&mut self, disposition: Disposition, cause: LostCause) -> State {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Attempt, RetryWay};

    const DONE: Event = Event::HandlerReturned(Outcome::Completed);
    const FAILED: Event = Event::HandlerReturned(Outcome::Failed);
    const REFUSED: Event = Event::PublishFailed(PublishFailure::Refused);
    const OUTAGE: Event = Event::PublishFailed(PublishFailure::Outage);
    const NOT_SENT: Event = Event::SettleFailed(SettleFailure::NotSent);
    const REPLY: Publication = Publication::Reply;
    const REQUEUE: Disposition = Disposition::Requeue {
        after: Duration::from_secs(2),
    };
    const REPLY_OWED: Decision = Decision::after(REPLY, Disposition::Ack);

    fn with_reply() -> Rules {
        Rules {
            reply: true,
            ..Rules::default()
        }
    }

    fn ladder() -> Rules {
        Rules {
            retry_way: RetryWay::Ladder,
            ..Rules::default()
        }
    }

    fn by_hold() -> Rules {
        Rules {
            retry_way: RetryWay::Hold,
            ..with_reply()
        }
    }

    fn feed(machine: &mut Machine, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        let taken = machine.apply(event, &mut effects);
        taken.unwrap_or_else(|refused| panic!("{refused}"));
        effects
    }

    fn after(rules: Rules, events: &[Event]) -> Machine {
        let mut machine = Machine::new(rules);
        for event in events {
            feed(&mut machine, *event);
        }
        machine
    }

    /// Feeds the events and compares what the last one orders.
    fn check(rules: Rules, events: &[Event], expected: &[Effect]) -> Machine {
        let (last, before) = events.split_last().expect("an event");
        let mut machine = after(rules, before);
        assert_eq!(feed(&mut machine, *last), expected, "after {events:?}");
        machine
    }

    fn remember(decision: Decision, sent: bool) -> Effect {
        Effect::Remember { decision, sent }
    }

    fn settled(disposition: Disposition, overrun: bool) -> Effect {
        Effect::Finish(Final::Settled {
            disposition,
            overrun,
        })
    }

    #[test]
    fn a_held_retry_lets_go_of_its_permit_and_goes_back_without_a_second_delay() {
        let events = [Event::Admitted, FAILED];
        let arm = Effect::Arm(Timer::Hold);
        let mut machine = check(by_hold(), &events, &[Effect::ReturnPermit, arm]);
        let now = Disposition::Requeue {
            after: Duration::ZERO,
        };
        assert_eq!(feed(&mut machine, Event::HoldDue), [Effect::Settle(now)]);
        let end = feed(&mut machine, Event::SettleDone(Receipt::Sent));
        assert_eq!(end, [settled(now, false)]);
    }

    #[test]
    fn a_retry_that_fails_while_draining_is_not_held_but_given_back() {
        let events = [Event::Admitted, Event::DrainBegan, FAILED];
        check(by_hold(), &events, &[Effect::Settle(Disposition::Release)]);
    }

    #[test]
    fn a_publish_begun_after_the_drain_was_forced_gets_the_short_time() {
        let events = [Event::Admitted, Event::DrainForced, DONE];
        let arm = Effect::Arm(Timer::PublishGiveUpForced);
        check(with_reply(), &events, &[arm, Effect::Publish(REPLY)]);
    }

    #[test]
    fn a_dead_letter_refused_whole_goes_out_trimmed_once() {
        let reason = RejectReason::Handler;
        let rejected = Event::HandlerReturned(Outcome::Rejected(reason));
        let rules = Rules {
            dead_letter: true,
            ..Rules::default()
        };
        let trimmed = Publication::DeadLetter { trimmed: true };
        let arm = Effect::Arm(Timer::PublishGiveUp);
        let events = [Event::Admitted, rejected, REFUSED];
        let mut machine = check(rules, &events, &[arm, Effect::Publish(trimmed)]);
        let told = Effect::Settle(Disposition::Reject { reason });
        assert_eq!(feed(&mut machine, REFUSED), [told]);
        assert!(!machine.is_covered(), "an ack would lose it");
    }

    #[test]
    fn a_reply_refused_for_good_is_rejected_where_there_is_no_dead_letter_queue() {
        let reason = RejectReason::PublishRefused;
        let told = Effect::Settle(Disposition::Reject { reason });
        check(with_reply(), &[Event::Admitted, DONE, REFUSED], &[told]);
    }

    #[test]
    fn a_parked_publish_lets_go_of_its_permit_is_said_once_and_can_still_be_confirmed() {
        let rules = Rules {
            on_refused: OnRefused::Park,
            ..with_reply()
        };
        let again = Effect::Arm(Timer::RepublishParked);
        let parked = [Effect::Park, Effect::ReturnPermit, again];
        let events = [Event::Admitted, DONE, REFUSED];
        let mut machine = check(rules, &events, &parked);
        assert!(machine.is_parked() && !machine.holds_permit());
        assert_eq!(feed(&mut machine, REFUSED), [again]);
        let told = [Effect::Settle(Disposition::Ack)];
        assert_eq!(feed(&mut machine, Event::PublishConfirmed), told);
        assert!(!machine.is_parked());
    }

    #[test]
    fn an_outage_pauses_the_intake_and_burns_no_attempt() {
        let pause = [Effect::PauseIntake, Effect::Arm(Timer::Republish)];
        let events = [Event::Admitted, DONE, OUTAGE];
        let mut machine = check(with_reply(), &events, &pause);
        let told = Effect::Settle(Disposition::Release);
        let kept = remember(REPLY_OWED, false);
        assert_eq!(feed(&mut machine, Event::PublishGivenUp), [kept, told]);
    }

    #[test]
    fn a_settlement_not_sent_is_tried_three_times_and_then_remembered() {
        let mut machine = after(Rules::default(), &[Event::Admitted, DONE]);
        let told = [Effect::Settle(Disposition::Ack)];
        assert_eq!(feed(&mut machine, NOT_SENT), told);
        assert_eq!(feed(&mut machine, NOT_SENT), told);
        let cause = LostCause::NotSent;
        let expected = [
            remember(Decision::plain(Disposition::Ack), false),
            Effect::ReopenSource,
            Effect::ReturnPermit,
            Effect::Finish(Final::Lost {
                cause,
                overrun: false,
            }),
        ];
        assert_eq!(feed(&mut machine, NOT_SENT), expected);
    }

    #[test]
    fn a_release_and_a_requeue_of_the_broker_are_never_remembered() {
        let unknown = Event::SettleFailed(SettleFailure::Unknown);
        for word in [FAILED, Event::HandlerReturned(Outcome::Unavailable)] {
            let mut machine = after(Rules::default(), &[Event::Admitted, word]);
            let effects = feed(&mut machine, unknown);
            let remembered = |effect: &Effect| matches!(effect, Effect::Remember { .. });
            assert!(!effects.iter().any(remembered), "{effects:?}");
        }
    }

    #[test]
    fn a_confirmed_copy_is_remembered_when_its_requeue_is_not_proven() {
        let copied = [Event::Admitted, FAILED, Event::PublishConfirmed];
        let entry = remember(Decision::plain(REQUEUE), true);
        let mut machine = after(ladder(), &copied);
        assert!(machine.is_covered());
        let effects = feed(&mut machine, Event::SettleDone(Receipt::Sent));
        assert_eq!(effects[0], entry);
        let mut machine = after(ladder(), &copied);
        assert_eq!(feed(&mut machine, Event::ChannelLost)[0], entry);
    }

    #[test]
    fn a_copy_confirmed_after_it_was_given_up_is_remembered() {
        let given_up = [Event::Admitted, FAILED, Event::PublishGivenUp];
        let entry = [remember(Decision::plain(REQUEUE), false)];
        let mut machine = after(ladder(), &given_up);
        assert_eq!(feed(&mut machine, Event::PublishConfirmed), entry);
        assert_eq!(feed(&mut machine, Event::PublishConfirmed), []);
    }

    #[test]
    fn a_word_that_comes_while_settling_a_release_is_remembered_at_the_end() {
        let overrun = [Event::Admitted, Event::DrainForced, Event::AbortOverdue];
        let mut machine = after(with_reply(), &overrun);
        assert_eq!(feed(&mut machine, DONE), []);
        let expected = [
            remember(REPLY_OWED, false),
            Effect::ReturnPermit,
            settled(Disposition::Release, false),
        ];
        let done = Event::SettleDone(Receipt::Confirmed);
        assert_eq!(feed(&mut machine, done), expected);
        assert_eq!(feed(&mut machine, DONE), [], "a second word is none");
    }

    #[test]
    fn a_late_word_does_not_contradict_a_failure_reply() {
        let rules = Rules {
            failure_reply: true,
            ..with_reply()
        };
        let overrun = [Event::Admitted, Event::HandlerOverdue, Event::AbortOverdue];
        let mut machine = after(rules, &overrun);
        feed(&mut machine, Event::PublishGivenUp);
        feed(&mut machine, Event::SettleDone(Receipt::Sent));
        assert_eq!(feed(&mut machine, DONE), []);
    }

    #[test]
    fn a_late_word_replaces_a_conclusion_that_nobody_heard_of() {
        let rules = Rules {
            attempt: Attempt::new(5),
            ..with_reply()
        };
        let overrun = [
            Event::Admitted,
            Event::ChannelLost,
            Event::HandlerOverdue,
            Event::AbortOverdue,
        ];
        let mut machine = after(rules, &overrun);
        assert_eq!(feed(&mut machine, DONE), [remember(REPLY_OWED, false)]);
    }

    #[test]
    fn an_orphan_that_is_adopted_settles_on_the_new_generation() {
        let adopted = [Event::Admitted, Event::ChannelLost, Event::Adopted];
        let mut machine = check(Rules::default(), &adopted, &[Effect::TakeSettler]);
        let told = [Effect::Settle(Disposition::Ack)];
        assert_eq!(feed(&mut machine, DONE), told);
    }

    #[test]
    fn an_actor_that_dies_leaves_what_was_decided() {
        let check = |rules, events: &[Event], expected: Option<Effect>| {
            assert_eq!(after(rules, events).bequest(), expected, "{events:?}");
        };
        let owed = remember(REPLY_OWED, false);
        let acked = remember(Decision::plain(Disposition::Ack), true);
        let replied = [Event::Admitted, DONE, Event::PublishConfirmed];
        check(with_reply(), &[], None);
        check(with_reply(), &[Event::Admitted], None);
        check(with_reply(), &[Event::Admitted, FAILED], None);
        check(with_reply(), &[Event::GiveBack], None);
        check(with_reply(), &[Event::Admitted, DONE], Some(owed));
        check(with_reply(), &replied, Some(acked));
        check(ladder(), &[Event::Admitted, FAILED], None);
        check(with_reply(), &[Event::ChannelLost], None);
    }

    #[test]
    fn a_refusal_names_state_and_event() {
        let refused = Machine::new(Rules::default()).apply(Event::HoldDue, &mut Vec::new());
        let text = refused.expect_err("refused").to_string();
        assert_eq!(text, "HoldDue is refused in state received");
    }
}
