//! The exit-code table: what the end of a command says about its delivery. Pure.

use std::collections::BTreeMap;

/// What an exit code says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ExitVerdict {
    /// The work is done; standard output is the result.
    Done,
    /// It failed and may work later.
    Retry,
    /// It will never work: dead-letter it.
    Reject,
    /// Acknowledge and drop.
    Discard,
    /// Not the message's fault: the command cannot work at present.
    Unavailable,
}

/// What each exit code says: the common table, with a consumer's own rows before it.
///
/// | code | verdict |
/// |---|---|
/// | 0 | done |
/// | 65 (`EX_DATAERR`), 3 | reject |
/// | 75 (`EX_TEMPFAIL`), 4, 5, 6 | retry |
/// | any other | [`other`](Self::other), by default retry |
///
/// A command killed by a signal has no exit code: it is Gone, whatever the table says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExitTable {
    /// The consumer's own rows; they win.
    pub overrides: BTreeMap<u8, ExitVerdict>,
    /// What a code in neither table says.
    pub other: ExitVerdict,
}

impl Default for ExitTable {
    fn default() -> Self {
        Self {
            overrides: BTreeMap::new(),
            other: ExitVerdict::Retry,
        }
    }
}

impl ExitTable {
    /// Adds a row of the consumer's own.
    #[must_use]
    pub fn with(mut self, code: u8, verdict: ExitVerdict) -> Self {
        self.overrides.insert(code, verdict);
        self
    }

    /// Tells what an exit code says.
    pub fn verdict(&self, code: u8) -> ExitVerdict {
        if let Some(verdict) = self.overrides.get(&code) {
            return *verdict;
        }
        match code {
            0 => ExitVerdict::Done,
            65 | 3 => ExitVerdict::Reject,
            75 | 4 | 5 | 6 => ExitVerdict::Retry,
            _ => self.other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_table_holds() {
        use ExitVerdict::*;
        let plain = ExitTable::default();
        let strict = ExitTable {
            other: Reject,
            ..ExitTable::default()
        };
        for code in 0..=u8::MAX {
            let (expected, expected_strict) = match code {
                0 => (Done, Done),
                3 | 65 => (Reject, Reject),
                4 | 5 | 6 | 75 => (Retry, Retry),
                _ => (Retry, Reject),
            };
            assert_eq!(plain.verdict(code), expected, "code {code}");
            assert_eq!(strict.verdict(code), expected_strict, "code {code}");
        }
    }

    #[test]
    fn the_consumers_own_rows_win() {
        let table = ExitTable::default()
            .with(65, ExitVerdict::Discard)
            .with(69, ExitVerdict::Unavailable);
        assert_eq!(table.verdict(65), ExitVerdict::Discard);
        assert_eq!(table.verdict(69), ExitVerdict::Unavailable);
        assert_eq!(table.verdict(3), ExitVerdict::Reject);
    }
}
