//! What the live view shows, line by line. Pure.

use std::time::Duration;

use console::{measure_text_width, pad_str, truncate_str};

use super::words::{age, count, rate, some};
use super::{QueueDepth, QueueDepths};
use crate::model::{ConsumerName, Phase};
use crate::telemetry::escape_cut;
use crate::{ConsumerStatus, FeedStatus, Snapshot};

/// How long a change of the rate takes to show by two thirds.
const RATE_SMOOTHING: Duration = Duration::from_secs(2);

/// Names, reasons and troubles are cut to this many bytes before they are cut to the terminal.
const TEXT_MAX: usize = 500;

/// One line of the live view.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Row {
    /// What the columns of the consumers are.
    Heading,
    /// A consumer.
    Consumer(ConsumerRow),
    /// A feed.
    Feed(FeedRow),
    /// Something that is not as it should be, or was stopped by somebody: one line of text.
    Note(String),
    /// The whole process, and what Ctrl-C does now.
    Footer(FooterRow),
}

/// A consumer in the live view.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ConsumerRow {
    /// Its name.
    pub name: ConsumerName,
    /// Deliveries settled as Ack, Requeue or Reject per second, smoothed.
    pub rate: f64,
    /// How many of them there were in all: what the next rate is made from.
    pub concluded: u64,
    /// Deliveries with a permit.
    pub in_flight: u64,
    /// Deliveries that wait for a permit.
    pub waiting: u64,
    /// What waits in its queue, where that is known.
    pub depth: Option<QueueDepth>,
    /// Deliveries that were requeued.
    pub retries: u64,
    /// Deliveries that were rejected.
    pub dead: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// The age of the oldest delivery in hand.
    pub oldest: Option<Duration>,
}

/// A feed in the live view.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FeedRow {
    /// Its name.
    pub name: String,
    /// Messages published.
    pub published: u64,
    /// Lines set aside.
    pub bad: u64,
    /// Lines read before this process started.
    pub skipped: u64,
    /// Whether it was read to its end.
    pub ended: bool,
}

/// The process in the live view.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FooterRow {
    /// The phase.
    pub phase: Phase,
    /// How long it has run.
    pub uptime: Duration,
    /// The transport's name.
    pub transport: String,
    /// Permits in flight.
    pub taken: u32,
    /// The limit of permits.
    pub permits: u32,
}

/// Makes the rows of a moment. `previous` are those of the moment `elapsed` before, for the rates.
pub fn rows(
    snapshot: &Snapshot,
    previous: &[Row],
    elapsed: Duration,
    depths: &QueueDepths,
) -> Vec<Row> {
    let mut rows = Vec::new();
    if !snapshot.consumers.is_empty() {
        rows.push(Row::Heading);
    }
    for (index, status) in snapshot.consumers.iter().enumerate() {
        let mut row = consumer(snapshot, index, status, depths);
        if let Some(before) = find(previous, &row.name) {
            row.rate = smoothed(before, row.concluded, elapsed);
        }
        rows.push(Row::Consumer(row));
        rows.extend(notes(status).map(Row::Note));
    }
    for status in &snapshot.feeds {
        rows.push(Row::Feed(feed(status)));
        let trouble = status.trouble.as_ref();
        rows.extend(trouble.map(|trouble| Row::Note(escape_cut(trouble, TEXT_MAX))));
    }
    rows.push(Row::Footer(FooterRow {
        phase: snapshot.phase,
        uptime: Duration::from_millis(snapshot.uptime_ms),
        transport: escape_cut(&snapshot.transport, TEXT_MAX),
        taken: snapshot.limiter.taken,
        permits: snapshot.limiter.permits,
    }));
    rows
}

fn consumer(
    snapshot: &Snapshot,
    index: usize,
    status: &ConsumerStatus,
    depths: &QueueDepths,
) -> ConsumerRow {
    let (in_flight, waiting) = permits(snapshot, index);
    let counts = &status.counts;
    ConsumerRow {
        name: status.name.clone(),
        rate: 0.0,
        concluded: counts.acked + counts.requeued + counts.rejected,
        in_flight,
        waiting,
        depth: depths.get(&status.queue).copied(),
        retries: counts.requeued,
        dead: counts.rejected,
        failed: counts.failed,
        oldest: oldest(status),
    }
}

/// Gives what a consumer has in flight, and what waits for its permits.
pub(super) fn permits(snapshot: &Snapshot, index: usize) -> (u64, u64) {
    let shares = &snapshot.limiter.consumers;
    let share = shares
        .iter()
        .find(|share| share.consumer.0 as usize == index);
    share.map_or((0, 0), |share| {
        (u64::from(share.taken), share.waiting.count as u64)
    })
}

/// Gives the age of a consumer's oldest delivery in hand.
pub(super) fn oldest(status: &ConsumerStatus) -> Option<Duration> {
    let ages = status.partitions.iter().filter_map(|part| part.oldest_ms);
    ages.max().map(Duration::from_millis)
}

