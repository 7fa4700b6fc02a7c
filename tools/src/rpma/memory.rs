//! Memory, its registration, and what one side tells the other of it.

use super::{Peer, Result, check, sys};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::ffi::{c_int, c_void};
use std::fs::File;
use std::ptr::{self, NonNull};
use std::{io, slice};

/// Memory of this process that others may write to at any time, so that nobody gets a reference to it.
#[derive(Debug)]
pub struct Memory {
    start: NonNull<u8>,
    mapped: usize,
    size: usize,
}

/// What is behind memory.
#[derive(Debug, Clone, Copy)]
pub enum Backing<'a> {
    Dram,
    /// A file or a DAX device, which is that long at least.
    File(&'a File),
}

impl Memory {
    /// Maps memory of `size` bytes, or of one if that is 0. It is rounded up to `granule`.
    pub fn new(size: usize, backing: Backing<'_>, granule: usize) -> io::Result<Self> {
        let size = size.max(1);
        let mapped = size
            .checked_next_multiple_of(granule.max(1))
            .filter(|mapped| isize::try_from(*mapped).is_ok())
            .ok_or(io::ErrorKind::OutOfMemory)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let start = unsafe {
            match backing {
                Backing::Dram => mmap_anonymous(ptr::null_mut(), mapped, access, MapFlags::SHARED),
                Backing::File(file) => {
                    mmap(ptr::null_mut(), mapped, access, MapFlags::SHARED, file, 0)
                }
            }
        }
        .map_err(|errno| {
            let error = io::Error::from(errno);
            let why = format!("{mapped} bytes of memory can't be mapped: {error}");
            io::Error::new(error.kind(), why)
        })?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            start,
            mapped,
            size,
        })
    }

    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Where a range begins.
    ///
    /// # Panics
    /// If it is not within the memory, which is a mistake of the program.
    fn range(&self, offset: usize, len: usize) -> *mut u8 {
        let end = offset.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.size),
            "{len} bytes at {offset} of {}",
            self.size
        );
        // SAFETY: within the mapping.
        unsafe { self.start.as_ptr().add(offset) }
    }

    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let start = self.range(offset, bytes.len());
        // SAFETY: the range is mapped, and no reference to it exists.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len()) };
    }

    pub fn fill(&self, offset: usize, len: usize, byte: u8) {
        let start = self.range(offset, len);
        // SAFETY: as above.
        unsafe { ptr::write_bytes(start, byte, len) };
    }

    /// Copies a range out, into as many bytes as it is to have.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        let start = self.range(offset, bytes.len());
        // SAFETY: as above.
        unsafe { ptr::copy_nonoverlapping(start, bytes.as_mut_ptr(), bytes.len()) };
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the mapping any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.mapped) };
    }
}

/// What may be done to a region, and by whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage(pub c_int);

/// Memory that is registered with a peer. Whatever is under way on it when it is dropped fails.
#[derive(Debug)]
pub struct Region {
    raw: *mut sys::rpma_mr_local,
    memory: Option<Memory>,
    _peer: Peer,
}

impl Region {
    pub fn new(peer: &Peer, memory: Memory, usage: Usage) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: the memory is mapped until after the region is deregistered.
        let code = unsafe {
            let start = memory.start.as_ptr().cast();
            sys::rpma_mr_reg(peer.raw(), start, memory.size, usage.0, &raw mut raw)
        };
        check("rpma_mr_reg", code)?;
        Ok(Self {
            raw,
            memory: Some(memory),
            _peer: peer.clone(),
        })
    }

    #[must_use]
    pub fn memory(&self) -> &Memory {
        self.memory
            .as_ref()
            .expect("it is there until the region is dropped")
    }

    pub(super) fn raw(&self) -> *mut sys::rpma_mr_local {
        self.raw
    }

    /// What the other side needs to get at it.
    pub fn descriptor(&self) -> Result<Vec<u8>> {
        let mut size = 0;
        // SAFETY: the region is one.
        let code = unsafe { sys::rpma_mr_get_descriptor_size(self.raw, &raw mut size) };
        check("rpma_mr_get_descriptor_size", code)?;
        let mut descriptor = vec![0; size];
        // SAFETY: there is room for as much as it said.
        let code = unsafe { sys::rpma_mr_get_descriptor(self.raw, descriptor.as_mut_ptr().cast()) };
        check("rpma_mr_get_descriptor", code).map(|()| descriptor)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the region is not used any more.
        let code = unsafe { sys::rpma_mr_dereg(&raw mut self.raw) };
        if check("rpma_mr_dereg", code).is_err() {
            // The device may still write there.
            std::mem::forget(self.memory.take());
        }
    }
}

