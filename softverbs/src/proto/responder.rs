//! What the other side asks: messages in their order, what is carried out, what is answered.

use super::frames::{
    AtomicOp, Flags, FlushKind, Frame, MAX_MESSAGE, Malformed, Nak, Remote, SEGMENT,
};
use super::host::{Host, Right};
use super::outbound::{Bulk, COPY, Outbound, Source, TAIL};
use super::wqe::{Completion, Opcode, RecvQueue, RecvWqe, Status, bytes};
use std::collections::VecDeque;

/// An operation that is to be carried out by whoever has the memory, and reported as done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// On eight aligned bytes, in one step. The result is the value before.
    Atomic { at: Remote, op: AtomicOp },
    /// To eight aligned bytes, in one step.
    AtomicWrite { at: Remote, value: [u8; 8] },
    /// What was written before is seen by all, and survives a power failure if that is asked for.
    Flush {
        at: Remote,
        len: u64,
        kind: FlushKind,
        /// All of the region, not only the range.
        whole: bool,
    },
}

/// Where the payload of a frame goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sink {
    #[default]
    Discard,
    Write(Remote),
    /// The receive of the message, from an offset on.
    Receive(u64),
}

/// An answer to a request, in the order of the requests.
#[derive(Debug)]
enum Reply {
    Read { seq: u32, at: Remote, left: u32 },
    Value { seq: u32, value: u64 },
    Nak(u32, Nak),
}

/// A message of which not all has come.
#[derive(Debug)]
enum Message {
    Send {
        len: u64,
    },
    Write {
        len: u32,
        /// Where the next segment goes, how much is left from it on, and whether the message has
        /// immediate data.
        next: Remote,
        left: u32,
        imm: bool,
    },
}

/// One segment of a message, as its frame says.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    pub seq: u32,
    pub flags: Flags,
    pub imm: u32,
    pub payload: usize,
}

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// Nothing more is to be done.
    Done,
    /// The message has been carried out: it is to be acknowledged.
    Acknowledge,
    /// No receive was posted: the message is to be refused with an RNR NAK.
    NotReady,
    /// It was refused: the queue pair must fail.
    Failed,
}

#[derive(Debug)]
pub struct Responder {
    rq: RecvQueue,
    /// Receives come from a shared receive queue.
    srq: bool,
    /// What the present message is received into, if it is received into something.
    wqe: RecvWqe,
    receiving: bool,
    message: Option<Message>,
    /// The number of the message that comes next.
    expected: u32,
    /// A message found no receive: it comes again, and all that comes before is dropped.
    dropping: bool,
    /// The other side waits to be told of a receive.
    owes_ready: bool,
    replies: VecDeque<Reply>,
    /// How many requests that are answered with data may wait, as both sides agreed.
    pub max_reads: usize,
    order: Option<(u32, Order)>,
    /// What the other side may do at all: `enum ibv_access_flags`.
    pub access: u32,
    pub min_rnr_timer: u8,
}

impl Responder {
    /// `None` if there is no memory for it.
    pub fn new(
        max_wr: usize,
        max_sge: usize,
        srq: bool,
        access: u32,
        most_reads: usize,
    ) -> Option<Self> {
        let mut replies = VecDeque::new();
        // One more, that refuses.
        replies.try_reserve_exact(most_reads + 1).ok()?;
        Some(Responder {
            rq: RecvQueue::new(max_wr, max_sge)?,
            srq,
            wqe: RecvWqe::default(),
            receiving: false,
            message: None,
            expected: 0,
            dropping: false,
            owes_ready: false,
            replies,
            max_reads: 0,
            order: None,
            access,
            min_rnr_timer: 0,
        })
    }

    /// A new connection begins.
    pub fn start(&mut self, max_reads: usize) {
        self.max_reads = max_reads;
        self.stop();
    }

    /// The connection is gone: nothing of a message that was begun is left.
    pub fn stop(&mut self) {
        self.message = None;
        self.expected = 0;
        self.dropping = false;
        self.owes_ready = false;
        self.replies.clear();
        self.order = None;
    }

    // ---- receives ----

    pub fn rq(&mut self) -> &mut RecvQueue {
        &mut self.rq
    }

    pub fn has_srq(&self) -> bool {
        self.srq
    }

    /// A receive was posted. Returns whether the other side is to be told.
    pub fn receive_posted(&mut self) -> bool {
        std::mem::take(&mut self.owes_ready)
    }

