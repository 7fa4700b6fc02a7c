//! Protection domains and memory regions as C sees them.

use super::alive::{Alive, Kind};
use crate::memory::{Domain, Registration};
use rdma_sys::{ibv_context, ibv_mr, ibv_pd};
use rustix::io::Errno;
use std::ffi::c_void;
use std::sync::Arc;

/// What a protection domain's handle is of.
#[repr(C)]
pub struct Pd {
    pub abi: ibv_pd,
    pub domain: Arc<Domain>,
    _alive: Alive,
}

impl Pd {
    pub fn new(context: *mut ibv_context) -> Box<Pd> {
        Box::new(Pd {
            abi: ibv_pd { context, handle: 0 },
            domain: Arc::default(),
            _alive: Alive::new(Kind::Pd),
        })
    }

    /// # Safety
    ///
    /// `pd` is the handle of a `Pd` that lives for `'a`.
    pub unsafe fn from_raw<'a>(pd: *mut ibv_pd) -> &'a Pd {
        // SAFETY: the handle is the first field of a Pd, with the Pd's provenance.
        unsafe { &*pd.cast::<Pd>() }
    }
}

/// What a region's handle is of.
#[repr(C)]
pub struct Mr {
    pub abi: ibv_mr,
    registration: Registration,
    _alive: Alive,
}

impl Mr {
    /// Registers `len` bytes at `addr`, which are at `iova` for those who access them by key.
    pub fn register(
        pd: &Pd,
        addr: *mut c_void,
        len: usize,
        iova: u64,
        flags: u32,
    ) -> Result<Box<Mr>, Errno> {
        let registration = Registration::new(&pd.domain, addr as usize, len, iova, flags)?;
        Ok(Box::new(Mr {
            abi: ibv_mr {
                context: pd.abi.context,
                pd: std::ptr::from_ref(&pd.abi).cast_mut(),
                addr,
                length: len,
                handle: 0,
                lkey: registration.lkey(),
                rkey: registration.rkey(),
            },
            registration,
            _alive: Alive::new(Kind::Mr),
        }))
    }

    /// As [`Registration::change`].
    pub fn register_anew(
        &mut self,
        pd: Option<&Pd>,
        place: Option<(*mut c_void, usize)>,
        flags: Option<u32>,
    ) -> Result<(), Errno> {
        self.registration.change(
            pd.map(|pd| &pd.domain),
            place.map(|(addr, len)| (addr as usize, len)),
            flags,
        )?;
        if let Some(pd) = pd {
            self.abi.pd = std::ptr::from_ref(&pd.abi).cast_mut();
        }
        if let Some((addr, len)) = place {
            (self.abi.addr, self.abi.length) = (addr, len);
        }
        Ok(())
    }

    pub fn deregister(self) {
        self.registration.deregister();
    }
}
