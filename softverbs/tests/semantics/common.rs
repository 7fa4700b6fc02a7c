//! Connections for tests, and processes for parts of tests.

pub use crate::verbs::*;
use rdma_sys::*;
use std::ffi::{CString, c_int};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::mem::zeroed;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Once;
use std::time::{Duration, Instant};
use std::{env, io, thread};

/// Says, after what went wrong, how to see it again.
pub fn explain() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        thread::spawn(|| {
            thread::sleep(6 * LIMIT);
            eprintln!("the tests hang: those of which no outcome is told");
            std::process::exit(101);
        });
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            before(info);
            if let Some(name) = thread::current().name().filter(|name| name.contains("::")) {
                eprintln!("to run it again: cargo test -p softverbs --test semantics -- {name}");
            }
        }));
    });
}

/// Waits until something is so.
#[track_caller]
pub fn until(what: &str, so: impl FnMut() -> bool) {
    crate::verbs::until(what, LIMIT, so);
}

/// Runs on a thread, and gives what that returns, which must not take long.
#[track_caller]
pub fn soon<T: Send + 'static>(what: &str, run: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, result) = std::sync::mpsc::channel();
    thread::spawn(move || sender.send(run()));
    match result.recv_timeout(LIMIT) {
        Ok(value) => value,
        Err(error) => panic!("{what}: {error}"),
    }
}

/// Pointers for another thread; the tests see to who uses what when.
#[derive(Clone, Copy)]
pub struct Shared<T>(pub T);
// SAFETY: as above.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}
impl<T: Copy> Shared<T> {
    pub fn get(&self) -> T {
        self.0
    }
}

/// An address and a port.
pub fn at(ip: impl Into<IpAddr>, port: u16) -> SocketAddr {
    SocketAddr::new(ip.into(), port)
}

/// How many objects of a kind the process has.
pub fn count(kind: &str) -> c_int {
    let kind = CString::new(kind).unwrap();
    c!(softverbs::exports::softverbs_count(kind.as_ptr()))
}

/// A channel, whose test begins with it.
pub fn new_channel() -> Channel {
    explain();
    Channel::new()
}

/// An id without a channel, whose test begins with it.
pub fn new_sync_id() -> Id {
    explain();
    Id::new_sync()
}

// ---- connections ----

/// How a connection for a test is to be.
#[derive(Clone)]
pub struct Setup {
    pub cap: ibv_qp_cap,
    pub cqe: c_int,
    pub sig_all: bool,
    pub extended: bool,
    pub srq: Option<u32>,
    pub client: ConnParam,
    pub server: ConnParam,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            cap: ibv_qp_cap {
                max_send_wr: 64,
                max_recv_wr: 64,
                max_send_sge: 32,
                max_recv_sge: 32,
                max_inline_data: 512,
            },
            cqe: 256,
            sig_all: false,
            extended: true,
            srq: None,
            client: ConnParam::default(),
            server: ConnParam::default(),
        }
    }
}

/// One end of a connection, with all it needs. What it has is destroyed from the top down.
pub struct End {
    pub id: Id,
    pub send_cq: Cq,
    pub recv_cq: Cq,
    pub comp: CompChannel,
    pub srq: Option<Srq>,
    pub pd: Pd,
    pub channel: Channel,
}
// SAFETY: the tests see to who uses what when.
unsafe impl Sync for End {}
// SAFETY: as above.
unsafe impl Send for End {}

impl End {
    /// For an id that has its device.
    #[track_caller]
    pub fn new(id: Id, channel: Channel, setup: &Setup) -> Self {
        let context = made("the device", c!((*id.0).verbs));
        let pd = Pd::new(context);
        let comp = CompChannel::new(context);
        let send_cq = Cq::new(context, setup.cqe, Some(&comp));
        let recv_cq = Cq::new(context, setup.cqe, Some(&comp));
        let srq = setup.srq.map(|max_wr| Srq::new(&pd, max_wr));
        id.create_qp(&QpPlan {
            recv_cq: &recv_cq,
            srq: srq.as_ref(),
            sig_all: setup.sig_all,
            extended: setup.extended,
            ..QpPlan::new(&pd, &send_cq, setup.cap)
        });
        End {
            id,
            send_cq,
            recv_cq,
            comp,
            srq,
            pd,
            channel,
        }
    }

