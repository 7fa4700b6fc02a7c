//! The C programs that need a verbs device (c-tests/device), server and client, over the original
//! library and ours in all four pairings.
//!
//!     cargo test --test device                        on softverbs, then in a virtual machine on rxe
//!     cargo test --test device -- ops/flush           the cases whose name has this in it
//!     cargo test --test device -- --on softverbs      on one of the two only: softverbs, vm
//!     cargo test --test device -- --kernel old        as one of the two kernels has it: new, old
//!     cargo test --test device -- --pairing ours-original
//!                                                     server over ours, client over the original
//!     RPMA_TEST_DEVICE=192.0.2.7 cargo test --test device
//!                                                     on this machine's device with that address
//!
//! RPMA_TEST_DEVICE6 adds an IPv6 address, RPMA_TEST_PMEM a device-DAX file to overwrite. In the
//! virtual machine (scripts/vm) this very program runs again, with what it needs beside it, on the
//! kernel's device: the new kernel's has native flush and atomic write, the old one's has neither.
//! What the original gives there is recorded (tests/support/rxe-*.transcripts), compared each time,
//! and what softverbs is compared with; RPMA_UPDATE_TRANSCRIPTS=1 records it anew.
//!
//! The last test, of persistence, ends as badly as possible once the bytes are flushed: the virtual
//! machine's power is cut, the processes over softverbs are killed.

#[path = "support/recording.rs"]
mod recording;
mod support;
#[path = "support/transcript.rs"]
mod transcript;

use recording::{Deviation, Recording, Seen};
use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;
use transcript::{Difference, Kind, Library, ORIGINAL, OURS, Place, Transcript};

/// The slowest first.
const PROGRAMS: &[&str] = &[
    "leaks", "memory", "connect", "errors", "setup", "ops", "queues", "ids",
];
/// How many cases run at once. They do not see each other.
const WORKERS: usize = 2;

/// In a copy of everything that is needed, for the machine that has the device.
const TEST: &str = "device-test";
const OURS_DIR: &str = "ours";
/// How many passed and failed, and the numbers of the differences that showed.
const RESULT: &str = "out/result";
/// What the original printed.
const TRANSCRIPTS: &str = "out/transcripts";
/// An original from the time before native flush; the virtual machine has it there.
const OLDER: &str = "/usr/lib/librpma-1.2.0";
/// Asks to record the transcripts.
const UPDATE: &str = "RPMA_UPDATE_TRANSCRIPTS";
/// Names a file that gets, for scripts/proof, what came of the comparison of softverbs with rxe.
const PROOF: &str = "SOFTVERBS_PROOF";

/// The virtual machine's kernels: with native flush and atomic write, and without.
const KERNELS: [&str; 2] = ["new", "old"];
const DEVICES: [&str; 2] = ["softverbs", "vm"];
/// Server and client; the original with itself is always run, for comparison.
const PAIRINGS: [&str; 3] = ["original-ours", "ours-original", "ours-ours"];

/// The names of the two tests that are not cases of a program.
const OLDER_HEADERS: &str = "older-headers";
const PERSISTENCE: &str = "persistence";

/// What the command line asks for.
#[derive(Default)]
struct Wanted {
    names: Vec<String>,
    on: Option<String>,
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
                "--on" => wanted.on = Some(value()?),
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
        known(&wanted.on, &DEVICES)?;
        known(&wanted.kernel, &KERNELS)?;
        known(&wanted.pairing, &PAIRINGS)?;
        Ok(wanted)
    }

    fn wants(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|part| name.contains(part.as_str()))
    }

    fn wants_on(&self, device: &str) -> bool {
        self.on.as_ref().is_none_or(|one| one == device)
    }

    fn kernels(&self) -> impl Iterator<Item = &'static str> {
        let kernels = KERNELS.into_iter();
        kernels.filter(|kernel| self.kernel.as_ref().is_none_or(|one| one == kernel))
    }

    fn everything(&self) -> bool {
        self.names.is_empty() && self.pairing.is_none() && self.kernel.is_none()
    }
}

#[derive(Default)]
struct Tally {
    passed: usize,
    failed: usize,
    /// What cannot run there.
    ignored: usize,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Tally {
            passed,
            failed,
            ignored,
        } = self;
        write!(f, "{passed} passed, {failed} failed, {ignored} ignored")
    }
}

