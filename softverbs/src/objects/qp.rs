//! Queue pairs: what is posted, what has become of it, and how it completes.

use super::cq::Cq;
use super::memory::{Domain, Hold, Refusal, Right};
use super::places::{Places, SendPlace};
use super::srq::Srq;
use crate::frames::{AtomicOp, FlushKind, Malformed, Remote};
use crate::settings::Settings;
use rdma_sys::{
    ibv_access_flags, ibv_qp, ibv_qp_cap, ibv_qp_state, ibv_send_flags, ibv_sge, ibv_wc,
    ibv_wc_flags, ibv_wc_opcode, ibv_wc_status,
};
use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

/// `IBV_WC_FLUSH` and `IBV_WC_ATOMIC_WRITE` of `infiniband/verbs.h`; older headers lack them.
const WC_FLUSH: ibv_wc_opcode::Type = 8;
const WC_ATOMIC_WRITE: ibv_wc_opcode::Type = 9;

/// The local memory of a work request.
#[derive(Clone)]
pub enum SgList {
    Few(u8, [ibv_sge; SgList::FEW]),
    Many(Box<[ibv_sge]>),
}

impl SgList {
    const FEW: usize = 4;
    pub const NONE: Self = SgList::Few(
        0,
        [ibv_sge {
            addr: 0,
            length: 0,
            lkey: 0,
        }; Self::FEW],
    );

    /// # Safety
    /// `list` is an array of `n` entries, or `n` is 0.
    pub unsafe fn copy(list: *const ibv_sge, n: usize) -> Self {
        if n <= Self::FEW {
            let mut few = [ibv_sge {
                addr: 0,
                length: 0,
                lkey: 0,
            }; Self::FEW];
            for (i, sge) in few.iter_mut().enumerate().take(n) {
                // SAFETY: within the array.
                *sge = unsafe { *list.add(i) };
            }
            SgList::Few(n as u8, few)
        } else {
            // SAFETY: as the caller says.
            SgList::Many(unsafe { slice::from_raw_parts(list, n) }.into())
        }
    }

    pub fn as_slice(&self) -> &[ibv_sge] {
        match self {
            SgList::Few(n, few) => &few[..*n as usize],
            SgList::Many(many) => many,
        }
    }

    /// How many bytes they are of.
    pub fn bytes(&self) -> u64 {
        self.as_slice()
            .iter()
            .map(|sge| u64::from(sge.length))
            .sum()
    }

    /// Holds the memory of `len` bytes from `offset` on, piece by piece.
    pub fn hold(
        &self,
        domain: &Domain,
        mut offset: u64,
        mut len: u64,
        write: bool,
        holds: &mut Vec<Hold>,
    ) -> Result<(), Refusal> {
        holds.clear();
        for sge in self.as_slice() {
            let length = u64::from(sge.length);
            if offset >= length {
                offset -= length;
                continue;
            }
            let part = (length - offset).min(len);
            if part > 0 {
                holds.push(domain.local(sge.lkey, sge.addr.wrapping_add(offset), part, write)?);
            }
            len -= part;
            offset = 0;
            if len == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Whether all of it may be used.
    pub fn check(&self, domain: &Domain, write: bool) -> Result<(), Refusal> {
        for sge in self.as_slice() {
            domain.local(sge.lkey, sge.addr, sge.length.into(), write)?;
        }
        Ok(())
    }
}

/// The memory held, to send from.
///
/// # Safety
/// The program, and other devices, may write to the memory meanwhile; the slice must be used only
/// to have the kernel copy from it.
pub unsafe fn to_send(hold: &Hold) -> IoSlice<'_> {
    // SAFETY: the region is mapped while it is held.
    IoSlice::new(unsafe { slice::from_raw_parts(hold.ptr(), hold.len()) })
}

/// The memory held, to receive into.
///
/// # Safety
/// As for [`to_send`], of copying to it.
pub unsafe fn to_receive(hold: &Hold) -> IoSliceMut<'_> {
    // SAFETY: the region is mapped while it is held.
    IoSliceMut::new(unsafe { slice::from_raw_parts_mut(hold.ptr(), hold.len()) })
}

