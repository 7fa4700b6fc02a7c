//! Completion queues and their channels.

use super::alive::Alive;
use super::endpoint::{Endpoint, POLLS_OF_ANSWER};
use super::events::EventQueue;
use super::places::SendPlace;
use super::{Handed, lock};
use crate::engine;
use crate::objects::device::{AsyncEvent, Context};
use rdma_sys::{ibv_comp_channel, ibv_cq, ibv_wc};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// A completion channel as C sees it.
#[repr(C)]
pub struct CompChannel {
    pub abi: ibv_comp_channel,
    pub events: Arc<EventQueue<CqEvent>>,
}

/// There is a completion in a queue that was armed.
pub struct CqEvent(pub Arc<Cq>);

/// A completion queue as C sees it.
#[repr(C)]
pub struct CqHandle {
    pub abi: ibv_cq,
    pub cq: Arc<Cq>,
    pub _alive: Alive,
}

/// Which completions a queue is armed for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Armed {
    No,
    Solicited,
    All,
}

/// A completion, with what its request keeps of a send queue until it is polled.
struct Entry {
    wc: ibv_wc,
    place: Option<SendPlace>,
}

struct Ring {
    entries: VecDeque<Entry>,
    capacity: usize,
    armed: Armed,
}

/// A completion queue.
pub struct Cq {
    ring: Mutex<Ring>,
    /// How many entries there are, to be seen without the lock.
    len: AtomicUsize,
    /// A completion found no room: nothing comes any more.
    overrun: AtomicBool,
    /// The engine's thread is to bring the queue pairs into the error state.
    failing: AtomicBool,
    /// How often it was polled and had something.
    found: AtomicU32,
    /// How often it was polled in vain since something came.
    in_vain: AtomicU32,
    events: Option<Arc<EventQueue<CqEvent>>>,
    pub handle: AtomicPtr<ibv_cq>,
    context: *const Context,
    /// What completes here, and may be moved on by who polls.
    sources: Mutex<Sources>,
    pub handed: Handed,
}

// SAFETY: the context outlives its queues, and its methods are for all threads; the other members
// are Send and Sync.
unsafe impl Send for Cq {}
// SAFETY: as above.
unsafe impl Sync for Cq {}

/// The connections of a queue, and which of them brought something after which.
///
/// Where connections take turns, those that are expected next are asked alone, which is one call
/// instead of two.
#[derive(Default)]
struct Sources {
    list: Vec<Arc<Endpoint>>,
    /// Which two came last after the one of that place. Two, since acknowledgements and messages
    /// take turns as well.
    after: Vec<[usize; 2]>,
    last: usize,
    /// How often, of late, one of them did.
    right: u32,
    /// How often the expected ones were asked in vain.
    in_vain: u32,
}

/// So often an expectation must have been right to be acted on ...
const TRUSTED: u32 = 4;
/// ... and every so many times that is in vain all are asked.
const ALL_ASKED: u32 = 8;

impl Sources {
    fn add(&mut self, source: Arc<Endpoint>) {
        self.list.push(source);
        self.after.push([0; 2]);
        self.right = 0;
    }

    fn remove(&mut self, source: &Arc<Endpoint>) {
        if let Some(i) = self.list.iter().position(|one| Arc::ptr_eq(one, source)) {
            self.list.swap_remove(i);
            self.after.clear();
            self.after.resize(self.list.len(), [0; 2]);
            self.last = 0;
            self.right = 0;
        }
    }

    /// Who is to be asked next.
    fn expected(&self) -> Option<usize> {
        let after = self.after[self.last];
        (self.right >= TRUSTED).then(|| after[self.in_vain as usize % 2])
    }

    fn came(&mut self, source: usize) {
        let after = &mut self.after[self.last];
        if after.contains(&source) {
            self.right = (self.right + 1).min(2 * TRUSTED);
        } else {
            self.right = self.right.saturating_sub(TRUSTED);
            *after = [source, after[0]];
        }
        self.last = source;
        self.in_vain = 0;
    }
}

