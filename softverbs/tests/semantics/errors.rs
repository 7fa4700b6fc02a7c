//! What goes wrong: with which status, in which order, and what is left.

use crate::common::*;
use rdma_sys::*;
use softverbs::exports::cm::{rdma_connect, rdma_establish, rdma_init_qp_attr};
use softverbs::exports::cq::{ibv_destroy_comp_channel, ibv_destroy_cq};
use softverbs::exports::memory::{ibv_dealloc_pd, ibv_dereg_mr, ibv_reg_mr};
use softverbs::exports::qp::{create_qp_ex, ibv_destroy_qp, ibv_modify_qp, ibv_query_qp};
use softverbs::exports::srq::ibv_destroy_srq;
use std::ptr;

const ERR: ibv_qp_state::Type = ibv_qp_state::IBV_QPS_ERR;

/// Three requests after a bad one, of which two are not signaled: all of them are told of.
fn followers(from: &Memory, to: &Memory) -> Vec<Wr> {
    vec![
        Wr::new(101, Op::Write(to.at(0)), vec![from.sge(0, 8)]).unsignaled(),
        Wr::new(102, Op::Send, vec![from.sge(0, 8)]).unsignaled(),
        Wr::new(103, Op::Read(to.at(0)), vec![from.sge(0, 8)]),
    ]
}

/// That request fails so at the client, and all after it and all receives are flushed in order.
#[track_caller]
fn fails_so(
    change: impl FnOnce(&mut Setup),
    bad: impl FnOnce(&Pair, &Memory, &Memory) -> Wr,
    status: Status,
) -> Pair {
    let pair = Pair::with(change);
    {
        let from = pair.client.memory(4096, LOCAL);
        let to = pair.server.memory(4096, ALL);
        to.fill(0xaa);
        for id in 0..3 {
            pair.client.recv(200 + id, vec![from.sge(0, 64)]);
            pair.server.recv(300 + id, vec![to.sge(1024, 64)]);
        }
        let mut wrs = vec![
            // What comes before it is done.
            Wr::new(99, Op::Write(to.at(4088)), vec![from.sge(0, 8)]),
            bad(&pair, &from, &to),
        ];
        wrs.extend(followers(&from, &to));
        let how = match wrs[1].op {
            Op::Flush(..) => Interface::Extended,
            _ => Interface::List,
        };
        pair.client.post_by(how, &wrs);
        pair.client.send_cq.expect(99, SUCCESS);
        pair.client.send_cq.expect(wrs[1].id, status);
        for id in 101..=103 {
            pair.client.send_cq.expect(id, FLUSHED);
        }
        for id in 0..3 {
            pair.client.recv_cq.expect(200 + id, FLUSHED);
        }
        assert_eq!(
            pair.client.state(),
            ERR,
            "the state of the client's queue pair"
        );
        // Nothing of the bad one, and of what follows it, has happened.
        same("the target", &to.read(0, 4088), &[0xaa; 4088]);
        // What is posted now is flushed at once.
        pair.client
            .post(Wr::new(104, Op::Send, vec![]).unsignaled());
        pair.client.send_cq.expect(104, FLUSHED);
        pair.client.recv(203, vec![]);
        pair.client.recv_cq.expect(203, FLUSHED);
        assert!(pair.client.send_cq.is_empty() && pair.client.recv_cq.is_empty());
    }
    pair
}

/// As [`fails_so`], and the server's queue pair is in error as well, as the receiver of a request
/// that it refuses.
#[track_caller]
fn refused(bad: impl FnOnce(&Pair, &Memory, &Memory) -> Wr, status: Status) {
    let pair = fails_so(|_| {}, bad, status);
    until("the server's queue pair is in error", || {
        pair.server.state() == ERR
    });
    for id in 0..3 {
        pair.server.recv_cq.expect(300 + id, FLUSHED);
    }
}

/// As [`fails_so`], and the server takes no part in it.
#[track_caller]
fn fails_at_home(bad: impl FnOnce(&Pair, &Memory, &Memory) -> Wr) {
    let pair = fails_so(|_| {}, bad, LOC_PROT);
    assert_eq!(pair.server.state(), ibv_qp_state::IBV_QPS_RTS);
}

fn with_key(sge: ibv_sge, lkey: u32) -> Vec<ibv_sge> {
    vec![ibv_sge { lkey, ..sge }]
}

#[test]
fn a_local_key_that_is_none() {
    fails_at_home(|_, from, to| Wr::new(1, Op::Write(to.at(0)), with_key(from.sge(0, 8), 0xbad)));
    fails_at_home(|_, from, _| Wr::new(1, Op::Send, with_key(from.sge(0, 8), 0xbad)));
    fails_at_home(|_, from, to| Wr::new(1, Op::Read(to.at(0)), with_key(from.sge(0, 8), 0xbad)));
    fails_at_home(|_, from, to| {
        Wr::new(
            1,
            Op::FetchAdd(to.at(0), 1),
            with_key(from.sge(0, 8), 0xbad),
        )
    });
}

