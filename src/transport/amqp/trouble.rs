//! What goes wrong with a broker, in words: a thin first form over what the client reports.

use std::fmt;
use std::time::Duration;

use super::uri::AmqpUri;

/// What went wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trouble(String);

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Trouble {
    pub(crate) fn of(error: &lapin::Error) -> Self {
        Self(clean(&error.to_string()))
    }

    pub(crate) fn timeout(what: &str, address: &str, limit: Duration) -> Self {
        Self(format!("{address}: {what} took longer than {limit:?}"))
    }

    pub(crate) fn resolve(address: &str, error: &std::io::Error) -> Self {
        Self(format!("{address}: its name cannot be looked up: {error}"))
    }

    pub(crate) fn no_address(address: &str) -> Self {
        Self(format!("{address}: its name has no address"))
    }

    pub(crate) fn configuration(text: String) -> Self {
        Self(text)
    }

    pub(crate) fn at(self, address: &str, uri: &AmqpUri) -> Self {
        let (user, vhost) = (clean(&uri.user), clean(&uri.vhost));
        Self(format!(
            "{address} (user {user:?}, virtual host {vhost:?}): {}",
            self.0
        ))
    }
}

/// Makes a broker's text harmless and short: control and direction characters go.
pub(crate) fn clean(text: &str) -> String {
    let kept = text.chars().map(|c| {
        let bad = c.is_control() || matches!(c, '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}');
        if bad { ' ' } else { c }
    });
    kept.take(300).collect()
}
