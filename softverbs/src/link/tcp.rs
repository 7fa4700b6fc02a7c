//! TCP as a link.

use super::{Link, Piece};
use crate::process::ForkLocalFd;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, Shutdown, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// A socket, of a connection or of what is to become one.
pub struct Tcp(ForkLocalFd);

fn socket(family: AddressFamily, kind: SocketType) -> io::Result<ForkLocalFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    ForkLocalFd::new(|| net::socket_with(family, kind, flags, None))
}

fn family(address: &SocketAddr) -> AddressFamily {
    if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    }
}

/// The address from which packets would go to `to`.
pub fn local_address_towards(to: &SocketAddr) -> io::Result<SocketAddr> {
    let socket = socket(family(to), SocketType::DGRAM)?;
    // UDP reaches nobody by connecting; only the route is looked up. Port 0 is none to connect to.
    let mut to = *to;
    if to.port() == 0 {
        to.set_port(9);
    }
    net::connect(&socket, &to)?;
    let mut local = SocketAddr::try_from(net::getsockname(&socket)?)?;
    local.set_port(0);
    Ok(local)
}

impl Tcp {
    /// A socket bound to an address of this host; port 0 is any.
    ///
    /// `share` is whether others that say so may have the same one, and `v6_only` whether an IPv6
    /// wildcard leaves IPv4 alone.
    pub fn bind(address: &SocketAddr, share: bool, v6_only: bool) -> io::Result<Self> {
        let socket = socket(family(address), SocketType::STREAM)?;
        if address.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, v6_only)?;
        }
        sockopt::set_socket_reuseaddr(&socket, share)?;
        match net::bind(&socket, address) {
            // Connections that have ended do not keep a port, as they would with TCP. What is bound
            // does, and so does this one from now on, unless it says otherwise.
            Err(Errno::ADDRINUSE) if address.port() != 0 && !share => {
                sockopt::set_socket_reuseaddr(&socket, true)?;
                net::bind(&socket, address)?;
                sockopt::set_socket_reuseaddr(&socket, false)?;
            }
            result => result?,
        }
        Ok(Tcp(socket))
    }

    /// Whether others that say so may have the same address.
    pub fn share(&self, share: bool) -> io::Result<()> {
        Ok(sockopt::set_socket_reuseaddr(&self.0, share)?)
    }

    pub fn local_address(&self) -> io::Result<SocketAddr> {
        Ok(SocketAddr::try_from(net::getsockname(&self.0)?)?)
    }

    pub fn peer_address(&self) -> io::Result<SocketAddr> {
        let peer = net::getpeername(&self.0)?.ok_or(Errno::NOTCONN)?;
        Ok(SocketAddr::try_from(peer)?)
    }

    /// Begins to connect; the link can be written to when that has ended.
    pub fn connect(&mut self, to: &SocketAddr) -> io::Result<()> {
        self.tune()?;
        sockopt::set_socket_reuseaddr(&self.0, true)?;
        match net::connect(&self.0, to) {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Listens; if that is not possible, it is as it was.
    pub fn listen(self, backlog: i32) -> Result<TcpListener, (Self, io::Error)> {
        let shared = sockopt::socket_reuseaddr(&self.0).unwrap_or(false);
        // Connections that come must not keep the port once they have ended.
        let listens = self.share(true);
        match listens.and_then(|()| Ok(net::listen(&self.0, backlog)?)) {
            Ok(()) => Ok(TcpListener(self.0)),
            Err(error) => {
                let _ = self.share(shared);
                Err((self, error))
            }
        }
    }

    /// To a peer on the same host a little is sent at a time. One that has gone again needs nothing.
    fn tune_to_peer(&self) {
        if let (Ok(peer), Ok(local)) = (self.peer_address(), self.local_address())
            && peer.ip() == local.ip()
        {
            let _ = sockopt::set_socket_send_buffer_size(&self.0, SEND_BUFFER_AT_HOME);
        }
    }

    /// Sends or receives.
    #[inline]
    fn transfer(&self, call: libc::c_long, pieces: &[Piece<'_>], flags: i32) -> io::Result<usize> {
        // SAFETY: it consists of numbers and pointers.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = pieces.as_ptr().cast_mut().cast();
        message.msg_iovlen = pieces.len() as _;
        // The system call itself: the C library's functions are points where a thread can be
        // cancelled, and this one may have a lock.
        // SAFETY: a `Piece` is an `iovec` of memory that lives as long as it does. The kernel checks
        // what it touches.
        let n = unsafe {
            let fd = self.0.as_fd().as_raw_fd();
            libc::syscall(call, fd, &raw mut message, flags | libc::MSG_DONTWAIT)
        };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }

    /// As [`Tcp::transfer`], of one piece, which the kernel does with less to look at.
    #[inline]
    fn transfer_one(&self, call: libc::c_long, piece: &Piece<'_>, flags: i32) -> io::Result<usize> {
        let none: *const libc::c_void = std::ptr::null();
        // SAFETY: as there.
        let n = unsafe {
            let fd = self.0.as_fd().as_raw_fd();
            let flags = flags | libc::MSG_DONTWAIT;
            libc::syscall(call, fd, piece.start(), piece.len(), flags, none, none)
        };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }

    /// Requests are to go at once, and a peer that is cut off is to be noticed.
    fn tune(&self) -> io::Result<()> {
        sockopt::set_tcp_nodelay(&self.0, true)?;
        sockopt::set_socket_keepalive(&self.0, true)?;
        sockopt::set_tcp_keepidle(&self.0, KEEP_IDLE)?;
        sockopt::set_tcp_keepintvl(&self.0, KEEP_INTERVAL)?;
        sockopt::set_tcp_keepcnt(&self.0, KEEP_COUNT)?;
        sockopt::set_tcp_user_timeout(&self.0, USER_TIMEOUT_MS)?;
        Ok(())
    }
}

/// Within a host so much is under way in each direction, which stays in the processor's caches until
/// it is taken. (The kernel doubles it, for its own needs.)
const SEND_BUFFER_AT_HOME: usize = 128 * 1024;
/// A peer that says nothing for so long is asked whether it is there ...
const KEEP_IDLE: std::time::Duration = std::time::Duration::from_secs(4);
const KEEP_INTERVAL: std::time::Duration = std::time::Duration::from_secs(2);
const KEEP_COUNT: u32 = 3;
/// ... and one that does not take what is sent for so long is gone.
const USER_TIMEOUT_MS: u32 = 10_000;

impl Link for Tcp {
    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    #[inline]
    fn send(&mut self, pieces: &[Piece<'_>]) -> io::Result<usize> {
        let flags = libc::MSG_NOSIGNAL;
        match pieces {
            [piece] => self.transfer_one(libc::SYS_sendto, piece, flags),
            pieces => self.transfer(libc::SYS_sendmsg, pieces, flags),
        }
    }

    #[inline]
    fn recv(&mut self, pieces: &[Piece<'_>]) -> io::Result<usize> {
        match pieces {
            [piece] => self.transfer_one(libc::SYS_recvfrom, piece, 0),
            pieces => self.transfer(libc::SYS_recvmsg, pieces, 0),
        }
    }

    fn opened(&mut self) -> io::Result<()> {
        sockopt::socket_error(&self.0)??;
        self.tune_to_peer();
        Ok(())
    }

    fn finish(&mut self) {
        // Of a peer that has gone there is nothing left to tell.
        let _ = net::shutdown(&self.0, Shutdown::Write);
    }
}

/// A socket that takes connections.
pub struct TcpListener(ForkLocalFd);

impl TcpListener {
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    pub fn accept(&self) -> io::Result<Tcp> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let link = Tcp(ForkLocalFd::new(|| net::accept_with(&self.0, flags))?);
        link.tune()?;
        link.tune_to_peer();
        Ok(link)
    }
}
