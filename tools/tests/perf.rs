//! rpma-perf: client and server as two processes over softverbs, on this library and on the original.
//!
//!     cargo test --package librpma-tools --test perf            all of it
//!     cargo test --package librpma-tools --test perf -- NAME    those with this in their name
//!
//! A failure prints the commands, which can be run by hand.

#[path = "../../tests/support/running.rs"]
mod running;
mod support;

use librpma_tools::perf::operation::Operation;
use librpma_tools::perf::pattern::Pattern;
use librpma_tools::perf::plan::Plan;
use librpma_tools::perf::protocol::{Answer, Ask, Purpose, decode, encode};
use librpma_tools::perf::table;
use running::Running;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};
use support::{ours, release, root, run, scratch};

const PERF: &str = env!("CARGO_BIN_EXE_rpma-perf");
const ADDRESS: &str = "127.0.0.1";
/// How long anything that is waited for may take, which is many times what it does take.
const LIMIT: Duration = Duration::from_secs(900);

// ---- running ----

/// What a client and its server run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Library {
    Ours,
    Original,
}

impl Library {
    fn dir(self) -> PathBuf {
        match self {
            Self::Ours => ours().to_owned(),
            Self::Original => {
                let dir = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
                let file = Path::new(&dir).join("librpma.so.0");
                assert!(
                    file.exists(),
                    "no {}: scripts/install-deps installs it",
                    file.display()
                );
                dir.into()
            }
        }
    }

    fn file(self) -> String {
        let file = fs::canonicalize(self.dir().join("librpma.so.0")).unwrap();
        file.display().to_string()
    }
}

/// Whether the device has native flush and atomic write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Device {
    Native,
    Raw,
}

fn command(library: Library, device: Device) -> Command {
    let mut command = Command::new(PERF);
    command
        .env_clear()
        .env("LD_LIBRARY_PATH", library.dir())
        .env("LD_PRELOAD", release().join("libsoftverbs.so"));
    if device == Device::Raw {
        command
            .env("SOFTVERBS_FLUSH", "off")
            .env("SOFTVERBS_ATOMIC_WRITE", "off");
    }
    command
}

fn ours_native() -> Command {
    command(Library::Ours, Device::Native)
}

/// A program that runs.
struct Program(Running);

impl Deref for Program {
    type Target = Running;
    fn deref(&self) -> &Running {
        &self.0
    }
}

impl DerefMut for Program {
    fn deref_mut(&mut self) -> &mut Running {
        &mut self.0
    }
}

impl Program {
    fn start(command: &mut Command) -> Self {
        Program(Running::start(command.stdin(Stdio::null())))
    }

    /// The next line; `None` if it has ended. All of it has a limit.
    #[track_caller]
    fn line(&mut self, awaited: &str) -> Option<String> {
        let left = LIMIT.saturating_sub(self.since.elapsed());
        match self.0.next(left) {
            Ok(line) => line,
            Err(_) => panic!("{awaited} has not come from {}", self.story()),
        }
    }

    /// Waits for a line that has this in it.
    #[track_caller]
    fn await_line(&mut self, part: &str) -> String {
        loop {
            match self.line(part) {
                Some(line) if line.contains(part) => return line,
                Some(_) => {}
                None => panic!("no line with '{part}' from {}", self.story()),
            }
        }
    }

    /// The status, and all that was printed.
    #[track_caller]
    fn end(mut self) -> (Option<i32>, String) {
        while self.line("the end").is_some() {}
        (self.status().code(), self.story())
    }

    fn story(&self) -> String {
        format!("{}\n{}\n", self.what, self.seen.join("\n"))
    }
}

/// A server that listens.
struct Server {
    program: Program,
    port: String,
}

impl Server {
    #[track_caller]
    fn start(mut command: Command, options: &[&str]) -> Self {
        let listener = TcpListener::bind((ADDRESS, 0)).unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        drop(listener);
        let mut program = Program::start(command.args(["server", ADDRESS, &port]).args(options));
        program.await_line("listening");
        Self { program, port }
    }

    /// Ends it as a user does.
    #[track_caller]
    fn stop(self) -> String {
        self.program.signal(libc::SIGINT);
        let (status, story) = self.program.end();
        assert_eq!(status, Some(0), "{story}");
        story
    }

    /// How many sockets it has.
    fn sockets(&self) -> usize {
        let files = fs::read_dir(format!("/proc/{}/fd", self.program.child.id())).unwrap();
        let links = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
        links
            .filter(|link| link.to_string_lossy().starts_with("socket:"))
            .count()
    }

    /// A client of it.
    fn client(&self, mut command: Command, arguments: &str) -> Command {
        command
            .args(["client", ADDRESS, &self.port])
            .args(arguments.split(' '));
        command
    }
}

