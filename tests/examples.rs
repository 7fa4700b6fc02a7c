//! The examples, built as a user would build them, and run over softverbs, then in a virtual machine
//! on rxe.
//!
//!     cargo test --test examples             all of them
//!     cargo test --test examples -- log      those whose name has this in it
//!     RPMA_VM_EXAMPLE=log cargo test --test examples -- virtual_machines
//!                                            the same in the virtual machines
//!     RPMA_TEST_DEVICE=192.0.2.7 cargo test --test examples -- --skip here:: --test-threads 1
//!                                            on this machine's device with that address
//!
//! RPMA_TEST_PMEM lists device-DAX files to overwrite, one for each replica of the log; a device with
//! native flush takes nothing else for persistent. In the virtual machines (scripts/vm), one with native
//! flush and atomic write and one without, this very program runs again, with what it needs beside
//! it; the tests in `here` are of this machine alone.
//!
//! The programs of the log are killed at points that a seed chooses; `EXAMPLES_SEED=N` chooses the same
//! ones again, as far as the machine's timing allows.

#[path = "support/running.rs"]
mod running;
mod support;
#[path = "support/trials.rs"]
mod trials;

use running::Running;
use std::cell::Cell;
use std::env;
use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use support::{cc, release, root, run, scratch, softverbs};
use trials::{Ignored, Outcome, trials};

fn main() -> ExitCode {
    trials::run(trials![
        connection,
        read,
        write_flush_pmem,
        atomic_write,
        messages,
        messages_when_a_side_is_killed,
        immediate,
        rcq,
        shared_channel,
        srq,
        many_clients,
        many_clients_of_whom_some_are_bad,
        log_survives_crashes,
        log_of_one_replica,
        log_needs_a_majority,
        log_drops_what_was_not_committed,
        log_has_one_writer,
        log_ends_when_it_is_full,
        log_takes_no_other_memory,
        wrong_arguments_are_told,
        clients_say_that_nobody_listens,
        here::without_native_operations,
        here::without_a_device_they_say_so,
        here::they_build_with_an_installed_library,
        here::the_readme_tells_of_each,
        here::virtual_machines,
    ])
}

/// How long anything that is waited for may take, which is many times what it does take.
const LIMIT: Duration = Duration::from_secs(600);
/// What an example has of persistent memory.
const PMEM_SIZE: usize = 2 << 20;

const EXAMPLES: [&str; 11] = [
    "connection",
    "read",
    "write_flush_pmem",
    "atomic_write",
    "messages",
    "immediate",
    "rcq",
    "shared_channel",
    "srq",
    "many_clients",
    "log",
];

// ---- building and running ----

/// Where the directory of the programs is, in a virtual machine.
const BESIDE: &str = "RPMA_TEST_BESIDE";

/// The directory of the programs and of the library they load.
fn programs() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| env::var_os(BESIDE).map_or_else(build, PathBuf::from))
}

fn build() -> PathBuf {
    let dir = scratch("examples");
    let library = dir.join("librpma.so.0");
    fs::copy(release().join("librpma.so"), &library).unwrap();
    for source in sources() {
        run(cc()
            .args(["-Wpedantic", "-O2", "-I"])
            .arg(root().join("include"))
            .arg(&source)
            .arg("-o")
            .arg(dir.join(source.file_stem().unwrap()))
            .arg(&library)
            .args(["-libverbs", "-lrdmacm"]));
    }
    let (loaded, _) = run(Command::new("ldd")
        .arg(dir.join("read_client"))
        .env("LD_LIBRARY_PATH", &dir));
    assert!(loaded.contains(library.to_str().unwrap()), "{loaded}");
    dir
}

fn sources() -> Vec<PathBuf> {
    let files = fs::read_dir(root().join("examples")).unwrap();
    let paths = files.map(|file| file.unwrap().path());
    paths
        .filter(|path| path.extension().is_some_and(|ext| ext == "c"))
        .collect()
}

/// What the examples run on.
struct Device {
    address: String,
    /// The persistent memory that it flushes to. If there is none, any file will do.
    pmem: Vec<PathBuf>,
    /// The library that makes programs find it.
    softverbs: Option<PathBuf>,
}

fn device() -> &'static Device {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    DEVICE.get_or_init(|| match env::var("RPMA_TEST_DEVICE") {
        Ok(address) => Device {
            address,
            pmem: env::var("RPMA_TEST_PMEM")
                .map(|list| list.split_whitespace().map(PathBuf::from).collect())
                .unwrap_or_default(),
            softverbs: None,
        },
        Err(_) => Device {
            address: "127.0.0.1".to_string(),
            pmem: vec![],
            softverbs: Some(softverbs()),
        },
    })
}

fn address() -> &'static str {
    &device().address
}

thread_local! {
    /// Whether the device of this test is one without native flush and atomic write.
    static RAW: Cell<bool> = const { Cell::new(false) };
}

