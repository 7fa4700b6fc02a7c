//! How connections are made.

use super::srq::rpma_srq;
use super::{call, delete, export, get, get_size, give, out, set_size};
use crate::core::{ConnCfg, Error};
use std::ffi::c_int;
use std::ptr;

/// How a connection is made.
pub type rpma_conn_cfg = crate::core::ConnCfg;

/// Makes a connection configuration.
///
/// The defaults are a timeout of 1000 ms, a CQ of 10 entries, no CQ for receives alone, a
/// send queue and a receive queue of 10 requests, completion channels that are not
/// shared, and no shared RQ.
///
/// It is the caller's, to be released by rpma_conn_cfg_delete(). It may serve many
/// connections; a connection keeps nothing of it.
///
/// Thread-safe.
///
/// Errors:
/// - RPMA_E_INVAL: `cfg_ptr` is NULL
/// - RPMA_E_NOMEM: out of memory: nothing was made, and `*cfg_ptr` is NULL; the call can
///   be repeated
///
/// # Example
///
/// ```c
/// struct rpma_conn_cfg *cfg = NULL;
/// ret = rpma_conn_cfg_new(&cfg);
/// if (!ret)
///     ret = rpma_conn_cfg_set_sq_size(cfg, 64);
/// if (!ret)
///     ret = rpma_conn_cfg_set_cq_size(cfg, 64);
/// if (!ret)
///     ret = rpma_conn_req_new(peer, addr, port, cfg, &req);
/// rpma_conn_cfg_delete(&cfg);
/// ```
pub unsafe extern "C" fn rpma_conn_cfg_new(cfg_ptr: *mut *mut rpma_conn_cfg) -> c_int {
    call(|| {
        // SAFETY: NULL or valid to write to.
        let cfg = unsafe { out(cfg_ptr) }?;
        cfg.write(ptr::null_mut());
        give(ConnCfg::default(), cfg)
    })
}

/// Releases a connection configuration.
///
/// `*cfg_ptr` is set to NULL; one that is NULL already is fine.
///
/// Requests and connections made with it keep nothing of it.
///
/// Thread-safe on separate configurations.
///
/// Errors:
/// - RPMA_E_INVAL: `cfg_ptr` is NULL
///
/// # Example
///
/// See rpma_conn_cfg_new().
pub unsafe extern "C" fn rpma_conn_cfg_delete(cfg_ptr: *mut *mut rpma_conn_cfg) -> c_int {
    // SAFETY: NULL, or points to NULL or to a configuration of rpma_conn_cfg_new().
    unsafe { delete(cfg_ptr, |_| Ok(())) }
}

/// Sets how long resolving the address and the route of the other side may take.
///
/// `timeout_ms` is for each of the two, in milliseconds; it is 1000 at first.
///
/// Thread-safe.
///
/// Errors:
/// - RPMA_E_INVAL: `cfg` is NULL, or `timeout_ms` is negative
///
/// # Example
///
/// ```c
/// ret = rpma_conn_cfg_set_timeout(cfg, 10000);
/// ```
pub unsafe extern "C" fn rpma_conn_cfg_set_timeout(
    cfg: *mut rpma_conn_cfg,
    timeout_ms: c_int,
) -> c_int {
    call(|| {
        // SAFETY: NULL or a configuration.
        let cfg = unsafe { get(cfg) }?;
        if timeout_ms < 0 {
            return Err(Error::INVAL);
        }
        cfg.timeout_ms.set(timeout_ms);
        Ok(())
    })
}

/// Gives how long resolving the address and the route of the other side may take.
///
/// `*timeout_ms` is for each of the two, in milliseconds.
///
/// Thread-safe.
///
/// Errors, with `*timeout_ms` as it was:
/// - RPMA_E_INVAL: `cfg` or `timeout_ms` is NULL
pub unsafe extern "C" fn rpma_conn_cfg_get_timeout(
    cfg: *const rpma_conn_cfg,
    timeout_ms: *mut c_int,
) -> c_int {
    call(|| {
        // SAFETY: NULL or a configuration; NULL or valid to write to.
        let (cfg, timeout_ms) = unsafe { (get(cfg)?, out(timeout_ms)?) };
        timeout_ms.write(cfg.timeout_ms.get());
        Ok(())
    })
}

