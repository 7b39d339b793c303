//! Ends what the client library does for a connection that nobody waits for any longer.
//!
//! Its work on a connection is a thread, which owns the socket and ends with it. A handshake that
//! is given up leaves both: a peer that stays mute would be listened to for ever, by one thread
//! more with each try.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A hold on the socket of a connection that is being opened. Dropping it shuts the socket down,
/// or the one that is connected later, unless it was let go before.
#[derive(Debug, Default)]
pub(super) struct Grip(Holder);

/// What takes the socket into the grip.
#[derive(Debug, Default, Clone)]
pub(super) struct Holder(Arc<Mutex<State>>);

#[derive(Debug, Default)]
enum State {
    #[default]
    Unconnected,
    Held(TcpStream),
    LetGo,
    GivenUp,
}

impl Grip {
    pub(super) fn holder(&self) -> Holder {
        self.0.clone()
    }

    /// The handshake has ended, one way or the other: the socket is its connection's own.
    pub(super) fn let_go(self) {
        *self.0.lock() = State::LetGo;
    }
}

impl Drop for Grip {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        match std::mem::replace(&mut *state, State::GivenUp) {
            // It fails where the peer was first.
            State::Held(socket) => drop(socket.shutdown(Shutdown::Both)),
            State::LetGo => *state = State::LetGo,
            State::Unconnected | State::GivenUp => {}
        }
    }
}

impl Holder {
    /// Takes hold of a socket, whose owner keeps it.
    ///
    /// # Errors
    /// When the connection was given up meanwhile, or there is no descriptor left to hold it with.
    pub(super) fn hold(&self, socket: &impl AsFd) -> io::Result<()> {
        let mut state = self.lock();
        if matches!(*state, State::GivenUp) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        *state = State::Held(socket.as_fd().try_clone_to_owned()?.into());
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;

    use super::*;

    /// Both ends of a connection.
    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let ours = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        let (theirs, _) = listener.accept().expect("accepted");
        (ours, theirs)
    }

    #[test]
    fn a_grip_that_is_dropped_ends_the_connection_under_its_owner() {
        let (mut ours, mut theirs) = pair();
        let grip = Grip::default();
        grip.holder().hold(&ours).expect("held");
        drop(grip);
        assert_eq!(ours.read(&mut [0]).expect("an end"), 0);
        assert_eq!(theirs.read(&mut [0]).expect("an end"), 0);
    }

    #[test]
    fn what_was_let_go_stays_and_what_comes_too_late_is_refused() {
        let (ours, mut theirs) = pair();
        let grip = Grip::default();
        grip.holder().hold(&ours).expect("held");
        grip.let_go();
        theirs.set_nonblocking(true).expect("a socket");
        let read = theirs.read(&mut [0]).map_err(|error| error.kind());
        assert_eq!(read, Err(io::ErrorKind::WouldBlock));

        let grip = Grip::default();
        let holder = grip.holder();
        drop(grip);
        assert!(holder.hold(&ours).is_err());
    }
}
