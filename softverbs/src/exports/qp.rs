//! Queue pairs.

use super::cq::cq_of;
use super::qp_handle::{QpAbi, QpHandle, QpParts, Staging, conn_of, staging_of};
use super::returns::{errno, pointer};
use super::srq::srq_of;
use super::wr;
use crate::driver::conn::{Conn, Queues};
use crate::driver::cq::Retired;
use crate::errno::errno_of;
use crate::limits;
use crate::objects::alive::{Alive, Kind};
use crate::objects::device::Context;
use crate::objects::device::attributes::send_ops;
use crate::objects::mr::Pd;
use crate::objects::qp::{every_access, new_qp_num, qps};
use crate::proto::{Caps, Qp, QpState};
use crate::reactor;
use crate::settings::Settings;
use rdma_sys::*;
use std::ffi::c_int;
use std::mem::zeroed;
use std::net::{IpAddr, Ipv6Addr};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

fn from_c(state: ibv_qp_state::Type) -> Option<QpState> {
    use ibv_qp_state::*;
    Some(match state {
        IBV_QPS_RESET => QpState::Reset,
        IBV_QPS_INIT => QpState::Init,
        IBV_QPS_RTR => QpState::Rtr,
        IBV_QPS_RTS => QpState::Rts,
        IBV_QPS_SQD => QpState::Sqd,
        IBV_QPS_SQE => QpState::Sqe,
        IBV_QPS_ERR => QpState::Err,
        _ => return None,
    })
}

fn to_c(state: QpState) -> ibv_qp_state::Type {
    use ibv_qp_state::*;
    match state {
        QpState::Reset => IBV_QPS_RESET,
        QpState::Init => IBV_QPS_INIT,
        QpState::Rtr => IBV_QPS_RTR,
        QpState::Rts => IBV_QPS_RTS,
        QpState::Sqd => IBV_QPS_SQD,
        QpState::Sqe => IBV_QPS_SQE,
        QpState::Err => IBV_QPS_ERR,
    }
}

/// Makes a queue pair.
///
/// # Safety
/// The domain is open, and the attributes' objects are.
pub(super) unsafe fn create_qp(
    pd: *mut ibv_pd,
    attr: &mut ibv_qp_init_attr,
    ops: Option<u64>,
) -> Result<*mut ibv_qp, i32> {
    reactor::start().map_err(|error| errno_of(&error))?;
    let cap = &mut attr.cap;
    if attr.qp_type != ibv_qp_type::IBV_QPT_RC {
        return Err(libc::EOPNOTSUPP);
    }
    if attr.send_cq.is_null()
        || attr.recv_cq.is_null()
        || cap.max_send_wr > limits::MAX_QP_WR
        || cap.max_recv_wr > limits::MAX_QP_WR
        || cap.max_send_sge > limits::MAX_SGE
        || cap.max_recv_sge > limits::MAX_SGE
        || cap.max_inline_data > limits::MAX_INLINE
    {
        return Err(libc::EINVAL);
    }
    // Devices keep inline data where the list of pieces would be; some programs count on that.
    let pieces = cap.max_send_sge * size_of::<ibv_sge>() as u32;
    cap.max_inline_data = cap.max_inline_data.max(pieces).min(limits::MAX_INLINE);
    if ops.unwrap_or(0) & !send_ops(Settings::get()) != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    if !attr.srq.is_null() {
        cap.max_recv_wr = 0;
        cap.max_recv_sge = 0;
    }
    // SAFETY: as the caller promises.
    let (pd_of, send_cq, recv_cq, srq) = unsafe {
        (
            Pd::from_raw(pd),
            cq_of(attr.send_cq).clone(),
            cq_of(attr.recv_cq).clone(),
            (!attr.srq.is_null()).then(|| srq_of(attr.srq).clone()),
        )
    };
    let num = new_qp_num();
    let caps = Caps {
        max_send_wr: cap.max_send_wr as usize,
        max_recv_wr: cap.max_recv_wr as usize,
        max_send_sge: cap.max_send_sge as usize,
        max_recv_sge: cap.max_recv_sge as usize,
        max_inline: cap.max_inline_data as usize,
        max_reads: limits::MAX_QP_RD_ATOM as usize,
        srq: srq.is_some(),
    };
    let qp = Qp::new(num, &caps, every_access()).ok_or(libc::ENOMEM)?;
    let staging = match ops {
        Some(_) => Some(Staging::new(&caps).ok_or(libc::ENOMEM)?),
        None => None,
    };
    // SAFETY: it consists of numbers and pointers; its lock is of this library only.
    let mut base: ibv_qp = unsafe { zeroed() };
    base.context = pd_of.abi.context;
    base.qp_context = attr.qp_context;
    base.pd = pd;
    base.send_cq = attr.send_cq;
    base.recv_cq = attr.recv_cq;
    base.srq = attr.srq;
    base.qp_num = num;
    base.qp_type = attr.qp_type;
    base.state = ibv_qp_state::IBV_QPS_RESET;
    let conn = Conn::new();
    let mut abi = QpAbi::new(base);
    wr::fill(&mut abi, ops.unwrap_or(0));
    let handle = QpHandle {
        abi,
        parts: QpParts {
            conn: conn.clone(),
            staging,
        },
        init: *attr,
        alive: Alive::new(Kind::Qp),
    };
    let handle: *mut ibv_qp = Box::into_raw(Box::new(handle)).cast();
    // SAFETY: the domain's context is open.
    let async_events = unsafe { Context::of(pd_of.abi.context) }.events();
    let queues = Queues {
        domain: pd_of.domain.clone(),
        send_cq: send_cq.clone(),
        recv_cq: recv_cq.clone(),
        srq: srq.clone(),
        retired: Arc::new(Retired::default()),
        sq_sig_all: attr.sq_sig_all != 0,
        num,
        handle: AtomicPtr::new(handle),
        async_events: async_events.clone(),
    };
    conn.lock().set_qp(qp, Arc::new(queues));
    pd_of.domain.attach();
    if let Some(srq) = srq {
        srq.users.fetch_add(1, Ordering::AcqRel);
    }
    send_cq.attach(conn.clone());
    if !Arc::ptr_eq(&send_cq, &recv_cq) {
        recv_cq.attach(conn.clone());
    }
    qps().add(num, &conn);
    Ok(handle)
}

