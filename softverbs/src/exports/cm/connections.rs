//! Connections: listened for, asked for, accepted, ended.

use super::association::qp_of;
use super::id::id_of;
use super::wait::complete;
use crate::driver::cm::ConnParam;
use crate::exports::returns::minus_one;
use crate::objects::qp::{every_access, qps};
use crate::proto::frames::Private;
use rdma_sys::*;
use std::ffi::{c_int, c_void};

/// # Safety
/// The id is one of this library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let cm = id_of(id).cm();
        let result = cm.bind_to_listen();
        if result.is_ok() {
            // Once it listens, another thread may get a request and destroy the id.
            id_of(id).note_addresses(cm.addresses());
        }
        minus_one(result.and_then(|()| cm.listen(backlog)))
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
        let (cm, sync) = (id_of(id).cm(), id_of(id).is_sync());
        let result = conn_param(param, Private::REQUEST).and_then(|param| {
            let param = param.unwrap_or(ConnParam::CONNECT);
            let qps = qps();
            cm.connect(&param, qp_of(id_of(id), param.qp_num, &qps)?)
        });
        drop(cm);
        complete(id, sync, result)
    }
}

/// # Safety
/// The id is one of this library's, the parameters can be read or are NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let (cm, sync) = (id_of(id).cm(), id_of(id).is_sync());
        let timeout = id_of(id).ack_timeout();
        let result = conn_param(param, Private::MAX).and_then(|param| {
            let qp_num = param.map_or(0, |param| param.qp_num);
            {
                let qps = qps();
                cm.join(&qp_of(id_of(id), qp_num, &qps)?)?;
            }
            cm.initialize_qp(every_access(), timeout)?;
            cm.accept(param.as_ref())
        });
        if result.is_err() {
            // The other side is not left waiting. Where there is none, nothing is to be done.
            let _ = cm.reject(Private::NONE);
        }
        drop(cm);
        complete(id, sync, result)
    }
}

/// # Safety
/// The id is one of this library's, and so many bytes of data can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let cm = id_of(id).cm();
        minus_one(private(data, len, Private::REJECT).and_then(|private| cm.reject(private)))
    }
}

/// # Safety
/// The id is one of this library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: as the caller promises.
    let cm = unsafe { id_of(id) }.cm();
    minus_one(cm.establish())
}

/// # Safety
/// The id is one of this library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let (cm, sync) = (id_of(id).cm(), id_of(id).is_sync());
        let result = cm.disconnect();
        drop(cm);
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
