//! Queue pairs.

use super::cm::is_peer;
use super::cq::cq_of;
use super::srq::srq_of;
use super::{errno, pointer, wr};
use crate::engine;
use crate::objects::alive::{Alive, Kind};
use crate::objects::cm::CmEvent;
use crate::objects::device::attributes::send_ops;
use crate::objects::device::{Context, limits};
use crate::objects::endpoint::{Batch, Endpoint};
use crate::objects::events::EventQueue;
use crate::objects::memory::Pd;
use crate::objects::qp::{Qp, QpInit};
use crate::objects::{errno_of, lock};
use crate::settings::Settings;
use rdma_sys::*;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// A queue pair as C sees it. Several threads use it at once, each its own members: there is no
/// reference to all of it.
#[repr(C)]
struct QpHandle {
    abi: wr::QpAbi,
    endpoint: Arc<Endpoint>,
    /// It was made for the extended interface.
    extended: bool,
    init: ibv_qp_init_attr,
    _alive: Alive,
    /// What is being posted by the extended interface.
    batch: Option<Batch<'static>>,
}

/// # Safety
/// The queue pair is one of this library's.
pub(super) unsafe fn endpoint_of<'a>(qp: *mut ibv_qp) -> &'a Arc<Endpoint> {
    // SAFETY: as the caller promises.
    unsafe { &(*qp.cast::<QpHandle>()).endpoint }
}

/// # Safety
/// The queue pair is one of this library's, and this thread has its endpoint locked.
pub(super) unsafe fn batch_of<'a>(qp: *mut ibv_qp) -> &'a mut Option<Batch<'static>> {
    // SAFETY: as the caller promises.
    unsafe { &mut (*qp.cast::<QpHandle>()).batch }
}

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
            cq_of(attr.send_cq).cq.clone(),
            cq_of(attr.recv_cq).cq.clone(),
            (!attr.srq.is_null()).then(|| srq_of(attr.srq).srq.clone()),
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
        abi: wr::QpAbi::new(base, ops.unwrap_or(0)),
        endpoint: endpoint.clone(),
        extended: ops.is_some(),
        init: *attr,
        _alive: Alive::new(Kind::Qp),
        batch: None,
    };
    let handle: *mut ibv_qp = Box::into_raw(Box::new(handle)).cast();
    if let Some(qp) = &mut endpoint.lock().qp {
        qp.handle = handle.into();
    }
    Ok(handle)
}

/// # Safety
/// The queue pair is one of this library's.
pub(super) unsafe fn set_state(qp: *mut ibv_qp, new: ibv_qp_state::Type) {
    // SAFETY: as the caller promises.
    unsafe {
        if let Some(qp) = &mut endpoint_of(qp).lock().qp {
            qp.state = new;
        }
        (*qp).state = new;
    }
}

/// The queue pairs that were made without a cm id, by number. One of them is connected by an id
/// whose program names it when it connects or accepts.
pub(super) static LOOSE: Mutex<BTreeMap<u32, usize>> = Mutex::new(BTreeMap::new());

/// Makes a queue pair without an id, as yet.
///
/// # Safety
/// As of [`create_qp`].
unsafe fn create_loose(
    pd: *mut ibv_pd,
    attr: &mut ibv_qp_init_attr,
    ops: Option<u64>,
) -> Result<*mut ibv_qp, i32> {
    /// Nothing comes for them until they have an id.
    static NOBODY: OnceLock<Arc<EventQueue<CmEvent>>> = OnceLock::new();
    engine::start().map_err(|error| errno_of(&error))?;
    let events = match NOBODY.get() {
        Some(events) => events,
        None => {
            let events = EventQueue::new().map_err(|error| errno_of(&error))?;
            NOBODY.get_or_init(|| Arc::new(events))
        }
    };
    let endpoint = Endpoint::new(events.clone());
    // SAFETY: as the caller promises.
    let qp = unsafe { create_qp(&endpoint, pd, attr, ops)? };
    // SAFETY: made just now.
    let num = unsafe { (*qp).qp_num };
    lock(&LOOSE).insert(num, qp.expose_provenance());
    Ok(qp)
}

/// Gives an endpoint the queue pair of that number, which was made without one.
pub(super) fn adopt(endpoint: &Arc<Endpoint>, num: u32) -> Result<(), i32> {
    let loose = lock(&LOOSE);
    let qp = *loose.get(&num).ok_or(libc::EINVAL)?;
    let handle: *mut QpHandle = ptr::with_exposed_provenance_mut(qp);
    // SAFETY: those in the list have not been destroyed; the program does not use one while it is
    // named to be connected.
    let place = unsafe { &mut (*handle).endpoint };
    if Arc::ptr_eq(place, endpoint) {
        return Ok(());
    }
    let before = std::mem::replace(place, endpoint.clone());
    let Some(of) = before.lock().qp.take() else {
        return Err(libc::EINVAL);
    };
    let cqs = [of.init.send_cq.clone(), of.init.recv_cq.clone()];
    let mut state = endpoint.lock();
    state.qp = Some(of);
    state.program_moves_qp = true;
    drop(state);
    for cq in cqs {
        cq.detach(&before);
        cq.detach(endpoint);
        cq.attach(endpoint);
    }
    Ok(())
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
        let qp = unsafe { create_loose(pd, &mut basic, ops) };
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
    pointer(unsafe { create_loose(pd, &mut *attr, None) })
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
        let state = endpoint_of(qp).lock();
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
        let endpoint = endpoint_of(qp);
        let mut state = endpoint.lock();
        let state = &mut *state;
        let Some(of) = &mut state.qp else {
            return errno(Err(libc::EINVAL));
        };
        let mask = mask as u32;
        let has = |bit: M| mask & bit.0 != 0;
        let attr = &*attr;
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
            if !has(M::IBV_QP_DEST_QPN) {
                return errno(Err(libc::EINVAL));
            }
            if !is_peer(attr.dest_qp_num) {
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
        lock(&LOOSE).remove(&(*qp).qp_num);
        let handle = Box::from_raw(qp.cast::<QpHandle>());
        let endpoint = &handle.endpoint;
        let mut state = endpoint.lock();
        let Some(of) = state.qp.take() else {
            return errno(Err(libc::EINVAL));
        };
        state.pump(endpoint);
        state.watch(endpoint);
        drop(state);
        of.init.send_cq.detach(endpoint);
        of.init.recv_cq.detach(endpoint);
        of.init.send_cq.forget(of.init.num);
        of.init.recv_cq.forget(of.init.num);
        if let Some(srq) = &of.init.srq {
            srq.users.fetch_sub(1, Ordering::AcqRel);
        }
        of.init.domain.detach();
        Context::of((*qp).context).forget(qp.cast());
    }
    0
}

/// # Safety
/// The queue pair is one of this library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: as the caller promises.
    if unsafe { (*qp.cast::<QpHandle>()).extended } {
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