#[test]
fn a_remote_key_is_no_local_one() {
    fails_at_home(|_, from, to| {
        let rkey = from.mr().rkey();
        Wr::new(1, Op::Write(to.at(0)), with_key(from.sge(0, 8), rkey))
    });
}

#[test]
fn local_memory_beyond_its_bounds() {
    fails_at_home(|_, from, to| Wr::new(1, Op::Write(to.at(0)), vec![from.sge(4089, 8)]));
    fails_at_home(|_, from, _| Wr::new(1, Op::Send, vec![from.sge(0, 8), from.sge(0, 4097)]));
    fails_at_home(|_, from, to| Wr::new(1, Op::Read(to.at(0)), vec![from.sge(4096, 1)]));
    fails_at_home(|_, from, to| {
        let before = ibv_sge {
            addr: from.addr() - 1,
            ..from.sge(0, 8)
        };
        Wr::new(1, Op::Write(to.at(0)), vec![before])
    });
}

#[test]
fn local_memory_of_another_domain() {
    let other = Pair::new();
    let memory = other.client.memory(64, ALL);
    fails_at_home(|_, _, to| Wr::new(1, Op::Write(to.at(0)), vec![memory.sge(0, 8)]));
}

#[test]
fn local_memory_that_can_not_be_written() {
    for op in [0, 1] {
        let pair = Pair::new();
        let only_read = pair.client.memory(64, 0);
        let target = pair.server.memory(64, ALL);
        let op = match op {
            0 => Op::Read(target.at(0)),
            _ => Op::FetchAdd(target.at(0), 1),
        };
        pair.client.post(Wr::new(1, op, vec![only_read.sge(0, 8)]));
        pair.client.send_cq.expect(1, LOC_PROT);
    }
}

#[test]
fn a_receive_into_memory_that_is_none() {
    for bad in [0, 1, 2] {
        let pair = Pair::new();
        let to = pair.server.memory(64, if bad == 0 { 0 } else { LOCAL });
        let sges = match bad {
            0 => vec![to.sge(0, 64)],
            1 => with_key(to.sge(0, 64), 0xbad),
            _ => vec![to.sge(1, 64)],
        };
        pair.server.recv(1, sges);
        pair.server.recv(2, vec![]);
        let from = pair.client.memory(64, LOCAL);
        pair.client
            .post(Wr::new(3, Op::Send, vec![from.sge(0, 64)]));
        pair.server.recv_cq.expect(1, LOC_PROT);
        pair.server.recv_cq.expect(2, FLUSHED);
        pair.client.send_cq.expect(3, REM_OP);
        assert_eq!((pair.client.state(), pair.server.state()), (ERR, ERR));
    }
}

#[test]
fn a_remote_key_that_is_none() {
    let bad = |to: &Memory| At {
        rkey: to.mr().rkey() ^ 0x100,
        ..to.at(0)
    };
    refused(
        |_, from, to| Wr::new(1, Op::Write(bad(to)), vec![from.sge(0, 8)]),
        REM_ACCESS,
    );
    refused(
        |_, from, to| Wr::new(1, Op::WriteImm(bad(to), 1), vec![from.sge(0, 8)]),
        REM_ACCESS,
    );
    refused(
        |_, from, to| Wr::new(1, Op::Read(bad(to)), vec![from.sge(0, 8)]),
        REM_ACCESS,
    );
    refused(
        |_, from, to| Wr::new(1, Op::FetchAdd(bad(to), 1), vec![from.sge(0, 8)]),
        REM_ACCESS,
    );
    refused(
        |_, from, to| Wr::new(1, Op::CompareSwap(bad(to), 0, 1), vec![from.sge(0, 8)]),
        REM_ACCESS,
    );
    refused(
        |_, _, to| Wr::new(1, Op::AtomicWrite(bad(to), [1; 8]), vec![]),
        REM_ACCESS,
    );
    refused(
        |_, _, to| Wr::new(1, Op::Flush(bad(to), 8, 1, false), vec![]),
        REM_ACCESS,
    );
    refused(
        |_, _, to| Wr::new(1, Op::Flush(bad(to), 0, 1, true), vec![]),
        REM_ACCESS,
    );
}

#[test]
fn a_local_key_is_no_remote_one() {
    refused(
        |_, from, to| {
            let at = At {
                rkey: to.mr().lkey(),
                ..to.at(0)
            };
            Wr::new(1, Op::Write(at), vec![from.sge(0, 8)])
        },
        REM_ACCESS,
    );
}

#[test]
fn a_remote_key_of_another_domain() {
    let other = Pair::new();
    let memory = other.server.memory(64, ALL);
    refused(
        |_, from, _| Wr::new(1, Op::Write(memory.at(0)), vec![from.sge(0, 8)]),
        REM_ACCESS,
    );
}

