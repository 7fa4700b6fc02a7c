//! Regions, the domains that they belong to, and what is held of them.

use super::lasting::{Lasting, Medium};
use super::maps;
use super::pages::{ADDRESSES, page_size, pages};
use crate::proto::Right;
use crate::settings::Settings;
use crate::valgrind;
use bitflags::bitflags;
use rustix::io::Errno;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

bitflags! {
    /// What may be done with a region: `enum ibv_access_flags`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Access: u32 {
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
    pub fn of(right: Right) -> Access {
        Access::from_bits_truncate(right.bit())
    }

    pub fn check(flags: u32, settings: &Settings) -> Result<Access, Errno> {
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
}

#[derive(Clone, Copy)]
pub enum Key {
    Local,
    Remote,
}

/// Registered memory. It is found by its keys, and gone when the last that holds it lets go.
#[derive(Debug)]
pub struct Region {
    pub domain: Arc<Domain>,
    pub lkey: u32,
    pub rkey: u32,
    pub access: Access,
    pub memory: Range<usize>,
    /// What the first byte's address is in an access.
    pub iova: u64,
    pub lasting: Vec<Lasting>,
    pub gone: Arc<OnceLock<()>>,
}

impl Region {
    /// The region, as yet without keys.
    pub fn new(
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

    pub fn key(&self, kind: Key) -> u32 {
        match kind {
            Key::Local => self.lkey,
            Key::Remote => self.rkey,
        }
    }

    /// Where the range is in memory.
    pub fn range(&self, addr: u64, len: u64) -> Result<Range<usize>, Refusal> {
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
pub fn wait_gone(region: Arc<Region>) {
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
    pub fn nothing() -> Hold {
        Hold {
            ptr: std::ptr::dangling_mut(),
            len: 0,
            region: None,
        }
    }

    pub fn of(
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

    pub fn range(&self) -> Range<usize> {
        self.ptr as usize..self.ptr as usize + self.len
    }

    /// Whether [`Hold::persist`] does not wait for a disk.
    pub fn persists_at_once(&self) -> bool {
        let at_once = |lasting: &Lasting| lasting.medium != Medium::File;
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
