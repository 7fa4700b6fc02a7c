//! Programs that know nothing of softverbs, run over it: started, watched, and told on when they
//! do not do what they should.

use crate::library;
use crate::trials::{Ignored, Outcome};
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::io::{PipeReader, Read, Write as _};
use std::net::{IpAddr, TcpListener};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

/// How long all of a run may take, which is many times what it does take.
const LIMIT: Duration = Duration::from_secs(900);
/// How often is looked again for what nothing announces.
const AGAIN: Duration = Duration::from_millis(5);

/// Names a file that everything that was run gets a row in, for scripts/proof.
const PROOF: &str = "SOFTVERBS_PROOF";

/// What a test ends with that cannot run here.
pub fn ignored(why: &str) -> Ignored {
    note(&format!("| `{}` | | ignored: {why} |\n", test_name()));
    Ignored(why.to_string())
}

fn note(rows: &str) {
    let Some(file) = env::var_os(PROOF) else {
        return;
    };
    let file = fs::File::options().append(true).create(true).open(file);
    file.unwrap().write_all(rows.as_bytes()).unwrap();
}

fn test_name() -> String {
    thread::current().name().unwrap_or("").to_string()
}

/// Runs the test that this is once more in a virtual machine (scripts/vm), whose kernel has what
/// this machine's lacks.
#[track_caller]
pub fn in_virtual_machine(lacking: &str) -> Outcome {
    const FAILED: i32 = 125;
    let name = test_name();
    let inside = env::var_os(library::BESIDE).is_some();
    assert!(!inside, "not even in the virtual machine: {lacking}");

    let tmp = env!("CARGO_TARGET_TMPDIR");
    let dir = Path::new(tmp).join(format!("programs-vm.{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    fs::copy(env::current_exe().unwrap(), dir.join("programs")).unwrap();
    fs::copy(library::ours_file(), dir.join("libsoftverbs.so")).unwrap();
    let script = format!(
        "#!/bin/sh\nmkdir -p {tmp}\nexport {}=$PWD {PROOF}=$PWD/out/proof\n\
         exec ./programs --exact {name} --nocapture\n",
        library::BESIDE
    );
    fs::write(dir.join("run.sh"), script).unwrap();
    let vm = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/vm");
    let output = Command::new(vm).arg("run").arg(&dir).output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    if output.status.code() == Some(FAILED) {
        let said = said.trim();
        return Err(ignored(&format!(
            "{lacking}, and no virtual machine: {said}"
        )));
    }
    let passed = output.status.success() && said.contains("1 passed");
    assert!(passed, "in the virtual machine:\n{said}");
    note(&fs::read_to_string(dir.join("out/proof")).unwrap());
    fs::remove_dir_all(dir).unwrap();
    Ok(())
}

// ---- where a program runs ----

/// A network for programs to run in: this machine's own, or a namespace.
#[derive(Clone, Default)]
pub struct Network {
    /// What has to stand before a command for it to run there.
    enter: Vec<String>,
    holder: Option<Arc<Holder>>,
}

/// A process that does nothing but keep a network namespace. It ends when its standard input does.
struct Holder {
    child: Child,
    stdin: Option<ChildStdin>,
}

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.wait();
    }
}

impl Network {
    /// A command that runs there.
    pub fn command(&self, words: &[&str]) -> Command {
        let enter = self.enter.iter().map(String::as_str);
        let mut all = enter.chain(words.iter().copied());
        let mut command = Command::new(all.next().unwrap());
        command.args(all);
        command
    }

