//! Finding a device, and names of events.

use super::conn::rpma_conn_event;
use super::{CEnum, call, export, out, string};
use crate::core::{Error, Side, find_device, is_odp_capable};
use crate::verbs::{Context, ibv_context};
use std::ffi::{c_char, c_int};

/// How long a device is looked for, in milliseconds.
pub const RPMA_DEFAULT_TIMEOUT_MS: c_int = 1000;

/// By which address a device is looked for.
#[repr(C)]
pub enum rpma_util_ibv_context_type {
    /// By an address of its own.
    RPMA_UTIL_IBV_CONTEXT_LOCAL,
    /// By an address that it reaches.
    RPMA_UTIL_IBV_CONTEXT_REMOTE,
}

/// Finds the RDMA device of an IPv4 or IPv6 address or of a host name.
///
/// `type` is one of `enum rpma_util_ibv_context_type`.
///
/// The device stays open. It is the caller's to use but not to close.
///
/// Thread-safe.
///
/// Errors, with `*ibv_ctx_ptr` as it was:
/// - RPMA_E_INVAL: `addr` or `ibv_ctx_ptr` is NULL, or `type` is none of its enum
/// - RPMA_E_PROVIDER: the address can't be looked up, bound to or reached, or no RDMA
///   device serves it, as none serves the loopback address: the log says which. Take an
///   address that rdma(8) or ibv_devinfo(1) shows a device for, or run over softverbs(7).
///
/// # Example
///
/// ```c
/// struct ibv_context *device;
/// ret = rpma_utils_get_ibv_context("192.168.0.1",
///                                  RPMA_UTIL_IBV_CONTEXT_LOCAL,
///                                  &device);
/// if (!ret)
///     ret = rpma_peer_new(device, &peer);
/// ```
pub unsafe extern "C" fn rpma_utils_get_ibv_context(
    addr: *const c_char,
    r#type: CEnum<rpma_util_ibv_context_type>,
    ibv_ctx_ptr: *mut *mut ibv_context,
) -> c_int {
    const LOCAL: c_int = rpma_util_ibv_context_type::RPMA_UTIL_IBV_CONTEXT_LOCAL as c_int;
    const REMOTE: c_int = rpma_util_ibv_context_type::RPMA_UTIL_IBV_CONTEXT_REMOTE as c_int;
    call(|| {
        // SAFETY: NULL or a string; NULL or valid to write to.
        let (addr, found) = unsafe { (string(addr)?, out(ibv_ctx_ptr)?) };
        let side = match r#type.0 {
            LOCAL => Side::Local,
            REMOTE => Side::Remote,
            _ => return Err(Error::INVAL),
        };
        found.write(find_device(addr, side)?.as_ptr());
        Ok(())
    })
}

/// Tells whether a device pages on demand for RDMA WRITE and RDMA READ: 1 if so, else 0.
///
/// On such a device, memory that can't be pinned can be registered too, such as that of a
/// file on a DAX filesystem.
///
/// Thread-safe.
///
/// Errors:
/// - RPMA_E_INVAL: `ibv_ctx` or `is_odp_capable` is NULL
/// - RPMA_E_PROVIDER: ibv_query_device_ex(3) failed, for the reason that the log gives;
///   `*is_odp_capable` is 0 then
///
/// # Example
///
/// ```c
/// int odp;
/// ret = rpma_utils_ibv_context_is_odp_capable(device, &odp);
/// if (!ret && !odp)
///     puts("files on a DAX filesystem can't be registered here");
/// ```
pub unsafe extern "C" fn rpma_utils_ibv_context_is_odp_capable(
    ibv_ctx: *mut ibv_context,
    is_odp_capable: *mut c_int,
) -> c_int {
    call(|| {
        // SAFETY: NULL or an open device; NULL or valid to write to.
        let (context, capable) = unsafe {
            let context = Context::from_raw(ibv_ctx).ok_or(Error::INVAL)?;
            (context, out(is_odp_capable)?)
        };
        let odp = self::is_odp_capable(context);
        capable.write(c_int::from(odp == Ok(true)));
        odp.map(|_| ())
    })
}

/// Says what an event of a connection is.
///
/// `conn_event` is one of `enum rpma_conn_event`.
///
/// Returns a static string, not to be changed or released; for another number it is
/// "Unsupported connection event".
///
/// Thread-safe. Cannot fail.
///
/// # Example
///
/// ```c
/// enum rpma_conn_event event;
/// ret = rpma_conn_next_event(conn, &event);
/// if (!ret && event != RPMA_CONN_ESTABLISHED)
///     fprintf(stderr, "%s\n", rpma_utils_conn_event_2str(event));
/// ```
pub unsafe extern "C" fn rpma_utils_conn_event_2str(
    conn_event: CEnum<rpma_conn_event>,
) -> *const c_char {
    let text = match conn_event.0 {
        -1 => c"Undefined connection event",
        0 => c"Connection established",
        1 => c"Connection closed",
        2 => c"Connection lost",
        3 => c"Connection rejected",
        4 => c"Connection unreachable",
        _ => c"Unsupported connection event",
    };
    text.as_ptr()
}

export!(
    rpma_utils_get_ibv_context
    rpma_utils_ibv_context_is_odp_capable
    rpma_utils_conn_event_2str
);
