//! The functions that programs call, in place of those of libibverbs and librdmacm.

pub mod cm;
pub mod cq;
pub mod device;
pub mod memory;
pub mod post;
pub mod qp;
pub mod srq;
pub mod strings;
pub mod unsupported;
pub mod wr;

use crate::objects::lock;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, c_char, c_int};
use std::sync::MutexGuard;
use unsupported::set_errno;

/// What guards that which the entry points have for the whole process.
pub struct Locks {
    _loose: MutexGuard<'static, BTreeMap<u32, usize>>,
    _peers: MutexGuard<'static, BTreeSet<u32>>,
    _domain: MutexGuard<'static, usize>,
}

impl Locks {
    pub fn take() -> Self {
        Locks {
            _loose: lock(&qp::LOOSE),
            _peers: lock(&cm::PEERS),
            _domain: lock(&cm::DOMAIN),
        }
    }
}

/// How many objects of a kind the program has now: `cm_id`, `qp`, `cq`, `mr`, `pd`, `srq`; -1 for
/// others. For tests, which find it by its name.
///
/// # Safety
/// The kind is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softverbs_count(kind: *const c_char) -> c_int {
    // SAFETY: as the caller promises.
    let kind = unsafe { CStr::from_ptr(kind) };
    let count = kind.to_str().ok().and_then(crate::objects::alive::count);
    count.map_or(-1, |n| n as c_int)
}

/// What a function returns that gives -1 and sets errno.
pub(crate) fn minus_one(result: Result<(), i32>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => {
            set_errno(error);
            -1
        }
    }
}

/// What a function returns that gives the errno; it is set, too, since programs look there.
pub(crate) fn errno(result: Result<(), i32>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => {
            set_errno(error);
            error
        }
    }
}

/// What a function returns that gives a pointer, or NULL and sets errno.
pub(crate) fn pointer<T>(result: Result<*mut T, i32>) -> *mut T {
    result.unwrap_or_else(|error| {
        set_errno(error);
        std::ptr::null_mut()
    })
}
