//! What the tests stand on: a folder with a configuration, and processes that end with their test.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// No wait in these tests is longer; a healthy one takes milliseconds to seconds.
pub(crate) const BOUND: Duration = Duration::from_secs(30);

/// Waits for a condition, within the bound.
#[track_caller]
pub(crate) fn eventually(what: &str, condition: impl FnMut() -> bool) {
    within(BOUND, what, condition);
}

/// Waits for a condition, within a bound of its own.
#[track_caller]
pub(crate) fn within(bound: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < bound, "not within {bound:?}: {what}");
        poll();
    }
}

/// Checks that a condition holds for some time.
#[track_caller]
pub(crate) fn holds_for(time: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while start.elapsed() < time {
        assert!(condition(), "no longer after {:?}: {what}", start.elapsed());
        poll();
    }
}

fn poll() {
    #[expect(
        clippy::disallowed_methods,
        reason = "a bounded wait\'s pause, on a thread of its own"
    )]
    // tidy-allow: sleep: the pause between two looks of the waits above
    std::thread::sleep(Duration::from_millis(5));
}

/// Another process has no way to wake us: looks until the bound, then gives up with `None`.
fn look<T>(bound: Duration, mut find: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        if let Some(found) = find() {
            return Some(found);
        }
        if start.elapsed() >= bound {
            return None;
        }
        poll();
    }
}

/// A folder with a configuration.
pub(crate) struct Home {
    folder: tempfile::TempDir,
    variables: BTreeMap<String, String>,
}

impl Home {
    /// A home whose `config.toml` has this text.
    pub(crate) fn new(config: &str) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("acquit-")
            .tempdir()
            .expect("a temporary folder");
        let home = Self {
            folder,
            variables: BTreeMap::new(),
        };
        home.write("config.toml", config);
        home
    }

    /// A home with one consumer `work` of the queue `work`; `more` stands in its table, `tables`
    /// after it.
    pub(crate) fn with_consumer(more: &str, tables: &str) -> Self {
        Self::new(&format!(
            "[worker]\nstate-dir = \"data\"\n[broker]\nurl = \"embedded:data\"\n\
             [[consumer]]\nname = \"work\"\nqueue = \"work\"\n{more}\n{tables}\n"
        ))
    }

    /// The shipped job.
    pub(crate) fn shipped() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let config = fs::read_to_string(root.join("config.toml")).expect("shipped");
        let home = Self::new(&config);
        fs::create_dir(home.path("examples")).expect("made");
        let tasks = root.join("examples/tasks.jsonl");
        fs::copy(tasks, home.path("examples/tasks.jsonl")).expect("copied");
        home
    }

    pub(crate) fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.insert(name.to_owned(), value.to_owned());
        self
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        fs::write(self.path(name), text).expect("written");
    }

    pub(crate) fn exists(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    /// The lines of a file that a handler writes; none if there is no such file yet.
    pub(crate) fn lines(&self, name: &str) -> Vec<String> {
        let text = fs::read_to_string(self.path(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// A command of the binary, in this folder.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_acquit"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("ACQUIT_") {
                command.env_remove(name);
            }
        }
        command
            .args(args)
            .current_dir(self.folder.path())
            .envs(&self.variables)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs the binary to its end.
    #[track_caller]
    pub(crate) fn acquit(&self, args: &[&str]) -> Finished {
        self.start(args).end()
    }

    /// Runs the binary to its end with something on its standard input.
    #[track_caller]
    pub(crate) fn acquit_with(&self, args: &[&str], input: &[u8]) -> Finished {
        let mut command = self.command(args);
        command.stdin(Stdio::piped());
        let mut running = Running::spawn(self, command);
        let mut stdin = running.child.stdin.take().expect("piped");
        // It may end without reading all: then its own words count.
        let _ = stdin.write_all(input);
        drop(stdin);
        running.end()
    }

    /// Starts the binary.
    #[track_caller]
    pub(crate) fn start(&self, args: &[&str]) -> Running {
        Running::spawn(self, self.command(args))
    }

    /// Starts `run` with more arguments and waits until it runs.
    #[track_caller]
    pub(crate) fn run(&self, args: &[&str]) -> Running {
        let running = self.start(&[&["run"], args].concat());
        running.line("acquit::cli::run");
        running
    }

    /// Publishes bodies, each with its text as id.
    #[track_caller]
    pub(crate) fn publish(&self, queue: &str, bodies: &[&str]) {
        let lines: String = bodies
            .iter()
            .map(|body| format!("{}\n", serde_json::json!({"id": body, "body": body})))
            .collect();
        self.publish_lines(queue, &lines);
    }

    /// Publishes lines as they are.
    #[track_caller]
    pub(crate) fn publish_lines(&self, queue: &str, lines: &str) {
        let done = self.acquit_with(&["publish", queue], lines.as_bytes());
        assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "{done:?}");
    }

    /// What stands in a queue.
    #[track_caller]
    pub(crate) fn get(&self, queue: &str) -> Vec<Value> {
        self.get_with(&[queue])
    }

    /// What stands on a queue's dead list.
    #[track_caller]
    pub(crate) fn dead(&self, queue: &str) -> Vec<Value> {
        self.get_with(&[queue, "--dead"])
    }

    #[track_caller]
    fn get_with(&self, args: &[&str]) -> Vec<Value> {
        let done = self.acquit(&[&["get", "--limit", "1000000"], args].concat());
        assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
        json_lines(&done.out)
    }

    /// The status of the running process.
    #[track_caller]
    pub(crate) fn status(&self) -> Value {
        let done = self.acquit(&["status", "--json"]);
        assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
        serde_json::from_str(&done.out).expect("JSON")
    }

    /// The counters of the first consumer.
    #[track_caller]
    pub(crate) fn counts(&self) -> Value {
        self.status()["snapshot"]["consumers"][0]["counts"].clone()
    }
}

