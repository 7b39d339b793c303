//! TLS with a real broker: whom we trust, who we are, and files that are renewed under a running engine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use acquit::transport::amqp::topology::{Task, TopologyError, perform};
use acquit::transport::amqp::{AmqpError, AmqpOptions, Known, Secret, TlsTrouble, broker_version};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};
use tempfile::TempDir;

use crate::broker_kit::{Node, NodeOptions, TlsFiles, eventually};
use crate::place::{Runs, connected, counts, drained, until, words};
use crate::site::{Site, options};

/// Who signs certificates.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        let issuer = Issuer::new(params, key);
        Self { issuer, pem }
    }

    /// Writes `<stem>.pem` and `<stem>.key`.
    fn sign(&self, folder: &Path, stem: &str, name: &str, hosts: &[&str]) {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut params = CertificateParams::new(hosts).expect("host names");
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let key = KeyPair::generate().expect("a key");
        let signed = params.signed_by(&key, &self.issuer).expect("signed");
        write(&folder.join(format!("{stem}.pem")), &signed.pem());
        write(&folder.join(format!("{stem}.key")), &key.serialize_pem());
    }
}

/// Replaces a file at once, as whoever renews certificates does.
fn write(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).expect("a file");
    fs::rename(new, path).expect("a file");
}

/// The files of both sides, and a node that uses them.
struct Secured {
    folder: TempDir,
    node: Node,
}

impl Secured {
    /// The broker's certificate is for `localhost`, the client's for the user `worker-1`.
    async fn start() -> Self {
        let folder = TempDir::new().expect("a folder");
        renew(folder.path(), "worker-1");
        let path = |name: &str| folder.path().join(name);
        let files = TlsFiles {
            ca: path("ca.pem"),
            cert: path("server.pem"),
            key: path("server.key"),
        };
        let node = Node::start_with(NodeOptions {
            tls: Some(files),
            ..NodeOptions::default()
        })
        .await;
        Self { folder, node }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// As the user guest by password, trusting who signed the broker's certificate.
    fn options(&self) -> AmqpOptions {
        let mut options = options(self.node.tls_port(), "/", words());
        options.uris[0].tls = true;
        options.uris[0].host = "localhost".to_owned();
        options.tls.ca_file = Some(self.path("ca.pem"));
        options.tls.cert_file = Some(self.path("client.pem"));
        options.tls.key_file = Some(self.path("client.key"));
        options
    }

    /// By the certificate, without a password.
    fn external(&self) -> AmqpOptions {
        let mut options = self.options();
        options.uris[0].user = String::new();
        options.uris[0].password = Secret::new("");
        options.tls.external = true;
        options
    }
}

/// A new authority, and new certificates of both sides.
fn renew(folder: &Path, user: &str) {
    let authority = Authority::new("the authority of the test");
    write(&folder.join("ca.pem"), &authority.pem);
    authority.sign(folder, "server", "the broker", &["localhost"]);
    authority.sign(folder, "client", user, &[]);
}

async fn refusal(options: &AmqpOptions) -> AmqpError {
    let error = perform(options, Task::Plan).await.expect_err("refused");
    match error {
        TopologyError::Amqp(error) => error,
        other => panic!("{other}"),
    }
}

/// One node for all of it, which takes longer to start than the rest.
#[tokio::test(flavor = "multi_thread")]
async fn amqps_trusts_whom_it_is_told_and_logs_in_by_certificates_that_may_be_renewed() {
    let secured = Secured::start().await;
    a_message_is_worked_to_its_settlement(&secured).await;
    nobody_else_is_trusted(&secured).await;
    only_the_ca_file_counts(&secured);
    who_has_no_certificate_is_refused(&secured).await;
    renewed_files_count_at_the_next_connect(&secured).await;
}

async fn a_message_is_worked_to_its_settlement(secured: &Secured) {
    let options = secured.options();
    let site = Site::of(&secured.node, "/", options.clone()).await;
    site.publish("m", 10, "ok").await;
    let runs = Runs::default();
    let handle = site.start(site.spec(runs.handler()));
    site.all_done(handle, &runs, &[("m", 10)]).await;
    let version = broker_version(&options.uris[0], &options).await;
    assert!(matches!(version, Known::Is(_)), "{version:?}");
}

async fn nobody_else_is_trusted(secured: &Secured) {
    let mut nobody = secured.options();
    nobody.tls.ca_file = None;
    let error = refusal(&nobody).await;
    assert_eq!(error, AmqpError::Tls(TlsTrouble::UnknownIssuer));
    assert!(error.is_permanent());
    assert_eq!(error.exit_code(), 14);
    let version = broker_version(&nobody.uris[0], &nobody).await;
    assert_eq!(version, Known::Unknown);

    let mut elsewhere = secured.options();
    elsewhere.uris[0].host = "127.0.0.1".to_owned();
    let error = refusal(&elsewhere).await;
    let is_it = matches!(error, AmqpError::Tls(TlsTrouble::HostMismatch(_)));
    assert!(is_it && error.is_permanent(), "{error}");
    assert!(error.to_string().contains("localhost"), "{error}");

    let mut plain = secured.options();
    plain.uris[0].port = secured.node.port();
    let error = refusal(&plain).await;
    assert_eq!(error, AmqpError::Tls(TlsTrouble::PeerIsNotTls));
}

/// Who signed the broker's certificate is one of the system's here, and the `ca-file` names another.
fn only_the_ca_file_counts(secured: &Secured) {
    let other = Authority::new("another authority");
    write(&secured.path("other.pem"), &other.pem);
    let url = format!("amqps://localhost:{}", secured.node.tls_port());
    let check = |ca_file: &str| -> Output {
        let config = format!(
            "[worker]\nstate-dir = \"data\"\n[broker]\nurl = \"{url}\"\n{ca_file}\n\
             cert-file = \"client.pem\"\nkey-file = \"client.key\"\n[[consumer]]\n\
             name = \"words\"\nqueue = \"words\"\ndead-letter-queue = \"words.dead\"\nhandler = \"discard\"\n"
        );
        write(&secured.path("config.toml"), &config);
        Command::new(env!("CARGO_BIN_EXE_acquit"))
            .args(["topology", "plan", "--config"])
            .arg(secured.path("config.toml"))
            .env("SSL_CERT_FILE", secured.path("ca.pem"))
            .output()
            .expect("the binary")
    };
    let trusted = check("");
    let told = String::from_utf8_lossy(&trusted.stderr);
    assert!(trusted.status.code() != Some(14), "{told}");
    let refused = check("ca-file = \"other.pem\"");
    let told = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(14), "{told}");
    assert!(told.contains("unknown issuer"), "{told}");
}

