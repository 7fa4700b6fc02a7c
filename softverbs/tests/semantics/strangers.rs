//! Who speaks something else, or speaks it badly: loses its connection, and costs nothing. Here the
//! other side is a bare socket, which also can do what no honest one does.

use crate::common::*;
use rdma_sys::{ibv_qp_state, ibv_sge, ibv_wc_status};
use softverbs::proto::frames::{
    self, AtomicOp, Flags, FlushKind, Frame, Nak, Params, Private, Remote,
};
use softverbs::proto::frames::{HEADER, MAX_FIELDS, SEGMENT};
use std::io::{ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A socket to where someone listens.
struct Stranger(TcpStream);

impl Stranger {
    fn new(to: &SocketAddr) -> Self {
        let socket = TcpStream::connect(to).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        socket.set_write_timeout(Some(LIMIT)).unwrap();
        Stranger(socket)
    }

    /// Writes what the other side takes before it has enough.
    fn say(&mut self, bytes: &[u8]) {
        let _ = self.0.write_all(bytes);
    }

    /// The other side ends the connection.
    #[track_caller]
    fn is_cut_off(&mut self) {
        let end = Instant::now() + LIMIT;
        let mut buffer = [0; 4096];
        loop {
            match self.0.read(&mut buffer) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return,
                Err(error) => panic!("the connection is still there: {error}"),
            }
            assert!(
                Instant::now() < end,
                "the connection is still there, and talks"
            );
        }
    }
}

fn encoded(frame: &Frame, payload: &[u8]) -> Vec<u8> {
    let mut out = [0; MAX_FIELDS];
    let len = frames::encode(frame, payload.len().min(SEGMENT), &mut out);
    [&out[..len], payload].concat()
}

const PARAMS: Params = Params {
    qp_num: 77,
    responder_resources: 16,
    initiator_depth: 16,
    flow_control: 1,
    retry_count: 7,
    rnr_retry_count: 7,
    srq: 0,
};

fn request() -> Vec<u8> {
    encoded(&Frame::Request(PARAMS, Private::NONE), &[])
}

const ALONE: Flags = Flags::FIRST.union(Flags::LAST);

/// An honest connection works.
#[track_caller]
fn is_well(listener: &Listener) {
    let setup = Setup::default();
    let client = begin(&listener.address, &setup);
    let server = loop {
        let id = Id(listener.channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id);
        // Strangers may have asked, too.
        if id.peer() == client.id.local() {
            break listener.accept_id(id, &setup);
        }
    };
    client.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
    server.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
    let (from, to) = (client.memory(64, LOCAL), server.memory(64, ALL));
    from.fill(9);
    client.post(Wr::new(1, Op::Write(to.at(0)), vec![from.sge(0, 64)]));
    client.send_cq.expect(1, SUCCESS);
    same("what was written", &to.read(0, 64), &[9; 64]);
}

/// What is said instead of a request to connect.
fn first_words() -> Vec<(&'static str, Vec<u8>)> {
    let with = |at: usize, byte: u8| {
        let mut bytes = request();
        bytes[at] = byte;
        bytes
    };
    let length = |length: u32| {
        let mut bytes = request();
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        bytes
    };
    let send = Frame::Send {
        seq: 0,
        flags: ALONE,
        imm: 0,
    };
    vec![
        (
            "HTTP",
            b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
        ),
        (
            "TLS",
            [
                &[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3][..],
                &pattern(9, 400),
            ]
            .concat(),
        ),
        ("SSH", b"SSH-2.0-OpenSSH_9.2\r\n".to_vec()),
        ("zeroes", vec![0; 4096]),
        ("ones", vec![0xff; 4096]),
        ("noise", pattern(1, 100_000)),
        ("another version", with(6, 2)),
        ("another magic", with(HEADER, b'S')),
        ("an unknown kind", with(4, 99)),
        ("kind 0", with(4, 0)),
        ("unknown flags", with(5, 0x80)),
        ("a length of 4 GiB", length(u32::MAX)),
        ("a length that leaves no room", length(HEADER as u32)),
        ("a length of too much private data", length(14 + 8 + 57)),
        ("a message before a connection", encoded(&send, b"hello")),
        (
            "an answer to nothing",
            encoded(&Frame::Reply(PARAMS, Private::NONE), &[]),
        ),
        ("an end of nothing", encoded(&Frame::Disconnect, &[])),
        ("ready", encoded(&Frame::Ready, &[])),
        ("an acknowledgement", encoded(&Frame::Ack(0), &[])),
        ("failure", encoded(&Frame::Failed, &[])),
        ("two requests", [request(), request()].concat()),
        (
            "a request and a message",
            [request(), encoded(&send, b"hello")].concat(),
        ),
    ]
}

