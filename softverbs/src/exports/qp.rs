//! Queue pairs.

use super::cq::cq_of;
use super::qp_handle::{QpAbi, QpHandle, QpParts, lock_with_qp};
use super::qp_place::{QPS, endpoint_without_id};
use super::returns::{errno, pointer};
use super::srq::srq_of;
use super::wr;
use crate::objects::alive::{Alive, Kind};
use crate::objects::device::attributes::send_ops;
use crate::objects::device::{Context, limits, port};
use crate::objects::endpoint::{Endpoint, Phase, State};
use crate::objects::lock;
use crate::objects::memory::Pd;
use crate::objects::qp::{Qp, QpInit};
use crate::settings::Settings;
use rdma_sys::*;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

fn new_qp_num() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    if NEXT.load(Ordering::Relaxed) == 0 {
        let mut random = [0; 4];
        let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
        let start = u32::from_ne_bytes(random) | 1;
        let _ = NEXT.compare_exchange(0, start, Ordering::Relaxed, Ordering::Relaxed);
    }
    // 0 and 1 are taken, and there are 24 bits.
    loop {
        let num = NEXT.fetch_add(1, Ordering::Relaxed) & 0xff_ffff;
        if num > 1 {
            return num;
        }
    }
}

/// Makes the queue pair of an endpoint.
///
/// # Safety
/// The domain is open, and the attributes' objects are.
pub(super) unsafe fn create_qp(
    endpoint: &Arc<Endpoint>,
    pd: *mut ibv_pd,
    attr: &mut ibv_qp_init_attr,
    ops: Option<u64>,
) -> Result<*mut ibv_qp, i32> {
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
    let init = QpInit {
        num,
        domain: pd_of.domain.clone(),
        send_cq: send_cq.clone(),
        recv_cq: recv_cq.clone(),
        srq: srq.clone(),
        cap: *cap,
        sq_sig_all: attr.sq_sig_all != 0,
        ops: ops.unwrap_or(0),
    };
    let qp = Qp::new(init).ok_or(libc::ENOMEM)?;
    let mut state = endpoint.lock();
    if state.qp.is_some() {
        return Err(libc::EINVAL);
    }
    state.qp = Some(Box::new(qp));
    drop(state);
    pd_of.domain.attach();
    if let Some(srq) = srq {
        srq.users.fetch_add(1, Ordering::AcqRel);
    }
    send_cq.attach(endpoint);
    if !Arc::ptr_eq(&send_cq, &recv_cq) {
        recv_cq.attach(endpoint);
    }
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
    let handle = QpHandle {
        abi: QpAbi::new(base),
        parts: QpParts::new(endpoint.clone(), ops.is_some()),
        init: *attr,
        alive: Alive::new(Kind::Qp),
        batch: None,
    };
    let handle: *mut ibv_qp = Box::into_raw(Box::new(handle)).cast();
    // SAFETY: made just now, and nobody else has it.
    unsafe { wr::fill(handle.cast(), ops.unwrap_or(0)) };
    if let Some(qp) = &mut endpoint.lock().qp {
        qp.handle = handle.into();
    }
    lock(&QPS).insert(num, handle.expose_provenance());
    Ok(handle)
}

/// # Safety
/// The queue pair is one of this library's.
pub(super) unsafe fn set_state(qp: *mut ibv_qp, new: ibv_qp_state::Type) {
    // SAFETY: as the caller promises.
    unsafe {
        if let Ok((_, mut state)) = lock_with_qp(qp)
            && let Some(qp) = &mut state.qp
        {
            qp.state = new;
        }
        (*qp).state = new;
    }
}

/// The other sides that programs have asked how to reach, by the token of the endpoint that knows
/// them: the number of the queue pair, and the GID.
pub type Reachable = BTreeMap<u64, (u32, [u8; 16])>;

/// A queue pair that no id has yet can be made ready for one of them.
pub(super) static REACHABLE: Mutex<Reachable> = Mutex::new(BTreeMap::new());

/// The GID of who is at an endpoint's other end.
fn remote_gid(state: &State) -> Option<[u8; 16]> {
    let gid = port::gid(state.remote?.ip());
    // SAFETY: a GID consists of bytes.
    Some(unsafe { gid.raw })
}

/// The program asks how to reach the other side of an endpoint's connection.
pub(super) fn note_reachable(endpoint: &Endpoint) {
    let to = {
        let state = endpoint.lock();
        remote_gid(&state).map(|gid| (state.theirs.qp_num, gid))
    };
    if let Some(to) = to {
        lock(&REACHABLE).insert(endpoint.token, to);
    }
}

/// An endpoint's id is destroyed.
pub(super) fn forget_reachable(endpoint: &Endpoint) {
    lock(&REACHABLE).remove(&endpoint.token);
}

