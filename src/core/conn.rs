use super::error::{Steps, failed, room};
use super::events::{ack_failed, create_event_channel, next_event};
use super::flush::{Flush, RAW_LEN};
use super::link::Link;
use super::setting::Setting;
use super::{Cq, Error, LocalRange, Peer, PeerCfg, PrivateData, RemoteRange, Result, Usage};
use crate::verbs::{
    CmId, Errno, EventChannel, EventKind, FlushKind, NativeAtomicWrite, NativeFlush, RecvWr,
    Remote, SendFlags, SendOp, SendWr, Sge,
};
use std::ffi::c_int;

/// What became of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Event {
    Established,
    Closed,
    Lost,
    Rejected,
    Unreachable,
}

impl Event {
    pub fn text(self) -> &'static str {
        match self {
            Event::Established => "Connection established",
            Event::Closed => "Connection closed",
            Event::Lost => "Connection lost",
            Event::Rejected => "Connection rejected",
            Event::Unreachable => "Connection unreachable",
        }
    }
}

/// When an operation reports that it is done.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Completion {
    OnError,
    Always,
}

impl Completion {
    #[inline(always)]
    fn flags(self) -> SendFlags {
        match self {
            Completion::OnError => SendFlags::empty(),
            Completion::Always => SendFlags::SIGNALED,
        }
    }
}

/// How far a flush goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum FlushType {
    Persistent,
    Visibility,
}

/// A connection, in order of release.
///
/// What posts, polls or reads takes `&self` and needs no more care than verbs do.
pub struct Conn {
    flush: Flush,
    /// None where the QP does not have it.
    atomic_write: Option<NativeAtomicWrite>,
    link: Link,
    events: EventChannel,
    /// Whether the other side's memory keeps what a device writes into it.
    direct_write_to_pmem: Setting<bool>,
}

impl Conn {
    /// Makes a connection of a request's link, which is released where that fails;
    /// `accepted`: the other side takes it for made.
    pub fn new(link: Link, peer: &Peer, accepted: bool) -> Result<Box<Self>> {
        let give_up = |id: &CmId| {
            if accepted {
                let _ = id.disconnect();
            }
        };
        let events = create_event_channel().inspect_err(|_| give_up(&link.id))?;
        if let Err(errno) = link.id.migrate(Some(&events)) {
            let error = failed!("rdma_migrate_id")(errno);
            drop(events);
            give_up(&link.id);
            return Err(error);
        }
        let made = room().and_then(|room| {
            let (atomic_write, flush) = link.qp.native();
            Ok((room, atomic_write, Flush::new(flush, peer)?))
        });
        match made {
            Ok((room, atomic_write, flush)) => {
                let conn = Conn {
                    flush,
                    atomic_write,
                    link,
                    events,
                    direct_write_to_pmem: Setting::new(false),
                };
                Ok(Box::write(room, conn))
            }
            Err(error) => {
                // A channel must not go before the ids on it. An accepted one stays,
                // since without a channel to disconnect is to wait for the other side.
                let stays = accepted || link.id.migrate(None).is_err();
                let stays = stays.then_some(events);
                give_up(&link.id);
                drop(link);
                drop(stays);
                Err(error)
            }
        }
    }

    pub fn send_request(&self, private_data: Option<&[u8]>) -> Result<()> {
        let sent = self.link.id.connect(private_data);
        let len = private_data.map_or(0, <[u8]>::len);
        sent.map_err(failed!("rdma_connect", "private_data_len={len}"))
    }

    pub fn delete(self) -> Result<()> {
        let mut steps = Steps::new();
        steps.then(self.flush.delete());
        let result = self.link.delete(steps);
        drop(self.events);
        result
    }

    pub fn disconnect(&self) -> Result<()> {
        self.link
            .id
            .disconnect()
            .map_err(failed!("rdma_disconnect"))?;
        log!(Notice, "Requesting for disconnection");
        Ok(())
    }

