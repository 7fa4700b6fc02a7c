use super::cq::create_channel;
use super::device::{Shown, device_of, lookup, resolve_addr};
use super::error::{Steps, failed, room};
use super::{Conn, ConnCfg, Cq, Error, LocalRange, Peer, PrivateData, Result};
use crate::verbs::{CmId, CompChannel, Qp, QpAttr, RecvWr, Resolve, Unanswered};
use std::ffi::CStr;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One range in a request; data of at most this many bytes may be inline.
const MAX_SGE: u32 = 1;
const MAX_INLINE_DATA: u32 = 8;

/// What a request and the connection made of it own alike, in order of release.
pub struct Link {
    pub qp: Qp,
    /// The queue for receives, if they have one of their own.
    pub rcq: Option<Cq>,
    pub cq: Cq,
    /// The duty to answer the request, if it came from the other side.
    pub unanswered: Option<Unanswered>,
    pub id: CmId,
    /// The channel of both queues, if they share one.
    pub channel: Option<CompChannel>,
    /// What the other side said.
    data: Mutex<Option<PrivateData>>,
}

impl Link {
    /// Shows the data, empty if there is none.
    pub fn private_data<T>(&self, look: impl FnOnce(&[u8]) -> T) -> T {
        look(self.data().as_ref().map_or(&[], PrivateData::bytes))
    }

    pub fn data(&self) -> MutexGuard<'_, Option<PrivateData>> {
        self.data.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds its steps to those before.
    pub fn delete(self, mut steps: Steps) -> Result<()> {
        drop(self.qp);
        if let Some(rcq) = self.rcq {
            steps.then(rcq.delete());
        }
        steps.then(self.cq.delete());
        if let Some(unanswered) = self.unanswered {
            steps.step("rdma_reject", unanswered.reject());
        }
        steps.step("rdma_destroy_id", self.id.close());
        if let Some(channel) = self.channel {
            steps.step("ibv_destroy_comp_channel", channel.close());
        }
        steps.done()
    }
}

/// What an id needs before it can be connected, in order of release.
pub struct Equipment {
    qp: Qp,
    rcq: Option<Cq>,
    cq: Cq,
    channel: Option<CompChannel>,
}

impl Equipment {
    /// `addr` is the address that the id stands for, to show.
    pub fn new(peer: &Peer, id: &CmId, cfg: &ConnCfg, addr: impl fmt::Display) -> Result<Self> {
        // SAFETY: NULL, or a queue that outlives the configuration.
        let srq = unsafe { cfg.srq().as_ref() };
        let srq_cq = srq.and_then(|srq| srq.rcq());
        let share = cfg.shared_channel.load(Relaxed);
        if share && srq_cq.is_some() {
            log!(
                Error,
                "a completion channel cannot be shared with a shared RQ that has its own CQ: leave \
                 out rpma_conn_cfg_set_compl_channel(), or give the shared RQ no CQ by \
                 rpma_srq_cfg_set_rcq_size()"
            );
            return Err(Error::INVAL);
        }

        let context = device_of(id, addr)?;
        let channel = match share {
            true => Some(create_channel(context)?),
            false => None,
        };
        let cq = Cq::new(peer, context, cfg.cq_size.load(Relaxed), channel.as_ref())?;
        let rcq = match cfg.rcq_size.load(Relaxed) {
            0 => None,
            _ if srq_cq.is_some() => None,
            size => Some(Cq::new(peer, context, size, channel.as_ref())?),
        };
        let attr = QpAttr {
            pd: peer.pd(),
            send_cq: cq.verbs(),
            recv_cq: srq_cq.or(rcq.as_ref()).unwrap_or(&cq).verbs(),
            srq: srq.map(|srq| srq.verbs()),
            max_send_wr: cfg.sq_size.load(Relaxed),
            max_recv_wr: cfg.rq_size.load(Relaxed),
            max_sge: MAX_SGE,
            max_inline_data: MAX_INLINE_DATA,
            ops: peer.native(),
        };
        let qp = Qp::create(id, &attr).map_err(failed!(
            "rdma_create_qp_ex",
            "max_send_wr={}, max_recv_wr={}, max_send/recv_sge={MAX_SGE}, \
             max_inline_data={MAX_INLINE_DATA}, qp_type=IBV_QPT_RC, sq_sig_all=0; max_qp_wr of the \
             device is {}",
            attr.max_send_wr,
            attr.max_recv_wr,
            peer.limits().max_qp_wr
        ))?;
        Ok(Equipment {
            qp,
            rcq,
            cq,
            channel,
        })
    }

