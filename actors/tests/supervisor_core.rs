//! The pure core of supervision: its rules row by row, then every sequence of events to a depth
//! and random ones beyond it, against a small model of the world.

#![expect(clippy::unwrap_used, reason = "a test says what it expects")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use acquit_actors::model::Backoff;
use acquit_actors::supervision::{
    Action, ChildId, ChildState, Event, ExitReason, Happened, Incarnation, Intensity,
    RestartPolicy, StopOrder, Strategy, SupervisorCore,
};
use proptest::prelude::*;

const SECOND: Duration = Duration::from_secs(1);
const BACKOFF: Backoff = Backoff {
    base: Duration::from_millis(100),
    max: Duration::from_secs(60),
};
const PLENTY: Intensity = Intensity {
    restarts: 1_000,
    period: Duration::from_secs(5),
};

use ExitReason::{Killed, Normal, Shutdown};
use RestartPolicy::{Permanent, Temporary, Transient};
use Strategy::{OneForAll, OneForOne, RestForOne};

/// The core and the world around it: what runs, which timers are set, what was seen.
#[derive(Clone)]
struct World {
    core: SupervisorCore,
    strategy: Strategy,
    intensity: Intensity,
    stop_order: StopOrder,
    now: Duration,
    policies: BTreeMap<ChildId, RestartPolicy>,
    /// Who runs, by incarnation. Invariant: one incarnation of a child at most.
    live: BTreeMap<ChildId, Incarnation>,
    /// Who was asked to stop and has not ended.
    asked: BTreeSet<ChildId>,
    killed: BTreeSet<ChildId>,
    due: Vec<(ChildId, Incarnation, Duration)>,
    /// Who ended and may still be heard of again.
    ended: Vec<(ChildId, Incarnation)>,
    last_started: BTreeMap<ChildId, Incarnation>,
    restarts_reported: Vec<Duration>,
    gave_up: bool,
    done: Option<bool>,
    trace: Vec<String>,
    is_traced: bool,
}

fn failed() -> ExitReason {
    ExitReason::Failed("x".into())
}

impl World {
    fn new(strategy: Strategy, intensity: Intensity) -> Self {
        Self::with_order(strategy, intensity, StopOrder::OneByOne)
    }

    fn with_order(strategy: Strategy, intensity: Intensity, stop_order: StopOrder) -> Self {
        Self {
            core: SupervisorCore::new(strategy, intensity, stop_order),
            strategy,
            intensity,
            stop_order,
            now: Duration::ZERO,
            policies: BTreeMap::new(),
            live: BTreeMap::new(),
            asked: BTreeSet::new(),
            killed: BTreeSet::new(),
            due: Vec::new(),
            ended: Vec::new(),
            last_started: BTreeMap::new(),
            restarts_reported: Vec::new(),
            gave_up: false,
            done: None,
            trace: Vec::new(),
            is_traced: true,
        }
    }

    fn with_children(mut self, policies: &[RestartPolicy]) -> Self {
        for &policy in policies {
            self.add(policy);
        }
        self.trace.clear();
        self
    }

    fn add(&mut self, policy: RestartPolicy) -> ChildId {
        let child = ChildId(self.policies.len() as u64 + 1);
        self.policies.insert(child, policy);
        self.tell(Happened::ChildAdded {
            child,
            policy,
            backoff: BACKOFF,
        });
        child
    }

    /// Tells the core, performs its actions on the world, and checks the invariants.
    fn tell(&mut self, happened: Happened) -> Vec<Action> {
        let was_done = self.done.is_some();
        let by_name = matches!(happened, Happened::ChildStopAsked { .. });
        let actions = self.core.handle(Event {
            happened,
            now: self.now,
            jitter: 1.0,
        });
        if was_done {
            assert!(
                actions
                    .iter()
                    .all(|action| matches!(action, Action::ForgetChild { .. })),
                "done is done: {actions:?}"
            );
        }
        for action in &actions {
            self.perform(action, by_name);
        }
        self.check();
        actions
    }

