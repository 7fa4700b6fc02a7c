//! One end of a connection: what a cm id, its queue pair and the link to the other side share.
//!
//! All of it has one lock. It is taken by the program's calls, and by the engine's thread when the
//! link has something; whoever has it moves both directions on as far as the link goes.

mod manage;
mod post;
mod receive;
mod transmit;

use super::cm::CmEvent;
use super::events::EventQueue;
use super::qp::Qp;
use super::{Handed, lock};
use crate::engine::{self, Interest};
use crate::forks;
use crate::frames::{Frame, Params, Private};
use crate::link::{Link, Tcp, TcpListener};
use rdma_sys::{ibv_qp_state, rdma_cm_event_type, rdma_cm_id};
use receive::Receiver;
use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};
use transmit::Transmitter;

pub use manage::{ConnParam, REJECTED_BY_CONSUMER};
pub use post::Batch;

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Idle,
    /// Has an address of this host, and a socket bound to it.
    Bound,
    AddrResolved,
    RouteResolved,
    Listening,
    /// The link is being opened.
    Connecting,
    RequestSent,
    /// The other side accepted, and the program does not know yet.
    ReplyReceived,
    /// A link has come to a listener, and its request has not.
    Greeting,
    Requested,
    /// Accepted, and the other side has not said that it is ready.
    Accepted,
    Established,
    DisconnectSent,
    DisconnectReceived,
    Closed,
}

/// What a connection can wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timer {
    /// The other side is to answer a request to connect, or to greet.
    Handshake,
    /// Nobody listened; perhaps somebody does now.
    Open,
    /// The other side may have a receive by now.
    NotReady,
    /// Requests that no answer can come for end.
    PeerGone,
    /// The other side is to answer that the connection ends.
    Disconnect,
    /// The connection's numbers may be used again.
    TimeWait,
    /// What is left to be said to the other side is to be gone.
    Linger,
}
const TIMERS: usize = Timer::Linger as usize + 1;

/// As long as connection management of InfiniBand tries.
const CONNECT_TIME: Duration = Duration::from_secs(60);
/// A stranger on a listening port is given so long.
const GREETING_TIME: Duration = Duration::from_secs(10);
const PEER_GONE_TIME: Duration = Duration::from_millis(500);
const TIME_WAIT: Duration = Duration::from_secs(1);
const LINGER_TIME: Duration = Duration::from_secs(5);

pub struct Endpoint {
    pub token: u64,
    me: Weak<Endpoint>,
    /// Of the process that made it.
    generation: u32,
    state: Mutex<State>,
    /// The program's id.
    pub handle: AtomicPtr<rdma_cm_id>,
    /// How often a program looked whether something has come.
    polls: AtomicU32,
    /// Events that the program got and has not acknowledged.
    pub handed: Handed,
    /// Connections that wait to be accepted, of a listener.
    waiting: AtomicUsize,
    /// The thread that is putting requests together, and so has all of it locked; 0 is none.
    composer: AtomicUsize,
    /// What is to be done that found the endpoint locked: `DEFERRED_*`. The engine's thread does it
    /// when the lock is free.
    deferred: AtomicU32,
}

/// The engine's thread found that the link has something, and does not watch it meanwhile.
const DEFERRED_LINK: u32 = 1;
/// A timer is due.
const DEFERRED_TIMER: u32 = 2;
/// No answer has come that an acknowledgement could go with.
const DEFERRED_ACK: u32 = 4;
/// The program will wait for an event.
const DEFERRED_LEASE: u32 = 8;
/// A receive was posted to the shared queue.
const DEFERRED_RECEIVE: u32 = 16;
/// A completion queue of the queue pair was overrun.
const DEFERRED_OVERRUN: u32 = 32;
/// The engine has been told of all these.
const DEFERRED_QUEUED: u32 = 1 << 31;

/// A locked endpoint.
///
/// A program may keep it locked for as long as it likes (`ibv_wr_start`), so nobody who works for
/// other connections waits for it: see [`Endpoint::lock_or_defer`].
pub struct Locked<'a> {
    endpoint: &'a Endpoint,
    /// Released before the endpoint is looked at again.
    state: ManuallyDrop<MutexGuard<'a, State>>,
}

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // SAFETY: once, and it is not used after this.
        unsafe { ManuallyDrop::drop(&mut self.state) };
        // Who defers marks first and then tries to lock; here the lock is free first, and the marks
        // are looked at then. One of both sees the other.
        fence(Ordering::SeqCst);
        if self.endpoint.deferred.load(Ordering::Relaxed) != 0 {
            self.endpoint.pass_deferred();
        }
    }
}

