//! Domains, completion queues and their channels, shared receive queues.

use super::*;

pub struct Pd(pub *mut ibv_pd);
// SAFETY: a domain is for all threads.
unsafe impl Send for Pd {}
// SAFETY: as above.
unsafe impl Sync for Pd {}

impl Pd {
    pub fn new(context: *mut ibv_context) -> Self {
        Pd(made("ibv_alloc_pd", c!(ibv_alloc_pd(context))))
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        destroyed("ibv_dealloc_pd", c!(ibv_dealloc_pd(self.0)));
    }
}

pub struct CompChannel(pub *mut ibv_comp_channel);
// SAFETY: a channel is for all threads.
unsafe impl Send for CompChannel {}
// SAFETY: as above.
unsafe impl Sync for CompChannel {}

impl CompChannel {
    pub fn new(context: *mut ibv_context) -> Self {
        CompChannel(made(
            "ibv_create_comp_channel",
            c!(ibv_create_comp_channel(context)),
        ))
    }

    pub fn fd(&self) -> RawFd {
        c!((*self.0).fd)
    }

    /// The queue of the next event, which is not acknowledged.
    #[track_caller]
    pub fn take(&self) -> *mut ibv_cq {
        assert!(
            readable(self.fd(), LIMIT),
            "no completion event within {LIMIT:?}"
        );
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        good(
            "ibv_get_cq_event",
            c!(ibv_get_cq_event(self.0, &mut cq, &mut context)),
        );
        cq
    }

    /// Waits for an event, and acknowledges it; says whether there was one.
    pub fn wait(&self, limit: Duration) -> bool {
        let there = readable(self.fd(), limit);
        if there {
            c!(ibv_ack_cq_events(self.take(), 1));
        }
        there
    }
}

impl Drop for CompChannel {
    fn drop(&mut self) {
        destroyed(
            "ibv_destroy_comp_channel",
            c!(ibv_destroy_comp_channel(self.0)),
        );
    }
}

/// A completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wc {
    pub id: u64,
    pub status: Status,
    pub opcode: ibv_wc_opcode::Type,
    pub len: u32,
    pub imm: Option<u32>,
    pub qp: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Status(pub ibv_wc_status::Type);

impl std::fmt::Debug for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let text = c!(CStr::from_ptr(ibv_wc_status_str(self.0)));
        f.write_str(text.to_str().unwrap())
    }
}

pub const SUCCESS: Status = Status(ibv_wc_status::IBV_WC_SUCCESS);
pub const FLUSHED: Status = Status(ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
pub const LOC_PROT: Status = Status(ibv_wc_status::IBV_WC_LOC_PROT_ERR);
pub const LOC_LEN: Status = Status(ibv_wc_status::IBV_WC_LOC_LEN_ERR);
pub const LOC_QP_OP: Status = Status(ibv_wc_status::IBV_WC_LOC_QP_OP_ERR);
pub const REM_ACCESS: Status = Status(ibv_wc_status::IBV_WC_REM_ACCESS_ERR);
pub const REM_INV_REQ: Status = Status(ibv_wc_status::IBV_WC_REM_INV_REQ_ERR);
pub const REM_OP: Status = Status(ibv_wc_status::IBV_WC_REM_OP_ERR);
pub const RETRY_EXC: Status = Status(ibv_wc_status::IBV_WC_RETRY_EXC_ERR);
pub const RNR_RETRY_EXC: Status = Status(ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR);

pub struct Cq(pub *mut ibv_cq);
// SAFETY: a queue is for all threads.
unsafe impl Send for Cq {}
// SAFETY: as above.
unsafe impl Sync for Cq {}

impl Cq {
    pub fn new(context: *mut ibv_context, cqe: c_int, channel: Option<&CompChannel>) -> Self {
        let channel = channel.map_or(ptr::null_mut(), |channel| channel.0);
        let cq = c!(ibv_create_cq(context, cqe, 0x77 as *mut c_void, channel, 0));
        Cq(made("ibv_create_cq", cq))
    }

    /// What is there now, or why it cannot be had.
    pub fn poll(&self) -> Result<Option<Wc>, c_int> {
        let mut wc: ibv_wc = c!(zeroed());
        match c!(ibv_poll_cq(self.0, 1, &mut wc)) {
            0 => Ok(None),
            1 => Ok(Some(Wc {
                id: wc.wr_id,
                status: Status(wc.status),
                opcode: wc.opcode,
                len: wc.byte_len,
                imm: (wc.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0)
                    .then(|| u32::from_be(c!(wc.imm_data_invalidated_rkey_union.imm_data))),
                qp: wc.qp_num,
            })),
            error => Err(error),
        }
    }

    /// Adds what is there now, as C has it; gives how many there were.
    pub fn drain(&self, found: &mut Vec<ibv_wc>) -> usize {
        let mut room = [const { MaybeUninit::<ibv_wc>::uninit() }; 16];
        let len = room.len() as c_int;
        let n = c!(ibv_poll_cq(self.0, len, room.as_mut_ptr().cast()));
        let n = usize::try_from(n).expect("ibv_poll_cq succeeds");
        // As many are filled as it says.
        found.extend(room[..n].iter().map(|one| c!(one.assume_init_read())));
        n
    }

    /// The next completion.
    #[track_caller]
    pub fn next(&self) -> Wc {
        let end = Instant::now() + LIMIT;
        loop {
            if let Some(wc) = self.poll().unwrap() {
                return wc;
            }
            assert!(Instant::now() < end, "no completion within {LIMIT:?}");
            thread::yield_now();
        }
    }

    /// The next completion, which is of that request and ended so.
    #[track_caller]
    pub fn expect(&self, id: u64, status: Status) -> Wc {
        let wc = self.next();
        assert_eq!(
            (wc.id, wc.status),
            (id, status),
            "seen and expected: request, how it ended"
        );
        wc
    }

    #[track_caller]
    pub fn is_empty(&self) -> bool {
        self.poll().unwrap().is_none()
    }

    pub fn arm(&self, solicited: bool) {
        good(
            "ibv_req_notify_cq",
            c!(ibv_req_notify_cq(self.0, solicited.into())),
        );
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        destroyed("ibv_destroy_cq", c!(ibv_destroy_cq(self.0)));
    }
}

pub struct Srq(pub *mut ibv_srq);
// SAFETY: a queue is for all threads.
unsafe impl Send for Srq {}
// SAFETY: as above.
unsafe impl Sync for Srq {}

impl Srq {
    pub fn new(pd: &Pd, max_wr: u32) -> Self {
        let mut init: ibv_srq_init_attr = c!(zeroed());
        init.attr.max_wr = max_wr;
        init.attr.max_sge = 4;
        Srq(made("ibv_create_srq", c!(ibv_create_srq(pd.0, &mut init))))
    }

    pub fn recv(&self, id: u64, sges: &[ibv_sge]) -> c_int {
        let mut wr = ibv_recv_wr {
            wr_id: id,
            next: ptr::null_mut(),
            sg_list: sges.as_ptr().cast_mut(),
            num_sge: sges.len() as c_int,
        };
        c!(ibv_post_srq_recv(self.0, &mut wr, &mut ptr::null_mut()))
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        destroyed("ibv_destroy_srq", c!(ibv_destroy_srq(self.0)));
    }
}
