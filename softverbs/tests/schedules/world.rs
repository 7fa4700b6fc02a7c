//! Two ends in one thread, and the model that what they do is checked against.
//!
//! The numbers of rules are those of docs/model.md.

use super::end::{
    FRESH, LOCAL, Program, Receive, Request, Told, User, WORDS, WORDS_LEN, has_pattern,
};
use super::stats::{Seen, Stats};
use super::steps::{A, Access, B, End, Flaw, Kind, Post, Schedule, Setup, Step};
use super::wire::Wire;
use softverbs::proto::frames::{AtomicOp, Flags, Frame, Nak, Params, Private};
use softverbs::proto::{
    Caps, Completion, Connection, LinkState, Memory, Op, Opcode, Order, Phase, Qp, QpState, Right,
    SendWqe, Status,
};
use std::time::{Duration, Instant};

const MAX_RECV: usize = 16;
const MAX_SGE: usize = 3;
const MAX_INLINE: usize = 300;
/// 0.64 ms.
const MIN_RNR_TIMER: u8 = 12;
const RNR_TIME: Duration = Duration::from_micros(640);
/// Most messages fit.
const LONG_RECEIVE: u32 = 9000;
/// More turns than any schedule takes to come to rest.
const TURNS: usize = 1000;

/// What is checked of one end.
#[derive(Default)]
struct Model {
    /// The number of the request that is 0 on the wire.
    base: usize,
    /// The request that completes next.
    next: usize,
    /// All requests before this one are known to have been carried out.
    confirmed: usize,
    /// A request of this end has ended badly.
    errored: bool,
    receive_errored: bool,
    /// The receive that completes next.
    next_receive: usize,
    /// The request of the other end that takes the next receive.
    next_message: usize,
    /// The first request of the other end that may be the next order.
    next_order: usize,
    /// What the words are once all before the next order has been carried out.
    words: [u64; WORDS_LEN],
    /// What they were when the connection began.
    first_words: [u64; WORDS_LEN],
    /// Reads and atomics that have been sent and not been answered.
    reads: Vec<usize>,
    /// All requests before this one have been answered, but for reads.
    acked: usize,
    /// The request that may not be sent again before that time, or before a receive is there.
    rnr_wait: Option<(usize, Option<Instant>)>,
    /// The request up to which the program has polled.
    polled: usize,
    /// The program has done something that fails the queue pair.
    cause: bool,
    /// A NAK has been sent.
    refused: bool,
    failed: bool,
    failures: u32,
    /// The other end has been told of the failure.
    said_failed: bool,
    abandoned: bool,
    established: bool,
    disconnected: bool,
    /// How many of the events have been looked at.
    told: usize,
}

pub struct World<'a> {
    setup: Setup,
    now: Instant,
    conns: [Connection; 2],
    programs: [Program; 2],
    wires: [Wire; 2],
    models: [Model; 2],
    stats: &'a mut Stats,
    bytes: Vec<u8>,
    frames: Vec<Frame>,
    moved: bool,
    /// The link is, or was, open.
    open: bool,
}

/// Runs a schedule; fails with the first rule that is broken.
pub fn run(schedule: &Schedule, stats: &mut Stats) -> Result<(), String> {
    let mut world = World::new(schedule.setup, stats);
    let steps = &schedule.steps;
    if schedule.setup.again {
        let (first, second) = steps.split_at(steps.len() / 2);
        world.round(first)?;
        if world.connect_again() {
            world.stats.add(Seen::ConnectedAgain);
            world.round(second)?;
        }
        Ok(())
    } else {
        world.round(steps)
    }
}

fn other(end: End) -> End {
    1 - end
}

fn access(access: Access) -> u32 {
    let all = [
        Right::Read,
        Right::Write,
        Right::Atomic,
        Right::FlushGlobal,
        Right::FlushPersistent,
    ];
    let without = match access {
        Access::All => 0,
        Access::NoWrite => Right::Write.bit(),
        Access::NoRead => Right::Read.bit(),
        Access::NoAtomic => Right::Atomic.bit(),
    };
    all.into_iter().map(Right::bit).sum::<u32>() & !without
}

macro_rules! check {
    ($world:expr, $end:expr, $condition:expr, $($text:tt)*) => {
        if !$condition {
            $world.programs[$end].fault(|| format!($($text)*));
        }
    };
}

impl<'a> World<'a> {
    fn new(setup: Setup, stats: &'a mut Stats) -> Self {
        let program = |end: End| Program::new(end, setup.srq[end], setup.watches);
        let mut world = World {
            setup,
            now: Instant::now(),
            conns: Default::default(),
            programs: [program(A), program(B)],
            wires: Default::default(),
            models: Default::default(),
            stats,
            bytes: vec![],
            frames: vec![],
            moved: false,
            open: false,
        };
        for end in [A, B] {
            let caps = Caps {
                max_send_wr: setup.max_wr,
                max_recv_wr: MAX_RECV,
                max_send_sge: MAX_SGE,
                max_recv_sge: 2,
                max_inline: MAX_INLINE,
                max_reads: 16,
                srq: setup.srq[end],
            };
            let mut qp = Qp::new(end as u32 + 1, &caps, 0).expect("there is memory");
            qp.initialize(access(setup.access[end]), 14)
                .expect("it is in RESET");
            qp.responder.min_rnr_timer = MIN_RNR_TIMER;
            world.conns[end].qp = Some(qp);
        }
        world.connect();
        world
    }

    fn params(&self, end: End) -> Params {
        Params {
            qp_num: end as u32 + 1,
            responder_resources: self.setup.reads,
            initiator_depth: self.setup.reads,
            flow_control: 1,
            retry_count: 7,
            rnr_retry_count: self.setup.rnr_retry,
            srq: 0,
        }
    }

    fn connect(&mut self) {
        let params = self.params(A);
        self.conns[A].connect(params, Private::NONE, false, self.now);
        for _ in 0..self.setup.receives {
            self.step(Step::Receive(A, LONG_RECEIVE));
            self.step(Step::Receive(B, LONG_RECEIVE));
        }
        if self.setup.connected {
            self.step(Step::Open);
            self.settle();
            self.step(Step::Accept);
            self.settle();
            self.step(Step::Establish);
            self.settle();
        }
    }

