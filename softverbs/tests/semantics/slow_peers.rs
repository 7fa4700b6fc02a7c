//! Peers that do not read, or never stop talking: what waits for them holds up nothing else.

use crate::common::*;
use crate::raw_peer::*;
use rdma_sys::ibv_qp_state;
use softverbs::proto::frames::{self, Flags, Frame, Nak, Remote};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

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
