//! Completion channels and queues, shared receive queues, queue pairs.

use super::unsupported::set_errno;
use super::{errno, minus_one, pointer, wr};
use crate::engine;
use crate::frames::{AtomicOp, MAX_MESSAGE, Remote};
use crate::objects::alive::{Alive, Kind};
use crate::objects::cm::CmEvent;
use crate::objects::cq::{Armed, CompChannel, Cq, CqHandle};
use crate::objects::device::{Context, limits};
use crate::objects::endpoint::{Batch, Endpoint};
use crate::objects::events::EventQueue;
use crate::objects::lock;
use crate::objects::memory::Pd;
use crate::objects::qp::{Op, Payload, Qp, QpInit, RecvWqe, SendWqe, SgList};
use crate::objects::srq::{Srq, SrqHandle};
use crate::settings::Settings;
use rdma_sys::*;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::mem::zeroed;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// `IBV_WR_ATOMIC_WRITE` of `infiniband/verbs.h`; older headers lack it.
const WR_ATOMIC_WRITE: ibv_wr_opcode::Type = 15;

/// # Safety
/// The context is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    let channel = EventQueue::new().map(|events| {
        Box::into_raw(Box::new(CompChannel {
            abi: ibv_comp_channel {
                context,
                fd: events.fd(),
                refcnt: 0,
            },
            events: Arc::new(events),
            users: Default::default(),
        }))
    });
    let error = |error: std::io::Error| error.raw_os_error().unwrap_or(libc::EIO);
    pointer(channel.map(|channel| channel.cast()).map_err(error))
}

/// # Safety
/// The channel is one of [`ibv_create_comp_channel`], and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    let channel: *mut CompChannel = channel.cast();
    // SAFETY: as the caller promises.
    unsafe {
        if (*channel).users.load(Ordering::Acquire) > 0 {
            return errno(Err(libc::EBUSY));
        }
        drop(Box::from_raw(channel));
    }
    0
}

/// # Safety
/// The channel is NULL or one of this context's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    let size = match usize::try_from(cqe) {
        Ok(n) if n > 0 && n <= limits::MAX_CQE as usize => n,
        _ => return pointer(Err(libc::EINVAL)),
    };
    if comp_vector < 0 || comp_vector >= limits::COMP_VECTORS as c_int {
        return pointer(Err(libc::EINVAL));
    }
    let channel: *mut CompChannel = channel.cast();
    // SAFETY: as the caller promises.
    let (of, events) = unsafe {
        let events = channel.as_ref().map(|channel| channel.events.clone());
        (Context::of(context), events)
    };
    let Some(cq) = Cq::new(of, size, events) else {
        return pointer(Err(libc::ENOMEM));
    };
    // SAFETY: it consists of numbers and pointers; its lock is of this library only.
    let mut abi: ibv_cq = unsafe { zeroed() };
    abi.context = context;
    abi.channel = channel.cast();
    abi.cq_context = cq_context;
    abi.cqe = cqe;
    let handle = Box::into_raw(Box::new(CqHandle {
        abi,
        cq: cq.clone(),
        _alive: Alive::new(Kind::Cq),
    }));
    cq.handle.store(handle.cast(), Ordering::Release);
    // SAFETY: as the caller promises.
    if let Some(channel) = unsafe { channel.as_mut() } {
        channel.users.fetch_add(1, Ordering::AcqRel);
        channel.abi.refcnt += 1;
    }
    handle.cast()
}

unsafe fn cq_of<'a>(cq: *mut ibv_cq) -> &'a mut CqHandle {
    // SAFETY: the handle is one of `ibv_create_cq`, as every caller's caller promises.
    unsafe { &mut *cq.cast() }
}

/// # Safety
/// The queue is one of [`ibv_create_cq`], and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let handle = cq_of(cq);
        if handle.cq.is_used() {
            return errno(Err(libc::EBUSY));
        }
        handle.cq.close();
        Context::of(handle.abi.context).forget(cq.cast());
        let channel: *mut CompChannel = handle.abi.channel.cast();
        if let Some(channel) = channel.as_mut() {
            channel.users.fetch_sub(1, Ordering::AcqRel);
            channel.abi.refcnt -= 1;
        }
        drop(Box::from_raw(handle));
    }
    0
}

/// # Safety
/// The queue is one of [`ibv_create_cq`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: as the caller promises.
    let handle = unsafe { cq_of(cq) };
    let result = match usize::try_from(cqe) {
        Ok(n) if n > 0 && n <= limits::MAX_CQE as usize => handle.cq.resize(n),
        _ => Err(libc::EINVAL),
    };
    if result.is_ok() {
        handle.abi.cqe = cqe;
    }
    errno(result)
}

