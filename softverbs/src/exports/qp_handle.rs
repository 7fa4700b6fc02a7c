//! A queue pair as C has it, and how to get from there to the endpoint where it is.

use crate::objects::alive::Alive;
use crate::objects::endpoint::{Batch, Endpoint, State};
use crate::objects::lock;
use rdma_sys::*;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// `struct ibv_qp_ex`, as long as any header has it: members have been added at its end.
#[repr(C)]
pub struct QpAbi {
    known: MaybeUninit<ibv_qp_ex>,
    more: [usize; 8],
}

impl QpAbi {
    /// Without the functions of the extended interface.
    pub fn new(base: ibv_qp) -> Self {
        let mut abi = QpAbi {
            known: MaybeUninit::zeroed(),
            more: [0; 8],
        };
        let qp: *mut ibv_qp_ex = abi.known.as_mut_ptr();
        // SAFETY: it is of this type, and written for the first time.
        unsafe { (&raw mut (*qp).qp_base).write(base) };
        abi
    }
}

/// A queue pair as C sees it. Several threads use it at once, each its own members: there is no
/// reference to all of it.
#[repr(C)]
pub struct QpHandle {
    pub abi: QpAbi,
    pub parts: QpParts,
    pub init: ibv_qp_init_attr,
    pub alive: Alive,
    /// What is being posted by the extended interface.
    pub batch: Option<Batch<'static>>,
}

/// What several threads look at.
pub struct QpParts {
    /// Where the queue pair is: points into the last of `endpoints`.
    endpoint: AtomicPtr<Endpoint>,
    /// Where it is, and where it was before connection management moved it. These are kept because
    /// a thread that posts may have one of them before it. They are as many as the connections that
    /// the queue pair was used for.
    endpoints: Mutex<Vec<Arc<Endpoint>>>,
    /// It was made for the extended interface.
    pub extended: bool,
}

impl QpParts {
    pub fn new(endpoint: Arc<Endpoint>, extended: bool) -> Self {
        QpParts {
            endpoint: AtomicPtr::new(Arc::as_ptr(&endpoint).cast_mut()),
            endpoints: Mutex::new(vec![endpoint]),
            extended,
        }
    }

    /// # Safety
    /// The queue pair is one of this library's, and is not destroyed as long as this is used.
    pub unsafe fn of<'a>(qp: *mut QpHandle) -> &'a Self {
        // SAFETY: as the caller promises; nothing here is changed but by shared references.
        unsafe { &(*qp).parts }
    }

    pub fn endpoint(&self) -> &Endpoint {
        // SAFETY: it is one of `endpoints`, which stay as long as this does.
        unsafe { &*self.endpoint.load(Ordering::Acquire) }
    }

    pub fn set_endpoint(&self, endpoint: Arc<Endpoint>) {
        let at = Arc::as_ptr(&endpoint).cast_mut();
        let mut endpoints = lock(&self.endpoints);
        endpoints.push(endpoint);
        self.endpoint.store(at, Ordering::Release);
    }
}

/// Where the queue pair is.
///
/// # Safety
/// The queue pair is one of this library's, and is not destroyed as long as this is used.
pub unsafe fn endpoint_of<'a>(qp: *mut ibv_qp) -> &'a Endpoint {
    // SAFETY: as the caller promises.
    unsafe { QpParts::of(qp.cast()) }.endpoint()
}

/// Does something at the endpoint where the queue pair is; once more if that failed because the
/// queue pair was moved to another one meanwhile.
///
/// # Safety
/// As of [`endpoint_of`].
pub unsafe fn at_endpoint<'a, T, E>(
    qp: *mut ibv_qp,
    mut act: impl FnMut(&'a Endpoint) -> Result<T, E>,
) -> Result<T, E> {
    loop {
        // SAFETY: as the caller promises.
        let endpoint = unsafe { endpoint_of(qp) };
        let result = act(endpoint);
        // SAFETY: as above.
        if result.is_ok() || ptr::eq(endpoint, unsafe { endpoint_of(qp) }) {
            return result;
        }
    }
}

/// Locks the endpoint where the queue pair is. Fails if it has none, which is so in a child process
/// or after it was destroyed.
///
/// # Safety
/// As of [`endpoint_of`].
pub unsafe fn lock_with_qp<'a>(
    qp: *mut ibv_qp,
) -> Result<(&'a Endpoint, MutexGuard<'a, State>), i32> {
    let locked = |endpoint: &'a Endpoint| {
        let state = endpoint.lock();
        if state.qp.is_some() {
            Ok((endpoint, state))
        } else {
            Err(libc::EINVAL)
        }
    };
    // SAFETY: as the caller promises.
    unsafe { at_endpoint(qp, locked) }
}

/// # Safety
/// The queue pair is one of this library's, and this thread has its endpoint locked.
pub unsafe fn batch_of<'a>(qp: *mut ibv_qp) -> &'a mut Option<Batch<'static>> {
    // SAFETY: as the caller promises.
    unsafe { &mut (*qp.cast::<QpHandle>()).batch }
}
