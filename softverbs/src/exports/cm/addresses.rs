//! Addresses, and how the other side is reached.

use super::id::id_of;
use super::sockaddr::from_c;
use super::wait::complete;
use crate::exports::returns::minus_one;
use rdma_sys::*;
use std::ffi::c_int;

/// # Safety
/// The id is one of this library's, the address is one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut libc::sockaddr) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let id = id_of(id);
        let cm = id.cm();
        minus_one(from_c(addr).and_then(|address| {
            cm.bind(address)?;
            id.note_addresses(cm.addresses());
            Ok(())
        }))
    }
}

/// # Safety
/// The id is one of this library's, the addresses are ones, the source may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    src: *mut libc::sockaddr,
    dst: *mut libc::sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let (cm, sync) = (id_of(id).cm(), id_of(id).is_sync());
        let resolve = || {
            let src = (!src.is_null()).then(|| from_c(src)).transpose()?;
            let dst = from_c(dst)?;
            let (event, status) = cm.resolve_addr(src, dst)?;
            if status == 0 {
                id_of(id).note_addresses(cm.addresses());
            }
            cm.publish(event, status);
            Ok(())
        };
        let result = resolve();
        drop(cm);
        complete(id, sync, result)
    }
}

/// # Safety
/// The id is one of this library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        if timeout_ms == 0 {
            return minus_one(Err(libc::EINVAL));
        }
        let (cm, sync) = (id_of(id).cm(), id_of(id).is_sync());
        let result = cm.resolve_route().map(|()| {
            id_of(id).note_path();
            cm.publish(rdma_cm_event_type::RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
        });
        drop(cm);
        complete(id, sync, result)
    }
}

/// # Safety
/// The id is one of this library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: as the caller promises; all addresses have the port at the same place.
    unsafe { (*id).route.addr.src_addr_union.src_sin.sin_port }
}

/// # Safety
/// The id is one of this library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: as the caller promises; all addresses have the port at the same place.
    unsafe { (*id).route.addr.dst_addr_union.dst_sin.sin_port }
}
