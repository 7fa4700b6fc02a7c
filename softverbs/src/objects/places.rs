//! The places of a send queue, which requests keep until they are polled.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Which requests of a send queue keep their place: those from a number on.
///
/// A request keeps it until its completion, or that of a later one, has been polled, as on devices.
/// So what asks for no completion frees its place only with something behind it.
pub struct Places {
    first: AtomicU32,
}

impl Places {
    pub fn new(first: u32) -> Arc<Self> {
        Arc::new(Places {
            first: AtomicU32::new(first),
        })
    }

    /// How many places there are of the requests before `next`.
    pub fn taken(&self, next: u32) -> u32 {
        next.wrapping_sub(self.first.load(Ordering::Acquire))
    }
}

/// What a completion frees: the place of its request, and those before.
pub struct SendPlace {
    places: Arc<Places>,
    seq: u32,
}

impl SendPlace {
    pub fn new(places: &Arc<Places>, seq: u32) -> Self {
        SendPlace {
            places: places.clone(),
            seq,
        }
    }

    /// Completions are polled in the order of their requests, and one after the other.
    pub fn free(self) {
        let next = self.seq.wrapping_add(1);
        self.places.first.store(next, Ordering::Release);
    }
}
