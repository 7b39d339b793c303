//! Sets the log up: text for people, JSON for machines, on standard error, one line per event.
//!
//! Whatever a field holds, it stays on its line and cannot speak to a terminal: control
//! characters, line breaks and characters that reorder text are written out.

use std::ffi::OsStr;
use std::fmt::{self, Write as _};
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, SystemTime};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::{Format, Json, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

use super::decision::DECISION_TARGET;
use super::escape::{Escaped, escape_cut, escape_json};
use super::writer::{LineWriter, WriterGuard, line_writer};

/// How lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For machines: one object per line.
    Json,
}

/// The least important lines that are written.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, ValueEnum, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum LogLevel {
    /// None.
    Off,
    /// What cannot go on.
    Error,
    /// What somebody should look at.
    Warn,
    /// What happens.
    #[default]
    Info,
    /// How it happens.
    Debug,
    /// Everything.
    Trace,
}

impl From<LogLevel> for LevelFilter {
    fn from(level: LogLevel) -> Self {
        match level {
            LogLevel::Off => Self::OFF,
            LogLevel::Error => Self::ERROR,
            LogLevel::Warn => Self::WARN,
            LogLevel::Info => Self::INFO,
            LogLevel::Debug => Self::DEBUG,
            LogLevel::Trace => Self::TRACE,
        }
    }
}

/// What is logged and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogSettings {
    /// How lines are written.
    pub format: LogFormat,
    /// The least important lines that are written.
    pub level: LogLevel,
    /// Whether each delivery has its decision line; they are of level info.
    pub decisions: bool,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self {
            format: LogFormat::Text,
            level: LogLevel::Info,
            decisions: true,
        }
    }
}

/// The running log. Dropped, it writes what is left, for at most a second.
#[derive(Debug)]
#[must_use = "dropped at once, it waits for nothing that is logged later"]
pub struct Logging {
    writer: LineWriter,
    _guard: WriterGuard,
}

impl Logging {
    /// How many lines wait for a slow reader before they are dropped.
    pub const LINES_MAX: usize = 8192;

    /// Starts logging to standard error, in colour where that is a terminal and `NO_COLOR` is not
    /// set.
    ///
    /// # Errors
    /// [`LoggingError`] when it was started before, or its thread cannot be started.
    pub fn start(settings: LogSettings) -> Result<Self, LoggingError> {
        let colour = is_colourful(
            io::stderr().is_terminal(),
            std::env::var_os("NO_COLOR").as_deref(),
            std::env::var_os("TERM").as_deref(),
        );
        Self::start_to(io::stderr(), colour, settings)
    }

    /// Starts logging to `out`: for a program that draws on the terminal itself.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_to(
        out: impl Write + Send + 'static,
        colour: bool,
        settings: LogSettings,
    ) -> Result<Self, LoggingError> {
        let (writer, guard) = line_writer(out, Self::LINES_MAX, dropped_line(settings.format))
            .map_err(|error| LoggingError::Thread(error.kind()))?;
        let logging = Self {
            writer: writer.clone(),
            _guard: guard,
        };
        subscriber(writer, colour, settings)
            .try_init()
            .map_err(|_| LoggingError::StartedBefore)?;
        Ok(logging)
    }

    /// Counts the lines that were dropped because nobody read them in time.
    pub fn dropped(&self) -> u64 {
        self.writer.dropped()
    }

    /// Waits until what was logged so far is written, at most `limit`. Tells whether it is.
    pub fn flush_within(&self, limit: Duration) -> bool {
        self.writer.flush_within(limit)
    }

    /// From here on a panic of any thread is a line of the log, its text escaped and cut, instead
    /// of text on standard error that could block the thread or fool a terminal.
    pub fn take_panics() {
        std::panic::set_hook(Box::new(|panic| {
            const TEXT_MAX: usize = 500;
            let place = panic.location().map(ToString::to_string);
            let text = panic.payload_as_str().unwrap_or("no text");
            tracing::error!(
                target: "acquit::panic",
                place,
                thread = std::thread::current().name(),
                text = escape_cut(text, TEXT_MAX),
                "a thread panicked"
            );
        }));
    }
}

/// Why logging was not started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoggingError {
    /// This process logs already.
    #[error("logging was started before")]
    StartedBefore,
    /// There is no thread for it.
    #[error("the log's thread cannot be started: {0}")]
    Thread(io::ErrorKind),
}