/// Whether a program that polls has the link to itself.
struct Lease {
    held: bool,
    /// How often it has polled without.
    asked: u32,
    /// How often it has to, to get it.
    patience: u32,
    /// How often it had polled when that was last looked at, and how often that was.
    polls: u32,
    looks: u32,
}

impl Default for Lease {
    fn default() -> Self {
        Lease {
            held: false,
            asked: 0,
            patience: PATIENCE,
            polls: 0,
            looks: 0,
        }
    }
}

/// An acknowledgement that is not sent yet: when the engine last looked before, and how often the
/// program has polled in vain since.
struct AckHeld {
    look: u32,
    polls: u32,
}

impl AckHeld {
    fn new(look: u32) -> Self {
        AckHeld { look, polls: 0 }
    }
}

/// Who has polled so often in vain since something came is not about to answer it.
pub const POLLS_OF_ANSWER: u32 = 64;
/// How often it takes to poll to be left alone, at first and at most.
pub const PATIENCE: u32 = 64;
pub const MOST_PATIENCE: u32 = 4096;
/// Who has kept a lease for so many looks may have the next one as easily as the first.
pub const LOOKS_OF_TRUST: u32 = 256;

pub struct State {
    pub phase: Phase,
    pub events: Arc<EventQueue<CmEvent>>,
    pub local: Option<SocketAddr>,
    pub remote: Option<SocketAddr>,
    pub reuse: bool,
    pub v6_only: bool,
    /// A socket that is bound and is not yet more.
    bound: Option<Tcp>,
    /// How often opening the link was tried again.
    tries: u32,
    listener: Option<TcpListener>,
    backlog: usize,
    /// Of a connection that has come: to whom.
    parent: Weak<Endpoint>,
    link: Option<Box<dyn Link>>,
    tx: Transmitter,
    rx: Receiver,
    pub qp: Option<Box<Qp>>,
    pub mine: Params,
    pub theirs: Params,
    private: Private,
    /// The program made the queue pair without the id, and moves it from state to state itself.
    pub program_moves_qp: bool,
    /// The queue pair of the other side does nothing any more.
    peer_failed: bool,
    /// The program has no id for it any more.
    abandoned: bool,
    lease: Lease,
    /// An acknowledgement waits for something to go with.
    ack_held: Option<AckHeld>,
    /// What the engine waits for.
    interest: Interest,
    registered: bool,
    deadlines: Deadlines,
}

impl Endpoint {
    pub fn new(events: Arc<EventQueue<CmEvent>>) -> Arc<Self> {
        let token = engine::new_token();
        Arc::new_cyclic(|me| Endpoint {
            token,
            me: me.clone(),
            generation: forks::generation(),
            state: Mutex::new(State {
                phase: Phase::Idle,
                events,
                local: None,
                remote: None,
                reuse: false,
                v6_only: false,
                bound: None,
                tries: 0,
                listener: None,
                backlog: 0,
                parent: Weak::new(),
                link: None,
                tx: Transmitter::default(),
                rx: Receiver::default(),
                qp: None,
                mine: Params::default(),
                theirs: Params::default(),
                private: Private::NONE,
                program_moves_qp: false,
                peer_failed: false,
                abandoned: false,
                lease: Lease::default(),
                ack_held: None,
                interest: Interest::default(),
                registered: false,
                deadlines: Deadlines {
                    token,
                    at: [const { None }; TIMERS],
                },
            }),
            handle: AtomicPtr::default(),
            polls: AtomicU32::new(0),
            handed: Handed::default(),
            waiting: AtomicUsize::new(0),
            composer: AtomicUsize::new(0),
            deferred: AtomicU32::new(0),
        })
    }

    pub fn arc(&self) -> Arc<Self> {
        // SAFETY: every endpoint is made by `new`, in an Arc, which `me` points into; as long as it is
        // borrowed somebody owns it.
        unsafe {
            Arc::increment_strong_count(self.me.as_ptr());
            Arc::from_raw(self.me.as_ptr())
        }
    }

