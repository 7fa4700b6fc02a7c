//! Shared receive queues.

use super::async_events::{AsyncEvent, AsyncEvents};
use crate::memory::Domain;
use crate::proto::{RecvQueue, RecvWqe, Resize, Sge};
use crate::sync::lock;
use rdma_sys::ibv_srq;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// A queue pair that takes its receives from a shared queue.
pub trait SrqUser: Send + Sync {
    fn receive_posted(&self);
}

struct Ring {
    queue: RecvQueue,
    /// Below so many entries an event is due; 0 is none.
    limit: usize,
    /// Those whose peer was told that there was nothing.
    waiting: Vec<Weak<dyn SrqUser>>,
}

pub struct SharedReceiveQueue {
    ring: Mutex<Ring>,
    pub max_sge: u32,
    pub domain: Arc<Domain>,
    pub handle: AtomicPtr<ibv_srq>,
    /// How many queue pairs use it.
    pub users: AtomicUsize,
    async_events: Arc<AsyncEvents>,
}

impl SharedReceiveQueue {
    /// `None` if there is no memory for it.
    pub fn new(
        domain: Arc<Domain>,
        capacity: usize,
        max_sge: u32,
        limit: usize,
        async_events: Arc<AsyncEvents>,
    ) -> Option<Arc<Self>> {
        Some(Arc::new(SharedReceiveQueue {
            ring: Mutex::new(Ring {
                queue: RecvQueue::new(capacity, max_sge as usize)?,
                limit,
                waiting: vec![],
            }),
            max_sge,
            domain,
            handle: AtomicPtr::default(),
            users: AtomicUsize::new(0),
            async_events,
        }))
    }

    /// Adds a request whose `n` pieces `fill` writes.
    pub fn post(&self, wr_id: u64, n: usize, fill: impl FnOnce(&mut [Sge])) -> Result<(), i32> {
        let mut ring = lock(&self.ring);
        ring.queue.push(wr_id, n, fill).ok_or(libc::ENOMEM)
    }

    /// Tells those who wait that something was posted.
    pub fn posted(&self) {
        let waiting = std::mem::take(&mut lock(&self.ring).waiting);
        for user in waiting.iter().filter_map(Weak::upgrade) {
            user.receive_posted();
        }
    }

    /// Takes a receive, or else notes who is to be told when there is one.
    pub fn take_or_wait(&self, to: &mut RecvWqe, user: &Weak<dyn SrqUser>) -> bool {
        let mut ring = lock(&self.ring);
        if !ring.queue.pop(to) {
            if !ring.waiting.iter().any(|one| one.ptr_eq(user)) {
                ring.waiting.push(user.clone());
            }
            return false;
        }
        if ring.queue.len() < ring.limit {
            ring.limit = 0;
            drop(ring);
            let handle = self.handle.load(Ordering::Acquire);
            self.async_events.report(AsyncEvent::SrqLimit(handle));
        }
        true
    }

    pub fn capacity(&self) -> usize {
        lock(&self.ring).queue.capacity()
    }

    pub fn limit(&self) -> usize {
        lock(&self.ring).limit
    }

    pub fn set_limit(&self, limit: usize) -> Result<(), i32> {
        let mut ring = lock(&self.ring);
        if limit > ring.queue.capacity() {
            return Err(libc::EINVAL);
        }
        ring.limit = limit;
        Ok(())
    }

    pub fn resize(&self, capacity: usize) -> Result<(), i32> {
        let mut ring = lock(&self.ring);
        if capacity < ring.limit {
            return Err(libc::EINVAL);
        }
        ring.queue.resize(capacity).map_err(|error| match error {
            Resize::TooSmall => libc::EINVAL,
            Resize::NoMemory => libc::ENOMEM,
        })
    }
}
