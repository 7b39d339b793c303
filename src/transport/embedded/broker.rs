//! The broker itself: queues, and what is behind them (nothing, or the durable store's threads).

use std::fmt;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};

use acquit_actors::model::QueueName;
use tokio::sync::oneshot;

use super::batch::Batch;
use super::clock::Clock;
use super::committer::{Committer, put_aside};
use super::error::EmbeddedError;
use super::job::{Intake, Job};
use super::options::{EmbeddedOptions, Location};
use super::queue::{Kind, Queue, Queues};
use super::reader::{Read, Reader};
use super::restore::{Restored, restore};
use super::store::{Store, with_tables};
use super::timer::Timer;

/// The broker; shared by the transport, its publisher and its sources.
pub(crate) struct Broker {
    pub(crate) options: EmbeddedOptions,
    pub(crate) queues: Arc<Queues>,
    pub(crate) timer: Arc<Timer>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) durable: Option<Durable>,
    pub(crate) kind: Kind,
    /// Cursors of feeds, where there is no store to keep them.
    pub(crate) cursors: Mutex<std::collections::HashMap<String, acquit_actors::ports::FeedCursor>>,
    next_queue: AtomicU32,
    next_source: AtomicU64,
    closed: AtomicBool,
}

/// The durable store's threads.
pub(crate) struct Durable {
    pub(crate) intake: Arc<Intake>,
    asked: mpsc::Sender<Read>,
    committer: Option<JoinHandle<()>>,
}

impl Durable {
    /// Asks the reader's thread.
    pub(crate) fn read(&self, read: Read) {
        // The reader ends only with the broker itself.
        let _ = self.asked.send(read);
    }

    /// Runs something on the reader's thread and gives what it says.
    pub(crate) async fn call<R: Send + 'static>(
        &self,
        call: impl FnOnce(&Reader) -> Result<R, EmbeddedError> + Send + 'static,
    ) -> Result<R, EmbeddedError> {
        let (reply, answer) = oneshot::channel();
        self.read(Read::Call(Box::new(move |reader| {
            let _ = reply.send(call(reader));
        })));
        answer.await.unwrap_or(Err(EmbeddedError::Closed))
    }
}

impl Broker {
    /// Opens the broker and starts its threads.
    pub(crate) fn open(options: EmbeddedOptions) -> Result<Self, EmbeddedError> {
        let queues = Arc::new(Queues::default());
        let clock = Arc::clone(&options.clock);
        let kind = Kind {
            durable: matches!(options.location, Location::Dir(_)),
            lease: options.lease,
        };
        let dir = match &options.location {
            Location::Memory => PathBuf::new(),
            Location::Dir(dir) => dir.clone(),
        };
        let timer = Timer::start(Arc::clone(&queues), Arc::clone(&clock))
            .map_err(|e| EmbeddedError::io(&dir, "start a thread", e))?;
        let timer = Arc::new(timer);
        let mut broker = Self {
            queues,
            timer,
            clock,
            durable: None,
            kind,
            cursors: Mutex::default(),
            next_queue: AtomicU32::new(1),
            next_source: AtomicU64::new(1),
            closed: AtomicBool::new(false),
            options,
        };
        if kind.durable {
            broker.durable = Some(broker.start_durable(&dir)?);
            // Delays that were restored want their wake-up.
            broker.timer.arm(broker.clock.now());
        }
        Ok(broker)
    }

