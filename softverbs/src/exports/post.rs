//! Requests, posted as lists.

use super::qp_handle::conn_of;
use super::returns::set_errno;
use super::srq::srq_of;
use crate::driver::post::{RecvBatch, SendBatch};
use crate::proto::frames::{AtomicOp, Remote};
use crate::proto::{Op, SendWqe, Sge, message_length};
use crate::settings::Settings;
use rdma_sys::*;
use std::ffi::c_int;
use verbs_ext::WR_ATOMIC_WRITE;

/// Copies the pieces of a request to the queue's own place for them.
///
/// # Safety
/// There are as many entries as there is room for in `to`.
pub(super) unsafe fn copy_sges(list: *const ibv_sge, to: &mut [Sge]) {
    for (i, to) in to.iter_mut().enumerate() {
        // SAFETY: within the array.
        let sge = unsafe { *list.add(i) };
        *to = Sge {
            addr: sge.addr,
            length: sge.length,
            lkey: sge.lkey,
        };
    }
}

/// Copies inline data, one piece after the other; returns its length, or `None` if there is no room
/// for it.
///
/// # Safety
/// The pieces are readable memory.
pub(super) unsafe fn copy_inline(
    pieces: impl Iterator<Item = (*const u8, usize)>,
    to: &mut [u8],
) -> Option<usize> {
    let mut len = 0usize;
    for (from, n) in pieces {
        let to = to.get_mut(len..len.checked_add(n)?)?;
        // A piece of no bytes may be anywhere, NULL included.
        if n > 0 {
            // SAFETY: the piece is `n` readable bytes, and `to` was cut to that length; it is memory of this
            // library, so they don't overlap.
            unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), n) };
        }
        len += n;
    }
    Some(len)
}

/// The number of pieces of a request.
fn pieces(n: c_int) -> Result<usize, i32> {
    usize::try_from(n).map_err(|_| libc::EINVAL)
}

/// Posts the requests of a list one by one. Returns the first that could not be.
///
/// # Safety
/// The list is NULL, or its requests can be read.
unsafe fn post_list<W>(
    first: *mut W,
    next: impl Fn(&W) -> *mut W,
    mut post: impl FnMut(&W) -> Result<(), i32>,
) -> Result<(), (*mut W, i32)> {
    let mut wr = first;
    // SAFETY: as the caller promises.
    while let Some(of) = unsafe { wr.as_ref() } {
        post(of).map_err(|error| (wr, error))?;
        wr = next(of);
    }
    Ok(())
}

/// What a function returns that names the request it did not take.
///
/// # Safety
/// `bad` can be written to.
unsafe fn posted<W>(result: Result<(), (*mut W, i32)>, bad: *mut *mut W) -> c_int {
    match result {
        Ok(()) => 0,
        Err((wr, error)) => {
            // SAFETY: `bad` can be written to.
            unsafe { *bad = wr };
            set_errno(error);
            error
        }
    }
}

/// # Safety
/// As of `ibv_post_recv`.
pub unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let mut batch = match RecvBatch::new(conn_of(qp)) {
            Ok(batch) => batch,
            Err(error) => return posted(Err((wr, error)), bad),
        };
        let result = post_list(
            wr,
            |wr| wr.next,
            |wr| {
                let n = pieces(wr.num_sge)?;
                batch.push(wr.wr_id, n, |to| copy_sges(wr.sg_list, to))
            },
        );
        drop(batch);
        posted(result, bad)
    }
}

/// # Safety
/// As of `ibv_post_srq_recv`.
pub unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let srq = srq_of(srq);
        let result = post_list(
            wr,
            |wr| wr.next,
            |wr| {
                let n = pieces(wr.num_sge)?;
                if n > srq.max_sge as usize {
                    return Err(libc::EINVAL);
                }
                srq.post(wr.wr_id, n, |to| copy_sges(wr.sg_list, to))
            },
        );
        srq.posted();
        posted(result, bad)
    }
}

