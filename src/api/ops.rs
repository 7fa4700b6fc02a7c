//! Operations of a connection.

use super::conn::rpma_conn;
use super::mr::{rpma_mr_local, rpma_mr_remote};
use super::{CEnum, call, export, get};
use crate::core::{Completion, Conn, Error, FlushType, LocalRange, RemoteRange, Result};
use std::ffi::{c_char, c_int, c_void};

/// As flags of rpma_conn_wait(), which ignores them.
pub const RPMA_W_WAIT_FOR_COMPLETION: c_int = 1;

/// An operation completes with an entry in the CQ only if it fails.
pub const RPMA_F_COMPLETION_ON_ERROR: c_int = 1;
/// An operation completes with an entry in the CQ in any case.
pub const RPMA_F_COMPLETION_ALWAYS: c_int = 3;

/// What the offset of an atomic write must be a multiple of, in bytes.
pub const RPMA_ATOMIC_WRITE_ALIGNMENT: c_int = 8;

/// How far a flush goes.
#[repr(C)]
pub enum rpma_flush_type {
    /// The data survives a loss of power.
    RPMA_FLUSH_TYPE_PERSISTENT,
    /// The data is visible to all that runs on the other side.
    RPMA_FLUSH_TYPE_VISIBILITY,
}

/// None for no flags.
#[inline(always)]
fn completion(flags: c_int) -> Option<Completion> {
    const ON_SUCCESS: c_int = RPMA_F_COMPLETION_ALWAYS & !RPMA_F_COMPLETION_ON_ERROR;
    match flags {
        0 => None,
        flags if flags & ON_SUCCESS != 0 => Some(Completion::Always),
        _ => Some(Completion::OnError),
    }
}

/// The range of a message: none only as NULL, 0 and 0.
///
/// # Safety
/// `mr` is NULL or a region that outlives the result.
#[inline(always)]
pub(super) unsafe fn local_range<'a>(
    mr: *const rpma_mr_local,
    offset: usize,
    len: usize,
) -> Result<Option<LocalRange<'a>>> {
    // SAFETY: vouched for.
    match unsafe { mr.as_ref() } {
        Some(mr) => LocalRange::new(mr, offset, len).map(Some),
        None if offset == 0 && len == 0 => Ok(None),
        None => Err(Error::INVAL),
    }
}

// An operation on memory is told by one look at its arguments. What is left, operations
// without memory and faults, goes to a function of the same arguments, which is reached
// by a jump: any other way costs the operation some six instructions (docs/cost.md).

/// The connection and what else an operation without memory needs.
///
/// # Safety
/// `conn` is NULL or a connection that outlives the result.
unsafe fn without_memory<'a>(
    conn: *const rpma_conn,
    regions: bool,
    sizes: usize,
    flags: c_int,
) -> Result<(&'a Conn, Completion)> {
    // SAFETY: vouched for.
    match (unsafe { conn.as_ref() }, completion(flags)) {
        (Some(conn), Some(completion)) if !regions && sizes == 0 => Ok((conn, completion)),
        _ => Err(Error::INVAL),
    }
}

/// All that a transfer between two regions needs; None if something is amiss.
///
/// # Safety
/// The pointers are NULL or objects that outlive the result.
#[inline(always)]
unsafe fn transfer<'a>(
    conn: *const rpma_conn,
    local: (*const rpma_mr_local, usize),
    remote: (*const rpma_mr_remote, usize),
    len: usize,
    flags: c_int,
) -> Option<(&'a Conn, LocalRange<'a>, RemoteRange<'a>, Completion)> {
    // SAFETY: vouched for.
    let (conn, local_mr, remote_mr) =
        unsafe { (conn.as_ref()?, local.0.as_ref()?, remote.0.as_ref()?) };
    let local = LocalRange::new(local_mr, local.1, len).ok()?;
    let remote = RemoteRange::new(remote_mr, remote.1);
    Some((conn, local, remote, completion(flags)?))
}

