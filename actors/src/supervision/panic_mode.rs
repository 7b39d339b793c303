//! Refuses to run where a panic cannot be contained.

/// This program was built so that a panic ends the process: nothing could be supervised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "supervision needs panics to unwind, and this program was built with panic = \"abort\": set \
     panic = \"unwind\" in the [profile.*] of the Cargo.toml at the root of your workspace, or \
     remove -C panic=abort from RUSTFLAGS"
)]
pub struct PanicAbort;

/// Checks that panics unwind. Every start of the engine asks this first and refuses to run if they
/// do not: with `panic = "abort"` one panicking handler would end the process, and everything this
/// crate says about crashes would silently be untrue.
///
/// # Errors
///
/// [`PanicAbort`] if this crate was compiled with `panic = "abort"` (a profile's setting holds for
/// all crates of a program).
pub fn refuse_panic_abort() -> Result<(), PanicAbort> {
    if cfg!(panic = "abort") {
        Err(PanicAbort)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_that_unwinds_is_accepted() {
        assert_eq!(refuse_panic_abort(), Ok(()));
    }

    #[test]
    fn the_refusal_says_what_to_change() {
        assert!(PanicAbort.to_string().contains("panic = \"unwind\""));
    }
}