    /// What the present message is received into.
    pub fn receiving(&self) -> Option<&RecvWqe> {
        self.receiving.then_some(&self.wqe)
    }

    /// As [`Responder::receiving`]; nothing is received into it any more.
    fn end_receive(&mut self) -> Option<u64> {
        std::mem::take(&mut self.receiving).then_some(self.wqe.wr_id)
    }

    /// Takes a receive for a message.
    fn take_receive(&mut self, host: &mut impl Host) -> bool {
        self.receiving = if self.srq {
            host.take_shared_receive(&mut self.wqe)
        } else {
            self.rq.pop(&mut self.wqe)
        };
        if !self.receiving {
            self.dropping = true;
            self.owes_ready = true;
        }
        self.receiving
    }

    // ---- requests ----

    /// Whether the message of that number is the one to carry out now. Another one is nonsense,
    /// unless messages are being dropped.
    fn is_next(&mut self, seq: u32) -> Result<bool, Malformed> {
        if self.message.is_some() || self.order.is_some() {
            return Err(Malformed);
        }
        if seq == self.expected {
            self.dropping = false;
            return Ok(true);
        }
        if self.dropping {
            Ok(false)
        } else {
            Err(Malformed)
        }
    }

    fn permits(&self, right: Right) -> bool {
        self.access & right.bit() != 0
    }

    /// The number of the last message that was carried out.
    pub fn last(&self) -> u32 {
        self.expected.wrapping_sub(1)
    }

    /// The number of the message that comes next.
    pub fn next_expected(&self) -> u32 {
        self.expected
    }

    fn next(&mut self) {
        self.expected = self.expected.wrapping_add(1);
    }

    /// Adds the answer to a request that is not carried out. The queue pair fails with it.
    fn refuse(&mut self, seq: u32, nak: Nak, host: &mut impl Host) -> Verdict {
        self.replies.push_back(Reply::Nak(seq, nak));
        self.message = None;
        if let Some(wr_id) = self.end_receive() {
            let status = match nak {
                Nak::InvalidRequest => Status::LocLen,
                Nak::AccessError => Status::LocAccess,
                Nak::OperationError => Status::LocProt,
            };
            host.complete(recv_completion(wr_id, status));
        }
        Verdict::Failed
    }

    /// Refuses the message that is expected.
    fn refuse_next(&mut self, nak: Nak, host: &mut impl Host) -> Verdict {
        let seq = self.expected;
        self.next();
        self.refuse(seq, nak, host)
    }

    /// The memory that the present payload goes to has gone away.
    /// The queue pair must fail.
    pub fn refuse_payload(&mut self, sink: Sink, host: &mut impl Host) {
        let nak = match sink {
            Sink::Receive(_) => Nak::OperationError,
            _ => Nak::AccessError,
        };
        let _: Verdict = self.refuse(self.expected, nak, host);
    }

    pub fn send(
        &mut self,
        segment: &Segment,
        host: &mut impl Host,
    ) -> Result<(Verdict, Sink), Malformed> {
        let seq = segment.seq;
        if segment.flags.contains(Flags::FIRST) {
            if !self.is_next(seq)? {
                return Ok((Verdict::Done, Sink::Discard));
            }
            if !self.take_receive(host) {
                return Ok((Verdict::NotReady, Sink::Discard));
            }
            self.message = Some(Message::Send { len: 0 });
        }
        match &mut self.message {
            Some(Message::Send { len }) if seq == self.expected => {
                let room = if self.receiving {
                    bytes(self.wqe.sges())
                } else {
                    0
                };
                let offset = *len;
                *len += segment.payload as u64;
                if *len > room.min(MAX_MESSAGE) {
                    let verdict = self.refuse_next(Nak::InvalidRequest, host);
                    return Ok((verdict, Sink::Discard));
                }
                Ok((Verdict::Done, Sink::Receive(offset)))
            }
            None if self.dropping => Ok((Verdict::Done, Sink::Discard)),
            _ => Err(Malformed),
        }
    }