/// A receive request.
pub struct RecvWqe {
    pub wr_id: u64,
    pub sges: SgList,
}

/// What a send request asks of the other side.
#[derive(Clone, Copy, Debug)]
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
        whole: bool,
    },
}

impl Op {
    /// Answered with data, and so bounded in number.
    pub fn is_read(&self) -> bool {
        matches!(self, Op::Read { .. } | Op::Atomic { .. })
    }

    /// Needs a receive of the other side.
    pub fn takes_receive(&self) -> bool {
        matches!(self, Op::Send { .. } | Op::Write { imm: Some(_), .. })
    }

    /// What a fence waits for.
    pub fn holds_fence(&self) -> bool {
        self.is_read() || matches!(self, Op::Flush { .. } | Op::AtomicWrite { .. })
    }

    /// Brings bytes of this side's memory, or inline data, to the other.
    pub fn carries(&self) -> bool {
        matches!(self, Op::Send { .. } | Op::Write { .. })
    }

    fn opcode(&self) -> ibv_wc_opcode::Type {
        match self {
            Op::Send { .. } => ibv_wc_opcode::IBV_WC_SEND,
            Op::Write { .. } => ibv_wc_opcode::IBV_WC_RDMA_WRITE,
            Op::Read { .. } => ibv_wc_opcode::IBV_WC_RDMA_READ,
            Op::Atomic {
                op: AtomicOp::CompareSwap { .. },
                ..
            } => ibv_wc_opcode::IBV_WC_COMP_SWAP,
            Op::Atomic {
                op: AtomicOp::FetchAdd(_),
                ..
            } => ibv_wc_opcode::IBV_WC_FETCH_ADD,
            Op::AtomicWrite { .. } => WC_ATOMIC_WRITE,
            Op::Flush { .. } => WC_FLUSH,
        }
    }
}

/// Where the bytes of a send request are, or go.
pub enum Payload {
    Memory(SgList),
    /// Copied when it was posted, to the slot of its number.
    Inline,
}

/// A send request.
pub struct SendWqe {
    pub wr_id: u64,
    pub op: Op,
    pub payload: Payload,
    pub len: u32,
    pub signaled: bool,
    pub fence: bool,
    pub solicited: bool,
    /// How it ended, if it has; it completes when all before it have.
    pub outcome: Option<ibv_wc_status::Type>,
    /// Of a read, how much has come.
    pub got: u32,
}

impl SendWqe {
    /// One with these `IBV_SEND_*` flags, as it is posted.
    pub fn new(wr_id: u64, flags: u32, op: Op, payload: Payload, len: u32) -> Self {
        let has = |flag: ibv_send_flags| flags & flag.0 != 0;
        SendWqe {
            wr_id,
            op,
            payload,
            len,
            signaled: has(ibv_send_flags::IBV_SEND_SIGNALED),
            fence: has(ibv_send_flags::IBV_SEND_FENCE),
            solicited: has(ibv_send_flags::IBV_SEND_SOLICITED),
            outcome: None,
            got: 0,
        }
    }
}

/// The requests that have not completed, each with its number.
pub struct SendQueue {
    pub entries: VecDeque<SendWqe>,
    /// The number of the first entry.
    pub first: u32,
    /// How many entries have been sent whole.
    pub sent: usize,
    /// How much of the next one has been sent.
    pub offset: u32,
    /// Of those sent, how many wait for data.
    pub reads: u32,
    /// The first of them that has ended badly. It is told of when those before it have ended, which
    /// may have to be sent again; what comes after it is not sent.
    failed: Option<u32>,
    inline: Box<[u8]>,
    max_inline: usize,
    slots: usize,
    max_wr: u32,
    places: Arc<Places>,
}

