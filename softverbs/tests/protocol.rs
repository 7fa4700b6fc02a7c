//! Peers that speak the protocol well enough to be let in, and then do whatever they like.
//!
//! The program that is spoken to is a process of its own: a test starts itself once more, and tells
//! of the case that it was at if it crashes or hangs. In that process one peer after the other,
//! client or server, sends what chance makes of frames that are good, nearly good, or none, while
//! an honest connection goes on beside.

mod fuzz;
mod verbs;

use fuzz::{Cases, only, pick, pick_u64, tell};
use rdma_sys::*;
use softverbs::proto::frames::{
    AtomicOp, Flags, FlushKind, Frame, MAX_FIELDS, Nak, Params, Private, Remote, decode, encode,
};
use std::ffi::CStr;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use verbs::*;

const CASES: u64 = if cfg!(debug_assertions) { 1000 } else { 6000 };
/// Whatever is waited for takes a small part of that.
const LIMIT: Duration = Duration::from_secs(300);
/// How long a connection is waited for that the peer may never let come about, which is no failure.
const SOON: Duration = Duration::from_secs(1);
/// How long a peer waits for a program that takes nothing. It gives up then, which is no failure.
const GIVES_UP: Duration = Duration::from_secs(10);
/// What memory the program may need more after many cases than after some.
const GROWTH: usize = 16 << 20;

// ---- the memory of the program ----

const PART: usize = 16 * 1024;

/// The parts of its memory, some of which are for peers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// All may be done with it from afar.
    Open = 1,
    /// It may be read.
    Readable = 3,
    /// Only this side may use it.
    Private = 5,
    /// All may be done, by connections of another domain.
    Foreign = 7,
    /// As the first, but its addresses are aligned where its bytes are not.
    Odd = 9,
}
const PARTS: [Part; 5] = [
    Part::Open,
    Part::Readable,
    Part::Private,
    Part::Foreign,
    Part::Odd,
];
const ALL: usize = 11;
/// In the private part: what is received into, what is read into, what is sent.
const RECEIVED: usize = 4096;
const RECEIVES: usize = 4;
const READ: usize = RECEIVES * RECEIVED / 2;
const SENT: usize = READ + 4096;

impl Part {
    fn start(self) -> usize {
        self as usize * PART
    }
}

fn pattern(i: usize) -> u8 {
    (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[5]
}

struct Program {
    memory: Pages,
    before: Vec<u8>,
    regions: Vec<Mr>,
    pd: Pd,
    _foreign: Pd,
}

impl Program {
    fn new() -> Self {
        let memory = Pages::new(ALL * PART);
        let before: Vec<u8> = (0..memory.len()).map(pattern).collect();
        memory.part(0, memory.len()).copy_from_slice(&before);
        let (pd, foreign) = (Pd::new(device()), Pd::new(device()));
        let open = LOCAL | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC | FLUSH_GLOBAL;
        let regions = PARTS.map(|part| match part {
            Part::Open => Mr::new(&pd, &memory, part.start(), PART, open),
            Part::Readable => Mr::new(&pd, &memory, part.start(), PART, REMOTE_READ),
            Part::Private => Mr::new(&pd, &memory, part.start(), PART, LOCAL),
            Part::Foreign => Mr::new(&foreign, &memory, part.start(), PART, open),
            Part::Odd => Mr::new(&pd, &memory, part.start() + 4, PART - 4, open | ZERO_BASED),
        });
        Self {
            memory,
            before,
            regions: regions.into(),
            pd,
            _foreign: foreign,
        }
    }

    fn region(&self, part: Part) -> &Mr {
        let i = PARTS.iter().position(|one| *one == part).unwrap();
        &self.regions[i]
    }

    fn private(&self, at: usize, len: usize) -> ibv_sge {
        ibv_sge {
            addr: self.memory.addr() + (Part::Private.start() + at) as u64,
            length: len as u32,
            lkey: self.region(Part::Private).lkey(),
        }
    }

    /// What nobody may have written to is as it was.
    fn check(&self) {
        let may = [
            (Part::Open.start(), PART),
            (Part::Private.start(), SENT),
            (Part::Odd.start() + 4, PART - 4),
        ];
        let mut start = 0;
        let ends = may.iter().map(|(end, _)| *end).chain([self.memory.len()]);
        for (i, end) in ends.enumerate() {
            let (is, was) = (&self.memory.bytes()[start..end], &self.before[start..end]);
            if is != was {
                let at = start + is.iter().zip(was).take_while(|(is, was)| is == was).count();
                panic!("byte {at} was written, in part {}", at / PART);
            }
            start = may.get(i).map_or(end, |(start, len)| start + len);
        }
    }

    /// A place in it, or not.
    fn target(&self, rng: &mut fastrand::Rng, len: u64) -> Remote {
        let part = match rng.u8(..16) {
            0 => Part::Readable,
            1 => Part::Private,
            2 => Part::Foreign,
            3 | 4 => Part::Odd,
            _ => Part::Open,
        };
        let region = self.region(part);
        let base = match part {
            Part::Odd => 0,
            _ => self.memory.addr() + part.start() as u64,
        };
        let room = (PART as u64).saturating_sub(len);
        let offset = match rng.u8(..12) {
            0 => room,
            1 => room + 1,
            2 => u64::MAX - rng.u64(..PART as u64),
            3 => pick_u64(rng),
            _ => rng.u64(..=room) & !7,
        };
        let rkey = match rng.u8(..24) {
            0 => region.lkey(),
            1 => pick(rng),
            2 => region.rkey() ^ 1 << rng.u8(..32),
            _ => region.rkey(),
        };
        Remote {
            addr: base.wrapping_add(offset),
            rkey,
        }
    }
}

// ---- one of its connections ----

/// What has been posted and has to complete: once, and in order.
struct Connection<'a> {
    program: &'a Program,
    id: Id,
    cq: Cq,
    srq: Option<Srq>,
    receives: usize,
    received: usize,
    sends: Vec<Sent>,
    next: usize,
    established: bool,
    over: bool,
}

