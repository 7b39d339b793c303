//! A supervisor's handle: how others on its arbiter give it orders.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;

use actix::prelude::*;

use super::actor::{StopChildNamed, SupervisorActor, TakeOrders, TreeRequest};
use super::slot::Slot;
use super::spec::ChildSpec;
use super::tree::TreeNode;

/// No supervisor holds more child specs that it has not yet started.
pub const ORDERS_MAX: usize = 65_536;

/// A stable handle to a supervisor: cheap to clone, the same over its restarts.
///
/// A child spec is not `Send` (its factory holds slots), so it goes by a shared queue and not by a
/// mailbox: the handle works on the supervisor's own arbiter only. What is queued while the
/// supervisor is being restarted waits for the next incarnation.
#[derive(Clone)]
pub struct SupervisorHandle(Rc<HandleCell>);

struct HandleCell {
    slot: Slot<SupervisorActor>,
    orders: RefCell<VecDeque<ChildSpec>>,
}

impl SupervisorHandle {
    /// Makes a handle that no supervisor has yet;
    /// [`SupervisorSpec::with_handle`](super::SupervisorSpec::with_handle) gives it to one.
    pub fn new() -> Self {
        Self(Rc::new(HandleCell {
            slot: Slot::new(),
            orders: RefCell::new(VecDeque::new()),
        }))
    }

    /// Adds a child after those the supervisor has, and starts it soon. Names need not be unique.
    ///
    /// # Errors
    ///
    /// [`StartRefused`] with the spec if too many wait. A supervisor that is stopping drops it.
    pub fn start_child(&self, spec: ChildSpec) -> Result<(), StartRefused> {
        let mut orders = self.0.orders.borrow_mut();
        if orders.len() >= ORDERS_MAX {
            return Err(StartRefused(Box::new(spec)));
        }
        orders.push_back(spec);
        if orders.len() == 1 {
            self.0.slot.do_send(TakeOrders);
        }
        Ok(())
    }

    /// Stops every child of that name and forgets it, with its spec.
    pub fn stop_child(&self, name: impl Into<String>) {
        self.0.slot.do_send(StopChildNamed(name.into()));
    }

    /// Describes the supervisor and all below it; `None` if it is gone.
    pub async fn tree(&self) -> Option<TreeNode> {
        let tree = self.0.slot.send(TreeRequest);
        tree.await.ok()
    }

    pub(super) fn set(&self, addr: Addr<SupervisorActor>) {
        self.0.slot.set(addr);
    }

    pub(super) fn take_orders(&self) -> VecDeque<ChildSpec> {
        self.0.orders.take()
    }
}

impl Default for SupervisorHandle {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for SupervisorHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SupervisorHandle")
            .field("present", &self.0.slot.is_present())
            .field("orders", &self.0.orders.borrow().len())
            .finish()
    }
}

/// Too many child specs wait to be started; the spec is given back.
#[derive(Debug, thiserror::Error)]
#[error("{ORDERS_MAX} children already wait to be started")]
pub struct StartRefused(pub Box<ChildSpec>);
