//! The texts are those of RabbitMQ 3.10.8, of lapin 4.12 and of rustls 0.23, taken down from a
//! broker, unless a row says otherwise.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use lapin::ErrorKind;
use lapin::protocol::AMQPError;

use super::super::error::*;
use super::*;

fn from_broker(code: u16, text: &str) -> AmqpError {
    let error = AMQPError::from_id(code, text.into()).expect("a code of AMQP");
    classify(&ErrorKind::ProtocolError(error).into())
}

fn queue(name: &str) -> Object {
    Object {
        kind: ObjectKind::Queue,
        name: name.to_owned(),
    }
}

fn exchange(name: &str) -> Object {
    Object {
        kind: ObjectKind::Exchange,
        name: name.to_owned(),
    }
}

fn no_permission(right: Option<Right>, object: Object, user: &str) -> AmqpError {
    AmqpError::NoPermission {
        right,
        object,
        user: Some(user.to_owned()),
    }
}

fn differs(argument: &str, object: Object, wanted: Option<&str>, has: Option<&str>) -> AmqpError {
    AmqpError::Mismatch {
        mismatch: Mismatch {
            argument: argument.to_owned(),
            object: Some(object),
            wanted: wanted.map(str::to_owned),
            existing: has.map(str::to_owned),
        },
    }
}

#[track_caller]
fn check(code: u16, text: &str, expected: AmqpError, exit: u8) {
    let found = from_broker(code, text);
    assert_eq!(found, expected, "{code} {text}");
    assert_eq!(found.exit_code(), exit, "{code} {text}");
}

#[test]
fn connections_that_the_broker_refuses_are_told_apart() {
    let vhost = |name: &str| AmqpError::NoSuchVhost {
        vhost: name.to_owned(),
    };
    check(530, "NOT_ALLOWED - vhost nope not found", vhost("nope"), 14);
    check(
        530,
        "NOT_ALLOWED - vhost no'pe x not found",
        vhost("no'pe x"),
        14,
    );
    check(
        403,
        "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker logfile.",
        AmqpError::CredentialsRefused {
            mechanism: Some("PLAIN".to_owned()),
        },
        14,
    );
    let at_vhost = Object {
        kind: ObjectKind::Vhost,
        name: "t".to_owned(),
    };
    check(
        530,
        "NOT_ALLOWED - access to vhost 't' refused for user 'novh'",
        no_permission(None, at_vhost, "novh"),
        15,
    );
    for (code, text) in [
        (
            530,
            "access to vhost 't' refused for user 'guest': connection limit (0) is reached",
        ),
        (
            530,
            "number of channels opened for user 'guest' has reached the maximum allowed user limit of (1)",
        ),
        (
            406,
            "cannot declare queue 'overlimit': queue limit in vhost 't' (1) is reached",
        ),
    ] {
        let word = if code == 530 {
            "NOT_ALLOWED"
        } else {
            "PRECONDITION_FAILED"
        };
        let expected = AmqpError::LimitReached {
            text: text.to_owned(),
        };
        check(code, &format!("{word} - {text}"), expected, 14);
    }
    // From the broker's source.
    let down = "access to vhost 't' refused for user 'u': vhost 't' is down";
    let expected = AmqpError::BrokerTrouble {
        text: down.to_owned(),
    };
    check(541, &format!("INTERNAL_ERROR - {down}"), expected, 14);
}

#[test]
fn a_lack_of_permission_names_the_right_the_object_and_the_user() {
    check(
        403,
        "ACCESS_REFUSED - access to queue 'classic' in vhost 't' refused for user 'ro'",
        no_permission(None, queue("classic"), "ro"),
        15,
    );
    check(
        403,
        "ACCESS_REFUSED - access to exchange 'amq.default' in vhost 't' refused for user 'ro'",
        no_permission(Some(Right::Write), exchange("amq.default"), "ro"),
        15,
    );
    // From the source of RabbitMQ 3.12.
    check(
        403,
        "ACCESS_REFUSED - read access to queue 'classic' in vhost 't' refused for user 'ro'",
        no_permission(Some(Right::Read), queue("classic"), "ro"),
        15,
    );
    let error = no_permission(None, queue("tasks"), "ro").needing(Right::Read);
    assert_eq!(
        error.to_string(),
        "no permission: user \"ro\" may not read queue \"tasks\"; give the right with `rabbitmqctl set_permissions`"
    );
}

