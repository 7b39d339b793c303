//! Random schedules against the limiter, checked by what can be seen from outside.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU32;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use crate::model::{DeliveryId, PartitionId};

use super::*;

const BUDGET: u64 = 100;

#[derive(Debug, Clone)]
enum Event {
    Ask { place: usize, bytes: u64 },
    AskAgain(usize),
    Cancel(usize),
    Return(usize),
    Advance(u64),
    Pass,
    Resize(Resize),
}

#[derive(Debug, Clone)]
struct Setting {
    permits: u32,
    rate: Option<Rate>,
    consumers: Vec<ConsumerShape>,
}

fn rate() -> impl Strategy<Value = Rate> {
    (1..50_u32, 1..10_u32).prop_map(|(count, burst)| {
        let number = |at| NonZeroU32::new(at).unwrap();
        Rate::new(number(count), Duration::from_secs(1)).with_burst(number(burst))
    })
}

fn setting(with_rates: bool) -> impl Strategy<Value = Setting> {
    let rate = move || proptest::option::weighted(if with_rates { 0.3 } else { 1e-9 }, rate());
    let consumer = (1..6_u32, 0..10_u32, rate()).prop_map(|(partitions, permits, rate)| {
        let partitions = NonZeroU32::new(partitions).unwrap();
        let limits = ConsumerLimits { permits, rate };
        ConsumerShape { partitions, limits }
    });
    (0..20_u32, rate(), vec(consumer, 1..4)).prop_map(|(permits, rate, consumers)| Setting {
        permits,
        rate,
        consumers,
    })
}

fn resize() -> impl Strategy<Value = Resize> {
    let consumer = || (0..3_u32).prop_map(ConsumerIndex);
    prop_oneof![
        (0..20_u32).prop_map(Resize::ProcessPermits),
        (10..=BUDGET).prop_map(Resize::InFlightBytes),
        proptest::option::of(rate()).prop_map(Resize::ProcessRate),
        (consumer(), 0..10_u32)
            .prop_map(|(consumer, permits)| Resize::ConsumerPermits { consumer, permits }),
        (consumer(), proptest::option::of(rate()))
            .prop_map(|(consumer, rate)| Resize::ConsumerRate { consumer, rate }),
    ]
}

fn events(with_resize: bool) -> impl Strategy<Value = Vec<Event>> {
    let bytes = prop_oneof![4 => 0..10_u64, 1 => 0..=BUDGET + 5];
    let event = prop_oneof![
        10 => (any::<usize>(), bytes).prop_map(|(place, bytes)| Event::Ask { place, bytes }),
        1 => any::<usize>().prop_map(Event::AskAgain),
        2 => any::<usize>().prop_map(Event::Cancel),
        7 => any::<usize>().prop_map(Event::Return),
        2 => (0..400_u64).prop_map(Event::Advance),
        4 => Just(Event::Pass),
        u32::from(with_resize) => resize().prop_map(Event::Resize),
    ];
    vec(event, 1..150)
}

/// What an onlooker knows.
struct Onlooker {
    core: LimiterCore,
    limits: LimiterLimits,
    shapes: Vec<ConsumerShape>,
    now: Duration,
    lines: BTreeMap<PermitKey, VecDeque<(u64, u64)>>,
    held: Vec<Granted>,
    asked: u64,
    was_resized: bool,
}

impl Onlooker {
    fn new(setting: &Setting) -> Self {
        let limits = LimiterLimits {
            permits: setting.permits,
            in_flight_bytes: BUDGET,
            rate: setting.rate,
        };
        let keys = (0_u32..).zip(&setting.consumers).flat_map(|(at, shape)| {
            (0..shape.partitions.get())
                .map(move |number| PermitKey::new(ConsumerIndex(at), PartitionId(number)))
        });
        Self {
            core: LimiterCore::new(limits, &setting.consumers),
            limits,
            shapes: setting.consumers.clone(),
            now: Duration::ZERO,
            lines: keys.map(|key| (key, VecDeque::new())).collect(),
            held: Vec::new(),
            asked: 0,
            was_resized: false,
        }
    }