#[derive(Clone, Copy)]
struct Sent {
    op: Op,
    len: usize,
    signaled: bool,
}

const SENDS: usize = 16;
const RECEIVE: u64 = 1 << 32;

impl<'a> Connection<'a> {
    fn new(program: &'a Program, id: Id, rng: &mut fastrand::Rng) -> Self {
        let cq = queue(SENDS + 2 * RECEIVES);
        let srq = (rng.u8(..4) == 0).then(|| Srq::new(&program.pd, RECEIVES as u32));
        id.create_qp(&QpPlan {
            srq: srq.as_ref(),
            ..QpPlan::new(&program.pd, &cq, room_for(SENDS, RECEIVES, 64))
        });
        let mut connection = Self {
            program,
            id,
            cq,
            srq,
            receives: 0,
            received: 0,
            sends: vec![],
            next: 0,
            established: false,
            over: false,
        };
        for _ in 0..rng.usize(..=RECEIVES) {
            connection.receive(rng);
        }
        connection
    }

    fn receive(&mut self, rng: &mut fastrand::Rng) {
        if self.receives - self.received == RECEIVES {
            return;
        }
        let start = self.receives % RECEIVES * RECEIVED / 2;
        let len = rng.usize(..RECEIVED / 2);
        let cut = rng.usize(..=len);
        let sges = [
            self.program.private(start, cut),
            self.program.private(start + cut, len - cut),
        ];
        let id = RECEIVE | self.receives as u64;
        match &self.srq {
            Some(srq) => good("ibv_post_srq_recv", srq.recv(id, &sges)),
            None => assert_eq!(post_recvs(self.id.qp(), &[(id, sges.into())]), Ok(())),
        }
        self.receives += 1;
    }

    /// Asks the peer for something.
    fn send(&mut self, rng: &mut fastrand::Rng) {
        if self.sends.len() == SENDS {
            return;
        }
        let at = At {
            addr: pick_u64(rng),
            rkey: pick(rng),
        };
        let long = rng.usize(..4096);
        let (op, len) = match rng.u8(..9) {
            0 => (Op::Send, long),
            1 => (Op::SendImm(pick(rng)), long),
            2 => (Op::Write(at), long),
            3 => (Op::WriteImm(at, pick(rng)), long),
            4 => (Op::FetchAdd(at, pick_u64(rng)), 8),
            5 => (Op::CompareSwap(at, pick_u64(rng), 7), 8),
            6 => (Op::Flush(at, 100, GLOBAL, false), 0),
            _ => (Op::Read(at), long),
        };
        let start = if op.carries() { SENT } else { READ };
        let sge = (len > 0).then(|| self.program.private(start, len));
        let signaled = rng.bool();
        let request = Wr::new(self.sends.len() as u64, op, sge.into_iter().collect())
            .set(SIGNALED, signaled)
            .set(FENCE, rng.u8(..4) == 0)
            .set(SOLICITED, rng.bool());
        request.post(self.id.qp(), rng.bool());
        self.sends.push(Sent { op, len, signaled });
    }

    /// Takes what has completed.
    fn poll(&mut self) {
        let mut found = vec![];
        while self.cq.drain(&mut found) > 0 {}
        for wc in found {
            if wc.wr_id & RECEIVE != 0 {
                let number = wc.wr_id ^ RECEIVE;
                assert_eq!(number, self.received as u64, "receives complete in order");
                assert!(self.received < self.receives, "what was posted");
                self.received += 1;
                continue;
            }
            let number = wc.wr_id as usize;
            assert!(
                self.next <= number && number < self.sends.len(),
                "in order: {number}"
            );
            // Only what succeeds may say nothing, and only if it was asked to.
            let silent = self.sends[self.next..number]
                .iter()
                .all(|one| !one.signaled);
            assert!(silent, "request {number} completed before others");
            self.next = number + 1;
        }
    }

