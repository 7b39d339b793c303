//! The tail log: one file of fixed size that holds the batches committed since the last durable
//! checkpoint of the store below. It is what an fsync waits for, and what a killed process is
//! recovered from.
//!
//! The file's blocks are written once, when it is made: appending to it neither moves the file's
//! end (an fsync is one write, not a journal commit of the file system) nor finds the disk full.
//! After a checkpoint it starts again at its beginning under a new epoch; records of older epochs
//! behind the new ones are nobody's.
//!
//! Record: magic, epoch, number, length of the payload, payload, xxh3-64 of all that, seeded with
//! the store's own salt so that no message body can look like a record.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64_with_seed;

const MAGIC: u32 = 0x7A11_1060;
const HEAD: usize = 4 + 8 + 8 + 4;
const SUM: usize = 8;

/// The open log; see the module's docs.
#[derive(Debug)]
pub(crate) struct TailLog {
    file: File,
    path: PathBuf,
    capacity: u64,
    salt: u64,
    epoch: u64,
    number: u64,
    end: u64,
    /// The record being put together; kept for its memory.
    record: Vec<u8>,
}

/// What a log held when it was opened.
#[derive(Debug, Default)]
pub(crate) struct Recovered {
    /// The payloads of the epoch's records, in order.
    pub(crate) payloads: Vec<Vec<u8>>,
    /// Whether a last record was cut off (it was never confirmed).
    pub(crate) torn: bool,
}

/// Why a log cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LogError {
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A record in the middle does not match its checksum, and good ones follow.
    #[error("the record at byte {offset} does not match its checksum, and later records do")]
    Damaged { offset: u64 },
    /// The log is of a later epoch than the tables: they are from an older backup than it.
    #[error("it continues later tables (epoch {found}) than the ones beside it (epoch {tables})")]
    Ahead { found: u64, tables: u64 },
}

impl TailLog {
    /// Opens the log of a store at `epoch`, or makes it; gives what the epoch's records hold.
    pub(crate) fn open(
        path: &Path,
        capacity: u64,
        salt: u64,
        epoch: u64,
    ) -> Result<(Self, Recovered), LogError> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        let length = file.metadata()?.len();
        if length < capacity {
            allocate(&mut file, length, capacity)?;
        }
        let mut log = Self {
            file,
            path: path.to_owned(),
            capacity: length.max(capacity),
            salt,
            epoch,
            number: 0,
            end: 0,
            record: Vec::new(),
        };
        let recovered = log.recover()?;
        Ok((log, recovered))
    }

    /// Gives the log's file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Tells whether a payload of this length fits behind what is there.
    pub(crate) fn has_room(&self, payload: usize) -> bool {
        (payload + HEAD + SUM) as u64 <= self.capacity - self.end
    }

    /// Appends one record: it outlives this process from here on. After an error nothing was
    /// appended, and the next record is written over whatever arrived.
    pub(crate) fn append(&mut self, write_payload: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        self.record.clear();
        self.record.extend_from_slice(&MAGIC.to_le_bytes());
        self.record.extend_from_slice(&self.epoch.to_le_bytes());
        self.record.extend_from_slice(&self.number.to_le_bytes());
        self.record.extend_from_slice(&[0; 4]);
        write_payload(&mut self.record);
        let length = u32::try_from(self.record.len() - HEAD)
            .map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
        self.record[HEAD - 4..HEAD].copy_from_slice(&length.to_le_bytes());
        let sum = xxh3_64_with_seed(&self.record, self.salt);
        self.record.extend_from_slice(&sum.to_le_bytes());
        if self.record.len() as u64 > self.capacity - self.end {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.file.write_all_at(&self.record, self.end)?;
        self.end += self.record.len() as u64;
        self.number += 1;
        Ok(())
    }

    /// Takes the last record back, because its fsync failed and nobody may count on it.
    pub(crate) fn take_back(&mut self) {
        self.end -= self.record.len() as u64;
        self.number -= 1;
        // Its magic is wiped as well as can be, so that a recovery does not find it.
        let _ = self.file.write_all_at(&[0; 4], self.end);
    }

    /// Waits until all that was appended outlives a power cut.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Starts again at the beginning: the store below holds everything of older epochs.
    pub(crate) fn restart(&mut self, epoch: u64) {
        self.epoch = epoch;
        self.number = 0;
        self.end = 0;
        // A record of a huge batch does not keep its memory for ever.
        self.record.shrink_to(1 << 20);
    }

    /// Gives the bytes in use.
    pub(crate) fn used(&self) -> u64 {
        self.end
    }

    fn recover(&mut self) -> Result<Recovered, LogError> {
        let mut bytes = vec![0; usize::try_from(self.capacity).unwrap_or(usize::MAX)];
        self.file.read_exact_at(&mut bytes, 0)?;
        if let Some(found) = self.later_epoch(&bytes) {
            let tables = self.epoch;
            return Err(LogError::Ahead { found, tables });
        }
        let mut recovered = Recovered::default();
        let mut at = 0;
        while let Some(payload) = record_at(&bytes[at..], self.salt, self.epoch, Some(self.number))
        {
            recovered.payloads.push(payload.to_vec());
            at += HEAD + payload.len() + SUM;
            self.number += 1;
        }
        self.end = at as u64;
        recovered.torn = starts_record(&bytes[at..], self.epoch);
        // A flipped bit in the middle would hide all good records behind it: those are looked for.
        // No record starts among zeros, and most of the file is zeros.
        const BLOCK: usize = 4096;
        let blocks = bytes.chunks(BLOCK).enumerate();
        let written = blocks.filter(|(_, block)| **block != [0; BLOCK][..block.len()]);
        let later = written
            .flat_map(|(n, block)| n * BLOCK..n * BLOCK + block.len())
            .filter(|from| *from > at && starts_record(&bytes[*from..], self.epoch))
            .any(|from| record_at(&bytes[from..], self.salt, self.epoch, None).is_some());
        if later {
            let offset = self.end;
            return Err(LogError::Damaged { offset });
        }
        Ok(recovered)
    }

    /// Gives the epoch of the first record, if it is a good one and later than ours.
    fn later_epoch(&self, bytes: &[u8]) -> Option<u64> {
        let found = u64::from_le_bytes(bytes.get(4..12)?.try_into().ok()?);
        record_at(bytes, self.salt, found, None)?;
        (found > self.epoch).then_some(found)
    }
}

