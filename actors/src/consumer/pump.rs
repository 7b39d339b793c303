//! The pump of one generation: opens the source, reads it, and carries the actor's orders to it.
//! It runs as a task beside the actor, so that a slow broker call never holds the actor up; it is
//! dropped with the actor, and the source with it.

use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::mpsc;

use crate::ports::{Arrival, Source, SourceError, SourceSpec, Transport};

/// How many arrivals one read may bring: what is handed to the actor at once.
const BATCH_MAX: usize = 256;

/// What the actor orders.
#[derive(Debug)]
pub(crate) enum PumpOrder {
    SetCredit(u32),
    Cancel,
    Resume,
    Close,
}

/// What the pump reports.
pub(crate) enum PumpReport {
    Opened,
    OpenFailed(SourceError),
    Arrived(Vec<Arrival>),
    Cancelled,
    Lost(SourceError),
    Closed,
    Panicked,
}

/// The actor's end of a pump; dropping it drops the source.
pub(crate) struct Pump {
    pub(crate) orders: mpsc::UnboundedSender<PumpOrder>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Pump {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Pump {
    /// Starts a pump on the actors' thread. Orders are few: each is a command of the actor.
    pub(crate) fn start(
        transport: &Arc<dyn Transport>,
        spec: SourceSpec,
        report: Rc<dyn Fn(PumpReport)>,
    ) -> Self {
        let (orders, receiver) = mpsc::unbounded_channel();
        let opening = transport.open_source(spec);
        let guard = PanicGuard(Rc::clone(&report));
        let task = tokio::task::spawn_local(async move {
            match opening.await {
                Ok(source) => {
                    report(PumpReport::Opened);
                    run(source, receiver, &*report).await;
                }
                Err(error) => report(PumpReport::OpenFailed(error)),
            }
            drop(guard);
        });
        Self { orders, task }
    }
}

/// Reports a panic of the source: the task ends silently otherwise.
struct PanicGuard(Rc<dyn Fn(PumpReport)>);

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            (self.0)(PumpReport::Panicked);
        }
    }
}

/// Reads also while nothing is handed out: a channel that is lost then is told here.
async fn run(
    mut source: Box<dyn Source>,
    mut orders: mpsc::UnboundedReceiver<PumpOrder>,
    report: &dyn Fn(PumpReport),
) {
    loop {
        let mut batch = Vec::new();
        let order = tokio::select! {
            biased;
            order = orders.recv() => match order {
                Some(order) => order,
                None => return,
            },
            read = source.recv(BATCH_MAX, &mut batch) => {
                match read {
                    Ok(()) => report(PumpReport::Arrived(batch)),
                    Err(error) => {
                        if !batch.is_empty() {
                            report(PumpReport::Arrived(batch));
                        }
                        report(PumpReport::Lost(error));
                        return;
                    }
                }
                continue;
            }
        };
        let done = match order {
            PumpOrder::SetCredit(credit) => {
                source.set_credit(credit);
                Ok(())
            }
            PumpOrder::Cancel => source
                .cancel()
                .await
                .map(|()| report(PumpReport::Cancelled)),
            PumpOrder::Resume => source.resume().await,
            PumpOrder::Close => {
                source.close().await;
                report(PumpReport::Closed);
                return;
            }
        };
        if let Err(error) = done {
            report(PumpReport::Lost(error));
            return;
        }
    }
}
