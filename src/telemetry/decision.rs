//! The log observer: exactly one decision line per delivery, never a payload, and a line for what
//! an operator should read.

use std::borrow::Cow;
use std::time::Duration;

use acquit_actors::model::{Disposition, Phase, Receipt};
use acquit_actors::ports::{DeliveryEnded, Observer};
use acquit_actors::settlement::Final;

use super::escape::{escape_cut, is_clean};

/// The target of decision lines.
pub const DECISION_TARGET: &str = "acquit::decision";

/// The target of everything else that the engine says.
const ENGINE_TARGET: &str = "acquit::engine";

/// No id in a decision line is longer.
const ID_MAX: usize = 128;

/// No error in a decision line is longer.
const ERROR_MAX: usize = 512;

/// Logs what happens. Costs one look at the filter where decision lines are switched off.
#[derive(Debug, Clone, Copy, Default)]
pub struct LogObserver;

impl Observer for LogObserver {
    fn delivery_ended(&self, ended: &DeliveryEnded) {
        // A message that is rejected for good is what somebody should look at.
        let rejected = matches!(
            ended.end,
            Final::Settled {
                disposition: Disposition::Reject { .. },
                ..
            }
        );
        let wanted = if rejected {
            tracing::enabled!(target: DECISION_TARGET, tracing::Level::WARN)
        } else {
            tracing::enabled!(target: DECISION_TARGET, tracing::Level::INFO)
        };
        if !wanted {
            return;
        }
        let delivery = &ended.delivery;
        let end = End::of(&ended.end);
        macro_rules! say {
            ($level:ident) => {
        tracing::$level!(
            target: DECISION_TARGET,
            consumer = ended.consumer.as_str(),
            partition = delivery.partition.0,
            delivery = ended.number.0,
            message_id = delivery.id.as_ref().map(|id| cut(id.as_str(), ID_MAX)).as_deref(),
            attempt = delivery.attempt.get(),
            outcome = ended.outcome.map(|outcome| outcome.as_str()),
            disposition = end.disposition,
            reason = end.reason,
            after_ms = end.after.map(millis),
            lost = end.lost,
            overrun = end.overrun,
            receipt = ended.receipt.map(receipt),
            error = ended.error.as_deref().map(|error| cut(error, ERROR_MAX)).as_deref(),
            waited_ms = ended.waited.map(millis),
            ran_ms = ended.ran.map(millis),
            lived_ms = millis(ended.lived),
            "delivery ended"
        )
            };
        }
        if rejected {
            say!(warn);
        } else {
            say!(info);
        }
    }

    fn phase_changed(&self, phase: Phase) {
        tracing::info!(target: ENGINE_TARGET, phase = phase.as_str(), "phase changed");
    }

    fn actor_exited(&self, actor: &str, reason: &str, restarted: bool) {
        let reason = cut(reason, ERROR_MAX);
        let reason = reason.as_ref();
        // An orderly end is no news; every other one is.
        match reason {
            "normal" | "shutdown" => {
                tracing::debug!(target: ENGINE_TARGET, actor, reason, restarted, "actor exited");
            }
            _ => tracing::warn!(target: ENGINE_TARGET, actor, reason, restarted, "actor exited"),
        }
    }

    fn notice(&self, text: &str) {
        tracing::warn!(target: ENGINE_TARGET, "{}", cut(text, 2 * ERROR_MAX));
    }
}

/// How a life ended, as fields of a line.
#[derive(Debug, Default, PartialEq)]
struct End {
    disposition: Option<&'static str>,
    reason: Option<&'static str>,
    after: Option<Duration>,
    lost: Option<&'static str>,
    overrun: Option<bool>,
}

impl End {
    fn of(end: &Final) -> Self {
        let overrun = |overrun: bool| overrun.then_some(true);
        match *end {
            Final::Settled {
                disposition,
                overrun: over,
            } => Self {
                disposition: Some(disposition.as_str()),
                reason: match disposition {
                    Disposition::Reject { reason } => Some(reason.as_str()),
                    Disposition::Ack | Disposition::Requeue { .. } | Disposition::Release => None,
                },
                after: match disposition {
                    Disposition::Requeue { after } => Some(after),
                    Disposition::Ack | Disposition::Release | Disposition::Reject { .. } => None,
                },
                lost: None,
                overrun: overrun(over),
            },
            Final::Lost {
                cause,
                overrun: over,
            } => Self {
                lost: Some(cause.as_str()),
                overrun: overrun(over),
                ..Self::default()
            },
        }
    }
}

fn receipt(receipt: Receipt) -> &'static str {
    match receipt {
        Receipt::Confirmed => "confirmed",
        Receipt::Sent => "sent",
    }
}

/// Milliseconds with three decimals.
fn millis(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1000.0
}

