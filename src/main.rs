//! The binary. What it does is in the library.

use std::io::Write;
use std::process::ExitCode;

use acquit::cli::{Args, Exit, dispatch};
use clap::Parser;

/// A delivery is a dozen small allocations on one thread, some of them freed on another.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Signals, the socket and the view share this thread; actors, handlers and the broker have
    // threads of their own.
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let exit = match runtime {
        Ok(runtime) => {
            let exit = runtime.block_on(dispatch(args));
            // A handler's thread may never return: it must not hold the process up.
            runtime.shutdown_background();
            exit
        }
        Err(error) => Err(error),
    };
    match exit {
        Ok(exit) => end(exit),
        // Who read our output has had enough: `acquit get words | head`.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => end(Exit::Clean),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "acquit: {error}");
            end(Exit::Failure)
        }
    }
}

/// Ends the process without waiting for threads that may never end.
fn end(exit: Exit) -> ! {
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place where the process ends"
    )]
    std::process::exit(i32::from(exit.code()))
}
