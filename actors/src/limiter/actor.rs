//! The limiter actor.
//!
//! - **Role**: hands out permits when the book allows it.
//! - **Parent**: the engine; permanent.
//! - **Owns**: nothing but its timer. The [`PermitBook`] is shared and outlives it: waiters and
//!   permits stay, and the next actor on the same book goes on.
//! - **Messages in**: [`Ask`], [`AskMany`], [`CancelAsk`], [`Resize`], [`LimiterSnapshotRequest`];
//!   and the book's word that something changed.
//! - **Messages out**: through two callbacks, a permit or a refusal for a ticket.
//! - **How it ends**: stopped by its supervisor, or by a panic in a callback. The ticket whose
//!   callback panicked has neither permit nor place in the line: it must ask again. All others wait
//!   on.
//!
//! However many asks and returns come in one batch, it looks once after them.

use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use actix::prelude::{
    Actor, ActorContext, AsyncContext, Context, Handler, Message, MessageResult, SpawnHandle,
    StreamHandler,
};
use futures_util::Stream;

use crate::model::DeliveryId;
use crate::supervision::StopActor;

use super::{
    Ask, AskRefused, LimiterSnapshot, NextPermit, Permit, PermitBook, Resize, ResizeRefused,
};

/// How many permits are handed out before the mailbox gets its turn again.
const GRANTS_PER_LOOK: usize = 256;

/// Receives a permit for a ticket. Runs on the actors' thread; dropping the permit returns it.
pub type GrantedCallback = Rc<dyn Fn(DeliveryId, Permit)>;

/// Receives the refusal of a ticket that asked. Runs on the actors' thread.
pub type RefusedCallback = Rc<dyn Fn(DeliveryId, AskRefused)>;

/// Hands out permits when the book allows it.
pub struct LimiterActor {
    book: PermitBook,
    on_granted: GrantedCallback,
    on_refused: RefusedCallback,
    /// When a rate allows more, and the timer that tells.
    timer: Option<(Duration, SpawnHandle)>,
}

impl LimiterActor {
    /// Makes the actor of a book: one at a time. The callbacks must not panic.
    pub fn new(book: PermitBook, on_granted: GrantedCallback, on_refused: RefusedCallback) -> Self {
        Self {
            book,
            on_granted,
            on_refused,
            timer: None,
        }
    }

    fn look(&mut self, ctx: &mut Context<Self>) {
        let now = self.book.now();
        for _ in 0..GRANTS_PER_LOOK {
            match self.book.grant_next(now) {
                NextPermit::Granted(ticket, permit) => (self.on_granted)(ticket, permit),
                NextPermit::Blocked(look_again) => return self.set_timer(now, look_again, ctx),
            }
        }
        ctx.address().do_send(LookOn);
    }

    /// An earlier timer is left to fire: it looks, and sets the next.
    fn set_timer(&mut self, now: Duration, due: Option<Duration>, ctx: &mut Context<Self>) {
        let Some(due) = due else {
            return;
        };
        match self.timer {
            Some((earlier, _)) if earlier <= due => return,
            Some((_, later)) => {
                ctx.cancel_future(later);
            }
            None => {}
        }
        let timer = ctx.run_later(due.saturating_sub(now), |actor, ctx| {
            actor.timer = None;
            actor.look(ctx);
        });
        self.timer = Some((due, timer));
    }

    fn refuse(&self, refused: impl IntoIterator<Item = (DeliveryId, AskRefused)>) {
        for (ticket, error) in refused {
            (self.on_refused)(ticket, error);
        }
    }
}

impl fmt::Debug for LimiterActor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimiterActor").finish_non_exhaustive()
    }
}

impl Actor for LimiterActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.add_stream(Changes(self.book.clone()));
        // Who waited for an actor before this one, or for none, is looked at now.
        self.book.wake();
    }
}

impl Handler<StopActor> for LimiterActor {
    type Result = ();

    fn handle(&mut self, _: StopActor, ctx: &mut Self::Context) {
        ctx.stop();
    }
}

/// Asks for many permits at once. A refusal comes by the callback.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AskMany(pub Vec<Ask>);