#[test]
fn remote_memory_beyond_its_bounds() {
    let before = |to: &Memory| At {
        addr: to.addr() - 1,
        ..to.at(0)
    };
    refused(
        |_, from, to| Wr::new(1, Op::Write(to.at(4089)), vec![from.sge(0, 8)]),
        REM_ACCESS,
    );
    refused(
        |_, from, to| Wr::new(1, Op::Write(before(to)), vec![from.sge(0, 8)]),
        REM_ACCESS,
    );
    refused(
        |_, from, to| Wr::new(1, Op::Read(to.at(4089)), vec![from.sge(0, 8)]),
        REM_ACCESS,
    );
    refused(
        |_, from, to| Wr::new(1, Op::Read(before(to)), vec![from.sge(0, 8)]),
        REM_ACCESS,
    );
    refused(
        |_, from, to| Wr::new(1, Op::FetchAdd(to.at(4096), 1), vec![from.sge(0, 8)]),
        REM_ACCESS,
    );
    refused(
        |_, _, to| Wr::new(1, Op::AtomicWrite(to.at(4096), [1; 8]), vec![]),
        REM_ACCESS,
    );
    refused(
        |_, _, to| Wr::new(1, Op::Flush(to.at(1), 4096, 1, false), vec![]),
        REM_ACCESS,
    );
    let wraps = |to: &Memory| At {
        addr: u64::MAX - 3,
        ..to.at(0)
    };
    refused(
        |_, from, to| Wr::new(1, Op::Write(wraps(to)), vec![from.sge(0, 8)]),
        REM_ACCESS,
    );
}

#[test]
fn a_long_write_beyond_the_bounds_writes_nothing() {
    let pair = Pair::new();
    let to = pair.server.memory(1 << 20, ALL);
    let from = pair.client.memory(1 << 20, LOCAL);
    from.fill(1);
    pair.client
        .post(Wr::new(1, Op::Write(to.at(1)), vec![from.sge(0, 1 << 20)]));
    pair.client.send_cq.expect(1, REM_ACCESS);
    assert!(to.read(0, 1 << 20).iter().all(|byte| *byte == 0));
}

/// The target lets everything be done but that.
#[track_caller]
fn lacks(right: u32, op: impl FnOnce(At) -> Op) {
    refused_with(ALL & !right, op);
}

#[track_caller]
fn refused_with(access: u32, op: impl FnOnce(At) -> Op) {
    let pair = Pair::new();
    let target = pair.server.memory(64, access);
    let from = pair.client.memory(64, LOCAL);
    let sges = vec![from.sge(0, 8)];
    pair.server.recv(4, vec![]);
    let wr = Wr::new(1, op(target.at(0)), sges);
    let how = match wr.op {
        Op::Flush(..) => Interface::Extended,
        _ => Interface::List,
    };
    pair.client.post_by(how, &[wr]);
    pair.client.send_cq.expect(1, REM_ACCESS);
    pair.server.recv_cq.expect(4, FLUSHED);
    assert_eq!((pair.client.state(), pair.server.state()), (ERR, ERR));
}

#[test]
fn every_right_is_needed() {
    lacks(REMOTE_WRITE, Op::Write);
    lacks(REMOTE_WRITE, |at| Op::WriteImm(at, 1));
    lacks(REMOTE_WRITE, |at| Op::AtomicWrite(at, [1; 8]));
    lacks(REMOTE_READ, Op::Read);
    lacks(REMOTE_ATOMIC, |at| Op::FetchAdd(at, 1));
    lacks(REMOTE_ATOMIC, |at| Op::CompareSwap(at, 0, 1));
    lacks(FLUSH_GLOBAL, |at| Op::Flush(at, 8, 1, false));
    lacks(FLUSH_GLOBAL, |at| Op::Flush(at, 0, 1, true));
    // Of no memory that has no file can there be the right to this.
    lacks(0, |at| Op::Flush(at, 8, 2, false));
    lacks(0, |at| Op::Flush(at, 8, 3, false));
}

#[test]
fn atomics_are_aligned() {
    for at in [1, 4, 7, 12] {
        refused(
            |_, from, to| Wr::new(1, Op::FetchAdd(to.at(at), 1), vec![from.sge(0, 8)]),
            REM_INV_REQ,
        );
    }
    refused(
        |_, from, to| Wr::new(1, Op::CompareSwap(to.at(2), 0, 1), vec![from.sge(0, 8)]),
        REM_INV_REQ,
    );
    refused(
        |_, _, to| Wr::new(1, Op::AtomicWrite(to.at(4), [1; 8]), vec![]),
        REM_INV_REQ,
    );
}

#[test]
fn a_message_longer_than_its_receive() {
    for (len, room) in [(9, 8), (1, 0), (4097, 4096), (1 << 20, (1 << 20) - 1)] {
        for srq in [None, Some(8)] {
            let pair = Pair::with(|setup| setup.srq = srq);
            let from = pair.client.memory(len, LOCAL);
            let to = pair.server.memory(len + 64, LOCAL);
            from.fill(7);
            pair.server.recv(
                1,
                vec![to.sge(0, room / 2), to.sge(room / 2, room - room / 2)],
            );
            pair.client
                .post(Wr::new(2, Op::Send, vec![from.sge(0, len)]));
            pair.client.post(Wr::new(3, Op::Send, vec![]));
            pair.server.recv_cq.expect(1, LOC_LEN);
            pair.client.send_cq.expect(2, REM_INV_REQ);
            pair.client.send_cq.expect(3, FLUSHED);
            assert_eq!((pair.client.state(), pair.server.state()), (ERR, ERR));
            same("behind the receive", &to.read(room, 64), &[0; 64]);
        }
    }
}

