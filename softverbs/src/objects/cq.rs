//! Completion channels and queues as C sees them.

use super::alive::Alive;
use crate::driver::cq::{CompletionQueue, CqEvent};
use crate::driver::event_queue::EventQueue;
use rdma_sys::{ibv_comp_channel, ibv_cq};
use std::sync::Arc;

/// A completion channel as C sees it.
#[repr(C)]
pub struct CompChannel {
    pub abi: ibv_comp_channel,
    pub events: Arc<EventQueue<CqEvent>>,
}

/// A completion queue as C sees it.
#[repr(C)]
pub struct CqHandle {
    pub abi: ibv_cq,
    pub cq: Arc<CompletionQueue>,
    pub _alive: Alive,
}
