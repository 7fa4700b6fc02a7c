//! Connection management: channels, connecting, refusals, and the ways in which connections end.

use crate::common::*;
use rdma_sys::*;
use softverbs::exports::cm::{
    rdma_accept, rdma_ack_cm_event, rdma_connect, rdma_create_ep, rdma_freeaddrinfo,
    rdma_get_cm_event, rdma_get_request, rdma_getaddrinfo, rdma_listen, rdma_migrate_id,
    rdma_reject, rdma_resolve_route,
};
use std::ffi::{CStr, CString, c_int};
use std::net::SocketAddr;
use std::ptr;
use std::time::{Duration, Instant};

// ---- channels ----

#[test]
fn a_channel_that_does_not_wait_says_that_there_is_nothing() {
    let channel = new_channel();
    set_nonblocking(channel.fd());
    let mut event = ptr::null_mut();
    let get = |event| c!(rdma_get_cm_event(channel.0, event));
    fails("rdma_get_cm_event", get(&mut event), libc::EAGAIN);
    let id = Id::new(&channel);
    good("rdma_resolve_addr", id.resolve_addr(&at([127, 0, 0, 1], 9)));
    channel.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
    fails("rdma_get_cm_event", get(&mut event), libc::EAGAIN);
}

#[test]
fn an_id_is_destroyed_when_its_events_are_acknowledged() {
    let channel = new_channel();
    let id = Id::new(&channel);
    good("rdma_resolve_addr", id.resolve_addr(&at([127, 0, 0, 1], 9)));
    let event = channel.take();
    assert_eq!(
        (name(event.kind), event.id),
        ("RDMA_CM_EVENT_ADDR_RESOLVED", id.0)
    );
    let (send, destroyed) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(id);
        send.send(()).unwrap();
    });
    let early = destroyed.recv_timeout(Duration::from_millis(30));
    assert!(early.is_err(), "destroyed before its event is acknowledged");
    event.acknowledge();
    assert_eq!(destroyed.recv_timeout(LIMIT), Ok(()));
}

#[test]
fn events_of_what_is_destroyed_are_gone() {
    let channel = new_channel();
    let id = Id::new(&channel);
    let other = Id::new(&channel);
    for one in [&id, &other] {
        good(
            "rdma_resolve_addr",
            one.resolve_addr(&at([127, 0, 0, 1], 9)),
        );
    }
    drop(id);
    assert_eq!(channel.expect(RDMA_CM_EVENT_ADDR_RESOLVED).id, other.0);
    assert!(channel.is_quiet());
}

#[test]
fn destroying_while_others_get_events() {
    // Whoever gets an event has an id that lives until it is acknowledged, or no event.
    let channel = new_channel();
    set_nonblocking(channel.fd());
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let (channel, stop) = (&channel, &stop);
            scope.spawn(move || {
                let end = Instant::now() + LIMIT;
                while !stop.load(std::sync::atomic::Ordering::SeqCst) && Instant::now() < end {
                    let mut event = ptr::null_mut();
                    if c!(rdma_get_cm_event(channel.0, &mut event)) == 0 {
                        let context = c!((*(*event).id).context);
                        assert_eq!(context as usize, 0x1234, "of the id of an event");
                        c!(rdma_ack_cm_event(event));
                    }
                }
            });
        }
        for _ in 0..3000 {
            let id = Id::new(&channel);
            good("rdma_resolve_addr", id.resolve_addr(&at([127, 0, 0, 1], 9)));
        }
        stop.store(true, std::sync::atomic::Ordering::SeqCst);
    });
}

