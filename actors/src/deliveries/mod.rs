//! The parent of all delivery actors, and the tasks that carry answers and timers to them.

mod actor;

pub(crate) use actor::{
    DeliveriesActor, DeliveryDied, deliver_completions, deliver_timers, is_straggler, late_publish,
    tell_all,
};
