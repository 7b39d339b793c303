//! Where handlers run: never on the actors' thread. Async handlers get a runtime of their own,
//! blocking ones threads of their own. This is the one place where a handler's panic is caught.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;

use crate::limiter::Permit;
use crate::model::DeliveryId;
use crate::ports::{BoxFuture, DeliveryContext, Handler, HandlerOutcome, RunControl};
use crate::supervision::panic_text;

use super::{Completion, Completions};

/// How many threads the blocking pool may have at all; how many it has at a time is bounded by
/// the permits, since a blocking handler holds its permit until its thread returns.
const BLOCKING_THREADS_MAX: usize = 16_384;

/// Where handlers run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExecutorKind {
    /// On a runtime with so many threads.
    Threads(usize),
    /// On the actors' own thread: for tests on virtual time, where all must share one clock.
    Local,
}

/// One handler to start.
pub(crate) struct Start {
    pub(crate) delivery: DeliveryId,
    pub(crate) handler: Handler,
    pub(crate) context: DeliveryContext,
    pub(crate) control: Arc<RunControl>,
    pub(crate) permit: Option<Permit>,
}

/// Starts handlers.
pub(crate) struct Executor {
    place: Place,
    completions: Arc<Completions>,
    alive: Arc<AtomicUsize>,
}

enum Place {
    Threads {
        queue: Arc<StartQueue>,
        runtime: Option<Runtime>,
    },
    Local,
}

#[derive(Default)]
struct StartQueue {
    starts: Mutex<Vec<Running>>,
    filled: Notify,
}

impl Executor {
    /// Makes the place where handlers run.
    ///
    /// # Errors
    /// When the operating system gives no threads.
    pub(crate) fn new(kind: ExecutorKind, completions: Arc<Completions>) -> std::io::Result<Self> {
        let place = match kind {
            ExecutorKind::Local => Place::Local,
            ExecutorKind::Threads(threads) => {
                let runtime = Builder::new_multi_thread()
                    .worker_threads(threads.max(1))
                    .max_blocking_threads(BLOCKING_THREADS_MAX)
                    .thread_name("acquit-handler")
                    .enable_all()
                    .build()?;
                let queue = Arc::new(StartQueue::default());
                runtime.spawn(dispatch(Arc::clone(&queue)));
                Place::Threads {
                    queue,
                    runtime: Some(runtime),
                }
            }
        };
        Ok(Self {
            place,
            completions,
            alive: Arc::default(),
        })
    }

    /// Starts a handler. Its word comes back as a [`Completion`].
    pub(crate) fn start(&self, start: Start) {
        self.alive.fetch_add(1, Ordering::Relaxed);
        let guard = ReturnGuard {
            delivery: start.delivery,
            completions: Arc::clone(&self.completions),
            alive: Arc::clone(&self.alive),
            told: false,
            _permit: start.permit,
        };
        match (&start.handler, &self.place) {
            (Handler::Async(handler), place) => {
                let handler = Arc::clone(handler);
                let running = Running {
                    work: Work::Unstarted(handler, Some(start.context)),
                    control: start.control,
                    guard: Some(guard),
                };
                match place {
                    Place::Threads { queue, .. } => queue.push(running),
                    Place::Local => drop(tokio::task::spawn_local(running)),
                }
            }
            (Handler::Blocking(handler), place) => {
                let (handler, context) = (Arc::clone(handler), start.context);
                let work = move || run_blocking(&*handler, &context, guard);
                match place {
                    Place::Threads {
                        runtime: Some(runtime),
                        ..
                    } => {
                        drop(runtime.spawn_blocking(work));
                    }
                    Place::Threads { runtime: None, .. } => {}
                    Place::Local => drop(tokio::task::spawn_blocking(work)),
                }
            }
        }
    }

    /// Counts the handlers at work, those of concluded deliveries included.
    pub(crate) fn alive(&self) -> usize {
        self.alive.load(Ordering::Relaxed)
    }
}

impl Drop for Executor {
    /// Leaves threads that are still at work to themselves: waiting for them could take for ever.
    fn drop(&mut self) {
        if let Place::Threads { runtime, .. } = &mut self.place
            && let Some(runtime) = runtime.take()
        {
            runtime.shutdown_background();
        }
    }
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executor")
            .field("alive", &self.alive())
            .finish_non_exhaustive()
    }
}