#[test]
fn queued_events_migrate_with_their_id() {
    let (from, to) = (new_channel(), new_channel());
    let id = Id::new(&from);
    let stays = Id::new(&from);
    for one in [&id, &stays] {
        good(
            "rdma_resolve_addr",
            one.resolve_addr(&at([127, 0, 0, 1], 9)),
        );
    }
    good("rdma_migrate_id", c!(rdma_migrate_id(id.0, to.0)));
    assert_eq!(c!((*id.0).channel), to.0);
    assert_eq!(to.expect(RDMA_CM_EVENT_ADDR_RESOLVED).id, id.0);
    assert_eq!(from.expect(RDMA_CM_EVENT_ADDR_RESOLVED).id, stays.0);
    assert!(from.is_quiet() && to.is_quiet());
    good("rdma_resolve_route", c!(rdma_resolve_route(id.0, 1000)));
    assert_eq!(to.expect(RDMA_CM_EVENT_ROUTE_RESOLVED).id, id.0);
    assert!(from.is_quiet());
}

/// One that came before the listener had its new channel gets its own events there, too.
#[test]
fn a_connection_comes_to_the_channel_that_its_request_was_taken_from() {
    let listener = Listener::new();
    let client = begin(&listener.address, &Setup::default());
    assert!(readable(listener.channel.fd(), LIMIT), "no request");
    let other = new_channel();
    listener.id.migrate(&other);
    let server = Id(other.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id);
    assert_eq!(c!((*server.0).channel), other.0);
    server.create_small_qp();
    server.accept(&ConnParam::default());
    client.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
    assert_eq!(other.expect(RDMA_CM_EVENT_ESTABLISHED).id, server.0);
    assert!(listener.channel.is_quiet());
}

#[test]
fn a_connection_migrates_away_from_its_listener() {
    let listener = Listener::new();
    let client = begin(&listener.address, &Setup::default());
    let server = listener.accept(&Setup::default());
    client.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
    server.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
    assert!(listener.channel.is_quiet());
    drop(listener);
    client.id.disconnect();
    server.channel.expect(RDMA_CM_EVENT_DISCONNECTED);
}

#[test]
fn events_have_names() {
    assert_eq!(
        name(RDMA_CM_EVENT_ADDR_RESOLVED),
        "RDMA_CM_EVENT_ADDR_RESOLVED"
    );
    assert_eq!(
        name(RDMA_CM_EVENT_CONNECT_REQUEST),
        "RDMA_CM_EVENT_CONNECT_REQUEST"
    );
    assert_eq!(name(RDMA_CM_EVENT_ESTABLISHED), "RDMA_CM_EVENT_ESTABLISHED");
    assert_eq!(name(RDMA_CM_EVENT_REJECTED), "RDMA_CM_EVENT_REJECTED");
    assert_eq!(
        name(RDMA_CM_EVENT_TIMEWAIT_EXIT),
        "RDMA_CM_EVENT_TIMEWAIT_EXIT"
    );
    assert_eq!(name(1000), "UNKNOWN EVENT");
}

// ---- refusals ----

/// An address of this host that nobody listens at.
fn nobody() -> SocketAddr {
    let channel = new_channel();
    let id = Id::new(&channel);
    good("rdma_bind_addr", id.bind(&LOOPBACK));
    id.local()
}

#[test]
fn nobody_listens() {
    let client = begin(&nobody(), &Setup::default());
    client.recv(1, vec![]);
    let event = client.channel.expect(RDMA_CM_EVENT_REJECTED);
    assert_eq!(event.status, 8, "the reason: no such service");
    client.recv_cq.expect(1, FLUSHED);
}

#[test]
fn a_request_is_rejected_with_private_data() {
    for data in [vec![], vec![7], pattern(1, 148)] {
        let listener = Listener::new();
        let client = begin(&listener.address, &Setup::default());
        client.recv(1, vec![]);
        let request = Id(listener.channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id);
        let result = c!(rdma_reject(
            request.0,
            data.as_ptr().cast(),
            data.len() as u8
        ));
        good("rdma_reject", result);
        let event = client.channel.expect(RDMA_CM_EVENT_REJECTED);
        assert_eq!(event.status, 28, "the reason: the program's");
        let mut padded = data.clone();
        padded.resize(148, 0);
        same("the private data", &event.private, &padded);
        client.recv_cq.expect(1, FLUSHED);
        let mut param = ConnParam::default().c();
        fails(
            "rdma_accept",
            c!(rdma_accept(request.0, &mut param)),
            libc::EINVAL,
        );
        assert!(listener.channel.is_quiet());
    }
}