/// A directory for the test that this is.
fn directory(name: &str) -> PathBuf {
    let device = if RAW.get() { "raw" } else { "native" };
    scratch(&format!("examples-{name}-{device}"))
}

fn test_name() -> String {
    thread::current().name().unwrap_or("").to_string()
}

/// A program of an example.
fn command(name: &str) -> Command {
    let mut command = Command::new(programs().join(name));
    command.env("LD_LIBRARY_PATH", programs());
    if let Some(library) = &device().softverbs {
        command.env("LD_PRELOAD", library);
    }
    for name in ["FLUSH", "ATOMIC_WRITE", "ODP", "TRANSPORT", "PERSISTENT"] {
        command.env_remove(format!("SOFTVERBS_{name}"));
    }
    if RAW.get() {
        command
            .env("SOFTVERBS_FLUSH", "off")
            .env("SOFTVERBS_ATOMIC_WRITE", "off");
    }
    command
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((address(), 0)).unwrap();
    listener.local_addr().unwrap().port()
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
        Program(Running::start(command))
    }

    /// Ends the test.
    #[track_caller]
    fn fail(&self, expected: &str) -> ! {
        let name = test_name();
        let rerun = match env::var_os(BESIDE) {
            Some(_) => {
                format!("RPMA_VM_EXAMPLE={name} cargo test --test examples -- virtual_machines")
            }
            None => format!("cargo test --test examples -- --exact {name}"),
        };
        panic!(
            "expected: {expected}\nof {}\nwhich printed:\n{}\nrerun: {rerun}",
            self.what,
            self.seen.join("\n"),
        )
    }

    #[track_caller]
    fn expect(&self, good: bool, expected: &str) {
        if !good {
            self.fail(expected);
        }
    }

    /// The next line; None if the program has ended.
    #[track_caller]
    fn next(&mut self) -> Option<String> {
        match self.0.next(LIMIT) {
            Ok(line) => line,
            Err(_) => self.fail(&format!(
                "a line, or the end, within {LIMIT:?} ({:?} since the start)",
                self.since.elapsed()
            )),
        }
    }

    /// Reads on to the line that has this in it; None if the program ends before.
    #[track_caller]
    fn find(&mut self, part: &str) -> Option<String> {
        loop {
            let line = self.next()?;
            if line.contains(part) {
                return Some(line);
            }
        }
    }

    #[track_caller]
    fn says(&mut self, part: &str) -> String {
        let found = self.find(part);
        found.unwrap_or_else(|| self.fail(&format!("a line with `{part}`")))
    }

    /// Waits for the end, which is to be with that exit status, and gives all that was printed.
    #[track_caller]
    fn ends(&mut self, code: i32) -> &[String] {
        while self.next().is_some() {}
        let status = self.status();
        self.expect(
            status.code() == Some(code),
            &format!("exit status {code}, not {status}"),
        );
        &self.seen
    }

    #[track_caller]
    fn printed(&mut self, code: i32, lines: &[&str]) {
        self.ends(code);
        self.expect(self.seen == lines, &format!("{lines:#?}"));
    }

    /// Ends it in the middle of whatever it does. Its last lines are still read.
    #[track_caller]
    fn kill(&mut self) {
        self.child.kill().unwrap();
        while self.next().is_some() {}
        self.child.wait().unwrap();
    }
}

fn server(example: &str, arguments: &[&str]) -> (Program, u16) {
    loop {
        let port = free_port();
        let mut server = server_at(example, port, arguments);
        match server.find("listening on") {
            Some(_) => return (server, port),
            // Someone else was quicker to take the port.
            None if server.seen.iter().any(|line| line.contains("in use")) => {}
            None => server.fail("that it listens"),
        }
    }
}

fn server_at(example: &str, port: u16, arguments: &[&str]) -> Program {
    let mut command = command(&format!("{example}_server"));
    command.args([address(), &port.to_string()]).args(arguments);
    Program::start(command.stdin(Stdio::null()))
}

fn client(example: &str, port: u16, arguments: &[&str]) -> Program {
    let mut command = command(&format!("{example}_client"));
    command.args([address(), &port.to_string()]).args(arguments);
    Program::start(command.stdin(Stdio::null()))
}

/// What a server prints before a client comes.
fn listening(port: u16) -> String {
    format!("listening on {}, port {port}", address())
}

fn reversed(word: &str) -> String {
    word.chars().rev().collect()
}

// ---- each example ----

fn connection() {
    let (mut server, port) = server("connection", &[]);
    client("connection", port, &["friend"]).printed(1, &["error: Connection rejected"]);
    client("connection", port, &["mellon"]).printed(
        0,
        &["connected; the server says \"come in\"", "disconnected"],
    );
    server.printed(
        0,
        &[
            &listening(port),
            "a client says \"friend\"",
            "rejected it",
            "a client says \"mellon\"",
            "accepted it",
            "it has left",
        ],
    );
}

