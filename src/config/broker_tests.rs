//! A RabbitMQ in the configuration: whole files against whole error texts, and what is resolved.

use std::time::Duration;

use acquit_actors::model::{Capabilities, DeliveryCounting, OnRefused, RetryWay};

use super::*;
use crate::transport::amqp::Secret;

/// A `[broker]` from line 1 on, and a consumer at its end.
fn file(broker: &str, consumer: &str) -> String {
    format!(
        "[broker]\n{broker}\n[[consumer]]\nname = \"c\"\nqueue = \"q\"\nhandler = \"echo\"\n\
         handler-timeout = \"1s\"\n{consumer}\n"
    )
}

fn with_dead(broker: &str) -> String {
    file(broker, "dead-letter-queue = \"dead\"")
}

#[track_caller]
fn check(text: &str, expected: &[&str]) {
    let problems = match Plan::from_str(text, "c.toml") {
        Ok(plan) => plan.remarks,
        Err(error) => error.problems,
    };
    let told: Vec<_> = problems.iter().map(|p| p.line("c.toml".as_ref())).collect();
    assert_eq!(told, expected, "for:\n{text}");
}

#[track_caller]
fn plan(text: &str) -> Plan {
    Plan::from_str(text, "/etc/c.toml").unwrap_or_else(|error| panic!("{error}\nfor:\n{text}"))
}

#[test]
fn an_address_that_is_none_is_refused_without_a_word_of_the_password() {
    for (url, expected) in [
        (
            "amqp://guest:hunter2@ss@127.0.0.1:5672/%2F",
            "more than one @: in a user, password or virtual host write it %40, or use the keys \
             user and password-file",
        ),
        (
            "amqp://u:hunter2#x@h",
            "a raw #: in a user, password or virtual host write it %23, or use the keys user and \
             password-file",
        ),
        (
            "amqp://u:hunter2@h//test",
            "more than one / after the host: a / in the name of a virtual host is written %2F, \
             such as /v%2Fh; the default one is /%2F",
        ),
        (
            "amqp://u:hunter2@h?hartbeat=3",
            "unknown option `hartbeat`; known are heartbeat, connection_timeout, auth_mechanism",
        ),
        (
            "amqps://u:hunter2@h?verify=verify_none",
            "verify=verify_none is refused: without a check of the certificate anyone on the way \
             can read along; name the certificate to trust in broker.ca-file",
        ),
    ] {
        let text = with_dead(&format!("url = \"{url}\""));
        check(
            &text,
            &[&format!("c.toml:2:1: error: broker.url: {expected}")],
        );
    }
    check(
        &with_dead("url = \"nats://u:hunter2@h\""),
        &[
            "c.toml:2:1: error: broker.url: NATS JetStream (nats:) is not built yet; use \
             \"embedded:<dir>\", \"memory:\" or \"amqp://host:5672/vhost\"",
        ],
    );
    check(
        &with_dead("url = \"rabbit.example\""),
        &[
            "c.toml:2:1: error: broker.url: found a text, expected a broker such as \
             \"embedded:./data\", \"memory:\" or \"amqp://host:5672/vhost\"",
        ],
    );
}

#[test]
fn what_is_left_out_has_its_default() {
    let plan = plan(&with_dead("url = \"amqp://u:p@h1,h2:5673/v\""));
    assert_eq!(plan.remarks, []);
    let BrokerUrl::Amqp(uris) = &plan.broker.url else {
        panic!("no RabbitMQ");
    };
    let shown: Vec<_> = uris.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["amqp://u@h1:5672/v", "amqp://u@h2:5673/v"]);
    assert_eq!(uris[1].password, Secret::new("p"));
    let amqp = plan.broker.amqp.expect("a RabbitMQ");
    assert_eq!(amqp.connection_name, "acquit");
    assert_eq!(amqp.heartbeat, Duration::from_secs(10));
    assert_eq!(amqp.connect_timeout, Duration::from_secs(10));
    assert_eq!((amqp.first_connect_tries, amqp.declare), (1, false));
    assert_eq!(amqp.queue_type, QueueKind::Quorum);
    assert_eq!((amqp.external, amqp.management), (false, None));
    assert_eq!(amqp.linger, Duration::from_secs(1));
    assert_eq!(amqp.publish_window, 1024);
    let consumer = &plan.consumers[0];
    assert_eq!((consumer.priority, consumer.single_active), (None, false));
    assert_eq!(consumer.retry.way, RetryWay::Ladder);
    // A dead letter that even trimmed is refused has nowhere to go: it is kept.
    assert_eq!(consumer.on_refused, OnRefused::Park);
}

