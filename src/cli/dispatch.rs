//! From the command line to the command.

use std::io::{self, Write};

use super::commands::{self, Failure};
use super::run::{RunOptions, run};
use super::{Args, Command, Exit, check};
use crate::config::Plan;
use crate::control::Request;

/// Performs a command line; what it says goes to standard output and standard error.
///
/// # Errors
/// When they cannot be written.
pub async fn dispatch(args: Args) -> io::Result<Exit> {
    let action = args.action();
    if let Command::Check(arguments) = &action {
        let (out, err) = (&mut io::stdout(), &mut io::stderr());
        let exit = check(&args.config, args.json, out, err)?;
        if let (Exit::Clean, true, Ok(plan)) =
            (exit, arguments.connect, Plan::from_file(&args.config))
        {
            return super::check_connect(&plan, args.json, out, err).await;
        }
        return Ok(exit);
    }
    if let Command::Bench(bench) = &action {
        return super::bench::bench(bench).await;
    }
    let plan = match &action {
        Command::Run(_) => Plan::from_file(&args.config),
        _ => Plan::from_file_alone(&args.config),
    };
    let plan = match plan {
        Ok(plan) => plan,
        Err(error) => {
            writeln!(io::stderr().lock(), "{error}")?;
            return Ok(Exit::Usage);
        }
    };
    if let Command::Run(arguments) = action {
        let options = RunOptions {
            run: arguments,
            log: crate::telemetry::LogSettings {
                format: args.log_format.unwrap_or(plan.log.format),
                level: args.log_level.unwrap_or(plan.log.level),
                ..plan.log
            },
            log_asked: args.log_format.is_some() || args.log_level.is_some(),
            json: args.json,
        };
        return run(plan, options).await;
    }
    if let Command::Topology(topology) = &action {
        let (out, err) = (&mut io::stdout(), &mut io::stderr());
        return super::topology(&plan, topology.action, args.json, out, err).await;
    }
    if let Command::Dlq(dlq) = &action {
        let (out, err) = (&mut io::stdout(), &mut io::stderr());
        return super::dlq(&plan, &dlq.action, args.json, out, err).await;
    }
    match command(&plan, action, args.json).await {
        Ok(exit) => Ok(exit),
        Err(Failure { exit, text }) if text.is_empty() => Ok(exit),
        Err(Failure { exit, text }) => {
            writeln!(io::stderr().lock(), "acquit: {text}")?;
            Ok(exit)
        }
    }
}

async fn command(plan: &Plan, action: Command, json: bool) -> Result<Exit, Failure> {
    match action {
        Command::Run(_)
        | Command::Check(_)
        | Command::Bench(_)
        | Command::Dlq(_)
        | Command::Topology(_) => Ok(Exit::Clean),
        Command::Publish(args) => commands::publish(plan, &args, json).await,
        Command::Get(args) => commands::get(plan, &args).await,
        Command::Status => commands::status(plan, json).await,
        Command::Drain(args) => commands::drain(plan, args.wait, json).await,
        Command::Inflight => commands::inflight(plan, json).await,
        Command::Pause(args) => {
            let reason = "acquit pause".to_owned();
            let request = Request::Pause {
                consumer: args.consumer,
                partition: None,
                reason,
            };
            commands::order(plan, &request, "paused").await
        }
        Command::Resume(args) => {
            let request = Request::Resume {
                consumer: args.consumer,
                partition: None,
            };
            commands::order(plan, &request, "resumed").await
        }
        Command::Scale(args) => {
            let request = Request::Scale {
                consumer: args.consumer,
                permits: args.permits,
            };
            commands::order(plan, &request, "scaled").await
        }
        Command::Cancel(args) => {
            let request = Request::Cancel {
                delivery: args.id,
                release: false,
            };
            commands::order(plan, &request, "cancelled").await
        }
    }
}
