//! One supervisor's decisions as a pure machine: event in, actions out.
//!
//! It has no clock, no randomness, no async and knows no actor: the shell
//! ([`SupervisorActor`](super::SupervisorActor)) tells it the time (since any fixed origin) and a
//! jitter with each event, and performs the actions in their order.
//!
//! # When it gives up
//!
//! Two windows, one rule (more than `restarts` restarts in `period`): OTP's window over all
//! children by the clock, and one for each child by the time that child *ran*. Without the second,
//! a backoff longer than the period would hide a child that dies at each start.
//!
//! # Group restarts
//!
//! Under `OneForAll` and `RestForOne` the group is stopped in reverse order, then the failed
//! child's backoff passes, then all of the group starts in order (a transient child that had ended
//! before too, as in OTP; a temporary one never). Exits of the group meanwhile belong to the same
//! restart and are not counted again. If a child before the group fails meanwhile, the group grows
//! down to it: that is a restart of its own.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::model::Backoff;

use super::rules::{
    ChildId, ExitReason, Incarnation, Intensity, RestartPolicy, StopOrder, Strategy, Window,
};

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Happened {
    /// A child is to be supervised from now on; its id is higher than all before it.
    ChildAdded {
        /// Its number.
        child: ChildId,
        /// Which exits are followed by a restart.
        policy: RestartPolicy,
        /// The delays between its restarts.
        backoff: Backoff,
    },
    /// A child is to be stopped and forgotten.
    ChildStopAsked {
        /// Which.
        child: ChildId,
    },
    /// A child ended.
    ChildExited {
        /// Which.
        child: ChildId,
        /// Its incarnation that ended.
        incarnation: Incarnation,
        /// How.
        reason: ExitReason,
    },
    /// The delay of [`Action::RestartAfter`] passed.
    RestartDue {
        /// As in the action.
        child: ChildId,
        /// As in the action.
        incarnation: Incarnation,
    },
    /// The stop timeout of a [`Action::StopChild`], or the kill timeout of a
    /// [`Action::KillChild`], passed.
    ChildStopOverdue {
        /// As in the action.
        child: ChildId,
        /// As in the action.
        incarnation: Incarnation,
    },
    /// The supervisor is to stop.
    StopAsked,
}

/// An event: what happened, when, and a random number for a delay.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// What happened.
    pub happened: Happened,
    /// When: the time since a fixed origin. Never goes back.
    pub now: Duration,
    /// In 0..=1; the place of a restart's delay between half of its step and the whole.
    pub jitter: f64,
}

/// What the shell has to do, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "an action that is not performed leaves the tree in a lie"]
pub enum Action {
    /// Start this incarnation.
    StartChild {
        /// Which.
        child: ChildId,
        /// The number of the start.
        incarnation: Incarnation,
    },
    /// Ask it to stop, and say [`Happened::ChildStopOverdue`] after its stop timeout.
    StopChild {
        /// Which.
        child: ChildId,
        /// Its incarnation.
        incarnation: Incarnation,
    },
    /// Abort it, and say [`Happened::ChildStopOverdue`] after the kill timeout.
    KillChild {
        /// Which.
        child: ChildId,
        /// Its incarnation.
        incarnation: Incarnation,
    },
    /// Say [`Happened::RestartDue`] after the delay.
    RestartAfter {
        /// The child that failed.
        child: ChildId,
        /// Its incarnation that ended.
        incarnation: Incarnation,
        /// The delay.
        delay: Duration,
    },
    /// Tell the observer of an exit.
    Report {
        /// Who ended.
        child: ChildId,
        /// How.
        reason: ExitReason,
        /// Whether it is started again.
        restarted: bool,
    },
    /// Forget the child: its spec and all.
    ForgetChild {
        /// Which.
        child: ChildId,
    },
    /// The intensity was exceeded. The children are being stopped; [`Action::Done`] follows.
    GiveUp {
        /// Whose exit was one too many.
        child: ChildId,
        /// How it ended.
        reason: ExitReason,
    },
    /// No child is left: end.
    Done {
        /// Whether it is because it gave up.
        gave_up: bool,
    },
}

