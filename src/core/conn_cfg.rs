use super::Srq;
use super::device::DEFAULT_TIMEOUT_MS;
use super::setting::Setting;
use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// How a connection is made. Each member may be read and set by any thread.
pub struct ConnCfg {
    pub timeout_ms: Setting<c_int>,
    pub cq_size: Setting<u32>,
    pub rcq_size: Setting<u32>,
    pub sq_size: Setting<u32>,
    pub rq_size: Setting<u32>,
    pub shared_channel: Setting<bool>,
    srq: AtomicPtr<Srq>,
}

impl ConnCfg {
    /// NULL if none is set.
    pub fn srq(&self) -> *mut Srq {
        self.srq.load(Ordering::Acquire)
    }

    /// # Safety
    /// The queue outlives the configuration and every connection made with it.
    pub unsafe fn set_srq(&self, srq: *mut Srq) {
        // Another thread that finds the queue here finds it whole.
        self.srq.store(srq, Ordering::Release);
    }
}

impl Default for ConnCfg {
    fn default() -> Self {
        ConnCfg {
            timeout_ms: Setting::new(DEFAULT_TIMEOUT_MS),
            cq_size: Setting::new(10),
            rcq_size: Setting::new(0),
            sq_size: Setting::new(10),
            rq_size: Setting::new(10),
            shared_channel: Setting::new(false),
            srq: AtomicPtr::new(ptr::null_mut()),
        }
    }
}
