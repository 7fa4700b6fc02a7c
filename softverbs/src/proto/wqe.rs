//! Work requests and completions, as the protocol sees them.

use super::frames::{AtomicOp, FlushKind, Remote};

/// The most pieces of memory that one request has.
pub const MAX_SGE: usize = 32;

/// A piece of local memory: `struct ibv_sge`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

/// How many bytes the pieces have.
pub fn bytes(sges: &[Sge]) -> u64 {
    sges.iter().map(|sge| u64::from(sge.length)).sum()
}

/// The parts of the pieces that hold `len` bytes from `offset` on.
pub fn parts(sges: &[Sge], offset: u64, len: u64) -> impl Iterator<Item = Sge> {
    let (mut offset, mut len) = (offset, len);
    sges.iter().filter_map(move |sge| {
        let length = u64::from(sge.length);
        if offset >= length {
            offset -= length;
            return None;
        }
        let part = (length - offset).min(len);
        let addr = sge.addr.wrapping_add(offset);
        offset = 0;
        len -= part;
        (part > 0).then_some(Sge {
            addr,
            length: part as u32,
            lkey: sge.lkey,
        })
    })
}

/// What a send request asks of the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Send {
        imm: Option<u32>,
    },
    Write {
        at: Remote,
        imm: Option<u32>,
    },
    Read {
        at: Remote,
    },
    Atomic {
        at: Remote,
        op: AtomicOp,
    },
    AtomicWrite {
        at: Remote,
        value: [u8; 8],
    },
    Flush {
        at: Remote,
        len: u64,
        kind: FlushKind,
        /// All of the region, not only the range.
        whole: bool,
    },
}

impl Op {
    /// The other side answers it with data. `max_rd_atomic` limits how many are outstanding.
    pub fn is_read(&self) -> bool {
        matches!(self, Op::Read { .. } | Op::Atomic { .. })
    }

    /// It consumes a receive request of the other side.
    pub fn takes_receive(&self) -> bool {
        matches!(self, Op::Send { .. } | Op::Write { imm: Some(_), .. })
    }

    /// A later request with a fence waits for it.
    pub fn holds_fence(&self) -> bool {
        self.is_read() || matches!(self, Op::Flush { .. } | Op::AtomicWrite { .. })
    }

    /// It moves bytes of this side's memory, or inline data, to the other side.
    pub fn carries(&self) -> bool {
        matches!(self, Op::Send { .. } | Op::Write { .. })
    }

    pub fn opcode(&self) -> Opcode {
        match self {
            Op::Send { .. } => Opcode::Send,
            Op::Write { .. } => Opcode::Write,
            Op::Read { .. } => Opcode::Read,
            Op::Atomic {
                op: AtomicOp::CompareSwap { .. },
                ..
            } => Opcode::CompareSwap,
            Op::Atomic {
                op: AtomicOp::FetchAdd(_),
                ..
            } => Opcode::FetchAdd,
            Op::AtomicWrite { .. } => Opcode::AtomicWrite,
            Op::Flush { .. } => Opcode::Flush,
        }
    }
}

/// What a completion is of: `enum ibv_wc_opcode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    Send,
    Write,
    Read,
    CompareSwap,
    FetchAdd,
    AtomicWrite,
    Flush,
    Recv,
    RecvWriteImm,
}

impl Opcode {
    pub fn is_recv(self) -> bool {
        matches!(self, Opcode::Recv | Opcode::RecvWriteImm)
    }
}

/// How a request ended: the values of `enum ibv_wc_status` that RC has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Success,
    LocLen,
    LocQpOp,
    LocProt,
    WrFlush,
    LocAccess,
    RemInvReq,
    RemAccess,
    RemOp,
    RetryExc,
    RnrRetryExc,
}

/// A completion queue entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    pub wr_id: u64,
    pub status: Status,
    pub opcode: Opcode,
    pub byte_len: u32,
    pub imm: Option<u32>,
    /// The sender asked for an event.
    pub solicited: bool,
    /// Of a send request, its place in the send queue: the program has taken all completions up to
    /// there once it polls this one.
    pub seq: u32,
}

/// A receive request with the pieces of memory that it receives into.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecvWqe {
    pub wr_id: u64,
    n: u8,
    sges: [Sge; MAX_SGE],
}

impl RecvWqe {
    pub fn sges(&self) -> &[Sge] {
        self.sges.get(..self.n.into()).unwrap_or_default()
    }
}

/// A receive queue: of a queue pair, or a shared one. It owns the room for all that can be posted.
#[derive(Debug)]
pub struct RecvQueue {
    /// Of each request its `wr_id` and number of pieces.
    entries: Box<[(u64, u8)]>,
    sges: Box<[Sge]>,
    max_sge: usize,
    first: usize,
    len: usize,
}

impl RecvQueue {
    /// `None` if there is no memory for it.
    pub fn new(max_wr: usize, max_sge: usize) -> Option<Self> {
        Some(RecvQueue {
            entries: boxed(max_wr, (0, 0))?,
            sges: boxed(max_wr.checked_mul(max_sge)?, Sge::default())?,
            max_sge,
            first: 0,
            len: 0,
        })
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn capacity(&self) -> usize {
        self.entries.len()
    }

    pub fn max_sge(&self) -> usize {
        self.max_sge
    }

    /// Adds a request whose pieces `fill` writes; `None` if there is no room for the request, or
    /// for so many pieces.
    pub fn push(&mut self, wr_id: u64, n: usize, fill: impl FnOnce(&mut [Sge])) -> Option<()> {
        if self.len == self.entries.len() || n > self.max_sge {
            return None;
        }
        let i = (self.first + self.len) % self.entries.len();
        *self.entries.get_mut(i)? = (wr_id, n as u8);
        fill(self.sges.get_mut(i * self.max_sge..)?.get_mut(..n)?);
        self.len += 1;
        Some(())
    }

    /// Takes the first request out of the queue; returns false if there is none.
    pub fn pop(&mut self, to: &mut RecvWqe) -> bool {
        self.take(to).is_some()
    }

    fn take(&mut self, to: &mut RecvWqe) -> Option<()> {
        if self.len == 0 {
            return None;
        }
        let i = self.first;
        let (wr_id, n) = *self.entries.get(i)?;
        let posted = self.sges.get(i * self.max_sge..)?.get(..n.into())?;
        to.sges.get_mut(..n.into())?.copy_from_slice(posted);
        (to.wr_id, to.n) = (wr_id, n);
        self.first = if i + 1 == self.entries.len() {
            0
        } else {
            i + 1
        };
        self.len -= 1;
        Some(())
    }

    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Moves what was posted to a queue of another size; it stays where it is if it has more.
    pub fn resize(&mut self, max_wr: usize) -> Result<(), Resize> {
        if max_wr < self.len {
            return Err(Resize::TooSmall);
        }
        let mut new = Self::new(max_wr, self.max_sge).ok_or(Resize::NoMemory)?;
        let mut wqe = RecvWqe::default();
        while self.pop(&mut wqe) {
            let _ = new.push(wqe.wr_id, wqe.sges().len(), |to| {
                to.copy_from_slice(wqe.sges());
            });
        }
        *self = new;
        Ok(())
    }
}

/// Why a queue can't have another size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resize {
    /// More is posted than would have room.
    TooSmall,
    NoMemory,
}

/// `n` values, if there is memory for them.
pub(super) fn boxed<T: Clone>(n: usize, value: T) -> Option<Box<[T]>> {
    let mut values = Vec::new();
    values.try_reserve_exact(n).ok()?;
    values.resize(n, value);
    Some(values.into_boxed_slice())
}
