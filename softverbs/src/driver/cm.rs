//! Connection management ids: addresses, listening, connecting, and the events of all that.

use super::conn::{Conn, Guard, Opening, Owner, Request};
use super::event_queue::EventQueue;
use super::listener::Listener;
use crate::errno::errno_of;
use crate::limits;
use crate::link::{Tcp, local_address_towards};
use crate::process::generation;
use crate::proto::frames::{Params, Private};
use crate::proto::{self, Event, WrongState};
use crate::reactor;
use crate::sync::{UnackedEvents, lock};
use rdma_sys::{rdma_cm_event_type, rdma_cm_id};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// As many connections may wait as librdmacm asks for if the program does not say.
const BACKLOG: usize = 1024;

/// An event of connection management.
pub struct CmEvent {
    pub kind: rdma_cm_event_type::Type,
    pub status: i32,
    /// Whose it is: of a connection request, the new one.
    pub id: Arc<CmId>,
    /// Of a connection request, the id that listens.
    pub listener: Option<Arc<CmId>>,
    /// What the other side said of itself.
    pub params: Option<Params>,
    pub private: Private,
    /// How many bytes of private data there are, with the padding of the message.
    pub private_len: usize,
}

impl CmEvent {
    /// An event that says no more than that it happened.
    fn plain(kind: rdma_cm_event_type::Type, status: i32, id: Arc<CmId>) -> Self {
        CmEvent {
            kind,
            status,
            id,
            listener: None,
            params: None,
            private: Private::NONE,
            private_len: 0,
        }
    }

    /// The id that must not be destroyed before the event is acknowledged.
    pub fn owner(&self) -> &Arc<CmId> {
        self.listener.as_ref().unwrap_or(&self.id)
    }
}

/// How far an id is that has no connection yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    /// Has an address of this host, and a socket bound to it.
    Bound,
    AddrResolved,
    RouteResolved,
    Listening,
    /// The connection knows.
    Connection,
}

struct State {
    phase: Phase,
    local: Option<SocketAddr>,
    remote: Option<SocketAddr>,
    reuse: bool,
    v6_only: bool,
    /// A socket that is bound and is not yet more.
    bound: Option<Tcp>,
    listener: Option<Arc<Listener>>,
}

/// The requests to connect that wait for a listener's program.
struct Backlog {
    open: bool,
    size: usize,
}

pub struct CmId {
    /// Unlike that of any other id.
    pub token: u64,
    me: Weak<CmId>,
    /// Of the process that made it.
    generation: u32,
    state: Mutex<State>,
    conn: Mutex<Option<Arc<Conn>>>,
    events: Mutex<Arc<EventQueue<CmEvent>>>,
    backlog: Mutex<Backlog>,
    /// How many requests wait, of a listener.
    waiting: AtomicUsize,
    /// Of a request that waits: with whom.
    parent: Mutex<Weak<CmId>>,
    /// The program's id.
    pub handle: AtomicPtr<rdma_cm_id>,
    /// Events that the program got and has not acknowledged.
    pub unacked: UnackedEvents,
}

/// What a program says when it connects or accepts.
#[derive(Clone, Copy, Debug)]
pub struct ConnParam {
    pub private: Private,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub qp_num: u32,
}

/// The value that asks for as much as there is (`RDMA_MAX_RESP_RES`, `RDMA_MAX_INIT_DEPTH`).
const MOST: u8 = 0xff;

impl ConnParam {
    /// What librdmacm takes if the program says nothing when it connects.
    pub const CONNECT: Self = ConnParam {
        private: Private::NONE,
        responder_resources: MOST,
        initiator_depth: MOST,
        flow_control: 1,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: 0,
        qp_num: 0,
    };

    fn params(&self, qp_num: u32, responder_most: u8, initiator_most: u8) -> Params {
        Params {
            qp_num,
            responder_resources: self.responder_resources.min(responder_most),
            initiator_depth: self.initiator_depth.min(initiator_most),
            flow_control: self.flow_control,
            retry_count: self.retry_count.min(7),
            rnr_retry_count: self.rnr_retry_count.min(7),
            srq: self.srq,
        }
    }

