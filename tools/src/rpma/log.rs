//! The log of the library, kept for whoever wants to know why a call failed.

use super::sys;
use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int};
use std::sync::{Mutex, Once};

unsafe extern "C" {
    /// In log.c: formats a message and gives it to [`rpma_tools_log_line`].
    fn rpma_tools_log(
        level: sys::rpma_log_level,
        file_name: *const c_char,
        line_no: c_int,
        function_name: *const c_char,
        message_format: *const c_char,
        ...
    );
}

thread_local! {
    /// What a call of this thread has said, until it is known whether it failed.
    static ERRORS: RefCell<Vec<String>> = const { RefCell::new(vec![]) };
    /// What a call of this thread has remarked, see [`remarks`].
    static REMARKS: RefCell<Vec<String>> = const { RefCell::new(vec![]) };
}
static WARNINGS: Mutex<Vec<String>> = Mutex::new(vec![]);

/// Takes the log over, once.
pub(super) fn collect() {
    static ONCE: Once = Once::new();
    // SAFETY: the function is one of the kind that is asked for, and thread-safe.
    ONCE.call_once(|| unsafe {
        sys::rpma_log_set_function(Some(rpma_tools_log));
    });
}

/// # Safety
/// `line` is a C string.
#[unsafe(no_mangle)]
unsafe extern "C" fn rpma_tools_log_line(level: c_int, line: *const c_char) {
    // SAFETY: vouched for.
    let line = unsafe { CStr::from_ptr(line) };
    let line = line.to_string_lossy().trim_end().to_owned();
    if level <= sys::RPMA_LOG_LEVEL_ERROR {
        ERRORS.with_borrow_mut(|errors| errors.push(line));
    } else if level == sys::RPMA_LOG_LEVEL_INFO {
        REMARKS.with_borrow_mut(|remarks| remarks.push(line));
    } else if level == sys::RPMA_LOG_LEVEL_WARNING {
        WARNINGS
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .push(line);
    }
}

/// The errors that this thread's calls have logged since it was last asked.
pub(super) fn take_errors() -> Vec<String> {
    ERRORS.take()
}

/// Does something, and gives what the library remarks on it at level INFO, which is not logged else.
pub(super) fn remarks<T>(work: impl FnOnce() -> T) -> (T, Vec<String>) {
    let set = |level| {
        // SAFETY: it takes any number, and refuses what is none of its levels.
        unsafe { sys::rpma_log_set_threshold(sys::RPMA_LOG_THRESHOLD, level) };
    };
    REMARKS.take();
    set(sys::RPMA_LOG_LEVEL_INFO);
    let result = work();
    set(sys::RPMA_LOG_LEVEL_WARNING);
    (result, REMARKS.take())
}

/// The warnings since it was last asked.
pub fn take_warnings() -> Vec<String> {
    std::mem::take(
        &mut *WARNINGS
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner()),
    )
}
