//! The commands that speak to a running process, or, where none runs, to the store itself.

use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use acquit_actors::{Engine, Handle};

use serde_json::{Map, Value, json};

use super::view::{broker_lines, summary};
use super::{Exit, GetArgs, PublishArgs, whole};
use crate::app::{self, AppError};
use crate::config::{BrokerUrl, Plan};
use crate::control::{Client, ClientError, Desk, Request, StatusReport};
use crate::feed::{LINE_MAX, parse_line};
use crate::model::QueueName;
use crate::telemetry::escape_cut;

/// How many lines or bytes one publish request carries.
const LINES_MAX: usize = 256;
const LINE_BYTES_MAX: usize = 8 << 20;

/// How many messages `get` gives unless it is told otherwise.
const GET_DEFAULT: usize = 10_000;

/// What went wrong, for people, and how the process ends.
#[derive(Debug)]
pub struct Failure {
    /// How the process ends.
    pub exit: Exit,
    /// What to say; empty if nobody listens any more.
    pub text: String,
}

impl Failure {
    fn new(exit: Exit, text: impl Into<String>) -> Self {
        Self {
            exit,
            text: text.into(),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        // Who read our output has had enough: `acquit get words | head`.
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::new(Exit::Clean, String::new()),
            _ => Self::new(Exit::Failure, error.to_string()),
        }
    }
}

impl From<AppError> for Failure {
    fn from(error: AppError) -> Self {
        Self::new(Exit::from(&error), whole(&error))
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Self::new(Exit::Failure, error.to_string())
    }
}

/// Where commands go: to a process, or to the store.
enum Way {
    /// Each request has a connection of its own: between two, a slow reader keeps no place.
    Process(PathBuf),
    Store(Arc<dyn Desk>),
    /// A RabbitMQ, with who keeps our connections to it.
    Broker(Arc<dyn Desk>, Handle),
}

impl Way {
    /// Finds the way: the process that serves the plan's socket, else the store, whose lock decides.
    async fn find(plan: &Plan) -> Result<Self, Failure> {
        if connect(&plan.control.socket).await?.is_some() {
            return Ok(Self::Process(plan.control.socket.clone()));
        }
        if plan.broker.url == BrokerUrl::Memory {
            return Err(no_process(plan));
        }
        let broker = app::open_broker(plan)?;
        if let app::Broker::Amqp { options, .. } = &broker {
            let handle = connect_to(&broker, options.connect_timeout).await?;
            return Ok(Self::Broker(broker.desk(plan), handle));
        }
        app::make_ready(plan, &broker).await?;
        Ok(Self::Store(broker.desk(plan)))
    }

    /// Leaves a broker orderly.
    async fn leave(self) {
        if let Self::Broker(_, handle) = self {
            let _ = handle.drain_and_wait("done").await;
        }
    }

    async fn publish(&mut self, queue: &str, lines: Vec<String>) -> Result<u64, Failure> {
        match self {
            Self::Process(socket) => {
                let mut client = reconnect(socket).await?;
                let request = Request::Publish {
                    queue: queue.to_owned(),
                    lines,
                };
                let done = client.request(&request, |_| {}).await?;
                Ok(done["published"].as_u64().unwrap_or(0))
            }
            Self::Store(desk) | Self::Broker(desk, _) => desk
                .publish(queue.to_owned(), lines)
                .await
                .map_err(|error| Failure::new(Exit::Failure, error.to_string())),
        }
    }

    async fn get(&mut self, args: &GetArgs, limit: usize) -> Result<Vec<Value>, Failure> {
        let (queue, take, dead) = (args.queue.clone(), args.take, args.dead);
        match self {
            Self::Process(socket) => {
                let mut client = reconnect(socket).await?;
                let mut items = Vec::new();
                let request = Request::Get {
                    queue,
                    take,
                    dead,
                    limit,
                };
                client.request(&request, |item| items.push(item)).await?;
                Ok(items)
            }
            Self::Store(desk) | Self::Broker(desk, _) => desk
                .get(queue, take, dead, limit)
                .await
                .map_err(|error| Failure::new(Exit::Failure, error.to_string())),
        }
    }
}

