//! Queues that are full: what takes no more, what makes room, and what an overrun breaks.

use crate::common::*;
use rdma_sys::*;
use std::ffi::c_int;

const ERR: ibv_qp_state::Type = ibv_qp_state::IBV_QPS_ERR;

fn post(how: Interface, qp: *mut ibv_qp, wr: Wr) -> Result<(), c_int> {
    match how {
        Interface::List => post_list(qp, &[wr]).map_err(|(error, _)| error),
        Interface::Extended => post_extended(qp, &[wr]),
    }
}

/// How a full send queue is told of.
fn full(how: Interface) -> Result<(), c_int> {
    Err(match how {
        Interface::List => libc::ENOMEM,
        Interface::Extended => libc::ENOSPC,
    })
}

/// Posts that, and waits until it has completed, without polling.
#[track_caller]
fn carry_out(end: &End, wr: Wr) {
    end.send_cq.arm(false);
    end.post(wr);
    assert!(end.comp.wait(LIMIT), "a completion event within {LIMIT:?}");
}

// ---- the send queue ----

#[test]
fn a_request_keeps_its_place_until_it_is_polled() {
    for how in BOTH {
        let pair = Pair::with(|setup| setup.cap.max_send_wr = 4);
        let (client, to) = (&pair.client, pair.server.memory(8, ALL));
        let from = client.memory(8, LOCAL);
        let write = |id| Wr::new(id, Op::Write(to.at(0)), vec![from.sge(0, 8)]);
        for id in 0..4 {
            carry_out(client, write(id));
        }
        assert_eq!(
            post(how, client.qp(), write(9)),
            full(how),
            "{how:?}: the fifth"
        );
        // Each that is polled makes room for one.
        for id in 0..4 {
            client.send_cq.expect(id, SUCCESS);
            assert_eq!(post(how, client.qp(), write(10 + id)), Ok(()), "{how:?}");
            assert_eq!(post(how, client.qp(), write(9)), full(how), "{how:?}");
        }
        for id in 10..14 {
            client.send_cq.expect(id, SUCCESS);
        }
        assert!(client.send_cq.is_empty());
    }
}

#[test]
fn what_asks_for_no_completion_keeps_its_place_until_a_later_one_is_polled() {
    for how in BOTH {
        let pair = Pair::with(|setup| setup.cap.max_send_wr = 4);
        let (client, to) = (&pair.client, pair.server.memory(8, ALL));
        let from = client.memory(8, LOCAL);
        let write = |id| Wr::new(id, Op::Write(to.at(0)), vec![from.sge(0, 8)]);
        for round in 0..3 {
            for id in 0..3 {
                client.post(write(id).unsignaled());
            }
            // With it, those before are done.
            carry_out(client, write(3));
            let refused = post(how, client.qp(), write(9).unsignaled());
            assert_eq!(refused, full(how), "{how:?}, round {round}: the fifth");
            client.send_cq.expect(3, SUCCESS);
        }
        // Without a later one they keep it for good: here they are done, as a read tells that is
        // answered after them.
        for id in 0..4 {
            client.post(write(id).unsignaled());
        }
        let into = pair.server.memory(8, ALL);
        let source = client.memory(8, ALL);
        let read = Wr::new(1, Op::Read(source.at(0)), vec![into.sge(0, 8)]);
        for _ in 0..2 {
            pair.server.post(read.clone());
            pair.server.send_cq.expect(1, SUCCESS);
        }
        assert!(client.send_cq.is_empty());
        assert_eq!(
            post(how, client.qp(), write(9)),
            full(how),
            "{how:?}: for good"
        );
    }
}

#[test]
fn a_completion_makes_room_in_the_queue_of_its_request_alone() {
    let listener = Listener::new();
    let context = made("the device", c!((*listener.id.0).verbs));
    let pd = Pd::new(context);
    let comp = CompChannel::new(context);
    let cq = Cq::new(context, 256, Some(&comp));
    let param = ConnParam::default();
    let (members, peers): (Vec<_>, Vec<_>) = (0..2)
        .map(|_| Member::connect(&listener, (&pd, &cq, None), &param))
        .unzip();
    let from = Memory::new(&pd, 8, ALL);
    let room = members[0].id.query().cap.max_send_wr;
    let write =
        |i: usize, to: &Memory| Wr::new(i as u64, Op::Write(to.at(0)), vec![from.sge(0, 8)]);
    let to: Vec<Memory> = peers.iter().map(|peer| peer.memory(8, ALL)).collect();
    for _ in 0..room {
        for (i, member) in members.iter().enumerate() {
            cq.arm(false);
            assert_eq!(post_list(member.qp(), &[write(i, &to[i])]), Ok(()));
            assert!(comp.wait(LIMIT), "a completion event within {LIMIT:?}");
        }
    }
    let mut polled = [0; 2];
    while polled[0] + polled[1] < 2 * room {
        let wc = cq.next();
        assert_eq!(wc.status, SUCCESS);
        polled[wc.id as usize] += 1;
        let other = 1 - wc.id as usize;
        if polled[other] == 0 {
            let refused = post_list(members[other].qp(), &[write(other, &to[other])]);
            assert_eq!(
                refused,
                Err((libc::ENOMEM, 0)),
                "none of its own was polled"
            );
        }
    }
    drop(members);
}

