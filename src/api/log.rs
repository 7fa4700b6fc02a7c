//! The log of the library.

use super::{CEnum, call, export, out};
use crate::core::Error;
use crate::log;
use std::ffi::{c_char, c_int};
use std::marker::PhantomData;
use std::sync::atomic::Ordering;

/// How grave a message is. A threshold lets pass what is as grave or graver.
#[repr(C)]
pub enum rpma_log_level {
    /// As a threshold: no message at all.
    RPMA_LOG_DISABLED = -1,
    /// The library can't go on.
    RPMA_LOG_LEVEL_FATAL,
    /// Something failed, and the caller was told so by a code.
    RPMA_LOG_LEVEL_ERROR,
    /// Something is amiss that does not make the function fail.
    RPMA_LOG_LEVEL_WARNING,
    /// Steps in the life of a connection.
    RPMA_LOG_LEVEL_NOTICE,
    /// What the library found out and decided.
    RPMA_LOG_LEVEL_INFO,
    /// What helps to find faults.
    RPMA_LOG_LEVEL_DEBUG,
}

/// The thresholds of the log.
#[repr(C)]
pub enum rpma_log_threshold {
    /// What gets to the log function at all; RPMA_LOG_LEVEL_WARNING at first.
    RPMA_LOG_THRESHOLD,
    /// What the log function built in writes to stderr too; RPMA_LOG_DISABLED at
    /// first. A log function of your own may go by it or not.
    RPMA_LOG_THRESHOLD_AUX,
    /// How many thresholds there are.
    RPMA_LOG_THRESHOLD_MAX,
}

/// A function that gets the messages of the log: their level, where they come from,
/// and a format with its arguments as for printf(3), ending in a newline.
///
/// It is called by whatever thread has something to say, several at a time, so it
/// must be thread-safe. The strings live only until it returns.
pub type rpma_log_function = unsafe extern "C" fn(
    level: CEnum<rpma_log_level>,
    file_name: *const c_char,
    line_no: c_int,
    function_name: *const c_char,
    message_format: *const c_char,
    ...
);

/// Sets a threshold of the log, for the whole process.
///
/// `threshold` is one of `enum rpma_log_threshold`.
///
/// `level` is one of `enum rpma_log_level`.
///
/// Thread-safe, also while others log.
///
/// Errors:
/// - RPMA_E_INVAL: `threshold` or `level` is none of its enum
///
/// # Example
///
/// To see on stderr why a function failed:
///
/// ```c
/// rpma_log_set_threshold(RPMA_LOG_THRESHOLD_AUX,
///                        RPMA_LOG_LEVEL_WARNING);
/// ```
pub unsafe extern "C" fn rpma_log_set_threshold(
    threshold: CEnum<rpma_log_threshold>,
    level: CEnum<rpma_log_level>,
) -> c_int {
    call(|| {
        let aux = is_aux(threshold)?;
        if !log::LEVELS.contains(&level.0) {
            return Err(Error::INVAL);
        }
        // Relaxed: a threshold is a number that guards nothing.
        log::threshold(aux).store(level.0, Ordering::Relaxed);
        Ok(())
    })
}

/// Gives a threshold of the log.
///
/// Thread-safe.
///
/// Errors, with `*level` as it was:
/// - RPMA_E_INVAL: `threshold` is none of its enum, or `level` is NULL
pub unsafe extern "C" fn rpma_log_get_threshold(
    threshold: CEnum<rpma_log_threshold>,
    level: *mut CEnum<rpma_log_level>,
) -> c_int {
    call(|| {
        let aux = is_aux(threshold)?;
        // SAFETY: NULL or valid to write to.
        let level = unsafe { out(level) }?;
        // Relaxed: as in `rpma_log_set_threshold`.
        let now = log::threshold(aux).load(Ordering::Relaxed);
        level.write(CEnum(now, PhantomData));
        Ok(())
    })
}

/// Sets the function that gets the messages of the log, for the whole process.
///
/// RPMA_LOG_USE_DEFAULT_FUNCTION, which is NULL, stands for the function built in, which
/// is in place at first. It writes to syslog(3), as "rpma" of facility LOCAL7, and what
/// passes RPMA_LOG_THRESHOLD_AUX to stderr too.
///
/// `log_function` is called with each message that passes RPMA_LOG_THRESHOLD. It is a
/// `rpma_log_function`.
///
/// Thread-safe, also while others log; a message under way may still go to the function
/// before. Cannot fail.
///
/// # Example
///
/// ```c
/// #include <stdarg.h>
///
/// static void to_stderr(enum rpma_log_level level, const char *file,
///                       int line, const char *function,
///                       const char *format, ...)
/// {
///     va_list arguments;
///     va_start(arguments, format);
///     fprintf(stderr, "level %d, %s:%d, %s: ", (int)level,
///             file ? file : "?", line, function ? function : "?");
///     vfprintf(stderr, format, arguments);
///     va_end(arguments);
/// }
///
/// int log_to_stderr(void)
/// {
///     return rpma_log_set_function(to_stderr);
/// }
/// ```
pub unsafe extern "C" fn rpma_log_set_function(log_function: Option<rpma_log_function>) -> c_int {
    // SAFETY: the types differ only in the wrapper around the level, a transparent
    // one around the same integer.
    log::set_function(log_function.map(|function| unsafe {
        std::mem::transmute::<rpma_log_function, log::Function>(function)
    }));
    0
}

fn is_aux(threshold: CEnum<rpma_log_threshold>) -> Result<bool, Error> {
    const MAIN: c_int = rpma_log_threshold::RPMA_LOG_THRESHOLD as c_int;
    const AUX: c_int = rpma_log_threshold::RPMA_LOG_THRESHOLD_AUX as c_int;
    match threshold.0 {
        MAIN => Ok(false),
        AUX => Ok(true),
        _ => Err(Error::INVAL),
    }
}

export!(rpma_log_set_threshold rpma_log_get_threshold rpma_log_set_function);
