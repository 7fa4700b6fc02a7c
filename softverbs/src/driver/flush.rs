//! Flushes that wait for a disk, each on a thread of its own: nothing but its own connection waits.

use crate::process::{generation, without_signals};
use crate::sync::lock;
use std::collections::VecDeque;
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// So many flushes wait for disks at once at most; more queue up. One for each connection of a large
/// program would be a thread each.
const MOST_THREADS: usize = 64;
/// A thread without work ends after this time. Starting one takes about 30 µs.
const IDLE_TIME: Duration = Duration::from_secs(5);

/// Something that has to wait for a disk.
pub trait Job: Send + Sync {
    fn run(&self);
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Arc<dyn Job>>,
    threads: usize,
    idle: usize,
}

struct Pool {
    /// Of the process that its threads are in.
    generation: u32,
    state: Mutex<State>,
    work: Condvar,
}

/// The threads of this process. A child starts with none.
///
/// It takes no lock, since connections that are locked ask for it: a fork that takes all locks of the
/// process could wait for such a connection.
fn pool() -> &'static Pool {
    static POOL: AtomicPtr<Pool> = AtomicPtr::new(ptr::null_mut());
    let seen = POOL.load(Ordering::Acquire);
    // SAFETY: the pointer is NULL or of a pool that is never freed.
    if let Some(pool) = unsafe { seen.as_ref() }
        && pool.generation == generation()
    {
        return pool;
    }
    let made = Box::into_raw(Box::new(Pool {
        generation: generation(),
        state: Mutex::default(),
        work: Condvar::new(),
    }));
    match POOL.compare_exchange(seen, made, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: it was just made, and is never freed from now on.
        Ok(_) => unsafe { &*made },
        // SAFETY: nobody else has the one that was made; the other one is never freed.
        Err(other) => unsafe {
            drop(Box::from_raw(made));
            &*other
        },
    }
}

/// Runs a job on another thread. Fails if there is none and none can be started.
pub fn run(job: Arc<dyn Job>) -> io::Result<()> {
    let pool = pool();
    let mut state = lock(&pool.state);
    state.jobs.push_back(job);
    if state.idle >= state.jobs.len() || state.threads >= MOST_THREADS {
        drop(state);
        pool.work.notify_one();
        return Ok(());
    }
    // Under the lock: nobody relies on a thread that then cannot be started.
    let thread = std::thread::Builder::new().name("softverbs-flush".to_string());
    match without_signals(|| thread.spawn(|| pool.work())) {
        Ok(_) => state.threads += 1,
        // Others will do it, if there are any.
        Err(_) if state.threads > 0 => {}
        Err(error) => {
            state.jobs.pop_back();
            return Err(error);
        }
    }
    Ok(())
}

impl Pool {
    fn work(&self) {
        let mut state = lock(&self.state);
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                job.run();
                state = lock(&self.state);
                continue;
            }
            state.idle += 1;
            let (guard, waited) = self
                .work
                .wait_timeout(state, IDLE_TIME)
                .unwrap_or_else(PoisonError::into_inner);
            state = guard;
            state.idle -= 1;
            if waited.timed_out() && state.jobs.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}