/// All that a message from a region needs; None if something is amiss.
///
/// # Safety
/// The pointers are NULL or objects that outlive the result.
#[inline(always)]
unsafe fn message<'a>(
    conn: *const rpma_conn,
    src: *const rpma_mr_local,
    offset: usize,
    len: usize,
    flags: c_int,
) -> Option<(&'a Conn, LocalRange<'a>, Completion)> {
    // SAFETY: vouched for.
    let (conn, src) = unsafe { (conn.as_ref()?, src.as_ref()?) };
    Some((
        conn,
        LocalRange::new(src, offset, len).ok()?,
        completion(flags)?,
    ))
}

/// Reads memory of the other side into local memory.
///
/// `len` bytes from `src_offset` of `src` on go to `dst_offset` of `dst` on; with `dst`
/// and `src` NULL and the offsets and `len` 0, none do.
///
/// `flags` is one of `RPMA_F_COMPLETION_*`.
///
/// `op_context` comes back as `wr_id` of the completion; until then the memory may be
/// written and the region must stay registered. That the ranges are within their regions
/// is left for the device to check, which completes the operation with an error and
/// breaks the connection.
///
/// Thread-safe as far as ibv_post_send(3) is.
///
/// Errors:
/// - RPMA_E_INVAL: `conn` is NULL, `flags` are 0, one of `dst` and `src` is NULL, both
///   are while an offset or `len` is not 0, or `len` is 2^32 or more
/// - RPMA_E_PROVIDER: ibv_post_send(3) failed: mostly the send queue is full. Collect
///   completions, or make it longer by rpma_conn_cfg_set_sq_size(); operations that
///   complete only on error leave the queue when a later one has completed.
///
/// # Example
///
/// ```c
/// struct ibv_wc wc;
/// ret = rpma_conn_get_cq(conn, &cq);
/// if (!ret)
///     ret = rpma_read(conn, mr, 0, remote, 0, 4096,
///                     RPMA_F_COMPLETION_ALWAYS, NULL);
/// if (!ret)
///     ret = rpma_cq_wait(cq);
/// if (!ret)
///     ret = rpma_cq_get_wc(cq, 1, &wc, NULL);
/// if (!ret && wc.status != IBV_WC_SUCCESS)
///     fprintf(stderr, "read: %s\n", ibv_wc_status_str(wc.status));
/// ```
pub unsafe extern "C" fn rpma_read(
    conn: *mut rpma_conn,
    dst: *mut rpma_mr_local,
    dst_offset: usize,
    src: *const rpma_mr_remote,
    src_offset: usize,
    len: usize,
    flags: c_int,
    op_context: *const c_void,
) -> c_int {
    // SAFETY: NULL or what they say; the caller leaves the memory to the device.
    unsafe {
        match transfer(conn, (dst, dst_offset), (src, src_offset), len, flags) {
            Some((conn, dst, src, completion)) => {
                call(|| conn.read(dst, src, completion, op_context as u64))
            }
            None => read_nothing(
                conn, dst, dst_offset, src, src_offset, len, flags, op_context,
            ),
        }
    }
}

#[cold]
unsafe extern "C" fn read_nothing(
    conn: *mut rpma_conn,
    dst: *mut rpma_mr_local,
    dst_offset: usize,
    src: *const rpma_mr_remote,
    src_offset: usize,
    len: usize,
    flags: c_int,
    op_context: *const c_void,
) -> c_int {
    let regions = !dst.is_null() || !src.is_null();
    let sizes = dst_offset | src_offset | len;
    call(|| {
        // SAFETY: NULL or a connection.
        let (conn, completion) = unsafe { without_memory(conn, regions, sizes, flags) }?;
        conn.read_nothing(completion, op_context as u64)
    })
}

