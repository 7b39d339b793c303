//! The story of one delivery handed to a command.

use std::ffi::CString;
use std::future::{Future, poll_fn};
use std::io;
use std::ops::ControlFlow;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use acquit_actors::ports::{DeliveryContext, DeliveryHandler, HandlerOutcome};
use bytes::Bytes;
use rustix::process::Signal;
use tokio::time::{Sleep, sleep};

use crate::handlers::HandlerError;

use super::child::{Child, Ended};
use super::exit_table::ExitVerdict;
use super::metadata::{self, DeadlineAt, HeaderVariable};
use super::pipes::{Reader, Writer, pipe};
use super::resolve::{refuse_placeholders, resolve};
use super::spawn::{ChildEnds, Program};
use super::spec::CommandSpec;
use super::stderr::Stderr;

/// `PATH` of commands, unless our own is passed on.
const SAFE_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// How long the pipes of a command that has ended may stay open: what it left behind may hold them.
const LINGER: Duration = Duration::from_millis(100);
/// How long a command is waited for after SIGKILL; then the reaper has it.
const KILL_WAIT: Duration = Duration::from_secs(1);
/// SIGKILL goes out this long before the grace is over, so that the attempt ends within it.
const KILL_EARLY_MAX: Duration = Duration::from_millis(100);

/// Runs a command for each delivery.
///
/// | | |
/// |---|---|
/// | standard input | the body, byte by byte, then the end; a command need not read it |
/// | descriptor 3 | one line of JSON, then the end; a command need not read it |
/// | environment | `PATH`, what the spec allows of ours, `DELIVERY_*`; nothing else |
/// | standard output | the result, byte by byte (a trailing line end stays; none is an empty result) |
/// | standard error | each line to our log, the end of it the error's text |
/// | exit code | the word, by the [`ExitTable`](super::ExitTable) |
/// | killed by a signal | Gone |
/// | cannot be started | Unavailable |
/// | more output than the limit | its group is killed; Failed, since the next attempt may write less |
///
/// It is the leader of its own process group. Told to stop, it gets SIGTERM and, after the grace,
/// SIGKILL, both to the whole group. When it has ended, the group is killed: a delivery leaves
/// nothing behind, and what left the group (`setsid`) is not waited for. A dropped attempt kills
/// the group at once.
#[derive(Debug)]
pub struct CommandHandler(Arc<Prepared>);

/// What is the same for each delivery.
#[derive(Debug)]
struct Prepared {
    spec: CommandSpec,
    program: Program,
    headers: Vec<HeaderVariable>,
}

impl CommandHandler {
    /// Prepares a command: the program is looked for, and the environment it gets is read, now.
    ///
    /// # Errors
    /// Any [`HandlerError`]: there is no such program, it is no program, or a shell would get
    /// message content as code.
    pub fn new(spec: CommandSpec) -> Result<Self, HandlerError> {
        let first = spec.argv.first().filter(|program| !program.is_empty());
        let first = first.ok_or(HandlerError::EmptyCommand)?;
        let argv = arguments(&spec.argv)?;
        refuse_placeholders(&spec.argv)?;
        let base = base_directory(&spec)?;
        let (env, path) = base_environment(&spec)?;
        let found = resolve(first, &base, &path)?;
        let found = c_string(found.into_os_string().into_vec(), 0)?;
        let headers = HeaderVariable::all(&spec.headers)?;
        let cwd = spec.cwd.as_ref().map(|_| base);
        Ok(Self(Arc::new(Prepared {
            program: Program::new(found, argv, env, cwd),
            headers,
            spec,
        })))
    }
}

impl DeliveryHandler for CommandHandler {
    fn handle(
        &self,
        context: DeliveryContext,
    ) -> impl Future<Output = HandlerOutcome> + Send + 'static {
        run(self.0.clone(), context)
    }

    fn abort_grace(&self) -> Duration {
        self.0.spec.abort_grace
    }
}

fn arguments(argv: &[String]) -> Result<Vec<CString>, HandlerError> {
    let items = argv.iter().enumerate();
    items
        .map(|(index, item)| c_string(item.as_bytes().to_vec(), index))
        .collect()
}

fn c_string(bytes: Vec<u8>, index: usize) -> Result<CString, HandlerError> {
    CString::new(bytes).map_err(|_| HandlerError::NulInArgument { index })
}

fn base_directory(spec: &CommandSpec) -> Result<std::path::PathBuf, HandlerError> {
    let wanted = spec.cwd.as_deref().unwrap_or(std::path::Path::new("."));
    let bad = |source| HandlerError::BadDirectory {
        path: wanted.to_owned(),
        source,
    };
    let found = wanted.canonicalize().map_err(bad)?;
    if !found.is_dir() {
        return Err(bad(io::ErrorKind::NotADirectory.into()));
    }
    Ok(found)
}

