//! Who makes progress, and when.
//!
//! All descriptors are in one epoll set, and all deadlines in one heap. Whoever has time works
//! through both: the reactor's thread, or a thread of the program that polls a completion queue.
//!
//! # The rule
//!
//! **The thread waits on the set as long as nobody polls. When it is woken and finds that the program
//! has polled `POLLS` times since it came back, or since the program last said that it will wait, it
//! backs off and leaves the set to the program. It looks again after as long as the program has gone
//! on polling, from `SHORTEST_LOOK` to `LONGEST_LOOK`, and comes back when the program has not
//! polled since, or says that it will wait.**
//!
//! The reason: a thread that is woken for what a polling program takes itself costs a processor that
//! the other side needs, two context switches a message. And nobody can know when a program will
//! stop to poll. Trusting it for as long again as it has polled costs at most as much time as it has
//! saved. No descriptor waits longer than two looks, 2 ms, for a processor that is free.
//!
//! A deadline that nobody would look at in time is not set: see [`watches_deadlines`].

use crate::process::{AtFork, ForkLocalFd, LockOrder, at_fork, without_signals};
use crate::sync::{lock, try_lock};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use std::any::Any;
use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

/// So many polls take about 25 µs. One that polls less does not save what backing off in vain costs.
const POLLS: u32 = 64;
/// When it is first looked whether the program still polls. Shorter looks cost the program more than
/// a tenth of its processor.
const SHORTEST_LOOK: Duration = Duration::from_micros(50);
/// The longest time between two looks, which bounds how long a descriptor is left alone.
const LONGEST_LOOK: Duration = Duration::from_millis(1);
/// So many descriptors are asked of the kernel in one call.
const EVENTS: usize = 64;
/// The token of the descriptor that wakes the thread. Those of sources count from 1.
const WAKE: u64 = 0;

/// Something with descriptors or deadlines.
pub trait Source: Send + Sync {
    /// A descriptor of it can be read or written. Returns false if another thread is dealing with it.
    fn ready(&self, readable: bool, writable: bool) -> bool;

    /// The time that it asked for with [`schedule`] has come.
    fn due(&self);
}

/// What of a descriptor the kernel is to tell.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Interest {
    pub read: bool,
    pub write: bool,
}

/// The deadlines. One that is no longer wanted stays until its time, when its source is asked.
struct Deadlines {
    heap: BinaryHeap<Reverse<(Instant, u64)>>,
    /// The thread sleeps until then, or longer; `None` while it is at work, or backs off.
    asleep: Option<Sleep>,
}

#[derive(Clone, Copy)]
enum Sleep {
    Until(Instant),
    Long,
}

struct Reactor {
    epoll: ForkLocalFd,
    wake: ForkLocalFd,
    /// Not in a hash table, to whose start leak checkers find no pointer.
    sources: RwLock<BTreeMap<u64, Weak<dyn Source>>>,
    deadlines: Mutex<Deadlines>,
    /// The next deadline, in nanoseconds since `start`, to be seen without the lock.
    next: AtomicU64,
    start: Instant,
    /// How often the program has polled since the thread came back or the program said that it will
    /// wait ...
    polls: AtomicU32,
    /// ... and how often it has looked at the set when it did.
    looks: AtomicU32,
    /// The thread has backed off.
    backed_off: AtomicBool,
}

const NEVER: u64 = u64::MAX;

static REACTOR: AtomicPtr<Reactor> = AtomicPtr::new(std::ptr::null_mut());
static STARTING: Mutex<()> = Mutex::new(());
thread_local! {
    static IS_REACTOR: Cell<bool> = const { Cell::new(false) };
}

/// A number for a source.
pub fn new_token() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(WAKE + 1);
    // Relaxed: only that no two are the same matters.
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Starts the reactor of this process if it does not run yet. Whoever makes a source calls this
/// first, where failure can be told.
pub fn start() -> io::Result<()> {
    static AT_FORK: Once = Once::new();
    AT_FORK.call_once(|| {
        at_fork(AtFork {
            order: LockOrder::Reactor,
            lock: || -> Box<dyn Any> { Box::new(lock(&STARTING)) },
            // A child has no thread of it. It starts its own when it needs one.
            in_child: || REACTOR.store(std::ptr::null_mut(), Ordering::Release),
        });
    });
    if running().is_some() {
        return Ok(());
    }
    let _starting = lock(&STARTING);
    if running().is_some() {
        return Ok(());
    }
    let made = Box::into_raw(Box::new(Reactor::new()?));
    // SAFETY: it is freed only where its thread could not be started.
    let reactor: &'static Reactor = unsafe { &*made };
    if let Err(error) = reactor.run_in_thread() {
        // SAFETY: nobody else has it.
        drop(unsafe { Box::from_raw(made) });
        return Err(error);
    }
    REACTOR.store(made, Ordering::Release);
    Ok(())
}

