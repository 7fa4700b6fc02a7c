use super::device::{Shown, lookup, resolve_addr};
use super::error::{Steps, failed, room};
use super::link::{Equipment, Link};
use super::{Conn, ConnCfg, LocalRange, Peer, Result};
use crate::verbs::{CmId, RecvWr, Resolve};
use std::ffi::CStr;
use std::ptr::NonNull;

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
        let timeout_ms = cfg.timeout_ms.get();
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
