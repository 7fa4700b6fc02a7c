use super::{CmId, Cq, Errno, Pd, Srq, table};
use bitflags::bitflags;
use rdma_sys::{
    ibv_qp, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr_ex, ibv_qp_init_attr_mask, ibv_qp_to_qp_ex,
    ibv_qp_type, ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_wr_opcode, rdma_create_qp_ex,
    rdma_destroy_qp,
};
use std::ffi::{c_int, c_uint};
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use verbs_ext::{self as ext, AtomicWriteFn, FlushFn, QP_EX_TAIL, QpExTail};

pub use rdma_sys::ibv_sge as Sge;

bitflags! {
    /// The operations beyond those of every QP that a QP is created for.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct SendOps: u64 {
        const FLUSH = ext::QP_EX_WITH_FLUSH;
        const ATOMIC_WRITE = ext::QP_EX_WITH_ATOMIC_WRITE;
    }

    /// Flags of a send work request.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct SendFlags: c_uint {
        const FENCE = ibv_send_flags::IBV_SEND_FENCE.0;
        const SIGNALED = ibv_send_flags::IBV_SEND_SIGNALED.0;
        const INLINE = ibv_send_flags::IBV_SEND_INLINE.0;
    }
}

/// What a QP is made of.
pub struct QpAttr<'a> {
    pub pd: &'a Pd,
    pub send_cq: &'a Cq,
    pub recv_cq: &'a Cq,
    pub srq: Option<&'a Srq>,
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_sge: u32,
    pub max_inline_data: u32,
    pub ops: SendOps,
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

