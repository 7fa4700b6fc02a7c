//! Connection management.

use super::memory::ibv_alloc_pd;
use super::queues::{
    adopt, create_qp, ibv_create_comp_channel, ibv_create_cq, ibv_create_srq,
    ibv_destroy_comp_channel, ibv_destroy_cq, ibv_destroy_qp, ibv_destroy_srq, qp_attr, set_state,
};
use super::{minus_one, pointer};
use crate::engine;
use crate::frames::Private;
use crate::objects::alive::{Alive, Kind};
use crate::objects::cm::{ChannelHandle, CmEvent};
use crate::objects::device::default_context;
use crate::objects::endpoint::{ConnParam, Endpoint, Phase};
use crate::objects::events::EventQueue;
use rdma_sys::*;
use std::collections::BTreeSet;
use std::ffi::{c_char, c_int, c_void};
use std::io;
use std::mem::zeroed;
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// A cm id as C sees it.
#[repr(C)]
struct Id {
    abi: rdma_cm_id,
    endpoint: Arc<Endpoint>,
    /// Its channel is its own, and its functions wait for their events.
    sync: bool,
    /// What `rdma_create_ep` was given for the connections that come.
    for_requests: Option<(*mut ibv_pd, ibv_qp_init_attr)>,
    path: Option<Box<ibv_sa_path_rec>>,
    _alive: Alive,
}

/// An event as C sees it.
#[repr(C)]
struct EventHandle {
    abi: rdma_cm_event,
    private: [u8; Private::MAX],
    owner: Arc<Endpoint>,
}

