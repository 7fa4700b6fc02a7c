//! What goes to the other side: connection management, answers, requests.

use super::{Endpoint, Phase, State};
use crate::frames::{self, Flags, Frame, MAX_FIELDS, Nak, Remote, SEGMENT};
use crate::objects::memory::{Domain, Hold, Right};
use crate::objects::qp::{Op, Payload, SendWqe, to_send};
use rdma_sys::{ibv_qp_state, ibv_wc_status};
use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice};
use std::ptr;

/// Frames are gathered up to so many bytes.
const OUT: usize = 32 * 1024;
/// A payload up to so long is copied to where the frames are gathered.
const COPIED: usize = 1024;
/// So much of the end of a longer message is copied, and is a frame of its own.
///
/// The rest may turn out not to be to be had while a frame of it is being sent: memory is
/// deregistered, requests are flushed. The message must not end then as if all of it had come.
const TAIL: usize = 8;
const MOST_CONTROL: usize = 16;
/// So much goes at most in one turn, so that others get theirs.
const TURN: usize = 1024 * 1024;
/// Pieces of memory in one call.
const PIECES: usize = 16;

/// An answer to a request, in the order of the requests.
#[derive(Debug)]
pub enum Response {
    Read { seq: u32, at: Remote, left: u32 },
    Value { seq: u32, value: u64 },
    Nak(u32, Nak),
}

/// The payload that follows the gathered frames, sent from where it is.
struct Bulk {
    source: Source,
    left: usize,
}

#[derive(Clone, Copy)]
enum Source {
    /// Of a send request, from an offset on.
    Request { seq: u32, offset: u32 },
    /// Of a region that the other side reads with that request.
    Region { seq: u32, at: Remote },
    /// What was to be sent is not to be had any more; the frame has to be filled.
    Zeroes,
}

static ZEROES: [u8; 16 * 1024] = [0; 16 * 1024];

#[derive(Default)]
pub struct Transmitter {
    out: Vec<u8>,
    /// How much of `out` has gone.
    gone: usize,
    bulk: Option<Bulk>,
    /// The frame with the end of the message, which follows the payload.
    tail: Vec<u8>,
    control: VecDeque<Frame>,
    ack: Option<u32>,
    ready_again: bool,
    responses: VecDeque<Response>,
    /// Whose turn it is.
    requests_next: bool,
    told_failed: bool,
    /// The link takes no more for now.
    pub blocked: bool,
    /// The link has been told that nothing follows.
    pub finished: bool,
    holds: Vec<Hold>,
}

impl Transmitter {
    pub fn is_pending(&self) -> bool {
        self.gone < self.out.len()
            || self.bulk.is_some()
            || self.ack.is_some()
            || self.ready_again
            || !self.control.is_empty()
            || !self.responses.is_empty()
    }

    /// Whether there is nothing to be said but that messages were carried out.
    pub fn owes_only_ack(&self) -> bool {
        self.ack.is_some()
            && self.out.is_empty()
            && self.bulk.is_none()
            && self.control.is_empty()
            && !self.ready_again
            && self.responses.is_empty()
    }

    /// Whether more waits to be said than the other side can have brought about by honest means:
    /// it hears one thing before it causes the next.
    pub fn is_overfull(&self) -> bool {
        self.control.len() > MOST_CONTROL
    }

    pub fn control(&mut self, frame: Frame) {
        self.control.push_back(frame);
    }

    pub fn acknowledge(&mut self, seq: u32) {
        self.ack = Some(seq);
    }

    pub fn ready_again(&mut self) {
        self.ready_again = true;
    }

    /// Adds an answer; the other side may not ask for more at once than was agreed.
    pub fn respond(&mut self, response: Response, most: usize) -> Result<(), frames::Malformed> {
        if self.responses.len() >= most {
            return Err(frames::Malformed);
        }
        self.responses.push_back(response);
        Ok(())
    }

    fn put(&mut self, frame: &Frame, payload: usize) {
        if self.out.capacity() == 0 {
            self.out.reserve_exact(OUT);
        }
        let mut fields = [0; MAX_FIELDS];
        let len = frames::encode(frame, payload, &mut fields);
        self.out.extend_from_slice(&fields[..len]);
    }

    /// Adds what is held to the gathered frames.
    fn copy(&mut self) {
        append(&mut self.out, &mut self.holds);
    }