    /// Looks at what has happened to the connection.
    fn events(&mut self, channel: &Channel, limit: Duration) {
        use rdma_cm_event_type::*;
        let end = Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let Some(event) = channel.get_within(left.min(Duration::from_millis(20))) else {
                if left.is_zero() {
                    return;
                }
                continue;
            };
            assert_eq!(event.id, self.id.0, "an event of another connection");
            match event.kind {
                RDMA_CM_EVENT_ESTABLISHED => self.established = true,
                RDMA_CM_EVENT_DISCONNECTED
                | RDMA_CM_EVENT_UNREACHABLE
                | RDMA_CM_EVENT_REJECTED
                | RDMA_CM_EVENT_CONNECT_ERROR => self.over = true,
                RDMA_CM_EVENT_TIMEWAIT_EXIT => {}
                kind => panic!("event {kind}"),
            }
            if self.over || self.established && limit < LIMIT {
                return;
            }
        }
    }

    /// The peer has gone: all ends, as it should.
    fn end(mut self, channel: &Channel) {
        if !self.over {
            self.events(channel, LIMIT);
        }
        assert!(
            self.over,
            "the program is told that the connection has ended"
        );
        self.id.hang_up();
        assert_eq!(self.id.query().qp_state, ibv_qp_state::IBV_QPS_ERR);
        let start = Instant::now();
        loop {
            self.poll();
            let silent = self.sends[self.next..].iter().all(|one| !one.signaled);
            let all = self.srq.is_some() || self.received == self.receives;
            if silent && all {
                break;
            }
            assert!(
                start.elapsed() < LIMIT,
                "{} sends and {} receives do not complete",
                self.sends.len() - self.next,
                self.receives - self.received
            );
        }
        self.program.check();
        let Self { id, cq, srq, .. } = self;
        drop(id);
        drop((cq, srq));
    }
}

// ---- the peer ----

/// What is on the other end of the wire.
struct Peer<'a> {
    program: &'a Program,
    stream: TcpStream,
    rng: fastrand::Rng,
    /// The number of its next request.
    seq: u32,
    /// How many of the program's requests it has answered well.
    answered: usize,
    /// Of hundred things it does, how many are wrong.
    malice: u8,
    gone: bool,
    /// What follows the frame that was read last.
    payload: usize,
}

fn bytes(frame: &Frame, payload: usize) -> Vec<u8> {
    let mut out = [0; MAX_FIELDS];
    let len = encode(frame, payload, &mut out);
    out[..len].to_vec()
}

