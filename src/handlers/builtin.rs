//! The built-in handlers: for trying things out, for load tests, and for queues to be emptied.

use std::future::{Future, ready};

use acquit_actors::ports::{DeliveryContext, DeliveryHandler, HandlerOutcome};

use super::escape_line;

/// The result is the body, unchanged and uncopied.
#[derive(Debug, Clone, Copy, Default)]
pub struct Echo;

impl DeliveryHandler for Echo {
    fn handle(
        &self,
        context: DeliveryContext,
    ) -> impl Future<Output = HandlerOutcome> + Send + 'static {
        ready(HandlerOutcome::completed_with(
            context.delivery().body.clone(),
        ))
    }
}

/// Acknowledges everything and has no result.
#[derive(Debug, Clone, Copy, Default)]
pub struct Discard;

impl DeliveryHandler for Discard {
    fn handle(
        &self,
        _context: DeliveryContext,
    ) -> impl Future<Output = HandlerOutcome> + Send + 'static {
        ready(HandlerOutcome::completed())
    }
}

/// Logs one line of metadata for each delivery and acknowledges it. Neither the body nor a header
/// value is ever logged; what a producer chose (the id) is escaped and cut.
#[derive(Debug, Clone, Copy, Default)]
pub struct Log;

/// An id in the log is cut to this many bytes.
const LOGGED_ID_MAX: usize = 256;

impl DeliveryHandler for Log {
    fn handle(
        &self,
        context: DeliveryContext,
    ) -> impl Future<Output = HandlerOutcome> + Send + 'static {
        let delivery = context.delivery();
        let id = delivery
            .id
            .as_ref()
            .map(|id| escape_line(id.as_str().as_bytes(), LOGGED_ID_MAX));
        tracing::info!(
            target: "acquit::handler::log",
            queue = %escape_line(delivery.queue.as_str().as_bytes(), LOGGED_ID_MAX),
            partition = %delivery.partition,
            id = id.as_deref(),
            attempt = %delivery.attempt,
            redelivered = delivery.redelivered,
            headers = delivery.headers.len(),
            body_bytes = delivery.body.len(),
            "delivery",
        );
        ready(HandlerOutcome::completed())
    }
}

#[cfg(test)]
mod tests {
    use acquit_actors::model::{Delivery, Generation, PartitionId};
    use bytes::Bytes;
    use futures_util::FutureExt;

    use super::*;

    fn check(handler: impl DeliveryHandler, expected: HandlerOutcome) {
        let delivery = Delivery::new(
            "q".into(),
            PartitionId(0),
            Generation(0),
            Bytes::from_static(b"body"),
        );
        let outcome = handler.handle(DeliveryContext::detached(delivery));
        assert_eq!(outcome.now_or_never(), Some(expected));
    }

    #[test]
    fn built_ins_answer_at_once() {
        check(Echo, HandlerOutcome::completed_with("body"));
        check(Discard, HandlerOutcome::completed());
        check(Log, HandlerOutcome::completed());
    }
}