/// # Safety
/// The channel is one of [`ibv_create_comp_channel`]; what is pointed to can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: as the caller promises.
    let events = unsafe { &(*channel.cast::<CompChannel>()).events };
    match events.pop(|event| event.0.handed.out()) {
        Ok(event) => {
            let handle = event.0.handle.load(Ordering::Acquire);
            // SAFETY: as the caller promises; a queue that is destroyed takes its events along.
            unsafe {
                *cq = handle;
                *cq_context = (*handle).cq_context;
            }
            0
        }
        Err(error) => minus_one(Err(error.raw_os_error().unwrap_or(libc::EIO))),
    }
}

/// # Safety
/// The queue is one of [`ibv_create_cq`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, n: c_uint) {
    // SAFETY: as the caller promises.
    unsafe { cq_of(cq) }.cq.handed.back(n);
}

/// # Safety
/// As of `ibv_poll_cq`.
pub unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, n: c_int, wc: *mut ibv_wc) -> c_int {
    let Ok(n) = usize::try_from(n) else {
        return -libc::EINVAL;
    };
    // SAFETY: as the caller promises.
    match unsafe { (*cq.cast::<CqHandle>()).cq.poll(wc, n) } {
        Some(n) => n as c_int,
        None => -libc::EIO,
    }
}

/// # Safety
/// As of `ibv_req_notify_cq`.
pub unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    let armed = if solicited_only != 0 {
        Armed::Solicited
    } else {
        Armed::All
    };
    // SAFETY: as the caller promises.
    unsafe { cq_of(cq) }.cq.arm(armed);
    0
}

/// # Safety
/// As of `ibv_create_cq_ex`.
pub unsafe extern "C" fn create_cq_ex(
    _: *mut ibv_context,
    _: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    pointer(Err(libc::EOPNOTSUPP))
}

// ---- shared receive queues ----

/// # Safety
/// The domain is open; what is pointed to can be read and written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    // SAFETY: as the caller promises.
    let (pd_of, attr, srq_context) =
        unsafe { (Pd::from_raw(pd), &mut (*init).attr, (*init).srq_context) };
    if attr.max_wr == 0
        || attr.max_wr > limits::MAX_SRQ_WR
        || attr.max_sge > limits::MAX_SRQ_SGE
        || attr.srq_limit > attr.max_wr
    {
        return pointer(Err(libc::EINVAL));
    }
    let context = pd_of.abi.context;
    let srq = Srq::new(
        // SAFETY: the domain's context is open.
        unsafe { Context::of(context) },
        pd_of.domain.clone(),
        attr.max_wr as usize,
        attr.max_sge,
        attr.srq_limit as usize,
    );
    let Some(srq) = srq else {
        return pointer(Err(libc::ENOMEM));
    };
    pd_of.domain.attach();
    // SAFETY: it consists of numbers and pointers; its lock is of this library only.
    let mut abi: ibv_srq = unsafe { zeroed() };
    abi.context = context;
    abi.srq_context = srq_context;
    abi.pd = pd;
    let handle: *mut ibv_srq = Box::into_raw(Box::new(SrqHandle {
        abi,
        srq: srq.clone(),
        _alive: Alive::new(Kind::Srq),
    }))
    .cast();
    srq.handle.store(handle, Ordering::Release);
    handle
}

unsafe fn srq_of<'a>(srq: *mut ibv_srq) -> &'a SrqHandle {
    // SAFETY: the handle is one of `ibv_create_srq`, as every caller's caller promises.
    unsafe { &*srq.cast() }
}

/// # Safety
/// As of `ibv_create_srq_ex`.
pub unsafe extern "C" fn create_srq_ex(
    _: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    // SAFETY: as the caller promises.
    unsafe {
        let mask = (*init).comp_mask;
        let known = ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_TYPE.0
            | ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_PD.0;
        let pd = ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_PD.0;
        let typed = ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_TYPE.0;
        if mask & !known != 0
            || mask & pd == 0
            || (mask & typed != 0 && (*init).srq_type != ibv_srq_type::IBV_SRQT_BASIC)
        {
            return pointer(Err(libc::EOPNOTSUPP));
        }
        let mut basic = ibv_srq_init_attr {
            srq_context: (*init).srq_context,
            attr: (*init).attr,
        };
        ibv_create_srq((*init).pd, &mut basic)
    }
}

/// # Safety
/// As of `ibv_get_srq_num`.
pub unsafe extern "C" fn get_srq_num(_: *mut ibv_srq, _: *mut u32) -> c_int {
    libc::EOPNOTSUPP
}

