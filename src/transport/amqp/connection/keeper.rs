//! Keeps one connection: connects, watches, connects again, for as long as it is run.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use acquit_actors::ports::TRANSPORT_CLOSE;
use futures_util::StreamExt;
use lapin::{Connection, Event as LapinEvent};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::super::classify::classify;
use super::super::error::{AmqpError, clean};
use super::core::{Action, Event, Life, State, wait_for};
use super::open::{Opener, Step, connect};

/// How long an orderly close of a connection may take. A broker that has read it closes the
/// connection, also where its answer comes too late.
const CLOSE_MAX: Duration = Duration::from_millis(250);

/// How long it is waited for: not so long that the drain cuts it off.
const CLOSED_MAX: Duration = CLOSE_MAX.saturating_add(Duration::from_millis(25));

const _: () = assert!(CLOSED_MAX.as_millis() < TRANSPORT_CLOSE.as_millis());

/// What others see of a connection.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) state: State,
    /// While it is open or blocked.
    pub(crate) connection: Option<Arc<Connection>>,
    /// Why it is not open, or is blocked.
    pub(crate) trouble: Option<String>,
    /// Which address.
    pub(crate) address: String,
    /// How often it has been opened.
    pub(crate) opened: u64,
}

/// Keeps one connection.
#[derive(Debug)]
pub(crate) struct Keeper {
    opener: Opener,
    seen: watch::Sender<Seen>,
    closing: Notify,
    /// Since when there is no connection.
    without: Mutex<Instant>,
}

impl Keeper {
    pub(crate) fn new(opener: Opener) -> Self {
        let seen = Seen {
            state: State::Waiting,
            connection: None,
            trouble: None,
            address: String::new(),
            opened: 0,
        };
        Self {
            opener,
            seen: watch::Sender::new(seen),
            closing: Notify::new(),
            without: Mutex::new(Instant::now()),
        }
    }

