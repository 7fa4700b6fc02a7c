//! Event channels of connection management, and what comes on them.

use super::endpoint::Endpoint;
use super::events::EventQueue;
use crate::forks;
use crate::frames::{Params, Private};
use rdma_sys::{rdma_cm_event_type, rdma_event_channel};
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
            process: forks::generation().into(),
        }
    }

    /// An id of this process is to get its events here.
    pub fn events_for_id(&self) -> Arc<EventQueue<CmEvent>> {
        self.process.store(forks::generation(), Ordering::Relaxed);
        self.events.clone()
    }

    /// Whether all of its ids are of a parent process, so that nothing will ever come.
    pub fn is_forsaken(&self) -> bool {
        let ids = Arc::strong_count(&self.events) > 1;
        ids && self.process.load(Ordering::Relaxed) != forks::generation()
    }
}

/// An event of connection management.
pub struct CmEvent {
    pub kind: rdma_cm_event_type::Type,
    pub status: i32,
    /// Whose it is: of a connection request, the new one.
    pub endpoint: Arc<Endpoint>,
    /// Of a connection request, who listens.
    pub listener: Option<Arc<Endpoint>>,
    /// What the other side said of itself.
    pub params: Option<Params>,
    pub private: Private,
    /// How many bytes of private data there are, with the padding of the message.
    pub private_len: usize,
}

impl CmEvent {
    /// An event that says no more than that it happened.
    pub fn plain(kind: rdma_cm_event_type::Type, status: i32, endpoint: Arc<Endpoint>) -> Self {
        CmEvent {
            kind,
            status,
            endpoint,
            listener: None,
            params: None,
            private: Private::NONE,
            private_len: 0,
        }
    }

    /// Who counts as the one that has to be told of it before it is destroyed.
    pub fn owner(&self) -> &Arc<Endpoint> {
        self.listener.as_ref().unwrap_or(&self.endpoint)
    }
}
