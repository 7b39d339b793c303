//! A client of the management API, for what AMQP cannot tell: the broker's version, and the type,
//! arguments and policies of queues. It only reads.
//!
//! The client is a blocking one and runs on the blocking pool. Every call has a deadline, every
//! answer a size limit; no redirect is followed and no proxy is used, so the password goes to the
//! configured host and nowhere else.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use acquit_actors::model::QueueName;
use base64::Engine as _;
use serde_json::Value;
use ureq::Agent;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, TlsProvider};

use super::classify::tls_cause;
use super::error::clean;
use super::facts::{BrokerVersion, Known, QueueFacts};
use super::options::{ManagementOptions, TlsOptions};

/// No answer that we ask for is longer, in bytes.
const ANSWER_MAX: u64 = 4 * 1024 * 1024;

/// Why the management API told nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ManagementError {
    /// The address is not one.
    #[error(
        "`broker.management` is no address of a management API: {why}; expected one such as \"http://127.0.0.1:15672\""
    )]
    Url {
        /// What is wrong.
        why: &'static str,
    },
    /// The certificates to trust cannot be read.
    #[error("cannot read the certificates of `broker.ca-file`: {text}")]
    CaFile {
        /// Why.
        text: String,
    },
    /// User or password is wrong.
    #[error(
        "the management API refused the credentials; check `broker.management-user` and its password"
    )]
    CredentialsRefused,
    /// The user may not use the API.
    #[error(
        "the user of `broker.management` may not use the management API; give it the tag \"monitoring\" or \"management\""
    )]
    NotAllowed,
    /// Nobody answers there.
    #[error("cannot reach the management API: {text}")]
    Unreachable {
        /// Why.
        text: String,
    },
    /// TLS failed.
    #[error(
        "TLS with the management API: {text}; it is for the host of `broker.management`, and trusts `broker.ca-file`, else this system's certificates"
    )]
    Tls {
        /// Why.
        text: String,
    },
    /// No answer within the deadline.
    #[error("no answer of the management API within {}", humantime::format_duration(*after))]
    Timeout {
        /// How long it was waited.
        after: Duration,
    },
    /// An answer that is none of a management API.
    #[error("the management API answered with {text}; check `broker.management`")]
    Answer {
        /// What came.
        text: String,
    },
}

impl ManagementError {
    /// Gives the code to exit with: 2 for the configuration, 14 for the connection and credentials,
    /// 15 for permissions.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Url { .. } | Self::CaFile { .. } => 2,
            Self::CredentialsRefused
            | Self::Unreachable { .. }
            | Self::Tls { .. }
            | Self::Timeout { .. }
            | Self::Answer { .. } => 14,
            Self::NotAllowed => 15,
        }
    }
}

/// A client of the management API of one broker. Cheap to clone.
#[derive(Clone)]
pub struct Management {
    base: Arc<str>,
    /// The header of basic authentication: a secret.
    authorization: Arc<str>,
    agent: Agent,
    timeout: Duration,
}

impl fmt::Debug for Management {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Management")
            .field("base", &self.base)
            .finish_non_exhaustive()
    }
}

impl Management {
    /// Makes a client; nothing is sent. `https` trusts what AMQP trusts: the CA file, else the
    /// system's certificates.
    ///
    /// # Errors
    /// When the address is not one, or the CA file cannot be read.
    pub fn new(
        options: &ManagementOptions,
        tls: &TlsOptions,
        timeout: Duration,
    ) -> Result<Self, ManagementError> {
        let base = base(&options.url)?;
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(None)
            .timeout_global(Some(timeout))
            .user_agent("acquit");
        if base.starts_with("https:") {
            config = config.tls_config(trust(tls.ca_file.as_deref())?);
        }
        let pair = format!("{}:{}", options.user, options.password.reveal());
        let token = base64::engine::general_purpose::STANDARD.encode(pair);
        Ok(Self {
            base: base.into(),
            authorization: format!("Basic {token}").into(),
            agent: config.build().new_agent(),
            timeout,
        })
    }

