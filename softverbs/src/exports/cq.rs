//! Completion channels and queues.

use super::returns::{errno, minus_one, pointer};
use crate::driver::cq::{Armed, CompletionQueue};
use crate::driver::event_queue::EventQueue;
use crate::errno::errno_of;
use crate::limits;
use crate::objects::alive::{Alive, Kind};
use crate::objects::cq::{CompChannel, CqHandle};
use crate::objects::device::Context;
use rdma_sys::*;
use std::ffi::{c_int, c_uint, c_void};
use std::mem::zeroed;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

/// # Safety
/// The context is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    let channel = EventQueue::new().map(|events| {
        let channel = CompChannel {
            abi: ibv_comp_channel {
                context,
                fd: events.fd(),
                refcnt: 0,
            },
            events: Arc::new(events),
        };
        Box::into_raw(Box::new(channel)).cast()
    });
    pointer(channel.map_err(|error| errno_of(&error)))
}

/// How many queues are on a channel. Several threads may make and destroy queues on one.
///
/// # Safety
/// The channel is one of [`ibv_create_comp_channel`].
unsafe fn users<'a>(channel: *mut CompChannel) -> &'a AtomicI32 {
    // SAFETY: as the caller promises; nothing here accesses it otherwise.
    unsafe { AtomicI32::from_ptr(&raw mut (*channel).abi.refcnt) }
}

/// # Safety
/// The channel is one of [`ibv_create_comp_channel`], and is not used any more unless this fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    let channel: *mut CompChannel = channel.cast();
    // SAFETY: as the caller promises.
    unsafe {
        if users(channel).load(Ordering::Acquire) > 0 {
            return errno(Err(libc::EBUSY));
        }
        drop(Box::from_raw(channel));
    }
    0
}

/// # Safety
/// The channel is NULL or one of this context's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    let Ok(size) = size_of_queue(cqe) else {
        return pointer(Err(libc::EINVAL));
    };
    if comp_vector < 0 || comp_vector >= limits::COMP_VECTORS as c_int {
        return pointer(Err(libc::EINVAL));
    }
    let channel: *mut CompChannel = channel.cast();
    // SAFETY: as the caller promises.
    let (of, events) = unsafe {
        let events = (!channel.is_null()).then(|| (*channel).events.clone());
        (Context::of(context), events)
    };
    let Some(cq) = CompletionQueue::new(size, events, of.events().clone()) else {
        return pointer(Err(libc::ENOMEM));
    };
    // SAFETY: it consists of numbers and pointers; its lock is of this library only.
    let mut abi: ibv_cq = unsafe { zeroed() };
    abi.context = context;
    abi.channel = channel.cast();
    abi.cq_context = cq_context;
    abi.cqe = cqe;
    let handle = Box::into_raw(Box::new(CqHandle {
        abi,
        cq: cq.clone(),
        _alive: Alive::new(Kind::Cq),
    }));
    cq.handle.store(handle.cast(), Ordering::Release);
    if !channel.is_null() {
        // SAFETY: as the caller promises.
        unsafe { users(channel) }.fetch_add(1, Ordering::AcqRel);
    }
    handle.cast()
}

/// How many entries a program asks for.
fn size_of_queue(cqe: c_int) -> Result<usize, i32> {
    match usize::try_from(cqe) {
        Ok(n) if n > 0 && n <= limits::MAX_CQE as usize => Ok(n),
        _ => Err(libc::EINVAL),
    }
}

/// # Safety
/// The handle is one of [`ibv_create_cq`].
pub(super) unsafe fn cq_of<'a>(cq: *mut ibv_cq) -> &'a Arc<CompletionQueue> {
    // SAFETY: the queue is of this library. The reference leaves out the structure that C sees,
    // whose `cqe` another thread may change.
    unsafe { &(*cq.cast::<CqHandle>()).cq }
}

/// # Safety
/// The queue is one of [`ibv_create_cq`], and is not used any more unless this fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let of = cq_of(cq);
        if of.is_used() {
            return errno(Err(libc::EBUSY));
        }
        of.close();
        Context::of((*cq).context).forget(cq.cast());
        let channel: *mut CompChannel = (*cq).channel.cast();
        if !channel.is_null() {
            users(channel).fetch_sub(1, Ordering::AcqRel);
        }
        drop(Box::from_raw(cq.cast::<CqHandle>()));
    }
    0
}

/// # Safety
/// The queue is one of [`ibv_create_cq`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: as the caller promises.
    let of = unsafe { cq_of(cq) };
    let result = size_of_queue(cqe).and_then(|size| of.resize(size));
    if result.is_ok() {
        // SAFETY: as the caller promises.
        unsafe { (*cq).cqe = cqe };
    }
    errno(result)
}

/// # Safety
/// The channel is one of [`ibv_create_comp_channel`]; what is pointed to can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: as the caller promises.
    let events = unsafe { &(*channel.cast::<CompChannel>()).events };
    match events.pop(|event| event.0.unacked.got()) {
        Ok(event) => {
            let handle = event.0.handle.load(Ordering::Acquire);
            // SAFETY: as the caller promises; a queue that is destroyed takes its events along.
            unsafe {
                *cq = handle;
                *cq_context = (*handle).cq_context;
            }
            0
        }
        Err(error) => minus_one(Err(error)),
    }
}

/// # Safety
/// The queue is one of [`ibv_create_cq`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, n: c_uint) {
    // SAFETY: as the caller promises.
    unsafe { cq_of(cq) }.unacked.ack(n);
}

/// # Safety
/// As of `ibv_poll_cq`.
pub unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, n: c_int, wc: *mut ibv_wc) -> c_int {
    let Ok(n) = usize::try_from(n) else {
        return -libc::EINVAL;
    };
    // SAFETY: as the caller promises.
    match unsafe { cq_of(cq).poll(wc, n) } {
        Some(n) => n as c_int,
        None => -libc::EIO,
    }
}

/// # Safety
/// As of `ibv_req_notify_cq`.
pub unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    let armed = if solicited_only != 0 {
        Armed::Solicited
    } else {
        Armed::All
    };
    // SAFETY: as the caller promises.
    unsafe { cq_of(cq) }.arm(armed);
    0
}

/// # Safety
/// As of `ibv_create_cq_ex`.
pub unsafe extern "C" fn create_cq_ex(
    _: *mut ibv_context,
    _: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    pointer(Err(libc::EOPNOTSUPP))
}
