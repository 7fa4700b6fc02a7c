//! Protection domains and the memory regions in them.
//!
//! A device pins the memory it is given; this one only notes where it is. So registered memory
//! isn't charged to `RLIMIT_MEMLOCK`, and a program must not unmap memory, or take its permissions
//! away, that is registered still: where a device would go on using pages that the program no
//! longer sees, an access here is a fault in the program itself.

mod keys;
mod lasting;
mod maps;
#[cfg(test)]
mod tests;

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use bitflags::bitflags;
use rustix::io::Errno;
use rustix::mm::Advice;

use crate::proto::Right;
use crate::settings::Settings;
use crate::valgrind;
use lasting::Lasting;

bitflags! {
    /// What may be done with a region: `enum ibv_access_flags`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Access: u32 {
        const LOCAL_WRITE = 1;
        const REMOTE_WRITE = 1 << 1;
        const REMOTE_READ = 1 << 2;
        const REMOTE_ATOMIC = 1 << 3;
        const MW_BIND = 1 << 4;
        const ZERO_BASED = 1 << 5;
        const ON_DEMAND = 1 << 6;
        const HUGETLB = 1 << 7;
        const FLUSH_GLOBAL = verbs_ext::ACCESS_FLUSH_GLOBAL as u32;
        const FLUSH_PERSISTENT = verbs_ext::ACCESS_FLUSH_PERSISTENT as u32;
    }
}

impl Access {
    /// Hints, such as relaxed ordering, that a device may take or leave.
    const OPTIONAL: u32 = 0x3ff0_0000;
    const FLUSH: Access = Access::FLUSH_GLOBAL.union(Access::FLUSH_PERSISTENT);
    const REMOTE_CHANGE: Access = Access::REMOTE_WRITE.union(Access::REMOTE_ATOMIC);
    /// What a device wants the memory to be writable for.
    const CHANGE: Access = Access::REMOTE_CHANGE
        .union(Access::LOCAL_WRITE)
        .union(Access::MW_BIND);

    /// What the region must have been registered with.
    fn of(right: Right) -> Access {
        Access::from_bits_truncate(right.bit())
    }

    fn check(flags: u32, settings: &Settings) -> Result<Access, Errno> {
        let access = Access::from_bits(flags & !Access::OPTIONAL).ok_or(Errno::INVAL)?;
        // To a device without it, the flags of the flush are no flags.
        if access.intersects(Access::FLUSH) && !settings.flush {
            return Err(Errno::INVAL);
        }
        if access.intersects(Access::REMOTE_CHANGE) && !access.contains(Access::LOCAL_WRITE) {
            return Err(Errno::INVAL);
        }
        if access.contains(Access::ON_DEMAND) && !settings.odp {
            return Err(Errno::OPNOTSUPP);
        }
        Ok(access)
    }
}

/// Why an access is not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No region of the domain has the key.
    Key,
    /// The region does not have all of the range.
    Bounds,
    /// The region was not registered for that.
    Right,
}

/// A protection domain: its regions can be accessed only through it.
#[derive(Debug, Default)]
pub struct Domain {
    users: AtomicUsize,
}

