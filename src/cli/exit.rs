//! How the process ends, in one place. Codes never change meaning.

use std::fmt::Write;
use std::process::ExitCode;

use crate::app::AppError;

/// How the process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Exit {
    /// Drained, idle, or halted with 0.
    Clean,
    /// A failure, or a handler's thread outlived the grace.
    Failure,
    /// The command line or the configuration is wrong.
    Usage,
    /// The broker refused a declaration.
    DeclarationRefused,
    /// A subscription failed.
    SubscriptionFailed,
    /// The broker cancelled a subscription for good.
    CancelledByBroker,
    /// A handler failed (topic profile).
    HandlerFailed,
    /// No connection, no handshake, or wrong credentials.
    Connection,
    /// The broker gave no permission.
    NoPermission,
    /// The drain timeout passed or was skipped: stragglers were given back.
    Stragglers,
    /// A supervisor gave up.
    SupervisorGaveUp,
    /// A handler halted the process with a code of its own.
    Halted(u8),
}

impl Exit {
    /// Every way to end that has a code of its own, in the order of the codes.
    pub const ALL: [Self; 11] = [
        Self::Clean,
        Self::Failure,
        Self::Usage,
        Self::DeclarationRefused,
        Self::SubscriptionFailed,
        Self::CancelledByBroker,
        Self::HandlerFailed,
        Self::Connection,
        Self::NoPermission,
        Self::Stragglers,
        Self::SupervisorGaveUp,
    ];

    /// Gives the code.
    pub const fn code(self) -> u8 {
        match self {
            Self::Clean => 0,
            Self::Failure => 1,
            Self::Usage => 2,
            Self::DeclarationRefused => 10,
            Self::SubscriptionFailed => 11,
            Self::CancelledByBroker => 12,
            Self::HandlerFailed => 13,
            Self::Connection => 14,
            Self::NoPermission => 15,
            Self::Stragglers => 20,
            Self::SupervisorGaveUp => 21,
            Self::Halted(code) => code,
        }
    }

    /// Gives the exit for the code that an engine's end or a drain report names.
    pub fn from_engine(code: u8) -> Self {
        let known = Self::ALL.into_iter().find(|exit| exit.code() == code);
        known.unwrap_or(Self::Halted(code))
    }

    /// Says what the code means.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Clean => "clean: drained, idle, or halted with 0",
            Self::Failure => "failure, or a handler's thread outlived the grace",
            Self::Usage => "usage or configuration",
            Self::DeclarationRefused => "the broker refused a declaration",
            Self::SubscriptionFailed => "a subscription failed",
            Self::CancelledByBroker => "the broker cancelled a subscription for good",
            Self::HandlerFailed => "a handler failed (topic profile)",
            Self::Connection => "no connection, handshake or credentials",
            Self::NoPermission => "the broker gave no permission",
            Self::Stragglers => {
                "the drain timeout passed or was skipped: stragglers were given back"
            }
            Self::SupervisorGaveUp => "a supervisor gave up",
            Self::Halted(_) => "a handler halted the process",
        }
    }

    /// Whether this build can end so: 12 and 13 belong to profiles that are not built yet.
    const fn is_shown(self) -> bool {
        !matches!(self.code(), 12 | 13)
    }

    /// Gives the table of codes for help texts.
    pub(super) fn table() -> String {
        let mut table = "Exit codes:\n".to_owned();
        for exit in Self::ALL.into_iter().filter(|exit| exit.is_shown()) {
            // Writing to a string cannot fail.
            let _ = writeln!(table, "  {:>2}  {}", exit.code(), exit.meaning());
        }
        table
    }
}

impl From<&AppError> for Exit {
    fn from(error: &AppError) -> Self {
        if let AppError::Amqp { source, .. } = error {
            return Self::from_engine(source.exit_code());
        }
        if error.is_configuration() {
            Self::Usage
        } else {
            Self::Failure
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_codes_are_the_documented_ones() {
        let codes: Vec<u8> = Exit::ALL.iter().map(|exit| exit.code()).collect();
        assert_eq!(codes, [0, 1, 2, 10, 11, 12, 13, 14, 15, 20, 21]);
        assert_eq!(Exit::Halted(7).code(), 7);
    }

    #[test]
    fn the_table_shows_the_codes_that_this_build_has() {
        assert_eq!(
            Exit::table(),
            "Exit codes:
   0  clean: drained, idle, or halted with 0
   1  failure, or a handler's thread outlived the grace
   2  usage or configuration
  10  the broker refused a declaration
  11  a subscription failed
  14  no connection, handshake or credentials
  15  the broker gave no permission
  20  the drain timeout passed or was skipped: stragglers were given back
  21  a supervisor gave up
"
        );
    }
}
