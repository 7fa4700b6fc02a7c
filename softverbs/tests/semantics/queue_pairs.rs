//! Which queue pair a connection has: one that was made with its id, one that the program puts into
//! `id->qp` itself, or one that the program names and moves from state to state itself.

use crate::common::*;
use rdma_sys::ibv_qp_state::*;
use rdma_sys::*;
use softverbs::exports::cm::{
    rdma_accept, rdma_connect, rdma_create_qp, rdma_destroy_qp, rdma_establish, rdma_init_qp_attr,
    rdma_set_option,
};
use softverbs::exports::cq::{ibv_create_comp_channel, ibv_create_cq};
use softverbs::exports::qp::{ibv_create_qp, ibv_destroy_qp, ibv_modify_qp, ibv_query_qp};
use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// As many as a queue pair has room for.
const RECEIVES: u64 = 8192;

/// A queue pair that was made without an id. The test destroys it, or an id does.
struct Bare {
    qp: *mut ibv_qp,
    cq: Cq,
    _pd: Pd,
}

impl Bare {
    #[track_caller]
    fn new() -> Self {
        let context = device();
        let (pd, cq) = (Pd::new(context), Cq::new(context, RECEIVES as c_int, None));
        let mut attr = attributes();
        (attr.send_cq, attr.recv_cq) = (cq.0, cq.0);
        let qp = made("ibv_create_qp", c!(ibv_create_qp(pd.0, &mut attr)));
        Bare { qp, cq, _pd: pd }
    }

    fn num(&self) -> u32 {
        c!((*self.qp).qp_num)
    }

    fn state(&self) -> ibv_qp_state::Type {
        query(self.qp).qp_state
    }

    fn destroy(self) {
        assert_eq!(c!(ibv_destroy_qp(self.qp)), 0, "ibv_destroy_qp");
    }
}

fn attributes() -> ibv_qp_init_attr {
    let mut attr: ibv_qp_init_attr = c!(zeroed());
    attr.cap = room_for(4, RECEIVES as usize, 0);
    attr.qp_type = ibv_qp_type::IBV_QPT_RC;
    attr
}

fn query(qp: *mut ibv_qp) -> ibv_qp_attr {
    let (mut attr, mut init) = c!((zeroed(), zeroed()));
    good(
        "ibv_query_qp",
        c!(ibv_query_qp(qp, &mut attr, 0, &mut init)),
    );
    attr
}

fn modify(qp: *mut ibv_qp, (attr, mask): &(ibv_qp_attr, c_int)) -> c_int {
    // It only reads them.
    c!(ibv_modify_qp(qp, ptr::from_ref(attr).cast_mut(), *mask))
}

/// As `rdma_init_qp_attr` says.
#[track_caller]
fn as_said(id: &Id, state: ibv_qp_state::Type) -> (ibv_qp_attr, c_int) {
    let (mut attr, mut mask): (ibv_qp_attr, c_int) = c!((zeroed(), 0));
    attr.qp_state = state;
    good(
        "rdma_init_qp_attr",
        c!(rdma_init_qp_attr(id.0, &mut attr, &mut mask)),
    );
    (attr, mask)
}

#[track_caller]
fn move_as_said(id: &Id, qp: *mut ibv_qp) {
    for state in [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS] {
        assert_eq!(modify(qp, &as_said(id, state)), 0, "to {state}");
    }
}

fn to_state(qp: *mut ibv_qp, state: ibv_qp_state::Type) -> c_int {
    let mut attr: ibv_qp_attr = c!(zeroed());
    attr.qp_state = state;
    modify(qp, &(attr, ibv_qp_attr_mask::IBV_QP_STATE.0 as c_int))
}

fn named(num: u32) -> rdma_conn_param {
    rdma_conn_param {
        qp_num: num,
        ..ConnParam::default().c()
    }
}

/// An id that could connect, and its channel.
#[track_caller]
fn resolved(listener: &Listener) -> (Id, Channel) {
    let channel = new_channel();
    let id = Id::new(&channel);
    id.resolve(&channel, &listener.address);
    (id, channel)
}

/// A connection that is asked for: the side that asks, and the id of the other.
#[track_caller]
fn requested(listener: &Listener) -> (End, Id) {
    let client = begin(&listener.address, &Setup::default());
    let request = listener.channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    (client, Id(request.id))
}

