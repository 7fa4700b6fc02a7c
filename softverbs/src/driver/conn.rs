//! One end of a connection: the protocol, the link and the memory that bytes move between, under one
//! lock.
//!
//! Whoever has the lock, a call of the program or the reactor's thread, moves both directions on as
//! far as the link goes. Threads that look after more than one connection never wait for it: they
//! note what is to be done (`Conn::poke`), and whoever has the lock does it when it lets go.

use super::async_events::{AsyncEvent, AsyncEvents};
use super::cq::{CompletionQueue, CqUser, Retired};
use super::flush::{self, Job};
use super::move_bytes::Mover;
use super::orders::{CarriedOut, carry_out, persist};
use super::srq::{SharedReceiveQueue, SrqUser};
use super::transfer::{read, write};
use crate::diagnostic::{self, Peer};
use crate::link::{Link, Tcp};
use crate::memory::{Domain, Hold};
use crate::process::generation;
use crate::proto::frames::{Nak, Params, Private, Remote};
use crate::proto::{
    Cause, Completion, Connection, Event, Host, LinkState, Memory, Order, Phase, Qp, RecvWqe,
    Right, Sge,
};
use crate::reactor::{self, Interest, Source};
use crate::sync::{lock, try_lock};
use rdma_sys::ibv_qp;
use std::io::{self, ErrorKind};
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Instant;

/// So much moves at most each time that a connection gets its turn, so that others get theirs: about
/// 0.2 ms.
const TURN: usize = 1024 * 1024;
/// What is to be done by whoever has the lock.
mod todo {
    pub const READ: u8 = 1;
    pub const WRITE: u8 = 1 << 1;
    pub const DUE: u8 = 1 << 2;
    pub const RECEIVE_POSTED: u8 = 1 << 3;
    pub const CQ_FAILED: u8 = 1 << 4;
}

/// Whom a connection tells what happens: a cm id, or the id of a listener for one that has just come.
pub trait Owner: Send + Sync {
    /// The connection is locked.
    fn event(&self, event: Event);

    /// Takes a request to connect, or does not. The connection is locked, and has another owner
    /// afterwards if the request is taken.
    fn offer(&self, request: Request<'_>) -> Option<Weak<dyn Owner>>;

    /// The connection, which had the queue pair that another is made with, goes on as this one.
    fn moved(&self, to: &Arc<Conn>);
}

/// A request to connect.
pub struct Request<'a> {
    pub conn: Arc<Conn>,
    /// Of this side and of the other.
    pub addresses: Option<(SocketAddr, SocketAddr)>,
    pub params: &'a Params,
    pub private: &'a Private,
}

/// What a queue pair works on.
pub struct Queues {
    pub domain: Arc<Domain>,
    pub send_cq: Arc<CompletionQueue>,
    pub recv_cq: Arc<CompletionQueue>,
    pub srq: Option<Arc<SharedReceiveQueue>>,
    /// How far the program has polled the completions of the send queue.
    pub retired: Arc<Retired>,
    /// Every request asks for a completion.
    pub sq_sig_all: bool,
    pub num: u32,
    pub handle: AtomicPtr<ibv_qp>,
    pub async_events: Arc<AsyncEvents>,
}

/// How the link is opened.
pub struct Opening {
    /// The socket that was bound, the first time.
    bound: Option<Tcp>,
    local: SocketAddr,
    remote: SocketAddr,
    v6_only: bool,
}

impl Opening {
    pub fn new(bound: Tcp, local: SocketAddr, remote: SocketAddr, v6_only: bool) -> Self {
        Opening {
            bound: Some(bound),
            local,
            remote,
            v6_only,
        }
    }
}

/// Completions and events that the program has not been told of.
struct News {
    completions: Vec<Completion>,
    events: Vec<Event>,
}

impl News {
    /// So many wait together; more are told of before.
    const MOST: usize = 64;

    fn new() -> Self {
        News {
            completions: Vec::with_capacity(Self::MOST),
            events: Vec::with_capacity(2),
        }
    }

    fn tell_completions(&mut self, queues: Option<&Queues>) {
        for completion in self.completions.drain(..) {
            if let Some(queues) = queues {
                queues.complete(completion);
            }
        }
    }

