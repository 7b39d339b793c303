//! The way back from other threads to the actors' thread: handlers, settlers and publishers put
//! their answers here, and one task on the actors' thread hands them to the delivery actors.
//!
//! A burst of answers costs one wake-up, not one each: crossing threads is what a delivery's path
//! spends most of its time on.

use std::cell::Cell;
use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use futures_util::task::AtomicWaker;

use crate::model::DeliveryId;
use crate::ports::{HandlerOutcome, PublishError, PublishSink, SettleResult, SettleSink};

/// One answer on its way to a delivery.
pub(crate) enum Completion {
    /// The handler returned a word.
    Returned {
        delivery: DeliveryId,
        outcome: HandlerOutcome,
    },
    /// The handler panicked.
    Panicked { delivery: DeliveryId, text: String },
    /// The handler ended without a word: aborted, or its runtime went.
    Gone { delivery: DeliveryId },
    /// The settler answered.
    Settled {
        delivery: DeliveryId,
        frame: u32,
        result: SettleResult,
    },
    /// The publisher answered; the token is the publisher actor's.
    Published {
        token: u64,
        result: Result<(), PublishError>,
    },
}

/// The queue of answers. Its length is bounded by the deliveries in flight: each owes at most one
/// answer of each kind.
#[derive(Default)]
pub(crate) struct Completions {
    queue: Mutex<Vec<Completion>>,
    waker: AtomicWaker,
}

impl Completions {
    /// Puts an answer in; from any thread.
    pub(crate) fn push(&self, completion: Completion) {
        let was_empty = {
            let mut queue = self.lock();
            let was_empty = queue.is_empty();
            queue.push(completion);
            was_empty
        };
        if was_empty {
            self.waker.wake();
        }
    }

    /// Waits until there are answers and moves them all into `batch`, which must be empty.
    ///
    /// # Cancel safety
    /// Dropping the future loses no answer. One waiter at a time.
    pub(crate) async fn take(&self, batch: &mut Vec<Completion>) {
        poll_fn(|cx| {
            self.waker.register(cx.waker());
            let mut queue = self.lock();
            if queue.is_empty() {
                return Poll::Pending;
            }
            std::mem::swap(&mut *queue, batch);
            Poll::Ready(())
        })
        .await;
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Completion>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

thread_local! {
    /// A settlement that is being started on this thread, and its answer if it comes meanwhile.
    static UNDER_WAY: UnderWay = const { UnderWay { expected: Cell::new(None), answer: Cell::new(None) } };
}

struct UnderWay {
    expected: Cell<Option<(DeliveryId, u32)>>,
    answer: Cell<Option<SettleResult>>,
}

/// Starts a settlement, and gives its answer where the settler answers at once, on this thread:
/// what needs no way round goes none.
pub(crate) fn answered_at_once(
    delivery: DeliveryId,
    frame: u32,
    settle: impl FnOnce(),
) -> Option<SettleResult> {
    /// Expects nothing any more, also when the settler panics.
    struct Over;
    impl Drop for Over {
        fn drop(&mut self) {
            UNDER_WAY.with(|under_way| under_way.expected.set(None));
        }
    }
    UNDER_WAY.with(|under_way| {
        under_way.answer.set(None);
        under_way.expected.set(Some((delivery, frame)));
    });
    let over = Over;
    settle();
    drop(over);
    UNDER_WAY.with(|under_way| under_way.answer.take())
}

impl SettleSink for Completions {
    fn settled(&self, delivery: DeliveryId, frame: u32, result: SettleResult) {
        let mut result = Some(result);
        UNDER_WAY.with(|under_way| {
            if under_way.expected.get() == Some((delivery, frame)) {
                under_way.expected.set(None);
                under_way.answer.set(result.take());
            }
        });
        let Some(result) = result else { return };
        self.push(Completion::Settled {
            delivery,
            frame,
            result,
        });
    }
}

impl PublishSink for Completions {
    fn published(&self, token: u64, result: Result<(), PublishError>) {
        self.push(Completion::Published { token, result });
    }
}

impl fmt::Debug for Completions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completions")
            .field("waiting", &self.lock().len())
            .finish()
    }
}

/// Shares the queue as the sink that settlers answer to.
pub(crate) fn as_settle_sink(completions: &Arc<Completions>) -> Arc<dyn SettleSink> {
    Arc::clone(completions) as Arc<dyn SettleSink>
}
