//! Endpoints.

use super::conn_cfg::rpma_conn_cfg;
use super::conn_req::rpma_conn_req;
use super::peer::rpma_peer;
use super::{call, delete, export, get, give, give_box, out, string};
use crate::core::{ConnCfg, Ep, Error};
use std::ffi::{c_char, c_int};
use std::ptr;

/// Where connection requests of other sides come in.
pub type rpma_ep = crate::core::Ep;

/// Listens for connections at an address and a port, each a name or a number.
///
/// The endpoint is the caller's, to be released by rpma_ep_shutdown() before the peer is.
///
/// Thread-safe.
///
/// Errors, with `*ep_ptr` as it was:
/// - RPMA_E_INVAL: `peer`, `addr`, `port` or `ep_ptr` is NULL
/// - RPMA_E_NOMEM: out of memory: nothing was made; the call can be repeated
/// - RPMA_E_PROVIDER: rdma_create_event_channel(3), rdma_create_id(3),
///   rdma_getaddrinfo(3), rdma_bind_addr(3) or rdma_listen(3) failed, for the reason that
///   the log gives: the address is none of this host's, or the port is taken or needs a
///   privilege
///
/// # Example
///
/// ```c
/// ret = rpma_ep_listen(peer, "192.168.0.1", "7204", &ep);
/// if (!ret)
///     ret = rpma_ep_next_conn_req(ep, NULL, &req);
/// if (!ret)
///     ret = rpma_conn_req_connect(&req, NULL, &conn);
/// ```
pub unsafe extern "C" fn rpma_ep_listen(
    peer: *mut rpma_peer,
    addr: *const c_char,
    port: *const c_char,
    ep_ptr: *mut *mut rpma_ep,
) -> c_int {
    call(|| {
        // SAFETY: NULL or a peer, which the caller keeps; NULL or a string each; NULL or
        // valid to write to.
        unsafe {
            let (peer, ep) = (get(peer)?, out(ep_ptr)?);
            let (addr, port) = (string(addr)?, string(port)?);
            give(Ep::listen(peer, addr, port)?, ep)?;
            Ep::announce(addr, port);
            Ok(())
        }
    })
}

/// Releases an endpoint, so that it listens no more.
///
/// `*ep_ptr` is set to NULL; one that is NULL already is fine.
///
/// Connections got from it live on; requests must have been connected or deleted before.
///
/// Thread-safe on separate endpoints.
///
/// Errors:
/// - RPMA_E_INVAL: `ep_ptr` is NULL
/// - RPMA_E_PROVIDER: rdma_destroy_id(3) failed, for the reason that the log gives; the
///   endpoint is gone all the same
///
/// # Example
///
/// ```c
/// ret = rpma_ep_shutdown(&ep);
/// ```
pub unsafe extern "C" fn rpma_ep_shutdown(ep_ptr: *mut *mut rpma_ep) -> c_int {
    // SAFETY: NULL, or points to NULL or to an endpoint of rpma_ep_listen().
    unsafe { delete(ep_ptr, Ep::delete) }
}

/// Gives the descriptor that is readable when rpma_ep_next_conn_req() has a request.
///
/// It is the library's, not to be read or closed; it may be made non-blocking.
///
/// Thread-safe.
///
/// Errors, with `*fd` as it was:
/// - RPMA_E_INVAL: `ep` or `fd` is NULL
///
/// # Example
///
/// ```c
/// int fd;
/// ret = rpma_ep_get_fd(ep, &fd);
/// if (!ret) {
///     fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
///     struct pollfd wanted = {fd, POLLIN, 0};
///     if (poll(&wanted, 1, 1000) == 1)
///         ret = rpma_ep_next_conn_req(ep, NULL, &req);
///     if (ret == RPMA_E_NO_EVENT)
///         ret = 0; /* Go on waiting. */
/// }
/// ```
pub unsafe extern "C" fn rpma_ep_get_fd(ep: *const rpma_ep, fd: *mut c_int) -> c_int {
    call(|| {
        // SAFETY: NULL or an endpoint; NULL or valid to write to.
        let (ep, fd) = unsafe { (get(ep)?, out(fd)?) };
        fd.write(ep.fd());
        Ok(())
    })
}

/// Takes the next connection request of an endpoint.
///
/// It waits for one unless the descriptor is non-blocking: see rpma_ep_get_fd(). A `cfg`
/// that is NULL stands for the defaults of rpma_conn_cfg_new().
///
/// The request is the caller's, for rpma_conn_req_connect() to accept or
/// rpma_conn_req_delete() to reject. Where the function fails, the other side is
/// rejected.
///
/// Not thread-safe on one endpoint.
///
/// Errors, with `*req_ptr` as it was, or NULL where rdma_ack_cm_event(3) failed:
/// - RPMA_E_INVAL: `ep` or `req_ptr` is NULL, the event is no connection request, or
///   `cfg` wants a shared completion channel with a shared RQ that has its own CQ. An
///   event that is no request is mostly that of a client which has given up: take the
///   next one.
/// - RPMA_E_NO_EVENT: there is no request: wait until the descriptor is readable
/// - RPMA_E_NOMEM: out of memory: the other side was rejected, and may ask again
/// - RPMA_E_PROVIDER: rdma_get_cm_event(3) or rdma_ack_cm_event(3) failed, no RDMA device
///   serves the address, or the completion queues or the QP can't be made: the log says
///   which. Mostly a size of `cfg` is more than the device allows, or all QPs are in use:
///   compare with max_qp, max_qp_wr and max_cqe of ibv_devinfo(1).
///
/// # Example
///
/// See rpma_ep_listen().
pub unsafe extern "C" fn rpma_ep_next_conn_req(
    ep: *mut rpma_ep,
    cfg: *const rpma_conn_cfg,
    req_ptr: *mut *mut rpma_conn_req,
) -> c_int {
    call(|| {
        // SAFETY: NULL or an endpoint; NULL or valid to write to; NULL or a configuration.
        let (ep, req, cfg) = unsafe { (get(ep)?, out(req_ptr)?, cfg.as_ref()) };
        match ep.next_conn_req(cfg.unwrap_or(&ConnCfg::default()))? {
            Some(request) => {
                give_box(request, req);
                Ok(())
            }
            None => {
                req.write(ptr::null_mut());
                Err(Error::PROVIDER)
            }
        }
    })
}

export!(rpma_ep_listen rpma_ep_shutdown rpma_ep_get_fd rpma_ep_next_conn_req);
