//! The C programs that need a verbs device (c-tests/device), server and client, over the original
//! library and ours in all four pairings.
//!
//!     cargo test --test device                        in a virtual machine, on both of its kernels
//!     cargo test --test device -- ops/flush           the cases whose name has this in it
//!     cargo test --test device -- --kernel old        on one of the two kernels: new, old
//!     cargo test --test device -- --pairing ours-original
//!                                                     server over ours, client over the original
//!     RPMA_TEST_DEVICE=192.0.2.7 cargo test --test device
//!                                                     on this machine's device with that address
//!
//! RPMA_TEST_DEVICE6 adds an IPv6 address, RPMA_TEST_PMEM a device-DAX file to overwrite. In the
//! virtual machine (scripts/vm) this very program runs again, with what it needs beside it. The last
//! test, of persistence, cuts the power and so is for the virtual machine only.

mod support;
#[path = "support/transcript.rs"]
mod transcript;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;
use transcript::{Difference, Kind, Library, ORIGINAL, OURS, Place, Transcript};

/// The slowest first.
const PROGRAMS: &[&str] = &[
    "leaks", "memory", "connect", "errors", "setup", "ops", "queues",
];
/// How many cases run at once. They do not see each other.
const WORKERS: usize = 2;

/// In a copy of everything that is needed, for the machine that has the device.
const TEST: &str = "device-test";
const OURS_DIR: &str = "ours";
/// How many passed and failed, and the numbers of the differences that showed.
const RESULT: &str = "out/result";
/// An original from the time before native flush; the virtual machine has it there.
const OLDER: &str = "/usr/lib/librpma-1.2.0";

/// The virtual machine's kernels: with native flush and atomic write, and without.
const KERNELS: [&str; 2] = ["new", "old"];
/// Server and client; the original with itself is always run, for comparison.
const PAIRINGS: [&str; 3] = ["original-ours", "ours-original", "ours-ours"];

/// The names of the two tests that are not cases of a program.
const OLDER_HEADERS: &str = "older-headers";
const PERSISTENCE: &str = "persistence";

/// What the command line asks for.
#[derive(Default)]
struct Wanted {
    names: Vec<String>,
    kernel: Option<String>,
    pairing: Option<String>,
    /// Only say what there is.
    list: bool,
    /// Where the copy is, if this is the run beside the device.
    beside: Option<PathBuf>,
}

impl Wanted {
    fn from_args() -> Result<Self, String> {
        let mut wanted = Self::default();
        let mut args = env::args().skip(1);
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or(format!("{arg} needs a value"));
            match arg.as_str() {
                "--kernel" => wanted.kernel = Some(value()?),
                "--pairing" => wanted.pairing = Some(value()?),
                "--beside" => wanted.beside = Some(value()?.into()),
                "--list" => wanted.list = true,
                // What is meant for the other test programs of the same `cargo test`.
                "--skip" | "--test-threads" | "--format" | "--color" | "--logfile" => {
                    value()?;
                }
                _ if arg.starts_with('-') => {}
                _ => wanted.names.push(arg),
            }
        }
        let known = |value: &Option<String>, all: &[&str]| match value {
            Some(value) if !all.contains(&value.as_str()) => {
                Err(format!("{value} is none of {}", all.join(", ")))
            }
            _ => Ok(()),
        };
        known(&wanted.kernel, &KERNELS)?;
        known(&wanted.pairing, &PAIRINGS)?;
        Ok(wanted)
    }

    fn wants(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|part| name.contains(part.as_str()))
    }

    fn everything(&self) -> bool {
        self.names.is_empty() && self.pairing.is_none() && self.kernel.is_none()
    }
}

#[derive(Default)]
struct Tally {
    passed: usize,
    failed: usize,
}

impl Tally {
    fn note(&mut self, name: &str, start: Instant, problems: &[String], rerun: &str) {
        let seconds = start.elapsed().as_secs_f32();
        if problems.is_empty() {
            self.passed += 1;
            println!("ok      {name} ({seconds:.1} s)");
        } else {
            self.failed += 1;
            println!("FAILED  {name} ({seconds:.1} s)");
            for problem in problems.iter().take(2) {
                println!("{problem}");
            }
            if problems.len() > 2 {
                println!("and {} more", problems.len() - 2);
            }
            println!("to run it again: {rerun}\n");
        }
    }
}

