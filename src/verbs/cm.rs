use super::{Context, Errno};
use rdma_sys::{
    ibv_qp_type, rdma_accept, rdma_ack_cm_event, rdma_addrinfo, rdma_bind_addr, rdma_cm_event,
    rdma_cm_event_type, rdma_cm_id, rdma_conn_param, rdma_connect, rdma_create_event_channel,
    rdma_create_id, rdma_destroy_event_channel, rdma_destroy_id, rdma_disconnect,
    rdma_event_channel, rdma_event_str, rdma_freeaddrinfo, rdma_get_cm_event, rdma_getaddrinfo,
    rdma_listen, rdma_migrate_id, rdma_port_space, rdma_reject, rdma_resolve_addr,
    rdma_resolve_route,
};
use std::ffi::{CStr, c_int};
use std::fmt;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr::{self, NonNull};

/// How an address is looked up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Resolve {
    /// To listen on or bind to: the result has a source address.
    Passive,
    /// To connect to: the result has a destination address.
    Active,
}

/// An address, looked up.
pub struct AddrInfo(NonNull<rdma_addrinfo>);

impl AddrInfo {
    /// `rdma_getaddrinfo` for a reliable connection over `RDMA_PS_TCP`; the error
    /// is the text of the cause.
    pub fn lookup(
        node: &CStr,
        service: Option<&CStr>,
        resolve: Resolve,
    ) -> Result<Self, LookupError> {
        // SAFETY: all zeroes are a value of the type: no flag, no address.
        let mut hints: rdma_addrinfo = unsafe { MaybeUninit::zeroed().assume_init() };
        if resolve == Resolve::Passive {
            hints.ai_flags = rdma_sys::RAI_PASSIVE as c_int;
        }
        hints.ai_qp_type = ibv_qp_type::IBV_QPT_RC as c_int;
        hints.ai_port_space = rdma_port_space::RDMA_PS_TCP as c_int;
        let service = service.map_or(ptr::null(), CStr::as_ptr);
        let mut found = ptr::null_mut();
        // SAFETY: the strings and the hints live through the call.
        match unsafe { rdma_getaddrinfo(node.as_ptr(), service, &hints, &mut found) } {
            0 => NonNull::new(found)
                .map(AddrInfo)
                .ok_or(LookupError::Errno(Errno(libc::ENODATA))),
            -1 => Err(LookupError::Errno(Errno::last())),
            code => Err(LookupError::Gai(code)),
        }
    }

    fn get(&self) -> &rdma_addrinfo {
        // SAFETY: the result is alive until it is freed.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for AddrInfo {
    fn drop(&mut self) {
        // SAFETY: owned by this wrapper, which is not used again.
        unsafe { rdma_freeaddrinfo(self.0.as_ptr()) }
    }
}

/// Why an address could not be looked up; shown as its text.
pub enum LookupError {
    Errno(Errno),
    /// A code of getaddrinfo.
    Gai(c_int),
}

impl fmt::Display for LookupError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match *self {
            LookupError::Errno(errno) => errno.fmt(f),
            LookupError::Gai(code) => {
                // SAFETY: gives a static string for every code.
                let text = unsafe { CStr::from_ptr(libc::gai_strerror(code)) };
                f.write_str(text.to_str().unwrap_or("unknown error"))
            }
        }
    }
}

/// Where the events of ids arrive.
pub struct EventChannel(NonNull<rdma_event_channel>);

impl EventChannel {
    pub fn create() -> Result<Self, Errno> {
        // SAFETY: takes no argument.
        let raw = NonNull::new(unsafe { rdma_create_event_channel() });
        raw.map(EventChannel).ok_or_else(Errno::last)
    }

    pub fn fd(&self) -> c_int {
        // SAFETY: the channel is alive.
        unsafe { self.0.as_ref() }.fd
    }

    /// `rdma_get_cm_event`: takes the next event, waiting for one unless the
    /// descriptor is non-blocking.
    pub fn next_event(&self) -> Result<CmEvent, Errno> {
        let mut event = ptr::null_mut();
        // SAFETY: the channel is alive and the pointer valid to write to.
        Errno::set(unsafe { rdma_get_cm_event(self.0.as_ptr(), &mut event) })?;
        NonNull::new(event).map(CmEvent).ok_or(Errno(libc::ENODATA))
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: owned by this wrapper, which is not used again; the ids on it
        // are destroyed before, as their owners order their members.
        unsafe { rdma_destroy_event_channel(self.0.as_ptr()) }
    }
}

