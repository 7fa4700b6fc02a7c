//! NULL wherever the manual pages let a program give it.

use crate::common::*;
use rdma_sys::*;
use softverbs::exports::cm::{
    rdma_accept, rdma_connect, rdma_create_ep, rdma_create_srq, rdma_destroy_ep, rdma_destroy_srq,
    rdma_freeaddrinfo, rdma_getaddrinfo, rdma_migrate_id, rdma_reject, rdma_resolve_route,
};
use softverbs::exports::cq::{ibv_create_cq, ibv_destroy_cq};
use softverbs::exports::device::{
    ibv_free_device_list, ibv_get_device_list, ibv_read_sysfs_file, rdma_free_devices,
    rdma_get_devices,
};
use softverbs::exports::memory::ibv_rereg_mr;
use std::mem::zeroed;
use std::ptr::{self, null, null_mut};

/// A message of nothing, given in every way that the extended interface has.
#[test]
fn requests_of_nothing() {
    type Setter = fn(*mut ibv_qp_ex);
    let setters: [(&str, Setter); 6] = [
        ("nothing", |_| {}),
        ("wr_set_inline_data", |qp| {
            c!((*qp).wr_set_inline_data.unwrap()(qp, null_mut(), 0));
        }),
        ("wr_set_inline_data_list of no pieces", |qp| {
            c!((*qp).wr_set_inline_data_list.unwrap()(qp, 0, null()));
        }),
        ("wr_set_inline_data_list of empty pieces", |qp| {
            let empty = ibv_data_buf {
                addr: null_mut(),
                length: 0,
            };
            c!((*qp).wr_set_inline_data_list.unwrap()(qp, 1, &empty));
        }),
        ("wr_set_sge_list of no pieces", |qp| {
            c!((*qp).wr_set_sge_list.unwrap()(qp, 0, null()));
        }),
        ("wr_set_sge of no bytes", |qp| {
            c!((*qp).wr_set_sge.unwrap()(qp, 0, 0, 0));
        }),
    ];
    let pair = Pair::new();
    let to = pair.server.memory(8, ALL);
    let qp: *mut ibv_qp_ex = pair.client.qp().cast();
    for (i, (what, set)) in setters.iter().enumerate() {
        let i = i as u64;
        pair.server.recv(i, vec![]);
        c!((*qp).wr_start.unwrap()(qp));
        c! { ((*qp).wr_id, (*qp).wr_flags) = (i, SIGNALED) };
        c!((*qp).wr_send.unwrap()(qp));
        set(qp);
        c! { (*qp).wr_id = 100 + i };
        c!((*qp).wr_rdma_write.unwrap()(qp, to.mr().rkey(), to.addr()));
        set(qp);
        assert_eq!(c!((*qp).wr_complete.unwrap()(qp)), 0, "{what}");
        pair.client.send_cq.expect(i, SUCCESS);
        pair.client.send_cq.expect(100 + i, SUCCESS);
        assert_eq!(pair.server.recv_cq.expect(i, SUCCESS).len, 0, "{what}");
    }
}

/// Inline data that has pieces of nothing between others.
#[test]
fn pieces_of_nothing_between_others() {
    let pair = Pair::new();
    let to = pair.server.memory(8, ALL);
    let qp: *mut ibv_qp_ex = pair.client.qp().cast();
    let mut text = *b"abcdefgh";
    let start: *mut u8 = (&raw mut text).cast();
    let piece = |addr, length| ibv_data_buf { addr, length };
    let at = |i: usize| start.wrapping_add(i).cast();
    let pieces = [
        piece(null_mut(), 0),
        piece(at(0), 3),
        piece(null_mut(), 0),
        piece(at(3), 5),
    ];
    c!((*qp).wr_start.unwrap()(qp));
    c! { ((*qp).wr_id, (*qp).wr_flags) = (1, SIGNALED) };
    c!((*qp).wr_rdma_write.unwrap()(qp, to.mr().rkey(), to.addr()));
    c!((*qp).wr_set_inline_data_list.unwrap()(
        qp,
        4,
        pieces.as_ptr()
    ));
    assert_eq!(c!((*qp).wr_complete.unwrap()(qp)), 0);
    pair.client.send_cq.expect(1, SUCCESS);
    same("what was written", &to.read(0, 8), b"abcdefgh");
}

