//! What a program posts.

use super::{Endpoint, Locked, PEER_GONE_TIME, State, Timer};
use crate::objects::qp::{Payload, RecvWqe, SendWqe};
use rdma_sys::{ibv_qp_state, ibv_wc_status};
use std::sync::atomic::Ordering;

/// Send requests that are posted together. The endpoint is locked meanwhile.
pub struct Batch<'a> {
    endpoint: &'a Endpoint,
    state: Locked<'a>,
    /// How many requests there were before.
    before: usize,
    /// What is wrong with one of them.
    pub error: Option<i32>,
}

impl<'a> Batch<'a> {
    pub fn new(endpoint: &'a Endpoint) -> Result<Self, i32> {
        let state = endpoint.lock();
        let before = match &state.qp {
            Some(qp) if qp.may_send() => qp.sq.entries.len(),
            _ => return Err(libc::EINVAL),
        };
        Ok(Batch {
            endpoint,
            state,
            before,
            error: None,
        })
    }

    /// The program puts it together call by call, and may make other calls in between: those of
    /// this thread do not wait for its end.
    pub fn compose(&self) {
        let composer = &self.endpoint.composer;
        composer.store(this_thread(), Ordering::Relaxed);
    }

    /// As [`Endpoint::post_recv`], in between.
    pub fn post_recv(
        &mut self,
        wqes: impl Iterator<Item = Result<RecvWqe, i32>>,
    ) -> Result<(), (usize, i32)> {
        let result = self.state.push_recvs(wqes);
        self.endpoint.receive_posted();
        result
    }

    fn note(&mut self, error: i32) -> i32 {
        *self.error.get_or_insert(error)
    }

    /// Adds a request whose payload is memory, or inline data that is copied now.
    pub fn push(&mut self, wqe: SendWqe) -> Result<(), i32> {
        let Some(qp) = &mut self.state.qp else {
            return Err(libc::EINVAL);
        };
        if qp.sq.is_full() {
            return Err(self.note(libc::ENOMEM));
        }
        let mut wqe = wqe;
        wqe.signaled |= qp.init.sq_sig_all;
        qp.sq.entries.push_back(wqe);
        Ok(())
    }

    /// The request that was added last.
    pub fn last(&mut self) -> Option<&mut SendWqe> {
        let before = self.before;
        if self.error.is_some() {
            return None;
        }
        let entries = &mut self.state.qp.as_mut()?.sq.entries;
        (entries.len() > before).then(|| entries.back_mut())?
    }

    pub fn max_sge(&self) -> u32 {
        self.state
            .qp
            .as_ref()
            .map_or(0, |qp| qp.init.cap.max_send_sge)
    }

    /// Copies data for the request that is added next, from pieces of memory; gives its length.
    ///
    /// # Safety
    /// The pieces are readable memory.
    pub unsafe fn copy_inline(
        &mut self,
        pieces: impl Iterator<Item = (*const u8, usize)>,
    ) -> Result<u32, i32> {
        let Some(qp) = &mut self.state.qp else {
            return Err(libc::EINVAL);
        };
        if qp.sq.is_full() {
            return Err(self.note(libc::ENOMEM));
        }
        let room = qp.sq.inline_mut();
        let mut len = 0usize;
        for (from, n) in pieces {
            let Some(to) = room.get_mut(len..len.saturating_add(n)) else {
                return Err(self.note(libc::EINVAL));
            };
            if n > 0 {
                // SAFETY: as the caller says; the slot is of this library.
                unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), n) };
            }
            len += n;
        }
        Ok(len as u32)
    }

    /// As [`Batch::copy_inline`], for the request that was added last.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn inline_of_last(&mut self, pieces: impl Iterator<Item = (*const u8, usize)>) {
        let Some(qp) = &mut self.state.qp else {
            return;
        };
        if self.error.is_some() {
            return;
        }
        let Some(last) = qp.sq.entries.pop_back() else {
            return;
        };
        // SAFETY: as the caller says.
        match unsafe { self.copy_inline(pieces) } {
            Ok(len) => {
                let wqe = SendWqe {
                    payload: Payload::Inline,
                    len,
                    ..last
                };
                if let Some(qp) = &mut self.state.qp {
                    qp.sq.entries.push_back(wqe);
                }
            }
            Err(error) => {
                self.note(error);
            }
        }
    }

    /// Posts what was added before anything was wrong.
    pub fn post(mut self) {
        let state = &mut *self.state;
        if let Some(qp) = &mut state.qp
            && qp.is_error()
        {
            qp.flush();
        }
        state.answered_by_program();
        state.pump(self.endpoint);
        state.dead_end(self.endpoint);
        state.watch(self.endpoint);
    }

    /// Posts all, or nothing if something is wrong.
    pub fn complete(mut self) -> Result<(), i32> {
        match self.error {
            Some(error) => {
                self.take_back();
                // As the kernel's software device says it here.
                Err(if error == libc::ENOMEM {
                    libc::ENOSPC
                } else {
                    error
                })
            }
            None => {
                self.post();
                Ok(())
            }
        }
    }

    fn take_back(&mut self) {
        if let Some(qp) = &mut self.state.qp {
            qp.sq.entries.truncate(self.before);
        }
    }

    pub fn abort(mut self) {
        self.take_back();
    }
}

