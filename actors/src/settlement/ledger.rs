//! The outcome ledger: what is remembered of finished work whose settlement is not proven.
//!
//! A pure core: it keeps no time (`now` is the time since the start), takes no lock, and does not
//! decide what is remembered; the machine does, by [`Effect::Remember`](super::Effect::Remember).
//!
//! **When an entry answers** (one arrival of its whole key, in its partition; then it is gone):
//!
//! | how redeliveries are told | the entry's settlement | answers an arrival |
//! |---|---|---|
//! | by generation (AMQP) | may have been sent | of a later generation: a match within its own is another message and runs |
//! | by generation | not sent: the delivery was released, or its lease or channel is gone | of its own or a later generation |
//! | by delivery count (JetStream, embedded) | either | with a higher delivery count |
//! | by delivery count, a count is missing | either | as by generation |
//!
//! **How long an entry stays:**
//!
//! | entry | is dropped |
//! |---|---|
//! | sent on a live channel | when it is proven applied: with P the sum of the prefetches of all subscriptions the channel has had, its n-th delivery shows that at least n − P settlements, in the order sent, were applied. So at most P stay; where the prefetch is unlimited, at most `ledger-entries` |
//! | any other | by `ledger-entries`, `ledger-bytes` and `ledger-age`, oldest first, each eviction counted; its age starts when its channel ended, not when it was remembered |
//!
//! Every settlement that may have been sent on a channel takes a number
//! ([`sent`](OutcomeLedger::sent)), also one that nobody remembers: an uncounted one would make
//! those after it look proven too early. A number for one that was not sent does no harm.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use crate::model::{
    Attempt, BodyDigest, Capabilities, Delivery, DeliveryId, Disposition, Generation, MessageId,
    Outcome, Outgoing, PartitionId, QueueName, ReplayNumber,
};

use super::{BookKey, Decision};

/// Which attempt at which work: what an arrival must equal to be answered or adopted. A retry copy
/// has another attempt and a replay another number, so neither matches what it came from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LedgerKey {
    /// The queue, without a partition's suffix.
    pub queue: QueueName,
    /// The message's id.
    pub id: MessageId,
    /// How often it was replayed from a dead-letter queue.
    pub replay: ReplayNumber,
    /// The attempt.
    pub attempt: Attempt,
    /// The digest of the body.
    pub digest: BodyDigest,
}

impl LedgerKey {
    /// Makes the key of a delivery; `None` without an id: then there is no ledger and no adoption.
    pub fn of(delivery: &Delivery) -> Option<Self> {
        Some(Self {
            queue: delivery.queue.clone(),
            id: delivery.identity()?,
            replay: delivery.replay,
            attempt: delivery.attempt,
            digest: BodyDigest::of(&delivery.body),
        })
    }

    /// Gives the failure book's key of the same work.
    pub fn without_attempt(&self) -> BookKey {
        BookKey {
            queue: self.queue.clone(),
            id: self.id.clone(),
            replay: self.replay,
            digest: self.digest,
        }
    }
}

/// How a transport's redeliveries are told from other messages with the same key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Telling {
    /// Only what comes on a later generation can be a redelivery (AMQP).
    ByGeneration,
    /// A redelivery has a higher delivery count (JetStream, embedded).
    ByDeliveryCount,
}

impl Telling {
    /// Reads it from what a transport can do: where a settlement is answered, the broker's own
    /// count is exact.
    pub fn of(capabilities: &Capabilities) -> Self {
        match capabilities.confirms_settlement {
            true => Self::ByDeliveryCount,
            false => Self::ByGeneration,
        }
    }
}

/// Where and how a delivery was handed over: what tells a redelivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handover {
    /// The partition it came from.
    pub partition: PartitionId,
    /// The opening of the source that brought it.
    pub generation: Generation,
    /// How often the broker had handed it out by then.
    pub delivery_count: Option<u32>,
    /// How its transport's redeliveries are told.
    pub telling: Telling,
}

impl Handover {
    /// Reads it from a delivery.
    pub fn of(delivery: &Delivery, telling: Telling) -> Self {
        Self {
            partition: delivery.partition,
            generation: delivery.generation,
            delivery_count: delivery.delivery_count,
            telling,
        }
    }

