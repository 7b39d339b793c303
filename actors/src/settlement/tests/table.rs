//! The table as text: every state × every event, each cell written out once.

use super::*;
use crate::settlement::{Decision, Final, State, Then, Timer};

/// The contract's table under a reply queue, a dead-letter queue and a retry ladder (Holding: by
/// hold), lost channels finishing and lost leases aborting. A block is one event, or several whose
/// rows are equal; a line names states and what they answer: the next state, then the effects in
/// their order. Settled and Lost were entered by an overrun whose handler is still alive.
const TABLE: &str = "
Judged completed
  Received: Publishing(reply > Ack); Arm(give-up); Publish(reply)
  Running, Orphaned, Aborting, Aborting lost, Publishing, Publishing losing, Holding, Settling, Settled, Lost: refuse
Judged failed
  Received: Publishing(retry-copy > Requeue 2s); Arm(give-up); Publish(retry-copy)
  Running, Orphaned, Aborting, Aborting lost, Publishing, Publishing losing, Holding, Settling, Settled, Lost: refuse
Judged rejected
  Received: Publishing(dead-letter > Reject rejected); Arm(give-up); Publish(dead-letter)
  Running, Orphaned, Aborting, Aborting lost, Publishing, Publishing losing, Holding, Settling, Settled, Lost: refuse
Judged panicked / Judged timed-out / Judged gone
  Received: Publishing(retry-copy > Requeue 2s); Arm(give-up); Publish(retry-copy)
  Running, Orphaned, Aborting, Aborting lost, Publishing, Publishing losing, Holding, Settling, Settled, Lost: refuse
Judged unavailable
  Received: Settling(Release); PauseIntake; Settle(Release)
  Running, Orphaned, Aborting, Aborting lost, Publishing, Publishing losing, Holding, Settling, Settled, Lost: refuse
Judged discarded / Judged known Ack
  Received: Settling(Ack); Settle(Ack)
  Running, Orphaned, Aborting, Aborting lost, Publishing, Publishing losing, Holding, Settling, Settled, Lost: refuse
Judged known reply > Ack
  Received: Publishing(reply > Ack); Arm(give-up); Publish(reply)
  Running, Orphaned, Aborting, Aborting lost, Publishing, Publishing losing, Holding, Settling, Settled, Lost: refuse
Judged known failure-reply > Ack
  Received: Publishing(failure-reply > Ack); Arm(give-up); Publish(failure-reply)
  Running, Orphaned, Aborting, Aborting lost, Publishing, Publishing losing, Holding, Settling, Settled, Lost: refuse
Judged known Reject rejected
  Received: Settling(Reject rejected); Settle(Reject rejected)
  Running, Orphaned, Aborting, Aborting lost, Publishing, Publishing losing, Holding, Settling, Settled, Lost: refuse
Judged known dead-letter > Reject rejected
  Received: Publishing(dead-letter > Reject rejected); Arm(give-up); Publish(dead-letter)
  Running, Orphaned, Aborting, Aborting lost, Publishing, Publishing losing, Holding, Settling, Settled, Lost: refuse
Judged known Requeue 2s
  Received: Settling(Ack); Settle(Ack)
  Running, Orphaned, Aborting, Aborting lost, Publishing, Publishing losing, Holding, Settling, Settled, Lost: refuse
Admitted
  Received: Running; StartHandler; Arm(deadline)
  Settling, Settled, Lost: stay
  Running, Orphaned, Aborting, Aborting lost, Publishing, Publishing losing, Holding: refuse
HandlerReturned completed
  Running, Aborting, Holding: Publishing(reply > Ack); Arm(give-up); Publish(reply)
  Orphaned: Lost(channel); Remember(reply > Ack); ReturnPermit; Finish
  Aborting lost: Lost(lease); Remember(reply > Ack); ReturnPermit; Finish
  Settled, Lost: stay; Remember(reply > Ack)
  Publishing, Publishing losing, Settling: stay
  Received: refuse
HandlerReturned failed
  Running, Aborting: Publishing(retry-copy > Requeue 2s); Arm(give-up); Publish(retry-copy)
  Orphaned: Lost(channel); ReturnPermit; Finish
  Aborting lost: Lost(lease); ReturnPermit; Finish
  Publishing, Publishing losing, Holding, Settling, Settled, Lost: stay
  Received: refuse
HandlerReturned rejected
  Running: Publishing(dead-letter > Reject rejected); Arm(give-up); Publish(dead-letter)
  Orphaned: Lost(channel); Remember(dead-letter > Reject rejected); ReturnPermit; Finish
  Aborting: Publishing(retry-copy > Requeue 2s); Arm(give-up); Publish(retry-copy)
  Aborting lost: Lost(lease); ReturnPermit; Finish
  Publishing, Publishing losing, Holding, Settling, Settled, Lost: stay
  Received: refuse
