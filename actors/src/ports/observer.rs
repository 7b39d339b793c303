//! The observer: measurements and the decision line.

use std::sync::Arc;
use std::time::Duration;

use crate::model::{ConsumerName, Delivery, DeliveryId, Outcome, Phase, Receipt};
use crate::settlement::Final;

/// Hears what happens. Called on the actors' thread: must not block, and must not panic (a panic
/// is contained and counted, and the observation is lost). All methods do nothing by default.
pub trait Observer: Send + Sync + 'static {
    /// A delivery's life ended: exactly one call per delivery.
    fn delivery_ended(&self, ended: &DeliveryEnded) {
        let _ = ended;
    }

    /// The phase rose.
    fn phase_changed(&self, phase: Phase) {
        let _ = phase;
    }

    /// An actor ended and is, or is not, started again.
    fn actor_exited(&self, actor: &str, reason: &str, restarted: bool) {
        let _ = (actor, reason, restarted);
    }

    /// Something an operator should read: one line, no payload, no secret.
    fn notice(&self, text: &str) {
        let _ = text;
    }
}

/// All there is to say about one ended delivery.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DeliveryEnded {
    /// Its number in this process.
    pub number: DeliveryId,
    /// Whose it was.
    pub consumer: ConsumerName,
    /// What was delivered. Never log its body.
    pub delivery: Arc<Delivery>,
    /// What happened; `None` if nothing did (given back unstarted, lost unstarted).
    pub outcome: Option<Outcome>,
    /// The error's text, cut and without payload, if there was one.
    pub error: Option<String>,
    /// How it ended.
    pub end: Final,
    /// What is known of the settlement, if there was one.
    pub receipt: Option<Receipt>,
    /// From arrival to permit; `None` if it never got one.
    pub waited: Option<Duration>,
    /// From permit to the handler's word; `None` if it never ran.
    pub ran: Option<Duration>,
    /// From arrival to end.
    pub lived: Duration,
}

impl DeliveryEnded {
    /// Makes the report of a delivery that ended without anything else to say: for tests of
    /// observers.
    pub fn new(
        number: DeliveryId,
        consumer: ConsumerName,
        delivery: Arc<Delivery>,
        end: Final,
    ) -> Self {
        Self {
            number,
            consumer,
            delivery,
            outcome: None,
            error: None,
            end,
            receipt: None,
            waited: None,
            ran: None,
            lived: Duration::ZERO,
        }
    }
}

/// Hears nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoObserver;

impl Observer for NoObserver {}
