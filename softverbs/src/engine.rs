//! The one thread that makes progress for those who sleep or do nothing.
//!
//! It waits for all links with one epoll descriptor, and for the time of all timers. A program that
//! polls turns the same wheel itself ([`turn`]).

use crate::objects::endpoint::{Endpoint, Timer};
use crate::objects::lock;
use rustix::event::{EventfdFlags, epoll, eventfd};
use std::cell::UnsafeCell;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, Weak};
use std::time::Instant;

/// What the engine is to tell of a link.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Interest {
    pub read: bool,
    pub write: bool,
}

struct Engine {
    epoll: OwnedFd,
    wake: OwnedFd,
    endpoints: RwLock<HashMap<u64, Arc<Endpoint>>>,
    timers: Mutex<BinaryHeap<Due>>,
    /// Descriptors that a child process must not keep.
    fds: Mutex<BTreeSet<RawFd>>,
}

struct Due {
    at: Instant,
    endpoint: Weak<Endpoint>,
    timer: Timer,
}

impl Ord for Due {
    // The earliest is the greatest.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.at.cmp(&self.at)
    }
}
impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}
impl Eq for Due {}

/// The token of the waker; endpoints count from 1.
const WAKE: u64 = 0;
const EVENTS: usize = 64;

static ENGINE: AtomicPtr<Engine> = AtomicPtr::new(std::ptr::null_mut());
static GENERATION: AtomicU32 = AtomicU32::new(0);
static STARTING: Mutex<()> = Mutex::new(());

pub fn new_token() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(WAKE + 1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Tells a process from those it was forked from.
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// The engine of this process, started when it is first needed.
fn engine() -> &'static Engine {
    // SAFETY: the pointer is NULL or of an engine that is never freed.
    if let Some(engine) = unsafe { ENGINE.load(Ordering::Acquire).as_ref() } {
        return engine;
    }
    let _starting = lock(&STARTING);
    // SAFETY: as above.
    if let Some(engine) = unsafe { ENGINE.load(Ordering::Acquire).as_ref() } {
        return engine;
    }
    let engine = Box::leak(Box::new(Engine::new()));
    ENGINE.store(engine, Ordering::Release);
    static FORKS: std::sync::Once = std::sync::Once::new();
    // SAFETY: the handlers are functions of this library, which is never unloaded.
    FORKS.call_once(|| unsafe {
        libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_child));
    });
    engine.start();
    engine
}

impl Engine {
    fn new() -> Self {
        // Without descriptors nothing works, and nobody could be told here: what is then missing
        // is missed by those who wait, so this is the one place that gives up.
        let open = || -> rustix::io::Result<(OwnedFd, OwnedFd)> {
            let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            let data = epoll::EventData::new_u64(WAKE);
            epoll::add(&poll, &wake, data, epoll::EventFlags::IN)?;
            Ok((poll, wake))
        };
        let (epoll, wake) = match open() {
            Ok(fds) => fds,
            Err(error) => {
                eprintln!("softverbs: cannot start: {error}");
                std::process::abort();
            }
        };
        let fds = BTreeSet::from([epoll.as_raw_fd(), wake.as_raw_fd()]);
        Engine {
            epoll,
            wake,
            endpoints: RwLock::default(),
            timers: Mutex::default(),
            fds: Mutex::new(fds),
        }
    }

    fn start(&'static self) {
        // The program's signals are for the program's threads.
        // SAFETY: the sets are of this function.
        unsafe {
            let mut all = std::mem::zeroed();
            let mut before = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
            let thread = std::thread::Builder::new().name("softverbs".to_string());
            if let Err(error) = thread.spawn(|| self.run()) {
                eprintln!("softverbs: cannot start a thread: {error}");
                std::process::abort();
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        }
    }

    fn run(&self) {
        ask_for_short_slices();
        loop {
            let timeout = self.run_timers();
            self.wait(timeout.as_ref());
        }
    }

    /// Runs what is due, and says how long there is until the next.
    fn run_timers(&self) -> Option<rustix::event::Timespec> {
        loop {
            let mut timers = lock(&self.timers);
            let now = Instant::now();
            let next = timers.peek()?.at;
            if next > now {
                let left = next - now;
                return Some(rustix::event::Timespec {
                    tv_sec: left.as_secs() as i64,
                    tv_nsec: left.subsec_nanos().into(),
                });
            }
            let due = timers.pop()?;
            drop(timers);
            if let Some(endpoint) = due.endpoint.upgrade() {
                endpoint.timer(due.timer);
            }
        }
    }

    /// Waits for links, and deals with what they have.
    fn wait(&self, timeout: Option<&rustix::event::Timespec>) {
        let mut events = [const { std::mem::MaybeUninit::uninit() }; EVENTS];
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut events, timeout) else {
            return;
        };
        for event in events {
            let token = event.data.u64();
            if token == WAKE {
                let _ = rustix::io::read(&self.wake, &mut [0; 8]);
                continue;
            }
            let endpoint = self.endpoints.read().ok().and_then(|all| all.get(&token).cloned());
            if let Some(endpoint) = endpoint {
                use epoll::EventFlags as E;
                let flags = event.flags;
                let ended = flags.intersects(E::ERR | E::HUP);
                endpoint.ready(flags.contains(E::IN) || ended, flags.contains(E::OUT) || ended);
            }
        }
    }
}