    fn perform(&mut self, action: &Action, by_name: bool) {
        match action {
            Action::StartChild { child, incarnation } => {
                assert!(!self.core.is_stopping(), "nothing starts in a stop");
                let before = self.live.insert(*child, *incarnation);
                assert_eq!(before, None, "one incarnation at a time");
                let last = self.last_started.insert(*child, *incarnation);
                assert_eq!(*incarnation, last.unwrap_or_default().next());
                self.note(|| format!("start {}", child.0));
            }
            Action::StopChild { child, incarnation } => {
                assert_eq!(self.live.get(child), Some(incarnation));
                if !by_name && self.stop_order == StopOrder::OneByOne {
                    assert_eq!(self.asked.len(), 0, "one after the other");
                    assert_eq!(
                        self.live.keys().next_back(),
                        Some(child),
                        "in reverse order"
                    );
                }
                assert!(self.asked.insert(*child), "asked once");
                self.note(|| format!("stop {}", child.0));
            }
            Action::KillChild { child, incarnation } => {
                assert_eq!(self.live.get(child), Some(incarnation));
                assert!(self.asked.contains(child), "asked before killed");
                assert!(self.killed.insert(*child), "killed once");
                self.note(|| format!("kill {}", child.0));
            }
            Action::RestartAfter {
                child,
                incarnation,
                delay,
            } => {
                self.due.push((*child, *incarnation, *delay));
                self.note(|| format!("wait {delay:?}"));
            }
            Action::Report {
                child, restarted, ..
            } => {
                assert!(
                    !(*restarted && self.policies[child] == Temporary),
                    "a temporary child is never started again"
                );
            }
            Action::ForgetChild { child } => {
                assert!(!self.live.contains_key(child), "nobody alive is forgotten");
                self.note(|| format!("forget {}", child.0));
            }
            Action::GiveUp { .. } => {
                self.gave_up = true;
                self.note(|| "give up".to_owned());
            }
            Action::Done { gave_up } => {
                assert!(self.live.is_empty(), "no child outlives its supervisor");
                assert_eq!(*gave_up, self.gave_up);
                assert_eq!(self.done.replace(*gave_up), None, "done once");
                self.note(|| "done".to_owned());
            }
        }
    }

    fn note(&mut self, row: impl FnOnce() -> String) {
        if self.is_traced {
            self.trace.push(row());
        }
    }

    fn check(&self) {
        for (child, incarnation) in &self.live {
            let state = self.core.child_state(*child);
            assert!(
                matches!(
                    state,
                    Some(ChildState::Running { .. } | ChildState::Stopping { .. })
                ),
                "{child:?} {incarnation:?} lives and is {state:?}"
            );
        }
        for &child in self.policies.keys() {
            if !self.live.contains_key(&child) {
                let state = self.core.child_state(child);
                assert!(
                    !matches!(
                        state,
                        Some(ChildState::Running { .. } | ChildState::Stopping { .. })
                    ),
                    "{child:?} is dead and is {state:?}"
                );
            }
        }
        if self.strategy == OneForOne && !self.core.is_stopping() {
            for &child in self.policies.keys() {
                assert_ne!(
                    self.core.child_state(child),
                    Some(ChildState::Queued),
                    "one_for_one never makes one child wait for another"
                );
            }
        }
    }

    /// A child ends, by itself or because it was asked to.
    fn exit(&mut self, child: u64, reason: ExitReason) -> Vec<Action> {
        let child = ChildId(child);
        let incarnation = self.live.remove(&child).unwrap();
        let was_asked = self.asked.remove(&child);
        self.killed.remove(&child);
        self.ended.push((child, incarnation));
        let late_before = self.core.late_exits();
        let actions = self.tell(Happened::ChildExited {
            child,
            incarnation,
            reason: reason.clone(),
        });
        assert_eq!(self.core.late_exits(), late_before, "it was not late");
        let reports = actions
            .iter()
            .filter(|action| matches!(action, Action::Report { .. }))
            .count();
        assert_eq!(reports, 1, "each exit is reported once");
        let counted = !was_asked
            && actions.iter().any(
                |action| matches!(action, Action::RestartAfter { child: of, .. } if *of == child),
            );
        if counted && self.strategy == OneForOne {
            self.restarts_reported.push(self.now);
            let in_period = self
                .restarts_reported
                .iter()
                .filter(|&&at| at + self.intensity.period >= self.now)
                .count();
            assert!(in_period <= self.intensity.restarts as usize);
        }
        actions
    }

