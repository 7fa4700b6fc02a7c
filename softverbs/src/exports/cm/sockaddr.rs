//! Addresses as C has them.

use std::ffi::c_int;
use std::mem::zeroed;
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};

/// # Safety
/// The address is NULL, or as long as its family says.
pub unsafe fn from_c(address: *const libc::sockaddr) -> Result<SocketAddr, i32> {
    if address.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: it is not NULL, and as long as its family says.
    unsafe {
        match c_int::from((*address).sa_family) {
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

pub fn to_c(address: &SocketAddr) -> libc::sockaddr_storage {
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