    fn tell(&mut self, queues: Option<&Queues>, owner: Option<&Weak<dyn Owner>>) {
        self.tell_completions(queues);
        if self.events.is_empty() {
            return;
        }
        let owner = owner.and_then(Weak::upgrade);
        for event in self.events.drain(..) {
            if let Some(owner) = &owner {
                owner.event(event);
            }
        }
    }
}

impl Queues {
    fn complete(&self, completion: Completion) {
        if completion.opcode.is_recv() {
            self.recv_cq.push(completion, self.num, None);
        } else {
            self.send_cq.push(completion, self.num, Some(&self.retired));
        }
    }
}

pub struct Conn {
    token: u64,
    me: Weak<Conn>,
    /// Of the process that made it.
    generation: u32,
    state: Mutex<State>,
    todo: AtomicU8,
}

pub struct State {
    proto: Connection,
    queues: Option<Arc<Queues>>,
    owner: Option<Weak<dyn Owner>>,
    link: Option<Box<dyn Link>>,
    opening: Option<Opening>,
    /// Both ends of the link, of a connection that has come.
    addresses: Option<(SocketAddr, SocketAddr)>,
    /// Counts as one that has come to a listener and has not asked for a connection.
    stranger: Option<Arc<()>>,
    /// The link takes no more for now.
    blocked: bool,
    /// The link has been told that nothing follows.
    finished: bool,
    /// What the reactor tells of the link.
    interest: Interest,
    /// The times that the reactor will call at, each earlier than the one before.
    wakes: Vec<Instant>,
    holds: Vec<Hold>,
    /// What the program is to be told once what goes to the other side with it has been sent: a
    /// program that has been told may end at once.
    news: News,
    /// What a flush that is under way makes persistent, with its number.
    flush: Option<(u64, Option<Hold>)>,
    flushes: u64,
    /// As long as there is a link the connection lives, whoever has forgotten it.
    keep: Option<Arc<Conn>>,
}

impl Conn {
    pub fn new() -> Arc<Self> {
        let token = reactor::new_token();
        let conn = Arc::new_cyclic(|me| Conn {
            token,
            me: me.clone(),
            generation: generation(),
            state: Mutex::new(State {
                proto: Connection::default(),
                queues: None,
                owner: None,
                link: None,
                opening: None,
                addresses: None,
                stranger: None,
                blocked: false,
                finished: false,
                interest: Interest::default(),
                wakes: Vec::with_capacity(4),
                holds: Vec::with_capacity(crate::proto::MAX_SGE),
                news: News::new(),
                flush: None,
                flushes: 0,
                keep: None,
            }),
            todo: AtomicU8::new(0),
        });
        let source: Weak<dyn Source> = conn.me.clone() as Weak<dyn Source>;
        reactor::add_source(token, source);
        conn
    }

    pub fn token(&self) -> u64 {
        self.token
    }

    pub fn weak(&self) -> Weak<Conn> {
        self.me.clone()
    }

    pub fn lock(&self) -> Guard<'_> {
        self.guard(lock(&self.state))
    }

    /// As [`Conn::lock`], if nobody has it.
    fn try_lock(&self) -> Option<Guard<'_>> {
        try_lock(&self.state).map(|state| self.guard(state))
    }

    fn guard<'a>(&'a self, mut state: MutexGuard<'a, State>) -> Guard<'a> {
        // In a child process the connection is its parent's.
        if self.generation != generation() {
            state.orphan();
        }
        Guard {
            conn: self,
            unchanged: false,
            state,
            after: AfterUnlock {
                conn: self,
                released: None,
            },
        }
    }

    /// Has that done: now, or by the thread that has the lock when it lets go. Returns false for the
    /// latter.
    fn poke(&self, todo: u8) -> bool {
        self.todo.fetch_or(todo, Ordering::SeqCst);
        // Either the lock is seen to be free here, or what is to be done is seen by whoever frees it.
        fence(Ordering::SeqCst);
        match self.try_lock() {
            Some(mut guard) => {
                guard.do_todo();
                true
            }
            None => false,
        }
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        reactor::remove_source(self.token);
    }
}

impl Source for Conn {
    fn ready(&self, readable: bool, writable: bool) -> bool {
        let read = if readable { todo::READ } else { 0 };
        let write = if writable { todo::WRITE } else { 0 };
        self.poke(read | write)
    }