impl Peer<'_> {
    /// Sends, and takes what comes so that both sides get on; a program that does not want to hear
    /// more ends it.
    fn put(&mut self, mut bytes: &[u8]) {
        let start = Instant::now();
        while !bytes.is_empty() && !self.gone {
            match self.stream.write(bytes) {
                Ok(n) => bytes = &bytes[n..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.take();
                    thread::yield_now();
                    self.gone |= start.elapsed() > GIVES_UP;
                }
                Err(_) => self.gone = true,
            }
        }
    }

    fn take(&mut self) {
        let mut room = [0; 16 * 1024];
        loop {
            match self.stream.read(&mut room) {
                Ok(0) => self.gone = true,
                Ok(_) => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => self.gone = true,
            }
            return;
        }
    }

    /// The next frame, before anything but that comes.
    fn frame(&mut self) -> Option<Frame> {
        let mut got = vec![];
        let start = Instant::now();
        while start.elapsed() < LIMIT {
            let mut one = [0];
            match self.stream.read(&mut one) {
                Ok(0) => return None,
                Ok(_) => got.push(one[0]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => thread::yield_now(),
                Err(_) => return None,
            }
            match decode(&got).expect("the program sends frames") {
                None => {}
                Some((frame, _, payload)) => {
                    self.payload = payload;
                    return Some(frame);
                }
            }
        }
        panic!("the program does not answer");
    }

    fn params(&mut self) -> Params {
        let rng = &mut self.rng;
        Params {
            qp_num: rng.u32(..),
            responder_resources: rng.u8(..20),
            initiator_depth: rng.u8(..20),
            flow_control: rng.u8(..),
            retry_count: rng.u8(..),
            rnr_retry_count: rng.u8(..),
            srq: rng.u8(..),
        }
    }

    fn private(&mut self) -> Private {
        let data = [7; 56];
        Private::new(&data[..self.rng.usize(..=56)], 56).unwrap()
    }

    /// A message to the program, good or bad as the target is.
    fn request(&mut self, seq: u32) -> Vec<u8> {
        let rng = &mut self.rng;
        let kind = rng.u8(..7);
        let len = match rng.u8(..8) {
            0 => 0,
            1 => 8,
            2 => PART,
            _ => rng.usize(..2048),
        };
        let imm = pick(rng);
        let at = self.program.target(rng, len as u64);
        let cell = self.program.target(rng, 8);
        match kind {
            // In up to three pieces.
            0 | 1 => {
                let mut out = vec![];
                let mut done = 0;
                let pieces = rng.usize(1..4);
                let with_imm = rng.u8(..4) == 0;
                for i in 1..=pieces {
                    let part = if i == pieces {
                        len - done
                    } else {
                        rng.usize(..=len - done)
                    };
                    let last = part == len - done;
                    let mut flags = Flags::empty();
                    flags.set(Flags::FIRST, i == 1);
                    flags.set(Flags::LAST, last);
                    flags.set(Flags::IMM, with_imm);
                    flags.set(Flags::SOLICITED, rng.bool());
                    let frame = if kind == 0 {
                        Frame::Send { seq, flags, imm }
                    } else {
                        let at = Remote {
                            addr: at.addr.wrapping_add(done as u64),
                            ..at
                        };
                        let left = (len - done) as u32;
                        Frame::Write {
                            seq,
                            flags,
                            imm,
                            at,
                            left,
                        }
                    };
                    out.extend(bytes(&frame, part));
                    out.resize(out.len() + part, 0x5a);
                    done += part;
                    if last {
                        break;
                    }
                }
                out
            }
            2 => bytes(
                &Frame::Read {
                    seq,
                    at,
                    len: len as u32,
                },
                0,
            ),
            3 | 4 => {
                let op = if kind == 3 {
                    AtomicOp::FetchAdd(rng.u64(..))
                } else {
                    AtomicOp::CompareSwap {
                        compare: rng.u64(..),
                        swap: rng.u64(..),
                    }
                };
                bytes(&Frame::Atomic { seq, at: cell, op }, 0)
            }
            5 => {
                let write = Frame::AtomicWrite {
                    seq,
                    flags: Flags::empty(),
                    at: cell,
                    value: [0x5a; 8],
                };
                bytes(&write, 0)
            }
            _ => {
                let kinds = [FlushKind::Global, FlushKind::Persistent, FlushKind::Both];
                let flush = Frame::Flush {
                    seq,
                    flags: Flags::empty(),
                    at,
                    len: len as u64,
                    kind: kinds[rng.usize(..8).min(2).saturating_sub(1)],
                    whole: rng.bool(),
                };
                bytes(&flush, 0)
            }
        }
    }

    /// The answer that the program waits for.
    fn answer(&mut self, connection: &Connection) -> Vec<u8> {
        let seq = self.answered as u32;
        let Some(sent) = connection.sends.get(self.answered) else {
            return vec![];
        };
        self.answered += 1;
        match sent.op {
            Op::Read(_) => self.data(seq, sent.len),
            Op::FetchAdd(..) | Op::CompareSwap(..) => {
                let value = self.rng.u64(..);
                bytes(&Frame::Value { seq, value }, 0)
            }
            _ => bytes(&Frame::Ack(seq), 0),
        }
    }

    fn data(&mut self, seq: u32, len: usize) -> Vec<u8> {
        let mut out = vec![];
        let cut = self.rng.usize(..=len);
        for part in [cut, len - cut] {
            let last = part + out.len() >= len;
            let flags = if last { Flags::LAST } else { Flags::empty() };
            if part > 0 || last {
                out.extend(bytes(&Frame::Data { seq, flags }, part));
                out.resize(out.len() + part, 0xda);
            }
            if last {
                break;
            }
        }
        out
    }

    /// What no honest peer says, or not now.
    fn nonsense(&mut self, connection: &Connection) -> Vec<u8> {
        let near = match self.rng.u8(..4) {
            0 => pick(&mut self.rng),
            _ => self.rng.u32(..SENDS as u32 + 2),
        };
        match self.rng.u8(..20) {
            0 => {
                let seq = self.seq.wrapping_add(pick(&mut self.rng));
                self.request(seq)
            }
            1 => bytes(&Frame::Ack(near), 0),
            2 | 3 => {
                let naks = [Nak::InvalidRequest, Nak::AccessError, Nak::OperationError];
                bytes(&Frame::Nak(near, naks[self.rng.usize(..3)]), 0)
            }
            4..=6 => {
                let timer = self.rng.u8(..32);
                let mut out = bytes(&Frame::NotReady { seq: near, timer }, 0);
                if self.rng.bool() {
                    out.extend(bytes(&Frame::ReadyAgain, 0));
                }
                out
            }
            7 => bytes(&Frame::ReadyAgain, 0),
            8 => bytes(&Frame::Failed, 0),
            9 | 10 => {
                let len = connection
                    .sends
                    .get(near as usize)
                    .map_or(0, |sent| sent.len);
                let off = self.rng.usize(..3);
                self.data(near, (len + off).saturating_sub(1))
            }
            11 => {
                let value = self.rng.u64(..);
                bytes(&Frame::Value { seq: near, value }, 0)
            }
            12 => {
                let (params, private) = (self.params(), self.private());
                let frames = [
                    Frame::Request(params, private),
                    Frame::Reply(params, private),
                    Frame::Reject(self.rng.u16(..), private),
                    Frame::Ready,
                    Frame::Disconnect,
                    Frame::Disconnected,
                ];
                bytes(&frames[self.rng.usize(..frames.len())], 0)
            }
            13 => {
                let mut out = vec![0; self.rng.usize(1..64)];
                self.rng.fill(&mut out);
                out
            }
            14 => {
                // More reads than were agreed.
                let mut out = vec![];
                for i in 0..64 {
                    let seq = self.seq.wrapping_add(i);
                    let at = self.program.target(&mut self.rng, 8);
                    let len = pick(&mut self.rng);
                    out.extend(bytes(&Frame::Read { seq, at, len }, 0));
                }
                out
            }
            15 => {
                let frame = Frame::Read {
                    seq: self.seq,
                    at: self.program.target(&mut self.rng, 0),
                    len: pick(&mut self.rng),
                };
                bytes(&frame, 0)
            }
            // Cut off, or with something changed.
            16 => {
                let mut out = self.request(self.seq);
                out.truncate(self.rng.usize(1..=out.len()));
                out
            }
            _ => {
                let mut out = if self.rng.bool() {
                    self.request(self.seq)
                } else {
                    self.data(near, 16)
                };
                for _ in 0..self.rng.usize(1..4) {
                    let i = self.rng.usize(..out.len().min(40));
                    out[i] = self.rng.u8(..);
                }
                out
            }
        }
    }

    /// Does one thing after the other.
    fn act(&mut self, connection: &mut Connection) {
        for _ in 0..self.rng.usize(..60) {
            if self.gone {
                return;
            }
            let out = match self.rng.u8(..100) {
                n if n < self.malice => {
                    let one = self.nonsense(connection);
                    let times = if self.rng.u8(..8) == 0 { 100 } else { 1 };
                    one.repeat(times)
                }
                n if n % 2 == 0 => {
                    let one = self.request(self.seq);
                    self.seq = self.seq.wrapping_add(1);
                    one
                }
                _ => self.answer(connection),
            };
            self.put(&out);
            match self.rng.u8(..8) {
                0 => self.take(),
                1 => connection.poll(),
                2 => connection.receive(&mut self.rng),
                3 => connection.send(&mut self.rng),
                _ => {}
            }
        }
    }

    /// Goes, one way or the other.
    fn leave(self) {
        let how = self.rng.clone().u8(..3);
        match how {
            0 => {
                let _ = self.stream.shutdown(Shutdown::Write);
            }
            // What is unread makes the end a reset.
            1 => {}
            _ => {
                let mut peer = self;
                peer.take();
            }
        }
    }
}

