//! What carries the bytes between the two ends of a connection.

mod tcp;

pub use tcp::{Tcp, TcpListener, local_address_towards};

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;

/// A stream of bytes in both directions, in order and without loss.
///
/// No call blocks: what cannot be done now is [`io::ErrorKind::WouldBlock`], and the descriptor
/// tells when it can.
pub trait Link: Send {
    fn fd(&self) -> BorrowedFd<'_>;

    /// Takes some of the bytes, and says how many.
    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Gives bytes that have come, and says how many; none at all is the end.
    fn recv(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize>;

    /// How opening went, once the link can be written to.
    fn opened(&mut self) -> io::Result<()>;

    /// Says that nothing more will be sent; what was sent still arrives.
    fn finish(&mut self);
}
