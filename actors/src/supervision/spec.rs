//! What a supervisor is given: its children and the rules for them.

use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use crate::model::Backoff;

use super::SupervisorHandle;
use super::link::{Child, Link};
use super::rules::{
    ExitReason, Intensity, RESTART_BACKOFF, RestartPolicy, StopOrder, StopTimeout, Strategy,
};

/// Hears of every exit in a tree: the path of who ended, how, and whether it is started again. A
/// panic in it is contained, and that observation is lost.
pub type ExitObserver = Rc<dyn Fn(&str, &ExitReason, bool)>;

/// How to start a child, and what to do when it ends.
pub struct ChildSpec {
    pub(super) name: Rc<str>,
    pub(super) policy: RestartPolicy,
    pub(super) stop_timeout: StopTimeout,
    pub(super) backoff: Backoff,
    pub(super) start: Box<dyn FnMut(Link) -> Child>,
}

impl ChildSpec {
    /// Makes a spec. `start` is called at every start and must make a new actor each time; a panic
    /// in it counts as the exit of that incarnation.
    pub fn new(
        name: impl Into<Rc<str>>,
        policy: RestartPolicy,
        start: Box<dyn FnMut(Link) -> Child>,
    ) -> Self {
        Self {
            name: name.into(),
            policy,
            stop_timeout: StopTimeout::default(),
            backoff: RESTART_BACKOFF,
            start,
        }
    }

    /// Sets how long it may take to stop before it is killed; 5 s by default.
    #[must_use]
    pub fn with_stop_timeout(mut self, stop_timeout: Duration) -> Self {
        self.stop_timeout = StopTimeout::After(stop_timeout);
        self
    }

    pub(super) fn with_stop_unbounded(mut self) -> Self {
        self.stop_timeout = StopTimeout::Unbounded;
        self
    }

    /// Sets the delays between restarts; [`RESTART_BACKOFF`] by default.
    #[must_use]
    pub fn with_backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Gives the name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Debug for ChildSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChildSpec")
            .field("name", &self.name)
            .field("policy", &self.policy)
            .field("stop_timeout", &self.stop_timeout)
            .field("backoff", &self.backoff)
            .finish_non_exhaustive()
    }
}

/// One supervisor: its name, its rules and its first children in order of start.
#[derive(Debug)]
#[non_exhaustive]
pub struct SupervisorSpec {
    /// Its name: the first part of the paths below it, if it is the root.
    pub name: Rc<str>,
    /// Who is restarted when one child has to be.
    pub strategy: Strategy,
    /// How many restarts are borne.
    pub intensity: Intensity,
    /// In which order its children are stopped.
    pub stop_order: StopOrder,
    /// Its first children, in order of start.
    pub children: Vec<ChildSpec>,
    /// Where orders for it are put; stable over its restarts if the same one is given each time.
    pub handle: SupervisorHandle,
    pub(super) observer: Observed,
}

/// An observer of its own, or the parent's.
#[derive(Default)]
pub(super) struct Observed(pub(super) Option<ExitObserver>);

impl fmt::Debug for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "own" } else { "inherited" })
    }
}

impl SupervisorSpec {
    /// Makes a spec with OTP's intensity (1 in 5 s) and no children.
    pub fn new(name: impl Into<Rc<str>>, strategy: Strategy) -> Self {
        Self {
            name: name.into(),
            strategy,
            intensity: Intensity::default(),
            stop_order: StopOrder::default(),
            children: Vec::new(),
            handle: SupervisorHandle::new(),
            observer: Observed::default(),
        }
    }

    /// Sets how many restarts are borne.
    #[must_use]
    pub fn with_intensity(mut self, intensity: Intensity) -> Self {
        self.intensity = intensity;
        self
    }

    /// Sets in which order its children are stopped.
    #[must_use]
    pub fn with_stop_order(mut self, stop_order: StopOrder) -> Self {
        self.stop_order = stop_order;
        self
    }

    /// Adds a child after those it has.
    #[must_use]
    pub fn with_child(mut self, child: ChildSpec) -> Self {
        self.children.push(child);
        self
    }

    /// Sets the handle others hold, so that it stays the same over restarts of the supervisor.
    #[must_use]
    pub fn with_handle(mut self, handle: &SupervisorHandle) -> Self {
        self.handle = handle.clone();
        self
    }

    /// Sets who hears of exits here and below; without it, the parent's observer does.
    #[must_use]
    pub fn with_observer(mut self, observer: ExitObserver) -> Self {
        self.observer = Observed(Some(observer));
        self
    }
}
