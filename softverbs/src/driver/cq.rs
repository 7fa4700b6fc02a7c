//! Completion queues: entries, events, and polling.

use super::async_events::{AsyncEvent, AsyncEvents};
use super::event_queue::EventQueue;
use super::next_source::NextSource;
use crate::proto::{Completion, Opcode, Status};
use crate::reactor;
use crate::sync::{UnackedEvents, lock, try_lock};
use rdma_sys::{ibv_cq, ibv_wc, ibv_wc_flags, ibv_wc_opcode, ibv_wc_status};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// `IBV_WC_FLUSH` and `IBV_WC_ATOMIC_WRITE` of `infiniband/verbs.h`; older headers lack them.
const WC_FLUSH: ibv_wc_opcode::Type = 8;
const WC_ATOMIC_WRITE: ibv_wc_opcode::Type = 9;

/// A thread that has polled this often without result yields the processor: what it waits for may
/// be another process that has none. It takes about 50 µs to get there ...
const POLLS_BEFORE_YIELD: u32 = 128;
/// ... and yields again after so many more, which is a tenth of its time where nobody else wants it. As
/// often it looks at the deadlines, every 3 µs, and at all connections of the queue if it only asks
/// the one that is expected.
const POLLS_PER_TURN: u32 = 8;
/// Where the queue has one connection, the others of the process are looked at after so many asks: a
/// look takes as long as an ask, and the reactor's thread does it every millisecond anyway.
const ASKS_PER_LOOK: u32 = 64;

/// There is a completion in a queue that was armed.
pub struct CqEvent(pub Arc<CompletionQueue>);

/// Which completions a queue is armed for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Armed {
    No,
    Solicited,
    All,
}

/// A queue pair whose requests complete here.
pub trait CqUser: Send + Sync {
    fn token(&self) -> u64;

    /// Deals with what has come for it, unless another thread does. Returns whether there was
    /// something.
    fn progress(&self) -> bool;

    /// The queue has overrun, so completions of it may be lost.
    fn cq_failed(&self);
}

/// How far the program has polled the completions of a send queue.
#[derive(Debug, Default)]
pub struct Retired(AtomicU32);

impl Retired {
    /// The number of the first request whose place is not free.
    pub fn get(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// A completion of that request has been polled: its place and those before it are free.
    fn polled(&self, seq: u32) {
        let next = seq.wrapping_add(1);
        let newer = |now: u32| (next.wrapping_sub(now) as i32 > 0).then_some(next);
        // That it is older than what was polled before is no error.
        let _ = self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, newer);
    }

    /// All that was posted before that number is gone.
    pub fn reset(&self, next: u32) {
        self.0.store(next, Ordering::Release);
    }
}

/// A completion with what is to be known of it beside.
struct Entry {
    completion: Completion,
    qp_num: u32,
    /// Of the send queue it came from.
    retired: Option<Arc<Retired>>,
}

struct Ring {
    entries: VecDeque<Entry>,
    capacity: usize,
    armed: Armed,
}

/// The queue pairs of a completion queue.
#[derive(Default)]
struct Users {
    list: Vec<Arc<dyn CqUser>>,
    next: NextSource,
    /// How often only the expected one was asked.
    asks: u32,
}

pub struct CompletionQueue {
    ring: Mutex<Ring>,
    /// How many entries there are, to be seen without the lock.
    len: AtomicUsize,
    overrun: AtomicBool,
    /// How often it was polled without result since something came.
    empty_polls: AtomicU32,
    events: Option<Arc<EventQueue<CqEvent>>>,
    async_events: Arc<AsyncEvents>,
    pub handle: AtomicPtr<ibv_cq>,
    users: Mutex<Users>,
    pub unacked: UnackedEvents,
}

impl CompletionQueue {
    /// `None` if there is no memory for it.
    pub fn new(
        capacity: usize,
        events: Option<Arc<EventQueue<CqEvent>>>,
        async_events: Arc<AsyncEvents>,
    ) -> Option<Arc<Self>> {
        let mut entries = VecDeque::new();
        entries.try_reserve_exact(capacity).ok()?;
        Some(Arc::new(CompletionQueue {
            ring: Mutex::new(Ring {
                entries,
                capacity,
                armed: Armed::No,
            }),
            len: AtomicUsize::new(0),
            overrun: AtomicBool::new(false),
            empty_polls: AtomicU32::new(0),
            events,
            async_events,
            handle: AtomicPtr::default(),
            users: Mutex::default(),
            unacked: UnackedEvents::default(),
        }))
    }