    /// The first timer passes, and its time with it.
    fn pass(&mut self) {
        self.pass_nth(0);
    }

    fn pass_nth(&mut self, nth: usize) {
        let (child, incarnation, delay) = self.due.remove(nth);
        self.now += delay;
        self.tell(Happened::RestartDue { child, incarnation });
    }

    fn overdue(&mut self, child: u64) {
        let child = ChildId(child);
        let incarnation = self.live[&child];
        if self.killed.remove(&child) {
            self.live.remove(&child);
            self.asked.remove(&child);
            self.ended.push((child, incarnation));
        }
        self.tell(Happened::ChildStopOverdue { child, incarnation });
    }

    fn late_exit(&mut self, index: usize) {
        let (child, incarnation) = self.ended[index];
        let actions = self.tell(Happened::ChildExited {
            child,
            incarnation,
            reason: failed(),
        });
        assert_eq!(actions, [], "a late exit changes nothing");
    }

    fn takes_trace(&mut self, expected: &[&str]) {
        assert_eq!(std::mem::take(&mut self.trace), expected);
    }

    /// From anywhere, if nothing more goes wrong, whoever is to run does.
    fn must_recover(mut self) {
        loop {
            if let Some(&child) = self.asked.iter().next_back() {
                self.exit(child.0, Shutdown);
            } else if self.due.is_empty() {
                break;
            } else {
                self.pass();
            }
        }
        if self.core.is_stopping() {
            assert!(self.done.is_some());
            return;
        }
        for (&child, &policy) in &self.policies {
            let state = self.core.child_state(child);
            let may_be_ended = policy == Transient && state == Some(ChildState::Ended);
            assert!(
                state.is_none() || may_be_ended || self.live.contains_key(&child),
                "{child:?} is left {state:?}"
            );
        }
    }

    /// From anywhere, a stop ends within a bounded number of steps, whoever does not answer.
    fn must_end(mut self, answers: bool) {
        self.tell(Happened::StopAsked);
        for _ in 0..=3 * self.policies.len() {
            if self.done.is_some() {
                break;
            }
            let &child = self.asked.iter().next_back().unwrap();
            if answers {
                self.exit(child.0, Shutdown);
            } else {
                self.overdue(child.0);
            }
        }
        assert!(self.done.is_some(), "the stop never ends");
        while !self.due.is_empty() {
            self.pass();
        }
    }
}

#[test]
fn each_policy_and_reason_under_each_strategy() {
    let text = || "x".to_owned();
    #[rustfmt::skip]
    let rows = [
        // reason                       permanent  transient  temporary
        (Normal,                        [true,     false,     false]),
        (Shutdown,                      [true,     false,     false]),
        (ExitReason::Failed(text()),    [true,     true,      false]),
        (ExitReason::Panicked(text()),  [true,     true,      false]),
        (Killed,                        [true,     true,      false]),
        (ExitReason::GaveUp(text()),    [true,     true,      false]),
    ];
    for strategy in [OneForOne, OneForAll, RestForOne] {
        for (reason, expected) in &rows {
            for (policy, expected) in [Permanent, Transient, Temporary].into_iter().zip(expected) {
                let mut world = World::new(strategy, PLENTY).with_children(&[policy]);
                let actions = world.exit(1, reason.clone());
                let restarted = actions
                    .iter()
                    .any(|action| matches!(action, Action::RestartAfter { .. }));
                assert_eq!(restarted, *expected, "{strategy:?} {policy:?} {reason}");
                assert!(
                    actions.contains(&Action::Report {
                        child: ChildId(1),
                        reason: reason.clone(),
                        restarted: *expected
                    }),
                    "{strategy:?} {policy:?} {reason}"
                );
                let expected_state = match (policy, expected) {
                    (_, true) => Some(ChildState::Waiting),
                    (Temporary, false) => None,
                    (Permanent | Transient, false) => Some(ChildState::Ended),
                };
                assert_eq!(world.core.child_state(ChildId(1)), expected_state);
            }
        }
    }
}

