//! The process's end of the socket.

use std::io;
use std::num::NonZeroU32;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use acquit_actors::model::{ConsumerName, DeliveryId, PartitionId, RejectReason};
use acquit_actors::settlement::CancelKind;
use acquit_actors::{CommandError, EngineEnd, Handle, Target};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

use super::{Answer, BrokerTold, Desk, REQUEST_BYTES_MAX, Request, StatusReport};

/// How many connections are served at once; a further one waits.
const CONNECTIONS_MAX: usize = 256;

/// How long a client may take to send a request or to take an answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);

/// Why the socket cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// Another process answers on it.
    #[error("another process already serves {}; stop it, or give this one its own worker.state-dir", .0.display())]
    InUse(PathBuf),
    /// The system refuses.
    #[error("failed to listen on {}; check worker.state-dir", path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Serves the socket; dropping it removes the socket.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    /// Which file it is: by the end another process's may stand in its place.
    inode: u64,
    listener: UnixListener,
    /// Held while a request is answered.
    answering: Arc<Semaphore>,
    broker: Option<BrokerTold>,
}

impl Server {
    /// Has `status` tell what a broker told about itself.
    pub fn tell_broker(&mut self, broker: Option<BrokerTold>) {
        self.broker = broker;
    }

    /// Binds the socket, mode 0600. A socket that a dead process left is replaced.
    ///
    /// # Errors
    /// See [`ControlError`].
    pub async fn bind(path: &Path) -> Result<Self, ControlError> {
        let failed = |source| ControlError::Io {
            path: path.to_owned(),
            source,
        };
        match UnixStream::connect(path).await {
            Ok(_) => return Err(ControlError::InUse(path.to_owned())),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path).map_err(failed)?;
            }
            Err(_) => {}
        }
        let listener = UnixListener::bind(path).map_err(failed)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
        let inode = std::fs::metadata(path).map_err(failed)?.ino();
        Ok(Self {
            path: path.to_owned(),
            inode,
            listener,
            answering: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
            broker: None,
        })
    }

    /// Serves commands for ever.
    ///
    /// # Cancel safety
    /// Dropping it ends the listening; connections under way end with their runtime.
    pub async fn serve(&self, worker: String, handle: Handle, desk: Arc<dyn Desk>) {
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let worker: Arc<str> = worker.into();
        loop {
            let Ok(place) = Arc::clone(&places).acquire_owned().await else {
                return;
            };
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    let served = Session {
                        worker: Arc::clone(&worker),
                        handle: handle.clone(),
                        desk: Arc::clone(&desk),
                        answering: Arc::clone(&self.answering),
                        broker: self.broker.clone(),
                    };
                    tokio::spawn(async move {
                        if let Err(error) = served.run(stream).await {
                            tracing::debug!(%error, "a control connection ended early");
                        }
                        drop(place);
                    });
                }
                Err(error) => {
                    // Out of descriptors, for one: try again when some may be free.
                    tracing::warn!(%error, "failed to accept a control connection");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            }
        }
    }
}