impl Tally {
    fn ignore(&mut self, name: &str, why: &str) {
        self.ignored += 1;
        println!("ignored {name}: {why}");
    }

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
        (Some(dir), Ok(address)) => Run::new(dir, &Device::of_kernel(&address), &wanted).all(),
        (None, Ok(address)) => Run::new(&prepare(), &Device::of_machine(&address), &wanted).all(),
        (None, Err(_)) => on_software_devices(&wanted),
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
}

/// Why softverbs does not run a case.
const NOT_OVER_SOFTVERBS: &[(&str, &str)] = &[
    (
        "memory/shortages",
        "softverbs takes its memory where librpma does, and Rust ends a process that has none",
    ),
    (
        "setup/no-device",
        "softverbs has all addresses of the machine",
    ),
];
/// One that asks for the way to an address out there, which the recording's machine had not.
const NEEDS_ISOLATION: &str = "setup/addresses";

/// What the cases run on.
struct Device {
    address: String,
    address6: Option<OsString>,
    pmem: Option<OsString>,
    /// What makes a program find it.
    env: Vec<(&'static str, OsString)>,
    /// Whether it is one that there are recorded transcripts of, or that is to be as those.
    kind: DeviceKind,
    /// Whether there is no way from it to anywhere.
    isolated: bool,
    original: PathBuf,
    older: PathBuf,
}

#[derive(Clone, Copy, PartialEq)]
enum DeviceKind {
    Rxe,
    Softverbs,
    Other,
}

impl Device {
    /// The machine's own, whatever that is.
    fn of_machine(address: &str) -> Self {
        Self {
            address: address.to_string(),
            address6: env::var_os("RPMA_TEST_DEVICE6"),
            pmem: env::var_os("RPMA_TEST_PMEM"),
            env: vec![],
            kind: DeviceKind::Other,
            isolated: false,
            original: support::original(),
            older: PathBuf::from(OLDER).join("librpma.so.0"),
        }
    }

    /// That of the virtual machine.
    fn of_kernel(address: &str) -> Self {
        let kind = DeviceKind::Rxe;
        Self {
            kind,
            ..Self::of_machine(address)
        }
    }

    /// One in software, with the abilities of the kernel's.
    fn of_softverbs(kernel: &str, pmem: &Path, isolated: bool) -> Self {
        let native = if kernel == "new" { "on" } else { "off" };
        let set = |name, value: &str| (name, value.into());
        Self {
            address: "127.0.0.1".to_string(),
            address6: Some("::1".into()),
            pmem: Some(pmem.into()),
            env: vec![
                ("LD_PRELOAD", support::softverbs().into()),
                ("RPMA_TEST_DEVICE6", "::1".into()),
                ("RPMA_TEST_PMEM", pmem.into()),
                set("SOFTVERBS_FLUSH", native),
                set("SOFTVERBS_ATOMIC_WRITE", native),
                set("SOFTVERBS_ODP", "off"),
            ],
            kind: DeviceKind::Softverbs,
            isolated,
            original: support::original_of("1.3.0"),
            older: support::original_of("1.2.0"),
        }
    }

    /// Why a case cannot run there.
    fn lacks(&self, case: &str) -> Option<&'static str> {
        let not = NOT_OVER_SOFTVERBS.iter().find(|(name, _)| *name == case);
        match case {
            "ops/ipv6" if self.address6.is_none() => Some("RPMA_TEST_DEVICE6 is not set"),
            "errors/pmem" if self.pmem.is_none() => Some("RPMA_TEST_PMEM is not set"),
            NEEDS_ISOLATION if self.kind == DeviceKind::Softverbs && !self.isolated => {
                Some("no network namespace may be made here")
            }
            _ if self.kind == DeviceKind::Softverbs => not.map(|(_, why)| *why),
            _ => None,
        }
    }
}

/// What came of the cases.
#[derive(Default)]
struct Results {
    tally: Tally,
    /// The numbers of the differences that showed.
    shown: Vec<&'static str>,
    /// What the original printed.
    transcripts: Recording,
}

/// One run of the cases on a device.
struct Run<'a> {
    dir: &'a Path,
    device: &'a Device,
    wanted: &'a Wanted,
    original: Library,
    ours: Library,
    known: Vec<Difference>,
    place: Place,
    recording: Option<Recording>,
    deviations: Vec<Deviation>,
    seen: Mutex<Seen>,
}