    fn due(&self) {
        self.poke(todo::DUE);
    }
}

impl CqUser for Conn {
    fn token(&self) -> u64 {
        self.token
    }

    fn progress(&self) -> bool {
        let Some(mut guard) = self.try_lock() else {
            return false;
        };
        let Guard { conn, state, .. } = &mut guard;
        if state.proto.link() != LinkState::Open {
            return false;
        }
        let came = state.receive(conn);
        match came {
            Some(now) => state.transmit(conn, now),
            None if state.blocked => state.transmit(conn, Instant::now()),
            None => guard.unchanged = true,
        }
        came.is_some()
    }

    fn cq_failed(&self) {
        self.poke(todo::CQ_FAILED);
    }
}

impl SrqUser for Conn {
    fn receive_posted(&self) {
        self.poke(todo::RECEIVE_POSTED);
    }
}

impl Job for Conn {
    /// Makes persistent what a flush is to, without the lock.
    fn run(&self) {
        let Some((number, hold)) = self.lock().state.take_flush() else {
            return;
        };
        let result = persist(Some(&hold));
        drop(hold);
        let mut guard = self.lock();
        let Guard { conn, state, .. } = &mut guard;
        if state.flush.as_ref().is_none_or(|(now, _)| *now != number) {
            return;
        }
        state.flush = None;
        let now = Instant::now();
        let (proto, mut host) = state.parts(conn);
        proto.done(result, now, &mut host);
        state.handle(conn, now);
        state.transmit(conn, now);
    }
}

/// The lock. Letting go of it tells the reactor what to wait for from now on, and does what was to be
/// done meanwhile.
pub struct Guard<'a> {
    conn: &'a Conn,
    /// Nothing is to be told to the reactor or the program.
    unchanged: bool,
    state: MutexGuard<'a, State>,
    // After the lock.
    after: AfterUnlock<'a>,
}

struct AfterUnlock<'a> {
    conn: &'a Conn,
    /// Perhaps the last that had the connection, which must not go while it is locked.
    released: Option<Arc<Conn>>,
}

impl Deref for Guard<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Guard<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if !self.unchanged {
            self.after.released = self.state.settle(self.conn);
        }
    }
}

impl Drop for AfterUnlock<'_> {
    fn drop(&mut self) {
        fence(Ordering::SeqCst);
        if self.conn.todo.load(Ordering::SeqCst) != 0 {
            self.conn.poke(0);
        }
    }
}

impl<'a> Guard<'a> {
    fn do_todo(&mut self) {
        let todo = self.conn.todo.swap(0, Ordering::SeqCst);
        if todo == 0 {
            return;
        }
        let conn = self.conn;
        let state = &mut *self.state;
        let now = Instant::now();
        let has = |bit| todo & bit != 0;
        if has(todo::DUE) {
            state.due(conn, now);
        }
        if has(todo::RECEIVE_POSTED) {
            state.proto.receive_posted();
        }
        if has(todo::CQ_FAILED) {
            let (proto, mut host) = state.parts(conn);
            proto.fail_qp(&mut host);
        }
        if has(todo::WRITE) && state.opening.is_some() {
            state.opened(conn, now);
        }
        if has(todo::READ) {
            state.receive(conn);
        }
        state.transmit(conn, now);
    }

