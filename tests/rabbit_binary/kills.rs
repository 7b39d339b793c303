//! SIGKILL at every state of a settlement, on a real broker: nothing is lost, and at most what was
//! in flight is repeated.

use crate::home::Place;

const MESSAGES: usize = 30;

/// How many may be in flight, and so be repeated by one kill.
const PERMITS: usize = 4;

/// A consumer that answers most messages, rejects some, and fails some once.
const CONSUMER: &str = r#"permits = 4
partitions = 2
reply-queue = "answers"
dead-letter-queue = "dead"
retry = { max-attempts = 3, backoff-base = "50ms", backoff-max = "50ms" }
handler = { command = ["/bin/sh", "-c", "body=$(cat); case $body in reject*) exit 65;; once*) [ $DELIVERY_ATTEMPT -gt 1 ] || exit 75;; esac; echo $body"] }"#;

fn body(n: usize) -> String {
    match n % 6 {
        0 => format!("reject {n}"),
        1 => format!("once {n}"),
        _ => format!("plain {n}"),
    }
}

/// Kills a run at the n-th passing of each point, one after the other, lets a last one finish, and
/// accounts for all.
async fn check(points: &[(&str, usize)]) {
    let place = Place::new(CONSUMER, "").await;
    let made = place.home.acquit(&["topology", "apply"]);
    assert_eq!(made.code, Some(0), "{}", made.err);
    let lines: String = (0..MESSAGES)
        .map(|n| format!("{{\"id\":\"m{n}\",\"body\":{:?}}}\n", body(n)))
        .collect();
    place.home.publish_lines("work", &lines);
    let Place { mut home, vhost } = place;
    for (point, passing) in points {
        home = home.variable("ACQUIT_FAIL_POINT", &format!("{point}:{passing}"));
        let killed = home.acquit(&["run", "--until-idle"]);
        let text = &killed.err;
        assert_eq!(
            killed.code, None,
            "{point}:{passing} was not passed:\n{text}"
        );
    }
    let home = home.variable("ACQUIT_FAIL_POINT", "nowhere:1");
    let place = Place { home, vhost };
    // A quorum queue's count lags: idle may come early, then another run takes the rest.
    for _ in 0..10 {
        let done = place.home.acquit(&["run", "--until-idle"]);
        assert_eq!(done.code, Some(0), "{}", done.err);
        let vhost = place.vhost.name();
        let queues = place.vhost.list_queues(vhost).await;
        let left: u64 = queues
            .iter()
            .filter(|queue| queue.name.starts_with("work"))
            .map(|queue| queue.ready.unwrap_or(1) + queue.unacked.unwrap_or(1))
            .sum();
        if left == 0 {
            break;
        }
    }
    place.holds("work.0", 0).await;
    place.holds("work.1", 0).await;
    let answered = place
        .take("answers", |delivery| {
            let of = delivery.properties.correlation_id().as_ref();
            of.map(|id| id.as_str().to_owned())
        })
        .await;
    let died = place
        .take("dead", |delivery| {
            let of = delivery.properties.message_id().as_ref();
            of.map(|id| id.as_str().to_owned())
        })
        .await;
    let ends = |n: usize| {
        let id = format!("m{n}");
        answered.get(&id).unwrap_or(&0) + died.get(&id).unwrap_or(&0)
    };
    let lost: Vec<usize> = (0..MESSAGES).filter(|n| ends(*n) == 0).collect();
    assert!(lost.is_empty(), "{points:?} lost {lost:?}");
    let repeated = (0..MESSAGES).map(ends).sum::<usize>() - MESSAGES;
    let bound = PERMITS * points.len();
    assert!(repeated <= bound, "{points:?} repeated {repeated}");
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_before_a_handler_returns_nothing_is_lost() {
    check(&[("received", 3), ("running", 2), ("running", 5)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_around_a_publish_nothing_is_lost() {
    check(&[("publishing", 2), ("publish-sent", 3), ("publish-sent", 7)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_around_a_settlement_nothing_is_lost() {
    check(&[("settling", 2), ("settle-sent", 4), ("settled", 3)]).await;
}