impl<'a> Run<'a> {
    fn new(dir: &'a Path, device: &'a Device, wanted: &'a Wanted) -> Self {
        let library = |name, dir| Library {
            env: device.env.clone(),
            ..Library::new(name, dir)
        };
        Self {
            dir,
            device,
            wanted,
            original: library(ORIGINAL, device.original.parent().unwrap().to_path_buf()),
            ours: library(OURS, dir.join(OURS_DIR)),
            known: transcript::known(),
            place: Place::Any,
            recording: None,
            deviations: vec![],
            seen: Mutex::default(),
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
                println!("FAILED  the device at {}: {error}", self.device.address);
                return false;
            }
        };
        self.place = if native { Place::Native } else { Place::Raw };
        let flush = if native { "native" } else { "no native" };
        println!("device at {}, with {flush} flush", self.device.address);
        let record = env::var_os(UPDATE).is_some() && self.device.kind == DeviceKind::Rxe;
        if self.device.kind != DeviceKind::Other && !record {
            self.recording = Some(Recording::of(self.place));
        }
        if self.device.kind == DeviceKind::Softverbs {
            self.deviations = recording::deviations(self.place);
        }

        let mut cases = Case::all(self.dir, &self.original);
        cases.retain(|case| self.wanted.wants(&case.id));
        let mut results = Results::default();
        cases.retain(|case| match self.device.lacks(&case.id) {
            Some(why) => {
                results.tally.ignore(&case.id, why);
                false
            }
            None => true,
        });
        let next = AtomicUsize::new(0);
        let results = Mutex::new(results);
        thread::scope(|scope| {
            for _ in 0..WORKERS {
                scope.spawn(|| {
                    while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let start = Instant::now();
                        let (problems, shown, transcripts) = self.case(case);
                        let mut results = results.lock().unwrap();
                        results.shown.extend(shown);
                        for transcript in &transcripts {
                            results.transcripts.add(&case.id, transcript);
                        }
                        let rerun = self.rerun(&case.id);
                        results.tally.note(&case.id, start, &problems, &rerun);
                    }
                });
            }
        });
        let mut results = results.into_inner().unwrap();
        self.older_headers(&mut results);
        if self.wanted.names.is_empty() {
            let seen = self.seen.lock().unwrap();
            let rows = self.deviations.iter().enumerate();
            for (_, unseen) in rows.filter(|(row, _)| !seen.rows.contains_key(row)) {
                println!("FAILED  softverbs.table: {}", unseen.unseen());
                results.tally.failed += 1;
            }
        }
        if self.device.kind == DeviceKind::Softverbs && env::var_os(PROOF).is_some() {
            self.note_comparison(cases.len());
        }
        let Results {
            tally,
            shown,
            transcripts,
        } = results;
        println!("{tally}");

        let Tally {
            passed,
            failed,
            ignored,
        } = tally;
        let result = format!("{passed} {failed} {ignored} {}", shown.join(" "));
        fs::create_dir_all(self.dir.join(RESULT).parent().unwrap()).unwrap();
        fs::write(self.dir.join(RESULT), result).unwrap();
        fs::write(self.dir.join(TRANSCRIPTS), transcripts.text()).unwrap();
        // Nothing at all to do is right only if that was asked for.
        tally.failed == 0 && (tally.passed > 0 || !self.wanted.names.is_empty())
    }

    fn rerun(&self, id: &str) -> String {
        let kernel = if self.place == Place::Raw {
            "old"
        } else {
            "new"
        };
        let on = match self.device.kind {
            DeviceKind::Rxe => "vm",
            DeviceKind::Softverbs => "softverbs",
            DeviceKind::Other => {
                let address = &self.device.address;
                return format!("RPMA_TEST_DEVICE={address} cargo test --test device -- {id}");
            }
        };
        format!("cargo test --test device -- {id} --on {on} --kernel {kernel}")
    }

    /// The transcripts of all sides of one case over one pair of libraries.
    fn run(
        &self,
        case: &Case,
        server: &Library,
        client: &Library,
    ) -> Result<Vec<Transcript>, String> {
        let program = self.program(case.program);
        let (name, address) = (&case.name, self.device.address.as_str());
        if case.kind == Kind::Pair {
            transcript::run_pair(&program, name, address, server, client).map(Vec::from)
        } else {
            transcript::run_solo(&program, &[name, address], server).map(|one| vec![one])
        }
    }

    /// Runs a case in all pairings. The original with itself is what the others are compared with.
    /// Gives what is wrong, the numbers of the differences that showed, and the original's transcripts.
    fn case(&self, case: &Case) -> (Vec<String>, Vec<&'static str>, Vec<Transcript>) {
        let (original, ours) = (&self.original, &self.ours);
        let pairings = match case.kind {
            Kind::Pair => vec![(original, ours), (ours, original), (ours, ours)],
            Kind::Solo => vec![(ours, ours)],
            Kind::Own => {
                let result = self.run(case, ours, ours);
                let problem = result.and_then(|got| transcript::check_own(&got[0])).err();
                return (problem.into_iter().collect(), vec![], vec![]);
            }
        };
        let mut seen = vec![];
        let mut problems = vec![];
        let mut of_original = vec![];
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
                problems.extend(self.compare_recorded(&case.id, &reference));
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
                of_original = reference;
            }
            Err(error) => problems.push(error),
        }
        if problems.is_empty() && self.wanted.pairing.is_none() {
            problems = transcript::unseen(&case.id, self.place, &self.known, &seen);
        }
        let numbers = seen.iter().map(|(row, _)| self.known[*row].number);
        (problems, numbers.collect(), of_original)
    }

    /// What is not as it was recorded on rxe, where it is to be.
    fn compare_recorded(&self, case: &str, transcripts: &[Transcript]) -> Vec<String> {
        let Some(recording) = &self.recording else {
            return vec![];
        };
        let mut seen = self.seen.lock().unwrap();
        let compare = |transcript| recording.compare(case, transcript, &self.deviations, &mut seen);
        transcripts
            .iter()
            .map(compare)
            .filter_map(Result::err)
            .collect()
    }

    /// Tells how much was the same as on rxe, and what was not.
    fn note_comparison(&self, cases: usize) {
        let seen = self.seen.lock().unwrap();
        let like = if self.place == Place::Raw {
            "without"
        } else {
            "with"
        };
        let mut text = format!(
            "As a device {like} native flush and atomic write: {cases} cases, {} lines the same as on \
             rxe, {} others.\n\n| case | line | times | on rxe | over softverbs | why |\n\
             |---|---|---|---|---|---|\n",
            seen.same, seen.others
        );
        for (row, count) in &seen.rows {
            text += &format!("{}\n", self.deviations[*row].told(*count));
        }
        let mut options = fs::File::options();
        let options = options.append(true).create(true);
        let mut file = options.open(env::var_os(PROOF).unwrap()).unwrap();
        writeln!(file, "{text}").unwrap();
    }

    /// D11: an original compiled with headers that know no native flush does not use it where the
    /// device has it; ours does, whatever it was compiled with.
    fn older_headers(&self, results: &mut Results) {
        if self.place != Place::Native || !self.wanted.wants(OLDER_HEADERS) {
            return;
        }
        if !self.device.older.exists() {
            let why = format!("{} is not there", self.device.older.display());
            results.tally.ignore(OLDER_HEADERS, &why);
            return;
        }
        let older = Library {
            dir: self.device.older.parent().unwrap().to_path_buf(),
            ..self.original.clone()
        };
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
            results.shown.push("D11");
        }
        results
            .tally
            .note(OLDER_HEADERS, start, &problems, &self.rerun(OLDER_HEADERS));
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
    let status = support::vm(dir, options, script).status();
    status.expect("scripts/vm").success()
}