    /// Adds the frame of a payload that will follow from where it is, and keeps the last frame of
    /// the message for later if the payload was cut for it: the end of the memory is held.
    fn put_bulk(&mut self, bulk: Bulk, frame: &Frame, last: Option<&Frame>) {
        self.put(frame, bulk.left);
        self.bulk = Some(bulk);
        if let Some(last) = last {
            let mut fields = [0; MAX_FIELDS];
            let len = frames::encode(last, TAIL, &mut fields);
            self.tail.clear();
            self.tail.extend_from_slice(&fields[..len]);
            append(&mut self.tail, &mut self.holds);
        }
    }

    fn has_room(&self) -> bool {
        self.bulk.is_none() && self.out.len() + MAX_FIELDS + COPIED <= OUT
    }

    /// Counts off what the link has taken.
    fn taken(&mut self, mut n: usize) {
        let gathered = (self.out.len() - self.gone).min(n);
        self.gone += gathered;
        n -= gathered;
        if self.gone == self.out.len() {
            self.gone = 0;
            self.out.clear();
        }
        if let Some(bulk) = &mut self.bulk {
            let sent = n.min(bulk.left);
            bulk.left -= sent;
            match &mut bulk.source {
                Source::Request { offset, .. } => *offset += sent as u32,
                Source::Region { at, .. } => at.addr = at.addr.wrapping_add(sent as u64),
                Source::Zeroes => {}
            }
            if bulk.left == 0 {
                self.bulk = None;
                self.out.extend_from_slice(&self.tail[n - sent..]);
                self.tail.clear();
            }
        }
    }
}

impl State {
    /// Sends what there is, as far as the link takes it.
    pub fn pump(&mut self, endpoint: &Endpoint) {
        if self.phase == Phase::Connecting {
            return;
        }
        self.ack_held = None;
        let mut left = TURN;
        loop {
            self.tell_failed();
            if self.tx.out.is_empty() && self.tx.bulk.is_none() {
                self.gather();
                if self.tx.out.is_empty() {
                    self.tx.blocked = false;
                    return;
                }
            }
            let result = self.send();
            match result {
                Ok(n) => {
                    self.tx.taken(n);
                    left = left.saturating_sub(n);
                    if left == 0 {
                        // The engine goes on when it comes round again.
                        self.tx.blocked = true;
                        return;
                    }
                }
                Err(ErrorKind::WouldBlock) => {
                    self.tx.blocked = true;
                    return;
                }
                Err(ErrorKind::Interrupted) => {}
                Err(_) => {
                    self.lost(endpoint);
                    return;
                }
            }
        }
    }

    /// Lets the other side know if the queue pair does nothing any more, after what it has to
    /// answer still.
    fn tell_failed(&mut self) {
        let failed = match &self.qp {
            Some(qp) => qp.is_error() && self.tx.responses.is_empty(),
            None => true,
        };
        if failed && self.phase == Phase::Established && !self.tx.told_failed {
            self.tx.told_failed = true;
            self.tx.control(Frame::Failed);
        }
    }

    /// Gathers frames until there is much, or nothing more.
    fn gather(&mut self) {
        while self.tx.has_room() {
            // An acknowledgement goes before the end of a connection.
            if let Some(seq) = self.tx.ack.take() {
                self.tx.put(&Frame::Ack(seq), 0);
            } else if let Some(frame) = self.tx.control.pop_front() {
                self.tx.put(&frame, 0);
            } else if std::mem::take(&mut self.tx.ready_again) {
                self.tx.put(&Frame::ReadyAgain, 0);
            } else {
                // In turns, as long as there are both.
                self.tx.requests_next = !self.tx.requests_next;
                let one = (self.tx.requests_next && self.gather_request())
                    || self.gather_response()
                    || self.gather_request();
                if !one {
                    break;
                }
            }
        }
    }

