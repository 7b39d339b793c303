//! The command line: its arguments, its exit codes, its commands.

mod args;
mod bench;
mod check;
pub mod commands;
mod connect;
mod dispatch;
mod dlq;
mod exit;
pub mod run;
mod topology;
pub mod view;

pub use args::{
    Args, BenchArgs, CancelArgs, CheckArgs, Command, ConsumerArgs, DlqAction, DlqArgs, DrainArgs,
    FilterArgs, GetArgs, HeaderArg, LetterArgs, ListArgs, PublishArgs, RateArg, ReplayArgs,
    RunArgs, ScaleArgs, TopologyAction, TopologyArgs,
};
pub use check::check;
pub use connect::{check_connect, show_connect};
pub use dispatch::dispatch;
pub use dlq::{dlq, show_dlq};
pub use exit::Exit;
pub use topology::{show_topology, topology};

/// An error with all its causes, as one text.
fn whole(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
