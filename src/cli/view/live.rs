//! The live view on a terminal, and how log lines get above it.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::QueueDepths;
use super::rows::{Row, render, rows};
use crate::Snapshot;

/// How often the terminal is drawn to at most, per second.
const DRAWS_MAX: u8 = 20;

/// The live view of a run, at the bottom of the terminal that standard error is. Where it is none,
/// nothing is drawn, and log lines go straight to standard error.
///
/// A terminal can be stopped (Ctrl-S), and whoever draws then waits: call its methods from a thread
/// or a task that may wait, never from the actors' thread.
pub struct View {
    progress: MultiProgress,
    bar: ProgressBar,
    is_live: Arc<AtomicBool>,
    is_colourful: bool,
    size: fn() -> (usize, usize),
    rows: Vec<Row>,
    drawn: Option<Instant>,
}

impl View {
    /// Makes the view; it is first drawn by [`update`](Self::update). It has colours unless
    /// `NO_COLOR` is set, and none is drawn on a terminal that cannot move its cursor.
    pub fn new() -> Self {
        let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        if !io::stderr().is_terminal() || is_dumb {
            return Self::on(ProgressDrawTarget::hidden(), false, false, terminal_size);
        }
        let target = ProgressDrawTarget::stderr_with_hz(DRAWS_MAX);
        Self::on(target, true, !is_set("NO_COLOR"), terminal_size)
    }

    fn on(
        target: ProgressDrawTarget,
        is_live: bool,
        is_colourful: bool,
        size: fn() -> (usize, usize),
    ) -> Self {
        let progress = MultiProgress::with_draw_target(target);
        // One bar of many lines: each update is one drawing, whole or not at all.
        let style = ProgressStyle::with_template("{msg}").expect("the template is correct");
        let bar = progress.add(ProgressBar::no_length().with_style(style));
        Self {
            progress,
            bar,
            is_live: Arc::new(AtomicBool::new(is_live)),
            is_colourful,
            size,
            rows: Vec::new(),
            drawn: None,
        }
    }

    /// Tells whether anything is drawn.
    pub fn is_live(&self) -> bool {
        self.is_live.load(Ordering::Acquire)
    }

    /// Tells whether it has colours, and log lines above it should have them.
    pub fn is_colourful(&self) -> bool {
        self.is_colourful
    }

    /// Gives what log lines are written to while the view may be there.
    pub fn writer(&self) -> ViewWriter {
        ViewWriter {
            progress: self.progress.clone(),
            is_live: Arc::clone(&self.is_live),
            below: Box::new(io::stderr()),
            pending: Vec::new(),
        }
    }

    /// Shows another moment. A few times a second is enough.
    pub fn update(&mut self, snapshot: &Snapshot, depths: &QueueDepths) {
        if !self.is_live() {
            return;
        }
        let now = Instant::now();
        let elapsed = self
            .drawn
            .replace(now)
            .map_or(Duration::ZERO, |drawn| now - drawn);
        self.rows = rows(snapshot, &self.rows, elapsed, depths);
        let (height, width) = (self.size)();
        let lines = lines(&self.rows, height, width, self.is_colourful);
        self.bar.set_message(lines.join("\n"));
    }

    /// Takes the view off the terminal. What is written from now on goes straight to it.
    pub fn finish(&mut self) {
        if self.is_live.swap(false, Ordering::AcqRel) {
            self.bar.finish_and_clear();
            // A terminal that went away needs no clearing.
            let _ = self.progress.clear();
        }
    }
}

impl Default for View {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.finish();
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View")
            .field("is_live", &self.is_live())
            .finish_non_exhaustive()
    }
}

/// The terminal's rows and columns.
fn terminal_size() -> (usize, usize) {
    let size = console::Term::stderr().size_checked();
    size.map_or((24, 80), |(rows, columns)| (rows.into(), columns.into()))
}

