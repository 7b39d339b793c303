//! `acquit check --connect` on a real broker.

use acquit::cli::{Exit, show_connect};
use acquit::transport::amqp::{AmqpOptions, AmqpUri, Secret};

use crate::place::Place;

async fn check(options: &AmqpOptions) -> (Exit, String) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let exit = show_connect(options, &[], false, &mut out, &mut err).await;
    out.extend(err);
    let text = String::from_utf8(out).expect("UTF-8");
    (exit.expect("written"), text)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_says_what_is_there_and_ends_by_the_class_of_what_is_not() {
    let place = Place::new().await;
    let (exit, text) = check(&place.options).await;
    assert_eq!(exit, Exit::Clean, "{text}");
    assert!(text.starts_with("RabbitMQ "), "{text}");
    assert!(text.contains("unknown without broker.management"), "{text}");

    place
        .vhost
        .delete_queue(place.vhost.name(), "words.dead")
        .await;
    let (exit, text) = check(&place.options).await;
    assert_eq!(exit, Exit::SubscriptionFailed, "{text}");
    assert!(text.contains("words.dead"), "{text}");
    let mut declaring = place.options.clone();
    declaring.declare = true;
    assert_eq!(check(&declaring).await.0, Exit::Clean);
    place.holds("words", 0).await;

    let mut stranger = place.options.clone();
    stranger.uris[0].password = Secret::new("wrong");
    let (exit, text) = check(&stranger).await;
    assert_eq!(exit, Exit::Connection, "{text}");
    assert!(!text.contains("wrong"), "{text}");
    let mut nobody = place.options.clone();
    nobody.uris = vec![AmqpUri::local(1)];
    assert_eq!(check(&nobody).await.0, Exit::Connection);
}