    pub fn lock(&self) -> Locked<'_> {
        self.checked(lock(&self.state))
    }

    /// As [`Endpoint::lock`], if nobody has it.
    fn try_lock(&self) -> Option<Locked<'_>> {
        self.state.try_lock().ok().map(|state| self.checked(state))
    }

    /// As [`Endpoint::lock`], if nobody has it; otherwise the engine's thread is to do this when it
    /// is free.
    fn lock_or_defer(&self, what: u32) -> Option<Locked<'_>> {
        if let Some(state) = self.try_lock() {
            return Some(state);
        }
        self.deferred.fetch_or(what, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        // The mark stays: somebody else may have made it as well. To do it twice does no harm.
        self.try_lock()
    }

    /// As [`Endpoint::lock`], unless a program puts requests together, which may take for ever: then
    /// the engine's thread is to do this when that is over.
    fn lock_or_defer_if_composed(&self, what: u32) -> Option<Locked<'_>> {
        loop {
            if let Some(state) = self.try_lock() {
                return Some(state);
            }
            if self.composer.load(Ordering::Relaxed) != 0 {
                return self.lock_or_defer(what);
            }
            rustix::thread::sched_yield();
        }
    }

    /// Tells the engine that there is something deferred and that the lock was free just now.
    #[cold]
    fn pass_deferred(&self) {
        let before = self.deferred.fetch_or(DEFERRED_QUEUED, Ordering::SeqCst);
        if before & DEFERRED_QUEUED == 0 {
            engine::take_deferred(self.arc());
        }
    }

    /// Does what was deferred, if the lock is free; otherwise the engine is told again.
    pub fn do_deferred(&self) {
        self.deferred.fetch_and(!DEFERRED_QUEUED, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let Some(mut state) = self.try_lock() else {
            return;
        };
        let what = self.deferred.fetch_and(DEFERRED_QUEUED, Ordering::SeqCst);
        let has = |one| what & one != 0;
        if has(DEFERRED_LINK) {
            // It is not watched, whatever was told to the engine since.
            state.interest = Interest::default();
        }
        if has(DEFERRED_OVERRUN) {
            state.overrun(self);
        }
        if has(DEFERRED_TIMER) {
            for timer in Deadlines::ALL {
                state.run_timer(self, timer);
            }
        }
        if has(DEFERRED_ACK) && state.ack_held.is_some() {
            state.answer_missing();
            state.pump(self);
        }
        if has(DEFERRED_LEASE) {
            state.end_lease(self);
        }
        if has(DEFERRED_RECEIVE) {
            state.tell_receive_posted(self);
        }
        state.watch(self);
    }

    /// The state, which in a child process is without what was the parent's.
    fn checked<'a>(&'a self, mut state: MutexGuard<'a, State>) -> Locked<'a> {
        if self.generation != forks::generation() {
            state.orphan();
        }
        Locked {
            endpoint: self,
            state: ManuallyDrop::new(state),
        }
    }

    /// Deals with what the link has, as the engine's thread found, or a thread that polls. If it is
    /// locked, the latter may look again as often as it likes; the former is to stop watching the
    /// link.
    pub fn ready(&self, readable: bool, writable: bool) -> bool {
        let Some(state) = self.try_lock() else {
            return false;
        };
        self.ready_locked(state, readable, writable);
        true
    }

    /// As [`Endpoint::ready`], when the link is not watched any more.
    pub fn ready_or_deferred(&self, readable: bool, writable: bool) {
        if let Some(mut state) = self.lock_or_defer(DEFERRED_LINK) {
            state.interest = Interest::default();
            self.ready_locked(state, readable, writable);
        }
    }

    fn ready_locked(&self, mut state: Locked<'_>, readable: bool, writable: bool) {
        match state.phase {
            Phase::Listening => state.accept_links(self),
            Phase::Connecting => state.opened(self),
            _ => {
                if readable {
                    state.receive(self);
                }
                if readable && state.may_hold_ack() && engine::hold(self.arc()) {
                    state.ack_held = Some(AckHeld::new(engine::looks()));
                } else if readable || writable {
                    state.pump(self);
                }
            }
        }
        state.watch(self);
    }

    /// Deals with what the link has, if nobody is about to: for who polls. Says whether there was
    /// something.
    pub fn try_progress(&self) -> bool {
        let Some(mut state) = self.try_lock() else {
            return false;
        };
        let came = state.progress_polled(self);
        state.watch(self);
        came
    }

    /// As [`Endpoint::try_progress`]. Who goes on polling is left alone with the link, so that the
    /// engine's thread is not woken for what is dealt with here.
    pub fn try_progress_alone(&self) -> bool {
        self.polls.fetch_add(1, Ordering::Relaxed);
        let Some(mut state) = self.try_lock() else {
            return false;
        };
        let came = state.progress_polled(self);
        state.ask_for_lease(self);
        state.watch(self);
        came
    }

    /// For who has polled and found what had come before: that is a reason to be left alone with the
    /// link, but not to be so for longer, since the link was not looked at.
    pub fn count_poll(&self) {
        if let Some(mut state) = self.try_lock() {
            state.ask_for_lease(self);
            state.watch(self);
        }
    }

    /// Whether a program still looks after the link itself. If not, the engine does from now on.
    pub fn keeps_lease(&self) -> bool {
        let polls = self.polls.load(Ordering::Relaxed);
        // Whoever has it locked looks after it. It is looked at again in a millisecond.
        let Some(mut state) = self.try_lock() else {
            return true;
        };
        let lease = &mut state.lease;
        if !lease.held {
            return false;
        }
        if polls != lease.polls {
            lease.polls = polls;
            lease.looks = lease.looks.wrapping_add(1);
            if lease.looks == LOOKS_OF_TRUST {
                lease.patience = PATIENCE;
            }
        } else {
            lease.held = false;
            lease.asked = 0;
            // It was missed: the program looks at its memory, say, and polls only now and then.
            if state.receive(self) {
                let lease = &mut state.lease;
                lease.patience = (lease.patience * 8).min(MOST_PATIENCE);
            }
        }
        state.pump(self);
        state.watch(self);
        state.lease.held
    }

    /// The program will wait: the engine is to look after the link.
    ///
    /// Whoever has told the program of a completion has acknowledged the message when this returns:
    /// a program may end after that, and the other side knows that it was received.
    pub fn end_lease(&self) {
        if let Some(mut state) = self.lock_or_defer_if_composed(DEFERRED_LEASE) {
            state.end_lease(self);
        }
    }

    /// A completion queue of the queue pair was overrun.
    pub fn overrun(&self) {
        if let Some(mut state) = self.lock_or_defer(DEFERRED_OVERRUN) {
            state.overrun(self);
            state.watch(self);
        }
    }

    /// Nothing has come for an acknowledgement to go with, if it was held before that look of the
    /// engine's; otherwise it is to be seen to later, which is what this gives.
    pub fn release_ack(&self, before: u32) -> bool {
        let Some(mut state) = self.lock_or_defer(DEFERRED_ACK) else {
            return false;
        };
        let Some(held) = &state.ack_held else {
            return false;
        };
        if before.wrapping_sub(held.look) as i32 <= 0 {
            return true;
        }
        state.answer_missing();
        state.pump(self);
        state.watch(self);
        false
    }

    /// A receive was posted to a shared queue; the other side may wait for it.
    pub fn receive_posted(&self) {
        if let Some(mut state) = self.lock_or_defer(DEFERRED_RECEIVE) {
            state.tell_receive_posted(self);
            state.watch(self);
        }
    }

    /// The time of a timer has come, if it was not set anew.
    pub fn timer(&self, timer: Timer) {
        if let Some(mut state) = self.lock_or_defer(DEFERRED_TIMER) {
            state.run_timer(self, timer);
            state.watch(self);
        }
    }

    /// The program destroys its id. The other side is told what it should know of that.
    pub fn abandon(&self) {
        let mut state = self.lock();
        state.abandoned = true;
        state.deadlines.clear();
        state.bound = None;
        if state.listener.take().is_some() {
            state.deregister(self);
        }
        match state.phase {
            Phase::Established | Phase::Accepted => state.tx.control(Frame::Disconnect),
            Phase::DisconnectReceived => state.tx.control(Frame::Disconnected),
            Phase::Requested | Phase::ReplyReceived => {
                let reject = Frame::Reject(REJECTED_BY_CONSUMER, Private::NONE);
                state.tx.control(reject);
            }
            _ => {}
        }
        state.leave_backlog();
        state.rx.paused = false;
        state.phase = Phase::Closed;
        if state.link.is_some() {
            state.set_timer(self, Timer::Linger, LINGER_TIME);
            state.receive(self);
            state.pump(self);
        }
        state.watch(self);
    }
}

