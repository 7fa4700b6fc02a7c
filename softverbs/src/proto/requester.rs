//! The send queue of a queue pair: what is posted, what has been sent of it, how it ends.

use super::frames::{Flags, Frame, Malformed, Nak, Remote, SEGMENT};
use super::host::Host;
use super::outbound::{Bulk, COPY, Outbound, Source, TAIL};
use super::wqe::{Completion, Op, Sge, Status, boxed, bytes};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// `rnr_retry` that has no end.
pub const RNR_RETRY_FOREVER: u8 = 7;

/// A send request.
#[derive(Clone, Copy, Debug)]
pub struct SendWqe {
    pub wr_id: u64,
    pub op: Op,
    /// How many bytes it moves.
    pub len: u32,
    /// Its payload was copied when it was posted.
    pub inline: bool,
    /// How many pieces of memory it has.
    pub sges: u8,
    pub signaled: bool,
    pub fence: bool,
    pub solicited: bool,
}

/// A request in the queue.
#[derive(Debug)]
struct Entry {
    wqe: SendWqe,
    /// How it ended, if it has. It completes when all before it have.
    outcome: Option<Status>,
    /// Of a read, how much has come.
    got: u32,
}

/// What of a request the driver needs to move its payload.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    Memory(&'a [Sge]),
    Inline(&'a [u8]),
}

/// The requests that have not completed, each with its number.
///
/// A request's number is its place in the queue since the queue pair was made. On the wire the
/// numbers begin at 0 with each connection.
#[derive(Debug)]
pub struct Requester {
    entries: VecDeque<Entry>,
    /// The number of the first entry.
    first: u32,
    /// The number that is 0 on the wire.
    base: u32,
    /// How many entries have been sent whole.
    sent: usize,
    /// How much of the next one has been sent.
    offset: u32,
    /// Of those sent, how many wait for data.
    reads: u32,
    /// The first of them that has ended badly. It completes when those before it have, which may
    /// have to be sent again; what comes after it is not sent.
    failed: Option<u32>,
    max_wr: usize,
    max_sge: usize,
    max_inline: usize,
    /// Of each request its pieces and its inline data, by its number. A power of two, so that
    /// no two requests share one where the numbers wrap.
    slots: usize,
    sges: Box<[Sge]>,
    inline: Box<[u8]>,
    /// How many reads may be outstanding, as both sides agreed.
    pub max_reads: u32,
    /// How often to send again when the other side has no receive.
    pub rnr_retry: u8,
    rnr_left: u8,
    /// The other side said that it has no receive.
    rnr_wait: bool,
}

impl Requester {
    /// `None` if there is no memory for it.
    pub fn new(max_wr: usize, max_sge: usize, max_inline: usize) -> Option<Self> {
        let mut entries = VecDeque::new();
        entries.try_reserve_exact(max_wr).ok()?;
        let slots = max_wr.checked_next_power_of_two()?;
        Some(Requester {
            entries,
            first: 0,
            base: 0,
            sent: 0,
            offset: 0,
            reads: 0,
            failed: None,
            max_wr,
            max_sge,
            max_inline,
            slots,
            sges: boxed(slots.checked_mul(max_sge)?, Sge::default())?,
            inline: boxed(slots.checked_mul(max_inline)?, 0)?,
            max_reads: 0,
            rnr_retry: RNR_RETRY_FOREVER,
            rnr_left: RNR_RETRY_FOREVER,
            rnr_wait: false,
        })
    }

    // ---- posting ----

    pub fn max_sge(&self) -> usize {
        self.max_sge
    }

    pub fn max_inline(&self) -> usize {
        self.max_inline
    }

    /// How many requests can be posted, where the program has polled a completion of the request
    /// before number `retired`, and of none behind it. A completion frees the place of its request
    /// and of all before it, as on a NIC: those that asked for none keep theirs until then.
    pub fn room(&self, retired: u32) -> usize {
        let used = self.next_number().wrapping_sub(retired) as usize;
        self.max_wr.saturating_sub(used)
    }

    /// The number of the request that is posted next.
    pub fn next_number(&self) -> u32 {
        self.first.wrapping_add(self.entries.len() as u32)
    }

    /// Where the pieces of the request that is posted next go.
    pub fn next_sges(&mut self) -> &mut [Sge] {
        let slot = self.slot(self.next_number()) * self.max_sge;
        self.sges
            .get_mut(slot..slot + self.max_sge)
            .unwrap_or_default()
    }

