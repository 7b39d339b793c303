//! Why a file cannot be fed. Told to a user: each says what to do where that is not plain.

use std::io;
use std::path::PathBuf;

use acquit_actors::ports::FeedError;
use thiserror::Error;

/// Why the file cannot be fed.
#[derive(Debug, Error)]
pub(super) enum FileFeedError {
    #[error("the feed is not open")]
    NotOpen,
    #[error("cannot read {path:?}: {}", reason(.source))]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{0:?} is not a file; a feed reads a regular file once, from its start to its end")]
    NotAFile(PathBuf),
    #[error(
        "{path:?} has {length} bytes, but {offset} bytes ({line} lines) of it were read before: it \
         was cut or replaced; {RESET}"
    )]
    Truncated {
        path: PathBuf,
        length: u64,
        offset: u64,
        line: u64,
    },
    #[error(
        "{path:?} does not begin as it did when it was first read ({line} lines of it were read): \
         it was replaced or changed; {RESET}"
    )]
    Replaced { path: PathBuf, line: u64 },
    #[error(
        "line {line} of {path:?} does not end where it did when it was read: the file was changed \
         or replaced; {RESET}"
    )]
    Broken { path: PathBuf, line: u64 },
    #[error("cannot write {path:?} (in worker.state-dir): {}", reason(.source))]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("reading the feed panicked")]
    Panicked,
}

/// How a feed is read from its start.
const RESET: &str = "to read it from its start, give `file` of this [[feed]] another name, for how \
                     far a feed was read is kept by its file and queue; what was fed from it stays";

impl From<FileFeedError> for FeedError {
    fn from(error: FileFeedError) -> Self {
        Self(error.to_string())
    }
}

fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "there is no such file".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        io::ErrorKind::StorageFull => "the disk is full".to_owned(),
        _ => error.to_string(),
    }
}