    /// Asks for the broker's version; a broker that tells none that we can read leaves it unknown.
    ///
    /// # Errors
    /// [`ManagementError`], within the deadline.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn version(&self) -> Result<Known<BrokerVersion>, ManagementError> {
        let overview = self.get("/api/overview".to_owned()).await?;
        let text = overview
            .as_ref()
            .and_then(|o| o["rabbitmq_version"].as_str());
        Ok(text
            .and_then(|text| text.parse().ok())
            .map_or(Known::Unknown, Known::Is))
    }

    /// Asks for a queue; `None`: there is none.
    ///
    /// # Errors
    /// [`ManagementError`], within the deadline.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn queue(
        &self,
        vhost: &str,
        queue: &QueueName,
    ) -> Result<Option<QueueFacts>, ManagementError> {
        let path = format!("/api/queues/{}/{}", segment(vhost), segment(queue.as_str()));
        let answer = self.get(path).await?;
        Ok(answer.as_ref().map(QueueFacts::from_json))
    }

    /// Asks for the bindings from an exchange to queues, as queue and routing key; none where there
    /// is no such exchange.
    ///
    /// # Errors
    /// [`ManagementError`], within the deadline.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn bindings(
        &self,
        vhost: &str,
        exchange: &str,
    ) -> Result<Vec<(QueueName, String)>, ManagementError> {
        let (vhost, exchange) = (segment(vhost), segment(exchange));
        let path = format!("/api/exchanges/{vhost}/{exchange}/bindings/source");
        let answer = self.get(path).await?.unwrap_or(Value::Null);
        let bindings = answer.as_array().into_iter().flatten();
        let to_queue = bindings.filter(|binding| binding["destination_type"] == "queue");
        Ok(to_queue
            .filter_map(|binding| {
                let queue = binding["destination"].as_str()?;
                Some((queue.into(), binding["routing_key"].as_str()?.to_owned()))
            })
            .collect())
    }

    /// Asks, on the blocking pool; `None` for "not found".
    async fn get(&self, path: String) -> Result<Option<Value>, ManagementError> {
        let client = self.clone();
        let call = tokio::task::spawn_blocking(move || client.get_blocking(&path));
        let after = self.timeout;
        // The client has the same deadline; this one is for a resolver that does not keep it.
        let bound = after.saturating_add(Duration::from_millis(500));
        match tokio::time::timeout(bound, call).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(ManagementError::Answer {
                text: "nothing: the call was cancelled".to_owned(),
            }),
            Err(_) => Err(ManagementError::Timeout { after }),
        }
    }

    fn get_blocking(&self, path: &str) -> Result<Option<Value>, ManagementError> {
        let request = self
            .agent
            .get(format!("{}{path}", self.base))
            .header("authorization", &*self.authorization)
            .header("accept", "application/json");
        let mut response = request.call().map_err(|error| self.failure(&error))?;
        let status = response.status().as_u16();
        let body = response.body_mut().with_config().limit(ANSWER_MAX);
        let body = body.read_to_vec().map_err(|error| self.failure(&error))?;
        answer(status, &body)
    }

    fn failure(&self, error: &ureq::Error) -> ManagementError {
        match error {
            ureq::Error::Timeout(_) => ManagementError::Timeout {
                after: self.timeout,
            },
            ureq::Error::BodyExceedsLimit(_) => ManagementError::Answer {
                text: format!("more than {ANSWER_MAX} bytes"),
            },
            ureq::Error::Io(error) if let Some(tls) = tls_cause(error) => ManagementError::Tls {
                text: clean(&tls.to_string()),
            },
            ureq::Error::Protocol(_) => ManagementError::Answer {
                text: clean(&error.to_string()),
            },
            _ => ManagementError::Unreachable {
                text: clean(&error.to_string()),
            },
        }
    }
}

