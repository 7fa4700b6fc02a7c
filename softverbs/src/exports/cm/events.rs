//! Event channels, and what comes on them.

use super::association::qp_of;
use super::channel::{destroy_channel, events_of, new_channel};
use super::id::{Id, id_of};
use crate::diagnostic;
use crate::driver::cm::{CmEvent, CmId};
use crate::exports::device::default_context;
use crate::exports::returns::{minus_one, pointer};
use crate::objects::channel::ChannelHandle;
use crate::objects::qp::{every_access, qps};
use crate::proto::Phase;
use crate::proto::frames::Private;
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
    owner: Arc<CmId>,
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
    unsafe { destroy_channel(channel) };
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
        if handle.has_only_parent_ids() {
            diagnostic::forked();
            return minus_one(Err(libc::ENODEV));
        }
        match handle.events.pop(|event| event.owner().unacked.got()) {
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
    let mut handle = event.id.handle.load(Ordering::Acquire);
    match event.kind {
        RDMA_CM_EVENT_CONNECT_REQUEST => {
            let listener = owner.handle.load(Ordering::Acquire);
            // SAFETY: the listening id is not destroyed before its events are acknowledged.
            let (context, ps) = unsafe { ((*listener).context, (*listener).ps) };
            handle = Id::create(event.id.clone(), channel, context, ps, false);
            abi.listen_id = listener;
            // SAFETY: made just now.
            let id = unsafe { id_of(handle) };
            event.id.request_taken();
            // The listener may have had another channel when the request came.
            // SAFETY: the channel is open.
            event.id.migrate(unsafe { events_of(channel) });
            id.note_addresses(event.id.addresses());
            id.note_path();
        }
        RDMA_CM_EVENT_ESTABLISHED | RDMA_CM_EVENT_CONNECT_RESPONSE => {
            // SAFETY: an id is not destroyed before its events are acknowledged, and this one is not.
            (abi.event, abi.status) = unsafe { reply_taken(id_of(handle), &event) };
        }
        _ => {}
    }
    abi.id = handle;
    let mut out = Box::new(EventHandle {
        abi,
        private: [0; Private::MAX],
        owner,
    });
    let private = event.private.padded(event.private_len);
    for (to, from) in out.private.iter_mut().zip(private) {
        *to = *from;
    }
    let out = Box::into_raw(out);
    if event.params.is_some() || event.private_len > 0 {
        // SAFETY: it consists of numbers and pointers.
        let mut conn: rdma_conn_param = unsafe { zeroed() };
        if event.private_len > 0 {
            // Of the event as C has it from now on.
            // SAFETY: made just now.
            conn.private_data = unsafe { &raw const (*out).private }.cast();
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
        // SAFETY: as above.
        unsafe { (*out).abi.param.conn = conn };
    }
    out
}

/// What the program is told when it takes the event that its connection was accepted. If the id has a
/// queue pair now, that is connected; if not, the program is to do it.
///
/// # Safety
/// What is in `id->qp` is NULL or a queue pair of this library.
unsafe fn reply_taken(id: &Id, event: &CmEvent) -> (rdma_cm_event_type::Type, i32) {
    use rdma_cm_event_type::*;
    let cm = &event.id;
    if cm.connection_phase() != Some(Phase::ReplyReceived) {
        // The passive side; or it has ended since.
        return (event.kind, event.status);
    }
    let named = cm.params().map_or(0, |(mine, _)| mine.qp_num);
    let join = || {
        let qps = qps();
        // SAFETY: what is in `id->qp` is NULL or a queue pair of this library.
        cm.join(&unsafe { qp_of(id, named, &qps) }?)
    };
    let result = join().and_then(|()| {
        if !cm.moves_qp() {
            return Ok(RDMA_CM_EVENT_CONNECT_RESPONSE);
        }
        cm.initialize_qp(every_access(), id.ack_timeout())?;
        // It fails if the connection has ended meanwhile, which has an event of its own.
        let _ = cm.establish();
        Ok(RDMA_CM_EVENT_ESTABLISHED)
    });
    result.map_or_else(
        |_| {
            // The other side is not left waiting.
            let _ = cm.reject(Private::NONE);
            // librdmacm tells no more than that.
            (RDMA_CM_EVENT_CONNECT_ERROR, -1)
        },
        |kind| (kind, 0),
    )
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
    event.owner.unacked.ack(1);
    0
}