/// Makes the part of the environment that is the same for each delivery, and its `PATH`.
fn base_environment(spec: &CommandSpec) -> Result<(Vec<CString>, String), HandlerError> {
    let mut path = SAFE_PATH.to_owned();
    let mut env = Vec::with_capacity(spec.env.len() + 1);
    for name in &spec.env {
        let is_bad = name.is_empty() || name.contains(['=', '\0']) || name.starts_with("DELIVERY_");
        if is_bad {
            return Err(HandlerError::BadVariable { name: name.clone() });
        }
        let Some(value) = std::env::var_os(name) else {
            continue;
        };
        if name == "PATH" {
            path = value.to_string_lossy().into_owned();
            continue;
        }
        let variable = [name.as_bytes(), b"=", value.as_bytes()].concat();
        // A variable that we got from the kernel has no NUL.
        env.extend(CString::new(variable));
    }
    env.extend(CString::new(format!("PATH={path}")));
    Ok((env, path))
}

/// Runs the command for one delivery.
///
/// # Cancel safety
/// Dropped midway, it kills the command's group; what the command has done by then is done.
async fn run(prepared: Arc<Prepared>, context: DeliveryContext) -> HandlerOutcome {
    if context.is_cancelled() {
        return HandlerOutcome::Unavailable {
            error: "told to stop before the command was started".to_owned(),
        };
    }
    let mut attempt = match Attempt::start(&prepared, &context) {
        Ok(attempt) => attempt,
        Err(error) => {
            let program = prepared.program.path().display();
            return HandlerOutcome::Unavailable {
                error: format!("cannot start the command {program}: {error}"),
            };
        }
    };
    let mut cancelled = pin!(context.cancelled());
    loop {
        match poll_fn(|cx| attempt.poll_event(cx, cancelled.as_mut())).await {
            Event::Cancelled => attempt.terminate(),
            Event::TimePassed if attempt.stage == Stage::Terminating => attempt.kill(),
            Event::TooLarge => attempt.kill(),
            Event::Ended => attempt.linger(),
            Event::TimePassed | Event::Closed => return attempt.conclude(),
        }
    }
}

/// One running command with its pipes.
struct Attempt<'a> {
    spec: &'a CommandSpec,
    child: Child,
    stdin: Writer,
    metadata: Writer,
    stdout: Reader,
    stderr: Reader,
    result: Vec<u8>,
    errors: Stderr,
    is_cancelled: bool,
    stage: Stage,
    timer: Option<Pin<Box<Sleep>>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Running,
    /// SIGTERM was sent; the timer is the grace.
    Terminating,
    /// SIGKILL was sent; the timer is the patience after it.
    Killed,
    /// It has ended; the timer is the patience with its pipes.
    Lingering,
}

/// What happened to the running command.
enum Event {
    /// The runtime says stop.
    Cancelled,
    /// The timer of the stage has passed.
    TimePassed,
    /// It has written more than a result may have.
    TooLarge,
    /// It has ended, and a pipe is still open.
    Ended,
    /// It has ended, and its pipes are closed.
    Closed,
}

impl<'a> Attempt<'a> {
    /// Starts the command. What can fail for want of descriptors comes before it.
    fn start(prepared: &'a Prepared, context: &DeliveryContext) -> io::Result<Self> {
        let delivery = context.delivery_arc();
        let deadline = DeadlineAt::of(context);
        let json = metadata::json(delivery, deadline);
        let variables = metadata::variables(delivery, deadline, &prepared.headers);
        let (stdin_child, stdin) = pipe()?;
        let (stdout, stdout_child) = pipe()?;
        let (stderr, stderr_child) = pipe()?;
        let (metadata_child, metadata) = pipe()?;
        let stdin = Writer::fill(stdin, delivery.body.clone())?;
        let metadata = Writer::fill(metadata, Bytes::from(json))?;
        let (stdout, stderr) = (Reader::new(stdout)?, Reader::new(stderr)?);
        let ends = ChildEnds {
            stdin: stdin_child,
            stdout: stdout_child,
            stderr: stderr_child,
            metadata: metadata_child,
        };
        let mut child = Child::new(prepared.program.start(ends, &variables)?);
        child.watch()?;
        Ok(Self {
            spec: &prepared.spec,
            child,
            stdin,
            metadata,
            stdout,
            stderr,
            result: Vec::new(),
            errors: Stderr::new(delivery, prepared.spec.stderr_tail),
            is_cancelled: false,
            stage: Stage::Running,
            timer: None,
        })
    }

    fn poll_event(
        &mut self,
        cx: &mut Context<'_>,
        cancelled: Pin<&mut impl Future<Output = ()>>,
    ) -> Poll<Event> {
        // First what must not wait behind a command that writes without end.
        if !self.is_cancelled && cancelled.poll(cx).is_ready() {
            self.is_cancelled = true;
            return Poll::Ready(Event::Cancelled);
        }
        if let Some(timer) = &mut self.timer
            && timer.as_mut().poll(cx).is_ready()
        {
            self.timer = None;
            return Poll::Ready(Event::TimePassed);
        }
        // The end is looked at before the pipes, so that all it wrote is there to be read.
        let was_lingering = self.stage == Stage::Lingering;
        let has_ended = was_lingering || self.child.poll_ended(cx).is_ready();
        self.poll_pipes(cx);
        if self.is_too_large() && !matches!(self.stage, Stage::Killed | Stage::Lingering) {
            return Poll::Ready(Event::TooLarge);
        }
        if has_ended && self.stdout.is_closed() && self.stderr.is_closed() {
            return Poll::Ready(Event::Closed);
        }
        if has_ended && !was_lingering {
            return Poll::Ready(Event::Ended);
        }
        Poll::Pending
    }

