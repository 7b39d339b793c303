//! The limiter's decisions: pure. It reads no clock (time is a `Duration` since the book's start),
//! takes no lock, awaits nothing, and knows no actor.
//!
//! What it promises:
//! - Permits in flight never exceed a limit, nor bytes the budget, except right after a limit was
//!   lowered: nothing is revoked, and nothing is granted until what is in flight is under it.
//! - Within a partition, first come first served. Between partitions, and between consumers, turns.
//! - **Guaranteed shares.** A partition with nothing in flight finds a permit of its consumer: one
//!   is kept back for each such partition, as long as the consumer has a permit for each. In the
//!   same way permits of the process are kept back: for every partition if there are enough, else
//!   one for every consumer if there are enough, else none. So a slow partition never starves
//!   another.
//! - **Bytes.** A body that does not fit *now* is set aside with its permit and its token, and waits
//!   only for what was in flight before it: others may overtake it with what the budget has besides
//!   it. So it is served in the end, and it does not stop small ones.
//! - A token of a rate is spent only for a permit. (One body set aside for bytes has its token
//!   already; so a burst can be one longer.)
//!
//! An ask, a return and a grant cost the same however many wait. A pass that grants nothing looks
//! at each consumer once and, while a body is set aside, at each waiting partition once.

use std::collections::VecDeque;
use std::time::Duration;

use crate::model::{DeliveryId, PartitionId};

use super::line::{Place, Waiters};
use super::rate::Bucket;
use super::share::{Share, Standing};
use super::{
    ConsumerIndex, ConsumerShape, ConsumerSnapshot, LimiterLimits, LimiterSnapshot,
    PartitionSnapshot, PermitKey, Rate, WAITING_MAX, WaitingSnapshot,
};

/// Asks for one permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// Where the permit counts.
    pub key: PermitKey,
    /// Who asks; one ticket waits at most once.
    pub ticket: DeliveryId,
    /// The size of its body.
    pub bytes: u64,
}

/// What became of an ask that was not refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// It waits from now on; a grant may follow at once.
    Waits,
    /// It waited already: nothing changed.
    WaitedAlready,
}

/// Why an ask will never be granted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AskRefused {
    /// Its body is larger than the whole byte budget.
    #[error(
        "the body has {bytes} bytes, more than the whole of limiter.in-flight-bytes ({in_flight_bytes_max})"
    )]
    TooLarge {
        /// The size of the body.
        bytes: u64,
        /// The budget.
        in_flight_bytes_max: u64,
    },
    /// There is no such consumer or partition.
    #[error("there is no partition {} of consumer {}", key.partition, key.consumer)]
    UnknownPartition {
        /// What was asked for.
        key: PermitKey,
    },
    /// [`WAITING_MAX`] asks wait already.
    #[error("{WAITING_MAX} asks wait for a permit already")]
    LineFull,
}

/// Changes one limit, live. Lowering revokes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Resize {
    /// The permits of the process.
    ProcessPermits(u32),
    /// The byte budget of the process.
    InFlightBytes(u64),
    /// The rate of the process; `None` lifts it.
    ProcessRate(Option<Rate>),
    /// The permits of a consumer.
    ConsumerPermits {
        /// Whose.
        consumer: ConsumerIndex,
        /// The new limit.
        permits: u32,
    },
    /// The rate of a consumer; `None` lifts it.
    ConsumerRate {
        /// Whose.
        consumer: ConsumerIndex,
        /// The new limit.
        rate: Option<Rate>,
    },
}

/// Why a limit was not changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResizeRefused {
    /// There is no such consumer.
    #[error("there is no consumer {0}")]
    UnknownConsumer(ConsumerIndex),
}

/// A permit as the core counts it. Each one must be given back exactly once.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a grant that is not given back stays taken for ever"]
pub struct Granted {
    /// Whose it is.
    pub ticket: DeliveryId,
    /// Where it counts.
    pub key: PermitKey,
    /// How many bytes it holds.
    pub bytes: u64,
    /// Which set-aside body it overtook; 0: none.
    overtook: u64,
}

/// What one step of granting came to.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// One permit.
    Granted(Granted),
    /// Nothing can be granted now. With a time: a rate holds somebody back until then, counted
    /// like `now`. Without: only a return, an ask, a cancel or a resize can change it.
    Blocked(Option<Duration>),
}

/// For whom permits of the process are kept back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Guarantee {
    EveryPartition,
    /// With how many consumers there are that may have permits at all.
    EveryConsumer(u32),
    Nobody,
}

/// A body that waits only for bytes. Its permit and tokens are taken already.
#[derive(Debug)]
struct SetAside {
    place: Place,
    key: PermitKey,
    bytes: u64,
    number: u64,
    /// The bytes in flight of those that overtook it.
    overtaken_bytes: u64,
}

/// What looking at one consumer came to.
enum Look {
    NobodyWaits,
    Blocked,
    RateHolds(Duration),
    Fits(PermitKey),
    LacksBytes(PermitKey),
}