/// A message goes from one to the other.
#[track_caller]
fn carries(from: *mut ibv_qp, to: *mut ibv_qp, received: &Cq) {
    assert_eq!(post_recvs(to, &[(7, vec![])]), Ok(()), "ibv_post_recv");
    let wr = Wr::new(8, Op::Send, vec![]).unsignaled();
    assert_eq!(post_list(from, &[wr]), Ok(()), "ibv_post_send");
    received.expect(7, SUCCESS);
}

// ---- put into the id ----

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// As `ibv_create_qp` leaves it.
    Reset,
    /// Made ready by the program, with rights of its own.
    Init,
    /// Taken from another id, which is destroyed.
    OtherId,
}

const ORIGINS: [Origin; 3] = [Origin::Reset, Origin::Init, Origin::OtherId];

/// A queue pair that an id is to get.
#[track_caller]
fn from(origin: Origin) -> Bare {
    match origin {
        Origin::Reset => Bare::new(),
        Origin::Init => {
            let bare = Bare::new();
            type M = ibv_qp_attr_mask;
            let mask =
                M::IBV_QP_STATE | M::IBV_QP_PKEY_INDEX | M::IBV_QP_PORT | M::IBV_QP_ACCESS_FLAGS;
            let mut attr: ibv_qp_attr = c!(zeroed());
            (attr.qp_state, attr.port_num) = (IBV_QPS_INIT, 1);
            assert_eq!(modify(bare.qp, &(attr, mask.0 as c_int)), 0);
            bare
        }
        Origin::OtherId => {
            let channel = new_channel();
            let other = Id::new(&channel);
            good("rdma_bind_addr", other.bind(&LOOPBACK));
            let context = device();
            let (pd, cq) = (Pd::new(context), Cq::new(context, RECEIVES as c_int, None));
            let cap = room_for(4, RECEIVES as usize, 0);
            other.create_qp(&QpPlan::new(&pd, &cq, cap));
            let qp = other.qp();
            c! { (*other.0).qp = ptr::null_mut() };
            Bare { qp, cq, _pd: pd }
        }
    }
}

#[test]
fn accepting_takes_the_queue_pair_that_is_in_the_id() {
    for origin in ORIGINS {
        let listener = Listener::new();
        let (client, server) = requested(&listener);
        let bare = from(origin);
        if origin != Origin::Reset {
            // Received before the connection is there.
            assert_eq!(post_recvs(bare.qp, &[(1, vec![])]), Ok(()));
        }
        c! { (*server.0).qp = bare.qp };
        server.accept(&ConnParam::default());
        let accepted = client.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
        assert_eq!(accepted.param.qp_num, bare.num(), "{origin:?}");
        listener.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
        assert_eq!(bare.state(), IBV_QPS_RTS, "{origin:?}");
        // Connection management gives its own rights.
        assert_eq!(query(bare.qp).qp_access_flags, 0x30e, "{origin:?}");
        if origin != Origin::Reset {
            client.post(Wr::new(2, Op::Send, vec![]));
            bare.cq.expect(1, SUCCESS);
        }
        carries(client.qp(), bare.qp, &bare.cq);
        carries(bare.qp, client.qp(), &client.recv_cq);
        server.disconnect();
        assert_eq!(bare.state(), IBV_QPS_ERR, "{origin:?}");
        drop(server);
    }
}

#[test]
fn connecting_takes_the_queue_pair_that_is_in_the_id() {
    for origin in ORIGINS {
        // It is looked for when the connection is asked for, and when the answer is taken.
        for late in [false, true] {
            let listener = Listener::new();
            let (id, channel) = resolved(&listener);
            let bare = from(origin);
            if !late {
                c! { (*id.0).qp = bare.qp };
            }
            id.connect(&ConnParam::default());
            let server = listener.accept(&Setup::default());
            if late {
                c! { (*id.0).qp = bare.qp };
            }
            let what = format!("{origin:?}, late: {late}");
            let event = channel.get();
            assert_eq!(name(event.kind), name(RDMA_CM_EVENT_ESTABLISHED), "{what}");
            server.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
            assert_eq!(bare.state(), IBV_QPS_RTS, "{what}");
            carries(server.qp(), bare.qp, &bare.cq);
            carries(bare.qp, server.qp(), &server.recv_cq);
            drop(id);
        }
    }
}

