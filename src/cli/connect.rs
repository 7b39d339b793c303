//! `acquit check --connect`: asks the broker of a valid configuration.

use std::io::{self, Write};

use serde_json::json;

use super::Exit;
use super::view::broker_lines;
use crate::app::{amqp_options, broker_told, consumer_limits};
use crate::config::Plan;
use crate::transport::amqp::AmqpOptions;
use crate::transport::amqp::topology::{
    Change, ConsumerLimits, Report, Role, Task, perform, warnings,
};

/// Connects to the configured broker and says what it is, what is missing and what does not fit;
/// changes nothing. A broker in the process has nothing to connect to.
///
/// | exit | when |
/// |---|---|
/// | 0 | a process could start here; warnings may have been said |
/// | 10 | something exists otherwise than the configuration wants it |
/// | 11 | a queue is missing, and `broker.declare` is off |
/// | 14 | no connection, handshake or credentials |
/// | 15 | a permission is missing |
///
/// # Errors
/// When `out` or `err` cannot be written.
pub async fn check_connect(
    plan: &Plan,
    json: bool,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> io::Result<Exit> {
    match amqp_options(plan) {
        Some(options) => show_connect(&options, &consumer_limits(plan), json, out, err).await,
        None => {
            let text = "nothing to connect to: the broker is part of the process";
            if json {
                writeln!(out, "{}", json!({ "connected": false, "why": text }))?;
            } else {
                writeln!(out, "{text}")?;
            }
            Ok(Exit::Clean)
        }
    }
}

/// Asks a RabbitMQ; see [`check_connect`].
///
/// # Errors
/// When `out` or `err` cannot be written.
pub async fn show_connect(
    options: &AmqpOptions,
    limits: &[ConsumerLimits],
    json: bool,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> io::Result<Exit> {
    let report = match perform(options, Task::Check).await {
        Ok(report) => report,
        Err(error) => {
            if json {
                let value = json!({ "connected": false, "why": error.to_string() });
                writeln!(out, "{value}")?;
            } else {
                writeln!(err, "acquit: check: {error}")?;
            }
            return Ok(Exit::from_engine(error.exit_code()));
        }
    };
    let broker = broker_told(&report.facts);
    let warnings = warnings(options, limits, &report.facts);
    let texts = |refused: bool| -> Vec<String> {
        let changes = report.changes.iter();
        let changes = changes.filter(|change| change.is_refused() == refused);
        changes.map(ToString::to_string).collect()
    };
    let (differs, missing) = (texts(true), texts(false));
    let rights = report.missing_rights.iter().map(ToString::to_string);
    let rights: Vec<String> = rights.collect();
    if json {
        let value = json!({
            "connected": true,
            "broker": broker,
            "missing": missing,
            "differs": differs,
            "missing-rights": rights,
            "warnings": warnings,
            "arguments-compared": report.is_compared,
            "declare": options.declare,
        });
        writeln!(out, "{value}")?;
        return Ok(exit(&report, options.declare));
    }
    write!(out, "{}", broker_lines(&broker))?;
    let lead = if options.declare {
        "a start would"
    } else {
        "missing: would"
    };
    for line in missing {
        writeln!(out, "{lead} {line}")?;
    }
    for line in differs {
        writeln!(err, "otherwise: {line}")?;
    }
    for line in rights {
        writeln!(err, "no permission: {line}")?;
    }
    for line in warnings {
        writeln!(err, "warning: {line}")?;
    }
    Ok(exit(&report, options.declare))
}

/// As a start would end: without `declare` a missing queue ends it, a missing rung does not.
fn exit(report: &Report, declare: bool) -> Exit {
    let is_needed = |change: &Change| match change {
        Change::DeclareQueue(queue) => queue.role != Role::Rung,
        _ => false,
    };
    if report.changes.iter().any(Change::is_refused) {
        Exit::DeclarationRefused
    } else if !declare && report.changes.iter().any(is_needed) {
        Exit::SubscriptionFailed
    } else if report.missing_rights.is_empty() {
        Exit::Clean
    } else {
        Exit::NoPermission
    }
}