/// Who has polled so often in vain gives way ...
const POLLS_OF_GRACE: u32 = 128;
/// ... and does so again after so many polls more.
const POLLS_OF_TURN: u32 = 8;
/// Of so many polls that find something, one looks for more.
const FOUND_IN_TURN: u32 = 2;
/// So many connections are asked one by one whether something has come; for more, all are asked
/// with one call.
const ASKED_SINGLY: usize = 2;

impl Cq {
    pub fn new(
        context: *const Context,
        capacity: usize,
        events: Option<Arc<EventQueue<CqEvent>>>,
    ) -> Option<Arc<Self>> {
        let mut entries = VecDeque::new();
        entries.try_reserve_exact(capacity).ok()?;
        Some(Arc::new(Cq {
            ring: Mutex::new(Ring {
                entries,
                capacity,
                armed: Armed::No,
            }),
            len: AtomicUsize::new(0),
            overrun: AtomicBool::new(false),
            failing: AtomicBool::new(false),
            found: AtomicU32::new(0),
            in_vain: AtomicU32::new(0),
            events,
            handle: AtomicPtr::default(),
            context,
            sources: Mutex::default(),
            handed: Handed::default(),
        }))
    }

    /// Whether queue pairs use it.
    pub fn is_used(&self) -> bool {
        !lock(&self.sources).list.is_empty()
    }

    pub fn attach(&self, source: &Arc<Endpoint>) {
        lock(&self.sources).add(source.clone());
    }

    pub fn detach(&self, source: &Arc<Endpoint>) {
        lock(&self.sources).remove(source);
    }

    /// Adds a completion. If there is no room for it, the queue is in error from then on, and so are
    /// the queue pairs that use it.
    pub fn push(self: &Arc<Self>, wc: ibv_wc, solicited: bool, place: Option<SendPlace>) {
        let mut ring = lock(&self.ring);
        if self.overrun.load(Ordering::Relaxed) || ring.entries.len() == ring.capacity {
            // Who waits for an event is to find the error.
            let wanted = ring.armed != Armed::No;
            ring.armed = Armed::No;
            let first = !self.overrun.swap(true, Ordering::Relaxed);
            drop(ring);
            if wanted {
                self.event();
            }
            if first {
                let handle = self.handle.load(Ordering::Relaxed);
                // SAFETY: the context outlives the queue.
                unsafe { (*self.context).report(AsyncEvent::CqError(handle)) };
            }
            // Not here: this thread has one of the queue pairs locked.
            if !self.failing.swap(true, Ordering::SeqCst) {
                engine::overrun(self.clone());
            }
            return;
        }
        let wanted = match ring.armed {
            Armed::No => false,
            Armed::Solicited => solicited || wc.status != rdma_sys::ibv_wc_status::IBV_WC_SUCCESS,
            Armed::All => true,
        };
        ring.entries.push_back(Entry { wc, place });
        self.len.store(ring.entries.len(), Ordering::Release);
        if wanted {
            ring.armed = Armed::No;
            self.event();
        }
    }

    fn event(self: &Arc<Self>) {
        if let Some(events) = &self.events {
            events.push(CqEvent(self.clone()));
        }
    }

    /// Brings the queue pairs that use it into the error state.
    pub fn fail_sources(&self) {
        self.failing.store(false, Ordering::SeqCst);
        let sources = lock(&self.sources).list.clone();
        for source in sources {
            source.overrun();
        }
    }

    pub fn arm(&self, armed: Armed) {
        let mut ring = lock(&self.ring);
        // All is never made less by asking for less.
        if ring.armed != Armed::All {
            ring.armed = armed;
        }
        drop(ring);
        // Who asks for an event will not poll until it comes.
        let sources = lock(&self.sources);
        let few = sources.list.len() <= ASKED_SINGLY;
        let leased = if few {
            sources.list.clone()
        } else {
            // Few of many are left to who polls: those that have another queue with few.
            let mut leased = engine::leased();
            leased.retain(|one| sources.list.iter().any(|source| Arc::ptr_eq(source, one)));
            leased
        };
        // Not locked any more: an endpoint may be locked by a thread that polls before it lets go of it.
        drop(sources);
        for source in &leased {
            source.end_lease();
        }
        if !few {
            engine::end_turns();
        }
    }

