//! Dead letters: listed, shown, filtered, replayed.

use std::time::{Duration, Instant};

use acquit::cli::{DlqAction, Exit, FilterArgs, LetterArgs, ListArgs, ReplayArgs, show_dlq};
use acquit::transport::LetterFilter;
use acquit::transport::amqp::{AmqpError, DeadLetters, Fate, Replay};
use acquit_actors::model::{HeaderValue, Outgoing};

use crate::place::{Place, Runs, drained, until, words};

/// Lets messages die: `fail` after its attempts, `reject` at once.
async fn with_dead(place: &Place, bodies: &[&str]) {
    place.publish(bodies).await;
    let runs = Runs::default();
    let handle = place.start(place.spec(runs.handler()));
    place.holds("words.dead", bodies.len() as u64).await;
    until(&handle, "all is settled", |counts| counts.in_hand == 0).await;
    assert!(drained(handle).await.clean);
}

async fn open(place: &Place) -> DeadLetters {
    DeadLetters::connect(&place.options).await.expect("open")
}

fn of_reason(reason: &str) -> LetterFilter {
    let mut filter = LetterFilter::default();
    filter.reason = Some(reason.to_owned());
    filter
}

/// Replays, and gives the id and fate of each letter that was meant.
async fn replayed(letters: &DeadLetters, replay: &Replay) -> Vec<(String, Fate)> {
    let mut fates = Vec::new();
    let tell = |letter: &acquit::transport::Letter, fate| {
        let id = letter.delivery.id.as_ref().map(|id| id.as_str().to_owned());
        fates.push((id.unwrap_or_default(), fate));
    };
    let done = letters.replay(&"words.dead".into(), replay, tell).await;
    done.expect("replayed");
    fates
}

