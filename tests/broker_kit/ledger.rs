//! What was published, what ran, and whether they agree.

use std::collections::BTreeMap;

/// What a publisher knows about its messages.
#[derive(Clone, Debug, Default)]
pub(crate) struct PublisherLedger {
    published: BTreeMap<String, Published>,
}

/// What became of a publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Published {
    /// The broker owns it: it must run.
    Confirmed,
    /// No answer came: it may run.
    Unknown,
    /// The broker said no: it must not run.
    Refused,
}

impl PublisherLedger {
    /// Notes what became of a publish. A confirmation outweighs what was noted before.
    pub(crate) fn note(&mut self, id: impl Into<String>, outcome: Published) {
        let known = self.published.entry(id.into()).or_insert(outcome);
        if *known != Published::Confirmed {
            *known = outcome;
        }
    }

    /// How many messages have this outcome.
    pub(crate) fn count(&self, outcome: Published) -> usize {
        self.published
            .values()
            .filter(|one| **one == outcome)
            .count()
    }
}

/// What handlers have done.
#[derive(Clone, Debug, Default)]
pub(crate) struct HandlerLedger {
    runs: BTreeMap<String, Runs>,
}

/// The runs of one message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Runs {
    pub(crate) started: u32,
    pub(crate) finished: u32,
}

impl HandlerLedger {
    /// A run began.
    pub(crate) fn start(&mut self, id: impl Into<String>) {
        self.runs.entry(id.into()).or_default().started += 1;
    }

    /// A run ended well.
    pub(crate) fn finish(&mut self, id: impl Into<String>) {
        self.runs.entry(id.into()).or_default().finished += 1;
    }

    /// The runs of a message.
    pub(crate) fn runs(&self, id: &str) -> Runs {
        self.runs.get(id).copied().unwrap_or_default()
    }

    /// How many messages have finished at least once.
    pub(crate) fn finished(&self) -> usize {
        self.runs.values().filter(|runs| runs.finished > 0).count()
    }
}

/// How the two ledgers differ, by message id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Differences {
    /// Confirmed, and never finished.
    pub(crate) lost: Vec<String>,
    /// Finished more than once, with how often.
    pub(crate) duplicated: Vec<(String, u32)>,
    /// Started without having been published, or although the broker refused it.
    pub(crate) unexpected: Vec<String>,
}

/// Compares the ledgers once everything has come to rest.
pub(crate) fn check(published: &PublisherLedger, handled: &HandlerLedger) -> Differences {
    let mut differences = Differences::default();
    for (id, outcome) in &published.published {
        if *outcome == Published::Confirmed && handled.runs(id).finished == 0 {
            differences.lost.push(id.clone());
        }
    }
    for (id, runs) in &handled.runs {
        if runs.finished > 1 {
            differences.duplicated.push((id.clone(), runs.finished));
        }
        if matches!(published.published.get(id), None | Some(Published::Refused)) {
            differences.unexpected.push(id.clone());
        }
    }
    differences
}
