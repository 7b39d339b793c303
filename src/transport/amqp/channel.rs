//! One channel of one generation: what its reader, its flusher and its settlers share.
//!
//! ```text
//! reader (client's runtime) ─► inbox ─► recv (actors' thread) ─► deliveries
//!                                                                   │ settle
//! broker ◄─ frames ◄─ flusher (client's runtime) ◄─ coalescer ◄─────┘
//! ```

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use acquit_actors::model::Disposition;
use acquit_actors::ports::{Arrival, SettleReply, Settler, SourceError};
use futures_util::future::join_all;
use lapin::Acker;
use lapin::options::{BasicAckOptions, BasicNackOptions, BasicRejectOptions};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::coalescer::{AckFrame, Coalescer, Return, flush_at};

/// How long a decided ack waits for others to go with it.
const FLUSH_AFTER: Duration = Duration::from_micros(500);

/// So often in a row the flusher finds nothing before it waits to be woken.
const IDLE_LOOKS_MAX: u32 = 4;

/// A decision on its way to the broker.
struct Owed {
    acker: Acker,
    reply: SettleReply,
}

impl fmt::Debug for Owed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owed").finish_non_exhaustive()
    }
}

/// What happened to a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Written {
    /// It is in the socket.
    Sent,
    /// It never left: its channel had ended.
    Gone,
    /// Nobody knows.
    Unknown,
    /// Nobody knows, and it may still be written: behind one that is sent after it.
    Late,
}

#[derive(Debug)]
struct State {
    coalescer: Coalescer<Owed>,
    inbox: VecDeque<Arrival>,
    /// Who waits in `recv`.
    reader: Option<Waker>,
    /// The flusher looks by itself soon: nobody has to wake it for what need not be flushed at once.
    looking: bool,
    /// The channel is over.
    end: Option<SourceError>,
    /// When the last ack was written.
    acked_at: Option<Instant>,
}

/// What is shared by all who deal with a channel.
#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    /// Something has been decided.
    decided: Notify,
    /// Enough has been decided.
    due: Notify,
    answer_timeout: Duration,
    /// A reject is told as an ack.
    drop_dead: bool,
}