/// Whether connection management has to do with that other side: of a queue pair whose endpoint has
/// a connection, it must be that connection's.
fn is_reachable(state: &State, asked: bool, to: (u32, [u8; 16])) -> bool {
    match state.phase {
        Phase::Requested | Phase::ReplyReceived | Phase::Accepted | Phase::Established => {
            remote_gid(state).is_some_and(|gid| (state.theirs.qp_num, gid) == to)
        }
        _ => asked,
    }
}

/// Makes a queue pair without an id, as yet.
///
/// # Safety
/// As of [`create_qp`].
unsafe fn create_without_id(
    pd: *mut ibv_pd,
    attr: &mut ibv_qp_init_attr,
    ops: Option<u64>,
) -> Result<*mut ibv_qp, i32> {
    // SAFETY: as the caller promises.
    unsafe { create_qp(&endpoint_without_id()?, pd, attr, ops) }
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
        let qp = unsafe { create_without_id(pd, &mut basic, ops) };
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
    pointer(unsafe { create_without_id(pd, &mut *attr, None) })
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
        let state = match lock_with_qp(qp) {
            Ok((_, state)) => state,
            Err(error) => return errno(Err(error)),
        };
        let Some(of) = &state.qp else {
            return errno(Err(libc::EINVAL));
        };
        let mut out: ibv_qp_attr = zeroed();
        out.qp_state = of.state;
        out.cur_qp_state = of.state;
        out.path_mtu = ibv_mtu::IBV_MTU_4096;
        out.path_mig_state = ibv_mig_state::IBV_MIG_MIGRATED;
        out.dest_qp_num = state.theirs.qp_num;
        out.qp_access_flags = of.access;
        out.cap = of.init.cap;
        out.max_rd_atomic = of.max_reads as u8;
        out.max_dest_rd_atomic = state.mine.responder_resources;
        out.min_rnr_timer = of.min_rnr_timer;
        out.port_num = 1;
        out.timeout = of.timeout;
        out.retry_cnt = state.mine.retry_count;
        out.rnr_retry = of.rnr_retry;
        *attr = out;
        *init = (*qp.cast::<QpHandle>()).init;
        (*init).cap = of.init.cap;
        (*qp).state = of.state;
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
        let to_peer = (attr.dest_qp_num, attr.ah_attr.grh.dgid.raw);
        // Looked up before the endpoint is locked.
        let asked = ready_to_receive && lock(&REACHABLE).values().any(|one| *one == to_peer);
        let (endpoint, mut state) = match lock_with_qp(qp) {
            Ok(locked) => locked,
            Err(error) => return errno(Err(error)),
        };
        let reachable = is_reachable(&state, asked, to_peer);
        let state = &mut *state;
        let Some(of) = &mut state.qp else {
            return errno(Err(libc::EINVAL));
        };
        let (from, moves) = (of.state, has(M::IBV_QP_STATE));
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
            of.access = attr.qp_access_flags;
        }
        if has(M::IBV_QP_MIN_RNR_TIMER) {
            of.min_rnr_timer = attr.min_rnr_timer;
        }
        // For who asks: the link has its own times.
        if has(M::IBV_QP_TIMEOUT) {
            of.timeout = attr.timeout;
        }
        if has(M::IBV_QP_RETRY_CNT) {
            state.mine.retry_count = attr.retry_cnt;
        }
        if has(M::IBV_QP_RNR_RETRY) {
            of.rnr_retry = attr.rnr_retry;
            of.rnr_left = of.rnr_retry;
        }
        match to {
            _ if !moves => {}
            IBV_QPS_ERR => {
                of.fail();
                state.pump(endpoint);
                state.watch(endpoint);
            }
            IBV_QPS_RESET => of.reset(),
            // What this makes ready takes effect once the connection is made.
            _ => of.state = to,
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
        // From now on it is not moved to another endpoint.
        lock(&QPS).remove(&(*qp).qp_num);
        let (endpoint, mut state) = match lock_with_qp(qp) {
            Ok(locked) => locked,
            Err(error) => return errno(Err(error)),
        };
        let Some(of) = state.qp.take() else {
            return errno(Err(libc::EINVAL));
        };
        state.pump(endpoint);
        state.watch(endpoint);
        drop(state);
        let endpoint = endpoint.arc();
        of.init.send_cq.detach(&endpoint);
        of.init.recv_cq.detach(&endpoint);
        of.init.send_cq.forget(of.init.num);
        of.init.recv_cq.forget(of.init.num);
        if let Some(srq) = &of.init.srq {
            srq.users.fetch_sub(1, Ordering::AcqRel);
        }
        of.init.domain.detach();
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
    if unsafe { QpParts::of(qp.cast()) }.extended {
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
