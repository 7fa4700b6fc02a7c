//! Peers that speak the protocol badly lose the connection; those that repeat themselves do no harm.

use crate::common::*;
use crate::raw_peer::*;
use rdma_sys::{ibv_sge, ibv_wc_status};
use softverbs::proto::frames::SEGMENT;
use softverbs::proto::frames::{AtomicOp, Flags, FlushKind, Frame, Nak, Private, Remote};
use std::io::Write;
use std::time::{Duration, Instant};

/// What no honest peer says on a connection, made with something to address.
fn bad_words(at: Remote) -> Vec<(&'static str, Vec<u8>)> {
    let send = |seq, flags| Frame::Send { seq, flags, imm: 0 };
    let write = |seq, flags, left| Frame::Write {
        seq,
        flags,
        imm: 0,
        at,
        left,
    };
    // Eight bytes of sixteen; then more, so far from the first, with so much left.
    let segments = |distance, left, key| {
        let mut more = write(0, Flags::empty(), left);
        if let Frame::Write { at, .. } = &mut more {
            at.addr += distance;
            at.rkey ^= key;
        }
        let first = encoded(&write(0, Flags::FIRST, 16), &[1; 8]);
        [first, encoded(&more, &[2; 4])].concat()
    };
    let read = |seq| Frame::Read { seq, at, len: 8 };
    let mut long = encoded(&send(0, ALONE), &[]);
    long[..4].copy_from_slice(&(8 + SEGMENT as u32 + 1).to_le_bytes());
    let mut flush = encoded(
        &Frame::Flush {
            seq: 0,
            flags: ALONE,
            at,
            len: 8,
            kind: FlushKind::Global,
            whole: false,
        },
        &[],
    );
    flush[6] = 9;
    let mut timer = encoded(&Frame::NotReady { seq: 0, timer: 31 }, &[]);
    timer[6] = 32;
    let mut nak = encoded(&Frame::Nak(0, Nak::AccessError), &[]);
    nak[6] = 7;
    vec![
        ("garbage", pattern(3, 5000)),
        ("a request", request()),
        (
            "a reply",
            encoded(&Frame::Reply(PARAMS, Private::NONE), &[]),
        ),
        ("a second ready", encoded(&Frame::Ready, &[])),
        ("the end of an end", encoded(&Frame::Disconnected, &[])),
        (
            "a rejection",
            encoded(&Frame::Reject(28, Private::NONE), &[]),
        ),
        ("a message out of order", encoded(&send(5, ALONE), &[])),
        (
            "the end of a message that did not begin",
            encoded(&send(0, Flags::LAST), &[1]),
        ),
        ("a write out of order", encoded(&write(9, ALONE, 1), &[1])),
        (
            "the end of a write that did not begin",
            encoded(&write(0, Flags::LAST, 1), &[1]),
        ),
        (
            "a write with less than it has",
            encoded(&write(0, ALONE, 1), &[1, 2]),
        ),
        (
            "a last part that is not the last",
            encoded(&write(0, ALONE, 10), &[1, 2]),
        ),
        (
            "a part that is the last and does not say so",
            encoded(&write(0, Flags::FIRST, 2), &[1, 2]),
        ),
        ("a write that goes on elsewhere", segments(16, 8, 0)),
        ("a write that goes back", segments(0, 8, 0)),
        ("a write that goes on with another key", segments(8, 8, 1)),
        ("a write that goes on for longer", segments(8, 9, 0)),
        ("a write that goes on for less", segments(8, 7, 0)),
        (
            "a message within a write",
            [
                encoded(&write(0, Flags::FIRST, 10), &[1, 2]),
                encoded(&send(0, Flags::LAST), &[1]),
            ]
            .concat(),
        ),
        (
            "a read within a write",
            [
                encoded(&write(0, Flags::FIRST, 10), &[1, 2]),
                encoded(&read(0), &[]),
            ]
            .concat(),
        ),
        ("a read out of order", encoded(&read(1), &[])),
        ("an atomic out of order", {
            let op = AtomicOp::FetchAdd(1);
            encoded(&Frame::Atomic { seq: 3, at, op }, &[])
        }),
        ("an atomic write out of order", {
            let (flags, value) = (ALONE, [0; 8]);
            encoded(
                &Frame::AtomicWrite {
                    seq: 1,
                    flags,
                    at,
                    value,
                },
                &[],
            )
        }),
        ("a flush of an unknown kind", flush),
        (
            "data that nobody asked for",
            encoded(
                &Frame::Data {
                    seq: 0,
                    flags: ALONE,
                },
                &[1],
            ),
        ),
        (
            "a value that nobody asked for",
            encoded(&Frame::Value { seq: 0, value: 1 }, &[]),
        ),
        (
            "an acknowledgement of what was not sent",
            encoded(&Frame::Ack(0), &[]),
        ),
        ("one of much later", encoded(&Frame::Ack(1 << 30), &[])),
        (
            "a refusal of what was not sent",
            encoded(&Frame::Nak(0, Nak::AccessError), &[]),
        ),
        ("an unknown refusal", nak),
        (
            "no receive for what was not sent",
            encoded(&Frame::NotReady { seq: 0, timer: 1 }, &[]),
        ),
        ("an unknown time", timer),
        ("a payload longer than any", long),
        ("more reads than were agreed", {
            let most: Vec<Vec<u8>> = (0..2000)
                .map(|seq| {
                    let len = 1 << 20;
                    encoded(&Frame::Read { seq, at, len }, &[])
                })
                .collect();
            most.concat()
        }),
    ]
}