/// Until when something is waited for; not longer than there is an endpoint.
struct Deadlines {
    token: u64,
    at: [Option<Instant>; TIMERS],
}

impl Deadlines {
    const ALL: [Timer; TIMERS] = [
        Timer::Handshake,
        Timer::Open,
        Timer::NotReady,
        Timer::PeerGone,
        Timer::Disconnect,
        Timer::TimeWait,
        Timer::Linger,
    ];

    fn clear_one(&mut self, timer: Timer) {
        if let Some(at) = self.at[timer as usize].take() {
            engine::not_at(at, self.token, timer);
        }
    }

    fn clear(&mut self) {
        for timer in Self::ALL {
            self.clear_one(timer);
        }
    }
}

impl Drop for Deadlines {
    fn drop(&mut self) {
        self.clear();
    }
}

impl State {
    /// Does what a timer is for, if it is due.
    fn run_timer(&mut self, endpoint: &Endpoint, timer: Timer) {
        let deadline = &mut self.deadlines.at[timer as usize];
        if deadline.is_none_or(|deadline| deadline > Instant::now()) {
            return;
        }
        *deadline = None;
        match timer {
            Timer::Handshake => self.handshake_timed_out(endpoint),
            Timer::Open => self.open_again(endpoint),
            Timer::NotReady => self.try_again(endpoint),
            Timer::PeerGone => self.outstanding_failed(),
            Timer::Disconnect => self.disconnect_timed_out(endpoint),
            Timer::TimeWait => {
                self.event(endpoint, rdma_cm_event_type::RDMA_CM_EVENT_TIMEWAIT_EXIT, 0)
            }
            Timer::Linger => self.drop_link(endpoint),
        }
    }

