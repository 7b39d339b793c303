//! Links: how a child's end becomes one report to whoever started it.
//!
//! A linked child runs as one task ([`Linked`]) that catches a panic at the poll, drops what it
//! ran, and only then reports; if the task itself is dropped (abort, arbiter or runtime gone), the
//! drop reports. The report is taken out of its cell when it is given, so it is given once.
//!
//! The panic is caught at the poll instead of read from the `JoinHandle`, because then the actor's
//! `stopping`, `stopped` and `Drop` run after the unwinding: one that panics too is contained and
//! does not abort the process.

use std::any::Any;
use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context as TaskContext, Poll};

use actix::prelude::*;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use super::SupervisorActor;
use super::rules::ExitReason;
use super::spec::ExitObserver;
use super::tree::NodeKind;

/// Asks an actor to finish and to end its context (`ctx.stop()`), after which its supervisor hears
/// of it. An actor that needs time takes it, up to its stop timeout; then it is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub struct StopActor;

/// A child's side of its link: given to the factory, kept by the child if it has a word to say
/// about its own end. Clones share one link. Dropping it does nothing.
#[derive(Clone)]
pub struct Link(Rc<LinkCell>);

type Report = Box<dyn FnOnce(ExitReason)>;

struct LinkCell {
    path: Rc<str>,
    observer: Option<ExitObserver>,
    said: RefCell<Option<ExitReason>>,
    stop_asked: Cell<bool>,
    stop_token: OnceCell<CancellationToken>,
    report: Cell<Option<Report>>,
}

impl Link {
    /// Makes a link for one incarnation of a child at `path`. `report` hears of its end: exactly
    /// once if a child is started with the link. It may be called while the child's task is
    /// dropped, so it must not block or panic; a message to an actor is what it is for.
    pub fn new(path: impl Into<Rc<str>>, report: impl FnOnce(ExitReason) + 'static) -> Self {
        Self::observed(path.into(), None, report)
    }

    pub(super) fn observed(
        path: Rc<str>,
        observer: Option<ExitObserver>,
        report: impl FnOnce(ExitReason) + 'static,
    ) -> Self {
        Self(Rc::new(LinkCell {
            path,
            observer,
            said: RefCell::new(None),
            stop_asked: Cell::new(false),
            stop_token: OnceCell::new(),
            report: Cell::new(Some(Box::new(report))),
        }))
    }

    /// Sets how this incarnation ends, to be followed by `ctx.stop()` or the future's return. A
    /// later word replaces an earlier one; a panic or a kill counts before either.
    pub fn exit_with(&self, reason: ExitReason) {
        *self.0.said.borrow_mut() = Some(reason);
    }

    /// Gives the place in the tree, such as `engine/consumers/words.0`.
    pub fn path(&self) -> &str {
        &self.0.path
    }

    /// Says whether the child was asked to stop.
    pub fn is_stop_asked(&self) -> bool {
        self.0.stop_asked.get()
    }

    /// Gives a token that is cancelled when the child is asked to stop: what a child that is a
    /// plain future waits on. It may be sent to other threads.
    pub fn stop_token(&self) -> CancellationToken {
        let token = self.0.stop_token.get_or_init(CancellationToken::new);
        if self.is_stop_asked() {
            token.cancel();
        }
        token.clone()
    }

    pub(super) fn observer(&self) -> Option<ExitObserver> {
        self.0.observer.clone()
    }

    /// Reports the end, unless it was reported.
    pub(super) fn report(&self, reason: ExitReason) {
        if let Some(report) = self.0.report.take() {
            report(reason);
        }
    }

    fn ask_stop(&self) {
        self.0.stop_asked.set(true);
        if let Some(token) = self.0.stop_token.get() {
            token.cancel();
        }
    }

    /// Gives the reason of a plain end.
    fn reason(&self) -> ExitReason {
        let said = self.0.said.borrow_mut().take();
        said.unwrap_or(if self.is_stop_asked() {
            ExitReason::Shutdown
        } else {
            ExitReason::Normal
        })
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("path", &self.0.path)
            .field("stop_asked", &self.0.stop_asked.get())
            .finish_non_exhaustive()
    }
}

/// The parent's side of a link: one running incarnation. It keeps an actor's address, so the
/// actor lives until it stops itself, is asked to stop, or is killed.
///
/// Dropping it kills the child (nothing happens to one that has ended): a parent that dies leaves
/// no orphan.
#[must_use = "dropping it kills the child"]
pub struct Child {
    link: Link,
    task: AbortHandle,
    kept: Kept,
}

enum Kept {
    Actor(Box<dyn StopAddress>),
    Supervisor(Addr<SupervisorActor>),
    Future,
}

