//! The one thread that makes progress for those who sleep or do nothing.
//!
//! It waits for all links with one epoll descriptor, and for the time of all timers. A program that
//! polls turns the same wheel itself ([`turn`]).

use crate::forks::Own;
use crate::objects::cq::Cq;
use crate::objects::endpoint::{Endpoint, Timer};
use crate::objects::endpoint::{LOOKS_OF_TRUST, MOST_PATIENCE, PATIENCE};
use crate::objects::lock;
use rustix::event::{EventfdFlags, PollFd, PollFlags, epoll, eventfd, poll};
use rustix::io::Errno;
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, Weak};
use std::time::{Duration, Instant};

/// What the engine is to tell of a link.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Interest {
    pub read: bool,
    pub write: bool,
}

struct Engine {
    epoll: Own,
    wake: Own,
    /// Those that are watched, with the descriptors of their links. A link is closed only after its
    /// endpoint was removed here.
    endpoints: RwLock<HashMap<u64, (Arc<Endpoint>, RawFd)>>,
    timers: Mutex<BTreeMap<Due, Weak<Endpoint>>>,
    /// Endpoints that a polling program looks after itself for now.
    leased: Mutex<Vec<Arc<Endpoint>>>,
    /// How often programs have turned the wheel ...
    turns: AtomicU32,
    /// ... asked only the link that was expected to have something ...
    asked: AtomicU32,
    /// ... and found what had come before, so that they did neither.
    found: AtomicU32,
    /// The thread leaves all links to them.
    away: AtomicBool,
    /// Endpoints whose acknowledgement may go with the program's answer, if that comes soon.
    held: Mutex<Vec<Arc<Endpoint>>>,
    /// How often the thread has looked whether it came.
    looks: AtomicU32,
    /// Endpoints with something to be done that was deferred, since they were locked.
    deferred: Mutex<Vec<Arc<Endpoint>>>,
    /// Completion queues that were overrun, whose queue pairs are to fail.
    overrun: Mutex<Vec<Arc<Cq>>>,
}

/// When whose timer is due.
type Due = (Instant, u64, Timer);

/// The token of the waker; endpoints count from 1.
const WAKE: u64 = 0;
const EVENTS: usize = 64;
/// How often it is looked whether those who look after endpoints themselves still do.
const LEASE_TIME: Duration = Duration::from_millis(1);
/// So long an acknowledgement waits for something to go with.
const HELD_TIME: Duration = Duration::from_micros(50);

static ENGINE: AtomicPtr<Engine> = AtomicPtr::new(std::ptr::null_mut());
thread_local! {
    static IS_ENGINE: Cell<bool> = const { Cell::new(false) };
}
static STARTING: Mutex<()> = Mutex::new(());

pub fn new_token() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(WAKE + 1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Starts the engine of this process, if it does not run yet. Whoever makes what needs it calls this
/// first, where failure can be told.
pub fn start() -> io::Result<()> {
    running().map(|_| ())
}

/// The engine of this process.
fn engine() -> &'static Engine {
    running().unwrap_or_else(|error| {
        // Only in a child process that goes on with its parent's objects, and has no descriptors.
        eprintln!("softverbs: cannot start: {error}");
        std::process::abort()
    })
}

fn running() -> io::Result<&'static Engine> {
    // SAFETY: the pointer is NULL or of an engine that is never freed.
    if let Some(engine) = unsafe { ENGINE.load(Ordering::Acquire).as_ref() } {
        return Ok(engine);
    }
    let _starting = lock(&STARTING);
    // SAFETY: as above.
    if let Some(engine) = unsafe { ENGINE.load(Ordering::Acquire).as_ref() } {
        return Ok(engine);
    }
    let made = Box::into_raw(Box::new(Engine::new()?));
    // SAFETY: it is never freed, but where it does not run.
    let engine: &'static Engine = unsafe { &*made };
    if let Err(error) = engine.run_in_thread() {
        // SAFETY: nobody has it.
        drop(unsafe { Box::from_raw(made) });
        return Err(error);
    }
    ENGINE.store(made, Ordering::Release);
    Ok(engine)
}

