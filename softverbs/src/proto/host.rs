//! What the protocol asks of the world around it.

use super::frames::{Params, Private, Remote, Stranger};
use super::wqe::{Completion, RecvWqe, Sge};
use std::time::Duration;

/// What a remote access is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    Read,
    Write,
    Atomic,
    FlushGlobal,
    FlushPersistent,
}

impl Right {
    /// As one of `enum ibv_access_flags`.
    pub const fn bit(self) -> u32 {
        match self {
            Right::Write => 1 << 1,
            Right::Read => 1 << 2,
            Right::Atomic => 1 << 3,
            Right::FlushGlobal => 1 << 8,
            Right::FlushPersistent => 1 << 9,
        }
    }
}

/// What connection management tells the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The other side has accepted. The queue pair becomes ready when the program gets the event.
    Reply(Params, Private),
    /// The other side has accepted. The program makes its queue pair ready and says so.
    Response(Params, Private),
    Established,
    Rejected(u16, Private),
    Unreachable,
    Disconnected,
    TimewaitExit,
}

/// Why the other side of a link is no peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause<'a> {
    /// Its first bytes are not those of this protocol.
    Stranger(Stranger, &'a [u8]),
    /// It sends back what it is sent.
    Echo,
    /// It ended the link and has said nothing.
    Ended,
    /// It keeps the link and has said nothing for so long.
    Silent(Duration),
}

/// The memory, the queues and the program's events that a connection works on.
///
/// No method waits. Of those that move bytes, each moves all of them or returns false: the region
/// is gone, or does not have that right or range.
pub trait Host {
    /// Whether the other side may do this with the region of that key. A range of no bytes needs
    /// no region to be read or written.
    fn permits(&self, at: Remote, len: u64, right: Right) -> bool;

    /// Whether a request may use these pieces, and write to them.
    fn may_use(&self, sges: &[Sge], write: bool) -> bool;

    /// Appends `len` bytes of a request's pieces, from `offset` on, to `out`.
    fn read_local(&self, sges: &[Sge], offset: u64, len: usize, out: &mut Vec<u8>) -> bool;

    /// Appends `len` bytes that the other side reads to `out`.
    fn read_remote(&self, at: Remote, len: usize, out: &mut Vec<u8>) -> bool;

    /// Writes to a request's pieces, from `offset` on.
    fn write_local(&self, sges: &[Sge], offset: u64, data: &[u8]) -> bool;

    /// Writes what the other side writes.
    fn write_remote(&self, at: Remote, data: &[u8]) -> bool;

    /// Takes a request from the shared receive queue. If there is none this returns false, and
    /// [`Connection::receive_posted`](super::Connection::receive_posted) must be called once there
    /// is.
    fn take_shared_receive(&mut self, to: &mut RecvWqe) -> bool;

    /// Adds a completion to the send queue's or the receive queue's completion queue.
    fn complete(&mut self, completion: Completion);

    /// The queue pair uses a shared receive queue and takes nothing from it any more.
    fn last_wqe_reached(&mut self);

    /// Offers a request to connect to the listener; false if it does not take it.
    fn offer(&mut self, params: &Params, private: &Private) -> bool;

    fn event(&mut self, event: Event);

    /// Tells a person why the other side is no peer, which no event can. `came` if it came to a
    /// listener.
    fn explain(&mut self, cause: Cause<'_>, came: bool);

    /// Whether somebody looks at the clock and calls
    /// [`Connection::due`](super::Connection::due) soon enough after a deadline that is set now.
    /// If not, nothing is put off that could be done at once.
    fn watches_deadlines(&self) -> bool;
}
