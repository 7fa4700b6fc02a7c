//! The built library and the two it stands in for, as a loader sees them.
#![allow(dead_code, reason = "no test program uses all of it")]

use std::env;
use std::ffi::{CStr, CString, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Says where the library is, in a virtual machine.
pub const BESIDE: &str = "SOFTVERBS_TEST_BESIDE";

/// Where launcher and library in their release build lie, built here so that they are never stale.
fn release() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        if let Some(dir) = env::var_os(BESIDE) {
            return dir.into();
        }
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
        let build = Command::new(env!("CARGO"))
            .args([
                "build",
                "--release",
                "--locked",
                "-p",
                "softverbs",
                "--target-dir",
            ])
            .arg(target)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&build.stderr);
        assert!(build.status.success(), "{said}");
        target.join("release")
    })
}

/// The launcher of this build.
pub fn launcher_file() -> PathBuf {
    release().join("softverbs")
}

/// The library of this build.
pub fn ours_file() -> PathBuf {
    release().join("libsoftverbs.so")
}

/// A library that was opened, and stays so.
pub struct Library(*mut c_void);

// SAFETY: a handle of dlopen(3) is good in all threads.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    fn open(name: &CStr) -> Self {
        // SAFETY: these are libraries that do nothing when loaded.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{name:?} can't be loaded");
        Self(handle)
    }

    /// A function, NULL if there is none of that name.
    fn address(&self, name: &str) -> *mut c_void {
        let name = CString::new(name).unwrap();
        // SAFETY: the library stays open.
        unsafe { libc::dlsym(self.0, name.as_ptr()) }
    }

    /// # Safety
    /// `F` is the type of the function.
    pub unsafe fn function<F: Copy>(&self, name: &str) -> F {
        let address = self.address(name);
        assert!(!address.is_null(), "no {name}");
        assert_eq!(size_of::<F>(), size_of_val(&address));
        // SAFETY: as the caller promises.
        unsafe { std::mem::transmute_copy(&address) }
    }

    /// The file that has a function.
    pub fn file(&self, name: &str) -> PathBuf {
        let mut info = MaybeUninit::<libc::Dl_info>::uninit();
        // SAFETY: it fills the structure, or says that it did not.
        let found = unsafe { libc::dladdr(self.address(name), info.as_mut_ptr()) };
        assert_ne!(found, 0, "no {name}");
        // SAFETY: it did.
        let file = unsafe { CStr::from_ptr(info.assume_init().dli_fname) };
        Path::new(std::ffi::OsStr::from_bytes(file.to_bytes())).to_owned()
    }
}

pub fn ours() -> &'static Library {
    static OURS: OnceLock<Library> = OnceLock::new();
    OURS.get_or_init(|| Library::open(&CString::new(ours_file().as_os_str().as_bytes()).unwrap()))
}

pub fn libibverbs() -> &'static Library {
    static LIBIBVERBS: OnceLock<Library> = OnceLock::new();
    LIBIBVERBS.get_or_init(|| Library::open(c"libibverbs.so.1"))
}

pub fn librdmacm() -> &'static Library {
    static LIBRDMACM: OnceLock<Library> = OnceLock::new();
    LIBRDMACM.get_or_init(|| Library::open(c"librdmacm.so.1"))
}

/// What a call did to `errno`.
pub fn errno<T>(call: impl FnOnce() -> T) -> (T, i32) {
    // SAFETY: it is this thread's own.
    unsafe { *libc::__errno_location() = 0 };
    let result = call();
    // SAFETY: as above.
    (result, unsafe { *libc::__errno_location() })
}