/// Reads an answer. RabbitMQ says 401 both to a wrong password and to a user without the tag.
fn answer(status: u16, body: &[u8]) -> Result<Option<Value>, ManagementError> {
    match status {
        200 => {
            let value = serde_json::from_slice(body).map_err(|_| ManagementError::Answer {
                text: "something that is no JSON".to_owned(),
            })?;
            Ok(Some(value))
        }
        404 => Ok(None),
        401 | 403 => {
            let told: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
            let reason = told["reason"].as_str().unwrap_or_default();
            if status == 401 && !reason.contains("management user") {
                Err(ManagementError::CredentialsRefused)
            } else {
                Err(ManagementError::NotAllowed)
            }
        }
        other => Err(ManagementError::Answer {
            text: format!("HTTP status {other}"),
        }),
    }
}

/// Checks the address and takes the slash off its end.
fn base(url: &str) -> Result<String, ManagementError> {
    let refuse = |why| Err(ManagementError::Url { why });
    let Some((scheme, rest)) = url.split_once("://") else {
        return refuse("there is no http:// or https://");
    };
    if !matches!(scheme, "http" | "https") {
        return refuse("only http and https are known");
    }
    let authority = rest.split('/').next().unwrap_or_default();
    if authority.contains('@') {
        return refuse("user and password have keys of their own");
    }
    if authority.is_empty() || url.contains(['?', '#', ' ']) || url.chars().any(char::is_control) {
        return refuse("it must be a host and a port");
    }
    Ok(url.trim_end_matches('/').to_owned())
}

/// Percent-encodes all of a path's segment but letters, digits, `-`, `_` and `~`. A name of dots
/// alone stays one segment too.
fn segment(name: &str) -> String {
    let mut out = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'~') {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

fn trust(ca_file: Option<&Path>) -> Result<TlsConfig, ManagementError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let certificates: Vec<Certificate<'static>> = match ca_file {
        Some(file) => from_file(file)?,
        // A certificate of the system's that cannot be read is one that is not trusted.
        None => rustls_native_certs::load_native_certs()
            .certs
            .iter()
            .map(|certificate| Certificate::from_der(certificate.as_ref()).to_owned())
            .collect(),
    };
    Ok(TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .unversioned_rustls_crypto_provider(provider)
        .root_certs(RootCerts::from(certificates))
        .build())
}

fn from_file(file: &Path) -> Result<Vec<Certificate<'static>>, ManagementError> {
    let failed = |text: &str| ManagementError::CaFile {
        text: clean(&format!("{}: {text}", file.display())),
    };
    let pem = std::fs::read(file).map_err(|error| failed(&error.to_string()))?;
    let mut certificates = Vec::new();
    for item in ureq::tls::parse_pem(&pem) {
        match item.map_err(|error| failed(&error.to_string()))? {
            PemItem::Certificate(certificate) => certificates.push(certificate),
            _ => return Err(failed("there is something that is no certificate")),
        }
    }
    if certificates.is_empty() {
        return Err(failed("there is no certificate in it"));
    }
    Ok(certificates)
}

#[cfg(test)]
mod tests {
    use super::super::uri::Secret;
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    fn client(url: &str) -> Result<Management, ManagementError> {
        let options = ManagementOptions {
            url: url.to_owned(),
            user: "watcher".to_owned(),
            password: Secret::new("s3cret"),
        };
        Management::new(&options, &TlsOptions::default(), Duration::from_secs(2))
    }