/// Says which partitions of a consumer are paused or in trouble, and why.
pub(super) fn notes(status: &ConsumerStatus) -> impl Iterator<Item = String> {
    let is_one = status.partitions.len() == 1;
    status.partitions.iter().flat_map(move |partition| {
        let place = match is_one {
            true => status.name.to_string(),
            false => format!("{}.{}", status.name, partition.partition),
        };
        let paused = partition.paused.as_ref().map(|why| ("paused: ", why));
        let trouble = partition.trouble.as_ref().map(|why| ("", why));
        let said = paused.into_iter().chain(trouble);
        said.map(move |(word, why)| escape_cut(&format!("{place}: {word}{why}"), TEXT_MAX))
            .collect::<Vec<_>>()
    })
}

fn find<'a>(rows: &'a [Row], name: &ConsumerName) -> Option<&'a ConsumerRow> {
    rows.iter().find_map(|row| match row {
        Row::Consumer(row) if row.name == *name => Some(row),
        _ => None,
    })
}

/// Moves the rate towards what it was in the time that elapsed, the further the longer that is.
fn smoothed(before: &ConsumerRow, concluded: u64, elapsed: Duration) -> f64 {
    if elapsed.is_zero() {
        return before.rate;
    }
    let seconds = elapsed.as_secs_f64();
    let now = concluded.saturating_sub(before.concluded) as f64 / seconds;
    let weight = 1.0 - (-seconds / RATE_SMOOTHING.as_secs_f64()).exp();
    before.rate + (now - before.rate) * weight
}

fn feed(status: &FeedStatus) -> FeedRow {
    FeedRow {
        name: escape_cut(&status.name, TEXT_MAX),
        published: status.published,
        bad: status.bad,
        skipped: status.skipped,
        ended: status.ended,
    }
}

/// Writes a row in at most `width` columns of a terminal, without colour.
pub fn render(row: &Row, width: usize) -> String {
    let text = match row {
        Row::Heading => return columns(width, |column| column.heading.to_owned()),
        Row::Consumer(row) => return columns(width, |column| (column.cell)(row)),
        Row::Feed(row) => feed_text(row),
        Row::Note(text) => format!("  ! {text}"),
        Row::Footer(row) => footer_text(row),
    };
    cut(&text, width)
}

/// A column of the consumers' rows.
struct Column {
    heading: &'static str,
    width: usize,
    /// Which columns go first when there is too little room: the highest.
    rank: u8,
    cell: fn(&ConsumerRow) -> String,
}

/// Together 80 wide. The first one takes the room that is left.
const COLUMNS: &[Column] = &[
    Column {
        heading: "consumer",
        width: 11,
        rank: 0,
        cell: |row| row.name.to_string(),
    },
    Column {
        heading: "per second",
        width: 11,
        rank: 1,
        cell: |row| rate(row.rate),
    },
    Column {
        heading: "in flight",
        width: 10,
        rank: 2,
        cell: |row| count(row.in_flight),
    },
    Column {
        heading: "waiting",
        width: 8,
        rank: 7,
        cell: |row| count(row.waiting),
    },
    Column {
        heading: "ready",
        width: 8,
        rank: 3,
        cell: |row| row.depth.map_or("-".to_owned(), |depth| count(depth.ready)),
    },
    Column {
        heading: "retries",
        width: 8,
        rank: 5,
        cell: |row| count(row.retries),
    },
    Column {
        heading: "dead",
        width: 8,
        rank: 4,
        cell: |row| count(row.dead),
    },
    Column {
        heading: "failed",
        width: 8,
        rank: 8,
        cell: |row| count(row.failed),
    },
    Column {
        heading: "oldest",
        width: 8,
        rank: 6,
        cell: |row| row.oldest.map_or("-".to_owned(), age),
    },
];

/// Names are not wider than this, however wide the terminal is.
const NAME_MAX: usize = 40;

/// Lays out one row: columns are shown whole or not at all, the same ones in every row of a width.
fn columns(width: usize, cell: impl Fn(&Column) -> String) -> String {
    let room = |rank: u8| -> usize {
        let shown = COLUMNS.iter().filter(|column| column.rank <= rank);
        shown.map(|column| column.width).sum()
    };
    let ranks = (0..COLUMNS.len() as u8).rev();
    let last = ranks.into_iter().find(|rank| room(*rank) <= width);
    let last = last.unwrap_or_default();
    let spare = width.saturating_sub(room(last));
    let mut line = String::new();
    for column in COLUMNS.iter().filter(|column| column.rank <= last) {
        let text = cell(column);
        if line.is_empty() {
            let room = (column.width + spare).min(NAME_MAX);
            let text = cut(&text, room.saturating_sub(1));
            line += &pad_str(&text, room, console::Alignment::Left, None);
        } else {
            line += &pad_str(&text, column.width, console::Alignment::Right, None);
        }
    }
    cut(line.trim_end(), width)
}

fn feed_text(row: &FeedRow) -> String {
    let mut text = format!("feed {}: {} published", row.name, count(row.published));
    if row.bad > 0 {
        text += &format!(", {} set aside", some(row.bad, "bad line"));
    }
    if row.skipped > 0 {
        text += &format!(", {} read before", some(row.skipped, "line"));
    }
    if row.ended {
        text += ", done";
    }
    text
}