    /// Where inline data of the request that is posted next goes.
    pub fn next_inline(&mut self) -> &mut [u8] {
        let slot = self.slot(self.next_number()) * self.max_inline;
        self.inline
            .get_mut(slot..slot + self.max_inline)
            .unwrap_or_default()
    }

    /// Adds a request, whose payload is in its slot. There must be room.
    pub fn push(&mut self, wqe: SendWqe) {
        self.entries.push_back(Entry {
            wqe,
            outcome: None,
            got: 0,
        });
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether all that was posted has been sent.
    pub fn is_sent(&self) -> bool {
        self.sent == self.entries.len()
    }

    fn slot(&self, number: u32) -> usize {
        number as usize & (self.slots - 1)
    }

    fn sges_of(&self, number: u32, n: usize) -> &[Sge] {
        let slot = self.slot(number) * self.max_sge;
        self.sges.get(slot..slot + n).unwrap_or_default()
    }

    fn inline_of(&self, number: u32, len: usize) -> &[u8] {
        let slot = self.slot(number) * self.max_inline;
        self.inline.get(slot..slot + len).unwrap_or_default()
    }

    // ---- numbers ----

    /// The index of a number that came over the wire; out of range if there is none.
    fn index(&self, seq: u32) -> usize {
        seq.wrapping_add(self.base).wrapping_sub(self.first) as usize
    }

    fn number(&self, i: usize) -> u32 {
        self.first.wrapping_add(i as u32)
    }

    /// The number of an entry on the wire.
    fn seq(&self, i: usize) -> u32 {
        self.number(i).wrapping_sub(self.base)
    }

    /// The index of that number if the request has been begun to send.
    fn begun(&self, seq: u32) -> Option<usize> {
        let i = self.index(seq);
        let end = self.sent + usize::from(self.offset > 0);
        (i < end.min(self.entries.len())).then_some(i)
    }

    fn is_cut_off(&self, i: usize) -> bool {
        self.failed.is_some_and(|seq| i >= self.index(seq))
    }

    /// A new connection begins.
    pub fn start(&mut self, max_reads: u32, rnr_retry: u8) {
        self.base = self.first;
        self.max_reads = max_reads;
        self.set_rnr_retry(rnr_retry);
    }

    pub fn set_rnr_retry(&mut self, rnr_retry: u8) {
        self.rnr_retry = rnr_retry;
        self.rnr_left = rnr_retry;
    }

    /// Where the payload of a request is, or goes.
    pub fn payload(&self, seq: u32) -> Option<Payload<'_>> {
        let i = self.begun(seq)?;
        let wqe = &self.entries.get(i)?.wqe;
        let number = self.number(i);
        Some(if wqe.inline {
            Payload::Inline(self.inline_of(number, wqe.len as usize))
        } else {
            Payload::Memory(self.sges_of(number, wqe.sges.into()))
        })
    }

    // ---- sending ----

    /// Adds the next frame of a request; false if there is none to send now.
    pub fn send(&mut self, out: &mut Outbound, host: &mut impl Host) -> Result<bool, Failed> {
        if self.rnr_wait {
            return Ok(false);
        }
        let (i, offset) = (self.sent, self.offset);
        let Some(Entry {
            wqe, outcome: None, ..
        }) = self.entries.get(i)
        else {
            return Ok(false);
        };
        let wqe = *wqe;
        if self.is_cut_off(i) {
            return Ok(false);
        }
        if offset == 0 {
            if wqe.fence {
                let waits = |one: &Entry| one.wqe.op.holds_fence() && one.outcome.is_none();
                if self.entries.range(..i).any(waits) {
                    return Ok(false);
                }
            }
            let is_read = wqe.op.is_read();
            if is_read && self.reads >= self.max_reads && self.max_reads > 0 {
                return Ok(false);
            }
            let sges = self.sges_of(self.number(i), wqe.sges.into());
            let refused = if is_read && self.max_reads == 0 {
                Some(Status::LocQpOp)
            } else if !wqe.inline && !host.may_use(sges, is_read) {
                Some(Status::LocProt)
            } else {
                None
            };
            if let Some(status) = refused {
                self.fail_at(i, status, host)?;
                return Ok(true);
            }
        }
        let seq = self.seq(i);
        let flags = Flags::empty();
        let part = match wqe.op {
            Op::Send { .. } | Op::Write { .. } => {
                let left = wqe.len - offset;
                let part = left.min(SEGMENT as u32);
                if !self.send_part(i, &wqe, part, out, host) {
                    self.fail_at(i, Status::LocProt, host)?;
                    return Ok(true);
                }
                part
            }
            Op::Read { at } => {
                let len = wqe.len;
                out.frame(&Frame::Read { seq, at, len }, 0);
                wqe.len
            }
            Op::Atomic { at, op } => {
                out.frame(&Frame::Atomic { seq, at, op }, 0);
                wqe.len
            }
            Op::AtomicWrite { at, value } => {
                let frame = Frame::AtomicWrite {
                    seq,
                    flags,
                    at,
                    value,
                };
                out.frame(&frame, 0);
                wqe.len
            }
            Op::Flush {
                at,
                len,
                kind,
                whole,
            } => {
                let frame = Frame::Flush {
                    seq,
                    flags,
                    at,
                    len,
                    kind,
                    whole,
                };
                out.frame(&frame, 0);
                wqe.len
            }
        };
        if wqe.op.is_read() {
            self.reads += 1;
        }
        if offset + part == wqe.len {
            self.sent += 1;
            self.offset = 0;
        } else {
            self.offset += part;
        }
        Ok(true)
    }

