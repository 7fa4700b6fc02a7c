//! One end of a connection: connection management, the queue pair's two directions, and the bytes
//! in between.

use super::ack::Ack;
use super::cm::{Cm, Phase, Step, WrongState};
use super::frames::{self, Flags, Frame, Malformed, Nak, Params, Private, Remote, Stranger};
use super::host::{Cause, Event, Host};
use super::inbound::Inbound;
use super::outbound::{Outbound, Source};
use super::qp::{Qp, QpState};
use super::requester::Payload;
use super::responder::{Gone, Order, Segment, Sink, Verdict};
use super::timers::{CONNECT_TIME, GREETING_TIME, PEER_FAILED_TIME, Timer, Timers};
use super::wqe::{Sge, Status};
use std::time::{Duration, Instant};

/// Where the payload of the present frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// What the other side asks.
    Request(Sink),
    /// The answer to a read of that number.
    Data(u32),
}

/// Memory that the driver moves payload to or from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory<'a> {
    /// Of this side's requests: the pieces, and the offset where it begins.
    Local(&'a [Sge], u64),
    /// Of a region that the other side names.
    Remote(Remote),
    /// None is left: the rest of the frame is zeroes.
    Zeroes,
}

/// What is to be sent: the bytes of `head`, `bulk`, the bytes of `tail`.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    pub head: &'a [u8],
    pub bulk: Option<(Memory<'a>, usize)>,
    pub tail: &'a [u8],
}

/// How the link and the connection stand to each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkState {
    /// There is no link, or it is not open yet.
    #[default]
    None,
    Open,
    /// The link is of no more use and must be closed.
    Over,
}

#[derive(Debug)]
pub struct Connection {
    cm: Cm,
    pub qp: Option<Qp>,
    link: LinkState,
    timers: Timers,
    inbound: Inbound,
    /// Where the present payload goes, and what its frame says of the message.
    place: Place,
    segment: Segment,
    out: Outbound,
    /// A request goes before an answer next time.
    requests_next: bool,
    ack: Ack,
    /// The other side is to be told of a receive.
    ready_again: bool,
    /// The other side has been told that the queue pair has failed.
    told_failed: bool,
    /// The queue pair of the other side does nothing any more.
    peer_failed: bool,
}

impl Default for Connection {
    fn default() -> Self {
        Connection {
            cm: Cm::default(),
            qp: None,
            link: LinkState::None,
            timers: Timers::default(),
            inbound: Inbound::default(),
            place: Place::Request(Sink::Discard),
            segment: Segment {
                seq: 0,
                flags: Flags::empty(),
                imm: 0,
                payload: 0,
            },
            out: Outbound::default(),
            requests_next: false,
            ack: Ack::default(),
            ready_again: false,
            told_failed: false,
            peer_failed: false,
        }
    }
}

impl Connection {
    pub fn cm(&self) -> &Cm {
        &self.cm
    }

    pub fn phase(&self) -> Phase {
        self.cm.phase()
    }

    pub fn link(&self) -> LinkState {
        self.link
    }