    pub fn event_fd(&self) -> c_int {
        self.events.fd()
    }

    /// Takes the next event. What came with the establishment is kept, unless
    /// something came with the request.
    pub fn next_event(&self) -> Result<Event> {
        let event = next_event(&self.events)?;
        let (kind, name) = (event.kind(), event.name());
        let mut data = self.link.data();
        if kind == EventKind::Established && data.is_none() {
            *data = PrivateData::copy(event.private_data())?;
        }
        let acked = event.close();
        if acked.is_err() {
            *data = None;
        }
        // Before anything is logged: a log function may ask for the data.
        drop(data);
        acked.map_err(ack_failed)?;
        let event = match kind {
            EventKind::Established => Event::Established,
            EventKind::ConnectError | EventKind::DeviceRemoval => Event::Lost,
            EventKind::Disconnected | EventKind::TimewaitExit => Event::Closed,
            EventKind::Rejected => Event::Rejected,
            EventKind::Unreachable => Event::Unreachable,
            EventKind::ConnectRequest | EventKind::Other => {
                log!(Warning, "unexpected event received: {name}");
                return Err(Error::UNKNOWN);
            }
        };
        log!(Notice, "{}", event.text());
        Ok(event)
    }

    /// Shows the data of the other side, empty if there is none.
    pub fn private_data<T>(&self, look: impl FnOnce(&[u8]) -> T) -> T {
        self.link.private_data(look)
    }

    pub fn apply_remote_peer_cfg(&self, cfg: &PeerCfg) {
        let supported = cfg.direct_write_to_pmem();
        self.direct_write_to_pmem.set(supported);
    }

    pub fn qp_num(&self) -> u32 {
        self.link.qp.num()
    }

    pub fn cq(&self) -> &Cq {
        &self.link.cq
    }

    pub fn rcq(&self) -> Option<&Cq> {
        self.link.rcq.as_ref()
    }

    /// The descriptor of the channel that both queues share.
    pub fn compl_fd(&self) -> Result<c_int> {
        let channel = self.link.channel.as_ref();
        channel.map(|c| c.fd()).ok_or(Error::NOT_SHARED_CHNL)
    }

    /// Waits for the next event of the shared channel and acknowledges it; which
    /// queue it was of, and whether that is the one for receives. The caller asks
    /// the queue for another.
    pub fn wait(&self) -> Result<(&Cq, bool)> {
        let channel = self.link.channel.as_ref();
        let channel = channel.ok_or(Error::NOT_SHARED_CHNL)?;
        let event = channel.next_event().map_err(|_| Error::NO_COMPLETION)?;
        let (cq, is_rcq) = match self.rcq() {
            _ if self.cq().verbs().raised(&event) => (self.cq(), false),
            Some(rcq) if rcq.verbs().raised(&event) => (rcq, true),
            _ => {
                log!(
                    Error,
                    "ibv_get_cq_event() gave a CQ that is none of this connection"
                );
                return Err(Error::UNKNOWN);
            }
        };
        cq.verbs().ack_event();
        Ok((cq, is_rcq))
    }

    /// # Safety
    /// The local memory may be written until the read has completed.
    #[inline(always)]
    pub unsafe fn read(
        &self,
        dst: LocalRange,
        src: RemoteRange,
        completion: Completion,
        wr_id: u64,
    ) -> Result<()> {
        let op = SendOp::Read(src.remote());
        // SAFETY: passed on to the caller.
        unsafe { self.post(completion.flags(), op, Some(dst.sge()), wr_id) }
    }

    /// Reads 0 bytes.
    pub fn read_nothing(&self, completion: Completion, wr_id: u64) -> Result<()> {
        self.post_nothing(SendOp::Read(NOWHERE), completion, wr_id)
    }

    /// # Safety
    /// The local memory stays as it is until the write has completed.
    #[inline(always)]
    pub unsafe fn write(
        &self,
        dst: RemoteRange,
        src: LocalRange,
        imm: Option<u32>,
        completion: Completion,
        wr_id: u64,
    ) -> Result<()> {
        let op = write_op(dst.remote(), imm);
        // SAFETY: passed on to the caller.
        unsafe { self.post(completion.flags(), op, Some(src.sge()), wr_id) }
    }

