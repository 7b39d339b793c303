//! The client's end of the socket.

use std::io;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::{Answer, Request};

/// How long a process may take to answer; a drain that is waited for takes what it takes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// A connection to a running process.
#[derive(Debug)]
pub struct Client {
    lines: Lines<BufReader<OwnedReadHalf>>,
    write: OwnedWriteHalf,
}

/// Why a command got no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The process refuses, and says why.
    #[error("{0}")]
    Refused(String),
    /// It does not answer.
    #[error("the process has not answered for {0:?}; it may do so later")]
    Silent(Duration),
    /// The connection broke.
    #[error("the process ended the connection")]
    Broken(#[source] io::Error),
    /// The answer cannot be read: another version answers.
    #[error("the process speaks another version of acquit")]
    Version(#[source] serde_json::Error),
}

impl Client {
    /// Connects to the process that serves this socket; `None` if none does.
    ///
    /// # Errors
    /// When the socket is there but may not be used.
    pub async fn connect(socket: &Path) -> io::Result<Option<Self>> {
        match UnixStream::connect(socket).await {
            Ok(stream) => {
                let (read, write) = stream.into_split();
                Ok(Some(Self {
                    lines: BufReader::new(read).lines(),
                    write,
                }))
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
                ) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Sends a request and gives its end; `item` hears each item before.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn request(
        &mut self,
        request: &Request,
        mut item: impl FnMut(Value),
    ) -> Result<Value, ClientError> {
        let mut line = serde_json::to_vec(request).map_err(ClientError::Version)?;
        line.push(b'\n');
        self.write
            .write_all(&line)
            .await
            .map_err(ClientError::Broken)?;
        loop {
            let bound = match request {
                Request::Drain { wait: true, .. } => Duration::MAX,
                _ => ANSWER_TIMEOUT,
            };
            let line = tokio::time::timeout(bound, self.lines.next_line()).await;
            let line = line.map_err(|_| ClientError::Silent(ANSWER_TIMEOUT))?;
            let line = line.map_err(ClientError::Broken)?;
            let Some(line) = line else {
                return Err(ClientError::Broken(io::ErrorKind::UnexpectedEof.into()));
            };
            match serde_json::from_str(&line).map_err(ClientError::Version)? {
                Answer::Item(value) => item(value),
                Answer::Done(value) => return Ok(value),
                Answer::Error(text) => return Err(ClientError::Refused(text)),
            }
        }
    }
}
