//! Peers that speak something else, or say nothing: they lose the connection, cost nothing, and the
//! program is told why.

use crate::common::*;
use crate::raw_peer::*;
use softverbs::proto::frames::HEADER;
use softverbs::proto::frames::{Frame, Private};
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

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
