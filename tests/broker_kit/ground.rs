//! What private nodes stand on: a temporary folder, ports nobody else takes, an `epmd` of their own, and a guardian
//! that ends them when the test process is gone.

use std::fs::{self, File};
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A port that no other test process takes while this lives.
///
/// It is below the range that the kernel gives to outgoing connections, so it is still free when a killed node
/// wants it back.
#[derive(Debug)]
pub(super) struct PortLease {
    pub(super) port: u16,
    _lock: File,
}

impl PortLease {
    pub(super) fn take() -> Self {
        let folder = std::env::temp_dir().join("acquit-test-ports");
        fs::create_dir_all(&folder).expect("a folder for locks");
        for _ in 0..1000 {
            let port = rand::random_range(20_000..32_000);
            let lock = File::create(folder.join(port.to_string())).expect("a lock file");
            let is_ours = lock.try_lock().is_ok();
            if is_ours && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
                return Self { port, _lock: lock };
            }
        }
        panic!("no free port");
    }
}

/// Kills what it was told of, and removes the folder, when this process ends without doing so.
#[derive(Debug)]
struct Guardian {
    child: Child,
    orders: Option<ChildStdin>,
}

const GUARDIAN: &str = r#"
trap '' INT TERM HUP
pids=
while read -r order pid; do
    others=
    for known in $pids; do [ "$known" = "$pid" ] || others="$others $known"; done
    pids=$others
    [ "$order" = forget ] || pids="$pids $pid"
done
[ -z "$pids" ] || kill -KILL $pids 2>/dev/null
rm -rf "$1" 2>/dev/null || { sleep 1; rm -rf "$1"; }
"#;

impl Guardian {
    fn start(folder: &Path) -> Self {
        let mut child = Command::new("sh")
            .args(["-c", GUARDIAN, "guardian"])
            .arg(folder)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .expect("a shell");
        let orders = child.stdin.take();
        Self { child, orders }
    }

    fn order(&mut self, order: &str, pid: u32) {
        let orders = self.orders.as_mut().expect("open until the end");
        writeln!(orders, "{order} {pid}").expect("the guardian reads");
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        self.orders = None;
        self.child.wait().ok();
    }
}

/// One folder, one `epmd`, one cookie: shared by the nodes of a cluster.
#[derive(Debug)]
pub(super) struct Ground {
    epmd: Child,
    pub(super) epmd_port: PortLease,
    guardian: Mutex<Guardian>,
    pub(super) folder: TempDir,
}

impl Ground {
    pub(super) async fn prepare() -> Self {
        let folder = tempfile::Builder::new()
            .prefix("rabbit-")
            .tempdir()
            .expect("a temporary folder");
        write_cookie(folder.path());
        fs::write(folder.path().join("env.conf"), "").expect("a file");
        let mut guardian = Guardian::start(folder.path());
        let (epmd, epmd_port) = start_epmd(folder.path(), &mut guardian).await;
        Self {
            epmd,
            epmd_port,
            guardian: Mutex::new(guardian),
            folder,
        }
    }

    /// From here on the process dies with us.
    pub(super) fn guard(&self, pid: u32) {
        self.lock().order("mind", pid);
    }

    /// The process was waited for: its id can be somebody else's now.
    pub(super) fn forget(&self, pid: u32) {
        self.lock().order("forget", pid);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Guardian> {
        self.guardian.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        self.epmd.kill().ok();
        self.epmd.wait().ok();
        self.forget(self.epmd.id());
    }
}

/// An owner-only cookie: nodes of other tests and of other users have another one.
fn write_cookie(folder: &Path) {
    use std::os::unix::fs::OpenOptionsExt;
    let home = folder.join("home");
    fs::create_dir(&home).expect("a home");
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o400)
        .open(home.join(".erlang.cookie"))
        .expect("a new file");
    file.write_all(secret().as_bytes()).expect("a short write");
}

/// Letters nobody guesses.
pub(super) fn secret() -> String {
    (0..24)
        .map(|_| char::from(rand::random_range(b'A'..=b'Z')))
        .collect()
}

/// Started by us, in the foreground: one that `erl` starts is a daemon that outlives the test.
async fn start_epmd(folder: &Path, guardian: &mut Guardian) -> (Child, PortLease) {
    for _ in 0..5 {
        let lease = PortLease::take();
        let mut child = Command::new("epmd")
            .env("ERL_EPMD_PORT", lease.port.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .expect("epmd: install the Debian package rabbitmq-server");
        guardian.order("mind", child.id());
        let start = Instant::now();
        while child.try_wait().expect("our child").is_none() {
            if TcpStream::connect((Ipv4Addr::LOCALHOST, lease.port)).is_ok() {
                return (child, lease);
            }
            assert!(start.elapsed() < super::BOUND, "epmd does not listen");
            super::pause(Duration::from_millis(5)).await;
        }
        guardian.order("forget", child.id());
    }
    panic!("epmd does not start");
}
