//! What the protocol orders: operations on the memory that the other side names.

use super::transfer::cell;
use crate::memory::{Domain, Hold};
use crate::proto::frames::{AtomicOp, FlushKind, Nak, Remote};
use crate::proto::{Order, Right};
use std::sync::atomic::{Ordering, fence};

/// What has come of an order.
pub enum CarriedOut {
    Done(Result<u64, Nak>),
    /// This is to be made persistent, which waits for a disk.
    Persist(Hold),
}

/// Carries out an order as far as that does not wait.
pub fn carry_out(domain: &Domain, order: Order) -> CarriedOut {
    match order {
        Order::Atomic { at, op } => {
            CarriedOut::Done(cell_at(domain, at, Right::Atomic).map(|hold| {
                let cell = cell(&hold);
                match op {
                    AtomicOp::FetchAdd(add) => cell.fetch_add(add, Ordering::SeqCst),
                    AtomicOp::CompareSwap { compare, swap } => cell
                        .compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst)
                        .unwrap_or_else(|value| value),
                }
            }))
        }
        Order::AtomicWrite { at, value } => {
            CarriedOut::Done(cell_at(domain, at, Right::Write).map(|hold| {
                cell(&hold).store(u64::from_ne_bytes(value), Ordering::SeqCst);
                0
            }))
        }
        Order::Flush {
            at,
            len,
            kind,
            whole,
        } => {
            let held = |right| {
                if whole {
                    domain.remote_whole(at.rkey, right)
                } else {
                    domain.remote(at.rkey, at.addr, len, right)
                }
            };
            if kind != FlushKind::Persistent && held(Right::FlushGlobal).is_err() {
                return CarriedOut::Done(Err(Nak::AccessError));
            }
            if kind == FlushKind::Global {
                return CarriedOut::Done(persist(None));
            }
            match held(Right::FlushPersistent) {
                Ok(hold) if hold.persists_at_once() => CarriedOut::Done(persist(Some(&hold))),
                Ok(hold) => CarriedOut::Persist(hold),
                Err(_) => CarriedOut::Done(Err(Nak::AccessError)),
            }
        }
    }
}

/// Eight aligned bytes.
fn cell_at(domain: &Domain, at: Remote, right: Right) -> Result<Hold, Nak> {
    let hold = domain
        .remote(at.rkey, at.addr, 8, right)
        .map_err(|_| Nak::AccessError)?;
    // A region may begin anywhere in memory while its addresses are aligned.
    if hold.ptr().addr().is_multiple_of(8) {
        Ok(hold)
    } else {
        Err(Nak::InvalidRequest)
    }
}

/// Has what was written before be seen by all, and last if it is to.
pub fn persist(hold: Option<&Hold>) -> Result<u64, Nak> {
    let persisted = hold.map_or(Ok(()), Hold::persist);
    fence(Ordering::SeqCst);
    persisted.map(|()| 0).map_err(|_| Nak::OperationError)
}