impl Child {
    /// Starts an actor as a linked child on the present arbiter.
    ///
    /// `make` gets the context before the actor runs, to take its address or to set its mailbox.
    /// It must make a new value each time.
    ///
    /// # Panics
    ///
    /// Outside of a `LocalSet` (an actix arbiter has one), as [`actix::spawn`] does.
    pub fn start<A>(link: Link, make: impl FnOnce(&mut Context<A>) -> A) -> (Self, Addr<A>)
    where
        A: Actor<Context = Context<A>> + Handler<StopActor>,
    {
        let (task, addr) = spawn_actor(&link, make);
        let kept = Kept::Actor(Box::new(addr.clone()));
        (Self { link, task, kept }, addr)
    }

    /// Starts a future as a linked child on the present arbiter. It hears that it is to stop by
    /// [`Link::stop_token`], and ends by returning; how, it says with [`Link::exit_with`].
    ///
    /// # Panics
    ///
    /// Outside of a `LocalSet`, as [`actix::spawn`] does.
    pub fn future(link: Link, future: impl Future<Output = ()> + 'static) -> Self {
        let task = spawn_linked(&link, Box::pin(future));
        let kept = Kept::Future;
        Self { link, task, kept }
    }

    pub(super) fn supervisor(
        link: Link,
        make: impl FnOnce(&mut Context<SupervisorActor>) -> SupervisorActor,
    ) -> Self {
        let (task, addr) = spawn_actor(&link, make);
        let kept = Kept::Supervisor(addr);
        Self { link, task, kept }
    }

    /// Asks it to stop. It may take its time; whoever asks bounds it and then kills.
    pub fn ask_stop(&self) {
        self.link.ask_stop();
        match &self.kept {
            Kept::Actor(addr) => addr.ask_stop(),
            Kept::Supervisor(addr) => addr.do_send(StopActor),
            Kept::Future => {}
        }
    }

    /// Aborts it: it is dropped at its next yield, and reports `Killed`.
    pub fn kill(&self) {
        self.task.abort();
    }

    pub(super) fn kind(&self) -> NodeKind {
        match self.kept {
            Kept::Actor(_) => NodeKind::Actor,
            Kept::Supervisor(_) => NodeKind::Supervisor,
            Kept::Future => NodeKind::Future,
        }
    }

    pub(super) fn as_supervisor(&self) -> Option<&Addr<SupervisorActor>> {
        match &self.kept {
            Kept::Supervisor(addr) => Some(addr),
            Kept::Actor(_) | Kept::Future => None,
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl fmt::Debug for Child {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Child")
            .field("link", &self.link)
            .field("kind", &self.kind())
            .finish_non_exhaustive()
    }
}

/// An address of any actor that can be asked to stop.
trait StopAddress {
    fn ask_stop(&self);
}

impl<A> StopAddress for Addr<A>
where
    A: Actor<Context = Context<A>> + Handler<StopActor>,
{
    fn ask_stop(&self) {
        self.do_send(StopActor);
    }
}

fn spawn_actor<A>(link: &Link, make: impl FnOnce(&mut Context<A>) -> A) -> (AbortHandle, Addr<A>)
where
    A: Actor<Context = Context<A>>,
{
    let mut ctx = Context::<A>::new();
    let addr = ctx.address();
    let actor = make(&mut ctx);
    (spawn_linked(link, ctx.into_future(actor)), addr)
}

fn spawn_linked(link: &Link, future: impl Future<Output = ()> + Unpin + 'static) -> AbortHandle {
    let linked = Linked {
        future: Some(future),
        link: link.clone(),
    };
    actix::spawn(linked).abort_handle()
}

/// The task of a linked child.
///
/// Dropping it before it has ended drops what it runs and reports `Killed`; safe anywhere, also
/// while a runtime is torn down.
struct Linked<F> {
    future: Option<F>,
    link: Link,
}

impl<F> Linked<F> {
    /// Drops what ran, then reports: whoever hears of the end finds nothing of it left.
    fn end(&mut self, reason: ExitReason) {
        let future = self.future.take();
        let dropped = catch_unwind(AssertUnwindSafe(move || drop(future)));
        self.link.report(match (reason, dropped) {
            (ExitReason::Panicked(text), _) => ExitReason::Panicked(text),
            (_, Err(payload)) => ExitReason::Panicked(panic_text(&*payload)),
            (reason, Ok(())) => reason,
        });
    }
}

impl<F: Future<Output = ()> + Unpin> Future for Linked<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<()> {
        let this = self.get_mut();
        let Some(future) = this.future.as_mut() else {
            return Poll::Ready(());
        };
        let reason = match catch_unwind(AssertUnwindSafe(|| Pin::new(future).poll(cx))) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(())) => this.link.reason(),
            Err(payload) => ExitReason::Panicked(panic_text(&*payload)),
        };
        this.end(reason);
        Poll::Ready(())
    }
}

impl<F> Unpin for Linked<F> {}

impl<F> Drop for Linked<F> {
    fn drop(&mut self) {
        if self.future.is_some() {
            self.end(ExitReason::Killed);
        }
    }
}

/// Gives a panic's text, if its payload is one.
pub(crate) fn panic_text(payload: &(dyn Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&'static str>() {
        (*text).to_owned()
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text.clone()
    } else {
        "a payload without text".to_owned()
    }
}
