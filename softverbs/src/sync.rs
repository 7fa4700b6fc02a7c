//! Locks.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};

/// Takes a lock. Nothing panics while it holds one, so what a lock guards is whole.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes a lock if nobody has it.
pub fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Counts the events of an object that the program has got and not acknowledged, so that the object
/// is not destroyed before.
#[derive(Default)]
pub struct UnackedEvents {
    count: Mutex<u32>,
    acked: Condvar,
}

impl UnackedEvents {
    pub fn got(&self) {
        *lock(&self.count) += 1;
    }

    pub fn ack(&self, n: u32) {
        let mut count = lock(&self.count);
        *count = count.saturating_sub(n);
        if *count == 0 {
            self.acked.notify_all();
        }
    }

    /// Waits until all are acknowledged.
    pub fn wait(&self) {
        let count = lock(&self.count);
        drop(self.acked.wait_while(count, |count| *count > 0));
    }
}
