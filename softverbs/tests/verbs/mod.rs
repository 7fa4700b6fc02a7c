//! The C interface of the two libraries as the tests use it: objects that are destroyed when they
//! are dropped, requests, and what is waited for. Whichever library the test program is linked
//! with, or has preloaded, is the one that is called.
#![allow(dead_code, reason = "no test program uses all of it")]
#![allow(clippy::missing_safety_doc, reason = "C is called here all the time")]

use rdma_sys::*;
use std::ffi::{CStr, c_int, c_void};
use std::mem::{MaybeUninit, offset_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};
use std::{io, ptr, slice, thread};

/// Nothing here takes so long.
pub const LIMIT: Duration = Duration::from_secs(20);
pub const NOW: Duration = Duration::ZERO;
pub const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A call of C.
macro_rules! c {
    ($($call:tt)*) => {{
        // SAFETY: what is handed over are the test's own objects, which it has not destroyed.
        #[allow(unused_unsafe)]
        unsafe { $($call)* }
    }};
}

pub fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// A call that returns 0 or fails.
#[track_caller]
pub fn good(what: &str, result: c_int) {
    assert_eq!(result, 0, "{what}: {}", io::Error::last_os_error());
}

/// A call that fails with -1 and that errno.
#[track_caller]
pub fn fails(what: &str, result: c_int, with: c_int) {
    let error = errno();
    assert_eq!(
        (result, error),
        (-1, with),
        "{what}: what it returned, and errno"
    );
}

#[track_caller]
pub fn made<T>(what: &str, object: *mut T) -> *mut T {
    assert!(!object.is_null(), "{what}: {}", io::Error::last_os_error());
    object
}

/// An object that is destroyed while a test fails may be in use still.
fn destroyed(what: &str, result: c_int) {
    if !thread::panicking() {
        assert_eq!(result, 0, "{what}: errno");
    }
}

/// Does something until it is so.
#[track_caller]
pub fn until(what: &str, limit: Duration, mut so: impl FnMut() -> bool) {
    let end = Instant::now() + limit;
    while !so() {
        assert!(Instant::now() < end, "{what}: not within {limit:?}");
        thread::yield_now();
    }
}

/// What poll(2) says of a descriptor at once, or when that changes.
pub fn readable(fd: RawFd, within: Duration) -> bool {
    let mut one = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let end = Instant::now() + within;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        match c!(libc::poll(&mut one, 1, left.as_millis() as c_int)) {
            1 => return one.revents & libc::POLLIN != 0,
            -1 if errno() == libc::EINTR => {}
            _ => return false,
        }
    }
}

pub fn set_nonblocking(fd: RawFd) {
    let flags = c!(libc::fcntl(fd, libc::F_GETFL));
    good(
        "fcntl",
        c!(libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK)),
    );
}

pub fn descriptors() -> usize {
    // One is of the directory itself.
    std::fs::read_dir("/proc/self/fd").unwrap().count() - 1
}

/// Resident memory that no file backs, in bytes.
pub fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:"));
    let words: Vec<&str> = line.unwrap().split_whitespace().collect();
    words[1].parse::<usize>().unwrap() * 1024
}

/// The device, which stays open.
pub fn device() -> *mut ibv_context {
    static DEVICE: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    let context = *DEVICE.get_or_init(|| {
        let mut n = 0;
        // The list is not freed: that would let go of the device.
        let list = c!(rdma_get_devices(&mut n));
        assert!(n > 0, "there is no device");
        c!((*list).expose_provenance())
    });
    ptr::with_exposed_provenance_mut(context)
}

// ---- addresses ----

pub struct CAddress(libc::sockaddr_storage);

impl CAddress {
    pub fn new(address: &SocketAddr) -> Self {
        let mut storage: libc::sockaddr_storage = c!(zeroed());
        match address {
            SocketAddr::V4(v4) => {
                let to: *mut libc::sockaddr_in = (&raw mut storage).cast();
                c! {
                    (*to).sin_family = libc::AF_INET as u16;
                    (*to).sin_port = v4.port().to_be();
                    (*to).sin_addr.s_addr = u32::from(*v4.ip()).to_be();
                }
            }
            SocketAddr::V6(v6) => {
                let to: *mut libc::sockaddr_in6 = (&raw mut storage).cast();
                c! {
                    (*to).sin6_family = libc::AF_INET6 as u16;
                    (*to).sin6_port = v6.port().to_be();
                    (*to).sin6_addr.s6_addr = v6.ip().octets();
                }
            }
        }
        CAddress(storage)
    }

    pub fn raw(&mut self) -> *mut libc::sockaddr {
        (&raw mut self.0).cast()
    }
}

