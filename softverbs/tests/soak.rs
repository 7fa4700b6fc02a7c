//! An hour's worth of random operations in a short time, over many connections between several
//! processes, some of which are killed and started again meanwhile.
//!
//! Each process connects to all, itself included, more than once. Who connects owns a region of
//! the other side, keeps a copy of what must be in it, and checks every byte that it reads; who is
//! connected to checks every byte that it is sent. No two operations that are under way have memory
//! in common. What is posted completes once and in order, and in the end nothing is left.
//!
//! `SOFTVERBS_SOAK_SECONDS` is how long it goes on, `SOFTVERBS_FUZZ_SEED` what it begins with:
//!
//! ```sh
//! SOFTVERBS_SOAK_SECONDS=300 cargo test -p softverbs --profile soak --test soak
//! ```

mod fuzz;
mod library;
#[macro_use]
mod verbs;

use fastrand::Rng;
use fuzz::tell;
use rdma_sys::{
    ibv_sge, ibv_wc, ibv_wc_flags, ibv_wc_opcode, ibv_wc_status, rdma_accept, rdma_cm_event_type,
};
use std::collections::{HashSet, VecDeque};
use std::ffi::{CStr, c_char, c_int};
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{env, fs, ptr, slice, thread};
use verbs::*;

const WORKERS: usize = 4;
/// So many connections a process has to each.
const CONNECTIONS: usize = 2;
const SECONDS: u64 = 20;
const SEED: u64 = 20_240_229;
/// Whatever is waited for takes a small part of that, however busy the machine is.
const LIMIT: Duration = Duration::from_secs(300);
/// What a process may have allocated in the end; some of it is the harness's.
const ALLOCATED: usize = 1 << 20;
/// What may be resident then: the C library keeps up to 40 MiB of stacks for further threads.
const RESIDENT: usize = 64 << 20;

const LONGEST: usize = 1 << 20;
const REGION: usize = 3 << 20;
const PAGE: usize = 4096;
/// Messages that have not been answered, of a connection.
const MESSAGES: usize = 8;
/// Receives of a connection that shares none, and of those that share.
const RECEIVES: usize = 3;
const SHARED: usize = 10;
/// Room for a message and what stands between its pieces.
const BUFFER: usize = LONGEST + 4 * GUARD;
const GUARD: usize = 16;
const GUARD_BYTE: u8 = 0xee;
const RECEIVE: u64 = 1 << 40;

// ---- what both sides of a connection know ----