    /// More than the device has is refused, unless it is all.
    pub fn is_valid(&self) -> bool {
        let valid = |n: u8| n == MOST || u32::from(n) <= limits::MAX_QP_RD_ATOM;
        valid(self.responder_resources) && valid(self.initiator_depth)
    }
}

/// The queue pair that a connection is made with.
#[derive(Clone, Default)]
pub struct WithQp {
    /// The queue pair's end of its connections; `None` for a connection without a queue pair.
    pub conn: Option<Arc<Conn>>,
    /// The program moves the queue pair from state to state itself.
    pub program_moves_qp: bool,
}

fn errno(error: io::Error) -> i32 {
    errno_of(&error)
}

fn wrong_state(_: WrongState) -> i32 {
    libc::EINVAL
}

/// The address as the other side knows it, which may have come by IPv4 to a listener of IPv6.
fn unmap_ipv4(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), address.port()),
        IpAddr::V6(_) => address,
    }
}

impl CmId {
    pub fn new(events: Arc<EventQueue<CmEvent>>) -> Arc<Self> {
        Arc::new_cyclic(|me| CmId {
            token: reactor::new_token(),
            me: me.clone(),
            generation: generation(),
            state: Mutex::new(State {
                phase: Phase::Idle,
                local: None,
                remote: None,
                reuse: false,
                v6_only: false,
                bound: None,
                listener: None,
            }),
            conn: Mutex::default(),
            events: Mutex::new(events),
            backlog: Mutex::new(Backlog {
                open: false,
                size: 0,
            }),
            waiting: AtomicUsize::new(0),
            parent: Mutex::default(),
            handle: AtomicPtr::default(),
            unacked: UnackedEvents::default(),
        })
    }

    fn owner(&self) -> Weak<dyn Owner> {
        self.me.clone()
    }

    /// The addresses of this side and of the other, as far as they are known.
    pub fn addresses(&self) -> (Option<SocketAddr>, Option<SocketAddr>) {
        let state = lock(&self.state);
        (state.local, state.remote)
    }

    /// What this side has told the other of itself, and the other this one.
    pub fn params(&self) -> Option<(Params, Params)> {
        self.with_conn(|conn| (conn.proto().cm().mine, conn.proto().cm().theirs))
    }

    /// The queue pair at the other side, as far as there is one.
    pub fn peer(&self) -> Option<(u32, IpAddr)> {
        self.with_conn(|conn| conn.peer()).flatten()
    }

