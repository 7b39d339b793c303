//! Reads RabbitMQ's reply texts: the only place where it says which queue, right or argument it
//! means. Pure. What a text does not say stays `None`; a text may end in the middle, because the
//! broker cuts it at 255 bytes.

use std::time::Duration;

/// What a text is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ObjectKind {
    /// A queue.
    Queue,
    /// An exchange.
    Exchange,
    /// A virtual host.
    Vhost,
    /// A topic of an exchange.
    Topic,
}

impl ObjectKind {
    /// Gives the broker's word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Exchange => "exchange",
            Self::Vhost => "vhost",
            Self::Topic => "topic",
        }
    }

    fn parse(word: &str) -> Option<Self> {
        match word {
            "queue" => Some(Self::Queue),
            "exchange" => Some(Self::Exchange),
            "vhost" => Some(Self::Vhost),
            "topic" => Some(Self::Topic),
            _ => None,
        }
    }
}

/// A thing that the broker names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Named<'a> {
    pub(super) kind: ObjectKind,
    pub(super) name: &'a str,
}

/// An argument that is not what the broker has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Inequivalent<'a> {
    pub(super) argument: &'a str,
    pub(super) object: Option<Named<'a>>,
    /// `None`: no such argument.
    pub(super) wanted: Side<'a>,
    pub(super) existing: Side<'a>,
}

/// One side of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side<'a> {
    Value(&'a str),
    Absent,
    /// The text was cut before it.
    Unknown,
}

/// A refused access.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refused<'a> {
    /// Newer brokers say which right: read, write or configure.
    pub(super) right: Option<&'a str>,
    pub(super) object: Named<'a>,
    pub(super) user: Option<&'a str>,
    /// What stands behind a colon: a limit, or a virtual host that is down.
    pub(super) because: Option<&'a str>,
}

/// Takes the word in capitals off the front: `NOT_FOUND - no queue …` is `no queue …`.
pub(super) fn body(text: &str) -> &str {
    match text.split_once(" - ") {
        Some((word, rest))
            if !word.is_empty() && word.bytes().all(|b| b.is_ascii_uppercase() || b == b'_') =>
        {
            rest
        }
        _ => text,
    }
}

/// Reads `vhost NAME not found`.
pub(super) fn missing_vhost(body: &str) -> Option<&str> {
    let name = body.strip_prefix("vhost ")?.strip_suffix(" not found")?;
    let quoted = name.strip_prefix('\'').and_then(|n| n.strip_suffix('\''));
    Some(quoted.unwrap_or(name))
}

/// Reads `no queue 'NAME' in vhost 'V'`.
pub(super) fn missing(body: &str) -> Option<Named<'_>> {
    let (object, _) = named(body.strip_prefix("no ")?)?;
    Some(object)
}

/// Reads `[RIGHT ]access to queue 'NAME' in vhost 'V' refused for user 'U'[: WHY]`.
pub(super) fn refused(body: &str) -> Option<Refused<'_>> {
    let (right, rest) = match body.strip_prefix("access to ") {
        Some(rest) => (None, rest),
        None => {
            let (right, rest) = body.split_once(" access to ")?;
            (Some(right), rest)
        }
    };
    let right = match right {
        None | Some("read" | "write" | "configure") => right,
        Some(_) => return None,
    };
    let (object, rest) = named(rest)?;
    let user = rest.split_once("refused for user '").map(|(_, user)| user);
    let (user, because) = match user {
        None => (None, None),
        Some(user) => match user.rsplit_once("': ") {
            Some((user, why)) => (Some(user), Some(why)),
            None => (Some(user.strip_suffix('\'').unwrap_or(user)), None),
        },
    };
    Some(Refused {
        right,
        object,
        user,
        because,
    })
}

/// Reads `queue 'NAME' in vhost 'V' in exclusive use`, and the text of a locked queue.
pub(super) fn exclusive(body: &str) -> Option<&str> {
    if let Some(rest) = body.strip_prefix("cannot obtain exclusive access to locked ") {
        return named(rest).map(|(object, _)| object.name);
    }
    let rest = body.strip_suffix(" in exclusive use")?;
    named(rest).map(|(object, _)| object.name)
}

/// Reads `inequivalent arg 'A' for queue 'NAME' in vhost 'V': received … but current is …`.
pub(super) fn inequivalent(body: &str) -> Option<Inequivalent<'_>> {
    let rest = body.strip_prefix("inequivalent arg '")?;
    let (argument, rest) = rest.split_once("' for ")?;
    let (head, values) = match rest.split_once("': received ") {
        Some((head, values)) => (head, Some(values)),
        None => (rest, None),
    };
    let object = named(head).map(|(object, _)| object);
    let (wanted, existing) = match values {
        None => (Side::Unknown, Side::Unknown),
        Some(values) => match values.split_once(" but current is ") {
            Some((wanted, existing)) => (side(wanted), side(existing)),
            None => (side(values), Side::Unknown),
        },
    };
    Some(Inequivalent {
        argument,
        object,
        wanted,
        existing,
    })
}

/// Reads `delivery acknowledgement on channel N timed out. Timeout value used: MS ms. …`: `Some`
/// where the text is that, with the time if it is there.
pub(super) fn consumer_timeout(body: &str) -> Option<Option<Duration>> {
    let rest = body.strip_prefix("delivery acknowledgement on channel ")?;
    let (_, rest) = rest.split_once(" timed out")?;
    let milliseconds = rest
        .split_once("Timeout value used: ")
        .and_then(|(_, rest)| rest.split_once(" ms")?.0.parse().ok());
    Some(milliseconds.map(Duration::from_millis))
}