    fn gather_response(&mut self) -> bool {
        let (tx, Some(qp)) = (&mut self.tx, &self.qp) else {
            // Of a queue pair that was destroyed there is nothing to be had.
            self.tx.responses.clear();
            return false;
        };
        match tx.responses.front_mut() {
            None => false,
            Some(Response::Value { seq, value }) => {
                let frame = Frame::Value {
                    seq: *seq,
                    value: *value,
                };
                tx.responses.pop_front();
                tx.put(&frame, 0);
                true
            }
            Some(Response::Nak(seq, nak)) => {
                let frame = Frame::Nak(*seq, *nak);
                tx.responses.pop_front();
                tx.put(&frame, 0);
                true
            }
            Some(Response::Read { seq, at, left }) => {
                let part = (*left as usize).min(SEGMENT);
                let (seq, from) = (*seq, *at);
                let held = qp
                    .init
                    .domain
                    .remote(from.rkey, from.addr, part as u64, Right::Read);
                let hold = match held {
                    Ok(hold) => hold,
                    // It was deregistered after the request had come.
                    Err(_) if part > 0 => {
                        self.refuse_answer(seq);
                        return true;
                    }
                    Err(_) => {
                        tx.responses.pop_front();
                        let flags = Flags::FIRST | Flags::LAST;
                        tx.put(&Frame::Data { seq, flags }, 0);
                        return true;
                    }
                };
                at.addr = at.addr.wrapping_add(part as u64);
                *left -= part as u32;
                let last = *left == 0;
                if last {
                    tx.responses.pop_front();
                }
                let data = |last| Frame::Data {
                    seq,
                    flags: if last { Flags::LAST } else { Flags::empty() },
                };
                if part <= COPIED {
                    tx.put(&data(last), part);
                    tx.holds.push(hold);
                    tx.copy();
                } else {
                    let cut = if last { TAIL } else { 0 };
                    if last {
                        tx.holds.push(hold.end(TAIL));
                    }
                    let bulk = Bulk {
                        source: Source::Region { seq, at: from },
                        left: part - cut,
                    };
                    tx.put_bulk(bulk, &data(false), last.then_some(&data(true)));
                }
                true
            }
        }
    }

    fn gather_request(&mut self) -> bool {
        if !self.is_connected() || self.peer_failed {
            return false;
        }
        let (tx, Some(qp)) = (&mut self.tx, &mut self.qp) else {
            return false;
        };
        if qp.state != ibv_qp_state::IBV_QPS_RTS || qp.rnr_paused {
            return false;
        }
        let domain = qp.init.domain.clone();
        let max_reads = qp.max_reads;
        let sq = &mut qp.sq;
        let (i, offset) = (sq.sent, sq.offset);
        let seq = sq.seq(i);
        let Some(wqe) = sq.entries.get(i) else {
            return false;
        };
        if sq.is_cut_off(i) || wqe.outcome.is_some() {
            return false;
        }
        if offset == 0 {
            if wqe.fence {
                let waits = |wqe: &SendWqe| wqe.op.holds_fence() && wqe.outcome.is_none();
                if sq.entries.range(..i).any(waits) {
                    return false;
                }
            }
            let is_read = wqe.op.is_read();
            if is_read && sq.reads >= max_reads && max_reads > 0 {
                return false;
            }
            let refused = if is_read && max_reads == 0 {
                Some(ibv_wc_status::IBV_WC_LOC_QP_OP_ERR)
            } else {
                let good = match &wqe.payload {
                    Payload::Memory(sges) => sges.check(&domain, is_read).is_ok(),
                    Payload::Inline => true,
                };
                (!good).then_some(ibv_wc_status::IBV_WC_LOC_PROT_ERR)
            };
            if let Some(status) = refused {
                qp.fail_request(seq, status);
                return true;
            }
        }
        let flags = Flags::empty();
        // How much of the part is a frame of its own.
        let mut cut = 0;
        let (frame, part) = match wqe.op {
            Op::Send { .. } | Op::Write { .. } => {
                let left = wqe.len - offset;
                let part = left.min(SEGMENT as u32);
                if part == left && part as usize > COPIED {
                    cut = TAIL as u32;
                }
                (message_frame(wqe, seq, offset, part - cut), part)
            }
            Op::Read { at } => {
                let len = wqe.len;
                (Frame::Read { seq, at, len }, 0)
            }
            Op::Atomic { at, op } => (Frame::Atomic { seq, at, op }, 0),
            Op::AtomicWrite { at, value } => {
                let frame = Frame::AtomicWrite {
                    seq,
                    flags,
                    at,
                    value,
                };
                (frame, 0)
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
                (frame, 0)
            }
        };
        if part > 0 {
            match &wqe.payload {
                Payload::Inline => {
                    tx.put(&frame, part as usize);
                    let data = sq.inline(seq, wqe.len as usize);
                    tx.out
                        .extend_from_slice(&data[offset as usize..][..part as usize]);
                }
                Payload::Memory(sges) if part as usize <= COPIED => {
                    let held = sges.hold(&domain, offset.into(), part.into(), false, &mut tx.holds);
                    if held.is_err() {
                        tx.holds.clear();
                        qp.fail_request(seq, ibv_wc_status::IBV_WC_LOC_PROT_ERR);
                        return true;
                    }
                    tx.put(&frame, part as usize);
                    tx.copy();
                }
                Payload::Memory(sges) => {
                    let end = offset + part - cut;
                    if cut > 0 {
                        let held = sges.hold(&domain, end.into(), cut.into(), false, &mut tx.holds);
                        if held.is_err() {
                            tx.holds.clear();
                            qp.fail_request(seq, ibv_wc_status::IBV_WC_LOC_PROT_ERR);
                            return true;
                        }
                    }
                    let bulk = Bulk {
                        source: Source::Request { seq, offset },
                        left: (part - cut) as usize,
                    };
                    let last = (cut > 0).then(|| message_frame(wqe, seq, end, cut));
                    tx.put_bulk(bulk, &frame, last.as_ref());
                }
            }
        } else {
            tx.put(&frame, 0);
        }
        let whole = match wqe.op {
            Op::Send { .. } | Op::Write { .. } => offset + part == wqe.len,
            _ => true,
        };
        if wqe.op.is_read() {
            sq.reads += 1;
        }
        if whole {
            sq.sent += 1;
            sq.offset = 0;
        } else {
            sq.offset += part;
        }
        true
    }