#[test]
fn who_is_no_peer_is_cut_off() {
    let listener = Listener::new();
    for (what, words) in first_words() {
        let mut stranger = Stranger::new(&listener.address);
        stranger.say(&words);
        eprintln!("{what}");
        stranger.is_cut_off();
        // Some of them did ask for a connection first.
        while readable(listener.channel.fd(), NOW) {
            drop(Id(listener
                .channel
                .expect(RDMA_CM_EVENT_CONNECT_REQUEST)
                .id));
        }
        is_well(&listener);
    }
}

#[test]
fn who_says_too_little_is_cut_off_and_holds_up_nobody() {
    let listener = Listener::new();
    let half = request();
    let mut strangers: Vec<Stranger> = (0..half.len())
        .map(|len| {
            let mut stranger = Stranger::new(&listener.address);
            stranger.say(&half[..len]);
            stranger
        })
        .collect();
    is_well(&listener);
    strangers.iter_mut().for_each(Stranger::is_cut_off);
    assert!(listener.channel.is_quiet());
}

#[test]
fn who_goes_at_once_leaves_nothing() {
    alone(|| {
        let listener = Listener::new();
        is_well(&listener);
        until("what was is gone", || count("cm_id") == 1);
        let before = descriptors();
        for len in 0..300 {
            let mut stranger = Stranger::new(&listener.address);
            stranger.say(&request()[..len % request().len()]);
        }
        is_well(&listener);
        until("the strangers are gone", || descriptors() <= before);
    });
}

// ---- who is told what ----

/// The opening of a request of another version, which may go on as it likes.
fn request_of(version: u16) -> Vec<u8> {
    let mut bytes = encoded(&Frame::Version(version), &[]);
    bytes[0] += 40;
    bytes[4] = 1;
    [bytes, pattern(7, 40)].concat()
}

/// Connects to someone who does that with the link. Gives the event and its status.
fn connect_to(does: impl FnOnce(TcpStream) + Send, within: Duration) -> (u32, i32) {
    let listener = TcpListener::bind(LOOPBACK).unwrap();
    let to = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| does(listener.accept().unwrap().0));
        let client = begin(&to, &Setup::default());
        let event = client.channel.get_within(within).expect("an event");
        (event.kind, event.status)
    })
}

/// Answers whatever comes with that, and keeps the link until the other side ends it.
fn answers(bytes: Vec<u8>) -> impl FnOnce(TcpStream) + Send {
    move |mut link| {
        link.write_all(&bytes).unwrap();
        let mut buffer = [0; 4096];
        while link.read(&mut buffer).is_ok_and(|n| n > 0) {}
    }
}

fn echoes(mut link: TcpStream) {
    let mut buffer = [0; 4096];
    while let Ok(n @ 1..) = link.read(&mut buffer) {
        let _ = link.write_all(&buffer[..n]);
    }
}

fn ends_after_the_request(mut link: TcpStream) {
    let mut request = vec![0; request().len()];
    link.read_exact(&mut request).unwrap();
}

/// Whatever the port is, the line is that.
#[track_caller]
fn says_one_line(said: &[String], begin: &str, end: &str) {
    let [line] = said else {
        panic!("expected one line, not {said:?}");
    };
    assert!(
        line.starts_with(begin) && line.ends_with(end),
        "expected `{begin}...{end}`, not `{line}`"
    );
}