HandlerReturned panicked / HandlerReturned timed-out / HandlerReturned gone
  Running, Aborting: Publishing(retry-copy > Requeue 2s); Arm(give-up); Publish(retry-copy)
  Orphaned: Lost(channel); ReturnPermit; Finish
  Aborting lost: Lost(lease); ReturnPermit; Finish
  Publishing, Publishing losing, Holding, Settling, Settled, Lost: stay
  Received: refuse
HandlerReturned unavailable
  Running: Settling(Release); PauseIntake; Settle(Release)
  Orphaned: Lost(channel); ReturnPermit; Finish
  Aborting: Publishing(retry-copy > Requeue 2s); Arm(give-up); Publish(retry-copy)
  Aborting lost: Lost(lease); ReturnPermit; Finish
  Publishing, Publishing losing, Holding, Settling, Settled, Lost: stay
  Received: refuse
HandlerReturned discarded / HandlerReturned known Ack
  Running: Settling(Ack); Settle(Ack)
  Orphaned: Lost(channel); Remember(Ack); ReturnPermit; Finish
  Aborting: Publishing(retry-copy > Requeue 2s); Arm(give-up); Publish(retry-copy)
  Aborting lost: Lost(lease); ReturnPermit; Finish
  Publishing, Publishing losing, Holding, Settling, Settled, Lost: stay
  Received: refuse
HandlerReturned known reply > Ack
  Running: Publishing(reply > Ack); Arm(give-up); Publish(reply)
  Orphaned: Lost(channel); Remember(reply > Ack); ReturnPermit; Finish
  Aborting: Publishing(retry-copy > Requeue 2s); Arm(give-up); Publish(retry-copy)
  Aborting lost: Lost(lease); ReturnPermit; Finish
  Publishing, Publishing losing, Holding, Settling, Settled, Lost: stay
  Received: refuse
HandlerReturned known failure-reply > Ack
  Running: Publishing(failure-reply > Ack); Arm(give-up); Publish(failure-reply)
  Orphaned: Lost(channel); Remember(failure-reply > Ack); ReturnPermit; Finish
  Aborting: Publishing(retry-copy > Requeue 2s); Arm(give-up); Publish(retry-copy)
  Aborting lost: Lost(lease); ReturnPermit; Finish
  Publishing, Publishing losing, Holding, Settling, Settled, Lost: stay
  Received: refuse
HandlerReturned known Reject rejected
  Running: Settling(Reject rejected); Settle(Reject rejected)
  Orphaned: Lost(channel); Remember(Reject rejected); ReturnPermit; Finish
  Aborting: Publishing(retry-copy > Requeue 2s); Arm(give-up); Publish(retry-copy)
  Aborting lost: Lost(lease); ReturnPermit; Finish
  Publishing, Publishing losing, Holding, Settling, Settled, Lost: stay
  Received: refuse
HandlerReturned known dead-letter > Reject rejected
  Running: Publishing(dead-letter > Reject rejected); Arm(give-up); Publish(dead-letter)
  Orphaned: Lost(channel); Remember(dead-letter > Reject rejected); ReturnPermit; Finish
  Aborting: Publishing(retry-copy > Requeue 2s); Arm(give-up); Publish(retry-copy)
  Aborting lost: Lost(lease); ReturnPermit; Finish
  Publishing, Publishing losing, Holding, Settling, Settled, Lost: stay
  Received: refuse
HandlerReturned known Requeue 2s
  Running: Settling(Ack); Settle(Ack)
  Orphaned: Lost(channel); Remember(Ack); ReturnPermit; Finish
  Aborting: Publishing(retry-copy > Requeue 2s); Arm(give-up); Publish(retry-copy)
  Aborting lost: Lost(lease); ReturnPermit; Finish
  Publishing, Publishing losing, Holding, Settling, Settled, Lost: stay
  Received: refuse
HandlerGone
  Running, Aborting: Publishing(retry-copy > Requeue 2s); Arm(give-up); Publish(retry-copy)
  Orphaned: Lost(channel); ReturnPermit; Finish
  Aborting lost: Lost(lease); ReturnPermit; Finish
  Publishing, Publishing losing, Holding, Settling, Settled, Lost: stay
  Received: refuse
HandlerOverdue
  Running: Aborting(retry-copy > Requeue 2s); AbortHandler; Arm(grace)
  Orphaned: Aborting(Lose retry-copy > Requeue 2s); AbortHandler; Arm(grace)
  Aborting, Aborting lost, Publishing, Publishing losing, Holding, Settling, Settled, Lost: stay
  Received: refuse