fn mix(mut x: u64) -> u64 {
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// The bytes that a seed stands for.
fn fill(bytes: &mut [u8], seed: u64) {
    let mut words = bytes.chunks_exact_mut(8);
    let mut i = seed;
    for word in &mut words {
        i = i.wrapping_add(0x9e37_79b9_7f4a_7c15);
        word.copy_from_slice(&mix(i).to_le_bytes());
    }
    let last = mix(i ^ 1).to_le_bytes();
    let rest = words.into_remainder();
    rest.copy_from_slice(&last[..rest.len()]);
}

fn length(rng: &mut Rng) -> usize {
    match rng.u8(..20) {
        0 => 0,
        1..=8 => rng.usize(1..=64),
        9..=14 => rng.usize(..=4096),
        15..=17 => rng.usize(..=64 << 10),
        18 => rng.usize(..=256 << 10),
        _ => rng.usize(..=LONGEST),
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Send,
    SendImm,
    /// The immediate data tells where.
    WriteImm,
    /// A write, and then a message that tells of it.
    WriteSend,
}

/// The `number`th message of a connection.
#[derive(Clone, Copy, Debug)]
struct Message {
    kind: Kind,
    len: usize,
    seed: u64,
}

impl Message {
    fn of(connection: u64, number: u64) -> Self {
        let seed = mix(connection ^ mix(number));
        let mut rng = Rng::with_seed(seed);
        let kinds = [Kind::Send, Kind::SendImm, Kind::WriteImm, Kind::WriteSend];
        let kind = kinds[rng.usize(..4)];
        // Some connections have more on the way than a link takes at once.
        let len = if connection.is_multiple_of(8) && rng.bool() {
            rng.usize(..=LONGEST)
        } else {
            length(&mut rng)
        };
        Self { kind, len, seed }
    }

    fn imm(&self) -> u32 {
        self.seed as u32
    }
}

/// What is told to whom one connects to.
#[derive(Clone, Copy)]
#[repr(C)]
struct Hello {
    connection: u64,
    /// Whom it is for.
    target: u32,
    from: u32,
}

/// What is answered.
#[derive(Clone, Copy)]
#[repr(C)]
struct Welcome {
    region: u64,
    counter: u64,
    region_key: u32,
    counter_key: u32,
    persistent: u32,
    _rest: u32,
}

fn as_bytes<T>(value: &T) -> &[u8] {
    // SAFETY: both structures have no padding.
    unsafe { slice::from_raw_parts(ptr::from_ref(value).cast(), size_of::<T>()) }
}

fn from_bytes<T: Copy>(bytes: &[u8]) -> T {
    assert!(bytes.len() >= size_of::<T>());
    // SAFETY: as many bytes as that; any are a value of numbers.
    unsafe { bytes.as_ptr().cast::<T>().read_unaligned() }
}

// ---- the memory of requests ----

/// Ranges that no two requests have at once.
#[derive(Default)]
struct Ranges(Vec<(usize, usize)>);

impl Ranges {
    /// A range of a length that begins at a multiple of `align` below `end`.
    fn take(&mut self, rng: &mut Rng, len: usize, align: usize, end: usize) -> Option<usize> {
        for _ in 0..4 {
            let start = rng.usize(..=(end - len) / align) * align;
            if self
                .0
                .iter()
                .all(|(s, n)| start + len <= *s || s + n <= start)
            {
                self.0.push((start, len));
                return Some(start);
            }
        }
        None
    }

    fn give_back(&mut self, start: usize, len: usize) {
        let i = self.0.iter().position(|one| *one == (start, len));
        self.0.swap_remove(i.expect("a range that was taken"));
    }
}

/// Memory of this side for requests, in pieces with something between them that stays as it is.
struct Local {
    region: Mr,
    memory: Pages,
    ranges: Ranges,
}

type Pieces = Vec<(usize, usize)>;

impl Local {
    fn new(pd: &Pd) -> Self {
        let memory = Pages::new(REGION);
        let region = Mr::new(pd, &memory, 0, REGION, LOCAL);
        Self {
            memory,
            region,
            ranges: Ranges::default(),
        }
    }

    fn take(&mut self, rng: &mut Rng, len: usize, most: usize) -> Option<Pieces> {
        let mut pieces = Pieces::new();
        let n = rng.usize(1..=most);
        let mut left = len;
        for i in 1..=n {
            let part = if i == n { left } else { rng.usize(..=left) };
            let room = part + 2 * GUARD;
            match self.ranges.take(rng, room, 1, REGION) {
                Some(start) => {
                    self.memory.part(start, GUARD).fill(GUARD_BYTE);
                    self.memory
                        .part(start + GUARD + part, GUARD)
                        .fill(GUARD_BYTE);
                    pieces.push((start + GUARD, part));
                }
                None => {
                    self.give_back(&pieces);
                    return None;
                }
            }
            left -= part;
        }
        Some(pieces)
    }

    fn give_back(&mut self, pieces: &Pieces) {
        for (start, len) in pieces {
            for at in [start - GUARD, start + len] {
                let whole = self
                    .memory
                    .part(at, GUARD)
                    .iter()
                    .all(|byte| *byte == GUARD_BYTE);
                assert!(whole, "memory beside that of a request was written");
            }
            self.ranges.give_back(start - GUARD, len + 2 * GUARD);
        }
    }

    fn sges(&self, pieces: &Pieces) -> Vec<ibv_sge> {
        let sge = |(start, len): &(usize, usize)| ibv_sge {
            addr: self.memory.addr() + *start as u64,
            length: *len as u32,
            lkey: self.region.lkey(),
        };
        pieces.iter().map(sge).collect()
    }

    fn write(&self, pieces: &Pieces, mut bytes: &[u8]) {
        for (start, len) in pieces {
            let (now, rest) = bytes.split_at(*len);
            self.memory.part(*start, *len).copy_from_slice(now);
            bytes = rest;
        }
    }

    #[track_caller]
    fn check(&self, pieces: &Pieces, mut bytes: &[u8], what: &str) {
        for (start, len) in pieces {
            let (now, rest) = bytes.split_at(*len);
            equal(self.memory.part(*start, *len), now, what);
            bytes = rest;
        }
    }
}

#[track_caller]
fn equal(is: &[u8], should: &[u8], what: &str) {
    if is != should {
        let same = is.iter().zip(should).take_while(|(a, b)| a == b).count();
        let wrong = is.iter().zip(should).filter(|(a, b)| a != b).count();
        let len = should.len();
        panic!("{what}: {wrong} of {len} bytes are wrong, from {same} on");
    }
}

// ---- completions ----

/// Completion queues of a connection, and how one waits for them.
struct Completions {
    send: Cq,
    receive: Option<Cq>,
    channel: Option<CompChannel>,
}

impl Completions {
    fn new(rng: &mut Rng, sends: usize, receives: usize) -> Self {
        let channel = rng.bool().then(|| CompChannel::new(device()));
        let apart = rng.bool();
        let queue = |len: usize| Cq::new(device(), len as c_int, channel.as_ref());
        Self {
            send: queue(sends + if apart { 0 } else { receives }),
            receive: apart.then(|| queue(receives)),
            channel,
        }
    }

    fn receive(&self) -> &Cq {
        self.receive.as_ref().unwrap_or(&self.send)
    }

    fn poll(&self) -> Vec<ibv_wc> {
        let mut found = vec![];
        self.send.drain(&mut found);
        if let Some(receive) = &self.receive {
            receive.drain(&mut found);
        }
        found
    }

    /// What there is now or, if one waits for events, soon.
    fn next(&self) -> Vec<ibv_wc> {
        let found = self.poll();
        let (true, Some(channel)) = (found.is_empty(), &self.channel) else {
            if found.is_empty() {
                thread::yield_now();
            }
            return found;
        };
        self.send.arm(false);
        if let Some(receive) = &self.receive {
            receive.arm(false);
        }
        let found = self.poll();
        if !found.is_empty() || channel.wait(Duration::from_millis(10)) {
            return found;
        }
        let found = self.poll();
        // It came after the queue was armed.
        assert!(
            found.is_empty() || channel.wait(LIMIT),
            "no event of a completion"
        );
        found
    }

    /// Takes the events that are left, so that nobody waits for them.
    fn quiet(&self) {
        if let Some(channel) = &self.channel {
            while channel.wait(Duration::ZERO) {}
        }
    }
}

fn describe(wc: &ibv_wc) -> String {
    format!(
        "request {:#x}: status {}, opcode {}",
        wc.wr_id, wc.status, wc.opcode
    )
}

/// What may come of requests to a peer that is no more, or was left.
fn check_failure(wc: &ibv_wc) {
    let gone = [
        ibv_wc_status::IBV_WC_RETRY_EXC_ERR,
        ibv_wc_status::IBV_WC_WR_FLUSH_ERR,
    ];
    assert!(gone.contains(&wc.status), "{}", describe(wc));
}

/// Whether a connection has ended, by what is told of it.
fn has_ended(channel: &Channel) -> bool {
    use rdma_cm_event_type::*;
    let mut ended = false;
    while let Some(event) = channel.get_within(Duration::ZERO) {
        ended |= matches!(
            event.kind,
            RDMA_CM_EVENT_DISCONNECTED | RDMA_CM_EVENT_UNREACHABLE
        );
    }
    ended
}

// ---- a process ----

#[derive(Default)]
struct Stats {
    operations: AtomicU64,
    bytes: AtomicU64,
    messages: AtomicU64,
    sessions: AtomicU64,
    verified: AtomicU64,
}

/// Receives that several connections share.
struct Shared {
    srq: Srq,
    region: Mr,
    memory: Pages,
}

struct Worker {
    pd: Pd,
    shared: Option<Shared>,
    counter: Option<(Mr, Pages)>,
    dir: PathBuf,
    stop: AtomicBool,
    end: AtomicBool,
    stats: Stats,
    out: Mutex<()>,
}

impl Worker {
    fn say(&self, line: &str) {
        let _one = self.out.lock().unwrap();
        println!("{line}");
    }

    fn say_stats(&self) {
        let of = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let s = &self.stats;
        self.say(&format!(
            "stats {} {} {} {} {}",
            of(&s.operations),
            of(&s.bytes),
            of(&s.messages),
            of(&s.sessions),
            of(&s.verified)
        ));
    }
}

/// Where a message may be put: a buffer's pieces.
fn receive_sges(region: &Mr, memory: &Pages, i: usize, rng: &mut Rng) -> (Vec<ibv_sge>, Pieces) {
    let base = i * BUFFER;
    memory.part(base, BUFFER)[..4 * GUARD].fill(GUARD_BYTE);
    let mut pieces = Pieces::new();
    let (mut at, mut left) = (base, LONGEST);
    let n = rng.usize(1..=3);
    for i in 1..=n {
        // Short ones first, so that short messages are in several, too.
        let part = if i == n { left } else { length(rng).min(left) };
        pieces.push((at, part));
        memory.part(at + part, GUARD).fill(GUARD_BYTE);
        at += part + GUARD;
        left -= part;
    }
    let sge = |(start, len): &(usize, usize)| ibv_sge {
        addr: memory.addr() + *start as u64,
        length: *len as u32,
        lkey: region.lkey(),
    };
    (pieces.iter().map(sge).collect(), pieces)
}

impl Shared {
    fn new(pd: &Pd, rng: &mut Rng) -> Self {
        let memory = Pages::new(SHARED * BUFFER);
        let region = Mr::new(pd, &memory, 0, SHARED * BUFFER, LOCAL);
        let shared = Self {
            srq: Srq::new(pd, SHARED as u32),
            region,
            memory,
        };
        for i in 0..SHARED {
            shared.post(i, rng);
        }
        shared
    }

    /// Where a buffer's pieces are is in its number, as whoever gets it knows nothing else.
    fn post(&self, i: usize, rng: &mut Rng) {
        let seed = rng.u64(..1 << 24);
        let (sges, _) = receive_sges(&self.region, &self.memory, i, &mut Rng::with_seed(seed));
        let id = RECEIVE | seed << 8 | i as u64;
        good("ibv_post_srq_recv", self.srq.recv(id, &sges));
    }

    fn pieces(&self, id: u64) -> (usize, Pieces) {
        let (i, seed) = ((id & 0xff) as usize, id >> 8 & 0xff_ffff);
        let mut rng = Rng::with_seed(seed);
        let mut pieces = Pieces::new();
        let (mut at, mut left) = (i * BUFFER, LONGEST);
        let n = rng.usize(1..=3);
        for i in 1..=n {
            let part = if i == n {
                left
            } else {
                length(&mut rng).min(left)
            };
            pieces.push((at, part));
            at += part + GUARD;
            left -= part;
        }
        (i, pieces)
    }
}

/// Checks what was received: it fills the pieces one after the other.
fn check_received(memory: &Pages, pieces: &Pieces, mut bytes: &[u8], what: &str) {
    for (start, len) in pieces {
        let (now, rest) = bytes.split_at(bytes.len().min(*len));
        equal(memory.part(*start, now.len()), now, what);
        let guard = memory.part(start + len, GUARD);
        assert!(
            guard.iter().all(|byte| *byte == GUARD_BYTE),
            "{what}: more was written"
        );
        bytes = rest;
    }
    assert!(bytes.is_empty());
}

// ---- who is connected to ----

struct Responder<'a> {
    worker: &'a Worker,
    hello: Hello,
    id: Id,
    completions: Completions,
    shared: Option<&'a Shared>,
    /// Buffers of its own, and what is posted of them.
    own: Option<(Mr, Pages)>,
    posted: VecDeque<(u64, usize, Pieces)>,
    _region: Mr,
    memory: Pages,
    received: u64,
    /// Answers that have been posted, and of which completed.
    answers: u64,
    answered: u64,
    failed: bool,
    rng: Rng,
    scratch: Vec<u8>,
}

const ANSWERS: usize = 2 * MESSAGES;

fn respond(worker: &Worker, id: Id, hello: Hello) {
    let mut rng = Rng::with_seed(mix(hello.connection));
    let channel = Channel::new();
    id.migrate(&channel);
    // One that is killed leaves it behind.
    let name = worker.dir.join(format!("region-{}", hello.connection));
    let file = rng.bool().then(|| {
        let mut options = fs::File::options();
        options.read(true).write(true).create_new(true);
        options.open(&name).unwrap()
    });
    let whole = REGION + 2 * PAGE;
    let memory = match &file {
        Some(file) => Pages::of_file(file, whole),
        None => Pages::new(whole),
    };
    memory.part(0, PAGE).fill(GUARD_BYTE);
    memory.part(whole - PAGE, PAGE).fill(GUARD_BYTE);
    let mut access = LOCAL | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC | FLUSH_GLOBAL;
    if file.is_some() {
        access |= FLUSH_PERSISTENT;
    }
    let region = Mr::new(&worker.pd, &memory, PAGE, REGION, access);
    let shared = worker.shared.as_ref().filter(|_| rng.bool());
    let receives = if shared.is_some() { SHARED } else { RECEIVES };
    let completions = Completions::new(&mut rng, ANSWERS, receives);
    id.create_qp(&QpPlan {
        recv_cq: completions.receive(),
        srq: shared.map(|shared| &shared.srq),
        ..QpPlan::new(
            &worker.pd,
            &completions.send,
            room_for(ANSWERS, RECEIVES, 16),
        )
    });
    let own = shared.is_none().then(|| {
        let memory = Pages::new(RECEIVES * BUFFER);
        let region = Mr::new(&worker.pd, &memory, 0, RECEIVES * BUFFER, LOCAL);
        (region, memory)
    });
    let counter = worker.counter.as_ref().unwrap();
    let welcome = Welcome {
        region: memory.addr() + PAGE as u64,
        counter: counter.1.addr(),
        region_key: region.rkey(),
        counter_key: counter.0.rkey(),
        persistent: file.is_some().into(),
        _rest: 0,
    };
    let mut responder = Responder {
        worker,
        hello,
        id,
        completions,
        shared,
        own,
        posted: VecDeque::new(),
        _region: region,
        memory,
        received: 0,
        answers: 0,
        answered: 0,
        failed: false,
        rng,
        scratch: vec![],
    };
    if responder.own.is_some() {
        for i in 0..RECEIVES {
            responder.post(i);
        }
    }
    let param = ConnParam {
        responder_resources: responder.rng.u8(1..17),
        initiator_depth: 1,
        private: as_bytes(&welcome).to_vec(),
        ..ConnParam::default()
    };
    // Who asked may have gone already, which is told by an event.
    c!(rdma_accept(responder.id.0, &mut param.c()));
    responder.serve(&channel);
    drop(responder);
    if file.is_some() {
        fs::remove_file(name).unwrap();
    }
    drop(channel);
}

impl Responder<'_> {
    fn post(&mut self, i: usize) {
        let (region, memory) = self.own.as_ref().unwrap();
        let (sges, pieces) = receive_sges(region, memory, i, &mut self.rng);
        let id = RECEIVE | i as u64;
        assert_eq!(post_recvs(self.id.qp(), &[(id, sges)]), Ok(()));
        self.posted.push_back((id, i, pieces));
    }

    fn serve(&mut self, channel: &Channel) {
        loop {
            let found = self.completions.next();
            if found.is_empty() && has_ended(channel) {
                break;
            }
            for wc in found {
                self.completed(&wc);
            }
            if self.failed {
                break;
            }
        }
        self.id.hang_up();
        // What is under way ends, all of it.
        let end = Instant::now() + LIMIT;
        while self.answered < self.answers || !self.posted.is_empty() {
            for wc in self.completions.next() {
                self.completed(&wc);
            }
            let (posted, answers) = (self.posted.len(), self.answers - self.answered);
            assert!(
                Instant::now() < end,
                "{posted} receives and {answers} answers do not complete"
            );
        }
        for wc in self.completions.poll() {
            self.completed(&wc);
        }
        self.completions.quiet();
        let guards = [0, PAGE + REGION];
        for at in guards {
            let whole = self
                .memory
                .part(at, PAGE)
                .iter()
                .all(|byte| *byte == GUARD_BYTE);
            assert!(whole, "memory beside the region was written");
        }
    }

    fn completed(&mut self, wc: &ibv_wc) {
        let good = wc.status == ibv_wc_status::IBV_WC_SUCCESS;
        if !good {
            check_failure(wc);
            self.failed = true;
        }
        if wc.wr_id & RECEIVE == 0 {
            assert_eq!(
                wc.wr_id, self.answered,
                "answers complete once and in order"
            );
            assert!(self.answered < self.answers, "a completion of nothing");
            self.answered += 1;
            return;
        }
        let (i, pieces) = match self.shared {
            Some(shared) => shared.pieces(wc.wr_id),
            None => {
                let (id, i, pieces) = self.posted.pop_front().expect("a receive was posted");
                assert_eq!(id, wc.wr_id, "receives complete in order");
                (i, pieces)
            }
        };
        if good {
            self.message(wc, &pieces);
        }
        match self.shared {
            Some(shared) => shared.post(i, &mut self.rng),
            None if !self.failed => self.post(i),
            None => {}
        }
    }

    fn message(&mut self, wc: &ibv_wc, pieces: &Pieces) {
        let number = self.received;
        self.received += 1;
        let message = Message::of(self.hello.connection, number);
        let what = format!(
            "message {number} of {:#x}, {message:?}",
            self.hello.connection
        );
        let memory = match (&self.shared, &self.own) {
            (Some(shared), _) => &shared.memory,
            (None, Some((_, memory))) => memory,
            (None, None) => unreachable!(),
        };
        // SAFETY: all members of the union are numbers.
        let imm = unsafe { wc.imm_data_invalidated_rkey_union.imm_data };
        let imm = (wc.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0).then(|| u32::from_be(imm));
        let opcode = match message.kind {
            Kind::WriteImm => ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM,
            _ => ibv_wc_opcode::IBV_WC_RECV,
        };
        assert_eq!(wc.opcode, opcode, "{what}");
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.resize(message.len, 0);
        fill(&mut scratch, message.seed);
        match message.kind {
            Kind::Send | Kind::SendImm => {
                assert_eq!(wc.byte_len as usize, message.len, "{what}");
                let expected = (message.kind == Kind::SendImm).then(|| message.imm());
                assert_eq!(imm, expected, "{what}");
                check_received(memory, pieces, &scratch, &what);
            }
            Kind::WriteImm => {
                assert_eq!(wc.byte_len as usize, message.len, "{what}");
                let at = imm.expect("immediate data") as usize * 8;
                equal(self.memory.part(PAGE + at, message.len), &scratch, &what);
            }
            Kind::WriteSend => {
                assert_eq!((wc.byte_len, imm), (8, None), "{what}");
                let mut told = [0; 8];
                let mut done = 0;
                for (start, len) in pieces {
                    let n = (told.len() - done).min(*len);
                    told[done..done + n].copy_from_slice(memory.part(*start, n));
                    done += n;
                }
                let at = u64::from_le_bytes(told) as usize;
                equal(self.memory.part(PAGE + at, message.len), &scratch, &what);
            }
        }
        self.scratch = scratch;
        self.worker.stats.messages.fetch_add(1, Ordering::Relaxed);
        let bytes = number.to_le_bytes();
        let sge = ibv_sge {
            addr: bytes.as_ptr() as u64,
            length: 8,
            lkey: 0,
        };
        let answer = Wr::new(self.answers, Op::Send, vec![sge]).with(INLINE);
        let answer = answer.set(SOLICITED, self.rng.bool());
        answer.post(self.id.qp(), self.rng.bool());
        self.answers += 1;
    }
}

