//! A snapshot as text for people: tables with aligned columns, exact numbers. Pure.

use std::time::Duration;

use console::{Alignment, measure_text_width, pad_str};

use super::rows::{notes, oldest, permits};
use super::words::{age, some};
use super::{QueueDepth, QueueDepths};
use crate::control::BrokerTold;
use crate::model::QueueName;
use crate::ports::ManagedState;
use crate::telemetry::escape_cut;
use crate::{ConsumerStatus, FeedStatus, Snapshot};

/// Names and troubles are cut to this many bytes.
const TEXT_MAX: usize = 200;

/// Says what a process does, or did: what `status` shows, and what a run ends with. Each line ends
/// with a line end.
pub fn summary(snapshot: &Snapshot, depths: &QueueDepths) -> String {
    let mut parts = vec![head(snapshot)];
    if !snapshot.connections.is_empty() {
        parts.push(connections(&snapshot.connections));
    }
    if !snapshot.consumers.is_empty() {
        let mut part = table(&IN_HAND, in_hand(snapshot));
        for note in snapshot.consumers.iter().flat_map(notes) {
            part += &format!("! {note}\n");
        }
        parts.push(part);
        parts.push(table(&SO_FAR, so_far(snapshot)));
    }
    if !depths.is_empty() {
        parts.push(table(&QUEUES, queues(depths)));
    }
    if !snapshot.feeds.is_empty() {
        let mut part = table(&FEEDS, snapshot.feeds.iter().map(feed).collect());
        for feed in &snapshot.feeds {
            if let Some(trouble) = &feed.trouble {
                let line = format!("{}: {trouble}", feed.name);
                part += &format!("! {}\n", escape_cut(&line, 2 * TEXT_MAX));
            }
        }
        parts.push(part);
    }
    parts.join("\n")
}

fn head(snapshot: &Snapshot) -> String {
    let limiter = &snapshot.limiter;
    let mut head = format!(
        "{} for {} on {}, {} of {}, {} of {} in flight\n",
        snapshot.phase.as_str(),
        age(Duration::from_millis(snapshot.uptime_ms)),
        escape_cut(&snapshot.transport, TEXT_MAX),
        limiter.taken,
        some(u64::from(limiter.permits), "permit"),
        bytes(limiter.in_flight_bytes),
        bytes(limiter.in_flight_bytes_max),
    );
    if snapshot.refused_events + snapshot.observer_panics > 0 {
        head += &format!(
            "! {}, {}: please report this\n",
            some(snapshot.refused_events, "refused event"),
            some(snapshot.observer_panics, "panic") + " of observers"
        );
    }
    head
}

fn bytes(bytes: u64) -> String {
    bytesize::ByteSize(bytes).display().iec().to_string()
}

/// Says what a broker told about itself, a line for it and one for each queue.
pub fn broker_lines(broker: &BrokerTold) -> String {
    let mut lines = format!("RabbitMQ {}\n", escape_cut(&broker.version, TEXT_MAX));
    if broker.queues.is_empty() {
        lines += "queue types and limits: unknown without broker.management\n";
    }
    for queue in &broker.queues {
        let line = format!(
            "queue {}: {}, delivery limit {}, consumer timeout {}, single active consumer {}",
            queue.name,
            queue.kind,
            queue.delivery_limit,
            queue.consumer_timeout,
            queue.single_active
        );
        lines += &format!("{}\n", escape_cut(&line, 2 * TEXT_MAX));
    }
    lines
}

const CONNECTIONS: [&str; 4] = ["connection", "state", "opened", "address"];

fn connections(connections: &[ManagedState]) -> String {
    let row = |one: &ManagedState| {
        vec![
            escape_cut(&one.name, TEXT_MAX),
            escape_cut(&one.state, TEXT_MAX),
            one.opened.to_string(),
            escape_cut(&one.address, TEXT_MAX),
        ]
    };
    let mut part = table(&CONNECTIONS, connections.iter().map(row).collect());
    for one in connections {
        if let Some(trouble) = &one.trouble {
            let line = format!("{}: {trouble}", one.name);
            part += &format!("! {}\n", escape_cut(&line, 2 * TEXT_MAX));
        }
    }
    part
}

const IN_HAND: [&str; 6] = [
    "consumer",
    "in hand",
    "in flight",
    "permits",
    "waiting",
    "oldest",
];

fn in_hand(snapshot: &Snapshot) -> Vec<Vec<String>> {
    let row = |(index, status): (usize, &ConsumerStatus)| {
        let (in_flight, waiting) = permits(snapshot, index);
        vec![
            escape_cut(status.name.as_str(), TEXT_MAX),
            status.counts.in_hand.to_string(),
            in_flight.to_string(),
            status.permits.to_string(),
            waiting.to_string(),
            oldest(status).map_or("-".to_owned(), age),
        ]
    };
    snapshot.consumers.iter().enumerate().map(row).collect()
}

const SO_FAR: [&str; 8] = [
    "consumer", "received", "acked", "requeued", "rejected", "released", "lost", "failed",
];

fn so_far(snapshot: &Snapshot) -> Vec<Vec<String>> {
    let row = |status: &ConsumerStatus| {
        let counts = &status.counts;
        let numbers = [
            counts.received,
            counts.acked,
            counts.requeued,
            counts.rejected,
            counts.released,
            counts.lost,
            counts.failed,
        ];
        let name = escape_cut(status.name.as_str(), TEXT_MAX);
        let numbers = numbers.iter().map(u64::to_string);
        std::iter::once(name).chain(numbers).collect()
    };
    snapshot.consumers.iter().map(row).collect()
}

