//! The tap and its rules, fed with bytes made by hand.

use std::time::Instant;

use amq_protocol::frame::{AMQPContentHeader, AMQPFrame, ProtocolVersion};
use amq_protocol::protocol::basic::{self, AMQPProperties};
use amq_protocol::protocol::{AMQPClass, channel, connection};

use super::broker_kit::{
    Event, Violation, Way, What, WireTap, check_settlements, delivery, encode, raw_frame,
};

fn basic(channel: u16, method: basic::AMQPMethod) -> AMQPFrame {
    AMQPFrame::Method(channel, AMQPClass::Basic(method))
}

fn ack(channel: u16, delivery_tag: u64, multiple: bool) -> AMQPFrame {
    let ack = basic::Ack {
        delivery_tag,
        multiple,
    };
    basic(channel, basic::AMQPMethod::Ack(ack))
}

fn nack(channel: u16, delivery_tag: u64) -> AMQPFrame {
    let nack = basic::Nack {
        delivery_tag,
        multiple: false,
        requeue: true,
    };
    basic(channel, basic::AMQPMethod::Nack(nack))
}

fn open(channel: u16) -> AMQPFrame {
    let open = channel::AMQPMethod::Open(channel::Open {});
    AMQPFrame::Method(channel, AMQPClass::Channel(open))
}

fn close(channel: u16) -> AMQPFrame {
    let close = channel::AMQPMethod::Close(channel::Close::default());
    AMQPFrame::Method(channel, AMQPClass::Channel(close))
}

fn message(channel: u16, tag: u64, id: &str, body: &[u8]) -> Vec<u8> {
    let deliver = basic::AMQPMethod::Deliver(delivery("c", tag));
    let header = AMQPContentHeader {
        class_id: 60,
        body_size: body.len() as u64,
        properties: AMQPProperties::default().with_message_id(id.into()),
    };
    let mut bytes = encode(&basic(channel, deliver));
    bytes.extend(encode(&AMQPFrame::Header(channel, header)));
    bytes.extend(encode(&AMQPFrame::Body(channel, body.to_vec())));
    bytes
}

fn what(events: Vec<Event>) -> Vec<What> {
    events.into_iter().map(|event| event.what).collect()
}

#[test]
fn frames_are_read_whatever_their_pieces() {
    let mut bytes = encode(&AMQPFrame::ProtocolHeader(ProtocolVersion::amqp_0_9_1()));
    bytes.extend(encode(&open(1)));
    // A body that looks like frames, and a frame without sense.
    bytes.extend(message(1, 7, "m-7", &encode(&ack(1, 7, true))));
    bytes.extend(raw_frame(1, 1, &[0, 60, 0, 80, 1]));
    bytes.extend(encode(&ack(1, 7, false)));
    bytes.extend(encode(&nack(1, 8)));
    bytes.extend(encode(&AMQPFrame::Heartbeat));
    let expected = [
        What::ChannelOpen,
        What::Deliver {
            consumer_tag: "c".to_owned(),
            tag: 7,
            redelivered: false,
            message_id: Some("m-7".to_owned()),
        },
        What::Malformed,
        What::Ack {
            tag: 7,
            multiple: false,
        },
        What::Nack {
            tag: 8,
            multiple: false,
            requeue: true,
        },
        What::Heartbeat,
    ];
    for split in 0..=bytes.len() {
        let tap = WireTap::default();
        tap.hear(1, Way::ToServer, &bytes[..split]);
        tap.hear(1, Way::ToServer, &bytes[split..]);
        assert_eq!(what(tap.events()), expected, "split at {split}");
    }
    let tap = WireTap::default();
    for byte in &bytes {
        tap.hear(1, Way::ToServer, &[*byte]);
    }
    assert_eq!(what(tap.events()), expected, "byte by byte");
}

#[test]
fn an_ack_of_the_server_is_a_confirm() {
    let tap = WireTap::default();
    tap.hear(1, Way::ToClient, &encode(&ack(1, 3, true)));
    tap.hear(1, Way::ToClient, &encode(&nack(1, 4)));
    let expected = [
        What::Confirm {
            tag: 3,
            multiple: true,
            ack: true,
        },
        What::Confirm {
            tag: 4,
            multiple: false,
            ack: false,
        },
    ];
    assert_eq!(what(tap.events()), expected);
}

