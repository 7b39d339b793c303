//! Supervision with real actors on paused time.

#![expect(clippy::unwrap_used, reason = "a test says what it expects")]

use std::cell::{Cell, RefCell};
use std::future::{Future, pending};
use std::rc::Rc;
use std::time::Duration;

use acquit_actors::model::Backoff;
use acquit_actors::supervision::{
    Child, ChildSpec, ExitReason, Intensity, KILL_TIMEOUT, Link, NodeKind, NodeState,
    RestartPolicy, Root, Slot, StopActor, StopOrder, Strategy, SupervisorActor, SupervisorHandle,
    SupervisorSpec, TreeNode,
};
use actix::prelude::*;
use actix_rt::System;
use tokio::time::Instant;

const SECOND: Duration = Duration::from_secs(1);
const PLENTY: Intensity = Intensity {
    restarts: 10_000,
    period: Duration::from_secs(60),
};

fn on_paused_time<T>(test: impl Future<Output = T>) -> T {
    System::with_tokio_rt(|| {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap()
    })
    .block_on(test)
}

/// Waits on paused time, bounded, until the condition holds.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..100_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("never: {what}");
}

/// What happened, in order.
#[derive(Clone, Default)]
struct Log(Rc<RefCell<Vec<String>>>);

impl Log {
    fn add(&self, row: impl Into<String>) {
        self.0.borrow_mut().push(row.into());
    }

    fn take(&self) -> Vec<String> {
        self.0.take()
    }

    fn count(&self, row: &str) -> usize {
        self.0.borrow().iter().filter(|&seen| seen == row).count()
    }

    fn has(&self, row: &str) -> bool {
        self.count(row) > 0
    }
}

/// Counts who lives, by a guard that is dropped with it.
#[derive(Clone, Default)]
struct Living(Rc<Cell<i64>>);

impl Living {
    fn guard(&self) -> Alive {
        self.0.set(self.0.get() + 1);
        Alive(self.0.clone())
    }

    fn count(&self) -> i64 {
        self.0.get()
    }
}

