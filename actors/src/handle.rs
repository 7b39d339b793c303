//! The handle: how the rest of the program speaks to a running engine. Cheap to clone, usable from
//! any thread and any runtime; it hides where the engine runs.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::limiter::{LimiterLimits, Rate};
use crate::model::{ConsumerName, DeliveryId, PartitionId};
use crate::settlement::CancelKind;
use crate::shutdown::DrainReport;
use crate::status::{InFlight, Snapshot};
use crate::supervision::TreeNode;

/// How many commands may wait for the engine.
pub(crate) const COMMANDS_MAX: usize = 256;

/// A command to the engine, with where its answer goes.
pub(crate) enum Command {
    Drain {
        reason: String,
    },
    Force,
    Pause {
        target: Target,
        reason: String,
        reply: Reply<()>,
    },
    Resume {
        target: Target,
        reply: Reply<()>,
    },
    Scale {
        consumer: ConsumerName,
        permits: NonZeroU32,
        reply: Reply<()>,
    },
    Rate {
        consumer: Option<ConsumerName>,
        rate: Option<Rate>,
        reply: Reply<()>,
    },
    Limits {
        limits: LimiterLimits,
        reply: Reply<()>,
    },
    Cancel {
        delivery: DeliveryId,
        kind: CancelKind,
        reply: Reply<()>,
    },
    Snapshot {
        reply: oneshot::Sender<Snapshot>,
    },
    InFlight {
        max: usize,
        reply: oneshot::Sender<Vec<InFlight>>,
    },
    Tree {
        reply: oneshot::Sender<Option<TreeNode>>,
    },
    #[cfg(any(test, feature = "fail-points"))]
    Panic {
        actor: crate::testing::Victim,
        reply: Reply<()>,
    },
}

pub(crate) type Reply<T> = oneshot::Sender<Result<T, CommandError>>;

/// What a command is for: a consumer, or one of its partitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The consumer's name.
    pub consumer: ConsumerName,
    /// One partition; `None`: all.
    pub partition: Option<PartitionId>,
}

impl Target {
    /// Names a whole consumer.
    pub fn consumer(name: impl Into<ConsumerName>) -> Self {
        Self {
            consumer: name.into(),
            partition: None,
        }
    }
}

/// Why a command was not carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// There is no such consumer.
    #[error("there is no consumer {asked:?}; there are: {known}")]
    NoSuchConsumer {
        /// What was asked for.
        asked: ConsumerName,
        /// What there is.
        known: String,
    },
    /// The consumer has no such partition.
    #[error("consumer {consumer} has no partition {asked}; it has {partitions}")]
    NoSuchPartition {
        /// The consumer.
        consumer: ConsumerName,
        /// What was asked for.
        asked: PartitionId,
        /// How many there are.
        partitions: usize,
    },
    /// The delivery has ended, or never was.
    #[error("no delivery {0} is in hand")]
    NoSuchDelivery(DeliveryId),
    /// The limiter refuses.
    #[error("{0}")]
    Refused(String),
    /// The engine has ended.
    #[error("the engine has ended")]
    Ended,
}

/// How the engine ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum EngineEnd {
    /// It drained.
    Drained(DrainReport),
    /// A supervisor gave up: the text says which and why. The process must end (code 21).
    GaveUp(String),
}

impl EngineEnd {
    /// Gives the process's exit code: 0, 1 or 20 after a drain, 21 when a supervisor gave up.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Drained(report) => report.exit_code(),
            Self::GaveUp(_) => 21,
        }
    }
}

/// Speaks to a running engine. Dropping it does nothing to the engine.
#[derive(Clone)]
pub struct Handle {
    pub(crate) commands: mpsc::Sender<Command>,
    pub(crate) ended: watch::Receiver<Option<EngineEnd>>,
    pub(crate) last: Arc<OnceLock<Snapshot>>,
}

impl Handle {
    /// Begins a drain: stop admitting, give back what is unstarted, let the rest finish until the
    /// drain timeout, then force. Asking again changes nothing.
    ///
    /// # Errors
    /// [`CommandError::Ended`].
    pub async fn drain(&self, reason: impl Into<String>) -> Result<(), CommandError> {
        self.send(Command::Drain {
            reason: reason.into(),
        })
        .await
    }

    /// Ends the grace: stragglers are given back now. Begins the drain if none is under way.
    ///
    /// # Errors
    /// [`CommandError::Ended`].
    pub async fn force(&self) -> Result<(), CommandError> {
        self.send(Command::Force).await
    }

    /// Pauses a consumer or one of its partitions: its subscription is cancelled, what runs goes
    /// on, what waits unstarted is given back after `give_back_after`. Survives restarts of the
    /// actor. Pausing again changes nothing.
    ///
    /// # Errors
    /// [`CommandError`]: no such consumer or partition, or the engine has ended.
    pub async fn pause(
        &self,
        target: Target,
        reason: impl Into<String>,
    ) -> Result<(), CommandError> {
        let reason = reason.into();
        self.ask(|reply| Command::Pause {
            target,
            reason,
            reply,
        })
        .await?
    }

