//! How shared receive queues are made.

use super::{call, delete, export, get_size, give, out, set_size};
use crate::core::SrqCfg;
use std::ffi::c_int;
use std::ptr;

/// How a shared RQ is made.
pub type rpma_srq_cfg = crate::core::SrqCfg;

/// Makes a shared RQ configuration.
///
/// The defaults are a queue of 20 requests and a CQ of its own of 20 entries.
///
/// It is the caller's, to be released by rpma_srq_cfg_delete(). A shared RQ keeps nothing
/// of it.
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
/// struct rpma_srq_cfg *cfg = NULL;
/// ret = rpma_srq_cfg_new(&cfg);
/// if (!ret)
///     ret = rpma_srq_cfg_set_rq_size(cfg, 1000);
/// if (!ret)
///     ret = rpma_srq_cfg_set_rcq_size(cfg, 1000);
/// if (!ret)
///     ret = rpma_srq_new(peer, cfg, &srq);
/// rpma_srq_cfg_delete(&cfg);
/// ```
pub unsafe extern "C" fn rpma_srq_cfg_new(cfg_ptr: *mut *mut rpma_srq_cfg) -> c_int {
    call(|| {
        // SAFETY: NULL or valid to write to.
        let cfg = unsafe { out(cfg_ptr) }?;
        cfg.write(ptr::null_mut());
        give(SrqCfg::default(), cfg)
    })
}

/// Releases a shared RQ configuration.
///
/// `*cfg_ptr` is set to NULL; one that is NULL already is fine.
///
/// Thread-safe on separate configurations.
///
/// Errors:
/// - RPMA_E_INVAL: `cfg_ptr` is NULL
///
/// # Example
///
/// See rpma_srq_cfg_new().
pub unsafe extern "C" fn rpma_srq_cfg_delete(cfg_ptr: *mut *mut rpma_srq_cfg) -> c_int {
    // SAFETY: NULL, or points to NULL or to a configuration of rpma_srq_cfg_new().
    unsafe { delete(cfg_ptr, |_| Ok(())) }
}

/// Sets the number of requests that the shared RQ holds; it is 20 at first.
///
/// Thread-safe.
///
/// Errors:
/// - RPMA_E_INVAL: `cfg` is NULL
///
/// # Example
///
/// See rpma_srq_cfg_new().
pub unsafe extern "C" fn rpma_srq_cfg_set_rq_size(cfg: *mut rpma_srq_cfg, rq_size: u32) -> c_int {
    // SAFETY: NULL or a configuration.
    unsafe { set_size(cfg, |cfg| &cfg.rq_size, rq_size) }
}

/// Gives the number of requests that the shared RQ holds.
///
/// Thread-safe.
///
/// Errors, with `*rq_size` as it was:
/// - RPMA_E_INVAL: `cfg` or `rq_size` is NULL
pub unsafe extern "C" fn rpma_srq_cfg_get_rq_size(
    cfg: *const rpma_srq_cfg,
    rq_size: *mut u32,
) -> c_int {
    // SAFETY: NULL or a configuration; NULL or valid to write to.
    unsafe { get_size(cfg, |cfg| &cfg.rq_size, rq_size) }
}

/// Sets the number of entries of the CQ that the shared RQ has of its own; it is 20 at
/// first.
///
/// With 0 it has none, and its receives complete on the CQs of the connections. More than
/// INT_MAX counts as INT_MAX.
///
/// Thread-safe.
///
/// Errors:
/// - RPMA_E_INVAL: `cfg` is NULL
///
/// # Example
///
/// See rpma_srq_cfg_new().
pub unsafe extern "C" fn rpma_srq_cfg_set_rcq_size(cfg: *mut rpma_srq_cfg, rcq_size: u32) -> c_int {
    // SAFETY: NULL or a configuration.
    unsafe { set_size(cfg, |cfg| &cfg.rcq_size, rcq_size) }
}

/// Gives the number of entries of the CQ that the shared RQ has of its own.
///
/// Thread-safe.
///
/// Errors, with `*rcq_size` as it was:
/// - RPMA_E_INVAL: `cfg` or `rcq_size` is NULL
pub unsafe extern "C" fn rpma_srq_cfg_get_rcq_size(
    cfg: *const rpma_srq_cfg,
    rcq_size: *mut u32,
) -> c_int {
    // SAFETY: NULL or a configuration; NULL or valid to write to.
    unsafe { get_size(cfg, |cfg| &cfg.rcq_size, rcq_size) }
}

export!(
    rpma_srq_cfg_new
    rpma_srq_cfg_delete
    rpma_srq_cfg_set_rq_size
    rpma_srq_cfg_get_rq_size
    rpma_srq_cfg_set_rcq_size
    rpma_srq_cfg_get_rcq_size
);