    /// Whether queue pairs use it.
    pub fn is_used(&self) -> bool {
        !lock(&self.users).list.is_empty()
    }

    pub fn attach(&self, user: Arc<dyn CqUser>) {
        let mut users = lock(&self.users);
        users.list.push(user);
        users.next.resize(1);
    }

    pub fn detach(&self, token: u64) {
        let mut users = lock(&self.users);
        users.list.retain(|user| user.token() != token);
        let len = users.list.len();
        users.next.reset(len);
    }

    /// Whether it has failed: it takes no more completions.
    pub fn has_overrun(&self) -> bool {
        self.overrun.load(Ordering::Acquire)
    }

    /// Adds a completion. If there is no room the queue fails, and with it the queue pairs that use
    /// it: their next completions could be lost.
    pub fn push(
        self: &Arc<Self>,
        completion: Completion,
        qp_num: u32,
        retired: Option<&Arc<Retired>>,
    ) {
        let mut ring = lock(&self.ring);
        if self.has_overrun() {
            return;
        }
        if ring.entries.len() >= ring.capacity {
            self.overrun.store(true, Ordering::Release);
            drop(ring);
            self.fail();
            return;
        }
        let wanted = match ring.armed {
            Armed::No => false,
            Armed::Solicited => completion.solicited || completion.status != Status::Success,
            Armed::All => true,
        };
        ring.entries.push_back(Entry {
            completion,
            qp_num,
            retired: retired.cloned(),
        });
        self.len.store(ring.entries.len(), Ordering::Release);
        if wanted {
            ring.armed = Armed::No;
            if let Some(events) = &self.events {
                events.push(CqEvent(self.clone()));
            }
        }
    }

    fn fail(self: &Arc<Self>) {
        let handle = self.handle.load(Ordering::Acquire);
        self.async_events.report(AsyncEvent::CqError(handle));
        let users = lock(&self.users).list.clone();
        for user in users {
            user.cq_failed();
        }
        // Whoever waits for an event finds the error when it polls.
        let mut ring = lock(&self.ring);
        if ring.armed != Armed::No {
            ring.armed = Armed::No;
            if let Some(events) = &self.events {
                events.push(CqEvent(self.clone()));
            }
        }
    }

    pub fn arm(&self, armed: Armed) {
        let mut ring = lock(&self.ring);
        // All is never made less by asking for less.
        if ring.armed != Armed::All {
            ring.armed = armed;
        }
        drop(ring);
        reactor::stop_polling();
    }

    fn take(&self, out: *mut ibv_wc, n: usize) -> usize {
        if self.len.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let mut ring = lock(&self.ring);
        let n = n.min(ring.entries.len());
        for (i, entry) in ring.entries.drain(..n).enumerate() {
            if let Some(retired) = &entry.retired {
                retired.polled(entry.completion.seq);
            }
            // SAFETY: the caller of `poll` has room for as many entries as it asks for.
            unsafe { out.add(i).write(to_c(&entry.completion, entry.qp_num)) };
        }
        self.len.store(ring.entries.len(), Ordering::Release);
        n
    }

    /// Takes at most `n` completions. Returns `None` if there are none and the queue has overrun.
    ///
    /// If there are none, this thread deals with what has come for the queue's connections, so that
    /// a program that polls needs no other thread. It never waits for a lock of a queue pair.
    ///
    /// # Safety
    /// `out` has room for `n` entries.
    pub unsafe fn poll(&self, out: *mut ibv_wc, n: usize) -> Option<usize> {
        if n == 0 {
            return Some(0);
        }
        let taken = self.take(out, n);
        if taken > 0 {
            reactor::count_poll();
            return Some(taken);
        }
        let came = self.progress();
        let taken = self.take(out, n);
        self.note_poll(came || taken > 0);
        if taken == 0 && self.has_overrun() {
            return None;
        }
        Some(taken)
    }

    /// After some polls without result, others get the processor now and then.
    fn note_poll(&self, came: bool) {
        if came {
            // Relaxed: it decides only when to yield. Threads that poll one queue count together,
            // and may miscount.
            self.empty_polls.store(0, Ordering::Relaxed);
            return;
        }
        // Relaxed: as above.
        let n = self
            .empty_polls
            .fetch_add(1, Ordering::Relaxed)
            .wrapping_add(1);
        if !n.is_multiple_of(POLLS_PER_TURN) {
            return;
        }
        reactor::poll_deadlines();
        if n >= POLLS_BEFORE_YIELD {
            rustix::thread::sched_yield();
        }
    }