/// The permits of a process: who has them, who waits, who is next.
#[derive(Debug)]
pub struct LimiterCore {
    limits: LimiterLimits,
    bucket: Option<Bucket>,
    guarantee: Guarantee,
    /// Permits out, the one of the body set aside included.
    taken: u32,
    in_flight_bytes: u64,
    /// The sum of what is kept back for each consumer.
    kept_back: u32,
    shares: Vec<Share>,
    /// The consumers in which somebody waits, in the order of their turns.
    ring: VecDeque<usize>,
    waiters: Waiters,
    set_aside: Option<SetAside>,
    set_aside_count: u64,
}

impl LimiterCore {
    /// Makes a limiter with all permits free. A consumer's index is its place in `consumers`.
    pub fn new(limits: LimiterLimits, consumers: &[ConsumerShape]) -> Self {
        let mut core = Self {
            limits,
            bucket: limits.rate.map(|rate| Bucket::new(rate, Duration::ZERO)),
            guarantee: Guarantee::Nobody,
            taken: 0,
            in_flight_bytes: 0,
            kept_back: 0,
            shares: consumers.iter().copied().map(Share::new).collect(),
            ring: VecDeque::with_capacity(consumers.len()),
            waiters: Waiters::default(),
            set_aside: None,
            set_aside_count: 0,
        };
        core.settle_guarantee();
        core
    }

    /// Puts an ask into its partition's line. Asking again for a ticket that waits changes nothing.
    ///
    /// # Errors
    /// [`AskRefused`] if it could never be granted; then nothing has changed.
    pub fn ask(&mut self, now: Duration, ask: Ask) -> Result<Asked, AskRefused> {
        let Ask { key, ticket, bytes } = ask;
        let partition = self
            .shares
            .get_mut(key.consumer.0 as usize)
            .and_then(|share| share.partitions.get_mut(key.partition.0 as usize))
            .ok_or(AskRefused::UnknownPartition { key })?;
        if self.waiters.find(ticket).is_some() {
            return Ok(Asked::WaitedAlready);
        }
        if let Some(refused) = too_large(bytes, self.limits.in_flight_bytes) {
            return Err(refused);
        }
        if self.waiters.len() >= WAITING_MAX {
            return Err(AskRefused::LineFull);
        }
        self.waiters
            .append(&mut partition.line, ticket, key, bytes, now);
        if partition.line.count == 1 {
            self.enqueue(key);
        }
        Ok(Asked::Waits)
    }

    /// Takes an ask back. False if the ticket does not wait: never asked, granted or refused.
    pub fn cancel(&mut self, ticket: DeliveryId) -> bool {
        match self.waiters.find(ticket) {
            Some(place) => {
                self.remove(place);
                true
            }
            None => false,
        }
    }

    /// Appends what can be granted at `now`, at most `max`. Gives the time to look again if a rate
    /// holds somebody back, or `now` itself if it stopped at `max` while somebody waits.
    pub fn grant(
        &mut self,
        now: Duration,
        max: usize,
        granted: &mut Vec<Granted>,
    ) -> Option<Duration> {
        for _ in 0..max {
            match self.grant_one(now) {
                Step::Granted(one) => granted.push(one),
                Step::Blocked(look_again) => return look_again,
            }
        }
        self.is_anyone_waiting().then_some(now)
    }

    /// Grants one permit to whoever is next at `now`.
    pub fn grant_one(&mut self, now: Duration) -> Step {
        if let Some(granted) = self.serve_set_aside() {
            return Step::Granted(granted);
        }
        let mut look_again: Option<Duration> = None;
        let mut at = 0;
        while at < self.ring.len() && self.taken < self.limits.permits {
            let index = self.ring[at];
            match self.look_at(index, now) {
                Look::NobodyWaits => {
                    self.shares[index].listed = false;
                    self.ring.remove(at);
                }
                Look::Blocked => at += 1,
                Look::RateHolds(until) => {
                    look_again = Some(look_again.map_or(until, |other| other.min(until)));
                    at += 1;
                }
                Look::Fits(key) => {
                    self.end_turn(at);
                    return Step::Granted(self.serve(key));
                }
                Look::LacksBytes(key) => {
                    self.end_turn(at);
                    self.put_aside(key);
                }
            }
        }
        Step::Blocked(look_again)
    }

    /// Counts a permit in. True if somebody waits, so that looking again is worth while.
    pub fn give_back(&mut self, granted: &Granted) -> bool {
        debug_assert!(self.in_flight_bytes >= granted.bytes, "given back twice");
        self.in_flight_bytes -= granted.bytes;
        self.share(granted.key).in_flight_bytes -= granted.bytes;
        self.put(granted.key);
        if let Some(set_aside) = &mut self.set_aside
            && set_aside.number == granted.overtook
        {
            set_aside.overtaken_bytes -= granted.bytes;
        }
        self.is_anyone_waiting()
    }

