//! `acquit run`: the main job, from start to drain report.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use acquit_actors::model::{Phase, QueueName};
use acquit_actors::{DrainReport, EngineEnd, Handle, Snapshot, Straggler};

use super::view::{View, summary};
use super::{Exit, RunArgs, whole};
use crate::app;
use crate::config::Plan;
use crate::control::{ControlError, Desk, QueueDepth, Server};
use crate::handlers;
use crate::signal::Signals;
use crate::telemetry::{
    LogFormat, LogLevel, LogObserver, LogSettings, Logging, LoggingError, escape_cut,
};

/// How often the view is drawn and idleness is looked at.
const LOOK: Duration = Duration::from_millis(250);

/// How long the queues may take to be counted for the last summary.
const LAST_DEPTHS: Duration = Duration::from_millis(500);

/// How long the log may take to be written at the end.
const LOG_FLUSH: Duration = Duration::from_millis(500);

/// How long each text of the end may take to be written: whoever reads may read no more.
const WRITE_LIMIT: Duration = Duration::from_millis(250);

/// How long commands over the socket may take to get the answers they wait for.
const LAST_ANSWERS: Duration = Duration::from_millis(500);

/// What of the command line concerns a run.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// The command's own arguments.
    pub run: RunArgs,
    /// The log settings, with the command line's over the plan's.
    pub log: LogSettings,
    /// Whether the command line asked for a log: then there is no live view.
    pub log_asked: bool,
    /// Whether the drain report is wanted as JSON, on standard output.
    pub json: bool,
}

/// Runs a plan to its end.
///
/// # Errors
/// Only when the report cannot be written; all else is an exit code and a text on standard error.
pub async fn run(plan: Plan, options: RunOptions) -> io::Result<Exit> {
    let wanted = !options.log_asked && !options.json;
    let mut view = wanted.then(View::new).filter(View::is_live);
    let logging = match start_log(&options, view.as_ref()) {
        Ok(logging) => logging,
        Err(error) => return fail(Exit::Failure, &error),
    };
    Logging::take_panics();
    let exit = supervise(&plan, &options, view.as_mut()).await;
    // However it ended: no command outlives the process that would have told of it.
    handlers::command::end_all();
    logging.flush_within(LOG_FLUSH);
    exit
}

fn start_log(options: &RunOptions, view: Option<&View>) -> Result<Logging, LoggingError> {
    let Some(view) = view else {
        return Logging::start(options.log);
    };
    // Above a live view only what needs a person is worth a line: dead letters among the decisions.
    let mut settings = options.log;
    settings.level = settings.level.min(LogLevel::Warn);
    Logging::start_to(view.writer(), view.is_colourful(), settings)
}

async fn supervise(
    plan: &Plan,
    options: &RunOptions,
    mut view: Option<&mut View>,
) -> io::Result<Exit> {
    for warning in plan.warnings() {
        tracing::warn!("{}", warning.line(&plan.file));
    }
    if let Err(error) = make_state_dir(&plan.worker.state_dir) {
        let dir = plan.worker.state_dir.display();
        let text = format!("failed to make the folder {dir} of worker.state-dir: {error}");
        return fail_text(Exit::Usage, &text);
    }
    let mut signals = Signals::listen()?;
    let mut server = match Server::bind(&plan.control.socket).await {
        Ok(server) => server,
        Err(error @ ControlError::InUse(_)) => return fail(Exit::Usage, &error),
        Err(error) => return fail(Exit::Failure, &error),
    };
    let broker = match app::open_broker(plan) {
        Ok(broker) => broker,
        Err(error) => return fail(Exit::from(&error), &error),
    };
    // A signal ends the wait for a broker that is not there.
    let readiness = tokio::select! {
        readiness = app::make_ready(plan, &broker) => readiness,
        _ = signals.next() => return Ok(Exit::Clean),
    };
    let readiness = match readiness {
        Ok(readiness) => readiness,
        Err(error) => return fail(Exit::from(&error), &error),
    };
    let told = readiness.prepared.as_ref();
    server.tell_broker(told.map(|prepared| app::broker_told(&prepared.facts)));
    let observer = Arc::new(LogObserver);
    let quota = options.run.max_deliveries;
    let handle = match app::start(plan, &broker, &readiness, observer, quota) {
        Ok(handle) => handle,
        Err(error) => return fail(Exit::from(&error), &error),
    };
    tracing::info!(
        worker = %plan.worker.name,
        broker = broker.transport().name(),
        consumers = plan.consumers.len(),
        "running"
    );
    let desk: Arc<dyn Desk> = broker.desk(plan);
    let watch = watch(&handle, &*desk, view.as_deref_mut(), options.run.until_idle);
    let serve = server.serve(plan.worker.name.clone(), handle.clone(), Arc::clone(&desk));
    let end = tokio::select! {
        ended = watch => ended,
        () = serve => return fail_text(Exit::Failure, "the control socket ended"),
        () = signals.govern(&handle) => {
            eprint("ended at once by a third signal; what was in hand goes back to the broker");
            return Ok(Exit::Stragglers);
        }
    };
    if let Some(view) = view {
        view.finish();
    }
    let to = Telling {
        json: options.json,
        log_only: options.log.format == LogFormat::Json,
    };
    // A job whose input could not be read to its end is not done, however clean the drain.
    let last = handle.last_snapshot();
    let unread = last
        .iter()
        .flat_map(|last| &last.feeds)
        .any(|feed| feed.failed);
    let exit = tell(&end, last.as_ref(), &*desk, to).await;
    let exit = exit.map(|exit| match exit {
        Exit::Clean if unread && options.run.until_idle => Exit::Failure,
        exit => exit,
    });
    server.finish(LAST_ANSWERS).await;
    exit
}

