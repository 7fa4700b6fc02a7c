//! Completion channels and asynchronous events: when there is one, and who is told.

use crate::common::*;
use rdma_sys::*;
use softverbs::exports::cq::{ibv_ack_cq_events, ibv_destroy_cq, ibv_get_cq_event};
use softverbs::exports::device::{
    ibv_ack_async_event, ibv_close_device, ibv_free_device_list, ibv_get_async_event,
    ibv_get_device_list, ibv_open_device,
};
use softverbs::exports::qp::{ibv_create_qp, ibv_destroy_qp, ibv_modify_qp};
use softverbs::exports::srq::{ibv_modify_srq, ibv_query_srq};
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

/// So long nothing has to come before it counts as not coming. Nothing waits for longer than this
/// in vain, so a slow machine can only make a fault be missed.
const A_WHILE: Duration = Duration::from_millis(30);

fn acknowledge(cq: *mut ibv_cq, n: u32) {
    c!(ibv_ack_cq_events(cq, n));
}

/// The server gets a message.
fn message(pair: &Pair, flags: u32) {
    pair.server.recv(1, vec![]);
    pair.client.post(Wr::new(2, Op::Send, vec![]).with(flags));
    pair.client.send_cq.expect(2, SUCCESS);
}

#[test]
fn an_event_comes_once_for_every_arming() {
    let pair = Pair::new();
    let (comp, cq) = (&pair.server.comp, &pair.server.recv_cq);
    message(&pair, 0);
    assert!(
        !readable(comp.fd(), A_WHILE),
        "an event of a queue that is not armed"
    );
    cq.expect(1, SUCCESS);
    cq.arm(false);
    assert!(
        !readable(comp.fd(), A_WHILE),
        "an event without a completion"
    );
    message(&pair, 0);
    assert_eq!(comp.take(), cq.0);
    message(&pair, 0);
    assert!(
        !readable(comp.fd(), A_WHILE),
        "a second event for one arming"
    );
    cq.expect(1, SUCCESS);
    cq.expect(1, SUCCESS);
    acknowledge(cq.0, 1);
}

#[test]
fn completions_from_before_the_arming_give_no_event() {
    let pair = Pair::new();
    let (comp, cq) = (&pair.server.comp, &pair.server.recv_cq);
    message(&pair, 0);
    cq.arm(false);
    // The client's completion comes only after the server's.
    assert!(
        !readable(comp.fd(), A_WHILE),
        "an event for what was there already"
    );
    cq.expect(1, SUCCESS);
    message(&pair, 0);
    assert_eq!(comp.take(), cq.0);
    cq.expect(1, SUCCESS);
    acknowledge(cq.0, 1);
}

#[test]
fn only_solicited_completions_give_an_event_where_asked() {
    let pair = Pair::new();
    let (comp, cq) = (&pair.server.comp, &pair.server.recv_cq);
    cq.arm(true);
    message(&pair, 0);
    assert!(
        !readable(comp.fd(), A_WHILE),
        "an event for an unsolicited message"
    );
    message(&pair, SOLICITED);
    assert_eq!(comp.take(), cq.0);
    // All is more than solicited, in whichever order they are asked for.
    cq.arm(false);
    cq.arm(true);
    message(&pair, 0);
    assert_eq!(comp.take(), cq.0);
    // With immediate data a write solicits, too; by the other interface as well.
    cq.arm(true);
    let to = pair.server.memory(8, ALL);
    pair.server.recv(1, vec![]);
    let wr = Wr::new(3, Op::WriteImm(to.at(0), 1), vec![]).with(SOLICITED);
    pair.client.post_by(Interface::Extended, &[wr]);
    assert_eq!(comp.take(), cq.0);
    // And so does an error.
    cq.arm(true);
    pair.server.recv(1, vec![]);
    pair.server.fail();
    assert_eq!(comp.take(), cq.0);
    acknowledge(cq.0, 4);
}