/// Has the scheduler run this thread soon after it wakes, beside program threads that spin for
/// what only it can bring: it asks for little time at once. Kernels before 6.12 do not know that.
fn ask_for_short_slices() {
    const SLICE_NS: u64 = 100_000; // the least there is
    /// `struct sched_attr`, `linux/sched/types.h`, as it was first.
    #[repr(C)]
    #[derive(Default)]
    struct Attr {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    let mut attr = Attr::default();
    // SAFETY: the kernel reads and writes a structure of the size it is told.
    unsafe {
        let size = size_of::<Attr>() as u32;
        if libc::syscall(libc::SYS_sched_getattr, 0, &mut attr, size, 0) == 0 {
            attr.size = size;
            attr.runtime = SLICE_NS;
            libc::syscall(libc::SYS_sched_setattr, 0, &attr, 0);
        }
    }
}

fn flags(interest: Interest) -> epoll::EventFlags {
    let mut flags = epoll::EventFlags::empty();
    flags.set(epoll::EventFlags::IN, interest.read);
    flags.set(epoll::EventFlags::OUT, interest.write);
    flags
}

/// Begins to watch the link of an endpoint.
pub fn add(fd: BorrowedFd<'_>, endpoint: Arc<Endpoint>, interest: Interest) {
    let engine = engine();
    let token = endpoint.token;
    if let Ok(mut endpoints) = engine.endpoints.write() {
        endpoints.insert(token, endpoint);
    }
    lock(&engine.fds).insert(fd.as_raw_fd());
    let data = epoll::EventData::new_u64(token);
    // Fails only for want of kernel memory.
    let _ = epoll::add(&engine.epoll, fd, data, flags(interest));
}

pub fn change(fd: BorrowedFd<'_>, token: u64, interest: Interest) {
    let data = epoll::EventData::new_u64(token);
    let _ = epoll::modify(&engine().epoll, fd, data, flags(interest));
}

pub fn remove(fd: BorrowedFd<'_>, token: u64) {
    let engine = engine();
    let _ = epoll::delete(&engine.epoll, fd);
    lock(&engine.fds).remove(&fd.as_raw_fd());
    forget(token);
}

/// Lets go of an endpoint whose descriptor is closed already.
pub fn forget(token: u64) {
    let removed = match engine().endpoints.write() {
        Ok(mut endpoints) => endpoints.remove(&token),
        Err(_) => None,
    };
    drop(removed);
}

/// Calls an endpoint's timer at that time.
pub fn at(at: Instant, endpoint: Weak<Endpoint>, timer: Timer) {
    let engine = engine();
    let mut timers = lock(&engine.timers);
    let sooner = timers.peek().is_none_or(|first| at < first.at);
    timers.push(Due {
        at,
        endpoint,
        timer,
    });
    drop(timers);
    if sooner {
        let _ = rustix::io::write(&engine.wake, &1u64.to_ne_bytes());
    }
}

/// Deals with what has come for any link, here and now, without waiting.
pub fn turn() {
    engine().wait(Some(&rustix::event::Timespec::default()));
}

// A child process has no thread of the engine, and must not keep the links open: the other sides
// would wait for them after its parent has ended. It starts anew with an engine of its own.

/// The locks that are held while a process forks, so that what they guard is whole in the child.
static HELD: Held = Held(UnsafeCell::new(None));
struct Held(UnsafeCell<Option<(MutexGuard<'static, ()>, Option<MutexGuard<'static, BTreeSet<RawFd>>>)>>);
// SAFETY: only the handlers touch it, and they run one fork at a time: the first lock sees to that.
unsafe impl Sync for Held {}

extern "C" fn before_fork() {
    let starting = lock(&STARTING);
    // SAFETY: NULL or an engine that is never freed.
    let engine = unsafe { ENGINE.load(Ordering::Acquire).as_ref() };
    let fds = engine.map(|engine| lock(&engine.fds));
    // SAFETY: as for `Held`.
    unsafe { *HELD.0.get() = Some((starting, fds)) };
}

extern "C" fn after_fork() {
    // SAFETY: as for `Held`.
    drop(unsafe { (*HELD.0.get()).take() });
}

extern "C" fn in_child() {
    // SAFETY: as for `Held`; the descriptors are the child's copies, which nothing else uses.
    unsafe {
        if let Some((starting, fds)) = (*HELD.0.get()).take() {
            for fd in fds.iter().flat_map(|fds| fds.iter()) {
                libc::close(*fd);
            }
            ENGINE.store(std::ptr::null_mut(), Ordering::Release);
            GENERATION.fetch_add(1, Ordering::Relaxed);
            drop((starting, fds));
        }
    }
}