    /// Calls into the protocol.
    pub fn call<T>(&mut self, call: impl FnOnce(&mut Connection, &mut Env<'_>) -> T) -> T {
        let (proto, mut env) = self.state.parts(self.conn);
        call(proto, &mut env)
    }

    /// Calls into the protocol, and sends what comes of it.
    pub fn with<T>(&mut self, call: impl FnOnce(&mut Connection, Instant, &mut Env<'_>) -> T) -> T {
        let now = Instant::now();
        let conn = self.conn;
        let state = &mut *self.state;
        let (proto, mut env) = state.parts(conn);
        let result = call(proto, now, &mut env);
        // What had come before the call may be an order.
        if state.proto.order().is_some() {
            state.handle(conn, now);
        }
        state.transmit(conn, now);
        result
    }

    /// Begins to connect.
    pub fn connect(
        &mut self,
        owner: Weak<dyn Owner>,
        opening: Opening,
        params: Params,
        private: Private,
        program_moves_qp: bool,
    ) {
        self.state.owner = Some(owner);
        self.state.finished = false;
        self.state.addresses = Some((opening.local, opening.remote));
        self.state.opening = Some(opening);
        let now = Instant::now();
        self.state
            .proto
            .connect(params, private, program_moves_qp, now);
    }

    /// A link has come to the listener that is the owner.
    pub fn greet(&mut self, owner: Weak<dyn Owner>, link: Tcp, stranger: Arc<()>) {
        let state = &mut *self.state;
        state.owner = Some(owner);
        state.addresses = link.local_address().ok().zip(link.peer_address().ok());
        state.link = Some(Box::new(link));
        state.keep = self.conn.me.upgrade();
        state.stranger = Some(stranger);
        state.proto.greet(Instant::now());
    }

    /// The program has destroyed its id.
    pub fn abandon(&mut self) {
        let conn = self.conn;
        let state = &mut *self.state;
        state.tell();
        state.owner = None;
        state.opening = None;
        if state.proto.link() != LinkState::Open {
            state.close_link(conn);
        }
        let now = Instant::now();
        state.proto.abandon(now);
        // What has come already may be what the other side waits to have taken.
        state.receive(conn);
        state.transmit(conn, now);
    }

    /// Gives all but the queue pair to another connection, which has none.
    pub fn move_to(&mut self, other: &mut Guard<'_>) {
        self.state.tell();
        self.state.unwatch(self.conn);
        let from = &mut *self.state;
        let to = &mut *other.state;
        from.proto.move_to(&mut to.proto);
        to.owner = from.owner.take();
        to.link = from.link.take();
        to.opening = from.opening.take();
        to.addresses = from.addresses.take();
        to.stranger = from.stranger.take();
        to.blocked = mem::take(&mut from.blocked);
        to.finished = mem::take(&mut from.finished);
        to.keep = from.keep.take().and(other.conn.me.upgrade());
        from.flush = None;
    }

    /// The queue pair is made.
    pub fn set_qp(&mut self, qp: Qp, queues: Arc<Queues>) {
        self.state.proto.qp = Some(qp);
        self.state.queues = Some(queues);
    }

    /// The queue pair is destroyed.
    pub fn take_qp(&mut self) -> Option<Arc<Queues>> {
        let conn = self.conn;
        let state = &mut *self.state;
        state.proto.take_qp()?;
        state.tell();
        let queues = state.queues.take();
        state.order_dropped(conn);
        queues
    }

    /// The queue pair is to be reset.
    pub fn reset_qp(&mut self, access: u32) {
        let conn = self.conn;
        let state = &mut *self.state;
        if let Some(qp) = &mut state.proto.qp {
            qp.reset(access);
        }
        state.order_dropped(conn);
    }
}

impl State {
    pub fn proto(&self) -> &Connection {
        &self.proto
    }

    pub fn qp(&mut self) -> Option<&mut Qp> {
        self.proto.qp.as_mut()
    }

    pub fn queues(&self) -> Option<&Arc<Queues>> {
        self.queues.as_ref()
    }

    /// The number of the other side's queue pair and the address of its host, of a connection that
    /// can still be made or is made.
    pub fn peer(&self) -> Option<(u32, IpAddr)> {
        use Phase::*;
        if !matches!(
            self.proto.phase(),
            Requested | ReplyReceived | Accepted | Established
        ) {
            return None;
        }
        let (_, remote) = self.addresses?;
        Some((self.proto.cm().theirs.qp_num, remote.ip().to_canonical()))
    }

    pub fn is_owned_by(&self, owner: &Weak<dyn Owner>) -> bool {
        self.owner.as_ref().is_some_and(|one| one.ptr_eq(owner))
    }

    /// Tells the owner that the connection goes on as this one.
    pub fn tell_moved(&self, here: &Arc<Conn>) {
        if let Some(owner) = self.owner.as_ref().and_then(Weak::upgrade) {
            owner.moved(here);
        }
    }

    /// Whether another connection can be made with the queue pair, and whether this one must move
    /// elsewhere before.
    pub fn reuse(&self) -> Result<bool, i32> {
        match self.proto.phase() {
            Phase::Idle => Ok(false),
            Phase::Closed => Ok(true),
            _ => Err(libc::EINVAL),
        }
    }

    #[inline]
    fn parts<'a>(&'a mut self, conn: &'a Conn) -> (&'a mut Connection, Env<'a>) {
        let env = Env {
            me: &conn.me,
            queues: self.queues.as_deref(),
            owner: &mut self.owner,
            stranger: &mut self.stranger,
            addresses: self.addresses,
            news: &mut self.news,
        };
        (&mut self.proto, env)
    }

    /// What it takes to move bytes; `None` if there is no link.
    #[inline]
    fn mover<'a>(&'a mut self, conn: &'a Conn) -> Option<Mover<'a, Env<'a>>> {
        let link = self.link.as_deref_mut()?;
        let queues = self.queues.as_deref();
        Some(Mover {
            link,
            proto: &mut self.proto,
            domain: queues.map(|queues| &*queues.domain),
            host: Env {
                me: &conn.me,
                queues,
                owner: &mut self.owner,
                stranger: &mut self.stranger,
                addresses: self.addresses,
                news: &mut self.news,
            },
            holds: &mut self.holds,
        })
    }

