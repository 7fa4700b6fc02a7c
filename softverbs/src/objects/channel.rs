//! Event channels of connection management as C sees them.

use crate::driver::cm::CmEvent;
use crate::driver::event_queue::EventQueue;
use crate::process::generation;
use rdma_sys::rdma_event_channel;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// An event channel as C sees it.
#[repr(C)]
pub struct ChannelHandle {
    pub abi: rdma_event_channel,
    pub events: Arc<EventQueue<CmEvent>>,
    /// The process that made the last of its ids, or the channel.
    process: AtomicU32,
}

impl ChannelHandle {
    pub fn new(events: EventQueue<CmEvent>) -> Self {
        ChannelHandle {
            abi: rdma_event_channel { fd: events.fd() },
            events: Arc::new(events),
            process: generation().into(),
        }
    }

    /// An id of this process is to get its events here.
    pub fn events_for_id(&self) -> Arc<EventQueue<CmEvent>> {
        // Relaxed: it is a number alone. A thread that asks for events while another makes the first
        // id of this process may come before or after that.
        self.process.store(generation(), Ordering::Relaxed);
        self.events.clone()
    }

    /// Whether all of its ids are of a parent process, so that nothing will ever come.
    pub fn has_only_parent_ids(&self) -> bool {
        let ids = Arc::strong_count(&self.events) > 1;
        // Relaxed: as in `events_for_id`.
        ids && self.process.load(Ordering::Relaxed) != generation()
    }
}
