//! What connects two sides, before and after the connection is made.

use super::cq::create_channel;
use super::device::device_of;
use super::error::{Steps, failed};
use super::{ConnCfg, Cq, Error, Peer, PrivateData, Result};
use crate::verbs::{CmId, CompChannel, Qp, QpAttr, Unanswered};
use std::fmt;
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
        let share = cfg.shared_channel.get();
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
        let cq = Cq::new(peer, context, cfg.cq_size.get(), channel.as_ref())?;
        let rcq = match cfg.rcq_size.get() {
            0 => None,
            _ if srq_cq.is_some() => None,
            size => Some(Cq::new(peer, context, size, channel.as_ref())?),
        };
        let attr = QpAttr {
            pd: peer.pd(),
            send_cq: cq.verbs(),
            recv_cq: srq_cq.or(rcq.as_ref()).unwrap_or(&cq).verbs(),
            srq: srq.map(|srq| srq.verbs()),
            max_send_wr: cfg.sq_size.get(),
            max_recv_wr: cfg.rq_size.get(),
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