impl Message for AskMany {
    type Result = ();
}

/// [`Ask`] has no answer: the permit, or the refusal, comes by a callback.
impl Message for Ask {
    type Result = ();
}

/// Takes an ask back. Nothing happens if its permit is on its way: dropping that returns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CancelAsk {
    /// Who asked.
    pub ticket: DeliveryId,
}

impl Message for CancelAsk {
    type Result = ();
}

/// Asks that became impossible are refused by the callback.
impl Message for Resize {
    type Result = Result<(), ResizeRefused>;
}

/// Asks for a [`LimiterSnapshot`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimiterSnapshotRequest;

impl Message for LimiterSnapshotRequest {
    type Result = LimiterSnapshot;
}

/// To itself: go on after [`GRANTS_PER_LOOK`].
struct LookOn;

impl Message for LookOn {
    type Result = ();
}

impl Handler<Ask> for LimiterActor {
    type Result = ();

    fn handle(&mut self, ask: Ask, _ctx: &mut Self::Context) {
        let refused = self.book.ask(ask).err();
        self.refuse(refused.map(|error| (ask.ticket, error)));
    }
}

impl Handler<AskMany> for LimiterActor {
    type Result = ();

    fn handle(&mut self, AskMany(asks): AskMany, _ctx: &mut Self::Context) {
        let refused = self.book.ask_many(asks);
        self.refuse(refused);
    }
}

impl Handler<CancelAsk> for LimiterActor {
    type Result = ();

    fn handle(&mut self, cancel: CancelAsk, _ctx: &mut Self::Context) {
        self.book.cancel(cancel.ticket);
    }
}

impl Handler<Resize> for LimiterActor {
    type Result = Result<(), ResizeRefused>;

    fn handle(&mut self, resize: Resize, _ctx: &mut Self::Context) -> Self::Result {
        let impossible = self.book.resize(resize)?;
        self.refuse(impossible);
        Ok(())
    }
}

impl Handler<LimiterSnapshotRequest> for LimiterActor {
    type Result = MessageResult<LimiterSnapshotRequest>;

    fn handle(&mut self, _: LimiterSnapshotRequest, _ctx: &mut Self::Context) -> Self::Result {
        MessageResult(self.book.snapshot())
    }
}

impl Handler<LookOn> for LimiterActor {
    type Result = ();

    fn handle(&mut self, _: LookOn, ctx: &mut Self::Context) {
        self.look(ctx);
    }
}

/// The book's word that something changed.
struct Changed;

/// Gives [`Changed`] once for any number of changes since the last. It never ends.
struct Changes(PermitBook);

impl Stream for Changes {
    type Item = Changed;

