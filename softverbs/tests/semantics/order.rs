//! What comes before what, and what is there when a completion says so.

use crate::common::*;
use rdma_sys::*;
use softverbs::exports::memory::ibv_rereg_mr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[test]
fn a_received_message_says_that_the_writes_before_it_are_there() {
    const ROUNDS: u64 = 10_000;
    let pair = Pair::new();
    let to = pair.server.memory(4096, ALL);
    let from = pair.client.memory(4096, LOCAL);
    for _ in 0..32 {
        pair.server.recv(0, vec![to.sge(4088, 8)]);
    }
    for round in 1..=ROUNDS {
        // Of all sizes, so that they come by all ways.
        let words = 1 + (round * 7919 % 500) as usize;
        for i in 0..words {
            from.write(8 * i, &round.to_ne_bytes());
        }
        let wrs = [
            Wr::new(1, Op::Write(to.at(0)), vec![from.sge(0, 8 * words)]).unsignaled(),
            Wr::new(round, Op::Send, vec![from.sge(0, 8)]),
        ];
        pair.client.post_by(BOTH[round as usize % 2], &wrs);
        pair.server.recv_cq.expect(0, SUCCESS);
        assert_eq!(to.word(4088), round, "the message");
        let stale = (0..words).find(|i| to.word(8 * i) != round);
        assert_eq!(
            stale, None,
            "round {round} of {words} words: one that is not there"
        );
        pair.server.recv(0, vec![to.sge(4088, 8)]);
        pair.client.send_cq.expect(round, SUCCESS);
    }
}

#[test]
fn immediate_data_says_that_all_before_it_is_there() {
    let pair = Pair::new();
    let to = pair.server.memory(300_000, ALL);
    let from = pair.client.memory(300_000, LOCAL);
    for round in 0..200u32 {
        let data = pattern(round.into(), 300_000);
        from.write(0, &data);
        pair.server.recv(0, vec![]);
        let wrs = [
            Wr::new(1, Op::Write(to.at(0)), vec![from.sge(0, 150_000)]).unsignaled(),
            Wr::new(
                2,
                Op::WriteImm(to.at(150_000), round),
                vec![from.sge(150_000, 150_000)],
            ),
        ];
        pair.client.post_by(Interface::List, &wrs);
        assert_eq!(pair.server.recv_cq.expect(0, SUCCESS).imm, Some(round));
        same(&format!("round {round}"), &to.read(0, 300_000), &data);
        pair.client.send_cq.expect(2, SUCCESS);
    }
}

#[test]
fn one_sided_operations_need_nothing_of_the_target() {
    // Its thread sleeps, it polls nothing: the words come nonetheless.
    let pair = Pair::new();
    let to = pair.server.memory(64, ALL);
    let from = pair.client.memory(64, LOCAL);
    let word = c!(AtomicU64::from_ptr(to.ptr().cast()));
    for i in 1..=100u64 {
        from.write(0, &i.to_ne_bytes());
        pair.client
            .post(Wr::new(i, Op::Write(to.at(0)), vec![from.sge(0, 8)]));
        until("the word is there", || word.load(Ordering::Acquire) == i);
        pair.client.send_cq.expect(i, SUCCESS);
    }
}

#[test]
fn a_read_sees_the_write_before_it() {
    let pair = Pair::new();
    let to = pair.server.memory(1 << 17, ALL);
    let from = pair.client.memory(1 << 17, LOCAL);
    let back = pair.client.memory(1 << 17, LOCAL);
    for round in 0..300u64 {
        let len = [1, 8, 1000, 5000, 100_000][round as usize % 5];
        let data = pattern(round, len);
        from.write(0, &data);
        let wrs = [
            Wr::new(1, Op::Write(to.at(3)), vec![from.sge(0, len)]).unsignaled(),
            Wr::new(2, Op::Read(to.at(3)), vec![back.sge(0, len)]),
        ];
        pair.client.post_by(BOTH[round as usize % 2], &wrs);
        pair.client.send_cq.expect(2, SUCCESS);
        same(&format!("round {round}"), &back.read(0, len), &data);
    }
}

#[test]
fn what_is_fenced_waits_for_what_was_read() {
    let pair = Pair::new();
    let source = pair.server.memory(1 << 20, ALL);
    let to = pair.server.memory(1 << 20, ALL);
    let memory = pair.client.memory(1 << 20, LOCAL);
    for round in 0..30 {
        let data = pattern(round, 1 << 20);
        source.write(0, &data);
        memory.fill(0);
        pair.server.recv(9, vec![to.sge(0, 1 << 20)]);
        let all = || vec![memory.sge(0, 1 << 20)];
        // What is read is sent back, which only works if all of it is there by then.
        let wrs = [
            Wr::new(1, Op::Read(source.at(0)), all()),
            Wr::new(2, Op::Send, all()).with(FENCE),
        ];
        pair.client.post_by(BOTH[round as usize % 2], &wrs);
        pair.client.send_cq.expect(1, SUCCESS);
        pair.client.send_cq.expect(2, SUCCESS);
        pair.server.recv_cq.expect(9, SUCCESS);
        same(&format!("round {round}"), &to.read(0, 1 << 20), &data);
    }
}