    /// When [`Connection::due`] is to be called.
    pub fn deadline(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Gives all but the queue pair to a connection that has one. Both must have the same program.
    pub fn move_to(&mut self, other: &mut Connection) {
        let qp = other.qp.take();
        let mine = self.qp.take();
        *other = std::mem::replace(
            self,
            Connection {
                qp: mine,
                ..Connection::default()
            },
        );
        other.qp = qp;
    }

    // ---- connection management ----

    /// Begins to connect. The driver opens the link when [`Connection::take_wants_open`] says so.
    pub fn connect(
        &mut self,
        mine: Params,
        private: Private,
        program_moves_qp: bool,
        now: Instant,
    ) {
        self.begin();
        self.cm
            .connect(mine, private, program_moves_qp, now, &mut self.timers);
    }

    /// A link has come to a listener.
    pub fn greet(&mut self, now: Instant) {
        self.begin();
        self.link_opened();
        self.cm.greet(now, &mut self.timers);
    }

    /// Forgets the connection that was before.
    fn begin(&mut self) {
        *self = Connection {
            qp: self.qp.take(),
            ..Connection::default()
        };
    }

    fn link_opened(&mut self) {
        self.link = LinkState::Open;
        self.inbound.reserve();
        self.out.reserve();
    }

    pub fn take_wants_open(&mut self) -> bool {
        self.cm.take_wants_open()
    }

    pub fn opened(&mut self) {
        self.link_opened();
        self.cm.opened();
    }

    /// The link could not be opened; `refused` if nobody listens there.
    pub fn open_failed(&mut self, refused: bool, now: Instant, host: &mut impl Host) {
        let step = self.cm.open_failed(refused, now, &mut self.timers);
        self.step(step, now, host);
    }

    pub fn accept(
        &mut self,
        mine: Params,
        private: Private,
        now: Instant,
        host: &mut impl Host,
    ) -> Result<(), WrongState> {
        let open = self.link == LinkState::Open;
        let step = self.cm.accept(mine, private, open, now, &mut self.timers)?;
        self.step(step, now, host);
        Ok(())
    }

    pub fn reject(&mut self, private: Private) -> Result<(), WrongState> {
        self.cm.reject(private)
    }

    /// The program knows that the other side has accepted.
    pub fn establish(&mut self, now: Instant, host: &mut impl Host) -> Result<(), WrongState> {
        let step = self.cm.establish()?;
        self.step(step, now, host);
        // What has come meanwhile waits in the buffer.
        if self.handle(now, host).is_err() {
            self.lost(now, host);
        }
        Ok(())
    }

    pub fn disconnect(&mut self, now: Instant, host: &mut impl Host) -> Result<(), WrongState> {
        let step = self.cm.disconnect(now, &mut self.timers)?;
        self.step(step, now, host);
        Ok(())
    }

    /// The program has destroyed its id.
    pub fn abandon(&mut self, now: Instant) {
        self.timers.clear_all();
        self.cm.abandon(now, &mut self.timers);
        // The queue pair may stay, but nothing of it is sent any more.
        self.peer_failed = false;
        self.peer_failed(now);
        if self.link != LinkState::Open {
            self.timers.clear_all();
        }
    }

    /// Whether the program moves the queue pair from state to state itself.
    pub fn set_program_moves_qp(&mut self, moves: bool) {
        self.cm.set_program_moves_qp(moves);
    }

    /// In a child process: the connection is the parent's.
    pub fn orphan(&mut self) {
        self.cm = Cm::closed();
        self.timers.clear_all();
        self.link = LinkState::Over;
        self.inbound.clear();
        self.out.clear();
        self.peer_failed = true;
    }

    /// The link has ended.
    pub fn link_ended(&mut self, now: Instant, host: &mut impl Host) {
        self.explain_silence(None, host);
        self.lost(now, host);
    }

    /// The link ends, or is given up after that time, before the other side has said who it is.
    fn explain_silence(&self, after: Option<Duration>, host: &mut impl Host) {
        if !self.cm.awaits_first_frame() {
            return;
        }
        let came = self.cm.is_greeting();
        match (self.inbound.bytes(), after) {
            ([], Some(time)) => host.explain(Cause::Silent(time), came),
            // One who looks whether somebody listens, and goes, is no cause of anything.
            ([], None) if came => {}
            ([], None) => host.explain(Cause::Ended, came),
            (said, _) => host.explain(Cause::Stranger(Stranger::WrongMagic, said), came),
        }
    }

    /// The other side does not speak this protocol, or not in this version.
    fn stranger(
        &mut self,
        stranger: Stranger,
        now: Instant,
        host: &mut impl Host,
    ) -> Result<(), Malformed> {
        let cause = Cause::Stranger(stranger, self.inbound.bytes());
        host.explain(cause, self.cm.is_greeting());
        let step = self.cm.stranger(stranger, now, &mut self.timers)?;
        // Whatever else it says means nothing.
        self.inbound.drop_rest();
        self.step(step, now, host);
        Ok(())
    }

    /// The link has ended, or what came on it was nonsense.
    pub fn lost(&mut self, now: Instant, host: &mut impl Host) {
        if self.link == LinkState::Over {
            return;
        }
        let step = self.cm.lost(now, &mut self.timers);
        self.step(step, now, host);
    }

    fn step(&mut self, step: Step, now: Instant, host: &mut impl Host) {
        if let Some((params, private)) = step.offer
            && !host.offer(&params, &private)
        {
            self.cm.not_taken(now, &mut self.timers);
        }
        if step.ready {
            self.make_ready();
        }
        if step.peer_failed {
            self.peer_failed(now);
        }
        if step.fail_outstanding {
            self.fail_outstanding(host);
        }
        if step.fail_qp {
            self.fail_qp(host);
        }
        if step.drop_link {
            self.drop_link();
        }
        match step.event {
            Some(Event::Reply(params, private))
                if self.qp.is_none() || self.cm.program_moves_qp() =>
            {
                host.event(Event::Response(params, private));
            }
            Some(event) => host.event(event),
            None => {}
        }
    }

    /// Makes the queue pair ready for what both sides have agreed.
    fn make_ready(&mut self) {
        let (mine, theirs) = (&self.cm.mine, &self.cm.theirs);
        let Some(qp) = &mut self.qp else {
            return;
        };
        let reads = mine.initiator_depth.min(theirs.responder_resources);
        qp.requester
            .start(reads.into(), theirs.rnr_retry_count.min(7));
        qp.responder.start(mine.responder_resources.into());
        qp.retry_count = mine.retry_count;
        qp.start(self.cm.program_moves_qp());
    }

    fn peer_failed(&mut self, now: Instant) {
        if !std::mem::replace(&mut self.peer_failed, true) {
            self.timers.set(Timer::PeerFailed, now + PEER_FAILED_TIME);
        }
    }

    /// What waits for the other side waits in vain.
    fn fail_outstanding(&mut self, host: &mut impl Host) {
        self.peer_failed = true;
        if let Some(qp) = &mut self.qp {
            let outcome = qp.requester.peer_gone(host);
            qp.fail_if(outcome, host);
        }
    }

    /// Brings the queue pair, if it was in use, into the error state.
    pub fn fail_qp(&mut self, host: &mut impl Host) {
        if let Some(qp) = &mut self.qp
            && qp.state() != QpState::Reset
            && !qp.is_error()
        {
            qp.fail(host);
        }
    }

    /// The queue pair is destroyed.
    pub fn take_qp(&mut self) -> Option<Qp> {
        self.place = Place::Request(Sink::Discard);
        self.qp.take()
    }

    fn drop_link(&mut self) {
        self.link = LinkState::Over;
        self.inbound.clear();
        self.out.clear();
        self.place = Place::Request(Sink::Discard);
        self.ready_again = false;
        self.ack = Ack::default();
        self.timers.clear(Timer::Linger);
        if let Some(qp) = &mut self.qp {
            qp.responder.stop();
        }
    }

    // ---- what is posted ----

    /// Requests were posted to the send queue.
    pub fn posted(&mut self, now: Instant, host: &mut impl Host) {
        self.ack.answered(now);
        let Some(qp) = &mut self.qp else {
            return;
        };
        if qp.is_error() {
            qp.requester.flush(host);
        } else if self.peer_failed && !qp.requester.is_empty() {
            // Nobody will answer them.
            if self.link != LinkState::Open {
                self.fail_outstanding(host);
            } else if !self.timers.is_set(Timer::PeerFailed) {
                self.timers.set(Timer::PeerFailed, now + PEER_FAILED_TIME);
            }
        }
    }

    /// A receive was posted.
    pub fn receive_posted(&mut self) {
        if let Some(qp) = &mut self.qp
            && qp.responder.receive_posted()
        {
            self.ready_again = true;
        }
    }

    // ---- time ----

    /// Does what is due.
    pub fn due(&mut self, now: Instant, host: &mut impl Host) {
        while let Some(timer) = self.timers.pop_due(now) {
            match timer {
                Timer::Ack => self.ack.missed(),
                Timer::Rnr => {
                    if let Some(qp) = &mut self.qp {
                        qp.requester.rnr_expired();
                    }
                }
                Timer::PeerFailed => self.fail_outstanding(host),
                timer => {
                    if timer == Timer::Handshake {
                        let time = if self.cm.is_greeting() {
                            GREETING_TIME
                        } else {
                            CONNECT_TIME
                        };
                        self.explain_silence(Some(time), host);
                    }
                    let step = self.cm.due(timer, now, &mut self.timers);
                    self.step(step, now, host);
                }
            }
        }
    }

    // ---- sending ----

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

    // ---- receiving ----

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
                self.segment = Segment {
                    seq,
                    flags,
                    imm,
                    payload,
                };
                let segment = self.segment;
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
                self.segment = Segment {
                    seq,
                    flags,
                    imm,
                    payload,
                };
                let segment = self.segment;
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
