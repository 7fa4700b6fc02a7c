//! What the entry points make: device, memory, queues, connections, ids, events.

pub mod alive;
pub mod cm;
pub mod cq;
pub mod device;
pub mod endpoint;
pub mod events;
pub mod memory;
pub mod places;
pub mod qp;
pub mod srq;

use std::io;
use std::sync::{Mutex, MutexGuard};

/// What C calls an error.
pub(crate) fn errno_of(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// Takes a lock. Nothing panics while holding one, so what it guards is whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Counts what has been handed to the program and not been given back, so that an object is not
/// destroyed under it.
#[derive(Default)]
pub struct Handed {
    count: Mutex<u32>,
    back: std::sync::Condvar,
}

impl Handed {
    pub fn out(&self) {
        *lock(&self.count) += 1;
    }

    pub fn back(&self, n: u32) {
        let mut count = lock(&self.count);
        *count = count.saturating_sub(n);
        if *count == 0 {
            self.back.notify_all();
        }
    }

    /// Waits until all is back.
    pub fn wait(&self) {
        let mut count = lock(&self.count);
        while *count > 0 {
            count = self
                .back
                .wait(count)
                .unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }
}