/// Brings a queue pair that was made for an id to INIT.
///
/// # Safety
/// The queue pair is one of this library's.
pub(super) unsafe fn to_init(qp: *mut ibv_qp) {
    // SAFETY: as the caller promises.
    unsafe {
        if let Some(of) = conn_of(qp).lock().qp() {
            of.set_state(QpState::Init);
        }
        (*qp).state = ibv_qp_state::IBV_QPS_INIT;
    }
}

/// # Safety
/// As of `ibv_create_qp_ex`.
pub unsafe extern "C" fn create_qp_ex(
    _: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: as the caller promises.
    let attr = unsafe { &mut *attr };
    pointer(qp_attr(attr).and_then(|(mut basic, pd, ops)| {
        if pd.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: as the caller promises.
        let qp = unsafe { create_qp(pd, &mut basic, ops) };
        attr.cap = basic.cap;
        qp
    }))
}

/// The basic attributes among the extended ones, the domain if there is one, and the operations.
pub(super) fn qp_attr(
    attr: &ibv_qp_init_attr_ex,
) -> Result<(ibv_qp_init_attr, *mut ibv_pd, Option<u64>), i32> {
    const PD: u32 = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0;
    const SEND_OPS: u32 = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0;
    const FLAGS: u32 = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_CREATE_FLAGS.0;
    let flags = attr.comp_mask & FLAGS != 0 && attr.create_flags != 0;
    if flags || attr.comp_mask & !(PD | SEND_OPS | FLAGS) != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let has = |bit| attr.comp_mask & bit != 0;
    let pd = if has(PD) { attr.pd } else { ptr::null_mut() };
    let basic = ibv_qp_init_attr {
        qp_context: attr.qp_context,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        cap: attr.cap,
        qp_type: attr.qp_type,
        sq_sig_all: attr.sq_sig_all,
    };
    Ok((basic, pd, has(SEND_OPS).then_some(attr.send_ops_flags)))
}

/// # Safety
/// The domain is open; the attributes can be read and written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: as the caller promises.
    pointer(unsafe { create_qp(pd, &mut *attr, None) })
}

