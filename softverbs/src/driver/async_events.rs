//! The asynchronous events: what happens to an object outside of any call.

use super::event_queue::EventQueue;
use crate::sync::lock;
use rdma_sys::{
    ibv_async_event, ibv_async_event_element_t, ibv_context, ibv_cq, ibv_event_type, ibv_qp,
    ibv_srq,
};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_void;
use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    CqError(*mut ibv_cq),
    QpFatal(*mut ibv_qp),
    QpAccess(*mut ibv_qp),
    QpRequest(*mut ibv_qp),
    CommEstablished(*mut ibv_qp),
    LastWqe(*mut ibv_qp),
    SrqLimit(*mut ibv_srq),
}

// SAFETY: the pointers are handed on; who gets an event may use the object until it acknowledges.
unsafe impl Send for AsyncEvent {}

impl AsyncEvent {
    /// What it happened to.
    pub fn object(self) -> *const c_void {
        match self {
            Self::CqError(cq) => cq.cast(),
            Self::SrqLimit(srq) => srq.cast(),
            Self::QpFatal(qp)
            | Self::QpAccess(qp)
            | Self::QpRequest(qp)
            | Self::CommEstablished(qp)
            | Self::LastWqe(qp) => qp.cast(),
        }
    }

    /// As C has it.
    pub fn into_c(self) -> ibv_async_event {
        let element = match self {
            Self::CqError(cq) => ibv_async_event_element_t { cq },
            Self::SrqLimit(srq) => ibv_async_event_element_t { srq },
            Self::QpFatal(qp)
            | Self::QpAccess(qp)
            | Self::QpRequest(qp)
            | Self::CommEstablished(qp)
            | Self::LastWqe(qp) => ibv_async_event_element_t { qp },
        };
        let event_type = match self {
            Self::CqError(_) => ibv_event_type::IBV_EVENT_CQ_ERR,
            Self::QpFatal(_) => ibv_event_type::IBV_EVENT_QP_FATAL,
            Self::QpAccess(_) => ibv_event_type::IBV_EVENT_QP_ACCESS_ERR,
            Self::QpRequest(_) => ibv_event_type::IBV_EVENT_QP_REQ_ERR,
            Self::CommEstablished(_) => ibv_event_type::IBV_EVENT_COMM_EST,
            Self::LastWqe(_) => ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED,
            Self::SrqLimit(_) => ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED,
        };
        ibv_async_event {
            element,
            event_type,
        }
    }
}

/// The object of an event as C has it, and the context of that object.
///
/// # Safety
/// It is an event of [`AsyncEvent::into_c`], not acknowledged yet.
pub unsafe fn object_of(event: &ibv_async_event) -> (*const c_void, *const ibv_context) {
    // SAFETY: every object of ours begins with a pointer to its context, and lives until all its
    // events are acknowledged.
    unsafe {
        let object: *const c_void = event.element.cq.cast();
        (object, *object.cast::<*const ibv_context>())
    }
}

/// The events of one context.
pub struct AsyncEvents {
    queue: Arc<EventQueue<AsyncEvent>>,
    /// How many of each object are reported and not acknowledged.
    pending: Mutex<BTreeMap<usize, usize>>,
    settled: Condvar,
}

/// What guards the events of one context.
pub struct Locks {
    _pending: MutexGuard<'static, BTreeMap<usize, usize>>,
    _queue: MutexGuard<'static, VecDeque<AsyncEvent>>,
}

impl AsyncEvents {
    pub fn locks(&'static self) -> Locks {
        Locks {
            _pending: self.pending(),
            _queue: self.queue.lock(),
        }
    }

    pub fn new() -> io::Result<Self> {
        Ok(Self {
            queue: Arc::new(EventQueue::new()?),
            pending: Mutex::default(),
            settled: Condvar::new(),
        })
    }

    pub fn fd(&self) -> RawFd {
        self.queue.fd()
    }

    fn pending(&self) -> MutexGuard<'_, BTreeMap<usize, usize>> {
        lock(&self.pending)
    }

    pub fn report(&self, event: AsyncEvent) {
        *self.pending().entry(event.object().addr()).or_default() += 1;
        self.queue.push(event);
    }

    /// The next event, waited for unless the descriptor is non-blocking.
    pub fn get(&self) -> Result<AsyncEvent, i32> {
        // Whoever reports an event counts it.
        self.queue.pop(|_| ())
    }

    /// As many events of the object are done with.
    pub fn settle(&self, object: *const c_void, count: usize) {
        let mut pending = self.pending();
        if let Some(left) = pending.get_mut(&object.addr()) {
            *left = left.saturating_sub(count);
            if *left == 0 {
                pending.remove(&object.addr());
                self.settled.notify_all();
            }
        }
    }

    pub fn forget(&self, object: *const c_void) {
        let unseen = self.queue.extract(|event| event.object() == object);
        self.settle(object, unseen.len());
        let pending = self.pending();
        let is_pending = |pending: &mut BTreeMap<_, _>| pending.contains_key(&object.addr());
        drop(self.settled.wait_while(pending, is_pending));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    /// Makes getters return if there is nothing.
    fn events() -> Arc<AsyncEvents> {
        let events = AsyncEvents::new().unwrap();
        // SAFETY: the descriptor is open.
        assert_eq!(
            unsafe { libc::fcntl(events.fd(), libc::F_SETFL, libc::O_NONBLOCK) },
            0
        );
        Arc::new(events)
    }

    fn qp(number: usize) -> AsyncEvent {
        AsyncEvent::QpAccess(std::ptr::without_provenance_mut(number))
    }

    #[test]
    fn what_nobody_got_is_forgotten_with_its_object() {
        let events = events();
        for event in [qp(1), qp(2), qp(1)] {
            events.report(event);
        }
        events.forget(qp(1).object());
        assert_eq!(events.get().unwrap(), qp(2));
        assert_eq!(events.get().unwrap_err(), libc::EAGAIN);
    }

    #[test]
    fn forgetting_waits_for_what_someone_got() {
        let events = events();
        events.report(qp(1));
        events.report(qp(1));
        assert_eq!(events.get().unwrap(), qp(1));
        let acknowledged = Arc::new(AtomicBool::new(false));
        let (send, forgotten) = channel();
        thread::spawn({
            let (events, acknowledged) = (events.clone(), acknowledged.clone());
            move || {
                events.forget(qp(1).object());
                // Relaxed: the lock of the events orders this and the store.
                send.send(acknowledged.load(Ordering::Relaxed)).unwrap();
            }
        });
        // It has begun once the event that nobody got is gone.
        while events.pending()[&1] == 2 {
            thread::yield_now();
        }
        // Relaxed: as above.
        acknowledged.store(true, Ordering::Relaxed);
        events.settle(qp(1).object(), 1);
        let waited = forgotten.recv_timeout(Duration::from_secs(10));
        assert_eq!(waited, Ok(true));
    }
}