// ---- cases ----

/// The program as a server: its listener, and where that is told of events.
struct Server {
    _id: Id,
    address: SocketAddr,
    channel: Channel,
}

impl Server {
    fn new() -> Self {
        let channel = Channel::new();
        let id = Id::new(&channel);
        let address = id.listen();
        Self {
            _id: id,
            address,
            channel,
        }
    }
}

fn peer<'a>(program: &'a Program, stream: TcpStream, rng: &mut fastrand::Rng) -> Peer<'a> {
    stream.set_nonblocking(true).unwrap();
    stream.set_nodelay(true).unwrap();
    Peer {
        program,
        stream,
        rng: rng.fork(),
        seq: 0,
        answered: 0,
        malice: [2, 10, 40, 90][rng.usize(..4)],
        gone: false,
        payload: 0,
    }
}

fn queue(len: usize) -> Cq {
    Cq::new(device(), len as i32, None)
}

fn agreement(rng: &mut fastrand::Rng) -> ConnParam {
    ConnParam {
        responder_resources: rng.u8(..17),
        initiator_depth: rng.u8(..17),
        rnr_retry: rng.u8(..8),
        ..ConnParam::default()
    }
}

/// What a case came to.
#[derive(Default)]
struct Count {
    established: u64,
    refused: u64,
    completions: u64,
}

fn hostile_client(program: &Program, server: &Server, rng: &mut fastrand::Rng, count: &mut Count) {
    let stream = TcpStream::connect(server.address).unwrap();
    let mut peer = peer(program, stream, rng);
    let mut request = bytes(&Frame::Request(peer.params(), peer.private()), 0);
    if rng.u8(..16) == 0 {
        let i = rng.usize(..request.len().min(24));
        request[i] ^= 1 << rng.u8(..8);
    }
    let good = matches!(decode(&request), Ok(Some((Frame::Request(..), ..))));
    peer.put(&request);
    if !good {
        count.refused += 1;
        // A length that says that more follows is waited for, but not for ever.
        if decode(&request) != Ok(None) {
            until("a stranger is shown the door", LIMIT, || {
                peer.take();
                peer.gone
            });
        }
        return;
    }
    let event = server
        .channel
        .get_within(LIMIT)
        .expect("a request to connect");
    assert_eq!(
        event.kind,
        rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST
    );
    let mut connection = Connection::new(program, Id(event.id), rng);
    // It may send before it is let in.
    if rng.u8(..16) == 0 {
        let early = peer.nonsense(&connection);
        peer.put(&early);
    }
    connection.id.accept(&agreement(rng));
    if let Some(Frame::Reply(..)) = peer.frame() {
        if rng.u8(..8) > 0 {
            peer.put(&bytes(&Frame::Ready, 0));
            connection.events(&server.channel, SOON);
        }
        for _ in 0..rng.usize(..SENDS) {
            connection.send(rng);
        }
        peer.act(&mut connection);
    }
    peer.leave();
    finish(connection, &server.channel, count);
}

fn hostile_server(
    program: &Program,
    listener: &TcpListener,
    channel: &Channel,
    rng: &mut fastrand::Rng,
    count: &mut Count,
) {
    let id = Id::new(channel);
    id.resolve(channel, &listener.local_addr().unwrap());
    let mut connection = Connection::new(program, id, rng);
    connection.id.connect(&agreement(rng));
    let (stream, _) = listener.accept().unwrap();
    let mut peer = peer(program, stream, rng);
    let request = peer.frame();
    assert!(matches!(request, Some(Frame::Request(..))), "{request:?}");
    let (params, private) = (peer.params(), peer.private());
    let mut reply = match rng.u8(..16) {
        0 => bytes(&Frame::Reject(28, private), 0),
        1 => peer.nonsense(&connection),
        _ => bytes(&Frame::Reply(params, private), 0),
    };
    if rng.u8(..16) == 0 {
        let i = rng.usize(..reply.len());
        reply[i] ^= 1 << rng.u8(..8);
    }
    peer.put(&reply);
    if let Ok(Some((Frame::Reply(..), ..))) = decode(&reply) {
        connection.events(channel, SOON);
        for _ in 0..rng.usize(..SENDS) {
            connection.send(rng);
        }
        peer.act(&mut connection);
    }
    peer.leave();
    finish(connection, channel, count);
}