    /// Changes one limit. Gives the asks that became impossible by it; they wait no longer.
    ///
    /// # Errors
    /// [`ResizeRefused`] if there is no such consumer.
    pub fn resize(
        &mut self,
        now: Duration,
        resize: Resize,
    ) -> Result<Vec<(DeliveryId, AskRefused)>, ResizeRefused> {
        if let Resize::ConsumerPermits { consumer, .. } | Resize::ConsumerRate { consumer, .. } =
            resize
            && consumer.0 as usize >= self.shares.len()
        {
            return Err(ResizeRefused::UnknownConsumer(consumer));
        }
        self.stop_setting_aside();
        match resize {
            Resize::ProcessPermits(permits) => self.limits.permits = permits,
            Resize::InFlightBytes(bytes) => self.limits.in_flight_bytes = bytes,
            Resize::ProcessRate(rate) => {
                self.limits.rate = rate;
                self.bucket = rebuilt(self.bucket.take(), rate, now);
            }
            Resize::ConsumerPermits { consumer, permits } => {
                self.shares[consumer.0 as usize].limits.permits = permits;
            }
            Resize::ConsumerRate { consumer, rate } => {
                let share = &mut self.shares[consumer.0 as usize];
                share.limits.rate = rate;
                share.bucket = rebuilt(share.bucket.take(), rate, now);
            }
        }
        self.settle_guarantee();
        Ok(self.refuse_impossible())
    }

    /// Tells whether somebody waits.
    pub fn is_anyone_waiting(&self) -> bool {
        !self.waiters.is_empty()
    }

    /// Copies everything there is to see.
    pub fn snapshot(&self, now: Duration) -> LimiterSnapshot {
        let consumers: Vec<_> = (0_u32..)
            .zip(&self.shares)
            .map(|(index, share)| self.snapshot_share(ConsumerIndex(index), share, now))
            .collect();
        let mut waiting = WaitingSnapshot::default();
        consumers.iter().for_each(|at| waiting.add(&at.waiting));
        LimiterSnapshot {
            permits: self.limits.permits,
            taken: consumers.iter().map(|at| at.taken).sum(),
            in_flight_bytes_max: self.limits.in_flight_bytes,
            in_flight_bytes: self.in_flight_bytes,
            rate: self.limits.rate,
            waiting,
            consumers,
        }
    }

    // ---- who is next ----------------------------------------------------------------------

    /// The whole decision for one consumer.
    fn look_at(&mut self, index: usize, now: Duration) -> Look {
        let idle = self.shares[index].head(Standing::Idle);
        let busy = self.shares[index].head(Standing::Busy);
        if idle.is_none() && busy.is_none() {
            return Look::NobodyWaits;
        }
        let may_idle = idle.is_some() && self.may_take(&self.shares[index], Standing::Idle);
        let may_busy = busy.is_some() && self.may_take(&self.shares[index], Standing::Busy);
        if !may_idle && !may_busy {
            return Look::Blocked;
        }
        if let Err(until) = self.check_rates(index, now) {
            return Look::RateHolds(until);
        }
        let (idle, busy) = (idle.filter(|_| may_idle), busy.filter(|_| may_busy));
        let Some(partition) = first_of(idle, busy) else {
            return Look::Blocked;
        };
        let key = PermitKey::new(ConsumerIndex(index as u32), PartitionId(partition));
        match &self.set_aside {
            None if self.fits(self.first_bytes(key)) => Look::Fits(key),
            None => Look::LacksBytes(key),
            Some(_) => self.overtaker(index, may_idle, may_busy),
        }
    }

    /// The first partition whose first body fits beside the one that is set aside.
    fn overtaker(&self, index: usize, may_idle: bool, may_busy: bool) -> Look {
        let share = &self.shares[index];
        let mut idle = share
            .waiting(Standing::Idle)
            .filter(|_| may_idle)
            .peekable();
        let mut busy = share
            .waiting(Standing::Busy)
            .filter(|_| may_busy)
            .peekable();
        while let Some(partition) = first_of(idle.peek().copied(), busy.peek().copied()) {
            let key = PermitKey::new(ConsumerIndex(index as u32), PartitionId(partition));
            if self.fits(self.first_bytes(key)) {
                return Look::Fits(key);
            }
            if idle.next_if(|(_, at)| *at == partition).is_none() {
                busy.next();
            }
        }
        Look::Blocked
    }

    /// Whether the limits of permits, and what is kept back for others, allow a partition of this
    /// standing one more.
    fn may_take(&self, share: &Share, standing: Standing) -> bool {
        self.own_limit_allows(share, standing) && self.process_allows(share, standing)
    }

    /// Whether the consumer has a permit that is not kept back for another of its partitions.
    fn own_limit_allows(&self, share: &Share, standing: Standing) -> bool {
        let partitions = share.partitions.len();
        let leaves_enough =
            |permits: u32| (permits as usize) < partitions || share.taken + share.idle < permits;
        let is_spare = match standing {
            Standing::Idle => true,
            Standing::Busy => {
                leaves_enough(share.limits.permits)
                    && leaves_enough(self.permits_for_one_consumer())
            }
        };
        share.taken < share.limits.permits && is_spare
    }

