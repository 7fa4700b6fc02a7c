use super::error::{Steps, failed, room};
use super::{Error, Peer, Result};
use crate::verbs::{Access, Errno, Mr, Remote, SendOps, Sge};
use bitflags::bitflags;
use std::ffi::{c_int, c_void};

bitflags! {
    /// What a region may be used for: `RPMA_MR_USAGE_*`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Usage: u8 {
        const READ_SRC = 1 << 0;
        const READ_DST = 1 << 1;
        const WRITE_SRC = 1 << 2;
        const WRITE_DST = 1 << 3;
        const FLUSH_TYPE_VISIBILITY = 1 << 4;
        const FLUSH_TYPE_PERSISTENT = 1 << 5;
        const SEND = 1 << 6;
        const RECV = 1 << 7;
    }
}

impl Usage {
    /// The rights that a device needs to give for this usage.
    fn access(self, peer: &Peer) -> Access {
        let native_flush = peer.native().contains(SendOps::FLUSH);
        // Without native flush, a flush is a read of what is flushed.
        let flush = |native| {
            if native_flush {
                native
            } else {
                Access::REMOTE_READ
            }
        };
        let mut access = Access::empty();
        for usage in self {
            access |= match usage {
                Usage::READ_SRC => Access::REMOTE_READ,
                // iWARP answers a read by a write into its destination.
                Usage::READ_DST if peer.is_iwarp() => Access::LOCAL_WRITE | Access::REMOTE_WRITE,
                Usage::READ_DST | Usage::WRITE_SRC | Usage::RECV => Access::LOCAL_WRITE,
                Usage::WRITE_DST => Access::LOCAL_WRITE | Access::REMOTE_WRITE,
                Usage::FLUSH_TYPE_VISIBILITY => flush(Access::FLUSH_GLOBAL),
                Usage::FLUSH_TYPE_PERSISTENT => flush(Access::FLUSH_PERSISTENT),
                _ => Access::empty(),
            };
        }
        access
    }
}

/// Memory of this process, registered for use by its device.
pub struct MrLocal {
    mr: Mr,
    /// That of `mr`, at hand for every operation.
    lkey: u32,
    ptr: *mut c_void,
    size: usize,
    usage: Usage,
}

impl MrLocal {
    /// u64 address, u64 size, u32 rkey, u8 usage, all little endian.
    pub const DESCRIPTOR_SIZE: usize = 21;

    /// # Safety
    /// The memory stays mapped as long as the region exists, unless the device
    /// pages on demand.
    pub unsafe fn register(
        peer: &Peer,
        ptr: *mut c_void,
        size: usize,
        usage: Usage,
    ) -> Result<Self> {
        // SAFETY: passed on to the caller.
        let mr = unsafe { register(peer, ptr, size, usage.access(peer)) }?;
        Ok(MrLocal {
            lkey: mr.lkey(),
            mr,
            ptr,
            size,
            usage,
        })
    }

    pub fn delete(self) -> Result<()> {
        let mut steps = Steps::new();
        steps.step("ibv_dereg_mr", self.mr.close());
        steps.done()
    }

    pub fn ptr(&self) -> *mut c_void {
        self.ptr
    }

    pub fn size(&self) -> usize {
        self.size
    }

    pub fn descriptor(&self) -> [u8; Self::DESCRIPTOR_SIZE] {
        let mut descriptor = [0; Self::DESCRIPTOR_SIZE];
        descriptor[..8].copy_from_slice(&(self.ptr as u64).to_le_bytes());
        descriptor[8..16].copy_from_slice(&(self.size as u64).to_le_bytes());
        descriptor[16..20].copy_from_slice(&self.mr.rkey().to_le_bytes());
        descriptor[20] = self.usage.bits();
        descriptor
    }

    pub fn advise(&self, offset: usize, len: usize, advice: c_int, flags: u32) -> Result<()> {
        let range = LocalRange::new(self, offset, len)?.sge();
        self.mr.advise(advice, flags, range).map_err(|errno| {
            let error = failed!(
                "ibv_advise_mr",
                "advice={advice}, flags={flags:#x}, addr={:#x}, length={len}",
                range.addr
            )(errno);
            match errno.0 {
                libc::EOPNOTSUPP => Error::NOSUPP,
                libc::EFAULT | libc::EINVAL => Error::INVAL,
                _ => error,
            }
        })
    }
}