fn on_software_devices(wanted: &Wanted) -> bool {
    let dir = prepare();
    let ours = Library::new(OURS, dir.join(OURS_DIR));
    let mut names: Vec<_> = Case::all(&dir, &ours)
        .into_iter()
        .map(|case| case.id)
        .collect();
    names.push(OLDER_HEADERS.to_string());
    if wanted.list {
        names.push(PERSISTENCE.to_string());
        for name in names.iter().filter(|name| wanted.wants(name)) {
            println!("{name}: test");
        }
        return true;
    }
    let any_case = names.iter().any(|name| wanted.wants(name));
    let mut good = true;
    if wanted.wants_on("softverbs") {
        good &= over_softverbs(&dir, wanted, any_case);
    }
    if wanted.wants_on("vm") {
        good &= in_virtual_machines(&dir, wanted, any_case);
    }
    good
}

/// What a run said that is over: whether it was good, its tally, and the differences that showed.
fn result_of(dir: &Path, good: bool, tally: &mut Tally, shown: &mut Vec<String>) {
    let result = fs::read_to_string(dir.join(RESULT)).unwrap_or_default();
    let mut words = result.split(' ').map(str::to_string);
    let mut number = || words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
    let (passed, failed, ignored): (usize, usize, usize) = (number(), number(), number());
    tally.passed += passed;
    tally.ignored += ignored;
    tally.failed += if good { failed } else { failed.max(1) };
    shown.extend(words);
}

