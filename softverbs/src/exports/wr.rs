//! The extended interface to post requests: `ibv_wr_start` and what follows it.

use super::qp_handle::{QpAbi, at_endpoint, batch_of};
use super::returns::errno;
use crate::frames::{AtomicOp, FlushKind, MAX_MESSAGE, Remote};
use crate::objects::device::attributes::{WITH_ATOMIC_WRITE, WITH_FLUSH};
use crate::objects::endpoint::Batch;
use crate::objects::qp::{Op, Payload, SendWqe, SgList};
use rdma_sys::*;
use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::slice;

/// The last members, from `wr_start` on.
#[repr(C)]
struct Tail {
    start: unsafe extern "C" fn(*mut ibv_qp_ex),
    complete: unsafe extern "C" fn(*mut ibv_qp_ex) -> c_int,
    abort: unsafe extern "C" fn(*mut ibv_qp_ex),
    atomic_write: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, *const c_void)>,
    flush: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, usize, u8, u8)>,
}

const TAIL: usize = offset_of!(ibv_qp_ex, wr_start);
const _: () = assert!(TAIL + size_of::<Tail>() <= size_of::<QpAbi>());

/// Writes the functions into a queue pair; `ops` are those that it has besides those that all have.
///
/// # Safety
/// The structure is as long as [`QpAbi`].
pub unsafe fn fill(qp: *mut ibv_qp_ex, ops: u64) {
    let has = |op: u64| ops & op != 0;
    // SAFETY: writes to members of the structure, which is long enough.
    unsafe {
        (*qp).wr_atomic_cmp_swp = Some(atomic_cmp_swp);
        (*qp).wr_atomic_fetch_add = Some(atomic_fetch_add);
        (*qp).wr_bind_mw = Some(bind_mw);
        (*qp).wr_local_inv = Some(local_inv);
        (*qp).wr_rdma_read = Some(rdma_read);
        (*qp).wr_rdma_write = Some(rdma_write);
        (*qp).wr_rdma_write_imm = Some(rdma_write_imm);
        (*qp).wr_send = Some(send);
        (*qp).wr_send_imm = Some(send_imm);
        (*qp).wr_send_inv = Some(send_inv);
        (*qp).wr_send_tso = Some(send_tso);
        (*qp).wr_set_ud_addr = Some(set_ud_addr);
        (*qp).wr_set_xrc_srqn = Some(set_xrc_srqn);
        (*qp).wr_set_inline_data = Some(set_inline_data);
        (*qp).wr_set_inline_data_list = Some(set_inline_data_list);
        (*qp).wr_set_sge = Some(set_sge);
        (*qp).wr_set_sge_list = Some(set_sge_list);
        qp.byte_add(TAIL).cast::<Tail>().write(Tail {
            start,
            complete,
            abort,
            atomic_write: has(WITH_ATOMIC_WRITE).then_some(atomic_write),
            flush: has(WITH_FLUSH).then_some(flush),
        });
    }
}

// SAFETY, of all functions here: C calls them as verbs.h says, with a queue pair of this library,
// and those between start and complete only there, where the batch keeps the endpoint locked.

unsafe fn batch<'a>(qp: *mut ibv_qp_ex) -> Option<&'a mut Batch<'static>> {
    // SAFETY: as above.
    unsafe { batch_of(qp.cast()) }.as_mut()
}

unsafe extern "C" fn start(qp: *mut ibv_qp_ex) {
    // SAFETY: as above; the endpoint lives as long as the handle, as `endpoint_of` says, and so as
    // the batch in it.
    unsafe {
        // Without a batch, complete tells.
        if let Ok(batch) = at_endpoint(qp.cast(), Batch::new) {
            batch.compose();
            *batch_of(qp.cast()) = Some(batch);
        }
    }
}

unsafe extern "C" fn complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: as above.
    let result = match unsafe { batch_of(qp.cast()) }.take() {
        Some(batch) => batch.complete(),
        None => Err(libc::EINVAL),
    };
    errno(result)
}

unsafe extern "C" fn abort(qp: *mut ibv_qp_ex) {
    // SAFETY: as above.
    if let Some(batch) = unsafe { batch_of(qp.cast()) }.take() {
        batch.abort();
    }
}

unsafe fn add(qp: *mut ibv_qp_ex, op: Op) {
    // SAFETY: as above.
    unsafe {
        let (wr_id, flags) = ((*qp).wr_id, (*qp).wr_flags);
        let len = if matches!(op, Op::AtomicWrite { .. }) {
            8
        } else {
            0
        };
        if let Some(batch) = batch(qp) {
            // What is wrong is told when the batch is complete.
            let payload = Payload::Memory(SgList::NONE);
            let _ = batch.push(SendWqe::new(wr_id, flags, op, payload, len));
        }
    }
}

unsafe fn unsupported(qp: *mut ibv_qp_ex) {
    // SAFETY: as above.
    if let Some(batch) = unsafe { batch(qp) } {
        batch.error.get_or_insert(libc::EOPNOTSUPP);
    }
}

unsafe extern "C" fn atomic_cmp_swp(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    addr: u64,
    compare: u64,
    swap: u64,
) {
    let at = Remote { addr, rkey };
    let op = AtomicOp::CompareSwap { compare, swap };
    // SAFETY: as above.
    unsafe { add(qp, Op::Atomic { at, op }) };
}

unsafe extern "C" fn atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, value: u64) {
    let at = Remote { addr, rkey };
    let op = AtomicOp::FetchAdd(value);
    // SAFETY: as above.
    unsafe { add(qp, Op::Atomic { at, op }) };
}

unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp_ex,
    _: *mut ibv_mw,
    _: u32,
    _: *const ibv_mw_bind_info,
) {
    // SAFETY: as above.
    unsafe { unsupported(qp) };
}

unsafe extern "C" fn local_inv(qp: *mut ibv_qp_ex, _: u32) {
    // SAFETY: as above.
    unsafe { unsupported(qp) };
}

unsafe extern "C" fn rdma_read(qp: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    let at = Remote { addr, rkey };
    // SAFETY: as above.
    unsafe { add(qp, Op::Read { at }) };
}

unsafe extern "C" fn rdma_write(qp: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    let at = Remote { addr, rkey };
    // SAFETY: as above.
    unsafe { add(qp, Op::Write { at, imm: None }) };
}

unsafe extern "C" fn rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, imm: u32) {
    let at = Remote { addr, rkey };
    let imm = Some(u32::from_be(imm));
    // SAFETY: as above.
    unsafe { add(qp, Op::Write { at, imm }) };
}

unsafe extern "C" fn send(qp: *mut ibv_qp_ex) {
    // SAFETY: as above.
    unsafe { add(qp, Op::Send { imm: None }) };
}

unsafe extern "C" fn send_imm(qp: *mut ibv_qp_ex, imm: u32) {
    let imm = Some(u32::from_be(imm));
    // SAFETY: as above.
    unsafe { add(qp, Op::Send { imm }) };
}

unsafe extern "C" fn send_inv(qp: *mut ibv_qp_ex, _: u32) {
    // SAFETY: as above.
    unsafe { unsupported(qp) };
}

unsafe extern "C" fn send_tso(qp: *mut ibv_qp_ex, _: *mut c_void, _: u16, _: u16) {
    // SAFETY: as above.
    unsafe { unsupported(qp) };
}

unsafe extern "C" fn set_ud_addr(qp: *mut ibv_qp_ex, _: *mut ibv_ah, _: u32, _: u32) {
    // SAFETY: as above.
    unsafe { unsupported(qp) };
}

unsafe extern "C" fn set_xrc_srqn(qp: *mut ibv_qp_ex, _: u32) {
    // SAFETY: as above.
    unsafe { unsupported(qp) };
}

unsafe extern "C" fn atomic_write(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, value: *const c_void) {
    let at = Remote { addr, rkey };
    // SAFETY: as above; the value is of eight bytes.
    unsafe {
        let value = value.cast::<[u8; 8]>().read_unaligned();
        add(qp, Op::AtomicWrite { at, value });
    }
}

unsafe extern "C" fn flush(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    addr: u64,
    len: usize,
    kind: u8,
    level: u8,
) {
    let at = Remote { addr, rkey };
    // The values of `enum ibv_placement_type` are bits, those of `enum ibv_selectivity_level` are
    // 0 for a range and 1 for a region.
    // Bits that nobody has given a meaning are taken, as the kernel's software device does.
    let kind = match kind & 3 {
        2 => FlushKind::Persistent,
        3 => FlushKind::Both,
        _ => FlushKind::Global,
    };
    let op = Op::Flush {
        at,
        len: len as u64,
        kind,
        whole: level == 1,
    };
    // SAFETY: as above.
    unsafe { add(qp, op) };
}

unsafe extern "C" fn set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let sge = ibv_sge { addr, length, lkey };
    // SAFETY: as above.
    unsafe { set_sge_list(qp, 1, &sge) };
}

unsafe extern "C" fn set_sge_list(qp: *mut ibv_qp_ex, n: usize, list: *const ibv_sge) {
    // SAFETY: as above; the list has so many entries.
    unsafe {
        let Some(batch) = batch(qp) else {
            return;
        };
        if n > batch.max_sge() as usize {
            batch.error.get_or_insert(libc::EINVAL);
            return;
        }
        let sges = SgList::copy(list, n);
        let len = sges.bytes();
        let Some(wqe) = batch.last() else {
            return;
        };
        match wqe.op {
            // Its value is given otherwise.
            Op::AtomicWrite { .. } | Op::Flush { .. } => return,
            Op::Atomic { .. } if len != 8 => {
                batch.error.get_or_insert(libc::EINVAL);
                return;
            }
            _ => {}
        }
        if len > MAX_MESSAGE {
            batch.error.get_or_insert(libc::EINVAL);
            return;
        }
        wqe.len = len as u32;
        wqe.payload = Payload::Memory(sges);
    }
}

unsafe extern "C" fn set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    let buffer = ibv_data_buf { addr, length };
    // SAFETY: as above.
    unsafe { set_inline_data_list(qp, 1, &buffer) };
}

unsafe extern "C" fn set_inline_data_list(qp: *mut ibv_qp_ex, n: usize, list: *const ibv_data_buf) {
    // SAFETY: as above; the list has so many entries.
    unsafe {
        let Some(batch) = batch(qp) else {
            return;
        };
        match batch.last().map(|wqe| wqe.op) {
            Some(op) if op.carries() => {}
            // Its value is given otherwise.
            None | Some(Op::AtomicWrite { .. } | Op::Flush { .. }) => return,
            Some(_) => {
                batch.error.get_or_insert(libc::EINVAL);
                return;
            }
        }
        let list = if n == 0 {
            &[]
        } else {
            slice::from_raw_parts(list, n)
        };
        // A piece of no bytes may have no address.
        let pieces = list
            .iter()
            .map(|one| (one.addr.cast_const().cast::<u8>(), one.length));
        batch.inline_of_last(pieces);
    }
}