// ---- who connects ----

/// What an operation is to bring about, and what it has.
struct Flying {
    id: u64,
    signaled: bool,
    local: Pieces,
    /// Given back when it has completed.
    remote: Option<(usize, usize)>,
    then: Then,
}

enum Then {
    Nothing,
    /// It reads what is in the copy from there on.
    Compare(usize, usize),
    /// It gives that value.
    Old(u64),
    /// It gives a value of the common counter, which is greater than before.
    Counter,
}

struct Initiator<'a> {
    worker: &'a Worker,
    hello: Hello,
    welcome: Welcome,
    id: Id,
    completions: Completions,
    sends: usize,
    local: Local,
    answers: Local,
    answer_pieces: VecDeque<Pieces>,
    /// What is in the region of the other side, once all has been done.
    copy: Pages,
    remote: Ranges,
    flying: VecDeque<Flying>,
    /// Messages that have not been answered, with the range that they keep.
    messages: VecDeque<(u64, Option<(usize, usize)>)>,
    next: u64,
    message: u64,
    counter: Option<u64>,
    failed: bool,
    rng: Rng,
    last: Instant,
}

enum End {
    /// All is done, and compared.
    Well,
    /// In the middle of everything.
    Abrupt,
    /// The other side has gone.
    Lost,
    /// It could not be begun.
    Refused,
}

