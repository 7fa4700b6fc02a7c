//! Requests, posted by either interface.

use super::*;

#[derive(Clone, Copy, Debug)]
pub struct At {
    pub addr: u64,
    pub rkey: u32,
}

#[derive(Clone, Copy, Debug)]
pub enum Op {
    Send,
    SendImm(u32),
    Write(At),
    WriteImm(At, u32),
    Read(At),
    CompareSwap(At, u64, u64),
    FetchAdd(At, u64),
    AtomicWrite(At, [u8; 8]),
    /// With the bits of where to, and whether all of the region.
    Flush(At, usize, u8, bool),
}

impl Op {
    pub fn send(imm: Option<u32>) -> Self {
        imm.map_or(Op::Send, Op::SendImm)
    }

    /// Whether it brings bytes of this side to the other.
    pub fn carries(&self) -> bool {
        matches!(
            self,
            Op::Send | Op::SendImm(_) | Op::Write(_) | Op::WriteImm(..)
        )
    }
}

pub const GLOBAL: u8 = 1;
pub const PERSISTENT: u8 = 2;

pub const SIGNALED: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0;
pub const FENCE: u32 = ibv_send_flags::IBV_SEND_FENCE.0;
pub const SOLICITED: u32 = ibv_send_flags::IBV_SEND_SOLICITED.0;
pub const INLINE: u32 = ibv_send_flags::IBV_SEND_INLINE.0;

/// A send request.
#[derive(Clone)]
pub struct Wr {
    pub id: u64,
    pub op: Op,
    pub sges: Vec<ibv_sge>,
    pub flags: u32,
}

impl Wr {
    pub fn new(id: u64, op: Op, sges: Vec<ibv_sge>) -> Self {
        Wr {
            id,
            op,
            sges,
            flags: SIGNALED,
        }
    }

    pub fn with(mut self, flags: u32) -> Self {
        self.flags |= flags;
        self
    }

    pub fn unsignaled(mut self) -> Self {
        self.flags &= !SIGNALED;
        self
    }

    /// With that flag, or without it.
    pub fn set(mut self, flag: u32, on: bool) -> Self {
        self.flags = if on {
            self.flags | flag
        } else {
            self.flags & !flag
        };
        self
    }

    /// Posts it by the extended interface, if that is wanted or needed.
    #[track_caller]
    pub fn post(self, qp: *mut ibv_qp, extended: bool) {
        let op = self.op;
        let posted = if extended || matches!(op, Op::Flush(..)) {
            post_extended(qp, &[self])
        } else {
            post_list(qp, &[self]).map_err(|(error, _)| error)
        };
        assert_eq!(posted, Ok(()), "posting {op:?}");
    }
}

const WR_ATOMIC_WRITE: ibv_wr_opcode::Type = 15;
pub const WC_FLUSH: ibv_wc_opcode::Type = 8;
pub const WC_ATOMIC_WRITE: ibv_wc_opcode::Type = 9;
pub const WITH_FLUSH: u64 = 1 << 11;
pub const WITH_ATOMIC_WRITE: u64 = 1 << 12;

/// By `ibv_post_send`: all in one list. Gives errno and the position of the bad one.
pub fn post_list(qp: *mut ibv_qp, wrs: &[Wr]) -> Result<(), (c_int, usize)> {
    let mut sges: Vec<Vec<ibv_sge>> = wrs.iter().map(|wr| wr.sges.clone()).collect();
    let values: Vec<[u8; 8]> = wrs
        .iter()
        .map(|wr| match wr.op {
            Op::AtomicWrite(_, value) => value,
            _ => [0; 8],
        })
        .collect();
    let mut list: Vec<ibv_send_wr> = vec![];
    for (i, (wr, sges)) in wrs.iter().zip(&mut sges).enumerate() {
        let mut c: ibv_send_wr = c!(zeroed());
        let mut flags = wr.flags;
        if let Op::AtomicWrite(..) = wr.op {
            *sges = vec![ibv_sge {
                addr: values[i].as_ptr() as u64,
                length: 8,
                lkey: 0,
            }];
            flags |= INLINE;
        }
        c.wr_id = wr.id;
        c.sg_list = sges.as_mut_ptr();
        c.num_sge = sges.len() as c_int;
        c.send_flags = flags;
        let rdma = |at: At| rdma_t {
            remote_addr: at.addr,
            rkey: at.rkey,
        };
        use ibv_wr_opcode::*;
        match wr.op {
            Op::Send => c.opcode = IBV_WR_SEND,
            Op::SendImm(imm) => {
                c.opcode = IBV_WR_SEND_WITH_IMM;
                c.imm_data_invalidated_rkey_union.imm_data = imm.to_be();
            }
            Op::Write(at) => (c.opcode, c.wr.rdma) = (IBV_WR_RDMA_WRITE, rdma(at)),
            Op::WriteImm(at, imm) => {
                (c.opcode, c.wr.rdma) = (IBV_WR_RDMA_WRITE_WITH_IMM, rdma(at));
                c.imm_data_invalidated_rkey_union.imm_data = imm.to_be();
            }
            Op::Read(at) => (c.opcode, c.wr.rdma) = (IBV_WR_RDMA_READ, rdma(at)),
            Op::AtomicWrite(at, _) => (c.opcode, c.wr.rdma) = (WR_ATOMIC_WRITE, rdma(at)),
            Op::CompareSwap(at, compare, swap) => {
                c.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
                c.wr.atomic = atomic_t {
                    remote_addr: at.addr,
                    compare_add: compare,
                    swap,
                    rkey: at.rkey,
                };
            }
            Op::FetchAdd(at, add) => {
                c.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
                c.wr.atomic = atomic_t {
                    remote_addr: at.addr,
                    compare_add: add,
                    swap: 0,
                    rkey: at.rkey,
                };
            }
            Op::Flush(..) => panic!("there is no list of flushes"),
        }
        list.push(c);
    }
    for i in (1..list.len()).rev() {
        list[i - 1].next = &raw mut list[i];
    }
    let first = list.as_mut_ptr();
    let mut bad = ptr::null_mut();
    match c!(ibv_post_send(qp, first, &mut bad)) {
        0 => Ok(()),
        error => Err((error, c!(bad.offset_from(first)) as usize)),
    }
}

