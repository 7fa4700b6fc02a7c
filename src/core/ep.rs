use super::device::{Shown, bind, lookup};
use super::error::{Steps, failed, room};
use super::events::{ack_failed, create_event_channel, next_event};
use super::link::Equipment;
use super::{ConnCfg, ConnReq, Error, Peer, PrivateData, Result};
use crate::verbs::{CmId, EventChannel, EventKind, Resolve};
use std::ffi::{CStr, c_int};
use std::ptr::NonNull;

/// Where connection requests come in.
pub struct Ep {
    id: CmId,
    events: EventChannel,
    peer: NonNull<Peer>,
}

impl Ep {
    /// # Safety
    /// The peer outlives the endpoint and the requests that it gives.
    pub unsafe fn listen(peer: &Peer, addr: &CStr, port: &CStr) -> Result<Self> {
        let events = create_event_channel()?;
        let id = CmId::create(Some(&events)).map_err(failed!("rdma_create_id"))?;
        let info = lookup(addr, Some(port), Resolve::Passive)?;
        let shown = format_args!("{}:{}", Shown(addr), Shown(port));
        bind(&id, &info, shown)?;
        id.listen()
            .map_err(failed!("rdma_listen", "addr={shown}"))?;
        let peer = NonNull::from(peer);
        Ok(Ep { id, events, peer })
    }

    /// Says in the log that it listens.
    pub fn announce(addr: &CStr, port: &CStr) {
        log_strings!(
            Notice,
            c"Waiting for incoming connection on %s:%s\n",
            addr,
            port
        );
    }

    pub fn delete(self) -> Result<()> {
        let mut steps = Steps::new();
        steps.step("rdma_destroy_id", self.id.close());
        steps.done()
    }

    pub fn fd(&self) -> c_int {
        self.events.fd()
    }

    /// Takes the next request; the client is rejected if it can't be equipped. None is
    /// one that was dropped since its event could not be acknowledged.
    pub fn next_conn_req(&self, cfg: &ConnCfg) -> Result<Option<Box<ConnReq>>> {
        // SAFETY: the peer outlives the endpoint.
        let peer = unsafe { self.peer.as_ref() };
        let event = next_event(&self.events)?;
        if event.kind() != EventKind::ConnectRequest {
            log!(
                Error,
                "rpma_ep_next_conn_req() has met an unexpected event: {}",
                event.name()
            );
            return Err(Error::INVAL);
        }
        // SAFETY: a connection request, asked once.
        let (unanswered, id) = unsafe { event.take_id() };
        let equipped = Equipment::new(peer, &id, cfg, id.local_addr()).and_then(|equipment| {
            let room = room()?;
            let data = PrivateData::copy(event.private_data())?;
            Ok((equipment, room, data))
        });
        let acked = event.close();
        // From here on a failure rejects the client and destroys the id, which the
        // event had to be acknowledged for.
        let (equipment, room, data) = match equipped {
            Ok(equipped) => equipped,
            Err(error) => {
                drop(unanswered);
                return Err(error);
            }
        };
        let link = equipment.link(id, Some(unanswered), data);
        // SAFETY: the peer outlives the requests of the endpoint.
        let request = unsafe { ConnReq::new(peer, link) };
        match acked.map_err(ack_failed) {
            Ok(()) => Ok(Some(Box::write(room, request))),
            Err(_) => {
                let _ = request.delete();
                Ok(None)
            }
        }
    }
}