GiveBack
  Received: Settling(Release); Settle(Release)
  Settling, Settled, Lost: stay
  Running, Orphaned, Aborting, Aborting lost, Publishing, Publishing losing, Holding: refuse
CancelAsked reject
  Received, Holding: Publishing(dead-letter > Reject cancelled); Arm(give-up); Publish(dead-letter)
  Running: Aborting(dead-letter > Reject cancelled); AbortHandler; Arm(grace)
  Orphaned: Aborting(Lose); AbortHandler; Arm(grace)
  Aborting, Aborting lost, Publishing, Publishing losing, Settling, Settled, Lost: stay
CancelAsked release
  Received, Holding: Settling(Release); Settle(Release)
  Running: Aborting(Release); AbortHandler; Arm(grace)
  Orphaned: Aborting(Lose); AbortHandler; Arm(grace)
  Aborting, Aborting lost, Publishing, Publishing losing, Settling, Settled, Lost: stay
AbortOverdue
  Aborting: Publishing(retry-copy > Requeue 2s); Arm(give-up); Publish(retry-copy)
  Aborting lost: Lost(lease); ReturnPermit; Finish(overrun)
  Publishing, Publishing losing, Holding, Settling, Settled, Lost: stay
  Received, Running, Orphaned: refuse
PublishConfirmed
  Publishing: Settling(Ack); Settle(Ack)
  Publishing losing: Lost(channel); Remember(Ack); ReturnPermit; Finish
  Settling, Settled, Lost: stay
  Received, Running, Orphaned, Aborting, Aborting lost, Holding: refuse
PublishFailed Outage
  Publishing: stay; PauseIntake; Arm(republish)
  Publishing losing: Lost(channel); Remember(reply > Ack); ReturnPermit; Finish
  Settling, Settled, Lost: stay
  Received, Running, Orphaned, Aborting, Aborting lost, Holding: refuse
PublishFailed Refused
  Publishing: Publishing(trimmed dead-letter > Reject publish-refused); Arm(give-up); Publish(trimmed dead-letter)
  Publishing losing: Lost(channel); Remember(reply > Ack); ReturnPermit; Finish
  Settling, Settled, Lost: stay
  Received, Running, Orphaned, Aborting, Aborting lost, Holding: refuse
PublishGivenUp
  Publishing: Settling(Release); Remember(reply > Ack); Settle(Release)
  Publishing losing: Lost(channel); Remember(reply > Ack); ReturnPermit; Finish
  Settling, Settled, Lost: stay
  Received, Running, Orphaned, Aborting, Aborting lost, Holding: refuse
DrainBegan
  Received, Holding: Settling(Release); Settle(Release)
  Running, Orphaned, Aborting, Aborting lost, Publishing, Publishing losing, Settling, Settled, Lost: stay
DrainForced
  Received, Holding: Settling(Release); Settle(Release)
  Running: Aborting(Release); AbortHandler; Arm(grace)
  Orphaned: Aborting(Lose); AbortHandler; Arm(grace)
  Publishing, Publishing losing: stay; Arm(give-up, forced)
  Aborting, Aborting lost, Settling, Settled, Lost: stay
HoldDue
  Holding: Settling(Requeue 0s); Settle(Requeue 0s)
  Settling, Settled, Lost: stay
  Received, Running, Orphaned, Aborting, Aborting lost, Publishing, Publishing losing: refuse
LeaseDue
  Received, Running, Aborting, Publishing, Holding: stay; ExtendLease
  Orphaned, Aborting lost, Publishing losing, Settling, Settled, Lost: stay
LeaseLost
  Received: Lost(lease); Finish
  Running: Aborting(Lose); AbortHandler; Arm(grace)
  Aborting: Aborting(Lose retry-copy > Requeue 2s)
  Publishing: Publishing(reply > Ack, losing)
  Holding: Lost(lease); Finish(overrun)
  Settling: Lost(lease); Remember(Ack, sent); ReturnPermit; Finish
  Orphaned, Aborting lost, Publishing losing, Settled, Lost: stay
ChannelLost
  Received: Lost(channel); Finish
  Running: Orphaned
  Aborting: Aborting(Lose retry-copy > Requeue 2s)
  Publishing: Publishing(reply > Ack, losing)
  Holding: Lost(channel); Finish(overrun)
  Settling: Lost(channel); Remember(Ack, sent); ReturnPermit; Finish
  Orphaned, Aborting lost, Publishing losing, Settled, Lost: stay
