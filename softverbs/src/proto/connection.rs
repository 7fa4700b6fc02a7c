//! One end of a connection: connection management, the queue pair's two directions, and the bytes
//! in between.

mod receiving;
mod sending;

use super::ack::Ack;
use super::cm::{Cm, Phase, Step, WrongState};
use super::frames::{Flags, Malformed, Params, Private, Remote, Stranger};
use super::host::{Cause, Event, Host};
use super::inbound::Inbound;
use super::outbound::Outbound;
use super::qp::{Qp, QpState};
use super::responder::{Segment, Sink};
use super::timers::{CONNECT_TIME, GREETING_TIME, PEER_FAILED_TIME, Timer, Timers};
use super::wqe::Sge;
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
            // A client that looks whether somebody listens, and goes, needs no explanation.
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
}
