//! Connections.

use super::cq::rpma_cq;
use super::peer_cfg::rpma_peer_cfg;
use super::{CEnum, call, delete, export, get, out};
use crate::core::{Conn, Event};
use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::ptr;

/// A connection.
pub type rpma_conn = crate::core::Conn;

/// What became of a connection.
#[repr(C)]
pub enum rpma_conn_event {
    /// No event.
    RPMA_CONN_UNDEFINED = -1,
    /// The connection is made.
    RPMA_CONN_ESTABLISHED,
    /// The connection is closed, by either side: disconnect, unless this side did, and
    /// delete it.
    RPMA_CONN_CLOSED,
    /// The connection is broken: delete it.
    RPMA_CONN_LOST,
    /// The other side has rejected the request: delete the connection.
    RPMA_CONN_REJECTED,
    /// The other side can't be reached: delete the connection, and try again later.
    RPMA_CONN_UNREACHABLE,
}

/// Data that goes with a connection request or its answer.
#[repr(C)]
pub struct rpma_conn_private_data {
    /// Where it is.
    pub ptr: *mut c_void,
    /// How many bytes it is long.
    pub len: u8,
}

impl rpma_conn_private_data {
    /// None if there are none.
    ///
    /// # Safety
    /// `ptr` is NULL or points to `len` bytes.
    pub(super) unsafe fn bytes(&self) -> Option<&[u8]> {
        if self.ptr.is_null() || self.len == 0 {
            return None;
        }
        // SAFETY: vouched for.
        Some(unsafe { std::slice::from_raw_parts(self.ptr.cast(), self.len.into()) })
    }
}

impl From<&[u8]> for rpma_conn_private_data {
    fn from(bytes: &[u8]) -> Self {
        rpma_conn_private_data {
            ptr: match bytes {
                [] => ptr::null_mut(),
                bytes => bytes.as_ptr().cast_mut().cast(),
            },
            len: u8::try_from(bytes.len()).unwrap_or(u8::MAX),
        }
    }
}

/// Gives the descriptor that is readable when rpma_conn_next_event() has an event.
///
/// It is the library's, not to be read or closed; it may be made non-blocking.
///
/// Thread-safe.
///
/// Errors, with `*fd` as it was:
/// - RPMA_E_INVAL: `conn` or `fd` is NULL
///
/// # Example
///
/// For epoll(7), with the connection to be found again:
///
/// ```c
/// int fd;
/// struct epoll_event wanted = {.events = EPOLLIN, .data.ptr = conn};
/// ret = rpma_conn_get_event_fd(conn, &fd);
/// if (!ret) {
///     fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
///     if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &wanted))
///         perror("epoll_ctl");
/// }
/// ```
pub unsafe extern "C" fn rpma_conn_get_event_fd(conn: *const rpma_conn, fd: *mut c_int) -> c_int {
    call(|| {
        // SAFETY: NULL or a connection; NULL or valid to write to.
        let (conn, fd) = unsafe { (get(conn)?, out(fd)?) };
        fd.write(conn.event_fd());
        Ok(())
    })
}