/// Makes the lines of a screen. Where there are too many, the last row stays, for it says what
/// Ctrl-C does.
fn lines(rows: &[Row], height: usize, width: usize, is_colourful: bool) -> Vec<String> {
    let line = |row: &Row| {
        let text = render(row, width);
        match is_colourful {
            true => coloured(row, text),
            false => text,
        }
    };
    // One row of the terminal is the cursor's.
    let room = height.saturating_sub(1).max(1);
    let Some((last, others)) = rows.split_last().filter(|_| rows.len() > room) else {
        return rows.iter().map(line).collect();
    };
    let shown = room.saturating_sub(2);
    let mut lines: Vec<String> = others.iter().take(shown).map(line).collect();
    if room > 1 {
        let more = format!("  … and {} more", others.len() - shown);
        lines.push(render_text(&more, width));
    }
    lines.push(line(last));
    lines
}

fn render_text(text: &str, width: usize) -> String {
    console::truncate_str(text, width, "").into_owned()
}

fn coloured(row: &Row, text: String) -> String {
    let style = match row {
        Row::Heading | Row::Footer(_) => console::Style::new().dim(),
        Row::Note(_) => console::Style::new().yellow(),
        Row::Consumer(_) | Row::Feed(_) => return text,
    };
    style.force_styling(true).apply_to(text).to_string()
}

/// Writes log lines above the live view; straight to standard error where there is none, or none
/// any more. Only whole lines are written: the rest of one waits for its end, or for a flush.
pub struct ViewWriter {
    progress: MultiProgress,
    is_live: Arc<AtomicBool>,
    below: Box<dyn Write + Send>,
    pending: Vec<u8>,
}

impl ViewWriter {
    fn write_lines(&mut self, lines: &[u8]) -> io::Result<()> {
        if !self.is_live.load(Ordering::Acquire) {
            return self.below.write_all(lines);
        }
        let text = String::from_utf8_lossy(lines);
        self.progress
            .println(text.strip_suffix('\n').unwrap_or(&text))
    }
}

impl Write for ViewWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.pending.extend_from_slice(bytes);
        if let Some(end) = self.pending.iter().rposition(|byte| *byte == b'\n') {
            let rest = self.pending.split_off(end + 1);
            let lines = std::mem::replace(&mut self.pending, rest);
            self.write_lines(&lines)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let rest = std::mem::take(&mut self.pending);
        if !rest.is_empty() {
            self.write_lines(&rest)?;
        }
        self.below.flush()
    }
}