    /// Runs an administrator's command there.
    pub fn sh(&self, script: &str) -> Result<String, String> {
        let output = self
            .command(&["sh", "-ec", script])
            .stdin(Stdio::null())
            .output()
            .map_err(|error| error.to_string())?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(format!("`{script}`: {}", said.trim()))
        }
    }

    /// A new namespace, made from inside this one.
    fn new_inside(&self, unshare: &str, nsenter: &str) -> Result<Self, String> {
        let script = format!("exec unshare {unshare} sh -c 'echo; exec cat'");
        let mut child = self
            .command(&["sh", "-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| error.to_string())?;
        let stdin = child.stdin.take();
        let mut first = [0];
        if child.stdout.as_mut().unwrap().read(&mut first).ok() != Some(1) {
            let mut said = String::new();
            let _ = child.stderr.as_mut().unwrap().read_to_string(&mut said);
            let _ = child.wait();
            return Err(said.trim().to_string());
        }
        let enter = format!("nsenter --target {} {nsenter} --", child.id());
        Ok(Self {
            enter: enter.split(' ').map(str::to_string).collect(),
            holder: Some(Arc::new(Holder { child, stdin })),
        })
    }

    fn holder(&self) -> u32 {
        self.holder.as_ref().map_or(0, |holder| holder.child.id())
    }
}

/// Two hosts and the cable between them.
pub struct Hosts {
    pub server: Network,
    pub client: Network,
}

impl Hosts {
    pub const SERVER: &str = "10.88.0.1";
    pub const SERVER6: &str = "fd88::1";
    /// What the cable is called at either end.
    pub const CABLE: &str = "cable";

    /// The hosts, or why there cannot be any here.
    pub fn new() -> Result<Self, String> {
        // Root needs no user namespace, and may not even be allowed one; others need it.
        let here = Network::default();
        let with = |unshare, nsenter| {
            Ok::<_, String>(Self {
                server: here.new_inside(unshare, nsenter)?,
                client: Network::default(),
            })
        };
        let enter_net = "--net";
        let enter_user = "--user --net --preserve-credentials";
        let (mut hosts, enter) = match with("--net", enter_net) {
            Ok(hosts) => (hosts, enter_net),
            Err(_) => (
                with("--user --map-root-user --net", enter_user)?,
                enter_user,
            ),
        };
        hosts.client = hosts.server.new_inside("--net", enter)?;
        let cable = Self::CABLE;
        hosts.server.sh(&format!(
            "ip link add {cable} type veth peer name {cable} netns {}",
            hosts.client.holder()
        ))?;
        let addresses = [(Self::SERVER, Self::SERVER6), ("10.88.0.2", "fd88::2")];
        for (network, (ip, ip6)) in [&hosts.server, &hosts.client].into_iter().zip(addresses) {
            network.sh(&format!(
                "ip link set lo up; ip addr add {ip}/24 dev {cable}
                 ip addr add {ip6}/64 dev {cable} nodad; ip link set {cable} up"
            ))?;
        }
        Ok(hosts)
    }
}

// ---- a run ----

/// Programs that poll leave no time for others: only one run at once.
static ONE: Mutex<()> = Mutex::new(());

/// A server and its clients, and everything they said.
pub struct Run {
    pub address: String,
    pub port: u16,
    deadline: Instant,
    processes: Vec<Process>,
    _one: MutexGuard<'static, ()>,
}

/// One of a run's processes.
pub type Index = usize;

impl Run {
    /// With a free port at that address.
    pub fn at(address: &str) -> Self {
        library::ours_file();
        let one = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        Self {
            address: address.to_string(),
            port: free_port(address),
            deadline: Instant::now() + LIMIT,
            processes: vec![],
            _one: one,
        }
    }

    /// Starts a program; `{address}` and `{port}` in its command line are the run's.
    pub fn start(&mut self, network: &Network, line: &str) -> Index {
        let line = line.replace("{address}", &self.address);
        let at = |port: &str| line.replace("{port}", port);
        let mut process = Process::start(network, &at(&self.port.to_string()));
        process.line = at("PORT");
        self.processes.push(process);
        self.processes.len() - 1
    }

    /// Starts a program and waits until it listens at the port.
    #[track_caller]
    pub fn start_server(&mut self, network: &Network, line: &str) -> Index {
        let server = self.start(network, line);
        self.wait_until(server, "listens at its port", |run| {
            let process = &run.processes[server];
            is_listened_at(process.child.id(), run.port)
        });
        server
    }

    /// Waits until something is so, as long as the process lives that is to bring it about.
    #[track_caller]
    pub fn wait_until(&mut self, of: Index, what: &str, so: impl Fn(&Self) -> bool) {
        loop {
            let ended = self.processes[of].has_ended();
            if so(self) {
                return;
            }
            let late = Instant::now() > self.deadline;
            if ended || late {
                let how = if late { "hangs" } else { "ended" };
                self.fail(&format!("{}: {how} before it {what}", self.name(of)));
            }
            thread::sleep(AGAIN);
        }
    }

    /// What a process ended with.
    #[track_caller]
    pub fn status(&mut self, of: Index) -> ExitStatus {
        self.wait_until(of, "ended", |run| run.processes[of].status.is_some());
        self.processes[of].status.unwrap()
    }

    /// What a process has printed so far; all of it, if it has ended.
    pub fn output(&self, of: Index) -> String {
        self.processes[of].output.text()
    }

    /// The same of what it has to complain of.
    pub fn errors(&self, of: Index) -> String {
        self.processes[of].errors.text()
    }

    fn says_anywhere(&self, of: Index, text: &str) -> bool {
        self.output(of).contains(text) || self.errors(of).contains(text)
    }

    /// Everybody ends well.
    #[track_caller]
    pub fn all_succeed(&mut self) {
        loop {
            let mut running = 0;
            let mut failed = false;
            for process in &mut self.processes {
                running += usize::from(!process.has_ended());
                failed |= process.status.is_some_and(|end| !end.success());
            }
            if running == 0 || failed || Instant::now() > self.deadline {
                break;
            }
            thread::sleep(AGAIN);
        }
        // One that has failed is the one to tell of, not those that wait for it.
        for of in 0..self.processes.len() {
            let good = self.processes[of].status.is_none_or(|end| end.success());
            self.expect(good, &format!("{} to succeed", self.name(of)));
        }
        for of in 0..self.processes.len() {
            self.status(of);
        }
    }

    /// Whatever is wrong, it is not a crash: an exit status that tells of failure.
    #[track_caller]
    pub fn fails(&mut self, of: Index) {
        let status = self.status(of);
        let good = status.code().is_some_and(|code| code != 0);
        self.expect(good, &format!("{} to end with an error", self.name(of)));
    }

    #[track_caller]
    pub fn says(&mut self, of: Index, text: &str) {
        let good = self.says_anywhere(of, text);
        self.expect(good, &format!("{} to say `{text}`", self.name(of)));
    }

    #[track_caller]
    pub fn says_not(&mut self, of: Index, text: &str) {
        let good = !self.says_anywhere(of, text);
        self.expect(good, &format!("{} not to say `{text}`", self.name(of)));
    }

    #[track_caller]
    pub fn expect(&mut self, good: bool, what: &str) {
        if !good {
            self.fail(&format!("expected {what}"));
        }
    }

    pub fn is_running(&mut self, of: Index) -> bool {
        !self.processes[of].has_ended()
    }

    pub fn kill(&mut self, of: Index) {
        let _ = self.processes[of].child.kill();
    }

    pub fn pid(&self, of: Index) -> u32 {
        self.processes[of].child.id()
    }

    fn name(&self, of: Index) -> String {
        let program = self.processes[of].line.split(' ').next().unwrap_or("");
        format!("process {of}, {program},")
    }

    #[track_caller]
    fn fail(&mut self, problem: &str) -> ! {
        let mut text = format!("{problem}\n");
        for (i, process) in self.processes.iter_mut().enumerate() {
            let state = process.state();
            process.end();
            writeln!(text, "\nprocess {i}: {}\n{state}", process.command).unwrap();
            text.push_str(&process.errors.text());
            text.push_str(&process.output.text());
        }
        let name = test_name();
        panic!("{text}\nto run it again: cargo test -p softverbs --test programs -- {name}\n");
    }
}

/// Whatever was expected of it has come true, unless there is a panic.
impl Drop for Run {
    fn drop(&mut self) {
        if thread::panicking() {
            return;
        }
        let name = test_name();
        let mut text = String::new();
        for process in &mut self.processes {
            let result = process.result();
            let line = process.line.trim();
            writeln!(text, "| `{name}` | `{line}` | {result} |").unwrap();
        }
        note(&text);
    }
}

/// What is printed, collected while it comes.
#[derive(Clone, Default)]
struct Output(Arc<Printed>);

#[derive(Default)]
struct Printed {
    text: Mutex<Text>,
    ended: Condvar,
}

#[derive(Default)]
struct Text {
    bytes: Vec<u8>,
    whole: bool,
}

impl Output {
    fn collect(mut from: PipeReader) -> Self {
        let output = Output::default();
        let Output(printed) = output.clone();
        thread::spawn(move || {
            let mut part = [0; 4096];
            loop {
                let count = from.read(&mut part).unwrap_or(0);
                let mut text = printed.text.lock().unwrap();
                text.bytes.extend(&part[..count]);
                if count == 0 {
                    text.whole = true;
                    printed.ended.notify_all();
                    return;
                }
            }
        });
        output
    }

    /// Waits for the last of it, which is there soon once the process has ended.
    fn finish(&self) {
        let limit = Duration::from_secs(60);
        let text = self.0.text.lock().unwrap();
        let _ = self
            .0
            .ended
            .wait_timeout_while(text, limit, |text| !text.whole);
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.text.lock().unwrap().bytes).into_owned()
    }
}