    /// Writes 0 bytes.
    pub fn write_nothing(
        &self,
        imm: Option<u32>,
        completion: Completion,
        wr_id: u64,
    ) -> Result<()> {
        self.post_nothing(write_op(NOWHERE, imm), completion, wr_id)
    }

    /// # Safety
    /// The local memory stays as it is until the send has completed.
    #[inline(always)]
    pub unsafe fn send(
        &self,
        src: LocalRange,
        imm: Option<u32>,
        completion: Completion,
        wr_id: u64,
    ) -> Result<()> {
        let op = imm.map_or(SendOp::Send, SendOp::SendImm);
        // SAFETY: passed on to the caller.
        unsafe { self.post(completion.flags(), op, Some(src.sge()), wr_id) }
    }

    /// Sends a message of 0 bytes.
    pub fn send_nothing(&self, imm: Option<u32>, completion: Completion, wr_id: u64) -> Result<()> {
        let op = imm.map_or(SendOp::Send, SendOp::SendImm);
        self.post_nothing(op, completion, wr_id)
    }

    /// # Safety
    /// The memory may be written until the receive has completed.
    #[inline(always)]
    pub unsafe fn recv(&self, dst: Option<LocalRange>, wr_id: u64) -> Result<()> {
        let sge = dst.map(|dst| dst.sge());
        // SAFETY: passed on to the caller.
        let posted = unsafe { self.link.qp.post_recv(&mut RecvWr::new(wr_id, sge)) };
        posted.map_err(recv_failed)
    }

    /// Writes 8 bytes at once, natively or by a write that waits for the reads
    /// before it.
    #[inline(always)]
    pub fn atomic_write(
        &self,
        dst: RemoteRange,
        src: &[u8; 8],
        completion: Completion,
        wr_id: u64,
    ) -> Result<()> {
        let (flags, remote) = (completion.flags(), dst.remote());
        if let Some(native) = &self.atomic_write {
            // SAFETY: the QP is the connection's.
            return unsafe { atomic_write_native(native, remote, src, flags, wr_id) };
        }
        let flags = flags | SendFlags::INLINE | SendFlags::FENCE;
        let sge = Sge {
            addr: src.as_ptr() as u64,
            length: src.len() as u32,
            lkey: 0,
        };
        // SAFETY: inline data is copied by the call.
        unsafe { self.post(flags, SendOp::Write(remote), Some(sge), wr_id) }
    }

    #[inline(always)]
    pub fn flush(
        &self,
        dst: RemoteRange,
        len: usize,
        flush_type: FlushType,
        completion: Completion,
        wr_id: u64,
    ) -> Result<()> {
        let usage = dst.mr.usage();
        let (needed, kind) = match flush_type {
            FlushType::Persistent => (Usage::FLUSH_TYPE_PERSISTENT, FlushKind::Persistent),
            FlushType::Visibility => (Usage::FLUSH_TYPE_VISIBILITY, FlushKind::Global),
        };
        let told = flush_type == FlushType::Visibility || self.direct_write_to_pmem.get();
        if !told || !usage.contains(needed) {
            return Err(flush_refused(told, flush_type));
        }
        let flags = completion.flags();
        let buffer = match &self.flush {
            // SAFETY: the QP is the connection's.
            Flush::Native(native) => unsafe {
                return flush_native(native, dst.remote(), len, kind, flags, wr_id);
            },
            Flush::Raw(buffer) => buffer,
        };
        // A read of 8 bytes must not leave the region; behind its end it stays one for
        // the device to refuse.
        let len = match dst.rest() {
            1..RAW_LEN => dst.rest(),
            _ => RAW_LEN,
        };
        let sge = Some(buffer.sge(len));
        // SAFETY: the buffer is for nothing but this.
        unsafe { self.post(flags, SendOp::Read(dst.remote()), sge, wr_id) }
    }

