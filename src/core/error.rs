use crate::verbs::Errno;
use std::alloc::{Layout, alloc};
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::num::NonZero;

/// Why an operation failed: a code of the C interface.
///
/// None of them is 0, so that a `Result<()>` is the number that C gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Error(NonZero<c_int>);

impl Error {
    pub const UNKNOWN: Self = Self::of(-100000);
    pub const NOSUPP: Self = Self::of(-100001);
    pub const PROVIDER: Self = Self::of(-100002);
    pub const NOMEM: Self = Self::of(-100003);
    pub const INVAL: Self = Self::of(-100004);
    pub const NO_COMPLETION: Self = Self::of(-100005);
    pub const NO_EVENT: Self = Self::of(-100006);
    pub const SHARED_CHANNEL: Self = Self::of(-100008);
    pub const NOT_SHARED_CHNL: Self = Self::of(-100009);

    /// For the constants above, so that a code of 0 does not compile.
    const fn of(code: c_int) -> Self {
        match NonZero::new(code) {
            Some(code) => Error(code),
            None => unreachable!(),
        }
    }

    pub const fn code(self) -> c_int {
        self.0.get()
    }
}

pub type Result<T> = std::result::Result<T, Error>;

/// Logs that a verbs call failed, with the arguments that matter, the cause and what may be done
/// about it, and makes a provider error of it.
macro_rules! failed {
    ($call:expr) => {
        $crate::core::error::failed!($call, "")
    };
    ($call:expr, $($args:tt)+) => {
        |cause: $crate::verbs::Errno| {
            log!(
                Error,
                "{}({}) failed: {cause}{}",
                $call,
                format_args!($($args)+),
                $crate::core::remedy::Remedy::of($call, cause)
            );
            $crate::core::Error::PROVIDER
        }
    };
}
pub(super) use failed;

/// Room for a value, to be had before what can't be taken back; or there is no memory.
pub fn room<T>() -> Result<Box<MaybeUninit<T>>> {
    const { assert!(size_of::<T>() != 0) };
    let layout = Layout::new::<T>();
    // SAFETY: the size is not 0; a pointer that is not NULL is of the layout of T and
    // has no other owner.
    unsafe {
        let raw = alloc(layout).cast::<MaybeUninit<T>>();
        if raw.is_null() {
            return Err(Error::NOMEM);
        }
        Ok(Box::from_raw(raw))
    }
}

/// The result of several steps that are all done: the first failure.
#[must_use]
pub struct Steps {
    result: Result<()>,
    /// Whether a step after a failed one says so in the log when it fails too.
    log_all: bool,
}

impl Steps {
    /// The first failure is logged.
    pub fn new() -> Self {
        Steps {
            result: Ok(()),
            log_all: false,
        }
    }

    /// Every failure is logged.
    pub fn log_all() -> Self {
        Steps {
            result: Ok(()),
            log_all: true,
        }
    }

    /// Records the result of a step that makes a verbs call.
    pub fn step(&mut self, call: &str, result: std::result::Result<(), Errno>) {
        if let Err(errno) = result {
            let log = self.log_all || self.result.is_ok();
            self.then(Err(match log {
                true => failed!(call)(errno),
                false => Error::PROVIDER,
            }));
        }
    }

    /// Records the result of a step that has logged its failure.
    pub fn then(&mut self, result: Result<()>) {
        if self.result.is_ok() {
            self.result = result;
        }
    }

    pub fn done(self) -> Result<()> {
        self.result
    }
}