// ---- no receive ----

#[test]
fn a_message_waits_for_its_receive() {
    for srq in [None, Some(8)] {
        let pair = Pair::with(|setup| setup.srq = srq);
        let from = pair.client.memory(1 << 20, LOCAL);
        let to = pair.server.memory(1 << 20, ALL);
        from.write(0, &pattern(4, 1 << 20));
        let wrs = [
            Wr::new(1, Op::Write(to.at(0)), vec![from.sge(0, 8)]),
            Wr::new(2, Op::Send, vec![from.sge(0, 1 << 20)]),
            Wr::new(3, Op::Write(to.at(0)), vec![from.sge(64, 8)]),
            Wr::new(4, Op::SendImm(4), vec![]),
            Wr::new(5, Op::WriteImm(to.at(0), 5), vec![from.sge(0, 16)]),
        ];
        pair.client.post_by(Interface::List, &wrs);
        pair.client.send_cq.expect(1, SUCCESS);
        assert!(pair.client.send_cq.is_empty(), "the message has no receive");
        same(
            "what is behind the message",
            &to.read(0, 8),
            &from.read(0, 8),
        );
        pair.server
            .recv(20, vec![to.sge(64, (1 << 20) - 64), to.sge(0, 64)]);
        pair.client.send_cq.expect(2, SUCCESS);
        pair.client.send_cq.expect(3, SUCCESS);
        pair.server.recv_cq.expect(20, SUCCESS);
        assert!(pair.client.send_cq.is_empty());
        pair.server.recv(21, vec![]);
        pair.client.send_cq.expect(4, SUCCESS);
        assert_eq!(pair.server.recv_cq.expect(21, SUCCESS).imm, Some(4));
        pair.server.recv(22, vec![]);
        pair.client.send_cq.expect(5, SUCCESS);
        assert_eq!(pair.server.recv_cq.expect(22, SUCCESS).imm, Some(5));
        same("the last write", &to.read(0, 16), &from.read(0, 16));
    }
}

#[test]
fn receives_one_by_one_for_messages_that_all_wait() {
    for srq in [None, Some(8)] {
        let pair = Pair::with(|setup| setup.srq = srq);
        let from = pair.client.memory(64 * 100, LOCAL);
        let to = pair.server.memory(100, LOCAL);
        from.write(0, &pattern(1, 6400));
        for round in 0..50 {
            let wrs: Vec<Wr> = (0..40)
                .map(|id| Wr::new(id, Op::Send, vec![from.sge(100 * id as usize, 100)]))
                .collect();
            pair.client.post_by(Interface::List, &wrs);
            for id in 0..40 {
                pair.server.recv(1000 + id, vec![to.sge(0, 100)]);
                pair.server.recv_cq.expect(1000 + id, SUCCESS);
                let expected = from.read(100 * id as usize, 100);
                same(
                    &format!("round {round}, message {id}"),
                    &to.read(0, 100),
                    &expected,
                );
                pair.client.send_cq.expect(id, SUCCESS);
            }
        }
    }
}

#[test]
fn a_message_gives_up_where_it_may_not_wait() {
    for retry in [0, 1] {
        for imm in [false, true] {
            // It is the receiver who says how often.
            let pair = Pair::with(|setup| setup.server.rnr_retry = retry);
            assert_eq!(pair.client.query().rnr_retry, retry);
            pair.server.set_min_rnr_timer(1);
            let from = pair.client.memory(64, LOCAL);
            let to = pair.server.memory(64, ALL);
            let op = match imm {
                true => Op::WriteImm(to.at(0), 1),
                false => Op::Send,
            };
            from.fill(1);
            pair.client.post(Wr::new(1, op, vec![from.sge(0, 8)]));
            pair.client
                .post(Wr::new(2, Op::Write(to.at(0)), vec![from.sge(0, 8)]));
            pair.client.send_cq.expect(1, RNR_RETRY_EXC);
            pair.client.send_cq.expect(2, FLUSHED);
            assert_eq!(pair.client.state(), ERR);
            assert_eq!(to.word(0), 0, "nothing was written");
        }
    }
}

/// The field has three bits; 7 is for ever. fio asks for more.
#[test]
fn more_retries_than_there_are_count_as_for_ever() {
    let pair = Pair::with(|setup| setup.server.rnr_retry = 10);
    assert_eq!(pair.client.query().rnr_retry, 7);
}

#[test]
fn a_receive_that_is_posted_after_the_message_came_is_too_late() {
    let pair = Pair::with(|setup| setup.server.rnr_retry = 0);
    let source = pair.client.memory(8, ALL);
    let into = pair.server.memory(8, ALL);
    pair.client.post(Wr::new(1, Op::Send, vec![]));
    // However it ends, the message has come by then.
    let read = Wr::new(2, Op::Read(source.at(0)), vec![into.sge(0, 8)]);
    pair.server.post(read);
    pair.server.send_cq.next();
    pair.server.recv(3, vec![]);
    pair.client.send_cq.expect(1, RNR_RETRY_EXC);
    assert_eq!(pair.client.state(), ERR);
}

