//! What a life has seen: kept small, and only so that the invariants can be asked.

use crate::model::{Disposition, Outcome, Publication};

use super::{Effect, Event, LostCause, PublishFailure, SettleFailure, State};

/// What happened so far. It is noted from events and effects alone, apart from the table that
/// produces them, so that a wrong cell in the table shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct History {
    facts: u16,
    /// What was handed to the publisher.
    out: Publications,
    /// What the publisher confirmed.
    confirmed: Publications,
    /// Settle frames of this generation that may have left.
    frames: u8,
    /// How often the delivery's share of the permit was returned.
    returns: u8,
    /// What the first Settle said.
    settle: Option<Disposition>,
    /// Why channel or lease is gone, while it is.
    cause: Option<LostCause>,
    /// What the ledger's entry still owed when it answered.
    known_owes: Option<Publication>,
    /// A publish that was given up, or whose wait ran out; its answer may still come.
    given_up: Option<(Publication, Disposition)>,
}

/// One fact, true once it happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Fact {
    /// A permit was taken.
    PermitTaken = 1,
    /// The handler was started and has not ended.
    HandlerAlive = 1 << 1,
    /// The handler outlived its grace.
    Overrun = 1 << 2,
    /// The work is done, and what follows was decided from that.
    Completed = 1 << 3,
    /// The work is done, but the word came when something else was decided already.
    CompletedLate = 1 << 4,
    /// The word was: never.
    Rejected = 1 << 5,
    /// A contract said: acknowledge and drop.
    Discarded = 1 << 6,
    /// The outcome ledger answered with finished work.
    Known = 1 << 7,
    /// The process drains.
    Draining = 1 << 8,
    /// The drain is forced.
    Forced = 1 << 9,
    /// A publish was refused for good and waits for an operator.
    Parked = 1 << 10,
    /// Something was remembered.
    Remembered = 1 << 11,
    /// A Settle that concludes the work may have left.
    ConclusionSent = 1 << 12,
}

impl History {
    pub(super) fn has(&self, fact: Fact) -> bool {
        self.facts & fact as u16 != 0
    }

    pub(super) fn holds_share(&self) -> bool {
        self.has(Fact::PermitTaken) && self.returns == 0
    }

    pub(super) fn frames(&self) -> u8 {
        self.frames
    }

    pub(super) fn returns(&self) -> u8 {
        self.returns
    }

    pub(super) fn settle(&self) -> Option<Disposition> {
        self.settle
    }

    pub(super) fn cause(&self) -> LostCause {
        self.cause.unwrap_or(LostCause::Channel)
    }

    pub(super) fn known_owes(&self) -> Option<Publication> {
        self.known_owes
    }

    pub(super) fn given_up(&self) -> Option<(Publication, Disposition)> {
        self.given_up
    }

    pub(super) fn out(&self) -> Publications {
        self.out
    }

    pub(super) fn confirmed(&self) -> Publications {
        self.confirmed
    }

    /// Tells whether the work has an end that must not be forgotten.
    pub(super) fn is_finished(&self) -> bool {
        [
            Fact::Completed,
            Fact::CompletedLate,
            Fact::Rejected,
            Fact::Known,
        ]
        .into_iter()
        .any(|fact| self.has(fact))
    }

    /// Notes an event that the state takes.
    pub(super) fn after_event(mut self, state: &State, event: Event) -> Self {
        match event {
            Event::Judged(outcome) => self.word(state, outcome),
            Event::Admitted if matches!(state, State::Received) => self.set(Fact::PermitTaken),
            Event::HandlerReturned(outcome) if self.has(Fact::HandlerAlive) => {
                self.clear(Fact::HandlerAlive);
                self.word(state, outcome);
            }
            Event::HandlerGone => self.clear(Fact::HandlerAlive),
            Event::AbortOverdue if matches!(state, State::Aborting { .. }) => {
                self.set(Fact::Overrun);
            }
            Event::PublishConfirmed => self.note_confirmed(state),
            Event::PublishGivenUp => self.note_given_up(state),
            // An outage may be an expired wait: where it ends the life, the answer may still come.
            Event::PublishFailed(PublishFailure::Outage)
                if matches!(state, State::Publishing { losing: true, .. }) =>
            {
                self.note_given_up(state);
            }
            Event::PublishFailed(PublishFailure::Refused) => self.answered(),
            Event::DrainBegan => self.set(Fact::Draining),
            Event::DrainForced => {
                self.set(Fact::Draining);
                self.set(Fact::Forced);
            }
            Event::LeaseLost if !state.is_terminal() => self.note_gone(LostCause::Lease),
            Event::ChannelLost if !state.is_terminal() => self.note_gone(LostCause::Channel),
            Event::Adopted => {
                self.cause = None;
                self.frames = 0;
            }
            Event::SettleFailed(SettleFailure::NotSent | SettleFailure::Gone)
                if matches!(state, State::Settling { .. }) =>
            {
                self.frames = self.frames.saturating_sub(1);
                self.clear(Fact::ConclusionSent);
            }
            Event::Admitted
            | Event::HandlerReturned(_)
            | Event::HandlerOverdue
            | Event::GiveBack
            | Event::CancelAsked(_)
            | Event::AbortOverdue
            | Event::PublishFailed(PublishFailure::Outage)
            | Event::HoldDue
            | Event::LeaseDue
            | Event::LeaseLost
            | Event::ChannelLost
            | Event::SettleDone(_)
            | Event::SettleFailed(_) => {}
        }
        self
    }