#[test]
fn completions_of_requests_give_events() {
    let pair = Pair::new();
    let (comp, cq) = (&pair.client.comp, &pair.client.send_cq);
    let to = pair.server.memory(8, ALL);
    let from = pair.client.memory(8, LOCAL);
    for i in 0..100 {
        cq.arm(false);
        pair.client
            .post(Wr::new(i, Op::Write(to.at(0)), vec![from.sge(0, 8)]));
        assert_eq!(comp.take(), cq.0, "round {i}");
        cq.expect(i, SUCCESS);
    }
    // Those that do not complete give none.
    cq.arm(false);
    pair.client
        .post(Wr::new(1, Op::Write(to.at(0)), vec![from.sge(0, 8)]).unsignaled());
    assert!(
        !readable(comp.fd(), A_WHILE),
        "an event for what is not signaled"
    );
    acknowledge(cq.0, 100);
}

#[test]
fn a_getter_wakes_for_an_event() {
    let pair = Pair::new();
    let (comp, cq) = (Shared(pair.server.comp.0), Shared(pair.server.recv_cq.0));
    for _ in 0..50 {
        pair.server.recv_cq.arm(false);
        let getter = std::thread::spawn(move || {
            let (mut got, mut context) = (ptr::null_mut(), ptr::null_mut());
            let result = c!(ibv_get_cq_event(comp.get(), &mut got, &mut context));
            (result, got == cq.get(), context as usize)
        });
        message(&pair, 0);
        assert_eq!(
            soon("the getter", || getter.join().unwrap()),
            (0, true, 0x77)
        );
        pair.server.recv_cq.expect(1, SUCCESS);
    }
    acknowledge(cq.get(), 50);
}

fn epoll_of(fd: RawFd, flags: i32) -> RawFd {
    let epoll = c!(libc::epoll_create1(libc::EPOLL_CLOEXEC));
    let mut event = libc::epoll_event {
        events: flags as u32,
        u64: 5,
    };
    let result = c!(libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &mut event));
    good("epoll_ctl", result);
    epoll
}

fn epoll_waits(epoll: RawFd, within: Duration) -> bool {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    c!(libc::epoll_wait(
        epoll,
        &mut event,
        1,
        within.as_millis() as i32
    )) == 1
}

#[test]
fn epoll_tells_of_events() {
    let pair = Pair::new();
    let (comp, cq) = (&pair.server.comp, &pair.server.recv_cq);
    set_nonblocking(comp.fd());
    let level = epoll_of(comp.fd(), libc::EPOLLIN);
    let edge = epoll_of(comp.fd(), libc::EPOLLIN | libc::EPOLLET);
    for round in 0..10 {
        assert!(
            !epoll_waits(level, NOW) && !epoll_waits(edge, NOW),
            "round {round}"
        );
        cq.arm(false);
        message(&pair, 0);
        assert!(
            epoll_waits(level, LIMIT) && epoll_waits(edge, LIMIT),
            "round {round}"
        );
        assert_eq!(comp.take(), cq.0);
        cq.expect(1, SUCCESS);
    }
    acknowledge(cq.0, 10);
    c!(libc::close(level));
    c!(libc::close(edge));
}

/// Also while others have not been taken.
#[test]
fn each_event_is_an_edge() {
    let pair = Pair::new();
    let server = &pair.server;
    let edge = epoll_of(server.comp.fd(), libc::EPOLLIN | libc::EPOLLET);
    server.recv_cq.arm(false);
    message(&pair, 0);
    assert!(epoll_waits(edge, LIMIT));
    assert!(!epoll_waits(edge, NOW));
    server.send_cq.arm(false);
    pair.client.recv(1, vec![]);
    server.post(Wr::new(2, Op::Send, vec![]));
    assert!(epoll_waits(edge, LIMIT), "the second event is told, too");
    for queue in [&server.recv_cq, &server.send_cq] {
        assert_eq!(server.comp.take(), queue.0);
        acknowledge(queue.0, 1);
    }
    assert!(!readable(server.comp.fd(), NOW));
    c!(libc::close(edge));
}

