//! What belongs to one process: its children have none of it.
//!
//! A child process neither keeps its parent's links, for whose end the other sides would wait after
//! the parent has ended, nor the locks that the parent's threads had at the moment of the fork.

use crate::sync::lock;
use std::any::Any;
use std::cell::UnsafeCell;
use std::collections::BTreeSet;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, Once};

static GENERATION: AtomicU32 = AtomicU32::new(0);
static DESCRIPTORS: Mutex<BTreeSet<RawFd>> = Mutex::new(BTreeSet::new());

/// A number that no ancestor of this process has.
pub fn generation() -> u32 {
    // Relaxed: it changes only in a new child, which has one thread then. Later threads are started
    // by that one.
    GENERATION.load(Ordering::Relaxed)
}

/// A descriptor that is closed in child processes.
pub struct ForkLocalFd {
    fd: ManuallyDrop<OwnedFd>,
    generation: u32,
}

impl ForkLocalFd {
    pub fn new(make: impl FnOnce() -> rustix::io::Result<OwnedFd>) -> io::Result<Self> {
        watch_forks();
        // No child is made in between.
        let mut all = lock(&DESCRIPTORS);
        let fd = make()?;
        all.insert(fd.as_raw_fd());
        Ok(ForkLocalFd {
            fd: ManuallyDrop::new(fd),
            generation: generation(),
        })
    }
}

impl AsFd for ForkLocalFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for ForkLocalFd {
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

/// The process-wide locks, in the order in which a fork takes them: a thread that has a later one
/// never waits for an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LockOrder {
    Exports,
    Device,
    Memory,
    Reactor,
}

/// What a module does when the process forks.
#[derive(Clone, Copy)]
pub struct AtFork {
    pub order: LockOrder,
    /// Takes the module's process-wide locks, so that what they guard is whole in the child. They
    /// are released in both processes by dropping what this returns.
    pub lock: fn() -> Box<dyn Any>,
    /// Forgets, in the child, what was the parent's. The locks are held.
    pub in_child: fn(),
}

static AT_FORK: Mutex<Vec<AtFork>> = Mutex::new(Vec::new());

/// Has a module take part in forks from now on. It must do so once.
pub fn at_fork(module: AtFork) {
    watch_forks();
    let mut modules = lock(&AT_FORK);
    modules.push(module);
    modules.sort_by_key(|module| module.order);
}

fn watch_forks() {
    static HANDLERS: Once = Once::new();
    // SAFETY: the handlers go with the library if that is unloaded.
    HANDLERS.call_once(|| unsafe {
        libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_child));
    });
}

/// What is held while a child is made.
struct Held {
    _locks: Vec<Box<dyn Any>>,
    modules: MutexGuard<'static, Vec<AtFork>>,
    descriptors: MutexGuard<'static, BTreeSet<RawFd>>,
}

struct HeldCell(UnsafeCell<Option<Held>>);
// SAFETY: only the handlers touch it, and they run one fork at a time: the lock of the modules, which
// is held from the first handler to the last, sees to that.
unsafe impl Sync for HeldCell {}
static HELD: HeldCell = HeldCell(UnsafeCell::new(None));

extern "C" fn before_fork() {
    let modules = lock(&AT_FORK);
    let locks = modules.iter().map(|module| (module.lock)()).collect();
    let held = Held {
        _locks: locks,
        modules,
        descriptors: lock(&DESCRIPTORS),
    };
    // SAFETY: as for `HeldCell`: this thread has the lock of the modules.
    unsafe { *HELD.0.get() = Some(held) };
}

extern "C" fn after_fork() {
    // SAFETY: as for `HeldCell`: this thread has the lock of the modules.
    drop(unsafe { (*HELD.0.get()).take() });
}

extern "C" fn in_child() {
    // SAFETY: as for `HeldCell`: this thread has the lock of the modules.
    if let Some(mut held) = unsafe { (*HELD.0.get()).take() } {
        for fd in std::mem::take(&mut *held.descriptors) {
            // SAFETY: the descriptors are the child's copies, which nothing else uses.
            unsafe { libc::close(fd) };
        }
        // Relaxed: as in `generation`.
        GENERATION.fetch_add(1, Ordering::Relaxed);
        for module in held.modules.iter() {
            (module.in_child)();
        }
    }
}

/// Starts a thread that gets no signals: those of the program are for the program's threads.
pub fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    // SAFETY: the sets are of this function.
    unsafe {
        let mut all = std::mem::zeroed();
        let mut before = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let started = start();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        started
    }
}