fn main() -> ExitCode {
    let wanted = match Wanted::from_args() {
        Ok(wanted) => wanted,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let good = match (&wanted.beside, env::var("RPMA_TEST_DEVICE")) {
        (Some(dir), Ok(address)) => Run::new(dir, &address, &wanted).all(),
        (None, Ok(address)) => {
            let dir = prepare();
            Run::new(&dir, &address, &wanted).all()
        }
        (None, Err(_)) => in_virtual_machines(&wanted),
        (Some(_), Err(_)) => {
            eprintln!("--beside needs RPMA_TEST_DEVICE");
            false
        }
    };
    if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

// ---- beside the device ----

struct Case {
    id: String,
    program: &'static str,
    name: String,
    kind: Kind,
}

impl Case {
    fn new(program: &'static str, name: String, kind: Kind) -> Self {
        let id = format!("{program}/{name}");
        Self {
            id,
            program,
            name,
            kind,
        }
    }

    fn all(dir: &Path, library: &Library) -> Vec<Self> {
        let mut all = vec![];
        for &program in PROGRAMS {
            for (name, kind) in transcript::cases(&dir.join(program), library) {
                all.push(Self::new(program, name, kind));
            }
        }
        all
    }

    /// The variable that it needs and that is not there.
    fn missing(&self) -> Option<&'static str> {
        let needed = match self.id.as_str() {
            "ops/ipv6" => "RPMA_TEST_DEVICE6",
            "errors/pmem" => "RPMA_TEST_PMEM",
            _ => return None,
        };
        env::var_os(needed).is_none().then_some(needed)
    }
}

/// One run of the cases on a device.
struct Run<'a> {
    dir: &'a Path,
    address: &'a str,
    wanted: &'a Wanted,
    original: Library,
    ours: Library,
    known: Vec<Difference>,
    place: Place,
}

impl<'a> Run<'a> {
    fn new(dir: &'a Path, address: &'a str, wanted: &'a Wanted) -> Self {
        let original = Library {
            name: ORIGINAL,
            dir: support::original().parent().unwrap().to_path_buf(),
        };
        let ours = Library {
            name: OURS,
            dir: dir.join(OURS_DIR),
        };
        Self {
            dir,
            address,
            wanted,
            original,
            ours,
            known: transcript::known(),
            place: Place::Any,
        }
    }