fn footer_text(row: &FooterRow) -> String {
    let hint = match row.phase {
        Phase::Running => "Ctrl-C drains, again gives back now",
        Phase::Draining => "finishing what runs; Ctrl-C gives back now",
        Phase::Forcing => "giving back what is left",
        Phase::Stopped => "nothing is left",
    };
    format!(
        "{} {} · {hint} · {} of {} · {}",
        row.phase.as_str(),
        age(row.uptime),
        count(u64::from(row.taken)),
        some(u64::from(row.permits), "permit"),
        row.transport
    )
}

/// Cuts to at most `width` columns and shows that it did.
fn cut(text: &str, width: usize) -> String {
    match width {
        0 => String::new(),
        _ if measure_text_width(text) <= width => text.to_owned(),
        _ => truncate_str(text, width, "…").into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::example;
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn screen(width: usize) -> Vec<String> {
        let (snapshot, depths) = example();
        let rows = rows(&snapshot, &[], SECOND, &depths);
        rows.iter().map(|row| render(row, width)).collect()
    }

    #[test]
    fn a_terminal_of_80_columns_shows_it_all() {
        let expected = [
            "consumer     per second in flight waiting   ready retries    dead  failed oldest",
            "words                 0        16      24  12,345       9       2      11 1m 5s",
            "  ! words.1: paused: by acquit pause\\u{1b}[2J",
            "  ! words.1: the broker is away",
            "mail                  0         5       0       -       9       2      11      -",
            "feed examples/tasks.jsonl -> words: 1,429 published, 2 bad lines set aside, done",
            "feed more.jsonl -> words: 0 published, 7 lines read before",
            "  ! the disk is full",
            "running 1m 12s · Ctrl-C drains, again gives back now · 21 of 64 permits · embed…",
        ];
        let screen = screen(80);
        for (line, expected) in screen.iter().zip(expected) {
            let squeeze = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert_eq!(squeeze(line), squeeze(expected));
        }
        assert_eq!(screen.len(), expected.len());
        let edges: Vec<_> = [0, 1, 4].iter().map(|at| screen[*at].len()).collect();
        assert_eq!(edges, [80, 80, 80]);
    }

    #[test]
    fn every_width_is_kept_and_loses_whole_columns() {
        // Only these have a blank inside.
        let words = |line: &str| {
            let line = ["per second", "in flight"]
                .iter()
                .fold(line.to_owned(), |line, two| line.replace(two, "heading"));
            line.split_whitespace().count()
        };
        for width in 0..=200 {
            let screen = screen(width);
            for line in &screen {
                assert!(measure_text_width(line) <= width, "{width}: {line:?}");
                assert!(!line.contains('\u{1b}'));
            }
            if width >= 22 {
                assert_eq!(words(&screen[0]), words(&screen[4]), "{width}: {screen:?}");
            }
        }
        assert_eq!(screen(41)[0], "consumer     per second in flight   ready");
    }

    #[test]
    fn the_rate_is_smoothed_and_dies_away() {
        let (mut snapshot, depths) = example();
        let rate_of = |rows: &[Row]| find(rows, &"words".into()).unwrap().rate;
        let mut shown = rows(&snapshot, &[], SECOND, &depths);
        assert_eq!(rate_of(&shown), 0.0);
        let mut seen = Vec::new();
        for _ in 0..20 {
            snapshot.consumers[0].counts.acked += 100;
            shown = rows(&snapshot, &shown, SECOND, &depths);
            seen.push(rate_of(&shown));
        }
        assert!(seen.is_sorted() && (30.0..50.0).contains(&seen[0]));
        assert!((99.0..=100.0).contains(&seen[19]));
        // Twice at the same moment changes nothing.
        let again = rows(&snapshot, &shown, Duration::ZERO, &depths);
        assert_eq!(rate_of(&again), seen[19]);
        for _ in 0..20 {
            shown = rows(&snapshot, &shown, SECOND, &depths);
        }
        assert_eq!(rate(rate_of(&shown)), "0");
    }

    #[test]
    fn the_footer_says_what_ctrl_c_does_now() {
        let footer = |phase| {
            let (mut snapshot, depths) = example();
            snapshot.phase = phase;
            render(rows(&snapshot, &[], SECOND, &depths).last().unwrap(), 200)
        };
        let draining = footer(Phase::Draining);
        assert!(
            draining.starts_with("draining 1m 12s · finishing what runs; Ctrl-C gives back now")
        );
        assert!(footer(Phase::Forcing).contains("giving back what is left"));
        assert!(footer(Phase::Stopped).contains("nothing is left"));
    }

    #[test]
    fn wide_characters_count_double() {
        let row = Row::Note("世界世界".to_owned());
        assert_eq!(render(&row, 12), "  ! 世界世界");
        assert_eq!(render(&row, 10), "  ! 世界…");
        assert_eq!(render(&row, 8), "  ! 世…");
    }
}