#[test]
fn what_is_missing_is_named() {
    let missing = |object| AmqpError::Missing { object };
    check(
        404,
        "NOT_FOUND - no queue 'missing' in vhost 't'",
        missing(queue("missing")),
        11,
    );
    check(
        404,
        "NOT_FOUND - no exchange 'exmissing' in vhost 't'",
        missing(exchange("exmissing")),
        11,
    );
}

#[test]
fn a_mismatch_tells_the_argument_and_both_values() {
    let rows = [
        (
            "'x-queue-type' for queue 'tasks' in vhost 't': received none but current is the value 'quorum' of type 'longstr'",
            differs("x-queue-type", queue("tasks"), None, Some("quorum")),
        ),
        (
            "'x-queue-type' for queue 'tasks' in vhost 't': received 'classic' but current is 'quorum'",
            differs(
                "x-queue-type",
                queue("tasks"),
                Some("classic"),
                Some("quorum"),
            ),
        ),
        (
            "'x-queue-type' for queue 'classic' in vhost 't': received the value 'quorum' of type 'longstr' but current is none",
            differs("x-queue-type", queue("classic"), Some("quorum"), None),
        ),
        (
            "'durable' for queue 'classic' in vhost 't': received 'false' but current is 'true'",
            differs("durable", queue("classic"), Some("false"), Some("true")),
        ),
        (
            "'x-message-ttl' for queue 'lim' in vhost 't': received none but current is the value '300' of type 'signedint'",
            differs("x-message-ttl", queue("lim"), None, Some("300")),
        ),
        (
            "'x-single-active-consumer' for queue 'tasks' in vhost 't': received the value 'true' of type 'bool' but current is none",
            differs(
                "x-single-active-consumer",
                queue("tasks"),
                Some("true"),
                None,
            ),
        ),
        (
            "'type' for exchange 'ex' in vhost 't': received 'topic' but current is 'direct'",
            differs("type", exchange("ex"), Some("topic"), Some("direct")),
        ),
    ];
    for (text, expected) in rows {
        check(
            406,
            &format!("PRECONDITION_FAILED - inequivalent arg {text}"),
            expected,
            10,
        );
    }
}

#[test]
fn what_no_broker_can_declare_is_refused_with_its_words() {
    for (code, word, text) in [
        (
            406,
            "PRECONDITION_FAILED",
            "invalid arg 'x-message-ttl' for queue 'newq' in vhost 't': \"expected integer, got longstr\"",
        ),
        (
            406,
            "PRECONDITION_FAILED",
            "invalid property 'non-durable' for queue 'newq' in vhost 't'",
        ),
        (
            406,
            "PRECONDITION_FAILED",
            "consumer prefetch count is not set for 'queue 'st' in vhost 't''",
        ),
        (
            403,
            "ACCESS_REFUSED",
            "queue name 'amq.foo' contains reserved prefix 'amq.*'",
        ),
        (503, "COMMAND_INVALID", "unknown exchange type 'x-foo'"),
    ] {
        let expected = AmqpError::Invalid {
            text: text.to_owned(),
        };
        check(code, &format!("{word} - {text}"), expected, 10);
    }
}

#[test]
fn exclusive_and_locked_queues_are_waited_for() {
    let locked = "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'exq' in vhost 't'. It could be originally declared on another connection or the exclusive property value does not match that of the original declaration.";
    let queue = || Some("exq".to_owned());
    check(405, locked, AmqpError::Locked { queue: queue() }, 11);
    let in_use = "ACCESS_REFUSED - queue 'exq' in vhost 't' in exclusive use";
    check(
        403,
        in_use,
        AmqpError::InExclusiveUse { queue: queue() },
        11,
    );
    for error in [from_broker(405, locked), from_broker(403, in_use)] {
        for stage in [Stage::FirstStart, Stage::Running] {
            assert_eq!(error.policy(stage), Policy::Wait);
        }
    }
}

#[test]
fn channels_that_end_say_why() {
    check(
        406,
        "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: 1000 ms. This timeout value can be configured, see consumers doc guide to learn more",
        AmqpError::ConsumerTimeout {
            timeout: Some(Duration::from_secs(1)),
        },
        11,
    );
    for text in [
        "unknown delivery tag 99",
        "invalid expiration 'abc': no_integer",
        "user_id property set to 'alice' but authenticated user was 'guest'",
    ] {
        let expected = AmqpError::Protocol {
            code: 406,
            text: text.to_owned(),
        };
        check(406, &format!("PRECONDITION_FAILED - {text}"), expected, 14);
    }
    for text in [
        "queue 'tasks' in vhost 't' does not support global qos",
        "prefetch_size!=0 (5)",
        "automatic acknowledgement not supported by stream queues queue 'st' in vhost 't'",
    ] {
        let expected = AmqpError::NotImplemented {
            text: text.to_owned(),
        };
        check(540, &format!("NOT_IMPLEMENTED - {text}"), expected, 11);
    }
    for text in [
        "user 'tmp' is deleted",
        "broker forced connection closure with reason 'shutdown'",
    ] {
        let expected = AmqpError::Forced {
            text: text.to_owned(),
        };
        check(320, &format!("CONNECTION_FORCED - {text}"), expected, 14);
    }
}

