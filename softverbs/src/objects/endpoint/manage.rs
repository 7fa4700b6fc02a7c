//! Connection management: addresses, listening, connecting, disconnecting.

use super::{
    CONNECT_TIME, Endpoint, GREETING_TIME, PEER_GONE_TIME, Phase, State, TIME_WAIT, Timer,
};
use crate::frames::{Frame, Malformed, Params, Private};
use crate::link::{Tcp, local_address_towards};
use crate::objects::cm::CmEvent;
use crate::objects::device::limits;
use crate::objects::errno_of;
use rdma_sys::{ibv_qp_state, rdma_cm_event_type};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Nobody listens there (`IB_CM_REJ_INVALID_SERVICE_ID`).
const REJECTED_NO_SERVICE: u16 = 8;
/// The program does not want the connection (`IB_CM_REJ_CONSUMER_DEFINED`).
pub const REJECTED_BY_CONSUMER: u16 = 28;
/// As many connections may wait as librdmacm asks for if the program does not say.
const BACKLOG: usize = 1024;
/// How often, and after what time for each time before, opening a link is tried again.
const TRIES: u32 = 6;
const TRY_TIME: Duration = Duration::from_millis(10);
/// When a listener without descriptors looks for one again.
const FULL_TIME: Duration = Duration::from_millis(100);
/// So many links that have not asked for a connection, or wait for an answer, may a listener have.
const STRANGERS: usize = 8192;
const DISCONNECT_TIME: Duration = Duration::from_secs(60);
/// The value that asks for as much as there is (`RDMA_MAX_RESP_RES`, `RDMA_MAX_INIT_DEPTH`).
const MOST: u8 = 0xff;
const NO_SUCH: i32 = libc::EINVAL;

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

/// The address as the other side knows it, which may have come by IPv4 to a listener of IPv6.
fn plain(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), address.port()),
        IpAddr::V6(_) => address,
    }
}

impl ConnParam {
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

fn errno(error: io::Error) -> i32 {
    errno_of(&error)
}

impl State {
    /// Lets others that say so, too, bind to the same address.
    pub fn set_reuse(&mut self, on: bool) -> Result<(), i32> {
        // Once bound, it can be allowed and not be taken back.
        if self.phase == Phase::Listening || !(on || self.phase == Phase::Idle) {
            return Err(libc::EINVAL);
        }
        if let Some(bound) = &self.bound {
            bound.share(on).map_err(errno)?;
        }
        self.reuse = on;
        Ok(())
    }

    /// Whether an IPv6 wildcard leaves IPv4 alone.
    pub fn set_v6_only(&mut self, on: bool) -> Result<(), i32> {
        if self.phase != Phase::Idle {
            return Err(libc::EINVAL);
        }
        self.v6_only = on;
        Ok(())
    }

    /// Binds to an address of this host.
    pub fn bind(&mut self, address: SocketAddr) -> Result<(), i32> {
        if self.phase != Phase::Idle {
            return Err(libc::EINVAL);
        }
        let bound = Tcp::bind(&address, self.reuse, self.v6_only).map_err(errno)?;
        self.local = Some(bound.local_address().map_err(errno)?);
        self.bound = Some(bound);
        self.phase = Phase::Bound;
        Ok(())
    }

