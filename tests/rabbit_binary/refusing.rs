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

/// Field report A4: the same password encoded in the URL, from a file, and raw in the URL.
#[tokio::test(flavor = "multi_thread")]
async fn a_password_of_special_characters_works_encoded_or_from_a_file_and_is_refused_raw() {
    const PASSWORD: &str = "a#$@:/?%& \u{fc}";
    const ENCODED: &str = "a%23%24%40%3A%2F%3F%25%26%20%C3%BC";
    let vhost = SharedBroker::vhost().await;
    let (user, port) = (format!("odd-{}", vhost.name()), vhost.port());
    vhost.add_user(&user, PASSWORD).await;
    let all = [".*"; 3];
    vhost.set_permissions(&user, vhost.name(), all).await;
    let home = |url: &str, more: &str| {
        let home = Home::new(&format!(
            "[worker]\nstate-dir = \"data\"\n[broker]\nurl = \"{url}\"\ndeclare = true\n{more}\n\
             [[consumer]]\nname = \"work\"\nqueue = \"work\"\ndead-letter-queue = \"dead\"\n\
             handler = \"discard\"\n"
        ));
        home.write("password", PASSWORD);
        home
    };
    let place = format!("127.0.0.1:{port}/{}", vhost.name());
    let encoded = format!("amqp://{user}:{ENCODED}@{place}");
    let keys = format!("user = \"{user}\"\npassword-file = \"password\"");
    for home in [home(&encoded, ""), home(&format!("amqp://{place}"), &keys)] {
        let done = home.acquit(&["check", "--connect"]);
        assert_eq!(done.code, Some(0), "{}{}", done.out, done.err);
        let done = home.acquit(&["run", "--until-idle"]);
        assert_eq!(done.code, Some(0), "{}", done.err);
    }
    let raw = home(&format!("amqp://{user}:{PASSWORD}@{place}"), "");
    let done = raw.acquit(&["check"]);
    assert_eq!(done.code, Some(2), "{}", done.err);
    assert!(done.err.contains("password-file"), "{}", done.err);
    assert!(!done.err.contains("a#$"), "{}", done.err);
    vhost.delete_user(&user).await;
}