/// Reads `… mechanism NAME. …` of a refused log-in.
pub(super) fn login_refused(body: &str) -> Option<Option<&str>> {
    let is_it = ["Login was refused", "login refused", "Login refused"];
    if !is_it.iter().any(|start| body.contains(start)) {
        return None;
    }
    let mechanism = body
        .split_once("mechanism ")
        .map(|(_, rest)| rest.split(['.', ' ']).next().unwrap_or(rest));
    Some(mechanism)
}

/// Reads `KIND 'NAME'[ in vhost 'V']`, and gives what stands behind. A name may hold quotes: the
/// text is cut at ` in vhost '` where there is one.
fn named(text: &str) -> Option<(Named<'_>, &str)> {
    let (word, rest) = text.split_once(" '")?;
    let kind = ObjectKind::parse(word)?;
    let (name, tail) = match kind {
        ObjectKind::Vhost => rest
            .split_once("' refused")
            .map(|(name, _)| (name, &rest[name.len() + 1..]))
            .or_else(|| rest.split_once('\''))?,
        _ => rest
            .rsplit_once("' in vhost '")
            .or_else(|| rest.split_once('\''))
            // Cut off in the middle of the name.
            .unwrap_or((rest, "")),
    };
    Some((Named { kind, name }, tail))
}

fn side(text: &str) -> Side<'_> {
    let text = text.trim();
    if text == "none" {
        return Side::Absent;
    }
    let Some(value) = text
        .strip_prefix("the value '")
        .or_else(|| text.strip_prefix('\''))
    else {
        return Side::Unknown;
    };
    match value.rsplit_once("' of type '") {
        Some((value, _)) => Side::Value(value),
        // Where the end is missing, the text was cut.
        None => value.strip_suffix('\'').map_or(Side::Unknown, Side::Value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_of_a_mismatch_are_read() {
        let check = |text: &str, wanted, existing| {
            let found = inequivalent(text).expect(text);
            assert_eq!((found.wanted, found.existing), (wanted, existing), "{text}");
            let name = found.object.as_ref().map(|object| object.name);
            assert_eq!(name, Some("it's"), "{text}");
            assert_eq!(found.argument, "x-queue-type");
        };
        let head = "inequivalent arg 'x-queue-type' for queue 'it's' in vhost 't'";
        let (quorum, classic) = (Side::Value("quorum"), Side::Value("classic"));
        let given = [
            (
                "received 'classic' but current is 'quorum'",
                classic,
                quorum,
            ),
            (
                "received none but current is the value 'quorum' of type 'longstr'",
                Side::Absent,
                quorum,
            ),
            (
                "received the value 'quorum' of type 'longstr' but current is none",
                quorum,
                Side::Absent,
            ),
            (
                "received 'classic' but current is 'quo...",
                classic,
                Side::Unknown,
            ),
            (
                "received 'classic' but cur...",
                Side::Unknown,
                Side::Unknown,
            ),
        ];
        for (values, wanted, existing) in given {
            check(&format!("{head}: {values}"), wanted, existing);
        }
        check(head, Side::Unknown, Side::Unknown);
    }

    #[test]
    fn a_refusal_says_who_what_and_sometimes_why() {
        let text = "read access to queue 'a' in vhost 't' refused for user 'o'brien'";
        let found = refused(text).expect("a refusal");
        assert_eq!(found.right, Some("read"));
        assert_eq!(found.object.name, "a");
        assert_eq!(found.user, Some("o'brien"));
        let text = "access to vhost 't' refused for user 'guest': connection limit (0) is reached";
        let found = refused(text).expect("a refusal");
        assert_eq!(found.object.kind, ObjectKind::Vhost);
        assert_eq!(found.object.name, "t");
        assert_eq!(found.user, Some("guest"));
        assert_eq!(found.because, Some("connection limit (0) is reached"));
        assert_eq!(refused("strange access to queue 'a'"), None);
    }

    #[test]
    fn other_texts_are_not_taken_for_these() {
        for text in [
            "",
            "no",
            "no bread 'x'",
            "queue",
            "vhost",
            "x - y",
            "PRECONDITION_FAILED",
        ] {
            assert_eq!(missing(text), None, "{text}");
            assert_eq!(missing_vhost(text), None, "{text}");
            assert_eq!(refused(text), None, "{text}");
            assert_eq!(exclusive(text), None, "{text}");
            assert_eq!(inequivalent(text), None, "{text}");
            assert_eq!(consumer_timeout(text), None, "{text}");
            assert_eq!(login_refused(text), None, "{text}");
        }
        assert_eq!(body("x - y"), "x - y");
        assert_eq!(body("NOT_FOUND - a - b"), "a - b");
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_the_parsers_panic(text in ".{0,80}", cut in 0_usize..200) {
            let real = "inequivalent arg 'a' for queue 'q' in vhost 'v': received 'x' but current is none";
            let refusal = "write access to topic 'a' in exchange 'x' in vhost 'v' refused for user 'u': no";
            for text in [
                text.clone(),
                format!("no queue '{text}' in vhost 'v'"),
                format!("access to vhost '{text}' refused for user '{text}'"),
                real.chars().take(cut).collect(),
                refusal.chars().take(cut).collect(),
            ] {
                let _ = (missing(&text), missing_vhost(&text), refused(&text), exclusive(&text));
                let _ = (inequivalent(&text), consumer_timeout(&text), login_refused(&text));
            }
        }
    }
}