fn read() {
    let (mut server, port) = server("read", &[]);
    client("read", port, &[]).printed(0, &["read out of the server's memory"]);
    server.printed(0, &[&listening(port), "a client is here", "it has left"]);
}

/// As many pieces of new persistent memory, each for one server, if there are so many.
fn pmem(test: &str, count: usize) -> Result<Vec<PathBuf>, Ignored> {
    let there = &device().pmem;
    if there.is_empty() {
        let dir = directory(test);
        return Ok((0..count).map(|n| dir.join(format!("pmem{n}"))).collect());
    }
    let lacking = || Ignored(format!("it takes {count} device-DAX, not {}", there.len()));
    let pmem = there.get(..count).ok_or_else(lacking)?;
    for one in pmem {
        in_pmem(one, |memory| memory.fill(0));
    }
    Ok(pmem.to_vec())
}

/// Works on the memory as its server maps it: device-DAX cannot be read in another way.
fn in_pmem<T>(path: &Path, work: impl FnOnce(&mut [u8]) -> T) -> T {
    let mut options = fs::OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(false);
    let file = options.open(path).unwrap();
    if file.metadata().unwrap().is_file() {
        file.set_len(PMEM_SIZE as u64).unwrap();
    }
    let (protection, share) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a new mapping of a file that is open and as long as that.
    let memory = unsafe {
        let (anywhere, fd) = (std::ptr::null_mut(), file.as_raw_fd());
        libc::mmap(anywhere, PMEM_SIZE, protection, share, fd, 0)
    };
    assert_ne!(memory, libc::MAP_FAILED, "{}", path.display());
    // SAFETY: the mapping has that size and is unmapped here, after which nobody has it.
    unsafe {
        let result = work(std::slice::from_raw_parts_mut(memory.cast(), PMEM_SIZE));
        assert_eq!(libc::munmap(memory, PMEM_SIZE), 0);
        result
    }
}

fn write_flush_pmem() -> Outcome {
    let files = pmem("pmem", 1)?;
    let file = &files[0];
    let pmem = file.to_str().unwrap();
    let mut before = "";
    for text in ["a text that persists", "another", "the last"] {
        let (mut server, port) = server("write_flush_pmem", &[pmem]);
        let from_before = format!("from before: \"{before}\"");
        server.expect(server.seen.contains(&from_before), &from_before);
        client("write_flush_pmem", port, &[text]).printed(0, &["written, and persistent"]);
        let mut bytes = [0; 64];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        let content = in_pmem(file, |memory| memory.to_vec());
        assert_eq!(content[..64], bytes, "{text}");
        assert!(content[64..].iter().all(|byte| *byte == 0), "{text}");
        server.ends(0);
        let now = format!("now: \"{text}\"");
        server.expect(server.seen.last() == Some(&now), &now);
        before = text;
    }
    Ok(())
}

fn atomic_write() {
    let (mut server, port) = server("atomic_write", &[]);
    client("atomic_write", port, &[]).printed(0, &["published 8 lines"]);
    let lines = (1..=8).map(|number| format!("{number}: line {number} of 8"));
    let all: Vec<String> = std::iter::once(listening(port)).chain(lines).collect();
    server.printed(0, &all.iter().map(String::as_str).collect::<Vec<_>>());
}

/// More rounds than there is room for in any queue.
fn messages() {
    let (mut server, port) = server("messages", &[]);
    let rounds = 1..=500;
    let mut client = client("messages", port, &["500"]);
    let pongs: Vec<_> = rounds
        .clone()
        .map(|round| format!("received \"pong of ping {round}\""))
        .collect();
    client.printed(0, &pongs.iter().map(String::as_str).collect::<Vec<_>>());
    let pings = rounds.map(|round| format!("received \"ping {round}\""));
    let all: Vec<_> = std::iter::once(listening(port))
        .chain(pings)
        .chain(["the client has left".to_string()])
        .collect();
    server.printed(0, &all.iter().map(String::as_str).collect::<Vec<_>>());
}

/// Whichever side is killed, the other one notices, says so and ends.
fn messages_when_a_side_is_killed() {
    for kill_server in [false, true] {
        let (mut server, port) = server("messages", &[]);
        let mut client = client("messages", port, &["1000000000"]);
        client.says("pong of ping 100\"");
        if kill_server {
            server.kill();
            client.ends(1);
            let error = "error: no answer to ping";
            client.expect(
                client.seen.iter().any(|line| line.starts_with(error)),
                error,
            );
        } else {
            client.kill();
            // It depends on whether an answer was on its way then.
            let end = server.find("the client has left");
            let lost = "error: an operation failed: transport retry counter exceeded";
            server.ends(if end.is_some() { 0 } else { 1 });
            server.expect(
                end.is_some() || server.seen.last().is_some_and(|line| line == lost),
                lost,
            );
        }
    }
}

