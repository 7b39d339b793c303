//! A partition's subscription as a pure machine: when its source is opened, cancelled, resumed,
//! reopened and closed.
//!
//! | event ↓ / state → | Opening | Waiting | Subscribed | Quiet | Closed |
//! |---|---|---|---|---|---|
//! | Opened | wanted: → Subscribed; else → Quiet, Cancel | refuse | refuse | refuse | CloseSource |
//! | OpenFailed | → Waiting, ArmReopen | refuse | refuse | refuse | – |
//! | SourceLost | refuse | refuse | → Waiting, DropSource, LoseDeliveries, ArmReopen if wanted | likewise | – |
//! | ReopenDue | – | wanted: → Opening, Open; else – | – | – | – |
//! | ReopenAsked | – | – | as SourceLost | likewise | – |
//! | PauseAsked | not wanted | not wanted | → Quiet, Cancel | – | – |
//! | ResumeAsked | wanted | → Opening, Open | – | → Subscribed, Resume | – |
//! | DrainBegan | not wanted, for good | likewise | → Quiet, Cancel | – | – |
//! | CloseAsked | → Closed | → Closed | → Closed, CloseSource | likewise | – |
//!
//! Draining never opens a source again: what is lost then belongs to the broker.

/// Where a partition's subscription stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum SubscriptionState {
    /// A source is being opened.
    Opening,
    /// Opening failed, or the source was lost: waiting for the next try.
    Waiting,
    /// The broker hands out.
    Subscribed,
    /// The source is open, but nothing more is handed out: paused or draining.
    Quiet,
    /// Over.
    Closed,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(
    missing_docs,
    reason = "the table in the module's documentation says it"
)]
pub(crate) enum SubscriptionEvent {
    Opened,
    OpenFailed,
    SourceLost,
    ReopenDue,
    ReopenAsked,
    PauseAsked,
    ResumeAsked,
    DrainBegan,
    CloseAsked,
}

/// What the actor does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub(crate) enum SubscriptionAction {
    Open,
    /// Wait with backoff after so many failures in a row, then say `ReopenDue`.
    ArmReopen {
        failures: u32,
    },
    Cancel,
    Resume,
    /// Close it orderly: settlements are flushed.
    CloseSource,
    /// Drop it: what is unsettled belongs to the broker again.
    DropSource,
    /// Tell the deliveries of its generation that their channel is lost.
    LoseDeliveries,
}

/// A partition's subscription.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Subscription {
    state: SubscriptionState,
    paused: bool,
    draining: bool,
    failures: u32,
}

impl Subscription {
    /// Starts one; the first action is to open, unless it starts paused or draining.
    pub(crate) fn start(paused: bool, draining: bool) -> (Self, Vec<SubscriptionAction>) {
        let mut new = Self {
            state: SubscriptionState::Waiting,
            paused,
            draining,
            failures: 0,
        };
        let actions = new.apply(SubscriptionEvent::ReopenDue);
        (new, actions)
    }

    /// Gives the state.
    pub(crate) fn state(&self) -> SubscriptionState {
        self.state
    }

    /// Tells whether arrivals are wanted.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.paused && !self.draining
    }

    /// Applies an event; what cannot happen in a state changes nothing.
    pub(crate) fn apply(&mut self, event: SubscriptionEvent) -> Vec<SubscriptionAction> {
        use SubscriptionAction as A;
        use SubscriptionEvent as E;
        use SubscriptionState as S;
        match event {
            E::PauseAsked => self.paused = true,
            E::ResumeAsked => self.paused = false,
            E::DrainBegan => self.draining = true,
            _ => {}
        }
        let wanted = self.is_wanted();
        match (self.state, event) {
            (S::Opening, E::Opened) => {
                self.failures = 0;
                if wanted {
                    self.go(S::Subscribed, vec![])
                } else {
                    self.go(S::Quiet, vec![A::Cancel])
                }
            }
            (S::Opening, E::OpenFailed) => self.wait(vec![]),
            // Never at once: what made this one end may end the next one as soon.
            (S::Subscribed | S::Quiet, E::SourceLost | E::ReopenAsked) => {
                self.wait(vec![A::DropSource, A::LoseDeliveries])
            }
            (S::Waiting, E::ReopenDue | E::ResumeAsked) if wanted => {
                self.go(S::Opening, vec![A::Open])
            }
            (S::Subscribed, E::PauseAsked | E::DrainBegan) => self.go(S::Quiet, vec![A::Cancel]),
            (S::Quiet, E::ResumeAsked) if wanted => self.go(S::Subscribed, vec![A::Resume]),
            (S::Subscribed | S::Quiet, E::CloseAsked) => self.go(S::Closed, vec![A::CloseSource]),
            (S::Opening | S::Waiting, E::CloseAsked) => self.go(S::Closed, vec![]),
            (S::Closed, E::Opened) => vec![A::CloseSource],
            (S::Opening, E::SourceLost | E::ReopenDue | E::ReopenAsked)
            | (S::Opening, E::PauseAsked | E::ResumeAsked | E::DrainBegan)
            | (S::Waiting, E::Opened | E::OpenFailed | E::SourceLost | E::ReopenAsked)
            | (S::Waiting, E::ReopenDue | E::ResumeAsked | E::PauseAsked | E::DrainBegan)
            | (S::Subscribed, E::Opened | E::OpenFailed | E::ReopenDue | E::ResumeAsked)
            | (S::Quiet, E::Opened | E::OpenFailed | E::ReopenDue | E::ResumeAsked)
            | (S::Quiet, E::PauseAsked | E::DrainBegan)
            | (S::Closed, E::OpenFailed | E::SourceLost | E::ReopenDue | E::ReopenAsked)
            | (S::Closed, E::PauseAsked | E::ResumeAsked | E::DrainBegan | E::CloseAsked) => {
                vec![]
            }
        }
    }

    fn wait(&mut self, mut actions: Vec<SubscriptionAction>) -> Vec<SubscriptionAction> {
        self.failures = self.failures.saturating_add(1);
        if self.is_wanted() {
            actions.push(SubscriptionAction::ArmReopen {
                failures: self.failures,
            });
        }
        self.go(SubscriptionState::Waiting, actions)
    }

    fn go(
        &mut self,
        state: SubscriptionState,
        actions: Vec<SubscriptionAction>,
    ) -> Vec<SubscriptionAction> {
        self.state = state;
        actions
    }
}

