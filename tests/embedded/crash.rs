//! A process killed at any moment loses nothing that was confirmed and repeats only what was not
//! settled. The child is this test binary again; it tells its ledger through a pipe.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;

use acquit::transport::embedded::{EmbeddedOptions, EmbeddedTransport, Sync};
use acquit_actors::model::{Disposition, Outgoing};
use acquit_actors::ports::{PublishReply, SettleReply, SettleResult, Transport};

use super::kit::*;

const DIR: &str = "ACQUIT_TEST_CRASH_DIR";
const ROUND: &str = "ACQUIT_TEST_CRASH_ROUND";
const INTERVAL: &str = "ACQUIT_TEST_CRASH_INTERVAL";

/// What the child said, over all rounds.
#[derive(Default)]
struct Ledger {
    published: BTreeSet<String>,
    settling: BTreeSet<String>,
    acked: BTreeSet<String>,
}

#[test]
fn a_killed_process_loses_nothing_confirmed() {
    kill_rounds(20, false);
}

#[test]
fn a_killed_process_loses_nothing_confirmed_between_two_fsyncs_either() {
    kill_rounds(10, true);
}

fn kill_rounds(rounds: usize, interval: bool) {
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = Ledger::default();
    for round in 0..rounds {
        // From the first lines after the start to some seconds of checkpoints.
        let lines = [1, 30, 400, 2_000, 7_000][round % 5] + 13 * round;
        kill_after(dir.path(), round, interval, lines, &mut ledger);
        check_ledger(dir.path(), round, &ledger);
    }
    assert!(ledger.acked.len() > 1_000, "{} acked", ledger.acked.len());
}

fn kill_after(dir: &Path, round: usize, interval: bool, lines: usize, ledger: &mut Ledger) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "crash::child_that_is_killed", "--nocapture"])
        .env(DIR, dir)
        .env(ROUND, round.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    if interval {
        command.env(INTERVAL, "1");
    }
    let mut child = command.spawn().unwrap();
    let mut seen = 0;
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        // A last line that was cut off has no end mark.
        let Some(words) = line.strip_suffix(" .") else {
            continue;
        };
        match words.split_once(' ') {
            Some(("L-published", body)) => drop(ledger.published.insert(body.to_owned())),
            Some(("L-settling", body)) => drop(ledger.settling.insert(body.to_owned())),
            Some(("L-acked", body)) => drop(ledger.acked.insert(body.to_owned())),
            _ => continue,
        }
        seen += 1;
        if seen == lines {
            child.kill().unwrap();
        }
    }
    assert!(!child.wait().unwrap().success(), "it was killed, not ended");
}

fn check_ledger(dir: &Path, round: usize, ledger: &Ledger) {
    let transport = open_dir(dir).unwrap();
    let mut live = BTreeSet::new();
    for queue in transport.queues() {
        for peeked in block(transport.peek(&queue, usize::MAX)).unwrap() {
            let body = String::from_utf8(peeked.delivery.body.to_vec()).unwrap();
            assert!(
                live.insert(body.clone()),
                "round {round}: {body} is there twice"
            );
        }
        let dead = block(transport.dead_list(&queue, 10)).unwrap();
        assert!(dead.is_empty(), "round {round}: {dead:?}");
    }
    let lost: Vec<_> = ledger
        .published
        .iter()
        .filter(|body| !ledger.settling.contains(*body) && !live.contains(*body))
        .collect();
    assert!(
        lost.is_empty(),
        "round {round}: confirmed and lost: {lost:?}"
    );
    let back: Vec<_> = ledger.acked.intersection(&live).collect();
    assert!(
        back.is_empty(),
        "round {round}: acknowledged and back: {back:?}"
    );
    block(transport.close()).unwrap();
}

/// Not a test of its own: what the killed child does.
#[test]
fn child_that_is_killed() {
    let Ok(dir) = std::env::var(DIR) else {
        return;
    };
    let round = std::env::var(ROUND).unwrap();
    let sync = match std::env::var(INTERVAL) {
        Ok(_) => Sync::Interval,
        Err(_) => Sync::Always,
    };
    let options = EmbeddedOptions::dir(dir).with_sync(sync);
    let transport = EmbeddedTransport::open(options).unwrap();
    block(transport.ensure_queue(&"q".into(), 2.try_into().unwrap())).unwrap();
    for partition in 0..2 {
        let transport = transport.clone();
        std::thread::spawn(move || settle_for_ever(&transport, partition));
    }
    for publisher in 0..8 {
        let (transport, round) = (transport.clone(), round.clone());
        std::thread::spawn(move || publish_for_ever(&transport, &format!("{round}-{publisher}")));
    }
    // The parent ends this; should it be gone, the bound does.
    #[expect(clippy::disallowed_methods, reason = "this process waits to be killed")]
    {
        // tidy-allow: sleep: this process waits to be killed
        std::thread::sleep(BOUND);
        std::process::exit(0);
    }
}

fn publish_for_ever(transport: &EmbeddedTransport, name: &str) {
    let publisher = transport.publisher();
    for n in 0_u64.. {
        let body = format!("{name}-{n}");
        let (reply, answer) = PublishReply::channel();
        publisher.publish(Outgoing::new("q".into(), body.clone()), reply);
        answer.blocking_recv().unwrap().unwrap();
        say("L-published", &body);
    }
}

fn settle_for_ever(transport: &EmbeddedTransport, partition: u32) {
    let mut source = block(transport.open_source(spec("q", partition, 2))).unwrap();
    let (sender, answers) = mpsc::channel::<(String, tokio::sync::oneshot::Receiver<_>)>();
    std::thread::spawn(move || {
        for (body, answer) in answers {
            if let Ok(SettleResult::Done(_)) = answer.blocking_recv() {
                say("L-acked", &body);
            }
        }
    });
    for n in 0_u64.. {
        for arrival in recv(&mut source, 20) {
            let body = String::from_utf8(arrival.delivery.body.to_vec()).unwrap();
            let (reply, answer) = SettleReply::channel();
            // Some fail once and some go back, so that states are written too.
            let disposition = match (n % 7, arrival.delivery.attempt.get()) {
                (0, 1) => Disposition::Requeue {
                    after: std::time::Duration::ZERO,
                },
                (1, _) => Disposition::Release,
                _ => {
                    say("L-settling", &body);
                    sender.send((body, answer)).unwrap();
                    Disposition::Ack
                }
            };
            arrival.settler.settle(disposition, reply);
        }
    }
}

fn say(word: &str, body: &str) {
    let line = format!("{word} {body} .\n");
    // Through the handle's own lock: lines of several threads do not mix.
    let _ = std::io::stdout().lock().write_all(line.as_bytes());
}