fn immediate() {
    let (mut server, port) = server("immediate", &[]);
    let text = "told by a number";
    let sum: u32 = text.bytes().map(u32::from).sum();
    client("immediate", port, &[text]).printed(0, &[&format!("the server answers {sum}")]);
    server.printed(
        0,
        &[
            &listening(port),
            &format!("the client wrote {} bytes: \"{text}\"", text.len()),
            &format!("answered {sum}"),
        ],
    );
}

const WORDS: [&str; 10] = [
    "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
];

fn rcq() {
    let (mut server, port) = server("rcq", &[]);
    let mut client = client("rcq", port, &WORDS);
    let mut expected = Vec::new();
    for words in WORDS.chunks(4) {
        expected.push(format!("all {} are sent", words.len()));
        expected.extend(
            words
                .iter()
                .map(|word| format!("received \"{}\"", reversed(word))),
        );
    }
    client.printed(0, &expected.iter().map(String::as_str).collect::<Vec<_>>());
    received_all(&mut server);
}

fn shared_channel() {
    let (mut server, port) = server("shared_channel", &[]);
    let mut client = client("shared_channel", port, &WORDS);
    let answers = WORDS.map(|word| format!("received \"{}\"", reversed(word)));
    client.printed(0, &answers.each_ref().map(String::as_str));
    received_all(&mut server);
}

#[track_caller]
fn received_all(server: &mut Program) {
    server.ends(0);
    let received = WORDS.map(|word| format!("received \"{word}\""));
    server.expect(
        server.seen[1..11] == received,
        &format!("received {WORDS:?}"),
    );
    let end = "the client has left";
    server.expect(server.seen[11..] == [end], end);
}

fn srq() {
    let (mut server, port) = server("srq", &["3"]);
    let words: [Vec<String>; 3] =
        ["a", "b", "c"].map(|who| (0..40).map(|number| format!("{who}{number}")).collect());
    let mut clients = words.each_ref().map(|words| {
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        client("srq", port, &words)
    });
    for (client, words) in clients.iter_mut().zip(&words) {
        let lines: Vec<_> = words
            .iter()
            .map(|word| format!("got \"{word}\" back"))
            .collect();
        client.printed(0, &lines.iter().map(String::as_str).collect::<Vec<_>>());
    }
    server.ends(0);
    // Which client is which is for the server to say; the words of each come from one and in order.
    for words in &words {
        let numbers = (0..3).filter(|number| {
            let prefix = format!("client {number}: ");
            let said = server
                .seen
                .iter()
                .filter_map(|line| line.strip_prefix(&prefix));
            said.eq(words.iter().map(|word| format!("\"{word}\"")))
        });
        server.expect(numbers.count() == 1, &format!("{words:?} of one client"));
    }
}

fn many_clients() {
    let (mut server, port) = server("many_clients", &[]);
    let mut clients: Vec<_> = (0..20)
        .map(|_| client("many_clients", port, &WORDS))
        .collect();
    let answers = WORDS.map(|word| format!("{word} -> {}", word.to_uppercase()));
    for client in &mut clients {
        client.printed(0, &answers.each_ref().map(String::as_str));
    }
    for _ in &clients {
        server.says("is gone");
    }
    server.signal(libc::SIGTERM);
    server.ends(0);
    server.expect(
        server.seen.last().is_some_and(|line| line == "stopped"),
        "stopped",
    );
}

/// What one client does, or does not live to do, is nothing to the others.
fn many_clients_of_whom_some_are_bad() {
    let (mut server, port) = server("many_clients", &["2"]);
    let answers = WORDS.map(|word| format!("{word} -> {}", word.to_uppercase()));
    let answers = answers.each_ref().map(String::as_str);

    let mut first = client("messages", port, &["1000000000"]);
    first.says("received \"PING 100\"");
    // One that takes this server for another kind, and leaves without a word.
    let mut mistaken = client("read", port, &[]);
    mistaken.printed(1, &["error: the server offers nothing"]);
    server.says("client 1 is gone");
    let mut second = client("messages", port, &["1000000000"]);
    second.says("received \"PING 100\"");
    client("many_clients", port, &WORDS).printed(
        1,
        &["error: Connection rejected, but expected: Connection established"],
    );
    server.says("no room for another client");
    first.kill();
    server.says("client 0 is gone");
    client("many_clients", port, &WORDS).printed(0, &answers);
    server.says("client 0 is gone");
    second.says("PING");
    // It ends while a client is there.
    server.signal(libc::SIGINT);
    server.ends(0);
    second.ends(1);
}

// ---- the log ----