    #[test]
    fn addresses_are_checked_before_anything_is_sent() {
        for (url, why) in [
            ("127.0.0.1:15672", "no http"),
            ("amqp://h", "only http"),
            ("http://u:p@h:1", "keys of their own"),
            ("http://", "a host and a port"),
            ("http://h?x", "a host and a port"),
            ("http://h\r\nx: y", "a host and a port"),
        ] {
            let error = client(url).expect_err(url).to_string();
            assert!(error.contains(why), "{error}");
        }
        let client = client("http://h:1/").expect("valid");
        assert_eq!(&*client.base, "http://h:1");
        assert!(!format!("{client:?}").contains("Basic"), "{client:?}");
    }

    #[test]
    fn names_are_one_segment_of_the_path() {
        assert_eq!(segment("/"), "%2F");
        assert_eq!(segment("a b/é.."), "a%20b%2F%C3%A9%2E%2E");
        assert_eq!(segment("words-0_~"), "words-0_~");
    }

    #[test]
    fn answers_are_told_apart() {
        assert_eq!(answer(404, b"x"), Ok(None));
        assert_eq!(answer(200, b"{}"), Ok(Some(serde_json::json!({}))));
        // As RabbitMQ 3.10.8 says them.
        let login = br#"{"error":"not_authorized","reason":"Login failed"}"#;
        assert_eq!(answer(401, login), Err(ManagementError::CredentialsRefused));
        let tag = br#"{"error":"not_authorised","reason":"Not management user"}"#;
        assert_eq!(answer(401, tag), Err(ManagementError::NotAllowed));
        for (status, body) in [(200, "<html>"), (302, ""), (500, "")] {
            let error = answer(status, body.as_bytes()).expect_err("no answer");
            assert_eq!(error.exit_code(), 14, "{error}");
        }
    }

    /// Answers one connection with these bytes, then keeps it open.
    fn serve(bytes: Vec<u8>) -> (String, std::thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let served = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().expect("a client");
            let mut request = vec![0; 4096];
            let length = socket.read(&mut request).expect("a request");
            let _ = socket.write_all(&bytes);
            // Until the client has gone.
            let _ = socket.read(&mut [0; 1]);
            String::from_utf8_lossy(&request[..length]).into_owned()
        });
        (url, served)
    }

    #[tokio::test]
    async fn a_queue_is_asked_for_with_basic_authentication() {
        let body = r#"{"type":"classic","durable":true,"arguments":{}}"#;
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
        let (url, served) = serve(format!("{head}{body}").into_bytes());
        let client = client(&url).expect("valid");
        let facts = client
            .queue("/", &"words.0".into())
            .await
            .expect("an answer");
        assert_eq!(
            facts.and_then(|facts| facts.kind).as_deref(),
            Some("classic")
        );
        drop(client);
        let request = served.join().expect("served");
        assert!(
            request.starts_with("GET /api/queues/%2F/words%2E0 "),
            "{request}"
        );
        assert!(
            request
                .to_lowercase()
                .contains("authorization: basic d2f0y2hlcjpzm2nyzxq="),
            "{request}"
        );
    }

    #[tokio::test]
    async fn an_answer_that_never_ends_is_given_up() {
        let (url, _served) = serve(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{".to_vec());
        let error = client(&url)
            .expect("valid")
            .version()
            .await
            .expect_err("no end");
        assert!(matches!(error, ManagementError::Timeout { .. }), "{error}");
    }

    #[tokio::test]
    async fn an_answer_without_bounds_and_a_port_without_a_server_are_told() {
        let length = ANSWER_MAX + 1;
        let mut bytes = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n").into_bytes();
        bytes.resize(bytes.len() + usize::try_from(length).expect("small"), b' ');
        let (url, _served) = serve(bytes);
        let error = client(&url)
            .expect("valid")
            .version()
            .await
            .expect_err("too long");
        assert!(error.to_string().contains("more than"), "{error}");
        let error = client("http://127.0.0.1:1").expect("valid").version().await;
        let error = error.expect_err("nobody");
        assert!(
            matches!(error, ManagementError::Unreachable { .. }),
            "{error}"
        );
        assert!(!error.to_string().contains("s3cret"), "{error}");
    }
}
