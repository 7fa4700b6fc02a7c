//! The codes that functions return.

use super::export;
use crate::core::Error;
use std::ffi::{c_char, c_int};

/// Unknown error: something below did what it should not. The log has what is known.
pub const RPMA_E_UNKNOWN: c_int = -100000;
/// Not supported by the device, by the system or by the other side: do it another way.
pub const RPMA_E_NOSUPP: c_int = -100001;
/// A call of libibverbs or librdmacm failed; the log says which and why.
pub const RPMA_E_PROVIDER: c_int = -100002;
/// Out of memory. No operation needs any; what makes something does.
pub const RPMA_E_NOMEM: c_int = -100003;
/// Invalid argument, or arguments that do not go together: mostly a fault of the program.
pub const RPMA_E_INVAL: c_int = -100004;
/// No completion is available: wait for one, or ask again.
pub const RPMA_E_NO_COMPLETION: c_int = -100005;
/// No event is available: wait until the descriptor is readable.
pub const RPMA_E_NO_EVENT: c_int = -100006;
/// Temporary error: try again. No function gives it now.
pub const RPMA_E_AGAIN: c_int = -100007;
/// The completion channel is shared: wait by rpma_conn_wait().
pub const RPMA_E_SHARED_CHANNEL: c_int = -100008;
/// The completion channel is not shared: wait by rpma_cq_wait().
pub const RPMA_E_NOT_SHARED_CHNL: c_int = -100009;

// The core numbers its errors alike.
const _: () = assert!(
    RPMA_E_UNKNOWN == Error::UNKNOWN.code()
        && RPMA_E_NOSUPP == Error::NOSUPP.code()
        && RPMA_E_PROVIDER == Error::PROVIDER.code()
        && RPMA_E_NOMEM == Error::NOMEM.code()
        && RPMA_E_INVAL == Error::INVAL.code()
        && RPMA_E_NO_COMPLETION == Error::NO_COMPLETION.code()
        && RPMA_E_NO_EVENT == Error::NO_EVENT.code()
        && RPMA_E_SHARED_CHANNEL == Error::SHARED_CHANNEL.code()
        && RPMA_E_NOT_SHARED_CHNL == Error::NOT_SHARED_CHNL.code()
);

/// Says what a code means: 0 is "Success", and a number that is no code is "Unknown
/// error".
///
/// `ret` is 0 or one of `RPMA_E_*`.
///
/// Returns a static string, not to be changed or released.
///
/// Thread-safe. Cannot fail.
///
/// # Example
///
/// ```c
/// ret = rpma_peer_new(device, &peer);
/// if (ret)
///     fprintf(stderr, "rpma_peer_new: %s\n", rpma_err_2str(ret));
/// ```
pub unsafe extern "C" fn rpma_err_2str(ret: c_int) -> *const c_char {
    let text = match ret {
        0 => c"Success",
        RPMA_E_NOSUPP => c"Not supported",
        RPMA_E_PROVIDER => c"Provider error occurred",
        RPMA_E_NOMEM => c"Out of memory",
        RPMA_E_INVAL => c"Invalid argument",
        RPMA_E_NO_COMPLETION => c"No next completion available",
        RPMA_E_NO_EVENT => c"No next event available",
        RPMA_E_AGAIN => c"Temporary error, try again",
        RPMA_E_SHARED_CHANNEL => c"Completion channel is shared",
        RPMA_E_NOT_SHARED_CHNL => c"Completion channel is not shared",
        _ => c"Unknown error",
    };
    text.as_ptr()
}

export!(rpma_err_2str);
