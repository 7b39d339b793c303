//! How long a permit takes: ask, grant and return.
//!
//! `cargo run --release -p acquit-actors --example limiter_bench`

#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::cell::Cell;
use std::num::NonZeroU32;
use std::rc::Rc;
use std::time::Instant;

use acquit_actors::limiter::{
    Ask, AskMany, ConsumerIndex, ConsumerLimits, ConsumerShape, LimiterActor, LimiterLimits,
    NextPermit, Permit, PermitBook, PermitKey,
};
use acquit_actors::model::{DeliveryId, PartitionId};
use actix::prelude::*;

const ROUNDS: u64 = 2_000_000;

fn book(consumers: u32, partitions: u32, permits: u32, rate: Option<&str>) -> PermitBook {
    let shape = ConsumerShape {
        partitions: NonZeroU32::new(partitions).unwrap_or(NonZeroU32::MIN),
        limits: ConsumerLimits {
            permits,
            rate: None,
        },
    };
    let limits = LimiterLimits {
        permits,
        in_flight_bytes: 256 << 20,
        rate: rate.and_then(|rate| rate.parse().ok()),
    };
    PermitBook::new(limits, &vec![shape; consumers as usize])
}

fn ask(number: u64, consumers: u32, partitions: u32) -> Ask {
    let spread = number as u32;
    Ask {
        key: PermitKey::new(
            ConsumerIndex(spread % consumers),
            PartitionId(spread / consumers % partitions),
        ),
        ticket: DeliveryId(number),
        bytes: 256,
    }
}

/// A stopwatch of wall time and, where Linux tells it, of this thread's time on a processor: the
/// second can be believed on a machine that others use too.
struct Watch {
    started: Instant,
    on_cpu: Option<u64>,
}

impl Watch {
    fn start() -> Self {
        Self {
            started: Instant::now(),
            on_cpu: on_cpu_nanos(),
        }
    }
}

fn on_cpu_nanos() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse().ok()
}

fn report(name: &str, rounds: u64, watch: Watch) {
    let elapsed = watch.started.elapsed();
    let on_cpu = on_cpu_nanos().zip(watch.on_cpu);
    let on_cpu = on_cpu.map_or(f64::NAN, |(now, then)| (now - then) as f64 / rounds as f64);
    let nanos = elapsed.as_nanos() as f64 / rounds as f64;
    let million = rounds as f64 / elapsed.as_secs_f64() / 1e6;
    println!("{name:58} {on_cpu:6.0} ns on cpu {nanos:6.0} ns wall {million:6.2} M/s");
}

/// Asks come in batches, as from a consumer actor; permits are taken one at a time, and when 48 are
/// out the oldest returns before the next is taken.
fn measure(name: &str, book: &PermitBook, consumers: u32, partitions: u32, batch: u64) {
    let mut held = std::collections::VecDeque::<Permit>::new();
    let watch = Watch::start();
    let mut asked = 0;
    while asked < ROUNDS {
        book.ask_many((asked..asked + batch).map(|number| ask(number, consumers, partitions)));
        asked += batch;
        let now = book.now();
        let mut served = 0;
        while served < batch {
            if held.len() >= 48 {
                held.pop_front();
            }
            match book.grant_next(now) {
                NextPermit::Granted(_, permit) => {
                    held.push_back(permit);
                    served += 1;
                }
                NextPermit::Blocked(_) if held.pop_front().is_some() => {}
                NextPermit::Blocked(_) => break,
            }
        }
    }
    drop(held);
    report(name, ROUNDS, watch);
}

/// What the machine takes for the parts that no book can do without.
fn measure_floor(name: &str) {
    let lock = std::sync::Mutex::new(0_u64);
    let mut held = std::collections::VecDeque::new();
    let watch = Watch::start();
    for number in 0..ROUNDS {
        for _ in 0..3 {
            if let Ok(mut count) = std::hint::black_box(&lock).lock() {
                *count += 1;
            }
        }
        held.push_back(std::sync::Arc::new([number; 6]));
        if held.len() >= 48 {
            held.pop_front();
        }
    }
    report(name, ROUNDS, watch);
}

/// Returns come from another thread, as from handlers.
fn measure_threads(name: &str) {
    let book = book(1, 4, 64, None);
    let (send, receive) = std::sync::mpsc::sync_channel::<Permit>(1_024);
    let handlers = std::thread::spawn(move || receive.into_iter().for_each(drop));
    let watch = Watch::start();
    let mut served = 0;
    let mut asked = 0;
    while served < ROUNDS {
        while asked < ROUNDS && asked < served + 128 {
            book.ask_many((asked..asked + 16).map(|number| ask(number, 1, 4)));
            asked += 16;
        }
        match book.grant_next(book.now()) {
            NextPermit::Granted(_, permit) => {
                served += 1;
                if send.send(permit).is_err() {
                    break;
                }
            }
            NextPermit::Blocked(_) => std::thread::yield_now(),
        }
    }
    drop(send);
    let _ = handlers.join();
    report(name, ROUNDS, watch);
}

/// Asks as messages to the actor; its permits are dropped at once.
fn measure_actor(name: &str, batch: u64) {
    let system = System::new();
    system.block_on(async {
        let book = book(1, 4, 64, None);
        let granted = Rc::new(Cell::new(0_u64));
        let counted = Rc::clone(&granted);
        let on_granted = Rc::new(move |_, permit| {
            counted.set(counted.get() + 1);
            drop::<Permit>(permit);
        });
        let limiter = LimiterActor::new(book, on_granted, Rc::new(|_, _| {})).start();
        let watch = Watch::start();
        let mut asked = 0;
        while asked < ROUNDS {
            for _ in 0..64 / batch {
                if batch == 1 {
                    limiter.do_send(ask(asked, 1, 4));
                } else {
                    let asks = (asked..asked + batch).map(|number| ask(number, 1, 4));
                    limiter.do_send(AskMany(asks.collect()));
                }
                asked += batch;
            }
            while granted.get() < asked {
                tokio::task::yield_now().await;
            }
        }
        report(name, asked, watch);
    });
}

fn main() {
    println!("ask + grant + return, {ROUNDS} times");
    for _ in 0..5 {
        measure_floor("for comparison: three locks and an Arc alone");
        measure(
            "book, 1 consumer x 1 partition, one by one",
            &book(1, 1, 64, None),
            1,
            1,
            1,
        );
        measure(
            "book, 1 consumer x 4 partitions, 16 asks at once",
            &book(1, 4, 64, None),
            1,
            4,
            16,
        );
        measure(
            "book, 16 consumers x 16 partitions, 64 permits",
            &book(16, 16, 64, None),
            16,
            16,
            16,
        );
        measure(
            "book, 1 consumer x 256 partitions, 256 permits",
            &book(1, 256, 256, None),
            1,
            256,
            1_024,
        );
        measure(
            "book, 1 consumer x 4 partitions, with a rate",
            &book(1, 4, 64, Some("4000000000/s")),
            1,
            4,
            16,
        );
    }
    measure_threads("book, returns from another thread");
    measure_actor("actor, a message an ask", 1);
    measure_actor("actor, a message for 16 asks", 16);
}