    // ---- the link ----

    /// Opens the link from the bound socket, or from a new one in its place.
    fn open(&mut self, conn: &Conn, now: Instant) {
        let Some(opening) = &mut self.opening else {
            return;
        };
        let bound = match opening.bound.take() {
            Some(bound) => Ok(bound),
            None => Tcp::bind(&opening.local, true, opening.v6_only),
        };
        let remote = opening.remote;
        match bound.and_then(|mut link| link.connect(&remote).map(|()| link)) {
            Ok(link) => {
                self.link = Some(Box::new(link));
                self.keep = conn.me.upgrade();
            }
            Err(error) => self.open_failed(conn, &error, now),
        }
    }

    /// The link is open, or could not be opened.
    fn opened(&mut self, conn: &Conn, now: Instant) {
        let Some(link) = &mut self.link else {
            return;
        };
        match link.opened() {
            Ok(()) => {
                self.opening = None;
                self.proto.opened();
            }
            Err(error) => {
                self.close_link(conn);
                self.open_failed(conn, &error, now);
            }
        }
    }

    fn open_failed(&mut self, conn: &Conn, error: &io::Error, now: Instant) {
        let refused = error.kind() == ErrorKind::ConnectionRefused;
        let (proto, mut env) = self.parts(conn);
        proto.open_failed(refused, now, &mut env);
        if self.proto.phase() == Phase::Closed {
            self.opening = None;
        }
    }

    fn link_ended(&mut self, conn: &Conn, now: Instant) {
        let (proto, mut env) = self.parts(conn);
        proto.link_ended(now, &mut env);
    }

    fn unwatch(&mut self, conn: &Conn) {
        if let Some(link) = &self.link {
            let before = mem::take(&mut self.interest);
            if before != Interest::default() {
                reactor::watch(link.fd(), conn.token, before, self.interest);
            }
        }
    }

    fn close_link(&mut self, conn: &Conn) {
        self.unwatch(conn);
        self.link = None;
        self.blocked = false;
        self.flush = None;
        self.stranger = None;
    }

    /// Tells the reactor what to wait for from now on. Returns what kept the connection if nothing
    /// has to any more.
    fn settle(&mut self, conn: &Conn) -> Option<Arc<Conn>> {
        if self.proto.take_wants_open() {
            self.open(conn, Instant::now());
        }
        if self.proto.link() == LinkState::Over && self.link.is_some() {
            self.close_link(conn);
        }
        if self.proto.has_ended()
            && self.proto.link() == LinkState::Open
            && self.proto.is_drained()
            && !self.finished
            && let Some(link) = &mut self.link
        {
            link.finish();
            self.finished = true;
        }
        if let Some(link) = &self.link {
            let opening = self.opening.is_some();
            let interest = Interest {
                read: !opening && self.proto.wants_bytes(),
                write: opening || self.blocked,
            };
            if interest != self.interest {
                reactor::watch(link.fd(), conn.token, self.interest, interest);
                self.interest = interest;
            }
        }
        if let Some(deadline) = self.proto.deadline()
            && self.wakes.last().is_none_or(|wake| deadline < *wake)
        {
            self.wakes.push(deadline);
            reactor::schedule(conn.token, deadline);
        }
        self.tell();
        if self.link.is_none() {
            self.keep.take()
        } else {
            None
        }
    }

