//! The protocol: one end of a reliable connection as a state machine without I/O.
//!
//! There are no sockets, locks, clocks, threads and no `unsafe` in here. A `Connection` is given
//! what the program asks, the bytes that have come and the time, and says what is to be sent, where
//! payload goes, what is to be carried out, and when it wants to be asked again. What it needs of
//! memory, queues and events it asks of a `Host`. So all that two ends can do to each other can be
//! tried in one thread, with a clock that a test turns.
//!
//! - `connection` owns and joins the others;
//! - `cm` is connection management, `qp` the queue pair: its `requester` sends what is posted,
//!   its `responder` carries out what the other side asks;
//! - `ack` decides when messages are acknowledged, `timers` keeps the deadlines;
//! - `inbound` and `outbound` hold the bytes on both sides, `frames` gives them their form;
//! - `wqe` has requests and completions, `host` what the protocol asks of the world.
//!
//! Nothing is allocated for a message: a queue pair has its room from the start.
#![forbid(unsafe_code)]

mod ack;
mod cm;
mod connection;
pub mod frames;
mod host;
mod inbound;
mod outbound;
mod qp;
mod requester;
mod responder;
mod timers;
mod wqe;

pub use cm::{Cm, Phase, REJECTED_BY_CONSUMER, REJECTED_NO_SERVICE, WrongState};
pub use connection::{Connection, LinkState, Memory, Outgoing};
pub use host::{Cause, Event, Host, Right};
pub use qp::{Caps, Qp, QpState};
pub use requester::{RNR_RETRY_FOREVER, Requester, SendWqe, message_length};
pub use responder::{Order, recv_completion};
pub use wqe::{
    Completion, MAX_SGE, Op, Opcode, RecvQueue, RecvWqe, Resize, Sge, Status, bytes, parts,
};