impl StartQueue {
    fn push(&self, running: Running) {
        let mut starts = self.starts.lock().unwrap_or_else(PoisonError::into_inner);
        let was_empty = starts.is_empty();
        starts.push(running);
        drop(starts);
        if was_empty {
            self.filled.notify_one();
        }
    }
}

/// Spawns what the actors' thread hands over, a batch at each wake-up.
async fn dispatch(queue: Arc<StartQueue>) {
    let mut batch = Vec::new();
    loop {
        std::mem::swap(
            &mut *queue.starts.lock().unwrap_or_else(PoisonError::into_inner),
            &mut batch,
        );
        if batch.is_empty() {
            queue.filled.notified().await;
            continue;
        }
        for running in batch.drain(..) {
            tokio::spawn(running);
        }
        tokio::task::yield_now().await;
    }
}

fn run_blocking(
    handler: &dyn crate::ports::BlockingHandler,
    context: &DeliveryContext,
    guard: ReturnGuard,
) {
    match catch_unwind(AssertUnwindSafe(|| handler.handle(context))) {
        Ok(outcome) => guard.returned(outcome),
        Err(panic) => guard.panicked(&*panic),
    }
}

/// One async handler at work, as a future that never panics.
struct Running {
    work: Work,
    control: Arc<RunControl>,
    guard: Option<ReturnGuard>,
}

enum Work {
    /// Not polled yet: also the call that makes the future runs where handlers run.
    Unstarted(
        Arc<dyn crate::ports::ErasedHandler>,
        Option<DeliveryContext>,
    ),
    Started(BoxFuture<'static, HandlerOutcome>),
    Ended,
}

impl Future for Running {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let polled = catch_unwind(AssertUnwindSafe(|| this.work.poll(&this.control, cx)));
        let word = match polled {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(Some(outcome))) => Some(Ok(outcome)),
            Ok(Poll::Ready(None)) => None,
            Err(panic) => Some(Err(panic)),
        };
        // The work is dropped before the word goes out: when the delivery is concluded, nothing of
        // the handler is alive (S5). Its drop may panic as well.
        let dropped = catch_unwind(AssertUnwindSafe(|| this.work = Work::Ended));
        if let Some(guard) = this.guard.take() {
            match (word, dropped) {
                (Some(Err(panic)), _) | (Some(Ok(_)), Err(panic)) => guard.panicked(&*panic),
                (Some(Ok(outcome)), Ok(())) => guard.returned(outcome),
                (None, _) => drop(guard),
            }
        }
        Poll::Ready(())
    }
}

impl Work {
    fn poll(&mut self, control: &RunControl, cx: &mut Context<'_>) -> Poll<Option<HandlerOutcome>> {
        if let Self::Unstarted(handler, context) = self {
            if control.is_aborted() {
                return Poll::Ready(None);
            }
            let Some(context) = context.take() else {
                return Poll::Ready(None);
            };
            let future = handler.handle(context);
            *self = Self::Started(future);
        }
        match self {
            Self::Started(future) => control.poll_unless_aborted(future.as_mut(), cx),
            Self::Unstarted(..) | Self::Ended => Poll::Ready(None),
        }
    }
}

/// Reports a handler's end exactly once, also when its task is dropped unfinished; gives its share
/// of the permit back after that.
struct ReturnGuard {
    delivery: DeliveryId,
    completions: Arc<Completions>,
    alive: Arc<AtomicUsize>,
    told: bool,
    _permit: Option<Permit>,
}

impl ReturnGuard {
    fn returned(mut self, outcome: HandlerOutcome) {
        self.tell(Completion::Returned {
            delivery: self.delivery,
            outcome,
        });
    }

    fn panicked(mut self, panic: &(dyn Any + Send)) {
        let text = panic_text(panic);
        self.tell(Completion::Panicked {
            delivery: self.delivery,
            text,
        });
    }

    fn tell(&mut self, completion: Completion) {
        self.told = true;
        self.alive.fetch_sub(1, Ordering::Relaxed);
        self.completions.push(completion);
    }
}

impl Drop for ReturnGuard {
    fn drop(&mut self) {
        if !self.told {
            self.tell(Completion::Gone {
                delivery: self.delivery,
            });
        }
    }
}
