//! Shared receive queues of ids.

use crate::exports::returns::minus_one;
use crate::exports::srq::{ibv_create_srq, ibv_destroy_srq, srq_attr};
use rdma_sys::*;
use std::ffi::c_int;
use std::ptr;

/// # Safety
/// The id is one of this library's, the domain is open or NULL, the attributes can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let pd = if pd.is_null() { (*id).pd } else { pd };
        if (*id).verbs.is_null() || pd.is_null() || !(*id).srq.is_null() {
            return minus_one(Err(libc::EINVAL));
        }
        let srq = ibv_create_srq(pd, attr);
        if srq.is_null() {
            return -1;
        }
        (*id).srq = srq;
        (*id).pd = pd;
    }
    0
}

/// # Safety
/// The id is one of this library's, the attributes can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_srq_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_srq_init_attr_ex,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        match srq_attr(&*attr) {
            Ok((mut basic, pd)) => {
                let result = rdma_create_srq(id, pd.unwrap_or(ptr::null_mut()), &mut basic);
                (*attr).attr = basic.attr;
                result
            }
            Err(error) => minus_one(Err(error)),
        }
    }
}

/// # Safety
/// The id is one of this library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    // SAFETY: as the caller promises.
    unsafe {
        if !(*id).srq.is_null() {
            ibv_destroy_srq((*id).srq);
            (*id).srq = ptr::null_mut();
        }
    }
}
