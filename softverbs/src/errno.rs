//! `errno`.

use std::io;

/// The number of an error of the operating system; EIO for others.
pub fn errno_of(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

pub fn set_errno(errno: i32) {
    // SAFETY: it is the calling thread's own.
    unsafe { *libc::__errno_location() = errno };
}