fn rejects_another_version(answer: &[u8], version: u16) {
    let test = || {
        // Twice, and one line.
        for _ in 0..2 {
            let (kind, status) = connect_to(answers(answer.to_vec()), LIMIT);
            assert_eq!((kind, status), (RDMA_CM_EVENT_REJECTED, 31));
        }
    };
    let said = said_by(test, LIMIT, &[]);
    if role().is_none() {
        let end = format!(": it speaks softverbs protocol {version}, this is 1");
        says_one_line(&said, "softverbs: 127.0.0.1 port ", &end);
    }
}

#[test]
fn a_listener_of_another_version_is_named() {
    rejects_another_version(&encoded(&Frame::Version(2), &[]), 2);
}

/// As it may be in a version that comes: all after the opening is different.
#[test]
fn a_reply_of_another_version_is_understood_as_one() {
    let mut reply = [encoded(&Frame::Version(513), &[]), pattern(3, 500)].concat();
    reply[1] = 2;
    reply[4] = 2;
    reply[5] = 0xff;
    rejects_another_version(&reply, 513);
}

#[test]
fn a_listener_that_is_no_peer_offers_no_service() {
    let test = || {
        let http = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n".to_vec();
        for does in [http, b"SSH-2.0-OpenSSH_9.2\r\n".to_vec(), vec![0; 4096]] {
            let (kind, status) = connect_to(answers(does), LIMIT);
            assert_eq!((kind, status), (RDMA_CM_EVENT_REJECTED, 8));
        }
    };
    let said = said_by(test, LIMIT, &[]);
    if role().is_none() {
        let end = r#"it does not speak the softverbs protocol; it begins with "HTTP/1.1 400 Bad""#;
        says_one_line(&said, "softverbs: 127.0.0.1 port ", end);
    }
}

#[test]
fn a_listener_that_echoes_offers_no_service() {
    let test = || {
        let (kind, status) = connect_to(echoes, LIMIT);
        assert_eq!((kind, status), (RDMA_CM_EVENT_REJECTED, 8));
    };
    let said = said_by(test, LIMIT, &[]);
    if role().is_none() {
        let end = ": it sends back what it is sent, so it is not softverbs";
        says_one_line(&said, "softverbs: 127.0.0.1 port ", end);
    }
}

#[test]
fn a_listener_that_ends_the_link_is_unreachable_and_named() {
    let test = || {
        let (kind, status) = connect_to(ends_after_the_request, LIMIT);
        assert_eq!(
            (kind, status),
            (RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT)
        );
    };
    let said = said_by(test, LIMIT, &[]);
    if role().is_none() {
        let begin = "softverbs: 127.0.0.1 port ";
        let cause = "it ended the connection without an answer";
        says_one_line(&said, begin, "or its program has ended");
        assert!(said[0].contains(cause), "{said:?}");
    }
}

/// It takes as long as connection management tries.
#[test]
fn a_silent_listener_is_unreachable_and_named() {
    const WITHIN: Duration = Duration::from_secs(300);
    let test = || {
        let (kind, status) = connect_to(answers(vec![]), WITHIN);
        assert_eq!(
            (kind, status),
            (RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT)
        );
    };
    let said = said_by(test, 2 * WITHIN, &[]);
    if role().is_none() {
        let begin = "softverbs: 127.0.0.1 port ";
        says_one_line(&said, begin, "or its program does not go on");
        assert!(said[0].contains("said nothing for 60 s"), "{said:?}");
    }
}

/// Says that to a listener, twice.
fn meets(listener: &Listener, words: &[u8]) -> Vec<u8> {
    let mut answer = vec![];
    for _ in 0..2 {
        let mut stranger = Stranger::new(&listener.address);
        stranger.say(words);
        answer.clear();
        // A link that is cut off while more comes ends with an error.
        let _ = stranger.0.read_to_end(&mut answer);
    }
    is_well(listener);
    answer
}