/// Sets the number of entries of the CQ of a connection; it is 10 at first.
///
/// The CQ must have room for the completions of all operations under way: one that
/// overflows breaks the connection. More than INT_MAX counts as INT_MAX.
///
/// Thread-safe.
///
/// Errors:
/// - RPMA_E_INVAL: `cfg` is NULL
///
/// # Example
///
/// Room for a full send queue and a full receive queue:
///
/// ```c
/// uint32_t sq, rq;
/// ret = rpma_conn_cfg_get_sq_size(cfg, &sq);
/// if (!ret)
///     ret = rpma_conn_cfg_get_rq_size(cfg, &rq);
/// if (!ret)
///     ret = rpma_conn_cfg_set_cq_size(cfg, sq + rq);
/// ```
pub unsafe extern "C" fn rpma_conn_cfg_set_cq_size(cfg: *mut rpma_conn_cfg, cq_size: u32) -> c_int {
    // SAFETY: NULL or a configuration.
    unsafe { set_size(cfg, |cfg| &cfg.cq_size, cq_size) }
}

/// Gives the number of entries of the CQ of a connection.
///
/// Thread-safe.
///
/// Errors, with `*cq_size` as it was:
/// - RPMA_E_INVAL: `cfg` or `cq_size` is NULL
pub unsafe extern "C" fn rpma_conn_cfg_get_cq_size(
    cfg: *const rpma_conn_cfg,
    cq_size: *mut u32,
) -> c_int {
    // SAFETY: NULL or a configuration; NULL or valid to write to.
    unsafe { get_size(cfg, |cfg| &cfg.cq_size, cq_size) }
}

/// Sets the number of entries of the CQ for receives alone; it is 0 at first.
///
/// With 0 there is no such CQ, and receives complete on the other one. More than INT_MAX
/// counts as INT_MAX.
///
/// Thread-safe.
///
/// Errors:
/// - RPMA_E_INVAL: `cfg` is NULL
///
/// # Example
///
/// ```c
/// struct rpma_cq *rcq;
/// ret = rpma_conn_cfg_set_rcq_size(cfg, 10);
/// /* ... and of a connection that was made with it: */
/// if (!ret)
///     ret = rpma_conn_get_rcq(conn, &rcq);
/// ```
pub unsafe extern "C" fn rpma_conn_cfg_set_rcq_size(
    cfg: *mut rpma_conn_cfg,
    rcq_size: u32,
) -> c_int {
    // SAFETY: NULL or a configuration.
    unsafe { set_size(cfg, |cfg| &cfg.rcq_size, rcq_size) }
}

/// Gives the number of entries of the CQ for receives alone.
///
/// Thread-safe.
///
/// Errors, with `*rcq_size` as it was:
/// - RPMA_E_INVAL: `cfg` or `rcq_size` is NULL
pub unsafe extern "C" fn rpma_conn_cfg_get_rcq_size(
    cfg: *const rpma_conn_cfg,
    rcq_size: *mut u32,
) -> c_int {
    // SAFETY: NULL or a configuration; NULL or valid to write to.
    unsafe { get_size(cfg, |cfg| &cfg.rcq_size, rcq_size) }
}

/// Sets the number of requests that the send queue holds; it is 10 at first.
///
/// Reads, writes, flushes and sends take one place each until they have completed. A
/// request that completes only on error keeps its place until a later one that always
/// completes has done so.
///
/// Thread-safe.
///
/// Errors:
/// - RPMA_E_INVAL: `cfg` is NULL
///
/// # Example
///
/// See rpma_conn_cfg_new().
pub unsafe extern "C" fn rpma_conn_cfg_set_sq_size(cfg: *mut rpma_conn_cfg, sq_size: u32) -> c_int {
    // SAFETY: NULL or a configuration.
    unsafe { set_size(cfg, |cfg| &cfg.sq_size, sq_size) }
}

/// Gives the number of requests that the send queue holds.
///
/// Thread-safe.
///
/// Errors, with `*sq_size` as it was:
/// - RPMA_E_INVAL: `cfg` or `sq_size` is NULL
pub unsafe extern "C" fn rpma_conn_cfg_get_sq_size(
    cfg: *const rpma_conn_cfg,
    sq_size: *mut u32,
) -> c_int {
    // SAFETY: NULL or a configuration; NULL or valid to write to.
    unsafe { get_size(cfg, |cfg| &cfg.sq_size, sq_size) }
}

/// Sets the number of requests that the receive queue holds; it is 10 at first.
///
/// Thread-safe.
///
/// Errors:
/// - RPMA_E_INVAL: `cfg` is NULL
///
/// # Example
///
/// ```c
/// ret = rpma_conn_cfg_set_rq_size(cfg, 100);
/// ```
pub unsafe extern "C" fn rpma_conn_cfg_set_rq_size(cfg: *mut rpma_conn_cfg, rq_size: u32) -> c_int {
    // SAFETY: NULL or a configuration.
    unsafe { set_size(cfg, |cfg| &cfg.rq_size, rq_size) }
}

