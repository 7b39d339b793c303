//! The thread that reads the durable store, so that neither the committer nor a source waits for
//! a disk that is slow to read.

use std::path::PathBuf;
use std::sync::{Arc, mpsc};

use super::batch::Table;
use super::codec::{decode_message, split_key};
use super::core::Want;
use super::error::EmbeddedError;
use super::job::{Intake, Job};
use super::message::Message;
use super::queue::{PartitionShared, wake};
use super::store::{SharedTables, with_tables};
use super::tables::Tables;

/// How many messages one read brings at most.
const READ_COUNT: usize = 512;
/// Past this many bytes a read ends.
const READ_BYTES: usize = 512 << 10;

/// One thing to read.
pub(crate) enum Read {
    /// What a partition needs before it can hand out more.
    Fetch(Arc<PartitionShared>, Want),
    /// Anything else.
    Call(Box<dyn FnOnce(&Reader) + Send>),
}

impl std::fmt::Debug for Read {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Fetch(..) => "Fetch",
            Self::Call(_) => "Call",
        })
    }
}

/// The reader; see the module's docs.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) dir: PathBuf,
    pub(crate) tables: SharedTables,
    pub(crate) intake: Arc<Intake>,
}

impl Reader {
    /// Runs until nobody can ask any more.
    pub(crate) fn run(self, asked: &mpsc::Receiver<Read>) {
        while let Ok(read) = asked.recv() {
            match read {
                Read::Fetch(partition, want) => self.fetch(&partition, &want),
                Read::Call(call) => call(&self),
            }
        }
    }

    /// Reads from the tables.
    pub(crate) fn with<R>(
        &self,
        read: impl FnOnce(&Tables) -> Result<R, EmbeddedError>,
    ) -> Result<R, EmbeddedError> {
        with_tables(&self.tables, &self.dir, read)
    }

    fn fetch(&self, partition: &Arc<PartitionShared>, want: &Want) {
        let result = match *want {
            Want::Refill { from, announced } => self.refill(partition, from, announced),
            Want::Payload { seq } => self.payload(partition, seq),
        };
        let mut state = partition.lock();
        state.reading = false;
        if let Err(error) = result {
            state.failed = Some(error);
        }
        let waiting = state.take_waiting();
        drop(state);
        wake(waiting);
    }

    fn refill(
        &self,
        partition: &Arc<PartitionShared>,
        from: u64,
        announced: u64,
    ) -> Result<(), EmbeddedError> {
        let (mut items, mut bad, mut bytes) = (Vec::new(), Vec::new(), 0);
        let mut to = announced;
        let first = partition.row_key(from);
        let last = partition.row_key(u64::MAX);
        self.with(|tables| {
            tables.walk(Table::Messages, &first, Some(&last), |key, row| {
                let Some((_, _, seq)) = split_key(key) else {
                    return true;
                };
                if items.len() >= READ_COUNT || bytes >= READ_BYTES {
                    to = seq;
                    return false;
                }
                match decode_message(key, row) {
                    Ok(message) => {
                        let weight = message.weight();
                        bytes += weight;
                        items.push((seq, Arc::new(message), weight));
                    }
                    Err(_) => bad.push((seq, row.to_vec())),
                }
                true
            })
        })?;
        let dropped = bad.len() as u64;
        partition.lock().core.refill(items, dropped, to);
        bad.into_iter()
            .for_each(|(seq, row)| self.set_aside(partition, seq, row));
        Ok(())
    }

    fn payload(&self, partition: &Arc<PartitionShared>, seq: u64) -> Result<(), EmbeddedError> {
        let key = partition.row_key(seq);
        let row = self.with(|tables| tables.get(Table::Messages, &key))?;
        let row = row.unwrap_or_default();
        match decode_message(&key, &row) {
            Ok(message) => partition
                .lock()
                .core
                .fill(seq, Arc::<Message>::new(message)),
            Err(_) => {
                partition.lock().core.forget(seq);
                self.set_aside(partition, seq, row);
            }
        }
        Ok(())
    }

    fn set_aside(&self, partition: &Arc<PartitionShared>, seq: u64, row: Vec<u8>) {
        let _ = self.intake.push(Job::SetAside {
            partition: Arc::clone(partition),
            seq,
            row,
        });
    }
}
