//! A connection's life as a pure machine.
//!
//! | event ↓ / state → | Resolving | Connecting | Handshake | Open | Blocked | Waiting | Closing | Closed |
//! |---|---|---|---|---|---|---|---|---|
//! | Advanced | → Connecting | → Handshake | → Open, failures := 0 | – | – | – | – | – |
//! | Failed, DeadlineOver | next address: → Resolving, Try; none left: → Waiting, Wait | likewise | likewise | – | – | – | – | – |
//! | Blocked | – | – | – | → Blocked | – | – | – | – |
//! | Unblocked | – | – | – | – | → Open | – | – | – |
//! | Lost | – | – | – | → Waiting, Wait | likewise | – | – | – |
//! | WaitOver | – | – | – | – | – | → Resolving, Try(first address) | – | – |
//! | CloseAsked | → Closed | → Closed | → Closed | → Closing, Close | likewise | → Closed | – | – |
//! | CloseDone | – | – | – | – | – | – | → Closed | – |
//!
//! Waits grow from one round over all addresses to the next. In the first two minutes without a
//! connection none is longer than a second: a broker that restarts is back before that, and who
//! waits for it wants it at once.

use std::time::Duration;

use acquit_actors::model::Backoff;

/// How long a lost connection is tried again at least once a second.
const EAGER: Duration = Duration::from_secs(120);

/// The longest wait in that time.
const EAGER_MAX: Duration = Duration::from_secs(1);

/// Where a connection stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum State {
    /// The address's name is looked up.
    Resolving,
    /// TCP, and TLS.
    Connecting,
    /// AMQP's own: protocol, credentials, virtual host.
    Handshake,
    /// Usable.
    Open,
    /// The broker takes nothing from it (an alarm).
    Blocked,
    /// Nothing is tried until the wait is over.
    Waiting,
    /// We close it.
    Closing,
    /// Over.
    Closed,
}

impl State {
    /// Gives the state's name, as status shows it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Resolving => "resolving",
            Self::Connecting => "connecting",
            Self::Handshake => "handshake",
            Self::Open => "open",
            Self::Blocked => "blocked",
            Self::Waiting => "waiting",
            Self::Closing => "closing",
            Self::Closed => "closed",
        }
    }
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Event {
    /// One step further: resolved, connected, open.
    Advanced,
    /// The step failed, or took too long.
    Failed,
    Blocked,
    Unblocked,
    /// The connection is gone.
    Lost,
    WaitOver,
    CloseAsked,
    CloseDone,
}

/// What the keeper does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Action {
    /// Try the address with this number.
    Try(usize),
    /// Wait after so many failed rounds.
    Wait {
        rounds: u32,
    },
    /// Close it orderly.
    Close,
    Nothing,
}

/// A connection's life.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Life {
    state: State,
    addresses: usize,
    address: usize,
    rounds: u32,
}

impl Life {
    /// Begins with the first of at least one address.
    pub(super) fn new(addresses: usize) -> Self {
        Self {
            state: State::Resolving,
            addresses: addresses.max(1),
            address: 0,
            rounds: 0,
        }
    }

    pub(super) fn state(&self) -> State {
        self.state
    }

    pub(super) fn address(&self) -> usize {
        self.address
    }

    /// Applies an event; what cannot happen in a state changes nothing.
    pub(super) fn apply(&mut self, event: Event) -> Action {
        use State as S;
        match (self.state, event) {
            (S::Resolving, Event::Advanced) => self.go(S::Connecting, Action::Nothing),
            (S::Connecting, Event::Advanced) => self.go(S::Handshake, Action::Nothing),
            (S::Handshake, Event::Advanced) => {
                self.rounds = 0;
                self.go(S::Open, Action::Nothing)
            }
            (S::Resolving | S::Connecting | S::Handshake, Event::Failed) => {
                if self.address + 1 < self.addresses {
                    self.address += 1;
                    return self.go(S::Resolving, Action::Try(self.address));
                }
                self.wait()
            }
            (S::Open, Event::Blocked) => self.go(S::Blocked, Action::Nothing),
            (S::Blocked, Event::Unblocked) => self.go(S::Open, Action::Nothing),
            (S::Open | S::Blocked, Event::Lost) => self.wait(),
            (S::Waiting, Event::WaitOver) => {
                self.address = 0;
                self.go(S::Resolving, Action::Try(0))
            }
            (S::Open | S::Blocked, Event::CloseAsked) => self.go(S::Closing, Action::Close),
            (S::Resolving | S::Connecting | S::Handshake | S::Waiting, Event::CloseAsked) => {
                self.go(S::Closed, Action::Nothing)
            }
            (S::Closing, Event::CloseDone) => self.go(S::Closed, Action::Nothing),
            (S::Resolving | S::Connecting | S::Handshake, Event::Blocked | Event::Unblocked)
            | (S::Resolving | S::Connecting | S::Handshake, Event::Lost | Event::WaitOver)
            | (S::Resolving | S::Connecting | S::Handshake, Event::CloseDone)
            | (S::Open | S::Blocked, Event::Advanced | Event::Failed | Event::WaitOver)
            | (S::Open, Event::Unblocked | Event::CloseDone)
            | (S::Blocked, Event::Blocked | Event::CloseDone)
            | (S::Waiting, Event::Advanced | Event::Failed | Event::Blocked)
            | (S::Waiting, Event::Unblocked | Event::Lost | Event::CloseDone)
            | (S::Closing, Event::Advanced | Event::Failed | Event::Blocked)
            | (S::Closing, Event::Unblocked | Event::Lost | Event::WaitOver | Event::CloseAsked)
            | (S::Closed, _) => Action::Nothing,
        }
    }

