//! Connection management: request, reply, reject, disconnect, as a state machine.
//!
//! It says what is to be sent and when it wants to be asked again. What that means for the queue
//! pair and for the program is in the [`Step`] that each input returns.

use super::frames::{Frame, Malformed, Params, Private, Stranger, VERSION};
use super::host::Event;
use super::timers::*;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Nobody listens there (`IB_CM_REJ_INVALID_SERVICE_ID`).
pub const REJECTED_NO_SERVICE: u16 = 8;
/// Another version is spoken there (`IB_CM_REJ_INVALID_CLASS_VERSION`).
pub const REJECTED_OTHER_VERSION: u16 = 31;
/// The program does not want the connection (`IB_CM_REJ_CONSUMER_DEFINED`).
pub const REJECTED_BY_CONSUMER: u16 = 28;

/// How often a link that is refused is tried again, and how much longer each time: 210 ms in all. A
/// request takes longer over a fabric. A program that connects as soon as it has been told to by one
/// that is about to listen is used to that.
const OPEN_TRIES: u32 = 6;
const OPEN_TIME: Duration = Duration::from_millis(10);

/// More control frames than this wait only if the other side asks for them and does not listen: it
/// hears one before it causes the next.
const MOST_CONTROL: usize = 16;

/// How far a connection is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// There is none.
    #[default]
    Idle,
    /// The link is being opened.
    Opening,
    RequestSent,
    /// The other side accepted, and the program does not know yet.
    ReplyReceived,
    /// A link has come to a listener, and its request has not.
    Greeting,
    Requested,
    /// Accepted, and the other side has not said that it is ready.
    Accepted,
    Established,
    DisconnectSent,
    DisconnectReceived,
    Closed,
}

/// What an input means for the rest of the connection.
#[derive(Debug, Default)]
#[must_use]
pub struct Step {
    pub event: Option<Event>,
    /// The queue pair is to go to the state that both sides agreed on.
    pub ready: bool,
    /// The queue pair fails.
    pub fail_qp: bool,
    /// The other side answers no more requests.
    pub peer_failed: bool,
    /// Requests that have no answer yet fail now.
    pub fail_outstanding: bool,
    /// The link is of no more use.
    pub drop_link: bool,
    /// The request is to be offered to the listener: [`Cm::not_taken`] if it does not take it.
    pub offer: Option<(Params, Private)>,
}

impl Step {
    fn event(event: Event) -> Self {
        Step {
            event: Some(event),
            ..Step::default()
        }
    }
}

/// A call that the present state does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongState;

#[derive(Debug, Default)]
pub struct Cm {
    phase: Phase,
    /// What this side has told the other of itself, and the other this one.
    pub mine: Params,
    pub theirs: Params,
    private: Private,
    tries: u32,
    wants_open: bool,
    /// The program moves the queue pair from state to state itself.
    program_moves_qp: bool,
    /// What is to be sent.
    pub control: VecDeque<Frame>,
}

impl Cm {
    /// One that has ended.
    pub fn closed() -> Self {
        Cm {
            phase: Phase::Closed,
            ..Cm::default()
        }
    }

    pub fn phase(&self) -> Phase {
        self.phase
    }

    pub fn program_moves_qp(&self) -> bool {
        self.program_moves_qp
    }

    pub fn set_program_moves_qp(&mut self, moves: bool) {
        self.program_moves_qp = moves;
    }

    /// Whether requests can go to the other side, and its own be carried out.
    pub fn is_connected(&self) -> bool {
        matches!(
            self.phase,
            Phase::Established
                | Phase::Accepted
                | Phase::DisconnectSent
                | Phase::DisconnectReceived
        )
    }

    /// Whether nothing has come from the other side yet.
    pub fn awaits_first_frame(&self) -> bool {
        matches!(self.phase, Phase::Greeting | Phase::RequestSent)
    }

    /// Whether the other side came to a listener, and has not asked for a connection.
    pub fn is_greeting(&self) -> bool {
        self.phase == Phase::Greeting
    }

    /// Whether what has come must wait: it is for a queue pair that the program has not made ready.
    pub fn is_paused(&self) -> bool {
        self.phase == Phase::ReplyReceived
    }

    pub fn is_overfull(&self) -> bool {
        self.control.len() > MOST_CONTROL
    }

    /// Whether the link is to be opened now. Says so once.
    pub fn take_wants_open(&mut self) -> bool {
        std::mem::take(&mut self.wants_open)
    }

    // ---- what the program asks ----

    pub fn connect(
        &mut self,
        mine: Params,
        private: Private,
        program_moves_qp: bool,
        now: Instant,
        timers: &mut Timers,
    ) {
        self.mine = mine;
        self.private = private;
        self.program_moves_qp = program_moves_qp;
        self.phase = Phase::Opening;
        self.tries = 0;
        self.wants_open = true;
        timers.set(Timer::Handshake, now + CONNECT_TIME);
    }

    /// A link has come to a listener.
    pub fn greet(&mut self, now: Instant, timers: &mut Timers) {
        self.phase = Phase::Greeting;
        timers.set(Timer::Handshake, now + GREETING_TIME);
    }