/// Its numbers begin anew with each connection.
#[test]
fn a_queue_pair_has_one_connection_after_the_other() {
    let listener = Listener::new();
    let bare = Bare::new();
    for round in 0..3 {
        let (id, other): (Id, End);
        if round % 2 == 0 {
            let (new, channel) = resolved(&listener);
            c! { (*new.0).qp = bare.qp };
            new.connect(&ConnParam::default());
            other = listener.accept(&Setup::default());
            channel.expect(RDMA_CM_EVENT_ESTABLISHED);
            id = new;
            other.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
        } else {
            (other, id) = requested(&listener);
            c! { (*id.0).qp = bare.qp };
            id.accept(&ConnParam::default());
            other.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
            listener.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
        }
        for _ in 0..=round {
            carries(bare.qp, other.qp(), &other.recv_cq);
            carries(other.qp(), bare.qp, &bare.cq);
        }
        // Signaled, so that all that was sent has been acknowledged.
        other.recv(1, vec![]);
        let wr = Wr::new(9, Op::Send, vec![]);
        assert_eq!(post_list(bare.qp, &[wr]), Ok(()), "round {round}");
        bare.cq.expect(9, SUCCESS);
        id.disconnect();
        assert_eq!(bare.state(), IBV_QPS_ERR, "round {round}");
        c! { (*id.0).qp = ptr::null_mut() };
        drop((id, other));
        assert_eq!(to_state(bare.qp, IBV_QPS_RESET), 0, "round {round}");
        while listener.channel.get_within(NOW).is_some() {}
    }
    bare.destroy();
}

/// The one that the id had before is the program's again.
#[test]
fn a_queue_pair_in_place_of_another_one() {
    let listener = Listener::new();
    let (id, channel) = resolved(&listener);
    id.create_small_qp();
    let first = id.qp();
    let bare = Bare::new();
    c! { (*id.0).qp = bare.qp };
    id.connect(&ConnParam::default());
    let server = listener.accept(&Setup::default());
    channel.expect(RDMA_CM_EVENT_ESTABLISHED);
    carries(server.qp(), bare.qp, &bare.cq);
    assert_eq!(query(first).qp_state, IBV_QPS_INIT);
    assert_eq!(post_recvs(first, &[(1, vec![])]), Ok(()));
    // The queues of the first are the id's, so it goes first.
    c! { (*id.0).qp = first };
    id.destroy_qp();
    bare.destroy();
}

#[test]
fn a_queue_pair_that_can_not_be_connected_is_refused() {
    let pair = Pair::new();
    let failed = from(Origin::Init);
    assert_eq!(to_state(failed.qp, IBV_QPS_ERR), 0);
    for (what, qp) in [
        ("one in error", failed.qp),
        ("one that is connected", pair.client.qp()),
    ] {
        let listener = Listener::new();
        let (client, server) = requested(&listener);
        c! { (*server.0).qp = qp };
        let result = c!(rdma_accept(server.0, &mut ConnParam::default().c()));
        fails(what, result, libc::EINVAL);
        client.channel.expect(RDMA_CM_EVENT_REJECTED);
        c! { (*server.0).qp = ptr::null_mut() };

        let (id, channel) = resolved(&listener);
        id.connect(&ConnParam::default());
        let server = listener.accept(&Setup::default());
        c! { (*id.0).qp = qp };
        let event = channel.get();
        c! { (*id.0).qp = ptr::null_mut() };
        assert_eq!(
            (name(event.kind), event.status),
            (name(RDMA_CM_EVENT_CONNECT_ERROR), -1),
            "{what}"
        );
        server.channel.expect(RDMA_CM_EVENT_REJECTED);
    }
    // It goes on as before.
    carries(pair.client.qp(), pair.server.qp(), &pair.server.recv_cq);
    failed.destroy();
}

