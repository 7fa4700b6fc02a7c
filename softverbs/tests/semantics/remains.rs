//! That nothing is left of connections, wherever they end and however many there were.

use crate::common::*;
use rdma_sys::*;
use softverbs::exports::cm::{rdma_create_qp, rdma_resolve_route};
use std::ffi::c_int;
use std::time::{Duration, Instant};

/// How far a connection gets before it ends.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
enum Stage {
    Created,
    Bound,
    AddrAsked,
    AddrResolved,
    RouteResolved,
    Connecting,
    Requested,
    Accepted,
    Established,
    Disconnecting,
    Disconnected,
}

use Stage::*;
const STAGES: [Stage; 11] = [
    Created,
    Bound,
    AddrAsked,
    AddrResolved,
    RouteResolved,
    Connecting,
    Requested,
    Accepted,
    Established,
    Disconnecting,
    Disconnected,
];

/// The objects of the process, and its descriptors.
fn all_there_is() -> [usize; 7] {
    let kinds = ["cm_id", "qp", "cq", "mr", "pd", "srq"].map(|kind| count(kind) as usize);
    let [a, b, c, d, e, f] = kinds;
    [a, b, c, d, e, f, descriptors()]
}

/// Brings a connection there, and destroys what it has.
fn destroy_at(stage: Stage, server_first: bool) {
    let listener = Listener::new();
    let channel = new_channel();
    let mut client = Some(Id::new(&channel));
    let mut server = None;
    if let Some(client) = &client {
        if stage == Bound {
            good("rdma_bind_addr", client.bind(&LOOPBACK));
        }
        if stage >= AddrAsked {
            good("rdma_resolve_addr", client.resolve_addr(&listener.address));
        }
        if stage >= AddrResolved {
            channel.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
        }
        if stage >= RouteResolved {
            good("rdma_resolve_route", c!(rdma_resolve_route(client.0, 1000)));
            channel.expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
        }
        if stage >= Connecting {
            client.create_small_qp();
            client.connect(&ConnParam::default());
        }
        if stage >= Requested {
            let id = Id(listener.channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id);
            if stage >= Accepted {
                id.create_small_qp();
                id.accept(&ConnParam::default());
            }
            server = Some(id);
        }
        if stage >= Established {
            channel.expect(RDMA_CM_EVENT_ESTABLISHED);
            listener.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
        }
        if stage >= Disconnecting {
            client.disconnect();
        }
        if stage >= Disconnected {
            listener.channel.expect(RDMA_CM_EVENT_DISCONNECTED);
            server.as_ref().unwrap().disconnect();
            channel.expect(RDMA_CM_EVENT_DISCONNECTED);
        }
    }
    if server_first {
        drop(server);
        drop(client.take());
    } else {
        drop(client.take());
        drop(server);
    }
}

#[test]
fn nothing_is_left_wherever_a_connection_ends() {
    alone(|| {
        // What there is once for the whole process is there from now on.
        destroy_at(Disconnected, false);
        for stage in STAGES {
            for server_first in [false, true] {
                let before = settled();
                for _ in 0..10 {
                    destroy_at(stage, server_first);
                }
                nothing_more_than(
                    before,
                    &format!("{stage:?}, the server first: {server_first}"),
                );
            }
        }
    });
}

/// What there is, once nothing has gone any more in that many looks.
fn settled() -> [usize; 7] {
    const LOOKS: u32 = 20;
    let (mut last, mut looks) = (all_there_is(), 0);
    until("the number of objects stays the same", || {
        let now = all_there_is();
        looks = if now == last { looks + 1 } else { 0 };
        // Threads that have something to release get their turn in between.
        std::thread::sleep(Duration::from_millis(1));
        last = now;
        looks > LOOKS
    });
    last
}

