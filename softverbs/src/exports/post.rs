//! Requests, posted as lists.

use super::qp_handle::{at_endpoint, batch_of, endpoint_of};
use super::returns::{errno, set_errno};
use super::srq::srq_of;
use crate::frames::{AtomicOp, MAX_MESSAGE, Remote};
use crate::objects::device::limits;
use crate::objects::endpoint::Batch;
use crate::objects::qp::{Op, Payload, RecvWqe, SendWqe, SgList};
use crate::settings::Settings;
use rdma_sys::*;
use std::ffi::c_int;

/// `IBV_WR_ATOMIC_WRITE` of `infiniband/verbs.h`; older headers lack it.
const WR_ATOMIC_WRITE: ibv_wr_opcode::Type = 15;

/// # Safety
/// Its list has as many entries as it says.
unsafe fn recv_wqe(wr: &ibv_recv_wr, max_sge: u32) -> Result<RecvWqe, i32> {
    match usize::try_from(wr.num_sge) {
        Ok(n) if n <= max_sge as usize => Ok(RecvWqe {
            wr_id: wr.wr_id,
            // SAFETY: as the caller promises.
            sges: unsafe { SgList::copy(wr.sg_list, n) },
        }),
        _ => Err(libc::EINVAL),
    }
}

/// The requests of a list.
///
/// # Safety
/// It is NULL, or one whose requests can be read.
unsafe fn recv_list(first: *mut ibv_recv_wr) -> impl Iterator<Item = *mut ibv_recv_wr> {
    // SAFETY: as the caller promises.
    std::iter::successors(Some(first).filter(|wr| !wr.is_null()), |wr| unsafe {
        Some((**wr).next).filter(|wr| !wr.is_null())
    })
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
        let wqes = || recv_list(wr).map(|wr| recv_wqe(&*wr, limits::MAX_SGE));
        let composed = endpoint_of(qp).is_composed_here();
        let result = match composed.then(|| batch_of(qp)) {
            Some(Some(batch)) => Ok(batch.post_recv(wqes())),
            // What is wrong after the first has been posted is not tried again.
            _ => at_endpoint(qp, |endpoint| match endpoint.post_recv(wqes()) {
                Err((0, error)) => Err((0, error)),
                result => Ok(result),
            }),
        };
        match result.and_then(|result| result) {
            Ok(()) => 0,
            Err((posted, error)) => {
                *bad = recv_list(wr).nth(posted).unwrap_or(wr);
                errno(Err(error))
            }
        }
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
        let mut result = Ok(());
        for wr in recv_list(wr) {
            result = recv_wqe(&*wr, srq.max_sge).and_then(|wqe| srq.post(wqe));
            if result.is_err() {
                *bad = wr;
                break;
            }
        }
        srq.posted();
        errno(result)
    }
}

/// Adds a request to those that are posted together.
///
/// # Safety
/// The members that its operation uses are set, its list has as many entries as it says, and inline
/// data and values can be read.
unsafe fn post_one(batch: &mut Batch<'_>, wr: &ibv_send_wr) -> Result<(), i32> {
    use ibv_wr_opcode::*;
    let n = usize::try_from(wr.num_sge).map_err(|_| libc::EINVAL)?;
    if n > batch.max_sge() as usize {
        return Err(libc::EINVAL);
    }
    let inline = wr.send_flags & ibv_send_flags::IBV_SEND_INLINE.0 != 0;
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
        let (payload, len) = if matches!(op, Op::AtomicWrite { .. }) {
            (Payload::Memory(SgList::NONE), 8)
        } else if inline && op.carries() {
            let pieces = (0..n).map(|i| {
                let sge = *wr.sg_list.add(i);
                (sge.addr as *const u8, sge.length as usize)
            });
            (Payload::Inline, batch.copy_inline(pieces)?)
        } else {
            let sges = SgList::copy(wr.sg_list, n);
            let len = sges.bytes();
            if len > MAX_MESSAGE || (matches!(op, Op::Atomic { .. }) && len != 8) {
                return Err(libc::EINVAL);
            }
            (Payload::Memory(sges), len as u32)
        };
        batch.push(SendWqe::new(wr.wr_id, wr.send_flags, op, payload, len))
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
        let mut batch = match at_endpoint(qp, Batch::new) {
            Ok(batch) => batch,
            Err(error) => {
                *bad = wr;
                return errno(Err(error));
            }
        };
        let mut next = wr;
        let mut result = 0;
        while let Some(wr) = next.as_ref() {
            if let Err(error) = post_one(&mut batch, wr) {
                *bad = next;
                set_errno(error);
                result = error;
                break;
            }
            next = wr.next;
        }
        batch.post();
        result
    }
}
