//! A private RabbitMQ node that a test starts, stops, kills and freezes.

use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::ops::Deref;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::admin::Admin;
use super::control::{self, Control};
use super::ground::{Ground, PortLease, secret};

/// A start takes 5 to 15 seconds, and longer where everything else starts too.
const START_BOUND: Duration = Duration::from_secs(120);

/// Small enough for two cores, on loopback only, and without an `epmd` that outlives us.
const ERL_ARGS: &str = "-start_epmd false -kernel inet_dist_use_interface {127,0,0,1} \
    +S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none";

/// What a node is started with.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeOptions {
    /// Plugins by name, such as `rabbitmq_consistent_hash_exchange`.
    pub(crate) plugins: Vec<String>,
    /// The management plugin, on a port of its own; the start takes about twice as long.
    pub(crate) management: bool,
    /// How long a delivery may stay unacknowledged; the node looks once a second.
    pub(crate) consumer_timeout: Option<Duration>,
    /// TLS on a port of its own beside the other, and login by a client's certificate: its common name is the user.
    pub(crate) tls: Option<TlsFiles>,
    /// More lines for `rabbitmq.conf`.
    pub(crate) conf: String,
}

/// The files of a node's TLS, PEM, which refuses clients without a certificate. Others put in their place count after [`Node::forget_tls_files`].
#[derive(Clone, Debug)]
pub(crate) struct TlsFiles {
    /// Who may sign the clients' certificates.
    pub(crate) ca: PathBuf,
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

/// A private node. Dropping it kills it and removes its folder.
#[derive(Debug)]
pub(crate) struct Node {
    name: String,
    admin: Admin,
    amqp: PortLease,
    distribution: PortLease,
    management: Option<PortLease>,
    tls: Option<PortLease>,
    control_token: String,
    process: Mutex<Option<Child>>,
    ground: Arc<Ground>,
}

impl Node {
    /// Starts a node without plugins.
    pub(crate) async fn start() -> Self {
        Self::start_with(NodeOptions::default()).await
    }

    /// Starts a node.
    pub(crate) async fn start_with(options: NodeOptions) -> Self {
        let ground = Arc::new(Ground::prepare().await);
        Self::start_on(ground, "n1", options).await
    }

    /// Starts a node beside others. A port can still be taken by a program that asks nobody: then others are tried.
    pub(super) async fn start_on(ground: Arc<Ground>, name: &str, options: NodeOptions) -> Self {
        let mut last = String::new();
        for _ in 0..3 {
            let node = Self::prepare(ground.clone(), name, &options);
            match node.launch().await {
                Ok(()) => return node,
                Err(reason) => last = reason,
            }
            let folder = node.folder();
            drop(node);
            fs::remove_dir_all(folder).ok();
        }
        panic!("the node {name} does not start: {last}");
    }

    fn prepare(ground: Arc<Ground>, name: &str, options: &NodeOptions) -> Self {
        let node = Self {
            name: format!("{name}@localhost"),
            admin: Admin::nowhere(),
            amqp: PortLease::take(),
            distribution: PortLease::take(),
            management: options.management.then(PortLease::take),
            tls: options.tls.is_some().then(PortLease::take),
            control_token: secret(),
            process: Mutex::new(None),
            ground,
        };
        node.write_files(options);
        node
    }

    fn write_files(&self, options: &NodeOptions) {
        let folder = self.folder();
        for name in ["mnesia", "log"] {
            fs::create_dir_all(folder.join(name)).expect("a folder");
        }
        let write = |name: &str, text: String| {
            fs::write(folder.join(name), text).expect("a file of the node");
        };
        let mut conf = format!(
            "listeners.tcp.1 = 127.0.0.1:{}\nloopback_users = none\nlog.file.level = info\n\
             disk_free_limit.absolute = 50MB\nvm_memory_high_watermark.absolute = {}\n",
            self.amqp.port,
            super::admin::MEMORY_LIMIT,
        );
        let mut plugins = options.plugins.clone();
        if let Some(lease) = &self.management {
            conf += "management.tcp.ip = 127.0.0.1\n";
            conf += &format!("management.tcp.port = {}\n", lease.port);
            plugins.push("rabbitmq_management".to_owned());
        }
        if let (Some(lease), Some(files)) = (&self.tls, &options.tls) {
            conf += &tls_conf(lease.port, files);
            plugins.push("rabbitmq_auth_mechanism_ssl".to_owned());
        }
        if let Some(timeout) = options.consumer_timeout {
            conf += &format!("consumer_timeout = {}\n", timeout.as_millis());
        }
        conf += &options.conf;
        write("rabbitmq.conf", conf);
        // The first has no key in rabbitmq.conf and is a minute; the second keeps quorum queues' counts fresh.
        let ticks = "[{rabbit,[{channel_tick_interval,1000},{quorum_tick_interval,500}]}].\n";
        write("advanced.config", ticks.to_owned());
        write("enabled_plugins", format!("[{}].\n", plugins.join(",")));
        write("control.erl", control::SCRIPT.to_owned());
        write("control.token", self.control_token.clone());
    }