/// A file with a log in it, read by someone who knows but its layout.
fn log_in(file: &Path) -> Vec<String> {
    let bytes = in_pmem(file, |memory| memory.to_vec());
    let number = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
    assert_eq!(&bytes[..8], b"rpmalog1", "{}", file.display());
    let (epoch, mark) = (number(8), number(16) as usize);
    let mut records = Vec::new();
    let mut at = 64;
    while at < 64 + mark {
        assert!(number(at) <= epoch, "{}", file.display());
        let length = number(at + 8) as usize;
        if length > 0 {
            records.push(String::from_utf8(bytes[at + 16..][..length].to_vec()).unwrap());
        }
        at += 16 + length.next_multiple_of(8);
    }
    assert_eq!(at, 64 + mark, "{}", file.display());
    records
}

struct Replica {
    file: PathBuf,
    port: u16,
    program: Program,
}

impl Replica {
    fn file(&self) -> &str {
        self.file.to_str().unwrap()
    }

    fn start_again(&mut self) {
        self.program = server_at("log", self.port, &[self.file()]);
        self.program.says("listening on");
    }
}

fn replicas(test: &str, n: usize) -> Result<Vec<Replica>, Ignored> {
    let replica = |file: PathBuf| {
        let (program, port) = server("log", &[file.to_str().unwrap()]);
        Replica {
            file,
            port,
            program,
        }
    };
    let files = pmem(&format!("log-{test}"), n)?;
    Ok(files.into_iter().map(replica).collect())
}

/// Starts a writer, and reads what it recovers.
fn writer(replicas: &[Replica]) -> (Program, Vec<String>) {
    let mut command = command("log_client");
    for replica in replicas {
        command.args([address(), &replica.port.to_string()]);
    }
    let mut writer = Program::start(command.stdin(Stdio::piped()));
    writer.says("epoch ");
    let recovered = numbered(&writer, " recovered: ");
    (writer, recovered)
}

/// The lines of that kind, each of which has its number.
#[track_caller]
fn numbered(writer: &Program, kind: &str) -> Vec<String> {
    let lines = writer.seen.iter().filter_map(|line| {
        let (number, text) = line.split_once(kind)?;
        Some((number.parse::<usize>().ok()?, text.to_string()))
    });
    let (numbers, texts): (Vec<_>, Vec<_>) = lines.unzip();
    let good = numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]);
    writer.expect(good, "lines numbered one after another");
    texts
}

fn committed(writer: &Program) -> Vec<String> {
    let on = [1, 2, 3].map(|n| format!(" committed on {n} of "));
    let lines = writer
        .seen
        .iter()
        .filter(|line| on.iter().any(|on| line.contains(on.as_str())));
    lines
        .map(|line| line.split_once(": ").unwrap().1.to_string())
        .collect()
}

fn append(writer: &mut Program, line: &str) {
    let mut stdin = writer.child.stdin.as_ref().unwrap();
    stdin.write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// No more lines: the writer ends.
#[track_caller]
fn finish(writer: &mut Program) {
    drop(writer.child.stdin.take());
    writer.ends(0);
}

struct Random(u64);

impl Random {
    fn seeded() -> Self {
        let now = || {
            let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            time.as_nanos() as u64
        };
        let given = std::env::var("EXAMPLES_SEED").ok();
        let seed = given.map_or_else(now, |seed| seed.parse().expect("EXAMPLES_SEED"));
        println!("EXAMPLES_SEED={seed}");
        Self(seed)
    }

    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % end as u64) as usize
    }
}

/// Writers and replicas are killed in the middle of their work, over and over. What was committed stays,
/// in order; what was not is there as far as it got, or is not, with nothing missing in between.
fn log_survives_crashes() -> Outcome {
    const ROUNDS: usize = 6;
    let mut random = Random::seeded();
    let mut replicas = replicas("crashes", 3)?;
    let mut known: Vec<String> = Vec::new();
    let mut sent: Vec<String> = Vec::new();

    for round in 0..ROUNDS {
        let (mut writer, recovered) = writer(&replicas);
        known = check_recovered(&writer, &known, &sent, recovered);

        // The writer always has lines to read, so that a kill always finds it at work.
        let lines: Vec<_> = (0..100_000).map(|i| format!("line {round}-{i}")).collect();
        sent.clone_from(&lines);
        let mut stdin = writer.child.stdin.take().unwrap();
        let feeder = thread::spawn(move || {
            // Until there is nobody to read them.
            lines
                .iter()
                .try_for_each(|line| stdin.write_all(format!("{line}\n").as_bytes()))
                .is_err()
        });
        let see = |writer: &mut Program, part: &str, n: usize| {
            for _ in 0..n {
                writer.says(part);
            }
        };
        see(&mut writer, " committed on 3 of 3", 1 + random.below(60));
        if random.below(4) > 0 {
            let victim = &mut replicas[random.below(3)];
            victim.program.kill();
            see(&mut writer, " committed on 2 of 3", 1 + random.below(60));
            victim.start_again();
            see(
                &mut writer,
                &format!("replica {} {} is back", address(), victim.port),
                1,
            );
            see(&mut writer, " committed on 3 of 3", 1 + random.below(60));
        }
        writer.kill();
        assert!(feeder.join().unwrap(), "the writer read all there was");
        known.extend(committed(&writer));
        if random.below(2) > 0 {
            for replica in &mut replicas {
                replica.program.kill();
            }
            replicas.iter_mut().for_each(Replica::start_again);
        }
    }

    let (mut writer, recovered) = writer(&replicas);
    known = check_recovered(&writer, &known, &sent, recovered);
    finish(&mut writer);
    for replica in &replicas {
        assert!(log_in(&replica.file) == known, "{}", replica.file.display());
    }
    Ok(())
}