#[test]
fn children_start_in_order() {
    let mut world = World::new(OneForOne, PLENTY);
    for _ in 0..3 {
        world.add(Permanent);
    }
    world.takes_trace(&["start 1", "start 2", "start 3"]);
}

#[test]
fn one_for_one_restarts_the_failed_child_only() {
    let mut world = World::new(OneForOne, PLENTY).with_children(&[Permanent; 3]);
    world.exit(2, failed());
    world.pass();
    world.takes_trace(&["wait 100ms", "start 2"]);
}

#[test]
fn one_for_all_stops_the_others_in_reverse_then_starts_all_in_order() {
    let mut world = World::new(OneForAll, PLENTY).with_children(&[Permanent; 3]);
    world.exit(2, failed());
    world.takes_trace(&["stop 3"]);
    world.exit(3, Shutdown);
    world.takes_trace(&["stop 1"]);
    world.exit(1, Shutdown);
    world.takes_trace(&["wait 100ms"]);
    world.pass();
    world.takes_trace(&["start 1", "start 2", "start 3"]);
}

#[test]
fn one_for_all_with_several_exits_at_once_is_one_restart() {
    let once = Intensity {
        restarts: 1,
        period: 5 * SECOND,
    };
    let mut world = World::new(OneForAll, once).with_children(&[Permanent; 4]);
    world.exit(2, failed());
    world.exit(1, failed());
    world.exit(4, failed());
    world.exit(3, failed());
    world.takes_trace(&["stop 4", "stop 3", "wait 100ms"]);
    world.pass();
    world.takes_trace(&["start 1", "start 2", "start 3", "start 4"]);
    assert!(!world.gave_up);
}

#[test]
fn one_for_all_forgets_temporary_children_and_starts_ended_transient_ones_again() {
    let mut world =
        World::new(OneForAll, PLENTY).with_children(&[Transient, Temporary, Permanent, Transient]);
    world.exit(1, Normal);
    world.exit(3, failed());
    world.takes_trace(&["stop 4"]);
    world.exit(4, Shutdown);
    world.takes_trace(&["stop 2"]);
    world.exit(2, Shutdown);
    world.takes_trace(&["forget 2", "wait 100ms"]);
    world.pass();
    world.takes_trace(&["start 1", "start 3", "start 4"]);
}

#[test]
fn rest_for_one_leaves_alone_those_started_before() {
    let mut world = World::new(RestForOne, PLENTY).with_children(&[Permanent; 4]);
    world.exit(2, failed());
    world.exit(4, Shutdown);
    world.exit(3, Shutdown);
    world.pass();
    world.takes_trace(&[
        "stop 4",
        "stop 3",
        "wait 100ms",
        "start 2",
        "start 3",
        "start 4",
    ]);
}

#[test]
fn rest_for_one_grows_down_when_an_earlier_child_fails_meanwhile() {
    let mut world = World::new(RestForOne, PLENTY).with_children(&[Permanent; 4]);
    world.exit(3, failed());
    world.exit(4, Shutdown);
    world.takes_trace(&["stop 4", "wait 100ms"]);
    world.exit(1, failed());
    world.takes_trace(&["stop 2"]);
    world.pass();
    world.takes_trace(&[]);
    world.exit(2, Shutdown);
    world.takes_trace(&["wait 100ms"]);
    world.pass();
    world.takes_trace(&["start 1", "start 2", "start 3", "start 4"]);
}

