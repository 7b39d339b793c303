//! The embedded broker from outside: the contract of its ports on both kinds of store, then what
//! only the durable one promises: crashes, damage, full disks, second processes.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    missing_docs,
    reason = "tests may panic and print"
)]

#[path = "embedded/kit.rs"]
mod kit;

#[path = "embedded/contract.rs"]
mod contract;
#[path = "embedded/crash.rs"]
mod crash;
#[path = "embedded/damage.rs"]
mod damage;
#[path = "embedded/storage.rs"]
mod storage;