fn io_errno(error: io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

// ---- addresses ----

unsafe fn from_c(address: *const libc::sockaddr) -> Result<SocketAddr, i32> {
    if address.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: an address is as long as its family says, as every caller's caller promises.
    unsafe {
        match (*address).sa_family.into() {
            libc::AF_INET => {
                let v4 = address.cast::<libc::sockaddr_in>().read_unaligned();
                let ip = u32::from_be(v4.sin_addr.s_addr).into();
                Ok(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
            }
            libc::AF_INET6 => {
                let v6 = address.cast::<libc::sockaddr_in6>().read_unaligned();
                let ip = v6.sin6_addr.s6_addr.into();
                let port = u16::from_be(v6.sin6_port);
                Ok(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
            }
            _ => Err(libc::EAFNOSUPPORT),
        }
    }
}

fn to_c(address: &SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: it consists of numbers.
    let mut storage: libc::sockaddr_storage = unsafe { zeroed() };
    match address {
        SocketAddr::V4(v4) => {
            let to: *mut libc::sockaddr_in = (&raw mut storage).cast();
            // SAFETY: the storage has room for all addresses.
            unsafe {
                (*to).sin_family = libc::AF_INET as u16;
                (*to).sin_port = v4.port().to_be();
                (*to).sin_addr.s_addr = u32::from(*v4.ip()).to_be();
            }
        }
        SocketAddr::V6(v6) => {
            let to: *mut libc::sockaddr_in6 = (&raw mut storage).cast();
            // SAFETY: as above.
            unsafe {
                (*to).sin6_family = libc::AF_INET6 as u16;
                (*to).sin6_port = v6.port().to_be();
                (*to).sin6_addr.s6_addr = v6.ip().octets();
                (*to).sin6_flowinfo = v6.flowinfo();
                (*to).sin6_scope_id = v6.scope_id();
            }
        }
    }
    storage
}

fn gid(ip: &IpAddr) -> ibv_gid {
    let raw = match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    ibv_gid { raw }
}

impl Id {
    /// Makes the id of an endpoint.
    fn create(
        endpoint: Arc<Endpoint>,
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        ps: rdma_port_space::Type,
        sync: bool,
    ) -> *mut Id {
        // SAFETY: it consists of numbers and pointers.
        let mut abi: rdma_cm_id = unsafe { zeroed() };
        abi.channel = channel;
        abi.context = context;
        abi.ps = ps;
        abi.qp_type = ibv_qp_type::IBV_QPT_RC;
        let id = Box::into_raw(Box::new(Id {
            abi,
            endpoint: endpoint.clone(),
            sync,
            for_requests: None,
            path: None,
            _alive: Alive::new(Kind::CmId),
        }));
        endpoint.handle.store(id.cast(), Ordering::Release);
        id
    }

    /// Writes down the addresses and, once it has one of this host, the device.
    fn update(&mut self) {
        let (local, remote) = {
            let state = self.endpoint.lock();
            (state.local, state.remote)
        };
        let addr = &mut self.abi.route.addr;
        if let Some(local) = local {
            addr.src_addr_union.src_storage = to_c(&local);
            if !local.ip().is_unspecified() {
                addr.addr.ibaddr.sgid = gid(&local.ip());
                self.abi.verbs = default_context();
                self.abi.port_num = 1;
                if self.abi.pd.is_null() {
                    self.abi.pd = default_pd();
                }
            }
        }
        if let Some(remote) = remote {
            addr.dst_addr_union.dst_storage = to_c(&remote);
            addr.addr.ibaddr.dgid = gid(&remote.ip());
            addr.addr.ibaddr.pkey = 0xffffu16.to_be();
        }
    }

    fn add_path(&mut self) {
        // SAFETY: it consists of numbers.
        let mut path: Box<ibv_sa_path_rec> = Box::new(unsafe { zeroed() });
        // SAFETY: `update` has set them.
        unsafe {
            path.dgid = self.abi.route.addr.addr.ibaddr.dgid;
            path.sgid = self.abi.route.addr.addr.ibaddr.sgid;
        }
        path.pkey = 0xffffu16.to_be();
        path.reversible = 1;
        path.mtu_selector = 2;
        path.mtu = ibv_mtu::IBV_MTU_4096 as u8;
        path.numb_path = 1;
        self.abi.route.path_rec = &raw mut *path;
        self.abi.route.num_paths = 1;
        self.path = Some(path);
    }
}

/// The domain of those who do not bring one.
pub static DOMAIN: Mutex<usize> = Mutex::new(0);

fn default_pd() -> *mut ibv_pd {
    let mut pd = crate::objects::lock(&DOMAIN);
    if *pd == 0 {
        let context = default_context();
        if !context.is_null() {
            // SAFETY: the context is open, and stays so.
            *pd = unsafe { ibv_alloc_pd(context) }.expose_provenance();
        }
    }
    ptr::with_exposed_provenance_mut(*pd)
}

unsafe fn id_of<'a>(id: *mut rdma_cm_id) -> &'a mut Id {
    // SAFETY: the id is one of this library's, as every caller's caller promises.
    unsafe { &mut *id.cast() }
}

// ---- channels and ids ----

fn new_channel() -> Result<*mut rdma_event_channel, i32> {
    let events = EventQueue::new().map_err(io_errno)?;
    let channel = Box::new(ChannelHandle {
        abi: rdma_event_channel { fd: events.fd() },
        events: Arc::new(events),
    });
    Ok(Box::into_raw(channel).cast())
}

/// # Safety
/// None.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    // Without a device there is nothing to manage.
    if default_context().is_null() {
        return ptr::null_mut();
    }
    pointer(new_channel())
}

/// # Safety
/// The channel is one of [`rdma_create_event_channel`], and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    // SAFETY: as the caller promises.
    drop(unsafe { Box::from_raw(channel.cast::<ChannelHandle>()) });
}

unsafe fn events_of(channel: *mut rdma_event_channel) -> Arc<EventQueue<CmEvent>> {
    // SAFETY: the channel is one of this library's, as every caller's caller promises.
    unsafe { (*channel.cast::<ChannelHandle>()).events.clone() }
}

/// # Safety
/// The channel is NULL or open; what is pointed to can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: rdma_port_space::Type,
) -> c_int {
    if !matches!(
        ps,
        rdma_port_space::RDMA_PS_TCP | rdma_port_space::RDMA_PS_IB
    ) {
        return minus_one(Err(libc::EPROTONOSUPPORT));
    }
    if default_context().is_null() {
        return -1;
    }
    if let Err(error) = engine::start() {
        return minus_one(Err(io_errno(error)));
    }
    let sync = channel.is_null();
    let channel = if sync {
        match new_channel() {
            Ok(channel) => channel,
            Err(error) => return minus_one(Err(error)),
        }
    } else {
        channel
    };
    // SAFETY: as the caller promises.
    unsafe {
        let endpoint = Endpoint::new(events_of(channel));
        *id = Id::create(endpoint, channel, context, ps, sync).cast();
    }
    0
}

unsafe fn acknowledge_own(id: &mut Id) {
    if !id.abi.event.is_null() {
        // SAFETY: the event is one that the id got for itself.
        unsafe { rdma_ack_cm_event(id.abi.event) };
        id.abi.event = ptr::null_mut();
    }
}

/// # Safety
/// The id is one of this library's, and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let id = id_of(id);
        acknowledge_own(id);
        let endpoint = id.endpoint.clone();
        endpoint.abandon();
        let events = endpoint.lock().events.clone();
        let mine = events.extract(|event| {
            Arc::ptr_eq(event.owner(), &endpoint) || Arc::ptr_eq(&event.endpoint, &endpoint)
        });
        for event in mine {
            // A connection that nobody will accept.
            if event.listener.is_some() && !Arc::ptr_eq(&event.endpoint, &endpoint) {
                event.endpoint.abandon();
            }
        }
        endpoint.handed.wait();
        endpoint.handle.store(ptr::null_mut(), Ordering::Release);
        if id.sync {
            rdma_destroy_event_channel(id.abi.channel);
        }
        drop(Box::from_raw(id));
    }
    0
}

