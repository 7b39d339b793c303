//! Reply values: the adapter's way to answer a settlement or a publish, once.

use std::fmt;
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::model::{DeliveryId, Receipt};
use crate::settlement::SettleFailure;

use super::{PublishError, Settler};

/// How a settlement ended.
pub enum SettleResult {
    /// The broker was told.
    Done(Receipt),
    /// Certainly not sent: the settler is handed back for another try.
    NotSent(Box<dyn Settler>),
    /// Not possible: another generation (never sent), or nobody knows.
    Failed(SettleFailure),
}

impl fmt::Debug for SettleResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done(receipt) => f.debug_tuple("Done").field(receipt).finish(),
            Self::NotSent(_) => f.write_str("NotSent"),
            Self::Failed(failure) => f.debug_tuple("Failed").field(failure).finish(),
        }
    }
}

/// Where settlement answers go. Called from any thread; must not block.
pub trait SettleSink: Send + Sync {
    /// Takes the answer to try number `frame` of a delivery's settlement.
    fn settled(&self, delivery: DeliveryId, frame: u32, result: SettleResult);
}

/// Answers one settlement, once. Dropped without an answer, it answers *unknown*.
#[must_use = "an unanswered settlement counts as unknown"]
pub struct SettleReply {
    sink: Option<Arc<dyn SettleSink>>,
    delivery: DeliveryId,
    frame: u32,
}

impl SettleReply {
    /// Makes the reply for one settlement try.
    pub fn new(sink: Arc<dyn SettleSink>, delivery: DeliveryId, frame: u32) -> Self {
        Self {
            sink: Some(sink),
            delivery,
            frame,
        }
    }

    /// Makes a reply whose answer can be awaited: for adapters' own tests.
    pub fn channel() -> (Self, oneshot::Receiver<SettleResult>) {
        struct Once(std::sync::Mutex<Option<oneshot::Sender<SettleResult>>>);
        impl SettleSink for Once {
            fn settled(&self, _: DeliveryId, _: u32, result: SettleResult) {
                let sender = self.0.lock().unwrap_or_else(|e| e.into_inner()).take();
                if let Some(sender) = sender {
                    let _ = sender.send(result);
                }
            }
        }
        let (sender, receiver) = oneshot::channel();
        let sink = Arc::new(Once(std::sync::Mutex::new(Some(sender))));
        (Self::new(sink, DeliveryId(0), 0), receiver)
    }

    /// Gives the delivery that is settled.
    pub fn delivery(&self) -> DeliveryId {
        self.delivery
    }

    /// The broker answered.
    pub fn confirmed(self) {
        self.answer(SettleResult::Done(Receipt::Confirmed));
    }

    /// The frame left; the protocol has no answer.
    pub fn sent(self) {
        self.answer(SettleResult::Done(Receipt::Sent));
    }

    /// Certainly not sent; the settler comes back.
    pub fn not_sent(self, settler: Box<dyn Settler>) {
        self.answer(SettleResult::NotSent(settler));
    }

    /// The settler belongs to an ended generation: nothing was sent.
    pub fn gone(self) {
        self.answer(SettleResult::Failed(SettleFailure::Gone));
    }

    /// Nobody knows whether the broker was told.
    pub fn unknown(self) {
        self.answer(SettleResult::Failed(SettleFailure::Unknown));
    }

    fn answer(mut self, result: SettleResult) {
        if let Some(sink) = self.sink.take() {
            sink.settled(self.delivery, self.frame, result);
        }
    }
}

impl Drop for SettleReply {
    fn drop(&mut self) {
        if let Some(sink) = self.sink.take() {
            let unknown = SettleResult::Failed(SettleFailure::Unknown);
            sink.settled(self.delivery, self.frame, unknown);
        }
    }
}

impl fmt::Debug for SettleReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SettleReply")
            .field("delivery", &self.delivery)
            .finish_non_exhaustive()
    }
}

/// Where publish answers go. Called from any thread; must not block.
pub trait PublishSink: Send + Sync {
    /// Takes the answer to the publish with this token.
    fn published(&self, token: u64, result: Result<(), PublishError>);
}

/// Answers one publish, once. Dropped without an answer, it answers [`PublishError::Unknown`].
#[must_use = "an unanswered publish counts as unknown"]
pub struct PublishReply {
    sink: Option<Arc<dyn PublishSink>>,
    token: u64,
}

impl PublishReply {
    /// Makes the reply for one publish; the token is the sink's own.
    pub fn new(sink: Arc<dyn PublishSink>, token: u64) -> Self {
        Self {
            sink: Some(sink),
            token,
        }
    }

    /// Makes a reply whose answer can be awaited.
    pub fn channel() -> (Self, oneshot::Receiver<Result<(), PublishError>>) {
        struct Once(std::sync::Mutex<Option<oneshot::Sender<Result<(), PublishError>>>>);
        impl PublishSink for Once {
            fn published(&self, _: u64, result: Result<(), PublishError>) {
                let sender = self.0.lock().unwrap_or_else(|e| e.into_inner()).take();
                if let Some(sender) = sender {
                    let _ = sender.send(result);
                }
            }
        }
        let (sender, receiver) = oneshot::channel();
        let sink = Arc::new(Once(std::sync::Mutex::new(Some(sender))));
        (Self::new(sink, 0), receiver)
    }

    /// Confirmed and not returned.
    pub fn confirmed(self) {
        self.answer(Ok(()));
    }

    /// It failed.
    pub fn failed(self, error: PublishError) {
        self.answer(Err(error));
    }

    fn answer(mut self, result: Result<(), PublishError>) {
        if let Some(sink) = self.sink.take() {
            sink.published(self.token, result);
        }
    }
}

impl Drop for PublishReply {
    fn drop(&mut self) {
        if let Some(sink) = self.sink.take() {
            sink.published(self.token, Err(PublishError::Unknown));
        }
    }
}

impl fmt::Debug for PublishReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PublishReply")
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}