/// Where a child stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChildState {
    /// Not running; it starts with its group.
    Queued,
    /// Running since then.
    Running {
        /// The time it was started.
        since: Duration,
    },
    /// Asked to stop.
    Stopping {
        /// The time it was started.
        since: Duration,
        /// It was aborted.
        killed: bool,
        /// It is forgotten when it has ended.
        forget: bool,
    },
    /// It ended; its restart is due later.
    Waiting,
    /// It ended for good.
    Ended,
}

#[derive(Debug, Clone)]
struct Record {
    policy: RestartPolicy,
    backoff: Backoff,
    incarnation: Incarnation,
    state: ChildState,
    ran: Duration,
    window: Window,
}

/// Where the supervisor stands.
#[derive(Debug, Clone)]
enum Mode {
    Running,
    /// A group (`from` and all after it) is being stopped, or waits for its restart. `failed`
    /// fences the restart's timer.
    Cycling {
        from: ChildId,
        failed: (ChildId, Incarnation),
        delay: Duration,
        waiting: bool,
    },
    Stopping {
        gave_up: bool,
    },
    Done,
}

/// One supervisor's state.
#[derive(Debug, Clone)]
pub struct SupervisorCore {
    strategy: Strategy,
    intensity: Intensity,
    stop_order: StopOrder,
    mode: Mode,
    children: BTreeMap<ChildId, Record>,
    stopping: usize,
    window: Window,
    late_exits: u64,
}

impl SupervisorCore {
    /// Makes a supervisor without children.
    pub fn new(strategy: Strategy, intensity: Intensity, stop_order: StopOrder) -> Self {
        Self {
            strategy,
            intensity,
            stop_order,
            mode: Mode::Running,
            children: BTreeMap::new(),
            stopping: 0,
            window: Window::default(),
            late_exits: 0,
        }
    }

    /// Takes one event and gives what has to be done.
    pub fn handle(&mut self, event: Event) -> Vec<Action> {
        let Event {
            happened,
            now,
            jitter,
        } = event;
        let mut actions = Vec::new();
        match happened {
            Happened::ChildAdded {
                child,
                policy,
                backoff,
            } => self.child_added(child, policy, backoff, now, &mut actions),
            Happened::ChildStopAsked { child } => self.child_stop_asked(child, &mut actions),
            Happened::ChildExited {
                child,
                incarnation,
                reason,
            } => {
                let exit = Exit {
                    child,
                    incarnation,
                    reason,
                };
                self.child_exited(exit, now, jitter, &mut actions);
            }
            Happened::RestartDue { child, incarnation } => {
                self.restart_due(child, incarnation, now, &mut actions);
            }
            Happened::ChildStopOverdue { child, incarnation } => {
                self.child_stop_overdue(child, incarnation, now, jitter, &mut actions);
            }
            Happened::StopAsked => match self.mode {
                Mode::Running | Mode::Cycling { .. } => self.stop(false, &mut actions),
                Mode::Stopping { .. } | Mode::Done => {}
            },
        }
        actions
    }

    /// Gives where a child stands; `None` if it was never added or is forgotten.
    pub fn child_state(&self, child: ChildId) -> Option<ChildState> {
        self.children.get(&child).map(|record| record.state)
    }

    /// Gives how often a child was started again.
    pub fn restarts(&self, child: ChildId) -> u64 {
        self.children
            .get(&child)
            .map_or(0, |record| record.incarnation.0.saturating_sub(1))
    }

    /// Gives how many exits of former incarnations were ignored.
    pub fn late_exits(&self) -> u64 {
        self.late_exits
    }

    /// Says whether it is on its way out, or gone.
    pub fn is_stopping(&self) -> bool {
        matches!(self.mode, Mode::Stopping { .. } | Mode::Done)
    }

    fn child_added(
        &mut self,
        child: ChildId,
        policy: RestartPolicy,
        backoff: Backoff,
        now: Duration,
        actions: &mut Vec<Action>,
    ) {
        debug_assert!(
            self.children
                .last_key_value()
                .is_none_or(|(&last, _)| last < child),
            "ids rise"
        );
        if self.is_stopping() {
            actions.push(Action::ForgetChild { child });
            return;
        }
        let record = Record {
            policy,
            backoff,
            incarnation: Incarnation::default(),
            state: ChildState::Queued,
            ran: Duration::ZERO,
            window: Window::default(),
        };
        let record = self.children.entry(child).or_insert(record);
        if matches!(self.mode, Mode::Running) {
            start(child, record, now, actions);
        }
    }

