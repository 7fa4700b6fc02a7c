//! Pages and addresses.

use std::ops::Range;
use std::sync::OnceLock;

/// Where the addresses that a process can have end.
pub const ADDRESSES: usize = if cfg!(target_arch = "x86_64") {
    1 << 47
} else {
    1 << 52
};

pub fn page_size() -> usize {
    static SIZE: OnceLock<usize> = OnceLock::new();
    // SAFETY: only asks.
    *SIZE.get_or_init(|| unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize })
}

/// The pages that the range touches.
pub fn pages(range: Range<usize>) -> Range<usize> {
    let page = page_size();
    range.start / page * page..range.end.div_ceil(page) * page
}