fn finish(connection: Connection, channel: &Channel, count: &mut Count) {
    count.established += u64::from(connection.established);
    count.completions += (connection.received + connection.next) as u64;
    connection.end(channel);
}

// ---- the honest connection beside ----

struct Honest {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    thread: thread::JoinHandle<Duration>,
}

impl Honest {
    fn start() -> Self {
        let (stop, rounds) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let thread = thread::spawn({
            let (stop, rounds) = (stop.clone(), rounds.clone());
            move || Self::run(&stop, &rounds)
        });
        Self {
            stop,
            rounds,
            thread,
        }
    }

    /// Writes, reads back and compares until it is told to stop; says how long a round took at most.
    fn run(stop: &AtomicBool, rounds: &AtomicU64) -> Duration {
        const LEN: usize = 8192;
        let server = Server::new();
        let (pd, channel) = (Pd::new(device()), Channel::new());
        let memory = Pages::new(3 * LEN);
        let all = LOCAL | REMOTE_WRITE | REMOTE_READ;
        let region = Mr::new(&pd, &memory, 0, 3 * LEN, all);
        let (cq, server_cq) = (queue(16), queue(16));
        let plan = |cq| QpPlan::new(&pd, cq, room_for(8, 1, 0));
        let param = ConnParam {
            responder_resources: 4,
            initiator_depth: 4,
            ..ConnParam::default()
        };
        let client = Id::new(&channel);
        client.resolve(&channel, &server.address);
        client.create_qp(&plan(&cq));
        client.connect(&param);
        let request = server
            .channel
            .get_within(LIMIT)
            .expect("a request to connect");
        let other = Id(request.id);
        other.create_qp(&plan(&server_cq));
        other.accept(&param);
        for channel in [&channel, &server.channel] {
            let event = channel.get_within(LIMIT).expect("it is established");
            assert_eq!(event.kind, rdma_cm_event_type::RDMA_CM_EVENT_ESTABLISHED);
        }
        let at = At {
            addr: memory.addr(),
            rkey: region.rkey(),
        };
        let sge = |start| ibv_sge {
            addr: memory.addr() + start as u64,
            length: LEN as u32,
            lkey: region.lkey(),
        };
        let mut longest = Duration::ZERO;
        while !stop.load(Ordering::Relaxed) {
            let start = Instant::now();
            let round = rounds.fetch_add(1, Ordering::Relaxed);
            memory.part(LEN, LEN).fill(round as u8);
            memory.part(2 * LEN, LEN).fill(!round as u8);
            for (id, op, from) in [(0, Op::Write(at), LEN), (1, Op::Read(at), 2 * LEN)] {
                let request = Wr::new(id, op, vec![sge(from)]).set(SIGNALED, id == 1);
                request.post(client.qp(), false);
            }
            let mut found = vec![];
            until("the honest connection goes on", LIMIT, || {
                cq.drain(&mut found) > 0
            });
            assert_eq!(
                (found[0].wr_id, found[0].status),
                (1, ibv_wc_status::IBV_WC_SUCCESS)
            );
            assert!(
                memory
                    .part(2 * LEN, LEN)
                    .iter()
                    .all(|byte| *byte == round as u8)
            );
            longest = longest.max(start.elapsed());
        }
        longest
    }

    fn end(self) -> (u64, Duration) {
        self.stop.store(true, Ordering::Relaxed);
        let longest = self.thread.join().unwrap();
        (self.rounds.load(Ordering::Relaxed), longest)
    }
}

fn objects() -> Vec<i32> {
    let kinds = [c"cm_id", c"qp", c"cq", c"mr", c"pd", c"srq"];
    let count = |kind: &CStr| {
        // SAFETY: a string.
        unsafe { softverbs::exports::softverbs_count(kind.as_ptr()) }
    };
    kinds.map(count).into()
}

// ---- tests ----

#[test]
fn hostile_peers_harm_nobody_but_themselves() {
    const NAME: &str = "hostile_peers_harm_nobody_but_themselves";
    fuzz::in_child("protocol", NAME, || {
        device();
        let server = Server::new();
        let program = Program::new();
        let (channel, listener) = (Channel::new(), TcpListener::bind("127.0.0.1:0").unwrap());
        let honest = Honest::start();
        let mut count = Count::default();
        let mut cases = Cases::new("protocol", NAME, CASES);
        let mut before = None;
        let mut largest = 0;
        while let Some((seed, rng)) = cases.one() {
            fuzz::at(seed);
            if rng.bool() {
                hostile_client(&program, &server, rng, &mut count);
            } else {
                hostile_server(&program, &listener, &channel, rng, &mut count);
            }
            program.check();
            if cases.done() == CASES / 5 {
                before = Some(resident());
            }
            largest = resident().max(largest);
        }
        let (rounds, longest) = honest.end();
        if let Some(before) = before {
            let grown = resident().saturating_sub(before);
            assert!(grown < GROWTH, "memory grew from {before} by {grown} bytes");
            assert!(
                count.established > CASES / 2,
                "{} connections",
                count.established
            );
            assert!(rounds > 100, "only {rounds} honest rounds");
        }
        cases.tell(&format!(
            "hostile peers: {} connections, {} refused, {} completions while they lasted; beside \
             them {rounds} honest rounds, the longest of {longest:.1?}; at most {} KiB of memory",
            count.established,
            count.refused,
            count.completions,
            largest / 1024
        ));
        drop((server, channel, program));
        // The device has a domain for those who bring none.
        until("all objects are destroyed", LIMIT, || {
            objects() == [0, 0, 0, 0, 1, 0]
        });
    });
}

