use std::ffi::{CStr, c_int};
use std::fmt;

/// The errno of a failed call; shown as its text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub c_int);

impl Errno {
    /// What the last failed call of this thread left behind.
    pub fn last() -> Self {
        // SAFETY: points to the errno of this thread.
        Errno(unsafe { *libc::__errno_location() })
    }

    /// Leaves it behind for the program.
    pub fn leave(self) {
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = self.0 }
    }

    /// The result of a call that returns an errno.
    pub fn returned(ret: c_int) -> Result<(), Errno> {
        if ret == 0 { Ok(()) } else { Err(Errno(ret)) }
    }

    /// The same of a call that programs may take for one of those that set errno.
    pub fn left(ret: c_int) -> Result<(), Errno> {
        Errno::returned(ret).inspect_err(|errno| errno.leave())
    }

    /// The result of a call that returns -1 and leaves the cause in errno.
    pub fn set(ret: c_int) -> Result<(), Errno> {
        if ret == 0 { Ok(()) } else { Err(Errno::last()) }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let mut text = [0u8; 128];
        // SAFETY: the size is that of the buffer; the text is cut to fit.
        unsafe { libc::strerror_r(self.0, text.as_mut_ptr().cast(), text.len() - 1) };
        let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
        f.write_str(text.to_str().unwrap_or("unknown error"))
    }
}
