//! What an id is, for the entry points.
//!
//! Several threads use an id at once: one calls its functions, another gets its events. And the
//! structure that C sees is the program's as much as this library's. So there are only shared
//! references to an id, and that structure is accessed member by member, through a pointer.
//!
//! An event lets another thread destroy the id. A call that may bring one takes what it needs of the
//! id before, and works on the driver's part of it, which it keeps.

use super::sockaddr::to_c;
use crate::driver::cm::CmId;
use crate::exports::device::default_context;
use crate::exports::memory::ibv_alloc_pd;
use crate::objects::alive::{Alive, Kind};
use crate::objects::device::port;
use crate::process::{AtFork, LockOrder, at_fork};
use crate::sync::lock;
use rdma_sys::*;
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::mem::zeroed;
use std::net::SocketAddr;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, Once, OnceLock};

/// A time of 4.096 µs * 2^17, 0.5 s, if the program does not set another one: the kernel's for its
/// software device (seen on Linux 6.12). The link has its own times: this is what programs are told.
const ACK_TIMEOUT: u8 = 17;

/// What `rdma_create_ep` was given for the connections that come.
pub struct ForRequests {
    pub pd: *mut ibv_pd,
    pub attr: ibv_qp_init_attr,
}

/// A cm id as C sees it.
#[repr(C)]
pub struct Id {
    abi: UnsafeCell<rdma_cm_id>,
    cm: Arc<CmId>,
    /// Its channel is its own, and its functions wait for their events.
    sync: AtomicBool,
    ack_timeout: AtomicU8,
    pub for_requests: OnceLock<ForRequests>,
    /// What `route.path_rec` points to once there is a route.
    path: UnsafeCell<ibv_sa_path_rec>,
    _alive: Alive,
}

impl Id {
    /// Makes the id of the driver's part of it.
    pub fn create(
        cm: Arc<CmId>,
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        ps: rdma_port_space::Type,
        sync: bool,
    ) -> *mut rdma_cm_id {
        // SAFETY: it consists of numbers and pointers.
        let mut abi: rdma_cm_id = unsafe { zeroed() };
        abi.channel = channel;
        abi.context = context;
        abi.ps = ps;
        abi.qp_type = ibv_qp_type::IBV_QPT_RC;
        let id: *mut rdma_cm_id = Box::into_raw(Box::new(Id {
            abi: UnsafeCell::new(abi),
            cm: cm.clone(),
            sync: AtomicBool::new(sync),
            ack_timeout: AtomicU8::new(ACK_TIMEOUT),
            for_requests: OnceLock::new(),
            // SAFETY: it consists of numbers.
            path: UnsafeCell::new(unsafe { zeroed() }),
            _alive: Alive::new(Kind::CmId),
        }))
        .cast();
        cm.handle.store(id, Ordering::Release);
        id
    }

    /// # Safety
    /// The id is one of [`Id::create`], and is not used any more.
    pub unsafe fn destroy(id: *mut rdma_cm_id) {
        // SAFETY: `create` made it from a box, and nobody uses it any more.
        drop(unsafe { Box::from_raw(id.cast::<Id>()) });
    }

    /// What C sees. Its members are read and written one by one, as C does.
    pub fn abi(&self) -> *mut rdma_cm_id {
        self.abi.get()
    }

    pub fn cm(&self) -> Arc<CmId> {
        self.cm.clone()
    }

    pub fn is_sync(&self) -> bool {
        // Relaxed: a flag alone. As with librdmacm, no other thread calls anything for an id while
        // it gets another channel.
        self.sync.load(Ordering::Relaxed)
    }

    /// Its events come there from now on.
    pub fn set_channel(&self, channel: *mut rdma_event_channel, sync: bool) {
        // SAFETY: the id is there as long as it is borrowed.
        unsafe { (*self.abi()).channel = channel };
        // Relaxed: as in `is_sync`.
        self.sync.store(sync, Ordering::Relaxed);
    }

    /// As of `ibv_modify_qp`.
    pub fn ack_timeout(&self) -> u8 {
        // Relaxed: a number alone.
        self.ack_timeout.load(Ordering::Relaxed)
    }

    pub fn set_ack_timeout(&self, timeout: u8) {
        // Relaxed: as in `ack_timeout`.
        self.ack_timeout.store(timeout, Ordering::Relaxed);
    }

    /// Writes down the addresses and, once it has one of this host, the device.
    pub fn note_addresses(&self, (local, remote): (Option<SocketAddr>, Option<SocketAddr>)) {
        let abi = self.abi();
        // SAFETY: the id is there as long as it is borrowed. These members are this library's to
        // write; it does so in the calls that find an address, before their event.
        unsafe {
            let addr = &raw mut (*abi).route.addr;
            if let Some(local) = local {
                (*addr).src_addr_union.src_storage = to_c(&local);
                if !local.ip().is_unspecified() {
                    (*addr).addr.ibaddr.sgid = port::gid(local.ip());
                    (*abi).verbs = default_context();
                    (*abi).port_num = port::PORT as u8;
                    if (*abi).pd.is_null() {
                        (*abi).pd = default_pd();
                    }
                }
            }
            if let Some(remote) = remote {
                (*addr).dst_addr_union.dst_storage = to_c(&remote);
                (*addr).addr.ibaddr.dgid = port::gid(remote.ip());
                (*addr).addr.ibaddr.pkey = port::PKEY.to_be();
            }
        }
    }

    /// Writes down the way to the other side, whose address has been found.
    pub fn note_path(&self) {
        let (abi, path) = (self.abi(), self.path.get());
        // SAFETY: as above.
        unsafe {
            (*path).dgid = (*abi).route.addr.addr.ibaddr.dgid;
            (*path).sgid = (*abi).route.addr.addr.ibaddr.sgid;
            (*path).pkey = port::PKEY.to_be();
            (*path).reversible = 1;
            (*path).mtu_selector = 2;
            (*path).mtu = ibv_mtu::IBV_MTU_4096 as u8;
            (*path).numb_path = 1;
            (*abi).route.path_rec = path;
            (*abi).route.num_paths = 1;
        }
    }
}

/// # Safety
/// The id is one of this library's, and is not destroyed as long as this is used.
pub unsafe fn id_of<'a>(id: *mut rdma_cm_id) -> &'a Id {
    // SAFETY: the id is there as long as this is used. There are no other references but shared
    // ones; what C writes is in an `UnsafeCell`.
    unsafe { &*id.cast::<Id>() }
}

/// The domain of those who do not bring one.
static DOMAIN: Mutex<usize> = Mutex::new(0);

fn default_pd() -> *mut ibv_pd {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        at_fork(AtFork {
            order: LockOrder::Exports,
            lock: || Box::new(lock(&DOMAIN)),
            in_child: || {},
        });
    });
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