/// The reactor of this process. There is none in a child that goes on with its parent's objects.
fn running() -> Option<&'static Reactor> {
    // SAFETY: the pointer is NULL or of a reactor that is never freed.
    unsafe { REACTOR.load(Ordering::Acquire).as_ref() }
}

/// Has a source be told by that token. Nothing keeps it but its owner.
pub fn add_source(token: u64, source: Weak<dyn Source>) {
    if let Some(reactor) = running() {
        let mut sources = reactor
            .sources
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        sources.insert(token, source);
    }
}

pub fn remove_source(token: u64) {
    if let Some(reactor) = running() {
        let mut sources = reactor
            .sources
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        sources.remove(&token);
    }
}

/// Changes what the kernel tells of a descriptor. With no interest it tells nothing, not even its
/// end.
pub fn watch(fd: BorrowedFd<'_>, token: u64, before: Interest, now: Interest) {
    let Some(reactor) = running() else {
        return;
    };
    let none = Interest::default();
    let data = epoll::EventData::new_u64(token);
    // They fail only for want of kernel memory.
    let _ = if now == none {
        epoll::delete(&reactor.epoll, fd)
    } else if before == none {
        epoll::add(&reactor.epoll, fd, data, flags(now))
    } else {
        epoll::modify(&reactor.epoll, fd, data, flags(now))
    };
}

fn flags(interest: Interest) -> epoll::EventFlags {
    let mut flags = epoll::EventFlags::empty();
    flags.set(epoll::EventFlags::IN, interest.read);
    flags.set(epoll::EventFlags::OUT, interest.write);
    flags
}

/// Calls [`Source::due`] at that time.
pub fn schedule(token: u64, at: Instant) {
    let Some(reactor) = running() else {
        return;
    };
    let mut deadlines = lock(&reactor.deadlines);
    deadlines.heap.push(Reverse((at, token)));
    reactor.publish_next(&deadlines);
    let too_late = match deadlines.asleep {
        Some(Sleep::Until(until)) => at < until,
        Some(Sleep::Long) => true,
        None => false,
    };
    drop(deadlines);
    if too_late {
        reactor.wake();
    }
}

/// Whether a deadline that is set now is looked at soon after its time: by the reactor's thread, if
/// this is it, or by a program that polls.
pub fn watches_deadlines() -> bool {
    IS_REACTOR.get() || running().is_some_and(|reactor| reactor.backed_off.load(Ordering::SeqCst))
}

/// Counts a poll of the program that did not look at the set.
pub fn count_poll() {
    if let Some(reactor) = running() {
        reactor.count_poll();
    }
}

/// Deals with what is ready now, without waiting, as a program does that polls. Returns the token of
/// the last descriptor for which there was something.
pub fn poll_once() -> Option<u64> {
    let reactor = running()?;
    reactor.count_poll();
    // Relaxed: the thread compares two counts, each of which may be a moment old.
    reactor.looks.fetch_add(1, Ordering::Relaxed);
    reactor.wait(Some(Duration::ZERO))
}

/// Does what is due, as a program does that polls.
pub fn poll_deadlines() {
    if let Some(reactor) = running() {
        let next = reactor.next.load(Ordering::Acquire);
        if next != NEVER && reactor.since_start(Instant::now()) >= next {
            reactor.run_due();
        }
    }
}

/// The program will wait for an event: the thread must be there for all descriptors.
pub fn stop_polling() {
    if let Some(reactor) = running() {
        // Relaxed: a poll of another thread may write the old count again. Then the thread backs off for
        // one look.
        reactor.polls.store(0, Ordering::Relaxed);
        if reactor.backed_off.swap(false, Ordering::SeqCst) {
            reactor.wake();
        }
    }
}