/// All that was known has to be there still, and then at most more of what the last writer was sent.
#[track_caller]
fn check_recovered(
    writer: &Program,
    known: &[String],
    sent: &[String],
    recovered: Vec<String>,
) -> Vec<String> {
    writer.expect(
        recovered.starts_with(known),
        &format!("first of all what is known already:\n{}", known.join("\n")),
    );
    let last = known
        .last()
        .and_then(|last| sent.iter().position(|line| line == last));
    let rest = &recovered[known.len()..];
    let next = last.map_or(0, |last| last + 1);
    writer.expect(
        rest.is_empty() || sent[next..].starts_with(rest),
        &format!("then what was sent next, not {rest:?}"),
    );
    recovered
}

/// One replica is a majority by itself; it and its writer may be killed.
fn log_of_one_replica() -> Outcome {
    let mut replicas = replicas("alone", 1)?;
    let mut known: Vec<String> = Vec::new();
    for kill_replica in [false, true, false, true] {
        let (mut writer, recovered) = writer(&replicas);
        assert_eq!(recovered, known);
        for _ in 0..5 {
            let line = format!("line {}", known.len() + 1);
            append(&mut writer, &line);
            writer.says(&format!("committed on 1 of 1: {line}"));
            known.push(line);
        }
        writer.kill();
        if kill_replica {
            replicas[0].program.kill();
            replicas[0].start_again();
        }
    }
    assert_eq!(log_in(&replicas[0].file), known);
    Ok(())
}

/// With one of two replicas nothing is committed; it is as soon as the other one is back.
fn log_needs_a_majority() -> Outcome {
    let mut replicas = replicas("majority", 2)?;
    let (mut writer, recovered) = writer(&replicas);
    assert!(recovered.is_empty(), "{recovered:?}");
    append(&mut writer, "on both");
    writer.says("1 committed on 2 of 2: on both");
    replicas[1].program.kill();
    append(&mut writer, "on one, and then on both");
    writer.says("1 of 2 replicas are not enough");
    assert_eq!(committed(&writer), ["on both"]);
    replicas[1].start_again();
    writer.says("2 committed on 2 of 2: on one, and then on both");
    finish(&mut writer);
    for replica in &replicas {
        assert_eq!(
            log_in(&replica.file),
            ["on both", "on one, and then on both"]
        );
    }
    Ok(())
}

/// A record that got to one replica alone gives way to what was committed without that one since,
/// though its log be the longer one.
fn log_drops_what_was_not_committed() -> Outcome {
    let mut replicas = replicas("divergence", 3)?;
    let (mut first, _) = writer(&replicas);
    append(&mut first, "one");
    first.says("1 committed on 3 of 3: one");
    replicas[1].program.kill();
    replicas[2].program.kill();
    let lost = "a long line that gets to one replica and to no other before its writer is killed";
    append(&mut first, lost);
    first.says("1 of 3 replicas are not enough");
    first.kill();
    assert_eq!(committed(&first), ["one"]);
    assert_eq!(log_in(&replicas[0].file), ["one", lost]);

    replicas[0].program.kill();
    replicas[1].start_again();
    replicas[2].start_again();
    let (mut second, recovered) = writer(&replicas);
    assert_eq!(recovered, ["one"]);
    append(&mut second, "two");
    second.says("2 committed on 2 of 3: two");
    finish(&mut second);

    replicas[2].program.kill();
    replicas[0].start_again();
    let (mut third, recovered) = writer(&replicas);
    assert_eq!(recovered, ["one", "two"]);
    finish(&mut third);
    assert_eq!(log_in(&replicas[0].file), ["one", "two"]);
    assert_eq!(log_in(&replicas[1].file), ["one", "two"]);
    Ok(())
}

