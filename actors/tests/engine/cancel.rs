//! Cancelling one delivery, in each of its states.

use acquit_actors::model::{DeliveryId, RejectReason, RetryWay, names};
use acquit_actors::settlement::CancelKind;
use acquit_actors::testing::{PublishScript, ScriptedTransport, SettleScript, run_virtual};
use acquit_actors::{CommandError, Handle, InFlight};

use crate::support::{
    Runs, drain_clean, nothing_left, obedient, start, told, until, with_dead_letters, words,
};

const REJECT: CancelKind = CancelKind::Reject(RejectReason::Cancelled);

async fn one_in(handle: &Handle, state: &str) -> InFlight {
    let mut found = None;
    for _ in 0..10_000 {
        let all = handle.in_flight(100).await.unwrap();
        found = all.into_iter().find(|one| one.state == state);
        if found.is_some() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    found.unwrap_or_else(|| panic!("none is {state}"))
}

#[test]
fn what_waits_unstarted_is_rejected_or_released_without_a_run() {
    for (kind, word) in [(REJECT, "reject"), (CancelKind::Release, "release")] {
        run_virtual(async {
            let broker = ScriptedTransport::new();
            let runs = Runs::default();
            let spec = with_dead_letters(words(obedient(&runs)).with_permits(1));
            let handle = start(&broker, spec);
            broker.push("words", "ok 1000");
            let waiting = broker.push("words", "ok");
            until("one runs", async || runs.total() == 1).await;
            let one = one_in(&handle, "received").await;
            handle.cancel(one.delivery, kind).await.unwrap();
            broker.settled(2).await;
            assert_eq!(told(&broker), [word, "ack"]);
            assert_eq!(runs.of(waiting), 0);
            if word == "reject" {
                let letter = &broker.published()[0];
                let reason = letter.headers.get(names::REASON).unwrap().as_str();
                assert_eq!(reason, Some("cancelled"));
            }
            nothing_left(&handle).await;
            drain_clean(&handle, &broker).await;
        });
    }
}

#[test]
fn what_runs_is_aborted_and_then_settled_as_asked() {
    for (kind, word) in [(REJECT, "reject"), (CancelKind::Release, "release")] {
        run_virtual(async {
            let broker = ScriptedTransport::new();
            let runs = Runs::default();
            let handle = start(&broker, with_dead_letters(words(obedient(&runs))));
            broker.push("words", "never");
            let one = one_in(&handle, "running").await;
            handle.cancel(one.delivery, kind).await.unwrap();
            broker.settled(1).await;
            assert_eq!((told(&broker), runs.at_work()), (vec![word], 0));
            nothing_left(&handle).await;
            let ended = handle.cancel(one.delivery, kind).await;
            assert_eq!(ended, Err(CommandError::NoSuchDelivery(one.delivery)));
            drain_clean(&handle, &broker).await;
        });
    }
}

#[test]
fn what_is_held_for_a_retry_is_settled_as_asked() {
    for (kind, word) in [(REJECT, "reject"), (CancelKind::Release, "release")] {
        run_virtual(async {
            let broker = ScriptedTransport::new();
            let spec = words(obedient(&Runs::default())).with(|s| s.retry.way = RetryWay::Hold);
            let handle = start(&broker, spec);
            broker.push("words", "fail");
            let one = one_in(&handle, "holding").await;
            handle.cancel(one.delivery, kind).await.unwrap();
            broker.settled(1).await;
            assert_eq!(told(&broker), [word]);
            nothing_left(&handle).await;
            drain_clean(&handle, &broker).await;
        });
    }
}

#[test]
fn what_publishes_or_settles_is_past_cancelling() {
    for (state, wanted) in [("publishing", "ack"), ("settling", "ack")] {
        run_virtual(async {
            let broker = ScriptedTransport::new();
            let spec = words(obedient(&Runs::default()));
            let spec = spec.with(|spec| spec.reply_queue = Some("r".into()));
            match state {
                "publishing" => broker.answer_publishes(PublishScript::Silent),
                _ => broker.answer_settlements(SettleScript::Silent),
            }
            let handle = start(&broker, spec);
            broker.push("words", "ok");
            let one = one_in(&handle, state).await;
            handle.cancel(one.delivery, REJECT).await.unwrap();
            broker.answer_publishes(PublishScript::Confirm);
            broker.settled(1).await;
            assert_eq!(told(&broker), [wanted]);
            nothing_left(&handle).await;
            drain_clean(&handle, &broker).await;
        });
    }
}

#[test]
fn an_unknown_delivery_is_refused() {
    run_virtual(async {
        let broker = ScriptedTransport::new();
        let handle = start(&broker, words(obedient(&Runs::default())));
        let unknown = DeliveryId(99);
        let refused = handle.cancel(unknown, REJECT).await;
        assert_eq!(refused, Err(CommandError::NoSuchDelivery(unknown)));
        drain_clean(&handle, &broker).await;
    });
}