    /// Connects once more, with the same queue pairs.
    fn connect_again(&mut self) -> bool {
        let over = |conn: &Connection| {
            conn.phase() == Phase::Closed && conn.link() != LinkState::Open && conn.qp.is_some()
        };
        if !self.conns.iter().all(over) {
            return false;
        }
        self.wires = Default::default();
        self.open = false;
        for end in [A, B] {
            self.step(Step::Reset(end));
            let qp = self.conns[end].qp.as_mut().expect("it has one");
            qp.initialize(access(self.setup.access[end]), 14)
                .expect("it is in RESET");
            self.programs[end].told.clear();
            self.programs[end].last_wqe = 0;
            let words = std::array::from_fn(|i| {
                self.programs[end].word(self.programs[end].word_at(i).addr)
            });
            let next = self.programs[end].requests.len();
            let theirs = self.programs[other(end)].requests.len();
            self.models[end] = Model {
                base: next,
                next,
                confirmed: next,
                next_receive: self.models[end].next_receive,
                next_message: theirs,
                next_order: theirs,
                words,
                first_words: words,
                acked: next,
                polled: next,
                ..Model::default()
            };
        }
        self.connect();
        true
    }

    fn round(&mut self, steps: &[Step]) -> Result<(), String> {
        self.result()?;
        for step in steps {
            self.step(*step);
            self.result()?;
        }
        self.rest();
        self.check_quiet();
        self.result()?;
        // It ends one way or the other.
        match steps.len() % 4 {
            0 => self.step(Step::Cut(1 << 30, 0)),
            1 => self.step(Step::Fail(A)),
            2 => self.step(Step::Disconnect(B)),
            _ => {}
        }
        self.rest();
        self.step(Step::Disconnect(A));
        self.step(Step::Disconnect(B));
        self.rest();
        self.check_ended();
        self.check_memory();
        self.result()
    }

    fn result(&self) -> Result<(), String> {
        for program in &self.programs {
            if let Some(fault) = program.fault.borrow().as_ref() {
                return Err(format!("end {}: {fault}", ["A", "B"][program.me]));
            }
        }
        Ok(())
    }

    fn qp_state(&self, end: End) -> Option<QpState> {
        self.conns[end].qp.as_ref().map(Qp::state)
    }

    fn step(&mut self, step: Step) {
        let now = self.now;
        match step {
            Step::Settle => self.settle(),
            Step::Transmit(end, n) => self.transmit(end, n),
            Step::Deliver(end, n) => self.deliver(end, n),
            Step::Receive(end, len) => self.receive(end, len),
            Step::Post(end, post) => self.post(end, post),
            Step::Poll(end) => self.models[end].polled = self.models[end].next,
            Step::Order(end) => {
                self.order(end);
            }
            Step::Due(end, micros) => {
                self.now += Duration::from_micros(micros);
                self.conns[end].due(self.now, &mut self.programs[end]);
                self.after(end);
            }
            Step::Open => {
                if self.conns[A].take_wants_open() {
                    self.open = true;
                    self.conns[A].opened();
                    self.conns[B].greet(now);
                }
            }
            Step::Refuse => {
                if self.conns[A].take_wants_open() {
                    self.conns[A].open_failed(true, now, &mut self.programs[A]);
                    self.stats.add(Seen::Refused);
                    self.after(A);
                }
            }
            Step::Accept => {
                let params = self.params(B);
                let (conn, program) = (&mut self.conns[B], &mut self.programs[B]);
                let _ = conn.accept(params, Private::NONE, now, program);
                self.after(B);
            }
            Step::Establish => {
                let (conn, program) = (&mut self.conns[A], &mut self.programs[A]);
                if conn.establish(now, program).is_ok() {
                    self.models[A].established = true;
                }
                self.after(A);
            }
            Step::Reject(end) => {
                if self.conns[end].reject(Private::NONE).is_ok() {
                    self.stats.add(Seen::Rejected);
                }
            }
            Step::Disconnect(end) => {
                let (conn, program) = (&mut self.conns[end], &mut self.programs[end]);
                if conn.disconnect(now, program).is_ok() {
                    self.models[end].cause = true;
                    self.models[end].disconnected = true;
                }
                self.after(end);
            }
            Step::Abandon(end) => {
                let begun = end == A || self.open;
                if begun && !self.models[end].abandoned {
                    self.stats.add(Seen::Abandoned);
                    self.models[end].abandoned = true;
                    self.conns[end].abandon(now);
                    self.after(end);
                }
            }
            Step::Fail(end) => {
                self.models[end].cause = true;
                self.conns[end].fail_qp(&mut self.programs[end]);
                self.after(end);
            }
            Step::Reset(end) => self.reset(end),
            Step::Destroy(end) => {
                self.forget(end);
                self.conns[end].take_qp();
                self.after(end);
            }
            Step::Deregister(end, region) => self.programs[end].regions[region].alive = false,
            Step::Cut(to_a, to_b) => {
                if self.open {
                    self.stats.add(Seen::LinkLost);
                    self.wires[B].cut(to_a);
                    self.wires[A].cut(to_b);
                }
            }
        }
    }

    /// Nothing that was posted completes any more.
    fn forget(&mut self, end: End) {
        let program = &mut self.programs[end];
        for request in &mut program.requests {
            request.forgotten |= request.ended.is_none();
        }
        if !self.setup.srq[end] {
            for receive in &mut program.receives {
                receive.forgotten |= receive.ended.is_none();
            }
        }
        self.models[end].cause = true;
        self.models[end].next = program.requests.len();
    }

    fn reset(&mut self, end: End) {
        self.forget(end);
        let next = self.programs[end].receives.len();
        if let Some(qp) = &mut self.conns[end].qp {
            qp.reset(0);
            let model = &mut self.models[end];
            model.polled = model.next;
            model.failed = false;
            if !self.setup.srq[end] {
                model.next_receive = next;
            }
        }
    }