/// The address in C's memory.
pub fn address_of(raw: &libc::sockaddr) -> SocketAddr {
    let raw = ptr::from_ref(raw);
    c! {
        if c_int::from((*raw).sa_family) == libc::AF_INET {
            let v4 = *raw.cast::<libc::sockaddr_in>();
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            (ip, u16::from_be(v4.sin_port)).into()
        } else {
            let v6 = *raw.cast::<libc::sockaddr_in6>();
            (v6.sin6_addr.s6_addr, u16::from_be(v6.sin6_port)).into()
        }
    }
}

// ---- event channels ----

pub use rdma_cm_event_type::*;

/// An event of connection management.
pub struct Event {
    raw: *mut rdma_cm_event,
    pub kind: rdma_cm_event_type::Type,
    pub status: c_int,
    pub id: *mut rdma_cm_id,
    pub listen_id: *mut rdma_cm_id,
    pub private: Vec<u8>,
    pub param: rdma_conn_param,
}

impl Event {
    pub fn acknowledge(self) {
        good("rdma_ack_cm_event", c!(rdma_ack_cm_event(self.raw)));
    }
}

pub fn name(kind: rdma_cm_event_type::Type) -> &'static str {
    let name = c!(CStr::from_ptr(rdma_event_str(kind)));
    name.to_str().unwrap()
}

pub struct Channel(pub *mut rdma_event_channel);
// SAFETY: a channel is for all threads.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Channel {
    pub fn new() -> Self {
        Channel(made(
            "rdma_create_event_channel",
            c!(rdma_create_event_channel()),
        ))
    }

    pub fn fd(&self) -> RawFd {
        c!((*self.0).fd)
    }

    /// The next event, not acknowledged.
    #[track_caller]
    pub fn take(&self) -> Event {
        assert!(readable(self.fd(), LIMIT), "no event within {LIMIT:?}");
        let mut raw = ptr::null_mut();
        good("rdma_get_cm_event", c!(rdma_get_cm_event(self.0, &mut raw)));
        let event = c!(&*raw);
        let param = c!(event.param.conn);
        let private = if param.private_data.is_null() {
            vec![]
        } else {
            let data = param.private_data.cast::<u8>();
            c!(std::slice::from_raw_parts(
                data,
                param.private_data_len.into()
            ))
            .to_vec()
        };
        Event {
            raw,
            kind: event.event,
            status: event.status,
            id: event.id,
            listen_id: event.listen_id,
            private,
            param,
        }
    }

    /// The next event within that time, acknowledged.
    pub fn get_within(&self, limit: Duration) -> Option<Event> {
        readable(self.fd(), limit).then(|| {
            let event = self.take();
            c!(rdma_ack_cm_event(event.raw));
            event
        })
    }

    /// The next event but the end of a TIMEWAIT, acknowledged.
    #[track_caller]
    pub fn get(&self) -> Event {
        loop {
            let event = self.take();
            c!(rdma_ack_cm_event(event.raw));
            if event.kind != RDMA_CM_EVENT_TIMEWAIT_EXIT {
                return event;
            }
        }
    }

    /// The next event, which is that one.
    #[track_caller]
    pub fn expect(&self, kind: rdma_cm_event_type::Type) -> Event {
        let event = self.get();
        assert_eq!(
            name(event.kind),
            name(kind),
            "(seen and expected; its status is {})",
            event.status
        );
        event
    }

    pub fn is_quiet(&self) -> bool {
        !readable(self.fd(), NOW)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        c!(rdma_destroy_event_channel(self.0));
    }
}

// ---- ids ----

/// An id, with its queue pair.
pub struct Id(pub *mut rdma_cm_id);
// SAFETY: the tests see to who uses it when.
unsafe impl Send for Id {}
// SAFETY: as above.
unsafe impl Sync for Id {}

impl Id {
    pub fn new(channel: &Channel) -> Self {
        let mut id = ptr::null_mut();
        let ps = rdma_port_space::RDMA_PS_TCP;
        let result = c!(rdma_create_id(
            channel.0,
            &mut id,
            0x1234 as *mut c_void,
            ps
        ));
        good("rdma_create_id", result);
        Id(id)
    }

    /// One without a channel, whose calls wait.
    pub fn new_sync() -> Self {
        let mut id = ptr::null_mut();
        let ps = rdma_port_space::RDMA_PS_TCP;
        let result = c!(rdma_create_id(
            ptr::null_mut(),
            &mut id,
            ptr::null_mut(),
            ps
        ));
        good("rdma_create_id", result);
        Id(id)
    }

    pub fn bind(&self, address: &SocketAddr) -> c_int {
        c!(rdma_bind_addr(self.0, CAddress::new(address).raw()))
    }

    /// Listens at that address.
    #[track_caller]
    pub fn listen_at(&self, address: &SocketAddr, backlog: c_int) -> SocketAddr {
        good("rdma_bind_addr", self.bind(address));
        good("rdma_listen", c!(rdma_listen(self.0, backlog)));
        self.local()
    }

    /// Listens at a free port.
    #[track_caller]
    pub fn listen(&self) -> SocketAddr {
        self.listen_at(&LOOPBACK, 64)
    }

