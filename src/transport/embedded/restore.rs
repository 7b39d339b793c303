//! What a durable store held, brought back into queues at start.
//!
//! Every message row is read once: its checksum is verified, untouched ones are only counted, and
//! what was handed out or delayed is put back to where it stood.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use acquit_actors::model::QueueName;

use super::batch::Table;
use super::clock::Clock;
use super::codec::{RowKey, StateRow, decode_numbers, decode_state, is_good_row, split_key};
use super::error::EmbeddedError;
use super::names;
use super::queue::{Kind, PartitionShared, Queue, Queues};
use super::tables::Tables;

/// What was found of one partition.
#[derive(Debug, Default)]
struct Found {
    first_fresh: Option<u64>,
    fresh: u64,
    last: u64,
    dead: u64,
    touched: Vec<(u64, StateRow)>,
    bad: Vec<(u64, Vec<u8>)>,
}

/// What was brought back, beside the queues themselves.
#[derive(Debug)]
pub(crate) struct Restored {
    /// The number the next new queue gets.
    pub(crate) next_queue: u32,
    /// Rows that do not match their checksum: partition, sequence, row.
    pub(crate) bad: Vec<(Arc<PartitionShared>, u64, Vec<u8>)>,
}

/// Brings back all queues.
pub(crate) fn restore(
    tables: &Tables,
    queues: &Queues,
    kind: &Kind,
    clock: &dyn Clock,
) -> Result<Restored, EmbeddedError> {
    let (by_number, ceilings) = read_names(tables, queues, kind)?;
    let mut found = read_messages(tables)?;
    for (number, partition, seq) in read_keys(tables, Table::Dead)? {
        let found = found.entry((number, partition)).or_default();
        found.dead += 1;
        found.last = found.last.max(seq);
    }
    let mut bad = Vec::new();
    for queue in by_number.values() {
        for partition in &queue.partitions {
            let at = (queue.number, partition.id.0);
            let found = found.remove(&at).unwrap_or_default();
            let ceiling = ceilings.get(&at).copied().unwrap_or(0);
            let rows = found.bad.iter();
            bad.extend(rows.map(|(seq, row)| (Arc::clone(partition), *seq, row.clone())));
            restore_partition(partition, found, ceiling, kind, clock);
        }
    }
    if let Some((number, partition)) = found.keys().next() {
        return Err(EmbeddedError::Corrupt {
            file: tables.file().to_owned(),
            detail: format!(
                "messages of queue number {number}, partition {partition}, which it does not list"
            ),
        });
    }
    let next_queue = by_number.keys().max().map_or(1, |number| number + 1);
    Ok(Restored { next_queue, bad })
}

fn restore_partition(
    partition: &Arc<PartitionShared>,
    found: Found,
    ceiling: u64,
    kind: &Kind,
    clock: &dyn Clock,
) {
    let next = ceiling.max(found.last + 1);
    let (now, wall) = (clock.now(), clock.wall_millis());
    let mut state = partition.lock();
    state.core = super::core::Partition::new(super::queue::window(kind), kind.lease, next);
    state
        .core
        .restore_fresh(found.first_fresh.unwrap_or(next), found.fresh);
    for (seq, row) in found.touched {
        let wait = Duration::from_millis(row.left_millis(wall));
        state.core.restore_touched(seq, row.tally, now, Some(wait));
    }
    state.dead_count = found.dead;
}

type Ceilings = HashMap<(u32, u32), u64>;

fn read_names(
    tables: &Tables,
    queues: &Queues,
    kind: &Kind,
) -> Result<(HashMap<u32, Arc<Queue>>, Ceilings), EmbeddedError> {
    let (mut by_number, mut ceilings, mut bad) = (HashMap::new(), Ceilings::new(), None);
    tables.walk(Table::Names, b"", None, |key, row| {
        let damaged = || Some(format!("the row {:?}", String::from_utf8_lossy(key)));
        if let Some(name) = key.strip_prefix(names::QUEUE) {
            match (std::str::from_utf8(name), decode_numbers::<2>(key, row)) {
                (Ok(name), Ok([number, partitions])) => {
                    let number = u32::try_from(number).unwrap_or(u32::MAX);
                    let partitions = u32::try_from(partitions).unwrap_or(u32::MAX);
                    let queue = Queue::new(QueueName::new(name), number, partitions, kind);
                    by_number.insert(number, queues.add(queue));
                }
                _ => bad = damaged(),
            }
        } else if let Some(at) = key.strip_prefix(names::CEILING) {
            let at = at.split_first_chunk::<4>().and_then(|(queue, partition)| {
                let partition = partition.try_into().ok()?;
                Some((u32::from_be_bytes(*queue), u32::from_be_bytes(partition)))
            });
            match (at, decode_numbers::<1>(key, row)) {
                (Some(at), Ok([ceiling])) => drop(ceilings.insert(at, ceiling)),
                _ => bad = damaged(),
            }
        }
        bad.is_none()
    })?;
    match bad {
        Some(detail) => Err(corrupt(tables, detail)),
        None => Ok((by_number, ceilings)),
    }
}

fn read_messages(tables: &Tables) -> Result<HashMap<(u32, u32), Found>, EmbeddedError> {
    let mut states: HashMap<RowKey, StateRow> = HashMap::new();
    tables.walk(Table::States, b"", None, |key, row| {
        // A state that cannot be read costs its counts, not its message.
        if let (Ok(key), Ok(state)) = (RowKey::try_from(key), decode_state(key, row)) {
            states.insert(key, state);
        }
        true
    })?;
    let mut all: HashMap<(u32, u32), Found> = HashMap::new();
    let (mut count, mut odd, mut last) = (0, None, Vec::new());
    let mut current: Option<((u32, u32), Found)> = None;
    tables.walk(Table::Messages, b"", None, |key, row| {
        count += 1;
        let split = split_key(key).filter(|_| *last < *key);
        last.clear();
        last.extend_from_slice(key);
        let Some((queue, partition, seq)) = split else {
            // Keys that are no keys or out of order would make a removal hit a good row.
            odd = Some(format!("a message stands under the wrong key {key:02x?}"));
            return false;
        };
        let at = (queue, partition);
        if current.as_ref().is_none_or(|(known, _)| *known != at)
            && let Some((known, found)) = current.replace((at, Found::default()))
        {
            all.insert(known, found);
        }
        let Some((_, found)) = &mut current else {
            return true;
        };
        found.last = seq;
        let state = RowKey::try_from(key).ok().and_then(|key| states.get(&key));
        if !is_good_row(key, row) {
            found.bad.push((seq, row.to_vec()));
        } else if let Some(state) = state {
            found.touched.push((seq, *state));
        } else {
            found.first_fresh.get_or_insert(seq);
            found.fresh += 1;
        }
        true
    })?;
    if let Some(detail) = odd {
        return Err(corrupt(tables, detail));
    }
    all.extend(current);
    let stated = tables.len(Table::Messages)?;
    if stated != count {
        return Err(corrupt(
            tables,
            format!("it states {stated} messages and holds {count}"),
        ));
    }
    Ok(all)
}

fn read_keys(tables: &Tables, table: Table) -> Result<Vec<(u32, u32, u64)>, EmbeddedError> {
    let mut keys = Vec::new();
    tables.walk(table, b"", None, |key, _| {
        keys.extend(split_key(key));
        true
    })?;
    Ok(keys)
}

fn corrupt(tables: &Tables, detail: String) -> EmbeddedError {
    EmbeddedError::Corrupt {
        file: tables.file().to_owned(),
        detail,
    }
}
