//! A queue pair as C has it, and the requests that a program puts together with the extended
//! interface.

use crate::driver::conn::Conn;
use crate::driver::post::SendBatch;
use crate::objects::alive::Alive;
use crate::proto::{Caps, Op, SendWqe, Sge};
use crate::sync::lock;
use rdma_sys::*;
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use verbs_ext::{QP_EX_TAIL, QpExTail};

/// `struct ibv_qp_ex`, as long as any header has it: members have been added at its end.
#[repr(C)]
pub struct QpAbi {
    known: MaybeUninit<ibv_qp_ex>,
    more: [usize; 8],
}

const _: () = assert!(QP_EX_TAIL + size_of::<QpExTail>() <= size_of::<QpAbi>());

impl QpAbi {
    /// Without the functions of the extended interface.
    pub fn new(base: ibv_qp) -> Self {
        let mut abi = QpAbi {
            known: MaybeUninit::zeroed(),
            more: [0; 8],
        };
        let qp: *mut ibv_qp_ex = abi.known.as_mut_ptr();
        // SAFETY: it is of this type, and written for the first time.
        unsafe { (&raw mut (*qp).qp_base).write(base) };
        abi
    }
}

/// A queue pair as C sees it. Several threads use it at once, each its own members: there is no
/// reference to all of it.
#[repr(C)]
pub struct QpHandle {
    pub abi: QpAbi,
    pub parts: QpParts,
    pub init: ibv_qp_init_attr,
    pub alive: Alive,
}

/// What several threads look at.
pub struct QpParts {
    /// The queue pair's end of its connections.
    pub conn: Arc<Conn>,
    /// What is being posted by the extended interface, if it was made for that.
    pub staging: Option<Staging>,
}

/// # Safety
/// The queue pair is one of this library's, and is not destroyed as long as this is used.
unsafe fn parts_of<'a>(qp: *mut ibv_qp) -> &'a QpParts {
    // SAFETY: the queue pair is of this library, and is there as long as this is used. The reference
    // leaves out the structure that C sees.
    unsafe { &(*qp.cast::<QpHandle>()).parts }
}

/// # Safety
/// As of [`parts_of`].
pub unsafe fn conn_of<'a>(qp: *mut ibv_qp) -> &'a Arc<Conn> {
    // SAFETY: the queue pair is of this library, and is there as long as this is used.
    unsafe { &parts_of(qp).conn }
}

/// # Safety
/// As of [`parts_of`].
pub unsafe fn staging_of<'a>(qp: *mut ibv_qp) -> Option<&'a Staging> {
    // SAFETY: the queue pair is of this library, and is there as long as this is used.
    unsafe { parts_of(qp).staging.as_ref() }
}

/// A request that the program puts together.
pub struct Staged {
    pub wqe: SendWqe,
    /// Where its pieces and its inline data are.
    pub sges: Range<usize>,
    pub inline: Range<usize>,
}

/// The requests between `ibv_wr_start` and `ibv_wr_complete`, with room for as many as the send queue
/// has.
pub struct Requests {
    pub list: Vec<Staged>,
    pub sges: Vec<Sge>,
    pub inline: Vec<u8>,
    pub max_wr: usize,
    pub max_sge: usize,
    pub max_inline: usize,
    /// What is wrong with one of them.
    pub error: Option<i32>,
}

/// Requests that one thread at a time puts together. The queue pair itself is not locked meanwhile: its
/// connection goes on.
pub struct Staging {
    /// A thread is between start and complete. Others that start wait, as they do on a NIC.
    busy: Mutex<bool>,
    free: Condvar,
    pub requests: UnsafeCell<Requests>,
}

// SAFETY: `requests` is used only by the thread that has made the staging busy.
unsafe impl Sync for Staging {}
// SAFETY: as above; requests consist of numbers.
unsafe impl Send for Staging {}

impl Staging {
    /// `None` if there is no memory for it.
    pub fn new(caps: &Caps) -> Option<Self> {
        let mut requests = Requests {
            list: vec![],
            sges: vec![],
            inline: vec![],
            max_wr: caps.max_send_wr,
            max_sge: caps.max_send_sge,
            max_inline: caps.max_inline,
            error: None,
        };
        let max_wr = caps.max_send_wr;
        requests.list.try_reserve_exact(max_wr).ok()?;
        let sges = max_wr.checked_mul(caps.max_send_sge)?;
        requests.sges.try_reserve_exact(sges).ok()?;
        let inline = max_wr.checked_mul(caps.max_inline)?;
        requests.inline.try_reserve_exact(inline).ok()?;
        Some(Staging {
            busy: Mutex::new(false),
            free: Condvar::new(),
            requests: UnsafeCell::new(requests),
        })
    }

    pub fn start(&self) {
        let busy = self.free.wait_while(lock(&self.busy), |busy| *busy);
        *busy.unwrap_or_else(PoisonError::into_inner) = true;
    }

    pub fn end(&self) {
        *lock(&self.busy) = false;
        self.free.notify_one();
    }
}

impl Requests {
    pub fn fail(&mut self, error: i32) {
        self.error.get_or_insert(error);
    }

    pub fn clear(&mut self) {
        self.list.clear();
        self.sges.clear();
        self.inline.clear();
        self.error = None;
    }

    /// The request that was added last, unless something was wrong.
    pub fn last(&mut self) -> Option<&mut Staged> {
        self.list.last_mut().filter(|_| self.error.is_none())
    }

    pub fn add(&mut self, wr_id: u64, flags: u32, op: Op) {
        if self.list.len() >= self.max_wr {
            return self.fail(libc::ENOMEM);
        }
        let has = |flag: ibv_send_flags| flags & flag.0 != 0;
        let len = if matches!(op, Op::AtomicWrite { .. }) {
            8
        } else {
            0
        };
        self.list.push(Staged {
            wqe: SendWqe {
                wr_id,
                op,
                len,
                inline: false,
                sges: 0,
                signaled: has(ibv_send_flags::IBV_SEND_SIGNALED),
                fence: has(ibv_send_flags::IBV_SEND_FENCE),
                solicited: has(ibv_send_flags::IBV_SEND_SOLICITED),
            },
            sges: 0..0,
            inline: 0..0,
        });
    }

    /// Posts all, or nothing if something is wrong.
    pub fn post(&self, conn: &Conn) -> Result<(), i32> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let mut batch = SendBatch::new(conn)?;
        if self.list.len() > batch.room() {
            return Err(libc::ENOMEM);
        }
        for one in &self.list {
            let sges = self.sges.get(one.sges.clone()).unwrap_or_default();
            for (to, from) in batch.next_sges().iter_mut().zip(sges) {
                *to = *from;
            }
            let inline = self.inline.get(one.inline.clone()).unwrap_or_default();
            for (to, from) in batch.next_inline().iter_mut().zip(inline) {
                *to = *from;
            }
            batch.push(one.wqe)?;
        }
        Ok(())
    }
}