Adopted
  Orphaned: Running; TakeSettler
  Publishing losing: Publishing(reply > Ack); TakeSettler
  Received, Running, Aborting, Aborting lost, Publishing, Holding, Settling, Settled, Lost: refuse
SettleDone Confirmed
  Settling: Settled(Ack); ReturnPermit; Finish
  Settled, Lost: stay
  Received, Running, Orphaned, Aborting, Aborting lost, Publishing, Publishing losing, Holding: refuse
SettleDone Sent
  Settling: Settled(Ack); Remember(Ack, sent); ReturnPermit; Finish
  Settled, Lost: stay
  Received, Running, Orphaned, Aborting, Aborting lost, Publishing, Publishing losing, Holding: refuse
SettleFailed NotSent
  Settling: Settling(Ack, 1); Settle(Ack)
  Settled, Lost: stay
  Received, Running, Orphaned, Aborting, Aborting lost, Publishing, Publishing losing, Holding: refuse
SettleFailed Gone
  Settling: Lost(stale); Remember(Ack); ReopenSource; ReturnPermit; Finish
  Settled, Lost: stay
  Received, Running, Orphaned, Aborting, Aborting lost, Publishing, Publishing losing, Holding: refuse
SettleFailed Unknown
  Settling: Lost(unknown); Remember(Ack, sent); ReopenSource; ReturnPermit; Finish
  Settled, Lost: stay
  Received, Running, Orphaned, Aborting, Aborting lost, Publishing, Publishing losing, Holding: refuse
";

#[test]
fn every_cell_says_what_the_contract_says() {
    let mut written = 0;
    for block in blocks() {
        for event in block.events {
            for (column, machine) in columns() {
                let cells: Vec<&str> = (block.cells.iter())
                    .filter(|(states, _)| states.contains(&column))
                    .map(|(_, cell)| *cell)
                    .collect();
                assert_eq!(cells, [cell(machine, event)], "{column} on {}", name(event));
                written += 1;
            }
        }
    }
    assert_eq!(written, alphabet().len() * columns().len());
}

/// One block of the table.
struct Block {
    events: Vec<Event>,
    cells: Vec<(Vec<&'static str>, &'static str)>,
}

fn blocks() -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    for line in TABLE.lines().filter(|line| !line.is_empty()) {
        match (line.strip_prefix("  "), blocks.last_mut()) {
            (Some(cells), Some(block)) => {
                let (states, cell) = cells.split_once(": ").expect("states and a cell");
                block.cells.push((states.split(", ").collect(), cell));
            }
            _ => blocks.push(Block {
                events: line.split(" / ").map(event_named).collect(),
                cells: Vec::new(),
            }),
        }
    }
    blocks
}

fn event_named(text: &str) -> Event {
    let found = alphabet().into_iter().find(|event| name(*event) == text);
    found.unwrap_or_else(|| panic!("no event is named {text}"))
}

