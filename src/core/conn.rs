use super::conn_req::Link;
use super::ep::{ack, create_event_channel, next_event};
use super::error::failed;
use super::flush::{Flush, RAW_LEN};
use super::{Cq, Error, LocalRange, Peer, PeerCfg, PrivateData, RemoteRange, Result, Usage};
use crate::verbs::{
    CmId, EventChannel, EventKind, FlushKind, RecvWr, Remote, SendFlags, SendOp, Sge,
};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

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
    #[inline]
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
    link: Link,
    events: EventChannel,
    /// Whether the other side's memory keeps what a device writes into it.
    direct_write_to_pmem: AtomicBool,
}

impl Conn {
    /// Makes a connection of a request's link; `give_up` is called for its id
    /// before it is released where that fails.
    pub fn new(mut link: Link, peer: &Peer, give_up: impl FnOnce(&CmId)) -> Result<Self> {
        let events = match create_event_channel() {
            Ok(events) => events,
            Err(error) => {
                give_up(&link.id);
                return Err(error);
            }
        };
        let migrated = link
            .id
            .migrate(&events)
            .map_err(failed!("rdma_migrate_id()"));
        match migrated.and_then(|()| Flush::new(&mut link.qp, peer)) {
            Ok(flush) => Ok(Conn {
                flush,
                link,
                events,
                direct_write_to_pmem: AtomicBool::new(false),
            }),
            Err(error) => {
                give_up(&link.id);
                // Before the channel that its id has moved to.
                drop(link);
                Err(error)
            }
        }
    }

    pub fn send_request(&self, private_data: Option<&[u8]>) -> Result<()> {
        let sent = self.link.id.connect(private_data);
        sent.map_err(failed!("rdma_connect()"))
    }

    pub fn delete(self) -> Result<()> {
        let flush = self.flush.delete();
        let link = self.link.delete().done();
        drop(self.events);
        flush.and(link)
    }

    pub fn disconnect(&self) -> Result<()> {
        self.link
            .id
            .disconnect()
            .map_err(failed!("rdma_disconnect()"))?;
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
        let data = match kind {
            EventKind::Established if self.link.data.get().is_none() => {
                PrivateData::copy(event.private_data())?
            }
            _ => None,
        };
        ack(event)?;
        if let Some(data) = data {
            let _ = self.link.data.set(data);
        }
        let event = match kind {
            EventKind::Established => Event::Established,
            EventKind::ConnectError | EventKind::DeviceRemoval => Event::Lost,
            EventKind::Disconnected | EventKind::TimewaitExit => Event::Closed,
            EventKind::Rejected => Event::Rejected,
            EventKind::Unreachable => Event::Unreachable,
            EventKind::ConnectRequest | EventKind::Other => {
                log!(Warning, "unexpected event received: {name}");
                return Err(Error::Unknown);
            }
        };
        log!(Notice, "{}", event.text());
        Ok(event)
    }

    pub fn private_data(&self) -> Option<&PrivateData> {
        self.link.data.get()
    }

    pub fn apply_remote_peer_cfg(&self, cfg: &PeerCfg) {
        let supported = cfg.direct_write_to_pmem();
        self.direct_write_to_pmem.store(supported, Relaxed);
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
        channel.map(|c| c.fd()).ok_or(Error::NotSharedChannel)
    }

    /// Waits for the next event of the shared channel and acknowledges it; which
    /// queue it was of, and whether that is the one for receives. The caller asks
    /// the queue for another.
    pub fn wait(&self) -> Result<(&Cq, bool)> {
        let channel = self.link.channel.as_ref();
        let channel = channel.ok_or(Error::NotSharedChannel)?;
        let event = channel.next_event().map_err(|_| Error::NoCompletion)?;
        let (cq, is_rcq) = match self.rcq() {
            _ if self.cq().verbs().raised(&event) => (self.cq(), false),
            Some(rcq) if rcq.verbs().raised(&event) => (rcq, true),
            _ => {
                log!(Error, "ibv_get_cq_event() returned an unknown CQ");
                return Err(Error::Unknown);
            }
        };
        cq.verbs().ack_event();
        Ok((cq, is_rcq))
    }

    /// # Safety
    /// The local memory may be written until the read has completed.
    #[inline]
    pub unsafe fn read(
        &self,
        transfer: Option<(LocalRange, RemoteRange)>,
        completion: Completion,
        wr_id: u64,
    ) -> Result<()> {
        let (sge, remote) = split(transfer);
        // SAFETY: passed on to the caller.
        unsafe { self.post(completion.flags(), SendOp::Read(remote), sge, wr_id) }
    }

    /// # Safety
    /// The local memory stays as it is until the write has completed.
    #[inline]
    pub unsafe fn write(
        &self,
        transfer: Option<(LocalRange, RemoteRange)>,
        imm: Option<u32>,
        completion: Completion,
        wr_id: u64,
    ) -> Result<()> {
        let (sge, remote) = split(transfer);
        let op = match imm {
            None => SendOp::Write(remote),
            Some(imm) => SendOp::WriteImm(remote, imm),
        };
        // SAFETY: passed on to the caller.
        unsafe { self.post(completion.flags(), op, sge, wr_id) }
    }

