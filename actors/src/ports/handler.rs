//! The handler: the user's code for one delivery.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::model::Delivery;

use super::BoxFuture;

/// User code for one delivery, async. It runs on the handler runtime, never on the actors'
/// thread: it may block or spin without stalling settlement, limiter or drain (but it then holds a
/// thread of the handler runtime; see [`BlockingHandler`]). A panic is an outcome.
pub trait DeliveryHandler: Send + Sync + 'static {
    /// Does the work. The future is dropped when the deadline passes or the drain is forced, after
    /// [`abort_grace`](Self::abort_grace).
    fn handle(
        &self,
        context: DeliveryContext,
    ) -> impl Future<Output = HandlerOutcome> + Send + 'static;

    /// How long an aborted attempt may take to end by itself after
    /// [`DeliveryContext::cancelled`] resolves. Zero: its future is dropped at once.
    fn abort_grace(&self) -> Duration {
        Duration::ZERO
    }
}

/// User code for one delivery that blocks its thread. It runs on a pool with as many threads as
/// its consumer has permits. It cannot be stopped from outside: a deadline sets
/// [`DeliveryContext::is_cancelled`], settles the delivery, and the permit stays taken until the
/// thread returns.
pub trait BlockingHandler: Send + Sync + 'static {
    /// Does the work.
    fn handle(&self, context: &DeliveryContext) -> HandlerOutcome;
}

/// [`DeliveryHandler`] as an object.
pub trait ErasedHandler: Send + Sync + 'static {
    /// Does the work.
    fn handle(&self, context: DeliveryContext) -> BoxFuture<'static, HandlerOutcome>;
    /// See [`DeliveryHandler::abort_grace`].
    fn abort_grace(&self) -> Duration;
}

impl<H: DeliveryHandler> ErasedHandler for H {
    fn handle(&self, context: DeliveryContext) -> BoxFuture<'static, HandlerOutcome> {
        Box::pin(DeliveryHandler::handle(self, context))
    }
    fn abort_grace(&self) -> Duration {
        DeliveryHandler::abort_grace(self)
    }
}

/// A handler of either kind.
#[derive(Clone)]
pub enum Handler {
    /// Runs on the handler runtime.
    Async(Arc<dyn ErasedHandler>),
    /// Runs on the blocking pool.
    Blocking(Arc<dyn BlockingHandler>),
}

impl Handler {
    /// Wraps an async handler.
    pub fn new(handler: impl DeliveryHandler) -> Self {
        Self::Async(Arc::new(handler))
    }

    /// Wraps a blocking handler.
    pub fn blocking(handler: impl BlockingHandler) -> Self {
        Self::Blocking(Arc::new(handler))
    }

    /// Gives the grace of an abort for this kind.
    pub fn abort_grace(&self) -> Duration {
        match self {
            Self::Async(handler) => handler.abort_grace(),
            Self::Blocking(_) => Duration::ZERO,
        }
    }
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Async(_) => "Handler::Async",
            Self::Blocking(_) => "Handler::Blocking",
        })
    }
}

/// A [`DeliveryHandler`] made of a function; see [`handler_fn`].
pub struct AsyncFnHandler<F>(F);

impl<F> fmt::Debug for AsyncFnHandler<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AsyncFnHandler")
    }
}

/// Makes an async function into a [`Handler`].
///
/// ```
/// use acquit_actors::ports::{HandlerOutcome, handler_fn};
///
/// let handler = handler_fn(|context| async move {
///     let words = context.delivery().body.split(|b| b.is_ascii_whitespace()).count();
///     HandlerOutcome::completed_with(words.to_string())
/// });
/// # let _ = handler;
/// ```
pub fn handler_fn<F, R>(function: F) -> Handler
where
    F: Fn(DeliveryContext) -> R + Send + Sync + 'static,
    R: Future<Output = HandlerOutcome> + Send + 'static,
{
    Handler::new(AsyncFnHandler(function))
}

impl<F, R> DeliveryHandler for AsyncFnHandler<F>
where
    F: Fn(DeliveryContext) -> R + Send + Sync + 'static,
    R: Future<Output = HandlerOutcome> + Send + 'static,
{
    fn handle(
        &self,
        context: DeliveryContext,
    ) -> impl Future<Output = HandlerOutcome> + Send + 'static {
        (self.0)(context)
    }
}

