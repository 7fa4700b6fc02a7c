//! Work requests, as they are posted to queue pairs and shared receive queues.

use bitflags::bitflags;
use rdma_sys::{ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_wr_opcode};
use std::ffi::{c_int, c_uint};
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr;

pub use rdma_sys::ibv_sge as Sge;

bitflags! {
    /// Flags of a send work request.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct SendFlags: c_uint {
        const FENCE = ibv_send_flags::IBV_SEND_FENCE.0;
        const SIGNALED = ibv_send_flags::IBV_SEND_SIGNALED.0;
        const INLINE = ibv_send_flags::IBV_SEND_INLINE.0;
    }
}

/// A place in the memory of the other side.
#[derive(Clone, Copy)]
pub struct Remote {
    pub addr: u64,
    pub rkey: u32,
}

/// What a send work request does.
#[derive(Clone, Copy)]
pub enum SendOp {
    Write(Remote),
    WriteImm(Remote, u32),
    Read(Remote),
    Send,
    SendImm(u32),
}

/// A send work request of one range or none. Of verbs' structure only what its
/// operation makes use of is set: it is built for every operation.
pub struct SendWr {
    raw: MaybeUninit<ibv_send_wr>,
    sge: MaybeUninit<Sge>,
}

impl SendWr {
    #[inline(always)]
    pub fn new(wr_id: u64, flags: SendFlags, op: SendOp, sge: Option<Sge>) -> Self {
        let mut raw = MaybeUninit::<ibv_send_wr>::uninit();
        let (opcode, remote, imm) = match op {
            SendOp::Write(remote) => (ibv_wr_opcode::IBV_WR_RDMA_WRITE, Some(remote), None),
            SendOp::WriteImm(remote, imm) => {
                let opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
                (opcode, Some(remote), Some(imm))
            }
            SendOp::Read(remote) => (ibv_wr_opcode::IBV_WR_RDMA_READ, Some(remote), None),
            SendOp::Send => (ibv_wr_opcode::IBV_WR_SEND, None, None),
            SendOp::SendImm(imm) => (ibv_wr_opcode::IBV_WR_SEND_WITH_IMM, None, Some(imm)),
        };
        let wr = raw.as_mut_ptr();
        // SAFETY: writes to members of a structure of this function.
        unsafe {
            (&raw mut (*wr).wr_id).write(wr_id);
            (&raw mut (*wr).next).write(ptr::null_mut());
            (&raw mut (*wr).num_sge).write(sge.is_some().into());
            (&raw mut (*wr).opcode).write(opcode);
            (&raw mut (*wr).send_flags).write(flags.bits());
            // 0 where it is of no use, since providers may copy it before they look at what the
            // request is.
            let union = &raw mut (*wr).imm_data_invalidated_rkey_union;
            (&raw mut (*union).imm_data).write(imm.map_or(0, |imm| imm.to_be()));
            if let Some(Remote { addr, rkey }) = remote {
                let rdma = &raw mut (*wr).wr.rdma;
                (&raw mut (*rdma).remote_addr).write(addr);
                (&raw mut (*rdma).rkey).write(rkey);
            }
        }
        let sge = sge.map_or(MaybeUninit::uninit(), MaybeUninit::new);
        SendWr { raw, sge }
    }

    /// The request as verbs take it, as long as `self` stays where it is.
    #[inline(always)]
    pub(super) fn raw(&mut self) -> *mut ibv_send_wr {
        let wr = self.raw.as_mut_ptr();
        // SAFETY: writes to a member of the structure; another is set.
        unsafe { (&raw mut (*wr).sg_list).write(sg_list((*wr).num_sge, &mut self.sge)) };
        wr
    }
}

/// The list of one range or none.
#[inline(always)]
fn sg_list(num_sge: c_int, sge: &mut MaybeUninit<Sge>) -> *mut Sge {
    if num_sge == 0 {
        return ptr::null_mut();
    }
    sge.as_mut_ptr()
}

impl fmt::Display for SendWr {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let wr = self.raw.as_ptr();
        // SAFETY: `new` has set these members, those of RDMA for such an operation.
        let (opcode, flags, wr_id, num_sge, remote) = unsafe {
            let opcode = (*wr).opcode;
            let remote = match opcode {
                ibv_wr_opcode::IBV_WR_SEND | ibv_wr_opcode::IBV_WR_SEND_WITH_IMM => None,
                _ => Some((*wr).wr.rdma),
            };
            (opcode, (*wr).send_flags, (*wr).wr_id, (*wr).num_sge, remote)
        };
        let name = match opcode {
            ibv_wr_opcode::IBV_WR_RDMA_WRITE => "RDMA_WRITE",
            ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM => "RDMA_WRITE_WITH_IMM",
            ibv_wr_opcode::IBV_WR_RDMA_READ => "RDMA_READ",
            ibv_wr_opcode::IBV_WR_SEND => "SEND",
            _ => "SEND_WITH_IMM",
        };
        write!(
            f,
            "opcode=IBV_WR_{name}, send_flags={flags:#x}, wr_id={wr_id:#x}"
        )?;
        // SAFETY: set if it counts.
        if let Some(sge) = unsafe { (num_sge != 0).then(|| self.sge.assume_init_ref()) } {
            let (addr, length, lkey) = (sge.addr, sge.length, sge.lkey);
            write!(f, ", addr={addr:#x}, length={length}, lkey={lkey:#x}")?;
        }
        if let Some(rdma) = remote {
            write!(
                f,
                ", remote_addr={:#x}, rkey={:#x}",
                rdma.remote_addr, rdma.rkey
            )?;
        }
        Ok(())
    }
}

/// A receive work request of one range or none.
pub struct RecvWr {
    raw: ibv_recv_wr,
    sge: MaybeUninit<Sge>,
}

impl RecvWr {
    #[inline(always)]
    pub fn new(wr_id: u64, sge: Option<Sge>) -> Self {
        RecvWr {
            raw: ibv_recv_wr {
                wr_id,
                next: ptr::null_mut(),
                sg_list: ptr::null_mut(),
                num_sge: sge.is_some().into(),
            },
            sge: sge.map_or(MaybeUninit::uninit(), MaybeUninit::new),
        }
    }

    /// The request as verbs take it, as long as `self` stays where it is.
    #[inline(always)]
    pub(super) fn raw(&mut self) -> *mut ibv_recv_wr {
        self.raw.sg_list = sg_list(self.raw.num_sge, &mut self.sge);
        &mut self.raw
    }
}