/// Memory of the other side.
#[derive(Debug)]
pub struct Remote(*mut sys::rpma_mr_remote);

impl Remote {
    pub fn new(descriptor: &[u8]) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: the descriptor is as long as is said.
        let code = unsafe {
            let start = descriptor.as_ptr().cast::<c_void>();
            sys::rpma_mr_remote_from_descriptor(start, descriptor.len(), &raw mut raw)
        };
        check("rpma_mr_remote_from_descriptor", code).map(|()| Self(raw))
    }

    #[must_use]
    pub fn size(&self) -> usize {
        let mut size = 0;
        // SAFETY: the region is one.
        let code = unsafe { sys::rpma_mr_remote_get_size(self.0, &raw mut size) };
        check("rpma_mr_remote_get_size", code).map_or(0, |()| size)
    }

    pub(super) fn raw(&self) -> *mut sys::rpma_mr_remote {
        self.0
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // SAFETY: it is not used any more.
        let code = unsafe { sys::rpma_mr_remote_delete(&raw mut self.0) };
        let _ = check("rpma_mr_remote_delete", code);
    }
}

/// What one side tells the other about itself.
#[derive(Debug)]
pub struct PeerConfig(*mut sys::rpma_peer_cfg);

impl PeerConfig {
    pub fn new(direct_write_to_pmem: bool) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: room for a handle.
        check("rpma_peer_cfg_new", unsafe {
            sys::rpma_peer_cfg_new(&raw mut raw)
        })?;
        let made = Self(raw);
        // SAFETY: the configuration is one.
        let code =
            unsafe { sys::rpma_peer_cfg_set_direct_write_to_pmem(raw, direct_write_to_pmem) };
        check("rpma_peer_cfg_set_direct_write_to_pmem", code).map(|()| made)
    }

    /// That of the other side.
    pub fn from_descriptor(descriptor: &[u8]) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: the descriptor is as long as is said.
        let code = unsafe {
            let start = descriptor.as_ptr().cast::<c_void>();
            sys::rpma_peer_cfg_from_descriptor(start, descriptor.len(), &raw mut raw)
        };
        check("rpma_peer_cfg_from_descriptor", code).map(|()| Self(raw))
    }

    pub fn descriptor(&self) -> Result<Vec<u8>> {
        let mut size = 0;
        // SAFETY: the configuration is one.
        let code = unsafe { sys::rpma_peer_cfg_get_descriptor_size(self.0, &raw mut size) };
        check("rpma_peer_cfg_get_descriptor_size", code)?;
        let mut descriptor = vec![0; size];
        // SAFETY: there is room for as much as it said.
        let code =
            unsafe { sys::rpma_peer_cfg_get_descriptor(self.0, descriptor.as_mut_ptr().cast()) };
        check("rpma_peer_cfg_get_descriptor", code).map(|()| descriptor)
    }

    pub(super) fn raw(&self) -> *const sys::rpma_peer_cfg {
        self.0
    }
}

impl Drop for PeerConfig {
    fn drop(&mut self) {
        // SAFETY: it is not used any more.
        let code = unsafe { sys::rpma_peer_cfg_delete(&raw mut self.0) };
        let _ = check("rpma_peer_cfg_delete", code);
    }
}

/// What a C function gave as pointer and length.
///
/// # Safety
/// It is NULL, or that many bytes are there and do not change while they are copied.
pub(super) unsafe fn copy(start: *const c_void, len: usize) -> Vec<u8> {
    if start.is_null() {
        return vec![];
    }
    // SAFETY: vouched for.
    unsafe { slice::from_raw_parts(start.cast(), len) }.to_vec()
}
