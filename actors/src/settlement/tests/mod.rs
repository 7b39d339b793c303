//! The machine's proofs: the literal table, the walk over all that is reachable, and all short
//! sequences seen by a witness that knows only events and effects.

mod sequences;
mod table;
mod walk;

use std::time::Duration;

use super::{CancelKind, Effect, Event, Machine, PublishFailure, Rules, SettleFailure};
use crate::model::{
    Disposition, OnLeaseLost, OnRefused, Outcome, Publication, Receipt, RejectReason, RetryWay,
};

const LETTER: Publication = Publication::DeadLetter { trimmed: false };
const REJECT: Disposition = Disposition::Reject {
    reason: RejectReason::Handler,
};

fn known(disposition: Disposition, owes: Option<Publication>) -> Outcome {
    Outcome::Known { disposition, owes }
}

/// Every outcome, with every kind of entry that the ledger can hold.
fn outcomes() -> Vec<Outcome> {
    let after = Duration::from_secs(2);
    vec![
        Outcome::Completed,
        Outcome::Failed,
        Outcome::Rejected(RejectReason::Handler),
        Outcome::Panicked,
        Outcome::TimedOut,
        Outcome::Gone,
        Outcome::Unavailable,
        Outcome::Discarded,
        known(Disposition::Ack, None),
        known(Disposition::Ack, Some(Publication::Reply)),
        known(Disposition::Ack, Some(Publication::FailureReply)),
        known(REJECT, None),
        known(REJECT, Some(LETTER)),
        known(Disposition::Requeue { after }, None),
    ]
}

/// Every event, with every outcome that it can carry.
fn alphabet() -> Vec<Event> {
    let mut events: Vec<Event> = outcomes().into_iter().map(Event::Judged).collect();
    events.push(Event::Admitted);
    events.extend(outcomes().into_iter().map(Event::HandlerReturned));
    events.extend([
        Event::HandlerGone,
        Event::HandlerOverdue,
        Event::GiveBack,
        Event::CancelAsked(CancelKind::Reject(RejectReason::Cancelled)),
        Event::CancelAsked(CancelKind::Release),
        Event::AbortOverdue,
        Event::PublishConfirmed,
        Event::PublishFailed(PublishFailure::Outage),
        Event::PublishFailed(PublishFailure::Refused),
        Event::PublishGivenUp,
        Event::DrainBegan,
        Event::DrainForced,
        Event::HoldDue,
        Event::LeaseDue,
        Event::LeaseLost,
        Event::ChannelLost,
        Event::Adopted,
        Event::SettleDone(Receipt::Confirmed),
        Event::SettleDone(Receipt::Sent),
        Event::SettleFailed(SettleFailure::NotSent),
        Event::SettleFailed(SettleFailure::Gone),
        Event::SettleFailed(SettleFailure::Unknown),
    ]);
    events
}

/// The alphabet with one outcome for each row of the decide table that a test of that table shows
/// equal to others, and entries of the ledger that owe something and nothing.
fn short_alphabet() -> Vec<Event> {
    let like_another = [
        Outcome::Panicked,
        Outcome::Gone,
        known(Disposition::Ack, Some(Publication::FailureReply)),
        known(REJECT, None),
    ];
    let by_a_handler = |outcome| {
        matches!(outcome, Outcome::Known { .. } | Outcome::TimedOut)
            || like_another.contains(&outcome)
    };
    let mut events = alphabet();
    events.retain(|event| match event {
        Event::Judged(outcome) => !like_another.contains(outcome),
        Event::HandlerReturned(outcome) => !by_a_handler(*outcome),
        _ => true,
    });
    events
}

/// The 24 combinations of reply queue, retry way, dead-letter queue and lease policy.
fn combinations() -> Vec<Rules> {
    let mut all = Vec::new();
    for reply in [false, true] {
        for retry_way in [RetryWay::Ladder, RetryWay::Broker, RetryWay::Hold] {
            for dead_letter in [false, true] {
                for policy in [OnLeaseLost::Finish, OnLeaseLost::Abort] {
                    all.push(Rules {
                        reply,
                        retry_way,
                        dead_letter,
                        on_channel_lost: policy,
                        on_lease_lost: policy,
                        ..Rules::default()
                    });
                }
            }
        }
    }
    all
}

/// Four of the 24 that have each value of each rule: for proofs that cost more.
fn four_combinations() -> Vec<Rules> {
    let all = combinations();
    [1, 6, 14, 21].into_iter().map(|at| all[at]).collect()
}

/// The variations that the 24 do not have, each to be laid over some of them.
fn variations() -> Vec<fn(&mut Rules)> {
    vec![
        |_| (),
        |rules| rules.attempt = crate::model::Attempt::new(5),
        |rules| rules.on_refused = OnRefused::Park,
        |rules| rules.quarantine = true,
        |rules| rules.failure_reply = true,
        |rules| {
            rules.failure_reply = true;
            rules.quarantine = true;
            rules.on_refused = OnRefused::Park;
        },
    ]
}

/// Feeds events that must be taken, and gives the machine.
fn after(rules: Rules, events: &[Event]) -> Machine {
    let mut machine = Machine::new(rules);
    for event in events {
        let mut effects = Vec::new();
        if let Err(refused) = machine.apply(*event, &mut effects) {
            panic!("{refused}");
        }
    }
    machine
}
