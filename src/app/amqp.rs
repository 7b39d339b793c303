//! stub
use crate::config::Plan;
use crate::transport::amqp::AmqpOptions;

/// stub
pub fn amqp_options(_plan: &Plan) -> Option<AmqpOptions> {
    None
}