struct Alive(Rc<Cell<i64>>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

#[derive(Clone, Copy, PartialEq, Default)]
enum Fault {
    #[default]
    None,
    PanicInStarted,
    PanicInFactory,
    IgnoresStop,
    PanicInStopped,
    PanicInDrop,
}

struct Worker {
    name: &'static str,
    fault: Fault,
    log: Log,
    link: Link,
    _alive: Alive,
}

impl Actor for Worker {
    type Context = Context<Self>;

    fn started(&mut self, _: &mut Self::Context) {
        self.log.add(format!("+{}", self.name));
        assert!(self.fault != Fault::PanicInStarted, "in started");
    }

    fn stopped(&mut self, _: &mut Self::Context) {
        self.log.add(format!("-{}", self.name));
        assert!(self.fault != Fault::PanicInStopped, "in stopped");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        assert!(self.fault != Fault::PanicInDrop, "in drop");
    }
}

impl Handler<StopActor> for Worker {
    type Result = ();

    fn handle(&mut self, _: StopActor, ctx: &mut Self::Context) {
        if self.fault != Fault::IgnoresStop {
            ctx.stop();
        }
    }
}

#[derive(Message)]
#[rtype(result = "()")]
enum Do {
    Panic,
    PanicLater,
    End(ExitReason),
    Nothing,
}

impl Handler<Do> for Worker {
    type Result = ();

    fn handle(&mut self, order: Do, ctx: &mut Self::Context) {
        match order {
            Do::Panic => panic!("boom {}", 7),
            Do::PanicLater => {
                ctx.spawn(async { panic!("in a future") }.into_actor(self));
            }
            Do::End(reason) => {
                self.link.exit_with(reason);
                ctx.stop();
            }
            Do::Nothing => {}
        }
    }
}

/// A world of workers: their slots by name, what they and the observer saw.
#[derive(Clone, Default)]
struct World {
    log: Log,
    exits: Log,
    living: Living,
}

impl World {
    fn worker(&self, name: &'static str, slot: &Slot<Worker>) -> ChildSpec {
        self.faulty(name, slot, Rc::default())
    }

    fn faulty(&self, name: &'static str, slot: &Slot<Worker>, fault: Rc<Cell<Fault>>) -> ChildSpec {
        let (log, living, slot) = (self.log.clone(), self.living.clone(), slot.clone());
        let start = move |link: Link| {
            let alive = living.guard();
            assert!(fault.get() != Fault::PanicInFactory, "in the factory");
            let (own, log, fault) = (link.clone(), log.clone(), fault.get());
            let (child, addr) = Child::start(link, |_| Worker {
                name,
                fault,
                log,
                link: own,
                _alive: alive,
            });
            slot.set(addr);
            child
        };
        ChildSpec::new(name, RestartPolicy::Permanent, Box::new(start))
    }

    fn supervisor(&self, name: &'static str, strategy: Strategy) -> SupervisorSpec {
        let exits = self.exits.clone();
        SupervisorSpec::new(name, strategy)
            .with_intensity(PLENTY)
            .with_observer(Rc::new(move |path, reason, restarted| {
                let then = if restarted { "restarted" } else { "ended" };
                exits.add(format!("{path} {reason} {then}"));
            }))
    }
}

type End = Rc<RefCell<Option<ExitReason>>>;

fn start(spec: SupervisorSpec) -> (Root, End) {
    let end = End::default();
    let seen = end.clone();
    let on_end = move |reason| {
        assert_eq!(seen.replace(Some(reason)), None, "heard once");
    };
    (SupervisorActor::start_root(spec, Box::new(on_end)), end)
}

async fn ended(end: &End) -> ExitReason {
    until("the tree ends", || end.borrow().is_some()).await;
    end.borrow().clone().unwrap()
}

fn slots<const N: usize>() -> [Slot<Worker>; N] {
    std::array::from_fn(|_| Slot::new())
}

#[test]
fn a_panic_in_a_handler_is_reported_with_its_text_and_the_child_starts_again() {
    on_paused_time(async {
        let (world, [slot]) = (World::default(), slots());
        let spec = world.supervisor("root", Strategy::OneForOne);
        let (_root, _) = start(spec.with_child(world.worker("a", &slot)));
        until("a runs", || slot.is_present()).await;
        assert!(slot.send(Do::Panic).await.is_err());
        until("a runs again", || world.log.count("+a") == 2).await;
        assert_eq!(world.exits.take(), ["root/a panicked: boom 7 restarted"]);
        assert_eq!(world.living.count(), 1);
        assert!(slot.send(Do::Nothing).await.is_ok(), "by the same slot");
    });
}

#[test]
fn a_panic_in_started_is_reported_and_the_child_starts_again() {
    on_paused_time(async {
        let (world, [slot]) = (World::default(), slots());
        let fault = Rc::new(Cell::new(Fault::PanicInStarted));
        let spec = world.supervisor("root", Strategy::OneForOne);
        let (_root, _) = start(spec.with_child(world.faulty("a", &slot, fault.clone())));
        until("a died twice", || world.log.count("+a") == 2).await;
        fault.set(Fault::None);
        until("a lives", || world.log.count("+a") == 3).await;
        assert_eq!(
            world.exits.take(),
            ["root/a panicked: in started restarted"; 2]
        );
        assert!(slot.send(Do::Nothing).await.is_ok());
    });
}

#[test]
fn a_panic_in_a_spawned_future_is_reported_and_the_child_starts_again() {
    on_paused_time(async {
        let (world, [slot]) = (World::default(), slots());
        let spec = world.supervisor("root", Strategy::OneForOne);
        let (_root, _) = start(spec.with_child(world.worker("a", &slot)));
        until("a runs", || slot.is_present()).await;
        slot.send(Do::PanicLater).await.unwrap();
        until("a runs again", || world.log.count("+a") == 2).await;
        assert_eq!(
            world.exits.take(),
            ["root/a panicked: in a future restarted"]
        );
    });
}

#[test]
fn a_panic_in_the_factory_is_an_exit_like_any_other() {
    on_paused_time(async {
        let (world, [slot]) = (World::default(), slots());
        let fault = Rc::new(Cell::new(Fault::PanicInFactory));
        let spec = world.supervisor("root", Strategy::OneForOne);
        let (_root, _) = start(spec.with_child(world.faulty("a", &slot, fault.clone())));
        until("it was tried", || {
            world.exits.has("root/a panicked: in the factory restarted")
        })
        .await;
        fault.set(Fault::None);
        until("a lives", || slot.is_present()).await;
        assert_eq!(world.living.count(), 1);
    });
}

#[test]
fn panics_in_stopped_and_in_drop_are_contained_also_after_a_panic() {
    on_paused_time(async {
        for fault in [Fault::PanicInStopped, Fault::PanicInDrop] {
            let (world, [slot]) = (World::default(), slots());
            let cell = Rc::new(Cell::new(fault));
            let spec = world.supervisor("root", Strategy::OneForOne);
            let (root, end) = start(spec.with_child(world.faulty("a", &slot, cell.clone())));
            until("a runs", || slot.is_present()).await;
            assert!(slot.send(Do::Panic).await.is_err());
            until("a runs again", || world.log.count("+a") == 2).await;
            assert_eq!(world.exits.take(), ["root/a panicked: boom 7 restarted"]);
            root.ask_stop();
            assert_eq!(ended(&end).await, ExitReason::Shutdown);
            assert_eq!(world.exits.take().len(), 1);
            assert_eq!(world.living.count(), 0);
        }
    });
}

#[test]
fn an_actor_says_itself_how_it_ends() {
    on_paused_time(async {
        let (world, [slot]) = (World::default(), slots());
        let mut child = world.worker("a", &slot);
        child = child.with_backoff(Backoff {
            base: SECOND,
            max: SECOND,
        });
        let spec = world.supervisor("root", Strategy::OneForOne);
        let (_root, _) = start(spec.with_child(child));
        for reason in [ExitReason::Failed("no disk".into()), ExitReason::Normal] {
            until("a runs", || slot.is_present()).await;
            slot.do_send(Do::End(reason));
            until("a ended", || !slot.is_present()).await;
        }
        until("heard", || world.exits.has("root/a normal restarted")).await;
        assert_eq!(
            world.exits.take(),
            [
                "root/a failed: no disk restarted",
                "root/a normal restarted"
            ]
        );
    });
}

#[test]
fn the_backoff_grows_between_restarts() {
    on_paused_time(async {
        let starts = Rc::new(RefCell::new(Vec::new()));
        let seen = starts.clone();
        let child = ChildSpec::new(
            "a",
            RestartPolicy::Permanent,
            Box::new(move |link| {
                seen.borrow_mut().push(Instant::now());
                Child::future(link, async { panic!("at once") })
            }),
        )
        .with_backoff(Backoff {
            base: SECOND,
            max: 8 * SECOND,
        });
        let spec = SupervisorSpec::new("root", Strategy::OneForOne).with_intensity(PLENTY);
        let (_root, _) = start(spec.with_child(child));
        until("six starts", || starts.borrow().len() == 6).await;
        let starts = starts.borrow();
        for (pair, step) in starts.windows(2).zip([1, 2, 4, 8, 8]) {
            let (waited, step) = (pair[1] - pair[0], step * SECOND);
            let slack = Duration::from_millis(10);
            assert!(
                waited >= step / 2 && waited <= step + slack,
                "{waited:?} for a step of {step:?}"
            );
        }
    });
}

/// root ─ upper ─ lower ─ bad
fn two_levels(world: &World, starts: &Rc<Cell<u32>>) -> SupervisorSpec {
    let starts = starts.clone();
    let upper = SupervisorActor::child_spec("upper", RestartPolicy::Permanent, move || {
        let starts = starts.clone();
        let lower = SupervisorActor::child_spec("lower", RestartPolicy::Permanent, move || {
            let starts = starts.clone();
            let bad = ChildSpec::new(
                "bad",
                RestartPolicy::Permanent,
                Box::new(move |link| {
                    starts.set(starts.get() + 1);
                    Child::future(link, async { panic!("bad") })
                }),
            );
            SupervisorSpec::new("lower", Strategy::OneForOne).with_child(bad)
        });
        SupervisorSpec::new("upper", Strategy::OneForOne).with_child(lower)
    });
    world
        .supervisor("root", Strategy::OneForOne)
        .with_intensity(Intensity::default())
        .with_child(upper)
}

#[test]
fn a_child_that_never_lives_escalates_through_two_levels_to_the_root() {
    on_paused_time(async {
        let (world, starts) = (World::default(), Rc::new(Cell::new(0)));
        let (_root, end) = start(two_levels(&world, &starts));
        let ExitReason::GaveUp(why) = ended(&end).await else {
            panic!("{:?}", end.borrow());
        };
        assert_eq!(
            why,
            "more than 1 restarts in 5s, the last of upper (gave up: more than 1 restarts in 5s, \
             the last of lower (gave up: more than 1 restarts in 5s, the last of bad (panicked: \
             bad)))"
        );
        assert_eq!(starts.get(), 8, "two lives at each of three levels");
        let exits = world.exits.take();
        let ended = |path: &str| {
            exits
                .iter()
                .filter(|row| row.starts_with(&format!("{path} ")) && row.ends_with("ended"))
                .count()
        };
        assert_eq!(ended("root/upper/lower/bad"), 4);
        assert_eq!(ended("root/upper/lower"), 2);
        assert_eq!(ended("root/upper"), 1);
    });
}

#[test]
fn giving_up_stops_the_other_children_in_reverse_order() {
    on_paused_time(async {
        let (world, [a, b, c]) = (World::default(), slots());
        let spec = world
            .supervisor("root", Strategy::OneForOne)
            .with_intensity(Intensity {
                restarts: 0,
                period: SECOND,
            })
            .with_child(world.worker("a", &a))
            .with_child(world.worker("b", &b))
            .with_child(world.worker("c", &c));
        let (_root, end) = start(spec);
        until("c runs", || world.log.has("+c")).await;
        b.do_send(Do::Panic);
        assert!(matches!(ended(&end).await, ExitReason::GaveUp(_)));
        assert_eq!(world.log.take(), ["+a", "+b", "+c", "-b", "-c", "-a"]);
        assert_eq!(world.living.count(), 0);
    });
}

async fn restart_order(strategy: Strategy, expected: &[&str]) {
    let (world, [a, b, c, d]) = (World::default(), slots());
    let spec = world
        .supervisor("root", strategy)
        .with_child(world.worker("a", &a))
        .with_child(world.worker("b", &b))
        .with_child(world.worker("c", &c))
        .with_child(world.worker("d", &d));
    let (_root, _) = start(spec);
    until("all run", || world.log.has("+d")).await;
    world.log.take();
    b.do_send(Do::Panic);
    until("the last runs again", || {
        world.log.0.borrow().len() >= expected.len()
    })
    .await;
    tokio::time::sleep(10 * SECOND).await;
    assert_eq!(world.log.take(), expected);
    assert_eq!(world.living.count(), 4);
}

#[test]
fn each_strategy_restarts_whom_it_says_in_order() {
    on_paused_time(async {
        restart_order(Strategy::OneForOne, &["-b", "+b"]).await;
        restart_order(
            Strategy::OneForAll,
            &["-b", "-d", "-c", "-a", "+a", "+b", "+c", "+d"],
        )
        .await;
        restart_order(Strategy::RestForOne, &["-b", "-d", "-c", "+b", "+c", "+d"]).await;
    });
}

#[test]
fn one_for_all_with_two_children_that_die_at_once_is_one_restart() {
    on_paused_time(async {
        let (world, [a, b, c]) = (World::default(), slots());
        let spec = world
            .supervisor("root", Strategy::OneForAll)
            .with_intensity(Intensity::default())
            .with_child(world.worker("a", &a))
            .with_child(world.worker("b", &b))
            .with_child(world.worker("c", &c));
        let (_root, end) = start(spec);
        until("all run", || world.log.has("+c")).await;
        a.do_send(Do::Panic);
        c.do_send(Do::Panic);
        until("all run again", || world.log.count("+c") == 2).await;
        assert_eq!(world.living.count(), 3);
        assert!(end.borrow().is_none());
    });
}

#[test]
fn a_stop_goes_in_reverse_order_and_kills_who_does_not_stop_in_time() {
    on_paused_time(async {
        let (world, [a, b, c]) = (World::default(), slots());
        let deaf = Rc::new(Cell::new(Fault::IgnoresStop));
        let spec = world
            .supervisor("root", Strategy::OneForOne)
            .with_child(world.worker("a", &a))
            .with_child(
                world
                    .faulty("b", &b, deaf)
                    .with_stop_timeout(Duration::from_secs(3)),
            )
            .with_child(world.worker("c", &c));
        let (root, end) = start(spec);
        until("all run", || world.log.has("+c")).await;
        world.log.take();
        let asked = Instant::now();
        root.ask_stop();
        root.ask_stop();
        assert_eq!(ended(&end).await, ExitReason::Shutdown);
        assert_eq!(world.log.take(), ["-c", "-b", "-a"]);
        assert_eq!(
            world.exits.take(),
            [
                "root/c shutdown ended",
                "root/b killed ended",
                "root/a shutdown ended"
            ]
        );
        let took = asked.elapsed();
        assert!(took >= 3 * SECOND && took < 3 * SECOND + KILL_TIMEOUT);
        assert_eq!(world.living.count(), 0);
    });
}

#[test]
fn many_children_of_one_kind_are_stopped_at_once_in_one_stop_timeout() {
    on_paused_time(async {
        let (world, handle) = (World::default(), SupervisorHandle::new());
        let spec = world
            .supervisor("root", Strategy::OneForOne)
            .with_stop_order(StopOrder::AllAtOnce)
            .with_handle(&handle);
        let (root, end) = start(spec);
        for _ in 0..200 {
            let alive = world.living.guard();
            let mut alive = Some(alive);
            let spec = ChildSpec::new(
                "deaf",
                RestartPolicy::Temporary,
                Box::new(move |link| {
                    let alive = alive.take();
                    Child::future(link, async move {
                        pending::<()>().await;
                        drop(alive);
                    })
                }),
            );
            handle.start_child(spec).unwrap();
        }
        tokio::time::sleep(SECOND).await;
        let asked = Instant::now();
        root.ask_stop();
        assert_eq!(ended(&end).await, ExitReason::Shutdown);
        assert!(asked.elapsed() < 6 * SECOND);
        assert_eq!(world.living.count(), 0);
    });
}

#[test]
fn a_late_exit_of_an_old_incarnation_is_ignored() {
    on_paused_time(async {
        // The first life of `a` neither stops nor can be killed, as one on a blocked arbiter.
        let (world, links) = (World::default(), Rc::new(RefCell::new(Vec::new())));
        let kept = links.clone();
        let handle = SupervisorHandle::new();
        let child = ChildSpec::new(
            "a",
            RestartPolicy::Permanent,
            Box::new(move |link| {
                kept.borrow_mut().push(link.clone());
                // The supervisor watches a link nobody reports on, as if the task were stuck.
                let elsewhere = Link::new("elsewhere", |_| {});
                Child::future(elsewhere, pending())
            }),
        );
        let spec = world
            .supervisor("root", Strategy::OneForAll)
            .with_handle(&handle)
            .with_child(child)
            .with_child(ChildSpec::new(
                "b",
                RestartPolicy::Permanent,
                Box::new({
                    let mut first = true;
                    move |link| {
                        let dies = std::mem::take(&mut first);
                        Child::future(link, async move {
                            if dies {
                                panic!("once");
                            }
                            pending().await
                        })
                    }
                }),
            ));
        let (_root, _) = start(spec);
        until("a was abandoned and started again", || {
            links.borrow().len() == 2
        })
        .await;
        assert!(world.exits.has("root/a killed restarted"));
        // The old incarnation speaks at last: by a child started with its link.
        let old = links.borrow()[0].clone();
        let late = Child::future(old, async {});
        tokio::time::sleep(SECOND).await;
        drop(late);
        let tree = handle.tree().await.unwrap();
        assert_eq!(tree.late_exits, 1);
        assert_eq!(tree.children[0].state, NodeState::Running);
        assert_eq!(links.borrow().len(), 2, "and nothing was started for it");
    });
}

#[test]
fn no_child_leaks_over_a_thousand_restarts() {
    on_paused_time(async {
        let (world, [slot]) = (World::default(), slots());
        let quick = Backoff {
            base: Duration::from_millis(1),
            max: Duration::from_millis(1),
        };
        let spec = world.supervisor("root", Strategy::OneForOne);
        let child = world.worker("a", &slot).with_backoff(quick);
        let (root, end) = start(spec.with_child(child));
        for restarts in 0..1_000 {
            until("a runs", || world.log.count("+a") > restarts).await;
            assert_eq!(world.living.count(), 1);
            slot.do_send(if restarts % 2 == 0 {
                Do::Panic
            } else {
                Do::PanicLater
            });
        }
        until("a runs", || world.log.count("+a") == 1_001).await;
        let tree = root.handle().tree().await.unwrap();
        assert_eq!(tree.children[0].restarts, 1_000);
        root.ask_stop();
        assert_eq!(ended(&end).await, ExitReason::Shutdown);
        assert_eq!(world.living.count(), 0);
    });
}

#[test]
fn a_plain_future_hears_that_it_is_to_stop_and_ends_as_it_says() {
    on_paused_time(async {
        let world = World::default();
        let child = ChildSpec::new(
            "connection",
            RestartPolicy::Permanent,
            Box::new(|link| {
                let own = link.clone();
                Child::future(link, async move {
                    own.stop_token().cancelled().await;
                    own.exit_with(ExitReason::Failed("close refused".into()));
                })
            }),
        );
        let spec = world.supervisor("root", Strategy::OneForOne);
        let (root, end) = start(spec.with_child(child));
        tokio::time::sleep(SECOND).await;
        root.ask_stop();
        assert_eq!(ended(&end).await, ExitReason::Shutdown);
        assert_eq!(
            world.exits.take(),
            ["root/connection failed: close refused ended"]
        );
    });
}

#[test]
fn a_killed_tree_leaves_no_orphan_and_reports_once() {
    on_paused_time(async {
        let (world, [a, b]) = (World::default(), slots());
        let inner = world.clone();
        let nested = SupervisorActor::child_spec("nested", RestartPolicy::Permanent, move || {
            SupervisorSpec::new("nested", Strategy::OneForOne).with_child(inner.worker("b", &b))
        });
        let spec = world
            .supervisor("root", Strategy::OneForOne)
            .with_child(world.worker("a", &a))
            .with_child(nested);
        let (root, end) = start(spec);
        until("all run", || world.log.has("+b")).await;
        drop(root);
        assert_eq!(ended(&end).await, ExitReason::Killed);
        until("nobody is left", || world.living.count() == 0).await;
    });
}

#[test]
fn a_lost_arbiter_reports_every_end() {
    let (heard, ended) = std::sync::mpsc::channel();
    let system = System::new();
    system.block_on(async {
        let arbiter = Arbiter::new();
        let (started, runs) = tokio::sync::oneshot::channel();
        arbiter.spawn_fn(move || {
            let link = Link::new("a", move |reason| heard.send(reason).unwrap());
            let child = Child::future(link, async move {
                started.send(()).unwrap();
                pending().await
            });
            // Kept for ever: the loss of the arbiter is the only end it can have.
            std::mem::forget(child);
        });
        runs.await.unwrap();
        arbiter.stop();
        arbiter.join().unwrap();
    });
    assert_eq!(ended.try_iter().collect::<Vec<_>>(), [ExitReason::Killed]);
}

#[test]
fn children_come_and_go_by_the_handle_and_the_tree_tells() {
    on_paused_time(async {
        let (world, [a, b, c]) = (World::default(), slots());
        let nested_handle = SupervisorHandle::new();
        let given = nested_handle.clone();
        let nested = SupervisorActor::child_spec("nested", RestartPolicy::Permanent, move || {
            SupervisorSpec::new("replaced", Strategy::OneForOne).with_handle(&given)
        });
        // An order before the supervisor runs waits for it.
        nested_handle.start_child(world.worker("b", &b)).unwrap();
        let spec = world
            .supervisor("root", Strategy::OneForOne)
            .with_child(world.worker("a", &a))
            .with_child(nested);
        let (root, _end) = start(spec);
        until("b runs", || b.is_present()).await;
        nested_handle.start_child(world.worker("c", &c)).unwrap();
        until("c runs", || c.is_present()).await;
        b.do_send(Do::Panic);
        until("b runs again", || world.log.count("+b") == 2).await;

        let node = |name: &str, kind, restarts, last_exit, children| TreeNode {
            name: name.into(),
            kind,
            state: NodeState::Running,
            restarts,
            last_exit,
            late_exits: 0,
            children,
        };
        let boom = Some(ExitReason::Panicked("boom 7".into()));
        let expected = node(
            "root",
            NodeKind::Supervisor,
            0,
            None,
            vec![
                node("a", NodeKind::Actor, 0, None, vec![]),
                node(
                    "nested",
                    NodeKind::Supervisor,
                    0,
                    None,
                    vec![
                        node("b", NodeKind::Actor, 1, boom, vec![]),
                        node("c", NodeKind::Actor, 0, None, vec![]),
                    ],
                ),
            ],
        );
        assert_eq!(root.handle().tree().await, Some(expected));

        nested_handle.stop_child("b");
        until("b is gone", || !b.is_present()).await;
        tokio::time::sleep(SECOND).await;
        let tree = root.handle().tree().await.unwrap();
        let names: Vec<_> = tree.children[1]
            .children
            .iter()
            .map(|child| child.name.as_str())
            .collect();
        assert_eq!(names, ["c"]);
        assert!(!b.do_send(Do::Nothing));
        assert_eq!(b.dropped(), 1);
    });
}

#[test]
fn a_temporary_child_is_forgotten_when_it_ends() {
    on_paused_time(async {
        let (world, handle) = (World::default(), SupervisorHandle::new());
        let spec = world
            .supervisor("root", Strategy::OneForOne)
            .with_handle(&handle);
        let (_root, _) = start(spec);
        for round in 0..500 {
            let alive = world.living.guard();
            let mut alive = Some(alive);
            let spec = ChildSpec::new(
                "delivery",
                RestartPolicy::Temporary,
                Box::new(move |link| {
                    let alive = alive.take();
                    Child::future(link, async move {
                        let _alive = alive;
                        assert!(round % 3 != 0, "some fail");
                    })
                }),
            );
            handle.start_child(spec).unwrap();
        }
        until("all ended", || world.living.count() == 0).await;
        until("all were heard", || world.exits.0.borrow().len() == 500).await;
        assert!(handle.tree().await.unwrap().children.is_empty());
    });
}

#[test]
fn a_panicking_observer_loses_the_observation_and_nothing_else() {
    on_paused_time(async {
        let (world, [slot]) = (World::default(), slots());
        let spec = world
            .supervisor("root", Strategy::OneForOne)
            .with_observer(Rc::new(|_, _, _| panic!("observer")))
            .with_child(world.worker("a", &slot));
        let (_root, end) = start(spec);
        until("a runs", || slot.is_present()).await;
        slot.do_send(Do::Panic);
        until("a runs again", || world.log.count("+a") == 2).await;
        assert!(end.borrow().is_none());
    });
}

#[test]
fn an_aborted_child_that_was_never_polled_reports_once() {
    on_paused_time(async {
        let heard = Rc::new(RefCell::new(Vec::new()));
        let seen = heard.clone();
        let link = Link::new("a", move |reason| seen.borrow_mut().push(reason));
        drop(Child::future(link, async {}));
        until("it is reported", || !heard.borrow().is_empty()).await;
        tokio::time::sleep(SECOND).await;
        assert_eq!(*heard.borrow(), [ExitReason::Killed]);
    });
}
