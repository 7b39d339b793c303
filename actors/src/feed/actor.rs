//! The feeder: reads a feed in batches and publishes each with its cursor.
//!
//! - **Parent**: the feeders' supervisor; transient: it ends normally when the feed has ended.
//! - **Owns**: the open feed. What it has done stands in [`FeedShared`]; how far the feed was read
//!   stands at the broker, in the publish's own transaction where the store can.
//! - **In**: nothing but its stop token and the phase. **Out**: publishes, notices.
//! - **Ends** when the feed ends, when it cannot be read any more (said once, and kept in the
//!   status), or when the process drains. If it dies it is started again, from the stored cursor.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::{Backoff, Phase, QueueName};
use crate::ports::{Feed, FeedBatch, FeedCursor, PublishError, PublishReply};
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
    /// Whether it cannot go on until somebody acts: its file is not there, or is another one.
    pub failed: bool,
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
    failed: Cell<bool>,
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
            failed: Cell::default(),
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
            failed: self.failed.get(),
            trouble: self.trouble.borrow().clone(),
        }
    }
}

/// Runs a feed to its end.
pub(crate) async fn feed(world: Rc<World>, shared: Rc<FeedShared>, link: Link) {
    if shared.ended.get() || shared.failed.get() {
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
                // A file that cannot be read is nothing that a restart mends, and no reason to end
                // the consumers: it stands in the status until somebody acts.
                *shared.trouble.borrow_mut() = Some(error);
                shared.failed.set(true);
            }
        },
        () = stop.cancelled() => link.exit_with(ExitReason::Shutdown),
    }
}

async fn run(world: &World, shared: &FeedShared) -> Result<(), String> {
    let name = &shared.spec.name;
    let Some(cursor) = stored_cursor(world, shared).await? else {
        return Ok(());
    };
    if let Some(cursor) = &cursor {
        shared.skipped.set(cursor.line);
        let text = format!(
            "feed {name}: {} lines were read before; going on behind them (to read it again, give its file another name)",
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
        if !publish(world, shared, batch).await? {
            return Ok(());
        }
        if ended {
            shared.ended.set(true);
            return Ok(());
        }
    }
}

/// Reads how far the feed was read, in an outage again and again; `None` if the process drains
/// before that is known.
async fn stored_cursor(
    world: &World,
    shared: &FeedShared,
) -> Result<Option<Option<FeedCursor>>, String> {
    let mut failures = 0;
    loop {
        let read = world.publisher_port.feed_cursor(&shared.spec.name);
        let read = tokio::time::timeout(PUBLISH_TIMEOUT, read).await;
        match read.unwrap_or(Err(PublishError::Unknown)) {
            Ok(cursor) => return Ok(Some(cursor)),
            Err(error) if !error.is_transient() => return Err(error.to_string()),
            Err(error) => failures = wait_out(world, shared, &error, failures).await,
        }
        if world.phase.get() >= Phase::Draining {
            return Ok(None);
        }
    }
}

/// Publishes a batch until it is confirmed; false if the process drains before.
async fn publish(world: &World, shared: &FeedShared, batch: FeedBatch) -> Result<bool, String> {
    for bad in &batch.bad {
        let name = &shared.spec.name;
        let text = format!("feed {name}: line {} set aside: {}", bad.line, bad.error);
        world.observe(|observer| observer.notice(&text));
    }
    shared.bad.set(shared.bad.get() + batch.bad.len() as u64);
    if batch.messages.is_empty() && batch.bad.is_empty() {
        return Ok(true);
    }
    let mut failures = 0;
    loop {
        let error = match publish_once(world, &batch).await {
            Ok(()) => break,
            Err(error) => error,
        };
        if !error.is_transient() {
            return Err(error.to_string());
        }
        failures = wait_out(world, shared, &error, failures).await;
        // Whether the batch was taken all the same, the cursor that went with it tells.
        match stored_cursor(world, shared).await? {
            Some(Some(cursor)) if cursor == batch.cursor => break,
            Some(_) => {}
            None => return Ok(false),
        }
        if world.phase.get() >= Phase::Draining {
            return Ok(false);
        }
    }
    shared
        .published
        .set(shared.published.get() + batch.messages.len() as u64);
    *shared.trouble.borrow_mut() = None;
    Ok(true)
}

async fn publish_once(world: &World, batch: &FeedBatch) -> Result<(), PublishError> {
    let (reply, answer) = PublishReply::channel();
    world
        .publisher_port
        .publish_feed(batch.messages.clone(), batch.cursor.clone(), reply);
    match tokio::time::timeout(PUBLISH_TIMEOUT, answer).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) | Err(_) => Err(PublishError::Unknown),
    }
}

/// Says what is wrong and waits before the next try; gives the failures in a row.
async fn wait_out(world: &World, shared: &FeedShared, error: &PublishError, failures: u32) -> u32 {
    let text = format!("feed {}: {error}", shared.spec.name);
    *shared.trouble.borrow_mut() = Some(error.to_string());
    world.observe(|observer| observer.notice(&text));
    tokio::time::sleep(BACKOFF.delay(failures + 1, rand::random())).await;
    failures + 1
}