    fn take(&self, out: *mut ibv_wc, n: usize) -> usize {
        if self.len.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let mut ring = lock(&self.ring);
        let n = n.min(ring.entries.len());
        for (i, entry) in ring.entries.drain(..n).enumerate() {
            // SAFETY: the caller has room for `n` entries.
            unsafe { out.add(i).write(entry.wc) };
            if let Some(place) = entry.place {
                place.free();
            }
        }
        self.len.store(ring.entries.len(), Ordering::Release);
        n
    }

    /// Gives at most `n` completions, or `None` after the queue was overrun.
    ///
    /// If there are none, what has come for the connections of this queue is dealt with, here and
    /// now, so that who polls needs no other thread.
    ///
    /// # Safety
    /// `out` has room for `n` entries.
    pub unsafe fn poll(&self, out: *mut ibv_wc, n: usize) -> Option<usize> {
        if n == 0 {
            return Some(0);
        }
        let mut taken = self.take(out, n);
        if taken == 0 {
            let came = self.progress();
            taken = self.take(out, n);
            self.came(came || taken > 0);
            if taken == 0 && self.overrun.load(Ordering::Relaxed) {
                return None;
            }
        } else if self
            .found
            .fetch_add(1, Ordering::Relaxed)
            .is_multiple_of(FOUND_IN_TURN)
        {
            // Who has much to find does not let the links wait until all of it is found.
            self.progress();
        } else {
            self.count_found();
        }
        Some(taken)
    }

    /// Counts polls in vain. After some, what waited for an answer of the program goes without, and
    /// others have the processor every now and then: what the program waits for may be another
    /// process that has none.
    fn came(&self, came: bool) {
        if came {
            self.in_vain.store(0, Ordering::Relaxed);
            return;
        }
        let n = self.in_vain.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        if n == POLLS_OF_ANSWER {
            engine::release_held();
        }
        if n >= POLLS_OF_GRACE && n.is_multiple_of(POLLS_OF_TURN) {
            rustix::thread::sched_yield();
        }
    }

    /// Polls that find something are polls as well: who goes on is left alone with its links.
    fn count_found(&self) {
        let sources = lock(&self.sources);
        if sources.list.len() <= ASKED_SINGLY {
            for source in &sources.list {
                source.count_poll();
            }
        } else {
            engine::note_found();
        }
    }

    /// Deals with what has come; says whether there was something.
    fn progress(&self) -> bool {
        let mut sources = lock(&self.sources);
        if sources.list.len() <= ASKED_SINGLY {
            let progress = |came, source: &Arc<Endpoint>| source.try_progress_alone() || came;
            return sources.list.iter().fold(false, progress);
        }
        if let Some(expected) = sources.expected() {
            engine::note_asked();
            if sources.list[expected].try_progress() {
                sources.came(expected);
                return true;
            }
            sources.in_vain = sources.in_vain.wrapping_add(1);
            if !sources.in_vain.is_multiple_of(ALL_ASKED) {
                return false;
            }
        }
        drop(sources);
        let Some(token) = engine::turn() else {
            return false;
        };
        let mut sources = lock(&self.sources);
        let came = sources.list.iter().position(|one| one.token == token);
        if let Some(came) = came {
            sources.came(came);
        }
        came.is_some()
    }

    /// Changes the number of entries; fails if there are more now.
    pub fn resize(&self, capacity: usize) -> Result<(), i32> {
        let mut ring = lock(&self.ring);
        if ring.entries.len() > capacity {
            return Err(libc::EINVAL);
        }
        let more = capacity.saturating_sub(ring.entries.len());
        ring.entries.try_reserve(more).map_err(|_| libc::ENOMEM)?;
        ring.capacity = capacity;
        Ok(())
    }

    /// Removes the completions of a queue pair that is destroyed.
    pub fn forget(&self, qp_num: u32) {
        let mut ring = lock(&self.ring);
        ring.entries.retain(|entry| entry.wc.qp_num != qp_num);
        self.len.store(ring.entries.len(), Ordering::Release);
    }

    /// Takes back events that nobody got, and waits for those that somebody did.
    pub fn close(self: &Arc<Self>) {
        if let Some(events) = &self.events {
            events.extract(|event| Arc::ptr_eq(&event.0, self));
        }
        self.handed.wait();
    }
}