/// An engine without consumers keeps the connections; waits until both are open.
async fn connect_to(broker: &app::Broker, limit: Duration) -> Result<Handle, Failure> {
    let engine = Engine::new(broker.transport());
    let handle = engine.start().map_err(|error| {
        let text = format!("failed to start: {error}");
        Failure::new(Exit::Failure, text)
    })?;
    let deadline = tokio::time::Instant::now() + limit;
    loop {
        let snapshot = handle.snapshot().await.ok();
        let connections = snapshot
            .map(|snapshot| snapshot.connections)
            .unwrap_or_default();
        if !connections.is_empty() && connections.iter().all(|one| one.state == "open") {
            return Ok(handle);
        }
        let trouble = connections.into_iter().find_map(|one| one.trouble);
        if tokio::time::Instant::now() >= deadline || trouble.is_some() {
            let why = trouble.unwrap_or_else(|| format!("no connection within {limit:?}"));
            return Err(Failure::new(Exit::Connection, format!("the broker: {why}")));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn connect(socket: &Path) -> Result<Option<Client>, Failure> {
    Client::connect(socket).await.map_err(|error| {
        let text = format!("failed to connect to {}: {error}", socket.display());
        Failure::new(Exit::Failure, text)
    })
}

async fn reconnect(socket: &Path) -> Result<Client, Failure> {
    connect(socket).await?.ok_or_else(|| {
        let text = format!("the process behind {} has ended", socket.display());
        Failure::new(Exit::Failure, text)
    })
}

fn no_process(plan: &Plan) -> Failure {
    let socket = plan.control.socket.display();
    let text = format!("no process of this configuration runs (nobody answers on {socket})");
    Failure::new(Exit::Failure, text)
}

async fn process(plan: &Plan) -> Result<Client, Failure> {
    connect(&plan.control.socket)
        .await?
        .ok_or_else(|| no_process(plan))
}

/// `acquit publish`: a body, a file of lines, or lines from standard input.
///
/// # Errors
/// See [`Failure`].
pub async fn publish(plan: &Plan, args: &PublishArgs, json: bool) -> Result<Exit, Failure> {
    let mut way = Way::find(plan).await?;
    let mut published = 0;
    match (&args.body, &args.file) {
        (Some(body), _) => {
            let line = line_of(body, args);
            published += way.publish(&args.queue, vec![line]).await?;
        }
        (None, Some(path)) if path != Path::new("-") => {
            let file = std::fs::File::open(path).map_err(|error| {
                Failure::new(
                    Exit::Usage,
                    format!("failed to open {}: {error}", path.display()),
                )
            })?;
            published += publish_lines(&mut way, args, &mut io::BufReader::new(file)).await?;
        }
        (None, _) => {
            published += publish_lines(&mut way, args, &mut io::stdin().lock()).await?;
        }
    }
    way.leave().await;
    let text = if json {
        json!({ "queue": args.queue, "published": published }).to_string()
    } else {
        format!("published {published} to {}", args.queue)
    };
    writeln!(io::stdout().lock(), "{text}")?;
    Ok(Exit::Clean)
}

fn line_of(body: &str, args: &PublishArgs) -> String {
    let mut line = Map::new();
    line.insert("body".to_owned(), json!(body));
    if let Some(key) = &args.key {
        line.insert("key".to_owned(), json!(key));
    }
    if let Some(id) = &args.id {
        line.insert("id".to_owned(), json!(id));
    }
    let headers: Map<String, Value> = args
        .headers
        .iter()
        .map(|header| (header.name.clone(), json!(header.value)))
        .collect();
    if !headers.is_empty() {
        line.insert("headers".to_owned(), Value::Object(headers));
    }
    Value::Object(line).to_string()
}

/// Publishes lines up to the first that is no message, which is told by its number: what stands
/// before it is published, and nothing from it on.
async fn publish_lines(
    way: &mut Way,
    args: &PublishArgs,
    read: &mut dyn BufRead,
) -> Result<u64, Failure> {
    if args.key.is_some() || args.id.is_some() || !args.headers.is_empty() {
        let text = "--key, --id and --header go with --body; lines carry their own";
        return Err(Failure::new(Exit::Usage, text));
    }
    let queue = QueueName::from(args.queue.clone());
    let (mut published, mut batch, mut bytes) = (0, Vec::new(), 0);
    let mut fault = None;
    for number in 1_u64.. {
        let mut line = Vec::new();
        // One byte more than a line with its end: a longer one is seen to be longer.
        let mut bounded = io::Read::take(&mut *read, LINE_MAX as u64 + 2);
        if bounded.read_until(b'\n', &mut line)? == 0 {
            break;
        }
        match message_line(&line, &queue) {
            Ok(None) => {}
            Ok(Some(line)) => {
                bytes += line.len();
                batch.push(line);
            }
            Err(why) => {
                fault = Some((number, why));
                break;
            }
        }
        if batch.len() == LINES_MAX || bytes > LINE_BYTES_MAX {
            published += send(way, &args.queue, &mut batch, published).await?;
            bytes = 0;
        }
    }
    published += send(way, &args.queue, &mut batch, published).await?;
    match fault {
        None => Ok(published),
        Some((number, why)) => {
            let text = format!(
                "line {number}: {why}; {published} before it are published, and nothing from it on"
            );
            Err(Failure::new(Exit::Failure, text))
        }
    }
}

/// Gives a line as a feed has it: what `get` adds about where a message stood is taken off, so that
/// its output can be published again.
fn as_fed(line: &[u8]) -> Vec<u8> {
    const ADDED: [&str; 7] = [
        "queue",
        "partition",
        "seq",
        "correlation-id",
        "attempt",
        "reason",
        "died-millis",
    ];
    match serde_json::from_slice::<Map<String, Value>>(line) {
        Ok(mut object) if object.contains_key("seq") && object.contains_key("partition") => {
            object.retain(|name, _| !ADDED.contains(&name.as_str()));
            Value::Object(object).to_string().into_bytes()
        }
        _ => line.to_vec(),
    }
}

/// Gives a line that is a message, without its end; `None` for an empty one.
fn message_line(line: &[u8], queue: &QueueName) -> Result<Option<String>, String> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    if line.len() > LINE_MAX {
        return Err(format!("longer than {} MiB", LINE_MAX >> 20));
    }
    if line.trim_ascii().is_empty() {
        return Ok(None);
    }
    let line = &*as_fed(line);
    parse_line(line, queue)?;
    match std::str::from_utf8(line) {
        Ok(text) => Ok(Some(text.to_owned())),
        Err(error) => Err(format!("byte {} is not UTF-8", error.valid_up_to() + 1)),
    }
}

async fn send(
    way: &mut Way,
    queue: &str,
    batch: &mut Vec<String>,
    before: u64,
) -> Result<u64, Failure> {
    if batch.is_empty() {
        return Ok(0);
    }
    way.publish(queue, std::mem::take(batch))
        .await
        .map_err(|failure| {
            let text = match before {
                0 => failure.text,
                before => format!(
                    "{before} published before this batch of lines: {}",
                    failure.text
                ),
            };
            Failure::new(failure.exit, text)
        })
}

/// `acquit get`: messages as JSON lines.
///
/// # Errors
/// See [`Failure`].
pub async fn get(plan: &Plan, args: &GetArgs) -> Result<Exit, Failure> {
    if args.take && args.dead {
        let text = "--take and --dead do not go together: dead letters are only looked at";
        return Err(Failure::new(Exit::Usage, text));
    }
    let mut way = Way::find(plan).await?;
    if args.take {
        return take(&mut way, args).await;
    }
    let limit = args
        .limit
        .map_or(GET_DEFAULT, |n| usize::try_from(n).unwrap_or(usize::MAX));
    let items = way.get(args, limit).await?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    for item in &items {
        writeln!(out, "{item}")?;
    }
    out.flush()?;
    if items.len() == limit && args.limit.is_none() {
        let text = format!("the first {limit}; there may be more: --limit N");
        writeln!(io::stderr().lock(), "{text}")?;
    }
    Ok(Exit::Clean)
}

/// Takes messages out one by one: the next leaves its queue when this one is written.
async fn take(way: &mut Way, args: &GetArgs) -> Result<Exit, Failure> {
    let mut out = io::stdout().lock();
    for _ in 0..args.limit.unwrap_or(u64::MAX) {
        let items = way.get(args, 1).await?;
        let Some(item) = items.first() else { break };
        let written = writeln!(out, "{item}").and_then(|()| out.flush());
        if let Err(error) = written {
            let text = format!("the last message taken was not written: {error}");
            return Err(Failure::new(Exit::Failure, text));
        }
    }
    Ok(Exit::Clean)
}

/// `acquit status`.
///
/// # Errors
/// See [`Failure`].
pub async fn status(plan: &Plan, json: bool) -> Result<Exit, Failure> {
    let mut client = process(plan).await?;
    let value = client.request(&Request::Status, |_| {}).await?;
    if json {
        writeln!(io::stdout().lock(), "{value}")?;
        return Ok(Exit::Clean);
    }
    let report: StatusReport = serde_json::from_value(value).map_err(ClientError::Version)?;
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "{} (pid {}, acquit {}): {}",
        report.worker,
        report.pid,
        report.version,
        report.snapshot.phase.as_str()
    )?;
    if let Some(broker) = &report.broker {
        write!(out, "{}", broker_lines(broker))?;
    }
    writeln!(out, "{}", summary(&report.snapshot, &report.depths))?;
    Ok(Exit::Clean)
}

/// `acquit drain`: begins a drain; with `wait`, prints its report.
///
/// # Errors
/// See [`Failure`].
pub async fn drain(plan: &Plan, wait: bool, json: bool) -> Result<Exit, Failure> {
    let mut client = process(plan).await?;
    let request = Request::Drain {
        reason: "acquit drain".to_owned(),
        wait,
    };
    let value = client.request(&request, |_| {}).await?;
    if !wait {
        writeln!(io::stdout().lock(), "draining")?;
        return Ok(Exit::Clean);
    }
    let report: acquit_actors::DrainReport =
        serde_json::from_value(value.clone()).map_err(ClientError::Version)?;
    let text = if json {
        value.to_string()
    } else {
        report.to_string()
    };
    writeln!(io::stdout().lock(), "{text}")?;
    Ok(Exit::from_engine(report.exit_code()))
}

/// `acquit inflight`: what is in hand, oldest first.
///
/// # Errors
/// See [`Failure`].
pub async fn inflight(plan: &Plan, json: bool) -> Result<Exit, Failure> {
    const SHOWN_MAX: usize = 1000;
    let mut client = process(plan).await?;
    let mut items = Vec::new();
    client
        .request(&Request::Inflight { max: SHOWN_MAX }, |item| {
            items.push(item)
        })
        .await?;
    let mut out = io::stdout().lock();
    if !json {
        writeln!(
            out,
            "{:>10} {:<16} {:>4} {:<10} {:>10}  id",
            "number", "consumer", "part", "state", "age"
        )?;
    }
    for item in &items {
        if json {
            writeln!(out, "{item}")?;
            continue;
        }
        let word = |key: &str| {
            item[key]
                .as_str()
                .map_or_else(|| "-".to_owned(), |s| escape_cut(s, 60))
        };
        let age = std::time::Duration::from_millis(item["age-ms"].as_u64().unwrap_or(0));
        writeln!(
            out,
            "{:>10} {:<16} {:>4} {:<10} {:>10}  {}",
            item["delivery"],
            word("consumer"),
            item["partition"],
            word("state"),
            format!("{age:.1?}"),
            word("id")
        )?;
    }
    Ok(Exit::Clean)
}

/// The commands that order something and print one word.
///
/// # Errors
/// See [`Failure`].
pub async fn order(plan: &Plan, request: &Request, done: &str) -> Result<Exit, Failure> {
    let mut client = process(plan).await?;
    client.request(request, |_| {}).await?;
    writeln!(io::stdout().lock(), "{done}")?;
    Ok(Exit::Clean)
}
