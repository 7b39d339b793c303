//! The supervisor actor: performs what its core decides.
//!
//! - **Role**: starts its children in order, hears of their ends, starts them again by the rules,
//!   stops them in reverse order.
//! - **Parent**: a supervisor, or the program ([`SupervisorActor::start_root`]).
//! - **Owns**: the specs of its children, and the [`Child`] of each that runs.
//! - **Messages in**: the exits its links report, [`StopActor`], [`StopChildNamed`],
//!   [`TreeRequest`]; child specs through its [`SupervisorHandle`].
//! - **Messages out**: [`StopActor`] to children; every exit to the observer.
//! - **How it ends**: when no child is left, with `Shutdown` after it was asked to stop and with
//!   `GaveUp` after it restarted too often; its own link tells its parent. If it is killed or
//!   panics, its children are killed with it, in reverse order.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use actix::prelude::*;
use futures_util::future::join_all;
use tokio::time::Instant;

use super::core::{Action, ChildState, Event, Happened, SupervisorCore};
use super::handle::SupervisorHandle;
use super::link::{Child, Link, StopActor, panic_text};
use super::rules::{
    ChildId, ExitReason, Incarnation, Intensity, KILL_TIMEOUT, RestartPolicy, StopTimeout,
};
use super::spec::{ChildSpec, ExitObserver, SupervisorSpec};
use super::tree::{NodeKind, NodeState, TREE_TIMEOUT, TreeNode};

/// A supervisor; the module's page says what it does.
pub struct SupervisorActor {
    name: Rc<str>,
    link: Link,
    core: SupervisorCore,
    intensity: Intensity,
    specs: Vec<ChildSpec>,
    children: BTreeMap<ChildId, Entry>,
    children_added: u64,
    handle: SupervisorHandle,
    observer: Option<ExitObserver>,
    origin: Instant,
    gave_up: String,
}

struct Entry {
    spec: ChildSpec,
    path: Rc<str>,
    running: Option<Child>,
    kind: NodeKind,
    stop_timer: Option<SpawnHandle>,
    last_exit: Option<ExitReason>,
}

/// The root of a tree. Dropping it kills the tree.
#[derive(Debug)]
#[must_use = "dropping it kills the tree"]
pub struct Root {
    child: Child,
    handle: SupervisorHandle,
}

impl Root {
    /// Asks the tree to stop: children in reverse order of start, each bounded by its stop timeout.
    pub fn ask_stop(&self) {
        self.child.ask_stop();
    }

    /// Kills the tree.
    pub fn kill(&self) {
        self.child.kill();
    }

    /// Gives the root supervisor's handle.
    pub fn handle(&self) -> &SupervisorHandle {
        &self.handle
    }
}

impl SupervisorActor {
    /// Starts the root of a tree. `on_end` hears once how it ended: `Shutdown` after it was asked
    /// to stop, `GaveUp` if it restarted too often (the binary's exit code 21), `Panicked` or
    /// `Killed`. It must not block or panic.
    ///
    /// Call [`refuse_panic_abort`](super::refuse_panic_abort) before.
    ///
    /// # Panics
    ///
    /// Outside of a `LocalSet`, as [`actix::spawn`] does.
    pub fn start_root(spec: SupervisorSpec, on_end: Box<dyn FnOnce(ExitReason)>) -> Root {
        let handle = spec.handle.clone();
        let link = Link::new(spec.name.clone(), on_end);
        let child = Self::start_linked(spec, link);
        Root { child, handle }
    }

    /// Makes the spec of a supervisor that is itself a child, so that trees nest. `make` is called
    /// at every start; its spec's name is replaced by `name`. Its stop has no timeout of its own,
    /// since each of its children's has one.
    pub fn child_spec(
        name: impl Into<Rc<str>>,
        policy: RestartPolicy,
        mut make: impl FnMut() -> SupervisorSpec + 'static,
    ) -> ChildSpec {
        let name = name.into();
        let own = Rc::clone(&name);
        let start = move |link| {
            let mut spec = make();
            spec.name = Rc::clone(&own);
            Self::start_linked(spec, link)
        };
        ChildSpec::new(name, policy, Box::new(start)).with_stop_unbounded()
    }

    fn start_linked(spec: SupervisorSpec, link: Link) -> Child {
        let own = link.clone();
        Child::supervisor(link, |_| Self::new(spec, own))
    }

    fn new(spec: SupervisorSpec, link: Link) -> Self {
        Self {
            name: spec.name,
            core: SupervisorCore::new(spec.strategy, spec.intensity, spec.stop_order),
            intensity: spec.intensity,
            specs: spec.children,
            children: BTreeMap::new(),
            children_added: 0,
            handle: spec.handle,
            observer: spec.observer.0.or_else(|| link.observer()),
            origin: Instant::now(),
            gave_up: String::new(),
            link,
        }
    }