/// # Safety
/// The queue is one of [`ibv_create_srq`]; the attributes can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: as the caller promises.
    let (srq, attr) = unsafe { (&srq_of(srq).srq, &*attr) };
    let mask = mask as u32;
    let mut result = Ok(());
    if mask & ibv_srq_attr_mask::IBV_SRQ_MAX_WR.0 != 0 {
        result = match attr.max_wr {
            n if n == 0 || n > limits::MAX_SRQ_WR => Err(libc::EINVAL),
            n => srq.resize(n as usize),
        };
    }
    if result.is_ok() && mask & ibv_srq_attr_mask::IBV_SRQ_LIMIT.0 != 0 {
        result = srq.set_limit(attr.srq_limit as usize);
    }
    errno(result)
}

/// # Safety
/// The queue is one of [`ibv_create_srq`]; the attributes can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let srq = &srq_of(srq).srq;
        *attr = ibv_srq_attr {
            max_wr: srq.capacity() as u32,
            max_sge: srq.max_sge,
            srq_limit: srq.limit() as u32,
        };
    }
    0
}

/// # Safety
/// The queue is one of [`ibv_create_srq`], and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let handle = srq_of(srq);
        if handle.srq.users.load(Ordering::Acquire) > 0 {
            return errno(Err(libc::EBUSY));
        }
        Context::of(handle.abi.context).forget(srq.cast());
        handle.srq.domain.detach();
        drop(Box::from_raw(srq.cast::<SrqHandle>()));
    }
    0
}

unsafe fn recv_wqe(wr: &ibv_recv_wr, max_sge: u32) -> Result<RecvWqe, i32> {
    match usize::try_from(wr.num_sge) {
        Ok(n) if n <= max_sge as usize => Ok(RecvWqe {
            wr_id: wr.wr_id,
            // SAFETY: the list has so many entries, as every caller's caller promises.
            sges: unsafe { SgList::copy(wr.sg_list, n) },
        }),
        _ => Err(libc::EINVAL),
    }
}