impl State {
    /// Requests to a side that does not answer any more end.
    fn dead_end(&mut self, endpoint: &Endpoint) {
        if !self.peer_failed || self.qp.as_ref().is_none_or(|qp| qp.sq.entries.is_empty()) {
            return;
        }
        if self.link.is_none() {
            self.outstanding_failed();
        } else if self.deadlines.at[Timer::PeerGone as usize].is_none() {
            self.set_timer(endpoint, Timer::PeerGone, PEER_GONE_TIME);
        }
    }
}

impl Endpoint {
    /// Posts receive requests; gives how many were posted, and what is wrong with the next one.
    pub fn post_recv(
        &self,
        wqes: impl Iterator<Item = Result<RecvWqe, i32>>,
    ) -> Result<(), (usize, i32)> {
        let mut state = self.lock();
        let result = state.push_recvs(wqes);
        state.tell_receive_posted(self);
        state.watch(self);
        result
    }

    /// Whether this thread is putting requests together, and so has it locked.
    pub fn is_composed_here(&self) -> bool {
        self.composer.load(Ordering::Relaxed) == this_thread()
    }
}

/// Something that tells this thread from all others; not 0.
fn this_thread() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        let endpoint = self.endpoint;
        if endpoint.composer.swap(0, Ordering::Relaxed) == 0 {
            return;
        }
        let state = &mut *self.state;
        if state.ack_held.is_some() {
            state.pump(endpoint);
        }
        state.watch(endpoint);
    }
}

impl State {
    fn push_recvs(
        &mut self,
        wqes: impl Iterator<Item = Result<RecvWqe, i32>>,
    ) -> Result<(), (usize, i32)> {
        for (posted, wqe) in wqes.enumerate() {
            self.push_recv(wqe).map_err(|error| (posted, error))?;
        }
        Ok(())
    }

    fn push_recv(&mut self, wqe: Result<RecvWqe, i32>) -> Result<(), i32> {
        let qp = self.qp.as_mut().ok_or(libc::EINVAL)?;
        if qp.init.srq.is_some() || qp.state == ibv_qp_state::IBV_QPS_RESET {
            return Err(libc::EINVAL);
        }
        let wqe = wqe?;
        let cap = &qp.init.cap;
        if wqe.sges.as_slice().len() > cap.max_recv_sge as usize {
            return Err(libc::EINVAL);
        }
        if qp.is_error() {
            let flushed = Err(ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
            qp.complete_recv(&wqe, flushed, None, false);
            return Ok(());
        }
        if qp.rq.len() >= cap.max_recv_wr as usize {
            return Err(libc::ENOMEM);
        }
        qp.rq.push_back(wqe);
        Ok(())
    }
}
