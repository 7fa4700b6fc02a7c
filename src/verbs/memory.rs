use super::{Context, Errno, Sge, extended, owned};
use bitflags::bitflags;
use rdma_sys::{ibv_access_flags, ibv_alloc_pd, ibv_reg_mr};
use std::ffi::{c_int, c_uint, c_void};

bitflags! {
    /// What a memory region may be used for, as `ibv_reg_mr` takes it.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Access: c_int {
        const LOCAL_WRITE = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 as c_int;
        const REMOTE_WRITE = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0 as c_int;
        const REMOTE_READ = ibv_access_flags::IBV_ACCESS_REMOTE_READ.0 as c_int;
        const ON_DEMAND = ibv_access_flags::IBV_ACCESS_ON_DEMAND.0 as c_int;
        const FLUSH_GLOBAL = verbs_ext::ACCESS_FLUSH_GLOBAL;
        const FLUSH_PERSISTENT = verbs_ext::ACCESS_FLUSH_PERSISTENT;
    }
}

owned! {
    /// A protection domain.
    Pd, ibv_pd, ibv_dealloc_pd
}

impl Pd {
    /// `ibv_alloc_pd`; the error is errno 0 where the call left none.
    pub fn alloc(context: Context) -> Result<Self, Errno> {
        Errno(0).leave();
        // SAFETY: the device is open.
        Self::from_call(unsafe { ibv_alloc_pd(context.as_ptr()) })
    }
}

owned! {
    /// A registered memory region; it does not own the memory.
    Mr, ibv_mr, ibv_dereg_mr
}

impl Mr {
    /// `ibv_reg_mr`.
    ///
    /// # Safety
    /// The memory stays mapped until the region is closed, unless the device pages
    /// on demand.
    pub unsafe fn register(
        pd: &Pd,
        addr: *mut c_void,
        length: usize,
        access: Access,
    ) -> Result<Self, Errno> {
        // SAFETY: the domain is alive; the kernel checks the memory.
        Self::from_call(unsafe { ibv_reg_mr(pd.as_ptr(), addr, length, access.bits()) })
    }

    pub fn lkey(&self) -> u32 {
        // SAFETY: the region is alive.
        unsafe { (*self.as_ptr()).lkey }
    }

    pub fn rkey(&self) -> u32 {
        // SAFETY: the region is alive.
        unsafe { (*self.as_ptr()).rkey }
    }

    /// `ibv_advise_mr` for one range.
    pub fn advise(&self, advice: c_int, flags: u32, mut range: Sge) -> Result<(), Errno> {
        // SAFETY: the region, and so its domain and device, are alive; the table is
        // read as libibverbs does; one sge is announced and given.
        unsafe {
            let pd = (*self.as_ptr()).pd;
            match extended!((*pd).context, advise_mr) {
                Some(advise) => Errno::returned(advise(pd, advice as c_uint, flags, &mut range, 1)),
                None => Err(Errno(libc::EOPNOTSUPP)),
            }
        }
    }
}
