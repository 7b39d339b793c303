//! Which handler a consumer has, as data, and the one place that makes handlers of it.

use acquit_actors::ports::Handler;

use super::{CommandHandler, CommandSpec, Discard, Echo, HandlerError, Log};

/// Which handler a consumer has.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum HandlerSpec {
    /// A command is run for each delivery.
    Command(CommandSpec),
    /// The result is the body.
    Echo,
    /// Acknowledged, with no result.
    Discard,
    /// One log line of metadata, then acknowledged.
    Log,
}

/// Makes the handler that a spec names.
///
/// # Errors
/// Any [`HandlerError`], for a command that could never run.
pub fn build(spec: &HandlerSpec) -> Result<Handler, HandlerError> {
    Ok(match spec {
        HandlerSpec::Command(command) => Handler::new(CommandHandler::new(command.clone())?),
        HandlerSpec::Echo => Handler::new(Echo),
        HandlerSpec::Discard => Handler::new(Discard),
        HandlerSpec::Log => Handler::new(Log),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spec_that_can_run_is_built() {
        for spec in [
            HandlerSpec::Command(CommandSpec::new(["true"])),
            HandlerSpec::Echo,
            HandlerSpec::Discard,
            HandlerSpec::Log,
        ] {
            assert!(build(&spec).is_ok(), "{spec:?}");
        }
        let refused = build(&HandlerSpec::Command(CommandSpec::new(["no-such-command"])));
        assert!(matches!(refused, Err(HandlerError::NotFound { .. })));
    }
}
