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
        if !tracing::enabled!(target: DECISION_TARGET, tracing::Level::INFO) {
            return;
        }
        let delivery = &ended.delivery;
        let end = End::of(&ended.end);
        tracing::info!(
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
        );
    }

    fn phase_changed(&self, phase: Phase) {
        tracing::info!(target: ENGINE_TARGET, phase = phase.as_str(), "phase changed");
    }

    fn actor_exited(&self, actor: &str, reason: &str, restarted: bool) {
        let reason = cut(reason, ERROR_MAX);
        let reason = reason.as_ref();
        tracing::warn!(target: ENGINE_TARGET, actor, reason, restarted, "actor exited");
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
