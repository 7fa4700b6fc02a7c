//! Who makes progress: no connection waits for what a program does, or does not do, with another.

use crate::common::*;
use rdma_sys::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

/// Runs on another thread while this one keeps the queue pair locked, as `ibv_wr_start` does.
#[track_caller]
fn while_locked(of: &Member, what: &str, run: impl FnOnce() + Send) {
    let qp = made("ibv_qp_to_qp_ex", c!(ibv_qp_to_qp_ex(of.qp())));
    thread::scope(|scope| {
        let (done, is_done) = channel();
        c!(ibv_wr_start(qp));
        let other = scope.spawn(move || {
            run();
            let _ = done.send(());
        });
        let waited = is_done.recv_timeout(LIMIT);
        c!(ibv_wr_abort(qp));
        if let Err(panic) = other.join() {
            std::panic::resume_unwind(panic);
        }
        assert!(
            waited.is_ok(),
            "{what} ends within {LIMIT:?}, though another thread keeps a queue pair locked"
        );
    });
}

/// Queues of two kinds of members: one alone, and four with a queue in common.
struct Group {
    members: Vec<Member>,
    peers: Vec<End>,
    alone: Cq,
    common: Cq,
    pd: Pd,
    _listener: Listener,
}

impl Group {
    #[track_caller]
    fn new() -> Self {
        Self::with(&ConnParam::default())
    }

    #[track_caller]
    fn with(param: &ConnParam) -> Self {
        let listener = Listener::new();
        let context = made("the device", c!((*listener.id.0).verbs));
        let pd = Pd::new(context);
        let [alone, common] = [(); 2].map(|()| Cq::new(context, 256, None));
        let (members, peers) = (0..5)
            .map(|i| {
                let cq = if i == 0 { &alone } else { &common };
                Member::connect(&listener, (&pd, cq, None), param)
            })
            .unzip();
        Group {
            members,
            peers,
            alone,
            common,
            pd,
            _listener: listener,
        }
    }
}

/// Has a peer read from the memory of its member, and takes the completion.
#[track_caller]
fn read(peer: &End, into: &Memory, from: &Memory) {
    peer.post(Wr::new(7, Op::Read(from.at(0)), vec![into.sge(0, 8)]));
    peer.send_cq.expect(7, SUCCESS);
}

/// A thread polls two queues and then one of them alone. What is asked of the connection of the
/// other is answered while it has polled only so often.
#[test]
fn a_queue_that_is_polled_no_more_does_not_starve_its_connection() {
    /// The device's thread looks after it every millisecond, in which a program polls some thousand
    /// times. Without that it were as often as it polls until it loses the processor: far over a
    /// million times with a processor of its own.
    const POLLS: u64 = 100_000;
    /// So often the queues are polled until each connection is left to who polls.
    const BEFORE: u64 = 10_000;
    alone(|| {
        let group = Group::new();
        let from = Memory::new(&group.pd, 8, ALL);
        let into: Vec<Memory> = group.peers.iter().map(|peer| peer.memory(8, ALL)).collect();
        let (both, stop) = (AtomicBool::new(true), AtomicBool::new(false));
        let polls = AtomicU64::new(0);
        let polled_since = |since: u64, most: u64| polls.load(Ordering::SeqCst) > since + most;
        let mut most = 0;
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    if both.load(Ordering::SeqCst) {
                        group.alone.is_empty();
                    }
                    group.common.is_empty();
                    polls.fetch_add(1, Ordering::SeqCst);
                }
            });
            for _ in 0..10 {
                both.store(true, Ordering::SeqCst);
                let before = polls.load(Ordering::SeqCst);
                while !polled_since(before, BEFORE) {
                    for (peer, into) in group.peers.iter().zip(&into) {
                        read(peer, into, &from);
                    }
                }
                both.store(false, Ordering::SeqCst);
                let before = polls.load(Ordering::SeqCst);
                // The last poll of both is over.
                until("the other thread polls", || polled_since(before, 1));
                let before = polls.load(Ordering::SeqCst);
                read(&group.peers[0], &into[0], &from);
                most = most.max(polls.load(Ordering::SeqCst) - before);
            }
            stop.store(true, Ordering::SeqCst);
        });
        assert!(
            most < POLLS,
            "a read is answered before another thread has polled {POLLS} times; it had polled {most} times"
        );
    });
}