    fn feed(&mut self, happened: Happened, ctx: &mut Context<Self>) {
        let event = Event {
            happened,
            now: self.origin.elapsed(),
            jitter: rand::random(),
        };
        for action in self.core.handle(event) {
            self.perform(action, ctx);
        }
    }

    fn perform(&mut self, action: Action, ctx: &mut Context<Self>) {
        match action {
            Action::StartChild { child, incarnation } => self.start(child, incarnation, ctx),
            Action::StopChild { child, incarnation } => self.stop(child, incarnation, ctx),
            Action::KillChild { child, incarnation } => self.kill(child, incarnation, ctx),
            Action::RestartAfter {
                child,
                incarnation,
                delay,
            } => {
                ctx.run_later(delay, move |supervisor, ctx| {
                    supervisor.feed(Happened::RestartDue { child, incarnation }, ctx);
                });
            }
            Action::Report {
                child,
                reason,
                restarted,
            } => self.report(child, reason, restarted, ctx),
            Action::ForgetChild { child } => {
                self.children.remove(&child);
            }
            Action::GiveUp { child, reason } => self.gave_up = self.why(child, &reason),
            Action::Done { gave_up } => {
                self.link.exit_with(if gave_up {
                    ExitReason::GaveUp(std::mem::take(&mut self.gave_up))
                } else {
                    ExitReason::Shutdown
                });
                ctx.stop();
            }
        }
    }

    fn add(&mut self, spec: ChildSpec, ctx: &mut Context<Self>) {
        self.children_added += 1;
        let child = ChildId(self.children_added);
        let happened = Happened::ChildAdded {
            child,
            policy: spec.policy,
            backoff: spec.backoff,
        };
        let entry = Entry {
            path: format!("{}/{}", self.link.path(), spec.name).into(),
            spec,
            running: None,
            kind: NodeKind::Unknown,
            stop_timer: None,
            last_exit: None,
        };
        self.children.insert(child, entry);
        self.feed(happened, ctx);
    }

    fn start(&mut self, child: ChildId, incarnation: Incarnation, ctx: &mut Context<Self>) {
        let Some(entry) = self.children.get_mut(&child) else {
            return;
        };
        let supervisor = ctx.address();
        let report = move |reason| {
            supervisor.do_send(ChildExited {
                child,
                incarnation,
                reason,
            });
        };
        let link = Link::observed(Rc::clone(&entry.path), self.observer.clone(), report);
        let given = link.clone();
        match catch_unwind(AssertUnwindSafe(|| (entry.spec.start)(given))) {
            Ok(child) => {
                entry.kind = child.kind();
                entry.running = Some(child);
            }
            Err(payload) => link.report(ExitReason::Panicked(panic_text(&*payload))),
        }
    }

    fn stop(&mut self, child: ChildId, incarnation: Incarnation, ctx: &mut Context<Self>) {
        let Some(entry) = self.children.get_mut(&child) else {
            return;
        };
        if let Some(running) = &entry.running {
            running.ask_stop();
        }
        if let StopTimeout::After(timeout) = entry.spec.stop_timeout {
            entry.stop_timer = Some(ctx.run_later(timeout, move |supervisor, ctx| {
                supervisor.feed(Happened::ChildStopOverdue { child, incarnation }, ctx);
            }));
        }
    }

    fn kill(&mut self, child: ChildId, incarnation: Incarnation, ctx: &mut Context<Self>) {
        let Some(entry) = self.children.get_mut(&child) else {
            return;
        };
        if let Some(running) = &entry.running {
            running.kill();
        }
        entry.stop_timer = Some(ctx.run_later(KILL_TIMEOUT, move |supervisor, ctx| {
            supervisor.feed(Happened::ChildStopOverdue { child, incarnation }, ctx);
        }));
    }

    fn report(
        &mut self,
        child: ChildId,
        reason: ExitReason,
        restarted: bool,
        ctx: &mut Context<Self>,
    ) {
        let Some(entry) = self.children.get_mut(&child) else {
            return;
        };
        entry.running = None;
        if let Some(timer) = entry.stop_timer.take() {
            ctx.cancel_future(timer);
        }
        if let Some(observer) = &self.observer {
            let observed = AssertUnwindSafe(|| observer(&entry.path, &reason, restarted));
            // A panic of the observer loses the observation and nothing else.
            let _ = catch_unwind(observed);
        }
        entry.last_exit = Some(reason);
    }