struct Process {
    /// As it is told of, and as it is run.
    line: String,
    command: String,
    child: Child,
    output: Output,
    errors: Output,
    status: Option<ExitStatus>,
}

impl Process {
    fn start(network: &Network, line: &str) -> Self {
        let preload = format!("LD_PRELOAD={}", library::ours_file().display());
        let mut words = vec!["env", &preload];
        words.extend(line.split(' '));
        let (output, stdout) = std::io::pipe().unwrap();
        let (errors, stderr) = std::io::pipe().unwrap();
        let mut command = network.command(&words);
        // Some leave files where they are.
        command.current_dir(env!("CARGO_TARGET_TMPDIR"));
        command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
        let child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Self {
            line: line.to_string(),
            command: words.join(" "),
            child,
            output: Output::collect(output),
            errors: Output::collect(errors),
            status: None,
        }
    }

    fn has_ended(&mut self) -> bool {
        if self.status.is_none() {
            self.status = self.child.try_wait().unwrap();
            if self.status.is_some() {
                self.output.finish();
                self.errors.finish();
            }
        }
        self.status.is_some()
    }

    /// How it ended, and its last words that are any.
    fn result(&mut self) -> String {
        const MOST: usize = 72;
        let (failed, end) = match self.has_ended().then(|| self.status.unwrap()) {
            None => (false, "goes on".to_string()),
            Some(status) => match status.code() {
                Some(code) => (code != 0, code.to_string()),
                None => (true, format!("signal {}", status.signal().unwrap_or(0))),
            },
        };
        let mut said = [self.errors.text(), self.output.text()];
        if failed {
            said.reverse();
        }
        let said = said.concat();
        let tells = |line: &&str| line.contains(char::is_alphanumeric) && !line.ends_with(':');
        let Some(last) = said.lines().rev().find(tells) else {
            return end;
        };
        let words: Vec<_> = last.split_whitespace().collect();
        let mut last = words.join(" ").replace(['|', '`'], "'");
        if let Some((cut, _)) = last.char_indices().nth(MOST) {
            last.replace_range(cut.., "…");
        }
        format!("{end}: `{last}`")
    }