    pub fn local(&self) -> SocketAddr {
        address_of(c!(rdma_get_local_addr(&*self.0)))
    }

    pub fn peer(&self) -> SocketAddr {
        address_of(c!(rdma_get_peer_addr(&*self.0)))
    }

    /// Begins to resolve the address.
    pub fn resolve_addr(&self, to: &SocketAddr) -> c_int {
        c!(rdma_resolve_addr(
            self.0,
            ptr::null_mut(),
            CAddress::new(to).raw(),
            2000
        ))
    }

    /// Resolves address and route.
    #[track_caller]
    pub fn resolve(&self, channel: &Channel, to: &SocketAddr) {
        good("rdma_resolve_addr", self.resolve_addr(to));
        channel.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
        good("rdma_resolve_route", c!(rdma_resolve_route(self.0, 2000)));
        channel.expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
    }

    #[track_caller]
    pub fn connect(&self, param: &ConnParam) {
        good("rdma_connect", c!(rdma_connect(self.0, &mut param.c())));
    }

    #[track_caller]
    pub fn accept(&self, param: &ConnParam) {
        good("rdma_accept", c!(rdma_accept(self.0, &mut param.c())));
    }

    #[track_caller]
    pub fn disconnect(&self) {
        good("rdma_disconnect", c!(rdma_disconnect(self.0)));
    }

    /// Ends the connection, if there is one.
    pub fn hang_up(&self) {
        c!(rdma_disconnect(self.0));
    }

    #[track_caller]
    pub fn migrate(&self, channel: &Channel) {
        good("rdma_migrate_id", c!(rdma_migrate_id(self.0, channel.0)));
    }

    pub fn qp(&self) -> *mut ibv_qp {
        c!((*self.0).qp)
    }

    pub fn destroy_qp(&self) {
        c!(rdma_destroy_qp(self.0));
    }

    #[track_caller]
    pub fn create_qp(&self, plan: &QpPlan) {
        let mut attr: ibv_qp_init_attr_ex = c!(zeroed());
        attr.send_cq = plan.send_cq.0;
        attr.recv_cq = plan.recv_cq.0;
        attr.srq = plan.srq.map_or(ptr::null_mut(), |srq| srq.0);
        attr.cap = plan.cap;
        attr.qp_type = ibv_qp_type::IBV_QPT_RC;
        attr.sq_sig_all = plan.sig_all.into();
        attr.comp_mask = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0;
        attr.pd = plan.pd.0;
        if plan.extended {
            attr.comp_mask |= ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0;
            attr.send_ops_flags = 0x7f | WITH_FLUSH | WITH_ATOMIC_WRITE;
        }
        let result = c!(rdma_create_qp_ex(self.0, &mut attr));
        good("rdma_create_qp_ex", result);
    }

    /// As `ibv_query_qp` tells.
    #[track_caller]
    pub fn query(&self) -> ibv_qp_attr {
        let (mut attr, mut init) = c!((zeroed(), zeroed()));
        let mask = ibv_qp_attr_mask::IBV_QP_STATE.0 as c_int;
        let result = c!(ibv_query_qp(self.qp(), &mut attr, mask, &mut init));
        good("ibv_query_qp", result);
        attr
    }

    /// A queue pair with queues of the id's own.
    #[track_caller]
    pub fn create_small_qp(&self) {
        let mut attr: ibv_qp_init_attr = c!(zeroed());
        attr.cap = ibv_qp_cap {
            max_send_wr: 2,
            max_recv_wr: 2,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 16,
        };
        attr.qp_type = ibv_qp_type::IBV_QPT_RC;
        good(
            "rdma_create_qp",
            c!(rdma_create_qp(self.0, ptr::null_mut(), &mut attr)),
        );
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        c! {
            if !(*self.0).qp.is_null() {
                rdma_destroy_qp(self.0);
            }
            rdma_destroy_id(self.0);
        }
    }
}

/// How a queue pair is to be.
pub struct QpPlan<'a> {
    pub pd: &'a Pd,
    pub send_cq: &'a Cq,
    pub recv_cq: &'a Cq,
    pub srq: Option<&'a Srq>,
    pub cap: ibv_qp_cap,
    pub sig_all: bool,
    /// For all operations that there are.
    pub extended: bool,
}

impl<'a> QpPlan<'a> {
    /// One that completes all to one queue, and knows all operations.
    pub fn new(pd: &'a Pd, cq: &'a Cq, cap: ibv_qp_cap) -> Self {
        QpPlan {
            pd,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            cap,
            sig_all: false,
            extended: true,
        }
    }
}

/// Room for so many requests, of several pieces each, and for so much inline data.
pub fn room_for(sends: usize, receives: usize, inline: u32) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: sends as u32,
        max_recv_wr: receives as u32,
        max_send_sge: 8,
        max_recv_sge: 8,
        max_inline_data: inline,
    }
}