/// Looks at the engine until it has ended.
async fn watch(
    handle: &Handle,
    desk: &dyn Desk,
    mut view: Option<&mut View>,
    until_idle: bool,
) -> EngineEnd {
    let mut idle_looks = 0;
    loop {
        if let Ok(end) = tokio::time::timeout(LOOK, handle.wait()).await {
            return end;
        }
        if view.is_none() && !until_idle {
            continue;
        }
        let Ok(snapshot) = handle.snapshot().await else {
            continue;
        };
        // A disk that hangs must not keep the engine's end from being noticed.
        let depths = tokio::time::timeout(LOOK, desk.depths()).await;
        let depths = depths.unwrap_or_default();
        if let Some(view) = &mut view {
            view.update(&snapshot, &depths);
        }
        idle_looks = if is_idle(&snapshot, &depths) {
            idle_looks + 1
        } else {
            0
        };
        // Twice in a row: between two looks nothing was in hand and nothing came.
        if until_idle && idle_looks >= 2 && snapshot.phase == Phase::Running {
            let _ = handle.drain("idle").await;
        }
    }
}

/// Nothing is in hand, nothing waits in a consumed queue, and no feed goes on.
fn is_idle(snapshot: &Snapshot, depths: &BTreeMap<QueueName, QueueDepth>) -> bool {
    let consumed = snapshot.consumers.iter().all(|consumer| {
        let depth = depths.get(&consumer.queue);
        consumer.counts.in_hand == 0
            && depth.is_some_and(|d| d.ready == 0 && d.delayed == 0 && d.leased == 0)
    });
    consumed && snapshot.feeds.iter().all(|feed| feed.ended || feed.failed)
}

/// To whom the end is told.
#[derive(Debug, Clone, Copy)]
struct Telling {
    /// A program reads standard output.
    json: bool,
    /// A program reads standard error: it holds the log and nothing else.
    log_only: bool,
}

async fn tell(
    end: &EngineEnd,
    last: Option<&Snapshot>,
    desk: &dyn Desk,
    to: Telling,
) -> io::Result<Exit> {
    match end {
        EngineEnd::Drained(report) => {
            tell_report(report, to)?;
            if let (Some(snapshot), false) = (last, to.json || to.log_only) {
                let depths = tokio::time::timeout(LAST_DEPTHS, desk.depths()).await;
                eprint(&summary(snapshot, &depths.unwrap_or_default()));
            }
        }
        EngineEnd::GaveUp(why) => {
            eprint(&format!(
                "acquit: a supervisor gave up: {}",
                escape_cut(why, 1000)
            ));
        }
        other => eprint(&format!("acquit: {other:?}")),
    }
    Ok(Exit::from_engine(end.exit_code()))
}

fn tell_report(report: &DrainReport, to: Telling) -> io::Result<()> {
    if to.json {
        let line = serde_json::to_string(report)?;
        write_within(io::stdout(), format!("{line}\n"), WRITE_LIMIT);
        Ok(())
    } else {
        tracing::info!(
            clean = report.clean,
            in_hand = report.in_hand,
            released = report.released,
            stragglers = report.stragglers_total,
            took_ms = report.took_ms,
            "drained"
        );
        if to.log_only {
            report.stragglers.iter().for_each(log_straggler);
        } else {
            eprint(&report.to_string());
        }
        Ok(())
    }
}

fn log_straggler(straggler: &Straggler) {
    tracing::warn!(
        delivery = straggler.delivery.0,
        consumer = straggler.consumer.as_str(),
        partition = straggler.partition.0,
        id = straggler.id.as_ref().map(|id| escape_cut(id.as_str(), 128)),
        state = straggler.state,
        age_ms = straggler.age_ms,
        "straggler"
    );
}

fn make_state_dir(dir: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
}

fn fail(exit: Exit, error: &dyn std::error::Error) -> io::Result<Exit> {
    fail_text(exit, &whole(error))
}

fn fail_text(exit: Exit, text: &str) -> io::Result<Exit> {
    eprint(&format!("acquit: {text}"));
    Ok(exit)
}

/// Writes to standard error. One that nobody reads any more must not change how the run ends, and
/// one that is full must not keep it from ending.
fn eprint(text: &str) {
    write_within(io::stderr(), format!("{text}\n"), WRITE_LIMIT);
}

/// Writes in a thread of its own, and stops waiting for it after `limit`.
fn write_within(mut to: impl Write + Send + 'static, text: String, limit: Duration) {
    let (done, is_done) = std::sync::mpsc::sync_channel(1);
    let write = move || {
        let written = to.write_all(text.as_bytes()).and_then(|()| to.flush());
        let _ = done.send(written.is_ok());
    };
    if std::thread::Builder::new().spawn(write).is_ok() {
        let _ = is_done.recv_timeout(limit);
    }
}