/// The kinds of native flush.
#[derive(Clone, Copy)]
pub enum FlushKind {
    Global,
    Persistent,
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
    fn raw(&mut self) -> *mut ibv_send_wr {
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

/// The queue pair of a cm id.
///
/// It belongs to the id, which must be alive when it is dropped.
pub struct Qp {
    qp: NonNull<ibv_qp>,
    /// The operations that it was created for.
    ops: SendOps,
    id: *mut rdma_sys::rdma_cm_id,
}

impl Qp {
    /// `rdma_create_qp_ex`: an RC QP whose requests are signalled one by one.
    ///
    /// A provider may be older than the kernel and not know an operation that the
    /// device has; the QP is then made without it.
    pub fn create(id: &CmId, attr: &QpAttr) -> Result<Self, Errno> {
        let mut ops = attr.ops;
        loop {
            // With no operation left to ask for, nor is the extended interface.
            let extended = !ops.is_empty() || attr.ops.is_empty();
            let created = Self::create_with(id, attr, extended.then_some(ops));
            let refused = matches!(created, Err(Errno(libc::EOPNOTSUPP | libc::ENOSYS)));
            if !refused || ops.is_empty() {
                return created;
            }
            // FLUSH is the newer one.
            ops = match ops.contains(SendOps::FLUSH) {
                true => ops - SendOps::FLUSH,
                false => SendOps::empty(),
            };
        }
    }

    /// `ops` None leaves the extended interface out altogether.
    fn create_with(id: &CmId, attr: &QpAttr, ops: Option<SendOps>) -> Result<Self, Errno> {
        // SAFETY: all zeroes are a value of the type.
        let mut raw: ibv_qp_init_attr_ex = unsafe { MaybeUninit::zeroed().assume_init() };
        raw.send_cq = attr.send_cq.as_ptr();
        raw.recv_cq = attr.recv_cq.as_ptr();
        raw.srq = attr.srq.map_or(ptr::null_mut(), Srq::as_ptr);
        raw.cap = ibv_qp_cap {
            max_send_wr: attr.max_send_wr,
            max_recv_wr: attr.max_recv_wr,
            max_send_sge: attr.max_sge,
            max_recv_sge: attr.max_sge,
            max_inline_data: attr.max_inline_data,
        };
        raw.qp_type = ibv_qp_type::IBV_QPT_RC;
        raw.pd = attr.pd.as_ptr();
        raw.comp_mask = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0;
        if let Some(ops) = ops {
            raw.comp_mask |= ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0;
            raw.send_ops_flags = ops.bits();
        }
        // SAFETY: the id and all that the attributes name are alive.
        Errno::set(unsafe { rdma_create_qp_ex(id.as_ptr(), &mut raw) })?;
        // SAFETY: the id is alive and has got its QP.
        let qp = unsafe { (*id.as_ptr()).qp };
        Ok(Qp {
            qp: NonNull::new(qp).ok_or(Errno(libc::EINVAL))?,
            ops: ops.unwrap_or(SendOps::empty()),
            id: id.as_ptr(),
        })
    }

    /// `ibv_qp_to_qp_ex`: the native operations that it has.
    pub fn native(&self) -> (Option<NativeAtomicWrite>, Option<NativeFlush>) {
        // SAFETY: the QP is alive.
        let Some(ex) = NonNull::new(unsafe { ibv_qp_to_qp_ex(self.qp.as_ptr()) }) else {
            return (None, None);
        };
        // A member is there only if the QP was created for its operation.
        let (mut atomic_write, mut flush) = (None, None);
        if self.ops.contains(SendOps::ATOMIC_WRITE) {
            // SAFETY: so it is there.
            atomic_write = unsafe { (*tail(ex)).wr_atomic_write };
        }
        if self.ops.contains(SendOps::FLUSH) {
            // SAFETY: so it is there.
            flush = unsafe { (*tail(ex)).wr_flush };
        }
        (
            atomic_write.map(|op| NativeAtomicWrite { ex, op }),
            flush.map(|op| NativeFlush { ex, op }),
        )
    }

    pub fn num(&self) -> u32 {
        // SAFETY: the QP is alive.
        unsafe { self.qp.as_ref() }.qp_num
    }

    /// `ibv_post_send` of one request.
    ///
    /// # Safety
    /// The range stays registered until the operation has completed; inline data is
    /// valid to read through the call.
    #[inline(always)]
    pub unsafe fn post_send(&self, wr: &mut SendWr) -> Result<(), Errno> {
        let mut bad = MaybeUninit::uninit();
        // SAFETY: the QP, and so its device, are alive; the request and its range
        // live through the call.
        Errno::returned(unsafe {
            let wr = wr.raw();
            table!(self.qp.as_ref().context, post_send)(self.qp.as_ptr(), wr, bad.as_mut_ptr())
        })
    }

    /// `ibv_post_recv` of one request.
    ///
    /// # Safety
    /// The range stays registered until the receive has completed.
    #[inline(always)]
    pub unsafe fn post_recv(&self, wr: &mut RecvWr) -> Result<(), Errno> {
        let mut bad = MaybeUninit::uninit();
        // SAFETY: the QP, and so its device, are alive; the request and its range
        // live through the call.
        Errno::returned(unsafe {
            let wr = wr.raw();
            table!(self.qp.as_ref().context, post_recv)(self.qp.as_ptr(), wr, bad.as_mut_ptr())
        })
    }
}

/// The native ATOMIC WRITE of a QP.
pub struct NativeAtomicWrite {
    ex: NonNull<ibv_qp_ex>,
    op: AtomicWriteFn,
}

impl NativeAtomicWrite {
    /// # Safety
    /// The QP is alive.
    #[inline(always)]
    pub unsafe fn post(
        &self,
        wr_id: u64,
        flags: SendFlags,
        remote: Remote,
        src: &[u8; 8],
    ) -> Result<(), Errno> {
        // SAFETY: passed on to the caller; the operation copies the data.
        unsafe {
            post_native(self.ex, wr_id, flags, |ex| {
                (self.op)(ex, remote.rkey, remote.addr, src.as_ptr().cast());
            })
        }
    }
}

/// The native FLUSH of a QP.
pub struct NativeFlush {
    ex: NonNull<ibv_qp_ex>,
    op: FlushFn,
}

impl NativeFlush {
    /// # Safety
    /// The QP is alive.
    #[inline(always)]
    pub unsafe fn post(
        &self,
        wr_id: u64,
        flags: SendFlags,
        remote: Remote,
        len: usize,
        kind: FlushKind,
    ) -> Result<(), Errno> {
        let kind = match kind {
            FlushKind::Global => ext::FLUSH_GLOBAL,
            FlushKind::Persistent => ext::FLUSH_PERSISTENT,
        };
        // SAFETY: passed on to the caller.
        unsafe {
            post_native(self.ex, wr_id, flags, |ex| {
                (self.op)(ex, remote.rkey, remote.addr, len, kind, ext::FLUSH_RANGE);
            })
        }
    }
}

fn tail(ex: NonNull<ibv_qp_ex>) -> *const QpExTail {
    ex.as_ptr().wrapping_byte_add(QP_EX_TAIL).cast()
}

/// Posts one request by `ibv_wr_start` and `ibv_wr_complete`.
///
/// # Safety
/// The QP is alive.
#[inline(always)]
unsafe fn post_native(
    ex: NonNull<ibv_qp_ex>,
    wr_id: u64,
    flags: SendFlags,
    op: impl FnOnce(*mut ibv_qp_ex),
) -> Result<(), Errno> {
    let (qp, tail) = (ex.as_ptr(), tail(ex));
    // SAFETY: vouched for; a QP with the extended interface has these two functions.
    unsafe {
        ((*tail).wr_start)(qp);
        (*qp).wr_id = wr_id;
        (*qp).wr_flags = flags.bits();
        op(qp);
        Errno::returned(((*tail).wr_complete)(qp))
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        // SAFETY: the id is alive and has this QP.
        unsafe { rdma_destroy_qp(self.id) }
    }
}
