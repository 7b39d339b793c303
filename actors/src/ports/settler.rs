//! The settler: tells the broker about one delivery, once.

use crate::model::Disposition;

use super::SettleReply;

/// Tells the broker about one delivery. Settling consumes it, so a second settlement does not
/// compile. Dropping it tells the broker nothing: the delivery stays leased until its source is
/// closed or its lease ends.
pub trait Settler: Send {
    /// Starts the settlement and returns at once; the answer goes through `reply`, from any thread.
    ///
    /// Never blocks. A settler of an ended generation sends nothing and answers *gone*.
    fn settle(self: Box<Self>, disposition: Disposition, reply: SettleReply);

    /// Starts the settlement of a Requeue or Reject whose copy or dead letter is confirmed already:
    /// the original is to go without a trace. On every broker we know that is the verb of an Ack.
    fn settle_covered(self: Box<Self>, disposition: Disposition, reply: SettleReply) {
        let _ = disposition;
        self.settle(Disposition::Ack, reply);
    }

    /// Asks for a longer lease and returns at once. `Ok` starts the lease anew. Called about every
    /// third of a lease while the delivery is held.
    ///
    /// # Errors
    /// [`LeaseGone`] when the lease is known to be over.
    fn extend(&mut self) -> Result<(), LeaseGone> {
        Ok(())
    }
}

/// The lease is over: the broker may have handed the delivery to somebody else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the lease is over")]
pub struct LeaseGone;
