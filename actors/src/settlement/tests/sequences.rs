//! All sequences of events to a depth, seen by a witness that knows only events and effects.
//!
//! A second proof beside the walk: the witness shares no code with the machine's own history, so
//! an invariant that is wrong there shows here. Two things make it short. The alphabet has one
//! event for each group that the tables treat alike: see [`representatives`]. And an event that
//! leaves machine and witness as they were (a refused one, or one that only orders an extension)
//! is checked but not followed: what comes after it is seen in the sequence without it.

use super::*;
use crate::settlement::{Final, State, Timer};

/// What an onlooker saw of one life.
#[derive(Clone, Copy, Default, PartialEq)]
struct Witness {
    permit_taken: bool,
    permits_returned: u8,
    handler_alive: bool,
    grace_over: bool,
    finished: bool,
    discarded: bool,
    known: Option<Outcome>,
    replies: u8,
    failure_replies: u8,
    published: Option<Publication>,
    publishing: Option<Publication>,
    reply_confirmed: bool,
    other_confirmed: bool,
    told: Option<Disposition>,
    frames: u8,
    remembered: bool,
    ended: Option<Final>,
}

impl Witness {
    fn see(&mut self, before: State, event: Event, effects: &[Effect], rules: &Rules) {
        let was_over = self.ended.is_some();
        self.see_event(before, event);
        for effect in effects {
            self.see_effect(*effect, rules);
            if was_over {
                let late = matches!(effect, Effect::Remember { .. });
                assert!(late, "S7: {effect:?} after the end");
            }
        }
        if let Some(end) = self.ended {
            self.see_the_end(end);
        }
    }

    fn see_event(&mut self, before: State, event: Event) {
        match event {
            Event::Admitted if before == State::Received => self.permit_taken = true,
            Event::Judged(outcome @ Outcome::Known { .. }) => {
                self.known = Some(outcome);
                self.finished = true;
            }
            Event::Judged(Outcome::Discarded) => self.discarded = true,
            Event::Judged(Outcome::Completed) => self.finished = true,
            Event::HandlerReturned(outcome) => {
                let first = std::mem::take(&mut self.handler_alive);
                self.finished |= first && outcome == Outcome::Completed;
                self.discarded |= first && outcome == Outcome::Discarded;
            }
            Event::HandlerGone => self.handler_alive = false,
            Event::AbortOverdue => self.grace_over = true,
            Event::PublishConfirmed => match self.publishing.take() {
                Some(Publication::Reply) => self.reply_confirmed = true,
                Some(_) => self.other_confirmed = true,
                None => {}
            },
            Event::PublishFailed(PublishFailure::Refused) => self.publishing = None,
            Event::SettleFailed(SettleFailure::NotSent) => self.frames = 0,
            _ => {}
        }
    }

    fn see_effect(&mut self, effect: Effect, rules: &Rules) {
        match effect {
            Effect::StartHandler => self.handler_alive = true,
            Effect::Publish(what) => {
                self.published = Some(what);
                self.publishing = Some(what);
                self.replies += u8::from(what == Publication::Reply);
                self.failure_replies += u8::from(what == Publication::FailureReply);
                assert!(self.replies == 0 || self.failure_replies == 0, "S9");
                assert_ne!(self.told, Some(Disposition::Release), "S10");
            }
            Effect::Settle(disposition) => self.see_settle(disposition, rules),
            Effect::Remember { decision, .. } => {
                self.remembered = true;
                assert_ne!(decision.disposition, Disposition::Release, "S12");
                if let Disposition::Requeue { .. } = decision.disposition {
                    assert!(self.other_confirmed && decision.publish.is_none(), "S12");
                }
            }
            Effect::Arm(Timer::RepublishParked) => self.publishing = self.published,
            Effect::ReturnPermit => self.permits_returned += 1,
            Effect::Finish(end) => {
                assert!(self.ended.is_none(), "the end is said once");
                self.ended = Some(end);
            }
            _ => {}
        }
    }

    fn see_settle(&mut self, disposition: Disposition, rules: &Rules) {
        assert!(self.ended.is_none(), "S2");
        assert_eq!(*self.told.get_or_insert(disposition), disposition, "S1");
        self.frames += 1;
        assert_eq!(self.frames, 1, "S1");
        if disposition == Disposition::Ack && !self.other_confirmed {
            let owed = match self.known {
                Some(Outcome::Known { owes, .. }) => owes.is_some(),
                _ => rules.reply && self.finished,
            };
            assert!(self.finished || self.discarded, "S3");
            assert!(!owed || self.reply_confirmed, "S3");
            assert!(!rules.quarantine || !self.discarded, "S3");
        }
    }

    fn see_the_end(&self, end: Final) {
        let (told, overrun) = match end {
            Final::Settled {
                disposition,
                overrun,
            } => (Some(disposition), overrun),
            Final::Lost { overrun, .. } => (None, overrun),
        };
        assert_eq!(self.permits_returned, u8::from(self.permit_taken), "S4");
        assert!(!self.handler_alive || (overrun && self.grace_over), "S5");
        let concluded = matches!(told, Some(Disposition::Ack | Disposition::Reject { .. }));
        assert!(!self.finished || concluded || self.remembered, "S11");
        let passed_on = matches!(told, Some(Disposition::Requeue { .. })) || concluded;
        let confirmed = self.reply_confirmed || self.other_confirmed;
        assert!(!confirmed || passed_on || self.remembered, "S13");
    }
}

/// Follows every sequence; gives how many steps were seen.
fn follow(machine: &Machine, witness: Witness, depth: usize, alphabet: &[Event]) -> u64 {
    let mut steps = 0;
    let mut effects = Vec::new();
    for event in alphabet {
        effects.clear();
        let mut next = *machine;
        let taken = next.apply(*event, &mut effects).is_ok();
        if !taken {
            assert!(next == *machine && effects.is_empty(), "S8");
        }
        let mut seen = witness;
        if taken {
            seen.see(machine.state(), *event, &effects, machine.rules());
            steps += 1;
        }
        if depth > 1 && (next != *machine || seen != witness) {
            steps += follow(&next, seen, depth - 1, alphabet);
        }
    }
    steps
}

/// The short alphabet without what these rules treat like another event: the lost channel like the
/// lost lease, a judged failure like a judged overdue, the lost word like a failure.
fn representatives() -> Vec<Event> {
    let mut events = short_alphabet();
    events.retain(|event| {
        !matches!(
            event,
            Event::ChannelLost
                | Event::Judged(Outcome::TimedOut)
                | Event::SettleFailed(SettleFailure::Unknown)
        )
    });
    events
}

fn check(rules: Rules, depth: usize) {
    let first = Machine::new(rules);
    let steps = follow(&first, Witness::default(), depth, &representatives());
    assert!(steps > 1000, "only {steps} steps under {rules:?}");
}

#[test]
fn a_witness_of_all_sequences_of_seven_sees_every_invariant_kept() {
    for rules in four_combinations() {
        check(rules, 7);
    }
}

#[test]
fn a_witness_of_all_sequences_of_four_sees_them_kept_under_every_variation() {
    for vary in variations() {
        for mut rules in combinations() {
            vary(&mut rules);
            check(rules, 4);
        }
    }
}

#[test]
#[ignore = "slow lane"]
fn slow_a_witness_of_all_sequences_of_seven_in_every_combination() {
    for rules in combinations() {
        check(rules, 7);
    }
}