    pub fn qp(&self) -> *mut ibv_qp {
        self.id.qp()
    }

    pub fn memory(&self, len: usize, access: u32) -> Memory {
        Memory::new(&self.pd, len, access)
    }

    #[track_caller]
    pub fn post(&self, wr: Wr) {
        assert_eq!(post_list(self.qp(), &[wr]), Ok(()), "ibv_post_send");
    }

    /// By whichever interface can.
    #[track_caller]
    pub fn post_by(&self, how: Interface, wrs: &[Wr]) {
        match how {
            Interface::List => assert_eq!(post_list(self.qp(), wrs), Ok(()), "ibv_post_send"),
            Interface::Extended => {
                assert_eq!(post_extended(self.qp(), wrs), Ok(()), "ibv_wr_complete");
            }
        }
    }

    #[track_caller]
    pub fn recv(&self, id: u64, sges: Vec<ibv_sge>) {
        match &self.srq {
            Some(srq) => good("ibv_post_srq_recv", srq.recv(id, &sges)),
            None => assert_eq!(
                post_recvs(self.qp(), &[(id, sges)]),
                Ok(()),
                "ibv_post_recv"
            ),
        }
    }

    /// As `ibv_query_qp` tells.
    pub fn state(&self) -> ibv_qp_state::Type {
        self.query().qp_state
    }

    pub fn query(&self) -> ibv_qp_attr {
        self.id.query()
    }

    /// Makes it an error.
    pub fn fail(&self) {
        let mut attr: ibv_qp_attr = c!(zeroed());
        attr.qp_state = ibv_qp_state::IBV_QPS_ERR;
        let mask = ibv_qp_attr_mask::IBV_QP_STATE.0 as c_int;
        good(
            "ibv_modify_qp",
            c!(ibv_modify_qp(self.qp(), &mut attr, mask)),
        );
    }

    pub fn set_min_rnr_timer(&self, timer: u8) {
        let mut attr: ibv_qp_attr = c!(zeroed());
        attr.min_rnr_timer = timer;
        let mask = ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER.0 as c_int;
        good(
            "ibv_modify_qp",
            c!(ibv_modify_qp(self.qp(), &mut attr, mask)),
        );
    }
}

/// How requests are posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interface {
    List,
    Extended,
}

pub const BOTH: [Interface; 2] = [Interface::List, Interface::Extended];

/// Both ends of a connection. Client and server are peers: it makes no difference which one asks.
pub struct Pair {
    pub client: End,
    pub server: End,
}

impl Pair {
    #[track_caller]
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    #[track_caller]
    pub fn with(change: impl FnOnce(&mut Setup)) -> Self {
        let mut setup = Setup::default();
        change(&mut setup);
        let listener = Listener::new();
        let client = begin(&listener.address, &setup);
        let server = listener.accept(&setup);
        client.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
        server.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
        Pair { client, server }
    }
}

pub struct Listener {
    pub id: Id,
    pub channel: Channel,
    pub address: SocketAddr,
}

impl Listener {
    #[track_caller]
    pub fn new() -> Self {
        let channel = new_channel();
        let id = Id::new(&channel);
        let address = id.listen_at(&LOOPBACK, 0);
        Listener {
            id,
            channel,
            address,
        }
    }

    /// Accepts the next connection.
    #[track_caller]
    pub fn accept(&self, setup: &Setup) -> End {
        let request = self.channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
        self.accept_id(Id(request.id), setup)
    }

    /// Accepts a connection, with a channel of its own.
    #[track_caller]
    pub fn accept_id(&self, id: Id, setup: &Setup) -> End {
        let own = new_channel();
        id.migrate(&own);
        let server = End::new(id, own, setup);
        server.id.accept(&setup.server);
        server
    }
}

/// Asks for a connection.
#[track_caller]
pub fn begin(to: &SocketAddr, setup: &Setup) -> End {
    let channel = new_channel();
    let id = Id::new(&channel);
    id.resolve(&channel, to);
    let client = End::new(id, channel, setup);
    client.id.connect(&setup.client);
    client
}