impl fmt::Debug for ViewWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ViewWriter").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::example;
    use super::*;
    use indicatif::TermLike;
    use std::sync::{Mutex, PoisonError};

    /// A terminal of 80 columns that remembers what stands on it.
    #[derive(Debug, Clone, Default)]
    struct Screen(Arc<Mutex<Cells>>);

    #[derive(Debug, Default)]
    struct Cells {
        lines: Vec<Vec<char>>,
        row: usize,
        column: usize,
    }

    impl Screen {
        fn with<T>(&self, act: impl FnOnce(&mut Cells) -> T) -> T {
            act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
        }

        fn text(&self) -> Vec<String> {
            let trim = |line: &Vec<char>| line.iter().collect::<String>().trim_end().to_owned();
            let mut lines: Vec<String> = self.with(|cells| cells.lines.iter().map(trim).collect());
            while lines.last().is_some_and(String::is_empty) {
                lines.pop();
            }
            lines
        }
    }

    impl TermLike for Screen {
        fn width(&self) -> u16 {
            80
        }
        fn move_cursor_up(&self, n: usize) -> io::Result<()> {
            self.with(|cells| cells.row = cells.row.saturating_sub(n));
            Ok(())
        }
        fn move_cursor_down(&self, n: usize) -> io::Result<()> {
            self.with(|cells| cells.row += n);
            Ok(())
        }
        fn move_cursor_right(&self, n: usize) -> io::Result<()> {
            self.with(|cells| cells.column += n);
            Ok(())
        }
        fn move_cursor_left(&self, n: usize) -> io::Result<()> {
            self.with(|cells| cells.column = cells.column.saturating_sub(n));
            Ok(())
        }
        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write_str(text)?;
            self.write_str("\n")
        }
        fn write_str(&self, text: &str) -> io::Result<()> {
            self.with(|cells| {
                for character in text.chars() {
                    if character == '\n' || cells.column == 80 {
                        (cells.row, cells.column) = (cells.row + 1, 0);
                    }
                    if character == '\r' {
                        cells.column = 0;
                    }
                    if character.is_control() {
                        continue;
                    }
                    let rows = cells.lines.len().max(cells.row + 1);
                    cells.lines.resize(rows, Vec::new());
                    let line = &mut cells.lines[cells.row];
                    line.resize(line.len().max(cells.column + 1), ' ');
                    line[cells.column] = character;
                    cells.column += 1;
                }
            });
            Ok(())
        }
        fn clear_line(&self) -> io::Result<()> {
            self.with(|cells| {
                cells.column = 0;
                let row = cells.row;
                if let Some(line) = cells.lines.get_mut(row) {
                    line.clear();
                }
            });
            Ok(())
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    fn view() -> (View, Screen) {
        let screen = Screen::default();
        let target = ProgressDrawTarget::term_like(Box::new(screen.clone()));
        let mut view = View::on(target, true, false, || (24, 80));
        let (snapshot, depths) = example();
        view.update(&snapshot, &depths);
        (view, screen)
    }

    /// A writer that remembers, in place of standard error.
    #[derive(Clone, Default)]
    struct Plain(Arc<Mutex<Vec<u8>>>);

    impl Write for Plain {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            all.extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn log_lines_stand_above_the_view_and_tear_nothing() {
        let (mut view, screen) = view();
        let before = screen.text();
        assert!(before[0].starts_with("consumer") && before[8].starts_with("running 1m 12s"));
        let mut writer = view.writer();
        let long = "x".repeat(200);
        writer.write_all(b"one\ntwo\nhalf").unwrap();
        assert_eq!(screen.text()[..3], ["one", "two", &*before[0]]);
        writer
            .write_all(format!(" done\n{long}\n").as_bytes())
            .unwrap();
        let (snapshot, depths) = example();
        view.update(&snapshot, &depths);
        let after = screen.text();
        assert_eq!(after[..3], ["one", "two", "half done"]);
        assert_eq!(after[3..6].concat(), long);
        assert_eq!(after[6..], before);
    }

    #[test]
    fn after_the_end_only_the_log_is_left_and_lines_go_straight_out() {
        let (mut view, screen) = view();
        let plain = Plain::default();
        let mut writer = view.writer();
        writer.below = Box::new(plain.clone());
        writer.write_all(b"before\n").unwrap();
        view.finish();
        view.finish();
        let (snapshot, depths) = example();
        view.update(&snapshot, &depths);
        writer.write_all(b"after\nrest").unwrap();
        writer.flush().unwrap();
        assert_eq!(screen.text(), ["before"]);
        let all = plain.0.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(*all, b"after\nrest");
    }

    #[test]
    fn without_a_terminal_nothing_is_drawn() {
        let mut view = View::on(ProgressDrawTarget::hidden(), false, false, || (24, 80));
        let plain = Plain::default();
        let mut writer = view.writer();
        writer.below = Box::new(plain.clone());
        let (snapshot, depths) = example();
        view.update(&snapshot, &depths);
        writer.write_all(b"a line\n").unwrap();
        let all = plain.0.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(*all, b"a line\n");
    }

    #[test]
    fn a_low_terminal_keeps_the_footer() {
        let (snapshot, depths) = example();
        let rows = rows(&snapshot, &[], Duration::ZERO, &depths);
        for height in 0..12 {
            let lines = lines(&rows, height, 80, false);
            assert!(lines.len() <= height.saturating_sub(1).max(1));
            assert!(lines.last().unwrap().starts_with("running"));
        }
        let lines = lines(&rows, 5, 80, false);
        assert!(lines[1].starts_with("words") && lines[2] == "  … and 6 more");
    }

    #[test]
    fn colours_change_no_text() {
        let (snapshot, depths) = example();
        let rows = rows(&snapshot, &[], Duration::ZERO, &depths);
        let strip = |line: &String| console::strip_ansi_codes(line).into_owned();
        let coloured = lines(&rows, 24, 60, true);
        assert!(coloured[0].contains('\u{1b}'));
        let stripped: Vec<String> = coloured.iter().map(strip).collect();
        assert_eq!(stripped, lines(&rows, 24, 60, false));
    }
}
