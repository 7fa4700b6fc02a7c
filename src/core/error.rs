use crate::verbs::Errno;
use std::alloc::{Layout, alloc};
use std::fmt::Display;

/// Why an operation failed; the C layer gives each its code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    Unknown,
    NoSupp,
    Provider,
    NoMem,
    Inval,
    NoCompletion,
    NoEvent,
    SharedChannel,
    NotSharedChannel,
}

pub type Result<T> = std::result::Result<T, Error>;

/// Logs that a verbs call failed, and makes a provider error of it.
macro_rules! failed {
    ($($call:tt)+) => {
        |cause| {
            log!(Error, "{} failed: {cause}", format_args!($($call)+));
            $crate::core::Error::Provider
        }
    };
}
pub(super) use failed;

/// Boxes a value, or says that there is no memory for it.
pub fn try_box<T>(value: T) -> Result<Box<T>> {
    let layout = Layout::new::<T>();
    assert!(layout.size() != 0);
    // SAFETY: the size is not 0; a pointer that is not NULL is of the layout of T,
    // gets its value and has no other owner.
    unsafe {
        let raw = alloc(layout).cast::<T>();
        if raw.is_null() {
            return Err(Error::NoMem);
        }
        raw.write(value);
        Ok(Box::from_raw(raw))
    }
}

/// The result of several steps that are all done: the first failure.
#[must_use]
pub struct Steps(Result<()>);

impl Steps {
    pub fn new() -> Self {
        Steps(Ok(()))
    }

    /// Records the result of a step that makes a verbs call, and logs its failure.
    pub fn step(&mut self, call: impl Display, result: std::result::Result<(), Errno>) {
        self.then(result.map_err(failed!("{call}()")));
    }

    /// Records the result of a step that has logged its failure.
    pub fn then(&mut self, result: Result<()>) {
        if self.0.is_ok() {
            self.0 = result;
        }
    }

    pub fn done(self) -> Result<()> {
        self.0
    }
}