    pub fn accept(
        &mut self,
        mine: Params,
        private: Private,
        link_is_open: bool,
        now: Instant,
        timers: &mut Timers,
    ) -> Result<Step, WrongState> {
        if self.phase != Phase::Requested {
            return Err(WrongState);
        }
        self.mine = mine;
        if !link_is_open {
            // Gone before it was accepted.
            self.phase = Phase::Closed;
            return Ok(Step {
                fail_qp: true,
                ..Step::event(Event::Unreachable)
            });
        }
        self.phase = Phase::Accepted;
        timers.set(Timer::Handshake, now + CONNECT_TIME);
        self.control.push_back(Frame::Reply(mine, private));
        Ok(Step {
            ready: true,
            ..Step::default()
        })
    }

    pub fn reject(&mut self, private: Private) -> Result<(), WrongState> {
        if !matches!(self.phase, Phase::Requested | Phase::ReplyReceived) {
            return Err(WrongState);
        }
        self.phase = Phase::Closed;
        self.control
            .push_back(Frame::Reject(REJECTED_BY_CONSUMER, private));
        Ok(())
    }

    /// The listener does not take the request.
    pub fn not_taken(&mut self, now: Instant, timers: &mut Timers) {
        self.phase = Phase::Closed;
        let reject = Frame::Reject(REJECTED_BY_CONSUMER, Private::NONE);
        self.control.push_back(reject);
        timers.set(Timer::Linger, now + GREETING_TIME);
    }

    /// The program knows that the other side has accepted.
    pub fn establish(&mut self) -> Result<Step, WrongState> {
        if self.phase != Phase::ReplyReceived {
            return Err(WrongState);
        }
        self.phase = Phase::Established;
        self.control.push_back(Frame::Ready);
        Ok(Step {
            ready: true,
            ..Step::default()
        })
    }

    pub fn disconnect(&mut self, now: Instant, timers: &mut Timers) -> Result<Step, WrongState> {
        match self.phase {
            Phase::Established | Phase::Accepted => {
                self.phase = Phase::DisconnectSent;
                timers.clear(Timer::Handshake);
                self.control.push_back(Frame::Disconnect);
                timers.set(Timer::Disconnect, now + DISCONNECT_TIME);
            }
            Phase::DisconnectReceived => {
                self.phase = Phase::Closed;
                self.control.push_back(Frame::Disconnected);
                timers.set(Timer::Timewait, now + TIMEWAIT_TIME);
            }
            Phase::DisconnectSent | Phase::Closed => {}
            _ => return Err(WrongState),
        }
        Ok(Step {
            fail_qp: true,
            ..Step::default()
        })
    }

    /// The program has destroyed its id. The other side is told what it should know of that.
    pub fn abandon(&mut self, now: Instant, timers: &mut Timers) {
        timers.clear_all();
        let farewell = match self.phase {
            Phase::Established | Phase::Accepted => Some(Frame::Disconnect),
            Phase::DisconnectReceived => Some(Frame::Disconnected),
            Phase::Requested | Phase::ReplyReceived => {
                Some(Frame::Reject(REJECTED_BY_CONSUMER, Private::NONE))
            }
            _ => None,
        };
        self.control.extend(farewell);
        self.phase = Phase::Closed;
        self.wants_open = false;
        timers.set(Timer::Linger, now + LINGER_TIME);
    }

    // ---- what the link brings ----

    pub fn opened(&mut self) {
        self.phase = Phase::RequestSent;
        let request = Frame::Request(self.mine, self.private);
        self.control.push_back(request);
    }

    /// The link could not be opened; `refused` if nobody listens there.
    pub fn open_failed(&mut self, refused: bool, now: Instant, timers: &mut Timers) -> Step {
        if refused && self.tries < OPEN_TRIES {
            self.tries += 1;
            timers.set(Timer::Open, now + OPEN_TIME * self.tries);
            return Step::default();
        }
        if refused {
            return self.not_there(REJECTED_NO_SERVICE, timers);
        }
        timers.clear(Timer::Handshake);
        self.phase = Phase::Closed;
        Step {
            fail_qp: true,
            ..Step::event(Event::Unreachable)
        }
    }

    /// The first that comes from the other side is not what this protocol begins with. A request that
    /// was sent ends as on a device: nobody there offers the service, or not in this version.
    pub fn stranger(
        &mut self,
        stranger: Stranger,
        now: Instant,
        timers: &mut Timers,
    ) -> Result<Step, Malformed> {
        let reason = match (stranger, self.phase) {
            (Stranger::Malformed, _) | (Stranger::WrongMagic, Phase::Greeting) => {
                return Err(Malformed);
            }
            (Stranger::WrongVersion(_), Phase::Greeting) => {
                timers.clear(Timer::Handshake);
                self.phase = Phase::Closed;
                self.control.push_back(Frame::Version(VERSION));
                timers.set(Timer::Linger, now + GREETING_TIME);
                return Ok(Step::default());
            }
            (Stranger::WrongVersion(_), _) => REJECTED_OTHER_VERSION,
            (Stranger::WrongMagic, _) => REJECTED_NO_SERVICE,
        };
        Ok(self.not_there(reason, timers))
    }