/// What is said when connecting or accepting.
#[derive(Clone)]
pub struct ConnParam {
    pub private: Vec<u8>,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub rnr_retry: u8,
}

impl Default for ConnParam {
    fn default() -> Self {
        ConnParam {
            private: vec![],
            responder_resources: 16,
            initiator_depth: 16,
            rnr_retry: 7,
        }
    }
}

impl ConnParam {
    pub fn c(&self) -> rdma_conn_param {
        rdma_conn_param {
            private_data: self.private.as_ptr().cast(),
            private_data_len: self.private.len() as u8,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: 1,
            retry_count: 7,
            rnr_retry_count: self.rnr_retry,
            srq: 0,
            qp_num: 0,
        }
    }
}

// ---- domains, queues ----

pub struct Pd(pub *mut ibv_pd);
// SAFETY: a domain is for all threads.
unsafe impl Send for Pd {}
// SAFETY: as above.
unsafe impl Sync for Pd {}

impl Pd {
    pub fn new(context: *mut ibv_context) -> Self {
        Pd(made("ibv_alloc_pd", c!(ibv_alloc_pd(context))))
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        destroyed("ibv_dealloc_pd", c!(ibv_dealloc_pd(self.0)));
    }
}

pub struct CompChannel(pub *mut ibv_comp_channel);
// SAFETY: a channel is for all threads.
unsafe impl Send for CompChannel {}
// SAFETY: as above.
unsafe impl Sync for CompChannel {}

impl CompChannel {
    pub fn new(context: *mut ibv_context) -> Self {
        CompChannel(made(
            "ibv_create_comp_channel",
            c!(ibv_create_comp_channel(context)),
        ))
    }

    pub fn fd(&self) -> RawFd {
        c!((*self.0).fd)
    }

    /// The queue of the next event, which is not acknowledged.
    #[track_caller]
    pub fn take(&self) -> *mut ibv_cq {
        assert!(
            readable(self.fd(), LIMIT),
            "no completion event within {LIMIT:?}"
        );
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        good(
            "ibv_get_cq_event",
            c!(ibv_get_cq_event(self.0, &mut cq, &mut context)),
        );
        cq
    }

    /// Waits for an event, and acknowledges it; says whether there was one.
    pub fn wait(&self, limit: Duration) -> bool {
        let there = readable(self.fd(), limit);
        if there {
            c!(ibv_ack_cq_events(self.take(), 1));
        }
        there
    }
}

impl Drop for CompChannel {
    fn drop(&mut self) {
        destroyed(
            "ibv_destroy_comp_channel",
            c!(ibv_destroy_comp_channel(self.0)),
        );
    }
}

/// A completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wc {
    pub id: u64,
    pub status: Status,
    pub opcode: ibv_wc_opcode::Type,
    pub len: u32,
    pub imm: Option<u32>,
    pub qp: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Status(pub ibv_wc_status::Type);

impl std::fmt::Debug for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let text = c!(CStr::from_ptr(ibv_wc_status_str(self.0)));
        f.write_str(text.to_str().unwrap())
    }
}

