//! `acquit check`: says what is wrong with the configuration, and starts nothing.

use std::io::{self, Write};
use std::path::Path;

use serde_json::json;

use super::Exit;
use crate::config::{
    BrokerUrl, ConfigError, ConsumerPlan, HandlerPlan, Order, Plan, Prefetch, Problem, Severity,
};
use crate::telemetry::escape_cut;

/// Checks the configuration at `path`. What it says of a valid one goes to `out`; problems go to
/// `err`, or with `json` everything to `out` as one object.
///
/// # Errors
/// When `out` or `err` cannot be written.
pub fn check(
    path: &Path,
    json: bool,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> io::Result<Exit> {
    let checked = Plan::from_file(path);
    if json {
        writeln!(out, "{}", to_json(path, &checked))?;
    } else {
        match &checked {
            Ok(plan) => {
                tell(&plan.remarks, path, err)?;
                summarise(plan, out)?;
            }
            Err(error) => {
                tell(&error.problems, path, err)?;
                writeln!(err, "{}", count(error.errors(), "error"))?;
            }
        }
    }
    Ok(match checked {
        Ok(_) => Exit::Clean,
        Err(_) => Exit::Usage,
    })
}

fn tell(problems: &[Problem], path: &Path, err: &mut dyn Write) -> io::Result<()> {
    for problem in problems {
        writeln!(err, "{}", problem.line(path))?;
    }
    Ok(())
}

fn summarise(plan: &Plan, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "configuration is valid: {}", show(&plan.file))?;
    match &plan.broker.url {
        BrokerUrl::Memory => writeln!(out, "  broker    memory: (nothing survives the process)")?,
        BrokerUrl::Embedded(dir) => writeln!(out, "  broker    embedded, in {}", show(dir))?,
        BrokerUrl::Amqp(uris) => {
            for uri in uris {
                writeln!(out, "  broker    RabbitMQ, {uri}")?;
            }
        }
    }
    writeln!(
        out,
        "  limits    {}, {} in flight, drain within {}",
        count(plan.limiter.permits as usize, "permit"),
        bytesize::ByteSize(plan.limiter.in_flight_bytes)
            .display()
            .iec(),
        humantime::format_duration(plan.shutdown.drain_timeout)
    )?;
    for feed in &plan.feeds {
        writeln!(out, "  feed      {} into {}", show(&feed.file), feed.queue)?;
    }
    for consumer in &plan.consumers {
        let replies = match &consumer.reply_queue {
            Some(queue) => format!(", results to {queue}"),
            None => String::new(),
        };
        let order = match consumer.order {
            Order::None => String::new(),
            order => format!(", order {}", order.as_str()),
        };
        writeln!(
            out,
            "  consumer  {} reads {} ({}, {}{order}), runs {}{replies}",
            consumer.name,
            consumer.queue,
            count(consumer.partitions as usize, "partition"),
            count(consumer.permits as usize, "permit"),
            handler(&consumer.handler)
        )?;
    }
    if let BrokerUrl::Amqp(_) = plan.broker.url {
        // RabbitMQ pushes: what it may push is here before anybody can refuse it.
        writeln!(
            out,
            "  memory    {} may be here without a permit, each as large as the broker takes (128 MiB, or 16 MiB from 4.0, unless changed)",
            match ahead(plan) {
                1 => "1 delivery".to_owned(),
                ahead => format!("{ahead} deliveries"),
            }
        )?;
    }
    Ok(())
}

/// How many deliveries may be pushed to all consumers together.
fn ahead(plan: &Plan) -> u64 {
    let ahead = |consumer: &ConsumerPlan| {
        let permits = u64::from(consumer.permits);
        let each = match (consumer.order, consumer.prefetch) {
            (Order::Partition, _) => 1,
            (_, Prefetch::Fixed(count)) => u64::from(count),
            (_, Prefetch::Auto) => permits + permits.min(16),
        };
        each * u64::from(consumer.partitions)
    };
    plan.consumers.iter().map(ahead).sum()
}

fn handler(handler: &HandlerPlan) -> String {
    match handler {
        HandlerPlan::Echo => "echo".to_owned(),
        HandlerPlan::Discard => "discard".to_owned(),
        HandlerPlan::Log => "log".to_owned(),
        // Arguments may hold secrets, and what `check` says ends in logs.
        HandlerPlan::Command(command) => match command.argv.split_first() {
            Some((program, [])) => escape_cut(program, 100),
            Some((program, arguments)) => {
                let arguments = count(arguments.len(), "argument");
                format!("{} with {arguments}", escape_cut(program, 100))
            }
            None => String::new(),
        },
    }
}

fn show(path: &Path) -> String {
    escape_cut(&path.to_string_lossy(), 300)
}