    /// How it ended, or where its threads are.
    fn state(&mut self) -> String {
        if self.has_ended() {
            let status = self.status.unwrap();
            return match status.signal() {
                Some(signal) => format!("(killed by signal {signal})"),
                None => format!("(ended with status {})", status.code().unwrap_or(-1)),
            };
        }
        let mut text = "(still running)".to_string();
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id()));
        for task in tasks.into_iter().flatten().flatten() {
            let file = |name| fs::read_to_string(task.path().join(name)).unwrap_or_default();
            let (name, at, call) = (file("comm"), file("wchan"), file("syscall"));
            let (name, call) = (name.trim(), call.trim());
            write!(text, "\n(thread {name}: {at}, system call {call})").unwrap();
        }
        text
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.output.finish();
        self.errors.finish();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

// ---- ports ----

/// A port that nobody has, and nobody gets by connecting from it either.
fn free_port(address: &str) -> u16 {
    const FIRST: u16 = 10_000;
    // Where ports for connecting begin (ip_local_port_range, ip(7)).
    const END: u16 = 32_768;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // An address of another namespace is as free as the wildcard.
    let any = match address.parse() {
        Ok(IpAddr::V6(_)) => "::",
        _ => "0.0.0.0",
    };
    // Runs at the same time start apart.
    let start = std::process::id() as u16;
    let mut ports = (FIRST..END).map(|_| {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        FIRST + start.wrapping_mul(61).wrapping_add(step) % (END - FIRST)
    });
    let free = ports.find(|port| TcpListener::bind((any, *port)).is_ok());
    free.expect("a free port")
}

/// Whether anyone listens at that port, in the network that a process sees.
fn is_listened_at(pid: u32, port: u16) -> bool {
    const LISTEN: &str = "0A";
    let port = format!(":{port:04X}");
    ["tcp", "tcp6"].iter().any(|table| {
        let table = fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        table.lines().any(|line| {
            let mut words = line.split_whitespace().skip(1);
            let local = words.next().is_some_and(|local| local.ends_with(&port));
            local && words.nth(1) == Some(LISTEN)
        })
    })
}