    fn process_allows(&self, share: &Share, standing: Standing) -> bool {
        let idle_after = match standing {
            Standing::Idle => share.idle - 1,
            Standing::Busy => share.idle,
        };
        let share_after = self.kept_back_for(share.limits.permits, share.taken + 1, idle_after);
        let kept_back_after = self.kept_back - share.kept_back + share_after;
        let is_its_own = share_after < share.kept_back;
        self.taken < self.limits.permits
            && (is_its_own || self.limits.permits - self.taken > kept_back_after)
    }

    /// What one consumer can have while each other one has its guaranteed permit.
    fn permits_for_one_consumer(&self) -> u32 {
        match self.guarantee {
            Guarantee::EveryPartition | Guarantee::Nobody => self.limits.permits,
            Guarantee::EveryConsumer(consumers) => {
                let others = consumers.saturating_sub(1);
                self.limits.permits.saturating_sub(others)
            }
        }
    }

    fn kept_back_for(&self, permits: u32, taken: u32, idle: u32) -> u32 {
        match self.guarantee {
            Guarantee::EveryPartition => idle.min(permits.saturating_sub(taken)),
            Guarantee::EveryConsumer(_) => u32::from(taken == 0 && permits > 0),
            Guarantee::Nobody => 0,
        }
    }

    fn check_rates(&mut self, index: usize, now: Duration) -> Result<(), Duration> {
        let process = self.bucket.as_mut().map_or(Ok(()), |at| at.check(now));
        let consumer = &mut self.shares[index].bucket;
        let consumer = consumer.as_mut().map_or(Ok(()), |at| at.check(now));
        match (process, consumer) {
            (Err(process), Err(consumer)) => Err(process.max(consumer)),
            (process, consumer) => process.and(consumer),
        }
    }

    /// Whether a body fits now, beside the one that is set aside.
    fn fits(&self, bytes: u64) -> bool {
        let budget = self.limits.in_flight_bytes;
        let beside = self
            .set_aside
            .as_ref()
            .is_none_or(|at| fits_in(budget, &[at.bytes, at.overtaken_bytes, bytes]));
        beside && fits_in(budget, &[self.in_flight_bytes, bytes])
    }

    fn first_bytes(&self, key: PermitKey) -> u64 {
        self.waiters.get(self.first_place(key)).bytes
    }

    fn first_place(&self, key: PermitKey) -> Place {
        self.shares[key.consumer.0 as usize].partitions[key.partition.0 as usize]
            .line
            .first()
            .expect("a partition stands in a ring only while somebody waits in it")
    }

    // ---- what then happens ----------------------------------------------------------------

    fn serve(&mut self, key: PermitKey) -> Granted {
        self.share(key).dequeue(key.partition.0);
        self.take(key);
        self.spend(key);
        let place = self.first_place(key);
        self.hand_out(place)
    }

    /// Takes a permit and the tokens for a body that does not fit yet.
    fn put_aside(&mut self, key: PermitKey) {
        self.share(key).dequeue(key.partition.0);
        self.take(key);
        self.spend(key);
        let place = self.first_place(key);
        self.set_aside_count += 1;
        self.set_aside = Some(SetAside {
            place,
            key,
            bytes: self.waiters.get(place).bytes,
            number: self.set_aside_count,
            overtaken_bytes: 0,
        });
    }

    fn serve_set_aside(&mut self) -> Option<Granted> {
        let budget = self.limits.in_flight_bytes;
        let in_flight = self.in_flight_bytes;
        let set_aside = self
            .set_aside
            .take_if(|at| fits_in(budget, &[in_flight, at.bytes]))?;
        Some(self.hand_out(set_aside.place))
    }

    /// Puts the body that is set aside back at the head of its line.
    fn stop_setting_aside(&mut self) {
        if let Some(SetAside { key, .. }) = self.set_aside.take() {
            self.put(key);
            self.refund(key);
            self.enqueue(key);
        }
    }

    /// Ends the wait of one whose permit is taken.
    fn hand_out(&mut self, place: Place) -> Granted {
        let key = self.waiters.get(place).key;
        let (share, waiters) = (&mut self.shares[key.consumer.0 as usize], &mut self.waiters);
        let line = &mut share.partitions[key.partition.0 as usize].line;
        let waiter = waiters.remove(line, place);
        let others_wait = line.count > 0;
        share.in_flight_bytes += waiter.bytes;
        self.in_flight_bytes += waiter.bytes;
        if others_wait {
            self.enqueue(key);
        }
        let overtook = self.set_aside.as_mut().map_or(0, |at| {
            at.overtaken_bytes += waiter.bytes;
            at.number
        });
        Granted {
            ticket: waiter.ticket,
            key,
            bytes: waiter.bytes,
            overtook,
        }
    }

    /// Ends the wait of one who gets nothing.
    fn remove(&mut self, place: Place) {
        if self.set_aside.as_ref().is_some_and(|at| at.place == place) {
            self.stop_setting_aside();
        }
        let key = self.waiters.get(place).key;
        let (share, waiters) = (&mut self.shares[key.consumer.0 as usize], &mut self.waiters);
        let line = &mut share.partitions[key.partition.0 as usize].line;
        waiters.remove(line, place);
        if line.count == 0 {
            share.dequeue(key.partition.0);
        }
    }