    fn why(&self, child: ChildId, reason: &ExitReason) -> String {
        let Intensity { restarts, period } = self.intensity;
        let name = self
            .children
            .get(&child)
            .map_or("a child", |entry| entry.spec.name());
        format!("more than {restarts} restarts in {period:?}, the last of {name} ({reason})")
    }

    fn node(&self) -> TreeNode {
        TreeNode {
            name: self.name.as_ref().to_owned(),
            kind: NodeKind::Supervisor,
            state: if self.core.is_stopping() {
                NodeState::Stopping
            } else {
                NodeState::Running
            },
            restarts: 0,
            last_exit: None,
            late_exits: self.core.late_exits(),
            children: Vec::new(),
        }
    }

    fn child_node(&self, child: ChildId, entry: &Entry) -> TreeNode {
        TreeNode {
            name: entry.spec.name().to_owned(),
            kind: entry.kind,
            state: self
                .core
                .child_state(child)
                .unwrap_or(ChildState::Ended)
                .into(),
            restarts: self.core.restarts(child),
            last_exit: entry.last_exit.clone(),
            late_exits: 0,
            children: Vec::new(),
        }
    }
}

impl Actor for SupervisorActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        self.handle.set(ctx.address());
        for spec in std::mem::take(&mut self.specs) {
            self.add(spec, ctx);
        }
        self.take_orders(ctx);
    }
}

impl Drop for SupervisorActor {
    fn drop(&mut self) {
        while let Some((_, entry)) = self.children.pop_last() {
            drop(entry);
        }
    }
}

impl std::fmt::Debug for SupervisorActor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SupervisorActor")
            .field("path", &self.link.path())
            .field("core", &self.core)
            .finish_non_exhaustive()
    }
}

/// An incarnation of a child ended; its link says so.
#[derive(Message)]
#[rtype(result = "()")]
struct ChildExited {
    child: ChildId,
    incarnation: Incarnation,
    reason: ExitReason,
}

impl Handler<ChildExited> for SupervisorActor {
    type Result = ();

    fn handle(&mut self, exited: ChildExited, ctx: &mut Self::Context) {
        let happened = Happened::ChildExited {
            child: exited.child,
            incarnation: exited.incarnation,
            reason: exited.reason,
        };
        self.feed(happened, ctx);
    }
}

impl Handler<StopActor> for SupervisorActor {
    type Result = ();

    fn handle(&mut self, _: StopActor, ctx: &mut Self::Context) {
        self.feed(Happened::StopAsked, ctx);
    }
}

/// Stops every child of this name, bounded by its stop timeout, and forgets it with its spec.
#[derive(Debug, Clone, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub struct StopChildNamed(pub String);

impl Handler<StopChildNamed> for SupervisorActor {
    type Result = ();

    fn handle(&mut self, StopChildNamed(name): StopChildNamed, ctx: &mut Self::Context) {
        let named: Vec<ChildId> = self
            .children
            .iter()
            .filter(|(_, entry)| entry.spec.name() == name)
            .map(|(&child, _)| child)
            .collect();
        for child in named {
            self.feed(Happened::ChildStopAsked { child }, ctx);
        }
    }
}

/// Child specs wait in the handle.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct TakeOrders;

impl Handler<TakeOrders> for SupervisorActor {
    type Result = ();

    fn handle(&mut self, _: TakeOrders, ctx: &mut Self::Context) {
        self.take_orders(ctx);
    }
}

impl SupervisorActor {
    fn take_orders(&mut self, ctx: &mut Context<Self>) {
        for spec in self.handle.take_orders() {
            self.add(spec, ctx);
        }
    }
}

/// Describes the supervisor and all below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Message)]
#[rtype(result = "TreeNode")]
pub struct TreeRequest;

impl Handler<TreeRequest> for SupervisorActor {
    type Result = ResponseFuture<TreeNode>;

    fn handle(&mut self, _: TreeRequest, _: &mut Self::Context) -> Self::Result {
        let mut node = self.node();
        let children: Vec<_> = self
            .children
            .iter()
            .map(|(&child, entry)| {
                let below = entry.running.as_ref().and_then(Child::as_supervisor);
                let asked = below.map(|addr| addr.send(TreeRequest));
                complete(self.child_node(child, entry), asked)
            })
            .collect();
        Box::pin(async move {
            node.children = join_all(children).await;
            node
        })
    }
}

/// Adds what a supervisor says of itself to what its parent knows of it.
async fn complete(
    mut node: TreeNode,
    asked: Option<Request<SupervisorActor, TreeRequest>>,
) -> TreeNode {
    if let Some(asked) = asked
        && let Ok(Ok(own)) = tokio::time::timeout(TREE_TIMEOUT, asked).await
    {
        node.children = own.children;
        node.late_exits = own.late_exits;
    }
    node
}
