//! Events of the connection manager.

use super::error::failed;
use super::{Error, Result};
use crate::verbs::{CmEvent, Errno, EventChannel};

pub fn create_event_channel() -> Result<EventChannel> {
    EventChannel::create().map_err(failed!("rdma_create_event_channel"))
}

/// The next event; none is no fault, whether nothing came (ENODATA) or a
/// non-blocking descriptor has nothing (EAGAIN).
pub fn next_event(events: &EventChannel) -> Result<CmEvent> {
    events.next_event().map_err(|errno| match errno {
        Errno(libc::ENODATA | libc::EAGAIN) => Error::NO_EVENT,
        errno => failed!("rdma_get_cm_event")(errno),
    })
}

pub fn ack_failed(errno: Errno) -> Error {
    failed!("rdma_ack_cm_event")(errno)
}