    /// Finds the address that the other side is reached from.
    pub fn resolve_addr(
        &mut self,
        endpoint: &Endpoint,
        from: Option<SocketAddr>,
        to: SocketAddr,
    ) -> Result<(), i32> {
        use rdma_cm_event_type::*;
        if self.phase == Phase::Idle
            && let Some(from) = from
        {
            self.bind(from)?;
        }
        if !matches!(self.phase, Phase::Idle | Phase::Bound) {
            return Err(libc::EINVAL);
        }
        let mut to = to;
        // The wildcard is this host.
        if to.ip().is_unspecified() {
            match &mut to {
                SocketAddr::V4(v4) => v4.set_ip(std::net::Ipv4Addr::LOCALHOST),
                SocketAddr::V6(v6) => v6.set_ip(std::net::Ipv6Addr::LOCALHOST),
            }
        }
        let towards = match local_address_towards(&to) {
            Ok(towards) => towards,
            Err(error) => {
                self.event(endpoint, RDMA_CM_EVENT_ADDR_ERROR, -errno(error));
                return Ok(());
            }
        };
        match self.local {
            // Bound to the wildcard: from now on to the one address, with the port.
            Some(local) if local.ip().is_unspecified() => {
                let mut local = towards;
                local.set_port(self.local.map_or(0, |local| local.port()));
                self.local = Some(local);
            }
            Some(local) if local.is_ipv4() != to.is_ipv4() => return Err(libc::EINVAL),
            Some(_) => {}
            None => {
                self.phase = Phase::Idle;
                self.bind(towards)?;
            }
        }
        self.remote = Some(to);
        self.phase = Phase::AddrResolved;
        self.event(endpoint, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
        Ok(())
    }

    pub fn resolve_route(&mut self, endpoint: &Endpoint) -> Result<(), i32> {
        if self.phase != Phase::AddrResolved {
            return Err(libc::EINVAL);
        }
        self.phase = Phase::RouteResolved;
        self.event(
            endpoint,
            rdma_cm_event_type::RDMA_CM_EVENT_ROUTE_RESOLVED,
            0,
        );
        Ok(())
    }

    pub fn listen(&mut self, endpoint: &Endpoint, backlog: i32) -> Result<(), i32> {
        if self.phase == Phase::Idle {
            // Any address, any port.
            self.bind(SocketAddr::from(([0, 0, 0, 0], 0)))?;
        }
        if self.phase != Phase::Bound {
            return Err(libc::EINVAL);
        }
        let bound = self.bound.take().ok_or(libc::EINVAL)?;
        self.backlog = match usize::try_from(backlog) {
            Ok(n) if (1..BACKLOG).contains(&n) => n,
            _ => BACKLOG,
        };
        match bound.listen(BACKLOG as i32) {
            Ok(listener) => self.listener = Some(listener),
            Err((bound, error)) => {
                self.bound = Some(bound);
                return Err(errno(error));
            }
        }
        self.phase = Phase::Listening;
        self.watch(endpoint);
        Ok(())
    }

    /// Takes the links that have come to a listener.
    pub(super) fn accept_links(&mut self, endpoint: &Endpoint) {
        while let Some(listener) = &self.listener {
            let link = match listener.accept() {
                Ok(link) => link,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(_) => {
                    // There are no descriptors left: whoever waits has to wait for those.
                    self.rx.paused = true;
                    self.set_timer(endpoint, Timer::Open, FULL_TIME);
                    return;
                }
            };
            // Those that say nothing must not be too many.
            if Arc::weak_count(&endpoint.arc()) > STRANGERS {
                continue;
            }
            let child = Endpoint::new(self.events.clone());
            let mut state = child.lock();
            state.local = link.local_address().ok().map(plain);
            state.remote = link.peer_address().ok().map(plain);
            state.parent = endpoint.me.clone();
            state.phase = Phase::Greeting;
            state.link = Some(Box::new(link));
            state.set_timer(&child, Timer::Handshake, GREETING_TIME);
            state.watch(&child);
        }
    }

    pub fn connect(&mut self, endpoint: &Endpoint, param: &ConnParam) -> Result<(), i32> {
        let (Phase::RouteResolved, Some(remote)) = (self.phase, self.remote) else {
            return Err(libc::EINVAL);
        };
        if self.bound.is_none() {
            return Err(libc::EINVAL);
        }
        let qp_num = self.qp.as_ref().map_or(param.qp_num, |qp| qp.init.num);
        let most = limits::MAX_QP_RD_ATOM as u8;
        self.mine = param.params(qp_num, most, most);
        self.private = param.private;
        self.phase = Phase::Connecting;
        self.tries = 0;
        self.set_timer(endpoint, Timer::Handshake, CONNECT_TIME);
        self.open(endpoint, remote);
        self.watch(endpoint);
        Ok(())
    }

    /// Opens the link from the bound socket, or from a new one in its place.
    fn open(&mut self, endpoint: &Endpoint, remote: SocketAddr) {
        let bound = match (self.bound.take(), self.local) {
            (Some(bound), _) => Ok(bound),
            (None, Some(local)) => Tcp::bind(&local, true, self.v6_only),
            (None, None) => return,
        };
        let opening = bound.and_then(|mut link| link.connect(&remote).map(|()| link));
        match opening {
            Ok(link) => self.link = Some(Box::new(link)),
            Err(error) => self.connect_failed(endpoint, &error),
        }
    }

    /// Tries once more to open the link.
    pub(super) fn open_again(&mut self, endpoint: &Endpoint) {
        if self.phase == Phase::Listening {
            self.rx.paused = false;
        } else if self.phase == Phase::Connecting
            && self.link.is_none()
            && let Some(remote) = self.remote
        {
            self.open(endpoint, remote);
        }
    }

    fn connect_failed(&mut self, endpoint: &Endpoint, error: &io::Error) {
        use rdma_cm_event_type::*;
        self.drop_link(endpoint);
        // A request takes longer over a fabric: a program that connects when it has been told to
        // by one that is about to listen is used to that.
        if error.kind() == io::ErrorKind::ConnectionRefused && self.tries < TRIES {
            self.tries += 1;
            self.set_timer(endpoint, Timer::Open, TRY_TIME * self.tries);
            return;
        }
        self.clear_timer(Timer::Handshake);
        self.phase = Phase::Closed;
        self.fail_qp();
        if error.kind() == io::ErrorKind::ConnectionRefused {
            self.rejected(endpoint, REJECTED_NO_SERVICE, Private::NONE);
        } else {
            self.event(endpoint, RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT);
        }
    }

    fn rejected(&mut self, endpoint: &Endpoint, reason: u16, private: Private) {
        let kind = rdma_cm_event_type::RDMA_CM_EVENT_REJECTED;
        let mut event = CmEvent::plain(kind, reason.into(), endpoint.arc());
        event.private = private;
        event.private_len = Private::REJECT;
        if !self.abandoned {
            self.events.push(event);
        }
    }

    /// The link is open, or could not be opened.
    pub(super) fn opened(&mut self, endpoint: &Endpoint) {
        let Some(link) = &mut self.link else {
            return;
        };
        match link.opened() {
            Ok(()) => {
                self.phase = Phase::RequestSent;
                self.tx.control(Frame::Request(self.mine, self.private));
                self.pump(endpoint);
            }
            Err(error) => self.connect_failed(endpoint, &error),
        }
    }

    /// Makes the queue pair ready for what both sides have agreed.
    fn make_ready(&mut self) {
        if let Some(qp) = &mut self.qp
            && !qp.is_error()
        {
            qp.state = ibv_qp_state::IBV_QPS_RTS;
            let reads = self
                .mine
                .initiator_depth
                .min(self.theirs.responder_resources);
            qp.max_reads = reads.into();
            qp.rnr_retry = self.theirs.rnr_retry_count & 7;
            qp.rnr_left = qp.rnr_retry;
        }
    }

    pub fn accept(&mut self, endpoint: &Endpoint, param: Option<&ConnParam>) -> Result<(), i32> {
        if self.phase != Phase::Requested {
            return Err(NO_SUCH);
        }
        let most = limits::MAX_QP_RD_ATOM as u8;
        let theirs = self.theirs;
        let given = param.copied().unwrap_or(ConnParam {
            private: Private::NONE,
            responder_resources: MOST,
            initiator_depth: MOST,
            flow_control: theirs.flow_control,
            retry_count: theirs.retry_count,
            rnr_retry_count: theirs.rnr_retry_count,
            srq: 0,
            qp_num: 0,
        });
        let qp_num = self.qp.as_ref().map_or(given.qp_num, |qp| qp.init.num);
        self.mine = given.params(
            qp_num,
            theirs.initiator_depth.min(most),
            theirs.responder_resources.min(most),
        );
        self.make_ready();
        self.phase = Phase::Accepted;
        if self.link.is_none() {
            // Gone before it was accepted.
            self.phase = Phase::Closed;
            self.fail_qp();
            let kind = rdma_cm_event_type::RDMA_CM_EVENT_UNREACHABLE;
            self.event(endpoint, kind, -libc::ETIMEDOUT);
            return Ok(());
        }
        self.set_timer(endpoint, Timer::Handshake, CONNECT_TIME);
        self.tx.control(Frame::Reply(self.mine, given.private));
        self.pump(endpoint);
        self.watch(endpoint);
        Ok(())
    }

    pub fn reject(&mut self, endpoint: &Endpoint, private: Private) -> Result<(), i32> {
        if !matches!(self.phase, Phase::Requested | Phase::ReplyReceived) {
            return Err(NO_SUCH);
        }
        self.phase = Phase::Closed;
        self.rx.paused = false;
        self.tx
            .control(Frame::Reject(REJECTED_BY_CONSUMER, private));
        self.pump(endpoint);
        self.watch(endpoint);
        Ok(())
    }

    /// The program knows that it was accepted.
    pub fn establish(&mut self, endpoint: &Endpoint) -> Result<(), i32> {
        if self.phase != Phase::ReplyReceived {
            return Err(NO_SUCH);
        }
        self.make_ready();
        self.phase = Phase::Established;
        self.tx.control(Frame::Ready);
        self.rx.paused = false;
        if self.consume(endpoint).is_err() {
            self.lost(endpoint);
        }
        self.pump(endpoint);
        self.watch(endpoint);
        Ok(())
    }

    pub fn disconnect(&mut self, endpoint: &Endpoint) -> Result<(), i32> {
        match self.phase {
            Phase::Established | Phase::Accepted => {
                self.fail_qp();
                self.phase = Phase::DisconnectSent;
                self.clear_timer(Timer::Handshake);
                self.tx.control(Frame::Disconnect);
                self.set_timer(endpoint, Timer::Disconnect, DISCONNECT_TIME);
            }
            Phase::DisconnectReceived => {
                self.fail_qp();
                self.phase = Phase::Closed;
                self.tx.control(Frame::Disconnected);
                self.set_timer(endpoint, Timer::TimeWait, TIME_WAIT);
            }
            Phase::DisconnectSent | Phase::Closed => {
                self.fail_qp();
                return Ok(());
            }
            _ => return Err(NO_SUCH),
        }
        self.pump(endpoint);
        self.watch(endpoint);
        Ok(())
    }

    pub(super) fn handshake_timed_out(&mut self, endpoint: &Endpoint) {
        self.lost(endpoint);
    }

    pub(super) fn disconnect_timed_out(&mut self, endpoint: &Endpoint) {
        if self.phase == Phase::DisconnectSent {
            self.disconnected(endpoint);
        }
    }

    fn disconnected(&mut self, endpoint: &Endpoint) {
        self.phase = Phase::Closed;
        self.clear_timer(Timer::Disconnect);
        let kind = rdma_cm_event_type::RDMA_CM_EVENT_DISCONNECTED;
        self.event(endpoint, kind, 0);
        self.set_timer(endpoint, Timer::TimeWait, TIME_WAIT);
    }

    /// Deals with a frame of connection management.
    pub(super) fn manage(&mut self, endpoint: &Endpoint, frame: Frame) -> Result<(), Malformed> {
        use rdma_cm_event_type::*;
        match (frame, self.phase) {
            // What the other side had sent before it knew.
            (_, Phase::Closed) => {}
            (Frame::Request(params, private), Phase::Greeting) => {
                self.clear_timer(Timer::Handshake);
                self.theirs = params;
                self.requested(endpoint, private);
            }
            (Frame::Reply(params, private), Phase::RequestSent) => {
                self.clear_timer(Timer::Handshake);
                self.theirs = params;
                self.phase = Phase::ReplyReceived;
                // What follows is for a queue pair that the program has not made ready.
                self.rx.paused = true;
                let kind = if self.qp.is_some() && !self.program_moves_qp {
                    RDMA_CM_EVENT_ESTABLISHED
                } else {
                    RDMA_CM_EVENT_CONNECT_RESPONSE
                };
                let mut event = CmEvent::plain(kind, 0, endpoint.arc());
                event.params = Some(params);
                event.private = private;
                event.private_len = Private::MAX;
                self.events.push(event);
            }
            (Frame::Reject(reason, private), Phase::RequestSent) => {
                self.clear_timer(Timer::Handshake);
                self.phase = Phase::Closed;
                self.fail_qp();
                self.rejected(endpoint, reason, private);
            }
            // The other side has changed its mind.
            (Frame::Reject(reason, private), Phase::Accepted) => {
                self.clear_timer(Timer::Handshake);
                self.phase = Phase::Closed;
                self.fail_qp();
                self.rejected(endpoint, reason, private);
            }
            (Frame::Reject(..), Phase::Requested) => self.drop_link(endpoint),
            (Frame::Ready, Phase::Accepted) => {
                self.clear_timer(Timer::Handshake);
                self.phase = Phase::Established;
                self.event(endpoint, RDMA_CM_EVENT_ESTABLISHED, 0);
            }
            (Frame::Ready, Phase::DisconnectSent) => {}
            (Frame::Disconnect, Phase::Established | Phase::Accepted) => {
                self.clear_timer(Timer::Handshake);
                self.phase = Phase::DisconnectReceived;
                self.peer_failed = true;
                self.event(endpoint, RDMA_CM_EVENT_DISCONNECTED, 0);
                self.set_timer(endpoint, Timer::PeerGone, PEER_GONE_TIME);
            }
            // Both at once.
            (Frame::Disconnect, Phase::DisconnectSent) => {
                self.tx.control(Frame::Disconnected);
                self.disconnected(endpoint);
            }
            (Frame::Disconnected, Phase::DisconnectSent) => self.disconnected(endpoint),
            _ => return Err(Malformed),
        }
        Ok(())
    }

    /// A request to connect has come to a listener.
    fn requested(&mut self, endpoint: &Endpoint, private: Private) {
        if let Some(listener) = self.parent.upgrade()
            && self.tell_listener(endpoint, &listener, private)
        {
            return;
        }
        self.parent = Default::default();
        self.abandoned = true;
        self.phase = Phase::Closed;
        let reject = Frame::Reject(REJECTED_BY_CONSUMER, Private::NONE);
        self.tx.control(reject);
        self.set_timer(endpoint, Timer::Linger, GREETING_TIME);
    }

    /// Tells who listens, unless it does no longer, or has enough that wait.
    fn tell_listener(
        &mut self,
        endpoint: &Endpoint,
        listener: &Arc<Endpoint>,
        private: Private,
    ) -> bool {
        // Locked until it is told, so that it is neither destroyed before nor has another channel.
        let state = listener.lock();
        if state.phase != Phase::Listening
            || listener.waiting.load(Ordering::Relaxed) >= state.backlog
        {
            return false;
        }
        listener.waiting.fetch_add(1, Ordering::Relaxed);
        self.phase = Phase::Requested;
        self.events = state.events.clone();
        let kind = rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST;
        let mut event = CmEvent::plain(kind, 0, endpoint.arc());
        event.listener = Some(listener.clone());
        event.params = Some(self.theirs);
        event.private = private;
        event.private_len = Private::REQUEST;
        state.events.push(event);
        true
    }

    /// The program has been told of the request to connect.
    pub fn request_taken(&mut self) {
        self.leave_backlog();
    }
}