    fn program(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn all(mut self) -> bool {
        let capabilities = Case::new("setup", "capabilities".to_string(), Kind::Solo);
        let native = match self.run(&capabilities, &self.ours, &self.ours) {
            Ok(device) => device[0].value("native flush") == Some("yes"),
            Err(error) => {
                println!("FAILED  the device at {}: {error}", self.address);
                return false;
            }
        };
        self.place = if native { Place::Native } else { Place::Raw };
        let flush = if native { "native" } else { "no native" };
        println!("device at {}, with {flush} flush", self.address);

        let mut cases = Case::all(self.dir, &self.original);
        cases.retain(|case| self.wanted.wants(&case.id));
        cases.retain(|case| match case.missing() {
            Some(missing) => {
                println!("skipped {}: {missing} is not set", case.id);
                false
            }
            None => true,
        });
        let next = AtomicUsize::new(0);
        let results = Mutex::new((Tally::default(), vec![]));
        thread::scope(|scope| {
            for _ in 0..WORKERS {
                scope.spawn(|| {
                    while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let start = Instant::now();
                        let (problems, numbers) = self.case(case);
                        let (tally, shown) = &mut *results.lock().unwrap();
                        shown.extend(numbers);
                        tally.note(&case.id, start, &problems, &self.rerun(&case.id));
                    }
                });
            }
        });
        let (mut tally, mut shown) = results.into_inner().unwrap();
        self.older_headers(&mut tally, &mut shown);
        println!("{} passed, {} failed", tally.passed, tally.failed);

        shown.sort_unstable();
        shown.dedup();
        let result = format!("{} {} {}", tally.passed, tally.failed, shown.join(" "));
        let file = self.dir.join(RESULT);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, result).unwrap();
        // Nothing at all to do is right only if that was asked for.
        tally.failed == 0 && (tally.passed > 0 || !self.wanted.names.is_empty())
    }

    fn rerun(&self, id: &str) -> String {
        match (&self.wanted.beside, &self.wanted.kernel) {
            (Some(_), Some(kernel)) => {
                format!("cargo test --test device -- {id} --kernel {kernel}")
            }
            _ => format!(
                "RPMA_TEST_DEVICE={} cargo test --test device -- {id}",
                self.address
            ),
        }
    }

    /// The transcripts of all sides of one case over one pair of libraries.
    fn run(
        &self,
        case: &Case,
        server: &Library,
        client: &Library,
    ) -> Result<Vec<Transcript>, String> {
        let program = self.program(case.program);
        let (name, address) = (&case.name, self.address);
        if case.kind == Kind::Pair {
            transcript::run_pair(&program, name, address, server, client).map(Vec::from)
        } else {
            transcript::run_solo(&program, &[name, address], server).map(|one| vec![one])
        }
    }

    /// Runs a case in all pairings. The original with itself is what the others are compared with.
    /// Gives what is wrong, and the numbers of the differences that showed.
    fn case(&self, case: &Case) -> (Vec<String>, Vec<&'static str>) {
        let (original, ours) = (&self.original, &self.ours);
        let pairings = match case.kind {
            Kind::Pair => vec![(original, ours), (ours, original), (ours, ours)],
            Kind::Solo => vec![(ours, ours)],
            Kind::Own => {
                let result = self.run(case, ours, ours);
                let problem = result.and_then(|got| transcript::check_own(&got[0])).err();
                return (problem.into_iter().collect(), vec![]);
            }
        };
        let mut seen = vec![];
        let mut problems = vec![];
        let mut compare = |reference: &[Transcript], transcripts: &[Transcript]| {
            for (expected, transcript) in reference.iter().zip(transcripts) {
                let (id, known, place) = (&case.id, &self.known, self.place);
                transcript::compare(id, place, known, expected, transcript, &mut seen)?;
            }
            Ok(())
        };
        match self.run(case, original, original) {
            Ok(reference) => {
                problems.extend(compare(&reference, &reference).err());
                for (server, client) in pairings {
                    let pairing = format!("{}-{}", server.name, client.name);
                    if self
                        .wanted
                        .pairing
                        .as_ref()
                        .is_none_or(|one| *one == pairing)
                    {
                        let result = self.run(case, server, client);
                        problems.extend(result.and_then(|got| compare(&reference, &got)).err());
                    }
                }
            }
            Err(error) => problems.push(error),
        }
        if problems.is_empty() && self.wanted.pairing.is_none() {
            problems = transcript::unseen(&case.id, self.place, &self.known, &seen);
        }
        let numbers = seen.iter().map(|(row, _)| self.known[*row].number);
        (problems, numbers.collect())
    }

    /// D11: an original compiled with headers that know no native flush does not use it where the
    /// device has it; ours does, whatever it was compiled with.
    fn older_headers(&self, tally: &mut Tally, shown: &mut Vec<&'static str>) {
        if self.place != Place::Native || !self.wanted.wants(OLDER_HEADERS) {
            return;
        }
        let older = Library {
            name: ORIGINAL,
            dir: OLDER.into(),
        };
        if !older.dir.exists() {
            println!("skipped {OLDER_HEADERS}: {OLDER} is not there");
            return;
        }
        let start = Instant::now();
        let mut problems = vec![];
        let case = Case::new("ops", "flush".to_string(), Kind::Pair);
        for (library, expected) in [(&older, "RDMA_READ "), (&self.ours, "FLUSH ")] {
            match self.run(&case, &self.ours, library) {
                Ok(sides) => {
                    let flush = sides[1].value("flush").unwrap_or("no completion");
                    if !flush.starts_with(expected) {
                        problems.push(format!(
                            "flush over {} is to be {expected}, but was: {flush}",
                            library.dir.display()
                        ));
                    }
                }
                Err(error) => problems.push(error),
            }
        }
        if problems.is_empty() {
            shown.push("D11");
        }
        tally.note(OLDER_HEADERS, start, &problems, &self.rerun(OLDER_HEADERS));
    }
}

// ---- on this machine, for the device ----

/// Builds the programs, and puts them, this program and our library into one directory.
fn prepare() -> PathBuf {
    let dir = support::scratch("device");
    let ours = dir.join(OURS_DIR);
    fs::create_dir(&ours).unwrap();
    let library = support::release().join("librpma.so");
    fs::copy(&library, ours.join("librpma.so.0")).unwrap();
    for name in PROGRAMS.iter().chain(&["persist"]) {
        let source = format!("c-tests/device/{name}.c");
        let mut command = support::cc();
        command
            .arg("-I")
            .arg(support::root().join("include"))
            .args(["-g", "-rdynamic", "-o"])
            .arg(dir.join(name))
            .arg(support::root().join(source))
            .arg(&library)
            .args(["-libverbs", "-lrdmacm"]);
        support::run(&mut command);
    }
    fs::copy(env::current_exe().unwrap(), dir.join(TEST)).unwrap();
    dir
}

