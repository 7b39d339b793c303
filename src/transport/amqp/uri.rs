//! Where a RabbitMQ is and who we are there: the addresses of `broker.url`, by RabbitMQ's URI
//! specification, read without a guess. Pure: it opens and resolves nothing.
//!
//! ```text
//! amqp://user:password@host-1:5672,host-2:5673/vhost?heartbeat=5
//! ```
//!
//! | path | virtual host |
//! |---|---|
//! | none, `/`, `/%2F`, `/%2f` | `/` |
//! | `/orders` | `orders` |
//! | `/v%2Fh`, `/a%20b`, `/%C3%A9` | `v/h`, `a b`, `é` |
//! | `//orders`, `/a/b`, `/a/` | refused: a slash of the name is written `%2F` |
//!
//! RabbitMQ reads `/` as a virtual host with an empty name, which no broker has; here it is the
//! default one, as with most clients.
//!
//! | user and password | who we are |
//! |---|---|
//! | none | `guest`, `guest` |
//! | `user@` | `user`, with an empty password |
//! | `user:password@` | both, percent-decoded |
//!
//! | option | meaning |
//! |---|---|
//! | `heartbeat` | seconds, 0 to 65535; 0 turns heartbeats off |
//! | `connection_timeout` | milliseconds, above 0 |
//! | `auth_mechanism` | `plain` or `external` |
//!
//! An error shows no part of the text but the name of an option: where a character stands raw,
//! any other part may belong to the password.

mod error;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::Ipv6Addr;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

pub use error::{Part, UriError};

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

/// One address of a broker, decoded. Several share everything but host and port. Shown, it is the
/// address without password and options.
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
    /// Whether the text named a user, or `guest` is only the default.
    pub has_user: bool,
    /// The virtual host, decoded; `/`.
    pub vhost: String,
    /// `heartbeat` of the query, in seconds; 0 turns it off.
    pub heartbeat: Option<u16>,
    /// `connection_timeout` of the query.
    pub connection_timeout: Option<Duration>,
    /// `auth_mechanism` of the query: whether it is `external`.
    pub external: Option<bool>,
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
            has_user: false,
            vhost: "/".to_owned(),
            heartbeat: None,
            connection_timeout: None,
            external: None,
        }
    }

    /// Reads exactly one address.
    ///
    /// # Errors
    /// [`UriError`], which shows neither the password nor what may be a part of it.
    pub fn parse(text: &str) -> Result<Self, UriError> {
        let mut uris = Self::parse_list(text)?;
        match uris.pop() {
            Some(uri) if uris.is_empty() => Ok(uri),
            _ => Err(UriError::Several),
        }
    }

    /// Reads one address or several: hosts with commas between them. They come in the order of
    /// the text; there is at least one.
    ///
    /// # Errors
    /// [`UriError`], which shows neither the password nor what may be a part of it.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, UriError> {
        let (tls, rest) = scheme(text)?;
        let parts = split(rest)?;
        let mut common = Self {
            tls,
            ..Self::local(if tls { 5671 } else { 5672 })
        };
        if let Some(userinfo) = parts.userinfo {
            common.read_userinfo(userinfo)?;
        }
        let hosts = hosts(parts.hosts, common.port)?;
        if let Some(path) = parts.path {
            common.vhost = vhost(path)?;
        }
        // Without an `@` a colon may be followed by the beginning of a password and not by a port:
        // then what looks like an option may be the rest of it.
        let may_be_password = parts.userinfo.is_none() && parts.hosts.contains(':');
        common
            .read_query(parts.query)
            .map_err(|error| error.without_name_if(may_be_password))?;
        let with_host = |(host, port)| Self {
            host,
            port,
            ..common.clone()
        };
        Ok(hosts.into_iter().map(with_host).collect())
    }

    /// Gives `host:port`, with brackets around an IPv6 address.
    pub fn address(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    fn read_userinfo(&mut self, userinfo: &str) -> Result<(), UriError> {
        let (user, password) = userinfo.split_once(':').unwrap_or((userinfo, ""));
        if user.is_empty() {
            return Err(UriError::EmptyUser);
        }
        self.user = decode(user, Part::User)?;
        self.password = Secret(decode(password, Part::Password)?);
        self.has_user = true;
        Ok(())
    }

    fn read_query(&mut self, query: Option<&str>) -> Result<(), UriError> {
        let mut seen: Vec<&str> = Vec::new();
        for option in query.into_iter().flat_map(|query| query.split('&')) {
            let (name, value) = option.split_once('=').ok_or(UriError::OptionShape)?;
            if seen.contains(&name) {
                return Err(unless_odd(name, |option| UriError::OptionTwice { option }));
            }
            seen.push(name);
            self.read_option(name, value)?;
        }
        Ok(())
    }

    fn read_option(&mut self, name: &str, value: &str) -> Result<(), UriError> {
        let wrong = |option, expected| UriError::OptionValue { option, expected };
        match name {
            "heartbeat" => {
                let seconds = number(value).and_then(|seconds| u16::try_from(seconds).ok());
                let expected = "seconds as a whole number from 0 to 65535";
                self.heartbeat = Some(seconds.ok_or_else(|| wrong("heartbeat", expected))?);
            }
            "connection_timeout" => {
                let millis = number(value).filter(|millis| *millis > 0);
                let expected = "milliseconds as a whole number from 1 to 4294967295";
                let millis = millis.ok_or_else(|| wrong("connection_timeout", expected))?;
                self.connection_timeout = Some(Duration::from_millis(millis.into()));
            }
            "auth_mechanism" if value.eq_ignore_ascii_case("plain") => self.external = Some(false),
            "auth_mechanism" if value.eq_ignore_ascii_case("external") => {
                self.external = Some(true);
            }
            "auth_mechanism" => return Err(wrong("auth_mechanism", "`plain` or `external`")),
            // What we do in any case.
            "verify" if value == "verify_peer" => {}
            "verify" if value == "verify_none" => return Err(UriError::Unverified),
            "verify" => return Err(wrong("verify", "`verify_peer`")),
            "cacertfile" => return Err(UriError::OptionElsewhere { key: "ca-file" }),
            "certfile" => return Err(UriError::OptionElsewhere { key: "cert-file" }),
            "keyfile" => return Err(UriError::OptionElsewhere { key: "key-file" }),
            _ => {
                return Err(unless_odd(name, |option| UriError::UnknownOption {
                    option,
                }));
            }
        }
        Ok(())
    }
}

