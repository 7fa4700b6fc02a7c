//! What the tests use of the two libraries' C interface, with owners for what has to be destroyed.
#![allow(dead_code, reason = "no test program uses all of it")]

use rdma_sys::*;
use std::ffi::{c_int, c_void};
use std::mem::{MaybeUninit, offset_of, zeroed};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};
use std::{ptr, slice};

// ---- memory ----

/// Pages of this process's own, or of a file.
pub struct Memory(*mut u8, usize);

// SAFETY: pages may be used by any thread.
unsafe impl Send for Memory {}
// SAFETY: as above; who uses which part is for the tests to see to.
unsafe impl Sync for Memory {}

impl Memory {
    pub fn new(len: usize) -> Self {
        Self::map(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    pub fn of_file(file: &std::fs::File, len: usize) -> Self {
        use std::os::fd::AsRawFd;
        file.set_len(len as u64).unwrap();
        Self::map(len, libc::MAP_SHARED, file.as_raw_fd())
    }

    fn map(len: usize, flags: c_int, fd: c_int) -> Self {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: new pages.
        let at = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, fd, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Self(at.cast(), len)
    }

    pub fn addr(&self) -> u64 {
        self.0 as u64
    }

    pub fn ptr(&self) -> *mut u8 {
        self.0
    }

    pub fn len(&self) -> usize {
        self.1
    }

    /// The bytes. What peers write to it they must not write while they are looked at.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: mapped as long as it lives.
        unsafe { slice::from_raw_parts(self.0, self.1) }
    }

    #[allow(
        clippy::mut_from_ref,
        reason = "parts of it belong to different requests"
    )]
    pub fn part(&self, at: usize, len: usize) -> &mut [u8] {
        assert!(at <= self.1 && len <= self.1 - at);
        // SAFETY: within it; callers use parts that do not overlap.
        unsafe { slice::from_raw_parts_mut(self.0.add(at), len) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by this.
        unsafe { libc::munmap(self.0.cast(), self.1) };
    }
}

macro_rules! owner {
    ($name:ident, $of:ty, $destroy:expr) => {
        pub struct $name(pub *mut $of);

        // SAFETY: objects of the libraries may be used by any thread.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: it was made, and is destroyed once.
                let result: c_int = unsafe { $destroy(self.0) };
                assert_eq!(result, 0, stringify!($destroy));
            }
        }
    };
}

owner!(Pd, ibv_pd, ibv_dealloc_pd);
owner!(Mr, ibv_mr, ibv_dereg_mr);
owner!(Cq, ibv_cq, ibv_destroy_cq);
owner!(CompChannel, ibv_comp_channel, ibv_destroy_comp_channel);
owner!(Srq, ibv_srq, ibv_destroy_srq);

/// The device of these libraries, which stays open.
pub fn device() -> *mut ibv_context {
    static DEVICE: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    let context = *DEVICE.get_or_init(|| {
        let mut n = 0;
        // SAFETY: the list has `n` entries, and is not freed: that would let go of the device.
        unsafe {
            let list = rdma_get_devices(&mut n);
            assert!(n > 0, "there is no device");
            (*list).expose_provenance()
        }
    });
    ptr::with_exposed_provenance_mut(context)
}

impl Pd {
    pub fn new() -> Self {
        // SAFETY: the device is open.
        let pd = unsafe { ibv_alloc_pd(device()) };
        assert!(!pd.is_null());
        Self(pd)
    }
}

pub const LOCAL_WRITE: u32 = 1;
pub const REMOTE_WRITE: u32 = 1 << 1;
pub const REMOTE_READ: u32 = 1 << 2;
pub const REMOTE_ATOMIC: u32 = 1 << 3;
pub const ZERO_BASED: u32 = 1 << 5;
pub const FLUSH_GLOBAL: u32 = 1 << 8;
pub const FLUSH_PERSISTENT: u32 = 1 << 9;

impl Mr {
    pub fn new(pd: &Pd, memory: &Memory, at: usize, len: usize, access: u32) -> Self {
        assert!(at + len <= memory.len());
        let addr = memory.addr() + at as u64;
        // SAFETY: the range is mapped.
        let mr = unsafe { ibv_reg_mr_iova2(pd.0, addr as *mut c_void, len, addr, access) };
        assert!(!mr.is_null(), "{}", std::io::Error::last_os_error());
        Self(mr)
    }

    pub fn lkey(&self) -> u32 {
        // SAFETY: it is registered.
        unsafe { (*self.0).lkey }
    }