    fn refuse_impossible(&mut self) -> Vec<(DeliveryId, AskRefused)> {
        let budget = self.limits.in_flight_bytes;
        let impossible: Vec<_> = self
            .waiters
            .iter()
            .filter_map(|waiter| Some((waiter.ticket, too_large(waiter.bytes, budget)?)))
            .collect();
        for (ticket, _) in &impossible {
            self.cancel(*ticket);
        }
        impossible
    }

    // ---- counting -------------------------------------------------------------------------

    fn take(&mut self, key: PermitKey) {
        self.taken += 1;
        self.share(key).take(key.partition.0);
        self.recount_kept_back(key.consumer.0 as usize);
    }

    fn put(&mut self, key: PermitKey) {
        self.taken -= 1;
        self.share(key).put(key.partition.0);
        self.recount_kept_back(key.consumer.0 as usize);
    }

    fn recount_kept_back(&mut self, index: usize) {
        let share = &self.shares[index];
        let after = self.kept_back_for(share.limits.permits, share.taken, share.idle);
        self.kept_back = self.kept_back - share.kept_back + after;
        self.shares[index].kept_back = after;
    }

    /// Chooses for whom permits of the process are kept back, and counts them anew.
    fn settle_guarantee(&mut self) {
        let permits = self.limits.permits;
        let partitions: u64 = self.shares.iter().map(guaranteed).sum();
        let consumers: u32 = self.shares.iter().map(|at| at.limits.permits.min(1)).sum();
        self.guarantee = if u64::from(permits) >= partitions {
            Guarantee::EveryPartition
        } else if permits >= consumers {
            Guarantee::EveryConsumer(consumers)
        } else {
            Guarantee::Nobody
        };
        self.kept_back = 0;
        for index in 0..self.shares.len() {
            self.shares[index].kept_back = 0;
            self.recount_kept_back(index);
        }
    }

    fn spend(&mut self, key: PermitKey) {
        self.bucket.iter_mut().for_each(Bucket::spend);
        self.share(key).bucket.iter_mut().for_each(Bucket::spend);
    }

    fn refund(&mut self, key: PermitKey) {
        self.bucket.iter_mut().for_each(Bucket::refund);
        self.share(key).bucket.iter_mut().for_each(Bucket::refund);
    }

    fn enqueue(&mut self, key: PermitKey) {
        let index = key.consumer.0 as usize;
        let share = &mut self.shares[index];
        share.enqueue(key.partition.0);
        if !share.listed {
            share.listed = true;
            self.ring.push_back(index);
        }
    }

    fn end_turn(&mut self, at: usize) {
        if self.ring.len() > 1
            && let Some(index) = self.ring.remove(at)
        {
            self.ring.push_back(index);
        }
    }

    fn share(&mut self, key: PermitKey) -> &mut Share {
        &mut self.shares[key.consumer.0 as usize]
    }

    fn snapshot_share(
        &self,
        consumer: ConsumerIndex,
        share: &Share,
        now: Duration,
    ) -> ConsumerSnapshot {
        let partitions: Vec<_> = (0_u32..)
            .zip(&share.partitions)
            .map(|(number, partition)| {
                let key = PermitKey::new(consumer, PartitionId(number));
                let set_aside = self.set_aside.as_ref().is_some_and(|at| at.key == key);
                let oldest = partition
                    .line
                    .first()
                    .map(|at| self.waiters.get(at).asked_at);
                PartitionSnapshot {
                    partition: key.partition,
                    taken: partition.taken - u32::from(set_aside),
                    waiting: WaitingSnapshot {
                        count: partition.line.count,
                        bytes: u64::try_from(partition.line.bytes).unwrap_or(u64::MAX),
                        oldest: oldest.map(|asked_at| now.saturating_sub(asked_at)),
                    },
                }
            })
            .collect();
        let mut waiting = WaitingSnapshot::default();
        partitions.iter().for_each(|at| waiting.add(&at.waiting));
        ConsumerSnapshot {
            consumer,
            permits: share.limits.permits,
            taken: partitions.iter().map(|at| at.taken).sum(),
            in_flight_bytes: share.in_flight_bytes,
            rate: share.limits.rate,
            waiting,
            partitions,
        }
    }
}

/// How many permits a consumer needs so that each partition it can serve has one.
fn guaranteed(share: &Share) -> u64 {
    u64::from(share.limits.permits).min(share.partitions.len() as u64)
}

fn first_of(one: Option<(u64, u32)>, other: Option<(u64, u32)>) -> Option<u32> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other).1),
        (one, other) => one.or(other).map(|(_, partition)| partition),
    }
}

fn fits_in(budget: u64, parts: &[u64]) -> bool {
    let sum = parts
        .iter()
        .try_fold(0_u64, |sum, part| sum.checked_add(*part));
    sum.is_some_and(|sum| sum <= budget)
}