/// Where a process listens, and which it is.
fn target(dir: &Path, of: usize) -> Option<(SocketAddr, u32)> {
    let text = fs::read_to_string(dir.join(of.to_string())).ok()?;
    let mut words = text.split(' ').map(|word| word.trim().parse::<u32>());
    let (port, pid) = (words.next()?.ok()?, words.next()?.ok()?);
    Some((SocketAddr::new(LOOPBACK.ip(), port as u16), pid))
}

/// One connection after the other to the same process, or what takes its place.
fn initiate(worker: &Worker, of: usize, seed: u64) {
    let mut rng = Rng::with_seed(seed);
    while !worker.stop.load(Ordering::Relaxed) {
        let Some((address, pid)) = target(&worker.dir, of) else {
            thread::sleep(Duration::from_millis(5));
            continue;
        };
        let hello = Hello {
            connection: rng.u64(..),
            target: pid,
            from: std::process::id(),
        };
        match session(worker, &address, hello, rng.fork()) {
            End::Well | End::Abrupt => {
                worker.stats.sessions.fetch_add(1, Ordering::Relaxed);
            }
            End::Lost => worker.say(&format!("lost {pid}")),
            // Until its successor says where it listens.
            End::Refused => {
                worker.say(&format!("refused {pid}"));
                thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

fn session(worker: &Worker, address: &SocketAddr, hello: Hello, mut rng: Rng) -> End {
    let channel = Channel::new();
    let id = Id::new(&channel);
    id.resolve(&channel, address);
    let sends = rng.usize(4..40);
    let completions = Completions::new(&mut rng, sends, MESSAGES);
    id.create_qp(&QpPlan {
        recv_cq: completions.receive(),
        ..QpPlan::new(
            &worker.pd,
            &completions.send,
            room_for(sends, MESSAGES, 128),
        )
    });
    let mut one = Initiator {
        worker,
        hello,
        welcome: Welcome {
            region: 0,
            counter: 0,
            region_key: 0,
            counter_key: 0,
            persistent: 0,
            _rest: 0,
        },
        id,
        completions,
        sends,
        local: Local::new(&worker.pd),
        answers: Local::new(&worker.pd),
        answer_pieces: VecDeque::new(),
        copy: Pages::new(REGION),
        remote: Ranges::default(),
        flying: VecDeque::new(),
        messages: VecDeque::new(),
        next: 0,
        message: 0,
        counter: None,
        failed: false,
        rng,
        last: Instant::now(),
    };
    for _ in 0..MESSAGES {
        one.post_receive();
    }
    let end = one.run(&channel);
    one.finish(!matches!(end, End::Well));
    drop(one);
    drop(channel);
    end
}

impl Initiator<'_> {
    fn post_receive(&mut self) {
        let pieces = self.answers.take(&mut self.rng, 8, 2);
        let pieces = pieces.expect("there is room for all");
        let sges = self.answers.sges(&pieces);
        assert_eq!(post_recvs(self.id.qp(), &[(RECEIVE, sges)]), Ok(()));
        self.answer_pieces.push_back(pieces);
    }

    fn run(&mut self, channel: &Channel) -> End {
        let param = ConnParam {
            responder_resources: 1,
            initiator_depth: self.rng.u8(1..17),
            private: as_bytes(&self.hello).to_vec(),
            ..ConnParam::default()
        };
        self.id.connect(&param);
        let event = channel
            .get_within(2 * LIMIT)
            .expect("an answer to a request to connect");
        if event.kind != rdma_cm_event_type::RDMA_CM_EVENT_ESTABLISHED {
            return End::Refused;
        }
        self.welcome = from_bytes(&event.private);
        let abrupt = self.rng.u8(..4) == 0;
        let mut left = self.rng.usize(..3000);
        while left > 0 && !self.worker.stop.load(Ordering::Relaxed) {
            // Some at once, then whatever has completed.
            for _ in 0..self.rng.usize(..8) {
                if self.start() {
                    left = left.saturating_sub(1);
                }
            }
            self.progress();
            if self.failed || (self.rng.u8(..) == 0 && has_ended(channel)) {
                return End::Lost;
            }
        }
        if abrupt && !self.worker.stop.load(Ordering::Relaxed) {
            return End::Abrupt;
        }
        while !self.flying.is_empty() || !self.messages.is_empty() {
            if self.flying.back().is_some_and(|last| !last.signaled) {
                let at = self.at(0);
                self.post(Op::Write(at), vec![], None, Then::Nothing, true);
            }
            self.progress();
            if self.failed {
                return End::Lost;
            }
        }
        // All of it.
        for at in (0..REGION).step_by(LONGEST) {
            let len = LONGEST.min(REGION - at);
            let pieces = self
                .local
                .take(&mut self.rng, len, 1)
                .expect("nothing is in use");
            self.post(
                Op::Read(self.at(at)),
                pieces,
                None,
                Then::Compare(at, len),
                true,
            );
            while !self.flying.is_empty() {
                self.progress();
                if self.failed {
                    return End::Lost;
                }
            }
        }
        self.worker.stats.verified.fetch_add(1, Ordering::Relaxed);
        End::Well
    }

    fn at(&self, offset: usize) -> At {
        At {
            addr: self.welcome.region + offset as u64,
            rkey: self.welcome.region_key,
        }
    }

    /// Posts one request.
    fn post(
        &mut self,
        op: Op,
        local: Pieces,
        remote: Option<(usize, usize)>,
        then: Then,
        signaled: bool,
    ) {
        let quiet = self
            .flying
            .iter()
            .rev()
            .take_while(|one| !one.signaled)
            .count();
        let signaled = signaled || quiet + 1 >= self.sends / 2;
        let len: usize = local.iter().map(|(_, len)| len).sum();
        let carries = op.carries();
        let inline = carries && len <= 128 && self.rng.bool();
        let request = Wr::new(self.next, op, self.local.sges(&local))
            .set(SIGNALED, signaled)
            .set(FENCE, self.rng.u8(..8) == 0)
            .set(SOLICITED, self.rng.bool())
            .set(INLINE, inline);
        request.post(self.id.qp(), self.rng.bool());
        let local = if inline {
            // It was copied.
            for (start, len) in &local {
                self.local.memory.part(*start, *len).fill(0xbb);
            }
            self.local.give_back(&local);
            Pieces::new()
        } else {
            local
        };
        self.flying.push_back(Flying {
            id: self.next,
            signaled,
            local,
            remote,
            then,
        });
        self.next += 1;
        self.worker.stats.operations.fetch_add(1, Ordering::Relaxed);
        self.worker
            .stats
            .bytes
            .fetch_add(len as u64, Ordering::Relaxed);
    }

    /// Starts something, if there is room for it.
    fn start(&mut self) -> bool {
        if self.flying.len() + 3 > self.sends {
            return false;
        }
        let signaled = self.rng.bool();
        match self.rng.u8(..16) {
            0..=3 => self.start_message(signaled),
            4..=6 => self.start_write(signaled, false),
            7 => self.start_write(signaled, true),
            8..=10 => self.start_read(signaled),
            11 | 12 => self.start_atomic(signaled),
            13 => self.start_atomic_write(signaled),
            14 => self.start_count(signaled),
            _ => self.start_flush(signaled),
        }
    }

    /// A range there, with memory here; the copy has what is to be in it.
    fn take(&mut self, len: usize, align: usize, most: usize) -> Option<(usize, Pieces)> {
        let at = self.remote.take(&mut self.rng, len, align, REGION)?;
        match self.local.take(&mut self.rng, len, most) {
            Some(pieces) => Some((at, pieces)),
            None => {
                self.remote.give_back(at, len);
                None
            }
        }
    }

    fn start_write(&mut self, signaled: bool, and_read: bool) -> bool {
        let len = length(&mut self.rng);
        let Some((at, pieces)) = self.take(len, 1, 4) else {
            return false;
        };
        fill(self.copy.part(at, len), self.rng.u64(..));
        self.local.write(&pieces, self.copy.part(at, len));
        // A read that follows a write gets what that wrote.
        let read = if and_read {
            self.local.take(&mut self.rng, len, 4)
        } else {
            None
        };
        let remote = (at, len);
        let op = Op::Write(self.at(at));
        let kept = read.is_none().then_some(remote);
        self.post(op, pieces, kept, Then::Nothing, signaled && read.is_none());
        if let Some(pieces) = read {
            let op = Op::Read(self.at(at));
            self.post(op, pieces, Some(remote), Then::Compare(at, len), signaled);
        }
        true
    }

    fn start_read(&mut self, signaled: bool) -> bool {
        let len = length(&mut self.rng);
        let Some((at, pieces)) = self.take(len, 1, 4) else {
            return false;
        };
        let op = Op::Read(self.at(at));
        self.post(
            op,
            pieces,
            Some((at, len)),
            Then::Compare(at, len),
            signaled,
        );
        true
    }

    fn cell(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.copy.part(at, 8).try_into().unwrap())
    }

    fn start_atomic(&mut self, signaled: bool) -> bool {
        let Some((at, pieces)) = self.take(8, 8, 2) else {
            return false;
        };
        let (old, with) = (self.cell(at), self.rng.u64(..));
        let (op, new) = match self.rng.u8(..3) {
            0 => (Op::FetchAdd(self.at(at), with), old.wrapping_add(with)),
            1 => (Op::CompareSwap(self.at(at), old, with), with),
            _ => (Op::CompareSwap(self.at(at), !old, with), old),
        };
        self.copy.part(at, 8).copy_from_slice(&new.to_ne_bytes());
        self.post(op, pieces, Some((at, 8)), Then::Old(old), signaled);
        true
    }

    fn start_atomic_write(&mut self, signaled: bool) -> bool {
        let Some(at) = self.remote.take(&mut self.rng, 8, 8, REGION) else {
            return false;
        };
        let value = self.rng.u64(..).to_ne_bytes();
        self.copy.part(at, 8).copy_from_slice(&value);
        let op = Op::AtomicWrite(self.at(at), value);
        self.post(op, Pieces::new(), Some((at, 8)), Then::Nothing, signaled);
        true
    }

    fn start_count(&mut self, signaled: bool) -> bool {
        let Some(pieces) = self.local.take(&mut self.rng, 8, 1) else {
            return false;
        };
        let at = At {
            addr: self.welcome.counter,
            rkey: self.welcome.counter_key,
        };
        self.post(Op::FetchAdd(at, 1), pieces, None, Then::Counter, signaled);
        true
    }

    fn start_flush(&mut self, signaled: bool) -> bool {
        let len = length(&mut self.rng).max(1);
        let at = self.rng.usize(..=REGION - len);
        // To persist takes a file system's time.
        let placement = if self.welcome.persistent != 0 && self.rng.u8(..8) == 0 {
            [PERSISTENT, GLOBAL | PERSISTENT][self.rng.usize(..2)]
        } else {
            GLOBAL
        };
        let op = Op::Flush(self.at(at), len, placement, false);
        self.post(op, Pieces::new(), None, Then::Nothing, signaled);
        true
    }

    fn start_message(&mut self, signaled: bool) -> bool {
        if self.messages.len() == MESSAGES {
            return false;
        }
        let message = Message::of(self.hello.connection, self.message);
        let len = message.len;
        let remote = match message.kind {
            Kind::Send | Kind::SendImm => {
                let Some(pieces) = self.local.take(&mut self.rng, len, 4) else {
                    return false;
                };
                let mut bytes = vec![0; len];
                fill(&mut bytes, message.seed);
                self.local.write(&pieces, &bytes);
                let imm = (message.kind == Kind::SendImm).then(|| message.imm());
                self.post(Op::send(imm), pieces, None, Then::Nothing, signaled);
                None
            }
            Kind::WriteImm | Kind::WriteSend => {
                let Some(told) = self.local.take(&mut self.rng, 8, 2) else {
                    return false;
                };
                let Some((at, pieces)) = self.take(len, 8, 4) else {
                    self.local.give_back(&told);
                    return false;
                };
                fill(self.copy.part(at, len), message.seed);
                self.local.write(&pieces, self.copy.part(at, len));
                if message.kind == Kind::WriteImm {
                    self.local.give_back(&told);
                    let op = Op::WriteImm(self.at(at), (at / 8) as u32);
                    self.post(op, pieces, None, Then::Nothing, signaled);
                } else {
                    let op = Op::Write(self.at(at));
                    self.post(op, pieces, None, Then::Nothing, false);
                    self.local.write(&told, &(at as u64).to_le_bytes());
                    self.post(Op::Send, told, None, Then::Nothing, signaled);
                }
                // It stays as it is until it has been looked at.
                Some((at, len))
            }
        };
        self.messages.push_back((self.message, remote));
        self.message += 1;
        true
    }

    /// Deals with what has completed.
    fn progress(&mut self) {
        let found = self.completions.next();
        if found.is_empty() {
            let waits = !self.flying.is_empty() || !self.messages.is_empty();
            let stuck = waits && self.last.elapsed() > LIMIT;
            assert!(
                !stuck,
                "stuck: {} requests, the first {:?}, and {} messages wait",
                self.flying.len(),
                self.flying.front().map(|one| one.id),
                self.messages.len()
            );
            if !waits {
                self.last = Instant::now();
            }
        } else {
            self.last = Instant::now();
        }
        for wc in found {
            self.completed(&wc);
        }
    }

    fn completed(&mut self, wc: &ibv_wc) {
        let good = wc.status == ibv_wc_status::IBV_WC_SUCCESS;
        if !good {
            check_failure(wc);
            self.failed = true;
        }
        if wc.wr_id & RECEIVE != 0 {
            let pieces = self
                .answer_pieces
                .pop_front()
                .expect("a receive was posted");
            if good {
                let (number, remote) = self.messages.pop_front().expect("an answer to a message");
                assert_eq!(wc.byte_len, 8);
                self.answers
                    .check(&pieces, &number.to_le_bytes(), "an answer");
                if let Some((at, len)) = remote {
                    self.remote.give_back(at, len);
                }
            }
            self.answers.give_back(&pieces);
            if !self.failed {
                self.post_receive();
            }
            return;
        }
        loop {
            let one = self.flying.pop_front();
            let one = one.unwrap_or_else(|| panic!("{} was not posted", describe(wc)));
            let this = one.id == wc.wr_id;
            assert!(this || !one.signaled, "{} before {}", describe(wc), one.id);
            assert!(
                !good || !this || one.signaled,
                "{} was not wanted",
                describe(wc)
            );
            self.done(one, good || !this);
            if this {
                return;
            }
        }
    }

    fn done(&mut self, one: Flying, good: bool) {
        if good {
            match one.then {
                Then::Nothing => {}
                Then::Compare(at, len) => {
                    let what = format!("read {} of {:#x}", one.id, self.hello.connection);
                    self.local.check(&one.local, self.copy.part(at, len), &what);
                }
                Then::Old(old) => {
                    let what = format!("atomic {} of {:#x}", one.id, self.hello.connection);
                    self.local.check(&one.local, &old.to_ne_bytes(), &what);
                }
                Then::Counter => {
                    let (start, _) = one.local[0];
                    let value = self.local.memory.part(start, 8).try_into().unwrap();
                    let value = u64::from_ne_bytes(value);
                    assert!(
                        self.counter.is_none_or(|before| before < value),
                        "counted twice"
                    );
                    self.counter = Some(value);
                }
            }
        }
        self.local.give_back(&one.local);
        if let Some((at, len)) = one.remote {
            self.remote.give_back(at, len);
        }
    }

    /// Ends the connection: whatever is under way completes.
    fn finish(&mut self, failing: bool) {
        self.id.hang_up();
        self.failed = true;
        let end = Instant::now() + LIMIT;
        while self.flying.iter().any(|one| one.signaled) || !self.answer_pieces.is_empty() {
            for wc in self.completions.next() {
                self.completed(&wc);
            }
            assert!(
                Instant::now() < end,
                "{} requests and {} receives do not complete",
                self.flying.len(),
                self.answer_pieces.len()
            );
        }
        for wc in self.completions.poll() {
            self.completed(&wc);
        }
        assert!(failing || self.flying.is_empty());
        self.completions.quiet();
    }
}

// ---- a process, from beginning to end ----

const WORKER: &str = "SOFTVERBS_SOAK_WORKER";
const DIR: &str = "SOFTVERBS_SOAK_DIR";

fn objects() -> [c_int; 6] {
    // SAFETY: the function is of that type.
    let count: unsafe extern "C" fn(*const c_char) -> c_int = unsafe {
        let count = libc::dlsym(libc::RTLD_DEFAULT, c"softverbs_count".as_ptr());
        assert!(!count.is_null(), "softverbs is not preloaded");
        std::mem::transmute(count)
    };
    let kinds = [c"cm_id", c"qp", c"cq", c"mr", c"pd", c"srq"];
    // SAFETY: strings.
    kinds.map(|kind: &CStr| unsafe { count(kind.as_ptr()) })
}

fn work(index: usize, seed: u64, dir: PathBuf) {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        before(info);
        std::process::abort();
    }));
    let mut rng = Rng::with_seed(seed);
    device();
    let first_fds = descriptors();
    let pd = Pd::new(device());
    let counter = Pages::new(PAGE);
    let access = LOCAL | REMOTE_READ | REMOTE_ATOMIC;
    let worker = Arc::new(Worker {
        shared: Some(Shared::new(&pd, &mut rng)),
        counter: Some((Mr::new(&pd, &counter, 0, PAGE, access), counter)),
        pd,
        dir: dir.clone(),
        stop: AtomicBool::new(false),
        end: AtomicBool::new(false),
        stats: Stats::default(),
        out: Mutex::new(()),
    });
    let listener = thread::spawn({
        let worker = worker.clone();
        move || listen(&worker, index)
    });
    let initiators: Vec<_> = (0..WORKERS * CONNECTIONS)
        .map(|i| {
            let (worker, seed) = (worker.clone(), rng.u64(..));
            thread::spawn(move || initiate(&worker, i % WORKERS, seed))
        })
        .collect();
    thread::spawn({
        let worker = worker.clone();
        move || {
            while !worker.end.load(Ordering::Relaxed) {
                worker.say_stats();
                thread::sleep(Duration::from_millis(100));
            }
        }
    });
    let mut lines = std::io::stdin().lines();
    // It ends with whoever started it.
    let Some(Ok(_)) = lines.next() else {
        std::process::exit(1);
    };
    worker.stop.store(true, Ordering::Relaxed);
    for initiator in initiators {
        initiator.join().unwrap();
    }
    worker.say_stats();
    worker.say("drained");
    let Some(Ok(_)) = lines.next() else {
        std::process::exit(1);
    };
    worker.end.store(true, Ordering::Relaxed);
    listener.join().unwrap();
    let mut worker = worker;
    let owned = loop {
        match Arc::try_unwrap(worker) {
            Ok(owned) => break owned,
            Err(shared) => worker = shared,
        }
        thread::yield_now();
    };
    let Worker {
        shared,
        counter,
        pd,
        ..
    } = owned;
    drop((shared, counter));
    drop(pd);
    // The device has a domain for those who bring none; links that end are waited for.
    until("nothing is left", LIMIT, || {
        thread::sleep(Duration::from_millis(10));
        objects() == [0, 0, 0, 0, 1, 0] && descriptors() <= first_fds + 2
    });
    // SAFETY: they look at what is allocated, and give back what is not.
    let allocated = unsafe {
        libc::malloc_trim(0);
        let info = libc::mallinfo2();
        info.uordblks + info.hblkhd
    };
    assert!(
        allocated < ALLOCATED,
        "{allocated} bytes are allocated still"
    );
    let resident = resident();
    assert!(resident < RESIDENT, "{resident} bytes are resident still");
    println!("ended {allocated} {resident}");
}