#[test]
fn consumers_of_a_rabbitmq_have_keys_of_their_own() {
    let url = "url = \"amqp://h\"";
    let keys = "on-exhausted = \"drop\"\norder = \"partition\"\npermits = 1\npriority = -3\n\
                retry = { via = \"hold\" }";
    let consumer = plan(&file(url, keys)).consumers.remove(0);
    assert_eq!(consumer.on_exhausted, Some(OnExhausted::Drop));
    assert_eq!(consumer.on_refused, OnRefused::Reject);
    assert_eq!(
        (consumer.priority, consumer.single_active),
        (Some(-3), true)
    );
    assert_eq!(consumer.retry.way, RetryWay::Hold);
    let keys = format!("{keys}\nsingle-active-consumer = false");
    assert!(!plan(&file(url, &keys)).consumers[0].single_active);
    let argument = "found \"x-priority\" in it, expected a table of names and texts, whole numbers, \
                    true or false, such as { x-cancel-on-ha-failover = true }; a priority has a key \
                    of its own, and streams are not consumed";
    check(
        &file(
            url,
            "on-exhausted = \"drop\"\nconsume-arguments = { x-priority = 1 }",
        ),
        &[&format!(
            "c.toml:9:1: error: consumer[0].consume-arguments: {argument}"
        )],
    );
    check(
        &file(url, "on-exhausted = \"brocker\"\npriority = 1.5"),
        &[
            "c.toml:8:1: error: consumer[0].on-exhausted: found \"brocker\", expected \"broker\" \
             or \"drop\"; did you mean \"broker\"?",
            "c.toml:9:1: error: consumer[0].priority: found the number 1.5, expected a whole \
             number from -2147483648 to 2147483647",
        ],
    );
}

#[test]
fn what_becomes_of_dead_messages_must_be_chosen() {
    check(
        &file("url = \"amqp://h\"", ""),
        &[
            "c.toml:3:1: error: consumer[0].on-exhausted: missing: with RabbitMQ, say what becomes \
             of a message that is rejected or used up its attempts; write dead-letter-queue = \
             \"<queue>\" to keep it with its reason, on-exhausted = \"broker\" to reject it (the \
             queue's own dead-letter exchange gets it, if it has one; else it is gone), or \
             on-exhausted = \"drop\"",
        ],
    );
    // It is known then, and not told again.
    let chosen = plan(&file("url = \"amqp://h\"", "on-exhausted = \"broker\""));
    let rabbit = Capabilities {
        confirms_settlement: false,
        delayed_requeue: false,
        extend: false,
        dead_list: false,
        late_ack: false,
        counting: DeliveryCounting::FailuresApart,
        durable: true,
    };
    assert_eq!(chosen.check_capabilities(&rabbit), []);
}

#[test]
fn who_we_are_is_said_once_and_whole() {
    let url = "url = \"amqp://u:hunter2@h\"";
    let twice = "broker.url names a user too; name user and password in one of the two places";
    check(
        &with_dead(&format!("{url}\nuser = \"u\"\npassword-file = \"p\"")),
        &[&format!("c.toml:3:1: error: broker.user: {twice}")],
    );
    check(
        &with_dead(&format!("{url}\npassword-file = \"p\"")),
        &[&format!("c.toml:3:1: error: broker.password-file: {twice}")],
    );
    for url in ["amqp://u@h", "amqp://u:@h"] {
        check(
            &with_dead(&format!("url = \"{url}\"")),
            &[
                "c.toml:2:1: warning: broker.url: names a user without a password, and RabbitMQ's \
                 own users need one; write \"amqp://user:password@host\", or leave the user out of \
                 it and set user and password-file",
            ],
        );
    }
    let url = "url = \"amqp://h\"";
    check(
        &with_dead(&format!("{url}\nuser = \"u\"")),
        &[
            "c.toml:3:1: error: broker.user: has no password; add password-file, the path of a \
             file that holds it",
        ],
    );
    check(
        &with_dead(&format!("{url}\npassword-file = \"p\"")),
        &["c.toml:3:1: error: broker.password-file: has no user; add user"],
    );
    check(
        &with_dead(&format!(
            "{url}\nuser = \"\"\npassword-file = [\"hunter2\"]"
        )),
        &[
            "c.toml:3:1: error: broker.user: found an empty text, expected a name of 1 to 200 \
             bytes without control characters",
            "c.toml:4:1: error: broker.password-file: found a list, expected a path such as \
             \"./data\"",
        ],
    );
}

