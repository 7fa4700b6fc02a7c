//! Event channels, as the other files make and use them.

use crate::driver::cm::CmEvent;
use crate::driver::event_queue::EventQueue;
use crate::errno::errno_of;
use crate::objects::channel::ChannelHandle;
use rdma_sys::rdma_event_channel;
use std::sync::Arc;

pub fn new_channel() -> Result<*mut rdma_event_channel, i32> {
    let events = EventQueue::new().map_err(|error| errno_of(&error))?;
    Ok(Box::into_raw(Box::new(ChannelHandle::new(events))).cast())
}

/// A channel, or one for an id alone.
pub fn channel_or_own(channel: *mut rdma_event_channel) -> Result<*mut rdma_event_channel, i32> {
    if channel.is_null() {
        new_channel()
    } else {
        Ok(channel)
    }
}

/// # Safety
/// The channel is one of [`new_channel`], and is not used any more.
pub unsafe fn destroy_channel(channel: *mut rdma_event_channel) {
    // SAFETY: `new_channel` made it from a box, and nobody uses it any more.
    drop(unsafe { Box::from_raw(channel.cast::<ChannelHandle>()) });
}

/// Where the events of an id of this channel go.
///
/// # Safety
/// The channel is open.
pub unsafe fn events_of(channel: *mut rdma_event_channel) -> Arc<EventQueue<CmEvent>> {
    // SAFETY: the channel is open, so its handle is there.
    unsafe { (*channel.cast::<ChannelHandle>()).events_for_id() }
}