/// The events that the library tells apart.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    ConnectRequest,
    Established,
    ConnectError,
    Unreachable,
    Rejected,
    Disconnected,
    DeviceRemoval,
    TimewaitExit,
    Other,
}

/// An event that is acknowledged when it is dropped or closed.
pub struct CmEvent(NonNull<rdma_cm_event>);

impl CmEvent {
    fn get(&self) -> &rdma_cm_event {
        // SAFETY: the event is alive until it is acknowledged.
        unsafe { self.0.as_ref() }
    }

    pub fn kind(&self) -> EventKind {
        match self.get().event {
            rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST => EventKind::ConnectRequest,
            rdma_cm_event_type::RDMA_CM_EVENT_ESTABLISHED => EventKind::Established,
            rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_ERROR => EventKind::ConnectError,
            rdma_cm_event_type::RDMA_CM_EVENT_UNREACHABLE => EventKind::Unreachable,
            rdma_cm_event_type::RDMA_CM_EVENT_REJECTED => EventKind::Rejected,
            rdma_cm_event_type::RDMA_CM_EVENT_DISCONNECTED => EventKind::Disconnected,
            rdma_cm_event_type::RDMA_CM_EVENT_DEVICE_REMOVAL => EventKind::DeviceRemoval,
            rdma_cm_event_type::RDMA_CM_EVENT_TIMEWAIT_EXIT => EventKind::TimewaitExit,
            _ => EventKind::Other,
        }
    }

    /// The event's name, as librdmacm writes it.
    pub fn name(&self) -> &'static str {
        // SAFETY: gives a static string for every event.
        let name = unsafe { CStr::from_ptr(rdma_event_str(self.get().event)) };
        name.to_str().unwrap_or("unknown event")
    }

    /// The private data that came with it, empty if none did.
    ///
    /// Only for an event of a connection, since a datagram's lies elsewhere.
    pub fn private_data(&self) -> &[u8] {
        // SAFETY: ids of RDMA_PS_TCP get connection parameters; the data lives as
        // long as the event.
        unsafe {
            let param = &self.get().param.conn;
            if param.private_data.is_null() {
                return &[];
            }
            let len = usize::from(param.private_data_len);
            std::slice::from_raw_parts(param.private_data.cast(), len)
        }
    }

    /// Takes over the id that a connection request brought, and the duty to answer.
    /// The event must be acknowledged before the id is destroyed.
    ///
    /// # Safety
    /// The event is a connection request, and this is called once.
    pub unsafe fn take_id(&self) -> (Unanswered, CmId) {
        // SAFETY: a connection request has an id.
        let id = unsafe { NonNull::new_unchecked(self.get().id) };
        (Unanswered(id), CmId(id))
    }

    /// `rdma_ack_cm_event`.
    pub fn close(self) -> Result<(), Errno> {
        let this = ManuallyDrop::new(self);
        // SAFETY: owned by this wrapper, which is not used or dropped again.
        Errno::set(unsafe { rdma_ack_cm_event(this.0.as_ptr()) })
    }
}

impl Drop for CmEvent {
    fn drop(&mut self) {
        // SAFETY: owned by this wrapper, which is not used again.
        unsafe { rdma_ack_cm_event(self.0.as_ptr()) };
    }
}

/// An rdma_cm id: what a socket is to TCP.
pub struct CmId(NonNull<rdma_cm_id>);

/// What the library asks of every connection; the rest varies.
const CONN_PARAM: rdma_conn_param = rdma_conn_param {
    private_data: ptr::null(),
    private_data_len: 0,
    responder_resources: u8::MAX,
    initiator_depth: u8::MAX,
    flow_control: 1,
    retry_count: 7,
    rnr_retry_count: 7,
    srq: 0,
    qp_num: 0,
};

