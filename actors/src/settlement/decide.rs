//! From outcome to decision: at most one publish and one disposition.

use std::time::Duration;

use crate::model::{
    Attempt, Disposition, OnLeaseLost, OnRefused, Outcome, Publication, RejectReason, RetryWay,
};

/// What holds for one delivery: its consumer's policy and its transport's ways, resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rules {
    /// This attempt's number.
    pub attempt: Attempt,
    /// No attempt has a higher number.
    pub max_attempts: u32,
    /// The delay before the next attempt, jitter included.
    pub backoff: Duration,
    /// Whether a completed delivery owes a reply.
    pub reply: bool,
    /// Whether work that failed for good owes a failure reply and is then acked instead of
    /// dead-lettered (the task profile).
    pub failure_reply: bool,
    /// Whether there is a dead-letter queue.
    pub dead_letter: bool,
    /// Whether a discarded delivery owes a quarantine copy.
    pub quarantine: bool,
    /// Who holds the delay of a retry.
    pub retry_way: RetryWay,
    /// What happens to the running handler when the channel is lost.
    pub on_channel_lost: OnLeaseLost,
    /// What happens to the running handler when the lease ran out.
    pub on_lease_lost: OnLeaseLost,
    /// What happens when a publish is refused for good and there is no dead-letter queue.
    pub on_refused: OnRefused,
}

impl Default for Rules {
    /// A first attempt of five, nothing to publish, the broker holds the delay.
    fn default() -> Self {
        Self {
            attempt: Attempt::FIRST,
            max_attempts: 5,
            backoff: Duration::from_secs(2),
            reply: false,
            failure_reply: false,
            dead_letter: false,
            quarantine: false,
            retry_way: RetryWay::Broker,
            on_channel_lost: OnLeaseLost::Finish,
            on_lease_lost: OnLeaseLost::Abort,
            on_refused: OnRefused::Reject,
        }
    }
}

/// What was decided about a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Decision {
    /// What goes out first.
    pub publish: Option<Publication>,
    /// What the broker is told then.
    pub disposition: Disposition,
    /// Whether the delay is waited for here, in Holding.
    pub hold: bool,
}

impl Decision {
    /// Back to its place: nothing goes out.
    pub const RELEASE: Self = Self::plain(Disposition::Release);

    /// Makes a decision that publishes nothing and waits for nothing.
    pub const fn plain(disposition: Disposition) -> Self {
        Self {
            publish: None,
            disposition,
            hold: false,
        }
    }

    /// Makes a decision that publishes first.
    pub const fn after(publish: Publication, disposition: Disposition) -> Self {
        Self {
            publish: Some(publish),
            disposition,
            hold: false,
        }
    }
}

/// Decides what follows from an outcome.
///
/// | outcome | holds | publish first | disposition |
/// |---|---|---|---|
/// | Completed | a reply queue | reply | Ack |
/// | Completed | none | – | Ack |
/// | Failed, Panicked, Gone, attempts left | by ladder | retry copy | Requeue{backoff} |
/// | likewise | by the broker's delay | – | Requeue{backoff} |
/// | likewise | by hold | – | Requeue{backoff}, from Holding |
/// | TimedOut, attempts left | failure replies | failure reply | Ack |
/// | likewise | none | as Failed | as Failed |
/// | Failed, Panicked, TimedOut, Gone, attempts used up | failure replies | failure reply | Ack |
/// | likewise | a dead-letter queue | dead letter | Reject{exhausted} |
/// | likewise | neither | – | Reject{exhausted} |
/// | Rejected{reason} | failure replies | failure reply | Ack |
/// | likewise | a dead-letter queue | dead letter | Reject{reason} |
/// | likewise | neither | – | Reject{reason} |
/// | Unavailable | | – | Release |
/// | Discarded | a quarantine | quarantine copy | Ack |
/// | Discarded | none | – | Ack |
/// | Known{Ack or Reject} | | what the entry owes | the entry's |
/// | Known{Requeue}, owing nothing | its copy was confirmed | – | Ack |
/// | Known{Requeue} that owes, Known{Release} | never remembered | – | Release |
///
/// A dead-letter queue and failure replies exclude each other for one decision: the failure reply
/// concludes the work. If it is refused for good, the dead-letter queue takes it after all.
pub fn decide(outcome: Outcome, rules: &Rules) -> Decision {
    match outcome {
        Outcome::Completed if rules.reply => Decision::after(Publication::Reply, Disposition::Ack),
        Outcome::Completed => Decision::plain(Disposition::Ack),
        Outcome::TimedOut if rules.failure_reply => conclude(RejectReason::Exhausted, rules),
        Outcome::Failed | Outcome::Panicked | Outcome::TimedOut | Outcome::Gone => {
            retry_or_conclude(rules)
        }
        Outcome::Rejected(reason) => conclude(reason, rules),
        Outcome::Unavailable => Decision::RELEASE,
        Outcome::Discarded if rules.quarantine => {
            Decision::after(Publication::Quarantine, Disposition::Ack)
        }
        Outcome::Discarded => Decision::plain(Disposition::Ack),
        Outcome::Known { disposition, owes } => known(disposition, owes),
    }
}