#[test]
fn the_time_to_wait_is_the_receivers() {
    // 491.52 ms, and so not before; InfiniBand specification, RNR NAK timer.
    let pair = Pair::with(|setup| setup.server.rnr_retry = 1);
    pair.server.set_min_rnr_timer(31);
    let start = std::time::Instant::now();
    pair.client.post(Wr::new(1, Op::Send, vec![]));
    pair.client.send_cq.expect(1, RNR_RETRY_EXC);
    assert!(
        start.elapsed().as_millis() >= 491,
        "after {:?} already",
        start.elapsed()
    );
}

#[test]
fn reads_where_none_are_allowed() {
    for (client, server) in [(0, 16), (16, 0)] {
        let pair = Pair::with(|setup| {
            setup.client.initiator_depth = client;
            setup.server.responder_resources = server;
        });
        assert_eq!(pair.client.query().max_rd_atomic, 0);
        let from = pair.client.memory(64, LOCAL);
        let to = pair.server.memory(64, ALL);
        pair.client
            .post(Wr::new(1, Op::Write(to.at(0)), vec![from.sge(0, 8)]));
        pair.client.send_cq.expect(1, SUCCESS);
        pair.client
            .post(Wr::new(2, Op::Read(to.at(0)), vec![from.sge(0, 8)]));
        pair.client
            .post(Wr::new(3, Op::Write(to.at(0)), vec![from.sge(0, 8)]));
        pair.client.send_cq.expect(2, LOC_QP_OP);
        pair.client.send_cq.expect(3, FLUSHED);
    }
}

// ---- no room ----

#[test]
fn a_full_send_queue_takes_no_more() {
    let pair = Pair::with(|setup| setup.cap.max_send_wr = 4);
    // None of them is done before there is a receive.
    let send = |id| Wr::new(id, Op::Send, vec![]);
    let list: Vec<Wr> = (0..6).map(send).collect();
    assert_eq!(post_list(pair.client.qp(), &list), Err((libc::ENOMEM, 4)));
    assert_eq!(
        post_list(pair.client.qp(), &[send(9)]),
        Err((libc::ENOMEM, 0))
    );
    assert_eq!(
        post_extended(pair.client.qp(), &[send(9)]),
        Err(libc::ENOSPC)
    );
    for id in 0..4 {
        pair.server.recv(id, vec![]);
        pair.client.send_cq.expect(id, SUCCESS);
    }
    assert!(pair.client.send_cq.is_empty());
    // There is room for as many again, and for no more.
    assert_eq!(
        post_extended(pair.client.qp(), &list[..5]),
        Err(libc::ENOSPC)
    );
    pair.client.post_by(Interface::Extended, &list[..4]);
    assert_eq!(
        post_extended(pair.client.qp(), &[send(9)]),
        Err(libc::ENOSPC)
    );
}

#[test]
fn a_full_receive_queue_takes_no_more() {
    let pair = Pair::with(|setup| setup.cap.max_recv_wr = 4);
    let recvs: Vec<_> = (0..6).map(|id| (id, vec![])).collect();
    assert_eq!(post_recvs(pair.server.qp(), &recvs), Err((libc::ENOMEM, 4)));
    assert_eq!(
        post_recvs(pair.server.qp(), &recvs[..1]),
        Err((libc::ENOMEM, 0))
    );
    pair.client.post(Wr::new(1, Op::Send, vec![]));
    pair.server.recv_cq.expect(0, SUCCESS);
    assert_eq!(
        post_recvs(pair.server.qp(), &recvs[4..]),
        Err((libc::ENOMEM, 1))
    );
}

#[test]
fn a_full_shared_receive_queue_takes_no_more() {
    let pair = Pair::with(|setup| setup.srq = Some(3));
    let srq = pair.server.srq.as_ref().unwrap();
    let mut list: Vec<ibv_recv_wr> = (0..5)
        .map(|id| ibv_recv_wr {
            wr_id: id,
            next: ptr::null_mut(),
            sg_list: ptr::null_mut(),
            num_sge: 0,
        })
        .collect();
    for i in (1..5).rev() {
        list[i - 1].next = &raw mut list[i];
    }
    let mut bad = ptr::null_mut();
    let result = c!(ibv_post_srq_recv(srq.0, list.as_mut_ptr(), &mut bad));
    assert_eq!(
        (result, bad),
        (libc::ENOMEM, &raw mut list[3]),
        "the result, and the bad one"
    );
    for id in 0..3 {
        pair.client.post(Wr::new(id, Op::Send, vec![]));
        pair.server.recv_cq.expect(id, SUCCESS);
    }
    // A queue pair with a shared queue has none of its own.
    assert_eq!(
        post_recvs(pair.server.qp(), &[(1, vec![])]),
        Err((libc::EINVAL, 0))
    );
}