#[test]
fn a_password_is_read_from_its_file() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("c.toml");
    let keys = "url = \"amqp://h1,h2\"\nuser = \"w@rker\"\npassword-file = \"pass\"\n\
                management = \"http://h:15672\"";
    let text = format!("worker.state-dir = \"s\"\n{}", with_dead(keys));
    std::fs::write(&path, text).expect("written");
    let told = || {
        let error = Plan::from_file(&path).expect_err("not valid").to_string();
        let folder = folder.path().to_str().expect("UTF-8");
        assert!(!error.contains("hunter2"), "{error}");
        error.replace(folder, "DIR")
    };
    let refused = |reason: &str| {
        let key = "DIR/c.toml:5:1: error: broker.password-file";
        assert_eq!(told(), format!("{key}: DIR/pass {reason}"));
    };
    refused("does not exist");
    // Who asks a running process does not need it.
    let alone = Plan::from_file_alone(&path).expect("valid");
    let password_of = |plan: &Plan| match &plan.broker.url {
        BrokerUrl::Amqp(uris) => uris[1].password.reveal().to_owned(),
        _ => panic!("no RabbitMQ"),
    };
    assert_eq!(password_of(&alone), "");

    let write = |bytes: &[u8]| std::fs::write(folder.path().join("pass"), bytes).expect("written");
    write(b"\n");
    refused("is empty; expected a password on its one line");
    let lines = "has more than one line, or a control character; expected a password on its one \
                 line";
    write(b"hunter2\nhunter2\n");
    refused(lines);
    write(b"hunter2\xFF");
    refused("is not UTF-8");
    write(&[b'x'; 5000]);
    refused("is longer than 4 KiB");
    for end in ["", "\n", "\r\n"] {
        write(format!(" a#$@:/?%& ü{end}").as_bytes());
        let plan = Plan::from_file(&path).expect("valid");
        assert_eq!(password_of(&plan), " a#$@:/?%& ü");
        assert_eq!(
            password_of(&Plan::from_file_alone(&path).expect("valid")),
            " a#$@:/?%& ü"
        );
        assert!(!format!("{plan:?}").contains("a#$"));
        let management = plan.broker.amqp.and_then(|amqp| amqp.management);
        let management = management.expect("given");
        assert_eq!(management.user, "w@rker");
        assert_eq!(management.password.reveal(), " a#$@:/?%& ü");
    }
}

#[test]
fn a_url_and_a_key_must_not_contradict_each_other() {
    let url = "url = \"amqps://h?heartbeat=9&connection_timeout=2500&auth_mechanism=plain\"";
    check(
        &with_dead(&format!(
            "{url}\nheartbeat = \"7s\"\nconnect-timeout = \"3s\"\nexternal = true\n\
             cert-file = \"c\"\nkey-file = \"k\""
        )),
        &[
            "c.toml:3:1: error: broker.heartbeat: 7s contradicts heartbeat=9 in broker.url; leave \
             one of them out",
            "c.toml:4:1: error: broker.connect-timeout: 3s contradicts connection_timeout=2500 in \
             broker.url; leave one of them out",
            "c.toml:5:1: error: broker.external: true contradicts auth_mechanism=plain in \
             broker.url; leave one of them out",
        ],
    );
    // The default counts, once it is written down.
    check(
        &with_dead("url = \"amqp://h?heartbeat=9\"\nheartbeat = \"10s\""),
        &[
            "c.toml:3:1: error: broker.heartbeat: 10s contradicts heartbeat=9 in broker.url; \
             leave one of them out",
        ],
    );
    let same = format!("{url}\nheartbeat = \"9s\"\nconnect-timeout = \"2500ms\"\nexternal = false");
    let amqp = plan(&with_dead(&same)).broker.amqp.expect("a RabbitMQ");
    assert_eq!(amqp.heartbeat, Duration::from_secs(9));
    assert_eq!(amqp.connect_timeout, Duration::from_millis(2500));
    assert!(!amqp.external);
}

