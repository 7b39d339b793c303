//! The ledgers against each other.

use super::broker_kit::{Differences, HandlerLedger, Published, PublisherLedger, check};

#[test]
fn lost_doubled_and_invented_messages_are_named() {
    let mut published = PublisherLedger::default();
    let mut handled = HandlerLedger::default();
    for id in ["fine", "lost", "failed", "twice"] {
        published.note(id, Published::Unknown);
        published.note(id, Published::Confirmed);
    }
    published.note("late", Published::Confirmed);
    published.note("late", Published::Unknown);
    published.note("maybe", Published::Unknown);
    published.note("refused", Published::Refused);
    for id in ["fine", "failed", "twice", "twice", "refused", "invented"] {
        handled.start(id);
    }
    for id in ["fine", "twice", "twice"] {
        handled.finish(id);
    }
    let expected = Differences {
        lost: ["failed", "late", "lost"].map(str::to_owned).to_vec(),
        duplicated: vec![("twice".to_owned(), 2)],
        unexpected: ["invented", "refused"].map(str::to_owned).to_vec(),
    };
    assert_eq!(check(&published, &handled), expected);
    assert_eq!(published.count(Published::Unknown), 1);
    assert_eq!(handled.finished(), 2);
}
