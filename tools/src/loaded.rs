//! The shared libraries that the loader found for this program.

use std::ffi::{CStr, OsStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::{fs, slice};

/// A shared library of this process.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// Its file, with no symbolic link in it.
    pub file: PathBuf,
    /// What it says of its version in a note named `librpma`, as only ours does.
    pub noted_version: Option<String>,
}

/// The library of the functions that this program calls.
#[must_use]
pub fn librpma() -> Option<Loaded> {
    of(crate::rpma::sys::rpma_err_2str as *const c_void)
}

/// What stands for libibverbs here.
#[must_use]
pub fn libibverbs() -> Option<Loaded> {
    of(rdma_sys::ibv_get_device_list as *const c_void)
}

/// What stands for librdmacm here.
#[must_use]
pub fn librdmacm() -> Option<Loaded> {
    of(rdma_sys::rdma_create_id as *const c_void)
}

/// The release of rdma-core that a libibverbs is of, which its file's name tells and nothing else:
/// `libibverbs.so.1.14.44.0` is of rdma-core 44.
#[must_use]
pub fn rdma_core_release(libibverbs: &Path) -> Option<u32> {
    let name = libibverbs.file_name()?.to_str()?;
    let version = name.strip_prefix("libibverbs.so.1.")?;
    version.split('.').nth(1)?.parse().ok()
}

/// Whether that is softverbs, in place of the library.
#[must_use]
pub fn is_softverbs(library: &Path) -> bool {
    let name = library.file_name().and_then(OsStr::to_str);
    name.is_some_and(|name| name.starts_with("libsoftverbs.so"))
}

/// The library that a function is in.
fn of(function: *const c_void) -> Option<Loaded> {
    let mut info = MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: there is room for the answer.
    if unsafe { libc::dladdr(function, info.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: it was found; the name is a string of the loader's.
    let name = unsafe { CStr::from_ptr(info.assume_init().dli_fname) };
    let name = Path::new(OsStr::from_bytes(name.to_bytes()));
    let mut search = Search {
        address: function as u64,
        notes: vec![],
    };
    // SAFETY: the function is one of the kind asked for, and has what it works on to itself.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    Some(Loaded {
        file: fs::canonicalize(name).unwrap_or_else(|_| name.to_owned()),
        noted_version: search.notes.iter().find_map(|notes| version(notes)),
    })
}

/// The notes of the library that an address is in.
struct Search {
    address: u64,
    notes: Vec<&'static [u8]>,
}

/// # Safety
/// As `dl_iterate_phdr` calls it, with a [`Search`].
unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    // SAFETY: vouched for.
    let (info, search) = unsafe { (&*info, &mut *search.cast::<Search>()) };
    // SAFETY: the loader has as many headers as it says.
    let headers = unsafe { slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let within = |header: &libc::Elf64_Phdr| {
        let start = info.dlpi_addr + header.p_vaddr;
        header.p_type == libc::PT_LOAD && (start..start + header.p_memsz).contains(&search.address)
    };
    if !headers.iter().any(within) {
        return 0;
    }
    let notes = headers
        .iter()
        .filter(|header| header.p_type == libc::PT_NOTE);
    search.notes.extend(notes.map(|header| {
        let start = (info.dlpi_addr + header.p_vaddr) as *const u8;
        // SAFETY: notes are part of what is loaded, and a library that this program needs stays.
        unsafe { slice::from_raw_parts(start, header.p_memsz as usize) }
    }));
    1
}

/// The version among notes: type `NT_VERSION`, by the name of `librpma`.
fn version(mut notes: &[u8]) -> Option<String> {
    const NT_VERSION: usize = 1;
    loop {
        let (head, rest) = notes.split_first_chunk::<12>()?;
        let number = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|byte| head[at + byte]));
        let [name_size, size, kind] = [0, 4, 8].map(|at| number(at) as usize);
        let (name, rest) = rest.split_at_checked(name_size.next_multiple_of(4))?;
        let (text, rest) = rest.split_at_checked(size.next_multiple_of(4))?;
        if kind == NT_VERSION && name.starts_with(b"librpma\0") {
            let text = CStr::from_bytes_until_nul(text).ok()?;
            return Some(text.to_string_lossy().into_owned());
        }
        notes = rest;
    }
}
