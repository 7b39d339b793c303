//! What is known of a broker and its queues. Pure. What nobody told is unknown, and is not guessed.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use acquit_actors::model::QueueName;
use serde_json::Value;

use super::topology::Argument;

/// Something that may not be known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Known<T> {
    /// Nobody told.
    #[default]
    Unknown,
    /// The broker told.
    Is(T),
}

impl<T: fmt::Display> fmt::Display for Known<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("unknown"),
            Self::Is(value) => value.fmt(f),
        }
    }
}

/// The version of a RabbitMQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BrokerVersion {
    /// 3 of 3.10.8.
    pub major: u32,
    /// 10 of 3.10.8.
    pub minor: u32,
    /// 8 of 3.10.8.
    pub patch: u32,
}

impl BrokerVersion {
    /// From 4.0 on, a quorum queue without a delivery limit has this one.
    const DEFAULT_DELIVERY_LIMIT: u32 = 20;

    /// Whether every return counts toward a quorum queue's delivery limit, also one that is not the
    /// message's fault: so before 4.3.
    pub fn counts_every_return(self) -> bool {
        (self.major, self.minor) < (4, 3)
    }
}

impl FromStr for BrokerVersion {
    type Err = ();

    /// Takes `3.10.8`, `4.1.0-rc.1` and `3.12`.
    fn from_str(text: &str) -> Result<Self, ()> {
        let end = text.find(['-', '+']).unwrap_or(text.len());
        let mut numbers = text[..end].split('.').map(str::parse);
        let mut next = || numbers.next().transpose().map_err(|_| ());
        Ok(Self {
            major: next()?.ok_or(())?,
            minor: next()?.ok_or(())?,
            patch: next()?.unwrap_or(0),
        })
    }
}

impl fmt::Display for BrokerVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// What the management API says of a queue.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct QueueFacts {
    /// Its type, in the broker's word.
    pub kind: Option<String>,
    /// Whether it outlives the broker.
    pub durable: Option<bool>,
    /// The arguments it was declared with.
    pub arguments: BTreeMap<String, Argument>,
    /// What policies and operator policies add; `None` where the broker did not say.
    pub policy: Option<BTreeMap<String, Argument>>,
}

impl QueueFacts {
    /// Reads the API's answer for one queue. Keys that are not there stay unknown.
    pub(super) fn from_json(value: &Value) -> Self {
        Self {
            kind: value["type"].as_str().map(str::to_owned),
            durable: value["durable"].as_bool(),
            arguments: arguments(&value["arguments"]),
            policy: match &value["effective_policy_definition"] {
                // The broker writes an empty list for an empty object.
                policy @ (Value::Object(_) | Value::Array(_)) => Some(arguments(policy)),
                _ => None,
            },
        }
    }

    /// Gives the delivery limit in force: the lower of the argument's and the policy's; `Is(None)`:
    /// there is none.
    pub fn delivery_limit(&self, version: Known<BrokerVersion>) -> Known<Option<u32>> {
        match self.kind.as_deref() {
            None => return Known::Unknown,
            Some("quorum") => {}
            Some(_) => return Known::Is(None),
        }
        let Some(policy) = &self.policy else {
            return Known::Unknown;
        };
        let limits = [
            self.arguments.get("x-delivery-limit"),
            policy.get("delivery-limit"),
        ];
        let limits: Vec<i64> = limits
            .into_iter()
            .flatten()
            .filter_map(Argument::as_number)
            .collect();
        match (limits.iter().min(), version) {
            // Newer brokers take a negative one for "none".
            (Some(limit), _) => Known::Is(u32::try_from(*limit).ok()),
            (None, Known::Unknown) => Known::Unknown,
            (None, Known::Is(version)) => {
                let has_default = version.major >= 4;
                Known::Is(has_default.then_some(BrokerVersion::DEFAULT_DELIVERY_LIMIT))
            }
        }
    }

    /// Gives the queue's own consumer timeout (RabbitMQ 3.12 and newer). Without one the broker's
    /// own holds, which no API tells.
    pub fn consumer_timeout(&self) -> Known<Duration> {
        let policy = self.policy.as_ref();
        let timeouts = [
            self.arguments.get("x-consumer-timeout"),
            policy.and_then(|policy| policy.get("consumer-timeout")),
        ];
        let shortest = timeouts
            .into_iter()
            .flatten()
            .filter_map(Argument::as_number)
            .filter_map(|milliseconds| u64::try_from(milliseconds).ok())
            .min();
        match shortest {
            Some(milliseconds) => Known::Is(Duration::from_millis(milliseconds)),
            None => Known::Unknown,
        }
    }