#[test]
fn a_client_of_another_version_is_answered_in_what_all_versions_read() {
    let test = || {
        let listener = Listener::new();
        let long = [request_of(2), pattern(5, 1 << 20)].concat();
        for words in [request_of(2), long] {
            let answer = meets(&listener, &words);
            // The header, with the version as its code, and the magic number.
            let expected = b"\x08\0\0\0\x15\0\x01\0softvrbs";
            assert_eq!(answer, expected, "what a client of version 2 is told");
        }
    };
    let said = said_by(test, LIMIT, &[]);
    if role().is_none() {
        let end = "): it speaks softverbs protocol 2, this is 1";
        says_one_line(&said, "softverbs: 127.0.0.1 port ", end);
        assert!(said[0].contains(" (connected to port "), "{said:?}");
    }
}

#[test]
fn a_client_that_is_no_peer_is_named_once() {
    let test = || {
        let listener = Listener::new();
        meets(&listener, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    };
    let said = said_by(test, LIMIT, &[]);
    if role().is_none() {
        let end = r#"it begins with "GET / HTTP/1.1\r\n""#;
        says_one_line(&said, "softverbs: 127.0.0.1 port ", end);
    }
}

#[test]
fn nothing_is_said_where_that_is_not_wanted_or_nobody_did_wrong() {
    let test = || {
        let listener = Listener::new();
        // Looks whether somebody listens.
        drop(Stranger::new(&listener.address));
        is_well(&listener);
        if std::env::var("SOFTVERBS_WARN").is_ok() {
            meets(&listener, &request_of(2));
        }
    };
    assert_eq!(said_by(test, LIMIT, &[]), [""; 0]);
    if role().is_none() {
        let off = [("SOFTVERBS_WARN", "off")];
        assert_eq!(said_by(test, LIMIT, &off), [""; 0]);
    }
}

/// A pipe that takes no more, to be written to. Its reader stays.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    let set = |flags: libc::c_int| {
        let fd = writer.as_raw_fd();
        assert_eq!(c!(libc::fcntl(fd, libc::F_SETFL, flags)), 0);
    };
    set(libc::O_NONBLOCK);
    while (&writer).write(&[0]).is_ok() {}
    set(0);
    (reader, writer)
}

/// The line is lost, and not the program.
#[test]
fn nobody_waits_for_a_stderr_that_nobody_reads() {
    if role().is_some() {
        let listener = Listener::new();
        meets(&listener, &request_of(2));
        return;
    }
    let (_reader, writer) = full_pipe();
    let mut part = Part::start_with("full", |command| {
        command.env_remove("SOFTVERBS_WARN").stderr(writer);
    });
    part.ends();
}

// ---- after the handshake ----

/// A connection whose other side is a bare socket.
struct Connection {
    server: End,
    peer: Stranger,
    /// What has come for the peer and was not looked at.
    come: Vec<u8>,
    /// The payload of the message of the last frame, as far as it has come.
    message: Vec<u8>,
    message_ended: bool,
}

impl Connection {
    fn new() -> Self {
        Self::with(&Setup::default())
    }

    fn with(setup: &Setup) -> Self {
        let listener = Listener::new();
        let mut peer = Stranger::new(&listener.address);
        peer.say(&request());
        let server = listener.accept(setup);
        let mut connection = Connection {
            server,
            peer,
            come: vec![],
            message: vec![],
            message_ended: false,
        };
        let (frame, _) = connection.next();
        assert!(matches!(frame, Frame::Reply(..)), "{frame:?} is no reply");
        connection.say(Frame::Ready, &[]);
        connection.server.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
        connection
    }

    fn say(&mut self, frame: Frame, payload: &[u8]) {
        self.peer.say(&encoded(&frame, payload));
    }

    /// The next frame for the peer, with its payload.
    #[track_caller]
    fn next(&mut self) -> (Frame, Vec<u8>) {
        self.next_or_end().expect("a frame, and not the end")
    }