/// Waits until all has gone that came on top of that. On a busy machine it may have held some that was
/// slow to go: then there is less in the end.
#[track_caller]
fn nothing_more_than(before: [usize; 7], what: &str) {
    let end = Instant::now() + LIMIT;
    loop {
        let now = all_there_is();
        if now.iter().zip(&before).all(|(now, before)| now <= before) {
            return;
        }
        assert!(
            Instant::now() < end,
            "{what}: {now:?} where there was {before:?}; ids, qps, cqs, mrs, pds, srqs, fds"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn requests_that_nobody_takes_leave_nothing() {
    alone(|| {
        destroy_at(Disconnected, false);
        let before = settled();
        for _ in 0..20 {
            let listener = Listener::new();
            let clients: Vec<End> = (0..5)
                .map(|_| begin(&listener.address, &Setup::default()))
                .collect();
            if clients[0].channel.is_quiet() {
                drop(clients);
            } else {
                drop(listener);
            }
        }
        nothing_more_than(before, "requests that nobody takes");
    });
}

#[test]
fn a_thousand_connections() {
    const MANY: usize = 1000;
    alone(|| {
        let mut limit = c!(std::mem::zeroed::<libc::rlimit>());
        good(
            "getrlimit",
            c!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit)),
        );
        limit.rlim_cur = limit.rlim_max;
        good(
            "setrlimit",
            c!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit)),
        );
        let room = (limit.rlim_cur as usize).saturating_sub(64) / 2;
        assert!(
            room >= MANY,
            "only {} descriptors are allowed here",
            limit.rlim_cur
        );
        destroy_at(Disconnected, false);
        let before = settled();
        {
            let listener = Listener::new();
            let channel = new_channel();
            let context = {
                let id = Id::new(&channel);
                id.resolve(&channel, &listener.address);
                c!((*id.0).verbs)
            };
            let pd = Pd::new(context);
            let cq = Cq::new(context, 4 * MANY as c_int, None);
            let mut attr: ibv_qp_init_attr = c!(std::mem::zeroed());
            (attr.send_cq, attr.recv_cq) = (cq.0, cq.0);
            attr.cap.max_send_wr = 1;
            attr.cap.max_recv_wr = 1;
            attr.cap.max_send_sge = 1;
            attr.cap.max_recv_sge = 1;
            attr.qp_type = ibv_qp_type::IBV_QPT_RC;
            let qp = |id: &Id| {
                let result = c!(rdma_create_qp(id.0, pd.0, &mut { attr }));
                good("rdma_create_qp", result);
            };
            let mut clients = vec![];
            let mut servers = vec![];
            for _ in 0..MANY {
                let id = Id::new(&channel);
                id.resolve(&channel, &listener.address);
                qp(&id);
                id.connect(&ConnParam::default());
                clients.push(id);
            }
            while servers.len() < MANY {
                let event = listener.channel.get();
                if event.kind == RDMA_CM_EVENT_CONNECT_REQUEST {
                    let id = Id(event.id);
                    qp(&id);
                    assert_eq!(post_recvs(id.qp(), &[(1, vec![])]), Ok(()));
                    id.accept(&ConnParam::default());
                    servers.push(id);
                }
            }
            for _ in 0..MANY {
                channel.expect(RDMA_CM_EVENT_ESTABLISHED);
            }
            for client in &clients {
                let wr = Wr::new(2, Op::Send, vec![]);
                assert_eq!(post_list(client.qp(), &[wr]), Ok(()));
            }
            let mut ids = [0, 0, 0];
            for _ in 0..2 * MANY {
                let wc = cq.next();
                assert_eq!(wc.status, SUCCESS);
                ids[wc.id as usize] += 1;
            }
            assert_eq!(ids, [0, MANY, MANY], "received and sent");
            // One half disconnects, the other half just goes.
            for client in &clients[..MANY / 2] {
                client.disconnect();
            }
            clients.truncate(MANY / 2);
            let mut gone = 0;
            while gone < MANY {
                gone += usize::from(listener.channel.get().kind == RDMA_CM_EVENT_DISCONNECTED);
            }
            drop(servers);
            for _ in 0..MANY / 2 {
                channel.expect(RDMA_CM_EVENT_DISCONNECTED);
            }
            drop(clients);
        }
        nothing_more_than(before, "requests that nobody takes");
    });
}
