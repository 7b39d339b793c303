//! What the actors ask of the world: brokers, handlers, observers. Adapters implement these; the
//! actors know nothing else of them.
//!
//! Answers that come later are given through reply values ([`SettleReply`], [`PublishReply`])
//! instead of futures: they can be answered from any thread, at once or later, they cost no task,
//! and dropping one is an answer too (unknown). All ports are object safe.

mod feed;
mod handler;
mod managed;
mod observer;
mod publisher;
mod reply;
mod settler;
mod source;
mod transport;

pub use feed::{BadLine, Feed, FeedBatch, FeedError};
pub use handler::{
    AsyncFnHandler, BlockingHandler, DeliveryContext, DeliveryHandler, ErasedHandler, Handler,
    HandlerOutcome, RunControl, handler_fn,
};
pub use managed::{Managed, ManagedState};
pub use observer::{DeliveryEnded, NoObserver, Observer};
pub use publisher::{FeedCursor, PublishError, Publisher};
pub use reply::{PublishReply, PublishSink, SettleReply, SettleResult, SettleSink};
pub use settler::{LeaseGone, Settler};
pub use source::{Arrival, SOURCE_CLOSE, Source, SourceError};
pub use transport::{SourceSpec, TRANSPORT_CLOSE, Transport, TransportError};

/// A boxed future that can move between threads.
pub type BoxFuture<'a, T> = futures_util::future::BoxFuture<'a, T>;