/// The requests of a list.
unsafe fn recv_list(first: *mut ibv_recv_wr) -> impl Iterator<Item = *mut ibv_recv_wr> {
    // SAFETY: the list is one, as every caller's caller promises.
    std::iter::successors(Some(first).filter(|wr| !wr.is_null()), |wr| unsafe {
        Some((**wr).next).filter(|wr| !wr.is_null())
    })
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
        let srq = &srq_of(srq).srq;
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

// ---- queue pairs ----

/// A queue pair as C sees it.
#[repr(C)]
pub struct QpHandle {
    pub abi: wr::QpAbi,
    pub endpoint: Arc<Endpoint>,
    /// Operations beyond those of every queue pair, if it was made for the extended interface.
    pub extended: bool,
    init: ibv_qp_init_attr,
    _alive: Alive,
    /// What is being posted by the extended interface.
    pub batch: Option<Batch<'static>>,
}

/// # Safety
/// The queue pair is one of this library's.
pub unsafe fn qp_of<'a>(qp: *mut ibv_qp) -> &'a mut QpHandle {
    // SAFETY: as the caller promises.
    unsafe { &mut *qp.cast() }
}

/// The operations that a queue pair can be made for: `IBV_QP_EX_WITH_*`, `infiniband/verbs.h`.
fn send_ops() -> u64 {
    // Write, send, with and without immediate data; read; the two atomics.
    const ALWAYS: u64 = 0x7f;
    let settings = Settings::get();
    let mut ops = ALWAYS;
    if settings.flush {
        ops |= wr::WITH_FLUSH;
    }
    if settings.atomic_write {
        ops |= wr::WITH_ATOMIC_WRITE;
    }
    ops
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
pub unsafe fn create_qp(
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
    if ops.unwrap_or(0) & !send_ops() != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    if !attr.srq.is_null() {
        cap.max_recv_wr = 0;
        cap.max_recv_sge = 0;
    }
    // SAFETY: as the caller promises.
    let (pd_of, send_cq, recv_cq, srq) = unsafe {
        let srq = attr.srq.cast::<SrqHandle>().as_ref();
        (
            Pd::from_raw(pd),
            cq_of(attr.send_cq).cq.clone(),
            cq_of(attr.recv_cq).cq.clone(),
            srq.map(|srq| srq.srq.clone()),
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
    let handle = QpHandle {
        abi: wr::QpAbi::new(base, ops.unwrap_or(0)),
        endpoint: endpoint.clone(),
        extended: ops.is_some(),
        init: *attr,
        _alive: Alive::new(Kind::Qp),
        batch: None,
    };
    let handle: *mut ibv_qp = Box::into_raw(Box::new(handle)).cast();
    // SAFETY: made just now.
    unsafe { set_state(handle, ibv_qp_state::IBV_QPS_RESET) };
    Ok(handle)
}

/// # Safety
/// The queue pair is one of this library's.
pub unsafe fn set_state(qp: *mut ibv_qp, new: ibv_qp_state::Type) {
    // SAFETY: as the caller promises.
    unsafe {
        let handle = qp_of(qp);
        if let Some(qp) = &mut handle.endpoint.lock().qp {
            qp.state = new;
        }
        (*qp).state = new;
    }
}

/// The queue pairs that were made without a cm id, by number. One of them is connected by an id
/// whose program names it when it connects or accepts.
pub static LOOSE: Mutex<BTreeMap<u32, usize>> = Mutex::new(BTreeMap::new());

unsafe fn create_loose(
    pd: *mut ibv_pd,
    attr: &mut ibv_qp_init_attr,
    ops: Option<u64>,
) -> Result<*mut ibv_qp, i32> {
    /// Nothing comes for them until they have an id.
    static NOBODY: OnceLock<Arc<EventQueue<CmEvent>>> = OnceLock::new();
    engine::start().map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))?;
    let events = match NOBODY.get() {
        Some(events) => events,
        None => {
            let events = EventQueue::new().map_err(|_| libc::EMFILE)?;
            NOBODY.get_or_init(|| Arc::new(events))
        }
    };
    let endpoint = Endpoint::new(events.clone());
    // SAFETY: as the callers' callers promise.
    let qp = unsafe { create_qp(&endpoint, pd, attr, ops)? };
    // SAFETY: made just now.
    let num = unsafe { (*qp).qp_num };
    lock(&LOOSE).insert(num, qp.expose_provenance());
    Ok(qp)
}

/// Gives an endpoint the queue pair of that number, which was made without one.
pub fn adopt(endpoint: &Arc<Endpoint>, num: u32) -> Result<(), i32> {
    let loose = lock(&LOOSE);
    let qp = *loose.get(&num).ok_or(libc::EINVAL)?;
    // SAFETY: those in the list have not been destroyed.
    let handle = unsafe { qp_of(ptr::with_exposed_provenance_mut(qp)) };
    if Arc::ptr_eq(&handle.endpoint, endpoint) {
        return Ok(());
    }
    let before = std::mem::replace(&mut handle.endpoint, endpoint.clone());
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
pub fn qp_attr(
    attr: &ibv_qp_init_attr_ex,
) -> Result<(ibv_qp_init_attr, *mut ibv_pd, Option<u64>), i32> {
    const PD: u32 = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0;
    const SEND_OPS: u32 = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0;
    if attr.comp_mask & !(PD | SEND_OPS) != 0 {
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
        let handle = qp_of(qp);
        let state = handle.endpoint.lock();
        let Some(of) = &state.qp else {
            return errno(Err(libc::EINVAL));
        };
        let mut out: ibv_qp_attr = zeroed();
        out.qp_state = of.state;
        out.cur_qp_state = of.state;
        out.path_mtu = ibv_mtu::IBV_MTU_4096;
        out.path_mig_state = ibv_mig_state::IBV_MIG_MIGRATED;
        out.dest_qp_num = state.theirs.qp_num;
        out.qp_access_flags = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0
            | ibv_access_flags::IBV_ACCESS_REMOTE_READ.0
            | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;
        out.cap = of.init.cap;
        out.max_rd_atomic = of.max_reads as u8;
        out.max_dest_rd_atomic = state.mine.responder_resources;
        out.min_rnr_timer = of.min_rnr_timer;
        out.port_num = 1;
        out.retry_cnt = state.mine.retry_count;
        out.rnr_retry = of.rnr_retry;
        *attr = out;
        *init = handle.init;
        (*init).cap = of.init.cap;
        (*qp).state = of.state;
    }
    0
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
    // SAFETY: as the caller promises.
    unsafe {
        let handle = qp_of(qp);
        let endpoint = handle.endpoint.clone();
        let mut state = endpoint.lock();
        let Some(of) = &mut state.qp else {
            return errno(Err(libc::EINVAL));
        };
        let mask = ibv_qp_attr_mask(mask as u32);
        if mask.0 & ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER.0 != 0 {
            if (*attr).min_rnr_timer > 31 {
                return errno(Err(libc::EINVAL));
            }
            of.min_rnr_timer = (*attr).min_rnr_timer;
        }
        if mask.0 & ibv_qp_attr_mask::IBV_QP_RNR_RETRY.0 != 0 {
            if (*attr).rnr_retry > 7 {
                return errno(Err(libc::EINVAL));
            }
            of.rnr_retry = (*attr).rnr_retry;
            of.rnr_left = of.rnr_retry;
        }
        if mask.0 & ibv_qp_attr_mask::IBV_QP_STATE.0 != 0 {
            let (from, to) = (of.state, (*attr).qp_state);
            match (from, to) {
                (_, IBV_QPS_ERR) => {
                    of.fail();
                    state.pump(&endpoint);
                    state.watch(&endpoint);
                }
                (_, IBV_QPS_RESET) => of.reset(),
                (IBV_QPS_RESET | IBV_QPS_INIT, IBV_QPS_INIT) => of.state = to,
                // What follows takes effect once the connection is made.
                (IBV_QPS_INIT, IBV_QPS_RTR) => {
                    let addressed = mask.0 & ibv_qp_attr_mask::IBV_QP_DEST_QPN.0 != 0;
                    if !addressed || !super::cm::is_peer((*attr).dest_qp_num) {
                        // No connection management has to do with that one.
                        return errno(Err(libc::EOPNOTSUPP));
                    }
                    of.state = to;
                }
                (IBV_QPS_RTR | IBV_QPS_RTS, IBV_QPS_RTS) => of.state = to,
                (from, to) if from == to => {}
                _ => return errno(Err(libc::EINVAL)),
            }
            (*qp).state = to;
        }
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
    if unsafe { qp_of(qp) }.extended {
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

/// # Safety
/// As of `ibv_post_recv`.
pub unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let endpoint = &(*qp.cast::<QpHandle>()).endpoint;
        let wqes = recv_list(wr).map(|wr| recv_wqe(&*wr, limits::MAX_SGE));
        // Only this thread touches the batch that it puts together.
        let composed = endpoint
            .is_composed_here()
            .then(|| &mut (*qp.cast::<QpHandle>()).batch);
        let result = match composed {
            Some(Some(batch)) => batch.post_recv(wqes),
            _ => endpoint.post_recv(wqes),
        };
        match result {
            Ok(()) => 0,
            Err((posted, error)) => {
                *bad = recv_list(wr).nth(posted).unwrap_or(wr);
                errno(Err(error))
            }
        }
    }
}

unsafe fn post_one(batch: &mut Batch<'_>, wr: &ibv_send_wr) -> Result<(), i32> {
    use ibv_wr_opcode::*;
    let n = usize::try_from(wr.num_sge).map_err(|_| libc::EINVAL)?;
    if n > batch.max_sge() as usize {
        return Err(libc::EINVAL);
    }
    let has = |flag: ibv_send_flags| wr.send_flags & flag.0 != 0;
    // SAFETY: the members that the operation uses are set, and the list has so many entries, as
    // every caller's caller promises.
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
            IBV_WR_ATOMIC_CMP_AND_SWP => Op::Atomic {
                at: atomic_at(),
                op: AtomicOp::CompareSwap {
                    compare: wr.wr.atomic.compare_add,
                    swap: wr.wr.atomic.swap,
                },
            },
            IBV_WR_ATOMIC_FETCH_AND_ADD => Op::Atomic {
                at: atomic_at(),
                op: AtomicOp::FetchAdd(wr.wr.atomic.compare_add),
            },
            WR_ATOMIC_WRITE if Settings::get().atomic_write && n == 1 => {
                let sge = *wr.sg_list;
                if sge.length != 8 {
                    return Err(libc::EINVAL);
                }
                let value = (sge.addr as *const [u8; 8]).read_unaligned();
                Op::AtomicWrite { at: at(), value }
            }
            _ => return Err(libc::EINVAL),
        };
        let carries = matches!(op, Op::Send { .. } | Op::Write { .. });
        let (payload, len) = if matches!(op, Op::AtomicWrite { .. }) {
            (Payload::Memory(SgList::NONE), 8)
        } else if has(ibv_send_flags::IBV_SEND_INLINE) && carries {
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
        batch.push(SendWqe {
            wr_id: wr.wr_id,
            op,
            payload,
            len,
            signaled: has(ibv_send_flags::IBV_SEND_SIGNALED),
            fence: has(ibv_send_flags::IBV_SEND_FENCE),
            solicited: has(ibv_send_flags::IBV_SEND_SOLICITED),
            outcome: None,
            got: 0,
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
        let mut batch = match Batch::new(&(*qp.cast::<QpHandle>()).endpoint) {
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
