//! Tells the errors of a RabbitMQ apart. Pure: it reads the error of the client library and the
//! broker's own text, which is escaped and cut before it is kept.

use std::io;

use lapin::ErrorKind;

use super::error::{AmqpError, Mismatch, Object, Right, TlsTrouble, clean};
use super::reply_text::{self, Inequivalent, Named, Refused, Side};

/// Tells what an error of the client library is.
pub fn classify(error: &lapin::Error) -> AmqpError {
    match error.kind() {
        ErrorKind::ProtocolError(error) => reply(error.get_id(), error.get_message().as_str()),
        ErrorKind::IOError(error) => of_io(error),
        ErrorKind::ParsingError(_) => AmqpError::NotAmqp {
            text: clean(&error.to_string()),
        },
        ErrorKind::InvalidProtocolVersion(version) => AmqpError::NotAmqp {
            text: clean(&format!("it wants AMQP {version}")),
        },
        ErrorKind::InvalidChannelState(..) | ErrorKind::InvalidChannel(_) => {
            AmqpError::ChannelClosed {
                text: clean(&error.to_string()),
            }
        }
        ErrorKind::InvalidConnectionState(_) => AmqpError::ConnectionClosed {
            text: clean(&error.to_string()),
        },
        ErrorKind::MissingHeartbeatError => AmqpError::Silent,
        ErrorKind::ChannelsLimitReached => AmqpError::LimitReached {
            text: clean(&error.to_string()),
        },
        // `AuthProviderError` may carry what a provider says: it is not shown.
        ErrorKind::AuthProviderError(_) => AmqpError::CredentialsRefused { mechanism: None },
        _ => AmqpError::Client {
            text: clean(&error.to_string()),
        },
    }
}

/// Tells what the broker means by a code and a text.
pub fn reply(code: u16, text: &str) -> AmqpError {
    let body = reply_text::body(text);
    let cut = || clean(body);
    if let Some(vhost) = reply_text::missing_vhost(body) {
        return AmqpError::NoSuchVhost {
            vhost: clean(vhost),
        };
    }
    if let Some(mechanism) = reply_text::login_refused(body) {
        return AmqpError::CredentialsRefused {
            mechanism: mechanism.map(clean),
        };
    }
    if let Some(refused) = reply_text::refused(body) {
        return of_refusal(&refused, body);
    }
    if is_limit(body) {
        return AmqpError::LimitReached { text: cut() };
    }
    match code {
        320 => AmqpError::Forced { text: cut() },
        403 if reply_text::exclusive(body).is_some() => AmqpError::InExclusiveUse {
            queue: reply_text::exclusive(body).map(clean),
        },
        404 => match reply_text::missing(body) {
            Some(named) => AmqpError::Missing {
                object: object(&named),
            },
            None => AmqpError::Protocol { code, text: cut() },
        },
        405 => AmqpError::Locked {
            queue: reply_text::exclusive(body).map(clean),
        },
        406 => of_precondition(body),
        540 => AmqpError::NotImplemented { text: cut() },
        506 | 541 => AmqpError::BrokerTrouble { text: cut() },
        // A reserved name, an exchange type that the broker does not know.
        403 | 503 if body.contains("reserved prefix") || body.contains("unknown exchange type") => {
            AmqpError::Invalid { text: cut() }
        }
        _ => AmqpError::Protocol { code, text: cut() },
    }
}

fn of_refusal(refused: &Refused<'_>, body: &str) -> AmqpError {
    if let Some(why) = refused.because {
        let text = clean(body);
        return if is_limit(why) {
            AmqpError::LimitReached { text }
        } else {
            AmqpError::BrokerTrouble { text }
        };
    }
    // The default exchange can only be written to.
    let is_default = refused.object.name == "amq.default";
    let right = refused.right.and_then(Right::parse);
    AmqpError::NoPermission {
        right: right.or(is_default.then_some(Right::Write)),
        object: object(&refused.object),
        user: refused.user.map(clean),
    }
}

fn of_precondition(body: &str) -> AmqpError {
    if let Some(timeout) = reply_text::consumer_timeout(body) {
        return AmqpError::ConsumerTimeout { timeout };
    }
    if let Some(found) = reply_text::inequivalent(body) {
        return AmqpError::Mismatch {
            mismatch: mismatch(&found),
        };
    }
    let text = clean(body);
    let declares = [
        "invalid arg ",
        "invalid property ",
        "consumer prefetch count is not set",
    ];
    if declares.iter().any(|start| body.starts_with(start)) {
        AmqpError::Invalid { text }
    } else {
        AmqpError::Protocol { code: 406, text }
    }
}

fn is_limit(body: &str) -> bool {
    body.contains("limit") && (body.contains("is reached") || body.contains("has reached"))
}

fn mismatch(found: &Inequivalent<'_>) -> Mismatch {
    let side = |side: Side<'_>| match side {
        Side::Value(value) => Some(clean(value)),
        Side::Absent => None,
        Side::Unknown => Some("unknown".to_owned()),
    };
    Mismatch {
        argument: clean(found.argument),
        object: found.object.as_ref().map(object),
        wanted: side(found.wanted),
        existing: side(found.existing),
    }
}

fn object(named: &Named<'_>) -> Object {
    Object {
        kind: named.kind,
        name: clean(named.name),
    }
}

fn of_io(error: &io::Error) -> AmqpError {
    if let Some(tls) = tls_cause(error) {
        return AmqpError::Tls(of_tls(tls));
    }
    let text = clean(&error.to_string());
    match error.kind() {
        io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::UnexpectedEof
        | io::ErrorKind::NotConnected => AmqpError::Broken { text },
        _ => AmqpError::Unreachable { text },
    }
}

/// An error of TLS stands inside the error of the socket, perhaps a few layers down.
pub(super) fn tls_cause(error: &io::Error) -> Option<&rustls::Error> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> =
        error.get_ref().map(|inner| inner as _);
    // Bounded: a chain of causes that goes in a circle must not hold us.
    for _ in 0..8 {
        let inner = cause?;
        if let Some(tls) = inner.downcast_ref::<rustls::Error>() {
            return Some(tls);
        }
        let nested = inner.downcast_ref::<io::Error>();
        cause = nested
            .and_then(|nested| nested.get_ref().map(|deeper| deeper as _))
            .or_else(|| inner.source());
    }
    None
}

fn of_tls(error: &rustls::Error) -> TlsTrouble {
    use rustls::{AlertDescription as Alert, CertificateError as Certificate};
    let text = || clean(&error.to_string());
    match error {
        rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType) => {
            TlsTrouble::PeerIsNotTls
        }
        rustls::Error::InvalidCertificate(fault) => match fault {
            Certificate::UnknownIssuer => TlsTrouble::UnknownIssuer,
            Certificate::NotValidForName | Certificate::NotValidForNameContext { .. } => {
                TlsTrouble::HostMismatch(text())
            }
            Certificate::Expired
            | Certificate::ExpiredContext { .. }
            | Certificate::NotValidYet
            | Certificate::NotValidYetContext { .. } => TlsTrouble::Expired,
            _ => TlsTrouble::BadCertificate(text()),
        },
        rustls::Error::AlertReceived(
            Alert::CertificateRequired
            | Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied,
        ) => TlsTrouble::ClientCertificate(text()),
        _ => TlsTrouble::Other(text()),
    }
}

#[cfg(test)]
#[path = "classify_tests.rs"]
mod tests;