    /// Adds the frame of a part of a message; false if its memory can't be read any more.
    fn send_part(
        &self,
        i: usize,
        wqe: &SendWqe,
        part: u32,
        out: &mut Outbound,
        host: &impl Host,
    ) -> bool {
        let (seq, offset) = (self.seq(i), self.offset);
        let frame = |from, len| message_frame(wqe, seq, from, len);
        if part == 0 {
            out.frame(&frame(offset, 0), 0);
            return true;
        }
        let len = part as usize;
        if wqe.inline {
            let data = self.inline_of(self.number(i), wqe.len as usize);
            let Some(data) = data.get(offset as usize..offset as usize + len) else {
                return false;
            };
            return out.copied(&frame(offset, part), len, |to| {
                to.extend_from_slice(data);
                true
            });
        }
        let sges = self.sges_of(self.number(i), wqe.sges.into());
        if len <= COPY {
            return out.copied(&frame(offset, part), len, |to| {
                host.read_local(sges, offset.into(), len, to)
            });
        }
        let mut before = part;
        if offset + part == wqe.len {
            before -= TAIL as u32;
            let from = offset + before;
            let copied = out.tail(&frame(from, TAIL as u32), |to| {
                host.read_local(sges, from.into(), TAIL, to)
            });
            if !copied {
                return false;
            }
        }
        let bulk = Bulk {
            source: Source::Request { seq, offset },
            left: before as usize,
        };
        out.bulk(&frame(offset, before), bulk);
        true
    }

    // ---- what the other side answers ----

    /// All up to that request has been carried out. Those that wait for data still do.
    pub fn acknowledged(&mut self, seq: u32, host: &mut impl Host) -> Result<Outcome, Malformed> {
        let n = self.index(seq).wrapping_add(1) as u32;
        // Acknowledged before.
        if n > u32::MAX / 2 || n == 0 {
            return Ok(Outcome::Good);
        }
        let n = n as usize;
        if n > self.sent {
            return Err(Malformed);
        }
        for entry in self.entries.range_mut(..n) {
            if !entry.wqe.op.is_read() && entry.outcome.is_none() {
                entry.outcome = Some(Status::Success);
            }
        }
        self.rnr_left = self.rnr_retry;
        Ok(outcome(self.complete(host)))
    }

    /// The other side has refused a request.
    pub fn refused(
        &mut self,
        seq: u32,
        nak: Nak,
        host: &mut impl Host,
    ) -> Result<Outcome, Malformed> {
        self.begun(seq).ok_or(Malformed)?;
        // What came before it has been carried out.
        if self.acknowledged(seq.wrapping_sub(1), host)? == Outcome::Failed {
            return Ok(Outcome::Failed);
        }
        let status = match nak {
            Nak::InvalidRequest => Status::RemInvReq,
            Nak::AccessError => Status::RemAccess,
            Nak::OperationError => Status::RemOp,
        };
        Ok(outcome(self.fail_at(self.index(seq), status, host)))
    }