/// Adds a request to those that are posted together.
///
/// # Safety
/// The members that its operation uses are set, its list has as many entries as it says, and inline
/// data and values can be read.
unsafe fn post_one(batch: &mut SendBatch<'_>, wr: &ibv_send_wr) -> Result<(), i32> {
    use ibv_wr_opcode::*;
    let n = pieces(wr.num_sge)?;
    if n > batch.max_sge() {
        return Err(libc::EINVAL);
    }
    let has = |flag: ibv_send_flags| wr.send_flags & flag.0 != 0;
    let settings = Settings::get();
    // SAFETY: as the caller promises.
    unsafe {
        let imm = || Some(u32::from_be(wr.imm_data_invalidated_rkey_union.imm_data));
        let at = || Remote {
            addr: wr.wr.rdma.remote_addr,
            rkey: wr.wr.rdma.rkey,
        };
        let atomic_at = || Remote {
            addr: wr.wr.atomic.remote_addr,
            rkey: wr.wr.atomic.rkey,
        };
        let op = match wr.opcode {
            IBV_WR_SEND => Op::Send { imm: None },
            IBV_WR_SEND_WITH_IMM => Op::Send { imm: imm() },
            IBV_WR_RDMA_WRITE => Op::Write {
                at: at(),
                imm: None,
            },
            IBV_WR_RDMA_WRITE_WITH_IMM => Op::Write {
                at: at(),
                imm: imm(),
            },
            IBV_WR_RDMA_READ => Op::Read { at: at() },
            IBV_WR_ATOMIC_CMP_AND_SWP if !settings.iwarp => Op::Atomic {
                at: atomic_at(),
                op: AtomicOp::CompareSwap {
                    compare: wr.wr.atomic.compare_add,
                    swap: wr.wr.atomic.swap,
                },
            },
            IBV_WR_ATOMIC_FETCH_AND_ADD if !settings.iwarp => Op::Atomic {
                at: atomic_at(),
                op: AtomicOp::FetchAdd(wr.wr.atomic.compare_add),
            },
            WR_ATOMIC_WRITE if settings.atomic_write && n == 1 => {
                let sge = *wr.sg_list;
                if sge.length != 8 {
                    return Err(libc::EINVAL);
                }
                let value = (sge.addr as *const [u8; 8]).read_unaligned();
                Op::AtomicWrite { at: at(), value }
            }
            _ => return Err(libc::EINVAL),
        };
        if batch.room() == 0 {
            return Err(libc::ENOMEM);
        }
        let inline = has(ibv_send_flags::IBV_SEND_INLINE) && op.carries();
        let (len, sges) = if matches!(op, Op::AtomicWrite { .. }) {
            (8, 0)
        } else if inline {
            let data = (0..n).map(|i| {
                let sge = *wr.sg_list.add(i);
                (sge.addr as *const u8, sge.length as usize)
            });
            let len = copy_inline(data, batch.next_inline()).ok_or(libc::EINVAL)?;
            (len as u32, 0)
        } else {
            let to = batch.next_sges().get_mut(..n).ok_or(libc::EINVAL)?;
            copy_sges(wr.sg_list, to);
            let len = message_length(to).ok_or(libc::EINVAL)?;
            if matches!(op, Op::Atomic { .. }) && len != 8 {
                return Err(libc::EINVAL);
            }
            (len, n as u8)
        };
        batch.push(SendWqe {
            wr_id: wr.wr_id,
            op,
            len,
            inline,
            sges,
            signaled: has(ibv_send_flags::IBV_SEND_SIGNALED),
            fence: has(ibv_send_flags::IBV_SEND_FENCE),
            solicited: has(ibv_send_flags::IBV_SEND_SOLICITED),
        })
    }
}

/// # Safety
/// As of `ibv_post_send`.
pub unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let mut batch = match SendBatch::new(conn_of(qp)) {
            Ok(batch) => batch,
            Err(error) => return posted(Err((wr, error)), bad),
        };
        let result = post_list(wr, |wr| wr.next, |wr| post_one(&mut batch, wr));
        drop(batch);
        posted(result, bad)
    }
}
