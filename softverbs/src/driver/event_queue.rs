//! Queues of events that a program waits for with a file descriptor.

use crate::sync::lock;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, ReadWriteFlags, preadv2, write};
use std::any::Any;
use std::cell::Cell;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard};

/// Events with a descriptor that can be read exactly while there are some, so that poll(2) and
/// epoll(7) see them. What a getter does when there are none depends on the descriptor's
/// O_NONBLOCK, which belongs to the program.
pub struct EventQueue<T> {
    fd: OwnedFd,
    queue: Mutex<VecDeque<T>>,
}

thread_local! {
    /// The queue that this thread waits for. A program may destroy a channel while a thread waits for
    /// its events: the thread waits on, as in the kernel. A cancelled thread drops this when it ends.
    static AWAITED: Cell<Option<Arc<dyn Any>>> = const { Cell::new(None) };
}

// A thread that waits here may be cancelled: then it is unwound from there, as through the frames of
// the libraries in C, which have nothing to clean up and no handlers, and neither have these. Not
// "C-unwind": a build that aborts on panics has handlers there, which abort.
unsafe extern "C" {
    fn read(fd: c_int, into: *mut c_void, len: usize) -> isize;
    fn pthread_testcancel();
}

impl<T: 'static> EventQueue<T> {
    pub fn new() -> io::Result<Self> {
        Ok(EventQueue {
            fd: eventfd(0, EventfdFlags::CLOEXEC)?,
            queue: Mutex::new(VecDeque::new()),
        })
    }

    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub fn lock(&self) -> MutexGuard<'_, VecDeque<T>> {
        lock(&self.queue)
    }

    /// Once for each event, though the mark may be there: a program that waits for edges expects one
    /// for each.
    fn raise(&self) {
        // Of a counter that is far from its end this neither fails nor waits.
        let _ = write(&self.fd, &1u64.to_ne_bytes());
    }

    /// Takes the mark away, if a getter has not done so.
    fn lower(&self) {
        let mut count = [0; 8];
        let mut parts = [IoSliceMut::new(&mut count)];
        let result = preadv2(&self.fd, &mut parts, u64::MAX, ReadWriteFlags::NOWAIT);
        if matches!(result, Err(Errno::OPNOTSUPP | Errno::SPIPE | Errno::NOSYS))
            && readable(self.fd.as_fd())
        {
            let _ = rustix::io::read(&self.fd, &mut count);
        }
    }

    pub fn push(&self, event: T) {
        let mut queue = self.lock();
        queue.push_back(event);
        self.raise();
    }

    /// The next event; waits for one, or fails with EAGAIN if the descriptor is O_NONBLOCK.
    ///
    /// `note` sees it while it can't be extracted, and is not lost to those who would.
    ///
    /// The thread may be cancelled in here. Callers have nothing that is to be dropped.
    pub fn pop(self: &Arc<Self>, note: impl Fn(&T)) -> Result<T, i32> {
        // SAFETY: as this function, callers have nothing to drop.
        unsafe { pthread_testcancel() };
        if let Some(event) = self.take(false, &note) {
            return Ok(event);
        }
        // The caller's may be gone when the wait is over.
        let queue: *const Self = Arc::as_ptr(self);
        AWAITED.set(Some(self.clone()));
        // SAFETY: AWAITED keeps it.
        let result = unsafe { (*queue).wait_for_event(note) };
        drop(AWAITED.take());
        result
    }

    fn wait_for_event(&self, note: impl Fn(&T)) -> Result<T, i32> {
        loop {
            self.wait()?;
            if let Some(event) = self.take(true, &note) {
                return Ok(event);
            }
        }
    }

    fn take(&self, mark_taken: bool, note: impl Fn(&T)) -> Option<T> {
        let mut queue = self.lock();
        let event = queue.pop_front()?;
        note(&event);
        if queue.is_empty() {
            self.lower();
        } else if mark_taken {
            self.raise();
        }
        Some(event)
    }

    /// Takes the mark. Reading waits, or does not, as the program has set the descriptor, and goes on
    /// or ends with EINTR as it has set its signals.
    fn wait(&self) -> Result<(), i32> {
        let mut count = [0u8; 8];
        // SAFETY: the descriptor is open, and there is room for 8 bytes.
        let n = unsafe { read(self.fd(), count.as_mut_ptr().cast(), count.len()) };
        // SAFETY: it is this thread's.
        (n >= 0)
            .then_some(())
            .ok_or_else(|| unsafe { *libc::__errno_location() })
    }

    /// Takes out the events of which `which` is true.
    pub fn extract(&self, mut which: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut queue = self.lock();
        let before = queue.len();
        let mut out = vec![];
        for event in std::mem::take(&mut *queue) {
            if which(&event) {
                out.push(event);
            } else {
                queue.push_back(event);
            }
        }
        if queue.is_empty() && before > 0 {
            self.lower();
        }
        out
    }
}

fn readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [rustix::event::PollFd::from_borrowed_fd(
        fd,
        rustix::event::PollFlags::IN,
    )];
    let now = rustix::event::Timespec::default();
    rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|n| n > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_descriptor_tells_whether_there_are_events() {
        let queue = Arc::new(EventQueue::new().unwrap());
        assert!(!readable(queue.fd.as_fd()));
        queue.push(1);
        queue.push(2);
        assert!(readable(queue.fd.as_fd()));
        assert_eq!(queue.pop(|_| ()).unwrap(), 1);
        assert!(readable(queue.fd.as_fd()));
        assert_eq!(queue.extract(|n| *n == 2), [2]);
        assert!(!readable(queue.fd.as_fd()));
    }

    /// The event that wakes the thread is gone, and the channel too, before the thread sees it.
    #[test]
    fn a_getter_waits_on_after_its_queue_is_gone() {
        for _ in 0..200 {
            let handle = Box::into_raw(Box::new(Arc::new(EventQueue::new().unwrap())));
            // SAFETY: it is there until it is dropped below.
            let queue = unsafe { &*handle };
            // Of the same description: what is set here is set for the getter, too.
            let fd = queue.fd.try_clone().unwrap();
            let getter = std::thread::spawn(|| queue.pop(|_: &i32| ()));
            let mut looks = 0;
            while Arc::strong_count(queue) == 1 {
                looks += 1;
                assert!(looks < 1_000_000, "nothing keeps the queue");
                std::thread::yield_now();
            }
            let mut events = queue.lock();
            events.push_back(1);
            queue.raise();
            events.clear();
            drop(events);
            // SAFETY: the getter has its own.
            drop(unsafe { Box::from_raw(handle) });

            // The getter's descriptor is open still, and tells when it is asked not to wait.
            rustix::io::ioctl_fionbio(&fd, true).unwrap();
            write(&fd, &1u64.to_ne_bytes()).unwrap();
            assert_eq!(getter.join().unwrap(), Err(libc::EAGAIN));
        }
    }

    #[test]
    fn a_getter_waits_only_if_the_descriptor_does() {
        let queue = Arc::new(EventQueue::new().unwrap());
        let getter = {
            let queue = queue.clone();
            std::thread::spawn(move || (queue.pop(|_| ()).unwrap(), queue.pop(|_| ()).unwrap()))
        };
        queue.push(1);
        queue.push(2);
        assert_eq!(getter.join().unwrap(), (1, 2));
        rustix::io::ioctl_fionbio(&queue.fd, true).unwrap();
        assert_eq!(queue.pop(|_| ()).unwrap_err(), libc::EAGAIN);
    }
}