#[test]
fn sockets_that_fail_are_told_from_peers_that_speak_something_else() {
    let of = |error: io::Error| classify(&ErrorKind::IOError(Arc::new(error)).into());
    let refused = of(io::Error::from_raw_os_error(111));
    assert_eq!(
        refused,
        AmqpError::Unreachable {
            text: "Connection refused (os error 111)".to_owned()
        }
    );
    let name = of(io::Error::other(
        "failed to lookup address information: Name or service not known",
    ));
    assert!(matches!(name, AmqpError::Unreachable { .. }), "{name:?}");
    for kind in [
        io::ErrorKind::ConnectionReset,
        io::ErrorKind::ConnectionAborted,
    ] {
        let error = of(kind.into());
        assert!(matches!(error, AmqpError::Broken { .. }), "{error:?}");
        assert!(error.to_string().contains("amqps://"), "{error}");
    }
    // One layer deeper, as some connectors wrap it.
    let wrapped = io::Error::other(io::Error::other(rustls::Error::InvalidCertificate(
        rustls::CertificateError::UnknownIssuer,
    )));
    assert_eq!(of(wrapped), AmqpError::Tls(TlsTrouble::UnknownIssuer));
}

#[test]
fn tls_says_what_is_wrong_and_which_key_to_change() {
    use rustls::{AlertDescription, CertificateError, InvalidMessage};
    let invalid = rustls::Error::InvalidCertificate;
    let rows = [
        (
            invalid(CertificateError::UnknownIssuer),
            "unknown issuer",
            "`broker.ca-file`",
        ),
        (
            invalid(CertificateError::NotValidForName),
            "host mismatch",
            "`broker.url`",
        ),
        (invalid(CertificateError::Expired), "expired", "renew it"),
        (
            rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType),
            "peer is not TLS",
            "`amqp://`",
        ),
        (
            rustls::Error::AlertReceived(AlertDescription::CertificateRequired),
            "our certificate",
            "`broker.cert-file`",
        ),
        (
            rustls::Error::NoCertificatesPresented,
            "TLS",
            "`broker.ca-file`",
        ),
    ];
    for (error, what, key) in rows {
        let io = io::Error::new(io::ErrorKind::InvalidData, error);
        let found = classify(&ErrorKind::IOError(Arc::new(io)).into());
        let text = found.to_string();
        assert!(text.contains(what) && text.contains(key), "{text}");
        assert_eq!(
            (found.exit_code(), found.is_permanent()),
            (14, true),
            "{text}"
        );
    }
}

#[test]
fn what_is_refused_at_a_first_start_is_waited_for_once_it_has_worked() {
    let error = AmqpError::CredentialsRefused { mechanism: None };
    assert_eq!(error.policy(Stage::FirstStart), Policy::Exit);
    assert_eq!(error.policy(Stage::Running), Policy::WaitForAWhile);
    let error = from_broker(404, "NOT_FOUND - no queue 'a' in vhost 't'");
    assert_eq!(error.policy(Stage::Running), Policy::WaitForAWhile);
    let error = from_broker(540, "NOT_IMPLEMENTED - prefetch_size!=0 (5)");
    assert_eq!(error.policy(Stage::Running), Policy::Exit);
    let error = AmqpError::Timeout {
        what: "queue.declare",
        after: Duration::from_secs(10),
    };
    assert_eq!(error.policy(Stage::FirstStart), Policy::Wait);
    assert_eq!(error.to_string(), "no answer within 10s: queue.declare");
}

#[test]
fn texts_of_the_broker_are_escaped_and_cut() {
    let error = reply(320, "CONNECTION_FORCED - \u{1b}[31mred\nline\u{202e}");
    let AmqpError::Forced { text } = error else {
        panic!("{error:?}");
    };
    assert_eq!(text, "\\u{1b}[31mred\\u{a}line\\u{202e}");
    let long = clean(&"é".repeat(1000));
    assert!(long.len() <= 300 && long.ends_with('…'), "{}", long.len());
    assert_eq!(clean("short"), "short");
}