/// Takes the next event of a connection.
///
/// `*event` is one of `enum rpma_conn_event`.
///
/// It waits for one unless the descriptor is non-blocking: see rpma_conn_get_event_fd().
///
/// Not thread-safe on one connection.
///
/// Errors, with `*event` as it was:
/// - RPMA_E_INVAL: `conn` or `event` is NULL
/// - RPMA_E_NO_EVENT: there is no event: wait until the descriptor is readable
/// - RPMA_E_NOMEM: out of memory for the private data of the other side: the event is
///   taken, so delete the connection and begin again
/// - RPMA_E_PROVIDER: rdma_get_cm_event(3) or rdma_ack_cm_event(3) failed, for the reason
///   that the log gives. "Interrupted system call" is a signal: call it again.
/// - RPMA_E_UNKNOWN: the event is none of those that a connection can have; the log names
///   it
///
/// # Example
///
/// Closing a connection, whichever side began:
///
/// ```c
/// enum rpma_conn_event event = RPMA_CONN_UNDEFINED;
/// ret = rpma_conn_disconnect(conn);
/// while (!ret && event != RPMA_CONN_CLOSED && event != RPMA_CONN_LOST)
///     ret = rpma_conn_next_event(conn, &event);
/// rpma_conn_delete(&conn);
/// ```
pub unsafe extern "C" fn rpma_conn_next_event(
    conn: *mut rpma_conn,
    event: *mut CEnum<rpma_conn_event>,
) -> c_int {
    call(|| {
        // SAFETY: NULL or a connection; NULL or valid to write to.
        let (conn, event) = unsafe { (get(conn)?, out(event)?) };
        let next = match conn.next_event()? {
            Event::Established => rpma_conn_event::RPMA_CONN_ESTABLISHED,
            Event::Closed => rpma_conn_event::RPMA_CONN_CLOSED,
            Event::Lost => rpma_conn_event::RPMA_CONN_LOST,
            Event::Rejected => rpma_conn_event::RPMA_CONN_REJECTED,
            Event::Unreachable => rpma_conn_event::RPMA_CONN_UNREACHABLE,
        };
        event.write(CEnum(next as c_int, PhantomData));
        Ok(())
    })
}

/// Gives the private data of the other side of a connection.
///
/// It is a `struct rpma_conn_private_data`: pointer NULL and length 0 if there is none.
/// The data lives as long as the connection. It may be longer than what was sent, with
/// zeros at the end.
///
/// An accepting side has it from the request on, a requesting side once the connection is
/// established. Anyone on the network may have changed it: it is no secure way to tell
/// anything.
///
/// Thread-safe.
///
/// Errors, with `*pdata` as it was:
/// - RPMA_E_INVAL: `conn` or `pdata` is NULL
///
/// # Example
///
/// See rpma_mr_remote_from_descriptor().
pub unsafe extern "C" fn rpma_conn_get_private_data(
    conn: *const rpma_conn,
    pdata: *mut rpma_conn_private_data,
) -> c_int {
    call(|| {
        // SAFETY: NULL or a connection; NULL or valid to write to.
        let (conn, pdata) = unsafe { (get(conn)?, out(pdata)?) };
        pdata.write(conn.private_data(|data| data.into()));
        Ok(())
    })
}

/// Lets a connection know what the other side has told about itself.
///
/// Without it no flush to persistence is possible. The configuration stays the caller's,
/// and may be released at once.
///
/// Thread-safe.
///
/// Errors:
/// - RPMA_E_INVAL: `conn` or `pcfg` is NULL
///
/// # Example
///
/// See rpma_peer_cfg_from_descriptor().
pub unsafe extern "C" fn rpma_conn_apply_remote_peer_cfg(
    conn: *mut rpma_conn,
    pcfg: *const rpma_peer_cfg,
) -> c_int {
    call(|| {
        // SAFETY: NULL or a connection; NULL or a configuration.
        let (conn, cfg) = unsafe { (get(conn)?, get(pcfg)?) };
        conn.apply_remote_peer_cfg(cfg);
        Ok(())
    })
}

/// Gives the number of the QP of a connection, which is `qp_num` of its completions.
///
/// Thread-safe.
///
/// Errors, with `*qp_num` as it was:
/// - RPMA_E_INVAL: `conn` or `qp_num` is NULL
///
/// # Example
///
/// To tell whose a completion is that came from the CQ of a shared RQ:
///
/// ```c
/// uint32_t qp_num;
/// struct ibv_wc wc;
/// ret = rpma_conn_get_qp_num(conn, &qp_num);
/// if (!ret)
///     ret = rpma_cq_get_wc(cq, 1, &wc, NULL);
/// if (!ret && wc.qp_num == qp_num)
///     puts("it is this connection's");
/// ```
pub unsafe extern "C" fn rpma_conn_get_qp_num(conn: *const rpma_conn, qp_num: *mut u32) -> c_int {
    call(|| {
        // SAFETY: NULL or a connection; NULL or valid to write to.
        let (conn, qp_num) = unsafe { (get(conn)?, out(qp_num)?) };
        qp_num.write(conn.qp_num());
        Ok(())
    })
}

