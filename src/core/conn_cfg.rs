use super::Srq;
use super::device::DEFAULT_TIMEOUT_MS;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering::Relaxed};

/// How a connection is made. Each member may be read and set by any thread.
pub struct ConnCfg {
    pub timeout_ms: AtomicI32,
    pub cq_size: AtomicU32,
    pub rcq_size: AtomicU32,
    pub sq_size: AtomicU32,
    pub rq_size: AtomicU32,
    pub shared_channel: AtomicBool,
    srq: AtomicPtr<Srq>,
}

impl ConnCfg {
    /// NULL if none is set.
    pub fn srq(&self) -> *mut Srq {
        self.srq.load(Relaxed)
    }

    /// # Safety
    /// The queue outlives the configuration and every connection made with it.
    pub unsafe fn set_srq(&self, srq: *mut Srq) {
        self.srq.store(srq, Relaxed);
    }
}

impl Default for ConnCfg {
    fn default() -> Self {
        ConnCfg {
            timeout_ms: AtomicI32::new(DEFAULT_TIMEOUT_MS),
            cq_size: AtomicU32::new(10),
            rcq_size: AtomicU32::new(0),
            sq_size: AtomicU32::new(10),
            rq_size: AtomicU32::new(10),
            shared_channel: AtomicBool::new(false),
            srq: AtomicPtr::new(ptr::null_mut()),
        }
    }
}
