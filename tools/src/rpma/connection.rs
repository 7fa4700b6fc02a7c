//! Connections, how they come about, and what is done over them.

use super::memory::copy;
use super::{Peer, PeerConfig, Region, Remote, Result, c_string, check, sys};
use rdma_sys::{ibv_wc, ibv_wc_flags, ibv_wc_opcode, ibv_wc_status, ibv_wc_status_str};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::time::Duration;

/// How a connection is made.
#[derive(Debug)]
pub struct ConnectionConfig(*mut sys::rpma_conn_cfg);

impl ConnectionConfig {
    /// A connection with room for that many requests that send, and that receive, and for the
    /// completions of all of them.
    pub fn new(sends: u32, receives: u32) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: room for a handle.
        check("rpma_conn_cfg_new", unsafe {
            sys::rpma_conn_cfg_new(&raw mut raw)
        })?;
        let made = Self(raw);
        // SAFETY: the configuration is one.
        unsafe {
            check(
                "rpma_conn_cfg_set_sq_size",
                sys::rpma_conn_cfg_set_sq_size(raw, sends),
            )?;
            check(
                "rpma_conn_cfg_set_rq_size",
                sys::rpma_conn_cfg_set_rq_size(raw, receives),
            )?;
            let all = sends.saturating_add(receives);
            check(
                "rpma_conn_cfg_set_cq_size",
                sys::rpma_conn_cfg_set_cq_size(raw, all),
            )?;
        }
        Ok(made)
    }
}

impl Drop for ConnectionConfig {
    fn drop(&mut self) {
        // SAFETY: it is not used any more.
        let code = unsafe { sys::rpma_conn_cfg_delete(&raw mut self.0) };
        let _ = check("rpma_conn_cfg_delete", code);
    }
}

/// Where requests of other sides come in.
#[derive(Debug)]
pub struct Endpoint {
    raw: *mut sys::rpma_ep,
    peer: Peer,
}

impl Endpoint {
    pub fn listen(peer: &Peer, address: &str, port: &str) -> Result<Self> {
        let (address, port) = (c_string(address), c_string(port));
        let mut raw = ptr::null_mut();
        // SAFETY: the arguments are what the function asks for.
        let code = unsafe {
            sys::rpma_ep_listen(peer.raw(), address.as_ptr(), port.as_ptr(), &raw mut raw)
        };
        check("rpma_ep_listen", code).map(|()| Self {
            raw,
            peer: peer.clone(),
        })
    }

    /// Readable when there is a request, or another event in its place.
    pub fn fd(&self) -> Result<BorrowedFd<'_>> {
        let mut fd = -1;
        // SAFETY: the endpoint is one.
        check("rpma_ep_get_fd", unsafe {
            sys::rpma_ep_get_fd(self.raw, &raw mut fd)
        })?;
        // SAFETY: the descriptor is open as long as the endpoint is there.
        Ok(unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Takes the next request; waits for it.
    pub fn next(&self, config: &ConnectionConfig) -> Result<Request> {
        let mut raw = ptr::null_mut();
        // SAFETY: endpoint and configuration are such.
        let code = unsafe { sys::rpma_ep_next_conn_req(self.raw, config.0, &raw mut raw) };
        check("rpma_ep_next_conn_req", code).map(|()| Request {
            raw,
            peer: self.peer.clone(),
        })
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // SAFETY: it is not used any more.
        let code = unsafe { sys::rpma_ep_shutdown(&raw mut self.raw) };
        let _ = check("rpma_ep_shutdown", code);
    }
}

/// A connection that one side has asked for. Dropped, it is rejected or given up.
#[derive(Debug)]
pub struct Request {
    raw: *mut sys::rpma_conn_req,
    peer: Peer,
}

impl Request {
    pub fn new(peer: &Peer, address: &str, port: &str, config: &ConnectionConfig) -> Result<Self> {
        let (address, port) = (c_string(address), c_string(port));
        let mut raw = ptr::null_mut();
        // SAFETY: the arguments are what the function asks for.
        let code = unsafe {
            let (address, port) = (address.as_ptr(), port.as_ptr());
            sys::rpma_conn_req_new(peer.raw(), address, port, config.0, &raw mut raw)
        };
        check("rpma_conn_req_new", code).map(|()| Self {
            raw,
            peer: peer.clone(),
        })
    }

