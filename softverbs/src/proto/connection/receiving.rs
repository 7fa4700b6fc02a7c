//! What a connection does with the bytes that come: frames, and payload to its place.

use super::{Connection, LinkState, Memory, Place};
use crate::proto::cm::Phase;
use crate::proto::frames::{self, Flags, Frame, Malformed, Nak};
use crate::proto::host::{Cause, Host};
use crate::proto::qp::Qp;
use crate::proto::requester::Payload;
use crate::proto::responder::{Order, Segment, Sink, Verdict};
use crate::proto::timers::Timer;
use crate::proto::wqe::Status;
use std::time::Instant;

impl Connection {
    /// Whether bytes of the link can be dealt with now.
    pub fn wants_bytes(&self) -> bool {
        self.link == LinkState::Open && !self.is_held_up()
    }

    /// Whether what has come must wait: for the program, or for an order that is under way.
    fn is_held_up(&self) -> bool {
        let ordered = self.order().is_some();
        self.inbound.left().is_none() && (self.cm.is_paused() || ordered)
    }

    /// Memory that the next bytes of the link should go straight to, and how many.
    pub fn target(&self) -> Option<(Memory<'_>, usize)> {
        let left = self.inbound.direct()?;
        let qp = self.qp.as_ref()?;
        let memory = match self.live_place() {
            Place::Request(Sink::Discard) => return None,
            Place::Request(Sink::Write(at)) => Memory::Remote(at),
            Place::Request(Sink::Receive(offset)) => {
                Memory::Local(qp.responder.receiving()?.sges(), offset)
            }
            Place::Data(seq) => match qp.requester.payload(seq)? {
                Payload::Memory(sges) => Memory::Local(sges, qp.requester.got(seq).into()),
                Payload::Inline(_) => return None,
            },
        };
        Some((memory, left))
    }

    /// Where the present payload goes: nowhere once the queue pair has failed or has been reset, since
    /// its memory is the program's again.
    fn live_place(&self) -> Place {
        match &self.qp {
            Some(qp) if !qp.is_gone() => self.place,
            _ => Place::Request(Sink::Discard),
        }
    }

    /// The memory of [`Connection::target`] may not be written to.
    pub fn target_refused(&mut self, host: &mut impl Host) {
        let place = std::mem::replace(&mut self.place, Place::Request(Sink::Discard));
        let Some(qp) = &mut self.qp else {
            return;
        };
        match place {
            Place::Request(Sink::Discard) => {}
            Place::Request(sink) => {
                qp.responder.refuse_payload(sink, host);
                qp.fail(host);
            }
            Place::Data(seq) => {
                let outcome = qp.requester.fail(seq, Status::LocProt, host);
                qp.fail_if(outcome, host);
            }
        }
    }

    /// Room for bytes of the link that follow what goes straight to memory.
    pub fn room(&mut self, behind_target: bool) -> &mut [u8] {
        self.inbound.room(behind_target)
    }

    /// So many bytes have come straight to [`Connection::target`], and so many to
    /// [`Connection::room`].
    pub fn received(&mut self, direct: usize, buffered: usize) {
        if direct > 0 {
            self.placed(direct);
        }
        self.inbound.received(buffered);
    }

    /// Deals with what has come, as far as it can: [`Connection::order`] may have to be carried out
    /// before the rest. After an error the link is of no use.
    pub fn handle(&mut self, now: Instant, host: &mut impl Host) -> Result<(), Malformed> {
        while self.link == LinkState::Open {
            if let Some(left) = self.inbound.left() {
                let n = self.inbound.bytes().len().min(left);
                if n > 0 {
                    self.place_buffered(n, host);
                }
                if n < left {
                    return Ok(());
                }
                self.inbound.end_frame();
                self.frame_ended(now, host)?;
            } else {
                if self.is_held_up() {
                    return Ok(());
                }
                // A side that makes this one say ever more, and does not listen, means no good.
                if self.cm.is_overfull() {
                    return Err(Malformed);
                }
                let decoded = if self.cm.awaits_first_frame() {
                    match frames::decode_first(self.inbound.bytes()) {
                        Ok(decoded) => decoded,
                        Err(stranger) => return self.stranger(stranger, now, host),
                    }
                } else {
                    frames::decode(self.inbound.bytes())?
                };
                let Some((frame, used, payload)) = decoded else {
                    return Ok(());
                };
                self.inbound.used(used);
                self.place = Place::Request(Sink::Discard);
                self.frame(&frame, payload, now, host)?;
                self.inbound.begin(payload);
            }
        }
        Ok(())
    }