/// # Safety
/// The queue pair is one of this library's; what is pointed to can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let handle: *const QpHandle = qp.cast();
        let mut conn = conn_of(qp).lock();
        let (mine, theirs) = (conn.proto().cm().mine, conn.proto().cm().theirs);
        let Some(of) = conn.qp() else {
            return errno(Err(libc::EINVAL));
        };
        let mut out: ibv_qp_attr = zeroed();
        out.qp_state = to_c(of.state());
        out.cur_qp_state = out.qp_state;
        out.path_mtu = ibv_mtu::IBV_MTU_4096;
        out.path_mig_state = ibv_mig_state::IBV_MIG_MIGRATED;
        out.dest_qp_num = theirs.qp_num;
        out.qp_access_flags = of.responder.access;
        out.cap = (*handle).init.cap;
        out.max_rd_atomic = of.requester.max_reads as u8;
        out.max_dest_rd_atomic = mine.responder_resources;
        out.min_rnr_timer = of.responder.min_rnr_timer;
        out.port_num = 1;
        out.timeout = of.timeout;
        out.retry_cnt = of.retry_count;
        out.rnr_retry = of.requester.rnr_retry;
        (*qp).state = out.qp_state;
        *attr = out;
        *init = (*handle).init;
    }
    0
}

/// Whether a queue pair can be brought from one state to another.
fn may_become(from: ibv_qp_state::Type, to: ibv_qp_state::Type) -> bool {
    use ibv_qp_state::*;
    match from {
        IBV_QPS_RESET => matches!(to, IBV_QPS_RESET | IBV_QPS_INIT),
        IBV_QPS_INIT => to <= IBV_QPS_RTR || to == IBV_QPS_ERR,
        IBV_QPS_RTR | IBV_QPS_RTS => matches!(to, IBV_QPS_RESET | IBV_QPS_RTS | IBV_QPS_ERR),
        _ => matches!(to, IBV_QPS_RESET | IBV_QPS_ERR),
    }
}

/// The bits of the attributes that every device has to do with, `IBV_QP_STATE` to `IBV_QP_DEST_QPN`.
const KNOWN_ATTRIBUTES: u32 = (1 << 21) - 1;

/// Which attributes may be given where a queue pair goes from one state to another, or stays in one.
fn attributes(from: ibv_qp_state::Type, to: ibv_qp_state::Type) -> ibv_qp_attr_mask {
    use ibv_qp_state::*;
    type M = ibv_qp_attr_mask;
    match (from, to) {
        (IBV_QPS_RESET | IBV_QPS_INIT, IBV_QPS_INIT) => {
            M::IBV_QP_PKEY_INDEX | M::IBV_QP_PORT | M::IBV_QP_ACCESS_FLAGS
        }
        (IBV_QPS_INIT, IBV_QPS_RTR) => {
            M::IBV_QP_AV
                | M::IBV_QP_PATH_MTU
                | M::IBV_QP_DEST_QPN
                | M::IBV_QP_RQ_PSN
                | M::IBV_QP_MAX_DEST_RD_ATOMIC
                | M::IBV_QP_MIN_RNR_TIMER
                | M::IBV_QP_ACCESS_FLAGS
                | M::IBV_QP_PKEY_INDEX
        }
        (IBV_QPS_RTR, IBV_QPS_RTS) => {
            M::IBV_QP_TIMEOUT
                | M::IBV_QP_RETRY_CNT
                | M::IBV_QP_RNR_RETRY
                | M::IBV_QP_SQ_PSN
                | M::IBV_QP_MAX_QP_RD_ATOMIC
                | M::IBV_QP_CUR_STATE
                | M::IBV_QP_ACCESS_FLAGS
                | M::IBV_QP_MIN_RNR_TIMER
                | M::IBV_QP_PATH_MIG_STATE
        }
        (IBV_QPS_RTS, IBV_QPS_RTS) => {
            M::IBV_QP_CUR_STATE
                | M::IBV_QP_ACCESS_FLAGS
                | M::IBV_QP_MIN_RNR_TIMER
                | M::IBV_QP_PATH_MIG_STATE
        }
        _ => ibv_qp_attr_mask(0),
    }
}