/// It is at one id or at the other, whenever another thread looks.
#[test]
fn receives_are_posted_while_a_queue_pair_goes_to_an_id() {
    let listener = Listener::new();
    for round in 0..200 {
        let (client, server) = requested(&listener);
        let bare = from(Origin::Init);
        let (qp, stop) = (Shared(bare.qp), AtomicBool::new(false));
        let posted = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let qp = qp.get();
                for id in 0..RECEIVES {
                    let result = post_recvs(qp, &[(id, vec![])]);
                    assert_eq!(result, Ok(()), "round {round}, receive {id}");
                    posted.store(id + 1, Ordering::Relaxed);
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            until("a receive is posted", || posted.load(Ordering::Relaxed) > 0);
            c! { (*server.0).qp = bare.qp };
            server.accept(&ConnParam::default());
            stop.store(true, Ordering::Relaxed);
        });
        client.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
        listener.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
        client.post(Wr::new(2, Op::Send, vec![]));
        bare.cq.expect(0, SUCCESS);
        drop((server, client));
        // What the end of the connection says to the listener's channel.
        while listener.channel.get_within(NOW).is_some() {}
    }
}

// ---- named, and moved by the program ----

#[test]
fn a_queue_pair_that_was_taken_out_of_its_id_is_moved_by_the_program() {
    for passive in [false, true] {
        let listener = Listener::new();
        let context = device();
        let (pd, cq) = (Pd::new(context), Cq::new(context, 16, None));
        let take_out = |id: &Id| {
            id.create_qp(&QpPlan::new(&pd, &cq, room_for(4, 4, 0)));
            let qp = id.qp();
            c! { (*id.0).qp = ptr::null_mut() };
            qp
        };
        if passive {
            let (client, server) = requested(&listener);
            let qp = take_out(&server);
            move_as_said(&server, qp);
            let mut param = named(c!((*qp).qp_num));
            good("rdma_accept", c!(rdma_accept(server.0, &mut param)));
            client.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
            listener.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
            carries(client.qp(), qp, &cq);
            drop((server, client));
            assert_eq!(c!(ibv_destroy_qp(qp)), 0);
        } else {
            let (id, channel) = resolved(&listener);
            let qp = take_out(&id);
            let mut param = named(c!((*qp).qp_num));
            good("rdma_connect", c!(rdma_connect(id.0, &mut param)));
            let server = listener.accept(&Setup::default());
            channel.expect(RDMA_CM_EVENT_CONNECT_RESPONSE);
            assert_eq!(query(qp).qp_state, IBV_QPS_INIT);
            move_as_said(&id, qp);
            good("rdma_establish", c!(rdma_establish(id.0)));
            server.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
            carries(server.qp(), qp, &cq);
            drop((id, server));
            assert_eq!(c!(ibv_destroy_qp(qp)), 0);
        }
    }
}

/// Without one in the id and without a name, the connection has none.
#[test]
fn a_queue_pair_that_was_taken_out_of_its_id_and_is_not_named() {
    let listener = Listener::new();
    let (id, channel) = resolved(&listener);
    id.create_small_qp();
    let qp = id.qp();
    c! { (*id.0).qp = ptr::null_mut() };
    id.connect(&ConnParam::default());
    let request = listener.channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    assert_eq!(request.param.qp_num, 0);
    let server = listener.accept_id(Id(request.id), &Setup::default());
    channel.expect(RDMA_CM_EVENT_CONNECT_RESPONSE);
    assert_eq!(query(qp).qp_state, IBV_QPS_INIT);
    c! { (*id.0).qp = qp };
    drop((id, server));
}

/// A new one can be made in its place.
#[test]
fn an_id_whose_queue_pair_was_taken_out_gets_another_one() {
    let listener = Listener::new();
    let pd = Pd::new(device());
    let cq = Cq::new(device(), 16, None);
    let (id, channel) = resolved(&listener);
    let plan = || QpPlan::new(&pd, &cq, room_for(4, 4, 0));
    id.create_qp(&plan());
    let first = id.qp();
    c! { (*id.0).qp = ptr::null_mut() };
    id.create_qp(&plan());
    assert_ne!(id.qp(), first);
    id.connect(&ConnParam::default());
    let server = listener.accept(&Setup::default());
    channel.expect(RDMA_CM_EVENT_ESTABLISHED);
    carries(server.qp(), id.qp(), &cq);
    assert_eq!(query(first).qp_state, IBV_QPS_INIT);
    assert_eq!(c!(ibv_destroy_qp(first)), 0);
}