    /// Deals with what has come; returns whether there was something.
    fn progress(&self) -> bool {
        // Another thread that polls the queue is at it.
        let Some(mut users) = try_lock(&self.users) else {
            reactor::count_poll();
            return false;
        };
        if let Some(user) = users
            .next
            .expected()
            .and_then(|i| users.list.get(i).cloned())
        {
            users.asks = users.asks.wrapping_add(1);
            let alone = users.list.len() == 1;
            let asks = if alone { ASKS_PER_LOOK } else { POLLS_PER_TURN };
            let look = users.asks.is_multiple_of(asks);
            drop(users);
            let came = user.progress();
            if !alone {
                self.came(user.token(), came);
            }
            if came || !look {
                reactor::count_poll();
                return came;
            }
        } else {
            drop(users);
        }
        match reactor::poll_once() {
            Some(token) => self.came(token, true),
            None => false,
        }
    }

    /// Notes whether a connection had something. Returns whether it is one of this queue.
    fn came(&self, token: u64, came: bool) -> bool {
        let Some(mut users) = try_lock(&self.users) else {
            return came;
        };
        let Some(i) = users.list.iter().position(|user| user.token() == token) else {
            return false;
        };
        if came {
            users.next.came(i);
        } else {
            users.next.missed();
        }
        came
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
        ring.entries.retain(|entry| entry.qp_num != qp_num);
        self.len.store(ring.entries.len(), Ordering::Release);
    }

    /// Takes back events that nobody got, and waits for those that somebody did.
    pub fn close(self: &Arc<Self>) {
        if let Some(events) = &self.events {
            events.extract(|event| Arc::ptr_eq(&event.0, self));
        }
        self.unacked.wait();
    }
}

/// A completion as C has it.
fn to_c(completion: &Completion, qp_num: u32) -> ibv_wc {
    let status = match completion.status {
        Status::Success => ibv_wc_status::IBV_WC_SUCCESS,
        Status::LocLen => ibv_wc_status::IBV_WC_LOC_LEN_ERR,
        Status::LocQpOp => ibv_wc_status::IBV_WC_LOC_QP_OP_ERR,
        Status::LocProt => ibv_wc_status::IBV_WC_LOC_PROT_ERR,
        Status::WrFlush => ibv_wc_status::IBV_WC_WR_FLUSH_ERR,
        Status::LocAccess => ibv_wc_status::IBV_WC_LOC_ACCESS_ERR,
        Status::RemInvReq => ibv_wc_status::IBV_WC_REM_INV_REQ_ERR,
        Status::RemAccess => ibv_wc_status::IBV_WC_REM_ACCESS_ERR,
        Status::RemOp => ibv_wc_status::IBV_WC_REM_OP_ERR,
        Status::RetryExc => ibv_wc_status::IBV_WC_RETRY_EXC_ERR,
        Status::RnrRetryExc => ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR,
    };
    let opcode = match completion.opcode {
        Opcode::Send => ibv_wc_opcode::IBV_WC_SEND,
        Opcode::Write => ibv_wc_opcode::IBV_WC_RDMA_WRITE,
        Opcode::Read => ibv_wc_opcode::IBV_WC_RDMA_READ,
        Opcode::CompareSwap => ibv_wc_opcode::IBV_WC_COMP_SWAP,
        Opcode::FetchAdd => ibv_wc_opcode::IBV_WC_FETCH_ADD,
        Opcode::AtomicWrite => WC_ATOMIC_WRITE,
        Opcode::Flush => WC_FLUSH,
        Opcode::Recv => ibv_wc_opcode::IBV_WC_RECV,
        Opcode::RecvWriteImm => ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM,
    };
    ibv_wc {
        wr_id: completion.wr_id,
        status,
        opcode,
        vendor_err: 0,
        byte_len: completion.byte_len,
        imm_data_invalidated_rkey_union: rdma_sys::imm_data_invalidated_rkey_union_t {
            imm_data: completion.imm.unwrap_or(0).to_be(),
        },
        qp_num,
        src_qp: 0,
        wc_flags: completion
            .imm
            .map_or(0, |_| ibv_wc_flags::IBV_WC_WITH_IMM.0),
        pkey_index: 0,
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
    }
}
