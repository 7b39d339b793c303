//! The durable store: the tail log before the tables.
//!
//! A commit appends its batch to the log (one write), waits for the log's fsync, and applies it to
//! the tables without waiting. Now and then a checkpoint makes the tables durable and starts the
//! log again. After a crash the tables stand at their last checkpoint and the log is replayed over
//! them. So a commit costs one small sequential write and one fsync, whatever the backlog.
//!
//! When something fails, the tables are closed and opened again in place: they come back at
//! their last checkpoint, and the log brings them forward. When the disk is full, a reserve file is
//! given up for that, new messages are refused, and settlements go on in the log's last quarter;
//! the state ends when the reserve can be made again.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use super::batch::{Batch, Change, Table};
use super::codec::{RowKey, StateRow, decode_numbers, encode_numbers, encode_state};
use super::error::EmbeddedError;
use super::options::Sync;
use super::tables::Tables;
use super::tail_log::{LogError, TailLog};

/// The format this version writes, and the newest it reads.
pub(crate) const FORMAT: u32 = 1;

const LOG_BYTES: u64 = 16 << 20;
/// A checkpoint is due when the log holds this much …
const CHECKPOINT_BYTES: u64 = 8 << 20;
/// … or when it has held something for this long.
const CHECKPOINT_AGE: Duration = Duration::from_millis(500);
/// Past this much of the log only batches that do not grow the store are appended to it.
const GROWTH_BYTES: u64 = 12 << 20;
const RESERVE_BYTES: u64 = 16 << 20;
const SYNC_INTERVAL: Duration = Duration::from_millis(50);
/// How long a failed store rests before it is tried again.
const RETRY: Duration = Duration::from_millis(500);

const EPOCH: &[u8] = b"m:epoch";
const SALT: &[u8] = b"m:salt";

/// Reads of the tables, shared with the threads that only read. `None` while the store is closed
/// over a failure.
pub(crate) type SharedTables = Arc<RwLock<Option<Tables>>>;

/// The open store; see the module's docs. Owned by the committer's thread.
#[derive(Debug)]
pub(crate) struct Store {
    dir: PathBuf,
    sync: Sync,
    tables: SharedTables,
    log: TailLog,
    epoch: u64,
    /// Hand-outs that are in the log but not in the tables.
    unsaved: std::collections::HashMap<RowKey, StateRow>,
    /// When the log got its first record since the last checkpoint.
    dirty_since: Option<Instant>,
    /// When the log got its first record since the last fsync.
    unsynced_since: Option<Instant>,
    down: Option<(EmbeddedError, Instant)>,
    full_since: Option<Instant>,
    /// Whether rows were removed while storage was full, so that compacting may help.
    freed: bool,
    /// Held as long as the store is open: one process per folder.
    _lock: File,
}