#[test]
fn a_restart_timer_of_a_former_failure_starts_nobody() {
    let mut world = World::new(RestForOne, PLENTY).with_children(&[Permanent; 2]);
    world.exit(2, failed());
    world.exit(1, failed());
    world.pass_nth(1);
    world.takes_trace(&["wait 100ms", "wait 100ms", "start 1", "start 2"]);
    world.exit(2, failed());
    world.takes_trace(&["wait 200ms"]);
    world.pass_nth(0);
    world.takes_trace(&[]);
    world.pass_nth(0);
    world.takes_trace(&["start 2"]);
}

#[test]
fn a_stop_goes_in_reverse_order_one_after_the_other() {
    let mut world = World::new(OneForOne, PLENTY).with_children(&[Permanent; 3]);
    world.tell(Happened::StopAsked);
    world.takes_trace(&["stop 3"]);
    world.tell(Happened::StopAsked);
    world.exit(3, Shutdown);
    world.takes_trace(&["stop 2"]);
    world.exit(2, failed());
    world.takes_trace(&["stop 1"]);
    world.exit(1, Normal);
    world.takes_trace(&["done"]);
    assert_eq!(world.done, Some(false));
}

#[test]
fn a_stop_of_all_at_once_asks_everybody_and_waits_for_everybody() {
    let mut world =
        World::with_order(OneForOne, PLENTY, StopOrder::AllAtOnce).with_children(&[Temporary; 3]);
    world.tell(Happened::StopAsked);
    world.takes_trace(&["stop 3", "stop 2", "stop 1"]);
    world.exit(2, Shutdown);
    world.exit(1, Shutdown);
    world.takes_trace(&["forget 2", "forget 1"]);
    world.exit(3, Shutdown);
    world.takes_trace(&["forget 3", "done"]);
}

#[test]
fn an_exit_of_another_child_during_a_stop_is_taken_and_not_restarted() {
    let mut world = World::new(OneForOne, PLENTY).with_children(&[Permanent; 3]);
    world.tell(Happened::StopAsked);
    world.exit(1, failed());
    world.exit(3, Shutdown);
    world.exit(2, Shutdown);
    world.takes_trace(&["stop 3", "stop 2", "done"]);
}

#[test]
fn a_child_that_does_not_stop_is_killed_and_one_that_cannot_be_killed_is_left() {
    let mut world = World::new(OneForOne, PLENTY).with_children(&[Permanent; 2]);
    world.tell(Happened::StopAsked);
    world.overdue(2);
    world.takes_trace(&["stop 2", "kill 2"]);
    world.overdue(2);
    world.takes_trace(&["stop 1"]);
    world.late_exit(0);
    assert_eq!(world.core.late_exits(), 1);
    world.overdue(1);
    world.exit(1, Killed);
    world.takes_trace(&["kill 1", "done"]);
}

#[test]
fn a_stop_while_a_restart_waits_does_not_start_the_child() {
    let mut world = World::new(OneForOne, PLENTY).with_children(&[Permanent; 2]);
    world.exit(1, failed());
    world.tell(Happened::StopAsked);
    world.pass();
    world.exit(2, Shutdown);
    world.takes_trace(&["wait 100ms", "stop 2", "done"]);
}

#[test]
fn a_stop_in_the_middle_of_a_group_restart_goes_on_with_those_that_run() {
    let mut world = World::new(OneForAll, PLENTY).with_children(&[Permanent; 3]);
    world.exit(1, failed());
    world.tell(Happened::StopAsked);
    world.exit(3, Shutdown);
    world.exit(2, Shutdown);
    world.takes_trace(&["stop 3", "stop 2", "done"]);
}

#[test]
fn a_supervisor_without_children_is_done_at_once() {
    let mut world = World::new(OneForOne, PLENTY);
    world.tell(Happened::StopAsked);
    world.takes_trace(&["done"]);
}

#[test]
fn a_late_exit_of_an_old_incarnation_is_ignored_and_counted() {
    let mut world = World::new(OneForOne, PLENTY).with_children(&[Permanent]);
    world.exit(1, failed());
    world.late_exit(0);
    world.pass();
    world.late_exit(0);
    assert_eq!(world.core.late_exits(), 2);
    assert_eq!(world.core.restarts(ChildId(1)), 1);
}