    fn receive(&mut self, end: End, len: u32) {
        let number = self.programs[end].receives.len();
        let Some(qp) = &mut self.conns[end].qp else {
            return;
        };
        let srq = self.setup.srq[end];
        if qp.state() == QpState::Reset && !srq {
            return;
        }
        let program = &mut self.programs[end];
        let has_room = match &program.srq {
            Some(srq) => srq.len() < srq.capacity(),
            None => qp.responder.rq().len() < MAX_RECV,
        };
        if !has_room {
            return;
        }
        let region = LOCAL + number % 2;
        let sges = program.pieces(region, len, 1 + number % 2, User::Receive(number));
        program.receives.push(Receive {
            len,
            sges: sges.clone(),
            ended: None,
            forgotten: false,
        });
        let fill = |to: &mut [softverbs::proto::Sge]| to.copy_from_slice(&sges);
        if let Some(queue) = &mut program.srq {
            queue
                .push(number as u64, sges.len(), fill)
                .expect("there is room");
            if std::mem::take(&mut program.srq_waits) {
                self.conns[end].receive_posted();
            }
        } else if qp.is_error() {
            use softverbs::proto::{Host, recv_completion};
            program.complete(recv_completion(number as u64, Status::WrFlush));
        } else {
            qp.responder
                .rq()
                .push(number as u64, sges.len(), fill)
                .expect("there is room");
            self.conns[end].receive_posted();
        }
        self.after(end);
    }

    /// How a request ends if nothing happens but that.
    fn expected(&self, end: End, post: &Post) -> Status {
        use Kind::*;
        let peer = &self.programs[other(end)];
        let is_read = matches!(post.kind, Read | ReadWord | FetchAdd | CompareSwap);
        let is_word = matches!(
            post.kind,
            FetchAdd | CompareSwap | AtomicWrite | WriteWord | ReadWord
        );
        let local_len = match post.kind {
            AtomicWrite | Flush => 0,
            _ if is_word => 8,
            _ => post.len,
        };
        let inline = post.inline && !is_read && local_len as usize <= MAX_INLINE;
        let local = local_len > 0 && !inline;
        let local_dead = !self.programs[end].regions[LOCAL + post.place % 2].alive;
        if is_read && self.setup.reads == 0 {
            return Status::LocQpOp;
        }
        if local && (post.flaw == Flaw::Lkey || local_dead) {
            return Status::LocProt;
        }
        let lacks = match self.setup.access[other(end)] {
            Access::All => false,
            Access::NoWrite => matches!(post.kind, Write | WriteImm | WriteWord | AtomicWrite),
            Access::NoRead => matches!(post.kind, Read | ReadWord),
            Access::NoAtomic => matches!(post.kind, FetchAdd | CompareSwap),
        };
        if lacks {
            return Status::RemInvReq;
        }
        let remote = match post.kind {
            Send | SendImm => None,
            Write | WriteImm | Read if post.len == 0 => None,
            _ if is_word => Some(WORDS),
            _ => Some(2 + post.place % 2),
        };
        let remote = match (post.kind, post.flaw) {
            (Write | WriteImm | Flush, Flaw::Right) => remote.map(|_| 4),
            _ => remote,
        };
        let bad = remote.is_some_and(|i| !peer.regions[i].alive || i == 4)
            || remote.is_some() && matches!(post.flaw, Flaw::Rkey | Flaw::Range);
        if bad {
            Status::RemAccess
        } else {
            Status::Success
        }
    }

    fn post(&mut self, end: End, mut post: Post) {
        let expected = self.expected(end, &post);
        let number = self.programs[end].requests.len();
        let used = number - self.models[end].polled;
        let Some(qp) = &mut self.conns[end].qp else {
            return;
        };
        if !matches!(qp.state(), QpState::Rts | QpState::Err) {
            return;
        }
        let room = qp.requester.room(self.models[end].polled as u32);
        let expected_room = self.setup.max_wr.saturating_sub(used);
        if room != expected_room {
            let text =
                format!("rule 6: there is room for {room} requests, not for {expected_room}");
            self.programs[end].fault(|| text);
        }
        if expected_room == 0 {
            self.stats.add(Seen::QueueFull);
            return;
        }
        let reads = matches!(
            post.kind,
            Kind::Read | Kind::ReadWord | Kind::FetchAdd | Kind::CompareSwap
        );
        let (mine, theirs) = self.programs.split_at_mut(1);
        let (program, peer) = match end {
            A => (&mut mine[0], &mut theirs[0]),
            _ => (&mut theirs[0], &mut mine[0]),
        };
        post.sges = post.sges.min(MAX_SGE);
        let request = program.request(post, peer, expected);
        let inline = post.inline && !reads && request.len as usize <= MAX_INLINE;
        let wqe = SendWqe {
            wr_id: number as u64,
            op: request.op,
            len: request.len,
            inline,
            sges: if inline { 0 } else { request.sges.len() as u8 },
            signaled: post.signaled,
            fence: post.fence,
            solicited: post.solicited,
        };
        let sges = request.sges.clone();
        if inline {
            let to = qp.requester.next_inline();
            program.gathered(&sges, wqe.len as usize, |from, bytes| {
                to[from..from + bytes.len()].copy_from_slice(bytes);
                true
            });
        } else {
            qp.requester.next_sges()[..sges.len()].copy_from_slice(&sges);
        }
        qp.requester.push(wqe);
        self.stats.add(Seen::Posted);
        if inline {
            // The memory is free at once: nothing of it is sent.
            self.programs[end].scribble(&sges);
        }
        self.conns[end].posted(self.now, &mut self.programs[end]);
        self.after(end);
    }

    // ---- the link ----

    fn transmit(&mut self, end: End, limit: usize) {
        let mut left = limit;
        loop {
            let (conn, program) = (&mut self.conns[end], &mut self.programs[end]);
            if conn.link() != LinkState::Open {
                break;
            }
            if !conn.transmit(self.now, program) {
                if !conn.is_drained() {
                    self.stats.add(Seen::AckHeld);
                }
                break;
            }
            if left == 0 {
                self.stats.add(Seen::Blocked);
                break;
            }
            if let Some((memory, len)) = conn.outgoing().bulk
                && !program.may_read(memory, len)
            {
                self.stats.add(Seen::BulkRefused);
                conn.bulk_refused(program);
            }
            let outgoing = conn.outgoing();
            self.bytes.clear();
            let add = |to: &mut Vec<u8>, bytes: &[u8]| {
                let n = bytes.len().min(left - to.len());
                to.extend_from_slice(&bytes[..n]);
                n == bytes.len()
            };
            let mut whole = add(&mut self.bytes, outgoing.head);
            if whole && let Some((memory, len)) = outgoing.bulk {
                let n = len.min(left - self.bytes.len());
                if memory == Memory::Zeroes {
                    self.stats.add(Seen::Zeroes);
                }
                program.read(memory, n, &mut self.bytes);
                whole = n == len;
            }
            if whole {
                add(&mut self.bytes, outgoing.tail);
            }
            let n = self.bytes.len();
            left -= n;
            if self.wires[end].lost {
                conn.link_ended(self.now, program);
                self.after(end);
                break;
            }
            self.moved |= n > 0;
            let mut frames = std::mem::take(&mut self.frames);
            self.wires[end].send(&self.bytes, &mut frames);
            conn.sent(n);
            for frame in frames.drain(..) {
                self.frame_sent(end, &frame);
            }
            self.frames = frames;
            self.after(end);
        }
        self.after(end);
    }