#[test]
fn what_is_fenced_waits_for_an_atomic() {
    let pair = Pair::new();
    let counter = pair.server.memory(8, ALL);
    let to = pair.server.memory(8, ALL);
    let result = pair.client.memory(8, LOCAL);
    for round in 0..1000u64 {
        let wrs = [
            Wr::new(1, Op::FetchAdd(counter.at(0), 1), vec![result.sge(0, 8)]).unsignaled(),
            Wr::new(2, Op::Write(to.at(0)), vec![result.sge(0, 8)]).with(FENCE),
        ];
        pair.client.post_by(BOTH[round as usize % 2], &wrs);
        pair.client.send_cq.expect(2, SUCCESS);
        assert_eq!(to.word(0), round);
    }
}

#[test]
fn more_reads_than_may_be_under_way_wait() {
    for depth in [1, 2, 3] {
        let pair = Pair::with(|setup| setup.client.initiator_depth = depth);
        let source = pair.server.memory(64 * 5000, ALL);
        let to = pair.client.memory(64 * 5000, LOCAL);
        source.write(0, &pattern(3, 64 * 5000));
        let wrs: Vec<Wr> = (0..64)
            .map(|id| {
                let at = 5000 * id as usize;
                match id % 8 {
                    7 => Wr::new(id, Op::Write(source.at(at)), vec![to.sge(at, 0)]),
                    _ => Wr::new(id, Op::Read(source.at(at)), vec![to.sge(at, 5000)]),
                }
            })
            .collect();
        pair.client.post_by(Interface::List, &wrs);
        for id in 0..64 {
            pair.client.send_cq.expect(id, SUCCESS);
            if id % 8 != 7 {
                let at = 5000 * id as usize;
                same("what was read", &to.read(at, 5000), &source.read(at, 5000));
            }
        }
    }
}

#[test]
fn both_directions_at_once() {
    // Each side has much to send and much to answer, and neither waits for the other.
    let pair = Pair::new();
    let memories = [&pair.client, &pair.server].map(|end| {
        let source = end.memory(4 << 20, ALL);
        source.write(0, &pattern(end as *const End as u64, 4 << 20));
        (source, end.memory(4 << 20, ALL), end.memory(4 << 20, ALL))
    });
    for _ in 0..3 {
        for (i, end) in [&pair.client, &pair.server].into_iter().enumerate() {
            let ((source, _, read), (other, written, _)) = (&memories[i], &memories[1 - i]);
            let wrs = [
                Wr::new(1, Op::Write(written.at(0)), vec![source.sge(0, 4 << 20)]),
                Wr::new(2, Op::Read(other.at(0)), vec![read.sge(0, 4 << 20)]),
            ];
            end.post_by(Interface::List, &wrs);
        }
        for end in [&pair.client, &pair.server] {
            end.send_cq.expect(1, SUCCESS);
            end.send_cq.expect(2, SUCCESS);
        }
        for i in 0..2 {
            let ((_, written, read), (other, ..)) = (&memories[i], &memories[1 - i]);
            let expected = other.read(0, 4 << 20);
            same("written", &written.read(0, 4 << 20), &expected);
            same("read", &read.read(0, 4 << 20), &expected);
            written.fill(0);
            read.fill(0);
        }
    }
}

// ---- deregistering ----

/// The client writes all the time while the server deregisters the memory: from then on no byte
/// of it may change.
fn deregistered_under_writes(len: usize) {
    for round in 0..8 {
        let pair = Pair::new();
        let mut to = pair.server.memory(len, ALL);
        let from = pair.client.memory(len, LOCAL);
        from.fill(0x11);
        let at = to.at(0);
        let enough = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let (client, from, enough) = (&pair.client, &from, &enough);
            scope.spawn(move || {
                let end = Instant::now() + LIMIT;
                let mut under_way = 0;
                loop {
                    assert!(Instant::now() < end, "the writes go on and on");
                    while under_way < 8 {
                        client.post(Wr::new(1, Op::Write(at), vec![from.sge(0, len)]));
                        under_way += 1;
                    }
                    let wc = client.send_cq.next();
                    under_way -= 1;
                    enough.fetch_add(1, Ordering::SeqCst);
                    if wc.status != SUCCESS {
                        assert_eq!(wc.status, REM_ACCESS);
                        break;
                    }
                }
                for _ in 0..under_way {
                    client.send_cq.expect(1, FLUSHED);
                }
            });
            until("the writes are on their way", || {
                enough.load(Ordering::SeqCst) > 3 + round
            });
            to.deregister();
            to.fill(0x77);
            let watch = Instant::now() + Duration::from_millis(15);
            let mut looks = 0;
            while Instant::now() < watch || looks < 3 {
                looks += 1;
                let changed = to.read(0, len).iter().position(|byte| *byte != 0x77);
                assert_eq!(
                    changed, None,
                    "a byte changed after the memory was deregistered"
                );
            }
        });
    }
}