    /// Tells whether an arrival of the same key is this hand-over's redelivery. `sent` says that
    /// the settlement may have left on its own generation, or, for an adoption, that its channel
    /// was lost: then only a later generation will do. The table is in the module's
    /// documentation.
    pub fn is_redelivered_as(&self, arrival: &Self, sent: bool) -> bool {
        if self.partition != arrival.partition {
            return false;
        }
        match (self.telling, self.delivery_count, arrival.delivery_count) {
            (Telling::ByDeliveryCount, Some(then), Some(now)) => now > then,
            (Telling::ByDeliveryCount, None, _)
            | (Telling::ByDeliveryCount, Some(_), None)
            | (Telling::ByGeneration, _, _) => match sent {
                true => arrival.generation > self.generation,
                false => arrival.generation >= self.generation,
            },
        }
    }
}

/// One opened channel, as the ledger counts it; never given out twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelId(u64);

/// The place of one settlement in the order sent on its channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SettlementNumber {
    channel: ChannelId,
    number: u64,
}

/// What is remembered of one delivery.
#[derive(Debug, Clone, PartialEq)]
pub struct LedgerEntry {
    /// Which attempt at which work.
    pub key: LedgerKey,
    /// The delivery that remembers; what it remembers later replaces what it remembered before.
    pub delivery: DeliveryId,
    /// Where it came from.
    pub handover: Handover,
    /// What was decided, with the publish that is still owed.
    pub decision: Decision,
    /// The bytes of the publish that is still owed.
    pub owed: Option<Outgoing>,
    /// Whether its settlement may have been sent on its own generation.
    pub sent: bool,
    /// The number its settlement took, if it took one.
    pub number: Option<SettlementNumber>,
}

impl LedgerEntry {
    /// Gives the outcome that an answered arrival is judged with.
    pub fn outcome(&self) -> Outcome {
        let disposition = match self.decision.disposition {
            Disposition::Requeue { .. } => Disposition::Ack,
            told @ (Disposition::Ack | Disposition::Reject { .. } | Disposition::Release) => told,
        };
        Outcome::Known {
            disposition,
            owes: self.decision.publish,
        }
    }

    /// What it weighs against `ledger-bytes`: its texts and bodies, and what keeping it costs.
    fn weight(&self) -> usize {
        const OVERHEAD: usize = 256;
        let owed = self.owed.as_ref().map_or(0, |owed| {
            let headers = owed.headers.iter();
            let headers: usize = headers
                .map(|(name, value)| name.len() + weight_of(value))
                .sum();
            owed.body.len() + headers
        });
        OVERHEAD + self.key.queue.as_str().len() + self.key.id.as_str().len() + owed
    }
}

fn weight_of(value: &crate::model::HeaderValue) -> usize {
    use crate::model::HeaderValue;
    let long = match value {
        HeaderValue::Text(text) => text.len(),
        HeaderValue::Bytes(bytes) => bytes.len(),
        HeaderValue::List(list) => list.iter().map(weight_of).sum(),
        HeaderValue::Table(headers) => headers
            .iter()
            .map(|(name, value)| name.len() + weight_of(value))
            .sum(),
        HeaderValue::Null
        | HeaderValue::Bool(_)
        | HeaderValue::Int(_)
        | HeaderValue::Float(_)
        | HeaderValue::Time(_) => 0,
    };
    std::mem::size_of::<HeaderValue>() + long
}

/// How much is kept of channels that ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerBounds {
    /// `ledger-entries`.
    pub entries: usize,
    /// `ledger-bytes`.
    pub bytes: usize,
    /// `ledger-age`.
    pub age: Duration,
}

impl Default for LedgerBounds {
    /// 100,000 entries, 64 MiB, an hour.
    fn default() -> Self {
        Self {
            entries: 100_000,
            bytes: 64 << 20,
            age: Duration::from_secs(3600),
        }
    }
}

/// What the ledger holds and did, as a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LedgerStats {
    /// Entries of live channels.
    pub live: usize,
    /// Other entries.
    pub ended: usize,
    /// What the other entries weigh.
    pub bytes: usize,
    /// How often something was remembered.
    pub remembered: u64,
    /// How many arrivals were answered.
    pub answered: u64,
    /// How many entries were dropped because their settlement was proven applied.
    pub proven: u64,
    /// How many were evicted because there were too many.
    pub evicted_by_entries: u64,
    /// How many were evicted, or never taken, because they weighed too much.
    pub evicted_by_bytes: u64,
    /// How many were evicted because they were too old.
    pub evicted_by_age: u64,
}

