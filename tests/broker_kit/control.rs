//! A fast way into a private node: Erlang expressions over a loopback connection, well under a millisecond each,
//! where `rabbitmqctl` takes one to two seconds to start.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

/// What the node runs at its start.
pub(super) const SCRIPT: &str = include_str!("control.erl");

/// Where a node listens for expressions, and the word that it wants first.
#[derive(Clone, Debug)]
pub(crate) struct Control {
    pub(super) port: u16,
    pub(super) token: String,
}

/// Why an expression has no value.
#[derive(Debug)]
pub(crate) enum EvalError {
    /// The node could not be asked, or did not answer in time.
    Unreachable(std::io::Error),
    /// The expression failed: its class and reason as Erlang writes them.
    Failed(String),
}

impl Control {
    /// Past this the node counts as unreachable (a stopped one is).
    const BOUND: Duration = Duration::from_secs(20);

    /// The value of the last of some expressions: a binary as it is, another term in Erlang's notation.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future stops the waiting; the node still evaluates what it was sent.
    pub(crate) async fn eval(&self, expressions: &str) -> Result<String, EvalError> {
        let (control, text) = (self.clone(), expressions.to_owned());
        tokio::task::spawn_blocking(move || control.eval_blocking(&text))
            .await
            .expect("asking does not panic")
    }

    /// The same, for code that cannot wait.
    pub(crate) fn eval_blocking(&self, expressions: &str) -> Result<String, EvalError> {
        let answer = self.ask(expressions).map_err(EvalError::Unreachable)?;
        let text = String::from_utf8_lossy(answer.get(1..).unwrap_or_default()).into_owned();
        match answer.first() {
            Some(b'+') => Ok(text),
            _ => Err(EvalError::Failed(text)),
        }
    }

    fn ask(&self, expressions: &str) -> std::io::Result<Vec<u8>> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let mut stream = TcpStream::connect_timeout(&address, Self::BOUND)?;
        stream.set_read_timeout(Some(Self::BOUND))?;
        stream.set_nodelay(true)?;
        send(&mut stream, &self.token)?;
        let text = expressions.trim_end();
        let dot = if text.ends_with('.') { "" } else { "." };
        send(&mut stream, &format!("{text}{dot}"))?;
        let mut length = [0; 4];
        stream.read_exact(&mut length)?;
        let mut answer = vec![0; u32::from_be_bytes(length) as usize];
        stream.read_exact(&mut answer)?;
        Ok(answer)
    }
}

fn send(stream: &mut TcpStream, text: &str) -> std::io::Result<()> {
    let length = u32::try_from(text.len()).expect("a short text");
    let mut frame = length.to_be_bytes().to_vec();
    frame.extend_from_slice(text.as_bytes());
    stream.write_all(&frame)
}

/// A text as an Erlang binary, whatever is in it.
pub(crate) fn binary(text: &str) -> String {
    let mut literal = String::from("<<");
    for (index, byte) in text.bytes().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        write!(literal, "{comma}{byte}").expect("a string takes everything");
    }
    literal.push_str(">>");
    literal
}