#[test]
fn a_client_that_was_rejected_can_not_connect_again() {
    let listener = Listener::new();
    let client = begin(&listener.address, &Setup::default());
    drop(Id(listener
        .channel
        .expect(RDMA_CM_EVENT_CONNECT_REQUEST)
        .id));
    assert_eq!(client.channel.expect(RDMA_CM_EVENT_REJECTED).status, 28);
    let mut param = ConnParam::default().c();
    fails(
        "rdma_connect",
        c!(rdma_connect(client.id.0, &mut param)),
        libc::EINVAL,
    );
}

#[test]
fn private_data_goes_both_ways() {
    for (ask, answer) in [(0, 0), (1, 3), (56, 196)] {
        let (ask, answer) = (pattern(ask, ask as usize), pattern(answer, answer as usize));
        let listener = Listener::new();
        let mut setup = Setup::default();
        setup.client.private = ask.clone();
        setup.server.private = answer.clone();
        let client = begin(&listener.address, &setup);
        let request = listener.channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
        let mut padded = ask.clone();
        padded.resize(56, 0);
        same("of the request", &request.private, &padded);
        let server = End::new(Id(request.id), new_channel(), &setup);
        server.id.accept(&setup.server);
        let event = client.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
        let mut padded = answer.clone();
        padded.resize(196, 0);
        same("of the answer", &event.private, &padded);
        let event = listener.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
        assert!(
            event.private.is_empty(),
            "there is none in what ends the handshake"
        );
    }
}

#[test]
fn too_much_private_data_is_refused() {
    let listener = Listener::new();
    let channel = new_channel();
    let id = Id::new(&channel);
    id.resolve(&channel, &listener.address);
    id.create_small_qp();
    let param = |len| ConnParam {
        private: vec![1; len],
        ..ConnParam::default()
    };
    fails(
        "rdma_connect",
        c!(rdma_connect(id.0, &mut param(57).c())),
        libc::EINVAL,
    );
    id.connect(&param(56));
    let server = Id(listener.channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id);
    server.create_small_qp();
    let data = [1u8; 149];
    fails(
        "rdma_reject",
        c!(rdma_reject(server.0, data.as_ptr().cast(), 149)),
        libc::EINVAL,
    );
    server.accept(&param(196));
    channel.expect(RDMA_CM_EVENT_ESTABLISHED);
}

#[test]
fn a_request_that_can_not_be_accepted_is_rejected() {
    for param in [
        ConnParam {
            private: vec![1; 197],
            ..ConnParam::default()
        },
        ConnParam {
            initiator_depth: 129,
            ..ConnParam::default()
        },
    ] {
        let listener = Listener::new();
        let client = begin(&listener.address, &Setup::default());
        let server = Id(listener.channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id);
        server.create_small_qp();
        let accept = || c!(rdma_accept(server.0, &mut param.c()));
        fails("rdma_accept", accept(), libc::EINVAL);
        assert_eq!(client.channel.expect(RDMA_CM_EVENT_REJECTED).status, 28);
        fails("rdma_accept", accept(), libc::EINVAL);
    }
}

