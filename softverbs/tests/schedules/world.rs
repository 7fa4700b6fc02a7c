//! Two ends in one thread, and what a schedule does with them. `model` checks it.

macro_rules! check {
    ($world:expr, $end:expr, $condition:expr, $($text:tt)*) => {
        if !$condition {
            $world.programs[$end].fault(|| format!($($text)*));
        }
    };
}

#[path = "model.rs"]
mod model;

use super::end::{
    FRESH, LOCAL, Program, Receive, Request, Told, User, WORDS, WORDS_LEN, has_pattern,
};
use super::stats::{Seen, Stats};
use super::steps::{A, Access, B, End, Flaw, Kind, Post, Schedule, Setup, Step};
use super::wire::Wire;
use model::{Model, apply, word_of};
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
}