#[test]
fn a_getter_that_does_not_wait_says_that_there_is_nothing() {
    let pair = Pair::new();
    let (comp, cq) = (&pair.server.comp, &pair.server.recv_cq);
    set_nonblocking(comp.fd());
    for _ in 0..2 {
        let (mut got, mut context) = (ptr::null_mut(), ptr::null_mut());
        let result = c!(ibv_get_cq_event(comp.0, &mut got, &mut context));
        fails("ibv_get_cq_event", result, libc::EAGAIN);
        cq.arm(false);
        message(&pair, 0);
        assert_eq!(comp.take(), cq.0);
        cq.expect(1, SUCCESS);
        acknowledge(cq.0, 1);
    }
}

#[test]
fn two_queues_on_one_channel() {
    let pair = Pair::new();
    // Both queues of an end are on its channel.
    let server = &pair.server;
    server.send_cq.arm(false);
    server.recv_cq.arm(false);
    pair.client.recv(1, vec![]);
    server.post(Wr::new(2, Op::Send, vec![]));
    message(&pair, 0);
    let mut got = [server.comp.take(), server.comp.take()];
    let mut expected = [server.send_cq.0, server.recv_cq.0];
    got.sort();
    expected.sort();
    assert_eq!(got, expected);
    assert!(!readable(server.comp.fd(), NOW));
    server.send_cq.expect(2, SUCCESS);
    server.recv_cq.expect(1, SUCCESS);
    acknowledge(server.send_cq.0, 1);
    acknowledge(server.recv_cq.0, 1);
}

#[test]
fn a_queue_is_destroyed_when_its_events_are_acknowledged() {
    let pair = Pair::new();
    let context = c!((*pair.server.id.0).verbs);
    let comp = CompChannel::new(context);
    let cq = Cq::new(context, 16, Some(&comp));
    pair.server.id.destroy_qp();
    let mut attr: ibv_qp_init_attr = c!(std::mem::zeroed());
    attr.send_cq = cq.0;
    attr.recv_cq = cq.0;
    attr.cap.max_recv_wr = 8;
    attr.qp_type = ibv_qp_type::IBV_QPT_RC;
    let qp = made(
        "ibv_create_qp",
        c!(ibv_create_qp(pair.server.pd.0, &mut attr)),
    );
    let mut to: ibv_qp_attr = c!(std::mem::zeroed());
    let state = ibv_qp_attr_mask::IBV_QP_STATE.0 as i32;
    to.qp_state = ibv_qp_state::IBV_QPS_INIT;
    assert_eq!(c!(ibv_modify_qp(qp, &mut to, state)), 0);
    to.qp_state = ibv_qp_state::IBV_QPS_ERR;
    assert_eq!(c!(ibv_modify_qp(qp, &mut to, state)), 0);
    for id in 0..2 {
        cq.arm(false);
        assert_eq!(post_recvs(qp, &[(id, vec![])]), Ok(()));
        assert_eq!(comp.take(), cq.0);
    }
    // One that nobody gets does not hold it.
    cq.arm(false);
    assert_eq!(post_recvs(qp, &[(2, vec![])]), Ok(()));
    assert!(readable(comp.fd(), LIMIT));
    assert_eq!(c!(ibv_destroy_qp(qp)), 0);
    acknowledge(cq.0, 1);
    static ACKNOWLEDGED: AtomicBool = AtomicBool::new(false);
    let (send, destroyed) = channel();
    let raw = Shared(cq.0);
    std::thread::spawn(move || {
        let result = c!(ibv_destroy_cq(raw.get()));
        send.send((result, ACKNOWLEDGED.load(Ordering::SeqCst)))
            .unwrap();
    });
    assert!(
        destroyed.recv_timeout(A_WHILE).is_err(),
        "destroyed before the second one is"
    );
    ACKNOWLEDGED.store(true, Ordering::SeqCst);
    acknowledge(cq.0, 1);
    assert_eq!(destroyed.recv_timeout(LIMIT), Ok((0, true)));
    std::mem::forget(cq);
    assert!(!readable(comp.fd(), NOW), "an event of what is destroyed");
}

// ---- asynchronous events ----

/// A context of the test's own, so that its events are, too.
struct Context(*mut ibv_context);