#[test]
fn nothing_can_be_posted_before_there_is_a_queue_to() {
    let channel = new_channel();
    let id = Id::new(&channel);
    let listener = Listener::new();
    id.resolve(&channel, &listener.address);
    let end = End::new(id, channel, &Setup::default());
    // Receives can: they are to be there before the first message.
    end.recv(1, vec![]);
    end.fail();
    end.recv_cq.expect(1, FLUSHED);
    end.post(Wr::new(2, Op::Send, vec![]));
    end.send_cq.expect(2, FLUSHED);
}

// ---- ends ----

#[test]
fn a_queue_pair_goes_only_where_it_may() {
    use ibv_qp_state::*;
    let modify = |qp, to: ibv_qp_state::Type| {
        let mut attr: ibv_qp_attr = c!(std::mem::zeroed());
        attr.qp_state = to;
        let mask = ibv_qp_attr_mask::IBV_QP_STATE.0 as i32;
        c!(ibv_modify_qp(qp, &mut attr, mask))
    };
    // As the kernel lets its software device, but for SQD. To be ready to receive takes more than to
    // say so.
    for (from, may) in [
        (IBV_QPS_RTS, &[IBV_QPS_RESET, IBV_QPS_RTS, IBV_QPS_ERR][..]),
        (IBV_QPS_ERR, &[IBV_QPS_RESET, IBV_QPS_ERR]),
        (IBV_QPS_RESET, &[IBV_QPS_RESET, IBV_QPS_INIT]),
        (IBV_QPS_INIT, &[IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_ERR]),
    ] {
        for to in [
            IBV_QPS_RESET,
            IBV_QPS_INIT,
            IBV_QPS_RTR,
            IBV_QPS_RTS,
            IBV_QPS_SQD,
            IBV_QPS_ERR,
        ] {
            let pair = Pair::new();
            let end = &pair.client;
            if from == IBV_QPS_INIT {
                assert_eq!(modify(end.qp(), IBV_QPS_RESET), 0);
            }
            assert_eq!(modify(end.qp(), from), 0);
            let (result, state) = if may.contains(&to) {
                (0, to)
            } else {
                (libc::EINVAL, from)
            };
            assert_eq!(modify(end.qp(), to), result, "from {from} to {to}");
            assert_eq!(end.state(), state, "after {from} to {to}");
        }
    }
}

fn modify(end: &End, mask: ibv_qp_attr_mask, set: impl FnOnce(&mut ibv_qp_attr)) -> i32 {
    let mut attr: ibv_qp_attr = c!(std::mem::zeroed());
    set(&mut attr);
    c!(ibv_modify_qp(end.qp(), &mut attr, mask.0 as i32))
}

/// One attribute that is wrong leaves all as it was.
#[test]
fn attributes_are_changed_together_or_not_at_all() {
    let pair = Pair::new();
    let before = pair.client.query();
    assert_ne!(before.min_rnr_timer, 9);
    let mask = ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER | ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS;
    let result = modify(&pair.client, mask, |attr| attr.min_rnr_timer = 32);
    assert_eq!(result, libc::EINVAL);
    let mask = mask | ibv_qp_attr_mask::IBV_QP_CUR_STATE;
    let result = modify(&pair.client, mask, |attr| {
        attr.min_rnr_timer = 9;
        attr.cur_qp_state = ibv_qp_state::IBV_QPS_INIT;
    });
    assert_eq!(result, libc::EINVAL);
    let after = pair.client.query();
    assert_eq!(after.min_rnr_timer, before.min_rnr_timer);
    assert_eq!(after.qp_access_flags, before.qp_access_flags);
}

/// Those that do nothing where they are given are not taken in silence: as by the kernel's software
/// device in Linux 6.1; that of 6.12 takes more of them, and does nothing.
#[test]
fn attributes_have_their_states() {
    type M = ibv_qp_attr_mask;
    let pair = Pair::new();
    for bit in 0..31 {
        let mask = ibv_qp_attr_mask(1 << bit);
        let may = [
            M::IBV_QP_CUR_STATE,
            M::IBV_QP_ACCESS_FLAGS,
            M::IBV_QP_MIN_RNR_TIMER,
            M::IBV_QP_PATH_MIG_STATE,
        ];
        let expected = match bit {
            _ if may.contains(&mask) || mask == M::IBV_QP_STATE => 0,
            21.. => libc::EOPNOTSUPP,
            _ => libc::EINVAL,
        };
        let result = modify(&pair.client, mask, |attr| {
            attr.qp_state = ibv_qp_state::IBV_QPS_RTS;
            attr.cur_qp_state = ibv_qp_state::IBV_QPS_RTS;
            attr.qp_access_flags = 0xe;
        });
        assert_eq!(result, expected, "bit {bit}");
    }
}

