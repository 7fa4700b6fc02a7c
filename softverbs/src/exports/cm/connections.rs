//! Connections: listened for, asked for, accepted, ended.

use super::association::attach_qp;
use super::id::id_of;
use super::wait::complete;
use crate::exports::qp_place::initialize;
use crate::exports::returns::minus_one;
use crate::frames::Private;
use crate::objects::endpoint::ConnParam;
use rdma_sys::*;
use std::ffi::{c_int, c_void};

/// # Safety
/// The id is one of this library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let endpoint = id_of(id).endpoint();
        let mut state = endpoint.lock();
        // Nothing comes for it before it is unlocked.
        let result = state.listen(&endpoint, backlog);
        if result.is_ok() {
            id_of(id).note_addresses(&state);
        }
        minus_one(result)
    }
}

/// # Safety
/// The parameters are NULL or can be read, and so their data.
unsafe fn conn_param(param: *const rdma_conn_param, max: usize) -> Result<Option<ConnParam>, i32> {
    // SAFETY: as the caller promises.
    unsafe {
        let Some(param) = param.as_ref() else {
            return Ok(None);
        };
        let private = private(param.private_data, param.private_data_len, max)?;
        let param = ConnParam {
            private,
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            flow_control: param.flow_control,
            retry_count: param.retry_count,
            rnr_retry_count: param.rnr_retry_count,
            srq: param.srq,
            qp_num: param.qp_num,
        };
        if !param.is_valid() {
            return Err(libc::EINVAL);
        }
        Ok(Some(param))
    }
}

/// # Safety
/// So many bytes of data can be read, or it is NULL.
unsafe fn private(data: *const c_void, len: u8, max: usize) -> Result<Private, i32> {
    if len == 0 {
        return Ok(Private::NONE);
    }
    if data.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: as the caller promises.
    let data = unsafe { std::slice::from_raw_parts(data.cast(), len.into()) };
    Private::new(data, max).ok_or(libc::EINVAL)
}

/// # Safety
/// The id is one of this library's, the parameters can be read or are NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let (endpoint, sync) = (id_of(id).endpoint(), id_of(id).is_sync());
        let result = conn_param(param, Private::REQUEST).and_then(|param| {
            let param = param.unwrap_or(ConnParam {
                private: Private::NONE,
                responder_resources: u8::MAX,
                initiator_depth: u8::MAX,
                flow_control: 1,
                retry_count: 7,
                rnr_retry_count: 7,
                srq: 0,
                qp_num: 0,
            });
            attach_qp(id_of(id), &endpoint, param.qp_num)?;
            endpoint.lock().connect(&endpoint, &param)
        });
        drop(endpoint);
        complete(id, sync, result)
    }
}

/// # Safety
/// The id is one of this library's, the parameters can be read or are NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let (endpoint, sync) = (id_of(id).endpoint(), id_of(id).is_sync());
        let timeout = id_of(id).ack_timeout();
        let result = conn_param(param, Private::MAX).and_then(|param| {
            attach_qp(id_of(id), &endpoint, param.map_or(0, |param| param.qp_num))?;
            let mut state = endpoint.lock();
            initialize(&mut state, timeout)?;
            state.accept(&endpoint, param.as_ref())
        });
        if result.is_err() {
            // The other side is not left waiting. Where there is none, nothing is to be done.
            let _ = endpoint.lock().reject(&endpoint, Private::NONE);
        }
        drop(endpoint);
        complete(id, sync, result)
    }
}

/// # Safety
/// The id is one of this library's, and so many bytes of data can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let endpoint = id_of(id).endpoint();
        minus_one(
            private(data, len, Private::REJECT)
                .and_then(|private| endpoint.lock().reject(&endpoint, private)),
        )
    }
}

/// # Safety
/// The id is one of this library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: as the caller promises.
    let endpoint = unsafe { id_of(id) }.endpoint();
    let result = endpoint.lock().establish(&endpoint);
    minus_one(result)
}

/// # Safety
/// The id is one of this library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let (endpoint, sync) = (id_of(id).endpoint(), id_of(id).is_sync());
        let result = endpoint.lock().disconnect(&endpoint);
        drop(endpoint);
        complete(id, sync, result)
    }
}

/// Tells of an event that a queue pair had before its connection was known to be made, which
/// cannot happen here.
///
/// # Safety
/// None: the arguments are not looked at.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_notify(_: *mut rdma_cm_id, _: ibv_event_type) -> c_int {
    0
}
