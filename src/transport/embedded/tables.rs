//! The tables below the tail log: one redb file. This is the only file that knows redb.
//!
//! Its errors are sorted into ours here, and a panic of redb over damaged pages becomes the error
//! it should have been.

use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use redb::{Database, Durability, ReadableDatabase, ReadableTableMetadata};

use super::batch::{Change, Table};
use super::error::EmbeddedError;

type Definition = redb::TableDefinition<'static, &'static [u8], &'static [u8]>;

const MESSAGES: Definition = redb::TableDefinition::new("messages");
const STATES: Definition = redb::TableDefinition::new("states");
const DEAD: Definition = redb::TableDefinition::new("dead");
const NAMES: Definition = redb::TableDefinition::new("names");

/// How much memory the file's pages may take.
const CACHE_BYTES: usize = 32 << 20;

fn definition(table: Table) -> Definition {
    match table {
        Table::Messages => MESSAGES,
        Table::States => STATES,
        Table::Dead => DEAD,
        Table::Names => NAMES,
    }
}

/// The open file.
#[derive(Debug)]
pub(crate) struct Tables {
    database: Database,
    dir: PathBuf,
    file: PathBuf,
}

impl Tables {
    /// Opens the file in a folder, or makes it with its empty tables.
    pub(crate) fn open(dir: &Path) -> Result<Self, EmbeddedError> {
        let file = dir.join("messages.redb");
        let database = guarded(dir, &file, "open the tables", || {
            let database = redb::Builder::new()
                .set_cache_size(CACHE_BYTES)
                .create(&file)?;
            let tx = database.begin_read()?;
            let is_new = tx.list_tables()?.next().is_none();
            drop(tx);
            if is_new {
                let tx = database.begin_write()?;
                for table in [MESSAGES, STATES, DEAD, NAMES] {
                    tx.open_table(table)?;
                }
                tx.commit()?;
            }
            Ok(database)
        })?;
        Ok(Self {
            database,
            dir: dir.to_owned(),
            file,
        })
    }

    /// Gives the file's path.
    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// Applies changes in order, all or nothing; `durable` waits for the fsync.
    pub(crate) fn apply<'a>(
        &self,
        changes: impl IntoIterator<Item = &'a Change>,
        durable: bool,
    ) -> Result<(), EmbeddedError> {
        self.guarded("commit", || {
            let mut tx = self.database.begin_write()?;
            tx.set_durability(if durable {
                Durability::Immediate
            } else {
                Durability::None
            })
            .map_err(|error| redb::Error::Corrupted(error.to_string()))?;
            {
                let mut messages = tx.open_table(MESSAGES)?;
                let mut states = tx.open_table(STATES)?;
                let mut dead = tx.open_table(DEAD)?;
                let mut names = tx.open_table(NAMES)?;
                let mut has_states = states.len()? > 0;
                for change in changes {
                    let table = match change.table {
                        Table::Messages => &mut messages,
                        Table::States if change.value.is_none() && !has_states => continue,
                        Table::States => {
                            has_states = true;
                            &mut states
                        }
                        Table::Dead => &mut dead,
                        Table::Names => &mut names,
                    };
                    match &change.value {
                        Some(value) => drop(table.insert(&*change.key, &**value)?),
                        None => drop(table.remove(&*change.key)?),
                    }
                }
            }
            tx.commit()?;
            Ok(())
        })
    }

    /// Reads one row.
    pub(crate) fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, EmbeddedError> {
        self.guarded("read", || {
            let tx = self.database.begin_read()?;
            let table = tx.open_table(definition(table))?;
            Ok(table.get(key)?.map(|row| row.value().to_vec()))
        })
    }

    /// Walks rows in order from `from` on until `to` (exclusive) or until `each` says `false`.
    pub(crate) fn walk(
        &self,
        table: Table,
        from: &[u8],
        to: Option<&[u8]>,
        mut each: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), EmbeddedError> {
        self.guarded("read", || {
            let tx = self.database.begin_read()?;
            let table = tx.open_table(definition(table))?;
            let rows = match to {
                Some(to) => table.range::<&[u8]>(from..to)?,
                None => table.range::<&[u8]>(from..)?,
            };
            for row in rows {
                let (key, value) = row?;
                if !each(key.value(), value.value()) {
                    break;
                }
            }
            Ok(())
        })
    }

    /// Counts a table's rows by its own account.
    pub(crate) fn len(&self, table: Table) -> Result<u64, EmbeddedError> {
        self.guarded("read", || {
            let tx = self.database.begin_read()?;
            Ok(tx.open_table(definition(table))?.len()?)
        })
    }

    /// Gives unused space back to the disk.
    pub(crate) fn compact(&mut self) -> Result<(), EmbeddedError> {
        let Self {
            database,
            dir,
            file,
        } = self;
        guarded(dir, file, "compact", || Ok(database.compact()?)).map(drop)
    }

    fn guarded<R>(
        &self,
        action: &'static str,
        work: impl FnOnce() -> Result<R, redb::Error>,
    ) -> Result<R, EmbeddedError> {
        guarded(&self.dir, &self.file, action, work)
    }
}

fn guarded<R>(
    dir: &Path,
    file: &Path,
    action: &'static str,
    work: impl FnOnce() -> Result<R, redb::Error>,
) -> Result<R, EmbeddedError> {
    let result = catch_unwind(AssertUnwindSafe(work));
    let corrupt = |detail: String| EmbeddedError::Corrupt {
        file: file.to_owned(),
        detail,
    };
    match result {
        Ok(Ok(value)) => Ok(value),
        // redb's words for pages that make no sense, or that lie behind the file's end.
        Ok(Err(redb::Error::Io(error)))
            if matches!(
                error.kind(),
                ErrorKind::InvalidData | ErrorKind::UnexpectedEof
            ) =>
        {
            Err(corrupt(error.to_string()))
        }
        Ok(Err(redb::Error::Io(error))) => Err(EmbeddedError::io(dir, action, error)),
        Ok(Err(redb::Error::DatabaseAlreadyOpen)) => Err(EmbeddedError::InUse {
            dir: dir.to_owned(),
        }),
        Ok(Err(error @ (redb::Error::PreviousIo | redb::Error::DatabaseClosed))) => {
            Err(EmbeddedError::io(dir, action, std::io::Error::other(error)))
        }
        Ok(Err(error)) => Err(corrupt(error.to_string())),
        Err(_) => Err(corrupt("its pages contradict each other".to_owned())),
    }
}