pub const SUCCESS: Status = Status(ibv_wc_status::IBV_WC_SUCCESS);
pub const FLUSHED: Status = Status(ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
pub const LOC_PROT: Status = Status(ibv_wc_status::IBV_WC_LOC_PROT_ERR);
pub const LOC_LEN: Status = Status(ibv_wc_status::IBV_WC_LOC_LEN_ERR);
pub const LOC_QP_OP: Status = Status(ibv_wc_status::IBV_WC_LOC_QP_OP_ERR);
pub const REM_ACCESS: Status = Status(ibv_wc_status::IBV_WC_REM_ACCESS_ERR);
pub const REM_INV_REQ: Status = Status(ibv_wc_status::IBV_WC_REM_INV_REQ_ERR);
pub const REM_OP: Status = Status(ibv_wc_status::IBV_WC_REM_OP_ERR);
pub const RETRY_EXC: Status = Status(ibv_wc_status::IBV_WC_RETRY_EXC_ERR);
pub const RNR_RETRY_EXC: Status = Status(ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR);

pub struct Cq(pub *mut ibv_cq);
// SAFETY: a queue is for all threads.
unsafe impl Send for Cq {}
// SAFETY: as above.
unsafe impl Sync for Cq {}

impl Cq {
    pub fn new(context: *mut ibv_context, cqe: c_int, channel: Option<&CompChannel>) -> Self {
        let channel = channel.map_or(ptr::null_mut(), |channel| channel.0);
        let cq = c!(ibv_create_cq(context, cqe, 0x77 as *mut c_void, channel, 0));
        Cq(made("ibv_create_cq", cq))
    }

    /// What is there now, or why it cannot be had.
    pub fn poll(&self) -> Result<Option<Wc>, c_int> {
        let mut wc: ibv_wc = c!(zeroed());
        match c!(ibv_poll_cq(self.0, 1, &mut wc)) {
            0 => Ok(None),
            1 => Ok(Some(Wc {
                id: wc.wr_id,
                status: Status(wc.status),
                opcode: wc.opcode,
                len: wc.byte_len,
                imm: (wc.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0)
                    .then(|| u32::from_be(c!(wc.imm_data_invalidated_rkey_union.imm_data))),
                qp: wc.qp_num,
            })),
            error => Err(error),
        }
    }

    /// Adds what is there now, as C has it; gives how many there were.
    pub fn drain(&self, found: &mut Vec<ibv_wc>) -> usize {
        let mut room = [const { MaybeUninit::<ibv_wc>::uninit() }; 16];
        let len = room.len() as c_int;
        let n = c!(ibv_poll_cq(self.0, len, room.as_mut_ptr().cast()));
        let n = usize::try_from(n).expect("ibv_poll_cq succeeds");
        // As many are filled as it says.
        found.extend(room[..n].iter().map(|one| c!(one.assume_init_read())));
        n
    }

    /// The next completion.
    #[track_caller]
    pub fn next(&self) -> Wc {
        let end = Instant::now() + LIMIT;
        loop {
            if let Some(wc) = self.poll().unwrap() {
                return wc;
            }
            assert!(Instant::now() < end, "no completion within {LIMIT:?}");
            thread::yield_now();
        }
    }

    /// The next completion, which is of that request and ended so.
    #[track_caller]
    pub fn expect(&self, id: u64, status: Status) -> Wc {
        let wc = self.next();
        assert_eq!(
            (wc.id, wc.status),
            (id, status),
            "seen and expected: request, how it ended"
        );
        wc
    }

    #[track_caller]
    pub fn is_empty(&self) -> bool {
        self.poll().unwrap().is_none()
    }

    pub fn arm(&self, solicited: bool) {
        good(
            "ibv_req_notify_cq",
            c!(ibv_req_notify_cq(self.0, solicited.into())),
        );
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        destroyed("ibv_destroy_cq", c!(ibv_destroy_cq(self.0)));
    }
}

pub struct Srq(pub *mut ibv_srq);
// SAFETY: a queue is for all threads.
unsafe impl Send for Srq {}
// SAFETY: as above.
unsafe impl Sync for Srq {}

impl Srq {
    pub fn new(pd: &Pd, max_wr: u32) -> Self {
        let mut init: ibv_srq_init_attr = c!(zeroed());
        init.attr.max_wr = max_wr;
        init.attr.max_sge = 4;
        Srq(made("ibv_create_srq", c!(ibv_create_srq(pd.0, &mut init))))
    }

    pub fn recv(&self, id: u64, sges: &[ibv_sge]) -> c_int {
        let mut wr = ibv_recv_wr {
            wr_id: id,
            next: ptr::null_mut(),
            sg_list: sges.as_ptr().cast_mut(),
            num_sge: sges.len() as c_int,
        };
        c!(ibv_post_srq_recv(self.0, &mut wr, &mut ptr::null_mut()))
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        destroyed("ibv_destroy_srq", c!(ibv_destroy_srq(self.0)));
    }
}

// ---- memory ----

pub const LOCAL: u32 = 1;
pub const REMOTE_WRITE: u32 = 2;
pub const REMOTE_READ: u32 = 4;
pub const REMOTE_ATOMIC: u32 = 8;
pub const ZERO_BASED: u32 = 1 << 5;
pub const FLUSH_GLOBAL: u32 = 1 << 8;
pub const FLUSH_PERSISTENT: u32 = 1 << 9;
/// All that any memory can be registered for.
pub const ALL: u32 = LOCAL | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC | FLUSH_GLOBAL;

/// Pages of this process's own, or of a file.
pub struct Pages {
    start: *mut u8,
    len: usize,
}
// SAFETY: the tests see to who uses which part when.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    pub fn new(len: usize) -> Self {
        Self::map(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    /// Of a file, which is made as long.
    pub fn of_file(file: &std::fs::File, len: usize) -> Self {
        file.set_len(len as u64).unwrap();
        Self::map(len, libc::MAP_SHARED, file.as_raw_fd())
    }

    #[track_caller]
    fn map(len: usize, kind: c_int, fd: RawFd) -> Self {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let start = c!(libc::mmap(ptr::null_mut(), len, prot, kind, fd, 0));
        let error = io::Error::last_os_error();
        assert_ne!(start, libc::MAP_FAILED, "mmap: {error}");
        Pages {
            start: start.cast(),
            len,
        }
    }

    pub fn addr(&self) -> u64 {
        self.start as u64
    }

    pub fn ptr(&self) -> *mut u8 {
        self.start
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// The bytes. What peers write to it they must not write while they are looked at.
    pub fn bytes(&self) -> &[u8] {
        self.part(0, self.len)
    }

    #[allow(
        clippy::mut_from_ref,
        reason = "parts of it belong to different requests"
    )]
    pub fn part(&self, at: usize, len: usize) -> &mut [u8] {
        assert!(at <= self.len && len <= self.len - at);
        c!(slice::from_raw_parts_mut(self.start.add(at), len))
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        c!(libc::munmap(self.start.cast(), self.len));
    }
}

