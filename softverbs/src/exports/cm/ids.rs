//! Ids: made, destroyed, moved from one event channel to another.

use super::channel::{channel_or_own, destroy_channel, events_of};
use super::id::{Id, id_of};
use super::wait::acknowledge_own;
use crate::engine;
use crate::exports::device::default_context;
use crate::exports::qp::forget_reachable;
use crate::exports::returns::minus_one;
use crate::objects::endpoint::Endpoint;
use crate::objects::errno_of;
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
    if let Err(error) = engine::start() {
        return minus_one(Err(errno_of(&error)));
    }
    let sync = channel.is_null();
    let channel = match channel_or_own(channel) {
        Ok(channel) => channel,
        Err(error) => return minus_one(Err(error)),
    };
    // SAFETY: as the caller promises.
    unsafe {
        let endpoint = Endpoint::new(events_of(channel));
        *id = Id::create(endpoint, channel, context, ps, sync);
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
        let endpoint = id_of(id).endpoint();
        endpoint.abandon();
        forget_reachable(&endpoint);
        let events = endpoint.lock().events.clone();
        let mine = events.extract(|event| {
            Arc::ptr_eq(event.owner(), &endpoint) || Arc::ptr_eq(&event.endpoint, &endpoint)
        });
        for event in mine {
            // A connection that nobody will accept.
            if event.listener.is_some() && !Arc::ptr_eq(&event.endpoint, &endpoint) {
                event.endpoint.abandon();
            }
        }
        endpoint.handed.wait();
        endpoint.handle.store(ptr::null_mut(), Ordering::Release);
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
        let endpoint = id_of(id).endpoint();
        endpoint.handed.wait();
        let to = events_of(channel);
        let own = id_of(id).is_sync().then_some((*id).channel);
        {
            // Nothing comes for it meanwhile.
            let mut state = endpoint.lock();
            // Once an event is in the new channel, another thread may destroy the id.
            id_of(id).set_channel(channel, sync);
            let from = std::mem::replace(&mut state.events, to.clone());
            for event in from.extract(|event| Arc::ptr_eq(event.owner(), &endpoint)) {
                to.push(event);
            }
        }
        if let Some(own) = own {
            destroy_channel(own);
        }
    }
    0
}