/// All have to have shown somewhere, but D9, which is for tests/local.rs, and those that cannot.
fn all_shown(tally: &mut Tally, shown: &[String], but: &[u32]) {
    for number in (1..=12).filter(|number| *number != 9 && !but.contains(number)) {
        if !shown.contains(&format!("D{number}")) {
            println!("FAILED  D{number} did not show on any device");
            tally.failed += 1;
        }
    }
}

/// On softverbs with the abilities of each kernel's device.
fn over_softverbs(dir: &Path, wanted: &Wanted, any_case: bool) -> bool {
    // What is needed may have to be fetched, before there is no way out.
    support::softverbs();
    support::original_of("1.3.0");
    support::original_of("1.2.0");
    // In a thread, since a namespace is for a thread and what it starts.
    let run = || {
        let isolated = isolate();
        over_softverbs_here(dir, wanted, any_case, isolated)
    };
    thread::scope(|scope| scope.spawn(run).join().unwrap())
}

/// Leaves the thread with a network that is nothing but a loopback, as far as it may have one.
fn isolate() -> bool {
    // SAFETY: it changes nothing but what the thread sees of the network.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return false;
    }
    support::run(Command::new("ip").args(["link", "set", "lo", "up"]));
    true
}

fn over_softverbs_here(dir: &Path, wanted: &Wanted, any_case: bool, isolated: bool) -> bool {
    let pmem = dir.join("file");
    let mut tally = Tally::default();
    let mut shown = vec![];
    for kernel in wanted.kernels() {
        let device = Device::of_softverbs(kernel, &pmem, isolated);
        // As long as what of a device-DAX is mapped.
        let file = fs::File::create(&pmem).unwrap();
        (&file).write_all(&vec![0; 4 << 20]).unwrap();
        file.sync_all().unwrap();
        if any_case {
            let start = Instant::now();
            let _ = fs::remove_file(dir.join(RESULT));
            let good = Run::new(dir, &device, wanted).all();
            result_of(dir, good, &mut tally, &mut shown);
            let seconds = start.elapsed().as_secs_f32();
            println!("softverbs like kernel {kernel}: {seconds:.0} s\n");
        }
        // Without native flush it takes memory that is persistent by itself.
        if wanted.wants(PERSISTENCE) && kernel == "new" {
            let start = Instant::now();
            let problems: Vec<_> = killed(dir, &device, &pmem).err().into_iter().collect();
            let rerun = format!("cargo test --test device -- {PERSISTENCE} --on softverbs");
            tally.note(PERSISTENCE, start, &problems, &rerun);
        }
    }
    if wanted.everything() {
        // D1 is of addresses without a device.
        all_shown(&mut tally, &shown, &[1]);
    }
    println!("over softverbs: {tally}\n");
    tally.failed == 0
}

fn in_virtual_machines(dir: &Path, wanted: &Wanted, any_case: bool) -> bool {
    let mut tally = Tally::default();
    let mut shown = vec![];
    let record = env::var_os(UPDATE).is_some();
    let mut native = Recording::of(Place::Native);
    for kernel in wanted.kernels().filter(|_| any_case) {
        let start = Instant::now();
        let names = wanted.names.join("' '");
        let pairing = match &wanted.pairing {
            Some(pairing) => format!("--pairing {pairing}"),
            None => String::new(),
        };
        let update = if record {
            format!("{UPDATE}=1")
        } else {
            String::new()
        };
        let script = format!(
            "#!/bin/sh\n\
             export RPMA_TEST_DEVICE=$RPMA_VM_IP RPMA_TEST_DEVICE6=$RPMA_VM_IP6 {update}\n\
             export RPMA_TEST_PMEM=$RPMA_VM_PMEM\n\
             exec ./{TEST} --beside . --kernel {kernel} {pairing} {}\n",
            if names.is_empty() {
                names
            } else {
                format!("'{names}'")
            }
        );
        let _ = fs::remove_file(dir.join(RESULT));
        let good = vm(dir, &["--kernel", kernel, "--timeout", "3600"], &script);
        result_of(dir, good, &mut tally, &mut shown);
        if record && good && wanted.names.is_empty() {
            let text = fs::read_to_string(dir.join(TRANSCRIPTS)).unwrap();
            let (kind, text) = if kernel == "new" {
                native = Recording::parse(&text);
                ("native", text)
            } else {
                ("raw", Recording::parse(&text).without(&native).text())
            };
            let file = support::root().join(format!("tests/support/rxe-{kind}.transcripts"));
            fs::write(&file, text).unwrap();
            println!("recorded in {}", file.display());
        }
        println!("kernel {kernel}: {:.0} s\n", start.elapsed().as_secs_f32());
    }
    if wanted.wants(PERSISTENCE) && wanted.kernels().any(|one| one == "new") {
        let start = Instant::now();
        let problems: Vec<_> = persistence(dir).err().into_iter().collect();
        let rerun = format!("cargo test --test device -- {PERSISTENCE} --on vm");
        tally.note(PERSISTENCE, start, &problems, &rerun);
    }
    if wanted.everything() {
        all_shown(&mut tally, &shown, &[]);
    }
    println!("in the virtual machine: {tally}");
    tally.failed == 0
}