impl SendQueue {
    fn new(max_wr: usize, max_inline: usize) -> Option<Self> {
        let mut entries = VecDeque::new();
        entries.try_reserve_exact(max_wr).ok()?;
        // A power of two: when the numbers begin again at 0, no two requests have one slot.
        let slots = max_wr.next_power_of_two();
        let mut inline = vec![];
        inline.try_reserve_exact(slots * max_inline).ok()?;
        inline.resize(slots * max_inline, 0);
        Some(SendQueue {
            entries,
            first: 0,
            sent: 0,
            offset: 0,
            reads: 0,
            failed: None,
            inline: inline.into_boxed_slice(),
            max_inline,
            slots,
            max_wr: max_wr as u32,
            places: Places::new(0),
        })
    }

    /// The entry of that number, if it has been begun to send.
    pub fn begun(&mut self, seq: u32) -> Option<(usize, &mut SendWqe)> {
        let i = self.place(seq);
        let end = self.sent + usize::from(self.offset > 0);
        if i >= end {
            return None;
        }
        self.entries.get_mut(i).map(|wqe| (i, wqe))
    }

    /// Whether an entry is not to be sent: it or one before it has ended badly.
    pub fn is_cut_off(&self, i: usize) -> bool {
        self.failed.is_some_and(|seq| i >= self.place(seq))
    }

    fn place(&self, seq: u32) -> usize {
        seq.wrapping_sub(self.first) as usize
    }

    pub fn seq(&self, i: usize) -> u32 {
        self.first.wrapping_add(i as u32)
    }

    /// Whether there is no place for another request: those that have completed keep theirs until
    /// they are polled.
    pub fn is_full(&self) -> bool {
        self.places.taken(self.seq(self.entries.len())) >= self.max_wr
    }

    /// The slot for inline data of the entry of that number.
    fn slot(&self, seq: u32) -> usize {
        (seq as usize % self.slots) * self.max_inline
    }

    pub fn inline(&self, seq: u32, len: usize) -> &[u8] {
        let slot = self.slot(seq);
        &self.inline[slot..slot + len]
    }

    /// Where inline data of the entry posted next goes.
    pub fn inline_mut(&mut self) -> &mut [u8] {
        let slot = self.slot(self.seq(self.entries.len()));
        &mut self.inline[slot..slot + self.max_inline]
    }
}

/// What a queue pair is made with.
pub struct QpInit {
    pub num: u32,
    pub domain: Arc<Domain>,
    pub send_cq: Arc<Cq>,
    pub recv_cq: Arc<Cq>,
    pub srq: Option<Arc<Srq>>,
    pub cap: ibv_qp_cap,
    pub sq_sig_all: bool,
    /// Operations beyond those of every queue pair: `IBV_QP_EX_WITH_*`.
    pub ops: u64,
}

/// A queue pair.
pub struct Qp {
    pub init: QpInit,
    pub handle: AtomicPtr<ibv_qp>,
    pub state: ibv_qp_state::Type,
    pub sq: SendQueue,
    pub rq: VecDeque<RecvWqe>,
    /// What a message is being received into.
    pub receiving: Option<RecvWqe>,
    /// How many reads may be under way, as both sides agreed.
    pub max_reads: u32,
    /// How often to try again when the other side has no receive; 7 is for ever.
    pub rnr_retry: u8,
    pub rnr_left: u8,
    pub min_rnr_timer: u8,
    pub timeout: u8,
    /// What the other side may do at all: `enum ibv_access_flags`.
    pub access: u32,
    /// The other side said that it has no receive.
    pub rnr_paused: bool,
}

