//! Shared receive queues.

use super::cq::rpma_cq;
use super::mr::rpma_mr_local;
use super::ops::local_range;
use super::peer::rpma_peer;
use super::srq_cfg::rpma_srq_cfg;
use super::{call, delete, export, get, give, out};
use crate::core::{LocalRange, Srq, SrqCfg};
use std::ffi::{c_int, c_void};
use std::ptr;

/// A receive queue that several connections share.
pub type rpma_srq = crate::core::Srq;

/// Makes a shared RQ, from which several connections receive.
///
/// It has a CQ of its own unless the configuration gives that 0 entries. A `cfg` that is
/// NULL stands for the defaults of rpma_srq_cfg_new().
///
/// It is the caller's, to be released by rpma_srq_delete() before the peer is.
///
/// Thread-safe.
///
/// Errors, with `*srq_ptr` as it was, or NULL where there is no memory for the object
/// itself:
/// - RPMA_E_INVAL: `peer` or `srq_ptr` is NULL
/// - RPMA_E_NOMEM: out of memory: nothing was made; the call can be repeated
/// - RPMA_E_PROVIDER: ibv_create_srq(3), ibv_create_comp_channel(3), ibv_create_cq(3) or
///   ibv_req_notify_cq(3) failed, for the reason that the log gives. Mostly a size is
///   more than the device allows: compare with max_srq_wr and max_cqe of ibv_devinfo(1).
///
/// # Example
///
/// ```c
/// ret = rpma_srq_new(peer, NULL, &srq);
/// if (!ret)
///     ret = rpma_conn_cfg_set_srq(cfg, srq);
/// if (!ret)
///     ret = rpma_ep_next_conn_req(ep, cfg, &req);
/// ```
pub unsafe extern "C" fn rpma_srq_new(
    peer: *mut rpma_peer,
    cfg: *mut rpma_srq_cfg,
    srq_ptr: *mut *mut rpma_srq,
) -> c_int {
    call(|| {
        // SAFETY: NULL or a peer; NULL or valid to write to; NULL or a configuration.
        let (peer, srq, cfg) = unsafe { (get(peer)?, out(srq_ptr)?, cfg.as_ref()) };
        let made = Srq::new(peer, cfg.unwrap_or(&SrqCfg::default()))?;
        give(made, srq).inspect_err(|_| {
            srq.write(ptr::null_mut());
        })
    })
}

/// Releases a shared RQ and its CQ.
///
/// `*srq_ptr` is set to NULL; one that is NULL already is fine.
///
/// All connections that receive from it must be deleted before.
///
/// Thread-safe on separate objects.
///
/// Errors:
/// - RPMA_E_INVAL: `srq_ptr` is NULL
/// - RPMA_E_PROVIDER: ibv_destroy_cq(3), ibv_destroy_comp_channel(3) or
///   ibv_destroy_srq(3) failed, the last where a connection still receives from it; the
///   shared RQ is gone all the same
///
/// # Example
///
/// ```c
/// int first = rpma_conn_delete(&conn);
/// ret = rpma_srq_delete(&srq);
/// first = first ? first : ret;
/// ```
pub unsafe extern "C" fn rpma_srq_delete(srq_ptr: *mut *mut rpma_srq) -> c_int {
    // SAFETY: NULL, or points to NULL or to a shared RQ of rpma_srq_new().
    unsafe { delete(srq_ptr, Srq::delete) }
}

/// Posts a buffer for a message that any of the connections receives.
///
/// The buffer is `len` bytes of `dst` from `offset` on, or none with `dst` NULL and
/// `offset` and `len` 0.
///
/// The buffers are taken in no order that can be relied on. `op_context` comes back as
/// `wr_id` of the completion; until then the memory may be written and the region must
/// stay registered.
///
/// Thread-safe.
///
/// Errors:
/// - RPMA_E_INVAL: `srq` is NULL, `dst` is NULL while `offset` or `len` is not 0, or
///   `len` is 2^32 or more
/// - RPMA_E_PROVIDER: ibv_post_srq_recv(3) failed: mostly the shared RQ is full, which
///   rpma_srq_cfg_set_rq_size() makes longer
///
/// # Example
///
/// `op_context` tells which buffer was filled:
///
/// ```c
/// for (uintptr_t i = 0; i < 10 && !ret; i++)
///     ret = rpma_srq_recv(srq, mr, i * 64, 64, (void *)i);
/// ```
pub unsafe extern "C" fn rpma_srq_recv(
    srq: *mut rpma_srq,
    dst: *mut rpma_mr_local,
    offset: usize,
    len: usize,
    op_context: *const c_void,
) -> c_int {
    // SAFETY: NULL or what they say; the caller leaves the memory to the device.
    unsafe {
        match (
            srq.as_ref(),
            dst.as_ref().map(|dst| LocalRange::new(dst, offset, len)),
        ) {
            (Some(srq), Some(Ok(dst))) => call(|| srq.recv(Some(dst), op_context as u64)),
            _ => call(|| get(srq)?.recv(local_range(dst, offset, len)?, op_context as u64)),
        }
    }
}

/// Gives the CQ that a shared RQ has of its own, NULL if it has none.
///
/// It lives as long as the shared RQ and is not the caller's.
///
/// Thread-safe.
///
/// Errors, with `*rcq_ptr` as it was:
/// - RPMA_E_INVAL: `srq` or `rcq_ptr` is NULL
///
/// # Example
///
/// `qp_num` of a completion tells which connection received the message:
///
/// ```c
/// struct ibv_wc wc;
/// ret = rpma_srq_get_rcq(srq, &cq);
/// if (!ret && cq)
///     ret = rpma_cq_wait(cq);
/// while (!ret && !(ret = rpma_cq_get_wc(cq, 1, &wc, NULL)))
///     printf("%u bytes over QP %u\n", wc.byte_len, wc.qp_num);
/// ```
pub unsafe extern "C" fn rpma_srq_get_rcq(
    srq: *const rpma_srq,
    rcq_ptr: *mut *mut rpma_cq,
) -> c_int {
    call(|| {
        // SAFETY: NULL or a shared RQ; NULL or valid to write to.
        let (srq, rcq) = unsafe { (get(srq)?, out(rcq_ptr)?) };
        rcq.write(
            srq.rcq()
                .map_or(ptr::null_mut(), |cq| ptr::from_ref(cq).cast_mut()),
        );
        Ok(())
    })
}

export!(rpma_srq_new rpma_srq_delete rpma_srq_recv rpma_srq_get_rcq);