/// # Safety
/// The id is one of this library's, the channel is NULL or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_migrate_id(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let id = id_of(id);
        let sync = channel.is_null();
        let channel = if sync {
            match new_channel() {
                Ok(channel) => channel,
                Err(error) => return minus_one(Err(error)),
            }
        } else {
            channel
        };
        acknowledge_own(id);
        id.endpoint.handed.wait();
        let endpoint = &id.endpoint;
        let to = events_of(channel);
        {
            // Nothing comes for it meanwhile.
            let mut state = endpoint.lock();
            let from = std::mem::replace(&mut state.events, to.clone());
            for event in from.extract(|event| Arc::ptr_eq(event.owner(), endpoint)) {
                to.push(event);
            }
        }
        if id.sync {
            rdma_destroy_event_channel(id.abi.channel);
        }
        id.abi.channel = channel;
        id.sync = sync;
    }
    0
}

// ---- events ----

/// # Safety
/// The channel is open; what is pointed to can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    if channel.is_null() || event.is_null() {
        return minus_one(Err(libc::EINVAL));
    }
    // SAFETY: as the caller promises.
    unsafe {
        let events = events_of(channel);
        match events.pop(|event| event.owner().handed.out()) {
            Ok(got) => {
                *event = deliver(channel, got).cast();
                0
            }
            Err(error) => minus_one(Err(io_errno(error))),
        }
    }
}

/// Makes an event one of C's, and does what is to be done once the program knows of it.
unsafe fn deliver(channel: *mut rdma_event_channel, event: CmEvent) -> *mut EventHandle {
    use rdma_cm_event_type::*;
    let owner = event.owner().clone();
    // SAFETY: it consists of numbers and pointers.
    let mut abi: rdma_cm_event = unsafe { zeroed() };
    abi.event = event.kind;
    abi.status = event.status;
    let mut handle = event.endpoint.handle.load(Ordering::Acquire);
    match event.kind {
        RDMA_CM_EVENT_CONNECT_REQUEST => {
            let listener = owner.handle.load(Ordering::Acquire);
            event.endpoint.lock().request_taken();
            // SAFETY: the id of who listens is there as long as events for it are.
            let (context, ps) = unsafe { ((*listener).context, (*listener).ps) };
            let id = Id::create(event.endpoint.clone(), channel, context, ps, false);
            // SAFETY: made just now.
            unsafe {
                (*id).update();
                (*id).add_path();
            }
            handle = id.cast();
            abi.listen_id = listener;
        }
        RDMA_CM_EVENT_ADDR_RESOLVED => {
            // SAFETY: the id is there as long as events for it are.
            unsafe { id_of(handle).update() };
        }
        RDMA_CM_EVENT_ROUTE_RESOLVED => {
            // SAFETY: as above.
            unsafe { id_of(handle).add_path() };
        }
        RDMA_CM_EVENT_ESTABLISHED => {
            let mut state = event.endpoint.lock();
            if state.phase == Phase::ReplyReceived {
                // It was so when the lock was taken.
                let _ = state.establish(&event.endpoint);
            }
        }
        _ => {}
    }
    abi.id = handle;
    let mut out = Box::new(EventHandle {
        abi,
        private: [0; Private::MAX],
        owner,
    });
    out.private[..event.private_len].copy_from_slice(event.private.padded(event.private_len));
    if event.params.is_some() || event.private_len > 0 {
        // SAFETY: it consists of numbers and pointers.
        let mut conn: rdma_conn_param = unsafe { zeroed() };
        if event.private_len > 0 {
            conn.private_data = out.private.as_ptr().cast();
            conn.private_data_len = event.private_len as u8;
        }
        if let Some(params) = event.params {
            // What one side can answer is what the other may ask.
            conn.responder_resources = params.initiator_depth;
            conn.initiator_depth = params.responder_resources;
            conn.flow_control = params.flow_control;
            conn.retry_count = params.retry_count;
            conn.rnr_retry_count = params.rnr_retry_count;
            conn.srq = params.srq;
            conn.qp_num = params.qp_num;
        }
        out.abi.param.conn = conn;
    }
    Box::into_raw(out)
}

/// # Safety
/// The event is one of [`rdma_get_cm_event`], and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    if event.is_null() {
        return minus_one(Err(libc::EINVAL));
    }
    // SAFETY: as the caller promises.
    let event = unsafe { Box::from_raw(event.cast::<EventHandle>()) };
    event.owner.handed.back(1);
    0
}