    /// Payload of a read is about to come. Returns whether it is still wanted.
    pub fn data(&self, seq: u32, payload: usize, last: bool) -> Result<bool, Malformed> {
        let i = self.begun(seq).ok_or(Malformed)?;
        let entry = self.entries.get(i).ok_or(Malformed)?;
        let left = (entry.wqe.len - entry.got) as usize;
        if !matches!(entry.wqe.op, Op::Read { .. }) || payload > left || last != (payload == left) {
            return Err(Malformed);
        }
        Ok(entry.outcome.is_none())
    }

    /// How much of a read has come.
    pub fn got(&self, seq: u32) -> u32 {
        let entry = self.begun(seq).and_then(|i| self.entries.get(i));
        entry.map_or(0, |entry| entry.got)
    }

    /// `n` more bytes of a read are in their place.
    pub fn placed(&mut self, seq: u32, n: usize) {
        if let Some(entry) = self.begun(seq).and_then(|i| self.entries.get_mut(i)) {
            entry.got += n as u32;
        }
    }

    /// A read or an atomic has its data, so what was asked before it has been carried out.
    pub fn read_ended(&mut self, seq: u32, host: &mut impl Host) -> Result<Outcome, Malformed> {
        let i = self.begun(seq).ok_or(Malformed)?;
        let entry = self.entries.get_mut(i).ok_or(Malformed)?;
        if entry.outcome.is_none() {
            entry.outcome = Some(Status::Success);
            self.reads = self.reads.checked_sub(1).ok_or(Malformed)?;
        }
        self.acknowledged(seq, host)
    }

    /// The value that an atomic found. It may come once.
    pub fn value(
        &mut self,
        seq: u32,
        value: u64,
        host: &mut impl Host,
    ) -> Result<Outcome, Malformed> {
        let i = self.begun(seq).ok_or(Malformed)?;
        let entry = self.entries.get(i).ok_or(Malformed)?;
        if !matches!(entry.wqe.op, Op::Atomic { .. }) {
            return Err(Malformed);
        }
        let sges = self.sges_of(self.number(i), entry.wqe.sges.into());
        if !host.write_local(sges, 0, &value.to_ne_bytes()) {
            return Ok(outcome(self.fail_at(i, Status::LocProt, host)));
        }
        self.read_ended(seq, host)
    }

    /// The other side has no receive for a request, and dropped it with all after it. Returns when
    /// to send them again, if that has a time.
    pub fn rnr_nak(
        &mut self,
        seq: u32,
        timer: u8,
        now: Instant,
        host: &mut impl Host,
    ) -> Result<(Outcome, Option<Instant>), Malformed> {
        let i = self.begun(seq).ok_or(Malformed)?;
        let entry = self.entries.get(i).ok_or(Malformed)?;
        let ended = entry.outcome;
        if !entry.wqe.op.takes_receive() || ended == Some(Status::Success) {
            return Err(Malformed);
        }
        let before = self.acknowledged(seq.wrapping_sub(1), host)?;
        // One that failed on its way is not sent again.
        if before == Outcome::Failed || ended.is_some() {
            return Ok((before, None));
        }
        self.rewind(self.index(seq));
        if self.rnr_left == 0 {
            let i = self.sent;
            return Ok((outcome(self.fail_at(i, Status::RnrRetryExc, host)), None));
        }
        self.rnr_wait = true;
        let again = (self.rnr_left != RNR_RETRY_FOREVER).then(|| now + rnr_time(timer));
        Ok((Outcome::Good, again))
    }

    /// The time for the other side to post a receive is over: its request is sent again.
    pub fn rnr_expired(&mut self) {
        if std::mem::take(&mut self.rnr_wait) {
            self.rnr_left = self.rnr_left.saturating_sub(1);
        }
    }

    /// The other side has posted a receive.
    pub fn receive_posted_there(&mut self) {
        self.rnr_wait = false;
    }

    /// Sends again from that entry on.
    fn rewind(&mut self, i: usize) {
        let sent = self.sent;
        for entry in self.entries.range_mut(i.min(sent)..sent) {
            if entry.wqe.op.is_read() && entry.outcome.is_none() {
                self.reads -= 1;
                entry.got = 0;
            }
        }
        self.sent = self.sent.min(i);
        self.offset = 0;
    }

    // ---- ending ----

    /// A request has failed here.
    pub fn fail(&mut self, seq: u32, status: Status, host: &mut impl Host) -> Outcome {
        outcome(self.fail_at(self.index(seq), status, host))
    }