/// `ibv_post_send` and the like: no list of pieces, no list of requests.
#[test]
fn lists_of_nothing() {
    let pair = Pair::new();
    let context = c!(&mut *(*pair.client.qp()).context);
    let (post_send, post_recv) = (
        context.ops.post_send.unwrap(),
        context.ops.post_recv.unwrap(),
    );
    let (client, server) = (pair.client.qp(), pair.server.qp());
    let (mut send, mut recv): (ibv_send_wr, ibv_recv_wr) = c!((zeroed(), zeroed()));
    (send.opcode, send.wr_id, recv.wr_id) = (ibv_wr_opcode::IBV_WR_SEND, 1, 2);
    for inline in [0, INLINE] {
        send.send_flags = SIGNALED | inline;
        assert_eq!(c!(post_recv(server, &mut recv, &mut null_mut())), 0);
        assert_eq!(c!(post_send(client, &mut send, &mut null_mut())), 0);
        pair.client.send_cq.expect(1, SUCCESS);
        pair.server.recv_cq.expect(2, SUCCESS);
    }
    // A piece of no bytes, without a region, as rdma_post_send makes it of a NULL.
    let mut none = ibv_sge {
        addr: 0,
        length: 0,
        lkey: 0,
    };
    (send.sg_list, send.num_sge) = (&mut none, 1);
    for inline in [0, INLINE] {
        send.send_flags = SIGNALED | inline;
        assert_eq!(c!(post_recv(server, &mut recv, &mut null_mut())), 0);
        assert_eq!(c!(post_send(client, &mut send, &mut null_mut())), 0);
        pair.client.send_cq.expect(1, SUCCESS);
        pair.server.recv_cq.expect(2, SUCCESS);
    }
    assert_eq!(c!(post_send(client, null_mut(), &mut null_mut())), 0);
    assert_eq!(c!(post_recv(server, null_mut(), &mut null_mut())), 0);
    let poll = context.ops.poll_cq.unwrap();
    assert_eq!(c!(poll(pair.client.send_cq.0, 0, null_mut())), 0);

    let srq = Srq::new(&pair.server.pd, 4);
    let post_srq_recv = context.ops.post_srq_recv.unwrap();
    assert_eq!(c!(post_srq_recv(srq.0, &mut recv, &mut null_mut())), 0);
    assert_eq!(c!(post_srq_recv(srq.0, null_mut(), &mut null_mut())), 0);
}

/// ibv_get_device_list(3), rdma_get_devices(3), ibv_create_cq(3), ibv_rereg_mr(3).
#[test]
fn devices_queues_and_regions() {
    let list = made("ibv_get_device_list", c!(ibv_get_device_list(null_mut())));
    c!(ibv_free_device_list(list));
    let list = made("rdma_get_devices", c!(rdma_get_devices(null_mut())));
    c!(rdma_free_devices(list));

    let context = device();
    let cq = c!(ibv_create_cq(context, 1, null_mut(), null_mut(), 0));
    assert_eq!(c!(ibv_destroy_cq(made("ibv_create_cq", cq))), 0);

    let pd = Pd::new(context);
    let memory = Memory::new(&pd, 64, LOCAL);
    let mr = memory.mr().0;
    // Neither domain nor address: the rights alone change.
    const ACCESS: i32 = 4;
    let result = c!(ibv_rereg_mr(
        mr,
        ACCESS,
        null_mut(),
        null_mut(),
        0,
        ALL as i32
    ));
    assert_eq!(result, 0);

    // The file is there, and nothing is to be read of it.
    let read = c!(ibv_read_sysfs_file(
        c"/proc/self".as_ptr(),
        c"comm".as_ptr(),
        null_mut(),
        0
    ));
    assert_eq!(read, 0);
    let query = c!({
        let verbs: *mut verbs_context = ptr::from_mut(&mut *context)
            .byte_sub(std::mem::offset_of!(verbs_context, context))
            .cast();
        (*verbs).query_device_ex.unwrap()
    });
    let mut attr: ibv_device_attr_ex = c!(zeroed());
    let size = size_of_val(&attr);
    assert_eq!(c!(query(context, null(), &mut attr, size)), 0);
}