    pub fn link(self, id: CmId, unanswered: Option<Unanswered>, data: Option<PrivateData>) -> Link {
        Link {
            qp: self.qp,
            rcq: self.rcq,
            cq: self.cq,
            unanswered,
            id,
            channel: self.channel,
            data: Mutex::new(data),
        }
    }
}

/// A connection that one side has asked for and that is not made yet.
pub struct ConnReq {
    link: Link,
    peer: NonNull<Peer>,
}

impl ConnReq {
    /// Asks for a connection to an address, where the other side listens.
    ///
    /// # Safety
    /// The peer outlives the request.
    pub unsafe fn outgoing(
        peer: &Peer,
        addr: &CStr,
        port: &CStr,
        cfg: &ConnCfg,
    ) -> Result<Box<Self>> {
        let timeout_ms = cfg.timeout_ms.load(Relaxed);
        let info = lookup(addr, Some(port), Resolve::Active)?;
        let id = CmId::create(None).map_err(failed!("rdma_create_id"))?;
        resolve_addr(&id, &info, addr, timeout_ms)?;
        id.resolve_route(timeout_ms)
            .map_err(failed!("rdma_resolve_route", "timeout_ms={timeout_ms}"))?;
        let (addr, port) = (Shown(addr), Shown(port));
        let equipment = Equipment::new(peer, &id, cfg, format_args!("{addr}:{port}"))?;
        let room = room()?;
        let link = equipment.link(id, None, None);
        // SAFETY: passed on to the caller.
        Ok(Box::write(room, unsafe { Self::new(peer, link) }))
    }

    /// Says in the log where it goes.
    pub fn announce(addr: &CStr, port: &CStr) {
        log_strings!(Notice, c"Requesting a connection to %s:%s\n", addr, port);
    }

    /// # Safety
    /// The peer outlives the request.
    pub unsafe fn new(peer: &Peer, link: Link) -> Self {
        let peer = NonNull::from(peer);
        ConnReq { link, peer }
    }

    pub fn delete(self) -> Result<()> {
        self.link.delete(Steps::log_all())
    }

    pub fn private_data<T>(&self, look: impl FnOnce(&[u8]) -> T) -> T {
        self.link.private_data(look)
    }

    /// # Safety
    /// The memory may be written until the receive has completed.
    pub unsafe fn recv(&self, dst: LocalRange, wr_id: u64) -> Result<()> {
        let sge = Some(dst.sge());
        // SAFETY: passed on to the caller.
        unsafe { self.link.qp.post_recv(&mut RecvWr::new(wr_id, sge)) }
            .map_err(failed!("ibv_post_recv"))
    }

    /// Accepts an incoming request, or sends an outgoing one.
    pub fn connect(mut self, private_data: Option<&[u8]>) -> Result<Box<Conn>> {
        // SAFETY: the peer outlives the request.
        let peer = unsafe { self.peer.as_ref() };
        let len = private_data.map_or(0, <[u8]>::len);
        if let Some(unanswered) = self.link.unanswered.take() {
            match unanswered.accept(private_data) {
                Ok(()) => Conn::new(self.link, peer, true),
                Err((unanswered, errno)) => {
                    self.link.unanswered = Some(unanswered);
                    Err(failed!("rdma_accept", "private_data_len={len}")(errno))
                }
            }
        } else {
            let conn = Conn::new(self.link, peer, false)?;
            match conn.send_request(private_data) {
                Ok(()) => Ok(conn),
                Err(error) => {
                    let _ = conn.delete();
                    Err(error)
                }
            }
        }
    }
}