impl Context {
    fn new() -> Self {
        explain();
        let list = c!(ibv_get_device_list(ptr::null_mut()));
        let context = made("ibv_open_device", ibv_open_device(c!(*list)));
        c!(ibv_free_device_list(list));
        Context(context)
    }

    fn fd(&self) -> RawFd {
        c!((*self.0).async_fd)
    }

    #[track_caller]
    fn take(&self) -> ibv_async_event {
        assert!(
            readable(self.fd(), LIMIT),
            "no asynchronous event within {LIMIT:?}"
        );
        let mut event: ibv_async_event = c!(std::mem::zeroed());
        good(
            "ibv_get_async_event",
            c!(ibv_get_async_event(self.0, &mut event)),
        );
        event
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        c!(ibv_close_device(self.0));
    }
}

/// A queue pair without an id, in error, so that every receive completes at once.
fn failing_qp(pd: &Pd, cq: &Cq) -> *mut ibv_qp {
    let mut attr: ibv_qp_init_attr = c!(std::mem::zeroed());
    attr.send_cq = cq.0;
    attr.recv_cq = cq.0;
    attr.cap.max_recv_wr = 8;
    attr.qp_type = ibv_qp_type::IBV_QPT_RC;
    let qp = made("ibv_create_qp", c!(ibv_create_qp(pd.0, &mut attr)));
    let mut to: ibv_qp_attr = c!(std::mem::zeroed());
    for state in [ibv_qp_state::IBV_QPS_INIT, ibv_qp_state::IBV_QPS_ERR] {
        to.qp_state = state;
        let mask = ibv_qp_attr_mask::IBV_QP_STATE.0 as i32;
        assert_eq!(c!(ibv_modify_qp(qp, &mut to, mask)), 0, "ibv_modify_qp");
    }
    qp
}

#[test]
fn a_queue_that_is_overrun_is_in_error() {
    let context = Context::new();
    let pd = Pd::new(context.0);
    let cq = Cq::new(context.0, 4, None);
    let qp = failing_qp(&pd, &cq);
    for id in 0..4 {
        assert_eq!(post_recvs(qp, &[(id, vec![])]), Ok(()));
    }
    assert!(
        !readable(context.fd(), NOW),
        "an event of a queue that is only full"
    );
    for id in 4..7 {
        assert_eq!(post_recvs(qp, &[(id, vec![])]), Ok(()));
    }
    let mut event = context.take();
    assert_eq!(
        event.event_type as u32,
        ibv_event_type::IBV_EVENT_CQ_ERR as u32
    );
    assert_eq!(c!(event.element.cq), cq.0);
    assert!(!readable(context.fd(), NOW), "a second event");
    // What was there still is; nothing else can be had from it.
    for id in 0..4 {
        cq.expect(id, FLUSHED);
    }
    assert!(
        cq.poll().is_err(),
        "the queue has lost a completion and says nothing"
    );
    c!(ibv_ack_async_event(&mut event));
    assert_eq!(c!(ibv_destroy_qp(qp)), 0);
}

#[test]
fn a_queue_that_is_full_is_not_overrun() {
    let context = Context::new();
    let pd = Pd::new(context.0);
    let cq = Cq::new(context.0, 4, None);
    let qp = failing_qp(&pd, &cq);
    for round in 0..10 {
        for id in 0..4 {
            assert_eq!(post_recvs(qp, &[(id, vec![])]), Ok(()));
        }
        for id in 0..4 {
            cq.expect(id, FLUSHED);
        }
        assert!(cq.is_empty(), "round {round}");
    }
    assert!(!readable(context.fd(), NOW));
    assert_eq!(c!(ibv_destroy_qp(qp)), 0);
}

