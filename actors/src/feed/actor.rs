//! The feeder: reads a feed in batches and publishes each with its cursor.
//!
//! - **Parent**: the feeders' supervisor; transient: it ends normally when the feed has ended.
//! - **Owns**: the open feed. What it has done stands in [`FeedShared`]; how far the feed was read
//!   stands at the broker, in the publish's own transaction where the store can.
//! - **In**: nothing but its stop token and the phase. **Out**: publishes, notices.
//! - **Ends** when the feed ends, when the process drains, or with an error that its supervisor
//!   answers by starting it again: from the stored cursor.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::{Backoff, Phase, QueueName};
use crate::ports::{Feed, FeedBatch, PublishError, PublishReply};
use crate::supervision::{ExitReason, Link};
use crate::world::World;

/// How many messages one publish of a feed carries.
const BATCH_MAX: usize = 512;

/// How long one publish of a feed may stay unanswered.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(30);

/// The delays between tries in an outage.
const BACKOFF: Backoff = Backoff {
    base: Duration::from_millis(500),
    max: Duration::from_secs(30),
};

/// A feed, and how to open it anew.
#[derive(Clone)]
pub struct FeedSpec {
    /// The feed's name: it names the stored cursor.
    pub name: String,
    /// The queue it feeds.
    pub queue: QueueName,
    /// Makes the feed; called at every start.
    pub make: Arc<dyn Fn() -> Box<dyn Feed> + Send + Sync>,
}

impl fmt::Debug for FeedSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FeedSpec")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// What a feed has done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub struct FeedStatus {
    /// Its name.
    pub name: String,
    /// The queue it feeds.
    pub queue: QueueName,
    /// Messages published by this process.
    pub published: u64,
    /// Lines set aside as bad by this process.
    pub bad: u64,
    /// Lines read before this process started.
    pub skipped: u64,
    /// Whether it has ended.
    pub ended: bool,
    /// What keeps it from going on.
    pub trouble: Option<String>,
}

/// A feed's shared part.
pub(crate) struct FeedShared {
    pub(crate) spec: FeedSpec,
    published: Cell<u64>,
    bad: Cell<u64>,
    skipped: Cell<u64>,
    ended: Cell<bool>,
    trouble: RefCell<Option<String>>,
}

impl FeedShared {
    pub(crate) fn new(spec: FeedSpec) -> Rc<Self> {
        Rc::new(Self {
            spec,
            published: Cell::default(),
            bad: Cell::default(),
            skipped: Cell::default(),
            ended: Cell::default(),
            trouble: RefCell::default(),
        })
    }

    pub(crate) fn status(&self) -> FeedStatus {
        FeedStatus {
            name: self.spec.name.clone(),
            queue: self.spec.queue.clone(),
            published: self.published.get(),
            bad: self.bad.get(),
            skipped: self.skipped.get(),
            ended: self.ended.get(),
            trouble: self.trouble.borrow().clone(),
        }
    }
}

/// Runs a feed to its end.
pub(crate) async fn feed(world: Rc<World>, shared: Rc<FeedShared>, link: Link) {
    if shared.ended.get() {
        return;
    }
    let stop = link.stop_token();
    let run = run(&world, &shared);
    tokio::select! {
        ended = run => match ended {
            Ok(()) => {}
            Err(error) => {
                let text = format!("feed {}: {error}", shared.spec.name);
                world.observe(|observer| observer.notice(&text));
                *shared.trouble.borrow_mut() = Some(error.clone());
                link.exit_with(ExitReason::Failed(error));
            }
        },
        () = stop.cancelled() => link.exit_with(ExitReason::Shutdown),
    }
}

async fn run(world: &World, shared: &FeedShared) -> Result<(), String> {
    let name = &shared.spec.name;
    let cursor = world
        .publisher_port
        .feed_cursor(name)
        .await
        .map_err(|error| error.to_string())?;
    if let Some(cursor) = &cursor {
        shared.skipped.set(cursor.line);
        let text = format!(
            "feed {name}: {} lines were read before; going on behind them (to read it again: acquit publish, or remove the cursor with the store)",
            cursor.line
        );
        world.observe(|observer| observer.notice(&text));
    }
    let mut feed = (shared.spec.make)();
    feed.open(cursor).await.map_err(|error| error.to_string())?;
    loop {
        if world.phase.get() >= Phase::Draining {
            return Ok(());
        }
        let batch = feed
            .next(BATCH_MAX)
            .await
            .map_err(|error| error.to_string())?;
        let ended = batch.ended;
        if !publish(world, shared, batch).await {
            return Ok(());
        }
        if ended {
            shared.ended.set(true);
            return Ok(());
        }
    }
}

/// Publishes a batch until it is confirmed; false if the process drains before.
async fn publish(world: &World, shared: &FeedShared, batch: FeedBatch) -> bool {
    for bad in &batch.bad {
        let name = &shared.spec.name;
        let text = format!("feed {name}: line {} set aside: {}", bad.line, bad.error);
        world.observe(|observer| observer.notice(&text));
    }
    shared.bad.set(shared.bad.get() + batch.bad.len() as u64);
    if batch.messages.is_empty() && batch.bad.is_empty() {
        return true;
    }
    let mut failures = 0;
    loop {
        let (reply, answer) = PublishReply::channel();
        world
            .publisher_port
            .publish_feed(batch.messages.clone(), batch.cursor.clone(), reply);
        let answer = match tokio::time::timeout(PUBLISH_TIMEOUT, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) | Err(_) => Err(PublishError::Unknown),
        };
        let Err(error) = answer else {
            shared
                .published
                .set(shared.published.get() + batch.messages.len() as u64);
            *shared.trouble.borrow_mut() = None;
            return true;
        };
        failures += 1;
        let text = format!("feed {}: {error}", shared.spec.name);
        *shared.trouble.borrow_mut() = Some(error.to_string());
        world.observe(|observer| observer.notice(&text));
        if world.phase.get() >= Phase::Draining {
            return false;
        }
        tokio::time::sleep(BACKOFF.delay(failures, rand::random())).await;
    }
}