impl fmt::Display for AmqpUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// What stands for itself.
        const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
            .remove(b'-')
            .remove(b'_')
            .remove(b'.')
            .remove(b'~');
        let scheme = if self.tls { "amqps" } else { "amqp" };
        let user = utf8_percent_encode(&self.user, PLAIN);
        let vhost = utf8_percent_encode(&self.vhost, PLAIN);
        write!(f, "{scheme}://{user}@{}/{vhost}", self.address())
    }
}

/// The pieces of an address behind its scheme.
struct Pieces<'t> {
    userinfo: Option<&'t str>,
    hosts: &'t str,
    /// Without its first slash.
    path: Option<&'t str>,
    query: Option<&'t str>,
}

fn scheme(text: &str) -> Result<(bool, &str), UriError> {
    let (scheme, rest) = text.split_once("://").ok_or(UriError::Scheme)?;
    match scheme {
        _ if scheme.eq_ignore_ascii_case("amqp") => Ok((false, rest)),
        _ if scheme.eq_ignore_ascii_case("amqps") => Ok((true, rest)),
        _ => Err(UriError::Scheme),
    }
}

/// Takes the text apart. What stands raw where it may be a part of a password is refused here,
/// before anything is read that an error could show.
fn split(rest: &str) -> Result<Pieces<'_>, UriError> {
    if rest.contains(",amqp://") || rest.contains(",amqps://") {
        return Err(UriError::SecondScheme);
    }
    if rest.contains('#') {
        return Err(UriError::Fragment);
    }
    if rest.matches('@').count() > 1 {
        return Err(UriError::SecondAt);
    }
    let (userinfo, rest) = match rest.split_once('@') {
        Some((userinfo, rest)) => (Some(userinfo), rest),
        None => (None, rest),
    };
    if let Some(userinfo) = userinfo {
        for (found, encoded) in [('/', "%2F"), ('?', "%3F")] {
            if userinfo.contains(found) {
                return Err(UriError::RawBeforeAt { found, encoded });
            }
        }
        if userinfo.matches(':').count() > 1 {
            let (found, encoded) = (':', "%3A");
            return Err(UriError::RawBeforeAt { found, encoded });
        }
    }
    let (rest, query) = match rest.split_once('?') {
        Some((rest, query)) => (rest, Some(query)),
        None => (rest, None),
    };
    let (hosts, path) = match rest.split_once('/') {
        Some((hosts, path)) => (hosts, Some(path)),
        None => (rest, None),
    };
    Ok(Pieces {
        userinfo,
        hosts,
        path,
        query,
    })
}

