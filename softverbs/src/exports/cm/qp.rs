//! Queue pairs of ids.

use super::id::id_of;
use crate::errno::errno_of;
use crate::exports::cq::{
    ibv_create_comp_channel, ibv_create_cq, ibv_destroy_comp_channel, ibv_destroy_cq,
};
use crate::exports::qp::{create_qp, ibv_destroy_qp, qp_attr, to_init};
use crate::exports::returns::minus_one;
use crate::objects::qp::{every_access, qps};
use rdma_sys::*;
use std::ffi::c_int;
use std::io;
use std::ptr;

/// Makes the completion queues that the program did not bring.
///
/// # Safety
/// The id's device is open.
unsafe fn create_cqs(id: *mut rdma_cm_id, send: u32, recv: u32) -> Result<(), i32> {
    let failed = || errno_of(&io::Error::last_os_error());
    // SAFETY: the id's device is open.
    unsafe {
        let (verbs, context) = ((*id).verbs, id.cast());
        let make = |size: u32| {
            let channel = ibv_create_comp_channel(verbs);
            if channel.is_null() {
                return Err(failed());
            }
            let size = size.clamp(1, c_int::MAX as u32) as c_int;
            let cq = ibv_create_cq(verbs, size, context, channel, 0);
            if cq.is_null() {
                let error = failed();
                ibv_destroy_comp_channel(channel);
                return Err(error);
            }
            Ok((channel, cq))
        };
        if recv > 0 && (*id).recv_cq.is_null() {
            ((*id).recv_cq_channel, (*id).recv_cq) = make(recv)?;
        }
        if send > 0 && (*id).send_cq.is_null() {
            ((*id).send_cq_channel, (*id).send_cq) = make(send)?;
        }
    }
    Ok(())
}

/// Destroys the completion queues of the id and their channels: those that were made for the program,
/// and those that it has put there itself, which may be one for both directions, and without a channel.
///
/// # Safety
/// The id is one of this library's; its queues and channels are open or NULL.
unsafe fn destroy_cqs(id: *mut rdma_cm_id) {
    // SAFETY: the id is of this library; its queues and channels are open or NULL.
    unsafe {
        let take = |at: *mut *mut ibv_cq| std::mem::replace(&mut *at, ptr::null_mut());
        let (recv, send) = (take(&raw mut (*id).recv_cq), take(&raw mut (*id).send_cq));
        for cq in distinct(recv, send) {
            ibv_destroy_cq(cq);
        }
        let take = |at: *mut *mut ibv_comp_channel| std::mem::replace(&mut *at, ptr::null_mut());
        let recv = take(&raw mut (*id).recv_cq_channel);
        for channel in distinct(recv, take(&raw mut (*id).send_cq_channel)) {
            ibv_destroy_comp_channel(channel);
        }
    }
}

/// Those of both that are not NULL, each once.
fn distinct<T>(recv: *mut T, send: *mut T) -> impl Iterator<Item = *mut T> {
    let send = (send != recv).then_some(send);
    [Some(recv), send]
        .into_iter()
        .flatten()
        .filter(|pointer| !pointer.is_null())
}

/// # Safety
/// The id is one of this library's, the domain is open or NULL, and the attributes' objects are.
unsafe fn create_id_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: &mut ibv_qp_init_attr,
    ops: Option<u64>,
) -> Result<(), i32> {
    // SAFETY: as the caller promises.
    unsafe {
        if !(*id).qp.is_null() || (*id).verbs.is_null() || (*id).qp_type != attr.qp_type {
            return Err(libc::EINVAL);
        }
        let pd = if pd.is_null() { (*id).pd } else { pd };
        if pd.is_null() || (*pd).context != (*id).verbs {
            return Err(libc::EINVAL);
        }
        if attr.srq.is_null() {
            attr.srq = (*id).srq;
        }
        let send = if attr.send_cq.is_null() {
            attr.cap.max_send_wr.max(1)
        } else {
            0
        };
        let recv = if attr.recv_cq.is_null() {
            attr.cap.max_recv_wr.max(1)
        } else {
            0
        };
        let result = create_cqs(id, send, recv).and_then(|()| {
            if attr.send_cq.is_null() {
                attr.send_cq = (*id).send_cq;
            }
            if attr.recv_cq.is_null() {
                attr.recv_cq = (*id).recv_cq;
            }
            create_qp(pd, attr, ops)
        });
        match result {
            Ok(qp) => {
                to_init(qp);
                (*id).qp = qp;
                (*id).pd = pd;
                Ok(())
            }
            Err(error) => {
                destroy_cqs(id);
                Err(error)
            }
        }
    }
}