impl CmId {
    /// `rdma_create_id` in `RDMA_PS_TCP`; without a channel its calls are
    /// synchronous.
    pub fn create(channel: Option<&EventChannel>) -> Result<Self, Errno> {
        let channel = channel.map_or(ptr::null_mut(), |c| c.0.as_ptr());
        let mut id = ptr::null_mut();
        let space = rdma_port_space::RDMA_PS_TCP;
        // SAFETY: the channel is alive, and outlives the id by the order of its
        // owner's members; the pointer is valid to write to.
        Errno::set(unsafe { rdma_create_id(channel, &mut id, ptr::null_mut(), space) })?;
        NonNull::new(id).map(CmId).ok_or(Errno(libc::ENOMEM))
    }

    pub(super) fn as_ptr(&self) -> *mut rdma_cm_id {
        self.0.as_ptr()
    }

    /// The device that serves the id, if one does.
    pub fn context(&self) -> Option<Context> {
        // SAFETY: the id is alive; librdmacm keeps devices open for good.
        unsafe { Context::from_raw(self.0.as_ref().verbs) }
    }

    /// The address on this side.
    pub fn local_addr(&self) -> Addr<'_> {
        // SAFETY: the id is alive and has room for any address.
        unsafe { Addr::new(&raw const self.0.as_ref().route.addr.src_addr_union.src_storage) }
    }

    pub fn bind(&self, info: &AddrInfo) -> Result<(), Errno> {
        // SAFETY: id and address are alive.
        Errno::set(unsafe { rdma_bind_addr(self.as_ptr(), info.get().ai_src_addr) })
    }

    pub fn resolve_addr(&self, info: &AddrInfo, timeout_ms: c_int) -> Result<(), Errno> {
        let info = info.get();
        // SAFETY: id and addresses are alive.
        Errno::set(unsafe {
            rdma_resolve_addr(
                self.as_ptr(),
                info.ai_src_addr,
                info.ai_dst_addr,
                timeout_ms,
            )
        })
    }

    pub fn resolve_route(&self, timeout_ms: c_int) -> Result<(), Errno> {
        // SAFETY: the id is alive.
        Errno::set(unsafe { rdma_resolve_route(self.as_ptr(), timeout_ms) })
    }

    /// `rdma_listen` with the longest queue that the system allows.
    pub fn listen(&self) -> Result<(), Errno> {
        // SAFETY: the id is alive.
        Errno::set(unsafe { rdma_listen(self.as_ptr(), 0) })
    }

    /// `rdma_migrate_id`; without a channel its calls are synchronous again.
    pub fn migrate(&self, channel: Option<&EventChannel>) -> Result<(), Errno> {
        let channel = channel.map_or(ptr::null_mut(), |c| c.0.as_ptr());
        // SAFETY: id and channel are alive.
        Errno::set(unsafe { rdma_migrate_id(self.as_ptr(), channel) })
    }

    pub fn connect(&self, private_data: Option<&[u8]>) -> Result<(), Errno> {
        let mut param = conn_param(private_data);
        // SAFETY: id and private data live through the call.
        Errno::set(unsafe { rdma_connect(self.as_ptr(), &mut param) })
    }

    pub fn disconnect(&self) -> Result<(), Errno> {
        // SAFETY: the id is alive.
        Errno::set(unsafe { rdma_disconnect(self.as_ptr()) })
    }

    /// `rdma_destroy_id`; the id is gone also when that fails.
    pub fn close(self) -> Result<(), Errno> {
        let this = ManuallyDrop::new(self);
        // SAFETY: owned by this wrapper, which is not used or dropped again.
        Errno::set(unsafe { rdma_destroy_id(this.as_ptr()) })
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        // SAFETY: owned by this wrapper, which is not used again; its QP is
        // destroyed before, as its owners order their members.
        unsafe { rdma_destroy_id(self.as_ptr()) };
    }
}

/// The duty to answer a connection request; the answer is no when it is dropped.
///
/// It belongs to the request's id, which must be alive when it is dropped.
pub struct Unanswered(NonNull<rdma_cm_id>);

