use super::{Context, Errno, Pd, RecvWr, owned, table};
use rdma_sys::{
    ibv_ack_cq_events, ibv_cq, ibv_create_comp_channel, ibv_create_cq, ibv_create_srq,
    ibv_get_cq_event, ibv_srq_attr, ibv_srq_init_attr, ibv_wc,
};
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;

owned! {
    /// A completion channel: the descriptor on which completion queues report.
    CompChannel, ibv_comp_channel, ibv_destroy_comp_channel
}

impl CompChannel {
    pub fn create(context: Context) -> Result<Self, Errno> {
        // SAFETY: the device is open.
        Self::from_call(unsafe { ibv_create_comp_channel(context.as_ptr()) })
    }

    pub fn fd(&self) -> c_int {
        // SAFETY: the channel is alive.
        unsafe { (*self.as_ptr()).fd }
    }

    /// `ibv_get_cq_event`: takes the next event, waiting for one unless the
    /// descriptor is non-blocking. It must be acknowledged.
    pub fn next_event(&self) -> Result<CqEvent, Errno> {
        let mut cq = ptr::null_mut();
        let mut context = ptr::null_mut();
        // SAFETY: the channel is alive and both pointers are valid to write to.
        Errno::set(unsafe { ibv_get_cq_event(self.as_ptr(), &mut cq, &mut context) })?;
        Ok(CqEvent(cq))
    }
}

/// Which queue an event is of.
pub struct CqEvent(*mut ibv_cq);

owned! {
    /// A completion queue.
    Cq, ibv_cq, ibv_destroy_cq
}

impl Cq {
    /// `ibv_create_cq` on the first vector; a channel must outlive its queues.
    pub fn create(context: Context, cqe: c_int, channel: &CompChannel) -> Result<Self, Errno> {
        // SAFETY: device and channel are alive.
        Self::from_call(unsafe {
            ibv_create_cq(context.as_ptr(), cqe, ptr::null_mut(), channel.as_ptr(), 0)
        })
    }

    pub fn raised(&self, event: &CqEvent) -> bool {
        self.as_ptr() == event.0
    }

    /// Acknowledges one event of this queue.
    pub fn ack_event(&self) {
        // SAFETY: the queue is alive.
        unsafe { ibv_ack_cq_events(self.as_ptr(), 1) }
    }

    /// `ibv_req_notify_cq` for all completions.
    pub fn req_notify(&self) -> Result<(), Errno> {
        // SAFETY: the queue, and so its device, are alive.
        Errno::left(unsafe {
            let req_notify = table!((*self.as_ptr()).context, req_notify_cq);
            req_notify(self.as_ptr(), 0)
        })
    }

    /// `ibv_poll_cq`: how many completions it wrote, or what else it returned.
    ///
    /// # Safety
    /// `wc` has room for `entries` completions.
    #[inline(always)]
    pub unsafe fn poll(&self, entries: c_int, wc: *mut ibv_wc) -> c_int {
        // SAFETY: the queue, and so its device, are alive; the array is vouched for.
        unsafe { table!((*self.as_ptr()).context, poll_cq)(self.as_ptr(), entries, wc) }
    }
}

owned! {
    /// A shared receive queue.
    Srq, ibv_srq, ibv_destroy_srq
}

impl Srq {
    pub fn create(pd: &Pd, max_wr: u32) -> Result<Self, Errno> {
        let mut attr = ibv_srq_init_attr {
            srq_context: ptr::null_mut(),
            attr: ibv_srq_attr {
                max_wr,
                max_sge: 1,
                srq_limit: 0,
            },
        };
        // SAFETY: the domain is alive.
        Self::from_call(unsafe { ibv_create_srq(pd.as_ptr(), &mut attr) })
    }

    /// `ibv_post_srq_recv`.
    ///
    /// # Safety
    /// The buffer stays registered until the receive has completed.
    #[inline(always)]
    pub unsafe fn post_recv(&self, wr: &mut RecvWr) -> Result<(), Errno> {
        let mut bad = MaybeUninit::uninit();
        // SAFETY: the queue, and so its device, are alive; the request lives
        // through the call.
        Errno::returned(unsafe {
            let wr = wr.raw();
            table!((*self.as_ptr()).context, post_srq_recv)(self.as_ptr(), wr, bad.as_mut_ptr())
        })
    }
}