#[tokio::test(flavor = "multi_thread")]
async fn letters_are_listed_and_shown_and_all_stay() {
    let place = Place::new().await;
    with_dead(&place, &["reject a", "reject b", "fail c"]).await;
    let (letters, queue) = (open(&place).await, "words.dead".into());
    let all = LetterFilter::default();
    let found = letters.list(&queue, &all, 100).await.expect("listed");
    assert_eq!((found.letters.len(), found.seen, found.left), (3, 3, 0));
    for letter in &found.letters {
        assert_eq!(letter.origin, Some("words".into()));
        assert!(letter.delivery.body.is_empty() && letter.body_bytes > 0);
    }
    let exhausted = letters.list(&queue, &of_reason("exhausted"), 100).await;
    let exhausted = exhausted.expect("listed");
    assert_eq!((exhausted.letters.len(), exhausted.seen), (1, 3));
    assert_eq!(exhausted.letters[0].last_error(), Some("it fails"));
    // A list looks at no more letters than it needs.
    let first = letters.list(&queue, &all, 1).await.expect("listed");
    assert_eq!((first.letters.len(), first.seen, first.left), (1, 1, 2));

    let one = letters.show(&queue, &"m2".into()).await.expect("shown");
    let one = one.expect("it is there");
    assert_eq!(&one.delivery.body[..], b"fail c");
    assert_eq!(one.delivery.attempt.get(), 3);
    assert!(one.delivery.delivery_count > Some(1), "each look counts");
    let none = letters.show(&queue, &"nobody".into()).await;
    assert!(none.expect("looked").is_none());
    place.counts("words.dead", [3, 0, 0]).await;

    let missing = letters.list(&"nowhere".into(), &all, 1).await;
    let error = missing.expect_err("no queue");
    assert!(matches!(error, AmqpError::Missing { .. }), "{error:?}");
    letters.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replayed_message_runs_again_as_a_first_attempt() {
    let place = Place::new().await;
    with_dead(&place, &["fail", "reject"]).await;
    let letters = open(&place).await;
    let mut replay = Replay::default();
    replay.filter = of_reason("exhausted");
    replay.dry_run = true;
    assert_eq!(
        replayed(&letters, &replay).await,
        [("m0".to_owned(), Fate::Would)]
    );
    place.counts("words.dead", [2, 0, 0]).await;
    replay.dry_run = false;
    for times in 1..=2 {
        let fates = replayed(&letters, &replay).await;
        assert_eq!(fates, [("m0".to_owned(), Fate::Replayed)]);
        place.counts("words.dead", [1, 0, 0]).await;
        place.counts("words", [1, 0, 0]).await;
        let runs = Runs::default();
        let handle = place.start(place.spec(runs.handler()));
        place.holds("words.dead", 2).await;
        until(&handle, "it is settled", |counts| counts.in_hand == 0).await;
        assert!(drained(handle).await.clean);
        let seen = runs.all();
        let attempts: Vec<_> = seen.iter().map(|seen| seen.attempt).collect();
        assert_eq!(attempts, [1, 2, 3], "it has all its attempts again");
        let first = &seen[0];
        assert_eq!(first.id, "m0");
        let number = first.headers.get("x-acquit-replayed");
        assert_eq!(number.and_then(HeaderValue::as_int), Some(times));
        for gone in [
            "x-acquit-reason",
            "x-acquit-last-error",
            "x-acquit-first-error",
        ] {
            assert!(!first.headers.contains_key(gone), "{gone}");
        }
    }
    letters.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_go_back_stays_and_is_named() {
    let place = Place::new().await;
    let letter = |id: &str, origin: Option<&str>| {
        let mut letter = Outgoing::new("words.dead".into(), "x").with_id(id);
        if let Some(origin) = origin {
            letter.headers.set("x-acquit-origin-queue", origin);
        }
        letter
    };
    let all = vec![
        letter("foreign", None),
        letter("orphan", Some("no.such.queue")),
        letter("good", Some("words")),
    ];
    place.publish_all(all).await;
    let letters = open(&place).await;
    let fates = replayed(&letters, &Replay::default()).await;
    assert_eq!(fates[0], ("foreign".to_owned(), Fate::WithoutOrigin));
    assert_eq!(fates[2], ("good".to_owned(), Fate::Replayed));
    let (id, Fate::NotTaken(why)) = &fates[1] else {
        panic!("{fates:?}");
    };
    assert!(id == "orphan" && why.contains("returned"), "{fates:?}");
    place.counts("words.dead", [2, 0, 0]).await;
    place.counts("words", [1, 0, 0]).await;
    letters.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_keeps_its_rate_and_its_limit() {
    let place = Place::new().await;
    with_dead(&place, &["reject"; 6]).await;
    let letters = open(&place).await;
    let mut replay = Replay::default();
    replay.pause = Duration::from_millis(100);
    replay.limit = Some(4);
    let start = Instant::now();
    assert_eq!(replayed(&letters, &replay).await.len(), 4);
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(300), "three pauses: {took:?}");
    place.counts("words.dead", [2, 0, 0]).await;
    letters.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn letters_of_partitions_go_to_partitions() {
    let mut consumer = words();
    consumer.partitions = 2;
    let place = Place::with(consumer).await;
    with_dead(&place, &["reject"; 4]).await;
    let letters = open(&place).await;
    assert_eq!(replayed(&letters, &Replay::default()).await.len(), 4);
    place.counts("words.0", [2, 0, 0]).await;
    place.counts("words.1", [2, 0, 0]).await;
    letters.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_say_what_they_did_and_end_with_its_code() {
    let place = Place::new().await;
    with_dead(&place, &["reject hello", "reject you"]).await;
    let run = async |action: DlqAction| {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let exit = show_dlq(&place.options, &action, false, &mut out, &mut err).await;
        out.extend(err);
        let text = String::from_utf8(out).expect("UTF-8");
        (exit.expect("written"), text)
    };
    let list = |queue: &str| {
        DlqAction::List(ListArgs {
            queue: queue.to_owned(),
            filter: FilterArgs::default(),
            limit: 10,
        })
    };
    let (exit, text) = run(list("words.dead")).await;
    assert_eq!(exit, Exit::Clean, "{text}");
    assert!(text.contains("m0") && text.contains("2 shown"), "{text}");
    let (exit, text) = run(list("nowhere")).await;
    assert_eq!(exit, Exit::SubscriptionFailed, "{text}");
    let show = LetterArgs {
        queue: "words.dead".to_owned(),
        id: "m0".to_owned(),
    };
    let (exit, text) = run(DlqAction::Show(show)).await;
    assert_eq!(exit, Exit::Clean);
    assert!(text.ends_with("\nreject hello\n"), "{text}");
    let replay = ReplayArgs {
        queue: "words.dead".to_owned(),
        filter: FilterArgs {
            id: Some("m1".to_owned()),
            ..FilterArgs::default()
        },
        limit: None,
        rate: None,
        dry_run: false,
    };
    let (exit, text) = run(DlqAction::Replay(replay)).await;
    assert_eq!(exit, Exit::Clean);
    let expected = "replayed m1 to words\n1 replayed, 0 skipped, 0 not replayed; 2 looked at\n";
    assert_eq!(text, expected);
    place.counts("words.dead", [1, 0, 0]).await;
}