    /// Nobody there takes the request.
    fn not_there(&mut self, reason: u16, timers: &mut Timers) -> Step {
        timers.clear(Timer::Handshake);
        self.phase = Phase::Closed;
        Step {
            fail_qp: true,
            drop_link: true,
            ..Step::event(Event::Rejected(reason, Private::NONE))
        }
    }

    /// The other side says something of connection management.
    pub fn frame(
        &mut self,
        frame: &Frame,
        now: Instant,
        timers: &mut Timers,
    ) -> Result<Step, Malformed> {
        let step = match (frame, self.phase) {
            // The other side had sent it before it knew.
            (_, Phase::Closed) => Step::default(),
            (Frame::Request(params, private), Phase::Greeting) => {
                timers.clear(Timer::Handshake);
                self.theirs = *params;
                self.phase = Phase::Requested;
                Step {
                    offer: Some((*params, *private)),
                    ..Step::default()
                }
            }
            (Frame::Reply(params, private), Phase::RequestSent) => {
                timers.clear(Timer::Handshake);
                self.theirs = *params;
                self.phase = Phase::ReplyReceived;
                Step::event(Event::Reply(*params, *private))
            }
            // It sends back what it was sent.
            (Frame::Request(..), Phase::RequestSent) => self.not_there(REJECTED_NO_SERVICE, timers),
            // After it has accepted, the other side may change its mind.
            (Frame::Reject(reason, private), Phase::RequestSent | Phase::Accepted) => {
                timers.clear(Timer::Handshake);
                self.phase = Phase::Closed;
                Step {
                    fail_qp: true,
                    ..Step::event(Event::Rejected(*reason, *private))
                }
            }
            (Frame::Reject(..), Phase::Requested) => Step {
                drop_link: true,
                ..Step::default()
            },
            (Frame::Ready, Phase::Accepted) => {
                timers.clear(Timer::Handshake);
                self.phase = Phase::Established;
                Step::event(Event::Established)
            }
            (Frame::Ready, Phase::DisconnectSent) => Step::default(),
            (Frame::Disconnect, Phase::Established | Phase::Accepted) => {
                timers.clear(Timer::Handshake);
                self.phase = Phase::DisconnectReceived;
                Step {
                    peer_failed: true,
                    ..Step::event(Event::Disconnected)
                }
            }
            // Both at once.
            (Frame::Disconnect, Phase::DisconnectSent) => {
                self.control.push_back(Frame::Disconnected);
                self.disconnected(now, timers)
            }
            (Frame::Disconnected, Phase::DisconnectSent) => self.disconnected(now, timers),
            _ => return Err(Malformed),
        };
        Ok(step)
    }

    fn disconnected(&mut self, now: Instant, timers: &mut Timers) -> Step {
        self.phase = Phase::Closed;
        timers.clear(Timer::Disconnect);
        timers.set(Timer::Timewait, now + TIMEWAIT_TIME);
        Step::event(Event::Disconnected)
    }

    /// The link has ended, or what came on it was nonsense.
    pub fn lost(&mut self, now: Instant, timers: &mut Timers) -> Step {
        for timer in [
            Timer::Handshake,
            Timer::Disconnect,
            Timer::PeerFailed,
            Timer::Rnr,
            Timer::Ack,
        ] {
            timers.clear(timer);
        }
        self.control.clear();
        self.wants_open = false;
        let phase = std::mem::replace(&mut self.phase, Phase::Closed);
        let lost = Step {
            drop_link: true,
            ..Step::default()
        };
        match phase {
            Phase::Opening | Phase::RequestSent | Phase::ReplyReceived | Phase::Accepted => Step {
                fail_qp: true,
                event: Some(Event::Unreachable),
                ..lost
            },
            Phase::Established | Phase::DisconnectSent => {
                timers.set(Timer::Timewait, now + TIMEWAIT_TIME);
                // It does not come back: what is outstanding has no other end.
                Step {
                    fail_qp: true,
                    fail_outstanding: true,
                    event: Some(Event::Disconnected),
                    ..lost
                }
            }
            Phase::DisconnectReceived => {
                self.phase = phase;
                Step {
                    fail_outstanding: true,
                    ..lost
                }
            }
            Phase::Requested => {
                self.phase = phase;
                lost
            }
            // The program has destroyed the id, and perhaps not the queue pair.
            _ => Step {
                fail_outstanding: true,
                ..lost
            },
        }
    }

    /// The time of a timer of connection management is over.
    pub fn due(&mut self, timer: Timer, now: Instant, timers: &mut Timers) -> Step {
        match timer {
            Timer::Handshake => self.lost(now, timers),
            Timer::Open => {
                self.wants_open = self.phase == Phase::Opening;
                Step::default()
            }
            Timer::Disconnect if self.phase == Phase::DisconnectSent => {
                self.disconnected(now, timers)
            }
            Timer::Timewait => Step::event(Event::TimewaitExit),
            Timer::Linger => Step {
                drop_link: true,
                ..Step::default()
            },
            _ => Step::default(),
        }
    }
}

#[cfg(test)]
mod tests;