/// Gives the CQ of a connection: that of all its operations, or of all but receives if
/// those have a CQ of their own.
///
/// It lives as long as the connection and is not the caller's.
///
/// Thread-safe.
///
/// Errors, with `*cq_ptr` as it was:
/// - RPMA_E_INVAL: `conn` or `cq_ptr` is NULL
///
/// # Example
///
/// See rpma_cq_get_wc().
pub unsafe extern "C" fn rpma_conn_get_cq(
    conn: *const rpma_conn,
    cq_ptr: *mut *mut rpma_cq,
) -> c_int {
    call(|| {
        // SAFETY: NULL or a connection; NULL or valid to write to.
        let (conn, cq) = unsafe { (get(conn)?, out(cq_ptr)?) };
        cq.write(ptr::from_ref(conn.cq()).cast_mut());
        Ok(())
    })
}

/// Gives the CQ for receives alone, NULL if the connection has none.
///
/// It lives as long as the connection and is not the caller's.
///
/// Thread-safe.
///
/// Errors, with `*rcq_ptr` as it was:
/// - RPMA_E_INVAL: `conn` or `rcq_ptr` is NULL
///
/// # Example
///
/// ```c
/// struct rpma_cq *rcq;
/// ret = rpma_conn_get_rcq(conn, &rcq);
/// if (!ret && !rcq) /* Receives complete with all the rest. */
///     ret = rpma_conn_get_cq(conn, &rcq);
/// ```
pub unsafe extern "C" fn rpma_conn_get_rcq(
    conn: *const rpma_conn,
    rcq_ptr: *mut *mut rpma_cq,
) -> c_int {
    call(|| {
        // SAFETY: NULL or a connection; NULL or valid to write to.
        let (conn, rcq) = unsafe { (get(conn)?, out(rcq_ptr)?) };
        rcq.write(
            conn.rcq()
                .map_or(ptr::null_mut(), |cq| ptr::from_ref(cq).cast_mut()),
        );
        Ok(())
    })
}

/// Gives the descriptor that is readable when rpma_conn_wait() has an event.
///
/// There is one if the CQs of the connection share a channel. It is the library's, not to
/// be read or closed; it may be made non-blocking.
///
/// Thread-safe.
///
/// Errors, with `*fd` as it was:
/// - RPMA_E_INVAL: `conn` or `fd` is NULL
/// - RPMA_E_NOT_SHARED_CHNL: the channel is not shared: use rpma_cq_get_fd(), or ask for
///   one by rpma_conn_cfg_set_compl_channel()
///
/// # Example
///
/// ```c
/// int fd;
/// ret = rpma_conn_get_compl_fd(conn, &fd);
/// if (!ret)
///     fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
/// ```
pub unsafe extern "C" fn rpma_conn_get_compl_fd(conn: *const rpma_conn, fd: *mut c_int) -> c_int {
    call(|| {
        // SAFETY: NULL or a connection; NULL or valid to write to.
        let (conn, fd) = unsafe { (get(conn)?, out(fd)?) };
        fd.write(conn.compl_fd()?);
        Ok(())
    })
}