    #[track_caller]
    fn next_or_end(&mut self) -> Option<(Frame, Vec<u8>)> {
        loop {
            if let Some((frame, fields, payload)) = frames::decode(&self.come).unwrap()
                && self.come.len() >= fields + payload
            {
                let data = self.come[fields..fields + payload].to_vec();
                self.come.drain(..fields + payload);
                if std::mem::take(&mut self.message_ended) {
                    self.message.clear();
                }
                if let Frame::Send { flags, .. }
                | Frame::Write { flags, .. }
                | Frame::Data { flags, .. } = frame
                {
                    self.message.extend_from_slice(&data);
                    self.message_ended = flags.contains(Flags::LAST);
                }
                return Some((frame, data));
            }
            let mut buffer = [0; 65_536];
            let n = match self.peer.0.read(&mut buffer) {
                Ok(0) => return None,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                result => result.expect("a frame"),
            };
            self.come.extend_from_slice(&buffer[..n]);
        }
    }
}

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

#[test]
fn many_strangers_cost_little() {
    alone(|| {
        let listener = Listener::new();
        is_well(&listener);
        let words = first_words();
        let before = resident();
        let mut half = vec![];
        for i in 0..400 {
            let mut stranger = Stranger::new(&listener.address);
            let (_, said) = &words[i % words.len()];
            stranger.say(said);
            if i % 2 == 0 {
                let mut silent = Stranger::new(&listener.address);
                silent.say(&request()[..20]);
                half.push(silent);
            }
            while readable(listener.channel.fd(), NOW) {
                drop(Id(listener
                    .channel
                    .expect(RDMA_CM_EVENT_CONNECT_REQUEST)
                    .id));
            }
        }
        let grown = resident().saturating_sub(before);
        assert!(
            grown < 32 << 20,
            "600 strangers have made the process grow by {grown}"
        );
        is_well(&listener);
    });
}

// ---- what only a peer that does not read can show ----

/// Sets how much the peer takes without being read from, and has the server's socket hold little
/// more: what is for the peer waits at the server then, cut wherever.
fn takes(connection: &Connection, size: i32) {
    let set = |fd, option, size: i32| {
        let value = (&raw const size).cast();
        let result = c!(libc::setsockopt(fd, libc::SOL_SOCKET, option, value, 4));
        good("setsockopt", result);
    };
    set(connection.peer.0.as_raw_fd(), libc::SO_RCVBUF, size);
    set(servers_socket(connection), libc::SO_SNDBUF, 100_000);
}

/// The server's end of the connection.
fn servers_socket(connection: &Connection) -> RawFd {
    let here = connection.peer.0.local_addr().unwrap();
    let sockets = std::fs::read_dir("/proc/self/fd").unwrap();
    let mut ours = sockets.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let ours = ours.find(|fd: &i32| {
        use std::os::fd::FromRawFd;
        // It is only looked at, and not this one's to close.
        let socket = std::mem::ManuallyDrop::new(c!(TcpStream::from_raw_fd(*fd)));
        socket.peer_addr().is_ok_and(|peer| peer == here)
    });
    ours.expect("the server's socket")
}

/// After so many looks on end at which nothing has changed, nothing will: what could change it has
/// had its turn in between, since each look waits a little for a change.
const LOOKS: u32 = 50;

/// What poll(2) says of a socket, now or when that changes soon.
fn ready_soon(fd: RawFd, events: i16) -> bool {
    let mut one = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    c!(libc::poll(&mut one, 1, 1)) != 0
}

/// Reads until nothing is there, and nothing on its way.
fn read_all_there_is(connection: &mut Connection) {
    let server = servers_socket(connection);
    let peer = &mut connection.peer.0;
    let mut buffer = [0; 65_536];
    let mut empty = 0;
    until("all has been read", || {
        let mut on_its_way: libc::c_int = 0;
        let asked = c!(libc::ioctl(server, libc::TIOCOUTQ, &mut on_its_way));
        good("ioctl", asked);
        let there = ready_soon(peer.as_raw_fd(), libc::POLLIN);
        let more = there && peer.read(&mut buffer).is_ok_and(|n| n > 0);
        empty = if more || on_its_way > 0 { 0 } else { empty + 1 };
        empty > LOOKS
    });
}

/// Waits until the server's socket takes no more.
fn until_it_waits(connection: &Connection) {
    let fd = servers_socket(connection);
    let mut full = 0;
    until("nothing more fits into the socket", || {
        let takes = ready_soon(fd, libc::POLLOUT);
        full = if takes { 0 } else { full + 1 };
        full > LOOKS
    });
}