    fn handle(&mut self, end: End) {
        let (conn, program) = (&mut self.conns[end], &mut self.programs[end]);
        if conn.handle(self.now, program).is_err() {
            program.fault(|| "rule 19: what the other end has sent is malformed".into());
            conn.lost(self.now, program);
        }
        self.after(end);
    }

    fn deliver(&mut self, end: End, limit: usize) {
        let mut left = limit;
        self.handle(end);
        while self.conns[end].wants_bytes() {
            let (conn, program) = (&mut self.conns[end], &mut self.programs[end]);
            let wire = &mut self.wires[other(end)];
            if wire.len() == 0 {
                if wire.ended {
                    self.moved = true;
                    conn.link_ended(self.now, program);
                    self.after(end);
                }
                break;
            }
            if left == 0 {
                if wire.is_in_frame() {
                    self.stats.add(Seen::CutFrame);
                }
                break;
            }
            let (mut direct, mut placed) = (0, 0);
            let mut refused = false;
            if let Some((memory, len)) = conn.target() {
                if program.may_write(memory, len) {
                    direct = len;
                    placed = len.min(left).min(wire.len());
                    self.bytes.resize(placed, 0);
                    wire.take(&mut self.bytes);
                    program.write(memory, &self.bytes);
                    self.stats.add(Seen::Direct);
                } else {
                    refused = true;
                }
            }
            if refused {
                self.stats.add(Seen::TargetRefused);
                conn.target_refused(program);
            }
            let mut buffered = 0;
            if placed == direct {
                let room = conn.room(direct > 0);
                buffered = room.len().min(left - placed).min(wire.len());
                wire.take(&mut room[..buffered]);
            }
            conn.received(placed, buffered);
            let n = placed + buffered;
            left -= n;
            self.moved |= n > 0;
            check!(
                self,
                end,
                n > 0,
                "rule 21: there is no room for what has come"
            );
            if n == 0 {
                break;
            }
            while let Some(frame) = self.wires[other(end)].delivered() {
                self.frame_delivered(end, &frame);
            }
            self.handle(end);
        }
    }

    /// Carries out what was ordered. Returns whether there was something.
    fn order(&mut self, end: End) -> bool {
        let Some(order) = self.conns[end].order() else {
            return false;
        };
        let result = self.carry_out(end, order);
        self.conns[end].done(result, self.now, &mut self.programs[end]);
        self.handle(end);
        true
    }

    fn carry_out(&mut self, end: End, order: Order) -> Result<u64, Nak> {
        use softverbs::proto::Host;
        let (at, len, right) = match order {
            Order::Atomic { at, .. } => (at, 8, Right::Atomic),
            Order::AtomicWrite { at, .. } => (at, 8, Right::Write),
            Order::Flush { at, len, .. } => (at, len, Right::FlushPersistent),
        };
        if !self.programs[end].permits(at, len, right) {
            return Err(Nak::AccessError);
        }
        let peer = other(end);
        let requests = &self.programs[peer].requests;
        let is_order = |request: &Request| {
            matches!(
                request.op,
                Op::Atomic { .. } | Op::AtomicWrite { .. } | Op::Flush { .. }
            )
        };
        let from = self.models[end].next_order;
        let Some(i) = (from..requests.len()).find(|i| is_order(&requests[*i])) else {
            self.programs[end].fault(|| format!("rule 2: {order:?} was never asked for, or twice"));
            return Err(Nak::OperationError);
        };
        let same = match (order, requests[i].op) {
            (Order::Atomic { at, op }, Op::Atomic { at: a, op: o }) => at == a && op == o,
            (Order::AtomicWrite { at, value }, Op::AtomicWrite { at: a, value: v }) => {
                at == a && value == v
            }
            (Order::Flush { at, len, .. }, Op::Flush { at: a, len: l, .. }) => at == a && len == l,
            _ => false,
        };
        check!(
            self,
            end,
            same,
            "rule 2: {order:?} is carried out, and request {i} of the other end is the next"
        );
        // All that was asked before is there.
        self.confirm(peer, i);
        let requests = &self.programs[peer].requests;
        for request in &requests[from..i] {
            if let (Kind::WriteWord, Op::Write { at, .. }) = (request.post.kind, request.op) {
                let place = self.place(end, at.addr);
                self.models[end].words[place] = word_of(request);
            }
        }
        self.models[end].next_order = i + 1;
        let mut value = 0;
        if right != Right::FlushPersistent {
            let place = self.place(end, at.addr);
            value = self.programs[end].word(at.addr);
            let expected = self.models[end].words[place];
            check!(
                self,
                end,
                value == expected,
                "rule 4: before request {i} of the other end its word is {value:#x}, not {expected:#x}"
            );
            let then = apply(&self.programs[peer].requests[i], value);
            self.programs[end].set_word(at.addr, then);
            self.models[end].words[place] = then;
        }
        let request = &mut self.programs[peer].requests[i];
        request.executed = true;
        request.found = value;
        self.stats.add(Seen::Ordered);
        Ok(value)
    }

    fn place(&self, end: End, addr: u64) -> usize {
        ((addr - self.programs[end].word_at(0).addr) / 8) as usize % WORDS_LEN
    }

    /// Bytes move, and orders are carried out, until nothing happens any more.
    fn settle(&mut self) {
        for _ in 0..TURNS {
            self.moved = false;
            for end in [A, B] {
                self.transmit(end, usize::MAX);
                self.deliver(end, usize::MAX);
                self.moved |= self.order(end);
            }
            if !self.moved {
                return;
            }
        }
        self.programs[A].fault(|| "rule 20: both ends do not come to rest".into());
    }