fn hosts(text: &str, default_port: u16) -> Result<Vec<(String, u16)>, UriError> {
    (1..)
        .zip(text.split(','))
        .map(|(number, text)| host(number, text, default_port))
        .collect()
}

fn host(number: usize, text: &str, default_port: u16) -> Result<(String, u16), UriError> {
    let (host, port) = match text.strip_prefix('[') {
        Some(bracketed) => {
            let (host, after) = bracketed
                .split_once(']')
                .filter(|(host, _)| host.parse::<Ipv6Addr>().is_ok())
                .ok_or(UriError::Ipv6 { number })?;
            match after.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if after.is_empty() => (host, None),
                None => return Err(UriError::Ipv6 { number }),
            }
        }
        None if text.matches(':').count() > 1 => return Err(UriError::Ipv6 { number }),
        None => {
            let (host, port) = match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            };
            if host.is_empty() {
                return Err(UriError::EmptyHost { number });
            }
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            if !host.chars().all(is_plain) {
                return Err(UriError::Host { number });
            }
            (host, port)
        }
    };
    let port = match port {
        None => default_port,
        Some(port) => self::number(port)
            .and_then(|port| u16::try_from(port).ok())
            .filter(|port| *port > 0)
            .ok_or(UriError::Port { number })?,
    };
    Ok((host.to_owned(), port))
}

fn vhost(path: &str) -> Result<String, UriError> {
    match path {
        "" => Ok("/".to_owned()),
        _ if path.contains('/') => Err(UriError::SecondSlash),
        _ => decode(path, Part::Vhost),
    }
}

/// Decodes what is percent-encoded, and only that: a raw character that needs it is refused.
fn decode(text: &str, part: Part) -> Result<String, UriError> {
    /// What the specification lets stand raw besides letters and digits.
    const RAW: &str = "-._~!$&'()*+,;=";
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        rest = match c {
            '%' => {
                let digits = rest.get(1..3).unwrap_or_default();
                if digits.len() != 2 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
                    return Err(UriError::Percent { part });
                }
                &rest[3..]
            }
            ':' if part == Part::Vhost => &rest[1..],
            _ if c.is_ascii_alphanumeric() || RAW.contains(c) => &rest[1..],
            _ => return Err(UriError::Raw { part }),
        };
    }
    let decoded = percent_decode_str(text)
        .decode_utf8()
        .map_err(|_| UriError::Encoding { part })?;
    // The protocol's short texts; a zero byte parts user and password.
    if decoded.len() > 255 || decoded.contains(char::is_control) {
        return Err(UriError::Unsendable { part });
    }
    Ok(decoded.into_owned())
}

/// Reads digits alone: no sign.
fn number(text: &str) -> Option<u32> {
    let is_digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    is_digits.then(|| text.parse().ok()).flatten()
}

/// Makes an error that shows an option's name, if it looks like one.
fn unless_odd(name: &str, error: impl Fn(String) -> UriError) -> UriError {
    let is_name = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-';
    if !name.is_empty() && name.len() <= 40 && name.bytes().all(is_name) {
        error(name.to_owned())
    } else {
        UriError::OptionShape
    }
}
