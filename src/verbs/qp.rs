use super::ext::{self, QP_EX_TAIL, QpExTail};
use super::{CmId, Cq, Errno, Pd, Srq};
use bitflags::bitflags;
use rdma_sys::{
    ibv_qp, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr_ex, ibv_qp_init_attr_mask, ibv_qp_to_qp_ex,
    ibv_qp_type, ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_wr_opcode, rdma_create_qp_ex,
    rdma_destroy_qp,
};
use std::ffi::c_uint;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};

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

/// A receive work request of one range or none.
pub struct RecvWr {
    pub wr_id: u64,
    pub sge: Option<Sge>,
}

impl RecvWr {
    /// The same as verbs take it; valid as long as `self` stays where it is.
    pub(super) fn raw(&mut self) -> ibv_recv_wr {
        let (sg_list, num_sge) = sg_list(&mut self.sge);
        ibv_recv_wr {
            wr_id: self.wr_id,
            next: ptr::null_mut(),
            sg_list,
            num_sge,
        }
    }
}

fn sg_list(sge: &mut Option<Sge>) -> (*mut Sge, i32) {
    match sge {
        Some(sge) => (sge, 1),
        None => (ptr::null_mut(), 0),
    }
}

/// The queue pair of a cm id.
///
/// It belongs to the id, which must be alive when it is dropped.
pub struct Qp {
    qp: NonNull<ibv_qp>,
    /// The extended interface, if the QP has it.
    ex: Option<NonNull<ibv_qp_ex>>,
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
            ex: None,
            ops: ops.unwrap_or(SendOps::empty()),
            id: id.as_ptr(),
        })
    }

    /// `ibv_qp_to_qp_ex`: makes the extended interface available.
    pub fn extend(&mut self) {
        // SAFETY: the QP is alive.
        self.ex = NonNull::new(unsafe { ibv_qp_to_qp_ex(self.qp.as_ptr()) });
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
    #[inline]
    pub unsafe fn post_send(
        &self,
        wr_id: u64,
        flags: SendFlags,
        op: SendOp,
        mut sge: Option<Sge>,
    ) -> Result<(), Errno> {
        let mut bad = ptr::null_mut();
        // SAFETY: all zeroes are a value of the type.
        let mut wr: ibv_send_wr = unsafe { MaybeUninit::zeroed().assume_init() };
        wr.wr_id = wr_id;
        (wr.sg_list, wr.num_sge) = sg_list(&mut sge);
        wr.send_flags = flags.bits();
        let remote = match op {
            SendOp::Write(remote) => {
                wr.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
                Some(remote)
            }
            SendOp::WriteImm(remote, imm) => {
                wr.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
                wr.imm_data_invalidated_rkey_union.imm_data = imm.to_be();
                Some(remote)
            }
            SendOp::Read(remote) => {
                wr.opcode = ibv_wr_opcode::IBV_WR_RDMA_READ;
                Some(remote)
            }
            SendOp::Send => {
                wr.opcode = ibv_wr_opcode::IBV_WR_SEND;
                None
            }
            SendOp::SendImm(imm) => {
                wr.opcode = ibv_wr_opcode::IBV_WR_SEND_WITH_IMM;
                wr.imm_data_invalidated_rkey_union.imm_data = imm.to_be();
                None
            }
        };
        if let Some(Remote { addr, rkey }) = remote {
            wr.wr.rdma = rdma_sys::rdma_t {
                remote_addr: addr,
                rkey,
            };
        }
        // SAFETY: the QP, and so its device, are alive; the request and its range
        // live through the call.
        unsafe {
            match (*self.qp.as_ref().context).ops.post_send {
                Some(post) => Errno::returned(post(self.qp.as_ptr(), &mut wr, &mut bad)),
                None => Err(Errno(libc::EOPNOTSUPP)),
            }
        }
    }

    /// `ibv_post_recv` of one request.
    ///
    /// # Safety
    /// The range stays registered until the receive has completed.
    #[inline]
    pub unsafe fn post_recv(&self, mut wr: RecvWr) -> Result<(), Errno> {
        let mut bad = ptr::null_mut();
        let mut raw = wr.raw();
        // SAFETY: the QP, and so its device, are alive; the request and its range
        // live through the call.
        unsafe {
            match (*self.qp.as_ref().context).ops.post_recv {
                Some(post) => Errno::returned(post(self.qp.as_ptr(), &mut raw, &mut bad)),
                None => Err(Errno(libc::EOPNOTSUPP)),
            }
        }
    }

    /// The native ATOMIC WRITE, if the QP has it.
    #[inline]
    pub fn atomic_write(&self) -> Option<NativeAtomicWrite<'_>> {
        let native = self.native(SendOps::ATOMIC_WRITE)?;
        // SAFETY: the QP was created for the operation, so the member is there.
        let op = unsafe { (*native.tail()).wr_atomic_write }?;
        Some(NativeAtomicWrite { native, op })
    }

    /// The native FLUSH, if the QP has it.
    #[inline]
    pub fn flush(&self) -> Option<NativeFlush<'_>> {
        let native = self.native(SendOps::FLUSH)?;
        // SAFETY: the QP was created for the operation, so the member is there.
        let op = unsafe { (*native.tail()).wr_flush }?;
        Some(NativeFlush { native, op })
    }

    #[inline]
    fn native(&self, op: SendOps) -> Option<Native<'_>> {
        let ex = self.ex.filter(|_| self.ops.contains(op))?;
        Some(Native { ex, _qp: self })
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        // SAFETY: the id is alive and has this QP.
        unsafe { rdma_destroy_qp(self.id) }
    }
}

/// The extended interface of a QP that was created for some operation.
struct Native<'a> {
    ex: NonNull<ibv_qp_ex>,
    _qp: &'a Qp,
}

impl Native<'_> {
    fn tail(&self) -> *const QpExTail {
        self.ex.as_ptr().wrapping_byte_add(QP_EX_TAIL).cast()
    }

    /// Posts one request by `ibv_wr_start` and `ibv_wr_complete`.
    #[inline]
    fn post(
        &self,
        wr_id: u64,
        flags: SendFlags,
        op: impl FnOnce(*mut ibv_qp_ex),
    ) -> Result<(), Errno> {
        let (ex, tail) = (self.ex.as_ptr(), self.tail());
        // SAFETY: the QP is alive; a QP that has the extended interface has these
        // two members.
        unsafe {
            ((*tail).wr_start)(ex);
            (*ex).wr_id = wr_id;
            (*ex).wr_flags = flags.bits();
            op(ex);
            Errno::returned(((*tail).wr_complete)(ex))
        }
    }
}

pub struct NativeAtomicWrite<'a> {
    native: Native<'a>,
    op: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, *const u8),
}

impl NativeAtomicWrite<'_> {
    #[inline]
    pub fn post(
        &self,
        wr_id: u64,
        flags: SendFlags,
        remote: Remote,
        src: &[u8; 8],
    ) -> Result<(), Errno> {
        self.native.post(wr_id, flags, |ex| {
            // SAFETY: between start and complete of this QP; the data is copied.
            unsafe { (self.op)(ex, remote.rkey, remote.addr, src.as_ptr()) }
        })
    }
}

pub struct NativeFlush<'a> {
    native: Native<'a>,
    op: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, usize, u8, u8),
}

impl NativeFlush<'_> {
    #[inline]
    pub fn post(
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
        self.native.post(wr_id, flags, |ex| {
            // SAFETY: between start and complete of this QP.
            unsafe { (self.op)(ex, remote.rkey, remote.addr, len, kind, ext::FLUSH_RANGE) }
        })
    }
}
