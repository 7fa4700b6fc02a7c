//! What comes from the other side.

use super::transmit::Response;
use super::{Endpoint, PEER_GONE_TIME, Phase, State, Timer};
use crate::frames::{
    self, AtomicOp, Flags, FlushKind, Frame, MAX_FIELDS, MAX_MESSAGE, Malformed, Nak, Remote,
};
use crate::objects::memory::{Domain, Hold, Right};
use crate::objects::qp::{Op, Payload, Qp, to_receive};
use rdma_sys::{ibv_qp_state, ibv_wc_opcode, ibv_wc_status};
use std::io::{ErrorKind, IoSliceMut};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Room for what has come and has not been dealt with.
const BUFFER: usize = 32 * 1024;
/// A payload of which more than this is missing goes straight to where it belongs.
const DIRECT: usize = 4 * 1024;
/// So much comes at most in one turn, so that others get theirs.
const TURN: usize = 1024 * 1024;
const PIECES: usize = 16;
/// After so many messages, each answered by the program before the next, it is expected to go on.
const TURNS_OF_TRUST: u32 = 8;

/// Where the payload of a frame goes.
#[derive(Clone, Copy, Debug, Default)]
enum Sink {
    #[default]
    Discard,
    Write(Remote),
    /// To the receive of the message.
    Receive,
    /// To the memory of a read.
    Data(u32),
}

/// A message of which not all has come.
/// What it is received into is the queue pair's `receiving`.
enum Message {
    Send {
        len: u64,
    },
    Write {
        len: u32,
        /// Where the next segment goes, how much is left from it on, and whether it is of a message
        /// with immediate data.
        next: Remote,
        left: u32,
        imm: bool,
    },
}

#[derive(Default)]
pub struct Receiver {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Whether a frame has begun and not ended.
    in_frame: bool,
    /// Its payload that has not come.
    left: usize,
    sink: Sink,
    flags: Present,
    message: Option<Message>,
    /// The number of the message that comes next.
    expected: u32,
    /// A message found no receive: it comes again, and all that comes before is dropped.
    dropping: bool,
    /// A message has come since the program posted something ...
    unanswered: bool,
    /// ... and that has been so in turn for so many times.
    turns: u32,
    /// The answer that was expected last did not come.
    disappointed: bool,
    /// The other side is to be told of a receive.
    pub owes_ready: bool,
    /// Nothing is to be taken from the link for now.
    pub paused: bool,
    holds: Vec<Hold>,
}

/// Flags, number and immediate data of the present frame.
#[derive(Clone, Copy)]
struct Present {
    seq: u32,
    flags: Flags,
    imm: u32,
}

impl Default for Present {
    fn default() -> Self {
        Present {
            seq: 0,
            flags: Flags::empty(),
            imm: 0,
        }
    }
}

