//! Which rights a configuration needs, and probes that find out whether they are there without
//! touching a message.
//!
//! A passive declare needs no right at all on RabbitMQ, so it says nothing about them.
//!
//! - Read: a subscription with a priority that is no number. The broker checks the right first and
//!   the argument afterwards, so it refuses the subscription either way, and says which.
//! - Write: a mandatory publish to the default exchange by a key that no queue has. It comes back.

use std::time::Duration;

use acquit_actors::model::QueueName;
use lapin::options::{
    BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Connection};

use super::super::error::{AmqpError, Right};
use super::apply::{bounded, channel};
use super::plan::{Desired, Role};

/// What a user must be allowed to do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Needs {
    /// Consume these.
    pub read: Vec<QueueName>,
    /// Publish to the default exchange: replies, dead letters and retry copies go by it.
    pub write: bool,
}

/// Gives the rights that a configuration needs while it runs; to declare is another.
pub fn needs(wanted: &Desired) -> Needs {
    let work = wanted
        .queues
        .iter()
        .filter(|queue| queue.role == Role::Work);
    Needs {
        read: work.map(|queue| queue.name.clone()).collect(),
        write: wanted.publishes,
    }
}

/// Finds out whether a queue may be read. Other refusals of the broker pass: they are not about
/// the right, and the subscription itself will tell them.
pub(super) async fn may_read(
    connection: &Connection,
    queue: &QueueName,
    deadline: Duration,
) -> Result<(), AmqpError> {
    let channel = channel(connection, deadline).await?;
    // A broker that took the subscription would push one message at most before the channel ends.
    let qos = channel.basic_qos(1, BasicQosOptions::default());
    bounded("basic.qos", deadline, qos).await?;
    let mut arguments = FieldTable::default();
    let priority = AMQPValue::LongString("probe".into());
    arguments.insert("x-priority".into(), priority);
    let consume = channel.basic_consume(
        queue.as_str().into(),
        "".into(),
        BasicConsumeOptions::default(),
        arguments,
    );
    let answer = bounded("basic.consume", deadline, consume).await;
    match answer.map_err(|error| error.needing(Right::Read)) {
        Ok(_)
        | Err(
            AmqpError::Invalid { .. }
            | AmqpError::InExclusiveUse { .. }
            | AmqpError::Locked { .. }
            | AmqpError::Protocol { .. },
        ) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Finds out whether the default exchange may be written to.
pub(super) async fn may_write(
    connection: &Connection,
    deadline: Duration,
) -> Result<(), AmqpError> {
    let channel = channel(connection, deadline).await?;
    let select = channel.confirm_select(ConfirmSelectOptions::default());
    bounded("confirm.select", deadline, select).await?;
    let nowhere = format!("acquit.probe.{:032x}", rand::random::<u128>());
    let publish = channel.basic_publish(
        "".into(),
        nowhere.into(),
        BasicPublishOptions {
            mandatory: true,
            ..BasicPublishOptions::default()
        },
        &[],
        BasicProperties::default(),
    );
    let confirm = bounded("basic.publish", deadline, publish).await?;
    bounded("the confirm of a publish", deadline, confirm).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::super::options::{AmqpConsumer, AmqpOptions};
    use super::super::super::uri::AmqpUri;
    use super::super::plan::desired;
    use super::*;

    #[test]
    fn only_who_publishes_needs_to_write() {
        let mut options = AmqpOptions::new(AmqpUri::local(1));
        options.consumers.push(AmqpConsumer::new("c", "q"));
        let found = needs(&desired(&options).expect("valid"));
        assert_eq!(found.read, [QueueName::from("q")]);
        assert!(!found.write);
        options.consumers[0].ladder = vec![Duration::from_secs(1)];
        assert!(needs(&desired(&options).expect("valid")).write);
        options.consumers[0].ladder.clear();
        options.consumers[0].reply_queue = Some("r".into());
        let found = needs(&desired(&options).expect("valid"));
        assert!(found.write);
        assert_eq!(found.read.len(), 1);
    }
}