    fn child_stop_asked(&mut self, child: ChildId, actions: &mut Vec<Action>) {
        let Some(record) = self.children.get_mut(&child) else {
            return;
        };
        match &mut record.state {
            ChildState::Running { since } => {
                record.state = ChildState::Stopping {
                    since: *since,
                    killed: false,
                    forget: true,
                };
                self.stopping += 1;
                let incarnation = record.incarnation;
                actions.push(Action::StopChild { child, incarnation });
            }
            ChildState::Stopping { forget, .. } => *forget = true,
            ChildState::Queued | ChildState::Waiting | ChildState::Ended => {
                self.children.remove(&child);
                actions.push(Action::ForgetChild { child });
            }
        }
    }

    /// The whole story of an exit.
    fn child_exited(&mut self, exit: Exit, now: Duration, jitter: f64, actions: &mut Vec<Action>) {
        let Some((was, policy)) = self.note_end(&exit, now) else {
            self.late_exits += 1;
            return;
        };
        let child = exit.child;
        let is_forgotten = matches!(was, ChildState::Stopping { forget: true, .. });
        match self.mode {
            _ if is_forgotten => {
                report(exit, false, actions);
                self.forget(child, actions);
            }
            Mode::Stopping { .. } | Mode::Done => {
                report(exit, false, actions);
                self.end(child, policy, ChildState::Ended, actions);
            }
            Mode::Cycling { from, .. } if child >= from => {
                report(exit, policy != RestartPolicy::Temporary, actions);
                self.end(child, policy, ChildState::Queued, actions);
            }
            Mode::Running | Mode::Cycling { .. } => {
                if policy.restarts(&exit.reason) {
                    self.restart(exit, now, jitter, actions);
                } else {
                    report(exit, false, actions);
                    self.end(child, policy, ChildState::Ended, actions);
                }
            }
        }
        self.advance(actions);
    }

    /// Takes the exit of a present incarnation down and gives the state it ended; `None` if it is
    /// late.
    fn note_end(&mut self, exit: &Exit, now: Duration) -> Option<(ChildState, RestartPolicy)> {
        let record = self.children.get_mut(&exit.child)?;
        if record.incarnation != exit.incarnation {
            return None;
        }
        let was = record.state;
        let since = match was {
            ChildState::Running { since } => since,
            ChildState::Stopping { since, .. } => {
                self.stopping -= 1;
                since
            }
            ChildState::Queued | ChildState::Waiting | ChildState::Ended => return None,
        };
        record.ran = record.ran.saturating_add(now.saturating_sub(since));
        record.state = ChildState::Ended;
        Some((was, record.policy))
    }

    /// A running child ended and its policy restarts it.
    fn restart(&mut self, exit: Exit, now: Duration, jitter: f64, actions: &mut Vec<Action>) {
        let Exit {
            child, incarnation, ..
        } = exit;
        let Some(record) = self.children.get_mut(&child) else {
            return;
        };
        let of_all = self.window.count(now, self.intensity);
        let of_child = record.window.count(record.ran, self.intensity);
        if of_all.max(of_child) > self.intensity.restarts {
            let reason = exit.reason.clone();
            report(exit, false, actions);
            actions.push(Action::GiveUp { child, reason });
            self.stop(true, actions);
            return;
        }
        report(exit, true, actions);
        record.state = ChildState::Waiting;
        let delay = record.backoff.delay(of_child, jitter);
        let from = match self.strategy {
            Strategy::OneForOne => {
                actions.push(Action::RestartAfter {
                    child,
                    incarnation,
                    delay,
                });
                return;
            }
            Strategy::OneForAll => ChildId(0),
            Strategy::RestForOne => child,
        };
        self.mode = Mode::Cycling {
            from,
            failed: (child, incarnation),
            delay,
            waiting: false,
        };
    }

