//! The source and the settler: arrivals of one partition, and the word back about each.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use acquit_actors::model::{Disposition, Generation};
use acquit_actors::ports::{
    Arrival, BoxFuture, LeaseGone, SettleReply, Settler, Source, SourceError,
};
use tokio::sync::oneshot;

use super::broker::Broker;
use super::core::{HandedOut, Tally, Want};
use super::error::EmbeddedError;
use super::job::{Job, Settle, Settlement};
use super::message::{Message, Place};
use super::queue::{DeadNote, PartitionShared, PartitionState, wake};
use super::reader::Read;

/// The source of one partition for one generation.
#[derive(Debug)]
pub(crate) struct EmbeddedSource {
    shared: Arc<SourceShared>,
    credit: u32,
    cancelled: bool,
    /// Kept for its memory between calls.
    handed: Vec<HandedOut<Arc<Message>>>,
}

/// What a source has in common with its settlers.
#[derive(Debug)]
struct SourceShared {
    broker: Arc<Broker>,
    partition: Arc<PartitionShared>,
    generation: Generation,
    id: u64,
}

impl EmbeddedSource {
    /// Opens a source.
    pub(crate) fn open(
        broker: Arc<Broker>,
        partition: Arc<PartitionShared>,
        generation: Generation,
        credit: u32,
    ) -> Self {
        let id = broker.next_source();
        partition.lock().core.open_source(id);
        Self {
            shared: Arc::new(SourceShared {
                broker,
                partition,
                generation,
                id,
            }),
            credit: credit.max(1),
            cancelled: false,
            handed: Vec::new(),
        }
    }

    /// Takes what is ready; `Ready(Ok(0))` once nothing is and nothing is being read either.
    pub(crate) fn poll_ready(
        &mut self,
        cx: &mut Context<'_>,
        max: usize,
        into: &mut Vec<Arrival>,
    ) -> Poll<Result<usize, EmbeddedError>> {
        let shared = Arc::clone(&self.shared);
        let now = shared.broker.clock.now();
        let mut state = shared.partition.lock();
        if shared.broker.is_closed() {
            return Poll::Ready(Err(EmbeddedError::Closed));
        }
        let room = self.credit.saturating_sub(state.core.held_by(shared.id)) as usize;
        let handed = &mut self.handed;
        let count = state
            .core
            .hand_out(now, shared.id, max.min(room), |one| handed.push(one));
        let fetch = (room > 0 && !state.reading)
            .then(|| state.core.want())
            .flatten();
        state.reading |= fetch.is_some();
        let failed = state.failed.take();
        if count == 0 && failed.is_none() {
            state.wait(shared.id, cx.waker());
        }
        let (reading, deadline) = (state.reading, state.core.next_deadline());
        drop(state);
        if let Some(deadline) = deadline {
            shared.broker.timer.arm(deadline);
        }
        shared.fetch(fetch);
        match failed {
            _ if count > 0 => self.hand_over(into),
            Some(error) => return Poll::Ready(Err(error)),
            None if reading => return Poll::Pending,
            None => {}
        }
        Poll::Ready(Ok(count))
    }

    /// Turns hand-outs into arrivals, outside the lock.
    fn hand_over(&mut self, into: &mut Vec<Arrival>) {
        let shared = &self.shared;
        if shared.broker.durable.is_some() {
            shared.note(self.handed.iter().map(|one| (one.seq, one.tally)).collect());
        }
        let place = Place {
            queue: &shared.partition.queue,
            partition: shared.partition.id,
            generation: shared.generation,
            id_prefix: &shared.partition.id_prefix,
        };
        let lease = Some(shared.broker.options.lease);
        into.extend(self.handed.drain(..).map(|one| Arrival {
            delivery: one.payload.delivery(&place, one.seq, one.tally),
            settler: Box::new(EmbeddedSettler {
                shared: Arc::clone(shared),
                seq: one.seq,
                token: one.token,
            }),
            lease,
        }));
    }
}

impl SourceShared {
    fn fetch(&self, want: Option<Want>) {
        if let (Some(want), Some(durable)) = (want, &self.broker.durable) {
            durable.read(Read::Fetch(Arc::clone(&self.partition), want));
        }
    }

    fn close(&self) {
        let mut state = self.partition.lock();
        let given_back = state.core.close_source(self.id);
        state.stop_waiting(self.id);
        let waiting = state.take_waiting();
        // Under the lock: written down later, these counts could overwrite a newer hand-out's.
        self.note(given_back);
        drop(state);
        wake(waiting);
    }

    /// Has the counts of messages written down, without waiting for it.
    fn note(&self, handed: Vec<(u64, Tally)>) {
        if let (Some(durable), false) = (&self.broker.durable, handed.is_empty()) {
            let partition = Arc::clone(&self.partition);
            let _ = durable.intake.push(Job::HandedOut { partition, handed });
        }
    }
}

