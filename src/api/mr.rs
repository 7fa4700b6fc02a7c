//! Memory regions.

use super::peer::rpma_peer;
use super::{call, delete, export, get, give_box, out};
use crate::core::{Error, MrLocal, MrRemote, Usage, room};
use std::ffi::{c_int, c_void};

/// Memory of this process, registered for use by its device.
pub type rpma_mr_local = crate::core::MrLocal;
/// Memory of the other side, as this side knows it.
pub type rpma_mr_remote = crate::core::MrRemote;

/// The memory is read by rpma_read() of the other side.
pub const RPMA_MR_USAGE_READ_SRC: c_int = 1 << 0;
/// rpma_read() of this side writes to the memory.
pub const RPMA_MR_USAGE_READ_DST: c_int = 1 << 1;
/// The memory is read by rpma_write() of this side.
pub const RPMA_MR_USAGE_WRITE_SRC: c_int = 1 << 2;
/// rpma_write() and rpma_atomic_write() of the other side write to the memory.
pub const RPMA_MR_USAGE_WRITE_DST: c_int = 1 << 3;
/// rpma_flush() of the other side makes what it wrote visible.
pub const RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY: c_int = 1 << 4;
/// rpma_flush() of the other side makes what it wrote persistent.
pub const RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT: c_int = 1 << 5;
/// The memory is read by rpma_send() of this side.
pub const RPMA_MR_USAGE_SEND: c_int = 1 << 6;
/// Messages are received into the memory.
pub const RPMA_MR_USAGE_RECV: c_int = 1 << 7;

/// Registers memory for use by the device of a peer: `size` bytes at `ptr`.
///
/// `usage` is any of `RPMA_MR_USAGE_*`, one at least.
///
/// The memory stays the caller's and must stay mapped until the region is released by
/// rpma_mr_dereg(); the region is the caller's.
///
/// Memory that a device with native flush does not take for persistent is registered all
/// the same, with a warning in the log: the device then refuses to flush it to
/// persistence. Where the device can page on demand, memory that can only be registered
/// so is.
///
/// Where peers with and without native flush connect, memory to be flushed needs
/// RPMA_MR_USAGE_READ_SRC too: a side without flushes by reading.
///
/// Thread-safe.
///
/// Errors, with `*mr_ptr` as it was:
/// - RPMA_E_INVAL: `peer`, `ptr` or `mr_ptr` is NULL, `size` is 0, or `usage` is 0 or has
///   a bit that is none of RPMA_MR_USAGE_*
/// - RPMA_E_NOMEM: out of memory: nothing was made; the call can be repeated
/// - RPMA_E_PROVIDER: ibv_reg_mr(3) failed. If the log says "Cannot allocate memory", it
///   is mostly the limit of locked memory that is too low: see RLIMIT_MEMLOCK of
///   getrlimit(2). If it says "Bad address", not all of the range is mapped, or not for
///   writing. "Operation not supported", of a file on a DAX filesystem, asks for a device
///   that pages on demand.
///
/// # Example
///
/// ```c
/// size_t size = 4096;
/// struct rpma_mr_local *mr = NULL;
/// void *memory = aligned_alloc(4096, size);
/// if (!memory)
///     return -1;
/// ret = rpma_mr_reg(peer, memory, size,
///                   RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_WRITE_DST,
///                   &mr);
/// /* ... and once no operation uses it any more: */
/// rpma_mr_dereg(&mr);
/// free(memory);
/// ```
pub unsafe extern "C" fn rpma_mr_reg(
    peer: *mut rpma_peer,
    ptr: *mut c_void,
    size: usize,
    usage: c_int,
    mr_ptr: *mut *mut rpma_mr_local,
) -> c_int {
    call(|| {
        // SAFETY: NULL or a peer; NULL or valid to write to.
        let (peer, mr) = unsafe { (get(peer)?, out(mr_ptr)?) };
        let usage = u8::try_from(usage).map_err(|_| Error::INVAL)?;
        if ptr.is_null() || size == 0 || usage == 0 {
            return Err(Error::INVAL);
        }
        let usage = Usage::from_bits_retain(usage);
        let room = room()?;
        // SAFETY: the caller keeps the memory mapped.
        let registered = unsafe { MrLocal::register(peer, ptr, size, usage) }?;
        give_box(Box::write(room, registered), mr);
        Ok(())
    })
}

/// Releases a local region.
///
/// `*mr_ptr` is set to NULL; one that is NULL already is fine.
///
/// No operation that uses the region may be under way. The memory stays, and is the
/// caller's to release.
///
/// Thread-safe on separate regions.
///
/// Errors:
/// - RPMA_E_INVAL: `mr_ptr` is NULL
/// - RPMA_E_PROVIDER: ibv_dereg_mr(3) failed, for the reason that the log gives; the
///   region is gone all the same
///
/// # Example
///
/// See rpma_mr_reg().
pub unsafe extern "C" fn rpma_mr_dereg(mr_ptr: *mut *mut rpma_mr_local) -> c_int {
    // SAFETY: NULL, or points to NULL or to a region of rpma_mr_reg().
    unsafe { delete(mr_ptr, MrLocal::delete) }
}