    /// As [`World::settle`], and the programs do what they are to, and time passes.
    fn rest(&mut self) {
        for _ in 0..TURNS {
            self.settle();
            let phases = [self.conns[A].phase(), self.conns[B].phase()];
            self.step(Step::Open);
            if phases[B] == Phase::Requested && !self.models[B].abandoned {
                self.step(Step::Accept);
            }
            if phases[A] == Phase::ReplyReceived {
                self.step(Step::Establish);
            }
            self.settle();
            let Some(next) = self.conns.iter().filter_map(Connection::deadline).min() else {
                if phases == [self.conns[A].phase(), self.conns[B].phase()] {
                    return;
                }
                continue;
            };
            self.now = self.now.max(next);
            for end in [A, B] {
                if self.conns[end].deadline().is_some_and(|at| at <= self.now) {
                    self.step(Step::Due(end, 0));
                }
            }
        }
        self.programs[A].fault(|| "rule 20: deadlines follow each other without end".into());
    }

    // ---- the model ----

    /// Requests of an end up to that one must have been carried out.
    fn confirm(&mut self, end: End, upto: usize) {
        let peer = other(end);
        let (from, upto) = (
            self.models[end].confirmed,
            upto.min(self.programs[end].requests.len()),
        );
        for i in from..upto {
            let request = &self.programs[end].requests[i];
            let done = match request.op {
                Op::Write { at, imm: None } if request.expected == Status::Success => {
                    request.executed
                        || request.post.kind == Kind::WriteWord
                        || request.len == 0
                        || has_pattern(
                            request.id,
                            0,
                            &self.programs[peer].bytes_at(at, request.len),
                        )
                }
                Op::Read { .. } => request.expected == Status::Success,
                _ => request.executed,
            };
            check!(
                self,
                end,
                done,
                "rule 3: request {i} ({:?}) counts as carried out, and was not",
                self.programs[end].requests[i].post
            );
            self.programs[end].requests[i].executed = true;
        }
        self.models[end].confirmed = from.max(upto);
    }

    /// A frame has been handed to the link.
    fn frame_sent(&mut self, end: End, frame: &Frame) {
        let peer = other(end);
        let theirs = self.models[peer].base;
        let index = |seq: u32| theirs + seq as usize;
        let answers = matches!(
            frame,
            Frame::Ack(_)
                | Frame::Nak(..)
                | Frame::Data { .. }
                | Frame::Value { .. }
                | Frame::NotReady { .. }
        );
        let late = answers && self.models[end].said_failed;
        check!(
            self,
            end,
            !late,
            "rule 22: {frame:?} is sent after the failure was told"
        );
        match *frame {
            Frame::Ack(seq) => self.confirm(peer, index(seq) + 1),
            Frame::Data { seq, .. } => self.confirm(peer, index(seq)),
            Frame::Value { seq, .. } => self.confirm(peer, index(seq) + 1),
            Frame::Nak(seq, _) => {
                self.stats.add(Seen::Nak);
                self.models[end].refused = true;
                self.confirm(peer, index(seq));
            }
            Frame::NotReady { seq, .. } => {
                self.stats.add(Seen::RnrNak);
                self.confirm(peer, index(seq));
                let request = self.programs[peer].requests.get(index(seq));
                let takes = request.is_some_and(|request| request.op.takes_receive());
                check!(
                    self,
                    end,
                    takes,
                    "rule 14: an RNR NAK of request {seq}, which takes no receive"
                );
            }
            Frame::ReadyAgain => self.stats.add(Seen::ReadyAgain),
            Frame::Failed => {
                self.stats.add(Seen::Failed);
                self.models[end].said_failed = true;
            }
            Frame::Send { seq, flags, .. } | Frame::Write { seq, flags, .. } => {
                if flags.contains(Flags::FIRST) {
                    self.request_sent(end, seq);
                }
                if !flags.intersects(Flags::FIRST | Flags::LAST) {
                    self.stats.add(Seen::Segments);
                }
            }
            Frame::Read { seq, .. }
            | Frame::Atomic { seq, .. }
            | Frame::AtomicWrite { seq, .. }
            | Frame::Flush { seq, .. } => self.request_sent(end, seq),
            _ => {}
        }
    }

    /// A request begins to be sent.
    fn request_sent(&mut self, end: End, seq: u32) {
        let model = &mut self.models[end];
        let i = model.base + seq as usize;
        let Some(request) = self.programs[end].requests.get(i) else {
            check!(
                self,
                end,
                false,
                "rule 2: request {i} is sent, and was not posted"
            );
            return;
        };
        if let Some((waits, until)) = model.rnr_wait
            && waits == i
        {
            model.rnr_wait = None;
            let early = until.is_none_or(|until| self.now < until);
            check!(
                self,
                end,
                !early,
                "rule 14: request {i} is sent again too early"
            );
        }
        // One that was gathered before an RNR NAK came is sent once more.
        if request.op.is_read() && !model.reads.contains(&i) {
            model.reads.push(i);
            let most = self.setup.reads as usize;
            let n = model.reads.len();
            check!(
                self,
                end,
                n <= most,
                "rule 11: {n} reads and atomics are outstanding, of {most}"
            );
        }
        let model = &self.models[end];
        if request.post.fence {
            let before = &self.programs[end].requests[model.base..i];
            let waits = before.iter().enumerate().find(|(j, one)| {
                let j = model.base + j;
                if one.op.is_read() {
                    model.reads.contains(&j)
                } else {
                    one.op.holds_fence() && j >= model.acked
                }
            });
            if before.iter().any(|one| one.op.holds_fence()) {
                self.stats.add(Seen::Fence);
            }
            check!(
                self,
                end,
                waits.is_none(),
                "rule 12: request {i} has a fence, and is sent before request {waits:?} has ended"
            );
        }
    }

    /// The fields of a frame have come to an end.
    fn frame_delivered(&mut self, end: End, frame: &Frame) {
        let base = self.models[end].base;
        let index = |seq: u32| base + seq as usize;
        let model = &mut self.models[end];
        match *frame {
            Frame::Ack(seq) => model.acked = model.acked.max(index(seq) + 1),
            Frame::Data { seq, flags } if flags.contains(Flags::LAST) => {
                model.reads.retain(|i| *i != index(seq));
                model.acked = model.acked.max(index(seq) + 1);
            }
            Frame::Value { seq, .. } => {
                model.reads.retain(|i| *i != index(seq));
                model.acked = model.acked.max(index(seq) + 1);
            }
            Frame::NotReady { seq, .. } => {
                model.reads.retain(|i| *i < index(seq));
                let until = (self.setup.rnr_retry < 7).then(|| self.now + RNR_TIME);
                model.rnr_wait = Some((index(seq), until));
                if let Some(request) = self.programs[end].requests.get_mut(index(seq)) {
                    request.rnr_naks += 1;
                }
            }
            Frame::ReadyAgain => model.rnr_wait = None,
            _ => {}
        }
    }