/// Waits for the event of what was just asked, if the id has a channel of its own.
unsafe fn complete(id: &mut Id, asked: Result<(), i32>) -> c_int {
    if let Err(error) = asked {
        return minus_one(Err(error));
    }
    if !id.sync {
        return 0;
    }
    // SAFETY: the id's channel is its own.
    unsafe {
        acknowledge_own(id);
        if rdma_get_cm_event(id.abi.channel, &mut id.abi.event) != 0 {
            return -1;
        }
        let event = &*id.abi.event;
        minus_one(match event.status {
            0 => Ok(()),
            _ if event.event == rdma_cm_event_type::RDMA_CM_EVENT_REJECTED => {
                Err(libc::ECONNREFUSED)
            }
            status => Err(status.abs()),
        })
    }
}

// ---- addresses and connections ----

/// # Safety
/// The id is one of this library's, the address is one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut libc::sockaddr) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let id = id_of(id);
        let result = from_c(addr).and_then(|address| id.endpoint.lock().bind(address));
        if result.is_ok() {
            id.update();
        }
        minus_one(result)
    }
}

/// # Safety
/// The id is one of this library's, the addresses are ones, the source may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    src: *mut libc::sockaddr,
    dst: *mut libc::sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let id = id_of(id);
        let resolve = || {
            let src = if src.is_null() {
                None
            } else {
                Some(from_c(src)?)
            };
            let dst = from_c(dst)?;
            let endpoint = &id.endpoint;
            endpoint.lock().resolve_addr(endpoint, src, dst)
        };
        let result = resolve();
        if result.is_ok() {
            // Programs look there before the event, too.
            let address = id.endpoint.lock().remote;
            if let Some(remote) = address {
                id.abi.route.addr.dst_addr_union.dst_storage = to_c(&remote);
            }
        }
        complete(id, result)
    }
}

/// # Safety
/// The id is one of this library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let id = id_of(id);
        if timeout_ms == 0 {
            return minus_one(Err(libc::EINVAL));
        }
        let result = id.endpoint.lock().resolve_route(&id.endpoint);
        complete(id, result)
    }
}

/// # Safety
/// The id is one of this library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let id = id_of(id);
        let result = id.endpoint.lock().listen(&id.endpoint, backlog);
        if result.is_ok() {
            id.update();
        }
        minus_one(result)
    }
}

unsafe fn conn_param(param: *const rdma_conn_param, max: usize) -> Result<Option<ConnParam>, i32> {
    // SAFETY: it is NULL or can be read, and so its data, as every caller's caller promises.
    unsafe {
        let Some(param) = param.as_ref() else {
            return Ok(None);
        };
        let private = private(param.private_data, param.private_data_len, max)?;
        let param = ConnParam {
            private,
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            flow_control: param.flow_control,
            retry_count: param.retry_count,
            rnr_retry_count: param.rnr_retry_count,
            srq: param.srq,
            qp_num: param.qp_num,
        };
        if !param.is_valid() {
            return Err(libc::EINVAL);
        }
        Ok(Some(param))
    }
}

unsafe fn private(data: *const c_void, len: u8, max: usize) -> Result<Private, i32> {
    if len == 0 {
        return Ok(Private::NONE);
    }
    if data.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: so many bytes are there, as every caller's caller promises.
    let data = unsafe { std::slice::from_raw_parts(data.cast(), len.into()) };
    Private::new(data, max).ok_or(libc::EINVAL)
}

/// # Safety
/// The id is one of this library's, the parameters can be read or are NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let id = id_of(id);
        let result = conn_param(param, Private::REQUEST).and_then(|param| {
            let param = param.unwrap_or(ConnParam {
                private: Private::NONE,
                responder_resources: u8::MAX,
                initiator_depth: u8::MAX,
                flow_control: 1,
                retry_count: 7,
                rnr_retry_count: 7,
                srq: 0,
                qp_num: 0,
            });
            adopt_named(id, param.qp_num)?;
            id.endpoint.lock().connect(&id.endpoint, &param)
        });
        complete(id, result)
    }
}

/// # Safety
/// The id is one of this library's, the parameters can be read or are NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let id = id_of(id);
        let result = conn_param(param, Private::MAX).and_then(|param| {
            adopt_named(id, param.map_or(0, |param| param.qp_num))?;
            id.endpoint.lock().accept(&id.endpoint, param.as_ref())
        });
        if result.is_err() {
            // The other side is not left waiting. Where there is none, nothing is to be done.
            let _ = id.endpoint.lock().reject(&id.endpoint, Private::NONE);
        }
        complete(id, result)
    }
}

/// # Safety
/// The id is one of this library's, and so many bytes of data can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let id = id_of(id);
        minus_one(
            private(data, len, Private::REJECT)
                .and_then(|private| id.endpoint.lock().reject(&id.endpoint, private)),
        )
    }
}

/// # Safety
/// The id is one of this library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: as the caller promises.
    let id = unsafe { id_of(id) };
    let result = id.endpoint.lock().establish(&id.endpoint);
    minus_one(result)
}