/// What connection management lets the other side do: `enum ibv_access_flags`.
pub fn every_access() -> u32 {
    type A = ibv_access_flags;
    let flush = if Settings::get().flush {
        Right::FlushGlobal.bit() | Right::FlushPersistent.bit()
    } else {
        0
    };
    (A::IBV_ACCESS_REMOTE_WRITE | A::IBV_ACCESS_REMOTE_READ | A::IBV_ACCESS_REMOTE_ATOMIC).0 | flush
}

impl Qp {
    pub fn new(init: QpInit) -> Option<Self> {
        let cap = &init.cap;
        let sq = SendQueue::new(cap.max_send_wr as usize, cap.max_inline_data as usize)?;
        let mut rq = VecDeque::new();
        rq.try_reserve_exact(cap.max_recv_wr as usize).ok()?;
        Some(Qp {
            init,
            handle: AtomicPtr::default(),
            state: ibv_qp_state::IBV_QPS_RESET,
            sq,
            rq,
            receiving: None,
            max_reads: 0,
            rnr_retry: 7,
            rnr_left: 7,
            min_rnr_timer: 0,
            timeout: 0,
            access: every_access(),
            rnr_paused: false,
        })
    }

    /// Whether requests may be posted: not before it is connected.
    pub fn may_send(&self) -> bool {
        !matches!(
            self.state,
            ibv_qp_state::IBV_QPS_RESET | ibv_qp_state::IBV_QPS_INIT | ibv_qp_state::IBV_QPS_RTR
        )
    }

    pub fn is_error(&self) -> bool {
        self.state == ibv_qp_state::IBV_QPS_ERR
    }

    fn wc(&self, wr_id: u64, status: ibv_wc_status::Type, opcode: ibv_wc_opcode::Type) -> ibv_wc {
        ibv_wc {
            wr_id,
            status,
            opcode,
            vendor_err: 0,
            byte_len: 0,
            imm_data_invalidated_rkey_union: rdma_sys::imm_data_invalidated_rkey_union_t {
                imm_data: 0,
            },
            qp_num: self.init.num,
            src_qp: 0,
            wc_flags: 0,
            pkey_index: 0,
            slid: 0,
            sl: 0,
            dlid_path_bits: 0,
        }
    }

    /// Completes what has ended, in order; what ended badly ends all that follows.
    pub fn complete(&mut self) {
        while let Some(status) = self.sq.entries.front().and_then(|wqe| wqe.outcome) {
            self.pop(status);
            if status != ibv_wc_status::IBV_WC_SUCCESS {
                self.fail();
                return;
            }
        }
    }

    /// Takes the first send request out of the queue, with its completion.
    fn pop(&mut self, status: ibv_wc_status::Type) {
        let Some(wqe) = self.sq.entries.pop_front() else {
            return;
        };
        let seq = self.sq.first;
        self.sq.first = self.sq.first.wrapping_add(1);
        if self.sq.sent > 0 {
            self.sq.sent -= 1;
        } else {
            self.sq.offset = 0;
        }
        let good = status == ibv_wc_status::IBV_WC_SUCCESS;
        if good && !wqe.signaled {
            return;
        }
        let mut wc = self.wc(wqe.wr_id, status, wqe.op.opcode());
        if good {
            wc.byte_len = wqe.len;
        }
        let place = SendPlace::new(&self.sq.places, seq);
        self.init.send_cq.push(wc, false, Some(place));
    }

    /// Brings the queue pair into the error state: what is outstanding is flushed.
    pub fn fail(&mut self) {
        let was_error = self.is_error();
        self.state = ibv_qp_state::IBV_QPS_ERR;
        self.flush();
        if !was_error && let Some(srq) = &self.init.srq {
            srq.left_by(self.handle.load(Ordering::Relaxed));
        }
    }