    /// Tells the program what has happened.
    fn tell(&mut self) {
        self.news.tell(self.queues.as_deref(), self.owner.as_ref());
    }

    /// In a child process: the links are the parent's, and their descriptors were closed here.
    fn orphan(&mut self) {
        if self.link.is_some() || self.opening.is_some() {
            self.proto.orphan();
        }
        self.link = None;
        self.opening = None;
        self.owner = None;
        self.wakes.clear();
        self.keep = None;
    }

    fn due(&mut self, conn: &Conn, now: Instant) {
        while self.wakes.last().is_some_and(|wake| *wake <= now) {
            self.wakes.pop();
        }
        let (proto, mut env) = self.parts(conn);
        proto.due(now, &mut env);
    }

    // ---- receiving ----

    /// Takes what has come from the link, and deals with it. Returns when there was something last.
    fn receive(&mut self, conn: &Conn) -> Option<Instant> {
        let mut came = None;
        let mut turn = TURN;
        while turn > 0 && self.proto.wants_bytes() {
            let Some(received) = self.mover(conn).map(|mut mover| mover.recv()) else {
                break;
            };
            let asked = received.asked;
            if received.refused {
                came = Some(Instant::now());
            }
            match received.result.map_err(|error| error.kind()) {
                Ok(n) if n > 0 => {
                    turn = turn.saturating_sub(n);
                    let now = Instant::now();
                    came = Some(now);
                    self.handle(conn, now);
                    if n < asked {
                        break;
                    }
                }
                Err(ErrorKind::WouldBlock) => break,
                Err(ErrorKind::Interrupted) => {}
                _ => {
                    let now = Instant::now();
                    self.link_ended(conn, now);
                    return Some(now);
                }
            }
        }
        came
    }

    /// Deals with what has come, and carries out what is ordered.
    fn handle(&mut self, conn: &Conn, now: Instant) {
        loop {
            let (proto, mut env) = self.parts(conn);
            if proto.handle(now, &mut env).is_err() {
                proto.lost(now, &mut env);
                return;
            }
            if self.flush.is_some() {
                return;
            }
            let Some(order) = self.proto.order() else {
                return;
            };
            let Some(result) = self.carry_out(conn, order) else {
                return;
            };
            let (proto, mut env) = self.parts(conn);
            proto.done(result, now, &mut env);
        }
    }

    /// What a flush is to make persistent, with its number, unless a thread is at it: the connection
    /// may have been given to one for a flush that was dropped before, too.
    fn take_flush(&mut self) -> Option<(u64, Hold)> {
        let (number, hold) = self.flush.as_mut()?;
        Some((*number, hold.take()?))
    }

    /// Nothing waits for a flush any more that is under way. What has come behind it goes on.
    fn order_dropped(&mut self, conn: &Conn) {
        self.flush = None;
        let now = Instant::now();
        self.handle(conn, now);
        self.transmit(conn, now);
    }

    /// Carries out an order; `None` if that is under way.
    fn carry_out(&mut self, conn: &Conn, order: Order) -> Option<Result<u64, Nak>> {
        let Some(queues) = &self.queues else {
            return Some(Err(Nak::OperationError));
        };
        let hold = match carry_out(&queues.domain, order) {
            CarriedOut::Done(result) => return Some(result),
            CarriedOut::Persist(hold) => hold,
        };
        self.flushes += 1;
        self.flush = Some((self.flushes, Some(hold)));
        let job = conn.me.upgrade()?;
        match flush::run(job) {
            Ok(()) => None,
            Err(_) => {
                self.flush = None;
                Some(Err(Nak::OperationError))
            }
        }
    }

    // ---- sending ----