#[test]
fn a_shared_receive_queue_tells_that_little_is_left() {
    // The context is that of all ids: what happens to those of other tests is told there, too.
    alone(|| {
        let pair = Pair::with(|setup| setup.srq = Some(16));
        let srq = pair.server.srq.as_ref().unwrap();
        let context = c!((*pair.server.id.0).verbs);
        for id in 0..8 {
            pair.server.recv(id, vec![]);
        }
        for round in 0..2 {
            let mut attr: ibv_srq_attr = c!(std::mem::zeroed());
            attr.srq_limit = 4;
            let mask = ibv_srq_attr_mask::IBV_SRQ_LIMIT.0 as i32;
            assert_eq!(c!(ibv_modify_srq(srq.0, &mut attr, mask)), 0);
            for id in 0..5 {
                assert!(
                    !readable(c!((*context).async_fd), NOW),
                    "round {round}, after {id}"
                );
                assert_eq!(query_srq(srq).srq_limit, 4, "round {round}, after {id}");
                pair.client.post(Wr::new(id, Op::Send, vec![]));
                pair.client.send_cq.expect(id, SUCCESS);
            }
            let event = async_event(context);
            assert_eq!(
                event.event_type as u32,
                ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED as u32
            );
            assert_eq!(c!(event.element.srq), srq.0);
            // Once: the limit is gone with it.
            assert_eq!(query_srq(srq).srq_limit, 0);
            for id in 0..5 {
                pair.server.recv(8 + id, vec![]);
            }
        }
        // Not so without a limit.
        for id in 0..5 {
            pair.client.post(Wr::new(id, Op::Send, vec![]));
            pair.client.send_cq.expect(id, SUCCESS);
        }
        assert!(!readable(c!((*context).async_fd), A_WHILE));
    });
}

#[test]
fn a_failed_queue_pair_leaves_its_shared_receive_queue() {
    alone(|| {
        for refused in [false, true] {
            let pair = Pair::with(|setup| setup.srq = Some(16));
            let context = c!((*pair.server.id.0).verbs);
            let fd = c!((*context).async_fd);
            let (from, to) = (pair.server.memory(8, LOCAL), pair.client.memory(8, LOCAL));
            pair.server.recv(1, vec![]);
            assert!(!readable(fd, NOW), "an event before it");
            let mut left = vec![pair.server.qp()];
            if refused {
                let read = Wr::new(2, Op::Read(from.at(0)), vec![to.sge(0, 8)]);
                pair.client.post(read);
                left.push(pair.client.qp());
            } else {
                pair.server.fail();
            }
            while !left.is_empty() {
                let event = async_event(context);
                let kind = ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED as u32;
                assert_eq!(event.event_type as u32, kind, "refused: {refused}");
                let qp = c!(event.element.qp);
                let place = left.iter().position(|one| *one == qp);
                left.swap_remove(place.expect("an event of one of them, once"));
            }
            pair.server.fail();
            assert!(!readable(fd, A_WHILE), "refused: {refused}: one more event");
            // The receive is for others.
            assert!(pair.server.recv_cq.is_empty(), "refused: {refused}");
        }
    });
}

/// The next event of a context, acknowledged.
#[track_caller]
fn async_event(context: *mut ibv_context) -> ibv_async_event {
    let fd = c!((*context).async_fd);
    assert!(readable(fd, LIMIT), "no event within {LIMIT:?}");
    let mut event: ibv_async_event = c!(std::mem::zeroed());
    let result = c!(ibv_get_async_event(context, &mut event));
    good("ibv_get_async_event", result);
    c!(ibv_ack_async_event(&mut event));
    event
}

fn query_srq(srq: &Srq) -> ibv_srq_attr {
    let mut attr: ibv_srq_attr = c!(std::mem::zeroed());
    assert_eq!(c!(ibv_query_srq(srq.0, &mut attr)), 0);
    attr
}

#[test]
fn an_object_is_destroyed_when_its_asynchronous_events_are_acknowledged() {
    let context = Context::new();
    let pd = Pd::new(context.0);
    let cq = Cq::new(context.0, 1, None);
    let qp = failing_qp(&pd, &cq);
    for id in 0..2 {
        assert_eq!(post_recvs(qp, &[(id, vec![])]), Ok(()));
    }
    let mut event = context.take();
    assert_eq!(c!(ibv_destroy_qp(qp)), 0);
    let (send, destroyed) = channel();
    let raw = Shared(cq.0);
    std::thread::spawn(move || send.send(c!(ibv_destroy_cq(raw.get()))).unwrap());
    assert!(
        destroyed.recv_timeout(A_WHILE).is_err(),
        "destroyed before the event is acknowledged"
    );
    c!(ibv_ack_async_event(&mut event));
    assert_eq!(destroyed.recv_timeout(LIMIT), Ok(0));
    std::mem::forget(cq);
}