/// Reads JSON lines.
#[track_caller]
pub(crate) fn json_lines(text: &str) -> Vec<Value> {
    let line = |line: &str| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    text.lines().map(line).collect()
}

/// The bodies of messages as `get` gives them.
pub(crate) fn bodies(messages: &[Value]) -> Vec<&str> {
    let body = |message: &'_ Value| message["body"].as_str().map(str::len);
    assert!(messages.iter().all(|m| body(m).is_some()), "{messages:?}");
    let mut bodies: Vec<&str> = messages.iter().filter_map(|m| m["body"].as_str()).collect();
    bodies.sort_unstable();
    bodies
}

/// What a process said until its end, and how it ended.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// A process. Dropped, it is killed.
pub(crate) struct Running {
    pub(crate) child: Child,
    out: Said,
    err: Said,
    folder: String,
}

impl Running {
    #[track_caller]
    pub(crate) fn spawn(home: &Home, mut command: Command) -> Self {
        let mut child = command.spawn().expect("the binary starts");
        let out = Said::by(child.stdout.take());
        let err = Said::by(child.stderr.take());
        let folder = home.folder.path().to_str().expect("UTF-8").to_owned();
        Self {
            child,
            out,
            err,
            folder,
        }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Sends a signal.
    #[track_caller]
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("it is our child");
    }

    /// Waits for a line on standard error that holds a text, and gives it.
    #[track_caller]
    pub(crate) fn line(&self, text: &str) -> String {
        let found = look(BOUND, || self.err.find(text));
        found.unwrap_or_else(|| panic!("never said {text:?} but:\n{}", self.err()))
    }

    /// How often it said a text on standard error so far.
    pub(crate) fn count(&self, text: &str) -> usize {
        self.err.text().matches(text).count()
    }

    /// What it said on standard error so far.
    pub(crate) fn err(&self) -> String {
        self.err.text().replace(&self.folder, "DIR")
    }

    /// Tells whether it still runs.
    pub(crate) fn is_alive(&mut self) -> bool {
        self.child.try_wait().expect("ours").is_none()
    }

    /// Waits for its end.
    #[track_caller]
    pub(crate) fn end(self) -> Finished {
        self.end_within(BOUND)
    }

    /// Waits for its end, within a bound of its own.
    #[track_caller]
    pub(crate) fn end_within(mut self, bound: Duration) -> Finished {
        let status: Option<ExitStatus> = look(bound, || self.child.try_wait().expect("ours"));
        let Some(status) = status else {
            let status = self.status_by_socket();
            panic!(
                "did not end within {bound:?}; said:\n{}\n{status}",
                self.err()
            );
        };
        self.out.join();
        self.err.join();
        Finished {
            code: status.code(),
            signal: status.signal(),
            out: self.out.text().replace(&self.folder, "DIR"),
            err: self.err(),
        }
    }

    /// What its process says of itself, for a failure's text.
    fn status_by_socket(&self) -> String {
        let said = |command: &str| {
            let mut ask = Command::new(env!("CARGO_BIN_EXE_acquit"));
            ask.arg(command).current_dir(&self.folder);
            let said = ask.output().expect("the binary starts");
            String::from_utf8_lossy(&said.stdout).into_owned()
        };
        said("status") + &said("inflight")
    }

    /// Kills it as a power switch would.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("ours");
        self.child.wait().expect("ours");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What came through a pipe so far.
struct Said {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Said {
    fn by(pipe: Option<impl Read + Send + 'static>) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let reader = pipe.map(|pipe| {
            let bytes = Arc::clone(&bytes);
            std::thread::spawn(move || {
                let mut pipe = BufReader::new(pipe);
                let mut line = Vec::new();
                while pipe.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                    let mut bytes = bytes.lock().unwrap_or_else(PoisonError::into_inner);
                    bytes.append(&mut line);
                }
            })
        });
        Self { bytes, reader }
    }

    fn text(&self) -> String {
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8(bytes.clone()).expect("UTF-8")
    }

    fn find(&self, text: &str) -> Option<String> {
        let said = self.text();
        said.lines()
            .find(|line| line.contains(text))
            .map(str::to_owned)
    }

    /// Waits until the pipe is closed. A handler that outlives the process may hold it open.
    #[track_caller]
    fn join(&mut self) {
        let Some(reader) = self.reader.take() else {
            return;
        };
        let closed = look(Duration::from_secs(5), || {
            reader.is_finished().then_some(())
        });
        assert!(closed.is_some(), "a process holds the pipe open");
        reader.join().expect("reads");
    }
}

/// Tells whether a process of this id is there and no zombie.
pub(crate) fn is_alive(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit_once(") ")
        .map(|(_, rest)| rest.starts_with('Z'));
    state == Some(false)
}

/// Lets time pass where the moment itself is what is tested.
pub(crate) fn pass(time: Duration) {
    #[expect(
        clippy::disallowed_methods,
        reason = "a bounded wait\'s pause, on a thread of its own"
    )]
    // tidy-allow: sleep: moments of a start that nothing tells of
    std::thread::sleep(time);
}