    fn end_lease(&mut self, endpoint: &Endpoint) {
        self.lease.asked = 0;
        if std::mem::take(&mut self.lease.held) {
            if self.ack_held.is_some() {
                self.pump(endpoint);
            }
            self.watch(endpoint);
        }
    }

    /// A completion is lost: the queue pair can not go on.
    fn overrun(&mut self, endpoint: &Endpoint) {
        self.fail_qp();
        self.pump(endpoint);
    }

    fn set_timer(&mut self, endpoint: &Endpoint, timer: Timer, after: Duration) {
        let deadline = Instant::now() + after;
        self.clear_timer(timer);
        self.deadlines.at[timer as usize] = Some(deadline);
        engine::at(deadline, endpoint.token, endpoint.me.clone(), timer);
    }

    fn clear_timer(&mut self, timer: Timer) {
        self.deadlines.clear_one(timer);
    }

    fn event(&self, endpoint: &Endpoint, kind: rdma_cm_event_type::Type, status: i32) {
        if !self.abandoned {
            self.events
                .push(CmEvent::plain(kind, status, endpoint.arc()));
        }
    }

    /// Whether requests can go to the other side, and its own be carried out.
    fn is_connected(&self) -> bool {
        matches!(
            self.phase,
            Phase::Established
                | Phase::Accepted
                | Phase::DisconnectSent
                | Phase::DisconnectReceived
        )
    }

    fn ask_for_lease(&mut self, endpoint: &Endpoint) {
        if self.lease.held || self.link.is_none() {
            return;
        }
        self.lease.asked += 1;
        if self.lease.asked >= self.lease.patience {
            self.lease.held = true;
            self.lease.looks = 0;
            engine::lease(endpoint.arc());
        }
    }

    fn progress_polled(&mut self, endpoint: &Endpoint) -> bool {
        if self.link.is_none() || self.phase == Phase::Connecting {
            return false;
        }
        let came = self.receive(endpoint);
        if came && self.may_hold_ack() && (self.lease.held || engine::hold(endpoint.arc())) {
            self.ack_held = Some(AckHeld::new(engine::looks()));
            return came;
        }
        if let (false, Some(held)) = (came, &mut self.ack_held) {
            // Where the program has not this link to itself, the queue counts for all of its links.
            held.polls += u32::from(self.lease.held);
            if held.polls < POLLS_OF_ANSWER {
                return came;
            }
            self.answer_missing();
        }
        self.pump(endpoint);
        came
    }