    pub fn write(
        &mut self,
        segment: &Segment,
        at: Remote,
        left: u32,
        host: &mut impl Host,
    ) -> Result<(Verdict, Sink), Malformed> {
        let Segment {
            seq,
            flags,
            payload,
            ..
        } = *segment;
        let with_imm = flags.contains(Flags::IMM);
        if flags.contains(Flags::FIRST) {
            if !self.is_next(seq)? {
                return Ok((Verdict::Done, Sink::Discard));
            }
            // All of the range or nothing.
            let refusal = if u64::from(left) > MAX_MESSAGE || !self.permits(Right::Write) {
                Some(Nak::InvalidRequest)
            } else if left > 0 && !host.permits(at, left.into(), Right::Write) {
                Some(Nak::AccessError)
            } else {
                None
            };
            if let Some(nak) = refusal {
                return Ok((self.refuse_next(nak, host), Sink::Discard));
            }
            if with_imm && !self.take_receive(host) {
                return Ok((Verdict::NotReady, Sink::Discard));
            }
            self.message = Some(Message::Write {
                len: left,
                next: at,
                left,
                imm: with_imm,
            });
        }
        match &mut self.message {
            // Each segment goes on where the one before has ended.
            Some(Message::Write {
                next,
                left: rest,
                imm,
                ..
            }) if seq == self.expected && (*next, *rest, *imm) == (at, left, with_imm) => {
                next.addr = next.addr.wrapping_add(payload as u64);
                *rest -= payload as u32;
                Ok((Verdict::Done, Sink::Write(at)))
            }
            None if self.dropping => Ok((Verdict::Done, Sink::Discard)),
            _ => Err(Malformed),
        }
    }

    /// All of a segment is in its place.
    pub fn segment_ended(&mut self, segment: &Segment, host: &mut impl Host) -> Verdict {
        if !segment.flags.contains(Flags::LAST) {
            return Verdict::Done;
        }
        let (len, opcode) = match self.message.take() {
            Some(Message::Send { len }) => (len as u32, Opcode::Recv),
            Some(Message::Write { len, .. }) => (len, Opcode::RecvWriteImm),
            None => return Verdict::Done,
        };
        self.next();
        if let Some(wr_id) = self.end_receive() {
            host.complete(Completion {
                byte_len: len,
                opcode,
                imm: segment.flags.contains(Flags::IMM).then_some(segment.imm),
                solicited: segment.flags.contains(Flags::SOLICITED),
                ..recv_completion(wr_id, Status::Success)
            });
        }
        Verdict::Acknowledge
    }

    pub fn read(
        &mut self,
        seq: u32,
        at: Remote,
        len: u32,
        host: &mut impl Host,
    ) -> Result<Verdict, Malformed> {
        if !self.is_next(seq)? {
            return Ok(Verdict::Done);
        }
        if u64::from(len) > MAX_MESSAGE || !self.permits(Right::Read) {
            return Ok(self.refuse_next(Nak::InvalidRequest, host));
        }
        if len > 0 && !host.permits(at, len.into(), Right::Read) {
            return Ok(self.refuse_next(Nak::AccessError, host));
        }
        self.next();
        let left = len;
        self.reply(Reply::Read { seq, at, left })?;
        Ok(Verdict::Done)
    }

    /// Adds an answer; the other side may not ask for more at once than was agreed.
    fn reply(&mut self, reply: Reply) -> Result<(), Malformed> {
        if self.replies.len() >= self.max_reads {
            return Err(Malformed);
        }
        self.replies.push_back(reply);
        Ok(())
    }

    /// Takes a request that is carried out elsewhere.
    pub fn order(
        &mut self,
        seq: u32,
        order: Order,
        host: &mut impl Host,
    ) -> Result<Verdict, Malformed> {
        if !self.is_next(seq)? {
            return Ok(Verdict::Done);
        }
        let (at, len, rights): (Remote, u64, [Option<Right>; 2]) = match order {
            Order::Atomic { at, .. } => (at, 8, [Some(Right::Atomic), None]),
            Order::AtomicWrite { at, .. } => (at, 8, [Some(Right::Write), None]),
            Order::Flush {
                at,
                len,
                kind,
                whole,
            } => {
                let global = (kind != FlushKind::Persistent).then_some(Right::FlushGlobal);
                let persistent = (kind != FlushKind::Global).then_some(Right::FlushPersistent);
                (at, if whole { 0 } else { len }, [global, persistent])
            }
        };
        let aligned = matches!(order, Order::Flush { .. }) || at.addr.is_multiple_of(8);
        for right in rights.into_iter().flatten() {
            if !aligned || !self.permits(right) {
                return Ok(self.refuse_next(Nak::InvalidRequest, host));
            }
            let whole = matches!(order, Order::Flush { whole: true, .. });
            // Of a whole region, whoever carries the order out finds the range.
            if !whole && !host.permits(at, len, right) {
                return Ok(self.refuse_next(Nak::AccessError, host));
            }
        }
        if matches!(order, Order::Atomic { .. }) && self.replies.len() >= self.max_reads {
            return Err(Malformed);
        }
        self.order = Some((seq, order));
        Ok(Verdict::Done)
    }

