//! Cases made by chance, each from a number by which it can be made again.
#![allow(dead_code, reason = "no test program uses all of it")]

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// The number of the first case, if it is not said.
const SEED: u64 = 20_240_229;
const VARIABLE: &str = "SOFTVERBS_FUZZ_SEED";

/// What `SOFTVERBS_FUZZ_SEED` says, if it does: with that case it begins, and ends.
pub fn only() -> Option<u64> {
    let text = env::var(VARIABLE).ok()?;
    Some(text.parse().expect("SOFTVERBS_FUZZ_SEED is a number"))
}

/// How to run one case again.
pub fn again(file: &str, test: &str, seed: u64) -> String {
    let profile = if cfg!(debug_assertions) {
        ""
    } else {
        " --profile soak"
    };
    format!("{VARIABLE}={seed} cargo test -p softverbs{profile} --test {file} -- --exact {test}")
}

/// Says on the terminal, past what the harness captures.
pub fn tell(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Cases one after the other; says which one it was if one fails.
pub struct Cases {
    file: &'static str,
    test: &'static str,
    first: u64,
    next: u64,
    end: u64,
    rng: fastrand::Rng,
    start: Instant,
}

impl Cases {
    pub fn new(file: &'static str, test: &'static str, count: u64) -> Self {
        let (first, count) = match only() {
            Some(seed) => (seed, 1),
            None => (SEED, count),
        };
        Self {
            file,
            test,
            first,
            next: first,
            end: first + count,
            rng: fastrand::Rng::with_seed(first),
            start: Instant::now(),
        }
    }

    pub fn one(&mut self) -> Option<(u64, &mut fastrand::Rng)> {
        let seed = self.next;
        if seed == self.end {
            return None;
        }
        self.next += 1;
        self.rng = fastrand::Rng::with_seed(seed);
        Some((seed, &mut self.rng))
    }

    pub fn done(&self) -> u64 {
        self.next - self.first
    }

    /// Says how much was done.
    pub fn tell(&self, what: &str) {
        let (file, test) = (self.file, self.test);
        let count = self.next - self.first;
        let time = self.start.elapsed().as_secs_f64();
        let first = self.first;
        tell(&format!(
            "{file}, {test}: {count} {what}, in {time:.1} s, the first of seed {first}"
        ));
    }
}

impl Drop for Cases {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let again = again(self.file, self.test, self.next - 1);
            tell(&format!("to run it again: {again}"));
        }
    }
}

/// A number as it is likely to be a limit of something.
pub fn pick(rng: &mut fastrand::Rng) -> u32 {
    match rng.u8(..6) {
        0 => rng.u32(..4),
        1 => u32::MAX - rng.u32(..4),
        2 => 1 << rng.u8(..32),
        3 => (1_u32 << rng.u8(..32)).wrapping_sub(1),
        4 => rng.u32(..4096),
        _ => rng.u32(..),
    }
}

pub fn pick_u64(rng: &mut fastrand::Rng) -> u64 {
    match rng.u8(..4) {
        0 => pick(rng).into(),
        1 => u64::from(pick(rng)) << 32 | u64::from(pick(rng)),
        2 => u64::MAX - u64::from(pick(rng)),
        _ => rng.u64(..),
    }
}

// ---- a process of its own ----

const CHILD: &str = "SOFTVERBS_FUZZ_CHILD";
const AT: &str = "at case ";
/// No case takes nearly so long, however busy the machine is.
const LONGEST: Duration = Duration::from_secs(600);

/// Says in which case the process is, should it come to harm.
pub fn at(seed: u64) {
    let _ = writeln!(std::io::stdout(), "{AT}{seed}");
}

/// Does the work of a test in a process of its own, which may crash or hang.
pub fn in_child(file: &str, test: &str, work: impl FnOnce()) {
    if env::var_os(CHILD).is_some() {
        // In whatever thread, a panic is the end.
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            before(info);
            std::process::abort();
        }));
        return work();
    }
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(CHILD, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    let mut case = None;
    let hangs = loop {
        match receiver.recv_timeout(LONGEST) {
            Ok(line) => {
                if let Some(seed) = line.strip_prefix(AT) {
                    case = seed.parse().ok();
                }
            }
            Err(RecvTimeoutError::Disconnected) => break false,
            Err(RecvTimeoutError::Timeout) => {
                // It may be asked where it is: an abort leaves a core, or wakes a debugger.
                // SAFETY: the child has not been waited for.
                unsafe { libc::kill(child.id() as i32, libc::SIGABRT) };
                break true;
            }
        }
    };
    let status = child.wait().unwrap();
    if status.success() && !hangs {
        return;
    }
    let how = if hangs { "hangs" } else { "fails" };
    let run = case.map_or_else(
        || format!("cargo test -p softverbs --test {file} -- --exact {test}"),
        |seed| again(file, test, seed),
    );
    panic!("the program {how} ({status}); to run the last case again:\n{run}");
}
