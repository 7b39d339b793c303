//! Folders that cannot be used, or not for the moment: taken, read-only, full.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use acquit::transport::embedded::{EmbeddedError, EmbeddedTransport};
use acquit_actors::model::Outgoing;
use acquit_actors::ports::PublishError;

use super::kit::*;

/// A mounted file system, unmounted when dropped.
struct Mount(tempfile::TempDir);

impl Mount {
    /// `None` only where the environment says that mounting is not to be expected.
    fn tmpfs(options: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mount = Self::mount(&["-t", "tmpfs", "-o", options, "tmpfs"], dir.path());
        match mount {
            Ok(()) => Some(Self(dir)),
            Err(_) if std::env::var_os("ACQUIT_TEST_NO_MOUNT").is_some() => None,
            Err(error) => panic!(
                "cannot mount a tmpfs ({error}); run as root, or set ACQUIT_TEST_NO_MOUNT to skip"
            ),
        }
    }

    fn remount(&self, options: &str) {
        let options = format!("remount,{options}");
        Self::mount(&["-o", &options], self.path()).unwrap();
    }

    fn mount(args: &[&str], at: &Path) -> Result<(), String> {
        let output = Command::new("mount").args(args).arg(at).output();
        let output = output.map_err(|e| e.to_string())?;
        if output.status.success() {
            return Ok(());
        }
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

/// Tries until it works, at most the bound.
fn eventually<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(done) = attempt() {
            return done;
        }
        assert!(
            begun.elapsed() < BOUND,
            "{what} did not come within its bound"
        );
        std::thread::yield_now();
    }
}

fn big(n: usize) -> Outgoing {
    let mut body = n.to_string().into_bytes();
    body.resize(64 << 10, b'.');
    Outgoing::new("q".into(), body)
}

/// Publishes until it is refused; gives how many were confirmed and why no more were.
fn publish_until_full(transport: &EmbeddedTransport) -> (usize, PublishError) {
    for n in 0.. {
        if let Err(error) = publish(transport, big(n)) {
            return (n, error);
        }
    }
    unreachable!("a tmpfs ends");
}

fn total(transport: &EmbeddedTransport) -> u64 {
    block(transport.stats(&"q".into())).unwrap().total().ready
}

#[test]
fn a_second_opener_is_refused_and_told_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let first = open_dir(dir.path()).unwrap();
    let error = open_dir(dir.path()).unwrap_err();
    assert!(matches!(error, EmbeddedError::InUse { .. }));
    let text = error.to_string();
    assert!(text.contains(&dir.path().display().to_string()), "{text}");
    assert!(text.contains("broker.url"), "{text}");
    drop(first);
    open_dir(dir.path()).unwrap();
}

#[test]
fn a_second_process_is_refused() {
    const DIR: &str = "ACQUIT_TEST_SECOND_DIR";
    if let Some(dir) = std::env::var_os(DIR) {
        let refused = matches!(open_dir(Path::new(&dir)), Err(EmbeddedError::InUse { .. }));
        #[expect(
            clippy::disallowed_methods,
            reason = "the child's answer is its exit code"
        )]
        std::process::exit(if refused { 42 } else { 1 });
    }
    let dir = tempfile::tempdir().unwrap();
    let _first = open_dir(dir.path()).unwrap();
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "storage::a_second_process_is_refused"])
        .env(DIR, dir.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(42));
}

#[test]
fn a_read_only_folder_is_refused_at_open() {
    let Some(mount) = Mount::tmpfs("size=64m") else {
        return;
    };
    drop(open_dir(mount.path()).unwrap());
    mount.remount("ro");
    let error = open_dir(mount.path()).unwrap_err();
    assert!(matches!(error, EmbeddedError::ReadOnly { .. }), "{error:?}");
    let Some(empty) = Mount::tmpfs("size=1m,ro") else {
        return;
    };
    let error = open_dir(&empty.path().join("store")).unwrap_err();
    assert!(matches!(error, EmbeddedError::ReadOnly { .. }), "{error:?}");
}

#[test]
fn a_folder_without_room_for_a_store_is_refused_at_open() {
    let Some(mount) = Mount::tmpfs("size=1m") else {
        return;
    };
    let error = open_dir(mount.path()).unwrap_err();
    assert!(error.to_string().contains("storage full"), "{error}");
}

