//! Supervision in OTP's words: who starts whom, who hears of an end, and who is started again.
//!
//! actix supplies mailboxes and addresses; it does not supervise panics
//! (`tests/actix_facts.rs`), so links and restarts are made here. `rules` and `core` are pure;
//! `link`, `slot` and `actor` are the shell around them. Nothing here knows what the supervised
//! actors are for.
//!
//! ```text
//! ChildSpec ─factory(Link)─► Child ─ runs ─► exit (return, panic, abort) ─► Link reports, once
//!     ▲                                                                        │
//!     └── SupervisorActor ◄── StartChild · StopChild · KillChild ── SupervisorCore ◄─ ChildExited
//! ```

mod actor;
mod core;
mod handle;
mod link;
mod panic_mode;
mod rules;
mod slot;
mod spec;
mod tree;

pub use self::core::{Action, ChildState, Event, Happened, SupervisorCore};
pub use actor::{Root, StopChildNamed, SupervisorActor, TreeRequest};
pub use handle::{ORDERS_MAX, StartRefused, SupervisorHandle};
pub(crate) use link::panic_text;
pub use link::{Child, Link, StopActor};
pub use panic_mode::{PanicAbort, refuse_panic_abort};
pub use rules::{
    ChildId, ExitReason, Incarnation, Intensity, KILL_TIMEOUT, RESTART_BACKOFF, RestartPolicy,
    StopOrder, StopTimeout, Strategy,
};
pub use slot::Slot;
pub use spec::{ChildSpec, ExitObserver, SupervisorSpec};
pub use tree::{NodeKind, NodeState, TREE_TIMEOUT, TreeNode};