    fn place_buffered(&mut self, n: usize, host: &mut impl Host) {
        let place = self.live_place();
        let data = self.inbound.bytes().get(..n).unwrap_or_default();
        let written = match (place, &self.qp) {
            (Place::Request(Sink::Write(at)), _) => host.write_remote(at, data),
            (Place::Request(Sink::Receive(offset)), Some(qp)) => match qp.responder.receiving() {
                Some(wqe) => host.write_local(wqe.sges(), offset, data),
                None => true,
            },
            (Place::Data(seq), Some(qp)) => match qp.requester.payload(seq) {
                Some(Payload::Memory(sges)) => {
                    host.write_local(sges, qp.requester.got(seq).into(), data)
                }
                _ => true,
            },
            _ => true,
        };
        if !written {
            self.target_refused(host);
        }
        self.inbound.used(n);
        self.placed(n);
    }

    /// So much of the payload is where it belongs.
    fn placed(&mut self, n: usize) {
        self.inbound.placed(n);
        match &mut self.place {
            Place::Request(Sink::Discard) => {}
            Place::Request(Sink::Write(at)) => at.addr = at.addr.wrapping_add(n as u64),
            Place::Request(Sink::Receive(offset)) => *offset += n as u64,
            Place::Data(seq) => {
                if let Some(qp) = &mut self.qp {
                    qp.requester.placed(*seq, n);
                }
            }
        }
    }

    /// Begins a frame: does what it says, or finds out where its payload goes.
    fn frame(
        &mut self,
        frame: &Frame,
        payload: usize,
        now: Instant,
        host: &mut impl Host,
    ) -> Result<(), Malformed> {
        match *frame {
            Frame::Request(..)
            | Frame::Reply(..)
            | Frame::Reject(..)
            | Frame::Ready
            | Frame::Disconnect
            | Frame::Disconnected
            | Frame::Version(_) => {
                if matches!(frame, Frame::Request(..)) && self.cm.phase() == Phase::RequestSent {
                    host.explain(Cause::Echo, false);
                }
                let step = self.cm.frame(frame, now, &mut self.timers)?;
                self.step(step, now, host);
                return Ok(());
            }
            _ if !self.cm.is_connected() && self.cm.phase() != Phase::Closed => {
                return Err(Malformed);
            }
            Frame::Send { seq, flags, imm } => {
                let segment = self.begin_segment(seq, flags, imm, payload);
                let Some(qp) = self.responding() else {
                    return Ok(());
                };
                let (verdict, sink) = qp.responder.send(&segment, host)?;
                self.place = Place::Request(sink);
                self.verdict(verdict, now, host);
            }
            Frame::Write {
                seq,
                flags,
                imm,
                at,
                left,
            } => {
                let segment = self.begin_segment(seq, flags, imm, payload);
                let Some(qp) = self.responding() else {
                    return Ok(());
                };
                let (verdict, sink) = qp.responder.write(&segment, at, left, host)?;
                self.place = Place::Request(sink);
                self.verdict(verdict, now, host);
            }
            Frame::Read { seq, at, len } => {
                let Some(qp) = self.responding() else {
                    return Ok(());
                };
                let verdict = qp.responder.read(seq, at, len, host)?;
                self.verdict(verdict, now, host);
            }
            Frame::Atomic { seq, at, op } => {
                self.ordered(seq, Order::Atomic { at, op }, now, host)?
            }
            Frame::AtomicWrite { seq, at, value, .. } => {
                self.ordered(seq, Order::AtomicWrite { at, value }, now, host)?;
            }
            Frame::Flush {
                seq,
                at,
                len,
                kind,
                whole,
                ..
            } => {
                let order = Order::Flush {
                    at,
                    len,
                    kind,
                    whole,
                };
                self.ordered(seq, order, now, host)?;
            }
            Frame::Data { seq, flags } => {
                self.segment.flags = flags;
                if let Some(qp) = self.requesting()
                    && qp
                        .requester
                        .data(seq, payload, flags.contains(Flags::LAST))?
                {
                    self.place = Place::Data(seq);
                }
            }
            Frame::Value { seq, value } => {
                if let Some(qp) = self.requesting() {
                    let outcome = qp.requester.value(seq, value, host)?;
                    qp.fail_if(outcome, host);
                }
            }
            Frame::Ack(seq) => {
                if let Some(qp) = self.requesting() {
                    let outcome = qp.requester.acknowledged(seq, host)?;
                    qp.fail_if(outcome, host);
                }
            }
            Frame::Nak(seq, nak) => {
                if let Some(qp) = self.requesting() {
                    let outcome = qp.requester.refused(seq, nak, host)?;
                    qp.fail_if(outcome, host);
                }
            }
            Frame::NotReady { seq, timer } => {
                if let Some(qp) = self.requesting() {
                    let (outcome, again) = qp.requester.rnr_nak(seq, timer, now, host)?;
                    qp.fail_if(outcome, host);
                    if let Some(again) = again {
                        self.timers.set(Timer::Rnr, again);
                    }
                }
            }
            Frame::ReadyAgain => {
                self.timers.clear(Timer::Rnr);
                if let Some(qp) = &mut self.qp {
                    qp.requester.receive_posted_there();
                }
            }
            Frame::Failed => self.peer_failed(now),
        }
        Ok(())
    }