/// One frame each, of which one is on its way when nothing fits any more.
const LEN: usize = 250_000;
const MANY: u32 = 16;

/// Deregisters and changes the memory, once the server can not send any more.
fn deregistered_while_it_waits(connection: &Connection, mut memory: Memory) -> Memory {
    until_it_waits(connection);
    memory = soon("ibv_dereg_mr", move || {
        memory.deregister();
        memory
    });
    memory.fill(0);
    memory
}

#[test]
fn memory_is_deregistered_though_its_reader_takes_nothing() {
    for round in 0..4 {
        let mut connection = Connection::new();
        takes(&connection, 65_536);
        let source = connection.server.memory(LEN, ALL);
        source.fill(0x11);
        let At { addr, rkey } = source.at(0);
        let (at, len) = (Remote { addr, rkey }, LEN as u32 - round);
        for seq in 0..MANY {
            connection.say(Frame::Read { seq, at, len }, &[]);
        }
        let _source = deregistered_while_it_waits(&connection, source);
        takes(&connection, 4 << 20);
        let (mut answered, mut got) = (0, 0);
        loop {
            match connection.next() {
                (Frame::Data { seq, flags }, data) => {
                    assert_eq!(seq, answered);
                    got += data.len();
                    // What is not all of an answer need not be right.
                    if flags.contains(Flags::LAST) {
                        assert_eq!(got, len as usize, "the length of answer {seq}");
                        same(
                            &format!("answer {seq}"),
                            &connection.message,
                            &vec![0x11; got],
                        );
                        (answered, got) = (answered + 1, 0);
                        assert!(answered < MANY, "all was answered, and so nothing waited");
                    }
                }
                (Frame::Nak(seq, Nak::AccessError), _) => {
                    assert_eq!(seq, answered);
                    break;
                }
                (other, _) => panic!("{other:?}"),
            }
        }
        // As after any request that is refused.
        assert_eq!(connection.server.state(), ibv_qp_state::IBV_QPS_ERR);
        assert_eq!(connection.next().0, Frame::Failed);
    }
}

#[test]
fn memory_is_deregistered_though_the_one_it_is_sent_to_takes_nothing() {
    for write in [false, true] {
        let mut connection = Connection::new();
        takes(&connection, 65_536);
        let source = connection.server.memory(LEN, LOCAL);
        source.fill(0x11);
        let op = match write {
            true => Op::Write(At { addr: 8, rkey: 1 }),
            false => Op::Send,
        };
        let wrs: Vec<Wr> = (0..MANY.into())
            .map(|id| Wr::new(id, op, vec![source.sge(0, LEN)]))
            .collect();
        connection.server.post_by(Interface::List, &wrs);
        let _source = deregistered_while_it_waits(&connection, source);
        takes(&connection, 4 << 20);
        let mut sent = 0;
        while let Some((frame, _)) = connection.next_or_end() {
            match frame {
                Frame::Send { seq, flags, .. } | Frame::Write { seq, flags, .. } => {
                    if flags.contains(Flags::LAST) {
                        same(
                            &format!("message {sent}"),
                            &connection.message,
                            &[0x11; LEN],
                        );
                        connection.say(Frame::Ack(seq), &[]);
                        sent += 1;
                        assert!(sent < MANY, "all were sent, and so nothing waited");
                    }
                }
                Frame::Failed => break,
                other => panic!("{other:?}"),
            }
        }
        for id in 0..sent.into() {
            connection.server.send_cq.expect(id, SUCCESS);
        }
        connection.server.send_cq.expect(sent.into(), LOC_PROT);
    }
}