/// A registered part of pages.
pub struct Mr(pub *mut ibv_mr);
// SAFETY: a region is for all threads.
unsafe impl Send for Mr {}
// SAFETY: as above.
unsafe impl Sync for Mr {}

impl Mr {
    #[track_caller]
    pub fn new(pd: &Pd, pages: &Pages, at: usize, len: usize, access: u32) -> Self {
        assert!(at + len <= pages.len());
        let addr = pages.ptr().wrapping_add(at).cast();
        let mr = c!(ibv_reg_mr(pd.0, addr, len, access as c_int));
        Mr(made("ibv_reg_mr", mr))
    }

    pub fn lkey(&self) -> u32 {
        c!((*self.0).lkey)
    }

    pub fn rkey(&self) -> u32 {
        c!((*self.0).rkey)
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        destroyed("ibv_dereg_mr", c!(ibv_dereg_mr(self.0)));
    }
}

/// Pages that are registered, all of them.
pub struct Memory {
    // Deregistered before it is unmapped.
    mr: Option<Mr>,
    pages: Pages,
}

impl Memory {
    #[track_caller]
    pub fn new(pd: &Pd, len: usize, access: u32) -> Self {
        Self::of(pd, Pages::new(len), access)
    }

    #[track_caller]
    pub fn of(pd: &Pd, pages: Pages, access: u32) -> Self {
        let mr = Mr::new(pd, &pages, 0, pages.len(), access);
        Memory {
            mr: Some(mr),
            pages,
        }
    }

    pub fn addr(&self) -> u64 {
        self.pages.addr()
    }

    pub fn ptr(&self) -> *mut u8 {
        self.pages.ptr()
    }

    #[track_caller]
    pub fn mr(&self) -> &Mr {
        self.mr.as_ref().expect("it is registered")
    }

    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.pages.len());
        c!(ptr::copy_nonoverlapping(
            bytes.as_ptr(),
            self.ptr().add(at),
            bytes.len()
        ));
    }

    pub fn fill(&self, byte: u8) {
        c!(ptr::write_bytes(self.ptr(), byte, self.pages.len()));
    }

    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.pages.len());
        let mut bytes = vec![0; len];
        c!(ptr::copy_nonoverlapping(
            self.ptr().add(at),
            bytes.as_mut_ptr(),
            len
        ));
        bytes
    }

    pub fn word(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.read(at, 8).try_into().unwrap())
    }

    pub fn sge(&self, at: usize, len: usize) -> ibv_sge {
        ibv_sge {
            addr: self.addr() + at as u64,
            length: len as u32,
            lkey: self.mr().lkey(),
        }
    }

    /// For the other side.
    pub fn at(&self, at: usize) -> At {
        At {
            addr: self.addr() + at as u64,
            rkey: self.mr().rkey(),
        }
    }

    /// Deregisters it, and leaves it mapped.
    pub fn deregister(&mut self) {
        self.mr = None;
    }
}

/// Bytes that are different everywhere, and for every seed.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = vec![0; len];
    for chunk in bytes.chunks_mut(8) {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        chunk.copy_from_slice(&(state ^ state >> 29).to_le_bytes()[..chunk.len()]);
    }
    bytes
}

/// Two contents that should be equal, told apart without printing all of them.
#[track_caller]
pub fn same(what: &str, seen: &[u8], expected: &[u8]) {
    assert_eq!(seen.len(), expected.len(), "{what}: the length");
    if seen == expected {
        return;
    }
    if let Some(at) = (0..seen.len()).find(|at| seen[*at] != expected[*at]) {
        let end = (at + 16).min(seen.len());
        panic!(
            "{what}: of {} bytes, those from {at} on are {:02x?} instead of {:02x?}",
            seen.len(),
            &seen[at..end],
            &expected[at..end]
        );
    }
}

// ---- requests ----

#[derive(Clone, Copy, Debug)]
pub struct At {
    pub addr: u64,
    pub rkey: u32,
}

#[derive(Clone, Copy, Debug)]
pub enum Op {
    Send,
    SendImm(u32),
    Write(At),
    WriteImm(At, u32),
    Read(At),
    CompareSwap(At, u64, u64),
    FetchAdd(At, u64),
    AtomicWrite(At, [u8; 8]),
    /// With the bits of where to, and whether all of the region.
    Flush(At, usize, u8, bool),
}

impl Op {
    pub fn send(imm: Option<u32>) -> Self {
        imm.map_or(Op::Send, Op::SendImm)
    }