/// Reads the record at the start of some bytes, if a good one of the epoch stands there.
fn record_at(bytes: &[u8], salt: u64, epoch: u64, number: Option<u64>) -> Option<&[u8]> {
    if !starts_record(bytes, epoch) {
        return None;
    }
    let found = u64::from_le_bytes(bytes.get(12..20)?.try_into().ok()?);
    if number.is_some_and(|number| number != found) {
        return None;
    }
    let length = u32::from_le_bytes(bytes.get(20..HEAD)?.try_into().ok()?) as usize;
    let (record, rest) = bytes.split_at_checked(HEAD.checked_add(length)?)?;
    let sum = u64::from_le_bytes(*rest.first_chunk::<SUM>()?);
    (xxh3_64_with_seed(record, salt) == sum).then(|| &record[HEAD..])
}

fn starts_record(bytes: &[u8], epoch: u64) -> bool {
    bytes.len() >= 12 && bytes[..4] == MAGIC.to_le_bytes() && bytes[4..12] == epoch.to_le_bytes()
}

/// Writes real zeros: a hole would find the disk full at the worst moment.
fn allocate(file: &mut File, from: u64, to: u64) -> io::Result<()> {
    file.seek(SeekFrom::Start(from))?;
    let zeros = [0_u8; 64 * 1024];
    let mut left = to - from;
    while left > 0 {
        let part = left.min(zeros.len() as u64);
        file.write_all(&zeros[..usize::try_from(part).unwrap_or(zeros.len())])?;
        left -= part;
    }
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: u64 = 4096;

    fn log_with(path: &Path, epoch: u64, payloads: &[&str]) {
        let (mut log, _) = TailLog::open(path, CAPACITY, 7, epoch).expect("opens");
        for payload in payloads {
            log.append(|out| out.extend_from_slice(payload.as_bytes()))
                .expect("appends");
        }
    }

    fn recovered(path: &Path, epoch: u64) -> Result<(Vec<String>, bool), LogError> {
        let (_, recovered) = TailLog::open(path, CAPACITY, 7, epoch)?;
        let texts = recovered.payloads.into_iter();
        let texts = texts.map(|p| String::from_utf8(p).expect("text")).collect();
        Ok((texts, recovered.torn))
    }

    fn flip(path: &Path, at: u64) {
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.expect("opens");
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).expect("reads");
        file.write_all_at(&[byte[0] ^ 4], at).expect("writes");
    }

    #[test]
    fn records_come_back_in_order_and_only_of_their_epoch() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let path = dir.path().join("log");
        log_with(&path, 1, &["old", "older", "oldest"]);
        let (mut log, _) = TailLog::open(&path, CAPACITY, 7, 1).expect("opens");
        log.restart(2);
        log.append(|out| out.extend_from_slice(b"new"))
            .expect("appends");
        drop(log);
        assert_eq!(recovered(&path, 2).expect("good").0, ["new"]);
    }

    #[test]
    fn a_log_of_later_tables_is_refused() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let path = dir.path().join("log");
        log_with(&path, 5, &["later"]);
        let ahead = LogError::Ahead {
            found: 5,
            tables: 4,
        };
        let error = recovered(&path, 4).expect_err("refused");
        assert_eq!(error.to_string(), ahead.to_string());
        assert!(recovered(&path, 6).expect("older is nobody's").0.is_empty());
    }

    #[test]
    fn a_cut_off_last_record_is_dropped_and_said() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let path = dir.path().join("log");
        log_with(&path, 1, &["first", "second"]);
        flip(&path, (HEAD + 5 + SUM + HEAD + 3) as u64);
        assert_eq!(
            recovered(&path, 1).expect("torn is no damage"),
            (vec!["first".to_owned()], true)
        );
    }

    #[test]
    fn a_flipped_bit_before_good_records_is_refused_wherever_it_is() {
        let record = HEAD + 5 + SUM;
        for at in 0..record {
            let dir = tempfile::tempdir().expect("temporary folder");
            let path = dir.path().join("log");
            log_with(&path, 1, &["first", "later"]);
            flip(&path, at as u64);
            assert!(
                matches!(recovered(&path, 1), Err(LogError::Damaged { offset: 0 })),
                "byte {at}"
            );
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_and_changes_nothing() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let path = dir.path().join("log");
        let (mut log, _) = TailLog::open(&path, CAPACITY, 7, 1).expect("opens");
        assert!(!log.has_room(5000));
        assert!(log.append(|out| out.resize(5000, 1)).is_err());
        log.append(|out| out.extend_from_slice(b"fits"))
            .expect("appends");
        drop(log);
        assert_eq!(recovered(&path, 1).expect("good").0, ["fits"]);
    }
}