    fn restart_due(
        &mut self,
        child: ChildId,
        incarnation: Incarnation,
        now: Duration,
        actions: &mut Vec<Action>,
    ) {
        match self.mode {
            Mode::Cycling {
                from,
                failed,
                waiting: true,
                ..
            } if failed == (child, incarnation) => {
                self.mode = Mode::Running;
                for (&child, record) in self.children.range_mut(from..) {
                    start(child, record, now, actions);
                }
            }
            Mode::Running => match self.children.get_mut(&child) {
                Some(record)
                    if record.state == ChildState::Waiting && record.incarnation == incarnation =>
                {
                    start(child, record, now, actions);
                }
                Some(_) | None => {}
            },
            Mode::Cycling { .. } | Mode::Stopping { .. } | Mode::Done => {}
        }
    }

    fn child_stop_overdue(
        &mut self,
        child: ChildId,
        incarnation: Incarnation,
        now: Duration,
        jitter: f64,
        actions: &mut Vec<Action>,
    ) {
        match self.children.get_mut(&child) {
            Some(Record {
                incarnation: present,
                state: ChildState::Stopping { killed, .. },
                ..
            }) if *present == incarnation => {
                if *killed {
                    let reason = ExitReason::Killed;
                    let exit = Exit {
                        child,
                        incarnation,
                        reason,
                    };
                    self.child_exited(exit, now, jitter, actions);
                } else {
                    *killed = true;
                    actions.push(Action::KillChild { child, incarnation });
                }
            }
            Some(_) | None => {}
        }
    }

    fn stop(&mut self, gave_up: bool, actions: &mut Vec<Action>) {
        self.mode = Mode::Stopping { gave_up };
        for record in self.children.values_mut() {
            if matches!(record.state, ChildState::Queued | ChildState::Waiting) {
                record.state = ChildState::Ended;
            }
        }
        self.advance(actions);
    }

    /// Takes the next step of a stop or of a group restart, if one is under way and it is time.
    fn advance(&mut self, actions: &mut Vec<Action>) {
        let from = match self.mode {
            Mode::Running | Mode::Cycling { waiting: true, .. } | Mode::Done => return,
            Mode::Cycling { from, .. } => from,
            Mode::Stopping { .. } => ChildId(0),
        };
        self.stop_next(from, actions);
        if self.stopping > 0 {
            return;
        }
        match &mut self.mode {
            Mode::Running | Mode::Done => {}
            Mode::Cycling {
                failed,
                delay,
                waiting,
                ..
            } => {
                *waiting = true;
                actions.push(Action::RestartAfter {
                    child: failed.0,
                    incarnation: failed.1,
                    delay: *delay,
                });
            }
            Mode::Stopping { gave_up } => {
                actions.push(Action::Done { gave_up: *gave_up });
                self.mode = Mode::Done;
            }
        }
    }

    /// Asks the running child that was started last to stop, or all of them.
    fn stop_next(&mut self, from: ChildId, actions: &mut Vec<Action>) {
        for (&child, record) in self.children.range_mut(from..).rev() {
            if self.stopping > 0 && self.stop_order == StopOrder::OneByOne {
                return;
            }
            if let ChildState::Running { since } = record.state {
                record.state = ChildState::Stopping {
                    since,
                    killed: false,
                    forget: false,
                };
                self.stopping += 1;
                let incarnation = record.incarnation;
                actions.push(Action::StopChild { child, incarnation });
            }
        }
    }

    /// A child ended and is not started by itself again.
    fn end(
        &mut self,
        child: ChildId,
        policy: RestartPolicy,
        state: ChildState,
        actions: &mut Vec<Action>,
    ) {
        if policy == RestartPolicy::Temporary {
            self.forget(child, actions);
        } else if let Some(record) = self.children.get_mut(&child) {
            record.state = state;
        }
    }

    fn forget(&mut self, child: ChildId, actions: &mut Vec<Action>) {
        self.children.remove(&child);
        actions.push(Action::ForgetChild { child });
    }
}

struct Exit {
    child: ChildId,
    incarnation: Incarnation,
    reason: ExitReason,
}

fn report(exit: Exit, restarted: bool, actions: &mut Vec<Action>) {
    actions.push(Action::Report {
        child: exit.child,
        reason: exit.reason,
        restarted,
    });
}

fn start(child: ChildId, record: &mut Record, now: Duration, actions: &mut Vec<Action>) {
    record.incarnation = record.incarnation.next();
    record.state = ChildState::Running { since: now };
    let incarnation = record.incarnation;
    actions.push(Action::StartChild { child, incarnation });
}