    /// Whether it brings bytes of this side to the other.
    pub fn carries(&self) -> bool {
        matches!(
            self,
            Op::Send | Op::SendImm(_) | Op::Write(_) | Op::WriteImm(..)
        )
    }
}

pub const GLOBAL: u8 = 1;
pub const PERSISTENT: u8 = 2;

pub const SIGNALED: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0;
pub const FENCE: u32 = ibv_send_flags::IBV_SEND_FENCE.0;
pub const SOLICITED: u32 = ibv_send_flags::IBV_SEND_SOLICITED.0;
pub const INLINE: u32 = ibv_send_flags::IBV_SEND_INLINE.0;

/// A send request.
#[derive(Clone)]
pub struct Wr {
    pub id: u64,
    pub op: Op,
    pub sges: Vec<ibv_sge>,
    pub flags: u32,
}

impl Wr {
    pub fn new(id: u64, op: Op, sges: Vec<ibv_sge>) -> Self {
        Wr {
            id,
            op,
            sges,
            flags: SIGNALED,
        }
    }

    pub fn with(mut self, flags: u32) -> Self {
        self.flags |= flags;
        self
    }

    pub fn unsignaled(mut self) -> Self {
        self.flags &= !SIGNALED;
        self
    }

    /// With that flag, or without it.
    pub fn set(mut self, flag: u32, on: bool) -> Self {
        self.flags = if on {
            self.flags | flag
        } else {
            self.flags & !flag
        };
        self
    }

    /// Posts it by the extended interface, if that is wanted or needed.
    #[track_caller]
    pub fn post(self, qp: *mut ibv_qp, extended: bool) {
        let op = self.op;
        let posted = if extended || matches!(op, Op::Flush(..)) {
            post_extended(qp, &[self])
        } else {
            post_list(qp, &[self]).map_err(|(error, _)| error)
        };
        assert_eq!(posted, Ok(()), "posting {op:?}");
    }
}

const WR_ATOMIC_WRITE: ibv_wr_opcode::Type = 15;
pub const WC_FLUSH: ibv_wc_opcode::Type = 8;
pub const WC_ATOMIC_WRITE: ibv_wc_opcode::Type = 9;
pub const WITH_FLUSH: u64 = 1 << 11;
pub const WITH_ATOMIC_WRITE: u64 = 1 << 12;

/// By `ibv_post_send`: all in one list. Gives errno and the position of the bad one.
pub fn post_list(qp: *mut ibv_qp, wrs: &[Wr]) -> Result<(), (c_int, usize)> {
    let mut sges: Vec<Vec<ibv_sge>> = wrs.iter().map(|wr| wr.sges.clone()).collect();
    let values: Vec<[u8; 8]> = wrs
        .iter()
        .map(|wr| match wr.op {
            Op::AtomicWrite(_, value) => value,
            _ => [0; 8],
        })
        .collect();
    let mut list: Vec<ibv_send_wr> = vec![];
    for (i, (wr, sges)) in wrs.iter().zip(&mut sges).enumerate() {
        let mut c: ibv_send_wr = c!(zeroed());
        let mut flags = wr.flags;
        if let Op::AtomicWrite(..) = wr.op {
            *sges = vec![ibv_sge {
                addr: values[i].as_ptr() as u64,
                length: 8,
                lkey: 0,
            }];
            flags |= INLINE;
        }
        c.wr_id = wr.id;
        c.sg_list = sges.as_mut_ptr();
        c.num_sge = sges.len() as c_int;
        c.send_flags = flags;
        let rdma = |at: At| rdma_t {
            remote_addr: at.addr,
            rkey: at.rkey,
        };
        use ibv_wr_opcode::*;
        match wr.op {
            Op::Send => c.opcode = IBV_WR_SEND,
            Op::SendImm(imm) => {
                c.opcode = IBV_WR_SEND_WITH_IMM;
                c.imm_data_invalidated_rkey_union.imm_data = imm.to_be();
            }
            Op::Write(at) => (c.opcode, c.wr.rdma) = (IBV_WR_RDMA_WRITE, rdma(at)),
            Op::WriteImm(at, imm) => {
                (c.opcode, c.wr.rdma) = (IBV_WR_RDMA_WRITE_WITH_IMM, rdma(at));
                c.imm_data_invalidated_rkey_union.imm_data = imm.to_be();
            }
            Op::Read(at) => (c.opcode, c.wr.rdma) = (IBV_WR_RDMA_READ, rdma(at)),
            Op::AtomicWrite(at, _) => (c.opcode, c.wr.rdma) = (WR_ATOMIC_WRITE, rdma(at)),
            Op::CompareSwap(at, compare, swap) => {
                c.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
                c.wr.atomic = atomic_t {
                    remote_addr: at.addr,
                    compare_add: compare,
                    swap,
                    rkey: at.rkey,
                };
            }
            Op::FetchAdd(at, add) => {
                c.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
                c.wr.atomic = atomic_t {
                    remote_addr: at.addr,
                    compare_add: add,
                    swap: 0,
                    rkey: at.rkey,
                };
            }
            Op::Flush(..) => panic!("there is no list of flushes"),
        }
        list.push(c);
    }
    for i in (1..list.len()).rev() {
        list[i - 1].next = &raw mut list[i];
    }
    let first = list.as_mut_ptr();
    let mut bad = ptr::null_mut();
    match c!(ibv_post_send(qp, first, &mut bad)) {
        0 => Ok(()),
        error => Err((error, c!(bad.offset_from(first)) as usize)),
    }
}