    pub fn rkey(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.0).rkey }
    }
}

impl CompChannel {
    pub fn new() -> Self {
        // SAFETY: the device is open.
        let channel = unsafe { ibv_create_comp_channel(device()) };
        assert!(!channel.is_null());
        Self(channel)
    }

    /// Waits for an event, and acknowledges it; says whether there was one.
    pub fn wait(&self, limit: Duration) -> bool {
        // SAFETY: the channel lives, and the event is acknowledged once.
        unsafe {
            if !readable((*self.0).fd, limit) {
                return false;
            }
            let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
            assert_eq!(ibv_get_cq_event(self.0, &mut cq, &mut context), 0);
            ibv_ack_cq_events(cq, 1);
            true
        }
    }
}

pub fn readable(fd: c_int, limit: Duration) -> bool {
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry.
    unsafe { libc::poll(&mut poll, 1, limit.as_millis() as c_int) > 0 }
}

impl Cq {
    pub fn new(entries: usize, channel: Option<&CompChannel>) -> Self {
        let channel = channel.map_or(ptr::null_mut(), |channel| channel.0);
        // SAFETY: the device is open, and so is the channel.
        let cq = unsafe { ibv_create_cq(device(), entries as c_int, ptr::null_mut(), channel, 0) };
        assert!(!cq.is_null());
        Self(cq)
    }

    pub fn poll(&self, found: &mut Vec<ibv_wc>) -> usize {
        let mut room = [const { MaybeUninit::<ibv_wc>::uninit() }; 16];
        // SAFETY: there is room for so many, and so many are filled as it says.
        unsafe {
            let n = ibv_poll_cq(self.0, room.len() as c_int, room.as_mut_ptr().cast());
            let n = usize::try_from(n).expect("ibv_poll_cq succeeds");
            found.extend(room[..n].iter().map(|one| one.assume_init_read()));
            n
        }
    }

    pub fn arm(&self, solicited: bool) {
        // SAFETY: the queue lives.
        assert_eq!(unsafe { ibv_req_notify_cq(self.0, solicited.into()) }, 0);
    }
}

impl Srq {
    pub fn new(pd: &Pd, entries: u32) -> Self {
        let mut init = ibv_srq_init_attr {
            srq_context: ptr::null_mut(),
            attr: ibv_srq_attr {
                max_wr: entries,
                max_sge: 4,
                srq_limit: 0,
            },
        };
        // SAFETY: the domain lives.
        let srq = unsafe { ibv_create_srq(pd.0, &mut init) };
        assert!(!srq.is_null());
        Self(srq)
    }

    pub fn post(&self, id: u64, sges: &[ibv_sge]) {
        // SAFETY: the queue lives; the list is copied.
        let result = with_receive(id, sges, |wr, bad| unsafe {
            ibv_post_srq_recv(self.0, wr, bad)
        });
        assert_eq!(result, 0, "ibv_post_srq_recv");
    }
}

fn with_receive(
    id: u64,
    sges: &[ibv_sge],
    post: impl FnOnce(*mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
) -> c_int {
    let mut wr = ibv_recv_wr {
        wr_id: id,
        next: ptr::null_mut(),
        sg_list: sges.as_ptr().cast_mut(),
        num_sge: sges.len() as c_int,
    };
    post(&mut wr, &mut ptr::null_mut())
}

// ---- connection management ----

pub struct Channel(pub *mut rdma_event_channel);

// SAFETY: a channel may be used by any thread.
unsafe impl Send for Channel {}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: no id is on it any more.
        unsafe { rdma_destroy_event_channel(self.0) };
    }
}

/// An event that has been acknowledged.
#[derive(Debug)]
pub struct Event {
    pub kind: rdma_cm_event_type::Type,
    pub status: c_int,
    pub id: *mut rdma_cm_id,
    pub private: Vec<u8>,
}

impl Channel {
    pub fn new() -> Self {
        // SAFETY: makes one.
        let channel = unsafe { rdma_create_event_channel() };
        assert!(!channel.is_null());
        Self(channel)
    }