/// The states as columns, each reached by events.
fn columns() -> [(&'static str, Machine); 11] {
    let rules = Rules {
        reply: true,
        dead_letter: true,
        retry_way: RetryWay::Ladder,
        ..Rules::default()
    };
    let hold = Rules {
        retry_way: RetryWay::Hold,
        ..rules
    };
    let completed = Event::HandlerReturned(Outcome::Completed);
    let start = Event::Admitted;
    let at = |events: &[Event]| after(rules, events);
    [
        ("Received", at(&[])),
        ("Running", at(&[start])),
        ("Orphaned", at(&[start, Event::ChannelLost])),
        ("Aborting", at(&[start, Event::HandlerOverdue])),
        ("Aborting lost", at(&[start, Event::LeaseLost])),
        ("Publishing", at(&[start, completed])),
        (
            "Publishing losing",
            at(&[start, completed, Event::ChannelLost]),
        ),
        (
            "Holding",
            after(hold, &[start, Event::HandlerOverdue, Event::AbortOverdue]),
        ),
        ("Settling", at(&[start, completed, Event::PublishConfirmed])),
        (
            "Settled",
            at(&[
                start,
                Event::DrainForced,
                Event::AbortOverdue,
                Event::SettleDone(Receipt::Sent),
            ]),
        ),
        ("Lost", at(&[start, Event::LeaseLost, Event::AbortOverdue])),
    ]
}

/// Gives what one cell says.
fn cell(mut machine: Machine, event: Event) -> String {
    let before = machine;
    let mut effects = Vec::new();
    if machine.apply(event, &mut effects).is_err() {
        assert_eq!((machine, effects.len()), (before, 0), "S8: {event:?}");
        return "refuse".to_owned();
    }
    let mut text = match machine.state() == before.state() {
        true => "stay".to_owned(),
        false => state(machine.state()),
    };
    for effect in effects {
        text.push_str("; ");
        text.push_str(&effect_text(effect));
    }
    text
}

fn state(state: State) -> String {
    match state {
        State::Received => "Received".to_owned(),
        State::Running => "Running".to_owned(),
        State::Orphaned => "Orphaned".to_owned(),
        State::Aborting {
            then: Then::Enact(decision),
        } => {
            format!("Aborting({})", decision_text(decision))
        }
        State::Aborting {
            then: Then::Lose { first: None },
        } => "Aborting(Lose)".to_owned(),
        State::Aborting {
            then: Then::Lose { first: Some(first) },
        } => {
            format!("Aborting(Lose {})", decision_text(first))
        }
        State::Publishing { what, then, losing } => {
            let losing = if losing { ", losing" } else { "" };
            format!(
                "Publishing({} > {}{losing})",
                publication(what),
                disposition(then)
            )
        }
        State::Holding { then } => format!("Holding({})", disposition(then)),
        State::Settling {
            disposition: d,
            tries,
        } => {
            let tries = if tries == 0 {
                String::new()
            } else {
                format!(", {tries}")
            };
            format!("Settling({}{tries})", disposition(d))
        }
        State::Settled { disposition: d } => format!("Settled({})", disposition(d)),
        State::Lost { cause } => format!("Lost({})", cause.as_str()),
    }
}

fn effect_text(effect: Effect) -> String {
    match effect {
        Effect::Arm(timer) => format!(
            "Arm({})",
            match timer {
                Timer::Deadline => "deadline",
                Timer::AbortGrace => "grace",
                Timer::Republish => "republish",
                Timer::RepublishParked => "republish, parked",
                Timer::PublishGiveUp => "give-up",
                Timer::PublishGiveUpForced => "give-up, forced",
                Timer::Hold => "hold",
            }
        ),
        Effect::Publish(what) => format!("Publish({})", publication(what)),
        Effect::Settle(d) => format!("Settle({})", disposition(d)),
        Effect::Remember { decision, sent } => {
            let sent = if sent { ", sent" } else { "" };
            format!("Remember({}{sent})", decision_text(decision))
        }
        Effect::Finish(Final::Settled { overrun, .. } | Final::Lost { overrun, .. }) => {
            if overrun { "Finish(overrun)" } else { "Finish" }.to_owned()
        }
        Effect::StartHandler
        | Effect::AbortHandler
        | Effect::PauseIntake
        | Effect::Park
        | Effect::ExtendLease
        | Effect::ReopenSource
        | Effect::TakeSettler
        | Effect::ReturnPermit => format!("{effect:?}"),
    }
}

fn decision_text(decision: Decision) -> String {
    let hold = if decision.hold { "hold > " } else { "" };
    let what = decision
        .publish
        .map(|what| format!("{} > ", publication(what)));
    format!(
        "{hold}{}{}",
        what.unwrap_or_default(),
        disposition(decision.disposition)
    )
}

fn publication(what: Publication) -> &'static str {
    match what {
        Publication::DeadLetter { trimmed: true } => "trimmed dead-letter",
        Publication::Reply
        | Publication::FailureReply
        | Publication::RetryCopy
        | Publication::DeadLetter { trimmed: false }
        | Publication::Quarantine => what.as_str(),
    }
}

fn disposition(disposition: Disposition) -> String {
    match disposition {
        Disposition::Ack => "Ack".to_owned(),
        Disposition::Release => "Release".to_owned(),
        Disposition::Requeue { after } => format!("Requeue {}s", after.as_secs()),
        Disposition::Reject { reason } => format!("Reject {}", reason.as_str()),
    }
}

fn name(event: Event) -> String {
    match event {
        Event::Judged(outcome) => format!("Judged {}", outcome_text(outcome)),
        Event::HandlerReturned(outcome) => format!("HandlerReturned {}", outcome_text(outcome)),
        Event::CancelAsked(CancelKind::Reject(_)) => "CancelAsked reject".to_owned(),
        Event::CancelAsked(CancelKind::Release) => "CancelAsked release".to_owned(),
        other => format!("{other:?}").replace('(', " ").replace(')', ""),
    }
}

fn outcome_text(outcome: Outcome) -> String {
    match outcome {
        Outcome::Known {
            disposition: d,
            owes: None,
        } => format!("known {}", disposition(d)),
        Outcome::Known {
            disposition: d,
            owes: Some(what),
        } => {
            format!("known {} > {}", publication(what), disposition(d))
        }
        outcome => outcome.as_str().to_owned(),
    }
}
