//! Ids: what every other function of connection management is about.

use super::addresses::{gid, to_c};
use super::events::{events_of, new_channel};
use super::{rdma_ack_cm_event, rdma_destroy_event_channel, rdma_get_cm_event};
use crate::engine;
use crate::exports::memory::ibv_alloc_pd;
use crate::exports::minus_one;
use crate::objects::alive::{Alive, Kind};
use crate::objects::device::default_context;
use crate::objects::endpoint::Endpoint;
use crate::objects::{errno_of, lock};
use rdma_sys::*;
use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// A cm id as C sees it.
#[repr(C)]
pub(super) struct Id {
    pub abi: rdma_cm_id,
    pub endpoint: Arc<Endpoint>,
    /// Its channel is its own, and its functions wait for their events.
    pub sync: bool,
    /// What `rdma_create_ep` was given for the connections that come.
    pub for_requests: Option<(*mut ibv_pd, ibv_qp_init_attr)>,
    path: Option<Box<ibv_sa_path_rec>>,
    _alive: Alive,
}

impl Id {
    /// Makes the id of an endpoint.
    pub fn create(
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
    pub fn update(&mut self) {
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

    /// Writes down the way to the other side, which `update` has found.
    pub fn add_path(&mut self) {
        // SAFETY: it consists of numbers.
        let mut path: Box<ibv_sa_path_rec> = Box::new(unsafe { zeroed() });
        // SAFETY: the members are numbers, whatever they are of.
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
    let mut pd = lock(&DOMAIN);
    if *pd == 0 {
        let context = default_context();
        if !context.is_null() {
            // SAFETY: the context is open, and stays so.
            *pd = unsafe { ibv_alloc_pd(context) }.expose_provenance();
        }
    }
    ptr::with_exposed_provenance_mut(*pd)
}

/// # Safety
/// The id is one of [`rdma_create_id`] or of an event, and only this thread uses it.
pub(super) unsafe fn id_of<'a>(id: *mut rdma_cm_id) -> &'a mut Id {
    // SAFETY: as the caller promises.
    unsafe { &mut *id.cast() }
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
    match ps {
        rdma_port_space::RDMA_PS_TCP | rdma_port_space::RDMA_PS_IB => {}
        rdma_port_space::RDMA_PS_UDP | rdma_port_space::RDMA_PS_IPOIB => {
            return minus_one(Err(libc::EPROTONOSUPPORT));
        }
        _ => return minus_one(Err(libc::EINVAL)),
    }
    if default_context().is_null() {
        return -1;
    }
    if let Err(error) = engine::start() {
        return minus_one(Err(errno_of(&error)));
    }
    let sync = channel.is_null();
    let channel = match channel_or_own(channel) {
        Ok(channel) => channel,
        Err(error) => return minus_one(Err(error)),
    };
    // SAFETY: as the caller promises.
    unsafe {
        let endpoint = Endpoint::new(events_of(channel));
        *id = Id::create(endpoint, channel, context, ps, sync).cast();
    }
    0
}

/// A channel, or one for the id alone.
fn channel_or_own(channel: *mut rdma_event_channel) -> Result<*mut rdma_event_channel, i32> {
    if channel.is_null() {
        new_channel()
    } else {
        Ok(channel)
    }
}

/// Acknowledges the event that an id with a channel of its own got last.
pub(super) fn acknowledge_own(id: &mut Id) {
    if !id.abi.event.is_null() {
        // SAFETY: the event is one that the id got for itself, and has not acknowledged.
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
        drop(Box::from_raw(ptr::from_mut(id)));
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
        let channel = match channel_or_own(channel) {
            Ok(channel) => channel,
            Err(error) => return minus_one(Err(error)),
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

/// Waits for the event of what was just asked, if the id has a channel of its own.
pub(super) fn complete(id: &mut Id, asked: Result<(), i32>) -> c_int {
    if let Err(error) = asked {
        return minus_one(Err(error));
    }
    if !id.sync {
        return 0;
    }
    acknowledge_own(id);
    // SAFETY: the id's channel is its own.
    if unsafe { rdma_get_cm_event(id.abi.channel, &mut id.abi.event) } != 0 {
        return -1;
    }
    // SAFETY: it is there until it is acknowledged.
    let event = unsafe { &*id.abi.event };
    minus_one(match event.status {
        0 => Ok(()),
        _ if event.event == rdma_cm_event_type::RDMA_CM_EVENT_REJECTED => Err(libc::ECONNREFUSED),
        status => Err(status.abs()),
    })
}