/// Writes local memory to memory of the other side.
///
/// `len` bytes from `src_offset` of `src` on go to `dst_offset` of `dst` on; with `dst`
/// and `src` NULL and the offsets and `len` 0, none do.
///
/// `flags` is one of `RPMA_F_COMPLETION_*`.
///
/// `op_context` comes back as `wr_id` of the completion; until then the memory must stay
/// as it is and the region registered. A completion does not say that the data is visible
/// or persistent there: see rpma_flush(). That the ranges are within their regions is
/// left for the device to check, which completes the operation with an error and breaks
/// the connection.
///
/// Thread-safe as far as ibv_post_send(3) is.
///
/// Errors:
/// - RPMA_E_INVAL: `conn` is NULL, `flags` are 0, one of `dst` and `src` is NULL, both
///   are while an offset or `len` is not 0, or `len` is 2^32 or more
/// - RPMA_E_PROVIDER: ibv_post_send(3) failed: mostly the send queue is full. Collect
///   completions, or make it longer by rpma_conn_cfg_set_sq_size(); operations that
///   complete only on error leave the queue when a later one has completed.
///
/// # Example
///
/// Writing and making it persistent, with one completion for both:
///
/// ```c
/// ret = rpma_write(conn, remote, 0, mr, 0, 4096,
///                  RPMA_F_COMPLETION_ON_ERROR, NULL);
/// if (!ret)
///     ret = rpma_flush(conn, remote, 0, 4096,
///                      RPMA_FLUSH_TYPE_PERSISTENT,
///                      RPMA_F_COMPLETION_ALWAYS, NULL);
/// ```
pub unsafe extern "C" fn rpma_write(
    conn: *mut rpma_conn,
    dst: *mut rpma_mr_remote,
    dst_offset: usize,
    src: *const rpma_mr_local,
    src_offset: usize,
    len: usize,
    flags: c_int,
    op_context: *const c_void,
) -> c_int {
    // SAFETY: NULL or what they say; the caller leaves the memory as it is.
    unsafe {
        match transfer(conn, (src, src_offset), (dst, dst_offset), len, flags) {
            Some((conn, src, dst, completion)) => {
                call(|| conn.write(dst, src, None, completion, op_context as u64))
            }
            None => write_nothing(
                conn, dst, dst_offset, src, src_offset, len, flags, op_context,
            ),
        }
    }
}

#[cold]
unsafe extern "C" fn write_nothing(
    conn: *mut rpma_conn,
    dst: *mut rpma_mr_remote,
    dst_offset: usize,
    src: *const rpma_mr_local,
    src_offset: usize,
    len: usize,
    flags: c_int,
    op_context: *const c_void,
) -> c_int {
    let regions = !dst.is_null() || !src.is_null();
    let sizes = dst_offset | src_offset | len;
    call(|| {
        // SAFETY: NULL or a connection.
        let (conn, completion) = unsafe { without_memory(conn, regions, sizes, flags) }?;
        conn.write_nothing(None, completion, op_context as u64)
    })
}

/// Writes as rpma_write() does, with a number that completes a receive of the other side.
///
/// The number, `imm`, is `imm_data` of the completion there, in network byte order. The
/// other side must have posted a receive for it.
///
/// Thread-safe as far as ibv_post_send(3) is.
///
/// Errors: as rpma_write()
///
/// # Example
///
/// The other side reads the number so:
///
/// ```c
/// struct ibv_wc wc;
/// ret = rpma_cq_get_wc(cq, 1, &wc, NULL);
/// if (!ret && wc.status == IBV_WC_SUCCESS &&
///     wc.wc_flags & IBV_WC_WITH_IMM)
///     printf("%u\n", ntohl(wc.imm_data));
/// ```
pub unsafe extern "C" fn rpma_write_with_imm(
    conn: *mut rpma_conn,
    dst: *mut rpma_mr_remote,
    dst_offset: usize,
    src: *const rpma_mr_local,
    src_offset: usize,
    len: usize,
    flags: c_int,
    imm: u32,
    op_context: *const c_void,
) -> c_int {
    // SAFETY: NULL or what they say; the caller leaves the memory as it is.
    unsafe {
        match transfer(conn, (src, src_offset), (dst, dst_offset), len, flags) {
            Some((conn, src, dst, completion)) => {
                call(|| conn.write(dst, src, Some(imm), completion, op_context as u64))
            }
            None => write_with_imm_nothing(
                conn, dst, dst_offset, src, src_offset, len, flags, imm, op_context,
            ),
        }
    }
}

