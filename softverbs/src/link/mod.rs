//! What carries the bytes between the two ends of a connection.

mod tcp;

pub use tcp::{Tcp, TcpListener, local_address_towards};

use std::io;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;

/// A piece of memory that a link copies from or to.
///
/// It is no slice: the memory may be the program's, which may write to it meanwhile, and pieces may
/// overlap. Only the kernel touches it.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Piece<'a>(libc::iovec, PhantomData<&'a ()>);

impl<'a> Piece<'a> {
    pub const NONE: Self = Piece(
        libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        },
        PhantomData,
    );

    /// # Safety
    /// The memory is mapped for `'a`. What the program maps so that it can't be read or written makes
    /// the link's call fail, and nothing else.
    pub unsafe fn new(start: *mut u8, len: usize) -> Self {
        let iovec = libc::iovec {
            iov_base: start.cast(),
            iov_len: len,
        };
        Piece(iovec, PhantomData)
    }

    /// Bytes to send.
    pub fn of(bytes: &'a [u8]) -> Self {
        // SAFETY: the bytes are borrowed for `'a`; what is sent is only read.
        unsafe { Piece::new(bytes.as_ptr().cast_mut(), bytes.len()) }
    }

    /// Room to receive into.
    pub fn of_mut(room: &'a mut [u8]) -> Self {
        // SAFETY: the room is borrowed for `'a`, by this piece alone.
        unsafe { Piece::new(room.as_mut_ptr(), room.len()) }
    }

    pub fn start(&self) -> *mut u8 {
        self.0.iov_base.cast()
    }

    pub fn len(&self) -> usize {
        self.0.iov_len
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A stream of bytes in both directions, in order and without loss.
///
/// No call blocks: what cannot be done now is [`io::ErrorKind::WouldBlock`], and the descriptor
/// tells when it can.
pub trait Link: Send {
    fn fd(&self) -> BorrowedFd<'_>;

    /// Takes some of the bytes, and returns how many.
    fn send(&mut self, pieces: &[Piece<'_>]) -> io::Result<usize>;

    /// Writes bytes that have come to the pieces, each of which must be for that, and returns how
    /// many; none is the end of the stream.
    fn recv(&mut self, pieces: &[Piece<'_>]) -> io::Result<usize>;

    /// How opening ended, once the link can be written to.
    fn opened(&mut self) -> io::Result<()>;

    /// Says that nothing more will be sent; what was sent still arrives.
    fn finish(&mut self);
}