#[test]
fn who_speaks_badly_loses_the_connection() {
    let names: Vec<_> = bad_words(Remote { addr: 0, rkey: 0 })
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    for (i, name) in names.into_iter().enumerate() {
        let mut connection = Connection::new();
        let memory = connection.server.memory(1 << 20, ALL);
        let At { addr, rkey } = memory.at(0);
        let (_, words) = bad_words(Remote { addr, rkey }).swap_remove(i);
        eprintln!("{name}");
        connection.peer.say(&words);
        connection.peer.is_cut_off();
        connection.server.channel.expect(RDMA_CM_EVENT_DISCONNECTED);
    }
}

#[test]
fn answers_that_do_not_fit_lose_the_connection() {
    let data = |seq, flags, len: usize| encoded(&Frame::Data { seq, flags }, &vec![7; len]);
    let value = |seq| encoded(&Frame::Value { seq, value: 1 }, &[]);
    let ack = |seq| encoded(&Frame::Ack(seq), &[]);
    // The server asks for: 0, a read of 8 bytes; 1, an atomic; 2, a write.
    for (name, words) in [
        ("too much data", data(0, ALONE, 9)),
        ("too little data for all", data(0, ALONE, 7)),
        ("all data, and not all", data(0, Flags::empty(), 8)),
        ("data for an atomic", data(1, ALONE, 8)),
        ("data for a write", data(2, ALONE, 8)),
        ("a value for a read", value(0)),
        ("a value for a write", value(2)),
        (
            "data twice",
            [data(0, ALONE, 8), data(0, ALONE, 8)].concat(),
        ),
        (
            "a value twice",
            [data(0, ALONE, 8), value(1), value(1)].concat(),
        ),
        ("an acknowledgement too many", ack(3)),
    ] {
        eprintln!("{name}");
        let mut connection = Connection::new();
        let memory = connection.server.memory(64, LOCAL);
        memory.fill(1);
        let at = At { addr: 8, rkey: 1 };
        let sge = |at| vec![memory.sge(at, 8)];
        let wrs = [
            Wr::new(0, Op::Read(at), sge(0)),
            Wr::new(1, Op::FetchAdd(at, 1), sge(8)),
            Wr::new(2, Op::Write(at), sge(16)),
        ];
        connection.server.post_by(Interface::List, &wrs);
        for _ in 0..3 {
            connection.next();
        }
        connection.peer.say(&words);
        connection.peer.is_cut_off();
        connection.server.channel.expect(RDMA_CM_EVENT_DISCONNECTED);
        same("what was not asked for", &memory.read(16, 48), &[1; 48]);
    }
}