#[test]
fn what_is_not_taken_off_is_not_kept_for_ever() {
    const NAME: &str = "what_is_not_taken_off_is_not_kept_for_ever";
    /// So much a peer sends without reading anything.
    const SENT: usize = if cfg!(debug_assertions) {
        4 << 20
    } else {
        48 << 20
    };
    const MOST: usize = 3 << 20;
    fuzz::in_child("protocol", NAME, || {
        device();
        let program = Program::new();
        let server = Server::new();
        let open = Remote {
            addr: program.memory.addr() + Part::Open.start() as u64,
            rkey: program.region(Part::Open).rkey(),
        };
        let (seq, imm, flags) = (0, 0, Flags::FIRST | Flags::LAST);
        let zero = |seq| Frame::Read {
            seq,
            at: open,
            len: 0,
        };
        let long = |seq| Frame::Read {
            seq,
            at: open,
            len: PART as u32,
        };
        let write = |seq| Frame::Write {
            seq,
            flags: flags | Flags::IMM,
            imm,
            at: open,
            left: 0,
        };
        type Storm<'a> = (&'a str, Box<dyn Fn(u32) -> Frame + 'a>);
        let storms: [Storm; 9] = [
            ("send", Box::new(|_| Frame::Send { seq, flags, imm })),
            ("write with immediate", Box::new(|_| write(0))),
            ("read of nothing", Box::new(zero)),
            ("read", Box::new(long)),
            ("failed", Box::new(|_| Frame::Failed)),
            ("not ready", Box::new(|_| Frame::NotReady { seq, timer: 0 })),
            ("ready again", Box::new(|_| Frame::ReadyAgain)),
            ("disconnect", Box::new(|_| Frame::Disconnect)),
            (
                "refused",
                Box::new(|seq| Frame::Read {
                    seq,
                    at: Remote { addr: 0, rkey: 0 },
                    len: 1,
                }),
            ),
        ];
        let mut rng = fastrand::Rng::with_seed(1);
        for (i, (name, storm)) in storms.iter().enumerate() {
            fuzz::at(i as u64);
            let stream = TcpStream::connect(server.address).unwrap();
            let mut peer = peer(&program, stream, &mut rng);
            let params = Params {
                initiator_depth: 8,
                responder_resources: 8,
                ..peer.params()
            };
            peer.put(&bytes(&Frame::Request(params, Private::NONE), 0));
            let event = server
                .channel
                .get_within(LIMIT)
                .expect("a request to connect");
            let cq = queue(4);
            let id = Id(event.id);
            id.create_qp(&QpPlan::new(&program.pd, &cq, room_for(4, 4, 0)));
            let param = ConnParam {
                responder_resources: 8,
                initiator_depth: 8,
                ..ConnParam::default()
            };
            id.accept(&param);
            peer.frame();
            peer.put(&bytes(&Frame::Ready, 0));
            let event = server.channel.get_within(LIMIT).expect("it is established");
            assert_eq!(event.kind, rdma_cm_event_type::RDMA_CM_EVENT_ESTABLISHED);
            let before = resident();
            let mut most = 0;
            let (mut sent, mut number) = (0, 0);
            let mut quiet = Instant::now();
            // Until it has said all, is thrown out, or is not listened to any more.
            while sent < SENT && quiet.elapsed() < Duration::from_millis(300) {
                let mut out = vec![];
                for _ in 0..1000 {
                    out.extend(bytes(&storm(number), 0));
                    number = number.wrapping_add(1);
                }
                let mut left = &out[..];
                while !left.is_empty() && quiet.elapsed() < Duration::from_millis(300) {
                    match peer.stream.write(left) {
                        Ok(n) => {
                            left = &left[n..];
                            quiet = Instant::now();
                        }
                        Err(error) if error.kind() == ErrorKind::WouldBlock => thread::yield_now(),
                        Err(_) => sent = SENT,
                    }
                    if sent == SENT {
                        break;
                    }
                }
                sent = SENT.min(sent + out.len());
                most = most.max(resident().saturating_sub(before));
            }
            assert!(most < MOST, "after {number} of {name}, {most} bytes more");
            tell(&format!(
                "protocol, {NAME}: {name}, {number} times: {} KiB more",
                most / 1024
            ));
            drop(peer);
            program.check();
            let ended = server.channel.get_within(LIMIT).expect("it has ended").kind;
            assert_eq!(ended, rdma_cm_event_type::RDMA_CM_EVENT_DISCONNECTED);
        }
    });
}