impl Engine {
    fn new() -> io::Result<Self> {
        let epoll = Own::new(|| epoll::create(epoll::CreateFlags::CLOEXEC))?;
        let wake = Own::new(|| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK))?;
        let data = epoll::EventData::new_u64(WAKE);
        epoll::add(&epoll, &wake, data, epoll::EventFlags::IN)?;
        Ok(Engine {
            epoll,
            wake,
            endpoints: RwLock::default(),
            timers: Mutex::default(),
            leased: Mutex::default(),
            turns: AtomicU32::new(0),
            asked: AtomicU32::new(0),
            found: AtomicU32::new(0),
            away: AtomicBool::new(false),
            held: Mutex::default(),
            looks: AtomicU32::new(0),
            deferred: Mutex::default(),
            overrun: Mutex::default(),
        })
    }

    fn run_in_thread(&'static self) -> io::Result<()> {
        // The program's signals are for the program's threads.
        // SAFETY: the sets are of this function.
        unsafe {
            let mut all = std::mem::zeroed();
            let mut before = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
            let thread = std::thread::Builder::new().name("softverbs".to_string());
            let started = thread.spawn(|| self.run());
            libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
            started.map(|_| ())
        }
    }

    fn run(&self) {
        ask_for_short_slices();
        IS_ENGINE.set(true);
        let mut next_look = Instant::now();
        let mut next_release = next_look;
        let (mut polls, mut patience) = (0, PATIENCE);
        loop {
            self.do_deferred();
            let mut timeout = self.run_timers();
            let mut at_most = |time: Duration| {
                if timeout.is_none_or(|timeout| timeout > time) {
                    timeout = Some(time);
                }
            };
            if !lock(&self.leased).is_empty() {
                let now = Instant::now();
                if now >= next_look {
                    next_look = now + LEASE_TIME;
                    self.look_after_leases();
                }
                at_most(next_look - now);
            }
            let held = !lock(&self.held).is_empty();
            if held {
                at_most(HELD_TIME);
            }
            let came = self.wait(timeout);
            if came.is_some() && self.polls().wrapping_sub(polls) >= patience {
                self.stay_away(&mut patience);
                polls = self.polls();
            }
            if held && came.is_none() {
                self.release_held(self.look());
            } else if held && Instant::now() >= next_release {
                // Where something always comes for other links, those held before the last time.
                next_release = Instant::now() + LEASE_TIME;
                self.release_held(self.look().wrapping_sub(1));
            }
        }
    }

    /// Leaves the links to programs that turn the wheel themselves, as long as that goes on.
    fn stay_away(&self, patience: &mut u32) {
        self.away.store(true, Ordering::SeqCst);
        let counts = || [&self.turns, &self.asked].map(|count| count.load(Ordering::Relaxed));
        let mut before = counts();
        let mut looks = 0;
        while self.away.load(Ordering::SeqCst) {
            let time = rustix::event::Timespec {
                tv_sec: 0,
                tv_nsec: LEASE_TIME.subsec_nanos().into(),
            };
            let mut wake = [PollFd::new(&self.wake, PollFlags::IN)];
            if let Ok(1..) = poll(&mut wake, Some(&time)) {
                self.woken();
            }
            self.do_deferred();
            self.run_timers();
            // A program that turns the wheel need not be the one that had been left alone with a link.
            self.look_after_leases();
            // Those that were held before the last look.
            self.release_held(self.look().wrapping_sub(1));
            let now = counts();
            if now == before {
                self.away.store(false, Ordering::SeqCst);
                if self.wait(Some(Duration::ZERO)).is_some() {
                    *patience = (*patience * 8).min(MOST_PATIENCE);
                }
                return;
            }
            // Links that were not expected to have something were left to nobody.
            if now[0] == before[0] {
                self.wait(Some(Duration::ZERO));
            }
            before = now;
            looks = u32::wrapping_add(looks, 1);
            if looks == LOOKS_OF_TRUST {
                *patience = PATIENCE;
            }
        }
    }

    /// How often programs have polled what has many links.
    fn polls(&self) -> u32 {
        [&self.turns, &self.asked, &self.found]
            .map(|count| count.load(Ordering::Relaxed))
            .into_iter()
            .fold(0, u32::wrapping_add)
    }

    fn look(&self) -> u32 {
        self.looks.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// Sends acknowledgements that were held before that look, for which no answer has come to go
    /// with.
    fn release_held(&self, before: u32) {
        // Its lock is not kept while others are taken.
        let mut held = std::mem::take(&mut *lock(&self.held));
        held.retain(|endpoint| endpoint.release_ack(before));
        if !held.is_empty() {
            lock(&self.held).append(&mut held);
        }
    }

    fn do_deferred(&self) {
        let deferred = std::mem::take(&mut *lock(&self.deferred));
        for endpoint in deferred {
            endpoint.do_deferred();
        }
        let overrun = std::mem::take(&mut *lock(&self.overrun));
        for cq in overrun {
            cq.fail_sources();
        }
    }

    fn look_after_leases(&self) {
        let leased = std::mem::take(&mut *lock(&self.leased));
        let kept: Vec<_> = leased
            .into_iter()
            .filter(|endpoint| endpoint.keeps_lease())
            .collect();
        lock(&self.leased).extend(kept);
    }

    /// Runs what is due, and says how long there is until the next.
    fn run_timers(&self) -> Option<Duration> {
        loop {
            let mut timers = lock(&self.timers);
            let now = Instant::now();
            let next = timers.first_entry()?;
            let (at, _, timer) = *next.key();
            if at > now {
                return Some(at - now);
            }
            let endpoint = next.remove();
            drop(timers);
            if let Some(endpoint) = endpoint.upgrade() {
                endpoint.timer(timer);
            }
        }
    }

    fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn woken(&self) {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
    }

    /// Deals with what the link of an endpoint has; says whether that was possible, or the endpoint
    /// is locked.
    fn ready(&self, token: u64, readable: bool, writable: bool) -> bool {
        let endpoint = |all: &HashMap<_, (Arc<Endpoint>, RawFd)>| {
            all.get(&token).map(|(endpoint, _)| endpoint.clone())
        };
        let Some(endpoint) = self.endpoints.read().ok().and_then(|all| endpoint(&all)) else {
            return true;
        };
        if endpoint.ready(readable, writable) {
            return true;
        }
        if !IS_ENGINE.get() {
            return false;
        }
        // It would be found ready again at once, as long as it is locked: so it is not watched.
        if let Ok(all) = self.endpoints.read()
            && let Some((_, fd)) = all.get(&token)
        {
            // SAFETY: it is open as long as the endpoint is in there.
            let _ = epoll::delete(&self.epoll, unsafe { BorrowedFd::borrow_raw(*fd) });
        }
        endpoint.ready_or_deferred(readable, writable);
        true
    }

    /// Waits for links, and deals with what they have; gives the last one for which there was
    /// something, or the token of the waker.
    fn wait(&self, timeout: Option<Duration>) -> Option<u64> {
        let timeout = timeout.map(|time| rustix::event::Timespec {
            tv_sec: time.as_secs() as i64,
            tv_nsec: time.subsec_nanos().into(),
        });
        let mut events = [const { std::mem::MaybeUninit::uninit() }; EVENTS];
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut events, timeout.as_ref()) else {
            return None;
        };
        let mut came = None;
        for event in events {
            let token = event.data.u64();
            if token == WAKE {
                // It is meant for the thread: who takes it in its place leaves it asleep.
                if IS_ENGINE.get() {
                    came = Some(token);
                    self.woken();
                }
                continue;
            }
            use epoll::EventFlags as E;
            let flags = event.flags;
            let ended = flags.intersects(E::ERR | E::HUP);
            let (readable, writable) = (flags.contains(E::IN), flags.contains(E::OUT));
            if self.ready(token, readable || ended, writable || ended) {
                came = Some(token);
            }
        }
        came
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
        endpoints.insert(token, (endpoint, fd.as_raw_fd()));
    }
    let data = epoll::EventData::new_u64(token);
    // Fails only for want of kernel memory.
    let _ = epoll::add(&engine.epoll, fd, data, flags(interest));
}

