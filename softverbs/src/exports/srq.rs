//! Shared receive queues.

use super::returns::{errno, pointer};
use crate::driver::srq::SharedReceiveQueue;
use crate::limits;
use crate::objects::alive::{Alive, Kind};
use crate::objects::device::Context;
use crate::objects::mr::Pd;
use crate::objects::srq::SrqHandle;
use rdma_sys::*;
use std::ffi::c_int;
use std::mem::zeroed;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// # Safety
/// The domain is open; what is pointed to can be read and written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    // SAFETY: as the caller promises.
    let (pd_of, attr, srq_context) =
        unsafe { (Pd::from_raw(pd), &mut (*init).attr, (*init).srq_context) };
    if attr.max_wr == 0
        || attr.max_wr > limits::MAX_SRQ_WR
        || attr.max_sge > limits::MAX_SRQ_SGE
        || attr.srq_limit > attr.max_wr
    {
        return pointer(Err(libc::EINVAL));
    }
    let context = pd_of.abi.context;
    let srq = SharedReceiveQueue::new(
        pd_of.domain.clone(),
        attr.max_wr as usize,
        attr.max_sge,
        attr.srq_limit as usize,
        // SAFETY: the domain's context is open.
        unsafe { Context::of(context) }.events().clone(),
    );
    let Some(srq) = srq else {
        return pointer(Err(libc::ENOMEM));
    };
    pd_of.domain.attach();
    // SAFETY: it consists of numbers and pointers; its lock is of this library only.
    let mut abi: ibv_srq = unsafe { zeroed() };
    abi.context = context;
    abi.srq_context = srq_context;
    abi.pd = pd;
    let handle: *mut ibv_srq = Box::into_raw(Box::new(SrqHandle {
        abi,
        srq: srq.clone(),
        _alive: Alive::new(Kind::Srq),
    }))
    .cast();
    srq.handle.store(handle, Ordering::Release);
    handle
}

/// # Safety
/// The handle is one of [`ibv_create_srq`].
pub(super) unsafe fn srq_of<'a>(srq: *mut ibv_srq) -> &'a Arc<SharedReceiveQueue> {
    // SAFETY: the queue is of this library. The reference leaves out the structure that C sees.
    unsafe { &(*srq.cast::<SrqHandle>()).srq }
}

/// # Safety
/// As of `ibv_create_srq_ex`.
pub unsafe extern "C" fn create_srq_ex(
    _: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    // SAFETY: as the caller promises.
    unsafe {
        match srq_attr(&*init) {
            Ok((mut basic, Some(pd))) => ibv_create_srq(pd, &mut basic),
            Ok((_, None)) => pointer(Err(libc::EINVAL)),
            Err(error) => pointer(Err(error)),
        }
    }
}

/// The basic attributes among the extended ones, and the domain if there is one.
pub(super) fn srq_attr(
    attr: &ibv_srq_init_attr_ex,
) -> Result<(ibv_srq_init_attr, Option<*mut ibv_pd>), i32> {
    const TYPE: u32 = ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_TYPE.0;
    const PD: u32 = ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_PD.0;
    let has = |bit| attr.comp_mask & bit != 0;
    if attr.comp_mask & !(TYPE | PD) != 0
        || (has(TYPE) && attr.srq_type != ibv_srq_type::IBV_SRQT_BASIC)
    {
        return Err(libc::EOPNOTSUPP);
    }
    let basic = ibv_srq_init_attr {
        srq_context: attr.srq_context,
        attr: attr.attr,
    };
    Ok((basic, has(PD).then_some(attr.pd)))
}

/// # Safety
/// As of `ibv_get_srq_num`.
pub unsafe extern "C" fn get_srq_num(_: *mut ibv_srq, _: *mut u32) -> c_int {
    libc::EOPNOTSUPP
}

/// # Safety
/// The queue is one of [`ibv_create_srq`]; the attributes can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: as the caller promises.
    let (srq, attr) = unsafe { (srq_of(srq), &*attr) };
    let mask = mask as u32;
    let mut result = Ok(());
    if mask & ibv_srq_attr_mask::IBV_SRQ_MAX_WR.0 != 0 {
        result = match attr.max_wr {
            n if n == 0 || n > limits::MAX_SRQ_WR => Err(libc::EINVAL),
            n => srq.resize(n as usize),
        };
    }
    if result.is_ok() && mask & ibv_srq_attr_mask::IBV_SRQ_LIMIT.0 != 0 {
        result = srq.set_limit(attr.srq_limit as usize);
    }
    errno(result)
}

/// # Safety
/// The queue is one of [`ibv_create_srq`]; the attributes can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let srq = srq_of(srq);
        *attr = ibv_srq_attr {
            max_wr: srq.capacity() as u32,
            max_sge: srq.max_sge,
            srq_limit: srq.limit() as u32,
        };
    }
    0
}

/// # Safety
/// The queue is one of [`ibv_create_srq`], and is not used any more unless this fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let of = srq_of(srq);
        if of.users.load(Ordering::Acquire) > 0 {
            return errno(Err(libc::EBUSY));
        }
        Context::of((*srq).context).forget(srq.cast());
        of.domain.detach();
        drop(Box::from_raw(srq.cast::<SrqHandle>()));
    }
    0
}