/// The members of `struct ibv_qp_ex` that older headers lack.
#[repr(C)]
struct Newest {
    before: [*mut c_void; 3],
    atomic_write: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, *const c_void),
    flush: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, usize, u8, u8),
}

fn newest<'a>(qp: *mut ibv_qp_ex) -> &'a Newest {
    c!(&*qp.byte_add(offset_of!(ibv_qp_ex, wr_start)).cast())
}

/// Adds a request by the extended interface, between its start and its end.
pub fn add(qp: *mut ibv_qp_ex, wr: &Wr) {
    c! {
        (*qp).wr_id = wr.id;
        (*qp).wr_flags = wr.flags & !INLINE;
        match wr.op {
            Op::Send => ibv_wr_send(qp),
            Op::SendImm(imm) => ibv_wr_send_imm(qp, imm.to_be()),
            Op::Write(at) => ibv_wr_rdma_write(qp, at.rkey, at.addr),
            Op::WriteImm(at, imm) => ibv_wr_rdma_write_imm(qp, at.rkey, at.addr, imm.to_be()),
            Op::Read(at) => ibv_wr_rdma_read(qp, at.rkey, at.addr),
            Op::CompareSwap(at, compare, swap) => {
                ibv_wr_atomic_cmp_swp(qp, at.rkey, at.addr, compare, swap)
            }
            Op::FetchAdd(at, add) => ibv_wr_atomic_fetch_add(qp, at.rkey, at.addr, add),
            Op::AtomicWrite(at, value) => {
                (newest(qp).atomic_write)(qp, at.rkey, at.addr, value.as_ptr().cast())
            }
            Op::Flush(at, len, kind, whole) => {
                (newest(qp).flush)(qp, at.rkey, at.addr, len, kind, whole.into())
            }
        }
        let sges = &wr.sges;
        if matches!(wr.op, Op::AtomicWrite(..) | Op::Flush(..)) {
            return;
        }
        if wr.flags & INLINE != 0 {
            let buffers: Vec<ibv_data_buf> = sges
                .iter()
                .map(|sge| ibv_data_buf {
                    addr: sge.addr as *mut c_void,
                    length: sge.length as usize,
                })
                .collect();
            if let [one] = &buffers[..] {
                ibv_wr_set_inline_data(qp, one.addr, one.length);
            } else {
                ibv_wr_set_inline_data_list(qp, buffers.len(), buffers.as_ptr());
            }
        } else if let [one] = &sges[..] {
            ibv_wr_set_sge(qp, one.lkey, one.addr, one.length);
        } else {
            ibv_wr_set_sge_list(qp, sges.len(), sges.as_ptr());
        }
    }
}

/// By the extended interface. Gives errno.
pub fn post_extended(qp: *mut ibv_qp, wrs: &[Wr]) -> Result<(), c_int> {
    let qp = made("ibv_qp_to_qp_ex", c!(ibv_qp_to_qp_ex(qp)));
    c!(ibv_wr_start(qp));
    for wr in wrs {
        add(qp, wr);
    }
    match c!(ibv_wr_complete(qp)) {
        0 => Ok(()),
        error => Err(error),
    }
}

/// Posts receives as one list. Gives errno and the position of the bad one.
pub fn post_recvs(qp: *mut ibv_qp, recvs: &[(u64, Vec<ibv_sge>)]) -> Result<(), (c_int, usize)> {
    let mut sges: Vec<Vec<ibv_sge>> = recvs.iter().map(|(_, sges)| sges.clone()).collect();
    let mut list: Vec<ibv_recv_wr> = recvs
        .iter()
        .zip(&mut sges)
        .map(|((id, _), sges)| ibv_recv_wr {
            wr_id: *id,
            next: ptr::null_mut(),
            sg_list: sges.as_mut_ptr(),
            num_sge: sges.len() as c_int,
        })
        .collect();
    for i in (1..list.len()).rev() {
        list[i - 1].next = &raw mut list[i];
    }
    let first = list.as_mut_ptr();
    let mut bad = ptr::null_mut();
    match c!(ibv_post_recv(qp, first, &mut bad)) {
        0 => Ok(()),
        error => Err((error, c!(bad.offset_from(first)) as usize)),
    }
}