    fn poll_pipes(&mut self, cx: &mut Context<'_>) {
        let limit = self.spec.stdout_limit;
        let (result, errors) = (&mut self.result, &mut self.errors);
        // Each of them keeps its own word of what is left to do, and wakes us for it.
        let _ = self.stdin.poll_write(cx);
        let _ = self.metadata.poll_write(cx);
        let _ = self
            .stdout
            .poll_read(cx, |bytes| take_result(result, bytes, limit));
        let _ = self.stderr.poll_read(cx, |bytes| {
            errors.push(bytes);
            ControlFlow::Continue(())
        });
    }

    fn is_too_large(&self) -> bool {
        self.result.len() > self.spec.stdout_limit
    }

    fn terminate(&mut self) {
        if self.stage != Stage::Running {
            return;
        }
        let grace = self.spec.abort_grace;
        if grace.is_zero() {
            return self.kill();
        }
        self.child.signal_group(Signal::TERM);
        let early = KILL_EARLY_MAX.min(grace / 10);
        self.enter(Stage::Terminating, grace - early);
    }

    fn kill(&mut self) {
        self.child.signal_group(Signal::KILL);
        self.stdin.close();
        self.metadata.close();
        self.stdout.close();
        self.enter(Stage::Killed, KILL_WAIT);
    }

    fn linger(&mut self) {
        self.stdin.close();
        self.metadata.close();
        self.enter(Stage::Lingering, LINGER);
    }

    fn enter(&mut self, stage: Stage, time: Duration) {
        self.stage = stage;
        self.timer = Some(Box::pin(sleep(time)));
    }

    fn conclude(mut self) -> HandlerOutcome {
        // While the command is not reaped its group's number is its own.
        self.child.signal_group(Signal::KILL);
        self.read_rest();
        let ended = self.child.reap();
        let errors = self.errors.finish();
        if self.result.len() > self.spec.stdout_limit {
            let limit = self.spec.stdout_limit;
            return HandlerOutcome::Failed {
                error: with_tail(format!("result larger than {limit} bytes"), &errors),
            };
        }
        let told = if self.is_cancelled {
            ", told to stop"
        } else {
            ""
        };
        match ended {
            Some(Ended::Code(code)) => {
                let error = with_tail(format!("exit code {code}{told}"), &errors);
                word(self.spec.exit_table.verdict(code), self.result, error)
            }
            Some(Ended::Signal(signal)) => HandlerOutcome::Gone {
                error: with_tail(format!("killed by {}{told}", signal_name(signal)), &errors),
            },
            Some(Ended::Unknown) => HandlerOutcome::Gone {
                error: with_tail(format!("its exit status is not known{told}"), &errors),
            },
            None => HandlerOutcome::Gone {
                error: with_tail(format!("still there after SIGKILL{told}"), &errors),
            },
        }
    }

    /// Reads what is left in pipes that somebody else still holds.
    fn read_rest(&mut self) {
        let (limit, tail_max) = (self.spec.stdout_limit, self.spec.stderr_tail);
        let (result, errors) = (&mut self.result, &mut self.errors);
        self.stdout
            .read_rest(usize::MAX, |bytes| take_result(result, bytes, limit));
        self.stderr.read_rest(tail_max, |bytes| {
            errors.push(bytes);
            ControlFlow::Continue(())
        });
    }
}

/// Adds to the result; breaks as soon as it is one byte too long, and keeps no more than that.
fn take_result(result: &mut Vec<u8>, bytes: &[u8], limit: usize) -> ControlFlow<()> {
    let room = limit.saturating_add(1).saturating_sub(result.len());
    result.extend_from_slice(&bytes[..bytes.len().min(room)]);
    if result.len() > limit {
        ControlFlow::Break(())
    } else {
        ControlFlow::Continue(())
    }
}

fn word(verdict: ExitVerdict, mut result: Vec<u8>, error: String) -> HandlerOutcome {
    match verdict {
        ExitVerdict::Done => {
            // Growing has left up to as much again unused; a result may be kept for long.
            result.shrink_to_fit();
            HandlerOutcome::completed_with(result)
        }
        ExitVerdict::Retry => HandlerOutcome::Failed { error },
        ExitVerdict::Reject => HandlerOutcome::Rejected { error },
        ExitVerdict::Discard => HandlerOutcome::Discarded,
        ExitVerdict::Unavailable => HandlerOutcome::Unavailable { error },
    }
}

fn with_tail(what: String, errors: &str) -> String {
    if errors.is_empty() {
        what
    } else {
        format!("{what}: {errors}")
    }
}

fn signal_name(signal: i32) -> String {
    match nix::sys::signal::Signal::try_from(signal) {
        Ok(known) => known.as_str().to_owned(),
        Err(_) => format!("signal {signal}"),
    }
}
