//! Two ends of a connection in one thread, with a clock that a test turns: schedules that can be
//! repeated.
//!
//! A schedule is a list of steps: what both programs call, which bytes move, when time passes. Chance
//! makes them; what happens is checked against the model in docs/model.md, whose rules the failures
//! name. One that fails is made as short as it gets, and printed as source text. It is kept in
//! schedules/found.rs then.
//!
//! `SOFTVERBS_SCHEDULES` is how many are tried, `SOFTVERBS_SCHEDULES_SEED` which block of them is the
//! first; with the latter alone that block is the only one. A million (`make schedules`):
//!
//! ```sh
//! SOFTVERBS_SCHEDULES=1000000 cargo test -p softverbs --profile soak --test schedules
//! ```

#[path = "schedules/end.rs"]
mod end;
#[path = "schedules/found.rs"]
mod found;
#[path = "schedules/stats.rs"]
mod stats;
#[path = "schedules/steps.rs"]
mod steps;
#[path = "schedules/wire.rs"]
mod wire;
#[path = "schedules/world.rs"]
mod world;

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use stats::Stats;
use std::cell::RefCell;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;
use steps::{Schedule, schedules};

/// So many schedules come from one seed.
const BLOCK: u64 = 500;
/// About 20 s on two processors, without optimization; a million take 11 s with it.
const SCHEDULES: u64 = 100_000;
/// The longest schedule.
const STEPS: usize = 60;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is a number")),
    )
}

fn try_one(schedule: &Schedule, stats: &mut Stats) -> Result<(), String> {
    match catch_unwind(AssertUnwindSafe(|| world::run(schedule, stats))) {
        Ok(result) => result,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()));
            Err(format!("panic: {}", text.unwrap_or_default()))
        }
    }
}

/// Tries one block. Fails with the shortest schedule that fails.
fn block(seed: u64, stats: &mut Stats) -> Result<(), String> {
    let config = Config {
        cases: BLOCK as u32,
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..Config::default()
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let stats = RefCell::new(stats);
    let result = runner.run(&schedules(STEPS), |schedule| {
        try_one(&schedule, &mut stats.borrow_mut()).map_err(TestCaseError::fail)
    });
    match result {
        Ok(()) => Ok(()),
        Err(TestError::Fail(reason, Schedule { setup, steps })) => {
            let steps: String = steps
                .iter()
                .map(|step| format!("    Step::{step:?},\n"))
                .collect();
            let profile = if cfg!(debug_assertions) {
                ""
            } else {
                " --profile soak"
            };
            Err(format!(
                "{reason}\nin the schedule of\n  {setup:?}\n  [\n{steps}  ]\nAgain: SOFTVERBS_SCHEDULES_SEED={seed} \
                 cargo test -p softverbs{profile} --test schedules -- --exact random_schedules --nocapture"
            ))
        }
        Err(TestError::Abort(reason)) => Err(format!("no schedule could be made: {reason}")),
    }
}

#[test]
fn random_schedules() {
    let seed = number("SOFTVERBS_SCHEDULES_SEED");
    let wanted = number("SOFTVERBS_SCHEDULES");
    let only = seed.is_some() && wanted.is_none();
    let blocks = if only {
        1
    } else {
        wanted.unwrap_or(SCHEDULES).div_ceil(BLOCK)
    };
    let first = seed.unwrap_or(1);
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let all = Mutex::new((Stats::default(), 0, vec![]));
    let start = Instant::now();
    let work = || {
        let mut stats = Stats::default();
        while !stop.load(Ordering::Relaxed) {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= blocks {
                break;
            }
            let result = block(first + n, &mut stats);
            let mut all = all.lock().expect("no thread panics");
            all.1 += BLOCK;
            if all.1 % (BLOCK * 200) == 0 {
                let rate = all.1 as f64 / start.elapsed().as_secs_f64();
                let _ = writeln!(
                    std::io::stderr(),
                    "{} schedules, {rate:.0} per second",
                    all.1
                );
            }
            if let Err(text) = result {
                all.2.push(text);
                stop.store(true, Ordering::Relaxed);
            }
        }
        all.lock().expect("no thread panics").0.merge(&stats);
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let (stats, done, failures) = all.into_inner().expect("no thread panics");
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{done} schedules in {seconds:.1} s, {:.0} per second:\n{}",
        done as f64 / seconds,
        stats.lines()
    );
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    let missing = stats.missing();
    assert!(
        only || missing.is_empty(),
        "never seen in {done} schedules: {}",
        missing.join(", ")
    );
}