fn listen(worker: &Arc<Worker>, index: usize) {
    let channel = Channel::new();
    let id = Id::new(&channel);
    let port = id.listen().port();
    // Whoever reads it reads all of it.
    let name = worker.dir.join(index.to_string());
    let new = name.with_extension("new");
    fs::write(&new, format!("{port} {}", std::process::id())).unwrap();
    fs::rename(new, name).unwrap();
    let mut threads = vec![];
    while !worker.end.load(Ordering::Relaxed) {
        let Some(event) = channel.get_within(Duration::from_millis(50)) else {
            continue;
        };
        if event.kind != rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST {
            continue;
        }
        let id = Id(event.id);
        let hello: Hello = from_bytes(&event.private);
        if hello.target != std::process::id() {
            // SAFETY: the id waits for an answer.
            unsafe { rdma_sys::rdma_reject(id.0, ptr::null(), 0) };
            continue;
        }
        let worker = worker.clone();
        threads.push(thread::spawn(move || respond(&worker, id, hello)));
        threads.retain(|thread| !thread.is_finished());
    }
    for thread in threads {
        thread.join().unwrap();
    }
}

// ---- all of them ----

struct Process {
    index: usize,
    child: Child,
    lines: Receiver<String>,
    stats: [u64; 5],
    drained: bool,
    /// What it has allocated and resident in the end.
    ended: Option<[u64; 2]>,
}

