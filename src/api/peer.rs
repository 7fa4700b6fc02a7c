//! Peers.

use super::{call, delete, export, give, out};
use crate::core::{Error, Peer};
use crate::verbs::{Context, ibv_context};
use std::ffi::c_int;

/// A device opened for use, the base of all that is made on it.
pub type rpma_peer = crate::core::Peer;

/// Makes a peer of an open device, such as rpma_utils_get_ibv_context() finds.
///
/// A peer is the base of all that is made on the device: memory regions, endpoints and
/// connections. The device must stay open as long as the peer exists. The peer is the
/// caller's, to be released by rpma_peer_delete(); it may serve many threads and
/// connections.
///
/// Thread-safe.
///
/// Errors, with `*peer_ptr` as it was:
/// - RPMA_E_INVAL: `ibv_ctx` or `peer_ptr` is NULL
/// - RPMA_E_NOMEM: out of memory, also within ibv_alloc_pd(3): nothing was made; the call
///   can be repeated
/// - RPMA_E_PROVIDER: ibv_query_device_ex(3) or ibv_alloc_pd(3) failed, for the reason
///   that the log gives: the device may have gone, or have no more protection domains
/// - RPMA_E_UNKNOWN: ibv_alloc_pd(3) failed without saying why
///
/// # Example
///
/// See rpma_utils_get_ibv_context().
pub unsafe extern "C" fn rpma_peer_new(
    ibv_ctx: *mut ibv_context,
    peer_ptr: *mut *mut rpma_peer,
) -> c_int {
    call(|| {
        // SAFETY: NULL or an open device; NULL or valid to write to.
        let (context, peer) = unsafe {
            let context = Context::from_raw(ibv_ctx).ok_or(Error::INVAL)?;
            (context, out(peer_ptr)?)
        };
        give(Peer::new(context)?, peer)
    })
}

/// Releases a peer.
///
/// `*peer_ptr` is set to NULL; one that is NULL already is fine.
///
/// All that was made of the peer must be released before.
///
/// Thread-safe on separate peers.
///
/// Errors:
/// - RPMA_E_INVAL: `peer_ptr` is NULL
/// - RPMA_E_PROVIDER: ibv_dealloc_pd(3) failed, as it does where something made of the
///   peer still exists; the peer is gone all the same
///
/// # Example
///
/// What was made last is released first, and the first failure is the one to report:
///
/// ```c
/// int first = rpma_conn_delete(&conn);
/// ret = rpma_mr_dereg(&mr);
/// first = first ? first : ret;
/// ret = rpma_peer_delete(&peer);
/// first = first ? first : ret;
/// ```
pub unsafe extern "C" fn rpma_peer_delete(peer_ptr: *mut *mut rpma_peer) -> c_int {
    // SAFETY: NULL, or points to NULL or to a peer of rpma_peer_new().
    unsafe { delete(peer_ptr, Peer::delete) }
}

export!(rpma_peer_new rpma_peer_delete);
