use super::error::{Steps, failed};
use super::setting::Setting;
use super::{Cq, Error, LocalRange, Peer, Result};
use crate::verbs::{self, Errno, RecvWr};

/// How a shared receive queue is made.
pub struct SrqCfg {
    pub rq_size: Setting<u32>,
    pub rcq_size: Setting<u32>,
}

impl Default for SrqCfg {
    fn default() -> Self {
        SrqCfg {
            rq_size: Setting::new(20),
            rcq_size: Setting::new(20),
        }
    }
}

/// A receive queue that several connections share.
pub struct Srq {
    rcq: Option<Cq>,
    srq: verbs::Srq,
}

impl Srq {
    pub fn new(peer: &Peer, cfg: &SrqCfg) -> Result<Self> {
        let rq_size = cfg.rq_size.get();
        let max_srq_wr = peer.limits().max_srq_wr;
        let srq = verbs::Srq::create(peer.pd(), rq_size).map_err(failed!(
            "ibv_create_srq",
            "max_wr={rq_size}; max_srq_wr of the device is {max_srq_wr}"
        ))?;
        let rcq = match cfg.rcq_size.get() {
            0 => None,
            size => Some(Cq::new(peer, peer.context(), size, None)?),
        };
        Ok(Srq { rcq, srq })
    }

    pub fn delete(self) -> Result<()> {
        let mut steps = Steps::new();
        if let Some(rcq) = self.rcq {
            steps.then(rcq.delete());
        }
        steps.step("ibv_destroy_srq", self.srq.close());
        steps.done()
    }

    pub fn verbs(&self) -> &verbs::Srq {
        &self.srq
    }

    /// The queue for its receives, if it has one of its own.
    pub fn rcq(&self) -> Option<&Cq> {
        self.rcq.as_ref()
    }

    /// # Safety
    /// The memory may be written until the receive has completed.
    #[inline(always)]
    pub unsafe fn recv(&self, dst: Option<LocalRange>, wr_id: u64) -> Result<()> {
        let sge = dst.map(|dst| dst.sge());
        // SAFETY: passed on to the caller.
        let posted = unsafe { self.srq.post_recv(&mut RecvWr::new(wr_id, sge)) };
        posted.map_err(srq_recv_failed)
    }
}

#[cold]
#[inline(never)]
fn srq_recv_failed(errno: Errno) -> Error {
    failed!("ibv_post_srq_recv")(errno)
}