/// Gives what is written in the place of lines that were dropped.
fn dropped_line(format: LogFormat) -> fn(u64) -> String {
    const MESSAGE: &str = "log lines were dropped: they came faster than they were read";
    match format {
        LogFormat::Text => |lines| {
            let time = humantime::format_rfc3339_millis(SystemTime::now());
            format!("{time}  WARN acquit::log: {MESSAGE} lines={lines}\n")
        },
        LogFormat::Json => |lines| {
            let time = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
            let line = serde_json::json!({
                "timestamp": time,
                "level": "WARN",
                "message": MESSAGE,
                "lines": lines,
                "target": "acquit::log",
            });
            format!("{line}\n")
        },
    }
}

fn is_colourful(is_terminal: bool, no_color: Option<&OsStr>, term: Option<&OsStr>) -> bool {
    let is_forbidden = no_color.is_some_and(|value| !value.is_empty());
    is_terminal && !is_forbidden && term.is_none_or(|term| term != "dumb")
}

fn subscriber(
    writer: LineWriter,
    colour: bool,
    settings: LogSettings,
) -> Box<dyn Subscriber + Send + Sync> {
    let level = LevelFilter::from(settings.level);
    let decisions = if settings.decisions {
        level
    } else {
        LevelFilter::OFF
    };
    let filter = Targets::new()
        .with_default(level)
        .with_target(DECISION_TARGET, decisions)
        // The client writes whole messages into its log; what matters of it we say ourselves.
        .with_target("lapin", LevelFilter::OFF);
    let layer = tracing_subscriber::fmt::layer().with_writer(writer);
    let registry = tracing_subscriber::registry().with(filter);
    match settings.format {
        LogFormat::Text => Box::new(
            registry.with(
                layer
                    .with_ansi(colour)
                    .fmt_fields(TextFields)
                    .event_format(TextLine),
            ),
        ),
        LogFormat::Json => Box::new(
            registry.with(
                layer
                    .json()
                    .event_format(JsonLine(Format::default().json().flatten_event(true))),
            ),
        ),
    }
}

/// Writes one event as a line for people: time, level, target, message, fields, spans.
struct TextLine;

impl<S, N> FormatEvent<S, N> for TextLine
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        let time = humantime::format_rfc3339_millis(SystemTime::now());
        let (level, colour) = match *metadata.level() {
            Level::ERROR => ("ERROR", "31"),
            Level::WARN => (" WARN", "33"),
            Level::INFO => (" INFO", "32"),
            Level::DEBUG => ("DEBUG", "34"),
            Level::TRACE => ("TRACE", "35"),
        };
        if writer.has_ansi_escapes() {
            write!(writer, "\x1b[2m{time}\x1b[0m \x1b[{colour}m{level}\x1b[0m ")?;
        } else {
            write!(writer, "{time} {level} ")?;
        }
        write!(writer, "{}: ", Escaped(metadata.target()))?;
        event.record(&mut TextVisitor::new(&mut writer));
        for span in context.event_scope().into_iter().flatten() {
            write!(writer, " in {}", Escaped(span.name()))?;
            let extensions = span.extensions();
            if let Some(fields) = extensions.get::<FormattedFields<N>>()
                && !fields.is_empty()
            {
                write!(writer, "({fields})")?;
            }
        }
        writeln!(writer)
    }
}

/// Writes the fields of a span for people.
struct TextFields;

impl<'w> FormatFields<'w> for TextFields {
    fn format_fields<R: tracing_subscriber::field::RecordFields>(
        &self,
        mut writer: Writer<'w>,
        fields: R,
    ) -> fmt::Result {
        fields.record(&mut TextVisitor::new(&mut writer));
        Ok(())
    }
}

struct TextVisitor<'a, 'w> {
    writer: &'a mut Writer<'w>,
    separator: &'static str,
}

impl<'a, 'w> TextVisitor<'a, 'w> {
    const VALUE_MAX: usize = 4096;

    fn new(writer: &'a mut Writer<'w>) -> Self {
        Self {
            writer,
            separator: "",
        }
    }

    fn write(&mut self, field: &Field, value: &str) {
        // The writer is a string, which takes everything.
        let _ = match field.name() {
            "message" => write!(self.writer, "{}{value}", self.separator),
            name => write!(self.writer, "{}{name}={value}", self.separator),
        };
        self.separator = " ";
    }
}