/// # Safety
/// The id is one of this library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let id = id_of(id);
        let result = id.endpoint.lock().disconnect(&id.endpoint);
        complete(id, result)
    }
}

/// Tells of an event that a queue pair had before its connection was known to be made, which
/// cannot happen here.
///
/// # Safety
/// None: the arguments are not looked at.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_notify(_: *mut rdma_cm_id, _: ibv_event_type) -> c_int {
    0
}

/// The queue pairs of other sides that programs have asked how to reach.
pub static PEERS: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// Whether a program asked how to reach that queue pair; it is forgotten then.
pub fn is_peer(qp_num: u32) -> bool {
    crate::objects::lock(&PEERS).remove(&qp_num)
}

/// How a program that moves its queue pair itself is to do so.
///
/// # Safety
/// The id is one of this library's; what is pointed to can be read and written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let id = id_of(id);
        let state = id.endpoint.lock();
        let (mine, theirs) = (state.mine, state.theirs);
        drop(state);
        let attr = &mut *attr;
        let m = |bits: &[ibv_qp_attr_mask]| bits.iter().fold(0, |all, bit| all | bit.0 as c_int);
        type M = ibv_qp_attr_mask;
        match attr.qp_state {
            ibv_qp_state::IBV_QPS_INIT => {
                attr.pkey_index = 0;
                attr.port_num = 1;
                attr.qp_access_flags = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0
                    | ibv_access_flags::IBV_ACCESS_REMOTE_READ.0
                    | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;
                *mask = m(&[
                    M::IBV_QP_STATE,
                    M::IBV_QP_ACCESS_FLAGS,
                    M::IBV_QP_PKEY_INDEX,
                    M::IBV_QP_PORT,
                ]);
            }
            ibv_qp_state::IBV_QPS_RTR => {
                attr.path_mtu = ibv_mtu::IBV_MTU_4096;
                attr.dest_qp_num = theirs.qp_num;
                attr.rq_psn = 0;
                attr.max_dest_rd_atomic = mine.responder_resources;
                attr.min_rnr_timer = 0;
                attr.ah_attr.port_num = 1;
                attr.ah_attr.is_global = 1;
                attr.ah_attr.grh.dgid = id.abi.route.addr.addr.ibaddr.dgid;
                *mask = m(&[
                    M::IBV_QP_STATE,
                    M::IBV_QP_AV,
                    M::IBV_QP_PATH_MTU,
                    M::IBV_QP_DEST_QPN,
                    M::IBV_QP_RQ_PSN,
                    M::IBV_QP_MAX_DEST_RD_ATOMIC,
                    M::IBV_QP_MIN_RNR_TIMER,
                ]);
                crate::objects::lock(&PEERS).insert(theirs.qp_num);
            }
            ibv_qp_state::IBV_QPS_RTS => {
                attr.timeout = 14;
                attr.retry_cnt = mine.retry_count;
                attr.rnr_retry = theirs.rnr_retry_count & 7;
                attr.sq_psn = 0;
                attr.max_rd_atomic = mine.initiator_depth.min(theirs.responder_resources);
                *mask = m(&[
                    M::IBV_QP_STATE,
                    M::IBV_QP_TIMEOUT,
                    M::IBV_QP_RETRY_CNT,
                    M::IBV_QP_RNR_RETRY,
                    M::IBV_QP_SQ_PSN,
                    M::IBV_QP_MAX_QP_RD_ATOMIC,
                ]);
            }
            _ => return minus_one(Err(libc::EINVAL)),
        }
    }
    0
}

/// The queue pair that the program made without the id and names now, if it does.
fn adopt_named(id: &Id, qp_num: u32) -> Result<(), i32> {
    if id.abi.qp.is_null() && qp_num != 0 {
        adopt(&id.endpoint, qp_num)?;
    }
    Ok(())
}

/// # Safety
/// The id is one of this library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: as the caller promises; all addresses have the port at the same place.
    unsafe { (*id).route.addr.src_addr_union.src_sin.sin_port }
}

/// # Safety
/// The id is one of this library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: as the caller promises; all addresses have the port at the same place.
    unsafe { (*id).route.addr.dst_addr_union.dst_sin.sin_port }
}