/// A message there and one back.
pub fn talk(pair: &Pair) {
    let (from, to) = (pair.client.memory(64, LOCAL), pair.server.memory(64, ALL));
    for i in 0..10u8 {
        from.fill(i);
        pair.server.recv(1, vec![to.sge(0, 64)]);
        pair.client
            .post(Wr::new(2, Op::Send, vec![from.sge(0, 64)]));
        pair.server.recv_cq.expect(1, SUCCESS);
        pair.client.send_cq.expect(2, SUCCESS);
        same("the message", &to.read(0, 64), &[i; 64]);
    }
}

/// One end of a connection whose queues are shared with others.
pub struct Member {
    pub id: Id,
    pub channel: Channel,
}

impl Member {
    /// Connects a new end to one that completes to that queue.
    #[track_caller]
    pub fn connect(
        listener: &Listener,
        (pd, cq, srq): (&Pd, &Cq, Option<&Srq>),
        param: &ConnParam,
    ) -> (Self, End) {
        let setup = Setup {
            client: param.clone(),
            ..Setup::default()
        };
        let peer = begin(&listener.address, &setup);
        let request = listener.channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
        let id = Id(request.id);
        let own = new_channel();
        id.migrate(&own);
        id.create_qp(&QpPlan {
            srq,
            ..QpPlan::new(pd, cq, setup.cap)
        });
        id.accept(param);
        peer.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
        own.expect(RDMA_CM_EVENT_ESTABLISHED);
        let member = Member { id, channel: own };
        (member, peer)
    }

    pub fn qp(&self) -> *mut ibv_qp {
        self.id.qp()
    }
}

// ---- files ----

