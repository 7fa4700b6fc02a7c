//! What rdma-core's headers say of FLUSH and ATOMIC WRITE.
//!
//! The bindings are made from the headers of the building machine, and those of rdma-core 44 have no
//! FLUSH. The values are part of the ABI of libibverbs and of the kernel, so they stand here, each with
//! its source, for all that need them: librpma, its tools and softverbs. `tests/layout.rs` checks them
//! against headers that have them.

use rdma_sys::{ibv_qp_ex, ibv_wc_opcode, ibv_wr_opcode};
use std::ffi::{c_int, c_void};

/// `IB_UVERBS_DEVICE_FLUSH_GLOBAL`, `rdma/ib_user_verbs.h`.
pub const DEVICE_FLUSH_GLOBAL: u64 = 1 << 38;
/// `IB_UVERBS_DEVICE_FLUSH_PERSISTENT`, `rdma/ib_user_verbs.h`.
pub const DEVICE_FLUSH_PERSISTENT: u64 = 1 << 39;
/// `IB_UVERBS_DEVICE_ATOMIC_WRITE`, `rdma/ib_user_verbs.h`.
pub const DEVICE_ATOMIC_WRITE: u64 = 1 << 40;

/// `IBV_ACCESS_FLUSH_GLOBAL`, `infiniband/verbs.h`.
pub const ACCESS_FLUSH_GLOBAL: c_int = 1 << 8;
/// `IBV_ACCESS_FLUSH_PERSISTENT`, `infiniband/verbs.h`.
pub const ACCESS_FLUSH_PERSISTENT: c_int = 1 << 9;

/// `IBV_QP_EX_WITH_FLUSH`, `infiniband/verbs.h`.
pub const QP_EX_WITH_FLUSH: u64 = 1 << 11;
/// `IBV_QP_EX_WITH_ATOMIC_WRITE`, `infiniband/verbs.h`.
pub const QP_EX_WITH_ATOMIC_WRITE: u64 = 1 << 12;

/// `IBV_WR_ATOMIC_WRITE`, `infiniband/verbs.h`.
pub const WR_ATOMIC_WRITE: ibv_wr_opcode::Type = 15;
/// `IBV_WC_FLUSH`, `infiniband/verbs.h`.
pub const WC_FLUSH: ibv_wc_opcode::Type = 8;
/// `IBV_WC_ATOMIC_WRITE`, `infiniband/verbs.h`.
pub const WC_ATOMIC_WRITE: ibv_wc_opcode::Type = 9;

/// `IBV_FLUSH_GLOBAL` of `enum ibv_placement_type`, which are bits; `infiniband/verbs.h`.
pub const FLUSH_GLOBAL: u8 = 1;
/// `IBV_FLUSH_PERSISTENT` of `enum ibv_placement_type`, `infiniband/verbs.h`.
pub const FLUSH_PERSISTENT: u8 = 2;
/// `IBV_FLUSH_RANGE` of `enum ibv_selectivity_level`, `infiniband/verbs.h`.
pub const FLUSH_RANGE: u8 = 0;
/// `IBV_FLUSH_MR` of `enum ibv_selectivity_level`: all of the region; `infiniband/verbs.h`.
pub const FLUSH_MR: u8 = 1;

/// The release of rdma-core whose libibverbs first had `wr_atomic_write`.
pub const ATOMIC_WRITE_SINCE: u32 = 44;
/// The release of rdma-core whose libibverbs and providers first had `wr_flush`.
pub const FLUSH_SINCE: u32 = 46;

/// The last members of `struct ibv_qp_ex`, from `wr_start` on, `infiniband/verbs.h`.
///
/// `wr_atomic_write` and `wr_flush` came after the structure was published: they
/// are there only if the QP was created with the flag of the operation.
#[repr(C)]
pub struct QpExTail {
    pub wr_start: unsafe extern "C" fn(*mut ibv_qp_ex),
    pub wr_complete: unsafe extern "C" fn(*mut ibv_qp_ex) -> c_int,
    pub wr_abort: unsafe extern "C" fn(*mut ibv_qp_ex),
    pub wr_atomic_write: Option<AtomicWriteFn>,
    pub wr_flush: Option<FlushFn>,
}

pub type AtomicWriteFn =
    unsafe extern "C" fn(*mut ibv_qp_ex, rkey: u32, addr: u64, src: *const c_void);
pub type FlushFn =
    unsafe extern "C" fn(*mut ibv_qp_ex, rkey: u32, addr: u64, len: usize, kind: u8, level: u8);

/// Where [`QpExTail`] begins in `struct ibv_qp_ex`.
pub const QP_EX_TAIL: usize = std::mem::offset_of!(ibv_qp_ex, wr_start);
