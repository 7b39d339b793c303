//! `acquit topology`: what stands at the broker against what the configuration wants.

use std::io::{self, Write};

use serde_json::{Map, Value, json};

use super::{Exit, TopologyAction};
use crate::app::amqp_options;
use crate::config::{BrokerUrl, Plan};
use crate::transport::amqp::AmqpOptions;
use crate::transport::amqp::topology::{Argument, Change, Report, Task, TopologyError, perform};

/// Performs an action with the configured broker. What was found goes to `out`, what went wrong to
/// `err`.
///
/// | exit | when |
/// |---|---|
/// | 0 | planned, applied, or nothing differs |
/// | 1 | `check`: something is missing or exists otherwise |
/// | 2 | the broker has no topology to apply, or the configuration is one that none can hold |
/// | 10 | `plan`, `apply`: something exists otherwise; nothing was changed |
/// | 14 | no connection, handshake or credentials |
/// | 15 | the broker gave no permission; `check`: a permission is missing that consuming needs |
///
/// # Errors
/// When `out` or `err` cannot be written.
pub async fn topology(
    plan: &Plan,
    action: TopologyAction,
    json: bool,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> io::Result<Exit> {
    let Some(options) = amqp_options(plan) else {
        let broker = match &plan.broker.url {
            BrokerUrl::Memory => "memory:",
            BrokerUrl::Embedded(_) => "embedded",
            BrokerUrl::Amqp(_) => "RabbitMQ",
        };
        writeln!(
            err,
            "acquit: topology is about a RabbitMQ, and `broker.url` is {broker}: its queues are made when they are needed"
        )?;
        return Ok(Exit::Usage);
    };
    show_topology(&options, action, json, out, err).await
}

/// Performs an action with a RabbitMQ; see [`topology`].
///
/// # Errors
/// When `out` or `err` cannot be written.
pub async fn show_topology(
    options: &AmqpOptions,
    action: TopologyAction,
    json: bool,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> io::Result<Exit> {
    let task = match action {
        TopologyAction::Plan => Task::Plan,
        TopologyAction::Apply => Task::Apply,
        TopologyAction::Check => Task::Check,
    };
    match perform(options, task).await {
        Ok(report) => {
            if json {
                writeln!(out, "{}", to_json(&report, action))?;
            } else {
                tell(&report, action, out)?;
            }
            Ok(exit(&report, action))
        }
        Err(error) => {
            writeln!(err, "acquit: topology: {error}")?;
            Ok(exit_of(&error))
        }
    }
}

fn exit(report: &Report, action: TopologyAction) -> Exit {
    let is_refused = report.changes.iter().any(Change::is_refused);
    match action {
        TopologyAction::Check if !report.changes.is_empty() => Exit::Failure,
        TopologyAction::Check if !report.missing_rights.is_empty() => Exit::NoPermission,
        TopologyAction::Plan | TopologyAction::Apply if is_refused => Exit::DeclarationRefused,
        _ => Exit::Clean,
    }
}

fn exit_of(error: &TopologyError) -> Exit {
    Exit::from_engine(error.exit_code())
}

fn tell(report: &Report, action: TopologyAction, out: &mut dyn Write) -> io::Result<()> {
    for change in &report.changes {
        let lead = match action {
            _ if change.is_refused() => "refused: ",
            TopologyAction::Plan => "would ",
            TopologyAction::Apply => "done: ",
            TopologyAction::Check => "missing: ",
        };
        writeln!(out, "{lead}{change}")?;
    }
    for (consumer, error) in &report.without_ladder {
        writeln!(
            out,
            "no retry ladder for consumer {consumer}: {error}; its retries will wait in the process"
        )?;
    }
    for error in &report.missing_rights {
        writeln!(out, "missing: {error}")?;
    }
    let refused = report.changes.iter().filter(|c| c.is_refused()).count();
    let others = report.changes.len() - refused;
    let queues = count(report.queues, "queue");
    match (action, refused, others) {
        (_, 0, 0) => writeln!(out, "nothing to do: {queues} as wanted")?,
        (TopologyAction::Plan, ..) => {
            writeln!(
                out,
                "{} to make, {refused} refused, of {queues} wanted",
                others
            )?;
        }
        (TopologyAction::Apply, 0, _) => writeln!(out, "{} made", count(others, "thing"))?,
        (TopologyAction::Apply, ..) => writeln!(
            out,
            "nothing was changed: {} otherwise at the broker",
            count(refused, "thing")
        )?,
        (TopologyAction::Check, ..) => {
            writeln!(
                out,
                "{others} missing, {refused} otherwise, of {queues} wanted"
            )?;
        }
    }
    if !report.is_compared {
        writeln!(
            out,
            "arguments of existing queues: unknown without broker.management"
        )?;
    }
    Ok(())
}

fn count(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

fn to_json(report: &Report, action: TopologyAction) -> Value {
    let (refused, changes): (Vec<_>, Vec<_>) = report
        .changes
        .iter()
        .partition(|change| change.is_refused());
    let shown = |changes: Vec<&Change>| -> Vec<Value> { changes.into_iter().map(change).collect() };
    let ladders = report.without_ladder.iter();
    json!({
        "made": action == TopologyAction::Apply && !changes.is_empty(),
        "changes": shown(changes),
        "refused": shown(refused),
        "queues": report.queues,
        "missing-rights": report.missing_rights.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "without-ladder": ladders
            .map(|(consumer, error)| (consumer.to_string(), error.to_string().into()))
            .collect::<Map<_, _>>(),
        "arguments-compared": report.is_compared,
        "broker-version": report.facts.version.to_string(),
    })
}

fn change(change: &Change) -> Value {
    match change {
        Change::DeclareQueue(queue) => json!({
            "kind": "queue",
            "name": queue.name,
            "type": queue.queue_type.as_str(),
            "role": queue.role.as_str(),
            "consumer": queue.consumer,
            "arguments": queue
                .arguments
                .iter()
                .map(|(name, value)| ((*name).to_owned(), argument(value)))
                .collect::<Map<_, _>>(),
        }),
        Change::DeclareExchange(exchange) => json!({
            "kind": "exchange",
            "name": exchange.name,
            "type": exchange.kind,
        }),
        Change::Bind(binding) => json!({
            "kind": "binding",
            "exchange": binding.exchange,
            "queue": binding.queue,
            "key": binding.key,
        }),
        Change::Differs(mismatch) => json!({
            "kind": mismatch.object.as_ref().map(|object| object.kind.as_str()),
            "name": mismatch.object.as_ref().map(|object| &object.name),
            "argument": mismatch.argument,
            "wanted": mismatch.wanted,
            "existing": mismatch.existing,
        }),
    }
}

fn argument(argument: &Argument) -> Value {
    match argument {
        Argument::Text(text) => json!(text),
        Argument::Number(number) => json!(number),
        Argument::Flag(flag) => json!(flag),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn other_brokers_have_no_topology() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("config.toml");
        std::fs::write(&path, "[broker]\nurl = \"memory:\"\n").expect("written");
        let plan = Plan::from_file_alone(&path).expect("valid");
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let action = TopologyAction::Plan;
        let exit = topology(&plan, action, false, &mut out, &mut err).await;
        assert_eq!(exit.expect("written"), Exit::Usage);
        assert!(out.is_empty());
        let err = String::from_utf8(err).expect("UTF-8");
        assert!(err.contains("`broker.url` is memory:"), "{err}");
    }
}