    fn poll_next(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Option<Changed>> {
        self.0.poll_changed(cx).map(|()| Some(Changed))
    }
}

impl StreamHandler<Changed> for LimiterActor {
    fn handle(&mut self, _: Changed, ctx: &mut Self::Context) {
        self.look(ctx);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use crate::limiter::{
        ConsumerIndex, ConsumerLimits, ConsumerShape, LimiterLimits, PermitKey, Rate,
    };
    use crate::model::PartitionId;
    use actix::{Addr, System};
    use std::cell::Cell;
    use std::future::Future;
    use std::num::NonZeroU32;
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
    use tokio::time::{Instant, timeout};

    fn on_paused_time(test: impl Future<Output = ()>) {
        let runtime = || {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .start_paused(true)
                .build()
                .unwrap()
        };
        System::with_tokio_rt(runtime).block_on(test);
    }

    fn book(permits: u32, rate: Option<&str>) -> PermitBook {
        let limits = ConsumerLimits {
            permits,
            rate: None,
        };
        let shape = ConsumerShape {
            partitions: NonZeroU32::MIN,
            limits,
        };
        let rate = rate.map(|rate| rate.parse::<Rate>().unwrap());
        let limits = LimiterLimits {
            permits,
            in_flight_bytes: 1_000,
            rate,
        };
        PermitBook::new(limits, &[shape])
    }

    fn ask(ticket: u64, bytes: u64) -> Ask {
        Ask {
            key: PermitKey::new(ConsumerIndex(0), PartitionId(0)),
            ticket: DeliveryId(ticket),
            bytes,
        }
    }

    /// The actor and what its callbacks heard.
    struct Rig {
        limiter: Addr<LimiterActor>,
        granted: UnboundedReceiver<(DeliveryId, Permit)>,
        refused: UnboundedReceiver<(DeliveryId, AskRefused)>,
    }

    fn start(book: &PermitBook) -> Rig {
        let (to_granted, granted) = unbounded_channel();
        let (to_refused, refused) = unbounded_channel();
        let limiter = LimiterActor::new(
            book.clone(),
            Rc::new(move |ticket, permit| drop(to_granted.send((ticket, permit)))),
            Rc::new(move |ticket, error| drop(to_refused.send((ticket, error)))),
        )
        .start();
        Rig {
            limiter,
            granted,
            refused,
        }
    }

    impl Rig {
        async fn granted(&mut self) -> (u64, Permit) {
            let next = timeout(Duration::from_secs(3_600), self.granted.recv()).await;
            let (ticket, permit) = next.expect("a permit comes in time").unwrap();
            (ticket.0, permit)
        }

        async fn snapshot(&self) -> LimiterSnapshot {
            self.limiter.send(LimiterSnapshotRequest).await.unwrap()
        }
    }

    #[test]
    fn a_returned_permit_goes_to_the_next_in_line() {
        on_paused_time(async {
            let mut rig = start(&book(2, None));
            rig.limiter.do_send(ask(1, 5));
            rig.limiter
                .do_send(AskMany((1..5).map(|at| ask(at, 5)).collect()));
            let first = rig.granted().await;
            let second = rig.granted().await;
            assert_eq!((first.0, second.0), (1, 2), "asking again changed nothing");
            let snapshot = rig.snapshot().await;
            assert_eq!((snapshot.taken, snapshot.waiting.count), (2, 2));
            assert!(rig.granted.try_recv().is_err());
            rig.limiter.do_send(CancelAsk {
                ticket: DeliveryId(3),
            });
            drop(second);
            assert_eq!(rig.granted().await.0, 4);
        });
    }

    #[test]
    fn a_permit_that_returns_on_another_thread_wakes_the_limiter() {
        on_paused_time(async {
            let mut rig = start(&book(1, None));
            rig.limiter.do_send(AskMany(vec![ask(1, 0), ask(2, 0)]));
            let (_, permit) = rig.granted().await;
            let handler = std::thread::spawn(move || drop(permit));
            // No bound in time here: a paused clock runs ahead of other threads.
            let next = rig.granted.recv().await;
            assert_eq!(next.unwrap().0, DeliveryId(2));
            handler.join().unwrap();
        });
    }

    #[test]
    fn a_rate_is_kept_to_the_millisecond_by_one_timer() {
        on_paused_time(async {
            let started = Instant::now();
            let mut rig = start(&book(10, Some("4/s burst 1")));
            rig.limiter
                .do_send(AskMany((0..5).map(|at| ask(at, 0)).collect()));
            for number in 0..5 {
                assert_eq!(rig.granted().await.0, number);
                let due = Duration::from_millis(250 * number);
                let late = started.elapsed().checked_sub(due).unwrap();
                assert!(late < Duration::from_millis(5), "{late:?}");
            }
        });
    }

    #[test]
    fn a_rate_that_is_lifted_or_raised_does_not_wait_for_the_old_timer() {
        on_paused_time(async {
            let mut rig = start(&book(10, Some("1/h")));
            rig.limiter
                .do_send(AskMany((0..5).map(|at| ask(at, 0)).collect()));
            assert_eq!(rig.granted().await.0, 0);
            let started = Instant::now();
            let faster = Resize::ProcessRate(Some("1/s".parse().unwrap()));
            rig.limiter.send(faster).await.unwrap().unwrap();
            assert_eq!(rig.granted().await.0, 1);
            assert!(started.elapsed() < Duration::from_secs(2));
            let lifted = Resize::ProcessRate(None);
            rig.limiter.send(lifted).await.unwrap().unwrap();
            for number in 2..5 {
                assert_eq!(rig.granted().await.0, number);
            }
            assert!(started.elapsed() < Duration::from_secs(2));
        });
    }

    #[test]
    fn what_can_never_be_granted_is_refused_by_the_callback() {
        on_paused_time(async {
            let mut rig = start(&book(0, None));
            rig.limiter.do_send(ask(1, 1_001));
            rig.limiter
                .do_send(AskMany(vec![ask(2, 900), ask(3, 2_000), ask(4, 1)]));
            let smaller = Resize::InFlightBytes(500);
            rig.limiter.send(smaller).await.unwrap().unwrap();
            for (ticket, in_flight_bytes_max) in [(1, 1_000), (3, 1_000), (2, 500)] {
                let (refused, error) = rig.refused.recv().await.unwrap();
                assert_eq!(refused, DeliveryId(ticket));
                assert!(
                    matches!(error, AskRefused::TooLarge { in_flight_bytes_max: max, .. }
                    if max == in_flight_bytes_max)
                );
            }
            assert_eq!(rig.snapshot().await.waiting.count, 1);
            let consumer = ConsumerIndex(3);
            let permits = 1;
            let unknown = Resize::ConsumerPermits { consumer, permits };
            assert!(rig.limiter.send(unknown).await.unwrap().is_err());
        });
    }

    #[test]
    fn more_than_one_look_can_grant_is_granted() {
        on_paused_time(async {
            let many = 3 * GRANTS_PER_LOOK as u64 + 1;
            let mut rig = start(&book(many as u32, None));
            rig.limiter
                .do_send(AskMany((0..many).map(|at| ask(at, 0)).collect()));
            let mut held = Vec::new();
            for number in 0..many {
                let (ticket, permit) = rig.granted().await;
                assert_eq!(ticket, number);
                held.push(permit);
            }
        });
    }

    #[test]
    fn one_batch_of_asks_is_looked_at_once() {
        on_paused_time(async {
            let book = book(4, None);
            let seen = Rc::new(Cell::new(0));
            let (watched, at_first) = (book.clone(), Rc::clone(&seen));
            let on_granted: GrantedCallback = Rc::new(move |_, _permit| {
                if at_first.get() == 0 {
                    at_first.set(watched.snapshot().waiting.count);
                }
            });
            let limiter = LimiterActor::new(book, on_granted, Rc::new(|_, _| {})).start();
            (0..10).for_each(|ticket| limiter.do_send(ask(ticket, 0)));
            limiter.send(LimiterSnapshotRequest).await.unwrap();
            tokio::time::advance(Duration::from_millis(1)).await;
            assert_eq!(seen.get(), 9, "all ten had asked before the first grant");
        });
    }

    #[test]
    fn a_new_actor_goes_on_with_the_waiters_of_one_that_panicked() {
        on_paused_time(async {
            let book = book(3, None);
            let panics: GrantedCallback = Rc::new(|_, _permit| {
                std::panic::resume_unwind(Box::new("the registry has a bug"));
            });
            let first = LimiterActor::new(book.clone(), panics, Rc::new(|_, _| {})).start();
            first.do_send(AskMany((0..5).map(|at| ask(at, 10)).collect()));
            assert!(first.send(LimiterSnapshotRequest).await.is_ok());
            let died = timeout(Duration::from_secs(1), async {
                while first.connected() {
                    tokio::task::yield_now().await;
                }
            });
            died.await.expect("it died");
            let left = book.snapshot();
            assert_eq!((left.taken, left.in_flight_bytes), (0, 0), "it came back");
            assert_eq!(left.waiting.count, 4);

            let mut rig = start(&book);
            let held = [
                rig.granted().await,
                rig.granted().await,
                rig.granted().await,
            ];
            assert_eq!(held.each_ref().map(|(ticket, _)| *ticket), [1, 2, 3]);
            rig.limiter.do_send(ask(0, 10));
            drop(held);
            assert_eq!(rig.granted().await.0, 4);
            assert_eq!(rig.granted().await.0, 0, "it asked again");
        });
    }
}