    fn fail_at(&mut self, i: usize, status: Status, host: &mut impl Host) -> Result<(), Failed> {
        let cut_off = self.is_cut_off(i);
        let number = self.number(i);
        if let Some(entry) = self.entries.get_mut(i) {
            entry.outcome = Some(status);
            if !cut_off {
                self.failed = Some(number.wrapping_sub(self.base));
            }
        }
        self.complete(host)
    }

    /// The other side does not answer any more: the first request that waits is told so.
    pub fn peer_gone(&mut self, host: &mut impl Host) -> Outcome {
        let waiting = |entry: &Entry| entry.outcome.is_none();
        match self.entries.iter().position(waiting) {
            Some(i) => {
                if let Some(entry) = self.entries.get_mut(i) {
                    entry.outcome = Some(Status::RetryExc);
                }
                outcome(self.complete(host))
            }
            None => Outcome::Good,
        }
    }

    /// Completes what has ended, in order. The first that ended badly ends all that follow.
    fn complete(&mut self, host: &mut impl Host) -> Result<(), Failed> {
        while let Some(status) = self.entries.front().and_then(|entry| entry.outcome) {
            self.pop(status, host);
            if status != Status::Success {
                return Err(Failed);
            }
        }
        Ok(())
    }

    /// Takes the first request out of the queue, with its completion.
    fn pop(&mut self, status: Status, host: &mut impl Host) {
        let Some(Entry { wqe, .. }) = self.entries.pop_front() else {
            return;
        };
        let number = self.first;
        self.first = self.first.wrapping_add(1);
        if self.sent > 0 {
            self.sent -= 1;
        } else {
            self.offset = 0;
        }
        let good = status == Status::Success;
        if good && !wqe.signaled {
            return;
        }
        host.complete(Completion {
            wr_id: wqe.wr_id,
            status,
            opcode: wqe.op.opcode(),
            byte_len: if good { wqe.len } else { 0 },
            imm: None,
            solicited: false,
            seq: number,
        });
    }

    /// Completes all that is outstanding as flushed, also what the other side is known to have
    /// carried out: nothing succeeds after one that did not.
    pub fn flush(&mut self, host: &mut impl Host) {
        while !self.entries.is_empty() {
            self.pop(Status::WrFlush, host);
        }
        self.rest();
    }

    /// Forgets all that was posted.
    pub fn reset(&mut self) {
        self.first = self.next_number();
        self.entries.clear();
        self.rest();
    }

    fn rest(&mut self) {
        self.sent = 0;
        self.offset = 0;
        self.reads = 0;
        self.failed = None;
        self.rnr_wait = false;
    }
}

/// A request has ended badly: the queue pair must fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed;

/// Whether the queue pair must fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    Good,
    Failed,
}

fn outcome(result: Result<(), Failed>) -> Outcome {
    match result {
        Ok(()) => Outcome::Good,
        Err(Failed) => Outcome::Failed,
    }
}

/// The frame of a part of a message.
fn message_frame(wqe: &SendWqe, seq: u32, offset: u32, part: u32) -> Frame {
    let left = wqe.len - offset;
    let (at, imm) = match wqe.op {
        Op::Write { at, imm } => (Some(at), imm),
        Op::Send { imm } => (None, imm),
        _ => (None, None),
    };
    let mut flags = Flags::empty();
    flags.set(Flags::FIRST, offset == 0);
    flags.set(Flags::LAST, part == left);
    flags.set(Flags::IMM, imm.is_some());
    flags.set(Flags::SOLICITED, wqe.solicited);
    let imm = imm.unwrap_or(0);
    match at {
        Some(Remote { addr, rkey }) => Frame::Write {
            seq,
            flags,
            imm,
            at: Remote {
                addr: addr.wrapping_add(offset.into()),
                rkey,
            },
            left,
        },
        None => Frame::Send { seq, flags, imm },
    }
}

/// The times that the field stands for, in hundredths of a millisecond (InfiniBand specification,
/// encoding of the RNR NAK timer field).
fn rnr_time(timer: u8) -> Duration {
    const TIMES: [u64; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    Duration::from_micros(TIMES[timer as usize & 31] * 10)
}

/// How many bytes a request with these pieces moves, if the protocol can say so.
pub fn message_length(sges: &[Sge]) -> Option<u32> {
    let len = bytes(sges);
    u32::try_from(len)
        .ok()
        .filter(|_| len <= super::frames::MAX_MESSAGE)
}

/// A tail is cut from longer messages only.
const _: () = assert!(TAIL < COPY);