fn retry_or_conclude(rules: &Rules) -> Decision {
    if rules.attempt.get() >= rules.max_attempts {
        return conclude(RejectReason::Exhausted, rules);
    }
    let again = Disposition::Requeue {
        after: rules.backoff,
    };
    match rules.retry_way {
        RetryWay::Ladder => Decision::after(Publication::RetryCopy, again),
        RetryWay::Broker => Decision::plain(again),
        RetryWay::Hold => Decision {
            hold: true,
            ..Decision::plain(again)
        },
    }
}

fn conclude(reason: RejectReason, rules: &Rules) -> Decision {
    if rules.failure_reply {
        Decision::after(Publication::FailureReply, Disposition::Ack)
    } else if rules.dead_letter {
        let letter = Publication::DeadLetter { trimmed: false };
        Decision::after(letter, Disposition::Reject { reason })
    } else {
        Decision::plain(Disposition::Reject { reason })
    }
}

fn known(disposition: Disposition, owes: Option<Publication>) -> Decision {
    match (disposition, owes) {
        (Disposition::Ack | Disposition::Reject { .. }, owes) => Decision {
            publish: owes,
            ..Decision::plain(disposition)
        },
        (Disposition::Requeue { .. }, None) => Decision::plain(Disposition::Ack),
        (Disposition::Requeue { .. }, Some(_)) | (Disposition::Release, _) => Decision::RELEASE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Duration = Duration::from_secs(7);
    const AGAIN: Disposition = Disposition::Requeue { after: BACKOFF };
    const LETTER: Publication = Publication::DeadLetter { trimmed: false };

    fn rules(change: impl FnOnce(&mut Rules)) -> Rules {
        let mut rules = Rules {
            backoff: BACKOFF,
            ..Rules::default()
        };
        change(&mut rules);
        rules
    }

    fn check(outcome: Outcome, rules: Rules, publish: Option<Publication>, told: Disposition) {
        let decision = decide(outcome, &rules);
        assert_eq!(
            (decision.publish, decision.disposition, decision.hold),
            (publish, told, false),
            "{outcome:?} under {rules:?}"
        );
    }

    fn reject(reason: RejectReason) -> Disposition {
        Disposition::Reject { reason }
    }

    #[test]
    fn completed_work_is_acked_after_its_reply() {
        use Outcome::Completed;
        check(Completed, rules(|_| ()), None, Disposition::Ack);
        let with_reply = rules(|r| r.reply = true);
        let reply = Some(Publication::Reply);
        check(Completed, with_reply, reply, Disposition::Ack);
    }

    #[test]
    fn a_failure_with_attempts_left_is_tried_again_in_each_way() {
        let (failed, panicked) = (Outcome::Failed, Outcome::Panicked);
        for outcome in [failed, panicked, Outcome::TimedOut, Outcome::Gone] {
            let ladder = rules(|r| r.retry_way = RetryWay::Ladder);
            check(outcome, ladder, Some(Publication::RetryCopy), AGAIN);
            let broker = rules(|r| r.retry_way = RetryWay::Broker);
            check(outcome, broker, None, AGAIN);
            let hold = decide(outcome, &rules(|r| r.retry_way = RetryWay::Hold));
            let held = Decision {
                hold: true,
                ..Decision::plain(AGAIN)
            };
            assert_eq!(hold, held, "{outcome:?}");
        }
    }

    #[test]
    fn a_failure_with_attempts_used_up_is_dead_lettered_or_rejected() {
        let exhausted = reject(RejectReason::Exhausted);
        let (failed, panicked) = (Outcome::Failed, Outcome::Panicked);
        for outcome in [failed, panicked, Outcome::TimedOut, Outcome::Gone] {
            let last = |r: &mut Rules| r.attempt = Attempt::new(5);
            check(outcome, rules(last), None, exhausted);
            let with_letter = Rules {
                dead_letter: true,
                ..rules(last)
            };
            check(outcome, with_letter, Some(LETTER), exhausted);
        }
    }

    #[test]
    fn the_last_attempt_but_one_is_tried_again_and_an_attempt_past_the_last_is_not() {
        let at = |attempt| rules(|r| r.attempt = Attempt::new(attempt));
        check(Outcome::Failed, at(4), None, AGAIN);
        for attempt in [5, 6, u32::MAX] {
            let exhausted = reject(RejectReason::Exhausted);
            check(Outcome::Failed, at(attempt), None, exhausted);
        }
        let never = rules(|r| r.max_attempts = 0);
        check(
            Outcome::Failed,
            never,
            None,
            reject(RejectReason::Exhausted),
        );
    }

    #[test]
    fn a_rejection_keeps_its_reason() {
        for reason in [RejectReason::Handler, RejectReason::TooLarge] {
            let outcome = Outcome::Rejected(reason);
            check(outcome, rules(|_| ()), None, reject(reason));
            let with_letter = rules(|r| r.dead_letter = true);
            check(outcome, with_letter, Some(LETTER), reject(reason));
        }
    }

    #[test]
    fn a_failure_reply_concludes_what_will_never_work() {
        let reply = Some(Publication::FailureReply);
        for dead_letter in [false, true] {
            let task = |attempt| Rules {
                attempt: Attempt::new(attempt),
                dead_letter,
                ..rules(|r| r.failure_reply = true)
            };
            let rejected = Outcome::Rejected(RejectReason::Handler);
            check(rejected, task(1), reply, Disposition::Ack);
            check(Outcome::TimedOut, task(1), reply, Disposition::Ack);
            check(Outcome::TimedOut, task(5), reply, Disposition::Ack);
            for outcome in [Outcome::Failed, Outcome::Panicked, Outcome::Gone] {
                check(outcome, task(1), None, AGAIN);
                check(outcome, task(5), reply, Disposition::Ack);
            }
        }
    }

    #[test]
    fn what_is_not_the_messages_fault_goes_back_to_its_place() {
        let all = rules(|r| (r.reply, r.dead_letter, r.failure_reply) = (true, true, true));
        check(Outcome::Unavailable, all, None, Disposition::Release);
    }

    #[test]
    fn what_is_discarded_is_acked_after_its_quarantine_copy() {
        check(Outcome::Discarded, rules(|_| ()), None, Disposition::Ack);
        let kept = rules(|r| r.quarantine = true);
        let copy = Some(Publication::Quarantine);
        check(Outcome::Discarded, kept, copy, Disposition::Ack);
    }

    #[test]
    fn what_is_known_is_settled_as_its_entry_says() {
        let known = |disposition, owes| Outcome::Known { disposition, owes };
        let (reply, letter) = (Some(Publication::Reply), Some(LETTER));
        let rejected = reject(RejectReason::Handler);
        for rules in [rules(|_| ()), rules(|r| r.reply = true)] {
            check(known(Disposition::Ack, None), rules, None, Disposition::Ack);
            check(
                known(Disposition::Ack, reply),
                rules,
                reply,
                Disposition::Ack,
            );
            check(known(rejected, None), rules, None, rejected);
            check(known(rejected, letter), rules, letter, rejected);
            check(known(AGAIN, None), rules, None, Disposition::Ack);
            let unconfirmed = known(AGAIN, Some(Publication::RetryCopy));
            check(unconfirmed, rules, None, Disposition::Release);
            let released = known(Disposition::Release, None);
            check(released, rules, None, Disposition::Release);
        }
    }
}