    /// Tells whether it hands its messages to one consumer at a time.
    pub fn single_active(&self) -> bool {
        self.arguments.get("x-single-active-consumer") == Some(&Argument::Flag(true))
    }
}

fn arguments(value: &Value) -> BTreeMap<String, Argument> {
    let Value::Object(object) = value else {
        return BTreeMap::new();
    };
    let known = |(name, value): (&String, &Value)| {
        let value = match value {
            Value::String(text) => Argument::Text(text.clone()),
            Value::Number(number) => Argument::Number(number.as_i64()?),
            Value::Bool(flag) => Argument::Flag(*flag),
            // Nothing that we ask for is one.
            Value::Null | Value::Array(_) | Value::Object(_) => return None,
        };
        Some((name.clone(), value))
    };
    object.iter().filter_map(known).collect()
}

/// What is known of a broker.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct BrokerFacts {
    /// Its version.
    pub version: Known<BrokerVersion>,
    /// Its queues, those of the configuration.
    pub queues: BTreeMap<QueueName, QueueFacts>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn version(text: &str) -> Known<BrokerVersion> {
        text.parse().map_or(Known::Unknown, Known::Is)
    }

    #[test]
    fn versions_are_read_and_compared() {
        let check = |text: &str, expected: &str| {
            let version: Result<BrokerVersion, ()> = text.parse();
            assert_eq!(version.map(|v| v.to_string()), Ok(expected.to_owned()));
        };
        check("3.10.8", "3.10.8");
        check("4.3", "4.3.0");
        check("4.1.0-rc.1", "4.1.0");
        for text in ["", "4", "x.y", "3.x.1", "-1.2"] {
            assert_eq!(text.parse::<BrokerVersion>(), Err(()), "{text}");
        }
        let counts = |text: &str| text.parse().map(BrokerVersion::counts_every_return);
        assert_eq!(counts("4.2.9"), Ok(true));
        assert_eq!(counts("4.3.0"), Ok(false));
    }

    /// As RabbitMQ 3.10.8 answered, shortened.
    fn answer(arguments: Value, policy: Value) -> QueueFacts {
        QueueFacts::from_json(&json!({
            "arguments": arguments,
            "auto_delete": false,
            "durable": true,
            "effective_policy_definition": policy,
            "name": "tasks",
            "type": "quorum",
            "vhost": "t",
        }))
    }

    #[test]
    fn the_delivery_limit_is_the_lower_of_argument_and_policy() {
        let limit = |argument: Value, policy: Value, on: &str| {
            answer(argument, policy).delivery_limit(version(on))
        };
        let argument = json!({"x-delivery-limit": 5, "x-queue-type": "quorum"});
        let policy = json!({"delivery-limit": 3});
        assert_eq!(
            limit(argument.clone(), policy, "3.10.8"),
            Known::Is(Some(3))
        );
        assert_eq!(limit(argument, json!([]), "3.10.8"), Known::Is(Some(5)));
        assert_eq!(limit(json!({}), json!({}), "3.10.8"), Known::Is(None));
        assert_eq!(limit(json!({}), json!({}), "4.1.0"), Known::Is(Some(20)));
        assert_eq!(limit(json!({}), json!({}), ""), Known::Unknown);
        assert_eq!(limit(json!({}), json!(null), "3.10.8"), Known::Unknown);
        let unlimited = json!({"delivery-limit": -1});
        assert_eq!(limit(json!({}), unlimited, "4.1.0"), Known::Is(None));
        let classic = QueueFacts::from_json(&json!({"type": "classic"}));
        assert_eq!(classic.delivery_limit(Known::Unknown), Known::Is(None));
        let unknown = QueueFacts::default();
        assert_eq!(unknown.delivery_limit(version("3.10.8")), Known::Unknown);
    }

    #[test]
    fn other_facts_are_read_where_they_stand() {
        let facts = answer(
            json!({"x-single-active-consumer": true, "x-queue-type": "quorum"}),
            json!({"consumer-timeout": 60_000}),
        );
        assert!(facts.single_active());
        assert_eq!(facts.kind.as_deref(), Some("quorum"));
        assert_eq!(facts.consumer_timeout(), Known::Is(Duration::from_secs(60)));
        let facts = answer(json!([]), json!([]));
        assert!(!facts.single_active());
        assert_eq!(facts.consumer_timeout(), Known::Unknown);
        for odd in [json!(null), json!([]), json!("x"), json!({"type": 5})] {
            assert_eq!(QueueFacts::from_json(&odd).kind, None);
        }
    }
}