    /// Notes what the state's answer orders.
    pub(super) fn after_effects(mut self, effects: &[Effect]) -> Self {
        for effect in effects {
            match *effect {
                Effect::StartHandler => self.set(Fact::HandlerAlive),
                Effect::Publish(what) => self.out.add(what),
                Effect::Park => self.set(Fact::Parked),
                Effect::Settle(disposition) => {
                    self.frames = self.frames.saturating_add(1);
                    self.settle = self.settle.or(Some(disposition));
                    if self.concludes(disposition) {
                        self.set(Fact::ConclusionSent);
                    }
                }
                Effect::Remember { .. } => self.set(Fact::Remembered),
                Effect::ReturnPermit => self.returns = self.returns.saturating_add(1),
                Effect::AbortHandler
                | Effect::Arm(_)
                | Effect::PauseIntake
                | Effect::ExtendLease
                | Effect::ReopenSource
                | Effect::TakeSettler
                | Effect::Finish(_) => {}
            }
        }
        self
    }

    /// Forgets what no further transition asks for, so that equal futures compare equal.
    pub(super) fn forgotten_in(mut self, state: &State) -> Self {
        if matches!(state, State::Settling { .. }) || state.is_terminal() {
            self.clear(Fact::Draining);
            self.clear(Fact::Forced);
            self.clear(Fact::Parked);
        }
        if state.is_terminal() {
            self.cause = None;
            self.known_owes = None;
        }
        self
    }

    /// Tells whether a disposition ends the work, for all we did.
    fn concludes(&self, disposition: Disposition) -> bool {
        match disposition {
            Disposition::Ack | Disposition::Reject { .. } => true,
            Disposition::Requeue { .. } => self.confirmed.has(Publication::RetryCopy),
            Disposition::Release => false,
        }
    }

    fn word(&mut self, state: &State, outcome: Outcome) {
        let decides = matches!(state, State::Received | State::Running | State::Orphaned);
        match outcome {
            Outcome::Completed => match state {
                State::Received
                | State::Running
                | State::Orphaned
                | State::Aborting { .. }
                | State::Holding { .. } => self.set(Fact::Completed),
                State::Publishing { .. }
                | State::Settling { .. }
                | State::Settled { .. }
                | State::Lost { .. } => self.set(Fact::CompletedLate),
            },
            Outcome::Rejected(_) if decides => self.set(Fact::Rejected),
            Outcome::Discarded if decides => self.set(Fact::Discarded),
            Outcome::Known { disposition, owes } if decides => match (disposition, owes) {
                (Disposition::Ack | Disposition::Reject { .. }, _)
                | (Disposition::Requeue { .. }, None) => {
                    self.set(Fact::Known);
                    self.known_owes = owes;
                }
                (Disposition::Requeue { .. }, Some(_)) | (Disposition::Release, _) => {}
            },
            Outcome::Rejected(_)
            | Outcome::Discarded
            | Outcome::Known { .. }
            | Outcome::Failed
            | Outcome::Panicked
            | Outcome::TimedOut
            | Outcome::Gone
            | Outcome::Unavailable => {}
        }
    }

    fn note_confirmed(&mut self, state: &State) {
        if let State::Publishing { what, .. } = *state {
            self.confirmed.add(what);
        } else if let Some((what, _)) = self.given_up {
            self.confirmed.add(what);
        }
    }

    fn note_given_up(&mut self, state: &State) {
        if let State::Publishing { what, then, .. } = *state {
            self.given_up = Some((what, then));
        }
    }

    fn note_gone(&mut self, cause: LostCause) {
        self.cause = self.cause.or(Some(cause));
    }

    /// Forgets the publish that was given up: its answer came.
    pub(super) fn answered(&mut self) {
        self.given_up = None;
    }

    fn set(&mut self, fact: Fact) {
        self.facts |= fact as u16;
    }

    fn clear(&mut self, fact: Fact) {
        self.facts &= !(fact as u16);
    }
}

/// A set of publications.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Publications(u8);

impl Publications {
    pub(super) fn has(self, what: Publication) -> bool {
        self.0 & Self::bit(what) != 0
    }

    pub(super) fn has_dead_letter(self) -> bool {
        self.has(Publication::DeadLetter { trimmed: false })
            || self.has(Publication::DeadLetter { trimmed: true })
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    fn add(&mut self, what: Publication) {
        self.0 |= Self::bit(what);
    }

    fn bit(what: Publication) -> u8 {
        match what {
            Publication::Reply => 1,
            Publication::FailureReply => 1 << 1,
            Publication::RetryCopy => 1 << 2,
            Publication::DeadLetter { trimmed: false } => 1 << 3,
            Publication::DeadLetter { trimmed: true } => 1 << 4,
            Publication::Quarantine => 1 << 5,
        }
    }
}
