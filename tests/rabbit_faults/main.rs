//! What happens to work when RabbitMQ, the network or an operator does what they do.
//!
//! Each test names what must hold, and ends with the same questions: nothing lost, nothing run or answered twice
//! without a counter that says why, the counts balanced, nothing left unacknowledged, and no complaint of the broker
//! about a delivery tag.

#[path = "../broker_kit/mod.rs"]
mod broker_kit;
#[allow(dead_code, reason = "shared with other tests")]
#[path = "../rabbit/place.rs"]
mod place;

mod alarms;
mod channels;
mod confirms;
mod foreign;
mod messages;
mod network;
mod own_node;
mod policies;
mod reports;
mod restarts;
mod rights;
mod silences;
mod site;
mod slow;
mod tls;
