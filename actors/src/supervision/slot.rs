//! Slots: a stable handle to whichever incarnation of an actor is present.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::rc::Rc;

use actix::dev::ToEnvelope;
use actix::prelude::*;

/// A stable handle for siblings: the factory of `A` sets the new address at each start, and nobody
/// else notices the restart. Clones share one slot.
///
/// What is sent while no incarnation is present is dropped and counted: who needs an answer gets
/// `Closed`, who must not lose a thing keeps it until it is answered.
///
/// ```
/// # use acquit_actors::supervision::{Child, ChildSpec, RestartPolicy, Slot, StopActor};
/// # use actix::prelude::*;
/// # struct Limiter;
/// # impl Actor for Limiter { type Context = Context<Self>; }
/// # impl Handler<StopActor> for Limiter {
/// #     type Result = ();
/// #     fn handle(&mut self, _: StopActor, ctx: &mut Context<Self>) { ctx.stop(); }
/// # }
/// let limiter = Slot::<Limiter>::new();
/// let mine = limiter.clone();
/// let spec = ChildSpec::new("limiter", RestartPolicy::Permanent, Box::new(move |link| {
///     let (child, addr) = Child::start(link, |_| Limiter);
///     mine.set(addr);
///     child
/// }));
/// # drop(spec);
/// ```
pub struct Slot<A: Actor>(Rc<SlotCell<A>>);

struct SlotCell<A: Actor> {
    addr: RefCell<Option<Addr<A>>>,
    dropped: Cell<u64>,
}

impl<A: Actor> Slot<A> {
    /// Makes an empty slot.
    pub fn new() -> Self {
        Self(Rc::new(SlotCell {
            addr: RefCell::new(None),
            dropped: Cell::new(0),
        }))
    }

    /// Points it at a new incarnation.
    pub fn set(&self, addr: Addr<A>) {
        let before = self.0.addr.borrow_mut().replace(addr);
        drop(before);
    }

    /// Points it at nobody, and no longer keeps the address.
    pub fn clear(&self) {
        let before = self.0.addr.borrow_mut().take();
        drop(before);
    }

    /// Says whether an incarnation is present.
    pub fn is_present(&self) -> bool {
        self.present().is_some()
    }

    /// Gives how many messages were dropped because none was.
    pub fn dropped(&self) -> u64 {
        self.0.dropped.get()
    }

    /// Sends a message; gives whether an incarnation was present to get it.
    pub fn do_send<M>(&self, message: M) -> bool
    where
        M: Message + Send + 'static,
        M::Result: Send,
        A: Handler<M>,
        A::Context: ToEnvelope<A, M>,
    {
        let Some(addr) = self.present() else {
            self.count_dropped();
            return false;
        };
        addr.do_send(message);
        true
    }

    /// Sends a message and waits for the answer of the present incarnation.
    ///
    /// # Errors
    ///
    /// `Closed` if none is present, or if it ended before it answered.
    ///
    /// # Cancel safety
    ///
    /// The message is in the mailbox when this returns its future (once the future is polled, if
    /// the mailbox was full). If the future is dropped before the actor takes the message, the
    /// actor does not handle it.
    pub fn send<M>(
        &self,
        message: M,
    ) -> impl Future<Output = Result<M::Result, MailboxError>> + 'static
    where
        M: Message + Send + Unpin + 'static,
        M::Result: Send,
        A: Handler<M>,
        A::Context: ToEnvelope<A, M>,
    {
        let request = self.present().map(|addr| addr.send(message));
        if request.is_none() {
            self.count_dropped();
        }
        async move {
            match request {
                Some(request) => request.await,
                None => Err(MailboxError::Closed),
            }
        }
    }

    fn present(&self) -> Option<Addr<A>> {
        let addr = self.0.addr.borrow();
        addr.as_ref().filter(|addr| addr.connected()).cloned()
    }

    fn count_dropped(&self) {
        self.0.dropped.set(self.0.dropped.get().saturating_add(1));
    }
}

impl<A: Actor> Clone for Slot<A> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<A: Actor> Default for Slot<A> {
    fn default() -> Self {
        Self::new()
    }
}

impl<A: Actor> fmt::Debug for Slot<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot")
            .field("present", &self.is_present())
            .field("dropped", &self.dropped())
            .finish()
    }
}
