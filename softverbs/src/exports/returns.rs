//! How results are given to C.

pub use crate::errno::set_errno;
use std::ffi::c_int;

/// What a function returns that gives -1 and sets errno.
pub fn minus_one(result: Result<(), i32>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => {
            set_errno(error);
            -1
        }
    }
}

/// What a function returns that gives the errno; it is set, too, since programs look there.
pub fn errno(result: Result<(), i32>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => {
            set_errno(error);
            error
        }
    }
}

/// What a function returns that gives a pointer, or NULL and sets errno.
pub fn pointer<T>(result: Result<*mut T, i32>) -> *mut T {
    result.unwrap_or_else(|error| {
        set_errno(error);
        std::ptr::null_mut()
    })
}