const QUEUES: [&str; 4] = ["queue", "ready", "delayed", "dead"];

fn queues(depths: &QueueDepths) -> Vec<Vec<String>> {
    let row = |(queue, depth): (&QueueName, &QueueDepth)| {
        vec![
            escape_cut(queue.as_str(), TEXT_MAX),
            depth.ready.to_string(),
            depth.delayed.to_string(),
            depth.dead.to_string(),
        ]
    };
    depths.iter().map(row).collect()
}

const FEEDS: [&str; 5] = ["feed", "published", "bad", "read before", "state"];

fn feed(status: &FeedStatus) -> Vec<String> {
    let state = match (status.ended, &status.trouble) {
        (true, _) => "done",
        (false, Some(_)) => "trouble",
        (false, None) => "reading",
    };
    vec![
        escape_cut(&status.name, TEXT_MAX),
        status.published.to_string(),
        status.bad.to_string(),
        status.skipped.to_string(),
        state.to_owned(),
    ]
}

/// Lays a table out: the first column to the left, the others to the right, two blanks between.
fn table<const N: usize>(headings: &[&str; N], rows: Vec<Vec<String>>) -> String {
    let headings = headings.iter().map(|heading| (*heading).to_owned());
    let rows: Vec<Vec<String>> = std::iter::once(headings.collect()).chain(rows).collect();
    let width = |at: usize| {
        let cells = rows.iter().filter_map(|row| row.get(at));
        cells
            .map(|cell| measure_text_width(cell))
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..N).map(width).collect();
    let mut table = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths).enumerate();
        let cells = cells.map(|(at, (cell, width))| match at {
            0 => pad_str(cell, *width, Alignment::Left, None),
            _ => pad_str(cell, *width, Alignment::Right, None),
        });
        table += cells.collect::<Vec<_>>().join("  ").trim_end();
        table.push('\n');
    }
    table
}

#[cfg(test)]
mod tests {
    use super::super::example;
    use super::*;

    #[test]
    fn a_summary_is_tables_and_what_is_wrong() {
        let (snapshot, depths) = example();
        let expected = "\
running for 1m 12s on embedded, 21 of 64 permits, 1.2 MiB of 256.0 MiB in flight

consumer  in hand  in flight  permits  waiting  oldest
words          40         16       16       24   1m 5s
mail           40          5        8        0       -
! words.1: paused: by acquit pause\\u{1b}[2J
! words.1: the broker is away

consumer  received    acked  requeued  rejected  released  lost  failed
words      1234567  1234509         9         2         4     3      11
mail           100       42         9         2         4     3      11

queue          ready  delayed  dead
words          12345        6     2
words.results   1389        0     0

feed                           published  bad  read before    state
examples/tasks.jsonl -> words       1429    2            0     done
more.jsonl -> words                    0    0            7  trouble
! more.jsonl -> words: the disk is full
";
        assert_eq!(summary(&snapshot, &depths), expected);
    }

    #[test]
    fn connections_and_what_is_wrong_with_them_are_shown() {
        let (mut snapshot, _) = example();
        snapshot.consumers.clear();
        snapshot.feeds.clear();
        let connection = |name: &str, state: &str, trouble: Option<&str>| ManagedState {
            name: name.to_owned(),
            state: state.to_owned(),
            address: "rabbit:5672/".to_owned(),
            opened: 2,
            trouble: trouble.map(str::to_owned),
        };
        snapshot.connections = vec![
            connection("consume", "open", None),
            connection("publish", "blocked", Some("low on memory")),
        ];
        let text = summary(&snapshot, &QueueDepths::new());
        let expected = "
connection    state  opened       address
consume        open       2  rabbit:5672/
publish     blocked       2  rabbit:5672/
! publish: low on memory
";
        assert!(text.ends_with(expected), "{text}");
    }

    #[test]
    fn what_a_broker_told_is_a_line_each() {
        let mut broker = BrokerTold {
            version: "3.10.8".to_owned(),
            queues: Vec::new(),
        };
        let expected = "RabbitMQ 3.10.8
queue types and limits: unknown without broker.management
";
        assert_eq!(broker_lines(&broker), expected);
        broker.queues.push(crate::control::QueueTold {
            name: "words".into(),
            kind: "quorum".to_owned(),
            delivery_limit: "20".to_owned(),
            consumer_timeout: "unknown".to_owned(),
            single_active: "no".to_owned(),
        });
        let expected = "RabbitMQ 3.10.8
queue words: quorum, delivery limit 20, consumer timeout unknown, single active consumer no
";
        assert_eq!(broker_lines(&broker), expected);
    }

    #[test]
    fn what_is_not_there_is_not_shown() {
        let (mut snapshot, _) = example();
        snapshot.consumers.clear();
        snapshot.feeds.clear();
        let text = summary(&snapshot, &QueueDepths::new());
        assert_eq!(text.lines().count(), 1);
        snapshot.refused_events = 1;
        let text = summary(&snapshot, &QueueDepths::new());
        assert!(text.ends_with("\n! 1 refused event, 0 panics of observers: please report this\n"));
    }
}