#[test]
fn a_queue_pair_is_moved_before_it_is_named() {
    let listener = Listener::new();
    let (client, server) = requested(&listener);
    let bare = Bare::new();
    // As often as the program likes.
    for _ in 0..2 {
        move_as_said(&server, bare.qp);
        assert_eq!(to_state(bare.qp, IBV_QPS_RESET), 0);
    }
    move_as_said(&server, bare.qp);
    let mut param = named(bare.num());
    good("rdma_accept", c!(rdma_accept(server.0, &mut param)));
    client.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
    carries(client.qp(), bare.qp, &bare.cq);
    drop((server, client));
    bare.destroy();
}

#[test]
fn a_queue_pair_is_made_ready_for_no_other_side_than_one_asked_about() {
    let listener = Listener::new();
    let (_client, server) = requested(&listener);
    let bare = Bare::new();
    assert_eq!(modify(bare.qp, &as_said(&server, IBV_QPS_INIT)), 0);
    let said = as_said(&server, IBV_QPS_RTR);
    type Change = fn(&mut ibv_qp_attr);
    let changes: [(&str, Change); 3] = [
        ("another number", |attr| attr.dest_qp_num ^= 1),
        // The number alone does not tell: hosts number theirs by themselves.
        ("the same number of another host", |attr| {
            c! { attr.ah_attr.grh.dgid.raw[15] ^= 1 };
        }),
        ("no GID", |attr| attr.ah_attr.is_global = 0),
    ];
    for (what, change) in changes {
        let mut changed = as_said(&server, IBV_QPS_RTR);
        change(&mut changed.0);
        assert_eq!(modify(bare.qp, &changed), libc::EOPNOTSUPP, "{what}");
    }
    let mut no_address = as_said(&server, IBV_QPS_RTR);
    no_address.1 &= !(ibv_qp_attr_mask::IBV_QP_AV.0 as c_int);
    assert_eq!(modify(bare.qp, &no_address), libc::EINVAL);
    assert_eq!(bare.state(), IBV_QPS_INIT);
    assert_eq!(modify(bare.qp, &said), 0);

    // It is forgotten with its id.
    assert_eq!(to_state(bare.qp, IBV_QPS_RESET), 0);
    assert_eq!(modify(bare.qp, &as_said(&server, IBV_QPS_INIT)), 0);
    drop(server);
    assert_eq!(modify(bare.qp, &said), libc::EOPNOTSUPP);
    bare.destroy();
}

#[test]
fn a_queue_pair_of_one_connection_is_not_made_ready_for_another_one() {
    let listener = Listener::new();
    let ids: Vec<_> = (0..2)
        .map(|_| {
            let (id, channel) = resolved(&listener);
            let bare = Bare::new();
            let mut param = named(bare.num());
            good("rdma_connect", c!(rdma_connect(id.0, &mut param)));
            let server = listener.accept(&Setup::default());
            channel.expect(RDMA_CM_EVENT_CONNECT_RESPONSE);
            (id, bare, server, channel)
        })
        .collect();
    let said: Vec<_> = (ids.iter().map(|(id, ..)| as_said(id, IBV_QPS_RTR))).collect();
    for (i, (id, bare, ..)) in ids.iter().enumerate() {
        assert_eq!(modify(bare.qp, &as_said(id, IBV_QPS_INIT)), 0);
        assert_eq!(modify(bare.qp, &said[1 - i]), libc::EOPNOTSUPP);
        assert_eq!(modify(bare.qp, &said[i]), 0);
    }
    for (id, bare, ..) in ids {
        drop(id);
        bare.destroy();
    }
}

#[test]
fn how_to_reach_the_other_side_is_known_once_it_is() {
    let listener = Listener::new();
    let (id, _channel) = resolved(&listener);
    for state in [IBV_QPS_RTR, IBV_QPS_RTS] {
        let (mut attr, mut mask): (ibv_qp_attr, c_int) = c!((zeroed(), 0));
        attr.qp_state = state;
        let result = c!(rdma_init_qp_attr(id.0, &mut attr, &mut mask));
        fails("rdma_init_qp_attr", result, libc::EINVAL);
    }
    as_said(&id, IBV_QPS_INIT);
}

// ---- options ----

