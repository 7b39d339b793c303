//! The contract, on memory and on disk alike.

use std::time::Duration;

use acquit::transport::embedded::EmbeddedError;
use acquit_actors::model::{Disposition, Headers, Outgoing, PartitionId, RejectReason, names};
use acquit_actors::ports::{FeedCursor, PublishReply, SettleResult, SourceError, Transport};
use acquit_actors::settlement::SettleFailure;

use super::kit::*;

macro_rules! on_both {
    ($($name:ident),* $(,)?) => {
        mod memory { $(#[test] fn $name() { super::$name(super::Kit::memory()); })* }
        mod durable { $(#[test] fn $name() { super::$name(super::Kit::durable()); })* }
    };
}

on_both!(
    messages_come_in_order_and_leave_when_acknowledged,
    a_batch_is_handed_out_at_once,
    credit_bounds_what_is_handed_out,
    a_released_message_comes_back_to_its_place_uncounted,
    a_requeued_message_waits_and_counts_a_failure,
    a_rejected_message_is_on_the_dead_list,
    a_dead_message_can_be_replayed_or_purged,
    a_lease_that_runs_out_gives_the_message_to_the_next,
    an_extended_lease_holds,
    a_dropped_source_gives_back_what_it_held,
    a_cancelled_source_waits_and_its_settlers_work,
    keys_stay_in_their_partition_and_the_rest_goes_round,
    a_changed_number_of_partitions_is_refused,
    an_unknown_queue_is_made_by_a_publish,
    a_feed_and_its_cursor_go_together,
    a_message_arrives_as_it_was_published,
    a_source_that_waits_is_woken_by_a_publish,
    a_source_that_waits_is_woken_by_a_due_time,
    peek_leaves_and_take_removes,
    a_closed_broker_says_so,
    a_dropped_receive_loses_nothing,
    a_wall_clock_that_jumps_changes_no_delay,
    a_backlog_larger_than_the_window_comes_in_order,
    two_sources_share_a_partition,
);

fn messages_come_in_order_and_leave_when_acknowledged(kit: Kit) {
    for body in ["a", "b", "c"] {
        kit.publish("q", body);
    }
    let mut source = kit.source("q");
    let arrivals = recv_all(&mut source, 3);
    assert_eq!(bodies(&arrivals), ["a", "b", "c"]);
    assert_eq!(kit.stats("q"), (0, 0, 3, 0));
    arrivals.into_iter().for_each(ack);
    assert_eq!(kit.stats("q"), (0, 0, 0, 0));
    assert!(is_idle(&mut source));
}

fn a_batch_is_handed_out_at_once(kit: Kit) {
    (0..50).for_each(|n| kit.publish("q", &n.to_string()));
    let mut source = kit.source("q");
    assert_eq!(recv(&mut source, 20).len(), 20);
    assert_eq!(recv(&mut source, 100).len(), 30);
}

fn credit_bounds_what_is_handed_out(kit: Kit) {
    (0..10).for_each(|n| kit.publish("q", &n.to_string()));
    let mut source = kit.source("q");
    source.set_credit(3);
    let mut held = recv(&mut source, 100);
    assert_eq!(held.len(), 3);
    assert!(is_idle(&mut source));
    ack(held.remove(0));
    assert_eq!(bodies(&recv(&mut source, 100)), ["3"]);
    source.set_credit(5);
    assert_eq!(bodies(&recv(&mut source, 100)), ["4", "5"]);
}

fn a_released_message_comes_back_to_its_place_uncounted(kit: Kit) {
    for body in ["a", "b", "c"] {
        kit.publish("q", body);
    }
    let mut source = kit.source("q");
    let mut held = recv(&mut source, 2);
    let first = held.remove(0);
    let id = first.delivery.id.clone();
    settle(first.settler, Disposition::Release);
    let again = recv_all(&mut source, 2);
    assert_eq!(bodies(&again), ["a", "c"]);
    let again = &again[0].delivery;
    assert_eq!(again.attempt.get(), 1);
    assert_eq!(again.delivery_count, Some(2));
    assert!(again.redelivered);
    assert_eq!(again.id, id);
}

fn a_requeued_message_waits_and_counts_a_failure(kit: Kit) {
    kit.publish("q", "a");
    let mut source = kit.source("q");
    let arrival = recv(&mut source, 1).remove(0);
    let after = Duration::from_secs(10);
    settle(arrival.settler, Disposition::Requeue { after });
    assert_eq!(kit.stats("q"), (0, 1, 0, 0));
    assert!(is_idle(&mut source));
    kit.clock.advance(Duration::from_millis(9_999));
    assert!(is_idle(&mut source));
    kit.clock.advance(Duration::from_millis(1));
    let arrival = recv(&mut source, 1).remove(0);
    assert_eq!(arrival.delivery.attempt.get(), 2);
    assert_eq!(arrival.delivery.delivery_count, Some(2));
    let after = Duration::ZERO;
    settle(arrival.settler, Disposition::Requeue { after });
    assert_eq!(recv(&mut source, 1)[0].delivery.attempt.get(), 3);
}

fn a_rejected_message_is_on_the_dead_list(kit: Kit) {
    kit.publish("q", "a");
    kit.publish("q", "b");
    let mut source = kit.source("q");
    for arrival in recv_all(&mut source, 2) {
        let reason = RejectReason::Exhausted;
        settle(arrival.settler, Disposition::Reject { reason });
    }
    assert_eq!(kit.stats("q"), (0, 0, 0, 2));
    let dead = block(kit.transport.dead_list(&"q".into(), 10)).unwrap();
    assert_eq!(dead.len(), 2);
    assert_eq!(dead[0].reason, "exhausted");
    assert_eq!(dead[0].died_millis, WALL);
    assert_eq!(&dead[0].delivery.body[..], b"a");
    assert_eq!(&dead[1].delivery.body[..], b"b");
    assert_eq!(
        block(kit.transport.dead_list(&"q".into(), 1))
            .unwrap()
            .len(),
        1
    );
}

fn a_dead_message_can_be_replayed_or_purged(kit: Kit) {
    kit.publish("q", "a");
    kit.publish("q", "b");
    let mut source = kit.source("q");
    for arrival in recv_all(&mut source, 2) {
        let reason = RejectReason::Handler;
        settle(arrival.settler, Disposition::Reject { reason });
    }
    let queue = "q".into();
    let dead = block(kit.transport.dead_list(&queue, 10)).unwrap();
    block(kit.transport.replay_dead(&queue, &dead[0])).unwrap();
    block(
        kit.transport
            .purge_dead(&queue, PartitionId(0), dead[1].seq),
    )
    .unwrap();
    block(
        kit.transport
            .purge_dead(&queue, PartitionId(0), dead[1].seq),
    )
    .unwrap();
    assert_eq!(kit.stats("q"), (1, 0, 0, 0));
    let again = recv(&mut source, 1).remove(0).delivery;
    assert_eq!(&again.body[..], b"a");
    assert_eq!((again.attempt.get(), again.replay.0), (1, 1));
}

fn a_lease_that_runs_out_gives_the_message_to_the_next(kit: Kit) {
    kit.publish("q", "a");
    let mut source = kit.source("q");
    let mut late = recv(&mut source, 1).remove(0);
    kit.clock.advance(LEASE);
    let again = recv(&mut source, 1).remove(0);
    assert_eq!(again.delivery.attempt.get(), 1);
    assert!(late.settler.extend().is_err());
    let result = settle(late.settler, Disposition::Ack);
    assert!(matches!(result, SettleResult::Failed(SettleFailure::Gone)));
    ack(again);
    assert_eq!(kit.stats("q"), (0, 0, 0, 0));
}

fn an_extended_lease_holds(kit: Kit) {
    kit.publish("q", "a");
    let mut source = kit.source("q");
    let mut arrival = recv(&mut source, 1).remove(0);
    for _ in 0..5 {
        kit.clock.advance(LEASE / 2 + Duration::from_secs(1));
        arrival.settler.extend().unwrap();
        assert!(is_idle(&mut source));
    }
    kit.clock.advance(LEASE - Duration::from_millis(1));
    ack(arrival);
}

fn a_dropped_source_gives_back_what_it_held(kit: Kit) {
    kit.publish("q", "a");
    kit.publish("q", "b");
    let mut source = kit.source("q");
    let mut held = recv_all(&mut source, 2);
    ack(held.remove(0));
    drop(source);
    let result = settle(held.remove(0).settler, Disposition::Ack);
    assert!(matches!(result, SettleResult::Failed(SettleFailure::Gone)));
    let mut source = kit.source("q");
    let again = recv(&mut source, 10).remove(0);
    assert_eq!(&again.delivery.body[..], b"b");
    assert_eq!(again.delivery.attempt.get(), 1);
    block(source.close());
    assert_eq!(kit.stats("q"), (1, 0, 0, 0));
}

fn a_cancelled_source_waits_and_its_settlers_work(kit: Kit) {
    kit.publish("q", "a");
    kit.publish("q", "b");
    let mut source = kit.source("q");
    let arrival = recv(&mut source, 1).remove(0);
    block(source.cancel()).unwrap();
    assert!(is_idle(&mut source));
    ack(arrival);
    assert_eq!(kit.stats("q"), (1, 0, 0, 0));
    block(source.resume()).unwrap();
    ack(recv(&mut source, 1).remove(0));
}

fn keys_stay_in_their_partition_and_the_rest_goes_round(kit: Kit) {
    kit.queue("q", 4);
    for round in 0..3 {
        for key in 0..20 {
            let body = format!("{key}:{round}");
            let message = Outgoing::new("q".into(), body).with_key(format!("key {key}"));
            publish(&kit.transport, message).unwrap();
        }
    }
    let mut where_is = std::collections::HashMap::new();
    for partition in 0..4 {
        let mut source = block(kit.transport.open_source(spec("q", partition, 4))).unwrap();
        let stats = block(kit.transport.stats(&"q".into())).unwrap();
        let ready = stats.partitions[partition as usize].ready;
        for arrival in recv_all(&mut source, usize::try_from(ready).unwrap()) {
            let body = String::from_utf8(arrival.delivery.body.to_vec()).unwrap();
            let key = body.split(':').next().unwrap().to_owned();
            assert_eq!(*where_is.entry(key).or_insert(partition), partition);
            ack(arrival);
        }
    }
    assert_eq!(where_is.len(), 20);
    let used: std::collections::HashSet<_> = where_is.values().collect();
    assert!(used.len() > 1);
    (0..40).for_each(|n| kit.publish("q", &n.to_string()));
    let stats = block(kit.transport.stats(&"q".into())).unwrap();
    assert!(stats.partitions.iter().all(|p| p.ready >= 9), "{stats:?}");
}

fn a_changed_number_of_partitions_is_refused(kit: Kit) {
    kit.queue("q", 4);
    let asked = std::num::NonZeroU32::new(3).unwrap();
    let error = block(kit.transport.ensure_queue(&"q".into(), asked)).unwrap_err();
    assert!(matches!(
        error,
        EmbeddedError::PartitionsChanged {
            stored: 4,
            asked: 3,
            ..
        }
    ));
    let Err(error) = block(kit.transport.open_source(spec("q", 0, 3))) else {
        panic!("refused");
    };
    assert!(!error.is_transient());
    assert!(error.to_string().contains("4 partitions and 3"), "{error}");
}

fn an_unknown_queue_is_made_by_a_publish(kit: Kit) {
    kit.publish("replies", "a");
    assert_eq!(kit.transport.queues(), ["replies".into()]);
    assert_eq!(kit.stats("replies"), (1, 0, 0, 0));
    assert!(block(kit.transport.stats(&"nothing".into())).is_err());
}

fn a_feed_and_its_cursor_go_together(kit: Kit) {
    let publisher = kit.transport.publisher();
    assert_eq!(block(publisher.feed_cursor("f")).unwrap(), None);
    let cursor = FeedCursor {
        feed: "f".to_owned(),
        offset: 100,
        line: 2,
        bad: 1,
    };
    let messages = vec![
        Outgoing::new("q".into(), "a"),
        Outgoing::new("q".into(), "b"),
    ];
    let (reply, answer) = PublishReply::channel();
    publisher.publish_feed(messages, cursor.clone(), reply);
    block(answer).unwrap().unwrap();
    assert_eq!(block(publisher.feed_cursor("f")).unwrap(), Some(cursor));
    assert_eq!(kit.stats("q").0, 2);
}

fn a_message_arrives_as_it_was_published(kit: Kit) {
    let mut headers = Headers::new();
    headers.set("x", "y");
    headers.set(names::ATTEMPT, 3);
    let mut message = Outgoing::new("q".into(), "body")
        .with_id("mine")
        .with_key("k")
        .with_headers(headers.clone());
    message.content_type = Some("text/plain".to_owned());
    message.correlation_id = Some("c".to_owned());
    publish(&kit.transport, message).unwrap();
    kit.publish("q", "plain");
    let mut source = kit.source("q");
    let arrivals = recv_all(&mut source, 2);
    let seen = &arrivals[0].delivery;
    assert_eq!(seen.id, Some("mine".into()));
    assert_eq!(seen.key.as_deref(), Some("k"));
    assert_eq!(seen.headers, headers);
    assert_eq!(seen.content_type.as_deref(), Some("text/plain"));
    assert_eq!(seen.correlation_id.as_deref(), Some("c"));
    assert_eq!(seen.attempt.get(), 1, "the store counts, a header does not");
    assert_eq!(arrivals[0].lease, Some(LEASE));
    let own = arrivals[1].delivery.id.clone().unwrap();
    assert!(own.as_str().starts_with("q/0/"), "{own}");
}

fn a_source_that_waits_is_woken_by_a_publish(kit: Kit) {
    let mut source = kit.source("q");
    let waiting = std::thread::spawn(move || recv(&mut source, 1).len());
    kit.publish("q", "a");
    assert_eq!(waiting.join().unwrap(), 1);
}

fn a_source_that_waits_is_woken_by_a_due_time(kit: Kit) {
    kit.publish("q", "a");
    let mut source = kit.source("q");
    let arrival = recv(&mut source, 1).remove(0);
    let after = Duration::from_secs(5);
    settle(arrival.settler, Disposition::Requeue { after });
    let (ready, started) = std::sync::mpsc::channel();
    let waiting = std::thread::spawn(move || {
        ready.send(()).unwrap();
        recv(&mut source, 1).len()
    });
    started.recv().unwrap();
    kit.clock.advance(after);
    assert_eq!(waiting.join().unwrap(), 1);
}

fn peek_leaves_and_take_removes(kit: Kit) {
    for body in ["a", "b", "c"] {
        kit.publish("q", body);
    }
    let queue = "q".into();
    kit.clock.advance(Duration::from_secs(7));
    let stats = block(kit.transport.stats(&queue)).unwrap().total();
    assert_eq!(stats.oldest_age, Some(Duration::from_secs(7)));
    let peeked = block(kit.transport.peek(&queue, 2)).unwrap();
    assert_eq!(peeked.len(), 2);
    assert_eq!(&peeked[1].delivery.body[..], b"b");
    assert_eq!(kit.stats("q"), (3, 0, 0, 0));
    let taken = block(kit.transport.take(&queue, 2)).unwrap();
    assert_eq!(taken.len(), 2);
    assert_eq!(&taken[0].body[..], b"a");
    assert_eq!(kit.stats("q"), (1, 0, 0, 0));
    assert_eq!(block(kit.transport.take(&queue, 5)).unwrap().len(), 1);
    assert_eq!(block(kit.transport.take(&queue, 5)).unwrap().len(), 0);
}

fn a_closed_broker_says_so(kit: Kit) {
    kit.publish("q", "a");
    let mut source = kit.source("q");
    let arrival = recv(&mut source, 1).remove(0);
    block(kit.transport.close()).unwrap();
    block(kit.transport.close()).unwrap();
    assert!(publish(&kit.transport, Outgoing::new("q".into(), "b")).is_err());
    let result = settle(arrival.settler, Disposition::Ack);
    assert!(matches!(result, SettleResult::Failed(SettleFailure::Gone)));
    assert!(matches!(
        try_recv(&mut source, 1),
        Err(SourceError::ChannelLost(_))
    ));
}

fn a_dropped_receive_loses_nothing(kit: Kit) {
    let mut source = kit.source("q");
    for n in 0..20 {
        assert!(is_idle(&mut source));
        kit.publish("q", &n.to_string());
        let arrival = recv(&mut source, 1).remove(0);
        assert_eq!(arrival.delivery.body, n.to_string());
        ack(arrival);
    }
}

fn a_wall_clock_that_jumps_changes_no_delay(kit: Kit) {
    let mut source = kit.source("q");
    for (n, wall) in [0, WALL + 1_000_000_000, u64::MAX, 5]
        .into_iter()
        .enumerate()
    {
        kit.publish("q", &n.to_string());
        let arrival = recv(&mut source, 1).remove(0);
        let after = Duration::from_secs(5);
        settle(arrival.settler, Disposition::Requeue { after });
        kit.clock.set_wall_millis(wall);
        kit.clock.advance(Duration::from_millis(4_999));
        assert!(is_idle(&mut source), "wall {wall}");
        kit.clock.advance(Duration::from_millis(1));
        ack(recv(&mut source, 1).remove(0));
    }
}

fn a_backlog_larger_than_the_window_comes_in_order(kit: Kit) {
    let count = 2_500;
    let publisher = kit.transport.publisher();
    let answers: Vec<_> = (0..count)
        .map(|n: u32| {
            let (reply, answer) = PublishReply::channel();
            publisher.publish(Outgoing::new("q".into(), n.to_string()), reply);
            answer
        })
        .collect();
    for answer in answers {
        block(answer).unwrap().unwrap();
    }
    assert_eq!(kit.stats("q"), (u64::from(count), 0, 0, 0));
    let mut source = kit.source("q");
    let mut next = 0;
    while next < count {
        // Returns and fresh ones interleave: the order by sequence holds.
        let mut held = recv(&mut source, 100);
        let last = held.pop().unwrap();
        let kept = bodies(&held);
        for (n, body) in kept.iter().enumerate() {
            assert_eq!(*body, (next as usize + n).to_string());
        }
        next += u32::try_from(held.len()).unwrap();
        if held.is_empty() {
            next += 1;
            ack(last);
        } else {
            settle(last.settler, Disposition::Release);
        }
        held.into_iter().for_each(ack);
    }
    assert_eq!(kit.stats("q"), (0, 0, 0, 0));
}

fn two_sources_share_a_partition(kit: Kit) {
    (0..4).for_each(|n| kit.publish("q", &n.to_string()));
    let (mut one, mut two) = (kit.source("q"), kit.source("q"));
    let first = recv(&mut one, 2);
    let second = recv(&mut two, 2);
    assert_eq!(bodies(&first), ["0", "1"]);
    assert_eq!(bodies(&second), ["2", "3"]);
    drop(one);
    assert_eq!(bodies(&recv(&mut two, 9)), ["0", "1"]);
}

#[test]
fn returns_are_counted_apart_over_reopenings_and_a_crash_is_none() {
    let mut kit = Kit::durable();
    kit.queue("q", 1);
    kit.publish("q", "kept");
    for round in 1..=6 {
        let mut source = kit.source("q");
        let arrival = recv(&mut source, 1).remove(0);
        assert_eq!(arrival.delivery.delivery_count, Some(round));
        assert_eq!(arrival.delivery.returns, round - 1);
        // In turns: a word of ours, and a source that is closed with the delivery in hand.
        if round % 2 == 0 {
            settle(arrival.settler, Disposition::Release);
        }
        drop(source);
        kit = kit.reopened();
    }
}