#[test]
fn nothing_is_written_after_deregistering_small() {
    deregistered_under_writes(64);
}

#[test]
fn nothing_is_written_after_deregistering_middling() {
    deregistered_under_writes(20_000);
}

#[test]
fn nothing_is_written_after_deregistering_large() {
    deregistered_under_writes(3 << 20);
}

#[test]
fn nothing_is_received_after_deregistering() {
    const LEN: usize = 8 << 20;
    for round in 0..8 {
        let pair = Pair::new();
        let mut to = pair.server.memory(LEN, LOCAL);
        let from = pair.client.memory(LEN, LOCAL);
        from.fill(0x11);
        pair.server.recv(1, vec![to.sge(0, LEN)]);
        pair.client
            .post(Wr::new(2, Op::Send, vec![from.sge(0, LEN)]));
        let word = c!(AtomicU64::from_ptr(to.ptr().add(round << 17).cast()));
        until("the message is coming", || {
            word.load(Ordering::Acquire) != 0
        });
        to.deregister();
        to.fill(0x77);
        let receive = pair.server.recv_cq.next();
        let send = pair.client.send_cq.next();
        assert!(
            matches!(
                (receive.status, send.status),
                (SUCCESS, SUCCESS) | (LOC_PROT, REM_OP)
            ),
            "the receive ended with {:?}, the send with {:?}",
            receive.status,
            send.status
        );
        same("the memory", &to.read(0, LEN), &vec![0x77; LEN]);
    }
}

#[test]
fn what_is_read_is_right_or_refused_while_it_is_deregistered() {
    // Each answer is one frame, of which a part is on its way when the memory goes.
    const LEN: usize = 200_000;
    const READS: u64 = 16;
    for round in 0..20 {
        let pair = Pair::new();
        let mut source = pair.server.memory(LEN, ALL);
        let to = pair.client.memory(READS as usize * LEN, LOCAL);
        source.fill(0x11);
        let all: Vec<Wr> = (0..READS)
            .map(|i| {
                Wr::new(
                    i,
                    Op::Read(source.at(0)),
                    vec![to.sge(i as usize * LEN, LEN)],
                )
            })
            .collect();
        let word = c!(AtomicU64::from_ptr(
            to.ptr().add(round * LEN / 2 / 8 * 8).cast()
        ));
        pair.client.post_by(Interface::List, &all);
        until("the data is coming", || word.load(Ordering::Acquire) != 0);
        source.deregister();
        source.fill(0);
        let mut failed = false;
        for i in 0..READS as usize {
            let wc = pair.client.send_cq.next();
            match wc.status {
                SUCCESS => {
                    let data = to.read(i * LEN, LEN);
                    let wrong = data.iter().position(|byte| *byte != 0x11);
                    assert_eq!(
                        wrong, None,
                        "round {round}: read {i} was well, and has this wrong byte"
                    );
                }
                REM_ACCESS if !failed => failed = true,
                FLUSHED if failed => {}
                status => panic!("round {round}: read {i} ended with {status:?}"),
            }
        }
    }
}