impl Store {
    /// Opens the store in a folder, or makes it, and brings it to where the last process left it.
    pub(crate) fn open(dir: &Path, sync: Sync) -> Result<Self, EmbeddedError> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .map_err(|e| EmbeddedError::io(dir, "make", e))?;
        let lock = lock(dir)?;
        check_format(dir)?;
        // Without room for the reserve an existing store still opens: it may be opened to be emptied.
        let full = match make_reserve(dir) {
            Ok(()) => false,
            Err(error) if is_full(&error) => {
                give_up_reserve(dir);
                true
            }
            Err(error) => return Err(EmbeddedError::io(dir, "make the reserve file", error)),
        };
        let (tables, log, epoch) = open_parts(dir)?;
        let mut store = Self {
            dir: dir.to_owned(),
            sync,
            tables: Arc::new(RwLock::new(Some(tables))),
            log,
            epoch,
            unsaved: Default::default(),
            dirty_since: None,
            unsynced_since: None,
            down: None,
            full_since: full.then(Instant::now),
            freed: false,
            _lock: lock,
        };
        if store.log.used() > 0
            && let Err(error) = store.checkpoint(&[])
            // It is open all the same where only the room for a checkpoint is missing.
            && store.down.is_some()
        {
            return Err(error);
        }
        Ok(store)
    }

    /// Gives the tables for reading.
    pub(crate) fn tables(&self) -> SharedTables {
        Arc::clone(&self.tables)
    }

    /// Commits a batch: all of it, as safe as configured, or nothing.
    pub(crate) fn commit(&mut self, batch: &Batch) -> Result<(), EmbeddedError> {
        if batch.is_empty() {
            return Ok(());
        }
        self.ensure_up()?;
        if batch.grows && self.full_since.is_some() {
            return Err(self.full());
        }
        let room = if batch.grows { GROWTH_BYTES } else { LOG_BYTES };
        let fits = self.log.used() + batch.bytes() as u64 <= room;
        if !fits || !self.log.has_room(batch.bytes()) {
            return self.commit_as_checkpoint(batch);
        }
        if let Err(error) = self.log.append(|out| batch.encode(out)) {
            return Err(EmbeddedError::io(&self.dir, "append to the log", error));
        }
        let now = Instant::now();
        self.dirty_since.get_or_insert(now);
        if batch.must_be_safe() {
            match self.sync {
                Sync::Always => self.sync_or_take_back()?,
                Sync::Interval => drop(self.unsynced_since.get_or_insert(now)),
            }
        }
        // From here on it is safe in the log: what fails below is made up for by a replay.
        self.apply(batch);
        Ok(())
    }

    /// Does what is due by now: the interval's fsync, a checkpoint, a way back from a failure.
    pub(crate) fn maintain(&mut self) {
        if self.ensure_up().is_err() {
            return;
        }
        if self
            .unsynced_since
            .is_some_and(|at| at.elapsed() >= SYNC_INTERVAL)
        {
            self.unsynced_since = None;
            if let Err(error) = self.log.sync() {
                self.fail(EmbeddedError::io(&self.dir, "sync the log", error));
                return;
            }
        }
        let old = self
            .dirty_since
            .is_some_and(|at| at.elapsed() >= CHECKPOINT_AGE);
        if (old || self.log.used() >= CHECKPOINT_BYTES)
            && let Err(error) = self.checkpoint(&[])
        {
            tracing::warn!(dir = %self.dir.display(), %error, "checkpoint failed");
        }
    }

    /// When [`maintain`](Self::maintain) has something to do.
    pub(crate) fn next_maintenance(&self) -> Option<Duration> {
        let down = self.down.as_ref().map(|(_, at)| (*at, RETRY));
        let full = self.full_since.map(|at| (at, RETRY));
        let sync = self.unsynced_since.map(|at| (at, SYNC_INTERVAL));
        let dirty = self.dirty_since.map(|at| (at, CHECKPOINT_AGE));
        [down, full, sync, dirty]
            .into_iter()
            .flatten()
            .map(|(at, after)| after.saturating_sub(at.elapsed()))
            .min()
    }

    /// Makes the tables durable and the log empty, as the last thing before the end.
    pub(crate) fn close(mut self) -> Result<(), EmbeddedError> {
        self.ensure_up()?;
        if self.dirty_since.is_some() {
            self.checkpoint(&[])?;
        }
        *self.tables.write().unwrap_or_else(PoisonError::into_inner) = None;
        Ok(())
    }

    /// Tells whether storage is full.
    pub(crate) fn is_full(&self) -> bool {
        self.full_since.is_some()
    }

    fn sync_or_take_back(&mut self) -> Result<(), EmbeddedError> {
        let Err(error) = self.log.sync() else {
            self.unsynced_since = None;
            return Ok(());
        };
        // After a failed fsync nobody knows what is on the disk: the record is withdrawn and
        // everything is opened anew.
        self.log.take_back();
        let error = EmbeddedError::io(&self.dir, "sync the log", error);
        self.fail(error.clone());
        Err(error)
    }

    fn apply(&mut self, batch: &Batch) {
        for (key, state) in &batch.handed_out {
            self.unsaved.insert(*key, *state);
        }
        for change in &batch.changes {
            if change.table == Table::States
                && let Ok(key) = RowKey::try_from(&*change.key)
            {
                self.unsaved.remove(&key);
            }
        }
        self.freed |= self.full_since.is_some();
        if batch.changes.is_empty() {
            return;
        }
        let result = with_tables(&self.tables, &self.dir, |t| t.apply(&batch.changes, false));
        if let Err(error) = result {
            self.fail(error);
        }
    }

    /// Commits a batch that the log has no room for, straight into the tables.
    fn commit_as_checkpoint(&mut self, batch: &Batch) -> Result<(), EmbeddedError> {
        let handed_out = batch.handed_out.iter();
        let states = handed_out.map(|(key, state)| state_change(key, state));
        let changes: Vec<Change> = states.chain(batch.changes.iter().cloned()).collect();
        let removed = batch.changes.iter().filter(|c| c.table == Table::States);
        for key in removed.filter_map(|c| RowKey::try_from(&*c.key).ok()) {
            self.unsaved.remove(&key);
        }
        self.checkpoint(&changes)
    }

    /// Makes the tables durable, with some changes more, and starts the log again.
    fn checkpoint(&mut self, more: &[Change]) -> Result<(), EmbeddedError> {
        let epoch = self.epoch + 1;
        let mut changes: Vec<Change> = self
            .unsaved
            .iter()
            .map(|(k, s)| state_change(k, s))
            .collect();
        changes.extend_from_slice(more);
        changes.push(Change {
            table: Table::Names,
            key: EPOCH.to_vec(),
            value: Some(encode_numbers(EPOCH, &[epoch])),
        });
        match with_tables(&self.tables, &self.dir, |t| t.apply(&changes, true)) {
            Ok(()) => {
                self.epoch = epoch;
                self.log.restart(epoch);
                self.unsaved.clear();
                self.dirty_since = None;
                self.unsynced_since = None;
                Ok(())
            }
            Err(error) => {
                self.fail(error.clone());
                // The commit may have arrived although its answer was an error: the tables say.
                if self.reopen().is_ok() && self.epoch == epoch {
                    return Ok(());
                }
                Err(error)
            }
        }
    }

    fn fail(&mut self, error: EmbeddedError) {
        tracing::warn!(dir = %self.dir.display(), %error, "the store failed and is opened again");
        if matches!(error, EmbeddedError::StorageFull { .. }) {
            self.full_since.get_or_insert_with(Instant::now);
            self.freed = false;
            give_up_reserve(&self.dir);
        }
        self.down = Some((error, Instant::now()));
    }

    fn ensure_up(&mut self) -> Result<(), EmbeddedError> {
        if let Some((error, at)) = &self.down {
            if at.elapsed() < RETRY {
                return Err(error.clone());
            }
            self.reopen()?;
        }
        if self.full_since.is_some_and(|at| at.elapsed() >= RETRY) {
            self.leave_full();
        }
        Ok(())
    }

    /// Closes and opens tables and log: back to the last checkpoint, then forward by the log.
    fn reopen(&mut self) -> Result<(), EmbeddedError> {
        let mut shared = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        *shared = None;
        let opened = open_parts(&self.dir);
        match opened {
            Ok((tables, log, epoch)) => {
                *shared = Some(tables);
                drop(shared);
                self.log = log;
                self.epoch = epoch;
                self.down = None;
                // The replay put them into the tables.
                self.unsaved.clear();
                let replayed = self.log.used() > 0;
                self.dirty_since = replayed.then(Instant::now);
                tracing::info!(dir = %self.dir.display(), "the store is open again");
                Ok(())
            }
            Err(error) => {
                drop(shared);
                self.fail(error.clone());
                Err(error)
            }
        }
    }

    /// Makes the reserve again; once that works, storage is not full any more.
    fn leave_full(&mut self) {
        self.full_since = Some(Instant::now());
        // First the log goes into the tables, with the room that the reserve left: only a store
        // that needs no reserve may make it again.
        if self.dirty_since.is_some() && self.checkpoint(&[]).is_err() {
            return;
        }
        let mut room = make_reserve(&self.dir).is_ok();
        if !room && self.freed {
            // What was settled meanwhile is free inside the file: give it back to the disk.
            give_up_reserve(&self.dir);
            self.freed = false;
            if let Err(error) = self.compact() {
                self.fail(error);
                return;
            }
            room = make_reserve(&self.dir).is_ok();
        }
        if room {
            tracing::info!(dir = %self.dir.display(), "there is room again");
            self.full_since = None;
        } else {
            give_up_reserve(&self.dir);
        }
    }

    fn compact(&mut self) -> Result<(), EmbeddedError> {
        let mut shared = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        shared.as_mut().map_or(Ok(()), Tables::compact)
    }

    fn full(&self) -> EmbeddedError {
        EmbeddedError::StorageFull {
            dir: self.dir.clone(),
        }
    }
}