/// rdma_getaddrinfo(3): a host or a service is enough; and either may be in the hints.
#[test]
fn names_of_nothing() {
    let mut hints: rdma_addrinfo = c!(zeroed());
    hints.ai_port_space = rdma_port_space::RDMA_PS_TCP as i32;
    for (node, service) in [(c"127.0.0.1".as_ptr(), null()), (null(), c"1".as_ptr())] {
        for hints in [null(), &raw const hints] {
            let mut info = null_mut();
            let result = c!(rdma_getaddrinfo(node, service, hints, &mut info));
            good("rdma_getaddrinfo", result);
            c!(rdma_freeaddrinfo(made("rdma_getaddrinfo", info)));
        }
    }
    let mut info = null_mut();
    let result = c!(rdma_getaddrinfo(null(), null(), &hints, &mut info));
    good("rdma_getaddrinfo", result);
    c!(rdma_freeaddrinfo(info));
    c!(rdma_freeaddrinfo(null_mut()));
    let result = c!(rdma_getaddrinfo(null(), null(), null(), &mut info));
    fails("rdma_getaddrinfo", result, libc::EINVAL);
}

/// The functions of ids: rdma_create_id(3), rdma_resolve_addr(3), rdma_create_qp(3),
/// rdma_create_srq(3), rdma_connect(3), rdma_accept(3), rdma_migrate_id(3).
#[test]
fn connections_of_nothing_more_than_is_needed() {
    let listener = Listener::new();
    let address = listener.address;
    let client = std::thread::spawn(move || {
        let id = Id::new_sync();
        good("rdma_resolve_addr", id.resolve_addr(&address));
        good("rdma_resolve_route", c!(rdma_resolve_route(id.0, 1000)));
        let mut attr: ibv_srq_init_attr = c!(zeroed());
        (attr.attr.max_wr, attr.attr.max_sge) = (1, 1);
        good(
            "rdma_create_srq",
            c!(rdma_create_srq(id.0, null_mut(), &mut attr)),
        );
        // Neither domain nor queues.
        id.create_small_qp();
        good("rdma_connect", c!(rdma_connect(id.0, null_mut())));
        // Neither a context nor a region, and no bytes.
        let flags = (SIGNALED | INLINE) as i32;
        let sent = c!(rdma_post_send(
            id.0,
            null_mut(),
            null_mut(),
            0,
            null_mut(),
            flags
        ));
        good("rdma_post_send", sent);
        let mut wc: ibv_wc = c!(zeroed());
        assert_eq!(c!(rdma_get_send_comp(id.0, &mut wc)), 1);
        assert_eq!(Status(wc.status), SUCCESS);
        id.disconnect();
        id.destroy_qp();
        c!(rdma_destroy_srq(id.0));
    });
    let server = Id(listener.channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id);
    server.create_small_qp();
    assert_eq!(post_recvs(server.qp(), &[(1, vec![])]), Ok(()));
    good("rdma_migrate_id", c!(rdma_migrate_id(server.0, null_mut())));
    good("rdma_accept", c!(rdma_accept(server.0, null_mut())));
    let mut wc: ibv_wc = c!(zeroed());
    assert_eq!(c!(rdma_get_recv_comp(server.0, &mut wc)), 1);
    assert_eq!(Status(wc.status), SUCCESS);
    server.disconnect();
    soon("the client", move || client.join().unwrap());
}

/// rdma_reject(3); and private data that is NULL, of rdma_connect(3).
#[test]
fn private_data_of_nothing() {
    let listener = Listener::new();
    let channel = new_channel();
    let id = Id::new(&channel);
    id.resolve(&channel, &listener.address);
    let mut param: rdma_conn_param = c!(zeroed());
    good("rdma_connect", c!(rdma_connect(id.0, &mut param)));
    let server = Id(listener.channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id);
    good("rdma_reject", c!(rdma_reject(server.0, null(), 0)));
    channel.expect(RDMA_CM_EVENT_REJECTED);
}

/// rdma_create_ep(3): neither domain nor attributes.
#[test]
fn endpoints_of_nothing() {
    for passive in [true, false] {
        let mut address = CAddress::new(&LOOPBACK);
        let mut info: rdma_addrinfo = c!(zeroed());
        info.ai_port_space = rdma_port_space::RDMA_PS_TCP as i32;
        info.ai_qp_type = ibv_qp_type::IBV_QPT_RC as i32;
        let len = size_of::<libc::sockaddr_in>() as u32;
        if passive {
            info.ai_flags = 1;
            (info.ai_src_addr, info.ai_src_len) = (address.raw(), len);
        } else {
            (info.ai_dst_addr, info.ai_dst_len) = (address.raw(), len);
        }
        let mut id = null_mut();
        let result = c!(rdma_create_ep(&mut id, &mut info, null_mut(), null_mut()));
        good("rdma_create_ep", result);
        assert!(c!((*id).qp.is_null()));
        c!(rdma_destroy_ep(id));
    }
}