    /// Forgets all that was posted.
    pub fn reset(&mut self) {
        self.state = ibv_qp_state::IBV_QPS_RESET;
        self.sq.first = self.sq.seq(self.sq.entries.len());
        self.sq.entries.clear();
        self.sq.sent = 0;
        self.sq.offset = 0;
        self.sq.reads = 0;
        self.sq.failed = None;
        self.sq.places = Places::new(self.sq.first);
        self.rq.clear();
        self.receiving = None;
        self.rnr_paused = false;
        self.access = every_access();
    }

    /// Completes all that is outstanding as flushed, or as it ended.
    pub fn flush(&mut self) {
        while let Some(wqe) = self.sq.entries.front() {
            let status = wqe.outcome.unwrap_or(ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
            self.pop(status);
        }
        self.sq.sent = 0;
        self.sq.offset = 0;
        self.sq.reads = 0;
        while let Some(wqe) = self.receiving.take().or_else(|| self.rq.pop_front()) {
            self.complete_recv(&wqe, Err(ibv_wc_status::IBV_WC_WR_FLUSH_ERR), None, false);
        }
    }

    /// Completes a receive: with how many bytes came and of which operation, or with what is wrong.
    pub fn complete_recv(
        &self,
        wqe: &RecvWqe,
        result: Result<(u32, ibv_wc_opcode::Type), ibv_wc_status::Type>,
        imm: Option<u32>,
        solicited: bool,
    ) {
        let mut wc = match result {
            Ok((len, opcode)) => {
                let mut wc = self.wc(wqe.wr_id, ibv_wc_status::IBV_WC_SUCCESS, opcode);
                wc.byte_len = len;
                wc
            }
            Err(status) => self.wc(wqe.wr_id, status, ibv_wc_opcode::IBV_WC_RECV),
        };
        if let Some(imm) = imm {
            wc.wc_flags = ibv_wc_flags::IBV_WC_WITH_IMM.0;
            wc.imm_data_invalidated_rkey_union.imm_data = imm.to_be();
        }
        self.init.recv_cq.push(wc, solicited, None);
    }

    /// Starts to send again from that request on.
    pub fn rewind(&mut self, seq: u32) {
        let i = self.sq.place(seq);
        let sent = self.sq.sent;
        for wqe in self.sq.entries.range_mut(i.min(sent)..sent) {
            if wqe.op.is_read() && wqe.outcome.is_none() {
                self.sq.reads -= 1;
                wqe.got = 0;
            }
        }
        self.sq.sent = self.sq.sent.min(i);
        self.sq.offset = 0;
    }

    /// All up to that request has been carried out. Those that wait for data still do.
    pub fn acknowledge(&mut self, seq: u32) -> Result<(), Malformed> {
        let n = seq.wrapping_sub(self.sq.first).wrapping_add(1) as usize;
        // Acknowledged before.
        if n > u32::MAX as usize / 2 || n == 0 {
            return Ok(());
        }
        if n > self.sq.sent {
            return Err(Malformed);
        }
        for wqe in self.sq.entries.range_mut(..n) {
            if !wqe.op.is_read() && wqe.outcome.is_none() {
                wqe.outcome = Some(ibv_wc_status::IBV_WC_SUCCESS);
            }
        }
        self.rnr_left = self.rnr_retry;
        self.complete();
        Ok(())
    }

    /// A request ended badly.
    pub fn fail_request(&mut self, seq: u32, status: ibv_wc_status::Type) {
        let i = self.sq.place(seq);
        if let Some(wqe) = self.sq.entries.get_mut(i) {
            wqe.outcome = Some(status);
            if !self.sq.is_cut_off(i) {
                self.sq.failed = Some(seq);
            }
        }
        self.complete();
    }

    /// The other side does not answer any more: the first request that waits is told, the others
    /// are flushed.
    pub fn peer_gone(&mut self) {
        if let Some(wqe) = self.sq.entries.iter_mut().find(|wqe| wqe.outcome.is_none()) {
            wqe.outcome = Some(ibv_wc_status::IBV_WC_RETRY_EXC_ERR);
            self.complete();
        }
    }
}
