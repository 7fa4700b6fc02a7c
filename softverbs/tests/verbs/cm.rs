//! Addresses, event channels, ids.

use super::*;

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