/// Writes the descriptor of a local region, by which the other side gets at it.
///
/// `desc` has room for as many bytes as rpma_mr_get_descriptor_size() tells. The
/// descriptor is the same on every machine: u64 address, u64 size, u32 rkey, u8 usage,
/// all little endian. The other side must be able to trust what it gets: an attacker who
/// changes it may make it write elsewhere. Send it by a secured connection.
///
/// Thread-safe.
///
/// Errors:
/// - RPMA_E_INVAL: `mr` or `desc` is NULL
///
/// # Example
///
/// As private data of a connection, which the other side gets with the request or its
/// answer:
///
/// ```c
/// uint8_t descriptor[32];
/// size_t size;
/// struct rpma_conn_private_data pdata = {descriptor, 0};
/// ret = rpma_mr_get_descriptor_size(mr, &size);
/// if (ret || size > sizeof(descriptor))
///     return -1;
/// ret = rpma_mr_get_descriptor(mr, descriptor);
/// pdata.len = (uint8_t)size;
/// if (!ret)
///     ret = rpma_conn_req_connect(&req, &pdata, &conn);
/// ```
pub unsafe extern "C" fn rpma_mr_get_descriptor(
    mr: *const rpma_mr_local,
    desc: *mut c_void,
) -> c_int {
    call(|| {
        // SAFETY: NULL or a region; NULL or room for a descriptor.
        let (mr, desc) = unsafe { (get(mr)?, out(desc.cast())?) };
        desc.write(mr.descriptor());
        Ok(())
    })
}

/// Gives the size of the descriptor of a local region, in bytes.
///
/// Thread-safe.
///
/// Errors, with `*desc_size` as it was:
/// - RPMA_E_INVAL: `mr` or `desc_size` is NULL
pub unsafe extern "C" fn rpma_mr_get_descriptor_size(
    mr: *const rpma_mr_local,
    desc_size: *mut usize,
) -> c_int {
    call(|| {
        // SAFETY: NULL or a region; NULL or valid to write to.
        let (_, size) = unsafe { (get(mr)?, out(desc_size)?) };
        size.write(MrLocal::DESCRIPTOR_SIZE);
        Ok(())
    })
}

/// Gives the address of the memory of a local region.
///
/// The memory is that of rpma_mr_reg(), and its owner's.
///
/// Thread-safe.
///
/// Errors, with `*ptr` as it was:
/// - RPMA_E_INVAL: `mr` or `ptr` is NULL
///
/// # Example
///
/// ```c
/// void *memory;
/// size_t size;
/// ret = rpma_mr_get_ptr(mr, &memory);
/// if (!ret)
///     ret = rpma_mr_get_size(mr, &size);
/// if (!ret)
///     memset(memory, 0, size);
/// ```
pub unsafe extern "C" fn rpma_mr_get_ptr(mr: *const rpma_mr_local, ptr: *mut *mut c_void) -> c_int {
    call(|| {
        // SAFETY: NULL or a region; NULL or valid to write to.
        let (mr, ptr) = unsafe { (get(mr)?, out(ptr)?) };
        ptr.write(mr.ptr());
        Ok(())
    })
}

/// Gives the size of a local region, in bytes.
///
/// Thread-safe.
///
/// Errors, with `*size` as it was:
/// - RPMA_E_INVAL: `mr` or `size` is NULL
///
/// # Example
///
/// See rpma_mr_get_ptr().
pub unsafe extern "C" fn rpma_mr_get_size(mr: *const rpma_mr_local, size: *mut usize) -> c_int {
    call(|| {
        // SAFETY: NULL or a region; NULL or valid to write to.
        let (mr, size) = unsafe { (get(mr)?, out(size)?) };
        size.write(mr.size());
        Ok(())
    })
}

/// Gives the device advice about a range of a local region: `len` bytes from `offset` on.
///
/// `advice` and `flags` are those of ibv_advise_mr(3).
///
/// Thread-safe.
///
/// Errors:
/// - RPMA_E_INVAL: `mr` is NULL, `len` is 2^32 or more, the range is not within the
///   region, its usage does not allow the advice, or the flags are invalid; or the device
///   takes advice only for memory that it pages on demand, and this is not: go on without
/// - RPMA_E_NOSUPP: the device or the system takes no advice: go on without
/// - RPMA_E_PROVIDER: ibv_advise_mr(3) failed otherwise, for the reason that the log
///   gives
///
/// # Example
///
/// To have the pages of a region that is paged on demand there before they are used:
///
/// ```c
/// ret = rpma_mr_advise(mr, 0, size,
///                      IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE,
///                      IBV_ADVISE_MR_FLAG_FLUSH);
/// if (ret == RPMA_E_NOSUPP)
///     ret = 0;
/// ```
pub unsafe extern "C" fn rpma_mr_advise(
    mr: *mut rpma_mr_local,
    offset: usize,
    len: usize,
    advice: c_int,
    flags: u32,
) -> c_int {
    // SAFETY: NULL or a region.
    call(|| unsafe { get(mr) }?.advise(offset, len, advice, flags))
}