/// # Safety
/// The id is one of this library's, the value is of the length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: usize,
) -> c_int {
    // `rdma/rdma_cma.h`.
    const LEVEL_ID: c_int = 0;
    const TOS: c_int = 0;
    const REUSEADDR: c_int = 1;
    const AFONLY: c_int = 2;
    const ACK_TIMEOUT: c_int = 3;
    // SAFETY: as the caller promises.
    let id = unsafe { id_of(id) };
    if level != LEVEL_ID {
        return minus_one(Err(libc::ENOSYS));
    }
    let number = || {
        if len == size_of::<c_int>() && !value.is_null() {
            // SAFETY: as the caller promises.
            Ok(unsafe { value.cast::<c_int>().read_unaligned() } != 0)
        } else {
            Err(libc::EINVAL)
        }
    };
    let byte = || {
        if len == 1 && !value.is_null() {
            Ok(())
        } else {
            Err(libc::EINVAL)
        }
    };
    minus_one(match name {
        // There are no packets of its own to be marked, and TCP has its own times.
        TOS | ACK_TIMEOUT => byte(),
        REUSEADDR => number().map(|on| id.endpoint.lock().reuse = on),
        AFONLY => {
            let mut state = id.endpoint.lock();
            if state.phase == Phase::Idle {
                number().map(|on| state.v6_only = on)
            } else {
                Err(libc::EINVAL)
            }
        }
        _ => Err(libc::ENOSYS),
    })
}

// ---- queue pairs and shared receive queues of ids ----

/// Makes the completion queues that the program did not bring.
unsafe fn create_cqs(id: &mut Id, send: u32, recv: u32) -> Result<(), i32> {
    let failed = || io_errno(io::Error::last_os_error());
    let (verbs, context): (_, *mut c_void) = (id.abi.verbs, (&raw mut id.abi).cast());
    // SAFETY: the id's device is open.
    unsafe {
        let make = |size: u32| {
            let channel = ibv_create_comp_channel(verbs);
            if channel.is_null() {
                return Err(failed());
            }
            let size = size.clamp(1, c_int::MAX as u32) as c_int;
            let cq = ibv_create_cq(verbs, size, context, channel, 0);
            if cq.is_null() {
                let error = failed();
                ibv_destroy_comp_channel(channel);
                return Err(error);
            }
            Ok((channel, cq))
        };
        if recv > 0 && id.abi.recv_cq.is_null() {
            (id.abi.recv_cq_channel, id.abi.recv_cq) = make(recv)?;
        }
        if send > 0 && id.abi.send_cq.is_null() {
            (id.abi.send_cq_channel, id.abi.send_cq) = make(send)?;
        }
    }
    Ok(())
}

unsafe fn destroy_cqs(id: &mut Id) {
    let abi = &mut id.abi;
    let queues = [
        (&mut abi.recv_cq, &mut abi.recv_cq_channel),
        (&mut abi.send_cq, &mut abi.send_cq_channel),
    ];
    for (cq, channel) in queues {
        if !cq.is_null() {
            // SAFETY: they are the id's own.
            unsafe {
                ibv_destroy_cq(*cq);
                ibv_destroy_comp_channel(*channel);
            }
            *cq = ptr::null_mut();
            *channel = ptr::null_mut();
        }
    }
}

unsafe fn create_id_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: &mut ibv_qp_init_attr,
    ops: Option<u64>,
) -> Result<(), i32> {
    // SAFETY: as the callers' callers promise.
    unsafe {
        let id = id_of(id);
        if !id.abi.qp.is_null() || id.abi.verbs.is_null() || id.abi.qp_type != attr.qp_type {
            return Err(libc::EINVAL);
        }
        let pd = if pd.is_null() { id.abi.pd } else { pd };
        if pd.is_null() || (*pd).context != id.abi.verbs {
            return Err(libc::EINVAL);
        }
        if attr.srq.is_null() {
            attr.srq = id.abi.srq;
        }
        let send = if attr.send_cq.is_null() {
            attr.cap.max_send_wr.max(1)
        } else {
            0
        };
        let recv = if attr.recv_cq.is_null() {
            attr.cap.max_recv_wr.max(1)
        } else {
            0
        };
        let result = create_cqs(id, send, recv).and_then(|()| {
            if attr.send_cq.is_null() {
                attr.send_cq = id.abi.send_cq;
            }
            if attr.recv_cq.is_null() {
                attr.recv_cq = id.abi.recv_cq;
            }
            create_qp(&id.endpoint, pd, attr, ops)
        });
        match result {
            Ok(qp) => {
                set_state(qp, ibv_qp_state::IBV_QPS_INIT);
                id.abi.qp = qp;
                id.abi.pd = pd;
                Ok(())
            }
            Err(error) => {
                destroy_cqs(id);
                Err(error)
            }
        }
    }
}

/// # Safety
/// The id is one of this library's, the domain is open or NULL, the attributes can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: as the caller promises.
    minus_one(unsafe { create_id_qp(id, pd, &mut *attr, None) })
}

/// # Safety
/// The id is one of this library's, the attributes can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_init_attr_ex,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let attr = &mut *attr;
        let (mut basic, pd, ops) = match qp_attr(attr) {
            Ok(attr) => attr,
            Err(error) => return minus_one(Err(error)),
        };
        let result = create_id_qp(id, pd, &mut basic, ops);
        attr.cap = basic.cap;
        minus_one(result)
    }
}

