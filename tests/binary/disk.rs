//! A disk that is full, and then is not.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::kit::{Home, eventually, holds_for, within};

/// A small file system of its own, as long as it lives.
struct Disk(PathBuf);

impl Disk {
    /// Mounts it; `None` where mounts are refused and the caller said that this is known.
    fn mount(at: &Path, megabytes: u32) -> Option<Self> {
        std::fs::create_dir(at).expect("made");
        let said = Command::new("mount")
            .args([
                "-t",
                "tmpfs",
                "-o",
                &format!("size={megabytes}m"),
                "acquit-test",
            ])
            .arg(at)
            .output()
            .expect("mount is there");
        if said.status.success() {
            return Some(Self(at.to_owned()));
        }
        assert!(
            std::env::var_os("ACQUIT_TEST_NO_MOUNT").is_some(),
            "a small file system cannot be mounted; run this as root, or set ACQUIT_TEST_NO_MOUNT \
             to leave this test out: {}",
            String::from_utf8_lossy(&said.stderr)
        );
        None
    }

    fn grow(&self, megabytes: u32) {
        let status = Command::new("mount")
            .args(["-o", &format!("remount,size={megabytes}m")])
            .arg(&self.0)
            .status()
            .expect("mount is there");
        assert!(status.success());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_is_told_loses_nothing_and_the_same_process_goes_on_when_there_is_room() {
    const MESSAGES: usize = 300;
    let home = Home::new(
        "[worker]\nstate-dir = \"state\"\n[broker]\nurl = \"embedded:disk\"\n\
         [[feed]]\nqueue = \"side\"\nfile = \"feed\"\n\
         [[consumer]]\nname = \"work\"\nqueue = \"work\"\nhandler = \"discard\"\n",
    );
    let Some(disk) = Disk::mount(&home.path("disk"), 42) else {
        return;
    };
    let filler = "x".repeat(50_000);
    let lines: String = (0..MESSAGES)
        .map(|n| format!("{}\n", json!({"id": n.to_string(), "body": filler})))
        .collect();
    home.write("feed", lines);
    home.publish("work", &["before"]);

    let mut running = home.run(&["--until-idle"]);
    let feed = || home.status()["snapshot"]["feeds"][0].clone();
    eventually("the feed says what is wrong", || {
        feed()["trouble"]
            .as_str()
            .is_some_and(|text| text.contains("storage full"))
    });
    let full = feed();
    assert_eq!(full["ended"], false);
    assert!(home.acquit(&["status"]).out.contains("storage full"));
    // Smaller ones may find room, until there is none; what was confirmed is counted.
    let small: String = (0..16)
        .map(|n| {
            format!(
                "{}\n",
                json!({"id": format!("small-{n}"), "body": filler.repeat(20)})
            )
        })
        .collect();
    let done = home.acquit_with(&["publish", "side"], small.as_bytes());
    assert_eq!((done.code, done.out.as_str()), (Some(1), ""));
    assert!(done.err.contains("storage full"), "{}", done.err);
    let confirmed = done
        .err
        .strip_prefix("acquit: ")
        .and_then(|text| text.split_once(' '));
    let confirmed: usize = confirmed.expect("a number").0.parse().expect("a number");
    // What is there can still be settled.
    assert_eq!(home.counts()["acked"], 1);
    let said = running.count("storage full");
    holds_for(
        Duration::from_secs(2),
        "it waits without a crash loop",
        || running.is_alive() && running.count("storage full") <= said + 10,
    );
    assert_eq!(running.count("actor exited"), 0, "{}", running.err());

    disk.grow(200);
    within(Duration::from_secs(60), "it goes on to the end", || {
        !running.is_alive()
    });
    let done = running.end();
    assert_eq!((done.code, done.signal), (Some(0), None), "{done:?}");
    let side = home.get("side");
    let ids: Vec<&str> = side
        .iter()
        .filter_map(|message| message["id"].as_str())
        .collect();
    let (small, fed): (Vec<&str>, Vec<&str>) = ids.iter().partition(|id| id.starts_with("small-"));
    assert!(small.len() >= confirmed, "{} of {confirmed}", small.len());
    let mut fed: Vec<usize> = fed.iter().map(|id| id.parse().expect("a number")).collect();
    fed.sort_unstable();
    assert_eq!(fed, (0..MESSAGES).collect::<Vec<_>>());
    let is_whole = |message: &Value| {
        let body = message["body"].as_str().expect("text");
        body == filler || body == filler.repeat(20)
    };
    assert!(side.iter().all(is_whole));
}