    /// Looks at what a call has done.
    fn after(&mut self, end: End) {
        let news = std::mem::take(&mut self.programs[end].news);
        for completion in &news {
            if completion.opcode.is_recv() {
                self.receive_completed(end, completion);
            } else {
                self.request_completed(end, completion);
            }
        }
        self.programs[end].news = news;
        self.programs[end].news.clear();
        self.check_told(end);
        let failed = self.conns[end].qp.as_ref().is_some_and(Qp::is_error);
        if failed && !std::mem::replace(&mut self.models[end].failed, true) {
            self.models[end].failures += 1;
            self.check_failure(end);
        }
        if self.setup.srq[end] {
            let (told, failures) = (self.programs[end].last_wqe, self.models[end].failures);
            check!(
                self,
                end,
                told == failures,
                "rule 16: {told} events of the last receive, after {failures} failures"
            );
        }
        let conn = &self.conns[end];
        match conn.link() {
            LinkState::Over if self.open => {
                self.wires[end].ended = true;
                self.wires[other(end)].drop_all();
            }
            LinkState::Open if conn.has_ended() && conn.is_drained() => {
                self.wires[end].ended = true
            }
            _ => {}
        }
    }

    /// A queue pair may fail for a reason only.
    fn check_failure(&mut self, end: End) {
        let model = &self.models[end];
        let peer = &self.programs[other(end)];
        let dead = |program: &Program| program.regions.iter().any(|region| !region.alive);
        let flawed =
            |request: &Request| matches!(request.expected, Status::RemInvReq | Status::RemAccess);
        let good = model.cause
            || model.errored
            || model.receive_errored
            || dead(&self.programs[end])
            || peer.requests.iter().any(flawed)
            || self.conns[end].link() == LinkState::Over
            || self.conns[end].phase() == Phase::Closed;
        check!(
            self,
            end,
            good,
            "rule 10: the queue pair has failed without a reason"
        );
    }

    fn is_dead(&self, end: End, addr: u64) -> bool {
        !self.programs[end].by_address(addr).alive
    }

    /// Whether requests of an end may be without an answer for good.
    fn has_no_peer(&self, end: End) -> bool {
        let peer = other(end);
        self.qp_state(peer) != Some(QpState::Rts)
            || self.models[peer].cause
            || self.conns.iter().any(|conn| conn.link() != LinkState::Open)
            || self.models.iter().any(|model| model.abandoned)
            || self.wires.iter().any(|wire| wire.lost || wire.ended)
    }

    fn request_completed(&mut self, end: End, completion: &Completion) {
        let i = completion.wr_id as usize;
        let status = completion.status;
        self.stats.status(false, status);
        let next = self.models[end].next;
        check!(
            self,
            end,
            i >= next,
            "rule 5: request {i} completes after request {next}"
        );
        for skipped in next..i {
            let request = &mut self.programs[end].requests[skipped];
            let good = !request.post.signaled && !request.forgotten;
            request.ended = Some(Status::Success);
            check!(
                self,
                end,
                good,
                "rule 1: request {skipped} has not completed, and request {i} has"
            );
        }
        self.models[end].next = i + 1;
        if !self.models[end].errored {
            self.confirm(end, i);
        }
        let request = &self.programs[end].requests[i];
        let (id, len, expected) = (request.id, request.len, request.expected);
        let post = request.post;
        check!(
            self,
            end,
            completion.seq as usize == i,
            "rule 6: request {i} completes as number {}",
            completion.seq
        );
        check!(
            self,
            end,
            completion.opcode == request.op.opcode(),
            "rule 7: request {i} completes as {:?}",
            completion.opcode
        );
        check!(
            self,
            end,
            !request.forgotten,
            "rule 9: request {i} completes after its queue pair is gone"
        );
        if status == Status::Success {
            check!(
                self,
                end,
                !self.models[end].errored,
                "rule 9: request {i} succeeds after one that did not"
            );
            check!(
                self,
                end,
                expected == Status::Success,
                "rule 10: request {i} ({post:?}) succeeds, and must end in {expected:?}"
            );
            check!(
                self,
                end,
                post.signaled,
                "rule 1: request {i} succeeds and did not ask for a completion"
            );
            check!(
                self,
                end,
                completion.byte_len == len,
                "rule 7: request {i} moved {} bytes, not {len}",
                completion.byte_len
            );
            self.confirm(end, i + 1);
            self.check_read(end, i);
            if matches!(post.kind, Kind::Read) {
                let good =
                    self.programs[end].holds_pattern(id, &self.programs[end].requests[i].sges, len);
                check!(
                    self,
                    end,
                    good,
                    "rule 7: read {i} has not brought what was there"
                );
            }
            return;
        }
        let first = !std::mem::replace(&mut self.models[end].errored, true);
        if !first {
            check!(
                self,
                end,
                status == Status::WrFlush,
                "rule 9: request {i} ends in {status:?} after one that ended badly"
            );
            return;
        }
        let request = &self.programs[end].requests[i];
        let remote_dead = match request.op {
            Op::Write { at, .. }
            | Op::Read { at }
            | Op::Atomic { at, .. }
            | Op::AtomicWrite { at, .. }
            | Op::Flush { at, .. } => self.is_dead(other(end), at.addr),
            Op::Send { .. } => false,
        };
        let peer = &self.programs[other(end)];
        let good = status == expected
            || match status {
                // The queue pair was failed by something else.
                Status::WrFlush => true,
                Status::LocProt => request.sges.iter().any(|sge| self.is_dead(end, sge.addr)),
                Status::RemAccess => remote_dead,
                Status::RemOp => {
                    request.op.takes_receive()
                        && peer
                            .receives
                            .iter()
                            .any(|r| r.ended == Some(Status::LocProt))
                }
                Status::RemInvReq => {
                    request.op.takes_receive()
                        && peer
                            .receives
                            .iter()
                            .any(|r| r.ended == Some(Status::LocLen))
                }
                Status::RnrRetryExc => {
                    request.op.takes_receive()
                        && self.setup.rnr_retry < 7
                        && request.rnr_naks > self.setup.rnr_retry.into()
                }
                Status::RetryExc => self.has_no_peer(end),
                _ => false,
            };
        let naks = request.rnr_naks;
        check!(
            self,
            end,
            good,
            "rule 10: request {i} ({post:?}) ends in {status:?}, {expected:?} was expected, after {naks} RNR NAKs"
        );
    }

