//! Shared receive queues as C sees them.

use super::alive::Alive;
use crate::driver::srq::SharedReceiveQueue;
use rdma_sys::ibv_srq;
use std::sync::Arc;

/// A shared receive queue as C sees it.
#[repr(C)]
pub struct SrqHandle {
    pub abi: ibv_srq,
    pub srq: Arc<SharedReceiveQueue>,
    pub _alive: Alive,
}
