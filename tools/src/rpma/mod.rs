//! librpma for the tools: owning types over its C functions, the only place with `unsafe`.

mod connection;
mod device;
mod log;
mod memory;
pub mod sys;

pub use connection::{
    Completion, Connection, ConnectionConfig, Endpoint, Event, FlushType, Kind, Request, readable,
};
pub use device::{Device, Peer};
pub use log::take_warnings;
pub use memory::{Backing, Memory, PeerConfig, Region, Remote, Usage};

use std::ffi::{CStr, CString, c_int};
use std::fmt::{self, Display, Formatter};

/// Why a call failed.
#[derive(Debug, Clone)]
pub struct Error {
    pub call: &'static str,
    /// One of `RPMA_E_*`.
    pub code: i32,
    /// What the library logged about it.
    pub log: Vec<String>,
}

pub type Result<T> = std::result::Result<T, Error>;

impl Display for Error {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.call, explain(self.code))?;
        self.log.iter().try_for_each(|line| write!(f, ": {line}"))
    }
}

impl std::error::Error for Error {}

/// What a code of the library means.
#[must_use]
pub fn explain(code: i32) -> String {
    // SAFETY: it takes any number, and gives a static string.
    unsafe { CStr::from_ptr(sys::rpma_err_2str(code)) }
        .to_string_lossy()
        .into_owned()
}

/// The result of a call by its code.
#[inline(always)]
fn check(call: &'static str, code: c_int) -> Result<()> {
    if code == 0 {
        Ok(())
    } else {
        Err(failed(call, code))
    }
}

#[cold]
fn failed(call: &'static str, code: c_int) -> Error {
    Error {
        call,
        code,
        log: log::take_errors(),
    }
}

/// A string for the library: what follows a NUL can't be meant.
fn c_string(text: &str) -> CString {
    CString::new(text.split('\0').next().unwrap_or_default()).unwrap_or_default()
}