    fn begin_segment(&mut self, seq: u32, flags: Flags, imm: u32, payload: usize) -> Segment {
        self.segment = Segment {
            seq,
            flags,
            imm,
            payload,
        };
        self.segment
    }

    /// The queue pair, if it carries out requests of the other side.
    fn responding(&mut self) -> Option<&mut Qp> {
        let connected = self.cm.is_connected();
        self.qp.as_mut().filter(|qp| connected && qp.responds())
    }

    /// The queue pair, if it has requests that can be answered.
    fn requesting(&mut self) -> Option<&mut Qp> {
        self.qp.as_mut().filter(|qp| !qp.is_gone())
    }

    fn ordered(
        &mut self,
        seq: u32,
        order: Order,
        now: Instant,
        host: &mut impl Host,
    ) -> Result<(), Malformed> {
        if let Some(qp) = self.responding() {
            let verdict = qp.responder.order(seq, order, host)?;
            self.verdict(verdict, now, host);
        }
        Ok(())
    }

    /// An operation that the driver carries out before anything else that has come. It reports it
    /// with [`Connection::done`].
    pub fn order(&self) -> Option<Order> {
        self.qp.as_ref().and_then(|qp| qp.responder.pending())
    }

    /// The order has been carried out, with the value that an atomic found, or is refused.
    pub fn done(&mut self, result: Result<u64, Nak>, now: Instant, host: &mut impl Host) {
        if let Some(qp) = &mut self.qp {
            if qp.is_error() {
                qp.responder.drop_order();
                return;
            }
            let verdict = qp.responder.done(result, host);
            self.verdict(verdict, now, host);
        }
    }

    fn verdict(&mut self, verdict: Verdict, now: Instant, host: &mut impl Host) {
        let Some(qp) = &mut self.qp else {
            return;
        };
        match verdict {
            Verdict::Done => {}
            Verdict::Acknowledge => self.ack.owe(qp.responder.last(), now),
            Verdict::NotReady => {
                let seq = qp.responder.next_expected();
                let timer = qp.responder.min_rnr_timer;
                self.cm.control.push_back(Frame::NotReady { seq, timer });
            }
            Verdict::Failed => {
                self.place = Place::Request(Sink::Discard);
                qp.fail(host);
            }
        }
    }

    /// All of a frame is there.
    fn frame_ended(&mut self, now: Instant, host: &mut impl Host) -> Result<(), Malformed> {
        let place = std::mem::replace(&mut self.place, Place::Request(Sink::Discard));
        let segment = self.segment;
        let Some(qp) = &mut self.qp else {
            return Ok(());
        };
        if qp.is_gone() {
            return Ok(());
        }
        match place {
            Place::Request(Sink::Discard) => {}
            Place::Request(_) => {
                let verdict = qp.responder.segment_ended(&segment, host);
                self.verdict(verdict, now, host);
            }
            Place::Data(seq) if segment.flags.contains(Flags::LAST) => {
                let outcome = qp.requester.read_ended(seq, host)?;
                qp.fail_if(outcome, host);
            }
            Place::Data(_) => {}
        }
        Ok(())
    }
}