/// Escapes and cuts; what is short and clean, as almost everything is, costs nothing.
fn cut(text: &str, max: usize) -> Cow<'_, str> {
    if text.len() <= max && is_clean(text) {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(escape_cut(text, max))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fmt;
    use std::sync::{Arc, Mutex, PoisonError};

    use acquit_actors::model::{
        Attempt, Delivery, DeliveryId, Generation, Outcome, PartitionId, QueueName, RejectReason,
    };
    use acquit_actors::settlement::LostCause;
    use tracing::field::{Field, Visit};
    use tracing_subscriber::Layer;
    use tracing_subscriber::layer::{Context, SubscriberExt};

    use super::*;

    type Line = BTreeMap<&'static str, String>;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<Line>>>);

    impl<S: tracing::Subscriber> Layer<S> for Lines {
        fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
            struct Fields(Line);
            impl Visit for Fields {
                fn record_str(&mut self, field: &Field, value: &str) {
                    self.0.insert(field.name(), value.to_owned());
                }
                fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
                    self.0.insert(field.name(), format!("{value:?}"));
                }
            }
            let mut fields = Fields(Line::new());
            fields
                .0
                .insert("target", event.metadata().target().to_owned());
            event.record(&mut fields);
            let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            lines.push(fields.0);
        }
    }

    fn lines_of(observe: impl FnOnce(&LogObserver)) -> Vec<Line> {
        let lines = Lines::default();
        let subscriber = tracing_subscriber::registry().with(lines.clone());
        tracing::subscriber::with_default(subscriber, || observe(&LogObserver));
        let lines = lines.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.clone()
    }

    fn ended(end: Final) -> DeliveryEnded {
        let queue = QueueName::new("q");
        let body = "the secret body".into();
        let mut delivery = Delivery::new(queue, PartitionId(3), Generation(1), body);
        delivery.id = Some("m-1\nforged".into());
        delivery.attempt = Attempt::new(2);
        let mut ended = DeliveryEnded::new(DeliveryId(7), "words".into(), Arc::new(delivery), end);
        ended.lived = Duration::from_micros(1500);
        ended
    }

    fn check(ended: &DeliveryEnded, expected: &[(&'static str, &str)]) {
        let lines = lines_of(|observer| observer.delivery_ended(ended));
        assert_eq!(lines.len(), 1, "exactly one line");
        let always = [
            ("target", DECISION_TARGET),
            ("message", "delivery ended"),
            ("consumer", "words"),
            ("partition", "3"),
            ("delivery", "7"),
            ("message_id", "m-1\\nforged"),
            ("attempt", "2"),
            ("lived_ms", "1.5"),
        ];
        let expected: Line = always
            .iter()
            .chain(expected)
            .map(|(name, value)| (*name, (*value).to_owned()))
            .collect();
        assert_eq!(lines[0], expected);
    }

    #[test]
    fn one_line_says_all_and_never_the_payload() {
        let mut done = ended(Final::Settled {
            disposition: Disposition::Ack,
            overrun: false,
        });
        done.outcome = Some(Outcome::Completed);
        done.receipt = Some(Receipt::Confirmed);
        done.waited = Some(Duration::from_millis(1));
        done.ran = Some(Duration::from_micros(250));
        let expected = [
            ("outcome", "completed"),
            ("disposition", "ack"),
            ("receipt", "confirmed"),
            ("waited_ms", "1.0"),
            ("ran_ms", "0.25"),
        ];
        check(&done, &expected);

        let mut rejected = ended(Final::Settled {
            disposition: Disposition::Reject {
                reason: RejectReason::Exhausted,
            },
            overrun: true,
        });
        rejected.outcome = Some(Outcome::TimedOut);
        rejected.error = Some("a\r\nb\x1b[2J".to_owned());
        let expected = [
            ("outcome", "timed-out"),
            ("disposition", "reject"),
            ("reason", "exhausted"),
            ("overrun", "true"),
            ("error", "a\\r\\nb\\u{1b}[2J"),
        ];
        check(&rejected, &expected);

        let retried = ended(Final::Settled {
            disposition: Disposition::Requeue {
                after: Duration::from_secs(2),
            },
            overrun: false,
        });
        check(
            &retried,
            &[("disposition", "requeue"), ("after_ms", "2000.0")],
        );

        let lost = ended(Final::Lost {
            cause: LostCause::Lease,
            overrun: false,
        });
        check(&lost, &[("lost", "lease")]);
    }

    #[test]
    fn a_long_error_is_cut() {
        let mut failed = ended(Final::Lost {
            cause: LostCause::Channel,
            overrun: false,
        });
        failed.error = Some("x".repeat(100_000));
        let lines = lines_of(|observer| observer.delivery_ended(&failed));
        assert!(lines[0]["error"].len() <= ERROR_MAX);
    }

    #[test]
    fn what_the_engine_says_is_a_line_too() {
        let lines = lines_of(|observer| {
            observer.phase_changed(Phase::Draining);
            observer.actor_exited("consumer[p0]", "panicked: \x07", true);
            observer.notice("the disk is full\n");
        });
        assert_eq!(lines[0]["phase"], "draining");
        assert_eq!(lines[1]["reason"], "panicked: \\u{7}");
        assert_eq!(lines[1]["restarted"], "true");
        assert_eq!(lines[2]["message"], "the disk is full\\n");
        assert!(lines.iter().all(|line| line["target"] == ENGINE_TARGET));
    }
}