    /// What the other side has sent along with its request.
    pub fn private_data(&self) -> Result<Vec<u8>> {
        let mut data = sys::rpma_conn_private_data {
            ptr: ptr::null_mut(),
            len: 0,
        };
        // SAFETY: the request is one.
        let code = unsafe { sys::rpma_conn_req_get_private_data(self.raw, &raw mut data) };
        check("rpma_conn_req_get_private_data", code)?;
        // SAFETY: the data lives as long as the request.
        Ok(unsafe { copy(data.ptr, data.len.into()) })
    }

    /// Posts a buffer for a message, before the other side can send one.
    pub fn receive(&self, region: &Region, offset: usize, len: usize, context: u64) -> Result<()> {
        // SAFETY: request and region are such.
        let code = unsafe {
            sys::rpma_conn_req_recv(self.raw, region.raw(), offset, len, as_pointer(context))
        };
        check("rpma_conn_req_recv", code)
    }

    /// Sends the request or accepts it.
    pub fn connect(mut self, private_data: &[u8]) -> Result<Connection> {
        let mut data = private_data.to_vec();
        let data = sys::rpma_conn_private_data {
            ptr: data.as_mut_ptr().cast(),
            len: u8::try_from(data.len()).unwrap_or(u8::MAX),
        };
        let data = if data.len == 0 {
            ptr::null()
        } else {
            &raw const data
        };
        let mut raw = ptr::null_mut();
        // SAFETY: the request is one, and the data is as long as is said.
        let code = unsafe { sys::rpma_conn_req_connect(&raw mut self.raw, data, &raw mut raw) };
        check("rpma_conn_req_connect", code)?;
        let mut queue = ptr::null_mut();
        // SAFETY: the connection is one.
        let code = unsafe { sys::rpma_conn_get_cq(raw, &raw mut queue) };
        let connection = Connection {
            raw,
            queue,
            _peer: self.peer.clone(),
        };
        check("rpma_conn_get_cq", code).map(|()| connection)
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        // SAFETY: it is not used any more; one that was connected is NULL.
        let code = unsafe { sys::rpma_conn_req_delete(&raw mut self.raw) };
        let _ = check("rpma_conn_req_delete", code);
    }
}

/// What became of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    Established,
    Closed,
    Lost,
    Rejected,
    Unreachable,
}

/// How far a flush goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlushType {
    Visibility,
    Persistent,
}

/// What has completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A message has come.
    Receive,
    /// A write with a number has come.
    ReceiveWrite,
    /// Something that this side has begun.
    Other,
}

/// That something has completed.
#[derive(Debug, Clone, Copy)]
pub struct Completion {
    pub context: u64,
    status: ibv_wc_status::Type,
    pub kind: Kind,
    /// The length of what has come.
    pub len: u32,
    pub imm: Option<u32>,
}

impl Completion {
    fn new(wc: &ibv_wc) -> Self {
        let kind = match wc.opcode {
            ibv_wc_opcode::IBV_WC_RECV => Kind::Receive,
            ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM => Kind::ReceiveWrite,
            _ => Kind::Other,
        };
        let with_imm = wc.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
        // SAFETY: either member is a number.
        let imm = unsafe { wc.imm_data_invalidated_rkey_union.imm_data };
        let imm = with_imm.then(|| u32::from_be(imm));
        Self {
            context: wc.wr_id,
            status: wc.status,
            kind,
            len: wc.byte_len,
            imm,
        }
    }

    /// Why it failed, if it did: of the rest only the context is valid then.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        (self.status != ibv_wc_status::IBV_WC_SUCCESS).then(|| {
            // SAFETY: it takes any number, and gives a static string.
            let text = unsafe { CStr::from_ptr(ibv_wc_status_str(self.status)) };
            text.to_string_lossy().into_owned()
        })
    }
}

/// A connection. Dropped, it is closed.
#[derive(Debug)]
pub struct Connection {
    raw: *mut sys::rpma_conn,
    queue: *mut sys::rpma_cq,
    _peer: Peer,
}

/// How many completions are taken at once.
const BATCH: usize = 16;
const ALWAYS: c_int = sys::RPMA_F_COMPLETION_ALWAYS;
const ON_ERROR: c_int = sys::RPMA_F_COMPLETION_ON_ERROR;

fn flags(signalled: bool) -> c_int {
    if signalled { ALWAYS } else { ON_ERROR }
}

/// The library passes a number through as a pointer.
fn as_pointer(context: u64) -> *const c_void {
    ptr::without_provenance(context as usize)
}

