//! The source: one partition's arrivals.

use std::fmt;
use std::time::Duration;

use crate::model::Delivery;

use super::{BoxFuture, Settler};

/// A delivery together with its settler, before it is owned.
pub struct Arrival {
    /// What arrived.
    pub delivery: Delivery,
    /// How to tell the broker.
    pub settler: Box<dyn Settler>,
    /// How long it may be held without a word; `None`: until the channel closes.
    pub lease: Option<Duration>,
}

impl fmt::Debug for Arrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arrival")
            .field("queue", &self.delivery.queue)
            .field("partition", &self.delivery.partition)
            .finish_non_exhaustive()
    }
}

/// How long [`Source::close`] has at the end of a drain: what takes longer is cut off, and the
/// transport is closed all the same.
pub const SOURCE_CLOSE: Duration = Duration::from_millis(1500);

/// One partition's arrivals, for one generation. Dropping it closes it at once: what was handed
/// out and is not settled belongs to the broker again.
pub trait Source: Send {
    /// Waits until there is at least one arrival and appends at most `max` to `into`. Returns at
    /// once with what is there; never waits to fill a batch.
    ///
    /// After [`cancel`](Self::cancel) it gives what had been pushed before and then waits: for
    /// [`resume`](Self::resume), or to tell that the channel is lost, which it tells then as at any
    /// other time.
    ///
    /// # Errors
    /// See [`SourceError`]. After an error the source is of no more use.
    ///
    /// # Cancel safety
    /// Dropping the future loses no arrival.
    fn recv<'a>(
        &'a mut self,
        max: usize,
        into: &'a mut Vec<Arrival>,
    ) -> BoxFuture<'a, Result<(), SourceError>>;

    /// Sets how many unsettled deliveries the broker may hand out ahead. Live, without losing any.
    fn set_credit(&mut self, credit: u32);

    /// Asks the broker to hand out nothing more. Settlers stay usable.
    ///
    /// # Errors
    /// See [`SourceError`].
    fn cancel(&mut self) -> BoxFuture<'_, Result<(), SourceError>>;

    /// Asks the broker to hand out again after [`cancel`](Self::cancel), on the same generation:
    /// settlers handed out before stay usable.
    ///
    /// # Errors
    /// See [`SourceError`].
    fn resume(&mut self) -> BoxFuture<'_, Result<(), SourceError>>;

    /// Closes it when all that can be settled is settled; settlements under way are flushed first.
    /// See [`SOURCE_CLOSE`].
    fn close(self: Box<Self>) -> BoxFuture<'static, ()>;
}

/// Why a source gives nothing more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// It was closed by us.
    #[error("the subscription was closed")]
    Ended,
    /// The channel or connection is gone; opening anew may help.
    #[error("the channel was lost: {0}")]
    ChannelLost(String),
    /// The broker or store cannot serve now; opening anew later may help.
    #[error("the broker is unavailable: {0}")]
    Unavailable(String),
    /// Opening anew will not help: no such queue, no permission, a changed partition count.
    #[error("the subscription was refused: {0}")]
    Refused(String),
}

impl SourceError {
    /// Tells whether opening anew may help.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::ChannelLost(_) | Self::Unavailable(_) => true,
            Self::Ended | Self::Refused(_) => false,
        }
    }
}