#[test]
fn what_was_flushed_keeps_its_place_until_it_is_polled() {
    let pair = Pair::with(|setup| setup.cap.max_send_wr = 4);
    let client = &pair.client;
    client.fail();
    let send = |id| Wr::new(id, Op::Send, vec![]).unsignaled();
    for id in 0..4 {
        client.post(send(id));
    }
    assert_eq!(post_list(client.qp(), &[send(9)]), Err((libc::ENOMEM, 0)));
    client.send_cq.expect(0, FLUSHED);
    client.post(send(4));
    for id in 1..5 {
        client.send_cq.expect(id, FLUSHED);
    }
    for id in 10..14 {
        client.post(send(id));
    }
}

#[test]
fn a_batch_that_is_taken_back_keeps_no_places() {
    let pair = Pair::with(|setup| setup.cap.max_send_wr = 4);
    let client = &pair.client;
    let send = |id| Wr::new(id, Op::Send, vec![]);
    let qp = made("ibv_qp_to_qp_ex", c!(ibv_qp_to_qp_ex(client.qp())));
    for _ in 0..3 {
        c!(ibv_wr_start(qp));
        for id in 0..4 {
            add(qp, &send(id));
        }
        c!(ibv_wr_abort(qp));
        let five: Vec<Wr> = (0..5).map(send).collect();
        assert_eq!(post_extended(client.qp(), &five), Err(libc::ENOSPC));
    }
    for id in 0..4 {
        pair.server.recv(id, vec![]);
        client.post(send(id));
    }
    for id in 0..4 {
        client.send_cq.expect(id, SUCCESS);
    }
}

// ---- before the connection ----

#[test]
fn nothing_is_sent_before_the_connection_is_established() {
    for how in BOTH {
        let refused = |end: &End, when: &str| {
            let send = Wr::new(1, Op::Send, vec![]);
            assert_eq!(
                post(how, end.qp(), send),
                Err(libc::EINVAL),
                "{how:?}, {when}"
            );
        };
        let setup = Setup::default();
        let listener = Listener::new();
        let channel = new_channel();
        let id = Id::new(&channel);
        id.resolve(&channel, &listener.address);
        let client = End::new(id, channel, &setup);
        refused(&client, "before it connects");
        client.id.connect(&setup.client);
        refused(&client, "while it connects");
        let request = listener.channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
        refused(&client, "while the other side thinks about it");
        let id = Id(request.id);
        let own = new_channel();
        id.migrate(&own);
        let server = End::new(id, own, &setup);
        refused(&server, "before it accepts");
        for id in 0..2 {
            client.recv(id, vec![]);
            server.recv(id, vec![]);
        }
        server.id.accept(&setup.server);
        // Who accepts is ready, though the other side does not know yet.
        server.post(Wr::new(2, Op::Send, vec![]));
        client.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
        server.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
        client.post(Wr::new(3, Op::Send, vec![]));
        client.send_cq.expect(3, SUCCESS);
        server.send_cq.expect(2, SUCCESS);
        client.recv_cq.expect(0, SUCCESS);
        server.recv_cq.expect(0, SUCCESS);
        // Nothing of what was refused is sent later.
        assert!(client.recv_cq.is_empty() && server.recv_cq.is_empty());
        assert!(client.send_cq.is_empty() && server.send_cq.is_empty());
    }
}

// ---- the completion queue ----

/// The next asynchronous event, acknowledged: which one, and of which queue.
#[track_caller]
fn async_event(context: *mut ibv_context) -> (u32, *mut ibv_cq) {
    let fd = c!((*context).async_fd);
    assert!(
        readable(fd, LIMIT),
        "an asynchronous event within {LIMIT:?}"
    );
    let mut event: ibv_async_event = c!(std::mem::zeroed());
    good(
        "ibv_get_async_event",
        c!(ibv_get_async_event(context, &mut event)),
    );
    let seen = (event.event_type as u32, c!(event.element.cq));
    c!(ibv_ack_async_event(&mut event));
    seen
}