/// # Safety
/// The queue pair is one of this library's; the attributes can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    use ibv_qp_state::*;
    type M = ibv_qp_attr_mask;
    // SAFETY: as the caller promises.
    unsafe {
        let mask = mask as u32;
        let has = |bits: M| mask & bits.0 == bits.0;
        let attr = &*attr;
        let ready_to_receive = has(M::IBV_QP_STATE) && attr.qp_state == IBV_QPS_RTR;
        let gid = IpAddr::V6(Ipv6Addr::from(attr.ah_attr.grh.dgid.raw)).to_canonical();
        let to_peer = (attr.dest_qp_num, gid);
        // Looked up before the connection is locked.
        let asked = ready_to_receive && qps().is_reachable(to_peer);
        let mut guard = conn_of(qp).lock();
        let reachable = guard.peer().map_or(asked, |peer| peer == to_peer);
        let retired = guard.queues().map(|queues| queues.retired.clone());
        let (Some(of), Some(retired)) = (guard.qp(), retired) else {
            return errno(Err(libc::EINVAL));
        };
        let (from, moves) = (to_c(of.state()), has(M::IBV_QP_STATE));
        let to = if moves { attr.qp_state } else { from };
        if mask & !KNOWN_ATTRIBUTES != 0 {
            return errno(Err(libc::EOPNOTSUPP));
        }
        // All of it, or nothing. There is one path.
        if mask & !(attributes(from, to) | M::IBV_QP_STATE).0 != 0
            || (moves && !may_become(from, to))
            || (has(M::IBV_QP_CUR_STATE) && attr.cur_qp_state != from)
            || (has(M::IBV_QP_PATH_MIG_STATE)
                && attr.path_mig_state != ibv_mig_state::IBV_MIG_MIGRATED)
            || (has(M::IBV_QP_MIN_RNR_TIMER) && attr.min_rnr_timer > 31)
            || (has(M::IBV_QP_TIMEOUT) && attr.timeout > 31)
            || (has(M::IBV_QP_RETRY_CNT) && attr.retry_cnt > 7)
            || (has(M::IBV_QP_RNR_RETRY) && attr.rnr_retry > 7)
        {
            return errno(Err(libc::EINVAL));
        }
        if (from, to) == (IBV_QPS_INIT, IBV_QPS_RTR) {
            if !has(M::IBV_QP_DEST_QPN | M::IBV_QP_AV) {
                return errno(Err(libc::EINVAL));
            }
            if !reachable || attr.ah_attr.is_global == 0 {
                // No connection management has to do with that one.
                return errno(Err(libc::EOPNOTSUPP));
            }
        }
        if has(M::IBV_QP_ACCESS_FLAGS) {
            of.responder.access = attr.qp_access_flags;
        }
        if has(M::IBV_QP_MIN_RNR_TIMER) {
            of.responder.min_rnr_timer = attr.min_rnr_timer;
        }
        // For programs that ask: the link has its own times.
        if has(M::IBV_QP_TIMEOUT) {
            of.timeout = attr.timeout;
        }
        if has(M::IBV_QP_RETRY_CNT) {
            of.retry_count = attr.retry_cnt;
        }
        if has(M::IBV_QP_RNR_RETRY) {
            of.requester.set_rnr_retry(attr.rnr_retry);
        }
        match from_c(to) {
            _ if !moves => {}
            Some(QpState::Err) => guard.with(|proto, _, host| proto.fail_qp(host)),
            Some(QpState::Reset) => {
                guard.reset_qp(every_access());
                // Nothing that was posted before has a place any more.
                if let Some(of) = guard.qp() {
                    retired.reset(of.requester.next_number());
                }
            }
            // What this makes ready takes effect once the connection is made.
            Some(state) => of.set_state(state),
            None => return errno(Err(libc::EINVAL)),
        }
        (*qp).state = to;
    }
    0
}

/// # Safety
/// The queue pair is one of this library's, and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        // From now on no connection is made with it.
        qps().remove((*qp).qp_num);
        let conn = conn_of(qp).clone();
        let Some(queues) = conn.lock().take_qp() else {
            return errno(Err(libc::EINVAL));
        };
        queues.send_cq.detach(conn.token());
        queues.recv_cq.detach(conn.token());
        queues.send_cq.forget(queues.num);
        queues.recv_cq.forget(queues.num);
        if let Some(srq) = &queues.srq {
            srq.users.fetch_sub(1, Ordering::AcqRel);
        }
        queues.domain.detach();
        Context::of((*qp).context).forget(qp.cast());
        drop(Box::from_raw(qp.cast::<QpHandle>()));
    }
    0
}

/// # Safety
/// The queue pair is one of this library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: as the caller promises.
    if unsafe { staging_of(qp) }.is_some() {
        qp.cast()
    } else {
        ptr::null_mut()
    }
}

/// What is written to memory is not promised to come in order.
///
/// # Safety
/// None: the arguments are not looked at.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp_data_in_order(_: *mut ibv_qp, _: c_int, _: u32) -> c_int {
    0
}