#[test]
fn a_getter_of_asynchronous_events_that_does_not_wait() {
    let context = Context::new();
    set_nonblocking(context.fd());
    let mut event: ibv_async_event = c!(std::mem::zeroed());
    let result = c!(ibv_get_async_event(context.0, &mut event));
    fails("ibv_get_async_event", result, libc::EAGAIN);
}

// ---- many threads ----

#[test]
fn many_threads_poll_one_queue() {
    const THREADS: usize = 6;
    const MESSAGES: u64 = 6000;
    // With room for all: a request that has ended makes room for another, polled or not.
    let pair = Pair::with(|setup| setup.cqe = MESSAGES as i32);
    let from = pair.client.memory(8, LOCAL);
    let seen: Vec<std::sync::atomic::AtomicU32> = (0..MESSAGES).map(|_| 0.into()).collect();
    let left = std::sync::atomic::AtomicI64::new(MESSAGES as i64);
    let end = std::time::Instant::now() + LIMIT;
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while left.load(Ordering::SeqCst) > 0 && std::time::Instant::now() < end {
                    match pair.client.send_cq.poll().unwrap() {
                        Some(wc) => {
                            assert_eq!(wc.status, SUCCESS);
                            seen[wc.id as usize].fetch_add(1, Ordering::SeqCst);
                            left.fetch_sub(1, Ordering::SeqCst);
                        }
                        None => std::thread::yield_now(),
                    }
                }
            });
        }
        let to = pair.server.memory(8, ALL);
        for id in 0..MESSAGES {
            let wr = Wr::new(id, Op::Write(to.at(0)), vec![from.sge(0, 8)]);
            while let Err((error, _)) = post_list(pair.client.qp(), std::slice::from_ref(&wr)) {
                assert_eq!(error, libc::ENOMEM);
                assert!(std::time::Instant::now() < end, "the queue stays full");
                std::thread::yield_now();
            }
        }
        while left.load(Ordering::SeqCst) > 0 && std::time::Instant::now() < end {
            std::thread::yield_now();
        }
    });
    let wrong = seen
        .iter()
        .filter(|n| n.load(Ordering::SeqCst) != 1)
        .count();
    assert_eq!(wrong, 0, "completions that were lost or seen twice");
}

#[test]
fn many_threads_post_to_one_queue_pair() {
    const THREADS: u64 = 4;
    const EACH: u64 = 1000;
    let pair = Pair::with(|setup| setup.cqe = (THREADS * EACH) as i32);
    let to = pair.server.memory(THREADS as usize * 8, ALL);
    let result = pair.client.memory(THREADS as usize * 8, LOCAL);
    let end = std::time::Instant::now() + LIMIT;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (pair, to, result) = (&pair, &to, &result);
            scope.spawn(move || {
                let at = 8 * thread as usize;
                for i in 0..EACH {
                    let id = thread << 32 | i;
                    let op = Op::FetchAdd(to.at(at), 1);
                    let wr = [Wr::new(id, op, vec![result.sge(at, 8)])];
                    let post = || match i % 2 {
                        0 => post_list(pair.client.qp(), &wr).is_ok(),
                        _ => post_extended(pair.client.qp(), &wr).is_ok(),
                    };
                    while !post() {
                        assert!(std::time::Instant::now() < end, "the queue stays full");
                        std::thread::yield_now();
                    }
                }
            });
        }
        // What each has posted completes in order.
        let mut next = [0; THREADS as usize];
        for _ in 0..THREADS * EACH {
            let wc = pair.client.send_cq.next();
            assert_eq!(wc.status, SUCCESS);
            let (thread, i) = ((wc.id >> 32) as usize, wc.id & 0xffff_ffff);
            assert_eq!(i, next[thread], "of thread {thread}");
            next[thread] += 1;
        }
    });
    for thread in 0..THREADS as usize {
        assert_eq!(to.word(8 * thread), EACH);
    }
}