#[test]
fn the_acknowledgement_timeout_of_an_id_is_its_queue_pairs() {
    let set = |id: &Id, mut timeout: u8| {
        // The level and the name of `RDMA_OPTION_ID_ACK_TIMEOUT`.
        c!(rdma_set_option(id.0, 0, 3, (&raw mut timeout).cast(), 1))
    };
    let listener = Listener::new();
    let (id, channel) = resolved(&listener);
    id.create_small_qp();
    good("rdma_set_option", set(&id, 20));
    id.connect(&ConnParam::default());
    let request = listener.channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    let server = Id(request.id);
    server.create_small_qp();
    good("rdma_set_option", set(&server, 21));
    assert_eq!(as_said(&server, IBV_QPS_RTS).0.timeout, 21);
    server.accept(&ConnParam::default());
    channel.expect(RDMA_CM_EVENT_ESTABLISHED);
    listener.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
    assert_eq!(id.query().timeout, 20);
    assert_eq!(server.query().timeout, 21);
    // One that is too long is found when the queue pair is to have it, as over the kernel's device.
    for passive in [false, true] {
        let (id, channel) = resolved(&listener);
        id.create_small_qp();
        if !passive {
            good("rdma_set_option", set(&id, 32));
        }
        id.connect(&ConnParam::default());
        let request = listener.channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
        let server = Id(request.id);
        server.create_small_qp();
        if passive {
            good("rdma_set_option", set(&server, 32));
            let accepted = c!(rdma_accept(server.0, &mut ConnParam::default().c()));
            fails("rdma_accept", accepted, libc::EINVAL);
            channel.expect(RDMA_CM_EVENT_REJECTED);
        } else {
            server.accept(&ConnParam::default());
            let event = channel.expect(RDMA_CM_EVENT_CONNECT_ERROR);
            assert_eq!(event.status, -1);
            listener.channel.expect(RDMA_CM_EVENT_REJECTED);
        }
    }
    // Where nobody says, it is as what a program that moves its queue pair itself is told.
    let pair = Pair::new();
    for end in [&pair.client, &pair.server] {
        let told = as_said(&end.id, IBV_QPS_RTS).0.timeout;
        assert_ne!(told, 0, "which is for ever");
        assert_eq!(end.query().timeout, told);
    }
}

/// As rdma_destroy_qp(3) of librdmacm does: one queue for both directions is destroyed once, and a
/// queue needs no channel.
#[test]
fn queues_in_the_id_are_destroyed_with_its_queue_pair() {
    alone(|| {
        let listener = Listener::new();
        let channel = new_channel();
        for (shared, with_channel) in [(false, false), (false, true), (true, false), (true, true)] {
            let id = Id::new(&channel);
            good("rdma_resolve_addr", id.resolve_addr(&listener.address));
            channel.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
            let context = c!((*id.0).verbs);
            let before = (count("cq"), descriptors());
            let new_queue = || {
                let events = if with_channel {
                    c!(ibv_create_comp_channel(context))
                } else {
                    ptr::null_mut()
                };
                let cq = c!(ibv_create_cq(context, 16, ptr::null_mut(), events, 0));
                assert!(!cq.is_null(), "ibv_create_cq");
                (cq, events)
            };
            let send = new_queue();
            let recv = if shared { send } else { new_queue() };
            let mut attr = attributes();
            // SAFETY: nobody else has the id.
            unsafe {
                ((*id.0).send_cq, (*id.0).send_cq_channel) = send;
                ((*id.0).recv_cq, (*id.0).recv_cq_channel) = recv;
            }
            let result = c!(rdma_create_qp(id.0, ptr::null_mut(), &mut attr));
            good("rdma_create_qp", result);
            let used = c!(((*id.qp()).send_cq, (*id.qp()).recv_cq));
            assert_eq!(used, (send.0, recv.0), "the queues that are used");
            c!(rdma_destroy_qp(id.0));
            let left = c!((
                (*id.0).send_cq,
                (*id.0).recv_cq,
                (*id.0).send_cq_channel,
                (*id.0).recv_cq_channel
            ));
            assert!(left.0.is_null() && left.1.is_null(), "queues are left");
            assert!(left.2.is_null() && left.3.is_null(), "channels are left");
            let after = (count("cq"), descriptors());
            assert_eq!(
                after, before,
                "shared {shared}, with a channel {with_channel}"
            );
        }
    });
}
