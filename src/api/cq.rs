//! Completions.

use super::{call, export, get, out};
use crate::core::Error;
use crate::verbs::ibv_wc;
use std::ffi::c_int;

/// A completion queue, of a connection or a shared RQ.
pub type rpma_cq = crate::core::Cq;

/// Gives the descriptor that is readable when rpma_cq_wait() has an event.
///
/// If the CQs of a connection share their channel, it is that of
/// rpma_conn_get_compl_fd(). It is the library's, not to be read or closed; it may be
/// made non-blocking.
///
/// Thread-safe.
///
/// Errors, with `*fd` as it was:
/// - RPMA_E_INVAL: `cq` or `fd` is NULL
///
/// # Example
///
/// Waiting for a second at most:
///
/// ```c
/// int fd;
/// ret = rpma_cq_get_fd(cq, &fd);
/// if (!ret) {
///     struct pollfd wanted = {fd, POLLIN, 0};
///     if (poll(&wanted, 1, 1000) == 1)
///         ret = rpma_cq_wait(cq);
/// }
/// ```
pub unsafe extern "C" fn rpma_cq_get_fd(cq: *const rpma_cq, fd: *mut c_int) -> c_int {
    call(|| {
        // SAFETY: NULL or a CQ; NULL or valid to write to.
        let (cq, fd) = unsafe { (get(cq)?, out(fd)?) };
        fd.write(cq.fd());
        Ok(())
    })
}

/// Waits for an event of a CQ.
///
/// The event is acknowledged. Collect all completions by rpma_cq_get_wc() then. It may be
/// that there are none left.
///
/// The function returns at once with an error where the descriptor, which
/// rpma_cq_get_fd() gives, is non-blocking and there is no event.
///
/// Thread-safe as far as ibv_get_cq_event(3) is.
///
/// Errors:
/// - RPMA_E_INVAL: `cq` is NULL
/// - RPMA_E_NO_COMPLETION: there is no event, or a signal came first: wait until the
///   descriptor is readable, or call it again
/// - RPMA_E_PROVIDER: ibv_req_notify_cq(3) failed, for the reason that the log gives
/// - RPMA_E_SHARED_CHANNEL: the channel is shared: use rpma_conn_wait()
///
/// # Example
///
/// See rpma_cq_get_wc().
pub unsafe extern "C" fn rpma_cq_wait(cq: *mut rpma_cq) -> c_int {
    // SAFETY: NULL or a CQ.
    call(|| unsafe { get(cq) }?.wait())
}

/// Takes completions from a CQ, without waiting, as ibv_poll_cq(3) does.
///
/// `wc` is an array of `num_entries` elements, which is how many are taken at most.
///
/// `num_entries_got` is how many there were; it may be NULL if `num_entries` is 1. Of a
/// completion whose status is not IBV_WC_SUCCESS only `wr_id`, `status`, `qp_num` and
/// `vendor_err` are valid: the operation has failed, and the connection is broken.
///
/// Thread-safe as far as ibv_poll_cq(3) is.
///
/// Errors:
/// - RPMA_E_INVAL: `cq` or `wc` is NULL, `num_entries` is less than 1, or it is more than
///   1 and `num_entries_got` is NULL
/// - RPMA_E_NO_COMPLETION: there is none: wait by rpma_cq_wait() or rpma_conn_wait(), or
///   ask again
/// - RPMA_E_PROVIDER: ibv_poll_cq(3) failed, for the reason that the log gives
/// - RPMA_E_UNKNOWN: ibv_poll_cq(3) returned more than it was asked for
///
/// # Example
///
/// ```c
/// struct ibv_wc wc[8];
/// int got;
/// ret = rpma_conn_get_cq(conn, &cq);
/// if (!ret)
///     ret = rpma_cq_wait(cq);
/// while (!ret && !(ret = rpma_cq_get_wc(cq, 8, wc, &got)))
///     for (int i = 0; i < got; i++)
///         printf("%#" PRIx64 ": %s\n", wc[i].wr_id,
///                ibv_wc_status_str(wc[i].status));
/// if (ret == RPMA_E_NO_COMPLETION)
///     ret = 0; /* All have been taken. */
/// ```
pub unsafe extern "C" fn rpma_cq_get_wc(
    cq: *mut rpma_cq,
    num_entries: c_int,
    wc: *mut ibv_wc,
    num_entries_got: *mut c_int,
) -> c_int {
    // One completion at a time is how most programs go about it.
    if num_entries != 1 {
        // SAFETY: the arguments are those of this function.
        return unsafe { get_many(cq, num_entries, wc, num_entries_got) };
    }
    call(|| {
        // SAFETY: NULL or a CQ.
        let cq = unsafe { get(cq) }?;
        if wc.is_null() {
            return Err(Error::INVAL);
        }
        // SAFETY: room for one; NULL or valid to write to.
        unsafe {
            let got = cq.poll(1, wc)?;
            if !num_entries_got.is_null() {
                num_entries_got.write(got);
            }
        }
        Ok(())
    })
}

/// As [`rpma_cq_get_wc`], for any number of completions but one.
#[inline(never)]
unsafe fn get_many(
    cq: *mut rpma_cq,
    num_entries: c_int,
    wc: *mut ibv_wc,
    num_entries_got: *mut c_int,
) -> c_int {
    call(|| {
        // SAFETY: NULL or a CQ; NULL or valid to write to.
        let (cq, got) = unsafe { (get(cq)?, out(num_entries_got)?) };
        if wc.is_null() || num_entries < 1 {
            return Err(Error::INVAL);
        }
        // SAFETY: an array of that many.
        got.write(unsafe { cq.poll(num_entries, wc) }?);
        Ok(())
    })
}

export!(rpma_cq_get_fd rpma_cq_wait rpma_cq_get_wc);
