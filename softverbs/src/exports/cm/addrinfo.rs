//! Names of hosts and services.

use crate::exports::returns::minus_one;
use rdma_sys::*;
use std::ffi::{c_char, c_int};
use std::mem::zeroed;
use std::ptr;

/// A copy of an address in memory that C's `free` takes; NULL if there is none.
///
/// # Safety
/// The address is of the length.
unsafe fn allocated(address: *const libc::sockaddr, len: libc::socklen_t) -> *mut libc::sockaddr {
    // SAFETY: as the caller promises; what `malloc` gives is as long.
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