struct Soak {
    dir: PathBuf,
    seconds: u64,
    seed: u64,
    started: u64,
    killed: HashSet<u32>,
    /// Peers that were lost, to be found among those that were killed.
    lost: Vec<u32>,
    totals: [u64; 5],
    processes: Vec<Process>,
}

impl Soak {
    fn start(&mut self, index: usize) -> Process {
        let seed = mix(self.seed ^ mix(self.started));
        self.started += 1;
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", NAME, "--nocapture"])
            .env("LD_PRELOAD", library::ours_file())
            .env(WORKER, format!("{index} {seed}"))
            .env(DIR, &self.dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let from = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in from.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Process {
            index,
            child,
            lines,
            stats: [0; 5],
            drained: false,
            ended: None,
        }
    }

    #[track_caller]
    fn fail(&mut self, what: &str) -> ! {
        for process in &mut self.processes {
            let _ = process.child.kill();
            let _ = process.child.wait();
        }
        let _ = fs::remove_dir_all(&self.dir);
        let again = fuzz::again("soak", NAME, self.seed);
        let seconds = self.seconds;
        panic!("{what}\nto run it again: {VARIABLE}={seconds} {again}");
    }

    /// Hears what all have to say, for some time or until all is well.
    fn hear(&mut self, time: Duration, until: impl Fn(&Process) -> bool) -> bool {
        let end = Instant::now() + time;
        loop {
            for i in 0..self.processes.len() {
                self.hear_one(i, Duration::from_millis(5));
                let process = &mut self.processes[i];
                if process.ended.is_none()
                    && let Some(status) = process.child.try_wait().unwrap()
                {
                    // Its last words may still be on their way; its end of the pipe is closed.
                    self.hear_one(i, LIMIT);
                    if self.processes[i].ended.is_none() {
                        let how = match status.signal() {
                            Some(signal) => format!("was killed by signal {signal}"),
                            None => format!("ended with {status}"),
                        };
                        self.fail(&format!("process {i} {how}, which nobody wanted"));
                    }
                }
            }
            if self.processes.iter().all(&until) {
                return true;
            }
            if Instant::now() > end {
                return false;
            }
        }
    }

    fn hear_one(&mut self, i: usize, time: Duration) {
        loop {
            let process = &mut self.processes[i];
            let line = match process.lines.recv_timeout(time) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
            };
            let mut words = line.split(' ');
            let word = words.next().unwrap_or("");
            let mut number = || words.next().and_then(|word| word.parse::<u64>().ok());
            match word {
                "stats" => process.stats = std::array::from_fn(|_| number().unwrap_or(0)),
                "lost" | "refused" => self.lost.push(number().unwrap_or(0) as u32),
                "drained" => process.drained = true,
                "ended" => process.ended = Some(std::array::from_fn(|_| number().unwrap_or(0))),
                // What the harness says.
                _ => {}
            }
        }
    }

