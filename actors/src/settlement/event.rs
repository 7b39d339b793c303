//! What can happen to a delivery: facts as past participles.

use crate::model::{Outcome, Receipt, RejectReason};

/// What can happen to a delivery, in the order of the machine's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// It is concluded without running: ledger hit, poison, past a limit, too large.
    Judged(Outcome),
    /// The limiter granted its permit.
    Admitted,
    /// The handler returned a word.
    HandlerReturned(Outcome),
    /// The handler ended without a word.
    HandlerGone,
    /// The handler outlived its deadline.
    HandlerOverdue,
    /// The pause, or the wait for a permit, is too long.
    GiveBack,
    /// An operator asked for its end.
    CancelAsked(CancelKind),
    /// The aborted handler outlived its grace.
    AbortOverdue,
    /// The publish is confirmed and not returned.
    PublishConfirmed,
    /// The publish failed.
    PublishFailed(PublishFailure),
    /// The time for publishing is over.
    PublishGivenUp,
    /// The process drains.
    DrainBegan,
    /// The drain timeout passed or was skipped.
    DrainForced,
    /// The retry held here is due.
    HoldDue,
    /// The lease wants extending.
    LeaseDue,
    /// The lease ran out.
    LeaseLost,
    /// The channel was closed, or the source rebuilt.
    ChannelLost,
    /// A redelivery of the same work arrived here and hands over its settler.
    Adopted,
    /// The broker was told; what was only `Sent` is remembered until it is proven applied.
    SettleDone(Receipt),
    /// The settlement was not possible.
    SettleFailed(SettleFailure),
}

/// What an operator asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CancelKind {
    /// Never again: it is dead-lettered where there is a dead-letter queue.
    Reject(RejectReason),
    /// Back to its place.
    Release,
}

/// How a publish failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PublishFailure {
    /// The broker cannot be reached, or the queue is away, or nobody knows whether it arrived.
    Outage,
    /// Refused for good: size, property, forbidden.
    Refused,
}

/// How a settlement failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SettleFailure {
    /// Certainly not sent; the settler came back.
    NotSent,
    /// Another generation: never sent.
    Gone,
    /// Nobody knows.
    Unknown,
}