    /// Starts the process and waits until the broker says that it runs.
    async fn launch(&self) -> Result<(), String> {
        let port_file = self.folder().join("control.port");
        fs::remove_file(&port_file).ok();
        self.spawn();
        let start = Instant::now();
        loop {
            if let Some(status) = self.reap() {
                return Err(format!("it ended with {status}\n{}", self.startup_text()));
            }
            if let Ok(port) = fs::read_to_string(&port_file) {
                let port = port.parse().expect("a port");
                self.admin.set_control(Control {
                    port,
                    token: self.control_token.clone(),
                });
                if self.admin.is_running().await {
                    return Ok(());
                }
            }
            if start.elapsed() > START_BOUND {
                return Err(format!("not in time\n{}", self.startup_text()));
            }
            super::pause(Duration::from_millis(25)).await;
        }
    }

    fn spawn(&self) {
        let folder = self.folder();
        let output = File::create(folder.join("startup.out")).expect("a file");
        let args = format!(
            "{ERL_ARGS} -acquit_control {} -eval file:eval(\"{}\").",
            folder.display(),
            folder.join("control.erl").display()
        );
        let child = self
            .command("rabbitmq-server")
            .env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", args)
            // The scripts then replace themselves by the virtual machine: our child is the broker.
            .env("RUNNING_UNDER_SYSTEMD", "true")
            .current_dir(&folder)
            .stdout(output.try_clone().expect("a second handle"))
            .stderr(output)
            .process_group(0)
            .spawn()
            .expect("rabbitmq-server: install the Debian package of that name");
        self.ground.guard(child.id());
        *self.process() = Some(child);
    }