impl Unanswered {
    /// `rdma_accept`; the duty is given back if that fails.
    pub fn accept(self, private_data: Option<&[u8]>) -> Result<(), (Self, Errno)> {
        let mut param = conn_param(private_data);
        // SAFETY: id and private data live through the call.
        match Errno::set(unsafe { rdma_accept(self.0.as_ptr(), &mut param) }) {
            Ok(()) => {
                std::mem::forget(self);
                Ok(())
            }
            Err(errno) => Err((self, errno)),
        }
    }

    pub fn reject(self) -> Result<(), Errno> {
        let this = ManuallyDrop::new(self);
        // SAFETY: the id is alive.
        Errno::set(unsafe { rdma_reject(this.0.as_ptr(), ptr::null(), 0) })
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        // SAFETY: the id is alive.
        unsafe { rdma_reject(self.0.as_ptr(), ptr::null(), 0) };
    }
}

/// The parameters of a connection; private data is at most 255 bytes long.
fn conn_param(private_data: Option<&[u8]>) -> rdma_conn_param {
    let data = private_data.unwrap_or_default();
    rdma_conn_param {
        private_data: private_data.map_or(ptr::null(), |d| d.as_ptr().cast()),
        private_data_len: u8::try_from(data.len()).unwrap_or(u8::MAX),
        ..CONN_PARAM
    }
}

/// An internet address, shown as `ADDRESS:PORT`.
pub struct Addr<'a>(&'a libc::sockaddr_storage);

impl Addr<'_> {
    /// # Safety
    /// `raw` points to an address that outlives the result.
    unsafe fn new(raw: *const libc::sockaddr_storage) -> Self {
        // SAFETY: vouched for.
        Addr(unsafe { &*raw })
    }

    /// Whether it stands for all addresses of the host.
    pub fn is_wildcard(&self) -> bool {
        self.parts()
            .is_some_and(|(ip, _)| ip.to_canonical().is_unspecified())
    }

    /// The address and the port; none of a family that is not known.
    fn parts(&self) -> Option<(IpAddr, u16)> {
        let raw = &raw const *self.0;
        match c_int::from(self.0.ss_family) {
            libc::AF_INET => {
                // SAFETY: the family says that it is an IPv4 address.
                let addr = unsafe { &*raw.cast::<libc::sockaddr_in>() };
                let ip = Ipv4Addr::from(u32::from_be(addr.sin_addr.s_addr));
                Some((ip.into(), u16::from_be(addr.sin_port)))
            }
            libc::AF_INET6 => {
                // SAFETY: the family says that it is an IPv6 address.
                let addr = unsafe { &*raw.cast::<libc::sockaddr_in6>() };
                let ip = Ipv6Addr::from(addr.sin6_addr.s6_addr);
                Some((ip.into(), u16::from_be(addr.sin6_port)))
            }
            _ => None,
        }
    }
}

impl fmt::Display for Addr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.parts() {
            Some((IpAddr::V4(ip), port)) => write!(f, "{ip}:{port}"),
            Some((IpAddr::V6(ip), port)) => write!(f, "[{ip}]:{port}"),
            None => f.write_str("an unknown address"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Addr;
    use std::mem::MaybeUninit;

    /// An address of this family, of ones, and its port 7471.
    fn shown(family: libc::c_int, at: std::ops::Range<usize>) -> String {
        let mut raw = MaybeUninit::<libc::sockaddr_storage>::zeroed();
        let bytes = raw.as_mut_ptr().cast::<u8>();
        // SAFETY: within the structure, of which any bytes are a value.
        let addr = unsafe {
            bytes.cast::<libc::sa_family_t>().write(family as u16);
            bytes.add(2).cast::<u16>().write(7471u16.to_be());
            for at in at {
                bytes.add(at).write(1);
            }
            raw.assume_init()
        };
        // SAFETY: alive.
        unsafe { Addr::new(&addr) }.to_string()
    }

    #[test]
    fn addresses_are_shown_with_their_ports() {
        assert_eq!(shown(libc::AF_INET, 4..8), "1.1.1.1:7471");
        assert_eq!(
            shown(libc::AF_INET6, 8..24),
            "[101:101:101:101:101:101:101:101]:7471"
        );
        assert_eq!(shown(libc::AF_UNSPEC, 0..0), "an unknown address");
    }
}