#[test]
fn the_intensity_is_a_window_over_all_children() {
    let intensity = Intensity {
        restarts: 2,
        period: 5 * SECOND,
    };
    let mut world = World::new(OneForOne, intensity).with_children(&[Permanent; 3]);
    for (child, at) in [(1, 10), (2, 12), (3, 16), (1, 18)] {
        world.now = at * SECOND;
        world.exit(child, failed());
        world.tell(Happened::RestartDue {
            child: ChildId(child),
            incarnation: *world.last_started.get(&ChildId(child)).unwrap(),
        });
        assert!(!world.gave_up, "never 3 in 5 s");
    }
    world.now = 20 * SECOND;
    world.trace.clear();
    world.exit(2, failed());
    world.takes_trace(&["give up", "stop 3"]);
    world.exit(3, Shutdown);
    world.exit(1, Shutdown);
    world.takes_trace(&["stop 1", "done"]);
    assert_eq!(world.done, Some(true));
}

#[test]
fn with_otp_s_defaults_the_second_failure_in_five_seconds_is_one_too_many() {
    let mut world = World::new(OneForOne, Intensity::default()).with_children(&[Permanent]);
    world.exit(1, failed());
    world.pass();
    world.exit(1, failed());
    world.takes_trace(&["wait 100ms", "start 1", "give up", "done"]);
}

#[test]
fn a_backoff_longer_than_the_period_does_not_hide_a_child_that_dies_at_each_start() {
    let intensity = Intensity {
        restarts: 8,
        period: Duration::from_millis(500),
    };
    let mut world = World::new(OneForOne, intensity).with_children(&[Permanent]);
    for _ in 0..8 {
        world.exit(1, failed());
        assert!(!world.gave_up);
        world.pass();
    }
    assert!(world.now > 20 * SECOND, "by the clock it is one in seconds");
    world.exit(1, failed());
    assert!(world.gave_up);
}

#[test]
fn the_backoff_grows_with_each_failure_and_starts_anew_after_a_good_period() {
    let mut world = World::new(OneForOne, PLENTY).with_children(&[Permanent]);
    for _ in 0..3 {
        world.exit(1, failed());
        world.pass();
    }
    world.now += PLENTY.period + SECOND;
    world.exit(1, failed());
    world.trace.retain(|row| row.starts_with("wait"));
    world.takes_trace(&["wait 100ms", "wait 200ms", "wait 400ms", "wait 100ms"]);
}

#[test]
fn a_child_added_in_a_group_restart_starts_with_the_group() {
    let mut world = World::new(RestForOne, PLENTY).with_children(&[Permanent; 2]);
    world.exit(1, failed());
    world.add(Permanent);
    world.exit(2, Shutdown);
    world.pass();
    world.takes_trace(&["stop 2", "wait 100ms", "start 1", "start 2", "start 3"]);
}

#[test]
fn a_child_added_in_a_stop_is_forgotten_at_once() {
    let mut world = World::new(OneForOne, PLENTY).with_children(&[Permanent]);
    world.tell(Happened::StopAsked);
    world.add(Permanent);
    world.takes_trace(&["stop 1", "forget 2"]);
}

#[test]
fn a_child_stopped_by_name_is_forgotten_when_it_has_ended_whatever_its_policy() {
    let mut world = World::new(OneForAll, PLENTY).with_children(&[Permanent; 2]);
    world.tell(Happened::ChildStopAsked { child: ChildId(1) });
    world.exit(1, failed());
    world.takes_trace(&["stop 1", "forget 1"]);
    world.exit(2, failed());
    world.tell(Happened::ChildStopAsked { child: ChildId(2) });
    world.pass();
    world.takes_trace(&["wait 100ms", "forget 2"]);
}

/// One thing that can happen next.
#[derive(Clone, Debug)]
enum Step {
    Exit(u64, bool),
    Overdue(u64),
    Pass(usize),
    LateExit(usize),
    StopChild(u64),
    Add,
    Stop,
    Later,
}

