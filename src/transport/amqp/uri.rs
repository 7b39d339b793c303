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

use std::fmt;
use std::net::Ipv6Addr;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

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
        common.read_query(parts.query)?;
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

/// A part of an address that is percent-decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Part {
    /// The user.
    User,
    /// The password.
    Password,
    /// The virtual host.
    Vhost,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::User => "user",
            Self::Password => "password",
            Self::Vhost => "virtual host",
        })
    }
}

/// Why a text is no address. It never holds what a password may be a part of.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UriError {
    /// Neither `amqp://` nor `amqps://` at its start.
    #[error("does not start with amqp:// or amqps://")]
    Scheme,
    /// The scheme stands before a second host too.
    #[error(
        "the scheme and the user stand once, before the first host: amqp://user:password@host-1,host-2"
    )]
    SecondScheme,
    /// More than one address where one is expected.
    #[error("names several hosts; one is expected here")]
    Several,
    /// A raw `@` besides the one that ends user and password.
    #[error("more than one @: in a user, password or virtual host write it %40{RAW_HINT}")]
    SecondAt,
    /// A character before the `@` that ends the authority.
    #[error("a raw {found} before the @: in a user or password write it {encoded}{RAW_HINT}")]
    RawBeforeAt {
        /// The character.
        found: char,
        /// How to write it.
        encoded: &'static str,
    },
    /// A raw `#`.
    #[error("a raw #: in a user, password or virtual host write it %23{RAW_HINT}")]
    Fragment,
    /// A character that must not stand raw.
    #[error(
        "the {part} has a raw character that must be percent-encoded, such as %40 for @{}",
        if *.part == Part::Vhost { "" } else { RAW_HINT }
    )]
    Raw {
        /// Where.
        part: Part,
    },
    /// A `%` without two hexadecimal digits.
    #[error("the {part} has a % without two hexadecimal digits after it; write a % itself as %25")]
    Percent {
        /// Where.
        part: Part,
    },
    /// Decoded, it is not UTF-8.
    #[error("the {part} is not UTF-8 when it is decoded")]
    Encoding {
        /// Where.
        part: Part,
    },
    /// A name or password with a control character, or too long for the protocol.
    #[error("the {part} is longer than 255 bytes or has a control character in it")]
    Unsendable {
        /// Where.
        part: Part,
    },
    /// Nothing before the `:` or the `@`.
    #[error("the user is empty; leave out the @ for the default user")]
    EmptyUser,
    /// No host.
    #[error("host {number} is empty; expected such as rabbit.example or rabbit.example:5672")]
    EmptyHost {
        /// The first is 1.
        number: usize,
    },
    /// A host that is none.
    #[error("host {number} has a character that no host name has")]
    Host {
        /// The first is 1.
        number: usize,
    },
    /// An IPv6 address that is none, or has no brackets.
    #[error("host {number} is no IPv6 address in brackets, such as [::1] or [::1]:5672")]
    Ipv6 {
        /// The first is 1.
        number: usize,
    },
    /// A port that is none.
    #[error("the port of host {number} is not a whole number from 1 to 65535")]
    Port {
        /// The first is 1.
        number: usize,
    },
    /// A second slash.
    #[error(
        "more than one / after the host: a / in the name of a virtual host is written %2F, such \
         as /v%2Fh; the default one is /%2F"
    )]
    SecondSlash,
    /// An option without a value.
    #[error("an option after the ? is not written name=value")]
    OptionShape,
    /// An option that we do not know.
    #[error("unknown option `{option}`; known are heartbeat, connection_timeout, auth_mechanism")]
    UnknownOption {
        /// Its name.
        option: String,
    },
    /// An option given twice.
    #[error("the option `{option}` stands there twice")]
    OptionTwice {
        /// Its name.
        option: String,
    },
    /// An option with a value that it cannot have.
    #[error("the option `{option}` is wrong; expected {expected}")]
    OptionValue {
        /// Its name.
        option: &'static str,
        /// What it can be.
        expected: &'static str,
    },
    /// An option that has a key of the configuration instead.
    #[error("the files of TLS are not named here; use broker.{key}")]
    OptionElsewhere {
        /// The key.
        key: &'static str,
    },
    /// `verify=verify_none`.
    #[error(
        "verify=verify_none is refused: without a check of the certificate anyone on the way can \
         read along; name the certificate to trust in broker.ca-file"
    )]
    Unverified,
}