/// Waits for an event of either CQ of a connection, on the channel that they share.
///
/// The event is acknowledged. Collect all completions of `*cq` by rpma_cq_get_wc() then.
/// It may be that there are none left.
///
/// `is_rcq` tells whether `*cq` is that for receives alone, and may be NULL. `flags` are
/// ignored. The function returns at once with an error where the descriptor, which
/// rpma_conn_get_compl_fd() gives, is non-blocking and there is no event.
///
/// Thread-safe as far as ibv_get_cq_event(3) is.
///
/// Errors:
/// - RPMA_E_INVAL: `conn` or `cq` is NULL
/// - RPMA_E_NOT_SHARED_CHNL: the channel is not shared: use rpma_cq_wait(), or ask for
///   one by rpma_conn_cfg_set_compl_channel()
/// - RPMA_E_NO_COMPLETION: there is no event, or a signal came first: wait until the
///   descriptor is readable, or call it again
/// - RPMA_E_UNKNOWN: the event is of neither CQ
/// - RPMA_E_PROVIDER: ibv_req_notify_cq(3) failed, for the reason that the log gives;
///   `*cq` is NULL then
///
/// # Example
///
/// ```c
/// bool is_rcq;
/// struct ibv_wc wc;
/// ret = rpma_conn_wait(conn, 0, &cq, &is_rcq);
/// while (!ret && !(ret = rpma_cq_get_wc(cq, 1, &wc, NULL)))
///     printf("%s: %s\n", is_rcq ? "received" : "done",
///            ibv_wc_status_str(wc.status));
/// ```
pub unsafe extern "C" fn rpma_conn_wait(
    conn: *mut rpma_conn,
    flags: c_int,
    cq: *mut *mut rpma_cq,
    is_rcq: *mut bool,
) -> c_int {
    let _ = flags;
    call(|| {
        // SAFETY: NULL or a connection; NULL or valid to write to, both of them.
        let (conn, cq, is_rcq) = unsafe { (get(conn)?, out(cq)?, out(is_rcq).ok()) };
        let (raised, of_rcq) = conn.wait()?;
        if let Some(is_rcq) = is_rcq {
            is_rcq.write(of_rcq);
        }
        let asked = raised.req_notify();
        cq.write(match asked {
            Ok(()) => ptr::from_ref(raised).cast_mut(),
            Err(_) => ptr::null_mut(),
        });
        asked
    })
}

/// Closes a connection.
///
/// It is also how a side agrees that the other one has closed it.
///
/// RPMA_CONN_CLOSED of rpma_conn_next_event() tells when it is done. Operations under way
/// complete with IBV_WC_WR_FLUSH_ERR.
///
/// Thread-safe on separate connections.
///
/// Errors:
/// - RPMA_E_INVAL: `conn` is NULL
/// - RPMA_E_PROVIDER: rdma_disconnect(3) failed, as it does where there was no
///   connection; delete it all the same
///
/// # Example
///
/// See rpma_conn_next_event().
pub unsafe extern "C" fn rpma_conn_disconnect(conn: *mut rpma_conn) -> c_int {
    // SAFETY: NULL or a connection.
    call(|| unsafe { get(conn) }?.disconnect())
}

/// Releases a connection with its CQs.
///
/// `*conn_ptr` is set to NULL; one that is NULL already is fine.
///
/// Close it before by rpma_conn_disconnect(), if it was established and is not lost. Its
/// CQs and private data are gone with it; regions and a shared RQ stay.
///
/// Thread-safe on separate connections.
///
/// Errors:
/// - RPMA_E_INVAL: `conn_ptr` is NULL, or munmap(2) failed
/// - RPMA_E_PROVIDER: ibv_dereg_mr(3), ibv_destroy_cq(3), ibv_destroy_comp_channel(3) or
///   rdma_destroy_id(3) failed, for the reason that the log gives; the connection is gone
///   all the same
///
/// # Example
///
/// See rpma_conn_next_event().
pub unsafe extern "C" fn rpma_conn_delete(conn_ptr: *mut *mut rpma_conn) -> c_int {
    // SAFETY: NULL, or points to NULL or to a connection of rpma_conn_req_connect().
    unsafe { delete(conn_ptr, Conn::delete) }
}

export!(
    rpma_conn_get_event_fd
    rpma_conn_next_event
    rpma_conn_get_private_data
    rpma_conn_apply_remote_peer_cfg
    rpma_conn_get_qp_num
    rpma_conn_get_cq
    rpma_conn_get_rcq
    rpma_conn_get_compl_fd
    rpma_conn_wait
    rpma_conn_disconnect
    rpma_conn_delete
);