    /// The memory of an answer has gone since the request came: that is refused, and nothing after
    /// it is carried out.
    fn refuse_answer(&mut self, seq: u32) {
        self.tx.responses.clear();
        let nak = Response::Nak(seq, Nak::AccessError);
        self.tx.responses.push_back(nak);
        if let Some(qp) = &mut self.qp {
            qp.fail();
        }
    }

    /// Hands the gathered frames and the payload after them to the link.
    fn send(&mut self) -> Result<usize, ErrorKind> {
        let mut holds = std::mem::take(&mut self.tx.holds);
        holds.clear();
        if let Some(bulk) = &self.tx.bulk {
            let held = match (&bulk.source, &mut self.qp) {
                (Source::Zeroes, _) => true,
                (Source::Region { at, .. }, Some(qp)) => {
                    let held =
                        qp.init
                            .domain
                            .remote(at.rkey, at.addr, bulk.left as u64, Right::Read);
                    held.map(|hold| holds.push(hold)).is_ok()
                }
                (Source::Request { seq, offset }, Some(qp)) => {
                    let domain: &Domain = &qp.init.domain;
                    let (seq, offset) = (*seq, *offset);
                    match qp.sq.begun(seq).map(|(_, wqe)| &wqe.payload) {
                        Some(Payload::Memory(sges)) => {
                            let left = bulk.left as u64;
                            let held = sges.hold(domain, offset.into(), left, false, &mut holds);
                            if held.is_err() {
                                qp.fail_request(seq, ibv_wc_status::IBV_WC_LOC_PROT_ERR);
                            }
                            held.is_ok()
                        }
                        _ => false,
                    }
                }
                (_, None) => false,
            };
            if !held && let Some(bulk) = &mut self.tx.bulk {
                holds.clear();
                let source = std::mem::replace(&mut bulk.source, Source::Zeroes);
                let was_last = !self.tx.tail.is_empty();
                self.tx.tail.clear();
                // One that is not the last is refused when the next is to be sent.
                if let Source::Region { seq, .. } = source
                    && was_last
                {
                    self.refuse_answer(seq);
                }
            }
        }
        let tx = &self.tx;
        let empty = IoSlice::new(&[]);
        let mut parts = [empty; PIECES];
        let mut n = 0;
        if tx.gone < tx.out.len() {
            parts[n] = IoSlice::new(&tx.out[tx.gone..]);
            n += 1;
        }
        if let Some(bulk) = &tx.bulk {
            if matches!(bulk.source, Source::Zeroes) {
                parts[n] = IoSlice::new(&ZEROES[..bulk.left.min(ZEROES.len())]);
                n += 1;
            }
            for hold in holds.iter().take(PIECES - n) {
                // SAFETY: the link copies from it and keeps nothing.
                parts[n] = unsafe { to_send(hold) };
                n += 1;
            }
            // What follows the payload, if all of the payload is there.
            let gathered = usize::from(tx.gone < tx.out.len());
            if n < PIECES && n - gathered == holds.len() && !tx.tail.is_empty() {
                parts[n] = IoSlice::new(&tx.tail);
                n += 1;
            }
        }
        let result = match &mut self.link {
            Some(link) => link.send(&parts[..n]).map_err(|error| error.kind()),
            None => Err(ErrorKind::NotConnected),
        };
        holds.clear();
        self.tx.holds = holds;
        result
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

/// Adds what is held.
fn append(to: &mut Vec<u8>, holds: &mut Vec<Hold>) {
    for hold in holds.drain(..) {
        let len = to.len();
        to.reserve(hold.len());
        // SAFETY: the region is mapped while it is held, and the room was made.
        unsafe {
            ptr::copy_nonoverlapping(hold.ptr(), to.as_mut_ptr().add(len), hold.len());
            to.set_len(len + hold.len());
        }
    }
}