#[test]
fn resources_are_agreed() {
    // What each side says, what the other is told, and what comes of it.
    for (client, server, depths) in [
        ((16, 16), (16, 16), (16, 16)),
        ((3, 5), (16, 16), (5, 3)),
        ((16, 16), (2, 7), (2, 7)),
        ((0, 0), (16, 16), (0, 0)),
        ((255, 255), (255, 255), (128, 128)),
    ] {
        let listener = Listener::new();
        let mut setup = Setup::default();
        let of = |param: &mut ConnParam, (resources, depth)| {
            (param.responder_resources, param.initiator_depth) = (resources, depth)
        };
        of(&mut setup.client, client);
        of(&mut setup.server, server);
        let ask = begin(&listener.address, &setup);
        let request = listener.channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
        let told = (
            request.param.responder_resources,
            request.param.initiator_depth,
        );
        let most = |n: u8| n.min(128);
        // What one side can answer is what the other may ask.
        assert_eq!(
            told,
            (most(client.1), most(client.0)),
            "{client:?} {server:?}: of the request"
        );
        let answer = End::new(Id(request.id), new_channel(), &setup);
        answer.id.accept(&setup.server);
        ask.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
        listener.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
        let seen = (ask.query().max_rd_atomic, answer.query().max_rd_atomic);
        assert_eq!(
            seen, depths,
            "{client:?} {server:?}: reads of either side under way"
        );
    }
}

#[test]
fn more_resources_than_there_are_are_refused() {
    let listener = Listener::new();
    let channel = new_channel();
    let id = Id::new(&channel);
    id.resolve(&channel, &listener.address);
    id.create_small_qp();
    let param = ConnParam {
        initiator_depth: 129,
        ..ConnParam::default()
    };
    fails(
        "rdma_connect",
        c!(rdma_connect(id.0, &mut param.c())),
        libc::EINVAL,
    );
}

#[test]
fn no_more_connections_wait_than_the_backlog() {
    let channel = new_channel();
    let listener = Id::new(&channel);
    let address = listener.listen_at(&LOOPBACK, 2);
    let ends: Vec<End> = (0..5).map(|_| begin(&address, &Setup::default())).collect();
    let told = || ends.iter().filter(|end| !end.channel.is_quiet());
    until("all but two are turned away", || told().count() >= 3);
    told().for_each(|end| _ = end.channel.expect(RDMA_CM_EVENT_REJECTED));
    let mut taken = vec![];
    let mut take = || {
        let id = Id(channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id);
        let peer = id.peer();
        taken.push(id);
        peer
    };
    take();
    take();
    // There is room again. Had a third waited, its request would be the next.
    let again = begin(&address, &Setup::default());
    assert_eq!(take(), again.id.local(), "who asks for the next connection");
    assert!(again.channel.is_quiet());
}

#[test]
fn a_listener_that_goes_rejects_those_who_wait() {
    let listener = Listener::new();
    let clients: Vec<End> = (0..5)
        .map(|_| begin(&listener.address, &Setup::default()))
        .collect();
    assert!(readable(listener.channel.fd(), LIMIT));
    let taken = Id(listener.channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id);
    let at = taken.peer();
    let Listener { id, channel, .. } = listener;
    drop(id);
    for client in &clients {
        if client.id.local() == at {
            continue;
        }
        let event = client.channel.get();
        let end = name(event.kind);
        assert!(
            matches!(
                event.kind,
                RDMA_CM_EVENT_REJECTED | RDMA_CM_EVENT_UNREACHABLE
            ),
            "those who wait get {end}"
        );
    }
    // What was taken before goes on.
    taken.create_small_qp();
    taken.accept(&ConnParam::default());
    let client = clients
        .iter()
        .find(|client| client.id.local() == at)
        .unwrap();
    client.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
    channel.expect(RDMA_CM_EVENT_ESTABLISHED);
}

#[test]
fn accepting_one_that_has_gone() {
    let listener = Listener::new();
    let client = begin(&listener.address, &Setup::default());
    let server = Id(listener.channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id);
    server.create_small_qp();
    drop(client);
    let mut param = ConnParam::default().c();
    // Whether the other side is known to be gone by now makes no difference in the end.
    let result = c!(rdma_accept(server.0, &mut param));
    if result == 0 {
        let event = listener.channel.get();
        let end = name(event.kind);
        assert!(
            matches!(
                event.kind,
                RDMA_CM_EVENT_UNREACHABLE | RDMA_CM_EVENT_REJECTED
            ),
            "who accepts gets {end}"
        );
    }
}

