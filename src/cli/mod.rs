//! The command line: its arguments, its exit codes, its commands.

mod args;
mod check;
mod exit;
pub mod view;

pub use args::{
    Args, BenchArgs, CancelArgs, Command, ConsumerArgs, DrainArgs, GetArgs, HeaderArg, PublishArgs,
    RunArgs, ScaleArgs,
};
pub use check::check;
pub use exit::Exit;