/// A file of that many bytes, which is removed in the end.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(name: &str, len: u64) -> Self {
        let name = format!("semantics-{name}-{}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        File::create(&path).unwrap().set_len(len).unwrap();
        Scratch(path)
    }

    pub fn open(&self) -> File {
        File::options()
            .read(true)
            .write(true)
            .open(&self.0)
            .unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

// ---- processes ----

const ROLE: &str = "SEMANTICS_ROLE";

/// Which part of a test this process plays, if it was started for one.
pub fn role() -> Option<String> {
    env::var(ROLE).ok()
}

fn test_name() -> String {
    let thread = thread::current();
    thread.name().expect("the name of a test").to_string()
}

/// This program, running this test alone, in a part.
pub struct Part {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    ended: Option<ExitStatus>,
}

impl Part {
    pub fn start(role: &str) -> Self {
        Self::start_with(role, |_| {})
    }

    pub fn start_with(role: &str, prepare: impl FnOnce(&mut Command)) -> Self {
        explain();
        let mut command = Command::new(env::current_exe().unwrap());
        command
            .args(["--exact", &test_name(), "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        prepare(&mut command);
        let mut child = command.spawn().unwrap();
        Part {
            input: child.stdin.take(),
            output: BufReader::new(child.stdout.take().unwrap()),
            child,
            ended: None,
        }
    }

    /// The next thing that it tells.
    #[track_caller]
    pub fn told(&mut self) -> String {
        loop {
            let fd = self.output.get_ref().as_raw_fd();
            let there = !self.output.buffer().is_empty() || readable_or_ended(fd, LIMIT);
            assert!(there, "the other process has told nothing within {LIMIT:?}");
            let mut line = String::new();
            let n = self.output.read_line(&mut line).unwrap();
            assert!(n > 0, "the other process has ended and told nothing");
            if let Some(told) = line.trim_end().strip_prefix("@ ") {
                return told.to_string();
            }
        }
    }

    /// Lets it go on.
    pub fn go_on(&mut self) {
        let input = self.input.as_mut().unwrap();
        // One that has ended is noticed by whoever waits for it.
        let _ = input.write_all(b"\n");
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.ended = Some(self.child.wait().unwrap());
    }

    /// It ends, and well.
    #[track_caller]
    pub fn ends(&mut self) {
        self.ends_within(LIMIT);
    }

    #[track_caller]
    pub fn ends_within(&mut self, limit: Duration) {
        let end = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                self.ended = Some(status);
                if status.success() {
                    return;
                }
                // Not to the end: a child of it may live, and have the pipe.
                let fd = self.output.get_ref().as_raw_fd();
                let mut rest = self.output.buffer().to_vec();
                let mut more = [0; 4096];
                while readable_or_ended(fd, Duration::ZERO) {
                    match self.output.get_mut().read(&mut more) {
                        Ok(n) if n > 0 => rest.extend(&more[..n]),
                        _ => break,
                    }
                }
                let rest = String::from_utf8_lossy(&rest);
                panic!("the other process ended with {status}: {rest}");
            }
            assert!(
                Instant::now() < end,
                "the other process has not ended within {limit:?}"
            );
            thread::sleep(Duration::from_millis(2));
        }
    }
}

fn readable_or_ended(fd: RawFd, within: Duration) -> bool {
    let mut one = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    c!(libc::poll(&mut one, 1, within.as_millis() as c_int)) == 1
}

impl Drop for Part {
    fn drop(&mut self) {
        if self.ended.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Forks. The child does that, and ends with what it gives; nothing of the harness runs in it.
pub fn fork(child: impl FnOnce() -> c_int) -> libc::pid_t {
    let pid = c!(libc::fork());
    assert!(pid >= 0, "fork: {}", io::Error::last_os_error());
    if pid == 0 {
        // One that hangs is ended by this.
        c!(libc::alarm(LIMIT.as_secs() as u32));
        let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
        c!(libc::_exit(code.unwrap_or(99)));
    }
    pid
}

/// What the child ended with.
#[track_caller]
pub fn ended(pid: libc::pid_t) {
    let mut status = 0;
    let end = Instant::now() + 2 * LIMIT;
    loop {
        match c!(libc::waitpid(pid, &mut status, libc::WNOHANG)) {
            0 => assert!(Instant::now() < end, "the child has not ended"),
            -1 if errno() == libc::EINTR => {}
            _ => break,
        }
        thread::sleep(Duration::from_millis(1));
    }
    if libc::WIFSIGNALED(status) {
        panic!("the child was ended by signal {}", libc::WTERMSIG(status));
    }
    assert_eq!(libc::WEXITSTATUS(status), 0, "the status of the child");
}

/// Whether a thread of this process waits in the kernel.
pub fn sleeps(tid: libc::pid_t) -> bool {
    let stat = fs::read_to_string(format!("/proc/self/task/{tid}/stat"));
    stat.is_ok_and(|stat| stat.rsplit(')').next().unwrap().starts_with(" S"))
}

/// Tells the process that started this one something.
pub fn tell(what: impl std::fmt::Display) {
    let mut out = io::stdout().lock();
    // The name that the harness has printed has no end of line yet.
    writeln!(out, "\n@ {what}").unwrap();
    out.flush().unwrap();
}

/// Waits until the process that started this one lets it go on, or has ended.
pub fn wait_to_go_on() {
    let mut byte = [0];
    let _ = io::stdin().read(&mut byte);
}

/// Runs a test in a process that does nothing else.
#[track_caller]
pub fn alone(test: impl FnOnce()) {
    explain();
    if role().is_some() {
        return test();
    }
    Part::start("alone").ends_within(3 * LIMIT);
}

/// Runs a test in a process that does nothing else, and gives the lines that softverbs says on
/// stderr there; none in that process itself.
#[track_caller]
pub fn said_by(test: impl FnOnce(), limit: Duration, variables: &[(&str, &str)]) -> Vec<String> {
    explain();
    if role().is_some() {
        test();
        return vec![];
    }
    let name = test_name().replace("::", "-");
    let file =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.{}.stderr", variables.len()));
    let mut part = Part::start_with("said by", |command| {
        command
            .env_remove("SOFTVERBS_WARN")
            .envs(variables.iter().copied())
            .stderr(File::create(&file).unwrap());
    });
    part.ends_within(limit);
    let said = fs::read_to_string(&file).unwrap();
    let lines = said.lines().filter(|line| line.starts_with("softverbs: "));
    lines.map(str::to_string).collect()
}