#[test]
fn a_heartbeat_is_whole_seconds_and_zero_is_warned_of() {
    let off = "a heartbeat of 0 turns heartbeats off: a broker that is gone without a word is \
               noticed late";
    check(
        &with_dead("url = \"amqp://h\"\nheartbeat = \"0s\""),
        &[&format!("c.toml:3:1: warning: broker.heartbeat: {off}")],
    );
    check(
        &with_dead("url = \"amqp://h?heartbeat=0\""),
        &[&format!("c.toml:2:1: warning: broker.url: {off}")],
    );
    check(
        &with_dead("url = \"amqp://h\"\nheartbeat = \"1500ms\""),
        &[
            "c.toml:3:1: error: broker.heartbeat: found \"1500ms\", expected whole seconds such as \
             \"10s\" or \"2m\", at most 65535",
        ],
    );
}

#[test]
fn certificates_need_tls_and_each_other() {
    let plain = "broker.url is amqp:, which is not encrypted; write amqps:";
    check(
        &with_dead("url = \"amqp://h\"\nca-file = \"ca\"\ncert-file = \"c\"\nexternal = true"),
        &[
            &format!("c.toml:3:1: error: broker.ca-file: {plain}"),
            &format!("c.toml:4:1: error: broker.cert-file: {plain}"),
            "c.toml:4:1: error: broker.cert-file: needs key-file, the certificate's key",
            "c.toml:5:1: error: broker.external: a login by certificate (external) needs TLS; \
             write amqps:",
        ],
    );
    check(
        &with_dead("url = \"amqps://h\"\nkey-file = \"k\""),
        &["c.toml:3:1: error: broker.key-file: needs cert-file, the key's certificate"],
    );
    check(
        &with_dead("url = \"amqps://h?auth_mechanism=external\""),
        &[
            "c.toml:2:1: error: broker.url: a login by certificate (external) needs cert-file and \
             key-file",
        ],
    );
    check(
        &with_dead(
            "url = \"amqps://h\"\nexternal = true\ncert-file = \"c\"\nkey-file = \"k\"\n\
             user = \"u\"\npassword-file = \"p\"",
        ),
        &[
            "c.toml:7:1: warning: broker.password-file: has no effect where a certificate logs in \
             (external)",
        ],
    );
}

#[test]
fn the_management_api_is_an_address_with_a_user_beside_it() {
    let url = "url = \"amqp://h\"";
    check(
        &with_dead(&format!("{url}\nmanagement = \"http://u:hunter2@h:15672\"")),
        &[
            "c.toml:3:1: error: broker.management: has a user in it; use management-user and \
             management-password-file",
        ],
    );
    check(
        &with_dead(&format!("{url}\nmanagement = \"h:15672\"")),
        &[
            "c.toml:3:1: error: broker.management: found a text, expected an address such as \
             \"http://127.0.0.1:15672\"",
        ],
    );
    check(
        &with_dead(&format!(
            "{url}\nmanagement = \"http://h\"\nmanagement-user = \"m\""
        )),
        &[
            "c.toml:4:1: error: broker.management-user: has no password; add \
             management-password-file, the path of a file that holds it",
        ],
    );
    check(
        &with_dead(&format!("{url}\nmanagement-user = \"m\"")),
        &["c.toml:3:1: warning: broker.management-user: has no effect without broker.management"],
    );
}

#[test]
fn keys_of_the_other_kind_of_broker_are_told() {
    let amqp_only = "has no effect with this broker.url: it is for RabbitMQ (amqp:, amqps:)";
    check(
        &file(
            "url = \"memory:\"\nuser = \"u\"\nheartbeat = \"3s\"\ndeclare = true",
            "priority = 1\non-exhausted = \"drop\"",
        ),
        &[
            &format!("c.toml:3:1: warning: broker.user: {amqp_only}"),
            &format!("c.toml:4:1: warning: broker.heartbeat: {amqp_only}"),
            &format!("c.toml:5:1: warning: broker.declare: {amqp_only}"),
            &format!("c.toml:11:1: warning: consumer[0].priority: {amqp_only}"),
            &format!("c.toml:12:1: warning: consumer[0].on-exhausted: {amqp_only}"),
        ],
    );
    let embedded = "has no effect with RabbitMQ: it is for the embedded broker";
    check(
        &format!(
            "{}[[feed]]\nqueue = \"q\"\nfile = \"f\"\n",
            with_dead("url = \"amqp://h\"\nsync = \"interval\"\nlease = \"9s\"")
        ),
        &[
            &format!("c.toml:3:1: warning: broker.sync: {embedded}"),
            &format!("c.toml:4:1: warning: broker.lease: {embedded}"),
            "c.toml:13:1: error: feed[0].file: a feed needs the embedded broker, whose store keeps \
             how far the file was read; remove the [[feed]]",
        ],
    );
}