    fn tell(&mut self, what: &str) {
        for i in 0..self.processes.len() {
            let stdin = self.processes[i].child.stdin.as_mut().unwrap();
            if writeln!(stdin, "{what}").is_err() {
                self.fail(&format!("process {i} does not listen"));
            }
        }
    }

    fn kill(&mut self, i: usize) {
        let index = self.processes[i].index;
        let new = self.start(index);
        let mut old = std::mem::replace(&mut self.processes[i], new);
        self.killed.insert(old.child.id());
        old.child.kill().unwrap();
        old.child.wait().unwrap();
        // What it had said before.
        std::mem::swap(&mut self.processes[i], &mut old);
        self.hear_one(i, LIMIT);
        std::mem::swap(&mut self.processes[i], &mut old);
        for (total, stat) in self.totals.iter_mut().zip(old.stats) {
            *total += stat;
        }
    }
}

const NAME: &str = "every_byte_is_right_however_long_it_goes_on";
const VARIABLE: &str = "SOFTVERBS_SOAK_SECONDS";

#[test]
fn every_byte_is_right_however_long_it_goes_on() {
    if let Ok(plan) = env::var(WORKER) {
        let (index, seed) = plan.split_once(' ').unwrap();
        let dir = env::var_os(DIR).unwrap();
        return work(index.parse().unwrap(), seed.parse().unwrap(), dir.into());
    }
    let seconds = env::var(VARIABLE).map_or(SECONDS, |text| {
        text.parse().expect("SOFTVERBS_SOAK_SECONDS is a number")
    });
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("soak-{}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    let seed = fuzz::only().unwrap_or(SEED);
    tell(&format!("soak: {seconds} s, seed {seed}"));
    let mut soak = Soak {
        dir,
        seconds,
        seed,
        started: 0,
        killed: HashSet::new(),
        lost: vec![],
        totals: [0; 5],
        processes: vec![],
    };
    for index in 0..WORKERS {
        let process = soak.start(index);
        soak.processes.push(process);
    }
    let mut rng = Rng::with_seed(seed);
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        soak.hear(Duration::from_millis(rng.u64(500..2500)), |_| false);
        // The first lives through it all.
        soak.kill(rng.usize(1..WORKERS));
    }
    soak.tell("stop");
    if !soak.hear(2 * LIMIT, |process| process.drained) {
        soak.fail("not all come to an end");
    }
    soak.tell("end");
    if !soak.hear(2 * LIMIT, |process| process.ended.is_some()) {
        soak.fail("not all end");
    }
    let ends = soak.processes.iter().filter_map(|process| process.ended);
    let [allocated, resident] = ends
        .reduce(|a, b| [a[0].max(b[0]), a[1].max(b[1])])
        .unwrap();
    let mut totals = soak.totals;
    for process in &mut soak.processes {
        for (total, stat) in totals.iter_mut().zip(process.stats) {
            *total += stat;
        }
        let status = process.child.wait().unwrap();
        assert!(status.success(), "process {}: {status}", process.index);
    }
    let unknown: Vec<_> = soak
        .lost
        .iter()
        .filter(|pid| !soak.killed.contains(pid))
        .collect();
    if !unknown.is_empty() {
        let what = format!("connections were lost to processes that nobody killed: {unknown:?}");
        soak.fail(&what);
    }
    let [operations, bytes, messages, sessions, verified] = totals;
    tell(&format!(
        "soak: {operations} operations, {} MiB, {messages} messages, {sessions} connections ended \
         by themselves, {verified} regions compared in the end; {} processes killed, {} \
         connections lost with them; at most {} KiB allocated and {} KiB \
         resident in the end",
        bytes >> 20,
        soak.killed.len(),
        soak.lost.len(),
        allocated >> 10,
        resident >> 10
    ));
    assert!(operations > 100, "only {operations} operations");
    assert!(!soak.killed.is_empty() && !soak.lost.is_empty() && verified > 0);
    fs::remove_dir_all(&soak.dir).unwrap();
}
