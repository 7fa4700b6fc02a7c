//! Ids that are made ready with one call, and wait for their events themselves.

use super::addresses::{rdma_bind_addr, rdma_resolve_addr, rdma_resolve_route};
use super::events::{rdma_ack_cm_event, rdma_get_cm_event};
use super::id::{ForRequests, id_of};
use super::ids::{rdma_create_id, rdma_destroy_id, rdma_migrate_id};
use super::qp::{rdma_create_qp, rdma_destroy_qp};
use super::srq::rdma_destroy_srq;
use super::wait::acknowledge_own;
use crate::errno::errno_of;
use crate::exports::returns::minus_one;
use rdma_sys::*;
use std::ffi::c_int;
use std::io;
use std::ptr;

/// # Safety
/// What is pointed to can be read and written; the domain and the attributes may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    const TIMEOUT_MS: c_int = 2000;
    // SAFETY: as the caller promises.
    unsafe {
        let res = &*res;
        let qp_type = res.ai_qp_type as ibv_qp_type::Type;
        if qp_type != ibv_qp_type::IBV_QPT_RC {
            return minus_one(Err(libc::EOPNOTSUPP));
        }
        let mut new = ptr::null_mut();
        let ps = res.ai_port_space as rdma_port_space::Type;
        if rdma_create_id(ptr::null_mut(), &mut new, ptr::null_mut(), ps) != 0 {
            return -1;
        }
        let passive = res.ai_flags & RAI_PASSIVE as c_int != 0;
        let made = if passive {
            let bound = rdma_bind_addr(new, res.ai_src_addr);
            if bound == 0 && !attr.is_null() {
                let mut attr = *attr;
                attr.qp_type = qp_type;
                // It is set once, here.
                let _ = id_of(new).for_requests.set(ForRequests { pd, attr });
            }
            bound
        } else {
            let src = res.ai_src_addr;
            let mut result = rdma_resolve_addr(new, src, res.ai_dst_addr, TIMEOUT_MS);
            if result == 0 {
                result = rdma_resolve_route(new, TIMEOUT_MS);
            }
            if result == 0 && !attr.is_null() {
                (*attr).qp_type = qp_type;
                result = rdma_create_qp(new, pd, attr);
            }
            result
        };
        if made != 0 {
            let error = errno_of(&io::Error::last_os_error());
            rdma_destroy_ep(new);
            return minus_one(Err(error));
        }
        *id = new;
    }
    0
}

/// # Safety
/// The id is one of this library's, and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    // SAFETY: as the caller promises.
    unsafe {
        if !(*id).qp.is_null() {
            rdma_destroy_qp(id);
        }
        if !(*id).srq.is_null() {
            rdma_destroy_srq(id);
        }
        rdma_destroy_id(id);
    }
}

/// # Safety
/// The id is one of this library's; what is pointed to can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_request(
    listen: *mut rdma_cm_id,
    id: *mut *mut rdma_cm_id,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let listener = id_of(listen);
        if !listener.is_sync() {
            return minus_one(Err(libc::EINVAL));
        }
        acknowledge_own(listener);
        let mut event = ptr::null_mut();
        if rdma_get_cm_event((*listener.abi()).channel, &mut event) != 0 {
            return -1;
        }
        let fail = |error: i32| {
            rdma_ack_cm_event(event);
            minus_one(Err(error))
        };
        if (*event).status != 0 {
            return fail((*event).status.abs());
        }
        if (*event).event != rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST {
            return fail(libc::EINVAL);
        }
        let new = (*event).id;
        if let Some(given) = listener.for_requests.get() {
            let mut attr = given.attr;
            if rdma_create_qp(new, given.pd, &mut attr) != 0 {
                let error = errno_of(&io::Error::last_os_error());
                rdma_destroy_id(new);
                return fail(error);
            }
        }
        // From now on it waits for its events itself.
        if rdma_migrate_id(new, ptr::null_mut()) != 0 {
            let error = errno_of(&io::Error::last_os_error());
            rdma_destroy_ep(new);
            return fail(error);
        }
        (*new).event = event;
        *id = new;
    }
    0
}