/// Gives the number of requests that the receive queue holds.
///
/// Thread-safe.
///
/// Errors, with `*rq_size` as it was:
/// - RPMA_E_INVAL: `cfg` or `rq_size` is NULL
pub unsafe extern "C" fn rpma_conn_cfg_get_rq_size(
    cfg: *const rpma_conn_cfg,
    rq_size: *mut u32,
) -> c_int {
    // SAFETY: NULL or a configuration; NULL or valid to write to.
    unsafe { get_size(cfg, |cfg| &cfg.rq_size, rq_size) }
}

/// Sets whether the two CQs of a connection share one completion channel; they do not at
/// first.
///
/// With a shared channel wait by rpma_conn_wait(), else by rpma_cq_wait().
///
/// Thread-safe.
///
/// Errors:
/// - RPMA_E_INVAL: `cfg` is NULL
///
/// # Example
///
/// ```c
/// ret = rpma_conn_cfg_set_rcq_size(cfg, 10);
/// if (!ret)
///     ret = rpma_conn_cfg_set_compl_channel(cfg, true);
/// ```
pub unsafe extern "C" fn rpma_conn_cfg_set_compl_channel(
    cfg: *mut rpma_conn_cfg,
    shared: bool,
) -> c_int {
    call(|| {
        // SAFETY: NULL or a configuration.
        unsafe { get(cfg) }?.shared_channel.set(shared);
        Ok(())
    })
}

/// Tells whether the two CQs of a connection share one completion channel.
///
/// Thread-safe.
///
/// Errors, with `*shared` as it was:
/// - RPMA_E_INVAL: `cfg` or `shared` is NULL
pub unsafe extern "C" fn rpma_conn_cfg_get_compl_channel(
    cfg: *const rpma_conn_cfg,
    shared: *mut bool,
) -> c_int {
    call(|| {
        // SAFETY: NULL or a configuration; NULL or valid to write to.
        let (cfg, shared) = unsafe { (get(cfg)?, out(shared)?) };
        shared.write(cfg.shared_channel.get());
        Ok(())
    })
}

/// Sets the shared RQ that connections receive from; there is none at first.
///
/// The shared RQ stays the caller's, and must outlive the configuration's use and every
/// connection that receives from it. If it has a CQ of its own, receives complete there,
/// and the connection has no CQ for receives.
///
/// Thread-safe.
///
/// Errors:
/// - RPMA_E_INVAL: `cfg` or `srq` is NULL
///
/// # Example
///
/// See rpma_srq_new().
pub unsafe extern "C" fn rpma_conn_cfg_set_srq(
    cfg: *mut rpma_conn_cfg,
    srq: *mut rpma_srq,
) -> c_int {
    call(|| {
        // SAFETY: NULL or a configuration; the caller keeps the shared RQ alive.
        unsafe {
            let cfg = get(cfg)?;
            get(srq)?;
            cfg.set_srq(srq);
        }
        Ok(())
    })
}

/// Gives the shared RQ that connections receive from, NULL if there is none.
///
/// It is not the caller's by that, but whose it was.
///
/// Thread-safe.
///
/// Errors, with `*srq_ptr` as it was:
/// - RPMA_E_INVAL: `cfg` or `srq_ptr` is NULL
pub unsafe extern "C" fn rpma_conn_cfg_get_srq(
    cfg: *const rpma_conn_cfg,
    srq_ptr: *mut *mut rpma_srq,
) -> c_int {
    call(|| {
        // SAFETY: NULL or a configuration; NULL or valid to write to.
        let (cfg, srq) = unsafe { (get(cfg)?, out(srq_ptr)?) };
        srq.write(cfg.srq());
        Ok(())
    })
}

export!(
    rpma_conn_cfg_new
    rpma_conn_cfg_delete
    rpma_conn_cfg_set_timeout
    rpma_conn_cfg_get_timeout
    rpma_conn_cfg_set_cq_size
    rpma_conn_cfg_get_cq_size
    rpma_conn_cfg_set_rcq_size
    rpma_conn_cfg_get_rcq_size
    rpma_conn_cfg_set_sq_size
    rpma_conn_cfg_get_sq_size
    rpma_conn_cfg_set_rq_size
    rpma_conn_cfg_get_rq_size
    rpma_conn_cfg_set_compl_channel
    rpma_conn_cfg_get_compl_channel
    rpma_conn_cfg_set_srq
    rpma_conn_cfg_get_srq
);