    pub fn next(&self, limit: Duration) -> Option<Event> {
        // SAFETY: the channel lives; the event is acknowledged once.
        unsafe {
            if !readable((*self.0).fd, limit) {
                return None;
            }
            let mut event = ptr::null_mut();
            assert_eq!(rdma_get_cm_event(self.0, &mut event), 0);
            let conn = (*event).param.conn;
            let private = if conn.private_data.is_null() {
                vec![]
            } else {
                let len = conn.private_data_len.into();
                slice::from_raw_parts(conn.private_data.cast::<u8>(), len).to_vec()
            };
            let copy = Event {
                kind: (*event).event,
                status: (*event).status,
                id: (*event).id,
                private,
            };
            assert_eq!(rdma_ack_cm_event(event), 0);
            Some(copy)
        }
    }
}

/// A cm id, with the queue pair that it may have.
pub struct Id(pub *mut rdma_cm_id);

// SAFETY: an id may be used by any thread.
unsafe impl Send for Id {}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: it is one of the library's, destroyed once.
        unsafe {
            if !(*self.0).qp.is_null() {
                rdma_destroy_qp(self.0);
            }
            assert_eq!(rdma_destroy_id(self.0), 0);
        }
    }
}

pub fn sockaddr(port: u16) -> libc::sockaddr_in {
    let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
    libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr {
            s_addr: u32::from(*address.ip()).to_be(),
        },
        sin_zero: [0; 8],
    }
}

/// How a queue pair is to be.
pub struct QpPlan<'a> {
    pub pd: &'a Pd,
    pub send_cq: &'a Cq,
    pub recv_cq: &'a Cq,
    pub srq: Option<&'a Srq>,
    pub sends: usize,
    pub receives: usize,
    pub inline: u32,
    pub all_signaled: bool,
}

#[derive(Clone, Copy)]
pub struct Agreement<'a> {
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub rnr_retry: u8,
    pub private: &'a [u8],
}