/// The status, and what was printed to stdout and to stderr.
#[track_caller]
fn outcome(command: &mut Command) -> (Option<i32>, String, String) {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (mut stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let (sender, ended) = channel();
    thread::spawn(move || {
        let (mut out, mut err) = (String::new(), String::new());
        thread::scope(|scope| {
            scope.spawn(|| stderr.read_to_string(&mut err).unwrap());
            stdout.read_to_string(&mut out).unwrap();
        });
        let _ = sender.send((out, err));
    });
    let Ok((stdout, stderr)) = ended.recv_timeout(LIMIT) else {
        let _ = child.kill();
        panic!("{command:?} has not ended after {LIMIT:?}");
    };
    (child.wait().unwrap().code(), stdout, stderr)
}

/// What a client that succeeds has printed to stdout.
#[track_caller]
fn succeeds(command: &mut Command) -> String {
    let (status, stdout, stderr) = outcome(command);
    assert_eq!(status, Some(0), "{command:?}\n{stdout}{stderr}");
    stdout
}

fn json(file: &Path) -> Value {
    let text =
        fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

fn path(file: &Path) -> &str {
    file.to_str().unwrap()
}

/// A directory for files that count as persistent and cost no disk.
fn pmem() -> &'static str {
    if Path::new("/dev/shm").is_dir() {
        "/dev/shm"
    } else {
        "/tmp"
    }
}

// ---- measuring ----

/// All operations, on both libraries and on both kinds of device, polling and by events: contents are
/// compared, and what is written down is all there and fits together.
#[track_caller]
fn every_operation(library: Library, device: Device, more: &str) {
    let name = format!("perf-{library:?}-{device:?}{}", more.trim());
    let dir = scratch(&name);
    let (file, lines, plot) = (
        dir.join("run.json"),
        dir.join("run.csv"),
        dir.join("run.svg"),
    );
    let server = Server::start(command(library, device), &["--pmem", pmem()]);
    let arguments = format!(
        "all --check -n 100 -s 1,64,4096 -d 1,8 -c 1,2 --warm-up 0 --json {} --csv {} --plot {}",
        path(&file),
        path(&lines),
        path(&plot)
    );
    let mut client = server.client(command(library, device), &format!("{arguments}{more}"));
    let table = succeeds(&mut client);
    server.stop();

    let run = json(&file);
    assert_eq!(run["complete"], true, "{name}");
    assert_eq!(run["error"], Value::Null, "{name}");
    let (host, _) = support::run(Command::new("uname").arg("-n"));
    let (kernel, _) = support::run(Command::new("uname").arg("-r"));
    let native = library == Library::Ours && device == Device::Native;
    for side in ["client", "server"] {
        let side = &run[side];
        assert_eq!(side["librpma"]["file"], library.file(), "{name}");
        assert_eq!(side["host"], host.trim(), "{name}");
        assert_eq!(side["kernel"], kernel.trim(), "{name}");
        assert_eq!(side["device"], "softverbs0", "{name}");
        assert_eq!(side["native_flush"], native, "{name}");
        assert_eq!(side["native_atomic_write"], native, "{name}");
    }
    // The table tells so too, once for each of the operations.
    let notes = |text: &str| table.matches(text).count();
    let some = |count| if native { 0 } else { count };
    assert_eq!(notes("(no native FLUSH: "), some(4), "{name}: {table}");
    assert_eq!(
        notes("makes nothing persistent)"),
        some(2),
        "{name}: {table}"
    );
    assert_eq!(
        notes("(no native ATOMIC WRITE: "),
        some(1),
        "{name}: {table}"
    );
    let events = more.contains("--events");
    assert_eq!(
        run["parameters"]["completions_by"],
        if events { "events" } else { "poll" }
    );

    // What was to be measured: an atomic write has one size.
    let names = [
        "read",
        "write",
        "write-with-imm",
        "atomic-write",
        "flush-visibility",
        "flush-persistent",
        "write-flush-visibility",
        "write-flush-persistent",
        "send",
        "send-with-imm",
        "ping-pong",
    ];
    let mut expected = BTreeSet::new();
    for operation in names {
        let sizes: &[u64] = if operation == "atomic-write" {
            &[8]
        } else {
            &[1, 64, 4096]
        };
        for size in sizes {
            for depth in [1, 8] {
                expected.extend([1, 2].map(|conns| (operation.to_owned(), *size, depth, conns)));
            }
        }
    }
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{name}: {value}"));
    let measurements = run["measurements"].as_array().unwrap();
    let key = |one: &Value| {
        let operation = one["operation"].as_str().unwrap().to_owned();
        (
            operation,
            number(&one["size_bytes"]),
            number(&one["depth"]),
            number(&one["connections"]),
        )
    };
    let found: Vec<_> = measurements.iter().map(key).collect();
    assert_eq!(found.len(), expected.len(), "{name}: {found:?}");
    assert_eq!(
        found.into_iter().collect::<BTreeSet<_>>(),
        expected,
        "{name}"
    );

    for one in measurements {
        let what = || format!("{name}: {one:#}");
        let float = |value: &Value| value.as_f64().unwrap();
        let (operations, seconds) = (number(&one["operations"]), float(&one["elapsed_seconds"]));
        assert_eq!(operations, 100, "{}", what());
        assert!(seconds > 0.0, "{}", what());
        let rate = float(&one["operations_per_second"]);
        assert!(
            (rate * seconds / operations as f64 - 1.0).abs() < 1e-9,
            "{}",
            what()
        );
        let bandwidth = float(&one["bytes_per_second"]);
        assert!(
            (bandwidth / rate - float(&one["size_bytes"])).abs() < 1e-6,
            "{}",
            what()
        );

        let latency = &one["latency"];
        assert_eq!(number(&latency["samples"]), operations, "{}", what());
        let percentile = |name| number(&latency["percentiles_ns"][name]);
        let mut rising = vec![number(&latency["min_ns"])];
        rising.extend(["50", "90", "99", "99.9", "99.99"].map(percentile));
        rising.push(number(&latency["max_ns"]));
        assert!(rising.is_sorted() && rising[0] > 0, "{rising:?} {}", what());
        let mean = float(&latency["mean_ns"]);
        let (least, most) = (rising[0] as f64, rising[6] as f64);
        // Values are kept to three digits.
        assert!((least * 0.999..=most * 1.001).contains(&mean), "{}", what());
        let distribution = latency["distribution_percent_ns"].as_array().unwrap();
        assert_eq!(distribution.last().unwrap()[0], 100.0, "{}", what());
        for column in [0, 1] {
            let values = distribution.iter().map(|step| float(&step[column]));
            let values: Vec<_> = values.collect();
            assert!(values.is_sorted_by(|a, b| a < b), "{}", what());
        }
        // Operations take their turns: as many as are under way take that long together. A round
        // trip is two latencies.
        let turns = if one["operation"] == "ping-pong" {
            2.0
        } else {
            1.0
        };
        let under_way = float(&one["depth"]) * float(&one["connections"]);
        let busy = mean * turns * 1e-9 * rate;
        assert!(
            busy <= under_way * 1.01,
            "{busy} of {under_way} under way: {}",
            what()
        );

        let checked = &one["checked"];
        assert_eq!(number(&checked["mismatches"]), 0, "{}", what());
        let operation = one["operation"].as_str().unwrap();
        let compared = number(&checked["operations"]);
        let at_least = match operation {
            "flush-visibility" | "flush-persistent" => 0,
            // What is in the server's memory at the end.
            "write" | "atomic-write" | "write-flush-visibility" | "write-flush-persistent" => {
                under_way as u64
            }
            "ping-pong" => 200,
            _ => 100,
        };
        assert!(
            compared >= at_least,
            "{compared} of {at_least} compared: {}",
            what()
        );
    }

    // The lines say the same.
    let text = fs::read_to_string(&lines).unwrap();
    let mut records = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let head = records.next().unwrap();
    let records: Vec<BTreeMap<_, _>> = records
        .map(|record| head.iter().copied().zip(record).collect())
        .collect();
    assert_eq!(records.len(), measurements.len(), "{text}");
    for (record, one) in records.iter().zip(measurements) {
        let latency = &one["latency"];
        let pairs = [
            ("operation", &one["operation"]),
            ("size_bytes", &one["size_bytes"]),
            ("depth", &one["depth"]),
            ("connections", &one["connections"]),
            ("operations", &one["operations"]),
            ("elapsed_seconds", &one["elapsed_seconds"]),
            ("bytes_per_second", &one["bytes_per_second"]),
            ("latency_mean_ns", &latency["mean_ns"]),
            ("latency_min_ns", &latency["min_ns"]),
            ("latency_p50_ns", &latency["percentiles_ns"]["50"]),
            ("latency_p99.99_ns", &latency["percentiles_ns"]["99.99"]),
            ("latency_max_ns", &latency["max_ns"]),
            ("mismatches", &one["checked"]["mismatches"]),
        ];
        for (column, value) in pairs {
            let same = match value.as_f64() {
                // Readers of JSON may be off by the last digit.
                Some(value) => {
                    (record[column].parse::<f64>().unwrap() - value).abs() <= value * 1e-12
                }
                None => record[column] == value.as_str().unwrap(),
            };
            assert!(same, "{column}: {} and {value}", record[column]);
        }
    }

    // So does the table, in fewer digits: a line for each, under the name of its operation.
    let rows = table
        .lines()
        .filter(|line| line.starts_with("  ") && !line.contains("size"));
    let shown: Vec<_> = rows
        .map(|row| row.split_whitespace().take(3).collect::<Vec<_>>().join(" "))
        .collect();
    let size = |size: u64| {
        if size == 4096 {
            "4K".to_owned()
        } else {
            size.to_string()
        }
    };
    let rows: Vec<_> = measurements
        .iter()
        .map(|one| {
            let (_, bytes, depth, conns) = key(one);
            format!("{} {depth} {conns}", size(bytes))
        })
        .collect();
    assert_eq!(shown, rows, "{table}");
    let longest = table.lines().map(str::len).max().unwrap();
    assert!(longest <= 80, "{longest} columns:\n{table}");
}

#[test]
fn every_operation_on_this_library() {
    every_operation(Library::Ours, Device::Native, "");
}

#[test]
fn every_operation_on_this_library_by_events() {
    every_operation(Library::Ours, Device::Native, " --events");
}

#[test]
fn every_operation_without_native_ones() {
    every_operation(Library::Ours, Device::Raw, "");
}

#[test]
fn every_operation_on_the_original() {
    every_operation(Library::Original, Device::Raw, "");
}

#[test]
fn every_operation_on_the_original_by_events() {
    every_operation(Library::Original, Device::Native, " --events");
}

/// The same two processes on the kernel's own device, with and without native operations.
#[test]
fn every_operation_in_a_virtual_machine() {
    for kernel in ["new", "old"] {
        let dir = scratch(&format!("perf-vm-{kernel}"));
        fs::copy(PERF, dir.join("rpma-perf")).unwrap();
        fs::copy(ours().join("librpma.so.0"), dir.join("librpma.so.0")).unwrap();
        fs::write(
            dir.join("run.sh"),
            "#!/bin/bash\n\
             export LD_LIBRARY_PATH=/share\n\
             coproc /share/rpma-perf server \"$RPMA_VM_IP\" 7204 --pmem \"$RPMA_VM_PMEM\" --overwrite\n\
             read -r line <&\"${COPROC[0]}\" && echo \"$line\"\n\
             timeout -s KILL 1800 /share/rpma-perf client \"$RPMA_VM_IP\" 7204 all --check -n 20 -s 8,4K \
             -d 4 -c 2 --warm-up 0 --json /share/out/run.json\n",
        )
        .unwrap();
        run(Command::new("chmod").arg("755").arg(dir.join("run.sh")));
        run(Command::new(root().join("scripts/vm"))
            .args(["run", "--kernel", kernel])
            .arg(&dir)
            .stdin(Stdio::null()));
        let run = json(&dir.join("out/run.json"));
        assert_eq!(run["complete"], true, "{kernel}: {run:#}");
        assert_eq!(run["client"]["device"], "rxe0", "{kernel}: {run:#}");
        let measurements = run["measurements"].as_array().unwrap();
        // Eleven operations of two sizes, one of them of one size.
        assert_eq!(measurements.len(), 21, "{kernel}: {run:#}");
        for one in measurements {
            assert_eq!(one["operations"], 20, "{kernel}: {one:#}");
            assert_eq!(one["checked"]["mismatches"], 0, "{kernel}: {one:#}");
        }
    }
}

/// Whatever is sent wrongly is noticed, by whichever side gets it.
#[test]
fn what_differs_is_noticed() {
    let dir = scratch("perf-liar");
    let liar = dir.join("liar.so");
    run(Command::new("cc")
        .args([
            "-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-I",
        ])
        .arg(root().join("include"))
        .arg(root().join("tools/tests/liar.c"))
        .arg("-o")
        .arg(&liar));
    let server = Server::start(ours_native(), &["--pmem", pmem()]);
    let operations = [
        "read",
        "write",
        "write-with-imm",
        "atomic-write",
        "write-flush-visibility",
        "write-flush-persistent",
        "send",
        "send-with-imm",
        "ping-pong",
    ];
    for operation in operations {
        let file = dir.join("run.json");
        let arguments = format!(
            "{operation} --check -n 20 -s 8 -d 4 --warm-up 0 --json {}",
            path(&file)
        );
        let mut client = server.client(ours_native(), &arguments);
        let preload = format!(
            "{}:{}",
            path(&release().join("libsoftverbs.so")),
            path(&liar)
        );
        let (status, stdout, stderr) = outcome(client.env("LD_PRELOAD", preload));
        assert_eq!(status, Some(1), "{client:?}\n{stdout}{stderr}");
        assert!(stderr.contains("contents differ"), "{client:?}\n{stderr}");
        let checked = &json(&file)["measurements"][0]["checked"];
        let (all, wrong) = (&checked["operations"], &checked["mismatches"]);
        // Of a reply both what the server got and what it sent back are wrong.
        assert!(
            all == wrong && wrong.as_u64() >= Some(4),
            "{operation}: {wrong} of {all}"
        );
    }
    server.stop();
}

#[test]
fn a_completion_for_some_is_one_for_all() {
    let server = Server::start(ours_native(), &[]);
    let arguments = "read write send ping-pong --check -n 1000 -s 64 -d 32 --signal-every 8 --warm-up 0 --json -";
    let run = succeeds(&mut server.client(ours_native(), arguments));
    let run: Value = serde_json::from_str(&run).unwrap();
    for one in run["measurements"].as_array().unwrap() {
        assert_eq!(one["operations"], 1000, "{one:#}");
        // Those of ping-pong are known by their replies.
        let samples = if one["operation"] == "ping-pong" {
            1000
        } else {
            125
        };
        assert_eq!(one["latency"]["samples"], samples, "{one:#}");
    }
    server.stop();
}

/// An operation that should have begun while nothing went on is late, and counts as such. In a closed
/// loop one alone would be.
#[test]
fn with_a_rate_operations_that_could_not_begin_are_late() {
    // The server is stopped for a second of the five, wherever in them that is.
    const STOPPED: Duration = Duration::from_secs(1);
    let memory = Memory::new("perf-rate");
    let server = Server::start(ours_native(), &["--pmem", path(&memory.0)]);
    let arguments = "write --rate 1000 -t 5 -s 8 -d 1 --warm-up 0 --check --json -";
    let mut client = server.client(ours_native(), arguments);
    let (sender, ended) = channel();
    thread::spawn(move || _ = sender.send(outcome(&mut client)));
    memory.await_change();
    server.program.signal(libc::SIGSTOP);
    thread::sleep(STOPPED);
    server.program.signal(libc::SIGCONT);
    let (status, stdout, stderr) = ended.recv_timeout(LIMIT).unwrap();
    assert_eq!(status, Some(0), "{stderr}");
    let run: Value = serde_json::from_str(&stdout).unwrap();
    let one = &run["measurements"][0];
    assert_eq!(one["operations"], 5000, "{one:#}");
    assert!(one["elapsed_seconds"].as_f64() >= Some(4.999), "{one:#}");
    // Those that were due in the first 800 ms of it waited for 200 ms or more: 16 percent of all.
    let late = |pair: &&Value| pair[1].as_u64() >= Some(199_000_000);
    let distribution = one["latency"]["distribution_percent_ns"]
        .as_array()
        .unwrap();
    let first = distribution
        .iter()
        .find(late)
        .map(|pair| pair[0].as_f64().unwrap());
    assert!(
        first.is_some_and(|percent| percent <= 88.0),
        "{first:?} {one:#}"
    );
    server.stop();
}

/// A file as persistent memory, which shows what the client does.
struct Memory(PathBuf);

impl Memory {
    fn new(name: &str) -> Self {
        let file = Path::new(pmem()).join(format!("{name}.{}", std::process::id()));
        let _ = fs::remove_file(&file);
        Self(file)
    }

    /// Waits until something was written there.
    #[track_caller]
    fn await_change(&self) {
        let since = Instant::now();
        while !fs::read(&self.0).is_ok_and(|bytes| bytes.iter().any(|byte| *byte != 0)) {
            assert!(
                since.elapsed() < LIMIT,
                "nothing comes into {}",
                self.0.display()
            );
            thread::yield_now();
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

// ---- ends that come early ----

#[test]
fn an_interrupted_client_shows_what_it_has() {
    let dir = scratch("perf-interrupted");
    let files = ["json", "csv", "svg"].map(|kind| dir.join(format!("run.{kind}")));
    let [file, lines, plot] = &files;
    let memory = Memory::new("perf-interrupted");
    let server = Server::start(ours_native(), &["--pmem", path(&memory.0)]);
    let arguments = format!(
        "write read -t 600 -s 8 -d 1 --warm-up 0 --check --json {} --csv {} --plot {}",
        path(file),
        path(lines),
        path(plot)
    );
    let mut client = Program::start(&mut server.client(ours_native(), &arguments));
    // Reads come first.
    client.await_line("1/2 read");
    client.signal(libc::SIGINT);
    let (status, story) = client.end();
    assert_eq!(status, Some(130), "{story}");
    assert!(story.contains("interrupted"), "{story}");
    let run = json(file);
    assert_eq!(
        (&run["complete"], &run["error"]),
        (&false.into(), &"interrupted".into())
    );

    let story = server.stop();
    assert!(story.contains("client 1: "), "{story}");

    let memory = Memory::new("perf-terminated");
    let server = Server::start(ours_native(), &["--pmem", path(&memory.0)]);
    let arguments = arguments.replace("write read", "write");
    let client = Program::start(&mut server.client(ours_native(), &arguments));
    memory.await_change();
    client.signal(libc::SIGTERM);
    let (status, story) = client.end();
    assert_eq!(status, Some(143), "{story}");
    let run = json(file);
    let one = &run["measurements"][0];
    assert_eq!(
        (&run["complete"], &one["complete"]),
        (&false.into(), &false.into()),
        "{run:#}"
    );
    assert!(one["operations"].as_u64() >= Some(1), "{run:#}");
    assert_eq!(one["checked"]["mismatches"], 0, "{run:#}");
    assert_eq!(fs::read_to_string(lines).unwrap().lines().count(), 2);
    assert!(fs::read_to_string(plot).unwrap().contains("</svg>"));
    let story = server.stop();
    assert!(story.contains("client 1: done, 1 measurement"), "{story}");
}

#[test]
fn a_client_whose_server_dies_shows_what_it_has() {
    let dir = scratch("perf-killed");
    let file = dir.join("run.json");
    let memory = Memory::new("perf-killed");
    let mut server = Server::start(ours_native(), &["--pmem", path(&memory.0)]);
    let arguments = format!(
        "write -t 600 -s 64 -d 4 --warm-up 0 --check --json {}",
        path(&file)
    );
    let client = Program::start(&mut server.client(ours_native(), &arguments));
    memory.await_change();
    server.program.child.kill().unwrap();
    let (status, story) = client.end();
    assert_eq!(status, Some(1), "{story}");
    assert!(
        story.contains("rpma-perf: the other side is lost"),
        "{story}"
    );
    let run = json(&file);
    assert_eq!(run["complete"], false, "{run:#}");
    assert!(run["error"].as_str().unwrap().contains("lost"), "{run:#}");
    assert!(
        run["measurements"][0]["operations"].as_u64() >= Some(1),
        "{run:#}"
    );
}

/// Clients that die, strangers, and nonsense: the next client is served all the same.
#[test]
fn a_server_outlives_its_clients() {
    let memory = Memory::new("perf-outlives");
    let server = Server::start(ours_native(), &["--pmem", path(&memory.0)]);
    let quick = "read ping-pong -n 100 -s 8 --warm-up 0";
    // The one that writes comes first, while nothing was written yet.
    for (operation, check) in [
        ("write", "--check"),
        ("ping-pong", "--events"),
        ("ping-pong", "--check"),
    ] {
        let arguments = format!("{operation} {check} -t 600 -s 64 -d 8 --warm-up 0");
        let mut client = Program::start(&mut server.client(ours_native(), &arguments));
        client.await_line("1/1");
        if operation == "write" {
            memory.await_change();
        }
        client.child.kill().unwrap();
        client.end();
        succeeds(&mut server.client(ours_native(), quick));
    }

    // Of TCP, with and without something to say.
    let port: u16 = server.port.parse().unwrap();
    let silent = TcpStream::connect((ADDRESS, port)).unwrap();
    let mut loud = TcpStream::connect((ADDRESS, port)).unwrap();
    let _ = loud.write_all(&[0x5a; 4096]);
    succeeds(&mut server.client(ours_native(), quick));
    drop((silent, loud));

    // Of RDMA, with another program.
    let mut stranger = Command::new("rping");
    stranger
        .args(["-c", "-a", ADDRESS, "-p", &server.port, "-C", "1"])
        .env("LD_PRELOAD", release().join("libsoftverbs.so"));
    let (status, stdout, stderr) = outcome(&mut stranger);
    assert_ne!(status, Some(0), "{stdout}{stderr}");
    succeeds(&mut server.client(ours_native(), quick));
    server.stop();
}

/// Those that begin as a client does, and go on otherwise.
#[test]
fn a_server_understands_what_it_should_alone() {
    let stranger = scratch("perf-stranger").join("stranger");
    run(Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(root().join("include"))
        .arg(root().join("tools/tests/stranger.c"))
        .arg("-o")
        .arg(&stranger)
        .arg(ours().join("librpma.so.0"))
        .arg("-libverbs"));
    let server = Server::start(ours_native(), &[]);
    let plan = Plan {
        operation: Operation::Read,
        size: 8,
        depth: 1,
        connections: 1,
        events: false,
        server_polls: false,
        check: false,
        seed: 0,
    };
    let prepare = String::from_utf8(encode(&Ask::Prepare(plan)).unwrap()).unwrap();
    let cases = [
        ("x", "", "Connection rejected"),
        ("d", "", "Connection rejected"),
        ("c", "What?", "not understood"),
        (
            "c",
            r#"{"hello":{"protocol":99}}"#,
            "the client speaks version 99, the server 2",
        ),
        ("c", &prepare, "without a greeting"),
        ("c", r#"{"hello":{"protocol":-1}}"#, "not understood"),
        ("c", r#"{"finish":{"operations":[]}}"#, "without a greeting"),
    ];
    for (kind, message, answer) in cases {
        let mut command = Command::new(&stranger);
        command
            .env_clear()
            .env("LD_LIBRARY_PATH", ours())
            .env("LD_PRELOAD", release().join("libsoftverbs.so"))
            .args([ADDRESS, &server.port, kind]);
        if !message.is_empty() {
            command.arg(message);
        }
        let (status, stdout, stderr) = outcome(&mut command);
        assert_eq!(status, Some(0), "{command:?}\n{stdout}{stderr}");
        assert!(
            stdout.contains(answer),
            "no '{answer}' for {command:?}\n{stdout}{stderr}"
        );
        succeeds(&mut server.client(ours_native(), "read -n 10 -s 8 -d 1 --warm-up 0"));
    }
    server.stop();
}

/// A client that stands still is given up, and the next one, which is told that it waits, is served.
#[test]
fn a_client_that_stands_still_is_given_up() {
    let memory = Memory::new("perf-still");
    let server = Server::start(ours_native(), &["--pmem", path(&memory.0)]);
    let arguments = "write --check -t 600 -s 64 -d 4 --warm-up 0";
    let still = Program::start(&mut server.client(ours_native(), arguments));
    memory.await_change();
    still.signal(libc::SIGSTOP);
    let quick = "read ping-pong -n 100 -s 8 --warm-up 0";
    let mut next = Program::start(&mut server.client(ours_native(), quick));
    next.await_line("waiting for the server");
    let (status, story) = next.end();
    assert_eq!(status, Some(0), "{story}");
    still.signal(libc::SIGCONT);
    let (status, story) = still.end();
    assert_eq!(status, Some(1), "{story}");
    assert!(story.contains("the other side is lost"), "{story}");
    let story = server.stop();
    assert!(
        story.contains("client 1: after 0 measurements: the other side is lost: nothing was heard"),
        "{story}"
    );
}

/// One that works is not given up, however long a measurement is; and a server that polls does no harm.
#[test]
fn a_client_that_works_is_not_given_up() {
    let server = Server::start(ours_native(), &[]);
    let one = |more: &str| {
        let arguments = format!("write -s 64 -d 4 --json - {more}");
        let text = succeeds(&mut server.client(ours_native(), &arguments));
        let run: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(run["complete"], true, "{run:#}");
        run
    };
    // Longer than silence is borne, and mostly spent on the warm-up.
    let run = one("--warm-up 11 -t 1");
    assert_eq!(run["parameters"]["server_polls"], false, "{run:#}");
    let run = one("--check -n 1000 --server-polls");
    assert_eq!(run["parameters"]["server_polls"], true, "{run:#}");
    assert_eq!(
        run["measurements"][0]["checked"]["mismatches"], 0,
        "{run:#}"
    );
    server.stop();
}

#[test]
fn clients_take_turns() {
    let server = Server::start(ours_native(), &[]);
    let arguments = "read send -n 2000 -s 8 --check --json -";
    let commands = [(); 4].map(|()| server.client(ours_native(), arguments));
    thread::scope(|scope| {
        let clients = commands.map(|mut command| scope.spawn(move || succeeds(&mut command)));
        for client in clients {
            let run: Value = serde_json::from_str(&client.join().unwrap()).unwrap();
            assert_eq!(run["complete"], true, "{run:#}");
        }
    });
    let story = server.stop();
    assert!(story.contains("client 4: done, 4 measurements"), "{story}");
}

#[test]
fn what_can_not_be_done_is_said_before_anything_is() {
    let server = Server::start(ours_native(), &["--memory", "1M"]);
    for (arguments, why) in [
        (
            "write-flush-persistent",
            "refused: write-flush-persistent needs persistent memory",
        ),
        (
            "write -s 1M -d 2",
            "refused: it takes 2097152 bytes of the server's memory",
        ),
        (
            "write --json /no/such/dir/run.json",
            "/no/such/dir/run.json: No such file",
        ),
    ] {
        let (status, stdout, stderr) = outcome(&mut server.client(ours_native(), arguments));
        assert_eq!(
            (status, stdout.as_str()),
            (Some(1), ""),
            "{arguments}: {stderr}"
        );
        assert!(stderr.contains(why), "{arguments}: {stderr}");
    }
    let taken = ["server", ADDRESS, &server.port];
    let (status, stdout, stderr) = outcome(ours_native().args(taken));
    assert_eq!((status, stdout.as_str()), (Some(1), ""), "{stderr}");
    assert!(stderr.contains("in use"), "{stderr}");
    server.stop();

    let (status, _, stderr) = outcome(ours_native().args(["client", ADDRESS, "1", "read"]));
    assert_eq!(status, Some(1), "{stderr}");
    assert!(
        stderr.contains("no rpma-perf server listens at 127.0.0.1 port 1"),
        "{stderr}"
    );
    // Without softverbs no device serves this address.
    let mut plain = ours_native();
    let (status, _, stderr) = outcome(
        plain
            .env_remove("LD_PRELOAD")
            .args(["client", ADDRESS, "7204", "read"]),
    );
    assert_eq!(status, Some(1), "{stderr}");
    assert!(stderr.contains("rpma_utils_get_ibv_context"), "{stderr}");
}

#[test]
fn files_with_contents_are_not_overwritten_unasked() {
    let dir = scratch("perf-pmem");
    let file = dir.join("precious");
    fs::write(&file, "precious").unwrap();
    for (pmem, why) in [
        (path(&file), "--overwrite"),
        ("/dev/null", "no DAX device"),
        ("/no/such/file", "No such"),
    ] {
        let (status, _, stderr) =
            outcome(ours_native().args(["server", ADDRESS, "7204", "--pmem", pmem]));
        assert_eq!(status, Some(1), "{stderr}");
        assert!(stderr.contains(why), "{stderr}");
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");

    // What it makes itself is gone afterwards; what was there stays.
    Server::start(ours_native(), &["--pmem", path(&dir)]).stop();
    Server::start(ours_native(), &["--pmem", path(&file), "--overwrite"]).stop();
    let left: Vec<_> = fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["precious"]);
}

// ---- the command line ----

#[test]
fn bad_arguments_are_refused_in_one_line() {
    let cases = [
        ("", "server, client, compare"),
        ("serve", "'serve'"),
        ("server", "<ADDRESS>"),
        ("server 127.0.0.1", "<PORT>"),
        ("server 127.0.0.1 0", "65535"),
        ("server 127.0.0.1 http", "a number"),
        ("server 127.0.0.1 7204 --memory 0", "has to be some"),
        ("server 127.0.0.1 7204 --memory 1T", "'1T'"),
        ("server 127.0.0.1 7204 --memory 99999999999G", "too much"),
        ("server 127.0.0.1 7204 --overwrite", "--pmem"),
        ("client 127.0.0.1 7204", "<OPERATION>"),
        ("client 127.0.0.1 7204 reed", "none of read, write"),
        ("client 127.0.0.1 7204 read -s 0", "size of 0"),
        ("client 127.0.0.1 7204 read -s 2G", "2147483648"),
        ("client 127.0.0.1 7204 read -s 8,,9", "''"),
        ("client 127.0.0.1 7204 read -s 9..8", "'9..8'"),
        ("client 127.0.0.1 7204 read -s 8..16x1", "'1'"),
        ("client 127.0.0.1 7204 read -d 0", "depth of 0"),
        ("client 127.0.0.1 7204 read -d x", "'x'"),
        ("client 127.0.0.1 7204 read -c 5000", "5000"),
        ("client 127.0.0.1 7204 read -t 0", "more than 0"),
        ("client 127.0.0.1 7204 read -t NaN", "86400"),
        ("client 127.0.0.1 7204 read -n 0", "'0'"),
        ("client 127.0.0.1 7204 read -n 5 -t 5", "--time"),
        ("client 127.0.0.1 7204 read --rate -1", "-1"),
        ("client 127.0.0.1 7204 read --signal-every 0", "'0'"),
        (
            "client 127.0.0.1 7204 read -d 4 --signal-every 8",
            "depth 4",
        ),
        ("client 127.0.0.1 7204 read --plot plot.gif", ".svg"),
        (
            "client 127.0.0.1 7204 read --json - --csv -",
            "--json and --csv would both write to '-'",
        ),
        (
            "client 127.0.0.1 7204 read --csv x.svg --plot ./x.svg",
            "--csv and --plot",
        ),
        (
            "client 127.0.0.1 7204 read --events --server-polls",
            "--server-polls",
        ),
        ("client 127.0.0.1 7204 read --jsn x", "--jsn"),
        ("compare", "<FIRST>"),
        ("compare a.json", "<SECOND>"),
        ("compare a.json b.json --names one", "--names"),
    ];
    for (arguments, part) in cases {
        let (status, stdout, stderr) = outcome(ours_native().args(arguments.split_whitespace()));
        assert_eq!(
            (status, stdout.as_str()),
            (Some(2), ""),
            "{arguments:?}: {stderr}"
        );
        assert!(
            stderr.starts_with("rpma-perf: ") && stderr.contains(part),
            "{arguments:?}: {stderr}"
        );
        assert_eq!(stderr.lines().count(), 1, "{arguments:?}: {stderr}");
    }
}

#[test]
fn sizes_can_be_given_as_a_range() {
    let server = Server::start(ours_native(), &[]);
    let arguments = "write -n 1 -s 64K,8..64,1K..16Kx4 -d 2 --warm-up 0 --json -";
    let run = succeeds(&mut server.client(ours_native(), arguments));
    let run: Value = serde_json::from_str(&run).unwrap();
    let sizes: Vec<_> = run["measurements"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["size_bytes"])
        .collect();
    assert_eq!(sizes, [8, 16, 32, 64, 1024, 4096, 16384, 65536]);
    server.stop();
}

// ---- plots and comparison ----

/// Two runs that have something in common, and something not.
fn two_runs(dir: &Path) -> [PathBuf; 2] {
    let files = ["original", "ours"].map(|name| dir.join(format!("{name}.json")));
    for (file, library, more) in [
        (&files[0], Library::Original, "send"),
        (&files[1], Library::Ours, "ping-pong"),
    ] {
        let server = Server::start(command(library, Device::Native), &[]);
        let arguments = format!(
            "read write {more} -n 50 -s 8,512,4K -d 1,4 --json {}",
            path(file)
        );
        succeeds(&mut server.client(command(library, Device::Native), &arguments));
        server.stop();
    }
    files
}

#[test]
fn runs_are_compared() {
    let dir = scratch("perf-compare");
    let files = two_runs(&dir);
    let [original, ours] = [&files[0], &files[1]];
    for kind in ["svg", "png"] {
        let plot = dir.join(format!("both.{kind}"));
        let mut compare = ours_native();
        compare.args(["compare", path(original), path(ours), "--plot", path(&plot)]);
        let text = succeeds(&mut compare);
        let runs = [json(original), json(ours)];
        // 2 operations, 3 sizes, 2 depths in common; 6 of each in one alone.
        let rows: Vec<Vec<&str>> = text
            .lines()
            .filter(|line| line.contains(" -> "))
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(rows.len(), 12, "{text}");
        assert!(text.contains("12 are in one run only"), "{text}");
        for what in ["flushes", "atomic writes"] {
            let line = format!("They differ in whether {what} are native: false, true.\n");
            assert!(text.contains(&line), "{text}");
        }
        let of = |run: &Value, operation: &str, size: u64, depth: u64| -> f64 {
            let all = run["measurements"].as_array().unwrap();
            let one = all.iter().find(|one| {
                one["operation"] == operation && one["size_bytes"] == size && one["depth"] == depth
            });
            one.unwrap()["bytes_per_second"].as_f64().unwrap()
        };
        // The first row, read of 8 bytes, and the last: its bandwidth's ratio.
        for (row, operation, size, depth) in
            [(&rows[0], "read", 8, 1), (&rows[11], "write", 4096, 4)]
        {
            let [first, second] = [0, 1].map(|run| of(&runs[run], operation, size, depth));
            let ratio = three_digits(second / first);
            assert_eq!(row.last(), Some(&ratio.as_str()), "{text}");
        }
        // Both lines of each of the four.
        match kind {
            "svg" => drawn(
                &plot,
                &["read", "write", "depth 1", "depth 4", "original", "ours"],
                2 * 2 * 4 * 3,
            ),
            _ => painted(&plot),
        }
    }

    // One that was written before there was something to tell.
    let (old, mut run) = (dir.join("old.json"), json(original));
    let client = run["client"].as_object_mut().unwrap();
    client.retain(|member, _| !member.starts_with("native"));
    fs::write(&old, run.to_string()).unwrap();
    let text = succeeds(ours_native().args(["compare", path(&old), path(ours)]));
    assert!(!text.contains("are native"), "{text}");

    let elsewhere = dir.join("other.json");
    let server = Server::start(ours_native(), &[]);
    let arguments = format!("send-with-imm -n 5 -s 8 --json {}", path(&elsewhere));
    succeeds(&mut server.client(ours_native(), &arguments));
    server.stop();
    fs::write(dir.join("not.json"), "{\"format\": \"something else\"}").unwrap();
    fs::write(dir.join("nothing.json"), "").unwrap();
    for (file, why) in [
        ("other.json", "no measurement in common"),
        ("not.json", "something else"),
        ("nothing.json", "no JSON"),
        ("missing.json", "No such file"),
    ] {
        let (status, stdout, stderr) =
            outcome(ours_native().args(["compare", path(original), path(&dir.join(file))]));
        assert_eq!((status, stdout.as_str()), (Some(1), ""), "{file}: {stderr}");
        assert!(stderr.contains(why), "{file}: {stderr}");
    }
}

#[test]
fn columns_do_not_touch() {
    let dir = scratch("perf-columns");
    let file = dir.join("run.json");
    let server = Server::start(ours_native(), &[]);
    let arguments = format!("write -n 5 -s 8 -d 1 --json {}", path(&file));
    succeeds(&mut server.client(ours_native(), &arguments));
    server.stop();
    let mut run = json(&file);
    let faster = dir.join("faster.json");
    // Ratios of 7 characters, in a table that fits a terminal, and longer ones.
    for (ns, bytes, width) in [((1_500, 5_300), 1.5e8, 80), ((1, 9), 1e-3, 200)] {
        for (file, [median, late], bytes) in [
            (&file, [1_000_000, 1_000_000], 1e5),
            (&faster, [ns.0, ns.1], bytes),
        ] {
            let one = &mut run["measurements"][0];
            one["latency"]["percentiles_ns"]["50"] = median.into();
            one["latency"]["percentiles_ns"]["99"] = late.into();
            one["bytes_per_second"] = bytes.into();
            fs::write(file, run.to_string()).unwrap();
        }
        let text = succeeds(ours_native().args(["compare", path(&file), path(&faster)]));
        let row = text.lines().find(|line| line.contains(" -> ")).unwrap();
        assert_eq!(row.split_whitespace().count(), 12, "{text}");
        assert!(row.len() <= width, "{text}");
    }
    let mut one = run["measurements"][0].take();
    one["latency"]["mean_ns"] = 1.5.into();
    one["latency"]["max_ns"] = u64::MAX.into();
    let line = table::line(&serde_json::from_value(one).unwrap());
    assert_eq!(line.split_whitespace().count(), 11, "{line}");
}

#[test]
fn results_that_can_not_be_printed_are_a_failure() {
    let dir = scratch("perf-full");
    let file = dir.join("run.json");
    let server = Server::start(ours_native(), &[]);
    let lines = dir.join("run.csv");
    let table = format!("read write -n 5 -s 8 -d 1 --json {}", path(&file));
    let beside = format!("read -n 5 -s 8 -d 1 --json - --csv {}", path(&lines));
    let all = [&*table, &*beside, "read -n 5 -s 8 --csv -"];
    let printing_to = |stdout: Stdio, arguments: &str| {
        let mut client = server.client(ours_native(), arguments);
        let output = client.stdout(stdout).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), stderr)
    };
    // Who closes a pipe has seen enough.
    for arguments in all {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let (status, stderr) = printing_to(writer.into(), arguments);
        assert_eq!(status, Some(0), "{arguments}: {stderr}");
    }
    fs::remove_file(&file).unwrap();
    fs::remove_file(&lines).unwrap();
    for arguments in all {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let (status, stderr) = printing_to(full.into(), arguments);
        assert_eq!(status, Some(1), "{arguments}: {stderr}");
        let why = "rpma-perf: stdout: No space left on device (os error 28)\n";
        assert!(stderr.ends_with(why), "{arguments}: {stderr}");
    }
    // What was measured is in the files.
    let run = json(&file);
    assert_eq!(run["complete"], true, "{run:#}");
    assert_eq!(run["measurements"].as_array().unwrap().len(), 2, "{run:#}");
    let lines = fs::read_to_string(lines).unwrap();
    assert_eq!(lines.lines().count(), 2, "{lines}");
    server.stop();
}

#[test]
fn connecting_that_takes_long_is_told_of() {
    const CONNECTIONS: usize = 500;
    /// What the client lets go by before it tells, and more.
    const LONG: Duration = Duration::from_secs(6);
    const TRIES: usize = 20;
    let server = Server::start(ours_native(), &[]);
    let arguments = format!("write -n 5 -s 8 -d 1 -c {CONNECTIONS}");
    let connecting = (0..TRIES).find_map(|_| {
        let mut client = Program::start(&mut server.client(ours_native(), &arguments));
        client.await_line("1/1 write");
        server.program.signal(libc::SIGSTOP);
        if server.sockets() < CONNECTIONS {
            return Some(client);
        }
        // It was stopped too late: all of them were made by then.
        server.program.signal(libc::SIGCONT);
        client.end();
        None
    });
    let mut client = connecting.expect("a server that is stopped in time");
    thread::sleep(LONG);
    server.program.signal(libc::SIGCONT);
    client.await_line(&format!(" of {CONNECTIONS} connections are made"));
    let (status, story) = client.end();
    assert_eq!(status, Some(0), "{story}");
    server.stop();
}

#[test]
fn a_run_is_drawn() {
    let dir = scratch("perf-plot");
    let server = Server::start(ours_native(), &[]);
    for (kind, sizes) in [
        ("svg", "8..4K"),
        ("png", "8..4K"),
        ("svg", "8"),
        ("png", "8"),
    ] {
        let plot = dir.join(format!("run.{kind}"));
        let _ = fs::remove_file(&plot);
        let arguments = format!(
            "read send -n 20 -s {sizes} -c 1,2 --warm-up 0 --plot {}",
            path(&plot)
        );
        succeeds(&mut server.client(ours_native(), &arguments));
        match kind {
            "svg" => {
                let names = [
                    "read",
                    "send",
                    "depth 1, 1 conn",
                    "depth 16, 2 conns",
                    "latency, us",
                    "bandwidth, MB/s",
                ];
                // Two percentiles of latency and a bandwidth of eight.
                drawn(&plot, &names, 3 * 8);
            }
            _ => painted(&plot),
        }
    }
    server.stop();
}

/// As the tables show a number from 0.01 to 1000.
fn three_digits(value: f64) -> String {
    let (_, power) = format!("{value:.2e}")
        .split_once('e')
        .map(|(digits, power)| (digits.to_owned(), power.parse::<i32>().unwrap()))
        .unwrap();
    let decimals = usize::try_from(2 - power).unwrap_or(0);
    format!("{value:.decimals$}")
}

/// That a picture has these texts, and marks for that many lines at least.
#[track_caller]
fn drawn(file: &Path, texts: &[&str], lines: usize) {
    let text = fs::read_to_string(file).unwrap();
    let picture = roxmltree::Document::parse(&text)
        .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let found: Vec<_> = picture
        .descendants()
        .filter(|node| node.has_tag_name("text"))
        .filter_map(|node| node.text())
        .map(str::trim)
        .collect();
    for text in texts {
        assert!(
            found.iter().any(|found| found.contains(text)),
            "no '{text}' among {found:?}"
        );
    }
    let marks = picture
        .descendants()
        .filter(|node| node.has_tag_name("circle"))
        .count();
    assert!(
        marks >= lines,
        "{marks} marks for {lines} lines in {}",
        file.display()
    );
    // Nothing lies outside.
    let root = picture.root_element();
    let side = |name| root.attribute(name).unwrap().parse::<f64>().unwrap();
    let (width, height) = (side("width"), side("height"));
    for node in picture.descendants() {
        for (name, most) in [("x", width), ("cx", width), ("y", height), ("cy", height)] {
            if let Some(value) = node
                .attribute(name)
                .map(|value| value.parse::<f64>().unwrap())
            {
                assert!(
                    (0.0..=most).contains(&value),
                    "{name}={value} of {most}: {node:?}"
                );
            }
        }
    }
}

/// That a picture has white, dark text in its title, and the colours of the first two lines.
#[track_caller]
fn painted(file: &Path) {
    let decoder = png::Decoder::new(BufReader::new(fs::File::open(file).unwrap()));
    let mut reader = decoder.read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    assert_eq!((info.width, info.color_type), (1100, png::ColorType::Rgb));
    let pixel = |index: usize| &pixels[3 * index..][..3];
    let all = (info.width * info.height) as usize;
    let title = 40 * info.width as usize;
    let dark = (0..title)
        .filter(|index| pixel(*index).iter().all(|part| *part < 100))
        .count();
    assert!(
        dark > 200,
        "{dark} dark pixels in the title of {}",
        file.display()
    );
    for colour in [[31, 119, 180], [214, 39, 40], [255, 255, 255]] {
        let count = (0..all).filter(|index| pixel(*index) == colour).count();
        assert!(
            count > 100,
            "{count} pixels of {colour:?} in {}",
            file.display()
        );
    }
}

// ---- what the two say to each other ----

#[test]
fn messages_are_judged_before_use() {
    let plan = Plan {
        operation: Operation::WriteWithImm,
        size: 4096,
        depth: 16,
        connections: 2,
        events: false,
        server_polls: true,
        check: true,
        seed: 7,
    };
    assert_eq!(plan.validate(), Ok(()));
    let message = encode(&Ask::Prepare(plan)).unwrap();
    assert_eq!(decode::<Ask>(&message), Ok(Ask::Prepare(plan)));
    for bad in [
        Plan { size: 0, ..plan },
        Plan {
            size: (1 << 30) + 1,
            ..plan
        },
        Plan { depth: 0, ..plan },
        Plan {
            depth: u32::MAX,
            ..plan
        },
        Plan {
            connections: 0,
            ..plan
        },
        Plan {
            connections: u32::MAX,
            ..plan
        },
        Plan {
            operation: Operation::AtomicWrite,
            ..plan
        },
    ] {
        assert!(bad.validate().is_err(), "{bad:?}");
    }
    // Whatever a plan says, what it takes is reckoned without an overflow.
    use Operation::{Send, WriteWithImm};
    for (operation, size, depth, connections, bytes) in [
        (WriteWithImm, 4096, 16, 2, 2 * 16 * 4096),
        (WriteWithImm, 1, 1, 1, 64),
        (WriteWithImm, (1 << 30) + 1, 1, 1, (1 << 30) + 64),
        (WriteWithImm, 0, 16, 2, 0),
        (WriteWithImm, 4096, 0, 2, 0),
        (WriteWithImm, 4096, 16, 0, 0),
        (WriteWithImm, 1 << 30, u32::MAX, u32::MAX, u64::MAX),
        // A server of messages has more places than are under way.
        (Send, 4096, 16, 2, 2 * (16 + 512) * 4096),
        (Send, 1 << 30, u32::MAX, u32::MAX, u64::MAX),
    ] {
        let plan = Plan {
            operation,
            size,
            depth,
            connections,
            ..plan
        };
        assert_eq!(plan.server_memory(), bytes, "{plan:?}");
    }
    for nonsense in [
        &b""[..],
        b"{",
        b"\xff\xfe",
        b"{\"prepare\":{}}",
        b"[1,2,3]",
        b"\"hello\"",
        &[0; 64],
    ] {
        assert!(decode::<Ask>(nonsense).is_err(), "{nonsense:?}");
        assert!(decode::<Answer>(nonsense).is_err(), "{nonsense:?}");
    }
    // Every part of a message that was cut off is no message.
    for len in 0..message.len() {
        assert!(decode::<Ask>(&message[..len]).is_err(), "{len} bytes");
    }

    for purpose in [Purpose::Control, Purpose::Data(0), Purpose::Data(u64::MAX)] {
        let mut data = purpose.encode();
        // More than this no request carries on every device.
        assert!(data.len() <= 56);
        assert_eq!(Purpose::decode(&data), Some(purpose));
        data.resize(56, 0);
        assert_eq!(Purpose::decode(&data), Some(purpose));
        assert_eq!(Purpose::decode(&data[..12]), None);
        data[0] ^= 1;
        assert_eq!(Purpose::decode(&data), None);
    }
    assert_eq!(Purpose::decode(b""), None);
    assert_eq!(Purpose::decode(b"rpma-perfx\0\0\0\0\0\0\0\0"), None);
}

#[test]
fn contents_are_of_their_operation_alone() {
    let pattern = |seed, connection, number| {
        let mut bytes = [0; 100];
        Pattern {
            seed,
            connection,
            number,
        }
        .fill(&mut bytes);
        bytes
    };
    let all = [(1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1), (1, 0, 1 << 40)];
    let different: BTreeSet<_> = all.iter().map(|(s, c, n)| pattern(*s, *c, *n)).collect();
    assert_eq!(different.len(), all.len());
    let mut bytes = pattern(1, 0, 5);
    let one = Pattern {
        seed: 1,
        connection: 0,
        number: 5,
    };
    assert_eq!(one.difference(&bytes, &mut vec![]), None);
    bytes[99] ^= 0x80;
    assert_eq!(one.difference(&bytes, &mut vec![]), Some(99));
    assert_eq!(one.difference(&bytes[..99], &mut vec![]), None);
}
