//! Event channels, and what comes on them.

use super::ids::{Id, id_of};
use crate::diagnostic;
use crate::exports::{minus_one, pointer};
use crate::frames::Private;
use crate::objects::cm::{ChannelHandle, CmEvent};
use crate::objects::device::default_context;
use crate::objects::endpoint::{Endpoint, Phase};
use crate::objects::errno_of;
use crate::objects::events::EventQueue;
use rdma_sys::*;
use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// An event as C sees it.
#[repr(C)]
struct EventHandle {
    abi: rdma_cm_event,
    private: [u8; Private::MAX],
    owner: Arc<Endpoint>,
}

pub(super) fn new_channel() -> Result<*mut rdma_event_channel, i32> {
    let events = EventQueue::new().map_err(|error| errno_of(&error))?;
    Ok(Box::into_raw(Box::new(ChannelHandle::new(events))).cast())
}

/// # Safety
/// None.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    // Without a device there is nothing to manage.
    if default_context().is_null() {
        return ptr::null_mut();
    }
    pointer(new_channel())
}

/// # Safety
/// The channel is one of [`rdma_create_event_channel`], and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    // SAFETY: as the caller promises.
    drop(unsafe { Box::from_raw(channel.cast::<ChannelHandle>()) });
}

/// # Safety
/// The channel is open.
pub(super) unsafe fn events_of(channel: *mut rdma_event_channel) -> Arc<EventQueue<CmEvent>> {
    // SAFETY: as the caller promises.
    unsafe { (*channel.cast::<ChannelHandle>()).events_for_id() }
}

/// # Safety
/// The channel is open; what is pointed to can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    if channel.is_null() || event.is_null() {
        return minus_one(Err(libc::EINVAL));
    }
    // SAFETY: as the caller promises.
    unsafe {
        let handle = &*channel.cast::<ChannelHandle>();
        if handle.is_forsaken() {
            diagnostic::forked();
            return minus_one(Err(libc::ENODEV));
        }
        match handle.events.pop(|event| event.owner().handed.out()) {
            Ok(got) => {
                *event = deliver(channel, got).cast();
                0
            }
            Err(error) => minus_one(Err(error)),
        }
    }
}

/// Makes an event one of C's, and does what is to be done once the program knows of it.
///
/// # Safety
/// It is of this channel, and its owner counts it as handed out, which keeps the ids it is about.
unsafe fn deliver(channel: *mut rdma_event_channel, event: CmEvent) -> *mut EventHandle {
    use rdma_cm_event_type::*;
    let owner = event.owner().clone();
    // SAFETY: it consists of numbers and pointers.
    let mut abi: rdma_cm_event = unsafe { zeroed() };
    abi.event = event.kind;
    abi.status = event.status;
    let mut handle = event.endpoint.handle.load(Ordering::Acquire);
    match event.kind {
        RDMA_CM_EVENT_CONNECT_REQUEST => {
            let listener = owner.handle.load(Ordering::Acquire);
            event.endpoint.lock().request_taken();
            // SAFETY: the id of who listens is there, as the caller promises.
            let (context, ps) = unsafe { ((*listener).context, (*listener).ps) };
            let id = Id::create(event.endpoint.clone(), channel, context, ps, false);
            // SAFETY: made just now.
            unsafe {
                (*id).update();
                (*id).add_path();
            }
            handle = id.cast();
            abi.listen_id = listener;
        }
        RDMA_CM_EVENT_ADDR_RESOLVED => {
            // SAFETY: as above.
            unsafe { id_of(handle).update() };
        }
        RDMA_CM_EVENT_ROUTE_RESOLVED => {
            // SAFETY: as above.
            unsafe { id_of(handle).add_path() };
        }
        RDMA_CM_EVENT_ESTABLISHED => {
            let mut state = event.endpoint.lock();
            if state.phase == Phase::ReplyReceived {
                // It was so when the lock was taken.
                let _ = state.establish(&event.endpoint);
            }
        }
        _ => {}
    }
    abi.id = handle;
    let mut out = Box::new(EventHandle {
        abi,
        private: [0; Private::MAX],
        owner,
    });
    out.private[..event.private_len].copy_from_slice(event.private.padded(event.private_len));
    if event.params.is_some() || event.private_len > 0 {
        // SAFETY: it consists of numbers and pointers.
        let mut conn: rdma_conn_param = unsafe { zeroed() };
        if event.private_len > 0 {
            conn.private_data = out.private.as_ptr().cast();
            conn.private_data_len = event.private_len as u8;
        }
        if let Some(params) = event.params {
            // What one side can answer is what the other may ask.
            conn.responder_resources = params.initiator_depth;
            conn.initiator_depth = params.responder_resources;
            conn.flow_control = params.flow_control;
            conn.retry_count = params.retry_count;
            conn.rnr_retry_count = params.rnr_retry_count;
            conn.srq = params.srq;
            conn.qp_num = params.qp_num;
        }
        out.abi.param.conn = conn;
    }
    Box::into_raw(out)
}

/// # Safety
/// The event is NULL or one of [`rdma_get_cm_event`], and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    if event.is_null() {
        return minus_one(Err(libc::EINVAL));
    }
    // SAFETY: as the caller promises.
    let event = unsafe { Box::from_raw(event.cast::<EventHandle>()) };
    event.owner.handed.back(1);
    0
}