impl Agreement<'_> {
    fn to_c(self) -> rdma_conn_param {
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

impl Id {
    pub fn new(channel: &Channel) -> Self {
        let mut id = ptr::null_mut();
        let space = rdma_port_space::RDMA_PS_TCP;
        // SAFETY: the channel lives.
        let result = unsafe { rdma_create_id(channel.0, &mut id, ptr::null_mut(), space) };
        assert_eq!(result, 0, "rdma_create_id");
        Self(id)
    }

    /// Listens at a free port, and says which.
    pub fn listen(&self) -> u16 {
        let mut address = sockaddr(0);
        // SAFETY: the id lives.
        unsafe {
            let address = (&raw mut address).cast();
            assert_eq!(rdma_bind_addr(self.0, address), 0, "rdma_bind_addr");
            assert_eq!(rdma_listen(self.0, 64), 0, "rdma_listen");
            u16::from_be(rdma_get_src_port(self.0))
        }
    }

    pub fn resolve(&self, channel: &Channel, port: u16) {
        let mut address = sockaddr(port);
        let limit = Duration::from_secs(10);
        // SAFETY: the id lives.
        unsafe {
            let address = (&raw mut address).cast();
            let result = rdma_resolve_addr(self.0, ptr::null_mut(), address, 1000);
            assert_eq!(result, 0, "rdma_resolve_addr");
            let event = channel.next(limit).expect("the address is resolved").kind;
            assert_eq!(event, rdma_cm_event_type::RDMA_CM_EVENT_ADDR_RESOLVED);
            assert_eq!(rdma_resolve_route(self.0, 1000), 0, "rdma_resolve_route");
            let event = channel.next(limit).expect("the route is resolved").kind;
            assert_eq!(event, rdma_cm_event_type::RDMA_CM_EVENT_ROUTE_RESOLVED);
        }
    }

    /// Makes a queue pair that knows all operations.
    pub fn create_qp(&self, plan: &QpPlan) {
        const PD: u32 = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0;
        const SEND_OPS: u32 = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0;
        // Up to and with IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, FLUSH and ATOMIC_WRITE.
        const OPS: u64 = 0x7f | 1 << 11 | 1 << 12;
        // SAFETY: it consists of numbers and pointers.
        let mut init: ibv_qp_init_attr_ex = unsafe { zeroed() };
        init.send_cq = plan.send_cq.0;
        init.recv_cq = plan.recv_cq.0;
        init.srq = plan.srq.map_or(ptr::null_mut(), |srq| srq.0);
        init.cap = ibv_qp_cap {
            max_send_wr: plan.sends as u32,
            max_recv_wr: plan.receives as u32,
            max_send_sge: 8,
            max_recv_sge: 8,
            max_inline_data: plan.inline,
        };
        init.qp_type = ibv_qp_type::IBV_QPT_RC;
        init.sq_sig_all = plan.all_signaled.into();
        init.pd = plan.pd.0;
        init.comp_mask = PD | SEND_OPS;
        init.send_ops_flags = OPS;
        // SAFETY: what it is made of lives.
        let result = unsafe { rdma_create_qp_ex(self.0, &mut init) };
        let error = std::io::Error::last_os_error();
        assert_eq!(result, 0, "rdma_create_qp_ex: {error}");
    }

    pub fn connect(&self, agreement: Agreement) -> c_int {
        // SAFETY: the id lives.
        unsafe { rdma_connect(self.0, &mut agreement.to_c()) }
    }

    pub fn accept(&self, agreement: Agreement) -> c_int {
        // SAFETY: the id lives.
        unsafe { rdma_accept(self.0, &mut agreement.to_c()) }
    }

    pub fn disconnect(&self) -> c_int {
        // SAFETY: the id lives.
        unsafe { rdma_disconnect(self.0) }
    }

    pub fn migrate(&self, channel: &Channel) {
        // SAFETY: both live.
        let result = unsafe { rdma_migrate_id(self.0, channel.0) };
        assert_eq!(result, 0, "rdma_migrate_id");
    }

    pub fn qp(&self) -> *mut ibv_qp {
        // SAFETY: the id lives.
        unsafe { (*self.0).qp }
    }

    pub fn state(&self) -> ibv_qp_state::Type {
        // SAFETY: the structures consist of numbers and pointers; the queue pair lives.
        unsafe {
            let (mut attr, mut init) = (zeroed(), zeroed());
            assert_eq!(ibv_query_qp(self.qp(), &mut attr, 1, &mut init), 0);
            let attr: ibv_qp_attr = attr;
            attr.qp_state
        }
    }

    pub fn receive(&self, id: u64, sges: &[ibv_sge]) -> c_int {
        // SAFETY: the queue pair lives; the list is copied.
        with_receive(id, sges, |wr, bad| unsafe {
            ibv_post_recv(self.qp(), wr, bad)
        })
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
    Send(Option<u32>),
    Write(At, Option<u32>),
    Read(At),
    FetchAdd(At, u64),
    CompareSwap(At, u64, u64),
    AtomicWrite(At, [u8; 8]),
    Flush(At, usize, Placement),
}

#[derive(Clone, Copy, Debug)]
pub enum Placement {
    Global = 1,
    Persistent = 2,
    Both = 3,
}

#[derive(Clone, Copy)]
pub struct Request<'a> {
    pub id: u64,
    pub op: Op,
    pub sges: &'a [ibv_sge],
    pub signaled: bool,
    pub fence: bool,
    pub solicited: bool,
    pub inline: bool,
}

impl Request<'_> {
    fn flags(&self) -> u32 {
        let flag = |is: bool, flag: ibv_send_flags| if is { flag.0 } else { 0 };
        flag(self.signaled, ibv_send_flags::IBV_SEND_SIGNALED)
            | flag(self.fence, ibv_send_flags::IBV_SEND_FENCE)
            | flag(self.solicited, ibv_send_flags::IBV_SEND_SOLICITED)
            | flag(self.inline, ibv_send_flags::IBV_SEND_INLINE)
    }

    /// Posts it by `ibv_post_send` or, if that is wanted or needed, by `ibv_wr_start` and so on.
    pub fn post(&self, id: &Id, extended: bool) -> c_int {
        match self.op {
            Op::AtomicWrite(..) | Op::Flush(..) => self.post_extended(id),
            _ if extended => self.post_extended(id),
            _ => self.post_plain(id),
        }
    }

    fn post_plain(&self, id: &Id) -> c_int {
        use ibv_wr_opcode::*;
        // SAFETY: it consists of numbers and pointers; the list is copied.
        unsafe {
            let mut wr: ibv_send_wr = zeroed();
            wr.wr_id = self.id;
            wr.sg_list = self.sges.as_ptr().cast_mut();
            wr.num_sge = self.sges.len() as c_int;
            wr.send_flags = self.flags();
            let imm = match self.op {
                Op::Send(imm) | Op::Write(_, imm) => imm,
                _ => None,
            };
            if let Some(imm) = imm {
                wr.imm_data_invalidated_rkey_union.imm_data = imm.to_be();
            }
            match self.op {
                Op::Send(_) => {}
                Op::Write(at, _) | Op::Read(at) => {
                    wr.wr.rdma.remote_addr = at.addr;
                    wr.wr.rdma.rkey = at.rkey;
                }
                Op::FetchAdd(at, one) | Op::CompareSwap(at, one, _) => {
                    wr.wr.atomic.remote_addr = at.addr;
                    wr.wr.atomic.rkey = at.rkey;
                    wr.wr.atomic.compare_add = one;
                    if let Op::CompareSwap(_, _, swap) = self.op {
                        wr.wr.atomic.swap = swap;
                    }
                }
                Op::AtomicWrite(..) | Op::Flush(..) => unreachable!(),
            }
            wr.opcode = match self.op {
                Op::Send(None) => IBV_WR_SEND,
                Op::Send(_) => IBV_WR_SEND_WITH_IMM,
                Op::Write(_, None) => IBV_WR_RDMA_WRITE,
                Op::Write(..) => IBV_WR_RDMA_WRITE_WITH_IMM,
                Op::Read(_) => IBV_WR_RDMA_READ,
                Op::FetchAdd(..) => IBV_WR_ATOMIC_FETCH_AND_ADD,
                _ => IBV_WR_ATOMIC_CMP_AND_SWP,
            };
            ibv_post_send(id.qp(), &mut wr, &mut ptr::null_mut())
        }
    }

    fn post_extended(&self, id: &Id) -> c_int {
        // SAFETY: the queue pair was made with these operations; what is inline is copied.
        unsafe {
            let qp = ibv_qp_to_qp_ex(id.qp());
            ibv_wr_start(qp);
            (*qp).wr_id = self.id;
            (*qp).wr_flags = self.flags();
            match self.op {
                Op::Send(None) => ibv_wr_send(qp),
                Op::Send(Some(imm)) => ibv_wr_send_imm(qp, imm.to_be()),
                Op::Write(at, None) => ibv_wr_rdma_write(qp, at.rkey, at.addr),
                Op::Write(at, Some(imm)) => {
                    ibv_wr_rdma_write_imm(qp, at.rkey, at.addr, imm.to_be());
                }
                Op::Read(at) => ibv_wr_rdma_read(qp, at.rkey, at.addr),
                Op::FetchAdd(at, add) => ibv_wr_atomic_fetch_add(qp, at.rkey, at.addr, add),
                Op::CompareSwap(at, compare, swap) => {
                    ibv_wr_atomic_cmp_swp(qp, at.rkey, at.addr, compare, swap);
                }
                Op::AtomicWrite(at, value) => {
                    let write = tail(qp).atomic_write.expect("wr_atomic_write");
                    write(qp, at.rkey, at.addr, value.as_ptr().cast());
                }
                Op::Flush(at, len, placement) => {
                    let flush = tail(qp).flush.expect("wr_flush");
                    flush(qp, at.rkey, at.addr, len, placement as u8, 0);
                }
            }
            let carries = !matches!(self.op, Op::AtomicWrite(..) | Op::Flush(..));
            if carries && self.inline {
                let buffers: Vec<ibv_data_buf> = self
                    .sges
                    .iter()
                    .map(|sge| ibv_data_buf {
                        addr: sge.addr as *mut c_void,
                        length: sge.length as usize,
                    })
                    .collect();
                ibv_wr_set_inline_data_list(qp, buffers.len(), buffers.as_ptr());
            } else if carries {
                ibv_wr_set_sge_list(qp, self.sges.len(), self.sges.as_ptr());
            }
            ibv_wr_complete(qp)
        }
    }
}

/// The members at the end of `struct ibv_qp_ex`, which older headers lack.
#[repr(C)]
struct Tail {
    known: [usize; 3],
    atomic_write: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, *const c_void)>,
    flush: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, usize, u8, u8)>,
}

unsafe fn tail<'a>(qp: *mut ibv_qp_ex) -> &'a Tail {
    // SAFETY: a queue pair of this device has these members.
    unsafe { &*qp.byte_add(offset_of!(ibv_qp_ex, wr_start)).cast() }
}

// ---- what a process has ----

/// Resident memory that no file backs, in bytes.
pub fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:"));
    let words: Vec<&str> = line.unwrap().split_whitespace().collect();
    words[1].parse::<usize>().unwrap() * 1024
}

pub fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Does something until it is so.
#[track_caller]
pub fn until(what: &str, limit: Duration, mut so: impl FnMut() -> bool) {
    let end = Instant::now() + limit;
    while !so() {
        assert!(Instant::now() < end, "{what}: not within {limit:?}");
        std::thread::yield_now();
    }
}