/// As connection management says, step by step; and what was given is told again.
#[test]
fn a_program_moves_its_queue_pair_itself() {
    use ibv_qp_state::*;
    let listener = Listener::new();
    let channel = new_channel();
    let id = Id::new(&channel);
    id.resolve(&channel, &listener.address);
    let pd = Pd::new(c!((*id.0).verbs));
    let cq = Cq::new(c!((*id.0).verbs), 4, None);
    let mut attr: ibv_qp_init_attr_ex = c!(std::mem::zeroed());
    (attr.send_cq, attr.recv_cq, attr.pd) = (cq.0, cq.0, pd.0);
    attr.cap.max_send_wr = 1;
    attr.cap.max_send_sge = 1;
    attr.qp_type = ibv_qp_type::IBV_QPT_RC;
    let flags = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_CREATE_FLAGS;
    attr.comp_mask = (ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD | flags).0;
    attr.create_flags = 1;
    let create = |attr: &mut _| c!(create_qp_ex((*id.0).verbs, attr));
    assert!(create(&mut attr).is_null(), "a flag of the device's own");
    attr.create_flags = 0;
    let qp = made("create_qp_ex", create(&mut attr));

    let mut param = ConnParam::default().c();
    param.qp_num = c!((*qp).qp_num);
    good("rdma_connect", c!(rdma_connect(id.0, &mut param)));
    let server = listener.accept(&Setup::default());
    channel.expect(RDMA_CM_EVENT_CONNECT_RESPONSE);
    for state in [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS] {
        let (mut attr, mut mask): (ibv_qp_attr, _) = c!((std::mem::zeroed(), 0));
        attr.qp_state = state;
        let result = c!(rdma_init_qp_attr(id.0, &mut attr, &mut mask));
        good("rdma_init_qp_attr", result);
        if state == IBV_QPS_RTS {
            (attr.timeout, attr.retry_cnt) = (17, 3);
        }
        assert_eq!(c!(ibv_modify_qp(qp, &mut attr, mask)), 0, "to {state}");
    }
    let (mut attr, mut init) = c!((std::mem::zeroed::<ibv_qp_attr>(), std::mem::zeroed()));
    good(
        "ibv_query_qp",
        c!(ibv_query_qp(qp, &mut attr, 0, &mut init)),
    );
    assert_eq!((attr.timeout, attr.retry_cnt), (17, 3));
    // Those of flushing, too, as the device has it.
    assert_eq!(attr.qp_access_flags, 0x30e);
    good("rdma_establish", c!(rdma_establish(id.0)));
    server.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
    server.recv(1, vec![]);
    assert_eq!(post_list(qp, &[Wr::new(2, Op::Send, vec![])]), Ok(()));
    server.recv_cq.expect(1, SUCCESS);
    drop(id);
    assert_eq!(c!(ibv_destroy_qp(qp)), 0);
}

/// What a queue pair does not let the other side do is an operation that it does not know.
#[test]
fn the_queue_pair_permits_as_well_as_the_region() {
    for (needs, op) in [
        (REMOTE_WRITE, Op::Write as fn(At) -> Op),
        (REMOTE_READ, Op::Read),
        (REMOTE_WRITE, |at| Op::WriteImm(at, 1)),
        (REMOTE_WRITE, |at| Op::AtomicWrite(at, [1; 8])),
        (FLUSH_GLOBAL, |at| Op::Flush(at, 8, 1, false)),
        (REMOTE_ATOMIC, |at| Op::FetchAdd(at, 1)),
        (REMOTE_ATOMIC, |at| Op::CompareSwap(at, 0, 1)),
    ] {
        for permitted in [needs, ALL & !LOCAL & !needs] {
            let pair = Pair::new();
            let (from, to) = (pair.client.memory(8, ALL), pair.server.memory(8, ALL));
            let mask = ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS;
            let result = modify(&pair.server, mask, |attr| attr.qp_access_flags = permitted);
            assert_eq!(result, 0);
            assert_eq!(pair.server.query().qp_access_flags, permitted);
            pair.server.recv(1, vec![]);
            let wr = Wr::new(1, op(to.at(0)), vec![from.sge(0, 8)]);
            wr.post(pair.client.qp(), false);
            let expected = if permitted == needs {
                SUCCESS
            } else {
                REM_INV_REQ
            };
            pair.client.send_cq.expect(1, expected);
        }
    }
}

#[test]
fn what_is_outstanding_is_flushed_in_order() {
    let pair = Pair::new();
    for id in 0..20 {
        let wr = Wr::new(id, Op::Send, vec![]);
        pair.client
            .post(if id % 2 == 0 { wr.unsignaled() } else { wr });
        pair.client.recv(100 + id, vec![]);
    }
    pair.client.fail();
    for id in 0..20 {
        pair.client.send_cq.expect(id, FLUSHED);
        pair.client.recv_cq.expect(100 + id, FLUSHED);
    }
    assert_eq!(pair.client.state(), ERR);
    // The other side asks in vain.
    pair.server.post(Wr::new(1, Op::Send, vec![]));
    pair.server.post(Wr::new(2, Op::Send, vec![]));
    pair.server.send_cq.expect(1, RETRY_EXC);
    pair.server.send_cq.expect(2, FLUSHED);
}

