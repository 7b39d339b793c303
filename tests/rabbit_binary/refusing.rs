//! What is wrong with a broker is said at the start, with a code of its own and without a secret.

use std::time::{Duration, Instant};

use crate::broker_kit::SharedBroker;
use crate::home::Place;
use crate::kit::{Finished, Home};

const SECRET: &str = "hunter2-canary";

fn start(url: &str, more: &str) -> Finished {
    let config = format!(
        "[worker]\nstate-dir = \"data\"\n[broker]\nurl = \"{url}\"\n{more}\n[[consumer]]\n\
         name = \"work\"\nqueue = \"work\"\ndead-letter-queue = \"dead\"\nhandler = \"discard\"\n"
    );
    let began = Instant::now();
    let done = Home::new(&config).acquit(&["run"]);
    assert!(began.elapsed() < Duration::from_secs(12), "{}", done.err);
    assert!(!done.err.contains(SECRET), "{}", done.err);
    done
}

#[track_caller]
fn refused(done: &Finished, code: i32, words: &[&str]) {
    assert_eq!(done.code, Some(code), "{}", done.err);
    for word in words {
        assert!(done.err.contains(word), "{word} is not in:\n{}", done.err);
    }
    let errors = done.err.lines().filter(|line| line.starts_with("acquit:"));
    assert_eq!(errors.count(), 1, "one line:\n{}", done.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_refusal_has_its_text_and_its_code() {
    let vhost = SharedBroker::vhost().await;
    let port = vhost.port();
    let done = start(&format!("amqp://guest:{SECRET}@127.0.0.1:{port}"), "");
    refused(&done, 14, &["127.0.0.1", "credentials"]);
    let done = start(&format!("amqp://127.0.0.1:{port}/no-such-place"), "");
    refused(&done, 14, &["no-such-place", "127.0.0.1"]);
    let done = start(&vhost.uri(), "");
    refused(&done, 11, &["work", "declare"]);
    let done = start("amqp://127.0.0.1:1", "");
    refused(&done, 14, &["127.0.0.1:1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_of_another_type_is_left_as_it_is() {
    let place = Place::new("dead-letter-queue = \"dead\"\nhandler = \"discard\"", "").await;
    let made = place.home.acquit(&["topology", "apply"]);
    assert_eq!(made.code, Some(0), "{}", made.err);
    let url = place.vhost.uri();
    let done = start(&url, "declare = true\nqueue-type = \"classic\"");
    refused(
        &done,
        10,
        &["x-queue-type", "classic", "quorum", "untouched"],
    );
    let queue = place.vhost.queue(place.vhost.name(), "work").await;
    assert_eq!(queue.expect("still there").queue_type, "quorum");
}