/// Written and flushed over the device, the power cut, booted again: the bytes have to be there, and
/// must not have been there before.
fn persistence(dir: &Path) -> Result<(), String> {
    const SEED: &str = "42";
    let pmem = dir.join("pmem");
    let _ = fs::remove_file(&pmem);
    let options = ["--pmem", pmem.to_str().unwrap(), "--timeout", "1200"];
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

/// The same over softverbs, with the processes killed. The kernel keeps what it was given, so it
/// must also say that there is nothing left that it would still have to write to the file.
fn killed(dir: &Path, device: &Device, pmem: &Path) -> Result<(), String> {
    const SEED: &str = "43";
    let command = |args: &[&str]| {
        let mut command = Command::new(dir.join("persist"));
        command.args(args).envs(device.env.iter().cloned());
        command.env("LD_LIBRARY_PATH", dir.join(OURS_DIR));
        command
    };
    let path = pmem.to_str().unwrap();
    let check = || command(&["check", path, SEED]).output().unwrap();
    if check().status.success() {
        return Err("the pattern is there before it is written".to_string());
    }
    let mut client = command(&["write", &device.address, path, SEED])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // It ends by itself if it takes too long.
    let mut said = vec![];
    for line in BufReader::new(client.stdout.take().unwrap()).lines() {
        said.push(line.unwrap());
        if said.last().is_some_and(|line| line == "VM-HARD-OFF") {
            break;
        }
    }
    let unwritten = unwritten_by_child(client.id(), path);
    // Which takes the server along.
    let _ = client.kill();
    let _ = client.wait();
    if said.last().is_none_or(|line| line != "VM-HARD-OFF") {
        let said = said.join("\n  ");
        return Err(format!(
            "what is written and flushed did not get to the end:\n  {said}"
        ));
    }
    match unwritten {
        Ok(0) => {}
        Ok(kb) => {
            return Err(format!(
                "{kb} kB of what was flushed are not written to the file"
            ));
        }
        Err(error) => return Err(format!("the server's mapping: {error}")),
    }
    let check = check();
    if !check.status.success() {
        let said = String::from_utf8_lossy(&check.stdout).into_owned();
        return Err(format!(
            "what was flushed is not there after the server was killed: {said}"
        ));
    }
    Ok(())
}

/// How much of a file a child of that process has changed in its memory alone.
fn unwritten_by_child(parent: u32, file: &str) -> Result<usize, String> {
    let read = |path: String| fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"));
    let children = read(format!("/proc/{parent}/task/{parent}/children"))?;
    let maps = read(format!("/proc/{}/smaps", children.trim()))?;
    let ours = maps.lines().skip_while(|line| !line.ends_with(file));
    let dirty = ours
        .skip(1)
        .take_while(|line| !line.contains('-'))
        .filter(|line| line.starts_with("Shared_Dirty:") || line.starts_with("Private_Dirty:"))
        .map(|line| {
            line.split_whitespace()
                .nth(1)
                .and_then(|kb| kb.parse::<usize>().ok())
        })
        .collect::<Option<Vec<_>>>();
    match dirty {
        Some(dirty) if !dirty.is_empty() => Ok(dirty.iter().sum()),
        _ => Err(format!("no {file} in it:\n{maps}")),
    }
}