/// # Safety
/// The id is one of this library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    // SAFETY: as the caller promises.
    unsafe {
        let id = id_of(id);
        if !id.abi.qp.is_null() {
            ibv_destroy_qp(id.abi.qp);
            id.abi.qp = ptr::null_mut();
        }
        destroy_cqs(id);
    }
}

/// # Safety
/// The id is one of this library's, the domain is open or NULL, the attributes can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let id = id_of(id);
        let pd = if pd.is_null() { id.abi.pd } else { pd };
        if id.abi.verbs.is_null() || pd.is_null() || !id.abi.srq.is_null() {
            return minus_one(Err(libc::EINVAL));
        }
        let srq = ibv_create_srq(pd, attr);
        if srq.is_null() {
            return -1;
        }
        id.abi.srq = srq;
        id.abi.pd = pd;
    }
    0
}

/// # Safety
/// The id is one of this library's, the attributes can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_srq_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_srq_init_attr_ex,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let attr = &mut *attr;
        let known = ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_TYPE.0
            | ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_PD.0;
        let has = |bit: ibv_srq_init_attr_mask| attr.comp_mask & bit.0 != 0;
        if attr.comp_mask & !known != 0
            || (has(ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_TYPE)
                && attr.srq_type != ibv_srq_type::IBV_SRQT_BASIC)
        {
            return minus_one(Err(libc::EOPNOTSUPP));
        }
        let pd = if has(ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_PD) {
            attr.pd
        } else {
            ptr::null_mut()
        };
        let mut basic = ibv_srq_init_attr {
            srq_context: attr.srq_context,
            attr: attr.attr,
        };
        rdma_create_srq(id, pd, &mut basic)
    }
}

/// # Safety
/// The id is one of this library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    // SAFETY: as the caller promises.
    unsafe {
        let id = id_of(id);
        if !id.abi.srq.is_null() {
            ibv_destroy_srq(id.abi.srq);
            id.abi.srq = ptr::null_mut();
        }
    }
}

// ---- endpoints ----

/// # Safety
/// What is pointed to can be read and written; the domain and the attributes may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    const TIMEOUT_MS: c_int = 2000;
    // SAFETY: as the caller promises.
    unsafe {
        let res = &*res;
        let mut new = ptr::null_mut();
        let ps = res.ai_port_space as rdma_port_space::Type;
        if rdma_create_id(ptr::null_mut(), &mut new, ptr::null_mut(), ps) != 0 {
            return -1;
        }
        let passive = res.ai_flags & RAI_PASSIVE as c_int != 0;
        let made = if passive {
            let bound = rdma_bind_addr(new, res.ai_src_addr);
            if bound == 0 && !attr.is_null() {
                let mut attr = *attr;
                attr.qp_type = res.ai_qp_type as ibv_qp_type::Type;
                id_of(new).for_requests = Some((pd, attr));
            }
            bound
        } else {
            let src = res.ai_src_addr;
            let mut result = rdma_resolve_addr(new, src, res.ai_dst_addr, TIMEOUT_MS);
            if result == 0 {
                result = rdma_resolve_route(new, TIMEOUT_MS);
            }
            if result == 0 && !attr.is_null() {
                (*attr).qp_type = res.ai_qp_type as ibv_qp_type::Type;
                result = rdma_create_qp(new, pd, attr);
            }
            result
        };
        if made != 0 {
            let error = io_errno(io::Error::last_os_error());
            rdma_destroy_ep(new);
            return minus_one(Err(error));
        }
        *id = new;
    }
    0
}

/// # Safety
/// The id is one of this library's, and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    // SAFETY: as the caller promises.
    unsafe {
        if !(*id).qp.is_null() {
            rdma_destroy_qp(id);
        }
        if !(*id).srq.is_null() {
            rdma_destroy_srq(id);
        }
        rdma_destroy_id(id);
    }
}

/// # Safety
/// The id is one of this library's; what is pointed to can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_request(
    listen: *mut rdma_cm_id,
    id: *mut *mut rdma_cm_id,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let listener = id_of(listen);
        if !listener.sync {
            return minus_one(Err(libc::EINVAL));
        }
        acknowledge_own(listener);
        let mut event = ptr::null_mut();
        if rdma_get_cm_event(listener.abi.channel, &mut event) != 0 {
            return -1;
        }
        let fail = |error: i32| {
            rdma_ack_cm_event(event);
            minus_one(Err(error))
        };
        if (*event).status != 0 {
            return fail((*event).status.abs());
        }
        if (*event).event != rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST {
            return fail(libc::EINVAL);
        }
        let new = (*event).id;
        if let Some((pd, attr)) = &listener.for_requests {
            let mut attr = *attr;
            if rdma_create_qp(new, *pd, &mut attr) != 0 {
                let error = io_errno(io::Error::last_os_error());
                rdma_destroy_id(new);
                return fail(error);
            }
        }
        // From now on it waits for its events itself.
        if rdma_migrate_id(new, ptr::null_mut()) != 0 {
            let error = io_errno(io::Error::last_os_error());
            rdma_destroy_ep(new);
            return fail(error);
        }
        (*new).event = event;
        *id = new;
    }
    0
}

