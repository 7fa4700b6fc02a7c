//! Addresses, and how the other side is reached.

use super::ids::{complete, id_of};
use crate::exports::minus_one;
use rdma_sys::*;
use std::ffi::c_int;
use std::mem::zeroed;
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// # Safety
/// The address is NULL, or as long as its family says.
unsafe fn from_c(address: *const libc::sockaddr) -> Result<SocketAddr, i32> {
    if address.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: as the caller promises.
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
            _ => Err(libc::EINVAL),
        }
    }
}

pub(super) fn to_c(address: &SocketAddr) -> libc::sockaddr_storage {
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

/// As a GID: an IPv4 address is mapped into IPv6.
pub(super) fn gid(ip: &IpAddr) -> ibv_gid {
    let raw = match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    ibv_gid { raw }
}

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
            let src = (!src.is_null()).then(|| from_c(src)).transpose()?;
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
