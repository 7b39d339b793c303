//! Why a text is no address of a broker.

use std::fmt;

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

impl UriError {
    /// Keeps the name of an option back where it may be a part of a password.
    pub(super) fn without_name_if(self, may_be_password: bool) -> Self {
        match self {
            Self::UnknownOption { .. } | Self::OptionTwice { .. } if may_be_password => {
                Self::OptionShape
            }
            other => other,
        }
    }
}