/// What fails behind a message does not keep it from being sent again.
#[test]
fn a_message_is_sent_again_before_one_that_failed() {
    let mut connection = Connection::new();
    let memory = connection.server.memory(8, LOCAL);
    let nowhere = ibv_sge {
        lkey: 0,
        ..memory.sge(0, 8)
    };
    let wrs = [
        Wr::new(1, Op::Send, vec![]),
        Wr::new(2, Op::Send, vec![nowhere]),
        Wr::new(3, Op::Send, vec![]),
    ];
    connection.server.post_by(Interface::List, &wrs);
    let is_first = |frame| matches!(frame, Frame::Send { seq: 0, .. });
    for _ in 0..3 {
        let (frame, _) = connection.next();
        assert!(is_first(frame), "{frame:?} is not the first message");
        connection.say(Frame::NotReady { seq: 0, timer: 1 }, &[]);
        connection.say(Frame::ReadyAgain, &[]);
    }
    let (frame, _) = connection.next();
    assert!(is_first(frame), "{frame:?} is not the first message");
    connection.say(Frame::Ack(0), &[]);
    let protection = Status(ibv_wc_status::IBV_WC_LOC_PROT_ERR);
    for (id, status) in [(1, SUCCESS), (2, protection), (3, FLUSHED)] {
        connection.server.send_cq.expect(id, status);
    }
}

#[test]
fn acknowledgements_of_what_was_not_read_end_nothing() {
    // A read ends with its data only, whatever else is acknowledged.
    let mut connection = Connection::new();
    let memory = connection.server.memory(64, LOCAL);
    let at = At { addr: 8, rkey: 1 };
    let wrs = [
        Wr::new(0, Op::Read(at), vec![memory.sge(0, 8)]),
        Wr::new(1, Op::Write(at), vec![memory.sge(8, 8)]),
    ];
    connection.server.post_by(Interface::List, &wrs);
    connection.next();
    connection.next();
    connection.say(Frame::Ack(1), &[]);
    connection.say(
        Frame::Data {
            seq: 0,
            flags: ALONE,
        },
        &[7; 8],
    );
    connection.server.send_cq.expect(0, SUCCESS);
    connection.server.send_cq.expect(1, SUCCESS);
    same("what was read", &memory.read(0, 8), &[7; 8]);
}

/// Says that over and over, and reads nothing; the process must not grow by that.
#[track_caller]
fn repeats(name: &str, before: &[Vec<u8>], again: &[u8]) {
    let mut connection = Connection::new();
    for words in before {
        connection.peer.say(words);
    }
    let chunk = again.repeat(64 * 1024 / again.len() + 1);
    connection
        .peer
        .0
        .set_write_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    let start = resident();
    let end = Instant::now() + Duration::from_millis(700);
    let mut said = 0;
    while Instant::now() < end && said < 100 << 20 {
        match connection.peer.0.write(&chunk) {
            // What is cut in the middle goes on where it was cut.
            Ok(n) => {
                said += n;
                let rest = n % again.len();
                if rest > 0 && connection.peer.0.write_all(&again[rest..]).is_err() {
                    break;
                }
            }
            Err(_) => break,
        }
    }
    let grown = resident().saturating_sub(start);
    assert!(
        grown < 16 << 20,
        "{name}: {said} bytes of it have made the process grow by {grown}"
    );
}

#[test]
fn what_is_repeated_does_not_add_up() {
    alone(|| {
        let send = Frame::Send {
            seq: 0,
            flags: ALONE,
            imm: 0,
        };
        repeats("a message without a receive", &[], &encoded(&send, &[]));
        repeats("failure", &[], &encoded(&Frame::Failed, &[]));
        repeats("readiness", &[], &encoded(&Frame::ReadyAgain, &[]));
        repeats(
            "an old acknowledgement",
            &[],
            &encoded(&Frame::Ack(u32::MAX), &[]),
        );
        repeats(
            "messages after the end",
            &[encoded(&Frame::Disconnect, &[])],
            &encoded(&send, &[0; 100]),
        );
        repeats(
            "failure after the end",
            &[encoded(&Frame::Disconnect, &[])],
            &encoded(&Frame::Failed, &[]),
        );
    });
}
