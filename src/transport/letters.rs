//! Dead letters as an operator sees them, whichever broker keeps them: pure.

use std::time::{Duration, SystemTime};

use acquit_actors::model::{
    Delivery, HeaderValue, MessageId, Outgoing, QueueName, ReplayNumber, names,
};

/// Where the broker's own dead-lettering says why.
const BROKERS_REASON: &str = "x-first-death-reason";

/// Headers that tell of a death that a replay undoes. What the broker wrote about it goes with
/// every copy already.
const OF_ITS_DEATH: &[&str] = &[
    names::REASON,
    names::FIRST_ERROR,
    names::LAST_ERROR,
    names::DIED_AT,
];

/// A dead letter.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Letter {
    /// Its place in this look, from 1. Another look may find it elsewhere.
    pub position: u64,
    /// How long its body is, in bytes.
    pub body_bytes: usize,
    /// Why it died; `None` where nobody wrote it down.
    pub reason: Option<String>,
    /// The queue it came from and is replayed to; `None` where nobody wrote it down.
    pub origin: Option<QueueName>,
    /// When it died; `None` where nobody wrote it down.
    pub died_at: Option<SystemTime>,
    /// The message. Its body is empty unless it was asked for.
    pub delivery: Delivery,
}

impl Letter {
    /// Reads a letter from what its headers say.
    pub fn new(position: u64, delivery: Delivery) -> Self {
        let text = |name: &str| {
            let value = delivery.headers.get(name).and_then(HeaderValue::as_str);
            value.filter(|text| !text.is_empty())
        };
        let reason = text(names::REASON).or_else(|| text(BROKERS_REASON));
        Self {
            position,
            body_bytes: delivery.body.len(),
            reason: reason.map(str::to_owned),
            origin: text(names::ORIGIN_QUEUE).map(QueueName::from),
            died_at: text(names::DIED_AT).and_then(|at| humantime::parse_rfc3339(at).ok()),
            delivery,
        }
    }

    /// The error of the last failed attempt.
    pub fn last_error(&self) -> Option<&str> {
        let value = self.delivery.headers.get(names::LAST_ERROR);
        value.and_then(HeaderValue::as_str)
    }

    /// How long it has been dead; since it was published where nobody wrote down when it died;
    /// `None` where neither is known.
    pub fn age(&self, now: SystemTime) -> Option<Duration> {
        let since = self.died_at.or(self.delivery.published_at)?;
        now.duration_since(since).ok()
    }

    /// Takes the body off: a list of many letters would hold them all.
    #[must_use]
    pub fn without_body(mut self) -> Self {
        self.delivery.body = bytes::Bytes::new();
        self
    }

    /// Gives the copy that runs again: the same message as its first attempt, one replay later;
    /// `None` where no origin is known.
    pub fn replayed(&self) -> Option<Outgoing> {
        let dead = &self.delivery;
        let mut copy = Outgoing::new(self.origin.clone()?, dead.body.clone());
        copy.id.clone_from(&dead.id);
        copy.key.clone_from(&dead.key);
        copy.headers = dead.headers.clone();
        copy.content_type.clone_from(&dead.content_type);
        copy.correlation_id.clone_from(&dead.correlation_id);
        copy.published_at = dead.published_at;
        copy.properties.clone_from(&dead.properties);
        for name in OF_ITS_DEATH {
            copy.headers.remove(name);
        }
        let ReplayNumber(before) = dead.replay;
        let replay = i64::from(before.saturating_add(1));
        copy.headers.set(names::REPLAYED, replay);
        copy.headers.set(names::ATTEMPT, 1_i64);
        Some(copy)
    }
}

/// Which letters are meant: those that all of it fits.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct LetterFilter {
    /// Died for this reason.
    pub reason: Option<String>,
    /// With this id.
    pub id: Option<MessageId>,
    /// With all these headers; a number or truth value is compared as it is written.
    pub headers: Vec<(String, String)>,
    /// Dead for longer than this, as [`Letter::age`] counts. One without a time does not fit.
    pub older_than: Option<Duration>,
}

impl LetterFilter {
    /// Tells whether a letter is meant.
    pub fn matches(&self, letter: &Letter, now: SystemTime) -> bool {
        let fits = |(name, wanted): &(String, String)| {
            let value = letter.delivery.headers.get(name);
            value.and_then(written).as_deref() == Some(wanted)
        };
        (self.reason.is_none() || self.reason == letter.reason)
            && (self.id.is_none() || self.id == letter.delivery.id)
            && self.headers.iter().all(fits)
            && self
                .older_than
                .is_none_or(|limit| letter.age(now).is_some_and(|age| age > limit))
    }
}

