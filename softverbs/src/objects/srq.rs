//! Shared receive queues.

use super::alive::Alive;
use super::device::{AsyncEvent, Context};
use super::endpoint::Endpoint;
use super::lock;
use super::memory::Domain;
use super::qp::RecvWqe;
use rdma_sys::{ibv_qp, ibv_srq};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// A shared receive queue as C sees it.
#[repr(C)]
pub struct SrqHandle {
    pub abi: ibv_srq,
    pub srq: Arc<Srq>,
    pub _alive: Alive,
}

struct Ring {
    entries: VecDeque<RecvWqe>,
    capacity: usize,
    /// Below so many entries an event is due; 0 is none.
    limit: usize,
    /// Those whose peer was told that there was nothing.
    waiting: Vec<Weak<Endpoint>>,
}

pub struct Srq {
    ring: Mutex<Ring>,
    pub max_sge: u32,
    pub domain: Arc<Domain>,
    pub handle: AtomicPtr<ibv_srq>,
    pub users: AtomicUsize,
    context: *const Context,
}

// SAFETY: the context outlives its queues, and its methods are for all threads; the other members
// are Send and Sync.
unsafe impl Send for Srq {}
// SAFETY: as above.
unsafe impl Sync for Srq {}

impl Srq {
    pub fn new(
        context: *const Context,
        domain: Arc<Domain>,
        capacity: usize,
        max_sge: u32,
        limit: usize,
    ) -> Option<Arc<Self>> {
        let mut entries = VecDeque::new();
        entries.try_reserve_exact(capacity).ok()?;
        Some(Arc::new(Srq {
            ring: Mutex::new(Ring {
                entries,
                capacity,
                limit,
                waiting: vec![],
            }),
            max_sge,
            domain,
            handle: AtomicPtr::default(),
            users: AtomicUsize::new(0),
            context,
        }))
    }

    pub fn post(&self, wqe: RecvWqe) -> Result<(), i32> {
        let mut ring = lock(&self.ring);
        if ring.entries.len() == ring.capacity {
            return Err(libc::ENOMEM);
        }
        ring.entries.push_back(wqe);
        Ok(())
    }

    /// Tells those who wait that something was posted.
    pub fn posted(&self) {
        let waiting = std::mem::take(&mut lock(&self.ring).waiting);
        for endpoint in waiting.iter().filter_map(Weak::upgrade) {
            endpoint.receive_posted();
        }
    }

    /// Takes a receive, or else notes who is to be told when there is one.
    pub fn take_or_wait(&self, endpoint: &Weak<Endpoint>) -> Option<RecvWqe> {
        let mut ring = lock(&self.ring);
        let Some(wqe) = ring.entries.pop_front() else {
            if !ring.waiting.iter().any(|one| one.ptr_eq(endpoint)) {
                ring.waiting.push(endpoint.clone());
            }
            return None;
        };
        if ring.entries.len() < ring.limit {
            ring.limit = 0;
            drop(ring);
            self.report(AsyncEvent::SrqLimit(self.handle.load(Ordering::Relaxed)));
        }
        Some(wqe)
    }

    /// That queue pair takes no more receives.
    pub fn left_by(&self, qp: *mut ibv_qp) {
        self.report(AsyncEvent::LastWqe(qp));
    }

    fn report(&self, event: AsyncEvent) {
        // SAFETY: the context outlives the queue.
        unsafe { (*self.context).report(event) };
    }

    pub fn capacity(&self) -> usize {
        lock(&self.ring).capacity
    }

    pub fn limit(&self) -> usize {
        lock(&self.ring).limit
    }

    pub fn set_limit(&self, limit: usize) -> Result<(), i32> {
        let mut ring = lock(&self.ring);
        if limit > ring.capacity {
            return Err(libc::EINVAL);
        }
        ring.limit = limit;
        Ok(())
    }

    pub fn resize(&self, capacity: usize) -> Result<(), i32> {
        let mut ring = lock(&self.ring);
        if capacity < ring.entries.len() || capacity < ring.limit {
            return Err(libc::EINVAL);
        }
        let more = capacity - ring.entries.len();
        ring.entries.try_reserve(more).map_err(|_| libc::ENOMEM)?;
        ring.capacity = capacity;
        Ok(())
    }
}