/// Two connections complete to a queue of four entries, which is overrun: by sends, or by receives.
#[test]
fn a_queue_that_is_overrun_breaks_all_that_use_it() {
    const ENTRIES: u64 = 4;
    // The context is that of all ids: what happens to those of other tests is told there, too.
    alone(|| {
        for by_sends in [true, false] {
            let listener = Listener::new();
            let context = made("the device", c!((*listener.id.0).verbs));
            let pd = Pd::new(context);
            let cq = Cq::new(context, ENTRIES as c_int, None);
            let param = ConnParam::default();
            let (members, peers): (Vec<_>, Vec<_>) = (0..2)
                .map(|_| Member::connect(&listener, (&pd, &cq, None), &param))
                .unzip();
            let qp = members[0].qp();
            let from = Memory::new(&pd, 8, ALL);
            let to = peers[0].memory(8, ALL);
            let write = |id| Wr::new(id, Op::Write(to.at(0)), vec![from.sge(0, 8)]);
            // One that another queue pair has outstanding, and one of a peer.
            assert_eq!(post_recvs(members[1].qp(), &[(50, vec![])]), Ok(()));
            for id in 0..=ENTRIES {
                if by_sends {
                    assert_eq!(post_list(qp, &[write(id)]), Ok(()));
                } else {
                    assert_eq!(post_recvs(qp, &[(id, vec![])]), Ok(()));
                    peers[0].post(Wr::new(id, Op::Send, vec![]));
                }
            }
            let cq_err = ibv_event_type::IBV_EVENT_CQ_ERR as u32;
            assert_eq!(async_event(context), (cq_err, cq.0));
            for member in &members {
                until("a queue pair of it is in error", || {
                    member.id.query().qp_state == ERR
                });
            }
            // What was there still is, and nothing else comes.
            for id in 0..ENTRIES {
                cq.expect(id, SUCCESS);
            }
            assert!(cq.poll().is_err(), "the queue has lost a completion");
            assert_eq!(post_recvs(qp, &[(51, vec![])]), Ok(()));
            assert_eq!(post_list(qp, &[write(52)]), Ok(()));
            for _ in 0..3 {
                assert!(
                    cq.poll().is_err(),
                    "there is room, but the queue is in error"
                );
            }
            assert!(!readable(c!((*context).async_fd), NOW), "a second event");
            // The other sides notice as soon as they ask for something.
            for peer in &peers {
                peer.post(Wr::new(9, Op::Write(At { addr: 0, rkey: 0 }), vec![]));
                let wc = std::iter::repeat_with(|| peer.send_cq.next())
                    .find(|wc| wc.id == 9)
                    .unwrap();
                assert_eq!(wc.status, RETRY_EXC);
                assert_eq!(peer.state(), ERR);
            }
            drop(members);
        }
    });
}

/// Its queue pair's other queue goes on: what was outstanding is flushed there.
#[test]
fn what_completes_to_another_queue_is_flushed_there() {
    alone(|| {
        let pair = Pair::with(|setup| setup.cqe = 3);
        let (client, to) = (&pair.client, pair.server.memory(8, ALL));
        let from = client.memory(8, LOCAL);
        for id in 0..3 {
            client.recv(id, vec![]);
        }
        client.recv_cq.arm(false);
        for id in 0..4 {
            client.post(Wr::new(id, Op::Write(to.at(0)), vec![from.sge(0, 8)]));
        }
        assert!(client.comp.wait(LIMIT), "an event of the other queue");
        for id in 0..3 {
            client.recv_cq.expect(id, FLUSHED);
            client.send_cq.expect(id, SUCCESS);
        }
        assert!(client.recv_cq.is_empty());
        assert!(client.send_cq.poll().is_err());
    });
}

/// Who has armed a full queue and waits is woken: what it would wait for is lost.
#[test]
fn who_waits_for_a_queue_that_is_overrun_is_woken() {
    alone(|| {
        let pair = Pair::with(|setup| setup.cqe = 3);
        let (client, to) = (&pair.client, pair.server.memory(8, ALL));
        let from = client.memory(8, LOCAL);
        for id in 0..4 {
            carry_out(
                client,
                Wr::new(id, Op::Write(to.at(0)), vec![from.sge(0, 8)]),
            );
        }
        for id in 0..3 {
            client.send_cq.expect(id, SUCCESS);
        }
        assert!(client.send_cq.poll().is_err());
    });
}
