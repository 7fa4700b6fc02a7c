//! What a program posts.

use super::conn::{Conn, Guard};
use crate::proto::{Host, QpState, SendWqe, Sge, Status, recv_completion};

/// Send requests that are posted together. The connection is locked meanwhile.
pub struct SendBatch<'a> {
    guard: Guard<'a>,
    retired: u32,
    sq_sig_all: bool,
}

impl<'a> SendBatch<'a> {
    pub fn new(conn: &'a Conn) -> Result<Self, i32> {
        let mut guard = conn.lock();
        let (retired, sq_sig_all) = match guard.queues() {
            Some(queues) => (queues.retired.get(), queues.sq_sig_all),
            None => return Err(libc::EINVAL),
        };
        match guard.qp().map(|qp| qp.state()) {
            // Not connected yet.
            None | Some(QpState::Reset | QpState::Init | QpState::Rtr) => return Err(libc::EINVAL),
            Some(_) => {}
        }
        Ok(SendBatch {
            guard,
            retired,
            sq_sig_all,
        })
    }

    pub fn max_sge(&mut self) -> usize {
        self.guard.qp().map_or(0, |qp| qp.requester.max_sge())
    }

    /// How many requests there is room for.
    pub fn room(&mut self) -> usize {
        let retired = self.retired;
        self.guard.qp().map_or(0, |qp| qp.requester.room(retired))
    }

    /// Where the pieces of the request that is pushed next go.
    pub fn next_sges(&mut self) -> &mut [Sge] {
        self.guard
            .qp()
            .map(|qp| qp.requester.next_sges())
            .unwrap_or_default()
    }

    /// Where inline data of the request that is pushed next goes.
    pub fn next_inline(&mut self) -> &mut [u8] {
        self.guard
            .qp()
            .map(|qp| qp.requester.next_inline())
            .unwrap_or_default()
    }

    /// Adds a request whose payload is in its place; fails if there is no room.
    pub fn push(&mut self, mut wqe: SendWqe) -> Result<(), i32> {
        if self.room() == 0 {
            return Err(libc::ENOMEM);
        }
        wqe.signaled |= self.sq_sig_all;
        if let Some(qp) = self.guard.qp() {
            qp.requester.push(wqe);
        }
        Ok(())
    }
}

impl Drop for SendBatch<'_> {
    /// Sends what was pushed.
    fn drop(&mut self) {
        self.guard.with(|proto, now, host| proto.posted(now, host));
    }
}

/// Receive requests that are posted together. The connection is locked meanwhile.
pub struct RecvBatch<'a>(Guard<'a>);

impl<'a> RecvBatch<'a> {
    pub fn new(conn: &'a Conn) -> Result<Self, i32> {
        let mut guard = conn.lock();
        match guard.qp() {
            Some(qp) if !qp.responder.has_srq() && qp.state() != QpState::Reset => {}
            _ => return Err(libc::EINVAL),
        }
        Ok(RecvBatch(guard))
    }

    /// Adds a request whose `n` pieces `fill` writes.
    pub fn push(&mut self, wr_id: u64, n: usize, fill: impl FnOnce(&mut [Sge])) -> Result<(), i32> {
        self.0.call(|proto, host| {
            let qp = proto.qp.as_mut().ok_or(libc::EINVAL)?;
            if n > qp.responder.rq().max_sge() {
                return Err(libc::EINVAL);
            }
            if qp.is_error() {
                host.complete(recv_completion(wr_id, Status::WrFlush));
                return Ok(());
            }
            let pushed = qp.responder.rq().push(wr_id, n, fill);
            pushed.ok_or(libc::ENOMEM)
        })
    }
}

impl Drop for RecvBatch<'_> {
    /// Tells the other side if it waits for a receive.
    fn drop(&mut self) {
        self.0.with(|proto, _, _| proto.receive_posted());
    }
}