    /// The operation that is to be carried out, until it is reported as done.
    pub fn pending(&self) -> Option<Order> {
        self.order.map(|(_, order)| order)
    }

    /// The order has been carried out, with the value that an atomic found, or is refused.
    pub fn done(&mut self, result: Result<u64, Nak>, host: &mut impl Host) -> Verdict {
        let Some((seq, order)) = self.order.take() else {
            return Verdict::Done;
        };
        match (result, order) {
            (Err(nak), _) => self.refuse_next(nak, host),
            (Ok(value), Order::Atomic { .. }) => {
                self.next();
                self.replies.push_back(Reply::Value { seq, value });
                Verdict::Done
            }
            (Ok(_), _) => {
                self.next();
                Verdict::Acknowledge
            }
        }
    }

    /// The queue pair failed while the order was under way.
    pub fn drop_order(&mut self) {
        self.order = None;
    }

    // ---- answers ----

    pub fn has_replies(&self) -> bool {
        !self.replies.is_empty()
    }

    /// The queue pair is gone, and what it would have answered.
    pub fn drop_replies(&mut self) {
        self.replies.clear();
    }

    /// Adds the next frame of an answer. Fails if the memory has gone away since the request came.
    pub fn answer(&mut self, out: &mut Outbound, host: &impl Host) -> Result<bool, Gone> {
        let (seq, at, left) = match self.replies.front_mut() {
            None => return Ok(false),
            Some(Reply::Value { seq, value }) => {
                let frame = Frame::Value {
                    seq: *seq,
                    value: *value,
                };
                out.frame(&frame, 0);
                self.replies.pop_front();
                return Ok(true);
            }
            Some(Reply::Nak(seq, nak)) => {
                out.frame(&Frame::Nak(*seq, *nak), 0);
                self.replies.pop_front();
                return Ok(true);
            }
            Some(Reply::Read { seq, at, left }) => (*seq, at, left),
        };
        let part = (*left as usize).min(SEGMENT);
        let last = *left as usize == part;
        let data = |last| Frame::Data {
            seq,
            flags: if last { Flags::LAST } else { Flags::empty() },
        };
        let from = *at;
        let copied = if part == 0 {
            out.frame(&data(true), 0);
            true
        } else if part <= COPY {
            out.copied(&data(last), part, |to| host.read_remote(from, part, to))
        } else {
            let cut = if last { TAIL } else { 0 };
            let end = Remote {
                addr: from.addr.wrapping_add((part - cut) as u64),
                ..from
            };
            let tail = !last || out.tail(&data(true), |to| host.read_remote(end, TAIL, to));
            let all = tail && host.permits(from, part as u64, Right::Read);
            if all {
                let bulk = Bulk {
                    source: Source::Region { seq, at: from },
                    left: part - cut,
                };
                out.bulk(&data(false), bulk);
            } else {
                out.drop_tail();
            }
            all
        };
        if !copied {
            return Err(Gone(seq));
        }
        at.addr = at.addr.wrapping_add(part as u64);
        *left -= part as u32;
        if last {
            self.replies.pop_front();
        }
        Ok(true)
    }

    /// The memory of an answer has gone away: that is refused, and nothing after it is answered.
    pub fn refuse_answer(&mut self, seq: u32) {
        self.replies.clear();
        self.replies.push_back(Reply::Nak(seq, Nak::AccessError));
    }

    // ---- ending ----

    /// Completes all receives as flushed.
    pub fn flush(&mut self, host: &mut impl Host) {
        if let Some(wr_id) = self.end_receive() {
            host.complete(recv_completion(wr_id, Status::WrFlush));
        }
        while self.rq.pop(&mut self.wqe) {
            host.complete(recv_completion(self.wqe.wr_id, Status::WrFlush));
        }
    }

    /// Forgets all that was posted and all that the other side has asked.
    pub fn reset(&mut self) {
        self.stop();
        self.rq.clear();
        self.receiving = false;
    }
}

/// The memory that an answer is read from has gone away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone(pub u32);

/// A completion of a receive that ended like this.
pub fn recv_completion(wr_id: u64, status: Status) -> Completion {
    Completion {
        wr_id,
        status,
        opcode: Opcode::Recv,
        byte_len: 0,
        imm: None,
        solicited: status != Status::Success,
        seq: 0,
    }
}