fn count(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

fn to_json(path: &Path, checked: &Result<Plan, ConfigError>) -> serde_json::Value {
    let problems = match checked {
        Ok(plan) => &plan.remarks,
        Err(error) => &error.problems,
    };
    let consumers: Vec<_> = checked
        .iter()
        .flat_map(|plan| &plan.consumers)
        .map(|consumer| {
            json!({
                "name": consumer.name,
                "queue": consumer.queue,
                "partitions": consumer.partitions,
                "permits": consumer.permits,
                "order": consumer.order.as_str(),
                "reply-queue": consumer.reply_queue,
                "dead-letter-queue": consumer.dead_letter_queue,
            })
        })
        .collect();
    let errors = problems.iter().filter(|p| p.severity == Severity::Error);
    json!({
        "valid": checked.is_ok(),
        "file": path.to_string_lossy(),
        "errors": errors.count(),
        "problems": problems.iter().map(|p| p.to_json(path)).collect::<Vec<_>>(),
        "consumers": consumers,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Checked {
        exit: Exit,
        out: String,
        err: String,
    }

    /// Checks a text as a file, with the shipped feed's file beside it.
    fn run(text: &str, json: bool) -> Checked {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::create_dir(folder.path().join("examples")).expect("made");
        std::fs::write(folder.path().join("examples/tasks.jsonl"), "").expect("written");
        let path = folder.path().join("config.toml");
        std::fs::write(&path, text).expect("written");
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let exit = check(&path, json, &mut out, &mut err).expect("written");
        let folder = folder.path().to_str().expect("UTF-8");
        let show = |bytes: Vec<u8>| {
            let text = String::from_utf8(bytes).expect("UTF-8");
            text.replace(folder, "DIR")
        };
        Checked {
            exit,
            out: show(out),
            err: show(err),
        }
    }

    #[test]
    fn what_a_rabbitmq_may_push_ahead_is_said() {
        let consumer = |name: &str, more: &str| {
            format!(
                "[[consumer]]\nname = \"{name}\"\nqueue = \"{name}\"\nhandler = \"discard\"\n\
                 on-exhausted = \"drop\"\n{more}\n"
            )
        };
        let text = format!(
            "[broker]\nurl = \"amqp://u:p@h\"\n{}{}{}",
            consumer("a", "permits = 20\npartitions = 2"),
            consumer("b", "prefetch = 100"),
            consumer("c", "order = \"partition\"\npermits = 1")
        );
        let checked = run(&text, false);
        let line = "  memory    173 deliveries may be here without a permit, each as large as";
        assert!(checked.out.contains(line), "{}{}", checked.out, checked.err);
    }

    #[test]
    fn the_shipped_configuration_is_valid_and_summed_up() {
        let checked = run(Plan::default_config(), false);
        assert_eq!(
            checked.out,
            "configuration is valid: DIR/config.toml
  broker    embedded, in DIR/data
  limits    64 permits, 256.0 MiB in flight, drain within 22s
  feed      DIR/examples/tasks.jsonl into words
  consumer  words reads words (4 partitions, 16 permits), runs wc with 1 argument, results to words.results
"
        );
        let line = Plan::default_config()
            .lines()
            .position(|line| line.starts_with("handler-timeout"))
            .expect("shipped")
            + 1;
        assert_eq!(
            checked.err,
            format!(
                "DIR/config.toml:{line}:1: note: consumer[0].handler-timeout: 30s is longer than \
                 shutdown.drain-timeout (22s): on a drain, a handler that needs longer than that \
                 is stopped, and its message runs again\n"
            )
        );
        assert_eq!(checked.exit, Exit::Clean);
    }

    #[test]
    fn a_wrong_one_ends_with_the_code_of_configuration() {
        let checked = run("[limiter]\npermit = 1\n", false);
        assert_eq!(checked.exit, Exit::Usage);
        assert_eq!(checked.out, "");
        assert_eq!(
            checked.err,
            "DIR/config.toml:2:1: error: limiter.permit: unknown key; did you mean `permits`?
DIR/config.toml: warning: consumer: there is no [[consumer]]: nothing is consumed
1 error
"
        );
    }

    #[test]
    fn machines_get_one_object_either_way() {
        let checked = run(Plan::default_config(), true);
        let value: serde_json::Value = serde_json::from_str(&checked.out).expect("JSON");
        assert_eq!(
            (&value["valid"], &value["errors"]),
            (&true.into(), &0.into())
        );
        assert_eq!(value["consumers"][0]["partitions"], 4);

        let checked = run("[limiter]\npermit = 1\n", true);
        let value: serde_json::Value = serde_json::from_str(&checked.out).expect("JSON");
        assert_eq!(
            (&value["valid"], &value["errors"]),
            (&false.into(), &1.into())
        );
        let problem = &value["problems"][0];
        assert_eq!(
            (&problem["line"], &problem["column"]),
            (&2.into(), &1.into())
        );
        assert_eq!(problem["key"], "limiter.permit");
        assert_eq!(problem["nearest"], "permits");
        assert_eq!((checked.err.as_str(), checked.exit), ("", Exit::Usage));
    }
}