#[test]
fn disconnecting_flushes() {
    let pair = Pair::new();
    pair.client.recv(1, vec![]);
    pair.client.post(Wr::new(2, Op::Send, vec![]));
    pair.server.recv(4, vec![]);
    pair.server.post(Wr::new(5, Op::Send, vec![]));
    pair.server.send_cq.expect(5, SUCCESS);
    pair.client.recv_cq.expect(1, SUCCESS);
    pair.client.send_cq.expect(2, SUCCESS);
    pair.server.recv_cq.expect(4, SUCCESS);
    pair.client.recv(6, vec![]);
    pair.client.post(Wr::new(7, Op::Send, vec![]));
    pair.client.id.disconnect();
    pair.client.recv_cq.expect(6, FLUSHED);
    pair.client.send_cq.expect(7, FLUSHED);
    pair.server.channel.expect(RDMA_CM_EVENT_DISCONNECTED);
    pair.server.recv(8, vec![]);
    pair.server.id.disconnect();
    pair.server.recv_cq.expect(8, FLUSHED);
    pair.client.channel.expect(RDMA_CM_EVENT_DISCONNECTED);
}

#[test]
fn a_queue_pair_that_is_destroyed_answers_no_more() {
    let pair = Pair::new();
    pair.server.id.destroy_qp();
    pair.client.post(Wr::new(1, Op::Send, vec![]));
    pair.client.send_cq.expect(1, RETRY_EXC);
    assert_eq!(pair.client.state(), ERR);
}

#[test]
fn a_peer_that_is_killed() {
    if role().is_some() {
        let listener = Listener::new();
        tell(listener.address.port());
        let server = listener.accept(&Setup::default());
        let memory = server.memory(64, ALL);
        server.recv(1, vec![memory.sge(0, 64)]);
        tell(format!("{} {}", memory.at(0).addr, memory.at(0).rkey));
        wait_to_go_on();
        return;
    }
    let mut part = Part::start("server");
    let port = part.told().parse().unwrap();
    let to = (std::net::Ipv4Addr::LOCALHOST, port).into();
    let client = begin(&to, &Setup::default());
    client.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
    part.told();
    client.post(Wr::new(0, Op::Send, vec![]));
    client.send_cq.expect(0, SUCCESS);
    // For these there is no receive.
    for id in 1..5 {
        client.post(Wr::new(id, Op::Send, vec![]));
        client.recv(10 + id, vec![]);
    }
    assert!(client.send_cq.is_empty() && client.channel.is_quiet());
    part.kill();
    client.send_cq.expect(1, RETRY_EXC);
    for id in 2..5 {
        client.send_cq.expect(id, FLUSHED);
    }
    for id in 1..5 {
        client.recv_cq.expect(10 + id, FLUSHED);
    }
    client.channel.expect(RDMA_CM_EVENT_DISCONNECTED);
    client.post(Wr::new(5, Op::Send, vec![]));
    client.send_cq.expect(5, FLUSHED);
    client.id.disconnect();
}

#[test]
fn a_peer_that_is_killed_while_nothing_is_asked() {
    if role().is_some() {
        let listener = Listener::new();
        tell(listener.address.port());
        let server = listener.accept(&Setup::default());
        server.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
        tell("established");
        wait_to_go_on();
        return;
    }
    let mut part = Part::start("server");
    let port = part.told().parse().unwrap();
    let to = (std::net::Ipv4Addr::LOCALHOST, port).into();
    let client = begin(&to, &Setup::default());
    client.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
    part.told();
    client.recv(4, vec![]);
    part.kill();
    client.channel.expect(RDMA_CM_EVENT_DISCONNECTED);
    // Nobody is left to send anything.
    client.recv_cq.expect(4, FLUSHED);
    client.post(Wr::new(5, Op::Send, vec![]));
    client.send_cq.expect(5, FLUSHED);
}

// ---- what is in use ----

#[test]
fn what_is_in_use_is_not_destroyed() {
    let pair = Pair::with(|setup| setup.srq = Some(4));
    let server = &pair.server;
    assert_eq!(
        c!(ibv_destroy_cq(server.send_cq.0)),
        libc::EBUSY,
        "the send queue's"
    );
    assert_eq!(
        c!(ibv_destroy_cq(server.recv_cq.0)),
        libc::EBUSY,
        "the receive queue's"
    );
    assert_eq!(
        c!(ibv_destroy_srq(server.srq.as_ref().unwrap().0)),
        libc::EBUSY,
        "the shared queue"
    );
    assert_eq!(
        c!(ibv_destroy_comp_channel(server.comp.0)),
        libc::EBUSY,
        "the channel"
    );
    assert_eq!(c!(ibv_dealloc_pd(server.pd.0)), libc::EBUSY, "the domain");
    server.id.destroy_qp();
    assert_eq!(
        c!(ibv_dealloc_pd(server.pd.0)),
        libc::EBUSY,
        "the domain of a shared queue"
    );
}

#[test]
fn the_domain_of_a_region_is_in_use() {
    let channel = new_channel();
    let id = Id::new(&channel);
    good("rdma_bind_addr", id.bind(&LOOPBACK));
    let pd = Pd::new(c!((*id.0).verbs));
    let mut memory = vec![0u8; 64];
    let mr = made(
        "ibv_reg_mr",
        c!(ibv_reg_mr(
            pd.0,
            memory.as_mut_ptr().cast(),
            64,
            LOCAL as i32
        )),
    );
    assert_eq!(c!(ibv_dealloc_pd(pd.0)), libc::EBUSY);
    assert_eq!(c!(ibv_dereg_mr(mr)), 0);
}
