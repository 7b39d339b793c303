//! Tools for tests, of this project and of programs that use it: a transport that does as it is
//! told and records what it was told ([`ScriptedTransport`]), and virtual time ([`run_virtual`]).
//!
//! ```
//! use acquit_actors::model::Disposition;
//! use acquit_actors::ports::{HandlerOutcome, handler_fn};
//! use acquit_actors::testing::{ScriptedTransport, run_virtual};
//! use acquit_actors::{ConsumerSpec, Engine};
//!
//! run_virtual(async {
//!     let broker = ScriptedTransport::new();
//!     let handler = handler_fn(|_context| async { HandlerOutcome::completed() });
//!     let engine = Engine::new(broker.shared())
//!         .with_consumer(ConsumerSpec::new("words", "words", handler));
//!     let handle = engine.start_local().unwrap();
//!
//!     broker.push("words", "one message");
//!     let settled = broker.settled(1).await;
//!     assert_eq!(settled[0].disposition, Disposition::Ack);
//!     assert_eq!(handle.drain_and_wait("done").await.exit_code(), 0);
//! });
//! ```

mod broker;
#[cfg(any(test, feature = "fail-points"))]
pub(crate) mod fail_point;
mod scripted;
#[cfg(any(test, feature = "fail-points"))]
mod victim;

pub use broker::{PublishScript, SettleScript, Settlement};
pub use scripted::ScriptedTransport;
#[cfg(any(test, feature = "fail-points"))]
pub use victim::Victim;
#[cfg(any(test, feature = "fail-points"))]
pub(crate) use victim::inject;

/// Runs a future to its end on a thread-local runtime with virtual time: when nothing can go on,
/// the clock jumps to the next timer. No real time passes in waits.
///
/// # Panics
/// When the runtime cannot be built, and with whatever the future panics with.
#[cfg(feature = "testing")]
pub fn run_virtual<T>(future: impl Future<Output = T>) -> T {
    let system = actix_rt::System::with_tokio_rt(|| {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .expect("a runtime without threads can be built")
    });
    system.block_on(future)
}