/// Stops watching for a while.
pub fn suspend(fd: BorrowedFd<'_>) {
    let _ = epoll::delete(&engine().epoll, fd);
}

/// Watches again.
pub fn resume(fd: BorrowedFd<'_>, token: u64, interest: Interest) {
    let data = epoll::EventData::new_u64(token);
    if epoll::add(&engine().epoll, fd, data, flags(interest)) == Err(Errno::EXIST) {
        change(fd, token, interest);
    }
}

pub fn change(fd: BorrowedFd<'_>, token: u64, interest: Interest) {
    let data = epoll::EventData::new_u64(token);
    let _ = epoll::modify(&engine().epoll, fd, data, flags(interest));
}

pub fn remove(fd: BorrowedFd<'_>, token: u64) {
    forget(token);
    let _ = epoll::delete(&engine().epoll, fd);
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
pub fn at(at: Instant, token: u64, endpoint: Weak<Endpoint>, timer: Timer) {
    let engine = engine();
    let mut timers = lock(&engine.timers);
    let sooner = timers.keys().next().is_none_or(|(first, ..)| at < *first);
    timers.insert((at, token, timer), endpoint);
    drop(timers);
    if sooner {
        engine.wake();
    }
}

/// Does not call it then, and keeps nothing of the endpoint until then.
pub fn not_at(at: Instant, token: u64, timer: Timer) {
    // SAFETY: the pointer is NULL or of an engine that is never freed.
    if let Some(engine) = unsafe { ENGINE.load(Ordering::Acquire).as_ref() } {
        lock(&engine.timers).remove(&(at, token, timer));
    }
}

/// Deals with what has come for any link, here and now, without waiting.
///
/// Gives the last of those for which something had.
pub fn turn() -> Option<u64> {
    let engine = engine();
    engine.turns.fetch_add(1, Ordering::Relaxed);
    engine.wait(Some(Duration::ZERO))
}

/// Sends acknowledgements that wait: the program that polls has nothing for them to go with.
pub fn release_held() {
    let engine = engine();
    engine.release_held(engine.looks.load(Ordering::Relaxed).wrapping_add(1));
}

/// How often the thread has looked after acknowledgements that wait.
pub fn looks() -> u32 {
    engine().looks.load(Ordering::Relaxed)
}

/// Counts a poll of who asked only the link that was expected to have something.
pub fn note_asked() {
    engine().asked.fetch_add(1, Ordering::Relaxed);
}

/// Counts a poll of who found what had come before.
pub fn note_found() {
    engine().found.fetch_add(1, Ordering::Relaxed);
}

/// Endpoints that a polling program looks after itself for now.
pub fn leased() -> Vec<Arc<Endpoint>> {
    lock(&engine().leased).clone()
}

/// Who turned the wheel will wait: the thread is to be there for all links.
pub fn end_turns() {
    let engine = engine();
    if engine.away.swap(false, Ordering::SeqCst) {
        engine.wake();
    }
}

/// Leaves an endpoint to who polls it, as long as that goes on.
pub fn lease(endpoint: Arc<Endpoint>) {
    let engine = engine();
    let mut leased = lock(&engine.leased);
    leased.push(endpoint);
    if leased.len() == 1 {
        engine.wake();
    }
}

/// Has the thread do what was deferred, since the endpoint was locked.
pub fn take_deferred(endpoint: Arc<Endpoint>) {
    let engine = engine();
    lock(&engine.deferred).push(endpoint);
    engine.wake();
}

/// Has the thread bring the queue pairs of a queue into the error state.
pub fn overrun(cq: Arc<Cq>) {
    let engine = engine();
    lock(&engine.overrun).push(cq);
    engine.wake();
}

/// Notes that an endpoint owes an acknowledgement, if the thread will look after it soon.
pub fn hold(endpoint: Arc<Endpoint>) -> bool {
    let engine = engine();
    let soon = || IS_ENGINE.get() || engine.away.load(Ordering::SeqCst);
    if !soon() {
        return false;
    }
    lock(&engine.held).push(endpoint);
    // It may have come back meanwhile, and wait.
    if !soon() {
        engine.wake();
    }
    true
}

/// Keeps the engine from being started.
pub fn hold_start() -> MutexGuard<'static, ()> {
    lock(&STARTING)
}

/// In a child process, which has no thread of the engine: leaves the parent's, and starts one of
/// its own when it is needed.
pub fn forget_parents() {
    ENGINE.store(std::ptr::null_mut(), Ordering::Release);
}
