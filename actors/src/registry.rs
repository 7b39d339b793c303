//! The registry of deliveries: every delivery that is not ended, by number and by the work it
//! stands for. Shared state on the actors' thread; it survives every actor.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;

use tokio::sync::Notify;

use crate::delivery::{DeliveryMessage, DeliveryRecord};
use crate::model::{Delivery, DeliveryId};

/// Hashes numbers that are unique or hashed already.
#[derive(Default)]
pub(crate) struct PassHasher(u64);

impl Hasher for PassHasher {
    fn finish(&self) -> u64 {
        // Spread the low bits: the table takes its index from one end and its tag from the other.
        self.0.wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }
    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

type NumberMap<V> = HashMap<u64, V, BuildHasherDefault<PassHasher>>;

/// Every delivery that is not ended.
#[derive(Default)]
pub(crate) struct Registry {
    next: Cell<u64>,
    records: RefCell<NumberMap<Rc<DeliveryRecord>>>,
    /// The deliveries of one id: nearly always one, which then costs no list.
    by_work: RefCell<NumberMap<Holders>>,
    /// Ended deliveries whose handler is still at work: overruns.
    lingering: RefCell<NumberMap<Rc<DeliveryRecord>>>,
    /// How often in a row the actor of a work's delivery died: it survives the redelivery.
    deaths: RefCell<NumberMap<u32>>,
    emptied: Notify,
}

/// How many works whose delivery actors died are kept in mind.
const DEATHS_KEPT_MAX: usize = 10_000;

#[derive(Debug)]
enum Holders {
    One(DeliveryId),
    Many(Vec<DeliveryId>),
}

impl Registry {
    /// Gives the next delivery number.
    pub(crate) fn next_id(&self) -> DeliveryId {
        let id = self.next.get() + 1;
        self.next.set(id);
        DeliveryId(id)
    }

    /// Puts a delivery in.
    pub(crate) fn insert(&self, record: Rc<DeliveryRecord>) {
        if let Some(work) = work_hash(&record.delivery) {
            let mut by_work = self.by_work.borrow_mut();
            match by_work.get_mut(&work) {
                None => {
                    by_work.insert(work, Holders::One(record.id));
                }
                Some(Holders::Many(list)) => list.push(record.id),
                Some(one @ Holders::One(_)) => {
                    if let Holders::One(first) = *one {
                        *one = Holders::Many(vec![first, record.id]);
                    }
                }
            }
        }
        self.records.borrow_mut().insert(record.id.0, record);
    }

    /// Takes an ended delivery out.
    pub(crate) fn remove(&self, record: &DeliveryRecord) {
        let (removed, empty) = {
            let mut records = self.records.borrow_mut();
            (records.remove(&record.id.0), records.is_empty())
        };
        let lingers = self.lingering.borrow().contains_key(&record.id.0);
        if let (Some(_), Some(work), false) = (&removed, work_hash(&record.delivery), lingers) {
            self.forget_work(work, record.id);
        }
        if empty {
            self.emptied.notify_waiters();
        }
    }

    fn forget_work(&self, work: u64, ended: DeliveryId) {
        let mut by_work = self.by_work.borrow_mut();
        let now_empty = match by_work.get_mut(&work) {
            Some(Holders::One(id)) => *id == ended,
            Some(Holders::Many(list)) => {
                list.retain(|id| *id != ended);
                list.is_empty()
            }
            None => false,
        };
        if now_empty {
            by_work.remove(&work);
        }
    }

    /// Gives a delivery by its number.
    pub(crate) fn get(&self, id: DeliveryId) -> Option<Rc<DeliveryRecord>> {
        self.records.borrow().get(&id.0).cloned()
    }

    /// Gives the deliveries here of the same id, in order of arrival: those that are not ended, and
    /// ended ones whose handler is still at work.
    pub(crate) fn same_work(&self, delivery: &Delivery) -> Vec<Rc<DeliveryRecord>> {
        let Some(work) = work_hash(delivery) else {
            return Vec::new();
        };
        let numbers: Vec<DeliveryId> = match self.by_work.borrow().get(&work) {
            None => return Vec::new(),
            Some(Holders::One(one)) => vec![*one],
            Some(Holders::Many(list)) => list.clone(),
        };
        let (records, lingering) = (self.records.borrow(), self.lingering.borrow());
        numbers
            .into_iter()
            .filter_map(|id| records.get(&id.0).or_else(|| lingering.get(&id.0)).cloned())
            .filter(|record| record.delivery.is_same_work(delivery))
            .collect()
    }

