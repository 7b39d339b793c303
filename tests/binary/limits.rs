//! Jobs: so many deliveries, or until nothing is left.

use serde_json::Value;

use crate::kit::{Home, bodies};

#[test]
fn max_deliveries_handles_exactly_so_many_and_leaves_the_rest() {
    for (permits, partitions, count) in [(1, 1, 1), (8, 4, 10)] {
        let home = Home::with_consumer(
            &format!(
                "permits = {permits}\npartitions = {partitions}\nreply-queue = \"results\"\nhandler = \"echo\""
            ),
            "",
        );
        let all: Vec<String> = (0..30).map(|n| format!("m{n:02}")).collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        home.publish("work", &all);
        let count: usize = count;
        let done = home.acquit(&["run", "--max-deliveries", &count.to_string()]);
        assert_eq!((done.code, done.out.as_str()), (Some(0), ""), "{done:?}");
        // Another partition may have been handed one before it was cancelled: it goes back unrun.
        let decisions = done.err.lines().filter(|l| l.contains("acquit::decision"));
        let (run, unrun): (Vec<_>, Vec<_>) = decisions.partition(|l| l.contains("outcome="));
        assert_eq!(run.len(), count, "{}", done.err);
        assert!(unrun.len() < partitions, "{}", done.err);
        let given_back = unrun.iter().all(|l| l.contains("disposition=release"));
        assert!(given_back, "{}", done.err);
        let (handled, left) = (home.get("results"), home.get("work"));
        assert_eq!((handled.len(), left.len()), (count, 30 - count));
        let attempts: Vec<_> = left
            .iter()
            .filter(|m| m["attempt"] != Value::Null)
            .collect();
        assert_eq!(attempts, [] as [&Value; 0]);
        let mut seen = [bodies(&handled), bodies(&left)].concat();
        seen.sort_unstable();
        assert_eq!(seen, all);
    }
}

#[test]
fn until_idle_waits_for_retries_that_are_delayed() {
    let home = Home::with_consumer(
        "reply-queue = \"results\"\n\
         retry = { max-attempts = 5, backoff-base = \"1s\", backoff-max = \"1s\" }\n\
         handler = { command = [\"sh\", \"-c\", \"[ $DELIVERY_ATTEMPT -ge 2 ] || exit 75; cat\"] }",
        "",
    );
    home.publish("work", &["a", "b"]);
    let done = home.acquit(&["run", "--until-idle"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.err.contains("drained (idle): clean"), "{}", done.err);
    assert_eq!(bodies(&home.get("results")), ["a", "b"]);
    assert_eq!(home.get("work"), [] as [Value; 0]);
}

#[test]
fn until_idle_ends_at_once_where_there_is_nothing() {
    let home = Home::with_consumer("handler = \"echo\"", "");
    let done = home.acquit(&["run", "--until-idle", "--json"]);
    assert_eq!(done.code, Some(0));
    let report: Value = serde_json::from_str(&done.out).expect("one object");
    assert_eq!(
        (&report["clean"], &report["reason"]),
        (&true.into(), &"idle".into())
    );
}