#[test]
fn those_who_say_nothing_are_let_go() {
    const NAME: &str = "those_who_say_nothing_are_let_go";
    const MANY: usize = 300;
    fuzz::in_child("protocol", NAME, || {
        if only().is_some() {
            return;
        }
        device();
        let server = Server::new();
        let before = descriptors();
        let silent: Vec<TcpStream> = (0..MANY)
            .map(|i| {
                let mut stream = TcpStream::connect(server.address).unwrap();
                // Half a greeting is none.
                stream.write_all(&[44, 0, 0, 0, 1, 0, 1][..i % 8]).unwrap();
                stream
            })
            .collect();
        until("all have been let in", LIMIT, || {
            descriptors() >= before + 2 * MANY
        });
        // One that has something to say comes through.
        let (channel, mut one) = (Channel::new(), None);
        let id = Id::new(&channel);
        id.resolve(&channel, &server.address);
        let cq = queue(4);
        let pd = Pd::new(device());
        id.create_qp(&QpPlan::new(&pd, &cq, room_for(1, 1, 0)));
        let param = ConnParam {
            responder_resources: 1,
            initiator_depth: 1,
            ..ConnParam::default()
        };
        id.connect(&param);
        until("it is heard", LIMIT, || {
            one = server.channel.get_within(Duration::from_millis(10));
            one.is_some()
        });
        drop((id, one.map(|event| Id(event.id))));
        // They are all gone in time, though they hold on.
        until("those who say nothing are gone", 2 * LIMIT, || {
            thread::sleep(Duration::from_millis(20));
            descriptors() <= before + MANY + 3
        });
        drop(silent);
        tell(&format!("protocol, {NAME}: {MANY} gone"));
    });
}

#[test]
fn a_message_that_was_not_taken_begins_anew() {
    const NAME: &str = "a_message_that_was_not_taken_begins_anew";
    /// More than a link takes if nobody reads.
    const LEN: usize = 32 << 20;
    fuzz::in_child("protocol", NAME, || {
        device();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (pd, channel, cq) = (Pd::new(device()), Channel::new(), queue(4));
        let memory = Pages::new(LEN);
        let mut rng = fastrand::Rng::with_seed(1);
        rng.fill(memory.part(0, LEN));
        let region = Mr::new(&pd, &memory, 0, LEN, LOCAL);
        let id = Id::new(&channel);
        id.resolve(&channel, &listener.local_addr().unwrap());
        id.create_qp(&QpPlan {
            sig_all: true,
            ..QpPlan::new(&pd, &cq, room_for(4, 1, 0))
        });
        let param = ConnParam {
            responder_resources: 1,
            initiator_depth: 1,
            ..ConnParam::default()
        };
        id.connect(&param);
        let (stream, _) = listener.accept().unwrap();
        let program = Program::new();
        let mut peer = peer(&program, stream, &mut rng);
        peer.frame();
        let reply = Frame::Reply(
            Params {
                rnr_retry_count: 7,
                ..peer.params()
            },
            Private::NONE,
        );
        peer.put(&bytes(&reply, 0));
        let event = channel.get_within(LIMIT).expect("it is established");
        let established = rdma_cm_event_type::RDMA_CM_EVENT_ESTABLISHED;
        assert_eq!(event.kind, established);
        // The second of them is the one that nobody takes.
        for (i, len) in [8, LEN].into_iter().enumerate() {
            let sge = ibv_sge {
                addr: memory.addr(),
                length: len as u32,
                lkey: region.lkey(),
            };
            Wr::new(i as u64, Op::Send, vec![sge]).post(id.qp(), false);
        }
        peer.stream.set_nonblocking(false).unwrap();
        peer.stream.set_read_timeout(Some(LIMIT)).unwrap();
        // Reads frames until a message has come whole.
        let mut got = vec![];
        let mut times = 0;
        let mut next = |peer: &mut Peer, wanted: u32| loop {
            let frame = peer.frame().expect("the message comes");
            let Frame::Send { seq, flags, .. } = frame else {
                assert_eq!(frame, Frame::Ready);
                continue;
            };
            if flags.contains(Flags::FIRST) && seq == wanted {
                got.clear();
                times += 1;
            }
            let start = got.len();
            got.resize(start + peer.payload, 0);
            peer.stream.read_exact(&mut got[start..]).unwrap();
            if times == 1 && wanted == 1 {
                let timer = 0;
                peer.put(&bytes(&Frame::NotReady { seq, timer }, 0));
                peer.put(&bytes(&Frame::ReadyAgain, 0));
                times += 1;
            } else if flags.contains(Flags::LAST) && seq == wanted {
                return (std::mem::take(&mut got), std::mem::take(&mut times));
            }
        };
        let (message, _) = next(&mut peer, 0);
        assert_eq!(message, memory.bytes()[..8]);
        let (message, times) = next(&mut peer, 1);
        assert_eq!(times, 3, "it begins anew");
        assert!(message == memory.bytes(), "all of it is right");
        assert!(cq.drain(&mut vec![]) == 1, "the first was carried out");
        peer.put(&bytes(&Frame::Ack(1), 0));
        let mut found = vec![];
        until("the second is carried out", LIMIT, || {
            cq.drain(&mut found) > 0
        });
        assert_eq!(
            (found[0].wr_id, found[0].status),
            (1, ibv_wc_status::IBV_WC_SUCCESS)
        );
        drop(peer);
        drop(id);
    });
}