/// Makes a remote region of a descriptor that the other side has sent.
///
/// What follows the descriptor within `desc_size` bytes is ignored. The region is the
/// caller's, to be released by rpma_mr_remote_delete(); it keeps nothing of `desc`.
///
/// The other side's region must be registered as long as this side uses it. Once it is
/// not, operations on it complete with IBV_WC_REM_ACCESS_ERR.
///
/// Thread-safe.
///
/// Errors, with `*mr_ptr` as it was:
/// - RPMA_E_INVAL: `desc` or `mr_ptr` is NULL, `desc_size` is too small, or the
///   descriptor says of no use of the memory: it is not one, or not all of it has come
/// - RPMA_E_NOMEM: out of memory: nothing was made; the call can be repeated
///
/// # Example
///
/// From the private data that the other side has sent:
///
/// ```c
/// struct rpma_conn_private_data data;
/// size_t there;
/// ret = rpma_conn_get_private_data(conn, &data);
/// if (!ret)
///     ret = rpma_mr_remote_from_descriptor(data.ptr, data.len,
///                                          &remote);
/// if (!ret)
///     ret = rpma_mr_remote_get_size(remote, &there);
/// ```
pub unsafe extern "C" fn rpma_mr_remote_from_descriptor(
    desc: *const c_void,
    desc_size: usize,
    mr_ptr: *mut *mut rpma_mr_remote,
) -> c_int {
    call(|| {
        let size = desc_size.min(MrLocal::DESCRIPTOR_SIZE);
        // SAFETY: NULL or desc_size bytes; NULL or valid to write to.
        let (desc, mr) = unsafe {
            let mr = out(mr_ptr)?;
            if desc.is_null() {
                return Err(Error::INVAL);
            }
            (std::slice::from_raw_parts(desc.cast::<u8>(), size), mr)
        };
        give_box(MrRemote::from_descriptor(desc)?, mr);
        Ok(())
    })
}

/// Gives the size of a remote region, in bytes.
///
/// Thread-safe.
///
/// Errors, with `*size` as it was:
/// - RPMA_E_INVAL: `mr` or `size` is NULL
///
/// # Example
///
/// See rpma_mr_remote_from_descriptor().
pub unsafe extern "C" fn rpma_mr_remote_get_size(
    mr: *const rpma_mr_remote,
    size: *mut usize,
) -> c_int {
    call(|| {
        // SAFETY: NULL or a region; NULL or valid to write to.
        let (mr, size) = unsafe { (get(mr)?, out(size)?) };
        size.write(mr.size() as usize);
        Ok(())
    })
}

/// Gives the types of flush that a remote region supports.
///
/// `*flush_type` is none, one or both of `RPMA_MR_USAGE_FLUSH_TYPE_*`.
///
/// Thread-safe.
///
/// Errors, with `*flush_type` as it was:
/// - RPMA_E_INVAL: `mr` or `flush_type` is NULL
///
/// # Example
///
/// ```c
/// int types;
/// ret = rpma_mr_remote_get_flush_type(remote, &types);
/// if (!ret && !(types & RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT))
///     puts("nothing written there outlasts a loss of power");
/// ```
pub unsafe extern "C" fn rpma_mr_remote_get_flush_type(
    mr: *const rpma_mr_remote,
    flush_type: *mut c_int,
) -> c_int {
    call(|| {
        // SAFETY: NULL or a region; NULL or valid to write to.
        let (mr, flush_type) = unsafe { (get(mr)?, out(flush_type)?) };
        let flush = Usage::FLUSH_TYPE_VISIBILITY | Usage::FLUSH_TYPE_PERSISTENT;
        flush_type.write(c_int::from((mr.usage() & flush).bits()));
        Ok(())
    })
}

/// Releases a remote region.
///
/// `*mr_ptr` is set to NULL; one that is NULL already is fine.
///
/// The memory on the other side is not concerned.
///
/// Thread-safe on separate regions.
///
/// Errors:
/// - RPMA_E_INVAL: `mr_ptr` is NULL
///
/// # Example
///
/// ```c
/// ret = rpma_mr_remote_delete(&remote);
/// ```
pub unsafe extern "C" fn rpma_mr_remote_delete(mr_ptr: *mut *mut rpma_mr_remote) -> c_int {
    // SAFETY: NULL, or points to NULL or to a region made here.
    unsafe { delete(mr_ptr, |_| Ok(())) }
}

export!(
    rpma_mr_reg
    rpma_mr_dereg
    rpma_mr_get_descriptor
    rpma_mr_get_descriptor_size
    rpma_mr_get_ptr
    rpma_mr_get_size
    rpma_mr_advise
    rpma_mr_remote_from_descriptor
    rpma_mr_remote_get_size
    rpma_mr_remote_get_flush_type
    rpma_mr_remote_delete
);
