//! A queue pair: its state, its send queue and what it answers.

use super::cm::WrongState;
use super::host::Host;
use super::requester::{Outcome, Requester};
use super::responder::Responder;

/// `enum ibv_qp_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum QpState {
    Reset,
    Init,
    Rtr,
    Rts,
    Sqd,
    Sqe,
    Err,
}

/// How large a queue pair is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caps {
    pub max_send_wr: usize,
    pub max_recv_wr: usize,
    pub max_send_sge: usize,
    pub max_recv_sge: usize,
    pub max_inline: usize,
    /// Reads and atomics that may be outstanding towards it.
    pub max_reads: usize,
    /// It takes receives from a shared receive queue.
    pub srq: bool,
}

#[derive(Debug)]
pub struct Qp {
    pub num: u32,
    state: QpState,
    pub requester: Requester,
    pub responder: Responder,
    /// The local ACK timeout, for those who ask: the link has its own times.
    pub timeout: u8,
    pub retry_count: u8,
    /// It has been reset since it was connected: the connection has no queue pair any more.
    was_reset: bool,
}

impl Qp {
    /// `None` if there is no memory for it.
    pub fn new(num: u32, caps: &Caps, access: u32) -> Option<Self> {
        Some(Qp {
            num,
            state: QpState::Reset,
            requester: Requester::new(caps.max_send_wr, caps.max_send_sge, caps.max_inline)?,
            responder: Responder::new(
                caps.max_recv_wr,
                caps.max_recv_sge,
                caps.srq,
                access,
                caps.max_reads,
            )?,
            timeout: 0,
            retry_count: 0,
            was_reset: false,
        })
    }

    pub fn state(&self) -> QpState {
        self.state
    }

    /// Moves it to a state in which nothing fails and nothing is forgotten.
    pub fn set_state(&mut self, state: QpState) {
        self.state = state;
    }

    /// Connection management is about to connect it.
    pub fn initialize(&mut self, access: u32, timeout: u8) -> Result<(), WrongState> {
        // The timeout has five bits.
        if !matches!(self.state, QpState::Reset | QpState::Init) || timeout > 31 {
            return Err(WrongState);
        }
        self.state = QpState::Init;
        self.responder.access = access;
        self.timeout = timeout;
        Ok(())
    }

    pub fn is_error(&self) -> bool {
        self.state == QpState::Err
    }

    /// A connection begins. One that the program has reset meanwhile has no part in it.
    pub fn start(&mut self, program_moves_qp: bool) {
        self.was_reset = self.state == QpState::Reset && !program_moves_qp;
        if matches!(self.state, QpState::Init | QpState::Rtr) && !program_moves_qp {
            self.state = QpState::Rts;
        }
    }

    pub fn was_reset(&self) -> bool {
        self.was_reset
    }

    /// Whether it does nothing for the present connection any more.
    pub fn is_gone(&self) -> bool {
        self.is_error() || self.was_reset
    }

    /// Whether it carries out what the other side asks.
    pub fn responds(&self) -> bool {
        !self.was_reset && matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd)
    }

    /// Whether it sends what is posted.
    pub fn sends(&self) -> bool {
        !self.was_reset && self.state == QpState::Rts
    }

    /// Brings it into the error state: what is outstanding is flushed.
    pub fn fail(&mut self, host: &mut impl Host) {
        let was_error = self.is_error();
        self.state = QpState::Err;
        self.requester.flush(host);
        self.responder.flush(host);
        if !was_error && self.responder.has_srq() {
            host.last_wqe_reached();
        }
    }

    pub fn fail_if(&mut self, outcome: Outcome, host: &mut impl Host) {
        if outcome == Outcome::Failed {
            self.fail(host);
        }
    }

    /// Forgets all that was posted and all that the other side has asked.
    pub fn reset(&mut self, access: u32) {
        self.was_reset |= self.state >= QpState::Rtr;
        self.state = QpState::Reset;
        self.requester.reset();
        self.responder.reset();
        self.responder.access = access;
    }
}