/// Runs a script in the virtual machine and passes on what it prints; true if it ended well.
fn vm(dir: &Path, options: &[&str], script: &str) -> bool {
    fs::write(dir.join("run.sh"), script).unwrap();
    let mut command = Command::new(support::root().join("scripts/vm"));
    command.arg("run").args(options).arg(dir);
    let status = command.stdin(Stdio::null()).status();
    status.expect("scripts/vm").success()
}

fn in_virtual_machines(wanted: &Wanted) -> bool {
    let dir = prepare();
    let ours = Library {
        name: OURS,
        dir: dir.join(OURS_DIR),
    };
    let mut names: Vec<_> = Case::all(&dir, &ours)
        .into_iter()
        .map(|case| case.id)
        .collect();
    names.push(OLDER_HEADERS.to_string());
    names.retain(|name| wanted.wants(name));
    if wanted.list {
        for name in names.iter().map(String::as_str).chain([PERSISTENCE]) {
            println!("{name}: test");
        }
        return true;
    }

    let mut tally = Tally::default();
    let mut shown = vec![];
    for kernel in KERNELS {
        if names.is_empty() || wanted.kernel.as_ref().is_some_and(|one| one != kernel) {
            continue;
        }
        let start = Instant::now();
        let names = wanted.names.join("' '");
        let pairing = match &wanted.pairing {
            Some(pairing) => format!("--pairing {pairing}"),
            None => String::new(),
        };
        let script = format!(
            "#!/bin/sh\n\
             export RPMA_TEST_DEVICE=$RPMA_VM_IP RPMA_TEST_DEVICE6=$RPMA_VM_IP6\n\
             export RPMA_TEST_PMEM=$RPMA_VM_PMEM\n\
             exec ./{TEST} --beside . --kernel {kernel} {pairing} {}\n",
            if names.is_empty() {
                names
            } else {
                format!("'{names}'")
            }
        );
        let _ = fs::remove_file(dir.join(RESULT));
        let good = vm(&dir, &["--kernel", kernel, "--timeout", "400"], &script);
        let result = fs::read_to_string(dir.join(RESULT)).unwrap_or_default();
        let mut words = result.split(' ').map(str::to_string);
        let mut number = || words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
        let (passed, failed): (usize, usize) = (number(), number());
        tally.passed += passed;
        tally.failed += if good { failed } else { failed.max(1) };
        shown.extend(words);
        println!("kernel {kernel}: {:.0} s\n", start.elapsed().as_secs_f32());
    }
    if wanted.wants(PERSISTENCE) && wanted.kernel.as_ref().is_none_or(|one| one == "new") {
        let start = Instant::now();
        let problems: Vec<_> = persistence(&dir).err().into_iter().collect();
        let rerun = format!("cargo test --test device -- {PERSISTENCE}");
        tally.note(PERSISTENCE, start, &problems, &rerun);
    }
    // All but D9, which is for tests/local.rs.
    if wanted.everything() {
        for number in (1..=12).filter(|number| *number != 9) {
            if !shown.contains(&format!("D{number}")) {
                println!("FAILED  D{number} did not show on any kernel");
                tally.failed += 1;
            }
        }
    }
    println!("in all: {} passed, {} failed", tally.passed, tally.failed);
    tally.failed == 0
}

/// Written and flushed over the device, the power cut, booted again: the bytes have to be there, and
/// must not have been there before.
fn persistence(dir: &Path) -> Result<(), String> {
    const SEED: &str = "42";
    let pmem = dir.join("pmem");
    let _ = fs::remove_file(&pmem);
    let options = ["--pmem", pmem.to_str().unwrap(), "--timeout", "120"];
    let with_ours = format!("export LD_LIBRARY_PATH=./{OURS_DIR}");
    let write = format!(
        "#!/bin/sh\n{with_ours}\n\
         if ./persist check $RPMA_VM_PMEM {SEED}; then exit 1; fi\n\
         exec ./persist write $RPMA_VM_IP $RPMA_VM_PMEM {SEED}\n"
    );
    let check = format!("#!/bin/sh\n{with_ours}\nexec ./persist check $RPMA_VM_PMEM {SEED}\n");
    if !vm(dir, &[&options[..], &["--hard-off"]].concat(), &write) {
        return Err("what is written and flushed did not get to the power cut".to_string());
    }
    if !vm(dir, &options, &check) {
        return Err("what was flushed is not there after the power cut".to_string());
    }
    Ok(())
}