    /// # Safety
    /// The local memory stays as it is until the send has completed.
    #[inline]
    pub unsafe fn send(
        &self,
        src: Option<LocalRange>,
        imm: Option<u32>,
        completion: Completion,
        wr_id: u64,
    ) -> Result<()> {
        let sge = src.map(|src| src.sge());
        let op = imm.map_or(SendOp::Send, SendOp::SendImm);
        // SAFETY: passed on to the caller.
        unsafe { self.post(completion.flags(), op, sge, wr_id) }
    }

    /// # Safety
    /// The memory may be written until the receive has completed.
    #[inline]
    pub unsafe fn recv(&self, dst: Option<LocalRange>, wr_id: u64) -> Result<()> {
        let sge = dst.map(|dst| dst.sge());
        // SAFETY: passed on to the caller.
        unsafe { self.link.qp.post_recv(RecvWr { wr_id, sge }) }
            .map_err(failed!("ibv_post_recv(wr_id={wr_id:#x})"))
    }

    /// Writes 8 bytes at once, natively or by a write that waits for the reads
    /// before it.
    #[inline]
    pub fn atomic_write(
        &self,
        dst: RemoteRange,
        src: &[u8; 8],
        completion: Completion,
        wr_id: u64,
    ) -> Result<()> {
        let (flags, remote) = (completion.flags(), dst.remote());
        if let Some(native) = self.link.qp.atomic_write() {
            return native
                .post(wr_id, flags, remote, src)
                .map_err(failed!("ibv_wr_complete()"));
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

    #[inline]
    pub fn flush(
        &self,
        dst: RemoteRange,
        len: usize,
        flush_type: FlushType,
        completion: Completion,
        wr_id: u64,
    ) -> Result<()> {
        let usage = dst.mr.usage();
        match flush_type {
            FlushType::Persistent if !self.direct_write_to_pmem.load(Relaxed) => {
                log!(
                    Error,
                    "the connection does not support a flush to persistence: check whether the \
                     remote node supports direct write to persistent memory"
                );
                return Err(Error::NoSupp);
            }
            FlushType::Persistent if !usage.contains(Usage::FLUSH_TYPE_PERSISTENT) => {
                log!(
                    Error,
                    "the remote memory does not support a flush to persistence"
                );
                return Err(Error::NoSupp);
            }
            FlushType::Visibility if !usage.contains(Usage::FLUSH_TYPE_VISIBILITY) => {
                log!(
                    Error,
                    "the remote memory does not support a flush to global visibility"
                );
                return Err(Error::NoSupp);
            }
            _ => {}
        }
        let (flags, remote) = (completion.flags(), dst.remote());
        match (&self.flush, self.link.qp.flush()) {
            (Flush::Raw(buffer), _) => {
                // A read of 8 bytes must not leave the region; behind its end it
                // stays one for the device to refuse.
                let len = match dst.rest() {
                    0 => RAW_LEN,
                    rest => RAW_LEN.min(usize::try_from(rest).unwrap_or(RAW_LEN)),
                };
                let sge = Some(buffer.range(len)?.sge());
                // SAFETY: the buffer is for nothing but this.
                unsafe { self.post(flags, SendOp::Read(remote), sge, wr_id) }
            }
            (Flush::Native, Some(native)) => {
                let kind = match flush_type {
                    FlushType::Persistent => FlushKind::Persistent,
                    FlushType::Visibility => FlushKind::Global,
                };
                native
                    .post(wr_id, flags, remote, len, kind)
                    .map_err(failed!("ibv_wr_complete()"))
            }
            (Flush::Native, None) => Err(Error::NoSupp),
        }
    }

    /// # Safety
    /// As [`crate::verbs::Qp::post_send`].
    #[inline]
    unsafe fn post(
        &self,
        flags: SendFlags,
        op: SendOp,
        sge: Option<Sge>,
        wr_id: u64,
    ) -> Result<()> {
        // SAFETY: passed on to the caller.
        unsafe { self.link.qp.post_send(wr_id, flags, op, sge) }.map_err(|errno| {
            let (name, remote) = match op {
                SendOp::Write(remote) => ("IBV_WR_RDMA_WRITE", Some(remote)),
                SendOp::WriteImm(remote, _) => ("IBV_WR_RDMA_WRITE_WITH_IMM", Some(remote)),
                SendOp::Read(remote) => ("IBV_WR_RDMA_READ", Some(remote)),
                SendOp::Send => ("IBV_WR_SEND", None),
                SendOp::SendImm(_) => ("IBV_WR_SEND_WITH_IMM", None),
            };
            let local = sge.unwrap_or(NO_SGE);
            let remote = remote.unwrap_or(NOWHERE);
            log!(
                Error,
                "ibv_post_send(opcode={name}, addr={:#x}, length={}, lkey={:#x}, \
                 remote_addr={:#x}, rkey={:#x}, send_flags={:#x}, wr_id={wr_id:#x}) failed: {errno}",
                local.addr,
                local.length,
                local.lkey,
                remote.addr,
                remote.rkey,
                flags.bits()
            );
            Error::Provider
        })
    }
}

const NO_SGE: Sge = Sge {
    addr: 0,
    length: 0,
    lkey: 0,
};

/// The remote side of an operation that moves nothing.
const NOWHERE: Remote = Remote { addr: 0, rkey: 0 };

#[inline]
fn split(transfer: Option<(LocalRange, RemoteRange)>) -> (Option<Sge>, Remote) {
    match transfer {
        Some((local, remote)) => (Some(local.sge()), remote.remote()),
        None => (None, NOWHERE),
    }
}
