//! What a connection sends: frames gathered from its queue pair and connection management.

use super::{Connection, LinkState, Memory, Outgoing};
use crate::proto::cm::Phase;
use crate::proto::frames::Frame;
use crate::proto::host::Host;
use crate::proto::outbound::Source;
use crate::proto::requester::Payload;
use crate::proto::responder::Gone;
use crate::proto::timers::Timer;
use crate::proto::wqe::Status;
use std::time::Instant;

impl Connection {
    /// Whether there is something to send, or was something gathered that is to be sent. Gathers
    /// frames if all that were gathered before have been sent.
    pub fn transmit(&mut self, now: Instant, host: &mut impl Host) -> bool {
        if self.link != LinkState::Open {
            return false;
        }
        if self.out.is_empty() {
            if self.owes_only_ack() && self.waits(now, host) {
                return false;
            }
            self.gather(now, host);
        } else {
            self.check_bulk();
        }
        !self.out.is_empty()
    }

    /// Whether nothing is to be sent but an acknowledgement.
    fn owes_only_ack(&self) -> bool {
        self.ack.owed().is_some()
            && self.cm.control.is_empty()
            && !self.ready_again
            && self.qp.as_ref().is_some_and(|qp| {
                !qp.is_gone() && qp.requester.is_sent() && !qp.responder.has_replies()
            })
    }

    /// The request, or the queue pair, whose payload is being sent may be gone: its memory is the
    /// program's again.
    fn check_bulk(&mut self) {
        let gone = match self.out.bulk_left().map(|bulk| bulk.source) {
            Some(Source::Request { seq, .. }) => self.payload(seq).is_none(),
            Some(Source::Region { .. }) => !self.answers(),
            _ => false,
        };
        if gone {
            self.out.fill_with_zeroes();
        }
    }

    /// Whether nothing is left to be sent.
    pub fn is_drained(&self) -> bool {
        let replies = self
            .qp
            .as_ref()
            .is_some_and(|qp| qp.responder.has_replies());
        self.out.is_empty()
            && self.cm.control.is_empty()
            && self.ack.owed().is_none()
            && !self.ready_again
            && !replies
    }

    /// Whether the connection has ended here: once all is sent, the other side may be told that
    /// nothing follows.
    pub fn has_ended(&self) -> bool {
        self.cm.phase() == Phase::Closed
    }

    fn gather(&mut self, now: Instant, host: &mut impl Host) {
        self.tell_failed();
        // An acknowledgement goes before whatever comes of the message that it is for.
        let ack = self.ack.owed();
        if let Some(seq) = ack {
            self.out.frame(&Frame::Ack(seq), 0);
        }
        let alone = self.out.head().len();
        while self.out.has_room() {
            if let Some(frame) = self.cm.control.pop_front() {
                self.out.frame(&frame, 0);
            } else if std::mem::take(&mut self.ready_again) {
                self.out.frame(&Frame::ReadyAgain, 0);
            } else {
                // In turns, as long as there are both.
                self.requests_next = !self.requests_next;
                let requests_first = self.requests_next;
                let one = (requests_first && self.request(host))
                    || self.answer(host)
                    || self.request(host);
                if !one {
                    break;
                }
                self.tell_failed();
            }
        }
        if ack.is_none() {
            return;
        }
        if self.out.head().len() == alone && !self.out.has_bulk() && self.waits(now, host) {
            self.out.clear();
        } else {
            self.ack.sent();
            self.timers.clear(Timer::Ack);
        }
    }

    /// Whether an acknowledgement that would go alone waits for an answer of the program.
    fn waits(&mut self, now: Instant, host: &impl Host) -> bool {
        let Some(until) = self.ack.wait_until().filter(|until| *until > now) else {
            return false;
        };
        if !host.watches_deadlines() {
            return false;
        }
        self.timers.set(Timer::Ack, until);
        true
    }

    /// Lets the other side know if the queue pair does nothing any more, after what it has to
    /// answer still.
    fn tell_failed(&mut self) {
        if self.told_failed || self.cm.phase() != Phase::Established {
            return;
        }
        let failed = match &self.qp {
            Some(qp) => qp.is_gone() && !qp.responder.has_replies(),
            None => true,
        };
        if failed {
            self.told_failed = true;
            self.cm.control.push_back(Frame::Failed);
        }
    }

    fn answer(&mut self, host: &mut impl Host) -> bool {
        let Some(qp) = &mut self.qp else {
            return false;
        };
        match qp.responder.answer(&mut self.out, host) {
            Ok(added) => added,
            Err(Gone(seq)) => {
                qp.responder.refuse_answer(seq);
                qp.fail(host);
                true
            }
        }
    }

    fn request(&mut self, host: &mut impl Host) -> bool {
        if !self.cm.is_connected() || self.peer_failed {
            return false;
        }
        let Some(qp) = &mut self.qp else {
            return false;
        };
        if !qp.sends() {
            return false;
        }
        match qp.requester.send(&mut self.out, host) {
            Ok(added) => added,
            Err(_) => {
                qp.fail(host);
                true
            }
        }
    }

    /// What is to be sent now.
    pub fn outgoing(&self) -> Outgoing<'_> {
        let bulk = self.out.bulk_left().map(|bulk| {
            let memory = match bulk.source {
                Source::Request { seq, offset } => match self.payload(seq) {
                    Some(Payload::Memory(sges)) => Memory::Local(sges, offset.into()),
                    _ => Memory::Zeroes,
                },
                Source::Region { at, .. } if self.answers() => Memory::Remote(at),
                _ => Memory::Zeroes,
            };
            (memory, bulk.left)
        });
        Outgoing {
            head: self.out.head(),
            bulk,
            tail: self.out.tail_bytes(),
        }
    }

    /// Whether there is a queue pair that reads are answered for, if need be after it has failed.
    fn answers(&self) -> bool {
        self.qp.as_ref().is_some_and(|qp| !qp.was_reset())
    }

    fn payload(&self, seq: u32) -> Option<Payload<'_>> {
        self.qp.as_ref()?.requester.payload(seq)
    }

    /// So much of [`Connection::outgoing`] has been sent.
    pub fn sent(&mut self, n: usize) {
        self.out.sent(n);
    }

    /// The memory of [`Outgoing::bulk`] can't be read any more.
    pub fn bulk_refused(&mut self, host: &mut impl Host) {
        let source = self.out.bulk_left().map(|bulk| bulk.source);
        let was_last = self.out.fill_with_zeroes();
        let Some(qp) = &mut self.qp else {
            return;
        };
        match source {
            Some(Source::Request { seq, .. }) => {
                let outcome = qp.requester.fail(seq, Status::LocProt, host);
                qp.fail_if(outcome, host);
            }
            // One that is not the last is refused when the next is to be sent.
            Some(Source::Region { seq, .. }) if was_last && !qp.was_reset() => {
                qp.responder.refuse_answer(seq);
                qp.fail(host);
            }
            _ => {}
        }
    }
}
