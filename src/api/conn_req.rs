//! Connection requests.

use super::conn::{rpma_conn, rpma_conn_private_data};
use super::conn_cfg::rpma_conn_cfg;
use super::mr::rpma_mr_local;
use super::ops::local_range;
use super::peer::rpma_peer;
use super::{call, delete, export, get, give_box, out, string, take};
use crate::core::{ConnCfg, ConnReq, Error};
use std::ffi::{c_char, c_int, c_void};

/// A connection that one side has asked for and that is not made yet.
pub type rpma_conn_req = crate::core::ConnReq;

/// Prepares a connection to an address and a port, each a name or a number.
///
/// The other side listens there. A `cfg` that is NULL stands for the defaults of
/// rpma_conn_cfg_new().
///
/// The request is the caller's, for rpma_conn_req_connect() to send or
/// rpma_conn_req_delete() to drop, before the peer is released.
///
/// Thread-safe.
///
/// Errors, with `*req_ptr` as it was:
/// - RPMA_E_INVAL: `peer`, `addr`, `port` or `req_ptr` is NULL, or `cfg` wants a shared
///   completion channel with a shared RQ that has its own CQ
/// - RPMA_E_NOMEM: out of memory: nothing was made; the call can be repeated
/// - RPMA_E_PROVIDER: rdma_getaddrinfo(3), rdma_create_id(3), rdma_resolve_addr(3) or
///   rdma_resolve_route(3) failed, no RDMA device serves the address, or the completion
///   queues or the QP can't be made: the log says which. "Connection timed out" asks for
///   an address that the device of the peer reaches, or for more time, by
///   rpma_conn_cfg_set_timeout(); if the queues can't be made, mostly a size of `cfg` is
///   more than the device allows.
///
/// # Example
///
/// ```c
/// enum rpma_conn_event event = RPMA_CONN_UNDEFINED;
/// ret = rpma_conn_req_new(peer, "192.168.0.1", "7204", NULL, &req);
/// if (!ret)
///     ret = rpma_conn_req_connect(&req, NULL, &conn);
/// if (!ret)
///     ret = rpma_conn_next_event(conn, &event);
/// if (!ret && event != RPMA_CONN_ESTABLISHED) {
///     fprintf(stderr, "%s\n", rpma_utils_conn_event_2str(event));
///     rpma_conn_delete(&conn);
/// }
/// ```
pub unsafe extern "C" fn rpma_conn_req_new(
    peer: *mut rpma_peer,
    addr: *const c_char,
    port: *const c_char,
    cfg: *const rpma_conn_cfg,
    req_ptr: *mut *mut rpma_conn_req,
) -> c_int {
    call(|| {
        // SAFETY: NULL or a peer, which the caller keeps; NULL or a string each; NULL or
        // a configuration; NULL or valid to write to.
        unsafe {
            let (peer, addr, port) = (get(peer)?, string(addr)?, string(port)?);
            let (req, cfg) = (out(req_ptr)?, cfg.as_ref());
            let defaults = ConnCfg::default();
            let request = ConnReq::outgoing(peer, addr, port, cfg.unwrap_or(&defaults))?;
            give_box(request, req);
            ConnReq::announce(addr, port);
            Ok(())
        }
    })
}

/// Drops a connection request.
///
/// `*req_ptr` is set to NULL; one that is NULL already is fine.
///
/// The other side of an incoming request is rejected: it gets RPMA_CONN_REJECTED.
///
/// Thread-safe on separate requests.
///
/// Errors:
/// - RPMA_E_INVAL: `req_ptr` is NULL
/// - RPMA_E_PROVIDER: ibv_destroy_cq(3), ibv_destroy_comp_channel(3), rdma_reject(3) or
///   rdma_destroy_id(3) failed, for the reason that the log gives; the request is gone
///   all the same
///
/// # Example
///
/// To reject who does not say the word:
///
/// ```c
/// struct rpma_conn_private_data pdata;
/// ret = rpma_conn_req_get_private_data(req, &pdata);
/// if (!ret && (pdata.len < 6 || memcmp(pdata.ptr, "please", 6)))
///     ret = rpma_conn_req_delete(&req);
/// ```
pub unsafe extern "C" fn rpma_conn_req_delete(req_ptr: *mut *mut rpma_conn_req) -> c_int {
    // SAFETY: NULL, or points to NULL or to a request made by the library.
    unsafe { delete(req_ptr, ConnReq::delete) }
}

