//! Devices and peers.

use super::{Result, c_string, check, log, sys};
use rdma_sys::{ibv_context, ibv_get_device_name};
use std::ffi::{CStr, c_int};
use std::ptr::{self, NonNull};
use std::rc::Rc;

/// An RDMA device. The library leaves it open to the end of the process.
#[derive(Debug, Clone, Copy)]
pub struct Device(NonNull<ibv_context>);

impl Device {
    /// The device of an address or a host name of this host.
    pub fn local(address: &str) -> Result<Self> {
        Self::find(address, sys::RPMA_UTIL_IBV_CONTEXT_LOCAL)
    }

    /// The device by which an address or a host name is reached.
    pub fn remote(address: &str) -> Result<Self> {
        Self::find(address, sys::RPMA_UTIL_IBV_CONTEXT_REMOTE)
    }

    /// A device that was opened otherwise.
    ///
    /// # Safety
    /// It stays open to the end of the process.
    #[must_use]
    pub unsafe fn from_context(context: NonNull<ibv_context>) -> Self {
        log::collect();
        Self(context)
    }

    fn find(address: &str, kind: sys::rpma_util_ibv_context_type) -> Result<Self> {
        log::collect();
        let (address, mut context) = (c_string(address), ptr::null_mut());
        // SAFETY: the arguments are what the function asks for.
        let code =
            unsafe { sys::rpma_utils_get_ibv_context(address.as_ptr(), kind, &raw mut context) };
        check("rpma_utils_get_ibv_context", code)?;
        // The original library succeeds with NULL where no device serves the address.
        let context = NonNull::new(context).ok_or_else(|| super::Error {
            call: "rpma_utils_get_ibv_context",
            code: sys::RPMA_E_PROVIDER,
            log: vec!["no RDMA device serves the address".into()],
        });
        context.map(Self)
    }

    /// The device as verbs have it.
    #[must_use]
    pub fn context(self) -> *mut ibv_context {
        self.0.as_ptr()
    }

    /// Such as `mlx5_0`.
    #[must_use]
    pub fn name(self) -> String {
        // SAFETY: the context is open, and the name lives as long as it.
        let name = unsafe { ibv_get_device_name((*self.0.as_ptr()).device) };
        if name.is_null() {
            return "?".into();
        }
        // SAFETY: as above.
        unsafe { CStr::from_ptr(name) }
            .to_string_lossy()
            .into_owned()
    }

    /// Whether it pages on demand.
    pub fn pages_on_demand(self) -> Result<bool> {
        let mut capable: c_int = 0;
        // SAFETY: the context is open.
        let code =
            unsafe { sys::rpma_utils_ibv_context_is_odp_capable(self.context(), &raw mut capable) };
        check("rpma_utils_ibv_context_is_odp_capable", code).map(|()| capable != 0)
    }
}

/// A device in use. What is made of it keeps it.
#[derive(Debug, Clone)]
pub struct Peer(Rc<RawPeer>);

#[derive(Debug)]
struct RawPeer(*mut sys::rpma_peer);

impl Peer {
    pub fn new(device: Device) -> Result<Self> {
        let mut peer = ptr::null_mut();
        // SAFETY: the context stays open.
        let code = unsafe { sys::rpma_peer_new(device.context(), &raw mut peer) };
        check("rpma_peer_new", code).map(|()| Self(Rc::new(RawPeer(peer))))
    }

    /// One, and what the library remarks on the device.
    pub fn with_remarks(device: Device) -> (Result<Self>, Vec<String>) {
        log::remarks(|| Self::new(device))
    }

    pub(super) fn raw(&self) -> *mut sys::rpma_peer {
        self.0.0
    }
}

impl Drop for RawPeer {
    fn drop(&mut self) {
        // SAFETY: all that was made of it is gone, since that holds it.
        let code = unsafe { sys::rpma_peer_delete(&raw mut self.0) };
        let _ = check("rpma_peer_delete", code);
    }
}