    fn on(&mut self, event: Event) {
        match event {
            Event::Ask { place, bytes } => self.ask(place, bytes),
            Event::AskAgain(which) => {
                if let Some((key, ticket)) = self.waiting_one(which) {
                    let ask = Ask {
                        key,
                        ticket,
                        bytes: 1,
                    };
                    assert_eq!(self.core.ask(self.now, ask), Ok(Asked::WaitedAlready));
                }
            }
            Event::Cancel(which) => {
                if let Some((key, ticket)) = self.waiting_one(which) {
                    assert!(self.core.cancel(ticket));
                    let line = self.lines.get_mut(&key).unwrap();
                    line.retain(|(at, _)| *at != ticket.0);
                }
            }
            Event::Return(which) => {
                if !self.held.is_empty() {
                    let one = self.held.remove(which % self.held.len());
                    assert_eq!(self.core.give_back(&one), self.waiting() > 0);
                }
            }
            Event::Advance(millis) => self.now += Duration::from_millis(millis),
            Event::Pass => {
                self.pass();
            }
            Event::Resize(resize) => self.resize(resize),
        }
        self.core.assert_consistent();
    }

    fn ask(&mut self, place: usize, bytes: u64) {
        let key = *self.lines.keys().nth(place % self.lines.len()).unwrap();
        self.asked += 1;
        let ticket = DeliveryId(self.asked);
        match self.core.ask(self.now, Ask { key, ticket, bytes }) {
            Ok(Asked::Waits) => {
                assert!(bytes <= self.limits.in_flight_bytes);
                let line = self.lines.get_mut(&key).unwrap();
                line.push_back((ticket.0, bytes));
            }
            Err(AskRefused::TooLarge { .. }) => assert!(bytes > self.limits.in_flight_bytes),
            other => panic!("{other:?}"),
        }
    }

    fn resize(&mut self, resize: Resize) {
        self.was_resized = true;
        let Ok(impossible) = self.core.resize(self.now, resize) else {
            return;
        };
        match resize {
            Resize::ProcessPermits(permits) => self.limits.permits = permits,
            Resize::InFlightBytes(bytes) => self.limits.in_flight_bytes = bytes,
            Resize::ProcessRate(rate) => self.limits.rate = rate,
            Resize::ConsumerPermits { consumer, permits } => {
                self.shapes[consumer.0 as usize].limits.permits = permits;
            }
            Resize::ConsumerRate { consumer, rate } => {
                self.shapes[consumer.0 as usize].limits.rate = rate;
            }
        }
        let before = self.waiting();
        let budget = self.limits.in_flight_bytes;
        for line in self.lines.values_mut() {
            line.retain(|(_, bytes)| *bytes <= budget);
        }
        assert_eq!(impossible.len(), before - self.waiting());
    }

    /// Grants all there is, and checks every grant and what is left.
    fn pass(&mut self) -> Option<Duration> {
        loop {
            match self.core.grant_one(self.now) {
                Step::Granted(one) => self.granted(one),
                Step::Blocked(look_again) => {
                    self.check_nobody_is_left_out();
                    return look_again;
                }
            }
        }
    }

    fn granted(&mut self, one: Granted) {
        let line = self.lines.get_mut(&one.key).unwrap();
        assert_eq!(line.pop_front(), Some((one.ticket.0, one.bytes)), "FIFO");
        let consumer = one.key.consumer;
        self.held.push(one);
        assert!(self.held.len() as u32 <= self.limits.permits);
        let shape = self.shapes[consumer.0 as usize];
        assert!(self.taken(consumer) <= shape.limits.permits);
        assert!(self.in_flight_bytes() <= self.limits.in_flight_bytes);
    }