/// Makes a connection of a request.
///
/// An outgoing request is sent, an incoming one accepted.
///
/// `pdata` is for the other side: a `struct rpma_conn_private_data`, or NULL for none.
/// The data is copied.
///
/// `*req_ptr` is consumed and set to NULL, also where the function fails.
///
/// The connection is the caller's, to be released by rpma_conn_delete(). It is usable
/// once rpma_conn_next_event() gives RPMA_CONN_ESTABLISHED.
///
/// Thread-safe on separate requests.
///
/// Errors, with `*conn_ptr` as it was:
/// - RPMA_E_INVAL: `req_ptr`, `*req_ptr` or `conn_ptr` is NULL, or `pdata` has no pointer
///   or no length
/// - RPMA_E_NOMEM: out of memory: the request is gone all the same, and a new one can be
///   made
/// - RPMA_E_PROVIDER: rdma_create_event_channel(3), rdma_migrate_id(3), rdma_accept(3),
///   rdma_connect(3) or ibv_reg_mr(3) failed, for the reason that the log gives. "Invalid
///   argument" of rdma_connect or rdma_accept is mostly private data that is longer than
///   the device can carry: 56 bytes of a request go anywhere. Whether the other side is
///   there is not known yet: that tells rpma_conn_next_event().
///
/// # Example
///
/// See rpma_conn_req_new() for the side that asks, and rpma_ep_listen() for the side that
/// is asked.
pub unsafe extern "C" fn rpma_conn_req_connect(
    req_ptr: *mut *mut rpma_conn_req,
    pdata: *const rpma_conn_private_data,
    conn_ptr: *mut *mut rpma_conn,
) -> c_int {
    call(|| {
        // SAFETY: NULL, or points to NULL or to a request made by the library; NULL or
        // valid to write to; NULL or private data as it says.
        unsafe {
            let req = take(req_ptr)?.ok_or(Error::INVAL)?;
            let pdata = pdata.as_ref().map(|pdata| pdata.bytes());
            let (Ok(conn), false) = (out(conn_ptr), pdata == Some(None)) else {
                let _ = req.delete();
                return Err(Error::INVAL);
            };
            give_box(req.connect(pdata.flatten())?, conn);
            Ok(())
        }
    })
}

/// Posts a buffer for a message before the connection is made.
///
/// So the first message finds one. The buffer is `len` bytes of `dst` from `offset` on.
///
/// `op_context` comes back as `wr_id` of the completion; until then the memory may be
/// written and the region must stay registered.
///
/// Not thread-safe on one request.
///
/// Errors:
/// - RPMA_E_INVAL: `req` or `dst` is NULL, or `len` is 2^32 or more
/// - RPMA_E_PROVIDER: ibv_post_recv(3) failed: mostly the receive queue is full, which
///   rpma_conn_cfg_set_rq_size() makes longer
///
/// # Example
///
/// ```c
/// ret = rpma_conn_req_recv(req, mr, 0, 64, NULL);
/// if (!ret)
///     ret = rpma_conn_req_connect(&req, NULL, &conn);
/// ```
pub unsafe extern "C" fn rpma_conn_req_recv(
    req: *mut rpma_conn_req,
    dst: *mut rpma_mr_local,
    offset: usize,
    len: usize,
    op_context: *const c_void,
) -> c_int {
    call(|| {
        // SAFETY: NULL or a request; NULL or a region; the caller leaves the memory to
        // the device.
        unsafe {
            let req = get(req)?;
            let dst = local_range(get(dst)?, offset, len)?.ok_or(Error::INVAL)?;
            req.recv(dst, op_context as u64)
        }
    })
}

/// Gives the private data that came with an incoming request.
///
/// It is a `struct rpma_conn_private_data`: pointer NULL and length 0 if none came. The
/// data lives as long as the request or the connection made of it. It may be longer than
/// what was sent, with zeros at the end.
///
/// Anyone on the network may have changed it: it is no secure way to tell anything.
///
/// Not thread-safe on one request.
///
/// Errors, with `*pdata` as it was:
/// - RPMA_E_INVAL: `req` or `pdata` is NULL
///
/// # Example
///
/// See rpma_conn_req_delete().
pub unsafe extern "C" fn rpma_conn_req_get_private_data(
    req: *const rpma_conn_req,
    pdata: *mut rpma_conn_private_data,
) -> c_int {
    call(|| {
        // SAFETY: NULL or a request; NULL or valid to write to.
        let (req, pdata) = unsafe { (get(req)?, out(pdata)?) };
        pdata.write(req.private_data(|data| data.into()));
        Ok(())
    })
}

export!(
    rpma_conn_req_new
    rpma_conn_req_delete
    rpma_conn_req_connect
    rpma_conn_req_recv
    rpma_conn_req_get_private_data
);
