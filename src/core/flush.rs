use super::error::Steps;
use super::{Error, LocalRange, MrLocal, Peer, Result, Usage};
use crate::verbs::{Errno, NativeFlush, Sge};
use std::ffi::c_void;
use std::ptr;

/// What a flush without the native operation reads: this many bytes.
pub const RAW_LEN: u64 = 8;

/// How a connection flushes.
pub enum Flush {
    /// By the FLUSH operation of its QP.
    Native(NativeFlush),
    /// By a read after the writes, into a buffer for nothing else.
    Raw(Buffer),
}

impl Flush {
    pub fn new(native: Option<NativeFlush>, peer: &Peer) -> Result<Self> {
        match native {
            Some(native) => Ok(Flush::Native(native)),
            None => Buffer::new(peer).map(Flush::Raw),
        }
    }

    pub fn delete(self) -> Result<()> {
        match self {
            Flush::Native(_) => Ok(()),
            Flush::Raw(buffer) => buffer.delete(),
        }
    }
}

/// The page that raw flushes read into, in order of release.
pub struct Buffer {
    mr: MrLocal,
    page: Page,
}

impl Buffer {
    fn new(peer: &Peer) -> Result<Self> {
        let page = Page::map()?;
        // SAFETY: the page is unmapped after the region is gone.
        let mr = unsafe { MrLocal::register(peer, page.addr, RAW_LEN as usize, Usage::READ_DST) }?;
        Ok(Buffer { mr, page })
    }

    fn delete(self) -> Result<()> {
        let mut steps = Steps::new();
        steps.then(self.mr.delete());
        steps.then(self.page.unmap());
        steps.done()
    }

    /// Its first bytes.
    #[inline(always)]
    pub fn sge(&self, len: u64) -> Sge {
        LocalRange::first(&self.mr, len.min(RAW_LEN) as u32).sge()
    }
}

struct Page {
    addr: *mut c_void,
    size: usize,
}

impl Page {
    fn map() -> Result<Self> {
        // SAFETY: takes no pointer.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let Ok(size) = usize::try_from(size) else {
            log!(Fatal, "sysconf(_SC_PAGESIZE) failed: {}", Errno::last());
            return Err(Error::PROVIDER);
        };
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
        );
        // SAFETY: maps new memory where there is room.
        let addr = unsafe { libc::mmap(ptr::null_mut(), size, protection, flags, -1, 0) };
        if addr == libc::MAP_FAILED {
            return Err(Error::NOMEM);
        }
        Ok(Page { addr, size })
    }

    fn unmap(self) -> Result<()> {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: mapped by `map`, with this size, and not used again.
        match unsafe { libc::munmap(this.addr, this.size) } {
            0 => Ok(()),
            _ => Err(Error::INVAL),
        }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, with this size, and not used again.
        unsafe { libc::munmap(self.addr, self.size) };
    }
}