impl Connection {
    /// Readable when there is an event.
    pub fn event_fd(&self) -> Result<BorrowedFd<'_>> {
        let mut fd = -1;
        // SAFETY: the connection is one.
        let code = unsafe { sys::rpma_conn_get_event_fd(self.raw, &raw mut fd) };
        check("rpma_conn_get_event_fd", code)?;
        // SAFETY: the descriptor is open as long as the connection is there.
        Ok(unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Readable when completions may have come since [`Self::acknowledge`] was called last.
    pub fn completion_fd(&self) -> Result<BorrowedFd<'_>> {
        let mut fd = -1;
        // SAFETY: the queue lives as long as the connection.
        check("rpma_cq_get_fd", unsafe {
            sys::rpma_cq_get_fd(self.queue, &raw mut fd)
        })?;
        // SAFETY: the descriptor is open as long as the connection is there.
        Ok(unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Takes the event that made [`Self::completion_fd`] readable, and asks for the next one.
    pub fn acknowledge(&self) -> Result<()> {
        // SAFETY: the queue lives as long as the connection.
        match unsafe { sys::rpma_cq_wait(self.queue) } {
            sys::RPMA_E_NO_COMPLETION => Ok(()),
            code => check("rpma_cq_wait", code),
        }
    }

    /// The next event, None if there is none within that time or a signal comes first.
    pub fn event(&self, limit: Duration) -> Result<Option<Event>> {
        if !readable(&[self.event_fd()?], limit)[0] {
            return Ok(None);
        }
        let mut event = sys::RPMA_CONN_UNDEFINED;
        // SAFETY: the connection is one.
        let code = unsafe { sys::rpma_conn_next_event(self.raw, &raw mut event) };
        if code == sys::RPMA_E_NO_EVENT {
            return Ok(None);
        }
        check("rpma_conn_next_event", code)?;
        Ok(Some(match event {
            sys::RPMA_CONN_ESTABLISHED => Event::Established,
            sys::RPMA_CONN_CLOSED => Event::Closed,
            sys::RPMA_CONN_REJECTED => Event::Rejected,
            sys::RPMA_CONN_UNREACHABLE => Event::Unreachable,
            _ => Event::Lost,
        }))
    }

    pub fn apply(&self, config: &PeerConfig) -> Result<()> {
        // SAFETY: connection and configuration are such.
        let code = unsafe { sys::rpma_conn_apply_remote_peer_cfg(self.raw, config.raw()) };
        check("rpma_conn_apply_remote_peer_cfg", code)
    }

    /// Takes what has completed, into `completions` and in place of what is there; at most 16 at once.
    #[inline]
    pub fn completions(&self, completions: &mut Vec<Completion>) -> Result<()> {
        completions.clear();
        let mut entries = [const { MaybeUninit::<ibv_wc>::uninit() }; BATCH];
        let mut got: c_int = 0;
        let room = BATCH as c_int;
        // SAFETY: there is room for that many.
        let code = unsafe {
            sys::rpma_cq_get_wc(self.queue, room, entries.as_mut_ptr().cast(), &raw mut got)
        };
        if code == sys::RPMA_E_NO_COMPLETION {
            return Ok(());
        }
        check("rpma_cq_get_wc", code)?;
        let got = usize::try_from(got).unwrap_or(0).min(BATCH);
        // SAFETY: that many were written.
        completions.extend(
            entries[..got]
                .iter()
                .map(|wc| Completion::new(unsafe { wc.assume_init_ref() })),
        );
        Ok(())
    }

    /// Reads `len` bytes of the other side.
    pub fn read(
        &self,
        (to, to_offset): (&Region, usize),
        (from, from_offset): (&Remote, usize),
        len: usize,
        signalled: bool,
        context: u64,
    ) -> Result<()> {
        // SAFETY: connection and regions are such; the device checks the ranges.
        let code = unsafe {
            let (to, from) = (to.raw(), from.raw());
            let (flags, context) = (flags(signalled), as_pointer(context));
            sys::rpma_read(
                self.raw,
                to,
                to_offset,
                from,
                from_offset,
                len,
                flags,
                context,
            )
        };
        check("rpma_read", code)
    }

    /// Writes `len` bytes to the other side.
    pub fn write(
        &self,
        (to, to_offset): (&Remote, usize),
        (from, from_offset): (&Region, usize),
        len: usize,
        signalled: bool,
        context: u64,
    ) -> Result<()> {
        // SAFETY: as for `read`.
        let code = unsafe {
            let (to, from) = (to.raw(), from.raw());
            let (flags, context) = (flags(signalled), as_pointer(context));
            sys::rpma_write(
                self.raw,
                to,
                to_offset,
                from,
                from_offset,
                len,
                flags,
                context,
            )
        };
        check("rpma_write", code)
    }

    /// Writes, and completes a receive of the other side with a number.
    pub fn write_with_imm(
        &self,
        (to, to_offset): (&Remote, usize),
        (from, from_offset): (&Region, usize),
        len: usize,
        imm: u32,
        signalled: bool,
        context: u64,
    ) -> Result<()> {
        // SAFETY: as for `read`.
        let code = unsafe {
            sys::rpma_write_with_imm(
                self.raw,
                to.raw(),
                to_offset,
                from.raw(),
                from_offset,
                len,
                flags(signalled),
                imm,
                as_pointer(context),
            )
        };
        check("rpma_write_with_imm", code)
    }

    /// Writes 8 bytes at once.
    pub fn atomic_write(
        &self,
        (to, offset): (&Remote, usize),
        bytes: [u8; 8],
        signalled: bool,
        context: u64,
    ) -> Result<()> {
        // SAFETY: as for `read`; the bytes are copied.
        let code = unsafe {
            let (flags, context) = (flags(signalled), as_pointer(context));
            let bytes = bytes.as_ptr().cast();
            sys::rpma_atomic_write(self.raw, to.raw(), offset, bytes, flags, context)
        };
        check("rpma_atomic_write", code)
    }

    /// Flushes `len` bytes of the other side.
    pub fn flush(
        &self,
        (to, offset): (&Remote, usize),
        len: usize,
        how: FlushType,
        signalled: bool,
        context: u64,
    ) -> Result<()> {
        let how = match how {
            FlushType::Visibility => sys::RPMA_FLUSH_TYPE_VISIBILITY,
            FlushType::Persistent => sys::RPMA_FLUSH_TYPE_PERSISTENT,
        };
        // SAFETY: as for `read`.
        let code = unsafe {
            let (flags, context) = (flags(signalled), as_pointer(context));
            sys::rpma_flush(self.raw, to.raw(), offset, len, how, flags, context)
        };
        check("rpma_flush", code)
    }

    /// Sends a message of `len` bytes, with a number if there is one.
    pub fn send(
        &self,
        (from, offset): (&Region, usize),
        len: usize,
        imm: Option<u32>,
        signalled: bool,
        context: u64,
    ) -> Result<()> {
        let (flags, context) = (flags(signalled), as_pointer(context));
        // SAFETY: as for `read`.
        unsafe {
            match imm {
                None => {
                    let code = sys::rpma_send(self.raw, from.raw(), offset, len, flags, context);
                    check("rpma_send", code)
                }
                Some(imm) => {
                    let from = from.raw();
                    let code =
                        sys::rpma_send_with_imm(self.raw, from, offset, len, flags, imm, context);
                    check("rpma_send_with_imm", code)
                }
            }
        }
    }

    /// Posts a buffer of `len` bytes for a message.
    pub fn receive(&self, (to, offset): (&Region, usize), len: usize, context: u64) -> Result<()> {
        // SAFETY: as for `read`.
        let code = unsafe { sys::rpma_recv(self.raw, to.raw(), offset, len, as_pointer(context)) };
        check("rpma_recv", code)
    }

    /// Writes nothing, which completes if the other side is there, and needs nothing of its program.
    pub fn probe(&self, context: u64) -> Result<()> {
        let (none, nothing) = (ptr::null_mut(), ptr::null());
        // SAFETY: without regions, and with nothing to write, it is an operation too.
        let code = unsafe {
            sys::rpma_write(
                self.raw,
                none,
                0,
                nothing,
                0,
                0,
                ALWAYS,
                as_pointer(context),
            )
        };
        check("rpma_write", code)
    }

    pub fn disconnect(&self) -> Result<()> {
        // SAFETY: the connection is one.
        check("rpma_conn_disconnect", unsafe {
            sys::rpma_conn_disconnect(self.raw)
        })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // It may be closed already, or never have been made.
        let _ = self.disconnect();
        // SAFETY: it is not used any more.
        let code = unsafe { sys::rpma_conn_delete(&raw mut self.raw) };
        let _ = check("rpma_conn_delete", code);
    }
}

/// Which of these descriptors can be read; waits for one until then or until a signal comes.
#[must_use]
pub fn readable(fds: &[BorrowedFd<'_>], limit: Duration) -> Vec<bool> {
    let mut polled: Vec<_> = fds
        .iter()
        .map(|fd| PollFd::new(fd, PollFlags::IN))
        .collect();
    let limit = Timespec {
        tv_sec: limit.as_secs().min(3600) as i64,
        tv_nsec: limit.subsec_nanos().into(),
    };
    // A signal counts as if the time were up.
    let _ = poll(&mut polled, Some(&limit));
    polled.iter().map(|fd| !fd.revents().is_empty()).collect()
}
