//! Lines on stderr for causes that no event and no errno can name.
//!
//! Each kind of cause is told once in a process, so that a log does not fill up: what happened later
//! mostly happened for the same reason.

use crate::proto::Cause;
use crate::proto::frames::{Stranger, VERSION};
use crate::settings::Settings;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};

/// Who is told about: the address of the other side, and the port it came to if it came.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    pub address: SocketAddr,
    pub listener: Option<u16>,
}

/// So many of the first bytes are shown: enough for `SSH-2.0-OpenSSH_` or `HTTP/1.1 400 Bad`.
const SHOWN: usize = 16;

impl fmt::Display for Cause<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match *self {
            Cause::Stranger(Stranger::WrongVersion(version), _) => write!(
                f,
                "it speaks softverbs protocol {version}, this is {VERSION}"
            ),
            Cause::Stranger(Stranger::WrongMagic, said) => {
                let shown = &said[..said.len().min(SHOWN)];
                write!(
                    f,
                    "it does not speak the softverbs protocol; it begins with \"{}\"",
                    shown.escape_ascii()
                )
            }
            Cause::Stranger(Stranger::Malformed, _) => {
                write!(
                    f,
                    "it speaks softverbs protocol {VERSION}, but not correctly"
                )
            }
            Cause::Echo => f.write_str("it sends back what it is sent, so it is not softverbs"),
            Cause::Ended => f.write_str(
                "it ended the connection without an answer: it may not be softverbs, or of another \
                 release, or its program has ended",
            ),
            Cause::Silent(time) => write!(
                f,
                "it has said nothing for {} s: it may not be softverbs, or its program does not go on",
                time.as_secs()
            ),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} port {}", self.address.ip(), self.address.port())?;
        match self.listener {
            Some(port) => write!(f, " (connected to port {port})"),
            None => Ok(()),
        }
    }
}

/// Tells why the other side is no peer.
pub fn peer(peer: Peer, cause: Cause) {
    static VERSIONS: Told = Told::new();
    static STRANGERS: Told = Told::new();
    static UNANSWERED: Told = Told::new();
    let told = match cause {
        Cause::Stranger(Stranger::WrongVersion(_), _) => &VERSIONS,
        Cause::Stranger(..) | Cause::Echo => &STRANGERS,
        Cause::Ended | Cause::Silent(_) => &UNANSWERED,
    };
    told.once(format_args!("{peer}: {cause}"));
}

/// Tells that a channel of the parent process is asked for events in a child of it.
pub fn forked() {
    static FORKED: Told = Told::new();
    FORKED.once(format_args!(
        "the listener and connections of the event channel are those of the parent process, \
         and do not survive fork(): make them in the process that uses them"
    ));
}

/// One kind of cause: the process that has told of it, since a child of that has not.
struct Told(AtomicU32);

impl Told {
    const fn new() -> Self {
        Told(AtomicU32::new(0))
    }

    fn once(&self, what: fmt::Arguments) {
        if !Settings::get().warn {
            return;
        }
        // Relaxed: one of the threads that come here at once finds the turn free, and nothing else
        // depends on it.
        let process = std::process::id();
        if self.0.swap(process, Ordering::Relaxed) != process {
            say(&format!("softverbs: {what}\n"));
        }
    }
}

/// Writes a line in one piece. Drops it if stderr does not take it at once, since connections would
/// wait meanwhile.
fn say(line: &str) {
    let stderr = io::stderr();
    let stderr = stderr.as_fd();
    let mut fds = [PollFd::from_borrowed_fd(stderr, PollFlags::OUT)];
    // A pipe is ready if it takes 4096 bytes at once, which is more than a line has.
    let now = Timespec::default();
    if poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
        // Nobody reads a pipe that has an error, and writing to it may end the program.
        && fds[0].revents() == PollFlags::OUT
    {
        // A program that has closed it does not want to know.
        let _ = rustix::io::write(stderr, line.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn line(listener: Option<u16>, cause: Cause) -> String {
        let address = ([127, 0, 0, 1], 7204).into();
        format!("{}: {cause}", Peer { address, listener })
    }

    #[test]
    fn a_line_names_address_and_cause() {
        let version = Cause::Stranger(Stranger::WrongVersion(2), b"");
        assert_eq!(
            line(None, version),
            "127.0.0.1 port 7204: it speaks softverbs protocol 2, this is 1"
        );
        let other = Cause::Stranger(Stranger::WrongMagic, b"HTTP/1.1 \x00\x01\r\n\"\xff bad");
        assert_eq!(
            line(Some(80), other),
            "127.0.0.1 port 7204 (connected to port 80): it does not speak the softverbs protocol; \
             it begins with \"HTTP/1.1 \\x00\\x01\\r\\n\\\"\\xff \""
        );
        assert!(line(None, Cause::Silent(Duration::from_secs(60))).contains(" for 60 s"));
    }

    #[test]
    fn an_ipv6_address_is_shown_whole() {
        let address = "[fd88::1]:7204".parse().unwrap();
        let listener = None;
        assert_eq!(Peer { address, listener }.to_string(), "fd88::1 port 7204");
    }
}
