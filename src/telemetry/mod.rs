//! What the process tells about itself: logs, and one decision line per delivery.
//!
//! Nothing here may stall the data plane: lines go through a bounded buffer to a thread of their
//! own and are dropped, and counted, when nobody reads them.

mod decision;
mod escape;
mod logging;
mod writer;

pub use decision::{DECISION_TARGET, LogObserver};
pub use escape::{Escaped, escape_cut};
pub use logging::{LogFormat, LogLevel, LogSettings, Logging, LoggingError};
pub use writer::{LineWriter, WriterGuard, line_writer};