#[test]
fn accepting_one_whose_process_has_ended() {
    if let Some(port) = role() {
        let client = begin(
            &at([127, 0, 0, 1], port.parse().unwrap()),
            &Setup::default(),
        );
        tell("asked");
        wait_to_go_on();
        drop(client);
        return;
    }
    let listener = Listener::new();
    let mut part = Part::start(&listener.address.port().to_string());
    part.told();
    let server = Id(listener.channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id);
    server.create_small_qp();
    part.kill();
    let mut param = ConnParam::default().c();
    good("rdma_accept", c!(rdma_accept(server.0, &mut param)));
    listener.channel.expect(RDMA_CM_EVENT_UNREACHABLE);
}

// ---- ends ----

#[test]
fn the_one_who_disconnects_is_told_when_the_other_does() {
    for destroys in [false, true] {
        let Pair { client, server } = Pair::new();
        client.id.disconnect();
        server.channel.expect(RDMA_CM_EVENT_DISCONNECTED);
        assert!(
            client.channel.is_quiet(),
            "told before the other side has answered"
        );
        if destroys {
            drop(server);
        } else {
            server.id.disconnect();
        }
        client.channel.expect(RDMA_CM_EVENT_DISCONNECTED);
        // The numbers of the connection can be used again.
        let event = client.channel.take();
        assert_eq!(name(event.kind), "RDMA_CM_EVENT_TIMEWAIT_EXIT");
        event.acknowledge();
        assert!(client.channel.is_quiet());
    }
}

#[test]
fn both_disconnect_at_once() {
    for round in 0..50 {
        let Pair { client, server } = Pair::new();
        std::thread::scope(|scope| {
            for end in [&client, &server] {
                scope.spawn(|| end.id.disconnect());
            }
        });
        client.channel.expect(RDMA_CM_EVENT_DISCONNECTED);
        server.channel.expect(RDMA_CM_EVENT_DISCONNECTED);
        assert_eq!(client.state(), ibv_qp_state::IBV_QPS_ERR, "round {round}");
    }
}

#[test]
fn destroying_tells_the_other_side() {
    let Pair { client, server } = Pair::new();
    drop(client);
    server.channel.expect(RDMA_CM_EVENT_DISCONNECTED);
    server.id.disconnect();
}

#[test]
fn disconnecting_before_the_other_side_knows_of_the_connection() {
    let listener = Listener::new();
    let client = begin(&listener.address, &Setup::default());
    let server = listener.accept(&Setup::default());
    // The client has not looked at the answer.
    assert!(readable(client.channel.fd(), LIMIT));
    server.id.disconnect();
    client.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
    client.channel.expect(RDMA_CM_EVENT_DISCONNECTED);
    client.id.disconnect();
    server.channel.expect(RDMA_CM_EVENT_DISCONNECTED);
}

#[test]
fn messages_that_come_before_their_receiver_knows_of_the_connection() {
    let listener = Listener::new();
    let client = begin(&listener.address, &Setup::default());
    let memory = client.memory(64, ALL);
    client.recv(1, vec![memory.sge(0, 64)]);
    let server = listener.accept(&Setup::default());
    let from = server.memory(64, LOCAL);
    from.fill(5);
    server.post(Wr::new(2, Op::Send, vec![from.sge(0, 64)]));
    client.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
    client.recv_cq.expect(1, SUCCESS);
    same("the message", &memory.read(0, 64), &[5; 64]);
    server.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
}