/// What to do where a character stands raw.
const RAW_HINT: &str = ", or use the keys user and password-file";

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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn vhost_of(path: &str, expected: &str) {
        let text = format!("amqp://user:pass@host:5672{path}");
        let uri = AmqpUri::parse(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(uri.vhost, expected, "{text}");
    }

    #[track_caller]
    fn refused(text: &str, expected: &str) {
        let error = AmqpUri::parse_list(text).expect_err(text);
        assert_eq!(error.to_string(), expected, "{text}");
    }

    #[test]
    fn what_is_left_out_has_a_default() {
        assert_eq!(
            AmqpUri::parse("amqp://127.0.0.1:5672"),
            Ok(AmqpUri::local(5672))
        );
        let uri = AmqpUri::parse("AMQPS://rabbit.example").expect("valid");
        assert_eq!((uri.tls, uri.port), (true, 5671));
        assert_eq!(
            (uri.user.as_str(), uri.password.reveal()),
            ("guest", "guest")
        );
        let uri = AmqpUri::parse("amqp://user@host").expect("valid");
        assert_eq!((uri.user.as_str(), uri.password.reveal()), ("user", ""));
        assert!(uri.has_user);
        assert_eq!(
            (uri.heartbeat, uri.connection_timeout, uri.external),
            (None, None, None)
        );
    }

    #[test]
    fn a_path_is_one_virtual_host() {
        for (path, vhost) in [
            ("", "/"),
            ("/", "/"),
            ("/%2F", "/"),
            ("/%2f", "/"),
            ("/orders", "orders"),
            ("/v%2Fh", "v/h"),
            ("/a%20b", "a b"),
            ("/%C3%A9", "é"),
            ("/a:b$", "a:b$"),
            ("?heartbeat=5", "/"),
        ] {
            vhost_of(path, vhost);
        }
        let slash = "more than one / after the host: a / in the name of a virtual host is written \
                     %2F, such as /v%2Fh; the default one is /%2F";
        for path in ["//", "//test", "/a/b", "/a/"] {
            refused(&format!("amqp://host{path}"), slash);
        }
        let raw = "the virtual host has a raw character that must be percent-encoded, such as %40 \
                   for @";
        refused("amqp://host/a b", raw);
        refused("amqp://host/é", raw);
        refused(
            "amqp://host/a%2",
            "the virtual host has a % without two hexadecimal digits after it; write a % itself \
             as %25",
        );
        refused(
            "amqp://host/%FF",
            "the virtual host is not UTF-8 when it is decoded",
        );
    }

    #[test]
    fn user_and_password_are_decoded() {
        let text = "amqp://us%40er:a%23%24%40%3A%2F%3F%25%26%20%C3%BC@host/%2F";
        let uri = AmqpUri::parse(text).expect("valid");
        assert_eq!(uri.user, "us@er");
        assert_eq!(uri.password.reveal(), "a#$@:/?%& ü");
        let uri = AmqpUri::parse("amqp://u:a$+b@host").expect("valid");
        assert_eq!(uri.password.reveal(), "a$+b");
    }

    #[test]
    fn what_stands_raw_in_a_password_is_refused_with_a_way_out() {
        const KEYS: &str = ", or use the keys user and password-file";
        let before = |found: &str, encoded: &str| {
            format!("a raw {found} before the @: in a user or password write it {encoded}{KEYS}")
        };
        let second_at =
            format!("more than one @: in a user, password or virtual host write it %40{KEYS}");
        let fragment = format!("a raw #: in a user, password or virtual host write it %23{KEYS}");
        let percent =
            "the password has a % without two hexadecimal digits after it; write a % itself as %25";
        let raw = format!(
            "the password has a raw character that must be percent-encoded, such as %40 for @{KEYS}"
        );
        for (password, expected) in [
            ("p@ss", second_at.as_str()),
            ("a#$@:/?%& ü", &fragment),
            ("p#ss", &fragment),
            ("p/ss", &before("/", "%2F")),
            ("p?ss", &before("?", "%3F")),
            ("p:ss", &before(":", "%3A")),
            ("p%ss", percent),
            ("p%", percent),
            ("p%ü", percent),
            ("p ss", &raw),
            ("pü", &raw),
        ] {
            refused(
                &format!("amqp://guest:{password}@127.0.0.1:5672/%2F"),
                expected,
            );
        }
        refused(
            "amqp://:x@host",
            "the user is empty; leave out the @ for the default user",
        );
        refused(
            "amqp://u:a%00b@host",
            "the password is longer than 255 bytes or has a control character in it",
        );
        // Without an @, what is meant as a password is taken for a port.
        refused(
            "amqp://user:hunter2",
            "the port of host 1 is not a whole number from 1 to 65535",
        );
    }

    #[test]
    fn hosts_come_in_their_order() {
        let text = "amqp://user:pass@h1:5672,h2,[::1]:5673,[fe80::2]/vhost?heartbeat=7";
        let uris = AmqpUri::parse_list(text).expect("valid");
        let addresses: Vec<_> = uris.iter().map(AmqpUri::address).collect();
        assert_eq!(
            addresses,
            ["h1:5672", "h2:5672", "[::1]:5673", "[fe80::2]:5672"]
        );
        assert_eq!(uris[2].host, "::1");
        for uri in &uris {
            assert_eq!((uri.user.as_str(), uri.vhost.as_str()), ("user", "vhost"));
            assert_eq!(uri.heartbeat, Some(7));
        }
        assert_eq!(AmqpUri::parse(text), Err(UriError::Several));
    }

    #[test]
    fn a_host_or_port_that_is_none_is_refused_by_its_number() {
        let empty = |n| {
            format!("host {n} is empty; expected such as rabbit.example or rabbit.example:5672")
        };
        let ipv6 =
            |n| format!("host {n} is no IPv6 address in brackets, such as [::1] or [::1]:5672");
        let port = |n| format!("the port of host {n} is not a whole number from 1 to 65535");
        for (text, expected) in [
            ("amqp://", empty(1)),
            ("amqp:///vhost", empty(1)),
            ("amqp://a,,b", empty(2)),
            ("amqp://u:p@:5672", empty(1)),
            ("amqp://::1", ipv6(1)),
            ("amqp://a,[::1", ipv6(2)),
            ("amqp://[::1]x", ipv6(1)),
            ("amqp://[127.0.0.1]", ipv6(1)),
            ("amqp://a:0", port(1)),
            ("amqp://a,b:65536", port(2)),
            ("amqp://a:+1", port(1)),
            ("amqp://a:", port(1)),
            (
                "amqp://a b",
                "host 1 has a character that no host name has".to_owned(),
            ),
            (
                "http://a",
                "does not start with amqp:// or amqps://".to_owned(),
            ),
            (
                "amqp:a",
                "does not start with amqp:// or amqps://".to_owned(),
            ),
            (
                "amqp://u:p@a,amqp://u:p@b",
                "the scheme and the user stand once, before the first host: \
                 amqp://user:password@host-1,host-2"
                    .to_owned(),
            ),
        ] {
            refused(text, &expected);
        }
    }

    #[test]
    fn options_are_read_and_unknown_ones_are_named() {
        let uri = AmqpUri::parse(
            "amqps://h?heartbeat=0&connection_timeout=2500&auth_mechanism=EXTERNAL&verify=verify_peer",
        )
        .expect("valid");
        assert_eq!(uri.heartbeat, Some(0));
        assert_eq!(uri.connection_timeout, Some(Duration::from_millis(2500)));
        assert_eq!(uri.external, Some(true));
        let uri = AmqpUri::parse("amqp://h/v?heartbeat=600&auth_mechanism=plain").expect("valid");
        assert_eq!((uri.heartbeat, uri.external), (Some(600), Some(false)));
        let heartbeat =
            "the option `heartbeat` is wrong; expected seconds as a whole number from 0 to 65535";
        for (query, expected) in [
            (
                "hartbeat=5",
                "unknown option `hartbeat`; known are heartbeat, connection_timeout, auth_mechanism",
            ),
            ("heartbeat=-1", heartbeat),
            ("heartbeat=5s", heartbeat),
            ("heartbeat=", heartbeat),
            (
                "connection_timeout=0",
                "the option `connection_timeout` is wrong; expected milliseconds as a whole number \
                 from 1 to 4294967295",
            ),
            (
                "auth_mechanism=amqplain",
                "the option `auth_mechanism` is wrong; expected `plain` or `external`",
            ),
            (
                "verify=verify_none",
                "verify=verify_none is refused: without a check of the certificate anyone on the \
                 way can read along; name the certificate to trust in broker.ca-file",
            ),
            (
                "cacertfile=x",
                "the files of TLS are not named here; use broker.ca-file",
            ),
            (
                "heartbeat=1&heartbeat=1",
                "the option `heartbeat` stands there twice",
            ),
            ("", "an option after the ? is not written name=value"),
            ("x", "an option after the ? is not written name=value"),
            ("A B=1", "an option after the ? is not written name=value"),
        ] {
            refused(&format!("amqp://h/v?{query}"), expected);
        }
    }

    #[test]
    fn it_is_shown_without_password_and_options() {
        let text = "amqp://us%40er:hunter2@[::1]/v%2Fh?heartbeat=3";
        let uri = AmqpUri::parse(text).expect("valid");
        assert_eq!(uri.to_string(), "amqp://us%40er@[::1]:5672/v%2Fh");
        assert!(!format!("{uri:?}").contains("hunter2"));
        let uri = AmqpUri::parse("amqps://host").expect("valid");
        assert_eq!(uri.to_string(), "amqps://guest@host:5671/%2F");
    }

    proptest! {
        #[test]
        fn no_error_and_no_form_of_it_has_the_password(
            before in "[a-z]{0,3}",
            junk in "[#$@:/?%&, =\\[\\]ü]{0,4}",
            after in "[#$@:/?%&, =a-z]{0,4}",
            tail in "(:5672|:x|,b:c)?(/|/v|//v|/a/b|/%2)?(\\?heartbeat=x|\\?zzz=1|\\?x)?",
            ends in any::<bool>(),
        ) {
            // The same word on each side of what stands raw: neither half may be shown.
            let password = format!("{before}QZXJ{junk}QZXJ{after}");
            let at = if ends { "@host" } else { "" };
            let text = format!("amqp://user:{password}{at}{tail}");
            match AmqpUri::parse_list(&text) {
                Ok(uris) => {
                    // Without an @ there is no password, and a word is never a port.
                    prop_assert!(ends);
                    for uri in uris {
                        prop_assert!(!uri.to_string().contains("QZXJ"), "{uri}");
                        prop_assert!(!format!("{uri:?}").contains("QZXJ"), "{uri:?}");
                    }
                }
                Err(error) => {
                    prop_assert!(!error.to_string().contains("QZXJ"), "{error}");
                    prop_assert!(!format!("{error:?}").contains("QZXJ"), "{error:?}");
                }
            }
        }

        #[test]
        fn what_is_encoded_is_read_back(user in "\\PC{1,20}", password in "\\PC{0,20}", vhost in "\\PC{1,20}") {
            let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
            let text = format!(
                "amqp://{}:{}@host/{}",
                encode(&user),
                encode(&password),
                encode(&vhost)
            );
            let uri = AmqpUri::parse(&text).expect("valid");
            prop_assert_eq!(uri.password.reveal(), &password);
            prop_assert_eq!((&uri.user, &uri.vhost), (&user, &vhost));
            let shown = AmqpUri::parse(&uri.to_string()).expect("valid");
            prop_assert_eq!((shown.user, shown.vhost), (user, vhost));
        }

        #[test]
        fn no_text_makes_it_panic(text in "(amqp://)?\\PC{0,60}") {
            let _ = AmqpUri::parse_list(&text);
        }
    }
}
