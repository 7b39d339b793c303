//! Addresses in tables, and what no address may do.

use proptest::prelude::*;

use super::*;

#[track_caller]
fn vhost_of(path: &str, expected: &str) {
    let text = format!("amqp://user:pass@host:5672{path}");
    let uri = AmqpUri::parse(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
    assert_eq!(uri.vhost, expected, "{text}");
}

#[track_caller]
fn refused(text: &str, expected: &str) {
    let error = AmqpUri::parse_list(text).expect_err(text);
    assert_eq!(error.to_string(), expected, "{text}");
}

#[test]
fn what_is_left_out_has_a_default() {
    assert_eq!(
        AmqpUri::parse("amqp://127.0.0.1:5672"),
        Ok(AmqpUri::local(5672))
    );
    let uri = AmqpUri::parse("AMQPS://rabbit.example").expect("valid");
    assert_eq!((uri.tls, uri.port), (true, 5671));
    assert_eq!(
        (uri.user.as_str(), uri.password.reveal()),
        ("guest", "guest")
    );
    let uri = AmqpUri::parse("amqp://user@host").expect("valid");
    assert_eq!((uri.user.as_str(), uri.password.reveal()), ("user", ""));
    assert!(uri.has_user);
    assert_eq!(
        (uri.heartbeat, uri.connection_timeout, uri.external),
        (None, None, None)
    );
}

#[test]
fn a_path_is_one_virtual_host() {
    for (path, vhost) in [
        ("", "/"),
        ("/", "/"),
        ("/%2F", "/"),
        ("/%2f", "/"),
        ("/orders", "orders"),
        ("/v%2Fh", "v/h"),
        ("/a%20b", "a b"),
        ("/%C3%A9", "é"),
        ("/a:b$", "a:b$"),
        ("?heartbeat=5", "/"),
    ] {
        vhost_of(path, vhost);
    }
    let slash = "more than one / after the host: a / in the name of a virtual host is written \
                 %2F, such as /v%2Fh; the default one is /%2F";
    for path in ["//", "//test", "/a/b", "/a/"] {
        refused(&format!("amqp://host{path}"), slash);
    }
    let raw = "the virtual host has a raw character that must be percent-encoded, such as %40 \
               for @";
    refused("amqp://host/a b", raw);
    refused("amqp://host/é", raw);
    refused(
        "amqp://host/a%2",
        "the virtual host has a % without two hexadecimal digits after it; write a % itself \
         as %25",
    );
    refused(
        "amqp://host/%FF",
        "the virtual host is not UTF-8 when it is decoded",
    );
}

#[test]
fn user_and_password_are_decoded() {
    let text = "amqp://us%40er:a%23%24%40%3A%2F%3F%25%26%20%C3%BC@host/%2F";
    let uri = AmqpUri::parse(text).expect("valid");
    assert_eq!(uri.user, "us@er");
    assert_eq!(uri.password.reveal(), "a#$@:/?%& ü");
    let uri = AmqpUri::parse("amqp://u:a$+b@host").expect("valid");
    assert_eq!(uri.password.reveal(), "a$+b");
}

#[test]
fn what_stands_raw_in_a_password_is_refused_with_a_way_out() {
    const KEYS: &str = ", or use the keys user and password-file";
    let before = |found: &str, encoded: &str| {
        format!("a raw {found} before the @: in a user or password write it {encoded}{KEYS}")
    };
    let second_at =
        format!("more than one @: in a user, password or virtual host write it %40{KEYS}");
    let fragment = format!("a raw #: in a user, password or virtual host write it %23{KEYS}");
    let percent =
        "the password has a % without two hexadecimal digits after it; write a % itself as %25";
    let raw = format!(
        "the password has a raw character that must be percent-encoded, such as %40 for @{KEYS}"
    );
    for (password, expected) in [
        ("p@ss", second_at.as_str()),
        ("a#$@:/?%& ü", &fragment),
        ("p#ss", &fragment),
        ("p/ss", &before("/", "%2F")),
        ("p?ss", &before("?", "%3F")),
        ("p:ss", &before(":", "%3A")),
        ("p%ss", percent),
        ("p%", percent),
        ("p%ü", percent),
        ("p ss", &raw),
        ("pü", &raw),
    ] {
        refused(
            &format!("amqp://guest:{password}@127.0.0.1:5672/%2F"),
            expected,
        );
    }
    refused(
        "amqp://:x@host",
        "the user is empty; leave out the @ for the default user",
    );
    refused(
        "amqp://u:a%00b@host",
        "the password is longer than 255 bytes or has a control character in it",
    );
    // Without an @, what is meant as a password is taken for a port.
    refused(
        "amqp://user:hunter2",
        "the port of host 1 is not a whole number from 1 to 65535",
    );
}

#[test]
fn hosts_come_in_their_order() {
    let text = "amqp://user:pass@h1:5672,h2,[::1]:5673,[fe80::2]/vhost?heartbeat=7";
    let uris = AmqpUri::parse_list(text).expect("valid");
    let addresses: Vec<_> = uris.iter().map(AmqpUri::address).collect();
    assert_eq!(
        addresses,
        ["h1:5672", "h2:5672", "[::1]:5673", "[fe80::2]:5672"]
    );
    assert_eq!(uris[2].host, "::1");
    for uri in &uris {
        assert_eq!((uri.user.as_str(), uri.vhost.as_str()), ("user", "vhost"));
        assert_eq!(uri.heartbeat, Some(7));
    }
    assert_eq!(AmqpUri::parse(text), Err(UriError::Several));
}

#[test]
fn a_host_or_port_that_is_none_is_refused_by_its_number() {
    let empty =
        |n| format!("host {n} is empty; expected such as rabbit.example or rabbit.example:5672");
    let ipv6 = |n| format!("host {n} is no IPv6 address in brackets, such as [::1] or [::1]:5672");
    let port = |n| format!("the port of host {n} is not a whole number from 1 to 65535");
    for (text, expected) in [
        ("amqp://", empty(1)),
        ("amqp:///vhost", empty(1)),
        ("amqp://a,,b", empty(2)),
        ("amqp://u:p@:5672", empty(1)),
        ("amqp://::1", ipv6(1)),
        ("amqp://a,[::1", ipv6(2)),
        ("amqp://[::1]x", ipv6(1)),
        ("amqp://[127.0.0.1]", ipv6(1)),
        ("amqp://a:0", port(1)),
        ("amqp://a,b:65536", port(2)),
        ("amqp://a:+1", port(1)),
        ("amqp://a:", port(1)),
        (
            "amqp://a b",
            "host 1 has a character that no host name has".to_owned(),
        ),
        (
            "http://a",
            "does not start with amqp:// or amqps://".to_owned(),
        ),
        (
            "amqp:a",
            "does not start with amqp:// or amqps://".to_owned(),
        ),
        (
            "amqp://u:p@a,amqp://u:p@b",
            "the scheme and the user stand once, before the first host: \
             amqp://user:password@host-1,host-2"
                .to_owned(),
        ),
    ] {
        refused(text, &expected);
    }
}

#[test]
fn options_are_read_and_unknown_ones_are_named() {
    let uri = AmqpUri::parse(
        "amqps://h?heartbeat=0&connection_timeout=2500&auth_mechanism=EXTERNAL&verify=verify_peer",
    )
    .expect("valid");
    assert_eq!(uri.heartbeat, Some(0));
    assert_eq!(uri.connection_timeout, Some(Duration::from_millis(2500)));
    assert_eq!(uri.external, Some(true));
    let uri = AmqpUri::parse("amqp://h/v?heartbeat=600&auth_mechanism=plain").expect("valid");
    assert_eq!((uri.heartbeat, uri.external), (Some(600), Some(false)));
    let heartbeat =
        "the option `heartbeat` is wrong; expected seconds as a whole number from 0 to 65535";
    for (query, expected) in [
        (
            "hartbeat=5",
            "unknown option `hartbeat`; known are heartbeat, connection_timeout, auth_mechanism",
        ),
        ("heartbeat=-1", heartbeat),
        ("heartbeat=5s", heartbeat),
        ("heartbeat=", heartbeat),
        (
            "connection_timeout=0",
            "the option `connection_timeout` is wrong; expected milliseconds as a whole number \
             from 1 to 4294967295",
        ),
        (
            "auth_mechanism=amqplain",
            "the option `auth_mechanism` is wrong; expected `plain` or `external`",
        ),
        (
            "verify=verify_none",
            "verify=verify_none is refused: without a check of the certificate anyone on the \
             way can read along; name the certificate to trust in broker.ca-file",
        ),
        (
            "cacertfile=x",
            "the files of TLS are not named here; use broker.ca-file",
        ),
        (
            "heartbeat=1&heartbeat=1",
            "the option `heartbeat` stands there twice",
        ),
        ("", "an option after the ? is not written name=value"),
        ("x", "an option after the ? is not written name=value"),
        ("A B=1", "an option after the ? is not written name=value"),
    ] {
        refused(&format!("amqp://h/v?{query}"), expected);
    }
}

#[test]
fn it_is_shown_without_password_and_options() {
    let text = "amqp://us%40er:hunter2@[::1]/v%2Fh?heartbeat=3";
    let uri = AmqpUri::parse(text).expect("valid");
    assert_eq!(uri.to_string(), "amqp://us%40er@[::1]:5672/v%2Fh");
    assert!(!format!("{uri:?}").contains("hunter2"));
    let uri = AmqpUri::parse("amqps://host").expect("valid");
    assert_eq!(uri.to_string(), "amqps://guest@host:5671/%2F");
}

proptest! {
    #[test]
    fn no_error_and_no_form_of_it_has_the_password(
        before in "[a-z]{0,3}",
        junk in "[#$@:/?%&, =\\[\\]ü]{0,4}",
        after in "[#$@:/?%&, =a-z]{0,4}",
        tail in "(:5672|:x|,b:c)?(/|/v|//v|/a/b|/%2)?(\\?heartbeat=x|\\?zzz=1|\\?x)?",
        ends in any::<bool>(),
    ) {
        // The same word on each side of what stands raw: neither half may be shown.
        let password = format!("{before}QZXJ{junk}QZXJ{after}");
        // What follows the last @ is a host, and hosts are shown.
        let ends = ends || password.contains('@');
        let at = if ends { "@host" } else { "" };
        let text = format!("amqp://user:{password}{at}{tail}");
        match AmqpUri::parse_list(&text) {
            Ok(uris) => {
                // Without an @ there is no password, and a word is never a port.
                prop_assert!(ends);
                for uri in uris {
                    prop_assert!(!uri.to_string().contains("QZXJ"), "{uri}");
                    prop_assert!(!format!("{uri:?}").contains("QZXJ"), "{uri:?}");
                }
            }
            Err(error) => {
                prop_assert!(!error.to_string().contains("QZXJ"), "{error}");
                prop_assert!(!format!("{error:?}").contains("QZXJ"), "{error:?}");
            }
        }
    }

    #[test]
    fn what_is_encoded_is_read_back(user in "\\PC{1,20}", password in "\\PC{0,20}", vhost in "\\PC{1,20}") {
        let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let text = format!(
            "amqp://{}:{}@host/{}",
            encode(&user),
            encode(&password),
            encode(&vhost)
        );
        let uri = AmqpUri::parse(&text).expect("valid");
        prop_assert_eq!(uri.password.reveal(), &password);
        prop_assert_eq!((&uri.user, &uri.vhost), (&user, &vhost));
        let shown = AmqpUri::parse(&uri.to_string()).expect("valid");
        prop_assert_eq!((shown.user, shown.vhost), (user, vhost));
    }

    #[test]
    fn no_text_makes_it_panic(text in "(amqp://)?\\PC{0,60}") {
        let _ = AmqpUri::parse_list(&text);
    }
}

#[test]
fn a_forgotten_at_shows_nothing_of_a_password_that_looks_like_an_option() {
    let error = AmqpUri::parse("amqp://user:1234?hunter2=x").unwrap_err();
    assert!(!error.to_string().contains("hunter2"), "{error}");
}