    /// What a read of a word, or an atomic, has brought.
    fn check_read(&mut self, end: End, i: usize) {
        let request = &self.programs[end].requests[i];
        let (Op::Read { at } | Op::Atomic { at, .. }) = request.op else {
            return;
        };
        if !matches!(
            request.post.kind,
            Kind::ReadWord | Kind::FetchAdd | Kind::CompareSwap
        ) {
            return;
        }
        let mut came = [0; 8];
        self.programs[end].gathered(&request.sges, 8, |from, bytes| {
            came[from..from + bytes.len()].copy_from_slice(bytes);
            true
        });
        if request.post.kind != Kind::ReadWord {
            let (came, found) = (u64::from_ne_bytes(came), request.found);
            check!(
                self,
                end,
                came == found,
                "rule 4: atomic {i} brought {came:#x}, and found {found:#x}"
            );
            return;
        }
        // It may see what was asked after it, up to a request with a fence.
        let peer = other(end);
        let place = self.place(peer, at.addr);
        let base = self.models[end].base;
        let mut value = self.models[peer].first_words[place];
        let mut values = vec![];
        for (j, one) in self.programs[end].requests.iter().enumerate().skip(base) {
            if j > i && one.post.fence {
                break;
            }
            let same = match one.op {
                Op::Write { at, .. } if one.post.kind == Kind::WriteWord => {
                    self.place(peer, at.addr) == place
                }
                Op::Atomic { at, .. } | Op::AtomicWrite { at, .. } => {
                    self.place(peer, at.addr) == place
                }
                _ => false,
            };
            if same {
                value = apply(one, value);
            }
            if j >= i {
                values.push(value.to_ne_bytes());
            }
        }
        let good = (0..8).all(|k| values.iter().any(|value| value[k] == came[k]));
        check!(
            self,
            end,
            good,
            "rule 13: read {i} brought {came:02x?}, none of {values:02x?}"
        );
    }

    fn receive_completed(&mut self, end: End, completion: &Completion) {
        let n = completion.wr_id as usize;
        let status = completion.status;
        self.stats.status(true, status);
        let srq = self.setup.srq[end];
        let peer = other(end);
        let next = self.models[end].next_receive;
        check!(
            self,
            end,
            n == next || srq && n > next,
            "rule 5: receive {n} completes, and receive {next} is the next"
        );
        self.models[end].next_receive = n + 1;
        let message = self.models[end].next_message;
        let requests = &self.programs[peer].requests;
        let message = (message..requests.len()).find(|i| requests[*i].op.takes_receive());
        let first = !self.models[end].receive_errored;
        if status != Status::Success {
            self.models[end].receive_errored = true;
            let room = self.programs[end].receives[n].len;
            let good = match (status, message) {
                (Status::WrFlush, _) => self.conns[end].qp.as_ref().is_some_and(Qp::is_error),
                (Status::LocLen, Some(i)) => first && requests[i].len > room,
                (Status::LocProt, Some(_)) => {
                    first && (0..2).any(|i| !self.programs[end].regions[LOCAL + i].alive)
                }
                (Status::LocAccess, Some(i)) => {
                    first
                        && match requests[i].op {
                            Op::Write { at, .. } => self.is_dead(end, at.addr),
                            _ => false,
                        }
                }
                _ => false,
            };
            check!(
                self,
                end,
                good,
                "rule 15: receive {n} of {room} bytes ends in {status:?}, with request {message:?}"
            );
            return;
        }
        let Some(i) = message else {
            check!(
                self,
                end,
                false,
                "rule 2: receive {n} completes without a message"
            );
            return;
        };
        check!(
            self,
            end,
            first,
            "rule 9: receive {n} succeeds after one that did not"
        );
        let request = &requests[i];
        let (id, len, post) = (request.id, request.len, request.post);
        let (opcode, imm) = match request.op {
            Op::Send { imm } => (Opcode::Recv, imm),
            Op::Write { imm, .. } => (Opcode::RecvWriteImm, imm),
            _ => (Opcode::Recv, None),
        };
        let receive = &self.programs[end].receives[n];
        let good = match request.op {
            Op::Write { at, .. } => {
                len == 0 || has_pattern(id, 0, &self.programs[end].bytes_at(at, len))
            }
            _ => len <= receive.len && self.programs[end].holds_pattern(id, &receive.sges, len),
        };
        let same = completion.opcode == opcode
            && completion.imm == imm
            && completion.byte_len == len
            && completion.solicited == post.solicited;
        check!(self, end, same, "rule 7: {completion:?} is of {post:?}");
        check!(
            self,
            end,
            good,
            "rule 7: receive {n} does not have what request {i} ({post:?}) sent"
        );
        self.models[end].next_message = i + 1;
        self.programs[peer].requests[i].executed = true;
        self.confirm(peer, i + 1);
    }

    /// Events come each once, in an order that there is.
    fn check_told(&mut self, end: End) {
        let told = &self.programs[end].told;
        for i in self.models[end].told.min(told.len())..told.len() {
            self.stats.told(told[i]);
            let before = i.checked_sub(1).map(|i| told[i]);
            let good = match (before, told[i]) {
                (None, Told::Offer) => end == B,
                (None, Told::Reply | Told::Response | Told::Rejected) => end == A,
                (None, Told::Unreachable) => end == A,
                (Some(Told::Offer), Told::Established | Told::Rejected | Told::Unreachable) => true,
                (Some(Told::Offer), Told::Disconnected) => {
                    self.conns[B].phase() != Phase::Requested
                }
                (Some(Told::Reply | Told::Response), Told::Unreachable) => {
                    !self.models[A].established
                }
                (Some(Told::Reply | Told::Response), Told::Disconnected) => {
                    self.models[A].established
                }
                (Some(Told::Established), Told::Disconnected) => true,
                (Some(Told::Disconnected), Told::TimewaitExit) => true,
                _ => false,
            };
            let good = good && !self.models[end].abandoned;
            check!(
                self,
                end,
                good,
                "rule 17: {:?} comes after {before:?}",
                told[i]
            );
            if told[i] == Told::Established {
                self.models[B].established = true;
            }
        }
        self.models[end].told = told.len();
    }

