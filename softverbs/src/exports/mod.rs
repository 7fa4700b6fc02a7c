//! The functions that programs call, in place of those of libibverbs and librdmacm.

pub mod cm;
pub mod cq;
pub mod device;
pub mod memory;
pub mod post;
pub mod qp;
mod qp_handle;
mod returns;
pub mod srq;
pub mod strings;
pub mod unsupported;
pub mod wr;

use std::ffi::{CStr, c_char, c_int};

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