impl Visit for TextVisitor<'_, '_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        let text = escape_cut(value, Self::VALUE_MAX);
        let is_plain = |c: char| !c.is_whitespace() && !matches!(c, '"' | '=' | '\\');
        if field.name() == "message" || (!text.is_empty() && text.chars().all(is_plain)) {
            self.write(field, &text);
        } else {
            self.write(field, &format!("\"{}\"", text.replace('"', "\\\"")));
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut text = String::new();
        let _ = write!(text, "{value:?}");
        self.write(field, &escape_cut(&text, Self::VALUE_MAX));
    }
}

/// Writes one event as an object; what a terminal must not see is escaped as JSON escapes it, so
/// that the value read back is the value logged.
struct JsonLine(Format<Json>);

impl<S, N> FormatEvent<S, N> for JsonLine
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = String::with_capacity(512);
        self.0
            .format_event(context, Writer::new(&mut line), event)?;
        escape_json(&mut writer, line.trim_end_matches('\n'))?;
        writeln!(writer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex, PoisonError};

    const HOSTILE: &str = "a\r\nERROR forged\x1b[2J\u{9b}31m\u{202e}end \"q\"";

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut buffer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            buffer.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(colour: bool, settings: LogSettings, log: impl FnOnce()) -> String {
        let buffer = Buffer::default();
        let (writer, guard) =
            line_writer(buffer.clone(), 64, dropped_line(settings.format)).expect("started");
        tracing::subscriber::with_default(subscriber(writer, colour, settings), log);
        drop(guard);
        let bytes = buffer.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8(bytes.clone()).expect("UTF-8")
    }

    fn hostile_event() {
        let span = tracing::info_span!("delivery", id = HOSTILE);
        let _entered = span.enter();
        tracing::warn!(error = HOSTILE, shown = %HOSTILE, debug = ?HOSTILE, n = 3, "{HOSTILE}");
    }

    fn assert_is_one_safe_line(text: &str) {
        let line = text.strip_suffix('\n').expect("ends with a line break");
        let bad = line.chars().find(|c| c.is_control() || *c == '\u{202e}');
        assert_eq!(bad, None, "{line}");
    }

    #[test]
    fn a_text_line_stays_one_line_whatever_its_fields_hold() {
        let text = logged(false, LogSettings::default(), hostile_event);
        assert_is_one_safe_line(&text);
        let escaped = "a\\r\\nERROR forged\\u{1b}[2J\\u{9b}31m\\u{202e}end ";
        let quoted = format!("error=\"{escaped}\\\"q\\\"\"");
        assert!(text.contains(&quoted), "{text}");
        assert!(text.contains(" n=3 in delivery(id="), "{text}");
        assert!(
            text.contains(" WARN acquit::telemetry::logging::tests: a\\r\\nERROR"),
            "{text}"
        );
    }

    #[test]
    fn a_json_line_is_one_valid_object_with_the_values_unchanged() {
        let settings = LogSettings {
            format: LogFormat::Json,
            ..LogSettings::default()
        };
        let text = logged(true, settings, hostile_event);
        assert_is_one_safe_line(&text);
        let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(value["error"], HOSTILE);
        assert_eq!(value["message"], HOSTILE);
        assert_eq!(value["level"], "WARN");
        assert_eq!(value["n"], 3);
    }

    #[test]
    fn colour_only_for_a_terminal_that_takes_it() {
        let os = |text| Some(OsStr::new(text));
        assert!(is_colourful(true, None, os("xterm")));
        assert!(is_colourful(true, os(""), None));
        assert!(!is_colourful(true, os("1"), os("xterm")));
        assert!(!is_colourful(true, None, os("dumb")));
        assert!(!is_colourful(false, None, os("xterm")));
        let event = || tracing::info!("hello");
        let settings = LogSettings::default();
        assert!(logged(true, settings, event).contains("\x1b[32m INFO\x1b[0m"));
        assert!(!logged(false, settings, event).contains('\x1b'));
    }

    #[test]
    fn decisions_are_switched_apart_from_the_level() {
        let event = || {
            tracing::info!(target: DECISION_TARGET, "decided");
            tracing::info!("other");
        };
        let check = |level, decisions, expected: &[&str]| {
            let settings = LogSettings {
                level,
                decisions,
                ..LogSettings::default()
            };
            let text = logged(false, settings, event);
            let seen: Vec<_> = text.lines().filter_map(|l| l.rsplit(' ').next()).collect();
            assert_eq!(seen, expected);
        };
        check(LogLevel::Info, true, &["decided", "other"]);
        check(LogLevel::Info, false, &["other"]);
        check(LogLevel::Warn, true, &[]);
        check(LogLevel::Off, true, &[]);
    }
}