fn too_large(bytes: u64, in_flight_bytes_max: u64) -> Option<AskRefused> {
    (bytes > in_flight_bytes_max).then_some(AskRefused::TooLarge {
        bytes,
        in_flight_bytes_max,
    })
}

fn rebuilt(bucket: Option<Bucket>, rate: Option<Rate>, now: Duration) -> Option<Bucket> {
    match (bucket, rate?) {
        (Some(bucket), rate) if bucket.rate() == rate => Some(bucket),
        (Some(bucket), rate) => Some(bucket.resized(rate, now)),
        (None, rate) => Some(Bucket::new(rate, now)),
    }
}

#[cfg(test)]
impl LimiterCore {
    /// Counts everything anew and compares.
    pub(super) fn assert_consistent(&self) {
        let set_aside = self.set_aside.as_ref().map(|at| at.key);
        for (index, share) in self.shares.iter().enumerate() {
            let taken: u32 = share.partitions.iter().map(|at| at.taken).sum();
            let idle = share.partitions.iter().filter(|at| at.taken == 0).count();
            assert_eq!((share.taken, share.idle as usize), (taken, idle));
            let kept_back = self.kept_back_for(share.limits.permits, taken, share.idle);
            assert_eq!(share.kept_back, kept_back);
            let mut waiting: Vec<_> = share.waiting(Standing::Idle).collect();
            waiting.extend(share.waiting(Standing::Busy));
            for (number, partition) in (0_u32..).zip(&share.partitions) {
                let key = PermitKey::new(ConsumerIndex(index as u32), PartitionId(number));
                let stands = waiting.iter().filter(|(_, at)| *at == number).count();
                let should = partition.line.count > 0 && set_aside != Some(key);
                assert_eq!(stands, usize::from(should), "{key:?}");
                assert!(!should || share.listed);
            }
            let listed = self.ring.iter().filter(|at| **at == index).count();
            assert_eq!(listed, usize::from(share.listed));
        }
        let sum = |of: fn(&Share) -> u32| self.shares.iter().map(of).sum::<u32>();
        assert_eq!(self.taken, sum(|share| share.taken));
        assert_eq!(self.kept_back, sum(|share| share.kept_back));
        let bytes: u64 = self.shares.iter().map(|share| share.in_flight_bytes).sum();
        assert_eq!(self.in_flight_bytes, bytes);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use crate::limiter::ConsumerLimits;
    use std::num::NonZeroU32;

    const NOW: Duration = Duration::ZERO;

    /// Partitions and permits of each consumer.
    fn core(permits: u32, consumers: &[(u32, u32)]) -> LimiterCore {
        let shapes: Vec<_> = consumers
            .iter()
            .map(|(partitions, permits)| ConsumerShape {
                partitions: NonZeroU32::new(*partitions).unwrap(),
                limits: ConsumerLimits {
                    permits: *permits,
                    rate: None,
                },
            })
            .collect();
        let limits = LimiterLimits {
            permits,
            in_flight_bytes: 100,
            rate: None,
        };
        LimiterCore::new(limits, &shapes)
    }

    fn ask(core: &mut LimiterCore, consumer: u32, partition: u32, ticket: u64, bytes: u64) {
        let key = PermitKey::new(ConsumerIndex(consumer), PartitionId(partition));
        let ticket = DeliveryId(ticket);
        core.ask(NOW, Ask { key, ticket, bytes }).unwrap();
        core.assert_consistent();
    }

    fn grant_at(core: &mut LimiterCore, now: Duration) -> (Vec<Granted>, Option<Duration>) {
        let mut granted = Vec::new();
        let look_again = core.grant(now, usize::MAX, &mut granted);
        core.assert_consistent();
        (granted, look_again)
    }

    fn grant(core: &mut LimiterCore) -> Vec<Granted> {
        grant_at(core, NOW).0
    }

    fn tickets(granted: &[Granted]) -> Vec<u64> {
        granted.iter().map(|at| at.ticket.0).collect()
    }

    fn give_back(core: &mut LimiterCore, granted: Vec<Granted>) {
        for one in granted {
            core.give_back(&one);
            core.assert_consistent();
        }
    }

    #[test]
    fn a_partition_is_served_in_order_and_partitions_take_turns() {
        let mut core = core(64, &[(3, 64)]);
        for ticket in 0..3 {
            ask(&mut core, 0, 0, ticket, 0);
        }
        for ticket in 10..12 {
            ask(&mut core, 0, 2, ticket, 0);
        }
        assert_eq!(tickets(&grant(&mut core)), [0, 10, 1, 11, 2]);
    }

    #[test]
    fn consumers_take_turns_on_the_permits_of_the_process() {
        let mut core = core(5, &[(1, 64), (1, 64)]);
        for ticket in 0..4 {
            ask(&mut core, 0, 0, ticket, 0);
            ask(&mut core, 1, 0, 10 + ticket, 0);
        }
        assert_eq!(tickets(&grant(&mut core)), [0, 10, 1, 11, 2]);
    }

    #[test]
    fn a_permit_is_kept_back_for_every_other_partition_of_the_consumer() {
        let mut core = core(64, &[(4, 8)]);
        for ticket in 0..20 {
            ask(&mut core, 0, 0, ticket, 0);
        }
        assert_eq!(grant(&mut core).len(), 5, "8 less one for each of 3");
        for partition in 1..4 {
            ask(&mut core, 0, partition, 100 + u64::from(partition), 0);
        }
        assert_eq!(tickets(&grant(&mut core)), [101, 102, 103]);
    }

    #[test]
    fn fewer_permits_than_partitions_are_all_used_in_turns() {
        let mut core = core(64, &[(4, 2)]);
        for ticket in 0..3 {
            ask(&mut core, 0, 0, ticket, 0);
        }
        let both = grant(&mut core);
        assert_eq!(tickets(&both), [0, 1]);
        ask(&mut core, 0, 1, 10, 0);
        give_back(&mut core, both);
        assert_eq!(tickets(&grant(&mut core)), [2, 10]);
    }

    #[test]
    fn a_permit_of_the_process_is_kept_back_for_every_partition_if_there_are_enough() {
        let mut core = core(8, &[(4, 16), (2, 16)]);
        for ticket in 0..20 {
            ask(&mut core, 0, 0, ticket, 0);
        }
        assert_eq!(grant(&mut core).len(), 3, "8 less one for each of 5");
        ask(&mut core, 1, 1, 100, 0);
        ask(&mut core, 0, 3, 101, 0);
        assert_eq!(grant(&mut core).len(), 2);
    }

    #[test]
    fn a_permit_of_the_process_is_kept_back_for_every_consumer_if_that_is_all_there_is() {
        let mut core = core(4, &[(4, 16), (4, 16), (1, 0)]);
        for ticket in 0..20 {
            ask(&mut core, 0, (ticket % 4) as u32, ticket, 0);
        }
        assert_eq!(grant(&mut core).len(), 3, "a paused consumer needs none");
        ask(&mut core, 1, 2, 100, 0);
        assert_eq!(tickets(&grant(&mut core)), [100]);
    }

    #[test]
    fn lowering_revokes_nothing_and_grants_nothing_until_in_flight_is_under_it() {
        let mut core = core(6, &[(1, 6)]);
        for ticket in 0..12 {
            ask(&mut core, 0, 0, ticket, 0);
        }
        let mut held = grant(&mut core);
        assert_eq!(held.len(), 6);
        core.resize(NOW, Resize::ProcessPermits(3)).unwrap();
        for _ in 0..3 {
            core.give_back(&held.remove(0));
            assert_eq!(tickets(&grant(&mut core)), [0_u64; 0]);
        }
        core.give_back(&held.remove(0));
        held.extend(grant(&mut core));
        assert_eq!(tickets(&held), [4, 5, 6]);
        core.resize(NOW, Resize::ProcessPermits(5)).unwrap();
        assert_eq!(tickets(&grant(&mut core)), [7, 8]);
        let nobody = ConsumerIndex(1);
        let refused = core.resize(
            NOW,
            Resize::ConsumerRate {
                consumer: nobody,
                rate: None,
            },
        );
        assert_eq!(refused, Err(ResizeRefused::UnknownConsumer(nobody)));
    }

    #[test]
    fn over_a_lowered_byte_budget_not_even_an_empty_body_starts() {
        let mut core = core(5, &[(1, 5)]);
        ask(&mut core, 0, 0, 1, 21);
        let held = grant(&mut core);
        core.resize(NOW, Resize::InFlightBytes(10)).unwrap();
        ask(&mut core, 0, 0, 2, 0);
        assert_eq!(tickets(&grant(&mut core)), [0_u64; 0]);
        give_back(&mut core, held);
        assert_eq!(tickets(&grant(&mut core)), [2]);
    }

    #[test]
    fn asking_again_changes_nothing_and_what_can_never_be_is_refused() {
        let mut core = core(2, &[(1, 2)]);
        let key = PermitKey::new(ConsumerIndex(0), PartitionId(0));
        let (ticket, bytes) = (DeliveryId(1), 10);
        let once = Ask { key, ticket, bytes };
        assert_eq!(core.ask(NOW, once), Ok(Asked::Waits));
        assert_eq!(core.ask(NOW, once), Ok(Asked::WaitedAlready));
        assert_eq!(core.snapshot(NOW).waiting.count, 1);
        let ticket = DeliveryId(2);
        let refused = core.ask(
            NOW,
            Ask {
                bytes: 101,
                ticket,
                key,
            },
        );
        assert_eq!(
            refused,
            Err(AskRefused::TooLarge {
                bytes: 101,
                in_flight_bytes_max: 100
            })
        );
        let key = PermitKey::new(ConsumerIndex(0), PartitionId(1));
        let refused = core.ask(NOW, Ask { key, ticket, bytes });
        assert_eq!(refused, Err(AskRefused::UnknownPartition { key }));
        assert!(core.cancel(DeliveryId(1)) && !core.cancel(DeliveryId(1)));
        assert_eq!(tickets(&grant(&mut core)), [0_u64; 0]);
    }

    #[test]
    fn a_large_body_waits_only_for_what_was_in_flight_before_it() {
        let mut core = core(64, &[(3, 64)]);
        ask(&mut core, 0, 0, 1, 30);
        let before = grant(&mut core);
        ask(&mut core, 0, 1, 2, 80);
        let mut overtakers = Vec::new();
        for ticket in 10..100 {
            ask(&mut core, 0, 2, ticket, 5);
            overtakers.extend(grant(&mut core));
        }
        assert_eq!(tickets(&overtakers), [10, 11, 12, 13], "100 less 80");
        core.give_back(&overtakers.remove(0));
        overtakers.extend(grant(&mut core));
        assert_eq!(overtakers.len(), 4, "small ones go on");
        give_back(&mut core, before);
        assert_eq!(tickets(&grant(&mut core)), [2], "its turn has come");
    }

    #[test]
    fn a_body_that_is_set_aside_can_be_cancelled_and_resized() {
        let mut core = core(64, &[(2, 64)]);
        ask(&mut core, 0, 0, 1, 90);
        let before = grant(&mut core);
        for (ticket, bytes) in [(2, 50), (3, 5), (4, 60)] {
            ask(&mut core, 0, 1, ticket, bytes);
        }
        assert_eq!(grant(&mut core), []);
        assert_eq!(core.snapshot(NOW).taken, 1, "what is set aside waits");
        assert!(core.cancel(DeliveryId(2)));
        assert_eq!(tickets(&grant(&mut core)), [3]);
        let impossible = core.resize(NOW, Resize::InFlightBytes(55)).unwrap();
        assert_eq!(impossible.len(), 1);
        assert_eq!(impossible[0].0, DeliveryId(4));
        core.assert_consistent();
        give_back(&mut core, before);
        assert!(!core.is_anyone_waiting());
    }

    #[test]
    fn a_rate_holds_back_and_says_until_when() {
        let mut core = core(64, &[(1, 64), (1, 64)]);
        core.resize(
            NOW,
            Resize::ProcessRate(Some("4/s burst 2".parse().unwrap())),
        )
        .unwrap();
        for ticket in 0..4 {
            ask(&mut core, 0, 0, ticket, 0);
        }
        let (granted, look_again) = grant_at(&mut core, NOW);
        assert_eq!(tickets(&granted), [0, 1]);
        assert_eq!(look_again, Some(Duration::from_millis(250)));
        let (granted, look_again) = grant_at(&mut core, Duration::from_millis(500));
        assert_eq!((tickets(&granted), look_again), (vec![2, 3], None));
    }

    #[test]
    fn no_token_is_spent_while_there_is_no_permit() {
        let mut core = core(1, &[(1, 1)]);
        core.resize(
            NOW,
            Resize::ProcessRate(Some("1/h burst 2".parse().unwrap())),
        )
        .unwrap();
        ask(&mut core, 0, 0, 1, 0);
        ask(&mut core, 0, 0, 2, 0);
        let first = grant(&mut core);
        for _ in 0..10 {
            assert_eq!(grant_at(&mut core, NOW), (vec![], None), "a return is due");
        }
        give_back(&mut core, first);
        assert_eq!(tickets(&grant(&mut core)), [2], "its token is still there");
    }

    #[test]
    fn the_rate_of_one_consumer_does_not_hold_another_back() {
        let mut core = core(64, &[(1, 64), (1, 64)]);
        let consumer = ConsumerIndex(0);
        let rate = Some("1/h".parse().unwrap());
        core.resize(NOW, Resize::ConsumerRate { consumer, rate })
            .unwrap();
        for ticket in 0..3 {
            ask(&mut core, 0, 0, ticket, 0);
            ask(&mut core, 1, 0, 10 + ticket, 0);
        }
        let (granted, look_again) = grant_at(&mut core, NOW);
        assert_eq!(tickets(&granted), [0, 10, 11, 12]);
        assert_eq!(look_again, Some(Duration::from_secs(3_600)));
    }

    #[test]
    fn a_snapshot_shows_who_waits_and_how_long() {
        let mut core = core(1, &[(2, 4)]);
        ask(&mut core, 0, 0, 1, 7);
        ask(&mut core, 0, 1, 2, 8);
        ask(&mut core, 0, 1, 3, 9);
        let _held = grant(&mut core);
        let snapshot = core.snapshot(Duration::from_secs(3));
        assert_eq!((snapshot.permits, snapshot.taken), (1, 1));
        assert_eq!(snapshot.in_flight_bytes, 7);
        let waiting = WaitingSnapshot {
            count: 2,
            bytes: 17,
            oldest: Some(Duration::from_secs(3)),
        };
        assert_eq!(snapshot.waiting, waiting);
        assert_eq!(snapshot.consumers[0].partitions[1].waiting, waiting);
        assert_eq!(snapshot.consumers[0].partitions[0].waiting.oldest, None);
    }
}