    /// Tells a delivery something; gives the message back if it has ended or has no actor.
    #[must_use = "the message comes back if nobody was told"]
    pub(crate) fn tell(&self, id: DeliveryId, message: DeliveryMessage) -> Option<DeliveryMessage> {
        let records = self.records.borrow();
        let addr = records.get(&id.0).and_then(|record| record.addr());
        match addr {
            Some(addr) => {
                addr.do_send(message);
                None
            }
            None => Some(message),
        }
    }

    /// Keeps an ended delivery whose handler is still at work, until its word comes.
    pub(crate) fn linger(&self, record: Rc<DeliveryRecord>) {
        self.lingering.borrow_mut().insert(record.id.0, record);
    }

    /// Forgets an ended delivery: its handler's word came.
    pub(crate) fn stop_lingering(&self, id: DeliveryId) -> Option<Rc<DeliveryRecord>> {
        let record = self.lingering.borrow_mut().remove(&id.0)?;
        if let Some(work) = work_hash(&record.delivery) {
            self.forget_work(work, id);
        }
        Some(record)
    }

    /// Counts a death of the actor of a delivery; gives how many its work has seen in a row. Work
    /// without a name is counted by its delivery alone.
    pub(crate) fn count_death(&self, record: &DeliveryRecord) -> u32 {
        let Some(work) = work_hash(&record.delivery) else {
            let mut state = record.state.borrow_mut();
            state.deaths = state.deaths.saturating_add(1);
            return u32::from(state.deaths);
        };
        let mut deaths = self.deaths.borrow_mut();
        if deaths.len() >= DEATHS_KEPT_MAX && !deaths.contains_key(&work) {
            // A storm of deaths: forgetting costs one more run of each, never a delivery.
            deaths.clear();
        }
        let count = deaths.entry(work).or_default();
        *count = count.saturating_add(1);
        *count
    }

    /// A delivery ended by its own actor's work: the deaths of its actors are no series any more.
    pub(crate) fn forget_deaths(&self, record: &DeliveryRecord) {
        let mut deaths = self.deaths.borrow_mut();
        if deaths.is_empty() {
            return; // nearly always
        }
        if let Some(work) = work_hash(&record.delivery) {
            deaths.remove(&work);
        }
    }

    /// Counts what is kept beside the deliveries: names of works, and ended deliveries whose
    /// handler is still at work.
    pub(crate) fn kept(&self) -> (usize, usize) {
        (self.by_work.borrow().len(), self.lingering.borrow().len())
    }

    /// Gives all deliveries, oldest first.
    pub(crate) fn all(&self) -> Vec<Rc<DeliveryRecord>> {
        let mut all: Vec<_> = self.records.borrow().values().cloned().collect();
        all.sort_unstable_by_key(|record| record.id);
        all
    }

    /// Counts the deliveries.
    pub(crate) fn len(&self) -> usize {
        self.records.borrow().len()
    }

    /// Waits until no delivery is left.
    ///
    /// # Cancel safety
    /// Safe to drop.
    pub(crate) async fn emptied(&self) {
        loop {
            let notified = self.emptied.notified();
            if self.records.borrow().is_empty() {
                return;
            }
            notified.await;
        }
    }
}

/// Hashes what names the work; `None` where nothing does.
fn work_hash(delivery: &Delivery) -> Option<u64> {
    let queue = xxhash_rust::xxh3::xxh3_64(delivery.queue.as_str().as_bytes());
    match (delivery.sequence, &delivery.id) {
        (Some(sequence), _) => {
            let partition = u64::from(delivery.partition.0).rotate_right(16);
            Some(queue ^ partition ^ sequence.wrapping_mul(0x9E37_79B9_7F4A_7C15))
        }
        (None, Some(id)) => Some(xxhash_rust::xxh3::xxh3_64_with_seed(
            id.as_str().as_bytes(),
            queue,
        )),
        (None, None) => None,
    }
}
