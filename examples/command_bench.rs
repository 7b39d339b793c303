//! How much of a bare loop's speed the command handler keeps.
//!
//! ```text
//! cargo run --release --example command_bench -- [RUNS] [CONCURRENCY] [BALLAST_MIB] [THREADS]
//! ```
//!
//! In one process it runs `true` and `wc -w` RUNS times, CONCURRENCY at once, through
//!
//! - `bare`: tokio's `Command`, standard input, output and error as pipes, and a descriptor 3 by
//!   `command-fds`: what one would write by hand for the same pipes;
//! - `bare-3`: the same without descriptor 3;
//! - `handler`: the command handler,
//!
//! in turns, so that a noisy machine is noisy for all of them; the best and the middle turn are
//! shown. BALLAST_MIB of touched memory shows what a full fork costs a process that holds some.

#![allow(clippy::print_stdout, reason = "it is what a bench is for")]
#![allow(clippy::unwrap_used, reason = "a bench stops at the first surprise")]

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use acquit::handlers::{CommandHandler, CommandSpec};
use acquit_actors::model::{Delivery, Generation, PartitionId};
use acquit_actors::ports::{DeliveryContext, DeliveryHandler, HandlerOutcome};
use bytes::Bytes;
use command_fds::{CommandFdExt, FdMapping};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const TURNS: usize = 7;
const METADATA: &[u8] = br#"{"id":null,"queue":"bench","partition":0,"attempt":1}"#;
static BODY: [u8; 1024] = [b'x'; 1024];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Bare,
    BareWithout3,
    Handler,
}

fn main() {
    let mut arguments = std::env::args()
        .skip(1)
        .map(|a| a.parse::<usize>().unwrap());
    let runs = arguments.next().unwrap_or(1000);
    let concurrency = arguments.next().unwrap_or(4);
    let ballast = vec![1_u8; arguments.next().unwrap_or(0) * 1024 * 1024];
    let threads = arguments.next().unwrap_or(2);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
        .unwrap();
    println!(
        "{runs} runs, {concurrency} at once, {threads} threads, {} MiB of ballast; commands/s",
        ballast.len() / 1024 / 1024
    );
    for argv in [&["/usr/bin/true"][..], &["/usr/bin/wc", "-w"]] {
        let mut rates = [const { Vec::new() }; 3];
        for turn in 0..TURNS * 3 {
            // Each way comes first, second and third equally often.
            let way = (turn + turn / 3) % 3;
            let ways = [Way::Bare, Way::BareWithout3, Way::Handler];
            rates[way].push(runtime.block_on(turn_of(ways[way], argv, runs, concurrency)));
        }
        for rate in &mut rates {
            rate.sort_by(f64::total_cmp);
        }
        let [bare, without_3, handler] = rates;
        let show = |name: &str, rate: &[f64]| {
            let (middle, best) = (rate[TURNS / 2], rate[TURNS - 1]);
            let ratio = (middle / bare[TURNS / 2], best / bare[TURNS - 1]);
            println!(
                "{:8} {name:8} middle {middle:7.0} ({:4.0} %)   best {best:7.0} ({:4.0} %)",
                argv[0].rsplit('/').next().unwrap(),
                ratio.0 * 100.0,
                ratio.1 * 100.0
            );
        };
        show("bare", &bare);
        show("bare-3", &without_3);
        show("handler", &handler);
    }
    std::hint::black_box(ballast);
}

async fn turn_of(way: Way, argv: &'static [&'static str], runs: usize, concurrency: usize) -> f64 {
    let spec = CommandSpec::new(argv.iter().copied());
    let handler = Arc::new(CommandHandler::new(spec).unwrap());
    let left = Arc::new(AtomicUsize::new(runs));
    let start = Instant::now();
    let tasks: Vec<_> = (0..concurrency)
        .map(|_| tokio::spawn(work(way, argv, handler.clone(), left.clone())))
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    runs as f64 / start.elapsed().as_secs_f64()
}

async fn work(
    way: Way,
    argv: &'static [&'static str],
    handler: Arc<CommandHandler>,
    left: Arc<AtomicUsize>,
) {
    let take = |left: usize| left.checked_sub(1);
    while left
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
        .is_ok()
    {
        match way {
            Way::Handler => {
                let body = Bytes::from_static(&BODY);
                let delivery = Delivery::new("bench".into(), PartitionId(0), Generation(0), body);
                let outcome = handler.handle(DeliveryContext::detached(delivery)).await;
                assert!(
                    matches!(outcome, HandlerOutcome::Completed { .. }),
                    "{outcome:?}"
                );
            }
            Way::Bare | Way::BareWithout3 => bare(argv, way == Way::Bare).await,
        }
    }
}

/// Spawn, write, read, wait.
async fn bare(argv: &[&str], with_3: bool) {
    let mut command = std::process::Command::new(argv[0]);
    command
        .args(&argv[1..])
        // As the handler does it; with our own locale `wc` would load one and be slower.
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if with_3 {
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        rustix::io::write(&write, METADATA).unwrap();
        let mapping = FdMapping {
            parent_fd: read,
            child_fd: 3,
        };
        command.fd_mappings(vec![mapping]).unwrap();
    }
    let mut child = tokio::process::Command::from(command).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // `true` may have closed its end already.
    let _ = stdin.write_all(&BODY).await;
    drop(stdin);
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let mut stdout = child.stdout.take().unwrap();
    let mut stderr = child.stderr.take().unwrap();
    let (read_out, read_err) =
        futures_util::future::join(stdout.read_to_end(&mut out), stderr.read_to_end(&mut err))
            .await;
    read_out.unwrap();
    read_err.unwrap();
    assert!(child.wait().await.unwrap().success());
}