impl Receiver {
    fn buffered(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    fn used(&mut self, n: usize) {
        self.start += n;
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
    }

    /// Makes room behind what is buffered.
    fn make_room(&mut self) {
        if self.buffer.is_empty() {
            self.buffer.resize(BUFFER, 0);
        }
        if self.start > 0 && BUFFER - self.end < MAX_FIELDS {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
    }
}

impl State {
    /// Takes what has come from the link, and deals with it; says whether there was something.
    pub fn receive(&mut self, endpoint: &Endpoint) -> bool {
        let mut turn = TURN;
        while !self.rx.paused && self.link.is_some() && turn > 0 {
            let (asked, result) = self.take();
            match result {
                Ok(n) if n > 0 => {
                    turn = turn.saturating_sub(n);
                    if self.consume(endpoint).is_err() {
                        self.lost(endpoint);
                    }
                    if n < asked {
                        return true;
                    }
                }
                Err(ErrorKind::WouldBlock) => break,
                Err(ErrorKind::Interrupted) => {}
                Ok(_) | Err(_) => {
                    self.lost(endpoint);
                    return true;
                }
            }
        }
        turn < TURN
    }

    /// Whether an acknowledgement, and nothing else, is due to a side that is used to get it with
    /// an answer of the program.
    pub fn may_hold_ack(&self) -> bool {
        self.rx.turns >= TURNS_OF_TRUST && self.tx.owes_only_ack() && self.ack_held.is_none()
    }

    /// The program did not answer when that was expected. If it happens twice, it has to take turns
    /// again before an answer is expected.
    pub fn answer_missing(&mut self) {
        if std::mem::replace(&mut self.rx.disappointed, true) {
            self.rx.turns = 0;
        }
    }

    /// The program has posted something.
    pub fn answered_by_program(&mut self) {
        if self.ack_held.take().is_some() {
            self.rx.disappointed = false;
        }
        if std::mem::take(&mut self.rx.unanswered) {
            self.rx.turns = self.rx.turns.saturating_add(1);
        }
    }

    /// Takes bytes from the link: payload to where it goes, all else to the buffer. Gives how many
    /// there was room for, and how many came.
    fn take(&mut self) -> (usize, Result<usize, ErrorKind>) {
        let direct = self.rx.left > DIRECT && self.rx.start == self.rx.end;
        let mut holds = std::mem::take(&mut self.rx.holds);
        holds.clear();
        if direct && self.hold_sink(self.rx.left, &mut holds).is_err() {
            holds.clear();
        }
        let rx = &mut self.rx;
        rx.make_room();
        // After a payload that goes straight to its place there is only room for what the next
        // frame says of itself, so that its payload does so too.
        let most = if direct { MAX_FIELDS } else { BUFFER };
        let end = (rx.end + most).min(BUFFER);
        let room = &mut rx.buffer[rx.end..end];
        let room_len = room.len();
        let mut parts: [IoSliceMut; PIECES] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
        let mut n = 0;
        let mut held = 0;
        let mut whole = true;
        for hold in holds.iter() {
            if n == PIECES - 1 {
                whole = false;
                break;
            }
            // SAFETY: the link copies to it and keeps nothing.
            parts[n] = unsafe { to_receive(hold) };
            held += hold.len();
            n += 1;
        }
        let mut asked = held;
        // What comes after the payload, if all of the payload has its place.
        if whole {
            parts[n] = IoSliceMut::new(room);
            n += 1;
            asked += room_len;
        }
        let result = match &mut self.link {
            Some(link) => link.recv(&mut parts[..n]).map_err(|error| error.kind()),
            None => Err(ErrorKind::NotConnected),
        };
        holds.clear();
        self.rx.holds = holds;
        if let Ok(got) = result {
            let placed = got.min(held);
            self.rx.end += got - placed;
            if placed > 0 {
                self.placed(placed);
            }
        }
        (asked, result)
    }

    /// Deals with what is buffered.
    pub fn consume(&mut self, endpoint: &Endpoint) -> Result<(), Malformed> {
        loop {
            if self.rx.in_frame {
                let n = self.rx.buffered().len().min(self.rx.left);
                if n > 0 {
                    self.place_buffered(n);
                }
                if self.rx.left > 0 {
                    return Ok(());
                }
                self.rx.in_frame = false;
                self.frame_ended()?;
            } else {
                if self.rx.paused {
                    return Ok(());
                }
                // Who makes this side say ever more, and does not listen, means no good.
                if self.tx.is_overfull() {
                    return Err(Malformed);
                }
                let Some((frame, used, payload)) = frames::decode(self.rx.buffered())? else {
                    return Ok(());
                };
                self.rx.used(used);
                self.rx.sink = Sink::Discard;
                self.begin(endpoint, frame, payload)?;
                self.rx.left = payload;
                self.rx.in_frame = true;
            }
        }
    }

    fn place_buffered(&mut self, n: usize) {
        let mut holds = std::mem::take(&mut self.rx.holds);
        holds.clear();
        if self.hold_sink(n, &mut holds).is_ok() {
            let mut from = self.rx.buffered();
            for hold in holds.drain(..) {
                // SAFETY: the region is mapped while it is held, and as much is buffered.
                unsafe { place(from.as_ptr(), hold.ptr(), hold.len()) };
                from = &from[hold.len()..];
            }
        }
        holds.clear();
        self.rx.holds = holds;
        self.rx.used(n);
        self.placed(n);
    }

    /// So much of the payload is where it belongs.
    fn placed(&mut self, n: usize) {
        self.rx.left -= n;
        match self.rx.sink {
            Sink::Discard => {}
            Sink::Write(ref mut at) => at.addr = at.addr.wrapping_add(n as u64),
            Sink::Receive => {
                if let Some(Message::Send { len }) = &mut self.rx.message {
                    *len += n as u64;
                }
            }
            Sink::Data(seq) => {
                if let Some((_, wqe)) = self.qp.as_mut().and_then(|qp| qp.sq.begun(seq)) {
                    wqe.got += n as u32;
                }
            }
        }
    }

    /// Holds the memory that the next `n` bytes of the payload belong to; none if they go nowhere.
    /// What may not be written to is answered, and the rest of the payload dropped.
    fn hold_sink(&mut self, n: usize, holds: &mut Vec<Hold>) -> Result<(), ()> {
        let Some(qp) = &mut self.qp else {
            self.rx.sink = Sink::Discard;
            return Ok(());
        };
        // What was outstanding has been flushed: its memory is the program's again.
        if qp.is_error() {
            self.rx.sink = Sink::Discard;
        }
        let domain: Arc<Domain> = qp.init.domain.clone();
        match self.rx.sink {
            Sink::Discard => Err(()),
            Sink::Write(at) => match domain.remote(at.rkey, at.addr, n as u64, Right::Write) {
                Ok(hold) => {
                    holds.push(hold);
                    Ok(())
                }
                Err(_) => {
                    self.refuse(self.rx.flags.seq, Nak::AccessError);
                    Err(())
                }
            },
            Sink::Receive => {
                let (Some(Message::Send { len }), Some(wqe)) = (&self.rx.message, &qp.receiving)
                else {
                    return Err(());
                };
                if wqe.sges.hold(&domain, *len, n as u64, true, holds).is_ok() {
                    return Ok(());
                }
                self.refuse(self.rx.flags.seq, Nak::OperationError);
                Err(())
            }
            Sink::Data(seq) => {
                let held = match qp.sq.begun(seq) {
                    Some((_, wqe)) => match &wqe.payload {
                        Payload::Memory(sges) => {
                            sges.hold(&domain, wqe.got.into(), n as u64, true, holds)
                        }
                        Payload::Inline => Ok(()),
                    },
                    None => return Err(()),
                };
                if held.is_err() {
                    self.rx.sink = Sink::Discard;
                    qp.fail_request(seq, ibv_wc_status::IBV_WC_LOC_PROT_ERR);
                    return Err(());
                }
                Ok(())
            }
        }
    }

    /// Whether requests of the other side are carried out.
    fn serves(&self) -> bool {
        let state = self.qp.as_ref().map(|qp| qp.state);
        self.is_connected()
            && matches!(
                state,
                Some(
                    ibv_qp_state::IBV_QPS_RTR
                        | ibv_qp_state::IBV_QPS_RTS
                        | ibv_qp_state::IBV_QPS_SQD
                )
            )
    }

    /// Whether the message of that number is the one to carry out now. Another one is nonsense,
    /// unless messages are being dropped.
    fn is_next(&mut self, seq: u32) -> Result<bool, Malformed> {
        if self.rx.message.is_some() {
            return Err(Malformed);
        }
        if seq == self.rx.expected {
            self.rx.dropping = false;
            return Ok(true);
        }
        if self.rx.dropping {
            Ok(false)
        } else {
            Err(Malformed)
        }
    }

    /// The message that is expected has been carried out.
    fn executed(&mut self) {
        if std::mem::replace(&mut self.rx.unanswered, true) {
            self.rx.turns = 0;
        }
        self.tx.acknowledge(self.rx.expected);
        self.rx.expected = self.rx.expected.wrapping_add(1);
    }

    /// The message that is expected will be answered by itself.
    fn answered(&mut self) {
        self.rx.expected = self.rx.expected.wrapping_add(1);
    }

    /// Answers a request that is not to be carried out; with that, the queue pair is in error.
    fn refuse(&mut self, seq: u32, nak: Nak) {
        self.rx.sink = Sink::Discard;
        // One more than was agreed: nothing follows it.
        let _ = self.tx.respond(Response::Nak(seq, nak), usize::MAX);
        self.rx.message = None;
        if let Some(qp) = &mut self.qp {
            let status = match nak {
                Nak::InvalidRequest => ibv_wc_status::IBV_WC_LOC_LEN_ERR,
                Nak::AccessError => ibv_wc_status::IBV_WC_LOC_ACCESS_ERR,
                Nak::OperationError => ibv_wc_status::IBV_WC_LOC_PROT_ERR,
            };
            if let Some(wqe) = qp.receiving.take() {
                qp.complete_recv(&wqe, Err(status), None, true);
            }
            qp.fail();
        }
    }

    /// Takes a receive for a message; without one the other side is told so.
    fn take_receive(&mut self, endpoint: &Endpoint, seq: u32) -> bool {
        let Some(qp) = &mut self.qp else {
            return false;
        };
        let wqe = match &qp.init.srq {
            Some(srq) => srq.take_or_wait(&endpoint.me),
            None => qp.rq.pop_front(),
        };
        if wqe.is_none() {
            self.rx.dropping = true;
            self.rx.owes_ready = true;
            let timer = qp.min_rnr_timer;
            self.tx.control(Frame::NotReady { seq, timer });
            return false;
        }
        qp.receiving = wqe;
        true
    }

    /// A receive was posted.
    pub fn tell_receive_posted(&mut self, endpoint: &Endpoint) {
        if std::mem::take(&mut self.rx.owes_ready) {
            self.tx.ready_again();
            self.pump(endpoint);
        }
    }

    /// Begins a frame: what it says is done, or where its payload goes is found out.
    fn begin(
        &mut self,
        endpoint: &Endpoint,
        frame: Frame,
        payload: usize,
    ) -> Result<(), Malformed> {
        match frame {
            Frame::Request(..)
            | Frame::Reply(..)
            | Frame::Reject(..)
            | Frame::Ready
            | Frame::Disconnect
            | Frame::Disconnected => return self.manage(endpoint, frame),
            _ if !matches!(
                self.phase,
                Phase::Established
                    | Phase::Accepted
                    | Phase::DisconnectSent
                    | Phase::DisconnectReceived
                    | Phase::Closed
            ) =>
            {
                return Err(Malformed);
            }
            Frame::Send { seq, flags, imm } => {
                self.rx.flags = Present { seq, flags, imm };
                if !self.serves() {
                    return Ok(());
                }
                self.begin_send(endpoint, seq, flags, payload)?;
            }
            Frame::Write {
                seq,
                flags,
                imm,
                at,
                left,
            } => {
                self.rx.flags = Present { seq, flags, imm };
                if !self.serves() {
                    return Ok(());
                }
                self.begin_write(endpoint, at, left, payload)?;
            }
            Frame::Read { seq, at, len } => {
                if !self.serves() || !self.is_next(seq)? {
                    return Ok(());
                }
                let good = u64::from(len) <= MAX_MESSAGE && self.permits(Right::Read);
                self.answered();
                if !good {
                    self.refuse(seq, Nak::InvalidRequest);
                } else if len > 0 && self.remote(at, len.into(), Right::Read).is_none() {
                    self.refuse(seq, Nak::AccessError);
                } else {
                    let left = len;
                    let most = self.mine.responder_resources.into();
                    self.tx.respond(Response::Read { seq, at, left }, most)?;
                }
            }
            Frame::Atomic { seq, at, op } => {
                if !self.serves() || !self.is_next(seq)? {
                    return Ok(());
                }
                self.answered();
                let cell = self.cell(at, Right::Atomic);
                match cell {
                    Err(nak) => self.refuse(seq, nak),
                    Ok(hold) => {
                        // SAFETY: eight aligned bytes, mapped while they are held.
                        let cell = unsafe { AtomicU64::from_ptr(hold.ptr().cast()) };
                        let value = match op {
                            AtomicOp::FetchAdd(add) => cell.fetch_add(add, Ordering::SeqCst),
                            AtomicOp::CompareSwap { compare, swap } => cell
                                .compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst)
                                .unwrap_or_else(|value| value),
                        };
                        drop(hold);
                        let most = self.mine.responder_resources.into();
                        self.tx.respond(Response::Value { seq, value }, most)?;
                    }
                }
            }
            Frame::AtomicWrite { seq, at, value, .. } => {
                if !self.serves() || !self.is_next(seq)? {
                    return Ok(());
                }
                match self.cell(at, Right::Write) {
                    Ok(hold) => {
                        // SAFETY: eight aligned bytes, mapped while they are held.
                        let cell = unsafe { AtomicU64::from_ptr(hold.ptr().cast()) };
                        cell.store(u64::from_ne_bytes(value), Ordering::SeqCst);
                        drop(hold);
                        self.executed();
                    }
                    Err(nak) => {
                        self.answered();
                        self.refuse(seq, nak);
                    }
                }
            }
            Frame::Flush {
                seq,
                at,
                len,
                kind,
                whole,
                ..
            } => {
                if !self.serves() || !self.is_next(seq)? {
                    return Ok(());
                }
                match self.flush(at, len, kind, whole) {
                    Ok(()) => self.executed(),
                    Err(nak) => {
                        self.answered();
                        self.refuse(seq, nak);
                    }
                }
            }
            Frame::Data { seq, flags } => {
                self.rx.flags = Present { seq, flags, imm: 0 };
                let Some(qp) = &mut self.qp else {
                    return Ok(());
                };
                if qp.is_error() {
                    return Ok(());
                }
                let (_, wqe) = qp.sq.begun(seq).ok_or(Malformed)?;
                let left = (wqe.len - wqe.got) as usize;
                let last = flags.contains(Flags::LAST);
                if !matches!(wqe.op, Op::Read { .. }) || payload > left || last != (payload == left)
                {
                    return Err(Malformed);
                }
                if wqe.outcome.is_none() {
                    self.rx.sink = Sink::Data(seq);
                }
            }
            Frame::Value { seq, value } => self.value(seq, value)?,
            Frame::Ack(seq) => {
                if let Some(qp) = &mut self.qp
                    && !qp.is_error()
                {
                    qp.acknowledge(seq)?;
                }
            }
            Frame::Nak(seq, nak) => {
                let status = match nak {
                    Nak::InvalidRequest => ibv_wc_status::IBV_WC_REM_INV_REQ_ERR,
                    Nak::AccessError => ibv_wc_status::IBV_WC_REM_ACCESS_ERR,
                    Nak::OperationError => ibv_wc_status::IBV_WC_REM_OP_ERR,
                };
                if let Some(qp) = &mut self.qp
                    && !qp.is_error()
                {
                    qp.sq.begun(seq).ok_or(Malformed)?;
                    // What came before it has been carried out.
                    qp.acknowledge(seq.wrapping_sub(1))?;
                    qp.fail_request(seq, status);
                }
            }
            Frame::NotReady { seq, timer } => self.not_ready(endpoint, seq, timer)?,
            Frame::ReadyAgain => {
                self.clear_timer(Timer::NotReady);
                if let Some(qp) = &mut self.qp {
                    qp.rnr_paused = false;
                }
            }
            // Once is enough.
            Frame::Failed if self.peer_failed => {}
            Frame::Failed => {
                self.peer_failed = true;
                self.set_timer(endpoint, Timer::PeerGone, PEER_GONE_TIME);
            }
        }
        Ok(())
    }

    fn begin_send(
        &mut self,
        endpoint: &Endpoint,
        seq: u32,
        flags: Flags,
        payload: usize,
    ) -> Result<(), Malformed> {
        if flags.contains(Flags::FIRST) {
            if !self.is_next(seq)? {
                return Ok(());
            }
            if !self.take_receive(endpoint, seq) {
                return Ok(());
            }
            self.rx.message = Some(Message::Send { len: 0 });
        }
        match &self.rx.message {
            Some(Message::Send { len }) if seq == self.rx.expected => {
                let receiving = self.qp.as_ref().and_then(|qp| qp.receiving.as_ref());
                let room = receiving.map_or(0, |wqe| wqe.sges.bytes().min(MAX_MESSAGE));
                if *len + payload as u64 > room {
                    self.answered();
                    self.refuse(seq, Nak::InvalidRequest);
                } else {
                    self.rx.sink = Sink::Receive;
                }
                Ok(())
            }
            None if self.rx.dropping => Ok(()),
            _ => Err(Malformed),
        }
    }

    fn begin_write(
        &mut self,
        endpoint: &Endpoint,
        at: Remote,
        left: u32,
        payload: usize,
    ) -> Result<(), Malformed> {
        let Present { seq, flags, .. } = self.rx.flags;
        let with_imm = flags.contains(Flags::IMM);
        if flags.contains(Flags::FIRST) {
            if !self.is_next(seq)? {
                return Ok(());
            }
            if u64::from(left) > MAX_MESSAGE || !self.permits(Right::Write) {
                self.answered();
                self.refuse(seq, Nak::InvalidRequest);
                return Ok(());
            }
            // All of the range or nothing.
            if left > 0 && self.remote(at, left.into(), Right::Write).is_none() {
                self.answered();
                self.refuse(seq, Nak::AccessError);
                return Ok(());
            }
            if with_imm && !self.take_receive(endpoint, seq) {
                return Ok(());
            }
            self.rx.message = Some(Message::Write {
                len: left,
                next: at,
                left,
                imm: with_imm,
            });
        }
        match &mut self.rx.message {
            // Each segment goes on where the one before has ended.
            Some(Message::Write {
                next,
                left: rest,
                imm,
                ..
            }) if seq == self.rx.expected && (*next, *rest, *imm) == (at, left, with_imm) => {
                next.addr = next.addr.wrapping_add(payload as u64);
                *rest -= payload as u32;
                self.rx.sink = Sink::Write(at);
                Ok(())
            }
            None if self.rx.dropping => Ok(()),
            _ => Err(Malformed),
        }
    }

    /// All of a frame is there.
    fn frame_ended(&mut self) -> Result<(), Malformed> {
        let Present { seq, flags, imm } = self.rx.flags;
        let last = flags.contains(Flags::LAST);
        match std::mem::take(&mut self.rx.sink) {
            Sink::Write(_) | Sink::Receive if last => {
                self.executed();
                let done = match self.rx.message.take() {
                    Some(Message::Send { len }) => (len as u32, ibv_wc_opcode::IBV_WC_RECV),
                    Some(Message::Write { len, .. }) => {
                        (len, ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM)
                    }
                    None => return Ok(()),
                };
                if let Some(qp) = &mut self.qp
                    && let Some(wqe) = qp.receiving.take()
                {
                    let with_imm = flags.contains(Flags::IMM).then_some(imm);
                    let solicited = flags.contains(Flags::SOLICITED);
                    qp.complete_recv(&wqe, Ok(done), with_imm, solicited);
                }
            }
            Sink::Data(_) if last => self.read_ended(seq)?,
            _ => {}
        }
        Ok(())
    }

    /// A read or an atomic has its data; so what was asked before it has been done.
    fn read_ended(&mut self, seq: u32) -> Result<(), Malformed> {
        let Some(qp) = &mut self.qp else {
            return Ok(());
        };
        let (_, wqe) = qp.sq.begun(seq).ok_or(Malformed)?;
        if wqe.outcome.is_none() {
            wqe.outcome = Some(ibv_wc_status::IBV_WC_SUCCESS);
            qp.sq.reads = qp.sq.reads.checked_sub(1).ok_or(Malformed)?;
        }
        qp.acknowledge(seq)
    }

    /// The answer to an atomic.
    fn value(&mut self, seq: u32, value: u64) -> Result<(), Malformed> {
        let Some(qp) = &mut self.qp else {
            return Ok(());
        };
        if qp.is_error() {
            return Ok(());
        }
        let domain = qp.init.domain.clone();
        let (_, wqe) = qp.sq.begun(seq).ok_or(Malformed)?;
        let (Op::Atomic { .. }, Payload::Memory(sges)) = (&wqe.op, &wqe.payload) else {
            return Err(Malformed);
        };
        let mut holds = std::mem::take(&mut self.rx.holds);
        let held = sges.hold(&domain, 0, 8, true, &mut holds);
        if held.is_ok() {
            let value = value.to_ne_bytes();
            let mut from = &value[..];
            for hold in holds.drain(..) {
                // SAFETY: the region is mapped while it is held, and holds are of 8 bytes in all.
                unsafe { place(from.as_ptr(), hold.ptr(), hold.len()) };
                from = &from[hold.len()..];
            }
        }
        holds.clear();
        self.rx.holds = holds;
        if held.is_err() {
            qp.fail_request(seq, ibv_wc_status::IBV_WC_LOC_PROT_ERR);
            return Ok(());
        }
        self.read_ended(seq)
    }

    /// Whether the queue pair lets the other side do that at all.
    fn permits(&self, right: Right) -> bool {
        let permitted = |qp: &Qp| qp.access & right.bit() != 0;
        self.qp.as_deref().is_some_and(permitted)
    }

    fn remote(&self, at: Remote, len: u64, right: Right) -> Option<Hold> {
        let qp = self.qp.as_ref()?;
        qp.init.domain.remote(at.rkey, at.addr, len, right).ok()
    }

    /// Eight bytes that are accessed as one.
    fn cell(&self, at: Remote, right: Right) -> Result<Hold, Nak> {
        if !self.permits(right) || !at.addr.is_multiple_of(8) {
            return Err(Nak::InvalidRequest);
        }
        let hold = self.remote(at, 8, right).ok_or(Nak::AccessError)?;
        // A region may begin anywhere in memory while its addresses are aligned.
        if !(hold.ptr() as usize).is_multiple_of(8) {
            return Err(Nak::InvalidRequest);
        }
        Ok(hold)
    }

    /// Sees to it that what was written before is seen by all, and survives if that was asked for.
    fn flush(&self, at: Remote, len: u64, kind: FlushKind, whole: bool) -> Result<(), Nak> {
        let Some(qp) = &self.qp else {
            return Err(Nak::OperationError);
        };
        let domain = &qp.init.domain;
        let hold = |right| {
            if !self.permits(right) {
                return Err(Nak::InvalidRequest);
            }
            let held = if whole {
                domain.remote_whole(at.rkey, right)
            } else {
                domain.remote(at.rkey, at.addr, len, right)
            };
            held.map_err(|_| Nak::AccessError)
        };
        if kind != FlushKind::Persistent {
            hold(Right::FlushGlobal)?;
        }
        if kind != FlushKind::Global {
            let held = hold(Right::FlushPersistent)?;
            held.persist().map_err(|_| Nak::OperationError)?;
        }
        std::sync::atomic::fence(Ordering::SeqCst);
        Ok(())
    }

    /// The other side has no receive for a request, and dropped it with all after it.
    fn not_ready(&mut self, endpoint: &Endpoint, seq: u32, timer: u8) -> Result<(), Malformed> {
        let Some(qp) = &mut self.qp else {
            return Ok(());
        };
        if qp.is_error() {
            return Ok(());
        }
        let (_, wqe) = qp.sq.begun(seq).ok_or(Malformed)?;
        let outcome = wqe.outcome;
        if !wqe.op.takes_receive() || outcome == Some(ibv_wc_status::IBV_WC_SUCCESS) {
            return Err(Malformed);
        }
        qp.acknowledge(seq.wrapping_sub(1))?;
        // It failed on its way, and is not sent again.
        if outcome.is_some() {
            return Ok(());
        }
        qp.rewind(seq);
        qp.rnr_paused = true;
        match qp.rnr_left {
            // However long it takes.
            7 => {}
            0 => qp.fail_request(seq, ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR),
            _ => self.set_timer(endpoint, Timer::NotReady, rnr_time(timer)),
        }
        Ok(())
    }

    /// The time for the other side to post a receive is over: its request is sent again, if it may
    /// be.
    pub fn try_again(&mut self, endpoint: &Endpoint) {
        if let Some(qp) = &mut self.qp
            && qp.rnr_paused
        {
            qp.rnr_paused = false;
            match qp.rnr_left.checked_sub(1) {
                Some(left) => qp.rnr_left = left,
                None => {
                    let seq = qp.sq.seq(qp.sq.sent);
                    qp.fail_request(seq, ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR);
                }
            }
        }
        self.pump(endpoint);
    }
}

/// Copies to memory that programs look at. What may be looked at as a whole is written as a whole.
unsafe fn place(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: both are valid for `len` bytes as the caller says, and do not overlap: one is a
    // buffer of this library.
    unsafe {
        if len == 8 && (to as usize).is_multiple_of(8) {
            let value = from.cast::<u64>().read_unaligned();
            AtomicU64::from_ptr(to.cast()).store(value, Ordering::Release);
        } else {
            std::sync::atomic::fence(Ordering::Release);
            ptr::copy_nonoverlapping(from, to, len);
        }
    }
}

/// The times that the field stands for, in hundredths of a millisecond (InfiniBand specification,
/// encoding for RNR NAK timer field).
fn rnr_time(timer: u8) -> Duration {
    const TIMES: [u64; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    Duration::from_micros(TIMES[timer as usize & 31] * 10)
}