    /// One of RabbitMQ's own scripts, called past the wrapper that wants another user.
    fn command(&self, program: &str) -> Command {
        let base = self.ground.folder.path();
        let folder = self.folder();
        let mut command = Command::new(PathBuf::from("/usr/lib/rabbitmq/bin").join(program));
        command
            .stdin(Stdio::null())
            .env_remove("NOTIFY_SOCKET")
            .env("HOME", base.join("home"))
            .env("ERL_EPMD_PORT", self.ground.epmd_port.port.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("ERL_CRASH_DUMP_BYTES", "0")
            .env("RABBITMQ_NODENAME", &self.name)
            .env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_NODE_PORT", self.amqp.port.to_string())
            .env("RABBITMQ_DIST_PORT", self.distribution.port.to_string())
            .env("RABBITMQ_CONF_ENV_FILE", base.join("env.conf"))
            .env("RABBITMQ_CONFIG_FILE", folder.join("rabbitmq"))
            .env(
                "RABBITMQ_ADVANCED_CONFIG_FILE",
                folder.join("advanced.config"),
            )
            .env("RABBITMQ_MNESIA_BASE", folder.join("mnesia"))
            .env("RABBITMQ_LOG_BASE", folder.join("log"))
            .env(
                "RABBITMQ_ENABLED_PLUGINS_FILE",
                folder.join("enabled_plugins"),
            )
            .env("RABBITMQ_PID_FILE", folder.join("pid"));
        command
    }

    /// Starts it again after [`stop`](Self::stop) or [`kill`](Self::kill), on the same ports with the same data.
    ///
    /// # Panics
    ///
    /// When it runs already, or does not start.
    pub(crate) async fn start_again(&self) {
        assert!(self.pid().is_none(), "{} runs", self.name);
        if let Err(reason) = self.launch().await {
            panic!("{} does not start again: {reason}", self.name);
        }
    }

    /// Stops it as an operator does and waits until it is gone (2 to 4 seconds).
    pub(crate) async fn stop(&self) {
        self.signal(Signal::TERM);
        let start = Instant::now();
        while self.reap().is_none() {
            assert!(start.elapsed() < super::BOUND, "{} runs on", self.name);
            super::pause(Duration::from_millis(10)).await;
        }
    }

    /// Ends it as a power cut does, running or frozen, and waits until it is gone.
    pub(crate) fn kill(&self) {
        if let Some(mut child) = self.process().take() {
            child.kill().ok();
            child.wait().ok();
            self.ground.forget(child.id());
        }
    }

    /// [`stop`](Self::stop), then [`start_again`](Self::start_again).
    pub(crate) async fn restart(&self) {
        self.stop().await;
        self.start_again().await;
    }

    /// Freezes the whole process: its sockets stay open and nothing answers.
    pub(crate) fn sigstop(&self) {
        self.signal(Signal::STOP);
    }

    /// Thaws it.
    pub(crate) fn sigcont(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let pid = self.pid().expect("a running node");
        kill_process(pid, signal).expect("our child");
    }

    /// The broker's process, while there is one.
    pub(crate) fn pid(&self) -> Option<Pid> {
        self.process().as_ref().map(Pid::from_child)
    }

    fn reap(&self) -> Option<ExitStatus> {
        let mut process = self.process();
        let status = process.as_mut()?.try_wait().expect("our child")?;
        if let Some(child) = process.take() {
            self.ground.forget(child.id());
        }
        Some(status)
    }

    fn process(&self) -> MutexGuard<'_, Option<Child>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `rabbitmqctl` (one to two seconds). [`Admin`] has a faster way for most of it.
    pub(crate) async fn ctl(&self, args: &[&str]) -> Output {
        let mut command = self.command("rabbitmqctl");
        command.args(args);
        tokio::task::spawn_blocking(move || command.output())
            .await
            .expect("running it does not panic")
            .expect("rabbitmqctl")
    }

    /// Its Erlang name, such as `n1@localhost`.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The port of its AMQP listener.
    pub(crate) fn port(&self) -> u16 {
        self.amqp.port
    }

    /// The port of its listener with TLS.
    pub(crate) fn tls_port(&self) -> u16 {
        self.tls.as_ref().expect("a node with TLS").port
    }

    /// Lets it read the files of its TLS again; it would within two minutes.
    pub(crate) async fn forget_tls_files(&self) {
        self.admin.eval("ssl:clear_pem_cache()").await;
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> std::net::SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port()).into()
    }

    /// Its default virtual host, as the user guest.
    pub(crate) fn uri(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2f", self.port())
    }

    /// The management API, as the user guest.
    pub(crate) fn management_uri(&self) -> Option<String> {
        let lease = self.management.as_ref()?;
        Some(format!("http://guest:guest@127.0.0.1:{}", lease.port))
    }

    /// What it has logged.
    pub(crate) fn log_text(&self) -> String {
        let path = self.folder().join("log").join(format!("{}.log", self.name));
        String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
    }

    fn startup_text(&self) -> String {
        let path = self.folder().join("startup.out");
        String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
    }

    fn folder(&self) -> PathBuf {
        let name = self.name.split('@').next().expect("a first part");
        self.ground.folder.path().join(name)
    }
}

fn tls_conf(port: u16, files: &TlsFiles) -> String {
    format!(
        "listeners.ssl.1 = 127.0.0.1:{port}\nssl_options.cacertfile = {}\nssl_options.certfile = {}\n\
         ssl_options.keyfile = {}\nssl_options.verify = verify_peer\n\
         ssl_options.fail_if_no_peer_cert = true\nssl_cert_login_from = common_name\n\
         auth_mechanisms.1 = PLAIN\nauth_mechanisms.2 = EXTERNAL\n",
        files.ca.display(),
        files.cert.display(),
        files.key.display(),
    )
}

impl Deref for Node {
    type Target = Admin;

    fn deref(&self) -> &Admin {
        &self.admin
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}
