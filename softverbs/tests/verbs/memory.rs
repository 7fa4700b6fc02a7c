//! Memory and regions of it.

use super::*;

pub const LOCAL: u32 = 1;
pub const REMOTE_WRITE: u32 = 2;
pub const REMOTE_READ: u32 = 4;
pub const REMOTE_ATOMIC: u32 = 8;
pub const ZERO_BASED: u32 = 1 << 5;
pub const FLUSH_GLOBAL: u32 = 1 << 8;
pub const FLUSH_PERSISTENT: u32 = 1 << 9;
/// All that any memory can be registered for.
pub const ALL: u32 = LOCAL | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC | FLUSH_GLOBAL;

/// Pages of this process's own, or of a file.
pub struct Pages {
    start: *mut u8,
    len: usize,
}
// SAFETY: the tests see to who uses which part when.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    pub fn new(len: usize) -> Self {
        Self::map(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    /// Of a file, which is made as long.
    pub fn of_file(file: &std::fs::File, len: usize) -> Self {
        file.set_len(len as u64).unwrap();
        Self::map(len, libc::MAP_SHARED, file.as_raw_fd())
    }

    #[track_caller]
    fn map(len: usize, kind: c_int, fd: RawFd) -> Self {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let start = c!(libc::mmap(ptr::null_mut(), len, prot, kind, fd, 0));
        let error = io::Error::last_os_error();
        assert_ne!(start, libc::MAP_FAILED, "mmap: {error}");
        Pages {
            start: start.cast(),
            len,
        }
    }

    pub fn addr(&self) -> u64 {
        self.start as u64
    }

    pub fn ptr(&self) -> *mut u8 {
        self.start
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// The bytes. What peers write to it they must not write while they are looked at.
    pub fn bytes(&self) -> &[u8] {
        self.part(0, self.len)
    }

    #[allow(
        clippy::mut_from_ref,
        reason = "parts of it belong to different requests"
    )]
    pub fn part(&self, at: usize, len: usize) -> &mut [u8] {
        assert!(at <= self.len && len <= self.len - at);
        c!(slice::from_raw_parts_mut(self.start.add(at), len))
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        c!(libc::munmap(self.start.cast(), self.len));
    }
}

/// A registered part of pages.
pub struct Mr(pub *mut ibv_mr);
// SAFETY: a region is for all threads.
unsafe impl Send for Mr {}
// SAFETY: as above.
unsafe impl Sync for Mr {}

impl Mr {
    #[track_caller]
    pub fn new(pd: &Pd, pages: &Pages, at: usize, len: usize, access: u32) -> Self {
        assert!(at + len <= pages.len());
        let addr = pages.ptr().wrapping_add(at).cast();
        let mr = c!(ibv_reg_mr(pd.0, addr, len, access as c_int));
        Mr(made("ibv_reg_mr", mr))
    }

    pub fn lkey(&self) -> u32 {
        c!((*self.0).lkey)
    }

    pub fn rkey(&self) -> u32 {
        c!((*self.0).rkey)
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        destroyed("ibv_dereg_mr", c!(ibv_dereg_mr(self.0)));
    }
}

/// Pages that are registered, all of them.
pub struct Memory {
    // Deregistered before it is unmapped.
    mr: Option<Mr>,
    pages: Pages,
}

impl Memory {
    #[track_caller]
    pub fn new(pd: &Pd, len: usize, access: u32) -> Self {
        Self::of(pd, Pages::new(len), access)
    }

    #[track_caller]
    pub fn of(pd: &Pd, pages: Pages, access: u32) -> Self {
        let mr = Mr::new(pd, &pages, 0, pages.len(), access);
        Memory {
            mr: Some(mr),
            pages,
        }
    }

    pub fn addr(&self) -> u64 {
        self.pages.addr()
    }

    pub fn ptr(&self) -> *mut u8 {
        self.pages.ptr()
    }

    #[track_caller]
    pub fn mr(&self) -> &Mr {
        self.mr.as_ref().expect("it is registered")
    }

    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.pages.len());
        c!(ptr::copy_nonoverlapping(
            bytes.as_ptr(),
            self.ptr().add(at),
            bytes.len()
        ));
    }

    pub fn fill(&self, byte: u8) {
        c!(ptr::write_bytes(self.ptr(), byte, self.pages.len()));
    }

    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.pages.len());
        let mut bytes = vec![0; len];
        c!(ptr::copy_nonoverlapping(
            self.ptr().add(at),
            bytes.as_mut_ptr(),
            len
        ));
        bytes
    }

    pub fn word(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.read(at, 8).try_into().unwrap())
    }

    pub fn sge(&self, at: usize, len: usize) -> ibv_sge {
        ibv_sge {
            addr: self.addr() + at as u64,
            length: len as u32,
            lkey: self.mr().lkey(),
        }
    }

    /// What `ibv_advise_mr` returns for a part of it.
    pub fn advise(&self, advice: ib_uverbs_advise_mr_advice::Type, at: usize, len: usize) -> c_int {
        let mut range = [self.sge(at, len)];
        let pd = c!((*self.mr().0).pd);
        // As the inline function of infiniband/verbs.h finds it.
        let table = c!((*pd).context).wrapping_byte_sub(offset_of!(verbs_context, context));
        let advise_mr = c!((*table.cast::<verbs_context>()).advise_mr);
        let advise_mr = advise_mr.expect("ibv_advise_mr");
        c!(advise_mr(pd, advice, 0, range.as_mut_ptr(), 1))
    }

    /// For the other side.
    pub fn at(&self, at: usize) -> At {
        At {
            addr: self.addr() + at as u64,
            rkey: self.mr().rkey(),
        }
    }

    /// Deregisters it, and leaves it mapped.
    pub fn deregister(&mut self) {
        self.mr = None;
    }
}

/// Bytes that are different everywhere, and for every seed.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = vec![0; len];
    for chunk in bytes.chunks_mut(8) {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        chunk.copy_from_slice(&(state ^ state >> 29).to_le_bytes()[..chunk.len()]);
    }
    bytes
}

/// Two contents that should be equal, told apart without printing all of them.
#[track_caller]
pub fn same(what: &str, seen: &[u8], expected: &[u8]) {
    assert_eq!(seen.len(), expected.len(), "{what}: the length");
    if seen == expected {
        return;
    }
    if let Some(at) = (0..seen.len()).find(|at| seen[*at] != expected[*at]) {
        let end = (at + 16).min(seen.len());
        panic!(
            "{what}: of {} bytes, those from {at} on are {:02x?} instead of {:02x?}",
            seen.len(),
            &seen[at..end],
            &expected[at..end]
        );
    }
}