    /// Both ends are at rest: what is outstanding waits for a receive, and for nothing else.
    fn check_quiet(&mut self) {
        for end in [A, B] {
            let Some(qp) = &self.conns[end].qp else {
                continue;
            };
            if qp.requester.is_empty() {
                let program = &self.programs[end];
                let lost = (0..program.requests.len()).find(|i| {
                    let request = &program.requests[*i];
                    request.post.signaled && request.ended.is_none() && !request.forgotten
                });
                check!(
                    self,
                    end,
                    lost.is_none(),
                    "rule 1: request {lost:?} has no completion"
                );
                continue;
            }
            let peer = other(end);
            let from = self.models[end].next.max(self.models[end].confirmed);
            let requests = &self.programs[end].requests;
            let waits = (from..requests.len()).find(|i| requests[*i].op.takes_receive());
            let empty = match (&self.programs[peer].srq, &mut self.conns[peer].qp) {
                (Some(srq), _) => srq.is_empty(),
                (None, Some(qp)) => qp.responder.rq().is_empty(),
                _ => false,
            };
            let may_wait = empty
                && waits.is_some()
                && self.setup.rnr_retry == 7
                && self.qp_state(end) == Some(QpState::Rts)
                && self.qp_state(peer) == Some(QpState::Rts)
                && self.conns.iter().all(|conn| conn.link() == LinkState::Open);
            check!(
                self,
                end,
                may_wait,
                "rule 20: both ends are at rest, and requests from {from} on are outstanding"
            );
            if may_wait {
                self.stats.add(Seen::WaitsForReceive);
            }
            // What comes before the one that waits has been carried out, and has completed.
            if let Some(waits) = waits {
                self.confirm(end, waits);
                let requests = &self.programs[end].requests;
                let lost = (0..waits).find(|i| {
                    requests[*i].post.signaled
                        && requests[*i].ended.is_none()
                        && !requests[*i].forgotten
                });
                check!(
                    self,
                    end,
                    lost.is_none(),
                    "rule 20: request {lost:?} has been carried out and has no completion"
                );
            }
        }
    }

    /// The connection has ended: nothing is outstanding.
    fn check_ended(&mut self) {
        for end in [A, B] {
            let model = &self.models[end];
            let program = &self.programs[end];
            let (established, abandoned) = (model.established, model.abandoned);
            let open = self.conns[end].link() == LinkState::Open;
            check!(
                self,
                end,
                !open,
                "rule 18: the link is open after the end, in {:?}",
                self.conns[end].phase()
            );
            if let Some(qp) = &self.conns[end].qp {
                check!(
                    self,
                    end,
                    qp.requester.is_empty(),
                    "rule 20: requests are outstanding after the end"
                );
                let lost = (0..program.requests.len()).find(|i| {
                    let request = &program.requests[*i];
                    request.post.signaled && request.ended.is_none() && !request.forgotten
                });
                check!(
                    self,
                    end,
                    lost.is_none(),
                    "rule 1: request {lost:?} has no completion"
                );
                check!(
                    self,
                    end,
                    abandoned || qp.state() != QpState::Rts,
                    "rule 18: the queue pair is in RTS after the end"
                );
                if qp.is_error() && !self.setup.srq[end] {
                    let lost = program
                        .receives
                        .iter()
                        .position(|one| one.ended.is_none() && !one.forgotten);
                    check!(
                        self,
                        end,
                        lost.is_none(),
                        "rule 9: receive {lost:?} has not been flushed"
                    );
                }
            }
            if established && !abandoned {
                let count = |told| program.told.iter().filter(|one| **one == told).count();
                let counts = (count(Told::Disconnected), count(Told::TimewaitExit));
                check!(
                    self,
                    end,
                    counts == (1, 1),
                    "rule 17: DISCONNECTED and TIMEWAIT_EXIT came {counts:?} times"
                );
            }
        }
    }

    /// Nothing was written but where requests have it.
    fn check_memory(&mut self) {
        for end in [A, B] {
            let mut bad = None;
            for region in &self.programs[end].regions {
                let (bytes, users, base) = region.all();
                let mut at = 0;
                for (start, stop, user) in users {
                    let (start, stop) = ((*start - base) as usize, (*stop - base) as usize);
                    if bytes[at..start].iter().any(|byte| *byte != FRESH) {
                        bad = Some((at, *user));
                    }
                    let whose = match user {
                        User::Target(i) => Some(&self.programs[other(end)].requests[*i]),
                        _ => None,
                    };
                    // What was written is payload, or zero where its sender lost its memory.
                    if let Some(request) = whose {
                        let good = bytes[start..stop].iter().enumerate().all(|(i, byte)| {
                            *byte == FRESH
                                || *byte == 0 && !request.executed
                                || has_pattern(request.id, i, &[*byte])
                        });
                        if !good {
                            bad = Some((start, *user));
                        }
                    }
                    at = stop;
                }
                if bytes[at..].iter().any(|byte| *byte != FRESH) {
                    bad = Some((at, User::Words));
                }
            }
            check!(
                self,
                end,
                bad.is_none(),
                "rule 8: something was written at {bad:?}"
            );
        }
    }
}

fn word_of(request: &Request) -> u64 {
    let bytes = std::array::from_fn(|i| super::end::payload(request.id, i));
    u64::from_ne_bytes(bytes)
}

/// What a request makes of a word.
fn apply(request: &Request, value: u64) -> u64 {
    match request.op {
        Op::Write { .. } => word_of(request),
        Op::AtomicWrite { value, .. } => u64::from_ne_bytes(value),
        Op::Atomic {
            op: AtomicOp::FetchAdd(add),
            ..
        } => value.wrapping_add(add),
        Op::Atomic {
            op: AtomicOp::CompareSwap { compare, swap },
            ..
        } => {
            if value == compare {
                swap
            } else {
                value
            }
        }
        _ => value,
    }
}
