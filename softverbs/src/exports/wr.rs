//! The extended interface to post requests: `ibv_wr_start` and what follows it.

use super::post::{copy_inline, copy_sges};
use super::qp_handle::{QpAbi, Requests, conn_of, staging_of};
use super::returns::errno;
use crate::proto::frames::{AtomicOp, FlushKind, Remote};
use crate::proto::{Op, Sge, message_length};
use rdma_sys::*;
use std::ffi::{c_int, c_void};
use std::{ptr, slice};
use verbs_ext::{
    FLUSH_GLOBAL, FLUSH_MR, FLUSH_PERSISTENT, QP_EX_TAIL, QP_EX_WITH_ATOMIC_WRITE,
    QP_EX_WITH_FLUSH, QpExTail,
};

/// Writes the functions of the extended interface.
pub fn fill(abi: &mut QpAbi, ops: u64) {
    let qp: *mut ibv_qp_ex = ptr::from_mut(abi).cast();
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
        qp.byte_add(QP_EX_TAIL).cast::<QpExTail>().write(QpExTail {
            wr_start: start,
            wr_complete: complete,
            wr_abort: abort,
            wr_atomic_write: has(QP_EX_WITH_ATOMIC_WRITE).then_some(atomic_write),
            wr_flush: has(QP_EX_WITH_FLUSH).then_some(flush),
        });
    }
}

// SAFETY, of all functions here: C calls them as verbs.h says, with a queue pair of this library that
// was made for them, and those between start and complete only there, by the thread that has started.

unsafe fn requests<'a>(qp: *mut ibv_qp_ex) -> Option<&'a mut Requests> {
    // SAFETY: as above: the staging is this thread's.
    unsafe { Some(&mut *staging_of(qp.cast())?.requests.get()) }
}

unsafe extern "C" fn start(qp: *mut ibv_qp_ex) {
    // SAFETY: as above.
    unsafe {
        if let Some(staging) = staging_of(qp.cast()) {
            staging.start();
            (*staging.requests.get()).clear();
        }
    }
}

unsafe extern "C" fn complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: as above.
    unsafe {
        let (Some(staging), Some(requests)) = (staging_of(qp.cast()), requests(qp)) else {
            return errno(Err(libc::EINVAL));
        };
        let result = requests.post(conn_of(qp.cast()));
        staging.end();
        // As the kernel's software device says it here.
        errno(result.map_err(|error| {
            if error == libc::ENOMEM {
                libc::ENOSPC
            } else {
                error
            }
        }))
    }
}

unsafe extern "C" fn abort(qp: *mut ibv_qp_ex) {
    // SAFETY: as above.
    if let Some(staging) = unsafe { staging_of(qp.cast()) } {
        staging.end();
    }
}

unsafe fn add(qp: *mut ibv_qp_ex, op: Op) {
    // SAFETY: as above. What is wrong is told when the requests are complete.
    unsafe {
        let (wr_id, flags) = ((*qp).wr_id, (*qp).wr_flags);
        if let Some(requests) = requests(qp) {
            requests.add(wr_id, flags, op);
        }
    }
}

unsafe fn unsupported(qp: *mut ibv_qp_ex) {
    // SAFETY: as above.
    if let Some(requests) = unsafe { requests(qp) } {
        requests.fail(libc::EOPNOTSUPP);
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
    // Bits that nobody has given a meaning are taken, as the kernel's software device does.
    let has = |bit| kind & bit != 0;
    let kind = match (has(FLUSH_GLOBAL), has(FLUSH_PERSISTENT)) {
        (true, true) => FlushKind::Both,
        (false, true) => FlushKind::Persistent,
        _ => FlushKind::Global,
    };
    let op = Op::Flush {
        at,
        len: len as u64,
        kind,
        whole: level == FLUSH_MR,
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
        let Some(requests) = requests(qp) else {
            return;
        };
        if n > requests.max_sge {
            return requests.fail(libc::EINVAL);
        }
        let Some(op) = requests.last().map(|one| one.wqe.op) else {
            return;
        };
        // Their values are given otherwise.
        if matches!(op, Op::AtomicWrite { .. } | Op::Flush { .. }) {
            return;
        }
        // Pieces that were set before are of no use any more: there is room for those of each request.
        let before = requests.last().map_or(0..0, |one| one.sges.clone());
        if !before.is_empty() {
            requests.sges.truncate(before.start);
        }
        let start = requests.sges.len();
        requests.sges.resize(start + n, Sge::default());
        let to = requests.sges.get_mut(start..).unwrap_or_default();
        copy_sges(list, to);
        match message_length(to) {
            Some(len) if !matches!(op, Op::Atomic { .. }) || len == 8 => {
                if let Some(one) = requests.last() {
                    one.sges = start..start + n;
                    one.wqe.sges = n as u8;
                    one.wqe.len = len;
                    one.wqe.inline = false;
                }
            }
            _ => requests.fail(libc::EINVAL),
        }
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
        let Some(requests) = requests(qp) else {
            return;
        };
        match requests.last().map(|one| one.wqe.op) {
            Some(op) if op.carries() => {}
            // Its value is given otherwise.
            None | Some(Op::AtomicWrite { .. } | Op::Flush { .. }) => return,
            Some(_) => return requests.fail(libc::EINVAL),
        }
        let list = if n == 0 || list.is_null() {
            &[]
        } else {
            slice::from_raw_parts(list, n)
        };
        let before = requests.last().map_or(0..0, |one| one.inline.clone());
        if !before.is_empty() {
            requests.inline.truncate(before.start);
        }
        let start = requests.inline.len();
        requests.inline.resize(start + requests.max_inline, 0);
        let pieces = list
            .iter()
            .map(|one| (one.addr.cast::<u8>().cast_const(), one.length));
        let to = requests.inline.get_mut(start..).unwrap_or_default();
        let copied = copy_inline(pieces, to);
        requests.inline.truncate(start + copied.unwrap_or(0));
        match copied {
            Some(len) => {
                if let Some(one) = requests.last() {
                    one.inline = start..start + len;
                    one.wqe.inline = true;
                    one.wqe.len = len as u32;
                    one.wqe.sges = 0;
                }
            }
            None => requests.fail(libc::EINVAL),
        }
    }
}