    /// Calls with the connection locked; `None` if there is none.
    fn with_conn<T>(&self, call: impl FnOnce(&mut Guard<'_>) -> T) -> Option<T> {
        loop {
            let conn = lock(&self.conn).clone()?;
            let mut guard = conn.lock();
            // It may have moved elsewhere meanwhile.
            let here = lock(&self.conn)
                .as_ref()
                .is_some_and(|now| Arc::ptr_eq(now, &conn));
            if here {
                return Some(call(&mut guard));
            }
        }
    }

    // ---- events ----

    /// Tells the program of an event. Nothing of the program's id may be touched afterwards: another
    /// thread may take the event and destroy the id.
    pub fn publish(&self, kind: rdma_cm_event_type::Type, status: i32) {
        if let Some(me) = self.me.upgrade() {
            self.push(CmEvent::plain(kind, status, me));
        }
    }

    fn push(&self, event: CmEvent) {
        lock(&self.events).push(event);
    }

    pub fn events(&self) -> Arc<EventQueue<CmEvent>> {
        lock(&self.events).clone()
    }

    /// Has the events come elsewhere, those that wait as well.
    pub fn migrate(&self, to: Arc<EventQueue<CmEvent>>) {
        let mut events = lock(&self.events);
        let mine = |event: &CmEvent| std::ptr::eq(Arc::as_ptr(event.owner()), self);
        for event in events.extract(mine) {
            to.push(event);
        }
        *events = to;
    }

    /// The program has been told of the request to connect.
    pub fn request_taken(&self) {
        if let Some(parent) = std::mem::take(&mut *lock(&self.parent)).upgrade() {
            parent.waiting.fetch_sub(1, Ordering::AcqRel);
        }
    }

    // ---- addresses ----

    /// Lets others that say so, too, bind to the same address.
    pub fn set_reuse(&self, on: bool) -> Result<(), i32> {
        let mut state = lock(&self.state);
        // Once bound, it can be allowed and not be taken back.
        if state.phase == Phase::Listening || !(on || state.phase == Phase::Idle) {
            return Err(libc::EINVAL);
        }
        if let Some(bound) = &state.bound {
            bound.share(on).map_err(errno)?;
        }
        state.reuse = on;
        Ok(())
    }

    /// Whether an IPv6 wildcard leaves IPv4 alone.
    pub fn set_v6_only(&self, on: bool) -> Result<(), i32> {
        let mut state = lock(&self.state);
        if state.phase != Phase::Idle {
            return Err(libc::EINVAL);
        }
        state.v6_only = on;
        Ok(())
    }

    /// Binds to an address of this host.
    pub fn bind(&self, address: SocketAddr) -> Result<(), i32> {
        lock(&self.state).bind(address)
    }

    /// Finds the address that the other side is reached from. Returns the event that is to be
    /// published.
    pub fn resolve_addr(
        &self,
        from: Option<SocketAddr>,
        to: SocketAddr,
    ) -> Result<(rdma_cm_event_type::Type, i32), i32> {
        use rdma_cm_event_type::*;
        let mut state = lock(&self.state);
        if state.phase == Phase::Idle
            && let Some(from) = from
        {
            state.bind(from)?;
        }
        if !matches!(state.phase, Phase::Idle | Phase::Bound) {
            return Err(libc::EINVAL);
        }
        let mut to = to;
        // The wildcard is this host.
        if to.ip().is_unspecified() {
            match &mut to {
                SocketAddr::V4(v4) => v4.set_ip(Ipv4Addr::LOCALHOST),
                SocketAddr::V6(v6) => v6.set_ip(Ipv6Addr::LOCALHOST),
            }
        }
        let towards = match local_address_towards(&to) {
            Ok(towards) => towards,
            Err(error) => return Ok((RDMA_CM_EVENT_ADDR_ERROR, -errno(error))),
        };
        match state.local {
            // Bound to the wildcard: from now on to the one address, with the port.
            Some(local) if local.ip().is_unspecified() => {
                let port = local.port();
                let mut local = towards;
                local.set_port(port);
                state.local = Some(local);
            }
            Some(local) if local.is_ipv4() != to.is_ipv4() => return Err(libc::EINVAL),
            Some(_) => {}
            None => state.bind(towards)?,
        }
        state.remote = Some(to);
        state.phase = Phase::AddrResolved;
        Ok((RDMA_CM_EVENT_ADDR_RESOLVED, 0))
    }

    /// Finds the route. The event is to be published if this succeeds.
    pub fn resolve_route(&self) -> Result<(), i32> {
        let mut state = lock(&self.state);
        if state.phase != Phase::AddrResolved {
            return Err(libc::EINVAL);
        }
        state.phase = Phase::RouteResolved;
        Ok(())
    }

    // ---- connections ----

    /// Binds to any address and any port if the program has not bound the id.
    pub fn bind_to_listen(&self) -> Result<(), i32> {
        let mut state = lock(&self.state);
        if state.phase == Phase::Idle {
            state.bind(SocketAddr::from(([0, 0, 0, 0], 0)))?;
        }
        Ok(())
    }

    /// Takes connections to where the id is bound.
    pub fn listen(&self, backlog: i32) -> Result<(), i32> {
        let mut state = lock(&self.state);
        if state.phase != Phase::Bound {
            return Err(libc::EINVAL);
        }
        let bound = state.bound.take().ok_or(libc::EINVAL)?;
        *lock(&self.backlog) = Backlog {
            open: true,
            size: match usize::try_from(backlog) {
                Ok(n) if (1..BACKLOG).contains(&n) => n,
                _ => BACKLOG,
            },
        };
        match bound.listen(BACKLOG as i32) {
            Ok(socket) => state.listener = Some(Listener::new(socket, self.owner())),
            Err((bound, error)) => {
                state.bound = Some(bound);
                return Err(errno(error));
            }
        }
        state.phase = Phase::Listening;
        Ok(())
    }

    /// Begins to connect.
    pub fn connect(&self, param: &ConnParam, with: WithQp) -> Result<(), i32> {
        let mut state = lock(&self.state);
        let (Phase::RouteResolved, Some(local), Some(remote)) =
            (state.phase, state.local, state.remote)
        else {
            return Err(libc::EINVAL);
        };
        if state.bound.is_none() {
            return Err(libc::EINVAL);
        }
        let conn = with.conn.unwrap_or_else(Conn::new);
        let mut guard = conn.lock();
        make_way(&mut guard)?;
        let bound = state.bound.take().ok_or(libc::EINVAL)?;
        state.phase = Phase::Connection;
        *lock(&self.conn) = Some(conn.clone());
        let qp_num = guard.qp().map_or(param.qp_num, |qp| qp.num);
        let most = limits::MAX_QP_RD_ATOM as u8;
        let params = param.params(qp_num, most, most);
        guard.connect(
            self.owner(),
            Opening::new(bound, local, remote, state.v6_only),
            params,
            param.private,
            with.program_moves_qp,
        );
        Ok(())
    }

    /// Has the connection go on with another queue pair, or without one. The caller sees to it that
    /// no two calls of this run at once.
    pub fn join(&self, with: &WithQp) -> Result<(), i32> {
        let Some(from) = lock(&self.conn).clone() else {
            return Ok(());
        };
        let mut from_guard = from.lock();
        if !from_guard.is_owned_by(&self.owner()) {
            return Err(libc::EINVAL);
        }
        let to = match &with.conn {
            Some(conn) if Arc::ptr_eq(conn, &from) => None,
            Some(conn) => Some(conn.clone()),
            None => from_guard.qp().is_some().then(Conn::new),
        };
        let moves = with.program_moves_qp;
        let Some(to) = to else {
            from_guard.call(|proto, _| proto.set_program_moves_qp(moves));
            return Ok(());
        };
        let mut to_guard = to.lock();
        make_way(&mut to_guard)?;
        from_guard.move_to(&mut to_guard);
        to_guard.call(|proto, _| proto.set_program_moves_qp(moves));
        *lock(&self.conn) = Some(to.clone());
        Ok(())
    }

    /// Brings the queue pair, if the program leaves that to connection management, to where it can be
    /// connected from: as the kernel does it, from RESET or INIT and from no other state. It gets these
    /// rights and this local ACK timeout.
    pub fn initialize_qp(&self, access: u32, timeout: u8) -> Result<(), i32> {
        let result = self.with_conn(|conn| {
            let moves = conn.proto().cm().program_moves_qp();
            match conn.qp() {
                Some(qp) if !moves => qp.initialize(access, timeout),
                _ => Ok(()),
            }
        });
        result.unwrap_or(Ok(())).map_err(wrong_state)
    }

    /// Whether the connection has a queue pair that connection management makes ready.
    pub fn moves_qp(&self) -> bool {
        let moves =
            |conn: &mut Guard<'_>| !conn.proto().cm().program_moves_qp() && conn.qp().is_some();
        self.with_conn(moves).unwrap_or(false)
    }

    /// How far the connection is, if there is one.
    pub fn connection_phase(&self) -> Option<proto::Phase> {
        self.with_conn(|conn| conn.proto().phase())
    }

    pub fn accept(&self, param: Option<&ConnParam>) -> Result<(), i32> {
        self.with_conn(|conn| {
            let most = limits::MAX_QP_RD_ATOM as u8;
            let theirs = conn.proto().cm().theirs;
            let given = param.copied().unwrap_or(ConnParam {
                flow_control: theirs.flow_control,
                retry_count: theirs.retry_count,
                rnr_retry_count: theirs.rnr_retry_count,
                ..ConnParam::CONNECT
            });
            let qp_num = conn.qp().map_or(given.qp_num, |qp| qp.num);
            let mine = given.params(
                qp_num,
                theirs.initiator_depth.min(most),
                theirs.responder_resources.min(most),
            );
            conn.with(|proto, now, host| proto.accept(mine, given.private, now, host))
        })
        .unwrap_or(Err(WrongState))
        .map_err(wrong_state)
    }

    pub fn reject(&self, private: Private) -> Result<(), i32> {
        self.with_conn(|conn| conn.with(|proto, _, _| proto.reject(private)))
            .unwrap_or(Err(WrongState))
            .map_err(wrong_state)
    }

    /// The program knows that it was accepted.
    pub fn establish(&self) -> Result<(), i32> {
        self.with_conn(|conn| conn.with(|proto, now, host| proto.establish(now, host)))
            .unwrap_or(Err(WrongState))
            .map_err(wrong_state)
    }

    pub fn disconnect(&self) -> Result<(), i32> {
        self.with_conn(|conn| conn.with(|proto, now, host| proto.disconnect(now, host)))
            .unwrap_or(Err(WrongState))
            .map_err(wrong_state)
    }

    /// The program destroys its id: nothing comes for it from now on, and the other side is told
    /// what it should know of that.
    pub fn abandon(&self) {
        lock(&self.backlog).open = false;
        let listener = {
            let mut state = lock(&self.state);
            state.bound = None;
            state.listener.take()
        };
        drop(listener);
        self.request_taken();
        self.with_conn(|conn| conn.abandon());
        *lock(&self.conn) = None;
    }
}

/// Makes a queue pair free for another connection, if the one that it had has ended: that goes on by
/// itself.
fn make_way(guard: &mut Guard<'_>) -> Result<(), i32> {
    if guard.reuse()? {
        let elsewhere = Conn::new();
        guard.move_to(&mut elsewhere.lock());
        elsewhere.lock().tell_moved(&elsewhere);
    }
    Ok(())
}

impl State {
    fn bind(&mut self, address: SocketAddr) -> Result<(), i32> {
        if self.phase != Phase::Idle {
            return Err(libc::EINVAL);
        }
        let bound = Tcp::bind(&address, self.reuse, self.v6_only).map_err(errno)?;
        self.local = Some(bound.local_address().map_err(errno)?);
        self.bound = Some(bound);
        self.phase = Phase::Bound;
        Ok(())
    }
}

impl Owner for CmId {
    fn event(&self, event: Event) {
        use rdma_cm_event_type::*;
        let Some(me) = self.me.upgrade() else {
            return;
        };
        if self.generation != generation() {
            return;
        }
        let plain = |kind, status| CmEvent::plain(kind, status, me.clone());
        let reply = |kind, params, private| CmEvent {
            params: Some(params),
            private,
            private_len: Private::MAX,
            ..plain(kind, 0)
        };
        self.push(match event {
            Event::Reply(params, private) => reply(RDMA_CM_EVENT_ESTABLISHED, params, private),
            Event::Response(params, private) => {
                reply(RDMA_CM_EVENT_CONNECT_RESPONSE, params, private)
            }
            Event::Established => plain(RDMA_CM_EVENT_ESTABLISHED, 0),
            Event::Rejected(reason, private) => CmEvent {
                private,
                private_len: Private::REJECT,
                ..plain(RDMA_CM_EVENT_REJECTED, reason.into())
            },
            Event::Unreachable => plain(RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT),
            Event::Disconnected => plain(RDMA_CM_EVENT_DISCONNECTED, 0),
            Event::TimewaitExit => plain(RDMA_CM_EVENT_TIMEWAIT_EXIT, 0),
        });
    }

    fn offer(&self, request: Request<'_>) -> Option<Weak<dyn Owner>> {
        let listener = self.me.upgrade()?;
        // Held until it is told, so that it is not destroyed before.
        let backlog = lock(&self.backlog);
        if !backlog.open || self.waiting.load(Ordering::Acquire) >= backlog.size {
            return None;
        }
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let id = CmId::new(self.events());
        {
            let mut state = lock(&id.state);
            state.phase = Phase::Connection;
            if let Some((local, remote)) = request.addresses {
                state.local = Some(unmap_ipv4(local));
                state.remote = Some(unmap_ipv4(remote));
            }
        }
        *lock(&id.conn) = Some(request.conn);
        *lock(&id.parent) = self.me.clone();
        let owner = id.owner();
        self.push(CmEvent {
            listener: Some(listener),
            params: Some(*request.params),
            private: *request.private,
            private_len: Private::REQUEST,
            ..CmEvent::plain(rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST, 0, id)
        });
        Some(owner)
    }

    fn moved(&self, to: &Arc<Conn>) {
        *lock(&self.conn) = Some(to.clone());
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        // A request that nobody took.
        self.request_taken();
    }
}
