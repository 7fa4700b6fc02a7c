//! What a process has to itself: a child of it neither keeps its links, for whose end the other
//! sides would wait after its parent has ended, nor waits for the locks that its parent's threads
//! had. It starts anew, with an engine of its own.

use crate::objects::{device, lock, memory};
use crate::{engine, exports};
use std::cell::UnsafeCell;
use std::collections::BTreeSet;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, Once};

static GENERATION: AtomicU32 = AtomicU32::new(0);
static DESCRIPTORS: Mutex<BTreeSet<RawFd>> = Mutex::new(BTreeSet::new());

/// Tells a process from those it was forked from.
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// A descriptor that child processes do not keep.
pub struct Own {
    fd: ManuallyDrop<OwnedFd>,
    generation: u32,
}

impl Own {
    pub fn new(make: impl FnOnce() -> rustix::io::Result<OwnedFd>) -> io::Result<Self> {
        watch();
        // No child is made in between.
        let mut all = lock(&DESCRIPTORS);
        let fd = make()?;
        all.insert(fd.as_raw_fd());
        Ok(Own {
            fd: ManuallyDrop::new(fd),
            generation: generation(),
        })
    }
}

impl AsFd for Own {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // In a child it is closed already, and its number may be another one's.
        if self.generation != generation() {
            return;
        }
        let mut all = lock(&DESCRIPTORS);
        all.remove(&self.fd.as_raw_fd());
        // SAFETY: it is dropped once, here.
        unsafe { ManuallyDrop::drop(&mut self.fd) };
    }
}

/// Sees to the children that are made from now on.
pub fn watch() {
    static HANDLERS: Once = Once::new();
    // SAFETY: the handlers go with the library, if that is unloaded.
    HANDLERS.call_once(|| unsafe {
        libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_child));
    });
}

/// What is held while a child is made, so that what it guards is whole there. The locks are taken
/// in this order: who has a later one does not wait for an earlier one.
struct Held {
    _exports: exports::Locks,
    _device: device::Locks,
    _memory: memory::Locks,
    _starting: MutexGuard<'static, ()>,
    descriptors: MutexGuard<'static, BTreeSet<RawFd>>,
}

struct Place(UnsafeCell<Option<Held>>);
// SAFETY: only the handlers touch it, and they run one fork at a time: the locks see to that.
unsafe impl Sync for Place {}
static HELD: Place = Place(UnsafeCell::new(None));

extern "C" fn before_fork() {
    let held = Held {
        _exports: exports::Locks::take(),
        _device: device::Locks::take(),
        _memory: memory::Locks::take(),
        _starting: engine::hold_start(),
        descriptors: lock(&DESCRIPTORS),
    };
    // SAFETY: as for `Place`.
    unsafe { *HELD.0.get() = Some(held) };
}

extern "C" fn after_fork() {
    // SAFETY: as for `Place`.
    drop(unsafe { (*HELD.0.get()).take() });
}

extern "C" fn in_child() {
    // SAFETY: as for `Place`.
    if let Some(mut held) = unsafe { (*HELD.0.get()).take() } {
        for fd in std::mem::take(&mut *held.descriptors) {
            // SAFETY: the descriptors are the child's copies, which nothing else uses.
            unsafe { libc::close(fd) };
        }
        engine::forget_parents();
        GENERATION.fetch_add(1, Ordering::Relaxed);
    }
}