#[cold]
unsafe extern "C" fn write_with_imm_nothing(
    conn: *mut rpma_conn,
    dst: *mut rpma_mr_remote,
    dst_offset: usize,
    src: *const rpma_mr_local,
    src_offset: usize,
    len: usize,
    flags: c_int,
    imm: u32,
    op_context: *const c_void,
) -> c_int {
    let regions = !dst.is_null() || !src.is_null();
    let sizes = dst_offset | src_offset | len;
    call(|| {
        // SAFETY: NULL or a connection.
        let (conn, completion) = unsafe { without_memory(conn, regions, sizes, flags) }?;
        conn.write_nothing(Some(imm), completion, op_context as u64)
    })
}

/// Writes 8 bytes to memory of the other side, all at once.
///
/// They are those at `src`, which are copied and may change as soon as the function
/// returns, and go to `dst_offset` of `dst`, a multiple of RPMA_ATOMIC_WRITE_ALIGNMENT.
/// The registered memory must begin at such a multiple too.
///
/// Where the device has no atomic write, an RDMA write does for it that waits for the
/// reads before it to be done.
///
/// `flags` is one of `RPMA_F_COMPLETION_*`.
///
/// `op_context` comes back as `wr_id` of the completion.
///
/// Thread-safe as far as ibv_post_send(3) is.
///
/// Errors:
/// - RPMA_E_INVAL: `conn`, `dst` or `src` is NULL, `dst_offset` is no multiple of
///   RPMA_ATOMIC_WRITE_ALIGNMENT, or `flags` are 0
/// - RPMA_E_PROVIDER: ibv_post_send(3) or ibv_wr_complete(3) failed: mostly the send
///   queue is full. Collect completions, or make it longer by
///   rpma_conn_cfg_set_sq_size().
///
/// # Example
///
/// Data first, made persistent, and then the number that says that it is there:
///
/// ```c
/// uint64_t used = 4096;
/// ret = rpma_write(conn, remote, 8, mr, 0, used,
///                  RPMA_F_COMPLETION_ON_ERROR, NULL);
/// if (!ret)
///     ret = rpma_flush(conn, remote, 8, used,
///                      RPMA_FLUSH_TYPE_PERSISTENT,
///                      RPMA_F_COMPLETION_ON_ERROR, NULL);
/// if (!ret)
///     ret = rpma_atomic_write(conn, remote, 0, (const char *)&used,
///                             RPMA_F_COMPLETION_ON_ERROR, NULL);
/// if (!ret)
///     ret = rpma_flush(conn, remote, 0, sizeof(used),
///                      RPMA_FLUSH_TYPE_PERSISTENT,
///                      RPMA_F_COMPLETION_ALWAYS, NULL);
/// ```
pub unsafe extern "C" fn rpma_atomic_write(
    conn: *mut rpma_conn,
    dst: *mut rpma_mr_remote,
    dst_offset: usize,
    src: *const c_char,
    flags: c_int,
    op_context: *const c_void,
) -> c_int {
    call(|| {
        let completion = completion(flags).ok_or(Error::INVAL)?;
        // SAFETY: NULL or a connection; NULL or a region; NULL or 8 bytes.
        let (conn, dst, src) = unsafe { (get(conn)?, get(dst)?, get(src.cast::<[u8; 8]>())?) };
        if !dst_offset.is_multiple_of(RPMA_ATOMIC_WRITE_ALIGNMENT as usize) {
            return Err(Error::INVAL);
        }
        let dst = RemoteRange::new(dst, dst_offset);
        conn.atomic_write(dst, src, completion, op_context as u64)
    })
}

