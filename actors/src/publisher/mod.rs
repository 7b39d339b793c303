//! The publisher: replies, retry copies and dead letters on their way out.

mod actor;

pub(crate) use actor::{PublishRequest, Published, PublisherActor};