    /// Ends a pause.
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    pub async fn resume(&self, target: Target) -> Result<(), CommandError> {
        self.ask(|reply| Command::Resume { target, reply }).await?
    }

    /// Sets how many deliveries of a consumer may be in flight, live. Down: nothing is revoked, and
    /// nothing starts until fewer are in flight.
    ///
    /// # Errors
    /// [`CommandError`]: no such consumer, or the engine has ended.
    pub async fn scale(
        &self,
        consumer: impl Into<ConsumerName>,
        permits: NonZeroU32,
    ) -> Result<(), CommandError> {
        let consumer = consumer.into();
        self.ask(|reply| Command::Scale {
            consumer,
            permits,
            reply,
        })
        .await?
    }

    /// Sets how often handlers may start, of one consumer or of the process; `None` lifts it.
    ///
    /// # Errors
    /// As [`scale`](Self::scale).
    pub async fn set_rate(
        &self,
        consumer: Option<ConsumerName>,
        rate: Option<Rate>,
    ) -> Result<(), CommandError> {
        self.ask(|reply| Command::Rate {
            consumer,
            rate,
            reply,
        })
        .await?
    }

    /// Sets the limits of the process, live.
    ///
    /// # Errors
    /// [`CommandError`].
    pub async fn set_limits(&self, limits: LimiterLimits) -> Result<(), CommandError> {
        self.ask(|reply| Command::Limits { limits, reply }).await?
    }

    /// Ends one delivery: rejected or released; its handler is aborted.
    ///
    /// # Errors
    /// [`CommandError`]: no such delivery, or the engine has ended.
    pub async fn cancel(&self, delivery: DeliveryId, kind: CancelKind) -> Result<(), CommandError> {
        self.ask(|reply| Command::Cancel {
            delivery,
            kind,
            reply,
        })
        .await?
    }

    /// Takes a snapshot.
    ///
    /// # Errors
    /// [`CommandError::Ended`].
    pub async fn snapshot(&self) -> Result<Snapshot, CommandError> {
        self.ask(|reply| Command::Snapshot { reply }).await
    }

    /// Lists what is in hand, oldest first; at most `max`.
    ///
    /// # Errors
    /// [`CommandError::Ended`].
    pub async fn in_flight(&self, max: usize) -> Result<Vec<InFlight>, CommandError> {
        self.ask(|reply| Command::InFlight { max, reply }).await
    }

    /// Gives the supervision tree.
    ///
    /// # Errors
    /// [`CommandError::Ended`].
    pub async fn tree(&self) -> Result<Option<TreeNode>, CommandError> {
        self.ask(|reply| Command::Tree { reply }).await
    }

    /// Makes one actor panic, for tests of what happens then.
    ///
    /// # Errors
    /// [`CommandError`].
    #[cfg(any(test, feature = "fail-points"))]
    pub async fn inject_panic(&self, actor: crate::testing::Victim) -> Result<(), CommandError> {
        self.ask(|reply| Command::Panic { actor, reply }).await?
    }

    /// Tells whether the engine has ended, and how.
    pub fn ended(&self) -> Option<EngineEnd> {
        self.ended.borrow().clone()
    }

    /// Gives the engine's last snapshot, once it has drained.
    pub fn last_snapshot(&self) -> Option<Snapshot> {
        self.last.get().cloned()
    }

    /// Waits until the engine has ended.
    ///
    /// # Cancel safety
    /// Safe to drop; call it again.
    pub async fn wait(&self) -> EngineEnd {
        let mut ended = self.ended.clone();
        match ended.wait_for(Option::is_some).await {
            Ok(end) => end.clone().unwrap_or_else(gone),
            Err(_) => gone(),
        }
    }

    /// Drains and waits for the report; the engine bounds how long that takes. One that has ended
    /// already says how.
    pub async fn drain_and_wait(&self, reason: impl Into<String>) -> EngineEnd {
        let _ = self.drain(reason).await;
        self.wait().await
    }

    /// Waits for the end on a thread that may block, so not one of an async runtime; `None` when
    /// `timeout` passes first.
    pub fn wait_blocking(&self, timeout: Duration) -> Option<EngineEnd> {
        // A clock that nobody sets.
        let began = Instant::now();
        loop {
            if let Some(end) = self.ended() {
                return Some(end);
            }
            // The sender says how it ended before it goes.
            if self.ended.has_changed().is_err() {
                return Some(self.ended().unwrap_or_else(gone));
            }
            if began.elapsed() >= timeout {
                return None;
            }
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    async fn send(&self, command: Command) -> Result<(), CommandError> {
        self.commands
            .send(command)
            .await
            .map_err(|_| CommandError::Ended)
    }

    async fn ask<T>(
        &self,
        make: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<T, CommandError> {
        let (reply, answer) = oneshot::channel();
        self.send(make(reply)).await?;
        answer.await.map_err(|_| CommandError::Ended)
    }
}

fn gone() -> EngineEnd {
    EngineEnd::GaveUp("the engine's thread is gone".to_owned())
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("ended", &self.ended.borrow().is_some())
            .finish()
    }
}