impl Source for EmbeddedSource {
    fn recv<'a>(
        &'a mut self,
        max: usize,
        into: &'a mut Vec<Arrival>,
    ) -> BoxFuture<'a, Result<(), SourceError>> {
        Box::pin(poll_fn(move |cx| {
            // Nobody can take the broker away: there is nothing to tell until it is resumed.
            if self.cancelled {
                return Poll::Pending;
            }
            match self.poll_ready(cx, max, into) {
                Poll::Ready(Ok(0)) | Poll::Pending => Poll::Pending,
                Poll::Ready(Ok(_)) => Poll::Ready(Ok(())),
                Poll::Ready(Err(error)) => Poll::Ready(Err(error.into())),
            }
        }))
    }

    fn set_credit(&mut self, credit: u32) {
        self.credit = credit.max(1);
        let waiting = self.shared.partition.lock().take_waiting();
        wake(waiting);
    }

    fn cancel(&mut self) -> BoxFuture<'_, Result<(), SourceError>> {
        // Nothing is pushed ahead of `recv`, so there is nothing left to read.
        self.cancelled = true;
        let waiting = self.shared.partition.lock().take_waiting();
        wake(waiting);
        Box::pin(std::future::ready(Ok(())))
    }

    fn resume(&mut self) -> BoxFuture<'_, Result<(), SourceError>> {
        self.cancelled = false;
        Box::pin(std::future::ready(Ok(())))
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            if let Some(durable) = &self.shared.broker.durable {
                let (reply, flushed) = oneshot::channel();
                if durable.intake.push(Job::Barrier(reply)).is_ok() {
                    let _ = flushed.await;
                }
            }
        })
    }
}

impl Drop for EmbeddedSource {
    fn drop(&mut self) {
        self.shared.close();
    }
}

/// Tells the broker about one delivery.
#[derive(Debug)]
struct EmbeddedSettler {
    shared: Arc<SourceShared>,
    seq: u64,
    token: u64,
}

impl Settler for EmbeddedSettler {
    fn settle(self: Box<Self>, disposition: Disposition, reply: SettleReply) {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.partition.lock();
        if shared.broker.is_closed() {
            drop(state);
            return reply.gone();
        }
        let Some(tally) = state.core.begin_settle(self.seq, self.token) else {
            drop(state);
            return reply.gone();
        };
        let what = match disposition {
            Disposition::Ack => Settlement::Ack,
            Disposition::Requeue { after } => Settlement::Requeue { tally, after },
            Disposition::Reject { reason } => Settlement::Dead {
                tally,
                reason: reason.as_str().to_owned(),
            },
            // Only its return is counted: that is written down, and not waited for.
            Disposition::Release => {
                let tally = state.core.give_back(self.seq);
                let waiting = state.take_waiting();
                // Under the lock, as in `close`.
                shared.note(tally.map(|tally| (self.seq, tally)).into_iter().collect());
                drop(state);
                wake(waiting);
                return reply.confirmed();
            }
        };
        match &shared.broker.durable {
            None => {
                let due = settle_in_memory(&shared.broker, &mut state, self.seq, what);
                let waiting = state.take_waiting();
                drop(state);
                if let Some(due) = due {
                    shared.broker.timer.arm(due);
                }
                wake(waiting);
                reply.confirmed();
            }
            Some(durable) => {
                drop(state);
                let settle = Settle {
                    partition: Arc::clone(&shared.partition),
                    seq: self.seq,
                    what,
                    reply,
                    settler: self,
                };
                if let Err(Job::Settle(settle)) = durable.intake.push(Job::Settle(settle)) {
                    settle.reply.gone();
                }
            }
        }
    }

    fn extend(&mut self) -> Result<(), LeaseGone> {
        let now = self.shared.broker.clock.now();
        let mut state = self.shared.partition.lock();
        if state.core.extend(self.seq, self.token, now) {
            Ok(())
        } else {
            Err(LeaseGone)
        }
    }
}

/// Settles where there is no store; gives the due time of a delay.
fn settle_in_memory(
    broker: &Broker,
    state: &mut PartitionState,
    seq: u64,
    what: Settlement,
) -> Option<std::time::Duration> {
    match what {
        Settlement::Ack => {
            state.core.remove(seq);
            None
        }
        Settlement::Requeue { after, .. } => {
            let now = broker.clock.now();
            let due = now.saturating_add(after);
            state.core.requeue(seq, now, due);
            Some(due)
        }
        Settlement::Dead { tally, reason } => {
            let note = DeadNote {
                reason,
                died_millis: broker.clock.wall_millis(),
                tally,
            };
            if let Some(message) = state.core.remove(seq) {
                state.dead.insert(seq, (note, message));
                state.dead_count += 1;
            }
            None
        }
    }
}