impl Shared {
    pub(super) fn new(answer_timeout: Duration, drop_dead: bool) -> Self {
        let state = State {
            coalescer: Coalescer::new(),
            inbox: VecDeque::new(),
            reader: None,
            looking: false,
            end: None,
            acked_at: None,
        };
        Self {
            state: Mutex::new(state),
            decided: Notify::new(),
            due: Notify::new(),
            answer_timeout,
            drop_dead,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // The inbox.

    /// Hands arrivals over, oldest first. `false`: the broker counts its tags in a way that we
    /// cannot follow, and the channel must not be used any longer.
    pub(super) fn arrived(self: &Arc<Self>, batch: &mut Vec<(u64, Acker, NewArrival)>) -> bool {
        let mut state = self.lock();
        if state.end.is_some() {
            batch.clear();
            return true;
        }
        for (tag, acker, new) in batch.drain(..) {
            if state.coalescer.delivered(tag).is_err() {
                return false;
            }
            let settler = AmqpSettler {
                shared: Arc::clone(self),
                tag,
                acker,
            };
            state.inbox.push_back(Arrival {
                delivery: new.0,
                settler: Box::new(settler),
                lease: None,
            });
        }
        let reader = state.reader.take();
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
        true
    }

    /// A subscription begins, which pushes at most so many ahead.
    pub(super) fn subscribed(&self, credit: u32, at_work: u32) {
        let flush_at = flush_at(credit, at_work);
        self.lock().coalescer.set_flush_at(flush_at);
    }

    /// The channel is over: what arrived and was not read is the broker's again and never starts
    /// here; what was decided and not sent is stale.
    pub(super) fn end(&self, error: SourceError) {
        let (unsent, unread, reader) = {
            let mut state = self.lock();
            if state.end.is_some() {
                return;
            }
            state.end = Some(error);
            let unsent = state.coalescer.take_unsent();
            let unread = std::mem::take(&mut state.inbox);
            (unsent, unread, state.reader.take())
        };
        // First of all who knows why: those who hear only that it is gone have it opened anew.
        if let Some(reader) = reader {
            reader.wake();
        }
        drop(unread);
        for owed in unsent {
            owed.reply.gone();
        }
        self.decided.notify_one();
    }

    pub(super) fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        max: usize,
        into: &mut Vec<Arrival>,
    ) -> Poll<Result<(), SourceError>> {
        let mut state = self.lock();
        if !state.inbox.is_empty() {
            let count = state.inbox.len().min(max);
            into.extend(state.inbox.drain(..count));
            return Poll::Ready(Ok(()));
        }
        if let Some(end) = &state.end {
            return Poll::Ready(Err(end.clone()));
        }
        match &mut state.reader {
            Some(waker) if waker.will_wake(cx.waker()) => {}
            reader => *reader = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    // Settling.

    fn decide(&self, tag: u64, owed: Owed, back: Option<Return>) {
        let mut state = self.lock();
        if state.end.is_some() {
            drop(state);
            return owed.reply.gone();
        }
        let first = state.coalescer.waiting() == 0 && !state.looking;
        if let Err((_, owed)) = state.coalescer.decide(tag, owed, back) {
            // Decided before: the type does not let that happen.
            drop(state);
            return owed.reply.unknown();
        }
        let due = state.coalescer.is_due();
        drop(state);
        if due {
            self.due.notify_one();
        }
        if first {
            self.decided.notify_one();
        }
    }

    /// Writes what is decided, until the channel ends. Runs on the client's runtime.
    ///
    /// While there is something to write now and then it looks by itself: to be woken costs both
    /// sides more than to look.
    pub(super) async fn run_flusher(self: Arc<Self>) {
        loop {
            self.decided.notified().await;
            let mut idle = 0;
            loop {
                let (waiting, due) = {
                    let mut state = self.lock();
                    if state.end.is_some() {
                        return;
                    }
                    let waiting = state.coalescer.waiting();
                    state.looking = waiting > 0 || idle < IDLE_LOOKS_MAX;
                    if !state.looking {
                        break;
                    }
                    (waiting, state.coalescer.is_due())
                };
                if !due {
                    let due = self.due.notified();
                    let _ = tokio::time::timeout(FLUSH_AFTER, due).await;
                }
                idle = if waiting > 0 { 0 } else { idle + 1 };
                self.flush().await;
            }
        }
    }

    /// Writes what is decided now: returns, and when they have been written the acks.
    async fn flush(&self) {
        let returns = self.lock().coalescer.take_returns();
        if !returns.is_empty() {
            let frames = returns.into_iter().map(|(_, owed, back)| async move {
                let written = self.write(give_back(&owed.acker, back)).await;
                (owed, written)
            });
            let mut late = false;
            for (owed, written) in join_all(frames).await {
                late |= written == Written::Late;
                answer(owed, written);
            }
            if late {
                return self.end_late();
            }
        }
        let acks = self.lock().coalescer.take_acks();
        if acks.is_empty() {
            return;
        }
        let frames = acks.into_iter().map(|frame| async move {
            let AckFrame {
                multiple, owners, ..
            } = frame;
            let options = BasicAckOptions { multiple };
            let written = match owners.last() {
                Some(owed) => self.write(owed.acker.ack(options)).await,
                None => Written::Gone,
            };
            (owners, written)
        });
        let mut late = false;
        for (owners, written) in join_all(frames).await {
            late |= written == Written::Late;
            for owed in owners {
                answer(owed, written);
            }
        }
        self.lock().acked_at = Some(Instant::now());
        if late {
            self.end_late();
        }
    }

    /// A frame that may still leave ends its channel: an ack for many that overtook it would settle
    /// its delivery first, and in another way.
    fn end_late(&self) {
        let limit = self.answer_timeout;
        let text = format!("a settlement could not be written within {limit:?}");
        self.end(SourceError::ChannelLost(text));
    }

    async fn write(&self, frame: impl Future<Output = lapin::Result<bool>>) -> Written {
        match tokio::time::timeout(self.answer_timeout, frame).await {
            Ok(Ok(true)) => Written::Sent,
            Ok(Ok(false)) => Written::Gone,
            Ok(Err(_)) => Written::Unknown,
            Err(_) => Written::Late,
        }
    }

    /// Waits until nothing decided is unsent, but not for long.
    pub(super) async fn flushed(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        while Instant::now() < deadline {
            {
                let state = self.lock();
                if state.end.is_some() || state.coalescer.waiting() == 0 {
                    return;
                }
            }
            self.due.notify_one();
            self.decided.notify_one();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Gives how long ago the last ack was written.
    pub(super) fn since_last_ack(&self) -> Option<Duration> {
        self.lock().acked_at.map(|at| at.elapsed())
    }
}

async fn give_back(acker: &Acker, back: Return) -> lapin::Result<bool> {
    match back {
        Return::Nack => {
            let options = BasicNackOptions {
                multiple: false,
                requeue: true,
            };
            acker.nack(options).await
        }
        Return::Requeue => acker.reject(BasicRejectOptions { requeue: true }).await,
        Return::Reject => acker.reject(BasicRejectOptions { requeue: false }).await,
    }
}

fn answer(owed: Owed, written: Written) {
    match written {
        Written::Sent => owed.reply.sent(),
        Written::Gone => owed.reply.gone(),
        Written::Unknown | Written::Late => owed.reply.unknown(),
    }
}

/// A delivery that has no settler yet.
#[derive(Debug)]
pub(super) struct NewArrival(pub(super) acquit_actors::model::Delivery);

/// Tells RabbitMQ about one delivery.
#[derive(Debug)]
struct AmqpSettler {
    shared: Arc<Shared>,
    tag: u64,
    acker: Acker,
}

impl Settler for AmqpSettler {
    fn settle(self: Box<Self>, disposition: Disposition, reply: SettleReply) {
        let back = match disposition {
            Disposition::Ack => None,
            Disposition::Requeue { .. } => Some(Return::Requeue),
            Disposition::Release => Some(Return::Nack),
            Disposition::Reject { .. } if self.shared.drop_dead => None,
            Disposition::Reject { .. } => Some(Return::Reject),
        };
        let Self { shared, tag, acker } = *self;
        shared.decide(tag, Owed { acker, reply }, back);
    }
}