/// # Safety
/// The id is one of this library's, the domain is open or NULL, the attributes can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: as the caller promises.
    minus_one(unsafe { create_id_qp(id, pd, &mut *attr, None) })
}

/// # Safety
/// The id is one of this library's, the attributes can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_init_attr_ex,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let attr = &mut *attr;
        let (mut basic, pd, ops) = match qp_attr(attr) {
            Ok(attr) => attr,
            Err(error) => return minus_one(Err(error)),
        };
        let result = create_id_qp(id, pd, &mut basic, ops);
        attr.cap = basic.cap;
        minus_one(result)
    }
}

/// # Safety
/// The id is one of this library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    // SAFETY: as the caller promises.
    unsafe {
        if !(*id).qp.is_null() {
            ibv_destroy_qp((*id).qp);
            (*id).qp = ptr::null_mut();
        }
        destroy_cqs(id);
    }
}

/// How a program that moves its queue pair itself is to do so.
///
/// # Safety
/// The id is one of this library's; what is pointed to can be read and written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let cm = id_of(id).cm();
        let (mine, theirs) = cm.params().unwrap_or_default();
        let peer = cm.peer();
        let attr = &mut *attr;
        if attr.qp_state != ibv_qp_state::IBV_QPS_INIT && peer.is_none() {
            return minus_one(Err(libc::EINVAL));
        }
        let m = |bits: &[ibv_qp_attr_mask]| bits.iter().fold(0, |all, bit| all | bit.0 as c_int);
        type M = ibv_qp_attr_mask;
        match attr.qp_state {
            ibv_qp_state::IBV_QPS_INIT => {
                attr.pkey_index = 0;
                attr.port_num = 1;
                attr.qp_access_flags = every_access();
                *mask = m(&[
                    M::IBV_QP_STATE,
                    M::IBV_QP_ACCESS_FLAGS,
                    M::IBV_QP_PKEY_INDEX,
                    M::IBV_QP_PORT,
                ]);
            }
            ibv_qp_state::IBV_QPS_RTR => {
                attr.path_mtu = ibv_mtu::IBV_MTU_4096;
                attr.dest_qp_num = theirs.qp_num;
                attr.rq_psn = 0;
                attr.max_dest_rd_atomic = mine.responder_resources;
                attr.min_rnr_timer = 0;
                attr.ah_attr.port_num = 1;
                attr.ah_attr.is_global = 1;
                attr.ah_attr.grh.dgid = (*id).route.addr.addr.ibaddr.dgid;
                *mask = m(&[
                    M::IBV_QP_STATE,
                    M::IBV_QP_AV,
                    M::IBV_QP_PATH_MTU,
                    M::IBV_QP_DEST_QPN,
                    M::IBV_QP_RQ_PSN,
                    M::IBV_QP_MAX_DEST_RD_ATOMIC,
                    M::IBV_QP_MIN_RNR_TIMER,
                ]);
                if let Some(peer) = peer {
                    qps().note_reachable(cm.token, peer);
                }
            }
            ibv_qp_state::IBV_QPS_RTS => {
                attr.timeout = id_of(id).ack_timeout();
                attr.retry_cnt = mine.retry_count;
                attr.rnr_retry = theirs.rnr_retry_count.min(7);
                attr.sq_psn = 0;
                attr.max_rd_atomic = mine.initiator_depth.min(theirs.responder_resources);
                *mask = m(&[
                    M::IBV_QP_STATE,
                    M::IBV_QP_TIMEOUT,
                    M::IBV_QP_RETRY_CNT,
                    M::IBV_QP_RNR_RETRY,
                    M::IBV_QP_SQ_PSN,
                    M::IBV_QP_MAX_QP_RD_ATOMIC,
                ]);
            }
            _ => return minus_one(Err(libc::EINVAL)),
        }
    }
    0
}