/// Flushes memory of the other side.
///
/// What this connection wrote before to the `len` bytes from `dst_offset` of `dst` on is
/// visible or persistent once the flush has completed.
///
/// `type` is one of `enum rpma_flush_type`.
///
/// Persistence needs the word of the other side, by rpma_conn_apply_remote_peer_cfg().
///
/// Where the device has no flush, an RDMA read of up to 8 bytes at `dst_offset` does for
/// it; it is up to the other side's platform that persistence follows, which it tells by
/// its peer configuration.
///
/// `flags` is one of `RPMA_F_COMPLETION_*`.
///
/// `op_context` comes back as `wr_id` of the completion.
///
/// Thread-safe as far as ibv_post_send(3) is.
///
/// Errors:
/// - RPMA_E_INVAL: `conn` or `dst` is NULL, `type` is none of its enum, or `flags` are 0
/// - RPMA_E_NOSUPP: the memory was not registered for this type of flush, which
///   rpma_mr_remote_get_flush_type() tells; or `type` is RPMA_FLUSH_TYPE_PERSISTENT and
///   no peer configuration with direct write to persistent memory was applied to the
///   connection
/// - RPMA_E_PROVIDER: ibv_post_send(3) or ibv_wr_complete(3) failed: mostly the send
///   queue is full. Collect completions, or make it longer by
///   rpma_conn_cfg_set_sq_size().
///
/// # Example
///
/// See rpma_write().
pub unsafe extern "C" fn rpma_flush(
    conn: *mut rpma_conn,
    dst: *mut rpma_mr_remote,
    dst_offset: usize,
    len: usize,
    r#type: CEnum<rpma_flush_type>,
    flags: c_int,
    op_context: *const c_void,
) -> c_int {
    const PERSISTENT: c_int = rpma_flush_type::RPMA_FLUSH_TYPE_PERSISTENT as c_int;
    const VISIBILITY: c_int = rpma_flush_type::RPMA_FLUSH_TYPE_VISIBILITY as c_int;
    call(|| {
        let completion = completion(flags).ok_or(Error::INVAL)?;
        // SAFETY: NULL or a connection; NULL or a region.
        let (conn, dst) = unsafe { (get(conn)?, get(dst)?) };
        let flush_type = match r#type.0 {
            PERSISTENT => FlushType::Persistent,
            VISIBILITY => FlushType::Visibility,
            _ => return Err(Error::INVAL),
        };
        let dst = RemoteRange::new(dst, dst_offset);
        conn.flush(dst, len, flush_type, completion, op_context as u64)
    })
}

/// Sends a message to the other side.
///
/// The message is `len` bytes of `src` from `offset` on, or none with `src` NULL and
/// `offset` and `len` 0. The other side must have posted a buffer for it, by rpma_recv()
/// or rpma_conn_req_recv(), that is long enough.
///
/// `flags` is one of `RPMA_F_COMPLETION_*`.
///
/// `op_context` comes back as `wr_id` of the completion; until then the memory must stay
/// as it is and the region registered.
///
/// Thread-safe as far as ibv_post_send(3) is.
///
/// Errors:
/// - RPMA_E_INVAL: `conn` is NULL, `flags` are 0, `src` is NULL while `offset` or `len`
///   is not 0, or `len` is 2^32 or more
/// - RPMA_E_PROVIDER: ibv_post_send(3) failed: mostly the send queue is full. Collect
///   completions, or make it longer by rpma_conn_cfg_set_sq_size(); operations that
///   complete only on error leave the queue when a later one has completed.
///
/// # Example
///
/// A question and the buffer for its answer, which is posted first:
///
/// ```c
/// ret = rpma_recv(conn, mr, 64, 64, NULL);
/// if (!ret)
///     ret = rpma_send(conn, mr, 0, 64,
///                     RPMA_F_COMPLETION_ON_ERROR, NULL);
/// ```
pub unsafe extern "C" fn rpma_send(
    conn: *mut rpma_conn,
    src: *const rpma_mr_local,
    offset: usize,
    len: usize,
    flags: c_int,
    op_context: *const c_void,
) -> c_int {
    // SAFETY: NULL or what they say; the caller leaves the memory as it is.
    unsafe {
        match message(conn, src, offset, len, flags) {
            Some((conn, src, completion)) => {
                call(|| conn.send(src, None, completion, op_context as u64))
            }
            None => send_nothing(conn, src, offset, len, flags, op_context),
        }
    }
}