/// Reads from the tables, or says that the store is closed over a failure.
pub(crate) fn with_tables<R>(
    tables: &SharedTables,
    dir: &Path,
    read: impl FnOnce(&Tables) -> Result<R, EmbeddedError>,
) -> Result<R, EmbeddedError> {
    let shared = tables.read().unwrap_or_else(PoisonError::into_inner);
    match shared.as_ref() {
        Some(tables) => read(tables),
        None => Err(EmbeddedError::Io {
            dir: dir.to_owned(),
            action: "read",
            source: Arc::new(io::Error::other("the store is closed after a failure")),
        }),
    }
}

fn state_change(key: &RowKey, state: &StateRow) -> Change {
    Change {
        table: Table::States,
        key: key.to_vec(),
        value: Some(encode_state(key, state)),
    }
}

/// Opens the tables and the log, and replays the log over the tables.
fn open_parts(dir: &Path) -> Result<(Tables, TailLog, u64), EmbeddedError> {
    let tables = Tables::open(dir)?;
    let number = |name: &[u8]| -> Result<Option<u64>, EmbeddedError> {
        let Some(row) = tables.get(Table::Names, name)? else {
            return Ok(None);
        };
        match decode_numbers::<1>(name, &row) {
            Ok([number]) => Ok(Some(number)),
            Err(bad) => Err(EmbeddedError::Corrupt {
                file: tables.file().to_owned(),
                detail: format!("{}: {bad}", String::from_utf8_lossy(name)),
            }),
        }
    };
    let (epoch, salt) = match (number(EPOCH)?, number(SALT)?) {
        (Some(epoch), Some(salt)) => (epoch, salt),
        _ => {
            let (epoch, salt) = (1, rand::random());
            let row = |name: &[u8], number| Change {
                table: Table::Names,
                key: name.to_vec(),
                value: Some(encode_numbers(name, &[number])),
            };
            tables.apply(&[row(EPOCH, epoch), row(SALT, salt)], true)?;
            (epoch, salt)
        }
    };
    let path = dir.join("tail.log");
    let (log, recovered) =
        TailLog::open(&path, LOG_BYTES, salt, epoch).map_err(|error| match error {
            LogError::Io(error) => EmbeddedError::io(dir, "open the log", error),
            damaged @ (LogError::Damaged { .. } | LogError::Ahead { .. }) => {
                EmbeddedError::Corrupt {
                    file: path.clone(),
                    detail: damaged.to_string(),
                }
            }
        })?;
    if recovered.torn {
        tracing::warn!(file = %log.path().display(), at = log.used(),
            "the last record was cut off by a crash; it was never confirmed and is dropped");
    }
    for payload in &recovered.payloads {
        let changes = Batch::decode(payload).ok_or_else(|| EmbeddedError::Corrupt {
            file: log.path().to_owned(),
            detail: "a record holds no batch".to_owned(),
        })?;
        tables.apply(&changes, false)?;
    }
    Ok((tables, log, epoch))
}