#[test]
fn polling_does_not_wait_for_a_queue_pair_that_is_kept_locked() {
    alone(|| {
        let group = Group::new();
        for (i, member) in group.members.iter().enumerate() {
            let recvs: Vec<_> = (0..32).map(|_| (i as u64, vec![])).collect();
            assert_eq!(post_recvs(member.qp(), &recvs), Ok(()));
        }
        // Of the queue that is polled, and of another.
        for locked in [0, 1] {
            while_locked(&group.members[locked], "polling", || {
                for _ in 0..8 {
                    // The one that is kept locked receives as well.
                    for i in 0..5 {
                        group.peers[i].post(Wr::new(2, Op::Send, vec![]));
                        let cq = if i == 0 { &group.alone } else { &group.common };
                        cq.expect(i as u64, SUCCESS);
                        group.peers[i].send_cq.expect(2, SUCCESS);
                    }
                }
            });
        }
    });
}

#[test]
fn nobody_is_served_later_since_a_queue_pair_is_kept_locked() {
    alone(|| {
        let group = Group::new();
        let from = Memory::new(&group.pd, 8, ALL);
        let into = group.peers[1].memory(8, ALL);
        let member = &group.members[0];
        assert_eq!(post_recvs(member.qp(), &[(0, vec![])]), Ok(()));
        while_locked(member, "a read of another connection", || {
            group.peers[0].post(Wr::new(1, Op::Send, vec![]));
            for _ in 0..100 {
                read(&group.peers[1], &into, &from);
            }
        });
        // By the device's thread: nobody polls there.
        group.peers[0].send_cq.expect(1, SUCCESS);
        group.alone.expect(0, SUCCESS);
        // And the link is watched again.
        let into = group.peers[0].memory(8, ALL);
        for _ in 0..10 {
            read(&group.peers[0], &into, &from);
        }
    });
}

#[test]
fn a_timer_of_a_queue_pair_that_is_kept_locked_holds_up_nobody() {
    /// As `min_rnr_timer` of 0 says, and somewhat more.
    const RNR: Duration = Duration::from_millis(655 + 50);
    alone(|| {
        let param = ConnParam {
            rnr_retry: 1,
            ..ConnParam::default()
        };
        let group = Group::with(&param);
        let from = Memory::new(&group.pd, 8, ALL);
        let into: Vec<Memory> = group.peers.iter().map(|peer| peer.memory(8, ALL)).collect();
        let member = &group.members[0];
        // There is no receive for it.
        assert_eq!(
            post_list(member.qp(), &[Wr::new(5, Op::Send, vec![])]),
            Ok(())
        );
        // With the first read's answer it has come, and before the second one asks, this was told.
        for _ in 0..2 {
            read(&group.peers[0], &into[0], &from);
        }
        let begun = Instant::now();
        while_locked(member, "a read of another connection", || {
            while begun.elapsed() < RNR {
                read(&group.peers[1], &into[1], &from);
            }
            for _ in 0..10 {
                read(&group.peers[1], &into[1], &from);
            }
        });
        // The time is over, and the one time that it is sent again does not help.
        group.alone.expect(5, RNR_RETRY_EXC);
    });
}

#[test]
fn a_receive_for_many_is_posted_while_one_of_them_is_kept_locked() {
    alone(|| {
        let listener = Listener::new();
        let context = made("the device", c!((*listener.id.0).verbs));
        let pd = Pd::new(context);
        let cq = Cq::new(context, 256, None);
        let srq = Srq::new(&pd, 16);
        let connect = || Member::connect(&listener, (&pd, &cq, Some(&srq)), &ConnParam::default());
        let (member, peer) = connect();
        let there = peer.memory(8, ALL);
        let here = Memory::new(&pd, 8, ALL);
        peer.post(Wr::new(1, Op::Send, vec![]));
        // The answer of the read comes after the message, which finds no receive.
        let wr = Wr::new(2, Op::Read(there.at(0)), vec![here.sge(0, 8)]);
        assert_eq!(post_list(member.qp(), &[wr]), Ok(()));
        cq.expect(2, SUCCESS);
        while_locked(&member, "posting a receive", || {
            good("ibv_post_srq_recv", srq.recv(3, &[]));
        });
        cq.expect(3, SUCCESS);
        peer.send_cq.expect(1, SUCCESS);
        drop(member);
    });
}

#[test]
fn a_queue_is_armed_while_a_queue_pair_of_it_is_kept_locked() {
    alone(|| {
        let group = Group::new();
        let from = Memory::new(&group.pd, 8, ALL);
        let into = group.peers[0].memory(8, ALL);
        // Who polls is left alone with the link.
        for _ in 0..10_000 {
            group.alone.is_empty();
        }
        let member = &group.members[0];
        while_locked(member, "arming", || group.alone.arm(false));
        // Who has armed it does not look after the link any more.
        read(&group.peers[0], &into, &from);
    });
}