/// Registers memory, with less than was asked for where the device has less.
///
/// # Safety
/// As [`Mr::register`].
unsafe fn register(peer: &Peer, ptr: *mut c_void, size: usize, access: Access) -> Result<Mr> {
    // SAFETY: passed on to the caller.
    let once = |access| unsafe { Mr::register(peer.pd(), ptr, size, access) };
    // Some memory, such as a file on a DAX filesystem, can only be paged on demand.
    let paged = |access: Access| match once(access) {
        Err(Errno(libc::EOPNOTSUPP)) if peer.odp() => once(access | Access::ON_DEMAND),
        result => result,
    };
    let first = match paged(access) {
        Ok(mr) => return Ok(mr),
        Err(errno) => errno,
    };
    // A device may tell memory that is not persistent, and refuse to say it were.
    if first.0 == libc::EINVAL
        && access.contains(Access::FLUSH_PERSISTENT)
        && let Ok(mr) = paged(access - Access::FLUSH_PERSISTENT)
    {
        log!(
            Warning,
            "the memory at {ptr:p} (length={size}) is not persistent for this device: it will \
             refuse to flush it to persistence"
        );
        return Ok(mr);
    }
    let odp = if peer.odp() { "" } else { "no " };
    Err(failed!(
        "ibv_reg_mr",
        "addr={ptr:p}, length={size}, access={:#x}; the device has {odp}on-demand paging, and \
         max_mr_size is {}",
        access.bits(),
        peer.limits().max_mr_size
    )(first))
}

/// Memory of the other side, as its descriptor tells.
pub struct MrRemote {
    addr: u64,
    size: u64,
    rkey: u32,
    usage: Usage,
}

impl MrRemote {
    pub fn from_descriptor(descriptor: &[u8]) -> Result<Box<Self>> {
        let Some(fields) = descriptor.first_chunk::<{ MrLocal::DESCRIPTOR_SIZE }>() else {
            log!(
                Error,
                "rpma_mr_remote_from_descriptor(): a descriptor of {} bytes, where {} or more are \
                 due: it was not sent whole, or is none that rpma_mr_get_descriptor() has made",
                descriptor.len(),
                MrLocal::DESCRIPTOR_SIZE
            );
            return Err(Error::INVAL);
        };
        let u64_at = |at| {
            fields[at..]
                .first_chunk()
                .map_or(0, |b| u64::from_le_bytes(*b))
        };
        let rkey = fields[16..]
            .first_chunk()
            .map_or(0, |b| u32::from_le_bytes(*b));
        let (addr, size) = (u64_at(0), u64_at(8));
        let usage = Usage::from_bits_retain(fields[20]);
        if usage.is_empty() {
            log!(
                Error,
                "rpma_mr_remote_from_descriptor(): the descriptor says of no use of the memory: it is \
                 none that rpma_mr_get_descriptor() has made, or was damaged on the way"
            );
            return Err(Error::INVAL);
        }
        let room = room()?;
        log!(
            Debug,
            "remote memory: address={addr:#x}, size={size}, rkey={rkey:#x}, usage={:#x}",
            usage.bits()
        );
        let remote = MrRemote {
            addr,
            size,
            rkey,
            usage,
        };
        Ok(Box::write(room, remote))
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    pub fn usage(&self) -> Usage {
        self.usage
    }
}

/// A part of a local region; the device checks that it is inside.
pub struct LocalRange<'a> {
    mr: &'a MrLocal,
    offset: usize,
    len: u32,
}

impl<'a> LocalRange<'a> {
    /// Refuses a length that a work request can't express.
    #[inline(always)]
    pub fn new(mr: &'a MrLocal, offset: usize, len: usize) -> Result<Self> {
        let len = u32::try_from(len).map_err(|_| Error::INVAL)?;
        Ok(LocalRange { mr, offset, len })
    }

    #[inline(always)]
    pub(super) fn first(mr: &'a MrLocal, len: u32) -> Self {
        LocalRange { mr, offset: 0, len }
    }

    #[inline(always)]
    pub(super) fn sge(&self) -> Sge {
        Sge {
            addr: (self.mr.ptr as u64).wrapping_add(self.offset as u64),
            length: self.len,
            lkey: self.mr.lkey,
        }
    }
}

/// A place in a remote region; the device checks that it is inside.
pub struct RemoteRange<'a> {
    pub(super) mr: &'a MrRemote,
    pub(super) offset: usize,
}

impl<'a> RemoteRange<'a> {
    #[inline(always)]
    pub fn new(mr: &'a MrRemote, offset: usize) -> Self {
        RemoteRange { mr, offset }
    }

    #[inline(always)]
    pub(super) fn remote(&self) -> Remote {
        Remote {
            addr: self.mr.addr.wrapping_add(self.offset as u64),
            rkey: self.mr.rkey,
        }
    }

    /// How many bytes of the region lie behind the place.
    #[inline(always)]
    pub(super) fn rest(&self) -> u64 {
        self.mr.size.saturating_sub(self.offset as u64)
    }
}