    /// # Safety
    /// As [`crate::verbs::Qp::post_send`].
    #[inline(always)]
    unsafe fn post(
        &self,
        flags: SendFlags,
        op: SendOp,
        sge: Option<Sge>,
        wr_id: u64,
    ) -> Result<()> {
        let mut wr = SendWr::new(wr_id, flags, op, sge);
        // SAFETY: passed on to the caller.
        let posted = unsafe { self.link.qp.post_send(&mut wr) };
        posted.map_err(|errno| send_failed(&wr, errno))
    }

    fn post_nothing(&self, op: SendOp, completion: Completion, wr_id: u64) -> Result<()> {
        // SAFETY: no memory is given away.
        unsafe { self.post(completion.flags(), op, None, wr_id) }
    }
}

#[inline(always)]
fn write_op(remote: Remote, imm: Option<u32>) -> SendOp {
    match imm {
        None => SendOp::Write(remote),
        Some(imm) => SendOp::WriteImm(remote, imm),
    }
}

// Out of line, since keeping what is passed across the three calls of a native operation
// is nothing that the other way should pay for.

/// # Safety
/// The QP is alive.
#[inline(never)]
unsafe fn atomic_write_native(
    native: &NativeAtomicWrite,
    remote: Remote,
    src: &[u8; 8],
    flags: SendFlags,
    wr_id: u64,
) -> Result<()> {
    // SAFETY: passed on to the caller.
    let posted = unsafe { native.post(wr_id, flags, remote, src) };
    posted.map_err(|errno| complete_failed("ATOMIC_WRITE", errno))
}

/// # Safety
/// The QP is alive.
#[inline(never)]
unsafe fn flush_native(
    native: &NativeFlush,
    remote: Remote,
    len: usize,
    kind: FlushKind,
    flags: SendFlags,
    wr_id: u64,
) -> Result<()> {
    // SAFETY: passed on to the caller.
    let posted = unsafe { native.post(wr_id, flags, remote, len, kind) };
    posted.map_err(|errno| complete_failed("FLUSH", errno))
}

// Out of line, so that an operation that works does not carry them along; where to name what was
// posted would cost one that works, it is not named.

#[cold]
#[inline(never)]
fn send_failed(wr: &SendWr, errno: Errno) -> Error {
    failed!("ibv_post_send", "{wr}")(errno)
}

#[cold]
#[inline(never)]
fn recv_failed(errno: Errno) -> Error {
    failed!("ibv_post_recv")(errno)
}

#[cold]
#[inline(never)]
fn complete_failed(opcode: &str, errno: Errno) -> Error {
    failed!("ibv_wr_complete", "opcode=IBV_WR_{opcode}")(errno)
}

#[cold]
#[inline(never)]
fn flush_refused(told: bool, flush_type: FlushType) -> Error {
    match (told, flush_type) {
        (false, _) => log!(
            Error,
            "rpma_flush(RPMA_FLUSH_TYPE_PERSISTENT) is refused: the other side has not said that \
             what a device writes there is persistent: if it is, let it say so by \
             rpma_peer_cfg_set_direct_write_to_pmem(), send the configuration's descriptor over, \
             and call rpma_conn_apply_remote_peer_cfg() here"
        ),
        (true, FlushType::Persistent) => {
            log!(
                Error,
                "rpma_flush(RPMA_FLUSH_TYPE_PERSISTENT) is refused: the other side has registered \
                 the memory without RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT"
            );
        }
        (true, FlushType::Visibility) => {
            log!(
                Error,
                "rpma_flush(RPMA_FLUSH_TYPE_VISIBILITY) is refused: the other side has registered \
                 the memory without RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY"
            );
        }
    }
    Error::NOSUPP
}

/// The remote side of an operation that moves nothing.
const NOWHERE: Remote = Remote { addr: 0, rkey: 0 };