async fn who_has_no_certificate_is_refused(secured: &Secured) {
    let mut without = secured.options();
    (without.tls.cert_file, without.tls.key_file) = (None, None);
    let error = refusal(&without).await;
    // With TLS 1.3 the broker reads that there is none when we have begun to talk: its alert can be lost behind the
    // reset of the connection.
    let is_it = matches!(
        error,
        AmqpError::Tls(TlsTrouble::ClientCertificate(_)) | AmqpError::Broken { .. }
    );
    assert!(is_it, "{error:?}");

    // One that the broker trusts, of nobody whom it knows.
    let error = refusal(&secured.external()).await;
    let is_it = matches!(error, AmqpError::CredentialsRefused { .. });
    assert!(is_it, "{error:?}");
}

async fn renewed_files_count_at_the_next_connect(secured: &Secured) {
    let node = &secured.node;
    for user in ["worker-1", "worker-2"] {
        node.add_user(user, "nobody uses it").await;
        node.set_permissions(user, "/", [".*", ".*", ".*"]).await;
    }
    let site = Site::of(node, "/", secured.external()).await;
    let runs = Runs::default();
    let handle = site.start(site.spec(runs.handler()));
    connected(&handle).await;
    users(node, "worker-1").await;
    site.publish("before", 5, "ok").await;
    until(&handle, "they are settled", |c| c.acked == 5).await;

    renew(secured.folder.path(), "worker-2");
    node.forget_tls_files().await;
    node.close_connections("/", "the test").await;
    users(node, "worker-2").await;
    connected(&handle).await;
    site.publish("after", 5, "ok").await;
    until(&handle, "they are settled", |c| c.acked == 10).await;
    assert!(counts(&handle).await.is_balanced());
    drained(handle).await;
    assert_eq!(runs.all().len(), 10);
}

/// Waits until both connections of the engine are there, and both as this user. The broker can take ten seconds to see
/// that one over TLS is gone which it has closed itself.
async fn users(node: &Node, user: &str) {
    eventually(&format!("both are {user}"), async || {
        let all = node.list_connections().await;
        let running: Vec<_> = all.iter().filter(|one| one.state == "running").collect();
        (running.len() == 2 && running.iter().all(|one| one.user == user)).then_some(())
    })
    .await;
}