/// Client frames are sent as they are; each delivery is of channel 1 and from the server.
enum Step {
    Deliver(u64),
    Client(AMQPFrame),
    Server(AMQPFrame),
}

fn violations(steps: &[Step], undecided: &[u64]) -> Vec<Violation> {
    let tap = WireTap::default();
    tap.hear(1, Way::ToServer, &encode(&open(1)));
    for step in steps {
        match step {
            Step::Deliver(tag) => tap.hear(1, Way::ToClient, &message(1, *tag, "m", b"x")),
            Step::Client(frame) => tap.hear(1, Way::ToServer, &encode(frame)),
            Step::Server(frame) => tap.hear(1, Way::ToClient, &encode(frame)),
        }
    }
    check_settlements(&tap.events(), |delivery, _: Instant| {
        !undecided.contains(&delivery.tag)
    })
}

#[test]
fn each_rule_of_settlements_is_seen_broken_and_kept() {
    use Step::{Client, Deliver, Server};
    let kinds = |steps: &[Step], undecided: &[u64]| -> Vec<&'static str> {
        let name = |violation: &Violation| match violation {
            Violation::TagZero { .. } => "zero",
            Violation::SettledTwice { .. } => "twice",
            Violation::NeverDelivered { .. } => "never delivered",
            Violation::ChannelClosed { .. } => "closed",
            Violation::Undecided { .. } => "undecided",
        };
        violations(steps, undecided).iter().map(name).collect()
    };
    let none: &[&str] = &[];
    let two = || vec![Deliver(1), Deliver(2)];
    let with = |mut steps: Vec<Step>, more: Vec<Step>| {
        steps.extend(more);
        steps
    };

    let kept = with(two(), vec![Client(ack(1, 2, true))]);
    assert_eq!(kinds(&kept, &[]), none);
    let kept = with(two(), vec![Client(ack(1, 2, false)), Client(nack(1, 1))]);
    assert_eq!(kinds(&kept, &[]), none);
    // An acknowledgement that crosses the server's close is nobody's fault.
    let kept = with(two(), vec![Server(close(1)), Client(ack(1, 1, false))]);
    assert_eq!(kinds(&kept, &[]), none);

    let zero = with(two(), vec![Client(ack(1, 0, true))]);
    assert_eq!(kinds(&zero, &[]), ["zero"]);
    let twice = with(
        two(),
        vec![Client(ack(1, 2, true)), Client(ack(1, 1, false))],
    );
    assert_eq!(kinds(&twice, &[]), ["twice"]);
    let unknown = with(two(), vec![Client(ack(1, 3, false))]);
    assert_eq!(kinds(&unknown, &[]), ["never delivered"]);
    let other_channel = with(two(), vec![Client(ack(2, 1, false))]);
    assert_eq!(kinds(&other_channel, &[]), ["never delivered"]);
    let earlier_life = with(
        two(),
        vec![Client(close(1)), Client(open(1)), Client(ack(1, 1, false))],
    );
    assert_eq!(kinds(&earlier_life, &[]), ["never delivered"]);
    let closed = with(two(), vec![Client(close(1)), Client(ack(1, 1, false))]);
    assert_eq!(kinds(&closed, &[]), ["closed"]);
    let end = connection::AMQPMethod::Close(connection::Close::default());
    let end = AMQPFrame::Method(0, AMQPClass::Connection(end));
    let closed = with(two(), vec![Client(end), Client(ack(1, 1, false))]);
    assert_eq!(kinds(&closed, &[]), ["closed"]);
    let across = with(two(), vec![Client(ack(1, 2, true))]);
    assert_eq!(kinds(&across, &[1]), ["undecided"]);
    let alone = with(two(), vec![Client(ack(1, 2, false))]);
    assert_eq!(kinds(&alone, &[1]), none);
}