/// A writer that another one took over from commits nothing any more.
fn log_has_one_writer() -> Outcome {
    let replicas = replicas("takeover", 3)?;
    let (mut first, _) = writer(&replicas);
    append(&mut first, "one");
    first.says("1 committed on 3 of 3: one");
    let (mut second, recovered) = writer(&replicas);
    assert_eq!(recovered, ["one"]);
    append(&mut first, "too late");
    first.says("error: another writer has taken over");
    first.ends(1);
    assert_eq!(committed(&first), ["one"]);
    // The first one looked at a replica to learn that, which cost the second its connection there.
    append(&mut second, "two");
    second.says(" committed on ");
    finish(&mut second);
    let (mut third, recovered) = writer(&replicas);
    assert_eq!(recovered, ["one", "two"]);
    finish(&mut third);
    for replica in &replicas {
        assert_eq!(log_in(&replica.file), ["one", "two"]);
    }
    Ok(())
}

/// Full to the last byte that a line may take; and it can still be read.
fn log_ends_when_it_is_full() -> Outcome {
    const FIT: usize = 25;
    let replicas = replicas("full", 3)?;
    let (mut full, _) = writer(&replicas);
    let line = |number: usize| format!("{number:05}{}", "x".repeat(41_755));
    for number in 0..=FIT {
        append(&mut full, &line(number));
    }
    full.ends(1);
    full.expect(
        full.seen
            .last()
            .is_some_and(|line| line == "error: the log is full"),
        "that it is full",
    );
    let kept = committed(&full);
    let lines: Vec<_> = (0..FIT).map(line).collect();
    assert!(kept == lines, "{} lines", kept.len());
    for _ in 0..2 {
        let (mut reader, recovered) = writer(&replicas);
        assert!(recovered == lines, "{} lines", recovered.len());
        finish(&mut reader);
    }
    let (mut next, _) = writer(&replicas);
    append(&mut next, "x");
    next.says("error: the log is full");
    next.ends(1);
    Ok(())
}

/// What is no log is left alone, unless it is said to become one.
fn log_takes_no_other_memory() -> Outcome {
    let files = pmem("log-other", 2)?;
    let pmem = files[0].to_str().unwrap();
    let mut other = b"something else ".repeat(200_000);
    other.truncate(PMEM_SIZE);
    in_pmem(&files[0], |memory| memory.copy_from_slice(&other));
    let mut refused = server_at("log", free_port(), &[pmem]);
    refused.ends(1);
    let why = "error: there is no log in this memory, or a damaged one";
    refused.expect(refused.seen.last().is_some_and(|line| line == why), why);
    assert!(in_pmem(&files[0], |memory| memory == other));

    let replica = |file: &PathBuf, arguments: &[&str]| {
        let (program, port) = server("log", arguments);
        Replica {
            file: file.clone(),
            port,
            program,
        }
    };
    let mut all = [
        replica(&files[0], &[pmem, "new"]),
        replica(&files[1], &[files[1].to_str().unwrap()]),
    ];
    let (mut writer, recovered) = writer(&all);
    assert!(recovered.is_empty(), "{recovered:?}");
    append(&mut writer, "one");
    finish(&mut writer);
    assert_eq!(log_in(&all[0].file), ["one"]);
    all[0].program.kill();
    all[0].start_again();
    all[0].program.expect(
        all[0]
            .program
            .seen
            .contains(&"1 records, epoch 1".to_string()),
        "the log that is there",
    );
    Ok(())
}

// ---- all examples ----

/// What each program takes besides address and port.
fn arguments(program: &str) -> Vec<&'static str> {
    match program {
        "connection_client" | "write_flush_pmem_client" | "immediate_client" => vec!["text"],
        "rcq_client" | "shared_channel_client" | "srq_client" | "many_clients_client" => {
            vec!["word"]
        }
        "write_flush_pmem_server" | "log_server" => vec!["pmem"],
        "srq_server" => vec!["2"],
        "log_client" => vec![address(), "1"],
        _ => vec![],
    }
}

fn all_programs() -> impl Iterator<Item = String> {
    EXAMPLES
        .iter()
        .flat_map(|example| ["server", "client"].map(|side| format!("{example}_{side}")))
}

fn wrong_arguments_are_told() {
    for name in all_programs() {
        let mut program = Program::start(command(&name).arg(address()).stdin(Stdio::null()));
        program.ends(2);
        program.expect(
            program.seen.len() == 1 && program.seen[0].starts_with("usage: "),
            "one line that tells the usage",
        );
    }
}

fn clients_say_that_nobody_listens() {
    let port = free_port().to_string();
    for name in all_programs().filter(|name| name.ends_with("client")) {
        let mut command = command(&name);
        command.args([address(), &port]).args(arguments(&name));
        let mut program = Program::start(command.stdin(Stdio::null()));
        program.ends(1);
        let error = "error: ";
        program.expect(
            program.seen.iter().any(|line| line.starts_with(error)),
            error,
        );
    }
}

/// What is of this machine alone.
mod here {
    use super::*;
    use std::collections::BTreeSet;