    fn check_nobody_is_left_out(&self) {
        let rates = self.shapes.iter().map(|shape| shape.limits.rate);
        let has_rate = rates.chain([self.limits.rate]).any(|rate| rate.is_some());
        let room = self
            .limits
            .in_flight_bytes
            .saturating_sub(self.in_flight_bytes());
        // Over a budget that was lowered nothing is granted, not even an empty body.
        if self.in_flight_bytes() > self.limits.in_flight_bytes {
            return;
        }
        let heads = self.lines.values().filter_map(VecDeque::front);
        if has_rate || heads.clone().any(|(_, bytes)| *bytes > room) {
            return;
        }
        let process_idle: u32 = (0..self.shapes.len()).map(|at| self.owed(at)).sum();
        let process_keeps = self.held.len() as u32 + process_idle <= self.limits.permits;
        let shares = self.shapes.iter();
        let partitions: u32 = shares
            .map(|shape| shape.limits.permits.min(shape.partitions.get()))
            .sum();
        if !self.was_resized && self.limits.permits >= partitions {
            assert!(
                process_keeps,
                "the process keeps one back for every partition"
            );
        }
        for (key, line) in &self.lines {
            let at = key.consumer.0 as usize;
            let permits = self.shapes[at].limits.permits;
            let keeps = self.taken(key.consumer) + self.idle(at) <= permits;
            let is_idle = self.held.iter().all(|one| one.key != *key);
            if !self.was_resized && permits >= self.shapes[at].partitions.get() {
                assert!(keeps, "a permit is kept back for every idle partition");
            }
            if keeps && process_keeps && is_idle {
                assert!(line.is_empty(), "{key:?} starves");
            }
            // Nobody else wants or may claim the rest: then it must be in use.
            let alone = self.idle(at) == 0 && process_idle == 0;
            let free = self.taken(key.consumer) < permits
                && (self.held.len() as u32) < self.limits.permits;
            assert!(
                !(alone && free && process_keeps) || line.is_empty(),
                "idle permits"
            );
        }
    }

    /// How many more permits a consumer needs so that each partition it can serve has one.
    fn owed(&self, at: usize) -> u32 {
        let permits = self.shapes[at].limits.permits;
        let taken = self.taken(ConsumerIndex(at as u32));
        self.idle(at).min(permits.saturating_sub(taken))
    }

    fn idle(&self, at: usize) -> u32 {
        let consumer = ConsumerIndex(at as u32);
        let is_idle = |key: &PermitKey| self.held.iter().all(|one| one.key != *key);
        let idle = self
            .lines
            .keys()
            .filter(|key| key.consumer == consumer && is_idle(key));
        idle.count() as u32
    }

    fn taken(&self, consumer: ConsumerIndex) -> u32 {
        let of_it = self.held.iter().filter(|one| one.key.consumer == consumer);
        of_it.count() as u32
    }

    fn in_flight_bytes(&self) -> u64 {
        self.held.iter().map(|one| one.bytes).sum()
    }

    fn waiting(&self) -> usize {
        self.lines.values().map(VecDeque::len).sum()
    }

    fn waiting_one(&self, which: usize) -> Option<(PermitKey, DeliveryId)> {
        let all = self.lines.iter().flat_map(|(key, line)| {
            line.iter()
                .map(move |(ticket, _)| (*key, DeliveryId(*ticket)))
        });
        all.clone().nth(which.checked_rem(all.count())?)
    }

