//! At which endpoint a queue pair is: at one of its own until an id's connection takes it.

use super::qp_handle::{QpHandle, QpParts};
use crate::engine;
use crate::objects::cm::CmEvent;
use crate::objects::endpoint::{Endpoint, Phase, State};
use crate::objects::events::EventQueue;
use crate::objects::qp::every_access;
use crate::objects::{errno_of, lock};
use rdma_sys::{ibv_qp, ibv_qp_state};
use std::collections::BTreeMap;
use std::ptr;
use std::sync::{Arc, Mutex, OnceLock};

/// The queue pairs that have not been destroyed, by number, as addresses of their handles.
pub type Qps = BTreeMap<u32, usize>;

/// Held while a queue pair moves from one endpoint to another, so that it does not do so twice at
/// once and is not destroyed meanwhile.
pub static QPS: Mutex<Qps> = Mutex::new(BTreeMap::new());

/// A new endpoint for a queue pair that no id has. Nothing comes for it until an id has it.
pub fn endpoint_without_id() -> Result<Arc<Endpoint>, i32> {
    static NOBODY: OnceLock<Arc<EventQueue<CmEvent>>> = OnceLock::new();
    engine::start().map_err(|error| errno_of(&error))?;
    let events = match NOBODY.get() {
        Some(events) => events,
        None => {
            let events = EventQueue::new().map_err(|error| errno_of(&error))?;
            NOBODY.get_or_init(|| Arc::new(events))
        }
    };
    Ok(Endpoint::new(events.clone()))
}

/// Whether an endpoint has a connection, or asks for one, that its queue pair is needed for.
fn needs_qp(phase: Phase) -> bool {
    matches!(
        phase,
        Phase::Connecting
            | Phase::RequestSent
            | Phase::ReplyReceived
            | Phase::Accepted
            | Phase::Established
            | Phase::DisconnectSent
    )
}

/// Moves a queue pair to an endpoint that has none.
///
/// # Safety
/// The queue pair is in `QPS`, which the caller has locked.
unsafe fn move_to(qp: *mut QpHandle, to: &Arc<Endpoint>) -> Result<(), i32> {
    // SAFETY: those in the map are not destroyed while it is locked.
    let handle = unsafe { QpParts::of(qp) };
    let from = handle.endpoint().arc();
    if Arc::ptr_eq(&from, to) {
        return Ok(());
    }
    // Both are locked, so that the queue pair is always at the endpoint that the handle names. No
    // other thread waits for one of them with the other locked: only here, under the lock of the
    // map, are endpoints locked that do not listen, with another one locked.
    let mut from_state = from.lock();
    let mut to_state = to.lock();
    if needs_qp(from_state.phase) || to_state.qp.is_some() {
        return Err(libc::EINVAL);
    }
    let Some(mut of) = from_state.qp.take() else {
        return Err(libc::EINVAL);
    };
    // Each connection counts its requests from 0; there may have been another one.
    if of.sq.entries.is_empty() {
        of.sq.first = 0;
    }
    from_state.program_moves_qp = false;
    let cqs = [of.init.send_cq.clone(), of.init.recv_cq.clone()];
    to_state.qp = Some(of);
    handle.set_endpoint(to.clone());
    drop((from_state, to_state));
    let one = Arc::ptr_eq(&cqs[0], &cqs[1]);
    for cq in cqs.iter().take(if one { 1 } else { 2 }) {
        // In this order it is never without a user.
        cq.attach(to);
        cq.detach(&from);
    }
    Ok(())
}

/// Takes an endpoint's queue pair away from it, if it has one.
fn detach_locked(qps: &Qps, endpoint: &Arc<Endpoint>) -> Result<(), i32> {
    let num = endpoint.lock().qp.as_ref().map(|qp| qp.init.num);
    match num.and_then(|num| qps.get(&num)) {
        // SAFETY: it is in the map, which is locked.
        Some(qp) => unsafe {
            move_to(
                ptr::with_exposed_provenance_mut(*qp),
                &endpoint_without_id()?,
            )
        },
        None => Ok(()),
    }
}

/// Takes an endpoint's queue pair away from it, if it has one: the program has taken it out of its
/// id.
pub fn detach(endpoint: &Arc<Endpoint>) -> Result<(), i32> {
    detach_locked(&lock(&QPS), endpoint)
}

/// Gives an endpoint the queue pair of that number. The program moves it from state to state.
pub fn attach_named(endpoint: &Arc<Endpoint>, num: u32) -> Result<(), i32> {
    let qps = lock(&QPS);
    let qp: *mut QpHandle = match qps.get(&num) {
        Some(qp) => ptr::with_exposed_provenance_mut(*qp),
        None => return Err(libc::EINVAL),
    };
    attach_locked(&qps, endpoint, qp)?;
    endpoint.lock().program_moves_qp = true;
    Ok(())
}

/// Gives an endpoint the queue pair that its id has. Connection management moves it from state to
/// state.
///
/// # Safety
/// The queue pair is one of this library's.
pub unsafe fn attach(endpoint: &Arc<Endpoint>, qp: *mut ibv_qp) -> Result<(), i32> {
    attach_locked(&lock(&QPS), endpoint, qp.cast())?;
    endpoint.lock().program_moves_qp = false;
    Ok(())
}

fn attach_locked(qps: &Qps, endpoint: &Arc<Endpoint>, qp: *mut QpHandle) -> Result<(), i32> {
    // SAFETY: as of the callers: it has not been destroyed, and is not while the map is locked.
    if ptr::eq(unsafe { QpParts::of(qp) }.endpoint(), &**endpoint) {
        return Ok(());
    }
    detach_locked(qps, endpoint)?;
    // SAFETY: as above.
    unsafe { move_to(qp, endpoint) }
}

/// Brings the queue pair of an endpoint, whose program left that to connection management, to where
/// it can be connected from: as the kernel does it, from RESET or INIT and from no other state. It gets
/// the rights that connection management gives, and the timeout that `ibv_query_qp` tells.
pub fn initialize(state: &mut State, ack_timeout: u8) -> Result<(), i32> {
    use ibv_qp_state::{IBV_QPS_INIT, IBV_QPS_RESET};
    if state.program_moves_qp {
        return Ok(());
    }
    let Some(qp) = &mut state.qp else {
        return Ok(());
    };
    // It has five bits, and the kernel notices that here.
    if ack_timeout > 31 || !matches!(qp.state, IBV_QPS_RESET | IBV_QPS_INIT) {
        return Err(libc::EINVAL);
    }
    qp.state = IBV_QPS_INIT;
    qp.access = every_access();
    qp.timeout = ack_timeout;
    Ok(())
}