/// They wait until the program has its event, and then are carried out, though it calls nothing else.
#[test]
fn atomics_that_come_before_their_target_knows_of_the_connection() {
    let listener = Listener::new();
    let client = begin(&listener.address, &Setup::default());
    let memory = client.memory(64, ALL);
    let server = listener.accept(&Setup::default());
    let found = server.memory(64, ALL);
    let wr = Wr::new(2, Op::FetchAdd(memory.at(8), 5), vec![found.sge(0, 8)]);
    server.post(wr);
    client.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
    server.send_cq.expect(2, SUCCESS);
    assert_eq!(memory.read(8, 8), 5u64.to_ne_bytes());
    server.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
}

// ---- the synchronous mode ----

#[test]
fn ids_without_a_channel_wait() {
    let (send, address) = std::sync::mpsc::channel();
    let server = std::thread::spawn(move || {
        let listener = new_sync_id();
        send.send(listener.listen_at(&LOOPBACK, 0)).unwrap();
        let mut id = ptr::null_mut();
        good(
            "rdma_get_request",
            c!(rdma_get_request(listener.0, &mut id)),
        );
        let id = Id(id);
        let event = c!(&*(*id.0).event);
        assert_eq!(name(event.event), "RDMA_CM_EVENT_CONNECT_REQUEST");
        id.create_small_qp();
        id.accept(&ConnParam::default());
        assert_eq!(
            name(c!((*(*id.0).event).event)),
            "RDMA_CM_EVENT_ESTABLISHED"
        );
        id.disconnect();
        assert_eq!(
            name(c!((*(*id.0).event).event)),
            "RDMA_CM_EVENT_DISCONNECTED"
        );
    });
    let client = new_sync_id();
    good(
        "rdma_resolve_addr",
        client.resolve_addr(&address.recv().unwrap()),
    );
    assert_eq!(
        name(c!((*(*client.0).event).event)),
        "RDMA_CM_EVENT_ADDR_RESOLVED"
    );
    good("rdma_resolve_route", c!(rdma_resolve_route(client.0, 1000)));
    client.create_small_qp();
    client.connect(&ConnParam::default());
    assert_eq!(
        name(c!((*(*client.0).event).event)),
        "RDMA_CM_EVENT_ESTABLISHED"
    );
    client.disconnect();
    soon("the server", move || server.join().unwrap());
}

#[test]
fn an_id_without_a_channel_says_that_it_is_refused() {
    let address = nobody();
    let client = new_sync_id();
    good("rdma_resolve_addr", client.resolve_addr(&address));
    good("rdma_resolve_route", c!(rdma_resolve_route(client.0, 1000)));
    client.create_small_qp();
    soon("rdma_connect", move || {
        let mut param = ConnParam::default().c();
        let result = c!(rdma_connect(client.0, &mut param));
        fails("rdma_connect", result, libc::ECONNREFUSED);
        assert_eq!(c!((*(*client.0).event).event), RDMA_CM_EVENT_REJECTED);
        assert_eq!(c!((*(*client.0).event).status), 8);
        drop(client);
    });
}

// ---- endpoints ----

fn address_info(service: &str, flags: u32) -> *mut rdma_addrinfo {
    let mut hints: rdma_addrinfo = c!(std::mem::zeroed());
    hints.ai_flags = flags as c_int;
    hints.ai_port_space = rdma_port_space::RDMA_PS_TCP as c_int;
    let (node, service) = (c"127.0.0.1", CString::new(service).unwrap());
    let mut info = ptr::null_mut();
    let result = c!(rdma_getaddrinfo(
        node.as_ptr(),
        service.as_ptr(),
        &hints,
        &mut info
    ));
    good("rdma_getaddrinfo", result);
    info
}