    /// Gives the name that the broker shows.
    pub(crate) fn role(&self) -> &'static str {
        self.opener.role
    }

    /// Gives what is seen of it now.
    pub(crate) fn seen(&self) -> Seen {
        self.seen.borrow().clone()
    }

    /// Waits until it is open and gives the connection, with the number of its opening.
    ///
    /// Waits for as long as there is none: the keeper tries on for ever, each try bounded.
    pub(crate) async fn connection(&self) -> Option<(Arc<Connection>, u64)> {
        let mut seen = self.seen.subscribe();
        let open = seen
            .wait_for(|seen| seen.connection.is_some() || seen.state == State::Closed)
            .await
            .ok()?;
        Some((open.connection.clone()?, open.opened))
    }

    /// Asks for the end: an open connection is closed orderly.
    pub(crate) async fn close(&self) {
        self.closing.notify_one();
        let mut seen = self.seen.subscribe();
        let closed = seen.wait_for(|seen| seen.state == State::Closed);
        let _ = tokio::time::timeout(CLOSED_MAX, closed).await;
    }

    /// Connects, watches and connects again until it is asked to close.
    pub(crate) async fn run(&self) {
        let mut life = Life::new(self.opener.options.uris.len());
        // Another run may have died with a connection open: it is gone with its owner.
        self.show(&life, |seen| seen.connection = None);
        loop {
            let end = tokio::select! {
                () = self.closing.notified() => None,
                opened = self.try_address(&mut life) => opened,
            };
            let action = match end {
                None => life.apply(Event::CloseAsked),
                Some(Ok(connection)) => {
                    life.apply(Event::Advanced);
                    let connection = Arc::new(connection);
                    self.show(&life, |seen| {
                        seen.connection = Some(Arc::clone(&connection));
                        seen.opened += 1;
                        seen.trouble = None;
                    });
                    let action = self.watch(&mut life, &connection).await;
                    *self.without.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
                    if action == Action::Close {
                        self.show(&life, |_| {});
                        let closing = connection.close(200, "done".into());
                        let _ = tokio::time::timeout(CLOSE_MAX, closing).await;
                        life.apply(Event::CloseDone)
                    } else {
                        action
                    }
                }
                Some(Err(error)) => {
                    let text = self.failure(&life, &error);
                    let action = life.apply(Event::Failed);
                    if self.seen.borrow().trouble.as_ref() != Some(&text) {
                        tracing::warn!(connection = self.role(), "not connected: {text}");
                    }
                    self.show(&life, |seen| seen.trouble = Some(text));
                    action
                }
            };
            if life.state() == State::Closed {
                self.show(&life, |seen| seen.connection = None);
                return;
            }
            if let Action::Wait { rounds } = action {
                self.show(&life, |seen| seen.connection = None);
                let without = {
                    let since = self.without.lock().unwrap_or_else(PoisonError::into_inner);
                    since.elapsed()
                };
                let backoff = self.opener.options.backoff;
                let wait = wait_for(backoff, rounds, without, rand::random());
                tokio::select! {
                    () = self.closing.notified() => {
                        life.apply(Event::CloseAsked);
                        self.show(&life, |seen| seen.connection = None);
                        return;
                    }
                    () = tokio::time::sleep(wait) => { life.apply(Event::WaitOver); }
                }
            }
        }
    }

    /// Says what failed, where and as whom.
    fn failure(&self, life: &Life, error: &AmqpError) -> String {
        match self.opener.options.uris.get(life.address()) {
            Some(uri) => format!(
                "{} (user {:?}, virtual host {:?}): {error}",
                uri.address(),
                clean(&uri.user),
                clean(&uri.vhost)
            ),
            None => error.to_string(),
        }
    }

    async fn try_address(&self, life: &mut Life) -> Option<Result<Connection, AmqpError>> {
        let uri = self.opener.options.uris.get(life.address())?;
        self.show(life, |seen| seen.address = uri.address());
        let (sender, mut steps) = tokio::sync::mpsc::unbounded_channel::<Step>();
        let begins = move |step| {
            let _ = sender.send(step);
        };
        let connecting = connect(&self.opener, uri, begins);
        tokio::pin!(connecting);
        loop {
            tokio::select! {
                biased;
                Some(_) = steps.recv() => {
                    life.apply(Event::Advanced);
                    self.show(life, |_| {});
                }
                connected = &mut connecting => {
                    if connected.is_ok() && life.state() == State::Connecting {
                        life.apply(Event::Advanced);
                    }
                    return Some(connected);
                }
            }
        }
    }

    /// Watches an open connection until it is lost or asked to close.
    async fn watch(&self, life: &mut Life, connection: &Connection) -> Action {
        let mut events = std::pin::pin!(connection.events_listener());
        // A death between the handshake and the first event is not announced.
        let mut look = tokio::time::interval(Duration::from_secs(1));
        loop {
            let event = tokio::select! {
                () = self.closing.notified() => return life.apply(Event::CloseAsked),
                _ = look.tick() => {
                    if connection.status().connected() {
                        continue;
                    }
                    None
                }
                event = events.next() => event,
            };
            match event {
                Some(LapinEvent::ConnectionBlocked(reason)) => {
                    life.apply(Event::Blocked);
                    let text = clean(&reason);
                    tracing::warn!(connection = self.role(), "blocked by the broker: {text}");
                    let text = format!("blocked by the broker: {text}");
                    self.show(life, |seen| seen.trouble = Some(text));
                }
                Some(LapinEvent::ConnectionUnblocked) => {
                    life.apply(Event::Unblocked);
                    tracing::info!(connection = self.role(), "no longer blocked");
                    self.show(life, |seen| seen.trouble = None);
                }
                Some(LapinEvent::Error(error)) => {
                    // A channel's error leaves the connection as it is.
                    if connection.status().connected() {
                        continue;
                    }
                    return self.lost(life, &classify(&error).to_string());
                }
                None => return self.lost(life, "it was closed"),
                Some(_) => {}
            }
        }
    }

    fn lost(&self, life: &mut Life, why: &str) -> Action {
        let action = life.apply(Event::Lost);
        tracing::warn!(connection = self.role(), "lost: {why}");
        self.show(life, |seen| {
            seen.connection = None;
            seen.trouble = Some(format!("lost: {why}"));
        });
        action
    }

    fn show(&self, life: &Life, change: impl FnOnce(&mut Seen)) {
        self.seen.send_modify(|seen| {
            seen.state = life.state();
            change(seen);
        });
    }
}
