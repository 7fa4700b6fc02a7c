//! Options of ids.

use super::id::id_of;
use crate::exports::returns::minus_one;
use rdma_sys::*;
use std::ffi::{c_int, c_void};

/// # Safety
/// The id is one of this library's, the value is of the length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: usize,
) -> c_int {
    // `rdma/rdma_cma.h`.
    const LEVEL_ID: c_int = 0;
    const TOS: c_int = 0;
    const REUSEADDR: c_int = 1;
    const AFONLY: c_int = 2;
    const ACK_TIMEOUT: c_int = 3;
    // SAFETY: as the caller promises.
    let id = unsafe { id_of(id) };
    let cm = id.cm();
    if level != LEVEL_ID {
        return minus_one(Err(libc::ENOSYS));
    }
    let number = || {
        if len == size_of::<c_int>() && !value.is_null() {
            // SAFETY: as the caller promises.
            Ok(unsafe { value.cast::<c_int>().read_unaligned() } != 0)
        } else {
            Err(libc::EINVAL)
        }
    };
    let byte = || {
        if len == 1 && !value.is_null() {
            // SAFETY: the program gives `len` readable bytes, and that is 1.
            Ok(unsafe { value.cast::<u8>().read() })
        } else {
            Err(libc::EINVAL)
        }
    };
    minus_one(match name {
        // There are no packets of its own to be marked.
        TOS => byte().map(|_| ()),
        ACK_TIMEOUT => byte().map(|timeout| id.set_ack_timeout(timeout)),
        REUSEADDR => number().and_then(|on| cm.set_reuse(on)),
        AFONLY => number().and_then(|on| cm.set_v6_only(on)),
        _ => Err(libc::ENOSYS),
    })
}