/// Finished work whose settlement is not proven.
#[derive(Debug, Default)]
pub struct OutcomeLedger {
    bounds: LedgerBounds,
    slots: HashMap<u64, Slot>,
    by_key: HashMap<LedgerKey, Vec<u64>>,
    channels: HashMap<ChannelId, Channel>,
    /// What no live channel bounds, oldest first.
    ended: BTreeSet<(Duration, u64)>,
    stats: LedgerStats,
    next: u64,
}

#[derive(Debug)]
struct Slot {
    entry: LedgerEntry,
    weight: usize,
    place: Place,
}

/// What bounds an entry.
#[derive(Debug, Clone, Copy)]
enum Place {
    Live(SettlementNumber),
    Ended { since: Duration },
}

/// A live channel's counts.
#[derive(Debug, Default)]
struct Channel {
    /// The sum of the prefetches it has had.
    prefetch: u64,
    /// One of them was unlimited: nothing is ever proven.
    unlimited: bool,
    delivered: u64,
    sent: u64,
    unproven: BTreeMap<u64, u64>,
}

impl Channel {
    /// How many settlements, in the order sent, are proven applied.
    fn proven(&self) -> u64 {
        match self.unlimited {
            true => 0,
            false => self.delivered.saturating_sub(self.prefetch),
        }
    }
}

impl OutcomeLedger {
    /// Makes an empty ledger.
    pub fn new(bounds: LedgerBounds) -> Self {
        Self {
            bounds,
            ..Self::default()
        }
    }

    /// Notes that a channel was opened.
    pub fn opened(&mut self) -> ChannelId {
        let id = ChannelId(self.take_number());
        self.channels.insert(id, Channel::default());
        id
    }

    /// Notes a subscription on a channel and its prefetch; 0 is unlimited. Called before its first
    /// delivery counts.
    pub fn subscribed(&mut self, channel: ChannelId, prefetch: u32) {
        if let Some(channel) = self.channels.get_mut(&channel) {
            channel.unlimited |= prefetch == 0;
            channel.prefetch += u64::from(prefetch);
        }
    }

    /// Notes one more delivery on a channel, and drops what it proves.
    pub fn delivered(&mut self, channel: ChannelId) {
        let Some(live) = self.channels.get_mut(&channel) else {
            return;
        };
        live.delivered += 1;
        let proven = live.proven();
        while let Some(first) = live.unproven.first_entry().filter(|e| *e.key() <= proven) {
            let slot = first.remove();
            take_slot(&mut self.slots, &mut self.by_key, slot);
            self.stats.proven += 1;
            self.stats.live -= 1;
        }
    }

    /// Gives the next settlement on a channel its number, in the order sent; `None` if the channel
    /// has ended. See the module's documentation for which settlements take one.
    pub fn sent(&mut self, channel: ChannelId) -> Option<SettlementNumber> {
        let live = self.channels.get_mut(&channel)?;
        live.sent += 1;
        let number = live.sent;
        Some(SettlementNumber { channel, number })
    }

    /// Notes that a channel ended: the age of its entries starts now.
    pub fn ended(&mut self, channel: ChannelId, now: Duration) {
        let Some(channel) = self.channels.remove(&channel) else {
            return;
        };
        for id in channel.unproven.into_values() {
            if let Some(slot) = self.slots.get_mut(&id) {
                slot.place = Place::Ended { since: now };
                self.stats.live -= 1;
                self.stats.ended += 1;
                self.stats.bytes += slot.weight;
                self.ended.insert((now, id));
            }
        }
        self.keep_bounds(now);
    }

    /// Remembers. What the same delivery remembered before is replaced; what is proven already is
    /// not kept.
    pub fn remember(&mut self, entry: LedgerEntry, now: Duration) {
        debug_assert_eq!(
            entry.decision.publish.is_some(),
            entry.owed.is_some(),
            "what is owed comes with its bytes"
        );
        self.stats.remembered += 1;
        self.replace(&entry);
        let number = entry.number.filter(|_| entry.sent);
        let live = number.and_then(|number| Some((number, self.channels.get(&number.channel)?)));
        let place = match live {
            Some((number, channel)) if number.number <= channel.proven() => {
                self.stats.proven += 1;
                return;
            }
            Some((number, _)) => Place::Live(number),
            None => Place::Ended { since: now },
        };
        let weight = entry.weight();
        if weight > self.bounds.bytes && matches!(place, Place::Ended { .. }) {
            self.stats.evicted_by_bytes += 1;
            return;
        }
        self.insert(Slot {
            entry,
            weight,
            place,
        });
        self.keep_bounds(now);
    }

