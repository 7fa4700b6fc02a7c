//! How many objects there are, so that tests can see what a program leaves behind.

use std::sync::atomic::{AtomicU32, Ordering};

/// The kinds, as `rdma resource show` names them.
#[derive(Clone, Copy)]
pub enum Kind {
    CmId,
    Qp,
    Cq,
    Mr,
    Pd,
    Srq,
}

const NAMES: [&str; 6] = ["cm_id", "qp", "cq", "mr", "pd", "srq"];
static COUNTS: [AtomicU32; NAMES.len()] = [const { AtomicU32::new(0) }; NAMES.len()];

/// Part of an object that is counted as long as it lives.
pub struct Alive(Kind);

impl Alive {
    pub fn new(kind: Kind) -> Self {
        // Relaxed: a count, from which nobody concludes anything about the objects.
        COUNTS[kind as usize].fetch_add(1, Ordering::Relaxed);
        Alive(kind)
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        // Relaxed: as in `new`.
        COUNTS[self.0 as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

/// How many objects of the kind of that name there are.
pub fn count(name: &str) -> Option<u32> {
    let i = NAMES.iter().position(|one| *one == name)?;
    // Relaxed: as in `Alive::new`.
    Some(COUNTS[i].load(Ordering::Relaxed))
}