#[cfg(test)]
mod tests {
    use super::SubscriptionAction as A;
    use super::SubscriptionEvent as E;
    use super::*;

    const EVENTS: [E; 9] = [
        E::Opened,
        E::OpenFailed,
        E::SourceLost,
        E::ReopenDue,
        E::ReopenAsked,
        E::PauseAsked,
        E::ResumeAsked,
        E::DrainBegan,
        E::CloseAsked,
    ];

    /// What the world holds, told by the actions alone.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    struct World {
        source: bool,
        handing_out: bool,
        opening: bool,
        drained: bool,
    }

    fn walk(sub: &Subscription, world: World, depth: usize) {
        if depth == 0 {
            return;
        }
        for event in EVENTS {
            // The world says only what can be: an open is answered once, a loss needs a source.
            let can = match event {
                E::Opened | E::OpenFailed => world.opening,
                E::SourceLost => world.source,
                _ => true,
            };
            if !can {
                continue;
            }
            let (mut next, mut after) = (sub.clone(), world);
            match event {
                E::Opened => {
                    (after.opening, after.source, after.handing_out) = (false, true, true);
                }
                E::OpenFailed => after.opening = false,
                E::DrainBegan => after.drained = true,
                _ => {}
            }
            for action in next.apply(event) {
                match action {
                    A::Open => {
                        assert!(!after.source && !after.opening, "one source at a time");
                        assert!(!after.drained, "a drain never opens a source");
                        after.opening = true;
                    }
                    A::Cancel => after.handing_out = false,
                    A::Resume => after.handing_out = true,
                    A::CloseSource | A::DropSource => {
                        assert!(after.source, "only an open source is closed");
                        (after.source, after.handing_out) = (false, false);
                    }
                    A::ArmReopen { failures } => assert!(failures > 0 && !after.drained),
                    A::LoseDeliveries => {}
                }
            }
            match next.state() {
                SubscriptionState::Subscribed => assert!(after.source && after.handing_out),
                SubscriptionState::Quiet => assert!(after.source && !after.handing_out),
                SubscriptionState::Opening => assert!(after.opening),
                SubscriptionState::Waiting => assert!(!after.source),
                SubscriptionState::Closed => assert!(!after.source),
            }
            if next.state() == SubscriptionState::Subscribed {
                assert!(next.is_wanted(), "handed out only while wanted");
            }
            walk(&next, after, depth - 1);
        }
    }

    #[test]
    fn every_sequence_keeps_one_source_and_a_drain_never_opens_one() {
        let (sub, actions) = Subscription::start(false, false);
        assert_eq!(actions, [A::Open]);
        walk(
            &sub,
            World {
                opening: true,
                ..World::default()
            },
            7,
        );
    }

    #[test]
    fn a_paused_start_opens_when_it_is_resumed() {
        let (mut sub, actions) = Subscription::start(true, false);
        assert_eq!(actions, []);
        assert_eq!(sub.apply(E::ResumeAsked), [A::Open]);
    }

    #[test]
    fn failures_are_counted_until_an_open_succeeds() {
        let (mut sub, _) = Subscription::start(false, false);
        assert_eq!(sub.apply(E::OpenFailed), [A::ArmReopen { failures: 1 }]);
        assert_eq!(sub.apply(E::ReopenDue), [A::Open]);
        assert_eq!(sub.apply(E::OpenFailed), [A::ArmReopen { failures: 2 }]);
        assert_eq!(sub.apply(E::ReopenDue), [A::Open]);
        assert_eq!(sub.apply(E::Opened), []);
        let lost = sub.apply(E::SourceLost);
        assert_eq!(
            lost,
            [
                A::DropSource,
                A::LoseDeliveries,
                A::ArmReopen { failures: 1 }
            ]
        );
    }
}