fn lock(dir: &Path) -> Result<File, EmbeddedError> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(dir.join("lock"))
        .map_err(|e| EmbeddedError::io(dir, "make the lock file", e))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => Err(EmbeddedError::InUse {
            dir: dir.to_owned(),
        }),
        Err(fs::TryLockError::Error(e)) => Err(EmbeddedError::io(dir, "lock", e)),
    }
}

/// Refuses a store of a newer format before anything of it is opened; writes ours into a new one.
fn check_format(dir: &Path) -> Result<(), EmbeddedError> {
    let path = dir.join("FORMAT");
    let text = match File::open(&path) {
        Ok(mut file) => {
            let mut text = String::new();
            file.read_to_string(&mut text)
                .map_err(|e| EmbeddedError::io(dir, "read FORMAT", e))?;
            text
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return write_format(dir, &path).map_err(|e| EmbeddedError::io(dir, "write FORMAT", e));
        }
        Err(error) => return Err(EmbeddedError::io(dir, "read FORMAT", error)),
    };
    let number = text.trim().strip_prefix("acquit embedded store ");
    match number.and_then(|number| number.parse::<u32>().ok()) {
        Some(found) if found > FORMAT => Err(EmbeddedError::NewerFormat {
            dir: dir.to_owned(),
            found,
            known: FORMAT,
        }),
        Some(_) => Ok(()),
        None => Err(EmbeddedError::Corrupt {
            file: path,
            detail: "it names no format".to_owned(),
        }),
    }
}

fn write_format(dir: &Path, path: &Path) -> io::Result<()> {
    let draft = dir.join("FORMAT.new");
    let mut file = File::create(&draft)?;
    writeln!(file, "acquit embedded store {FORMAT}")?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    File::open(dir)?.sync_all()
}

/// Makes sure that the reserve file has all its blocks.
fn make_reserve(dir: &Path) -> io::Result<()> {
    let path = dir.join("reserve");
    if fs::metadata(&path).is_ok_and(|meta| meta.len() >= RESERVE_BYTES) {
        return Ok(());
    }
    let mut file = File::create(&path)?;
    let zeros = [0_u8; 64 * 1024];
    for _ in 0..RESERVE_BYTES / zeros.len() as u64 {
        file.write_all(&zeros)?;
    }
    file.sync_all()
}

fn give_up_reserve(dir: &Path) {
    let _ = fs::remove_file(dir.join("reserve"));
}

fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}
