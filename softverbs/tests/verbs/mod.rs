//! The C interface of the two libraries as the tests use it: objects that are destroyed when they
//! are dropped, requests, and what is waited for. Whichever library the test program is linked
//! with, or has preloaded, is the one that is called.
#![allow(dead_code, reason = "no test program uses all of it")]
#![allow(clippy::missing_safety_doc, reason = "C is called here all the time")]

use rdma_sys::*;
use std::ffi::{CStr, c_int, c_void};
use std::mem::{MaybeUninit, offset_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};
use std::{io, ptr, slice, thread};

/// A call of C.
macro_rules! c {
    ($($call:tt)*) => {{
        // SAFETY: what is handed over are the test's own objects, which it has not destroyed.
        #[allow(unused_unsafe)]
        unsafe { $($call)* }
    }};
}

mod cm;
mod memory;
mod queues;
mod requests;

pub use cm::*;
pub use memory::*;
pub use queues::*;
pub use requests::*;

/// Nothing here takes so long, however busy the machine is: what does, hangs.
pub const LIMIT: Duration = Duration::from_secs(300);
pub const NOW: Duration = Duration::ZERO;
pub const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

pub fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// A call that returns 0 or fails.
#[track_caller]
pub fn good(what: &str, result: c_int) {
    assert_eq!(result, 0, "{what}: {}", io::Error::last_os_error());
}

/// A call that fails with -1 and that errno.
#[track_caller]
pub fn fails(what: &str, result: c_int, with: c_int) {
    let error = errno();
    assert_eq!(
        (result, error),
        (-1, with),
        "{what}: what it returned, and errno"
    );
}

#[track_caller]
pub fn made<T>(what: &str, object: *mut T) -> *mut T {
    assert!(!object.is_null(), "{what}: {}", io::Error::last_os_error());
    object
}

/// An object that is destroyed while a test fails may be in use still.
fn destroyed(what: &str, result: c_int) {
    if !thread::panicking() {
        assert_eq!(result, 0, "{what}: errno");
    }
}

/// Does something until it is so.
#[track_caller]
pub fn until(what: &str, limit: Duration, mut so: impl FnMut() -> bool) {
    let end = Instant::now() + limit;
    while !so() {
        assert!(Instant::now() < end, "{what}: not within {limit:?}");
        thread::yield_now();
    }
}

/// What poll(2) says of a descriptor at once, or when that changes.
pub fn readable(fd: RawFd, within: Duration) -> bool {
    let mut one = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let end = Instant::now() + within;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        match c!(libc::poll(&mut one, 1, left.as_millis() as c_int)) {
            1 => return one.revents & libc::POLLIN != 0,
            -1 if errno() == libc::EINTR => {}
            _ => return false,
        }
    }
}

pub fn set_nonblocking(fd: RawFd) {
    let flags = c!(libc::fcntl(fd, libc::F_GETFL));
    good(
        "fcntl",
        c!(libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK)),
    );
}

pub fn descriptors() -> usize {
    // One is of the directory itself.
    std::fs::read_dir("/proc/self/fd").unwrap().count() - 1
}

/// Resident memory that no file backs, in bytes.
pub fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:"));
    let words: Vec<&str> = line.unwrap().split_whitespace().collect();
    words[1].parse::<usize>().unwrap() * 1024
}

/// The device, which stays open.
pub fn device() -> *mut ibv_context {
    static DEVICE: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    let context = *DEVICE.get_or_init(|| {
        let mut n = 0;
        // The list is not freed: that would let go of the device.
        let list = c!(rdma_get_devices(&mut n));
        assert!(n > 0, "there is no device");
        c!((*list).expose_provenance())
    });
    ptr::with_exposed_provenance_mut(context)
}