#[test]
fn endpoints() {
    let attr = || {
        let mut attr: ibv_qp_init_attr = c!(std::mem::zeroed());
        attr.cap.max_send_wr = 4;
        attr.cap.max_recv_wr = 4;
        attr.cap.max_send_sge = 1;
        attr.cap.max_recv_sge = 1;
        attr.sq_sig_all = 1;
        attr.qp_type = ibv_qp_type::IBV_QPT_RC;
        attr
    };
    let create = |info, attr: &mut ibv_qp_init_attr| {
        let mut id = ptr::null_mut();
        good(
            "rdma_create_ep",
            c!(rdma_create_ep(&mut id, info, ptr::null_mut(), attr)),
        );
        c!(rdma_freeaddrinfo(info));
        Id(id)
    };
    let listener = create(address_info("0", 1), &mut attr());
    assert!(
        listener.qp().is_null(),
        "the queue pair is for those who come"
    );
    good("rdma_listen", c!(rdma_listen(listener.0, 0)));
    let port = listener.local().port().to_string();
    let server = std::thread::spawn(move || {
        let mut id = ptr::null_mut();
        good(
            "rdma_get_request",
            c!(rdma_get_request(listener.0, &mut id)),
        );
        let id = Id(id);
        assert!(!id.qp().is_null(), "one that comes has a queue pair");
        let mut message = [0u8; 8];
        let addr = message.as_mut_ptr().cast();
        let mr = made("rdma_reg_msgs", c!(rdma_reg_msgs(id.0, addr, 8)));
        good(
            "rdma_post_recv",
            c!(rdma_post_recv(id.0, ptr::null_mut(), addr, 8, mr)),
        );
        good("rdma_accept", c!(rdma_accept(id.0, ptr::null_mut())));
        let mut wc: ibv_wc = c!(std::mem::zeroed());
        assert_eq!(c!(rdma_get_recv_comp(id.0, &mut wc)), 1);
        assert_eq!((wc.status, message), (0, *b"a word.\0"));
        id.disconnect();
        good("rdma_dereg_mr", c!(rdma_dereg_mr(mr)));
        (id, listener)
    });
    let client = create(address_info(&port, 0), &mut attr());
    assert!(!client.qp().is_null());
    good("rdma_connect", c!(rdma_connect(client.0, ptr::null_mut())));
    let mut message = *b"a word.\0";
    let addr = message.as_mut_ptr().cast();
    let mr = made("rdma_reg_msgs", c!(rdma_reg_msgs(client.0, addr, 8)));
    good(
        "rdma_post_send",
        c!(rdma_post_send(client.0, ptr::null_mut(), addr, 8, mr, 0)),
    );
    let mut wc: ibv_wc = c!(std::mem::zeroed());
    assert_eq!(c!(rdma_get_send_comp(client.0, &mut wc)), 1);
    assert_eq!(wc.status, 0);
    client.disconnect();
    drop(soon("the server", move || server.join().unwrap()));
    good("rdma_dereg_mr", c!(rdma_dereg_mr(mr)));
}

#[test]
fn endpoints_of_other_kinds_are_not_supported() {
    use ibv_qp_type::{IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND};
    for passive in [0, 1] {
        let info = address_info("1", passive);
        for qp_type in [IBV_QPT_XRC_SEND, IBV_QPT_XRC_RECV, IBV_QPT_UC, IBV_QPT_UD] {
            let mut attr: ibv_qp_init_attr = c!(std::mem::zeroed());
            c! { (*info).ai_qp_type = qp_type as c_int };
            for attr in [ptr::null_mut(), &raw mut attr] {
                let mut id = ptr::null_mut();
                let result = c!(rdma_create_ep(&mut id, info, ptr::null_mut(), attr));
                fails("rdma_create_ep", result, libc::EOPNOTSUPP);
            }
        }
        c!(rdma_freeaddrinfo(info));
    }
}

#[test]
fn an_endpoint_to_where_nobody_is() {
    let (node, service) = (c"no.such.host.invalid", c"1");
    let mut info = ptr::null_mut();
    let hints = ptr::null();
    let result = c!(rdma_getaddrinfo(
        node.as_ptr(),
        service.as_ptr(),
        hints,
        &mut info
    ));
    assert_ne!(result, 0, "a host that there is not was found");
    let text = c!(CStr::from_ptr(libc::gai_strerror(result)));
    assert!(!text.is_empty());
}