impl World {
    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for child in self.live.keys() {
            steps.push(Step::Exit(child.0, true));
            steps.push(Step::Exit(child.0, false));
            if self.asked.contains(child) {
                steps.push(Step::Overdue(child.0));
            } else {
                steps.push(Step::StopChild(child.0));
            }
        }
        for nth in 0..self.due.len().min(3) {
            steps.push(Step::Pass(nth));
        }
        if !self.ended.is_empty() {
            steps.push(Step::LateExit(self.ended.len() - 1));
        }
        if self.policies.len() < 4 {
            steps.push(Step::Add);
        }
        if !self.core.is_stopping() {
            steps.push(Step::Stop);
            steps.push(Step::Later);
        }
        steps
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Exit(child, true) => drop(self.exit(child, failed())),
            Step::Exit(child, false) => drop(self.exit(child, Normal)),
            Step::Overdue(child) => self.overdue(child),
            Step::Pass(nth) => self.pass_nth(nth),
            Step::LateExit(index) => self.late_exit(index),
            Step::StopChild(child) => drop(self.tell(Happened::ChildStopAsked {
                child: ChildId(child),
            })),
            Step::Add => drop(self.add(Temporary)),
            Step::Stop => drop(self.tell(Happened::StopAsked)),
            Step::Later => self.now += 3 * SECOND,
        }
        if let Step::StopChild(child) = *step {
            // The core asked it by an action; the world took that down.
            assert!(self.asked.contains(&ChildId(child)));
        }
        // Stops of a sequence go one by one, beside those asked for by name.
        if self.stop_order == StopOrder::AllAtOnce && self.core.is_stopping() {
            assert_eq!(self.asked.len(), self.live.len());
        }
    }

    fn explore(&self, depth: u32, seen: &mut u64) {
        *seen += 1;
        if depth == 0 {
            self.clone().must_recover();
            self.clone().must_end(true);
            self.clone().must_end(false);
            return;
        }
        for step in self.steps() {
            let mut next = self.clone();
            next.take(&step);
            next.explore(depth - 1, seen);
        }
    }
}

#[test]
fn every_sequence_of_events_to_a_depth_keeps_the_invariants() {
    let intensity = Intensity {
        restarts: 1,
        period: 5 * SECOND,
    };
    let mut seen = 0;
    for strategy in [OneForOne, OneForAll, RestForOne] {
        for (stop_order, policies) in [
            (StopOrder::OneByOne, [Permanent, Permanent, Permanent]),
            (StopOrder::OneByOne, [Transient, Permanent, Temporary]),
            (StopOrder::AllAtOnce, [Temporary, Transient, Permanent]),
        ] {
            let mut world =
                World::with_order(strategy, intensity, stop_order).with_children(&policies);
            world.is_traced = false;
            world.explore(4, &mut seen);
        }
    }
    assert!(seen > 100_000, "{seen} states");
}

proptest! {
    #[test]
    fn random_long_sequences_keep_the_invariants(
        strategy in prop::sample::select(vec![OneForOne, OneForAll, RestForOne]),
        stop_order in prop::sample::select(vec![StopOrder::OneByOne, StopOrder::AllAtOnce]),
        policies in prop::collection::vec(
            prop::sample::select(vec![Permanent, Transient, Temporary]), 0..4),
        restarts in 0_u32..6,
        choices in prop::collection::vec(any::<prop::sample::Index>(), 0..80),
        answers in any::<bool>(),
    ) {
        let intensity = Intensity { restarts, period: 5 * SECOND };
        let mut world =
            World::with_order(strategy, intensity, stop_order).with_children(&policies);
        for choice in choices {
            let mut steps = world.steps();
            // Long lives are wanted: a stop ends the story, so it is drawn last.
            steps.retain(|step| !matches!(step, Step::Stop));
            if steps.is_empty() {
                break;
            }
            let step = choice.get(&steps).clone();
            world.take(&step);
        }
        world.clone().must_recover();
        world.must_end(answers);
    }
}