impl Reactor {
    fn new() -> io::Result<Self> {
        let epoll = ForkLocalFd::new(|| epoll::create(epoll::CreateFlags::CLOEXEC))?;
        let wake = ForkLocalFd::new(|| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK))?;
        let data = epoll::EventData::new_u64(WAKE);
        epoll::add(&epoll, &wake, data, epoll::EventFlags::IN)?;
        Ok(Reactor {
            epoll,
            wake,
            sources: RwLock::default(),
            deadlines: Mutex::new(Deadlines {
                heap: BinaryHeap::new(),
                asleep: None,
            }),
            next: AtomicU64::new(NEVER),
            start: Instant::now(),
            polls: AtomicU32::new(0),
            looks: AtomicU32::new(0),
            backed_off: AtomicBool::new(false),
        })
    }

    fn run_in_thread(&'static self) -> io::Result<()> {
        let thread = std::thread::Builder::new().name("softverbs".to_string());
        without_signals(|| thread.spawn(|| self.run())).map(|_| ())
    }

    fn run(&self) {
        ask_for_short_slices();
        IS_REACTOR.set(true);
        loop {
            self.run_due();
            let timeout = self.fall_asleep();
            let ready = self.wait(timeout);
            lock(&self.deadlines).asleep = None;
            // Relaxed: a count that is a moment old does as well.
            if ready.is_some() && self.polls.load(Ordering::Relaxed) >= POLLS {
                self.back_off();
                // Relaxed: as in `stop_polling`.
                self.polls.store(0, Ordering::Relaxed);
            }
        }
    }

    fn count_poll(&self) {
        // Relaxed: threads that poll at once may miscount. It saturates, so that it does not begin anew.
        let polls = self.polls.load(Ordering::Relaxed);
        self.polls.store(polls.saturating_add(1), Ordering::Relaxed);
    }

    /// Leaves the set to the program as long as that polls.
    fn back_off(&self) {
        self.backed_off.store(true, Ordering::SeqCst);
        // Relaxed: counts that are a moment old do as well.
        let polls = || self.polls.load(Ordering::Relaxed);
        let looks = || self.looks.load(Ordering::Relaxed);
        let mut before = (polls(), looks());
        let mut look = SHORTEST_LOOK;
        while self.backed_off.load(Ordering::SeqCst) {
            let mut wake = [PollFd::new(&self.wake, PollFlags::IN)];
            if poll(&mut wake, Some(&timespec(look))).is_ok_and(|n| n > 0) {
                let _ = rustix::io::read(&self.wake, &mut [0; 8]);
            }
            self.run_due();
            let now = (polls(), looks());
            if now.0 == before.0 {
                break;
            }
            // It asked the connections that it expected something of, and left the others alone.
            if now.1 == before.1 {
                self.wait(Some(Duration::ZERO));
            }
            before = now;
            look = (look * 2).min(LONGEST_LOOK);
        }
        self.backed_off.store(false, Ordering::SeqCst);
    }

    fn since_start(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.start).as_nanos() as u64
    }

    fn publish_next(&self, deadlines: &Deadlines) {
        let next = deadlines.heap.peek();
        let next = next.map_or(NEVER, |Reverse((at, _))| self.since_start(*at));
        self.next.store(next, Ordering::Release);
    }

    /// Notes that the thread will sleep, and returns for how long at most.
    fn fall_asleep(&self) -> Option<Duration> {
        let mut deadlines = lock(&self.deadlines);
        let next = deadlines.heap.peek().map(|Reverse((at, _))| *at);
        deadlines.asleep = Some(next.map_or(Sleep::Long, Sleep::Until));
        next.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Tells the sources whose time has come.
    fn run_due(&self) {
        let now = Instant::now();
        loop {
            // If another thread is at it, it does the same.
            let Some(mut deadlines) = try_lock(&self.deadlines) else {
                return;
            };
            let Some(Reverse((at, token))) = deadlines.heap.peek().copied() else {
                return;
            };
            if at > now {
                return;
            }
            deadlines.heap.pop();
            self.publish_next(&deadlines);
            drop(deadlines);
            if let Some(source) = self.source(token) {
                source.due();
            }
        }
    }

    fn source(&self, token: u64) -> Option<Arc<dyn Source>> {
        let sources = self.sources.read().unwrap_or_else(PoisonError::into_inner);
        sources.get(&token)?.upgrade()
    }

    fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Waits for descriptors, and has their sources deal with them. Returns the last token.
    fn wait(&self, timeout: Option<Duration>) -> Option<u64> {
        let mut ready = None;
        let timeout = timeout.map(timespec);
        let mut events = [const { std::mem::MaybeUninit::uninit() }; EVENTS];
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut events, timeout.as_ref()) else {
            return None;
        };
        let mut busy = false;
        for event in events {
            use epoll::EventFlags as E;
            let (token, flags) = (event.data.u64(), event.flags);
            if token == WAKE {
                // It is meant for the thread: whoever takes it in its place leaves it asleep.
                if !IS_REACTOR.get() {
                    continue;
                }
                let _ = rustix::io::read(&self.wake, &mut [0; 8]);
            } else if let Some(source) = self.source(token) {
                let ended = flags.intersects(E::ERR | E::HUP);
                let (readable, writable) = (flags.contains(E::IN), flags.contains(E::OUT));
                busy |= !source.ready(readable || ended, writable || ended);
                ready = Some(token);
            }
        }
        if busy {
            // Whoever deals with it may wait for this processor.
            rustix::thread::sched_yield();
        }
        ready
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: time.subsec_nanos().into(),
    }
}

/// Asks the scheduler to run this thread soon after it wakes, beside threads of the program that
/// spin for what only it can bring, at the price of little time at once. Kernels before 6.12 do not
/// know that.
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
