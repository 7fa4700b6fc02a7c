//! What the device says of itself.

use super::limits::*;
use super::{guid, write};
use crate::settings::Settings;
use rdma_sys::{
    ibv_atomic_cap, ibv_device_attr_ex, ibv_device_cap_flags, ibv_odp_general_caps,
    ibv_odp_transport_cap_bits, ibv_qp_create_send_ops_flags,
};
use std::ffi::c_int;
use std::mem::zeroed;
use verbs_ext::{
    DEVICE_ATOMIC_WRITE, DEVICE_FLUSH_GLOBAL, DEVICE_FLUSH_PERSISTENT, QP_EX_WITH_ATOMIC_WRITE,
    QP_EX_WITH_FLUSH,
};

/// The vendor, as a 24-bit IEEE OUI: 02-53-56, which no vendor can be assigned because its bit for
/// locally administered addresses is set (the other two bytes are "SV"). Not 0, which some programs
/// take for a failed query.
const VENDOR_ID: u32 = 0x02_53_56;

/// All of it; the older query gives its `orig_attr`.
pub fn attributes(settings: &Settings) -> ibv_device_attr_ex {
    // SAFETY: it consists of numbers.
    let mut all: ibv_device_attr_ex = unsafe { zeroed() };
    let flags = ibv_device_cap_flags::IBV_DEVICE_RC_RNR_NAK_GEN
        | ibv_device_cap_flags::IBV_DEVICE_SRQ_RESIZE
        | ibv_device_cap_flags::IBV_DEVICE_SYS_IMAGE_GUID;

    let attr = &mut all.orig_attr;
    write(&mut attr.fw_ver, env!("CARGO_PKG_VERSION"));
    attr.node_guid = u64::from_ne_bytes(guid());
    attr.sys_image_guid = attr.node_guid;
    attr.vendor_id = VENDOR_ID;
    attr.max_mr_size = MAX_MR_SIZE;
    // Pages of any power of two from that of the processor on, as far as 32 bits tell.
    attr.page_size_cap = u64::from((rustix::param::page_size() as u32).wrapping_neg());
    attr.max_qp = MAX_QP as c_int;
    attr.max_qp_wr = MAX_QP_WR as c_int;
    attr.device_cap_flags = flags.0;
    attr.max_sge = MAX_SGE as c_int;
    attr.max_sge_rd = MAX_SGE as c_int;
    attr.max_cq = MAX_CQ as c_int;
    attr.max_cqe = MAX_CQE as c_int;
    attr.max_mr = MAX_MR as c_int;
    attr.max_pd = MAX_PD as c_int;
    attr.max_qp_rd_atom = MAX_QP_RD_ATOM as c_int;
    attr.max_res_rd_atom = (MAX_QP * MAX_QP_RD_ATOM) as c_int;
    attr.max_qp_init_rd_atom = MAX_QP_INIT_RD_ATOM as c_int;
    attr.atomic_cap = if settings.iwarp {
        ibv_atomic_cap::IBV_ATOMIC_NONE
    } else {
        ibv_atomic_cap::IBV_ATOMIC_HCA
    };
    attr.max_srq = MAX_SRQ as c_int;
    attr.max_srq_wr = MAX_SRQ_WR as c_int;
    attr.max_srq_sge = MAX_SRQ_SGE as c_int;
    attr.max_pkeys = 1;
    attr.phys_port_cnt = 1;

    all.device_cap_flags_ex = u64::from(flags.0);
    if settings.flush {
        all.device_cap_flags_ex |= DEVICE_FLUSH_GLOBAL | DEVICE_FLUSH_PERSISTENT;
    }
    if settings.atomic_write {
        all.device_cap_flags_ex |= DEVICE_ATOMIC_WRITE;
    }
    if settings.odp {
        all.odp_caps.general_caps = u64::from(ibv_odp_general_caps::IBV_ODP_SUPPORT.0);
        all.odp_caps.per_transport_caps.rc_odp_caps = [
            ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_SEND,
            ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_RECV,
            ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_WRITE,
            ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_READ,
            ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_ATOMIC,
            ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_SRQ_RECV,
        ]
        .iter()
        .fold(0, |all, one| all | one.0);
    }
    all.phys_port_cnt_ex = 1;
    all
}

/// The operations that a queue pair can be made with: `IBV_QP_EX_WITH_*`.
pub fn send_ops(settings: &Settings) -> u64 {
    let of_all = ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_RDMA_WRITE
        | ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
        | ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_SEND
        | ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_SEND_WITH_IMM
        | ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_RDMA_READ;
    let atomics = ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
        | ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
    [
        (true, u64::from(of_all.0)),
        (!settings.iwarp, u64::from(atomics.0)),
        (settings.flush, QP_EX_WITH_FLUSH),
        (settings.atomic_write, QP_EX_WITH_ATOMIC_WRITE),
    ]
    .iter()
    .filter(|(has, _)| *has)
    .fold(0, |all, (_, ops)| all | ops)
}
