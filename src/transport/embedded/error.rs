//! What can go wrong in the embedded broker, and what each port is told of it.

use std::io;
use std::path::{Path, PathBuf};

use acquit_actors::ports::{PublishError, SourceError, TransportError};

/// Why the embedded broker cannot do what was asked. Cheap to clone, so that one failed commit
/// can answer all who waited for it.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum EmbeddedError {
    /// Another process has the folder open.
    #[error(
        "the folder {} is in use by another process; stop that one, or give this one a folder of its own with `broker.url`",
        dir.display()
    )]
    InUse {
        /// The folder.
        dir: PathBuf,
    },
    /// The folder was written by a newer version.
    #[error(
        "the folder {} holds a store of format {found}, and this version knows formats up to {known}; use the newer version, or another folder with `broker.url`",
        dir.display()
    )]
    NewerFormat {
        /// The folder.
        dir: PathBuf,
        /// The format it has.
        found: u32,
        /// The newest one this version knows.
        known: u32,
    },
    /// The folder cannot be written.
    #[error(
        "the folder {} is read-only; make it writable, or name another with `broker.url`",
        dir.display()
    )]
    ReadOnly {
        /// The folder.
        dir: PathBuf,
    },
    /// There is no room left on the folder's disk.
    #[error(
        "storage full: no room left for the folder {}; nothing that was confirmed is lost, make room and it goes on",
        dir.display()
    )]
    StorageFull {
        /// The folder.
        dir: PathBuf,
    },
    /// A file does not match its checksums.
    #[error(
        "the file {} is damaged ({detail}); restore the folder from a backup, or name another with `broker.url`",
        file.display()
    )]
    Corrupt {
        /// The file.
        file: PathBuf,
        /// What does not match.
        detail: String,
    },
    /// The operating system refused something else.
    #[error("cannot {action} in the folder {} of `broker.url`: {source}", dir.display())]
    Io {
        /// The folder.
        dir: PathBuf,
        /// What was tried.
        action: &'static str,
        /// Why it failed.
        source: std::sync::Arc<io::Error>,
    },
    /// The queue has another number of partitions.
    #[error(
        "the queue \"{queue}\" has {stored} partitions and {asked} were asked for; a key would move to another partition, so empty the queue and remove it, set `partitions = {stored}`, or use a new queue name"
    )]
    PartitionsChanged {
        /// The queue.
        queue: String,
        /// How many it has.
        stored: u32,
        /// How many were asked for.
        asked: u32,
    },
    /// There is no such queue or partition.
    #[error("there is no partition {partition} of the queue \"{queue}\"")]
    NoSuchQueue {
        /// The queue.
        queue: String,
        /// The partition.
        partition: u32,
    },
    /// More bytes of publishes wait for their commit than are allowed.
    #[error("too many publishes waiting ({waiting} bytes); slow down and try again")]
    TooManyWaiting {
        /// How many bytes wait.
        waiting: usize,
    },
    /// A message is larger than the store takes.
    #[error("the message takes {size} bytes and at most {max} are taken")]
    TooLarge {
        /// Its size.
        size: usize,
        /// The bound.
        max: usize,
    },
    /// The broker was closed.
    #[error("the embedded broker is closed")]
    Closed,
}

impl EmbeddedError {
    /// Tells whether trying again later may help.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::StorageFull { .. } | Self::Io { .. } | Self::TooManyWaiting { .. } => true,
            Self::InUse { .. }
            | Self::NewerFormat { .. }
            | Self::ReadOnly { .. }
            | Self::Corrupt { .. }
            | Self::PartitionsChanged { .. }
            | Self::NoSuchQueue { .. }
            | Self::TooLarge { .. }
            | Self::Closed => false,
        }
    }

    /// Sorts an error of the operating system.
    pub(crate) fn io(dir: &Path, action: &'static str, source: io::Error) -> Self {
        let dir = dir.to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::StorageFull { dir },
            io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
                Self::ReadOnly { dir }
            }
            _ => Self::Io {
                dir,
                action,
                source: std::sync::Arc::new(source),
            },
        }
    }
}

impl From<EmbeddedError> for TransportError {
    fn from(error: EmbeddedError) -> Self {
        match &error {
            EmbeddedError::NewerFormat { .. }
            | EmbeddedError::ReadOnly { .. }
            | EmbeddedError::PartitionsChanged { .. } => Self::Configuration(error.to_string()),
            _ => Self::Unavailable(error.to_string()),
        }
    }
}

impl From<EmbeddedError> for SourceError {
    fn from(error: EmbeddedError) -> Self {
        match &error {
            EmbeddedError::PartitionsChanged { .. } | EmbeddedError::NoSuchQueue { .. } => {
                Self::Refused(error.to_string())
            }
            EmbeddedError::Closed => Self::ChannelLost(error.to_string()),
            _ => Self::Unavailable(error.to_string()),
        }
    }
}

impl From<EmbeddedError> for PublishError {
    fn from(error: EmbeddedError) -> Self {
        match &error {
            EmbeddedError::TooLarge { .. } => Self::Refused(error.to_string()),
            _ => Self::Outage(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_named_whatever_the_system_calls_it() {
        let check = |errno, text: &str| {
            let error = EmbeddedError::io(
                Path::new("/data"),
                "write",
                io::Error::from_raw_os_error(errno),
            );
            let said = PublishError::from(error).to_string();
            assert!(said.contains(text), "{said}");
        };
        check(28, "storage full"); // ENOSPC: no blocks or no inodes
        check(122, "storage full"); // EDQUOT
        check(30, "read-only"); // EROFS
        check(5, "cannot write"); // EIO
    }
}