/// The handler's word. Dropping the work without one is an outcome too (Gone).
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "the handler's word decides what the broker is told"]
#[non_exhaustive]
pub enum HandlerOutcome {
    /// The work is done.
    Completed {
        /// The result, published to the reply queue where the consumer has one.
        result: Option<Bytes>,
    },
    /// It failed and may work later.
    Failed {
        /// Why, for people; no payload, no secret.
        error: String,
    },
    /// It will never work: dead-letter it.
    Rejected {
        /// Why, for people; no payload, no secret.
        error: String,
    },
    /// It ended without a word: a command killed by a signal.
    Gone {
        /// What is known of it.
        error: String,
    },
    /// Not the message's fault: the handler cannot be started.
    Unavailable {
        /// Why, for people.
        error: String,
    },
    /// Acknowledge and drop.
    Discarded,
}

impl HandlerOutcome {
    /// Done, with nothing to publish.
    pub fn completed() -> Self {
        Self::Completed { result: None }
    }

    /// Done, with a result.
    pub fn completed_with(result: impl Into<Bytes>) -> Self {
        Self::Completed {
            result: Some(result.into()),
        }
    }

    /// Failed; may work later.
    pub fn failed(error: impl fmt::Display) -> Self {
        Self::Failed {
            error: error.to_string(),
        }
    }

    /// Will never work.
    pub fn rejected(error: impl fmt::Display) -> Self {
        Self::Rejected {
            error: error.to_string(),
        }
    }
}

/// What a handler gets: the delivery, its deadline, and word of its cancellation. It cannot
/// settle: the handler's return value does.
#[derive(Debug, Clone)]
pub struct DeliveryContext {
    delivery: Arc<Delivery>,
    control: Arc<RunControl>,
    deadline: Option<Instant>,
}

impl DeliveryContext {
    /// Makes a context; for handler tests use [`DeliveryContext::detached`].
    pub fn new(
        delivery: Arc<Delivery>,
        control: Arc<RunControl>,
        deadline: Option<Instant>,
    ) -> Self {
        Self {
            delivery,
            control,
            deadline,
        }
    }

    /// Makes a context that nothing will cancel.
    pub fn detached(delivery: Delivery) -> Self {
        Self::new(Arc::new(delivery), Arc::new(RunControl::default()), None)
    }

    /// Gives the delivery.
    pub fn delivery(&self) -> &Delivery {
        &self.delivery
    }

    /// Gives the delivery, shared.
    pub fn delivery_arc(&self) -> &Arc<Delivery> {
        &self.delivery
    }

    /// Gives the moment at which the attempt is aborted.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Tells whether the attempt was told to stop.
    pub fn is_cancelled(&self) -> bool {
        self.control.is_cancelled()
    }

    /// Waits until the attempt is told to stop.
    ///
    /// # Cancel safety
    /// Safe to drop.
    pub async fn cancelled(&self) {
        self.control.cancelled().await;
    }
}

/// How the runtime stops one running attempt: first a word (cancel), then the end (abort).
#[derive(Debug, Default)]
pub struct RunControl {
    stage: AtomicU8,
    cancelled: Notify,
    task: AtomicWaker,
}

impl RunControl {
    const CANCELLED: u8 = 1;
    const ABORTED: u8 = 2;

    /// Tells the handler to stop.
    pub fn cancel(&self) {
        self.stage.fetch_max(Self::CANCELLED, Ordering::AcqRel);
        self.cancelled.notify_waiters();
    }

    /// Tells the handler to stop and drops its future at its next wake, which is now.
    pub fn abort(&self) {
        self.stage.fetch_max(Self::ABORTED, Ordering::AcqRel);
        self.cancelled.notify_waiters();
        self.task.wake();
    }

    /// Tells whether the handler was told to stop.
    pub fn is_cancelled(&self) -> bool {
        self.stage.load(Ordering::Acquire) >= Self::CANCELLED
    }

    /// Tells whether the handler's future is to be dropped.
    pub fn is_aborted(&self) -> bool {
        self.stage.load(Ordering::Acquire) >= Self::ABORTED
    }

    /// Waits until the handler is told to stop.
    ///
    /// # Cancel safety
    /// Safe to drop.
    pub async fn cancelled(&self) {
        let mut notified = pin!(self.cancelled.notified());
        loop {
            notified.as_mut().enable();
            if self.is_cancelled() {
                return;
            }
            notified.as_mut().await;
            notified.set(self.cancelled.notified());
        }
    }

    /// Polls a handler's future unless it is aborted: `None` when it was, and the future must then
    /// be dropped by the caller.
    pub fn poll_unless_aborted<F: Future + ?Sized>(
        &self,
        future: std::pin::Pin<&mut F>,
        cx: &mut std::task::Context<'_>,
    ) -> Poll<Option<F::Output>> {
        if self.is_aborted() {
            return Poll::Ready(None);
        }
        match future.poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => {
                self.task.register(cx.waker());
                if self.is_aborted() {
                    Poll::Ready(None)
                } else {
                    Poll::Pending
                }
            }
        }
    }
}