#[cold]
unsafe extern "C" fn send_nothing(
    conn: *mut rpma_conn,
    src: *const rpma_mr_local,
    offset: usize,
    len: usize,
    flags: c_int,
    op_context: *const c_void,
) -> c_int {
    call(|| {
        let region = !src.is_null();
        // SAFETY: NULL or a connection.
        let (conn, completion) = unsafe { without_memory(conn, region, offset | len, flags) }?;
        conn.send_nothing(None, completion, op_context as u64)
    })
}

/// Sends as rpma_send() does, with a number.
///
/// The number, `imm`, is `imm_data` of the completion there, in network byte order.
///
/// Thread-safe as far as ibv_post_send(3) is.
///
/// Errors: as rpma_send()
///
/// # Example
///
/// A number alone, which needs no memory:
///
/// ```c
/// ret = rpma_send_with_imm(conn, NULL, 0, 0,
///                          RPMA_F_COMPLETION_ALWAYS, 42, NULL);
/// ```
pub unsafe extern "C" fn rpma_send_with_imm(
    conn: *mut rpma_conn,
    src: *const rpma_mr_local,
    offset: usize,
    len: usize,
    flags: c_int,
    imm: u32,
    op_context: *const c_void,
) -> c_int {
    // SAFETY: NULL or what they say; the caller leaves the memory as it is.
    unsafe {
        match message(conn, src, offset, len, flags) {
            Some((conn, src, completion)) => {
                call(|| conn.send(src, Some(imm), completion, op_context as u64))
            }
            None => send_with_imm_nothing(conn, src, offset, len, flags, imm, op_context),
        }
    }
}

#[cold]
unsafe extern "C" fn send_with_imm_nothing(
    conn: *mut rpma_conn,
    src: *const rpma_mr_local,
    offset: usize,
    len: usize,
    flags: c_int,
    imm: u32,
    op_context: *const c_void,
) -> c_int {
    call(|| {
        let region = !src.is_null();
        // SAFETY: NULL or a connection.
        let (conn, completion) = unsafe { without_memory(conn, region, offset | len, flags) }?;
        conn.send_nothing(Some(imm), completion, op_context as u64)
    })
}

/// Posts a buffer for a message of the other side.
///
/// The buffer is `len` bytes of `dst` from `offset` on, or none with `dst` NULL and
/// `offset` and `len` 0.
///
/// The buffers are taken in no order that can be relied on. `op_context` comes back as
/// `wr_id` of the completion; until then the memory may be written and the region must
/// stay registered.
///
/// Thread-safe as far as ibv_post_recv(3) is.
///
/// Errors:
/// - RPMA_E_INVAL: `conn` is NULL, `dst` is NULL while `offset` or `len` is not 0, or
///   `len` is 2^32 or more
/// - RPMA_E_PROVIDER: ibv_post_recv(3) failed: mostly the receive queue is full, which
///   rpma_conn_cfg_set_rq_size() makes longer
///
/// # Example
///
/// See rpma_send().
pub unsafe extern "C" fn rpma_recv(
    conn: *mut rpma_conn,
    dst: *mut rpma_mr_local,
    offset: usize,
    len: usize,
    op_context: *const c_void,
) -> c_int {
    // SAFETY: NULL or what they say; the caller leaves the memory to the device.
    unsafe {
        match message(conn, dst, offset, len, RPMA_F_COMPLETION_ALWAYS) {
            Some((conn, dst, _)) => call(|| conn.recv(Some(dst), op_context as u64)),
            None => call(|| get(conn)?.recv(local_range(dst, offset, len)?, op_context as u64)),
        }
    }
}

export!(
    rpma_read
    rpma_write
    rpma_write_with_imm
    rpma_atomic_write
    rpma_flush
    rpma_send
    rpma_send_with_imm
    rpma_recv
);
