//! Memory whose content can be made to outlast the program and its machine.

use std::io;
use std::ops::Range;

use rustix::mm::MsyncFlags;

use super::pages::pages;

/// A part of the address space that is such memory.
#[derive(Debug, PartialEq, Eq)]
pub struct Lasting {
    pub range: Range<usize>,
    pub medium: Medium,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// A file's pages, to be written back to a disk.
    File,
    /// Those of a file that is in memory itself, and lasts as long as that does.
    Tmpfs,
    /// Persistent memory itself: only the processor's caches are in front of it.
    Memory,
}

impl Lasting {
    /// Whether the sorted parts leave no gap in the range.
    pub fn is_all(parts: &[Lasting], range: &Range<usize>) -> bool {
        let end = parts.iter().fold(range.start, |end, part| {
            if part.range.start <= end {
                part.range.end
            } else {
                end
            }
        });
        end >= range.end
    }

    /// Makes last what of the range is in this part.
    pub fn persist(&self, range: Range<usize>) -> io::Result<()> {
        let range = range.start.max(self.range.start)..range.end.min(self.range.end);
        if range.is_empty() {
            return Ok(());
        }
        match self.medium {
            Medium::File | Medium::Tmpfs => {
                let pages = pages(range);
                // SAFETY: the pages are written back, which changes nothing in memory.
                unsafe {
                    rustix::mm::msync(pages.start as *mut _, pages.len(), MsyncFlags::SYNC)?;
                }
            }
            Medium::Memory => write_back(range),
        }
        Ok(())
    }
}

/// Whether caches can be written back from here, as persistent memory needs it.
pub const WRITES_BACK: bool = cfg!(target_arch = "x86_64");

/// Writes back the caches' lines of the range, which is mapped.
fn write_back(range: Range<usize>) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_mm_clflush, _mm_mfence};
        const LINE: usize = 64;
        for line in (range.start & !(LINE - 1)..range.end).step_by(LINE) {
            // SAFETY: every processor of this architecture has SSE2; the line is mapped.
            unsafe { _mm_clflush(line as *const u8) };
        }
        // SAFETY: as above.
        unsafe { _mm_mfence() };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = range;
}
