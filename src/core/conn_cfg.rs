use super::Srq;
use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering::Relaxed};

/// How long an address is looked for if nothing else is said: `RPMA_DEFAULT_TIMEOUT_MS`.
pub const DEFAULT_TIMEOUT_MS: c_int = 1000;

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