    fn start_durable(&self, dir: &Path) -> Result<Durable, EmbeddedError> {
        let mut store = Store::open(dir, self.options.sync)?;
        let intake = Arc::new(Intake::new(self.options.waiting_bytes));
        let tables = store.tables();
        let Restored { next_queue, bad } = with_tables(&tables, dir, |tables| {
            restore(tables, &self.queues, &self.kind, &*self.clock)
        })?;
        let mut batch = Batch::default();
        for (partition, seq, row) in bad {
            put_aside(&partition, seq, row, self.clock.wall_millis(), &mut batch);
            partition.lock().dead_count += 1;
        }
        store.commit(&batch)?;
        let (asked, reads) = mpsc::channel();
        let reader = Reader {
            dir: dir.to_owned(),
            tables,
            intake: Arc::clone(&intake),
        };
        let committer = Committer {
            store,
            intake: Arc::clone(&intake),
            queues: Arc::clone(&self.queues),
            timer: Arc::clone(&self.timer),
            clock: Arc::clone(&self.clock),
            kind: self.kind,
            default_partitions: self.options.default_partitions.get(),
            next_queue,
        };
        let thread = |name: &str| thread::Builder::new().name(name.to_owned());
        thread("acquit-reader")
            .spawn(move || reader.run(&reads))
            .map_err(|e| EmbeddedError::io(dir, "start a thread", e))?;
        let committer = thread("acquit-committer")
            .spawn(move || committer.run())
            .map_err(|e| EmbeddedError::io(dir, "start a thread", e))?;
        Ok(Durable {
            intake,
            asked,
            committer: Some(committer),
        })
    }

    /// Makes sure that a queue is there with so many partitions.
    pub(crate) async fn ensure_queue(
        &self,
        name: &QueueName,
        partitions: NonZeroU32,
    ) -> Result<(), EmbeddedError> {
        if self.is_closed() {
            return Err(EmbeddedError::Closed);
        }
        if let Some(queue) = self.queues.get(name) {
            return queue.check_partitions(partitions.get());
        }
        let Some(durable) = &self.durable else {
            return self
                .make_queue(name, partitions.get())
                .check_partitions(partitions.get());
        };
        let (reply, answer) = oneshot::channel();
        let job = Job::Ensure {
            queue: name.clone(),
            partitions: partitions.get(),
            reply,
        };
        durable
            .intake
            .push(job)
            .map_err(|_| EmbeddedError::Closed)?;
        answer.await.unwrap_or(Err(EmbeddedError::Closed))
    }

    /// Makes a queue in memory, unless it is there.
    pub(crate) fn make_queue(&self, name: &QueueName, partitions: u32) -> Arc<Queue> {
        let number = self.next_queue.fetch_add(1, Ordering::Relaxed);
        self.queues
            .add(Queue::new(name.clone(), number, partitions, &self.kind))
    }

    /// Gives a number to a source.
    pub(crate) fn next_source(&self) -> u64 {
        self.next_source.fetch_add(1, Ordering::Relaxed)
    }

    /// Tells whether it was closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Commits what waits and closes the store. A second call finds nothing to do.
    pub(crate) async fn close(&self) -> Result<(), EmbeddedError> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.wake_all();
        let Some(durable) = &self.durable else {
            return Ok(());
        };
        let (reply, answer) = oneshot::channel();
        if durable.intake.push(Job::Close(reply)).is_err() {
            return Ok(());
        }
        answer.await.unwrap_or(Err(EmbeddedError::Closed))
    }

    fn wake_all(&self) {
        for queue in self.queues.all() {
            for partition in &queue.partitions {
                let waiting = partition.lock().take_waiting();
                super::queue::wake(waiting);
            }
        }
    }
}

impl Drop for Broker {
    /// Commits what waits and lets the folder go before it returns.
    fn drop(&mut self) {
        let Some(durable) = &mut self.durable else {
            return;
        };
        durable.intake.close();
        if let Some(committer) = durable.committer.take()
            // The last handle may be dropped by an answer on the committer's own thread.
            && committer.thread().id() != thread::current().id()
        {
            let _ = committer.join();
        }
    }
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Broker")
            .field("location", &self.options.location)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Durable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Durable").finish_non_exhaustive()
    }
}

/// Keeps a cursor in memory.
pub(crate) fn keep_cursor(broker: &Broker, cursor: acquit_actors::ports::FeedCursor) {
    let mut cursors = broker
        .cursors
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    cursors.insert(cursor.feed.clone(), cursor);
}