    /// Tells the engine what to wait for from now on, and lets go of what has ended.
    pub fn watch(&mut self, endpoint: &Endpoint) {
        if self.phase == Phase::Closed
            && !self.tx.is_pending()
            && !self.tx.finished
            && let Some(link) = &mut self.link
        {
            link.finish();
            self.tx.finished = true;
        }
        let (read, write) = match self.phase {
            Phase::Connecting => (false, true),
            _ if self.lease.held => (false, false),
            _ => (!self.rx.paused, self.tx.blocked),
        };
        let interest = Interest { read, write };
        let fd = match (&self.listener, &self.link) {
            (Some(listener), _) => listener.fd(),
            (None, Some(link)) => link.fd(),
            (None, None) => return,
        };
        if interest == self.interest && self.registered {
            return;
        }
        let (before, now) = (self.interest != Interest::default(), read || write);
        if !self.registered {
            engine::add(fd, endpoint.arc(), interest);
            if !now {
                engine::suspend(fd);
            }
            self.registered = true;
        } else if before && now {
            engine::change(fd, endpoint.token, interest);
        } else if now {
            engine::resume(fd, endpoint.token, interest);
        } else {
            engine::suspend(fd);
        }
        self.interest = interest;
    }

    fn deregister(&mut self, endpoint: &Endpoint) {
        if self.registered {
            let fd = match (&self.listener, &self.link) {
                (Some(listener), _) => Some(listener.fd()),
                (None, Some(link)) => Some(link.fd()),
                (None, None) => None,
            };
            match fd {
                Some(fd) => engine::remove(fd, endpoint.token),
                None => engine::forget(endpoint.token),
            }
            self.registered = false;
        }
    }

    /// Ends the link, whatever is left on it.
    fn drop_link(&mut self, endpoint: &Endpoint) {
        self.deregister(endpoint);
        self.link = None;
        self.tx = Transmitter::default();
        self.rx = Receiver::default();
    }

    /// The link has ended, or what came on it was nonsense.
    fn lost(&mut self, endpoint: &Endpoint) {
        use rdma_cm_event_type::*;
        if self.link.is_none() {
            return;
        }
        self.drop_link(endpoint);
        self.clear_timer(Timer::Handshake);
        self.clear_timer(Timer::PeerGone);
        self.clear_timer(Timer::Disconnect);
        let phase = std::mem::replace(&mut self.phase, Phase::Closed);
        match phase {
            Phase::Connecting | Phase::RequestSent | Phase::ReplyReceived | Phase::Accepted => {
                self.fail_qp();
                self.event(endpoint, RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT);
            }
            Phase::Established => {
                // It does not come back, so nothing that is outstanding ever ends otherwise.
                self.outstanding_failed();
                self.fail_qp();
                self.event(endpoint, RDMA_CM_EVENT_DISCONNECTED, 0);
                self.set_timer(endpoint, Timer::TimeWait, TIME_WAIT);
            }
            Phase::DisconnectSent => {
                self.outstanding_failed();
                self.event(endpoint, RDMA_CM_EVENT_DISCONNECTED, 0);
                self.set_timer(endpoint, Timer::TimeWait, TIME_WAIT);
            }
            Phase::DisconnectReceived => {
                self.phase = phase;
                self.outstanding_failed();
            }
            Phase::Requested => self.phase = phase,
            _ => {}
        }
    }

    /// What waits for the other side waits in vain.
    fn outstanding_failed(&mut self) {
        self.peer_failed = true;
        if let Some(qp) = &mut self.qp {
            qp.peer_gone();
        }
    }

    fn fail_qp(&mut self) {
        if let Some(qp) = &mut self.qp
            && qp.state != ibv_qp_state::IBV_QPS_RESET
            && !qp.is_error()
        {
            qp.fail();
        }
    }

    /// In a child process: the links are the parent's, and their descriptors were closed here.
    fn orphan(&mut self) {
        let had = [self.listener.take().is_some(), self.link.take().is_some()];
        if self.bound.take().is_some() || had.contains(&true) {
            self.phase = Phase::Closed;
            self.peer_failed = true;
        }
        self.registered = false;
        self.deadlines.at = [const { None }; TIMERS];
    }

    /// No longer counts as waiting to be accepted.
    fn leave_backlog(&mut self) {
        if let Some(parent) = std::mem::take(&mut self.parent).upgrade() {
            parent.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