    /// Answers an arrival: takes the entry of its key that it is the redelivery of. Ask and judge
    /// in one step; if the judgement cannot be fed, remember the entry again.
    #[must_use = "the entry is gone from the ledger: judge the arrival with it"]
    pub fn answer(
        &mut self,
        key: &LedgerKey,
        arrival: &Handover,
        now: Duration,
    ) -> Option<LedgerEntry> {
        self.expire(now);
        let slot = *self.by_key.get(key)?.iter().find(|id| {
            self.slots.get(id).is_some_and(|slot| {
                let (entry, sent) = (&slot.entry, slot.entry.sent);
                entry.handover.is_redelivered_as(arrival, sent)
            })
        })?;
        self.stats.answered += 1;
        self.remove(slot)
    }

    /// Evicts what is too old. Remembering and answering do it too.
    pub fn expire(&mut self, now: Duration) {
        while let Some((since, id)) = self.ended.first().copied() {
            if now.saturating_sub(since) < self.bounds.age {
                return;
            }
            self.remove(id);
            self.stats.evicted_by_age += 1;
        }
    }

    /// Gives what it holds and did.
    pub fn stats(&self) -> LedgerStats {
        self.stats
    }

    fn replace(&mut self, entry: &LedgerEntry) {
        let before = self.by_key.get(&entry.key).and_then(|ids| {
            let own = |id: &&u64| {
                (self.slots.get(id)).is_some_and(|slot| slot.entry.delivery == entry.delivery)
            };
            ids.iter().find(own).copied()
        });
        if let Some(before) = before {
            self.remove(before);
        }
    }

    fn insert(&mut self, slot: Slot) {
        let id = self.take_number();
        let (place, weight) = (slot.place, slot.weight);
        let ids = self.by_key.entry(slot.entry.key.clone()).or_default();
        ids.push(id);
        self.slots.insert(id, slot);
        match place {
            Place::Live(at) => {
                self.stats.live += 1;
                let channel = self.channels.get_mut(&at.channel);
                let before = channel.and_then(|channel| channel.unproven.insert(at.number, id));
                debug_assert_eq!(before, None, "a number is used once");
                self.keep_live_bound(at.channel);
            }
            Place::Ended { since } => {
                self.ended.insert((since, id));
                self.stats.ended += 1;
                self.stats.bytes += weight;
            }
        }
    }

    fn remove(&mut self, id: u64) -> Option<LedgerEntry> {
        let slot = take_slot(&mut self.slots, &mut self.by_key, id)?;
        match slot.place {
            Place::Live(at) => {
                if let Some(channel) = self.channels.get_mut(&at.channel) {
                    channel.unproven.remove(&at.number);
                }
                self.stats.live -= 1;
            }
            Place::Ended { since } => {
                self.ended.remove(&(since, id));
                self.stats.ended -= 1;
                self.stats.bytes -= slot.weight;
            }
        }
        Some(slot.entry)
    }

    fn keep_bounds(&mut self, now: Duration) {
        self.expire(now);
        while let Some((_, oldest)) = self.ended.first().copied() {
            if self.ended.len() > self.bounds.entries {
                self.stats.evicted_by_entries += 1;
            } else if self.stats.bytes > self.bounds.bytes {
                self.stats.evicted_by_bytes += 1;
            } else {
                break;
            }
            self.remove(oldest);
        }
    }

    /// Proof bounds a live channel by itself; this is for the unlimited, and against a shell that
    /// miscounts.
    fn keep_live_bound(&mut self, channel: ChannelId) {
        let Some(live) = self.channels.get(&channel) else {
            return;
        };
        let bound = match live.unlimited {
            true => self.bounds.entries,
            false => usize::try_from(live.prefetch).unwrap_or(usize::MAX),
        };
        let oldest = live.unproven.first_key_value().map(|(_, id)| *id);
        if let Some(oldest) = oldest.filter(|_| live.unproven.len() > bound) {
            self.remove(oldest);
            self.stats.evicted_by_entries += 1;
        }
    }

    fn take_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// Takes an entry out of the two maps; where it stood is the caller's to clear.
fn take_slot(
    slots: &mut HashMap<u64, Slot>,
    by_key: &mut HashMap<LedgerKey, Vec<u64>>,
    id: u64,
) -> Option<Slot> {
    let slot = slots.remove(&id)?;
    if let Some(ids) = by_key.get_mut(&slot.entry.key) {
        ids.retain(|other| *other != id);
        if ids.is_empty() {
            by_key.remove(&slot.entry.key);
        }
    }
    Some(slot)
}

#[cfg(test)]
mod tests;