    /// Returns everything again and again: all must be served, and nothing may be left.
    fn finish(mut self) {
        if self.limits.permits == 0 {
            self.resize(Resize::ProcessPermits(1));
        }
        for at in 0..self.shapes.len() {
            if self.shapes[at].limits.permits == 0 {
                let consumer = ConsumerIndex(at as u32);
                self.resize(Resize::ConsumerPermits {
                    consumer,
                    permits: 1,
                });
            }
        }
        for _ in 0..=2 * self.asked {
            let look_again = self.pass();
            if self.waiting() == 0 {
                break;
            }
            if self.held.is_empty() {
                let look_again = look_again.expect("nothing is in flight: only a rate may hold");
                assert!(look_again > self.now);
                self.now = look_again;
            }
            while !self.held.is_empty() {
                self.on(Event::Return(0));
            }
        }
        assert_eq!(self.waiting(), 0, "everybody is served once enough returns");
        while !self.held.is_empty() {
            self.on(Event::Return(0));
        }
        let end = self.core.snapshot(self.now);
        assert_eq!((end.taken, end.in_flight_bytes), (0, 0));
        assert_eq!(end.waiting, WaitingSnapshot::default());
        assert!(!self.core.is_anyone_waiting());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn limits_order_and_guarantees_hold_in_any_schedule(
        setting in setting(false),
        events in events(false),
    ) {
        let mut onlooker = Onlooker::new(&setting);
        events.into_iter().for_each(|event| onlooker.on(event));
        onlooker.finish();
    }

    #[test]
    fn limits_and_order_hold_while_limits_and_rates_change(
        setting in setting(true),
        events in events(true),
    ) {
        let mut onlooker = Onlooker::new(&setting);
        events.into_iter().for_each(|event| onlooker.on(event));
        onlooker.finish();
    }

    #[test]
    fn no_window_has_more_grants_than_the_rate_allows(
        rate in rate(),
        steps in vec((0..300_u64, 0..5_usize), 1..40),
    ) {
        let shape = ConsumerShape {
            partitions: NonZeroU32::MIN,
            limits: ConsumerLimits { permits: 1_000, rate: None },
        };
        let limits = LimiterLimits { permits: 1_000, in_flight_bytes: 0, rate: Some(rate) };
        let mut core = LimiterCore::new(limits, &[shape]);
        let key = PermitKey::new(ConsumerIndex(0), PartitionId(0));
        let (mut now, mut asked, mut times) = (Duration::ZERO, 0, Vec::new());
        for (millis, asks) in steps {
            now += Duration::from_millis(millis);
            for _ in 0..asks {
                asked += 1;
                core.ask(now, Ask { key, ticket: DeliveryId(asked), bytes: 0 }).unwrap();
            }
            while let Step::Granted(_) = core.grant_one(now) {
                times.push(now);
            }
        }
        for (at, from) in times.iter().enumerate() {
            for (count, to) in (1_u32..).zip(&times[at..]) {
                let brought = (*to - *from).as_secs_f64() * f64::from(rate.count.get());
                prop_assert!(f64::from(count) <= f64::from(rate.burst.get()) + brought + 1e-6);
            }
        }
    }

    #[test]
    fn permits_come_back_however_their_clones_are_dropped(
        steps in vec((0..6_u8, any::<usize>(), 0..40_u64), 1..80),
    ) {
        let shape = ConsumerShape {
            partitions: NonZeroU32::new(2).unwrap(),
            limits: ConsumerLimits { permits: 3, rate: None },
        };
        let limits = LimiterLimits { permits: 4, in_flight_bytes: BUDGET, rate: None };
        let book = PermitBook::new(limits, &[shape, shape]);
        let mut held: Vec<Vec<Permit>> = Vec::new();
        for (ticket, (what, which, bytes)) in (0_u64..).zip(steps) {
            let at = which % held.len().max(1);
            match what {
                0 | 1 => {
                    let consumer = ConsumerIndex((which % 2) as u32);
                    let key = PermitKey::new(consumer, PartitionId((which / 2 % 2) as u32));
                    book.ask(Ask { key, ticket: DeliveryId(ticket), bytes }).unwrap();
                }
                2 if !held.is_empty() => {
                    let clone = held[at][0].clone();
                    held[at].push(clone);
                }
                3 if !held.is_empty() => {
                    let clones = held.remove(at);
                    let _ = catch_unwind(AssertUnwindSafe(move || {
                        let _dropped_while_unwinding = clones;
                        std::panic::resume_unwind(Box::new("a handler panicked"));
                    }));
                }
                4 if !held.is_empty() => {
                    let clones = held.remove(at);
                    std::thread::spawn(move || drop(clones)).join().unwrap();
                }
                5 if !held.is_empty() => {
                    held[at].pop();
                    held.retain(|clones| !clones.is_empty());
                }
                _ => {}
            }
            while let NextPermit::Granted(_, permit) = book.grant_next(Duration::ZERO) {
                held.push(vec![permit]);
            }
            let bytes: u64 = held.iter().map(|clones| clones[0].bytes()).sum();
            let seen = book.snapshot();
            prop_assert_eq!((seen.taken as usize, seen.in_flight_bytes), (held.len(), bytes));
            prop_assert!(held.len() <= 4 && bytes <= BUDGET);
        }
        while book.snapshot().waiting.count > 0 {
            held.clear();
            while let NextPermit::Granted(_, permit) = book.grant_next(Duration::ZERO) {
                held.push(vec![permit]);
            }
        }
        drop(held);
        let end = book.snapshot();
        prop_assert_eq!((end.taken, end.in_flight_bytes, end.waiting.count), (0, 0, 0));
    }
}