/// The members of `struct ibv_qp_ex` that older headers lack.
#[repr(C)]
struct Newest {
    before: [*mut c_void; 3],
    atomic_write: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, *const c_void),
    flush: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, usize, u8, u8),
}

fn newest<'a>(qp: *mut ibv_qp_ex) -> &'a Newest {
    c!(&*qp.byte_add(offset_of!(ibv_qp_ex, wr_start)).cast())
}

/// Adds a request by the extended interface, between its start and its end.
pub fn add(qp: *mut ibv_qp_ex, wr: &Wr) {
    c! {
        (*qp).wr_id = wr.id;
        (*qp).wr_flags = wr.flags & !INLINE;
        match wr.op {
            Op::Send => ibv_wr_send(qp),
            Op::SendImm(imm) => ibv_wr_send_imm(qp, imm.to_be()),
            Op::Write(at) => ibv_wr_rdma_write(qp, at.rkey, at.addr),
            Op::WriteImm(at, imm) => ibv_wr_rdma_write_imm(qp, at.rkey, at.addr, imm.to_be()),
            Op::Read(at) => ibv_wr_rdma_read(qp, at.rkey, at.addr),
            Op::CompareSwap(at, compare, swap) => {
                ibv_wr_atomic_cmp_swp(qp, at.rkey, at.addr, compare, swap)
            }
            Op::FetchAdd(at, add) => ibv_wr_atomic_fetch_add(qp, at.rkey, at.addr, add),
            Op::AtomicWrite(at, value) => {
                (newest(qp).atomic_write)(qp, at.rkey, at.addr, value.as_ptr().cast())
            }
            Op::Flush(at, len, kind, whole) => {
                (newest(qp).flush)(qp, at.rkey, at.addr, len, kind, whole.into())
            }
        }
        let sges = &wr.sges;
        if matches!(wr.op, Op::AtomicWrite(..) | Op::Flush(..)) {
            return;
        }
        if wr.flags & INLINE != 0 {
            let buffers: Vec<ibv_data_buf> = sges
                .iter()
                .map(|sge| ibv_data_buf {
                    addr: sge.addr as *mut c_void,
                    length: sge.length as usize,
                })
                .collect();
            if let [one] = &buffers[..] {
                ibv_wr_set_inline_data(qp, one.addr, one.length);
            } else {
                ibv_wr_set_inline_data_list(qp, buffers.len(), buffers.as_ptr());
            }
        } else if let [one] = &sges[..] {
            ibv_wr_set_sge(qp, one.lkey, one.addr, one.length);
        } else {
            ibv_wr_set_sge_list(qp, sges.len(), sges.as_ptr());
        }
    }
}

/// By the extended interface. Gives errno.
pub fn post_extended(qp: *mut ibv_qp, wrs: &[Wr]) -> Result<(), c_int> {
    let qp = made("ibv_qp_to_qp_ex", c!(ibv_qp_to_qp_ex(qp)));
    c!(ibv_wr_start(qp));
    for wr in wrs {
        add(qp, wr);
    }
    match c!(ibv_wr_complete(qp)) {
        0 => Ok(()),
        error => Err(error),
    }
}

/// Posts receives as one list. Gives errno and the position of the bad one.
pub fn post_recvs(qp: *mut ibv_qp, recvs: &[(u64, Vec<ibv_sge>)]) -> Result<(), (c_int, usize)> {
    let mut sges: Vec<Vec<ibv_sge>> = recvs.iter().map(|(_, sges)| sges.clone()).collect();
    let mut list: Vec<ibv_recv_wr> = recvs
        .iter()
        .zip(&mut sges)
        .map(|((id, _), sges)| ibv_recv_wr {
            wr_id: *id,
            next: ptr::null_mut(),
            sg_list: sges.as_mut_ptr(),
            num_sge: sges.len() as c_int,
        })
        .collect();
    for i in (1..list.len()).rev() {
        list[i - 1].next = &raw mut list[i];
    }
    let first = list.as_mut_ptr();
    let mut bad = ptr::null_mut();
    match c!(ibv_post_recv(qp, first, &mut bad)) {
        0 => Ok(()),
        error => Err((error, c!(bad.offset_from(first)) as usize)),
    }
}
