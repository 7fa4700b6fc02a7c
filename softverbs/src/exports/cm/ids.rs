//! Ids: made, destroyed, moved from one event channel to another.

use super::channel::{channel_or_own, destroy_channel, events_of};
use super::id::{Id, id_of};
use super::wait::acknowledge_own;
use crate::driver::cm::CmId;
use crate::errno::errno_of;
use crate::exports::device::default_context;
use crate::exports::returns::minus_one;
use crate::objects::qp::qps;
use crate::reactor;
use rdma_sys::*;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// # Safety
/// The channel is NULL or open; what is pointed to can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: rdma_port_space::Type,
) -> c_int {
    match ps {
        rdma_port_space::RDMA_PS_TCP | rdma_port_space::RDMA_PS_IB => {}
        rdma_port_space::RDMA_PS_UDP | rdma_port_space::RDMA_PS_IPOIB => {
            return minus_one(Err(libc::EPROTONOSUPPORT));
        }
        _ => return minus_one(Err(libc::EINVAL)),
    }
    if default_context().is_null() {
        return -1;
    }
    if let Err(error) = reactor::start() {
        return minus_one(Err(errno_of(&error)));
    }
    let sync = channel.is_null();
    let channel = match channel_or_own(channel) {
        Ok(channel) => channel,
        Err(error) => return minus_one(Err(error)),
    };
    // SAFETY: as the caller promises.
    unsafe {
        let cm = CmId::new(events_of(channel));
        *id = Id::create(cm, channel, context, ps, sync);
    }
    0
}

/// # Safety
/// The id is one of this library's, and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        acknowledge_own(id_of(id));
        let cm = id_of(id).cm();
        cm.abandon();
        qps().forget_reachable(cm.token);
        let mine = cm
            .events()
            .extract(|event| Arc::ptr_eq(event.owner(), &cm) || Arc::ptr_eq(&event.id, &cm));
        for event in mine {
            // A connection that nobody will accept.
            if event.listener.is_some() && !Arc::ptr_eq(&event.id, &cm) {
                event.id.abandon();
            }
        }
        cm.unacked.wait();
        cm.handle.store(ptr::null_mut(), Ordering::Release);
        if id_of(id).is_sync() {
            destroy_channel((*id).channel);
        }
        Id::destroy(id);
    }
    0
}

/// # Safety
/// The id is one of this library's, the channel is NULL or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_migrate_id(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let sync = channel.is_null();
        let channel = match channel_or_own(channel) {
            Ok(channel) => channel,
            Err(error) => return minus_one(Err(error)),
        };
        acknowledge_own(id_of(id));
        let cm = id_of(id).cm();
        cm.unacked.wait();
        let to = events_of(channel);
        let own = id_of(id).is_sync().then_some((*id).channel);
        // Once an event is in the new channel, another thread may destroy the id.
        id_of(id).set_channel(channel, sync);
        cm.migrate(to);
        if let Some(own) = own {
            destroy_channel(own);
        }
    }
    0
}
