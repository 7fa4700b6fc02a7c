//! Protection domains and the memory regions in them.
//!
//! A device pins the memory it is given; this one only notes where it is. So registered memory
//! isn't charged to `RLIMIT_MEMLOCK`, and a program must not unmap memory, or take its permissions
//! away, that is registered still: where a device would go on using pages that the program no
//! longer sees, an access here is a fault in the program itself.

mod keys;
mod lasting;
mod maps;
mod pages;
mod region;
#[cfg(test)]
mod tests;

use crate::proto::Right;
use crate::settings::Settings;
use pages::pages;
use region::{Access, Key, Region, wait_gone};
use rustix::io::Errno;
use rustix::mm::Advice;
use std::sync::Arc;

pub use region::{Domain, Hold, Refusal};

impl Domain {
    /// The memory of a local access; none needs no key.
    pub fn local(&self, lkey: u32, addr: u64, len: u64, write: bool) -> Result<Hold, Refusal> {
        if len == 0 {
            return Ok(Hold::nothing());
        }
        let need = if write {
            Access::LOCAL_WRITE
        } else {
            Access::empty()
        };
        let region = self.region(lkey, Key::Local)?;
        Hold::of(region, need, |region| region.range(addr, len))
    }

    /// The memory of a remote access. To read or write none needs no key, to flush it does.
    pub fn remote(&self, rkey: u32, addr: u64, len: u64, right: Right) -> Result<Hold, Refusal> {
        if len == 0 && matches!(right, Right::Read | Right::Write) {
            return Ok(Hold::nothing());
        }
        let region = self.region(rkey, Key::Remote)?;
        Hold::of(region, Access::of(right), |region| region.range(addr, len))
    }

    /// The whole region, for a remote access that names no range of it.
    pub fn remote_whole(&self, rkey: u32, right: Right) -> Result<Hold, Refusal> {
        let region = self.region(rkey, Key::Remote)?;
        Hold::of(region, Access::of(right), |region| {
            Ok(region.memory.clone())
        })
    }

    fn region(&self, key: u32, kind: Key) -> Result<Arc<Region>, Refusal> {
        let region = keys::find(key).ok_or(Refusal::Key)?;
        if region.key(kind) == key && std::ptr::eq(Arc::as_ptr(&region.domain), self) {
            Ok(region)
        } else {
            Err(Refusal::Key)
        }
    }

    /// Takes advice on a range of memory that is about to be used: it is read in ahead of that.
    /// Advice is a hint, so any region may have it, whether its pages could be missing or not.
    pub fn prefetch(&self, lkey: u32, addr: u64, len: u64, advice: Prefetch) -> Result<(), Errno> {
        let region = keys::find(lkey).ok_or(Errno::NOENT)?;
        if region.key(Key::Local) != lkey {
            return Err(Errno::NOENT);
        }
        if !std::ptr::eq(Arc::as_ptr(&region.domain), self) {
            return Err(Errno::PERM);
        }
        let need = match advice {
            Prefetch::ToWrite => Access::LOCAL_WRITE,
            Prefetch::ToRead | Prefetch::WhatIsThere => Access::empty(),
        };
        let hold = Hold::of(region, need, |region| region.range(addr, len));
        let hold = hold.map_err(|refusal| match refusal {
            Refusal::Key => Errno::NOENT,
            Refusal::Bounds => Errno::FAULT,
            Refusal::Right => Errno::PERM,
        })?;
        // What is there already needs nothing done: it is accessed where it is.
        if hold.is_empty() || advice == Prefetch::WhatIsThere {
            return Ok(());
        }
        let pages = pages(hold.range());
        // SAFETY: the advice changes no memory's content.
        let advised =
            unsafe { rustix::mm::madvise(pages.start as *mut _, pages.len(), Advice::WillNeed) };
        match advised {
            Err(Errno::NOMEM) => Err(Errno::FAULT),
            // Some memory can't be read ahead.
            _ => Ok(()),
        }
    }
}

/// What a range is to be prefetched for: `enum ibv_advise_mr_advice`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefetch {
    ToRead,
    ToWrite,
    WhatIsThere,
}

/// A registered region. Without [`Registration::deregister`] it stays registered.
pub struct Registration {
    region: Arc<Region>,
}

impl Registration {
    /// Registers `len` bytes at `addr`, which are at `iova` for those who access them by key.
    pub fn new(
        domain: &Arc<Domain>,
        addr: usize,
        len: usize,
        iova: u64,
        flags: u32,
    ) -> Result<Registration, Errno> {
        let region = Region::new(domain, (addr, len), iova, flags, Settings::get())?;
        let region = keys::add(region)?;
        domain.attach();
        Ok(Registration { region })
    }

    pub fn lkey(&self) -> u32 {
        self.region.lkey
    }

    pub fn rkey(&self) -> u32 {
        self.region.rkey
    }

    /// Gives the region another domain, place or access, and returns when nothing accesses it as
    /// it was. The keys stay. After an error the region is as it was.
    pub fn change(
        &mut self,
        domain: Option<&Arc<Domain>>,
        place: Option<(usize, usize)>,
        flags: Option<u32>,
    ) -> Result<(), Errno> {
        let old = &self.region;
        let (memory, iova) = match place {
            Some((addr, len)) => ((addr, len), addr as u64),
            None => ((old.memory.start, old.memory.len()), old.iova),
        };
        let domain = domain.unwrap_or(&old.domain);
        let flags = flags.unwrap_or(old.access.bits());
        let mut new = Region::new(domain, memory, iova, flags, Settings::get())?;
        (new.lkey, new.rkey) = (old.lkey, old.rkey);
        let new = Arc::new(new);

        new.domain.attach();
        keys::publish(&new);
        let old = std::mem::replace(&mut self.region, new);
        old.domain.detach();
        wait_gone(old);
        Ok(())
    }

    /// Returns when nothing accesses the memory any more. From the first, nothing new can.
    pub fn deregister(self) {
        let domain = self.region.domain.clone();
        keys::remove(&self.region);
        wait_gone(self.region);
        domain.detach();
    }
}