// ---- names ----

/// An address in memory that C's `free` takes.
unsafe fn allocated(address: *const libc::sockaddr, len: libc::socklen_t) -> *mut libc::sockaddr {
    // SAFETY: the address is of the length, as every caller's caller promises.
    unsafe {
        let copy = libc::malloc(len as usize);
        if !copy.is_null() {
            ptr::copy_nonoverlapping(address.cast::<u8>(), copy.cast(), len as usize);
        }
        copy.cast()
    }
}

/// # Safety
/// The strings are ones or NULL, the hints can be read or are NULL, the result can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    res: *mut *mut rdma_addrinfo,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        if node.is_null() && service.is_null() && hints.is_null() {
            return minus_one(Err(libc::EINVAL));
        }
        let (flags, family, qp_type, ps) = hints.as_ref().map_or((0, 0, 0, 0), |hints| {
            (
                hints.ai_flags as u32,
                hints.ai_family,
                hints.ai_qp_type,
                hints.ai_port_space,
            )
        });
        let passive = flags & RAI_PASSIVE != 0;
        let given = hints
            .as_ref()
            .filter(|_| node.is_null() && service.is_null());
        let mut found: *mut libc::addrinfo = ptr::null_mut();
        if given.is_none() {
            let mut ask: libc::addrinfo = zeroed();
            ask.ai_socktype = libc::SOCK_STREAM;
            ask.ai_family = family;
            if passive {
                ask.ai_flags |= libc::AI_PASSIVE;
            }
            if flags & RAI_NUMERICHOST != 0 {
                ask.ai_flags |= libc::AI_NUMERICHOST;
            }
            let error = libc::getaddrinfo(node, service, &ask, &mut found);
            if error != 0 {
                return error;
            }
        }
        let mut first: *mut rdma_addrinfo = ptr::null_mut();
        let mut end: *mut *mut rdma_addrinfo = &mut first;
        let mut failed = false;
        let mut add = |address: *const libc::sockaddr, len, family| {
            let info: *mut rdma_addrinfo = libc::calloc(1, size_of::<rdma_addrinfo>()).cast();
            if info.is_null() {
                failed = true;
                return;
            }
            *end = info;
            end = &raw mut (*info).ai_next;
            (*info).ai_flags = flags as c_int;
            (*info).ai_family = family;
            (*info).ai_qp_type = if qp_type == 0 {
                ibv_qp_type::IBV_QPT_RC as c_int
            } else {
                qp_type
            };
            (*info).ai_port_space = if ps == 0 {
                rdma_port_space::RDMA_PS_TCP as c_int
            } else {
                ps
            };
            if !address.is_null() {
                let copy = allocated(address, len);
                failed |= copy.is_null();
                if passive {
                    ((*info).ai_src_addr, (*info).ai_src_len) = (copy, len);
                } else {
                    ((*info).ai_dst_addr, (*info).ai_dst_len) = (copy, len);
                }
            }
            if let Some(hints) = hints.as_ref() {
                if !hints.ai_src_addr.is_null() && (*info).ai_src_addr.is_null() {
                    (*info).ai_src_addr = allocated(hints.ai_src_addr, hints.ai_src_len);
                    (*info).ai_src_len = hints.ai_src_len;
                    failed |= (*info).ai_src_addr.is_null();
                }
                if !hints.ai_dst_addr.is_null() && (*info).ai_dst_addr.is_null() {
                    (*info).ai_dst_addr = allocated(hints.ai_dst_addr, hints.ai_dst_len);
                    (*info).ai_dst_len = hints.ai_dst_len;
                    failed |= (*info).ai_dst_addr.is_null();
                }
            }
        };
        if given.is_some() {
            add(ptr::null(), 0, family);
        }
        let mut one = found;
        while let Some(info) = one.as_ref() {
            add(info.ai_addr, info.ai_addrlen, info.ai_family);
            one = info.ai_next;
        }
        if !found.is_null() {
            libc::freeaddrinfo(found);
        }
        if failed {
            rdma_freeaddrinfo(first);
            return minus_one(Err(libc::ENOMEM));
        }
        *res = first;
    }
    0
}

/// # Safety
/// The list is one of [`rdma_getaddrinfo`], and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_freeaddrinfo(res: *mut rdma_addrinfo) {
    let mut next = res;
    // SAFETY: as the caller promises.
    unsafe {
        while let Some(info) = next.as_ref() {
            let this = next;
            next = info.ai_next;
            libc::free(info.ai_src_addr.cast());
            libc::free(info.ai_dst_addr.cast());
            libc::free(this.cast());
        }
    }
}
