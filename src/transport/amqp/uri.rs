//! Where a RabbitMQ is and who we are there.

use std::fmt;

/// A password or token: never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    pub fn new(secret: impl Into<String>) -> Self {
        Self(secret.into())
    }

    /// Gives it, for the one place that sends it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

/// One address of a broker, decoded. Several share everything but host and port.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AmqpUri {
    /// `amqps`.
    pub tls: bool,
    /// A host name, an IPv4 address, or an IPv6 address without brackets.
    pub host: String,
    /// The port; 5672, with TLS 5671.
    pub port: u16,
    /// Who we are, decoded; `guest`.
    pub user: String,
    /// The password, decoded; `guest`.
    pub password: Secret,
    /// The virtual host, decoded; `/`.
    pub vhost: String,
    /// `heartbeat` of the query, in seconds; 0 turns it off.
    pub heartbeat: Option<u16>,
}

impl AmqpUri {
    /// The broker on this machine with its default user, for a port.
    pub fn local(port: u16) -> Self {
        Self {
            tls: false,
            host: "127.0.0.1".to_owned(),
            port,
            user: "guest".to_owned(),
            password: Secret::new("guest"),
            vhost: "/".to_owned(),
            heartbeat: None,
        }
    }

    /// Gives `host:port`, with brackets around an IPv6 address.
    pub fn address(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl AmqpUri {
    /// TEMP
    #[allow(missing_docs)]
    pub fn parse(text: &str) -> Result<Self, String> {
        let port = text
            .rsplit(':')
            .next()
            .and_then(|p| p.parse().ok())
            .ok_or("port")?;
        Ok(Self::local(port))
    }
}