#[test]
fn what_is_sent_is_right_or_does_not_come_while_it_is_deregistered() {
    const LEN: usize = 16 << 20;
    for round in 0..6 {
        let pair = Pair::new();
        let mut from = pair.client.memory(LEN, LOCAL);
        let to = pair.server.memory(2 * LEN, ALL);
        from.fill(0x11);
        pair.server.recv(1, vec![to.sge(0, LEN)]);
        pair.server.recv(2, vec![]);
        let all = || vec![from.sge(0, LEN)];
        let wrs = if round % 2 == 0 {
            vec![Wr::new(1, Op::Send, all())]
        } else {
            // What comes after it says that it has come.
            vec![
                Wr::new(1, Op::Write(to.at(0)), all()),
                Wr::new(2, Op::Send, vec![]),
            ]
        };
        pair.client.post_by(Interface::List, &wrs);
        let word = c!(AtomicU64::from_ptr(to.ptr().add(round << 20).cast()));
        until("the data is coming", || word.load(Ordering::Acquire) != 0);
        from.deregister();
        from.fill(0);
        let wc = pair.client.send_cq.next();
        if wc.status == SUCCESS {
            let wrong = to.read(0, LEN).iter().position(|byte| *byte != 0x11);
            assert_eq!(
                wrong, None,
                "round {round}: it was well, and this byte is wrong"
            );
            continue;
        }
        assert_eq!(wc.status, LOC_PROT);
        pair.client.id.disconnect();
        // Without a completion here, nobody takes what has come for a message.
        pair.server.channel.expect(RDMA_CM_EVENT_DISCONNECTED);
        let received = pair.server.recv_cq.poll().unwrap();
        assert!(
            received.is_none_or(|wc| wc.status == FLUSHED),
            "round {round}: the sender failed, and this was received: {received:?}"
        );
    }
}

#[test]
fn registering_anew_moves_the_writes() {
    let pair = Pair::new();
    let to = pair.server.memory(1 << 16, ALL);
    let from = pair.client.memory(1 << 16, LOCAL);
    let other = pair.server.memory(1 << 16, ALL);
    from.fill(0x11);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (client, from, stop, at) = (&pair.client, &from, &stop, to.at(0));
        scope.spawn(move || {
            while !stop.load(Ordering::SeqCst) {
                client.post(Wr::new(1, Op::Write(at), vec![from.sge(0, 4096)]));
                if client.send_cq.next().status != SUCCESS {
                    return;
                }
            }
        });
        until("the writes are on their way", || to.word(0) != 0);
        // Away from where it was: to write there is beyond the bounds from now on.
        let translation = ibv_rereg_mr_flags::IBV_REREG_MR_CHANGE_TRANSLATION.0 as i32;
        let place = other.ptr().cast();
        let changed = c!(ibv_rereg_mr(
            to.mr().0,
            translation,
            std::ptr::null_mut(),
            place,
            1 << 16,
            0
        ));
        assert_eq!(changed, 0, "ibv_rereg_mr");
        to.fill(0x77);
        until("the writes have stopped", || {
            pair.client.state() == ibv_qp_state::IBV_QPS_ERR
        });
        stop.store(true, Ordering::SeqCst);
    });
    same("where it was", &to.read(0, 1 << 16), &vec![0x77; 1 << 16]);
}

/// What this thread has had of a processor.
fn processor_time() -> Duration {
    let mut now = c!(std::mem::zeroed::<libc::timespec>());
    good(
        "clock_gettime",
        c!(libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut now)),
    );
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Who has many completions and works through them one by one polls all the time, and does not hold
/// up those who read its memory.
#[test]
fn reads_go_on_while_the_target_works_through_what_it_has() {
    const MESSAGES: u32 = 4000;
    const WORK: Duration = Duration::from_micros(100);
    let pair = Pair::with(|setup| {
        setup.cap.max_recv_wr = MESSAGES;
        setup.cqe = MESSAGES as i32;
    });
    let of_server = pair.server.memory(4096, ALL);
    let to = pair.client.memory(4096, LOCAL);
    of_server.fill(0x5a);
    for _ in 0..MESSAGES {
        pair.server.recv(1, vec![]);
    }
    for round in 1..=MESSAGES {
        let send = Wr::new(2, Op::Send, vec![]);
        if round.is_multiple_of(32) {
            pair.client.post(send);
            pair.client.send_cq.expect(2, SUCCESS);
        } else {
            pair.client.post(send.unsignaled());
        }
    }
    let (found, read) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (server, found, read) = (&pair.server, &found, &read);
        scope.spawn(move || {
            while !read.load(Ordering::SeqCst) && server.recv_cq.poll() != Ok(None) {
                found.fetch_add(1, Ordering::SeqCst);
                let until = processor_time() + WORK;
                while processor_time() < until {}
            }
        });
        until("the target is at work", || {
            found.load(Ordering::SeqCst) > MESSAGES as u64 / 8
        });
        pair.client.send_cq.arm(false);
        pair.client
            .post(Wr::new(3, Op::Read(of_server.at(0)), vec![to.sge(0, 8)]));
        let came = pair.client.comp.wait(LIMIT);
        read.store(true, Ordering::SeqCst);
        assert!(came, "the read has not completed");
    });
    pair.client.send_cq.expect(3, SUCCESS);
    same("what was read", &to.read(0, 8), &[0x5a; 8]);
    let found = found.load(Ordering::SeqCst);
    assert!(
        found < MESSAGES.into(),
        "the read took as long as all of the work"
    );
}