#[test]
fn a_full_disk_refuses_publishes_loses_nothing_and_recovers_by_acknowledging() {
    let Some(mount) = Mount::tmpfs("size=96m") else {
        return;
    };
    let transport = open_dir(mount.path()).unwrap();
    let (confirmed, error) = publish_until_full(&transport);
    assert!(confirmed > 100, "{confirmed}");
    assert!(error.is_transient());
    assert!(error.to_string().contains("storage full"), "{error}");
    assert_eq!(total(&transport), confirmed as u64);
    // Acknowledging goes on while it is full …
    let taken = eventually("taking while full", || {
        block(transport.take(&"q".into(), 50)).ok()
    });
    assert_eq!(taken.len(), 50);
    for (n, delivery) in taken.iter().enumerate() {
        assert!(delivery.body.starts_with(format!("{n}.").as_bytes()));
    }
    // … and makes room, without a restart.
    let rest = confirmed - 50;
    let mut left = rest;
    while left > 20 {
        left -= block(transport.take(&"q".into(), left - 20)).unwrap().len();
    }
    eventually("room by acknowledging", || publish(&transport, big(7)).ok());
    assert_eq!(total(&transport), 21);
    block(acquit_actors::ports::Transport::close(&transport)).unwrap();
    drop(transport);
    let transport = open_dir(mount.path()).unwrap();
    assert_eq!(total(&transport), 21);
}

#[test]
fn a_disk_filled_by_others_recovers_when_there_is_room_without_a_restart() {
    let Some(mount) = Mount::tmpfs("size=96m") else {
        return;
    };
    let transport = open_dir(mount.path()).unwrap();
    publish(&transport, big(0)).unwrap();
    let ballast = mount.path().join("ballast");
    let mut file = std::fs::File::create(&ballast).unwrap();
    let zeros = vec![0; 1 << 20];
    while file.write_all(&zeros).is_ok() {}
    let (confirmed, error) = publish_until_full(&transport);
    assert!(error.to_string().contains("storage full"), "{error}");
    drop(file);
    std::fs::remove_file(&ballast).unwrap();
    eventually("room again", || publish(&transport, big(7)).ok());
    assert_eq!(total(&transport), confirmed as u64 + 2);
    // A store that was full and is killed opens with everything.
    let copy = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(mount.path()).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    let copied = open_dir(copy.path()).unwrap();
    assert_eq!(total(&copied), confirmed as u64 + 2);
}

#[test]
fn a_full_store_opens_and_can_be_emptied() {
    let Some(mount) = Mount::tmpfs("size=96m") else {
        return;
    };
    let transport = open_dir(mount.path()).unwrap();
    let (confirmed, _) = publish_until_full(&transport);
    let _ = block(acquit_actors::ports::Transport::close(&transport));
    drop(transport);
    let transport = open_dir(mount.path()).unwrap();
    assert_eq!(total(&transport), confirmed as u64);
    // A few at a time, each bounded: while the store is full, each settlement is a commit.
    let mut left = confirmed;
    while left > 0 {
        left -= block(transport.take(&"q".into(), left.min(16)))
            .unwrap()
            .len();
    }
    eventually("room", || publish(&transport, big(1)).ok());
}

#[test]
fn too_many_waiting_publishes_are_refused_at_once() {
    use acquit::transport::embedded::EmbeddedOptions;
    use acquit_actors::ports::{PublishReply, Transport};
    let dir = tempfile::tempdir().unwrap();
    let options = EmbeddedOptions::dir(dir.path()).with_waiting_bytes(300 << 10);
    let transport = EmbeddedTransport::open(options).unwrap();
    let publisher = transport.publisher();
    let answers: Vec<_> = (0..200)
        .map(|n| {
            let (reply, answer) = PublishReply::channel();
            publisher.publish(big(n), reply);
            answer
        })
        .collect();
    let results: Vec<_> = answers.into_iter().map(|a| block(a).unwrap()).collect();
    let refused: Vec<_> = results.iter().filter_map(|r| r.as_ref().err()).collect();
    assert!(!refused.is_empty());
    assert!(
        refused
            .iter()
            .all(|error| error.to_string().contains("too many publishes waiting")),
        "{refused:?}"
    );
    let confirmed = results.len() - refused.len();
    assert_eq!(total(&transport), confirmed as u64);
    publish(&transport, big(0)).unwrap();
}
