//! The drain as a pure machine over the phase.
//!
//! | event ↓ / phase → | Running | Draining | Forcing | Stopped |
//! |---|---|---|---|---|
//! | DrainAsked | → Draining: StopAdmitting, ArmDrainTimeout | – | – | – |
//! | ForceAsked | → Forcing: StopAdmitting, NameStragglers, Force, ArmForceTimeout | → Forcing: NameStragglers, Force, ArmForceTimeout | – | – |
//! | DrainOverdue | – | → Forcing: likewise | – | – |
//! | Emptied | – | → Stopped: CloseSources, Report | likewise | – |
//! | ForceOverdue | – | – | → Stopped: CloseSources, Report | – |
//!
//! The phase only moves up, so a coordinator that restarts goes on where the phase stands.

use crate::model::Phase;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum DrainEvent {
    /// A signal, a command, the end of a job.
    DrainAsked,
    /// A second signal, or a command.
    ForceAsked,
    /// The drain timeout passed.
    DrainOverdue,
    /// No delivery is left.
    Emptied,
    /// The forced phase is over.
    ForceOverdue,
}

/// What the coordinator does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum DrainAction {
    /// Close the gates, cancel the subscriptions, give unstarted deliveries back.
    StopAdmitting,
    /// Arm the drain timeout.
    ArmDrainTimeout,
    /// Write down what is still in flight.
    NameStragglers,
    /// Abort handlers and give their deliveries back.
    Force,
    /// Arm the end of the forced phase.
    ArmForceTimeout,
    /// Flush and close the sources, then the transport.
    CloseSources,
    /// Make the report.
    Report,
}

/// The drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Drain {
    phase: Phase,
}

impl Drain {
    /// Goes on from a phase.
    pub(crate) fn at(phase: Phase) -> Self {
        Self { phase }
    }

    /// Gives the phase.
    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    /// Applies an event; one that comes too late changes nothing.
    pub(crate) fn apply(&mut self, event: DrainEvent) -> &'static [DrainAction] {
        use DrainAction as A;
        use DrainEvent as E;
        let (phase, actions): (Phase, &'static [A]) = match (self.phase, event) {
            (Phase::Running, E::DrainAsked) => {
                (Phase::Draining, &[A::StopAdmitting, A::ArmDrainTimeout])
            }
            (Phase::Running, E::ForceAsked) => (
                Phase::Forcing,
                &[
                    A::StopAdmitting,
                    A::NameStragglers,
                    A::Force,
                    A::ArmForceTimeout,
                ],
            ),
            (Phase::Draining, E::ForceAsked | E::DrainOverdue) => (
                Phase::Forcing,
                &[A::NameStragglers, A::Force, A::ArmForceTimeout],
            ),
            (Phase::Draining | Phase::Forcing, E::Emptied) | (Phase::Forcing, E::ForceOverdue) => {
                (Phase::Stopped, &[A::CloseSources, A::Report])
            }
            (Phase::Running, E::DrainOverdue | E::Emptied | E::ForceOverdue)
            | (Phase::Draining, E::DrainAsked | E::ForceOverdue)
            | (Phase::Forcing, E::DrainAsked | E::ForceAsked | E::DrainOverdue)
            | (
                Phase::Stopped,
                E::DrainAsked | E::ForceAsked | E::DrainOverdue | E::Emptied | E::ForceOverdue,
            ) => (self.phase, &[]),
        };
        self.phase = phase;
        actions
    }
}

#[cfg(test)]
mod tests {
    use super::DrainAction as A;
    use super::DrainEvent as E;
    use super::*;

    const EVENTS: [E; 5] = [
        E::DrainAsked,
        E::ForceAsked,
        E::DrainOverdue,
        E::Emptied,
        E::ForceOverdue,
    ];

    fn walk(drain: Drain, done: Vec<A>, depth: usize) {
        for action in [
            A::StopAdmitting,
            A::Force,
            A::NameStragglers,
            A::CloseSources,
            A::Report,
        ] {
            let times = done.iter().filter(|a| **a == action).count();
            assert!(times <= 1, "{action:?} happens once, also when asked again");
        }
        let stopped = done.iter().position(|a| *a == A::StopAdmitting);
        let forced = done.iter().position(|a| *a == A::Force);
        assert!(
            forced.is_none() || stopped < forced,
            "admitting stops before anything is forced"
        );
        assert_eq!(drain.phase() == Phase::Stopped, done.contains(&A::Report));
        if depth == 0 {
            return;
        }
        for event in EVENTS {
            let mut next = drain;
            let mut after = done.clone();
            after.extend(next.apply(event));
            assert!(next.phase() >= drain.phase(), "the phase only moves up");
            walk(next, after, depth - 1);
        }
    }

    #[test]
    fn every_sequence_of_events_moves_up_and_does_each_step_once() {
        walk(Drain::at(Phase::Running), Vec::new(), 6);
    }

    #[test]
    fn a_clean_drain_forces_nothing() {
        let mut drain = Drain::at(Phase::Running);
        assert_eq!(
            drain.apply(E::DrainAsked),
            [A::StopAdmitting, A::ArmDrainTimeout]
        );
        assert_eq!(drain.apply(E::Emptied), [A::CloseSources, A::Report]);
        assert_eq!(drain.phase(), Phase::Stopped);
    }
}
