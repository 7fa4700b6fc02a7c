//! Moving bytes between the program's memory and the protocol.

use crate::link::Piece;
use crate::memory::{Domain, Hold};
use crate::proto::{Memory, Right, parts};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Holds the memory that `len` bytes are in, or go to, piece by piece, and calls `f` with each.
/// Returns false if a piece may not be used.
fn each(
    domain: &Domain,
    memory: Memory<'_>,
    len: usize,
    write: bool,
    mut f: impl FnMut(Hold),
) -> bool {
    match memory {
        Memory::Local(sges, offset) => parts(sges, offset, len as u64).all(|part| {
            let held = domain.local(part.lkey, part.addr, part.length.into(), write);
            held.map(&mut f).is_ok()
        }),
        Memory::Remote(at) => {
            let right = if write { Right::Write } else { Right::Read };
            let held = domain.remote(at.rkey, at.addr, len as u64, right);
            held.map(&mut f).is_ok()
        }
        Memory::Zeroes => true,
    }
}

/// Holds all of that memory, or nothing.
pub fn hold(
    domain: &Domain,
    memory: Memory<'_>,
    len: usize,
    write: bool,
    holds: &mut Vec<Hold>,
) -> bool {
    holds.clear();
    let all = each(domain, memory, len, write, |hold| holds.push(hold));
    if !all {
        holds.clear();
    }
    all
}

/// The memory held, for a link.
pub fn piece(hold: &Hold) -> Piece<'_> {
    // SAFETY: the region is registered as long as it is held. That the program keeps registered
    // memory mapped is the contract of registering it.
    unsafe { Piece::new(hold.ptr(), hold.len()) }
}

/// Appends what is held.
fn append(to: &mut Vec<u8>, hold: &Hold) {
    let len = to.len();
    to.reserve(hold.len());
    // SAFETY: the region is registered, and so mapped, while it is held; the room was made above. The
    // vector is this library's, so they do not overlap.
    unsafe {
        ptr::copy_nonoverlapping(hold.ptr(), to.as_mut_ptr().add(len), hold.len());
        to.set_len(len + hold.len());
    }
}

/// Writes bytes to what is held. Eight aligned bytes are written in one step, as a NIC does: programs
/// wait for them to change.
fn place(from: &[u8], hold: &Hold) {
    debug_assert_eq!(from.len(), hold.len());
    let to = hold.ptr();
    if let Ok(value) = <[u8; 8]>::try_from(from)
        && to.addr().is_multiple_of(8)
    {
        cell(hold).store(u64::from_ne_bytes(value), Ordering::Release);
        return;
    }
    // What was written before must be seen before this.
    fence(Ordering::Release);
    // SAFETY: the region is registered, and so mapped, while it is held, and has as many bytes. The
    // slice is this library's, so they do not overlap.
    unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to, hold.len().min(from.len())) };
}

/// Eight aligned bytes that are held, to be accessed in one step.
pub fn cell(hold: &Hold) -> &AtomicU64 {
    debug_assert!(hold.len() >= 8 && hold.ptr().addr().is_multiple_of(8));
    // SAFETY: callers have checked that they are eight aligned bytes. The region is registered, and
    // so mapped, while it is held.
    unsafe { AtomicU64::from_ptr(hold.ptr().cast()) }
}

/// Appends bytes of that memory; nothing if it may not be read.
pub fn read(domain: Option<&Domain>, memory: Memory<'_>, len: usize, out: &mut Vec<u8>) -> bool {
    let Some(domain) = domain else {
        return false;
    };
    let before = out.len();
    let whole = each(domain, memory, len, false, |hold| append(out, &hold));
    if !whole {
        out.truncate(before);
    }
    whole
}

/// Writes bytes to that memory, as far as it may be written to.
pub fn write(domain: Option<&Domain>, memory: Memory<'_>, data: &[u8]) -> bool {
    let Some(domain) = domain else {
        return false;
    };
    let mut from = data;
    each(domain, memory, data.len(), true, |hold| {
        if let Some((part, rest)) = from.split_at_checked(hold.len()) {
            place(part, &hold);
            from = rest;
        }
    })
}
