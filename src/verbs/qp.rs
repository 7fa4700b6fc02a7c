use super::wr::{RecvWr, Remote, SendFlags, SendWr};
use super::{CmId, Cq, Errno, Pd, Srq, table};
use bitflags::bitflags;
use rdma_sys::{
    ibv_qp, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr_ex, ibv_qp_init_attr_mask, ibv_qp_to_qp_ex,
    ibv_qp_type, rdma_create_qp_ex, rdma_destroy_qp,
};
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use verbs_ext::{self as ext, AtomicWriteFn, FlushFn, QP_EX_TAIL, QpExTail};

bitflags! {
    /// The operations beyond those of every QP that a QP is created for.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct SendOps: u64 {
        const FLUSH = ext::QP_EX_WITH_FLUSH;
        const ATOMIC_WRITE = ext::QP_EX_WITH_ATOMIC_WRITE;
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

/// The kinds of native flush.
#[derive(Clone, Copy)]
pub enum FlushKind {
    Global,
    Persistent,
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