    /// On a device without native flush and atomic write librpma does otherwise, with the same result.
    pub fn without_native_operations() -> Outcome {
        RAW.set(true);
        write_flush_pmem()?;
        atomic_write();
        log_needs_a_majority()?;
        log_drops_what_was_not_committed()?;
        log_has_one_writer()
    }

    /// Without an RDMA device all of them fail at once, in order, and say why.
    pub fn without_a_device_they_say_so() {
        let dir = directory("no-device");
        for name in all_programs() {
            let mut command = command(&name);
            command
                .env_remove("LD_PRELOAD")
                .current_dir(&dir)
                .args(["127.0.0.1", "1"])
                .args(arguments(&name));
            let mut program = Program::start(command.stdin(Stdio::null()));
            program.ends(1);
            let error = "error: rpma_utils_get_ibv_context";
            program.expect(
                program.seen.iter().any(|line| line.starts_with(error)),
                error,
            );
        }
    }

    /// By the Makefile and the CMakeLists.txt beside them, with a library that was installed.
    pub fn they_build_with_an_installed_library() {
        let dir = directory("installed");
        let prefix = dir.join("prefix");
        softverbs();
        run(Command::new("make")
            .arg("install")
            .arg(format!(
                "CARGO_TARGET_DIR={}",
                release().parent().unwrap().display()
            ))
            .arg(format!("PREFIX={}", prefix.display()))
            .current_dir(root()));

        let examples = root().join("examples");
        let made = dir.join("make");
        run(Command::new("make")
            .arg("-C")
            .arg(&examples)
            .arg(format!("BUILD={}", made.display()))
            .arg("CFLAGS=-O2 -Wall -Wextra -Werror")
            .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")));
        let cmade = dir.join("cmake");
        run(Command::new("cmake")
            .args(["-DCMAKE_C_FLAGS=-Werror", "-S"])
            .arg(&examples)
            .arg("-B")
            .arg(&cmade)
            .arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display())));
        run(Command::new("cmake").arg("--build").arg(&cmade));

        let names: BTreeSet<_> = all_programs().collect();
        let stems = sources().into_iter().map(|source| {
            let stem = source.file_stem().unwrap();
            stem.to_str().unwrap().to_string()
        });
        assert_eq!(names, stems.collect());
        for built in [&made, &cmade] {
            for name in &names {
                let mut command = Command::new(prefix.join("bin/softverbs"));
                command
                    .args(["run", "--"])
                    .arg(built.join(name))
                    .env("LD_LIBRARY_PATH", prefix.join("lib"))
                    .stdin(Stdio::null());
                Program::start(&mut command).ends(2);
            }
        }
    }

    pub fn the_readme_tells_of_each() {
        let readme = fs::read_to_string(root().join("examples/README.md")).unwrap();
        for example in EXAMPLES {
            assert!(readme.contains(&format!("| `{example}` |")), "{example}");
        }
    }

    /// All the others again, on the kernel's device.
    pub fn virtual_machines() {
        const TEST: &str = "examples-test";
        let me = env::current_exe().unwrap();
        fs::copy(&me, programs().join(TEST)).unwrap();
        let filter = env::var("RPMA_VM_EXAMPLE").unwrap_or_default();
        let args = ["--skip", "here::", "--test-threads", "1", &filter];
        let (list, _) = run(Command::new(&me).arg("--list").args(args));
        let count = list.matches(": test").count();
        assert!(count > 0, "no test has `{filter}` in its name");

        // The new kernel's device flushes to persistent memory alone.
        for (kernel, pmem) in [("new", "$RPMA_VM_PMEM"), ("old", "")] {
            let start = Instant::now();
            let script = format!(
                "#!/bin/sh\n\
             mkdir -p {}\n\
             export RPMA_TEST_DEVICE=$RPMA_VM_IP RPMA_TEST_PMEM=\"{pmem}\" {BESIDE}=$PWD\n\
             exec ./{TEST} {}\n",
                env!("CARGO_TARGET_TMPDIR"),
                args.join(" ")
            );
            let options = ["--kernel", kernel, "--pmems", "3", "--timeout", "3600"];
            let output = support::vm(programs(), &options, &script).output();
            let output = output.unwrap();
            let said = [output.stdout, output.stderr].concat();
            let said = String::from_utf8_lossy(&said);
            // With as much persistent memory as they want, none has a reason to do nothing.
            let all = said.contains(&format!("test result: ok. {count} passed"));
            assert!(
                output.status.success() && all,
                "kernel {kernel}: expected {count} tests to pass and none to be ignored:\n{said}"
            );
            let seconds = start.elapsed().as_secs_f32();
            let told = format!("on rxe of kernel {kernel}: {count} tests ({seconds:.0} s)\n");
            std::io::stderr().write_all(told.as_bytes()).unwrap();
        }
    }
}