impl Server {
    /// Waits, for at most `limit`, until the requests under way are answered: who waits for the
    /// drain report gets it although the process ends.
    pub async fn finish(&self, limit: Duration) {
        let all = self.answering.acquire_many(CONNECTIONS_MAX as u32);
        let _ = tokio::time::timeout(limit, all).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let own = std::fs::metadata(&self.path).is_ok_and(|file| file.ino() == self.inode);
        if own {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

struct Session {
    worker: Arc<str>,
    handle: Handle,
    desk: Arc<dyn Desk>,
    answering: Arc<Semaphore>,
    broker: Option<BrokerTold>,
}

impl Session {
    async fn run(&self, stream: UnixStream) -> io::Result<()> {
        let (read, mut write) = stream.into_split();
        let mut read = BufReader::new(read);
        loop {
            let mut line = Vec::new();
            let mut bounded = (&mut read).take(REQUEST_BYTES_MAX as u64 + 1);
            let got = tokio::time::timeout(CLIENT_TIMEOUT, bounded.read_until(b'\n', &mut line));
            if got.await?? == 0 {
                return Ok(());
            }
            if line.len() > REQUEST_BYTES_MAX {
                let text = format!("a request line is over {REQUEST_BYTES_MAX} bytes");
                return send(&mut write, &[Answer::Error(text)]).await;
            }
            let _answering = self.answering.acquire().await;
            let answers = match serde_json::from_slice(line.trim_ascii_end()) {
                Ok(request) => self.answer(request).await,
                // The parser's text may quote the request: only where it went wrong is told.
                Err(error) => {
                    let column = error.column();
                    vec![Answer::Error(format!(
                        "not a request of this version, column {column}"
                    ))]
                }
            };
            send(&mut write, &answers).await?;
        }
    }

    async fn answer(&self, request: Request) -> Vec<Answer> {
        match self.perform(request).await {
            Ok((items, done)) => {
                let items = items.into_iter().map(Answer::Item);
                items.chain([Answer::Done(done)]).collect()
            }
            Err(text) => vec![Answer::Error(text)],
        }
    }

    async fn perform(&self, request: Request) -> Result<(Vec<Value>, Value), String> {
        let handle = &self.handle;
        let done = match request {
            Request::Status => to_value(&self.status().await?)?,
            Request::Tree => to_value(&handle.tree().await.map_err(text)?)?,
            Request::Drain { reason, wait } => {
                log(&format!("drain: {reason}"));
                let begun = handle.drain(reason).await.map_err(text);
                // Who waits for the end hears of it, also when it came before the order.
                if wait {
                    drained(&handle.wait().await)?
                } else {
                    begun?;
                    Value::Null
                }
            }
            Request::Force => {
                log("force");
                handle.force().await.map_err(text)?;
                Value::Null
            }
            Request::Pause {
                consumer,
                partition,
                reason,
            } => {
                log(&format!("pause {consumer}: {reason}"));
                handle
                    .pause(target(consumer, partition), reason)
                    .await
                    .map_err(text)?;
                Value::Null
            }
            Request::Resume {
                consumer,
                partition,
            } => {
                log(&format!("resume {consumer}"));
                handle
                    .resume(target(consumer, partition))
                    .await
                    .map_err(text)?;
                Value::Null
            }
            Request::Scale { consumer, permits } => {
                log(&format!("scale {consumer} to {permits}"));
                let permits = NonZeroU32::new(permits).ok_or("permits are at least 1")?;
                handle
                    .scale(ConsumerName::from(consumer), permits)
                    .await
                    .map_err(text)?;
                Value::Null
            }
            Request::Inflight { max } => {
                let items = handle.in_flight(max.min(100_000)).await.map_err(text)?;
                let items: Result<Vec<_>, _> = items.iter().map(to_value).collect();
                return Ok((items?, Value::Null));
            }
            Request::Cancel { delivery, release } => {
                log(&format!("cancel {delivery}"));
                let kind = if release {
                    CancelKind::Release
                } else {
                    CancelKind::Reject(RejectReason::Cancelled)
                };
                handle
                    .cancel(DeliveryId(delivery), kind)
                    .await
                    .map_err(text)?;
                Value::Null
            }
            Request::Publish { queue, lines } => {
                let count = self
                    .desk
                    .publish(queue, lines)
                    .await
                    .map_err(|e| e.to_string())?;
                json!({ "published": count })
            }
            Request::Get {
                queue,
                take,
                dead,
                limit,
            } => {
                let items = self.desk.get(queue, take, dead, limit).await;
                return Ok((items.map_err(|e| e.to_string())?, Value::Null));
            }
        };
        Ok((Vec::new(), done))
    }

    async fn status(&self) -> Result<StatusReport, String> {
        Ok(StatusReport {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            worker: self.worker.to_string(),
            snapshot: self.handle.snapshot().await.map_err(text)?,
            depths: self.desk.depths().await,
            broker: self.broker.clone(),
        })
    }
}

/// Every order that changes something is logged, with who asked.
fn log(what: &str) {
    let what = crate::telemetry::escape_cut(what, 300);
    tracing::info!(target: "acquit::control", order = %what, "an order over the socket");
}

fn drained(end: &EngineEnd) -> Result<Value, String> {
    match end {
        EngineEnd::Drained(report) => to_value(report),
        other => Err(format!("the engine did not drain: {other:?}")),
    }
}

fn target(consumer: String, partition: Option<u32>) -> Target {
    Target {
        consumer: ConsumerName::from(consumer),
        partition: partition.map(PartitionId),
    }
}

fn text(error: CommandError) -> String {
    error.to_string()
}

fn to_value(value: &impl Serialize) -> Result<Value, String> {
    serde_json::to_value(value).map_err(|error| error.to_string())
}

async fn send(write: &mut (impl AsyncWriteExt + Unpin), answers: &[Answer]) -> io::Result<()> {
    let mut bytes = Vec::new();
    for answer in answers {
        serde_json::to_writer(&mut bytes, answer)?;
        bytes.push(b'\n');
    }
    tokio::time::timeout(CLIENT_TIMEOUT, write.write_all(&bytes)).await?
}