    /// Sends what there is, as far as the link takes it.
    fn transmit(&mut self, conn: &Conn, now: Instant) {
        if self.proto.link() != LinkState::Open {
            return;
        }
        self.blocked = false;
        let mut turn = TURN;
        loop {
            let (proto, mut env) = self.parts(conn);
            if !proto.transmit(now, &mut env) {
                return;
            }
            let Some(result) = self.mover(conn).map(|mut mover| mover.send()) else {
                return;
            };
            match result {
                Ok(n) => {
                    self.proto.sent(n);
                    turn = turn.saturating_sub(n);
                    if turn == 0 {
                        // It goes on when others have had their turn.
                        self.blocked = true;
                        return;
                    }
                }
                Err(ErrorKind::WouldBlock) => {
                    self.blocked = true;
                    return;
                }
                Err(ErrorKind::Interrupted) => {}
                Err(_) => {
                    self.link_ended(conn, now);
                    return;
                }
            }
        }
    }
}

/// What the protocol asks of the world.
pub struct Env<'a> {
    me: &'a Weak<Conn>,
    queues: Option<&'a Queues>,
    owner: &'a mut Option<Weak<dyn Owner>>,
    stranger: &'a mut Option<Arc<()>>,
    addresses: Option<(SocketAddr, SocketAddr)>,
    news: &'a mut News,
}

impl Env<'_> {
    fn domain(&self) -> Option<&Domain> {
        self.queues.map(|queues| &*queues.domain)
    }

    fn owner(&self) -> Option<Arc<dyn Owner>> {
        self.owner.as_ref()?.upgrade()
    }
}

impl Host for Env<'_> {
    fn permits(&self, at: Remote, len: u64, right: Right) -> bool {
        self.domain()
            .is_some_and(|domain| domain.remote(at.rkey, at.addr, len, right).is_ok())
    }

    fn may_use(&self, sges: &[Sge], write: bool) -> bool {
        let Some(domain) = self.domain() else {
            return false;
        };
        sges.iter().all(|sge| {
            domain
                .local(sge.lkey, sge.addr, sge.length.into(), write)
                .is_ok()
        })
    }

    fn read_local(&self, sges: &[Sge], offset: u64, len: usize, out: &mut Vec<u8>) -> bool {
        read(self.domain(), Memory::Local(sges, offset), len, out)
    }

    fn read_remote(&self, at: Remote, len: usize, out: &mut Vec<u8>) -> bool {
        read(self.domain(), Memory::Remote(at), len, out)
    }

    fn write_local(&self, sges: &[Sge], offset: u64, data: &[u8]) -> bool {
        write(self.domain(), Memory::Local(sges, offset), data)
    }

    fn write_remote(&self, at: Remote, data: &[u8]) -> bool {
        write(self.domain(), Memory::Remote(at), data)
    }

    fn take_shared_receive(&mut self, to: &mut RecvWqe) -> bool {
        let Some(srq) = self.queues.and_then(|queues| queues.srq.as_ref()) else {
            return false;
        };
        let user: Weak<dyn SrqUser> = self.me.clone();
        srq.take_or_wait(to, &user)
    }

    fn complete(&mut self, completion: Completion) {
        if self.news.completions.len() >= News::MOST {
            self.news.tell_completions(self.queues);
        }
        self.news.completions.push(completion);
    }

    fn last_wqe_reached(&mut self) {
        if let Some(queues) = self.queues {
            let handle = queues.handle.load(Ordering::Acquire);
            queues.async_events.report(AsyncEvent::LastWqe(handle));
        }
    }

    fn offer(&mut self, params: &Params, private: &Private) -> bool {
        let taken = self
            .owner()
            .zip(self.me.upgrade())
            .and_then(|(owner, conn)| {
                owner.offer(Request {
                    conn,
                    addresses: self.addresses,
                    params,
                    private,
                })
            });
        *self.stranger = None;
        let is_taken = taken.is_some();
        *self.owner = taken;
        is_taken
    }

    fn event(&mut self, event: Event) {
        self.news.events.push(event);
    }

    fn explain(&mut self, cause: Cause<'_>, came: bool) {
        if let Some((local, remote)) = self.addresses {
            let peer = Peer {
                address: SocketAddr::new(remote.ip().to_canonical(), remote.port()),
                listener: came.then_some(local.port()),
            };
            diagnostic::peer(peer, cause);
        }
    }

    fn watches_deadlines(&self) -> bool {
        reactor::watches_deadlines()
    }
}
