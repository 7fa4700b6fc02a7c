//! Flushes that wait for a disk, each on a thread of its own: nothing but its own connection waits.

use crate::process::{AtFork, LockOrder, at_fork, generation, without_signals};
use crate::sync::lock;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, Once, PoisonError};
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
fn pool() -> Arc<Pool> {
    static POOL: Mutex<Option<Arc<Pool>>> = Mutex::new(None);
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        at_fork(AtFork {
            order: LockOrder::Reactor,
            lock: || Box::new(lock(&POOL)),
            in_child: || {},
        });
    });
    let generation = generation();
    let mut pool = lock(&POOL);
    match &*pool {
        Some(pool) if pool.generation == generation => pool.clone(),
        _ => pool
            .insert(Arc::new(Pool {
                generation,
                state: Mutex::default(),
                work: Condvar::new(),
            }))
            .clone(),
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
    state.threads += 1;
    drop(state);
    let thread = std::thread::Builder::new().name("softverbs-flush".to_string());
    let started = without_signals(|| {
        let pool = pool.clone();
        thread.spawn(move || pool.work())
    });
    if let Err(error) = started {
        let mut state = lock(&pool.state);
        state.threads -= 1;
        // Others will do it, if there are any.
        if state.threads == 0 {
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