/// A simple header value as text.
fn written(value: &HeaderValue) -> Option<String> {
    match value {
        HeaderValue::Text(text) => Some(text.clone()),
        HeaderValue::Int(number) => Some(number.to_string()),
        HeaderValue::Float(number) => Some(number.to_string()),
        HeaderValue::Bool(truth) => Some(truth.to_string()),
        HeaderValue::Time(seconds) => Some(seconds.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use acquit_actors::model::{Attempt, Generation, PartitionId};

    use super::*;

    fn letter(headers: &[(&str, HeaderValue)]) -> Letter {
        let mut delivery = Delivery::new(
            "words.dead".into(),
            PartitionId(0),
            Generation(0),
            bytes::Bytes::from_static(b"body"),
        );
        delivery.id = Some("m1".into());
        delivery.published_at = Some(UNIX_EPOCH);
        delivery.attempt = Attempt::new(5);
        delivery.replay = ReplayNumber(2);
        for (name, value) in headers {
            delivery.headers.set(*name, value.clone());
        }
        Letter::new(1, delivery)
    }

    #[test]
    fn a_replay_is_the_same_message_without_its_death() {
        let letter = letter(&[
            (names::REASON, "exhausted".into()),
            (names::FIRST_ERROR, "a".into()),
            (names::LAST_ERROR, "b".into()),
            (names::DIED_AT, "2026-12-01T00:00:00Z".into()),
            (names::ORIGIN_QUEUE, "words".into()),
            (names::ATTEMPT, 5.into()),
            (names::REPLAYED, 2.into()),
            ("tenant", "acme".into()),
        ]);
        assert_eq!(letter.last_error(), Some("b"));
        let copy = letter.replayed().expect("an origin");
        assert_eq!(
            (copy.queue.as_str(), &copy.body[..]),
            ("words", &b"body"[..])
        );
        assert_eq!(copy.id, Some("m1".into()));
        assert_eq!(copy.published_at, Some(UNIX_EPOCH));
        let mut headers: Vec<_> = copy.headers.iter().collect();
        headers.sort_by_key(|(name, _)| *name);
        assert_eq!(
            headers,
            [
                ("tenant", &"acme".into()),
                (names::ATTEMPT, &1.into()),
                (names::ORIGIN_QUEUE, &"words".into()),
                (names::REPLAYED, &3.into()),
            ]
        );
    }

    #[test]
    fn without_an_origin_there_is_nowhere_to_go() {
        assert_eq!(letter(&[]).replayed(), None);
        let empty = letter(&[(names::ORIGIN_QUEUE, "".into())]);
        assert_eq!(empty.replayed(), None);
    }

    #[test]
    fn the_brokers_own_reason_counts_where_there_is_none_of_ours() {
        let own: HeaderValue = "expired".into();
        let reason = |headers: &[_]| letter(headers).reason;
        assert_eq!(
            reason(&[(BROKERS_REASON, own.clone())]),
            Some("expired".to_owned())
        );
        let both = [(BROKERS_REASON, own), (names::REASON, "rejected".into())];
        assert_eq!(reason(&both), Some("rejected".to_owned()));
        assert_eq!(reason(&[]), None);
    }

    #[test]
    fn a_filter_wants_all_of_it() {
        let letter = letter(&[
            (names::REASON, "exhausted".into()),
            ("tenant", "acme".into()),
            ("tries", 7.into()),
            ("urgent", HeaderValue::Bool(true)),
            (names::DIED_AT, "1970-01-01T00:30:00Z".into()),
        ]);
        let hour = UNIX_EPOCH + Duration::from_secs(3600);
        let check = |change: &dyn Fn(&mut LetterFilter), expected: bool| {
            let mut filter = LetterFilter::default();
            change(&mut filter);
            assert_eq!(filter.matches(&letter, hour), expected, "{filter:?}");
        };
        let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        check(&|_| {}, true);
        check(&|f| f.reason = Some("exhausted".to_owned()), true);
        check(&|f| f.reason = Some("rejected".to_owned()), false);
        check(&|f| f.id = Some("m1".into()), true);
        check(&|f| f.id = Some("m2".into()), false);
        check(&|f| f.headers = vec![header("tenant", "acme")], true);
        check(&|f| f.headers = vec![header("tries", "7")], true);
        check(&|f| f.headers = vec![header("urgent", "true")], true);
        check(&|f| f.headers = vec![header("missing", "")], false);
        let two = vec![header("tenant", "acme"), header("tries", "8")];
        check(&|f| f.headers = two.clone(), false);
        check(&|f| f.older_than = Some(Duration::from_secs(1799)), true);
        check(&|f| f.older_than = Some(Duration::from_secs(1800)), false);
        let both = |f: &mut LetterFilter| {
            f.reason = Some("exhausted".to_owned());
            f.id = Some("m2".into());
        };
        check(&both, false);
    }

    #[test]
    fn a_letter_whose_death_has_no_time_is_as_old_as_its_message() {
        let hour = UNIX_EPOCH + Duration::from_secs(3600);
        let torn = letter(&[(names::DIED_AT, "yesterday".into())]);
        assert_eq!(torn.age(hour), Some(Duration::from_secs(3600)));
        let mut letter = letter(&[]);
        letter.delivery.published_at = None;
        let filter = LetterFilter {
            older_than: Some(Duration::ZERO),
            ..LetterFilter::default()
        };
        assert!(!filter.matches(&letter, SystemTime::now()));
    }
}