/// What fails on its way may have been refused there, too.
#[test]
fn a_message_that_failed_has_no_receive() {
    const LONG: usize = 32 << 20;
    let mut connection = Connection::new();
    takes(&connection, 65_536);
    let source = connection.server.memory(LONG, LOCAL);
    let wrs = [
        Wr::new(0, Op::Send, vec![]),
        Wr::new(1, Op::Send, vec![source.sge(0, LONG)]),
    ];
    connection.server.post_by(Interface::List, &wrs);
    let _source = deregistered_while_it_waits(&connection, source);
    // What is on its way comes, and nothing after it: it has failed by then.
    read_all_there_is(&mut connection);
    connection.say(Frame::NotReady { seq: 1, timer: 1 }, &[]);
    connection.server.send_cq.expect(0, SUCCESS);
    connection.server.send_cq.expect(1, LOC_PROT);
}

#[test]
fn requests_are_flushed_though_the_one_they_are_for_takes_nothing() {
    for disconnects in [false, true] {
        let mut connection = Connection::new();
        takes(&connection, 65_536);
        let source = connection.server.memory(LEN, LOCAL);
        source.fill(0x11);
        let wrs: Vec<Wr> = (0..MANY.into())
            .map(|id| Wr::new(id, Op::Send, vec![source.sge(0, LEN)]))
            .collect();
        connection.server.post_by(Interface::List, &wrs);
        until_it_waits(&connection);
        if disconnects {
            connection.server.id.disconnect();
        } else {
            connection.server.fail();
        }
        for id in 0..MANY.into() {
            connection.server.send_cq.expect(id, FLUSHED);
        }
        // It is the program's again.
        source.fill(0);
        takes(&connection, 4 << 20);
        let mut sent = 0;
        loop {
            match connection.next() {
                (Frame::Send { flags, .. }, _) => {
                    if flags.contains(Flags::LAST) {
                        same(
                            &format!("message {sent}"),
                            &connection.message,
                            &[0x11; LEN],
                        );
                        sent += 1;
                        assert!(sent < MANY, "all were sent, and so nothing waited");
                    }
                }
                (Frame::Failed, _) if !disconnects => break,
                (Frame::Disconnect, _) if disconnects => break,
                (other, _) => panic!("{other:?}"),
            }
        }
    }
}

/// Where messages are answered in turn, an acknowledgement waits for the answer, but not for ever.
#[test]
fn an_acknowledgement_comes_though_others_never_stop_talking() {
    const TURNS: u32 = 12;
    let (mut connection, other) = (Connection::new(), Connection::new());
    let mut talker = other.peer.0.try_clone().unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let words = encoded(&Frame::ReadyAgain, &[]).repeat(8192);
            while !stop.load(Ordering::Relaxed) {
                talker.write_all(&words).unwrap();
            }
        });
        let server = &connection.server;
        let (comp, recv_cq) = (&server.comp, &server.recv_cq);
        let mut said = Ok(());
        for seq in 0..TURNS {
            server.recv(1, vec![]);
            recv_cq.arm(false);
            let (flags, imm) = (ALONE, 0);
            connection
                .peer
                .say(&encoded(&Frame::Send { seq, flags, imm }, &[]));
            if !comp.wait(LIMIT) || recv_cq.poll() == Ok(None) {
                said = Err("a message has not come");
                break;
            }
            if seq + 1 < TURNS {
                let answer = post_list(server.qp(), &[Wr::new(2, Op::Send, vec![]).unsignaled()]);
                if answer.is_err() {
                    said = Err("no answer can be posted");
                    break;
                }
                connection.peer.say(&encoded(&Frame::Ack(seq), &[]));
            }
        }
        let acknowledged = said.map(|()| {
            let mut buffer = vec![];
            let mut part = [0; 4096];
            loop {
                let frame = frames::decode(&buffer).unwrap_or(None);
                if let Some((frame, fields, payload)) = frame {
                    if frame == Frame::Ack(TURNS - 1) {
                        return true;
                    }
                    buffer.drain(..fields + payload);
                    continue;
                }
                match connection.peer.0.read(&mut part) {
                    Ok(n) if n > 0 => buffer.extend_from_slice(&part[..n]),
                    _ => return false,
                }
            }
        });
        stop.store(true, Ordering::Relaxed);
        assert_eq!(
            acknowledged,
            Ok(true),
            "whether the last one is acknowledged"
        );
    });
}