impl Domain {
    /// Counts in one that needs the domain: a region, a queue pair, a shared receive queue.
    pub fn attach(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    pub fn detach(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }

    pub fn is_used(&self) -> bool {
        self.users.load(Ordering::Acquire) > 0
    }

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
        if hold.len == 0 || advice == Prefetch::WhatIsThere {
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

#[derive(Clone, Copy)]
enum Key {
    Local,
    Remote,
}

/// Registered memory. It is found by its keys, and gone when the last that holds it lets go.
#[derive(Debug)]
struct Region {
    domain: Arc<Domain>,
    lkey: u32,
    rkey: u32,
    access: Access,
    memory: Range<usize>,
    /// What the first byte's address is in an access.
    iova: u64,
    lasting: Vec<Lasting>,
    gone: Arc<OnceLock<()>>,
}

impl Region {
    /// The region, as yet without keys.
    fn new(
        domain: &Arc<Domain>,
        (addr, len): (usize, usize),
        iova: u64,
        flags: u32,
        settings: &Settings,
    ) -> Result<Region, Errno> {
        let access = Access::check(flags, settings)?;
        // A device has pages, and in each the offsets that the program has.
        if addr
            .checked_add(len)
            .is_none_or(|end| end > ADDRESSES - page_size())
        {
            return Err(Errno::INVAL);
        }
        let memory = addr..addr + len;
        let pages = pages(memory.clone());
        if pages.is_empty() || iova as usize % page_size() != addr % page_size() {
            return Err(Errno::INVAL);
        }
        let iova = if access.contains(Access::ZERO_BASED) {
            0
        } else {
            iova
        };
        let lasting = maps::survey(pages.clone(), access.intersects(Access::CHANGE))?;
        if access.contains(Access::FLUSH_PERSISTENT)
            && !settings.any_persistent
            && !Lasting::is_all(&lasting, &pages)
        {
            return Err(Errno::INVAL);
        }
        valgrind::leave_alone(memory.clone());
        Ok(Region {
            domain: domain.clone(),
            lkey: 0,
            rkey: 0,
            access,
            memory,
            iova,
            lasting,
            gone: Arc::default(),
        })
    }

    fn key(&self, kind: Key) -> u32 {
        match kind {
            Key::Local => self.lkey,
            Key::Remote => self.rkey,
        }
    }

    /// Where the range is in memory.
    fn range(&self, addr: u64, len: u64) -> Result<Range<usize>, Refusal> {
        let size = self.memory.len() as u64;
        let offset = addr.wrapping_sub(self.iova);
        if offset > size || len > size - offset {
            return Err(Refusal::Bounds);
        }
        let start = self.memory.start + offset as usize;
        Ok(start..start + len as usize)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // Set once, here.
        let _ = self.gone.set(());
    }
}

/// Waits until nothing holds the region, which no key must lead to any more.
fn wait_gone(region: Arc<Region>) {
    let gone = region.gone.clone();
    drop(region);
    gone.wait();
}

/// The memory of one access. While it lives, its region does not go.
#[derive(Debug)]
pub struct Hold {
    ptr: *mut u8,
    len: usize,
    region: Option<Arc<Region>>,
}

// SAFETY: the memory is the program's, whose pages any thread may access; the pointer is to bytes,
// which no thread owns.
unsafe impl Send for Hold {}

impl Hold {
    fn nothing() -> Hold {
        Hold {
            ptr: std::ptr::dangling_mut(),
            len: 0,
            region: None,
        }
    }

    fn of(
        region: Arc<Region>,
        need: Access,
        range: impl FnOnce(&Region) -> Result<Range<usize>, Refusal>,
    ) -> Result<Hold, Refusal> {
        if !region.access.contains(need) {
            return Err(Refusal::Right);
        }
        let range = range(&region)?;
        Ok(Hold {
            ptr: range.start as *mut u8,
            len: range.len(),
            region: Some(region),
        })
    }

    pub fn ptr(&self) -> *mut u8 {
        self.ptr
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Only the last `len` bytes of it.
    pub fn end(mut self, len: usize) -> Hold {
        let before = self.len.saturating_sub(len);
        self.ptr = self.ptr.wrapping_add(before);
        self.len -= before;
        self
    }

    fn range(&self) -> Range<usize> {
        self.ptr as usize..self.ptr as usize + self.len
    }

    /// Whether [`Hold::persist`] does not wait for a disk.
    pub fn persists_at_once(&self) -> bool {
        let at_once = |lasting: &Lasting| lasting.medium == lasting::Medium::Memory;
        self.region
            .as_ref()
            .is_none_or(|region| region.lasting.iter().all(at_once))
    }

    /// Returns when what has been written here would outlast the loss of power. Memory that can't
    /// last, which is registered for that only if the settings allow it, is left as it is.
    pub fn persist(&self) -> io::Result<()> {
        let Some(region) = &self.region else {
            return Ok(());
        };
        for lasting in &region.lasting {
            lasting.persist(self.range())?;
        }
        Ok(())
    }
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

/// Where the addresses that a process can have end.
const ADDRESSES: usize = if cfg!(target_arch = "x86_64") {
    1 << 47
} else {
    1 << 52
};

fn page_size() -> usize {
    static SIZE: OnceLock<usize> = OnceLock::new();
    // SAFETY: only asks.
    *SIZE.get_or_init(|| unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize })
}

/// The pages that the range touches.
fn pages(range: Range<usize>) -> Range<usize> {
    let page = page_size();
    range.start / page * page..range.end.div_ceil(page) * page
}