    fn wait(&mut self) -> Action {
        self.rounds = self.rounds.saturating_add(1);
        let rounds = self.rounds;
        self.go(State::Waiting, Action::Wait { rounds })
    }

    fn go(&mut self, state: State, action: Action) -> Action {
        self.state = state;
        action
    }
}

/// How long to wait after so many failed rounds, when the last connection was lost (or the first
/// was asked for) `without` ago.
pub(super) fn wait_for(backoff: Backoff, rounds: u32, without: Duration, jitter: f64) -> Duration {
    let wait = backoff.delay(rounds, jitter);
    if without < EAGER {
        wait.min(EAGER_MAX)
    } else {
        wait
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashSet, VecDeque};

    use super::*;

    const EVENTS: [Event; 8] = [
        Event::Advanced,
        Event::Failed,
        Event::Blocked,
        Event::Unblocked,
        Event::Lost,
        Event::WaitOver,
        Event::CloseAsked,
        Event::CloseDone,
    ];

    /// Every state that can be reached, with every event: the action fits the state entered, the
    /// addresses are tried in order, and from everywhere a close ends it.
    #[test]
    fn every_reachable_state_keeps_the_table() {
        let (mut seen, mut next) = (HashSet::new(), VecDeque::from([Life::new(3)]));
        while let Some(mut life) = next.pop_front() {
            life.rounds = life.rounds.min(3);
            if !seen.insert(life.clone()) {
                continue;
            }
            for event in EVENTS {
                let (before, mut after) = (life.clone(), life.clone());
                let action = after.apply(event);
                match action {
                    Action::Try(address) => {
                        assert_eq!(
                            (after.state(), after.address()),
                            (State::Resolving, address)
                        );
                        let follows = match before.state() {
                            State::Waiting => address == 0,
                            _ => address == before.address() + 1,
                        };
                        assert!(follows && address < 3);
                    }
                    Action::Wait { rounds } => {
                        assert_eq!(after.state(), State::Waiting);
                        assert_eq!(rounds, before.rounds + 1);
                    }
                    Action::Close => assert_eq!(after.state(), State::Closing),
                    Action::Nothing => {
                        let entered = after.state() != before.state();
                        assert!(!entered || after.state() != State::Waiting);
                    }
                }
                if before.state() == State::Closed {
                    assert_eq!(after, before, "over is over");
                }
                next.push_back(after);
            }
            let mut closed = life.clone();
            closed.apply(Event::CloseAsked);
            closed.apply(Event::CloseDone);
            assert_eq!(closed.state(), State::Closed, "from {life:?}");
        }
        let states: HashSet<State> = seen.iter().map(Life::state).collect();
        assert_eq!(states.len(), 8, "every state is reached");
    }

    #[test]
    fn one_round_over_all_addresses_is_one_failure() {
        let mut life = Life::new(2);
        assert_eq!(life.apply(Event::Failed), Action::Try(1));
        assert_eq!(life.apply(Event::Failed), Action::Wait { rounds: 1 });
        assert_eq!(life.apply(Event::WaitOver), Action::Try(0));
        assert_eq!(life.apply(Event::Failed), Action::Try(1));
        for _ in 0..3 {
            life.apply(Event::Advanced);
        }
        assert_eq!(life.state(), State::Open);
        assert_eq!(life.apply(Event::Lost), Action::Wait { rounds: 1 });
    }

    #[test]
    fn for_two_minutes_it_is_tried_at_least_once_a_second() {
        let backoff = Backoff {
            base: Duration::from_millis(500),
            max: Duration::from_secs(30),
        };
        for rounds in 1..300 {
            let eager = wait_for(backoff, rounds, Duration::from_secs(119), 1.0);
            assert!(eager <= EAGER_MAX && !eager.is_zero());
            let later = wait_for(backoff, rounds, Duration::from_secs(121), 1.0);
            assert!(later <= Duration::from_secs(30));
        }
        let later = wait_for(backoff, 50, Duration::from_secs(121), 1.0);
        assert_eq!(later, Duration::from_secs(30));
    }
}
