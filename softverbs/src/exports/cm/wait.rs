//! Ids without a channel of the program's wait for their events themselves.

use super::events::{rdma_ack_cm_event, rdma_get_cm_event};
use super::id::{Id, id_of};
use crate::exports::returns::minus_one;
use rdma_sys::*;
use std::ffi::c_int;
use std::ptr;

/// Acknowledges the event that an id with a channel of its own got last.
pub fn acknowledge_own(id: &Id) {
    // SAFETY: the id is there as long as it is borrowed; the event is one that it got for itself,
    // and has not acknowledged. Only the thread that makes the id's calls touches that member.
    unsafe {
        let event = (*id.abi()).event;
        if !event.is_null() {
            (*id.abi()).event = ptr::null_mut();
            rdma_ack_cm_event(event);
        }
    }
}

/// Ends a call that may have brought an event. Waits for that if the id has a channel of its own,
/// which was found before the call: another id may be destroyed by now.
///
/// The thread may be cancelled in here. Callers have nothing that is to be dropped.
///
/// # Safety
/// An id with a channel of its own is there, since no other thread gets its events.
pub unsafe fn complete(id: *mut rdma_cm_id, sync: bool, asked: Result<(), i32>) -> c_int {
    if let Err(error) = asked {
        return minus_one(Err(error));
    }
    if !sync {
        return 0;
    }
    // SAFETY: an id with a channel of its own is there, since no other thread gets its events; the
    // event is there until it is acknowledged.
    unsafe {
        let id = id_of(id);
        acknowledge_own(id);
        let mut event = ptr::null_mut();
        if rdma_get_cm_event((*id.abi()).channel, &mut event) != 0 {
            return -1;
        }
        (*id.abi()).event = event;
        minus_one(match (*event).status {
            0 => Ok(()),
            _ if (*event).event == rdma_cm_event_type::RDMA_CM_EVENT_REJECTED => {
                Err(libc::ECONNREFUSED)
            }
            status => Err(status.abs()),
        })
    }
}
