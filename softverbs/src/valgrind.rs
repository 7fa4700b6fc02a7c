//! What is said to Helgrind, if the program runs in it.
//!
//! Registered memory is written by the device as well, at any time that the other side likes. Of a NIC
//! Helgrind sees nothing; here it sees the thread of softverbs, but not the locks that stand between
//! that and the program (futex(7)), and takes what was received for a race. So it is asked to leave
//! registered memory alone, as it does with a NIC.

use std::ops::Range;

/// A request that Helgrind takes, and the other tools of Valgrind ignore (`valgrind/helgrind.h`).
const HG_ARANGE_MAKE_UNTRACKED: usize = 0x4847_0127;

/// Asks Helgrind to leave this memory alone until it is allocated anew.
pub fn leave_alone(memory: Range<usize>) {
    request([
        HG_ARANGE_MAKE_UNTRACKED,
        memory.start,
        memory.len(),
        0,
        0,
        0,
    ]);
}

/// Valgrind knows a request by instructions that no compiler makes and that change nothing: they turn a
/// register all the way round. It finds the request where another register points to.
fn request(request: [usize; 6]) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the processor leaves everything as it was but the flags; Valgrind reads the request, which
    // outlives this, and writes to rdx.
    unsafe {
        std::arch::asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") &raw const request,
            inout("rdx") 0_usize => _,
            options(nostack),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the processor leaves everything as it was; Valgrind reads the request, which outlives
    // this, and writes to x3.
    unsafe {
        std::arch::asm!(
            "ror x12, x12, #3",
            "ror x12, x12, #13",
            "ror x12, x12, #51",
            "ror x12, x12, #61",
            "orr x10, x10, x10",
            inout("x3") 0_usize => _,
            in("x4") &raw const request,
            options(nostack),
        );
    }
    // Elsewhere Helgrind is not told, and its reports name memory that was received.
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = request;
}
